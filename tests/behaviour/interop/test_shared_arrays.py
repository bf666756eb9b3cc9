"""Arrays that are shared with another library: no handle of dagpu becomes their owner, and nothing writes them."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from dagpu import (
    InteropError,
    MovedError,
    OwnershipError,
    SharedTensor,
    adopt,
    dup,
    f32,
    from_host,
    lent_out,
    share_array,
    source,
    use_device,
    zeros,
)  # fmt: skip
from dagpu.backends.host.arrays import bytes_at
from dagpu.handles import Holders, take_state


def fixed() -> NDArray[f32]:
    """Return a read-only array."""
    array = np.zeros(8, f32)
    array.flags.writeable = False
    return array


SHARED: dict[str, Callable[[], Any]] = {
    "read-only": fixed,
    "broadcast": lambda: np.broadcast_to(np.zeros(1, f32), (8,)),
    "of dagpu": lambda: np.from_dlpack(from_host(np.zeros(8, f32)).sync().share()),
}


@pytest.mark.parametrize("kind", SHARED)
def test_a_written_part_goes_to_a_copy(kind: str) -> None:
    """`Source.write` writes a copy, also where the source has the only handle."""
    with use_device("host"):
        array = SHARED[kind]()
        given = source(share_array(array))
        given.write(slice(0, 2), np.full(2, 9, f32))
        assert_array_equal(given.get().to_host().sync(), [9, 9, 0, 0, 0, 0, 0, 0])
        assert_array_equal(array, np.zeros(8))


@pytest.mark.parametrize("kind", SHARED)
def test_it_has_no_owner_in_dagpu(kind: str) -> None:
    """`try_unwrap()` refuses it; a copy has an owner."""
    with use_device("host"):
        shared = share_array(SHARED[kind]())
        with pytest.raises(OwnershipError, match="or by the library whose array it is"):
            shared.try_unwrap()
        assert_array_equal(dup(shared).to_host().sync(), np.zeros(8))


@pytest.fixture
def on_host() -> Iterator[None]:
    with use_device("host"):
        yield


def shared_zeros() -> SharedTensor[f32]:
    return zeros((8,), f32).sync().share()


@pytest.mark.usefixtures("on_host")
@pytest.mark.parametrize("counted_first", [False, True])
def test_a_handle_goes_out_or_gets_an_owner(monkeypatch: pytest.MonkeyPatch, counted_first: bool) -> None:
    """Of an export and a `try_unwrap()` of another thread amid it, one is refused: there is a reader or an owner."""
    shared, owners = shared_zeros(), []
    same = shared  # which a refused call leaves as it is
    count = Holders.add

    def count_amid(holders: Holders) -> object:
        """Count the reader, and do what another thread might do before or after it."""
        monkeypatch.undo()
        counted = count(holders) if counted_first else None
        try:
            owners.append(same.try_unwrap())
        except OwnershipError:
            pass
        return count(holders) if counted is None else counted

    monkeypatch.setattr(Holders, "add", count_amid)
    if counted_first:
        array = np.from_dlpack(shared)
        assert not owners
        assert_array_equal(array, np.zeros(8))
        assert_array_equal(dup(shared).to_host().sync(), np.zeros(8))
    else:
        with pytest.raises(MovedError, match=r"try_unwrap\(\)"):
            np.from_dlpack(shared)
        assert_array_equal(owners[0].to_host().sync(), np.zeros(8))


@pytest.mark.usefixtures("on_host")
def test_an_owner_is_refused_while_a_handle_goes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """An export of another thread, which counts its reader after `try_unwrap()` has looked, is seen all the same."""
    shared = shared_zeros()
    same = shared  # which a refused call leaves as it is
    held: list[Any] = []

    def take_amid(handle: Any, how: str, where: Any) -> Any:
        monkeypatch.undo()
        held.append(np.from_dlpack(same))
        return take_state(handle, how, where)

    monkeypatch.setattr("dagpu.handles.tensors.take_state", take_amid)
    with pytest.raises(OwnershipError, match="1 more handle"):
        shared.try_unwrap()
    assert_array_equal(dup(same).to_host().sync(), np.zeros(8))
    held.clear()
    same.try_unwrap()


def test_the_devices_of_the_host_have_one_memory() -> None:
    """An array that one of them owns is refused on another one."""
    array = np.zeros(8, f32)
    same = array  # which the test hands out again, in spite of its promise
    with use_device("host"):
        owned = adopt(same)
    with use_device("host:1"):
        for take in (adopt, share_array):
            with pytest.raises(InteropError, match="known to dagpu already"):
                take(array)
        del owned
        adopt(array)


def test_all_parts_that_went_out_are_remembered() -> None:
    """A part that goes out later does not replace the whole: nothing of it comes back as a second handle."""
    with use_device("host"):
        tensor = zeros((8,), f32).sync()
        with lent_out(tensor.borrow()) as x:
            array = np.from_dlpack(x)
            with lent_out(tensor.slice(slice(0, 2))) as y:
                np.from_dlpack(y)
            writable = bytes_at(array[4:].__array_interface__["data"][0], 16, array)  # as CuPy takes it
            with pytest.raises(InteropError, match="known to dagpu already"):
                adopt(writable)
