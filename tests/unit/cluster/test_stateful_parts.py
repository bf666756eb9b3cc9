"""Kernels with variables of a module on a cluster: their parts follow each other, and no two change one at once."""

import gc
import random
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("distributed", reason="a cluster needs Dask: pip install 'dagpu[cluster]'")

from dagpu import In, Out, StreamInterpreter, empty, f32, from_host, kernel, plan_of, use_interpreter, value, zip_ops
from dagpu.cluster.blobs import Decoder
from dagpu.cluster.engine import GraphWriter
from dagpu.cluster.tasks import Task, call_of
from dagpu.cluster.worker import PartRunner
from dagpu.testing import Launch
from tests.unit.cluster.adversary_cluster import cluster, interpreter

N = 16
HOOK: list[Callable[[], object]] = [lambda: None]


def call_hook() -> None:
    """Call the hook of this process: a body travels with the values that it refers to, and a function by its name."""
    HOOK[0]()


@kernel(
    cuda="""__device__ unsigned int begun;
extern "C" __global__ void counted(float* y, const float* x) {
    atomicAdd(&begun, 1);
    y[threadIdx.x] = x[threadIdx.x] + 1;
}""",
    abi="pointers",
    block=N,
)
def counted(y: Out[f32], x: In[f32]) -> None: ...


@counted.host(whole=True)
def _(y: Any, x: NDArray[f32]) -> None:
    call_hook()
    y[...] = x + 1


def plus_one(x: Any) -> Any:
    return counted(empty((N,), f32).partition((N,)), x).first().unpartition()


def several() -> Any:
    x = from_host(np.ones(N, f32)).shared()
    return zip_ops(*[plus_one(plus_one(x)).to_host() for _ in range(4)])


@pytest.mark.parametrize("seconds", [1e-9, 1e-5, 1.0])
def test_the_parts_give_what_they_should(seconds: float) -> None:
    """In parts of any size, on workers that die, with parts that run again, three times with one plan."""
    with cluster(random.Random(3).randrange, seconds) as (backend, engine), interpreter(backend, 3):
        for _ in range(3):
            engine.kills, engine.redone = 2, 2
            for found in several().sync():
                np.testing.assert_array_equal(found, np.full(N, 3, f32))


def test_parts_that_change_a_variable_of_one_device_follow_each_other() -> None:
    """Each needs the one before, wherever they end up to run."""
    with cluster(lambda n: 0, 1e-9) as (backend, _), use_interpreter(StreamInterpreter(backend.mesh.devices[0])):
        tasks = backend.tasks_of(plan_of(several()).program).tasks
    launches: list[Task] = []
    for task in tasks:
        program = Decoder().decode(task.blob.content, task.blob.codes.content)
        states = {each.kernel.state for each in program.instructions if isinstance(each, Launch)}
        if states:
            assert states == {counted.spec.state}
            launches.append(task)
    assert len(launches) == 8
    before = {task.index: {*task.needs} for task in tasks}
    for task in tasks:
        for need in task.needs:
            before[task.index] |= before[need]
    for first, second in pairwise(launches):
        assert first.index in before[second.index]


def test_a_worker_runs_one_such_part_at_a_time() -> None:
    """Those of other runs wait: the body of the kernel finds the lock of its variables taken, and it is free behind."""
    with cluster(lambda n: 0, 1.0) as (backend, _), use_interpreter(StreamInterpreter(backend.mesh.devices[0])):
        program = plan_of(plus_one(from_host(np.ones(N, f32))).to_host()).program
        (task,) = backend.tasks_of(program).tasks
    memory = [np.ones(N, f32)] * len(program.buffers)
    runner, taken = PartRunner(), list[bool]()

    def locks() -> list[threading.Lock]:
        return [*vars(runner)["_locks"].values()]

    HOOK[0] = lambda: taken.extend(lock.locked() for lock in locks())
    try:
        runner.run(call_of(task, "run", memory, lambda _: 0, lambda _: 0), task.blob.codes.content, [])
    finally:
        HOOK[0] = lambda: None
    assert taken == [True]
    assert [lock.locked() for lock in locks()] == [False]


# ---- the code of parts
class Client:
    """A client of Dask that keeps what it is asked for as long as it is held."""

    id = "client"

    def get(self, graph: Any, keys: list[str], **_: object) -> list[Any]:
        return [Future(key) for key in keys]


class Future:
    def __init__(self, key: str) -> None:
        self.key = key


def new_function(number: int) -> Callable[[Any], Any]:
    return lambda x: (x, number)


def test_code_is_kept_as_long_as_a_plan_names_it() -> None:
    """Plans of new functions, one after the other, leave none of them, here and at the scheduler; equal code is one."""
    with cluster(lambda n: 0, 1.0) as (backend, _), interpreter(backend, 1):
        encoder = vars(backend)["_encoder"]
        client: Any = Client()
        writer = GraphWriter(client, {}, {})

        def tasks_of(number: int) -> Any:
            op = value(number).host_map(new_function(number))
            return backend.tasks_of(plan_of(op).program).tasks

        def kept() -> list[int]:
            gc.collect()
            known = [vars(encoder)[name] for name in ("_by_thing", "_by_digest", "_codes")]
            return [len(each) for each in (*known, vars(writer)["_sent_codes"])]

        ((first,), (again,)) = tasks_of(1), tasks_of(1)
        assert first.blob.codes is again.blob.codes
        sent = vars(GraphWriter)["_codes_of"]
        assert sent(writer, first).key == sent(writer, again).key
        assert kept() == [1, 1, 1, 1]
        for number in range(2, 9):
            for task in tasks_of(number):
                sent(writer, task)
        del task, first, again
        assert kept() == [0, 0, 0, 0]
