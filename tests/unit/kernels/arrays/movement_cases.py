"""Random calls of the functions that move elements along axes, and their results by NumPy or by their own rule."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from dagpu import DeviceOp, array, bf16, bool_, c64, c128, f16, f32, f64, from_host, i8, i32, i64, u16
from dagpu.arrays.axis_maps import BORDERS
from dagpu.testing import live_state
from tests.behaviour.arrays.array_places import steps
from tests.unit.kernels.expressions.element_trees import extremum, factor, samples

Array = NDArray[Any]

MAPPING: Final = ("flip", "roll", "tile", "repeat", "broadcast_to", "pad", "tril", "triu")
MOVING: Final = ("transpose", "concatenate", "stack", "take", "one_hot", *MAPPING)
SCANS: Final = ("cumsum", "cumprod", "cummax", "cummin")
EXTREMES: Final = ("cummax", "cummin", "scatter_max", "scatter_min")
"""What needs an order."""
SCATTERING: Final = ("scatter_add", "scatter_set", "scatter_max", "scatter_min")
ADDING: Final = (*SCANS, *SCATTERING, "segment_sum", "take_along_axis", "csr_matmul")
ORDERED: Final = (f16, bf16, f32, f64, i8, i32, i64, u16)
NUMBERS: Final = (*ORDERED, c64, c128)


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
def running_sums(draw: st.DrawFn, name: str) -> Case:
    shape = list(draw(shapes(2)))
    shape.insert(draw(st.integers(0, len(shape))), draw(st.sampled_from((1, 15, 16, 17, 257, 300))))
    if np.prod(shape) > 3000 or draw(st.integers(0, 4)) == 0:
        shape = [draw(st.sampled_from((3, 4096, 4097, 9000)))]
    x = contents(draw, draw(st.sampled_from(ORDERED if name in EXTREMES else NUMBERS)), tuple(shape))
    ranges = part(draw, x)
    axis = draw(st.one_of(st.none(), st.integers(-x.ndim, x.ndim - 1)))
    expected = scan_by_the_rule(cut_out(x, ranges), axis, COMBINED[name])
    return Case(name, [x], [ranges], lambda t: getattr(array, name)(t, axis), expected)


COMBINED: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "cumsum": lambda a, b: a + b,
    "cumprod": lambda a, b: factor(a, b) if np.iscomplexobj(a) else a * b,
    "cummax": lambda a, b: extremum("maximum", a, b),
    "cummin": lambda a, b: extremum("minimum", a, b),
}


def scan_by_the_rule(x: Array, axis: int | None, combine: Callable[[Any, Any], Any]) -> Array:
    """Running sums and the like by the text of `dagpu.arrays.running_sums`, one number after the other."""
    x, axis = (x.ravel(), 0) if axis is None else (x, axis)
    rows = np.moveaxis(x.astype(f32) if x.dtype.itemsize == 2 and x.dtype.kind not in "iu" else x, axis, -1)
    found = np.empty_like(rows)
    with np.errstate(all="ignore"):
        for place in np.ndindex(rows.shape[:-1]):
            found[place] = _scanned(list(rows[place]), combine)[1]
    return np.moveaxis(found, -1, axis).astype(x.dtype)


def _scanned(row: list[Any], combine: Callable[[Any, Any], Any]) -> tuple[list[Any], list[Any]]:
    """The number before each item of a row, None where there are no items before it, and the running sums."""
    runs: list[list[Any]] = []
    for n, item in enumerate(row):
        if n % 16:
            runs[-1].append(combine(runs[-1][-1], item))
        else:
            runs.append([item])
    before = _scanned([run[-1] for run in runs], combine)[0] if len(runs) > 1 else [None]
    earlier, sums = [], []
    for run, start in zip(runs, before, strict=False):
        inside = [each if start is None else combine(start, each) for each in run]
        earlier += [start, *inside[:-1]]
        sums += inside
    return earlier, sums


@st.composite
def additions(draw: st.DrawFn, name: str) -> Case:
    shape = draw(shapes(3, least=1))
    into = contents(draw, draw(st.sampled_from(ORDERED if name in EXTREMES else NUMBERS)), shape)
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
            sums[place] = ONE_BY_ONE[name](sums[place], rows[k].astype(sums.dtype))
        expected = sums.astype(into.dtype)
    return Case(name, [into, listed, values], [(), *ranges], getattr(array, name), expected)


ONE_BY_ONE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "scatter_add": lambda a, b: a + b,
    "scatter_set": lambda _, b: b,
    "scatter_max": lambda a, b: extremum("maximum", a, b),
    "scatter_min": lambda a, b: extremum("minimum", a, b),
}


@st.composite
def segments(draw: st.DrawFn) -> Case:
    n, count = draw(st.integers(1, 9)), draw(st.sampled_from((0, 1, 40, 300)))
    values = contents(draw, draw(st.sampled_from(NUMBERS)), (count, *draw(shapes(1))))
    listed = (
        np.random.default_rng(draw(st.integers(0, 99))).integers(0, n, count).astype(draw(st.sampled_from((i32, i64))))
    )
    sums = np.zeros(
        (n, *values.shape[1:]), f32 if values.dtype.itemsize == 2 and values.dtype.kind not in "iu" else values.dtype
    )
    with np.errstate(all="ignore"):
        for row, place in zip(values, listed, strict=True):
            sums[place] = sums[place] + row.astype(sums.dtype)
        expected = sums.astype(values.dtype)
    return Case("segment_sum", [values, listed], [(), ()], lambda v, s: array.segment_sum(v, s, n), expected)


@st.composite
def sparse_products(draw: st.DrawFn) -> Case:
    """Rows of no, some or many elements, in any columns, some from the end, and some twice."""
    random = np.random.default_rng(draw(st.integers(0, 99)))
    rows, columns = draw(st.sampled_from((0, 1, 5, 40))), draw(st.sampled_from((1, 7, 60)))
    lengths = random.integers(0, draw(st.sampled_from((1, 4, 40, 300))), rows)
    lengths[random.random(rows) < draw(st.sampled_from((0, 0.5, 1)))] = 0
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(draw(st.sampled_from((i32, i64))))
    dtype, count = draw(st.sampled_from((f16, bf16, f32, f64))), int(indptr[-1])
    indices = random.integers(-columns, columns, count).astype(draw(st.sampled_from((i32, i64))))
    data = random.standard_normal(count).astype(dtype)
    dense = random.standard_normal((columns, *draw(st.sampled_from([(), (1,), (5,), (70,)])))).astype(dtype)
    number = np.dtype(f32 if np.dtype(dtype).itemsize == 2 else dtype)
    width = 1
    while dense.ndim == 1 and rows and width < min(32, -(-count // (4 * rows))):
        width *= 2
    expected = np.zeros((rows, *dense.shape[1:]), dtype)
    for row, (first, last) in enumerate(pairwise(indptr)):
        lanes = np.zeros((width, *dense.shape[1:]), number)
        for place in range(first, last):
            lanes[(place - first) % width] += data[place].astype(number) * dense[indices[place]].astype(number)
        while len(lanes) > 1:
            lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
        expected[row] = lanes[0].astype(dtype)
    return Case("csr_matmul", [data, indices, indptr, dense], [(), (), (), ()], array.csr_matmul, expected)


@st.composite
def takings_along(draw: st.DrawFn) -> Case:
    shape = draw(shapes(3, least=1).filter(all))
    x = contents(draw, draw(st.sampled_from((*NUMBERS, bool_))), shape)
    ranges = part(draw, x)
    given = cut_out(x, ranges)
    axis = draw(st.integers(-x.ndim, x.ndim - 1))
    extent, wanted = given.shape[axis], list(given.shape)
    wanted[axis] = draw(st.sampled_from((0, 1, 3, 40))) if extent else 0
    listed = np.random.default_rng(draw(st.integers(0, 99))).integers(-extent, max(extent, 1), wanted)
    listed = listed.astype(draw(st.sampled_from((i32, i64))))
    expected = np.take_along_axis(given, listed.astype(i64), axis)
    return Case("take_along_axis", [x, listed], [ranges, ()], lambda t, i: array.take_along_axis(t, i, axis), expected)


@st.composite
def normalisings(draw: st.DrawFn, name: str) -> Case:
    shape = draw(st.sampled_from(((3,), (2, 17), (5, 300, 2), (40, 3), (150, 40), (2, 4097), (17_000,), (1, 1))))
    dtype = draw(st.sampled_from((f16, bf16, f32, f64)))
    x = (np.random.default_rng(draw(st.integers(0, 99))).standard_normal(shape) * 4).astype(dtype)
    ranges = part(draw, x)
    axis = draw(st.integers(-x.ndim, x.ndim - 1))
    wide = cut_out(x, ranges).astype(f64)
    largest = wide.max(axis, keepdims=True, initial=-np.inf)
    powers = np.exp(wide - largest)
    summed = powers.sum(axis, keepdims=True)
    expected = {
        "softmax": powers / summed,
        "log_softmax": wide - largest - np.log(summed),
        "logsumexp": (largest + np.log(summed)).squeeze(axis),
    }[name]
    return Case(name, [x], [ranges], lambda t: getattr(array, name)(t, axis), expected)


NORMALISING: Final = ("softmax", "log_softmax", "logsumexp")


@st.composite
def mappings(draw: st.DrawFn, name: str) -> Case:
    """A function whose elements follow from their places, with the arguments that NumPy takes."""
    x = contents(draw, draw(st.sampled_from((*NUMBERS, bool_))), draw(shapes(3, least=2 if name in TRIANGLES else 0)))
    ranges = part(draw, x)
    given = cut_out(x, ranges)
    small, axis = st.integers(0, 3), st.integers(-x.ndim, x.ndim - 1) if x.ndim else st.none()
    arguments: tuple[Any, ...] = ()
    match name:
        case "flip":
            arguments = (draw(st.one_of(st.none(), axis)),)
        case "roll":
            arguments = (draw(st.integers(-50, 50)), draw(st.one_of(st.none(), axis)))
        case "tile":
            arguments = (draw(st.one_of(small, st.lists(small, max_size=4).map(tuple))),)
        case "repeat":
            arguments = (draw(st.sampled_from((0, 1, 2, 7))), draw(st.one_of(st.none(), axis)))
        case "broadcast_to":
            grown = [draw(small) if extent == 1 else extent for extent in given.shape]
            arguments = ((*draw(st.lists(small, max_size=2)), *grown),)
        case "pad":
            modes = BORDERS if given.size and given.ndim else ("constant",)
            pairs = tuple([draw(st.sampled_from(((0, 0), (1, 0), (2, 3), (9, 4)))) for _ in range(given.ndim)])
            arguments = (pairs or 0, draw(st.sampled_from(modes)))
        case _:
            arguments = (draw(st.integers(-4, 4)),)
    expected = np.pad(given, *arguments) if name == "pad" and given.ndim else given.copy()
    if name != "pad":
        expected = getattr(np, name)(given, *arguments)
    return Case(name, [x], [ranges], lambda t: getattr(array, name)(t, *arguments), np.asarray(expected))


TRIANGLES: Final = ("tril", "triu")


_DRAWN: Final[dict[str, Callable[[], st.SearchStrategy[Case]]]] = {
    "transpose": transpositions,
    "concatenate": lambda: joins("concatenate"),
    "stack": lambda: joins("stack"),
    "take": takings,
    "one_hot": one_hots,
    **{name: partial(running_sums, name) for name in SCANS},
    **{name: partial(additions, name) for name in SCATTERING},
    "segment_sum": segments,
    "take_along_axis": takings_along,
    "csr_matmul": sparse_products,
    **{name: partial(normalisings, name) for name in NORMALISING},
    **{name: partial(mappings, name) for name in MAPPING},
}
