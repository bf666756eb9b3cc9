"""`nonzero`, `compress`, `unique` and `unique_counts`: elements and places that a mask says, and different elements.

Their number is a value of the run. The running sums of a mask say how many of its elements hold so far, so the k-th
place is the first one whose sum is k, which a binary search finds: no thread waits for another one, and the result does
not depend on an order.

The last sum is how many there are. Where the length of the result is to be that, the host reads this one number, and
builds the rest of the op with it. Where the caller says a length, nothing is read: places beyond the last one get a
number instead.
"""

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any, Final, NamedTuple, TypeAlias, final

import numpy as np
from typing_extensions import TypeVar

from dagpu.arrays.counting import Side, searched
from dagpu.arrays.element_functions import where
from dagpu.arrays.gathering import taken
from dagpu.arrays.reductions import checked_input
from dagpu.arrays.running_sums import scanned
from dagpu.arrays.sorting import radix_sorted
from dagpu.arrays.stencils import Neighbours, Stencil, stencil
from dagpu.common.errors import ShapeError
from dagpu.common.layout import (
    Layout,
    Shape,
    bf16,
    bool_,
    contiguous_layout,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    u8,
    u16,
    u32,
    u64,
)
from dagpu.common.places import Origin, describe, here, leaves_run
from dagpu.common.wrong_arguments import as_whole_number, wrong_argument
from dagpu.handles import Tensor
from dagpu.kernels.annotations import In
from dagpu.kernels.element import Elem, trace_expression
from dagpu.kernels.expression import Expression
from dagpu.kernels.generated_launch import (
    AnyOp,
    array_call,
    contiguous_copy,
    move_arguments,
    refused_call,
    reshaped,
)
from dagpu.kernels.operations import DOMAINS, type_name
from dagpu.kernels.row_elements import one_axis
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import SHARE, ByResults, Map, Then, ToHost, Value, Zip
from dagpu.ops.creation import Alloc, filled
from dagpu.ops.initializers import Arange, Constant

_D = TypeVar("_D", bound=np.generic)
# Constrained, not bounded: handles are covariant, and these types have an order.
_V = TypeVar("_V", f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, bool_)

_I64: Final = np.dtype(np.int64)
_I32: Final = np.dtype(np.int32)


@leaves_run
def nonzero(x: In[_D], *, size: int | None = None, fill_value: int = 0) -> DeviceOp[tuple[Tensor[i64], ...], Any]:
    """Return the places of the elements that are not 0, in C order: a tuple with one tensor of i64 for each axis.

    `nonzero(mask)` has the places where a mask is true, and `(places,) = nonzero(t).sync()` those of a tensor with one
    axis. A NaN is not 0.

    Without a `size` the length of the results is a value of the run: the host waits until the device has counted,
    reads one number, and then submits the rest. So no CUDA graph holds the op (`graph()` raises a CaptureError). A
    pipeline or a feed with it is right, but is traced again in each run, and a pipeline warns of that (a
    RuntimeWarning). With a `size` the results have this length, nothing waits, and the op is part of every plan, graph
    and pipeline.

    Args:
        x: a tensor with one axis at least, or an op whose result is one.
        size: the length of the results. The first places are kept, and `fill_value` follows the last one; None is for
            as many as there are.
        fill_value: the number that follows, for every axis. Without a `size` it is not used.

    Raises:
        KernelArgumentError: `x` is a number.
        ShapeError: `x` has no axis, or `fill_value` is not a whole number of i64.
        TypeError: `size` is not a whole number.
        ValueError: `size` is less than 0.
    """
    origin = here()
    count = _checked_size("nonzero", size, origin)

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        layout: Layout = checked_input("nonzero", layouts[0], "any", origin)
        if not layout.shape:
            raise ShapeError(
                f"nonzero at {describe(origin)}: x has no axis, so it has no places. Reshape it: x.reshape((1,)), say."
            )
        fill = _checked_fill("nonzero", fill_value, _I64, origin)
        (moved,) = move_arguments("nonzero", arguments, origin)
        shape = layout.shape
        if not layout.size:
            return Zip(tuple([filled((count or 0,), _I64, fill, "nonzero", origin) for _ in shape]), origin)

        def made(found: Found, _: Sequence[Any]) -> AnyOp:
            if len(shape) == 1:
                places = found.places()
                return Zip((places if found.exact else found.filled(places, (found.size,), 0, _I64, fill),), origin)

            def of_axes(places: Any) -> AnyOp:
                ops = []
                for axis, extent in enumerate(shape):
                    numbers = prod(shape[axis + 1 :]), extent
                    beyond = () if found.exact else (found.wanted(), found.last, fill)
                    ops.append(_place_along(found.dtype, found.exact).build((places, *numbers, *beyond), origin))
                return Zip(tuple(ops), origin)

            return Then(Map(found.places(), SHARE, origin), ByResults(of_axes, "array.nonzero"), origin)

        sums = _sums_of(moved, layout, count, origin)
        return _found("nonzero", sums, (), (layout.size, count, 1), made, origin)

    return array_call("nonzero", ("x",), (x,), build, origin)


@leaves_run
def compress(
    condition: In[bool_], x: In[_D], axis: int | None = None, *, size: int | None = None, fill_value: complex = 0
) -> DeviceOp[Tensor[_D], Any]:
    """Return the elements of `x` where a condition holds, in C order: NumPy's `x[condition]`, as a new tensor.

    The condition comes first, as in NumPy. Along an axis it has one element for each row, and rows are chosen.

    Without a `size` the length of the result is a value of the run: the host waits until the device has counted, reads
    one number, and then submits the rest. So no CUDA graph holds the op (`graph()` raises a CaptureError). A pipeline
    or a feed with it is right, but is traced again in each run, and a pipeline warns of that (a RuntimeWarning). With a
    `size` the result has this length, nothing waits, and the op is part of every plan, graph and pipeline. Both have a
    gradient by `x`.

    Args:
        condition: a tensor of bools, or an op whose result is one. For None of `axis` it has the shape of `x`, or one
            axis with as many elements as `x`; else one axis, of the extent of that axis.
        x: a tensor, or an op whose result is one.
        axis: one axis; a negative number counts from the last one. None chooses among all elements, and the result has
            one axis.
        size: the extent of the result along the axis. The first elements are kept, and `fill_value` follows the last
            one; None is for as many as there are.
        fill_value: the number that follows. Without a `size` it is not used.

    Raises:
        KernelArgumentError: the condition has other elements than bools, or an argument is a number.
        ShapeError: `x` has no such axis, the condition has another shape, or elements of this type cannot have
            `fill_value`.
        TypeError: `size` is not a whole number.
        ValueError: `size` is less than 0.
    """
    origin = here()
    count = _checked_size("compress", size, origin)

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        mask: Layout = checked_input("compress", layouts[0], "any", origin, "condition")
        layout: Layout = checked_input("compress", layouts[1], "any", origin)
        if mask.dtype != np.bool_:
            what = f"condition has elements of {type_name(mask.dtype)}, and bool is wanted"
            raise refused_call("compress", origin, what, "Write a comparison, compress(t > 0, t), with the mask first")
        along = 0 if axis is None else one_axis(axis, len(layout.shape), "compress", origin)
        shapes: tuple[Shape, ...] = (layout.shape, (layout.size,)) if axis is None else ((layout.shape[along],),)
        if mask.shape not in shapes:
            wanted = " or ".join([str(shape) for shape in dict.fromkeys(shapes)])
            raise ShapeError(
                f"compress at {describe(origin)}: condition has shape {mask.shape}, but {wanted} is wanted for x of "
                f"shape {layout.shape} and axis={axis}. Give one bool for each element, or for each row: axis=0."
            )
        fill = _checked_fill("compress", fill_value, layout.dtype, origin)
        held, moved = move_arguments("compress", arguments, origin)
        if axis is None:
            moved = moved if layout.contiguous else contiguous_copy(moved, origin)
            moved = reshaped(moved, layout, (layout.size,), origin)
            layout = contiguous_layout((layout.size,), layout.dtype)

        def shape_of(extent: int) -> Shape:
            return (*layout.shape[:along], extent, *layout.shape[along + 1 :])

        if not mask.size:
            return filled(shape_of(count or 0), layout.dtype, fill, "compress", origin)

        def made(found: Found, others: Sequence[Any]) -> AnyOp:
            places = found.places(), contiguous_layout((found.size,), _I64)
            op = taken((others[0], layout), places, along, origin)
            return op if found.exact else found.filled(op, shape_of(found.size), along, layout.dtype, fill)

        sums = _sums_of(held, mask, count, origin)
        return _found(
            "compress", sums, (moved,), (mask.size, count, 1), made, origin,
            layout=None if count is None else contiguous_layout(shape_of(count), layout.dtype),
        )  # fmt: skip

    return array_call("compress", ("condition", "x"), (condition, x), build, origin)


@leaves_run
def unique(x: In[_V], *, size: int | None = None, fill_value: float = 0) -> DeviceOp[Tensor[_V], Any]:
    """Return the different elements of `x` in ascending order, each once: a tensor with one axis.

    NaNs come last, and are one element, as in NumPy; so are -0 and 0, of which the first one of `x` stays.

    Without a `size` the length of the result is a value of the run: the host waits until the device has counted, reads
    one number, and then submits the rest. So no CUDA graph holds the op (`graph()` raises a CaptureError). A pipeline
    or a feed with it is right, but is traced again in each run, and a pipeline warns of that (a RuntimeWarning). With a
    `size` the result has this length, nothing waits, and the op is part of every plan, graph and pipeline. Neither has
    a gradient.

    Args:
        x: a tensor, or an op whose result is one, of any shape.
        size: the length of the result. The smallest elements are kept, and `fill_value` follows the last one; None is
            for as many as there are.
        fill_value: the number that follows. Without a `size` it is not used.

    Raises:
        KernelArgumentError: the elements are complex, and have no order, or `x` is a number.
        ShapeError: elements of this type cannot have `fill_value`.
        TypeError: `size` is not a whole number.
        ValueError: `size` is less than 0.
    """
    return _unique("unique", x, size, fill_value)


@leaves_run
def unique_counts(
    x: In[_V], *, size: int | None = None, fill_value: float = 0
) -> DeviceOp[tuple[Tensor[_V], Tensor[i64]], Any]:
    """Return the different elements of `x` in ascending order, and how often each of them is there, as i64.

    Arguments, errors, and what a `size` is for are those of `unique`. What follows the last element is there 0 times.
    """
    return _unique("unique_counts", x, size, fill_value)


def _unique(name: str, x: Any, size: object, fill_value: object) -> AnyOp:
    origin = here()
    count, counted = _checked_size(name, size, origin), name == "unique_counts"

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        layout: Layout = checked_input(name, layouts[0], "ordered", origin)
        dtype, length = layout.dtype, layout.size
        fill = _checked_fill(name, fill_value, dtype, origin)
        (moved,) = move_arguments(name, arguments, origin)
        if not length:
            values = filled((count or 0,), dtype, fill, name, origin)
            return Zip((values, filled((count or 0,), _I64, 0, name, origin)), origin) if counted else values

        def made(found: Found, others: Sequence[Any]) -> AnyOp:
            places = found.places(), contiguous_layout((found.size,), _I64)
            op = taken((others[0], contiguous_layout((length,), dtype)), places, 0, origin)
            values = op if found.exact else found.filled(op, (found.size,), 0, dtype, fill)
            if not counted:
                return values
            ends, starts = found.places("right", whole=True), found.places("left", whole=True)
            return Zip((values, _difference().build((ends, starts), origin)), origin)

        def of_sorted(ordered: Any) -> AnyOp:
            whole = _sum_type(length, count)
            changes = _changes(dtype, whole).build(ordered, origin)
            sums = scanned("cumsum", changes, contiguous_layout((length,), whole), None, origin)
            return _found(name, sums, (ordered,), (length, count, 0), made, origin)

        line = moved if layout.contiguous else contiguous_copy(moved, origin)
        (rows,) = radix_sorted(
            reshaped(line, layout, (1, length), origin), dtype, (1, length), length, (True, False), False, origin
        )
        ordered: AnyOp = Map(reshaped(rows, contiguous_layout((1, length), dtype), (length,), origin), SHARE, origin)
        known = None if counted or count is None else contiguous_layout((count,), dtype)
        return Then(ordered, ByResults(of_sorted, f"array.{name}", layout=known), origin)

    return array_call(name, ("x",), (x,), build, origin)


# ---- arguments
def _checked_size(name: str, size: object, origin: Origin) -> int | None:
    """Return the length that the caller says, or None."""
    if size is None:
        return None
    count = as_whole_number(size)
    if count is None or count < 0:
        kind = TypeError if count is None else ValueError
        raise wrong_argument(
            name, origin, "size", size, "a whole number, 0 or more, or None,", "Write size=4, say", kind
        )
    return count


def _checked_fill(name: str, fill_value: object, dtype: "np.dtype[Any]", origin: Origin) -> Any:
    """Return the number that elements of this type have of `fill_value`, for an expression."""
    recipe = filled((1,), dtype, fill_value, name, origin).recipe
    assert isinstance(recipe, Constant)
    with np.errstate(over="ignore"):
        return np.asarray(recipe.value).astype(dtype).item()


# ---- places
@final
class Found(NamedTuple):
    """The running sums of a mask in the trace of a run, and how many of its places are wanted."""

    sums: Any
    """A shared handle to them; (n,)."""
    length: int
    """The number of sums, 1 or more."""
    size: int
    """The number of places that are wanted."""
    first: int
    """The sum at the first place."""
    exact: bool
    """True if there are that many places."""
    origin: Origin

    @property
    def dtype(self) -> "np.dtype[Any]":
        """The element type of the sums."""
        found: np.dtype[Any] = self.sums.dtype
        return found

    @property
    def last(self) -> Any:
        """The last sum, as a tensor; (1,)."""
        return self.sums[self.length - 1 :]

    def wanted(self) -> AnyOp:
        """Return the op of the sums at the places."""
        return Alloc((self.size,), self.dtype, Arange(self.first, 1), self.origin)

    def places(self, side: Side = "left", *, whole: bool = False) -> AnyOp:
        """Return the op of the first places with these sums, as i64: where there is none, of the last place, which is
        that of an element; with `whole`, of one behind it. For "right" they are those with a larger sum."""
        edges = self.sums if whole else self.sums[: self.length - 1]
        return searched(edges, self.wanted(), contiguous_layout((self.size,), self.dtype), side, self.origin)

    def filled(self, op: AnyOp, shape: Shape, axis: int, dtype: "np.dtype[Any]", fill: Any) -> AnyOp:
        """Return the op of the elements of an op along an axis, and of a number behind the last place."""
        along = tuple([extent if place == axis else 1 for place, extent in enumerate(shape)])
        wanted = reshaped(self.wanted(), contiguous_layout((self.size,), self.dtype), along, self.origin)
        return _or_fill(dtype, self.dtype).build((op, wanted, self.last, fill), self.origin)


Made: TypeAlias = Callable[[Found, Sequence[Any]], AnyOp]
"""What makes the op of a result, of places and of other handles, which have moved."""


def _found(
    name: str, sums: AnyOp, others: tuple[Any, ...], numbers: tuple[int, int | None, int], made: Made, origin: Origin,
    *, layout: Layout | None = None,
) -> AnyOp:  # fmt: skip
    """Return the op that `made` makes of running sums and of other arguments, which have moved. `numbers` are their
    length, the length that is wanted, and the sum at the first place. Without a length that is wanted the last sum says
    it, and the host reads it. `layout` is that of the result, if it is known."""
    (length, size, first), called = numbers, f"array.{name}"

    def sources_of(given: Sequence[Any]) -> tuple[AnyOp, ...]:
        return tuple([each if isinstance(each, DeviceOp) else Value(each, origin) for each in given])

    def with_length(results: tuple[Any, ...]) -> AnyOp:
        held = move_arguments(name, tuple(results), origin)
        if size is not None:
            return made(Found(held[0], length, size, first, False, origin), held[1:])
        last: AnyOp = ToHost(Value(held[0][length - 1 :], origin), origin)
        return Then(Zip((last, *sources_of(held)), origin), ByResults(counted, called, waits_for_length=True), origin)

    def counted(results: tuple[Any, ...]) -> AnyOp:
        last, *rest = results
        held = move_arguments(name, tuple(rest), origin)
        return made(Found(held[0], length, int(last[0]) + 1 - first, first, True, origin), held[1:])

    sources = sources_of((Map(sums, SHARE, origin), *others))
    return Then(Zip(sources, origin), ByResults(with_length, called, layout=layout), origin)


def _sum_type(length: int, size: int | None) -> "np.dtype[Any]":
    """Return the element type of running sums up to these lengths."""
    return _I32 if max(length, size or 0) < 2**31 - 1 else _I64


def _sums_of(x: Any, layout: Layout, size: int | None, origin: Origin) -> AnyOp:
    """Return the op of the running numbers of elements that are not 0, of an argument that has moved; (n,)."""
    whole = _sum_type(layout.size, size)
    ones = _ones(layout.dtype, whole).build((x,), origin)
    return scanned("cumsum", ones, contiguous_layout(layout.shape, whole), None, origin)


# ---- expressions
@cache
def _ones(dtype: "np.dtype[Any]", whole: "np.dtype[Any]") -> Expression[..., Any]:
    """Return the expression of 1 where an element is not 0."""

    def one(x: Elem[Any]) -> Elem[Any]:
        return (x if dtype.kind == "b" else x != 0).to(whole.type)

    return Expression(trace_expression(one, (dtype,)).named("nonzero"), (nonzero.__code__, 0))


@cache
def _changes(dtype: "np.dtype[Any]", whole: "np.dtype[Any]") -> Stencil[Any, Any]:
    """Return the stencil of 1 where an element differs from the one before it. NaNs do not differ."""

    def one(x: Neighbours[Any]) -> Elem[Any]:
        before, own = x[-1], x[0]
        differs = before != own
        if dtype in DOMAINS["float"]:
            differs = differs & ((before == before) | (own == own))  # a NaN equals nothing
        return differs.to(whole.type)

    return stencil(dtype.type)(one)


@cache
def _or_fill(dtype: "np.dtype[Any]", whole: "np.dtype[Any]") -> Expression[..., Any]:
    """Return the expression of an element, or of a number behind the last place."""

    def element(x: Elem[Any], wanted: Elem[Any], last: Elem[Any], fill_value: Elem[Any]) -> Elem[Any]:
        return where(wanted <= last, x, fill_value)

    traced = trace_expression(element, (dtype, whole, whole, dtype))
    return Expression(traced.named("compress"), (compress.__code__, 0))


@cache
def _place_along(whole: "np.dtype[Any]", exact: bool) -> Expression[..., Any]:
    """Return the expression of the places along an axis, of places among all elements."""

    def place(at: Elem[Any], below: Elem[Any], extent: Elem[Any]) -> Elem[Any]:
        return at // below % extent

    def place_or_fill(
        at: Elem[Any], below: Elem[Any], extent: Elem[Any], wanted: Elem[Any], last: Elem[Any], fill_value: Elem[Any]
    ) -> Elem[Any]:
        return where(wanted <= last, at // below % extent, fill_value)

    function, beyond = (place, ()) if exact else (place_or_fill, (whole, whole, _I64))
    traced = trace_expression(function, (_I64, _I64, _I64, *beyond))
    return Expression(traced.named("nonzero"), (nonzero.__code__, 0))


@cache
def _difference() -> Expression[..., Any]:
    """Return the expression of the distance between two places."""

    def distance(end: Elem[i64], start: Elem[i64]) -> Elem[i64]:
        return end - start

    return Expression(trace_expression(distance, (_I64, _I64)).named("unique_counts"), (unique_counts.__code__, 0))
