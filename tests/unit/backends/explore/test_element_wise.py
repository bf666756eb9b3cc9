"""Kernels that are declared `in_place`, held against that by the explore backend."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dagpu import (
    DagpuError,
    In,
    Out,
    RoundRobin,
    SchedulingPolicy,
    SingleStream,
    StreamInterpreter,
    Tile,
    arange,
    bool_,
    empty,
    from_host,
    i32,
    kernel,
    ones,
    use_device,
    use_interpreter,
)
from tests.programs.named_kernels import squash
from tests.unit.backends.explore.explored_runs import HERE, explored

MIRROR = """
__global__ void mirror(Tile<int, 1> y, View<const int, 1> x) { for (auto i : y) y[i] = x[x.extent(0) - 1 - i[0]]; }
"""
FLIPPED = """
__global__ void flipped(Tile<bool, 1> y, View<const bool, 1> x) { for (auto i : y) y[i] = x[x.extent(0) - 1 - i[0]]; }
"""


@kernel(cuda=MIRROR, in_place=True)
def mirror(y: Out[i32], x: In[i32]) -> None:
    """y = x, backwards: not element-wise, whatever it says."""


@mirror.host
def _(y: Tile[i32], x: NDArray[i32]) -> None:
    y[...] = x[::-1][y.at]


@kernel(cuda=FLIPPED, in_place=True)
def flipped(y: Out[bool_], x: In[bool_]) -> None:
    """y = x in reverse order, for elements of type bool."""


@flipped.host
def _(y: Tile[bool_], x: NDArray[bool_]) -> None:
    y[...] = x[::-1][y.at]


@pytest.mark.parametrize("policy", [SingleStream(), RoundRobin(3)], ids=str)
@pytest.mark.parametrize("size", [8, 9])
def test_a_kernel_that_only_claims_to_be_element_wise_is_caught(size: int, policy: SchedulingPolicy) -> None:
    """Though its host body gives the right bits, since NumPy reads all before it writes: the error names the kernel,
    output and input, where both stand, and the cure. On the host backend nothing is said."""
    op = mirror(empty((size,), i32).partition((size,)), arange(size, i32)).first().unpartition().to_host()
    assert op.sync().tolist() == list(range(size))[::-1]
    with (
        use_device(HERE),
        use_interpreter(StreamInterpreter(HERE, policy)),
        pytest.raises(
            DagpuError,
            match=r"kernel mirror, declared at .*test_element_wise.py:\d+ and launched at .*test_element_wise.py:\d+, "
            r"says in_place=True.*'y' at index \(\d,\) comes out different.*'x' change.*Leave in_place=True out",
        ),
    ):
        op.sync()


def test_bools_are_checked_for_being_element_wise_too() -> None:
    """Their poison is the other truth value."""
    claims = flipped(empty((8,), bool_).partition((8,)), ones((8,), bool_)).first().unpartition().to_host()
    with use_device(HERE), pytest.raises(DagpuError, match=r"kernel flipped.*is not element-wise"):
        claims.sync()


@settings(max_examples=20)
@given(st.integers(1, 9), st.integers(1, 5), st.integers(0, 99))
def test_a_kernel_that_is_element_wise_passes(rows: int, columns: int, seed: int) -> None:
    """Whatever the shape and the tiles; and the right bits come out."""
    x = np.random.default_rng(seed).integers(0, 99, (rows, columns), dtype=i32)
    made = squash(empty((rows, columns), i32).partition((1, columns)), from_host(x), -15).first().unpartition()
    with explored(seed):
        np.testing.assert_array_equal(np.clip(x // 4, -15, 15), made.to_host().sync())
