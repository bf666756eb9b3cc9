"""The explore backend: devices `explore:0`, `explore:1`, ..., which do one step at a time, in any allowed order."""

from collections.abc import Hashable, Sequence
from itertools import count
from typing import ClassVar, Literal, final

from dagpu.backends.explore.exploration import current
from dagpu.backends.explore.explored_run import ExploreRun, RunWithinStep
from dagpu.backends.explore.machine import script_of
from dagpu.backends.explore.store import PoisonedStore
from dagpu.backends.host.arrays import Account, HostMemoryDriver
from dagpu.backends.host.failures import out_of_memory
from dagpu.backends.host.host_instructions import BoundPlan
from dagpu.backends.host.plan_devices import DeviceRegistry
from dagpu.common.errors import NoDeviceError
from dagpu.handles.device_handles import NO_GRAPHS, Device
from dagpu.plans.plan import Plan

DEVICES = 8
"""Number of devices, enough for any test."""


@final
class ExploreStream:
    """A stream that a user has opened. It serves only as a lane key."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"<OwnStream {self._name}>"


@final
class ExploreDriver(HostMemoryDriver):
    """The driver of one `explore` device. Implements `dagpu.handles.device_handles.Driver`."""

    __slots__ = ("_numbers",)

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self._numbers = count(1)

    def open_stream(self) -> Hashable:
        """Return a new stream. It is only a name, because any hashable key makes a lane of a plan."""
        return ExploreStream(f"explore:{self._index}/own-{next(self._numbers)}")


@final
class ExploreBackend:
    """Executes plans in an order that `exploring` chooses. Implements `dagpu.backends.protocol.Backend`."""

    __slots__ = ("_devices",)

    def __init__(self) -> None:
        self._devices = DeviceRegistry("explore", ExploreDriver, _refuse)

    @property
    def kind(self) -> Literal["explore"]:
        return "explore"

    def device_count(self) -> int:
        """Return 0, so that an `explore` device is used only by name."""
        return 0

    def device(self, index: int) -> Device:
        """Return device `explore:<index>`, always the same object.

        Raises:
            NoDeviceError: the index is not below 8.
        """
        return self._devices.find(index)[0]

    def prepare(self, plan: Plan) -> "PreparedExploration":
        """See `Backend.prepare`."""
        return PreparedExploration(plan, [self._devices.driver(name).account for name in plan.devices])

    def spin(self) -> float:
        """Return 0: a poll executes the run, however long that takes."""
        return 0.0


def _refuse(index: int) -> None:
    if not 0 <= index < DEVICES:
        raise NoDeviceError(f"there is no device explore:{index}. Use one of explore:0 to explore:{DEVICES - 1}.")


@final
class PreparedExploration:
    """A plan prepared for the machine, as a script. Implements `dagpu.backends.protocol.Prepared`."""

    __slots__ = ("_accounts", "_script")
    before_first: ClassVar[None] = None
    """None, because plans need no compilation."""
    before_graph: ClassVar[None] = None
    """None, because plans are not launched as CUDA graphs."""
    launch_whole: ClassVar[None] = None
    flight: ClassVar[None] = None
    """None, because plans are not launched as CUDA graphs."""
    lacks_graph: ClassVar[str] = NO_GRAPHS

    def __init__(self, plan: Plan, accounts: Sequence[Account]) -> None:
        self._script = script_of(plan)
        self._accounts = accounts

    def submit(self, memory: list[object], spin: float = 0.0, graph: bool = False) -> ExploreRun:
        """Submit a run. The caller that waits for it executes it. See `Prepared.submit`.

        Raises:
            OutOfMemoryError: there is too little memory; the run has not begun.
        """
        exploration = current()
        run = ExploreRun(self._script, self._store(memory), exploration)
        if spin:
            run.poll(spin)
        return run

    def keep_memory(self) -> None:
        """Do nothing: no run is a launch of a graph. See `Prepared.keep_memory`."""

    def freeze(self, memory: list[object]) -> BoundPlan:
        """Capture the plan with this memory as a graph. See `Prepared.freeze`."""
        script, memory = self._script, memory.copy()
        store = self._store(memory)

        def start(memory: list[object]) -> RunWithinStep:
            store.reset(memory)
            return RunWithinStep(script, store)

        return BoundPlan(script.plan, memory, start)

    def _store(self, memory: list[object]) -> PoisonedStore:
        try:
            return PoisonedStore(self._script, memory, self._accounts)
        except MemoryError:
            plan = self._script.plan
            raise out_of_memory(
                f"{', '.join(plan.devices)}: no room for {plan.peak_bytes:,} bytes, which a run takes beyond its inputs"
            ) from None
