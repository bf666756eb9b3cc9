"""The checks of literal shapes, parts and declarations in one target: they need the values of variables."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeAlias, final

from mypy.errorcodes import ErrorCode
from mypy.nodes import (
    CallExpr,
    Context,
    Decorator,
    DictExpr,
    Expression,
    FuncDef,
    MemberExpr,
    MypyFile,
    NameExpr,
    SymbolNode,
)
from mypy.types import AnyType, CallableType, Instance, Type, get_proper_type

from dagpu.mypy_plugin import codes, names
from dagpu.mypy_plugin.shapes import shape_flow
from dagpu.mypy_plugin.shapes.output_partition import OutputChecker
from dagpu.mypy_plugin.shapes.shape_values import (
    Array,
    Extents,
    Made,
    Nothing,
    Number,
    Several,
    Table,
    Value,
    format_extents,
)
from dagpu.mypy_plugin.typing import argument_forms, kernel_facts

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
    forms = list(map(argument_forms.form_of, function.arg_types))
    parameters = [name or "" for name in function.arg_names]
    inputs = [name for name, form in zip(parameters, forms, strict=True) if form == "in"]
    found = kernel_facts.ranks_named(declared.name, made.ret_type)
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
    given = dict(zip(decorator.arg_names, decorator.args, strict=True)) if isinstance(decorator, CallExpr) else {}
    sees = given.get("sees", decorator)
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
    proper = get_proper_type(source)
    if not isinstance(proper, Instance) or proper.type.fullname != names.SOURCE:
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


# ---- the checks of a function

Report: TypeAlias = Callable[[str, Context, ErrorCode], None]


def check(
    target: FuncDef | MypyFile, types: Mapping[Expression, Type], constants: Mapping[SymbolNode, Value], report: Report
) -> None:
    """Report the mistakes in a function with its nested functions, or in a module outside its functions."""
    shape_flow.follow(target, types, _ShapeChecks(types, report), constants)


@final
class _ShapeChecks:
    """Passes each call and each declaration to the check that it is for."""

    def __init__(self, types: Mapping[Expression, Type], report: Report) -> None:
        self._types = types
        self._report = report
        outputs = OutputChecker(
            types, partial(_report_as, report, codes.OUTPUT_PARTITION), partial(_report_as, report, codes.INPUT_RANK)
        )
        self.check_partition = outputs.check_partition
        self.check_kernel = outputs.check_kernel
        self.check_new = outputs.check_new
        self.check_new_inputs = outputs.check_new_inputs

    def check_write(self, call: CallExpr, callee: MemberExpr, at: Value, data: Value) -> None:
        """Report a part that does not lie in its source, and data of another shape."""
        problem = problem_of_part(callee, self._types.get(callee.expr), at, data)
        if problem:
            self._report(problem, call, codes.SOURCE_PART)

    def check_declaration(self, declared: Decorator, place: Expression, sees: Value) -> None:
        """Report the declarations of a kernel that do not fit its parameters."""
        for problem, where in problems_of_declaration(declared, place, self._types.get(place), sees):
            self._report(problem, where, codes.SEES)


def _report_as(report: Report, code: ErrorCode, message: str, node: Context) -> None:
    report(message, node, code)
