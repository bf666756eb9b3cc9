"""Drawings of a DAG of ops: as SVG and in Graphviz DOT, with the names of its ops.

The layout is that of K. Sugiyama, S. Tagawa and M. Toda, "Methods for visual understanding of hierarchical system
structures", IEEE Trans. SMC 11 (1981): layers by longest path, edges cut at each layer that they cross, the order
within a layer by the mean position of the neighbours, and then positions as near to those means as widths allow.

What only hands a tensor to a launch or takes it back (`partition`, `first`, `last`, `unpartition`) is a port: a small
tab at the edge of the launch, whose tooltip says what it is.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, final

from dagpu.common.layout import Shape
from dagpu.common.places import is_ours, is_ours_at, place_of
from dagpu.ops import svg
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import (
    ByResults,
    ByTrace,
    Components,
    Cut,
    Cutoff,
    HostCall,
    Inspect,
    Item,
    Launch,
    Map,
    On,
    Outputs,
    Pure,
    Reshape,
    Share,
    Shared,
    Then,
    ToHost,
    Uncut,
    Unzip,
    Value,
    Zip,
    nodes_of,
    sources_of,
)
from dagpu.ops.creation import Alloc, Copy, FromHost
from dagpu.ops.graph import GraphLaunch
from dagpu.ops.initializers import Arange, Constant, Eye, Linspace, Normal, Recipe, Uniform
from dagpu.ops.parts import Part, Reread
from dagpu.ops.source_op import Source

MOST_OPS: Final = 150
"""The most ops in one picture, those nearest to the result. A larger picture is not legible."""

_BOX_HEIGHT: Final = 34.0
_LAYER_GAP: Final = 46.0
"""Vertical distance between two layers, in pixels. Edges bend there; within a layer they run straight down."""
_STRAIGHT: Final = 15.0
"""Pixels above a box, and below, in which its edges run straight down: beside ports, and into an arrow's head."""
_BOX_GAP: Final = 14.0
_MARGIN: Final = 16.0
_SWEEPS: Final = 8
_PORT: Final = (12.0, 6.0)
"""Width and height of a port."""
_PITCH: Final = 16.0
"""Least distance between two edges at one side of a box."""

_Op = DeviceOp[Any, Any, Any]


def picture(root: _Op) -> str:
    """Draw a DAG as SVG: the `MOST_OPS` ops nearest to the result, and a line with the number of the others.

    Ports are parts of their launches, and not counted.
    """
    wiring = wire(root)
    every = list(wiring)
    ops, total = every[:MOST_OPS], len(every)
    drawing = _Drawing(ops, wiring, _leave(root)[1])
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


# ---- ports
class Wire(NamedTuple):
    """An edge into an op: from which op, and the labels of the ports at both ends, empty without one."""

    source: _Op
    leaves: str
    enters: str


def wire(root: _Op) -> dict[_Op, list[Wire]]:
    """Return the ops of a DAG that are boxes, the nearest to the result first, each with the edges into it."""
    every = nodes_of(root)
    takers: dict[_Op, list[_Op]] = {}
    for op in every:
        for source in sources_of(op):
            takers.setdefault(source, []).append(op)
    ports = {op for op in every if _leave(op)[0] is not op}
    ports |= {
        op for op in every if _is_map(op, Cut) and op in takers and all(isinstance(t, Launch) for t in takers[op])
    }
    wires: dict[_Op, list[Wire]] = {}
    for op in every:
        if op in ports:
            continue
        edges: dict[Wire, None] = {}
        for source in sources_of(op):
            cut = source in ports and _is_map(source, Cut)
            start, leaves = _leave(next(iter(sources_of(source))) if cut else source)
            edges[Wire(start, leaves, name_of(source) if cut else "")] = None
        wires[op] = list(edges)
    return wires


def _leave(op: _Op) -> tuple[_Op, str]:
    """Return the launch whose result an op takes out, and the label of that port; without one the op itself."""
    labels: list[str] = []
    start = op
    while _is_map(start, Item, Uncut):
        labels.append(name_of(start))
        (start,) = sources_of(start)
    return (start, ", ".join(reversed(labels))) if isinstance(start, Launch | Unzip) else (op, "")


def _is_map(op: _Op, *functions: type[Any]) -> bool:
    return isinstance(op, Map) and isinstance(op.f, functions)


# ---- boxes
@final
class _Drawing:
    """A layered drawing. Boxes 0, 1, ... are the ops. Later boxes have no width: an edge crosses a layer there."""

    def __init__(self, ops: Sequence[_Op], wiring: dict[_Op, list[Wire]], result: str) -> None:
        """`result` is the label of the port of the first op by which the result leaves; empty without one."""
        self._ops = ops
        number = {op: index for index, op in enumerate(ops)}
        self._left_out = [sum(w not in number for w in {wire.source for wire in wiring[op]}) for op in ops]
        wires = [[wire for wire in wiring[op] if wire.source in number] for op in ops]
        sources = [list(dict.fromkeys([number[wire.source] for wire in into])) for into in wires]
        self._leaves: list[dict[str, None]] = [{} for _ in ops]
        """The labels of the ports at the lower edge of each op; one of them is empty for what leaves without a port."""
        if result:
            self._leaves[0][result] = None
        self._texts = [_texts_of(op, cut) for op, cut in zip(ops, self._left_out, strict=True)]
        self._widths = [max(len(words) for words in texts) * svg.LETTER + 14 for texts in self._texts]
        self._layer = _layers(sources)
        self.layers_count = max(self._layer) + 1
        self._above: list[list[int]] = [[] for _ in ops]
        self._below: list[list[int]] = [[] for _ in ops]
        self._paths: list[tuple[list[int], Wire]] = []
        for index, into in enumerate(wires):
            for wire in into:
                self._connect(number[wire.source], index, wire)
        for index, into in enumerate(wires):
            edges = max(len(into), len(self._leaves[index]))
            self._widths[index] = max(self._widths[index], (edges + 1) * _PITCH)
        self._rows: list[list[int]] = [[] for _ in range(self.layers_count)]
        for box, layer in enumerate(self._layer):
            self._rows[layer].append(box)
        self._x = [0.0] * len(self._layer)
        self.width = 0.0

    def _connect(self, source: int, op: int, wire: Wire) -> None:
        self._leaves[source][wire.leaves] = None
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
        self._paths.append((path, wire))

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
        body, ports = [], []
        for (path, wire), enters in zip(self._paths, self._entries(), strict=True):
            points: list[tuple[float, float]] = []
            for box in path:
                x, y = left + self._x[box], top + self._layer[box] * (_BOX_HEIGHT + _LAYER_GAP)
                if box == path[-1]:
                    x, end = left + enters, y - _PORT[1] if wire.enters else y
                    points += [(x, y - _STRAIGHT), (x, end)]
                elif box == path[0]:
                    x, begin = left + self._exit(box, wire.leaves), _PORT[1] if wire.leaves else 0
                    points += [(x, y + _BOX_HEIGHT + begin), (x, y + _BOX_HEIGHT + _STRAIGHT / 2)]
                else:
                    points += [(x, y), (x, y + _BOX_HEIGHT)]
            body.append(svg.curve(points, "edge", head="head"))
            if wire.enters:
                ports.append(_port(points[-1][0], points[-1][1], wire.enters))
        for box, leaves in enumerate(self._leaves):
            y = top + self._layer[box] * (_BOX_HEIGHT + _LAYER_GAP) + _BOX_HEIGHT
            ports += [_port(left + self._exit(box, label), y, label) for label in leaves if label]
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
            place = place_of(op.origin)
            more = f"\n{self._left_out[box]} sources not drawn" if self._left_out[box] else ""
            built = "" if place is None else f"\nat {place[0]}:{place[1]}"
            body.append(svg.group(parts, f"{label}{built}{more}"))
        return body + ports

    def _entries(self) -> list[float]:
        """Return where each edge arrives: those of one op side by side, in the order of where they come from."""
        into: dict[int, list[int]] = {}
        for number, (path, _) in enumerate(self._paths):
            into.setdefault(path[-1], []).append(number)
        found = [0.0] * len(self._paths)
        for box, numbers in into.items():
            numbers.sort(key=lambda number: self._x[self._paths[number][0][-2]])
            for place, number in enumerate(numbers):
                found[number] = self._spread(box, place, len(numbers))
        return found

    def _exit(self, box: int, leaves: str) -> float:
        """Return where the edges with this label leave an op."""
        labels = list(self._leaves[box])
        return self._spread(box, labels.index(leaves), len(labels))

    def _spread(self, box: int, place: int, count: int) -> float:
        return self._x[box] + self._widths[box] * ((place + 1) / (count + 1) - 0.5)


def _port(x: float, y: float, label: str) -> str:
    """Return a port in the middle of x, below y."""
    return svg.group([svg.rect(x - _PORT[0] / 2, y, *_PORT, "head", 1)], label)


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


def _texts_of(op: _Op, left_out: int) -> tuple[str, str]:
    """Return the two lines of a box. An ellipsis stands for sources that are not drawn."""
    place = place_of(op.origin)
    return "… " * bool(left_out) + name_of(op), "" if place is None else f"{place[0].rsplit('/', 1)[-1]}:{place[1]}"


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


# ---- op names
#
# The names of ops in messages and pictures: the call in the user's code that has built an op.

_NAMES: Final[dict[type[Any], str]] = {
    Cutoff: "cutoff", FromHost: "from_host", GraphLaunch: "graph launch", HostCall: "host_map", On: "on",
    Shared: "shared", Source: "source", ToHost: "to_host", Value: "value", Zip: "zip_ops",
}  # fmt: skip
"""The names of ops that their class alone gives."""
_OPS_OF_CALL: Final = 8
"""The most ops between the result of a call and the launch that it has built."""


def name_of_call(op: DeviceOp[Any, Any, Any]) -> str:
    """Return the name of the call of the user's that has built an op, and maybe others: that of its last launch."""
    return name_of(_work_of(op))


def name_of(op: DeviceOp[Any, Any, Any]) -> str:
    """Return the name of an op: `ones((3,))`, `saxpy`, `first`, `to_host`."""
    match op:
        case Launch(kernel=kernel):
            return f"array.{kernel.label}" if is_ours_at(kernel.origin) else kernel.label
        case Alloc(shape=shape, recipe=recipe):
            return _name_of_creation(shape, recipe)
        case Copy():
            if op.into is not None:
                return "fill" if isinstance(op.source, Constant) else "memcpy"
            return "dup" if op.dtype is None else "convert"
        case Then(f=f):
            return _name_of_then(f)
        case Map(f=f):
            return _name_of_map(f)
        case Source(name=str() as name):
            return f"source {name!r}"
        case Unzip(index=index):
            return f"unzip()[{index}]"
        case _:
            return _NAMES.get(type(op), type(op).__name__)


def _work_of(op: DeviceOp[Any, Any, Any]) -> DeviceOp[Any, Any, Any]:
    """Return the last launch that the call which has built an op has built too; the op itself if there is none.

    A loop may build a long chain by one call, so only the nearest ops are looked at.
    """
    found: DeviceOp[Any, Any, Any] | None = op
    for _ in range(_OPS_OF_CALL):
        if found is None or isinstance(found, Launch):
            break
        found = next((source for source in sources_of(found) if source.origin == op.origin), None)
    return found if isinstance(found, Launch) else op


def _name_of_creation(shape: Shape, recipe: Recipe | None) -> str:
    match recipe:
        case None:
            return f"empty({shape})"
        case Constant(value=value):
            return f"zeros({shape})" if value == 0 else f"ones({shape})" if value == 1 else f"full({shape}, {value})"
        case Arange(start=0, step=1):
            return f"arange({shape[0]})"
        case Arange(start=start, step=step):
            return f"arange({start}, {start + shape[0] * step}, {step})"
        case Linspace(start=start, stop=stop, num=num):
            return f"linspace({start}, {stop}, {num})"
        case Eye():
            return f"eye({shape[0]})"
        case Uniform():
            return f"rand({shape})"
        case Normal():
            return f"randn({shape})"


def _name_of_then(f: Any) -> str:
    if isinstance(f, Pure):
        return f"pipeline {getattr(f.f, '__name__', '')}".rstrip()
    if isinstance(f, ByResults | ByTrace):
        return f.name
    ours = is_ours(getattr(getattr(f, "__code__", None), "co_filename", ""))
    return f.__name__ if ours else "then"  # a function of dagpu chooses a kernel by the results


def _name_of_map(f: Any) -> str:
    match f:
        case Cut(tile=tile):
            return f"partition({tile})"
        case Uncut():
            return "unpartition"
        case Share():
            return "share"
        case Reshape(shape=shape):
            return f"reshape({shape})"
        case Part():
            return f"[{f.text}]"
        case Reread(dtype=dtype):
            return f"view({dtype})"
        case Item(index=index):
            return "last" if index else "first"
        case Outputs() | Components():
            return "outputs"
        case Inspect():
            return "inspect"
        case _:
            return "map"


# ---- dot text
#
# The text of a DAG of ops in Graphviz DOT.

_IN_DOT: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r"})
"""The escapes of a quoted label in the DOT language of Graphviz (escString)."""


def to_dot(root: DeviceOp[Any, Any, Any]) -> str:
    """Return the DAG in Graphviz DOT: a node for each op, with its origin, and an edge for each value, downwards."""
    numbers = {op: number for number, op in enumerate(nodes_of(root))}
    lines = ["digraph dagpu {", "  node [shape=box, fontname=monospace];"]
    for op, number in numbers.items():
        place = place_of(op.origin)
        where = "" if place is None else f"\n{place[0].rsplit('/', 1)[-1]}:{place[1]}"
        # What only hands a tensor to a launch or takes it back is a line of text, not a box of the launch's size.
        plain = "shape=plaintext, height=0, " if _hands_on(op) else ""
        told = name_of(op) if plain else name_of(op) + where
        lines.append(f'  n{number} [{plain}label="{told.translate(_IN_DOT)}"];')
        lines += [f"  n{numbers[source]} -> n{number};" for source in sources_of(op)]
    return "\n".join([*lines, "}"])


def _hands_on(op: DeviceOp[Any, Any, Any]) -> bool:
    """Return True for an op that only hands a tensor to a launch or takes it back."""
    return isinstance(op, Map) and isinstance(op.f, Cut | Uncut | Item | Outputs | Components)
