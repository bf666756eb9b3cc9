"""The uses of ops: one that is used twice in a run, and one that is built and never run."""

from collections.abc import Iterator
from typing import Final, TypeAlias

from mypy.nodes import (
    AwaitExpr,
    CallExpr,
    ConditionalExpr,
    DictExpr,
    Expression,
    IndexExpr,
    ListComprehension,
    ListExpr,
    MemberExpr,
    MypyFile,
    NameExpr,
    OpExpr,
    RefExpr,
    TupleExpr,
    Var,
)

from dagpu.mypy_plugin.ownership.control_flow import (
    SPENDABLE,
    BasicBlock,
    Body,
    Build,
    Forget,
    Instruction,
    Read,
    Root,
    Slot,
    Store,
    Touch,
)
from dagpu.mypy_plugin.ownership.graph_builder import GraphBuilder
from dagpu.mypy_plugin.ownership.liveness import live_after_each
from dagpu.mypy_plugin.typing.type_facts import CONTAINS_FLOWS, CONTAINS_OPS, FLOW, OP, method_name

# ---- ops that are used twice

_Holders: TypeAlias = frozenset[Slot]
_MOST_STATES: Final = 64
"""Sets of holders that are followed at one point. Beyond that, the op is not checked."""


def used_twice(body: Body) -> Iterator[tuple[Build, Build]]:
    """Iterate over the ops that use another op twice, each with that op."""
    builds = [i for block in body.blocks for i in block.instructions if isinstance(i, Build) and i.single]
    if not any(len(build.parts) > 1 for build in builds):
        return
    named = {
        i.part: i.place.slot
        for block in body.blocks
        for i in block.instructions
        if isinstance(i, Store) and not i.place.path
    }
    often = _read_often(body)
    reported: set[Build] = set()
    for op in builds:
        if named.get(op.into) in often:
            for user in _users_of(body, op):
                if user not in reported:
                    reported.add(user)
                    yield user, op


def _read_often(body: Body) -> set[Slot]:
    """Return the variables that are read twice, or where a loop may come by several times."""
    loops = [
        range(follower.index, block.index + 1)
        for block in body.blocks
        for follower in block.next
        if follower.index <= block.index
    ]
    once: set[Slot] = set()
    often: set[Slot] = set()
    for block in body.blocks:
        repeated = any(block.index in loop for loop in loops)
        for i in block.instructions:
            if isinstance(i, Read):
                (often if repeated or i.place.slot in once else once).add(i.place.slot)
    return often


def _users_of(body: Body, op: Build) -> set[Build]:
    """Return the ops that may use an op twice."""
    users: set[Build] = set()
    states: list[set[_Holders]] = [set() for _ in body.blocks]
    todo: list[tuple[BasicBlock, _Holders]] = [(body.blocks[0], frozenset())]
    states[0].add(frozenset())
    while todo:
        block, holders = todo.pop()
        for i in block.instructions:
            if isinstance(i, Build) and i.single and len(holders.intersection(i.parts)) > 1:
                users.add(i)
            holders = _after(i, op, holders)
        for follower in block.next:
            known = states[follower.index]
            if holders not in known:
                if len(known) >= _MOST_STATES:
                    return set()
                known.add(holders)
                todo.append((follower, holders))
    return users


def _after(i: Instruction, op: Build, holders: _Holders) -> _Holders:
    match i:
        case Build() if i is op:
            return frozenset() if i.into is None else frozenset((i.into,))
        case Build():
            holds, into = i.single and not holders.isdisjoint(i.parts), i.into
        case Read():
            holds, into = i.place.slot in holders and not i.place.path and bool(i.keeps & SPENDABLE), i.into
        case Store() if not i.place.path:
            holds, into = i.part in holders, i.place.slot
        case _:
            return holders
    if into is None or holds == (into in holders):
        return holders
    return holders | {into} if holds else holders - {into}


# ---- ops that are never run


def drops_op(b: GraphBuilder, e: Expression) -> bool:
    """Return True if an expression statement builds an op or a flow and drops it, so that it can never run."""
    if not b.kind(e) & (OP | CONTAINS_OPS | FLOW | CONTAINS_FLOWS):
        return False
    match e:
        case NameExpr() | MemberExpr() | IndexExpr():
            return bool(b.kind(e) & (OP | FLOW))
        case CallExpr() | AwaitExpr():
            return e in b.types and not _takes_out(b, e)
        case ConditionalExpr():
            return drops_op(b, e.if_expr) or drops_op(b, e.else_expr)
        case OpExpr() if e.op in ("and", "or"):
            return drops_op(b, e.right)
        case ListComprehension():
            return drops_op(b, e.generator.left_expr)
        case TupleExpr() | ListExpr():
            return any(drops_op(b, item) for item in e.items)
        case DictExpr():
            return any(drops_op(b, value) for _, value in e.items)
        case _:
            return False


def built_in(b: GraphBuilder, e: Expression) -> Expression | None:
    """Return an assigned expression if it builds an op or a flow, None if it only names one."""
    match e:
        case CallExpr() | AwaitExpr() | ListComprehension() | TupleExpr() | ListExpr() | DictExpr() | ConditionalExpr():
            return e if drops_op(b, e) else None
        case _:
            return None


def unused_stores(body: Body, live_at_entry: list[int]) -> list[Expression]:
    """Return the expressions whose ops are assigned to local variables that nothing reads afterwards."""
    if isinstance(body.node, MypyFile):
        return []
    read: dict[Expression, bool] = {}
    closures = _Closures(body)
    for block in body.blocks:
        if not any(isinstance(i, Store) and i.built is not None for i in block.instructions):
            continue
        for i, live in zip(block.instructions, live_after_each(block, live_at_entry), strict=True):
            if isinstance(i, Store) and i.built is not None:
                used = bool(live >> i.place.slot & 1) or not _is_private(body, i)
                if not used and not _is_overwritten_next(i, block):
                    used = closures.may_use(i, block)
                read[i.built] = read.get(i.built, False) or used
    return [e for e, used in read.items() if not used]


def _is_overwritten_next(stored: Store, block: BasicBlock) -> bool:
    """Return True if the variable gets another op before anything runs that could use this one."""
    after = block.instructions[block.instructions.index(stored) + 1 :]
    for i in after:
        match i:
            case Store() if i.place == stored.place:
                return i.built is not None
            case Build() if i.single:
                pass
            case _:
                return False
    return False


def _is_private(body: Body, i: Store) -> bool:
    """Return True if the variable is the function's own, and its name does not say that it is unused."""
    root = body.roots[i.place.slot]
    if not isinstance(root, Var) or i.place.path or i.place.slot not in body.local:
        return False
    return root.fullname == root.name and not root.name.startswith("_")


class _Closures:
    """The uses of variables that liveness does not show: those of closures that run at any time, and of other types."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self._kept: dict[BasicBlock, int] | None = None

    def may_use(self, i: Store, block: BasicBlock) -> bool:
        """Return True if an assigned variable may be used although no later instruction reads it."""
        body, root = self._body, self._body.roots[i.place.slot]
        assert root is not None, "an assigned variable has a name"
        if root in body.unfollowed or root in body.opaque or any(_changes(child, root) for child in body.children):
            return True
        if not body.children:
            return False
        if self._kept is None:
            self._kept = _kept_by_closures(body)
        return bool(_kept_before(i, block, self._kept[block]) >> i.place.slot & 1)


def _changes(child: Body, root: Root) -> bool:
    """Return True if a closure assigns a variable, or uses it where its calls do not show the use."""
    if root in child.unfollowed or root in child.opaque:
        return True
    slot = child.slots.get(root)
    if slot is not None:
        for block in child.blocks:
            if any(isinstance(i, Store | Forget) and i.place.slot == slot for i in block.instructions):
                return True
    return any(_changes(inner, root) for inner in child.children)


def _kept_by_closures(body: Body) -> dict[BasicBlock, int]:
    """Return for each block the variables that a closure may use at any time, because it was passed on before."""
    kept = dict.fromkeys(body.blocks, 0)
    todo = list(body.blocks)
    while todo:
        block = todo.pop()
        after = _kept_before(None, block, kept[block])
        for follower in block.next:
            if after | kept[follower] != kept[follower]:
                kept[follower] |= after
                todo.append(follower)
    return kept


def _kept_before(stop: Store | None, block: BasicBlock, kept: int) -> int:
    """Return the variables that a closure may use at any time before an instruction of a block, or at its end."""
    for i in block.instructions:
        if i is stop:
            break
        if isinstance(i, Touch) and i.later:
            kept |= 1 << i.place.slot
    return kept


def _takes_out(b: GraphBuilder, e: Expression) -> bool:
    """Return True if a call takes an existing op out of a container: `ops.pop()`, `queue.get()`, `next(ops)`."""
    if not isinstance(e, CallExpr):
        return False
    callee = e.callee
    if isinstance(callee, MemberExpr) and callee.expr in b.types:
        full = method_name(b.types.get(callee.expr), callee.name) or ""
        return full.startswith(("builtins.", "typing.", "collections.", "queue.", "trio."))
    return isinstance(callee, RefExpr) and (callee.fullname or "").startswith(("builtins.", "typing."))
