"""The rules of functions of whole arrays: products of matrices, and those that put elements in other places."""

from string import ascii_letters
from typing import Any, Final

import numpy as np

from dagpu import arrays as array
from dagpu.common.errors import GradientError
from dagpu.common.layout import Shape, slice_layout
from dagpu.common.places import describe
from dagpu.grad import element_rules as element_rules
from dagpu.grad.cotangents import (
    Cotangent,
    Steps,
    elementwise,
    materialised,
    real_part,
    reshaped,
    seen_as,
    summed_to,
)
from dagpu.grad.record import Place
from dagpu.grad.reduction_rules import axes_of
from dagpu.grad.reverse import CONSTANT, OF_COMPLEX, RULES, CallBack
from dagpu.handles import SharedTensor
from dagpu.handles.handle_state import live_state
from dagpu.ops.creation import convert, dup, from_host, zeros

# ---- products


def _matmul(back: CallBack) -> Steps:
    """With A and B the operands as they lie, and G the gradient of op(A) op(B): dA is G op(B)', or its transpose."""
    how, precision = back["transpose"], back["precision"]
    shapes = back.shape("a"), back.shape("b")
    row, column = len(shapes[0]) == 1, len(shapes[1]) == 1
    first, second = (1, *shapes[0]) if row else shapes[0], (*shapes[1], 1) if column else shapes[1]
    g = yield from back.whole_g()
    rows = first[-1] if "a" in how else first[-2]
    columns = second[-2] if "b" in how else second[-1]
    g = g.reshape((*g.shape[: len(g.shape) - (2 - row - column)], rows, columns))
    found: dict[str, Any] = {}
    for name, shape, original in (("a", first, shapes[0]), ("b", second, shapes[1])):
        if not back.needs(name):
            continue
        other, wanted = (yield from back.dual("b" if name == "a" else "a")), second if name == "a" else first
        other = yield from reshaped(other, wanted)
        if name == "a":
            flags: Any = ("ab" if "b" in how else "b") if "a" in how else ("" if "b" in how else "b")
            op = array.matmul(other, g, transpose=flags, precision=precision) if "a" in how else array.matmul(
                g, other, transpose=flags, precision=precision
            )  # fmt: skip
        else:
            flags = ("ab" if "a" in how else "a") if "b" in how else ("" if "a" in how else "a")
            op = array.matmul(g, other, transpose=flags, precision=precision) if "b" in how else array.matmul(
                other, g, transpose=flags, precision=precision
            )  # fmt: skip
        made = yield op
        part = yield from summed_to(Cotangent(made, made.shape, back.g.dtype), shape)
        assert isinstance(part.value, SharedTensor)
        found[name] = part.value.reshape(original)
    return found


def _contraction(back: CallBack, inputs: list[str], output: str, places: list[Place]) -> Steps:
    """Return the gradients of the operands of an `einsum`, in order: the product of the gradient and the others. A
    letter that only one operand has was summed over, so its gradient is the same along it."""
    g = yield from back.whole_g()
    found: list[Any] = []
    for number, (letters, place) in enumerate(zip(inputs, places, strict=True)):
        if not back.needs(place):
            found.append(None)
            continue
        others = [n for n in range(len(inputs)) if n != number]
        known = set(output).union(*[inputs[n] for n in others])
        kept = "".join([letter for letter in letters if letter in known])
        text = ",".join([output, *[inputs[n] for n in others]]) + "->" + kept
        read = []
        for n in others:
            read.append((yield from back.dual(places[n])))  # noqa: PERF401  # reason: no list has steps
        made = yield array.einsum(text, g, *read)
        shape = back.shape(place)
        small = tuple([n if letter in known else 1 for letter, n in zip(letters, shape, strict=True)])
        found.append(Cotangent(made.reshape(small), shape, back.g.dtype))
    return found


def _einsum(back: CallBack) -> Steps:
    before, arrow, after = back["subscripts"].replace(" ", "").partition("->")
    inputs = before.split(",")
    letters = "".join(inputs)
    output = after if arrow else "".join(sorted([each for each in set(letters) if letters.count(each) == 1]))
    return {"operands": (yield from _contraction(back, inputs, output, list(back["operands"])))}


def _pairwise(back: CallBack, pairs: list[tuple[int, int]]) -> Steps:
    """Return the gradients of two operands that are multiplied and summed over pairs of axes."""
    ranks = len(back.shape("a")), len(back.shape("b"))
    first, second = list(ascii_letters[: ranks[0]]), list(ascii_letters[ranks[0] : sum(ranks)])
    for a, b in pairs:
        second[b] = first[a]
    both = {first[a] for a, _ in pairs}
    output = "".join([letter for letter in (*first, *second) if letter not in both])
    found = yield from _contraction(back, ["".join(first), "".join(second)], output, [back["a"], back["b"]])
    return dict(zip("ab", found, strict=True))


def _tensordot(back: CallBack) -> Steps:
    ranks, axes = (len(back.shape("a")), len(back.shape("b"))), back["axes"]
    if isinstance(axes, int):
        pairs = [(ranks[0] - axes + n, n) for n in range(axes)]
    else:
        sides = [each if isinstance(each, tuple | list) else (each,) for each in axes]
        pairs = [(a % ranks[0], b % ranks[1]) for a, b in zip(*sides, strict=True)]
    return (yield from _pairwise(back, pairs))


def _dot(back: CallBack) -> Steps:
    ranks = len(back.shape("a")), len(back.shape("b"))
    return (yield from _pairwise(back, [(ranks[0] - 1, max(ranks[1] - 2, 0))]))


# ---- places that the call knows
def _transpose(back: CallBack) -> Steps:
    axes, rank = back["axes"], len(back.shape("x"))
    order = tuple(reversed(range(rank))) if axes is None else axes_of(axes, rank)
    return {"x": array.transpose((yield from back.whole_g()), tuple(map(int, np.argsort(order))))}


def _broadcast_to(back: CallBack) -> Steps:
    return {"x": (yield from summed_to(back.g, back.shape("x")))}


def _flip(back: CallBack) -> Steps:
    return {"x": array.flip((yield from back.whole_g()), back["axis"])}


def _roll(back: CallBack) -> Steps:
    shift = back["shift"]
    other = tuple([-each for each in shift]) if isinstance(shift, tuple) else -shift
    return {"x": array.roll((yield from back.whole_g()), other, back["axis"])}


def _triangle(back: CallBack) -> Steps:
    return {"x": getattr(array, back.function.__name__)((yield from back.whole_g()), back["k"])}


def _tile(back: CallBack) -> Steps:
    reps, shape = back["reps"], back.shape("x")
    counts = tuple(reps) if isinstance(reps, tuple | list) else (reps,)
    rank = max(len(counts), len(shape))
    counts, padded = (1,) * (rank - len(counts)) + counts, (1,) * (rank - len(shape)) + shape
    g = yield from back.whole_g()
    apart = tuple([n for pair in zip(counts, padded, strict=True) for n in pair])
    total = yield array.sum(g.reshape(apart), tuple(range(0, 2 * rank, 2)))
    return {"x": total.reshape(shape)}


def _repeat(back: CallBack) -> Steps:
    axis, shape, count = back["axis"], back.shape("x"), back["repeats"]
    g = yield from back.whole_g()
    if axis is None:
        total = yield array.sum(g.reshape((-1, count)), 1)
        return {"x": total.reshape(shape)}
    at = axis % len(shape)
    total = yield array.sum(g.reshape((*shape[: at + 1], count, *shape[at + 1 :])), at + 1)
    return {"x": total}


def part_of_gradient(g: Any, *ranges: slice) -> Any:
    """Return the op of a part of a gradient, in memory of its own."""
    state = live_state(g)
    return dup(SharedTensor(state.with_layout(slice_layout(state.layout, ranges))))


def _pad(back: CallBack) -> Steps:
    shape, width = back.shape("x"), back["pad_width"]
    g = yield from back.whole_g()
    pairs = np.broadcast_to(np.asarray(width), (len(shape), 2)).tolist()
    return {"x": (yield from without_border(g, shape, pairs, back["mode"]))}


def without_border(g: Any, shape: Shape, pairs: Any, mode: Any) -> Steps:
    """Return the gradient of a tensor of a shape, from that of the tensor with more elements before and after each
    axis: what was written there in this mode is added to what it was read from."""
    if mode == "constant":
        kept = [slice(before, before + n) for (before, _), n in zip(pairs, shape, strict=True)]
        return (yield part_of_gradient(g, *kept))
    count = int(np.prod(shape))
    places = np.pad(np.arange(count).reshape(shape), pairs, mode=mode)
    return (yield _scattered(g, places, count)).reshape(shape)


def _scattered(g: Any, places: Any, count: int) -> Any:
    """Return the op of `count` elements, to each of which those of `g` are added whose place it is."""
    return array.scatter_add(zeros((count,), g.dtype.type), from_host(places.reshape(-1)), g.reshape((-1,)))


def _concatenate(back: CallBack) -> Steps:
    parts, axis = back["parts"], back["axis"] % len(back.shape(back["parts"][0]))
    g = yield from back.whole_g()
    found, at = [], 0
    for place in parts:
        extent = back.shape(place)[axis]
        ranges = (*[slice(None)] * axis, slice(at, at + extent))
        found.append(part_of_gradient(g, *ranges) if back.needs(place) else None)
        at += extent
    return {"parts": found}


def _stack(back: CallBack) -> Steps:
    parts = back["parts"]
    axis = back["axis"] % (len(back.shape(parts[0])) + 1)
    g = yield from back.whole_g()
    found: list[Any] = []
    for number, place in enumerate(parts):
        if not back.needs(place):
            found.append(None)
            continue
        part = yield part_of_gradient(g, *[slice(None)] * axis, slice(number, number + 1))
        found.append(part.reshape(back.shape(place)))
    return {"parts": found}


def _copied(back: CallBack) -> dict[str, Any]:
    return {"t": back.g}


def _convert(back: CallBack) -> Steps:
    g, dtype = (yield from back.whole_g()), back.layout("t").dtype
    return {"t": convert(g if dtype.kind == "c" else (yield from real_part(g)), dtype.type)}


# ---- places that a tensor says
def _take(back: CallBack) -> Steps:
    shape, places = back.shape("x"), back.read("indices")
    axis, count = back["axis"] % len(shape), len(back.shape("indices"))
    g = yield from back.whole_g()
    if not axis:
        return {"x": array.scatter_add(zeros(shape, back.g.dtype.type), places, g)}
    front = (*range(axis, axis + count), *range(axis), *range(axis + count, len(g.shape)))
    order = (axis, *[d for d in range(len(shape)) if d != axis])
    moved = zeros(tuple([shape[d] for d in order]), back.g.dtype.type)
    added = array.scatter_add(moved, places, array.transpose(g, front))
    return {"x": array.transpose(added, tuple(map(int, np.argsort(order))))}


def added_along(g: Any, places: Any, shape: Shape, axis: int) -> Steps:
    """Return a tensor of a shape to whose elements those of `g` are added whose places along an axis they are."""
    order = (*[d for d in range(len(shape)) if d != axis], axis)
    back = tuple(map(int, np.argsort(order)))
    rows, extent = int(np.prod([shape[d] for d in order[:-1]])), shape[axis]
    g, places = (yield array.transpose(g, order)), (yield array.transpose(places, order))
    width = g.shape[-1]
    starts = from_host((np.arange(rows, dtype=places.dtype) * extent).reshape(rows, 1))
    flat = elementwise(lambda p, start, n: array.where(p < 0, p + n, p) + start, "places", *[places.dtype] * 3)
    at = yield flat(places.reshape((rows, width)), starts, extent)
    found = yield array.scatter_add(zeros((rows * extent,), g.dtype.type), at.reshape((-1,)), g.reshape((-1,)))
    return (yield array.transpose(found.reshape(tuple([shape[d] for d in order])), back))


def _compress(back: CallBack) -> Steps:
    """An element gets the gradient at its place in the result: the number of elements before it that are chosen."""
    shape, axis = back.shape("x"), back["axis"]
    whole = (int(np.prod(shape)),) if axis is None else shape
    along = 0 if axis is None else axis % len(shape)
    g = yield from back.whole_g()
    size = g.shape[along]
    if not size or 0 in shape:
        return {"x": zeros(shape, g.dtype.type)}
    condition = yield from reshaped(back.read("condition"), (whole[along],))
    number = yield array.cumsum(convert(condition, np.int64))
    places = yield elementwise(lambda n, last: array.clip(n - 1, 0, last), "places", *[number.dtype] * 2)(
        number, size - 1
    )
    found = yield array.take(g, places, along)
    beside = tuple([n if d == along else 1 for d, n in enumerate(whole)])
    kept = elementwise(
        lambda x, chosen, n, size: array.where(chosen & (n <= size), x, 0), "compress", g.dtype, condition.dtype,
        number.dtype, number.dtype,
    )  # fmt: skip
    chosen = yield kept(found, (yield from reshaped(condition, beside)), number.reshape(beside), size)
    return {"x": chosen.reshape(shape)}


def _take_along_axis(back: CallBack) -> Steps:
    shape = back.shape("x")
    g = yield from back.whole_g()
    return {"x": (yield from added_along(g, back.read("indices"), shape, back["axis"] % len(shape)))}


def _sort(back: CallBack) -> Steps:
    """Each element gets the gradient at its place in the order, which is the order of the order."""
    shape, axis = back.shape("x"), back["axis"]
    along = 0 if axis is None else axis
    x = yield from reshaped(back.read("x"), (int(np.prod(shape)),) if axis is None else shape)
    g = yield from back.whole_g()
    found = yield array.take_along_axis(g, array.argsort(array.argsort(x, along), along), along)
    return {"x": found.reshape(shape)}


def _topk(back: CallBack) -> Steps:
    shape, axis = back.shape("x"), back["axis"]
    values = back.gs[0]
    assert values is not None
    whole = (int(np.prod(shape)),) if axis is None else shape
    g = yield from materialised(values)
    found = yield from added_along(g, back.result(1), whole, 0 if axis is None else axis % len(shape))
    return {"x": found.reshape(shape)}


def _scatter_add(back: CallBack) -> Steps:
    g = yield from back.whole_g()
    values = array.take(g, back.read("indices"), 0) if back.needs("values") else None
    return {"into": Cotangent(g, g.shape, back.g.dtype), "values": values}


def _scatter_set(back: CallBack) -> Steps:
    """A row that is written over has no gradient, and of several values for one row the last one has it."""
    g, shape = (yield from back.whole_g()), back.shape("values")
    indices = back.read("indices")
    values = None
    if back.needs("values"):
        order = yield from_host(np.arange(1, shape[0] + 1))
        last = yield array.take(array.scatter_max(zeros((g.shape[0],), np.int64), indices, order), indices)
        kept = yield elementwise(lambda n, k: n.equals(k), "kept", last.dtype, order.dtype)(last, order)
        kept = kept.reshape((shape[0], *[1] * (len(shape) - 1)))
        values = array.where(kept, array.take(g, indices, 0), 0)
    into = array.scatter_set(dup(g), indices, zeros(shape, g.dtype.type)) if back.needs("into") else None
    return {"into": into, "values": values}


def _meshgrid(back: CallBack) -> Steps:
    count, found = len(back["xs"]), []
    for number, g in enumerate(back.gs):
        at = 1 - number if number < 2 <= count and back["indexing"] == "xy" else number
        small = tuple([n if axis == at else 1 for axis, n in enumerate(back.call.results[number].layout.shape)])
        part = None if g is None else (yield from summed_to(g, small))
        found.append(None if part is None else (yield from seen_as(part, back.shape(back["xs"][number]))))
    return {"xs": found}


def _segment_sum(back: CallBack) -> Steps:
    return {"values": array.take((yield from back.whole_g()), back.read("segments"), 0)}


def _dropout(back: CallBack) -> Steps:
    """The same elements are dropped of the gradient: the seed and the places say which."""
    if back["seed"] is None or type(back["seed"]) is Place:
        raise GradientError(
            f"dropout at {describe(back.call.origin)} has drawn its seed, so the pass back cannot draw the same. "
            "Give it one: array.dropout(x, p, seed=n), with n a number or a source."
        )
    return {"x": array.dropout((yield from back.whole_g()), back["p"], seed=back["seed"])}


RULES.update({
    "matmul": _matmul, "einsum": _einsum, "tensordot": _tensordot, "dot": _dot, "transpose": _transpose,
    "broadcast_to": _broadcast_to, "flip": _flip, "roll": _roll, "tril": _triangle, "triu": _triangle, "tile": _tile,
    "repeat": _repeat, "pad": _pad, "concatenate": _concatenate, "stack": _stack, "dup": _copied, "convert": _convert,
    "take": _take, "take_along_axis": _take_along_axis, "sort": _sort, "topk": _topk, "scatter_add": _scatter_add,
    "scatter_set": _scatter_set, "segment_sum": _segment_sum, "dropout": _dropout, "meshgrid": _meshgrid,
    "compress": _compress,
})  # fmt: skip
OF_COMPLEX.update({
    "matmul", "einsum", "tensordot", "dot", "transpose", "broadcast_to", "flip", "roll", "tril", "triu", "tile",
    "repeat", "pad", "concatenate", "stack", "dup", "convert", "take", "take_along_axis", "scatter_add", "scatter_set",
    "segment_sum", "meshgrid", "compress",
})  # fmt: skip

CONSTANT.update({
    "all", "any", "argmax", "argmin", "argsort", "bernoulli", "bincount", "exponential", "full_like", "histogram",
    "isfinite", "isinf", "isnan", "nonzero", "one_hot", "ones_like", "permutation", "randint", "searchsorted",
    "signbit", "uniform", "zeros_like", "stop_gradient",
})  # fmt: skip

REFUSED: Final = frozenset(
    ("choice", "nextafter", "qr", "scatter_max", "scatter_min", "svd", "unique", "unique_counts")
)  # fmt: skip
"""The functions of `dagpu.array` that have no rule: a gradient by way of them is refused."""
