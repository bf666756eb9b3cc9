"""`observe`: the flow of the values that an op has as its sources change."""

import time
from typing import Any, Final, TypeVar, final, overload

import numpy as np
import trio

from dagpu.backends.protocol import Run
from dagpu.common.compiled import MISS, teach
from dagpu.common.containers import own_containers
from dagpu.common.critical import CURRENT_THREAD, OUTSIDE
from dagpu.common.errors import BorrowError
from dagpu.common.places import Origin, StartedAt, describe, here, leaves_run
from dagpu.common.wrong_arguments import check_count, check_flag
from dagpu.handles import SharedTensor, Tensor
from dagpu.ops.base import DeviceOp, Static, check_op
from dagpu.ops.drawing import name_of_call
from dagpu.ops.source_op import Source
from dagpu.ops.versions import Snapshot, Version
from dagpu.reactive.flows.flow_class import Flow
from dagpu.reactive.flows.stage import End, FlowStage, Opening, Stats
from dagpu.reactive.incremental import IncrementalRun
from dagpu.reactive.shared_work import SharedWork
from dagpu.reactive.update_plans import UpdatePlan
from dagpu.runtime.checked_runs import CheckedRuns
from dagpu.runtime.execute import recording_block, refuse_nested
from dagpu.runtime.interpreter import current_settings
from dagpu.runtime.loaded_plan import Settings
from dagpu.runtime.spawning import borrows_in
from dagpu.runtime.trio_waits import TrioWaits, await_steps, protected

_T = TypeVar("_T")
_N = TypeVar("_N", bound=np.generic)

AnyOp = DeviceOp[Any, Any, Any]

_UPDATE: Final = "an update was run"


@overload
def observe(
    op: DeviceOp[Tensor[_N], Static, Any], /, *, memory: int | None = ..., check: bool = ...
) -> Flow[SharedTensor[_N]]: ...
@overload
def observe(op: DeviceOp[_T, Static, Any], /, *, memory: int | None = ..., check: bool = ...) -> Flow[_T]: ...
@leaves_run
def observe(op: AnyOp, /, *, memory: int | None = None, check: bool = False) -> Flow[Any]:
    """Return the flow of the values of an op: the first one at once, and a new one each time that sources have changed.

    Each value is that of a run from scratch with the values that all sources had at one instant, and only what depends
    on the changed sources runs again. Between two values asked for, all changes are taken together: the value is that
    of the newest ones. The flow of an op without sources ends after one value. If an update fails, `next()` raises, and
    the next call makes the update again, with the newest values.

    A plan is made for each set of sources that changes together, when it does so first: it runs exactly what depends on
    them. The 64 plans used last are kept.

    A device result is a `SharedTensor` that no later update writes. NumPy arrays are read-only, and each value has
    lists, dicts, sets and bytearrays of its own. An object of another class may be in several values: do not change it
    in place. Closures must depend on
    what they are given alone, as those of a pipeline: one is called again only if that has changed. Each update runs on
    the device and with the policy that were current when the flow was opened.

    Args:
        op: an op that holds no borrow, and does not write over what it owns.
        memory: the most bytes of device memory, results included, that stay between updates; None for no limit. What is
            not kept is made again.
        check: true to run each update from scratch too, and to compare.

    Raises:
        BorrowError: the op holds a borrow, and the flow may outlive the lender.
        MovedError: from `next()`, if the op writes over a tensor that it owns, or the tensor has moved away.
        OwnershipError: from `next()`, if the result owns handles and is not one bare `Tensor`.
        PlanError: from `next()`, if the results alone take more than `memory`.
        UpdateError: from `next()`, with `check`, if an update differs from a run from scratch.
    """
    origin = here()
    check_op(op, "observe")
    for borrow, made in borrows_in(op):
        raise BorrowError(
            f"observe at {describe(origin)} of an op that holds {borrow}, borrowed at {describe(made)}: the feed may "
            "outlive the loan. share() the tensor and pass that."
        )
    limit = None if memory is None else check_count(memory, "observe", origin, "memory")
    checked = check_flag(check, "observe", origin, "check")

    def begin(opening: Opening) -> FlowStage[Any]:
        return Observed(op, current_settings("observe"), opening, limit, checked, origin)

    return Flow("observe", begin, origin)


@final
class Observed(FlowStage[Any]):
    """Computes the values of an observed op. Sources wake it from any thread; it runs only when it is asked."""

    def __init__(
        self, op: AnyOp, settings: Settings, opening: Opening, memory: int | None, check: bool, origin: Origin
    ) -> None:
        self._op = op
        self._settings = settings
        self._stats = opening.stats
        self._check = check
        self._where = origin
        self._shared = SharedWork(op)
        self._run = IncrementalRun(op, settings, memory, origin, self._shared)
        self._token = trio.lowlevel.current_trio_token()
        self._changed = trio.Event()
        self._waits = False
        """True while the task may wait for `_changed`."""
        self._due = True
        """True until the value of the newest snapshot has been handed out."""
        self._clock = opening.clock
        self._seen: dict[Source[Any], Version] = {}
        """The sources that the op reads, with the versions of the value that was handed out last."""
        self._seen_of: tuple[Source[Any], ...] = ()
        """These sources, as the run has named them."""
        self._newer: dict[Source[Any], Version] = {}
        """Those of them that have changed since, with their versions in the snapshot for which a value is made."""
        self._watched: tuple[Source[Any], ...] = ()
        """The sources that wake this stage."""
        self.quick: tuple[Any, dict[Source[Any], Version], Stats] | None = None
        """What the compiled reader makes the next update by, with what it notes; None if it cannot."""
        opening.stack.callback(self._close)

    async def next(self) -> Any:
        if CURRENT_THREAD.state.where != OUTSIDE or recording_block() is not None:
            refuse_nested(self._op)
        if self.quick is not None:
            repeated, seen, stats = self.quick
            landing = repeated.launch(self, seen, stats)
            if landing is not MISS:
                return own_containers(await landing)
        self.quick = None
        snapshot = self._changed_snapshot() or await self._next_snapshot()
        self._due = True
        value = await await_steps(protected(self._update(snapshot), _UPDATE))
        self._due = False
        if self._run.repeated is not None and not self._check:
            self.quick = self._run.repeated, self._seen, self._stats
        return value if type(value) is SharedTensor else own_containers(value)

    def _changed_snapshot(self) -> Snapshot | None:
        """Return the present instant if there is a value to make for it; None if nothing has changed."""
        snapshot = Snapshot()
        self._newer.clear()
        for node, seen in self._seen.items():
            version = node.cell.history.versions[-1]
            if version is not seen:  # what was newest at an earlier instant, and is still, is so now
                if version.instant > snapshot.instant or version.written is not None:
                    version = node.cell.history.at(snapshot)
                if version is not seen:
                    self._newer[node] = version
        return snapshot if self._due or self._newer else None

    async def _next_snapshot(self) -> Snapshot:
        """Wait until there is a value to make, and return the instant for which to make it.

        Raises:
            End: the op depends on no source, and its value was handed out.
        """
        while True:
            self._changed, self._waits = trio.Event(), True  # a change from here on wakes this task
            snapshot = self._changed_snapshot()
            if snapshot is not None:
                self._waits = False
                return snapshot
            if not self._seen:
                raise End
            await self._changed.wait()

    async def _update(self, snapshot: Snapshot) -> Any:
        """Make the value of a snapshot. A checkpoint; after the last one nothing can be cancelled."""
        run, stats = self._run, self._stats
        launched, reused = run.launched, run.reused
        try:
            newer = self._newer if self._seen_of is run.sources else None
            value = await run.update(snapshot, TrioWaits(), newer)
        finally:
            stats.launched += run.launched - launched
            stats.reused += run.reused - reused
            stats.kept_bytes = run.kept_bytes
            if run.sources is not self._watched:
                self._watch(run.sources)  # also if it failed: a change may be the cure
        if self._check:
            await _check_update(self._op, self._run, value, snapshot, self._settings, self._where)
        if self._check or run.launched == launched:
            await trio.lowlevel.cancel_shielded_checkpoint()
        self._count(snapshot)
        return value

    def _count(self, snapshot: Snapshot) -> None:
        """Note the versions of the value that is handed out now, since when it was due, and what it has skipped."""
        seen, sources, now = self._seen, self._run.sources, self._clock()
        here_now = first = time.perf_counter()
        steps = 1
        if self._seen_of is not sources:
            for node in self._newer.keys() - set(sources):
                del self._newer[node]
        for node, version in self._newer.items():
            if version.since < first:
                first = version.since
            steps = max(steps, version.revision - seen[node].revision)
            seen[node] = version
        self.since = now - (here_now - first)
        self._stats.skipped += steps - 1
        self._newer.clear()  # it would keep the values
        if self._seen_of is not sources:  # another trace, which may read other sources
            self._seen = {node: node.cell.history.at(snapshot) for node in sources}
            self._seen_of = sources

    def update_failed(self, mask: int, update: UpdatePlan, run: Run, memory: list[Any]) -> None:
        """Note that an update by the compiled reader has failed, or was cancelled. Its run is over."""
        self._due, self.quick = True, None
        self._run.end_failed(mask, update, run, memory)

    def hand_out_again(self) -> None:
        """Note that the last value was made and has not reached its task: the compiled reader has met an error."""
        self._due, self.quick = True, None

    # ---- changes

    def _watch(self, sources: tuple[Source[Any], ...]) -> None:
        """Let these sources wake the stage, and no others."""
        watched = set(self._watched)  # `in` of a tuple would compare ops
        for node in sources:
            if node not in watched:
                node.cell.watch(self, self._wake)
        for node in watched - set(sources):
            node.cell.unwatch(self)
        self._watched = sources

    def _wake(self) -> None:
        """Wake the task that waits for a change. Sources call this on the thread that sets them, after a change."""
        if not self._waits:
            return  # the task looks at the sources before it waits
        try:
            here_too = trio.lowlevel.current_trio_token() is self._token
        except RuntimeError:
            here_too = False
        if here_too:
            self._changed.set()
            return
        try:
            self._token.run_sync_soon(self._set_changed, idempotent=True)
        except trio.RunFinishedError:
            pass

    def _set_changed(self) -> None:
        self._changed.set()

    def _close(self) -> None:
        """Let go of everything that is kept between updates."""
        self._watch(())
        self._shared.close()
        self.quick = None
        self._run = IncrementalRun(self._op, self._settings, None, self._where)
        self._seen, self._newer = {}, {}

    # ---- for those who look

    def state(self) -> str:
        return "" if self._seen else "nothing has run yet" if self._due else "no source"

    def explain(self) -> list[str]:
        return [*super().explain(), *("  " + line for line in self._run.explain())]


teach(observed=Observed)


# ---- checks


async def _check_update(
    op: AnyOp, run: IncrementalRun, value: Any, snapshot: Snapshot, settings: Settings, where: Origin
) -> None:
    """Compare the value that an update of `run` has made with that of a run from scratch, bit for bit. Where a cutoff
    has let an earlier value through, which it takes for equal, the run from scratch gets that value too. `where` is the
    place of `observe`.

    Raises:
        UpdateError: they differ.
    """
    with StartedAt(where):
        scratch = IncrementalRun(op, settings, None, where)
        scratch.cutoffs = run.let_through()
        wanted = await scratch.update(snapshot, TrioWaits())
        newest = max(run.sources, key=lambda node: node.cell.history.at(snapshot).instant, default=None)
        when = "of an op that reads no source"
        if newest is not None:
            when = f"at revision {newest.cell.history.at(snapshot).revision} of {newest!r}"
        differs = f"{name_of_call(op)} at {describe(op.origin)} differs from a run from scratch {when}"
        runs = CheckedRuns(settings, TrioWaits(), where)
        await runs.compare(value, wanted, differs, "Make what it reads a source, and return values that cannot change")
