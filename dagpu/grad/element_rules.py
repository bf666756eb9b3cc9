"""The rules of expressions, of reductions of expressions, and of the element-wise functions of arrays."""

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np

from dagpu import arrays as array
from dagpu.common.layout import Shape
from dagpu.grad.cotangents import Cotangent, Steps, scaled, seen_as, summed_to
from dagpu.grad.element_derivatives import Form, TracedDerivative, traced_derivative, traced_key
from dagpu.grad.record import Place
from dagpu.grad.reduction_rules import of_softmax, reduction_gradient
from dagpu.grad.reverse import OF_COMPLEX, RULES, CallBack
from dagpu.handles import HANDLES
from dagpu.kernels.element import TracedExpression, trace_expression
from dagpu.kernels.expression import Expression, expression_of_steps
from dagpu.ops.creation import full

_DERIVATIVES: Final[dict[Any, TracedDerivative | None]] = {}
_EXPRESSIONS: Final[dict[Any, Any]] = {}


def derivative_of(
    traced: TracedExpression,
    forms: tuple[Form, ...],
    incoming: tuple[int, ...] = (0,),
    numbers: frozenset[int] = frozenset(),
) -> TracedDerivative | None:
    """Return derivatives of an expression, made once for all expressions that compute the same. See
    `traced_derivative`."""
    key = traced_key(traced), forms, incoming, numbers
    if key not in _DERIVATIVES:
        _DERIVATIVES[key] = traced_derivative(traced, forms, incoming, numbers)
    return _DERIVATIVES[key]


def expression_of(traced: TracedExpression) -> Any:
    """Return the expression of steps, made once for all that are alike."""
    key = traced_key(traced)
    if key not in _EXPRESSIONS:
        _EXPRESSIONS[key] = expression_of_steps(traced, (expression_of.__code__, 0))
    return _EXPRESSIONS[key]


# ---- the arguments of an expression
class _Slope(NamedTuple):
    """The gradient of one argument, element by element, before it is summed to the argument's shape."""

    name: str
    form: Form
    made: TracedDerivative
    given: list[Any]
    covered: Shape
    """The shape of what the kernel computes; the gradient is the same along the other axes."""


def gradients_of_expression(
    traced: TracedExpression,
    names: Sequence[str],
    back: CallBack,
    gs: "Sequence[Cotangent | None]",
    *,
    has_result: bool,
) -> Steps:
    """Return the gradients of the arguments of an expression, by their names. `gs` are those of its elements, one for
    each result, before any reduction. With `has_result` the results of the call are those elements, and a rule may read
    them.

    One kernel computes the gradients of all arguments that are not summed over axes.
    """
    numbers = frozenset([n for n, name in enumerate(names) if not back.is_tensor(name)])
    incoming = tuple([n for n, g in enumerate(gs) if g is not None])
    shape = next(g.shape for g in gs if g is not None)

    def value_of(read: int | str) -> Any:
        if isinstance(read, int):
            return back.read(names[read])
        g = gs[int(read[1:])]
        return back.result(int(read[1:])) if read[0] == "y" else None if g is None else g.value

    found: dict[str, Any] = {}
    together: dict[Shape, list[_Slope]] = {}
    for by, name in enumerate(names):
        form = _cheapest(traced, by, incoming, numbers, names, back, has_result) if back.needs(name) else None
        made = None if form is None else derivative_of(traced, (form,), incoming, numbers)
        if form is None or made is None:
            continue
        target, read = back.shape(name), made.reads
        only = gs[int(str(read[0])[1:])] if len(made.traced.steps) == 1 and str(read[0])[0] == "g" else None
        if only is not None:
            found[name] = yield from summed_to(only, target)
            continue
        given = [value_of(each) for each in read]
        if not any(type(each) in HANDLES for each in given):
            first = next((n for n, each in enumerate(read) if str(each)[0] == "g"), 0)
            given[first] = yield full((), float(given[first]), made.traced.dtypes[first].type)
        slope = _Slope(name, form, made, given, np.broadcast_shapes(*[x.shape for x in given if type(x) in HANDLES]))
        if _summed_axes(slope.covered, shape, target):
            found[name] = yield from _summed(slope, shape, target)
        else:
            together.setdefault(slope.covered, []).append(slope)
    for slopes in together.values():
        forms = tuple([each.form for each in slopes])
        made = slopes[0].made if len(slopes) == 1 else derivative_of(traced, forms, incoming, numbers)
        assert made is not None
        given = slopes[0].given if len(slopes) == 1 else [value_of(each) for each in made.reads]
        elements = yield expression_of(made.traced)(*given)
        parts = elements if len(slopes) > 1 else (elements,)
        for each, part in zip(slopes, parts, strict=True):
            whole = Cotangent(part, shape, each.made.traced.dtype)
            found[each.name] = yield from summed_to(whole, back.shape(each.name))
    return found


def _cheapest(
    traced: TracedExpression,
    by: int,
    incoming: tuple[int, ...],
    numbers: frozenset[int],
    names: Sequence[str],
    back: CallBack,
    has_result: bool,
) -> Form | None:
    """Return the form of a derivative that keeps the fewest bytes in memory for it alone; None where it is 0."""
    forms = [Form(by, True), Form(by)] if has_result else [Form(by)]
    costs: list[float] = []
    for form in forms:
        made = derivative_of(traced, (form,), incoming, numbers)
        if made is None:
            return None
        kept = [each for each in made.reads if str(each)[0] != "g"]
        bytes_of_results = [back.kept_bytes_of_result(int(each[1:])) for each in kept if isinstance(each, str)]
        costs.append(sum(bytes_of_results) + sum([back.kept_bytes(names[n]) for n in kept if isinstance(n, int)]))
    return forms[costs.index(min(costs))]


def _summed_axes(covered: Shape, shape: Shape, target: Shape) -> tuple[int, ...]:
    """Return the axes of what a kernel computes over which it is summed, for an argument of the shape `target` that was
    broadcast to `shape`."""
    lead, missing = len(shape) - len(target), len(shape) - len(covered)
    axes = [a for a, n in enumerate(shape) if a < lead or (target[a - lead] == 1 and n != 1)]
    return tuple([a - missing for a in axes if a >= missing and covered[a - missing] != 1])


def _summed(slope: _Slope, shape: Shape, target: Shape) -> Steps:
    """Return a gradient that the kernel which computes its elements sums."""
    lead, made = len(shape) - len(target), slope.made
    axes = [a for a, n in enumerate(shape) if a < lead or (target[a - lead] == 1 and n != 1)]
    own = (1,) * (len(shape) - len(slope.covered)) + slope.covered
    over = _summed_axes(slope.covered, shape, target)
    summed = yield expression_of(made.traced).sum(over, keepdims=True)(*slope.given)
    kept = tuple([1 if a in axes else n for a, n in enumerate(own)])
    many = prod([shape[a] for a in axes if own[a] == 1])
    whole: Shape = tuple([1 if a in axes else n for a, n in enumerate(shape)])
    part = yield from scaled(Cotangent(summed.reshape(kept), whole, made.traced.dtype), float(many))
    return (yield from seen_as(part, target))


# ---- calls
def _of_expression(back: CallBack) -> Steps:
    traced = back.function.traced
    names = [str(n) for n in range(len(traced.names))]
    return (yield from gradients_of_expression(traced, names, back, back.gs, has_result=True))


def _of_written(back: CallBack) -> Steps:
    """The rule of `into` and `update`: the first arguments are the outputs, which `update` reads too."""
    traced, updates = back.function.expression.traced, back.function.updates
    names = [str(n) for n in range(not updates, len(traced.names) + (not updates))]
    return (yield from gradients_of_expression(traced, names, back, back.gs, has_result=True))


def _of_reduced(back: CallBack) -> Steps:
    call = back.function.made_of
    traced, name = call.expression.traced, call.name
    names = [str(n) for n in range(len(traced.names))]
    whole = np.broadcast_shapes(*[back.shape(each) for each in names if back.is_tensor(each)])
    if name == "softmax":
        g = yield from of_softmax(back.y, back.g, call.axis % len(whole))
        return (yield from gradients_of_expression(traced, names, back, [g], has_result=False))

    def elements() -> Steps:
        return (yield call.expression(*[back.read(each) for each in names]))

    g = yield from reduction_gradient(name, elements, lambda: back.y, back.g, whole, call.axis)
    return (yield from gradients_of_expression(traced, names, back, [g], has_result=False))


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
    return (yield from gradients_of_expression(traced, names, back, back.gs, has_result=True))


RULES.update({"expression": _of_expression, "written": _of_written, "reduced": _of_reduced})
RULES.update(dict.fromkeys(ELEMENTWISE, _elementwise))
OF_COMPLEX.update({"expression", "written", *ELEMENTWISE})
