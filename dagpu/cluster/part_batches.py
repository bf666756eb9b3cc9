"""Batches: short parts that go to one worker together, as one task of the engine.

A task costs the scheduler, the worker and this process about a millisecond of Python each, whatever it does. So parts
that work for less than that travel in one message, run one after the other in one thread of their worker, and what only
parts of the batch take never leaves it. A longer part is a batch of its own.

A part whose time nobody knows is alone, and so is each part of a batch whose worker ended: so the one that ends workers
is found, and the others are not given up with it.

A batch is made of parts that could begin at the same time: all of them wait for the same batches, or for parts of their
own. So no part waits for a value that it does not need, and the batches have no cycle: what one waits for was there
before it. Parts that need nothing of each other are spread over several batches, which the threads of a worker run side
by side.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from math import inf
from typing import Final, TypeAlias, final

from dagpu.cluster.cutting import Version
from dagpu.cluster.report import PART_COST
from dagpu.cluster.tasks import SHORT, Group, Task

BATCH_SECONDS: Final = PART_COST
"""The time for which a batch works at most, in seconds: what needs one of its parts waits no longer for the others than
a task costs."""
LEAST: Final = 50e-6
"""The time that a part takes on a worker at least, in seconds: to bind what it takes and to keep what it gives."""
SPREAD: Final = 4
"""The number of batches over which parts are spread that need nothing of each other: two for each thread of a worker
with two, so that a thread takes another batch if the work of one was longer than predicted."""


BatchValue: TypeAlias = tuple[str, tuple[Version, ...], tuple[Group, ...]]
"""A value that leaves a batch: its key, its versions, and the values of tasks that are in it."""


FUNCTIONS: Final = 4096
"""The number of functions whose times are kept, of which those that were noted first are dropped first."""


@final
class Times:
    """The times of functions of the host, by their hashes. Nobody can predict how long one takes, or whether it waits
    for something: each is sent alone until it is known to be quick."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def note(self, seconds: Mapping[str, float]) -> None:
        """Note how long functions took. Later calls count as much as all calls before."""
        for function, latest in seconds.items():
            before = self._seconds.get(function, latest)
            self._seconds[function] = (before + latest) / 2
        while len(self._seconds) > FUNCTIONS:
            del self._seconds[next(iter(self._seconds))]

    def of(self, task: Task) -> float:
        """Return the seconds of a task, as far as they are known: those of a function are infinite until then."""
        function = task.blob.function
        return self._seconds.get(function, inf) if function else task.seconds


@final
class Batch:
    """Tasks of one worker that are submitted as one. Those that others of it need come first."""

    __slots__ = ("key", "seconds", "tasks", "values", "waits", "worker")

    def __init__(self, worker: str, waits: "frozenset[Batch]") -> None:
        self.worker = worker
        self.waits = waits
        """The batches that have to be done before it begins."""
        self.tasks: list[Task] = []
        self.seconds = 0.0
        """The predicted time of its tasks, and what a worker needs for them besides."""
        self.key = ""
        """The key of the engine for it, once it is submitted."""
        self.values: Sequence[BatchValue] = ()
        """What leaves it, once it is submitted."""

    def add(self, task: Task, seconds: float) -> None:
        """Add a task, which works for some seconds."""
        self.tasks.append(task)
        self.seconds += max(seconds, LEAST)

    def submit_as(self, key: str) -> None:
        """Name the key of the engine for it. From now on no task is added."""
        self.key = key
        self.values = _values(self)
        self.waits = frozenset()


def _values(batch: Batch) -> list[BatchValue]:
    """Return what leaves a batch: what others take, or the caller. A value that only tasks of the batch take does not.

    Values of one task that others take are one value each, so that nobody fetches what another needs. Those of a batch
    with several tasks are small: what goes to the same workers is one value.
    """
    own = {task.index for task in batch.tasks}
    found: dict[Hashable, tuple[list[Version], list[Group]]] = {}
    for task in batch.tasks:
        for at in range(max(len(task.groups), 1)):
            versions, takers = (task.groups[at], task.takers[at]) if task.groups else ((), {})
            others = {taker: where for taker, where in takers.items() if taker not in own}
            if takers and not others:
                continue
            into: Hashable = frozenset(others.values()) if len(batch.tasks) > 1 else at
            members = found.setdefault(into, ([], []))
            members[0].extend(versions)
            members[1].append((task.index, at))
    if len(found) == 1:
        return [(batch.key, tuple(versions), tuple(groups)) for versions, groups in found.values()]
    return [
        (f"{batch.key}-{at}", tuple(versions), tuple(groups)) for at, (versions, groups) in enumerate(found.values())
    ]


@final
class Batches:
    """The batches of a run, as its tasks are admitted.

    Args:
        seconds: the time up to which a batch takes further tasks; 0 for batches of one task.
        times: the times of functions.
    """

    def __init__(self, seconds: float, times: Times) -> None:
        self._seconds = seconds
        self._times = times
        self._of: dict[int, Batch] = {}
        """For each task that is admitted, its batch."""
        self._open: dict[tuple[str, frozenset[Batch]], list[Batch]] = {}
        """The batches of this round, by their workers and what they wait for."""
        self._alone: set[int] = set()
        """The tasks that get batches of their own."""
        self.under_way: dict[str, set[Batch]] = {}
        """For each worker, its batches that are not done."""
        self.peaks: Counter[str] = Counter()
        """For each memory, the bytes that the tasks of these batches allocate."""

    def begin_round(self) -> None:
        """Begin to admit tasks: those of rounds before are submitted."""
        self._open.clear()

    def of(self, index: int) -> Batch:
        """Return the batch of a task that is admitted."""
        return self._of[index]

    def admit(self, task: Task, done: "set[int]", window: int) -> bool:
        """Put a task into a batch. Return False if its worker has `window` batches already, and none has room.

        Args:
            task: the task. All that it needs is admitted.
            done: the tasks that are done.
            window: the most batches that a worker has at once.
        """
        waits = {self._of[need] for need in task.needs if need not in done}
        under_way = self.under_way.setdefault(task.worker, set())
        batch = self._with_room(task, waits, len(under_way) < window)
        if batch is None:
            if len(under_way) >= window:
                return False
            batch = Batch(task.worker, frozenset(waits))
            self._open.setdefault((task.worker, batch.waits), []).append(batch)
            under_way.add(batch)
        batch.add(task, self._times.of(task))
        self._of[task.index] = batch
        self.peaks.update(task.peak_bytes)
        return True

    def _with_room(self, task: Task, waits: set[Batch], may_open: bool) -> Batch | None:
        """Return a batch of this round that takes a task, if there is one that it should go into."""
        if not self._may_join(task):
            return None
        for batch in waits:  # what it needs of its own batch it need not wait for
            rest = waits - {batch}
            if rest <= batch.waits and batch in self._open.get((task.worker, batch.waits), ()) and self._fits(batch):
                return batch
        side_by_side = [each for each in self._open.get((task.worker, frozenset(waits)), ()) if self._fits(each)]
        if not side_by_side or (may_open and len(side_by_side) < SPREAD):
            return None
        return min(side_by_side, key=lambda each: each.seconds)

    def _may_join(self, task: Task) -> bool:
        is_quick = task.is_short and self._times.of(task) <= SHORT
        return is_quick and self._seconds > 0 and task.index not in self._alone

    def _fits(self, batch: Batch) -> bool:
        """Return whether a batch takes one more short task."""
        return batch.seconds + LEAST <= self._seconds and self._may_join(batch.tasks[0])

    def note_gone(self, task: Task) -> None:
        """Note that a task is done or taken back."""
        self.under_way[task.worker].discard(self._of[task.index])
        self.peaks.subtract(task.peak_bytes)

    def split(self, batch: Batch) -> None:
        """From now on, give the tasks of a batch batches of their own: one of them may have ended its worker."""
        self._alone.update([task.index for task in batch.tasks])
