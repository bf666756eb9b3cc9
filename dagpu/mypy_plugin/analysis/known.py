"""What is known of values at each point of a body: the second lattice over the graph.

A value is known at a point if it holds on every way to that point.

- A call is checked when the solver first comes to it: with the values of the first round of the loops around it. Behind
  a loop, what is known holds after any number of rounds.
- A branch whose condition depends on a known value (`if n % 4:` where n is 10) may be dead code. Errors in it are not
  reported. If such a branch leaves the block, all variables are unknown from there on.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, final

from mypy.nodes import (
    ARG_NAMED,
    ARG_POS,
    GDEF,
    AssignmentExpr,
    AssignmentStmt,
    AwaitExpr,
    CallExpr,
    ComparisonExpr,
    ConditionalExpr,
    Decorator,
    DelStmt,
    DictExpr,
    DictionaryComprehension,
    Expression,
    ForStmt,
    GeneratorExpr,
    IndexExpr,
    IntExpr,
    LambdaExpr,
    ListComprehension,
    ListExpr,
    MatchStmt,
    MemberExpr,
    MypyFile,
    NameExpr,
    OperatorAssignmentStmt,
    OpExpr,
    RefExpr,
    ReturnStmt,
    SetComprehension,
    SetExpr,
    StarExpr,
    Statement,
    StrExpr,
    SymbolNode,
    TempNode,
    TryStmt,
    TupleExpr,
    UnaryExpr,
    WithStmt,
    YieldExpr,
    YieldFromExpr,
)
from mypy.types import Instance, Type, get_proper_type

from dagpu.mypy_plugin import names
from dagpu.mypy_plugin.analysis.graph import Body, Evaluate, Meet, Test
from dagpu.mypy_plugin.analysis.module_facts import ModuleFacts
from dagpu.mypy_plugin.analysis.solver import at_entry_of, visits
from dagpu.mypy_plugin.analysis.value_checks import ValueChecks
from dagpu.mypy_plugin.analysis.values import (
    FUNCTIONS,
    MADE,
    PARAMETERS,
    Array,
    Cut,
    Made,
    NewOutput,
    Nothing,
    Number,
    Op,
    Several,
    Table,
    Unread,
    Value,
    as_extents,
    call_method,
    call_zip_ops,
    joined,
    result_of,
    value_of_type,
)
from dagpu.mypy_plugin.syntax import arguments_of, captures, statements_in, targets
from dagpu.mypy_plugin.typing import op_types

# ---- expressions


@final
class Evaluator:
    """Evaluates expressions, each once. `known` has the values of the variables bound so far; None is unknown."""

    def __init__(
        self,
        type_of: Callable[[Expression], Type | None],
        checks: ValueChecks | None = None,
        constants: Mapping[SymbolNode, Value] | None = None,
        shared: AbstractSet[SymbolNode] = frozenset(),
        *,
        in_function: bool = True,
    ) -> None:
        """`shared` are the variables that another function sets, too: they are always unknown."""
        self.known: dict[SymbolNode, Value] = {}
        self.bound: set[SymbolNode] = set()
        """The variables that have been bound."""
        self.checking = True
        """False if a wrong call here may be unreachable; then it is not reported."""
        self.type_of = type_of
        self._constants = constants or {}
        """The constants of the module, which functions read."""
        self._shared = shared
        self._in_function = in_function
        self._all_checks = checks
        self._known_reads = 0
        """Number of reads of variables with a known value."""

    @property
    def _checks(self) -> ValueChecks | None:
        """The checks of calls that are certain to happen; None where a wrong call is not reported."""
        return self._all_checks if self.checking else None

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
        self.known[node] = None if node in self._shared or isinstance(value, Nothing) else value
        self.bound.add(node)

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
                return self._call(expression)
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
        found = None if node is None else self.known.get(node)
        value: Value = None if isinstance(found, Unread) else found
        if value is None and node is not None and self._in_function:
            value = self._constants.get(node)
        type_ = get_proper_type(self.type_of(name)) if value is None else None
        if type_ is not None:
            value = value_of_type(type_)
        if value is not None:
            self._known_reads += 1
        elif node is not None and type_ is not None and op_types.as_op(type_) is not None:
            source = found if isinstance(found, Unread) else Unread()
            self.known[node] = source
            return Op(None, source)
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
            if isinstance(value, Made) and is_kernel and (checks := self._checks) is not None:
                checks.check_declaration(declared, place, value.arguments[0])

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

    # ---- calls

    def _call(self, call: CallExpr) -> Value:
        """Evaluate a call, and check it."""
        callee = call.callee
        if isinstance(callee, RefExpr) and callee.node is not None:
            name = callee.node.fullname
            if name in FUNCTIONS:
                parameters, function = FUNCTIONS[name]
                return function(self._arguments(call, parameters), call)
            if name in MADE:
                return self._made(call, name)
            if name == names.AROUND:
                values = list(map(self.visit, call.args))
                return Made(name, tuple(values)) if set(call.arg_kinds) <= {ARG_POS} else None
            if name == names.ZIP_OPS:
                values = list(map(self.visit, call.args))
                return call_zip_ops(values, call) if set(call.arg_kinds) <= {ARG_POS} else None
        type_ = get_proper_type(self.type_of(callee))
        if isinstance(type_, Instance) and type_.type.fullname == names.KERNEL:
            return self._call_kernel(call, type_)
        if isinstance(type_, Instance) and type_.type.fullname == names.NEW_OUTPUT:
            return self._call_new_output(call, self.visit(callee))
        if isinstance(callee, MemberExpr):
            if callee.name == "new" and (kernel := self._kernel_type(callee.expr)) is not None:
                return self._call_new(call, callee.expr, kernel)
            return self._call_method(call, callee)
        self.visit(callee)
        self.visit_all(call.args)
        return value_of_type(self.type_of(call))

    def _arguments(self, call: CallExpr, parameters: Sequence[str]) -> dict[str, Value]:
        """Visit all arguments. Return the values of those for the given first parameters, by name.

        The result is empty for a call with `*args` or `**kwargs`.
        """
        given: dict[str, Value] = {}
        plain = True
        for index, (argument, kind, name) in enumerate(zip(call.args, call.arg_kinds, call.arg_names, strict=True)):
            value = self.visit(argument)
            if name is not None:
                given[name] = value
            elif kind != ARG_POS:
                plain = False
            elif index < len(parameters):
                given[parameters[index]] = value
        return given if plain else {}

    def _made(self, call: CallExpr, name: str) -> Value:
        """Evaluate a call of a class; None for one with `*args` or `**kwargs`."""
        parameters, defaults = MADE[name]
        given = self._arguments(call, parameters if name != names.SLICE or len(call.args) > 1 else ("stop",))
        return Made(name, tuple(map(given.get, parameters, defaults))) if _is_plain(call) else None

    def _call_method(self, call: CallExpr, callee: MemberExpr) -> Value:
        receiver = self.visit(callee.expr)
        if callee.name in ("then", "map") and isinstance(receiver, Op):
            return self._composed(call, callee.name, receiver)
        given = self._arguments(call, PARAMETERS.get(callee.name, ()))
        if callee.name == "partition" and (checks := self._checks) is not None:
            whole = result_of(receiver) if isinstance(receiver, Op) else receiver
            checks.check_partition(call, whole, given.get("tile"), arguments_of(call, ()).get("partial"))
        if callee.name == "write" and (checks := self._checks) is not None:
            checks.check_write(call, callee, given.get("at"), given.get("data"))
        value = call_method(receiver, callee.name, given, call)
        return value_of_type(self.type_of(call)) if value is None else value

    def _composed(self, call: CallExpr, name: str, op: Op) -> Value:
        """Evaluate `op.then(f)` and `op.map(f)`, where `f` is a lambda."""
        if len(call.args) != 1 or not isinstance(call.args[0], LambdaExpr):
            self.visit_all(call.args)
            return value_of_type(self.type_of(call))
        value = self.apply(call.args[0], op.result)
        return Op(result_of(value) if name == "then" else value, call)

    def _call_kernel(self, call: CallExpr, kernel: Instance) -> Value:
        """Evaluate a kernel call: an op whose result is the tuple of all arguments, in the order of the parameters."""
        self.visit(op_types.base_kernel(call.callee))
        order = tuple(op_types.forms_of(kernel))
        given = self._arguments(call, order)
        if (checks := self._checks) is not None and _is_plain(call):
            checks.check_arguments(call, call.callee, kernel, given)
        parts = [result_of(value) if isinstance(value, Op) else value for value in map(given.get, order)]
        return Op(Several(tuple(parts)), call)

    def _kernel_type(self, expression: Expression) -> Instance | None:
        type_ = get_proper_type(self.type_of(expression))
        return type_ if isinstance(type_, Instance) and type_.type.fullname == names.KERNEL else None

    def _call_new(self, call: CallExpr, callee: Expression, kernel: Instance) -> Value:
        """Evaluate `kernel.new(shape, tile)`, or `kernel.new(shapes, tiles)` with several outputs."""
        self.visit(op_types.base_kernel(callee))
        given = self._arguments(call, PARAMETERS["new"])
        shape, tile = given.get("shape"), given.get("tile")
        type_ = get_proper_type(self.type_of(call))
        if isinstance(type_, Instance) and type_.type.fullname == names.NEW_OUTPUTS:
            shapes = shape.items if isinstance(shape, Several) else ()
            tiles = tile.items if isinstance(tile, Several) else ()
            for number, each in enumerate(shapes):
                self._check_new(call, callee, kernel, number, each, tiles[number] if number < len(tiles) else None)
            return value_of_type(type_)
        self._check_new(call, callee, kernel, 0, shape, tile)
        return NewOutput(as_extents(shape), kernel, callee)

    def _check_new(
        self, call: CallExpr, callee: Expression, kernel: Instance, number: int, shape: Value, tile: Value
    ) -> None:
        extents = as_extents(shape)
        if extents is not None and (checks := self._checks) is not None:
            checks.check_partition(call, Array(extents), tile, arguments_of(call, ()).get("partial"))
            checks.check_new(call, callee, kernel, extents, number)

    def _call_new_output(self, call: CallExpr, made: Value) -> Value:
        """Evaluate a call of what `kernel.new(shape, tile)` returns: an op with a new tensor of that shape."""
        order = tuple(op_types.forms_of(made.kernel)) if isinstance(made, NewOutput) else ()
        given = self._arguments(call, order[1:])
        if not isinstance(made, NewOutput):
            return value_of_type(self.type_of(call))
        if _is_plain(call) and (checks := self._checks) is not None:
            checks.check_arguments(call, made.callee, made.kernel, given, first=1)
        return value_of_type(self.type_of(call)) if made.shape is None else Op(Array(made.shape), call)


def _is_plain(call: CallExpr) -> bool:
    """Return True for a call without `*args` and `**kwargs`."""
    return all(kind in (ARG_POS, ARG_NAMED) for kind in call.arg_kinds)


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


# ---- the lattice


@final
@dataclass(slots=True)
class _Known:
    """The values of the variables bound so far at one point; None is unknown."""

    values: dict[SymbolNode, Value]

    def copy(self) -> "_Known":
        return _Known(dict(self.values))

    def join(self, other: "_Known") -> bool:
        """Join the variables of another way. A variable that only one of them binds keeps its value: on the other way,
        using it would be an error."""
        changed = False
        for node, value in other.values.items():
            before = self.values.get(node, _UNBOUND)
            if value is before or before is None:
                continue
            after = value if before is _UNBOUND else joined(before, value)
            if after is not before:
                self.values[node] = after
                changed = True
        return changed


_UNBOUND: Final = Unread()


def check_values(
    body: Body, module: ModuleFacts, checks: ValueChecks, constants: Mapping[SymbolNode, Value]
) -> set[SymbolNode]:
    """Check the calls in a body and in the functions nested in it. A function may run at any time, so the variables of
    enclosing scopes are unknown in it.

    Return the variables of enclosing scopes that it binds.
    """
    children = [child for child in body.children if not child.is_lambda]
    shared = set[SymbolNode]().union(*(check_values(child, module, checks, constants) for child in children))
    evaluator = Evaluator(module.types.get, checks, constants, shared, in_function=not isinstance(body.node, MypyFile))
    for argument in getattr(body.node, "arguments", ()):
        evaluator.bind_name(argument.variable, value_of_type(argument.variable.type))
    seen: set[int] = set()
    decided: set[Test] = set()
    for block, state in visits(body.blocks, at_entry_of(body, _Known(evaluator.known))):
        evaluator.known, evaluator.checking = state.values, block.index not in seen
        seen.add(block.index)
        for i in block.evaluations:
            match i:
                case Evaluate(node=Decorator() as declared):
                    evaluator.declare(declared)
                case Evaluate():
                    value: Value = None
                    for e in i.values:
                        value = evaluator.visit(e)
                    for target in i.targets:
                        evaluator.bind(target, value)
                case Test():
                    decides = [evaluator.decides(condition) for condition in i.conditions]
                    if any(decides):
                        decided.add(i)
                        module.deliberate.record_branches(i.suites)
                case Meet():
                    if not decided.isdisjoint(i.tests) and any(end.index < 0 for end in i.ends):
                        state.values.update(dict.fromkeys(state.values))
    own = {root for root, slot in body.slots.items() if slot in body.local}
    return evaluator.bound - own


# ---- the constants of a module


def constants_of(tree: MypyFile, types: Mapping[Expression, Type]) -> dict[SymbolNode, Value]:
    """Return the constants of a module: variables that it binds once, outside of functions, to numbers and tuples of
    numbers."""
    evaluator = Evaluator(types.get, in_function=False)
    for statement in statements_in(tree.defs, functions=False):
        if isinstance(statement, AssignmentStmt) and not isinstance(statement.rvalue, TempNode):
            for place in statement.lvalues:
                if not isinstance(place, MemberExpr | IndexExpr):
                    evaluator.bind(place, _constant(evaluator, statement.rvalue))
    known = {node: value for node, value in evaluator.known.items() if value is not None}
    if not known:
        return {}
    bound = Counter(node for statement in statements_in(tree.defs) for node in _bound_by(statement))
    bound.update(e.target.node for e in types if isinstance(e, AssignmentExpr) and e.target.node is not None)
    return {node: value for node, value in known.items() if bound[node] == 1}


def _bound_by(statement: Statement) -> Iterator[SymbolNode]:
    """Iterate over the variables that a statement itself binds."""
    match statement:
        case AssignmentStmt() if isinstance(statement.rvalue, TempNode):  # a declaration: `x: int`
            return
        case AssignmentStmt():
            places: list[Expression | None] = [*statement.lvalues]
        case OperatorAssignmentStmt():
            places = [statement.lvalue]
        case ForStmt():
            places = [statement.index]
        case WithStmt():
            places = [*statement.target]
        case TryStmt():
            places = [*statement.vars]
        case DelStmt():
            places = [statement.expr]
        case MatchStmt():
            places = []
            for pattern in statement.patterns:
                yield from (name.node for name in captures(pattern) if name.node is not None)
        case _:
            return
    for place in places:
        for target in () if place is None else targets(place):
            if isinstance(target, NameExpr) and target.node is not None:
                yield target.node


def _constant(evaluator: Evaluator, e: Expression) -> Value:
    """Return the value of an expression of numbers, tuples and names of constants; None for any other."""
    match e:
        case IntExpr() | NameExpr():
            value = evaluator.visit(e)
            return value if isinstance(value, Number | Several) else None
        case TupleExpr():
            return Several(tuple([_constant(evaluator, item) for item in e.items]))
        case OpExpr():
            left, right = _constant(evaluator, e.left), _constant(evaluator, e.right)
            return evaluator.visit(e) if isinstance(left, Number) and isinstance(right, Number) else None
        case UnaryExpr():
            return evaluator.visit(e) if isinstance(_constant(evaluator, e.expr), Number) else None
        case _:
            return None
