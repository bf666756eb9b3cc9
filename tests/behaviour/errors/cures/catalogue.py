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
LEFT_OUT_ROOMS: Final[dict[str, str]] = {
    "cluster": CLUSTER,
    "compile": COMPILER,
    "cuda_text": "tests/behaviour/cuda_text has a program for each",
    "driver": NO_GPU,
    "placed_values": AT_FAULT,
    "verifier": AT_FAULT,
    "verify_tiles": AT_FAULT,
    "verify_updates": AT_FAULT,
}
"""Folders and modules of dagpu whose texts need no program here, and why."""

LEFT_OUT: Final[dict[str, str]] = {
    "and the central difference": "a test that fails shows where, with the frames of the check",
    "writes to a part of a tensor, or not in the order": "no function that has a rule writes to a part yet",
    "has no host body, so the host backend": "a kernel of Triton, Numba or cuTile, which are not installed everywhere",
    "is not public": "the mypy plugin asks for names that are public, and no program does",
    "backend names device": INTERNAL,
    "are not defined. Draw f16, bf16, f32 or f64, and convert.": INTERNAL,
    ": expected a contiguous array of": INTERNAL,
    ". Give both the same shape.": INTERNAL,
    "the pool may hold": INTERNAL,
    "a host device has no CUDA streams": INTERNAL,
    "only a CUDA graph decides, and its plans never come here": INTERNAL,
    "object has no attribute": INTERNAL,
    "has no inputs to wait for": INTERNAL,
    "its numbers are real": INTERNAL,
    "no tensor has that element type": INTERNAL,
    "elements for the shape": INTERNAL,
    ". Give it a shape (rows, columns).": INTERNAL,
    "BlockingWaits never suspends": INTERNAL,
    "has no seed yet": AT_FAULT,
    ", which never happens: no lane can go on.": AT_FAULT,
    ". Run it again when other threads have ended, or": "the machine must run out of threads: test_run_failures.py",
    "the interpreter is ending, and its worker threads are": "the interpreter must end: test_interrupted_processes.py",
    "the NVIDIA driver is loaded, but shows no device to this process.": NO_GPU,
    "(CUDA_VISIBLE_DEVICES=": NO_GPU,
    "Restart the process; results that were not copied to the host are": NO_GPU,
    "nothing of dagpu's": NO_GPU,
    "copying a strided view, or converting it, from": NO_GPU,
    "cannot be used any more by this process.": NO_GPU,
    ": its result is in ordinary memory, and a CUDA": "page-locked memory must run out: test_cuda_graph_failures.py",
    "it calls a function of the host. Take the host_map": "an op's capture refuses these before a backend is asked",
    "it is on a stream of your own, and begins on another": "an op's capture refuses these before a backend is asked",
    "it launches a graph itself. Launch both, one after": "an op's capture refuses these before a backend is asked",
    "it has clusters of": "which GPU runs it: test_launch_forms.py",
    "blocks along axis": "limits like that of shared memory: test_cuda_packing.py",
    "threads along axis": "limits like that of shared memory: test_cuda_packing.py",
    "a block of": "limits like that of shared memory: test_cuda_packing.py",
    "registers for each thread": "limits like that of shared memory: test_cuda_packing.py",
    "cannot be merged, but a kernel takes at most": "a view of more axes than NumPy's arrays have",
    "a failure injected by exploring(fail_at=...)": "the failure that a test of the user's asks for",
    ", to be written by": "NumPy itself must run out of memory: test_host_failures.py",
    "object has no attribute '__cuda_array_interface__'": "Python's own words, for hasattr(): test_host_arrays.py",
    ", which dagpu does not give.": COMPILER,
    "scratch memory, and makes no tensor descriptor": COMPILER,
    ". Convert the tensors to f32, say.": "a library must refuse: test_library_calls.py",
    ". It is a defect in dagpu, or in the library.": "a library must refuse: test_library_calls.py",
    ": a kernel runs on one device. Copy one of the tensors to the other": "a trace refuses it before",
    "devices. Give each buffer the index of its device in the mesh.": "no user gives owners: test_placements.py",
    ":... of that name. cluster.mesh has the devices of a cluster, as long": CLUSTER,
    "the capture that was to make them failed": "why a handle is void, in the message of a later use: `escaped` above",
    "of the work was hidden behind other work, less than": "a machine must be too busy to overlap: test_overlap.py",
    ". Leave engine out, or reduce them as f32: let the": "GPUs with a library that refuses, or without: test_nccl.py",
    ': engine="nccl" has derivatives of sums and means alone': "GPUs with a library: test_nccl.py",
    ': engine="nccl" needs NCCL, which is not': "GPUs with a library that refuses, or without: test_nccl.py",
}
"""Words of the texts that no program here meets, and why."""
