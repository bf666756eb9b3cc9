"""Plans that runs leave for later ones: of the same op, of ops of the same structure, and of a pipeline."""

import warnings
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from types import CodeType, EllipsisType
from typing import Any, Final, NamedTuple, final

from dagpu.backends.protocol import Backend, Bindings, Prepared, Replay
from dagpu.common.critical import BOOKKEEPING, Bookkeeping
from dagpu.common.origin import Origin, describe, place_of
from dagpu.handles import OWNING
from dagpu.lowering.arguments.cache_key import MOST_NODES, Flattened, exact
from dagpu.lowering.schedule.list_schedule import ListSchedule
from dagpu.lowering.schedule.policies import RoundRobin, SingleStream
from dagpu.lowering.tracing.signature import Signature
from dagpu.ops.base import DeviceOp, keep_for_later_runs, kept_from_earlier_runs
from dagpu.runtime.settings import Settings


class SubmittedRun(NamedTuple):
    """A stage under way."""

    driver: Backend
    prepared: Prepared
    bindings: Bindings
    replay: Replay


@final
class CachedPlan:
    """A plan that a run leaves for later runs, prepared by its backend."""

    __slots__ = (
        "_fixed", "_graph_from", "_reads", "_runs", "device", "driver", "policy", "prepared", "repeat", "verify",
    )  # fmt: skip

    def __init__(
        self, settings: Settings, repeat: Signature, driver: Backend, prepared: Prepared, reads: set[int]
    ) -> None:
        self.device = settings.device
        self.policy = settings.policy
        self.verify = settings.verify
        self._graph_from = settings.graph_from
        self._runs = 1
        self._reads = reads
        self._fixed: list[tuple[int, Hashable]] = []
        """The indices of the leaves whose values the plan is specialised for, with these values."""
        self.repeat = repeat
        self.driver = driver
        self.prepared = prepared

    def of(self, inputs: Flattened, graph_from: int | None) -> None:
        """Record the argument values that this plan is specialised for, and the run from which on it is a graph."""
        self._fixed = [(index, exact(inputs.leaves[index])) for index in sorted(self._reads)]
        self._graph_from = graph_from

    def suits(self, settings: Settings, leaves: Sequence[Any] = ()) -> bool:
        """True if these settings would give the same plan. A user-defined policy is compared by identity."""
        policy = settings.policy
        return (
            self.device is settings.device
            and (self.policy is policy or (type(policy) in _BY_VALUE and self.policy == policy))
            and self.verify is settings.verify
            and all(exact(leaves[index]) == value for index, value in self._fixed if leaves)
        )

    def wants_graph(self) -> bool:
        """Count one more run. True if this run is to be launched as a graph."""
        self._runs += 1
        return self._graph_from is not None and self._runs >= self._graph_from


_BY_VALUE: Final = frozenset((SingleStream, RoundRobin, ListSchedule))
"""Policies that are compared by value. User-defined policies are compared by identity."""
_KEPT_PER_OP: Final = 8
"""The most plans, for different devices and policies, that an op keeps, and a cache for one structure: the latest."""


# ---- by the same op


def kept_by(op: DeviceOp[Any, Any, Any], settings: Settings) -> tuple[CachedPlan, Sequence[Any]] | None:
    """The plan that a run of this same op object has left, with its leaves; None if there is none that suits."""
    found: tuple[CachedPlan, Sequence[Any]]
    for found in kept_from_earlier_runs(op) or ():
        if found[0].suits(settings):
            return found
    return None


def keep(
    op: DeviceOp[Any, Any, Any],
    new: CachedPlan,
    settings: Settings,
    inputs: Flattened | None,
    cache: "PlanCache | None",
) -> None:
    """Keep what a run has left: in the cache, and on the op itself where it may run again just so."""
    leaves: Sequence[Any] = ()
    if inputs is not None:
        if cache is not None:
            new.of(inputs, cache.graph_from(settings))
            cache.keep(inputs, new, settings)
        leaves = inputs.leaves
        if inputs.changeable or any(type(leaf) in OWNING for leaf in leaves):
            return
    # Of two first runs that are under way at once the later one's is kept: one plan for each setting.
    before = kept_from_earlier_runs(op)
    others = [kept for kept in before if not kept[0].suits(settings)] if before else ()
    keep_for_later_runs(op, ((new, leaves), *others[: _KEPT_PER_OP - 1]))


# ---- by structure


class CacheInfo(NamedTuple):
    """The statistics of a cache, as functools.lru_cache has them."""

    hits: int
    misses: int
    maxsize: int
    currsize: int


@final
class PlanCache:
    """Plans by the structure of their ops: the latest used."""

    def __init__(self, maxsize: int, graph_from: int | EllipsisType | None = ..., *, of_pipeline: bool = False) -> None:
        self._maxsize = maxsize
        self._graph_from = graph_from
        """The run from which on a plan is a graph; an ellipsis for the number in the run's settings."""
        self._of_pipeline = of_pipeline
        """True if a miss is a call of the pipeline's function, counted by `called`."""
        self._plans: OrderedDict[Hashable, tuple[list[CachedPlan], object]] = OrderedDict()
        self._hits = self._misses = 0

    def graph_from(self, settings: Settings) -> int | None:
        """The run of a plan, counted from 1, from which on it is a graph; None for never."""
        return settings.graph_from if isinstance(self._graph_from, EllipsisType) else self._graph_from

    def find(self, inputs: Flattened, settings: Settings) -> CachedPlan | None:
        """A plan that suits these leaves."""
        with BOOKKEEPING:
            found = self._plans.get(inputs.key)
            for kept in found[0] if found else ():
                if kept.suits(settings, inputs.leaves):
                    self._plans.move_to_end(inputs.key)
                    self._hits += 1
                    return kept
            self._misses += not self._of_pipeline
        return None

    def called(self) -> None:
        """The pipeline's function is called, for want of a plan."""
        with BOOKKEEPING:
            self._misses += 1

    def keep(self, inputs: Flattened, new: CachedPlan, settings: Settings) -> None:
        """Keep a plan for others of its structure; the one that has not been used for longest makes room."""
        with BOOKKEEPING:
            before, _ = self._plans.get(inputs.key, ([], None))
            others = [kept for kept in before if not kept.suits(settings, inputs.leaves)]
            self._plans[inputs.key] = [new, *others[: _KEPT_PER_OP - 1]], inputs.named
            self._plans.move_to_end(inputs.key)
            while len(self._plans) > self._maxsize:
                self._plans.popitem(last=False)

    def clear(self) -> None:
        """Forget all plans."""
        with Bookkeeping():
            self._plans.clear()
            self._hits = self._misses = 0

    def info(self) -> CacheInfo:
        """The numbers of hits and misses. A miss of a pipeline is a call of its function."""
        with Bookkeeping():
            return CacheInfo(self._hits, self._misses, self._maxsize, len(self._plans))


_PLANS: Final = 256
"""The most structures of plain ops that have a plan at once. A plan of 1,000 launches takes 1.5 MB on the host."""

plans: Final = PlanCache(_PLANS)
"""The plans of plain ops: those outside pipelines and graphs."""


_FEW_NODES: Final = 64
_places: dict[tuple[int, int], CodeType] = {}
"""The places at which ops that have run were built: the id of the code object, which is kept alive, and the offset."""


def most_nodes(op: DeviceOp[Any, Any, Any]) -> int:
    """The most nodes that a DAG may have to get a key. Most large DAGs are built once, and a key costs nearly as much
    as a trace: so an op from a place where none has run yet gets a key only if it is small."""
    if op.origin is None:
        return MOST_NODES
    code, at = op.origin
    place = id(code), at
    if place in _places:
        return MOST_NODES
    if len(_places) >= _MOST_PLACES:
        _places.clear()
    _places[place] = code
    return _FEW_NODES


_MOST_PLACES: Final = 4096


_warned: set[object] = set()


def refused(owner: Any, origin: Origin, what: str) -> None:
    """A pipeline was called with an argument by which no plan can be found. Warn, once for each place."""
    place = place_of(origin)
    if place in _warned:
        return
    _warned.add(place)
    file, line = ("dagpu", 0) if place is None else place
    message = (
        f"{owner!r}, called at {describe(origin)}, got {what}, by which no plan can be found: its function is called "
        "again in each run. Pass handles, NumPy arrays, numbers, texts, and tuples, lists and dicts of these. What is "
        "the same in all calls it can close over; make a pipeline for each value of it."
    )
    warnings.warn_explicit(message, RuntimeWarning, file, line)


def cache_of(inputs: Flattened, settings: Settings) -> PlanCache | None:
    """The cache of the pipeline that is called, or of the graph that is launched, else the global one.

    None where a kept plan would keep a foreign object alive: another pipeline or graph, a stream, a policy.
    """
    owners: set[Any] = {*inputs.graphs, *inputs.owners}
    if len(owners) > 1:
        return None
    for owner in owners:
        cache: PlanCache = owner.plans
        return cache
    return plans if type(settings.policy) in _BY_VALUE and not inputs.streams else None
