"""Kernels of Triton, Numba and cuTile on a real GPU: results, variants, pipelines, and what is refused."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from dagpu import (
    Device,
    DeviceOp,
    In,
    Kernel,
    Out,
    Tensor,
    cutile_kernel,
    f32,
    from_host,
    i32,
    numba_kernel,
    pipeline,
    triton_kernel,
    use_device,
    zeros,
)
from dagpu.testing import driver_of
from tests.behaviour.interop.python_kernels import test_numba_and_cutile_kernels as recorded
from tests.behaviour.interop.python_kernels.stand_ins import (
    CUTILE,
    NUMBA,
    installed_cutile,
    installed_numba,
    need_cutile,
    need_numba,
)

N = 10_000
SMALL = np.arange(12, dtype=f32)
X = np.arange(N, dtype=f32) / f32(7)
PROGRAMS = "tests.behaviour.interop.python_kernels"

pytestmark = [
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:numba.*"),
]


@pytest.fixture(autouse=True)
def on_gpu(cuda: Device) -> Iterator[None]:
    if cuda.kind != "cuda":
        pytest.skip("these libraries compile for GPUs")
    with use_device(cuda):
        yield


def by_triton() -> Any:
    pytest.importorskip("triton")

    @triton_kernel(import_module(f"{PROGRAMS}.triton_programs").axpy, constexprs=lambda tile: {"BLOCK": tile[0]})
    def axpy(y: Out[f32], x: In[f32], a: float, n: int) -> None: ...

    return lambda y, a, x: axpy(y, x, a, N)


def by_numba() -> Any:
    need_numba()

    @numba_kernel(import_module(f"{PROGRAMS}.numba_programs").axpy)
    def axpy(y: Out[f32], a: float, x: In[f32], n: int) -> None: ...

    return lambda y, a, x: axpy(y, a, x, N)


def by_cutile() -> Any:
    need_cutile()

    @cutile_kernel(import_module(f"{PROGRAMS}.cutile_programs").axpy, constants=lambda tile: {"T": tile[0]})
    def axpy(y: Out[f32], a: float, x: In[f32]) -> None: ...

    return axpy


LIBRARIES = {"triton": by_triton, "numba": by_numba, "cutile": by_cutile}


@pytest.fixture(params=LIBRARIES)
def axpy(request: pytest.FixtureRequest) -> Any:
    return LIBRARIES[request.param]()


def test_tiles_and_alignment(axpy: Any) -> None:
    """Each tile, and inputs at any address, are right; the last tile is smaller than the others."""
    whole = from_host(np.arange(N + 8, dtype=f32)).sync()
    for tile in (128, 512):
        for start in (0, 1, 4):
            y = axpy(from_host(X).partition((tile,), partial=True), 2.0, whole.slice(slice(start, start + N)))
            found = y.first().unpartition().to_host().sync()
            assert_allclose(found, X + 2 * np.arange(start, start + N, dtype=f32), rtol=1e-6)


def test_pipeline(axpy: Any) -> None:
    """In a graph, the numbers and the addresses of a node change from call to call."""

    @pipeline(graph_from=2)
    def twice(x: In[f32], a: float, b: float) -> DeviceOp[Tensor[f32], Any]:
        first = axpy(zeros((N,), f32).partition((256,), partial=True), a, x).first().unpartition()
        last = axpy(from_host(X).partition((256,), partial=True), b, first).first()
        made: DeviceOp[Tensor[f32], Any] = last.unpartition()
        return made

    for number in range(20):
        x = from_host(X + f32(number)).sync().share()
        found = twice(x, 2.0, float(number)).to_host().sync()
        assert_allclose(found, X + 2 * number * (X + number), rtol=1e-5)


def _swapped(kernel: Kernel[Any], tile: tuple[int, int]) -> None:
    matrix = np.arange(64 * 48, dtype=f32).reshape(64, 48)
    x = from_host(matrix).sync()
    y = kernel(zeros((32, 32), f32).partition(tile), x.slice(slice(16, 48), slice(8, 40))).first().unpartition()
    assert_array_equal(y.to_host().sync(), matrix[16:48, 8:40].T)


def test_strides() -> None:
    """Numba and cuTile take views with strides."""
    need_numba()

    @numba_kernel(import_module(f"{PROGRAMS}.numba_programs").swapped)
    def swapped(y: Out[f32], x: In[f32]) -> None: ...

    _swapped(swapped, (16, 16))


def test_strides_of_cutile() -> None:
    """Numba and cuTile take views with strides."""
    need_cutile()

    @cutile_kernel(
        import_module(f"{PROGRAMS}.cutile_programs").swapped, constants=lambda tile: {"N": tile[0], "M": tile[1]}
    )
    def swapped(y: Out[f32], x: In[f32]) -> None: ...

    _swapped(swapped, (16, 16))


def test_atomic_operations_of_numba() -> None:
    """A kernel that is made by numba.cuda.jit counts with atomic operations into its output."""
    need_numba()

    @numba_kernel(import_module(f"{PROGRAMS}.numba_programs").counted, block=256)
    def counted(counts: Out[i32], x: In[i32]) -> None: ...

    x = np.random.default_rng(1).integers(0, 10, 5_000, np.int32)
    counts = counted.grid(20)(zeros((10,), i32).partition((10,)), from_host(x)).first().unpartition()
    assert_array_equal(counts.to_host().sync(), np.bincount(x, minlength=10))


def test_shared_memory_of_triton() -> None:
    """A product of matrices in pieces takes more than 48 KiB of shared memory, and four stages."""
    pytest.importorskip("triton")
    jit = import_module(f"{PROGRAMS}.triton_programs").product

    @triton_kernel(jit, num_warps=8, num_stages=4, constexprs=lambda tile: {"BLOCK": tile[0], "DEPTH": 32})
    def product(c: Out[f32], a: In[f32], b: In[f32], n: int) -> None: ...

    rng = np.random.default_rng(1)
    a, b = rng.integers(-4, 5, (256, 256)).astype(f32), rng.integers(-4, 5, (256, 256)).astype(f32)
    c = product(zeros((256, 256), f32).partition((128, 128)), from_host(a), from_host(b), 256).first().unpartition()
    assert_array_equal(c.to_host().sync(), a @ b)


@pytest.mark.parametrize("graph_from", [None, 2])
def test_triton_makes_tensor_descriptors(graph_from: int | None) -> None:
    """They are in scratch memory of the plan, through streams and in a graph."""
    pytest.importorskip("triton")

    @triton_kernel(import_module(f"{PROGRAMS}.triton_programs").descriptors, constexprs={"BLOCK": 16})
    def copied(y: Out[f32], x: In[f32], w: In[f32], n: int) -> None: ...

    step = pipeline(graph_from=graph_from)(
        lambda x, w: copied(zeros((16, 16)).partition((16, 16)), x, w, 16).first().unpartition()
    )
    w = zeros((4,)).sync().share()
    for number in range(5):
        x = np.arange(256, dtype=f32).reshape(16, 16) + number
        assert_array_equal(step(from_host(x).sync(), w.clone()).to_host().sync(), x)


@pytest.mark.parametrize("library", ["numba", "cutile"])
def test_machine_code_that_was_made_elsewhere(cuda: Device, library: str) -> None:
    """What the compilers of Numba and cuTile have made for this GPU on another machine runs: neither is installed."""
    if driver_of(cuda).arch != "sm_90":
        pytest.skip("the recorded machine code is for sm_90")
    x = from_host(SMALL).sync().share()  # from here on the driver's modules are loaded: stand-ins take their names
    with installed_numba(NUMBA) if library == "numba" else installed_cutile(CUTILE):
        made, more = (recorded.by_numba(), (12,)) if library == "numba" else (recorded.by_cutile(), ())

        def once(y: Any, a: float) -> Any:
            return made(y.partition((4,)), a, x, *more).first().unpartition().to_host()

        assert_array_equal(once(from_host(SMALL), 2.0).sync(), 3 * SMALL)
    step = pipeline(graph_from=2)(lambda a: once(zeros((12,), f32), a))
    for number in range(4):
        assert_array_equal(step(float(number)).sync(), number * SMALL)
