"""`Cotangent`, the gradient of a value while the pass goes back, and the arithmetic of cotangents.

A cotangent that is the same along an axis is kept with extent 1 there, and one that is the same everywhere is a
number: the seed, and what a sum or a mean hands back, take no memory and no launch.
"""

from collections.abc import Callable, Generator, Sequence
from math import prod
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from dagpu import arrays as array
from dagpu.common.layout import Shape
from dagpu.handles import SharedTensor
from dagpu.kernels.element import trace_expression
from dagpu.kernels.expression import expression_of_steps
from dagpu.kernels.generated_launch import known_layout
from dagpu.ops.base import DeviceOp
from dagpu.ops.creation import dup, full

AnyOp: TypeAlias = DeviceOp[Any, Any, Any]
Steps: TypeAlias = Generator[AnyOp, Any, Any]
"""A computation in steps: it yields an op, and is sent a shared handle to the op's result."""


class Cotangent(NamedTuple):
    """The gradient of a value: a number, or a tensor whose shape broadcasts to that of the value."""

    value: "SharedTensor[Any] | float"
    shape: Shape
    dtype: "np.dtype[Any]"

    @property
    def is_number(self) -> bool:
        """True if it is the same everywhere."""
        return not isinstance(self.value, SharedTensor)

    @property
    def own_shape(self) -> Shape:
        """The shape of what is in memory; without axes of a number."""
        return self.value.shape if isinstance(self.value, SharedTensor) else ()


_MADE: Final[dict[Any, Any]] = {}


def elementwise(function: Callable[..., Any], name: str, *dtypes: "np.dtype[Any]") -> Any:
    """Return the expression of a function of elements that closes over nothing, made once for each of its types."""
    key = function.__code__, dtypes
    if key not in _MADE:
        _MADE[key] = expression_of_steps(trace_expression(function, dtypes).named(name), (function.__code__, 0))
    return _MADE[key]


def of(g: Cotangent, function: Callable[..., Any], name: str, *others: Any) -> AnyOp:
    """Return the op of an element-wise function of a cotangent, its tensors and numbers broadcast."""
    op: AnyOp = elementwise(function, name, *[g.dtype] * (1 + len(others)))(g.value, *others)
    return op


def _product(g: Any, x: Any) -> Any:
    return g * x


def scaled(g: Cotangent, by: float) -> Steps:
    """Return a cotangent times a number."""
    if by == 1:
        return g
    if isinstance(g.value, SharedTensor):
        return Cotangent((yield of(g, _product, "scale", by)), g.shape, g.dtype)
    return Cotangent(float(g.value) * by, g.shape, g.dtype)


def real_part(g: Any) -> Steps:
    """Return a handle to the real parts of a tensor: the gradient of what real numbers were before they became complex
    ones."""
    return (yield array.real(g)) if g.dtype.kind == "c" else g


def materialised(g: Cotangent) -> Steps:
    """Return a handle to a cotangent in its whole shape."""
    if isinstance(g.value, SharedTensor):
        return g.value if g.value.shape == g.shape else (yield array.broadcast_to(g.value, g.shape))
    return (yield full(g.shape, g.value, g.dtype.type))


def seen_as(g: Cotangent, shape: Shape) -> Steps:
    """Return a cotangent whose value has another shape, of the same elements in the same order."""
    if g.shape == shape:
        return g
    if g.is_number:
        return Cotangent(g.value, shape, g.dtype)
    small = _kept_small(g, shape)
    if small is not None:
        assert isinstance(g.value, SharedTensor)
        return Cotangent(g.value.reshape(small), shape, g.dtype)
    whole = yield from materialised(g)
    return Cotangent(whole.reshape(shape), shape, g.dtype)


def _kept_small(g: Cotangent, shape: Shape) -> Shape | None:
    """Return the shape of what is in memory, where only axes of extent 1 come and go; else None."""
    own = (1,) * (len(g.shape) - len(g.own_shape)) + g.own_shape
    if [n for n in g.shape if n != 1] != [n for n in shape if n != 1]:
        return None
    kept = iter([small for small, n in zip(own, g.shape, strict=True) if n != 1])
    return tuple([1 if n == 1 else next(kept) for n in shape])


def reshaped(t: Any, shape: Shape) -> Steps:
    """Return a shared tensor with this shape; of one whose elements do not lie in one piece a copy."""
    if t.shape == shape:
        return t
    layout = known_layout(t)
    assert layout is not None
    return (t if layout.contiguous else (yield dup(t))).reshape(shape)


def summed_to(g: Cotangent, shape: Shape) -> Steps:
    """Return a cotangent summed over the axes along which a value of this shape was broadcast."""
    lead = len(g.shape) - len(shape)
    axes = tuple([a for a, n in enumerate(g.shape) if a < lead or (shape[a - lead] == 1 and n != 1)])
    if not axes:
        return (yield from seen_as(g, shape))
    own = (1,) * (len(g.shape) - len(g.own_shape)) + g.own_shape
    many = prod([g.shape[a] for a in axes if own[a] == 1])
    over = tuple([a for a in axes if own[a] != 1])
    kept = tuple([1 if a in axes else n for a, n in enumerate(g.shape)])
    found = yield from scaled(g, float(many))
    if over:
        assert isinstance(found.value, SharedTensor)
        total = yield array.sum(found.value.reshape(own), over, keepdims=True)
        found = Cotangent(total, kept, g.dtype)
    return (yield from seen_as(Cotangent(found.value, kept, g.dtype), shape))


def total(parts: Sequence[Cotangent]) -> Steps:
    """Return the sum of cotangents of one value, in their order, by one launch for up to four of them."""
    sum_so_far = parts[0]
    rest = list(parts[1:])
    while rest:
        taken, rest = rest[:3], rest[3:]
        group = [sum_so_far, *taken]
        numbers = sum([float(each.value) for each in group if not isinstance(each.value, SharedTensor)])
        tensors = [each.value for each in group if not each.is_number]
        if not tensors:
            sum_so_far = Cotangent(numbers, group[0].shape, group[0].dtype)
            continue
        given = [*tensors, numbers] if numbers else tensors
        if len(given) > 1:
            made = yield elementwise(_SUMS[len(given)], "add", *[group[0].dtype] * len(given))(*given)
        else:
            (made,) = given
        sum_so_far = Cotangent(made, group[0].shape, group[0].dtype)
    return sum_so_far


_SUMS: Final[dict[int, Callable[..., Any]]] = {
    2: lambda a, b: a + b,
    3: lambda a, b, c: a + b + c,
    4: lambda a, b, c, d: a + b + c + d,
}
