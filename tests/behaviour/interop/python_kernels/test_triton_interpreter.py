"""Kernels of Triton under TRITON_INTERPRET=1: they run on the host, and touch their tensors alone."""

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dagpu import (
    CompileError,
    In,
    KernelBoundsError,
    Out,
    bool_,
    empty,
    f32,
    f64,
    from_host,
    i64,
    ones,
    triton_kernel,
    u8,
    use_device,
    zeros,
)  # fmt: skip
from tests.behaviour.interop.python_kernels.stand_ins import TRITON, FakeTriton, InterpretedFunction, installed_triton
from tests.support.paths import ROOT

X = np.arange(12, dtype=f32)


@pytest.fixture(name="triton", params=["host", "explore"])
def on_each(request: pytest.FixtureRequest) -> Iterator[FakeTriton]:
    with installed_triton(TRITON[-1]) as triton, use_device(request.param):
        yield triton


def memory() -> Any:
    """The functions that access memory, as a kernel finds them."""
    return sys.modules["triton.runtime.interpreter"]


def offsets(pointer: Any, places: Any, nbytes: int = 4) -> Any:
    return pointer.handle.data + np.asarray(places, np.uint64) * np.uint64(nbytes)


def axpy(y: Any, x: Any, a: Any, n: Any, BLOCK: int, AHEAD: int = 0) -> None:  # noqa: N803  # as Triton names constants
    module = memory()
    at = module.interpreter_builder.grid_idx[0] * BLOCK + np.arange(BLOCK)
    inside, access = at < n.handle.data, module._interpreter  # noqa: SLF001  # Triton's name
    assert access.RMW_OP == "its operations"
    of_x = access.load(offsets(x, at + AHEAD), inside, np.zeros(BLOCK), f32)
    of_y = access.load(offsets(y, at), inside, np.zeros(BLOCK), f32)
    access.store(offsets(y, at), of_y + a.handle.data * of_x, inside)


def declared(function: Any = axpy, **constants: Any) -> Any:
    @triton_kernel(InterpretedFunction(function), constexprs=lambda tile: {"BLOCK": tile[0]} | constants)
    def kernel(y: Out[f32], x: In[f32], a: float, n: int) -> None: ...

    return kernel


def run(kernel: Any, n: int = 12, tile: int = 4, size: int = 12) -> Any:
    y = from_host(np.ones(size, f32)).partition((tile,), partial=True)
    return kernel(y, from_host(np.arange(size, dtype=f32)), 2.0, n).first().unpartition().to_host().sync()


@settings(max_examples=20, deadline=None)
@given(size=st.integers(0, 20), tile=st.integers(1, 8), place=st.sampled_from(["host", "explore"]))
def test_it_gives_what_its_host_body_gives(size: int, tile: int, place: str) -> None:
    """Each program of the grid runs once, whatever the tiles are."""
    with installed_triton(TRITON[-1]), use_device(place):
        assert_array_equal(run(declared(AHEAD=0), size, tile, size), 1 + 2 * np.arange(size, dtype=f32))


def test_numbers_have_the_declared_types(triton: FakeTriton) -> None:
    """So the interpreter computes as the compiled kernel does."""
    seen: list[Any] = []

    def kinds(y: Any, a: Any, b: Any, c: Any, d: Any) -> None:
        seen.append([(each.type, each.handle.data.dtype.name, each.handle.data.item()) for each in (a, b, c, d)])
        assert y.type == "*u8"

    @triton_kernel(InterpretedFunction(kinds))
    def kernel(y: Out[u8], a: i64, b: f64, c: float, d: bool_) -> None: ...

    kernel(zeros((2,), u8).partition((2,)), i64(1 << 40), f64(0.1), 0.5, bool_(True)).sync()
    assert seen == [
        [("i64", "int64", 1 << 40), ("fp64", "float64", 0.1), ("fp32", "float32", 0.5), ("u1", "bool", True)]
    ]


def test_a_load_from_nowhere(triton: FakeTriton) -> None:
    """A load that no tensor of the launch has is refused, before the process ends by it."""
    with pytest.raises(KernelBoundsError, match=r"program \(2,\) loads 4 bytes .* none of its tensors"):
        run(declared(AHEAD=1))


@pytest.mark.parametrize("way", ["store", "atomic_rmw", "atomic_cas"])
def test_a_store_to_an_input(triton: FakeTriton, way: str) -> None:
    """Nothing but the outputs is written: what is declared `In` stays as it is."""

    def wrong(y: Any, x: Any, a: Any, n: Any, BLOCK: int) -> None:  # noqa: N803
        access = memory()._interpreter  # noqa: SLF001
        values, at, mask = np.full(4, 7, f32), offsets(x, range(4)), np.full(4, True)
        if way == "store":
            access.store(at, values, mask)
        elif way == "atomic_rmw":
            access.atomic_rmw(None, at, values, mask, None)
        else:
            access.atomic_cas(at, values, values, None)

    x = from_host(X).sync().share()
    kernel = declared(wrong)
    with pytest.raises(KernelBoundsError, match=r"program \(0,\) stores 4 bytes .* none of its outputs") as caught:
        kernel(zeros((12,)).partition((4,)), x.clone(), 2.0, 12).sync()
    assert "test_triton_interpreter.py" in str(caught.value)
    assert_array_equal(x.to_host().sync(), X)


def test_a_host_body_comes_first(triton: FakeTriton) -> None:
    """The user's body is the reference, as for a kernel that is compiled."""
    kernel = declared(AHEAD=100)
    kernel.host(lambda y, x, a, n: y.fill(5))
    assert_array_equal(run(kernel), np.full(12, 5, f32))


def test_nothing_is_compiled(triton: FakeTriton) -> None:
    """The error names the variable, and the kernel's place."""

    @triton_kernel(InterpretedFunction(axpy), constexprs={"BLOCK": 4, "AHEAD": 0})
    def kernel(y: Out[f32], x: In[f32], a: float, n: int) -> None: ...

    with pytest.raises(CompileError, match="TRITON_INTERPRET is set, so Triton compiles nothing"):
        kernel.compile(arch="sm_90")
    assert not triton.sources


def test_a_grid_and_an_error_of_the_kernel(triton: FakeTriton) -> None:
    """`.grid(...)` is the grid of programs; an error in a program names kernel and launch."""
    places: list[Any] = []

    def noting(y: Any, x: Any, a: Any, n: Any, BLOCK: int) -> None:  # noqa: N803
        places.append(memory().interpreter_builder.grid_idx)
        if len(places) == 6:
            raise ZeroDivisionError("in the kernel")

    kernel = declared(noting).grid(2, 3)
    with pytest.raises(Exception, match="in the kernel") as caught:
        kernel(empty((12,)).partition((4,)), ones((12,)), 1.0, 12).sync()
    assert places == [(row, column) for row in range(2) for column in range(3)]
    assert any("kernel" in note and "launched at" in note for note in caught.value.__notes__)


BY_TRITON = """
import sys
import numpy as np
from dagpu import In, KernelBoundsError, Out, f32, from_host, triton_kernel, use_device, zeros
from tests.behaviour.interop.python_kernels import triton_programs as programs

@triton_kernel(programs.axpy, constexprs=lambda tile: {"BLOCK": tile[0]})
def axpy(y: Out[f32], x: In[f32], a: float, n: int) -> None: ...

@triton_kernel(programs.product, constexprs={"BLOCK": 16, "DEPTH": 16})
def product(c: Out[f32], a: In[f32], b: In[f32], n: int) -> None: ...

def run(n):
    y = from_host(np.ones(12, f32)).partition((8,), partial=True)
    return axpy(y, from_host(np.arange(12, dtype=f32)), 2.0, n).first().unpartition().to_host().sync()

with use_device("host"):
    assert (run(12) == 1 + 2 * np.arange(12)).all()
    try:
        run(16)
        raise SystemExit("an access beyond the end is not seen")
    except KernelBoundsError as error:
        assert "program (1, 0, 0)" in str(error), error
    a, b = np.random.default_rng(1).standard_normal((2, 32, 32)).astype(f32)
    c = product(zeros((32, 32), f32).partition((16, 16)), from_host(a), from_host(b), 32)
    assert np.allclose(c.first().unpartition().to_host().sync(), a @ b, atol=1e-4)
assert "torch" not in sys.modules
"""


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_by_triton_itself() -> None:
    """Its interpreter runs kernels on the host, without PyTorch."""
    done = subprocess.run(
        [sys.executable, "-c", BY_TRITON], check=False, cwd=ROOT, timeout=120, capture_output=True, text=True,
        env={"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
