"""A `Plan`: what a scheduler gives, a verifier proves and a backend replays. Plain data.

Happens-before in a plan is the order of the steps within each lane, and every `Record` of an event before each `Wait`
for it. Nothing else orders two steps of different lanes.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Final, TypeAlias, final

from dagpu.common.frozen import plain
from dagpu.common.slot import Slot
from dagpu.lowering.program import (
    Buffer,
    Instruction,
    Launch,
    Tiles,
    View,
    buffer_bytes,
    buffer_names,
    buffer_table,
    label,
)
from dagpu.lowering.text import OriginColumn, name_at, table

ALIGNMENT: Final = 512
"""Bytes, as in a pool: any vector load, and a few cache lines, so that neighbours share none."""


@final
@plain
class Lane:
    """A stream: number `key` of the device's pool, or, where `key` is no number, a stream of the user's own."""

    device: int
    key: Hashable


@final
@plain
class Allocate:
    """`buffer` has memory from here on."""

    buffer: int
    lane: int


@final
@plain
class Release:
    """`buffer` gives its memory back."""

    buffer: int
    lane: int


@final
@plain
class Execute:
    """One instruction."""

    instruction: Instruction
    lane: int


@final
@plain
class Record:
    """Event `event` happens when the lane's work before this is done."""

    event: int
    lane: int


@final
@plain
class Wait:
    """The lane's work after this waits for event `event`."""

    event: int
    lane: int


Step: TypeAlias = Allocate | Release | Execute | Record | Wait


@final
@dataclass(frozen=True, slots=True)
class Plan:
    """Steps in an order in which they may be submitted: every `Record` stands before the `Wait`s for it.

    `devices`, `lanes` and `buffers` are what the numbers in the steps refer to; `events` is how many events there are.
    """

    devices: tuple[str, ...]
    lanes: tuple[Lane, ...]
    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    events: int
    peak_bytes: int
    """What a run takes beyond its inputs, for all of its time: the arenas, and the outputs in blocks of their own."""
    offsets: tuple[int, ...]
    """Of each buffer: bytes from the start of its device's arena, a multiple of `ALIGNMENT`. -1 for what lies in no
    arena: inputs, outputs and cells, and a temporary that nothing uses."""
    arena_bytes: tuple[int, ...]
    """Of each device: bytes of the arena in which the temporaries lie."""

    def __str__(self) -> str:
        return show_plan(self)

    def to_svg(self) -> str:
        """A picture of the lanes: when each instruction is predicted to run, and what waits for what. Jupyter shows it
        for a plan."""
        return DRAWING.value(self)

    def save_svg(self, path: str | PathLike[str]) -> None:
        """`to_svg()`, as a file."""
        Path(path).write_text(self.to_svg(), encoding="utf-8")

    def _repr_svg_(self) -> str:
        return self.to_svg()


def may_write_over(launch: Launch, source: int, out: int) -> bool:
    """May buffer `out` be written in the memory of buffer `source`, which the launch reads?

    The kernel must say so (`in_place`), and then reads an element of an input before it writes the output's element of
    the same index. So both must have their elements at the same places: equal shapes, element sizes and strides.
    """
    if not launch.kernel.in_place or source not in launch.reads or out not in launch.writes:
        return False
    reads = [a.layout for a in launch.args if type(a) is View and a.buffer == source]
    writes = [a.view.layout for a in launch.args if type(a) is Tiles and a.view.buffer == out]
    if not reads or len(writes) != 1 or source in launch.writes or out in launch.reads:
        return False
    there = writes[0]
    return all(
        here.shape == there.shape
        and here.strides == there.strides
        and here.offset == there.offset
        and here.dtype.itemsize == there.dtype.itemsize
        for here in reads
    )


def show_plan(plan: Plan) -> str:
    """A table of the steps in order, and one of the buffers. A lane reads `device/key`, an event `e0`."""
    places = OriginColumn()
    lanes = [f"{name_at(plan.devices, lane.device)}/{lane.key}" for lane in plan.lanes]
    rows: list[tuple[str, ...]] = []
    for index, step in enumerate(plan.steps):
        what, buffers, size, origin = type(step).__name__, "", "", ""
        match step:
            case Execute(instruction, _):
                what = label(instruction)
                reads = buffer_names(plan.buffers, instruction.reads)
                buffers = f"{reads} -> {buffer_names(plan.buffers, instruction.writes)}".strip()
                size = buffer_bytes(plan.buffers, instruction.writes)
                origin = places.of(instruction.origin)
            case Allocate(buffer, _) | Release(buffer, _):
                buffers, size = buffer_names(plan.buffers, (buffer,)), buffer_bytes(plan.buffers, (buffer,))
            case Record(event, _) | Wait(event, _):
                what = f"{what} e{event}"
        rows.append((str(index), what, name_at(lanes, step.lane), buffers, size, origin))
    return "\n".join(
        [
            (
                f"Plan: {len(plan.steps)} steps, {len(plan.lanes)} lanes, {plan.events} events, "
                f"{plan.peak_bytes:,} bytes beyond its inputs, devices: {', '.join(plan.devices) or 'none'}"
            ),
            *table(("#", "step", "lane", "buffers", "bytes", "origin"), rows),
            *buffer_table(plan.devices, plan.buffers, plan.offsets),
        ]
    )


DRAWING: Final = Slot[Callable[[Plan], str]]("dagpu.lowering.report.plan_drawing")
"""Draws a plan by the times that a cost model predicts for it. The model reads plans, so plans cannot import it."""
