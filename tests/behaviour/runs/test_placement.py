"""Placement: the device and the interpreter that an op runs on."""

import dataclasses
import importlib.metadata
import threading
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast, final

import pytest
import trio

import dagpu
from dagpu import (
    Device,
    RoundRobin,
    StreamInterpreter,
    current_device,
    device,
    ones,
    plan_of,
    use_device,
    use_interpreter,
    value,
    zeros,
    zip_ops,
)
from dagpu.runtime import device_lookup as device_module
from dagpu.testing import HostBackend, Plan, Prepared, Program, driver_of
from tests.support.gates import Noting, T, run

# ---- placement


@pytest.mark.host_only("its devices, five of them")
def test_the_innermost_device_wins() -> None:
    """`.on` over `use_device`, an inner `.on` over an outer, and branches each for themselves."""
    with use_device("host:1") as one:
        assert current_device() is one
        assert zeros((2,)).sync().device == one
        assert zeros((2,)).on("host:2").sync().device.name == "host:2"
        with use_device(device("host:3")):
            assert zeros((2,)).sync().device.name == "host:3"
        assert current_device() is one
    assert current_device().name == "host:0"
    inner = zeros((2,)).on("host:1").on("host:2")
    assert inner.sync().device.name == "host:1"
    a, b = zip_ops(zeros((2,)).on("host:1"), zeros((2,))).on("host:2").sync()
    assert (a.device.name, b.device.name) == ("host:1", "host:2")
    chained = zeros((2,)).then(lambda t: zip_ops(value(t), zeros((1,)))).on("host:4").sync()
    assert {t.device.name for t in chained} == {"host:4"}


@pytest.mark.host_only("its devices, two of them")
def test_what_follows_in_a_later_stage_keeps_its_place() -> None:
    """A closure that waited for host data goes on under the placement it stands in."""
    op = zip_ops(zeros((2,)).to_host().then(lambda a: ones(a.shape)).on("host:1"), zeros((1,)))
    a, b = op.sync()
    assert (a.device.name, b.device.name) == ("host:1", "host:0")


def test_the_innermost_policy_wins() -> None:
    """A policy of one's own is one method; the inner placement holds for its part, the outer for the rest."""
    inner, outer = Noting(5), Noting(9)
    op = zip_ops(zeros((2,)).schedule(inner), ones((3,))).schedule(outer)
    plan = plan_of(op)
    keys = {lane.key for lane in plan.lanes}
    assert keys == {5, 9}
    assert inner.asked
    assert outer.asked
    alone = plan_of(zeros((2,)).schedule(inner).schedule(outer))
    assert {lane.key for lane in alone.lanes} == {5}
    with use_interpreter(StreamInterpreter(policy=Noting(3))):
        assert {lane.key for lane in plan_of(zeros((2,))).lanes} == {3}


def test_a_policy_need_not_be_hashable() -> None:
    """An ordinary dataclass, say."""

    @dataclasses.dataclass
    class Own:
        key: int

        def place(self, program: Program) -> Sequence[Hashable]:
            return [self.key] * len(program.instructions)

    assert ones((2,)).schedule(Own(1)).to_host().sync().tolist() == [1.0, 1.0]


@pytest.mark.host_only("its streams are threads")
def test_sync_on_puts_everything_on_that_stream() -> None:
    """One thread does all of the device work."""
    threads: set[int] = set()
    stream = device("host:1").stream()
    note = [value(i).host_map(lambda x: threads.add(threading.get_ident())) for i in range(8)]
    zip_ops(*note).sync_on(stream)
    assert len(threads) == 1
    assert zeros((2,)).sync_on(stream).device.name == "host:1"


@pytest.mark.host_only("its devices, four of them")
def test_an_interpreters_own_device_is_where_it_runs() -> None:
    """`StreamInterpreter("host:2")` does not ask for the current device."""
    with use_interpreter(StreamInterpreter("host:2")), use_device("host:1"):
        assert zeros((2,)).sync().device.name == "host:2"
    with use_interpreter(StreamInterpreter(device("host:3"), RoundRobin(2), verify=False)):
        assert zeros((2,)).sync().device.name == "host:3"


@final
class Recording:
    """An interpreter that writes down what it is given, and has another run it."""

    def __init__(self) -> None:
        self.ops: list[object] = []
        self._inner = StreamInterpreter()

    async def run(self, op: "dagpu.DeviceOp[T, Any, Any]", /) -> T:
        self.ops.append(op)
        return await self._inner.run(op)

    def run_sync(self, op: "dagpu.DeviceOp[T, Any, Any]", /) -> T:
        self.ops.append(op)
        return self._inner.run_sync(op)


# ---- interpreters and backends of one's own


@final
class Planning:
    """An interpreter that also captures, explains, plans and records; it writes down which of these it is asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._inner = StreamInterpreter()

    async def run(self, op: "dagpu.DeviceOp[T, Any, Any]", /) -> T:
        return await self._inner.run(op)

    def run_sync(self, op: "dagpu.DeviceOp[T, Any, Any]", /) -> T:
        return self._inner.run_sync(op)

    def graph(self, op: "dagpu.DeviceOp[T, Any, Any]", stream: dagpu.Stream | None, /) -> "dagpu.CudaGraph[T]":
        self.asked.append("graph")
        return self._inner.graph(op, stream)

    def explain(self, op: "dagpu.DeviceOp[Any, Any, Any]", /) -> str:
        self.asked.append("explain")
        return self._inner.explain(op)

    def plan_of(self, op: "dagpu.DeviceOp[Any, Any, Any]", /) -> Any:
        self.asked.append("plan_of")
        return self._inner.plan_of(op)

    def scope(self, stream: dagpu.Stream, /) -> "AbstractContextManager[dagpu.Scope]":
        self.asked.append("scope")
        return self._inner.scope(stream)


PLANNING: dict[str, Callable[[], object]] = {
    "graph": lambda: zeros((2,)).graph(),
    "explain": lambda: zeros((2,)).explain(),
    "plan_of": lambda: dagpu.plan_of(zeros((2,))),
    "scope": lambda: dagpu.CudaGraph.scope(dagpu.current_device().stream()),
}
"""Calls that need an interpreter that plans, by the name of its method."""


@pytest.mark.parametrize("name", PLANNING)
def test_the_interpreter_in_use_is_asked_for_plans_and_graphs(name: str) -> None:
    """`graph`, `explain`, `plan_of` and `scope` go to it like runs, and nowhere else."""
    mine = Planning()
    with use_interpreter(mine):
        PLANNING[name]()
    assert mine.asked == [name]
    PLANNING[name]()
    assert mine.asked == [name]


@pytest.mark.parametrize("name", PLANNING)
def test_an_interpreter_that_only_runs_is_not_passed_over(name: str) -> None:
    """No other interpreter plans in its place: the call is refused, with its place and the cure."""
    with use_interpreter(Recording()), pytest.raises(TypeError) as caught:
        PLANNING[name]()
    text = str(caught.value)
    assert f"{name}() at {__file__}:" in text
    assert "Recording" in text
    assert f"no method {name}" in text
    assert "StreamInterpreter" in text


def test_use_interpreter_sets_who_runs() -> None:
    """`sync`, `await` and `spawn` all go to it, within the block and nowhere else; tasks inherit it."""
    mine, op = Recording(), value(1)

    async def body() -> None:
        with use_interpreter(mine) as given:
            assert given is mine
            await op
            async with trio.open_nursery() as nursery:
                pending = dagpu.spawn(nursery, op)
            assert await pending == 1
        await op

    with use_interpreter(mine):
        assert op.sync() == 1
    assert mine.ops == [op]
    run(body)
    assert mine.ops == [op] * 3
    op.sync()
    assert mine.ops == [op] * 3


@final
class ToyBackend:
    """A third party's backend: devices `toy:0`, ..., which hand their plans to the host's."""

    submitted = 0

    def __init__(self) -> None:
        self._host = HostBackend()
        self._devices = [Device(cast(Any, "toy"), index, driver_of(device(f"host:{index}"))) for index in range(2)]

    @property
    def kind(self) -> Any:
        return "toy"

    def device_count(self) -> int:
        return len(self._devices)

    def device(self, index: int) -> Device:
        return self._devices[index]

    def prepare(self, plan: Plan) -> Prepared:
        ToyBackend.submitted += 1
        names = tuple(name.replace("toy", "host") for name in plan.devices)
        return self._host.prepare(dataclasses.replace(plan, devices=names))

    def spin(self) -> float:
        return 0.0


@pytest.mark.host_only("the toy runs on it")
def test_a_third_party_brings_a_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by the name of its entry point, listed among the devices, and given the plans for its devices."""
    entry = importlib.metadata.EntryPoint("toy", f"{__name__}:ToyBackend", device_module.GROUP)
    found = importlib.metadata.entry_points

    def entry_points(**asked: str) -> Any:
        if asked.get("group") != device_module.GROUP:
            return found(**asked)
        return [entry] if asked.get("name", "toy") == "toy" else []

    here = [d.name for d in dagpu.devices()]
    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    device_module.backend_names.cache_clear()
    try:
        before = ToyBackend.submitted
        with use_device("toy:1") as toy:
            assert toy.name == "toy:1"
            t = ones((3,)).sync()
            assert t.device is toy
            assert t.to_host().sync().tolist() == [1.0] * 3
        assert ToyBackend.submitted == before + 2
        assert [d.name for d in dagpu.devices()] == [*here, "toy:0", "toy:1"]
    finally:
        monkeypatch.undo()
        device_module.backend_names.cache_clear()
        device_module.backends.pop("toy", None)
