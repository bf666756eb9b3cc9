"""Batches of short parts on a Dask cluster of two processes: workers that end amid one, cancellations, and errors."""

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from numpy.typing import NDArray

pytest.importorskip("distributed", reason="a cluster needs Dask: pip install 'dagpu[cluster]'")

from dagpu import (
    Cluster,
    In,
    Out,
    PartKilledWorkersError,
    Tile,
    empty,
    from_host,
    i32,
    kernel,
    use_interpreter,
    zip_ops,
)
from dagpu.cluster.engine import GraphWriter
from tests.conftest import only_deep
from tests.unit.cluster.cluster_programs import Await, add_one
from tests.unit.cluster.running_cluster import kill, running, until


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


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """For each worker, the number of parts of each batch that is submitted."""
    found: dict[str, list[int]] = {"w0": [], "w1": []}
    submit: Any = GraphWriter.submit

    async def noted(self: Any, state: Any, batches: Any) -> None:
        for batch in batches:
            found[batch.worker].append(len(batch.tasks))
        await submit(self, state, batches)

    monkeypatch.setattr(GraphWriter, "submit", noted)
    return found


def doing(what: Callable[[NDArray[i32]], object]) -> Any:
    """A kernel that does something on a host, and adds one."""

    @kernel(cuda="__global__ void do_it(Tile<int, 1> y, View<const int, 1> x) { for (auto i : y) y[i] = x[i] + 1; }")
    def do_it(y: Out[i32], x: In[i32]) -> None:
        """y = x + 1."""

    @do_it.host
    def _(y: Tile[i32], x: NDArray[i32]) -> None:
        what(x)
        y[...] = x[y.at] + i32(1)

    return do_it


def applied(step: Any, x: Any, device: str) -> Any:
    """An op of one kernel."""
    return step(empty((4,), i32).on(device).partition((4,)), x).first().unpartition()


def start(at: int, device: str) -> Any:
    return from_host(np.full(4, at, i32)).on(device)


def lanes(count: int, device: str) -> list[Any]:
    """Ops that need nothing of each other."""
    return [applied(add_one, start(at, device), device).to_host() for at in range(count)]


def end_process(x: object) -> None:
    """End the process of the worker."""
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_is_killed_amid_a_batch_costs_only_time(
    cluster: Cluster, sizes: dict[str, list[int]], tmp_path: Path
) -> None:
    """Its parts run again elsewhere, each by itself, and what they give has the same bits."""
    waiting = applied(doing(Await(tmp_path)), start(7, "w1/host:0"), "w1/host:0")
    after = applied(add_one, waiting, "w1/host:0").shared()
    op = zip_ops(after.to_host(), applied(add_one, after, "w0/host:0").to_host(), *lanes(30, "w1/host:0"))
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(cluster.run_sync(op)))
    thread.start()
    (begun,) = until(lambda: [*tmp_path.glob("begun-*")])
    assert max(sizes["w1"]) > 4
    sizes["w1"].clear()
    kill(cluster, int(begun.name.partition("-")[2]))
    (tmp_path / "go").touch()
    thread.join()
    assert [each.tolist() for each in results[0]] == [[9] * 4, [10] * 4, *[[at + 1] * 4 for at in range(30)]]
    assert len(sizes["w1"]) > 4
    assert max(sizes["w1"]) == 1


@only_deep
def test_a_part_that_kills_workers_is_found_among_others(cluster: Cluster, sizes: dict[str, list[int]]) -> None:
    """The error names its place, and not those of the parts that were sent together with it."""
    others = lanes(3, "w0/host:0")
    bad = doing(end_process)(empty((4,), i32).on("w0/host:0").partition((4,)), start(0, "w0/host:0"))
    op = zip_ops(bad.first().unpartition().to_host(), *others)
    with pytest.raises(PartKilledWorkersError, match="2 workers died") as raised:
        op.sync()
    assert max(sizes["w0"]) > 1
    place = re.search(r"test_real_batches\.py:(\d+)", str(raised.value))
    assert place is not None
    assert "doing(end_process)" in Path(__file__).read_text().splitlines()[int(place[1]) - 1]
    assert str(raised.value).count("test_real_batches.py:") == 1
    until(lambda: len(cluster.workers) == 2)
    assert [each.tolist() for each in zip_ops(*lanes(2, "w0/host:0")).sync()] == [[1] * 4, [2] * 4]


def test_a_cancellation_ends_a_batch_between_its_parts(
    cluster: Cluster, sizes: dict[str, list[int]], tmp_path: Path
) -> None:
    """The part under way ends first, those behind it in the batch never begin, and the next run is as any other."""
    first = applied(doing(Await(tmp_path)), start(0, "w0/host:0"), "w0/host:0")
    op = applied(doing(Await(tmp_path, "later")), first, "w0/host:0").to_host()
    ended: list[bool] = []

    async def run(scope: trio.CancelScope) -> None:
        with scope:
            await cluster.run(op)
        ended.append(scope.cancelled_caught)

    async def main() -> None:
        scope = trio.CancelScope()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, scope)
            await trio.to_thread.run_sync(until, lambda: [*tmp_path.glob("begun-*")])
            scope.cancel()
            assert [each.tolist() for each in await zip_ops(*lanes(2, "w1/host:0"))] == [[1] * 4, [2] * 4]
            assert not ended
            (tmp_path / "go").touch()
        assert ended == [True]

    trio.run(main)
    assert max(sizes["w0"]) > 2
    assert not [*tmp_path.glob("later-*")]


def test_an_error_in_a_batch_has_its_place_and_the_worker(cluster: Cluster, sizes: dict[str, list[int]]) -> None:
    """And nothing of the run is left behind."""

    def wrong(x: object) -> None:
        raise ValueError("wrong on purpose")

    bad = applied(doing(wrong), start(0, "w1/host:0"), "w1/host:0").to_host()
    with pytest.raises(ValueError, match="wrong on purpose") as raised:
        zip_ops(*lanes(6, "w1/host:0"), bad, *lanes(6, "w0/host:0")).sync()
    notes = " ".join(raised.value.__notes__)
    assert "test_real_batches.py" in notes
    assert "worker 1" in notes
    assert max(sizes["w1"]) > 1
    assert zip_ops(*lanes(1, "w1/host:0")).sync()[0].tolist() == [1] * 4
