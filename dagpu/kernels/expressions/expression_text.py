"""The CUDA text of an expression: a device function of one element from each argument, and a kernel that calls it."""

import re
from typing import Any, Final, NamedTuple, final

import numpy as np

from dagpu.common.param_form import Form
from dagpu.kernels.cuda_source.cuda_scalars import parameter_text
from dagpu.kernels.expressions.operations.cuda_helpers import helper_texts
from dagpu.kernels.expressions.operations.cuda_operations import (
    cast_text,
    constant_text,
    load_text,
    memory_type,
    operation_text,
    register_type,
    store_text,
)
from dagpu.kernels.expressions.traced_expression import TracedExpression

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
    taken = ascii_name in _RESERVED or "__" in ascii_name or re.fullmatch(r"t\d+|_[A-Z]\w*", ascii_name)
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
    """Return the text of the device function `element`, and the names of the helper functions that it calls."""
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
    head = f"__device__ __forceinline__ {register_type(expression.dtype)} element({formals}) {{\n"
    return f"{head}{''.join(lines)}    return {texts[-1]};\n}}\n", helpers


def kernel_text(expression: TracedExpression, rank: int, patterns: tuple[ArgumentPattern, ...]) -> str:
    """Return the text of a kernel that writes an output of this rank."""
    name, names = safe_name(expression.name), parameter_names(expression)
    formals = [f"Tile<{memory_type(expression.dtype)}, {rank}> out"]
    values = []
    for pattern, dtype, argument in zip(patterns, expression.dtypes, names, strict=True):
        if not pattern.form.is_written:
            formals.append(formal_text(pattern, dtype, argument))
        values.append(load_text(dtype, _element_of(pattern, argument, rank)))
    result = store_text(expression.dtype, f"element({', '.join(values)})")
    return (
        f"{element_text(expression)}\n{_signature(name, formals)} {{\n"
        f"{_sides_text(expression, rank, patterns)}    for (auto i : out) out[i] = {result};\n}}\n"
    )


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
    arrays, formals, values = [], [], []
    for pattern, dtype, argument in zip(patterns, expression.dtypes, parameter_names(expression), strict=True):
        values.append(load_text(dtype, argument))
        if pattern.form.is_tensor:
            arrays.append("out" if pattern.form.is_written else argument)
            formals.append(f"{memory_type(dtype)} {argument}")
    result = store_text(expression.dtype, f"element({', '.join(values)})")
    function = f"[=]({', '.join(formals)}) {{ return {result}; }}"
    return f"    if (dagpu::by_sides<{SIDE}>(\n            out, {function}, {', '.join(arrays)}))\n        return;\n"


def _element_of(pattern: ArgumentPattern, argument: str, rank: int) -> str:
    """Return the text of one element of an argument; of a number that is the number itself."""
    if pattern.form.is_written:
        return "out[i]"
    return f"{argument}{_index_text(pattern.axes, rank)}" if pattern.form.is_tensor else argument


def _index_text(axes: tuple[int, ...], rank: int) -> str:
    """Return the text of an element's place in an argument."""
    if axes == tuple(range(rank)):
        return "[i]"
    return f"({', '.join('0' if axis < 0 else f'i[{axis}]' for axis in axes)})"
