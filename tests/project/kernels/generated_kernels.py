"""Kernels that dagpu generates: those of each function of `dagpu.array`, for several element types and shapes."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import numpy as np

from dagpu import array, bf16, bool_, c64, c128, expr, f16, f32, f64, from_host, i8, i32, i64, u32
from dagpu.common.errors import KernelArgumentError
from dagpu.ops.compose import Launch
from dagpu.testing import KernelSpec, nodes_of

TYPES: Final = (f16, bf16, f32, f64, i8, i32, i64, u32, bool_)
FEW_TYPES: Final = (f16, f32, i32)
SHAPES: Final = ((40_000,), (300, 70), (7, 5000, 3))
"""Of rows with one span and with several, along memory and across it, by vectors and one by one."""

REDUCTIONS: Final = ("sum", "prod", "mean", "norm", "amin", "amax", "any", "all")
SPREADS: Final = ("var", "std")
PLACES: Final = ("argmin", "argmax")
OF_ONE: Final = (
    "abs", "ceil", "cos", "erf", "exp", "expm1", "floor", "isfinite", "isnan", "log", "log1p", "rint", "sin", "sqrt",
    "tanh",
)  # fmt: skip
OF_TWO: Final = ("maximum", "minimum", "pow")

_indices = np.zeros(4, np.int64)
CALLS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    **dict.fromkeys(OF_ONE, lambda f, x: f(x())),
    **dict.fromkeys(OF_TWO, lambda f, x: f(x(), x())),
    "clip": lambda f, x: f(x(), 0, 1),
    "where": lambda f, x: f(from_host(np.ones((8, 8), np.bool_)), x(), x()),
    "cumsum": lambda f, x: f(x(), 0),
    "transpose": lambda f, x: f(x()),
    "concatenate": lambda f, x: f((x(), x())),
    "stack": lambda f, x: f((x(), x())),
    "take": lambda f, x: f(x(), from_host(_indices)),
    "scatter_add": lambda f, x: f(x(), from_host(_indices), from_host(np.zeros((4, 8), x().array.dtype))),
    "softmax": lambda f, x: f(x()),
    "one_hot": lambda f, x: f(from_host(_indices), 8, x().array.dtype.type),
    "sort": lambda f, x: f(x()),
    "argsort": lambda f, x: f(x()),
    "topk": lambda f, x: f(x(), 3),
    "permutation": lambda f, x: f(8, seed=1),
    "dropout": lambda f, x: f(x(), 0.5, seed=1),
}
"""A call of each other function, on matrices of 8 by 8 that `x` makes. Names that `dagpu.array` does not have are left
out."""
BY_LIBRARIES: Final = frozenset({"matmul", "fft", "ifft", "rfft", "irfft"})
"""Functions whose work a library does, with kernels of dagpu's own before and after it at most."""


def generated_kernels() -> Iterator[KernelSpec]:
    """Yield the kernels of all functions, each once."""
    seen: set[tuple[str, str]] = set()
    for op in _ops():
        for node in nodes_of(op):
            if isinstance(node, Launch) and node.kernel.cuda and (node.kernel.name, node.kernel.cuda) not in seen:
                seen.add((node.kernel.name, node.kernel.cuda))
                yield node.kernel


def uncalled() -> set[str]:
    """Return the public functions of `dagpu.array` that no call here covers."""
    return set(array.__all__) - {*REDUCTIONS, *SPREADS, *PLACES, *CALLS, *BY_LIBRARIES}


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
        for sorted_by in (array.sort, array.argsort, partial(array.topk, k=3000)):  # of long rows, by digits
            yield sorted_by(_tensor((3, 20_000), dtype))
    for half in (c64, c128):
        yield array.irfft(_tensor((8, 6, 5), half), 12, 1)
    blend = expr(f32, f32, f32)(lambda x, y, a: array.where(x > y, a * x + 1, y))
    yield blend(_tensor((4, 8), f32), _tensor((8,), f32), 2.0)
    yield blend.softmax()(_tensor((70, 50_000), f32), _tensor((70, 1), f32), 2.0)
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
    except KernelArgumentError:
        return


def _reduced(axis: int, function: Any, make: Callable[[], Any]) -> Any:
    return function(make(), axis)


def _tensor(shape: tuple[int, ...], dtype: Any) -> Any:
    return from_host(np.zeros(shape, dtype))
