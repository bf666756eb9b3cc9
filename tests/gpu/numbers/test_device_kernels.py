"""Kernels as the GPU runs them, against NumPy: every way of cutting, every element type, every scalar."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dagpu import (
    Device,
    In,
    Kernel,
    Lazy,
    Out,
    Tile,
    bf16,
    bool_,
    empty,
    f16,
    f32,
    f64,
    from_host,
    full,
    i8,
    i16,
    i32,
    i64,
    kernel,
    u8,
    u16,
    u32,
    u64,
    use_device,
    value,
    zeros,
)
from dagpu.kernels.cuda_types import SPELLINGS

TYPES: dict[str, Any] = {
    np.dtype(scalar).name: scalar
    for scalar in (f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, bool_)
}  # fmt: skip


# ---- tiles of every rank


def places(rank: int) -> Kernel[...]:
    """y = a number that tells where its tile lies, how large it is, and where the element stands."""
    name = f"places_{rank}"
    declared: Any = {}
    source = f"""
__global__ void {name}(Tile<long long, {rank}> y) {{
    for (auto i : y) {{
        unsigned long long n = 0;  // wraps, as NumPy's numbers do
        for (int d = 0; d < {rank}; ++d) {{
            n = n * 7 + i[d];
            n = n * 7 + y.origin(d);
            n = n * 7 + y.tile_extent(d);
            n = n * 7 + y.tile_index(d);
            n = n * 7 + y.extent(d);
            n = n * 7 + y.stride(d);
        }}
        y[i] += static_cast<long long>(n);
    }}
}}
"""
    exec(f"def {name}(y: Out[i64]) -> None: ...", {"Out": Out, "i64": i64}, declared)
    made: Kernel[...] = kernel(cuda=source)(declared[name])
    made.host(_places_on_the_host)
    return made


def _places_on_the_host(y: Tile[i64]) -> None:
    n = np.zeros(y.shape, i64)
    whole = WHOLE[-1]
    for d in range(y.ndim):
        along = np.arange(y.at[d].start, y.at[d].stop).reshape([-1 if axis == d else 1 for axis in range(y.ndim)])
        stride = int(np.prod(whole[d + 1 :], dtype=int))
        for part in (along, y.at[d].start, y.shape[d], y.index[d], whole[d], stride):
            n = n * 7 + part
    y += n


WHOLE: list[tuple[int, ...]] = []
"""The shape of the tensor that is being cut: a host body sees its tile alone."""

PLACES = {rank: places(rank) for rank in (1, 2, 3, 4, 5)}


def placed(shape: tuple[int, ...], tile: tuple[int, ...], where: str, threads: int | None = None) -> NDArray[Any]:
    WHOLE.append(shape)
    k = PLACES[len(shape)]
    with use_device(where):
        chosen = k if threads is None or where == "host" else k.block(threads)
        op = chosen(zeros(shape, i64).partition(tile, partial=True)).first().unpartition().to_host()
        result: NDArray[Any] = op.sync()
        return result


@st.composite
def cuts(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    shape = tuple(draw(st.lists(st.integers(0, 9), min_size=1, max_size=5)))
    return shape, tuple(draw(st.integers(1, 11)) for _ in shape)


@settings(max_examples=150)
@given(cuts(), st.sampled_from([None, 1, 3, 32, 100, 1024]))
def test_every_element_of_every_tile_once(cuda: Device, cut: Any, threads: int | None) -> None:
    """For any rank, tile and number of threads, each element is visited once, by the block of its tile."""
    shape, tile = cut
    np.testing.assert_array_equal(placed(shape, tile, cuda.name, threads), placed(shape, tile, "host"))


@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        ((70_000, 2), (1, 2)),
        ((2, 70_000), (2, 1)),
        ((3, 2, 70_000), (3, 2, 1)),
        ((2, 300, 300), (1, 1, 1)),
        ((1 << 20,), (1,)),
        ((5_000_000,), (5_000_000,)),
        ((3000, 1000), (3000, 1000)),
        ((4096, 300), (4096, 7)),
        ((7, 5000), (3, 4999)),
    ],
    ids=str,
)
def test_grids_beyond_what_an_axis_of_a_launch_takes(cuda: Device, shape: Any, tile: Any) -> None:
    """65,535 blocks along y and z are no limit of a partition; nor is a tile larger than a block."""
    array = placed(shape, tile, cuda.name)
    extents = np.array(shape)
    strides = [int(np.prod(shape[d + 1 :], dtype=int)) for d in range(len(shape))]
    wanted = np.zeros(shape, i64)
    for d in range(len(shape)):
        at = np.arange(shape[d]).reshape([-1 if axis == d else 1 for axis in range(len(shape))])
        index = at // tile[d]
        origin = index * tile[d]
        for part in (at, origin, np.minimum(tile[d], extents[d] - origin), index, shape[d], strides[d]):
            wanted = wanted * 7 + part
    np.testing.assert_array_equal(array, wanted)


def test_more_elements_than_32_bits_count(cuda: Device) -> None:
    """A tensor of 2**31 + 2**20 elements: indices are 64 bits wide there."""

    @kernel(cuda="__global__ void low(Tile<unsigned char, 1> y) { for (auto i : y) y[i] = (i >> 20) & 255; }")
    def low(y: Out[u8]) -> None: ...

    count = (1 << 31) + (1 << 20)
    t = low(empty((count,), u8).partition((1 << 20,))).first().unpartition().sync()
    for start in (0, 1 << 20, (1 << 31) - 5, 1 << 31, count - 5):
        part = t.slice(slice(start, start + 5)).to_host().sync()
        assert part.tolist() == [(i >> 20) & 255 for i in range(start, start + 5)]


# ---- inputs of any strides


@kernel(
    cuda="""
__global__ void weigh(Tile<float, 3> y, View<const float, 3> x) {
    for (auto i : y) y[i] = x[i] + 1000.f * x.extent(0) + 100.f * x.extent(1) + 10.f * x(i[0], i[1], x.extent(2) - 1);
}
"""
)
def weigh(y: Out[f32], x: In[f32]) -> None:
    """Whole numbers, so exact."""


ranges = st.builds(
    slice, st.integers(0, 2), st.one_of(st.none(), st.integers(4, 9)), st.sampled_from([1, 2, 3])
) | st.builds(slice, st.none(), st.none(), st.sampled_from([-1, -2]))


@settings(max_examples=60)
@given(st.tuples(ranges, ranges, ranges), st.tuples(*[st.integers(1, 4)] * 3))
def test_strided_views_in(cuda: Device, cut: Any, tile: Any) -> None:
    """Slices of any step, backwards too, are inputs like any; their tensors stay as they are."""
    array = np.arange(9 * 8 * 7, dtype=f32).reshape(9, 8, 7) % 97
    x = array[cut]
    t = from_host(array).sync()
    lent = t.slice(*cut)
    op = weigh(empty(x.shape).partition(tile, partial=True), lent).first().unpartition().to_host()
    np.testing.assert_array_equal(op.sync(), x + 1000 * x.shape[0] + 100 * x.shape[1] + 10 * x[:, :, -1:])
    np.testing.assert_array_equal(lent.to_host().sync(), x)
    np.testing.assert_array_equal(t.to_host().sync(), array)


# ---- element types and scalars


def doubling(name: str) -> Kernel[...]:
    """y = x, at the end y[0] = the scalar a, of one element type."""
    c, k = SPELLINGS[name][0], f"pass_{name}"
    source = f"""
__global__ void {k}(Tile<{c}, 1> y, View<const {c}, 1> x, {c} a, {c} b) {{
    for (auto i : y) y[i] = i == 0 ? a : i == 1 ? b : x[i];
}}
"""
    names = {"In": In, "Out": Out, "Lazy": Lazy, "T": TYPES[name]}
    scalar = "bool" if name == "bool" else "float" if "float" in name else "int"
    declared: Any = {}
    exec(f"def {k}(y: Out[T], x: In[T], a: T, b: Lazy[{scalar}]) -> None: ...", names, declared)
    made: Kernel[...] = kernel(cuda=source)(declared[k])
    return made


def ends(name: str) -> tuple[Any, Any]:
    """Two values near the ends of an element type."""
    if name == "bool":
        return True, False
    if "float" in name:
        return {"float16": (65504.0, 0.1), "bfloat16": (3.0e38, 0.1)}.get(name, (-3.0e38, 0.1))
    low, high = np.iinfo(name).min, np.iinfo(name).max
    return int(low), int(high)


@pytest.mark.parametrize("name", TYPES)
def test_every_element_type_and_scalar(cuda: Device, name: str) -> None:
    """Arrays and scalars of each type reach the kernel as they are; a scalar rounds as NumPy does, lazy or not."""
    dtype, (a, b) = TYPES[name], ends(name)
    x = (np.arange(100) % 2 if name == "bool" else np.arange(100)).astype(dtype)
    k = doubling(name)
    op = k(empty((100,), dtype).partition((64,), partial=True), from_host(x), a, value(b))
    y = op.first().unpartition().to_host().sync()
    wanted = x.copy()
    wanted[0], wanted[1] = (np.float32(a), np.float32(b)) if name == "bfloat16" else (a, b)
    assert y.dtype == wanted.dtype
    assert y.tobytes() == wanted.tobytes()


@kernel(
    cuda="""
__global__ void half_steps(Tile<half, 1> y, View<const half, 1> x, half a) {
    for (auto i : y) y[i] = __hadd_rn(__hmul_rn(x[i], a), y[i]);
}
"""
)
def half_steps(y: Out[f16], x: In[f16], a: float) -> None:
    """y += a x, rounded after each operation."""


@kernel(
    cuda="""
__global__ void brain_steps(Tile<nv_bfloat16, 1> y, View<const nv_bfloat16, 1> x, float a) {
    for (auto i : y) y[i] = __float2bfloat16(__fmul_rn(a, __bfloat162float(x[i])));
}
"""
)
def brain_steps(y: Out[bf16], x: In[bf16], a: float) -> None:
    """y = a x, by way of f32."""


def test_halves(cuda: Device) -> None:
    """f16 arithmetic is NumPy's, and bf16 what is rounded from f32, to the bit."""
    x = np.random.default_rng(0).normal(size=5000)
    y = half_steps(full((5000,), 1.5, f16).partition((500,)), from_host(x.astype(f16)), 0.3)
    got = y.first().unpartition().to_host().sync()
    assert got.tobytes() == (x.astype(f16) * f16(0.3)).__add__(f16(1.5)).tobytes()
    z = brain_steps(empty((5000,), bf16).partition((500,)), from_host(x.astype(f32).astype(bf16)), 0.3)
    wanted = (f32(0.3) * x.astype(f32).astype(bf16).astype(f32)).astype(bf16)
    assert z.first().unpartition().to_host().sync().tobytes() == wanted.tobytes()


# ---- plain pointers


@kernel(
    abi="pointers",
    block=128,
    cuda="""
extern "C" __global__ void saxpy(float* __restrict__ y, float a, const float* __restrict__ x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = __fadd_rn(__fmul_rn(a, x[i]), y[i]);
}
""",
)
def saxpy(y: Out[f32], a: float, x: In[f32], n: int) -> None:
    """y += a x: CUDA code as it is found everywhere."""


@pytest.mark.parametrize("shape", [(1000,), (10, 100), (5, 20, 10)], ids=str)
def test_existing_code(cuda: Device, shape: tuple[int, ...]) -> None:
    """With `abi="pointers"` a kernel gets addresses and scalars, of tensors of any rank, and a grid of its own."""
    x = np.random.default_rng(0).normal(size=shape).astype(f32)
    y = from_host(x[::-1]).partition(shape)
    got = saxpy.grid(8)(y, 0.3, from_host(x), x.size).first().unpartition().to_host().sync()
    np.testing.assert_array_equal(got, f32(0.3) * x + x[::-1])
    blocks = saxpy.block(250)(from_host(x).reshape((1000,)).partition((250,)), 2.0, from_host(x), x.size)
    np.testing.assert_array_equal(blocks.first().unpartition().to_host().sync(), (f32(2) * x + x).ravel())


def test_outputs_that_are_lent(cuda: Device) -> None:
    """Kernels write into a tensor that somebody else owns, by pointer as well."""
    t = zeros((1000,)).sync()
    saxpy.grid(8)(t.borrow_mut().partition((1000,)), 2.0, from_host(np.ones(1000, f32)), 1000).sync()
    saxpy.grid(4)(t.borrow_mut().partition((1000,)), 1.0, from_host(np.ones(1000, f32)), 1000).sync()
    assert t.to_host().sync().tolist() == [3.0] * 512 + [2.0] * 488


def test_nothing_to_do(cuda: Device) -> None:
    """A tensor of no elements has no tiles: the kernel is not launched, and the run gives what it is given."""
    for shape, tile in (((0,), (4,)), ((3, 0), (1, 2)), ((0, 0, 0), (1, 1, 1))):
        assert placed(shape, tile, cuda.name).shape == shape


def test_threads_of_a_block_have_three_axes(cuda: Device) -> None:
    """`.block(x, y, z)`: the tile's elements are shared out among all of its threads."""
    for block in ((8, 8), (4, 4, 4), (1, 1, 64), (32, 32)):
        y = PLACES[2].block(*block)(zeros((33, 65), i64).partition((20, 30), partial=True))
        got = y.first().unpartition().to_host().sync()
        np.testing.assert_array_equal(got, placed((33, 65), (20, 30), "host"))
