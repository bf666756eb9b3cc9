"""A `Plan`, the steps of a program on the lanes of its devices, and the order of its steps.

A `Plan`: the steps of a program on the lanes of its devices, as plain data. A scheduler makes it, a verifier proves
it and a backend replays it.

Happens-before in a plan is the order of the steps within each lane, and the order from each `Record` of an event to
every `Wait` for it. Nothing else orders two steps of different lanes.
"""

import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from pickle import PicklingError
from typing import TYPE_CHECKING, Final, NoReturn, Protocol, Self, TypeAlias, final

import numpy as np

from dagpu.common.frozen import Slot, plain
from dagpu.common.pickling import COPIERS
from dagpu.common.places import describe, here, here_outside, leaves_run
from dagpu.common.wrong_arguments import check_path
from dagpu.ops.svg import in_page
from dagpu.plans.program import (
    HOST,
    Buffer,
    Fill,
    Instruction,
    Launch,
    Program,
    Role,
    View,
    buffer_bytes,
    buffer_names,
    buffer_table,
    label,
)
from dagpu.plans.text import OriginColumn, counted, name_at, table

if TYPE_CHECKING:
    from numpy.typing import NDArray

ALIGNMENT: Final = 512
"""Alignment of buffers in an arena, in bytes, as in a memory pool. It suits every vector load, and it is several cache
lines, so that neighbours share none."""


@final
@plain
class Lane:
    """A stream of a plan. `key` is the index of a stream in the device's pool, or, if it is not an integer, the key of
    a stream that the user created."""

    device: int
    key: Hashable


@final
@plain
class Allocate:
    """From this step on, `buffer` has memory."""

    buffer: int
    lane: int


@final
@plain
class Release:
    """From this step on, the memory of `buffer` is free."""

    buffer: int
    lane: int


@final
@plain
class Execute:
    """Runs one instruction."""

    instruction: Instruction
    lane: int


@final
@plain
class Record:
    """Records event `event`, which completes when all earlier work of the lane is complete."""

    event: int
    lane: int


@final
@plain
class Wait:
    """Makes all later work of the lane wait for event `event`."""

    event: int
    lane: int


Step: TypeAlias = Allocate | Release | Execute | Record | Wait


class Costs(Protocol):
    """What predicts the times of a drawing: a `dagpu.CostModel`. It reads plans, so this module cannot import it."""

    def times(self, program: Program, /) -> list[float]: ...


@final
@dataclass(frozen=True, slots=True)
class Plan:
    """What a run does, as plain data: steps in an order in which they may be submitted. `plan_of(op)` returns one.

    `print(plan)` lists the steps. A step that waits for an event comes after the one that records it. The numbers in
    the steps are indices into `devices`, `lanes` and `buffers`. `events` is the number of events.
    """

    devices: tuple[str, ...]
    lanes: tuple[Lane, ...]
    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    events: int
    peak_bytes: int
    """Bytes that a run allocates beyond its inputs, for its whole duration. They are those of the arenas, and of the
    outputs in blocks of their own. What a host body allocates while it runs is not among them."""
    offsets: tuple[int, ...]
    """For each buffer, its offset in bytes from the start of its device's arena, a multiple of `ALIGNMENT`. -1 for a
    buffer outside the arenas: an input, an output, a cell, or a temporary that no instruction uses."""
    arena_bytes: tuple[int, ...]
    """For each device, the size in bytes of the arena that holds the temporaries."""

    @property
    def program(self) -> Program:
        """The instructions in the order of the steps, with their buffers and devices, without a policy."""
        instructions = tuple([step.instruction for step in self.steps if type(step) is Execute])
        return Program(self.devices, self.buffers, instructions, (None,), (0,) * len(instructions))

    @property
    def seed_cells(self) -> tuple[int, ...]:
        """The cells that hold the seeds of fills. In a captured plan each launch draws all of these anew, since a seed
        that the user chose is a constant there."""
        fills = [step.instruction for step in self.steps if type(step) is Execute and type(step.instruction) is Fill]
        return tuple([fill.seed.buffer for fill in fills if fill.seed is not None])

    def __str__(self) -> str:
        return show_plan(self)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _memo: object) -> Self:
        return self

    if not TYPE_CHECKING:

        @leaves_run
        def __reduce_ex__(self, _protocol: object) -> NoReturn:
            raise PicklingError(
                f"a plan of {len(self.steps)} steps was to be pickled at {describe(here_outside(*COPIERS))}. It refers "
                "to code, functions and devices of this process. Send its text, str(plan) or plan.to_svg(); or the "
                "function that builds the op, and make the plan there: plan_of(op)."
            )

    @leaves_run
    def to_svg(self, *, costs: Costs | None = None, until: float | None = None) -> str:
        """Return a drawing of the lanes as SVG text: the predicted time of each instruction, and the waits between
        lanes. Jupyter shows this drawing for a plan.

        Args:
            costs: the `CostModel` that predicts the times; `CostModel()` unless given.
            until: the time in seconds that is as wide as a page. Drawings with the same `until` have the same scale, so
                that plans can be compared. By default a drawing is so wide that half of its bars have room for their
                names.
        """
        return DRAWING.value(self, costs, until)

    @leaves_run
    def save_svg(self, path: str | PathLike[str], *, costs: Costs | None = None, until: float | None = None) -> None:
        """Write the drawing that `to_svg()` returns to a file."""
        check_path(path, "save_svg", here())
        Path(path).write_text(self.to_svg(costs=costs, until=until), encoding="utf-8")

    @leaves_run
    def memory_to_svg(self) -> str:
        """Return a drawing of the memory of a run as SVG text: a chart for the arena of each device, with a box for
        each tensor in it, from the instruction that makes it to the last one that uses it, at its bytes."""
        return MEMORY_DRAWING.value(self)

    @leaves_run
    def save_memory_svg(self, path: str | PathLike[str]) -> None:
        """Write the drawing that `memory_to_svg()` returns to a file."""
        check_path(path, "save_memory_svg", here())
        Path(path).write_text(self.memory_to_svg(), encoding="utf-8")

    def _repr_svg_(self) -> str:
        return self.to_svg()

    def _repr_html_(self) -> str:
        return in_page(self.to_svg())


def peak_bytes_on(plan: Plan) -> dict[str, int]:
    """Return the bytes that a run allocates on each device beyond its inputs, by the device's name. Their sum is
    `plan.peak_bytes`."""
    found = dict.fromkeys(plan.devices, 0)
    for name, arena in zip(plan.devices, plan.arena_bytes, strict=True):
        found[name] += arena
    for buffer in plan.buffers:
        if buffer.role is Role.OUTPUT and buffer.device != HOST:
            found[plan.devices[buffer.device]] += buffer.nbytes
    return found


def may_write_over(launch: Launch, source: int, out: int) -> bool:
    """Return true if the launch may write buffer `out` in the memory of buffer `source`, which it reads.

    The kernel must allow it (`in_place`): it then reads an element of an input before it writes the output's element of
    the same index. So both buffers must have their elements at the same addresses: equal shapes, strides, offsets and
    element sizes.
    """
    if not launch.kernel.in_place or source not in launch.reads or out not in launch.writes:
        return False
    if launch.tile_list is not None:  # the output's other tiles hold what they should already
        return False
    reads = [a.layout for a in launch.args if type(a) is View and a.buffer == source]
    writes = [each.view.layout for each in launch.outputs if each.view.buffer == out]
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


def written_over(launch: Launch, program: Program) -> int:
    """Return the bytes of an output that a launch may write over one of its inputs; 0 for none."""
    buffers = program.buffers
    if not launch.kernel.in_place:
        return 0
    for out in launch.writes:
        for source in launch.reads:
            if buffers[source] == buffers[out] and may_write_over(launch, source, out):
                return buffers[out].nbytes
    return 0


def lane_names(plan: Plan) -> list[str]:
    """Return the name of each lane: `host:0/1` is the second stream that the plan takes from the pool of its device, in
    the order in which it takes them, and `host:0/own-1` the first stream that the program has opened itself."""
    names: list[str] = []
    pooled: dict[int, int] = {}
    opened: dict[int, int] = {}
    for lane in plan.lanes:
        own = not isinstance(lane.key, int)
        counts = opened if own else pooled
        counts[lane.device] = counts.get(lane.device, -1) + 1
        number = f"own-{counts[lane.device] + 1}" if own else str(counts[lane.device])
        names.append(f"{name_at(plan.devices, lane.device)}/{number}")
    return names


def show_plan(plan: Plan) -> str:
    """Return a table of the steps in order, and a table of the buffers, as text. Steps count from 1, and so do
    instructions, whose numbers in the column `#` are those of `explain()`. A lane is printed as `device/number`, an
    event as `e0`."""
    places = OriginColumn()
    lanes = lane_names(plan)
    rows: list[tuple[str, ...]] = []
    executed = 0
    for index, step in enumerate(plan.steps, 1):
        what, number, buffers, size, origin = type(step).__name__, "", "", "", ""
        match step:
            case Execute(instruction, _):
                what = label(instruction)
                executed += 1
                number = str(executed)
                reads = buffer_names(plan.buffers, instruction.reads)
                buffers = f"{reads} -> {buffer_names(plan.buffers, instruction.writes)}".strip()
                size = buffer_bytes(plan.buffers, instruction.writes)
                origin = places.text_of(instruction.origin)
            case Allocate(buffer, _) | Release(buffer, _):
                buffers, size = buffer_names(plan.buffers, (buffer,)), buffer_bytes(plan.buffers, (buffer,))
            case Record(event, _) | Wait(event, _):
                what = f"{what} e{event}"
        rows.append((str(index), number, what, name_at(lanes, step.lane), buffers, size, origin))
    return "\n".join(
        [
            (
                f"Plan: {counted(len(plan.steps), 'step')}, {counted(len(plan.lanes), 'lane')}, "
                f"{counted(plan.events, 'event')}, "
                f"{plan.peak_bytes:,} bytes beyond its inputs, devices: {', '.join(plan.devices) or 'none'}"
            ),
            *table(("step", "#", "does", "lane", "buffers", "bytes", "origin"), rows),
            *buffer_table(plan.devices, plan.buffers, plan.offsets),
        ]
    )


DRAWING: Final = Slot[Callable[[Plan, object, object], str]]("dagpu.plans.drawing")
"""The function that draws a plan by the times that a cost model predicts, which reads plans."""

MEMORY_DRAWING: Final = Slot[Callable[[Plan], str]]("dagpu.plans.drawing")
"""The function that draws the arenas of a plan."""


# ---- vector clock
#
# Vector clocks: the happens-before order of work on several lanes.
#
# Work is numbered by one counter that grows along every lane (the index of an instruction, or of a step). The clock of
# lane n has one entry for each lane m: the number of the last work of m that happens before the next work of n. The
# entry is -1 if there is none, and `END` for m = n. So work `a` of lane m happens before the next work of lane n
# exactly when `current[n][m] >= a`.
#
# A clock changes only when its lane waits. The clock is then replaced, never changed in place. So the clock at a piece
# of work can be kept as a reference to the clock that its lane had at the time.
#
# Plans for meshes have many lanes, and a wait for each few instructions: there a clock is an array. That of few lanes
# is a list, of which an entry is read in a third of the time.

Clock: TypeAlias = "list[int] | NDArray[np.int64]"

END = sys.maxsize
"""An entry of a clock that is greater than the number of any work."""
_WIDE: Final = 16
"""Number of lanes from which on clocks are arrays: two of these are joined in 0.7 us, two lists of 16 lanes in 2."""


@final
class Clocks:
    """The current clock of each lane. The entries are the square of the number of lanes, which is small."""

    __slots__ = ("_first", "_is_wide", "current")

    def __init__(self, lanes: int) -> None:
        self._is_wide = lanes >= _WIDE
        self.current: list[Clock] = [
            np.full(lanes, -1, np.int64) if self._is_wide else [-1] * lanes for _ in range(lanes)
        ]
        """The current clock of each lane, by the lane's index."""
        for lane, clock in enumerate(self.current):
            clock[lane] = END
        self._first = self.current.copy()
        """The clock of each lane before its first wait. It covers that lane alone."""

    def join(self, lane: int, other: int, at: int, clock: Clock) -> Clock:
        """Make `lane` wait for work number `at` of lane `other`, and return the new clock of `lane`. `clock` is the
        clock that `other` had at that work."""
        before = self.current[lane]
        if other == lane:
            return before
        after: Clock
        if clock is self._first[other]:
            after = before.copy()
        elif self._is_wide:
            after = np.maximum(before, clock)
        else:
            # Calls of `max` take twice as long, and this line takes a tenth of the time of planning.
            after = [known if known > news else news for known, news in zip(before, clock, strict=True)]  # noqa: FURB136
        after[other] = max(before[other], at)  # clock[other] is END, yet the wait covers no later work
        self.current[lane] = after
        return after


def as_list(clock: Clock) -> list[int]:
    """Return a clock as a list: itself if it is one."""
    return clock if isinstance(clock, list) else clock.tolist()


def step_clocks(steps: Sequence[Step], lanes: int, events: int) -> list[list[int]]:
    """Return, for each step of a plan, the clock of its lane when the step starts, as a list. Work is numbered by the
    index of the step.

    Each event must be recorded before it is waited for.
    """
    clocks = Clocks(lanes)
    recorded: list[tuple[int, int, Clock]] = [(-1, -1, [])] * events
    found: list[list[int]] = []
    now = [as_list(clock) for clock in clocks.current]
    for at, step in enumerate(steps):
        found.append(now[step.lane])
        if type(step) is Record:
            recorded[step.event] = step.lane, at, clocks.current[step.lane]
        elif type(step) is Wait:
            now[step.lane] = as_list(clocks.join(step.lane, *recorded[step.event]))
    return found
