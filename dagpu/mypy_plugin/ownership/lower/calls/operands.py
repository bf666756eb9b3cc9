"""Evaluates the operands of a call or a display, and moves the handles among them."""

from mypy.nodes import CallExpr, Expression, IndexExpr, ListExpr, MemberExpr, NameExpr, TupleExpr
from mypy.types import Instance, TupleType, get_proper_type

from dagpu.mypy_plugin.ownership.control_flow import ANY_FORM, ANY_ITEM, Move, Slot
from dagpu.mypy_plugin.ownership.graph_builder import GraphBuilder
from dagpu.mypy_plugin.ownership.lower.places import BINDS, has_stable_items, item_step, place_of
from dagpu.mypy_plugin.typing.type_facts import MOVES


class Operands:
    """Evaluates operands in order, and moves the handles among them after all operands have been evaluated.

    This is the order at run time: `f(t, t.shape)` reads the shape first, and then the call of `f` moves `t`.
    """

    def __init__(self, b: GraphBuilder) -> None:
        self._b = b
        self._moves: list[Move] = []
        self.keeps = False
        """True if the call only gives the handles another owner: it makes an object, or fills a container."""
        self.accepts = ANY_FORM
        """What the parameter of the next operand accepts; see `Move.accepts`."""
        self.owns = False
        """True if one of the operands is an owned handle that moves."""

    def evaluate(self, e: Expression, by_value: bool, *, always: bool = False) -> Slot | None:
        """Evaluate the next operand. `always`: move it even if its type is not one that moves when passed on."""
        b = self._b
        if not by_value or not (always or b.kind(e) & MOVES):
            return b.evaluate(e, by_value)
        self.owns = True
        if isinstance(e, CallExpr):
            return self._evaluate_call(e)
        place = place_of(b, e) if isinstance(e, NameExpr | MemberExpr | IndexExpr) else None
        binds = self.keeps or b.how.startswith(BINDS)
        if place is None:
            return b.evaluate(e, by_value)
        if place.path:
            b.read(e.base if isinstance(e, IndexExpr) else e.expr if isinstance(e, MemberExpr) else e)
        into = b.temporary()
        self._moves.append(Move(e, place, into, b.how, binds=binds, accepts=self.accepts))
        return into

    def _evaluate_call(self, e: CallExpr) -> Slot | None:
        """Evaluate a call. If its result had a place before, the handle moves out of that one, too."""
        b = self._b
        binds = self.keeps or b.how.startswith(BINDS)
        how = b.how
        held = b.value(e)
        if (place := b.taken.get(e)) is not None:
            self._moves.append(Move(e, place, b.temporary(), how, binds=binds, accepts=self.accepts))
        return held

    def move_items(self, e: Expression) -> None:
        """Move the items of a container that a call takes one by one: `f(*pair)`, `f(**tensors)`, `map(f, [t])`."""
        b = self._b
        if isinstance(e, ListExpr | TupleExpr):
            for single in e.items:
                if b.kind(single) & MOVES and (named := place_of(b, single)) is not None:
                    self._moves.append(Move(single, named, b.temporary(), b.how))
            return
        place, t = place_of(b, e), get_proper_type(b.types.get(e))
        if place is None:
            return
        steps: list[str] = []
        if isinstance(t, TupleType):
            steps = [item_step(t, i) for i, item in enumerate(t.items) if b.kinds.kind_of(item) & MOVES]
        elif isinstance(t, Instance) and t.args and b.kinds.kind_of(t.args[-1]) & MOVES and has_stable_items(b, e):
            steps = [ANY_ITEM]
        for step in steps:
            if (item := place.inside((step,))) is not None:
                self._moves.append(Move(e, item, b.temporary(), b.how, binds=self.keeps))

    def emit_moves(self) -> None:
        """Emit the moves. All operands must have been evaluated."""
        for move in self._moves:
            self._b.emit(move)
