"""`SharedWork`: the `shared()` nodes of one feed that other open feeds observe too.

The value of such a node is computed once for each snapshot of its sources, by the feed that needs it first. While two
feeds observe a node, the tensor is a result of the update that makes it, in memory of its own: the feed claims the
node's `Once` before the update, and publishes the tensor after it. Another feed that finds the value there, of the same
revisions of the node's sources, takes its memory, and the update leaves out what makes it. A feed that finds the `Once`
claimed waits; it gives up its own claims first, so that no two feeds wait for each other. Plain runs use the same
`Once`, so they share too.

Closures of the host below such a node are called once for each argument: the feeds share the last value of each.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, final

from dagpu.common.containers import values_in
from dagpu.common.critical import Bookkeeping
from dagpu.common.places import Origin
from dagpu.handles import HANDLES, SharedTensor
from dagpu.handles.handle_trees import make_unwritable
from dagpu.lowering.updates.claims import Change
from dagpu.lowering.updates.comparing.compare_values import same_objects
from dagpu.lowering.updates.live_inputs import Call
from dagpu.lowering.updates.shared_buffers import SharedBuffer
from dagpu.lowering.updates.value_numbers import ValueNumbers
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import BUILT_IN, Map, Shared, Zip, nodes_of
from dagpu.ops.single_flight import NOTHING, Once
from dagpu.ops.source_op import Source
from dagpu.ops.versions import Snapshot, Version
from dagpu.reactive.stages.live_stage import Lenders, LiveStage
from dagpu.reactive.stages.prepared_tiles import ChangedParts
from dagpu.runtime.waiting.waits import Waits

AnyOp = DeviceOp[Any, Any, Any]


@final
class _LastCall:
    """The last argument and value of a closure that several feeds call."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: tuple[Any, Any] | None = None

    def value(self, call: Call, argument: Any) -> Any:
        """Return what `call` gives for an argument; the last value, if the argument is the same."""
        last = self._last  # one read: another thread may replace the pair
        if last is not None and same_objects(last[0], argument):
            return last[1]
        value = call(argument)
        if not any(type(item) in HANDLES or isinstance(item, DeviceOp) for item in values_in(value)):
            value = make_unwritable(value)
            self._last = argument, value
        return value


@final
class _Observed:
    """The nodes that open feeds observe, of all threads."""

    def __init__(self) -> None:
        self._feeds: Counter[AnyOp] = Counter()
        self._calls: dict[AnyOp, _LastCall] = {}
        self._published: dict[AnyOp, Any] = {}
        self.open: dict[SharedWork, None] = {}
        """The feeds that are open."""
        self.changes = 0
        """How often a node has got its second feed, or lost it."""

    def enter(self, nodes: Iterable[AnyOp]) -> None:
        """Count one feed more for these nodes."""
        with Bookkeeping():
            for node in nodes:
                self._feeds[node] += 1
                if self._feeds[node] == 2:
                    self.changes += 1
                    if type(node) is Map:
                        self.share_call(node)

    def leave(self, nodes: Iterable[AnyOp]) -> None:
        """Count one feed less for these nodes, and free what is left of those that have one feed alone."""
        with Bookkeeping():
            for node in nodes:
                self._feeds[node] -= 1
                if self._feeds[node] == 1:
                    self.changes += 1
                    self._forget(node)
                elif not self._feeds[node]:
                    del self._feeds[node]
                    self._calls.pop(node, None)
                    self._forget(node)

    def is_common(self, node: AnyOp, mine: "SharedWork | None" = None) -> bool:
        """Return true if two feeds observe a node, or may do so: one that has not run yet may find nodes of the feed
        `mine` in its closures."""
        count = self._feeds[node]
        if count == 1:
            return any(not each.is_known and (mine is None or each.may_meet(mine)) for each in self.open)
        return count > 1

    def know(self) -> None:
        """Note that a feed has run for the first time, and free what was published in case that it needs it."""
        with Bookkeeping():
            self.changes += 1
            for node in list(self._published):
                if not self.is_common(node):
                    self._forget(node)
            for node in list(self._calls):
                if not self.is_common(node):
                    del self._calls[node]

    def share_call(self, node: AnyOp) -> None:
        """Keep the last value of a closure for other feeds, also for one that meets its node later."""
        self._calls.setdefault(node, _LastCall())

    def call_of(self, node: AnyOp, call: Call) -> Call:
        """Return the function that calls the closure of a node, or returns its last value if several feeds share it."""
        last = self._calls.get(node)
        return call if last is None else partial(last.value, call)

    def publish(self, node: Shared[Any], value: Any, made_for: Mapping[Any, int], mine: "SharedWork") -> None:
        """Give a value that a feed has made to other runs: of sources as long as two feeds observe the node, a constant
        for ever. `mine` is that feed."""
        node.once.publish(value, made_for)
        if not made_for:
            return
        with Bookkeeping():
            self._published[node] = value
            if not self.is_common(node, mine):
                self._forget(node)

    def _forget(self, node: AnyOp) -> None:
        """Free the value that a feed has published. The caller holds the lock of the bookkeeping."""
        value = self._published.pop(node, NOTHING)
        if value is not NOTHING and type(node) is Shared:
            node.once.expire(value)


_observed = _Observed()


@final
class SharedWork:
    """The nodes of one open feed: those visible without calling closures, and those that its last trace has met."""

    def __init__(self, op: AnyOp) -> None:
        shared = [node for node in nodes_of(op) if type(node) is Shared]
        below = nodes_of(Zip(tuple(shared), None))
        self._visible = {node for node in below if type(node) is Shared or _calls_closure(node)}
        self.reach = frozenset([node for node in nodes_of(op) if type(node) is Shared or type(node) is Source])
        """The sources and `shared()` ops of the feed that are visible."""
        self._met: set[AnyOp] = set()
        """The nodes that closures have built, or refer to."""
        self.is_known = False
        """True once the feed has run, so that its nodes are known."""
        self.busy = False
        """True while an update may write the feed's memory. It is set before the update looks at `changes`, and another
        feed looks at it after a node has become common: so that one does not take what this one writes in place."""
        self.lenders: Callable[[ValueNumbers, set[Version] | None], Lenders] | None = None
        """Returns what the feed holds for others, by value number."""
        _observed.enter(self._visible)
        with Bookkeeping():
            _observed.open[self] = None
            _observed.changes += 1

    @property
    def changes(self) -> int:
        """A number that differs after a node has become common to two feeds, or is so no more."""
        return _observed.changes

    def is_common(self, node: AnyOp) -> bool:
        """Return true if another feed observes a node too, or may do so."""
        return _observed.is_common(node, self)

    def observes(self, node: AnyOp) -> bool:
        """Return true if this feed observes a node."""
        return node in self._visible or node in self._met

    def may_meet(self, other: "SharedWork") -> bool:
        """Return true for another feed that has a source or a `shared()` op in common with this one: closures of the
        two may refer to the same nodes."""
        return other is not self and not self.reach.isdisjoint(other.reach)

    def begin(self) -> None:
        """Begin an update."""
        with Bookkeeping():
            self.busy = True

    def end(self) -> None:
        """End an update."""
        self.busy = False
        if not self.is_known:
            self.is_known = True
            _observed.know()

    def take(self, stage: LiveStage, earlier: Sequence[LiveStage], change: Change, stale: set[int]) -> set[int]:
        """Take over what other feeds hold of these targets, as far as it is below a node that both feeds observe.
        Return the targets that were found. `earlier` are the stages before this one."""
        versions = None if change.lost else stage.leaves.versions(change.mask)
        table, found = ValueNumbers(), set[int]()
        with Bookkeeping():
            for before in earlier if stale else ():
                before.lenders(table, 0)
            for each in _observed.open if stale else ():
                if each is self or each.busy or each.lenders is None:
                    continue
                both = frozenset([one.buffer for one in stage.common if each.observes(one.node)])
                wanted = stale - found if any(map(each.observes, stage.opened)) else stage.below(both) & stale - found
                theirs = each.lenders(table, versions) if wanted else {}
                if theirs:
                    found |= stage.take_from(wanted, table, theirs)
        return found

    def call_of(self, node: Map[Any], call: Call, *, below_shared: bool = False) -> Call:
        """Return the function by which this feed calls the closure of a node. With `below_shared` a trace has met it
        below a `shared()` op."""
        if below_shared:
            self.meet({node})
            if _observed.is_common(node, self):
                _observed.share_call(node)
        return _observed.call_of(node, call)

    def meet(self, nodes: set[AnyOp]) -> None:
        """Observe the nodes that a trace has found, too."""
        new = nodes - self._visible - self._met
        self._met |= new
        _observed.enter(new)

    def keep_met(self, nodes: set[AnyOp]) -> None:
        """Observe no node any more that the last trace did not find."""
        gone = self._met - nodes
        self._met -= gone
        _observed.leave(gone)

    def common(self, found: list[SharedBuffer]) -> list[SharedBuffer]:
        """Return those of these nodes that another feed observes too."""
        return [each for each in found if _observed.is_common(each.node, self)]

    def close(self) -> None:
        """End this feed's part in all nodes."""
        with Bookkeeping():
            _observed.open.pop(self, None)
        self.lenders = None  # it would keep the feed's memory
        _observed.leave(self._visible | self._met)
        self._visible, self._met = set(), set()

    async def run(
        self,
        stage: LiveStage,
        earlier: Sequence[LiveStage],
        change: Change,
        snapshot: Snapshot,
        waits: Waits,
        origin: Origin,
        parts: ChangedParts | None,
    ) -> int:
        """Run a change of a stage: take what another run has made for this snapshot, and publish what this one makes.

        Return the number of instructions that ran.
        """
        claims = _Claims(self, snapshot)
        try:
            given = await claims.settle(stage, earlier, change, waits)
            stage.fresh |= given
            ran = await stage.run(change._replace(lost=stage.lost, given=change.given | given), waits, origin, parts)
        finally:
            claims.publish(stage)
            claims.abandon()
        return ran


def _calls_closure(node: AnyOp) -> bool:
    """Return true for a `Map` of a function of the user's."""
    return type(node) is Map and type(node.f) not in BUILT_IN


@final
class _Claims:
    """The nodes that one update computes for other feeds too. It is the owner of their claims."""

    def __init__(self, work: SharedWork, snapshot: Snapshot) -> None:
        self._work = work
        self.thread = threading.get_ident()
        """The thread that drives the run. Code that blocks this thread must not wait for the run."""
        self._snapshot = snapshot
        self._claimed: list[SharedBuffer] = []

    async def settle(
        self, stage: LiveStage, earlier: Sequence[LiveStage], change: Change, waits: Waits
    ) -> frozenset[int]:
        """Take the memory of the stale nodes that another run has made for this snapshot, and claim the others.

        Return the buffers that this change need not make although their bits have changed.
        """
        stale = stage.staleness.stale_targets(change)
        made: set[int] = set()
        while True:
            made |= self._work.take(stage, earlier, change, stale - made)
            found: list[tuple[SharedBuffer, Any]] = []
            wanted = [each for each in stage.common if each.buffer in stale and each.buffer not in made]
            busy = self._claim(wanted, found)
            if busy is None:
                break
            self.abandon()
            await waits.wait_for_any([busy])
        for each, value in found:
            stage.take(each.buffer, value)
            made.add(each.buffer)
        bits = stage.staleness.bits_of
        return frozenset([buffer for buffer in made if bits(buffer) & change.mask])

    def _claim(self, wanted: list[SharedBuffer], found: list[tuple[SharedBuffer, Any]]) -> Once | None:
        """Claim each node, or add it to `found` with its value. Return the first one that another run is making."""
        for each in wanted:
            once = each.node.once
            while True:
                value, made_for = once.remembered()
                if value is not NOTHING:
                    if all(node.cell.history.at(self._snapshot).revision == made_for[node] for node in made_for):
                        if each.holds(value):
                            found.append((each, value))
                        break
                    once.expire(value)
                claim = once.claim(self)
                if claim == "busy":
                    return once
                if claim == "claimed":
                    self._claimed.append(each)
                    break
        return None

    def publish(self, stage: LiveStage) -> None:
        """Give the tensors that the update has made to other runs, also one that has failed since."""
        for at in reversed(range(len(self._claimed))):
            each = self._claimed[at]
            if each.buffer not in stage.fresh:
                continue
            tensor: SharedTensor[Any] = stage.targets.shared(
                each.buffer, each.device, each.nbytes, each.layout, each.origin
            )
            _observed.publish(each.node, tensor, each.revisions(self._snapshot), self._work)
            del self._claimed[at]

    def abandon(self) -> None:
        """Give up the claims of what was not made."""
        while self._claimed:
            each = self._claimed.pop()
            if each.node.once.owner is self:
                each.node.once.abandon()
