"""Launches of other graphs: captured ones, those with nodes that are no kernels, on several devices, and of feeds."""

import signal
import threading
from collections.abc import Callable
from typing import Any

import trio
import trio.testing

import dagpu
from dagpu import DeviceOp, Tensor, empty, f32, full, ones, pipeline, source, zeros
from dagpu.testing import storage_of
from tests.compiled.worlds import CASES, TILE, WARM, Case, N, S, World, blend, case, fresh, grow, told
from tests.programs.arithmetic import scale

# ---- captured graphs


def captured(w: World) -> tuple[Any, Any, Any]:
    """A graph of one kernel on a stream of the user's, with its input and its output."""
    x = full(S, 1).sync().share()
    op: Any = scale(empty(S).partition(S), 0.5, x).first().unpartition()
    graph = op.graph_on(dagpu.device("cuda:0").stream())
    return graph, x, graph.take_output()


@case(serves=6)  # CPython 3.11 names the place of a call otherwise once it has specialised it
def a_captured_graph_on_a_stream(w: World) -> Any:
    graph, _, y = captured(w)
    for _ in range(10):
        graph.launch().sync()
        w.note(w.lock_of(y))
    return told(y)


@case(serves=1)
def a_captured_graph_while_its_output_is_read(w: World) -> Any:
    graph, _, y = captured(w)
    for _ in range(3):
        graph.launch().sync()
    lock = storage_of(y).lock
    lock.readers = 1
    try:
        return graph.launch().sync()
    finally:
        lock.readers = 0
        w.note(told(graph.launch().sync()))


def captured_and(disturb: Callable[[World], Any]) -> Case:
    def run(w: World) -> Any:
        graph, x, y = captured(w)
        for _ in range(3):
            graph.launch().sync()
        disturb(w)
        try:
            graph.launch().sync()
        finally:
            w.note(w.lock_of(y), w.lock_of(x))
            try:
                graph.launch().sync()
            except dagpu.DeviceError as error:
                w.note(type(error).__name__)
        return told(y)

    return run


CASES["a captured graph is refused"] = captured_and(lambda w: w.calls.null_fail(b"cuGraphLaunch", 1, 0)), 1
CASES["the event after a captured graph is refused"] = (
    captured_and(lambda w: w.calls.null_fail(b"cuEventRecord", 1, 0)),
    1,
)
CASES["a captured graph is lost"] = captured_and(lambda w: w.calls.null_fail(b"cuEventQuery", 719, 0)), 1
CASES["a captured graph is busy"] = captured_and(lambda w: w.calls.null_busy(5)), 1
CASES["a captured graph is busy for longer"] = captured_and(lambda w: w.calls.null_busy(1 << 40)), 1


@case(serves=1)
def a_captured_graph_in_a_task(w: World) -> Any:
    graph, _, y = captured(w)
    for _ in range(3):
        graph.launch().sync()

    async def main() -> Any:
        await graph.launch()
        w.calls.null_busy(3)
        await graph.launch()
        w.calls.null_hold()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(launch)
            await trio.testing.wait_all_tasks_blocked()
            w.note(w.lock_of(y))
            w.calls.null_release()
        w.note(w.lock_of(y))

    async def launch() -> None:
        await graph.launch()

    return trio.run(main)


# ---- nodes that are no kernels


@case(serves=2)
def memory_that_is_filled_within_a_graph(w: World) -> Any:
    """A temporary stays where it is; a result does not, and Python updates the node that fills it."""

    @pipeline
    def summed(x: Tensor[f32], a: float) -> DeviceOp[Any]:
        return zeros((N,)).then(lambda t: blend(x.partition(TILE), a, t).first().unpartition())

    @pipeline
    def made(a: float) -> DeviceOp[Any]:
        return grow(zeros((N,)).partition(TILE), a).first().unpartition()

    x, kept = fresh(), []
    for number in range(WARM + 6):
        x = summed(x, float(number)).sync()
        kept.append(made(float(number // 2)).sync())
        w.note_launch(1, **{str(at): each for at, each in enumerate(kept)})
        if number % 3 == 0:
            kept.clear()
    return [told(x), told(kept)]


# ---- several devices


def on_two_devices() -> Any:
    @pipeline
    def both(x: Tensor[f32], y: Tensor[f32], a: float) -> DeviceOp[Any]:
        return dagpu.zip_ops(
            grow(x.partition(TILE), a).first().unpartition().on("cuda:0"),
            grow(y.partition(TILE), a).first().unpartition().on("cuda:1"),
        )

    return both


@case(serves=1)
def a_graph_over_two_devices(w: World) -> Any:
    both = on_two_devices()
    x, y = fresh(), fresh(N, "cuda:1")
    for number in range(WARM + 4):
        x, y = both(x, y, float(number % 3)).sync()
        w.note_launch(0, x=x, y=y)
        w.note_launch(1, x=x, y=y)
    w.calls.null_busy(3)
    x, y = both(x, y, 0.5).sync()
    w.is_steady = False  # each reader marks the end of a run over two devices in its way
    w.calls.null_busy(20_000)
    x, y = both(x, y, 0.5).sync()
    w.calls.null_fail(b"cuGraphLaunch", 1, 0)
    try:
        both(x, y, 0.5).sync()
    except dagpu.DeviceError as error:
        w.note(str(error))
    return told(both(fresh(), fresh(N, "cuda:1"), 0.5).sync())


@case()
def two_devices_in_a_task(w: World) -> Any:
    both = on_two_devices()
    w.is_steady = False  # each reader marks the end of a run in its way
    x, y = fresh(), fresh(N, "cuda:1")
    for _ in range(WARM):
        x, y = both(x, y, 0.5).sync()

    async def main() -> Any:
        nonlocal x, y
        x, y = await both(x, y, 0.25)
        w.calls.null_busy(4)
        x, y = await both(x, y, 0.5)
        return [told(x), told(y)]

    return trio.run(main)


# ---- copies in a graph

SET_COPY = b"cuGraphExecMemcpyNodeSetParams"


def copied_and_grown(where: str) -> Any:
    """A pipeline of a kernel, and of a copy of what it writes, which is at `where`."""

    @pipeline
    def copied(x: Tensor[f32], a: float) -> DeviceOp[Any]:
        y = grow(x.partition(TILE), a).first().unpartition().shared()
        return dagpu.zip_ops(y, y.then(dagpu.dup).on(where))

    return copied


def map_memory(w: World) -> None:
    """Let the pool of each device get memory of the driver."""
    for name in ("cuda:0", "cuda:1"):
        w.note(told(fresh(1 << 22, name)))


def with_copies(where: str, *disturb: Callable[[World], Any], serves: int) -> tuple[Case, int]:
    """Runs whose results are kept, so that the addresses of the copies change; then one that something happens to."""

    def run(w: World) -> Any:
        copied, kept = copied_and_grown(where), list[Any]()
        for number in range(WARM + 7):
            kept.append(copied(fresh(), float(number)).sync())
            named = {f"{at} {side}": part for at, pair in enumerate(kept) for side, part in enumerate(pair)}
            w.note_launch(1, **named)
            if number % 3 == 2:
                kept.clear()
        del named
        if map_memory in disturb:  # then the copy is set again though no address has changed
            kept.clear()
        x = fresh()
        for each in disturb:
            each(w)
        w.driver.log()
        try:
            return told(copied(x, 0.5).sync())
        finally:
            w.note(w.driver.log().count(SET_COPY.decode()))
            w.note(told(copied(fresh(), 0.25).sync()))
            w.is_steady = where == "cuda:0"  # each reader marks the end of a run over two devices in its way

    return run, serves


CASES["a copy in a graph"] = with_copies("cuda:0", serves=4)
CASES["a copy in a graph is refused"] = with_copies("cuda:0", lambda w: w.calls.null_fail(SET_COPY, 1, 0), serves=4)
CASES["a copy between devices in a graph"] = with_copies("cuda:1", serves=2)
CASES["a copy between devices after memory was mapped"] = with_copies("cuda:1", map_memory, serves=2)
CASES["a copy between devices is refused"] = with_copies(
    "cuda:1", lambda w: w.calls.null_fail(SET_COPY, 1, 0), serves=2
)


# ---- Ctrl-C


def pressed(call: bytes, *disturb: Callable[[World], Any]) -> tuple[Case, int]:
    """Ctrl-C in a call of the driver, of a run that something else happens to."""

    def run(w: World) -> Any:
        x = fresh()
        op = w.step(x, 2.5)
        for each in disturb:
            each(w)
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        w.calls.null_press_in(call)
        try:
            return op.sync()
        finally:
            signal.signal(signal.SIGINT, before)
            w.note_states(x, op.source.content[0][0])
            w.note(told(w.step(fresh(), 0.5).sync()))

    return run, 0


LAUNCH, UPDATE = b"cuGraphLaunch", b"cuGraphExecKernelNodeSetParams"
CASES["Ctrl-C in an update"] = pressed(UPDATE)
CASES["Ctrl-C in a launch"] = pressed(LAUNCH)
CASES["Ctrl-C in a busy run"] = pressed(b"cuStreamQuery", lambda w: w.calls.null_busy(3))
CASES["Ctrl-C in a run that is longer than the spin"] = pressed(
    b"cuStreamSynchronize", lambda w: w.calls.null_busy(1 << 40)
)
CASES["Ctrl-C in a launch that is refused"] = pressed(LAUNCH, lambda w: w.calls.null_fail(LAUNCH, 1, 0))
CASES["Ctrl-C in an update that is refused"] = pressed(UPDATE, lambda w: w.calls.null_fail(UPDATE, 1, 0))


@case()
def ctrl_c_in_a_launch_over_two_devices(w: World) -> Any:
    w.is_steady = False
    both = on_two_devices()
    x, y = fresh(), fresh(N, "cuda:1")
    for _ in range(WARM):
        x, y = both(x, y, 0.5).sync()
    storages = storage_of(x), storage_of(y)
    op = both(x, y, 2.5)
    w.calls.null_busy(20_000)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    w.calls.null_press_in(b"cuStreamQuery")
    try:
        op.sync()
    except KeyboardInterrupt:
        w.note("interrupted")
    finally:
        signal.signal(signal.SIGINT, before)
    w.note([[each.lock.writer is None, each.lock.readers] for each in storages])
    return told(both(fresh(), fresh(N, "cuda:1"), 0.5).sync())


# ---- feeds


@case()
def a_feed(w: World) -> Any:
    number = source(1.0)
    x = full(S, 1).sync().share()

    @pipeline
    def made(a: Any) -> DeviceOp[Any]:
        return scale(empty(S).partition(S), a, x).first().unpartition()

    async def main() -> Any:
        async with dagpu.observe(number.then(lambda a: made(a))) as feed:
            for value in range(8):
                number.set(float(value))
                if value == 5:
                    w.calls.null_busy(3)
                w.note(told(await anext(feed)))
        return "over"

    return trio.run(main)


@case()
def threads_and_tasks(w: World) -> Any:
    """A thread makes calls while a task awaits others of the same pipeline."""
    w.is_steady = False

    async def main() -> Any:
        x = await ones((N,))
        for _ in range(200):
            x = await w.step(x, 0.5)
        return told(x)

    def work() -> None:
        y = fresh()
        for _ in range(200):
            y = w.step(y, 0.25).sync()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        return trio.run(main)
    finally:
        for thread in threads:
            thread.join()
