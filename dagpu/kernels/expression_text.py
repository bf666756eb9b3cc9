"""A call of an expression: its arguments, their common shape, and the CUDA text of its kernel."""

import re
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any, Final, NamedTuple, NoReturn, TypeVar, final

import numpy as np

from dagpu.common.errors import KernelArgumentError, ShapeError
from dagpu.common.layout import Layout, Shape
from dagpu.common.places import Origin, describe, here
from dagpu.kernels.call_arguments import elements_problem
from dagpu.kernels.cuda_parameters import parameter_text
from dagpu.kernels.element import Elem, TracedExpression, refuse_call_in_expression
from dagpu.kernels.generated_launch import is_number, number_input, reshaped, tensor_input
from dagpu.kernels.operations import (
    cast_text,
    constant_text,
    helper_texts,
    load_text,
    memory_type,
    operation_text,
    register_type,
    store_text,
)
from dagpu.ops.kernel_spec import Form, Param

_RESERVED: Final = frozenset(
    """alignas alignof and asm auto bool break case catch char class concept const constexpr continue decltype default
    delete do double else enum explicit export extern false float for friend goto half if inline int long mutable
    namespace new noexcept not nullptr operator or private protected public register requires return short signed sizeof
    static struct switch template this throw true try typedef typeid typename union unsigned using virtual void volatile
    while xor out i element View Tile Index dagpu std INFINITY NAN int8_t int16_t int32_t int64_t uint8_t uint16_t
    uint32_t uint64_t threadIdx blockIdx blockDim gridDim warpSize""".split()  # noqa: SIM905  # reason: a hundred quotes less
)
"""Names that a parameter cannot have in CUDA C++, or that the generated text uses itself."""


_WIDTH: Final = 88
"""Most characters in the line of a signature, which people read in `.cuda`."""
SIDE: Final = 4
"""The number of neighbours that a thread reads by one instruction, computes, and writes by one."""


@final
class ArgumentPattern(NamedTuple):
    """How a kernel gets one argument of an expression: as an input, as a number, or in the output, before it is
    written.

    `axes` has, for each axis of an input, the axis of the output that it follows, or -1 if its extent is 1.
    """

    form: Form
    axes: tuple[int, ...] = ()


def safe_name(name: str) -> str:
    """Return a name of Python as one of CUDA C++: unchanged, or with an underscore."""
    ascii_name = re.sub(r"\W", "_", name.encode("ascii", "replace").decode())
    taken = ascii_name in _RESERVED or "__" in ascii_name or re.fullmatch(r"(t|out)\d+|_[A-Z]\w*", ascii_name)
    return f"{ascii_name.strip('_') or 'x'}_" if taken else ascii_name


def parameter_names(expression: TracedExpression) -> tuple[str, ...]:
    """Return the names of the parameters in CUDA C++, all different."""
    names: list[str] = []
    for name in map(safe_name, expression.names):
        unique, count = name, 1
        while unique in names:
            count += 1
            unique = f"{name}{count}"
        names.append(unique)
    return tuple(names)


def element_text(expression: TracedExpression) -> str:
    """Return the text of the device function that computes one element, and of the helper functions that it calls."""
    text, helpers = element_function(expression)
    return helper_texts(helpers) + text


def element_function(expression: TracedExpression) -> tuple[str, set[str]]:
    """Return the text of the device function `element`, and the names of the helper functions that it calls.

    It returns the result as the registers of a thread have it; of several results all, as memory has them.
    """
    names = parameter_names(expression)
    texts: list[str] = []
    lines: list[str] = []
    helpers: set[str] = set()
    for step in expression.steps:
        operands = tuple([texts[number] for number in step.operands])
        match step.operation:
            case "parameter":
                texts.append(names[step.value])
                continue
            case "constant":
                texts.append(constant_text(step.value, step.dtype))
                continue
            case "where":
                text = f"{operands[0]} ? {operands[1]} : {operands[2]}"
            case "cast":
                found = cast_text(expression.steps[step.operands[0]].dtype, step.dtype, operands[0])
                text = found.text
                helpers.update(found.helpers)
            case operation:
                found = operation_text(operation, expression.steps[step.operands[0]].dtype, operands)
                text = found.text
                helpers.update(found.helpers)
        texts.append(f"t{len(lines)}")
        lines.append(f"    const {register_type(step.dtype)} {texts[-1]} = {text};\n")
    formals = ", ".join(
        f"const {register_type(dtype)} {name}" for dtype, name in zip(expression.dtypes, names, strict=True)
    )
    made, returned = register_type(expression.dtype), texts[-1]
    if len(expression.results) > 1:
        made = f"dagpu::Results<{_memory_types(expression)}>"
        stored = [store_text(expression.steps[number].dtype, texts[number]) for number in expression.results]
        returned = f"{{{', '.join(stored)}}}"
    head = f"__device__ __forceinline__ {made} element({formals}) {{\n"
    return f"{head}{''.join(lines)}    return {returned};\n}}\n", helpers


def _memory_types(expression: TracedExpression) -> str:
    return ", ".join(map(memory_type, expression.result_dtypes))


def output_names(expression: TracedExpression) -> list[str]:
    """Return the names of a kernel's outputs: `out`, or `out0`, `out1`, ... of several results."""
    count = len(expression.results)
    return ["out"] if count == 1 else [f"out{number}" for number in range(count)]


def kernel_text(expression: TracedExpression, rank: int, patterns: tuple[ArgumentPattern, ...]) -> str:
    """Return the text of a kernel that writes outputs of this rank, one for each result."""
    name, names, outs = safe_name(expression.name), parameter_names(expression), output_names(expression)
    made = zip(expression.result_dtypes, outs, strict=True)
    formals, values = [f"Tile<{memory_type(dtype)}, {rank}> {out}" for dtype, out in made], list[str]()
    for pattern, dtype, argument in zip(patterns, expression.dtypes, _read_names(outs, patterns, names), strict=True):
        if not pattern.form.is_written:
            formals.append(formal_text(pattern, dtype, argument))
        values.append(load_text(dtype, _element_of(pattern, argument, rank)))
    called = f"element({', '.join(values)})"
    if len(outs) > 1:
        write = f"dagpu::write_results(i, {called}, {', '.join(outs)})"
    else:
        write = f"out[i] = {store_text(expression.dtype, called)}"
    return (
        f"{element_text(expression)}\n{_signature(name, formals)} {{\n"
        f"{_sides_text(expression, rank, patterns)}    for (auto i : {outs[0]}) {write};\n}}\n"
    )


def _read_names(outs: Sequence[str], patterns: Sequence[ArgumentPattern], names: Sequence[str]) -> list[str]:
    """Return the name of each argument: of one in an output, which come in their order, that of the output."""
    written = iter(outs)
    return [next(written) if each.form.is_written else name for each, name in zip(patterns, names, strict=True)]


def formal_text(pattern: ArgumentPattern, dtype: "np.dtype[Any]", name: str) -> str:
    """Return the declaration of the parameter for an argument, which is not the output."""
    element = f"{'const ' * pattern.form.is_input}{memory_type(dtype)}"
    return parameter_text(pattern.form.passed, element, len(pattern.axes), name)


def _signature(name: str, formals: list[str]) -> str:
    """Return the signature of a kernel, with a line for each parameter if it would be too wide to be read."""
    line = f"__global__ void {name}({', '.join(formals)})"
    if len(line) <= _WIDTH:
        return line
    return f"__global__ void {name}(\n    " + ",\n    ".join(formals) + "\n)"


def _sides_text(expression: TracedExpression, rank: int, patterns: tuple[ArgumentPattern, ...]) -> str:
    """Return the text that computes several neighbours at a time, if all arrays have the one axis of the output."""
    if rank != 1 or any(pattern.form.is_input and pattern.axes != (0,) for pattern in patterns):
        return ""
    arrays, formals, values, names = list[str](), list[str](), list[str](), parameter_names(expression)
    given = _read_names(output_names(expression), patterns, names)
    for pattern, dtype, argument, array in zip(patterns, expression.dtypes, names, given, strict=True):
        values.append(load_text(dtype, argument))
        if pattern.form.is_tensor:
            arrays.append(array)
            formals.append(f"{memory_type(dtype)} {argument}")
    result, out = f"element({', '.join(values)})", "out"
    if len(expression.results) > 1:
        out = f"dagpu::tiles({', '.join(output_names(expression))})"
    else:
        result = store_text(expression.dtype, result)
    function = f"[=]({', '.join(formals)}) {{ return {result}; }}"
    return f"    if (dagpu::by_sides<{SIDE}>(\n            {out}, {function}, {', '.join(arrays)}))\n        return;\n"


def _element_of(pattern: ArgumentPattern, argument: str, rank: int) -> str:
    """Return the text of one element of an argument or output; of a number that is the number itself."""
    if pattern.form.is_written:
        return f"{argument}[i]"
    return f"{argument}{_index_text(pattern.axes, rank)}" if pattern.form.is_tensor else argument


def _index_text(axes: tuple[int, ...], rank: int) -> str:
    """Return the text of an element's place in an argument."""
    if axes == tuple(range(rank)):
        return "[i]"
    return f"({', '.join('0' if axis < 0 else f'i[{axis}]' for axis in axes)})"


# ---- broadcasting
#
# Broadcasting by NumPy's rules, and the fewest axes with which a kernel computes a call.

_K = TypeVar("_K", bound=int)

NUMBER: Final = ArgumentPattern(Form.SCALAR)


@final
class Walk(NamedTuple):
    """The shapes with which a kernel runs: of the output, and of each array with its axes in the output.

    An array's axis is -1 where its extent is 1 and the output's is not.
    """

    shape: Shape
    arrays: tuple[Shape, ...]
    axes: tuple[tuple[int, ...], ...]


def broadcast_shape(shapes: "Sequence[Shape]") -> Shape | None:
    """Return the common shape of arrays by NumPy's rules; None if there is none."""
    if shapes.count(shapes[0]) == len(shapes):
        return shapes[0]
    rank = max(map(len, shapes))
    found: list[int] = []
    for axis in range(-rank, 0):
        extents = {shape[axis] for shape in shapes if len(shape) >= -axis} - {1}
        if len(extents) > 1:
            return None
        found.append(extents.pop() if extents else 1)
    return tuple(found)


def direct_walk(out: Shape, shapes: "Sequence[Shape]") -> Walk:
    """Return the walk with the axes of the output as they are."""
    axes = []
    for shape in shapes:
        missing = len(out) - len(shape)
        axes.append(tuple([missing + a if n == out[missing + a] else -1 for a, n in enumerate(shape)]))
    return Walk(out, tuple(shapes), tuple(axes))


@lru_cache(maxsize=1024)
def merged_walk(out: Shape, shapes: tuple[Shape, ...], kinds: tuple[int, ...]) -> tuple[Walk, tuple[int, ...]]:
    """Return the walk with as few axes as possible, for arrays that are contiguous, and for each of its axes the first
    one of `out` that is part of it. `kinds` has the kind of each axis of `out`.

    Neighbouring axes of one kind become one where each array either follows both or neither. Axes of extent 1 vanish.
    So a call with equal shapes has one axis of each kind. Walks are kept: most calls of a program have the shapes of
    earlier ones, and to find a walk takes a fifth of the time of a call.
    """
    direct = direct_walk(out, shapes)
    groups: list[list[int]] = []
    before: tuple[object, ...] | None = None
    for axis, extent in enumerate(out):
        if extent == 1:
            continue
        follows = (kinds[axis], *[axis in axes for axes in direct.axes])
        if follows == before:
            groups[-1].append(axis)
        else:
            groups.append([axis])
        before = follows
    extents = tuple([prod([out[axis] for axis in group]) for group in groups])
    kept = [tuple([n for n, group in enumerate(groups) if group[0] in axes]) for axes in direct.axes]
    walk = Walk(extents, tuple([tuple([extents[n] for n in each]) for each in kept]), tuple(kept))
    return walk, tuple([group[0] for group in groups])


def tile_of(shape: Shape, most: int) -> Shape:
    """Return a tile of up to `most` elements that are neighbours in memory."""
    tile: list[int] = []
    for extent in reversed(shape):
        step = max(1, min(extent, most))
        tile.append(step)
        most //= step
    return tuple(reversed(tile))


# ---- arguments
def patterns_of(layouts: Sequence[Layout | None], walk: Walk) -> tuple[ArgumentPattern, ...]:
    """Return the patterns of arguments: a number has no layout."""
    axes = iter(walk.axes)
    return tuple([NUMBER if layout is None else ArgumentPattern(Form.IN, next(axes)) for layout in layouts])


def walk_of_kinds(layouts: Sequence[Layout | None], whole: Shape, kinds: tuple[_K, ...]) -> tuple[Walk, tuple[_K, ...]]:
    """Return the walk of arguments with these layouts that broadcast to `whole`, and the kind of each of its axes.

    `kinds` are those of the axes of `whole`. Axes of one kind are merged where all arguments are contiguous.
    """
    known = [layout for layout in layouts if layout is not None]
    shapes = tuple([layout.shape for layout in known])
    if all(layout.contiguous for layout in known):
        walk, firsts = merged_walk(whole, shapes, kinds)
        return walk, tuple([kinds[first] for first in firsts])
    return direct_walk(whole, shapes), kinds


def passed_arguments(moved: Sequence[Any], layouts: Sequence[Layout | None], walk: Walk, origin: Origin) -> list[Any]:
    """Return arguments that have moved as the kernel of a walk takes them. A number has no layout."""
    given = iter(walk.arrays)
    return [
        arg if layout is None else reshaped(arg, layout, next(given), origin)
        for arg, layout in zip(moved, layouts, strict=True)
    ]


# ---- expression arguments
#
# The arguments of a call of an expression: their order, the parameters that check them, and their common shape.


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


def call_form(
    traced: TracedExpression, args: Sequence[Any], origin: Origin, names: tuple[str, ...]
) -> tuple[bool, ...]:
    """Return for each argument whether it is a number. `names` are those of the last parameters of the expression.

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
    return tuple(map(is_number, args))


def argument_params(traced: TracedExpression, form: tuple[bool, ...], names: tuple[str, ...]) -> list[Param]:
    """Return the parameters that check the arguments of a call of this form: of numbers, and of tensors of any
    shape."""
    dtypes = traced.dtypes[len(traced.dtypes) - len(names) :]
    return [
        number_input(name, dtype, traced.name, lazy=True) if number else tensor_input(name, dtype, None)
        for name, dtype, number in zip(names, dtypes, form, strict=True)
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
