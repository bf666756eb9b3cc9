"""Kernels that dagpu generates: those of each function of `dagpu.array`, for several element types and shapes."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import numpy as np

from dagpu import array, bf16, bool_, c64, c128, expr, f16, f32, f64, from_host, i8, i32, i64, plan_of, u32, zip_ops
from dagpu.arrays.axis_maps import BORDERS
from dagpu.ops.compose import Launch, Then
from dagpu.plans.program import Launch as PlannedLaunch
from dagpu.testing import KernelSpec, nodes_of

TYPES: Final = (f16, bf16, f32, f64, i8, i32, i64, u32, bool_, c64, c128)
FEW_TYPES: Final = (f16, f32, i32, c64)
SHAPES: Final = ((40_000,), (300, 70), (7, 5000, 3))
"""Of rows with one span and with several, along memory and across it, by vectors and one by one."""

REDUCTIONS: Final = ("sum", "prod", "mean", "norm", "amin", "amax", "any", "all")
SPREADS: Final = ("var", "std")
PLACES: Final = ("argmin", "argmax")
OF_ONE: Final = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf", "exp", "expm1", "floor",
    "isfinite", "isinf", "isnan", "log", "log10", "log1p", "log2", "positive", "rint", "sign", "signbit", "sin", "sinh",
    "sqrt", "tan", "tanh", "trunc",
)  # fmt: skip
OF_TWO: Final = ("atan2", "copysign", "hypot", "logaddexp", "maximum", "minimum", "nextafter", "pow")

_indices, _columns = np.array([3, 0, -1, 3]), np.arange(64) * 7 % 8
_segments, _starts = np.array([0, 0, 2, 2, 2, 1, 1, 2]), np.array([0, 20, 64])
CALLS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    **dict.fromkeys(OF_ONE, lambda f, x: f(x())),
    **dict.fromkeys(OF_TWO, lambda f, x: f(x(), x())),
    "clip": lambda f, x: f(x(), 0, 1),
    "where": lambda f, x: f(from_host(np.arange(64).reshape(8, 8) % 3 > 0), x(), x()),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin"), lambda f, x: f(x(), 0)),
    "transpose": lambda f, x: f(x()),
    "concatenate": lambda f, x: f((x(), x())),
    "stack": lambda f, x: f((x(), x())),
    "flip": lambda f, x: f(x()),
    "roll": lambda f, x: f(x(), 1, 0),
    "tile": lambda f, x: f(x(), 2),
    "repeat": lambda f, x: f(x(), 2, 0),
    "broadcast_to": lambda f, x: f(x(), (3, 8, 8)),
    "meshgrid": lambda f, x: f(x().reshape((64,)), x().reshape((64,))),
    "pad": lambda f, x: zip_ops(*[f(x(), 2, mode) for mode in BORDERS]),
    "tril": lambda f, x: f(x()),
    "triu": lambda f, x: f(x()),
    "take": lambda f, x: f(x(), from_host(_indices)),
    "take_along_axis": lambda f, x: f(x(), from_host(_columns[:16].reshape(8, 2) - 4)),
    "csr_matmul": lambda f, x: zip_ops(
        *[f(x().reshape((64,)), from_host(_columns), from_host(_starts), b) for b in (x().reshape((64,)), x())]
    ),
    "segment_sum": lambda f, x: f(x(), from_host(_segments), 3),
    **dict.fromkeys(
        ("scatter_add", "scatter_set", "scatter_max", "scatter_min"),
        lambda f, x: f(x(), from_host(_indices), from_host(x().array[2:6])),
    ),
    **dict.fromkeys(("softmax", "log_softmax", "logsumexp"), lambda f, x: f(x())),
    "one_hot": lambda f, x: f(from_host(_indices), 8, x().array.dtype.type),
    "sort": lambda f, x: f(x()),
    "argsort": lambda f, x: f(x()),
    "topk": lambda f, x: f(x(), 3),
    **dict.fromkeys(("nansum", "nanprod", "nanmean", "nanmax", "nanmin", "median"), lambda f, x: f(x(), 1)),
    "searchsorted": lambda f, x: f(from_host(np.sort(x().array.ravel())), x()),
    "bincount": lambda f, x: f(x(), 9),
    "histogram": lambda f, x: f(x(), 9, (0, 1)),
    "nonzero": lambda f, x: f(x(), size=3),
    "compress": lambda f, x: f(from_host(np.arange(64).reshape(8, 8) % 3 > 0), x(), size=3),
    **dict.fromkeys(("unique", "unique_counts"), lambda f, x: f(x(), size=3)),
    "quantile": lambda f, x: f(x(), 0.3),
    **dict.fromkeys(("uniform", "exponential"), lambda f, x: f((8,), dtype=x().array.dtype.type, seed=1)),
    "bernoulli": lambda f, x: f((8,), seed=1),
    "randint": lambda f, x: f((8,), 0, 9, x().array.dtype.type, seed=1),
    "choice": lambda f, x: f(x(), 3, replace=False, seed=1),
    "stencil": lambda f, x: zip_ops(*[_smoothed(f, x, border) for border in BORDERS]),
    **dict.fromkeys(("real", "imag", "conj", "angle", "fftshift", "ifftshift"), lambda f, x: f(x())),
    **dict.fromkeys(("convolve", "correlate"), lambda f, x: f(x().reshape((64,)), x().reshape((64,)))),
    "permutation": lambda f, x: f(8, seed=1),
    "dropout": lambda f, x: f(x(), 0.5, seed=1),
}
"""A call of each other function, on matrices of 8 by 8 that `x` makes. Names that `dagpu.array` does not have are left
out."""
BY_LIBRARIES: Final = frozenset({
    "matmul", "einsum", "tensordot", "dot", "fft", "ifft", "rfft", "irfft", "fft2", "ifft2", "rfft2", "irfft2", "fftn",
    "ifftn", "rfftn", "irfftn", "cholesky", "solve", "qr", "svd",
})  # fmt: skip
"""Functions whose work a library does, with kernels of dagpu's own before and after it at most."""
FILLED: Final = frozenset({"zeros_like", "ones_like", "full_like"})
"""Functions that fill a new tensor, as `dagpu.full` does."""


def generated_kernels() -> Iterator[KernelSpec]:
    """Yield the kernels of all functions, each once."""
    for _, kernels in generated_ops():
        yield from kernels


def generated_ops() -> Iterator[tuple[Any, list[KernelSpec]]]:
    """Yield ops whose kernels are those of all functions, and of each the kernels that none before it has."""
    seen: set[tuple[str, str]] = set()
    for op in _ops():
        found = {(kernel.name, kernel.cuda): kernel for kernel in kernels_of(op) if kernel.cuda}
        if new := [kernel for key, kernel in found.items() if key not in seen]:
            seen |= found.keys()
            yield op, new


def uncalled() -> set[str]:
    """Return the public functions of `dagpu.array` that no call here covers."""
    return set(array.__all__) - {*REDUCTIONS, *SPREADS, *PLACES, *CALLS, *BY_LIBRARIES, *FILLED}


def kernels_of(op: Any) -> Iterator[KernelSpec]:
    """Yield the kernel of each launch of an op; that of one that a choice has may come twice."""
    for node in nodes_of(op):
        if isinstance(node, Launch):
            yield node.kernel
        elif isinstance(node, Then):  # its launches are those of a plan
            yield from [each.kernel for each in plan_of(op).program.instructions if isinstance(each, PlannedLaunch)]


def _ops() -> Iterator[Any]:
    for number, dtype in enumerate(TYPES):
        for place, name in enumerate((*REDUCTIONS, *PLACES)):
            shape = SHAPES[(number + place) % len(SHAPES)]
            yield from _built(name, partial(_reduced, len(shape) // 2), partial(_tensor, shape, dtype))
    for dtype, extents in zip((f16, f32, f64), SHAPES, strict=True):
        for name in SPREADS:
            yield from _built(name, partial(_reduced, len(extents) // 2), partial(_tensor, extents, dtype))
    for dtype in FEW_TYPES:
        for name, call in CALLS.items():
            yield from _built(name, call, partial(_tensor, (8, 8), dtype))
        sorts = () if dtype is c64 else (array.sort, array.argsort, partial(array.topk, k=3000))
        for sorted_by in sorts:  # of long rows, by digits
            yield sorted_by(_tensor((2, 9000), dtype))
    for exact in (f32, f64, c64, c128):
        square = _tensor((40, 40), exact).array + 9 * np.eye(40, dtype=exact)
        yield array.cholesky(from_host(square @ square.conj().T))
        yield array.solve(from_host(square), _tensor((40, 3), exact))
        yield zip_ops(array.qr(_tensor((40, 9), exact)), array.svd(_tensor((40, 9), exact)))
    for half in (c64, c128):
        yield array.irfft(_tensor((8, 6, 5), half), 12, 1)
        for part in (array.abs, array.real, array.imag, array.angle, array.conj, array.exp, array.sqrt, array.isfinite):
            yield part(_tensor((8, 6), half))
        yield array.convolve(_tensor((8,), half), _tensor((3,), half))
        yield array.correlate(_tensor((8,), half), _tensor((3,), half), "same")
        yield expr(half, half)(lambda z, a: array.where(abs(z) > 1, (z * a + 1j) / a, -z))(_tensor((8, 6), half), 2j)
    for number, dtype in enumerate(TYPES):  # of several results: each type beside others, in one walk and in two
        other = TYPES[(number + 4) % len(TYPES)]
        several: Any = expr(dtype, other)(lambda x, y: (x, y, x == x, array.where(y == y, y, y)))
        yield several(_tensor((300, 70), dtype), _tensor((300, 70), other))
        yield several(_tensor((300, 70), dtype), _tensor((70,), other))
    blend = expr(f32, f32, f32)(lambda x, y, a: array.where(x > y, a * x + 1, y))
    yield blend(_tensor((4, 8), f32), _tensor((8,), f32), 2.0)
    yield blend.softmax()(_tensor((3, 50_000), f32), _tensor((3, 1), f32), 2.0)
    yield blend.softmax(0)(_tensor((50, 70), f32), _tensor((70,), f32), 2.0)
    for name in REDUCTIONS:
        yield getattr(blend, name)(1)(_tensor((70, 5000), f32), _tensor((70, 1), f32), 2.0)
        yield getattr(blend, name)(0)(_tensor((5000, 70), f32), _tensor((70,), f32), _tensor((70,), f32))


def _built(name: str, call: Callable[[Any, Any], Any], make: Callable[[], Any]) -> Iterator[Any]:
    """Yield the op of a function; nothing for an element type that it does not take."""
    function = getattr(array, name, None)
    try:
        if function is not None:
            yield call(function, make)
    except TypeError:  # a KernelArgumentError, or that of an expression
        return


def _reduced(axis: int, function: Any, make: Callable[[], Any]) -> Any:
    return function(make(), axis)


def _smoothed(function: Any, make: Callable[[], Any], border: str) -> Any:
    smooth = function(make().array.dtype.type, 2, border=border)
    return smooth(lambda x: array.maximum(x[-1, 0], x[0, 2]) - x[0, 0])(make())


def _tensor(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return a tensor of numbers from -2 to 2, in steps of a quarter where they are no whole ones; of bools."""
    numbers = np.random.default_rng(len(shape)).integers(-8, 9, shape)
    if np.dtype(dtype).kind == "b":
        return from_host(numbers > 0)
    if np.dtype(dtype).kind in "iu":
        return from_host((numbers // 4).astype(dtype))
    return from_host((numbers / 4).astype(dtype) * (1 + 1j if np.dtype(dtype).kind == "c" else 1))
