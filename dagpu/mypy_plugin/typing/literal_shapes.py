"""Literal shapes in types: `x: Tensor[f32, tuple[Literal[8], Literal[8]]] = zeros((8, 8)).sync()`.

A literal shape is inferred where the context wants one: a declared variable, a parameter or a return type. Inferring
it everywhere was tried and dropped. Types are checked without regard to order, so a variable would keep its first
shape, and `y = y.reshape((64,))`, or an append to a list of tensors, would be errors. The checks of outputs use the
shapes that `analysis/known` propagates through the statements instead.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias

from mypy.checker import TypeChecker
from mypy.nodes import Expression
from mypy.plugin import CheckerPluginInterface, FunctionContext, MethodContext
from mypy.types import Instance, LiteralType, ProperType, TupleType, Type, UnionType, get_proper_type

from dagpu.mypy_plugin import names
from dagpu.mypy_plugin.analysis.known import Evaluator
from dagpu.mypy_plugin.analysis.values import FUNCTIONS, Array, Cut, Extents, Op, Several, Value
from dagpu.mypy_plugin.typing import op_types

_Context: TypeAlias = FunctionContext | MethodContext


def _narrow(context: _Context) -> Type:
    """Return the type of a call, with its literal shape if the type context wants one."""
    wanted = context.api.type_context[-1]
    if wanted is None or not _has_shape(get_proper_type(wanted)):
        return context.default_return_type
    api, call = context.api, context.context
    if not isinstance(api, TypeChecker) or not isinstance(call, Expression):
        return context.default_return_type
    value = Evaluator(api.lookup_type_or_none).visit(call)
    return _with_shape(get_proper_type(context.default_return_type), value, api)


@lru_cache(maxsize=256)
def _has_shape(type_: ProperType) -> bool:
    """Return True if a type, or a part of it, fixes the number of axes of a handle."""
    if isinstance(type_, Instance):
        shaped = type_.type.fullname in names.ARRAYS or type_.type.fullname == names.PARTITION
        if shaped and isinstance(get_proper_type(type_.args[1]), TupleType):
            return True
        return any(_has_shape(get_proper_type(arg)) for arg in type_.args)
    if isinstance(type_, TupleType | UnionType):
        return any(_has_shape(get_proper_type(item)) for item in type_.items)
    return False


def _with_shape(type_: ProperType, value: Value, api: CheckerPluginInterface) -> Type:
    """Return the type with the known extents of a value filled in. Extents that the type declares are kept."""
    match type_, value:
        case TupleType(), Several() if len(type_.items) == len(value.items):
            pairs = zip(type_.items, value.items, strict=True)
            return type_.copy_modified(items=[_with_shape(get_proper_type(item), part, api) for item, part in pairs])
        case Instance(), Op() if op_types.as_op(type_) is type_:
            return type_.copy_modified(
                args=[_with_shape(get_proper_type(type_.args[0]), value.result, api), *type_.args[1:]]
            )
        case Instance(), Array() if type_.type.fullname in names.ARRAYS:
            return type_.copy_modified(args=[type_.args[0], _as_type(type_.args[1], value.shape, api)])
        case Instance(), Cut() if type_.type.fullname == names.PARTITION:
            whole = _with_shape(get_proper_type(type_.args[0]), Array(value.shape), api)
            tile = type_.args[1] if value.tile is None else _as_type(type_.args[1], value.tile, api)
            return type_.copy_modified(args=[whole, tile])
        case _:
            return type_


def _as_type(declared: Type, known: Extents, api: CheckerPluginInterface) -> Type:
    """Return known extents as a type, `tuple[Literal[8], int]`; the declared type if that fixes the rank already."""
    if isinstance(get_proper_type(declared), TupleType):
        return declared
    whole = api.named_generic_type("builtins.int", [])
    items: list[Type] = [whole if extent is None else LiteralType(extent, whole) for extent in known]
    return TupleType(items, api.named_generic_type("builtins.tuple", [whole]))


_METHODS = {
    names.DEVICE_OP: "sync sync_on on schedule inspect shared partition unpartition share reshape first last",
    names.TENSOR: "partition share reshape borrow borrow_mut view",
    names.SHARED_TENSOR: "clone try_unwrap reshape",
    names.TENSOR_REF: "reshape",
    names.TENSOR_MUT: "partition reshape",
    names.PARTITION: "unpartition",
}

FUNCTION_HOOKS: dict[str, Callable[[FunctionContext], Type]] = dict.fromkeys(FUNCTIONS, _narrow)
METHOD_HOOKS: dict[str, Callable[[MethodContext], Type]] = {
    f"{owner}.{method}": _narrow for owner, methods in _METHODS.items() for method in methods.split()
}
