"""The text of a DAG of ops in Graphviz DOT."""

from typing import Any, Final

from dagpu.common.origin import place_of
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import Map, nodes_of, sources_of
from dagpu.ops.drawing.op_names import name_of
from dagpu.ops.node_functions import Components, Cut, Item, Outputs, Uncut

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
