"""A mistake beside the program with its message's cure, kernels that these programs share, and what is left out."""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, final

import trio
from numpy.typing import NDArray

from dagpu import (
    DeviceOp,
    In,
    Lazy,
    Out,
    Tile,
    f32,
    kernel,
    ones,
    zeros,
)

Program = Callable[[], object]


class Cure(NamedTuple):
    """`says` are words of the message; `program` does what they say, and succeeds."""

    says: str
    program: Program


@final
@dataclass(frozen=True)
class Case:
    """A mistake, and its cures."""

    wrong: Program
    cures: tuple[Cure, ...]
    simulated: bool = False
    """Is it about GPUs? Then it runs on simulated ones."""


@final
class Catalogue:
    """The cases of one module, in the order in which they are added."""

    def __init__(self) -> None:
        self.cases: Final[list[Case]] = []

    def add(self, wrong: Program, *cures: tuple[str, Program], simulated: bool = False) -> None:
        """Add one case."""
        self.cases.append(Case(wrong, tuple(Cure(*cure) for cure in cures), simulated))


N, TILE = 8, (4,)


@kernel(cuda="__global__ void add(Tile<float, 1> y, View<const float, 1> x) { for (auto i : y) y[i] += x[i]; }")
def add(y: Out[f32], x: In[f32]) -> None:
    """y += x"""


@add.host
def _(y: Tile[f32], x: NDArray[f32]) -> None:
    y[...] += x[y.at]


@kernel(cuda="__global__ void both(Tile<float, 1> z, View<const float, 1> x, View<const float, 1> y) {}")
def both(z: Out[f32], x: In[f32], y: In[f32]) -> None:
    """z = x + y"""


@both.host
def _(z: Tile[f32], x: NDArray[f32], y: NDArray[f32]) -> None:
    z[...] = x[z.at] + y[z.at]


@kernel(cuda="__global__ void scale(Tile<float, 1> y, float by) {}")
def scale(y: Out[f32], by: float) -> None:
    """y *= by"""


@scale.host
def _(y: Tile[f32], by: float) -> None:
    y *= by


@kernel(cuda="__global__ void lazily(Tile<float, 1> y, float by) {}")
def lazily(y: Out[f32], by: Lazy[float]) -> None:
    """y *= by"""


@lazily.host
def _(y: Tile[f32], by: float) -> None:
    y *= by


loose: Any = add
"""`add`, to a type checker that shall not see what is wrong with a call."""
anything: Any = lambda x: x  # noqa: E731  # hides a type


def new(n: int = N) -> Any:
    """A tensor, whose type is hidden so that the mistakes pass the type checker."""
    return ones((n,)).sync()


def out(n: int = N) -> Any:
    return zeros((n,)).partition(TILE)


def run(op: Any) -> object:
    return op.sync()


def awaited(op: DeviceOp[Any]) -> object:
    async def main() -> object:
        return await op

    return trio.run(main)


def lent_for_writing_twice() -> None:
    t = new()
    run(add(t.borrow_mut().partition(TILE), ones((N,))))
    run(add(t.borrow_mut().partition(TILE), ones((N,))))


@contextlib.contextmanager
def suppressed_groups() -> Iterator[None]:
    """One error of a nursery as itself."""
    try:
        yield
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


SCALE = "__global__ void k(Tile<float, 1> y, float by) {}"


def declare(source: Any = SCALE, annotated: Any = None, **options: Any) -> Any:
    """Declare a kernel `k`; `annotated` is the Python function, `(y: Out[f32], by: float)` unless given."""
    if annotated is None:

        def k(y: Out[f32], by: float) -> None: ...

        annotated = k
    annotated.__name__ = "k"
    return kernel(cuda=source, **options)(annotated)


ONE = "Tile<float, 1> y"


def cuda(parameters: str, more: str = "") -> str:
    return f"{more}__global__ void k({parameters}) {{}}"


def of_body(body: Any, *, x: int = N, times: int = 1) -> Any:
    """A kernel `k(y, x)` with this host body, called."""

    @kernel(cuda="__global__ void k(Tile<float, 1> y, View<const float, 1> x) {}")
    def k(y: Out[f32], x: In[f32]) -> None: ...

    if body is not None:
        k.host(body)
    del times
    return k(out(), ones((x,))).sync()


def lent(use: Callable[[Any], object]) -> object:
    t = new()
    return use(t.borrow())


def with_limit(limit: int, program: Program) -> object:
    """With this many closures at most."""
    with environment("DAGPU_MAX_CLOSURES", str(limit)):
        return program()


@contextlib.contextmanager
def environment(name: str, setting: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = setting
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


async def awaits(op: DeviceOp[Any]) -> None:
    await op


KEPT: list[Any] = []
"""Tensors that outlive the programs that lend them; the tests clear it."""


class Gives:
    """A policy that gives what it is told to."""

    def __init__(self, keys: Callable[[int], Any]) -> None:
        self._keys = keys

    def place(self, program: Any) -> Any:
        return self._keys(len(program.instructions))


# ---- the messages that no program here provokes, each with the reason

COMPILER = "what a real compiler says: test_compile_errors.py has its errors, and what comes of them"
NO_GPU = "only a real GPU, or a machine without one, fails like this: tests/gpu and test_cuda_failures.py"
AT_FAULT = "no program makes a plan that is wrong: test_verify.py breaks them; the cure is to report it"
INTERNAL = "no program gets there: it guards one part of dagpu against another"

CLUSTER: Final = "it needs a cluster, or one that fails: tests/unit/cluster"
LEFT_OUT: Final[dict[str, str]] = {
    "cluster/checkpoints.py _read": CLUSTER,
    "cluster/cluster_backend.py": CLUSTER,
    "cluster/cluster_runs.py": CLUSTER,
    "cluster/connection/main_guard.py": CLUSTER,
    "cluster/connection/members.py": CLUSTER,
    "cluster/connection/opening.py": CLUSTER,
    "cluster/engine/dask_engine.py": CLUSTER,
    "cluster/engine/run_ends.py": CLUSTER,
    "cluster/parts/part_blobs.py": CLUSTER,
    "cluster/parts/part_decoder.py": CLUSTER,
    "cluster/parts/part_encoder.py": CLUSTER,
    "cluster/parts/program_versions.py": CLUSTER,
    "cluster/remote_driver.py": CLUSTER,
    "cluster/worker/part_errors.py": CLUSTER,
    "cluster/parts/part_checks.py": INTERNAL,
    "runtime/device_lookup.py _load": CLUSTER,
    "backends/cuda/backend.py": NO_GPU,
    "backends/cuda/kernels/fill_and_copy.py": INTERNAL,
    "backends/cuda/compile/compiler.py": COMPILER,
    "backends/cuda/compile/cubin.py": COMPILER,
    "backends/cuda/resources/cuda_device.py": NO_GPU,
    "backends/cuda/compile/diagnostics.py": COMPILER,
    "backends/cuda/compile/offline.py": "the cure needs a compiler: test_offline_compiler.py",
    "backends/cuda/driver/driver_errors.py": NO_GPU,
    "backends/cuda/graphs/captured.py capture": "page-locked memory must run out: test_cuda_graph_failures.py",
    "backends/cuda/graphs/obstacles.py obstacle": "an op's capture refuses these before a backend is asked",
    "backends/cuda/resources/pools.py": INTERNAL,
    "backends/host/host_exchange.py": INTERNAL,
    "interop/export_parts.py cuda_interface": "Python's own words, for hasattr(): test_host_arrays.py",
    "backends/cuda/compile/nvrtc.py": COMPILER,
    "backends/cuda/compile/python_code.py": COMPILER,
    "interop/python_kernels/triton_kernels.py compile_for": COMPILER,
    "backends/cuda/kernels/launch_limits.py check_limits": "limits like that of shared memory: test_cuda_packing.py",
    "backends/cuda/driver/pycuda_driver.py": NO_GPU,
    "backends/cuda/driver/pycuda_capture.py": NO_GPU,
    "backends/cuda/commands/transfers.py": INTERNAL,
    "backends/cuda/kernels/strided_loop.py": "a view of more axes than NumPy's arrays have",
    "backends/common/device_registry.py driver": INTERNAL,
    "backends/explore/exploration.py injected": "the failure that a test of the user's asks for",
    "backends/explore/machine.py": AT_FAULT,
    "backends/host/numpy_execution.py execute": INTERNAL,
    "backends/host/numpy_execution.py _copy_out": "NumPy itself must run out of memory: test_host_failures.py",
    "backends/common/philox.py": INTERNAL,
    "backends/common/numpy_initializers.py write": AT_FAULT,
    "backends/common/worker_threads.py no_thread": "the machine must run out of threads: test_run_failures.py",
    "backends/common/worker_threads.py ready": "the interpreter must end: test_interrupted_processes.py",
    "kernels/arrays/libraries/cublaslt.py": "a library must refuse: test_library_calls.py",
    "kernels/arrays/libraries/nvmath_bindings.py library_error": "a library must refuse: test_library_calls.py",
    "lowering/schedule/mesh_placement/owner_placement.py": "no user gives owners: test_placements.py",
    "lowering/schedule/mesh_placement/memory_versions.py _two_homes": "a trace refuses it before",
    "sharding/nccl.py": "GPUs with a library that refuses, or without: test_nccl.py",
    "lowering/verify/placed_values.py": "no program is placed wrongly: test_placements.py breaks placements",
    "lowering/verify/tables.py": AT_FAULT,
    "lowering/verify/verifier.py": AT_FAULT,
    "lowering/verify/verify_tiles.py": AT_FAULT,
    "lowering/verify/verify_bodies.py": AT_FAULT,
    "lowering/verify/verify_conditional.py": AT_FAULT,
    "lowering/verify/verify_update.py": AT_FAULT,
    "lowering/tracing/evaluate.py _apply_node": INTERNAL,
    "ops/initializers.py _check_real": INTERNAL,
    "ops/initializers.py _check_landing": INTERNAL,
    "ops/initializers.py check_recipe": INTERNAL,
    "runtime/graphs/capture.py capture": "why a handle is void, in the message of a later use: `escaped` above",
    "runtime/waiting/waits.py drive": INTERNAL,
    "common/facts.py": "the mypy plugin asks for names that are public, and no program does",
    "common/slot.py __getattr__": INTERNAL,
    "common/wrong_arguments.py no_attribute": "Python's own words for a name that is nothing's",
    "runtime/timeline.py assert_overlap": "a machine must be too busy to overlap: test_overlap.py",
}
"""Texts that no program here meets, by module, or by module and function, and why."""
