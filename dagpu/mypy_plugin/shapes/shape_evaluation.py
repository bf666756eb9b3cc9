"""Abstract evaluation of calls: of kernels, of methods of handles and ops, and of functions whose results are known."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol, final

from mypy.nodes import (
    ARG_NAMED,
    ARG_POS,
    GDEF,
    AssignmentExpr,
    AwaitExpr,
    CallExpr,
    ComparisonExpr,
    ConditionalExpr,
    Decorator,
    DictExpr,
    DictionaryComprehension,
    Expression,
    GeneratorExpr,
    IndexExpr,
    IntExpr,
    LambdaExpr,
    ListComprehension,
    ListExpr,
    MemberExpr,
    NameExpr,
    OpExpr,
    RefExpr,
    ReturnStmt,
    SetComprehension,
    SetExpr,
    StarExpr,
    StrExpr,
    SymbolNode,
    TupleExpr,
    UnaryExpr,
    YieldExpr,
    YieldFromExpr,
)
from mypy.types import Instance, Type, get_proper_type

from dagpu.mypy_plugin import names
from dagpu.mypy_plugin.shapes import shape_values
from dagpu.mypy_plugin.shapes.shape_values import (
    Array,
    Cut,
    Extents,
    Made,
    NewOutput,
    Nothing,
    Number,
    Op,
    Several,
    Table,
    Value,
    as_extents,
    joined,
    result_of,
    value_of_type,
)
from dagpu.mypy_plugin.typing import argument_forms, op_parameters

# ---- calls


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
            if name in shape_values.FUNCTIONS:
                parameters, function = shape_values.FUNCTIONS[name]
                return function(self._arguments(call, parameters), call)
            if name in shape_values.MADE:
                return self._made(call, name)
            if name == names.AROUND:
                values = list(map(self._evaluator.visit, call.args))
                return Made(name, tuple(values)) if set(call.arg_kinds) <= {ARG_POS} else None
            if name == names.ZIP_OPS:
                values = list(map(self._evaluator.visit, call.args))
                return shape_values.call_zip_ops(values, call) if set(call.arg_kinds) <= {ARG_POS} else None
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
        parameters, defaults = shape_values.MADE[name]
        given = self._arguments(call, parameters if name != names.SLICE or len(call.args) > 1 else ("stop",))
        return Made(name, tuple(map(given.get, parameters, defaults))) if _is_plain(call) else None

    def _call_method(self, call: CallExpr, callee: MemberExpr) -> Value:
        receiver = self._evaluator.visit(callee.expr)
        if callee.name in ("then", "map") and isinstance(receiver, Op):
            return self._composed(call, callee.name, receiver)
        given = self._arguments(call, shape_values.PARAMETERS.get(callee.name, ()))
        if callee.name == "partition" and (checker := self._checker) is not None:
            whole = result_of(receiver) if isinstance(receiver, Op) else receiver
            named = dict(zip(call.arg_names, call.args, strict=True))
            checker.check_partition(call, whole, given.get("tile"), named.get("partial"))
        if callee.name == "write" and (checker := self._checker) is not None:
            checker.check_write(call, callee, given.get("at"), given.get("data"))
        value = shape_values.call_method(receiver, callee.name, given, call)
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
        given = self._arguments(call, shape_values.PARAMETERS["new"])
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


# ---- expressions


@final
class Evaluator:
    """Evaluates expressions, each once. `known` has the values of the variables bound so far; None is unknown."""

    def __init__(
        self,
        type_of: Callable[[Expression], Type | None],
        call_checker: CallChecker | None = None,
        constants: Mapping[SymbolNode, Value] | None = None,
        *,
        in_function: bool = True,
    ) -> None:
        self.known: dict[SymbolNode, Value] = {}
        self._constants = constants or {}
        """The constants of the module, which functions read."""
        self.bound: list[SymbolNode] = []
        """Variables in the order of their bindings. A branch has bound those appended since its start."""
        self.checking = True
        """False if a wrong call here may be unreachable or deliberate; then it is not reported."""
        self._in_function = in_function
        self.type_of = type_of
        self.call_checker = call_checker
        self._calls = CallEvaluator(self)
        self._known_reads = 0
        """Number of reads of variables with a known value."""
        self.shared: set[SymbolNode] = set()
        """Variables that another function sets too. Their values are always unknown."""
        self._bindings: dict[SymbolNode, int] = {}
        """Number of bindings of each variable. A variable that is bound twice refers to two different ops."""

    # ---- variables

    def bind(self, place: Expression, value: Value) -> None:
        """Assign a value to a name, or the items of a value to a tuple of names."""
        if isinstance(place, NameExpr):
            if place.node is not None:
                elsewhere = self._in_function and place.kind == GDEF  # any other function may set it meanwhile
                self.bind_name(place.node, None if elsewhere else value)
        elif isinstance(place, TupleExpr | ListExpr):
            fits = isinstance(value, Several) and not any(isinstance(item, StarExpr) for item in place.items)
            items = value.items if fits and isinstance(value, Several) else ()
            for index, item in enumerate(place.items):
                self.bind(item, items[index] if index < len(items) else None)
        elif isinstance(place, StarExpr):
            self.bind(place.expr, None)
        else:
            self.visit(place)

    def bind_name(self, node: SymbolNode, value: Value) -> None:
        """Assign a value to a variable."""
        self.known[node] = None if node in self.shared or isinstance(value, Nothing) else value
        self.bound.append(node)
        self._bindings[node] = self._bindings.get(node, 0) + 1

    # ---- conditions

    def decides(self, test: Expression | None) -> bool:
        """Visit a condition. Return True if it depends on a known value, so that one outcome may be impossible."""
        if isinstance(test, ComparisonExpr) and set(test.operators) <= {"is", "is not"}:
            self.visit_all(test.operands)
            return False
        before = self._known_reads
        self.visit(test)
        return self._known_reads != before

    @contextmanager
    def silent(self, silent: bool = True) -> Iterator[None]:
        """Report no calls to the checker inside this context. With `silent=False` the context has no effect."""
        before, self.checking = self.checking, self.checking and not silent
        try:
            yield
        finally:
            self.checking = before

    # ---- expressions

    def visit(self, expression: Expression | None) -> Value:
        """Evaluate an expression. Return its known value, or None."""
        match expression:
            case NameExpr():
                return self._name(expression)
            case CallExpr():
                return self._calls.visit(expression)
            case MemberExpr():
                return self._member(expression)
            case IntExpr():
                return Number(expression.value)
            case TupleExpr():
                items = tuple([self.visit(item) for item in expression.items])
                return None if any(isinstance(item, StarExpr) for item in expression.items) else Several(items)
            case AwaitExpr():
                value = result_of(self.visit(expression.expr))
                return value_of_type(self.type_of(expression)) if value is None else value
            case IndexExpr():
                return self._index(expression)
            case OpExpr(op="and" | "or"):
                with self.silent(self.decides(expression.left)):
                    self.visit(expression.right)
                return None
            case OpExpr():
                return _compute(expression.op, self.visit(expression.left), self.visit(expression.right))
            case _:
                return self._visit_rarer(expression)

    def _visit_rarer(self, expression: Expression | None) -> Value:
        match expression:
            case UnaryExpr():
                value = self.visit(expression.expr)
                return _compute("-", Number(0), value) if expression.op == "-" else None
            case ConditionalExpr():
                with self.silent(self.decides(expression.cond)):
                    return joined(self.visit(expression.if_expr), self.visit(expression.else_expr))
            case AssignmentExpr():
                value = self.visit(expression.value)
                self.bind(expression.target, value)
                return value
            case LambdaExpr():
                self.apply(expression, None)
            case ListExpr() | SetExpr():
                self.visit_all(expression.items)
            case DictExpr():
                return self._table(expression)
            case ComparisonExpr():
                self.visit_all(expression.operands)
            case ListComprehension() | SetComprehension():
                self._comprehension(expression.generator, expression.generator.left_expr)
            case GeneratorExpr():
                self._comprehension(expression, expression.left_expr)
            case DictionaryComprehension():
                self._comprehension(expression, expression.key, expression.value)
            case StarExpr() | YieldExpr() | YieldFromExpr():
                self.visit(expression.expr)
            case _:
                pass
        return None

    def visit_all(self, expressions: Iterable[Expression | None]) -> None:
        """Visit expressions for the calls in them; their values are not needed."""
        for expression in expressions:
            self.visit(expression)

    def _table(self, display: DictExpr) -> Value:
        """Evaluate a dict display, whose keys and values are evaluated in turn."""
        items = list[tuple[str, Value]]()
        for key, part in display.items:
            self.visit(key)
            value = self.visit(part)
            if isinstance(key, StrExpr):
                items.append((key.value, value))
        return Table(tuple(items)) if len(items) == len(display.items) else None

    def _name(self, name: NameExpr) -> Value:
        if name.fullname == "builtins.None":
            return Nothing()
        node = name.node
        value = None if node is None else self.known.get(node)
        if value is None and node is not None and self._in_function:
            value = self._constants.get(node)
        type_ = get_proper_type(self.type_of(name)) if value is None else None
        if type_ is not None:
            value = value_of_type(type_)
        if value is not None:
            self._known_reads += 1
        elif node is not None and type_ is not None and op_parameters.as_op(type_) is not None:
            return Op(None, (node, self._bindings.get(node, 0)))
        return value

    def _member(self, member: MemberExpr) -> Value:
        base = self.visit(member.expr)
        if member.name == "shape" and isinstance(base, Array | Cut):
            return Several(tuple([None if extent is None else Number(extent) for extent in base.shape]))
        return value_of_type(self.type_of(member))

    def _index(self, index: IndexExpr) -> Value:
        base, place = self.visit(index.base), self.visit(index.index)
        if (
            isinstance(base, Several)
            and isinstance(place, Number)
            and -len(base.items) <= place.value < len(base.items)
        ):
            return base.items[place.value]
        return None

    def declare(self, declared: Decorator) -> None:
        """Evaluate the decorators of a function, and check what a kernel declares."""
        for place in declared.decorators:
            value = self.visit(place)
            is_kernel = isinstance(value, Made) and value.name == names.KERNEL_DECORATOR
            if isinstance(value, Made) and is_kernel and self.call_checker is not None and self.checking:
                self.call_checker.check_declaration(declared, place, value.arguments[0])

    def apply(self, lambda_: LambdaExpr, argument: Value) -> Value:
        """Return the value of a call of a lambda with one parameter.

        The lambda may run later, after the enclosing variables have changed, so these are unknown in it.
        """
        around, self.known = self.known, {}
        try:
            for index, parameter in enumerate(lambda_.arguments):
                self.bind_name(parameter.variable, argument if index == 0 and len(lambda_.arguments) == 1 else None)
            (body,) = lambda_.body.body
            return self.visit(body.expr) if isinstance(body, ReturnStmt) else None
        finally:
            self.known = around

    def _comprehension(self, loops: GeneratorExpr | DictionaryComprehension, *elements: Expression | None) -> None:
        for place, sequence in zip(loops.indices, loops.sequences, strict=True):
            self.visit(sequence)
            self.bind(place, None)
        decided = [self.decides(condition) for conditions in loops.condlists for condition in conditions]
        with self.silent(any(decided)):
            self.visit_all(elements)


def _compute(operator: str, left: Value, right: Value) -> Value:
    if not isinstance(left, Number) or not isinstance(right, Number):
        return None
    one, other = left.value, right.value
    match operator:
        case "+":
            return Number(one + other)
        case "-":
            return Number(one - other)
        case "*":
            return Number(one * other)
        case "//" if other:
            return Number(one // other)
        case "%" if other:
            return Number(one % other)
        case _:
            return None
