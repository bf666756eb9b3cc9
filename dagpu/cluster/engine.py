"""The engine of Dask: it submits the tasks of runs, and fetches their times.

Dask redoes what is lost with a worker, as long as something needs it. What Dask cannot redo is done here: arrays that
were sent to a worker before the run are sent again. Dask submits what it gets at once; here a task is submitted when
its worker has room for it: at most `window` batches of a run, and no more bytes than its devices have. Short tasks are
submitted together, as one task of Dask.
"""

import asyncio
import contextlib
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import count, islice
from typing import Any, Final, final
from weakref import WeakKeyDictionary

import numpy as np
from dask._task_spec import Task as DaskTask
from dask._task_spec import TaskRef
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from distributed import Client
from distributed.client import _wait as wait_for_futures

from dagpu.backends.host.measuring import SpanTrack
from dagpu.cluster import dask_tasks
from dagpu.cluster.backend import ClusterRun
from dagpu.cluster.blobs import Codes
from dagpu.cluster.connection import Bridge
from dagpu.cluster.part_batches import BATCH_SECONDS, Batch, Times
from dagpu.cluster.run_state import (
    POLL_SECONDS,
    Connection,
    DaskHold,
    ResultFetch,
    RunState,
    drain,
    drain_batches,
    send_again,
)
from dagpu.cluster.tasks import Group, Task, call_of, is_large, memory_of
from dagpu.cluster.worker import BatchCall, PartCall, register_frames
from dagpu.common.errors import ClusterError
from dagpu.common.layout import Layout
from dagpu.common.places import add_note
from dagpu.handles.device_handles import LibraryBody

register_frames()


@final
class DaskEngine:
    """Implements `dagpu.cluster.backend.Engine`.

    Args:
        bridge: the thread of Dask's loop.
        client: the client, which is asynchronous.
        addresses: the address of each worker that is alive and may run tasks. It changes as workers come and go.
        limits: the bytes of each memory; see `memory_of`.
        excluded: the addresses of workers that get no tasks.
        window: the most batches of a run that a worker has at once.
        allowed_failures: how often lost arrays are sent again.
        drain_seconds: the time after which a cancelled run that does not end is an error.
        direct: true if this process reaches the workers; otherwise results come through the scheduler.
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
        direct: bool,
    ) -> None:
        self.connection = Connection(client)
        self.graphs = GraphWriter(client, addresses, excluded)
        self.closed = False
        self.states: list[RunState] = []
        """The runs under way."""
        self.lost_workers: list[str] = []
        self.listeners: set[asyncio.Event] = set()
        """Events that are set when the progress of a run changes."""
        self._bridge = bridge
        self._client: Any = client
        self._addresses = addresses
        self._limits = limits
        self._window = window
        self._allowed_failures = allowed_failures
        self._drain_seconds = drain_seconds
        self._direct = direct
        self._times = Times()
        self._holds: weakref.WeakSet[DaskHold] = weakref.WeakSet()

    # ---- for runs, on any thread

    def start(self, run: ClusterRun) -> None:
        """Begin a run; see `Engine.start`."""
        if self.closed:
            raise ClusterError("the cluster is closed. Run the op inside the block of Cluster.connect or .local.")
        if not self.connection.is_alive():
            raise self.connection.error()
        self._bridge.loop.call_soon_threadsafe(self._begin, run)

    def cancel(self, run: ClusterRun) -> None:
        """Cancel a run; see `Engine.cancel`."""
        if not self.closed:
            self._bridge.loop.call_soon_threadsafe(self._cancel_now, run)

    def memory_info(self, worker: str, device: str) -> tuple[int, int]:
        """Return the free and the total memory of a device of a worker, in bytes."""
        found: tuple[int, int] = self._bridge.block(self._ask(worker, dask_tasks.memory_of, device))
        return found

    def memory_used(self, device: str) -> int:
        """Return the bytes of the tensors that are held for this process on a device, by its whole name."""
        return sum([hold.nbytes.get(device, 0) for hold in list(self._holds)])

    def scratch_bytes(self, worker: str, device: str, body: LibraryBody, operands: Sequence[Layout]) -> int:
        """Return the bytes of scratch memory that a library needs on a device of a worker."""
        return int(self._bridge.block(self._ask(worker, dask_tasks.scratch_of, device, body, tuple(operands))))

    def _memory_used(self) -> Counter[str]:
        """Return the bytes of the tensors in each memory."""
        found: Counter[str] = Counter()
        for hold in list(self._holds):
            for device, nbytes in hold.nbytes.items():
                found[memory_of(device)] += nbytes
        return found

    async def _ask(self, worker: str, function: Callable[..., Any], *arguments: Any) -> Any:
        address = self._addresses.get(worker)
        if address is None:
            raise ClusterError(f"worker {worker} is gone. Ask another one: cluster.workers lists those that are alive.")
        if not self.connection.is_alive():
            raise self.connection.error()
        try:
            return (await self._client.run(function, *arguments, workers=[address]))[address]
        except Exception as error:
            add_note(error, f"dagpu: on worker {worker}")
            raise

    # ---- in the loop

    def _begin(self, run: ClusterRun) -> None:
        state = RunState(run, len(self.lost_workers), BATCH_SECONDS, self._times)
        self.states.append(state)
        loop = asyncio.get_running_loop()
        state.task = loop.create_task(self._run(state))
        ending = loop.create_task(self._end_if_lost(state))
        state.task.add_done_callback(lambda _: ending.cancel())

    async def _end_if_lost(self, state: RunState) -> None:
        """End a run once the scheduler is gone, whatever it waits for."""
        await self.connection.ends()
        if not state.cancelled:
            state.cancel()

    def _cancel_now(self, run: ClusterRun) -> None:
        for state in self.states:
            if state.run is run and not state.cancelled:
                state.cancelled = True
                state.cancel()

    async def _run(self, state: RunState) -> None:
        """Run all tasks of a run. Whatever happens, the run is finished only when no worker is at a part of it."""
        error: BaseException | None = None
        fetch = ResultFetch(self._client, state, direct=self._direct)
        state.begun = True
        try:
            if state.cancelled:
                raise asyncio.CancelledError
            await self._drive(state, fetch)
            await drain_batches(self._client, state, self._addresses, self._drain_seconds)
        except BaseException as failed:
            error = failed
        fetch.stop()
        cancelled = state.cancelled and error is not None
        if error is not None:
            state.cancelled = True  # from now on a cancellation changes nothing
            ending = drain(self.connection, state, error, self._addresses, self._drain_seconds)
            error = await asyncio.shield(ending)
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
        if state.run.track is not None and self._addresses and self.connection.is_alive():
            with contextlib.suppress(Exception):  # a trace lacks the workers that cannot be asked any more
                await asyncio.shield(add_spans(self._client, state.run.name, self._addresses, state.run.track))
        self.states.remove(state)
        for watcher in state.watchers:
            watcher.cancel()
        state.futures.clear()
        state.sent.clear()
        self.changed()
        state.run.finish(holds, fetch.values, error, cancelled=cancelled)

    async def _drive(self, state: RunState, fetch: ResultFetch) -> None:
        """Submit tasks as there is room, until all are done and the values that the caller gets are here."""
        learnt = 0
        while True:
            for content in islice(fetch.values.values(), learnt, None):
                self._times.note(content.seconds)
            learnt = len(fetch.values)
            admitted = state.admit(self._memory_used(), self._window, self._limits)
            if admitted:
                batches = list(dict.fromkeys([state.batches.of(task.index) for task in admitted]))
                await self.graphs.submit(state, batches)
                for batch in batches:
                    watcher = asyncio.get_running_loop().create_task(self._watch(state, batch, fetch))
                    state.watchers.add(watcher)
                    watcher.add_done_callback(state.watchers.discard)
            if len(state.done) == len(state.tasks) and fetch.is_complete():
                return
            await state.changed.wait()
            state.changed.clear()
            self.changed()
            if state.errors:
                raise state.errors[min(state.errors)]
            if state.lost:
                send_again(self.connection, state, self._allowed_failures)
            if state.suspects:
                state.take_apart()

    async def _watch(self, state: RunState, batch: Batch, fetch: ResultFetch) -> None:
        """Wait for the values of a batch, and note how it ended."""
        futures = {groups[0]: state.futures[groups[0]] for _, _, groups in batch.values}
        while True:
            with contextlib.suppress(asyncio.CancelledError, Exception):  # what it raises shows in the statuses
                await wait_for_futures([*futures.values()])
            if state.cancelled or any(state.futures.get(group) is not future for group, future in futures.items()):
                return  # the run has ended, or the batch was submitted again
            statuses = {future.status for future in futures.values()}
            if not statuses & {"pending", "lost"}:  # Dask makes lost values again
                break
            await asyncio.sleep(POLL_SECONDS)
        if statuses == {"finished"}:
            for task in batch.tasks:
                state.note_done(task)
                fetch.note_done(task)
        elif "error" in statuses:
            failed = next(future for future in futures.values() if future.status == "error")
            error = await failed.exception()
            if any(state.futures.get(group) is not future for group, future in futures.items()):
                return
            state.note_error(batch, error, self.lost_workers[state.lost_before :])
        else:
            state.lost = True
        state.changed.set()

    # ---- what happens on the cluster

    def note_event(self, event: Any) -> None:
        """Note an event of the scheduler: a worker that is gone, with the keys that are made again."""
        _, message = event
        if message.get("action") != "remove-worker":
            return
        address = str(message.get("worker"))
        self._client.rpc.remove(address)  # a fetch would try to reach it until the time-out of Dask
        if not message.get("expected"):
            self.lost_workers.append(address)
        there, made = [
            [str(key) for key in message.get(f"{what}-tasks", ())] for what in ("processing", "lost-computed")
        ]
        for state in self.states:
            begun = [state.by_key[key] for key in there if key in state.by_key]
            state.suspects += [batch for batch in begun if len(batch.tasks) > 1]
            again = [batch for batch in begun if len(batch.tasks) == 1]
            again += [state.by_key[key] for key in made if key in state.by_key]
            state.redone += sum([len(batch.tasks) for batch in again])
            state.changed.set()
        self.changed()

    def changed(self) -> None:
        """Tell those who watch the progress."""
        for event in self.listeners:
            event.set()

    async def close(self) -> None:
        """Cancel all runs, and wait until they have ended."""
        self.closed = True
        for state in list(self.states):
            if not state.cancelled:
                state.cancelled = True
                state.cancel()
        ending = [state.task for state in self.states if state.task is not None]
        if ending:
            await asyncio.wait(ending)


# ---- task graphs
#
# `GraphWriter`: writes tasks as graphs of Dask, and submits them.

NOWHERE: Final = "tcp://127.0.0.1:1"
"""An address that no worker has."""


@final
class GraphWriter:
    """Submits tasks to the scheduler. It is used in the event loop alone.

    Args:
        client: the client, which is asynchronous.
        addresses: the address of each worker that is alive and may run tasks. It changes as workers come and go.
        excluded: the addresses of workers that get no tasks.
    """

    def __init__(self, client: Client, addresses: Mapping[str, str], excluded: Mapping[str, object]) -> None:
        self._client: Any = client
        self._addresses = addresses
        self._excluded = excluded
        self._sent_codes: WeakKeyDictionary[Codes, Any] = WeakKeyDictionary()
        """The future of the code of tasks, as long as there are any."""
        self._numbers = count()

    async def submit(self, state: RunState, batches: Sequence[Batch]) -> None:
        """Submit batches as one graph, with a layer for each worker, and keep their values alive."""
        addresses, only = dict(self._addresses), self._only()
        layers: dict[str, MaterializedLayer] = {}
        by_worker: dict[str, dict[str, DaskTask]] = {}
        wanted: dict[str, Sequence[Group]] = {}
        for batch in batches:
            state.submit_as(batch)
        for batch in batches:
            by_worker.setdefault(batch.worker, {}).update(await self._graph_of(state, batch, addresses))
            wanted.update({key: groups for key, _, groups in batch.values})
        for worker, graph in by_worker.items():
            address = addresses.get(worker)
            where = None if address is None else {"workers": [address], "allow_other_workers": True}
            if only is not None:
                where = {"workers": only}
            layers[f"{worker}-{state.run.name}-{next(self._numbers)}"] = MaterializedLayer(graph, annotations=where)
        whole = HighLevelGraph(layers, {name: set() for name in layers})
        for groups, future in zip(wanted.values(), self._client.get(whole, [*wanted], sync=False), strict=True):
            state.hold(groups, future)
        if only is not None:
            restricting = asyncio.get_running_loop().create_task(self._restrict_again([*wanted], only))
            state.watchers.add(restricting)
            restricting.add_done_callback(state.watchers.discard)

    async def _restrict_again(self, keys: Sequence[str], only: Sequence[str]) -> None:
        """Let submitted tasks run on workers that came before the scheduler knew the tasks: `Members` has set the
        addresses of those that it knew."""
        with contextlib.suppress(Exception):  # a scheduler that is gone ends the run
            await self._client.run_on_scheduler(dask_tasks.know_tasks, keys)
            addresses = [*self._addresses.values()]
            if addresses and addresses != only:
                await self._client.run_on_scheduler(dask_tasks.restrict_tasks, self._client.id, addresses)

    async def _graph_of(self, state: RunState, batch: Batch, addresses: Mapping[str, str]) -> dict[str, DaskTask]:
        """Return the tasks of Dask for a batch: the batch, and one more for each value if it has several."""
        refs: list[Any] = []
        indices: dict[str, int] = {}
        places = {task.index: place for place, task in enumerate(batch.tasks)}

        def index_of(key: str) -> int:
            if key not in indices:
                indices[key] = len(batch.tasks) + len(refs)
                refs.append(TaskRef(key))
            return indices[key]

        def source(wanted: Any) -> int:
            if isinstance(wanted, DaskHold):
                return index_of(wanted.key)
            place = places.get(wanted[0])
            return index_of(state.keys[wanted]) if place is None else place

        def sent(array: Any) -> int:
            return index_of(str(state.sent[id(array)].key))

        calls: list[PartCall] = []
        codes: list[int | None] = []
        for task in batch.tasks:
            for array in _arrays(state, task):
                if id(array) not in state.sent:
                    to = addresses.get(task.worker)
                    where = None if to is None else [to]
                    state.sent[id(array)] = await self._client.scatter(array, workers=where, hash=False)
            traced = state.run.track is not None
            calls.append(call_of(task, state.run.name, state.run.memory, source, sent, traced=traced))
            code = self._codes_of(task)
            codes.append(None if code is None else index_of(str(code.key)))
        gives = tuple([version for _, versions, _ in batch.values for version in versions])
        call = BatchCall(tuple(calls), tuple(codes), gives)
        found = {batch.key: DaskTask(batch.key, dask_tasks.run_batch, call, *refs)}
        for key, versions, _ in batch.values:
            if key != batch.key:
                found[key] = DaskTask(key, dask_tasks.select_versions, TaskRef(batch.key), versions)
        return found

    def _only(self) -> list[str] | None:
        """Return the addresses of the workers that a task may run on, if not on all. While there is none of them, the
        task waits for one: `Members` sets the addresses of tasks anew as workers come."""
        return ([*self._addresses.values()] or [NOWHERE]) if self._excluded else None

    def _codes_of(self, task: Task) -> TaskRef | None:
        """Return a reference to the code of a task, which every worker fetches once; None if there is none."""
        codes = task.blob.codes
        if not codes.content:
            return None
        future = self._sent_codes.get(codes)
        if future is None:
            key = f"dagpu-code-{next(self._numbers)}-{self._client.id}"
            made = {key: DaskTask(key, dask_tasks.same, codes.content)}
            (future,) = self._client.get(made, [key], sync=False, workers=self._only())
            self._sent_codes[codes] = future
        return TaskRef(future.key)


def _arrays(state: RunState, task: Task) -> list["np.ndarray[Any, Any]"]:
    """Return the arrays of the caller's that are too large to travel inside a task."""
    return [x for x in [state.run.memory[buffer] for _, buffer in task.given] if is_large(x)]


# ---- worker clocks
#
# The spans of traced runs: fetches them from the workers, and tells them in the time of this process.

_PINGS: Final = 5
"""The number of questions for the time of a worker. The quickest answer counts."""


def offset_of(answers: Sequence[tuple[float, float, float]]) -> float:
    """Return how far a worker's clock is ahead of this process's, in seconds.

    The time on the worker is taken to be that of the middle between question and answer, for the quickest answer: the
    error is at most half of the time that it took.

    Args:
        answers: for each question, the time here before it, the time on the worker, and the time here after it.
    """
    before, there, after = min(answers, key=lambda answer: answer[2] - answer[0])
    return there - (before + after) / 2


async def add_spans(
    client: Any, run: str, addresses: Mapping[str, str], track: Callable[[str, str], SpanTrack]
) -> None:
    """Add the spans of a run on the workers that are alive to a trace.

    Args:
        addresses: the address of each worker.
        track: returns the track of a name and a worker.
    """
    names = {address: worker for worker, address in addresses.items()}
    found = await client.run(dask_tasks.take_spans, run, workers=list(names), on_error="ignore")
    with_spans = [address for address, spans in found.items() if spans]
    offsets = await asyncio.gather(*[_offset(client, address) for address in with_spans])
    for address, offset in zip(with_spans, offsets, strict=True):
        for name, label, begin, end in found[address]:
            track(name, names[address]).add(label, begin - offset, end - offset)


async def _offset(client: Any, address: str) -> float:
    answers: list[tuple[float, float, float]] = []
    for _ in range(_PINGS):
        before = time.perf_counter()
        there = (await client.run(time.perf_counter, workers=[address]))[address]
        answers.append((before, there, time.perf_counter()))
    return offset_of(answers)
