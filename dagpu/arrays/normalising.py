"""`softmax`: the op, its generated kernels and their NumPy twins.

Lanes of threads take the elements of a span in turn. Where elements of a row are neighbours in memory, and a row has
several lanes, a lane takes four neighbours at a time, and adds them to four numbers of its own, which it then adds up.
Otherwise it takes one, and adds it to one number. Lanes are added up by halves: each of 32 lanes t < 16 takes that of
lane t + 16, and so on, then their sums are. The numbers of the spans of a row are added up in the same way, one by one.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, NamedTuple, final

import numpy as np
from typing_extensions import TypeVar

from dagpu.arrays.reductions import checked_input
from dagpu.common.layout import Layout, Shape, bf16, f16, f32, f64
from dagpu.common.places import Origin, here, leaves_run
from dagpu.handles import Tensor
from dagpu.kernels.annotations import In
from dagpu.kernels.generated_launch import (
    AnyOp,
    array_call,
    first_output,
    generated_kernel,
    is_number,
    move_arguments,
    new_output,
    output,
    reshaped,
    tensor_input,
)
from dagpu.kernels.numpy_operations import Array, NumpyFunction, numpy_function
from dagpu.kernels.numpy_twin import PART, SCRATCH, in_groups, shaped, until_cancelled
from dagpu.kernels.operations import (
    helper_texts,
    memory_type,
    operation_text,
    register_dtype,
    register_type,
    store_text,
)
from dagpu.kernels.reduction_kernels import Combination, parts_of, reduce_lines
from dagpu.kernels.reduction_order import GROUP, identity_text, power_of_two
from dagpu.kernels.row_elements import (
    Elements,
    GroupPattern,
    around_axis,
    array_elements,
    coordinate_texts,
    neighbour_reads,
    one_axis,
)
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import UNCUT, Launch, Map, components_of
from dagpu.ops.kernel_spec import KernelSpec, Param

EACH: Final = (16, 32)
"""The elements that a thread keeps: of short rows and of rows whose elements are no neighbours, and of longer rows."""
WARP: Final = 32


@final
class SoftmaxOrder(NamedTuple):
    """How a block walks over a tensor (before, along, after): its threads, the lanes of a row, whether neighbouring
    threads have rows side by side, or elements of one row, and the elements that a thread keeps."""

    threads: int
    width: int
    across: bool
    each: int

    @property
    def span(self) -> int:
        """The number of elements of a row that a block takes."""
        return self.width * self.each

    @property
    def beside(self) -> int:
        """The number of neighbours that a lane takes at a time."""
        return 1 if self.across else GROUP

    @property
    def partial(self) -> int:
        """The number of sums of a lane."""
        return 1 if self.width == 1 else self.beside

    @property
    def folds(self) -> tuple[int, ...]:
        """The distances of the lanes that are added up: in groups of 32, then of these."""
        steps = [1 << bit for bit in reversed(range(self.width.bit_length() - 1))]
        return (*[step for step in steps if step < WARP], *[step for step in steps if step >= WARP])

    @property
    def rows(self) -> int:
        """The number of rows of a block."""
        return self.threads // self.width

    @property
    def outer(self) -> int:
        """The number of rows of a block that lie before the axis."""
        return 1 if self.across else self.rows

    @property
    def inner(self) -> int:
        """The number of rows of a block that lie after the axis."""
        return self.rows if self.across else 1


def softmax_order(length: int, neighbours: int) -> SoftmaxOrder:
    """Return the order for rows of this length, of which this many lie side by side in memory."""
    few, many = EACH
    if neighbours == 1:
        each = few if length <= WARP * few else many
        width = power_of_two(-(-length // each))
        threads = 256 if width <= 256 or width > 512 else 512  # a longer row has several spans
        return SoftmaxOrder(threads, min(threads, width), False, each)
    side = min(32, power_of_two(neighbours))
    threads = 256 if length <= 256 // side * few or length > 1024 // side * few else 1024
    return SoftmaxOrder(threads, min(threads // side, power_of_two(-(-length // few))), True, few)


# ---- NumPy
def softmax_twin(step: str, dtype: "np.dtype[Any]", source: GroupPattern, order: SoftmaxOrder) -> Callable[..., None]:
    """Return the NumPy twin of a step: `body(out, x, *known)`. It works on a part of the elements at a time, so that
    their exponentials stay in the processor's cache."""
    number = register_dtype(dtype)
    exp = numpy_function("exp", number, number)

    def body(out: Any, x: Any, *known: Any) -> None:
        rows, of_rows = in_groups(x, source.groups, source.size), _numbers_of_rows(known, order)
        before, length, after = rows.shape
        beside = max(1, PART // min(length, order.span))
        for begin in range(0, after, beside):
            cut = slice(begin, begin + beside)
            parts = parts_of(order.span, length, before, 0, max(1, PART // after))
            for elements, chosen, spans in until_cancelled(parts):
                part = rows[chosen, elements, cut].astype(number, copy=False)
                given = [each[chosen, :, cut] for each in of_rows]
                target = out[chosen, spans if step in ("largest", "total") else elements, cut]
                lines = part.reshape(-1, min(part.shape[1], order.span), part.shape[2])
                _step_of_lines(step, exp, lines, given, order, target)

    return body


def _numbers_of_rows(known: Sequence[Array], order: SoftmaxOrder) -> list[Array]:
    """Return the largest element of each row and the total of each row, of shape (before, 1, after), of those of its
    spans, as far as they are `known`."""
    return [_sum_of_lanes(each, order, 1) if at else _largest(each) for at, each in enumerate(known)]


def _step_of_lines(
    step: str, exp: NumpyFunction, lines: Array, given: Sequence[Array], order: SoftmaxOrder, target: Array
) -> None:
    """Compute a step of lines of shape (lines, elements, after), which are rows or the spans of one row. `target` has
    as many elements as the result. `given` are the largest elements and the totals of the rows, as far as the step
    reads them."""
    largest = given[0] if given else _largest(lines)
    if step == "largest":
        target[...] = largest.reshape(target.shape)
        return
    taken = SCRATCH.take()
    powers = np.subtract(lines, largest, shaped(taken, lines.shape, lines.dtype))
    exp(powers, out=powers)
    total = given[1] if len(given) > 1 else _sum_of_lanes(powers, order, order.partial)
    if step == "total":
        target[...] = total.reshape(target.shape)
    else:
        factor = lines.dtype.type(1) / total
        if target.dtype == lines.dtype:
            np.multiply(powers, factor, target.reshape(lines.shape))
        else:
            target[...] = np.multiply(powers, factor, powers).reshape(target.shape)
    SCRATCH.give_back(taken)


def _largest(numbers: Array) -> Array:
    """Return the largest number of all lanes: (lines, any, after) becomes (lines, 1, after). It has no order, and the
    exponential of a difference does not tell the two zeros apart."""
    found: Array = np.maximum.reduce(numbers, 1, keepdims=True)
    return found


def _sum_of_lanes(numbers: Array, order: SoftmaxOrder, partial: int) -> Array:
    """Return the sum of numbers of which the lanes add each to one of `partial` sums of their own, in turn:
    (lines, any, after) becomes (lines, 1, after)."""
    sums = _in_turn(numbers, order.width * partial)
    sums = sums.reshape(order.width, partial, *sums.shape[1:])
    lanes: Array = sums[:, 0]
    for part in range(1, partial):
        lanes = lanes + sums[:, part]
    groups = lanes.reshape(-1, min(WARP, order.width), *lanes.shape[1:])
    for half in order.folds:
        if half < WARP:
            groups = groups[:, :half] + groups[:, half:]
        else:
            groups = groups[: half // WARP] + groups[half // WARP :]
    found: Array = groups[0, 0][:, None]
    return found


def _in_turn(numbers: Array, columns: int) -> Array:
    """Add numbers to columns in turn: (lines, any, after) becomes (columns, lines, after)."""
    (lines, length, after), does = numbers.shape, Combination(np.add, numbers.dtype.type(-0.0))
    each, rest = divmod(length, columns)
    found: Array
    if not each:
        found, rest = np.zeros((columns, lines, after), numbers.dtype), 0
        found[:length] = numbers.transpose(1, 0, 2)
    elif after > 1:
        block = numbers[:, : length - rest].reshape(lines, each, columns * after)
        found = does.along(1, block).reshape(lines, columns, after).transpose(1, 0, 2)
    elif columns > 1:
        block = numbers[:, : length - rest].reshape(lines, each, columns)
        found = np.ascontiguousarray(reduce_lines(does, block).T)[..., None]
    elif lines > 1:
        found = does.along(0, np.ascontiguousarray(numbers[..., 0].T))[None, :, None]
    else:
        found = np.add.accumulate(numbers, axis=1)[:, -1:]
    if rest:
        found[:rest] += numbers[:, length - rest :].transpose(1, 0, 2)
    return found


# ---- normalising
#
# `softmax`: exponentials along an axis, divided by their sum.
#
# A row of up to 32 elements for each lane of a block is computed by one launch, which reads it once and keeps it in
# registers. A longer row is cut into spans: one launch finds the largest element of each span, one adds up the
# exponentials of each span, and one writes the quotients.

_F = TypeVar("_F", f16, bf16, f32, f64)


@leaves_run
def softmax(x: In[_F], axis: int = -1) -> DeviceOp[Tensor[_F], Any]:
    """Return `exp(x - m) / s` along an axis, where m is the largest element of the row and s the sum of its
    exponentials.

    Exponentials are within 2 ulp, are added in an order that follows from the shape alone, and are multiplied by 1 / s.
    So results differ between devices by a few ulp, and are the same in every run on one. f16 and bf16 are computed in
    f32, and the result is rounded once. A row is NaN if it has a NaN or positive infinity, or negative infinity alone.

    Args:
        x: a tensor of a floating type, or an op whose result is one.
        axis: one axis; a negative number counts from the last one.

    Raises:
        KernelArgumentError: the elements are not floats.
        ShapeError: `x` has no such axis.
    """
    origin = here()

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        layout = checked_input("softmax", layouts[0], "float", origin)
        source = around_axis(layout, one_axis(axis, len(layout.shape), "softmax", origin))
        (moved,) = move_arguments("softmax", arguments, origin)
        op = normalise(
            [reshaped(moved, layout, source.passed, origin)],
            source.extents,
            layout.dtype,
            lambda step, order: softmax_kernel(step, layout.dtype, source.pattern, order),
            origin,
        )
        result: AnyOp = reshaped(op, Layout(layout.dtype, source.extents, (), 0), layout.shape, origin)
        return result

    return array_call("softmax", ("x",), (x,), build, origin)


def normalise(
    passed: Sequence[Any],
    extents: Shape,
    dtype: "np.dtype[Any]",
    kernel_of: Callable[[str, SoftmaxOrder], KernelSpec],
    origin: Origin,
) -> AnyOp:
    """Return the op of the quotients, of the shape `extents`: (before, along, after).

    `passed` are the inputs of each launch: handles that have moved, ops and numbers. `kernel_of` returns the kernel of
    a step.
    """
    before, length, after = extents
    order = softmax_order(length, after)
    target = new_output(extents, dtype, (order.outer, order.span, order.inner), origin)
    spans = -(-length // order.span)
    if spans <= 1:
        return first_output(kernel_of("whole", order), (target, *passed), origin)
    number = register_dtype(dtype)
    known: list[AnyOp] = []
    for step in ("largest", "total"):
        part = new_output((before, spans, after), number, (order.outer, 1, order.inner), origin)
        made, *again = components_of(Launch(kernel_of(step, order), (part, *passed, *known), origin), origin)
        passed = [arg if is_number(arg) else op for arg, op in zip(passed, again, strict=False)]
        known = [*again[len(passed) :], Map(made, UNCUT, origin)]
    return first_output(kernel_of("quotient", order), (target, *passed, *known), origin)


# ---- softmax kernels
#
# The generated kernels of `softmax`, as CUDA text. Their NumPy twins, and the order of additions, are above.

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
