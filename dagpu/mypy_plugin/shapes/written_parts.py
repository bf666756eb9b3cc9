"""The check of `source.write(at, data)` where the part is literal: the rules and the words of `dagpu.ops.live.parts`.

A `set` may give a source another shape, so its extents are left to the run time. A slice without a step whose ends are
in order may lie in it, and its length is that of the data.
"""

from mypy.nodes import MemberExpr, NameExpr
from mypy.types import Instance, Type, get_proper_type

from dagpu.mypy_plugin import names
from dagpu.mypy_plugin.shapes.shape_values import Array, Extents, Made, Nothing, Number, Several, Value, format_extents


def problem_of(callee: MemberExpr, source: Type | None, at: Value, data: Value) -> str:
    """Return the message about a call of `write` on a source; empty if nothing is certain to be wrong."""
    proper = get_proper_type(source)
    if not isinstance(proper, Instance) or proper.type.fullname != names.SOURCE:
        return ""
    parts = at.items if isinstance(at, Several) else (at,)
    slices = [part.arguments if isinstance(part, Made) and part.name == names.SLICE else None for part in parts]
    who = f'"{callee.expr.name}"' if isinstance(callee.expr, NameExpr) else "the source"
    for axis, ends in enumerate(slices):
        problem = "" if ends is None else _slice_problem(ends, axis)
        if problem:
            region = ", ".join("?" if each is None else _text(each) for each in slices)
            cure = "Give a slice for each axis, within the shape and without a step"
            return f"{who} is written in the part [{region}]: {problem}. {cure}."
    wanted = tuple([None if ends is None else _length(ends) for ends in slices])
    if isinstance(data, Array) and not _may_fit(data.shape, wanted):
        return (
            f"{who} is written with data of shape {format_extents(data.shape)}, but the part has shape "
            f"{format_extents(wanted)} along its first axes. Give data of the shape and element type of the part."
        )
    return ""


def _slice_problem(ends: tuple[Value, ...], axis: int) -> str:
    """Return what is certain to be wrong with a slice; empty if nothing is."""
    step = ends[2]
    if isinstance(step, Number) and step.value != 1:
        return f"{_text(ends)} leaves elements out"
    length = _length(ends)
    return f"{_text(ends)} does not lie in axis {axis}" if length is not None and length < 0 else ""


def _length(ends: tuple[Value, ...]) -> int | None:
    """Return the number of elements of a slice whose ends are both counted from the front, or both from the end."""
    start, stop = Number(0) if isinstance(ends[0], Nothing) else ends[0], ends[1]
    if not isinstance(start, Number) or not isinstance(stop, Number) or (start.value < 0) != (stop.value < 0):
        return None
    return stop.value - start.value


def _may_fit(shape: Extents, wanted: Extents) -> bool:
    """Return True if data of a shape may fit into a part of which the extents along the first axes are wanted."""
    pairs = zip(shape, wanted, strict=False)
    return len(shape) >= len(wanted) and all(None in pair or pair[0] == pair[1] for pair in pairs)


def _text(ends: tuple[Value, ...]) -> str:
    """Return a slice as it stands in brackets, with `?` for what is not literal."""
    shown = ["" if isinstance(end, Nothing) else str(end.value) if isinstance(end, Number) else "?" for end in ends[:2]]
    return ":".join([*shown, str(ends[2].value)] if isinstance(ends[2], Number) else shown)
