"""Operators and square brackets of ops and tensors: `x + y` takes its operands as a kernel does, `t[1:]` lends `t`."""

from collections.abc import Sequence

from mypy.nodes import AwaitExpr, CallExpr, Expression, IndexExpr

from dagpu.mypy_plugin.analysis.builder import GraphBuilder
from dagpu.mypy_plugin.analysis.callees import callee_of
from dagpu.mypy_plugin.analysis.graph import EVERYTHING, EXCLUSIVE, Lend, Place, Slot, Store
from dagpu.mypy_plugin.analysis.operands import Operands
from dagpu.mypy_plugin.analysis.places import place_of
from dagpu.mypy_plugin.typing.type_facts import HANDLE, MOVES, OP


def lower_arithmetic(b: GraphBuilder, e: Expression, operands: Sequence[Expression]) -> Slot | bool | None:
    """Lower an operator of ops and tensors. Owned tensors move into the op, after all operands have been evaluated; one
    that stands twice among the operands moves once. Return False, with nothing lowered, for an operator of others."""
    if not any(b.kind(operand) & (HANDLE | OP) for operand in operands):
        return False
    taken, parts, places = Operands(b), list[Slot | None](), list[Place]()
    for operand in operands:
        place = place_of(b, operand)
        moves = bool(b.kind(operand) & HANDLE) and place not in places
        b.how = "being passed to an operator"
        parts.append(taken.evaluate(operand, moves))
        if place is not None:
            places.append(place)
    b.may_raise()  # before the moves
    taken.emit_moves()
    return b.build(e, parts, b.kind(e) & EVERYTHING, owner=taken.owns)


def lower_part(b: GraphBuilder, e: IndexExpr) -> Slot | bool | None:
    """Lower a part of a tensor, which is a borrow of a `Tensor`; parts of other handles are such handles. Return False,
    with nothing lowered, for an item of something else."""
    kind = b.kind(e.base)
    if not kind & HANDLE or not b.kind(e) & HANDLE:
        return False
    owned = kind & MOVES and not kind & EXCLUSIVE
    base = lend_handle(b, e, e.base, exclusive=False) if owned else b.read(e.base)
    b.read(e.index)
    b.may_raise()
    return None if base is None else b.build(e, (base,), b.kind(e) & EVERYTHING)


def lend_handle(b: GraphBuilder, e: Expression, lender: Expression, *, exclusive: bool) -> Slot:
    """Lend a handle, and return the slot with the loan."""
    place = place_of(b, lender)
    if place is None:
        b.read(lender)
        place = place_of(b, lender)  # of what a call has given
    if place is None:
        place = Place(b.temporary())
        b.emit(Store(e, place, None, 0))  # another one in each round of a loop
        if _is_fresh(b, lender):
            b.body.local.add(place.slot)
    into = b.temporary()
    b.emit(Lend(e, place, into, exclusive))
    if b.read_by_generator is not None:
        b.read_by_generator.append(into)
    return into


def _is_fresh(b: GraphBuilder, e: Expression) -> bool:
    """Return True if an unnamed handle has no other owner. A container's methods may return a handle that it keeps."""
    if isinstance(e, CallExpr) and e.analyzed is None:
        return not callee_of(b, e).name.startswith(("builtins.", "typing.", "collections."))
    return isinstance(e, AwaitExpr)
