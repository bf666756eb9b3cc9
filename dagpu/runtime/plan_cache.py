"""`PlanCache`, a cache of plans by the structure of their ops, and `plans`, the cache of plain ops.

A pipeline has a cache of its own, and so has a graph, for the ops that launch it. dagpu.runtime.plan_lookup asks them.
"""

import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Sequence
from types import EllipsisType
from typing import Any, Final, NamedTuple, TypeAlias, final

from dagpu.common.critical import BOOKKEEPING, Bookkeeping, ReferenceQueue
from dagpu.common.places import Origin
from dagpu.ops.base import DeviceOp
from dagpu.ops.graph import GraphLaunch
from dagpu.runtime.direct_call import make_call, make_leaves_call, make_op_call
from dagpu.runtime.loaded_plan import CALL, LEAVES, OP, LoadedPlan, Settings
from dagpu.tracing.flattened import Flattened

KEPT_PER_OP: Final = 8
"""The most plans, for different devices and policies, that an op keeps, or a cache for one structure."""


class CacheInfo(NamedTuple):
    """The statistics of a cache, with the fields of `functools.lru_cache`."""

    hits: int
    misses: int
    maxsize: int
    currsize: int


CheckCall: TypeAlias = Callable[[DeviceOp[Any, Any, Any], Settings, Any, Origin], Awaitable[Any]]
"""Runs the call of a pipeline with these settings. Its waits are those of the run."""

_Elsewhere: TypeAlias = tuple["weakref.ref[PlanCache]", Hashable]
"""A cache, and the key of a structure there."""


@final
class PlanCache:
    """A cache of plans by the structure of their ops. It removes the least recently used structure first."""

    def __init__(
        self,
        maxsize: int,
        graph_from: int | EllipsisType | None = ...,
        *,
        of_pipeline: bool = False,
        check: "CheckCall | None" = None,
    ) -> None:
        self._maxsize = maxsize
        self._graph_from = graph_from
        """The run from which on a plan is a graph; None for never, an ellipsis for the number in the run's settings."""
        self._of_pipeline = of_pipeline
        """True for the cache of a pipeline. A miss is a call of its function then, counted by `called`."""
        self.check = check
        """Runs each call of a pipeline, and compares it with a run from scratch; None to run it alone."""
        self._plans: OrderedDict[Hashable, tuple[list[LoadedPlan], object]] = OrderedDict()
        self.latest: LoadedPlan | None = None
        """The plan that `find` returned last, if later calls or launches may use it without a key; None once another
        plan has been stored."""
        self._at: dict[tuple[int, int], LoadedPlan] = {}
        """The plan that served the last op from a place in the code: id of the code object and offset. Its direct call
        may serve the next one. The key of the plan keeps the code object alive."""
        self.elsewhere: Final[set[_Elsewhere]] = set()
        """The caches of other pipelines that have plans of ops that call this one too, with their keys there. The queue
        of what has ended has this very set, once it is not empty."""
        self._is_watched = False
        self._misses = self.hits = 0

    def remember_launch(self, loaded: LoadedPlan, op: GraphLaunch) -> None:
        """Remember the plan that `find` has returned for a launch of this graph, for direct calls."""
        make_leaves_call(loaded, (op.captured,))
        loaded.place = op.origin
        self.latest = None if loaded.direct[LEAVES] is None or op.origin is None else loaded

    def remember(
        self, loaded: LoadedPlan, arguments: tuple[Any, ...], named: tuple[Any, ...], inputs: Flattened
    ) -> None:
        """Remember the plan that `find` has returned for this call, for direct calls."""
        make_call(loaded, arguments, named, inputs)
        self.latest = None if loaded.direct.get(CALL) is None or self.check is not None else loaded

    def remember_place(self, loaded: LoadedPlan, op: DeviceOp[Any, Any, Any], inputs: Flattened) -> None:
        """Remember the plan that `find` has returned for this op, for direct calls of ops from the same place."""
        make_op_call(loaded, op, inputs)
        origin = op.origin
        if loaded.direct.get(OP) is not None and origin is not None:
            with BOOKKEEPING:
                if inputs.key in self._plans:
                    loaded.place = origin
                    self._at[id(origin[0]), origin[1]] = loaded

    def latest_at(self, origin: Origin) -> LoadedPlan | None:
        """Return the plan that served the last op from this place, if it has a direct call for others."""
        return None if origin is None else self._at.get((id(origin[0]), origin[1]))

    def _forget_place(self, loaded: LoadedPlan) -> None:
        origin = loaded.place
        if origin is not None and self.latest_at(origin) is loaded:
            del self._at[id(origin[0]), origin[1]]

    def find(self, inputs: Flattened, settings: Settings) -> LoadedPlan | None:
        """Return a plan that suits these leaves and settings, and count a hit; None if there is none."""
        if _ended:
            _remove_ended()
        with BOOKKEEPING:
            found = self._plans.get(inputs.key)
            for kept in found[0] if found else ():
                if kept.suits(settings, inputs.leaves):
                    self._plans.move_to_end(inputs.key)
                    self.hits += 1
                    return kept
            self._misses += not self._of_pipeline
        return None

    def called(self) -> None:
        """Count a miss: no plan was found, so the pipeline's function is called."""
        with BOOKKEEPING:
            self._misses += 1

    def store(
        self,
        inputs: Flattened,
        new: LoadedPlan,
        reads: set[int],
        settings: Settings,
        others: "Sequence[PlanCache]" = (),
    ) -> None:
        """Store a plan for ops of this structure. Removes the least recently used structure if the cache is full.

        `others` are the caches of further pipelines that the ops call. The plan is removed when one of them is cleared,
        or is freed with its pipeline: a plan keeps alive what the functions of its pipelines close over.
        """
        graph_from = settings.graph_from if isinstance(self._graph_from, EllipsisType) else self._graph_from
        new.specialize(inputs, reads, graph_from)
        with BOOKKEEPING:
            self.latest = None
            kept, removed = [new], list[LoadedPlan]()
            before, _ = self._plans.pop(inputs.key, ([], None))
            for loaded in before:
                fits = len(kept) < KEPT_PER_OP and not loaded.suits(settings, inputs.leaves)
                (kept if fits else removed).append(loaded)
            self._plans[inputs.key] = kept, inputs.named
            for other in others:
                other.note_elsewhere((weakref.ref(self), inputs.key))
            while len(self._plans) > self._maxsize:
                _, (plans, _) = self._plans.popitem(last=False)
                removed += plans
            for loaded in removed:
                self._forget_place(loaded)

    def note_elsewhere(self, entry: _Elsewhere) -> None:
        """Note a plan of another cache that this one has a part in, and forget those that are no more."""
        self.elsewhere.difference_update([each for each in self.elsewhere if not _is_kept(each)])
        self.elsewhere.add(entry)
        if not self._is_watched:
            _ended.watch(self, self.elsewhere)
            self._is_watched = True

    def has(self, key: Hashable) -> bool:
        """Return true if there are plans of this structure."""
        return key in self._plans

    def remove(self, key: Hashable) -> None:
        """Remove the plans of one structure, if there are any."""
        with Bookkeeping():
            loaded, _ = self._plans.pop(key, ([], None))
            for each in loaded:
                self._forget_place(each)

    def clear(self) -> None:
        """Remove all plans, and reset the statistics."""
        while self.elsewhere:
            _remove(self.elsewhere.pop())
        with Bookkeeping():
            self._plans.clear()
            self._at.clear()
            self.latest = None
            self._misses = self.hits = 0

    def info(self) -> CacheInfo:
        """Return the statistics. A miss of a pipeline is a call of its function."""
        with Bookkeeping():
            return CacheInfo(self.hits, self._misses, self._maxsize, len(self._plans))


_ended: Final[ReferenceQueue[set[_Elsewhere]]] = ReferenceQueue()
"""Where plans are that a pipeline which is gone had a part in."""


def _is_kept(entry: _Elsewhere) -> bool:
    cache = entry[0]()
    return cache is not None and cache.has(entry[1])


def _remove(entry: _Elsewhere) -> None:
    if (cache := entry[0]()) is not None:
        cache.remove(entry[1])


def _remove_ended() -> None:
    """Remove the plans of ops that call a pipeline which is gone."""
    while _ended:
        try:
            entries = _ended.pop()
        except IndexError:  # another thread has taken it
            return
        while entries:
            _remove(entries.pop())


_PLANS: Final = 256
"""The most structures of plain ops that have plans at once. A plan of 1,000 launches takes 1.5 MB on the host."""

plans: Final = PlanCache(_PLANS)
"""The plans of plain ops, which are outside pipelines and graphs."""
