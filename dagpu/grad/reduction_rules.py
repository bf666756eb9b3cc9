"""The rules of reductions over axes, of softmax and its relatives, and of running sums."""

from collections.abc import Callable
from math import prod
from typing import Any, Final

import numpy as np

from dagpu import arrays as array
from dagpu.common.layout import Shape
from dagpu.grad.cotangents import Cotangent, Steps, elementwise, of, reshaped, scaled, seen_as
from dagpu.grad.reverse import OF_COMPLEX, RULES, CallBack


def axes_of(axis: Any, rank: int) -> tuple[int, ...]:
    """Return the axes that an argument names, counted from the first."""
    given = range(rank) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    return tuple([int(each) % rank for each in given])


def _spread(g: Cotangent, shape: Shape, axes: tuple[int, ...]) -> Steps:
    """Return the cotangent of a reduction's result as one of its elements: the same along the reduced axes."""
    small = tuple([1 if a in axes else n for a, n in enumerate(shape)])
    found = yield from seen_as(g, small)
    return Cotangent(found.value, shape, g.dtype)


def reduction_gradient(
    name: str,
    elements: Callable[[], Steps],
    result: Callable[[], Any],
    g: Cotangent,
    shape: Shape,
    axis: Any,
    ddof: float = 0,
) -> Steps:
    """Return the gradient of the elements of a reduction. `elements` and `result` are asked for if the rule reads
    them."""
    axes = axes_of(axis, len(shape))
    up = yield from _spread(g, shape, axes)
    count = prod([shape[a] for a in axes])
    if name == "sum":
        return up
    if name == "mean":
        return (yield from scaled(up, 1 / count if count else float("nan")))
    small = tuple([1 if a in axes else n for a, n in enumerate(shape)])
    x = yield from elements()
    if name == "norm":  # 0 at 0, as that of `hypot`
        found = yield of(
            up, lambda g, x, y: array.where(y.equals(0), 0, g * (x / array.where(y.equals(0), 1, y))), "d_norm",
            x, result().reshape(small),
        )  # fmt: skip
    elif name in ("amin", "amax", "nanmin", "nanmax"):  # shared by the elements that are equal to it
        y = result().reshape(small)
        hits = elementwise(_hit, "hits", g.dtype, g.dtype)
        many = yield hits.sum(axes, keepdims=True)(x, y)
        found = yield of(up, lambda g, x, y, n: array.where(_is_extreme(x, y), g / n, 0), "d_extreme", x, y, many)
    elif name == "nanprod":
        known = yield of(up, lambda _, x: array.where(array.isnan(x), 1, x), "known", x)
        part = yield from reduction_gradient("prod", lambda: _given(known), result, g, shape, axis)
        found = yield of(part, lambda g, x: array.where(array.isnan(x), 0, g), "d_nanprod", x)
    elif name == "prod":
        others = yield from _products_of_others(x, axes)
        found = yield of(up, lambda g, r: g * r, "d_prod", others)
    elif name == "nansum":
        found = yield of(up, lambda g, x: array.where(array.isnan(x), 0, g), "d_nansum", x)
    elif name == "nanmean":
        known = elementwise(lambda x: array.where(array.isnan(x), 0 * array.where(array.isnan(x), 0, x), 1), "known",
                            g.dtype)  # fmt: skip
        many = yield known.sum(axes, keepdims=True)(x)
        found = yield of(up, lambda g, x, n: array.where(array.isnan(x), 0, g / n), "d_nanmean", x, many)
    else:  # var and std
        middle = yield array.mean(x, axes, keepdims=True)
        by = count - ddof
        if name == "var":
            found = yield of(up, lambda g, x, m, by: g * (x - m) * (2 / by), "d_var", x, middle, by)
        else:
            y = result().reshape(small)
            found = yield of(up, lambda g, x, m, y, by: g * (x - m) / (y * by), "d_std", x, middle, y, by)
    return Cotangent(found, shape, g.dtype)


def _products_of_others(x: Any, axes: tuple[int, ...]) -> Steps:
    """Return for each element the product of the others along axes: of those before it and of those behind it. There
    is no division, so it is right where elements are 0, and so are its derivatives."""
    shape, order = x.shape, (*[a for a in range(len(x.shape)) if a not in axes], *axes)
    if 0 in shape:
        return x
    moved = (yield array.transpose(x, order)) if list(order) != sorted(order) else x
    count = prod([shape[a] for a in axes])
    rows = yield from reshaped(moved, (moved.size // count, count))
    ahead = yield from products_before(rows, 1)
    behind = yield array.flip((yield from products_before((yield array.flip(rows, 1)), 1)), 1)
    both = yield elementwise(lambda a, b: a * b, "product", x.dtype, x.dtype)(ahead, behind)
    both = both.reshape(moved.shape)
    return both if moved is x else (yield array.transpose(both, tuple(map(int, np.argsort(order)))))


def products_before(x: Any, axis: int) -> Steps:
    """Return for each element along an axis the product of those before it."""
    y = yield array.cumprod(x, axis)
    widths = tuple([(int(a == axis), 0) for a in range(len(x.shape))])
    return (yield array.pad(y[(*[slice(None)] * axis, slice(0, -1))], widths, constant_values=1))


def _is_extreme(x: Any, y: Any) -> Any:
    """True for an element that is its row's extreme; a NaN among them is it."""
    return x.equals(y) | (array.isnan(x) & array.isnan(y))


def _hit(x: Any, y: Any) -> Any:
    """Return 1 for an extreme, which may be infinite or NaN, of the type of the elements."""
    hit = _is_extreme(x, y)
    return array.where(hit, 1, 0 * array.where(hit, x, 0))


def _given(x: Any) -> Steps:
    """Return what is there already, as steps."""
    return x
    yield


REDUCTIONS: Final = (
    "sum", "prod", "mean", "norm", "amin", "amax", "var", "std", "nansum", "nanprod", "nanmean", "nanmin", "nanmax",
)  # fmt: skip


def _reduction(back: CallBack) -> Steps:
    layout, g = back.layout("x"), back.g

    def elements() -> Steps:
        x = back.read("x")
        return x if layout.dtype == g.dtype else (yield _converted(x, layout.dtype, g.dtype))

    name, ddof = back.function.__name__, back.call.arguments.get("ddof", 0)
    found = yield from reduction_gradient(name, elements, lambda: back.y, g, layout.shape, back["axis"], ddof)
    if layout.dtype != g.dtype:
        value = found.value if found.is_number else (yield _converted(found.value, g.dtype, layout.dtype))
        found = Cotangent(value, found.shape, layout.dtype)
    return {"x": found}


def _converted(x: Any, source: "np.dtype[Any]", target: "np.dtype[Any]") -> Any:
    if source.kind == "c" and target.kind != "c":
        return elementwise(_TO_REAL[target.name], "convert", source)(x)
    return elementwise(_TO[target.name], "convert", source)(x)


_TO: Final[dict[str, Callable[..., Any]]] = {
    "complex64": lambda x: x.to(np.complex64),
    "complex128": lambda x: x.to(np.complex128),
    "float16": lambda x: x.to(np.float16),
    "float32": lambda x: x.to(np.float32),
    "float64": lambda x: x.to(np.float64),
}
_TO_REAL: Final[dict[str, Callable[..., Any]]] = {
    "float16": lambda x: x.real.to(np.float16),
    "float32": lambda x: x.real.to(np.float32),
    "float64": lambda x: x.real.to(np.float64),
}


# ---- along one axis
def of_softmax(y: Any, g: Cotangent, axis: int) -> Steps:
    """Return the gradient of what a softmax was taken of: y * (g - sum(y * g))."""
    inner = elementwise(lambda g, y: g * y, "product", g.dtype, g.dtype)
    total = yield inner.sum(axis, keepdims=True)(g.value, y)
    found = yield of(g, lambda g, y, s: y * (g - s), "d_softmax", y, total)
    return Cotangent(found, g.shape, g.dtype)


def _softmax(back: CallBack) -> Steps:
    return {"x": (yield from of_softmax(back.y, back.g, back["axis"] % len(back.shape("x"))))}


def _log_softmax(back: CallBack) -> Steps:
    g = yield from back.whole_g()
    total = yield array.sum(g, back["axis"], keepdims=True)
    return {
        "x": elementwise(lambda g, y, s: g - array.exp(y) * s, "d_log_softmax", *[back.g.dtype] * 3)(g, back.y, total)
    }


def _logsumexp(back: CallBack) -> Steps:
    shape = back.shape("x")
    axes = axes_of(back["axis"], len(shape))
    up = yield from _spread(back.g, shape, axes)
    y = back.y.reshape(tuple([1 if a in axes else n for a, n in enumerate(shape)]))
    found = yield of(up, lambda g, x, y: g * array.exp(x - y), "d_logsumexp", back.read("x"), y)
    return {"x": Cotangent(found, shape, back.g.dtype)}


def _cumsum(back: CallBack) -> Steps:
    """The sums of what comes after."""
    g, axis, shape = (yield from back.whole_g()), back["axis"], back.shape("x")
    along = 0 if axis is None else axis
    found = yield array.flip(array.cumsum(array.flip(g, along), along), along)
    return {"x": found.reshape(shape)}


RULES.update(dict.fromkeys(REDUCTIONS, _reduction))
RULES.update({"softmax": _softmax, "log_softmax": _log_softmax, "logsumexp": _logsumexp, "cumsum": _cumsum})
OF_COMPLEX.update({"sum", "mean", "cumsum"})
