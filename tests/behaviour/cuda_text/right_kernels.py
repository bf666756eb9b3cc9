"""Kernels without a mistake, some of them such as a careless check would refuse: what each makes of `X`."""

# ruff: noqa: E501  # a text is read by its own lines

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tests.behaviour.cuda_text.texts import N, X

_Array = NDArray[np.int32]


class Right(NamedTuple):
    """A kernel, and what it makes."""

    made: Callable[[], Any]
    body: str
    before: str = ""
    block: tuple[int, ...] = (256,)
    run: dict[str, Any] = {}  # noqa: RUF012  # never changed


def _rows(width: int) -> _Array:
    return X.reshape(-1, width)


def _each(width: int, f: Callable[[_Array], Any]) -> _Array:
    return np.concatenate([np.full(width, f(row)) for row in _rows(width)]).astype(np.int32)


SHARED: Final = "  __shared__ int s[256];\n"
ONE: Final = {"zeroed": True, "out": 1}
CG: Final = (
    "#include <cooperative_groups.h>\n#include <cooperative_groups/reduce.h>\nnamespace cg = cooperative_groups;\n"
)

RIGHT: Final[dict[str, Right]] = {
    "a copy": Right(lambda: X, "  y[i] = x[i];"),
    "a loop over the grid": Right(lambda: 2 * X, "  for (int j = i; j < n; j += gridDim.x * blockDim.x) y[j] = 2 * x[j];", run={"grid": (1,)}),
    "a tail": Right(lambda: X, "  if (i < n) y[i] = x[i];", run={"grid": (7,)}),
    "a stencil": Right(lambda: np.roll(X, 1) + np.roll(X, -1), "  y[i] = x[(i + n - 1) % n] + x[(i + 1) % n];"),
    "a reduction in shared memory": Right(
        lambda: _rows(256).sum(1), SHARED + "  s[t] = x[i]; __syncthreads();\n"
        "  for (int o = 128; o; o /= 2) { if (t < o) s[t] += s[t + o]; __syncthreads(); }\n  if (!t) y[blockIdx.x] = s[0];",
        run={"out": 4},
    ),
    "a reduction by shuffles": Right(
        lambda: [X.sum()], "  int v = x[i];\n  for (int o = 16; o; o /= 2) v += __shfl_down_sync(~0u, v, o);\n"
        "  if (t % 32 == 0) atomicAdd(y, v);", run=ONE,
    ),
    "warps in shared memory": Right(
        lambda: [X.sum()], SHARED + "  s[t] = x[i]; __syncwarp();\n"
        "  for (int o = 16; o; o /= 2) { if ((t & 31) < o) s[t] += s[t + o]; __syncwarp(); }\n"
        "  if ((t & 31) == 0) atomicAdd(y, s[t]);", run=ONE,
    ),
    "a scan of a block": Right(
        lambda: np.cumsum(_rows(256), 1).ravel(), SHARED + "  s[t] = x[i]; __syncthreads();\n"
        "  for (int o = 1; o < 256; o *= 2) { const int v = t >= o ? s[t - o] : 0; __syncthreads(); s[t] += v; __syncthreads(); }\n"
        "  y[i] = s[t];",
    ),
    "a histogram": Right(
        lambda: np.bincount(X, minlength=N), "  __shared__ int s[97];\n  if (t < 97) s[t] = 0; __syncthreads();\n"
        "  atomicAdd(&s[x[i]], 1); __syncthreads();\n  if (t < 97) atomicAdd(&y[t], s[t]);", run={"zeroed": True},
    ),
    "a transposition": Right(
        lambda: X.reshape(32, 32).T.ravel(), "  __shared__ int s[32][33];\n  for (int r = threadIdx.y; r < 32; r += 8) s[r][t] = x[r * 32 + t];\n"
        "  __syncthreads();\n  for (int r = threadIdx.y; r < 32; r += 8) y[r * 32 + t] = s[t][r];", block=(32, 8), run={"grid": (1,)},
    ),
    "a product of matrices": Right(
        lambda: (X.reshape(32, 32) @ X.reshape(32, 32)).ravel(),
        "  __shared__ int a[16][16], b[16][16];\n  const int c = threadIdx.x, r = threadIdx.y, row = blockIdx.y * 16 + r, column = blockIdx.x * 16 + c;\n"
        "  int sum = 0;\n  for (int j = 0; j < 2; ++j) {\n    a[r][c] = x[row * 32 + j * 16 + c]; b[r][c] = x[(j * 16 + r) * 32 + column]; __syncthreads();\n"
        "    for (int l = 0; l < 16; ++l) sum += a[r][l] * b[l][c];\n    __syncthreads();\n  }\n  y[row * 32 + column] = sum;",
        block=(16, 16), run={"grid": (2, 2)},
    ),
    "two buffers": Right(
        lambda: np.concatenate([np.roll(row, -8) for row in _rows(256)]),
        "  __shared__ int s[2][256];\n  int v = x[i];\n  for (int j = 0; j < 8; ++j) { s[j & 1][t] = v; __syncthreads(); v = s[j & 1][(t + 1) & 255]; }\n  y[i] = v;",
    ),
    "a spin lock": Right(
        lambda: [X[:256].sum()], "  for (bool done = false; !done;)\n    if (atomicCAS(&lock, 0, 1) == 0) {\n"
        "      __threadfence(); y[0] += x[i]; __threadfence(); atomicExch(&lock, 0); done = true;\n    }",
        "__device__ int lock;", (64,), {**ONE, "grid": (4,)},
    ),
    "a decoupled look-back": Right(
        lambda: np.cumsum(X) - X,
        "  __shared__ int base, s[256];\n  s[t] = x[i]; __syncthreads();\n  if (t == 0) {\n    int sum = 0;\n"
        "    for (int j = 0; j < 256; ++j) { const int v = s[j]; s[j] = sum; sum += v; }\n"
        "    if (blockIdx.x == 0) base = 0;\n    else { while (((volatile int*)flag)[blockIdx.x - 1] == 0) {} __threadfence(); base = total[blockIdx.x - 1]; }\n"
        "    total[blockIdx.x] = base + sum; __threadfence(); ((volatile int*)flag)[blockIdx.x] = 1;\n"
        "    if (blockIdx.x == gridDim.x - 1) for (int j = 0; j < gridDim.x; ++j) ((volatile int*)flag)[j] = 0;\n  }\n"
        "  __syncthreads(); y[i] = base + s[t];", "__device__ int flag[64], total[64];",
    ),
    "the last block": Right(
        lambda: [X.sum()],
        SHARED + "  __shared__ bool last;\n  s[t] = x[i]; __syncthreads();\n  for (int o = 128; o; o /= 2) { if (t < o) s[t] += s[t + o]; __syncthreads(); }\n"
        "  if (!t) { part[blockIdx.x] = s[0]; __threadfence(); last = atomicAdd(&done, 1) == gridDim.x - 1; }\n  __syncthreads();\n"
        "  if (last && !t) { __threadfence(); int sum = 0; for (int j = 0; j < gridDim.x; ++j) sum += part[j]; y[0] = sum; done = 0; }",
        "__device__ int done, part[64];", run={"out": 1},
    ),
    "half warps": Right(
        lambda: np.concatenate([np.full(16, row.sum() if j % 2 else row.max()) for j, row in enumerate(_rows(16))]),
        "  int v = x[i]; const unsigned m = (t & 16) ? 0xffff0000u : 0xffffu;\n"
        "  if (t & 16) { for (int o = 8; o; o /= 2) v += __shfl_xor_sync(m, v, o); }\n"
        "  else { for (int o = 8; o; o /= 2) v = max(v, __shfl_xor_sync(m, v, o)); }\n  y[i] = v;",
    ),
    "threads that end before a shuffle": Right(
        lambda: [X[:992].sum()], "  if (i >= 992) return;\n  int v = x[i];\n  for (int o = 16; o; o /= 2) v += __shfl_down_sync(~0u, v, o);\n"
        "  if (t % 32 == 0) atomicAdd(y, v);", run=ONE,
    ),
    "ballots": Right(
        lambda: np.concatenate([np.cumsum(row & 1) - (row & 1) + int((row > 90).any()) + 2 for row in _rows(32)]),
        "  const unsigned b = __ballot_sync(~0u, x[i] & 1);\n  y[i] = __popc(b & ((1u << (t & 31)) - 1)) + __any_sync(~0u, x[i] > 90) + 2 * __all_sync(~0u, x[i] >= 0);",
    ),
    "matches": Right(
        lambda: np.concatenate([[(row == v).sum() for v in row] for row in _rows(32)]), "  y[i] = __popc(__match_any_sync(~0u, x[i]));"
    ),
    "votes of a block": Right(
        lambda: _each(256, lambda row: (row & 1).sum() + 1000 * int((row > 95).any())),
        "  const int c = __syncthreads_count(x[i] & 1);\n  y[i] = c + 1000 * (__syncthreads_or(x[i] > 95) != 0);",
    ),
    "a broadcast": Right(lambda: np.repeat(X[::256], 256), "  __shared__ int s; if (t == 0) s = x[i];\n  __syncthreads(); y[i] = s;"),
    "the same value by many": Right(lambda: [7], "  if (x[i] >= 0) y[0] = 7;", run={"out": 1}),
    "bytes of one word": Right(lambda: X, "  ((unsigned char*)y)[4 * i] = x[i];\n  for (int b = 1; b < 4; ++b) ((unsigned char*)y)[4 * i + b] = 0;"),
    "bytes of neighbours": Right(
        lambda: X, "  ((unsigned char*)y)[4 * i] = x[i];\n  if (t % 2 == 0) for (int j = 0; j < 2; ++j) for (int b = 1; b < 4; ++b) ((unsigned char*)y)[4 * (i + j) + b] = 0;"
    ),
    "dynamic shared memory": Right(
        lambda: _rows(256)[:, ::-1].ravel(), "  extern __shared__ int d[];\n  d[t] = x[i]; __syncthreads(); y[i] = d[255 - t];", run={"shared": 1024}
    ),
    "dynamic shared memory, in two parts": Right(
        lambda: 2 * X, "  extern __shared__ __align__(16) unsigned char d[]; int* a = (int*)d; short* b = (short*)(d + 1024);\n"
        "  a[t] = x[i]; b[255 - t] = x[i]; __syncthreads(); y[i] = a[t] + b[255 - t];", run={"shared": 1536},
    ),
    "a barrier of the grid": Right(
        lambda: X[::-1], "  part[i] = x[i];\n  cg::this_grid().sync();\n  y[i] = part[n - 1 - i];", CG + "__device__ int part[1024];"
    ),
    "tiles of a warp": Right(
        lambda: _each(8, np.sum), "  auto tile = cg::tiled_partition<8>(cg::this_thread_block());\n  y[i] = cg::reduce(tile, x[i], cg::plus<int>());", CG
    ),
    "vectors": Right(
        lambda: X + 1, "  if (i >= n / 4) return;\n  int4 v = ((const int4*)x)[i]; ++v.x; ++v.y; ++v.z; ++v.w; ((int4*)y)[i] = v;"
    ),
    "a table of constants": Right(lambda: (X % 4 + 1) ** 2, "  y[i] = c[x[i] % 4];", "__constant__ int c[4] = {1, 4, 9, 16};"),
    "a local array": Right(lambda: X // 10 + X % 10, "  int a[2]; for (int j = 0, v = x[i]; j < 2; ++j, v /= 10) a[j] = v % 10;\n  y[i] = a[0] + a[1];"),
    "a recursion": Right(lambda: X * (X + 1) // 2, "  y[i] = f(x[i]);", "__device__ int f(int j) { return j ? j + f(j - 1) : 0; }"),
    "a template": Right(lambda: X * 3, "  y[i] = times<3>(x[i]);", "template <int M, class T> __device__ T times(T v) { return M * v; }"),
    "a struct": Right(lambda: X + 5, "  Pair p{x[i], 5}; y[i] = p.sum();", "struct Pair { int a, b; __device__ int sum() const { return a + b; } };"),
    "bits": Right(
        lambda: [v.bit_count() + (v.bit_length() and 32 - v.bit_length()) + (v & -v).bit_length() for v in X.tolist()],
        "  const int v = x[i];\n  y[i] = __popc(v) + (v ? __clz(v) : 0) + __ffs(v);",
    ),
    "the largest of all": Right(
        lambda: [X.max()], "  int seen = y[0] * 0 + 0;\n  for (int old = atomicAdd(y, 0); x[i] > old; old = seen) seen = atomicCAS(y, old, x[i]);".replace("y[0] * 0 + ", ""),
        run=ONE,
    ),
    "half precision": Right(
        lambda: (2 * X).astype(np.float16).astype(np.int32), "  const __half h = __float2half((float)x[i]);\n  y[i] = (int)__half2float(__hadd(h, h));", "#include <cuda_fp16.h>\n",
    ),
    "sines and cosines": Right(
        lambda: np.full(N, 2), "  float s, c; double u, v; sincosf((float)x[i], &s, &c); sincos((double)x[i], &u, &v);\n  y[i] = (int)rintf(s * s + c * c + (float)(u * u + v * v));",
    ),
    "half precision in shared memory": Right(
        lambda: np.concatenate([row[::-1] for row in _rows(256)]), "  __shared__ __half s[256];\n  s[t] = __half((float)x[i]); __syncthreads();\n  y[i] = (int)(float)s[255 - t];", "#include <cuda_fp16.h>\n",
    ),
    "a copy of memory": Right(lambda: X, "  if (t == 0) memcpy(y + i, x + i, 1024);"),
    "loads with hints": Right(lambda: X, "  __stcs(y + i, __ldg(x + i));"),
    "a block of three axes": Right(
        lambda: X, "  const int j = blockIdx.x * 256 + threadIdx.x + 4 * (threadIdx.y + 8 * threadIdx.z);\n  y[j] = x[j];", block=(4, 8, 8)
    ),
    "one warp of a block after a barrier": Right(
        lambda: _rows(256).sum(1), SHARED + "  s[t] = x[i]; __syncthreads();\n  if (t < 32) {\n    int v = 0;\n    for (int j = t; j < 256; j += 32) v += s[j];\n"
        "    for (int o = 16; o; o /= 2) v += __shfl_down_sync(~0u, v, o);\n    if (!t) y[blockIdx.x] = v;\n  }", run={"out": 4},
    ),
}  # fmt: skip

QUICK: Final = (
    "a spin lock",
    "a decoupled look-back",
    "half warps",
    "half precision in shared memory",
    "sines and cosines",
    "dynamic shared memory, in two parts",
    "a barrier of the grid",
)
"""Those that the quick suite runs."""
