"""Factorisations of matrices by cuSOLVER, by address: the device bodies of `cholesky`, `solve`, `qr` and `svd`.

cuSOLVER sees matrices by columns. A contiguous matrix in rows, read by columns, is its transposed matrix, without a
conjugate; what each call makes of that is said where it is.

One handle of the library serves all lanes of a device: a call sets the stream under a lock, and what it has enqueued
refers to the stream and the workspace of that call.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal, TypeAlias, final

import numpy as np

from dagpu.arrays.nvidia.libraries import KeptPlans, import_bindings, library_error, open_handle
from dagpu.common.errors import DeviceError
from dagpu.common.layout import Layout, part_type
from dagpu.handles.device_handles import Effort, Enqueue

Name: TypeAlias = Literal["cholesky", "solve", "qr", "svd"]
Work: TypeAlias = Callable[[Sequence[int], int], None]
"""Enqueues the calls of a factorisation, given the addresses of its operands and of its scratch memory."""

MOST: Final = 1024
"""The most shapes for which sizes of workspaces are kept for a device: some hundred bytes of the host's memory each."""
ALIGNED: Final = 256
"""Bytes to which the parts of scratch memory are aligned."""

# library_types.h and cublas_api.h: cudaDataType of the elements, a triangle, operations and a side.
_TYPES: Final = {"float32": 0, "float64": 1, "complex64": 4, "complex128": 5}
_UPPER: Final = 1
_NOT_TRANSPOSED, _TRANSPOSED = 0, 1
_LEFT: Final = 0
_REFLECTIONS: Final = {"float32": "sormqr", "float64": "dormqr", "complex64": "cunmqr", "complex128": "zunmqr"}
"""The functions that multiply by the product of Householder reflections, by the elements."""


@final
class Solver:
    """A handle of cuSOLVER on one device. One thread at a time calls the library with it."""

    def __init__(self, bindings: Any) -> None:
        self.bindings = bindings
        self.handle = open_handle(bindings, "cuSOLVER")
        self.params: int = bindings.create_params()
        """The library's choice of algorithms, which is its default."""
        self.lock = threading.Lock()
        self._stream: int | None = None
        """The stream that the handle holds; None if it is not known."""

    @contextmanager
    def on(self, stream: int) -> Iterator[None]:
        """Within the `with` block, the calls of this thread enqueue their work on a stream."""
        with self.lock:
            if stream != self._stream:
                self._stream = None
                self.bindings.set_stream(self.handle, stream)
                self._stream = stream
            yield


@final
class Room:
    """The parts of the scratch memory of a call."""

    def __init__(self) -> None:
        self.nbytes = 0
        """Bytes of all parts."""

    def add(self, nbytes: int) -> int:
        """Return the place of a further part of so many bytes."""
        place = self.nbytes
        self.nbytes = place + -(-nbytes // ALIGNED) * ALIGNED
        return place


@final
class HostRoom:
    """The workspace of a call in the host's memory, which lives as long as its plan: work of it may be under way."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._memory = np.empty(nbytes, np.uint8)
        self.address: int = self._memory.ctypes.data if nbytes else 0


@final
class SolverPlan:
    """The calls of a factorisation of matrices of one shape, with the sizes of their workspaces."""

    def __init__(self, solver: Solver, name: Name, scratch: int, work: Work) -> None:
        self._solver = solver
        self._name = name
        self._work = work
        self.scratch = scratch
        """Bytes of scratch memory."""

    @property
    def release(self) -> Callable[[], object]:
        """Frees nothing: the plan is the host's memory alone."""
        return _nothing

    def enqueue(self, stream: int, addresses: Sequence[int], scratch: int) -> None:
        """Enqueue the work. `addresses` are those of the operands.

        Raises:
            DeviceError: the library refuses it.
        """
        try:
            with self._solver.on(stream):
                self._work(addresses, scratch)
        except Exception as error:
            raise library_error(f"cuSOLVER's {self._name}", error) from error


def _nothing() -> None:
    pass


@final
class CusolverCalls:
    """The device body of a factorisation, whose operands `_cholesky`, `_solve`, `_qr` and `_svd` describe. Implements
    `LibraryBody`."""

    def __init__(self, name: Name) -> None:
        self._name: Name = name

    @property
    def waits(self) -> bool:
        """True for `svd`: its sweeps go on until the device says that they have converged."""
        return self._name == "svd"

    @property
    def no_graph(self) -> str:
        """See `LibraryBody`. The driver captures the work of `solve`, and then refuses it as a part of another graph
        with CUresult 801 (cuSOLVER of CUDA 13.0, driver 580, an H200)."""
        name = self._name
        if self.waits:
            return f"the library that computes {name} waits for the device. Take {name} out of it"
        refused = f"the driver refuses what the library enqueues that computes {name}. Take {name} out of it"
        return refused if name == "solve" else ""

    def scratch_bytes(self, operands: Sequence[Layout], device: int) -> int:
        return PLANS.find(device, self._name, operands).scratch

    def bind(self, operands: Sequence[Layout], device: int) -> Enqueue:
        return PLANS.find(device, self._name, operands).enqueue

    def is_known(self, operands: Sequence[Layout], device: int) -> bool:
        return PLANS.is_known(device, self._name, operands)

    def effort(self, operands: Sequence[Layout]) -> Effort:
        """The operations that Golub and Van Loan count (Matrix Computations, 4th edition, 3.2, 4.2, 5.2 and 8.6), at
        the rate of products. A factorisation is slower than that, so its time is a lower bound until it is measured."""
        rows, columns = operands[{"qr": 1, "svd": -2}.get(self._name, 0)].shape
        small, large = float(min(rows, columns)), float(max(rows, columns))
        count = {
            "cholesky": large**3 / 3,
            "solve": 2 / 3 * columns**3 + 2.0 * rows * columns**2,
            "qr": 4 * large * small**2 - 4 / 3 * small**3,
            "svd": 6 * large * small**2 + 20 * small**3,
        }[self._name]
        dtype = operands[-2].dtype
        kind: Literal["f32", "f64"] = "f64" if part_type(dtype).itemsize == 8 else "f32"
        operations = (4.0 if dtype.kind == "c" else 1.0) * count
        return Effort(kind, operations, 2 * sum([layout.nbytes for layout in operands]))


# ---- calls
def _cholesky(solver: Solver, operands: Sequence[Layout]) -> tuple[int, Work]:
    """Factor a in its place; its other operand is the status. By columns it is a' = conj(a), whose upper factor U with
    U* U = a' is by rows U', the lower factor of a: U' conj(U) = a."""
    a = operands[0]
    n, element = a.shape[0], _TYPES[a.dtype.name]
    call, (handle, params) = solver.bindings.xpotrf, (solver.handle, solver.params)
    nbytes, on_host = solver.bindings.xpotrf_buffer_size(handle, params, _UPPER, n, element, 0, n, element)
    host = HostRoom(on_host)

    def work(addresses: Sequence[int], scratch: int) -> None:
        at, info = addresses
        call(
            handle, params, _UPPER, n, element, at, n, element, scratch, nbytes, host.address, host.nbytes, info
        )  # fmt: skip

    return nbytes, work


def _solve(solver: Solver, operands: Sequence[Layout]) -> tuple[int, Work]:
    """Solve a x = b for each row of the first operand, which the solution replaces; the others are a, which its factors
    replace, and the status. By columns the first operand has the columns b, and the second one is a', so that the
    system that is solved is that of the transposed of a'."""
    x, a, _ = operands
    n, count, element, bindings = a.shape[0], x.shape[0], _TYPES[a.dtype.name], solver.bindings
    factor, solved, (handle, params) = bindings.xgetrf, bindings.xgetrs, (solver.handle, solver.params)
    nbytes, on_host = bindings.xgetrf_buffer_size(handle, params, n, n, element, 0, n, element)
    host, room = HostRoom(on_host), Room()
    at, pivots, status = room.add(nbytes), room.add(8 * n), room.add(4)

    def work(addresses: Sequence[int], scratch: int) -> None:
        right, left, info = addresses
        factor(
            handle, params, n, n, element, left, n, scratch + pivots, element, scratch + at, nbytes, host.address,
            host.nbytes, info,
        )  # fmt: skip
        solved(
            handle, params, _TRANSPOSED, n, count, element, left, n, scratch + pivots, element, right, n,
            scratch + status,
        )  # fmt: skip

    return room.nbytes, work


def _qr(solver: Solver, operands: Sequence[Layout]) -> tuple[int, Work]:
    """Factor a = q r. The operands are the first columns of the identity, which q replaces, and a, in whose place r and
    the reflections are: each by columns, so both are transposed by rows."""
    q, a = operands
    (k, m), n, element, bindings = q.shape, a.shape[0], _TYPES[a.dtype.name], solver.bindings
    reflect = getattr(bindings, _REFLECTIONS[a.dtype.name])
    reflect_size = getattr(bindings, f"{_REFLECTIONS[a.dtype.name]}_buffer_size")
    factor, (handle, params) = bindings.xgeqrf, (solver.handle, solver.params)
    nbytes, on_host = bindings.xgeqrf_buffer_size(handle, params, m, n, element, 0, m, element, 0, element)
    elements = reflect_size(handle, _LEFT, _NOT_TRANSPOSED, m, k, k, 0, m, 0, 0, m)
    host, room = HostRoom(on_host), Room()
    at = room.add(max(nbytes, elements * a.dtype.itemsize))
    scales, status = room.add(k * a.dtype.itemsize), room.add(4)

    def work(addresses: Sequence[int], scratch: int) -> None:
        unit, left = addresses
        factor(
            handle, params, m, n, element, left, m, element, scratch + scales, element, scratch + at, nbytes,
            host.address, host.nbytes, scratch + status,
        )  # fmt: skip
        reflect(
            handle, _LEFT, _NOT_TRANSPOSED, m, k, k, left, m, scratch + scales, unit, m, scratch + at, elements,
            scratch + status,
        )  # fmt: skip

    return room.nbytes, work


def _svd(solver: Solver, operands: Sequence[Layout]) -> tuple[int, Work]:
    """Factor a = u s v*. The operands are u, v*, s, a, which is overwritten, and the status: each matrix by columns, so
    it is transposed by rows. a has as many rows as columns or more; u has as many columns as a, or as rows."""
    u, v, s, a, _ = operands
    (n, m), bindings = a.shape, solver.bindings
    element, real = _TYPES[a.dtype.name], _TYPES[s.dtype.name]
    job = ord("A") if u.shape[0] == m else ord("S")
    call, (handle, params) = bindings.xgesvd, (solver.handle, solver.params)
    assert v.shape == (n, n)
    nbytes, on_host = bindings.xgesvd_buffer_size(
        handle, params, job, job, m, n, element, 0, m, real, 0, element, 0, m, element, 0, n, element
    )
    host = HostRoom(on_host)

    def work(addresses: Sequence[int], scratch: int) -> None:
        left, right, values, at, info = addresses
        call(
            handle, params, job, job, m, n, element, at, m, real, values, element, left, m, element, right, n, element,
            scratch, nbytes, host.address, host.nbytes, info,
        )  # fmt: skip

    return nbytes, work


_CALLS: Final[dict[Name, Callable[[Solver, Sequence[Layout]], tuple[int, Work]]]] = {
    "cholesky": _cholesky, "solve": _solve, "qr": _qr, "svd": _svd,
}  # fmt: skip


# ---- plans
@final
class SolverPlans:
    """The plans that have been made, and the handles of each device: one for calls that wait, which hold its lock
    meanwhile, and one for the others."""

    def __init__(self, most: int = MOST) -> None:
        self._solvers: dict[tuple[int, bool], Solver] = {}
        self._made = KeptPlans[SolverPlan](most)

    def is_known(self, device: int, name: Name, operands: Sequence[Layout]) -> bool:
        """True if `find` returns at once."""
        return self._made.get(device, _key(name, operands)) is not None

    def find(self, device: int, name: Name, operands: Sequence[Layout]) -> SolverPlan:
        """Return the plan of a factorisation. The context of the device must be current.

        Raises:
            NoDeviceError: cuSOLVER is not installed, or cannot be loaded.
            DeviceError: the library refuses it.
        """

        def make() -> SolverPlan:
            solver = self._solver(device, waits=name == "svd")
            try:
                with solver.lock:
                    scratch, work = _CALLS[name](solver, operands)
            except Exception as error:
                raise library_error(f"cuSOLVER's {name}, asked for the size of its workspace,", error) from error
            return SolverPlan(solver, name, scratch, work)

        return self._made.find(device, _key(name, operands), make)

    def _solver(self, device: int, *, waits: bool) -> Solver:
        found = self._solvers.get((device, waits))
        if found is None:
            bindings = import_bindings("cusolverDn", "cuSOLVER")
            try:
                found = self._solvers[device, waits] = Solver(bindings)
            except DeviceError:
                raise
            except Exception as error:
                raise library_error("cusolverDnCreateParams", error) from error
        return found


def _key(name: Name, operands: Sequence[Layout]) -> tuple[object, ...]:
    return name, *[(layout.dtype, layout.shape) for layout in operands]


PLANS: Final = SolverPlans()
