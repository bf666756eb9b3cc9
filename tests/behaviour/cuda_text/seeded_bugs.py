"""Kernels with one mistake each, written before the checks were tuned: what is to be found in each."""

# ruff: noqa: E501  # a text is read by its own lines

from typing import Any, Final, NamedTuple

from dagpu import (
    DagpuError,
    KernelArgumentError,
    KernelAssertionError,
    KernelBarrierError,
    KernelBoundsError,
    KernelFaultError,
    KernelRaceError,
    KernelUninitialisedError,
    KernelUnwrittenError,
)


class Bug(NamedTuple):
    """A kernel with a mistake."""

    error: type[DagpuError]
    says: str
    """A part of the message."""
    line: int
    """The line of the body that is named, counted from 1; 0 for none."""
    body: str
    before: str = ""
    block: tuple[int, ...] = (256,)
    run: dict[str, Any] = {}  # noqa: RUF012  # never changed


BOUNDS, RACE, UNSET = KernelBoundsError, KernelRaceError, KernelUninitialisedError
UNWRITTEN, BARRIER, FAULT = KernelUnwrittenError, KernelBarrierError, KernelFaultError
SHARED: Final = "  __shared__ int s[256];\n"
ZEROED: Final = {"zeroed": True}

BUGS: Final[dict[str, Bug]] = {
    # ---- bounds
    "reads past the end": Bug(BOUNDS, "element 1024 of 1024 of 'x'", 1, "  y[i] = x[i + 1];"),
    "reads before the begin": Bug(BOUNDS, "element -1 of 1024 of 'x'", 1, "  y[i] = x[i - 1];"),
    "writes past the end": Bug(BOUNDS, "element 1024 of 1024 of 'y'", 1, "  y[i + 1] = x[i];"),
    "writes before the begin": Bug(BOUNDS, "element -1 of 1024 of 'y'", 1, "  y[i - 1] = x[i];"),
    "less or equal": Bug(
        BOUNDS, "element 1024 of 1024", 1, "  for (int j = i; j <= n; j += gridDim.x * blockDim.x) y[j] = 1;"
    ),
    "too long a stride": Bug(BOUNDS, "writes 4 bytes", 1, "  y[2 * i] = x[i];"),
    "an index of the data": Bug(BOUNDS, "writes 4 bytes out", 1, "  y[x[i] * 100] = 1;"),
    "past shared memory": Bug(BOUNDS, "shared memory 's'", 3, SHARED + "  int* p = s;\n  p[t + 1] = 1;"),
    "past a row of shared memory": Bug(
        BOUNDS, "index 16 of an array of type 'int [16]'", 2, "  __shared__ int s[16][16];\n  s[t / 16][t % 16 + 1] = 1;"
    ),
    "too little dynamic shared memory": Bug(
        BOUNDS, "dynamic shared memory", 2, "  extern __shared__ int d[];\n  d[t] = x[i];", run={"shared": 512}
    ),
    "no dynamic shared memory": Bug(
        KernelArgumentError, "nothing says how many bytes", 0, "  extern __shared__ int d[];\n  d[t] = x[i];"
    ),
    "past a local array": Bug(BOUNDS, "array of type 'int [4]'", 1, "  int a[4] = {}; a[x[i] % 8] = 1; y[i] = a[0];"),
    "past a local array by a pointer": Bug(
        BOUNDS, "local memory", 1, "  int a[4]; int* p = a; for (int j = 0; j < n; ++j) p[j] = j; y[i] = a[i & 3];"
    ),
    "before a local array": Bug(
        BOUNDS, "local", 1, "  int a[4]; int* p = a; for (int j = 0; j < 100000; ++j) p[-j] = j; y[i] = a[0];"
    ),
    "a null pointer": Bug(BOUNDS, "null pointer", 1, "  int* p = n > 0 ? nullptr : y; p[i & 3] = 1;"),
    "a wild pointer": Bug(BOUNDS, "out of bounds", 1, "  *(int*)(0x123456780000ull + 4 * i) = 1;"),
    "past a variable": Bug(BOUNDS, "__device__ 'd'", 1, "  int* p = d; p[t] = x[i];", "__device__ int d[4];"),
    "past a constant": Bug(
        BOUNDS, "__constant__ 'c'", 1, "  const int* p = c; y[i] = p[t];", "__constant__ int c[4] = {1, 2, 3, 4};"
    ),
    "an atomic past the end": Bug(BOUNDS, "of 'y'", 1, "  atomicAdd(y + n + i, 1);", run=ZEROED),
    "a copy past the end": Bug(BOUNDS, "of 'x'", 1, "  memcpy(y + i, x + i + 1, 4);"),
    "a vector past the end": Bug(BOUNDS, "writes 16 bytes", 1, "  ((int4*)y)[i] = make_int4(1, 2, 3, 4);"),
    "the stack of another thread": Bug(
        BOUNDS, "out of bounds", 3, "  __shared__ int* p; int v = i; if (t == 0) p = &v;\n  __syncthreads();\n  y[i] = *p;"
    ),
    "too deep a recursion": Bug(
        FAULT, "256 KiB of stack", 0, "  y[i] = f(1000000 + n);",
        "__device__ __noinline__ int f(int j) { volatile int a[64]; a[j & 63] = j; return j ? f(j - 1) + a[j & 63] : 0; }",
    ),
    # ---- what nothing has written
    "shared memory unwritten": Bug(UNSET, "shared memory 's'", 2, SHARED + "  y[i] = s[t];"),
    "half of shared memory written": Bug(
        UNSET, "element 128 of 256", 4, SHARED + "  if (t < 128) s[t] = 1;\n  __syncthreads();\n  y[i] = s[t];"
    ),
    "dynamic shared memory unwritten": Bug(
        UNSET, "dynamic shared", 2, "  extern __shared__ int d[];\n  y[i] = d[t];", run={"shared": 1024}
    ),
    "adds to a new output": Bug(UNSET, "of 'y'", 1, "  y[i] += x[i];"),
    "an atomic on a new output": Bug(UNSET, "element 0 of 1 of 'y'", 1, "  atomicAdd(y, x[i]);", run={"out": 1}),
    "the tail of a reduction": Bug(
        UNSET, "shared memory 's'", 3,
        SHARED + "  if (t < 200) s[t] = x[i]; __syncthreads();\n"
        "  for (int o = 128; o; o /= 2) { if (t < o) s[t] += s[t + o]; __syncthreads(); }\n  if (!t) y[blockIdx.x] = s[0];",
        run={"out": 4},
    ),
    "a constant that nothing sets": Bug(KernelArgumentError, "variable 'c'", 0, "  y[i] = c[t & 3];", "__constant__ int c[4];"),
    # ---- races
    "no barrier": Bug(RACE, "shared memory 's'", 3, SHARED + "  s[t] = x[i];\n  y[i] = s[255 - t];"),
    "no second barrier": Bug(
        RACE, "shared memory 's'", 3,
        SHARED + "  int sum = 0;\n  for (int j = 0; j < 4; ++j) { s[t] = x[j * 256 + t]; __syncthreads(); sum += s[255 - t]; }\n"
        "  y[i] = sum;",
    ),
    "no barrier in a reduction": Bug(
        RACE, "shared memory 's'", 3,
        SHARED + "  s[t] = x[i]; __syncthreads();\n  for (int o = 128; o; o /= 2) if (t < o) s[t] += s[t + o];\n"
        "  if (!t) y[blockIdx.x] = s[0];",
        run={"out": 4},
    ),
    "no barrier of the warp": Bug(RACE, "shared memory 's'", 2, SHARED + "  s[t] = x[i]; y[i] = s[t ^ 1];"),
    "all threads to one word": Bug(RACE, "shared memory 's'", 1, "  __shared__ int s; s = i; __syncthreads(); y[i] = s;"),
    "one buffer for two": Bug(
        RACE, "shared memory 's'", 3,
        SHARED + "  int v = x[i];\n  for (int j = 0; j < 4; ++j) { s[t] = v; __syncthreads(); v = s[(t + 1) & 255]; }\n  y[i] = v;",
    ),
    "a histogram without atomics": Bug(RACE, "of 'y'", 1, "  ++y[x[i]];", run=ZEROED),
    "a sum without atomics": Bug(RACE, "element 0 of 1 of 'y'", 1, "  y[0] += x[i];", run={"zeroed": True, "out": 1}),
    "blocks to the same elements": Bug(RACE, "element 0 of 256 of 'y'", 1, "  y[t] = i;", run={"out": 256}),
    "an atomic and a plain read": Bug(
        RACE, "element 0 of 1024 of 'y'", 2, "  atomicAdd(y, 1);\n  if (i == 700) y[1] = y[0];", run=ZEROED
    ),
    "a stencil in place": Bug(RACE, "of 'y'", 2, "  y[i] = x[i];\n  if (i) y[i] += y[i - 1];"),
    "reversed in place": Bug(RACE, "of 'y'", 2, "  y[i] = x[i];\n  y[i] = y[n - 1 - i];"),
    "a barrier of the block for the grid": Bug(
        RACE, "of 'y'", 3, "  y[i] = x[i];\n  __syncthreads();\n  if (i < 8) y[i] = y[i + 512];"
    ),
    "no fence before the counter": Bug(
        RACE, "of 'y'", 2,
        "  y[i] = x[i]; __syncthreads();\n"
        "  if (!t && atomicAdd(&done, 1) == 3) { int sum = 0; for (int j = 0; j < n; ++j) sum += y[j]; y[0] = sum; done = 0; }",
        "__device__ int done;",
    ),
    "bits of one word": Bug(RACE, "of 'y'", 1, "  y[i / 32] |= 1 << i % 32;", run={"zeroed": True, "out": 32}),
    "bytes of two threads": Bug(
        RACE, "of 'y'", 1, "  for (int j = 0; j < 5; ++j) if (4 * i + j < 4 * n) ((char*)y)[4 * i + j] = i;"
    ),
    "a variable of all threads": Bug(RACE, "__device__ 'd'", 1, "  d = i; y[i] = d;", "__device__ int d;"),
    "a plain flag": Bug(
        RACE, "__device__ 'flag'", 1, "  if (i == 900) flag = 1; else y[i] = flag;\n  if (i == 900) y[i] = 0;",
        "__device__ int flag;",
    ),
    "written before it is read": Bug(
        RACE, "shared memory 's'", 3, SHARED + "  s[t] = x[i]; __syncthreads(); const int v = s[(t + 1) & 255];\n"
        "  s[t] = v + 1; __syncthreads(); y[i] = s[t];",
    ),
    # ---- what no thread writes
    "too few blocks": Bug(UNWRITTEN, "512 of the 1,024 elements", 0, "  y[i] = x[i];", run={"grid": (2,)}),
    "every other element": Bug(UNWRITTEN, "512 of the 1,024", 0, "  if (i % 2) y[i] = x[i];"),
    "all but the last": Bug(UNWRITTEN, "element 1023", 0, "  if (i < n - 1) y[i] = x[i];"),
    "the border": Bug(UNWRITTEN, "2 of the 1,024", 0, "  if (i == 0 || i == n - 1) return; y[i] = x[i - 1] + x[i + 1];"),
    "half of each pair": Bug(UNWRITTEN, "of the new output 'y'", 0, "  if (i < n / 2) y[2 * i] = x[i];"),
    # ---- barriers
    "a barrier in an if": Bug(BARRIER, "has ended without it", 1, "  if (t < 100) __syncthreads();\n  y[i] = x[i];"),
    "a return before a barrier": Bug(BARRIER, "ended without", 2, "  if (t >= 200) return;\n  __syncthreads();\n  y[i] = 0;"),
    "a barrier in a loop of different lengths": Bug(
        BARRIER, "barrier", 1, "  for (int j = 0; j <= t % 2; ++j) __syncthreads();\n  y[i] = x[i];"
    ),
    "a shuffle in an if": Bug(
        BARRIER, "does not take part", 1, "  if (t % 32 < 16) y[i] = __shfl_xor_sync(~0u, x[i], 16); else y[i] = 0;"
    ),
    "a lane that is not in the mask": Bug(BARRIER, "does not take part", 1, "  y[i] = __shfl_sync(0xffff, x[i], 0);"),
    "two kinds of barrier": Bug(
        BARRIER, "for ever", 1, "  if (t % 32 < 16) __syncwarp(); else __syncthreads();\n  y[i] = x[i];"
    ),
    # ---- others
    "an input written": Bug(FAULT, "writes to the input, element 0 of 1024 of 'x'", 1, "  ((int*)x)[i] = y[i] = 0;"),
    "an atomic on an input": Bug(FAULT, "input", 1, "  y[i] = atomicAdd((int*)x + i, 1);"),
    "a misaligned vector": Bug(FAULT, "no multiple of it", 1, "  y[i] = ((const int4*)(x + 1))[i % 8].x;"),
    "a misaligned pair": Bug(FAULT, "no multiple of it", 1, "  y[i] = ((const int2*)(x + i % 8))->y;"),
    "a division by zero": Bug(FAULT, "divides a whole number by zero", 1, "  y[i] = n / (x[i] - x[5]);"),
    "a quotient that is too large": Bug(
        FAULT, "-1, and the result is too large", 1, "  y[i] = (-2147483647 - 1 + 0 * x[i]) / (n - 1025);"
    ),
    "an assertion": Bug(KernelAssertionError, "x[i] < 90", 0, "  assert(x[i] < 90); y[i] = x[i];"),
    "a trap": Bug(KernelAssertionError, "__trap()", 1, "  if (x[i] > 90) __trap();\n  y[i] = x[i];"),
}  # fmt: skip

QUICK: Final = (
    "reads past the end", "past shared memory", "past a local array by a pointer", "adds to a new output", "no barrier",
    "a histogram without atomics", "too few blocks", "a barrier in an if", "a shuffle in an if", "an input written",
    "a misaligned vector", "too deep a recursion", "a quotient that is too large",
)  # fmt: skip
"""Those that the quick suite tries: one of each kind."""
