"""`DaskEngine`: runs the tasks of runs on the workers of a Dask cluster. It lives in Dask's event loop.

Dask redoes what is lost with a worker, as long as something needs it. What Dask cannot redo is done here: arrays that
were sent to a worker before the run are sent again. Dask submits what it gets at once; here a task is submitted when
its worker has room for it: at most `window` tasks of a run, and no more bytes than its devices have.
"""

import asyncio
import contextlib
import weakref
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, Final, final

import numpy as np
from dask._task_spec import Task as DaskTask
from dask._task_spec import TaskRef
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from distributed import Client
from distributed.client import _wait as wait_for_futures
from distributed.scheduler import KilledWorker

from dagpu.cluster.bridge import Bridge
from dagpu.cluster.cluster_backend import ClusterRun
from dagpu.cluster.tasks import Group, Task, call_of, is_large
from dagpu.cluster.worker import dask_tasks
from dagpu.cluster.worker.part_values import register_frames
from dagpu.common.errors import ClusterError, ClusterLostError, PartKilledWorkersError
from dagpu.common.layout import Layout
from dagpu.handles.library_bodies import LibraryBody

register_frames()
_POLL_SECONDS: Final = 0.02
"""Seconds between two looks at whether workers are still at parts of a cancelled run."""


@final
class DaskHold:
    """Keeps the value of a key alive on the cluster. Implements `dagpu.cluster.tasks.Hold`."""

    __slots__ = ("__weakref__", "future", "nbytes", "worker")

    def __init__(self, future: Any, worker: str, nbytes: int) -> None:
        self.future = future
        self.worker = worker
        self.nbytes = nbytes

    @property
    def key(self) -> str:
        return str(self.future.key)


@final
class RunState:
    """One run under way. It is used in the event loop alone."""

    def __init__(self, run: ClusterRun, lost_before: int) -> None:
        self.run = run
        self.lost_before = lost_before
        """The number of workers that were lost before the run began."""
        self.tasks: Sequence[Task] = run.tasks.tasks
        self.queues: dict[str, deque[int]] = {}
        """For each worker, its tasks that are not submitted, in order."""
        self.under_way: dict[str, set[int]] = {}
        """For each worker, its tasks that are submitted and not done."""
        self.held: Counter[str] = Counter()
        """For each worker, the bytes of the values in `futures`."""
        self.submitted: set[int] = set()
        self.done: set[int] = set()
        self.futures: dict[Group, Any] = {}
        """For each value of a submitted task, the future of its key, until nothing needs it any more."""
        self.attempt = 0
        self.sent: dict[int, Any] = {}
        """Futures of large arrays that were sent to a worker, by the identity of the array."""
        self.lost = False
        """True once a value is gone that the engine cannot make again."""
        self.errors: dict[int, BaseException] = {}
        self.changed = asyncio.Event()
        self.watchers: set[asyncio.Task[None]] = set()
        self.redone = 0
        self.cancelled = False
        self.task: asyncio.Task[None] | None = None
        self.kept = {*run.tasks.kept(), *run.tasks.fetched()}
        self.users = [0] * len(self.tasks)
        """For each task, the number of tasks that need it and are not done."""
        for task in self.tasks:
            self.queues.setdefault(task.worker, deque()).append(task.index)
            self.under_way.setdefault(task.worker, set())
            for need in task.needs:
                self.users[need] += 1

    def values_of(self, task: Task) -> list[Group]:
        """Return the values of a task; the one of its own key if it gives none."""
        return [(task.index, at) for at in range(max(len(task.groups), 1))]

    def key_of(self, group: Group) -> str:
        """Return the key of a value."""
        task = self.tasks[group[0]]
        whole = f"{task.name}-{self.run.name}-{self.attempt}-{task.index}"
        return whole if len(task.groups) < 2 else f"{whole}-{group[1]}"

    def hold(self, group: Group, future: Any) -> None:
        """Keep a value alive."""
        self.futures[group] = future
        self.held[self.tasks[group[0]].worker] += self.bytes_of(group)

    def release(self, group: Group) -> None:
        """Let the engine free a value that nothing needs any more."""
        if self.futures.pop(group, None) is not None:
            self.held[self.tasks[group[0]].worker] -= self.bytes_of(group)

    def bytes_of(self, group: Group) -> int:
        """Return the bytes of a value on devices."""
        task, buffers = self.tasks[group[0]], self.run.tasks.program.buffers
        return sum([buffers[version[0]].nbytes for version in task.groups[group[1]]]) if task.groups else 0

    def gone(self) -> set[int]:
        """Return the tasks whose values cannot be made again by the engine."""
        return {index for (index, _), future in self.futures.items() if future.status == "cancelled"}


@final
class DaskEngine:
    """Implements `dagpu.cluster.cluster_backend.Engine`.

    Args:
        bridge: the thread of Dask's loop.
        client: the client, which is asynchronous.
        addresses: the address of each worker that is alive and may run tasks. It changes as workers come and go.
        window: the most tasks of a run that a worker has at once.
        limits: the bytes of memory of each worker's devices.
        excluded: the addresses of workers that get no tasks.
        allowed_failures: how often lost arrays are sent again.
        drain_seconds: the time after which a cancelled run that does not end is an error.
        codes: the code that tasks name, by its hash.
    """

    def __init__(
        self,
        bridge: Bridge,
        client: Client,
        addresses: Mapping[str, str],
        limits: Mapping[str, int],
        excluded: Mapping[str, object],
        *,
        window: int,
        allowed_failures: int,
        drain_seconds: float,
    ) -> None:
        self.codes: Mapping[str, bytes] = {}
        self.closed = False
        self.states: list[RunState] = []
        """The runs under way."""
        self.lost_workers: list[str] = []
        self._bridge = bridge
        self._client: Any = client
        self._addresses = addresses
        self._limits = limits
        self._excluded = excluded
        self._window = window
        self._allowed_failures = allowed_failures
        self._drain_seconds = drain_seconds
        self._sent_codes: dict[tuple[str, ...], Any] = {}
        self._holds: weakref.WeakSet[DaskHold] = weakref.WeakSet()
        self._numbers = count()
        self.listeners: set[asyncio.Event] = set()
        """Events that are set when the progress of a run changes."""

    # ---- for runs, on any thread

    def start(self, run: ClusterRun) -> None:
        """Begin a run; see `Engine.start`."""
        if self.closed:
            raise ClusterError("the cluster is closed. Run the op inside the block of Cluster.connect or .local.")
        self._bridge.loop.call_soon_threadsafe(self._begin, run)

    def cancel(self, run: ClusterRun) -> None:
        """Cancel a run; see `Engine.cancel`."""
        if not self.closed:
            self._bridge.loop.call_soon_threadsafe(self._cancel_now, run)

    def memory_info(self, worker: str, device: str) -> tuple[int, int]:
        """Return the free and the total memory of a device of a worker, in bytes."""
        found: tuple[int, int] = self._bridge.block(self._ask(worker, dask_tasks.memory_of, device))
        return found

    def memory_used(self, worker: str) -> int:
        """Return the bytes of the tensors that a worker holds for this process."""
        return sum([hold.nbytes for hold in list(self._holds) if hold.worker == worker])

    def scratch_bytes(self, worker: str, device: str, body: LibraryBody, operands: Sequence[Layout]) -> int:
        """Return the bytes of scratch memory that a library needs on a device of a worker."""
        return int(self._bridge.block(self._ask(worker, dask_tasks.scratch_of, device, body, tuple(operands))))

    async def _ask(self, worker: str, function: Callable[..., Any], *arguments: Any) -> Any:
        address = self._addresses.get(worker)
        if address is None:
            raise ClusterError(f"worker {worker} is gone. Ask another one: cluster.workers lists those that are alive.")
        return (await self._client.run(function, *arguments, workers=[address]))[address]

    # ---- in the loop

    def _begin(self, run: ClusterRun) -> None:
        state = RunState(run, len(self.lost_workers))
        self.states.append(state)
        state.task = asyncio.get_running_loop().create_task(self._run(state))

    def _cancel_now(self, run: ClusterRun) -> None:
        for state in self.states:
            if state.run is run and not state.cancelled and state.task is not None:
                state.cancelled = True
                state.task.cancel()

    async def _run(self, state: RunState) -> None:
        """Run all tasks of a run. Whatever happens, the run is finished only when no worker is at a part of it."""
        error: BaseException | None = None
        values: dict[Group, Any] = {}
        try:
            values = await self._drive(state)
        except BaseException as failed:
            error = failed
        cancelled = state.cancelled and error is not None
        if error is not None:
            state.cancelled = True  # from now on a cancellation changes nothing
            error = await asyncio.shield(self._drain(state, error))
        if cancelled and isinstance(error, asyncio.CancelledError):
            late = ClusterError("the cluster was closed while the op ran. Let runs end inside its block.")
            error = late if self.closed else None
            cancelled = error is None
        elif cancelled:
            cancelled = False
        holds: dict[Group, DaskHold] = {}
        if error is None and not cancelled:
            for group in state.run.tasks.kept():
                worker = state.tasks[group[0]].worker
                holds[group] = hold = DaskHold(state.futures[group], worker, state.bytes_of(group))
                self._holds.add(hold)
        state.cancelled = True
        self.states.remove(state)
        for watcher in state.watchers:
            watcher.cancel()
        state.futures.clear()
        state.sent.clear()
        self.changed()
        state.run.finish(holds, values, error, cancelled=cancelled)

    async def _drive(self, state: RunState) -> dict[Group, Any]:
        """Submit tasks as there is room, until all are done. Return the values that the caller gets."""
        while True:
            await self._admit(state)
            if len(state.done) == len(state.tasks):
                try:
                    return await self._fetch(state)
                except BaseException:
                    if state.cancelled or not state.gone():
                        raise
                    state.lost = True
            else:
                await state.changed.wait()
                state.changed.clear()
                self.changed()
            if state.errors:
                raise state.errors[min(state.errors)]
            if state.lost:
                await self._send_again(state)

    async def _admit(self, state: RunState) -> None:
        """Submit the tasks that need nothing but submitted tasks, and for which their workers have room."""
        batch: list[Task] = []
        used = {worker: self.memory_used(worker) + state.held[worker] for worker in state.queues}
        found = True
        while found:  # a task that is submitted may be what the next one of another worker needs
            found = False
            for worker, queue in state.queues.items():
                while queue:
                    task = state.tasks[queue[0]]
                    if not state.submitted.issuperset(task.needs) or not self._has_room(state, task, used[worker]):
                        break
                    queue.popleft()
                    state.submitted.add(task.index)
                    state.under_way[worker].add(task.index)
                    batch.append(task)
                    found = True
        if batch:
            await self._submit(state, batch)

    def _has_room(self, state: RunState, task: Task, used: int) -> bool:
        """Return whether a worker, which holds `used` bytes, has room for one more task. One that is at nothing has
        room for any."""
        under_way = state.under_way[task.worker]
        if not under_way:
            return True
        if len(under_way) >= self._window:
            return False
        wanted = used + sum([state.tasks[index].peak_bytes for index in under_way]) + task.peak_bytes
        return wanted <= self._limits.get(task.worker, wanted)

    async def _submit(self, state: RunState, batch: Sequence[Task]) -> None:
        """Submit tasks as one graph, with a layer for each worker."""
        addresses = dict(self._addresses)
        layers: dict[str, MaterializedLayer] = {}
        by_worker: dict[str, dict[str, DaskTask]] = {}
        wanted: list[Group] = []
        for task in batch:
            by_worker.setdefault(task.worker, {}).update(await self._graph_of(state, task, addresses))
            wanted += state.values_of(task)
        for worker, graph in by_worker.items():
            address = addresses.get(worker)
            where = None if address is None else {"workers": [address], "allow_other_workers": True}
            if self._excluded and addresses:
                where = {"workers": list(addresses.values())}
            layers[f"{worker}-{state.run.name}-{next(self._numbers)}"] = MaterializedLayer(graph, annotations=where)
        whole = HighLevelGraph(layers, {name: set() for name in layers})
        keys = [state.key_of(group) for group in wanted]
        for group, future in zip(wanted, self._client.get(whole, keys, sync=False), strict=True):
            state.hold(group, future)
        for task in batch:
            watcher = asyncio.get_running_loop().create_task(self._watch(state, task))
            state.watchers.add(watcher)
            watcher.add_done_callback(state.watchers.discard)

    async def _graph_of(self, state: RunState, task: Task, addresses: Mapping[str, str]) -> dict[str, DaskTask]:
        """Return the tasks of Dask for a task: the part, and one more for each value if it has several."""
        refs: list[Any] = []
        indices: dict[str, int] = {}

        def source(wanted: Any) -> int:
            if isinstance(wanted, DaskHold):
                key = wanted.key
            else:  # a value of this submission has no future yet
                key = str(state.futures[wanted].key) if wanted in state.futures else state.key_of(wanted)
            if key not in indices:
                indices[key] = len(refs)
                refs.append(TaskRef(key))
            return indices[key]

        large = [x for x in _arrays(state, task) if id(x) not in state.sent]
        for array in large:
            to = addresses.get(task.worker)
            state.sent[id(array)] = await self._client.scatter(array, workers=None if to is None else [to], hash=False)

        def sent(array: Any) -> int:
            key = str(state.sent[id(array)].key)
            if key not in indices:
                indices[key] = len(refs)
                refs.append(TaskRef(key))
            return indices[key]

        call = call_of(task, state.run.name, state.run.memory, source, sent)
        whole = f"{task.name}-{state.run.name}-{state.attempt}-{task.index}"
        found = {whole: DaskTask(whole, dask_tasks.run_task, call, self._codes_of(task), *refs)}
        if len(task.groups) > 1:
            for at, versions in enumerate(task.groups):
                key = f"{whole}-{at}"
                found[key] = DaskTask(key, dask_tasks.select_versions, TaskRef(whole), versions)
        return found

    def _codes_of(self, task: Task) -> Any:
        """Return a reference to the code of a task, which every worker fetches once."""
        digests = tuple(sorted(task.blob.codes))
        if not digests:
            return {}
        future = self._sent_codes.get(digests)
        if future is None:
            key = f"dagpu-code-{next(self._numbers)}-{self._client.id}"
            content = {digest: self.codes[digest] for digest in digests}
            (future,) = self._client.get({key: DaskTask(key, dask_tasks.same, content)}, [key], sync=False)
            self._sent_codes[digests] = future
        return TaskRef(future.key)

    async def _watch(self, state: RunState, task: Task) -> None:
        """Wait for the values of a task, and note how it ended."""
        futures = {group: state.futures[group] for group in state.values_of(task)}
        while True:
            with contextlib.suppress(asyncio.CancelledError, Exception):  # what it raises shows in the statuses
                await wait_for_futures([*futures.values()])
            if state.cancelled or any(state.futures.get(group) is not future for group, future in futures.items()):
                return  # the run has ended, or the task was submitted again
            statuses = {future.status for future in futures.values()}
            if not statuses & {"pending", "lost"}:  # Dask makes lost values again
                break
            await asyncio.sleep(_POLL_SECONDS)
        if statuses == {"finished"}:
            self._note_done(state, task)
        elif "error" in statuses:
            failed = next(future for future in futures.values() if future.status == "error")
            state.errors[task.index] = self._error_of(await failed.exception(), state, task)
        else:
            state.lost = True
        state.changed.set()

    def _note_done(self, state: RunState, task: Task) -> None:
        """Note that a task is done, and release the values that nothing needs any more."""
        state.done.add(task.index)
        state.under_way[task.worker].discard(task.index)
        for need in task.needs:
            state.users[need] -= 1
        for index in (task.index, *task.needs):
            if not state.users[index] and index in state.done:
                for group in state.values_of(state.tasks[index]):
                    if group not in state.kept:
                        state.release(group)

    def _error_of(self, error: BaseException, state: RunState, task: Task) -> BaseException:
        """Return the error of the user's for an error of Dask."""
        if not isinstance(error, KilledWorker):
            return error
        places = ", ".join(task.origins)
        last = getattr(error.last_worker, "address", error.last_worker)
        gone = ", ".join(dict.fromkeys([*self.lost_workers[state.lost_before :], str(last)]))
        return PartKilledWorkersError(
            f"{error.allowed_failures + 1} workers died while they ran the part of an op that was built at {places}: "
            f"{gone}. Look for a crash or too little memory in the logs of these workers, or run that op alone on one "
            "of them."
        )

    async def _send_again(self, state: RunState) -> None:
        """Submit lost tasks again, with arrays that are sent again.

        Raises:
            ClusterLostError: the scheduler is gone, or a tensor that an earlier run has made.
        """
        state.lost = False
        if not self._is_connected():
            raise ClusterLostError(
                "the connection to the scheduler was lost. What was under way has to be run again, with tensors "
                "that are made again: connect to the cluster once its scheduler is back."
            )
        for held in state.run.memory:
            hold = getattr(held, "hold", None)
            if isinstance(hold, DaskHold) and hold.future.status == "cancelled":
                raise ClusterLostError(
                    f"a tensor on worker {hold.worker} was lost with it, and it came from an array that was too "
                    "large to keep for the case. Make it again, and use checkpoint(t, store) after what must not be "
                    "lost."
                )
        gone = state.gone()
        if not gone:
            return
        state.attempt += 1
        if state.attempt > self._allowed_failures + 1:
            raise ClusterLostError(
                f"the arrays of a run were lost with their workers {state.attempt} times. Look in the logs of the "
                "workers for the reason, and run the op again."
            )
        state.sent.clear()
        for index in gone:
            if index in state.done:
                state.done.discard(index)
                for need in state.tasks[index].needs:
                    state.users[need] += 1
            state.submitted.discard(index)
            state.under_way[state.tasks[index].worker].discard(index)
            for group in state.values_of(state.tasks[index]):
                state.release(group)
        state.redone += len(gone)
        for worker, queue in state.queues.items():
            again = {index for index in gone if state.tasks[index].worker == worker}
            state.queues[worker] = deque(sorted({*queue, *again}))

    def _is_connected(self) -> bool:
        comm = getattr(self._client, "scheduler_comm", None)
        return self._client.status == "running" and comm is not None and not comm.comm.closed()

    async def _fetch(self, state: RunState) -> dict[Group, Any]:
        """Return the values that the caller gets."""
        groups = state.run.tasks.fetched()
        found = await self._client.gather([state.futures[group] for group in groups])
        return dict(zip(groups, found, strict=True))

    async def _drain(self, state: RunState, error: BaseException) -> BaseException:
        """Cancel what is under way, and wait until no worker is at a part of the run. Return the error of the run."""
        for watcher in state.watchers:
            watcher.cancel()
        if not self._is_connected():
            return (
                error
                if isinstance(error, ClusterLostError)
                else ClusterLostError(
                    "the connection to the scheduler was lost while an op ran. Connect to the cluster once its "
                    "scheduler is back, and run the op again."
                )
            )
        try:
            async with asyncio.timeout(self._drain_seconds):
                await self._client.cancel([*state.futures.values(), *state.sent.values()], force=True)
                while await self._under_way(state.run.name):  # noqa: ASYNC110  # reason: it asks other machines
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            names = ", ".join([state.tasks[index].name for index in sorted(state.submitted - state.done)])
            late = ClusterError(f"parts are still under way after {self._drain_seconds} s: {names}")
            return BaseExceptionGroup("a run was to end", [error, late])
        except Exception as failed:
            return BaseExceptionGroup("a run was to end", [error, ClusterError(f"it could not be cancelled: {failed}")])
        return error

    async def _under_way(self, run: str) -> int:
        """Return the number of parts of a run that workers are at. None of them begins another one."""
        addresses = list(self._addresses.values())
        if not addresses:
            return 0
        counts = await self._client.run(dask_tasks.cancel_run, run, workers=addresses, on_error="ignore")
        return sum([found for found in counts.values() if isinstance(found, int)])

    # ---- what happens on the cluster

    def note_event(self, event: Any) -> None:
        """Note an event of the scheduler: a worker that is gone, with the keys that are made again."""
        _, message = event
        if message.get("action") != "remove-worker":
            return
        if not message.get("expected"):
            self.lost_workers.append(str(message.get("worker")))
        again = {*message.get("processing-tasks", ()), *message.get("lost-computed-tasks", ())}
        for state in self.states:
            state.redone += sum([f"-{state.run.name}-" in str(key) for key in again])
        self.changed()

    def changed(self) -> None:
        """Tell those who watch the progress."""
        for event in self.listeners:
            event.set()

    async def close(self) -> None:
        """Cancel all runs, and wait until they have ended."""
        self.closed = True
        for state in list(self.states):
            if not state.cancelled and state.task is not None:
                state.cancelled = True
                state.task.cancel()
        ending = [state.task for state in self.states if state.task is not None]
        if ending:
            await asyncio.wait(ending)


def _arrays(state: RunState, task: Task) -> list["np.ndarray[Any, Any]"]:
    """Return the arrays of the caller's that are too large to travel inside a task."""
    return [x for x in [state.run.memory[buffer] for _, buffer in task.given] if is_large(x)]
