"""Random wholes: a mesh, layouts of it, and an array."""

from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple, final

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from dagpu import Blocks, Cyclic, Layout, Mesh, Shape


@final
class Splits:
    """A layout that cuts the whole again and again, and deals the boxes out by chance: any number to each device."""

    def __init__(self, seed: int, cuts: int) -> None:
        self.seed, self.cuts = seed, cuts

    def boxes(self, shape: Shape, mesh: Mesh, /) -> Sequence[Sequence[tuple[slice, ...]]]:
        random = Random(self.seed)
        boxes = [[(0, extent) for extent in shape]]
        for _ in range(self.cuts):
            box, axis = random.choice(boxes), random.randrange(len(shape))
            low, high = box[axis]
            middle = random.randint(low, high)
            boxes.remove(box)
            boxes += [[*box[:axis], each, *box[axis + 1 :]] for each in ((low, middle), (middle, high))]
        dealt: list[list[tuple[slice, ...]]] = [[] for _ in range(len(mesh))]
        for box in boxes:
            random.choice(dealt).append(tuple([slice(low, high) for low, high in box]))
        return dealt

    def __repr__(self) -> str:
        return f"Splits({self.seed}, {self.cuts})"


class Whole(NamedTuple):
    """An array, a mesh, and two layouts of it."""

    array: NDArray[Any]
    mesh: Mesh
    layout: Layout
    other: Layout


@st.composite
def wholes(draw: st.DrawFn, kind: str = "host") -> Whole:
    """Draw a whole: extents from 0 on, odd ones among them, on one to four devices."""
    grid = draw(st.sampled_from([(1,), (2,), (3,), (4,), (1, 3), (2, 2)]))
    devices = [f"{kind}:{number}" for number in range(int(np.prod(grid)))]
    mesh = Mesh(devices, grid, ("rows", "columns")[: len(grid)])
    shape = tuple(draw(st.lists(st.integers(0, 7), min_size=len(grid), max_size=3)))
    dtype = draw(st.sampled_from([np.float32, np.float64, np.int32, np.float16]))
    array = np.random.default_rng(draw(st.integers(0, 99))).integers(-99, 99, shape).astype(dtype)
    return Whole(array, mesh, draw(layouts(mesh, shape)), draw(layouts(mesh, shape)))


@st.composite
def layouts(draw: st.DrawFn, mesh: Mesh, shape: Shape) -> Layout:
    """Draw a layout of a shape over a mesh."""
    axes = list(range(len(shape)))
    names = dict(zip(draw(st.permutations(axes)), mesh.axes, strict=False))
    return draw(
        st.one_of(
            st.builds(Blocks, st.sampled_from(axes), partial=st.just(True)),
            st.just(Blocks(names, partial=True)),
            st.builds(Cyclic, st.tuples(*[st.integers(1, 4) for _ in axes])),
            st.builds(Splits, st.integers(0, 999), st.integers(0, 6)),
        )
    )
