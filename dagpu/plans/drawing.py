"""The drawings of a plan: its timeline and its memory.

The drawing of a plan: a row for each lane, a bar for each instruction from its predicted begin to its end, and an
arrow for each wait.
"""

import math
from statistics import median
from typing import Final

from dagpu.common.places import describe, here
from dagpu.common.wrong_arguments import wrong_argument
from dagpu.ops import svg
from dagpu.plans.cost_model import CostModel
from dagpu.plans.plan import DRAWING, MEMORY_DRAWING, Allocate, Execute, Plan, Release
from dagpu.plans.prediction import PredictedStep, Prediction, forecast
from dagpu.plans.program import Instruction, Launch, label
from dagpu.plans.text import counted, duration

_RIGHT: Final = 32.0
_LEFT: Final = 96.0


MOST_PIECES: Final = 400
"""Most instructions in a drawing: only the first ones are drawn, because more could not be distinguished."""

_TOP: Final = 56.0
_ROW: Final = 40.0
_BAR: Final = 22.0
_APART: Final = 7.0
"""Distance of the arrows into one bar, in pixels."""
_TICKS: Final = 8
_NARROWEST: Final = 1.5
"""Least width of a bar."""
_BESIDE: Final = 4.0
"""Width of a bar beside its name."""
_PAGE: Final = 608.0
"""Least width of the rows: with the names of lanes beside them they are as wide as a page of the documentation."""
_STRETCH: Final = 1.4
"""The rows are wider than a page only if their names want this many times its width."""
_WIDEST: Final = 6000.0
_MANY: Final = 40
"""Arrows from which on they are faint, so that bars and rows are seen behind them. The one pointed at is not."""
_SHORT: Final = {"CopyHtoD": "H→D", "CopyDtoH": "D→H", "CopyDtoD": "D→D"}
"""Names of copies, by their kind, for bars that are too narrow for the long ones."""
_OWN: Final = "a stream that the program opened, device().stream()"


def picture(plan: Plan, costs: object = None, until: object = None) -> str:
    """Draw the lanes of a plan as SVG, with the times that `costs` predicts (`CostModel()` unless given).

    Only the first `MOST_PIECES` instructions are drawn; the drawing states the number of the others. A page is as
    wide as `until` seconds; without it, the rows are so wide that half of the bars have room for their names.

    Raises:
        TypeError: `costs` is neither a cost model nor None, or `until` no number.
        ValueError: `until` is not positive.
    """
    found = forecast(plan, _model(costs))
    page = _seconds(until)
    shown = found.pieces[:MOST_PIECES]
    rows = _rows(found)
    end = max([page or 0.0, *[piece.end for piece in shown]]) or 1e-6
    scale = _PAGE / page if page else _width(end * _legible_scale(shown)) / end
    width = end * scale
    cut = len(found.pieces) - len(shown)
    notes = [f"the {cut:,} instructions after these are not drawn"] if cut else []
    drop = 16.0 * len(notes)
    y = [_TOP + drop + _ROW * row for row in rows]
    height = _TOP + drop + _ROW * max(len(rows), 1) + 34
    lines = [_headline(plan, found, " for an H200" if costs is None else ""), *notes]
    body = [
        *[svg.text(12, 20 + 16 * line, words) for line, words in enumerate(lines)],
        *legend({piece.kind for piece in shown}, 12, 36 + drop, waits=any(piece.waits for piece in shown)),
        *_lanes(found, y, width),
        *_axis(end, scale, height),
        # Arrows between lanes that are not neighbours pass behind the bars.
        *_arrows(found, len(shown), y, scale),
        *[_bar(found, piece, y[piece.lane], scale) for piece in shown],
    ]
    total = max([_LEFT + width + _RIGHT, *[24 + len(words) * svg.LETTER for words in lines]])
    return svg.document(total, height, f"Plan of {_size(found, ' on ')}", body)


def _model(costs: object) -> CostModel | None:
    if costs is not None and not isinstance(costs, CostModel):
        cure = 'Write costs=CostModel().declare({"gemm": 3e-5})'
        raise wrong_argument("to_svg", here(), "costs", costs, "a CostModel", cure)
    return costs


def _seconds(until: object) -> float | None:
    if until is None:
        return None
    kind: type[Exception] = TypeError
    if isinstance(until, int | float) and not isinstance(until, bool):
        if 0 < until < math.inf:
            return until
        kind = ValueError
    raise wrong_argument("to_svg", here(), "until", until, "a time in seconds", "Write until=100e-6, say", kind)


def _width(wanted: float) -> float:
    """Return the width of the rows that is next to what the names want."""
    return _PAGE if wanted < _STRETCH * _PAGE else min(wanted, _WIDEST)


def _headline(plan: Plan, found: Prediction, device: str) -> str:
    """Return the line above the rows. `device` says whose times these are, where the program has not chosen a model:
    the lanes may be those of the host."""
    return (
        f"{_size(found, ', ')}; predicted{device}: {duration(found.makespan)}, at least {duration(found.bound)}; "
        f"memory: {plan.peak_bytes:,} bytes"
    )


def _size(found: Prediction, between: str) -> str:
    """Return how many instructions and lanes there are: `7 instructions, 1 lane`."""
    return between.join([counted(len(found.pieces), "instruction"), counted(len(found.lanes), "lane")])


def _rows(found: Prediction) -> list[int]:
    """Return the row of each lane: device after device, the lanes of each in the order of their numbers."""
    by_device = sorted(range(len(found.lanes)), key=found.device_of_lane.__getitem__)
    rows = [0] * len(found.lanes)
    for row, lane in enumerate(by_device):
        rows[lane] = row
    return rows


def _legible_scale(shown: tuple[PredictedStep, ...]) -> float:
    """Return the pixels for each second at which half of the bars have room for their names."""
    timed = [piece for piece in shown if piece.seconds > 0]
    wanted = [(len(_SHORT.get(p.kind, p.name)) * svg.LETTER + _BESIDE + 1) / p.seconds for p in timed]
    return median(wanted) if wanted else 0.0


def legend(kinds: set[str], x: float, y: float, *, waits: bool = False) -> list[str]:
    """Draw the colour of each of these kinds of instructions, in a line."""
    body = []
    for kind in svg.KINDS:
        if kind in kinds:
            body += [svg.rect(x, y - 9, 10, 10, f"fill-{kind}", 2), svg.text(x + 15, y, kind, "faint")]
            x += 15 + len(kind) * svg.LETTER + 16
    if waits:
        body += [svg.line(x, y - 4, x + 14, y - 4, "wait"), svg.text(x + 19, y, "waits for", "faint")]
    return body


def _lanes(found: Prediction, y: list[float], width: float) -> list[str]:
    body = []
    for top, name in sorted(zip(y, found.lanes, strict=True)):
        body.append(svg.rect(_LEFT, top, width, _BAR, "band"))
        words = svg.fit_text(name, _LEFT - 14)
        told = f"{name}: {_OWN}" if "/own-" in name else name
        body.append(svg.group([svg.text(_LEFT - 8, top + 15, words, "text", "end")], told))
    return body


def _axis(until: float, scale: float, height: float) -> list[str]:
    """Draw an axis with about `_TICKS` round times under the rows."""
    step = 1e-9
    while until / step > _TICKS:
        mantissa = f"{step:e}"[0]
        step *= 2.5 if mantissa == "2" else 2
    y = height - 26
    body = [svg.line(_LEFT, y, _LEFT + until * scale, y)]
    for tick in range(int(until / step) + 1):
        x = _LEFT + tick * step * scale
        body += [svg.line(x, y, x, y + 4), svg.text(x, y + 17, duration(tick * step), "faint", "middle")]
    return body


def _bar(found: Prediction, piece: PredictedStep, y: float, scale: float) -> str:
    x = _LEFT + piece.begin * scale
    width = max(piece.seconds * scale - 1, _NARROWEST)
    room = width - _BESIDE
    fits = len(piece.name) * svg.LETTER <= room
    words = svg.fit_text(piece.name if fits else _SHORT.get(piece.kind, piece.name), room)
    parts = [svg.rect(x, y, width, _BAR, f"fill-{piece.kind}", 3)]
    if words:
        parts.append(svg.text(x + width / 2, y + 15, words, "on", "middle"))
    waits = ", ".join([f"#{found.pieces[other].number}" for other in piece.waits])
    lines = [
        f"#{piece.number} {piece.label} on {found.lanes[piece.lane]}",
        f"{duration(piece.begin)} to {duration(piece.end)}, writes {piece.nbytes:,} bytes",
        *([f"waits for {waits}"] if waits else []),
        f"built at {describe(piece.origin)}",
    ]
    return svg.group(parts, "\n".join(lines))


def _arrows(found: Prediction, count: int, y: list[float], scale: float) -> list[str]:
    """Draw an arrow for each wait, from the end of one bar to the edge of the other."""
    body = []
    shown = found.pieces[:count]
    style = "many" if sum([len(piece.waits) for piece in shown]) > _MANY else ""
    for piece in shown:
        room = piece.seconds * scale / (len(piece.waits) + 1)
        for place, other in enumerate(piece.waits, 1):
            source = found.pieces[other]
            down = y[source.lane] < y[piece.lane]
            begin = _LEFT + source.end * scale - 0.5, y[source.lane] + _BAR * down
            end = _LEFT + piece.begin * scale + place * min(room, _APART), y[piece.lane] + _BAR * (not down)
            arrow = svg.curve([begin, end], "wait", head="tip")
            body.append(svg.group([arrow], f"#{piece.number} waits for #{source.number}", style))
    return body


DRAWING.set(picture)


# ---- memory drawing
#
# The drawing of a plan's memory: a chart for the arena of each device, with instructions to the right and bytes
# downwards, and a box for each tensor in it.

MOST_TENSORS: Final = 400
"""Most tensors in a drawing: only the first ones are drawn, because more could not be distinguished."""

_MEMORY_TOP: Final = 80.0
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


def memory_picture(plan: Plan) -> str:
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
    top = _MEMORY_TOP
    for device, nbytes in enumerate(plan.arena_bytes):
        if nbytes:
            body += _chart(plan, lives, device, [b for b in drawn if plan.buffers[b].device == device], top, width)
            top += _HEIGHT + _FOOT
    total = max(_LEFT + width + _RIGHT, 24 + len(head) * svg.LETTER)
    return svg.document(total, max(top - _FOOT + 40, _MEMORY_TOP), f"Memory of a plan: {head}", body)


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


MEMORY_DRAWING.set(memory_picture)
