"""Launches of a list of tiles, and what a tile may see, from the packed parameters to the prelude on the CPU."""

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from dagpu.backends.cuda.commands.buffers import violations
from dagpu.backends.host.body_checks import listed
from dagpu.backends.kernel_text.launch_params import (
    CHECKED,
    FEW_TILES,
    FEW_TILES_THREADS,
    LINEAR_GRID,
    LIST,
    REPORT,
    SEES,
    STRIDED,
    THREADS,
    TILE_LIST,
    block_for,
    macros,
    pack,
)
from dagpu.common.layout import Layout
from dagpu.ops.kernel_spec import Sight
from dagpu.testing import (
    Form,
    Function,
    KernelSpec,
    Launch,
    Limits,
    Param,
    Tiles,
    View,
    check_tiling,
    contiguous_layout,
)
from tests.support.text_entries import TextEntries
from tests.unit.backends.cuda.kernels.prelude_texts import in_variant

F32 = np.dtype(np.float32)
I32 = np.dtype(np.int32)
WIDE_GRID = Limits(1024, (1024, 1024, 64), (2**31 - 1, 65535, 65535), 1, 1)
NARROW_GRID = Limits(1024, (1024, 1024, 64), (2**31 - 1, 1, 1), 1, 1)

TURNS = """
void turn(Tile<float, 2> y, View<const float, 2> x) {
    for (auto i : y) y[i] = 1.0f + x(i[1], i[0]);
}
"""
VARIANTS = [
    TILE_LIST,
    TILE_LIST | STRIDED,
    CHECKED | SEES,
    CHECKED | SEES | LINEAR_GRID,
    CHECKED | SEES | TILE_LIST,
    CHECKED | SEES | TILE_LIST | STRIDED,
]
RIGHT = Sight(((1, 0, 0), (0, 0, 0)), "(Along(1), Along(0))")


@pytest.fixture(scope="session")
def kernels() -> TextEntries:
    texts = [in_variant(f"v{variant}", macros(variant), TURNS) for variant in VARIANTS]
    return TextEntries("".join(texts), {f"v{variant}_turn": f"v{variant}::turn" for variant in VARIANTS})


def launch_of(
    rows: int, columns: int, tile: tuple[int, int], sight: Sight, *, checked: bool, length: int | None, strided: bool
) -> Launch:
    """A launch of `turn` on an output in buffer 0 and an input in buffer 1, with a list in buffer 2."""
    out, source = contiguous_layout((rows, columns), F32), contiguous_layout((columns, rows), F32)
    if strided:
        source = Layout(F32, (columns, rows), (8 * rows, 8), 4)
    params = (Param("y", Form.OUT, F32, 2, None, False), Param("x", Form.IN, F32, 2, None, False))
    spec = KernelSpec(
        "turn", params, "", "k.cu", abi="views", block=None, options=(), checked=checked, origin=None,
        sees=(None, sight),
    )  # fmt: skip
    tiles = Tiles(View(0, out), *check_tiling((rows, columns), tile, True))
    tile_list = None if length is None else View(2, Layout(I32, (length,), (4,), 8))
    return Launch(spec, (tiles, View(1, source)), tiles.grid, (1,), (0,), 0, None, tile_list)


def run(kernels: TextEntries, launch: Launch, limits: Limits, numbers: list[int]) -> tuple[Any, Any, NDArray[np.uint8]]:
    """Launch it on real memory; return output, input and the reports."""
    packed = pack(launch, limits)
    assert packed is not None
    tiles, source = launch.args
    y = np.full(tiles.view.layout.shape, -7, np.float32)
    memory = np.arange(64 + 2 * prod(source.layout.shape), dtype=np.float32)
    x: NDArray[Any] = np.ndarray(source.layout.shape, F32, memory.data, source.layout.offset, source.layout.strides)
    listing = np.array([-1, -1, *numbers], np.int32)
    report = np.zeros(REPORT, np.uint8)
    parameters = packed.parameters
    bases = {LIST: listing.ctypes.data, 0: y.ctypes.data, 1: memory.ctypes.data}
    for at, index, distance in packed.form.pointers:
        parameters[at : at + 8] = (bases[index] + distance).to_bytes(8, "little")
    for at in packed.form.reports:
        parameters[at : at + 8] = report.ctypes.data.to_bytes(8, "little")
    kernels.launch(f"v{packed.form.variant}_turn", packed.form.grid, (4,), bytes(parameters))
    return y, x, report


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, int, tuple[int, int], list[int] | None]:
    """Extents, a tile that need not divide them, and a list of tiles with numbers of none at its end; or no list."""
    rows, columns = draw(st.integers(1, 7)), draw(st.integers(1, 7))
    tile = draw(st.integers(1, 8)), draw(st.integers(1, 8))
    total = -(-rows // tile[0]) * -(-columns // tile[1])
    chosen = draw(st.none() | st.sets(st.integers(0, total - 1)).map(sorted))
    return rows, columns, tile, None if chosen is None else [*chosen, *[total] * draw(st.integers(1, 3))]


@settings(max_examples=150)
@given(case=cases(), checked=st.booleans(), strided=st.booleans(), narrow=st.booleans())
def test_the_tiles_of_a_list_are_made_and_no_others(
    kernels: TextEntries,
    case: tuple[int, int, tuple[int, int], list[int] | None],
    checked: bool,
    strided: bool,
    narrow: bool,
) -> None:
    """They come out as in a launch of all tiles; blocks whose number is no tile's do nothing; nothing is reported."""
    rows, columns, tile, numbers = case
    if numbers is None and (not checked or strided):
        return  # an ordinary launch
    length = None if numbers is None else len(numbers)
    launch = launch_of(rows, columns, tile, RIGHT, checked=checked, length=length, strided=strided)
    linear = narrow and numbers is None and launch.grid[1] > 1
    y, x, report = run(kernels, launch, NARROW_GRID if linear else WIDE_GRID, numbers or [])
    expected = np.full(y.shape, -7, np.float32) if numbers is not None else 1 + x.T
    for place in listed(launch.args[0], launch.grid, [n for n in numbers or [] if n < prod(launch.grid)]):
        expected[place.at] = 1 + x.T[place.at]
    assert_array_equal(y, expected)
    assert not report.any()


@pytest.mark.parametrize("length", [None, 2])
@pytest.mark.parametrize("limits", [WIDE_GRID, NARROW_GRID])
def test_a_tile_that_looks_at_more_is_reported(kernels: TextEntries, length: int | None, limits: Limits) -> None:
    """The access is not made, and the error names the element, the tile and the declaration."""
    sight = Sight(((0, 0, 0), (1, 0, 0)), "Here()")
    launch = launch_of(4, 4, (2, 2), sight, checked=True, length=length, strided=False)
    y, _, report = run(kernels, launch, limits, [1, 4])
    ((_, error),) = violations([launch], report)
    first = "x[2, 0] from tile (0, 1)" in str(error) or "x[0, 2] from tile (1, 0)" in str(error)  # as blocks run
    assert first
    assert length is None or "tile (0, 1)" in str(error)
    assert str(error).startswith("turn looked at x[")
    assert ", and declares Here() of x. Declare what it looks at. " in str(error)
    assert y[0, 2] == 1  # what a refused access reads is 0


def test_a_margin_may_be_wider_than_an_int(kernels: TextEntries) -> None:
    """It shows everything."""
    sight = Sight(((0, 2**40, 2**40), (1, 2**40, 2**40)), "Around(1099511627776, 1099511627776)")
    launch = launch_of(4, 6, (2, 2), sight, checked=True, length=2, strided=False)
    y, x, report = run(kernels, launch, WIDE_GRID, [0, 5])
    assert not report.any()
    assert_array_equal(y[2:, 4:], 1 + x.T[2:, 4:])


def test_a_launch_without_a_list_is_compiled_and_packed_as_before() -> None:
    """What a kernel declares is in its parameters only if it is checked, and a list only if it has one."""
    plain = launch_of(4, 4, (2, 2), RIGHT, checked=False, length=None, strided=False)
    packed = pack(plain, WIDE_GRID)
    assert packed is not None
    assert packed.form.variant == 0
    assert macros(packed.form.variant) == ()
    assert len(packed.parameters) == 8 + 4 * 4 + 8 + 2 * 4


@pytest.mark.parametrize(
    ("length", "tile", "changes", "most", "static", "threads"),
    [
        (1, (64, 64), {}, 1024, 0, FEW_TILES_THREADS),
        (FEW_TILES, (64, 64), {}, 1024, 0, FEW_TILES_THREADS),
        (FEW_TILES + 1, (64, 64), {}, 1024, 0, THREADS),
        (None, (64, 64), {}, 1024, 0, THREADS),
        (1, (16, 17), {}, 1024, 0, 288),
        (1, (16, 16), {}, 1024, 0, THREADS),
        (1, (5, 5), {}, 1024, 0, 32),
        (1, (64, 64), {}, 400, 0, 384),
        (1, (64, 64), {}, 200, 0, 192),
        (None, (64, 64), {}, 200, 0, 192),
        (1, (64, 64), {}, 1024, 4, THREADS),
        (1, (64, 64), {"shared_bytes": 4}, 1024, 0, THREADS),
        (1, (64, 64), {"block": (128,)}, 1024, 0, 128),
    ],
)
def test_a_few_tiles_have_more_threads(
    length: int | None, tile: tuple[int, int], changes: dict[str, Any], most: int, static: int, threads: int
) -> None:
    """If dagpu chooses the block, and the kernel has no shared memory that is cut for it."""
    launch = launch_of(9000, 64, tile, RIGHT, checked=False, length=length, strided=False)
    launch = replace(launch, kernel=replace(launch.kernel, **changes))
    packed = pack(launch, WIDE_GRID)
    assert packed is not None
    function = Function(lambda *_: None, most, static, 40, lambda _: None)
    assert block_for(launch, packed.form, function) == (threads, 1, 1)
