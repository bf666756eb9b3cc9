"""Small runs are executed by the thread that waits for them; those with bodies of the user's if the last was short."""

import signal
import threading
from contextvars import ContextVar
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest

from dagpu import DeviceError, NestedRunError, Out, Tile, expr, f32, ones, trace, zeros
from dagpu import kernel as declare
from dagpu.backends.host import host_run
from dagpu.backends.host.host_run import BESIDE_BYTES, MEASURED_RUNS, PROMPT_BYTES
from dagpu.backends.host.worker_threads import WorkerStream, process
from dagpu.common.critical import in_section, in_user_code
from dagpu.ops.compose import Launch as DagLaunch
from dagpu.plans.cost_model import MEASURED
from dagpu.testing import HostBackend, HostBody, Launch, Tiles, View, contiguous_layout, nodes_of
from tests.unit.backends.host.host_plans import F32, Builder, bytes_of, finish, kernel
from tests.unit.backends.host.host_plans import backend as backend


class Seen:
    """A plan of a launch in each lane, whose body notes its thread."""

    def __init__(self, *, generated: bool = True, lanes: tuple[Any, ...] = (0,), elements: int = 16) -> None:
        self.threads: list[threading.Thread] = []
        layout = contiguous_layout((elements,), F32)
        self.build = Builder(*lanes)
        self.outs: list[int] = []
        spec = replace(kernel(self.body), host=HostBody(self.body, True, self.body if generated else None))
        for lane in range(len(lanes)):
            out = self.build.buffer(layout.nbytes, lane=lane)
            tiles = Tiles(View(out, layout), layout.shape, (1,))
            self.build.put(Launch(spec, (tiles,), (1,), (), (out,), 0, None), lane)
            self.outs.append(out)

    def body(self, y: Any) -> None:
        self.threads.append(threading.current_thread())
        y.fill(2)

    def run(self, backend: HostBackend, spin: float, prepared: Any = None) -> bool:
        """Run it. True if it was over when the submission returned, on this thread alone."""
        self.threads.clear()
        bindings = self.build.bindings()
        run = (prepared or backend.prepare(self.build.plan())).submit(bindings, spin)
        over = run.done()
        finish(run)
        assert not run.failures()
        for out in self.outs:
            assert bytes_of(bindings[out])[:16].tolist() == [2] * 16
        return over and set(self.threads) == {threading.current_thread()}


@pytest.mark.parametrize("lanes", [(0,), (0, 1, 2)])
def test_a_waiting_thread_executes_a_small_run(backend: HostBackend, lanes: tuple[Any, ...]) -> None:
    """No worker is needed, for branches that workers would have done no sooner neither."""
    before = set(process.threads)
    assert Seen(lanes=lanes).run(backend, 1e-6)
    assert set(process.threads) == before


@pytest.mark.parametrize("kind", ["no wait", "user code", "stream of the user's", "large", "branches"])
def test_all_other_runs_are_for_workers(backend: HostBackend, kind: str) -> None:
    """A caller that does not wait, code of the user's, a stream that has an order of its own, long work, and branches
    that are worth it to be executed beside each other."""
    stream = WorkerStream(0, "own")
    runs = {
        "no wait": (Seen(), 0.0),
        "user code": (Seen(generated=False), 1e-6),
        "stream of the user's": (Seen(lanes=(stream,)), 1e-6),
        "large": (Seen(elements=PROMPT_BYTES // 4 + 1), 1e-6),
        "branches": (Seen(lanes=(0, 1), elements=BESIDE_BYTES // 8 + 1), 1e-6),
    }
    seen, spin = runs[kind]
    seen.run(backend, spin)
    assert threading.current_thread() not in seen.threads


def test_an_error_in_place_fails_the_run(backend: HostBackend) -> None:
    """As it does on a worker: the submission returns, and the run has the failure. Other branches are done."""
    seen = Seen(lanes=(0, 1))
    calls = iter([divide, seen.body])
    step: Any = seen.build.steps[-1]
    step.instruction.kernel.host.generated = lambda y: next(calls)(y)
    bindings = seen.build.bindings()
    run = backend.prepare(seen.build.plan()).submit(bindings, 1e-6)
    assert run.done()
    (failure,) = run.failures()
    assert type(failure.error) is ZeroDivisionError
    assert failure.instruction.writes == (seen.outs[0],)
    assert bytes_of(bindings[seen.outs[1]])[:16].tolist() == [2] * 16


def divide(y: Any) -> None:
    """A body that fails."""
    y[...] = 1 / 0


def test_floating_point_errors_are_ignored_in_generated_bodies_alone(backend: HostBackend) -> None:
    """As on a GPU, whatever the caller wants NumPy to do: here it raises. Afterwards it does so again."""
    seen, half = Seen(), np.full(16, 1e30, F32)
    step: Any = seen.build.steps[-1]
    step.instruction.kernel.host.generated = lambda y: np.copyto(y, half * half)
    bindings = seen.build.bindings()
    with np.errstate(all="raise"):
        for spin in (1e-6, 0.0):
            run = backend.prepare(seen.build.plan()).submit(bindings, spin)
            finish(run)
            assert not run.failures()
        with pytest.raises(FloatingPointError):
            np.multiply(half, half)


def test_an_interrupt_is_raised_after_the_run() -> None:
    """A Ctrl-C amid a body that the main thread executes cuts nothing off, and leaves no lock behind."""
    double = expr(f32)(lambda x: x * 2)
    t = ones((4,)).sync()
    first, op = [double(t.borrow()) for _ in range(2)]
    first.sync()  # it stores its plan while a worker executes it
    (kernel,) = [node.kernel for node in nodes_of(op) if isinstance(node, DagLaunch)]
    own, ended = kernel.host.generated, list[bool]()
    assert own is not None

    def interrupted(*arguments: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        own(*arguments)
        ended.append(threading.current_thread() is threading.main_thread())

    kernel.host.generated = interrupted
    with pytest.raises(KeyboardInterrupt):
        op.sync()
    kernel.host.generated = own
    assert ended == [True]
    assert double(t).to_host().sync().tolist() == [2] * 4


# ---- bodies of the user's


HERE = 1e-6
"""The spin of a thread that waits."""


@pytest.fixture(name="always_short")
def _always_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that waits executes every run that it may, the first one too."""
    monkeypatch.setattr(host_run, "SHORT_SECONDS", inf)


def test_a_waiting_thread_calls_bodies_once_a_run_was_short(
    backend: HostBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker calls them in the first run, in those that are measured for the table of costs, and in one before the
    first that the waiting thread executes; and again after one that took long."""
    monkeypatch.setattr(host_run, "SHORT_SECONDS", 1e9)
    monkeypatch.setenv("DAGPU_MEASURE", "1")
    MEASURED.clear()
    seen = Seen(generated=False)
    prepared = backend.prepare(seen.build.plan())
    found = [seen.run(backend, HERE, prepared) for _ in range(MEASURED_RUNS + 3)]
    assert found == [False] * (MEASURED_RUNS + 1) + [True] * 2
    assert not seen.run(backend, 0.0, prepared)
    monkeypatch.setattr(host_run, "SHORT_SECONDS", 0.0)
    assert not seen.run(backend, HERE, prepared)


def test_the_run_after_one_that_failed_is_for_a_worker(backend: HostBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says nothing about how long a run takes."""
    monkeypatch.setattr(host_run, "SHORT_SECONDS", 1e9)
    seen = Seen(generated=False)
    prepared = backend.prepare(seen.build.plan())
    while not seen.run(backend, HERE, prepared):
        pass
    step: Any = seen.build.steps[-1]
    own, step.instruction.kernel.host.function = step.instruction.kernel.host.function, divide
    run = prepared.submit(seen.build.bindings(), HERE)
    assert run.done()
    assert [type(failure.error) for failure in run.failures()] == [ZeroDivisionError]
    step.instruction.kernel.host.function = own
    assert [seen.run(backend, HERE, prepared) for _ in range(2)] == [False, True]


@pytest.mark.parametrize("kind", ["no wait", "stream of the user's", "small branches", "host_map", "recorded"])
def test_some_runs_are_for_workers_however_short(backend: HostBackend, always_short: None, kind: str) -> None:
    """Branches are concurrent; a trace shows the streams; a function of `host_map` may need a thread without an event
    loop."""
    seen = Seen(generated=False, lanes={"stream of the user's": (WorkerStream(0, "own"),)}.get(kind, (0,)))
    if kind == "small branches":
        seen = Seen(generated=False, lanes=(0, 1))
    if kind == "host_map":
        seen.build.call(lambda _: None, None, seen.build.cell())
    if kind == "recorded":
        with trace():
            seen.run(backend, HERE)
    else:
        seen.run(backend, 0.0 if kind == "no wait" else HERE)
    assert threading.current_thread() not in seen.threads


def test_a_failure_in_place_spreads_as_on_a_worker(backend: HostBackend, always_short: None) -> None:
    """What depends on it is skipped, and the rest is called, all in the same way."""
    where: list[tuple[bool, bool]] = []

    def body(y: Any, *_: Any) -> None:
        where.append((in_user_code(), threading.current_thread() is threading.main_thread()))
        y.fill(1)

    build = Builder()
    first, second, third = (build.buffer() for _ in range(3))
    failing = build.launch(lambda y: divide(y), first)
    build.launch(body, second, first)
    build.launch(body, third)
    bindings = build.bindings()
    run = backend.prepare(build.plan()).submit(bindings, HERE)
    assert run.done()
    assert [failure.instruction for failure in run.failures()] == [failing]
    assert run.spoilt() == frozenset((first, second))
    assert where == [(True, True)]
    assert not in_user_code()


current: ContextVar[int] = ContextVar("current", default=0)


@declare(cuda="__global__ void acting(Tile<float, 1> y) {}")
def acting(y: Out[f32]) -> None:
    """Does what a test wants, on the host."""


acts: list[Any] = []


@acting.host
def _(y: Tile[f32]) -> None:
    y[...] = 3
    for act in acts:
        act()


def test_a_body_on_the_waiting_thread_runs_no_op_and_keeps_its_context(always_short: None) -> None:
    """As on a worker, which calls it in the first run of all."""
    main = threading.current_thread()
    threads: list[threading.Thread] = []
    acts.clear()
    op = acting(zeros((4,)).partition((2,))).first().unpartition().to_host()
    op.sync()
    acts[:] = [lambda: threads.append(threading.current_thread()), lambda: current.set(current.get() + 1)]
    current.set(5)
    assert op.sync().tolist() == [3] * 4
    assert (current.get(), threads) == (5, [main] * 2)
    acts[:] = [zeros((4,)).to_host().sync]
    with pytest.raises(NestedRunError):
        op.sync()
    acts.clear()
    assert op.sync().tolist() == [3] * 4
    assert not in_section()


def test_no_body_is_called_while_the_interpreter_ends(
    always_short: None, backend: HostBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever thread would call it."""
    monkeypatch.setattr(process, "over", True)
    seen = Seen(generated=False)
    with pytest.raises(DeviceError, match="interpreter is ending"):
        seen.run(backend, HERE)
    assert not seen.threads


def test_an_interrupt_amid_a_body_skips_what_is_left(always_short: None) -> None:
    """The tile is finished, no other is begun, and no result is made of the rest. The borrowed tensor is free again."""
    y = zeros((8,)).sync()
    begun: list[int] = []

    def press() -> None:
        begun.append(1)
        if len(begun) == 2:
            signal.raise_signal(signal.SIGINT)

    def op() -> Any:
        return acting(y.borrow_mut().partition((2,))).first().unpartition().to_host()

    for calls in (1, 10):  # the general way, and the direct call
        acts.clear()
        for _ in range(calls):
            assert op().sync().tolist() == [3] * 8
        acts[:] = [press]
        begun.clear()
        with pytest.raises(KeyboardInterrupt):
            op().sync()
        assert len(begun) == 2
    acts.clear()
    assert op().sync().tolist() == [3] * 8


def test_an_interrupted_run_stores_no_result(always_short: None) -> None:
    """What it would store of a `shared()` op is not complete: another run makes it."""
    acts.clear()

    def made() -> Any:
        return acting.new((8,), (2,))().to_host().shared()

    made().sync()
    acts[:] = [lambda: signal.raise_signal(signal.SIGINT)]
    op = made()
    with pytest.raises(KeyboardInterrupt):
        op.sync()
    acts.clear()
    assert op.sync().tolist() == [3] * 8


def test_a_handler_of_the_users_that_raises_amid_a_body_fails_its_op(always_short: None) -> None:
    """So a time limit by an alarm ends an endless body. Nothing stays locked."""
    y = zeros((4,)).sync()

    def op() -> Any:
        return acting(y.borrow_mut().partition((4,))).first().unpartition().to_host()

    def expire(_signal: int, _frame: object) -> None:
        raise TimeoutError

    acts.clear()
    op().sync()
    before = signal.signal(signal.SIGUSR1, expire)
    acts[:] = [lambda: signal.raise_signal(signal.SIGUSR1)]
    try:
        with pytest.raises(TimeoutError):
            op().sync()
    finally:
        signal.signal(signal.SIGUSR1, before)
        acts.clear()
    assert op().sync().tolist() == [3] * 4
