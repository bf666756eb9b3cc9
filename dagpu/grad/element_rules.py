"""The rules of expressions, of reductions of expressions, and of the element-wise functions of arrays."""

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any, Final

import numpy as np

from dagpu import arrays as array
from dagpu.common.layout import Shape
from dagpu.grad.cotangents import Cotangent, Steps, scaled, seen_as, summed_to
from dagpu.grad.element_derivatives import TracedDerivative, traced_derivative, traced_key
from dagpu.grad.record import Place
from dagpu.grad.reduction_rules import of_softmax, reduction_gradient
from dagpu.grad.reverse import OF_COMPLEX, RULES, CallBack
from dagpu.handles import HANDLES
from dagpu.kernels.element import TracedExpression, trace_expression
from dagpu.kernels.expression import Expression
from dagpu.ops.creation import full

_DERIVATIVES: Final[dict[Any, TracedDerivative | None]] = {}
_EXPRESSIONS: Final[dict[Any, Expression[..., Any]]] = {}


def derivative_of(
    traced: TracedExpression, by: int, *, of_result: bool = False, numbers: frozenset[int] = frozenset()
) -> TracedDerivative | None:
    """Return the derivative of an expression, made once for all expressions that compute the same. `numbers` are the
    parameters for which the call has numbers."""
    key = traced_key(traced), by, of_result, numbers
    if key not in _DERIVATIVES:
        _DERIVATIVES[key] = traced_derivative(traced, by, of_result=of_result, numbers=numbers)
    return _DERIVATIVES[key]


def expression_of(traced: TracedExpression) -> Expression[..., Any]:
    key = traced_key(traced)
    if key not in _EXPRESSIONS:
        _EXPRESSIONS[key] = Expression(traced, (expression_of.__code__, 0))
    return _EXPRESSIONS[key]


# ---- one argument
def gradients_of_expression(
    traced: TracedExpression, names: Sequence[str], back: CallBack, g: Cotangent, *, has_result: bool
) -> Steps:
    """Return the gradients of the arguments of an expression, by their names. `g` is that of its elements, before any
    reduction. With `has_result` the result of the call is those elements, and a rule may read it."""
    found: dict[str, Any] = {}
    for by, name in enumerate(names):
        if back.needs(name):
            found[name] = yield from _gradient(traced, names, by, back, g, has_result)
    return found


def _gradient(
    traced: TracedExpression, names: Sequence[str], by: int, back: CallBack, g: Cotangent, has_result: bool
) -> Steps:
    numbers = frozenset([n for n, name in enumerate(names) if not back.is_tensor(name)])
    made = derivative_of(traced, by, numbers=numbers)
    if made is None:
        return None
    other = derivative_of(traced, by, of_result=True, numbers=numbers) if has_result else None
    if other is not None and _cost(other, names, back) <= _cost(made, names, back):
        made = other
    given: list[Any] = [
        g.value if read == "g" else back.y if read == "y" else back.read(names[int(read)]) for read in made.reads
    ]
    target = back.shape(names[by])
    steps = made.traced.steps
    if len(steps) == 1 and made.reads == ("g",):
        return (yield from summed_to(g, target))
    if not any(type(each) in HANDLES for each in given):
        first = made.reads.index("g") if "g" in made.reads else 0
        given[first] = yield full((), float(given[first]), made.traced.dtypes[first].type)
    rank = len(g.shape)
    covered = np.broadcast_shapes(*[each.shape for each in given if type(each) in HANDLES])
    lead, expression = rank - len(target), expression_of(made.traced)
    axes = [a for a, n in enumerate(g.shape) if a < lead or (target[a - lead] == 1 and n != 1)]
    own = (1,) * (rank - len(covered)) + covered
    over = tuple([a - rank + len(covered) for a in axes if own[a] != 1])
    if over:
        summed = yield expression.sum(over, keepdims=True)(*given)
        kept = tuple([1 if a in axes else n for a, n in enumerate(own)])
        many = prod([g.shape[a] for a in axes if own[a] == 1])
        whole: Shape = tuple([1 if a in axes else n for a, n in enumerate(g.shape)])
        part = yield from scaled(Cotangent(summed.reshape(kept), whole, made.traced.dtype), float(many))
        return (yield from seen_as(part, target))
    elements = yield expression(*given)
    return (yield from summed_to(Cotangent(elements, g.shape, made.traced.dtype), target))


def _cost(made: TracedDerivative, names: Sequence[str], back: CallBack) -> float:
    """Return the bytes that a form of a derivative reads beside `g` and that the trace would keep for it alone."""
    return sum([back.kept_bytes("y" if read == "y" else names[int(read)]) for read in made.reads if read != "g"])


# ---- calls
def _of_expression(back: CallBack) -> Steps:
    traced = back.function.traced
    names = [str(n) for n in range(len(traced.names))]
    return (yield from gradients_of_expression(traced, names, back, back.g, has_result=True))


def _of_written(back: CallBack) -> Steps:
    """The rule of `into` and `update`: argument 0 is the output, which `update` reads too."""
    traced, updates = back.function.expression.traced, back.function.updates
    names = [str(n) for n in range(not updates, len(traced.names) + (not updates))]
    return (yield from gradients_of_expression(traced, names, back, back.g, has_result=True))


def _of_reduced(back: CallBack) -> Steps:
    call = back.function.made_of
    traced, name = call.expression.traced, call.name
    names = [str(n) for n in range(len(traced.names))]
    whole = np.broadcast_shapes(*[back.shape(each) for each in names if back.is_tensor(each)])
    if name == "softmax":
        g = yield from of_softmax(back.y, back.g, call.axis % len(whole))
        return (yield from gradients_of_expression(traced, names, back, g, has_result=False))

    def elements() -> Steps:
        return (yield call.expression(*[back.read(each) for each in names]))

    g = yield from reduction_gradient(name, elements, lambda: back.y, back.g, whole, call.axis)
    return (yield from gradients_of_expression(traced, names, back, g, has_result=False))


# ---- functions of arrays
ELEMENTWISE: Final = (
    "abs", "acos", "acosh", "angle", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "clip", "conj", "copysign",
    "cos", "cosh", "erf", "exp", "expm1", "floor", "hypot", "imag", "log", "log1p", "log2", "log10", "logaddexp",
    "maximum", "minimum", "positive", "pow", "real", "rint", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
    "where",
)  # fmt: skip
"""The functions of arrays that are functions of elements too: their rules follow from what they do with elements."""


@cache
def _of_elements(name: str, dropped: tuple[bool, ...], *dtypes: "np.dtype[Any]") -> Expression[..., Any]:
    function: Any = getattr(array, name)

    def called(*elements: Any) -> Any:
        rest = iter(elements)
        return function(*[None if gone else next(rest) for gone in dropped])

    formals: dict[int, Callable[..., Any]] = {
        1: lambda x: called(x),  # noqa: PLW0108  # reason: the number of parameters is that of the tensors
        2: lambda a, b: called(a, b),  # noqa: PLW0108  # reason: the same
        3: lambda a, b, c: called(a, b, c),  # noqa: PLW0108  # reason: the same
    }
    return Expression(trace_expression(formals[len(dtypes)], dtypes).named(name), (_elementwise.__code__, 0))


def _elementwise(back: CallBack) -> Steps:
    arguments, name = back.call.arguments, back.function.__name__
    dropped = tuple([each is None for each in arguments.values()])
    names = [each for each, given in arguments.items() if given is not None]
    dtype = back.call.results[0].layout.dtype
    dtypes = [back.layout(each).dtype if type(arguments[each]) is Place else dtype for each in names]
    traced = _of_elements(name, dropped, *dtypes).traced
    return (yield from gradients_of_expression(traced, names, back, back.g, has_result=True))


RULES.update({"expression": _of_expression, "written": _of_written, "reduced": _of_reduced})
RULES.update(dict.fromkeys(ELEMENTWISE, _elementwise))
OF_COMPLEX.update({"expression", "written", *ELEMENTWISE})
