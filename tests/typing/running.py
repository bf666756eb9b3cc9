"""Checked, not run: what running an op yields, and what `spawn` and an interpreter accept."""

from typing import Any, TypeVar, assert_type

import trio
from numpy.typing import NDArray

from dagpu import (
    Borrowed,
    Device,
    DeviceOp,
    Interpreter,
    NoAlloc,
    Pending,
    RoundRobin,
    SchedulingPolicy,
    SingleStream,
    Static,
    Stream,
    StreamInterpreter,
    Tensor,
    Trace,
    bool_,
    current_device,
    device,
    devices,
    f32,
    plan_of,
    spawn,
    trace,
    use_device,
    use_interpreter,
    value,
    zeros,
    zip_ops,
)

_T = TypeVar("_T")


async def running(stream: Stream) -> None:
    """Every way of running an op yields what the op's first type argument says."""
    op = zeros((4, 4))
    assert_type(await op, Tensor[f32])
    assert_type(op.sync(), Tensor[f32])
    assert_type(op.sync_on(stream), Tensor[f32])
    assert_type(await op.to_host(), NDArray[f32])
    assert_type(await zip_ops(value(1), value("b")), tuple[int, str])
    assert_type(await op.schedule(RoundRobin(streams=2)), Tensor[f32])
    assert_type(op.on(SingleStream()), DeviceOp[Tensor[f32]])
    assert_type(op.explain(), str)
    assert_type(op.to_dot(), str)
    assert_type(op.to_svg(), str)
    assert_type(plan_of(op).to_svg(), str)
    with trace("run.json", nvtx=False) as found:
        assert_type(found, Trace)
        assert_type(found.overlap, float)


async def spawning(tensor: Tensor[f32], graph_free: DeviceOp[None, Static, NoAlloc]) -> None:
    """Only an op that is free of borrows may be spawned: it may outlive whoever lent to it."""
    async with trio.open_nursery() as nursery:
        pending = spawn(nursery, zeros((4, 4)))
        assert_type(pending, Pending[Tensor[f32]])
        assert_type(await pending, Tensor[f32])
        assert_type(pending.done(), bool)
        spawn(nursery, value(1))
        spawn(nursery, graph_free)
        spawn(nursery, zip_ops(zeros((4,)), value(1)))

        spawn(nursery, tensor.borrow().to_host())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        lent: DeviceOp[tuple[NDArray[f32], int], Borrowed] = zip_ops(tensor.borrow().to_host(), value(1))
        spawn(nursery, lent)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        spawn(nursery, lent.map(len))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def places() -> None:
    """Devices and streams are named, listed, and made current for the length of a block."""
    assert_type(device(), Device)
    assert_type(device("host:1").stream(), Stream)
    assert_type(current_device().memory_info(), tuple[int, int])
    assert_type(devices(), list[Device])
    with use_device("host:0") as place:
        assert_type(place, Device)
    with use_device(place):
        pass


class Recording:
    """An interpreter of a user's own: two methods make one."""

    def __init__(self, inner: Interpreter) -> None:
        self.inner = inner
        self.seen: list[object] = []

    async def run(self, op: DeviceOp[_T, Any, Any], /) -> _T:
        self.seen.append(op)
        return await self.inner.run(op)

    def run_sync(self, op: DeviceOp[_T, Any, Any], /) -> _T:
        self.seen.append(op)
        return self.inner.run_sync(op)


class Backwards:
    """A policy of a user's own: one method makes one."""

    def place(self, program: Any) -> Any:
        return SingleStream().place(program)


def pluggable() -> None:
    """Interpreters and policies are protocols: what has the methods is one."""
    policy: SchedulingPolicy = Backwards()
    ours: Interpreter = Recording(StreamInterpreter("host", policy))
    with use_interpreter(ours) as current:
        assert_type(current, Interpreter)
        assert_type(current.run_sync(zeros((4,))), Tensor[f32])
    use_interpreter(Backwards())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def contents(op: DeviceOp[Tensor[f32]], t: Tensor[f32]) -> None:
    """Both checkers refuse what reads contents, as a run does; an operator is an op."""
    float(op)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    len(t)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    list(t)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    print(3.0 in op)  # type: ignore[operator]  # pyright: ignore[reportOperatorIssue]
    print(divmod(op, 2))  # type: ignore[operator]  # pyright: ignore[reportCallIssue, reportArgumentType]
    other = op
    assert_type(op == other, DeviceOp[Tensor[bool_]])
