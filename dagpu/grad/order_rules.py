"""The rules of functions of an order: quantiles, whose elements an order chooses, and running products and extremes."""

from typing import Any

import numpy as np

from dagpu import arrays as array
from dagpu.common.layout import Shape
from dagpu.grad.cotangents import Steps, elementwise, reshaped
from dagpu.grad.reduction_rules import products_before
from dagpu.grad.reverse import RULES, CallBack
from dagpu.grad.rules import added_along
from dagpu.ops.creation import from_host, zeros


# ---- quantiles
def _quantile(back: CallBack) -> Steps:
    """A quantile lies between two elements, which share its gradient as they share its value."""
    shape, axis = back.shape("x"), back["axis"]
    given: Any = back.call.arguments.get("q", 0.5)
    shares = tuple(given) if isinstance(given, tuple | list) else (given,)
    whole: Shape = (int(np.prod(shape)),) if axis is None else shape
    along = 0 if axis is None else axis % len(shape)
    count = whole[along]
    if 0 in whole:
        return {"x": zeros(shape, back.g.dtype.type)}
    x = yield from reshaped(back.read("x"), whole)
    places = np.array([float(q) * (count - 1) for q in shares])
    below = np.minimum(np.floor(places).astype(np.int64), count - 1)
    above = np.minimum(below + 1, count - 1)
    part = places - below
    g = yield from back.whole_g()
    # the gradient with an axis of the quantiles in the place of the axis
    g = g.reshape((len(shares), *whole[:along], *whole[along + 1 :]))
    order = (*range(1, along + 1), 0, *range(along + 1, len(whole)))
    g = yield array.transpose(g, order)
    weights = [
        each.reshape([-1 if d == along else 1 for d in range(len(whole))]).astype(g.dtype) for each in (1 - part, part)
    ]
    sorted_at = yield array.argsort(x, along)
    chosen = yield array.take(sorted_at, from_host(np.concatenate([below, above])), along)
    product = elementwise(lambda g, w: g * w, "product", g.dtype, g.dtype)
    both = yield array.concatenate([product(g, from_host(each)) for each in weights], along)
    found = yield from added_along(both, chosen, whole, along)
    return {"x": found.reshape(shape)}


# ---- running products and extremes
def _cumprod(back: CallBack) -> Steps:
    """By x[i] the product of those before it times s[i] = g[i] + x[i + 1] s[i + 1]. Doubling solves the recurrence
    (Kogge and Stone, 1973) without a division, so it is right where elements are 0, and so are its derivatives."""
    shape, axis = back.shape("x"), back["axis"]
    whole: Shape = (int(np.prod(shape)),) if axis is None else shape
    along = 0 if axis is None else axis % len(shape)
    sums, x = (yield from back.whole_g()).reshape(whole), (yield from reshaped(back.read("x"), whole))
    count, dtype = whole[along], x.dtype
    if 0 in whole:
        return {"x": sums.reshape(shape)}

    def part(t: Any, start: int, stop: int) -> Any:
        return t[(*[slice(None)] * along, slice(start, stop))]

    added = elementwise(lambda s, a, t: s + a * t, "added", dtype, dtype, dtype)
    product = elementwise(lambda a, b: a * b, "product", dtype, dtype)
    factors, step = part(x, 1, count), 1  # factors[i] is the product of x[i + 1] to x[i + step]
    while step < count:
        head = added(part(sums, 0, count - step), factors, part(sums, step, count))
        sums = yield array.concatenate([head, part(sums, count - step, count)], along)
        if 2 * step < count:
            factors = yield product(part(factors, 0, count - 2 * step), part(factors, step, count - step))
        step *= 2
    before = yield from products_before(x, along)
    return {"x": (yield product(before, sums)).reshape(shape)}


def _running_extremum(back: CallBack) -> Steps:
    """Each element gets the gradients of the results that it is: of equal ones the last."""
    shape, axis = back.shape("x"), back["axis"]
    whole: Shape = (int(np.prod(shape)),) if axis is None else shape
    along = 0 if axis is None else axis % len(shape)
    g, x = (yield from back.whole_g()).reshape(whole), (yield from reshaped(back.read("x"), whole))
    places = np.arange(whole[along]).reshape([-1 if d == along else 1 for d in range(len(whole))])
    hits = elementwise(_place_of_hit, "hits", x.dtype, x.dtype, places.dtype)
    at = yield array.cummax(hits(x, back.y.reshape(whole), from_host(places)), along)
    return {"x": (yield from added_along(g, at, whole, along)).reshape(shape)}


def _place_of_hit(x: Any, y: Any, n: Any) -> Any:
    return array.where(x.equals(y) | (array.isnan(x) & array.isnan(y)), n, 0)


RULES.update({
    "median": _quantile, "quantile": _quantile, "cumprod": _cumprod, "cummax": _running_extremum,
    "cummin": _running_extremum,
})  # fmt: skip
