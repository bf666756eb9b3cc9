"""Abstract evaluation of expressions: the known value of each, given the known values of variables."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import final

from mypy.nodes import (
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
from mypy.types import Type, get_proper_type

from dagpu.mypy_plugin import names
from dagpu.mypy_plugin.shapes.call_evaluation import CallChecker, CallEvaluator
from dagpu.mypy_plugin.shapes.shape_values import (
    Array,
    Cut,
    Made,
    Nothing,
    Number,
    Op,
    Several,
    Table,
    Value,
    joined,
    result_of,
    value_of_type,
)
from dagpu.mypy_plugin.typing import op_parameters


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
