"""The host backend: its devices `host:0`, `host:1`, ... share the machine's cores and memory."""

import itertools
from collections.abc import Hashable, Iterator, Sequence
from typing import ClassVar, Final, Literal, final

from dagpu.backends.common.device_registry import DeviceRegistry
from dagpu.backends.common.lanes import streams_by_device, streams_of_lanes
from dagpu.backends.common.measuring import KernelTimes, current_recorder
from dagpu.backends.common.run_errors import no_room, out_of_memory
from dagpu.backends.common.worker_threads import WorkerStream, enqueue, process
from dagpu.backends.host.arrays import NO_MEMORY, HostMemory
from dagpu.backends.host.host_graph import HostGraph
from dagpu.backends.host.host_run import Batch, HostRun
from dagpu.backends.host.memory_driver import HostMemoryDriver
from dagpu.backends.host.prompt_plan import PromptPlan, is_prompt
from dagpu.backends.protocol import Bindings, Run
from dagpu.common.env_vars import HOST_DEVICES, MEASURE
from dagpu.common.errors import NoDeviceError
from dagpu.handles.device_handles import NO_GRAPHS, Device
from dagpu.plans.cost_model import CostModel
from dagpu.plans.memory import describe_peak
from dagpu.plans.plan import Plan, Step
from dagpu.plans.program import HOST, Role

SPREAD: Final = 8
"""Number of pooled streams over which concurrent runs are spread. A plan with more lanes uses more."""

POOL: Final = 64
"""Largest number of streams in the pool of a device. Lanes of a plan with more lanes share streams."""

MEASURED_RUNS: Final = 3
"""Runs of a plan in which host bodies are measured. The first call of a body may do what no later one does."""

SPIN_SECONDS: Final = 20e-6
"""Seconds to poll before sleeping: about the time that it takes to put a thread to sleep and wake it again."""


@final
class HostDriver(HostMemoryDriver):
    """The driver of one host device. Implements `dagpu.handles.device_handles.Driver`."""

    __slots__ = ("_numbers", "_pool")

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self._pool: dict[int, WorkerStream] = {}
        self._numbers = itertools.count(1)

    def open_stream(self) -> Hashable:
        """Return a new stream. Its thread starts with its first work and ends when its last reference is dropped."""
        return WorkerStream(self._index, f"host:{self._index}/own-{next(self._numbers)}")

    def streams(self, keys: Sequence[Hashable]) -> list[WorkerStream]:
        """Return a stream for each lane of a plan, given the lanes' keys; see `streams_of_lanes`."""
        return streams_of_lanes(keys, f"host:{self._index}", self._own, self._least_busy)

    def _own(self, key: Hashable) -> WorkerStream | None:
        return key if isinstance(key, WorkerStream) and key.device == self._index else None

    def _least_busy(self, numbered: int) -> Iterator[WorkerStream]:
        """Iterate endlessly over the streams of the pool, the least busy first."""
        count = min(max(SPREAD, numbered), POOL)
        return itertools.cycle(sorted((self._pooled(number) for number in range(count)), key=WorkerStream.load))

    def _pooled(self, number: int) -> WorkerStream:
        found = self._pool.get(number)
        if found is None:
            # setdefault is atomic: of two concurrent calls one stream is kept, and neither has a thread yet.
            found = self._pool.setdefault(number, WorkerStream(self._index, f"host:{self._index}/{number}"))
        return found


@final
class HostBackend:
    """Runs the host bodies of kernels on worker threads; a small run without code of the user's may be executed by
    the thread that waits for it. Implements `dagpu.backends.protocol.Backend`."""

    __slots__ = ("_devices",)

    def __init__(self) -> None:
        self._devices = DeviceRegistry("host", HostDriver, _refuse)

    @property
    def kind(self) -> Literal["host", "cuda"]:
        return "host"

    def device_count(self) -> int:
        """Return 1. Further devices, for experiments, are used only by name: they share the same cores."""
        return 1

    def device(self, index: int) -> Device:
        """Return device `host:<index>`, always the same object.

        Raises:
            NoDeviceError: `index` is not below DAGPU_HOST_DEVICES (8 where that is not set).
            ValueError: DAGPU_HOST_DEVICES is not a number of devices.
        """
        return self._devices.find(index)[0]

    def prepare(self, plan: Plan) -> "PreparedHostPlan":
        """Prepare a plan for its runs; see `Backend.prepare`."""
        return PreparedHostPlan(plan, [self._devices.driver(name) for name in plan.devices])

    def spin(self) -> float:
        """Return 20 us, about the time that it takes to put a thread to sleep and wake it again."""
        return SPIN_SECONDS


def _refuse(index: int) -> None:
    count = HOST_DEVICES.get()
    if not 0 <= index < count:
        raise NoDeviceError(
            f"there is no device host:{index}: the host has host:0 to host:{count - 1}. "
            f"Use one of these, or set DAGPU_HOST_DEVICES={max(index + 1, 1)}."
        )


@final
class PreparedHostPlan:
    """A plan and the devices that it runs on. Implements `dagpu.backends.protocol.Prepared`."""

    __slots__ = ("_drivers", "_is_prompt", "_outputs", "_plan", "_prompt", "_unmeasured")
    before_first: ClassVar[None] = None
    """None, because host bodies need no compilation."""
    before_graph: ClassVar[None] = None
    """None, because plans are not launched as CUDA graphs."""
    launch_again: ClassVar[None] = None
    """None, because plans are not launched as CUDA graphs."""
    lacks_graph: ClassVar[str] = NO_GRAPHS

    def __init__(self, plan: Plan, drivers: Sequence[HostDriver]) -> None:
        self._plan = plan
        self._drivers = drivers
        self._outputs = [
            (number, buffer.device, buffer.nbytes)
            for number, buffer in enumerate(plan.buffers)
            if buffer.role is Role.OUTPUT and buffer.device != HOST
        ]
        self._is_prompt = is_prompt(plan)
        self._prompt: PromptPlan | None = None
        """The plan for threads that wait for a run, once there is one."""
        self._unmeasured = MEASURED_RUNS if MEASURE.get() and CostModel().guesses(plan) else 0
        """The number of runs to come whose bodies are measured."""

    def submit(self, bindings: Bindings, spin: float = 0.0, *, graph: bool = False) -> Run:
        """Start a run; see `Prepared.submit`.

        Raises:
            OutOfMemoryError: there is too little memory; the run has not begun.
        """
        plan, drivers = self._plan, self._drivers
        arenas = self._take_arenas()
        for number, device, nbytes in self._outputs:
            if bindings.memory[number] is None:
                bindings.memory[number] = self._take(device, nbytes)
        recorder = current_recorder()
        if spin and self._is_prompt and recorder is None and not process.over:
            prompt = self._prompt
            if prompt is None:
                prompt = self._prompt = PromptPlan(plan)
            return prompt.run(bindings, arenas)
        streams = _streams(plan, drivers)
        work = _by_stream(plan.steps, streams)
        measured = self._kernel_times() if recorder is None else recorder.begin(plan, streams)
        run = HostRun(plan, bindings, arenas, len(work), measured)
        del arenas
        enqueue({stream: Batch(run, steps) for stream, steps in work.items()})
        if spin:
            run.poll(spin)
        return run

    def _kernel_times(self) -> KernelTimes | None:
        """Return what measures the bodies of a run; None once enough runs were measured."""
        if not self._unmeasured:
            return None
        self._unmeasured -= 1
        return KernelTimes(self._plan)

    def keep_memory(self) -> None:
        """Do nothing: no run is a launch of a graph. See `Prepared.keep_memory`."""

    def freeze(self, bindings: Bindings) -> HostGraph:
        """Capture the plan with this memory as a graph; see `Prepared.freeze`."""
        plan = self._plan
        lanes = [WorkerStream(lane.device, f"host:{lane.device}/graph") for lane in plan.lanes]
        return HostGraph(plan, bindings, self._take_arenas(), _by_stream(plan.steps, lanes))

    def _take_arenas(self) -> list[HostMemory]:
        return [
            self._take(device, nbytes) if nbytes else NO_MEMORY for device, nbytes in enumerate(self._plan.arena_bytes)
        ]

    def _take(self, device: int, nbytes: int) -> HostMemory:
        try:
            return HostMemory(self._drivers[device].account, nbytes)
        except MemoryError:
            plan = self._plan
            raise out_of_memory(
                f"{no_room(plan.devices[device], nbytes)}. A run takes {plan.peak_bytes:,} bytes; "
                f"alive at the peak: {describe_peak(plan, device)}"
            ) from None


def _streams(plan: Plan, drivers: Sequence[HostDriver]) -> list[WorkerStream]:
    """Return the stream of each lane."""
    if len(drivers) == 1:
        return drivers[0].streams([lane.key for lane in plan.lanes])
    return streams_by_device(plan.lanes, len(drivers), lambda number, keys: drivers[number].streams(keys))


def _by_stream(steps: Sequence[Step], streams: Sequence[WorkerStream]) -> dict[WorkerStream, Sequence[Step]]:
    """Return the steps of each stream, in the plan's order. Streams without steps are left out.

    Lanes that share a stream are merged. In the plan's order every Record comes before its Waits, so no stream can wait
    for itself.
    """
    if len(streams) == 1:
        return {streams[0]: steps} if steps else {}
    parts: dict[WorkerStream, list[Step]] = {stream: [] for stream in streams}
    put = [parts[stream].append for stream in streams]
    for step in steps:
        put[step.lane](step)
    return {stream: part for stream, part in parts.items() if part}
