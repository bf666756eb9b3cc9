"""The builder of one body: its blocks, slots, jumps and exceptional edges. Other modules lower each class of nodes.

Exceptions have edges only inside `try` and inside `with` blocks that may swallow them. Elsewhere an exception leaves
the body, where no rule applies any more. Each point that may raise has an edge of its own, so that a handler sees the
moves made before that point.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias, TypeVar

from mypy.errorcodes import ErrorCode
from mypy.nodes import (
    AssertStmt,
    AssignmentStmt,
    AwaitExpr,
    BreakStmt,
    CallExpr,
    ClassDef,
    Context,
    ContinueStmt,
    Decorator,
    DelStmt,
    Expression,
    ExpressionStmt,
    ForStmt,
    FuncDef,
    FuncItem,
    LambdaExpr,
    MemberExpr,
    MypyFile,
    OperatorAssignmentStmt,
    RaiseStmt,
    ReturnStmt,
    Statement,
    Var,
)
from mypy.nodes import Block as Suite

from dagpu.mypy_plugin.analysis.graph import (
    ANY_GLOBAL,
    EVERYTHING,
    BasicBlock,
    Body,
    Build,
    Escape,
    Evaluate,
    Evaluation,
    Finally,
    Forget,
    Instruction,
    Keep,
    LoanBlock,
    Loop,
    Move,
    Place,
    Root,
    Slot,
    reverse_postorder,
)
from dagpu.mypy_plugin.analysis.module_facts import Closure, ModuleFacts
from dagpu.mypy_plugin.messages import Finding
from dagpu.mypy_plugin.typing.type_facts import HANDLE


class GraphBuilder:
    """A body under construction, with the state of its lowering."""

    def __init__(self, node: FuncItem | MypyFile, module: ModuleFacts) -> None:
        self.module = module
        self.types = module.types
        self.kinds = module.kinds
        self.known_kinds = module.known_kinds
        self.handler: BasicBlock | None = None
        self.frames: list[Loop | Finally | LoanBlock] = []
        self.closures: dict[Root, Closure] = {}
        self.bound: dict[Var, MemberExpr] = {}
        """Variables that name a method of an object: `drain = box.drain`."""
        self.partials: dict[Var, CallExpr] = {}
        """Variables that name a function to which `partial` has bound arguments."""
        self.lambdas: dict[LambdaExpr, Closure] = {}
        self.parameters: set[Root] = set()
        self.foreign: set[str] = set()
        """Names declared `global` or `nonlocal`."""
        self.how = ""
        """The cause of the next move, in the words of the run-time error."""
        self.in_then = False
        """True while an argument of `then` is evaluated. The op borrows everything that such a closure borrows."""
        self.read_by_generator: list[Slot] | None = None
        """The values that the generator expression around this place reads when it is asked; None outside of one."""
        self.taken: dict[Context, Place] = {}
        """Places of the results of calls, and of operators that call a method, that give a handle which had a place
        before: `ts.pop()`, `model.weight()`, `model[0]`."""
        self.at_exit: dict[Expression, list[Move]] = {}
        """The moves at the end of a `with` block, of the calls that may have made its context managers."""
        self.iterated: dict[Var, Place] = {}
        """The variables of loops, each with the place of the items that it goes over."""
        self.discarded: Expression | None = None
        """The expression of the statement around this place, whose value nothing uses."""
        self.body = Body(node, [], [], {}, set(), set(), [], [])
        self.current = self.block()

    def nested(self, node: FuncItem) -> "GraphBuilder":
        """Return a builder for a nested function, with a copy of the closures known here."""
        builder = GraphBuilder(node, self.module)
        builder.closures = dict(self.closures)
        return builder

    # ---- slots

    def slot(self, root: Root) -> Slot:
        """Return the slot of a variable, and allot one at its first use."""
        slot = self.body.slots.get(root)
        if slot is None:
            slot = self.body.slots[root] = len(self.body.roots)
            self.body.roots.append(root)
        return slot

    def temporary(self) -> Slot:
        """Allot a new slot without a name."""
        self.body.roots.append(None)
        return len(self.body.roots) - 1

    def declare(self, root: Root, *, element: bool = False) -> None:
        """Make a variable local to this body. `element`: another object keeps the variable's value too."""
        slot = self.slot(root)
        self.body.local.add(slot)
        if element:
            self.body.elements.add(slot)

    def outlives(self, root: Root) -> bool:
        """Return True if the variable's value may still exist after this body has ended."""
        return root in self.parameters or self.slot(root) not in self.body.local

    def kind(self, e: Expression) -> int:
        """Return the kind bits of an expression's type; 0 where mypy has no type for it."""
        kind = self.known_kinds.get(e)
        if kind is None:
            kind = self.known_kinds[e] = self.kinds.kind_of(self.types.get(e))
        return kind

    def refuse(self, e: Expression, code: ErrorCode, message: str) -> None:
        """Report a mistake that is certain, whatever the way that leads here."""
        self.body.mistakes.append(Finding(e, code, message))

    def is_op(self, e: Expression) -> bool:
        """Return True for a handle or an op that is an op."""
        return not self.kind(e) & HANDLE

    # ---- blocks

    def block(self) -> BasicBlock:
        """Return a new block without predecessors. The first one becomes the entry of the body."""
        block = BasicBlock()
        if not self.body.blocks:
            self.body.blocks.append(block)
        return block

    def emit(self, instruction: Instruction) -> None:
        self.current.instructions.append(instruction)

    def evaluates(self, i: Evaluation) -> None:
        self.current.evaluations.append(i)

    def jump(self, to: BasicBlock) -> None:
        """Add an edge from the current block. The caller sets `current` next."""
        if to not in self.current.next:
            self.current.next.append(to)

    def fall_into(self, to: BasicBlock) -> None:
        """Add an edge from the current block to `to`, and make `to` the current block."""
        self.jump(to)
        self.current = to

    def split(self) -> BasicBlock:
        """End the current block and continue in a new successor, which is returned."""
        self.fall_into(self.block())
        return self.current

    def unreachable(self) -> None:
        """Continue in a new block without predecessors."""
        self.current = self.block()

    def add_to_container(
        self, node: Context, container: Slot, values: Sequence[tuple[Context, Slot]], how: str
    ) -> None:
        """Add values, each with its node, to a container or an object. They escape if it outlives this body.

        `how` describes the escape in messages.
        """
        self.emit(Keep(node, container, tuple(held for _, held in values)))
        root = self.body.roots[container]
        if root is not None and self.outlives(root):
            for value, held in values:
                self.emit(Escape(value, held, how))

    # ---- exceptions and leaving

    def may_raise(self) -> None:
        """Add an edge to the current handler, if any: an exception may be raised here."""
        if self.handler is not None:
            self.jump(self.handler)
            self.split()

    def throw(self) -> None:
        """End the block with a certain exception, which goes to the current handler, if any."""
        if self.handler is not None:
            self.jump(self.handler)
        self.unreachable()

    def leave(self, kind: type[Loop] | None, continued: bool = False) -> None:
        """Lower `return` (`kind` is None), `break` or `continue`, with a copy of every `finally` suite on the way."""
        frames, handler = list(self.frames), self.handler
        while self.frames:
            frame = self.frames.pop()
            if isinstance(frame, Finally):
                self.handler = frame.handler
                self.split()
                self.suite(frame.suite)
            elif isinstance(frame, LoanBlock):
                self.current.instructions += frame.ends
            elif kind is Loop:
                self.jump(frame.continued if continued else frame.broken)
                break
        self.frames, self.handler = frames, handler
        self.unreachable()

    def build(
        self, node: Context, parts: Iterable[Slot | None], keeps: int = EVERYTHING, *, owner: bool = False
    ) -> Slot | None:
        """Build a value of the parts that hold facts, and return its slot; None if it can hold none."""
        into = self.temporary() if keeps else None
        self.emit(Build(node, into, tuple([part for part in parts if part is not None]), keeps, owner))
        return into

    @contextmanager
    def handled_by(self, handler: BasicBlock | None) -> Iterator[None]:
        """Send exceptions raised inside this context to `handler`."""
        before, self.handler = self.handler, handler
        try:
            yield
        finally:
            self.handler = before

    @contextmanager
    def inside(self, frame: Loop | Finally | LoanBlock) -> Iterator[None]:
        """Push `frame` for the exits that are lowered inside this context."""
        self.frames.append(frame)
        try:
            yield
        finally:
            self.frames.pop()

    # ---- going into the syntax tree

    def value(self, e: Expression) -> Slot | None:
        """Lower an expression by value: a handle moves. Return the slot with the value's facts; None if it has none."""
        return self.evaluate(e, True)

    def read(self, e: Expression) -> Slot | None:
        """Lower an expression that is only read: a handle is not moved. Return the slot with the value's facts."""
        return self.evaluate(e, False)

    def evaluate(self, e: Expression, by_value: bool) -> Slot | None:
        lower = EXPRESSIONS.get(type(e))
        return None if lower is None else lower(self, e, by_value)

    def finish(self) -> Body:
        """Return the finished body. Its blocks are in reverse postorder, and each `Forget` of `ANY_GLOBAL` is replaced
        by one `Forget` for each global that the body uses."""
        body = self.body
        body.blocks = reverse_postorder(body.blocks[0])
        shared = [slot for root, slot in body.slots.items() if slot not in body.local and is_global(root)]
        for block in body.blocks:
            for i in block.instructions:
                if isinstance(i, Forget) and i.place.slot == ANY_GLOBAL:
                    block.instructions = [new for i in block.instructions for new in _spelt_out(i, shared)]
                    break
        return body

    def suite(self, suite: Suite | None) -> None:
        """Lower a suite of statements, or mark it unreachable where mypy does."""
        if suite is None:
            return
        if suite.is_unreachable:
            self.unreachable()
            return
        for statement in suite.body:
            self.statement(statement)
            if isinstance(statement, ReturnStmt | RaiseStmt | BreakStmt | ContinueStmt):
                break  # what follows is never reached, and has no types

    def statement(self, s: Statement) -> None:
        self.may_raise()
        if not self._is_checked(s):
            self.unreachable()
            return
        if (evaluates := _EVALUATES.get(type(s))) is not None:
            self.evaluates(evaluates(s))
        if lower := STATEMENTS.get(type(s)):
            lower(self, s)

    def _is_checked(self, s: Statement) -> bool:
        """Return True if mypy has checked a statement. It skips unreachable statements and untyped functions."""
        match s:
            case ExpressionStmt() | ReturnStmt():
                e = s.expr
            case AssignmentStmt():
                e = s.rvalue
            case _:
                return True
        return (
            e in self.types or not isinstance(e, AwaitExpr | CallExpr) or (isinstance(e, CallExpr) and bool(e.analyzed))
        )


def is_global(root: Root) -> bool:
    """Return True for a variable of a module or of a class."""
    return isinstance(root, Var) and root.fullname != root.name


def _spelt_out(i: Instruction, shared: list[Slot]) -> list[Instruction]:
    if isinstance(i, Forget) and i.place.slot == ANY_GLOBAL:
        return [Forget(i.node, Place(slot), whole=True) for slot in shared] or [i]
    return [i]


_EVALUATES: Final[dict[type[Statement], Callable[[Any], Evaluate]]] = {
    ExpressionStmt: lambda s: Evaluate(s, (s.expr,)),
    AssignmentStmt: lambda s: Evaluate(s, (s.rvalue,), tuple(s.lvalues)),
    OperatorAssignmentStmt: lambda s: Evaluate(s, (s.rvalue, None), (s.lvalue,)),
    DelStmt: lambda s: Evaluate(s, (None,), (s.expr,)),
    ReturnStmt: lambda s: Evaluate(s, (s.expr,)),
    RaiseStmt: lambda s: Evaluate(s, (s.expr, s.from_expr)),
    AssertStmt: lambda s: Evaluate(s, (s.expr, s.msg)),
    ForStmt: lambda s: Evaluate(s, (s.expr, None), (s.index,)),
    FuncDef: lambda s: Evaluate(s, tuple(argument.initializer for argument in s.arguments)),
    ClassDef: lambda s: Evaluate(s, tuple(s.decorators)),
    Decorator: lambda s: Evaluate(s, tuple(s.decorators)),
}
"""What the simple statements evaluate, and the beginnings of others. An assignment is done where its value is
evaluated: an exception leads on from before that, too."""

LowerExpression: TypeAlias = Callable[[GraphBuilder, Any, bool], Slot | None]
LowerStatement: TypeAlias = Callable[[GraphBuilder, Any], None]
_E = TypeVar("_E", bound=LowerExpression)
_S = TypeVar("_S", bound=LowerStatement)

EXPRESSIONS: Final[dict[type[Expression], LowerExpression]] = {}
"""The lowering function of each expression class. Classes that are missing have no effect on handles."""
STATEMENTS: Final[dict[type[Statement], LowerStatement]] = {}


def expression(*kinds: type[Expression]) -> Callable[[_E], _E]:
    """Register the lowering function of some expression classes.

    It returns the slot with the value's facts, or None if the value has none. Its flag is true for an evaluation by
    value, which moves a handle.
    """

    def register(lower: _E) -> _E:
        EXPRESSIONS.update(dict.fromkeys(kinds, lower))
        return lower

    return register


def statement(*kinds: type[Statement]) -> Callable[[_S], _S]:
    """Register the lowering function of some statement classes."""

    def register(lower: _S) -> _S:
        STATEMENTS.update(dict.fromkeys(kinds, lower))
        return lower

    return register
