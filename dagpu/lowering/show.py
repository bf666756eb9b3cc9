"""Programs and plans as text: one line for each instruction, step and buffer."""

from collections.abc import Sequence
from pathlib import PurePath

from dagpu.lowering.plan import Allocate, Execute, Plan, Record, Release, Wait
from dagpu.lowering.program import HOST, Buffer, GraphLaunch, HostCall, Instruction, Launch, Program
from dagpu.origin import Origin, place_of


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
    places = Places()
    rows = [
        (
            str(index),
            label(instruction),
            _item(program.devices, instruction.device),
            str(program.policies[policy]),
            _names(program.buffers, instruction.reads),
            _names(program.buffers, instruction.writes),
            _bytes(program.buffers, instruction.writes),
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
            *_buffer_table(program.devices, program.buffers),
        ]
    )


def show_plan(plan: Plan) -> str:
    """A table of the steps in order, and one of the buffers. A lane reads `device/key`, an event `e0`."""
    places = Places()
    lanes = [f"{_item(plan.devices, lane.device)}/{lane.key}" for lane in plan.lanes]
    rows: list[tuple[str, ...]] = []
    for index, step in enumerate(plan.steps):
        what, buffers, size, origin = type(step).__name__, "", "", ""
        match step:
            case Execute(instruction, _):
                what = label(instruction)
                reads = _names(plan.buffers, instruction.reads)
                buffers = f"{reads} -> {_names(plan.buffers, instruction.writes)}".strip()
                size = _bytes(plan.buffers, instruction.writes)
                origin = places.of(instruction.origin)
            case Allocate(buffer, _) | Release(buffer, _):
                buffers, size = _names(plan.buffers, (buffer,)), _bytes(plan.buffers, (buffer,))
            case Record(event, _) | Wait(event, _):
                what = f"{what} e{event}"
        rows.append((str(index), what, _item(lanes, step.lane), buffers, size, origin))
    return "\n".join(
        [
            (
                f"Plan: {len(plan.steps)} steps, {len(plan.lanes)} lanes, {plan.events} events, "
                f"{plan.peak_bytes:,} bytes beyond its inputs, devices: {', '.join(plan.devices) or 'none'}"
            ),
            *table(("#", "step", "lane", "buffers", "bytes", "origin"), rows),
            *_buffer_table(plan.devices, plan.buffers, plan.offsets),
        ]
    )


def _buffer_table(devices: Sequence[str], buffers: Sequence[Buffer], offsets: Sequence[int] = ()) -> list[str]:
    """With `offsets`, also where each lies in its device's arena."""
    if not buffers:
        return []
    places = [f"{offset:,}" if offset >= 0 else "" for offset in offsets] + [""] * (len(buffers) - len(offsets))
    rows = [
        (
            _name(buffers, index),
            "cell" if buffer.device == HOST else _item(devices, buffer.device),
            buffer.role.value,
            "" if buffer.device == HOST else f"{buffer.nbytes:,}",
            *([places[index]] if offsets else []),
        )
        for index, buffer in enumerate(buffers)
    ]
    return ["", *table(("buffer", "device", "role", "bytes", *(["at"] if offsets else [])), rows)]


def _name(buffers: Sequence[Buffer], number: int) -> str:
    """`b3` for device memory, `c3` for a cell. A number out of range is shown: the plan may be wrong."""
    cell = 0 <= number < len(buffers) and buffers[number].device == HOST
    return f"{'c' if cell else 'b'}{number}"


def _names(buffers: Sequence[Buffer], numbers: Sequence[int]) -> str:
    return " ".join([_name(buffers, number) for number in numbers])


def _bytes(buffers: Sequence[Buffer], numbers: Sequence[int]) -> str:
    """The bytes of all these buffers together; nothing where they are all cells."""
    known = [buffers[number] for number in numbers if 0 <= number < len(buffers)]
    if all(buffer.device == HOST for buffer in known):
        return ""
    return f"{sum(buffer.nbytes for buffer in known):,}"


def _item(names: Sequence[str], number: int) -> str:
    return names[number] if 0 <= number < len(names) else f"?{number}"


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Lines with columns as wide as their widest entry; numbers to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    right = [title in ("#", "bytes", "at", "from", "to") for title in head]
    return [
        "  ".join(
            [
                text.rjust(width) if to_right else text.ljust(width)
                for text, width, to_right in zip(row, widths, right, strict=True)
            ]
        ).rstrip()
        for row in (head, *rows)
    ]


class Places:
    """Origins as `file.py:12`. Many steps share one origin, and each costs a walk over a line table."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[Origin, str] = {None: ""}

    def of(self, origin: Origin) -> str:
        text = self._known.get(origin)
        if text is None:
            place = place_of(origin)
            text = "" if place is None else f"{PurePath(place[0]).name}:{place[1]}"
            self._known[origin] = text
        return text
