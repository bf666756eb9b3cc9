"""Rules for the arguments of single functions: ops recorded into a graph, values of sources, operands of a product.

`Scope.record` and `CudaGraph.update` take a `NoAlloc` op, so that any type checker refuses other ops. The plugin widens
the parameter and reports the broken rule instead of "incompatible type". A source holds one tensor, or host values: to
type checkers a tuple is hashable, whatever it holds. The operands of a product have one element type: mypy would infer
`object` for two, and name that.
"""

from collections.abc import Callable
from typing import Final

from mypy.errorcodes import TYPE_VAR
from mypy.expandtype import expand_type
from mypy.plugin import CheckerPluginInterface, FunctionContext, FunctionSigContext, MethodContext, MethodSigContext
from mypy.typeops import make_simplified_union
from mypy.types import (
    AnyType,
    CallableType,
    FunctionLike,
    Instance,
    ParamSpecType,
    ProperType,
    TupleType,
    Type,
    TypeVarId,
    TypeVarType,
    UnionType,
    UnpackType,
    get_proper_type,
)

from dagpu.mypy_plugin import messages, names
from dagpu.mypy_plugin.typing import op_types

# ---- ops that are recorded into a CUDA graph


def _widen_signature(context: MethodSigContext) -> CallableType:
    """Return the signature with parameters that also accept ops that may allocate."""
    signature = context.default_signature
    return signature.copy_modified(arg_types=[_with_allocation(get_proper_type(t)) for t in signature.arg_types])


def _with_allocation(formal: ProperType) -> Type:
    if not isinstance(formal, Instance) or formal.type.fullname != names.DEVICE_OP or len(formal.args) != 3:
        return formal
    no_alloc = get_proper_type(formal.args[2])
    if not isinstance(no_alloc, Instance) or no_alloc.type.fullname != names.NO_ALLOC:
        return formal
    return formal.copy_modified(args=[*formal.args[:2], no_alloc.type.bases[0]])  # it is a MayAlloc


def _check_op(context: MethodContext) -> Type:
    """Report an op whose type says that it may allocate.

    The widened parameter is a type context that may have widened the type of a compound op. So the type is inferred
    once more, without that context.
    """
    for types, expressions in zip(context.arg_types, context.args, strict=True):
        for given, expression in zip(types, expressions, strict=True):
            if _may_allocate(get_proper_type(given)) and _may_allocate(
                get_proper_type(context.api.get_expression_type(expression))
            ):
                context.api.fail(messages.may_allocate(), expression, code=messages.GRAPH_NODE)
    return context.default_return_type


def _may_allocate(given: ProperType) -> bool:
    if isinstance(given, UnionType):
        return any(_may_allocate(get_proper_type(item)) for item in given.items)
    if not isinstance(given, Instance) or not given.type.has_base(names.DEVICE_OP) or len(given.args) != 3:
        return False
    return not _never_allocates(get_proper_type(given.args[2]))


def _never_allocates(g: ProperType) -> bool:
    if isinstance(g, UnionType):
        return all(_never_allocates(get_proper_type(item)) for item in g.items)
    return isinstance(g, AnyType) or (isinstance(g, Instance) and g.type.fullname == names.NO_ALLOC)


_RECORDS: Final = (f"{names.SCOPE}.record", f"{names.CUDA_GRAPH}.update")


# ---- values of sources


def _handle_in(value: Type, found: list[Instance], inside: bool = False) -> list[Instance]:
    """Add the handles in the tuples of a value of this type, the first one first. A bare handle has a rule of its
    own."""
    proper = get_proper_type(value)
    match proper:
        case Instance() if inside and proper.type.fullname in names.HANDLES:
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


def _check_value(context: FunctionContext | MethodContext) -> Type:
    """Report a tuple that holds a handle: a loan ends and a source goes on, and a tensor is a source of its own."""
    for types, expressions in zip(context.arg_types[:1], context.args[:1], strict=True):
        for given, expression in zip(types, expressions, strict=True):
            found = _handle_in(given, [])
            if found:
                handle = next((each for each in found if each.type.fullname in names.LENT), found[0]).type
                message = messages.held_in_source(handle.name, lent=handle.fullname in names.LENT)
                context.api.fail(message, expression, code=messages.SOURCE_VALUE)
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
    sources = [op_types.dagpu_type(names.SOURCE, [value], api) for value in (formal, *values)]
    return make_simplified_union([formal, *sources])


# ---- operands of a product


def part_operands(context: FunctionSigContext) -> FunctionLike:
    """Return the signature of a product with a type variable for each operand; `_check_operands` compares the two."""
    signature = context.default_signature
    (element,) = signature.variables
    if not isinstance(element, TypeVarType):
        return signature
    other = element.copy_modified(id=TypeVarId(element.id.raw_id - 1, namespace=element.id.namespace))
    formals = list(signature.arg_types)
    formals[1] = expand_type(formals[1], {element.id: other})
    return signature.copy_modified(variables=[element, other], arg_types=formals)


def _check_operands(context: FunctionContext) -> Type:
    """Report operands of two element types, in the words of the run."""
    given = [types[0] for types in context.arg_types[:2] if types]
    found = [op_types.short_name(op_types.element_of(each)) for each in given]
    if len(found) == 2 and all(found) and found[0] != found[1]:
        where = context.args[1][0]
        context.api.fail(messages.two_element_types(*found), where, code=TYPE_VAR)
    return op_types.type_new_output(context)


FUNCTION_HOOKS: Final[dict[str, Callable[[FunctionContext], Type]]] = {
    names.MAKE_SOURCE: _check_value,
    names.MATMUL: _check_operands,
}
METHOD_HOOKS: Final[dict[str, Callable[[MethodContext], Type]]] = {
    **dict.fromkeys(_RECORDS, _check_op),
    f"{names.SOURCE}.set": _check_value,
}
SIGNATURE_HOOKS: Final[dict[str, Callable[[MethodSigContext], FunctionLike]]] = {
    **dict.fromkeys(_RECORDS, _widen_signature),
    names.PIPELINE_CALL: _accept_sources,
}
FUNCTION_SIGNATURE_HOOKS: Final[dict[str, Callable[[FunctionSigContext], FunctionLike]]] = {names.MATMUL: part_operands}
