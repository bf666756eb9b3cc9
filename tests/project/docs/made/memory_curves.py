"""The picture of what steps take longer within fewer bytes, of the kept result of `benchmarks.recomputation`: a chart
for each step, with the bound, and PyTorch's rule where it has one."""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Final

from dagpu.ops import svg
from tests.support.paths import ROOT

RESULTS: Final = ROOT / "benchmarks" / "results" / "recomputation.json"
NAME: Final = "memory-curves.svg"
_TITLE: Final = "All curves, one stream"
_LINES: Final = {
    "longer, %": ("dagpu", "fill-Launch"),
    "bound, %": ("no schedule takes less", "head"),
    "checkpoint_sequential, %": ("checkpoint_sequential", "fill-CopyDtoH"),
}
"""For each kind of row of the table its name, and the class of its points."""
_WIDTH, _HEIGHT, _LEFT, _TOP, _ACROSS = 200.0, 130.0, 40.0, 34.0, 4
_MOST = 40.0
"""The largest percentage that is shown."""


def curves() -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Return for each step, and each kind of row, the points: the limit and what it costs, both in percent."""
    tables = json.loads(RESULTS.read_text(encoding="utf-8"))["tables"]
    (table,) = [table for table in tables if table["title"] == _TITLE]
    limits = [float(column.removeprefix("limit ").removesuffix("%")) for column in table["columns"]]
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row, values in table["rows"].items():
        step, kind = row.split(", ", 1)
        if kind in _LINES:
            points = [(limit, value) for limit, value in zip(limits, values, strict=True) if math.isfinite(value)]
            found.setdefault(step, {})[kind] = points
    return found


def drawn() -> str:
    """Return the picture as SVG text."""
    found = curves()
    body, columns = list[str](), min(_ACROSS, len(found))
    rows = -(-len(found) // columns)
    for number, (step, lines) in enumerate(found.items()):
        across, down = number % columns, number // columns
        body += _chart(step, lines, across * (_WIDTH + _LEFT), 24 + down * (_HEIGHT + 2 * _TOP))
    x = _LEFT
    for name, style in _LINES.values():
        body += [svg.rect(x, 6, 8, 8, style, 4), svg.text(x + 13, 14, name, "faint")]
        x += 30 + 7 * len(name)
    height = 24 + rows * (_HEIGHT + 2 * _TOP)
    return svg.document(columns * (_WIDTH + _LEFT) + 20, height, "Predicted time over the bytes of a step", body)


def _chart(step: str, lines: Mapping[str, Sequence[tuple[float, float]]], left: float, top: float) -> list[str]:
    """Return the chart of one step: to the right fewer bytes, up more time."""
    x0, y0 = left + _LEFT, top + _TOP + _HEIGHT

    def place(limit: float, value: float) -> tuple[float, float]:
        return x0 + (100 - limit) / 100 * _WIDTH, y0 - value / _MOST * _HEIGHT

    body = [svg.text(x0, top + _TOP - 8, step)]
    for share in (100, 75, 50, 25):
        x, _ = place(share, 0)
        body += [svg.line(x, y0, x, y0 - _HEIGHT), svg.text(x, y0 + 14, f"{share} %", "faint", "middle")]
    for more in (0, 10, 20, 30, 40):
        _, y = place(100, more)
        body += [svg.line(x0, y, x0 + _WIDTH, y), svg.text(x0 - 4, y + 4, f"+{more}", "faint", "end")]
    for kind, points in lines.items():
        name, style = _LINES[kind]
        shown = [place(limit, value) for limit, value in points if value <= _MOST]
        ends = [place(100, 0), *shown] if kind != "checkpoint_sequential, %" else shown
        parts = [svg.line(*one, *other, "edge") for one, other in itertools.pairwise(ends)]
        parts += [svg.rect(x - 3, y - 3, 6, 6, style, 3) for x, y in shown]
        said = "; ".join([f"{limit:.0f} %: +{value:.1f} %" for limit, value in points])
        body.append(svg.group(parts, f"{step}, {name}: {said}"))
    return body
