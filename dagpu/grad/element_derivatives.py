"""Derivatives of expressions: from the elements that a function makes to those of its derivative.

An adjoint flows from the result back to the parameter, by the rule of each operation. It is kept apart for each branch
of a `where` that it has come through, and the choice is made last: what a branch that is not taken would divide by is
then never in the result, so `where(x > 0, log(x), 0)` has the derivative 0 at 0, and not NaN.

The gradient of a real value by a complex z = x + iy is d/dx + i d/dy, the direction in which it grows. Within this
module adjoints are the conjugates of that, d/dx - i d/dy: a function with a complex derivative then has the rule that
it has for real numbers, and `conj`, `real`, `imag`, `abs` and `angle` have their own.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from functools import reduce, wraps
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, overload

import numpy as np

from dagpu.common.errors import GradientError, KernelArgumentError
from dagpu.common.layout import COMPLEX, FLOATING, bf16, f16, f32, f64
from dagpu.common.places import describe, here, leaves_run
from dagpu.common.wrong_arguments import as_whole_number, format_value
from dagpu.kernels.element import (
    Elem,
    Parameter,
    TracedExpression,
    constant,
    dtype_of,
    number_steps,
    operands_of,
    operate,
    operation_of,
    value_of,
)
from dagpu.kernels.operations import OPERATIONS

_F = TypeVar("_F", f16, bf16, f32, f64)

FLAT: Final = frozenset(
    ("floor_divide", "floor", "ceil", "rint", "trunc", "sign", "less", "less_equal", "greater", "greater_equal",
     "equal", "not_equal", "isnan", "isfinite", "isinf", "signbit", "bitwise_and", "bitwise_or", "bitwise_xor",
     "invert", "left_shift", "right_shift")
)  # fmt: skip
"""The operations whose derivative is 0 wherever there is one."""
WITHOUT: Final = frozenset(("nextafter",))
"""The operations that have no derivative: an expression with one of them is refused."""

Operands: TypeAlias = Sequence[Elem[Any]]
Contribution: TypeAlias = "Elem[Any] | None"
"""What an operation adds to the adjoint of an operand; None for nothing."""


# ---- numbers
def _number(value: float, like: Elem[Any]) -> Elem[Any]:
    return constant(value, dtype_of(like), "derivative")


def _is_number(e: Elem[Any], value: float | None = None) -> bool:
    return operation_of(e) == "constant" and (value is None or value_of(e) == value)


def _is_one_number(e: Elem[Any]) -> bool:
    """True for a constant, and for a parameter for which a call has passed a number."""
    return _is_number(e) or (isinstance(value_of(e), Parameter) and value_of(e).is_number)


def _times(a: Elem[Any], b: Elem[Any]) -> Elem[Any]:
    return b if _is_number(a, 1) else a if _is_number(b, 1) else operate("multiply", a, b)


def _plus(a: Elem[Any], b: Elem[Any]) -> Elem[Any]:
    return b if _is_number(a, 0) else a if _is_number(b, 0) else operate("add", a, b)


def _minus(a: Elem[Any]) -> Elem[Any]:
    return operands_of(a)[0] if operation_of(a) == "negative" else operate("negative", a)


def _choose(condition: Elem[Any], a: Any, b: Any) -> Elem[Any]:
    """Return a `where`; a number among the choices is 0 or another one of the type of the other choice."""
    like = a if isinstance(a, Elem) else b
    first, second = [x if isinstance(x, Elem) else _number(x, like) for x in (a, b)]
    return Elem("where", dtype_of(like), (condition, first, second))


# ---- rules
def _extremum(test: str, x: Sequence[Elem[Any]], of: Elem[Any] | None, g: Elem[Any]) -> list[Contribution]:
    """Return the contributions of a minimum or maximum. At a number the slope is 0, as of relu at 0; two elements that
    are equal share it. `of` is the result, if the rule is to read that in place of the operand."""
    if _is_one_number(x[0]) != _is_one_number(x[1]):
        k = 1 if _is_one_number(x[0]) else 0
        kept = _choose(operate(test, x[k] if of is None else of, x[1 - k]), g, 0.0)
        return [None, kept] if k else [kept, None]
    half, tie = _times(g, _number(0.5, g)), operate("equal", x[0], x[1])
    return [
        _choose(tie, half, _choose(operate(test, x[k], x[1 - k]), g, 0.0))
        for k in (0, 1)
    ]  # fmt: skip


def _over(a: Elem[Any], b: Elem[Any]) -> Elem[Any]:
    return operate("divide", a, b)


def _one_less(a: Elem[Any]) -> Elem[Any]:
    return operate("subtract", 1, a)


def _root(a: Elem[Any]) -> Elem[Any]:
    return operate("sqrt", a)


def _square(a: Elem[Any]) -> Elem[Any]:
    return _times(a, a)


def _one_more(a: Elem[Any]) -> Elem[Any]:
    return operate("add", a, 1)


def _of_quotient(x: Operands, y: Elem[Any], g: Elem[Any]) -> list[Contribution]:
    quotient = _over(g, x[1])
    return [quotient, _minus(_times(quotient, y))]


def _of_power(x: Operands, y: Elem[Any], g: Elem[Any]) -> list[Contribution]:
    """The power 0 is 1 everywhere, so its slope by the base is 0, at 0 too, where the formula has 0 times infinity."""
    by_exponent = _times(_times(g, y), operate("log", x[0]))
    kept = _choose(operate("equal", x[0], 0), 0.0, by_exponent)
    if _is_number(x[1], 0):
        return [None, kept]
    by_base = _times(_times(g, x[1]), operate("power", x[0], operate("subtract", x[1], 1)))
    return [by_base if _is_number(x[1]) else _choose(operate("equal", x[1], 0), 0.0, by_base), kept]


def conjugate(a: Elem[Any]) -> Elem[Any]:
    """Return the conjugate; of a real element that one."""
    if dtype_of(a).kind != "c":
        return a
    return operands_of(a)[0] if operation_of(a) == "conj" else operate("conj", a)


def _cast(a: Elem[Any], dtype: "np.dtype[Any]") -> Elem[Any]:
    """Return an adjoint as that of an element of another type; of a real one it is real."""
    a = operate("real", a) if dtype_of(a).kind == "c" and dtype.kind != "c" else a
    return a if dtype_of(a) == dtype else Elem("cast", dtype, (a,))


def _of_complex_angle(x: Operands, _y: Elem[Any], g: Elem[Any]) -> list[Contribution]:
    squares = operate("add", _square(operate("real", x[0])), _square(operate("imag", x[0])))
    slope = _choose(operate("equal", squares, 0), 0.0, _over(g, squares))  # 0 at 0, as that of `abs`
    turned = _times(constant(-1j, dtype_of(x[0]), "derivative"), conjugate(x[0]))
    return [_times(_cast(slope, dtype_of(x[0])), turned)]


def _of_magnitude(x: Operands, y: Elem[Any], g: Elem[Any]) -> list[Contribution]:
    if dtype_of(x[0]).kind == "c":
        slope = _choose(operate("equal", y, 0), 0.0, _over(g, y))  # 0 at 0, as that of `hypot`
        return [_times(_cast(slope, dtype_of(x[0])), conjugate(x[0]))]
    below = _choose(operate("less", x[0], 0), _minus(g), 0.0)
    return [_choose(operate("greater", x[0], 0), g, below)]


def _of_angle(x: Operands, _y: Elem[Any], g: Elem[Any]) -> list[Contribution]:
    squares = operate("add", _square(x[0]), _square(x[1]))
    return [_over(_times(g, x[1]), squares), _minus(_over(_times(g, x[0]), squares))]


def _of_hypotenuse(x: Operands, y: Elem[Any], g: Elem[Any]) -> list[Contribution]:
    zero = operate("equal", y, 0)  # 0 at the origin, as that of a norm
    return [_choose(zero, 0.0, _over(_times(g, each), y)) for each in x]


def _of_sign(x: Operands, _y: Elem[Any], g: Elem[Any]) -> list[Contribution]:
    alike = operate("equal", operate("copysign", 1, x[0]), operate("copysign", 1, x[1]))
    return [_choose(alike, g, _minus(g)), None]


def _of_logarithm(x: Operands, base: int, g: Elem[Any]) -> Elem[Any]:
    return _over(g, _times(x[0], _number(math.log(base), g)))


def _of_erf(x: Operands, _y: Elem[Any], g: Elem[Any]) -> list[Contribution]:
    bell = operate("exp", _minus(_square(x[0])))
    return [_times(_times(g, _number(2 / math.sqrt(math.pi), g)), bell)]


RULES: Final[dict[str, Callable[[Operands, Elem[Any], Elem[Any]], list[Contribution]]]] = {
    "add": lambda x, y, g: [g, g],
    "subtract": lambda x, y, g: [g, _minus(g)],
    "multiply": lambda x, y, g: [_times(g, x[1]), _times(g, x[0])],
    "divide": _of_quotient,
    "remainder": lambda x, y, g: [g, _minus(_times(g, operate("floor_divide", x[0], x[1])))],
    "power": _of_power,
    "negative": lambda x, y, g: [_minus(g)],
    "positive": lambda x, y, g: [g],
    "absolute": _of_magnitude,
    "minimum": lambda x, y, g: _extremum("less", x, None, g),
    "maximum": lambda x, y, g: _extremum("greater", x, None, g),
    "sqrt": lambda x, y, g: [_over(_times(g, _number(0.5, g)), y)],
    "exp": lambda x, y, g: [_times(g, y)],
    "expm1": lambda x, y, g: [_times(g, _one_more(y))],
    "log": lambda x, y, g: [_over(g, x[0])],
    "log1p": lambda x, y, g: [_over(g, _one_more(x[0]))],
    "log2": lambda x, y, g: [_of_logarithm(x, 2, g)],
    "log10": lambda x, y, g: [_of_logarithm(x, 10, g)],
    "logaddexp": lambda x, y, g: [_times(g, operate("exp", operate("subtract", each, y))) for each in x],
    "sin": lambda x, y, g: [_times(g, operate("cos", x[0]))],
    "cos": lambda x, y, g: [_minus(_times(g, operate("sin", x[0])))],
    "tan": lambda x, y, g: [_times(g, _one_more(_square(y)))],
    "asin": lambda x, y, g: [_over(g, _root(_one_less(_square(x[0]))))],
    "acos": lambda x, y, g: [_minus(_over(g, _root(_one_less(_square(x[0])))))],
    "atan": lambda x, y, g: [_over(g, _one_more(_square(x[0])))],
    "atan2": _of_angle,
    "sinh": lambda x, y, g: [_times(g, operate("cosh", x[0]))],
    "cosh": lambda x, y, g: [_times(g, operate("sinh", x[0]))],
    "tanh": lambda x, y, g: [_times(g, _one_less(_square(y)))],
    "asinh": lambda x, y, g: [_over(g, _root(_one_more(_square(x[0]))))],
    "acosh": lambda x, y, g: [_over(g, _root(operate("subtract", _square(x[0]), 1)))],
    "atanh": lambda x, y, g: [_over(g, _one_less(_square(x[0])))],
    "hypot": _of_hypotenuse,
    "copysign": _of_sign,
    "erf": _of_erf,
    "cast": lambda x, y, g: [_cast(g, dtype_of(x[0]))],
    "conj": lambda x, y, g: [conjugate(g)],
    "real": lambda x, y, g: [_cast(g, dtype_of(x[0]))],
    "imag": lambda x, y, g: [_times(_cast(g, dtype_of(x[0])), constant(-1j, dtype_of(x[0]), "derivative"))],
    "angle": _of_complex_angle,
}
"""What an operation adds to the adjoint of each operand: of the operands, the result, and the adjoint of the result."""


def _contributions(operation: str, x: Operands, y: Elem[Any], g: Elem[Any]) -> list[Contribution]:
    if operation in WITHOUT:
        shown = OPERATIONS[operation].shown
        raise GradientError(f"{shown} has no derivative. Keep it out of what is differentiated: stop_gradient(x).")
    return [None] * len(x) if operation in FLAT else RULES[operation](x, y, g)


# ---- the reverse pass over elements
def adjoint_of(
    root: Elem[Any], params: Sequence[Elem[Any]], index: int, g: Elem[Any], result: Elem[Any] | None = None
) -> Elem[Any] | None:
    """Return `g` times the derivative of `root` by one of the elements that it is made of; None where that is 0
    everywhere. `g` and the result are conjugates of gradients, if they are complex. With `result`, an element that is
    equal to `root`, the rule of the last operation reads that.

    Raises:
        GradientError: an operation on the way has no derivative, or gives complex elements.
    """
    by, own = params[index], {id(each) for each in params}
    order = _in_order(root, own)
    depends = {id(by)}
    for each in order:
        operands = operands_of(each)[operation_of(each) == "where" :]
        flows = any(id(operand) in depends for operand in operands)
        varies = dtype_of(each) in FLOATING | COMPLEX and flows
        if varies and id(each) not in own and operation_of(each) not in FLAT:
            depends.add(id(each))
    if id(root) not in depends:
        return None
    # By the branches that an adjoint has come through: (the condition's number, condition, which branch).
    adjoints: dict[int, dict[tuple[Any, ...], Elem[Any]]] = {id(each): {} for each in order}
    adjoints[id(root)][()] = g
    for each in reversed(order):
        if id(each) not in depends or each is by:
            continue
        operands, operation = operands_of(each), operation_of(each)
        for guards, up in adjoints[id(each)].items():
            found: list[tuple[Elem[Any], tuple[Any, ...], Contribution]]
            if operation == "where":
                condition = operands[0]
                found = [
                    (operand, _guarded(guards, condition, branch), up)
                    for operand, branch in ((operands[1], True), (operands[2], False))
                ]
            else:
                y = result if each is root and result is not None else each
                parts = _by_result(operation, operands, y, up) if y is not each else None
                parts = parts or _contributions(operation, operands, y, up)
                found = [(operand, guards, part) for operand, part in zip(operands, parts, strict=True)]
            for operand, key, part in found:
                if part is not None and id(operand) in depends:
                    slot = adjoints[id(operand)]
                    slot[key] = _plus(slot[key], part) if key in slot else part
    total: Elem[Any] | None = None
    for guards, part in adjoints[id(by)].items():
        chosen = part
        for _, condition, branch in reversed(guards):
            chosen = _choose(condition, chosen, 0.0) if branch else _choose(condition, 0.0, chosen)
        total = chosen if total is None else _plus(total, chosen)
    return total


def _by_result(operation: str, x: Sequence[Elem[Any]], y: Elem[Any], g: Elem[Any]) -> list[Contribution] | None:
    """Return the contributions in terms of the result, where the rule has another form for that: relu by `y > 0`."""
    if operation in ("minimum", "maximum") and _is_one_number(x[0]) != _is_one_number(x[1]):
        return _extremum("greater" if operation == "maximum" else "less", x, y, g)
    return None


def _guarded(guards: tuple[Any, ...], condition: Elem[Any], branch: bool) -> tuple[Any, ...]:
    guard = _Guard(id(condition), condition, branch)
    return guards if guard in guards else (*guards, guard)


class _Guard(NamedTuple):
    number: int
    condition: Elem[Any]
    branch: bool

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Guard) and self.number == other.number and self.branch == other.branch

    def __hash__(self) -> int:
        return hash((self.number, self.branch))


def _in_order(root: Elem[Any], params: set[int]) -> list[Elem[Any]]:
    """List the elements of which `root` is made, each once and after its operands; parameters are made of nothing."""
    order: list[Elem[Any]] = []
    seen: set[int] = set()
    todo: list[tuple[Elem[Any], bool]] = [(root, False)]
    while todo:
        each, ready = todo.pop()
        if ready:
            order.append(each)
        elif id(each) not in seen:
            seen.add(id(each))
            todo.append((each, True))
            if id(each) not in params:
                todo += [(operand, False) for operand in reversed(operands_of(each))]
    return order


# ---- of an expression
class Form(NamedTuple):
    """A derivative of an expression by one of its parameters, as a kernel computes it.

    With `of_result` the rule of the last operation reads the result, in place of computing it again.
    """

    by: int
    of_result: bool = False


class TracedDerivative(NamedTuple):
    """Derivatives of an expression, as an expression of those values that they read.

    `reads` says for each of its parameters what that is: the number of an argument of the expression, "y0" for its
    result number 0, or "g0" for what comes in for that.
    """

    traced: TracedExpression
    reads: tuple[int | str, ...]


def traced_derivative(
    traced: TracedExpression,
    forms: Sequence[Form],
    incoming: Sequence[int] = (0,),
    numbers: AbstractSet[int] = frozenset(),
) -> TracedDerivative | None:
    """Return the gradients by some parameters, element by element, as the results of one expression; None if one of
    them is 0 everywhere. `incoming` are the numbers of the results for which a gradient comes in, and `numbers` the
    parameters for which the call has numbers.

    Raises:
        GradientError: an operation on the way has no derivative.
    """
    trace, count = object(), len(traced.names)
    made = traced.result_dtypes
    dtypes = (*traced.dtypes, *made, *made)
    params = [Elem[Any]("parameter", dtype, (), Parameter(i, trace, i in numbers)) for i, dtype in enumerate(dtypes)]
    roots, ys, gs = applied(traced, params), params[count : count + len(made)], params[count + len(made) :]
    found: list[Elem[Any]] = []
    for form in forms:
        try:
            parts = [
                adjoint_of(roots[n], params[:count], form.by, conjugate(gs[n]), ys[n] if form.of_result else None)
                for n in incoming
                if {traced.dtypes[form.by], made[n]} <= FLOATING | COMPLEX
            ]
        except GradientError as error:
            raise GradientError(f"{traced.title} at {traced.place}: {error}") from None
        kept = [part for part in parts if part is not None]
        if not kept:
            return None
        found.append(conjugate(reduce(_plus, kept)))
    several = range(len(made))
    told = [*[f"y{n}" for n in several], *[f"g{n}" for n in several]]
    shown = [_fresh(each if len(made) > 1 else each[0], traced.names) for each in told]
    names = [*traced.names, *shown]
    name = f"d_{traced.name}" + (f"_{traced.names[forms[0].by]}" if len(forms) == 1 else "")
    steps, results = number_steps(found, trace, name, traced.place)
    used = sorted({step.value for step in steps if step.operation == "parameter"})
    place = {number: at for at, number in enumerate(used)}
    moved = tuple([s._replace(value=place[s.value]) if s.operation == "parameter" else s for s in steps])
    reads: list[int | str] = [number if number < count else told[number - count] for number in used]
    expression = TracedExpression(
        name,
        tuple([names[n] for n in used]),
        tuple([dtypes[n] for n in used]),
        moved,
        traced.place,
        False,
        results if len(forms) > 1 else (-1,),
    )
    return TracedDerivative(expression, tuple(reads))


def applied(traced: TracedExpression, elements: Sequence[Elem[Any]]) -> list[Elem[Any]]:
    """Return the elements that an expression makes of others: its results."""
    made: list[Elem[Any]] = []
    for step in traced.steps:
        operands = tuple([made[number] for number in step.operands])
        is_parameter = step.operation == "parameter"
        made.append(elements[step.value] if is_parameter else Elem(step.operation, step.dtype, operands, step.value))
    return [made[number] for number in traced.results]


def _fresh(name: str, taken: Sequence[str]) -> str:
    while name in taken:
        name += "_"
    return name


def traced_key(traced: TracedExpression) -> object:
    """Return what two expressions have in common that compute the same of parameters of the same types."""
    values = [s.value.tobytes() if isinstance(s.value, np.generic) else s.value for s in traced.steps]
    steps = [(s.operation, s.dtype.str, s.operands) for s in traced.steps]
    return traced.dtypes, traced.results, tuple(zip(steps, values, strict=True))


# ---- of a function of elements
@overload
def derivative(e: Callable[[Elem[_F]], Elem[_F]], /) -> Callable[[Elem[_F]], Elem[_F]]: ...
@overload
def derivative(
    e: Callable[[Elem[_F], Elem[_F]], Elem[_F]], by: int = ..., /
) -> Callable[[Elem[_F], Elem[_F]], Elem[_F]]: ...
@leaves_run
def derivative(e: Any, by: int = 0, /) -> Any:
    """Return the derivative of a function of elements by one of its parameters, as a function of the same elements.

    For kernels of one's own: `slope = expr(f32)(derivative(lambda x: x * array.sin(x)))`. It may be applied again, and
    called in another function of elements. Parts of the function that the derivative needs too are computed once. A
    branch of a `where` that is not taken gives 0. Where a function has a corner the result is 0 at a number
    (`maximum(x, 0)` at 0), and half of each side where two elements meet.

    Args:
        e: a function of elements, as `expr` takes it: not an expression, but the function that one is made of.
        by: the number of the parameter, from 0.

    Raises:
        GradientError: an operation of the function has no derivative. It is raised by the call of the result.
        KernelArgumentError: `e` is not a function, or it has no such parameter.
    """
    origin = here()
    if not inspect.isfunction(e):
        raise KernelArgumentError(
            f"derivative at {describe(origin)} is applied to {format_value(e)}. Apply it to a plain function of "
            "elements, def or lambda: expr(f32)(derivative(f))."
        )
    count = len(inspect.signature(e).parameters)
    index = as_whole_number(by)
    if index is None or not 0 <= index < count:
        raise KernelArgumentError(
            f"derivative at {describe(origin)}: by is {format_value(by)}, but {e.__name__} has {count} parameters. "
            f"Give the number of one, from 0 to {count - 1}."
        )

    @wraps(e)
    def slope(*elements: Elem[Any]) -> Elem[Any]:
        # An element that is passed twice is two parameters.
        first = {id(x): n for n, x in reversed(list(enumerate(elements)))}
        own = [x if first[id(x)] == n else operate("positive", x) for n, x in enumerate(elements)]
        root = e(*own)
        if not isinstance(root, Elem) or dtype_of(root) not in FLOATING or dtype_of(own[index]) not in FLOATING:
            raise GradientError(
                f"derivative at {describe(origin)}: {e.__name__} gives {format_value(root)} of {own[index]!r}, but "
                "floats have derivatives. Convert them: x.to(f32)."
            )
        try:
            found = adjoint_of(root, own, index, constant(1, dtype_of(root), "derivative"))
        except GradientError as error:
            raise GradientError(f"derivative at {describe(origin)} of {e.__name__}: {error}") from None
        return constant(0, dtype_of(own[index]), "derivative") if found is None else found

    return slope
