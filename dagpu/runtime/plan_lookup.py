"""The search for the plan that serves one run: by the op itself, by its place in the code, or by its cache key; and the
run by what is found."""

import warnings
from collections.abc import Sequence
from types import CodeType
from typing import Any, Final, TypeAlias, final

from dagpu.common.compiled import MISS
from dagpu.common.places import Origin, describe, passes_on, place_of
from dagpu.handles.storage import Locks
from dagpu.ops.base import DeviceOp, attach_plans, attached_plans
from dagpu.ops.compose import Pure, Then, Value
from dagpu.ops.graph import GraphLaunch
from dagpu.ops.versions import Snapshot
from dagpu.runtime.direct_call import OFTEN, make_leaves_call
from dagpu.runtime.loaded_plan import CALL, LEAVES, OP, VALUE_POLICIES, LoadedPlan, Settings
from dagpu.runtime.plan_cache import KEPT_PER_OP, PlanCache, plans
from dagpu.runtime.run_call import run_bound
from dagpu.runtime.waits import BlockingWaits, Waits
from dagpu.tracing.cache_key import MOST_NODES, flatten_op
from dagpu.tracing.flattened import Flattened
from dagpu.tracing.signature import BoundArguments, Signature

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
    attached = attached_plans(op)
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
        attached: Any = attached_plans(self._op) or ()
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
        before = attached_plans(op)
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
    if bound is not None and (bound.claims is None or bound.claims.claim()):
        return await _run_found(loaded, bound, settings, waits, origin, locks)
    return MISS


async def _run_found(
    loaded: LoadedPlan, bound: BoundArguments, settings: Settings, waits: Waits, origin: Origin, locks: Locks | None
) -> Any:
    """Run a plan of an earlier run. The run has claimed the values of `Shared` and `Unzip` that it computes."""
    claims = bound.claims
    if claims is None:
        return await run_bound(loaded, bound, settings, waits, origin, locks)
    try:
        return claims.publish(await run_bound(loaded, bound, settings, waits, origin, locks))
    finally:
        claims.abandon()
