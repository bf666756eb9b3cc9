"""A Dask cluster whose workers have a GPU: the bits are those of this process, also if a worker or a device is lost."""

import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("distributed", reason="a cluster needs Dask: pip install 'dagpu[cluster]'")

from dagpu import (
    Cluster,
    PartKilledWorkersError,
    StreamInterpreter,
    device,
    empty,
    from_host,
    i32,
    trace,
    use_interpreter,
    zeros,
)
from tests.gpu.support.gpu_kernels import wild
from tests.gpu.support.gpu_support import NAME
from tests.programs.meshes import Scatter
from tests.programs.named_kernels import step
from tests.programs.trials import random_dag
from tests.unit.cluster.cluster_programs import Await, add_one
from tests.unit.cluster.running_cluster import kill, running, until

BOTH = (f"w0/{NAME}", f"w1/{NAME}")


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[Cluster]:
    """A cluster of two workers that share the GPU."""
    with running(NAME) as found:
        yield found


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Iterator[Cluster]:
    """That cluster with both of its workers alive, as the interpreter of the test."""
    until(lambda: len(shared_cluster.workers) == 2)
    with use_interpreter(shared_cluster):
        yield shared_cluster


def passed_on(array: Any, count: int, wait: Any = None) -> Any:
    """An op of `count` kernels that goes from worker to worker, with a wait in the middle."""
    op = from_host(array).on(BOTH[0])
    for at in range(count):
        here = BOTH[at % 2]
        op = add_one(empty(array.shape, i32).on(here).partition(array.shape), op).first().unpartition()
        if wait is not None and at == count // 2:
            op = op.to_host().host_map(wait).on(here).then(from_host)
    return op.to_host()


def test_gpus_of_workers_have_names_and_memory(cluster: Cluster) -> None:
    """A device is named by its worker first; a result stays there, and its memory is freed with its handle."""
    assert tuple(each.name for each in cluster.mesh.devices) == BOTH
    there = device(BOTH[1])
    free, total = there.memory_info()
    assert 0 < free <= total
    t = from_host(np.zeros(1 << 20, np.int32)).on(BOTH[1]).sync()
    assert t.device.name == BOTH[1]
    assert there.memory_used() == 4 << 20
    step(t.borrow_mut().partition((1 << 20,)), 2, 1).sync()
    assert np.all(t.to_host().sync() == 1)
    gc.collect()
    assert there.memory_used() == 0


def test_random_dags_on_gpus_of_workers_give_the_same_bits(cluster: Cluster) -> None:
    """Placed by chance in parts of one instruction, four times each: from the third on parts are CUDA graphs."""
    for dag in range(6):
        with use_interpreter(StreamInterpreter(device(NAME))):
            wanted = random_dag(dag, 8).sync()
        with use_interpreter(StreamInterpreter(cluster.mesh.devices[0], Scatter(cluster.mesh, dag))):
            for _ in range(4):
                assert [*map(bytes, random_dag(dag, 8).sync())] == [*map(bytes, wanted)]


def test_values_go_from_gpu_to_gpu(cluster: Cluster) -> None:
    """Eight MiB through six kernels on two workers in turns; a trace has each worker's parts and its GPU's spans."""
    array = np.arange(1 << 21, dtype=i32)
    with trace() as found:
        assert np.array_equal(passed_on(array, 6).sync(), array + i32(6))
    assert {track.process for track in found.tracks} == {"w0", "w1"}
    labels = {(track.name, label) for track in found.tracks for label, *_ in track.spans}
    assert (NAME, "add_one") in labels
    assert any(name == "parts" and label.endswith("add_one") for name, label in labels)


def test_a_gpu_worker_that_is_killed_costs_only_time(cluster: Cluster, tmp_path: Path) -> None:
    """Its part waits on a file; the process is killed, and the part runs on the other worker."""
    array, results = np.arange(1000, dtype=i32), list[Any]()
    op = passed_on(array, 6, Await(tmp_path))
    thread = threading.Thread(target=lambda: results.append(cluster.run_sync(op)))
    thread.start()
    (begun,) = until(lambda: [*tmp_path.glob("begun-*")])
    kill(cluster, int(begun.name.partition("-")[2]))
    (tmp_path / "go").touch()
    thread.join()
    assert np.array_equal(results[0], array + i32(6))


@pytest.mark.skipif(not NAME.startswith("cuda"), reason="it needs a GPU that can be lost")
def test_a_part_that_loses_gpus_is_given_up(cluster: Cluster) -> None:
    """A kernel reads out of bounds: each worker that runs it ends. The op is named, and new workers are well."""
    with pytest.raises(PartKilledWorkersError, match=r"2 workers died.*test_gpu_cluster\.py:\d+"):
        wild(zeros((8,)).on(BOTH[0]).partition((8,)), 16).sync()
    until(lambda: len(cluster.workers) == 2)
    array = np.arange(1000, dtype=i32)
    assert np.array_equal(passed_on(array, 4).sync(), array + i32(4))
