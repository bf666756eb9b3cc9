"""A run on a cluster: what of it is waiting, submitted and done, its results, and its end."""

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, final

from distributed.scheduler import KilledWorker

from dagpu.cluster import dask_tasks
from dagpu.cluster.backend import ClusterRun
from dagpu.cluster.dask_tasks import received_error
from dagpu.cluster.part_batches import Batch, Batches, Times
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
    """One run under way. It is used in the event loop alone.

    Args:
        run: the run.
        lost_before: the number of workers that were lost before the run began.
        batch_seconds: the time up to which tasks are put together; 0 to submit each by itself.
        times: the times of functions, from runs before.
    """

    def __init__(
        self, run: ClusterRun, lost_before: int, batch_seconds: float = 0.0, times: Times | None = None
    ) -> None:
        self.run = run
        self.lost_before = lost_before
        self.tasks: Sequence[Task] = run.tasks.tasks
        self.queues: dict[str, deque[int]] = {}
        """For each worker, its tasks that are not submitted, in order."""
        self.batches = Batches(batch_seconds, Times() if times is None else times)
        self.by_key: dict[str, Batch] = {}
        """The batches that are submitted, by their keys."""
        self.held: Counter[str] = Counter()
        """For each memory, the bytes of the values in `futures`; see `memory_of`."""
        self.submitted: set[int] = set()
        self.done: set[int] = set()
        self.futures: dict[Group, Any] = {}
        """For each value of a submitted task that leaves its batch, the future of the key that has it, until nothing
        needs it any more. Values with the same key have the same future."""
        self.keys: dict[Group, str] = {}
        """For each value that has left a batch, its key, the newest one."""
        self.shared: dict[str, list[Group]] = {}
        """For each key in use, its values."""
        self.attempt = 0
        """How often tasks were taken back: what is submitted again gets other keys."""
        self.losses = 0
        """How often arrays were lost with their workers."""
        self.is_apart = False
        """True once a batch was taken apart, which a worker may still be at."""
        self.sent: dict[int, Any] = {}
        """Futures of large arrays that were sent to a worker, by the identity of the array."""
        self.lost = False
        """True once a value is gone that the engine cannot make again."""
        self.suspects: list[Batch] = []
        """Batches whose worker has ended; see `take_apart`."""
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

    def submit_as(self, batch: Batch) -> None:
        """Name the keys of a batch. The key has the name of its last task."""
        last = batch.tasks[-1]
        batch.submit_as(f"{last.name}-{self.run.name}-{self.attempt}-{last.index}")
        self.by_key[batch.key] = batch
        for key, _, groups in batch.values:
            self.keys.update(dict.fromkeys(groups, key))

    def hold(self, groups: Sequence[Group], future: Any) -> None:
        """Keep the value of a key alive, for all values that it has."""
        self.shared[str(future.key)] = [*groups]
        for group in groups:
            self.futures[group] = future
            for device, nbytes in self.bytes_of(group).items():
                self.held[memory_of(device)] += nbytes

    def release(self, group: Group) -> None:
        """Let the engine free a value that nothing needs any more. Those that share a key are freed together."""
        future = self.futures.pop(group, None)
        if future is None:
            return
        members = self.shared[str(future.key)]
        if not any(self.futures.get(each) is future for each in members):
            del self.shared[str(future.key)]
            for each in members:
                for device, nbytes in self.bytes_of(each).items():
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
            window: the most batches that a worker has at once.
            limits: the bytes of each memory.
        """
        admitted: list[Task] = []
        self.batches.begin_round()
        found = True
        while found:  # a task that is submitted may be what the next one of another worker needs
            found = False
            for queue in self.queues.values():
                while queue:
                    task = self.tasks[queue[0]]
                    if not self.submitted.issuperset(task.needs) or not self._has_room(task, used, limits):
                        break
                    if not self.batches.admit(task, self.done, window):
                        break
                    queue.popleft()
                    self.submitted.add(task.index)
                    admitted.append(task)
                    found = True
        return admitted

    def _has_room(self, task: Task, used: Counter[str], limits: Mapping[str, int]) -> bool:
        """Return whether the worker of a task has memory for it. One that is at nothing has room for any."""
        if not self.batches.under_way.get(task.worker):
            return True
        for memory, peak in task.peak_bytes.items():
            wanted = used[memory] + self.held[memory] + self.batches.peaks[memory] + peak
            if wanted > limits.get(memory, wanted):
                return False
        return True

    def note_done(self, task: Task) -> None:
        """Note that a task is done, and release the values that nothing needs any more."""
        self.done.add(task.index)
        self.batches.note_gone(task)
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

    def note_error(self, batch: Batch, error: BaseException, lost_workers: Sequence[str]) -> None:
        """Note the error of a batch. What needs a batch that is given up has the same error as that.

        Args:
            batch: the batch.
            error: the error of Dask.
            lost_workers: the addresses of the workers that died since the run began.
        """
        blamed = self.by_key.get(str(error.task), batch) if isinstance(error, KilledWorker) else batch
        if isinstance(error, KilledWorker) and len(blamed.tasks) > 1 and self._left(blamed):
            self.suspects.append(blamed)
        else:
            self.errors[blamed.tasks[0].index] = error_of(error, blamed.tasks, lost_workers)

    def _left(self, batch: Batch) -> set[int]:
        """Return the tasks of a batch that are under way in it."""
        found = [each.index for each in batch.tasks if each.index in self.submitted and each.index not in self.done]
        return {index for index in found if self.batches.of(index) is batch}

    # ---- loss

    def is_lost(self) -> bool:
        """Return whether the engine cannot make a value of a submitted task again."""
        return any(future.status == "cancelled" for future in self.futures.values())

    def take_back_lost(self) -> None:
        """Put the tasks whose values the engine cannot make again back into the queues."""
        self._take_back({index for (index, _), future in self.futures.items() if future.status == "cancelled"})

    def take_apart(self) -> None:
        """Put the tasks of batches whose worker has ended back into the queues, to run by themselves: so the one that
        ends workers is found, and the others are not given up with it."""
        batches, self.suspects = self.suspects, []
        gone: set[int] = set()
        for batch in batches:
            left = self._left(batch)
            if left:
                self.batches.split(batch)
                gone |= left
        if gone:
            self.is_apart = True
            self.attempt += 1
            self._take_back(gone)

    def _take_back(self, gone: set[int]) -> None:
        """Put tasks back into the queues, with those that need them and are under way, the others of their batches, and
        the tasks that make what these need and that is released."""
        todo = sorted(gone)
        needed_by: dict[int, list[int]] = {}
        for index in self.submitted - self.done:
            for need in self.tasks[index].needs:
                needed_by.setdefault(need, []).append(index)
        while todo:
            index = todo.pop()
            more = [*needed_by.get(index, ())]
            if index not in self.done:
                more += [task.index for task in self.batches.of(index).tasks if task.index not in self.done]
            for _, _, group in self.tasks[index].buffers:
                if group is not None and group not in self.futures:
                    more.append(group[0])
            todo += [each for each in more if each not in gone]
            gone.update(more)
        for index in gone:
            task = self.tasks[index]
            if index in self.done:
                self.done.discard(index)
                for need in task.needs:
                    self.users[need] += 1
            else:
                self.batches.note_gone(task)
            self.submitted.discard(index)
            for group in self.values_of(task):
                self.release(group)
        self.redone += len(gone)
        for worker, queue in self.queues.items():
            again = {index for index in gone if self.tasks[index].worker == worker}
            self.queues[worker] = deque(sorted({*queue, *again}))


# ---- run ends
#
# How runs end on a cluster: what is sent again after a loss, the errors of the caller's, and the end of a cancel.

POLL_SECONDS: Final = 0.02
"""Seconds between two looks at whether workers are still at parts of a cancelled run."""
LOOK_SECONDS: Final = 0.1
"""Seconds between two looks at whether the scheduler is still there."""


def error_of(error: BaseException, tasks: Sequence[Task], lost_workers: Sequence[str]) -> BaseException:
    """Return the error of the caller's for an error of Dask in some tasks. `lost_workers` died since the run began."""
    if not isinstance(error, KilledWorker):
        return received_error(error)
    places = ", ".join(dict.fromkeys([place for task in tasks for place in task.origins]))
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
    state.losses += 1
    if state.losses > allowed_failures + 1:
        raise ClusterLostError(
            f"the arrays of a run were lost with their workers {state.losses} times. Look in the logs of the "
            "workers for the reason, and run the op again."
        )
    state.sent.clear()
    state.take_back_lost()


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
    futures = {str(future.key): future for future in (*state.futures.values(), *state.sent.values())}
    await client.cancel([*futures.values()], force=True)
    await _until_over(client, dask_tasks.cancel_run, state.run.name, addresses)


async def drain_batches(client: Any, state: RunState, addresses: Mapping[str, str], seconds: float) -> None:
    """Wait until no worker is at a batch of a run that has all it wants, for at most `seconds`: Dask may have begun a
    batch again before it was taken apart."""
    if state.is_apart:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await _until_over(client, dask_tasks.count_parts, state.run.name, addresses)


async def _until_over(client: Any, ask: Callable[[str], int], run: str, addresses: Mapping[str, str]) -> None:
    """Ask workers for the number of parts of a run that they are at, until it is zero."""
    while addresses:
        counts = await client.run(ask, run, workers=list(addresses.values()), on_error="ignore")
        if not any(found for found in counts.values() if isinstance(found, int)):
            return
        await asyncio.sleep(POLL_SECONDS)


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
                futures = {id(future): future for future in batch.values()}  # values of one key have one future
                try:
                    contents = await self._client.gather([*futures.values()], direct=self._direct)
                except Exception as error:
                    left = {group: future for group, future in batch.items() if self._is_there(group, future)}
                    if len(left) == len(batch):
                        state.errors[-1] = error
                        return
                    self._ready |= left  # the others are fetched once they are made again
                    state.lost |= state.is_lost()
                    state.changed.set()
                    continue
                found = dict(zip(futures, contents, strict=True))
                for group, future in batch.items():
                    self.values[group] = found[id(future)]
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
