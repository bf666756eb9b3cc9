"""An engine in this process that submits batches as the engine of Dask does, to a scheduler that does what Dask may.

It runs what is ready in any order, loses values and makes them again, ends workers amid a batch, and loses what cannot
be made again. What it is asked is chosen by `choose`.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, final
from unittest import mock
from weakref import WeakValueDictionary

from dagpu import CostModel
from dagpu.cluster import dask_tasks
from dagpu.cluster.backend import ClusterBackend, ClusterRun
from dagpu.cluster.dask_tasks import received_error
from dagpu.cluster.engine import GraphWriter
from dagpu.cluster.part_batches import BATCH_SECONDS, Batch, Times
from dagpu.cluster.run_state import DaskHold, RunState
from dagpu.cluster.tasks import Group
from dagpu.cluster.worker import PartValue
from dagpu.common.layout import Layout
from dagpu.handles.device_handles import LibraryBody
from dagpu.runtime.device_lookup import add_nodes, remove_nodes
from tests.unit.cluster.adversary_cluster import WORKERS, sent


@final
class Future:
    """Keeps the value of a key."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.status = "pending"


@final
class Scheduler:
    """A client of Dask, with the scheduler and the workers. It keeps recipes and values by their keys."""

    id = "Client-1"

    def __init__(self) -> None:
        self.recipes: dict[str, Any] = {}
        self.values: dict[str, Any] = {}
        self.futures: WeakValueDictionary[str, Future] = WeakValueDictionary()
        self.begun: list[str] = []
        """The keys of what was run, in order."""

    def get(self, graph: Any, keys: Sequence[str], **_: object) -> list[Future]:
        """Take tasks, whose inputs have to be there or in the same graph."""
        new = {str(key): task for key, task in dict(graph).items()}
        for task in new.values():
            for need in task.dependencies:
                assert need in new or need in self.futures, f"{task.key} needs {need}, which nobody holds any more"
        self.recipes |= new
        made = [Future(key) for key in keys]
        self.futures.update({future.key: future for future in made})
        return made

    async def scatter(self, array: Any, **_: object) -> Future:
        """Take an array."""
        future = Future(f"sent-{len(self.values)}")
        self.values[future.key] = array
        self.futures[future.key] = future
        return future

    def missing(self, wanted: Sequence[str]) -> list[str]:
        """The keys that have to be made for the wanted ones, and whose inputs are there."""
        ready, todo, seen = [], [key for key in wanted if key not in self.values], set[str]()
        while todo:
            key = todo.pop()
            if key not in seen:
                seen.add(key)
                gone = [need for need in self.recipes[key].dependencies if need not in self.values]
                todo += gone
                ready += [] if gone else [key]
        return sorted(ready)

    def check_held(self, batch: Batch) -> None:
        """Check that what a batch under way takes is there or held by the client, and so not taken back."""
        for need in self.recipes[batch.key].dependencies:
            assert need in self.values or need in self.futures, f"{batch.key} waits for {need}, which was taken back"

    def run(self, key: str) -> None:
        """Run a task on a worker to which its inputs are sent."""
        task = self.recipes[key]
        taken = {need: self.values[need] for need in task.dependencies}
        self.begun.append(key)
        self.values[key] = task({key: sent(x) if isinstance(x, PartValue) else x for key, x in taken.items()})


@final
class BatchEngine:
    """An engine that submits batches. Implements `dagpu.cluster.backend.Engine`.

    Args:
        choose: chooses each transition.
        window: the most batches that a worker has at once.
        mischief: how often values are lost, workers end amid batches, and what cannot be made again is lost.
    """

    def __init__(self, choose: Callable[[int], int], window: int, mischief: int) -> None:
        self.choose = choose
        self.mischief = mischief
        self.scheduler = Scheduler()
        self.sizes: list[int] = []
        """The number of tasks of each batch."""
        self.times = Times()
        self._window = window

    def start(self, run: ClusterRun) -> None:
        """Run all tasks."""
        with mock.patch.object(dask_tasks, "get_worker", return_value=SimpleNamespace(name="w")):
            asyncio.run(self._run(run))

    async def _run(self, run: ClusterRun) -> None:
        client: Any = self.scheduler
        state, values = RunState(run, 0, BATCH_SECONDS, self.times), dict[Group, Any]()
        writer = GraphWriter(client, {}, {})
        try:
            while len(state.done) < len(state.tasks) or len(values) < len(state.fetched):
                batches = list(dict.fromkeys([state.batches.of(each.index) for each in self._admit(state)]))
                check_batches(state, batches)
                self.sizes += [len(batch.tasks) for batch in batches]
                await writer.submit(state, batches)
                self._step(state)
                self._note(state, values)
        except dask_tasks.SentError as failed:
            run.finish({}, {}, received_error(failed))
            return
        holds = {group: DaskHold(state.futures[group], "w", state.bytes_of(group)) for group in run.tasks.kept()}
        run.finish(holds, values)

    def _admit(self, state: RunState) -> Sequence[Any]:
        found = state.admit(Counter(), self._window, {})
        assert all(len(batches) <= self._window for batches in state.batches.under_way.values())
        return found

    def _step(self, state: RunState) -> None:
        """Do one transition."""
        under_way = {state.batches.of(index) for index in state.submitted - state.done}
        wanted = [key for batch in under_way for key in _keys(batch)]
        for batch in under_way:
            self.scheduler.check_held(batch)
        wanted += [state.keys[group] for group in state.fetched if group in state.futures]
        ready = self.scheduler.missing(wanted)
        assert ready, "nothing can run: batches wait for each other"
        what = self.choose(8) if self.mischief else 3
        self.mischief -= what < 3
        if what == 0:  # values are lost with a worker, and made again
            lost = sorted(self.scheduler.values)
            for key in lost[self.choose(len(lost) + 1) :]:
                if key in self.scheduler.recipes:
                    del self.scheduler.values[key]
        elif what == 1:  # a worker ends amid its batches
            state.suspects += sorted(under_way, key=lambda batch: batch.key)[self.choose(len(under_way)) :]
            state.take_apart()
        elif what == 2:  # arrays are lost that Dask cannot send again
            for future in state.futures.values():
                future.status = "cancelled" if self.choose(3) == 0 else future.status
            state.attempt += 1
            state.take_back_lost()
        else:
            self.scheduler.run(ready[self.choose(len(ready))])

    def _note(self, state: RunState, values: dict[Group, Any]) -> None:
        """Note the batches that are done, and fetch what the caller gets."""
        there = self.scheduler.values
        for batch in {state.batches.of(index) for index in state.submitted - state.done}:
            if all(key in there for key in _keys(batch)):
                for task in batch.tasks:
                    state.note_done(task)
        for group in state.fetched - set(values):
            if group in state.futures and group[0] in state.done and state.keys[group] in there:
                values[group] = sent(there[state.keys[group]])
                state.kept.discard(group)
                state.release_unused(group[0])

    # ---- the rest of an engine

    def cancel(self, run: ClusterRun) -> None:
        """Do nothing: a run is over when `start` returns."""

    def memory_info(self, worker: str, device: str) -> tuple[int, int]:
        """Return numbers."""
        return 1 << 30, 1 << 31

    def memory_used(self, device: str) -> int:
        """Return 0: nothing is counted."""
        return 0

    def scratch_bytes(self, worker: str, device: str, body: LibraryBody, operands: Sequence[Layout]) -> int:
        """Return 0: these workers are hosts."""
        return 0


def _keys(batch: Batch) -> list[str]:
    """Return the keys of what leaves a batch."""
    return [key for key, _, _ in batch.values]


def check_batches(state: RunState, batches: Sequence[Batch]) -> None:
    """Check that no task of a batch waits for a batch that it does not need, and that what each needs is before it."""
    for batch in batches:
        waits: dict[int, set[Batch]] = {}
        for task in batch.tasks:
            assert task.worker == batch.worker
            assert len(batch.tasks) == 1 or task.is_short
            needed = {state.batches.of(need) for need in task.needs if need not in state.done} - {batch}
            inside = [need for need in task.needs if need not in state.done and state.batches.of(need) is batch]
            assert all(need in waits for need in inside)
            waits[task.index] = needed.union(*[waits[need] for need in inside])
        assert all(each == waits[batch.tasks[0].index] for each in waits.values())


@contextmanager
def batching(engine: BatchEngine) -> Iterator[ClusterBackend]:
    """A cluster in this process with this engine, in parts of one instruction."""
    backend = ClusterBackend({each: ["host:0"] for each in WORKERS}, engine, CostModel(), 1e-9)
    add_nodes(backend.nodes, backend)
    try:
        yield backend
    finally:
        remove_nodes(backend.nodes)
