"""CUDA texts on the host: when they run, how they end, and what they leave."""

import ctypes
import ctypes.util
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from numpy.typing import NDArray

import dagpu
from dagpu import (
    CompileError,
    DeviceError,
    In,
    Kernel,
    KernelArgumentError,
    KernelMismatchError,
    KernelRaceError,
    Out,
    Tile,
    empty,
    f32,
    f64,
    from_host,
    i32,
    kernel,
    zeros,
)
from dagpu.backends.host.arrays import Account, HostMemory
from dagpu.backends.host.cuda_text.launching import run_text
from dagpu.pytest_plugin import check_kernels  # noqa: F401  # pytest finds it where dagpu is installed
from dagpu.testing import (
    CheckedKernels,
    Launch,
    Mode,
    Order,
    Tiles,
    View,
    contiguous_layout,
    exploring,
    find_cxx,
    texts_run,
)
from tests.behaviour.cuda_text.texts import N, X, declared, result

pytestmark = pytest.mark.host_only("the texts run on the host")


def doubled(by: int = 2) -> "Kernel[...]":
    """A kernel whose text doubles, and whose host body multiplies by `by`."""

    @kernel(cuda="__global__ void two(Tile<float, 1> y, View<const float, 1> x) { for (auto i : y) y[i] = 2 * x[i]; }")
    def two(y: Out[f32], x: In[f32]) -> None: ...

    @two.host(whole=True)
    def _(y: Tile[f32], x: NDArray[f32]) -> None:
        y[...] = by * x

    return two


def made(two: "Kernel[...]", n: int = 100) -> "NDArray[np.float32]":
    """What a kernel makes of 0 to n."""
    op: Any = two.new((n,), (32,), partial=True)(dagpu.arange(n))
    found: NDArray[np.float32] = op.to_host().sync()
    return found


RAMP = np.arange(100, dtype=np.float32)


# ---- which code runs


def test_a_host_body_runs_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """DAGPU_HOST=cuda runs the text even so."""
    two = doubled(3)
    assert np.array_equal(made(two), 3 * RAMP)
    monkeypatch.setenv("DAGPU_HOST", "cuda")
    assert np.array_equal(made(two), 2 * RAMP)


def test_dagpus_own_kernels_run_as_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """So do expressions."""
    monkeypatch.setenv("DAGPU_HOST", "cuda")

    @dagpu.expr(f32)
    def more(x: dagpu.Elem[f32]) -> dagpu.Elem[f32]:
        return 2 * x + 1

    assert np.array_equal(more(dagpu.arange(100)).to_host().sync(), 2 * RAMP + 1)


def test_without_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """DAGPU_HOST_CHECKS=0 finds no race."""
    racing = declared("  y[t] = i;")
    with pytest.raises(KernelRaceError):
        result(racing, out=256)
    monkeypatch.setenv("DAGPU_HOST_CHECKS", "0")
    assert result(racing, out=256).shape == (256,)


# ---- errors


def test_a_race_names_both_places() -> None:
    """Thread, block, element, and the line of each access, in the file of the text."""
    text = Path(__file__).with_name("texts.py")
    with pytest.raises(KernelRaceError) as caught:
        result(declared("  ++y[x[i]];"), zeroed=True)
    said = str(caught.value)
    assert said.count(f"{text}:") >= 3
    assert said.count("++y[x[i]];") >= 2
    assert "of 1024 of 'y'" in said


def test_the_line_of_a_cu_file(tmp_path: Path) -> None:
    """A path is named with its own lines."""
    file = tmp_path / "wrong.cu"
    file.write_text('extern "C" __global__ void wrong(int* y, const int* x) {\n  y[0] = 1;\n  y[1] = x[5000];\n}\n')

    @kernel(cuda=file, abi="pointers", block=(1,))
    def wrong(y: Out[i32], x: In[i32]) -> None: ...

    with pytest.raises(dagpu.KernelBoundsError, match=rf"element 5000 of 1024 of 'x', at {file}:3"):
        wrong.grid(1)(empty((2,), i32).partition((2,)), from_host(X)).sync()


def test_outputs_are_unchanged_after_a_fault() -> None:
    """What a wrong kernel has written is dropped."""
    y = zeros((N,), i32).sync()
    view = y.borrow()
    assert view.shape == (N,)
    del view
    with pytest.raises(dagpu.KernelBoundsError):
        declared("  y[i + 1] = 7;").grid(4)(y.partition((N,)), from_host(X), N).sync()


@pytest.mark.parametrize(
    ("body", "before", "says"),
    [
        ('  asm volatile("bar.sync 0;");', "", "inline assembly"),
        ("  y[i] = getpid();", "#include <unistd.h>\n", "calls getpid"),
        ("", "#include <iostream>\n", r"includes iostream, a header of the host's library.*Remove.*cuda_fp16\.h"),
        ("", "#include <mma.h>\n", r"includes mma\.h, which dagpu does not have.*Remove.*cuda_fp16\.h"),
        (
            "  y[i] = nowhere;",
            "",
            r"nowhere(.|\n)*\nCorrect the lines shown\. If CUDA's compiler takes them: give it a host",
        ),
        (
            "  extern SM int s[];",
            "#define SM __shared__",
            "Correct the lines shown: dynamic .*`extern __shared__ T name",
        ),
    ],
)
def test_a_text_that_cannot_run_here(body: str, before: str, says: str) -> None:
    """The error says what, where, and to give a host body."""
    with pytest.raises(CompileError, match=says) as caught:
        result(declared(body, before), shared=4)
    assert "@k.host" in str(caught.value)


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without one the error says how to get one."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DeviceError, match=r"apt install g\+\+, or pip install ziglang"):
        find_cxx()
    monkeypatch.setenv("DAGPU_CXX", "no-such-compiler")
    with pytest.raises(ValueError, match="DAGPU_CXX='no-such-compiler'"):
        find_cxx()


def test_a_write_to_a_literal_ends_nothing() -> None:
    """The compiler calls no hook before it, and may read what it knows of the literal."""
    assert result(declared('  char* s = (char*)"abc"; s[1] = 65; y[i] = s[1];'))[0] in (65, ord("b"))


def test_limits_are_those_of_a_gpu() -> None:
    """A block of 2,048 threads is refused."""
    with pytest.raises(KernelArgumentError, match="at most 1024"):
        result(declared("  y[i] = x[i];", block=(2048,)), grid=(1,))


def test_what_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    """`printf` of a kernel is Python's output."""
    result(declared('  if (i < 2) printf("%d %5.2f %s|%%\\n", i, 1.5, "hi");\n  y[i] = 0;'))
    assert sorted(capfd.readouterr().out.splitlines()) == ["0  1.50 hi|%", "1  1.50 hi|%"]


# ---- a run that is cancelled


@pytest.mark.parametrize(
    "body",
    [
        "  while (*(volatile int*)x >= 0) {}\n  y[i] = 0;",
        "  while (atomicAdd(y, 0) == 0) {}",
        "  for (unsigned j = 1; j; j += 2) y[i] = j;",
    ],
)
def test_cancellation_ends_a_body_that_spins(body: str) -> None:
    """A task that is cancelled is over soon, whatever its kernel waits for."""
    op = declared(body).grid(4)(zeros((N,), i32).partition((N,)), from_host(X), N)

    async def main() -> None:
        with trio.move_on_after(0.2) as scope:
            await op
        assert scope.cancelled_caught

    trio.run(main)


# ---- threads and processes


def test_threads_beside_others_that_load_libraries() -> None:
    """Texts run in several host threads while another one loads libraries: each has its own shared memory."""
    reverse = declared("  __shared__ int s[256]; s[t] = x[i];\n  __syncthreads();\n  y[i] = s[255 - t];")
    wanted = X.reshape(-1, 256)[:, ::-1].ravel()
    result(reverse)
    names = [each for each in (ctypes.util.find_library(n) for n in ("z", "m", "dl", "crypt")) if each]
    over, wrong = threading.Event(), list[object]()

    def load() -> None:
        close = ctypes.CDLL(None).dlclose
        close.argtypes = (ctypes.c_void_p,)
        while not over.is_set():
            for name in names:
                close(ctypes.CDLL(name)._handle)  # noqa: SLF001  # ctypes has no other way to unload

    def run() -> None:
        try:
            for _ in range(25):
                if not np.array_equal(result(reverse), wanted):
                    wrong.append("other elements")
        except BaseException as error:
            wrong.append(error)

    loader = threading.Thread(target=load)
    runners = [threading.Thread(target=run) for _ in range(4)]
    for thread in (loader, *runners):
        thread.start()
    for thread in runners:
        thread.join()
    over.set()
    loader.join()
    assert wrong == []


def test_after_fork() -> None:
    """A child runs texts too, those that its parent has run and others."""
    two = declared("  __shared__ int s[256]; s[t] = 2 * x[i];\n  __syncthreads();\n  y[i] = s[t];")
    result(two)
    child = os.fork()
    if not child:
        status = 1
        try:
            status = int(not _runs_alone(two))
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def _runs_alone(which: "Kernel[...]") -> bool:
    """Run a kernel on this thread alone: threads of the parent are not in a child."""
    layout = contiguous_layout((N,), np.dtype(np.int32))
    memory = [HostMemory(Account(), 4 * N) for _ in range(2)]
    memory[1].block.view(np.int32)[:] = X
    args = (Tiles(View(0, layout), (N,), (1,)), View(1, layout), N)
    run_text(Launch(which.spec, args, (4,), (1,), (0,), 0, None), memory)
    return bool(np.array_equal(memory[0].block.view(np.int32), 2 * X))


# ---- forms of CUDA


WEIGHTED = """\
__constant__ float taps[3];
__global__ void weighted(float* y, const float* x, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = taps[0] * x[i] + taps[1] + taps[2];
}
"""


@pytest.mark.parametrize(("checked", "extent"), [(True, "3"), (False, "3"), (True, "sizeof(int) - 1")])
def test_each_launch_sets_its_constants(checked: bool, extent: str) -> None:
    """Two launches of one run have their own contents; what they leave is zero, and too many are refused: by the call,
    where the text tells how many there are."""

    @kernel(cuda=WEIGHTED.replace("[3]", f"[{extent}]"), abi="pointers", block=32)
    def weighted(y: Out[f32], x: In[f32], n: int, taps: In[f32]) -> None: ...

    def launched(x: Any, *taps: float) -> Any:
        contents = from_host(np.array(taps, np.float32)).sync()
        return weighted.new((100,), (32,), partial=True)(x, 100, contents)

    with texts_run(mode=Mode(checked=checked)):
        twice = launched(launched(dagpu.arange(100), 2, 1, 4), 3)
        assert np.array_equal(twice.to_host().sync(), 3 * (2 * RAMP + 5))
        with pytest.raises(KernelArgumentError, match=r"but its __constant__ variable has (3|12)\. .*Pass at most"):
            launched(dagpu.arange(100), 1, 2, 3, 4).sync()


def test_blocks_of_a_grid_wait_for_each_other() -> None:
    """A cooperative kernel runs as it does on a GPU."""
    text = """\
#include <cooperative_groups.h>
__global__ void turned(int* y, const int* x, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = 2 * x[i];
    cooperative_groups::this_grid().sync();
    const int other = y[n - 1 - i];
    cooperative_groups::this_grid().sync();
    y[i] = other;
}
"""

    @kernel(cuda=text, abi="pointers", block=8)
    def turned(y: Out[i32], x: In[i32], n: int) -> None: ...

    op: Any = turned.new((32,), (8,))(from_host(np.arange(32, dtype=np.int32)), 32)
    assert np.array_equal(op.to_host().sync(), 2 * np.arange(32)[::-1])


@pytest.mark.parametrize("text", ["__cluster_dims__(2, 1, 1) ", ""])
def test_clusters_are_refused(text: str) -> None:
    """Of the declaration, and of the text."""
    extents = None if text else 2

    @kernel(
        cuda=f"__global__ void {text}one(int* y) {{ y[blockIdx.x] = 1; }}", abi="pointers", block=1, cluster=extents
    )
    def one(y: Out[i32]) -> None: ...

    op: Any = one.new((4,), (1,))()
    with pytest.raises(CompileError, match=r"clusters, which a GPU alone has. Give it a host body with @one.host"):
        op.sync()


FORM = """\
{before}
template <class T> __global__ void turned(T* y) {{
    {inside}
    // extern __shared__ memory[] in a comment is none
    m[threadIdx.x] = threadIdx.x;
    __syncthreads();
    y[threadIdx.x] = m[31 - threadIdx.x];
}}
"""
OF_CUDA_SAMPLES = """\
template <class T> struct SharedMemory {
    __device__ inline operator T*() { extern __shared__ int __smem[]; return (T*)__smem; }
    __device__ inline operator const T*() const { extern __shared__ int __smem[]; return (T*)__smem; }
};
template <> struct SharedMemory<float> {
    __device__ inline operator float*() { extern __shared__ float __smem_f[]; return __smem_f; }
};"""


@pytest.mark.parametrize(
    ("before", "inside"),
    [
        ("", "extern __shared__ int s[]; T* m = (T*)s;"),
        ("", "extern __shared__ T m[];"),
        ("", "extern volatile __shared__ T m[];"),
        ("", "__shared__ extern T m[];"),
        ("", "extern __shared__ T m[], other[];"),
        ("", "extern __shared__ T s[][32]; T* m = s[0];"),
        ("", "extern __shared__ std::pair<T, T> s[]; T* m = &s->first;"),
        ("", "extern __shared__ __align__(sizeof(T)) unsigned char s[]; T* m = reinterpret_cast<T*>(s);"),
        ("", "extern __align__(16) __shared__ unsigned char s[]; T* m = (T*)s;"),
        ("", "extern __shared__ alignas(alignof(T))\n  char s[]; T* m = (T*)s;"),
        ("namespace a { extern __align__(16) __shared__ char s[]; }", "T* m = (T*)a::s;"),
        ('extern "C" { extern __shared__ int s[]; }', "T* m = (T*)s;"),
        ("template <class T> __device__ T* its() { extern __shared__ int s[]; return (T*)s; }", "T* m = its<T>();"),
        (OF_CUDA_SAMPLES, "T* m = SharedMemory<T>();"),
    ],
)
def test_dynamic_shared_memory(before: str, inside: str) -> None:
    """It is one array in all forms in which a text may declare it, in templates too."""
    text = FORM.format(before=before, inside=inside)

    @kernel("turned<double>", cuda=text, abi="pointers", block=32, shared_memory=256)
    def turned(y: Out[f64]) -> None: ...

    assert np.array_equal(turned.new((32,), (32,))().to_host().sync(), np.arange(32)[::-1])


# ---- checks of kernels


def test_check_compares_text_and_body() -> None:
    """A host body that differs is found, and a right one passes."""
    doubled().check(empty((100,)).partition((32,), partial=True), dagpu.arange(100))
    with pytest.raises(KernelMismatchError, match=r"makes y\[\(1,\)\] = 2.0, and by its host body it is 3.0"):
        doubled(3).check(empty((100,)).partition((32,), partial=True), dagpu.arange(100))
    doubled(3).check(empty((100,)).partition((32,), partial=True), dagpu.arange(100), tolerance=0.6)


def test_check_with_new_outputs() -> None:
    """`new` has `check` too, for one output and for several."""
    doubled().new((100,), (32,), partial=True).check(dagpu.arange(100))
    with pytest.raises(KernelMismatchError, match=r"by its host body it is 3\.0"):
        doubled(3).new((100,), (32,), partial=True).check(dagpu.arange(100))
    doubled(3).new((100,), (32,), partial=True).check(dagpu.arange(100), tolerance=0.6)

    @kernel(
        cuda="__global__ void both(int* y, int* z, int n) { y[0] = n; z[0] = atomicExch(y, n); }",
        abi="pointers",
        block=1,
    )
    def both(y: Out[i32], z: Out[i32], n: int) -> None: ...

    @both.host(whole=True)
    def _(y: Tile[i32], z: Tile[i32], n: int) -> None:
        y[...] = n
        z[...] = n + n // 2

    new = both.new(((1,), (1,)), ((1,), (1,)))
    new.check(1)
    with pytest.raises(KernelMismatchError, match=r"makes z\[\(0,\)\] = 2, and by its host body it is 3"):
        new.check(2)


def test_check_compares_orders() -> None:
    """What the last thread leaves depends on the order, which atomics hide from the check of races."""
    with pytest.raises(KernelMismatchError, match="in order 2"):
        declared("  atomicExch(y, i);").grid(4).check(zeros((1,), i32).partition((1,)), from_host(X), N)


def test_the_fixture(check_kernels: CheckedKernels) -> None:  # noqa: F811  # reason: pytest passes it
    """Each launch of a test is checked, and counted."""
    assert np.array_equal(made(doubled()), 2 * RAMP)
    assert check_kernels.launches == {"two": 1}
    with pytest.raises(KernelMismatchError):
        made(doubled(3))


def test_without_checks_all_cores_run_the_blocks() -> None:
    """The result is the same as with checks."""
    with texts_run(mode=Mode(checked=False)):
        assert np.array_equal(result(declared("  y[i] = 3 * x[i];")), 3 * X)


def test_explore_chooses_the_order_of_threads() -> None:
    """The last of all threads is another one with another seed, and the same with the same."""
    last = declared("  atomicExch(y, i);")

    def found(seed: int) -> int:
        with exploring(seed=seed), dagpu.use_device("explore:0"):
            return int(result(last, out=1, zeroed=True)[0])

    assert found(3) == found(3)
    assert len({found(seed) for seed in range(4)}) > 1


def test_blocks_that_overlap_leave_nothing_behind() -> None:
    """Threads close what they have opened in any order, and a block of one thread does not reach the others."""
    last = declared("  atomicExch(y, i);")

    def found() -> int:
        return int(result(last, out=1, zeroed=True)[0])

    usual = found()
    first, second = ExitStack(), ExitStack()
    first.enter_context(texts_run(order=Order(1, 1)))
    second.enter_context(texts_run(mode=Mode()))
    assert found() != usual
    first.close()
    second.close()
    assert found() == usual
    with ThreadPoolExecutor(1) as other:
        other.submit(first.enter_context, texts_run(order=Order(1, 1), here=True)).result()
        assert found() == usual
        other.submit(first.close).result()
