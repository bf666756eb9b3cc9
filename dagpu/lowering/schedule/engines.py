"""The engines of a device, which instructions occupy: its compute units, and one for each way that copies go."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, final

from dagpu.handles.device_handles import kind_of
from dagpu.lowering.program import (
    Buffer,
    CopyDtoD,
    CopyDtoH,
    CopyHtoD,
    Fill,
    GraphLaunch,
    HostCall,
    Instruction,
    Launch,
)

COMPUTE: Final = 0
"""Engine of kernels, fills, copies within a device, and host calls: they run concurrently."""
UPLOAD: Final = 1
"""Engine of copies from the host: each device has one, so they run one at a time."""
DOWNLOAD: Final = 2
"""Engine of copies to the host: each device has one, so they run one at a time."""
PEER_IN: Final = 3
"""Engine of copies from another device, on the device that they go to. It runs as many at once as its link has
ports."""
PEER_OUT: Final = 4
"""Engine of copies to another device, on the device that they come from. The other device's lane runs the copy."""
ENGINES: Final = 5
"""Number of engines of a device."""

ENGINE_OF: Final[dict[type[Any], int]] = {
    Launch: COMPUTE, Fill: COMPUTE, HostCall: COMPUTE, GraphLaunch: COMPUTE, CopyHtoD: UPLOAD, CopyDtoH: DOWNLOAD,
}  # fmt: skip
"""The engine of every instruction on a GPU, except a `CopyDtoD`, whose engine depends on where its buffers are."""


def peer_of(instruction: Instruction, buffers: Sequence[Buffer]) -> int:
    """Return the device that a copy between two devices comes from; -1 for any other instruction."""
    if type(instruction) is CopyDtoD:
        source = buffers[instruction.source.buffer].device
        if source != buffers[instruction.out.buffer].device:
            return source
    return -1


@lru_cache(256)
def without_engines(devices: tuple[str, ...]) -> list[bool]:
    """Return for each device, by its name, whether its copies from and to the host are work of its streams, as on a
    host: there a thread makes them, and several at once."""
    return list(map("host".__eq__, map(kind_of, devices)))


def engine_of(instruction: Instruction, buffers: Sequence[Buffer], without: Sequence[bool]) -> int:
    """Return the engine of its device that an instruction occupies: `COMPUTE`, `UPLOAD`, `DOWNLOAD` or `PEER_IN`.
    `without` is the result of `without_engines`."""
    engine = ENGINE_OF.get(type(instruction))
    if engine in (UPLOAD, DOWNLOAD) and without[instruction.device]:
        return COMPUTE
    if engine is None:
        return COMPUTE if peer_of(instruction, buffers) < 0 else PEER_IN
    return engine


@final
@dataclass(slots=True, eq=False)
class EngineTimes:
    """The times at which engines are free, while a schedule is simulated. `ports` is the number of copies between
    devices that a device sends at once, and that it receives at once; any other copy engine runs one copy."""

    _ports: int
    _free: dict[tuple[int, int], list[float]] = field(default_factory=dict)

    def claim(self, ready: float, seconds: float, places: Sequence[tuple[int, int]]) -> float:
        """Occupy each of these engines, given by device and number, for the same `seconds`. Return the begin: the first
        time from `ready` on at which all of them are free."""
        slots, begin = [self.slots(place) for place in places], ready
        for each in slots:
            begin = max(begin, min(each))
        for each in slots:
            each[each.index(min(each))] = begin + seconds
        return begin

    def slots(self, place: tuple[int, int]) -> list[float]:
        """Return the times at which the ports of an engine are free."""
        found = self._free.get(place)
        if found is None:
            found = self._free[place] = [0.0] * (self._ports if place[1] >= PEER_IN else 1)
        return found


def engines_of(device: int, engine: int, peer: int) -> list[tuple[int, int]]:
    """Return the copy engines that an instruction occupies: none for work on `COMPUTE`, both ends of a copy between
    two devices."""
    if engine == COMPUTE:
        return []
    return [(device, engine)] if peer < 0 else [(device, engine), (peer, PEER_OUT)]
