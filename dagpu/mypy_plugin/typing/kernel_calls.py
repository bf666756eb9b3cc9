"""Kernel calls: the exact type of the op that a call builds, and checks of its inputs and outputs.

Without the plugin, the type of a call is `KernelOp`, whose parts are `Any`. With it, the type is
`DeviceOp[tuple[...], L, G]`, with each argument in the form in which it was passed.
"""

from collections.abc import Callable

from mypy.errorcodes import ARG_TYPE
from mypy.nodes import ARG_STAR, ARG_STAR2, CallExpr
from mypy.plugin import CheckerPluginInterface, FunctionContext, MethodContext, MethodSigContext
from mypy.subtypes import is_subtype
from mypy.typeops import make_simplified_union
from mypy.types import (
    AnyType,
    CallableType,
    FunctionLike,
    Instance,
    TupleType,
    Type,
    TypeOfAny,
    UnionType,
    get_proper_type,
)

from dagpu.mypy_plugin import codes, names
from dagpu.mypy_plugin.typing import argument_forms, kernel_facts, op_parameters

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
    formals = [anything if argument_forms.is_checked_here(formal) else formal for formal in signature.arg_types]
    return signature.copy_modified(arg_types=formals)


def _type_call(context: MethodContext) -> Type:
    """Return the type of the op that a kernel call builds, and report its wrong arguments."""
    formals = _formals(context, names.KERNEL)
    if formals is None:
        return context.default_return_type
    for index, (formal, given) in enumerate(zip(formals, context.arg_types, strict=True)):
        if (
            given
            and argument_forms.is_checked_here(formal)
            and not is_subtype(given[0], argument_forms.expand_alias(formal))
        ):
            _refuse(context, index, formal, given[0])
    return _op_type(context, formals)


def _type_foreign_call(context: MethodContext) -> Type:
    """Return the type of the op that a call of a foreign op with partitions builds. mypy has checked its arguments."""
    formals = _formals(context, names.FOREIGN)
    return context.default_return_type if formals is None else _op_type(context, formals)


def _type_expression_write(context: MethodContext) -> Type:
    """Return the type of `expression.into(out, ...)` or `expression.update(out, ...)`. mypy has checked its arguments.

    The output of `update` stands for the first parameter of the expression.
    """
    formals = _formals(context, names.EXPRESSION)
    return context.default_return_type if formals is None else _op_type(context, formals)


def _name_parameters(context: FunctionContext) -> Type:
    """Return the type of `@expr` over a function, whose parameters keep their names: a call may use them."""
    made, given = get_proper_type(context.default_return_type), context.arg_types[0]
    function = get_proper_type(given[0]) if given else None
    parameters = argument_forms.parameters_of(made, names.EXPRESSION)
    if (
        parameters is None
        or not isinstance(made, Instance)
        or not isinstance(function, CallableType)
        or len(function.arg_names) != len(parameters.arg_types)
    ):
        return made
    named = parameters.copy_modified(arg_names=list(function.arg_names))
    return made.copy_modified(args=[named, *made.args[1:]])


def _formals(context: MethodContext, owner: str) -> list[Type] | None:
    """Return the types of the parameters of a call; None if they are unknown, or an argument is starred.

    Those of a method of an expression are the last ones of the expression, after the output.
    """
    parameters = argument_forms.parameters_of(context.type, owner)
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
    partition = op_parameters.dagpu_type(names.PARTITION, [anything, anything], api)
    return UnionType([partition])


def _op_type(context: MethodContext, formals: list[Type]) -> Type:
    """Return the type of an op whose result is the tuple of all arguments."""
    parts, lifetimes, allocations = list[Type](), list[Type | None](), list[Type | None]()
    for formal, given in zip(formals, context.arg_types, strict=True):
        if not given:  # the default value applies; only numbers have one
            parts.append(_number_type(formal, context.api))
            continue
        parts.append(_part_type(formal, given[0], context.api))
        if argument_forms.form_of(formal) != "number":
            lifetimes.append(op_parameters.lifetime(given[0], context.api))
            allocations.append(op_parameters.allocation(given[0]))
    whole = argument_forms.tuple_of(parts, context.api)
    borrows = op_parameters.join(lifetimes) or op_parameters.dagpu_type(names.STATIC, [], context.api)
    allocates = op_parameters.join(allocations) or op_parameters.dagpu_type(names.NO_ALLOC, [], context.api)
    return op_parameters.dagpu_type(names.DEVICE_OP, [whole, borrows, allocates], context.api)


def _part_type(formal: Type, actual: Type, api: CheckerPluginInterface) -> Type:
    """Return the type of the result for one argument: an op's result type, the handle itself, or a Python number."""
    proper = get_proper_type(actual)
    if isinstance(proper, UnionType):
        return make_simplified_union([_part_type(formal, item, api) for item in proper.items])
    if (op := op_parameters.as_op(proper)) is not None:
        return op.args[0]
    if argument_forms.is_handle(proper):
        return actual
    return _number_type(formal, api) if argument_forms.accepts_numbers(formal) else actual


def _number_type(formal: Type, api: CheckerPluginInterface) -> Type:
    """Return the Python type of the result for a number, which the call converts to the type that CUDA declares."""
    proper = get_proper_type(formal)
    if isinstance(proper, UnionType):  # Lazy[float], or a number beside the tensors of an expression
        plain = argument_forms.numbers_in(proper)
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
    where = f"{argument_forms.kernel_name(callee)}, argument {context.callee_arg_names[index]!r}"
    form, element, got = (
        argument_forms.form_of(formal),
        argument_forms.element_of(formal),
        argument_forms.describe(actual),
    )
    if argument_forms.is_fitting(actual, form):
        name, cut = argument_forms.short_name(element), " before it is cut" if form == "out" else ""
        cure = f"Convert it{cut}: convert(t, {name})"
        context.api.fail(f"{where}: got {got}, but elements of {element} are wanted. {cure}.", place, code=ARG_TYPE)
        return
    wanted = "a Partition" if form == "out" else "a Tensor, SharedTensor, TensorRef or TensorMut"
    what = f"got {got}, but {wanted} of {element}, or an op whose result is one, is wanted"
    code = codes.OUTPUT_PARTITION if form == "out" else ARG_TYPE
    context.api.fail(f"{where}: {what}. {_cure(actual, form, element)}.", place, code=code)


def _cure(actual: Type, form: argument_forms.Form, element: str) -> str:
    """Return the cure: a way to convert the argument to the wanted form."""
    proper = get_proper_type(actual)
    if (op := op_parameters.as_op(proper)) is not None:
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
            made = f"from_host(np.asarray(..., {argument_forms.short_name(element)})){cut}"
            return f"Make a tensor of it, {made}, or check the order of the arguments"


FUNCTION_HOOKS: dict[str, Callable[[FunctionContext], Type]] = {
    **argument_forms.FUNCTION_HOOKS,
    names.KERNEL_DECORATOR: kernel_facts.attach_ranks,
    names.EXPRESSION_DECORATOR: _name_parameters,
}
METHOD_HOOKS: dict[str, Callable[[MethodContext], Type]] = {
    **argument_forms.METHOD_HOOKS,
    names.KERNEL_CALL: _type_call,
    names.FOREIGN_CALL: _type_foreign_call,
    names.EXPRESSION_INTO: _type_expression_write,
    names.EXPRESSION_UPDATE: _type_expression_write,
    **dict.fromkeys((f"{names.KERNEL}.{name}" for name in ("grid", "block", "shared_memory")), kernel_facts.copy_ranks),
}
SIGNATURE_HOOKS: dict[str, Callable[[MethodSigContext], FunctionLike]] = {names.KERNEL_CALL: _widen_signature}
