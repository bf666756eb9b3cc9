"""The kernels of the GPU benchmarks in dagpu, on Tile and View and on plain pointers, and ops of these kernels.

The kernels on pointers are the text of floor/kernels.cu, which the peers also launch. Its comments describe each.
"""

from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dagpu import (
    Device,
    DeviceOp,
    In,
    Out,
    SharedTensor,
    Tensor,
    Tile,
    empty,
    f32,
    from_host,
    full,
    kernel,
    use_device,
    zeros,
    zip_ops,
)

FLOOR = Path(__file__).parents[1] / "peers" / "floor"
SIZE, BLOCK = 2048, 256
"""Number of elements of a tiny kernel; number of threads of each block, and of elements of each tile."""
FACTOR = 1.03125
"""Factor of the tiny kernel. A thousand factors multiply to 2 to the 44, so the result shows every launch."""
BRANCHES, DEPTH, WIDTH, SPIN_US = 4, 8, 1024, 47.0
"""The fork-join: branches, kernels of each, elements of each, and the microseconds of each kernel."""
STRETCH, EDGE = 4096, 64
"""Elements of saxpy's tile; rows and columns of gemm's."""

Op: TypeAlias = DeviceOp[Any, Any, Any]
Array: TypeAlias = NDArray[f32]

SCALE_CU = "__global__ void scale(Tile<float, 1> y, float a) { for (auto i : y) y[i] *= a; }"

SPIN_CU = """
__global__ void spin(Tile<float, 1> y, float microseconds) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - start < static_cast<unsigned long long>(microseconds * 1000.0f));
    for (auto i : y) y[i] += 1.0f;
}
"""

SAXPY_CU = """
__global__ void saxpy(Tile<float, 1> y, float a, View<const float, 1> x) { for (auto i : y) y[i] += a * x[i]; }
"""

GEMM_CU = """
__global__ void gemm(Tile<float, 2> c, View<const float, 2> a, View<const float, 2> b) {
    __shared__ float left[64][17], right[16][64];
    int row = c.origin(0), column = c.origin(1);
    int down = threadIdx.x / 16, across = threadIdx.x % 16;
    float sum[4][4] = {};
    for (int start = 0; start < a.extent(1); start += 16) {
        for (int t = threadIdx.x; t < 64 * 16; t += 256) {
            left[t / 16][t % 16] = a(row + t / 16, start + t % 16);
            right[t / 64][t % 64] = b(start + t / 64, column + t % 64);
        }
        __syncthreads();
        for (int step = 0; step < 16; ++step)
            for (int i = 0; i < 4; ++i)
                for (int j = 0; j < 4; ++j) sum[i][j] += left[down + 16 * i][step] * right[step][across + 16 * j];
        __syncthreads();
    }
    for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) c(row + down + 16 * i, column + across + 16 * j) = sum[i][j];
}
"""


@kernel(cuda=SCALE_CU, block=BLOCK)
def scale(y: Out[f32], a: float) -> None:
    """y *= a"""


@kernel(cuda=SPIN_CU, block=BLOCK)
def spin(y: Out[f32], microseconds: float) -> None:
    """y += 1, after `microseconds`; on the host at once."""


@kernel(cuda=SAXPY_CU, block=BLOCK)
def saxpy(y: Out[f32], a: float, x: In[f32]) -> None:
    """y += a x"""


@kernel(cuda=GEMM_CU, block=256)
def gemm(c: Out[f32], a: In[f32], b: In[f32]) -> None:
    """c = a b"""


@scale.host
def _(y: Tile[f32], a: float) -> None:
    with np.errstate(all="ignore"):  # a chain starts with uninitialized memory
        y *= np.float32(a)


@spin.host
def _(y: Tile[f32], microseconds: float) -> None:
    y += np.float32(1)


@saxpy.host
def _(y: Tile[f32], a: float, x: Array) -> None:
    y += np.float32(a) * x[y.at]


@gemm.host
def _(c: Tile[f32], a: Array, b: Array) -> None:
    c[...] = a[c.at[0]] @ b[:, c.at[1]]


def _on_pointers() -> tuple[Any, Any]:
    """Return saxpy and gemm on plain pointers, with their names in floor/kernels.cu."""

    @kernel(cuda=FLOOR / "kernels.cu", block=BLOCK, abi="pointers")
    def saxpy(y: Out[f32], a: float, x: In[f32], n: int) -> None:
        """y += a x"""

    @kernel(cuda=FLOOR / "kernels.cu", block=256, abi="pointers")
    def gemm(c: Out[f32], a: In[f32], b: In[f32], m: int, n: int, k: int) -> None:
        """c = a b"""

    @saxpy.host
    def _(y: Tile[f32], a: float, x: Array, n: int) -> None:
        y += np.float32(a) * x[y.at]

    @gemm.host
    def _(c: Tile[f32], a: Array, b: Array, m: int, n: int, k: int) -> None:
        c[...] = a[c.at[0]] @ b[:, c.at[1]]

    return saxpy, gemm


pointer_saxpy, pointer_gemm = _on_pointers()


# ---- ops


def build_chain(n: int, start: Op | None = None) -> Op:
    """Return an op of `n` tiny launches in a row, on uninitialized memory if `start` is not given."""
    op: Op = empty((SIZE,)) if start is None else start
    for _ in range(n):
        op = scale(op.partition((BLOCK,)), FACTOR).first().unpartition()
    return op


def build_spin(microseconds: float) -> Op:
    """Return an op of one launch that takes `microseconds`."""
    return spin(empty((SIZE,)).partition((BLOCK,)), microseconds).first().unpartition()


def build_fork_join(microseconds: float = SPIN_US) -> Op:
    """Return four branches of eight kernels that take `microseconds` each, by one plain `zip_ops`."""
    return zip_ops(*(_branch(microseconds) for _ in range(BRANCHES)))


def _branch(microseconds: float) -> Op:
    op: Op = zeros((WIDTH,))
    for _ in range(DEPTH):
        op = spin(op.partition((BLOCK,)), microseconds).first().unpartition()
    return op


def build_saxpys(n: int, x: SharedTensor[f32], pointers: bool) -> Op:
    """Return an op of `n` times y += x / 2, from y = 0. x: (size,)."""
    op: Op = zeros((x.size,))
    for _ in range(n):
        y = op.partition((STRETCH,))
        if pointers:
            launch = pointer_saxpy.grid(-(-x.size // STRETCH))(y, 0.5, x.clone(), x.size)
        else:
            launch = saxpy(y, 0.5, x.clone())
        op = launch.first().unpartition()
    return op


def build_gemms(n: int, a: SharedTensor[f32], b: SharedTensor[f32], pointers: bool) -> Op:
    """Return an op of `n` times c = a b, into the same c. a, b: (size, size)."""
    size = a.shape[0]
    op: Op = zeros((size, size))
    for _ in range(n):
        c = op.partition((EDGE, EDGE))
        if pointers:
            tiles = size // EDGE
            launch = pointer_gemm.grid(tiles, tiles)(c, a.clone(), b.clone(), size, size, size)
        else:
            launch = gemm(c, a.clone(), b.clone())
        op = launch.first().unpartition()
    return op


def scaled(n: int) -> float:
    """Multiply 1 by the factor `n` times, rounding each time."""
    y = np.float32(1)
    for _ in range(n):
        y *= np.float32(FACTOR)
    return float(y)


def check_dagpu(where: Device) -> None:
    """Run each kernel, and compare its result with NumPy's. This also compiles them before any measurement."""
    with use_device(where):
        same("scale", build_chain(100, full((SIZE,), 1.0)).to_host().sync(), scaled(100))
        for branch in build_fork_join(1.0).sync():
            same("spin", branch.to_host().sync(), DEPTH)
        random = np.random.default_rng(0)
        left, right = (random.integers(-3, 4, (2 * EDGE, 2 * EDGE)).astype(np.float32) for _ in range(2))
        a, b, x = shared(left), shared(right), shared(left.reshape(-1))
        for pointers in (False, True):
            same("saxpy", build_saxpys(3, x, pointers).to_host().sync(), 1.5 * left.reshape(-1))
            same("gemm", build_gemms(1, a, b, pointers).to_host().sync(), left @ right)


def shared(array: Array) -> SharedTensor[f32]:
    """Return a copy on the device, for any number of launches."""
    tensor: Tensor[f32] = from_host(array).sync()
    return tensor.share()


def same(what: str, found: Array, expected: "Array | float") -> None:
    """Raise an error unless all elements are equal. All results here are exact."""
    if not np.array_equal(found, np.broadcast_to(np.asarray(expected, np.float32), found.shape)):
        raise AssertionError(f"the benchmark is broken: {what} gave {found}, not {expected}")


__all__ = [
    "BLOCK",
    "BRANCHES",
    "DEPTH",
    "EDGE",
    "FACTOR",
    "FLOOR",
    "SIZE",
    "SPIN_US",
    "STRETCH",
    "WIDTH",
    "Op",
    "build_chain",
    "build_fork_join",
    "build_gemms",
    "build_saxpys",
    "build_spin",
    "check_dagpu",
    "same",
    "scaled",
    "shared",
]
