"""The generated kernels of reductions: one pass over rows, as CUDA text and as a NumPy twin with the same order."""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dagpu.kernels.arrays.reducing.reduction_order import THREADS, ReductionOrder
from dagpu.kernels.arrays.reducing.reduction_steps import (
    COUNTED,
    STEPS,
    combine_function,
    finish_text,
    identity,
    identity_text,
    number_type,
    result_type,
    start_function,
    start_text,
)
from dagpu.kernels.arrays.reducing.row_walk import SIDE, RowWalk
from dagpu.kernels.expressions.cuda_operations import (
    helper_texts,
    memory_type,
    operation_text,
    register_type,
    store_text,
)
from dagpu.kernels.expressions.expression_text import safe_name
from dagpu.kernels.expressions.numpy_operations import register_dtype
from dagpu.kernels.generated.generated_launch import generated_kernel, number_input, output, tensor_input
from dagpu.kernels.generated.row_elements import Elements, array_elements
from dagpu.ops.kernel_spec import KernelSpec, Param

PART: Final = 1 << 18
"""The number of elements that the NumPy twin reduces at a time."""

TEXT: Final = """\
__global__ void {name}(Tile<{out}, 2> out{formals}) {{
{early}{head}    {number} found[{count}] = {{{identities}}};
    if (mine) {{
{body}    }}
{fold}    if (mine && lane == 0) {{
{results}    }}
}}
"""
SQUARE: Final = "template <class T> __device__ __forceinline__ T square(T x) { return x * x; }\n"


@cache
def reduction_kernel(
    name: str, dtype: "np.dtype[Any]", reduced: tuple[bool, ...], order: ReductionOrder, first: bool, last: bool
) -> KernelSpec:
    """Return the kernel of one pass: `out[row, span]` of shape (rows, spans) from the input's rows.

    `dtype` is the element type of the reduction's input. The first pass reads elements of it, the last one writes
    elements of the result's type; what lies between them has the type in which numbers are combined.
    """
    number = number_type(name, dtype)
    source = dtype if first else number
    target = result_type(name, dtype) if last else number
    params = [output("out", target, 2), tensor_input("x", source, len(reduced)), *count_params(name, number, last)]
    kernel, elements = safe_name(name), array_elements("x", source, len(reduced))
    text = pass_text(kernel, name, elements, (number, target), reduced, order, (first, last))
    twin = pass_twin(name, number, reduced, order, (first, last))
    place = (reduction_kernel.__wrapped__.__code__, 0)
    return generated_kernel(kernel, params, text, twin, place, block=(THREADS,), early_reads=None if first else ())


def count_params(name: str, number: "np.dtype[Any]", last: bool) -> list[Param]:
    """Return the parameter for the count by which the last pass of a mean divides."""
    return [number_input("count", number, name)] if last and STEPS[name].finish in COUNTED else []


# ---- CUDA
def pass_text(
    kernel: str,
    name: str,
    elements: Elements,
    types: "tuple[np.dtype[Any], np.dtype[Any]]",
    reduced: tuple[bool, ...],
    order: ReductionOrder,
    ends: tuple[bool, bool],
) -> str:
    """Return the text of a pass of the reduction `name`, as a kernel of the name `kernel`. `types` are those in which
    numbers are combined and of the output; `ends` says whether this is the first pass, and the last."""
    (number, target), step = types, STEPS[name]
    register = register_type(number)
    walk = RowWalk(order, reduced, elements.operands)
    start, finish = step.start if ends[0] else "itself", step.finish if ends[1] else "itself"
    helpers: set[str] = set(elements.helpers)

    def combined(a: str, b: str) -> str:
        text = operation_text(step.operation, number, (a, b))
        helpers.update(text.helpers)
        return text.text

    def visit(values: Sequence[str], _: str) -> list[str]:
        started = start_text(start, "next")
        return [
            f"const {register_type(elements.dtype)} next = {elements.value(values)};",
            f"found[n] = {combined('found[n]', f'({started})' if start == 'test' else started)};",
        ]

    def join(names: Sequence[str], a: str, b: str) -> str:
        return f"{names[0]}[{a}] = {combined(f'{names[0]}[{a}]', f'{names[0]}[{b}]')};"

    body, fold = walk.body(visit), walk.fold({"found": register}, join)
    results = []
    for n in range(order.beside if order.across else 1):
        result = store_text(target, finish_text(finish, f"all_found[threadIdx.x + {n * THREADS}]", number))
        guard = f"if (row + {n} < out.tile_extent(0)) " if order.across else ""
        results.append(f"        {guard}out(out.origin(0) + row + {n}, out.origin(1)) = {result};\n")
    square = SQUARE if start == "square" else ""
    return f"{helper_texts(helpers)}{SIDE}{square}{elements.functions}" + TEXT.format(
        name=kernel,
        out=memory_type(target),
        formals=f"{elements.formals}, {register} count" if finish in COUNTED else elements.formals,
        early=early_text(*ends),
        head=walk.head(),
        number=register,
        count=order.beside,
        identities=", ".join([identity_text(step.operation, number)] * order.beside),
        body=body,
        fold=fold,
        results="".join(results),
    )


def early_text(first: bool, last: bool) -> str:
    """Return the text by which the second pass starts in a graph while the first one ends: its blocks wait for it."""
    ahead = "" if last else "    launch_dependents();\n"
    return ahead if first else f"{ahead}    wait_for_inputs();\n"


# ---- NumPy
_QUICK: Final = {"minimum": np.minimum, "maximum": np.maximum}
"""The functions of NumPy that leave open which of two zeros is the result; they are right where it is no zero."""


@cache
def _turned_axes(reduced: tuple[bool, ...]) -> tuple[int, ...]:
    """Return the axes of an input, the reduced ones before the others."""
    return tuple(sorted(range(len(reduced)), key=lambda axis: not reduced[axis]))


def rows_of(x: NDArray[Any], reduced: tuple[bool, ...]) -> NDArray[Any]:
    """Return an input as an array of shape (length of a row, rows)."""
    turned = x.transpose(_turned_axes(reduced))
    return turned.reshape(prod(turned.shape[: sum(reduced)]), -1)


def pass_twin(
    name: str, number: "np.dtype[Any]", reduced: tuple[bool, ...], order: ReductionOrder, ends: tuple[bool, bool]
) -> Callable[..., None]:
    """Return the NumPy twin of a pass: `body(out, x, count=None)`."""
    step = STEPS[name]
    combine, nothing = combine_function(step.operation, number), identity(step.operation, number)
    start = start_function(step.start if ends[0] else "itself")
    finish = step.finish if ends[1] else "itself"
    width, each, span = order.width, order.each, order.span

    def numbers(part: NDArray[Any]) -> NDArray[Any]:
        found: NDArray[Any] = start(part.astype(register_dtype(part.dtype), copy=False))
        return found

    def reduce(block: NDArray[Any]) -> NDArray[Any]:
        quick = _QUICK.get(step.operation) if number.kind == "f" else None
        if quick is None:
            return _reduce_spans(block, combine, order)
        found = _reduce_spans(block, quick, order)
        return _reduce_spans(block, combine, order) if (found == 0).any() else found

    def filled(rest: NDArray[Any]) -> NDArray[Any]:
        """Reduce rows shorter than a span, to (rows, 1). What is missing after their ends would change nothing."""
        steps, columns = -(-len(rest) // width), rest.shape[1]
        if steps * width > len(rest):
            full = np.empty((steps * width, columns), number)
            full[: len(rest)] = numbers(rest)
            full[len(rest) :] = nothing
        else:
            full = numbers(rest)
        return reduce(full.reshape(1, steps, width, columns)).T

    def in_parts(rows: NDArray[Any]) -> NDArray[Any]:
        """Reduce rows to (rows, spans). Each call of NumPy combines enough pairs to be worth the call."""
        length, total = rows.shape
        full = length // span
        columns = min(total, max(1, PART // min(length, span), 8192 // width))
        steps = max(1, PART // (span * columns))
        found = np.empty((total, -(-length // span)), number)
        for column, begin in product(range(0, total, columns), range(0, full, steps)):
            chosen = slice(column, column + columns)
            end = min(full, begin + steps)
            part = rows[begin * span : end * span, chosen]
            shaped = part.reshape(end - begin, each, width, part.shape[1])
            found[chosen, begin:end] = reduce(numbers(shaped)).T
        for column in range(0, total if full * span < length else 0, columns):
            chosen = slice(column, column + columns)
            found[chosen, full:] = filled(rows[full * span :, chosen])
        return found

    def body(out: Any, x: Any, count: Any = None) -> None:
        target, rows = out.view(np.ndarray), rows_of(x.view(np.ndarray), reduced)
        length, total = rows.shape
        with np.errstate(all="ignore"):
            if length * total > PART or (length > span and length % span):
                found = in_parts(rows)
            elif length < span:
                found = filled(rows)
            else:
                found = reduce(numbers(rows.reshape(length // span, each, width, total))).T
            if finish in COUNTED:
                found /= number.type(count)
            if finish in ("sqrt", "root"):
                np.sqrt(found, out=found)
            np.copyto(target, found, casting="unsafe")

    return body


def _reduce_spans(block: NDArray[Any], combine: Callable[..., Any], order: ReductionOrder) -> NDArray[Any]:
    """Reduce numbers of shape (spans, each, width, rows) to (spans, rows), in the order of the reduction."""
    found: NDArray[Any]
    if isinstance(combine, np.ufunc) and order.width > 1:
        # Lanes are nearer to each other in memory than their elements, so NumPy's inner loop runs over lanes, and each
        # lane combines its elements one after the other. (Along its inner loop NumPy would add them in pairs.) Without
        # `initial=None` sums would begin with +0, which is not neutral for -0.
        found = combine.reduce(block, axis=1, dtype=block.dtype, initial=None)
    else:
        found = block[:, 0].copy(order="K")
        for k in range(1, block.shape[1]):
            found = combine(found, block[:, k], out=found)
    half = order.own
    columns = [found[:, n::half] for n in range(half)]
    while half > 1:
        half //= 2
        columns = [combine(columns[n], columns[n + half]) for n in range(half)]
    found, half = columns[0], order.lanes
    while half > 1:
        half //= 2
        found = combine(found[:, :half], found[:, half : 2 * half])
    return found[:, 0]
