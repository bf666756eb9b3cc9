"""Runs one op: traces, locks, schedules, verifies, submits and waits, stage by stage; and where no run may begin."""

import gc
import warnings
import weakref
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, Protocol, TypeVar, final

import trio

from dagpu.common.compiled import MISS, teach
from dagpu.common.containers import own_containers, values_in
from dagpu.common.critical import CURRENT_THREAD, OUTSIDE, in_user_code, pause_section, restore_section
from dagpu.common.critical import refuse_nested as refuse_in_section
from dagpu.common.errors import NestedRunError
from dagpu.common.places import Origin, describe, here, place_of
from dagpu.handles import HANDLES
from dagpu.handles.handle_state import Locks
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import BUILT_IN, Map, Shared, Then, Value
from dagpu.plans.placing import how_chosen
from dagpu.plans.plan import Plan
from dagpu.runtime.device_lookup import find_device
from dagpu.runtime.loaded_plan import LoadedPlan, Settings, plan_stage
from dagpu.runtime.plan_lookup import PlanLookup, direct_call, pipeline_call, run_by_a_plan
from dagpu.runtime.run_call import run_call
from dagpu.runtime.waits import BlockingWaits, Waits, drive
from dagpu.tracing.cache_key import flatten_op
from dagpu.tracing.own_plans import sources_of_part
from dagpu.tracing.run_memo import PENDING, Deferred, LeftOut, RunMemo, part_of
from dagpu.tracing.tracer import Stage, Tracer
from dagpu.tracing.user_code import apply_map, call_closure, not_an_op_error
from dagpu.tracing.value_tokens import is_fixed

# ---- where no run may begin


class RecordingBlock(Protocol):
    """The context manager of a `CudaGraph.scope`."""

    @property
    def origin(self) -> Origin: ...


_block: "ContextVar[weakref.ref[RecordingBlock] | None]" = ContextVar("dagpu_scope", default=None)
"""The innermost recording block around this task or thread. The reference is weak, because an interrupt can end a
`with` block without its `__exit__`: the block must not refuse later runs then."""


teach(block=_block)
recording_block = _block.get
"""Returns a reference to the innermost recording block around this task or thread; None if there is none."""


def enter_recording(block: RecordingBlock) -> "weakref.ref[RecordingBlock] | None":
    """Refuse runs in this task or thread from now on. Returns the block around this one, for `leave_recording`."""
    around = _block.get()
    _block.set(weakref.ref(block))
    return around


def leave_recording(around: "weakref.ref[RecordingBlock] | None") -> None:
    """Restore the block that `enter_recording` returned."""
    _block.set(around)


def refuse_nested(op: DeviceOp[Any, Any, Any]) -> None:
    """Raise if `op` is run inside a critical section of dagpu, a closure, or a recording block.

    Raises:
        NestedRunError: the message names the place of the run and the cure.
    """
    if CURRENT_THREAD.state.where == OUTSIDE and _block.get() is None:
        return
    refuse_in_section("an op was run")
    if in_user_code():
        raise NestedRunError(
            f"{op!r} was run at {describe(here())}, inside a closure or host_map of another run. "
            "Return the op from .then instead: it becomes part of that run."
        )
    around = _block.get()
    block = None if around is None else around()
    if block is not None:
        raise NestedRunError(
            f"{op!r} was run at {describe(here())}, inside the scope at {describe(block.origin)}, in which ops are "
            "only recorded. Record it with scope.record(op), or run it before or after the with block."
        )


def outside_trio(op: DeviceOp[Any, Any, Any]) -> RuntimeError:
    """Return the error for an op that is awaited outside a trio task."""
    return RuntimeError(
        f"{op!r} was awaited at {describe(here())}, outside a trio task (asyncio and Jupyter run none). "
        "Use op.sync(), or await it in an async function that trio.run(...) runs."
    )


_warned: set[object] = set()


def warn_in_task(call: str, cure: str) -> None:
    """Warn, once for each place, of a call in a trio task that waits without `await`: it blocks all other tasks."""
    if not trio.lowlevel.in_trio_task():
        return
    origin = here()
    place = place_of(origin)
    if place not in _warned:
        _warned.add(place)
        file, line = ("dagpu", 0) if place is None else place
        message = f"{call} at {describe(origin)} in a trio task blocks every other task until it is done. {cure}"
        warnings.warn_explicit(message, RuntimeWarning, file, line)


# ---- the run


_T = TypeVar("_T")
_blocking: Final = BlockingWaits()


@final
class quiet_collector:  # noqa: N801  # reason: it is used as a function
    """Disable the cyclic garbage collector, which would walk a trace again and again while it grows.

    A program and its plan have about ten objects for each launch, none of them garbage: at 100,000 launches the
    collector took half of the time of a trace. If several threads trace at once, it is off until the first one ends.
    """

    __slots__ = ("_was_on",)

    def __enter__(self) -> None:
        self._was_on = gc.isenabled()
        gc.disable()

    def __exit__(self, *_error: object) -> None:
        if self._was_on:
            gc.enable()


def plan_of(op: DeviceOp[Any, Any, Any], settings: Settings) -> Plan:
    """Return the plan of the op's first stage. Nothing is run, and the op keeps its handles."""
    return _of_first_stage(op, settings, lambda stage, _: plan_stage(stage, settings.verify))


def explained_plan_of(op: DeviceOp[Any, Any, Any], settings: Settings) -> tuple[Plan, list[str], frozenset[int]]:
    """Return the plan of the op's first stage, as `plan_of` does; how its policies have chosen it, in words; and the
    outputs that are not in the result."""

    def make(stage: Stage, tracer: Tracer) -> tuple[Plan, list[str], frozenset[int]]:
        plan = plan_stage(stage, settings.verify)
        return plan, how_chosen(stage.traced, stage.program), tracer.outputs_kept_elsewhere()

    return _of_first_stage(op, settings, make)


def _of_first_stage(op: DeviceOp[Any, Any, Any], settings: Settings, make: Callable[[Stage, Tracer], _T]) -> _T:
    """Return what `make` makes of the op's first stage and its trace. Nothing is run, and the op keeps its handles."""
    tracer = Tracer(op, settings.device, settings.policy, find_device, flatten_op(op))
    try:
        return make(tracer.stage(), tracer)
    finally:
        tracer.abandon("it was only planned")


def execute_now(op: DeviceOp[Any, Any, Any], settings: Settings, origin: Origin) -> Any:
    """Run an op, block this thread until its result is complete, and return it. See `execute`."""
    call = direct_call(op) if settings.direct else None
    if call is not None:
        loaded, direct, arguments, named, cache = call
        result = direct.now(loaded, arguments, named, settings, origin)
        if result is not MISS:
            if cache is not None:
                cache.hits += 1
            return result
    return drive(execute(op, settings, _blocking, origin))


async def execute(op: DeviceOp[_T, Any, Any], settings: Settings, waits: Waits, origin: Origin) -> Any:
    """Run an op, and return its result. `origin` is the place in the user's code that starts the run.

    It uses the plan of an earlier run that the op's key finds. It traces the op if there is none, or if another run has
    claimed a value that the plan computes. When the run ends, also by an error or a cancellation, its work is complete
    and its locks and claims are released.
    """
    call = pipeline_call(op)
    if call is not None and (check := call[0].check) is not None:
        return await check(op, settings, waits, origin)
    return await run_unchecked(op, settings, waits, origin)


async def run_unchecked(op: DeviceOp[_T, Any, Any], settings: Settings, waits: Waits, origin: Origin) -> Any:
    """Run an op as `execute` does, also the call of a pipeline that is checked."""
    if type(op) is Value and is_fixed(op.content):  # no work to trace or launch, but the run is a checkpoint
        await waits.finish_run(False)
        return op.content
    if settings.direct and (type(op) is Map or type(op) is Then or type(op) is Shared):
        if type(op) is Shared:
            result, left = await run_shared(op, settings, waits, origin)
        else:
            result, left = await run_composed(op, settings, waits, origin)
        if left is None:
            return result
        op = left
    lookup = PlanLookup(op, settings)
    found = await run_by_a_plan(lookup, settings, waits, origin)
    return await _TracedRun(op, settings, waits, lookup, origin).run() if found is MISS else found


@final
class _TracedRun:
    """The run of an op without a cached plan: it is traced, planned and run, stage by stage.

    A part of the op that has a plan of its own runs by that, within the run of the `whole`: it reads sources at the
    same instant, and has the same locks. If a part has no plan yet, its run is traced apart, so that it leaves one. One
    such run may need a value that another one is making, or that of the whole. The other one then goes on first, up to
    that value.
    """

    __slots__ = (
        "_lookup",
        "_op",
        "_origin",
        "_parts",
        "_settings",
        "_waited",
        "_waits",
        "_whole",
        "locks",
        "runs",
        "tracer",
    )

    def __init__(
        self,
        op: DeviceOp[Any, Any, Any],
        settings: Settings,
        waits: Waits,
        lookup: PlanLookup,
        origin: Origin,
        whole: "_TracedRun | None" = None,
        parts: Sequence[Deferred] = (),
    ) -> None:
        self._op, self._settings, self._waits, self._lookup, self._origin = op, settings, waits, lookup, origin
        self.tracer = Tracer(op, settings.device, settings.policy, find_device, lookup.inputs, origin)
        if whole is not None:
            self.tracer.read_sources_at(whole.tracer.instant, parts)
        if lookup.inputs is None:
            self.tracer.find_parts(op)
        self._whole, self._parts = whole, parts
        """The run of which this one makes parts, and these parts."""
        self.locks: Locks = Locks(origin) if whole is None else whole.locks
        self.runs: dict[object, _TracedRun] = {} if whole is None else whole.runs
        """The runs of the whole and of its parts, by their claims."""
        self._waited = False

    async def run(self) -> Any:
        """Run the op, and return its result. Store the plan for later runs."""
        tracer, runs = self.tracer, self.runs
        runs[tracer.claims] = self
        locked = frozenset(self.locks.held)
        try:
            while not tracer.finished:
                if not await self.go_on():
                    await self._wait_for_others()
            await self._waits.finish_run(self._waited)
            self._lookup.warn_never_kept(tracer.never_kept)
            self.finish_parts()
            return tracer.result
        except BaseException:
            tracer.abandon("the run that was to make them failed or was cancelled")
            raise
        finally:
            del runs[tracer.claims]
            self.locks.release(locked)

    async def go_on(self) -> bool:
        """Trace and run a stage, and the parts that the trace has met. Return false if only another run can help."""
        tracer, settings, waits = self.tracer, self._settings, self._waits
        stage = await next_stage(tracer, waits)
        moved = stage.went_on
        if stage.program.instructions:
            with quiet_collector():
                plan = plan_stage(stage, settings.verify)
            call_on_plan(settings, self._op, plan)
            loaded, bound = LoadedPlan(plan, settings), stage.bind()
            await run_call(loaded, bound, self.locks, settings, waits, partial(_store, self._lookup, loaded, tracer))
            tracer.settle(bound.memory)
            moved = self._waited = True
        else:
            self._keep_without_work(stage)
            tracer.settle([])
        if tracer.remembers:
            self.locks.hand_on(tracer.published_storages())
            tracer.publish()
        if not tracer.finished and (parts := tracer.parts_to_run()):
            await self._run_parts(parts)
            moved = self._waited = True
        return moved or tracer.finished

    def _keep_without_work(self, stage: Stage) -> None:
        """Store the plan of a pipeline whose op does nothing on a device: later calls need not call its function."""
        if pipeline_call(self._op) is not None and (signature := self.tracer.make_signature()) is not None:
            loaded = LoadedPlan(plan_stage(stage, self._settings.verify), self._settings)
            self._lookup.store(loaded, signature, self.tracer.reads)

    async def _wait_for_others(self) -> None:
        """Let the other runs of this op go on, or wait for a value that a run of another op is making."""
        others = self.tracer.awaited_values()
        moved = False
        for run in [*self.runs.values()]:
            moved = run.finish_parts() or moved
        for run in [*self.runs.values()]:
            if run is not self and not run.tracer.finished:
                moved = await run.go_on() or moved
        if moved or any(once.settled() for once in others):
            return
        others = [once for once in others if once.owner not in self.runs]
        if not others:
            raise self.tracer.stuck_error()
        await self._waits.wait_for_any(others)
        self._waited = True

    async def _run_parts(self, parts: list[Deferred]) -> None:
        """Run parts of the op, together, by a plan of their own."""
        tracer, settings, waits, origin = self.tracer, self._settings, self._waits, self._origin
        op = tracer.op_of_parts(parts)
        result = await call_directly(op, settings, waits, origin)
        if result is not MISS:
            tracer.finish_part(parts[0], result, {})
            return
        lookup = PlanLookup(op, settings, instant=tracer.instant)
        result = await run_by_a_plan(lookup, settings, waits, origin, self.locks)
        if result is MISS:
            await _TracedRun(op, settings, waits, lookup, origin, self, parts).run()
            return
        inputs = lookup.inputs
        for part, value in zip(parts, (result,) if len(parts) == 1 else result, strict=True):
            tracer.finish_part(part, value, {} if inputs is None else sources_of_part(part_of(part), inputs))

    def finish_parts(self) -> bool:
        """Give the whole the values of the parts that exist, although those of others may not. Return whether there are
        any new ones."""
        tracer, whole, parts = self.tracer, self._whole, self._parts
        if whole is None:
            return False
        new = False
        for part, value in zip(parts, tracer.values_so_far(len(parts)), strict=True):
            if value is not PENDING and part.value is PENDING:
                whole.tracer.finish_part(part, value, tracer.read_by(part))
                new = True
        return new


def _store(lookup: PlanLookup, loaded: LoadedPlan, tracer: Tracer) -> None:
    """Store a submitted plan, while the device works. It is valid however this run ends."""
    lookup.store(loaded, tracer.make_signature(), tracer.reads)


async def next_stage(tracer: Tracer, waits: Waits, make: Callable[[LeftOut], Awaitable[None]] | None = None) -> Stage:
    """Return the next stage of a trace. The trace pauses between two closures when `waits.pause_is_due()`, while a
    library prepares its work, and while `make` makes what an earlier stage of a feed's trace has left out."""
    turns = tracer.stage_in_turns(waits.pause_is_due)
    while True:
        with quiet_collector():
            try:
                work = next(turns)
            except StopIteration as end:
                stage: Stage = end.value
                return stage
        if work is None:
            await waits.pause()
        elif isinstance(work, LeftOut):
            assert make is not None, "a plain run leaves nothing out"
            await make(work)
        else:
            await waits.run_slow_work(work)


def call_on_plan(settings: Settings, op: DeviceOp[Any, Any, Any], plan: Plan) -> None:
    """Call the setting `on_plan`, if there is one, with a new plan. That function may run ops itself."""
    if settings.on_plan is not None:
        before = pause_section()
        try:
            settings.on_plan(op, plan)
        finally:
            restore_section(before)


# ---- the quick way to run `model(x).map(f)`
#
# The plan of what is below all functions of the user's is run, and then these. A run of such an op need not be traced:
# a chain of functions has nothing that runs beside it, and no place. What a function of `.then` returns is run in the
# same way, if it is such a chain too.


AnyOp = DeviceOp[Any, Any, Any]

_FEW_NODES: Final = 64
"""The most nodes below the functions for which a plan is looked up here: the key of a larger DAG takes its time."""

_MOST: Final = 100
"""The most functions that are called in this way. In a chain that may have no end a trace counts them."""


async def run_composed(op: AnyOp, settings: Settings, waits: Waits, origin: Origin) -> tuple[Any, AnyOp | None]:
    """Run an op as far as possible in this way. Return its result, or `MISS` and the op that is left to be run: the op
    itself, of which nothing has been run then, or what the functions so far have made of it."""
    above: list[Map[Any] | Then[Any]] = []
    """The nodes whose functions are still to be called, the last one next."""
    called = 0
    bottom, value = op, MISS
    while True:
        while (type(bottom) is Map or type(bottom) is Then) and pipeline_call(bottom) is None:
            above.append(bottom)
            bottom = bottom.source
        if type(bottom) is Value and called and HANDLES.isdisjoint(map(type, values_in(bottom.content))):
            value = own_containers(bottom.content)
        elif above and type(above[-1]) is Map and type(above[-1].f) in BUILT_IN:
            value = MISS  # it is a part of what has a plan
        else:
            value = await call_directly(bottom, settings, waits, origin)
            if value is MISS and not called and all(type(node) is Map for node in above):
                # Nothing else of this run reads sources, so the instant at which it does is its own.
                value = await run_by_a_plan(PlanLookup(bottom, settings, most=_FEW_NODES), settings, waits, origin)
        if value is MISS:
            return MISS, _above(bottom, above) if called else op
        while above:
            if waits.pause_is_due():
                await waits.pause()
            node = above.pop()
            called += 1
            if type(node) is Map:
                value = apply_map(node, value)
                continue
            bottom = call_closure(node, node.f, value)
            if not isinstance(bottom, DeviceOp):
                raise not_an_op_error(node, bottom)
            if called > _MOST:
                return MISS, _above(bottom, above)
            break
        else:
            return value, None


async def run_shared(op: Shared[Any], settings: Settings, waits: Waits, origin: Origin) -> tuple[Any, AnyOp | None]:
    """Run a `shared()` op in this way, if it is above a chain of `.map` over a call that has a direct one, and has not
    run. Its value depends on no source."""
    above: list[Map[Any]] = []
    bottom = op.source
    while type(bottom) is Map:
        above.append(bottom)
        bottom = bottom.source
    if pipeline_call(bottom) is None or (above and type(above[-1].f) in BUILT_IN):
        return MISS, op
    memo = RunMemo()
    if op.once.remembers() or not memo.claims.take_all([op.once]):
        return MISS, op
    try:
        value = await call_directly(bottom, settings, waits, origin)
        if value is MISS:
            return MISS, op
        for node in reversed(above):
            if waits.pause_is_due():
                await waits.pause()
            value = apply_map(node, value)
        result = memo.record_shared(op, value)
        memo.claims.publish(op.once, memo.claimed_value(op.once), {})
        return result, None
    finally:
        memo.abandon()


def _above(op: AnyOp, nodes: list[Map[Any] | Then[Any]]) -> AnyOp:
    """Return an op with these nodes above it, the last one next."""
    for node in reversed(nodes):
        op = Map(op, node.f, node.origin) if type(node) is Map else Then(op, node.f, node.origin)
    return op


async def call_directly(op: AnyOp, settings: Settings, waits: Waits, origin: Origin) -> Any:
    """Run the call of a pipeline by the direct call of its latest plan. Return `MISS` if that refuses it, and for any
    other op."""
    if not settings.direct or pipeline_call(op) is None or (call := direct_call(op)) is None:
        return MISS
    loaded, direct, arguments, named, cache = call
    if type(waits) is BlockingWaits:
        result = direct.now(loaded, arguments, named, settings, origin)
    else:
        result = await direct.in_task(loaded, arguments, named, settings, origin)
    if result is not MISS and cache is not None:
        cache.hits += 1
    return result
