"""cuSOLVER on simulated GPUs: a stand-in for `nvmath.bindings.cusolverDn` that computes with NumPy and textbook loops.

Matrices lie by columns. It is as strict as the other stand-ins, and what LAPACK does not write stays as it was.
"""

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from tests.simulated.gpu import CAPTURING, SimulatedGpu
from tests.simulated.library_calls import FailingCalls, bytes_on, current_gpu
from tests.simulated.machine import Machine

TYPES: Final = {0: np.float32, 1: np.float64, 4: np.complex64, 5: np.complex128}
UPPER: Final = 1
DEVICE_BYTES, HOST_BYTES = 512, 64
"""The sizes of the workspaces of each call of the 64-bit interface."""
ELEMENTS: Final = 96
"""The elements of the workspace of a call of the old interface."""
_REFLECTIONS: Final = {"sormqr": np.float32, "dormqr": np.float64, "cunmqr": np.complex64, "zunmqr": np.complex128}


@final
class SimulatedCusolverDn:
    """Replaces `nvmath.bindings.cusolverDn`, version 1.0."""

    def __init__(self, machine: Machine, calls: FailingCalls) -> None:
        self._machine = machine
        self._call = calls.call
        self._numbers = count(0x9000)
        self._handles: dict[int, dict[str, Any]] = {}
        self._params: set[int] = set()
        for name, dtype in _REFLECTIONS.items():
            setattr(self, name, partial(self._reflect, dtype))
            setattr(self, f"{name}_buffer_size", partial(self._reflect_size, dtype))

    # ---- handles
    def create(self) -> int:
        self._call("cusolverDnCreate")
        handle = next(self._numbers)
        self._handles[handle] = {"gpu": current_gpu(self._machine), "stream": None}
        return handle

    def create_params(self) -> int:
        self._call("cusolverDnCreateParams")
        params = next(self._numbers)
        self._params.add(params)
        return params

    def set_stream(self, handle: int, stream: int) -> None:
        self._handles[handle]["stream"] = stream

    # ---- sizes
    def xpotrf_buffer_size(
        self, handle: int, params: int, uplo: int, n: int, a_type: int, a: int, lda: int, compute: int
    ) -> tuple[int, int]:
        assert (a_type, lda, uplo) == (compute, n, UPPER)
        return self._sizes(handle, params, "xpotrf_buffer_size")

    def xgetrf_buffer_size(
        self, handle: int, params: int, m: int, n: int, a_type: int, a: int, lda: int, compute: int
    ) -> tuple[int, int]:
        assert (a_type, lda) == (compute, m)
        return self._sizes(handle, params, "xgetrf_buffer_size")

    def xgeqrf_buffer_size(
        self, handle: int, params: int, m: int, n: int, a_type: int, a: int, lda: int, tau_type: int, tau: int,
        compute: int,
    ) -> tuple[int, int]:  # fmt: skip
        assert (a_type, lda) == (compute, m)
        assert tau_type == a_type
        return self._sizes(handle, params, "xgeqrf_buffer_size")

    def xgesvd_buffer_size(
        self, handle: int, params: int, jobu: int, jobvt: int, m: int, n: int, a_type: int, a: int, lda: int,
        s_type: int, s: int, u_type: int, u: int, ldu: int, vt_type: int, vt: int, ldvt: int, compute: int,
    ) -> tuple[int, int]:  # fmt: skip
        assert m >= n, "the library supports no wide matrices"
        assert (lda, ldu, ldvt) == (m, m, n)
        assert a_type == u_type == vt_type == compute
        assert s_type == a_type % 4
        return self._sizes(handle, params, "xgesvd_buffer_size")

    def _reflect_size(self, dtype: Any, handle: int, side: int, trans: int, m: int, n: int, k: int, *_: int) -> int:
        self._gpu(handle)
        assert (side, trans) == (0, 0)
        assert k <= m
        return ELEMENTS

    # ---- calls
    def xpotrf(
        self, handle: int, params: int, uplo: int, n: int, a_type: int, a: int, lda: int, compute: int, device: int,
        device_bytes: int, host: int, host_bytes: int, info: int,
    ) -> None:  # fmt: skip
        assert uplo == UPPER
        put = self._begin("xpotrf", handle, params, device, device_bytes, host, host_bytes)

        def act(gpu: SimulatedGpu) -> None:
            matrix, status = _columns(gpu, a, a_type, lda, n), bytes_on(gpu, info, 4).view(np.int32)
            upper = np.triu(matrix)
            whole = upper + np.triu(upper, 1).conj().T
            try:
                factor = np.linalg.cholesky(whole).conj().T
            except np.linalg.LinAlgError:
                status[0] = 1
                matrix[0, :] = 77  # it has begun
                return
            status[0] = 0
            places = np.triu_indices(n)
            matrix[places] = factor[places]

        put(act)

    def xgetrf(
        self, handle: int, params: int, m: int, n: int, a_type: int, a: int, lda: int, ipiv: int, compute: int,
        device: int, device_bytes: int, host: int, host_bytes: int, info: int,
    ) -> None:  # fmt: skip
        assert ipiv % 8 == 0
        put = self._begin("xgetrf", handle, params, device, device_bytes, host, host_bytes)

        def act(gpu: SimulatedGpu) -> None:
            matrix, status = _columns(gpu, a, a_type, lda, n), bytes_on(gpu, info, 4).view(np.int32)
            pivots = bytes_on(gpu, ipiv, 8 * n).view(np.int64)
            status[0] = 0
            for at in range(n):
                chosen = at + int(np.argmax(abs(matrix[at:, at])))
                pivots[at] = chosen + 1
                matrix[[at, chosen]] = matrix[[chosen, at]]
                if matrix[at, at] == 0:
                    status[0] = status[0] or at + 1
                    continue
                matrix[at + 1 :, at] /= matrix[at, at]
                matrix[at + 1 :, at + 1 :] -= np.outer(matrix[at + 1 :, at], matrix[at, at + 1 :])

        put(act)

    def xgetrs(
        self, handle: int, params: int, trans: int, n: int, nrhs: int, a_type: int, a: int, lda: int, ipiv: int,
        b_type: int, b: int, ldb: int, info: int,
    ) -> None:  # fmt: skip
        assert (trans, a_type, ldb) == (1, b_type, n), "a plain transposed matrix, without a conjugate"
        put = self._begin("xgetrs", handle, params, 0, 0, 0, 0)

        def act(gpu: SimulatedGpu) -> None:
            matrix, right = _columns(gpu, a, a_type, lda, n), _columns(gpu, b, b_type, ldb, nrhs)
            pivots = bytes_on(gpu, ipiv, 8 * n).view(np.int64)
            lower, upper = np.tril(matrix, -1) + np.eye(n, dtype=matrix.dtype), np.triu(matrix)
            bytes_on(gpu, info, 4).view(np.int32)[0] = 0
            if (np.diag(upper) == 0).any():
                right[...] = np.inf  # it divides by 0
                return
            found = np.linalg.solve(lower.T, np.linalg.solve(upper.T, right))
            for at in reversed(range(n)):
                other = int(pivots[at]) - 1
                found[[at, other]] = found[[other, at]]
            right[...] = found

        put(act)

    def xgeqrf(
        self, handle: int, params: int, m: int, n: int, a_type: int, a: int, lda: int, tau_type: int, tau: int,
        compute: int, device: int, device_bytes: int, host: int, host_bytes: int, info: int,
    ) -> None:  # fmt: skip
        put = self._begin("xgeqrf", handle, params, device, device_bytes, host, host_bytes)

        def act(gpu: SimulatedGpu) -> None:
            matrix = _columns(gpu, a, a_type, lda, n)
            reflections, scales = np.linalg.qr(matrix, mode="raw")
            matrix[...] = reflections.T
            bytes_on(gpu, tau, scales.nbytes).view(scales.dtype)[...] = scales
            bytes_on(gpu, info, 4).view(np.int32)[0] = 0

        put(act)

    def _reflect(
        self, dtype: Any, handle: int, side: int, trans: int, m: int, n: int, k: int, a: int, lda: int, tau: int,
        c: int, ldc: int, work: int, lwork: int, info: int,
    ) -> None:  # fmt: skip
        assert (lwork, lda, ldc) == (ELEMENTS, m, m)
        kind = next(number for number, each in TYPES.items() if each is dtype)
        size = np.dtype(dtype).itemsize
        put = self._begin("ormqr", handle, None, work, lwork * size, 0, 0)

        def act(gpu: SimulatedGpu) -> None:
            matrix, target = _columns(gpu, a, kind, lda, k), _columns(gpu, c, kind, ldc, n)
            scales = bytes_on(gpu, tau, k * size).view(dtype)
            for at in reversed(range(k)):
                v = matrix[:, at].copy()
                v[:at], v[at] = 0, 1
                target -= scales[at] * np.outer(v, v.conj() @ target)
            bytes_on(gpu, info, 4).view(np.int32)[0] = 0

        put(act)

    def xgesvd(
        self, handle: int, params: int, jobu: int, jobvt: int, m: int, n: int, a_type: int, a: int, lda: int,
        s_type: int, s: int, u_type: int, u: int, ldu: int, vt_type: int, vt: int, ldvt: int, compute: int,
        device: int, device_bytes: int, host: int, host_bytes: int, info: int,
    ) -> None:  # fmt: skip
        assert chr(jobu) == chr(jobvt)
        assert chr(jobu) in "AS"
        if self._handles[handle]["stream"] == CAPTURING:
            self._machine.problem("the library waits for a stream that is being captured")
        put = self._begin("xgesvd", handle, params, device, device_bytes, host, host_bytes)

        def act(gpu: SimulatedGpu) -> None:
            matrix, status = _columns(gpu, a, a_type, lda, n), bytes_on(gpu, info, 4).view(np.int32)
            status[0] = not np.isfinite(matrix).all()
            if status[0]:
                return
            found = np.linalg.svd(matrix, full_matrices=chr(jobu) == "A")
            _columns(gpu, u, u_type, ldu, found.U.shape[1])[...] = found.U
            _columns(gpu, vt, vt_type, ldvt, n)[...] = found.Vh
            bytes_on(gpu, s, found.S.nbytes).view(found.S.dtype)[...] = found.S
            matrix[...] = np.nan

        put(act)

    # ---- parts
    def _gpu(self, handle: int) -> SimulatedGpu:
        gpu: SimulatedGpu = self._handles[handle]["gpu"]
        assert current_gpu(self._machine) is gpu
        return gpu

    def _sizes(self, handle: int, params: int, name: str) -> tuple[int, int]:
        self._call(name)
        self._gpu(handle)
        assert params in self._params
        return DEVICE_BYTES, HOST_BYTES

    def _begin(
        self, name: str, handle: int, params: int | None, device: int, device_bytes: int, host: int, host_bytes: int
    ) -> Callable[[Callable[[SimulatedGpu], None]], None]:
        """Return the function that enqueues what a call does, after it has overwritten its workspace."""
        self._call(name)
        gpu, lane = self._gpu(handle), self._machine.stream_of(self._handles[handle]["stream"])
        assert lane.gpu is gpu
        assert params is None or params in self._params
        assert device % 256 == 0
        assert (host != 0) is (host_bytes != 0)

        def put(act: Callable[[SimulatedGpu], None]) -> None:
            def all_of_it() -> None:
                if device_bytes:
                    bytes_on(gpu, device, device_bytes)[...] = 0xEE
                with np.errstate(all="ignore"):  # a GPU divides by 0
                    act(gpu)

            lane.put(all_of_it, takes_room=True)

        return put


def _columns(gpu: SimulatedGpu, address: int, kind: int, leading: int, columns: int) -> NDArray[Any]:
    """Return the matrix at an address, whose columns of `leading` elements follow each other."""
    dtype = np.dtype(TYPES[kind])
    assert address % 16 == 0
    return bytes_on(gpu, address, leading * columns * dtype.itemsize).view(dtype).reshape(columns, leading).T
