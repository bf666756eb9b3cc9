"""The rule on CUDA graphs: an op that is recorded into one does not allocate.

`Scope.record` and `CudaGraph.update` take a `NoAlloc` op, so that any type checker refuses other ops. The plugin widens
the parameter and reports the broken rule instead of "incompatible type".
"""

from collections.abc import Callable
from typing import Final

from mypy.plugin import FunctionContext, MethodContext, MethodSigContext
from mypy.types import AnyType, CallableType, FunctionLike, Instance, ProperType, Type, UnionType, get_proper_type

from dagpu.mypy_plugin import codes, messages, names


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
                context.api.fail(messages.GRAPH_NODE, expression, code=codes.GRAPH_NODE)
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

FUNCTION_HOOKS: Final[dict[str, Callable[[FunctionContext], Type]]] = {}
METHOD_HOOKS: Final[dict[str, Callable[[MethodContext], Type]]] = dict.fromkeys(_RECORDS, _check_op)
SIGNATURE_HOOKS: Final[dict[str, Callable[[MethodSigContext], FunctionLike]]] = dict.fromkeys(
    _RECORDS, _widen_signature
)
