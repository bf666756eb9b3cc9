"""Capsules that a consumer refuses, and CUDA array interfaces that dagpu refuses or reads with care."""

import gc
from typing import Any

import numpy as np
import pytest

from dagpu import InteropError, bf16, dup, f32, lent_out, ones, share_array, stream_of, use_device
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
