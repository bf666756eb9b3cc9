"""The drawing of a plan's memory: a chart for the arena of each device, with instructions to the right and bytes
downwards, and a box for each tensor in it."""

from typing import Final

from dagpu.common.origin import describe
from dagpu.lowering.plan import MEMORY_DRAWING, Allocate, Execute, Plan, Release
from dagpu.lowering.program import Instruction, Launch, label
from dagpu.lowering.report.plan_drawing import legend
from dagpu.lowering.text import counted
from dagpu.ops.drawing import svg

MOST_TENSORS: Final = 400
"""Most tensors in a drawing: only the first ones are drawn, because more could not be distinguished."""

_LEFT: Final = 96.0
_RIGHT: Final = 32.0
_TOP: Final = 80.0
_HEIGHT: Final = 200.0
"""Height of a chart, in pixels."""
_FOOT: Final = 64.0
"""Room below a chart: its axis, and the title of the next one."""
_WIDTHS: Final = (608.0, 6000.0)
"""Least and most width of a chart: the first fills a page of the documentation."""
_STEP: Final = 30.0
"""Least width of an instruction."""
_LINES: Final = 4
"""Lines across a chart, at round numbers of bytes."""
_UNITS: Final = ("bytes", "KiB", "MiB", "GiB", "TiB")


class _Lifetimes:
    """For each buffer of a plan: the instruction that is the first to write it, and the numbers of the instructions
    before which it gets and loses its memory."""

    def __init__(self, plan: Plan) -> None:
        self.count = 0
        self.begin: dict[int, int] = {}
        self.end: dict[int, int] = {}
        self.makers: dict[int, tuple[int, Instruction]] = {}
        for step in plan.steps:
            match step:
                case Allocate(buffer, _):
                    self.begin[buffer] = self.count
                case Release(buffer, _):
                    self.end[buffer] = self.count
                case Execute(instruction, _):
                    self.count += 1
                    for buffer in instruction.writes:
                        self.makers.setdefault(buffer, (self.count, instruction))
                case _:
                    pass


def picture(plan: Plan) -> str:
    """Draw the arenas of a plan as SVG.

    Only the first `MOST_TENSORS` tensors are drawn; the drawing states the number of the others. Results of the run
    have memory of their own, and are not in an arena.
    """
    lives = _Lifetimes(plan)
    inside = [b for b, offset in enumerate(plan.offsets) if offset >= 0 and plan.buffers[b].nbytes]
    every = sorted(inside, key=lambda buffer: lives.begin.get(buffer, 0))
    drawn = every[:MOST_TENSORS]
    width = min(max(_WIDTHS[0], _STEP * lives.count), _WIDTHS[1]) if any(plan.arena_bytes) else 0.0
    head = f"{counted(len(every), 'tensor')} in {counted(sum(map(bool, plan.arena_bytes)), 'arena')}"
    if len(every) > len(drawn):
        head += f"; the {len(every) - len(drawn):,} tensors after these are not drawn"
    kinds = {type(lives.makers[buffer][1]).__name__ for buffer in drawn if buffer in lives.makers}
    body = [svg.text(12, 20, head), *legend(kinds, 12, 36)]
    top = _TOP
    for device, nbytes in enumerate(plan.arena_bytes):
        if nbytes:
            body += _chart(plan, lives, device, [b for b in drawn if plan.buffers[b].device == device], top, width)
            top += _HEIGHT + _FOOT
    total = max(_LEFT + width + _RIGHT, 24 + len(head) * svg.LETTER)
    return svg.document(total, max(top - _FOOT + 40, _TOP), f"Memory of a plan: {head}", body)


def _chart(plan: Plan, lives: _Lifetimes, device: int, buffers: list[int], top: float, width: float) -> list[str]:
    """Draw the arena of a device: its axes, then its tensors."""
    nbytes = plan.arena_bytes[device]
    across, down = width / max(lives.count, 1), _HEIGHT / nbytes
    body = [
        svg.text(_LEFT, top - 10, f"arena of {plan.devices[device]}, {size(nbytes)}", "faint"),
        svg.rect(_LEFT, top, width, _HEIGHT, "band"),
    ]
    unit = _round_share(nbytes)
    for at in range(0, nbytes + 1, unit):
        y = top + at * down
        body += [svg.line(_LEFT - 4, y, _LEFT + width, y), svg.text(_LEFT - 8, y + 4, size(at), "faint", "end")]
    every = max(1, -(-lives.count // int(width / _STEP)))
    for number in range(1, lives.count + 1, every):
        body.append(svg.text(_LEFT + (number - 0.5) * across, top + _HEIGHT + 20, f"#{number}", "faint", "middle"))
    body.append(svg.text(_LEFT - 8, top + _HEIGHT + 20, "instruction", "faint", "end"))
    for buffer in buffers:
        begin, end = lives.begin.get(buffer, 0), lives.end.get(buffer, lives.count)
        x, y = _LEFT + begin * across, top + plan.offsets[buffer] * down
        wide = max((end - begin) * across - 1, 1.5)
        body.append(_box(plan, lives, buffer, (x, y, wide, max(plan.buffers[buffer].nbytes * down - 1, 1.5))))
    return body


def _box(plan: Plan, lives: _Lifetimes, buffer: int, place: tuple[float, float, float, float]) -> str:
    x, y, width, height = place
    nbytes, offset = plan.buffers[buffer].nbytes, plan.offsets[buffer]
    number, instruction = lives.makers.get(buffer, (0, None))
    kind = type(instruction).__name__ if instruction is not None else "other"
    parts = [svg.rect(x, y, width, height, f"fill-{kind}", 3)]
    if instruction is not None and height >= 14:
        name = instruction.kernel.name if isinstance(instruction, Launch) else label(instruction)
        if words := svg.fit_text(f"#{number} {name}", width - 6):
            parts.append(svg.text(x + width / 2, y + height / 2 + 4, words, "on", "middle"))
    until = f", until before #{lives.end[buffer] + 1}" if lives.end.get(buffer, lives.count) < lives.count else ""
    made = f"written by #{number} {label(instruction)}{until}" if instruction is not None else "never written"
    lines = [made, f"{nbytes:,} bytes, from byte {offset:,} of the arena on"]
    if instruction is not None:
        lines.append(f"built at {describe(instruction.origin)}")
    return svg.group(parts, "\n".join(lines))


def _round_share(nbytes: int) -> int:
    """Return a power of two of bytes, of which a chart has at most `_LINES`."""
    share = 1
    while nbytes > share * _LINES:
        share *= 2
    return share


def size(nbytes: int) -> str:
    """Return a number of bytes in words: `4 MiB`, `1.5 KiB`, `700 bytes`."""
    unit = 0
    amount = float(nbytes)
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount /= 1024
        unit += 1
    return f"{amount:.4g} {_UNITS[unit]}"


MEMORY_DRAWING.set(picture)
