"""Every error that can occur without a GPU says what, where and the cure, and stands where api promises it."""

import inspect
import re
from collections.abc import Callable, Hashable, Sequence
from typing import Any, cast

import numpy as np
import pytest
import trio

import dagpu
from dagpu import (
    In,
    Out,
    StreamInterpreter,
    Tensor,
    device,
    dup,
    f32,
    fill,
    from_host,
    i32,
    kernel,
    memcpy,
    ones,
    record_origins,
    use_interpreter,
    value,
    zeros,
    zip_ops,
)
from dagpu.testing import Program
from tests.support.gates import GATES, Gate, add, reading, run

TREE = {
    "OwnershipError": "DagpuError",
    "MovedError": "OwnershipError",
    "BorrowError": "OwnershipError",
    "PartitionError": "DagpuError ValueError",
    "ShapeError": "DagpuError ValueError",
    "KernelArgumentError": "DagpuError TypeError",
    "KernelBoundsError": "DagpuError IndexError",
    "CompileError": "DagpuError",
    "NotReadyError": "DagpuError",
    "NestedRunError": "DagpuError",
    "PlanError": "DagpuError",
    "OperationCancelled": "DagpuError",
    "CaptureError": "DagpuError",
    "DeviceError": "DagpuError",
    "OutOfMemoryError": "DeviceError MemoryError",
    "DeviceLostError": "DeviceError",
    "NoDeviceError": "DeviceError",
}


def test_the_tree_of_errors() -> None:
    """Each error is what the contract says, and everything is a `DagpuError`."""
    for name, parents in TREE.items():
        error: type[BaseException] = getattr(dagpu, name)
        assert [base.__name__ for base in error.__bases__] == parents.split()
        assert issubclass(error, dagpu.DagpuError)


@pytest.mark.host_only("its own errors have no code")
def test_a_device_error_carries_its_code() -> None:
    """The driver's code, 0 where there is none."""
    assert dagpu.DeviceError("x").code == 0
    assert dagpu.OutOfMemoryError("x", 2).code == 2
    with pytest.raises(MemoryError) as caught:
        zeros((1 << 60,)).sync()
    assert isinstance(caught.value, dagpu.OutOfMemoryError)
    assert caught.value.code == 0


@kernel(cuda="__global__ void flat(Tile<float, 1> y, View<const float, 1> x) {}")
def flat(y: Out[f32], x: In[f32]) -> None:
    """A kernel that is never run."""


@kernel(cuda='__global__ void broken(Tile<float, 1> y) { asm("bar.sync 0;"); }')
def broken(y: Out[f32]) -> None:
    """A kernel whose text runs on a GPU alone."""


loose: Any = flat
"""The same to a type checker that shall not see what is wrong with a call."""


def tensor() -> Tensor[Any]:
    return zeros((4,)).sync()


def moved() -> object:
    t = tensor()
    t.share()
    return t.shape


def moved_lender() -> object:
    t = tensor()
    ref = t.borrow()
    t.share()
    return ref.shape


def run_twice() -> object:
    op = dup(tensor())
    op.sync()
    return op.sync()


def used_twice() -> object:
    op = zeros((4,))
    return zip_ops(op, op).sync()


def component_taken_twice() -> object:
    a, _ = zip_ops(zeros((1,)), value(2)).unzip()
    a.sync()
    return a.sync()


def component_taken_twice_in_one_run() -> object:
    a, b = zip_ops(zeros((1,)), value(2)).unzip()
    return zip_ops(a, b, a.map(str)).sync()


def lent_twice() -> object:
    t = tensor()
    return zip_ops(dup(t.borrow()), memcpy(t.borrow_mut(), tensor())).sync()


def copied_to_itself() -> object:
    t = tensor()
    return memcpy(t.borrow_mut(), t.borrow())


def not_the_last() -> object:
    shared = tensor().share()
    clone = shared.clone()
    assert clone.shape
    return shared.try_unwrap()


def escaped() -> object:
    kept: list[Any] = []
    with pytest.raises(ZeroDivisionError):
        zeros((4,)).inspect(kept.append).host_map(lambda _: 1 / 0).sync()
    return kept[0].to_host().sync()


def unknown() -> Any:
    """An op whose structure does not show what it gives."""
    return value(1).map(str)


def nested_sync() -> object:
    return value(0).map(lambda _: value(1).sync()).sync()


def out_of_memory() -> object:
    return zeros((1 << 60,)).sync()


def to_host_of_a_partition() -> object:
    op: Any = ones((4,)).partition((2,))
    return op.to_host().sync()


class Nothing:
    """A policy that places nothing."""

    def place(self, program: Program) -> Sequence[Hashable]:
        return []


SAYS: list[tuple[Callable[[], object], str, list[str]]] = [
    (moved, "MovedError", ["was moved by share() at", "made at", ".borrow()", ".share()"]),
    (moved_lender, "MovedError", ["borrowed at", "was moved by share() at", "share() the tensor"]),
    (run_twice, "MovedError", ["a run of the op that owned it, started", "made at", ".borrow()"]),
    (used_twice, "MovedError", ["<zeros((4,)) at", "used twice in one run", ".shared()"]),
    (component_taken_twice, "MovedError", ["<unzip()[0] at", "was taken before", ".shared()"]),
    (component_taken_twice_in_one_run, "MovedError", ["<unzip()[0] at", ".shared()"]),
    (escaped, "MovedError", ["its contents were lost", "failed or was cancelled", "Make it again"]),
    (lent_twice, "BorrowError", ["borrowed at", "for writing", "t.borrow_mut()"]),
    (copied_to_itself, "BorrowError", ["memcpy at", "same tensor", "dup(t.borrow()).sync()"]),
    (not_the_last, "OwnershipError", ["made at", "1 more handle", "dup(t)"]),
    (
        lambda: zip_ops(zeros((1,)), zeros((1,))).shared().sync(),
        "OwnershipError",
        ["shared() at", "unzip() first"],
    ),
    (
        lambda: zeros((5,)).partition((2,)).sync(),
        "PartitionError",
        ["tile (2,)", "(5,)", "axis 0", "<partition((2,)) at", "partial=True"],
    ),
    (
        lambda: zeros((5,)).reshape((2, 3)).sync(),
        "ShapeError",
        ["(5,)", "<reshape((2, 3)) at", "as many elements"],
    ),
    (lambda: unknown().unzip(), "ShapeError", ["unzip() at", "structure", "unzip(2)"]),
    (lambda: zip_ops(value(1)).unzip(3), "ShapeError", ["unzip(3) at", "has 1 components", "Say unzip()"]),
    (lambda: value(1).map(lambda _: (1, 2)).unzip(3)[0].sync(), "ShapeError", ["unzip(3) at", "2 components"]),
    (lambda: unknown().unzip(2)[0].sync(), "ShapeError", ["unzip(2) at", "result is str"]),
    (to_host_of_a_partition, "ShapeError", ["to_host() at", "Partition", ".unpartition()"]),
    (lambda: zeros((2,), object), "ShapeError", ["zeros at", "not an element type", "f32"]),  # type: ignore[type-var]  # reason: refused
    (lambda: fill(zeros((2,), i32).sync(), 2**31), "ShapeError", ["at", "int32", "-2147483648 to 2147483647"]),
    (
        lambda: loose(tensor().partition((2,)), from_host(np.zeros(4)).sync()),
        "KernelArgumentError",
        ["flat", "x", "float64", "at"],
    ),
    (lambda: loose(tensor(), tensor()), "KernelArgumentError", ["flat", "y", ".partition("]),
    (lambda: np.asarray(tensor()), "NotReadyError", ["made at", ".to_host()"]),
    (lambda: zeros((4,)).map(lambda t: float(cast(Any, t))).sync(), "NotReadyError", ["made at", ".to_host()"]),
    (nested_sync, "NestedRunError", ["was run at", "Return the op from .then"]),
]
ON_HOST: list[tuple[Callable[[], object], str, list[str]]] = [
    (
        out_of_memory,
        "OutOfMemoryError",
        ["host:0: no room for 4,611,686,018,427,387,904 bytes", "Fill at", "Drop handles"],
    ),
    (
        lambda: broken(ones((4,)).partition((4,))).sync(),
        "CompileError",
        ["cannot run on the host", "declared at", "inline assembly", "@broken.host"],
    ),
]
NOWHERE: list[tuple[Callable[[], object], str, list[str]]] = [
    (
        lambda: zeros((1,)).schedule(Nothing()).sync(),
        "PlanError",
        ["Nothing", "placed 0 of 1 instructions", "one lane key for each"],
    ),
    (lambda: device("tpu:0"), "NoDeviceError", ["'tpu'", "Known: ", "entry point group 'dagpu.backends'"]),
    (lambda: zeros((1,)).on("warp").sync(), "NoDeviceError", ["'warp'", "Known: "]),
    (lambda: device("host:99"), "NoDeviceError", ["host:99", "host:0 to host:7", "DAGPU_HOST_DEVICES=100"]),
    (lambda: device("host:first"), "NoDeviceError", ["'host:first' is not a device", "'host:1'"]),
    (lambda: tensor().partition((3,)), "PartitionError", ["tile (3,)", "(4,)", "axis 0", "partial=True"]),
    (lambda: tensor().view((3,)), "ShapeError", ["(4,)", "(3,)", "as many elements"]),
]
"""Not about one op, or raised straight from the user's own line, which the traceback shows: they need not name it."""


def said(error: BaseException) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


CASES = [*SAYS, *(pytest.param(*case, marks=pytest.mark.host_only("its own errors")) for case in ON_HOST)]


@pytest.mark.parametrize(("wrong", "name", "parts"), CASES, ids=range(len(CASES)))
def test_what_where_and_the_cure(wrong: Callable[[], object], name: str, parts: list[str]) -> None:
    """The message has its words, and names this file and a line within the code that was wrong."""
    with pytest.raises(dagpu.DagpuError) as caught:
        wrong()
    assert type(caught.value).__name__ == name
    text = said(caught.value)
    for part in parts:
        assert part in text
    if name == "MovedError" and "contents were lost" in text:
        return
    lines = {int(found) for found in re.findall(re.escape(__file__) + r":(\d+)", text)}
    own: set[int] = set()
    for code in (wrong, tensor):
        source, start = inspect.getsourcelines(code)
        own.update(range(start, start + len(source)))
    assert lines & own
    assert text.rstrip().count("\n") <= 1


@pytest.mark.parametrize(("wrong", "name", "parts"), NOWHERE, ids=range(len(NOWHERE)))
def test_what_and_the_cure(wrong: Callable[[], object], name: str, parts: list[str]) -> None:
    """An error raised from the user's own line says what is wrong and what to do."""
    with pytest.raises(dagpu.DagpuError) as caught:
        wrong()
    assert type(caught.value).__name__ == name
    for part in parts:
        assert part in str(caught.value)


def test_a_handle_of_a_run_that_is_not_complete() -> None:
    """Used in a run of its own, from outside: NotReadyError says that it leaves as part of the result."""
    gate = GATES[0] = Gate()
    kept: list[Any] = []

    async def body() -> None:
        async with trio.open_nursery() as nursery:

            async def child() -> None:
                await zip_ops(ones((4,)).inspect(kept.append), value(1).host_map(gate))

            nursery.start_soon(child)
            await gate.reached()
            try:
                with pytest.raises(dagpu.NotReadyError, match="belongs to a run that is not complete"):
                    await dup(kept[0].borrow())
            finally:
                gate.open.set()

    run(body)


def test_a_lock_names_both_runs() -> None:
    """A BorrowError between runs says where each was started."""
    gate = GATES[0] = Gate()
    t = ones((4,)).sync()

    async def body() -> None:
        async with trio.open_nursery() as nursery:

            async def child() -> None:
                await reading(t)

            nursery.start_soon(child)
            await gate.reached()
            try:
                with pytest.raises(dagpu.BorrowError) as caught:
                    await add(t.borrow_mut().partition((4,)), ones((4,)))
            finally:
                gate.open.set()
        lines = re.findall(re.escape(__file__) + r":(\d+)", str(caught.value))
        assert len(set(lines)) == 2

    run(body)


def test_type_errors_of_the_fluent_methods() -> None:
    """A closure of `then` that gives no op, an argument of `zip_ops` that is none, an op as a truth value."""
    wrong: Any = lambda _: 3  # noqa: E731  # a def would need a name that the message does not have
    with pytest.raises(
        TypeError, match=re.escape("returned int, which is not an op. Return an op (value(x) makes one of a value)")
    ):
        value(1).then(wrong).sync()
    argument: Any = 3
    with pytest.raises(
        TypeError, match=re.escape("argument 1 is 3, but an op is wanted. Make an op of a value: value(x).")
    ):
        zip_ops(value(1), argument)
    with pytest.raises(TypeError, match="neither true nor false"):
        bool(value(1))
    assert issubclass(dagpu.KernelArgumentError, TypeError)


def test_a_place_that_is_none() -> None:
    """`.on(7)` is a TypeError that says what a place is."""
    place: Any = 7
    with pytest.raises(TypeError):
        zeros((1,)).on(place).sync()


def test_a_lane_key_that_is_not_hashable() -> None:
    """A policy's fault is a PlanError that names the policy."""

    class Lists:
        def place(self, program: Program) -> Any:
            return [[1] for _ in program.instructions]

    with pytest.raises(dagpu.PlanError, match="Lists"), use_interpreter(StreamInterpreter(policy=Lists())):
        zeros((1,)).sync()


def test_without_origins_errors_say_so() -> None:
    """Turned off, the place is unknown; the rest of the message stands."""
    before = record_origins(False)
    try:
        t = zeros((4,)).sync()
        t.share()
        with pytest.raises(dagpu.MovedError, match="made at an unknown place was moved by share\\(\\) at an unknown"):
            t.borrow()
    finally:
        record_origins(before)
