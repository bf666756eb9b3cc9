"""A `Program`: the result of a trace and the input of a scheduler, as plain data. It is built and compared without a
device.

A program names memory by its index in `Program.buffers`. A buffer is on a device, or it is a *cell* (`device == HOST`):
one Python value on the host, such as a NumPy array that is copied from or to, or the result of a `HostCall`. Accesses
are recorded for whole buffers: an output covers its buffer, except that of a copy to a part.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from functools import cached_property, partial
from itertools import accumulate, chain, islice
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias, final

from dagpu.common.frozen import plain
from dagpu.common.layout import Layout
from dagpu.common.places import Origin
from dagpu.ops.initializers import Recipe
from dagpu.ops.kernel_spec import KernelSpec
from dagpu.plans.text import OriginColumn, name_at, table

HOST = -1
"""The device index of a cell."""


@final
class Role(Enum):
    """The lifetime of a buffer."""

    INPUT = "input"
    """The buffer holds data before the program starts. Its owner outside the program keeps it alive."""
    TEMPORARY = "temporary"
    """The buffer is allocated and freed within the program."""
    OUTPUT = "output"
    """The buffer is allocated within the program, and lives on as part of the result."""


@final
@plain
class Buffer:
    """A block of `nbytes` bytes on device number `device` of the program, or a cell (`device == HOST`, 0 bytes)."""

    nbytes: int
    device: int
    role: Role


@final
@plain
class View:
    """An array in a buffer: elements of the buffer in a given layout."""

    buffer: int
    layout: Layout


@final
@plain
class Tiles:
    """An output of a kernel: a view that is cut into tiles, `grid[d]` of them along axis d. Tiles at the edges may be
    smaller."""

    view: View
    tile: tuple[int, ...]
    grid: tuple[int, ...]

    @property
    def buffer(self) -> int:
        """The buffer of the view."""
        return self.view.buffer


@final
@plain
class Cell:
    """A reference to the value of a cell. In the argument of a `HostCall` it is replaced when the function is called;
    among the arguments of a `Launch` it is a number, replaced when the run is submitted."""

    buffer: int


@final
@plain
class Items:
    """A tuple in the argument of a `HostCall`, which is built from its items when the function is called."""

    items: tuple[object, ...]


@final
@plain
class Launch:
    """A launch of a kernel: one block, or one call of the kernel's host body, for each index of `grid`, or for each of
    a list of tiles."""

    kernel: KernelSpec
    args: tuple[Any, ...]
    """The arguments in the order of the kernel's parameters: a `View` (input), `Tiles` (output), a number, or a `Cell`.
    Such a cell holds a number from the start of the run, and the number may differ between runs of the plan. The cell
    is not in `reads`."""
    grid: tuple[int, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    device: int
    origin: Origin
    tile_list: View | None = None
    """The tiles that run, as int32 numbers of tiles in C order over `grid`, in a buffer of the device that is in
    `reads`. The list may end with numbers from `prod(grid)` on, which are no tiles. None: all tiles run."""
    scratch: View | None = None
    """Memory that the kernel's library works in, in a temporary that this launch alone uses. It is in `writes`."""

    @property
    def views(self) -> list[tuple[int, View]]:
        """The tensors among the arguments, inputs and outputs: their indices in `args`, and their views."""
        found: list[tuple[int, View]] = []
        for index, argument in enumerate(self.args):
            kind = type(argument)
            if kind is View:
                found.append((index, argument))
            elif kind is Tiles:
                found.append((index, argument.view))
        return found

    def view(self, index: int) -> View:
        """Return the view of the tensor at an index in `args`."""
        argument: View | Tiles = self.args[index]
        return argument if type(argument) is View else argument.view

    @property
    def outputs(self) -> list[Tiles]:
        """The outputs among the arguments."""
        return [argument for argument in self.args if type(argument) is Tiles]

    @property
    def tile(self) -> tuple[int, ...] | None:
        """The tile of the first output; None if there is no output."""
        for argument in self.args:
            if type(argument) is Tiles:
                return argument.tile
        return None


@final
@plain
class Fill:
    """Writes every element of `out` by a formula."""

    out: View
    recipe: Recipe
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    device: int
    origin: Origin
    seed: Cell | None = None
    """The cell that holds the seed of random numbers, if the recipe has none. The cell holds it from the start of the
    run, and the seed may differ between runs of the plan. The cell is not in `reads`."""


@final
@plain
class CopyHtoD:
    """Copies the NumPy array in cell `source` to `out`."""

    out: View
    source: Cell
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    device: int
    origin: Origin


@final
@plain
class CopyDtoH:
    """Copies `source` to a new NumPy array of its shape and element type, which is put in cell `out`."""

    out: Cell
    source: View
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    device: int
    origin: Origin


@final
@plain
class CopyDtoD:
    """Copies `source` to `out`, which has the same shape. The copy converts elements if the element types differ, and
    crosses devices if the devices differ. If `out` is a part of a buffer that has contents, the buffer is in `reads`
    too: the rest stays."""

    out: View
    source: View
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    device: int
    origin: Origin


@final
@plain
class HostCall:
    """Calls `function(argument)` on a worker thread, and puts the result in cell `out`.

    `argument` is the value itself. Each `Cell` and `Items` in it is replaced by its value when the function is called.
    """

    function: Callable[[Any], object]
    argument: object
    out: Cell
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    device: int
    origin: Origin


@final
@plain
class GraphLaunch:
    """Launches a captured plan, which has memory of its own, as a whole. On CUDA this is the launch of a CUDA graph."""

    graph: object
    """The backend's form of the plan, made by `Prepared.freeze`."""
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    device: int
    origin: Origin
    name: str = ""
    """The place where the graph was captured, for printing: `file.py:12`."""


@final
@plain
class If:
    """Decides whether the `body` instructions that follow it run: all of them if one of the flags is not 0, else none.

    A flag is a 32-bit number. Whoever starts a run clears all flags, so those that nothing sets in the run are 0. What
    a body writes, flags apart, is read in that body, and in bodies that run only if that one does. No body contains
    another one.

    Only a CUDA graph decides, by a conditional node. Plans for streams, and those of other backends, have no `If`.
    """

    flags: tuple[View, ...]
    body: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    device: int
    origin: Origin


Instruction: TypeAlias = Launch | Fill | CopyHtoD | CopyDtoH | CopyDtoD | HostCall | GraphLaunch | If


# ---- operands

Operand: TypeAlias = View | Tiles | Cell
"""What names memory in an instruction, apart from `reads` and `writes`."""

_OPERANDS: Final[Mapping[type, tuple[str, ...]]] = {
    Launch: ("*args", "tile_list", "scratch"),
    Fill: ("out", "seed"),
    CopyHtoD: ("out", "source"),
    CopyDtoH: ("out", "source"),
    CopyDtoD: ("out", "source"),
    HostCall: ("argument", "out"),
    GraphLaunch: (),
    If: ("*flags",),
}
"""For each kind of instruction, the fields with operands. A field with a star has a tuple of values, each of which may
be an operand. Any other field has one value: an operand, a constant, or `Items`."""


class _Form(NamedTuple):
    """Where the operands are among the fields of a kind of instruction."""

    values: Callable[[Any], tuple[Any, ...]]
    """Returns all fields of an instruction, in order."""
    tuples: tuple[int, ...]
    """The fields with tuples of operands."""
    singles: tuple[int, ...]
    """The other fields with operands."""
    accesses: slice
    """The fields `reads`, `writes` and `device`."""
    constants: tuple[int, ...]
    """All other fields, but for `origin` and `name`, which decide nothing."""


def _form(kind: type, operand_fields: tuple[str, ...]) -> _Form:
    names = [each.name for each in fields(kind)]
    first = names.index("reads")
    assert names[first : first + 3] == ["reads", "writes", "device"]
    known = {*[name.lstrip("*") for name in operand_fields], *names[first : first + 3], "origin", "name"}
    return _Form(
        attrgetter(*names),
        tuple([names.index(name[1:]) for name in operand_fields if name[0] == "*"]),
        tuple([names.index(name) for name in operand_fields if name[0] != "*"]),
        slice(first, first + 3),
        tuple([at for at, name in enumerate(names) if name not in known]),
    )


_FORMS: Final = {kind: _form(kind, operand_fields) for kind, operand_fields in _OPERANDS.items()}


def operand_values(instruction: Instruction) -> list[Any]:
    """Return what an instruction has in its fields with operands, in order: operands, constants and `Items`."""
    form = _FORMS[type(instruction)]
    values = form.values(instruction)
    return [*chain.from_iterable([values[at] for at in form.tuples]), *[values[at] for at in form.singles]]


def constant_values(instruction: Instruction) -> list[Any]:
    """Return what an instruction has in its other fields: what it does with its operands."""
    form = _FORMS[type(instruction)]
    values = form.values(instruction)
    return [values[at] for at in form.constants]


def operands(instruction: Instruction) -> Iterator[Operand]:
    """Yield the operands of an instruction, each as often as the instruction names it."""
    return operands_in(operand_values(instruction))


def operands_in(values: Iterable[Any]) -> Iterator[Operand]:
    """Yield the operands among some values, and in `Items` among them."""
    for value in values:
        kind = type(value)
        if kind is View or kind is Tiles or kind is Cell:
            yield value
        elif kind is Items:
            yield from operands_in(value.items)


def map_operands(
    instruction: Instruction,
    change: Callable[[Any], Any],
    reads: tuple[int, ...],
    writes: tuple[int, ...],
    device: int,
) -> Instruction:
    """Return an instruction with other memory: with `change(operand)` in the place of each operand, and with these
    accesses, on this device. `change` returns an operand of the same kind."""
    form = _FORMS[type(instruction)]
    values = list(form.values(instruction))
    for at in form.tuples:
        values[at] = _mapped(values[at], change)
    for at in form.singles:
        if values[at] is not None:
            (values[at],) = _mapped((values[at],), change)
    values[form.accesses] = reads, writes, device
    return type(instruction)(*values)


def on_device(instruction: Instruction, device: int) -> Instruction:
    """Return an instruction on another device, with the same memory."""
    if instruction.device == device:
        return instruction
    form = _FORMS[type(instruction)]
    values = list(form.values(instruction))
    values[form.accesses] = instruction.reads, instruction.writes, device
    return type(instruction)(*values)


def _mapped(values: tuple[Any, ...], change: Callable[[Any], Any]) -> tuple[Any, ...]:
    found: list[Any] = []
    for value in values:
        kind = type(value)
        if kind is View or kind is Tiles or kind is Cell:
            found.append(change(value))
        else:
            found.append(Items(_mapped(value.items, change)) if kind is Items else value)
    return tuple(found)


def covers(instruction: Instruction, buffers: Sequence[Buffer]) -> bool:
    """Return whether an instruction writes every byte of its outputs, and so uses nothing of what was there. A kernel
    and a captured graph may read what they write, or leave some of it."""
    if type(instruction) is Launch:  # most instructions are launches
        return False
    if type(instruction) is Fill or type(instruction) is CopyHtoD or type(instruction) is CopyDtoD:
        return instruction.out.layout.nbytes == buffers[instruction.out.buffer].nbytes
    return type(instruction) is CopyDtoH or type(instruction) is HostCall  # the host gets a new value


# ---- who wrote what last

Value: TypeAlias = int
"""The number of a value; see `Accesses`."""


@final
class Accesses:
    """Instructions in single-assignment form: a *value* is what one instruction leaves in one of its outputs, or what a
    buffer holds before the program.

    Values are numbered: first one for each buffer, in order, for what it holds before the program; then one for each
    of `writes` of each instruction, in order. So value `first[i] + k` is output k of instruction i.

    Two relations are told apart. Instructions are *ordered* by whole buffers, as they declare their accesses: read
    after write, write after read, write after write. What an instruction *uses* is finer: what a write covers is not
    used, and the numbers of a kernel are used, though they order nothing.
    """

    def __init__(self, buffers: Sequence[Buffer], instructions: Sequence[Instruction]) -> None:
        self._buffers = buffers
        self._instructions = instructions
        self.last: list[Value] = list(range(len(buffers)))
        """For each buffer, the value in it at the end."""
        self.readers: list[list[int]] = [[] for _ in buffers]
        """For each buffer, the instructions that read the value in it at the end, in order."""
        self.writer = [-1] * len(buffers)
        """For each buffer, the instruction that makes the value in it at the end; -1 for none."""
        self.predecessors: list[list[int]] = []
        """For each instruction, those that it must follow; one may occur more than once. It follows what makes its
        `reads`; and for each write what reads the value before, or what made it if nothing does."""
        self._read: list[Value] = []
        """The value of each of `reads` of each instruction."""
        last, readers, writer, read = self.last, self.readers, self.writer, self._read
        put, count = self.predecessors.append, len(buffers)
        for index, instruction in enumerate(instructions):
            before: list[int] = []
            for buffer in instruction.reads:
                read.append(last[buffer])
                made = writer[buffer]
                if made >= 0:
                    before.append(made)
                readers[buffer].append(index)
            for buffer in instruction.writes:
                others, made = readers[buffer], writer[buffer]
                if others:
                    if others[-1] == index:  # it reads what it writes
                        others = [other for other in others if other != index]
                    readers[buffer] = []
                if others:
                    before += others
                elif 0 <= made < index:
                    before.append(made)
                last[buffer] = count
                count += 1
                writer[buffer] = index
            put(before)

    @cached_property
    def buffer(self) -> list[int]:
        """For each value, the buffer that it is in."""
        return [*range(len(self._buffers)), *chain.from_iterable([each.writes for each in self._instructions])]

    @cached_property
    def first(self) -> list[Value]:
        """For each instruction, the value of its first output; and the number of all values."""
        counts = [len(each.writes) for each in self._instructions]
        return list(accumulate(counts, initial=len(self._buffers)))

    @cached_property
    def maker(self) -> list[int]:
        """For each value, the instruction that makes it; -1 if it is there before the program."""
        made = [[index] * len(each.writes) for index, each in enumerate(self._instructions)]
        return [-1] * len(self._buffers) + list(chain.from_iterable(made))

    @cached_property
    def before(self) -> list[Value]:
        """For each value, the one whose place it takes; -1 for a value from before the program."""
        last = list(range(len(self._buffers)))
        found = [-1] * len(last)
        for value, buffer in enumerate(islice(self.buffer, len(last), None), len(last)):
            found.append(last[buffer])
            last[buffer] = value
        return found

    @cached_property
    def reads(self) -> list[list[Value]]:
        """For each instruction, the value of each of its `reads`."""
        read = iter(self._read)
        return [list(islice(read, len(each.reads))) for each in self._instructions]

    @cached_property
    def uses(self) -> list[list[Value]]:
        """For each instruction, the values on which what it makes may depend, each once: those that it reads; what is
        in the memory that it writes without covering it, unless nothing has written that; and the numbers of a kernel
        and the seed of a fill."""
        found: list[list[Value]] = []
        buffers, before, read, count = self._buffers, self.before, self._read, len(self._buffers)
        blank = [self.is_blank(value) for value in range(count)]
        start, value = 0, count
        for instruction in self._instructions:
            end, after = start + len(instruction.reads), value + len(instruction.writes)
            uses = read[start:end]
            if not covers(instruction, buffers):
                for old in before[value:after]:  # a comprehension takes longer for so few
                    if old >= count or not blank[old]:
                        uses.append(old)
            if type(instruction) is Launch:
                for each in instruction.args:
                    if type(each) is Cell:
                        uses.append(self._unwritten(each))
            elif type(instruction) is Fill and instruction.seed is not None:
                uses.append(self._unwritten(instruction.seed))
            found.append(list(dict.fromkeys(uses)) if len(uses) > 1 else uses)
            start, value = end, after
        return found

    def _unwritten(self, cell: Cell) -> Value:
        """Return the value of a cell that no instruction writes."""
        assert self.writer[cell.buffer] < 0, "it holds its number from the start of the run"
        return cell.buffer

    def is_blank(self, value: Value) -> bool:
        """Return whether a value is memory that nothing has written."""
        return value < len(self._buffers) and self._buffers[value].role is not Role.INPUT

    def is_alone(self, value: Value) -> bool:
        """Return whether no instruction but the one that makes a value writes its buffer."""
        buffer = self.buffer[value]
        return self.before[value] == buffer and self.last[buffer] == value

    def makes(self, index: int) -> range:
        """Return the values that an instruction makes, in the order of its `writes`."""
        return range(self.first[index], self.first[index + 1])


def bodies_of(instructions: Iterable[Instruction]) -> list[int]:
    """Return for each instruction the index of the `If` in whose body it is; -1 for none."""
    found: list[int] = []
    inside, left = -1, 0
    for index, instruction in enumerate(instructions):
        found.append(inside if left else -1)
        if left:
            left -= 1
        elif type(instruction) is If:
            inside, left = index, instruction.body
    return found


def reads_peers(instruction: Instruction) -> bool:
    """Return whether an instruction may read memory of other devices."""
    return type(instruction) is CopyDtoD or (type(instruction) is Launch and instruction.kernel.peers)


@final
@dataclass(frozen=True, slots=True)
class Program:
    """Instructions in an order in which they may run one after the other. Their `reads` and `writes` give the
    dependences.

    `policies[policy_of[i]]` is the scheduling policy that places instruction i.
    """

    devices: tuple[str, ...]
    buffers: tuple[Buffer, ...]
    instructions: tuple[Instruction, ...]
    policies: tuple[Any, ...]
    policy_of: tuple[int, ...]
    _accesses: Accesses | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def accesses(self) -> Accesses:
        """Who wrote what last, computed once."""
        found = self._accesses
        if found is None:
            found = Accesses(self.buffers, self.instructions)
            object.__setattr__(self, "_accesses", found)
        return found

    def __str__(self) -> str:
        return show_program(self)


# ---- as text


def label(instruction: Instruction) -> str:
    """Return a short name of an instruction for tables and messages, such as `Launch saxpy` or `CopyHtoD`."""
    if isinstance(instruction, Launch):
        return f"Launch {instruction.kernel.label}"
    if isinstance(instruction, HostCall):
        return f"HostCall {getattr(instruction.function, '__name__', type(instruction.function).__name__)}"
    if isinstance(instruction, GraphLaunch) and instruction.name:
        return f"GraphLaunch {instruction.name}"
    if isinstance(instruction, If):
        return f"If: the next {instruction.body}"
    return type(instruction).__name__


def show_program(program: Program) -> str:
    """Return a table of the instructions in order, and a table of the buffers, as text."""
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
            places.text_of(instruction.origin),
        )
        for index, (instruction, policy) in enumerate(zip(program.instructions, program.policy_of, strict=True), 1)
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
    """Return the lines of a table with the device, role and size in bytes of each buffer. With `offsets`, a further
    column has each buffer's offset in its device's arena."""
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
    """Return `b3` for device memory, `c3` for a cell. An index out of range is printed too, because the plan may be
    wrong."""
    cell = 0 <= number < len(buffers) and buffers[number].device == HOST
    return f"{'c' if cell else 'b'}{number}"


def buffer_names(buffers: Sequence[Buffer], numbers: Sequence[int]) -> str:
    """Return the names of these buffers on one line."""
    return " ".join([_buffer_name(buffers, number) for number in numbers])


def buffer_bytes(buffers: Sequence[Buffer], numbers: Sequence[int]) -> str:
    """Return the total size of these buffers in bytes, as text. The text is empty if all of them are cells."""
    known = [buffers[number] for number in numbers if 0 <= number < len(buffers)]
    if all(buffer.device == HOST for buffer in known):
        return ""
    return f"{sum(buffer.nbytes for buffer in known):,}"


@final
class Renumbering:
    """Writes instructions with other numbers of buffers and devices. A view that several share stays one object."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, int], View | Tiles] = {}
        """The operands made so far, by the identity of the old one and the new number of its buffer."""

    def instruction(self, old: Instruction, buffers: Mapping[int, int], device: int) -> Instruction:
        """Return the instruction on another device, with the new numbers of all its buffers and cells."""
        reads = tuple([buffers[b] for b in old.reads])
        writes = tuple([buffers[b] for b in old.writes])
        return map_operands(old, partial(self._operand, buffers), reads, writes, device)

    def _operand(self, buffers: Mapping[int, int], operand: Operand) -> Operand:
        """Return an operand with the new number of its buffer: itself if that is the old one."""
        before = operand.view.buffer if type(operand) is Tiles else operand.buffer
        number = buffers[before]
        if number == before:
            return operand
        if type(operand) is Cell:
            return Cell(number)
        found = self._made.get((id(operand), number))
        if found is None:
            if type(operand) is Tiles:
                view = self._operand(buffers, operand.view)
                assert type(view) is View
                found = Tiles(view, operand.tile, operand.grid)
            else:
                found = View(number, operand.layout)
            self._made[id(operand), number] = found
        return found
