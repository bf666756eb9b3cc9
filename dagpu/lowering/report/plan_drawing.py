"""The drawing of a plan: a row for each lane, a bar for each instruction from its predicted begin to its end, and an
arrow for each wait."""

import math
from statistics import median
from typing import Final

from dagpu.common.origin import describe, here
from dagpu.common.wrong_arguments import wrong_argument
from dagpu.lowering.plan import DRAWING, Plan
from dagpu.lowering.report.explanation import duration
from dagpu.lowering.report.prediction import PredictedStep, Prediction, forecast
from dagpu.lowering.schedule.cost_model import CostModel
from dagpu.lowering.text import counted
from dagpu.ops.drawing import svg

MOST_PIECES: Final = 400
"""Most instructions in a drawing: only the first ones are drawn, because more could not be distinguished."""

_LEFT: Final = 96.0
_RIGHT: Final = 32.0
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
