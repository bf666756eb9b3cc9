"""NVIDIA's libraries on simulated GPUs: stand-ins for modules of `nvmath.bindings`, which compute with NumPy on the
simulated memory when the stream gets to it.

They are stricter than the libraries: a handle belongs to one device, every call needs that device's context, addresses
are as aligned as it was said, and the workspace is overwritten from end to end.
"""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from types import SimpleNamespace
from typing import Any, Final, final

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from dagpu.kernels.arrays.libraries import cublaslt
from tests.simulated.gpu import SimulatedGpu
from tests.simulated.machine import Machine

TYPES: Final = {0: np.float32, 1: np.float64, 2: np.float16, 14: ml_dtypes.bfloat16}
WORKSPACE: Final = 4096
"""Bytes of scratch memory of each product of more than one element."""


class LibraryError(Exception):
    """An error of a stand-in, as the bindings raise it."""


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

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._numbers = count(0x1000)
        self._made: dict[int, dict[Any, Any]] = {}
        self.failing: dict[str, int] = {}
        """For a name of a function, the number of the call from now on that fails: 1 for the next."""
        self.calls: list[str] = []
        self.algorithms = True
        """False if no product has an algorithm."""

    # ---- handles and descriptions
    def create(self) -> int:
        self._call("create")
        return self._new(gpu=self._current())

    def matmul_desc_create(self, compute_type: int, scale_type: int) -> int:
        return self._new(compute=compute_type, scale=scale_type, attributes={3: 0, 4: 0})

    def matrix_layout_create(self, type: int, rows: int, cols: int, ld: int) -> int:  # noqa: A002  # the binding's name
        assert ld >= rows > 0
        assert cols > 0
        return self._new(dtype=np.dtype(TYPES[type]), rows=rows, columns=cols, leading=ld, attributes={5: 1, 6: 0})

    def matmul_preference_create(self) -> int:
        return self._new(attributes={})

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
        assert self._made[handle]["gpu"] is self._current()
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
        gpu = self._current()
        described, lane = self._made[product], self._machine.stream_of(stream)
        assert self._made[handle]["gpu"] is gpu is lane.gpu
        chosen, aligned_a, aligned_b = np.frombuffer(ctypes.string_at(algorithm, 24), np.uint64).tolist()
        assert chosen == product
        assert a % aligned_a == b % aligned_b == workspace % 16 == 0
        assert (c, c_layout) == (d, d_layout)
        factor: Any = ctypes.c_double if described["scale"] == 1 else ctypes.c_float
        assert (factor.from_address(alpha).value, factor.from_address(beta).value) == (1, 0)
        flags = described["attributes"]

        def act() -> None:
            if workspace_bytes:
                self._bytes(gpu, workspace, workspace_bytes)[...] = 0xEE
            first, second = self._matrices(gpu, a, a_layout), self._matrices(gpu, b, b_layout)
            first = first.swapaxes(1, 2) if flags[3] else first
            second = second.swapaxes(1, 2) if flags[4] else second
            wide = np.float64 if described["compute"] == 70 else np.float32
            out = self._matrices(gpu, d, d_layout)
            out[...] = np.matmul(first.astype(wide), second.astype(wide)).astype(out.dtype)

        lane.put(act, takes_room=True)

    # ---- parts
    def _matrices(self, gpu: SimulatedGpu, address: int, layout: int) -> NDArray[Any]:
        """Return the matrices at an address as an array (batch, rows, columns)."""
        about = self._made[layout]
        number, stride = about["attributes"][5], about["attributes"][6]
        size, leading = about["dtype"].itemsize, about["leading"]
        elements = (number - 1) * stride + (about["columns"] - 1) * leading + about["rows"]
        memory = self._bytes(gpu, address, elements * size).view(about["dtype"])
        strides = (stride * size, size, leading * size)
        return np.lib.stride_tricks.as_strided(memory, (number, about["rows"], about["columns"]), strides)

    @staticmethod
    def _bytes(gpu: SimulatedGpu, address: int, nbytes: int) -> NDArray[np.uint8]:
        found = gpu.bytes_at(address, nbytes)
        return np.zeros(nbytes, np.uint8) if found is None else found

    def _current(self) -> SimulatedGpu:
        assert self._machine.stack(), "no context is current"
        return self._machine.stack()[-1]

    def _new(self, **about: Any) -> int:
        number = next(self._numbers)
        self._made[number] = about
        return number

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name in self.failing:
            self.failing[name] -= 1
            if not self.failing[name]:
                del self.failing[name]
                raise LibraryError(f"{name}: CUBLAS_STATUS_EXECUTION_FAILED (13)")


@contextmanager
def libraries(machine: Machine) -> Iterator[SimulatedCublasLt]:
    """Within the `with` block, the stand-ins replace the libraries of this machine's GPUs."""
    with pytest.MonkeyPatch.context() as patch:
        simulated: Any = SimulatedCublasLt(machine)
        patch.setitem(sys.modules, "nvmath.bindings.cublasLt", simulated)
        patch.setattr(cublaslt, "PRODUCTS", cublaslt.Products())
        yield simulated
