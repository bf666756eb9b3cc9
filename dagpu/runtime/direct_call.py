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
from functools import partial
from typing import Any, Final, TypeAlias, final

import numpy as np
from trio.lowlevel import cancel_shielded_checkpoint, checkpoint_if_cancelled

from dagpu.backends.protocol import COMPLETED, Run
from dagpu.common.compiled import MISS, READER, teach
from dagpu.common.critical import BOOKKEEPING, INTERRUPT
from dagpu.common.errors import KernelArgumentError
from dagpu.common.places import Origin
from dagpu.handles import HandleBase, HandleState, Partition, Tensor, TensorMut, cut_of
from dagpu.handles.handle_state import Lock, Storage, no_graph, restore_state, take_known_state
from dagpu.ops.base import DeviceOp, attach_plans
from dagpu.runtime.loaded_plan import CALL, LEAVES, OP, LoadedPlan, Settings
from dagpu.runtime.run_call import settle
from dagpu.runtime.trio_waits import TrioWaits
from dagpu.runtime.waits import BlockingWaits, drive
from dagpu.tracing.call_guard import Guard, Moved, Reading, guard_call, guard_op
from dagpu.tracing.flattened import Flattened
from dagpu.tracing.signature import Signature
from dagpu.tracing.undo_log import TAKEN
from dagpu.tracing.value_kinds import ARRAY, HANDLE, NUMBER, guard_leaves, has_cut, has_elements
from dagpu.tracing.value_tokens import exact_token

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

OnFailure: TypeAlias = Callable[[Run | None, Sequence[object]], None]
"""Gets the run of a call that has failed, once it is over, and its memory: None and nothing if no run was started."""

Build: TypeAlias = Callable[[list[Any], Sequence[Any]], Any]
"""Builds the result of a run, or takes over what it has made, from its memory and its leaves."""


def begin_run(call: Reading, loaded: LoadedPlan, origin: Origin) -> bool:
    """Lock the memory of a call, move its handles into the run, and count the run. Return false, and do none of it, if
    another run is in the way. The plan owns the exclusive locks, and `origin` is where the run starts.

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
            lock.writer = loaded
            lock.holder = origin
        for lock in reads:
            lock.readers += 1
            lock.holder = origin
        loaded.runs += 1
    for index, handle, state in moved:
        leaves[index] = after_move(handle, state)
    return True


def after_move(handle: HandleBase, state: HandleState) -> HandleBase:
    """Return the handle that has this state after it was moved out of another one."""
    return Partition(state, cut_of(handle)) if type(handle) is Partition else type(handle)(state)


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

    __slots__ = ("_attaches", "_build", "_on_failure", "read", "table")

    def __init__(
        self,
        read: Read,
        build: Build,
        table: Guard | None = None,
        *,
        attaches: bool = False,
        on_failure: OnFailure | None = None,
    ) -> None:
        """A call that `attaches` leaves the plan and the leaves at its op, whose next run needs no guard."""
        self.read = read
        """Reads the inputs of a call, which has no effect."""
        self._build = build
        self._attaches = attaches
        self._on_failure = on_failure
        self.table = table
        """The rows by which the call reads its inputs; None for one whose inputs are known to fit."""

    def now(self, loaded: LoadedPlan, arguments: Any, named: Any, settings: Settings, origin: Origin) -> Any:
        """Make a call, and block this thread until its result is complete. Return `MISS` if the general way must run
        it.

        Raises:
            DeviceError: the run could not be started, or failed.
        """
        call: Reading | None = None
        run: Run | None = None
        try:
            if INTERRUPT.raised is not None:
                return MISS
            graph = loaded.runs + 1 >= loaded.graph_from
            call = self._begin(loaded, arguments, named, settings, origin, graph)
            if call is None:
                return MISS
            memory, leaves, _, _, _ = call
            run = loaded.start(memory, loaded.spin if settings.spin is None else settings.spin, graph)
            if run is None:  # the plan decides what it runs, and no graph can be launched
                put_back(call[4])
                return MISS
            if run is not COMPLETED:
                drive(settle(run, _blocking, 0.0))
            return self._build(memory, leaves)
        except BaseException:
            self._fail(run, call)
            raise
        finally:
            if call is not None:
                end_run(call)

    async def in_task(self, loaded: LoadedPlan, arguments: Any, named: Any, settings: Settings, origin: Origin) -> Any:
        """Make a call, and suspend the trio task until its result is complete; see `now`.

        The other tasks have their turn while the device works. So the call looks for its end only after that, and
        builds the result of a launch before, which a failure drops. But what a plan decides is read at the end.
        """
        call: Reading | None = None
        run: Run | None = None
        try:
            await checkpoint_if_cancelled()
            graph = loaded.runs + 1 >= loaded.graph_from
            call = self._begin(loaded, arguments, named, settings, origin, graph)
            if call is None:
                return MISS
            memory, leaves, _, _, _ = call
            spin, pace = (loaded.spin, loaded.pace) if settings.spin is None else (settings.spin, None)
            run = loaded.start(memory, 0.0, graph)
            if run is None:  # the plan decides what it runs, and no graph can be launched
                put_back(call[4])
                return MISS
            if not run.is_launch:
                await settle(run, TrioWaits(), spin, pace)
                return self._build(memory, leaves)
            result = None if loaded.decides else self._build(memory, leaves)
            await cancel_shielded_checkpoint()
            if not run.succeeds(spin):
                await settle(run, TrioWaits(has_yielded=True), 0.0, pace)
            return self._build(memory, leaves) if loaded.decides else result
        except BaseException:
            self._fail(run, call)
            raise
        finally:
            if call is not None:
                end_run(call)

    def _begin(
        self, loaded: LoadedPlan, arguments: Any, named: Any, settings: Settings, origin: Origin, graph: bool
    ) -> Reading | None:
        """Read the inputs of a call, lock their memory and take the handles that move. Return None, with none of it
        done, if the general way must run the call."""
        if settings is not loaded.settings and not loaded.suits(settings):
            return None
        if not (loaded.graph_is_ready if graph else loaded.is_compiled):
            return None
        call = self.read(arguments, named)
        if call is None:
            return None
        if self._attaches:
            attach_plans(arguments, ((loaded, call[1]),))
        return call if begin_run(call, loaded, origin) else None

    def _fail(self, run: Run | None, call: Reading | None) -> None:
        """Clean up after an error: cancel the run and wait for it, or put back the handles of a call that has begun,
        and was not submitted."""
        if run is not None:
            run.cancel()
            drive(_blocking.drain_run(run))
        elif call is not None:
            put_back(call[4])
        if self._on_failure is not None:
            self._on_failure(run, () if call is None else call[0])


# ---- the direct calls of a plan


def make_call(loaded: LoadedPlan, arguments: Any, named: Any, inputs: Flattened) -> None:
    """Give a plan the direct call of its pipeline's calls. `arguments` and `named` are those of a call that the plan
    serves, and `inputs` has its leaves."""
    _make(loaded, CALL, inputs, partial(guard_call, arguments, named))


def make_op_call(loaded: LoadedPlan, op: DeviceOp[Any, Any, Any], inputs: Flattened) -> None:
    """Give a plan the direct call of ops of the structure of `op`. `inputs` has the leaves of `op`. The argument of the
    call is the op."""
    if len(inputs.nodes) <= _FEW_NODES or loaded.runs >= VERY_OFTEN:
        _make(loaded, OP, inputs, partial(guard_op, op))


def make_leaves_call(loaded: LoadedPlan, leaves: Sequence[Any]) -> None:
    """Give a plan the direct call of runs whose leaves fit: of the same op, or of a graph. The leaves are the arguments
    of the call. `leaves` are those of one run."""
    signature = loaded.signature
    if LEAVES in loaded.direct or signature is None:
        return
    if not signature.can_read_again(leaves):
        loaded.direct[LEAVES] = None
        return
    again, guard = signature.read_again, None
    if not (signature.needs_bind or signature.has_rest):
        guard = guard_leaves(leaves, signature.leaf_bindings(len(leaves)), signature.buffers)
    read: Read = signature.launch_reader(leaves) or (lambda leaves, _: again(leaves))
    if guard is not None:
        read = _reader(guard, signature, ())
    loaded.direct[LEAVES] = DirectCall(read, signature.result, guard)


def _make(
    loaded: LoadedPlan,
    kind: str,
    inputs: Flattened,
    guard_of: "Callable[[Flattened, Sequence[Any], int], Guard | None]",
) -> None:
    """Give a plan a direct call of this kind, unless it has one or can have none."""
    signature = loaded.signature
    if kind in loaded.direct or signature is None:
        return
    direct = None
    if not signature.needs_bind:
        guard = guard_of(inputs, signature.leaf_bindings(len(inputs.leaves)), signature.buffers)
        if guard is not None:
            read = _reader(guard, signature, loaded.fixed)
            attaches = kind is OP and not (inputs.changeable or signature.moves)
            direct = DirectCall(read, signature.result, guard, attaches=attaches)
    loaded.direct[kind] = direct


def _reader(guard: Guard, signature: Signature, fixed: Sequence[tuple[int, Any]]) -> Read:
    """Return the function that reads calls by a guard. `fixed` has the leaves that the plan is specialised for."""
    by_rows: Read = guard.read if READER is None else READER.Rows(guard, (HANDLE, NUMBER, ARRAY))
    if not fixed and not signature.has_rest:
        return by_rows
    rest = signature.read_rest

    def read(arguments: Any, named: Any) -> Reading | None:
        call = by_rows(arguments, named)
        if call is None or any(exact_token(call[1][index]) != token for index, token in fixed):
            return None
        return call if rest(call) else None

    return read


teach(
    handle_base=HandleBase, handle_state=HandleState, storage=Storage, lock=Lock, no_graph=no_graph, ndarray=np.ndarray,
    argument_error=KernelArgumentError, same_element=has_elements, cut_matches=has_cut, acquire=BOOKKEEPING.acquire,
    release=BOOKKEEPING.release, taken=TAKEN, new_handle=after_move, tensor=Tensor, tensor_mut=TensorMut,
    loaded_plan=LoadedPlan, direct_call=DirectCall,
)  # fmt: skip
