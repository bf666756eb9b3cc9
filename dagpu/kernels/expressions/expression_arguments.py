"""The arguments of a call of an expression: their order, the parameters that check them, and their common shape."""

from collections.abc import Sequence
from typing import Any, NoReturn

from dagpu.common.dtypes import Shape
from dagpu.common.errors import KernelArgumentError, ShapeError
from dagpu.common.layout import Layout
from dagpu.common.origin import Origin, describe, here
from dagpu.kernels.call_arguments import elements_problem
from dagpu.kernels.expressions.broadcasting import broadcast_shape
from dagpu.kernels.expressions.element import Elem
from dagpu.kernels.expressions.expression_text import ArgumentPattern, parameter_names
from dagpu.kernels.expressions.traced_expression import TracedExpression
from dagpu.kernels.generated.element_errors import refuse_call_in_expression
from dagpu.kernels.generated.generated_launch import is_number, number_input, tensor_input
from dagpu.ops.kernel_spec import Param


def arguments_by_position(
    traced: TracedExpression, args: tuple[Any, ...], kwargs: dict[str, Any], first: int
) -> tuple[Any, ...]:
    """Return the arguments of a call in the order of the parameters, from number `first` on.

    Raises:
        KernelArgumentError: one is missing, or there is one too many.
    """
    parameters = list(traced.signature.parameters.values())[first:]
    try:
        return traced.signature.replace(parameters=parameters).bind(*args, **kwargs).args
    except TypeError as error:
        what = f"{error}; it takes ({', '.join([each.name for each in parameters])})"
        refuse_arguments(traced, what, "Pass one for each parameter, by position or by name", here())


def argument_params(
    traced: TracedExpression, args: Sequence[Any], origin: Origin, names: tuple[str, ...]
) -> list[Param]:
    """Return the parameters that check these arguments: of numbers, and of tensors of any shape. `names` are those of
    the last parameters of the expression.

    Raises:
        KernelArgumentError: their number is wrong, or one is an element of an expression.
    """
    if any(isinstance(arg, Elem) for arg in args):
        cure = (
            "Expressions do not call one another. Keep its Python function, f = lambda x: x * x, call f(x) here, "
            "and make that expression of it too: expr(f32)(f)"
        )
        refuse_call_in_expression(traced.title, origin, cure)
    if len(args) != len(names):
        what = f"got {len(args)} arguments; it takes ({', '.join(names)})"
        refuse_arguments(traced, what, "Pass one for each parameter, by position", origin)
    dtypes = traced.dtypes[len(traced.dtypes) - len(names) :]
    return [
        number_input(name, dtype, traced.name, lazy=True) if is_number(arg) else tensor_input(name, dtype, None)
        for name, dtype, arg in zip(names, dtypes, args, strict=True)
    ]


def input_params(traced: TracedExpression, patterns: Sequence[ArgumentPattern], kernel: str) -> list[Param]:
    """Return the parameters of a kernel for arguments of these patterns, but for the output. `kernel` is its name, for
    messages."""
    found: list[Param] = []
    for pattern, dtype, name in zip(patterns, traced.dtypes, parameter_names(traced), strict=True):
        if pattern.form.is_input:
            found.append(tensor_input(name, dtype, len(pattern.axes)))
        elif not pattern.form.is_written:
            found.append(number_input(name, dtype, kernel, lazy=True))
    return found


def refuse_arguments(
    traced: TracedExpression, what: str, cure: str, origin: Origin, param: str | None = None
) -> NoReturn:
    """Raise the `KernelArgumentError` of a call, or of its argument for one parameter. `cure` is a sentence without its
    full stop."""
    argument = "" if param is None else f", argument {param!r}"
    declared = "" if traced.is_lambda else f"; it is declared at {traced.place}"
    raise KernelArgumentError(f"{traced.title}{argument}: {what}. Called at {describe(origin)}{declared}. {cure}.")


def broadcast_arguments(
    traced: TracedExpression, out: Shape | None, layouts: Sequence[Layout | None], origin: Origin
) -> Shape:
    """Return the shape of the output of a call with arguments of these layouts.

    Raises:
        KernelArgumentError: the elements of an op are of another type.
        ShapeError: the shapes of the arguments do not broadcast, or not to `out`.
    """
    shapes = [layout.shape for layout in layouts if layout is not None]
    first = len(traced.names) - len(layouts)
    for name, dtype, layout in zip(traced.names[first:], traced.dtypes[first:], layouts, strict=True):
        if (
            layout is not None and layout.dtype is not dtype and layout.dtype != dtype
        ):  # it is an op: handles are checked
            wanted, cure = elements_problem(layout.dtype, dtype)
            what = f"got an op of a tensor of {layout.dtype.name}, shape {layout.shape}, {wanted}"
            refuse_arguments(traced, what, cure, origin, name)
    found = broadcast_shape(shapes if out is None else [out, *shapes])
    if found is None or (out is not None and found != out):
        target = "" if out is None else f" to the output's {out}"
        raise ShapeError(
            f"{traced.title}, called at {describe(origin)}: shapes {', '.join(map(str, shapes))} do not "
            f"broadcast{target}. Extents must be equal, or 1; reshape one: x.reshape((n, 1)), say."
        )
    return found
