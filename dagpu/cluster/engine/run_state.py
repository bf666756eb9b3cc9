"""`RunState`: what of a run is waiting, submitted and done, and which values are kept for it."""

import asyncio
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any, final

from dagpu.cluster.cluster_runs import ClusterRun
from dagpu.cluster.tasks import Group, Task, memory_of
from dagpu.lowering.program import HOST


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
