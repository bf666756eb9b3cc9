"""Reductions over axes: the public functions, their generated kernels and the NumPy twins.

All combine elements in an order that follows from the shape alone (`reduction_order`), in one pass or two. So the bits
of a result are the same on every device, in every schedule and in every run.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, Final, TypeAlias

import numpy as np
from typing_extensions import TypeVar

from dagpu.common.errors import ShapeError
from dagpu.common.layout import Layout, Shape, bf16, bool_, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from dagpu.common.places import Origin, describe, here, leaves_run
from dagpu.common.wrong_arguments import as_whole_number, check_flag, format_value
from dagpu.handles import Tensor
from dagpu.kernels.annotations import In
from dagpu.kernels.expression_text import safe_name
from dagpu.kernels.generated_launch import (
    AnyOp,
    array_call,
    first_output,
    generated_kernel,
    move_arguments,
    new_output,
    number_input,
    output,
    refused_call,
    refused_type,
    reshaped,
    tensor_input,
)
from dagpu.kernels.numpy_twin import NBYTES, ElementBlocks, GroupedBlocks, in_groups, until_cancelled
from dagpu.kernels.operations import (
    DOMAINS,
    Domain,
    helper_texts,
    memory_type,
    operation_text,
    register_type,
    store_text,
)
from dagpu.kernels.reduction_order import (
    COUNTED,
    STEPS,
    THREADS,
    Array,
    Combination,
    ReducedAxes,
    ReductionOrder,
    RowWalk,
    finish_text,
    identity,
    identity_text,
    merge_axes,
    number_type,
    parts_of,
    reduce_in_order,
    reduction_order,
    result_type,
    start_text,
)
from dagpu.kernels.row_elements import Elements, array_elements
from dagpu.ops.base import DeviceOp
from dagpu.ops.creation import Alloc
from dagpu.ops.initializers import Constant
from dagpu.ops.kernel_spec import KernelSpec, Param

_D = TypeVar("_D", bound=np.generic)
# Constrained, not bounded: handles are covariant, and a bound would accept bool, which has no sum.
_N = TypeVar("_N", f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64)
_F = TypeVar("_F", f16, bf16, f32, f64)

Axis: TypeAlias = int | tuple[int, ...] | None
"""One axis, several, or all of them (None). A negative number counts from the last axis."""


@leaves_run
def sum(x: In[_N], axis: Axis = None, *, keepdims: bool = False) -> DeviceOp[Tensor[_N], Any]:
    """Return the sum over some axes, of the element type of `x`.

    Integers wrap and are not widened: convert before, `convert(t, i64)`, where a sum may not fit. f16 and bf16 are
    added in f32, and the sum is rounded once. Nothing adds up to 0.

    Args:
        x: a tensor, or an op whose result is one.
        axis: the axes that are summed over; None for all.
        keepdims: True keeps them, with extent 1.

    Raises:
        ShapeError: `x` has no such axis.
    """
    return _reduce("sum", x, axis, keepdims)


@leaves_run
def prod(x: In[_N], axis: Axis = None, *, keepdims: bool = False) -> DeviceOp[Tensor[_N], Any]:
    """Return the product over some axes, of the element type of `x`. As for `sum`, integers wrap; f16 and bf16 are
    multiplied in f32. The product of nothing is 1."""
    return _reduce("prod", x, axis, keepdims)


@leaves_run
def mean(x: In[_F], axis: Axis = None, *, keepdims: bool = False) -> DeviceOp[Tensor[_F], Any]:
    """Return the mean over some axes: the sum divided by the number of elements. The mean of nothing is NaN."""
    return _reduce("mean", x, axis, keepdims)


@leaves_run
def norm(x: In[_F], axis: Axis = None, *, keepdims: bool = False) -> DeviceOp[Tensor[_F], Any]:
    """Return the Euclidean norm over some axes: the square root of the sum of squares.

    Squares are not scaled: they overflow from about 1.8e19 on in f32, and for f16 and bf16, which are squared in f32.
    """
    return _reduce("norm", x, axis, keepdims)


@leaves_run
def amin(x: In[_N], axis: Axis = None, *, keepdims: bool = False) -> DeviceOp[Tensor[_N], Any]:
    """Return the smallest element over some axes. A NaN wins, and -0 is below 0.

    Raises:
        ShapeError: `x` has no such axis, or no elements along it.
    """
    return _reduce("amin", x, axis, keepdims)


@leaves_run
def amax(x: In[_N], axis: Axis = None, *, keepdims: bool = False) -> DeviceOp[Tensor[_N], Any]:
    """Return the largest element over some axes. A NaN wins, and -0 is below 0.

    Raises:
        ShapeError: `x` has no such axis, or no elements along it.
    """
    return _reduce("amax", x, axis, keepdims)


@leaves_run
def any(x: In[_D], axis: Axis = None, *, keepdims: bool = False) -> DeviceOp[Tensor[bool_], Any]:
    """Return true where an element over some axes is not 0. A NaN is not 0. False for nothing."""
    return _reduce("any", x, axis, keepdims)


@leaves_run
def all(x: In[_D], axis: Axis = None, *, keepdims: bool = False) -> DeviceOp[Tensor[bool_], Any]:
    """Return true where no element over some axes is 0. True for nothing."""
    return _reduce("all", x, axis, keepdims)


# ---- axes
def normal_axes(axis: object, rank: int, name: str, origin: Origin) -> tuple[int, ...]:
    """Return the axes that an argument `axis` names, counted from the first.

    Raises:
        ShapeError: it is not a number, a tuple of different numbers, or None, or there is no such axis.
    """
    given = range(rank) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    found = [as_whole_number(each) for each in given]
    axes = tuple([each % rank for each in found if each is not None and -rank <= each < rank])
    if len(axes) != len(found) or len(set(axes)) != len(axes):
        raise ShapeError(
            f"{name} at {describe(origin)}: axis is {format_value(axis)}, but x has {rank} axes. Give one of them, a "
            "tuple of different ones, or None for all."
        )
    return axes


def kept_shape(shape: Shape, axes: tuple[int, ...], keepdims: bool) -> Shape:
    """Return the shape of a result: without the reduced axes, or with extent 1 there."""
    if keepdims:
        return tuple([1 if axis in axes else n for axis, n in enumerate(shape)])
    return tuple([n for axis, n in enumerate(shape) if axis not in axes])


def checked_input(name: str, layout: Layout | None, domain: Domain, origin: Origin, param: str = "x") -> Layout:
    """Return the layout of an input, the argument `param` of a function of tensors.

    Raises:
        KernelArgumentError: it is a number, or a tensor of an element type that the function does not take.
    """
    if layout is None:
        raise refused_call(name, origin, f"{param} is a number", "Pass a tensor: full((1,), x), say")
    if layout.dtype not in DOMAINS[domain]:
        raise refused_type(name, origin, layout.dtype)
    return layout


def no_elements(name: str, origin: Origin) -> ShapeError:
    """Return the error for the smallest or largest of no elements."""
    return ShapeError(
        f"{name} at {describe(origin)}: x has no elements along the axis, so there is none to choose. Append one "
        "before, or test its shape."
    )


# ---- passes
def _reduce(name: str, x: Any, axis: object, keepdims: bool) -> AnyOp:
    origin = here()
    kept = check_flag(keepdims, name, origin, "keepdims")

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        layout = checked_input(name, layouts[0], STEPS[name].domain, origin)
        axes = normal_axes(axis, len(layout.shape), name, origin)
        shape = kept_shape(layout.shape, axes, kept)
        merged = merge_axes(
            layout.shape, tuple([a in axes for a in range(len(layout.shape))]), contiguous=layout.contiguous
        )
        if not merged.length:
            nothing = of_nothing(name, layout.dtype, shape, origin)
            move_arguments(name, arguments, origin)
            return nothing
        (moved,) = move_arguments(name, arguments, origin)
        found = _passes(name, reshaped(moved, layout, merged.shape, origin), layout.dtype, merged, origin)
        return with_shape(found, result_type(name, layout.dtype), (merged.rows, 1), shape, origin)

    return array_call(name, ("x",), (x,), build, origin)


def _passes(name: str, x: Any, dtype: "np.dtype[Any]", axes: ReducedAxes, origin: Origin) -> AnyOp:
    """Return the op of all passes over the rows of `x`. Its result has the shape (rows, 1)."""
    return later_passes(name, x, dtype, axes, axes.length, origin, first=True)


def later_passes(
    name: str, x: Any, dtype: "np.dtype[Any]", axes: ReducedAxes, count: float, origin: Origin, *, first: bool = False
) -> AnyOp:
    """Return the op of the passes over the rows of `x`, which are numbers of an earlier pass, or with `first` elements
    of `dtype`. `count` is what the last pass of a mean divides by. The result has the shape (rows, 1)."""
    rows = axes.rows
    while True:
        order = reduction_order(axes.length, axes.neighbours)
        spans = -(-axes.length // order.span)
        last = spans == 1
        spec = reduction_kernel(name, dtype, axes.reduced, order, first, last)
        target = new_output((rows, spans), spec.params[0].dtype or dtype, (order.rows, 1), origin)
        numbers = [count] if len(spec.params) == 3 else []
        x = first_output(spec, (target, x, *numbers), origin)
        if last:
            found: AnyOp = x
            return found
        axes, first = ReducedAxes((rows, spans), (False, True)), False


def with_shape(op: AnyOp, dtype: "np.dtype[Any]", before: Shape, shape: Shape, origin: Origin) -> AnyOp:
    """Return an op whose result has the shape `before` with another shape."""
    result: AnyOp = reshaped(op, Layout(dtype, before, (), 0), shape, origin)
    return result


def of_nothing(name: str, dtype: "np.dtype[Any]", shape: Shape, origin: Origin) -> AnyOp:
    """Return the op of a reduction over no elements.

    Raises:
        ShapeError: there is no smallest and no largest one, and some are asked for.
    """
    if name in ("amin", "amax") and 0 not in shape:
        raise no_elements(name, origin)
    number = number_type(name, dtype)
    value = 0.0 if STEPS[name].operation == "add" else identity(STEPS[name].operation, number).item()
    value = float("nan") if STEPS[name].finish in COUNTED else value
    return Alloc(shape, result_type(name, dtype), Constant(value), origin)


# ---- reduction kernels
#
# The generated kernels of reductions: one pass over rows, as CUDA text.

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


# ---- reduction twins
#
# The NumPy twins of reductions: one pass over rows, with the bits of the CUDA text.
#
# Sums and products of floats follow the order of the kernel. Whatever has the same bits in any order is left to NumPy,
# which has a faster one: smallest and largest elements, tests, and the numbers of integers, which wrap.


@cache
def _groups(reduced: tuple[bool, ...]) -> tuple[int, ...]:
    """Return the group of each axis of an input, that of the reduced ones before that of the others."""
    return tuple([int(not kind) for kind in reduced])


def rows_of(x: Array | ElementBlocks, reduced: tuple[bool, ...]) -> Array | GroupedBlocks:
    """Return an input as an array of shape (length of a row, rows), or as what reads blocks of it."""
    return in_groups(x, _groups(reduced), 2)


def pass_twin(
    name: str, number: "np.dtype[Any]", reduced: tuple[bool, ...], order: ReductionOrder, ends: tuple[bool, bool]
) -> Callable[..., None]:
    """Return the NumPy twin of a pass: `body(out, x, count=None)`. `ends` says whether it is the first pass, and the
    last."""
    step = STEPS[name]
    start, finish = step.start if ends[0] else "itself", step.finish if ends[1] else "itself"
    if step.operation in ("add", "multiply") and number.kind == "f":
        combine = np.add if step.operation == "add" else np.multiply
        does = Combination(combine, identity(step.operation, number), start == "square")
        in_spans = partial(reduce_in_order, does, order)
    else:
        in_spans = partial(_in_any_order, step.operation, start == "test", order.span)

    def body(out: Any, x: Any, count: Any = None) -> None:
        rows = rows_of(x, reduced)
        if out.dtype == number and finish == "itself":
            in_spans(rows, out)
            return
        found = np.empty(out.shape, number)
        in_spans(rows, found)
        if finish in COUNTED:
            found /= number.type(count)
        if finish in ("sqrt", "root"):
            np.sqrt(found, out=found)
        np.copyto(out, found, casting="unsafe")

    return body


# ---- in any order
LARGE: Final = 1 << 22
"""The number of elements that NumPy reduces at a time, after which a cancelled run stops. Elements that have to be
converted first are so in smaller parts."""

_WHOLE: Final[dict[str, "np.ufunc"]] = {
    "add": np.add, "multiply": np.multiply, "minimum": np.minimum, "maximum": np.maximum,
    "bitwise_or": np.logical_or, "bitwise_and": np.logical_and,
}  # fmt: skip


def _in_any_order(operation: str, test: bool, span: int, rows: Array | GroupedBlocks, found: Array) -> None:
    """Reduce rows of shape (length, rows) to the numbers of their spans, of shape (rows, spans). With `test`, or for
    bools, an element counts as true unless it is 0."""
    length, total = rows.shape
    in_memory = isinstance(rows, np.ndarray) and (test or rows.dtype == found.dtype)
    size = LARGE if in_memory else NBYTES // found.itemsize
    for elements, chosen, spans in until_cancelled(parts_of(span, length, total, 0, size)):
        target = found[chosen, spans].T
        _reduce_whole(operation, test, rows[elements, chosen].reshape(len(target), -1, target.shape[1]), target)


def _reduce_whole(operation: str, test: bool, block: Array, found: Array) -> None:
    """Reduce elements of shape (spans, elements, rows) to (spans, rows)."""
    function = _WHOLE[operation]
    if test:
        function.reduce(block, 1, None, found)
        return
    numbers = block.astype(found.dtype, copy=False)
    function.reduce(numbers, 1, found.dtype, found)
    if found.dtype.kind == "f" and np.count_nonzero(found) < found.size:
        # NumPy leaves open which of two zeros it gives. Among whole numbers with the same bits, -0 is the lowest, other
        # negative numbers follow it, and 0 is the lowest of all others.
        whole, zeros = function.reduce(numbers.view(f"i{numbers.itemsize}"), 1), found == 0
        found[zeros] = np.where(whole[zeros] < 0, found.dtype.type(-0.0), found.dtype.type(0))
