"""Running: placement, locks, cancellation, failures, and what a trio task may rely on. Nothing sleeps."""

import dataclasses
import gc
import importlib.metadata
import re
import threading
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, TypeVar, cast, final

import numpy as np
import pytest
import trio
from numpy.typing import NDArray
from trio.testing import assert_checkpoints, wait_all_tasks_blocked

import dagpu
from dagpu import (
    BorrowError,
    Device,
    In,
    MovedError,
    NestedRunError,
    Out,
    RoundRobin,
    SingleStream,
    StreamInterpreter,
    Tile,
    current_device,
    device,
    dup,
    f32,
    from_host,
    full,
    kernel,
    ones,
    plan_of,
    use_device,
    use_interpreter,
    value,
    zeros,
    zip_ops,
)
from dagpu.backends.base import Prepared
from dagpu.backends.host import HostBackend
from dagpu.device import driver_of
from dagpu.lowering.plan import Plan
from dagpu.lowering.program import Program
from dagpu.runtime import device as device_module
from tests.places import place
from tests.test_handles import line

T = TypeVar("T")
PATIENCE = 30.0
"""Seconds after which a test calls it a hang."""


@final
class Gate:
    """Device work that stops in the middle until it is let on."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.open = threading.Event()
        self.ended = 0

    def __call__(self, x: T) -> T:
        """For `host_map`: block until the gate is open."""
        self.started.set()
        assert self.open.wait(PATIENCE)
        self.ended += 1
        return x

    async def reached(self) -> None:
        """Until the work stands at the gate."""
        assert await trio.to_thread.run_sync(self.started.wait, PATIENCE)


GATES: dict[int, Gate] = {}


@kernel(cuda="__global__ void hold(Tile<float, 1> y, View<const float, 1> x, int gate) {}")
def hold(y: Out[f32], x: In[f32], gate: int) -> None:
    """y += x, once gate number `gate` is open. On the host alone: no kernel of a GPU waits for Python."""


@hold.host
def _(y: Tile[f32], x: NDArray[f32], gate: int) -> None:
    GATES[gate](None)
    y[...] += x[y.at]


@kernel(cuda="__global__ void add(Tile<float, 1> y, View<const float, 1> x) { for (auto i : y) y[i] += x[i]; }")
def add(y: Out[f32], x: In[f32]) -> None:
    """y += x."""


@add.host
def _(y: Tile[f32], x: NDArray[f32]) -> None:
    y[...] += x[y.at]


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Gate number 0; opened at the end, so that a failed test leaves no thread behind."""
    GATES[0] = Gate()
    yield GATES[0]
    GATES[0].open.set()


def run(body: Callable[[], Any]) -> None:
    """`body` in a trio loop, failing where it hangs."""

    async def main() -> None:
        with trio.fail_after(PATIENCE):
            await body()

    trio.run(main)


def noting(kept: list[Any], result: T) -> Callable[[Any], T]:
    """A function that writes down what it is called with."""

    def note(x: Any) -> T:
        kept.append(x)
        return result

    return note


# ---- the ways of running


def test_every_way_of_running_gives_the_same() -> None:
    """`await`, `sync`, `sync_on`, `schedule` and `on` change where an op runs, never what it gives."""
    op = add(zeros((4,)).partition((2,)), ones((4,))).first().unpartition().to_host()
    here, there = device(place(0)), place(1)
    for way in (op, op.schedule(SingleStream()), op.schedule(RoundRobin(2)), op.on(there), op.on(here)):
        assert way.sync().tolist() == [1.0] * 4
        stream = (device(there) if there in devices_of(way) else here).stream()
        assert way.sync_on(stream).tolist() == [1.0] * 4

        async def body(way: Any = way) -> None:
            assert (await way).tolist() == [1.0] * 4

        run(body)


@pytest.mark.parametrize("spin", ["0", "20", "2000"])
def test_completion_by_spinning_and_by_sleeping(spin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a wait spins before it sleeps, the result is the same."""
    monkeypatch.setenv("DAGPU_SPIN_US", spin)
    assert zeros((3,)).to_host().sync().tolist() == [0.0] * 3

    async def body() -> None:
        for _ in range(20):
            assert (await zeros((3,)).to_host()).tolist() == [0.0] * 3

    run(body)


def test_a_spin_time_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the variable's name, what it holds, and an example."""
    monkeypatch.setenv("DAGPU_SPIN_US", "soon")
    with pytest.raises(ValueError, match=re.escape("DAGPU_SPIN_US='soon' is not a number of microseconds")):
        value(1).sync()


@pytest.mark.parametrize(
    "op", [value(3), value(3).map(str), zip_ops(value(1), value(2)), zeros((2,)), ones((2,)).to_host()], ids=range(5)
)
def test_await_is_a_checkpoint(op: Any) -> None:
    """With device work and without: it lets others run, and sees a cancellation."""

    async def body() -> None:
        with assert_checkpoints():
            await op
        with trio.CancelScope() as scope:
            scope.cancel()
            await op
        assert scope.cancelled_caught
        with assert_checkpoints():
            await op

    run(body)


def test_a_remembered_value_is_a_checkpoint_too() -> None:
    """The fast path of `shared()` on its second run."""
    op = zeros((2,)).shared()

    async def body() -> None:
        await op
        with assert_checkpoints():
            await op

    run(body)


def test_handles_that_a_run_returns_are_complete() -> None:
    """Their data is there: another loop, thread or stream may read it at once."""
    t = trio.run(lambda: _awaited(full((4,), 7)))
    assert t.to_host().sync_on(current_device().stream()).tolist() == [7.0] * 4


async def _awaited(op: "dagpu.DeviceOp[T, Any, Any]") -> T:
    return await op


# ---- placement


def devices_of(op: "dagpu.DeviceOp[Any, Any, Any]") -> set[str]:
    return set(plan_of(op).devices)


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


@final
class Noting:
    """A policy of one's own: lane `key` for everything, and how often it was asked."""

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.asked = 0

    def place(self, program: Program) -> Sequence[Hashable]:
        self.asked += 1
        return [self.key] * len(program.instructions)


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


# ---- interpreters and backends of one's own


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
        assert [d.name for d in dagpu.devices()] == ["host:0", "toy:0", "toy:1"]
    finally:
        monkeypatch.undo()
        device_module.backend_names.cache_clear()
        device_module.backend.cache_clear()


# ---- borrows are locks for the length of a run


def reading(t: Any) -> Any:
    """An op that reads `t`, lent, in a run that stops at gate 0."""
    read = add(zeros((4,)).partition((4,)), t.borrow()).first().unpartition()
    return zip_ops(read.to_host(), value(0).host_map(GATES[0])).first()


def writing(t: Any) -> Any:
    """An op that writes to `t`, lent, in a run that then stops at gate 0."""
    written = add(t.borrow_mut().partition((4,)), ones((4,))).first().unpartition()
    return written.to_host().host_map(GATES[0])


def refused(t: Any, *, reads: bool) -> str:
    """Runs an op on the lent `t` that must be refused before its other branch is launched; what it says."""
    ran: list[int] = []
    part: Any = dup(t.borrow()) if reads else add(t.borrow_mut().partition((4,)), ones((4,)))
    with pytest.raises(BorrowError) as caught:
        zip_ops(value(1).host_map(ran.append), part.map(lambda _: None)).sync()
    assert ran == []
    return str(caught.value)


def test_readers_share_and_a_writer_is_refused(gate: Gate) -> None:
    """Any number of runs read a tensor at once; one that would write it meanwhile is a BorrowError at its start."""
    t = ones((4,)).sync()

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_awaited, reading(t))
            await gate.reached()
            # A stream of its own, or it would stand behind the other run.
            assert (await dup(t.borrow()).to_host().schedule(Noting(9))).tolist() == [1.0] * 4
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                said = refused(t, reads=False)
            assert f"wants to write a tensor of 16 bytes on {current_device().name} that is being read" in said
            assert said.count(__file__) == 2
            assert "Await that run first" in said
            gate.open.set()

    run(body)
    add(t.borrow_mut().partition((4,)), ones((4,))).sync()
    assert t.to_host().sync().tolist() == [2.0] * 4


def test_a_writer_excludes_all_others(gate: Gate) -> None:
    """While a run writes a lent tensor, another that reads or writes it is refused, and may come again later."""
    t = ones((4,)).sync()
    late = add(t.borrow_mut().partition((4,)), ones((4,))).map(lambda _: None)

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_awaited, writing(t))
            await gate.reached()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                assert "wants to read" in refused(t, reads=True)
                assert "that is being written" in refused(t, reads=False)
            with pytest.raises(BorrowError):
                await late
            gate.open.set()
        await late  # refused before anything was submitted, so it owns its handles still

    run(body)
    assert t.to_host().sync().tolist() == [3.0] * 4


def test_what_is_lent_for_writing_is_alone_while_it_is_only_read(gate: Gate) -> None:
    """A run that reads a `TensorMut` holds it alone from its start, for it may write it later: another that would read
    or write the tensor meanwhile is refused."""
    t = ones((4,)).sync()
    read = add(zeros((4,)).partition((4,)), value(t.borrow_mut()))
    late = zip_ops(read.map(lambda _: None), value(0).host_map(GATES[0]))

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_awaited, late)
            await gate.reached()
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", RuntimeWarning)
                    assert "that is being written" in refused(t, reads=True)
                    assert "that is being written" in refused(t, reads=False)
            finally:
                gate.open.set()

    run(body)
    assert t.to_host().sync().tolist() == [1.0] * 4


@pytest.mark.parametrize("end", ["success", "failure", "cancellation"])
def test_locks_are_released_however_a_run_ends(end: str, gate: Gate) -> None:
    """After success, failure and cancellation the tensor may be lent again."""
    t = ones((4,)).sync()

    def fail(_: object) -> None:
        raise RuntimeError("as planned")

    async def body() -> None:
        op = writing(t)
        if end == "failure":
            gate.open.set()
            with pytest.raises(RuntimeError, match="as planned"):
                await op.host_map(fail)
        elif end == "success":
            gate.open.set()
            await op
        else:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_awaited, op)
                await gate.reached()
                nursery.cancel_scope.cancel()
                gate.open.set()
        await add(t.borrow_mut().partition((4,)), ones((4,)))

    run(body)
    assert t.to_host().sync().tolist() == [3.0] * 4


def staged(t: Any, ran: list[Any]) -> Any:
    """An op that lends `t` for writing, but only once a number has come from the host."""
    number = value(1).host_map(noting(ran, 2.0))
    return scale(t.borrow_mut().partition((4,)), number)


@kernel(cuda="__global__ void scale(Tile<float, 1> y, float by) { for (auto i : y) y[i] *= by; }")
def scale(y: Out[f32], by: dagpu.Lazy[float]) -> None:
    """y *= by."""


@scale.host
def _(y: Tile[f32], by: float) -> None:
    y[...] *= by


def test_a_borrow_that_a_later_stage_uses_is_locked_at_the_start(gate: Gate) -> None:
    """The op shows it, so its conflict is found before anything is launched."""
    t = ones((4,)).sync()
    ran: list[Any] = []

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_awaited, reading(t))
            await gate.reached()
            try:
                with pytest.raises(BorrowError):
                    await staged(t, ran).schedule(Noting(9))
            finally:
                gate.open.set()
        assert ran == []

    run(body)


def test_two_stages_of_one_op_conflict_as_its_branches_do() -> None:
    """One part reads a lent tensor, a later stage of another writes it: BorrowError."""
    t = ones((4,)).sync()
    with pytest.raises(BorrowError):
        zip_ops(dup(t.borrow()), staged(t, [])).sync()


# ---- cancellation


def test_cancellation_drains_what_is_under_way(gate: Gate) -> None:
    """`Cancelled` is raised only after the body that was running has ended; what had not begun never does."""
    ran: list[int] = []
    where = current_device()
    gc.collect()
    gc.collect()  # what earlier tests left in cycles
    before = where.memory_used()
    # One stream, so the second call cannot have begun while the first stands at the gate.
    op = zip_ops(ones((64,)).host_map(gate), value(1).host_map(ran.append)).schedule(SingleStream())

    async def child() -> None:
        try:
            await op
        except trio.Cancelled:
            assert gate.ended == 1
            ran.append(-1)
            raise

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child)
            await gate.reached()
            nursery.cancel_scope.cancel()
            for _ in range(10):  # the drain holds up nobody but the task that was cancelled
                with trio.CancelScope(shield=True):
                    await trio.lowlevel.checkpoint()
            assert ran == []
            gate.open.set()
        assert ran == [-1]
        first, _ = await op
        assert first.shape == (64,)
        assert ran == [-1, 1]

    run(body)
    gc.collect()
    assert where.memory_used() == before


def test_a_run_cancelled_before_it_began_keeps_its_handles() -> None:
    """Nothing was submitted, so the op owns what it owned, and may be run again."""
    t = ones((4,)).sync()
    op = dup(t).to_host()

    async def body() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            await op
        assert scope.cancelled_caught
        assert (await op).tolist() == [1.0] * 4
        with pytest.raises(MovedError):
            await op

    run(body)


def test_a_run_that_failed_or_was_cancelled_midway_drops_its_handles(gate: Gate) -> None:
    """Once submitted, they are gone: the op says so when it is run again, and the memory is free."""
    where = current_device()
    gc.collect()
    gc.collect()  # what earlier tests left in cycles
    before = where.memory_used()
    added = add(ones((4,)).sync().partition((4,)), ones((4,)))
    op = zip_ops(added, value(0).host_map(gate))
    assert where.memory_used() == before + 16

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_awaited, op)
            await gate.reached()
            nursery.cancel_scope.cancel()
            gate.open.set()
        with pytest.raises(MovedError, match="a run of the op that owned it"):
            await op

    run(body)
    gc.collect()
    assert where.memory_used() == before


def test_a_cancelled_run_does_not_stop_one_that_waits_for_it(gate: Gate) -> None:
    """The value of `shared()` is made by one run; if that is cancelled, the one that waits makes it itself."""
    made: list[int] = []

    def make(x: int) -> int:
        made.append(x)
        gate(x)
        return x + 1

    op = value(1).host_map(make).shared()
    got: list[int] = []

    async def waiter() -> None:
        got.append(await op)

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()

            async def first() -> None:
                with scope:
                    await op

            nursery.start_soon(first)
            await gate.reached()
            nursery.start_soon(waiter)
            await wait_all_tasks_blocked()
            scope.cancel()
            gate.open.set()
        assert (made, got, scope.cancelled_caught) == ([1, 1], [2], True)
        assert await op == 2
        assert made == [1, 1]

    run(body)


@pytest.mark.host_only("kernels' host bodies")
def test_a_kernel_body_that_runs_is_drained_too(gate: Gate) -> None:
    """Cancelled while a kernel's body stands in the middle: it goes on to its end, and the tensor it writes is free."""
    t = ones((4,)).sync()

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_awaited, hold(t.borrow_mut().partition((4,)), ones((4,)), 0))
            await gate.reached()
            nursery.cancel_scope.cancel()
            gate.open.set()
        assert gate.ended == 1

    run(body)
    assert t.to_host().sync().tolist() == [2.0] * 4


# ---- failures


def boom(x: object) -> Any:
    raise KeyError(x)


def test_one_failure_is_raised_as_itself_with_a_note() -> None:
    """A kernel's body, a `host_map`, a closure: the user's exception, unchanged, and where its op was built."""
    for build in (
        lambda: value(1).host_map(boom),
        lambda: value(1).map(boom),
        lambda: value(1).then(boom),
        lambda: value(1).inspect(boom),
        lambda: zeros((2,)).to_host().map(boom),
        lambda: zip_ops(zeros((2,)), value(1).host_map(boom)),
    ):
        op = build()
        built = f"{__file__}:{build.__code__.co_firstlineno}"

        async def body(op: Any = op, built: str = built) -> None:
            with pytest.raises(KeyError) as caught:
                await op
            assert any(built in note for note in caught.value.__notes__)
            assert len(caught.value.__notes__) == 1

        run(body)
        with pytest.raises(KeyError) as caught:
            op.sync()
        assert any(built in note for note in caught.value.__notes__)


@pytest.mark.host_only("kernels' host bodies")
def test_a_failing_kernel_body_names_its_launch() -> None:
    """The note says which kernel, and where it was called."""

    @kernel(cuda="__global__ void bad(Tile<float, 1> y) {}")
    def bad(y: Out[f32]) -> None: ...

    @bad.host
    def _(y: Tile[f32]) -> None:
        raise ArithmeticError("in a tile")

    op = bad(zeros((4,)).partition((2,)))
    built = line(1)
    with pytest.raises(ArithmeticError, match="in a tile") as caught:
        op.sync()
    assert caught.value.__notes__ == [f"dagpu: in the host body of kernel bad, launched at {built}"]


@pytest.mark.parametrize("policy", [SingleStream(), RoundRobin(3)], ids=repr)
def test_several_failures_are_one_group(policy: Any) -> None:
    """Every branch that fails is in it, in the order of the plan, on every policy; the others ran to their end."""
    for _ in range(5):
        ran: list[int] = []
        parts = [value(i).host_map(boom if i % 2 else ran.append) for i in range(6)]
        with pytest.raises(ExceptionGroup, match="3 ops of one run failed") as caught:
            zip_ops(*parts).schedule(policy).sync()
        assert [error.args[0] for error in caught.value.exceptions] == [1, 3, 5]
        assert sorted(ran) == [0, 2, 4]


def test_what_depends_on_a_failure_is_skipped() -> None:
    """And is not in the group."""
    ran: list[object] = []
    op = zip_ops(value(1).host_map(boom).host_map(ran.append), value(2).host_map(boom))
    with pytest.raises(ExceptionGroup) as caught:
        op.sync()
    assert sorted(error.args[0] for error in caught.value.exceptions) == [1, 2]
    assert ran == []


def test_a_failure_leaves_nothing_behind() -> None:
    """The memory of a failed run is free once its exception is, and the next run is right."""
    where = current_device()
    gc.collect()
    gc.collect()  # what earlier tests left in cycles
    before = where.memory_used()
    for _ in range(3):
        with pytest.raises(KeyError):
            zip_ops(zeros((1024,)), ones((8,)).host_map(boom)).sync()
    gc.collect()
    assert where.memory_used() == before
    assert ones((2,)).to_host().sync().tolist() == [1.0, 1.0]


# ---- the loop, and threads


def test_a_long_run_never_holds_up_the_loop(gate: Gate) -> None:
    """While a body blocks, other tasks pass any number of checkpoints, and runs of their own."""
    passed = 0

    async def other() -> None:
        nonlocal passed
        for _ in range(500):
            await trio.lowlevel.checkpoint()
            passed += 1
        for _ in range(10):
            await zeros((4,)).on(place(1))
        assert gate.ended == 0
        gate.open.set()

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            await ones((4,)).host_map(gate)
            assert passed == 500

    run(body)


def test_concurrent_runs_overlap() -> None:
    """Two runs of one op each meet in the middle: neither stands behind the other on a stream."""
    meet = threading.Barrier(2)

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            for number in range(2):
                nursery.start_soon(_awaited, value(number).host_map(lambda _: meet.wait(2.0)))

    run(body)


def test_sync_in_a_task_warns_once_for_each_call_site() -> None:
    """A RuntimeWarning that points at the user's line; the result is right nevertheless."""

    async def body() -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(3):
                assert value(1).sync() == 1
                here = line(1)
            assert value(2).sync() == 2
        first = caught[0]
        assert (first.category, f"{first.filename}:{first.lineno}") == (RuntimeWarning, here)
        assert len(caught) == 2
        assert f"sync() at {here} in a trio task blocks every other task" in str(caught[0].message)
        assert "Use await." in str(caught[0].message)

    run(body)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert value(1).sync() == 1


def test_sync_that_would_wait_for_its_own_thread_is_refused(gate: Gate) -> None:
    """A task makes a `shared()` value; another, in the same thread, may not block for it: nobody would finish it."""
    op = value(1).host_map(gate).shared()

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_awaited, op)
            await gate.reached()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                with pytest.raises(NestedRunError, match=re.escape("Use await here")):
                    op.map(str).sync()
            gate.open.set()
        assert await op.map(str) == "1"

    run(body)


def test_sync_in_another_thread_waits_for_a_shared_value(gate: Gate) -> None:
    """Threads and loops mix: one makes the value, the other gets it."""
    made: list[int] = []
    op = value(1).host_map(gate).map(noting(made, 5)).shared()

    async def body() -> None:
        got: list[int] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_awaited, op)
            await gate.reached()

            async def elsewhere() -> None:
                got.append(await trio.to_thread.run_sync(op.sync))

            nursery.start_soon(elsewhere)
            await wait_all_tasks_blocked()
            gate.open.set()
        assert (got, made) == ([5], [1])

    run(body)


@pytest.mark.parametrize("attach", ["map", "then", "inspect", "host_map"])
def test_a_run_inside_a_run_is_refused(attach: str) -> None:
    """`sync` and `await` in a closure or `host_map` are NestedRunError, and the outer run ends with it."""
    for inner in (lambda _: value(1).sync(), lambda _: value(1).__await__().send(None), lambda _: value(1).explain()):
        with pytest.raises(NestedRunError, match=re.escape("Return the op from .then instead")) as caught:
            getattr(value(0), attach)(inner).sync()
        assert f"{__file__}:{inner.__code__.co_firstlineno}" in str(caught.value)
    assert value(1).sync() == 1


def test_runs_in_many_threads_at_once() -> None:
    """Plain threads may run ops side by side; each gets its own."""
    got: dict[int, float] = {}

    def work(number: int) -> None:
        with use_device(place(number % 2)):
            got[number] = float(full((8,), number).to_host().sync().sum())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert got == {number: 8.0 * number for number in range(16)}


def test_planning_runs_nothing_and_takes_nothing() -> None:
    """`plan_of` and `explain` leave the op its handles, and its `shared()` parts unmade."""
    ran: list[int] = []
    t = from_host(np.ones(4, np.float32)).sync()
    op = zip_ops(dup(t).to_host(), value(1).host_map(ran.append).shared())
    assert current_device().name in op.explain()
    assert plan_of(op).peak_bytes >= 16
    assert ran == []
    assert op.sync()[0].tolist() == [1.0] * 4
    assert ran == [1]


def test_a_failed_run_gives_its_memory_back_without_the_collector() -> None:
    """The error that it raised keeps nothing of it, once the error itself is gone."""
    where = current_device()
    op = zip_ops(ones((1000,)), zeros((3,)).to_host().host_map(boom))
    gc.collect()
    before = where.memory_used()

    async def in_a_task() -> None:
        try:
            await op
        except KeyError:
            return
        raise AssertionError("it should have failed")

    gc.disable()
    try:
        with pytest.raises(KeyError):
            op.sync()
        assert where.memory_used() == before
        trio.run(in_a_task)
        assert where.memory_used() == before
    finally:
        gc.enable()
