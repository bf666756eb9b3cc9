"""`SharedWork`: the `shared()` nodes of one feed that other open feeds observe too.

The value of such a node is computed once for each snapshot of its sources, by the feed that needs it first. While two
feeds observe a node, the tensor is a result of the update that makes it, in memory of its own: the feed claims the
node's `Once` before the stage that makes the tensor, and publishes it then. Another feed that finds the value there, of
the same revisions of the node's sources, takes its memory, and the update leaves out what makes it. Plain runs use the
same `Once`, so they share too.

What cannot be published is taken by value number from the feed that has made it: what is below a node, and a node whose
value goes through the host or may be that of an earlier snapshot. The claim of such a node is kept until the end of the
update, from which on the feed lends what it holds. A feed that finds a `Once` claimed waits; it gives up its own claims
first, so that no two feeds wait for each other.

Closures below such a node are called once for each argument: the feeds share the last call of each.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, final

from dagpu.common.critical import BOOKKEEPING, Bookkeeping
from dagpu.common.places import Origin
from dagpu.handles import SharedTensor
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import BUILT_IN, Map, Shared, Then, Zip, nodes_of
from dagpu.ops.single_flight import NOTHING, Claims, Once
from dagpu.ops.source_op import Source, differ, revisions_at
from dagpu.ops.versions import Snapshot, Version
from dagpu.reactive.claims import Change
from dagpu.reactive.live_stage import Lenders, LiveStage
from dagpu.reactive.staleness import ValueNumbers
from dagpu.reactive.tile_updates import ChangedParts
from dagpu.runtime.waits import Waits
from dagpu.tracing.live_inputs import LastCall
from dagpu.tracing.own_plans import inputs_of
from dagpu.tracing.program_builder import SharedBuffer

AnyOp = DeviceOp[Any, Any, Any]


@final
class _Observed:
    """The nodes that open feeds observe, of all threads."""

    def __init__(self) -> None:
        self._feeds: Counter[AnyOp] = Counter()
        self._calls: dict[AnyOp, LastCall] = {}
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
                    if type(node) is not Shared:
                        self.share_call(node)

    def leave(self, nodes: Iterable[AnyOp]) -> None:
        """Count one feed less for these nodes, and free what is left of those that have one feed alone."""
        with Bookkeeping():
            for node in nodes:
                self._feeds[node] -= 1
                if self._feeds[node] < 2:
                    self._calls.pop(node, None)
                    self._forget(node)
                if self._feeds[node] == 1:
                    self.changes += 1
                elif not self._feeds[node]:
                    del self._feeds[node]

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

    def share_call(self, node: AnyOp) -> None:
        """Keep the last value of a closure for other feeds, also for one that meets its node later."""
        self._calls.setdefault(node, LastCall())

    def last_call(self, node: AnyOp) -> LastCall | None:
        """Return the last call of the closure of a node; None if no two feeds share it."""
        return self._calls.get(node)

    def keep(self, node: Shared[Any], value: Any, mine: "SharedWork") -> None:
        """Keep the value of sources that the feed `mine` has published, as long as two feeds observe the node."""
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
        nodes = nodes_of(op, inputs_of)
        below = nodes_of(Zip(tuple([node for node in nodes if type(node) is Shared]), None), inputs_of)
        self._visible = {node for node in below if type(node) is Shared or _calls_closure(node)}
        self.reach = frozenset([node for node in nodes if type(node) is Shared or type(node) is Source])
        """The sources and `shared()` ops of the feed that are visible."""
        self._met: set[AnyOp] = set()
        """The nodes that closures have built, or refer to."""
        self.is_known = False
        """True once the feed has run, so that its nodes are known."""
        self.observed = _observed
        """The nodes of all feeds."""
        self.busy = False
        """True while an update may write the feed's memory. It is set before the update looks at `observed.changes`,
        and another feed looks at it after a node has become common: so that one does not take what this one writes in
        place."""
        self._update: _SharedUpdate | None = None
        """What the present update computes for others, if it is anything."""
        self.lenders: Callable[[ValueNumbers, set[Version] | None], Lenders] | None = None
        """Returns what the feed holds for others, by value number."""
        _observed.enter(self._visible)
        with Bookkeeping():
            _observed.open[self] = None
            _observed.changes += 1

    def is_common(self, node: AnyOp) -> bool:
        """Return true if another feed observes a node too, or may do so."""
        return _observed.is_common(node, self)

    @property
    def is_alone(self) -> bool:
        """True if no other feed is open."""
        return len(_observed.open) < 2

    def observes(self, node: AnyOp) -> bool:
        """Return true if this feed observes a node."""
        return node in self._visible or node in self._met

    def may_meet(self, other: "SharedWork") -> bool:
        """Return true for another feed that has a source or a `shared()` op in common with this one: closures of the
        two may refer to the same nodes."""
        return other is not self and not self.reach.isdisjoint(other.reach)

    def begin(self) -> None:
        """Begin an update, which is a section."""
        with BOOKKEEPING:  # another feed may be taking what this update will write
            self.busy = True

    def end(self) -> None:
        """End an update. What it has claimed and not made, others may make, or take from this feed."""
        self.busy = False
        if self._update is not None:
            self._update.end()
            self._update = None
        if not self.is_known:
            self.is_known = True
            _observed.know()

    def take(self, stage: LiveStage, table: ValueNumbers, change: Change, stale: set[int]) -> set[int]:
        """Take over what other feeds hold of these targets, as far as it is below a node that both feeds observe.
        Return the targets that were found. `table` names what the stages before this one have made."""
        versions = None if change.lost else stage.leaves.versions(change.mask)
        found = set[int]()
        with Bookkeeping():
            for each in _observed.open if stale else ():
                if each is self or each.busy or each.lenders is None:
                    continue
                both = frozenset([one.buffer for one in stage.common if each.observes(one.node)])
                wanted = stale - found if any(map(each.observes, stage.opened)) else stage.below(both) & stale - found
                theirs = each.lenders(table, versions) if wanted else {}
                if theirs:
                    found |= stage.take_from(wanted, table, theirs)
        return found

    def last_call(self, node: AnyOp, *, below_shared: bool) -> LastCall | None:
        """Return the last call of the closure of a node by any feed; None if this one shares it with no other. With
        `below_shared` a trace has met it below a `shared()` op that another feed observes too."""
        if below_shared:
            self.meet(node)
            _observed.share_call(node)
        return _observed.last_call(node)

    def meet(self, node: AnyOp) -> bool:
        """Observe a node that a trace has found. Return true if another feed observes it too, or may do so."""
        if not self.observes(node):
            self._met.add(node)
            _observed.enter([node])
        return _observed.is_common(node, self)

    def keep_met(self, nodes: set[AnyOp], called: set[AnyOp]) -> None:
        """Observe the `shared()` nodes that the last trace has found, and no closures but those that it has called."""
        new, gone = nodes - self._visible - self._met, self._met - nodes - called
        self._met = (self._met | new) - gone
        _observed.enter(new)
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
        table: ValueNumbers,
        change: Change,
        snapshot: Snapshot,
        waits: Waits,
        origin: Origin,
        parts: ChangedParts | None,
    ) -> int:
        """Run a change of a stage: take what another run has made for this snapshot, and publish what this one makes.

        Return the number of instructions that ran.
        """
        update = self._update = self._update or _SharedUpdate(self, snapshot)
        try:
            given = await update.settle(stage, table, change, waits)
            stage.fresh |= given
            ran = await stage.run(change._replace(lost=stage.lost, given=change.given | given), waits, origin, parts)
        finally:
            update.publish(stage)
        return ran


def _calls_closure(node: AnyOp) -> bool:
    """Return true for a `Then`, and for a `Map` of a function of the user's."""
    return type(node) is Then or (type(node) is Map and type(node.f) not in BUILT_IN)


@final
class _SharedUpdate:
    """What one update computes for other feeds too."""

    def __init__(self, work: SharedWork, snapshot: Snapshot) -> None:
        self._work = work
        self._snapshot = snapshot
        self._claims = Claims()
        self._making: dict[Once, SharedBuffer] = {}
        """What is claimed and is published once it is made."""
        self._made: dict[Once, Callable[[], None]] = {}
        """What is claimed and made, each with the call that publishes it."""

    async def settle(self, stage: LiveStage, table: ValueNumbers, change: Change, waits: Waits) -> frozenset[int]:
        """Take the memory of the stale nodes that another run has made for this snapshot, and claim the others.

        Return the buffers that this change need not make although their bits have changed.
        """
        stale = stage.staleness.stale_targets(change)
        made: set[int] = set()
        while True:
            made |= self._work.take(stage, table, change, stale - made)
            found: list[tuple[SharedBuffer, Any]] = []
            wanted = [each for each in stage.common if each.buffer in stale and each.buffer not in made]
            busy = self._hold(stage.opened if stale - made else (), wanted, found)
            if busy is None:
                break
            self.end()
            await waits.wait_for_any([busy])
        for each, value in found:
            stage.take(each.buffer, value)
            made.add(each.buffer)
        bits = stage.staleness.bits_of
        return frozenset([buffer for buffer in made if bits(buffer) & change.mask])

    def _hold(
        self, opened: Iterable[Shared[Any]], wanted: list[SharedBuffer], found: list[tuple[SharedBuffer, Any]]
    ) -> Once | None:
        """Claim each node, or add it to `found` with its value. Return the first one that another run is making.

        One that has no sources to be published for is claimed until the end of the update, as those that are `opened`
        are: then others take from this feed what is below it.
        """
        for node, each in [*[(node, None) for node in opened], *[(each.node, each) for each in wanted]]:
            claim, value, _ = self._claims.take(node.once, self._is_stale)
            if claim == "busy":
                return node.once
            if each is None or each.sources is None:
                continue
            if claim == "claimed":
                self._making[node.once] = each
            elif each.holds(value):
                found.append((each, value))
        return None

    def _is_stale(self, made_for: Mapping[Any, int]) -> bool:
        return differ(made_for, self._snapshot)

    def publish(self, stage: LiveStage) -> None:
        """Give the tensors that the update has made to other runs, also one that has failed since. If they need more
        of what is below a tensor, they take it from this feed, and so they wait for the end of the update."""
        common = {each.buffer for each in stage.common}
        for once, each in list(self._making.items()):
            if each.buffer not in stage.fresh:
                continue
            tensor: SharedTensor[Any] = stage.targets.shared(
                each.buffer, each.device, each.nbytes, each.layout, each.origin
            )
            made_for = revisions_at(self._snapshot, each.sources or ())
            self._made[once] = partial(self._publish, each.node, tensor, made_for)
            del self._making[once]
            if stage.below(frozenset([each.buffer])) <= common:
                self._made.pop(once)()

    def _publish(self, node: Shared[Any], tensor: Any, made_for: Mapping[Any, int]) -> None:
        self._claims.publish(node.once, tensor, made_for)
        if made_for:  # else it is a constant, for ever
            _observed.keep(node, tensor, self._work)

    def end(self) -> None:
        """Publish what was made, and give up the other claims."""
        for publish in self._made.values():
            publish()
        self._made.clear()
        self._making.clear()
        self._claims.abandon()
