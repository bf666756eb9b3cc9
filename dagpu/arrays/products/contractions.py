"""`einsum`, `tensordot` and `dot`: sums of products over named axes, by products of matrices.

The axes of two operands are put in the order (in both and in the result, in one, summed over), by a transposition where
they are in another one, and become the matrices of a batch.
"""

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple, final

from typing_extensions import TypeVar

from dagpu.arrays.products.matrix_products import product
from dagpu.arrays.rearranging import transposed
from dagpu.arrays.reductions import checked_input, converted
from dagpu.common.errors import ShapeError
from dagpu.common.layout import Layout, Shape, bf16, c64, c128, contiguous_layout, f16, f32, f64
from dagpu.common.places import Origin, describe, here, leaves_run
from dagpu.common.wrong_arguments import as_whole_number, format_value, wrong_argument
from dagpu.handles import Tensor
from dagpu.kernels.annotations import In
from dagpu.kernels.expression import FUSED, FusedCall
from dagpu.kernels.generated_launch import (
    AnyOp,
    array_call,
    contiguous_copy,
    move_arguments,
    refused_call,
    reshaped,
)
from dagpu.kernels.operations import type_name
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import Value

# Constrained, not bounded: handles are covariant, so a bound would join f32 and f64 to np.generic.
_M = TypeVar("_M", f16, bf16, f32, f64, c64, c128)


@final
class Labelled(NamedTuple):
    """A tensor, as an op, whose axes have names."""

    op: AnyOp
    layout: Layout
    labels: tuple[str, ...]

    def extent(self, label: str) -> int:
        """The extent of an axis."""
        return self.layout.shape[self.labels.index(label)]

    def extents(self, labels: Sequence[str]) -> int:
        """The product of extents."""
        return prod([self.extent(label) for label in labels])


@leaves_run
def einsum(subscripts: str, *operands: In[_M]) -> DeviceOp[Tensor[_M], Any]:
    """Return the sums of products that a text describes, as NumPy's `einsum`: `einsum("bij,bjk->bik", a, b)`.

    Each letter names an axis. Letters that the result does not have are summed over. Without `->` the result has the
    letters that occur once, in alphabetical order. Several operands are multiplied from the left to the right, two at a
    time, by `matmul`, whose rules for element types, precision and libraries hold. A letter twice in one operand (a
    diagonal) and `...` are not taken.

    Args:
        subscripts: the letters of the axes of each operand, with commas between them, and `->` before those of the
            result.
        *operands: tensors of floats or complex numbers, all of one element type, or ops whose results are such.

    Raises:
        KernelArgumentError: the elements are whole numbers or of several types, or the text is not such a text.
        ShapeError: an operand has not as many axes as letters, or a letter has two extents.
    """
    origin = here()
    if not isinstance(subscripts, str):
        raise wrong_argument("einsum", origin, "subscripts", subscripts, "a text", 'Write "ij,jk->ik", say')
    inputs, wanted = _parsed(subscripts, len(operands), origin)
    names = [f"operands[{n}]" for n in range(len(operands))]

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        return _contracted("einsum", arguments, layouts, names, inputs, wanted, origin)

    return array_call("einsum", names, operands, build, origin)


@leaves_run
def tensordot(a: In[_M], b: In[_M], axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> DeviceOp[Tensor[_M], Any]:
    """Return the sums of products over some axes of `a` and as many of `b`. The result has the other axes of both.

    Args:
        a: a tensor of floats or complex numbers, or an op whose result is one.
        b: the same, of the same element type.
        axes: how many of the last axes of `a` and of the first ones of `b`, or the axes of each: `((0, 1), (1, 0))`.

    Raises:
        KernelArgumentError: the elements are whole numbers or of two types.
        ShapeError: there are no such axes, or their extents differ.
    """
    origin = here()

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        ranks = [
            len(_checked("tensordot", layout, name, origin).shape) for layout, name in zip(layouts, "ab", strict=True)
        ]
        pairs = _pairs(axes, ranks, origin)
        return _contracted("tensordot", arguments, layouts, "ab", *_joined(ranks, pairs), origin)

    return array_call("tensordot", ("a", "b"), (a, b), build, origin)


@leaves_run
def dot(a: In[_M], b: In[_M]) -> DeviceOp[Tensor[_M], Any]:
    """Return the sums of products over the last axis of `a` and the last but one of `b`, or its only one.

    Of vectors it is their inner product, a tensor without axes; no conjugate is taken. Of matrices it is `matmul`.
    Tensors of more axes are no batches: the result has all their other axes.

    Raises:
        KernelArgumentError: the elements are whole numbers or of two types.
        ShapeError: the extents differ, or a tensor has no axis.
    """
    origin = here()

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        ranks = _ranks("dot", layouts, origin)
        if 0 in ranks:
            raise ShapeError(
                f"dot at {describe(origin)}: {'a' if not ranks[0] else 'b'} has no axes. Reshape it: x.reshape((1,))."
            )
        pairs = [(ranks[0] - 1, max(ranks[1] - 2, 0))]
        return _contracted("dot", arguments, layouts, "ab", *_joined(ranks, pairs), origin)

    return array_call("dot", ("a", "b"), (a, b), build, origin)


# ---- arguments
def _checked(name: str, layout: Layout | None, param: str, origin: Origin) -> Layout:
    return checked_input(name, layout, "inexact", origin, param)


def _ranks(name: str, layouts: Sequence[Layout | None], origin: Origin) -> list[int]:
    """Return the numbers of axes of two operands."""
    return [len(_checked(name, layout, param, origin).shape) for layout, param in zip(layouts, "ab", strict=True)]


def _parsed(text: str, count: int, origin: Origin) -> tuple[list[str], str]:
    """Return the letters of each operand, and those of the result."""
    before, arrow, after = text.replace(" ", "").partition("->")
    inputs = before.split(",")
    letters = "".join(inputs)
    wanted = after if arrow else "".join(sorted(each for each in set(letters) if letters.count(each) == 1))
    right = all(each.isalpha() or not each for each in (*inputs, wanted)) and set(wanted) <= set(letters)
    if not right or len(inputs) != count or any(len(set(each)) != len(each) for each in (*inputs, wanted)):
        raise refused_call(
            "einsum", origin, f"subscripts is {text!r}, with {count} operands",
            'Give each operand letters, each once, and the result some of them: "ij,jk->ik", say',
        )  # fmt: skip
    return inputs, wanted


def _pairs(axes: object, ranks: Sequence[int], origin: Origin) -> list[tuple[int, int]]:
    """Return the axes of both operands that are summed over."""
    count = as_whole_number(axes)
    if count is not None:
        lists: list[Any] = [range(ranks[0] - count, ranks[0]), range(count)]
    else:
        given: Any = axes if isinstance(axes, tuple | list) and len(axes) == 2 else ((), (0,))
        lists = [each if isinstance(each, tuple | list) else (each,) for each in given]
    found = [[as_whole_number(each) for each in listed] for listed in lists]
    whole = [
        [each % rank for each in listed if each is not None and -rank <= each < rank]
        for listed, rank in zip(found, ranks, strict=True)
    ]
    if (
        len(whole[0]) != len(found[0])
        or len(whole[1]) != len(found[1])
        or len(whole[0]) != len(whole[1])
        or any(len(set(each)) != len(each) for each in whole)
        or (count is not None and count < 0)
    ):
        raise ShapeError(
            f"tensordot at {describe(origin)}: axes is {format_value(axes)}, but a has {ranks[0]} axes and b has "
            f"{ranks[1]}. Give a count, or as many axes of each: ((0, 1), (1, 0)), say."
        )
    return list(zip(*whole, strict=True))


def _joined(ranks: Sequence[int], pairs: Sequence[tuple[int, int]]) -> tuple[list[str], str]:
    """Return letters for the axes of two operands, equal ones for pairs, and those of the result."""
    first = [chr(ord("a") + n) for n in range(ranks[0])]
    second = [chr(ord("A") + n) for n in range(ranks[1])]
    for one, other in pairs:
        second[other] = first[one]
    kept = [each for each in (*first, *second) if (each in first) != (each in second)]
    return ["".join(first), "".join(second)], "".join(kept)


# ---- products
def _contracted(
    name: str,
    arguments: tuple[Any, ...],
    layouts: tuple[Layout | None, ...],
    params: Sequence[str],
    inputs: Sequence[str],
    wanted: str,
    origin: Origin,
) -> AnyOp:
    """Return the op of a contraction of arguments, whose layouts are checked."""
    given = [_checked(name, layout, param, origin) for layout, param in zip(layouts, params, strict=True)]
    dtypes = dict.fromkeys([layout.dtype for layout in given])
    if len(dtypes) > 1:
        what = f"operands of {' and '.join(map(type_name, dtypes))}"
        raise refused_call(name, origin, what, "Convert one: convert(t, f32), say")
    extents: dict[str, int] = {}
    for layout, labels, param in zip(given, inputs, params, strict=True):
        if len(labels) != len(layout.shape):
            raise ShapeError(
                f"{name} at {describe(origin)}: {param} has shape {layout.shape}, but {labels!r} names {len(labels)} "
                "axes. Name each axis once."
            )
        for label, extent in zip(labels, layout.shape, strict=True):
            if extents.setdefault(label, extent) != extent:
                raise ShapeError(
                    f"{name} at {describe(origin)}: an axis that is summed over, or in both, has {extents[label]} "
                    f"elements in one operand and {extent} in {param}. Give both as many."
                )
    moved = move_arguments(name, arguments, origin)
    left = [
        Labelled(x if isinstance(x, DeviceOp) else Value(x, origin), layout, tuple(labels))
        for x, layout, labels in zip(moved, given, inputs, strict=True)
    ]
    found = left.pop(0)
    while left:
        later = {*wanted, *[label for each in left[1:] for label in each.labels]}
        found = _multiplied(found, left.pop(0), later, origin)
    found = _summed(found, set(wanted), origin)
    return _ordered(found, tuple(wanted), origin).op


def _multiplied(a: Labelled, b: Labelled, later: set[str], origin: Origin) -> Labelled:
    """Return the product of two tensors, summed over what no later step has."""
    a = _summed(a, {*later, *b.labels}, origin)
    b = _summed(b, {*later, *a.labels}, origin)
    both = [label for label in a.labels if label in b.labels]
    batch, inner = [each for each in both if each in later], [each for each in both if each not in later]
    rows, columns = ([each for each in x.labels if each not in both] for x in (a, b))
    shape: Shape = (*map(a.extent, batch), *map(a.extent, rows), *map(b.extent, columns))
    count, height, width, depth = a.extents(batch), a.extents(rows), b.extents(columns), a.extents(inner)
    plain = (*batch, *rows, *inner), (*batch, *inner, *columns)
    turned = (*batch, *inner, *rows), (*batch, *columns, *inner)
    flags = a.labels == turned[0] != plain[0], b.labels == turned[1] != plain[1]
    first = _ordered(a, turned[0] if flags[0] else plain[0], origin)
    second = _ordered(b, turned[1] if flags[1] else plain[1], origin)
    shapes = (
        (count, depth, height) if flags[0] else (count, height, depth),
        ((count, width, depth) if flags[1] else (count, depth, width)),
    )
    dtype = a.layout.dtype
    matrices = [
        reshaped(each.op, contiguous_layout(each.layout.shape, dtype), whole, origin)
        for each, whole in zip((first, second), shapes, strict=True)
    ]
    layouts = tuple([contiguous_layout(whole, dtype) for whole in shapes])
    op = product(tuple(matrices), layouts, flags, False, origin)
    made = contiguous_layout((count, height, width), dtype)
    return Labelled(reshaped(op, made, shape, origin), contiguous_layout(shape, dtype), (*batch, *rows, *columns))


def _summed(x: Labelled, kept: set[str], origin: Origin) -> Labelled:
    """Return a tensor summed over the axes whose labels are not kept."""
    axes = tuple([place for place, label in enumerate(x.labels) if label not in kept])
    if not axes:
        return x
    dtype = x.layout.dtype
    call = FusedCall(converted(dtype, dtype), "sum", axes, False)
    labels = tuple([label for label in x.labels if label in kept])
    shape = tuple([x.extent(label) for label in labels])
    return Labelled(FUSED.value["sum"].build(call, (x.op,), origin), contiguous_layout(shape, dtype), labels)


def _ordered(x: Labelled, labels: tuple[str, ...], origin: Origin) -> Labelled:
    """Return a tensor, contiguous, with its axes in this order."""
    layout = contiguous_layout(tuple(map(x.extent, labels)), x.layout.dtype)
    if labels != x.labels:
        order = tuple([x.labels.index(label) for label in labels])
        return Labelled(transposed(x.op, x.layout, order, origin), layout, labels)
    if not x.layout.contiguous:
        return Labelled(contiguous_copy(x.op, origin), layout, labels)
    return x
