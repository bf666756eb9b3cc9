"""A consumer that refuses a capsule drops it while its error is under way."""

import gc

import numpy as np
import pytest

from dagpu import bf16, lent_out, ones, use_device
from tests.simulated.cuda import installed
from tests.simulated.foreign_arrays import counted_exports


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
