"""Abstract evaluation of calls: of kernels, of methods of handles and ops, and of functions whose results are known."""

from collections.abc import Callable, Iterable
from typing import Protocol, final

from mypy.nodes import ARG_NAMED, ARG_POS, CallExpr, Decorator, Expression, LambdaExpr, MemberExpr, RefExpr
from mypy.types import Instance, Type, get_proper_type

from dagpu.mypy_plugin import names
from dagpu.mypy_plugin.shapes import shape_calls
from dagpu.mypy_plugin.shapes.shape_values import (
    Array,
    Extents,
    Made,
    NewOutput,
    Op,
    Several,
    Value,
    as_extents,
    result_of,
    value_of_type,
)
from dagpu.mypy_plugin.typing import argument_forms


class CallChecker(Protocol):
    """Receives the calls that the evaluator comes across, and the declarations of kernels, to check them."""

    def check_partition(self, call: CallExpr, receiver: Value, tile: Value, partial: Expression | None) -> None:
        """Check a call of `partition` on a handle or an op."""

    def check_kernel(self, call: CallExpr, kernel: Type, arguments: list[Value]) -> None:
        """Check a call of a kernel, with the arguments in the order of the parameters."""

    def check_new(self, call: CallExpr, callee: Expression, kernel: Type, shape: Extents) -> None:
        """Check the shape of a call of `kernel.new`."""

    def check_new_inputs(self, call: CallExpr, callee: Expression, kernel: Type, inputs: list[Value]) -> None:
        """Check a call of what `kernel.new` returned, with the inputs in the order of the parameters."""

    def check_write(self, call: CallExpr, callee: MemberExpr, at: Value, data: Value) -> None:
        """Check a call of a method `write`, with the part and the data."""

    def check_declaration(self, declared: Decorator, place: Expression, sees: Value) -> None:
        """Check what a kernel declares to see in the decorator at `place`."""


class ExpressionEvaluator(Protocol):
    """Evaluates the parts of a call."""

    checking: bool
    call_checker: CallChecker | None
    type_of: Callable[[Expression], Type | None]

    def visit(self, expression: Expression | None) -> Value:
        """Evaluate an expression."""

    def visit_all(self, expressions: Iterable[Expression | None]) -> None:
        """Visit expressions for the calls in them."""

    def apply(self, lambda_: LambdaExpr, argument: Value) -> Value:
        """Return the value of a call of a lambda."""


@final
class CallEvaluator:
    """Evaluates calls for an evaluator of expressions."""

    def __init__(self, evaluator: ExpressionEvaluator) -> None:
        self._evaluator = evaluator

    @property
    def _checker(self) -> CallChecker | None:
        """The checker of the calls that are certain to happen; None where a wrong call is not reported."""
        return self._evaluator.call_checker if self._evaluator.checking else None

    def visit(self, call: CallExpr) -> Value:
        """Evaluate a call, and check it."""
        callee = call.callee
        if isinstance(callee, RefExpr) and callee.node is not None:
            name = callee.node.fullname
            if name in shape_calls.FUNCTIONS:
                parameters, function = shape_calls.FUNCTIONS[name]
                return function(self._arguments(call, parameters), call)
            if name in shape_calls.MADE:
                return self._made(call, name)
            if name == names.AROUND:
                values = list(map(self._evaluator.visit, call.args))
                return Made(name, tuple(values)) if set(call.arg_kinds) <= {ARG_POS} else None
            if name == names.ZIP_OPS:
                values = list(map(self._evaluator.visit, call.args))
                return shape_calls.call_zip_ops(values, call) if set(call.arg_kinds) <= {ARG_POS} else None
        type_ = get_proper_type(self._evaluator.type_of(callee))
        if isinstance(type_, Instance) and type_.type.fullname == names.KERNEL:
            return self._call_kernel(call, type_)
        if isinstance(type_, Instance) and type_.type.fullname == names.NEW_OUTPUT:
            return self._call_new_output(call, self._evaluator.visit(callee))
        if isinstance(callee, MemberExpr):
            if callee.name == "new" and (kernel := self._kernel_type(callee.expr)) is not None:
                return self._call_new(call, callee.expr, kernel)
            return self._call_method(call, callee)
        self._evaluator.visit(callee)
        self._evaluator.visit_all(call.args)
        return value_of_type(self._evaluator.type_of(call))

    def _arguments(self, call: CallExpr, parameters: tuple[str, ...]) -> dict[str, Value]:
        """Visit all arguments. Return the values of those for the given first parameters, by name.

        The result is empty for a call with `*args` or `**kwargs`.
        """
        given: dict[str, Value] = {}
        for index, (argument, kind, name) in enumerate(zip(call.args, call.arg_kinds, call.arg_names, strict=True)):
            value = self._evaluator.visit(argument)
            if kind == ARG_NAMED and name is not None:
                given[name] = value
            elif kind == ARG_POS and index < len(parameters):
                given[parameters[index]] = value
        return given if _is_plain(call) else {}

    def _made(self, call: CallExpr, name: str) -> Value:
        """Evaluate a call of a class; None for one with `*args` or `**kwargs`."""
        parameters, defaults = shape_calls.MADE[name]
        given = self._arguments(call, parameters if name != names.SLICE or len(call.args) > 1 else ("stop",))
        return Made(name, tuple(map(given.get, parameters, defaults))) if _is_plain(call) else None

    def _call_method(self, call: CallExpr, callee: MemberExpr) -> Value:
        receiver = self._evaluator.visit(callee.expr)
        if callee.name in ("then", "map") and isinstance(receiver, Op):
            return self._composed(call, callee.name, receiver)
        given = self._arguments(call, shape_calls.PARAMETERS.get(callee.name, ()))
        if callee.name == "partition" and (checker := self._checker) is not None:
            whole = result_of(receiver) if isinstance(receiver, Op) else receiver
            named = dict(zip(call.arg_names, call.args, strict=True))
            checker.check_partition(call, whole, given.get("tile"), named.get("partial"))
        if callee.name == "write" and (checker := self._checker) is not None:
            checker.check_write(call, callee, given.get("at"), given.get("data"))
        value = shape_calls.call_method(receiver, callee.name, given, call)
        return value_of_type(self._evaluator.type_of(call)) if value is None else value

    def _composed(self, call: CallExpr, name: str, op: Op) -> Value:
        """Evaluate `op.then(f)` and `op.map(f)`, where `f` is a lambda."""
        if len(call.args) != 1 or not isinstance(call.args[0], LambdaExpr):
            self._evaluator.visit_all(call.args)
            return value_of_type(self._evaluator.type_of(call))
        value = self._evaluator.apply(call.args[0], op.result)
        return Op(result_of(value) if name == "then" else value, call)

    def _call_kernel(self, call: CallExpr, kernel: Instance) -> Value:
        """Evaluate a kernel call: an op whose result is the tuple of all arguments, in the order of the parameters."""
        self._evaluator.visit(argument_forms.base_kernel(call.callee))
        parameters = argument_forms.parameters_of(kernel)
        order = () if parameters is None else tuple([name or "" for name in parameters.arg_names])
        given = self._arguments(call, order)
        arguments = [given.get(name) for name in order]
        if (checker := self._checker) is not None and _is_plain(call):
            checker.check_kernel(call, kernel, arguments)
        parts = [result_of(value) if isinstance(value, Op) else value for value in arguments]
        return Op(Several(tuple(parts)), call)

    def _kernel_type(self, expression: Expression) -> Instance | None:
        type_ = get_proper_type(self._evaluator.type_of(expression))
        return type_ if isinstance(type_, Instance) and type_.type.fullname == names.KERNEL else None

    def _call_new(self, call: CallExpr, callee: Expression, kernel: Instance) -> Value:
        """Evaluate `kernel.new(shape, tile)`."""
        self._evaluator.visit(argument_forms.base_kernel(callee))
        given = self._arguments(call, shape_calls.PARAMETERS["new"])
        shape = as_extents(given.get("shape"))
        if shape is not None and (checker := self._checker) is not None:
            named = dict(zip(call.arg_names, call.args, strict=True))
            checker.check_partition(call, Array(shape), given.get("tile"), named.get("partial"))
            checker.check_new(call, callee, kernel, shape)
        return NewOutput(shape, kernel, callee)

    def _call_new_output(self, call: CallExpr, made: Value) -> Value:
        """Evaluate a call of what `kernel.new(shape, tile)` returns: an op with a new tensor of that shape."""
        parameters = argument_forms.parameters_of(made.kernel) if isinstance(made, NewOutput) else None
        inputs = () if parameters is None else tuple([name or "" for name in parameters.arg_names[1:]])
        given = self._arguments(call, inputs)
        if not isinstance(made, NewOutput):
            return value_of_type(self._evaluator.type_of(call))
        if inputs and _is_plain(call) and (checker := self._checker) is not None:
            checker.check_new_inputs(call, made.callee, made.kernel, [given.get(name) for name in inputs])
        return value_of_type(self._evaluator.type_of(call)) if made.shape is None else Op(Array(made.shape), call)


def _is_plain(call: CallExpr) -> bool:
    """Return True for a call without `*args` and `**kwargs`."""
    return all(kind in (ARG_POS, ARG_NAMED) for kind in call.arg_kinds)
