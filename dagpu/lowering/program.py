"""A `Program`: what a trace gives and a scheduler takes. Plain data, built and compared without a device.

Memory is named by its index in `Program.buffers`. A buffer lies on a device, or (`device == HOST`) it is a *cell*:
one Python value on the host, a NumPy array that is copied from or to, or the result of a `HostCall`.
Accesses are counted by whole buffers: an output always covers its buffer, so nothing is lost by it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias, final

from dagpu.common.frozen import plain
from dagpu.common.layout import Layout
from dagpu.common.origin import Origin
from dagpu.lowering.text import OriginColumn, name_at, table
from dagpu.ops.initializers import Recipe
from dagpu.ops.kernel_spec import KernelSpec

HOST = -1
"""The device index of a cell."""


@final
class Role(Enum):
    """How long a buffer lives."""

    INPUT = "input"
    """It holds data before the program starts; whoever lent or gave it keeps it alive."""
    TEMPORARY = "temporary"
    """It begins and ends within the program."""
    OUTPUT = "output"
    """It begins in the program and is handed out."""


@final
@plain
class Buffer:
    """`nbytes` bytes on device number `device` of the program, or a cell (`device == HOST`, 0 bytes)."""

    nbytes: int
    device: int
    role: Role


@final
@plain
class View:
    """Part of a buffer, as an array."""

    buffer: int
    layout: Layout


@final
@plain
class Tiles:
    """An output: a view cut into tiles, `grid[d]` of them along axis d; those at the edges may be smaller."""

    view: View
    tile: tuple[int, ...]
    grid: tuple[int, ...]


@final
@plain
class Cell:
    """The value of that cell: in the argument of a `HostCall` when it is called, as a number among the arguments of a
    `Launch` when the run is submitted."""

    buffer: int


@final
@plain
class Items:
    """In the argument of a `HostCall`: a tuple, built from its items when the call is made."""

    items: tuple[object, ...]


@final
@plain
class Launch:
    """A kernel: one block, or one call of its host body, for each index of `grid`."""

    kernel: KernelSpec
    args: tuple[Any, ...]
    """In the order of the kernel's parameters: `View` (input), `Tiles` (output), a number, or a `Cell` that holds one
    from the start: such a number may differ from run to run of the plan. It stands in no `reads`."""
    grid: tuple[int, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    device: int
    origin: Origin


@final
@plain
class Fill:
    """Every element of `out` from a formula."""

    out: View
    recipe: Recipe
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    device: int
    origin: Origin
    seed: Cell | None = None
    """Where the seed is of random numbers whose recipe has none: it may differ from run to run of the plan. The cell
    holds it from the start, and stands in no `reads`."""


@final
@plain
class CopyHtoD:
    """The NumPy array in cell `source` to `out`."""

    out: View
    source: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    device: int
    origin: Origin


@final
@plain
class CopyDtoH:
    """`source` to a new NumPy array of its shape and element type, in cell `out`."""

    out: int
    source: View
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    device: int
    origin: Origin


@final
@plain
class CopyDtoD:
    """`source` to `out`, of equal shape: converts where the element types differ, crosses devices where they do."""

    out: View
    source: View
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    device: int
    origin: Origin


@final
@plain
class HostCall:
    """`function(argument)` on a worker thread; its result goes to cell `out`.

    `argument` is the value itself, but for the `Cell`s and `Items` in it, which are looked up when the call is made.
    """

    function: Callable[[Any], object]
    argument: object
    out: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    device: int
    origin: Origin


@final
@plain
class GraphLaunch:
    """A plan with memory of its own, launched as a whole: on CUDA, a graph."""

    graph: object
    """What `Prepared.freeze` made of the plan."""
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    device: int
    origin: Origin
    name: str = ""
    """Where it was captured, for people: `file.py:12`."""


Instruction: TypeAlias = Launch | Fill | CopyHtoD | CopyDtoH | CopyDtoD | HostCall | GraphLaunch


@final
@dataclass(frozen=True, slots=True)
class Program:
    """Instructions in an order in which they may run one by one; `reads` and `writes` say which need it.

    `policy_of[i]` is the index in `policies` of what places instruction i.
    """

    devices: tuple[str, ...]
    buffers: tuple[Buffer, ...]
    instructions: tuple[Instruction, ...]
    policies: tuple[Any, ...]
    policy_of: tuple[int, ...]

    def __str__(self) -> str:
        return show_program(self)


# ---- as text


def label(instruction: Instruction) -> str:
    """What an instruction is, in a word or two: `Launch saxpy`, `CopyHtoD`."""
    if isinstance(instruction, Launch):
        return f"Launch {instruction.kernel.name}"
    if isinstance(instruction, HostCall):
        return f"HostCall {getattr(instruction.function, '__name__', type(instruction.function).__name__)}"
    if isinstance(instruction, GraphLaunch) and instruction.name:
        return f"GraphLaunch {instruction.name}"
    return type(instruction).__name__


def show_program(program: Program) -> str:
    """A table of the instructions in order, and one of the buffers."""
    places = OriginColumn()
    rows = [
        (
            str(index),
            label(instruction),
            name_at(program.devices, instruction.device),
            str(program.policies[policy]),
            buffer_names(program.buffers, instruction.reads),
            buffer_names(program.buffers, instruction.writes),
            buffer_bytes(program.buffers, instruction.writes),
            places.of(instruction.origin),
        )
        for index, (instruction, policy) in enumerate(zip(program.instructions, program.policy_of, strict=True))
    ]
    return "\n".join(
        [
            (
                f"Program: {len(program.instructions)} instructions, {len(program.buffers)} buffers, "
                f"devices: {', '.join(program.devices) or 'none'}"
            ),
            *table(("#", "instruction", "device", "policy", "reads", "writes", "bytes", "origin"), rows),
            *buffer_table(program.devices, program.buffers),
        ]
    )


def buffer_table(devices: Sequence[str], buffers: Sequence[Buffer], offsets: Sequence[int] = ()) -> list[str]:
    """Lines with the device, role and bytes of each buffer; with `offsets`, also its place in its device's arena."""
    if not buffers:
        return []
    places = [f"{offset:,}" if offset >= 0 else "" for offset in offsets] + [""] * (len(buffers) - len(offsets))
    rows = [
        (
            _buffer_name(buffers, index),
            "cell" if buffer.device == HOST else name_at(devices, buffer.device),
            buffer.role.value,
            "" if buffer.device == HOST else f"{buffer.nbytes:,}",
            *([places[index]] if offsets else []),
        )
        for index, buffer in enumerate(buffers)
    ]
    return ["", *table(("buffer", "device", "role", "bytes", *(["at"] if offsets else [])), rows)]


def _buffer_name(buffers: Sequence[Buffer], number: int) -> str:
    """`b3` for device memory, `c3` for a cell. A number out of range is shown: the plan may be wrong."""
    cell = 0 <= number < len(buffers) and buffers[number].device == HOST
    return f"{'c' if cell else 'b'}{number}"


def buffer_names(buffers: Sequence[Buffer], numbers: Sequence[int]) -> str:
    """The names of these buffers, in one line."""
    return " ".join([_buffer_name(buffers, number) for number in numbers])


def buffer_bytes(buffers: Sequence[Buffer], numbers: Sequence[int]) -> str:
    """The bytes of all these buffers together; nothing where they are all cells."""
    known = [buffers[number] for number in numbers if 0 <= number < len(buffers)]
    if all(buffer.device == HOST for buffer in known):
        return ""
    return f"{sum(buffer.nbytes for buffer in known):,}"
