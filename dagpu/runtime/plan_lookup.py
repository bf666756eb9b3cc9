"""Where plans are kept, and the search for the plan that serves one run.

`PlanCache` keeps plans by the structure of their ops; `plans` is the cache of plain ops. A pipeline has a cache of its
own, and so has a graph, for the ops that launch it. A plan is looked up by the op itself, by its place in the code, or
by its cache key.
"""

import warnings
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Sequence
from types import CodeType, EllipsisType
from typing import Any, Final, NamedTuple, TypeAlias, final

from dagpu.common.compiled import MISS
from dagpu.common.critical import BOOKKEEPING, Bookkeeping, ReferenceQueue
from dagpu.common.places import Origin, describe, passes_on, place_of
from dagpu.handles.handle_state import Locks
from dagpu.ops.base import DeviceOp, attach_plans, read_plans
from dagpu.ops.compose import Pure, Then, Value
from dagpu.ops.graph import GraphLaunch
from dagpu.ops.single_flight import Claims
from dagpu.ops.versions import Snapshot
from dagpu.runtime.direct_call import OFTEN, make_call, make_leaves_call, make_op_call
from dagpu.runtime.loaded_plan import CALL, LEAVES, OP, VALUE_POLICIES, LoadedPlan, Settings
from dagpu.runtime.run_call import run_bound
from dagpu.runtime.waits import BlockingWaits, Waits
from dagpu.tracing.cache_key import MOST_NODES, flatten_op
from dagpu.tracing.flattened import Flattened
from dagpu.tracing.signature import BoundArguments, Signature

# ---- caches


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
        self.by_place: dict[tuple[int, int], LoadedPlan] = {}
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
                    self.by_place[id(origin[0]), origin[1]] = loaded

    def latest_at(self, origin: Origin) -> LoadedPlan | None:
        """Return the plan that served the last op from this place, if it has a direct call for others."""
        return None if origin is None else self.by_place.get((id(origin[0]), origin[1]))

    def _forget_place(self, loaded: LoadedPlan) -> None:
        origin = loaded.place
        if origin is not None and self.latest_at(origin) is loaded:
            del self.by_place[id(origin[0]), origin[1]]

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
            self.by_place.clear()
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


# ---- the search


_FEW_NODES: Final = 64
"""The most nodes of an op that is looked up although no op from its place in the code has run yet."""

_MOST_PLACES: Final = 4096
"""The most places that are remembered."""

_places: dict[tuple[int, int], CodeType] = {}
"""The places where ops that have run were built: id of the code object and offset. The value keeps the code alive."""


def _most_nodes(op: DeviceOp[Any, Any, Any]) -> int:
    """Return the most nodes that a DAG may have to be looked up in a cache.

    Most large DAGs are built once, and a cache key costs nearly as much as a trace. So an op from a place in the code
    from which none has run yet gets a key only if it is small.
    """
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


_warned: set[object] = set()


def _warn_uncacheable(owner: Any, origin: Origin, what: str) -> None:
    """Warn that a pipeline was called with an argument by which no plan can be found."""
    _warn_once(
        origin,
        f"{owner!r}, called at {describe(origin)}, got {what}, by which no plan can be found: its function is called "
        "again in each run. Pass handles, NumPy arrays, numbers, texts, and tuples, lists and dicts of these; or "
        "slices, frozen dataclasses, classes and functions that hold none of the first two and no object. Of a module "
        "pass what the function reads. Let the function "
        "close over a value that is the same in all calls, and make a pipeline for each such value. Give the result of "
        "an op by .then: op.then(lambda t: f(t)).",
    )


@passes_on
def _warn_once(origin: Origin, message: str) -> None:
    """Issue a warning about a call of a pipeline, once for each place."""
    place = place_of(origin)
    if place not in _warned:
        _warned.add(place)
        file, line = ("dagpu", 0) if place is None else place
        warnings.warn_explicit(message, RuntimeWarning, file, line)


def pipeline_call(op: DeviceOp[Any, Any, Any]) -> "tuple[PlanCache, Any] | None":
    """Return the plans and the arguments of the pipeline of which this op is a call; None if it is another op."""
    if type(op) is Then and isinstance(f := op.f, Pure) and type(source := op.source) is Value:
        return f.plans, source.content
    return None


def _attached_plans(op: DeviceOp[Any, Any, Any]) -> Any:
    """Return the plans of an op's earlier runs; None if there are none."""
    try:
        return read_plans(op)
    except AttributeError:  # a copy, made without `__init__`
        return None


DirectRun: TypeAlias = tuple[LoadedPlan, Any, Any, Any, PlanCache | None]
"""A plan, its `DirectCall`, the arguments and the keyword arguments for that, and the cache that counts the hit."""


def direct_call(op: DeviceOp[Any, Any, Any]) -> DirectRun | None:
    """Return the plan that serves this op if its direct call accepts it. None if the op needs the general way."""
    if type(op) is Then and isinstance(f := op.f, Pure) and type(source := op.source) is Value:
        cache = f.plans
        loaded = cache.latest  # one read: another thread may clear the cache
        return None if loaded is None else (loaded, loaded.direct[CALL], *source.content, cache)
    if type(op) is GraphLaunch:
        cache = op.captured.plans
        loaded = cache.latest
        if loaded is None or loaded.place != op.origin:
            return None
        return loaded, loaded.direct[LEAVES], (op.captured,), (), cache
    attached = _attached_plans(op)
    if attached is None:
        loaded = plans.latest_at(op.origin)
        return None if loaded is None else (loaded, loaded.direct[OP], op, (), plans)
    loaded, leaves = attached[0]
    direct = loaded.direct.get(LEAVES)
    return None if direct is None else (loaded, direct, leaves, (), None)


@final
class PlanLookup:
    """The search for a plan that serves one run, and the store of the plan that the run makes if there is none.

    The slot on the op is an inline cache: it has the plans of earlier runs of the same op object, and needs no key. All
    other plans are in the cache of the pipeline that is called, of the graph that is launched, or of the process. With
    `cache`, only that cache is used. The run reads sources at `instant`, if that is given. With `most`, an op of more
    nodes has no key.
    """

    __slots__ = ("_at", "_cache", "_inline", "_most", "_op", "_settings", "inputs")

    def __init__(
        self,
        op: DeviceOp[Any, Any, Any],
        settings: Settings,
        cache: PlanCache | None = None,
        instant: Snapshot | None = None,
        most: int | None = None,
    ) -> None:
        self._op = op
        self._most = most
        self._at = () if instant is None else (instant,)
        self._settings = settings
        self._inline = cache is None
        """True if the slot on the op is used."""
        self._cache = cache
        self.inputs: Flattened | None = None
        """The leaves of the op, once `bind` has looked for a key; None if the op has no key."""

    def bind(self) -> tuple[LoadedPlan, BoundArguments | None] | None:
        """Return a plan with the inputs of this run bound to it; None if the run needs a trace.

        Nothing is bound if the plan has a direct call for the leaves in `inputs`. If that refuses them, `bind_again`
        binds them.
        """
        op, settings = self._op, self._settings
        if not self._inline:
            self.inputs = inputs = flatten_op(op)
        elif (call := pipeline_call(op)) is not None:
            return self._bind_call(call[0], *call[1])
        else:
            attached = self._bind_attached()
            if attached is not None:
                return attached
            self.inputs = inputs = flatten_op(op, self._most or _most_nodes(op), _warn_uncacheable, *self._at)
            self._cache = None if inputs is None else _cache_of(inputs, settings)
        cache = self._cache
        if inputs is None or cache is None:
            return None
        others = _others(inputs)
        found = cache.find(inputs, settings)
        if found is None:
            return None
        for other in others:
            other.hits += 1
        if type(op) is GraphLaunch:
            cache.remember_launch(found, op)
        if self._inline:
            self._attach(found, found.signature)  # the next run of this op object needs no key
            if settings.direct and found.runs >= OFTEN:
                if cache is plans:
                    cache.remember_place(found, op, inputs)
                make_leaves_call(found, inputs.leaves)
            if settings.direct and found.direct.get(LEAVES) is not None:
                return found, None
        bound = found.bind(inputs.leaves)
        return None if bound is None else (found, bound)

    def _bind_attached(self) -> tuple[LoadedPlan, BoundArguments] | None:
        """Return a plan of an earlier run of the same op object, with the leaves of that run bound to it; None if the
        op has none that suits."""
        attached: Any = _attached_plans(self._op) or ()
        for entry in attached:
            loaded, leaves = entry
            if loaded.suits(self._settings):
                bound = loaded.bind(leaves)
                if bound is None:
                    break
                if entry is not attached[0]:  # the first one may have a direct call
                    attach_plans(self._op, (entry, *(other for other in attached if other is not entry)))
                if loaded.runs >= OFTEN:
                    make_leaves_call(loaded, leaves)
                return loaded, bound
        return None

    def bind_again(self, found: LoadedPlan) -> BoundArguments | None:
        """Bind the leaves to the plan whose direct call has refused them; None if the run needs a trace."""
        assert self.inputs is not None
        return found.bind(self.inputs.leaves)

    def _bind_call(
        self, cache: PlanCache, arguments: tuple[Any, ...], named: tuple[Any, ...]
    ) -> tuple[LoadedPlan, BoundArguments | None] | None:
        """Return a plan for one call of a pipeline, with these arguments bound to it; None if the run needs a trace."""
        self.inputs = inputs = flatten_op(self._op, MOST_NODES, _warn_uncacheable, *self._at)
        self._cache = cache
        self._inline = False
        found = None if inputs is None else cache.find(inputs, self._settings)
        if found is None or inputs is None:
            return None
        cache.remember(found, arguments, named, inputs)
        bound = found.bind(inputs.leaves)
        return None if bound is None else (found, bound)

    def store(self, new: LoadedPlan, signature: Signature | None, reads: set[int]) -> None:
        """Store the plan of this run for later runs. It holds only for the values of the leaves `reads`.

        Does nothing if `signature` is None, since a later run needs a trace then.
        """
        if signature is None:
            return
        inputs, settings = self.inputs, self._settings
        new.keep(signature, settings.graph_from)
        if inputs is not None and self._cache is not None:
            self._cache.store(inputs, new, reads, settings, _others(inputs))
        if self._inline:
            self._attach(new, signature)

    def warn_never_kept(self, why: str | None) -> None:
        """Warn, once for each place, that a call of a pipeline leaves no plan. `why` has the cure; None if the next
        call may leave one."""
        op = self._op
        if why is not None and not self._inline and isinstance(op, Then) and isinstance(op.f, Pure):
            _warn_once(op.origin, f"{op.f!r}, called at {describe(op.origin)}, is traced again in each run: {why}.")

    def _attach(self, loaded: LoadedPlan, signature: Signature | None) -> None:
        """Put a plan into the slot of the op, unless the same op has other leaves in its next run, or it has none."""
        op, inputs, settings = self._op, self.inputs, self._settings
        if signature is None or (inputs is not None and (inputs.changeable or signature.moves)):
            return
        # Of two first runs at once, the plan of the later one is kept: there is one plan for each of the settings.
        before = _attached_plans(op)
        others = [kept for kept in before if not kept[0].suits(settings)] if before else ()
        leaves: Sequence[Any] = () if inputs is None else inputs.leaves
        attach_plans(op, ((loaded, leaves), *others[: KEPT_PER_OP - 1]))


def _cache_of(inputs: Flattened, settings: Settings) -> PlanCache | None:
    """Return the cache of the pipeline that is called, or of the graph that is launched, else the global cache.

    A plan of several pipelines is in the cache of the first, for as long as the others live. Returns None if a cached
    plan would keep another object alive: a second graph, a graph beside a pipeline, a stream, a policy.
    """
    owners = list(dict.fromkeys([*inputs.graphs, *inputs.owners]))
    if len(owners) > 1 and inputs.graphs:
        return None
    if any(owner.plans.check is not None for owner in owners):
        return None  # a part of another op is traced in each run then
    for owner in owners:
        cache: PlanCache = owner.plans
        return cache
    return plans if type(settings.policy) in VALUE_POLICIES and not inputs.streams else None


def _others(inputs: Flattened) -> list[PlanCache]:
    """Return the caches of the pipelines that the op calls beside the first."""
    return [owner.plans for owner in dict.fromkeys(inputs.owners)][1:]


# ---- the run by a plan of an earlier run ------------------------------------------------------------------------


async def run_by_a_plan(
    lookup: PlanLookup, settings: Settings, waits: Waits, origin: Origin, locks: Locks | None = None
) -> Any:
    """Run an op by the plan of an earlier run that its key finds. Return `MISS` if it needs a trace. The run of a part
    of another op has the `locks` of that."""
    found = lookup.bind()
    if found is None:
        return MISS
    loaded, bound = found
    if bound is None:
        assert lookup.inputs is not None
        again, leaves = loaded.direct[LEAVES], lookup.inputs.leaves
        if type(waits) is BlockingWaits:
            result = again.now(loaded, leaves, (), settings, origin)
        else:
            result = await again.in_task(loaded, leaves, (), settings, origin)
        if result is not MISS:
            return result
        bound = lookup.bind_again(loaded)
    return MISS if bound is None else await _run_found(loaded, bound, settings, waits, origin, locks)


async def _run_found(
    loaded: LoadedPlan, bound: BoundArguments, settings: Settings, waits: Waits, origin: Origin, locks: Locks | None
) -> Any:
    """Run a plan of an earlier run. Return `MISS` if another run makes a value of a `Shared` or `Unzip` that this one
    computes, or has made it."""
    if not bound.makes:
        return await run_bound(loaded, bound, settings, waits, origin, locks)
    claims = Claims()
    if not claims.take_all(once for once, _ in bound.makes):
        return MISS
    try:
        values, result = await run_bound(loaded, bound, settings, waits, origin, locks)
        for (once, made_for), value in zip(bound.makes, values, strict=True):
            claims.publish(once, value, made_for)
        return result
    finally:
        claims.abandon()
