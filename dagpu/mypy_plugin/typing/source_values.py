"""What a source holds: one tensor, or host values, since to type checkers a tuple is hashable, whatever it holds. And
where it is taken in the place of its value: by pipelines."""

from collections.abc import Callable
from typing import Final

from mypy.plugin import CheckerPluginInterface, FunctionContext, MethodContext, MethodSigContext
from mypy.typeops import make_simplified_union
from mypy.types import (
    AnyType,
    FunctionLike,
    Instance,
    ParamSpecType,
    TupleType,
    Type,
    UnionType,
    UnpackType,
    get_proper_type,
)

from dagpu.mypy_plugin import codes, messages, names
from dagpu.mypy_plugin.typing import op_parameters

_HANDLES: Final = frozenset((names.TENSOR, names.SHARED_TENSOR, names.PARTITION, names.TENSOR_REF, names.TENSOR_MUT))
_LENT: Final = frozenset((names.TENSOR_REF, names.TENSOR_MUT))


def _handle_in(value: Type, found: list[Instance], inside: bool = False) -> list[Instance]:
    """Add the handles in the tuples of a value of this type, the first one first. A bare handle has a rule of its
    own."""
    proper = get_proper_type(value)
    match proper:
        case Instance() if inside and proper.type.fullname in _HANDLES:
            found.append(proper)
        case Instance() if proper.type.fullname == "builtins.tuple":
            for item in proper.args:
                _handle_in(item, found, inside=True)
        case TupleType():
            for item in proper.items:
                _handle_in(item, found, inside=True)
        case UnionType():
            for item in proper.items:
                _handle_in(item, found, inside)
        case _:
            pass
    return found


def _check(context: FunctionContext | MethodContext) -> Type:
    """Report a tuple that holds a handle: a loan ends and a source goes on, and a tensor is a source of its own."""
    for types, expressions in zip(context.arg_types[:1], context.args[:1], strict=True):
        for given, expression in zip(types, expressions, strict=True):
            found = _handle_in(given, [])
            if found:
                handle = next((each for each in found if each.type.fullname in _LENT), found[0]).type
                message = messages.held_in_source(handle.name, lent=handle.fullname in _LENT)
                context.api.fail(message, expression, code=codes.SOURCE_VALUE)
    return context.default_return_type


def _accept_sources(context: MethodSigContext) -> FunctionLike:
    """Return the signature of a pipeline's call, which takes a source of a value in the place of the value."""
    signature = context.default_signature
    formals = [_or_source(formal, context.api) for formal in signature.arg_types]
    return signature.copy_modified(arg_types=formals)


def _or_source(formal: Type, api: CheckerPluginInterface) -> Type:
    """Return the type of a parameter, or a source of such a value: of a number, a tensor or an array."""
    proper = get_proper_type(formal)
    if isinstance(proper, AnyType | ParamSpecType | UnpackType):
        return formal
    values = list(proper.items) if isinstance(proper, UnionType) else [proper]
    if any(isinstance(one, Instance) and one.type.fullname == "builtins.float" for one in map(get_proper_type, values)):
        values.append(api.named_generic_type("builtins.int", []))
    sources = [op_parameters.dagpu_type(names.SOURCE, [value], api) for value in (formal, *values)]
    return make_simplified_union([formal, *sources])


FUNCTION_HOOKS: Final[dict[str, Callable[[FunctionContext], Type]]] = {names.MAKE_SOURCE: _check}
METHOD_HOOKS: Final[dict[str, Callable[[MethodContext], Type]]] = {f"{names.SOURCE}.set": _check}
SIGNATURE_HOOKS: Final[dict[str, Callable[[MethodSigContext], FunctionLike]]] = {names.PIPELINE_CALL: _accept_sources}
