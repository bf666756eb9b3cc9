"""`expr`: makes an `Expression`, or a `TupleExpression`, of a typed Python function of elements."""

import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeAlias, get_args, get_origin, get_type_hints, overload

import numpy as np
from typing_extensions import TypeVar

from dagpu.common.errors import KernelArgumentError
from dagpu.common.layout import scalar_dtype
from dagpu.common.places import describe, here, leaves_run, scope_of_caller
from dagpu.common.wrong_arguments import format_value
from dagpu.handles import Tensor
from dagpu.kernels.decorator import DECLARED
from dagpu.kernels.element import Elem, declared_at, trace_expression
from dagpu.kernels.expression import AnyExpression, Argument, Expression, TupleExpression, expression_of_steps

_P = ParamSpec("_P")
_Q = ParamSpec("_Q")
_T = TypeVar("_T")
_R = TypeVar("_R", bound=np.generic)
_R2 = TypeVar("_R2", bound=np.generic)
_R3 = TypeVar("_R3", bound=np.generic)
_R4 = TypeVar("_R4", bound=np.generic)
_A = TypeVar("_A", bound=np.generic)
_B = TypeVar("_B", bound=np.generic)
_C = TypeVar("_C", bound=np.generic)
_D = TypeVar("_D", bound=np.generic)
_E = TypeVar("_E", bound=np.generic)
_X = TypeVar("_X", bound=np.generic)
_G = TypeVar("_G", bound=np.generic)
_H = TypeVar("_H", bound=np.generic)

Expr1: TypeAlias = Expression[[Argument[_A]], _R]
Expr2: TypeAlias = Expression[[Argument[_A], Argument[_B]], _R]
Expr3: TypeAlias = Expression[[Argument[_A], Argument[_B], Argument[_C]], _R]
Expr4: TypeAlias = Expression[[Argument[_A], Argument[_B], Argument[_C], Argument[_D]], _R]
Expr5: TypeAlias = Expression[[Argument[_A], Argument[_B], Argument[_C], Argument[_D], Argument[_E]], _R]
Expr6: TypeAlias = Expression[[Argument[_A], Argument[_B], Argument[_C], Argument[_D], Argument[_E], Argument[_X]], _R]
Expr7: TypeAlias = Expression[
    [Argument[_A], Argument[_B], Argument[_C], Argument[_D], Argument[_E], Argument[_X], Argument[_G]], _R
]
Expr8: TypeAlias = Expression[
    [Argument[_A], Argument[_B], Argument[_C], Argument[_D], Argument[_E], Argument[_X], Argument[_G], Argument[_H]], _R
]
"""Expressions of one to eight parameters: their element types, and that of the result."""


class ExpressionDecorator(Protocol[_P, _Q]):
    """What `expr(f32, f32)` returns: it makes an expression of a function of elements, of one result or of several.

    The parameters of the function are `_P`, those of the expression are `_Q`.
    """

    @overload
    def __call__(self, function: Callable[_P, Elem[_R]], /) -> Expression[_Q, _R]: ...
    @overload
    def __call__(
        self, function: Callable[_P, tuple[Elem[_R], Elem[_R2]]], /
    ) -> TupleExpression[_Q, tuple[Tensor[_R], Tensor[_R2]]]: ...
    @overload
    def __call__(
        self, function: Callable[_P, tuple[Elem[_R], Elem[_R2], Elem[_R3]]], /
    ) -> TupleExpression[_Q, tuple[Tensor[_R], Tensor[_R2], Tensor[_R3]]]: ...
    @overload
    def __call__(
        self, function: Callable[_P, tuple[Elem[_R], Elem[_R2], Elem[_R3], Elem[_R4]]], /
    ) -> TupleExpression[_Q, tuple[Tensor[_R], Tensor[_R2], Tensor[_R3], Tensor[_R4]]]: ...


Two: TypeAlias = tuple[Tensor[_R], Tensor[_R2]]
Three: TypeAlias = tuple[Tensor[_R], Tensor[_R2], Tensor[_R3]]
Four: TypeAlias = tuple[Tensor[_R], Tensor[_R2], Tensor[_R3], Tensor[_R4]]
"""The results of an expression of several."""

Tuple1: TypeAlias = TupleExpression[[Argument[_A]], _T]
Tuple2: TypeAlias = TupleExpression[[Argument[_A], Argument[_B]], _T]
Tuple3: TypeAlias = TupleExpression[[Argument[_A], Argument[_B], Argument[_C]], _T]
Tuple4: TypeAlias = TupleExpression[[Argument[_A], Argument[_B], Argument[_C], Argument[_D]], _T]
Tuple5: TypeAlias = TupleExpression[[Argument[_A], Argument[_B], Argument[_C], Argument[_D], Argument[_E]], _T]
Tuple6: TypeAlias = TupleExpression[
    [Argument[_A], Argument[_B], Argument[_C], Argument[_D], Argument[_E], Argument[_X]], _T
]
Tuple7: TypeAlias = TupleExpression[
    [Argument[_A], Argument[_B], Argument[_C], Argument[_D], Argument[_E], Argument[_X], Argument[_G]], _T
]
Tuple8: TypeAlias = TupleExpression[
    [Argument[_A], Argument[_B], Argument[_C], Argument[_D], Argument[_E], Argument[_X], Argument[_G], Argument[_H]], _T
]
"""Expressions of one to eight parameters with several results."""

Of1: TypeAlias = ExpressionDecorator[[Elem[_A]], [Argument[_A]]]
Of2: TypeAlias = ExpressionDecorator[[Elem[_A], Elem[_B]], [Argument[_A], Argument[_B]]]
Of3: TypeAlias = ExpressionDecorator[[Elem[_A], Elem[_B], Elem[_C]], [Argument[_A], Argument[_B], Argument[_C]]]
Of4: TypeAlias = ExpressionDecorator[
    [Elem[_A], Elem[_B], Elem[_C], Elem[_D]], [Argument[_A], Argument[_B], Argument[_C], Argument[_D]]
]
Of5: TypeAlias = ExpressionDecorator[
    [Elem[_A], Elem[_B], Elem[_C], Elem[_D], Elem[_E]],
    [Argument[_A], Argument[_B], Argument[_C], Argument[_D], Argument[_E]],
]
Of6: TypeAlias = ExpressionDecorator[
    [Elem[_A], Elem[_B], Elem[_C], Elem[_D], Elem[_E], Elem[_X]],
    [Argument[_A], Argument[_B], Argument[_C], Argument[_D], Argument[_E], Argument[_X]],
]
Of7: TypeAlias = ExpressionDecorator[
    [Elem[_A], Elem[_B], Elem[_C], Elem[_D], Elem[_E], Elem[_X], Elem[_G]],
    [Argument[_A], Argument[_B], Argument[_C], Argument[_D], Argument[_E], Argument[_X], Argument[_G]],
]
Of8: TypeAlias = ExpressionDecorator[
    [Elem[_A], Elem[_B], Elem[_C], Elem[_D], Elem[_E], Elem[_X], Elem[_G], Elem[_H]],
    [Argument[_A], Argument[_B], Argument[_C], Argument[_D], Argument[_E], Argument[_X], Argument[_G], Argument[_H]],
]
"""What makes an expression of one to eight parameters."""


# In quotes: `import dagpu` does not evaluate these types.
@overload
def expr(a: type[_A], /) -> "Of1[_A]": ...
@overload
def expr(a: type[_A], b: type[_B], /) -> "Of2[_A, _B]": ...
@overload
def expr(a: type[_A], b: type[_B], c: type[_C], /) -> "Of3[_A, _B, _C]": ...
@overload
def expr(a: type[_A], b: type[_B], c: type[_C], d: type[_D], /) -> "Of4[_A, _B, _C, _D]": ...
@overload
def expr(a: type[_A], b: type[_B], c: type[_C], d: type[_D], e: type[_E], /) -> "Of5[_A, _B, _C, _D, _E]": ...
@overload
def expr(
    a: type[_A], b: type[_B], c: type[_C], d: type[_D], e: type[_E], f: type[_X], /
) -> "Of6[_A, _B, _C, _D, _E, _X]": ...
@overload
def expr(
    a: type[_A], b: type[_B], c: type[_C], d: type[_D], e: type[_E], f: type[_X], g: type[_G], /
) -> "Of7[_A, _B, _C, _D, _E, _X, _G]": ...
@overload
def expr(
    a: type[_A], b: type[_B], c: type[_C], d: type[_D], e: type[_E], f: type[_X], g: type[_G], h: type[_H], /
) -> "Of8[_A, _B, _C, _D, _E, _X, _G, _H]": ...
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
    function: Callable[[Elem[_A], Elem[_B], Elem[_C], Elem[_D], Elem[_E], Elem[_X]], Elem[_R]], /
) -> "Expr6[_A, _B, _C, _D, _E, _X, _R]": ...
@overload
def expr(
    function: Callable[[Elem[_A], Elem[_B], Elem[_C], Elem[_D], Elem[_E], Elem[_X], Elem[_G]], Elem[_R]], /
) -> "Expr7[_A, _B, _C, _D, _E, _X, _G, _R]": ...
@overload
def expr(
    function: Callable[[Elem[_A], Elem[_B], Elem[_C], Elem[_D], Elem[_E], Elem[_X], Elem[_G], Elem[_H]], Elem[_R]], /
) -> "Expr8[_A, _B, _C, _D, _E, _X, _G, _H, _R]": ...
@overload
def expr(function: Callable[[Elem[_A]], tuple[Elem[_R], Elem[_R2]]], /) -> "Tuple1[_A, Two[_R, _R2]]": ...
@overload
def expr(function: Callable[[Elem[_A], Elem[_B]], tuple[Elem[_R], Elem[_R2]]], /) -> "Tuple2[_A, _B, Two[_R, _R2]]": ...
@overload
def expr(
    function: Callable[[Elem[_A], Elem[_B], Elem[_C]], tuple[Elem[_R], Elem[_R2]]], /
) -> "Tuple3[_A, _B, _C, Two[_R, _R2]]": ...
@overload
def expr(
    function: Callable[[Elem[_A], Elem[_B], Elem[_C], Elem[_D]], tuple[Elem[_R], Elem[_R2]]], /
) -> "Tuple4[_A, _B, _C, _D, Two[_R, _R2]]": ...
@overload
def expr(
    function: Callable[[Elem[_A], Elem[_B], Elem[_C], Elem[_D], Elem[_E]], tuple[Elem[_R], Elem[_R2]]], /
) -> "Tuple5[_A, _B, _C, _D, _E, Two[_R, _R2]]": ...
@overload
def expr(
    function: Callable[[Elem[_A], Elem[_B], Elem[_C], Elem[_D], Elem[_E], Elem[_X]], tuple[Elem[_R], Elem[_R2]]], /
) -> "Tuple6[_A, _B, _C, _D, _E, _X, Two[_R, _R2]]": ...
@overload
def expr(
    function: Callable[
        [Elem[_A], Elem[_B], Elem[_C], Elem[_D], Elem[_E], Elem[_X], Elem[_G]], tuple[Elem[_R], Elem[_R2]]
    ],
    /,
) -> "Tuple7[_A, _B, _C, _D, _E, _X, _G, Two[_R, _R2]]": ...
@overload
def expr(
    function: Callable[
        [Elem[_A], Elem[_B], Elem[_C], Elem[_D], Elem[_E], Elem[_X], Elem[_G], Elem[_H]], tuple[Elem[_R], Elem[_R2]]
    ],
    /,
) -> "Tuple8[_A, _B, _C, _D, _E, _X, _G, _H, Two[_R, _R2]]": ...
@overload
def expr(
    function: Callable[[Elem[_A]], tuple[Elem[_R], Elem[_R2], Elem[_R3]]], /
) -> "Tuple1[_A, Three[_R, _R2, _R3]]": ...
@overload
def expr(
    function: Callable[[Elem[_A], Elem[_B]], tuple[Elem[_R], Elem[_R2], Elem[_R3]]], /
) -> "Tuple2[_A, _B, Three[_R, _R2, _R3]]": ...
@overload
def expr(
    function: Callable[[Elem[_A], Elem[_B], Elem[_C]], tuple[Elem[_R], Elem[_R2], Elem[_R3]]], /
) -> "Tuple3[_A, _B, _C, Three[_R, _R2, _R3]]": ...
@overload
def expr(
    function: Callable[[Elem[_A], Elem[_B], Elem[_C], Elem[_D]], tuple[Elem[_R], Elem[_R2], Elem[_R3]]], /
) -> "Tuple4[_A, _B, _C, _D, Three[_R, _R2, _R3]]": ...
@overload
def expr(
    function: Callable[[Elem[_A], Elem[_B], Elem[_C], Elem[_D], Elem[_E]], tuple[Elem[_R], Elem[_R2], Elem[_R3]]], /
) -> "Tuple5[_A, _B, _C, _D, _E, Three[_R, _R2, _R3]]": ...
@overload
def expr(
    function: Callable[
        [Elem[_A], Elem[_B], Elem[_C], Elem[_D], Elem[_E], Elem[_X]], tuple[Elem[_R], Elem[_R2], Elem[_R3]]
    ],
    /,
) -> "Tuple6[_A, _B, _C, _D, _E, _X, Three[_R, _R2, _R3]]": ...
@overload
def expr(
    function: Callable[
        [Elem[_A], Elem[_B], Elem[_C], Elem[_D], Elem[_E], Elem[_X], Elem[_G]], tuple[Elem[_R], Elem[_R2], Elem[_R3]]
    ],
    /,
) -> "Tuple7[_A, _B, _C, _D, _E, _X, _G, Three[_R, _R2, _R3]]": ...
@overload
def expr(
    function: Callable[
        [Elem[_A], Elem[_B], Elem[_C], Elem[_D], Elem[_E], Elem[_X], Elem[_G], Elem[_H]],
        tuple[Elem[_R], Elem[_R2], Elem[_R3]],
    ],
    /,
) -> "Tuple8[_A, _B, _C, _D, _E, _X, _G, _H, Three[_R, _R2, _R3]]": ...
@overload
def expr(
    function: Callable[[Elem[_A]], tuple[Elem[_R], Elem[_R2], Elem[_R3], Elem[_R4]]], /
) -> "Tuple1[_A, Four[_R, _R2, _R3, _R4]]": ...
@overload
def expr(
    function: Callable[[Elem[_A], Elem[_B]], tuple[Elem[_R], Elem[_R2], Elem[_R3], Elem[_R4]]], /
) -> "Tuple2[_A, _B, Four[_R, _R2, _R3, _R4]]": ...
@overload
def expr(
    function: Callable[[Elem[_A], Elem[_B], Elem[_C]], tuple[Elem[_R], Elem[_R2], Elem[_R3], Elem[_R4]]], /
) -> "Tuple3[_A, _B, _C, Four[_R, _R2, _R3, _R4]]": ...
@overload
def expr(
    function: Callable[[Elem[_A], Elem[_B], Elem[_C], Elem[_D]], tuple[Elem[_R], Elem[_R2], Elem[_R3], Elem[_R4]]], /
) -> "Tuple4[_A, _B, _C, _D, Four[_R, _R2, _R3, _R4]]": ...
@overload
def expr(
    function: Callable[
        [Elem[_A], Elem[_B], Elem[_C], Elem[_D], Elem[_E]], tuple[Elem[_R], Elem[_R2], Elem[_R3], Elem[_R4]]
    ],
    /,
) -> "Tuple5[_A, _B, _C, _D, _E, Four[_R, _R2, _R3, _R4]]": ...
@overload
def expr(
    function: Callable[
        [Elem[_A], Elem[_B], Elem[_C], Elem[_D], Elem[_E], Elem[_X]], tuple[Elem[_R], Elem[_R2], Elem[_R3], Elem[_R4]]
    ],
    /,
) -> "Tuple6[_A, _B, _C, _D, _E, _X, Four[_R, _R2, _R3, _R4]]": ...
@overload
def expr(
    function: Callable[
        [Elem[_A], Elem[_B], Elem[_C], Elem[_D], Elem[_E], Elem[_X], Elem[_G]],
        tuple[Elem[_R], Elem[_R2], Elem[_R3], Elem[_R4]],
    ],
    /,
) -> "Tuple7[_A, _B, _C, _D, _E, _X, _G, Four[_R, _R2, _R3, _R4]]": ...
@overload
def expr(
    function: Callable[
        [Elem[_A], Elem[_B], Elem[_C], Elem[_D], Elem[_E], Elem[_X], Elem[_G], Elem[_H]],
        tuple[Elem[_R], Elem[_R2], Elem[_R3], Elem[_R4]],
    ],
    /,
) -> "Tuple8[_A, _B, _C, _D, _E, _X, _G, _H, Four[_R, _R2, _R3, _R4]]": ...
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
    A function that returns a tuple of elements makes a `TupleExpression`, one kernel with several outputs.

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
    def decorate(function: Any) -> AnyExpression:
        if not inspect.isfunction(function):
            raise KernelArgumentError(
                f"expr at {describe(here())} is applied to {format_value(function)}. Apply it to a plain function: def "
                "or lambda."
            )
        return _make(function, dtypes)

    return decorate


def _make(function: Callable[..., Any], dtypes: list[Any]) -> AnyExpression:
    made = expression_of_steps(trace_expression(function, dtypes), declared_at(function))
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
                f"expr: parameter {name!r} of {function.__name__} at {describe(declared_at(function))} is not "
                "annotated with an element type. Write x: Elem[f32], or name the types: expr(f32, f32)."
            )
        dtypes.append(dtype)
    return dtypes
