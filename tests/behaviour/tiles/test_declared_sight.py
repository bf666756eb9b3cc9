"""Declarations of what a tile sees are held against what kernels read, and lists of tiles are part of one graph."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dagpu import (
    Along,
    Around,
    Here,
    In,
    KernelArgumentError,
    KernelBoundsError,
    Out,
    Tile,
    empty,
    f32,
    from_host,
    i32,
    kernel,
    source,
)
from dagpu.testing import exploring
from tests.behaviour.live.live_trials import Trial, machine
from tests.behaviour.tiles.tile_kernels import N, negated, smoothed
from tests.simulated.cuda import installed

TEXT = "__global__ void reach(Tile<float, 2> y, View<const float, 2> x) {}"
INTS = "__global__ void reach(Tile<int, 1> y, View<const int, 1> x) {}"


def reaching(up: int, right: int, sees: Any, *, checked: bool = True, whole: bool = False) -> Any:
    """A kernel that reads `up` rows before its place and `right` columns behind it."""

    def reach(y: Out[f32], x: In[f32]) -> None: ...

    made = kernel(cuda=TEXT, sees=sees, checked=checked)(reach)

    def body(y: Tile[f32], x: NDArray[f32]) -> None:
        wide = np.pad(x, ((up, 0), (0, right)))
        rows, columns = y.at
        first = wide[rows.start : rows.stop, columns]
        y[...] = first + wide[up:, right:][rows, columns]

    if whole:
        made.host(whole=True)(body)
    else:
        made.host(body)
    return made


def run(made: Any, kind: str) -> Any:
    """Run the kernel on tiles that do not divide the extents."""
    with machine(kind):
        op = made(empty((6, 7)).partition((2, 3), partial=True), from_host(np.ones((6, 7), np.float32)))
        if kind != "explore":
            return op.first().unpartition().to_host().sync()
        with exploring(seed=0):
            return op.first().unpartition().to_host().sync()


@pytest.mark.parametrize("kind", ["host", "explore", "simulated"])
@settings(max_examples=25)
@given(
    up=st.integers(0, 2),
    right=st.integers(0, 2),
    above=st.integers(0, 2),
    behind=st.integers(0, 2),
    whole=st.booleans(),
)
def test_a_false_declaration_is_caught(kind: str, up: int, right: int, above: int, behind: int, whole: bool) -> None:
    """A tile that looks farther than it declares raises, with the element and the tile; any other declaration holds."""
    sees = {"x": (Along(0, above, 0), Along(1, 0, behind))}
    made = reaching(up, right, sees, checked=kind != "explore", whole=whole)
    if up <= above and right <= behind:
        run(made, kind)
        return
    with pytest.raises(KernelBoundsError, match=r"reach looked at x\[\d, \d\] from tile \(\d, \d") as caught:
        run(made, kind)
    assert f"and declares (Along(0{f', {above}, 0' if above else ''})" in str(caught.value)
    assert " of x. Declare what it looks at." in str(caught.value)


def test_the_message_names_an_element_that_the_tile_reads() -> None:
    """Of all that the tile may not see, one that changes it."""
    with pytest.raises(KernelBoundsError) as caught:
        run(reaching(1, 0, {"x": Here()}), "host")
    assert str(caught.value).startswith("reach looked at x[1, 0] from tile (1, 0), and declares Here() of x. Declare")


def test_whole_numbers_are_poisoned_with_other_bits() -> None:
    """A body that takes the largest number of all is caught whatever the numbers are."""

    @kernel(cuda=INTS, sees={"x": Around(0)}, checked=True)
    def reach(y: Out[i32], x: In[i32]) -> None: ...

    @reach.host
    def _(y: Tile[i32], x: NDArray[i32]) -> None:
        y[...] = max(x.max(), 0)

    array = np.arange(8, dtype=np.int32)
    with pytest.raises(KernelBoundsError, match=r"reach looked at x\[\d\] from tile \(0,\), and declares Around\(0\)"):
        reach(empty((8,), i32).partition((4,)), from_host(array)).sync()


@pytest.mark.parametrize(
    "head",
    [
        "#define AT(x) (blockIdx.x + x)\n__device__ int at() { return AT(1); }\n",
        "#define GRID gridDim\n#define SIZE GRID\n__device__ int at() { return SIZE.x; }\n",
        "__device__ int at() { return block\\\nIdx.x; }\n",
    ],
)
def test_a_place_that_a_macro_hides_is_refused(head: str) -> None:
    """A block that is told its tile has another index than the tile, in the macros of a text too."""

    def reach(y: Out[f32], x: In[f32]) -> None: ...

    with pytest.raises(KernelArgumentError, match=r"sees is declared, but line . of its CUDA source uses"):
        kernel(cuda=head + TEXT, sees={"x": Here()})(reach)


def test_an_unchecked_kernel_is_not_checked_on_the_host() -> None:
    """A false declaration of an unchecked kernel costs nothing, and is believed."""
    run(reaching(1, 1, {"x": Here()}, checked=False), "host")


def test_an_update_in_tiles_is_one_launch_of_a_graph() -> None:
    """On a GPU, from the third update on, whatever tiles are in the lists. The variant of the kernel that reads a list
    is compiled with the first list, and never where there is none."""
    with installed(3, gpus=1) as gpus:
        picture = source(from_host(np.ones((N, N), np.float32)).sync())
        trial = Trial(smoothed(negated(picture)).to_host(), [picture])
        trial.update()
        assert not any("DAGPU_TILE_LIST" in unit.defines for unit in gpus.units)

        def update(number: int) -> None:
            place = slice(4 * (number % 2), 4 * (number % 2) + 1)
            picture.write((place, place), np.full((1, 1), number, np.float32))
            trial.check()

        for number in range(6):
            update(number)
        assert sum("DAGPU_TILE_LIST" in unit.defines for unit in gpus.units) == 2
        before = Counter(gpus.gpus[0].calls)
        picture.write((slice(4, 5), slice(4, 5)), np.full((1, 1), 7, np.float32))
        written = Counter(gpus.gpus[0].calls)
        trial.update()
        made: Counter[str] = Counter(gpus.gpus[0].calls) - written
        assert made["cuGraphLaunch"] == 1
        assert (
            not made["cuLaunchKernelEx"] + made["cuMemcpyHtoDAsync"] + made["cuMemAlloc"] + made["cuGraphInstantiate"]
        )
        assert before != written
