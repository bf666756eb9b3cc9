"""Reports the errors in a body: one walk over its instructions, with the state before and the liveness after each."""

from collections.abc import Iterator
from typing import Final

from mypy.nodes import Context, Expression, MemberExpr, MypyFile, NameExpr, Var
from mypy.types import Type

from dagpu.mypy_plugin import messages
from dagpu.mypy_plugin.analysis.graph import (
    SPENDABLE,
    AskFeed,
    BasicBlock,
    BlockLoan,
    Body,
    Build,
    Escape,
    Forget,
    Instruction,
    Lend,
    Move,
    OpenFeed,
    Place,
    Read,
    Root,
    Run,
    Slot,
    Store,
    Touch,
    covers,
)
from dagpu.mypy_plugin.analysis.module_facts import ModuleFacts
from dagpu.mypy_plugin.analysis.ownership import Dataflow, entry_states
from dagpu.mypy_plugin.analysis.places import is_own_object
from dagpu.mypy_plugin.analysis.solver import OnAnyWay, at_entry_of, live_after_each, liveness, visits
from dagpu.mypy_plugin.messages import Finding
from dagpu.mypy_plugin.typing.type_facts import CONTAINS_OPS, HANDLE, OP


def check_body(body: Body, module: ModuleFacts) -> list[Finding]:
    """Return the findings in a body, without those in the functions nested in it."""
    found = list(body.mistakes)
    kinds = body.classes()
    if not kinds.isdisjoint((Move, Lend, BlockLoan, OpenFeed, Run, Store)):
        live = liveness(body)
        for e in unused_stores(body, live):
            is_op = bool(module.kinds.kind_of(module.types.get(e)) & (OP | CONTAINS_OPS))
            found.append(Finding(e, messages.UNUSED_OP, messages.unused(is_op)))
        if not kinds.isdisjoint((Move, Lend, BlockLoan, OpenFeed, Run)):
            found += _BodyChecker(body, module, live, BlockLoan in kinds).findings()
        found += [
            Finding(twice.node, messages.USE_AFTER_MOVE, messages.used_twice(op.node), messages.OUTPUT_PARTITION)
            for twice, op in used_twice(body)
        ]
    return found


class _BodyChecker:
    def __init__(self, body: Body, module: ModuleFacts, live: list[int], lends_for_block: bool) -> None:
        self.body = body
        self.lends_for_block = lends_for_block
        self.live = live
        self.module = module
        self.types = module.types
        self.continues = body.node in module.continuations
        self.parameters = {body.slots.get(argument.variable) for argument in getattr(body.node, "arguments", ())}
        self.moved: dict[tuple[Slot, frozenset[Move]], Finding] = {}
        self.others: dict[tuple[int, str], Finding] = {}
        self.closed: dict[Slot, Finding] = {}

    def findings(self) -> list[Finding]:
        live = self.live
        for block, state in entry_states(self.body, live):
            after: list[int] | None = None
            for index, i in enumerate(block.instructions):
                match i:
                    case Read() | Touch():
                        self._check_use(i, state)
                        if isinstance(i, Touch):
                            self._check_feed(i, state)
                    case AskFeed():
                        self._check_feed(i, state)
                    case Move():
                        if (i.silent or self._check_use(i, state)) and (
                            state.whole.lent >> i.place.slot & 1 or i.place.slot in state.sharing.pairs
                        ):
                            after = after or live_after_each(block, live)
                            self._check_move(i, state, after[index])
                    case Lend() if not i.reads_only:
                        if self._check_use(i, state):
                            after = after or live_after_each(block, live)
                            self._check_borrow(i, state, after[index])
                    case Escape():
                        self._check_escape(i, state)
                    case Run():
                        self._check_run(i, state)
                    case _:
                        pass
                state.step(i)
        return [*self.moved.values(), *self.others.values(), *self.closed.values()]

    def _report(self, finding: Finding) -> None:
        self.others.setdefault((id(finding.node), finding.message), finding)

    # ---- moves

    def _check_use(self, i: Read | Move | Lend | Touch, state: Dataflow) -> bool:
        """Report the use of a place that may have been moved. Return True if the other rules apply to the use as well.

        They do not apply to a moved handle, unless its only move is this instruction in an earlier round of a loop.
        """
        if self.lends_for_block:
            self._check_loan(i, state)
        moves = state.moved.get(i.place.slot)
        if moves is None:
            return True
        path = i.place.path
        sites = frozenset(
            m
            for m in moves
            if path[: len(m.place.path)] == m.place.path or (not m.binds and covers(m.place.path, path))
        )
        if not sites:
            return True
        node = i.node
        if isinstance(i, Touch) and all(_is_before(m.node, i.defined) for m in sites):
            node = i.inside
        again = all(m is i or m.node is node for m in sites)
        message = messages.used_after_move(
            self._name_of(i.place),
            self._type_of(i, sites),
            (m.how for m in sites),
            (m.node for m in sites),
            again,
            min((m.accepts for m in sites), key=int.bit_count),
        )
        finding = Finding(node, messages.USE_AFTER_MOVE, message)
        key = i.place.slot, sites
        known = self.moved.get(key)
        if known is None or finding.order < known.order:
            self.moved[key] = finding
        return sites == {i}

    def _type_of(self, i: Read | Move | Lend | Touch, sites: frozenset[Move]) -> Type | None:
        for node in (i.node, *(m.node for m in sites)):
            if isinstance(node, Expression) and node in self.types:
                return self.types[node]
        return None

    def _check_run(self, i: Run, state: Dataflow) -> None:
        for op in state.held.get(i.part, ()):
            if isinstance(op, Build) and (op.function or not i.calls) and (runs := state.spent.get(op)):
                said = messages.called_twice if i.calls else messages.run_twice
                message = said((run.node for run in runs), again=runs == {i})
                self._report(Finding(i.node, messages.USE_AFTER_MOVE, message))

    # ---- loans

    def _live_loans(self, place: Place, state: Dataflow, live: int, excluded: Slot) -> Iterator[Lend]:
        """Iterate over the loans of a place, of a part of it or of a whole around it, that a live slot holds."""
        slot, path = place
        seen: set[Lend] = set()
        for holder, facts in state.held.items():
            if holder == excluded or not live >> holder & 1:
                continue
            for loan in facts:
                if isinstance(loan, Lend) and loan.place.slot == slot and loan not in seen:
                    n = min(len(path), len(loan.place.path))
                    if path[:n] == loan.place.path[:n]:
                        seen.add(loan)
                        yield loan

    def _loans_of(self, i: Move | Lend, state: Dataflow, live: int) -> list[Lend]:
        """Return the live loans of the value that an instruction moves or lends, in the order of the lines."""
        places = [i.place]
        if not (isinstance(i, Move) and i.binds):
            places += [*state.sharing.others(i.place), *state.sharing.possible_others(i.place)]
        return sorted((x for p in places for x in self._live_loans(p, state, live, i.into)), key=_position_of)

    def _check_move(self, i: Move, state: Dataflow, live: int) -> None:
        if loans := self._loans_of(i, state, live):
            message = messages.moved_while_lent(self._name_of(i.place), i.how, loans[0].node, loans[0].captured)
            self._report(Finding(i.node, messages.CONFLICTING_BORROW, message))

    def _check_borrow(self, i: Lend, state: Dataflow, live: int) -> None:
        for loan in self._loans_of(i, state, live):
            if (i.exclusive or loan.exclusive) and not loan.reads_only:
                message = messages.conflicting_borrow(
                    self._name_of(i.place), i.exclusive, loan.node, loan.exclusive, loan.captured
                )
                self._report(Finding(i.node, messages.CONFLICTING_BORROW, message))
                return

    def _check_escape(self, i: Escape, state: Dataflow) -> None:
        reported: set[Slot] = set()
        for loan in sorted((fact for fact in state.held.get(i.part, ()) if isinstance(fact, Lend)), key=_position_of):
            slot, path = loan.place
            if isinstance(loan, BlockLoan):
                if isinstance(loan, OpenFeed) and not loan.closed:
                    message = messages.feed_escapes(_feed_name(loan), i.how, loan.node)
                    self._report(Finding(i.node, messages.FEED_ESCAPE, message))
                elif not loan.closed and not i.feeds_only:
                    message = messages.loan_escapes(loan.exclusive, i.how, loan.node)
                    self._report(Finding(i.node, messages.BORROW_ESCAPE, message))
                continue
            if i.feeds_only or loan.captured or slot not in self.body.local:
                continue
            if slot in self.body.elements:
                of = self.body.items.get(slot)
                if of is None or not self._ends_here(of.slot):
                    continue
            elif path and not self._ends_here(slot):
                continue
            if slot in reported or (self.continues and slot in self.parameters):
                continue
            if self.body.is_lambda and slot not in self.parameters:
                continue  # what a lambda makes for its one result lives as long as the borrow of it
            reported.add(slot)
            message = messages.escapes(self._name_of(loan.place), i.how, loan.node)
            self._report(Finding(i.node, messages.BORROW_ESCAPE, message))

    def _ends_here(self, slot: Slot) -> bool:
        """Return True if the object in a slot, and with it each part that it owns, ends with this body."""
        root = self.body.roots[slot]
        return isinstance(root, Var) and slot not in self.parameters and is_own_object(self.module, self.body, root)

    def _check_feed(self, i: AskFeed | Touch, state: Dataflow) -> None:
        """Report the first time that a feed is asked after its block. Its numbers may be read at any time."""
        for loan in state.held.get(i.place.slot, ()):
            if isinstance(loan, OpenFeed) and loan.closed:
                message = messages.feed_after_block(self._holder_of(i.place, loan), _feed_name(loan), loan.node)
                self._report_first(loan.place.slot, Finding(i.node, messages.FEED_ESCAPE, message))

    def _check_loan(self, i: Read | Move | Lend | Touch, state: Dataflow) -> None:
        """Report the first time that a handle or an op is used which holds what was lent for a block that has ended."""
        used = i.inside if isinstance(i, Touch) else i.node
        if not isinstance(used, Expression) or not self.module.kinds.kind_of(self.types.get(used)) & (HANDLE | OP):
            return
        for loan in state.held.get(i.place.slot, ()):
            if type(loan) is BlockLoan and loan.closed:
                message = messages.used_after_loan(loan.exclusive, loan.node)
                self._report_first(loan.place.slot, Finding(i.node, messages.USE_AFTER_MOVE, message))

    def _report_first(self, loan: Slot, finding: Finding) -> None:
        known = self.closed.get(loan)
        if known is None or finding.order < known.order:
            self.closed[loan] = finding

    def _holder_of(self, place: Place, loan: OpenFeed) -> str:
        """Return the name of the variable that holds a feed; that of the feed for a value without a name."""
        root = self.body.roots[place.slot]
        return _feed_name(loan) if root is None else root.name

    def _name_of(self, place: Place) -> str:
        root = self.body.roots[place.slot]
        if root is None:
            name = "this tensor"
        elif isinstance(root, Var) and root.info and not root.is_property and root.fullname != root.name:
            name = f"{root.info.name}.{root.name}"  # a variable of a class
        else:
            name = root.name
        return name + "".join(place.path)


def _feed_name(loan: OpenFeed) -> str:
    return loan.node.name if isinstance(loan.node, NameExpr | MemberExpr) else "feed"


def _position_of(loan: Lend) -> tuple[int, int]:
    return loan.node.line, loan.node.column


def _is_before(node: Context, other: Context) -> bool:
    return (node.line, node.column) < (other.line, other.column)


# ---- ops that are used twice

_Holders = frozenset[Slot]
_MOST_STATES: Final = 64
"""Sets of holders that are followed at one point. Beyond that, the op is not checked."""


def used_twice(body: Body) -> Iterator[tuple[Build, Build]]:
    """Iterate over the ops that use another op twice, each with that op."""
    builds = [i for i in body.all_of(Build) if i.single]
    if not any(len(build.parts) > 1 for build in builds):
        return
    named = {i.part: i.place.slot for i in body.all_of(Store) if not i.place.path}
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
    once: set[Slot] = set()
    often: set[Slot] = set()
    for block in body.blocks:
        for i in block.instructions:
            if isinstance(i, Read):
                (often if block.in_loop or i.place.slot in once else once).add(i.place.slot)
    return often


def _users_of(body: Body, op: Build) -> set[Build]:
    """Return the ops that may use an op twice."""
    users: set[Build] = set()
    for block, state in visits(body.blocks, at_entry_of(body, OnAnyWay(frozenset((_Holders(),))))):
        if len(state.items) > _MOST_STATES:
            return set()
        for i in block.instructions:
            if isinstance(i, Build) and i.single:
                users.update([i] if any(len(holders.intersection(i.parts)) > 1 for holders in state.items) else [])
            state.items = frozenset(_after(i, op, holders) for holders in state.items)
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


def unused_stores(body: Body, live_at_entry: list[int]) -> list[Expression]:
    """Return the expressions whose ops are assigned to local variables that nothing reads afterwards."""
    if isinstance(body.node, MypyFile):
        return []
    read: dict[Expression, bool] = {}
    if not any(i.built is not None for i in body.all_of(Store)):
        return []
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
            case Build(single=True):
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
        self._kept: list[int] | None = None

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
        return bool(_kept_before(i, block, self._kept[block.index]) >> i.place.slot & 1)


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


def _kept_by_closures(body: Body) -> list[int]:
    """Return for each block the variables that a closure may use at any time, because it was passed on before."""
    kept = [0] * len(body.blocks)
    for block, state in visits(body.blocks, at_entry_of(body, OnAnyWay(0))):
        kept[block.index] = state.items
        state.items = _kept_before(None, block, state.items)
    return kept


def _kept_before(stop: Store | None, block: BasicBlock, kept: int) -> int:
    """Return the variables that a closure may use at any time before an instruction of a block, or at its end."""
    for i in block.instructions:
        if i is stop:
            break
        if isinstance(i, Touch) and i.later:
            kept |= 1 << i.place.slot
    return kept
