"""The context variables of the caller, in all functions of the user's that a run calls."""

from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import Any

import numpy as np
import pytest
import trio
from numpy.typing import NDArray

from dagpu import (
    DeviceOp,
    In,
    Out,
    RoundRobin,
    StreamInterpreter,
    Tensor,
    Tile,
    f32,
    flow,
    foreign,
    from_host,
    kernel,
    observe,
    pipeline,
    source,
    use_device,
    use_interpreter,
    value,
    zip_ops,
)
from dagpu.interop import new

Op = DeviceOp[Any, Any, Any]
request: ContextVar[float] = ContextVar("request", default=-1.0)
X = np.zeros(8, np.float32)


@kernel(cuda="__global__ void asked(Tile<float, 1> y, View<const float, 1> x) {}")
def asked(y: Out[f32], x: In[f32]) -> None:
    """y = the request"""


@asked.host
def _(y: Tile[f32], x: NDArray[f32]) -> None:
    y[...] = request.get()


@foreign
def asked_elsewhere(x: In[f32]) -> Tensor[f32]:
    """The request, by a foreign body."""
    return new(x)


@asked_elsewhere.host
def _(x: Any, out: Any) -> None:
    out[...] = request.get()


@pipeline
def asked_by_a_pipeline(x: Any) -> Op:
    return asked.new((8,), (4,))(from_host(x)).to_host()


WAYS: dict[str, Callable[[], Op]] = {
    "host_map": lambda: from_host(X).to_host().host_map(lambda _: request.get()),
    "host_map of a value": lambda: value(1).host_map(lambda _: request.get()),
    "map": lambda: from_host(X).to_host().map(lambda _: request.get()),
    "then": lambda: from_host(X).to_host().then(lambda _: value(request.get())),
    "a host body": lambda: asked.new((8,), (4,))(from_host(X)).to_host().map(lambda y: float(y[5])),
    "a foreign body": lambda: asked_elsewhere(from_host(X)).to_host().map(lambda y: float(y[5])),
    "a pipeline": lambda: asked_by_a_pipeline(X).map(lambda y: float(y[5])),
    "several lanes": lambda: zip_ops(*[from_host(X).to_host().host_map(lambda _: request.get()) for _ in range(4)]).map(
        lambda found: found[0] if len(set(found)) == 1 else found
    ),
}
on_each_backend = pytest.mark.parametrize("device", ["host:0", "explore:0"])


@pytest.mark.host_only("the bodies of the host, and of explored devices")
@on_each_backend
@pytest.mark.parametrize("way", WAYS)
def test_a_function_sees_the_context_of_the_caller(way: str, device: str) -> None:
    """By `sync()` and by `await`, in the first run and in later ones of the same op, and of another."""
    op = WAYS[way]()

    async def main(number: float) -> None:
        request.set(number)
        assert await op == number
        assert await WAYS[way]() == number

    with use_device(device), use_interpreter(StreamInterpreter(policy=RoundRobin(4))):
        for number in (1.0, 2.0, 3.0):
            request.set(number)
            assert op.sync() == number
            assert WAYS[way]().sync() == number
            trio.run(main, number + 10)
            assert copy_context().run(op.sync) == number


@pytest.mark.host_only("the bodies of the host")
@pytest.mark.parametrize("way", WAYS)
def test_tasks_see_their_own_contexts(way: str) -> None:
    """Of two tasks whose runs are under way at once, each has its own."""
    found: dict[float, Any] = {}

    async def ask(number: float) -> None:
        request.set(number)
        for _ in range(5):
            found.setdefault(number, set()).add(await WAYS[way]())

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for number in (1.0, 2.0, 3.0):
                nursery.start_soon(ask, number)

    trio.run(main)
    assert found == {number: {number} for number in (1.0, 2.0, 3.0)}


@pytest.mark.host_only("the bodies of the host")
@pytest.mark.parametrize("kind", ["run", "fold", "observe"])
@pytest.mark.parametrize("way", WAYS)
def test_feeds_and_flows_have_the_context_of_the_task_that_opens_them(way: str, kind: str) -> None:
    """The tasks of a flow are children of that task."""
    make = WAYS[way]

    async def main() -> list[float]:
        request.set(5.0)
        if kind == "observe":
            tick = source(0.0)
            found = []
            async with observe(zip_ops(make(), tick)) as values:
                for _ in range(3):
                    found.append((await values.next())[0])
                    tick.set(tick.get() + 1)
            return found
        numbers = flow(range(3))
        described: Any = (
            numbers.run(lambda _: make())
            if kind == "run"
            else numbers.fold(value(0), lambda s, _: zip_ops(value(s), make()))
        )
        async with described as feed:
            return [x async for x in feed]

    assert trio.run(main) == [5.0] * 3


@pytest.mark.host_only("NumPy computes in the host's bodies")
def test_errstate_reaches_the_bodies_of_the_host() -> None:
    """NumPy keeps it in a context variable: a division by zero in a body is what the caller says."""
    op = inverse.new((8,), (4,))(from_host(X)).to_host()
    for _ in range(2):
        with np.errstate(divide="ignore"):
            assert np.isinf(op.sync()).all()
        with np.errstate(divide="raise"), pytest.raises(FloatingPointError, match="divide by zero"):
            op.sync()


@kernel(cuda="__global__ void inverse(Tile<float, 1> y, View<const float, 1> x) { for (auto i : y) y[i] = 1 / x[i]; }")
def inverse(y: Out[f32], x: In[f32]) -> None:
    """y = 1 / x"""


@inverse.host
def _(y: Tile[f32], x: NDArray[f32]) -> None:
    y[...] = 1 / x[y.at]


def test_what_a_function_sets_stays_its_own() -> None:
    """A context is a copy: the caller, and the next run, do not see what a function of host_map sets."""

    def sets(_: Any) -> float:
        before = request.get()
        request.set(99.0)
        return before

    request.set(4.0)
    op = value(1).host_map(sets)
    assert [op.sync(), op.sync(), request.get()] == [4.0, 4.0, 4.0]
