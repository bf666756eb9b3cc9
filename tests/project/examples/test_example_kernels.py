"""The CUDA C++ of the larger examples: run on the host, it agrees with the host bodies."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dagpu import Kernel, f32, f64, from_host, u8, u16
from tests.support.example_scripts import example
from tests.support.text_runs import launch_text
from tests.unit.backends.cuda.kernels.prelude_texts import in_namespace, nvcc

MODULES = (
    "cholesky.kernels",
    "dashboard",
    "digits.kernels",
    "flash_attention.gradient",
    "flash_attention.kernels",
    "life",
    "photo.kernels",
    "slider",
    "video",
)

Array: TypeAlias = NDArray[Any]


@final
@dataclass(frozen=True)
class Cut:
    """An output and its tile; what the array holds is there before the launch."""

    array: Array
    tile: tuple[int, ...]


@pytest.fixture(scope="session")
def modules() -> dict[str, Any]:
    """The modules of the examples that declare kernels."""
    return {name: example(name) for name in MODULES}


@pytest.fixture(scope="session")
def kernels(modules: dict[str, Any]) -> dict[str, Kernel[...]]:
    """By name."""
    found = [each for module in modules.values() for each in vars(module).values() if isinstance(each, Kernel)]
    return {each.spec.name: each for each in found}


# ---- both ways ------------------------------------------------------------------------------------------


def by_host(kernel: Kernel[...], arguments: tuple[Any, ...]) -> Array:
    """Return the first argument of a launch after running the host body."""
    ops = [
        from_host(each.array).partition(each.tile, partial=True)
        if isinstance(each, Cut)
        else from_host(each) if isinstance(each, np.ndarray) else each
        for each in arguments
    ]  # fmt: skip
    found: Array = kernel(*ops).first().unpartition().to_host().sync()
    return found


def by_text(kernel: Kernel[...], arguments: tuple[Any, ...]) -> Array:
    """Return the first argument of a launch after running the CUDA text, which must not depend on the order of
    threads and blocks."""
    given = [each.array.copy() if isinstance(each, Cut) else each for each in arguments]
    launch_text(kernel.spec, given, [each.tile for each in arguments if isinstance(each, Cut)])
    target: Array = given[0]
    return target


def both(kernel: Kernel[...], *arguments: Any) -> tuple[Array, Array]:
    """By the host body and by the CUDA text."""
    return by_host(kernel, arguments), by_text(kernel, arguments)


Kernels: TypeAlias = dict[str, Kernel[...]]
few = settings(max_examples=12)


def bytes_(seed: int, *shape: int) -> NDArray[u8]:
    return np.random.default_rng(seed).integers(0, 256, shape, u8)


# ---- photo ----------------------------------------------------------------------------------------------


@few
@given(rows=st.integers(1, 20), columns=st.integers(1, 70), seed=st.integers(0, 99))
def test_the_photo_kernels_agree_to_the_bit(kernels: Kernels, rows: int, columns: int, seed: int) -> None:
    """Blur, Sobel and tone curve, on pictures smaller than the filters too."""
    shape, tile = (rows, columns, 3), (8, 64, 3)
    x, curve = bytes_(seed, *shape), bytes_(seed + 1, 256)
    wide, wide_cuda = both(kernels["blur_rows"], Cut(np.zeros(shape, u16), tile), x)
    np.testing.assert_array_equal(wide, wide_cuda)
    soft, soft_cuda = both(kernels["blur_columns"], Cut(np.zeros(shape, u8), tile), wide)
    np.testing.assert_array_equal(soft, soft_cuda)
    edges, edges_cuda = both(kernels["sobel"], Cut(np.zeros(shape[:2], u8), tile[:2]), x, 6)
    np.testing.assert_array_equal(edges, edges_cuda)
    above = rows // 3
    part = Cut(np.zeros((rows - above, columns, 3), u8), tile)
    np.testing.assert_array_equal(*both(kernels["develop"], part, x, soft, edges, curve, above))


def test_a_blur_of_white_is_white(kernels: Kernels) -> None:
    """The largest sums there are fit their types."""
    white = np.full((9, 9, 3), 255, u8)
    for wide in both(kernels["blur_rows"], Cut(np.zeros(white.shape, u16), (8, 64, 3)), white):
        assert (wide == 65280).all()
        for soft in both(kernels["blur_columns"], Cut(np.zeros(white.shape, u8), (8, 64, 3)), wide):
            np.testing.assert_array_equal(soft, white)


# ---- video ----------------------------------------------------------------------------------------------


@few
@given(rows=st.integers(1, 9), columns=st.integers(1, 70), radius=st.integers(0, 5), seed=st.integers(0, 99))
def test_the_video_kernels_agree(kernels: Kernels, rows: int, columns: int, radius: int, seed: int) -> None:
    """The blur, of pictures narrower than it too, and the running mean."""
    x, other = np.random.default_rng(seed).random((2, rows, columns), dtype=f32)
    soft, soft_cuda = both(kernels["blur"], Cut(np.zeros(x.shape, f32), (4, 32)), x, radius)
    np.testing.assert_allclose(soft, soft_cuda, atol=1e-6)
    mixed, mixed_cuda = both(kernels["mix"], Cut(np.zeros(x.shape, f32), (4, 32)), x, other, 0.25)
    np.testing.assert_allclose(mixed, mixed_cuda, atol=1e-6)


# ---- slider ---------------------------------------------------------------------------------------------


@few
@given(rows=st.integers(1, 9), columns=st.integers(1, 70), radius=st.integers(0, 5), seed=st.integers(0, 99))
def test_the_slider_kernels_agree(kernels: Kernels, rows: int, columns: int, radius: int, seed: int) -> None:
    """Each of the three kernels, of pictures narrower than the blur too."""
    x, other = np.random.default_rng(seed).random((2, rows, columns), dtype=f32)

    def out() -> Cut:
        return Cut(np.zeros(x.shape, f32), (4, 32))

    for name, arguments in [("soften", (x, radius)), ("brighten", (x, 1.2)), ("blend", (x, other, 0.25))]:
        host, cuda = both(kernels[name], out(), *arguments)
        np.testing.assert_allclose(host, cuda, atol=1e-6)


# ---- dashboard ------------------------------------------------------------------------------------------


@few
@given(
    rows=st.integers(1, 40), columns=st.integers(1, 70), limit=st.sampled_from([0.0, 0.5, 2.0]), seed=st.integers(0, 99)
)
def test_the_dashboard_kernels_agree(kernels: Kernels, rows: int, columns: int, limit: float, seed: int) -> None:
    """The scores, also of a sensor that reports one value alone, and the flags of the same scores."""
    x = np.random.default_rng(seed).random((rows, columns), dtype=f32)
    x[0] = 0.5
    host, cuda = both(kernels["scores"], Cut(np.zeros(rows, f32), (8,)), x)
    np.testing.assert_allclose(host, cuda, rtol=1e-4, atol=1e-5)
    assert cuda[0] == 0
    np.testing.assert_array_equal(*both(kernels["flags"], Cut(np.zeros(rows, f32), (8,)), host, limit))


# ---- life -----------------------------------------------------------------------------------------------


@few
@given(rows=st.integers(1, 20), columns=st.integers(1, 70), zoom=st.integers(1, 3), seed=st.integers(0, 99))
def test_the_life_kernels_agree_to_the_bit(kernels: Kernels, rows: int, columns: int, zoom: int, seed: int) -> None:
    """A generation on any torus, of living, fading and dead cells; and its picture."""
    board = bytes_(seed, rows, columns)
    board[np.random.default_rng(seed).random(board.shape) < 0.5] = 255
    tile = (16, 64)
    np.testing.assert_array_equal(*both(kernels["live"], Cut(np.zeros(board.shape, u8), tile), board))
    large = np.zeros((rows * zoom, columns * zoom), u8)
    np.testing.assert_array_equal(*both(kernels["paint"], Cut(large, tile), board, zoom))


# ---- digits ---------------------------------------------------------------------------------------------


@few
@given(
    extents=st.tuples(*[st.integers(1, 40)] * 3), turn_a=st.booleans(), turn_b=st.booleans(), seed=st.integers(0, 99)
)
def test_the_digits_product_agrees(
    kernels: Kernels, extents: tuple[int, int, int], turn_a: bool, turn_b: bool, seed: int
) -> None:
    """Operands as they are and turned; inner extents that are no multiple of the loop's unrolling too."""
    n, k, m = extents
    random = np.random.default_rng(seed)
    a, b = (random.random(shape, dtype=f32) for shape in ((k, n) if turn_a else (n, k), (m, k) if turn_b else (k, m)))
    host, cuda = both(kernels["gemm"], Cut(np.zeros((n, m), f32), (16, 16)), a, b, turn_a, turn_b)
    np.testing.assert_allclose(cuda, host, rtol=1e-5)


# ---- cholesky -------------------------------------------------------------------------------------------


def definite(edge: int) -> NDArray[f64]:
    """Symmetric and positive definite."""
    x = np.random.default_rng(edge).standard_normal((edge, edge))
    return np.asarray(x @ x.T / edge + np.eye(edge))


@pytest.mark.parametrize("edge", [16, 48])
def test_the_cholesky_kernels_agree(kernels: Kernels, edge: int) -> None:
    """Factor, solve and update of a tile."""
    matrix, random = definite(edge), np.random.default_rng(1)
    by_numpy, by_text = both(kernels["factor"], Cut(matrix, (edge, edge)))
    np.testing.assert_allclose(by_text, by_numpy, atol=1e-13)
    x, other = (random.standard_normal((edge, edge)) for _ in range(2))
    host, cuda = both(kernels["solve"], Cut(x, (16, edge)), by_numpy)
    np.testing.assert_allclose(cuda, host, atol=1e-13)
    np.testing.assert_allclose(cuda @ by_numpy.T, x, atol=1e-13)
    host, cuda = both(kernels["update"], Cut(matrix, (16, 16)), x, other)
    np.testing.assert_allclose(cuda, host, atol=1e-13)


# ---- attention ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("length", "width"), [(1, 16), (70, 16), (128, 32), (65, 64)])
def test_the_attention_kernels_agree(kernels: Kernels, length: int, width: int, causal: bool) -> None:
    """Every width, blocks of queries and of keys that are not full, and scores beyond what exp can take."""
    random = np.random.default_rng(length)
    q, k, v = (random.standard_normal((2, length, width), dtype=f32) for _ in range(3))
    q[1] *= 40
    host, cuda = both(
        kernels["attention"],
        Cut(np.zeros_like(q), (1, 64, width)),
        Cut(np.zeros_like(q[:, :, :1]), (1, 64, 1)),
        q,
        k,
        v,
        1 / math.sqrt(width),
        causal,
    )
    assert np.isfinite(cuda).all()
    np.testing.assert_allclose(cuda[0], host[0], atol=1e-5)
    np.testing.assert_allclose(cuda[1], host[1], atol=5e-4)  # scores of 1,000 are off by as much in f32


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("length", "width"), [(1, 16), (70, 16), (65, 64)])
def test_the_kernels_of_attentions_gradient_agree(kernels: Kernels, length: int, width: int, causal: bool) -> None:
    """By queries, and by keys and values, whose first output is that of the keys."""
    random = np.random.default_rng(length)
    q, k, v, g = (random.standard_normal((2, length, width), dtype=f32) for _ in range(4))
    sums, dots = random.random((2, length, 1), dtype=f32) + 5, random.random((2, length, 1), dtype=f32)
    cut, given = Cut(np.zeros_like(q), (1, 64, width)), (g, q, k, v, sums, dots, 1 / math.sqrt(width), causal)
    for outputs, name in (((cut,), "by_queries"), ((cut, cut), "by_keys")):
        host, cuda = both(kernels[name], *outputs, *given)
        np.testing.assert_allclose(cuda, host, rtol=1e-4, atol=1e-5 * float(np.abs(host).max()))


# ---- compiling for the GPU ------------------------------------------------------------------------------


def test_kernels_without_a_loop_over_a_tile_compile(kernels: Kernels, tmp_path: Path) -> None:
    """nvcc compiles these kernels, and keeps all values of a thread that belong in registers there."""
    texts = [each.spec.cuda for each in kernels.values() if "for (auto i :" not in each.spec.cuda]
    assert len(texts) == 6
    (tmp_path / "all.cu").write_text("#include <cstdint>\n" + in_namespace("plain", "".join(texts)))
    said = nvcc("-cubin", "-Xptxas", "-v", "all.cu", cwd=tmp_path)
    assert said.count(" 0 bytes spill stores") == len(texts), said
