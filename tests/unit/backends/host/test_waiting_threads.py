"""Small runs that call no code of the user's are executed by the thread that waits for them."""

import signal
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dagpu import expr, f32, ones
from dagpu.backends.host.host_run import BESIDE_BYTES, PROMPT_BYTES
from dagpu.backends.host.worker_threads import WorkerStream, process
from dagpu.ops.compose import Launch as DagLaunch
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

    def run(self, backend: HostBackend, spin: float) -> bool:
        """Run it. True if it was over when the submission returned, on this thread alone."""
        bindings = self.build.bindings()
        run = backend.prepare(self.build.plan()).submit(bindings, spin)
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
