"""`numba_kernel` and `cutile_kernel` with what the libraries once gave, and the writes in the text of kernels."""

import math
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from dagpu import (
    CompileError,
    DeviceOp,
    In,
    Kernel,
    KernelArgumentError,
    Out,
    Tensor,
    Tile,
    cutile_kernel,
    f32,
    from_host,
    i64,
    numba_kernel,
    pipeline,
    zeros,
)
from dagpu.common.layout import Layout
from dagpu.interop.python_kernels import find_python_writes
from tests.behaviour.interop.python_kernels import stand_ins
from tests.behaviour.interop.python_kernels.stand_ins import CUTILE, NUMBA, installed_cutile, installed_numba
from tests.simulated.cuda import installed
from tests.simulated.each_device import where as where
from tests.simulated.machine import Machine

X = np.arange(12, dtype=f32)
pytestmark = pytest.mark.host_only("recorded machine code; tests/gpu/libraries launches what the libraries give")
cuda: Any = None
ct: Any = None


def numba_axpy(y: Any, a: Any, x: Any, n: Any) -> None:
    i = cuda.grid(1)
    if i < n:
        y[i] += a * x[i]


def cutile_axpy(y: Any, a: Any, x: Any, T: Any) -> None:  # noqa: N803  # constants are upper case in cuTile
    i = ct.bid(0)
    ct.store(y, index=(i,), tile=ct.load(y, index=(i,), shape=(T,)) + a * ct.load(x, index=(i,), shape=(T,)))


@cache
def by_numba() -> Kernel[Any]:
    @numba_kernel(numba_axpy)
    def axpy(y: Out[f32], a: f32, x: In[f32], n: int) -> None: ...

    @axpy.host
    def _(y: Tile[f32], a: float, x: NDArray[f32], n: int) -> None:
        y[...] += a * x[y.at]

    return axpy


@cache
def by_cutile() -> Kernel[Any]:
    @cutile_kernel(stand_ins.Tile(cutile_axpy, "T"), constants=lambda tile: {"T": tile[0]})
    def axpy(y: Out[f32], a: float, x: In[f32]) -> None: ...

    @axpy.host
    def _(y: Tile[f32], a: float, x: NDArray[f32]) -> None:
        y[...] += a * x[y.at]

    return axpy


def test_numba_on_every_device(where: Any) -> None:
    """A kernel runs plainly and in a pipeline; the parameters of the recorded machine code are those that are passed,
    and a block has a thread for each element of a tile."""
    with installed_numba(NUMBA) as signatures:
        axpy = by_numba()

        @pipeline(graph_from=2)
        def once(x: In[f32], a: float) -> DeviceOp[Tensor[f32], Any]:
            y = axpy(from_host(np.ones(12, f32)).partition((4,)), a, x, 12).first()
            made: DeviceOp[Tensor[f32], Any] = y.unpartition()
            return made

        for number in range(4):
            x = from_host(X + number).sync().share()
            assert_array_equal(once(x, float(number)).to_host().sync(), 1 + number * (X + number))
        if isinstance(where, Machine):
            assert signatures == [("float32[1C]", "float32", "readonly float32[1C]", "int64")]
            assert where.shapes == {("axpy", (4, 1, 1), 0)}


def test_cutile_on_every_device(where: Any) -> None:
    """A kernel runs plainly and in a pipeline; the block is that of the recorded machine code."""
    with installed_cutile(CUTILE) as signatures:
        axpy = by_cutile()

        @pipeline(graph_from=2)
        def once(x: In[f32], a: float) -> DeviceOp[Tensor[f32], Any]:
            y = axpy(from_host(np.ones(12, f32)).partition((4,)), a, x).first()
            made: DeviceOp[Tensor[f32], Any] = y.unpartition()
            return made

        for number in range(4):
            x = from_host(X + number).sync().share()
            assert_array_equal(once(x, float(number)).to_host().sync(), 1 + number * (X + number))
        if isinstance(where, Machine):
            array = ("float32", 1, (1,), 0, 16)
            assert signatures == [[array, "float32", array, 4]]
            assert where.shapes == {("axpy", (128, 1, 1), 0)}


def test_alignment() -> None:
    """cuTile compiles once for arrays whose address is a multiple of 16 bytes, and once for others."""
    with installed(0, 1), installed_cutile(CUTILE) as signatures:
        axpy, whole = by_cutile(), from_host(np.arange(24, dtype=f32)).sync()
        for start in (0, 1, 4, 3):
            y = axpy(from_host(np.ones(12, f32)).partition((4,)), 2.0, whole.slice(slice(start, start + 12)))
            assert_array_equal(y.first().unpartition().to_host().sync(), 1 + 2 * (X + start))
    assert [signature[2] for signature in signatures] == [("float32", 1, (1,), 0, 16), ("float32", 1, (1,), 0, 1)]


@given(
    shape=st.lists(st.integers(1, 5), max_size=3).map(tuple),
    steps=st.lists(st.integers(-7, 7), min_size=3, max_size=3),
)
def test_fields_of_arrays(shape: tuple[int, ...], steps: list[int]) -> None:
    """Any extents and strides are passed: to Numba in bytes, to cuTile in elements of 32 bits."""
    strides = tuple([4 * step for step in steps[: len(shape)]])
    layout = Layout(np.dtype(f32), shape, strides, 0)
    numba, cutile = by_numba().spec.python, by_cutile().spec.python
    assert numba is not None
    assert cutile is not None
    values = (0, 0, math.prod(shape), 4, None, *shape, *strides)
    assert tuple(numba.fields(layout)) == tuple([(8, value) for value in values])
    assert tuple(cutile.fields(layout)) == ((8, None), *[(4, n) for n in (*shape, *steps[: len(shape)])])
    variant = numba.variant([layout, layout], (4,))
    assert list(numba.sizes(variant)) == [*[8] * len(values), 4, *[8] * len(values), 8]
    variant = cutile.variant([layout, layout], (4,))
    assert list(cutile.sizes(variant)) == [8, *[4] * 2 * len(shape), 4, 8, *[4] * 2 * len(shape)]


def test_blocks_of_numba() -> None:
    """Without `block=` a block is a tile, which must not be too large; with it the block is that."""
    with installed(0, 1) as machine, installed_numba(NUMBA):

        @numba_kernel(numba_axpy, block=64)
        def axpy(y: Out[f32], a: f32, x: In[f32], n: int) -> None: ...

        axpy.host(lambda y, a, x, n: None)
        axpy(zeros((12,), f32).partition((12,)), f32(1), from_host(X), 12).sync()
        assert machine.shapes == {("axpy", (64, 1, 1), 0)}
        with pytest.raises(KernelArgumentError, match=r"the tile is \(2000,\). Cut tiles of at most 1024 elements"):
            by_numba()(zeros((2000,), f32).partition((2000,)), 1.0, from_host(X), 12).sync()


def refused(y: Any, x: Any) -> None:
    y[0] = x[0]


def no_compiler(y: Any, x: Any) -> None:
    y[0] = x[0]


def test_the_libraries_refuse() -> None:
    """What a library says comes with the place of the declaration."""

    @numba_kernel(refused)
    def numba(y: Out[f32], x: In[f32]) -> None: ...

    @cutile_kernel(stand_ins.Tile(refused, ""))
    def cutile(y: Out[f32], x: In[f32]) -> None: ...

    with installed(0, 1):
        with installed_numba(NUMBA), pytest.raises(CompileError, match=r"'numba', declared at .*No implementation"):
            numba(zeros((4,), f32).partition((4,)), from_host(X)).sync()
        with installed_cutile(CUTILE), pytest.raises(CompileError, match=r"'cutile', declared at .*power of two"):
            cutile(zeros((4,), f32).partition((4,)), from_host(X)).sync()


def outdated(y: Any, x: Any) -> None:
    y[0] = x[0]


def test_numba_is_missing_or_knows_an_older_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what installs it, and which NumPy it knows."""

    @numba_kernel(outdated)
    def numba(y: Out[f32], x: In[f32]) -> None: ...

    with installed(0, 1):
        with installed_numba(NUMBA), pytest.raises(CompileError, match=r"'numba', declared at .* 'numpy<2\.5'"):
            numba(zeros((4,), f32).partition((4,)), from_host(X)).sync()
        monkeypatch.setitem(sys.modules, "numba.cuda", None)
        with pytest.raises(CompileError, match=r"'numba', declared at .*cannot be imported .* 'numba-cuda>=0\.30"):
            numba(zeros((4,), f32).partition((4,)), from_host(X)).sync()


def test_cutile_without_its_compiler() -> None:
    """cuTile is a package without tileiras. The error says what installs it."""

    @cutile_kernel(stand_ins.Tile(no_compiler, ""))
    def cutile(y: Out[f32], x: In[f32]) -> None: ...

    with (
        installed(0, 1),
        installed_cutile(CUTILE),
        pytest.raises(CompileError, match=r"'cutile', declared at .*pip install 'cuda-tile\[tileiras\]'"),
    ):
        cutile(zeros((4,), f32).partition((4,)), from_host(X)).sync()


def test_other_parameters_than_the_machine_code() -> None:
    """A declaration for which the machine code takes other parameters is refused before a launch."""

    @cutile_kernel(stand_ins.Tile(cutile_axpy, "T"), constants={"T": 4})
    def axpy(y: Out[f32], a: i64, x: In[f32]) -> None: ...

    with installed(0, 1), installed_cutile(CUTILE), pytest.raises(CompileError, match="takes parameters at"):
        axpy(zeros((4,), f32).partition((4,)), i64(1), from_host(X)).sync()


# ---- writes in source text


def helper(a: Any, b: Any) -> None:
    deeper(b)


def deeper(p: Any) -> None:
    deeper(p)
    p[0] = 1


def element(y: Any, x: Any) -> None:
    y[0] = x[0]


def annotated(y: Any, x: Any) -> None:
    y[0]: float = x[0]  # type: ignore[misc]  # pyright: ignore[reportInvalidTypeForm]  # reason: it is read, not checked


def sum_of(y: Any, x: Any) -> None:
    y[0] += x[0]


def atomic(y: Any, x: Any) -> None:
    cuda.atomic.add(y, 0, x[0])


def through_a_view(y: Any, x: Any) -> None:
    v = y[1:]
    w = v.reshape(4, 4)
    w[0, 0] = x[0]


def through_a_choice(y: Any, x: Any, z: Any) -> None:
    w = y if x[0] else z
    w[0] = 1


def through_a_loop(y: Any, x: Any, z: Any) -> None:
    p, q = x, y
    for _ in range(3):
        q[0] = p[0]
        p, q = q, z


def through_calls(y: Any, x: Any) -> None:
    helper(x, y)


def by_keyword(y: Any, x: Any) -> None:
    helper(b=y, a=x)


def in_a_loop_target(y: Any, x: Any) -> None:
    for y[0] in range(3):
        pass


def of_cutile(y: Any, x: Any) -> None:
    ct.scatter(y, (0,), ct.load(x, (0,), (4,)))


def of_a_view_of_cutile(y: Any, x: Any) -> None:
    view = y.tiled_view((4,))
    view.store((0,), ct.load(x, (0,), (4,)))


def of_nothing(y: Any, x: Any) -> None:
    total = x[0] + y[0]
    total += 1


@pytest.mark.parametrize(
    ("function", "written"),
    [
        (element, "y"), (annotated, "y"), (sum_of, "y"), (atomic, "y"), (through_a_view, "y"), (through_a_choice, "yz"),
        (through_a_loop, "yz"), (through_calls, "y"), (by_keyword, "y"), (in_a_loop_target, "y"), (of_cutile, "y"),
        (of_a_view_of_cutile, "y"), (of_nothing, ""), (eval("lambda y, x: None"), ""),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)  # fmt: skip
def test_writes_are_found_in_source_text(function: Callable[..., None], written: str) -> None:
    """Through names, views, choices, loops and calls; and nothing that is only read."""
    found = find_python_writes(function, lambda names: "atomic" in names or names[-1] in ("store", "scatter"))
    assert set(found) == set(written)
    assert all(":" in place for place in found.values())


@pytest.mark.parametrize("function", [element, atomic, through_calls])
def test_a_write_to_an_input_is_refused(function: Callable[..., None]) -> None:
    """At the declaration, without the library and without a GPU."""
    with pytest.raises(KernelArgumentError, match=r"stores to parameter 'y' at .*:\d+, which is declared out: In"):

        @numba_kernel(function)
        def stores(out: In[f32], x: Out[f32]) -> None: ...
