"""The host backend: its devices `host:0`, `host:1`, ... share the machine's cores and memory."""

import itertools
from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from typing import ClassVar, Final, Literal, final

from dagpu.backends.host.arrays import HostMemoryDriver
from dagpu.backends.host.host_instructions import BoundPlan
from dagpu.backends.host.host_run import (
    LastRun,
    PromptPlan,
    RunRoom,
    ThreadedPlan,
    by_stream,
    is_lone,
    is_prompt,
    run_batches,
)
from dagpu.backends.host.plan_devices import DeviceRegistry, streams_of_lanes
from dagpu.backends.host.worker_threads import WorkerStream
from dagpu.backends.protocol import Run
from dagpu.common.env_vars import HOST_DEVICES
from dagpu.common.errors import NoDeviceError
from dagpu.handles.device_handles import NO_GRAPHS, Device
from dagpu.plans.plan import Plan

SPREAD: Final = 8
"""Number of pooled streams over which concurrent runs are spread. A plan with more lanes uses more."""

POOL: Final = 64
"""Largest number of streams in the pool of a device. Lanes of a plan with more lanes share streams."""

SPIN_SECONDS: Final = 20e-6
"""Seconds for which a wait may block an event loop: less time than to suspend a task and wake it again."""


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
        if len(keys) == 1 and isinstance(keys[0], int):  # most plans: the first idle one is the least busy
            for number in range(SPREAD):
                if not (stream := self._pooled(number)).load():
                    return [stream]
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
    """Runs the host bodies of kernels on worker threads; a small run, and one of a plan whose last run was short, may
    be executed by the thread that waits for it. Implements `dagpu.backends.protocol.Backend`."""

    __slots__ = ("_devices",)

    kind: ClassVar[Literal["host", "cuda"]] = "host"

    def __init__(self) -> None:
        self._devices = DeviceRegistry("host", HostDriver, _refuse)

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
        """Return 20 us, for which a task blocks the event loop. A thread that waits does not poll."""
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
    """A plan and the ways to start its runs. Implements `dagpu.backends.protocol.Prepared`."""

    __slots__ = ("_is_prompt", "_last", "_plan", "_prompt", "_room", "_threaded")
    before_first: ClassVar[None] = None
    """None, because host bodies need no compilation."""
    before_graph: ClassVar[None] = None
    """None, because plans are not launched as CUDA graphs."""
    launch_whole: ClassVar[None] = None
    flight: ClassVar[None] = None
    """None, because plans are not launched as CUDA graphs."""
    lacks_graph: ClassVar[str] = NO_GRAPHS

    def __init__(self, plan: Plan, drivers: Sequence[HostDriver]) -> None:
        self._plan = plan
        self._room = RunRoom(plan, [driver.account for driver in drivers])
        self._is_prompt = is_prompt(plan)
        self._last = LastRun() if is_lone(plan) and not self._is_prompt else None
        self._threaded = ThreadedPlan(plan, drivers, self._room, self._last)
        self._prompt: PromptPlan | None = None
        """The plan for threads that wait for a run, once there is one."""

    def submit(self, memory: list[object], spin: float = 0.0, graph: bool = False) -> Run:
        """Start a run; see `Prepared.submit`.

        Raises:
            OutOfMemoryError: there is too little memory; the run has not begun.
        """
        last = self._last
        if spin and (self._is_prompt if last is None else last.is_short):
            prompt = self._prompt
            if prompt is None:
                prompt = self._prompt = PromptPlan(self._plan, self._room, last)
            run = prompt.start(memory, spin)
            if run is not None:
                return run
        return self._threaded.start(memory, spin)

    def keep_memory(self) -> None:
        """Do nothing: no run is a launch of a graph. See `Prepared.keep_memory`."""

    def freeze(self, memory: list[object]) -> BoundPlan:
        """Capture the plan with this memory as a graph; see `Prepared.freeze`.

        The worker thread that executes a `GraphLaunch` launches the graph and waits for it. So the graph's lanes have
        their own streams: in a stream of the device's pool, their work could be queued behind that waiting thread.
        """
        plan, memory = self._plan, memory.copy()
        work = by_stream(plan.steps, [WorkerStream(lane.device, f"host:{lane.device}/graph") for lane in plan.lanes])
        return BoundPlan(plan, memory, partial(run_batches, plan, self._room.take(memory), work))
