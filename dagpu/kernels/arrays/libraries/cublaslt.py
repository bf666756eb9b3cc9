"""Products of matrices by cuBLASLt, by address. One algorithm is chosen for each product and kept.

cuBLASLt sees matrices by columns. A contiguous result in rows is the transposed product in columns, so the operands
change places: y = a b is y' = b' a'.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from dagpu.common.dtypes import Shape
from dagpu.common.errors import DeviceError
from dagpu.common.layout import Layout
from dagpu.handles.device_handles import Enqueue
from dagpu.kernels.arrays.libraries.gemm_layouts import MOST_ALIGNED, Gemm, GemmOperand, find_gemm
from dagpu.kernels.arrays.libraries.nvmath_bindings import import_bindings, library_error, open_handle

SCRATCH: Final = 32 << 20
"""The most bytes of scratch memory of a product: what NVIDIA recommends for Hopper (cublasSetWorkspace)."""

# library_types.h and cublas_api.h: cudaDataType of the elements, cublasComputeType_t, and cudaDataType of the factors.
_TYPES: Final = {
    "float16": (2, 68, 0), "bfloat16": (14, 68, 0), "float32": (0, 68, 0), "float64": (1, 70, 1),
}  # fmt: skip
_TF32: Final = 77
_TRANSPOSED: Final = 1


@final
class ChosenProduct:
    """A product with its algorithm. What the library has made of it lives as long as the process."""

    __slots__ = ("_algorithm", "_factors", "_handle", "_layouts", "_multiply", "_product", "scratch")

    def __init__(
        self, multiply: Callable[..., None], handle: int, product: int, layouts: tuple[int, int, int],
        found: NDArray[Any], factor: Any,
    ) -> None:  # fmt: skip
        self._multiply = multiply
        self._handle = handle
        self._product = product
        self._layouts = layouts
        self._algorithm = np.ascontiguousarray(found["algo"])
        self._factors = np.array([1, 0], factor)
        self.scratch = int(found["workspace_size"][0])
        """Bytes of scratch memory."""

    def enqueue(self, stream: int, addresses: Sequence[int], scratch: int) -> None:
        """Enqueue y = a b. `addresses` are those of y, a and b.

        Raises:
            DeviceError: the library refuses it.
        """
        y, a, b = addresses
        first, second, result = self._layouts
        one = self._factors.ctypes.data
        zero = one + self._factors.itemsize
        try:
            self._multiply(
                self._handle, self._product, one, b, first, a, second, zero, y, result, y, result,
                self._algorithm.ctypes.data, scratch, self.scratch, stream,
            )  # fmt: skip
        except Exception as error:
            raise library_error("cublasLtMatmul", error) from error


@final
class CublasLtProduct:
    """The device body of `matmul`: the first operand is the result. Implements `LibraryBody`."""

    def __init__(self, transposed: tuple[bool, bool], tf32: bool) -> None:
        self._transposed = transposed
        self._tf32 = tf32

    def scratch_bytes(self, operands: Sequence[Layout], device: int) -> int:
        return self._chosen(operands, device).scratch

    def bind(self, operands: Sequence[Layout], device: int) -> Enqueue:
        return self._chosen(operands, device).enqueue

    def _chosen(self, operands: Sequence[Layout], device: int) -> ChosenProduct:
        y, a, b = operands
        batch: Shape = y.shape[:-2]
        return PRODUCTS.choose(device, find_gemm(a, b, self._transposed, batch), self._tf32)


@final
class Products:
    """The products whose algorithms have been chosen, and a handle for each device."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handles: dict[int, int] = {}
        self._chosen: dict[tuple[int, Gemm, bool], ChosenProduct] = {}

    def choose(self, device: int, gemm: Gemm, tf32: bool) -> ChosenProduct:
        """Return the algorithm of a product. The context of the device must be current."""
        found = self._chosen.get((device, gemm, tf32))
        if found is None:
            with self._lock:
                found = self._chosen.get((device, gemm, tf32))
                if found is None:
                    found = self._chosen[device, gemm, tf32] = _choose(*self._handle(device), gemm, tf32)
        return found

    def _handle(self, device: int) -> tuple[Any, int]:
        bindings = import_bindings("cublasLt", "cuBLASLt")
        handle = self._handles.get(device)
        if handle is None:
            handle = self._handles[device] = open_handle(bindings, "cuBLASLt")
        return bindings, handle


PRODUCTS: Final = Products()


def _choose(bindings: Any, handle: int, gemm: Gemm, tf32: bool) -> ChosenProduct:
    """Choose the algorithm that cuBLASLt expects to be the fastest within `SCRATCH` bytes. Nothing is measured, so the
    choice follows from shapes, layouts and the device model alone."""
    try:
        return _choose_first(bindings, handle, gemm, tf32)
    except DeviceError:
        raise
    except Exception as error:
        raise library_error("cublasLtMatmulAlgoGetHeuristic", error) from error


def _choose_first(bindings: Any, handle: int, gemm: Gemm, tf32: bool) -> ChosenProduct:
    element, compute, factor = _TYPES[gemm.dtype]
    set_product: Callable[..., None] = bindings.matmul_desc_set_attribute
    product = bindings.matmul_desc_create(_TF32 if tf32 else compute, factor)
    about = bindings.MatmulDescAttribute
    _set(set_product, product, about.TRANSA, gemm.b.by_columns * _TRANSPOSED, np.int32)
    _set(set_product, product, about.TRANSB, gemm.a.by_columns * _TRANSPOSED, np.int32)
    first = _matrix(bindings, element, (gemm.n, gemm.k), gemm.b, gemm.batch)
    second = _matrix(bindings, element, (gemm.k, gemm.m), gemm.a, gemm.batch)
    out = GemmOperand(False, gemm.n, gemm.m * gemm.n, MOST_ALIGNED)
    result = _matrix(bindings, element, (gemm.n, gemm.m), out, gemm.batch)
    wanted, about = bindings.matmul_preference_create(), bindings.MatmulPreferenceAttribute
    set_wanted: Callable[..., None] = bindings.matmul_preference_set_attribute
    _set(set_wanted, wanted, about.MAX_WORKSPACE_BYTES, SCRATCH, np.uint64)
    _set(set_wanted, wanted, about.MIN_ALIGNMENT_A_BYTES, gemm.b.aligned, np.uint32)
    _set(set_wanted, wanted, about.MIN_ALIGNMENT_B_BYTES, gemm.a.aligned, np.uint32)
    found, count = np.zeros(1, bindings.matmul_heuristic_result_dtype), np.zeros(1, np.int32)
    bindings.matmul_algo_get_heuristic(
        handle, product, first, second, result, result, wanted, 1, found.ctypes.data, count.ctypes.data
    )
    if not count[0]:
        raise DeviceError(
            f"cuBLASLt has no algorithm for {gemm.batch} products of ({gemm.m}, {gemm.k}) by ({gemm.k}, {gemm.n}) in "
            f"{gemm.dtype}. Convert the tensors to f32, say."
        )
    factors = np.float64 if factor else np.float32
    return ChosenProduct(bindings.matmul, handle, product, (first, second, result), found, factors)


def _matrix(bindings: Any, element: int, shape: tuple[int, int], operand: GemmOperand, batch: int) -> int:
    """Return the layout of a matrix of this shape by columns; with `by_columns`, its transposed is in memory."""
    rows, columns = reversed(shape) if operand.by_columns else shape
    layout: int = bindings.matrix_layout_create(element, rows, columns, operand.leading)
    if batch > 1:
        about, set_layout = bindings.MatrixLayoutAttribute, bindings.matrix_layout_set_attribute
        _set(set_layout, layout, about.BATCH_COUNT, batch, np.int32)
        _set(set_layout, layout, about.STRIDED_BATCH_OFFSET, operand.batch, np.int64)
    return layout


def _set(setter: Callable[..., None], thing: int, attribute: int, value: int, dtype: Any) -> None:
    """Set an attribute, which the library copies."""
    buffer = np.array([value], dtype)
    setter(thing, attribute, buffer.ctypes.data, buffer.nbytes)
