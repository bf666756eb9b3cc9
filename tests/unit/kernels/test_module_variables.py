"""What the launches of a kernel share, as its text says: variables of the module, and the grid."""

import pytest

from dagpu.kernels.module_variables import read_module_use

K = "__global__ void k(float* y) "
CG = "namespace cg = cooperative_groups; "
BLOCK = "auto block = cg::this_thread_block(); block.sync(); "


@pytest.mark.parametrize(
    ("text", "changed", "unset"),
    [
        ("__device__ unsigned int n = 0; " + K + "{ atomicInc(&n, 7); }", ["n"], []),
        ("__device__ int n; " + K + "{ n = 1; y[0] = n; }", ["n"], []),
        ("__device__ int n; " + K + "{ n <<= 1; }", ["n"], []),
        ("__device__ int n; " + K + "{ --n; }", ["n"], []),
        ("__device__ float t[4]; " + K + "{ t[threadIdx.x * (2 + 1)] += 1; }", ["t"], []),
        ("__device__ float t[4][4]; " + K + "{ t[1][2] = 1; }", ["t"], []),
        ("__device__ float t[4]; __device__ void put(float* p) { *p = 1; } " + K + "{ put(t); }", ["t"], []),
        ("__device__ float t[4]; " + K + "{ float* p = t; *p = 1; }", ["t"], []),
        ("__device__ int n; __device__ void put(int& p) { p = 1; } " + K + "{ put(n); }", ["n"], []),
        ("__device__ int n; __device__ int next() { return n++; } " + K + "{ y[0] = next(); }", ["n"], []),
        (
            "__device__ int n; template <class T> __device__ T next() { return n++; } " + K + "{ next<int>(); }",
            ["n"],
            [],
        ),
        ("__device__ int n;\n#define NEXT(by) atomicAdd(&n, by)\n" + K + "{ NEXT(1); }", ["n"], []),
        ("__device__ int n; struct S { int get() { return ++n; } }; " + K + "{ S s; s.get(); }", ["n"], []),
        (
            "namespace a { namespace b { __device__ int m, n = 4; } } " + K + "{ a::b::n++; a::b::m = 1; }",
            ["m", "n"],
            [],
        ),
        ('extern "C" { __device__ int n; ' + K + "{ n = 1; } }", ["n"], []),
        ("#define DEVICE __device__\nDEVICE int n; " + K + "{ n = 1; }", ["n"], []),
        ("#define COUNTER(n) __device__ int n = 0\nCOUNTER(m); " + K + "{ m = 1; }", ["m"], []),
        ("#define COUNTER(n) __device__ int n = 0;\nCOUNTER(m) " + K + "{ m = 1; }", ["m"], []),
        ("#define F(n) __device__ int n() { return 1; }\nF(m) " + K + "{ y[0] = m(); }", [], []),
        ("static __device__ int n; " + K + "{ n = 1; }", ["n"], []),
        ("__managed__ int n; " + K + "{ n = 1; }", ["n"], []),
        ("__device__ volatile int n; " + K + "{ n = 1; }", ["n"], []),
        ("struct P { int a; }; __device__ P p; " + K + "{ p.a = 2; }", ["p"], []),
        ("__device__ float* p; " + K + "{ p = y; }", ["p"], []),
        ("__device__ const float* p; " + K + "{ p = y; }", ["p"], []),
        (K + "{ static int n = 0; y[0] = ++n; }", ["n"], []),
        ("#ifdef COUNT\n__device__ int n;\n#endif\n" + K + "{ n++; }", ["n"], []),
        ("[[maybe_unused]] __device__ int n = 0; " + K + "{ n++; }", ["n"], []),
        ("__device__ int n(0), m(-1); " + K + "{ n++; m = n; }", ["n", "m"], []),
        (
            "__device__ float (*f)(float); __device__ int (*g[2])(int); " + K + "{ f = nullptr; g[0] = 0; }",
            ["f", "g"],
            [],
        ),
        (
            "alignas(16) __device__ int n; __device__ __align__(8) decltype(1) m; " + K + "{ n = m = 1; }",
            ["n", "m"],
            [],
        ),
        ("__device__ int (*rows)[4] = nullptr; " + K + "{ rows = nullptr; }", ["rows"], []),
        ("template <int I> __device__ int n; " + K + "{ n<3>++; y[0] = n<4>; }", ["n"], []),
        ("__device__ int n = 0; __device__ int& of() { return n; } " + K + "{ of() = 1; }", ["n"], []),
        ("__device__ int n = 0; " + K + "{ auto& r = n; r = 1; }", ["n"], []),
        ("__device__ float t[2] = {}; " + K + "{ float& r = t[1]; r = 1; }", ["t"], []),
        ("namespace a { __device__ int n = 0; } " + K + "{ int &r = a::n; r = 1; }", ["n"], []),
        ("namespace a { __device__ int n = 0; } " + K + "{ ++a::n; }", ["n"], []),
        ("__device__ cuda::atomic<int> n = 0; " + K + "{ n.fetch_add(1); }", ["n"], []),
        ("__device__ int n = 0; " + K + "{ cuda::atomic_ref r{n}; r.store(1); }", ["n"], []),
        ("struct P { int a[2]; }; __device__ P p = {}; " + K + "{ for (auto& each : p.a) each = 1; }", ["p"], []),
        ("__device__ int n = 0; " + K + "{ auto put = [&r = n] { r = 1; }; put(); }", ["n"], []),
        # nothing is shared
        ("__device__ int n = 2; __device__ int of() { return n; } " + K + "{ y[of() & 1] = n + of(); }", [], []),
        ("__device__ float t[2] = {1, 2}; " + K + "{ y[3 & threadIdx.x] = t[1]; float z = t[0]; }", [], []),
        ("__device__ int n(2); " + K + "{ y[0] = threadIdx.x ? n : -n; }", [], []),
        ("[[nodiscard]] __device__ int of(int x) { return x; } " + K + "{ y[0] = of(1); }", [], []),
        ("__device__ int n; __device__ int next() { return n++; } " + K + "{ y[0] = 1; }", [], []),
        ("__device__ float t[2] = {1, 2}; " + K + "{ y[0] = t[1]; }", [], []),
        ("__device__ const int n = 3; " + K + "{ y[0] = n; }", [], []),
        ("__device__ constexpr int n = 3; " + K + "{ y[0] = n; }", [], []),
        ("__device__ float* const p = nullptr; " + K + "{ *p = 1; }", [], []),
        (K + "{ __shared__ int n[3]; static __shared__ int m; static const int z = 3; n[0] = m = z; }", [], []),
        ("// __device__ int n;\n/* __device__ int m; */ " + K + '{ int n = 1, m; n = m; printf("n = 1"); }', [], []),
        ('const char* text = "__device__ int n;"; ' + K + "{ int n = 1; n = 2; }", [], []),
        ("#if 0\n__device__ int n;\n#endif\n" + K + "{ int n; n++; }", [], []),
        (
            "__device__ int n(int); __device__ __forceinline__ int n(int x) { return x; } " + K + "{ y[0] = n(1); }",
            [],
            [],
        ),
        ("__device__ auto twice = [] __device__ (int x) { return 2 * x; }; " + K + "{ y[0] = 1; }", [], []),
        # nothing sets it
        ("__constant__ float c[4]; " + K + "{ y[0] = c[0]; }", [], ["c"]),
        ("__constant__ float c[4]; __device__ float at(int i) { return c[i]; } " + K + "{ y[0] = at(0); }", [], ["c"]),
        ("__constant__ float b[] = {1, 2}, c; " + K + "{ y[0] = b[0] + c; }", [], ["c"]),
        ("__device__ __constant__ int c; " + K + "{ y[0] = c; }", [], ["c"]),
        ("struct P { int a; }; __constant__ P p; " + K + "{ y[0] = p.a; }", [], ["p"]),
        ("__device__ float t[4]; " + K + "{ y[0] = t[1]; }", [], ["t"]),
        ("__device__ float scale; " + K + "{ y[0] *= scale; }", [], ["scale"]),
        (
            "__constant__ float b[2] = {1, 2}; __constant__ int n{3}; __constant__ int o; " + K + "{ y[n] = b[0]; }",
            [],
            [],
        ),
        ("#ifdef OWN\n__constant__ float c[2];\n#endif\n" + K + "{ y[0] = c[0]; }", [], []),
        ("extern __constant__ float c[2]; " + K + "{ y[0] = c[0]; }", [], []),
    ],
)
def test_variables_of_a_module(text: str, changed: list[str], unset: list[str]) -> None:
    """Those that a kernel reaches: what its text may change, and what nothing sets."""
    use = read_module_use(text, "k")
    assert [variable.name for variable in use.changed] == changed
    assert [variable.name for variable in use.unset] == unset


@pytest.mark.parametrize(
    ("other", "shares"),
    [("{ y[0] = n; }", True), ("{ y[0] = next(); }", True), ("{ y[0] = 1; }", False), (";", False)],
)
def test_another_kernel_that_names_the_variable(other: str, shares: bool) -> None:
    """Each kernel of a text is compiled by itself, and has variables of its own."""
    text = "__device__ int n; __device__ int next() { return n++; } " + K + "{ n = 1; } __global__ void other(int* y) "
    assert read_module_use(text + other, "k").others == (("other",) if shares else ())


@pytest.mark.parametrize(
    ("text", "waits"),
    [
        (CG + K + "{ cg::grid_group grid = cg::this_grid(); grid.sync(); }", True),
        (CG + K + "{ auto all = cg::this_grid(); cg::sync(all); }", True),
        (CG + K + "{ cg::this_grid().sync(); }", True),
        (CG + K + "{ auto g = cg::this_grid(); auto h = g; h.sync(); }", True),
        (CG + K + "{ const auto grid = cg::this_grid(); const auto& all = grid; all.sync(); }", True),
        (CG + K + "{ auto g = cg::this_grid(); auto n = g.size(); " + BLOCK + "auto h = n; }", False),
        (CG + K + "{ const auto& g = cg::this_grid(); auto t = g.barrier_arrive(); }", True),
        (CG + "__device__ void meet() { cg::this_grid().sync(); } " + K + "{ meet(); }", True),
        (CG + "__device__ void meet(cg::grid_group const& g) { g.sync(); } " + K + "{ meet(cg::this_grid()); }", True),
        (
            CG
            + "template <class G> __device__ void meet(G g) { g.sync(); } "
            + K
            + "{ auto g = cg::this_grid(); meet(g); }",
            True,
        ),
        (CG + "#define MEET cg::this_grid().sync()\n" + K + "{ MEET; }", True),
        (CG + K + "{ auto grid = cg::this_grid(); " + BLOCK + "y[grid.thread_rank()] = grid.size(); }", False),
        (CG + K + "{ y[cg::this_grid().thread_rank()] = 1; " + BLOCK + "}", False),
        (CG + "__device__ void meet() { cg::this_grid().sync(); } " + K + "{ y[0] = 1; }", False),
        (CG + K + "{ // cg::this_grid().sync();\n" + BLOCK + "}", False),
        (K + "{ int grid = 3; __syncthreads(); y[0] = grid; }", False),
    ],
)
def test_waits_for_the_grid(text: str, waits: bool) -> None:
    """A kernel that waits for all blocks of the grid, by any name of it, takes a cooperative launch; one that asks a
    grid for places does not."""
    assert read_module_use(text, "k").waits_for_grid == waits
