"""The phantom type parameters of `DeviceOp[T, L, G]`: `L` says that an op borrows, `G` that it allocates."""

from collections.abc import Callable

from mypy.checker import TypeChecker
from mypy.maptype import map_instance_to_supertype
from mypy.nodes import Expression, ListExpr, TypeInfo
from mypy.plugin import CheckerPluginInterface, FunctionContext, MethodContext, MethodSigContext
from mypy.subtypes import is_same_type
from mypy.typeops import make_simplified_union
from mypy.types import (
    AnyType,
    FunctionLike,
    Instance,
    ProperType,
    TupleType,
    Type,
    TypeOfAny,
    UnionType,
    get_proper_type,
)

from dagpu.mypy_plugin import names

_LENT = frozenset((names.TENSOR_REF, names.TENSOR_MUT))
_HANDLES = frozenset((names.TENSOR, names.SHARED_TENSOR, names.PARTITION)) | _LENT


def dagpu_type(name: str, args: list[Type], api: CheckerPluginInterface) -> Instance:
    """Return a type of dagpu by its full name.

    `api.named_generic_type` cannot find all of them: it walks from package to module by attributes. Not every module is
    an attribute of its package, and `dagpu.kernel` is a function.
    """
    assert isinstance(api, TypeChecker)
    module, _, last = name.rpartition(".")
    info = api.modules[module].names[last].node
    assert isinstance(info, TypeInfo)
    return Instance(info, args)


def as_op(type_: ProperType) -> Instance | None:
    """Return an op's type as `DeviceOp[T, L, G]`; None for a type that is not an op's."""
    if not isinstance(type_, Instance):
        return None
    info = type_.type
    if info.fullname == names.DEVICE_OP:
        return type_
    if info.fullname in _HANDLES or not info.has_base(names.DEVICE_OP):
        return None
    return map_instance_to_supertype(type_, next(base for base in info.mro if base.fullname == names.DEVICE_OP))


def lifetime(type_: Type, api: CheckerPluginInterface) -> Type | None:
    """Return the join of the `L` of all ops and borrows in a value of this type; None if it has none.

    Containers are searched, results of ops are not: a run may borrow its own tensors, which borrows none from outside.
    """
    proper = get_proper_type(type_)
    if isinstance(proper, Instance):
        name = proper.type.fullname
        if name in _LENT:
            return dagpu_type(names.BORROWED, [], api)
        if name == names.PARTITION:
            return lifetime(proper.args[0], api)
        if name in _HANDLES:
            return None
        if (op := as_op(proper)) is not None:
            return op.args[1]
        return join([lifetime(part, api) for part in proper.args]) if proper.args else None
    if isinstance(proper, UnionType):
        return _combine_union([lifetime(item, api) for item in proper.items], names.STATIC)
    if isinstance(proper, TupleType):
        return join([lifetime(item, api) for item in proper.items])
    return proper if isinstance(proper, AnyType) else None


def allocation(type_: Type) -> Type | None:
    """Return the `G` of an op, which says that running it may allocate; None for a handle, which exists already."""
    proper = get_proper_type(type_)
    if isinstance(proper, UnionType):
        return _combine_union([allocation(item) for item in proper.items], names.NO_ALLOC)
    if (op := as_op(proper)) is not None:
        return op.args[2]
    return proper if isinstance(proper, AnyType) else None


def _combine_union(found: list[Type | None], least: str) -> Type | None:
    """Combine the `L` or `G` of the members of a union: `Any` if they differ, as for a parameter `x: In[f32]`.

    The join would be safe too. But with it, a function that passes any input to a kernel and returns the op as a
    `DeviceOp[Tensor[f32]]` would be a type error.
    """
    bare = [None if _is_named(one, least) else one for one in found]
    first = bare[0]
    if all(one is None if first is None else one is not None and is_same_type(first, one) for one in bare):
        return first
    return AnyType(TypeOfAny.special_form)


def join(found: list[Type | None]) -> Type | None:
    """Return the join `L1 | L2 | ...` or `G1 | G2 | ...`; None is the least element, `Static` or `NoAlloc`.

    The greatest element, `Borrowed` or `MayAlloc`, absorbs all others. `Any` absorbs type variables.
    """
    above = [
        one
        for one in found
        if one is not None and not _is_named(one, names.STATIC) and not _is_named(one, names.NO_ALLOC)
    ]
    if len(above) < 2:
        return above[0] if above else None
    for kind in (Instance, AnyType):
        for one in above:
            if isinstance(get_proper_type(one), kind):
                return one
    return make_simplified_union(above)


def _is_named(type_: Type | None, name: str) -> bool:
    proper = get_proper_type(type_)
    return isinstance(proper, Instance) and proper.type.fullname == name


def _type_value(context: FunctionContext) -> Type:
    """Return the type of `value(x)`, which borrows if `x` does."""
    op = get_proper_type(context.default_return_type)
    if not isinstance(op, Instance) or len(op.args) != 3:
        return context.default_return_type
    borrows = lifetime(op.args[0], context.api)
    if borrows is None or isinstance(borrows, AnyType):  # an Any is unknown, so the declared type is kept
        return op
    return op.copy_modified(args=[op.args[0], borrows, op.args[2]])


def _type_pipeline_call(context: MethodContext) -> Type:
    """Return the type of a pipeline call. It borrows if an argument does, because the op holds its arguments."""
    op = get_proper_type(context.default_return_type)
    borrows = join([lifetime(given, context.api) for types in context.arg_types for given in types])
    if not isinstance(op, Instance) or len(op.args) != 3 or borrows is None or isinstance(borrows, AnyType):
        return context.default_return_type
    return op.copy_modified(args=[op.args[0], join([op.args[1], borrows]) or op.args[1], op.args[2]])


def type_new_output(context: FunctionContext | MethodContext) -> Type:
    """Return the type of a call that writes to a new tensor. The op allocates, and borrows if an argument does."""
    op = get_proper_type(context.default_return_type)
    if not isinstance(op, Instance) or len(op.args) != 3:
        return context.default_return_type
    borrows = join(
        [
            _lifetime_of_argument(given, expression, context.api)
            for types, expressions in zip(context.arg_types, context.args, strict=True)
            for given, expression in zip(types, expressions, strict=True)
        ]
    )
    return op.copy_modified(args=[op.args[0], borrows or dagpu_type(names.STATIC, [], context.api), op.args[2]])


def _lifetime_of_argument(given: Type, expression: Expression, api: CheckerPluginInterface) -> Type | None:
    """Return the `lifetime` of an argument. For a list that is written out it is the join over the items, because mypy
    types the list as `list[In[f32]]`, which does not tell.
    """
    found = lifetime(given, api)
    if isinstance(found, AnyType) and isinstance(expression, ListExpr) and isinstance(api, TypeChecker):
        items = [api.lookup_type_or_none(item) for item in expression.items]
        return join([found if item is None else lifetime(item, api) for item in items])
    return found


FUNCTION_HOOKS: dict[str, Callable[[FunctionContext], Type]] = {names.VALUE: _type_value}
METHOD_HOOKS: dict[str, Callable[[MethodContext], Type]] = {
    f"{names.PIPELINE}.__call__": _type_pipeline_call,
    names.NEW_OUTPUT_CALL: type_new_output,
    names.EXPRESSION_CALL: type_new_output,
    names.REDUCED_EXPRESSION_CALL: type_new_output,
    names.FOREIGN_FUNCTION_CALL: type_new_output,
}
SIGNATURE_HOOKS: dict[str, Callable[[MethodSigContext], FunctionLike]] = {}
