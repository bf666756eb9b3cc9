"""Types for tuples of more than eight items, where the overloads of `zip_ops`, `unzip`, `first` and `last` end."""

from collections.abc import Callable

from mypy.nodes import ARG_POS
from mypy.plugin import CheckerPluginInterface, FunctionContext, MethodContext
from mypy.types import Instance, TupleType, Type, get_proper_type

from dagpu.mypy_plugin import names
from dagpu.mypy_plugin.typing import op_parameters

_OVERLOADS = 8


def tuple_of(items: list[Type], api: CheckerPluginInterface) -> TupleType:
    """Return the type `tuple[A, B, ...]` for its items `A, B, ...`."""
    anything = api.named_generic_type("builtins.object", [])
    return TupleType(items, api.named_generic_type("builtins.tuple", [anything]))


def _type_zip_ops(context: FunctionContext) -> Type:
    """Return the exact type of `zip_ops(a, b, ...)` for more than eight ops."""
    op = get_proper_type(context.default_return_type)
    given = [type_ for types in context.arg_types for type_ in types]
    kinds = {kind for kinds in context.arg_kinds for kind in kinds}
    parts = [op_parameters.as_op(get_proper_type(type_)) for type_ in given]
    if len(given) <= _OVERLOADS or kinds != {ARG_POS} or not isinstance(op, Instance):
        return context.default_return_type
    results = [part.args[0] for part in parts if part is not None]
    if len(results) < len(parts):  # an argument is an `Any`, or not an op
        return context.default_return_type
    return op.copy_modified(args=[tuple_of(results, context.api), *op.args[1:]])


def _part_types(context: MethodContext) -> list[Type]:
    """Return the op types for the parts of an op whose result is a long tuple; empty for other ops."""
    op = op_parameters.as_op(get_proper_type(context.type))
    whole = get_proper_type(op.args[0]) if op is not None else None
    if op is None or not isinstance(whole, TupleType) or len(whole.items) <= _OVERLOADS:
        return []
    return [op.copy_modified(args=[item, *op.args[1:]]) for item in whole.items]


def _type_unzip(context: MethodContext) -> Type:
    parts = _part_types(context)
    return tuple_of(parts, context.api) if parts else context.default_return_type


def _type_first(context: MethodContext) -> Type:
    parts = _part_types(context)
    return parts[0] if parts else context.default_return_type


def _type_last(context: MethodContext) -> Type:
    parts = _part_types(context)
    return parts[-1] if parts else context.default_return_type


FUNCTION_HOOKS: dict[str, Callable[[FunctionContext], Type]] = {names.ZIP_OPS: _type_zip_ops}
METHOD_HOOKS: dict[str, Callable[[MethodContext], Type]] = {
    f"{names.DEVICE_OP}.unzip": _type_unzip,
    f"{names.DEVICE_OP}.first": _type_first,
    f"{names.DEVICE_OP}.last": _type_last,
}
