"""Arrays of JAX on the host, in and out: with JAX where it is installed, and with a stand-in that speaks as it does."""

from functools import partial
from importlib.util import find_spec
from typing import Any, final

import numpy as np
import pytest
from numpy.typing import NDArray

from dagpu import (
    ExportError,
    InteropError,
    adopt,
    array,
    bf16,
    f32,
    fill,
    from_array,
    full,
    lend,
    lend_mut,
    lent_out,
    share_array,
    unversioned,
)
from dagpu.backends.host.arrays import bytes_at
from dagpu.interop.capsules import CPU, read_capsule

A = np.arange(6, dtype=f32).reshape(2, 3)


@final
class StandInArray:
    """An array that nobody writes. It gives and takes capsules below DLPack 1.0, as JAX's arrays do."""

    __module__ = "jaxlib._jax"

    def __init__(self, contents: NDArray[Any], owner: object = None) -> None:
        self.contents = contents
        self._owner = owner

    def __dlpack__(self, *, stream: int | None = None, **_: object) -> object:
        return self.contents.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU, 0

    def unsafe_buffer_pointer(self) -> int:
        return self.contents.ctypes.data

    def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[Any]:
        return self.contents


@final
class StandIn:
    """`jax.numpy`'s `asarray` and `jax.dlpack`'s `from_dlpack`."""

    def asarray(self, contents: NDArray[Any]) -> StandInArray:
        return StandInArray(contents.astype(f32) if contents.dtype == bf16 else contents.copy())

    def from_dlpack(self, x: Any) -> StandInArray:
        assert x.__dlpack_device__() == (CPU, 0)
        found = read_capsule(capsule := x.__dlpack__(stream=None))
        assert found is not None
        layout, memory = found.form.layout, bytes_at(found.address, found.form.nbytes, None)
        return StandInArray(np.ndarray(layout.shape, layout.dtype, memory, 0, layout.strides), capsule)


@final
class Jax:
    """JAX itself, with its arrays in host memory also where it has a GPU."""

    def __init__(self) -> None:
        import jax  # type: ignore[import-not-found, unused-ignore]  # reason: it is installed on few machines

        self.asarray: Any = partial(jax.numpy.asarray, device=jax.devices("cpu")[0])
        self.from_dlpack: Any = jax.dlpack.from_dlpack


@pytest.fixture(name="jax", params=["a stand-in", "JAX"])
def each_jax(request: pytest.FixtureRequest) -> Any:
    """A stand-in, and JAX if it is installed."""
    if request.param == "a stand-in":
        return StandIn()
    if find_spec("jaxlib") is None:
        pytest.skip("JAX is not installed")
    return Jax()


def test_arrays_are_not_written(jax: Any) -> None:
    """JAX's arrays never change, and two of them may have one memory: dagpu does not write them either."""
    x = jax.asarray(A)
    for verb in (adopt, lambda x, element: lend_mut(x, element).__enter__()):
        with pytest.raises(InteropError, match="the array is read-only"):
            verb(x, f32)
    copied = from_array(x, f32).sync()
    fill(copied.borrow_mut(), 0.0).sync()
    assert array.sum(share_array(x, f32)).to_host().sync() == 15


def test_arrays_come_in_without_a_copy(jax: Any) -> None:
    """Shared and lent, at the same address; and copied."""
    x = jax.asarray(A)
    assert array.sum(from_array(x, f32)).to_host().sync() == 15
    shared = share_array(x, f32)
    assert shared.__dlpack_device__() == (CPU, 0)
    assert np.from_dlpack(shared).ctypes.data == x.unsafe_buffer_pointer()
    np.testing.assert_array_equal(array.cumsum(shared, 0).to_host().sync(), np.cumsum(A, 0))
    with lend(x, f32) as r:
        assert array.amax(r).to_host().sync() == 5


def test_arrays_go_out_without_a_copy(jax: Any) -> None:
    """A tensor moves; a shared one is for readers, which JAX's protocol cannot say: `unversioned` says it in its place;
    a borrow for writing goes out for a block."""
    tensor = full((2, 3), 3.0, f32).sync()
    out = jax.from_dlpack(tensor)
    np.testing.assert_array_equal(np.asarray(out), np.full((2, 3), 3, f32))
    assert "gone" in repr(tensor)
    shared = full((2, 3), 2.0, f32).sync().share()
    with pytest.raises(ExportError, match=r"pass unversioned\(t\)"):
        jax.from_dlpack(shared)
    seen = jax.from_dlpack(unversioned(shared))
    assert seen.unsafe_buffer_pointer() == np.from_dlpack(shared).ctypes.data
    lent = full((3,), 4.0, f32).sync()
    with lent_out(lent.borrow_mut()) as x:
        found = jax.from_dlpack(x)
        assert np.asarray(found).sum() == 12
        del found
    np.testing.assert_array_equal(lent.to_host().sync(), np.full(3, 4, f32))
