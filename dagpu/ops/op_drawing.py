"""Draws a DAG of ops as SVG, in layers: ops without sources at the top, the result at the bottom.

The layout is that of K. Sugiyama, S. Tagawa and M. Toda, "Methods for visual understanding of hierarchical system
structures", IEEE Trans. SMC 11 (1981): layers by longest path, edges cut at each layer that they cross, the order
within a layer by the mean position of the neighbours, and then positions as near to those means as widths allow.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, final

from dagpu.common.origin import place_of
from dagpu.ops import svg
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import HostCall, ToHost, label_of, nodes_of, sources_of
from dagpu.ops.creation import Alloc, Copy, FromHost
from dagpu.ops.graph import GraphLaunch
from dagpu.ops.launch import Launch

MOST_OPS: Final = 150
"""The most ops in one picture, those nearest to the result. A larger picture is not legible."""

_BOX_HEIGHT: Final = 34.0
_LAYER_GAP: Final = 30.0
"""Vertical distance between two layers, in pixels."""
_BOX_GAP: Final = 14.0
_MARGIN: Final = 16.0
_SWEEPS: Final = 8

_Op = DeviceOp[Any, Any, Any]


def picture(root: _Op) -> str:
    """Draw a DAG as SVG: the `MOST_OPS` ops nearest to the result, and a line with the number of the others."""
    every = nodes_of(root)
    ops, total = every[:MOST_OPS], len(every)
    drawing = _Drawing(ops)
    drawing.arrange()
    width = drawing.width + 2 * _MARGIN
    top = _MARGIN + (22.0 if total > len(ops) else 0.0)
    body: list[str] = []
    if total > len(ops):
        words = f"{total - len(ops):,} of {total:,} ops, further from the result, are not drawn"
        width = max(width, len(words) * svg.LETTER + 2 * _MARGIN)
        body.append(svg.text(_MARGIN, _MARGIN + 8, words, "faint"))
    body += drawing.draw(_MARGIN, top)
    height = top + drawing.layers_count * (_BOX_HEIGHT + _LAYER_GAP) - _LAYER_GAP + _MARGIN
    return svg.document(width, height, f"DAG of {total:,} ops", body)


@final
class _Drawing:
    """A layered drawing. Boxes 0, 1, ... are the ops. Later boxes have no width: an edge crosses a layer there."""

    def __init__(self, ops: Sequence[_Op]) -> None:
        self._ops = ops
        number = {op: index for index, op in enumerate(ops)}
        self._left_out = [sum(source not in number for source in set(sources_of(op))) for op in ops]
        sources = [list(dict.fromkeys([number[s] for s in sources_of(op) if s in number])) for op in ops]
        self._texts = [_texts_of(op) for op in ops]
        self._widths = [max(len(words) for words in texts) * svg.LETTER + 14 for texts in self._texts]
        self._layer = _layers(sources)
        self.layers_count = max(self._layer) + 1
        self._above: list[list[int]] = [[] for _ in ops]
        self._below: list[list[int]] = [[] for _ in ops]
        self._paths: list[list[int]] = []
        for index, into in enumerate(sources):
            for source in into:
                self._connect(source, index)
        self._rows: list[list[int]] = [[] for _ in range(self.layers_count)]
        for box, layer in enumerate(self._layer):
            self._rows[layer].append(box)
        self._x = [0.0] * len(self._layer)
        self.width = 0.0

    def _connect(self, source: int, op: int) -> None:
        path = [source]
        for layer in range(self._layer[source] + 1, self._layer[op]):
            self._layer.append(layer)
            self._widths.append(0.0)
            self._above.append([])
            self._below.append([])
            path.append(len(self._layer) - 1)
        path.append(op)
        for upper, lower in pairwise(path):
            self._below[upper].append(lower)
            self._above[lower].append(upper)
        self._paths.append(path)

    def arrange(self) -> None:
        """Choose the position of each box."""
        rows = self._rows
        for sweep in range(_SWEEPS):
            down = sweep % 2 == 0
            neighbours = self._above if down else self._below
            for row in rows if down else reversed(rows):
                place = {box: at for other in rows for at, box in enumerate(other)}
                means = {box: _mean([place[n] for n in neighbours[box]], place[box]) for box in row}
                row.sort(key=means.__getitem__)
        for row in rows:
            self._place_row(row, [0.0] * len(row))
        for sweep in range(_SWEEPS):
            neighbours = self._above if sweep % 2 == 0 else self._below
            for row in rows:
                self._place_row(row, [_mean([self._x[n] for n in neighbours[box]], self._x[box]) for box in row])
        left = min([self._x[box] - width / 2 for box, width in enumerate(self._widths)])
        self._x = [x - left for x in self._x]
        self.width = max([self._x[box] + width / 2 for box, width in enumerate(self._widths)])

    def _place_row(self, row: Sequence[int], wanted: Sequence[float]) -> None:
        """Place the boxes of a row, in order, at the least sum of squared distances from the `wanted` positions.

        Neighbours that would overlap are pooled (isotonic regression).
        """
        offsets, at = [], 0.0
        for before, box in zip((None, *row), row, strict=False):
            at += 0.0 if before is None else (self._widths[before] + self._widths[box]) / 2 + _BOX_GAP
            offsets.append(at)
        pools: list[tuple[float, int]] = []
        for want, offset in zip(wanted, offsets, strict=True):
            total, count = want - offset, 1
            while pools and pools[-1][0] / pools[-1][1] > total / count:
                more, others = pools.pop()
                total, count = total + more, count + others
            pools.append((total, count))
        bases = [total / count for total, count in pools for _ in range(count)]
        for box, base, offset in zip(row, bases, offsets, strict=True):
            self._x[box] = base + offset

    def draw(self, left: float, top: float) -> list[str]:
        """Return the SVG elements: first the edges, then the boxes, which cover them."""
        body = []
        for path in self._paths:
            points = []
            for box in path:
                x, y = left + self._x[box], top + self._layer[box] * (_BOX_HEIGHT + _LAYER_GAP)
                points += [(x, y)] if box == path[-1] else [(x, y + _BOX_HEIGHT)] if box == path[0] else [(x, y + 17)]
            body.append(svg.curve(points, "edge", head="head", upright=True))
        for box, op in enumerate(self._ops):
            y, width = top + self._layer[box] * (_BOX_HEIGHT + _LAYER_GAP), self._widths[box]
            x = left + self._x[box] - width / 2
            label, where = self._texts[box]
            middle = x + width / 2
            parts = [
                svg.rect(x, y, width, _BOX_HEIGHT, f"fill-{_colour_kind(op)}", 4),
                svg.text(middle, y + 14, label, "on", "middle"),
                svg.text(middle, y + 27, where, "on", "middle"),
            ]
            if self._left_out[box]:
                parts.append(svg.text(middle, y - 4, "…", "faint", "middle"))
            place = place_of(op.origin)
            more = f"\n{self._left_out[box]} sources not drawn" if self._left_out[box] else ""
            built = "" if place is None else f"\nbuilt at {place[0]}:{place[1]}"
            body.append(svg.group(parts, f"{label}{built}{more}"))
        return body


def _layers(sources: Sequence[Sequence[int]]) -> list[int]:
    """Return the layer of each op, counted from the top. Each op is one layer above its highest consumer."""
    takers = [0] * len(sources)
    for into in sources:
        for source in into:
            takers[source] += 1
    height = [0] * len(sources)
    ready = [op for op, count in enumerate(takers) if not count]
    while ready:
        op = ready.pop()
        for source in sources[op]:
            height[source] = max(height[source], height[op] + 1)
            takers[source] -= 1
            if not takers[source]:
                ready.append(source)
    highest = max(height)
    return [highest - above for above in height]


def _mean(numbers: Sequence[float], otherwise: float) -> float:
    return sum(numbers) / len(numbers) if numbers else otherwise


def _texts_of(op: _Op) -> tuple[str, str]:
    place = place_of(op.origin)
    return label_of(op), "" if place is None else f"{place[0].rsplit('/', 1)[-1]}:{place[1]}"


def _colour_kind(op: _Op) -> str:
    match op:
        case Launch():
            return "Launch"
        case Alloc():
            return "Fill"
        case FromHost():
            return "CopyHtoD"
        case ToHost():
            return "CopyDtoH"
        case Copy():
            return "CopyDtoD"
        case HostCall():
            return "HostCall"
        case GraphLaunch():
            return "GraphLaunch"
        case _:
            return "other"
