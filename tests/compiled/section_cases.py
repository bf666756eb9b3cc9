"""Calls that need code of Python in the middle: what else runs there is refused or deferred, and nothing is lost."""

import signal
import traceback
from contextlib import suppress
from typing import Any

import dagpu
from dagpu import DeviceOp, SharedTensor, empty, f32, full, pipeline
from dagpu.common.errors import NestedRunError
from tests.compiled.worlds import WARM, S, World, case, fresh, when_called
from tests.programs.arithmetic import scale


@pipeline
def made(x: SharedTensor[f32], a: float) -> DeviceOp[Any]:
    """A call takes memory for its result, which is code of Python."""
    return scale(empty(S).partition(S), a, x).first().unpartition()


def warm() -> Any:
    x = full(S, 1).sync().share()
    for _ in range(WARM):
        made(x, 0.5).sync()
    return x


@case()
def a_run_while_memory_is_taken(w: World) -> Any:
    """A finaliser or a signal handler may run anywhere in the pool, whose lock it would wait for."""
    x, errors = warm(), list[str]()

    def run() -> None:
        try:
            made(x, 0.25).sync()
        except NestedRunError as error:
            errors.append(type(error).__name__)

    w.device.memory.trim()  # what is idle is taken without code of Python
    with when_called("take", run):
        y = made(x, 0.5).sync()
    w.note(errors)
    return [y, made(x, 2.0).sync()]


@case()
def ctrl_c_while_memory_is_taken(w: World) -> Any:
    """It is raised at the end of the call, and the memory goes back to the pool."""
    x, before = warm(), signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        w.device.memory.trim()
        with suppress(KeyboardInterrupt), when_called("take", lambda: signal.raise_signal(signal.SIGINT)):
            made(x, 0.5).sync()
            w.note("not interrupted")
        used = w.device.memory.used
        for name in ("take", "_block", "allocate_blocks") * 5:
            w.device.memory.trim()
            with suppress(KeyboardInterrupt), when_called(name, lambda: signal.raise_signal(signal.SIGINT)):
                made(x, 0.5).sync()
                w.note("not interrupted")
        w.note(w.device.memory.used - used, signal.getsignal(signal.SIGINT) is signal.default_int_handler)
        return made(x, 2.0).sync()
    finally:
        signal.signal(signal.SIGINT, before)


@case()
def ctrl_c_while_a_refusal_is_handled(w: World) -> Any:
    """The graph of the run is not lost: there are four for a plan."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    graphs = w.loaded().prepared.graphs
    try:
        for _ in range(6):
            w.calls.null_fail(b"cuGraphLaunch", 1, 0)
            with suppress(KeyboardInterrupt), when_called("graph_failed", lambda: signal.raise_signal(signal.SIGINT)):
                w.step(fresh(), 0.5).sync()
                w.note("not interrupted")
            w.note(graphs.can_lend)
    finally:
        signal.signal(signal.SIGINT, before)


@case()
def a_tensor_that_moves_while_its_call_is_read(w: World) -> Any:
    """A profiler, a finaliser or another thread may move it when the file of the caller is looked up."""
    x = fresh()
    calling: dict[str, Any] = {}
    exec(compile("def call(step, x):\n    return step(x, 0.5)\n", "/another/file.py", "exec"), calling)
    with when_called("is_ours", x.share):
        return calling["call"](w.step, x).sync()


@case()
def an_error_keeps_no_memory(w: World) -> Any:
    """Its traceback has the frames of the program alone."""
    x = warm()
    w.device.memory.trim()
    w.device.gpu.room = 0
    found = None
    try:
        made(x, 0.5).sync()
    except dagpu.OutOfMemoryError as error:
        found = error
    assert found is not None
    w.note([frame.name for frame in traceback.extract_tb(found.__traceback__)])


@case()
def wrong_arguments(w: World) -> Any:
    """`sync()` takes none, and says so in the same words."""
    op: Any = full(S, 1)
    for arguments, named in (((1,), {}), ((), {"a": 1}), (range(20), {})):
        try:
            op.sync(*arguments, **named)
        except TypeError as error:
            w.note(str(error))
