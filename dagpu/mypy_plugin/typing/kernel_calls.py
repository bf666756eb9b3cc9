"""Kernel calls: the exact type of the op that a call builds, checks of its inputs and outputs, and declared ranks.

Without the plugin, the type of a call is `KernelOp`, whose parts are `Any`. With it, the type is
`DeviceOp[tuple[...], L, G]`, with each argument in the form in which it was passed.

The ranks of a kernel's parameters are parsed from its CUDA source and stored in the kernel's type: as extra attributes,
under names that a user cannot write. mypy keeps these in its cache, so a module that imports a kernel has them without
reading the declaring file again. mypy ignores them in subtype checks: a parameter `k: Kernel[[Out[f32]]]` takes kernels
of every rank.
"""

import re
from collections.abc import Callable
from typing import TypeAlias

from mypy.errorcodes import ARG_TYPE
from mypy.nodes import (
    ARG_STAR,
    ARG_STAR2,
    AssignmentStmt,
    CallExpr,
    Decorator,
    Expression,
    MypyFile,
    NameExpr,
    RefExpr,
    StrExpr,
    Var,
)
from mypy.plugin import CheckerPluginInterface, FunctionContext, MethodContext, MethodSigContext
from mypy.subtypes import is_subtype
from mypy.typeops import make_simplified_union
from mypy.types import (
    AnyType,
    CallableType,
    FunctionLike,
    Instance,
    LiteralType,
    TupleType,
    Type,
    TypeOfAny,
    UnionType,
    get_proper_type,
)

from dagpu.mypy_plugin import messages, names
from dagpu.mypy_plugin.typing import op_types
from dagpu.mypy_plugin.typing.type_facts import class_name, literal_of

# ---- ranks in a CUDA text

Ranks: TypeAlias = tuple[int | None, ...]
"""The rank of each parameter in order; None for a scalar and for an unknown rank."""

_SKIPPED = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL)
_MACRO = re.compile(r"^\s*#\s*define\s+(\w+)", re.MULTILINE)
_KERNEL = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\s*\([^()]*\)\s*)?(\w+)\s*\(([^()#]*)\)\s*[{;]")
_TENSOR = re.compile(r"(?:const\s+)?(?:(?:::\s*)?dagpu\s*::\s*)?(?:Tile|View)\s*<[^<>]*,\s*([1-9]\d*)\s*>\s*\w*")


def kernel_ranks(source: str) -> dict[str, Ranks]:
    """Return the parameter ranks of each kernel by name. Kernels declared more than once are left out."""
    code = _SKIPPED.sub(" ", source)
    macros = frozenset(_MACRO.findall(code))
    found: list[tuple[str, str]] = _KERNEL.findall(code)
    kernels = [name for name, _ in found]
    return {
        name: tuple(map(_rank, _parameters(inside)))
        for name, inside in found
        if kernels.count(name) == 1 and macros.isdisjoint(re.findall(r"\w+", inside))
    }


def _parameters(inside: str) -> list[str]:
    """Split a parameter list at the commas outside `<...>`."""
    parts = [part.strip() for part in re.split(r",(?![^<>]*>)", inside)]
    return [] if parts in ([""], ["void"]) else parts


def _rank(parameter: str) -> int | None:
    whole = _TENSOR.fullmatch(parameter)
    return None if whole is None else int(whole[1])


_PREFIX = "CUDA ranks of "


def attach_ranks(context: FunctionContext) -> Type:
    """Type `kernel(cuda=...)`: the kernel that this decorator makes has the ranks of all kernels in the source.

    The decorated function, and with it the one kernel that is meant, is not known yet.
    """
    decorator = get_proper_type(context.default_return_type)
    source = _source(context)
    if source is None or not isinstance(decorator, CallableType):
        return context.default_return_type
    kernel = get_proper_type(decorator.ret_type)
    if not isinstance(kernel, Instance):
        return context.default_return_type
    text = context.api.named_generic_type("builtins.str", [])
    for name, ranks in kernel_ranks(source).items():
        shown = ",".join("" if rank is None else str(rank) for rank in ranks)
        kernel = kernel.copy_with_extra_attr(_PREFIX + name, LiteralType(shown, text))
    return decorator.copy_modified(ret_type=kernel)


def copy_ranks(context: MethodContext) -> Type:
    """Type `kernel.grid(...)` and similar methods: the result has the ranks of the kernel."""
    before, after = context.type, get_proper_type(context.default_return_type)
    if isinstance(before, Instance) and before.extra_attrs and isinstance(after, Instance):
        for name, fact in before.extra_attrs.attrs.items():
            after = after.copy_with_extra_attr(name, fact)
    return after


def ranks_of(callee: Expression, kernel: Type) -> Ranks:
    """Return the ranks that the CUDA source of a called kernel declares; empty if they are unknown.

    They are known only for a kernel that is called by the name of its `def`. A variable may hold different kernels at
    different times.
    """
    base = op_types.base_kernel(callee)
    node = base.node if isinstance(base, RefExpr) else None
    return ranks_named(node.name, kernel) if isinstance(node, Decorator) else ()


def ranks_named(name: str, kernel: Type) -> Ranks:
    """Return the ranks that the CUDA source declares for the kernel of this name; empty if they are unknown."""
    proper = get_proper_type(kernel)
    if not isinstance(proper, Instance) or not proper.extra_attrs:
        return ()
    fact = proper.extra_attrs.attrs.get(_PREFIX + name)
    if not isinstance(fact, LiteralType) or not isinstance(fact.value, str):
        return ()
    return tuple([int(rank) if rank else None for rank in fact.value.split(",")])


def _source(context: FunctionContext) -> str | None:
    """Return the CUDA source of a kernel that takes tiles and views, if it is a literal or a constant of this file."""
    given = {
        name: (types[0], places[0])
        for name, types, places in zip(context.callee_arg_names, context.arg_types, context.args, strict=True)
        if types and name is not None
    }
    if "abi" in given and _string_of(given["abi"][0]) != "views":
        return None
    if "cuda" not in given or any(context.args[0]):
        return None  # with a name, the kernel may be another than the one that the function is named after
    type_, place = given["cuda"]
    text = _string_of(type_)
    if text is None and isinstance(place, NameExpr) and isinstance(place.node, Var):
        text = _string_of_constant(place.node, context)
    return text


def _string_of(type_: Type) -> str | None:
    """Return the string of a literal type or a `Final`; None for other types."""
    literal = literal_of(type_)
    return literal.value if literal is not None and isinstance(literal.value, str) else None


def _string_of_constant(variable: Var, context: FunctionContext) -> str | None:
    """Return the string of a variable that this file assigns exactly once, at its top level; None for others."""
    file = getattr(context.api, "tree", None)
    if not isinstance(file, MypyFile):
        return None
    values = [
        statement.rvalue
        for statement in file.defs
        if isinstance(statement, AssignmentStmt)
        for place in statement.lvalues
        if isinstance(place, NameExpr) and place.node is variable
    ]
    return values[0].value if len(values) == 1 and isinstance(values[0], StrExpr) else None


_NUMBERS = {"numpy.inexact": "float", "numpy.integer": "int", "numpy.bool": "bool", "numpy.bool_": "bool"}
"""Base classes of NumPy's scalar types, each with the Python type that a kernel call converts such a number to."""


def _widen_signature(context: MethodSigContext) -> FunctionLike:
    """Return a signature that accepts any object as a tensor. `_type_call` checks these arguments in mypy's place.

    The type is `object` and not `Any`: with `Any` as the type context, mypy would infer `DeviceOp[Any]` for an argument
    such as `op.map(lambda t: ...)`. It also halves the time, because mypy compares an argument with all six members of
    an `In`.
    """
    signature = context.default_signature
    anything = context.api.named_generic_type("builtins.object", [])
    formals = [anything if op_types.parameter(formal).is_checked_here else formal for formal in signature.arg_types]
    return signature.copy_modified(arg_types=formals)


def _type_call(context: MethodContext) -> Type:
    """Return the type of the op that a kernel call builds, and report its wrong arguments."""
    formals = _formals(context)
    if formals is None:
        return context.default_return_type
    for index, (formal, given) in enumerate(zip(formals, context.arg_types, strict=True)):
        wanted = op_types.parameter(formal)
        if given and wanted.is_checked_here and not is_subtype(given[0], wanted.type):
            _refuse(context, index, formal, given[0])
    return _op_type(context, formals)


def _type_write(context: MethodContext) -> Type:
    """Return the type of the op that writes to partitions: of a call of a foreign op, `expression.into(out, ...)` or
    `expression.update(out, ...)`. mypy has checked its arguments.

    The output of `update` stands for the first parameter of the expression.
    """
    formals = _formals(context)
    return context.default_return_type if formals is None else _op_type(context, formals)


def _name_parameters(context: FunctionContext) -> Type:
    """Return the type of `@expr` over a function, whose parameters keep their names: a call may use them."""
    made, given = get_proper_type(context.default_return_type), context.arg_types[0]
    function = get_proper_type(given[0]) if given else None
    parameters = op_types.parameters_of(made, names.EXPRESSION) or op_types.parameters_of(made, names.TUPLE_EXPRESSION)
    if (
        parameters is None
        or not isinstance(made, Instance)
        or not isinstance(function, CallableType)
        or len(function.arg_names) != len(parameters.arg_types)
    ):
        return made
    named = parameters.copy_modified(arg_names=list(function.arg_names))
    return made.copy_modified(args=[named, *made.args[1:]])


def _formals(context: MethodContext) -> list[Type] | None:
    """Return the types of the parameters of a call; None if they are unknown, or an argument is starred.

    Those of a method of an expression are the last ones of the expression, after the output.
    """
    owner = class_name(context.type)
    parameters = op_types.parameters_of(context.type, owner)
    if (
        parameters is None
        or parameters.is_ellipsis_args
        or any(kind in (ARG_STAR, ARG_STAR2) for kinds in context.arg_kinds for kind in kinds)
    ):
        return None
    formals, count = list(parameters.arg_types), len(context.arg_types)
    if owner == names.EXPRESSION and len(formals) >= count - 1:
        formals = [_any_output(context.api), *formals[len(formals) - count + 1 :]]
    return formals if len(formals) == count else None


def _any_output(api: CheckerPluginInterface) -> UnionType:
    """Return the type of a parameter for an output of any elements."""
    anything = AnyType(TypeOfAny.special_form)
    partition = op_types.dagpu_type(names.PARTITION, [anything, anything], api)
    return UnionType([partition])


def _op_type(context: MethodContext, formals: list[Type]) -> Type:
    """Return the type of an op whose result is the tuple of all arguments."""
    parts, lifetimes, allocations = list[Type](), list[Type | None](), list[Type | None]()
    for formal, given in zip(formals, context.arg_types, strict=True):
        if not given:  # the default value applies; only numbers have one
            parts.append(_number_type(formal, context.api))
            continue
        parts.append(_part_type(formal, given[0], context.api))
        if op_types.parameter(formal).form != "number":
            lifetimes.append(op_types.lifetime(given[0], context.api))
            allocations.append(op_types.allocation(given[0]))
    whole = op_types.tuple_of(parts, context.api)
    borrows = op_types.join(lifetimes) or op_types.dagpu_type(names.STATIC, [], context.api)
    allocates = op_types.join(allocations) or op_types.dagpu_type(names.NO_ALLOC, [], context.api)
    return op_types.dagpu_type(names.DEVICE_OP, [whole, borrows, allocates], context.api)


def _part_type(formal: Type, actual: Type, api: CheckerPluginInterface) -> Type:
    """Return the type of the result for one argument: an op's result type, the handle itself, or a Python number."""
    proper = get_proper_type(actual)
    if isinstance(proper, UnionType):
        return make_simplified_union([_part_type(formal, item, api) for item in proper.items])
    if (op := op_types.as_op(proper)) is not None:
        return op.args[0]
    if op_types.is_handle(proper):
        return actual
    return _number_type(formal, api) if op_types.parameter(formal).takes_numbers else actual


def _number_type(formal: Type, api: CheckerPluginInterface) -> Type:
    """Return the Python type of the result for a number, which the call converts to the type that CUDA declares."""
    proper = get_proper_type(formal)
    if isinstance(proper, UnionType):  # Lazy[float], or a number beside the tensors of an expression
        plain = op_types.numbers_in(proper)
        elements = {op_types.element_of(item) for item in proper.items} - {""}
        if elements and not any(element.startswith("complex") for element in elements):
            return api.named_generic_type("builtins.float", [])  # whatever the annotation allows beside real elements
        return make_simplified_union([_number_type(item, api) for item in plain])
    if isinstance(proper, Instance):
        for base, number in _NUMBERS.items():
            if proper.type.has_base(base):
                return api.named_generic_type(f"builtins.{number}", [])
    return formal


def _refuse(context: MethodContext, index: int, formal: Type, actual: Type) -> None:
    """Report a wrong tensor argument, in the words of `dagpu.kernels.call_arguments`."""
    place = context.args[index][0]
    callee = context.context.callee if isinstance(context.context, CallExpr) else place
    where = f"{op_types.kernel_name(callee)}, argument {context.callee_arg_names[index]!r}"
    form, element, got = op_types.parameter(formal).form, op_types.element_of(formal), op_types.describe(actual)
    if op_types.is_fitting(actual, form):
        name, cut = op_types.short_name(element), " before it is cut" if form == "out" else ""
        cure = f"Convert it{cut}: convert(t, {name})"
        if op_types.element_of(actual).startswith("complex") and not element.startswith("complex"):
            cure = "Take a real part of it before: array.real(t), array.imag(t), or its size, array.abs(t)"
        context.api.fail(f"{where}: got {got}, but elements of {element} are wanted. {cure}.", place, code=ARG_TYPE)
        return
    wanted = "a Partition" if form == "out" else "a Tensor, SharedTensor, TensorRef or TensorMut"
    what = f"got {got}, but {wanted} of {element}, or an op whose result is one, is wanted"
    code = messages.OUTPUT_PARTITION if form == "out" else ARG_TYPE
    context.api.fail(f"{where}: {what}. {_cure(actual, form, element)}.", place, code=code)


def _cure(actual: Type, form: op_types.Form, element: str) -> str:
    """Return the cure: a way to convert the argument to the wanted form."""
    proper = get_proper_type(actual)
    if (op := op_types.as_op(proper)) is not None:
        proper = get_proper_type(op.args[0])
    if isinstance(proper, TupleType):
        return "Pick one of a kernel's results with .first() or .unzip()"
    cut = ".partition(tile)" if form == "out" else ""
    match proper.type.fullname if isinstance(proper, Instance) else "":
        case names.PARTITION:
            return "Put it together: .unpartition()"
        case names.SHARED_TENSOR:
            return "It is immutable: write to a copy, dup(t).partition(tile), or to an empty(...).partition(tile)"
        case names.TENSOR_REF:
            return "It is lent for reading: lend it for writing, .borrow_mut().partition(tile)"
        case names.TENSOR | names.TENSOR_MUT:
            return "Cut it into tiles: .partition(tile)"
        case "numpy.ndarray":
            return f"Bring it to the device: from_host(array){cut}"
        case _:
            made = f"from_host(np.asarray(..., {op_types.short_name(element)})){cut}"
            return f"Make a tensor of it, {made}, or check the order of the arguments"


FUNCTION_HOOKS: dict[str, Callable[[FunctionContext], Type]] = {
    names.KERNEL_DECORATOR: attach_ranks,
    names.EXPRESSION_DECORATOR: _name_parameters,
}
METHOD_HOOKS: dict[str, Callable[[MethodContext], Type]] = {
    names.KERNEL_CALL: _type_call,
    **dict.fromkeys((names.FOREIGN_CALL, names.EXPRESSION_INTO, names.EXPRESSION_UPDATE), _type_write),
    **dict.fromkeys((f"{names.KERNEL}.{name}" for name in ("grid", "block", "shared_memory")), copy_ranks),
}
SIGNATURE_HOOKS: dict[str, Callable[[MethodSigContext], FunctionLike]] = {names.KERNEL_CALL: _widen_signature}
