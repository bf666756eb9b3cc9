"""The elements that a generated kernel reads: of one array, or computed of several by an expression.

A kernel sees its elements along axes of its own, each of which belongs to a group, such as the kept and the reduced
axes of a reduction. It knows a place in each group, and this module makes the text of the element there. Neighbouring
axes that a kernel treats alike are one group: so a tensor is seen with few axes.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from operator import itemgetter
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from dagpu.common.errors import ShapeError
from dagpu.common.layout import Layout, Shape
from dagpu.common.places import Origin, describe
from dagpu.common.wrong_arguments import as_whole_number, format_value
from dagpu.kernels.element import TracedExpression
from dagpu.kernels.expression_text import ArgumentPattern, element_function, formal_text, input_params, safe_name
from dagpu.kernels.numpy_twin import WHOLE, ElementBlocks, numpy_twin
from dagpu.kernels.operations import load_text, memory_type
from dagpu.ops.kernel_spec import Param


@final
class Operand(NamedTuple):
    """An array that a kernel reads: its name in CUDA, its element type, and the axis of the kernel that each of its
    axes follows.

    An axis of -1 has extent 1 and follows none. `param` is the number of the array among the kernel's parameters.
    """

    name: str
    dtype: "np.dtype[Any]"
    axes: tuple[int, ...]
    param: int = 1

    def at(self, places: Sequence[str]) -> str:
        """Return the text of an element in memory, of the coordinate along each axis of the kernel."""
        return f"{self.name}({', '.join(['0' if axis < 0 else places[axis] for axis in self.axes])})"


@final
class Elements(NamedTuple):
    """What a kernel reads: the type of an element, the arrays that it is computed from, the formal parameters for
    these, the text of an element of those that it makes of values in registers, and the device functions that this
    calls."""

    dtype: "np.dtype[Any]"
    operands: tuple[Operand, ...]
    formals: str
    value: Callable[[Sequence[str]], str] = itemgetter(0)
    functions: str = ""
    helpers: frozenset[str] = frozenset()

    def extent(self, axis: int) -> str:
        """Return the text of the kernel's extent along an axis: that of an operand which follows it."""
        return extent_along(self.operands, axis)

    def at(self, places: Sequence[str]) -> str:
        """Return the text of an element in a register, of the coordinate along each axis of the kernel."""
        return self.value([load_text(operand.dtype, operand.at(places)) for operand in self.operands])


def _follower(operands: Sequence[Operand], axis: int) -> tuple[Operand, int]:
    """Return the first operand that follows an axis of the kernel, and the place of the axis in it."""
    found = next(operand for operand in operands if axis in operand.axes)
    return found, found.axes.index(axis)


def extent_along(operands: Sequence[Operand], axis: int) -> str:
    """Return the text of an extent: that of the first operand which follows the axis."""
    operand, place = _follower(operands, axis)
    return f"{operand.name}.extent({place})"


def walked_extents(operands: Sequence[Operand], groups: Sequence[int]) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Return `KernelSpec.walked` of a kernel that counts its places in each group of axes: the product of the extents
    whose texts are `extent_along`. A group of one axis, or of axes of one operand, has a place for each of its elements
    at most."""
    products = []
    for group in dict.fromkeys(groups):
        found = [_follower(operands, axis) for axis, own in enumerate(groups) if own == group]
        if len({operand.param for operand, _ in found}) > 1:
            products.append(tuple([(operand.param, place) for operand, place in found]))
    return tuple(products)


def neighbour_reads(
    operands: Sequence[Operand], places: Sequence[str], axis: int | None, count: int
) -> tuple[list[str], list[str], list[str]]:
    """Return how to read `count` neighbours at once, where they lie side by side in memory: the texts of what must be
    true, the statements that read, and the text of each operand's element `n` in a register.

    Args:
        operands: the arrays that are read. One that does not follow the axis has one element for all neighbours.
        places: the text of the first one's coordinate along each axis of the kernel.
        axis: the axis of the kernel along which they are neighbours, from a multiple of `count` on; None if none is.
        count: a power of two.
    """
    conditions: list[str] = []
    reads: list[str] = []
    registers: list[str] = []
    for operand in operands:
        name, dtype, follows, _ = operand
        read, type_ = operand.at(places), memory_type(dtype)
        if axis is None or axis not in follows:
            reads.append(f"const {type_} {name}_side = {read};")
            registers.append(load_text(dtype, f"{name}_side"))
            continue
        for place, followed in enumerate(follows):
            if followed == axis:
                conditions.append(f"{name}.stride({place}) == 1")
            elif followed >= 0:
                conditions.append(f"({name}.extent({place}) == 1 || {name}.stride({place}) % {count} == 0)")
        side = f"dagpu::Side<{type_}, {count}>"
        conditions.append(f"reinterpret_cast<unsigned long long>({name}.data()) % alignof({side}) == 0")
        reads.append(f"const {side} {name}_side = *reinterpret_cast<const {side}*>(&{read});")
        registers.append(load_text(dtype, f"{name}_side.at[n]"))
    return conditions, reads, registers


def coordinate_texts(groups: Sequence[int], places: Sequence[str], extent: Callable[[int], str]) -> list[str]:
    """Return the text of the coordinate along each axis, of names of the places in the groups.

    Args:
        groups: the group of each axis.
        places: for each group the name of the place in it, counted along its axes in C order.
        extent: makes the text of the extent of an axis.
    """
    texts = [""] * len(groups)
    for group, place in enumerate(places):
        axes = [axis for axis, own in enumerate(groups) if own == group]
        below = ""
        for axis in reversed(axes):
            divisor = f"({below})" if "*" in below else below
            text = f"{place} / {divisor}" if below else place
            texts[axis] = text if axis == axes[0] else f"{text} % {extent(axis)}"
            below = f"{below} * {extent(axis)}" if below else extent(axis)
    return texts


def array_elements(name: str, dtype: "np.dtype[Any]", rank: int) -> Elements:
    """Return the elements of an array of this rank."""
    operand = Operand(name, dtype, tuple(range(rank)))
    return Elements(dtype, (operand,), f", View<const {memory_type(dtype)}, {rank}> {name}")


# ---- of an expression
def expression_elements(
    traced: TracedExpression, patterns: tuple[ArgumentPattern, ...], kernel: str
) -> tuple[list[Param], Elements]:
    """Return the elements that an expression computes of arguments of these patterns, and the parameters of these."""
    operands: list[Operand] = []
    formals, values = "", list[str]()
    for index, (pattern, dtype) in enumerate(zip(patterns, traced.dtypes, strict=True)):
        argument = f"x{index}"  # a name that the texts of kernels do not use
        formals += f", {formal_text(pattern, dtype, argument)}"
        if pattern.form.is_tensor:
            values.append(f"@{len(operands)}")
            operands.append(Operand(argument, dtype, pattern.axes, 1 + index))
        else:
            values.append(load_text(dtype, argument))

    def value(read: Sequence[str]) -> str:
        return f"element({', '.join([read[int(text[1:])] if text[0] == '@' else text for text in values])})"

    functions, helpers = element_function(traced)
    params = input_params(traced, patterns, kernel)
    return params, Elements(traced.dtype, tuple(operands), formals, value, functions + "\n", frozenset(helpers))


def with_elements(
    traced: TracedExpression, patterns: tuple[ArgumentPattern, ...], rank: int, body: Callable[..., None]
) -> Callable[..., None]:
    """Return a NumPy twin that computes the elements of an expression, and calls `body(out, elements, *others)`.

    A few elements are in an array; of many, `body` gets `ElementBlocks`, which computes those of a block.
    """
    compute = numpy_twin(traced, patterns, rank)

    def read(given: Sequence[Any], box: tuple[slice, ...]) -> NDArray[Any]:
        found: NDArray[Any] = np.empty([cut.stop - cut.start for cut in box], traced.dtype)
        cut = [
            argument[(*[box[axis] if axis >= 0 else slice(None) for axis in pattern.axes], ...)]
            if pattern.form.is_input
            else argument
            for pattern, argument in zip(patterns, given, strict=True)
        ]
        compute(found, *cut)
        return found

    def with_computed(out: Any, *arguments: Any) -> None:
        given = arguments[: len(patterns)]
        shape = [0] * rank
        for pattern, argument in zip(patterns, given, strict=True):
            for axis, extent in zip(pattern.axes, getattr(argument, "shape", ()), strict=True):
                if axis >= 0:
                    shape[axis] = extent
        if prod(shape) > WHOLE:
            elements = ElementBlocks(tuple(shape), traced.dtype, partial(read, given))
            body(out, elements, *arguments[len(patterns) :])
        else:
            body(out, read(given, tuple([slice(0, extent) for extent in shape])), *arguments[len(patterns) :])

    return with_computed


def fused_name(traced: TracedExpression, name: str) -> str:
    """Return the name of the kernel of a function of an expression's elements."""
    return safe_name(f"{traced.name}_{name}")


# ---- groups of axes
#
# A contiguous tensor is passed to the kernel with one axis for each group. Any other is passed as it is, and the text
# of the kernel computes its coordinates from the places in the groups.


@final
class AxisGroups(NamedTuple):
    """The extents of the groups of a tensor's axes, the shape with which a kernel gets it, and the group of each axis
    of that shape."""

    extents: Shape
    passed: Shape
    groups: Shape

    @property
    def pattern(self) -> "GroupPattern":
        """The part of the groups on which the text of a kernel depends."""
        return GroupPattern(self.groups, len(self.extents))


@final
class GroupPattern(NamedTuple):
    """The group of each axis of a kernel's argument, and the number of groups."""

    groups: Shape
    size: int

    @property
    def rank(self) -> int:
        """The number of axes with which the kernel gets the argument."""
        return len(self.groups)


def group_axes(layout: Layout, sizes: Sequence[int]) -> AxisGroups:
    """Return the groups of a tensor's axes. `sizes` are the numbers of axes in each group; a group may have none."""
    groups = tuple([group for group, size in enumerate(sizes) for _ in range(size)])
    extents = tuple(
        [prod([n for n, own in zip(layout.shape, groups, strict=True) if own == group]) for group in range(len(sizes))]
    )
    if layout.contiguous:
        return AxisGroups(extents, extents, tuple(range(len(sizes))))
    return AxisGroups(extents, layout.shape, groups)


def around_axis(layout: Layout, axis: int | None) -> AxisGroups:
    """Return the groups (before, along, after) of an axis; for None all axes are along."""
    rank = len(layout.shape)
    return group_axes(layout, (0, rank, 0) if axis is None else (axis, 1, rank - axis - 1))


def element_text(name: str, pattern: GroupPattern, places: Sequence[str]) -> str:
    """Return the text of an element of the argument `name`: `places` are names of its places in the groups."""
    return f"{name}({', '.join(coordinate_texts(pattern.groups, places, lambda axis: f'{name}.extent({axis})'))})"


def extent_text(name: str, pattern: GroupPattern, group: int) -> str:
    """Return the text of the extent of a group of the argument `name`."""
    axes = [f"{name}.extent({axis})" for axis, own in enumerate(pattern.groups) if own == group]
    return " * ".join(axes) or "1"


def grouped_array(x: NDArray[Any], pattern: GroupPattern) -> NDArray[Any]:
    """Return an argument of a host body with one axis for each group."""
    extents = [
        prod([n for n, own in zip(x.shape, pattern.groups, strict=True) if own == group])
        for group in range(pattern.size)
    ]
    return x.reshape(extents)


def one_axis(axis: object, rank: int, name: str, origin: Origin, whose: str = "x") -> int:
    """Return the axis that an argument `axis` names, counted from the first.

    Raises:
        ShapeError: it is not a whole number, or there is no such axis.
    """
    found = as_whole_number(axis)
    if found is None or not -rank <= found < rank:
        cure = f"Give one of them, {-rank} to {rank - 1}" if rank else "Reshape it to one axis: x.reshape((-1,))"
        raise ShapeError(
            f"{name} at {describe(origin)}: axis is {format_value(axis)}, but {whose} has {rank} axes. {cure}."
        )
    return found % rank
