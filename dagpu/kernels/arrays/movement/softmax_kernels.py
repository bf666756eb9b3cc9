"""The generated kernels of `softmax`, as CUDA text. `softmax_twins` has the NumPy twins, and the order of additions."""

from collections.abc import Sequence
from functools import cache
from typing import Any, Final, NamedTuple, final

import numpy as np

from dagpu.kernels.arrays.movement.axis_groups import GroupPattern
from dagpu.kernels.arrays.movement.softmax_twins import SoftmaxOrder, softmax_twin
from dagpu.kernels.arrays.reducing.reduction_steps import identity_text
from dagpu.kernels.expressions.operations.cuda_helpers import helper_texts
from dagpu.kernels.expressions.operations.cuda_operations import memory_type, operation_text, register_type, store_text
from dagpu.kernels.expressions.operations.numpy_operations import register_dtype
from dagpu.kernels.generated.generated_launch import generated_kernel, output, tensor_input
from dagpu.kernels.generated.row_elements import Elements, array_elements, coordinate_texts, neighbour_reads
from dagpu.ops.kernel_spec import KernelSpec, Param

HEAD: Final = """\
{helpers}\
__global__ void __launch_bounds__({threads}) {kernel}(Tile<{target}, 3> out{formals}) {{
    const int thread = threadIdx.x, lane = thread {lane}, row = thread {row};
    const dagpu::index_t before = out.origin(0) + row {outer}, after = out.origin(2) + row {inner};
    const bool mine = row {outer} < out.tile_extent(0) && row {inner} < out.tile_extent(2);
    const dagpu::index_t first = out.origin(1){first}, length = mine ? {length} : 0;
    {number} kept[{each}];
"""
READ: Final = """\
#pragma unroll
    for (int k = 0; k < {each}; ++k) {{
        const dagpu::index_t at = {at};
        kept[k] = {nothing};
        if (at < length) kept[k] = {load};
    }}
"""
READ_SIDES: Final = """\
    // Neighbours are read and written by one instruction where that is possible; elements beyond the row are {nothing}.
    const bool sides = {length} % {beside} == 0 && {conditions};
    if (sides) {{
#pragma unroll
        for (int k = 0; k < {each}; k += {beside}) {{
            const dagpu::index_t at = {at};
#pragma unroll
            for (int n = 0; n < {beside}; ++n) kept[k + n] = {nothing};
            if (at < length) {{
{reads}#pragma unroll
                for (int n = 0; n < {beside}; ++n) kept[k + n] = {element};
            }}
        }}
    }} else {{
{apart}    }}
"""
OWN: Final = """\
    {number} {name}s[{partial}], {name};
#pragma unroll
    for (int n = 0; n < {partial}; ++n) {name}s[n] = kept[n];
#pragma unroll
    for (int k = {partial}; k < {each}; ++k) {name}s[k % {partial}] = {combine};
    {name} = {name}s[0];
#pragma unroll
    for (int n = 1; n < {partial}; ++n) {name} = {join};
"""
EARLIER: Final = """\
    {number} {name} = {nothing};
    if (mine)
        for (dagpu::index_t k = lane; k < {argument}.extent(1); k += {width}) {{
            const {number} next = {argument}(before, k, after);
            {name} = {combine};
        }}
"""
POWERS: Final = """\
#pragma unroll
    for (int k = 0; k < {each}; ++k) {{
        const {number} below = kept[k] - largest;
        kept[k] = {exp};
    }}
"""
SHARE: Final = """\
    const {number} share = 1 / total;
"""
WRITE: Final = """\
#pragma unroll
    for (int k = 0; k < {each}; ++k) {{
        const dagpu::index_t at = {at};
        if (at < length) out(before, at, after) = {quotient};
    }}
"""
WRITE_SIDES: Final = """\
    if (sides && dagpu::has_sides<{beside}>(out.data(), out.stride(1))) {{
#pragma unroll
        for (int k = 0; k < {each}; k += {beside}) {{
            const dagpu::index_t at = {at};
            dagpu::Side<{target}, {beside}> side;
#pragma unroll
            for (int n = 0; n < {beside}; ++n) side.at[n] = {quotient};
            if (at < length) *reinterpret_cast<dagpu::Side<{target}, {beside}>*>(&out(before, at, after)) = side;
        }}
    }} else {{
{apart}    }}
"""
ONE: Final = """\
    if (mine && lane == 0) out(before, out.origin(1), after) = {name};
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
    known, number = STEPS[step], register_dtype(given.elements.dtype)
    text = _head(kernel, step, given, order) + _read(given, order)
    text += _earlier("largest", number, order) if known else _own("largest", number, order)
    if step != "largest":
        exp = operation_text("exp", number, ("below",)).text
        text += POWERS.format(each=order.each, number=register_type(number), exp=exp)
        text += _earlier("total", number, order) if "total" in known else _own("total", number, order)
    if not _writes_quotients(step):
        return text + ONE.format(name=step) + "}\n"
    return text + SHARE.format(number=register_type(number)) + _write(given.elements.dtype, order) + "}\n"


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
        each=order.each,
    )


def _read(given: SoftmaxInput, order: SoftmaxOrder) -> str:
    """Return the text that reads the elements of a thread."""
    number = register_dtype(given.elements.dtype)
    nothing, beside = identity_text("maximum", number), order.beside
    apart = READ.format(each=order.each, at=_place(order), nothing=nothing, load=given.at("before", "at", "after"))
    if beside == 1:
        return apart
    axes = [axis for axis, group in enumerate(given.source.groups) if group == 1]
    places = coordinate_texts(given.source.groups, ("before", "at", "after"), given.elements.extent)
    sides = neighbour_reads(given.elements.operands, places, axes[-1] if axes else None, beside)
    return READ_SIDES.format(
        length=given.length,
        beside=beside,
        conditions=" && ".join(sides[0]) or "false",
        each=order.each,
        at=_place(order, sides=True),
        nothing=nothing,
        reads="".join([f"                {read}\n" for read in sides[1]]),
        element=given.elements.value(sides[2]),
        apart=_indented(apart),
    )


def _write(dtype: "np.dtype[Any]", order: SoftmaxOrder) -> str:
    """Return the text that writes the quotients of a thread."""
    apart = WRITE.format(each=order.each, at=_place(order), quotient=store_text(dtype, "kept[k] * share"))
    if order.beside == 1:
        return apart
    return WRITE_SIDES.format(
        each=order.each,
        beside=order.beside,
        at=_place(order, sides=True),
        target=memory_type(dtype),
        quotient=store_text(dtype, "kept[k + n] * share"),
        apart=_indented(apart),
    )


def _place(order: SoftmaxOrder, *, sides: bool = False) -> str:
    """Return the text of the place of element k of a thread in its row; with `sides`, k is that of the first of some
    neighbours."""
    if order.beside == 1:
        return f"first + k * {order.width} + lane"
    first = f"first + (k / {order.beside} * {order.width} + lane) * {order.beside}"
    return first if sides else f"{first} + k % {order.beside}"


def _indented(text: str) -> str:
    return "".join([line if line.startswith("#") else f"    {line}" for line in text.splitlines(keepends=True)])


def _own(name: str, number: "np.dtype[Any]", order: SoftmaxOrder) -> str:
    """Return the text that combines the elements that the threads of a row keep."""
    operation, partial = COMBINE[name], order.partial
    return OWN.format(
        name=name,
        number=register_type(number),
        each=order.each,
        partial=partial,
        combine=operation_text(operation, number, (f"{name}s[k % {partial}]", "kept[k]")).text,
        join=operation_text(operation, number, (name, f"{name}s[n]")).text,
    ) + _lanes(name, number, order)


def _earlier(name: str, number: "np.dtype[Any]", order: SoftmaxOrder) -> str:
    """Return the text that combines the numbers of the spans of a row."""
    operation = COMBINE[name]
    return EARLIER.format(
        argument=f"{name}s",
        name=name,
        number=register_type(number),
        nothing=identity_text(operation, number),
        width=order.width,
        combine=operation_text(operation, number, (name, "next")).text,
    ) + _lanes(name, number, order)


def _lanes(name: str, number: "np.dtype[Any]", order: SoftmaxOrder) -> str:
    """Return the text that combines the numbers of a row's lanes, and gives the result to all of them."""
    if order.width == 1:
        return ""
    lines = _by_memory(name, number, order) if order.across else _by_shuffles(name, number, order)
    return _indented("".join([f"{line}\n" for line in lines]))


def _by_shuffles(name: str, number: "np.dtype[Any]", order: SoftmaxOrder) -> list[str]:
    """Return the lines for lanes that are neighbours. A lane and its partner add the same two numbers, so all have the
    same bits."""
    type_, warps = register_type(number), order.width // 32
    other = operation_text(COMBINE[name], number, (name, "other")).text
    lines = [
        "#pragma unroll",
        f"for (int step = {min(order.width, 32) // 2}; step > 0; step /= 2) {{",
        f"    const {type_} other = __shfl_xor_sync(0xffffffffu, {name}, step);",
        f"    {name} = {other};",
        "}",
    ]
    if warps > 1:
        part = f"{name}_part"
        pair = operation_text(COMBINE[name], number, (f"of_{name}[warp]", f"of_{name}[warp + half]")).text
        lines += [
            f"__shared__ {type_} {part}[{order.threads // 32}];",
            f"if (thread % 32 == 0) {part}[thread / 32] = {name};",
            "__syncthreads();",
            f"{type_} of_{name}[{warps}];",
            "#pragma unroll",
            f"for (int warp = 0; warp < {warps}; ++warp) of_{name}[warp] = {part}[row * {warps} + warp];",
            "#pragma unroll",
            f"for (int half = {warps // 2}; half > 0; half /= 2)",
            "#pragma unroll",
            f"    for (int warp = 0; warp < half; ++warp) of_{name}[warp] = {pair};",
            f"{name} = of_{name}[0];",
        ]
    return lines


def _by_memory(name: str, number: "np.dtype[Any]", order: SoftmaxOrder) -> list[str]:
    """Return the lines for lanes between which other rows lie. Threads that are in one warp wait for that warp alone,
    and not for their block."""
    part = f"{name}_part"
    lines = [f"__shared__ {register_type(number)} {part}[{order.threads}];", f"{part}[thread] = {name};"]
    for half in order.folds:
        both = (f"{part}[thread]", f"{part}[thread + {half * order.rows}]")
        among = f"lane % 32 < {half}" if half < 32 < order.width else f"lane < {half}"
        lines.append(_wait_for(2 * half * order.rows))
        lines.append(f"if ({among}) {part}[thread] = {operation_text(COMBINE[name], number, both).text};")
    return [*lines, _wait_for(order.width * order.rows), f"{name} = {part}[row];"]


def _wait_for(threads: int) -> str:
    """Return the statement that waits for this many neighbouring threads, a power of two."""
    return "__syncthreads();" if threads > 32 else "__syncwarp();"
