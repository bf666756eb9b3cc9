"""Random calls of the functions that move elements along axes, and their results by NumPy or by their own rule."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from dagpu import DeviceOp, array, bf16, bool_, f16, f32, f64, from_host, i8, i32, i64, u16
from dagpu.testing import live_state
from tests.behaviour.arrays.array_places import steps
from tests.unit.kernels.expressions.element_trees import samples

Array = NDArray[Any]

MOVING: Final = ("transpose", "concatenate", "stack", "take", "one_hot")
ADDING: Final = ("cumsum", "scatter_add")
NUMBERS: Final = (f16, bf16, f32, f64, i8, i32, i64, u16)


class Case(NamedTuple):
    """A call: its arrays, the ranges of each that are passed, the function of the tensors, and its result."""

    name: str
    arrays: list[Array]
    ranges: list[tuple[slice, ...]]
    call: Callable[..., DeviceOp[Any, Any]]
    expected: Array

    def __repr__(self) -> str:
        arrays = ", ".join(f"{a.dtype}{a.shape}{r}" for a, r in zip(self.arrays, self.ranges, strict=True))
        return f"{self.name}({arrays}) -> {self.expected.shape}"

    def op(self) -> tuple[DeviceOp[Any, Any], dict[int, Array]]:
        """Return the op of the call, and the arrays by the memory of their tensors."""
        given, known = [], {}
        for whole, ranges in zip(self.arrays, self.ranges, strict=True):
            tensor = from_host(whole).sync()
            lent: Any = tensor.slice(*ranges) if ranges else tensor
            known[id(live_state(lent).storage)] = cut_out(whole, ranges) if ranges else whole.copy()
            given.append(lent)
        return self.call(*given), known


@st.composite
def cases(draw: st.DrawFn, names: Any = (*MOVING, *ADDING)) -> Case:
    """A call of one of these functions."""
    name = draw(st.sampled_from(names))
    made: Case = draw(_DRAWN[name]())
    return made


def cut_out(x: Any, ranges: tuple[slice, ...]) -> Array:
    """Return a part of an array, which stays an array if it has no axes."""
    found: Array = x[(*ranges, ...)]
    return found


def shapes(most: int, *, least: int = 0) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes with short and long axes, of few elements."""
    extents = st.lists(st.sampled_from((0, 1, 2, 3, 5, 17, 40, 300)), min_size=least, max_size=most)
    return extents.map(tuple).filter(lambda shape: np.prod(shape) <= 3000)


def contents(draw: st.DrawFn, dtype: Any, shape: tuple[int, ...]) -> Array:
    """An array with extremes."""
    return samples(dtype, int(np.prod(shape, dtype=int)), draw(st.integers(0, 99))).reshape(shape)


def part(draw: st.DrawFn, x: Array) -> tuple[slice, ...]:
    """Ranges of an array, in half of the cases all of it."""
    return draw(st.tuples(steps, steps, steps, steps))[: x.ndim] if draw(st.booleans()) else ()


@st.composite
def transpositions(draw: st.DrawFn) -> Case:
    x = contents(draw, draw(st.sampled_from((*NUMBERS, bool_))), draw(shapes(4)))
    ranges = part(draw, x)
    axes = draw(st.one_of(st.none(), st.permutations(range(x.ndim)).map(tuple)))
    return Case("transpose", [x], [ranges], lambda t: array.transpose(t, axes), cut_out(x, ranges).transpose(axes))


@st.composite
def joins(draw: st.DrawFn, name: str) -> Case:
    shape = draw(shapes(3, least=0 if name == "stack" else 1))
    dtype, count = draw(st.sampled_from((*NUMBERS, bool_))), draw(st.sampled_from((1, 2, 3, 18)))
    axis = draw(st.integers(-len(shape) - (name == "stack"), len(shape) - (name == "concatenate")))
    xs: list[Array] = []
    for n in range(count):
        longer = list(shape)
        if name == "concatenate":
            longer[axis] = (shape[axis] + 2 * n) % 7
        xs.append(contents(draw, dtype, tuple(longer)) if n < 3 else xs[n % 3])
    ranges = [(slice(None, None, -1),) * x.ndim if draw(st.booleans()) else () for x in xs]
    expected = getattr(np, name)([cut_out(x, r) for x, r in zip(xs, ranges, strict=True)], axis)
    return Case(name, xs, ranges, lambda *ts: getattr(array, name)(ts, axis), expected)


@st.composite
def takings(draw: st.DrawFn) -> Case:
    x = contents(draw, draw(st.sampled_from((*NUMBERS, bool_))), draw(shapes(3, least=1).filter(all)))
    ranges = part(draw, x)
    axis = draw(st.integers(-x.ndim, x.ndim - 1))
    extent = cut_out(x, ranges).shape[axis]
    listed = np.random.default_rng(draw(st.integers(0, 99))).integers(
        -extent, max(extent, 1), draw(shapes(2)) if extent else (0, 2)
    )
    listed = listed.astype(draw(st.sampled_from((i32, i64))))
    places = part(draw, listed)
    expected = np.take(cut_out(x, ranges), cut_out(listed, places), axis)
    return Case("take", [x, listed], [ranges, places], lambda t, i: array.take(t, i, axis), expected)


@st.composite
def one_hots(draw: st.DrawFn) -> Case:
    dtype, n = draw(st.sampled_from((*NUMBERS, bool_))), draw(st.integers(1, 20))
    listed = np.random.default_rng(draw(st.integers(0, 99))).integers(-3, n + 3, draw(shapes(2))).astype(i64)
    expected = (listed[..., None] == np.arange(n)).astype(dtype)
    return Case("one_hot", [listed], [()], lambda i: array.one_hot(i, n, dtype), expected)


@st.composite
def running_sums(draw: st.DrawFn) -> Case:
    shape = list(draw(shapes(2)))
    shape.insert(draw(st.integers(0, len(shape))), draw(st.sampled_from((1, 15, 16, 17, 257, 300))))
    if np.prod(shape) > 3000 or draw(st.integers(0, 4)) == 0:
        shape = [draw(st.sampled_from((3, 4096, 4097, 9000)))]
    x = contents(draw, draw(st.sampled_from(NUMBERS)), tuple(shape))
    ranges = part(draw, x)
    axis = draw(st.one_of(st.none(), st.integers(-x.ndim, x.ndim - 1)))
    return Case("cumsum", [x], [ranges], lambda t: array.cumsum(t, axis), cumsum_by_the_rule(cut_out(x, ranges), axis))


def cumsum_by_the_rule(x: Array, axis: int | None) -> Array:
    """Running sums by the text of `dagpu.arrays.running_sums`, one number after the other."""
    x, axis = (x.ravel(), 0) if axis is None else (x, axis)
    rows = np.moveaxis(x.astype(f32) if x.dtype.itemsize == 2 and x.dtype.kind not in "iu" else x, axis, -1)
    found = np.empty_like(rows)
    with np.errstate(all="ignore"):
        for place in np.ndindex(rows.shape[:-1]):
            found[place] = _scanned(list(rows[place]))[1]
    return np.moveaxis(found, -1, axis).astype(x.dtype)


def _scanned(row: list[Any]) -> tuple[list[Any], list[Any]]:
    """The number before each item of a row, None where there are no items before it, and the running sums."""
    runs: list[list[Any]] = []
    for n, item in enumerate(row):
        if n % 16:
            runs[-1].append(runs[-1][-1] + item)
        else:
            runs.append([item])
    before = _scanned([run[-1] for run in runs])[0] if len(runs) > 1 else [None]
    earlier, sums = [], []
    for run, start in zip(runs, before, strict=False):
        inside = [added(start, each) for each in run]
        earlier += [start, *inside[:-1]]
        sums += inside
    return earlier, sums


def added(a: Any, b: Any) -> Any:
    return b if a is None else a + b


@st.composite
def additions(draw: st.DrawFn) -> Case:
    shape = draw(shapes(3, least=1))
    into = contents(draw, draw(st.sampled_from(NUMBERS)), shape)
    count = draw(st.sampled_from((0, 1, 7, 100, 3000))) if into.size < 100 else 7
    listed = np.random.default_rng(draw(st.integers(0, 99))).integers(
        -shape[0], max(shape[0], 1), count if shape[0] else 0
    )
    listed = listed.astype(draw(st.sampled_from((i32, i64)))).reshape(draw(st.sampled_from(((-1,), (1, -1)))))
    values = contents(draw, into.dtype, (*listed.shape, *shape[1:]))
    ranges = [(slice(None, None, -1),) * a.ndim if draw(st.booleans()) else () for a in (listed, values)]
    sums = into.astype(f32) if into.dtype.itemsize == 2 and into.dtype.kind not in "iu" else into.copy()
    rows = cut_out(values, ranges[1]).reshape(listed.size, *shape[1:])
    with np.errstate(all="ignore"):
        for k, place in enumerate(cut_out(listed, ranges[0]).ravel()):
            sums[place] = sums[place] + rows[k].astype(sums.dtype)
        expected = sums.astype(into.dtype)
    return Case("scatter_add", [into, listed, values], [(), *ranges], array.scatter_add, expected)


@st.composite
def normalisings(draw: st.DrawFn) -> Case:
    shape = draw(st.sampled_from(((3,), (2, 17), (5, 300, 2), (40, 3), (150, 40), (2, 4097), (17_000,), (1, 1))))
    dtype = draw(st.sampled_from((f16, bf16, f32, f64)))
    x = (np.random.default_rng(draw(st.integers(0, 99))).standard_normal(shape) * 4).astype(dtype)
    ranges = part(draw, x)
    axis = draw(st.integers(-x.ndim, x.ndim - 1))
    wide = cut_out(x, ranges).astype(f64)
    powers = np.exp(wide - wide.max(axis, keepdims=True, initial=-np.inf))
    expected = powers / powers.sum(axis, keepdims=True)
    return Case("softmax", [x], [ranges], lambda t: array.softmax(t, axis), expected)


_DRAWN: Final[dict[str, Callable[[], st.SearchStrategy[Case]]]] = {
    "transpose": transpositions,
    "concatenate": lambda: joins("concatenate"),
    "stack": lambda: joins("stack"),
    "take": takings,
    "one_hot": one_hots,
    "cumsum": running_sums,
    "scatter_add": additions,
    "softmax": normalisings,
}
