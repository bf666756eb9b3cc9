"""`GraphWriter`: writes tasks as graphs of Dask, and submits them."""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, Final, final
from weakref import WeakKeyDictionary

import numpy as np
from dask._task_spec import Task as DaskTask
from dask._task_spec import TaskRef
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from distributed import Client

from dagpu.cluster.engine.run_state import DaskHold, RunState
from dagpu.cluster.parts.part_blobs import Codes
from dagpu.cluster.tasks import Group, Task, call_of, is_large
from dagpu.cluster.worker import dask_tasks

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

    async def submit(self, state: RunState, batch: Sequence[Task]) -> None:
        """Submit tasks as one graph, with a layer for each worker, and keep their values alive."""
        addresses = dict(self._addresses)
        layers: dict[str, MaterializedLayer] = {}
        by_worker: dict[str, dict[str, DaskTask]] = {}
        wanted: list[Group] = []
        for task in batch:
            by_worker.setdefault(task.worker, {}).update(await self._graph_of(state, task, addresses))
            wanted += state.values_of(task)
        for worker, graph in by_worker.items():
            address, only = addresses.get(worker), self._only()
            where = None if address is None else {"workers": [address], "allow_other_workers": True}
            if only is not None:
                where = {"workers": only}
            layers[f"{worker}-{state.run.name}-{next(self._numbers)}"] = MaterializedLayer(graph, annotations=where)
        whole = HighLevelGraph(layers, {name: set() for name in layers})
        keys = [state.key_of(group) for group in wanted]
        for group, future in zip(wanted, self._client.get(whole, keys, sync=False), strict=True):
            state.hold(group, future)

    async def _graph_of(self, state: RunState, task: Task, addresses: Mapping[str, str]) -> dict[str, DaskTask]:
        """Return the tasks of Dask for a task: the part, and one more for each value if it has several."""
        refs: list[Any] = []
        indices: dict[str, int] = {}

        def index_of(key: str) -> int:
            if key not in indices:
                indices[key] = len(refs)
                refs.append(TaskRef(key))
            return indices[key]

        def source(wanted: Any) -> int:
            if isinstance(wanted, DaskHold):
                return index_of(wanted.key)
            # a value of this submission has no future yet
            return index_of(str(state.futures[wanted].key) if wanted in state.futures else state.key_of(wanted))

        for array in _arrays(state, task):
            if id(array) not in state.sent:
                to = addresses.get(task.worker)
                where = None if to is None else [to]
                state.sent[id(array)] = await self._client.scatter(array, workers=where, hash=False)

        def sent(array: Any) -> int:
            return index_of(str(state.sent[id(array)].key))

        call = call_of(task, state.run.name, state.run.memory, source, sent, traced=state.run.track is not None)
        whole = state.task_key(task)
        found = {whole: DaskTask(whole, dask_tasks.run_task, call, self._codes_of(task), *refs)}
        if len(task.groups) > 1:
            for at, versions in enumerate(task.groups):
                key = f"{whole}-{at}"
                found[key] = DaskTask(key, dask_tasks.select_versions, TaskRef(whole), versions)
        return found

    def _only(self) -> list[str] | None:
        """Return the addresses of the workers that a task may run on, if not on all. While there is none of them, the
        task waits for one: `Members` sets the addresses of tasks anew as workers come."""
        return ([*self._addresses.values()] or [NOWHERE]) if self._excluded else None

    def _codes_of(self, task: Task) -> Any:
        """Return a reference to the code of a task, which every worker fetches once."""
        codes = task.blob.codes
        if not codes.content:
            return {}
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
