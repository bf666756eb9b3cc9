"""The check of `@kernel(sees={...})` where it is literal: the rules and the words of `dagpu.kernels.sees`.

What is not literal, and a rank that the CUDA source does not show, is left to the run time.
"""

from collections.abc import Iterator, Sequence

from mypy.nodes import CallExpr, Decorator, DictExpr, Expression
from mypy.types import AnyType, CallableType, Type, get_proper_type

from dagpu.mypy_plugin import names
from dagpu.mypy_plugin.shapes.shape_values import Made, Nothing, Number, Several, Table, Value
from dagpu.mypy_plugin.typing import argument_forms, kernel_facts


def problems_of(
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
