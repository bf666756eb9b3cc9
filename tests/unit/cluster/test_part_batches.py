"""Short parts for one worker are one task of Dask, and everything else is as if each were its own."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

pytest.importorskip("distributed", reason="a cluster needs Dask: pip install 'dagpu[cluster]'")

from distributed.scheduler import KilledWorker

from dagpu import (
    ClusterLostError,
    In,
    Out,
    PartKilledWorkersError,
    Tile,
    empty,
    from_host,
    i32,
    kernel,
    plan_of,
    value,
    zip_ops,
)
from dagpu.cluster.backend import ClusterRun
from dagpu.cluster.dask_tasks import count_parts
from dagpu.cluster.part_batches import BATCH_SECONDS, FUNCTIONS, Times
from dagpu.cluster.run_state import RunState, drain_batches, send_again
from dagpu.cluster.tasks import INLINE
from dagpu.cluster.worker import RUNNER, PartValue
from tests.programs.named_kernels import step
from tests.programs.trials import random_dag
from tests.unit.cluster.adversary_cluster import interpreter
from tests.unit.cluster.batch_engine import BatchEngine, batching
from tests.unit.cluster.cluster_programs import add_one


@settings(max_examples=40)
@given(st.integers(0, 999), st.integers(0, 99), st.sampled_from([1, 2, 4, 64]))
def test_batches_give_the_same_bits(dag: int, seed: int, window: int) -> None:
    """Random DAGs, placed by chance, on a scheduler that runs batches in any order, makes lost values again, ends
    workers amid batches, and loses what it cannot make again. No batch waits for what it does not need, or for
    itself."""
    wanted = random_dag(dag, 12).sync()
    engine = BatchEngine(random.Random(seed).randrange, window, 0)
    with batching(engine) as backend, interpreter(backend, seed):
        for _ in range(2):
            engine.mischief = 4
            got = random_dag(dag, 12).sync()
            assert [*map(bytes, got)] == [*map(bytes, wanted)]


def _lane(x: Any, device: str, count: int = 1) -> Any:
    """An op that adds one `count` times on a device."""
    size = 4
    for _ in range(count):
        x = add_one(empty((size,), i32).on(device).partition((size,)), x).first().unpartition()
    return x


def _start(device: str) -> Any:
    return from_host(np.arange(4, dtype=i32)).on(device)


def _tasks_of(op: Any, engine: BatchEngine) -> tuple[Any, int]:
    """The result of an op, and the number of tasks of Dask that ran for it."""
    before = len(engine.scheduler.begun)
    found = op.sync()
    return found, len([key for key in engine.scheduler.begun[before:] if not key.startswith("dagpu-code")])


@pytest.mark.parametrize("window", [4, 64])
def test_a_fan_is_a_few_tasks(window: int) -> None:
    """Forty lanes of three parts are 4 tasks on each of 2 workers, and a chain of sixty parts on one is 2."""
    engine = BatchEngine(lambda n: 0, window, 0)
    with batching(engine) as backend, interpreter(backend, 0):
        fan = zip_ops(*[_lane(_start(f"w{at % 2}/host:0"), f"w{at % 2}/host:0").to_host() for at in range(40)])
        found, count = _tasks_of(fan, engine)
        assert [each.tolist() for each in found] == [[1, 2, 3, 4]] * 40
        assert count == 8
        assert max(engine.sizes) == 15
        found, count = _tasks_of(_lane(_start("w0/host:0"), "w0/host:0", 60).to_host(), engine)
        assert found.tolist() == [60, 61, 62, 63]
        assert count == 2


def test_a_part_that_may_take_long_is_alone() -> None:
    """One with a function of the host, one on more than 1 MiB, and one whose kernel is declared to take long."""
    engine = BatchEngine(lambda n: 0, 64, 0)
    with batching(engine) as backend, interpreter(backend, 0):
        backend.costs = backend.costs.declare({"step": 0.01})
        for count, op in (
            (6, zip_ops(*[value(at).host_map(str).on("w0/host:0") for at in range(6)])),
            (3, _large(INLINE // 4 + 1)),
            (2, step(_start("w0/host:0").partition((4,)), 2, 1).first().unpartition().to_host()),
        ):
            engine.sizes.clear()
            op.sync()
            assert engine.sizes.count(1) >= count


def test_a_function_is_alone_until_it_is_known_to_be_quick() -> None:
    """And again once it has taken long. What a worker gives back has the time of the function that made it."""
    engine = BatchEngine(lambda n: 0, 64, 0)

    def sizes() -> list[int]:
        engine.sizes.clear()
        found = zip_ops(*[value(at).host_map(str).on("w0/host:0") for at in range(12)]).sync()
        assert found == tuple(map(str, range(12)))
        return engine.sizes

    with batching(engine) as backend, interpreter(backend, 0):
        assert sizes() == [1] * 12
        made = [x for x in engine.scheduler.values.values() if isinstance(x, PartValue)]
        (function,) = {function for x in made for function in x.seconds}
        (task,) = backend.tasks_of(plan_of(value(0).host_map(str).on("w0/host:0")).program).tasks
        assert function == task.blob.function
        engine.times.note({function: 1e-5})
        assert sizes() == [3] * 4
        engine.times.note({function: 1.0})
        assert sizes() == [1] * 12


def test_times_of_old_functions_are_forgotten() -> None:
    """A process that makes functions without end keeps the times of the last ones."""
    times = Times()
    for at in range(FUNCTIONS + 10):
        times.note({str(at): 1.0})
    assert len(vars(times)["_seconds"]) == FUNCTIONS


def _large(size: int) -> Any:
    y = empty((size,), i32).on("w0/host:0").partition((size,))
    return add_one(y, from_host(np.zeros(size, i32)).on("w0/host:0")).first().unpartition().to_host()


def test_tensors_that_stay_have_keys_of_their_own() -> None:
    """So each is freed with its last handle, though one batch has made all of them."""
    engine = BatchEngine(lambda n: 0, 64, 0)
    with batching(engine) as backend, interpreter(backend, 0):
        kept = [*zip_ops(*[_lane(_start("w0/host:0"), "w0/host:0") for _ in range(6)]).sync()]
        assert max(engine.sizes) > 1
        held = len(engine.scheduler.futures)
        while kept:
            assert kept[-1].to_host().sync().tolist() == [1, 2, 3, 4]
            del kept[-1]
            held -= 1
            assert len(engine.scheduler.futures) == held


HOOK: list[Callable[[], object]] = [lambda: None]


def call_hook() -> None:
    """Call the hook of this process: a body travels with the values that it refers to, and a function by its name."""
    HOOK[0]()


@kernel(cuda="__global__ void hooked(Tile<int, 1> y, View<const int, 1> x) { for (auto i : y) y[i] = x[i]; }")
def hooked(y: Out[i32], x: In[i32]) -> None:
    """y = x, and a call of the hook."""


@hooked.host
def _(y: Tile[i32], x: NDArray[i32]) -> None:
    call_hook()
    y[...] = x[y.at]


def test_a_batch_is_under_way_until_its_last_part_is_done() -> None:
    """Also between two of its parts, so that a run which is cancelled, or is over, waits for all of it."""
    engine = BatchEngine(lambda n: 0, 64, 0)
    counts: list[int] = []
    HOOK[0] = lambda: counts.extend(RUNNER.count(run) for run in [*vars(RUNNER)["_running"]])
    try:
        with batching(engine) as backend, interpreter(backend, 0):
            x = hooked(empty((4,), i32).on("w0/host:0").partition((4,)), _start("w0/host:0"))
            x.first().unpartition().to_host().sync()
    finally:
        HOOK[0] = lambda: None
    assert counts == [2]  # the part and its batch
    assert not vars(RUNNER)["_running"]


@pytest.mark.parametrize("is_apart", [False, True])
def test_a_run_ends_when_no_worker_is_at_a_batch_that_was_taken_apart(is_apart: bool) -> None:
    """Dask may have begun it again before. It is not cancelled, since what the run has made may be made again later."""
    asked: list[tuple[Any, str]] = []

    class Client:
        async def run(self, ask: Any, run: str, **_: object) -> dict[str, int]:
            asked.append((ask, run))
            return {"tcp://one": 0, "tcp://two": 3 - len(asked)}

    state: Any = SimpleNamespace(is_apart=is_apart, run=SimpleNamespace(name="run"))
    asyncio.run(drain_batches(Client(), state, {"w0": "tcp://one", "w1": "tcp://two"}, 60.0))
    assert asked == [(count_parts, "run")] * (3 if is_apart else 0)


def test_batches_that_are_taken_apart_are_no_lost_arrays() -> None:
    """A run whose arrays are lost once is not given up because workers have ended amid batches before."""
    engine = BatchEngine(lambda n: 0, 64, 0)
    with batching(engine) as backend, interpreter(backend, 0):
        tasks = backend.tasks_of(plan_of(_lane(_start("w0/host:0"), "w0/host:0", 3).to_host()).program)
    state = RunState(ClusterRun("run", tasks, [], engine), 0, BATCH_SECONDS)
    alive: Any = SimpleNamespace(is_alive=lambda: True)
    for _ in range(2):
        for task in state.admit(Counter(), 64, {}):
            state.batches.of(task.index).submit_as("key")
        state.suspects = [state.batches.of(0)]
        state.take_apart()
    assert state.attempt == 2
    state.futures[0, 0] = SimpleNamespace(status="cancelled", key="key")
    state.shared["key"] = [(0, 0)]
    state.admit(Counter(), 64, {})
    send_again(alive, state, 0)
    state.futures[0, 0] = SimpleNamespace(status="cancelled", key="key")
    with pytest.raises(ClusterLostError, match="lost with their workers 2 times"):
        send_again(alive, state, 0)


def test_who_is_blamed_for_the_end_of_workers() -> None:
    """A batch under way is taken apart, also if what needs it says so. One that is done, and that Dask has made again
    for what needs it, is named with all of its places: nothing of it is left to run."""
    engine = BatchEngine(lambda n: 0, 64, 0)
    with batching(engine) as backend, interpreter(backend, 0):
        first = _lane(_start("w0/host:0"), "w0/host:0")
        op = _lane(first, "w1/host:0").to_host()
        tasks = backend.tasks_of(plan_of(op).program)
    state = RunState(ClusterRun("run", tasks, [], engine), 0, BATCH_SECONDS)
    batches = list(dict.fromkeys([state.batches.of(task.index) for task in state.admit(Counter(), 64, {})]))
    for batch in batches:
        state.submit_as(batch)
    maker, user = batches
    assert len(maker.tasks) > 1
    killed = KilledWorker(maker.key, SimpleNamespace(address="tcp://last"), 1)
    state.note_error(user, killed, ["tcp://one"])
    assert state.suspects == [maker]
    assert not state.errors
    for task in maker.tasks:
        state.note_done(task)
    state.note_error(user, killed, ["tcp://one"])
    assert state.suspects == [maker]
    (error,) = state.errors.values()
    assert isinstance(error, PartKilledWorkersError)
    for task in maker.tasks:
        assert all(place in str(error) for place in task.origins)


@kernel(cuda="__global__ void refuse(Tile<int, 1> y, View<const int, 1> x) { for (auto i : y) y[i] = x[i]; }")
def refuse(y: Out[i32], x: In[i32]) -> None:
    """Fail on a host."""


@refuse.host
def _(y: Tile[i32], x: NDArray[i32]) -> None:
    raise ValueError("wrong on purpose")


def test_an_error_in_a_batch_is_itself() -> None:
    """It has its type, the place of its op and the worker, and lent tensors are as they were, though parts of the same
    batch have changed copies of them."""
    engine = BatchEngine(lambda n: 0, 64, 0)
    with batching(engine) as backend, interpreter(backend, 0):
        t = _start("w0/host:0").sync()
        lent = step(t.borrow_mut().partition((4,)), 2, 1)
        bad = refuse(empty((4,), i32).on("w0/host:0").partition((4,)), _start("w0/host:0"))
        with pytest.raises(ValueError, match="wrong on purpose") as raised:
            zip_ops(lent, bad).sync()
        notes = " ".join(raised.value.__notes__)
        assert "test_part_batches.py" in notes
        assert "worker w" in notes
        assert max(engine.sizes) > 1
        assert t.borrow().to_host().sync().tolist() == [0, 1, 2, 3]
