"""Kernels whose module has variables that their launches change: the launches of a plan follow each other, and no two
runs launch such a kernel at the same time."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from dagpu import (
    BorrowError,
    DeviceOp,
    In,
    KernelArgumentError,
    Mesh,
    Out,
    RoundRobin,
    SharedTensor,
    empty,
    f32,
    from_host,
    kernel,
    observe,
    pipeline,
    plan_of,
    source,
    use_mesh,
    zip_ops,
)
from dagpu.testing import Execute, Launch, Plan, Record, Wait
from tests.simulated.each_device import where as where

N = 16
COUNTS = """
__device__ unsigned int begun;
extern "C" __global__ void {name}(float* y, const float* x) {{
    atomicAdd(&begun, 1);
    y[threadIdx.x] = x[threadIdx.x] + 1;
}}"""


def counting(name: str) -> Any:
    @kernel(cuda=COUNTS.format(name="counted"), abi="pointers", block=N)
    def counted(y: Out[f32], x: In[f32]) -> None: ...

    @counted.host(whole=True)
    def _(y: Any, x: NDArray[f32]) -> None:
        HOOK[0]()
        y[...] = x + 1

    return counted


HOOK: list[Callable[[], object]] = [lambda: None]
counted, counted_again = counting("counted"), counting("counted")


@kernel(
    cuda="__global__ void plain(float* y, const float* x) { y[threadIdx.x] = x[threadIdx.x] + 1; }",
    abi="pointers",
    block=N,
)
def plain(y: Out[f32], x: In[f32]) -> None: ...


@plain.host(whole=True)
def _(y: Any, x: NDArray[f32]) -> None:
    y[...] = x + 1


def plus_one(x: Any, by: Any = counted) -> Any:
    return by(empty((N,), f32).partition((N,)), x).first().unpartition()


def ones() -> SharedTensor[f32]:
    return from_host(np.ones(N, f32)).sync().share()


# ---- the order of launches
def unordered_pairs(plan: Plan, names: frozenset[str]) -> int:
    """Count the pairs of launches of kernels with variables that nothing orders: by the lanes and events alone."""
    before: list[set[int]] = [set() for _ in plan.lanes]
    at_event: dict[int, set[int]] = {}
    launches: list[int] = []
    missing = 0
    for number, step in enumerate(plan.steps):
        if isinstance(step, Record):
            at_event[step.event] = set(before[step.lane])
        elif isinstance(step, Wait):
            before[step.lane] |= at_event[step.event]
        elif isinstance(step, Execute):
            if isinstance(step.instruction, Launch) and step.instruction.kernel.name in names:
                missing += len(set(launches) - before[step.lane])
                launches.append(number)
            before[step.lane].add(number)
    return missing


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.sampled_from((0, 0, 1, 2))), min_size=2, max_size=12), st.integers(1, 5)
)
def test_launches_that_share_a_variable_follow_each_other(nodes: list[tuple[int, int]], lanes: int) -> None:
    """In any DAG, on any number of lanes: those of one text, also if it is declared twice. Others still overlap."""
    ops: list[Any] = [from_host(np.ones(N, f32)).shared()]
    for parent, which in nodes:
        ops.append(plus_one(ops[parent % len(ops)], (counted, counted_again, plain)[which]).shared())
    op = zip_ops(*[each.to_host() for each in ops]).schedule(RoundRobin(lanes))
    assert not unordered_pairs(plan_of(op), frozenset(("counted",)))
    for number, found in enumerate(op.sync()):
        assert_array_equal(found, np.full(N, depth(nodes, number) + 1, f32))


HIDDEN: dict[str, tuple[str, str]] = {
    "in a header": ('#include "state.cuh"\n', "share the variable 'begun'"),
    "by a macro": (
        "#define STATE(n) __attribute__((device)) unsigned n\nSTATE(begun);\n",
        "share the variable 'begun'",
    ),
    "in a header that a macro names": (
        '#define FILE "state.cuh"\n#include FILE\n',
        "may share a variable, as its text includes a file that a macro names",
    ),
}


@pytest.mark.parametrize("how", HIDDEN)
def test_launches_follow_each_other_where_the_variable_is_hidden(how: str, tmp_path: Path) -> None:
    """As if it stood in the source; a feed refuses the kernel and says why."""
    head, says = HIDDEN[how]
    (tmp_path / "state.cuh").write_text("__device__ unsigned begun;")
    (tmp_path / "counted.cu").write_text(
        head + COUNTS.format(name="counted").replace("__device__ unsigned int begun;", "")
    )

    @kernel(cuda=tmp_path / "counted.cu", abi="pointers", block=N)
    def counted(y: Out[f32], x: In[f32]) -> None: ...

    op = zip_ops(*[plus_one(ones(), counted).to_host() for _ in range(4)]).schedule(RoundRobin(4))
    assert not unordered_pairs(plan_of(op), frozenset(("counted",)))

    async def main() -> None:
        async with observe(plus_one(source(np.ones(N, f32)).then(from_host), counted).to_host()) as feed:
            await feed.next()

    with pytest.raises(KernelArgumentError, match=says):
        trio.run(main)


def depth(nodes: list[tuple[int, int]], number: int) -> int:
    steps = 0
    while number:
        number = nodes[number - 1][0] % number
        steps += 1
    return steps


def test_other_launches_may_overlap() -> None:
    """A kernel whose text has no such variable is ordered by what it reads and writes alone."""
    x = ones()
    op = zip_ops(*[plus_one(x.clone(), plain).to_host() for _ in range(4)]).schedule(RoundRobin(4))
    assert unordered_pairs(plan_of(op), frozenset(("plain",)))


@pytest.mark.usefixtures("where")
def test_ops_and_pipelines_give_what_they_should() -> None:
    """As an op, a pipeline that is called again and again, and a captured graph that is launched in another op."""
    x = ones()

    def four(a: Any) -> DeviceOp[Any]:
        return zip_ops(*[plus_one(plus_one(a)).to_host() for _ in range(4)])

    piped = pipeline(four)
    for _ in range(6):
        for found in (*four(x.clone()).sync(), *piped(x).sync()):
            assert_array_equal(found, np.full(N, 3, f32))
    graph = plus_one(x.clone()).graph()
    graph.launch().sync()
    both = zip_ops(graph.launch().map(lambda _: None), plus_one(x.clone()).to_host())
    assert_array_equal(both.sync()[1], np.full(N, 2, f32))


def test_on_a_mesh() -> None:
    """Launches that are placed on several devices give what they should."""
    with use_mesh(Mesh(["host:0", "host:1"])):
        op = zip_ops(*[plus_one(from_host(np.full(N, k, f32))).to_host() for k in range(5)])
        for k, found in enumerate(op.sync()):
            assert_array_equal(found, np.full(N, k + 1, f32))


# ---- runs at the same time
def test_two_runs_do_not_share_the_variable() -> None:
    """While one run launches the kernel, another one is refused, of an op and of a pipeline; afterwards it succeeds."""
    x, begun, go_on = ones(), threading.Event(), threading.Event()
    piped = pipeline(lambda a: plus_one(a).to_host())
    for _ in range(3):
        piped(x).sync()

    def hold() -> None:
        begun.set()
        assert go_on.wait(30)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            HOOK[0] = hold
            nursery.start_soon(awaited, plus_one(x.clone()).to_host())
            await trio.to_thread.run_sync(begun.wait, 30)
            HOOK[0] = lambda: None
            try:
                for call in (lambda: plus_one(x.clone(), counted_again).to_host(), lambda: piped(x)):
                    with pytest.raises(BorrowError, match=r"'counted', whose launches share the variable 'begun'"):
                        await call()
                assert_array_equal(await plus_one(x.clone(), plain).to_host(), np.full(N, 2, f32))
            finally:
                go_on.set()

    trio.run(main)
    assert_array_equal(piped(x).sync(), np.full(N, 2, f32))


async def awaited(op: Any) -> object:
    return await op


def test_a_feed_refuses_the_kernel() -> None:
    """What its updates find in the variable would depend on which of them ran before."""
    number = source(np.ones(N, f32))

    async def main() -> None:
        async with observe(plus_one(number.then(from_host)).to_host()) as feed:
            await feed.next()

    with pytest.raises(KernelArgumentError, match="kernel 'counted', whose launches share the variable 'begun'"):
        trio.run(main)
