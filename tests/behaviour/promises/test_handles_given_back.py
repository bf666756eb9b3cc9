"""A run whose result is available holds no handle any more, on whatever thread it finished.

`try_unwrap()` says so: it succeeds only where no other handle to the memory is left. The cyclic collector is off, so
nothing is held in a cycle either.
"""

import gc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import numpy as np
import pytest
import trio

from dagpu import (
    DeviceOp,
    SharedTensor,
    f32,
    from_host,
    full,
    pipeline,
    spawn,
    use_device,
    value,
    zeros,
    zip_ops,
)
from tests.programs.arithmetic import add, scale
from tests.simulated.cuda import installed

SHAPE, TILE = (4, 4), (2, 4)
Op = DeviceOp[Any, Any, Any]


def one(x: SharedTensor[f32]) -> Op:
    return scale(zeros(SHAPE).partition(TILE), 2.0, x).first().unpartition()


def to_host(x: SharedTensor[f32]) -> Op:
    return one(x).to_host()


def branches(x: SharedTensor[f32]) -> Op:
    left, right = zip_ops(one(x), one(x)).unzip()
    return add(zeros(SHAPE).partition(TILE), left, right).first().unpartition().to_host()


def stages(x: SharedTensor[f32]) -> Op:
    return to_host(x).then(lambda array: add(zeros(SHAPE).partition(TILE), from_host(array), x)).last().map(type)


def on_a_worker(x: SharedTensor[f32]) -> Op:
    return to_host(x).host_map(np.sum)


def once(x: SharedTensor[f32]) -> Op:
    shared = one(x).shared()
    return zip_ops(shared, shared).map(len)


def fails_on_a_worker(x: SharedTensor[f32]) -> Op:
    return to_host(x).host_map(lambda _: 1 / 0)


def fails_in_a_closure(x: SharedTensor[f32]) -> Op:
    def fail(_: object) -> Op:
        raise ArithmeticError

    return value(x).then(fail)


SUCCEEDING: Final = (one, to_host, branches, stages, on_a_worker, once)
FAILING: Final = (fails_on_a_worker, fails_in_a_closure)


def blocking(x: SharedTensor[f32], build: Callable[[SharedTensor[f32]], Op]) -> None:
    """Run, with what it raises dropped as soon as it is caught."""
    try:
        build(x.clone()).sync()
    except ArithmeticError:
        pass


def in_tasks(x: SharedTensor[f32], build: Callable[[SharedTensor[f32]], Op]) -> None:
    """Several at once, awaited and spawned; the last look at the handle is a task's."""

    async def awaited(op: Awaitable[Any]) -> None:
        await op

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(awaited, build(x.clone()))
            pending = [spawn(nursery, build(x.clone())) for _ in range(3)]
            for each in pending:
                await each
        pending.clear()
        del each
        x.try_unwrap()

    trio.run(main)


def by_a_pipeline(x: SharedTensor[f32], build: Callable[[SharedTensor[f32]], Op]) -> None:
    """Called four times: traced, found again, and as a graph."""
    call = pipeline(graph_from=2)(build)
    for _ in range(4):
        try:
            call(x.clone()).sync()
        except ArithmeticError:
            pass


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    """Nothing but the last reference frees anything."""
    gc.disable()
    yield
    gc.enable()


PLACES: Final[dict[str, Callable[[], AbstractContextManager[object]]]] = {
    "host": nullcontext,
    "explore": lambda: use_device("explore:0"),
    "cuda": installed,
}


@pytest.mark.filterwarnings("ignore:.*is traced again in each run")
@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize(
    ("way", "build"),
    [
        *((in_tasks, build) for build in SUCCEEDING),
        *((way, build) for way in (blocking, by_a_pipeline) for build in (*SUCCEEDING, *FAILING)),
    ],
)
def test_a_run_that_is_over_holds_no_handle(
    build: Callable[[SharedTensor[f32]], Op], way: Callable[..., None], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the result is returned, or the error dropped, the last handle can be unwrapped."""
    monkeypatch.setenv("DAGPU_SPIN_US", "0")
    with PLACES[where]():
        for _ in range(3):
            x = full(SHAPE, 3.0).sync().share()
            way(x, build)
            if way is not in_tasks:
                x.try_unwrap()
