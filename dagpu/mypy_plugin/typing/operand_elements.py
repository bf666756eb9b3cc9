"""The element types of the operands of a product, which are one: mypy would infer `object` for two, and name that."""

from collections.abc import Callable
from typing import Final

from mypy.errorcodes import TYPE_VAR
from mypy.expandtype import expand_type
from mypy.plugin import FunctionContext, FunctionSigContext, MethodContext, MethodSigContext
from mypy.types import FunctionLike, Type, TypeVarId, TypeVarType

from dagpu.mypy_plugin import messages, names
from dagpu.mypy_plugin.typing import argument_forms, op_parameters


def part_operands(context: FunctionSigContext) -> FunctionLike:
    """Return the signature of a product with a type variable for each of its two operands; `_check` compares them."""
    signature = context.default_signature
    (element,) = signature.variables
    if not isinstance(element, TypeVarType):
        return signature
    other = element.copy_modified(id=TypeVarId(element.id.raw_id - 1, namespace=element.id.namespace))
    formals = list(signature.arg_types)
    formals[1] = expand_type(formals[1], {element.id: other})
    return signature.copy_modified(variables=[element, other], arg_types=formals)


def _check(context: FunctionContext) -> Type:
    """Report operands of two element types, in the words of the run."""
    given = [types[0] for types in context.arg_types[:2] if types]
    found = [argument_forms.short_name(argument_forms.element_of(each)) for each in given]
    if len(found) == 2 and all(found) and found[0] != found[1]:
        where = context.args[1][0]
        context.api.fail(messages.two_element_types(*found), where, code=TYPE_VAR)
    return op_parameters.type_new_output(context)


FUNCTION_HOOKS: Final[dict[str, Callable[[FunctionContext], Type]]] = {names.MATMUL: _check}
METHOD_HOOKS: Final[dict[str, Callable[[MethodContext], Type]]] = {}
SIGNATURE_HOOKS: Final[dict[str, Callable[[MethodSigContext], FunctionLike]]] = {}
FUNCTION_SIGNATURE_HOOKS: Final[dict[str, Callable[[FunctionSigContext], FunctionLike]]] = {names.MATMUL: part_operands}
