"""The verifier of placements: proves that a placed program computes what the program before it computes.

Both programs are walked in order, with a *value* for the contents of each buffer: a number that stands for the
instruction that made them, and for the values of all that it read. Equal numbers mean equal contents, whatever the
devices and the order of independent instructions. A copy of all bytes of a buffer passes the value on. The walk knows
nothing of how a placement is made: a copy that is missing, a stale replica or two versions in each other's place give
an instruction of the placed program a value that the program before does not have.
"""

from collections import Counter
from collections.abc import Hashable, Mapping
from typing import Any, Final, final

from dagpu.common.errors import PlanError
from dagpu.common.layout import Layout
from dagpu.common.places import describe
from dagpu.handles.device_handles import UserBody, is_automatic
from dagpu.plans.program import (
    HOST,
    Buffer,
    Cell,
    CopyDtoD,
    CopyDtoH,
    CopyHtoD,
    Fill,
    GraphLaunch,
    HostCall,
    If,
    Instruction,
    Items,
    Launch,
    Program,
    Role,
    Tiles,
    View,
    label,
    reads_peers,
)

BLANK: Final = 0
"""The value of memory that nothing has written."""
_CURE: Final = (
    "The placement is at fault, not the program: name a device for now, op.on(device), and report it together with "
    "what print(program) shows before and after."
)


def verify_placement(before: Program, after: Program, *, again: bool = False) -> None:
    """Check that `after` is `before` with a device for each instruction, and copies between devices.

    Each instruction of `before` is in `after` as often, reads the same versions of its buffers, and is on a device
    with all that it accesses, which is its own device if it has one. With `again` it is in `after` at least as often,
    and more often only if it changes nothing but what it writes. At the end the inputs, the outputs and the cells
    of `before` hold the same contents, in buffers of the same numbers. The order of instructions is free as far as it
    keeps this.

    Time: linear in the instructions and their accesses.

    Raises:
        PlanError: this does not hold. The message names the instruction or the buffer.
    """
    _check_tables(before, after)
    terms = Terms()
    first, second = ValueWalk(before, terms), ValueWalk(after, terms)
    first.run(None)
    _check_devices(after)
    second.run(first.made, again=again)
    first.check_missing(second.made)
    for number, buffer in enumerate(before.buffers):
        if (buffer.role is not Role.TEMPORARY or buffer.device == HOST) and first.values[number] != second.values[
            number
        ]:
            raise PlanError(
                f"buffer {number}, which outlives the program, holds other contents at the end of the placed program. "
                f"{_CURE}"
            )


def _check_devices(program: Program) -> None:
    """Check that each instruction is on the device of all that it accesses. Copies, and kernels that are made for it,
    read other devices, host functions get handles to any, and a captured graph has its memory on any."""
    device_of = [buffer.device for buffer in program.buffers]
    for instruction in program.instructions:
        kind, device, accessed = type(instruction), instruction.device, instruction.writes
        if kind is GraphLaunch:
            continue
        if kind is not HostCall and not reads_peers(instruction):
            accessed = instruction.reads + accessed
        for buffer in accessed:
            if device_of[buffer] != device and device_of[buffer] != HOST:
                where = f"{_named(instruction)} is on {program.devices[device]}"
                raise PlanError(f"{where}, and buffer {buffer} is not. {_CURE}")


def _may_run_again(instruction: Instruction, buffers: tuple[Buffer, ...]) -> bool:
    """Return whether an instruction leaves nothing but its outputs, and the same in each run: it has no state, and
    calls no code of the user's but the body of a kernel."""
    if type(instruction) is Launch:
        return instruction.kernel.state is None and not isinstance(instruction.kernel.library, UserBody)
    return type(instruction) is Fill or (type(instruction) is CopyDtoD and _is_whole(instruction.out, buffers))


def _named(instruction: Instruction) -> str:
    return f"{label(instruction)} at {describe(instruction.origin)}"


def _check_tables(before: Program, after: Program) -> None:
    """Check the devices, and that buffers keep their numbers, sizes, roles and devices."""
    if any(map(is_automatic, after.devices)):
        raise PlanError(f"the placed program still has the device {after.devices[-1]}. {_CURE}")
    for number, old in enumerate(before.buffers):
        new = after.buffers[number] if number < len(after.buffers) else None
        if (
            new is None
            or (old.nbytes, old.role, old.device == HOST) != (new.nbytes, new.role, new.device == HOST)
            or not -1 <= new.device < len(after.devices)
            or (
                old.device != HOST
                and not is_automatic(before.devices[old.device])
                and before.devices[old.device] != after.devices[new.device]
            )
        ):
            raise PlanError(f"buffer {number} is another one in the placed program: {old}, then {new}. {_CURE}")


@final
class Terms:
    """Numbers for terms: the same for equal terms."""

    __slots__ = ("_kept", "_layouts", "_numbers")

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._layouts: dict[int, int] = {}
        """Numbers of layouts by their identity."""
        self._kept: list[Layout] = []
        """These layouts, which stay alive, so that no other one gets the identity."""

    def number(self, term: Hashable) -> int:
        """Return the number of a term, 1 or more."""
        return self._numbers.setdefault(term, len(self._numbers) + 1)

    def layout(self, layout: Layout) -> int:
        """Return the number of a layout."""
        found = self._layouts.get(id(layout))
        if found is None:
            found = self._layouts[id(layout)] = self.number(layout)
            self._kept.append(layout)
        return found


@final
class ValueWalk:
    """A walk over one program. `given` has the values of its inputs, by their buffers; by default each is another one.
    `name` says which program it is, in messages, and `cure` what to do."""

    def __init__(
        self,
        program: Program,
        terms: Terms,
        given: Mapping[int, int] | None = None,
        name: str = "the placed program",
        cure: str = _CURE,
    ) -> None:
        self._program = program
        self._terms = terms
        self._name = name
        self._cure = cure
        self.made: Counter[int] = Counter()
        """How often each term is computed, by its number. Several walks with the same `terms` may count in one."""
        self.example: dict[int, Instruction] = {}
        """An instruction that computes each term, by its number."""
        self.values = [
            BLANK
            if buffer.role is not Role.INPUT
            else terms.number(("given", number))
            if given is None
            else given[number]
            for number, buffer in enumerate(program.buffers)
        ]
        """The value of each buffer now."""

    def run(self, wanted: "Counter[int] | None", *, again: bool = False) -> None:
        """Walk over all instructions. Each term has to be among the `wanted` ones, no more often than there; with
        `again` as often as it likes, if the instruction may run again."""
        terms, values, made, example = self._terms, self.values, self.made, self.example
        for instruction in self._program.instructions:
            if type(instruction) is CopyDtoD and self._pass_on(instruction):
                continue
            value = terms.number(self._term(instruction))
            count = made[value] = made.get(value, 0) + 1
            example[value] = instruction
            if wanted is not None and count > wanted.get(value, 0):
                if again and wanted.get(value, 0) and _may_run_again(instruction, self._program.buffers):
                    for at, buffer in enumerate(instruction.writes):
                        values[buffer] = terms.number((value, at))
                    continue
                more = "runs once more than before" if wanted[value] else "reads other contents than before"
                device = self._program.devices[instruction.device]
                raise PlanError(f"{_named(instruction)} on {device} {more}, in {self._name}. {self._cure}")
            for at, buffer in enumerate(instruction.writes):
                values[buffer] = terms.number((value, at))

    def check_missing(self, others: "Counter[int]") -> None:
        """Check that what this walk has found was found as often by walks over other programs.

        Raises:
            PlanError: it was not.
        """
        for key, count in self.made.items():
            if count > others.get(key, 0):
                missing = count - others[key]
                raise PlanError(f"{_named(self.example[key])} is missing {missing} times in {self._name}. {self._cure}")

    def _pass_on(self, copy: CopyDtoD) -> bool:
        """Pass the value on if this is a copy of all bytes of a buffer, and return whether it is."""
        values, buffers = self.values, self._program.buffers
        source, out = copy.source, copy.out
        if source.layout != out.layout or not _is_whole(out, buffers) or not _is_whole(source, buffers):
            return False
        values[out.buffer] = values[source.buffer]
        return True

    def _term(self, instruction: Instruction) -> Hashable:
        """Return the term of what an instruction computes: itself, without the numbers of its buffers and its device,
        and the values of what it uses."""
        values, operand = self.values, self._operand
        reads = tuple([values[buffer] for buffer in instruction.reads])
        if type(instruction) is Launch:  # most are
            scratch, tiles = instruction.scratch, instruction.tile_list
            return (
                Launch,
                id(instruction.kernel),
                instruction.grid,
                reads,
                tuple([values[b] for b in instruction.writes if scratch is None or b != scratch.buffer]),
                tuple([operand(each) for each in instruction.args]),
                None if tiles is None else operand(tiles),
                None if scratch is None else self._terms.layout(scratch.layout),
            )
        match instruction:
            case Fill(out=out, recipe=recipe, seed=seed):
                return Fill, id(recipe), self._target(out), operand(seed)
            case CopyHtoD(out=out, source=source):
                return CopyHtoD, values[source.buffer], self._target(out)
            case CopyDtoH(source=source):
                return CopyDtoH, operand(source)
            case CopyDtoD(out=out, source=source):
                return CopyDtoD, operand(source), self._target(out)
            case HostCall(function=function, argument=argument):
                return HostCall, id(function), operand(argument), reads
            case GraphLaunch(graph=graph, writes=writes):
                return GraphLaunch, id(graph), reads, tuple([values[buffer] for buffer in writes])
            case If(body=body):
                return If, reads, body

    def _target(self, out: View) -> Hashable:
        """Return a term for an output that is written: its layout, and what was there unless all of it is written."""
        whole = _is_whole(out, self._program.buffers)
        return self._terms.layout(out.layout), BLANK if whole else self.values[out.buffer]

    def _operand(self, operand: Any) -> Hashable:
        """Return a term for an operand. Constants are compared by identity: a placement keeps them."""
        kind = type(operand)
        if kind is View:
            return self._terms.layout(operand.layout), self.values[operand.buffer]
        if kind is Tiles:
            view = operand.view
            return self._terms.layout(view.layout), self.values[view.buffer], operand.tile, operand.grid
        if kind is Cell:
            return Cell, self.values[operand.buffer]
        if kind is Items:
            return Items, tuple(map(self._operand, operand.items))
        return None if operand is None else ("constant", id(operand))


def _is_whole(view: View, buffers: tuple[Buffer, ...]) -> bool:
    """Return whether a view has all bytes of its buffer."""
    return view.layout.nbytes == buffers[view.buffer].nbytes
