"""Launches of other forms: cooperative ones, clusters of blocks, dynamic shared memory that must be given."""

import ctypes
import struct
from typing import Any

import pytest

from dagpu import DeviceLostError, In, KernelArgumentError, Out, empty, f32, kernel, ones, pipeline, zeros
from dagpu.backends.cuda.driver.driver_protocol import KernelLaunch
from dagpu.backends.cuda.driver.pycuda_streams import PyCudaLaunches
from dagpu.backends.kernel_text.loaded_function import Function
from dagpu.kernels.module_variables import read_module_use
from tests.simulated.cuda import installed

SYNC = "namespace cg = cooperative_groups; __global__ void k(Tile<float, 1> y) { y[0] = 1; cg::this_grid().sync(); }"
PLAIN = "__global__ void k(Tile<float, 1> y) { y[0] = 1; }"


def declared(text: str, **settings: Any) -> Any:
    @kernel(cuda=text, **settings)
    def k(y: Out[f32]) -> None: ...

    @k.host(whole=True)
    def _(y: Any) -> None:
        y[...] = 1

    return k


@pytest.mark.parametrize(
    ("text", "settings", "cooperative", "cluster"),
    [
        (SYNC, {}, True, None),
        (PLAIN, {"cooperative": True}, True, None),
        (PLAIN, {"cluster": 2}, False, (2, 1, 1)),
        (SYNC, {"cluster": (2, 1)}, True, (2, 1, 1)),
        (PLAIN, {}, False, None),
    ],
)
def test_a_launch_has_its_attributes(text: str, settings: Any, cooperative: bool, cluster: Any) -> None:
    """By the text or by the declaration, as an op and as a graph: the simulated driver compares them with the
    declaration. The host runs the body."""
    k = declared(text, **settings)
    assert k.new((8,), (2,))().to_host().sync().tolist() == [1] * 8
    with installed() as machine:
        seen: list[tuple[bool, Any]] = []
        for gpu in machine.gpus:
            prepare = gpu.prepare_launches

            def spied(launches: Any, prepare: Any = prepare) -> Any:
                seen.extend([(launch.cooperative, launch.cluster) for launch, _ in launches])
                return prepare(launches)

            gpu.prepare_launches = spied  # type: ignore[method-assign]  # reason: a spy
        piped = pipeline(lambda: k.new((8,), (2,))().to_host())
        for _again in range(4):
            assert piped().sync().tolist() == [1] * 8
        assert seen[-1] == (cooperative, cluster)


def test_blocks_that_do_not_fit_are_refused_before_the_launch() -> None:
    """The message says how many do: 4 multiprocessors take 8 blocks of 128 threads each."""
    with installed():
        k = declared(SYNC).block(128)
        assert k(zeros((64,)).partition((2,))).first().unpartition().to_host().sync().tolist() == [1] * 64
        op = k(zeros((66,)).partition((2,)))
        says = r"33 blocks of 128 threads that wait for each other, but cuda:0 allows it at most 32 at once"
        with pytest.raises(KernelArgumentError, match=says):
            op.sync()


def test_a_grid_of_clusters_is_whole() -> None:
    """On a device that has clusters, which is said otherwise."""
    with installed() as machine:
        k = declared(PLAIN, cluster=4)
        with pytest.raises(KernelArgumentError, match=r"grid of \(6, 1, 1\) blocks is not made of whole clusters"):
            k(zeros((12,)).partition((2,))).sync()
        machine.gpus[0].arch = "sm_86"
        with pytest.raises(KernelArgumentError, match=r"cuda:0 \(sm_86\) does not have. Run it on a GPU of"):
            k(zeros((16,)).partition((2,))).sync()


def test_the_driver_gets_the_attributes() -> None:
    """CUlaunchConfig and CUlaunchAttribute, as cuda.h has them, read from memory."""
    got: list[tuple[Any, ...]] = []

    def launch_kernel(config: Any, _function: Any, _parameters: Any, _extra: Any) -> int:
        *_, attributes, count = struct.unpack("<7I4xQQI4x", ctypes.string_at(config.value, 56))
        table = ctypes.string_at(attributes, 72 * count) if count else b""
        found = [struct.unpack_from("<I4x3I", table, 72 * number) for number in range(count)]
        got.append((*[each[0] for each in found], *[each[1:] for each in found]))
        return 0

    function = Function(7, 1024, 0, 0, lambda _: None)
    plain = KernelLaunch(function, (2, 1, 1), (32, 1, 1), bytearray(8), 0)
    both = plain._replace(cooperative=True, cluster=(2, 1, 1))
    forms = [plain, plain._replace(cooperative=True), both, plain._replace(cluster=(1, 2, 4))]
    launches = PyCudaLaunches(launch_kernel, [(each, 0) for each in forms])
    for each in launches.each:
        assert each() == 0
    assert got == [(), (2, (1, 0, 0)), (2, 4, (1, 0, 0), (2, 1, 1)), (4, (1, 2, 4))]


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ("__global__ void k(float* y) { extern __shared__ float s[]; }", "extern __shared__ float s[]"),
        ("extern __shared__ __align__(16) char s[]; __global__ void k(float* y) { s[0] = 1; }", "s[]"),
        ("__device__ void f() { extern __shared__ int t[]; } __global__ void k(float* y) { f(); }", "t[]"),
        ("struct S { __device__ void f() { extern __shared__ int u[]; } }; __global__ void k(S s) {}", "u[]"),
        ("#define SHARED(T, n) extern __shared__ T n[]\n__global__ void k(float* y) { SHARED(float, v); }", "v[]"),
        ("extern __shared__ char s[]; __global__ void k(float* y) { y[0] = 1; }", ""),
        ("__global__ void k(float* y) { __shared__ float s[4]; }", ""),
        ('extern "C" { extern __device__ int n; __global__ void k(float* y) { __shared__ int s[2]; } }', ""),
        ("__global__ void other() { extern __shared__ int s[]; } __global__ void k(float* y) {}", ""),
    ],
)  # fmt: skip
def test_dynamic_shared_memory_of_a_text(text: str, asks: str) -> None:
    """It is that which the kernel reaches."""
    found = read_module_use(text, "k").dynamic_shared
    assert found.endswith(asks) if asks else not found


def test_dynamic_shared_memory_must_be_given() -> None:
    """By the declaration or by `shared_memory`; a call without it is refused on every device. 0 says that it is not
    used."""
    text = """__global__ void sums(float* y, const float* x) { extern __shared__ float s[]; s[threadIdx.x] = x[0]; }"""

    def sums(y: Out[f32], x: In[f32]) -> None: ...

    forgotten = kernel(cuda=text, abi="pointers", block=32)(sums)
    given = kernel(cuda=text, abi="pointers", block=32, shared_memory=128)(sums)
    with pytest.raises(KernelArgumentError, match=r"'extern __shared__ float s\[\]', and nothing says how many bytes"):
        forgotten(empty((4,)).partition((4,)), ones((4,)))
    assert given.spec.shared_bytes == forgotten.shared_memory(128).spec.shared_bytes == 128
    for made in (given, forgotten.shared_memory(128), forgotten.shared_memory(0)):
        assert made(empty((4,)).partition((4,)), ones((4,))) is not None


def test_a_failed_assert_names_the_kernels_that_have_one() -> None:
    """The device is lost, and the error has the kernel and the place of its launch; all others are left out. As an op
    and as a graph."""
    checks = declared("__global__ void k(Tile<float, 1> y) { for (auto i : y) assert(y[i] > 0); }")
    for runs in (0, 3):  # the second run of a pipeline is a graph
        with installed() as machine:
            filled = pipeline(lambda: checks(ones((8,)).partition((8,))).first().unpartition().to_host())
            for _again in range(runs):
                filled().sync()
            op = filled()
            for call in ("cuStreamQuery", "cuStreamSynchronize", "cuEventSynchronize", "cuEventQuery"):
                machine.gpus[0].fail(call, 710)
            with pytest.raises(DeviceLostError, match="An assert in the kernel failed") as caught:
                op.sync()
            under_way = str(caught.value).partition("under way with ")[2].partition(": ")[0]
            assert under_way.startswith("kernel 'k' at ")
            assert "Fill" not in under_way
