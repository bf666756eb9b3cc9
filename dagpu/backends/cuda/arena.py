"""Where the buffers of a plan lie: temporaries in one block for each device, everything else in blocks of its own.

A temporary may begin where another of its lane ended: in one stream, what comes later is ordered after what came
before. Its first write is on the lane that allocates it (`Allocate`), and every other use is ordered after that.
"""

from dataclasses import dataclass, field
from typing import Final, final

from dagpu.lowering.plan import Allocate, Plan, Release
from dagpu.lowering.program import Role

ALIGNMENT: Final = 512
"""Bytes, as in a pool: any vector load, and a few cache lines, so that neighbours share none."""


@final
@dataclass(slots=True)
class Arena:
    """The temporaries of one device: `nbytes` together, each at its offset."""

    nbytes: int = 0
    offsets: dict[int, int] = field(default_factory=dict)

    def add(self, buffer: int, nbytes: int) -> int:
        """Put a buffer behind all others; its offset."""
        offset = self.offsets[buffer] = self.nbytes
        self.nbytes += nbytes
        return offset


def lay_out(plan: Plan) -> tuple[list[Arena], list[int]]:
    """The arena of each device, and the buffers that get blocks of their own: what the plan hands out."""
    arenas = [Arena() for _ in plan.devices]
    alone: list[int] = []
    idle: dict[tuple[int, int, int], list[int]] = {}
    for step in plan.steps:
        if isinstance(step, Allocate):
            buffer = plan.buffers[step.buffer]
            if buffer.role is Role.OUTPUT:
                alone.append(step.buffer)
                continue
            size = _aligned(buffer.nbytes)
            arena, free = arenas[buffer.device], idle.get((step.lane, buffer.device, size))
            if free:
                arena.offsets[step.buffer] = free.pop()
            else:
                arena.add(step.buffer, size)
        elif isinstance(step, Release):
            buffer = plan.buffers[step.buffer]
            if buffer.role is not Role.OUTPUT:
                key = step.lane, buffer.device, _aligned(buffer.nbytes)
                idle.setdefault(key, []).append(arenas[buffer.device].offsets[step.buffer])
    return arenas, alone


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
