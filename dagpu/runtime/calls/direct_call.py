"""The direct call of a plan: from the inputs of a run to its result, by a table that was made for the plan.

The general way makes a key, looks the plan up, binds, locks, moves and submits. A direct call reads its inputs by the
rows of a table (dagpu.tracing.call_guard), which takes a tenth of the time of a key, and goes through the
same sequence in its short form, under two rules:

- The table comes first. A call that it refuses has no effect; the general way runs it then.
- It reports nothing itself. For memory that is locked, moved or lost, and for numbers that do not fit, the general way
  raises the error.

The environment variable DAGPU_DIRECT=0 turns direct calls off.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, final

from trio.lowlevel import cancel_shielded_checkpoint, checkpoint_if_cancelled

from dagpu.backends.protocol import COMPLETED, Bindings, Run
from dagpu.common.critical import BOOKKEEPING, INTERRUPT
from dagpu.common.places import Origin
from dagpu.handles import Partition, cut_of
from dagpu.handles.handle_state import restore_state, take_known_state
from dagpu.ops.base import DeviceOp, attach_plans
from dagpu.runtime.calls.loaded_plan import LoadedPlan
from dagpu.runtime.calls.run_call import settle
from dagpu.runtime.calls.settings import Settings
from dagpu.runtime.waiting.trio_waits import TrioWaits
from dagpu.runtime.waiting.waits import BlockingWaits, drive
from dagpu.tracing.call_guard import Guard, Moved, Reading, guard_call, guard_op
from dagpu.tracing.flattened import Flattened
from dagpu.tracing.signature import Signature
from dagpu.tracing.undo_log import TAKEN
from dagpu.tracing.value_tokens import exact_token

MISS: Final = object()
"""Returned for a call that a direct call refuses. The call has had no effect; the general way runs it."""

OFTEN: Final = 6
"""The number of runs of a plan after which the table of a plain op is made: to make it takes as long as ten runs save,
and most ops run a few times."""

_FEW_NODES: Final = 40
"""The most nodes of an op whose table is made after `OFTEN` runs. It takes some ten milliseconds to make that of a
larger one."""

VERY_OFTEN: Final = 100
"""The number of runs after which the table of a larger op is made."""

_blocking: Final = BlockingWaits()

Read: TypeAlias = Callable[[Any, Any], Reading | None]
"""Reads the arguments and the keyword arguments of a call; None refuses it."""

Build: TypeAlias = Callable[[list[Any], Sequence[Any]], Any]
"""Builds the result of a run, or takes over what it has made, from its memory and its leaves."""


def begin_run(call: Reading, holder: object, origin: Origin) -> bool:
    """Lock the memory of a call, and move its handles into the run. Return false, and do neither, if another run is in
    the way. `holder` owns the exclusive locks, and `origin` is where the run starts.

    No finaliser and no signal handler comes in between: this happens in a section, or in a protected frame.
    """
    _, leaves, writes, reads, moved = call
    with BOOKKEEPING:
        for lock in writes:
            if lock.writer is not None or lock.readers:
                return False
        for lock in reads:
            if lock.writer is not None:
                return False
        for each in moved:
            if not take_known_state(each[1], each[2], TAKEN, origin):
                put_back(moved[: moved.index(each)])
                return False
        for lock in writes:
            lock.writer = holder
            lock.holder = origin
        for lock in reads:
            lock.readers += 1
            lock.holder = origin
    for index, handle, state in moved:
        kind = type(handle)
        leaves[index] = Partition(state, cut_of(handle)) if kind is Partition else kind(state)
    return True


def end_run(call: Reading) -> None:
    """Release the locks of a call. Each is one step for other threads, so it needs no gate."""
    for lock in call[2]:
        lock.writer = None
    for lock in call[3]:
        lock.readers -= 1


def put_back(moved: Sequence[Moved]) -> None:
    """Move handles back out of a run that has not been submitted."""
    for _, handle, state in moved:
        restore_state(handle, state)


@final
class DirectCall:
    """The direct call of one plan, for threads and for tasks. It does not refer to the `LoadedPlan`, which holds it."""

    __slots__ = ("_attaches", "_build", "_decides", "_is_update", "_launch", "_submit", "read", "table")

    def __init__(
        self,
        loaded: LoadedPlan,
        read: Read,
        build: Build,
        table: Guard | None = None,
        *,
        attaches: bool = False,
        is_update: bool = False,
    ) -> None:
        """A call that `attaches` leaves the plan and the leaves at its op, whose next run needs no guard. One that
        `is_update` leaves a `LoadedPlan.failed_run` if it fails.

        The result of a launch is built while the device works: a launch has given memory to all outputs. A failure
        drops it. But a plan that decides what it runs is one graph. There `build` reads what has been decided, so it
        is called at the end, and the general way runs the call if no graph can be launched.
        """
        self.read = read
        """Reads the inputs of a call, which has no effect."""
        self._build = build
        self._attaches = attaches
        self._is_update = is_update
        self._decides = loaded.decides
        self._launch = loaded.prepared.launch_again
        """Launches the plan as a graph, if it may run so, and returns None if it does not now."""
        self._submit = loaded.prepared.submit
        self.table = table
        """The rows by which the call reads its inputs; None for one whose inputs are known to fit."""

    def now(self, loaded: LoadedPlan, arguments: Any, named: Any, settings: Settings, origin: Origin) -> Any:
        """Make a call, and block this thread until its result is complete. Return `MISS` if the general way must run
        it.

        Raises:
            DeviceError: the run could not be started, or failed.
        """
        call = self.read(arguments, named)
        graph = loaded.runs + 1 >= loaded.graph_from
        if call is None or (settings is not loaded.settings and not loaded.suits(settings)):
            return MISS
        if not (loaded.graph_is_ready if graph else loaded.is_compiled) or INTERRUPT.raised is not None:
            return MISS
        memory, leaves, _, _, _ = call
        begun = False
        run: Run | None = None
        try:
            begun = begin_run(call, loaded, origin)
            if not begun:
                return MISS
            loaded.runs += 1
            if self._attaches:
                attach_plans(arguments, ((loaded, leaves),))
            spin = loaded.spin if settings.spin is None else settings.spin
            if self._launch is not None:
                run = self._launch(memory, spin, graph)
                if run is not None and run is not COMPLETED and not self._decides:
                    result = self._build(memory, leaves)
                    _finish(run)
                    return result
                if run is None and self._decides:
                    return MISS
            if run is None:
                run = self._submit(Bindings(memory), spin, graph=graph)
            if run is not COMPLETED:
                _finish(run)
            return self._build(memory, leaves)
        except BaseException:
            _fail(run, call if begun else None)
            if self._is_update:
                loaded.failed_run = run, memory
            raise
        finally:
            if begun:
                end_run(call)

    async def in_task(self, loaded: LoadedPlan, arguments: Any, named: Any, settings: Settings, origin: Origin) -> Any:
        """Make a call, and suspend the trio task until its result is complete; see `now`.

        The other tasks have their turn while the device works. So the call looks for its end only after that.
        """
        await checkpoint_if_cancelled()
        call = self.read(arguments, named)
        graph = loaded.runs + 1 >= loaded.graph_from
        if call is None or (settings is not loaded.settings and not loaded.suits(settings)):
            return MISS
        if not (loaded.graph_is_ready if graph else loaded.is_compiled):
            return MISS
        memory, leaves, _, _, _ = call
        begun = False
        run: Run | None = None
        try:
            begun = begin_run(call, loaded, origin)
            if not begun:
                return MISS
            loaded.runs += 1
            if self._attaches:
                attach_plans(arguments, ((loaded, leaves),))
            spin, pace = (loaded.spin, loaded.pace) if settings.spin is None else (settings.spin, None)
            if self._launch is not None:
                run = launched = self._launch(memory, 0.0, graph)
                if launched is not None:
                    result = None if self._decides else self._build(memory, leaves)
                    await cancel_shielded_checkpoint()
                    if not launched.succeeds(spin):
                        await settle(launched, TrioWaits(has_yielded=True), 0.0, pace)
                    return self._build(memory, leaves) if self._decides else result
                if self._decides:
                    return MISS
            run = self._submit(Bindings(memory), 0.0, graph=graph)
            await settle(run, TrioWaits(), spin, pace)
            return self._build(memory, leaves)
        except BaseException:
            _fail(run, call if begun else None)
            if self._is_update:
                loaded.failed_run = run, memory
            raise
        finally:
            if begun:
                end_run(call)


def _fail(run: Run | None, call: Reading | None) -> None:
    """Clean up after an error: cancel a run and wait for it, or put back the handles of a call that was not submitted,
    None if it had not begun."""
    if run is not None:
        run.cancel()
        drive(_blocking.drain_run(run))
    elif call is not None:
        put_back(call[4])


def _finish(run: Run) -> None:
    """Block this thread until a run is done, and raise its failures."""
    drive(settle(run, _blocking, 0.0))


# ---- the direct calls of a plan


def make_direct_call(loaded: LoadedPlan, arguments: Any, named: Any, inputs: Flattened) -> None:
    """Give a plan the direct call of its pipeline's calls, unless it has one or can have none. `arguments` and `named`
    are those of a call that the plan serves, and `inputs` has its leaves."""
    signature = loaded.signature
    if loaded.direct_is_known or signature is None:
        return
    if not signature.needs_bind:
        bindings = signature.leaf_bindings(len(inputs.leaves))
        guard = guard_call(arguments, named, inputs, bindings, signature.buffers)
        if guard is not None:
            read, build = _reader(guard, signature, loaded.fixed), signature.result
            loaded.direct = DirectCall(loaded, read, build, guard)
    loaded.direct_is_known = True


def make_fresh_call(loaded: LoadedPlan, op: DeviceOp[Any, Any, Any], inputs: Flattened) -> None:
    """Give a plan the direct call of ops of the structure of `op`, unless it has one or can have none. `inputs` has the
    leaves of `op`. The argument of the call is the op."""
    signature = loaded.signature
    is_large = len(inputs.nodes) > _FEW_NODES
    if loaded.fresh_is_known or signature is None or (is_large and loaded.runs < VERY_OFTEN):
        return
    if not signature.needs_bind:
        guard = guard_op(op, inputs, signature.leaf_bindings(len(inputs.leaves)), signature.buffers)
        if guard is not None:
            attaches = not (inputs.changeable or signature.moves)
            read = _reader(guard, signature, loaded.fixed)
            build = signature.result
            loaded.fresh = DirectCall(loaded, read, build, guard, attaches=attaches)
    loaded.fresh_is_known = True


def make_call_again(loaded: LoadedPlan, leaves: Sequence[Any]) -> None:
    """Give a plan the direct call of runs whose leaves fit, unless it has one or can have none: of the same
    op, or of a graph. The leaves are the arguments of the call. `leaves` are those of one run."""
    signature = loaded.signature
    if loaded.again_is_known or signature is None:
        return
    if signature.can_read_again(leaves):
        again = signature.read_again
        loaded.again = DirectCall(loaded, lambda leaves, _: again(leaves), signature.result)
    loaded.again_is_known = True


def _reader(guard: Guard, signature: Signature, fixed: Sequence[tuple[int, Any]]) -> Read:
    """Return the function that reads calls by a guard. `fixed` has the leaves that the plan is specialised for."""
    if not fixed and not signature.has_rest:
        return guard.read
    rest = signature.read_rest

    def read(arguments: Any, named: Any) -> Reading | None:
        call = guard.read(arguments, named)
        if call is None or any(exact_token(call[1][index]) != token for index, token in fixed):
            return None
        return call if rest(call) else None

    return read
