"""The builder of one body: its blocks, slots, jumps and exceptional edges. What is lowered where is in `lower_*`.

Exceptions have edges only inside `try` and inside `with` blocks that swallow them: elsewhere they leave the body, and
nothing is asked of a body that is left. An edge leaves wherever an exception may be raised, so that a handler sees
what had moved by then.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from mypy.nodes import (
    AssignmentStmt,
    AwaitExpr,
    CallExpr,
    Expression,
    ExpressionStmt,
    FuncItem,
    MypyFile,
    ReturnStmt,
    Statement,
    Var,
)
from mypy.nodes import Block as Suite

from dagpu.mypy_plugin.flow.graph import ANY_GLOBAL, Block, Body, Forget, Instruction, Move, Place, Root, Slot, in_order
from dagpu.mypy_plugin.flow.module import Closure, Module


@dataclass(eq=False, slots=True)
class Loop:
    """Where `break` and `continue` go."""

    broken: Block
    continued: Block


@dataclass(eq=False, slots=True)
class Finally:
    """A `finally` suite that every way out runs through, and who handles its own exceptions."""

    suite: Suite
    handler: Block | None


class Builder:
    """The body that is being built, and what is known about its surroundings."""

    def __init__(self, node: FuncItem | MypyFile, module: Module) -> None:
        self.module = module
        self.types = module.types
        self.kinds = module.kinds
        self.handler: Block | None = None
        self.frames: list[Loop | Finally] = []
        self.closures: dict[Root, Closure] = {}
        self.stands_for: dict[Slot, tuple[Place, ...]] = {}
        """By variable of a loop over named handles: those, any of which it may be."""
        self.parameters: set[Root] = set()
        self.foreign: set[str] = set()
        """Names that `global` or `nonlocal` gives to the surroundings."""
        self.how = ""
        """What takes the handle that is evaluated by value next, in the words of the run-time error."""
        self.in_then = False
        """Is an argument of `then` evaluated? What a closure borrows that is given to it is borrowed by the op."""
        self.body = Body(node, [], [], {}, set(), set(), [], [])
        self.current = self.block()

    def nested(self, node: FuncItem) -> "Builder":
        """A builder for a function that is nested in this one, and knows the closures that this one knows."""
        builder = Builder(node, self.module)
        builder.closures = dict(self.closures)
        return builder

    # ---- slots

    def slot(self, root: Root) -> Slot:
        """The slot of a variable."""
        slot = self.body.slots.get(root)
        if slot is None:
            slot = self.body.slots[root] = len(self.body.roots)
            self.body.roots.append(root)
        return slot

    def temporary(self) -> Slot:
        """A new slot that has no name."""
        self.body.roots.append(None)
        return len(self.body.roots) - 1

    def declare(self, root: Root, *, element: bool = False) -> None:
        """A variable belongs to this body. `element`: a loop sets it to what something else keeps."""
        slot = self.slot(root)
        self.body.local.add(slot)
        if element:
            self.body.elements.add(slot)

    def outlives(self, root: Root) -> bool:
        """Is what the variable stands for still there when this body has ended?"""
        return root in self.parameters or self.slot(root) not in self.body.local

    def kind(self, e: Expression) -> int:
        """What a value of this expression can do; 0 where mypy has no type for it."""
        return self.kinds.of(self.types.get(e))

    # ---- blocks

    def block(self) -> Block:
        """A new block, reached from nowhere yet."""
        block = Block()
        if not self.body.blocks:
            self.body.blocks.append(block)
        return block

    def emit(self, instruction: Instruction) -> None:
        self.current.instructions.append(instruction)

    def jump(self, to: Block) -> None:
        """An edge from here; what follows is built where `current` is set to next."""
        if to not in self.current.next:
            self.current.next.append(to)

    def fall_into(self, to: Block) -> None:
        """Go on in `to`, with an edge from here."""
        self.jump(to)
        self.current = to

    def split(self) -> Block:
        """End the block here and go on in a new one, which is given back."""
        self.fall_into(self.block())
        return self.current

    def unreachable(self) -> None:
        """What is built next is reached from nowhere."""
        self.current = self.block()

    def move(self, move: Move) -> None:
        """A handle is taken, and with a loop's variable any that it stands for."""
        self.emit(move)
        if not move.place.path:
            for place in self.stands_for.get(move.place.slot, ()):
                self.emit(Move(move.node, place, self.temporary(), move.how, silent=True))

    # ---- exceptions and leaving

    def may_raise(self) -> None:
        """An exception may be raised here."""
        if self.handler is not None:
            self.jump(self.handler)
            self.split()

    def throw(self) -> None:
        """An exception is raised here for certain."""
        if self.handler is not None:
            self.jump(self.handler)
        self.unreachable()

    def leave(self, kind: type[Loop] | None, continued: bool = False) -> None:
        """`return` (None), `break` or `continue`: through a copy of every `finally` on the way."""
        frames, handler = list(self.frames), self.handler
        while self.frames:
            frame = self.frames.pop()
            if isinstance(frame, Finally):
                self.handler = frame.handler
                self.split()
                self.suite(frame.suite)
            elif kind is Loop:
                self.jump(frame.continued if continued else frame.broken)
                break
        self.frames, self.handler = frames, handler
        self.unreachable()

    @contextmanager
    def handled_by(self, handler: Block | None) -> Iterator[None]:
        """Exceptions raised inside go to `handler`."""
        before, self.handler = self.handler, handler
        try:
            yield
        finally:
            self.handler = before

    @contextmanager
    def inside(self, frame: Loop | Finally) -> Iterator[None]:
        """Ways out that are built inside meet `frame`."""
        self.frames.append(frame)
        try:
            yield
        finally:
            self.frames.pop()

    # ---- going into the syntax tree

    def value(self, e: Expression) -> Slot | None:
        """Evaluate by value: a handle moves. Gives the slot that holds what the value holds, if it can hold any."""
        lower = EXPRESSIONS.get(type(e))
        return None if lower is None else lower(self, e, True)

    def read(self, e: Expression) -> Slot | None:
        """Evaluate for a look: a handle stays where it is."""
        lower = EXPRESSIONS.get(type(e))
        return None if lower is None else lower(self, e, False)

    def evaluate(self, e: Expression, by_value: bool) -> Slot | None:
        lower = EXPRESSIONS.get(type(e))
        return None if lower is None else lower(self, e, by_value)

    def finish(self) -> Body:
        """The body: blocks that control comes to, in about the order it does, and calls that may make globals anew
        say which, now that all are known."""
        body = self.body
        body.blocks = in_order(body.blocks[0])
        shared = [slot for root, slot in body.slots.items() if slot not in body.local and _is_global(root)]
        for block in body.blocks:
            for i in block.instructions:
                if isinstance(i, Forget) and i.place.slot == ANY_GLOBAL:
                    block.instructions = [new for i in block.instructions for new in _spelt_out(i, shared)]
                    break
        return body

    def suite(self, suite: Suite | None) -> None:
        """A suite of statements; one that mypy knows to be unreachable is."""
        if suite is None:
            return
        if suite.is_unreachable:
            self.unreachable()
            return
        for statement in suite.body:
            self.statement(statement)

    def statement(self, s: Statement) -> None:
        self.may_raise()
        if not self._is_checked(s):
            self.unreachable()
            return
        if lower := STATEMENTS.get(type(s)):
            lower(self, s)

    def _is_checked(self, s: Statement) -> bool:
        """Has mypy looked at a statement? It gives no types to what cannot be reached, nor to untyped functions."""
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


def _is_global(root: Root) -> bool:
    return isinstance(root, Var) and root.fullname != root.name


def _spelt_out(i: Instruction, shared: list[Slot]) -> list[Instruction]:
    if isinstance(i, Forget) and i.place.slot == ANY_GLOBAL:
        return [Forget(i.node, Place(slot), whole=True) for slot in shared]
    return [i]


_E = TypeVar("_E", bound=Expression)
_S = TypeVar("_S", bound=Statement)
LowerExpression: TypeAlias = Callable[[Builder, _E, bool], Slot | None]
LowerStatement: TypeAlias = Callable[[Builder, _S], None]

EXPRESSIONS: Final[dict[type[Expression], Callable[[Builder, Any, bool], Slot | None]]] = {}
"""By class of syntax tree: how it is lowered. Classes that are not here have nothing to do with handles."""
STATEMENTS: Final[dict[type[Statement], Callable[[Builder, Any], None]]] = {}


def expression(kind: type[_E]) -> Callable[[LowerExpression[_E]], LowerExpression[_E]]:
    """Register how expressions of a class are lowered: into a slot, or None if the value can hold nothing.

    The flag says whether the value is taken: then a handle moves.
    """

    def register(lower: LowerExpression[_E]) -> LowerExpression[_E]:
        EXPRESSIONS[kind] = lower
        return lower

    return register


def statement(kind: type[_S]) -> Callable[[LowerStatement[_S]], LowerStatement[_S]]:
    """Register how statements of a class are lowered."""

    def register(lower: LowerStatement[_S]) -> LowerStatement[_S]:
        STATEMENTS[kind] = lower
        return lower

    return register
