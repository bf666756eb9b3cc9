"""`expr`: makes an `Expression` of a typed Python function of elements."""

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias, get_args, get_origin, get_type_hints, overload

import numpy as np
from typing_extensions import TypeVar

from dagpu.common.dtypes import scalar_dtype
from dagpu.common.errors import KernelArgumentError
from dagpu.common.origin import describe, here
from dagpu.common.tracebacks import leaves_run, scope_of_caller
from dagpu.common.wrong_arguments import format_value
from dagpu.kernels.decorator import DECLARED
from dagpu.kernels.expressions.element import Elem
from dagpu.kernels.expressions.expression import Argument, Expression
from dagpu.kernels.expressions.traced_expression import trace_expression

_A = TypeVar("_A", bound=np.generic)
_B = TypeVar("_B", bound=np.generic)
_C = TypeVar("_C", bound=np.generic)
_D = TypeVar("_D", bound=np.generic)
_E = TypeVar("_E", bound=np.generic)
_F = TypeVar("_F", bound=np.generic)
_G = TypeVar("_G", bound=np.generic)
_H = TypeVar("_H", bound=np.generic)
_R = TypeVar("_R", bound=np.generic)

Expr1: TypeAlias = Expression[[Argument[_A]], _R]
Expr2: TypeAlias = Expression[[Argument[_A], Argument[_B]], _R]
Expr3: TypeAlias = Expression[[Argument[_A], Argument[_B], Argument[_C]], _R]
Expr4: TypeAlias = Expression[[Argument[_A], Argument[_B], Argument[_C], Argument[_D]], _R]
Expr5: TypeAlias = Expression[[Argument[_A], Argument[_B], Argument[_C], Argument[_D], Argument[_E]], _R]
Expr6: TypeAlias = Expression[[Argument[_A], Argument[_B], Argument[_C], Argument[_D], Argument[_E], Argument[_F]], _R]
Expr7: TypeAlias = Expression[
    [Argument[_A], Argument[_B], Argument[_C], Argument[_D], Argument[_E], Argument[_F], Argument[_G]], _R
]
Expr8: TypeAlias = Expression[
    [Argument[_A], Argument[_B], Argument[_C], Argument[_D], Argument[_E], Argument[_F], Argument[_G], Argument[_H]], _R
]
"""Expressions of one to eight parameters: their element types, and that of the result."""


# In quotes: `import dagpu` does not evaluate these types.
@overload
def expr(a: type[_A], /) -> Callable[[Callable[[Elem[_A]], Elem[_R]]], "Expr1[_A, _R]"]: ...
@overload
def expr(a: type[_A], b: type[_B], /) -> Callable[[Callable[[Elem[_A], Elem[_B]], Elem[_R]]], "Expr2[_A, _B, _R]"]: ...
@overload
def expr(
    a: type[_A], b: type[_B], c: type[_C], /
) -> Callable[[Callable[[Elem[_A], Elem[_B], Elem[_C]], Elem[_R]]], "Expr3[_A, _B, _C, _R]"]: ...
@overload
def expr(
    a: type[_A], b: type[_B], c: type[_C], d: type[_D], /
) -> Callable[[Callable[[Elem[_A], Elem[_B], Elem[_C], Elem[_D]], Elem[_R]]], "Expr4[_A, _B, _C, _D, _R]"]: ...
@overload
def expr(
    a: type[_A], b: type[_B], c: type[_C], d: type[_D], e: type[_E], /
) -> Callable[
    [Callable[[Elem[_A], Elem[_B], Elem[_C], Elem[_D], Elem[_E]], Elem[_R]]], "Expr5[_A, _B, _C, _D, _E, _R]"
]: ...
@overload
def expr(
    a: type[_A], b: type[_B], c: type[_C], d: type[_D], e: type[_E], f: type[_F], /
) -> Callable[
    [Callable[[Elem[_A], Elem[_B], Elem[_C], Elem[_D], Elem[_E], Elem[_F]], Elem[_R]]],
    "Expr6[_A, _B, _C, _D, _E, _F, _R]",
]: ...
@overload
def expr(
    a: type[_A], b: type[_B], c: type[_C], d: type[_D], e: type[_E], f: type[_F], g: type[_G], /
) -> Callable[
    [Callable[[Elem[_A], Elem[_B], Elem[_C], Elem[_D], Elem[_E], Elem[_F], Elem[_G]], Elem[_R]]],
    "Expr7[_A, _B, _C, _D, _E, _F, _G, _R]",
]: ...
@overload
def expr(
    a: type[_A], b: type[_B], c: type[_C], d: type[_D], e: type[_E], f: type[_F], g: type[_G], h: type[_H], /
) -> Callable[
    [Callable[[Elem[_A], Elem[_B], Elem[_C], Elem[_D], Elem[_E], Elem[_F], Elem[_G], Elem[_H]], Elem[_R]]],
    "Expr8[_A, _B, _C, _D, _E, _F, _G, _H, _R]",
]: ...
@overload
def expr(function: Callable[[Elem[_A]], Elem[_R]], /) -> "Expr1[_A, _R]": ...
@overload
def expr(function: Callable[[Elem[_A], Elem[_B]], Elem[_R]], /) -> "Expr2[_A, _B, _R]": ...
@overload
def expr(function: Callable[[Elem[_A], Elem[_B], Elem[_C]], Elem[_R]], /) -> "Expr3[_A, _B, _C, _R]": ...
@overload
def expr(function: Callable[[Elem[_A], Elem[_B], Elem[_C], Elem[_D]], Elem[_R]], /) -> "Expr4[_A, _B, _C, _D, _R]": ...
@overload
def expr(
    function: Callable[[Elem[_A], Elem[_B], Elem[_C], Elem[_D], Elem[_E]], Elem[_R]], /
) -> "Expr5[_A, _B, _C, _D, _E, _R]": ...
@overload
def expr(
    function: Callable[[Elem[_A], Elem[_B], Elem[_C], Elem[_D], Elem[_E], Elem[_F]], Elem[_R]], /
) -> "Expr6[_A, _B, _C, _D, _E, _F, _R]": ...
@overload
def expr(
    function: Callable[[Elem[_A], Elem[_B], Elem[_C], Elem[_D], Elem[_E], Elem[_F], Elem[_G]], Elem[_R]], /
) -> "Expr7[_A, _B, _C, _D, _E, _F, _G, _R]": ...
@overload
def expr(
    function: Callable[[Elem[_A], Elem[_B], Elem[_C], Elem[_D], Elem[_E], Elem[_F], Elem[_G], Elem[_H]], Elem[_R]], /
) -> "Expr8[_A, _B, _C, _D, _E, _F, _G, _H, _R]": ...
@leaves_run
def expr(*types_or_function: Any) -> Any:
    """Make an element-wise function of tensors from a Python function of elements (`Elem`).

    For example::

        gelu = expr(f32)(lambda x: x / (1 + array.exp(-1.702 * x)))

        @expr
        def blend(x: Elem[f32], y: Elem[f32], a: Elem[f32]) -> Elem[f32]:
            return array.where(x > y, a * x, y)

    The function is called once, here, with an `Elem` for each parameter. What it computes becomes one CUDA kernel and
    its NumPy twin; parts that are used twice are computed once. Numbers from outside the function are constants.

    Args:
        types_or_function: the element types of the parameters, or the function itself with annotations `Elem[...]`.

    Raises:
        KernelArgumentError: an argument is neither, or an annotation is no `Elem[...]`.
        TypeError: an operation of the function has operands of different types, or of a type that it does not accept.
    """
    origin = here()
    if len(types_or_function) == 1 and inspect.isfunction(types_or_function[0]):
        function = types_or_function[0]
        return _make(function, _annotated(function, scope_of_caller()))
    dtypes = [scalar_dtype(t) for t in types_or_function]
    if not dtypes or any(dtype is None for dtype in dtypes):  # numpy.dtype("float64") == None
        given = ", ".join(map(format_value, types_or_function)) or "nothing"
        raise KernelArgumentError(
            f"expr at {describe(origin)}: got {given}, but an element type for each parameter is wanted. Write "
            "expr(f32, f32), or @expr over a function with annotations such as x: Elem[f32]."
        )

    @leaves_run
    def decorate(function: Any) -> Expression[..., Any]:
        if not inspect.isfunction(function):
            raise KernelArgumentError(
                f"expr at {describe(here())} is applied to {format_value(function)}. Apply it to a plain function: def "
                "or lambda."
            )
        return _make(function, dtypes)

    return decorate


def _make(function: Callable[..., Any], dtypes: list[Any]) -> Expression[..., Any]:
    made: Expression[..., Any] = Expression(trace_expression(function, dtypes), (function.__code__, 0))
    DECLARED.add(made)
    return made


def _annotated(function: Callable[..., Any], local_names: dict[str, Any]) -> list[Any]:
    """Return the element types that the annotations of a function's parameters say."""
    try:
        hints = get_type_hints(function, None, local_names)
    except Exception:  # a text annotation is code, and may raise anything
        hints = {}
    dtypes: list[Any] = []
    for name in inspect.signature(function).parameters:
        hint = hints.get(name)
        element = get_args(hint)[0] if get_origin(hint) is Elem else None
        dtype = scalar_dtype(element)
        if dtype is None:
            raise KernelArgumentError(
                f"expr: parameter {name!r} of {function.__name__} at {describe((function.__code__, 0))} is not "
                "annotated with an element type. Write x: Elem[f32], or name the types: expr(f32, f32)."
            )
        dtypes.append(dtype)
    return dtypes
