"""Ops on a Dask cluster of two processes: the bits are those of one device, also if a process is killed on the way."""

import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

pytest.importorskip("distributed", reason="a cluster needs Dask: pip install 'dagpu[cluster]'")

from dagpu import (
    Cluster,
    PartKilledWorkersError,
    StreamInterpreter,
    VersionMismatchError,
    checkpoint,
    empty,
    from_host,
    i32,
    trace,
    use_interpreter,
    value,
    zip_ops,
)
from dagpu.cluster import dask_tasks
from dagpu.cluster.backend import ClusterRun
from tests.conftest import DEEP, MARKS, only_deep
from tests.programs.meshes import Scatter
from tests.programs.named_kernels import step
from tests.programs.trials import random_dag
from tests.unit.cluster.cluster_programs import Await, ReadSlowly, add_one, die, fail, folder_of, lose_device
from tests.unit.cluster.running_cluster import SECONDS, kill, process_of, running, until


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[Cluster]:
    """A cluster for all tests of this module: starting one takes seconds."""
    with running("host:0") as found:
        yield found


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Iterator[Cluster]:
    """That cluster with both of its workers alive, as the interpreter of the test."""
    until(lambda: len(shared_cluster.workers) == 2)
    with use_interpreter(shared_cluster):
        yield shared_cluster


@pytest.mark.deep
def test_random_dags_give_the_same_bits(cluster: Cluster) -> None:
    """Placed by chance in parts of one instruction, by `await` and by `sync`, and again with the plans that the workers
    have kept."""

    async def awaited(dag: int) -> Any:
        return await random_dag(dag, 8)

    for dag in range(40 if DEEP else 2):
        with use_interpreter(StreamInterpreter()):
            wanted = random_dag(dag, 8).sync()
        with use_interpreter(StreamInterpreter(cluster.mesh.devices[0], Scatter(cluster.mesh, dag))):
            results = [trio.run(awaited, dag), random_dag(dag, 8).sync()]
        for got in results:
            assert [*map(bytes, got)] == [*map(bytes, wanted)]


@only_deep
def test_other_versions_are_refused(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """If no worker has the versions of this process, a table says what differs."""
    mine = {**dask_tasks.versions_here(), "NumPy": "1.0"}
    monkeypatch.setattr(dask_tasks, "versions_here", lambda: mine)

    async def connect() -> None:
        async with Cluster.connect(cluster.scheduler, timeout=SECONDS):
            pass

    with pytest.raises(VersionMismatchError, match=rf"NumPy: 1.0 here, {np.__version__} on tcp://"):
        trio.run(connect)


def test_results_stay_on_their_worker_until_they_are_dropped(cluster: Cluster) -> None:
    """A handle names the worker's device, a lent tensor is written there, and memory is freed with the last handle."""
    device = cluster.mesh.devices[1]
    t = from_host(np.zeros(4, np.int32)).on("w1/host:0").sync()
    assert t.device.name == device.name == "w1/host:0"
    assert device.memory_used() == 16
    for _ in range(3):
        step(t.borrow_mut().partition((4,)), 2, 1).sync()
    assert t.borrow().to_host().sync().tolist() == [7] * 4
    assert cluster.workers[1].devices == (device,)
    del t
    gc.collect()
    until(lambda: device.memory_used() == 0)  # the thread of the cluster may be leaving the last run


def test_errors_of_user_code_are_themselves(cluster: Cluster) -> None:
    """The error of a function has its type, and notes with the place of the op and the worker."""
    with pytest.raises(ValueError, match="wrong on purpose") as raised:
        value(1).host_map(fail).on("w1/host:0").sync()
    notes = " ".join(raised.value.__notes__)
    assert "test_real_cluster.py" in notes
    assert "worker 1" in notes
    assert "predicted" in cluster.explain(random_dag(1, 8))


def test_a_trace_has_the_parts_and_the_instructions_of_workers(cluster: Cluster) -> None:
    """Each worker is a process of the timeline, with its parts and the instructions on its device; each instruction is
    within a part. Without a trace nothing is measured."""
    op: Any = from_host(np.arange(4, dtype=i32)).on("w0/host:0")
    for at in range(2):
        op = add_one(empty((4,), i32).on(f"w{at}/host:0").partition((4,)), op).first().unpartition()
    with trace() as found:
        assert op.to_host().sync().tolist() == [2, 3, 4, 5]
    by_place = {(track.process, track.name): track.spans for track in found.tracks}
    assert set(by_place) == {(f"w{at}", name) for at in range(2) for name in ("parts", "host:0")}
    for at in range(2):
        parts, instructions = by_place[f"w{at}", "parts"], by_place[f"w{at}", "host:0"]
        assert any(label.endswith("add_one") for label, *_ in parts)
        assert "add_one" in {label for label, *_ in instructions}
        for _, begin, end in instructions:
            assert any(first <= begin <= end <= last for _, first, last in parts)
    names = {each["args"]["name"] for each in found.events() if each["name"] == "process_name"}
    assert names == {"w0", "w1"}
    assert f"w1 host:0: {len(by_place['w1', 'host:0'])} spans, " in str(found)


def test_a_cancelled_run_ends_when_nothing_of_it_runs(cluster: Cluster, tmp_path: Path) -> None:
    """A cancellation waits for a function under way; parts that have not begun never do. Other runs go on."""
    ended: list[bool] = []

    async def run(scope: trio.CancelScope) -> None:
        with scope:
            first = from_host(np.arange(4, dtype=i32)).to_host().host_map(Await(tmp_path)).on("w0/host:0")
            await first.host_map(Await(tmp_path, "later")).on("w1/host:0")
        ended.append(scope.cancelled_caught)

    async def main() -> None:
        scope = trio.CancelScope()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, scope)
            await trio.to_thread.run_sync(until, lambda: [*tmp_path.glob("begun-*")])
            scope.cancel()
            assert await value(2).host_map(str).on("w1/host:0") == "2"
            assert not ended
            (tmp_path / "go").touch()
        assert ended == [True]

    trio.run(main)
    assert not [*tmp_path.glob("later-*")]


def connect_seconds(_: object) -> str:
    """How long a worker tries to reach another one."""
    from dask import config

    return str(config.get("distributed.comm.timeouts.connect"))


def test_a_killed_process_is_given_up_within_seconds(cluster: Cluster) -> None:
    """Workers and this process try for 3 s to reach it, also where more time is given to wait for a scheduler: until
    then what they fetch from it is not made again."""
    assert value(0).host_map(connect_seconds).sync() == "3.0 s"
    assert vars(vars(cluster)["_engine"])["_client"].rpc.timeout == 3.0


def test_a_run_that_is_cancelled_before_it_begins_ends(cluster: Cluster) -> None:
    """The loop of the cluster is busy meanwhile, so that the run and its cancellation come to it at once."""
    backend, engine = [vars(cluster)[name] for name in ("_backend", "_engine")]
    tasks = backend.tasks_of(cluster.plan_of(value(1).host_map(str)).program)
    run = ClusterRun("cancelled early", tasks, [None] * len(tasks.program.buffers), engine)
    go = threading.Event()
    vars(engine)["_bridge"].loop.call_soon_threadsafe(go.wait)
    engine.start(run)
    engine.cancel(run)
    go.set()
    until(run.done)
    assert not run.failures()


def _chain(array: Any, wait: Any) -> Any:
    """An op that needs a tensor of w1 on w1, and then on w0."""
    x = from_host(array).on("w1/host:0").shared()
    waited = x.to_host().host_map(wait).on("w1/host:0")
    size = array.size
    y = add_one(empty((size,), i32).on("w0/host:0").partition((size,)), x).first().unpartition()
    return zip_ops(waited, y.to_host())


@pytest.mark.parametrize("size", [4, pytest.param(1 << 19, id="sent before", marks=MARKS)])
def test_a_worker_that_is_killed_while_it_runs_costs_only_time(cluster: Cluster, tmp_path: Path, size: int) -> None:
    """Its parts run again elsewhere: small arrays travel with them, large ones are sent again."""
    array, results = np.arange(size, dtype=i32), list[Any]()
    waiting = _chain(array, Await(tmp_path))
    thread = threading.Thread(target=lambda: results.append(cluster.run_sync(waiting)))
    thread.start()
    (begun,) = until(lambda: [*tmp_path.glob("begun-*")])
    kill(cluster, int(begun.name.partition("-")[2]))
    (tmp_path / "go").touch()
    thread.join()
    first, second = results[0]
    assert first.tobytes() == array.tobytes()
    assert second.tobytes() == (array + i32(1)).tobytes()


@only_deep
def test_what_is_released_is_made_again_for_what_is_lost(cluster: Cluster, tmp_path: Path) -> None:
    """A chain on one worker from a large array, which Dask cannot make again: its parts have released what they took,
    and all of them run again when their worker is killed behind the last one."""
    array, results = np.arange(1 << 19, dtype=i32), list[Any]()
    op: Any = from_host(array).on("w1/host:0")
    for _ in range(3):
        y = empty(array.shape, i32).on("w1/host:0").partition(array.shape)
        op = add_one(y, op).first().unpartition()
    waiting = op.to_host().host_map(Await(tmp_path)).on("w1/host:0")
    thread = threading.Thread(target=lambda: results.append(cluster.run_sync(waiting)))
    thread.start()
    (begun,) = until(lambda: [*tmp_path.glob("begun-*")])
    kill(cluster, int(begun.name.partition("-")[2]))
    (tmp_path / "go").touch()
    thread.join()
    assert results[0].tobytes() == (array + i32(3)).tobytes()


@only_deep
def test_a_worker_that_is_killed_while_it_fetches_costs_only_time(cluster: Cluster, tmp_path: Path) -> None:
    """The value that it takes is still with the worker that has made it, and is fetched again."""
    results: list[Any] = []
    made = value(str(tmp_path)).host_map(ReadSlowly).on("w0/host:0")
    read = made.host_map(folder_of).on("w1/host:0")
    thread = threading.Thread(target=lambda: results.append(cluster.run_sync(read)))
    thread.start()
    (begun,) = until(lambda: [*tmp_path.glob("reading-*")])
    kill(cluster, int(begun.name.partition("-")[2]))
    (tmp_path / "go").touch()
    thread.join()
    assert results == [str(tmp_path)]


@only_deep
def test_a_tensor_whose_only_copy_is_lost_is_made_again(cluster: Cluster, tmp_path: Path) -> None:
    """By lineage, also after its run; one behind a checkpoint from the file, even if nothing else can be made again."""
    t = step(from_host(np.arange(4, dtype=i32)).on("w1/host:0").partition((4,)), 2, 1).first().unpartition().sync()
    large = np.arange(1 << 19, dtype=i32)
    saved = checkpoint(from_host(large).on("w1/host:0"), tmp_path / "large.npy").on("w1/host:0").sync()
    kill(cluster, process_of("w1/host"))
    assert t.to_host().sync().tolist() == [1, 3, 5, 7]
    assert saved.to_host().sync().tobytes() == large.tobytes()


@only_deep
def test_a_part_that_kills_workers_is_given_up(cluster: Cluster) -> None:
    """The error names the op and the workers."""
    with pytest.raises(PartKilledWorkersError, match=r"2 workers died.*test_real_cluster\.py:\d+.*tcp://"):
        value(1).host_map(die).sync()


@only_deep
def test_a_part_that_loses_devices_is_given_up(cluster: Cluster) -> None:
    """A worker whose device is lost ends, and another one begins; the part does not go on ending workers."""
    with pytest.raises(PartKilledWorkersError, match=r"2 workers died.*test_real_cluster\.py:\d+"):
        value(1).host_map(lose_device).sync()
    until(lambda: len(cluster.workers) == 2)
    assert value(1).host_map(str).on("w1/host:0").sync() == "1"


@only_deep
def test_runs_leave_no_threads_and_no_files(cluster: Cluster) -> None:
    """Fifty runs leave as many threads and open files as there were, and so no run leaves any.

    Dask keeps the connections between its processes for the next call: there are as many as calls were under way at
    once, and a busy machine, or a worker that has just started, may open one in any fifty runs. What runs leave, each
    fifty of them would.
    """

    def after_fifty_runs() -> tuple[int, int]:
        for _ in range(50):
            assert random_dag(3, 4).sync()
        gc.collect()
        return threading.active_count(), len([*Path("/proc/self/fd").iterdir()])

    counts = [after_fifty_runs()]
    for _ in range(5):
        counts.append(after_fifty_runs())
        if all(after <= before for before, after in zip(*counts[-2:], strict=True)):
            return
    pytest.fail(f"threads and open files after each fifty runs: {counts}")


@only_deep
@pytest.mark.parametrize("tenth", range(10))
def test_a_worker_may_be_killed_at_any_time(cluster: Cluster, tmp_path: Path, tenth: int) -> None:
    """A chain of twenty parts from worker to worker, of which one waits until one worker has been killed, or both."""
    op: Any = from_host(np.arange(4, dtype=i32))
    for at in range(20):
        here = f"w{at % 2}/host:0"
        op = add_one(empty((4,), i32).on(here).partition((4,)), op).first().unpartition()
        if at // 2 == tenth:
            op = op.to_host().host_map(Await(tmp_path)).on(here).then(from_host)
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(cluster.run_sync(op.to_host())))
    thread.start()
    (begun,) = until(lambda: [*tmp_path.glob("begun-*")])
    kill(cluster, int(begun.name.partition("-")[2]))
    if tenth % 2 == 0:  # the other one too, while the part runs again on the one or the other
        until(lambda: len(cluster.workers) == 2)
        running = until(lambda: {*tmp_path.glob("begun-*")} - {begun}).pop()
        (other,) = {process_of("w0/host"), process_of("w1/host")} - {int(running.name.partition("-")[2])}
        kill(cluster, other)
    (tmp_path / "go").touch()
    thread.join()
    assert results[0].tolist() == [20, 21, 22, 23]
