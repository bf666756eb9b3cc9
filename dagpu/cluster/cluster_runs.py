"""Plans on a cluster, cut into tasks, and their runs. An engine runs the tasks."""

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn, Protocol, final

from dagpu.backends.common.measuring import SpanTrack, track_maker
from dagpu.backends.protocol import Bindings, Failure
from dagpu.cluster.lineage import warn_of_long_lineages
from dagpu.cluster.task_lists import TaskList
from dagpu.cluster.tasks import Group, Hold
from dagpu.common.critical import SIGNALS_SECONDS
from dagpu.common.errors import CaptureError
from dagpu.common.layout import Layout
from dagpu.handles.device_handles import NO_GRAPHS
from dagpu.handles.library_bodies import LibraryBody
from dagpu.lowering.plan import Plan
from dagpu.lowering.program import Program

_runs: Final = itertools.count(1)


class Engine(Protocol):
    """Runs the tasks of runs on workers. Its methods may be called on any thread."""

    def start(self, run: "ClusterRun") -> None:
        """Begin a run. `run.finish` is called once nothing of it is under way any more."""
        ...

    def cancel(self, run: "ClusterRun") -> None:
        """Cancel a run. Does nothing if it is done. A signal handler may call it."""
        ...

    def memory_info(self, worker: str, device: str) -> tuple[int, int]:
        """Return the free and the total memory of a device of a worker, in bytes."""
        ...

    def memory_used(self, device: str) -> int:
        """Return the bytes of the tensors that are held for this process on a device, by its whole name."""
        ...

    def scratch_bytes(self, worker: str, device: str, body: LibraryBody, operands: Sequence[Layout]) -> int:
        """Return the bytes of scratch memory that a library needs on a device of a worker."""
        ...


@final
class ClusterRun:
    """One run of a plan on a cluster. Implements `dagpu.backends.protocol.Run`."""

    def __init__(
        self,
        name: str,
        tasks: TaskList,
        memory: list[Any],
        engine: Engine,
        track: Callable[[str, str], SpanTrack] | None = None,
    ) -> None:
        self.name = name
        self.tasks = tasks
        self.memory = memory
        """The memory of the program's buffers."""
        self.track = track
        """Returns the track of a trace for a name and a worker; None if the run is not traced."""
        self._engine = engine
        self._failures: list[Failure] = []
        self._settled = False
        """True once what the run has made is in its memory."""
        self._ended = threading.Event()
        self._wakes: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    # ---- for the engine

    def finish(
        self,
        holds: Mapping[Group, Hold],
        values: Mapping[Group, Any],
        error: BaseException | None = None,
        *,
        cancelled: bool = False,
    ) -> None:
        """End the run. With an error, and if it was cancelled, nothing is put into its memory, and tensors that it was
        lent for writing are as they were."""
        if error is None and not cancelled:
            try:
                self.tasks.settle(self.memory, holds, values)
                self._settled = True
            except BaseException as failed:
                error = failed
        if error is not None:
            instruction = self.tasks.program.instructions[0]
            errors = error.exceptions if isinstance(error, BaseExceptionGroup) else [error]
            self._failures = [Failure(instruction, each) for each in errors]
        with self._lock:
            self._ended.set()
            wakes, self._wakes = self._wakes, []
        for wake in wakes:
            wake()

    # ---- for the caller

    def done(self) -> bool:
        """Return True once nothing of the run is under way."""
        return self._ended.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the run is done, for at most `timeout` seconds. Return `done()`."""
        if timeout is not None:
            return self._ended.wait(timeout)
        while not self._ended.wait(SIGNALS_SECONDS):
            pass
        return True

    def poll(self, seconds: float) -> bool:
        """Return `done()`: a run on a cluster takes milliseconds, so polling would only take time from others."""
        return self._ended.is_set()

    def succeeds(self, seconds: float) -> bool:
        """Return True if the run is done, and all that it makes is in its memory."""
        return self._ended.is_set() and self._settled

    @property
    def cancellable(self) -> bool:
        return not self._ended.is_set()

    def readable(self) -> None:
        """Return None: the thread of the engine runs Python, so it calls the functions of `when_done`."""
        return

    def woken(self) -> None:
        """Do nothing."""

    def when_done(self, wake: Callable[[], None]) -> None:
        """Call `wake` once when the run is done, on the thread of the engine, or in this call if it is done."""
        with self._lock:
            if not self._ended.is_set():
                self._wakes.append(wake)
                return
        wake()

    def cancel(self) -> None:
        """Cancel the parts of the run. It is done when no worker is at any of them."""
        self._engine.cancel(self)

    def failures(self) -> list[Failure]:
        """Return the failures, and drop them."""
        found, self._failures = self._failures, []
        return found

    def spoilt(self) -> None:
        """Return None: nobody knows which parts the workers have completed."""


@final
class ClusterPlan:
    """A plan, cut into tasks. Implements `dagpu.backends.protocol.Prepared`."""

    __slots__ = ("_cut", "_engine", "_lock", "_plan", "_tag", "tasks")
    launch_again: None = None
    lacks_graph: str = NO_GRAPHS

    def __init__(self, plan: Plan, cut: Callable[[Program], TaskList], engine: Engine, tag: str) -> None:
        self._plan = plan
        self._cut = cut
        self._engine = engine
        self._tag = tag
        self._lock = threading.Lock()
        self.tasks: TaskList | None = None
        """The tasks, once the plan is cut."""

    @property
    def before_first(self) -> Callable[[], None] | None:
        """The cut, on the first run."""
        return self.cut if self.tasks is None else None

    @property
    def before_graph(self) -> Callable[[], None] | None:
        """The cut: each worker makes graphs of its own parts."""
        return self.before_first

    def cut(self) -> None:
        """Cut the plan, and prove the cut."""
        with self._lock:
            if self.tasks is None:
                self.tasks = self._cut(self._plan.program)

    def submit(self, bindings: Bindings, spin: float = 0.0, *, graph: bool = False) -> ClusterRun:
        """Start a run; see `Prepared.submit`."""
        self.cut()
        tasks = self.tasks
        assert tasks is not None
        warn_of_long_lineages(tasks, bindings.memory)
        run = ClusterRun(f"{next(_runs):x}-{self._tag}", tasks, bindings.memory, self._engine, track_maker())
        self._engine.start(run)
        return run

    def keep_memory(self) -> None:
        """Do nothing: no run is a launch of a graph. See `Prepared.keep_memory`."""

    def freeze(self, bindings: Bindings) -> NoReturn:
        """Refuse: the memory of a captured graph is that of one process.

        Raises:
            CaptureError: always.
        """
        raise CaptureError(
            "an op on a cluster is not captured as one graph. Run the op itself, as often as you like: its plan is "
            "kept, and each worker launches its parts as graphs from the third run on."
        )
