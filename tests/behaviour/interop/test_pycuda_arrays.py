"""PyCUDA's arrays and streams, by stand-ins that have its interfaces: an array that says that it is ready while the
default stream still writes it, and a stream with a handle alone."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import (
    InteropError,
    adopt,
    dup,
    expr,
    f32,
    from_array,
    lend,
    lend_mut,
    lent_out,
    ones,
    share_array,
    stream_of,
)
from tests.simulated.cuda import installed
from tests.simulated.foreign_arrays import Library, LibraryArray
from tests.simulated.machine import Machine

tripled = expr(f32)(lambda x: 3 * x)


class GPUArray:
    """The interface of `pycuda.gpuarray.GPUArray`: version 3, and no stream."""

    def __init__(self, array: LibraryArray) -> None:
        self._array = array

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        array = self._array
        return {
            "shape": array.shape, "strides": None, "data": (array.address, False), "typestr": array.dtype.str,
            "stream": None, "version": 3,
        }  # fmt: skip


class Stream:
    """The interface of `pycuda.driver.Stream`."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def is_done(self) -> bool:
        return False

    def wait_for_event(self, event: object, /) -> None: ...


GPUArray.__module__, Stream.__module__ = "pycuda.gpuarray", "pycuda._driver"


def library(machine: Machine) -> Library:
    """Return PyCUDA as a library that works in the default stream."""
    made = Library(machine)
    with made.gpu.current():
        stream: Any = made.gpu.foreign_stream(1)
    made.stream = stream
    return made


@settings(max_examples=20)
@given(st.integers(0, 1000), st.sampled_from(["from_array", "adopt", "share_array", "lend"]))
def test_an_array_comes_after_the_work_in_the_default_stream(seed: int, verb: str) -> None:
    """Without `stream=`, by each verb, whatever the device does first."""
    with installed(seed) as machine:
        tripled(ones((64,))).to_host().sync()  # to load a kernel waits for the device
        dup(ones((64,))).sync()
        x = GPUArray(library(machine).array(np.arange(64, dtype=f32)))
        wanted = [3.0 * n for n in range(64)]
        if verb == "lend":
            with lend(x, f32) as lent:
                assert tripled(lent).to_host().sync().tolist() == wanted
        elif verb == "from_array":
            assert tripled(from_array(x, f32)).to_host().sync().tolist() == wanted
        else:
            t: Any = adopt(x, f32) if verb == "adopt" else share_array(x, f32)
            assert tripled(t).to_host().sync().tolist() == wanted


def test_nothing_is_copied() -> None:
    """The addresses are those of PyCUDA's array, in and out; a block writes to it."""
    with installed() as machine:
        pycuda = library(machine)
        array = pycuda.array(np.ones(8, f32))
        with lend_mut(GPUArray(array), f32) as lent, lent_out(lent) as out:
            assert out.__cuda_array_interface__["data"] == (array.address, False)
        with lend_mut(GPUArray(array), f32) as lent:
            tripled.into(lent.partition((8,)), ones((8,))).sync()
        assert dup(share_array(GPUArray(array), f32)).to_host().sync().tolist() == [3.0] * 8


@pytest.fixture
def machine() -> Iterator[Machine]:
    with installed() as found:
        yield found


def test_a_run_in_a_stream_of_pycuda(machine: Machine) -> None:
    """It comes after what the stream has got, and a stream names itself for an array, too."""
    other = Library(machine)
    stream = Stream(other.stream.handle)
    x = GPUArray(other.array(np.full(8, 2, f32)))
    t = share_array(x, f32, stream=stream)
    assert tripled(t).to_host().sync_on(stream_of(stream)).tolist() == [6.0] * 8


def test_an_object_with_a_handle_of_another_library_is_refused(machine: Machine) -> None:
    """Its handle may be anything."""

    class Other:
        handle = 1

    with pytest.raises(InteropError, match=r"Pass its CUstream: stream=s\.handle"):
        stream_of(Other())  # type: ignore[arg-type]  # reason: the mistake
