"""The drawing of a plan: a row for each lane, a bar for each instruction from its predicted begin to its end, and an
arrow for each wait."""

from typing import Final

from dagpu.common.origin import describe
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


def picture(plan: Plan, costs: CostModel | None = None) -> str:
    """Draw the lanes of a plan as SVG, with the times that `costs` predicts (`CostModel()` unless given).

    Only the first `MOST_PIECES` instructions are drawn; the drawing states the number of the others.
    """
    found = forecast(plan, costs)
    shown = found.pieces[:MOST_PIECES]
    until = max([piece.end for piece in shown], default=0.0) or 1e-6
    width = min(max(560.0, 62.0 * max(_longest_lane(found, len(shown)), 1)), 6000.0)
    scale = width / until
    height = _TOP + _ROW * max(len(found.lanes), 1) + 34
    body = [
        svg.text(12, 20, _headline(plan, found)),
        *_legend(found, 12, 36),
        *_rows(found, width),
        *_axis(until, scale, height),
        # Arrows between lanes that are not neighbours pass behind the bars.
        *_arrows(found, len(shown), scale),
        *[_bar(found, piece, scale) for piece in shown],
    ]
    total = max(_LEFT + width + _RIGHT, 24 + len(_headline(plan, found)) * svg.LETTER)
    return svg.document(total, height, f"Plan of {_size(found, ' on ')}", body)


def _headline(plan: Plan, found: Prediction) -> str:
    cut = len(found.pieces) - MOST_PIECES
    return (
        f"{_size(found, ', ')}: predicted {duration(found.makespan)}, at least {duration(found.bound)}; "
        f"{plan.peak_bytes:,} bytes" + (f"; the {cut:,} instructions after these are not drawn" if cut > 0 else "")
    )


def _size(found: Prediction, between: str) -> str:
    """Return how many instructions and lanes there are: `7 instructions, 1 lane`."""
    return between.join([counted(len(found.pieces), "instruction"), counted(len(found.lanes), "lane")])


def _longest_lane(found: Prediction, count: int) -> int:
    counts = [0] * len(found.lanes)
    for piece in found.pieces[:count]:
        counts[piece.lane] += 1
    return max(counts, default=0)


def _legend(found: Prediction, x: float, y: float) -> list[str]:
    body = []
    used = {piece.kind for piece in found.pieces}
    for kind in svg.KINDS:
        if kind in used:
            body += [svg.rect(x, y - 9, 10, 10, f"fill-{kind}", 2), svg.text(x + 15, y, kind, "faint")]
            x += 15 + len(kind) * svg.LETTER + 16
    if any(piece.waits for piece in found.pieces):
        body += [svg.line(x, y - 4, x + 14, y - 4, "wait"), svg.text(x + 19, y, "waits for", "faint")]
    return body


def _rows(found: Prediction, width: float) -> list[str]:
    body = []
    for lane, name in enumerate(found.lanes):
        y = _y(lane)
        body.append(svg.rect(_LEFT, y, width, _BAR, "band"))
        words = svg.fit_text(name, _LEFT - 14)
        body.append(svg.group([svg.text(_LEFT - 8, y + 15, words, "text", "end")], name))
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


def _bar(found: Prediction, piece: PredictedStep, scale: float) -> str:
    x, y = _LEFT + piece.begin * scale, _y(piece.lane)
    width = max(piece.seconds * scale - 1, _NARROWEST)
    words = svg.fit_text(piece.name, width - 4)
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


def _arrows(found: Prediction, count: int, scale: float) -> list[str]:
    """Draw an arrow for each wait, from the edge of one bar to that of the other."""
    body = []
    for piece in found.pieces[:count]:
        room = piece.seconds * scale / (len(piece.waits) + 1)
        for place, other in enumerate(piece.waits, 1):
            source = found.pieces[other]
            down = source.lane < piece.lane
            begin = _LEFT + max(source.end * scale - _APART, source.begin * scale), _y(source.lane) + _BAR * down
            end = _LEFT + piece.begin * scale + place * min(room, _APART), _y(piece.lane) + _BAR * (not down)
            arrow = svg.curve([begin, end], "wait", head="tip")
            body.append(svg.group([arrow], f"#{piece.number} waits for #{source.number}"))
    return body


def _y(lane: int) -> float:
    return _TOP + lane * _ROW


DRAWING.set(picture)
