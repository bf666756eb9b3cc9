"""The checks of `dagpu-output-partition` that need shapes: tiles that do not divide, wrong ranks, and aliases.

`kernel_calls` checks that an output is a partition, while mypy types the call. The checks here need the values of
variables (`shape_flow`), so they run after type checking. Their messages use the words of
`dagpu.common.layout.check_tiling` and `dagpu.kernels.call_arguments`.
"""

from collections.abc import Callable, Mapping
from typing import final

from mypy.nodes import CallExpr, Context, Expression, NameExpr
from mypy.plugin import FunctionContext, MethodContext, MethodSigContext
from mypy.types import FunctionLike, Type

from dagpu.mypy_plugin.shapes.shape_values import Array, Cut, Extents, Op, Value, as_extents, format_extents, result_of
from dagpu.mypy_plugin.typing import argument_forms, kernel_facts

FUNCTION_HOOKS: dict[str, Callable[[FunctionContext], Type]] = {}
METHOD_HOOKS: dict[str, Callable[[MethodContext], Type]] = {}
SIGNATURE_HOOKS: dict[str, Callable[[MethodSigContext], FunctionLike]] = {}


@final
class OutputChecker:
    """Checks tiles, and the outputs and the ranks of the inputs of kernels."""

    def __init__(
        self,
        types: Mapping[Expression, Type],
        report: Callable[[str, Context], None],
        report_input: Callable[[str, Context], None],
    ) -> None:
        self._types = types
        self._report = report
        self._report_input = report_input

    def check_partition(self, call: CallExpr, receiver: Value, tile: Value, partial: Expression | None) -> None:
        """Report a tile that does not divide the shape."""
        cut = as_extents(tile)
        if not isinstance(receiver, Array) or cut is None:
            return
        # An expression other than the literal False may be true.
        exact = partial is None or (isinstance(partial, NameExpr) and partial.fullname == "builtins.False")
        problem = _tiling_problem(receiver.shape, cut, exact=exact)
        if problem:
            self._report(problem, call)

    def check_kernel(self, call: CallExpr, kernel: Type, arguments: list[Value]) -> None:
        """Report arguments of another rank than CUDA declares, and outputs on the memory of another argument."""
        parameters = argument_forms.parameters_of(kernel)
        if parameters is None:
            return
        places = _arguments_in_order(call, [name or "" for name in parameters.arg_names])
        names = list(parameters.arg_names)
        outputs = [argument_forms.form_of(formal) == "out" for formal in parameters.arg_types]
        ranks = kernel_facts.ranks_of(call.callee, kernel)
        seen: dict[object, int] = {}
        for index, value in enumerate(arguments):
            place = places[index]
            if place is None:
                continue
            if len(ranks) == len(arguments):
                given = result_of(value) if isinstance(value, Op) else value
                if isinstance(given, Cut if outputs[index] else Array):
                    self._check_rank(call.callee, names[index], given, ranks[index], place)
            source = value.source if isinstance(value, Op) else None
            if source is None:
                continue
            first = seen.setdefault(source, index)
            if first != index and (outputs[first] or outputs[index]):
                self._report(
                    f"{_describe_place(call.callee, names[index])}: {_describe_alias(names, outputs, first, index)}",
                    place,
                )

    def check_new(self, call: CallExpr, callee: Expression, kernel: Type, shape: Extents) -> None:
        """Report a shape with another rank than CUDA declares for the output."""
        rank = next(iter(kernel_facts.ranks_of(callee, kernel)), None)
        if rank is not None and len(shape) != rank:
            what = f"new() has the shape {format_extents(shape)}, so a rank of {len(shape)}"
            cure = "Give that many extents, or declare that rank in CUDA"
            name = argument_forms.kernel_name(callee)
            self._report(f"{name}: {what}, but the CUDA declaration has rank {rank}. {cure}.", call)

    def check_new_inputs(self, call: CallExpr, callee: Expression, kernel: Type, inputs: list[Value]) -> None:
        """Report inputs of another rank than CUDA declares, in a call of what `kernel.new` returned."""
        parameters = argument_forms.parameters_of(kernel)
        ranks = kernel_facts.ranks_of(callee, kernel)[1:]
        if parameters is None or len(ranks) != len(inputs):
            return
        names = parameters.arg_names[1:]
        places = _arguments_in_order(call, [name or "" for name in names])
        for name, value, rank, place in zip(names, inputs, ranks, places, strict=True):
            given = result_of(value) if isinstance(value, Op) else value
            if place is not None and isinstance(given, Array):
                self._check_rank(callee, name, given, rank, place)

    def _check_rank(
        self, callee: Expression, name: str | None, given: Array | Cut, rank: int | None, place: Expression
    ) -> None:
        if rank is None or len(given.shape) == rank:
            return
        type_ = self._types.get(place)
        element = argument_forms.element_of(type_) if type_ is not None else ""
        elements = f" of {element}," if element else " of"
        form, report, cut = "a Partition", self._report, " before it is cut"
        if isinstance(given, Array):
            form, report, cut = argument_forms.describe_handle(type_), self._report_input, ""
        what = f"got {form}{elements} shape {format_extents(given.shape)}, so of rank {len(given.shape)}"
        cure = f"Reshape it{cut} with .reshape(shape), or declare that rank in CUDA"
        report(f"{_describe_place(callee, name)}: {what}, but the CUDA declaration has rank {rank}. {cure}.", place)


def _describe_place(callee: Expression, name: str | None) -> str:
    return f"{argument_forms.kernel_name(callee)}, argument {name!r}"


def _arguments_in_order(call: CallExpr, order: list[str]) -> list[Expression | None]:
    """Return the argument expression for each parameter, in order; None for one that the call leaves out."""
    given: dict[str, Expression] = {}
    for index, (argument, name) in enumerate(zip(call.args, call.arg_names, strict=True)):
        given[name if name is not None else order[index] if index < len(order) else ""] = argument
    return [given.get(name) for name in order]


def _describe_alias(names: list[str | None], outputs: list[bool], first: int, second: int) -> str:
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
