"""A run on a cluster: what of it is waiting, submitted and done, its results, and its end."""

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, final

from distributed.scheduler import KilledWorker

from dagpu.cluster import dask_tasks
from dagpu.cluster.backend import ClusterRun
from dagpu.cluster.dask_tasks import received_error
from dagpu.cluster.tasks import Group, Task, memory_of
from dagpu.common.errors import ClusterError, ClusterLostError, PartKilledWorkersError
from dagpu.plans.program import HOST


@final
class DaskHold:
    """Keeps the value of a key alive on the cluster. Implements `dagpu.cluster.tasks.Hold`."""

    __slots__ = ("__weakref__", "future", "nbytes", "worker")

    def __init__(self, future: Any, worker: str, nbytes: Mapping[str, int]) -> None:
        self.future = future
        self.worker = worker
        self.nbytes = nbytes
        """The bytes that the value takes, by the names of devices."""

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
        """For each memory, the bytes of the values in `futures`; see `memory_of`."""
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
        self.begun = False
        """True once the task has entered its `try`: a task that is cancelled before runs no line."""
        self.fetched = set(run.tasks.fetched())
        """The values that the caller gets."""
        self.kept = {*run.tasks.kept(), *self.fetched}
        """The values that are not released when no task needs them any more."""
        self.users = [0] * len(self.tasks)
        """For each task, the number of tasks that need it and are not done."""
        for task in self.tasks:
            self.queues.setdefault(task.worker, deque()).append(task.index)
            self.under_way.setdefault(task.worker, set())
            for need in task.needs:
                self.users[need] += 1

    def cancel(self) -> None:
        """Cancel what the task waits for, now or when it begins."""
        if self.begun and self.task is not None:
            self.task.cancel()

    # ---- values

    def values_of(self, task: Task) -> list[Group]:
        """Return the values of a task; the one of its own key if it gives none."""
        return [(task.index, at) for at in range(max(len(task.groups), 1))]

    def key_of(self, group: Group) -> str:
        """Return the key of a value."""
        task = self.tasks[group[0]]
        whole = self.task_key(task)
        return whole if len(task.groups) < 2 else f"{whole}-{group[1]}"

    def task_key(self, task: Task) -> str:
        """Return the key of a task."""
        return f"{task.name}-{self.run.name}-{self.attempt}-{task.index}"

    def hold(self, group: Group, future: Any) -> None:
        """Keep a value alive."""
        self.futures[group] = future
        for device, nbytes in self.bytes_of(group).items():
            self.held[memory_of(device)] += nbytes

    def release(self, group: Group) -> None:
        """Let the engine free a value that nothing needs any more."""
        if self.futures.pop(group, None) is not None:
            for device, nbytes in self.bytes_of(group).items():
                self.held[memory_of(device)] -= nbytes

    def bytes_of(self, group: Group) -> Counter[str]:
        """Return the bytes of a value on each device."""
        task, program = self.tasks[group[0]], self.run.tasks.program
        found: Counter[str] = Counter()
        for buffer, _ in task.groups[group[1]] if task.groups else ():
            about = program.buffers[buffer]
            if about.device != HOST:
                found[program.devices[about.device]] += about.nbytes
        return found

    # ---- tasks

    def admit(self, used: Counter[str], window: int, limits: Mapping[str, int]) -> list[Task]:
        """Take from the queues the tasks that need nothing but submitted tasks, and for which their workers have room.

        Args:
            used: for each memory, the bytes of the tensors in it besides those of this run.
            window: the most tasks that a worker has at once.
            limits: the bytes of each memory.
        """
        batch: list[Task] = []
        found = True
        while found:  # a task that is submitted may be what the next one of another worker needs
            found = False
            for worker, queue in self.queues.items():
                while queue:
                    task = self.tasks[queue[0]]
                    if not self.submitted.issuperset(task.needs) or not self._has_room(task, used, window, limits):
                        break
                    queue.popleft()
                    self.submitted.add(task.index)
                    self.under_way[worker].add(task.index)
                    batch.append(task)
                    found = True
        return batch

    def _has_room(self, task: Task, used: Counter[str], window: int, limits: Mapping[str, int]) -> bool:
        """Return whether the worker of a task has room for it. One that is at nothing has room for any."""
        under_way = self.under_way[task.worker]
        if not under_way:
            return True
        if len(under_way) >= window:
            return False
        for memory, peak in task.peak_bytes.items():
            others = sum([self.tasks[index].peak_bytes.get(memory, 0) for index in under_way])
            wanted = used[memory] + self.held[memory] + others + peak
            if wanted > limits.get(memory, wanted):
                return False
        return True

    def note_done(self, task: Task) -> None:
        """Note that a task is done, and release the values that nothing needs any more."""
        self.done.add(task.index)
        self.under_way[task.worker].discard(task.index)
        for need in task.needs:
            self.users[need] -= 1
        for index in (task.index, *task.needs):
            self.release_unused(index)

    def release_unused(self, index: int) -> None:
        """Release the values of a task if it is done and nothing needs them any more."""
        if not self.users[index] and index in self.done:
            for group in self.values_of(self.tasks[index]):
                if group not in self.kept:
                    self.release(group)

    # ---- loss

    def is_lost(self) -> bool:
        """Return whether the engine cannot make a value of a submitted task again."""
        return any(future.status == "cancelled" for future in self.futures.values())

    def take_back(self) -> int:
        """Put the tasks whose values the engine cannot make again back into the queues, with the tasks that make what
        these need and that is released. Return the number of those tasks."""
        gone = {index for (index, _), future in self.futures.items() if future.status == "cancelled"}
        todo = list(gone)
        while todo:
            for _, _, group in self.tasks[todo.pop()].buffers:
                if group is not None and group not in self.futures and group[0] not in gone:
                    gone.add(group[0])
                    todo.append(group[0])
        for index in gone:
            task = self.tasks[index]
            if index in self.done:
                self.done.discard(index)
                for need in task.needs:
                    self.users[need] += 1
            self.submitted.discard(index)
            self.under_way[task.worker].discard(index)
            for group in self.values_of(task):
                self.release(group)
        self.redone += len(gone)
        for worker, queue in self.queues.items():
            again = {index for index in gone if self.tasks[index].worker == worker}
            self.queues[worker] = deque(sorted({*queue, *again}))
        return len(gone)


# ---- run ends
#
# How runs end on a cluster: what is sent again after a loss, the errors of the caller's, and the end of a cancel.

POLL_SECONDS: Final = 0.02
"""Seconds between two looks at whether workers are still at parts of a cancelled run."""
LOOK_SECONDS: Final = 0.1
"""Seconds between two looks at whether the scheduler is still there."""


def error_of(error: BaseException, task: Task, lost_workers: Sequence[str]) -> BaseException:
    """Return the error of the caller's for an error of Dask. `lost_workers` died since the run began."""
    if not isinstance(error, KilledWorker):
        return received_error(error)
    places = ", ".join(task.origins)
    last = getattr(error.last_worker, "address", error.last_worker)
    gone = ", ".join(dict.fromkeys([*lost_workers, str(last)]))
    return PartKilledWorkersError(
        f"{error.allowed_failures + 1} workers died while they ran the part of an op that was built at {places}: "
        f"{gone}. Look for a crash, a lost GPU or too little memory in the logs of these workers, or run that op "
        "alone on one of them."
    )


@final
class Connection:
    """The connection of a client to its scheduler, as it was when the cluster was opened.

    A client connects again by itself, to a scheduler that knows nothing of its tensors. For the block that is the end:
    what it holds is lost, and waits for it would last as long as the time-outs of Dask.
    """

    def __init__(self, client: Any) -> None:
        self.client = client
        self._comm = client.scheduler_comm

    def is_alive(self) -> bool:
        """Return whether the client still speaks to the scheduler to which it was opened."""
        return self.client.status == "running" and not self._comm.comm.closed()

    async def ends(self) -> None:
        """Wait until it is lost."""
        while self.is_alive():  # noqa: ASYNC110  # reason: Dask tells nobody
            await asyncio.sleep(LOOK_SECONDS)

    def error(self) -> ClusterLostError:
        """Return the error for runs of a cluster whose scheduler is gone."""
        return ClusterLostError(
            f"the connection to the scheduler {self._comm.comm.peer_address} was lost, and with it all tensors of the "
            "cluster. Leave the block, open the cluster again once its scheduler is back, and run the op again with "
            "tensors that are made again."
        )


def send_again(connection: Connection, state: RunState, allowed_failures: int) -> None:
    """Put lost tasks back into the queues of a run, with the arrays that they take.

    Raises:
        ClusterLostError: the scheduler is gone, or a tensor that an earlier run has made.
    """
    state.lost = False
    if not connection.is_alive():
        raise connection.error()
    for held in state.run.memory:
        hold = getattr(held, "hold", None)
        if isinstance(hold, DaskHold) and hold.future.status == "cancelled":
            raise ClusterLostError(
                f"a tensor on worker {hold.worker} was lost with it, and it came from an array that was too "
                "large to keep for the case. Make it again, and use checkpoint(t, store) after what must not be "
                "lost."
            )
    if not state.is_lost():
        return
    state.attempt += 1
    if state.attempt > allowed_failures + 1:
        raise ClusterLostError(
            f"the arrays of a run were lost with their workers {state.attempt} times. Look in the logs of the "
            "workers for the reason, and run the op again."
        )
    state.sent.clear()
    state.take_back()


async def drain(
    connection: Connection, state: RunState, error: BaseException, addresses: Mapping[str, str], seconds: float
) -> BaseException:
    """Cancel what is under way, and wait until no worker is at a part of the run. Return the error of the run.

    Args:
        addresses: the address of each worker that is alive.
        seconds: the time after which a run that does not end is an error.
    """
    for watcher in state.watchers:
        watcher.cancel()
    ending, lost = (
        asyncio.create_task(_cancel(connection.client, state, addresses)),
        asyncio.create_task(connection.ends()),
    )
    await asyncio.wait([ending, lost], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    is_over = ending.done()
    for waiting in (ending, lost):
        waiting.cancel()
    await asyncio.wait([ending, lost])
    if not connection.is_alive():
        return error if isinstance(error, ClusterLostError) else connection.error()
    if not is_over:
        names = ", ".join([state.tasks[index].name for index in sorted(state.submitted - state.done)])
        late = ClusterError(f"parts are still under way after {seconds} s: {names}")
        return BaseExceptionGroup("a run was to end", [error, late])
    failed = ending.exception()
    if failed is not None:
        return BaseExceptionGroup("a run was to end", [error, ClusterError(f"it could not be cancelled: {failed}")])
    return error


async def _cancel(client: Any, state: RunState, addresses: Mapping[str, str]) -> None:
    """Cancel what is under way, and wait until no worker is at a part of the run."""
    await client.cancel([*state.futures.values(), *state.sent.values()], force=True)
    while await _under_way(client, state.run.name, list(addresses.values())):  # noqa: ASYNC110  # reason: it asks other machines
        await asyncio.sleep(POLL_SECONDS)


async def _under_way(client: Any, run: str, addresses: Sequence[str]) -> int:
    """Return the number of parts of a run that workers are at. None of them begins another one."""
    if not addresses:
        return 0
    counts = await client.run(dask_tasks.cancel_run, run, workers=list(addresses), on_error="ignore")
    return sum([found for found in counts.values() if isinstance(found, int)])


# ---- result fetch
#
# `ResultFetch`: brings the values that the caller gets to this process while a run goes on.
#
# A value that is here is not lost with its worker, and its memory there is free. Fetches are collected: one costs a few
# milliseconds, however many values it brings.

_FETCH_SECONDS: Final = 0.05
"""The shortest time from one fetch to the next, unless all tasks are done."""


@final
class ResultFetch:
    """The fetches of one run. It is used in the event loop alone.

    Args:
        client: the client of Dask.
        state: the run.
        direct: true if the workers can be reached from this process; otherwise values come through the scheduler.
    """

    def __init__(self, client: Any, state: RunState, *, direct: bool) -> None:
        self.values: dict[Group, Any] = {}
        """The values that are here."""
        self._client = client
        self._state = state
        self._direct = direct
        self._ready: dict[Group, Any] = {}
        """The futures of values that are made and not here."""
        self._fetching: asyncio.Task[None] | None = None
        self._last = asyncio.Event()
        """Set once all tasks are done."""

    def note_done(self, task: Task) -> None:
        """Note that the values of a task are made, and begin to fetch those that the caller gets."""
        for group in self._state.values_of(task):
            if group in self._state.fetched and group not in self.values:
                self._ready[group] = self._state.futures[group]
        if len(self._state.done) == len(self._state.tasks):
            self._last.set()
        if self._ready and self._fetching is None:
            self._fetching = asyncio.get_running_loop().create_task(self._fetch())

    def is_complete(self) -> bool:
        """Return whether all values are here."""
        return len(self.values) == len(self._state.fetched)

    def stop(self) -> None:
        """End the fetch that is under way."""
        if self._fetching is not None:
            self._fetching.cancel()

    async def _fetch(self) -> None:
        """Fetch what is made, until nothing is left."""
        state, loop = self._state, asyncio.get_running_loop()
        try:
            while self._ready:
                begun, ready, self._ready = loop.time(), self._ready, {}
                batch = {group: future for group, future in ready.items() if self._is_there(group, future)}
                try:
                    found = await self._client.gather([*batch.values()], direct=self._direct)
                except Exception as error:
                    left = {group: future for group, future in batch.items() if self._is_there(group, future)}
                    if len(left) == len(batch):
                        state.errors[-1] = error
                        return
                    self._ready |= left  # the others are fetched once they are made again
                    state.lost |= state.is_lost()
                    state.changed.set()
                    continue
                for group, content in zip(batch, found, strict=True):
                    self.values[group] = content
                    state.kept.discard(group)
                    state.release_unused(group[0])
                if self.is_complete():
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(begun + _FETCH_SECONDS):
                        await self._last.wait()
        finally:
            self._fetching = None
            state.changed.set()

    def _is_there(self, group: Group, future: Any) -> bool:
        """Return whether a value is neither lost nor taken back by the run, to be made again."""
        return future.status != "cancelled" and self._state.futures.get(group) is future
