"""The generated kernels of reductions: one pass over rows, as CUDA text. `reduction_twins` has the NumPy twins."""

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import numpy as np

from dagpu.kernels.arrays.reducing.reduction_order import THREADS, ReductionOrder
from dagpu.kernels.arrays.reducing.reduction_steps import (
    COUNTED,
    STEPS,
    finish_text,
    identity_text,
    number_type,
    result_type,
    start_text,
)
from dagpu.kernels.arrays.reducing.reduction_twins import pass_twin
from dagpu.kernels.arrays.reducing.row_walk import RowWalk
from dagpu.kernels.expressions.expression_text import safe_name
from dagpu.kernels.expressions.operations.cuda_helpers import helper_texts
from dagpu.kernels.expressions.operations.cuda_operations import memory_type, operation_text, register_type, store_text
from dagpu.kernels.generated.generated_launch import generated_kernel, number_input, output, tensor_input
from dagpu.kernels.generated.row_elements import Elements, array_elements
from dagpu.ops.kernel_spec import KernelSpec, Param

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
        result = store_text(target, finish_text(finish, f"all_found[{walk.result(n)}]", number))
        guard = f"if (row + {n} < out.tile_extent(0)) " if order.across else ""
        results.append(f"        {guard}out(out.origin(0) + row + {n}, out.origin(1)) = {result};\n")
    square = SQUARE if start == "square" else ""
    return f"{helper_texts(helpers)}{square}{elements.functions}" + TEXT.format(
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
