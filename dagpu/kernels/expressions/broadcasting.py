"""Broadcasting by NumPy's rules, and the fewest axes with which a kernel computes a call."""

from collections.abc import Sequence
from math import prod
from typing import Any, Final, NamedTuple, TypeVar, final

from dagpu.common.dtypes import Shape
from dagpu.common.layout import Layout
from dagpu.common.origin import Origin
from dagpu.common.param_form import Form
from dagpu.kernels.expressions.expression_text import ArgumentPattern
from dagpu.kernels.generated.generated_launch import reshaped

_K = TypeVar("_K", bound=int)

NUMBER: Final = ArgumentPattern(Form.SCALAR)


@final
class Walk(NamedTuple):
    """The shapes with which a kernel runs: of the output, and of each array with its axes in the output.

    An array's axis is -1 where its extent is 1 and the output's is not.
    """

    shape: Shape
    arrays: tuple[Shape, ...]
    axes: tuple[tuple[int, ...], ...]


def broadcast_shape(shapes: "list[Shape]") -> Shape | None:
    """Return the common shape of arrays by NumPy's rules; None if there is none."""
    rank = max(map(len, shapes))
    found: list[int] = []
    for axis in range(-rank, 0):
        extents = {shape[axis] for shape in shapes if len(shape) >= -axis} - {1}
        if len(extents) > 1:
            return None
        found.append(extents.pop() if extents else 1)
    return tuple(found)


def direct_walk(out: Shape, shapes: "list[Shape]") -> Walk:
    """Return the walk with the axes of the output as they are."""
    axes = []
    for shape in shapes:
        missing = len(out) - len(shape)
        axes.append(tuple([missing + a if n == out[missing + a] else -1 for a, n in enumerate(shape)]))
    return Walk(out, tuple(shapes), tuple(axes))


def merged_walk_of_kinds(out: Shape, shapes: "list[Shape]", kinds: tuple[_K, ...]) -> tuple[Walk, tuple[_K, ...]]:
    """Return the walk with as few axes as possible, for arrays that are contiguous, and the kinds of its axes.

    Neighbouring axes of one kind become one where each array either follows both or neither. Axes of extent 1 vanish.
    So a call with equal shapes has one axis of each kind.
    """
    direct = direct_walk(out, shapes)
    groups: list[list[int]] = []
    before: tuple[object, ...] | None = None
    for axis, extent in enumerate(out):
        if extent == 1:
            continue
        follows = (kinds[axis], *[axis in axes for axes in direct.axes])
        if follows == before:
            groups[-1].append(axis)
        else:
            groups.append([axis])
        before = follows
    extents = tuple([prod([out[axis] for axis in group]) for group in groups])
    kept = [tuple([n for n, group in enumerate(groups) if group[0] in axes]) for axes in direct.axes]
    walk = Walk(extents, tuple([tuple([extents[n] for n in each]) for each in kept]), tuple(kept))
    return walk, tuple([kinds[group[0]] for group in groups])


def tile_of(shape: Shape, most: int) -> Shape:
    """Return a tile of up to `most` elements that are neighbours in memory."""
    tile: list[int] = []
    for extent in reversed(shape):
        step = max(1, min(extent, most))
        tile.append(step)
        most //= step
    return tuple(reversed(tile))


# ---- arguments
def patterns_of(layouts: Sequence[Layout | None], walk: Walk) -> tuple[ArgumentPattern, ...]:
    """Return the patterns of arguments: a number has no layout."""
    axes = iter(walk.axes)
    return tuple([NUMBER if layout is None else ArgumentPattern(Form.IN, next(axes)) for layout in layouts])


def walk_of_kinds(layouts: Sequence[Layout | None], whole: Shape, kinds: tuple[_K, ...]) -> tuple[Walk, tuple[_K, ...]]:
    """Return the walk of arguments with these layouts that broadcast to `whole`, and the kind of each of its axes.

    `kinds` are those of the axes of `whole`. Axes of one kind are merged where all arguments are contiguous.
    """
    known = [layout for layout in layouts if layout is not None]
    shapes = [layout.shape for layout in known]
    if all(layout.contiguous for layout in known):
        return merged_walk_of_kinds(whole, shapes, kinds)
    return direct_walk(whole, shapes), kinds


def passed_arguments(moved: Sequence[Any], layouts: Sequence[Layout | None], walk: Walk, origin: Origin) -> list[Any]:
    """Return arguments that have moved as the kernel of a walk takes them. A number has no layout."""
    given = iter(walk.arrays)
    return [
        arg if layout is None else reshaped(arg, layout, next(given), origin)
        for arg, layout in zip(moved, layouts, strict=True)
    ]
