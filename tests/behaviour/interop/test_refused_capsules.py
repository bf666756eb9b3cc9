"""Capsules that a consumer refuses, and CUDA array interfaces that dagpu refuses or reads with care."""

import ctypes
import gc
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest

from dagpu import (
    InteropError,
    adopt,
    bf16,
    dup,
    f32,
    fill,
    from_array,
    lend_mut,
    lent_out,
    ones,
    share_array,
    stream_of,
    use_device,
)
from dagpu.interop.capsules import CPU, CUDA
from tests.simulated.cuda import installed
from tests.simulated.foreign_arrays import Library, counted_exports


def test_the_consumers_error_is_raised_and_nothing_is_kept() -> None:
    """NumPy has no bfloat16."""
    with use_device("host"), counted_exports() as held:
        shared = ones((4,), bf16).sync().share()
        with pytest.raises((RuntimeError, BufferError, TypeError)):
            np.from_dlpack(shared)
        gc.collect()
        assert held() == 0
        shared.try_unwrap()


def test_the_loan_ends() -> None:
    """NumPy takes nothing that is on a GPU; the tensor can be used after the block."""
    with installed(1, gpus=1):
        tensor = ones((4,)).sync()
        with lent_out(tensor.borrow_mut()) as out, pytest.raises((RuntimeError, BufferError)):
            np.from_dlpack(out)
        assert tensor.to_host().sync().tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    "changed",
    [
        {"shape": (-1,)}, {"shape": None}, {"shape": (1.5,)}, {"strides": (4, 4)}, {"typestr": "?!"}, {"data": None},
        {"data": (1, False)}, {"stream": "default"},
    ],
    ids=str,
)  # fmt: skip
def test_an_interface_that_describes_no_array_is_refused(changed: dict[str, Any]) -> None:
    """The error names dagpu's call, the array's type and the user's line, and nothing is kept."""
    with installed(1, gpus=1) as machine:
        array = Library(machine).array(np.arange(4, dtype=f32))
        with pytest.raises(InteropError, match=r"share_array at .*the CUDA array interface of WithInterface"):
            share_array(array.interface(**changed))
        assert dup(share_array(array.interface(), f32)).to_host().sync().tolist() == [0, 1, 2, 3]


@final
class Speaks:
    """An array of a library that says what it is told to."""

    def __init__(self, capsule: Callable[[], object], device: Callable[[], Any] = lambda: (CPU, 0)) -> None:
        self._capsule = capsule
        self._device = device

    def __dlpack__(self, **_: Any) -> object:
        return self._capsule()

    def __dlpack_device__(self) -> Any:
        return self._device()


_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def torn(at: int, form: str, value: int) -> Callable[[], object]:
    """Return a function that gives a capsule with this number, of this form for `struct`, in its DLTensor."""

    def make() -> object:
        made = np.arange(24, dtype=f32).reshape(4, 6).__dlpack__(max_version=(1, 0))
        tensor = _pointer_of(made, b"dltensor_versioned") + 32
        struct.pack_into(f"={form}", (ctypes.c_char * 48).from_address(tensor), at, value)
        return made

    return make


DATA, KIND, RANK, BITS, LANES, SHAPE, STRIDES, OFFSET = 0, 8, 16, 21, 22, 24, 32, 40
"""The offsets of the fields of a DLTensor."""
NO_CAPSULE, NO_TYPE, ODD = "is no capsule that dagpu reads", "a type that no tensor has", "not aligned to their 4 bytes"


@pytest.mark.parametrize(
    ("at", "form", "value", "says"),
    [
        (DATA, "Q", 0, NO_CAPSULE), (OFFSET, "Q", 1 << 63, NO_CAPSULE), (OFFSET, "Q", 2, ODD),
        (RANK, "i", -1, NO_CAPSULE), (RANK, "i", 65, NO_CAPSULE), (SHAPE, "Q", 0, NO_CAPSULE),
        (KIND, "i", CUDA, NO_CAPSULE), (BITS, "B", 4, NO_TYPE), (BITS, "B", 0, NO_TYPE), (LANES, "H", 0, NO_TYPE),
    ],
)  # fmt: skip
def test_a_capsule_that_describes_no_array_is_refused(at: int, form: str, value: int, says: str) -> None:
    """Nothing is read where nothing can be, and the error names dagpu's call, the array's type and the user's line."""
    with use_device("host"):
        for verb in (share_array, adopt, from_array):
            with pytest.raises(InteropError, match=rf"{verb.__name__} at \S+test_refused_capsules.py:\d+: .*{says}"):
                verb(Speaks(torn(at, form, value)))
        assert share_array(Speaks(torn(STRIDES, "Q", 0))).shape == (4, 6)  # no strides stand for C order


def test_a_capsule_of_negative_extents_is_refused() -> None:
    """They would make the end of the array lie before its start."""
    extents = (ctypes.c_int64 * 2)(4, -6)
    with use_device("host"), pytest.raises(InteropError, match=NO_CAPSULE):
        share_array(Speaks(torn(SHAPE, "Q", ctypes.addressof(extents))))


def fails(error: Exception) -> Callable[[], Any]:
    def raising() -> Any:
        raise error

    return raising


@pytest.mark.parametrize(
    "array",
    [
        Speaks(lambda: None), Speaks(lambda: 3), Speaks(fails(KeyError("gone"))), Speaks(fails(AttributeError("gone"))),
        Speaks(torn(0, "B", 0), lambda: None), Speaks(torn(0, "B", 0), lambda: ("cpu", 0)),
        Speaks(torn(0, "B", 0), lambda: (1,)), Speaks(torn(0, "B", 0), fails(OSError("gone"))),
    ],
)  # fmt: skip
def test_whatever_a_library_raises_is_an_error_with_its_place(array: Any) -> None:
    """It is the cause of an error that names dagpu's call, the array's type and the user's line."""
    with use_device("host"):
        for verb in (share_array, adopt, from_array):
            with pytest.raises(InteropError, match=rf"{verb.__name__} at \S+test_refused_capsules.py:\d+: .*Speaks"):
                verb(array)


@pytest.mark.parametrize("interface", [None, {"version": "three"}, property(lambda _: 1 // 0)])
def test_an_interface_that_is_none_is_refused(interface: Any) -> None:
    """Also one whose property fails."""
    made = type("Made", (), {"__cuda_array_interface__": interface})
    with use_device("host"), pytest.raises(InteropError, match="interface of Made describes no array"):
        share_array(made())


def test_a_class_is_no_array() -> None:
    """A class has the methods of its arrays, and is none."""
    with use_device("host"), pytest.raises(InteropError, match="the class ndarray has neither DLPack"):
        share_array(np.ndarray)  # type: ignore[call-overload]


def test_subclasses_of_numpys_array_are_arrays(tmp_path: Path) -> None:
    """A matrix, an array of a file and records are read as they are; each field of a record is an array too."""
    mapped = np.memmap(tmp_path / "array", f32, "w+", shape=(4,))
    record = np.rec.array([(1.0, 2.0), (3.0, 4.0)], dtype=[("a", f32), ("b", f32)])
    with use_device("host"):
        with lend_mut(mapped) as lent:
            fill(lent, 3.0).sync()
        assert mapped.tolist() == [3, 3, 3, 3]
        assert dup(share_array(record)).to_host().sync().tolist() == record.tolist()
        assert dup(share_array(record["b"])).to_host().sync().tolist() == [2, 4]


def test_numbers_of_numpy_in_an_interface_become_plain_ones() -> None:
    """An extent of NumPy would overflow, and would stay in the shapes of all later arrays like it."""
    with installed(1, gpus=1) as machine:
        array = Library(machine).array(np.arange(12, dtype=f32).reshape(3, 4))
        shape, strides = (np.int8(3), np.int8(4)), [np.int8(16), np.int8(4)]
        shared = share_array(array.interface(shape=shape, strides=strides), f32)
        assert [type(number) for number in (*shared.shape, *shared.strides)] == [int] * 4
        large = share_array(array.interface(shape=(np.int32(1 << 16),) * 2, strides=(np.int32(0), np.int32(0))), f32)
        assert large.nbytes == 1 << 34


def test_the_stream_zero_is_the_legacy_stream() -> None:
    """PyTorch's default stream says 0. It is the stream that DLPack calls 1."""

    class Default:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, 0

    with installed(1, gpus=1) as machine:
        library = Library(machine)
        for changed, stream in (({"stream": 0}, None), ({"version": 2}, 0), ({"stream": None}, Default())):
            array = library.array(np.arange(4, dtype=f32))
            with machine.gpus[0].current():
                machine.gpus[0].synchronize()  # the library's own stream is another one
            shared = share_array(array.interface(**changed), f32, stream=stream)
            assert dup(shared).to_host().sync().tolist() == [0, 1, 2, 3]
        assert stream_of(0).lane is stream_of(Default()).lane is stream_of(1).lane
        assert library.take(ones((4,)).sync()).memory.form.nbytes == 16
        assert ones((4,)).sync().__dlpack__(stream=0) is not None
