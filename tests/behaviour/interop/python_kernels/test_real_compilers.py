"""The libraries themselves, where they are installed: they compile for a GPU that need not be here.

What they give is launched on a simulated GPU.
"""

import importlib
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from dagpu import (
    In,
    Kernel,
    KernelArgumentError,
    Out,
    Tile,
    cutile_kernel,
    f32,
    from_host,
    numba_kernel,
    triton_kernel,
    zeros,
)
from dagpu.interop.triton_kernels import TritonCompiler
from dagpu.interop.triton_stores import find_writes
from tests.behaviour.interop.python_kernels.record import types_of
from tests.behaviour.interop.python_kernels.stand_ins import need_cutile, need_numba
from tests.simulated.cuda import installed

X = np.arange(12, dtype=f32)
pytestmark = pytest.mark.host_only("it has a device of its own")
PROGRAMS = "tests.behaviour.interop.python_kernels"


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
def test_triton() -> None:
    """The parameters of its machine code are those that a launch passes, and its first IR is understood."""
    triton = pytest.importorskip("triton")
    programs = importlib.import_module(f"{PROGRAMS}.triton_programs")
    compiler = TritonCompiler(triton)
    for jit, written in programs.WRITTEN.items():
        found = find_writes(compiler.ttir(compiler.source(jit, types_of(jit), {"BLOCK": 16}, []), {}))
        assert {jit.params[number].name for number in found.parameters} == written
    for warps in (1, 4):

        @triton_kernel(programs.axpy, num_warps=warps, constexprs=lambda tile: {"BLOCK": tile[0]})
        def axpy(y: Out[f32], x: In[f32], a: float, n: int) -> None: ...

        @axpy.host
        def _(y: Tile[f32], x: NDArray[f32], a: float, n: int) -> None:
            y[...] += a * x[y.at]

        with installed(0, 1) as machine:
            y = axpy(from_host(np.ones(12, f32)).partition((4,)), from_host(X), 2.0, 12).first().unpartition()
            assert_array_equal(y.to_host().sync(), 1 + 2 * X)
            assert machine.shapes == {("axpy", (32 * warps, 1, 1), 0)}

    @triton_kernel(programs.descriptors, constexprs={"BLOCK": 16})
    def by_descriptors(y: Out[f32], x: In[f32], w: In[f32], n: int) -> None: ...

    @by_descriptors.host
    def _(y: Tile[f32], x: NDArray[f32], w: NDArray[f32], n: int) -> None:
        y[...] = x

    with installed(0, 1):
        x, w = [from_host(np.full((16, 16), number, f32)).sync() for number in (1, 2)]
        op = by_descriptors(zeros((16, 16)).partition((16, 16)), x, w, 16)
        assert "1,280 bytes" in op.explain()  # the output and 256 of scratch memory, for two descriptors
        assert (op.first().unpartition().to_host().sync() == 1).all()
    with pytest.raises(KernelArgumentError, match=r"'y_ptr' at .*triton_programs.py:"):

        @triton_kernel(programs.axpy, constexprs={"BLOCK": 16})
        def stores(y: In[f32], x: Out[f32], a: float, n: int) -> None: ...


def _swapped(kernel: Kernel[Any], tile: tuple[int, int]) -> None:
    """Run a kernel that swaps the axes of a view with strides."""

    @kernel.host
    def _(y: Tile[f32], x: NDArray[f32]) -> None:
        y[...] = x.T[y.at]

    x = from_host(np.arange(64, dtype=f32).reshape(8, 8)).sync()
    y = kernel(zeros((4, 2), f32).partition(tile), x.slice(slice(1, 3), slice(3, 7))).first().unpartition()
    assert_array_equal(y.to_host().sync(), np.arange(64).reshape(8, 8)[1:3, 3:7].T)


def test_numba() -> None:
    """The parameters of its machine code are those that a launch passes, for numbers and for strides."""
    need_numba()
    programs = importlib.import_module(f"{PROGRAMS}.numba_programs")

    @numba_kernel(programs.swapped)
    def swapped(y: Out[f32], x: In[f32]) -> None: ...

    @numba_kernel(programs.axpy, fastmath=True)
    def axpy(y: Out[f32], a: float, x: In[f32], n: bool) -> None: ...

    axpy.host(lambda y, a, x, n: None)
    with installed(0, 1):
        _swapped(swapped, (2, 2))
        axpy(zeros((12,), f32).partition((4,)), 2.0, from_host(X), True).sync()


def test_cutile() -> None:
    """The parameters of its machine code are those that a launch passes, for numbers and for strides."""
    need_cutile()
    programs = importlib.import_module(f"{PROGRAMS}.cutile_programs")

    @cutile_kernel(programs.swapped, constants=lambda tile: {"N": tile[0], "M": tile[1]})
    def swapped(y: Out[f32], x: In[f32]) -> None: ...

    with installed(0, 1):
        _swapped(swapped, (2, 2))
