"""Workers that come while a cluster is opened, or cannot run dagpu; and the end of a scheduler."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

pytest.importorskip("distributed", reason="a cluster needs Dask: pip install 'dagpu[cluster]'")

from dagpu import Cluster, ClusterLostError, VersionMismatchError, from_host, use_interpreter, value
from dagpu.cluster import dask_tasks, opening
from dagpu.cluster.connection import Bridge
from dagpu.cluster.engine import GraphWriter
from tests.unit.cluster.cluster_programs import Await
from tests.unit.cluster.running_cluster import SECONDS, until
from tests.unit.cluster.schedulers import join, start, stop


@pytest.fixture
def bridge() -> Iterator[Bridge]:
    """A thread for a scheduler."""
    bridge = Bridge("test-scheduler")
    yield bridge
    bridge.stop()


def describe_all_but_one(wanted: Any, dask_worker: Any = None) -> Any:
    """The answer of a worker, of which `node1` has no dagpu."""
    if dask_worker.name == "node1":
        raise ModuleNotFoundError("No module named 'dagpu'")
    return _describe(wanted, dask_worker)


def describe_none(wanted: Any, dask_worker: Any = None) -> Any:
    """The answer of a worker without dagpu."""
    raise ModuleNotFoundError("No module named 'dagpu'")


_describe = dask_tasks.describe_worker


def _connect(address: str) -> Any:
    return Cluster.connect(address, devices=["host:0"], timeout=SECONDS)


def test_a_worker_without_dagpu_is_left_out(bridge: Bridge, monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning names it at the line that opens the cluster, and ops run on the others. If there is no other one, that
    is an error with the same table."""
    scheduler, workers = bridge.block(start(None, 2))
    monkeypatch.setattr(dask_tasks, "describe_worker", describe_all_but_one)

    async def main() -> None:
        async with _connect(scheduler.address) as cluster:
            assert [each.name for each in cluster.mesh.devices] == ["node0/host:0"]
            with use_interpreter(cluster):
                assert await value(1).host_map(str) == "1"

    async def refused() -> None:
        async with _connect(scheduler.address):
            pass

    try:
        with pytest.warns(
            RuntimeWarning, match=r"1 of the workers get.*(?s:.*)dagpu: .* here, none \(Module.*tcp:"
        ) as seen:
            trio.run(main)
        assert seen[0].filename == __file__
        monkeypatch.setattr(dask_tasks, "describe_worker", describe_none)
        with pytest.raises(VersionMismatchError, match=r"dagpu: .* here, none \(ModuleNotFoundError"):
            trio.run(refused)
    finally:
        bridge.block(stop(scheduler, workers))


@pytest.mark.filterwarnings("ignore:.*of the workers get no work")
def test_work_goes_on_when_all_but_those_that_are_left_out_are_gone(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was to run on the workers that are gone runs on the next one that comes, and never on one that is left out:
    tensors that are made again, and ops that began while no worker was there."""
    scheduler, workers = bridge.block(start(None, 2))
    monkeypatch.setattr(dask_tasks, "describe_worker", describe_all_but_one)
    results: list[Any] = []

    async def run(op: Any) -> None:
        results.append((await op).tolist())

    async def main() -> None:
        async with _connect(scheduler.address) as cluster:
            with use_interpreter(cluster), trio.fail_after(SECONDS / 2):
                t = await from_host(np.arange(3, dtype=np.int32)).on("node0/host:0")
                await bridge.run(workers.pop(0).close())
                await trio.to_thread.run_sync(until, lambda: not cluster.workers)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(run, t.to_host())
                    nursery.start_soon(run, from_host(np.arange(3, 6, dtype=np.int32)).to_host().host_map(np.copy))
                    await trio.to_thread.run_sync(until, lambda: len(vars(vars(cluster)["_engine"])["states"]) == 2)
                    workers.append(await bridge.run(join(scheduler, 2)))
        assert sorted(results) == [[0, 1, 2], [3, 4, 5]]

    try:
        trio.run(main)
    finally:
        bridge.block(stop(scheduler, workers))


def test_a_worker_that_joins_while_tasks_are_on_their_way_runs_them() -> None:
    """The scheduler restricts the tasks that it knows when a worker comes. Tasks that were submitted before, and of
    which it hears later, are restricted again then; but only if workers have come or gone."""
    addresses = {"node0": "tcp://one"}
    calls: list[Any] = []

    class Client:
        id = "Client-7"

        async def run_on_scheduler(self, function: Any, *arguments: Any) -> None:
            calls.append((function.__name__, *arguments))
            if function is dask_tasks.know_tasks and "late" in arguments[0]:
                addresses["node2"] = "tcp://two"

    writer: Any = GraphWriter(Client(), addresses, {"tcp://other": {}})
    asyncio.run(writer._restrict_again(["early"], ["tcp://one"]))  # noqa: SLF001  # reason: no scheduler can be so late
    assert calls == [("know_tasks", ["early"])]
    calls.clear()
    asyncio.run(writer._restrict_again(["late"], ["tcp://one"]))  # noqa: SLF001
    assert calls == [("know_tasks", ["late"]), ("restrict_tasks", "Client-7", ["tcp://one", "tcp://two"])]


def test_a_worker_that_joins_while_the_cluster_is_opened_is_seen(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes when the others have said what they are, and before the events of the scheduler are followed; and one
    that goes at that time is not counted."""
    scheduler, workers = bridge.block(start(None, 2))
    made: Any = vars(opening)["_cluster_of"]

    def joined(*arguments: Any) -> Any:
        workers.append(bridge.block(join(scheduler, 2)))
        bridge.block(workers.pop(0).close())
        return made(*arguments)

    monkeypatch.setattr(opening, "_cluster_of", joined)

    async def main() -> None:
        async with _connect(scheduler.address) as cluster:
            wanted = {each.address for each in workers}
            await trio.to_thread.run_sync(until, lambda: {each.address for each in cluster.workers} == wanted)

    try:
        trio.run(main)
    finally:
        bridge.block(stop(scheduler, workers))


def test_nothing_tries_to_reach_a_worker_that_is_gone(bridge: Bridge) -> None:
    """A connection that is being made to a worker ends with an error once the scheduler says that the worker is gone,
    so that what was to be fetched there is made again. Dask would try it for as long as one waits for a scheduler."""
    scheduler, workers = bridge.block(start(None, 1))

    async def reach(engine: Any) -> None:
        nowhere = "tcp://127.0.0.1:1"
        connecting = asyncio.create_task(vars(engine)["_client"].rpc.connect(nowhere))
        await asyncio.sleep(0)
        engine.note_event((0.0, {"action": "remove-worker", "worker": nowhere}))
        with pytest.raises(OSError, match="Address removed"):
            await connecting

    async def main() -> None:
        async with _connect(scheduler.address) as cluster:
            with trio.fail_after(SECONDS / 2):
                engine = vars(cluster)["_engine"]
                await vars(engine)["_bridge"].run(reach(engine))

    try:
        trio.run(main)
    finally:
        bridge.block(stop(scheduler, workers))


_GONE = r"scheduler tcp://.* was lost.*open the cluster again"


def test_a_cluster_whose_scheduler_is_gone_refuses_runs_at_once(bridge: Bridge, tmp_path: Path) -> None:
    """A run under way raises, and says what to do; so does one that starts afterwards, also if another scheduler is at
    that address by then: neither waits for a time-out of Dask."""
    scheduler, workers = bridge.block(start(None, 1))
    port = scheduler.port

    async def under_way() -> None:
        with pytest.raises(ClusterLostError, match=_GONE):
            await value(np.zeros(1, np.int32)).host_map(Await(tmp_path))

    async def main() -> None:
        nonlocal scheduler, workers
        async with _connect(scheduler.address) as cluster:
            with use_interpreter(cluster), trio.fail_after(SECONDS / 2):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(under_way)
                    await trio.to_thread.run_sync(until, lambda: [*tmp_path.glob("begun-*")])
                    await bridge.run(scheduler.close())
                (tmp_path / "go").touch()
                await bridge.run(stop(scheduler, workers))
                with pytest.raises(ClusterLostError, match=_GONE):
                    await value(1).host_map(str)
                scheduler, workers = await bridge.run(start(None, 1, port))
                for _ in range(2):
                    with pytest.raises(ClusterLostError, match=_GONE):
                        await value(1).host_map(str)
                with pytest.raises(ClusterLostError, match=_GONE):
                    cluster.mesh.devices[0].memory_info()
        async with _connect(scheduler.address) as cluster:
            with use_interpreter(cluster):
                assert await value(1).host_map(str) == "1"

    try:
        trio.run(main)
    finally:
        (tmp_path / "go").touch()
        bridge.block(stop(scheduler, workers))
