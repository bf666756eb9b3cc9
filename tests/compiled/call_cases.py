"""Calls of pipelines and plain ops by `sync()`: good ones and refused ones, with a driver that answers or refuses."""

import os
import re
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, cast

import numpy as np
import trio

import dagpu
from dagpu import DeviceOp, Lazy, Out, Tensor, empty, f32, full, kernel, ones, pipeline
from dagpu.backends.cuda.driver.driver_protocol import EXIT_GUARD
from dagpu.common.places import describe
from dagpu.handles import state_of
from dagpu.handles.handle_state import last_move, origin_of
from dagpu.testing import storage_of
from tests.compiled.worlds import CASES, TILE, WARM, Case, N, S, World, blend, case, fresh, grow, new_step, told
from tests.programs.arithmetic import add, scale

# ---- good calls, and those that are refused


@case(serves=1)
def a_good_call(w: World) -> Any:
    x = fresh()
    storage = storage_of(x)
    y = w.step(x, 1.5).sync()
    w.note_states(x, y)
    w.note(storage_of(y) is storage)
    w.note_launch(x=y)
    return y


@case(serves=4)
def many_numbers(w: World) -> Any:
    x = fresh()
    for number in (0.0, -0.0, 1.5, 3.4e38, -3.4e38, 1e-45, 1e-50, -2.25, 1.5, 0.1, 5e-324):
        x = w.step(x, number).sync()
        w.note_launch(x=x)
    for number in (0, -1, 7, 1 << 24, (1 << 24) + 1, True):
        with suppress(dagpu.KernelArgumentError):
            x = w.step(x, number).sync()
            w.note_launch(x=x)
    for number in (0.5, 0.25, 0.5, 0.25, 0.5, 0.5):
        x = w.step(x, number).sync()
        w.note_launch(x=x)
    return x


@case(serves=4)
def other_memory(w: World) -> Any:
    """The addresses change from call to call."""
    many = [fresh() for _ in range(3)]
    for _ in range(2):
        for number, x in enumerate(many):
            many[number] = w.step(x, 0.5).sync()
            w.note_launch(**{str(name): each for name, each in enumerate(many)})


def one_call(name: str, argument: Callable[[], Any], number: Any, *more: Any, serves: int = 1, **named: Any) -> None:
    """Add a case that calls the pipeline once with these arguments, and then with good ones. These are served only if
    the first ones have made no plan of their own, which is the latest then."""

    def call(w: World) -> Any:
        x = argument()
        try:
            return w.step(x, number, *more, **named).sync()
        finally:
            w.note_states(x)
            w.note(told(w.step(fresh(), 0.5).sync()))

    CASES[name] = call, serves


one_call("a whole number for a real one", fresh, 1, serves=0)
one_call("too large", fresh, 1e39)
one_call("too large, and whole", fresh, 10**39)
one_call("not a number", fresh, float("nan"))
one_call("infinite", fresh, float("-inf"))
one_call("a truth value", fresh, True)
one_call("a text", fresh, "x")
one_call("NumPy's number", fresh, np.float32(1), serves=0)
one_call("nothing", fresh, None)
one_call("another shape", lambda: fresh(2 * N), 0.5, serves=0)
one_call("another device", lambda: fresh(N, "cuda:1"), 0.5, serves=0)
one_call("another type", lambda: full((N,), 1, dtype=np.float64).sync(), 0.5)
one_call("too many", fresh, 0.5, 3)
one_call("an unknown keyword", fresh, 0.5, b=1)
one_call("shared", lambda: fresh().share(), 0.5)
one_call("no tensor", lambda: ones((N,)), 0.5, serves=0)


@case()
def a_keyword(w: World) -> Any:
    x = w.step(fresh(), a=0.5).sync()
    return w.step(w.step(x=x, a=2.5).sync(), 0.25).sync()


@case()
def too_few(w: World) -> Any:
    return w.step(fresh()).sync()


@case(serves=1)
def moved_before(w: World) -> Any:
    x = fresh()
    w.step(x, 0.5).sync()
    w.note_states(x)
    return w.step(x, 0.5).sync()


@case()
def moved_after_the_call(w: World) -> Any:
    """The op's own handle is moved before it runs."""
    op = w.step(fresh(), 0.5)
    op.source.content[0][0].share()
    return op.sync()


@case(serves=1)
def run_twice(w: World) -> Any:
    op = w.step(fresh(), 0.5)
    w.note(told(op.sync()))
    return op.sync()


@case()
def one_tensor_twice(w: World) -> Any:
    @pipeline
    def mix(x: Tensor[f32], y: Any) -> DeviceOp[Any]:
        return blend(x.partition(TILE), 0.5, y).first().unpartition()

    for _ in range(WARM):
        mix(fresh(), fresh().share()).sync()
    x = fresh()
    return mix(x, x).sync()


def is_alive(handle: Any) -> bool:
    return state_of(handle) is not None


def locked(w: World, **fields: Any) -> Any:
    x = fresh()
    lock = storage_of(x).lock
    op = w.step(x, 0.5)
    for name, value in fields.items():
        setattr(lock, name, value)
    try:
        return op.sync()
    finally:
        w.note([lock.writer, lock.readers, describe(lock.holder)])
        w.note(is_alive(op.source.content[0][0]))
        lock.writer, lock.readers = None, 0
        w.note(told(op.sync()))


@case(serves=1)
def locked_by_a_writer(w: World) -> Any:
    return locked(w, writer="another run")


@case(serves=1)
def locked_by_readers(w: World) -> Any:
    return locked(w, readers=2)


@case(serves=1)
def memory_that_is_lost(w: World) -> Any:
    x = fresh()
    op = w.step(x, 0.5)
    storage = storage_of(op.source.content[0][0])
    storage.memory, storage.lost = None, "a test has lost it"
    w.note(told(w.step(fresh(), 0.5).sync()))
    return op.sync()


@case(serves=2)
def readers_of_one_tensor(w: World) -> Any:
    """A shared tensor is read, and its lock counts the reader while the run is under way."""

    @pipeline
    def mix(x: Tensor[f32], y: Any) -> DeviceOp[Any]:
        return blend(x.partition(TILE), 0.5, y).first().unpartition()

    shared = fresh().share()
    for _ in range(WARM):
        mix(fresh(), shared).sync()
    x = fresh()
    w.calls.null_meet(b"cuGraphLaunch")
    seen: list[Any] = []

    def look() -> None:
        w.calls.null_met()
        seen.append(w.lock_of(shared))
        w.calls.null_go_on()

    thread = threading.Thread(target=look)
    thread.start()
    y = mix(x, shared).sync()
    thread.join()
    w.note(seen, w.lock_of(shared), w.lock_of(y))
    w.note_launch(x=y, y=shared)
    storage_of(shared).lock.readers = 3
    y = mix(y, shared).sync()
    w.note(w.lock_of(shared))
    storage_of(shared).lock.writer = "another run"
    try:
        return mix(y, shared).sync()
    finally:
        storage_of(shared).lock.writer = None
        storage_of(shared).lock.readers = 0


@case(serves=4)
def parts_of_one_tensor(w: World) -> Any:
    """Addresses that are counted from the begin of the memory."""

    @pipeline
    def mix(x: Tensor[f32], y: Any, z: Any) -> DeviceOp[Any]:
        return blend(x.partition(TILE), 0.5, y).first().unpartition().then(lambda t: mixed(t, z))

    def mixed(t: Any, z: Any) -> DeviceOp[Any]:
        return blend(t.partition(TILE), 0.25, z).first().unpartition()

    first, second = fresh(4 * N), fresh(4 * N)
    x = fresh()
    for number in range(WARM + 6):
        lender = (first, second)[number // 2 % 2]
        parts = [lender.borrow().slice(slice(at, at + N)) for at in (N, 2 * N)]
        x = mix(x, *parts).sync()
        for node in (0, 1):
            w.note_launch(node, x=x, first=first, second=second)
    return x


@case(serves=1)
def many_tensors(w: World) -> Any:
    """More handles than there is room for in a call without an allocation, and one of them is locked at last."""

    @pipeline
    def steps(*many: Any) -> DeviceOp[Any]:
        return dagpu.zip_ops(*[grow(x.partition(TILE), 0.5).first().unpartition() for x in many])

    many = tuple([fresh() for _ in range(20)])
    for _ in range(WARM):
        many = steps(*many).sync()
    many = steps(*many).sync()
    op: Any = steps(*many)
    last = storage_of(op.source.content[0][-1]).lock
    last.readers = 1
    try:
        op.sync()
    except dagpu.BorrowError as error:
        w.note(str(error))
    held = op.source.content[0]
    w.note([is_alive(each) for each in held], [w.lock_of(each) for each in held])
    last.readers = 0
    return op.sync()


# ---- results, and other ops


@case(serves=3)
def new_outputs(w: World) -> Any:
    @pipeline
    def made(x: Any, a: float) -> DeviceOp[Any]:
        return scale(empty(S).partition(S), a, x).first().unpartition()

    x = full(S, 1).sync().share()
    for _ in range(WARM):
        y = made(x, 0.5).sync()
    kept = [y]
    for number in range(4):
        kept.append(made(x, float(number)).sync())
        w.note_launch(x=x, **{f"y{at}": each for at, each in enumerate(kept)})
    w.note_states(*kept)
    storage: Any = storage_of(kept[-1])
    w.note([storage.nbytes, storage.lost, storage.shares, storage.graph(), storage.lock.readers])
    z = kept.pop()
    del kept, y
    return made(z.share(), 2.0).sync()


@case(serves=2)
def several_results(w: World) -> Any:
    @pipeline
    def made(x: Tensor[f32], y: Any, a: float) -> DeviceOp[Any]:
        new = add(empty(S).partition(S), y, y).first()
        return dagpu.zip_ops(grow(x.partition(TILE), a).first(), new, dagpu.value(("text", 1)))

    y = full(S, 1).sync().share()
    for _ in range(WARM + 2):
        out = made(fresh(), y, 0.5).sync()
    return [type(each).__name__ for each in out]


@case(serves=2)
def shared_results(w: World) -> Any:
    @pipeline
    def same(x: Any, a: float) -> DeviceOp[Any]:
        return grow(empty((N,)).partition(TILE), a).first().unpartition().then(lambda y: dagpu.value((y, x)))

    x = fresh().share()
    for _ in range(WARM + 2):
        out = same(x, 0.5).sync()
    return out


@case(serves=1)
def temporaries(w: World) -> Any:
    """Memory that is needed between two kernels."""

    @pipeline
    def twice(x: Tensor[f32], a: float) -> DeviceOp[Any]:
        middle = grow(empty((N,)).partition(TILE), a).first().unpartition()
        return middle.then(lambda y: blend(x.partition(TILE), a, y).first().unpartition())

    x = fresh()
    for _ in range(WARM + 3):
        x = twice(x, 0.5).sync()
    w.note(w.device.memory.used)
    return x


@case(serves=1)
def a_plain_op_in_a_loop(w: World) -> Any:
    x = full(S, 1).sync().share()
    for number in range(16):
        y = scale(empty(S).partition(S), float(number), x).first().unpartition().sync()
        w.note_launch(x=x, y=y)
    w.note_states(y)
    return y


@case(serves=1)
def one_op_again_and_again(w: World) -> Any:
    x = full(S, 1).sync().share()
    op = scale(empty(S).partition(S), 0.5, x).first().unpartition()
    for _ in range(10):
        y = op.sync()
    w.note_states(y)
    return y


@case()
def a_captured_graph(w: World) -> Any:
    x = full(S, 1).sync().share()
    graph = scale(empty(S).partition(S), 0.5, x).first().unpartition().graph()
    for _ in range(5):
        graph.launch().sync()
    return told(graph.result) if hasattr(graph, "result") else None


CTYPES: Final = {
    "__half": (0.0, -0.0, 1.5, 65504.0, -65504.0, 1e-8, 6e-8, 2, 0.1),
    "__nv_bfloat16": (0.0, 1.5, 0.1, 3),
    "float": (0.1, -0.0, 3.4e38, 1e-45, 7),
    "double": (0.1, -0.0, 1e308, 5e-324, 7),
    "bool": (True, False), "signed char": (-128, 127, 0, -1), "unsigned char": (0, 255, 128),
    "short": (-32768, 32767, -1), "unsigned short": (0, 65535), "int": (-(1 << 31), (1 << 31) - 1, -1),
    "unsigned int": (0, (1 << 32) - 1), "long long": (-(1 << 63), (1 << 63) - 1, -1),
    "unsigned long long": (0, (1 << 64) - 1, 1 << 63),
}  # fmt: skip
"""For each C type numbers that fit."""
UNSERVED: Final = ("__nv_bfloat16", "bool")
"""Types whose numbers are left to Python: struct has no letter for one, and the other is in keys."""
WRONG: Final = (0.5, 1 << 64, -(1 << 63) - 1, -1, 256, 65505.0, 70000, 2, 1e39, True, "x")


def add_ctype(ctype: str, numbers: tuple[Any, ...]) -> None:
    kind: Any = bool if ctype == "bool" else float if isinstance(numbers[0], float) else int

    def call(w: World) -> Any:
        def named(y: Any, a: Any) -> None:
            """A kernel with a number of this type."""

        lazy, out = cast("tuple[Any, Any]", (Lazy, Out))
        named.__annotations__ = {"y": out[f32], "a": lazy[kind], "return": None}
        made: Any = kernel(cuda=f"__global__ void named(Tile<float, 1> y, {ctype} a) {{}}")(named)

        @pipeline
        def step(x: Tensor[f32], a: Any) -> Any:
            return made(x.partition(TILE), a).first().unpartition()

        x = fresh()
        for number in (*numbers, *numbers, *numbers, *numbers):
            x = step(x, number).sync()
            w.note_launch(x=x)
        for number in WRONG:
            try:
                x = step(x, number).sync()
                w.note_launch(x=x)
            except dagpu.KernelArgumentError as error:
                w.note(str(error))
                x = fresh()
        return x

    CASES[f"numbers of type {ctype}"] = call, int(ctype not in UNSERVED)


for _ctype, _numbers in CTYPES.items():
    add_ctype(_ctype, _numbers)


# ---- where a call runs


@case()
def in_a_task(w: World) -> Any:
    x = fresh()

    async def main() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return w.step(x, 0.5).sync()

    return trio.run(main)


@case()
def without_places(w: World) -> Any:
    dagpu.record_origins(False)
    try:
        x = fresh()
        y = w.step(x, 0.5).sync()
        w.note(origin_of(y), last_move(x)[1], storage_of(y).lock.holder)
        return None
    finally:
        dagpu.record_origins(True)


@case(serves=1)
def places_of_a_call(w: World) -> Any:
    """The places are those of the caller's lines."""

    def inner(x: Any) -> Any:
        op = w.step(x, 0.5)
        return op, op.sync()

    x = fresh()
    op, y = inner(x)
    w.note(describe(op.origin), describe(op.source.origin))
    w.note_states(x, op.source.content[0][0], y)


@case()
def direct_calls_are_turned_off(w: World) -> Any:
    os.environ["DAGPU_DIRECT"] = "0"
    try:
        return w.step(fresh(), 0.5).sync()
    finally:
        del os.environ["DAGPU_DIRECT"]


@case()
def a_variable_that_is_wrong(w: World) -> Any:
    os.environ["DAGPU_SPIN_US"] = "soon"
    try:
        return w.step(fresh(), 0.5).sync()
    finally:
        del os.environ["DAGPU_SPIN_US"]


@case()
def another_device_is_current(w: World) -> Any:
    with dagpu.use_device("cuda:1"):
        y = w.step(fresh(), 0.5).sync()
    w.note(told(y))
    return w.step(y, 0.5).sync()


@case()
def a_recording(w: World) -> Any:
    x = fresh()
    with dagpu.trace() as measured:
        y = w.step(x, 0.5).sync()
    w.note(str(measured).count("\n"))
    return y


@case()
def nested_in_a_closure(w: World) -> Any:
    x = fresh()
    return ones((N,)).then(lambda t: dagpu.value(w.step(x, 0.5).sync())).sync()


@case(serves=1)
def another_interpreter(w: World) -> Any:
    with dagpu.use_interpreter(dagpu.StreamInterpreter(graph_from=None)):
        w.note(told(w.step(fresh(), 0.5).sync()))
    return w.step(fresh(), 0.5).sync()


# ---- the driver refuses


def failing(call: str, code: int, after: int = 0) -> Case:
    def run(w: World) -> Any:
        x = fresh()
        op = w.step(x, 2.5)
        w.calls.null_fail(call.encode(), code, after)
        try:
            return op.sync()
        finally:
            w.note_states(x, op.source.content[0][0])
            try:
                w.note(told(w.step(fresh(), 0.5).sync()))
            except dagpu.DeviceLostError as error:
                w.note(str(error))

    return run


CASES["the launch is refused"] = failing("cuGraphLaunch", 1), 0
CASES["the launch needs memory"] = failing("cuGraphLaunch", 2), 0
CASES["an update is refused"] = failing("cuGraphExecKernelNodeSetParams", 1), 0
CASES["the context is refused"] = failing("cuCtxPushCurrent", 1), 0
CASES["the device is lost in the launch"] = failing("cuGraphLaunch", 700), 0
CASES["the device is lost in the run"] = failing("cuStreamQuery", 719), 0


@case()
def a_lost_device(w: World) -> Any:
    x, y = fresh(), fresh()
    w.calls.null_lose(700)
    for each in (x, y):
        try:
            w.step(each, 0.5).sync()
        except dagpu.DeviceLostError as error:
            w.note(str(error))
    w.note_states(x, y)


@case()
def lost_in_another_run(w: World) -> Any:
    """The pipeline that is called then has an idle graph."""
    x, other = fresh(), new_step()
    w.calls.null_fail(b"cuGraphLaunch", 700, 0)
    try:
        other(fresh(), 0.5).sync()
    except dagpu.DeviceLostError as error:
        w.note(str(error))
    return w.step(x, 0.5).sync()


@case()
def lost_while_it_blocks(w: World) -> Any:
    x = fresh()
    w.calls.null_hold()
    w.calls.null_meet(b"cuStreamSynchronize")

    def lose() -> None:
        w.calls.null_met()
        w.calls.null_go_on()
        w.calls.null_lose(719)

    thread = threading.Thread(target=lose)
    thread.start()
    try:
        return w.step(x, 0.5).sync()
    finally:
        thread.join()
        w.note_states(x)


@case()
def too_little_memory(w: World) -> Any:
    @pipeline
    def made(x: Any, a: float) -> DeviceOp[Any]:
        return scale(empty((64, 64)).partition((64, 64)), a, x).first().unpartition()

    x = full((64, 64), 1).sync().share()
    kept = [made(x, 0.5).sync() for _ in range(WARM)]
    gpu: Any = w.device.gpu
    gpu.room = 0
    try:
        while True:
            kept.append(made(x, 0.5).sync())
    except dagpu.OutOfMemoryError as error:
        w.note(re.sub(r"\d[\d,]*", "N", str(error)), w.lock_of(x)[:2])
    gpu.room = 1 << 30
    return made(x, 0.25).sync()


# ---- the device takes long


@case(serves=1)
def not_ready_for_some_polls(w: World) -> Any:
    x = fresh()
    w.calls.null_busy(3)
    return w.step(x, 0.5).sync()


@case(serves=1)
def not_ready_within_the_spin(w: World) -> Any:
    x = fresh()
    w.calls.null_busy(1 << 40)
    y = w.step(x, 0.5).sync()
    return w.step(y, 1.5).sync()


@case()
def no_spin(w: World) -> Any:
    os.environ["DAGPU_SPIN_US"] = "0"
    try:
        x = fresh()
        w.calls.null_busy(5)
        return w.step(x, 0.5).sync()
    finally:
        del os.environ["DAGPU_SPIN_US"]


@case(serves=1)
def other_threads_run_meanwhile(w: World) -> Any:
    """The thread that blocks in the driver does not hold the GIL."""
    x = fresh()
    w.calls.null_hold()
    w.calls.null_meet(b"cuStreamSynchronize")

    def free() -> None:
        w.calls.null_met()
        w.note(sum(range(1000)), len(EXIT_GUARD.inside))
        w.calls.null_go_on()
        w.calls.null_release()

    thread = threading.Thread(target=free)
    thread.start()
    try:
        return w.step(x, 0.5).sync()
    finally:
        thread.join()
