"""The checks of literal shapes, parts and declarations. They need the values of variables.

`kernel_calls` checks that an output is a partition, while mypy types the call. The messages about tiles, ranks and
aliases use the words of `dagpu.common.layout.check_tiling` and `dagpu.kernels.call_arguments`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import final

from mypy.errorcodes import ErrorCode
from mypy.nodes import CallExpr, Context, Decorator, DictExpr, Expression, MemberExpr, NameExpr
from mypy.types import AnyType, CallableType, Type, get_proper_type

from dagpu.mypy_plugin import messages, names
from dagpu.mypy_plugin.analysis.values import (
    Array,
    Cut,
    Extents,
    Made,
    Nothing,
    Number,
    Op,
    Several,
    Table,
    Value,
    as_extents,
    format_extents,
    result_of,
)
from dagpu.mypy_plugin.syntax import arguments_of
from dagpu.mypy_plugin.typing import kernel_calls, op_types
from dagpu.mypy_plugin.typing.type_facts import class_name

# ---- what a kernel declares to see


def problems_of_declaration(
    declared: Decorator, place: Expression, decorator: Type | None, sees: Value
) -> Iterator[tuple[str, Expression]]:
    """Return the messages about what a kernel declares to see, each with its place.

    `place` is the call `kernel(...)`, and `decorator` its type.
    """
    function, made = get_proper_type(declared.func.type), get_proper_type(decorator)
    if not isinstance(sees, Table) or not isinstance(function, CallableType) or not isinstance(made, CallableType):
        return
    if any(isinstance(get_proper_type(formal), AnyType) for formal in function.arg_types):
        return
    forms = [op_types.parameter(formal).form for formal in function.arg_types]
    parameters = [name or "" for name in function.arg_names]
    inputs = [name for name, form in zip(parameters, forms, strict=True) if form == "in"]
    found = kernel_calls.ranks_named(declared.name, made.ret_type)
    ranks = dict(zip(parameters, found, strict=True)) if len(found) == len(parameters) else {}
    out_rank = next((ranks.get(name) for name, form in zip(parameters, forms, strict=True) if form == "out"), None)
    for index, (name, value) in enumerate(sees.items):
        where = _place(place, index)
        if name not in inputs:
            known = ", ".join(map(repr, inputs)) or "none"
            what = f"sees names {name!r}, which is no input of it; its inputs are {known}"
            yield f"kernel {declared.name!r}: {what}. Name inputs alone: a tile of an output sees itself.", where
            continue
        problem = _problem(value, ranks.get(name), out_rank)
        if problem is not None:
            yield f"kernel {declared.name!r}: sees={{{name!r}: {_text(value)}}}: {problem[0]}. {problem[1]}.", where


def _place(decorator: Expression, index: int) -> Expression:
    """Return the place of an item of `sees`; of the argument, if it is no dict display."""
    sees = arguments_of(decorator, ()).get("sees", decorator) if isinstance(decorator, CallExpr) else decorator
    return sees.items[index][1] if isinstance(sees, DictExpr) else sees


def _problem(declared: Value, rank: int | None, out_rank: int | None) -> tuple[str, str] | None:
    """Return what is certain to be wrong with the declaration of an input, and the cure; None if nothing is."""
    ranks = f"the input has rank {rank}, and the output rank {out_rank}"
    known = rank is not None and out_rank is not None
    if isinstance(declared, Made):
        if declared.name in (names.HERE, names.AROUND) and known and rank != out_rank:
            return ranks, "Say for each axis of the input which axis of the output it follows: (Along(0), None)"
        if declared.name == names.AROUND:
            if rank is not None and known and len(declared.arguments) != rank:
                return ranks, f"Give one margin for each axis: Around({', '.join(['1'] * rank)})"
            return _margin_problem(declared.arguments)
        return None
    if not isinstance(declared, Several):
        return None
    if known and len(declared.items) != rank:
        return f"it has {len(declared.items)} parts, and {ranks}", "Give one part for each axis of the input"
    for part in declared.items:
        if isinstance(part, Made) and part.name == names.ALONG:
            axis, *margins = part.arguments
            if known and isinstance(axis, Number) and not 0 <= axis.value < (out_rank or 0):
                return f"{ranks}, which has no axis {axis.value}", "Count the output's axes from 0"
            problem = _margin_problem(margins)
            if problem is not None:
                return problem
    return None


def _margin_problem(margins: Sequence[Value]) -> tuple[str, str] | None:
    """Return what is wrong with margins; None if nothing is certain to be."""
    for margin in margins:
        if isinstance(margin, Number) and margin.value < 0:
            return f"{margin.value} is no margin", "Give a number of elements, 0 or more"
    return None


def _text(declared: Value) -> str:
    """Return a declaration as the user wrote it, with `?` for what is not literal."""
    if isinstance(declared, Several):
        inside = ", ".join(map(_text, declared.items))
        return f"({inside},)" if len(declared.items) == 1 else f"({inside})"
    if isinstance(declared, Made):
        given = declared.arguments
        if declared.name == names.ALONG and given[1:] == (Number(0), Number(0)):
            given = given[:1]
        return f"{declared.name.rpartition('.')[2]}({', '.join(map(_text, given))})"
    return "None" if isinstance(declared, Nothing) else str(declared.value) if isinstance(declared, Number) else "?"


# ---- parts that are written


def problem_of_part(callee: MemberExpr, source: Type | None, at: Value, data: Value) -> str:
    """Return the message about a call of `write` on a source; empty if nothing is certain to be wrong."""
    if class_name(source) != names.SOURCE:
        return ""
    parts = at.items if isinstance(at, Several) else (at,)
    slices = [part.arguments if isinstance(part, Made) and part.name == names.SLICE else None for part in parts]
    who = f'"{callee.expr.name}"' if isinstance(callee.expr, NameExpr) else "the source"
    for axis, ends in enumerate(slices):
        problem = "" if ends is None else _slice_problem(ends, axis)
        if problem:
            region = ", ".join("?" if each is None else _part_text(each) for each in slices)
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
        return f"{_part_text(ends)} leaves elements out"
    length = _length(ends)
    return f"{_part_text(ends)} does not lie in axis {axis}" if length is not None and length < 0 else ""


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


def _part_text(ends: tuple[Value, ...]) -> str:
    """Return a slice as it stands in brackets, with `?` for what is not literal."""
    shown = ["" if isinstance(end, Nothing) else str(end.value) if isinstance(end, Number) else "?" for end in ends[:2]]
    return ":".join([*shown, str(ends[2].value)] if isinstance(ends[2], Number) else shown)


# ---- the checks of calls and declarations


@final
class ValueChecks:
    """Checks the calls and the declarations of kernels that an evaluation comes across."""

    def __init__(self, types: Mapping[Expression, Type], report: Callable[[str, Context, ErrorCode], None]) -> None:
        self._types = types
        self._report = report

    def check_partition(self, call: CallExpr, receiver: Value, tile: Value, partial: Expression | None) -> None:
        """Report a tile that does not divide the shape."""
        cut = as_extents(tile)
        if not isinstance(receiver, Array) or cut is None:
            return
        # An expression other than the literal False may be true.
        exact = partial is None or (isinstance(partial, NameExpr) and partial.fullname == "builtins.False")
        problem = _tiling_problem(receiver.shape, cut, exact=exact)
        if problem:
            self._report(problem, call, messages.OUTPUT_PARTITION)

    def check_arguments(
        self, call: CallExpr, callee: Expression, kernel: Type, given: Mapping[str, Value], *, first: int = 0
    ) -> None:
        """Report arguments of another rank than CUDA declares, and outputs on the memory of another argument.

        `first`: the first parameter that the call passes. What `kernel.new` returned makes the output itself.
        """
        forms = op_types.forms_of(kernel)
        names = list(forms)[first:]
        outputs = [form == "out" and first == 0 for form in forms.values()][first:]
        places, ranks = arguments_of(call, names), kernel_calls.ranks_of(callee, kernel)[first:]
        seen: dict[object, int] = {}
        for index, (name, is_output) in enumerate(zip(names, outputs, strict=True)):
            place, value = places.get(name), given.get(name)
            if place is None:
                continue
            result = result_of(value) if isinstance(value, Op) else value
            if len(ranks) == len(names) and isinstance(result, Cut if is_output else Array):
                self._check_rank(callee, name, result, ranks[index], place)
            source = value.source if isinstance(value, Op) else None
            before = index if source is None else seen.setdefault(source, index)
            if before != index and (outputs[before] or is_output):
                alias = _describe_alias(names, outputs, before, index)
                self._report(f"{_describe_place(callee, name)}: {alias}", place, messages.OUTPUT_PARTITION)

    def check_new(self, call: CallExpr, callee: Expression, kernel: Type, shape: Extents, number: int) -> None:
        """Report a shape with another rank than CUDA declares for the output of this number."""
        rank = next(iter(kernel_calls.ranks_of(callee, kernel)[number:]), None)
        if rank is not None and len(shape) != rank:
            what = f"new() has the shape {format_extents(shape)}, so a rank of {len(shape)}"
            cure = "Give that many extents, or declare that rank in CUDA"
            name = op_types.kernel_name(callee)
            message = f"{name}: {what}, but the CUDA declaration has rank {rank}. {cure}."
            self._report(message, call, messages.OUTPUT_PARTITION)

    def _check_rank(
        self, callee: Expression, name: str, given: Array | Cut, rank: int | None, place: Expression
    ) -> None:
        if rank is None or len(given.shape) == rank:
            return
        type_ = self._types.get(place)
        element = op_types.element_of(type_) if type_ is not None else ""
        elements = f" of {element}," if element else " of"
        form, code, cut = "a Partition", messages.OUTPUT_PARTITION, " before it is cut"
        if isinstance(given, Array):
            form, code, cut = op_types.describe_handle(type_), messages.INPUT_RANK, ""
        what = f"got {form}{elements} shape {format_extents(given.shape)}, so of rank {len(given.shape)}"
        cure = f"Reshape it{cut} with .reshape(shape), or declare that rank in CUDA"
        message = f"{_describe_place(callee, name)}: {what}, but the CUDA declaration has rank {rank}. {cure}."
        self._report(message, place, code)

    def check_write(self, call: CallExpr, callee: MemberExpr, at: Value, data: Value) -> None:
        """Report a part that does not lie in its source, and data of another shape."""
        problem = problem_of_part(callee, self._types.get(callee.expr), at, data)
        if problem:
            self._report(problem, call, messages.SOURCE_PART)

    def check_declaration(self, declared: Decorator, place: Expression, sees: Value) -> None:
        """Report the declarations of a kernel that do not fit its parameters."""
        for problem, where in problems_of_declaration(declared, place, self._types.get(place), sees):
            self._report(problem, where, messages.SEES)


def _describe_place(callee: Expression, name: str) -> str:
    return f"{op_types.kernel_name(callee)}, argument {name!r}"


def _describe_alias(names: list[str], outputs: list[bool], first: int, second: int) -> str:
    if outputs[first] and outputs[second]:
        what = f"two outputs, {names[first]!r} and this one, are on the same memory"
        return f"{what}. Write each to memory of its own, empty(shape).partition(tile)."
    output, read = (first, second) if outputs[first] else (second, first)
    what = f"output {names[output]!r} is on the same memory as input {names[read]!r}"
    cure = "Write to memory of its own, empty(shape).partition(tile), or read a copy that was made before: "
    return f"{what}. {cure}dup(t.borrow()).sync()."


def _tiling_problem(shape: Extents, tile: Extents, *, exact: bool) -> str:
    """Return the message that `dagpu.common.layout.check_tiling` would raise; empty if no error is certain."""
    if len(tile) != len(shape):
        problem = (
            f"tile {format_extents(tile)} has {len(tile)} axes, the tensor {format_extents(shape)} has {len(shape)}"
        )
        return f"{problem}. Give one tile extent for each axis."
    for axis, (extent, step) in enumerate(zip(shape, tile, strict=True)):
        if step is not None and step < 1:
            problem = (
                f"tile {format_extents(tile)} has extent {step} along axis {axis} of shape {format_extents(shape)}"
            )
            return f"{problem}. A tile has at least 1."
        if exact and step is not None and extent is not None and extent % step:
            cuts = f"tile {format_extents(tile)} does not cut shape {format_extents(shape)}"
            cure = "Choose a tile that divides it, or say partial=True to allow smaller tiles at the edge"
            return f"{cuts}: axis {axis} has {extent} elements, which is not a multiple of {step}. {cure}."
    return ""
