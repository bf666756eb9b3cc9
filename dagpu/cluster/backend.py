"""A cluster as a backend: its devices, the cut of plans for them, and their runs."""

import itertools
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, Protocol, final

import numpy as np

from dagpu.backends.host.measuring import SpanTrack, track_maker
from dagpu.backends.protocol import Failure
from dagpu.cluster.blobs import Encoder, refused_code
from dagpu.cluster.cutting import Part, cut
from dagpu.cluster.part_checks import verify_parts
from dagpu.cluster.report import choose_part_seconds
from dagpu.cluster.tasks import Group, Hold, TaskList, warn_of_long_lineages
from dagpu.common.critical import SIGNALS_SECONDS
from dagpu.common.env_vars import CLUSTER_NAMES, VERIFY
from dagpu.common.errors import CaptureError, ClusterError, NoDeviceError
from dagpu.common.layout import Layout
from dagpu.handles.device_handles import NO_GRAPHS, Device, Exchange, LibraryBody, MappedMemory
from dagpu.plans.cost_model import CostModel
from dagpu.plans.mesh import Mesh
from dagpu.plans.plan import Plan
from dagpu.plans.program import Program

if TYPE_CHECKING:
    from numpy.typing import NDArray


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

    is_launch: bool = False

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
    launch_whole: None = None
    flight: None = None
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

    def submit(self, memory: list[object], spin: float = 0.0, graph: bool = False) -> ClusterRun:
        """Start a run; see `Prepared.submit`."""
        self.cut()
        tasks = self.tasks
        assert tasks is not None
        warn_of_long_lineages(tasks, memory)
        run = ClusterRun(f"{next(_runs):x}-{self._tag}", tasks, memory, self._engine, track_maker())
        self._engine.start(run)
        return run

    def keep_memory(self) -> None:
        """Do nothing: no run is a launch of a graph. See `Prepared.keep_memory`."""

    def freeze(self, memory: list[object]) -> NoReturn:
        """Refuse: the memory of a captured graph is that of one process.

        Raises:
            CaptureError: always.
        """
        raise CaptureError(
            "an op on a cluster is not captured as one graph. Run the op itself, as often as you like: its plan is "
            "kept, and each worker launches its parts as graphs from the third run on."
        )


# ---- cluster backend
#
# A cluster as a backend: its devices, and the cut of plans for them.


@final
class ClusterBackend:
    """The devices of a cluster's workers. Implements `dagpu.backends.protocol.Backend`.

    Args:
        workers: the names of the workers, and those of their devices: all of one kind.
        costs: predicts the times of parts.
        part_seconds: the predicted time of a part; None to choose it for each plan.
        code: false to refuse plans whose code would have to be sent as Python code.
        tag: a text that no other cluster's runs have in their names.
    """

    def __init__(
        self,
        workers: Mapping[str, Sequence[str]],
        engine: Engine,
        costs: CostModel,
        part_seconds: float | None = None,
        *,
        code: bool = True,
        tag: str = "",
    ) -> None:
        self.engine = engine
        self.costs = costs
        self.tag = tag
        self._part_seconds = part_seconds
        kinds = {name.partition(":")[0] for names in workers.values() for name in names}
        if kinds not in ({"host"}, {"cuda"}):
            found = ", ".join([f"{worker}: {' '.join(names) or 'none'}" for worker, names in workers.items()])
            raise NoDeviceError(
                f"the workers of a cluster have devices of one kind, host or cuda, and these have: {found}. Name the "
                'devices of each worker: devices=["host:0"].'
            )
        (found_kind,) = kinds
        self._kind: Literal["host", "cuda"] = "host" if found_kind == "host" else "cuda"
        self._encoder = Encoder(on_host=self._kind == "host", code=code)
        self._devices = {
            f"{worker}/{name}": Device(
                self._kind, int(name.partition(":")[2]), RemoteDriver(engine, worker, name, code=code), worker
            )
            for worker, names in workers.items()
            for name in names
        }
        rows = {len(names) for names in workers.values()}
        grid = ((len(workers), rows.pop()), ("workers", "devices")) if len(rows) == 1 else (None, ("devices",))
        self.mesh = Mesh(list(self._devices.values()), *grid)
        """All devices, a row for each worker if all have as many."""

    @property
    def kind(self) -> Literal["host", "cuda", "explore"]:
        return self._kind

    @property
    def nodes(self) -> list[str]:
        """The part before the colon in the names of the devices."""
        return list(dict.fromkeys([name.partition(":")[0] for name in self._devices]))

    def device_count(self) -> int:
        """Return 0: a program uses the devices of a cluster only if it says so."""
        return 0

    def device(self, index: int) -> Device:
        """Return device number `index` of the mesh."""
        return self.mesh.devices[index]

    def named(self, name: str) -> Device:
        """Return a device by its whole name.

        Raises:
            NoDeviceError: the cluster has no such device.
        """
        found = self._devices.get(name)
        if found is None:
            raise NoDeviceError(
                f"the cluster has no device {name}: it has {', '.join(self._devices)}. Use one of cluster.mesh.devices."
            )
        return found

    def prepare(self, plan: Plan) -> ClusterPlan:
        """Prepare a plan for any number of runs, also concurrent ones."""
        return ClusterPlan(plan, self.tasks_of, self.engine, self.tag)

    def spin(self) -> float:
        """Return 0: polling for milliseconds would take the processor from others."""
        return 0.0

    def tasks_of(self, program: Program) -> TaskList:
        """Return the tasks of a placed program, whose cut is proved."""
        parts = self.parts_of(program)
        if VERIFY.get():
            verify_parts(program, parts)
        return TaskList(program, parts, self._encoder, names=CLUSTER_NAMES.get())

    def parts_of(self, program: Program) -> Sequence[Part]:
        """Return the parts of a placed program."""
        seconds = self._part_seconds
        if seconds is None:
            return choose_part_seconds(program, self.mesh, self.costs)
        return cut(program, self.mesh, part_seconds=seconds, costs=self.costs)


# ---- remote driver
#
# The functions of a device that is on another machine.


@final
class RemoteDriver:
    """The functions of one device of a cluster. Implements `dagpu.handles.device_handles.Driver`."""

    __slots__ = ("_code", "_engine", "_name", "_scratch", "_worker")

    def __init__(self, engine: Engine, worker: str, name: str, *, code: bool) -> None:
        self._engine = engine
        self._worker = worker
        self._name = name
        self._code = code
        """False if no Python code is sent."""
        self._scratch: dict[tuple[int, tuple[Layout, ...]], tuple[LibraryBody, int]] = {}

    @property
    def arch(self) -> str:
        """Return the empty text: each worker compiles kernels for its own devices."""
        return ""

    @property
    def lacks_conditions(self) -> str:
        """The reason why no graph decides: workers run the parts of a plan."""
        return NO_GRAPHS

    @property
    def exchange(self) -> Exchange:
        """Refuse: other libraries of this process cannot read the memory of another one.

        Raises:
            ClusterError: always.
        """
        raise ClusterError(
            f"the tensor is on {self._worker}/{self._name}, whose memory is in another process, and is not given to "
            "libraries of this one. Copy it to this process first: t.to_host().sync()."
        )

    def open_stream(self) -> Hashable:
        """Refuse: each worker chooses the streams of its parts.

        Raises:
            ClusterError: always.
        """
        raise ClusterError(
            f"{self._worker}/{self._name} is a device of a cluster, where each worker chooses the streams of its "
            f'parts. Name the device alone: op.on("{self._worker}/{self._name}").'
        )

    def stream_handle(self, lane: Hashable) -> int:
        """Return 0: there are no streams."""
        return 0

    def memory_info(self) -> tuple[int, int]:
        """Return the free and the total memory, in bytes. The worker is asked."""
        return self._engine.memory_info(self._worker, self._name)

    def memory_for_runs(self, results: Sequence[int]) -> None:
        """Return None: a worker plans for its own devices."""

    def memory_used(self) -> int:
        """Return the bytes of the tensors on the device that are held for this process."""
        return self._engine.memory_used(f"{self._worker}/{self._name}")

    def mapped_memory(self, nbytes: int) -> MappedMemory:
        """Refuse: this process and the worker have no memory in common.

        Raises:
            ClusterError: always.
        """
        raise ClusterError(
            f"{self._worker}/{self._name} has no memory in common with this process. Feeds and tiles run on devices of "
            "this process: leave use_interpreter(cluster) out there."
        )

    def write_part(self, memory: object, layout: Layout, array: "NDArray[Any]") -> bool:
        """Return False: that needs a run."""
        return False

    def copy_part(self, memory: object, layout: Layout, source: object) -> bool:
        """Return False: that needs a run."""
        return False

    def copy_for_later(self, array: "NDArray[Any]") -> "NDArray[Any] | None":
        """Return a copy of an array."""
        return np.array(array)

    def reaches(self, peer: int) -> bool:
        """Return true: the devices of one worker are taken to read each other's memory."""
        return True

    def is_known(self, body: LibraryBody, operands: Sequence[Layout]) -> bool:
        """True if no worker has to be asked for the scratch memory of a library."""
        return self._name.startswith("host") or (id(body), tuple(operands)) in self._scratch

    def scratch_bytes(self, body: LibraryBody, operands: Sequence[Layout]) -> int:
        """Return the bytes of scratch memory that a library needs on the worker, which is asked; 0 on a host.

        Raises:
            ClusterSecurityError: the cluster takes no code.
        """
        if self._name.startswith("host"):
            return 0
        found = self._scratch.get((id(body), tuple(operands)))
        if found is None:
            if not self._code:
                raise refused_code(f"a library's kernel on {self._worker}/{self._name}")
            asked = self._engine.scratch_bytes(self._worker, self._name, body, operands)
            found = self._scratch[id(body), tuple(operands)] = body, asked
        return found[1]
