"""CUDA graphs on the GPU: every kind of node, what changes from launch to launch, many at once, and what fails."""

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from numpy.typing import NDArray

from dagpu import (
    Device,
    In,
    KernelBoundsError,
    Out,
    RoundRobin,
    Tensor,
    Tile,
    empty,
    f32,
    from_host,
    full,
    kernel,
    ones,
    pipeline,
    zip_ops,
)
from dagpu.backends.cuda.graphs.instances import INSTANCES, PROMPT_NODES
from tests.gpu.support.gpu_kernels import add
from tests.gpu.support.gpu_support import NAME, child
from tests.programs.graph_trials import (
    bound,
    launching,
    mixture,
    mixture_in_numpy,
    prepared,
    program_of,
    results,
    run,
    texts,
    with_cells,
)

pytestmark = pytest.mark.skipif(not NAME.startswith("cuda"), reason="the host has no graphs of the driver's")


@kernel(
    cuda="""
__global__ void peek(Tile<float, 1> y, View<const float, 1> x, int at) {
    for (auto i : y) y[i] = x[int(i) + at];
}
""",
    checked=True,
)
def peek(y: Out[f32], x: In[f32], at: int) -> None:
    """y[i] = x[i + at]."""


@peek.host
def _(y: Tile[f32], x: NDArray[f32], at: int) -> None:
    y[...] = np.roll(x, -at)[y.at]


def chained(start: float, length: int) -> Any:
    """start + length, by so many launches."""
    op: Any = full((1024,), start)
    for _ in range(length):
        op = add(op.partition((256,)), ones((1024,))).first().unpartition()
    return op


# ---- what they give


def test_each_kind_of_node_with_other_arrays_and_numbers(cuda: Device) -> None:
    """Kernels, copies from and to the host, fills, rows at a pitch; each launch has its own addresses and numbers."""
    program, inputs = program_of(mixture(), RoundRobin(3))
    program, cells = with_cells(program, "scale")
    (source,) = [n for n, held in inputs.items() if isinstance(held, np.ndarray)]
    plan, kept = prepared(program), list[tuple[list[Any], list[bytes]]]()
    for number in range(24):
        array, factor = np.arange(40, dtype=f32).reshape(2, 20) + f32(number), number * 0.5 - 4
        found = run(plan, {**inputs, source: array, **dict.fromkeys(cells, factor)})
        assert texts(found) == texts(mixture_in_numpy(array, factor))
        if number % 3:
            kept.append((found, texts(found)))
    assert all(texts(found) == said for found, said in kept)
    assert plan.graphs.refused is None
    assert plan.graphs.instances == 1


def test_more_at_once_than_there_are_graphs(cuda: Device) -> None:
    """Each has its own result, whether it is a graph or goes through streams."""
    program, inputs = program_of(mixture())
    (source,) = [n for n, held in inputs.items() if isinstance(held, np.ndarray)]
    plan, arrays = prepared(program), [np.full((2, 20), n % 32, f32) for n in range(64)]
    under_way = []
    for array in arrays:
        bindings = bound(plan, {**inputs, source: array})
        under_way.append((plan.submit(bindings, graph=True), bindings))
    for array, (started, bindings) in zip(arrays, under_way, strict=True):
        assert started.wait()
        assert not started.failures()
        assert texts(results(plan, bindings)) == texts(mixture_in_numpy(array, 2.0))
    assert plan.graphs.refused is None
    assert 1 <= plan.graphs.instances <= INSTANCES


@pytest.mark.parametrize("ahead", [False, True])
def test_a_large_graph(cuda: Device, ahead: bool) -> None:
    """Branches and joins, thousands of nodes; instantiated ahead, and not."""
    branches = [chained(n, 300) for n in range(8)]
    program, inputs = program_of(zip_ops(*[branch.to_host() for branch in branches]), RoundRobin(8))
    plan = prepared(program)
    make = plan.before_graph
    assert make is not None
    assert len(plan.command_lists.encoded.launches) > PROMPT_NODES
    if ahead:
        make()
        assert plan.before_graph is None
    for _ in range(3):
        assert [array[5] for array in run(plan, inputs)] == [300.0 + n for n in range(8)]
    assert plan.graphs.refused is None
    assert plan.graphs.instances == 1


@pipeline
def step(x: Tensor[f32], n: float) -> Any:
    """x + n, by four launches."""
    op: Any = add(full((1024,), 0).partition((256,)), x).first()
    for _ in range(3):
        op = add(op, full((1024,), 0)).first()
    return zip_ops(op.unpartition(), mix(n)).then(lambda p: add(p[0].partition((256,)), p[1])).first().unpartition()


@kernel(cuda="__global__ void level(Tile<float, 1> y, float n) { for (auto i : y) y[i] = n; }")
def level(y: Out[f32], n: float) -> None:
    """y = n."""


@level.host
def _(y: Tile[f32], n: float) -> None:
    y[...] = n


def mix(n: float) -> Any:
    return level(empty((1024,)).partition((256,)), n).first().unpartition()


@pytest.mark.exclusive
def test_thousands_of_replays_take_no_memory(cuda: Device) -> None:
    """Inputs move, results are kept for a while, numbers change."""
    held: list[Any] = []

    def once(number: int) -> None:
        result = step(full((1024,), number % 7).sync(), float(number % 5)).sync()
        if number % 3 == 0:
            held.append((result, number))
        if len(held) > 8:
            tensor, of = held.pop(0)
            assert tensor.to_host().sync()[3] == of % 7 + of % 5

    for number in range(200):
        once(number)
    gc.collect()
    before = cuda.memory_info()[0]
    for number in range(200, 5200):
        once(number)
    gc.collect()
    assert before - cuda.memory_info()[0] < 4 << 20


def test_tasks_that_await_graphs(cuda: Device) -> None:
    """Many tasks call one pipeline at once; some are cancelled."""
    found: list[tuple[int, float]] = []

    async def call(number: int) -> None:
        x = await full((1024,), number)
        with trio.move_on_after(0 if number % 5 == 4 else 60):
            found.append((number, float((await step(x, 0.5).to_host())[7])))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for number in range(40):
                nursery.start_soon(call, number)

    for _ in range(5):
        found.clear()
        trio.run(main)
        assert len(found) >= 32
        assert all(value == number + 0.5 for number, value in found)


# ---- plans with memory of their own


def test_a_frozen_plan(cuda: Device) -> None:
    """Each launch takes what is in the array then, and rewrites the same results."""
    array = np.zeros((1024,), f32)
    op = zip_ops(from_host(array), chained(3, 5)).then(lambda p: add(p[1].partition((256,)), p[0]))
    program, inputs = program_of(op.first().unpartition().to_host())
    plan = prepared(program)
    bindings = bound(plan, inputs)
    frozen = plan.freeze(bindings)
    (result,) = [each for each in results(plan, bindings) if isinstance(each, np.ndarray)]
    token = program_of(ones((2,)).sync().to_host())[1]
    (held,) = token.values()
    outer = launching(frozen)
    for number in range(50):
        array[...] = number
        run(outer, {0: held})
        assert (result == 8 + number).all()


# ---- what fails


def test_bounds_are_checked_in_graphs(cuda: Device) -> None:
    """Only in the launches that break them."""
    x = ones((1024,)).share().sync()
    program, inputs = program_of(peek(empty((1024,)).partition((256,)), x, 0).first().unpartition().to_host())
    program, (cell,) = with_cells(program, "peek")
    plan = prepared(program)
    for at in (0, 3, 0, 9):
        bindings = bound(plan, {**inputs, cell: at})
        started = plan.submit(bindings, graph=True)
        assert started.wait()
        failures = started.failures()
        assert bool(failures) == bool(at)
        assert all(isinstance(failure.error, KernelBoundsError) for failure in failures)
    assert plan.graphs.refused is None


LOST = """
import gc
from dagpu import *

@kernel(cuda='''
__global__ void fall(Tile<float, 1> y, int n) {
    for (auto i : y) y[i] = n ? *reinterpret_cast<volatile float*>(16) : 1.f;
}
''')
def fall(y: Out[f32], n: int) -> None: ...

@pipeline
def step(n: int):
    return fall(empty((8,)).partition((8,)), n).first().unpartition()

for number in range(6):
    try:
        step(number // 5).sync()
    except DeviceLostError as error:
        print(type(error).__name__, number)
gc.collect()
"""


def test_a_device_that_a_graph_has_lost(cuda: Device, tmp_path: Path) -> None:
    """Says so, and the process ends by itself."""
    done = child(LOST, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "DeviceLostError 5\n"
    assert not done.stderr
