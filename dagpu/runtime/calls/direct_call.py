"""The direct call of a pipeline: from its arguments to its submission in one function.

The general way looks a plan up, binds, locks, moves and submits, and each step makes an object for the next one. A
direct call only compares the arguments with those of the pipeline's latest plan, and does the rest in one function, in
half of the time. It does what the general way does, under two rules:

- Guards come first. A call that a guard refuses has no effect; the general way runs it then.
- It reports nothing itself. For memory that is locked, moved or lost, and for numbers that do not fit, the general way
  raises the error.
"""

from typing import Any, Final, final

from dagpu.backends.protocol import COMPLETED, Bindings, Replay
from dagpu.common.critical import CURRENT_THREAD
from dagpu.common.origin import Origin
from dagpu.handles.storage import Storage, lock_all, unlock_all
from dagpu.lowering.tracing.undo_log import UndoLog
from dagpu.runtime.calls.loaded_plan import LoadedPlan
from dagpu.runtime.calls.run_call import settle
from dagpu.runtime.calls.settings import Settings
from dagpu.runtime.waiting import BlockingWaits, Waits, drive

MISS: Final = object()
"""Returned for a call that the general way must run. The call has had no effect."""

_blocking: Final = BlockingWaits()


@final
class DirectCall:
    """A direct call from its submission to its end."""

    __slots__ = ("leaves", "locks", "memory", "replay")

    def __init__(self, memory: list[Any], leaves: list[Any], locks: dict[Storage, bool], replay: Replay) -> None:
        self.memory = memory
        """The memory and values of the program's buffers."""
        self.leaves = leaves
        """The leaves, of which those that move have moved into the run."""
        self.locks = locks
        """The locks that the run holds; to be released once the replay is done."""
        self.replay = replay


def begin_call(
    loaded: LoadedPlan,
    content: tuple[tuple[Any, ...], tuple[Any, ...]],
    settings: Settings,
    origin: Origin,
    *,
    polls: bool,
) -> DirectCall | None:
    """Submit one more call of a pipeline with its latest plan. Return None if the general way must run it.

    Args:
        loaded: the plan. It must have a guard.
        content: the positional and the keyword arguments of the call.
        settings: the options of the run.
        origin: the place in the user's code that starts the run.
        polls: true to poll for completion in the submission.

    Raises:
        MovedError: another thread has moved an argument since the guards.
        DeviceError: the run could not be started.
    """
    arguments, named = content
    guard, signature = loaded.guard, loaded.signature
    assert guard is not None
    assert signature is not None
    memory: list[Any] = [None] * signature.buffers
    leaves: list[Any] = []
    storages: dict[Storage, int] = {}
    locks: dict[Storage, bool] = {}
    graph, hold = loaded.runs + 1 >= loaded.graph_from, CURRENT_THREAD.state.hold
    if (
        not guard.match(arguments, memory, leaves, storages, locks)
        or (
            (named or guard.named)
            and not (named and guard.named and guard.named.match(named, memory, leaves, storages, locks))
        )
        or ((loaded.fixed or loaded.settings is not settings) and not loaded.suits(settings, leaves))
        or not (signature.guard_binds_all or signature.bind_rest(memory, leaves, storages, locks))
        or not (loaded.graph_is_ready if graph else loaded.is_compiled)
        or (hold is not None and hold.raised is not None)
    ):
        return None
    locked, taken, replay = False, UndoLog(), None
    try:
        locked = lock_all(locks, signature, origin)
        if not locked:
            return None
        loaded.runs += 1
        taken.take_leaves(leaves, signature.moves, origin)
        replay = loaded.prepared.submit(Bindings(memory=memory), _spin(loaded, settings) if polls else 0.0, graph=graph)
        return DirectCall(memory, leaves, locks, replay)
    except BaseException:
        if replay is None:
            taken.put_back()
        else:  # the locks are held until it is over
            replay.cancel()
            drive(_blocking.drain_replay(replay))
        if locked:
            unlock_all(locks)
        raise


def call_now(
    loaded: LoadedPlan, content: tuple[tuple[Any, ...], tuple[Any, ...]], settings: Settings, origin: Origin
) -> Any:
    """Run one more call of a pipeline, and block this thread until its result is complete; see `begin_call`.

    Return `MISS` if the general way must run it.
    """
    call: DirectCall | None = None
    try:
        call = begin_call(loaded, content, settings, origin, polls=True)
        if call is None:
            return MISS
        if call.replay is not COMPLETED:
            drive(settle(call.replay, _blocking, 0.0))
        assert loaded.signature is not None
        return loaded.signature.result(call.memory, call.leaves)
    except BaseException:
        if call is not None:
            call.replay.cancel()
            drive(_blocking.drain_replay(call.replay))
        raise
    finally:
        if call is not None:
            unlock_all(call.locks)


async def call_in_task(
    loaded: LoadedPlan,
    content: tuple[tuple[Any, ...], tuple[Any, ...]],
    settings: Settings,
    waits: Waits,
    origin: Origin,
) -> Any:
    """Run one more call of a pipeline, and wait as `waits` says until its result is complete; see `begin_call`.

    Return `MISS` if the general way must run it.
    """
    if waits.must_end():
        await waits.raise_reason()
    polls = waits.polls_at_submit
    call = begin_call(loaded, content, settings, origin, polls=polls)
    if call is None:
        return MISS
    try:
        await settle(call.replay, waits, 0.0 if polls else _spin(loaded, settings))
        assert loaded.signature is not None
        return loaded.signature.result(call.memory, call.leaves)
    finally:
        unlock_all(call.locks)


def _spin(loaded: LoadedPlan, settings: Settings) -> float:
    """Return the number of seconds for which a run polls before it sleeps."""
    return loaded.spin if settings.spin is None else settings.spin
