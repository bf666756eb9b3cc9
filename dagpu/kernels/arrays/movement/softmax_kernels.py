"""The generated kernels of `softmax`, as CUDA text. `softmax_twins` has the NumPy twins, and the order of additions."""

from collections.abc import Sequence
from functools import cache
from typing import Any, Final, NamedTuple, final

import numpy as np

from dagpu.kernels.arrays.movement.axis_groups import (
    GroupPattern,
)
from dagpu.kernels.arrays.movement.softmax_twins import EACH, SoftmaxOrder, softmax_twin
from dagpu.kernels.arrays.reducing.reduction_steps import identity_text
from dagpu.kernels.expressions.operations.cuda_helpers import helper_texts
from dagpu.kernels.expressions.operations.cuda_operations import memory_type, operation_text, register_type, store_text
from dagpu.kernels.expressions.operations.numpy_operations import register_dtype
from dagpu.kernels.generated.generated_launch import generated_kernel, output, tensor_input
from dagpu.kernels.generated.row_elements import Elements, array_elements, coordinate_texts
from dagpu.ops.kernel_spec import KernelSpec, Param

HEAD: Final = """\
{helpers}\
__global__ void __launch_bounds__({threads}) {kernel}(Tile<{target}, 3> out{formals}) {{
    const int thread = threadIdx.x, lane = thread {lane}, row = thread {row};
    const dagpu::index_t o = out.origin(0) + row {outer}, n = out.origin(2) + row {inner};
    const bool mine = row {outer} < out.tile_extent(0) && row {inner} < out.tile_extent(2);
    const dagpu::index_t first = out.origin(1){first}, length = mine ? {length} : 0;
    {number} kept[{each}];
#pragma unroll
    for (int k = 0; k < {each}; ++k) {{
        const dagpu::index_t at = first + k * {width} + lane;
        kept[k] = {nothing};
        if (at < length) kept[k] = {load};
    }}
"""
OWN: Final = """\
    {number} {name} = {nothing};
#pragma unroll
    for (int k = 0; k < {each}; ++k) {{
        const {number} next = kept[k];
        {name} = {combine};
    }}
"""
EARLIER: Final = """\
    {number} {name} = {nothing};
    if (mine)
        for (dagpu::index_t k = lane; k < {argument}.extent(1); k += {width}) {{
            const {number} next = {argument}(o, k, n);
            {name} = {combine};
        }}
"""
POWERS: Final = """\
#pragma unroll
    for (int k = 0; k < {each}; ++k) {{
        const {number} below = kept[k] - largest;
        kept[k] = first + k * {width} + lane < length ? {exp} : {nothing};
    }}
"""
QUOTIENTS: Final = """\
#pragma unroll
    for (int k = 0; k < {each}; ++k) {{
        const dagpu::index_t at = first + k * {width} + lane;
        if (at < length) out(o, at, n) = {quotient};
    }}
}}
"""
ONE: Final = """\
    if (mine && lane == 0) out(o, out.origin(1), n) = {name};
}}
"""
COMBINE: Final = {"largest": "maximum", "total": "add"}
"""The operation that combines elements to the number of this name."""


STEPS: Final[dict[str, tuple[str, ...]]] = {
    "whole": (), "largest": (), "total": ("largest",), "quotient": ("largest", "total")
}  # fmt: skip
"""For each step the numbers of spans that it reads."""


@final
class SoftmaxInput(NamedTuple):
    """The elements of a tensor (before, along, after): their text, and the group of each axis along which the kernel
    sees them."""

    elements: Elements
    source: GroupPattern

    def at(self, *places: str) -> str:
        """Return the text of an element in a register, of names of its places in the groups."""
        return self.elements.at(coordinate_texts(self.source.groups, places, self.elements.extent))

    @property
    def length(self) -> str:
        """The text of the extent along the axis."""
        axes = [self.elements.extent(axis) for axis, group in enumerate(self.source.groups) if group == 1]
        return " * ".join(axes) or "1"


@cache
def softmax_kernel(step: str, dtype: "np.dtype[Any]", source: GroupPattern, order: SoftmaxOrder) -> KernelSpec:
    """Return the kernel of a step: "whole" for a row of one span; "largest", "total" and "quotient" for longer ones.

    "largest" and "total" write a number for each span, of shape (before, spans, after). "total" reads what "largest"
    has written, and "quotient" what both have.
    """
    given = SoftmaxInput(array_elements("x", dtype, source.rank), source)
    return generated_kernel(
        "softmax",
        softmax_params(step, dtype, [tensor_input("x", dtype, source.rank)]),
        softmax_text("softmax", step, given, order),
        softmax_twin(step, dtype, source, order),
        (softmax_kernel.__wrapped__.__code__, 0),
        block=(order.threads,),
    )


def softmax_params(step: str, dtype: "np.dtype[Any]", inputs: Sequence[Param]) -> list[Param]:
    """Return the parameters of a step whose elements are of this type and computed from these inputs."""
    number = register_dtype(dtype)
    out = output("out", dtype if _writes_quotients(step) else number, 3)
    return [out, *inputs, *[tensor_input(f"{name}s", number, 3) for name in STEPS[step]]]


# ---- CUDA
def softmax_text(kernel: str, step: str, given: SoftmaxInput, order: SoftmaxOrder) -> str:
    """Return the text of a step, as a kernel of the name `kernel`."""
    dtype, known = given.elements.dtype, STEPS[step]
    number = register_dtype(dtype)
    text = _head(kernel, step, given, order)
    text += _earlier("largest", number, order) if known else _own("largest", number, order)
    if step != "largest":
        exp = operation_text("exp", number, ("below",)).text
        text += POWERS.format(
            each=EACH, number=register_type(number), width=order.width, exp=exp, nothing=identity_text("add", number)
        )
        text += _earlier("total", number, order) if "total" in known else _own("total", number, order)
    if _writes_quotients(step):
        return text + QUOTIENTS.format(each=EACH, width=order.width, quotient=store_text(dtype, "kept[k] / total"))
    return text + ONE.format(name=step)


def _writes_quotients(step: str) -> bool:
    return step in ("whole", "quotient")


def _head(kernel: str, step: str, given: SoftmaxInput, order: SoftmaxOrder) -> str:
    elements, final = given.elements, _writes_quotients(step)
    number = register_dtype(elements.dtype)
    helpers = {*elements.helpers, *operation_text("maximum", number, ("a", "b")).helpers}
    return HEAD.format(
        kernel=kernel,
        helpers=helper_texts(helpers) + elements.functions,
        target=memory_type(elements.dtype if final else number),
        formals=elements.formals + "".join([f", View<const {register_type(number)}, 3> {n}s" for n in STEPS[step]]),
        number=register_type(number),
        threads=order.threads,
        lane=f"/ {order.rows}" if order.across else f"% {order.width}",
        row=f"% {order.rows}" if order.across else f"/ {order.width}",
        outer="* 0" if order.across else "",
        inner="" if order.across else "* 0",
        first="" if final else f" * {order.span}",
        length=given.length,
        each=EACH,
        width=order.width,
        nothing=identity_text("maximum", number),
        load=given.at("o", "at", "n"),
    )


def _own(name: str, number: "np.dtype[Any]", order: SoftmaxOrder) -> str:
    """Return the text that combines the elements that the threads of a row keep."""
    return OWN.format(**_words(name, number)) + _lanes(name, number, order)


def _earlier(name: str, number: "np.dtype[Any]", order: SoftmaxOrder) -> str:
    """Return the text that combines the numbers of the spans of a row."""
    words = _words(name, number)
    return EARLIER.format(argument=f"{name}s", width=order.width, **words) + _lanes(name, number, order)


def _words(name: str, number: "np.dtype[Any]") -> dict[str, Any]:
    operation = COMBINE[name]
    return {
        "name": name,
        "number": register_type(number),
        "nothing": identity_text(operation, number),
        "each": EACH,
        "combine": operation_text(operation, number, (name, "next")).text,
    }


def _lanes(name: str, number: "np.dtype[Any]", order: SoftmaxOrder) -> str:
    """Return the text that combines the numbers of a row's lanes, and gives the result to all of them.

    Threads that are in one warp wait for that warp alone, and not for their block.
    """
    if order.width == 1:
        return ""
    apart = order.rows if order.across else 1
    part = f"{name}_part"
    lines = [f"__shared__ {register_type(number)} {part}[{order.threads}];", f"{part}[thread] = {name};"]
    half = order.width // 2
    while half:
        both = (f"{part}[thread]", f"{part}[thread + {half * apart}]")
        lines.append(_wait_for(2 * half * apart))
        lines.append(f"if (lane < {half}) {part}[thread] = {operation_text(COMBINE[name], number, both).text};")
        half //= 2
    begin = "row" if order.across else f"row * {order.width}"
    lines += [_wait_for(order.width * apart), f"{name} = {part}[{begin}];"]
    return "".join([f"    {line}\n" for line in lines])


def _wait_for(threads: int) -> str:
    """Return the statement that waits for this many neighbouring threads, a power of two."""
    return "__syncthreads();" if threads > 32 else "__syncwarp();"
