"""What types say of ops and of arguments: the parameters of `DeviceOp[T, L, G]`, and the form of an argument.

`L` says that an op borrows, `G` that it allocates. A form is input, output, lazy or number.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

from mypy.checker import TypeChecker
from mypy.maptype import map_instance_to_supertype
from mypy.nodes import ARG_POS, CallExpr, Expression, ListExpr, MemberExpr, NameExpr, TypeInfo
from mypy.plugin import CheckerPluginInterface, FunctionContext, MethodContext
from mypy.subtypes import is_same_type
from mypy.typeops import make_simplified_union
from mypy.types import (
    AnyType,
    Instance,
    Parameters,
    ProperType,
    TupleType,
    Type,
    TypeOfAny,
    UnionType,
    get_proper_type,
    has_type_vars,
)

from dagpu.mypy_plugin import names
from dagpu.mypy_plugin.typing.type_facts import class_name


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
    if info.fullname in names.HANDLES or not info.has_base(names.DEVICE_OP):
        return None
    return map_instance_to_supertype(type_, next(base for base in info.mro if base.fullname == names.DEVICE_OP))


def lifetime(type_: Type, api: CheckerPluginInterface) -> Type | None:
    """Return the join of the `L` of all ops and borrows in a value of this type; None if it has none.

    Containers are searched, results of ops are not: a run may borrow its own tensors, which borrows none from outside.
    """
    proper = get_proper_type(type_)
    if isinstance(proper, Instance):
        name = proper.type.fullname
        if name in names.LENT:
            return dagpu_type(names.BORROWED, [], api)
        if name == names.PARTITION:
            return lifetime(proper.args[0], api)
        if name in names.HANDLES:
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
    bare = [None if class_name(one) == least else one for one in found]
    first = bare[0]
    if all(one is None if first is None else one is not None and is_same_type(first, one) for one in bare):
        return first
    return AnyType(TypeOfAny.special_form)


def join(found: list[Type | None]) -> Type | None:
    """Return the join `L1 | L2 | ...` or `G1 | G2 | ...`; None is the least element, `Static` or `NoAlloc`.

    The greatest element, `Borrowed` or `MayAlloc`, absorbs all others. `Any` absorbs type variables.
    """
    above = [one for one in found if one is not None and class_name(one) not in (names.STATIC, names.NO_ALLOC)]
    if len(above) < 2:
        return above[0] if above else None
    for kind in (Instance, AnyType):
        for one in above:
            if isinstance(get_proper_type(one), kind):
                return one
    return make_simplified_union(above)


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


def _type_operator(context: MethodContext) -> Type:
    """Return the type of an operator, which borrows if an operand does. mypy takes the `L` of an operator that is an
    argument of a kernel from the kernel's parameter, which allows a borrow."""
    op = get_proper_type(context.default_return_type)
    if not isinstance(op, Instance) or len(op.args) != 3:
        return context.default_return_type
    operands = [context.type, *[given for types in context.arg_types for given in types]]
    borrows = join([lifetime(operand, context.api) for operand in operands])
    return op.copy_modified(args=[op.args[0], borrows or dagpu_type(names.STATIC, [], context.api), op.args[2]])


Form: TypeAlias = Literal["in", "out", "lazy", "number"]
_OTHERS = {"TupleType": "a tuple", "NoneType": "None", "CallableType": "a function", "LiteralType": "a literal"}
_BITS = re.compile(r"_(\d+)Bit")
_KINDS = {
    "numpy.floating": "float", "numpy.signedinteger": "int", "numpy.unsignedinteger": "uint",
    "numpy.complexfloating": "complex",
}  # fmt: skip


def is_handle(type_: Type) -> bool:
    """Return True for the type of a tensor, a borrow or a partition."""
    return class_name(type_) in names.HANDLES


def is_partition(type_: Type) -> bool:
    """Return True for a `Partition`, or an op whose result is one."""
    proper = get_proper_type(type_)
    if (op := as_op(proper)) is not None:
        proper = get_proper_type(op.args[0])
    return class_name(proper) == names.PARTITION


class Parameter(NamedTuple):
    """What the type of a kernel's parameter says."""

    type: ProperType
    """The type with its alias expanded."""
    form: Form
    takes_numbers: bool
    """True for a parameter that takes a number: itself, or beside the tensors of an expression."""
    is_checked_here: bool
    """True for an input or output that the plugin checks in mypy's place. mypy checks those of generic kernels, whose
    type variables tie the element types of the arguments together."""


@lru_cache(maxsize=256)
def parameter(formal: Type) -> Parameter:
    """Return what the type of a kernel's parameter says. mypy drops the annotations of the aliases `In` and `Out`, but
    the aliases are unions, which differ in their first member. The cache is for speed: mypy expands an alias each time.
    """
    proper = get_proper_type(formal)
    if not isinstance(proper, UnionType):
        return Parameter(proper, "number", takes_numbers=True, is_checked_here=False)
    first = proper.items[0]
    form: Form = "out" if is_partition(first) else "in" if is_handle(first) else "lazy"
    return Parameter(proper, form, bool(numbers_in(proper)), form != "lazy" and not has_type_vars(formal))


def numbers_in(formal: UnionType) -> list[Type]:
    """Return the members of a parameter's union that are neither handles nor ops: `float` of a `Lazy[float]`."""
    return [item for item in formal.items if not is_handle(item) and as_op(get_proper_type(item)) is None]


def is_fitting(type_: Type, form: Form) -> bool:
    """Return True if a parameter of this form accepts the type, whatever its elements are. Any form accepts `Any`."""
    proper = get_proper_type(type_)
    if isinstance(proper, UnionType):
        return all(is_fitting(item, form) for item in proper.items)
    if (op := as_op(proper)) is not None:
        return is_fitting(op.args[0], form)
    if isinstance(proper, AnyType):
        return True
    return class_name(proper) == names.PARTITION if form == "out" else class_name(proper) in names.ARRAYS


def parameters_of(called: Type, owner: str = names.KERNEL) -> Parameters | None:
    """Return the parameters of a `Kernel[P]`, or of another class with `P` as first argument; None if unknown."""
    proper = get_proper_type(called)
    if not isinstance(proper, Instance) or proper.type.fullname != owner or not proper.args:
        return None
    parameters = get_proper_type(proper.args[0])
    return parameters if isinstance(parameters, Parameters) else None


@lru_cache(maxsize=256)
def forms_of(kernel: Type) -> dict[str, Form]:
    """Return the form of each parameter of a kernel, by name; empty if they are unknown. One without a name has its
    number."""
    known = parameters_of(kernel)
    formals = () if known is None else zip(known.arg_names, known.arg_types, strict=True)
    return {name or str(i): parameter(formal).form for i, (name, formal) in enumerate(formals, start=1)}


def base_kernel(callee: Expression) -> Expression:
    """Strip launch options: return `saxpy` for `saxpy.grid(2).block(32)`, and any other expression unchanged."""
    while (
        isinstance(callee, CallExpr)
        and isinstance(callee.callee, MemberExpr)
        and callee.callee.name in ("grid", "block", "shared_memory")
    ):
        callee = callee.callee.expr
    return callee


def kernel_name(callee: Expression) -> str:
    """Return the name of a called kernel for messages."""
    base = base_kernel(callee)
    return f"kernel {base.name!r}" if isinstance(base, NameExpr | MemberExpr) else "a kernel"


def describe_handle(type_: Type | None) -> str:
    """Return the class of a handle, or of the handle that an op has as result, for messages: `a Tensor`."""
    proper = get_proper_type(type_)
    if proper is not None and (op := as_op(proper)) is not None:
        proper = get_proper_type(op.args[0])
    return f"a {proper.type.name}" if isinstance(proper, Instance) else "a tensor"


def element_of(type_: Type) -> str:
    """Return NumPy's name for the element type of a handle, of an op with one as result, or of an `In` or `Out`.

    The name is empty for all other types.
    """
    proper = get_proper_type(type_)
    if isinstance(proper, UnionType):
        found = {element_of(item) for item in proper.items}
        return found.pop() if len(found) == 1 else ""
    if (op := as_op(proper)) is not None:
        return element_of(op.args[0])
    if isinstance(proper, Instance) and proper.type.fullname == names.PARTITION:
        return element_of(proper.args[0])
    if isinstance(proper, Instance) and is_handle(proper):
        return _dtype_name(get_proper_type(proper.args[0]))
    return ""


def _dtype_name(scalar: ProperType) -> str:
    """Return `float32` for `numpy.floating[_32Bit]` and `float64` for `numpy.float64`, the spellings of the stubs."""
    if not isinstance(scalar, Instance):
        return ""
    kind = _KINDS.get(scalar.type.fullname)
    if kind is None:
        return {"bool_": "bool", "generic": ""}.get(scalar.type.name, scalar.type.name)
    width = get_proper_type(scalar.args[0]) if scalar.args else None
    bits = _BITS.fullmatch(width.type.name) if isinstance(width, Instance) else None
    # the width of a complex type is that of a part
    return "" if bits is None else f"{kind}{int(bits[1]) * (2 if kind == 'complex' else 1)}"


def short_name(dtype: str) -> str:
    """Return the name that dagpu exports for a dtype: `f32` for `float32`."""
    if dtype in ("bool", "bfloat16"):
        return "bool_" if dtype == "bool" else "bf16"
    return dtype.replace("uint", "u").replace("int", "i").replace("float", "f").replace("complex", "c")


def describe(type_: Type) -> str:
    """Describe an argument's type in the words of the run time: `a Tensor of float32`."""
    proper = get_proper_type(type_)
    if (op := as_op(proper)) is not None:
        return f"an op that yields {describe(op.args[0])}"
    if isinstance(proper, UnionType):
        return " or ".join(dict.fromkeys(map(describe, proper.items)))
    if not isinstance(proper, Instance):
        return _OTHERS.get(type(proper).__name__, "something else")
    element, name = element_of(proper), proper.type.name
    if name == "ndarray":
        return "a NumPy array"
    article = "an" if name[0] in "aeiouAEIOU" else "a"
    return f"{article} {name} of {element}" if element else f"{article} {name}"


# ---- results of many components

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
    parts = [as_op(get_proper_type(type_)) for type_ in given]
    if len(given) <= _OVERLOADS or kinds != {ARG_POS} or not isinstance(op, Instance):
        return context.default_return_type
    results = [part.args[0] for part in parts if part is not None]
    if len(results) < len(parts):  # an argument is an `Any`, or not an op
        return context.default_return_type
    return op.copy_modified(args=[tuple_of(results, context.api), *op.args[1:]])


def _part_types(context: MethodContext) -> list[Type]:
    """Return the op types for the parts of an op whose result is a long tuple; empty for other ops."""
    op = as_op(get_proper_type(context.type))
    whole = get_proper_type(op.args[0]) if op is not None else None
    if op is None or not isinstance(whole, TupleType) or len(whole.items) <= _OVERLOADS:
        return []
    return [op.copy_modified(args=[item, *op.args[1:]]) for item in whole.items]


def _type_unzip(context: MethodContext) -> Type:
    parts = _part_types(context)
    return tuple_of(parts, context.api) if parts else context.default_return_type


def _type_part(index: int) -> Callable[[MethodContext], Type]:
    """Return the hook of a method that gives the op for one part."""
    return lambda context: (_part_types(context) or {index: context.default_return_type})[index]


FUNCTION_HOOKS: dict[str, Callable[[FunctionContext], Type]] = {names.VALUE: _type_value, names.ZIP_OPS: _type_zip_ops}
METHOD_HOOKS: dict[str, Callable[[MethodContext], Type]] = {
    f"{names.PIPELINE}.__call__": _type_pipeline_call,
    names.NEW_OUTPUT_CALL: type_new_output,
    names.NEW_OUTPUTS_CALL: type_new_output,
    names.EXPRESSION_CALL: type_new_output,
    names.REDUCED_EXPRESSION_CALL: type_new_output,
    names.TUPLE_EXPRESSION_CALL: type_new_output,
    names.FOREIGN_FUNCTION_CALL: type_new_output,
    # mypy names the method of an operator by the class of the operand.
    **{
        f"{owner}.__{method}__": _type_operator
        for owner in (names.TENSOR, names.SHARED_TENSOR, names.TENSOR_REF, names.TENSOR_MUT, names.DEVICE_OP)
        for method in names.OPERATOR_METHODS
    },
    f"{names.DEVICE_OP}.unzip": _type_unzip,
    f"{names.DEVICE_OP}.first": _type_part(0),
    f"{names.DEVICE_OP}.last": _type_part(-1),
}
