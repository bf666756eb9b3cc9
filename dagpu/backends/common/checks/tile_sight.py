"""Tiles by their numbers, and the errors of launches that looked where they may not."""

from dagpu.common.errors import KernelBoundsError
from dagpu.common.layout import Shape
from dagpu.common.places import describe
from dagpu.plans.program import Launch


def sight_error(launch: Launch, position: int, index: tuple[int, ...], tile: tuple[int, ...]) -> KernelBoundsError:
    """Return the error for a tile that looked at an element of the argument at a position."""
    kernel = launch.kernel
    assert kernel.sees is not None
    sight, name = kernel.sees[position], kernel.params[position].name
    assert sight is not None
    return KernelBoundsError(
        f"{kernel.label} looked at {name}[{', '.join(map(str, index))}] from tile {tile}, and declares "
        f"{sight.declared} of {name}. Declare what it looks at. It is declared at {describe(kernel.origin)}, and was "
        f"launched at {describe(launch.origin)}."
    )


def index_error(launch: Launch, index: int, extent: int) -> KernelBoundsError:
    """Return the error for an index beyond its axis, in the input of indices of a launch."""
    kernel = launch.kernel
    assert kernel.indexed is not None
    allowed = f"Give indices from {-extent} to {extent - 1}" if extent else "Give no indices"
    return KernelBoundsError(
        f"{kernel.label} at {describe(launch.origin)}: {kernel.indexed.name} has the index {index}, but the axis has "
        f"{extent} elements. {allowed}."
    )


def index_of_tile(number: int, grid: Shape) -> Shape:
    """Return the index of the tile with a number, which counts in C order over a grid."""
    where, rest = list[int](), number
    for extent in reversed(grid):
        rest, index = divmod(rest, extent)
        where.append(index)
    return tuple(reversed(where))
