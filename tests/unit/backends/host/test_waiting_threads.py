"""Small runs that call no code of the user's are executed by the thread that waits for them."""

import signal
import threading
from dataclasses import replace
from typing import Any

import pytest

from dagpu import expr, f32, ones
from dagpu.backends.common.worker_threads import WorkerStream, process
from dagpu.backends.host import HostBackend
from dagpu.backends.host.backend import PROMPT_BYTES
from dagpu.common.layout import contiguous_layout
from dagpu.lowering.program import Launch, Tiles, View
from dagpu.ops.compose import nodes_of
from dagpu.ops.kernel_spec import HostBody
from dagpu.ops.launch import Launch as DagLaunch
from tests.unit.backends.host.host_plans import F32, Builder, bytes_of, finish, kernel
from tests.unit.backends.host.host_plans import backend as backend


class Seen:
    """A plan of one launch, whose body notes its thread."""

    def __init__(self, *, generated: bool = True, lane: Any = 0, elements: int = 16) -> None:
        self.threads: list[threading.Thread] = []
        layout = contiguous_layout((elements,), F32)
        self.build = Builder(lane)
        self.out = self.build.buffer(layout.nbytes)
        spec = replace(kernel(self.body), host=HostBody(self.body, True, generated))
        tiles = Tiles(View(self.out, layout), layout.shape, (1,))
        self.build.put(Launch(spec, (tiles,), (1,), (), (self.out,), 0, None))

    def body(self, y: Any) -> None:
        self.threads.append(threading.current_thread())
        y.fill(2)

    def run(self, backend: HostBackend, spin: float) -> bool:
        """Run it. True if it was over when the submission returned, on this thread alone."""
        bindings = self.build.bindings()
        replay = backend.prepare(self.build.plan()).submit(bindings, spin)
        over = replay.done()
        finish(replay)
        assert not replay.failures()
        assert bytes_of(bindings.memory[self.out])[:16].tolist() == [2] * 16
        return over and self.threads == [threading.current_thread()]


def test_a_waiting_thread_executes_a_small_run(backend: HostBackend) -> None:
    """No worker is needed."""
    before = set(process.threads)
    assert Seen().run(backend, 1e-6)
    assert set(process.threads) == before


@pytest.mark.parametrize("kind", ["no wait", "user code", "stream of the user's", "large"])
def test_all_other_runs_are_for_workers(backend: HostBackend, kind: str) -> None:
    """A caller that does not wait, code of the user's, a stream that has an order of its own, and long work."""
    stream = WorkerStream(0, "own")
    runs = {
        "no wait": (Seen(), 0.0),
        "user code": (Seen(generated=False), 1e-6),
        "stream of the user's": (Seen(lane=stream), 1e-6),
        "large": (Seen(elements=PROMPT_BYTES // 4 + 1), 1e-6),
    }
    seen, spin = runs[kind]
    seen.run(backend, spin)
    assert seen.threads != [threading.current_thread()]


def test_an_error_in_place_fails_the_run(backend: HostBackend) -> None:
    """As it does on a worker: the submission returns, and the replay has the failure."""
    seen = Seen()

    def divide(y: Any) -> None:
        y[...] = 1 / 0

    step: Any = seen.build.steps[-1]
    step.instruction.kernel.host.function = divide
    replay = backend.prepare(seen.build.plan()).submit(seen.build.bindings(), 1e-6)
    assert replay.done()
    assert [type(failure.error) for failure in replay.failures()] == [ZeroDivisionError]


def test_an_interrupt_is_raised_after_the_run() -> None:
    """A Ctrl-C amid a body that the main thread executes cuts nothing off, and leaves no lock behind."""
    double = expr(f32)(lambda x: x * 2)
    t = ones((4,)).sync()
    first, op = [double(t.borrow()) for _ in range(2)]
    first.sync()  # it stores its plan while a worker executes it
    (kernel,) = [node.kernel for node in nodes_of(op) if isinstance(node, DagLaunch)]
    own, ended = kernel.host.function, list[bool]()
    assert own is not None

    def interrupted(*arguments: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        own(*arguments)
        ended.append(threading.current_thread() is threading.main_thread())

    kernel.host.function = interrupted
    with pytest.raises(KeyboardInterrupt):
        op.sync()
    kernel.host.function = own
    assert ended == [True]
    assert double(t).to_host().sync().tolist() == [2] * 4
