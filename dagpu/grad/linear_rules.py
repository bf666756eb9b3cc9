"""The rules of Fourier transforms, convolutions and sparse products, linear functions whose gradient is their adjoint,
and of factorisations and systems of linear equations."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from dagpu import arrays as array
from dagpu.arrays.fourier_transforms import Step, step_along, steps_along
from dagpu.arrays.stencils import sums_of_mode
from dagpu.common.layout import Layout
from dagpu.grad.cotangents import Steps, elementwise, real_part, reshaped
from dagpu.grad.reduction_rules import axes_of
from dagpu.grad.reverse import OF_COMPLEX, RULES, CallBack
from dagpu.grad.rules import part_of_gradient
from dagpu.ops.creation import convert, dup, from_host, zeros

# ---- Fourier transforms
TRANSFORMS: Final = (
    "fft", "fft2", "fftn", "ifft", "ifft2", "ifftn", "irfft", "irfft2", "irfftn", "rfft", "rfft2", "rfftn",
)  # fmt: skip
_ADJOINT_NORM: Final[dict[Any, Any]] = {None: "forward", "backward": "forward", "ortho": "ortho", "forward": "backward"}
"""The `norm` of the transform in the other direction that multiplies by the same number."""


def _steps_of(back: CallBack, layout: Layout) -> list[Step]:
    """Return the transforms along one axis each that a call is made of, in their order."""
    name, origin, rank = back.function.__name__, back.call.origin, len(layout.shape)
    if "axis" in back.call.arguments:
        return [step_along(name, name, layout, back["axis"] % rank, back["n"], "n", origin)]
    axes, counts = back["axes"], back["s"]
    if counts is None:
        places = axes_of(None if axes is None else tuple(axes), rank)
        return steps_along(name, layout, places, [None] * len(places), origin)
    places = axes_of(tuple(range(-len(counts), 0)) if axes is None else tuple(axes), rank)
    return steps_along(name, layout, places, [None if n == -1 else n for n in counts], origin)


def _transform(back: CallBack) -> Steps:
    """The adjoint of y = F x is F* g, a transform in the other direction, step by step from the last one."""
    layout, norm = back.layout("x"), _ADJOINT_NORM[back["norm"]]
    steps, extents, shape = _steps_of(back, layout), [], list(layout.shape)
    for step in steps:
        extents.append(shape[step.axis])
        shape[step.axis] = step.length // 2 + 1 if step.name == "rfft" else step.length
    g = yield from back.whole_g()
    for step, extent in reversed(list(zip(steps, extents, strict=True))):
        axis = step.axis
        if step.name == "fft":
            g = yield array.ifft(g, axis=axis, norm=norm)
        elif step.name == "ifft":
            g = yield array.fft(g, axis=axis, norm=norm)
        elif step.name == "rfft":
            g = yield from real_part((yield array.ifft(g, step.length, axis, norm)))
        else:
            g = yield array.rfft(g, axis=axis, norm=norm)
            weights = _times_counted(step.length).reshape([-1 if a == axis else 1 for a in range(len(g.shape))])
            g = yield elementwise(lambda g, w: g * w, "weighed", g.dtype, g.dtype)(
                g, from_host(weights.astype(g.dtype))
            )
        g = yield from _resized(g, axis, extent)
    return {"x": g if layout.dtype.kind == "c" else (yield from real_part(g))}


def _times_counted(length: int) -> Any:
    """Return how often `irfft` counts each element: once for itself, and once for its conjugate unless it has none."""
    weights = np.full(length // 2 + 1, 2.0)
    weights[0] = 1
    if length % 2 == 0:
        weights[-1] = 1
    return weights


def _resized(g: Any, axis: int, extent: int) -> Steps:
    """Return a gradient with an extent along an axis: what was cut off has none, and to what was added nothing goes."""
    here = g.shape[axis]
    if here > extent:
        return (yield part_of_gradient(g, *[slice(None)] * axis, slice(0, extent)))
    if here < extent:
        widths = tuple([(0, extent - here if a == axis else 0) for a in range(len(g.shape))])
        return (yield array.pad(g, widths))
    return g


def _shift(other: str) -> Callable[[CallBack], Steps]:
    def rule(back: CallBack) -> Steps:
        return {"x": getattr(array, other)((yield from back.whole_g()), back["axes"])}

    return rule


# ---- convolutions
def _all_sums(back: CallBack) -> Steps:
    """Return the gradient of all sums of a convolution: 0 for those that its mode leaves out."""
    first, second = back.layout("a").size, back.layout("v").size
    extent, skipped = sums_of_mode(back.function.__name__, first, second, back["mode"])
    g = yield from back.whole_g()
    rest = first + second - 1 - extent - skipped
    return g if extent == first + second - 1 else (yield array.pad(g, (skipped, rest)))


def _convolve(back: CallBack) -> Steps:
    """By a: the sums over k of g[i + k] conj(v[k]); by v likewise."""
    g = yield from _all_sums(back)
    return {
        name: array.correlate(g, back.read(other), "valid")
        for name, other in (("a", "v"), ("v", "a")) if back.needs(name)
    }  # fmt: skip


def _correlate(back: CallBack) -> Steps:
    """With c[k] the sum over j of a[k - (m - 1) + j] conj(v[j]): by a the sums of g[k] v[i - k + m - 1], by v those of
    conj(g[k]) a[k - (m - 1) + j]."""
    g = yield from _all_sums(back)
    return {
        "a": array.convolve(g, back.read("v"), "valid") if back.needs("a") else None,
        "v": array.correlate(back.read("a"), g, "valid") if back.needs("v") else None,
    }


# ---- sparse products
def _csr_matmul(back: CallBack) -> Steps:
    """With row(k) and column(k) the place of element k: by it g[row(k)] . b[column(k)], and by row n of b the sum of
    the elements of column n times g[row(k)]."""
    count, shape = back.shape("data")[0], back.shape("b")
    if not count:
        return {name: zeros(back.shape(name), back.g.dtype.type) for name in ("data", "b")}
    g, starts = (yield from back.whole_g()), back.read("indptr")
    columns, wide = back.read("indices"), len(shape) > 1
    ends = dup(starts[1:]) if starts.dtype == np.int64 else convert(starts[1:], np.int64)
    row = yield array.searchsorted(ends, from_host(np.arange(count, dtype=np.int64)), "right")
    up = yield array.take(g, row, 0)
    found: dict[str, Any] = {}
    if back.needs("data"):
        product = elementwise(lambda g, b: g * b, "product", g.dtype, g.dtype)
        rows = array.take(back.read("b"), columns, 0)
        found["data"] = product.sum(1)(up, rows) if wide else product(up, rows)
    if back.needs("b"):
        data = back.read("data")
        added = up * ((yield from reshaped(data, (count, 1))) if wide else data)
        found["b"] = array.scatter_add(zeros(shape, g.dtype.type), columns, added)
    return found


# ---- systems of equations
def _solve(back: CallBack) -> Steps:
    """With a x = b: by b the solution y of a* y = g, and by a the product -y x* (Giles, An extended collection of
    matrix derivative results, 2008, 2.3.1)."""
    if 0 in back.g.shape:
        return {name: zeros(back.shape(name), back.g.dtype.type) for name in ("a", "b")}
    g = yield from back.whole_g()
    turned = yield array.transpose((yield from back.dual("a")))
    y = yield array.solve(turned, g)
    if not back.needs("a"):
        return {"b": y}
    x = (yield array.conj(back.y)) if g.dtype.kind == "c" else back.y
    columns = g.shape[0], -1
    product = array.matmul(y.reshape(columns), x.reshape(columns), transpose="b")
    return {"a": -product, "b": y}


def _cholesky(back: CallBack) -> Steps:
    """With L the factor and M the symmetric matrix whose lower triangle is that of L' g: the symmetric matrix
    T = inv(L)' M inv(L) has in its lower triangle the gradient, but twice that of the diagonal (Murray, Differentiation
    of the Cholesky decomposition, 2016, equation 10, for a function that reads the lower triangle alone)."""
    if 0 in back.g.shape:
        return {"a": zeros(back.shape("a"), back.g.dtype.type)}
    g, lower = (yield from back.whole_g()), back.y
    product = yield array.matmul(lower, g, transpose="a")
    turned = yield array.transpose(lower)
    mirrored = array.tril(product) + array.transpose(array.tril(product, -1))
    half = yield array.solve(turned, mirrored)
    whole = yield array.solve(turned, array.transpose(half))
    return {"a": (array.tril(whole) + array.tril(whole, -1)) * 0.5}


RULES.update(dict.fromkeys(TRANSFORMS, _transform))
RULES.update({
    "fftshift": _shift("ifftshift"), "ifftshift": _shift("fftshift"), "convolve": _convolve, "correlate": _correlate,
    "csr_matmul": _csr_matmul, "solve": _solve, "cholesky": _cholesky,
})  # fmt: skip
OF_COMPLEX.update({*TRANSFORMS, "fftshift", "ifftshift", "convolve", "correlate", "solve"})
