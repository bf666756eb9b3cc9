"""Arrays that are shared with another library: no handle of dagpu becomes their owner, and nothing writes them as long
as that library may use them."""

import gc
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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
    fill,
    from_host,
    full,
    lend,
    lend_mut,
    lent_out,
    share_array,
    source,
    unversioned,
    use_device,
    value,
    zeros,
)  # fmt: skip
from dagpu.backends.host.arrays import bytes_at
from dagpu.handles import Holders, take_state
from tests.simulated.cuda import installed
from tests.simulated.foreign_arrays import Library, Taken


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


@pytest.mark.usefixtures("on_host")
@pytest.mark.parametrize("block", [lend, lend_mut])
def test_a_loan_that_came_back_ends_with_its_block(block: Any) -> None:
    """What a consumer took of a lent array, and has dropped since, does not use the array any more."""
    with block(np.zeros(8, f32)) as borrow:
        with lent_out(borrow) as x:
            taken = np.from_dlpack(x)
        del taken


@pytest.mark.usefixtures("on_host")
def test_a_loan_that_came_back_has_no_reader() -> None:
    """A tensor that was lent out before it was shared gets its owner back."""
    tensor = zeros((8,), f32).sync()
    with lent_out(tensor.borrow()) as x:
        taken = np.from_dlpack(x)
    shared = tensor.share()
    del taken
    shared.try_unwrap()


@pytest.mark.parametrize("way", ["unversioned", "interface"])
def test_an_array_that_does_not_say_that_it_is_read_only(way: str) -> None:
    """CuPy ignores that memory is read-only, and a capsule before DLPack 1.0 cannot say it. Such an array of a
    `SharedTensor` is refused where dagpu could write it, and taken where it is read."""
    with installed() as machine:
        shared = full((8,), 3.0).sync().share()
        if way == "unversioned":
            address = Library(machine).take(unversioned(shared), max_version=None).memory.address
        else:
            address = shared.__cuda_array_interface__["data"][0]
        interface = {"shape": (8,), "typestr": "<f4", "data": (address, False), "version": 3, "stream": None}
        array = SimpleNamespace(__cuda_array_interface__=interface)
        for writer in (adopt, lambda x: lend_mut(x).__enter__()):
            with pytest.raises(InteropError, match="known to dagpu already"):
                writer(array)
        assert_array_equal(dup(share_array(array, f32)).to_host().sync(), np.full(8, 3, f32))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    memory=st.sampled_from(["own", "adopted"]),
    way=st.sampled_from(["DLPack", "unversioned", "interface", "closure", "loan"]),
)
def test_no_run_writes_what_a_late_consumer_reads(seed: int, memory: str, way: str) -> None:
    """A consumer has dropped its array, and its stream still reads it. The handle is writable again, and a run that
    writes it comes after that read."""
    ones = np.ones(8, f32)
    with installed(seed=seed) as machine:
        library = Library(machine)
        tensor = full((8,), 1.0).sync() if memory == "own" else adopt(library.array(ones), f32)
        if way == "loan":
            with lent_out(tensor.borrow()) as x:
                taken = library.take(x)
            seen = taken.read_later()  # after the block
            del taken
            fill(tensor.borrow_mut(), 2.0).sync()
        else:
            shared = tensor.share()
            if way == "interface":
                address = shared.__cuda_array_interface__["data"][0]
                seen = []
                library.enqueue(address, 32, lambda raw: seen.append(raw.view(f32).copy()))
            else:
                out: Any = unversioned(shared) if way == "unversioned" else shared
                taken = Taken(library, out.__dlpack__(stream=library.stream.handle, max_version=(1, 0)))
                seen = taken.read_later()
                del taken, out
            gc.collect()
            if way == "closure":
                op = value(shared).then(lambda x: fill(x.try_unwrap().borrow_mut(), 2.0))
                del shared
                op.sync()
            else:
                fill(shared.try_unwrap().borrow_mut(), 2.0).sync()
        with library.gpu.current():
            library.gpu.synchronize()
        assert_array_equal(seen[0], ones)


def test_the_wait_for_a_late_consumer_is_for_its_memory_and_once() -> None:
    """Runs on other memory do not wait for the device, and the run that did has waited for those after it."""
    with installed() as machine:
        library = Library(machine)
        tensor, other = full((8,), 1.0).sync(), full((8,), 1.0).sync()
        waits = library.gpu.calls
        before = waits["cuCtxSynchronize"]
        with lent_out(tensor.borrow()) as x:
            taken = library.take(x)
        del taken
        fill(other.borrow_mut(), 2.0).sync()
        assert waits["cuCtxSynchronize"] == before
        for _ in range(3):
            fill(tensor.borrow_mut(), 2.0).sync()
        assert waits["cuCtxSynchronize"] == before + 1
        with lent_out(tensor.borrow_mut()) as x:
            library.take(x)  # and dropped in the block
        fill(tensor.borrow_mut(), 3.0).sync()
        assert waits["cuCtxSynchronize"] == before + 1
