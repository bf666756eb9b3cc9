"""NVIDIA's libraries on simulated GPUs: stand-ins for modules of `nvmath.bindings`, which compute with NumPy on the
simulated memory when the stream gets to it.

They are stricter than the libraries: a handle belongs to one device, every call needs that device's context, addresses
are as aligned as it was said, and the workspace is overwritten from end to end.
"""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any, Final, final

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from dagpu.arrays.nvidia import cufft, cusolver
from dagpu.arrays.products import matrix_products
from tests.simulated.gpu import SimulatedGpu
from tests.simulated.library_calls import FailingCalls, bytes_on, current_gpu
from tests.simulated.machine import Machine
from tests.simulated.solvers import SimulatedCusolverDn

TYPES: Final = {
    0: np.float32, 1: np.float64, 2: np.float16, 4: np.complex64, 5: np.complex128, 14: ml_dtypes.bfloat16,
}  # fmt: skip
WORKSPACE: Final = 4096
"""Bytes of scratch memory of each product of more than one element."""


@final
class SimulatedCublasLt:
    """Replaces `nvmath.bindings.cublasLt`, version 1.0."""

    matmul_heuristic_result_dtype: Final = np.dtype(
        [("algo", [("data_", "<u8", (8,))]), ("workspace_size", "<u8"), ("state", "<i4"), ("waves_count", "<f4"),
         ("reserved", "<i4", (4,))]
    )  # fmt: skip
    MatmulDescAttribute: Final = SimpleNamespace(TRANSA=3, TRANSB=4)
    MatrixLayoutAttribute: Final = SimpleNamespace(BATCH_COUNT=5, STRIDED_BATCH_OFFSET=6)
    MatmulPreferenceAttribute: Final = SimpleNamespace(
        MAX_WORKSPACE_BYTES=1, MIN_ALIGNMENT_A_BYTES=5, MIN_ALIGNMENT_B_BYTES=6
    )

    def __init__(self, machine: Machine, calls: FailingCalls) -> None:
        self._machine = machine
        self._numbers = count(0x1000)
        self._made: dict[int, dict[Any, Any]] = {}
        self._call = calls.call
        self.failing = calls.failing
        self.calls = calls.made
        self.threads = calls.threads
        self.transforms: SimulatedCufft | None = None
        self.solvers: SimulatedCusolverDn | None = None
        self.algorithms = True
        """False if no product has an algorithm."""

    # ---- handles and descriptions
    def create(self) -> int:
        self._call("create")
        return self._new(gpu=current_gpu(self._machine))

    def matmul_desc_create(self, compute_type: int, scale_type: int) -> int:
        return self._new(compute=compute_type, scale=scale_type, attributes={3: 0, 4: 0})

    def matrix_layout_create(self, type: int, rows: int, cols: int, ld: int) -> int:  # noqa: A002  # the binding's name
        assert ld >= rows > 0
        assert cols > 0
        return self._new(dtype=np.dtype(TYPES[type]), rows=rows, columns=cols, leading=ld, attributes={5: 1, 6: 0})

    def matmul_preference_create(self) -> int:
        return self._new(attributes={})

    def matmul_desc_destroy(self, thing: int) -> None:
        del self._made[thing]

    matrix_layout_destroy = matmul_desc_destroy
    matmul_preference_destroy = matmul_desc_destroy

    @property
    def things(self) -> int:
        """The number of handles and descriptions that are not destroyed."""
        return len(self._made)

    def matmul_desc_set_attribute(self, thing: int, attribute: int, buffer: int, nbytes: int) -> None:
        self._made[thing]["attributes"][attribute] = int.from_bytes(ctypes.string_at(buffer, nbytes), "little")

    matrix_layout_set_attribute = matmul_desc_set_attribute
    matmul_preference_set_attribute = matmul_desc_set_attribute

    # ---- products
    def matmul_algo_get_heuristic(
        self, handle: int, product: int, a: int, b: int, c: int, d: int, preference: int, wanted: int, results: int,
        found: int,
    ) -> None:  # fmt: skip
        self._call("matmul_algo_get_heuristic")
        assert self._made[handle]["gpu"] is current_gpu(self._machine)
        assert wanted == 1
        assert c == d
        asked = self._made[preference]["attributes"]
        result = np.zeros(1, self.matmul_heuristic_result_dtype)
        result["algo"]["data_"][0, :3] = product, asked[5], asked[6]
        size = self._made[d]["rows"] * self._made[d]["columns"]
        result["workspace_size"] = min(WORKSPACE if size > 1 else 0, asked[1])
        ctypes.memmove(results, result.ctypes.data, result.nbytes)
        ctypes.c_int.from_address(found).value = int(self.algorithms)

    def matmul(
        self, handle: int, product: int, alpha: int, a: int, a_layout: int, b: int, b_layout: int, beta: int, c: int,
        c_layout: int, d: int, d_layout: int, algorithm: int, workspace: int, workspace_bytes: int, stream: int,
    ) -> None:  # fmt: skip
        self._call("matmul")
        gpu = current_gpu(self._machine)
        described, lane = self._made[product], self._machine.stream_of(stream)
        assert self._made[handle]["gpu"] is gpu is lane.gpu
        chosen, aligned_a, aligned_b = np.frombuffer(ctypes.string_at(algorithm, 24), np.uint64).tolist()
        assert chosen == product
        assert a % aligned_a == b % aligned_b == workspace % 16 == 0
        assert (c, c_layout) == (d, d_layout)
        factor = np.dtype(TYPES[described["scale"]])
        assert factor.kind == self._made[d_layout]["dtype"].kind or factor == np.float32
        one, zero = [np.frombuffer(ctypes.string_at(at, factor.itemsize), factor)[0] for at in (alpha, beta)]
        assert (one, zero) == (1, 0)
        flags = described["attributes"]

        matrices = [partial(self._matrices, gpu, x, self._made[m]) for x, m in ((a, a_layout), (b, b_layout))]
        target = partial(self._matrices, gpu, d, self._made[d_layout])

        def act() -> None:
            if workspace_bytes:
                bytes_on(gpu, workspace, workspace_bytes)[...] = 0xEE
            first, second = [matrix() for matrix in matrices]
            first = first.swapaxes(1, 2) if flags[3] else first
            second = second.swapaxes(1, 2) if flags[4] else second
            wide: Any = np.float64 if described["compute"] == 70 else np.float32
            out = target()
            if out.dtype.kind == "c":
                assert out.dtype.itemsize == 2 * np.dtype(wide).itemsize
                wide = out.dtype.type
            out[...] = np.matmul(first.astype(wide), second.astype(wide)).astype(out.dtype)

        lane.put(act, takes_room=True)

    # ---- parts
    def _matrices(self, gpu: SimulatedGpu, address: int, about: dict[Any, Any]) -> NDArray[Any]:
        """Return the matrices at an address as an array (batch, rows, columns)."""
        number, stride = about["attributes"][5], about["attributes"][6]
        size, leading = about["dtype"].itemsize, about["leading"]
        elements = (number - 1) * stride + (about["columns"] - 1) * leading + about["rows"]
        memory = bytes_on(gpu, address, elements * size).view(about["dtype"])
        strides = (stride * size, size, leading * size)
        return np.lib.stride_tricks.as_strided(memory, (number, about["rows"], about["columns"]), strides)

    def _new(self, **about: Any) -> int:
        number = next(self._numbers)
        self._made[number] = about
        return number


@final
class SimulatedCufft:
    """Replaces `nvmath.bindings.cufft`, version 1.0, for the rows and the columns of matrices."""

    def __init__(self, machine: Machine, calls: FailingCalls) -> None:
        self._machine = machine
        self._plans: dict[int, dict[str, Any]] = {}
        self._numbers = count(1)
        self._call = calls.call

    def create(self) -> int:
        self._call("cufftCreate")
        plan = next(self._numbers)
        self._plans[plan] = {"gpu": current_gpu(self._machine), "area": 0, "automatic": True}
        return plan

    def destroy(self, plan: int) -> None:
        assert self._plans[plan]["gpu"] is current_gpu(self._machine)
        del self._plans[plan]

    @property
    def plans(self) -> int:
        """The number of plans that are not destroyed."""
        return len(self._plans)

    def set_auto_allocation(self, plan: int, auto_allocate: int) -> None:
        self._plans[plan]["automatic"] = bool(auto_allocate)

    def make_plan_many64(
        self, plan: int, rank: int, n: list[int], inembed: list[int], istride: int, idist: int, onembed: list[int],
        ostride: int, odist: int, type: int, batch: int,  # noqa: A002  # the binding's name
    ) -> int:  # fmt: skip
        self._call("make_plan_many64")
        assert (rank, istride) == (1, ostride)
        if istride == 1:
            assert (inembed, onembed) == ([idist], [odist])
        else:
            assert (idist, odist, istride) == (1, 1, batch)
        about = self._plans[plan]
        assert not about["automatic"], "the library would allocate memory itself"
        assert about["gpu"] is current_gpu(self._machine)
        about |= {"n": n[0], "given": inembed[0], "made": onembed[0], "type": type, "batch": batch, "by": istride}
        return 512 * n[0] if n[0] > 1 else 0

    def set_stream(self, plan: int, stream: int) -> None:
        self._plans[plan]["stream"] = stream

    def set_work_area(self, plan: int, work_area: int) -> None:
        assert work_area % 256 == 0
        self._plans[plan]["area"] = work_area

    def exec_r2c(self, plan: int, idata: int, odata: int) -> None:
        self._execute(plan, idata, odata, 42, lambda x, n: np.fft.rfft(x, n))

    def exec_d2z(self, plan: int, idata: int, odata: int) -> None:
        self._execute(plan, idata, odata, 106, lambda x, n: np.fft.rfft(x, n))

    def exec_c2r(self, plan: int, idata: int, odata: int) -> None:
        self._execute(plan, idata, odata, 44, lambda x, n: np.fft.irfft(x, n, norm="forward"))

    def exec_z2d(self, plan: int, idata: int, odata: int) -> None:
        self._execute(plan, idata, odata, 108, lambda x, n: np.fft.irfft(x, n, norm="forward"))

    def exec_c2c(self, plan: int, idata: int, odata: int, direction: int) -> None:
        self._execute(plan, idata, odata, 41, _DIRECTED[direction])

    def exec_z2z(self, plan: int, idata: int, odata: int, direction: int) -> None:
        self._execute(plan, idata, odata, 105, _DIRECTED[direction])

    def _execute(self, plan: int, source: int, target: int, kind: int, transform: Any) -> None:
        self._call("cufftExec")
        about = dict(self._plans[plan])
        gpu, lane = about["gpu"], self._machine.stream_of(about["stream"])
        assert current_gpu(self._machine) is gpu is lane.gpu
        assert about["type"] == kind
        given, made = (np.dtype(each) for each in _ELEMENTS[kind])
        assert source % max(given.itemsize, made.itemsize) == target % made.itemsize == 0

        def act() -> None:
            assert plan in self._plans, "the plan, which has tables in the device's memory, is destroyed"
            if about["n"] > 1:
                bytes_on(gpu, about["area"], 512 * about["n"])[...] = 0xEE
            x = bytes_on(gpu, source, about["batch"] * about["given"] * given.itemsize).view(given)
            y = bytes_on(gpu, target, about["batch"] * about["made"] * made.itemsize).view(made)
            by_rows = about["by"] == 1
            rows = x.reshape(about["batch"], -1) if by_rows else x.reshape(-1, about["batch"]).T
            transformed = transform(rows, about["n"]).astype(made)
            y[...] = (transformed if by_rows else transformed.T).reshape(-1)
            if made.kind == "f":  # cuFFT overwrites the input of a transform to real elements
                x[...] = np.nan

        lane.put(act, takes_room=True)


_DIRECTED: Final = {
    -1: lambda x, n: np.fft.fft(x, n),
    1: lambda x, n: np.fft.ifft(x, n, norm="forward"),
}
_ELEMENTS: Final = {
    42: ("f4", "c8"), 44: ("c8", "f4"), 41: ("c8", "c8"), 106: ("f8", "c16"), 108: ("c16", "f8"), 105: ("c16", "c16"),
}  # fmt: skip


@contextmanager
def libraries(machine: Machine) -> Iterator[SimulatedCublasLt]:
    """Within the `with` block, the stand-ins replace the libraries of this machine's GPUs. Gives that of cuBLASLt,
    whose `failing` and `calls` are about all, and whose `transforms` and `solvers` are those of cuFFT and cuSOLVER."""
    with pytest.MonkeyPatch.context() as patch:
        calls = FailingCalls()
        simulated: Any = SimulatedCublasLt(machine, calls)
        simulated.transforms = transforms = SimulatedCufft(machine, calls)
        simulated.solvers = solvers = SimulatedCusolverDn(machine, calls)
        patch.setitem(sys.modules, "nvmath.bindings.cublasLt", simulated)
        patch.setitem(sys.modules, "nvmath.bindings.cufft", transforms)
        patch.setitem(sys.modules, "nvmath.bindings.cusolverDn", solvers)
        patch.setattr(cusolver, "PLANS", cusolver.SolverPlans())
        patch.setattr(matrix_products, "PRODUCTS", matrix_products.Products())
        patch.setattr(cufft, "PLANS", cufft.TransformPlans())
        yield simulated
