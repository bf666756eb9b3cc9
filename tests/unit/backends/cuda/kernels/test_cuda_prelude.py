"""`Tile`, `View` and `Index` as kernels see them: run on the CPU, and compiled for the GPU where there is nvcc."""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from struct import pack
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from dagpu.backends.host.body_checks import TilePlace, places
from dagpu.testing import Tiles, View, check_tiling, contiguous_layout
from tests.conftest import only_deep
from tests.support.paths import ROOT
from tests.support.text_entries import TextEntries
from tests.unit.backends.cuda.kernels.prelude_texts import PRELUDE, VARIANTS, in_namespace, nvcc, packed

I64 = np.dtype(np.int64)


KERNELS = """
template <int N> void visit(Tile<long long, N> y, View<const long long, N> x) {
    for (auto i : y) y[i] += 100000 * x[i] + dagpu::thread_number();
}
template <int N> void tell(Tile<long long, N> y) {
    for (auto i : y) {
        y[i] = 0;
        for (int d = 0; d < N; ++d)
            y[i] = y[i] * 1000000 + y.tile_index(d) + 100 * y.origin(d) + 10000 * y.tile_extent(d);
    }
}
void look(Tile<long long, 1> y, View<const long long, 2> x, long long r, unsigned char c) {
    Index<2> at{{static_cast<dagpu::index_t>(r), c}};
    const long long found[] = {x(r, c), x[at], x.extent(0), x.extent(1), x.stride(0), x.stride(1), x.size(), *x.data()};
    for (auto i : y) y[i] = found[i];
    y[0] += 10 * y(0u) + y[dagpu::index_t(1)];
}
void tell_truth(Tile<long long, 1> y, View<const bool, 1> x, View<const bool, 0> one) {
    for (auto i : y) y[i] = 10000 * x[i] + 1000 * x(i[0]) + 100 * x[i[0]] + 10 * one() + one[Index<0>{}];
}
void probe(Tile<long long, 1> y, View<const long long, 2> x, long long at, long long r, long long c) {
    if (y.origin(0) == 0) y[at] = x(r, c);
}
"""
RANKS = (1, 2, 3, 4)


@pytest.fixture(scope="session")
def kernels() -> TextEntries:
    names = [*(f"{name}<{rank}>" for name in ("visit", "tell") for rank in RANKS), "look", "probe", "tell_truth"]
    return TextEntries(
        "".join(in_namespace(variant, KERNELS) for variant in VARIANTS),
        {f"{variant}_{re.sub('[<>]', '', name)}": f"{variant}::{name}" for variant in VARIANTS for name in names},
    )


def grid_of(variant: str, grid: Sequence[int]) -> tuple[int, ...]:
    return (int(np.prod(grid)),) if "LINEAR_GRID" in VARIANTS[variant] else tuple(grid)


def tiles_of(shape: tuple[int, ...], tile: tuple[int, ...], grid: tuple[int, ...]) -> Iterable[TilePlace]:
    """Return the tiles of an array by the host backend."""
    return places(Tiles(View(0, contiguous_layout(shape, I64)), tile, grid), grid)


def contiguous_or_not(variant: str, shape: Sequence[int], reverse: bool) -> NDArray[np.int64]:
    """An array of zeros; with gaps, turned and transposed where the variant takes strides."""
    if "STRIDED" not in VARIANTS[variant] or not shape:
        return np.zeros(shape, np.int64)
    wide = np.zeros([2 * extent for extent in reversed(shape)], np.int64)
    return wide.transpose()[tuple(slice(None, None, -2 if reverse else 2) for _ in shape)]


blocks = st.sampled_from([(1,), (7,), (32,), (256,), (4, 8), (3, 5, 2), (1, 1, 6)])
variants = st.sampled_from(sorted(VARIANTS))


@st.composite
def tilings(draw: st.DrawFn, max_rank: int = 3) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A shape and a tile, which need not divide it."""
    shape = tuple(draw(st.lists(st.integers(0, 9), min_size=1, max_size=max_rank)))
    return shape, tuple(draw(st.integers(1, 10)) for _ in shape)


# ---- running through tiles


@settings(max_examples=150)
@given(case=tilings(), block=blocks, variant=variants, reverse=st.booleans())
def test_each_element_is_visited_once_by_neighbouring_threads(
    kernels: TextEntries,
    case: tuple[tuple[int, ...], tuple[int, ...]],
    block: Sequence[int],
    variant: str,
    reverse: bool,
) -> None:
    """Counted in C order, element n of a tile is thread n's, or n minus a multiple of the number of threads."""
    shape, tile = case
    _, grid = check_tiling(shape, tile, True)
    y, x = contiguous_or_not(variant, shape, reverse), contiguous_or_not(variant, shape, not reverse)
    x[...] = np.arange(x.size).reshape(shape) + 1
    expected = 100000 * x
    for place in tiles_of(shape, tile, grid):
        part = expected[place.at]
        part += (np.arange(part.size) % np.prod(block, dtype=int)).reshape(part.shape)
    name = f"{variant}_visit{len(shape)}"
    if 0 not in grid:
        kernels.launch(name, grid_of(variant, grid), block, packed(variant, y, tile) + packed(variant, x))
    assert_array_equal(y, expected)


@settings(max_examples=100)
@given(case=tilings(), beyond=st.lists(st.integers(0, 2), min_size=3, max_size=3), variant=variants)
def test_a_tile_knows_its_place(
    kernels: TextEntries, case: tuple[tuple[int, ...], tuple[int, ...]], beyond: list[int], variant: str
) -> None:
    """Index, origin and extent are those of the host's tiles; a grid that reaches too far does no harm."""
    shape, tile = case
    _, grid = check_tiling(shape, tile, True)
    launched = [extent + more for extent, more in zip([*grid, 1, 1][:3], beyond, strict=True)]
    if "LINEAR_GRID" in VARIANTS[variant]:
        launched = [int(np.prod(grid)) + beyond[0]]
    y, expected = contiguous_or_not(variant, shape, False), np.zeros(shape, np.int64)
    for place in tiles_of(shape, tile, grid):
        code = 0
        for number, at, extent in zip(place.number, place.at, place.shape, strict=True):
            code = code * 1000000 + number + 100 * at.start + 10000 * extent
        expected[place.at] = code
    if 0 not in launched:
        kernels.launch(f"{variant}_tell{len(shape)}", launched, (5,), packed(variant, y, tile))
    assert_array_equal(y, expected)


@pytest.mark.parametrize("variant", [v for v in VARIANTS if "LINEAR_GRID" in VARIANTS[v]])
def test_more_axes_than_a_grid_has(kernels: TextEntries, variant: str) -> None:
    """Four axes of tiles, numbered along one axis of the launch."""
    y, tile = np.zeros((3, 4, 2, 5), np.int64), (2, 3, 1, 2)
    _, grid = check_tiling(y.shape, tile, True)
    x = np.arange(y.size).reshape(y.shape)
    packs = packed(variant, y, tile) + packed(variant, x)
    kernels.launch(f"{variant}_visit4", grid_of(variant, grid), (1,), packs)
    assert_array_equal(y, 100000 * x)


@pytest.mark.parametrize("variant", VARIANTS)
def test_extents_strides_and_access(kernels: TextEntries, variant: str) -> None:
    """Coordinates of any integer type and an `Index` reach the same element; strides count elements."""
    x = contiguous_or_not(variant, (3, 4), True)
    x[...] = np.arange(100, 112).reshape(3, 4)
    y = np.zeros(8, np.int64)
    packs = packed(variant, y, (8,)) + packed(variant, x) + pack("<qB7x", 2, 1)
    kernels.launch(f"{variant}_look", (1,), (1,), packs)
    strides = [stride // 8 for stride in x.strides]
    assert y[1:].tolist() == [109, 3, 4, *strides, 12, 100]
    assert y[0] == 109 + 10 * 109 + 109


REPORT = np.dtype(
    [("state", "i4"), ("argument", "i4"), ("rank", "i4"), ("kind", "i4"), ("at", "i8", 8), ("extent", "i8", 8)]
)


# ---- bounds


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("byte", [0, 1, 2, 128, 255])
def test_an_input_of_bools_is_read_as_truth(kernels: TextEntries, variant: str, byte: int) -> None:
    """Any byte but 0 is true, however it is reached; as a number it is 1."""
    y, x = np.zeros(4, np.int64), np.array([0, 1, byte, 255], np.uint8).view(np.bool_)
    one = np.array(byte, np.uint8).view(np.bool_)
    packs = packed(variant, y, (4,)) + packed(variant, x) + packed(variant, one)
    kernels.launch(f"{variant}_tell_truth", (1,), (2,), packs)
    assert y.tolist() == [11100 * truth + 11 * bool(byte) for truth in (0, 1, bool(byte), 1)]


@pytest.mark.parametrize("variant", [v for v in VARIANTS if "CHECKED" in VARIANTS[v]])
@pytest.mark.parametrize(
    ("at", "row", "column", "expected"),
    [
        (1, 2, 3, None),
        (0, 3, 0, (7, 2, 0, [3, 0], [3, 4])),
        (0, 0, -1, (7, 2, 0, [0, -1], [3, 4])),
        (0, 0, 1 << 32, (7, 2, 0, [0, 1 << 32], [3, 4])),
        (6, 0, 0, (4, 1, 1, [6], [6])),
        (-1, 0, 0, (4, 1, 1, [-1], [6])),
        (2, 0, 0, (4, 1, 2, [2], [6])),
        (2, 9, 9, (7, 2, 0, [9, 9], [3, 4])),
    ],
)
def test_a_violation_is_reported_and_not_carried_out(
    kernels: TextEntries, variant: str, at: int, row: int, column: int, expected: tuple[Any, ...] | None
) -> None:
    """Outside a view, a tensor or this block's tile: the first is told, and nothing else is touched."""
    report = np.zeros(REPORT.itemsize, np.uint8)
    y, x = np.full(6, -7, np.int64), np.arange(100, 112).reshape(3, 4)
    packs = packed(variant, y, (2,), report, 4) + packed(variant, x, None, report, 7) + pack("<qqq", at, row, column)
    kernels.launch(f"{variant}_probe", (3,), (1,), packs)
    found = report.view(REPORT)[0]
    if expected is None:
        assert (found["state"], y.tolist()) == (0, [-7, 111, -7, -7, -7, -7])
        return
    argument, rank, kind, index, extent = expected
    assert (found["state"], found["argument"], found["rank"], found["kind"]) == (2, argument, rank, kind)
    assert (found["at"][:rank].tolist(), found["extent"][:rank].tolist()) == (index, extent)
    refused_read = kind == 0 and at == 0
    assert y.tolist() == [0 if refused_read else -7, -7, -7, -7, -7, -7]


NOT_WHOLE = re.compile("`|leave_mark")
"""Words of docstrings, and of kernels that need more text to stand before them."""


def kernel_texts() -> Iterator[str]:
    """Every kernel text with a loop over a tile in the examples, tests and benchmarks, and the one in the README."""
    elsewhere = (Path(__file__), ROOT / "tests" / "gpu", ROOT / "tests" / "typing")
    for path in (file for folder in ("examples", "tests", "benchmarks") for file in (ROOT / folder).rglob("*.py")):
        if not {path, *path.parents}.isdisjoint(elsewhere):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
                continue
            if "@kernel" in node.value:  # a program
                continue
            if "__global__" in node.value and "for (auto i :" in node.value and not NOT_WHOLE.search(node.value):
                yield node.value
    yield from re.findall(r'cuda="""(.*?)"""', (ROOT / "README.md").read_text(), re.DOTALL)


def alone(text: str) -> str:
    """A text that leaves none of its macros to the next one."""
    return text + "".join([f"\n#undef {name}\n" for name in re.findall(r"#define (\w+)", text)])


HALVES = """
__global__ void halve(Tile<__half, 2> y, View<const __nv_bfloat16, 1> x) {
    for (auto i : y) y[i] = __float2half(0.5f * __half2float(y[i]) + __bfloat162float(x[i[1]]));
}
__global__ void names(Tile<uint8_t, 1> y, View<const int64_t, 3> x, size_t n) {
    for (auto i : y) y[i] = x(0, i, n) > 0 ? INFINITY > NAN : 1;
}
"""


# ---- compiling for the GPU


@only_deep
def test_every_kernel_in_the_project_compiles(tmp_path: Path) -> None:
    """nvcc compiles every kernel in the project, in four variants of the parameters."""
    texts = list(dict.fromkeys(kernel_texts()))
    assert len(texts) > 15
    body = "".join(f"namespace k{number} {{{alone(text)}}}\n" for number, text in enumerate([*texts, HALVES]))
    parts = [in_namespace(variant, body) for variant in ("plain", "strided", "wide", "checked")]
    (tmp_path / "all.cu").write_text(
        "#include <cstdint>\n#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n" + "".join(parts)
    )
    nvcc("-cubin", "-Xptxas", "-O0", "all.cu", cwd=tmp_path)  # nobody runs them: assembled, not optimised


COMPARED = """
__global__ void saxpy_tile(Tile<float, 1> y, float a, View<const float, 1> x) {
    for (auto i : y) y[i] += a * x[i];
}
__global__ void saxpy_raw(float* y, const float* x, float a, int tile, int n) {
    int first = blockIdx.x * tile, end = min(first + tile, n);
    for (int i = first + threadIdx.x; i < end; i += blockDim.x) y[i] += a * x[i];
}
__global__ void gemm_tile(Tile<float, 2> c, View<const float, 2> a, View<const float, 2> b) {
    for (auto i : c) {
        float sum = 0.0f;
        for (int k = 0; k < a.extent(1); ++k) sum += a(i[0], k) * b(k, i[1]);
        c[i] = sum;
    }
}
__global__ void gemm_raw(float* c, const float* a, const float* b, int n, int m, int l, int tile) {
    for (int t = threadIdx.x; t < tile * tile; t += blockDim.x) {
        int row = blockIdx.x * tile + t / tile, column = blockIdx.y * tile + t % tile;
        float sum = 0.0f;
        for (int k = 0; k < l; ++k) sum += a[row * l + k] * b[k * m + column];
        c[row * m + column] = sum;
    }
}
"""


def inner_loops(ptx: str) -> dict[str, int]:
    """The number of instructions in the first loop that closes in each kernel: the innermost, unrolled."""
    found: dict[str, int] = {}
    for name, body in re.findall(r"\.entry \w*?([a-z]+_(?:tile|raw))\w*\((.*?)^\}", ptx, re.DOTALL | re.MULTILINE):
        labels: dict[str, int] = {}
        count = 0
        for line in map(str.strip, body.splitlines()):
            if label := re.match(r"(\$L\w+):", line):
                labels[label[1]] = count
            elif line.endswith(";") and not line.startswith("."):
                count += 1
                if (branch := re.search(r"bra\S*\s+(\$L\w+);", line)) and branch[1] in labels:
                    found.setdefault(name, count - labels[branch[1]])
    return found


def test_dense_tiles_cost_what_pointers_cost(tmp_path: Path) -> None:
    """The inner loops of saxpy and of a naive matrix product have as many instructions as with raw pointers."""
    (tmp_path / "loops.cu").write_text(PRELUDE + COMPARED)
    nvcc("-ptx", "loops.cu", cwd=tmp_path)
    loops = inner_loops((tmp_path / "loops.ptx").read_text())
    assert loops["saxpy_tile"] == loops["saxpy_raw"]
    assert loops["gemm_tile"] == loops["gemm_raw"]
