"""Ctrl-C, finalisers, forks and the interpreter's end, at every line of dagpu that a run passes through.

A trace function stands for the user's finger: when a chosen line of dagpu is about to run, it raises SIGINT, as a
terminal would, and Python calls whatever handler is installed. Each distinct line is tried once where runs begin and
end, and every few lines elsewhere. `DAGPU_EVERY_LINE=1` tries all of them.
"""

import faulthandler
import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import Any, Final, final

import numpy as np
import pytest
import trio
import trio.testing

import dagpu
from dagpu import (
    CudaGraph,
    DeviceOp,
    NestedRunError,
    Out,
    Tile,
    current_device,
    f32,
    from_host,
    full,
    kernel,
    memcpy,
    ones,
    pipeline,
    use_device,
    value,
    zeros,
    zip_ops,
)
from dagpu.backends.outcome import Outcome
from dagpu.critical import BOOKKEEPING, in_section
from dagpu.ops.compose import Shared
from dagpu.ownership import storage_of
from dagpu.runtime import completion
from dagpu.runtime.completion import TrioWaits
from dagpu.runtime.kept import plans
from tests.arithmetic import add, axpy, scale
from tests.simulated_cuda import driver, installed

PACKAGE: Final = str(Path(dagpu.__file__).parent) + os.sep
EVERY: Final = os.environ.get("DAGPU_EVERY_LINE") == "1"
SHAPE, TILE = (4, 4), (2, 4)
PATIENCE: Final = 60.0

EVERY_SO_MANY: Final = {
    tuple(PACKAGE + name for name in ("critical", "runtime", "storage", "ops/once")): 1,
    tuple(PACKAGE + name for name in ("backends", "lowering/takings", "lowering/trace", "lowering/walk")): 8,
    (PACKAGE,): 60,
}
"""Of the lines of these files, every so many-th is tried."""

Place = tuple[str, int]
"""A line of dagpu: its file and its number."""


@final
class Finger:
    """Calls `press` when this thread comes to a line of dagpu; notes all lines that it comes to.

    It presses the first time that it comes to each line, or with `after`, once: after so many lines, whichever.
    """

    def __init__(self, press: Callable[[], None] | None = None, *at: Place, after: int | None = None) -> None:
        self._press = press
        self._at = frozenset(at)
        """Where to press; everywhere if empty."""
        self._left = after
        self.pressed = False
        self.lines: dict[Place, None] = {}

    def __enter__(self) -> "Finger":
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, event: str, arg: object) -> Any:
        return self._line if frame.f_code.co_filename.startswith(PACKAGE) else None

    def _line(self, frame: FrameType, event: str, arg: object) -> Any:
        if event != "line":
            return self._line
        place = frame.f_code.co_filename, frame.f_lineno
        if self._left is not None:
            self._left -= 1
            if self._left >= 0 or self.pressed:
                return self._line
        elif place in self.lines:
            return self._line
        self.lines[place] = None
        if self._press is not None and (not self._at or place in self._at):
            self.pressed = True
            self._press()
        return self._line


def interrupt() -> None:
    """Ctrl-C."""
    signal.raise_signal(signal.SIGINT)


# ---- what is run ----------------------------------------------------------------------------------------------------
@final
class State:
    """What lives longer than one run: tensors that runs borrow, and a node that remembers."""

    def __init__(self) -> None:
        self.graph: CudaGraph[Any] | None = None
        self.read = full(SHAPE, 3.0).sync()
        self.written = zeros(SHAPE).sync()
        self.given = full(SHAPE, 5.0).sync().share()
        self.shared = scale(zeros(SHAPE).partition(TILE), 2.0, ones(SHAPE)).first().unpartition().shared()

    def op(self) -> DeviceOp[Any, Any, Any]:
        """Branches that read what is shared, lent and remembered, and write what is lent; a closure; two stages."""
        left, right = zip_ops(
            add(zeros(SHAPE).partition(TILE), self.shared, self.read.borrow()).first().unpartition(),
            add(zeros(SHAPE).partition(TILE), self.shared, self.given).first().unpartition(),
        ).unzip()
        joined = add(self.written.borrow_mut().partition(TILE), left, right).first()
        return joined.then(lambda p: axpy(p, 1.0, from_host(np.ones(SHAPE, np.float32))).first().unpartition()).then(
            lambda t: self.host(t)
        )

    def host(self, _: object) -> DeviceOp[Any, Any, Any]:
        return zip_ops(self.shared, full(SHAPE, 1.0)).then(
            lambda both: add(zeros(SHAPE).partition(TILE), *both).first().unpartition().to_host()
        )

    def check(self, place: object) -> None:
        """Nothing is locked, claimed or switched off. `place` is where the interrupt came."""
        assert not in_section(), place
        assert gc.isenabled(), place
        if self.graph is not None:
            self.graph.launch().sync()  # what has been enqueued for it holds its locks until then
        for handle in (self.read, self.written, self.given):
            storage = storage_of(handle)
            assert (storage.lock.readers, storage.lock.writer) == (0, None), place
        assert isinstance(self.shared, Shared)
        assert self.shared.once.settled(), place


def first(state: State) -> DeviceOp[Any, Any, Any]:
    """A first run, its plan not known."""
    plans.clear()
    return state.op()


def step(x: Any, a: float) -> DeviceOp[Any, Any, Any]:
    return axpy(x.partition(TILE), a, ones(SHAPE)).first().unpartition().to_host()


def repeated(state: State) -> DeviceOp[Any, Any, Any]:
    """A call of a pipeline that has a plan, on a GPU as a graph."""
    f = pipeline(graph_from=2)(step)
    for _ in range(3):
        f(zeros(SHAPE).sync(), 1.0).sync()
    return f(zeros(SHAPE).sync(), 2.0)


def again(state: State) -> DeviceOp[Any, Any, Any]:
    """The same op again, with locks."""
    op = add(zeros(SHAPE).partition(TILE), state.read.borrow(), state.given).first().unpartition().to_host()
    op.sync()
    return op


def launched(state: State) -> DeviceOp[Any, Any, Any]:
    """A launch of a graph, after an update of its input."""
    op = add(zeros(SHAPE).partition(TILE), state.read.borrow(), state.given).first().unpartition()
    state.graph = op.graph()
    state.graph.update(memcpy(state.read.borrow_mut(), state.given))
    return state.graph.launch()


OPS: Final = {f.__name__: f for f in (first, repeated, again, launched)}


# ---- where ---------------------------------------------------------------------------------------------------------
@contextmanager
def on_simulated_gpu() -> Iterator[None]:
    with installed(seed=5):
        for each in (add, axpy, scale):
            each.compile()
        yield


PLACES: Final[dict[str, Callable[[], AbstractContextManager[object]]]] = {
    "host": lambda: use_device("host"),
    "explore": lambda: use_device("explore:0"),
    "cuda": on_simulated_gpu,
}


def nothing_under_way(where: str) -> bool:
    """Has every device done all that it was given?"""
    return where != "cuda" or not any(driver(number).live for number in range(2))


def lines_of(call: Callable[[], object]) -> list[Place]:
    """The lines of dagpu that this passes and that are to be tried."""
    with Finger() as finger:
        call()
    return [line for n, line in enumerate(finger.lines) if EVERY or n % _stride(line) == 0]


def _stride(line: Place) -> int:
    return next(stride for files, stride in EVERY_SO_MANY.items() if line[0].startswith(files))


def every_line(where: str, ways: dict[str, Callable[[State], Callable[[], object]]]) -> None:
    """Press Ctrl-C at each line that these ways of running pass, each time in a new state, and see what is left."""
    with PLACES[where]():
        handler = signal.getsignal(signal.SIGINT)
        for way in ways.values():
            for place in lines_of(way(State())):
                state = State()
                run = way(state)
                interrupted = False
                with Finger(interrupt, place) as finger:
                    try:
                        run()
                    except KeyboardInterrupt:
                        interrupted = True
                assert interrupted == finger.pressed, place  # some lines depend on what other threads have done
                assert signal.getsignal(signal.SIGINT) is handler, place
                state.check(place)
                assert nothing_under_way(where), place
                assert (state.op().sync() == 3).all(), place


def blocking(build: Callable[[State], DeviceOp[Any, Any, Any]]) -> Callable[[State], Callable[[], object]]:
    return lambda state: build(state).sync


def in_a_task(build: Callable[[State], DeviceOp[Any, Any, Any]]) -> Callable[[State], Callable[[], object]]:
    def way(state: State) -> Callable[[], object]:
        op = build(state)

        async def main() -> None:
            await op
            await trio.lowlevel.checkpoint()  # at the latest here trio raises what came too late for the run

        return lambda: trio.run(main)

    return way


@pytest.mark.parametrize("where", PLACES)
def test_an_interrupt_at_any_line_of_sync_leaves_nothing(where: str) -> None:
    """Whatever line Ctrl-C hits, `sync()` raises `KeyboardInterrupt`; all is drained, given back and usable."""
    every_line(where, {name: blocking(build) for name, build in OPS.items()})


@pytest.mark.parametrize("where", PLACES)
def test_an_interrupt_at_any_line_of_a_task_leaves_nothing(where: str) -> None:
    """Whatever line Ctrl-C hits, `trio.run` raises `KeyboardInterrupt`, never an error of trio's own."""
    every_line(where, {name: in_a_task(build) for name, build in OPS.items()})


@pytest.mark.parametrize("where", PLACES)
def test_an_interrupt_at_any_line_of_a_capture_leaves_nothing(where: str) -> None:
    """Whatever line Ctrl-C hits while a graph is captured or recorded, it ends like any other run."""

    def captured(state: State) -> Callable[[], object]:
        return (
            add(state.written.borrow_mut().partition(TILE), state.read.borrow(), state.given)
            .first()
            .unpartition()
            .graph
        )

    def recorded(state: State) -> Callable[[], object]:
        op = add(state.written.borrow_mut().partition(TILE), state.read.borrow(), state.given)
        stream = current_device().stream()

        def run() -> None:
            with CudaGraph.scope(stream) as scope:
                scope.record(op)

        return run

    every_line(where, {"captured": captured, "recorded": recorded})


@pytest.mark.parametrize("where", PLACES)
def test_a_second_interrupt_does_not_end_the_drain(where: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C again while a cancelled run is being drained: it is still drained, and one `KeyboardInterrupt` comes."""
    with PLACES[where]():
        for way in (blocking(first), in_a_task(first)):
            places = lines_of(way(State()))
            for n in range(0, len(places) - 20, 10):
                state = State()
                run = way(state)
                with Finger(interrupt, places[n], places[n + 13]) as finger, suppress(KeyboardInterrupt):
                    run()
                    assert not finger.pressed
                assert nothing_under_way(where)
                state.check(places[n])


@final
class Slow:
    """A replay that is under way until `end` is called, and says so by a descriptor, as on a GPU."""

    def __init__(self, events: list[str]) -> None:
        self._reading, self._writing = os.pipe()
        self._events = events

    def poll(self, seconds: float) -> bool:
        return False

    def readable(self) -> int:
        return self._reading

    def cancel(self) -> None:
        self._events.append("cancelled")

    def end(self) -> None:
        self._events.append("done")
        os.close(self._writing)


@pytest.mark.usefixtures("capfd")  # a second Ctrl-C says what a third would do
def test_a_second_interrupt_does_not_end_the_wait_for_a_descriptor() -> None:
    """The first Ctrl-C cancels what a task waits for, and the task waits on; the second does not end that either. One
    `KeyboardInterrupt` comes, once the device is done."""
    events: list[str] = []
    replay: Any = Slow(events)

    @trio.lowlevel.enable_ki_protection  # so that trio hands it to the main task
    async def press_twice() -> None:
        for _ in range(2):
            await trio.testing.wait_all_tasks_blocked()
            interrupt()
        await trio.testing.wait_all_tasks_blocked()
        replay.end()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(press_twice)
            with pytest.raises(KeyboardInterrupt):
                await TrioWaits().replay(replay, 0.0)
            events.append("raised")

    trio.run(main)
    assert events == ["cancelled", "done", "raised"]


@pytest.mark.parametrize("where", PLACES)
def test_a_finaliser_at_any_line_runs_its_op_or_is_refused(where: str) -> None:
    """Wherever the collector calls a finaliser that runs an op, that has its result or is refused: no deadlock."""
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    refused: list[str] = []
    done: list[bool] = []

    def finaliser() -> None:
        try:
            warnings.simplefilter("ignore")  # it blocks the loop, which is what it is about
            done.append(bool((ones((2,)).to_host().sync() == 1).all()))
        except NestedRunError as error:
            refused.append(str(error))

    try:
        with PLACES[where](), warnings.catch_warnings():
            for build in OPS.values():
                for way in (blocking, in_a_task):
                    run = way(build)(State())
                    with Finger(finaliser):
                        run()
            assert all(done)
            assert len(refused) > 500
            cured: SimpleQueue[DeviceOp[Any]] = SimpleQueue()
            assert "queue.SimpleQueue" in refused[0]
            cured.put(ones((2,)).to_host())
            assert (cured.get().sync() == 1).all()
    finally:
        faulthandler.cancel_dump_traceback_later()


CALLS: Final[dict[str, Callable[[Any], object]]] = {
    "clone": lambda shared: shared.clone(),
    "reshape": lambda shared: shared.reshape((16,)),
    "try_unwrap": lambda shared: shared.try_unwrap(),
    "cache_info": lambda shared: pipeline(step).cache_info(),
    "cache_clear": lambda shared: pipeline(step).cache_clear(),
    "memory_used": lambda shared: current_device().memory_used(),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_interrupt_at_any_line_of_a_call_leaves_no_lock(name: str) -> None:
    """Calls outside of runs that take the lock raise `KeyboardInterrupt` at whatever line Ctrl-C hits, each time that
    Python comes to it, and another thread gets the lock."""
    handler = signal.getsignal(signal.SIGINT)
    with ThreadPoolExecutor(1) as other:
        for after in itertools.count():
            shared = ones(SHAPE).share().sync()
            with Finger(interrupt, after=after) as finger, suppress(KeyboardInterrupt):
                CALLS[name](shared)
                assert not finger.pressed, after
            if not finger.pressed:
                break
            assert other.submit(BOOKKEEPING.acquire, timeout=PATIENCE).result(), after
            other.submit(BOOKKEEPING.release).result()
            assert signal.getsignal(signal.SIGINT) is handler, after
            assert not in_section(), after
    assert after > 5


# ---- functions of the user's ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("way", [blocking, in_a_task])
def test_an_endless_closure_can_be_interrupted(way: Any) -> None:
    """Ctrl-C breaks into a closure at once: it is the user's code, and holds nothing of the run's."""
    state = State()
    turns = 0

    def endless(handle: Any) -> Any:
        nonlocal turns
        while True:
            turns += 1
            if turns == 3:
                interrupt()

    op = add(zeros(SHAPE).partition(TILE), state.read.borrow(), state.given).map(endless)
    with pytest.raises(KeyboardInterrupt):
        way(lambda _: op)(state)()
    assert turns == 3
    state.check(None)


@final
class Chain:
    """An op of many closures, each of which builds the next; it owns a tensor."""

    LENGTH: Final = 40

    def __init__(self, between: Callable[[int], None] = lambda _: None) -> None:
        self.called = 0
        self._between = between
        self.op: DeviceOp[Any, Any, Any] = value(ones(SHAPE).sync()).then(self._next)

    def _next(self, tensor: Any) -> DeviceOp[Any, Any, Any]:
        self.called += 1
        self._between(self.called)
        kept = value(tensor).map(lambda t: t)
        return kept.to_host() if self.called >= self.LENGTH else kept.then(self._next)

    def check(self, called: int) -> None:
        """So many closures were called; what the op owns it owns still, and it can be run."""
        assert self.called == called
        self._between = lambda _: None
        assert (self.op.sync() == 1).all()


@pytest.mark.parametrize("way", [blocking, in_a_task])
def test_an_interrupt_between_two_closures_is_raised_at_the_next(way: Any) -> None:
    """Ctrl-C that comes in dagpu's own code, in the middle of a long trace, is not held until the trace ends: no other
    closure is called, and the op has its tensor back."""
    chain = Chain()
    pressed = False

    def press() -> None:
        nonlocal pressed
        if chain.called and in_section() and not pressed:
            pressed = True
            interrupt()

    run = way(lambda _: chain.op)(State())
    with Finger(press), pytest.raises(KeyboardInterrupt):
        run()
    assert pressed
    chain.check(called=1)


def test_other_tasks_have_turns_between_the_closures_of_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace that takes long pauses before a closure: the loop runs other tasks, which may cancel it."""
    monkeypatch.setattr(completion, "TURN_SECONDS", 0.0)
    chain = Chain()
    seen: set[int] = set()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(chain_in_task, nursery.cancel_scope)
            while chain.called < chain.LENGTH // 2:
                seen.add(chain.called)
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()

    async def chain_in_task(scope: trio.CancelScope) -> None:
        with pytest.raises(trio.Cancelled):
            await chain.op
        assert scope.cancel_called
        await trio.lowlevel.checkpoint()

    trio.run(main)
    assert len(seen) > chain.LENGTH // 8
    assert chain.called < chain.LENGTH
    chain.check(called=chain.called)


def test_a_trace_whose_task_is_cancelled_calls_no_other_closure() -> None:
    """A cancellation is seen at the next closure, however short the trace has been."""
    scope = trio.CancelScope()
    chain = Chain(lambda called: scope.cancel() if called == 3 else None)

    async def main() -> None:
        with scope:
            await chain.op
        assert scope.cancelled_caught

    trio.run(main)
    chain.check(called=3)


@kernel(cuda="__global__ void tiles(Tile<float, 1> y, int n) { for (auto i : y) y[i] = n; }")
def tiles(y: Out[f32], n: int) -> None:
    """Counts its tiles, on the host."""


_began: list[int] = []
_at_first: list[Callable[[], None]] = []


@tiles.host
def _(y: Tile[f32], n: int) -> None:
    _began.append(n)
    while _at_first:
        _at_first.pop()()


@pytest.fixture
def cancelled(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Set once a run has been cancelled."""
    found, real = threading.Event(), Outcome.cancel

    def cancel(outcome: Outcome) -> None:
        real(outcome)
        found.set()

    monkeypatch.setattr(Outcome, "cancel", cancel)
    _began.clear()
    yield found
    _at_first.clear()


@pytest.mark.parametrize("as_graph", [False, True])
def test_an_interrupt_stops_a_launch_between_two_tiles(cancelled: threading.Event, as_graph: bool) -> None:
    """On the host the tile that is being computed is finished, and no other of the launch is begun."""
    main = threading.get_ident()
    y = zeros((64,)).sync()
    op: DeviceOp[Any, Any, Any] = tiles(y.borrow_mut().partition((1,)), 1)
    if as_graph:
        op = op.graph().launch()
        _began.clear()

    def press() -> None:
        signal.pthread_kill(main, signal.SIGINT)
        assert cancelled.wait(PATIENCE)

    _at_first.append(press)
    with pytest.raises(KeyboardInterrupt):
        op.sync()
    assert len(_began) == 1
    tiles(y.borrow_mut().partition((1,)), 2).sync()
    assert len(_began) == 65


def test_a_cancellation_stops_a_launch_between_two_tiles(cancelled: threading.Event) -> None:
    """The same for a trio scope."""

    async def main() -> None:
        with trio.CancelScope() as scope:
            token = trio.lowlevel.current_trio_token()
            _at_first.append(lambda: trio.from_thread.run_sync(scope.cancel, trio_token=token))
            await tiles(zeros((64,)).partition((1,)), 1)
        assert scope.cancelled_caught

    trio.run(main)
    assert cancelled.is_set()
    assert len(_began) == 1


# ---- processes ------------------------------------------------------------------------------------------------------
def child(script: str, *, interrupts: int = 0) -> "subprocess.CompletedProcess[str]":
    """Run a script in a Python of its own; once it has written a line, send it so many SIGINT, each after the line
    that says that the one before was seen."""
    environment = {**os.environ, "DAGPU_DEVICE": "host"}
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        hung = threading.Timer(PATIENCE, process.kill)
        hung.start()
        for _ in range(interrupts):
            process.stdout.readline()
            process.send_signal(signal.SIGINT)
        out, err = process.communicate()
        hung.cancel()
    return subprocess.CompletedProcess(command, process.returncode, out, err)


ENDLESS = """
import threading, {imports}
from dagpu import *
@kernel(cuda="__global__ void stuck(Tile<float, 1> y) {{}}")
def stuck(y: Out[f32]) -> None: ...
@stuck.host
def _(y: Tile[f32]) -> None:
    print("at work", flush=True)
    threading.Event().wait()
from dagpu import critical
real = critical._Presses.add
def add(self):
    print("pressed", flush=True)
    real(self)
critical._Presses.add = add
critical.PRESS_SECONDS = 60  # this machine may be slow
op = stuck(zeros((1,)).partition((1,)))
"""


@pytest.mark.parametrize("under_trio", [False, True])
def test_a_third_interrupt_within_a_second_ends_the_process(under_trio: bool) -> None:
    """Where work never ends, three Ctrl-C do, with a message, as SIGINT does where nobody handles it."""
    run = "async def main(): await op\ntrio.run(main)" if under_trio else "op.sync()"
    done = child(ENDLESS.format(imports="trio") + run, interrupts=3)
    assert done.returncode == -signal.SIGINT
    assert "one more Ctrl-C within a second ends the process" in done.stderr
    assert "the process ends, and work on devices is not waited for" in done.stderr


def test_an_op_in_a_finaliser_at_the_interpreters_end_is_refused() -> None:
    """Worker threads are gone by then: the op raises, and the process ends."""
    done = child(
        "import dagpu\n"
        "class Late:\n"
        "    def __del__(self): dagpu.ones((2,)).to_host().sync()\n"
        "late = Late()\n"
        "dagpu.ones((2,)).to_host().sync()\n"
    )
    assert done.returncode == 0
    assert "DeviceError: the interpreter is ending" in done.stderr


def test_an_op_in_an_atexit_function_runs_or_is_refused() -> None:
    """One that was registered later than dagpu's own runs; one that was registered before is refused."""
    done = child(
        "import atexit\n"
        "def late(name):\n"
        "    import dagpu\n"
        "    try: print(name, dagpu.ones((2,)).to_host().sync().sum())\n"
        "    except dagpu.DeviceError as error: print(name, 'refused')\n"
        "atexit.register(late, 'before')\n"
        "import dagpu\n"
        "dagpu.ones((2,)).to_host().sync()\n"
        "atexit.register(late, 'after')\n"
    )
    assert (done.returncode, done.stdout) == (0, "after 2.0\nbefore refused\n")


def test_a_child_forked_amid_runs_of_other_threads_runs_ops() -> None:
    """Whatever lock another thread held at the fork, the child has it free; what that thread was making, it makes."""
    done = child(
        "import os, threading\n"
        "from dagpu import *\n"
        "over = threading.Event()\n"
        "f = pipeline(lambda n: full((8,), n).to_host())\n"
        "shared = [ones((8,)).shared() for _ in range(64)]\n"
        "f(0.0).sync()\n"  # Python itself hangs where a module is being imported at the fork
        "def hammer():\n"
        "    n = 0\n"
        "    while not over.is_set():\n"
        "        n += 1\n"
        "        f(float(n)).sync(); shared[n % 64].to_host().sync(); device('host').memory_used()\n"
        "threads = [threading.Thread(target=hammer) for _ in range(3)]\n"
        "for thread in threads: thread.start()\n"
        "for _ in range(25):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        ok = all((each.to_host().sync() == 1).all() for each in shared) and f(2.0).sync()[0] == 2\n"
        "        os._exit(0 if ok else 3)\n"
        "    assert os.waitpid(pid, 0)[1] == 0\n"
        "over.set()\n"
        "for thread in threads: thread.join()\n"
    )
    assert (done.returncode, done.stderr) == (0, "")


# ---- a run that nobody awaits any more ------------------------------------------------------------------------------
@pytest.mark.parametrize("updated", [False, True])
def test_a_run_that_is_dropped_is_drained(cancelled: threading.Event, updated: bool) -> None:
    """Where an interrupt in the user's own frame drops a run that is under way, that is cancelled and waited for, its
    locks are released, and the task goes on."""
    y, new = zeros((4,)).sync(), ones((4,)).sync()
    op: DeviceOp[Any, Any, Any] = tiles(y.borrow_mut().partition((1,)), 1)
    graph = op.graph() if updated else None
    _began.clear()

    def wait() -> None:
        assert cancelled.wait(PATIENCE)

    _at_first.append(wait)

    async def main() -> None:
        if graph is not None:
            graph.update(memcpy(y.borrow_mut(), new))
        run = (op if graph is None else graph.launch()).__await__()
        run.send(None)
        run.close()
        assert cancelled.is_set()
        assert (storage_of(y).lock.readers, storage_of(y).lock.writer) == (0, None)
        await trio.lowlevel.checkpoint()
        await tiles(y.borrow_mut().partition((1,)), 2)

    trio.run(main)
    assert _began[-4:] == [2, 2, 2, 2]
    assert len(_began) <= 5
