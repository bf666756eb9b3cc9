"""Products of matrices by cuBLASLt, by address. One algorithm is chosen for each product and kept for its next use.

cuBLASLt sees matrices by columns. A contiguous result in rows is the transposed product in columns, so the operands
change places: y = a b is y' = b' a'.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from dagpu.common.dtypes import Shape
from dagpu.common.errors import DeviceError
from dagpu.common.layout import Layout
from dagpu.handles.library_bodies import Enqueue
from dagpu.kernels.arrays.libraries.gemm_layouts import MOST_ALIGNED, Gemm, GemmOperand, find_gemm
from dagpu.kernels.arrays.libraries.kept_plans import KeptPlans
from dagpu.kernels.arrays.libraries.nvmath_bindings import import_bindings, library_error, open_handle

SCRATCH: Final = 32 << 20
"""The most bytes of scratch memory of a product: what NVIDIA recommends for Hopper (cublasSetWorkspace)."""

MOST: Final = 1024
"""The most products that are kept for a device: a few KB of the host's memory each."""

# library_types.h and cublas_api.h: cudaDataType of the elements, cublasComputeType_t, and cudaDataType of the factors.
_TYPES: Final = {
    "float16": (2, 68, 0), "bfloat16": (14, 68, 0), "float32": (0, 68, 0), "float64": (1, 70, 1),
}  # fmt: skip
_TF32: Final = 77
_TRANSPOSED: Final = 1


@final
class ChosenProduct:
    """A product with its algorithm."""

    __slots__ = (
        "__weakref__",
        "_algorithm",
        "_handle",
        "_kept",
        "_layouts",
        "_multiply",
        "_one",
        "_product",
        "_zero",
        "release",
        "scratch",
    )

    def __init__(
        self, multiply: Callable[..., None], handle: int, parts: "Descriptions", found: NDArray[Any], factor: Any
    ) -> None:
        self._multiply = multiply
        self._handle = handle
        self._product = parts.product
        self._layouts = parts.layouts
        self.release = parts.destroy
        """Frees the library's descriptions of the product."""
        algorithm, factors = np.ascontiguousarray(found["algo"]), np.array([1, 0], factor)
        self._kept = algorithm, factors
        """What the addresses refer to. To ask NumPy for an address takes a microsecond, so each call does not."""
        self._algorithm: int = algorithm.ctypes.data
        self._one: int = factors.ctypes.data
        self._zero: int = self._one + factors.itemsize
        self.scratch = int(found["workspace_size"][0])
        """Bytes of scratch memory."""

    def enqueue(self, stream: int, addresses: Sequence[int], scratch: int) -> None:
        """Enqueue y = a b. `addresses` are those of y, a and b.

        Raises:
            DeviceError: the library refuses it.
        """
        y, a, b = addresses
        first, second, result = self._layouts
        try:
            self._multiply(
                self._handle, self._product, self._one, b, first, a, second, self._zero, y, result, y, result,
                self._algorithm, scratch, self.scratch, stream,
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

    def is_known(self, operands: Sequence[Layout], device: int) -> bool:
        return PRODUCTS.is_known(device, self._gemm(operands), self._tf32)

    def _chosen(self, operands: Sequence[Layout], device: int) -> ChosenProduct:
        return PRODUCTS.choose(device, self._gemm(operands), self._tf32)

    def _gemm(self, operands: Sequence[Layout]) -> Gemm:
        y, a, b = operands
        batch: Shape = y.shape[:-2]
        return find_gemm(a, b, self._transposed, batch)


@final
class Products:
    """The products whose algorithms have been chosen, and a handle for each device."""

    def __init__(self, most: int = MOST) -> None:
        self._handles: dict[int, int] = {}
        self._chosen = KeptPlans[ChosenProduct](most)

    def is_known(self, device: int, gemm: Gemm, tf32: bool) -> bool:
        """True if `choose` returns at once."""
        return self._chosen.get(device, (gemm, tf32)) is not None

    def choose(self, device: int, gemm: Gemm, tf32: bool) -> ChosenProduct:
        """Return the algorithm of a product. The context of the device must be current."""
        return self._chosen.find(device, (gemm, tf32), lambda: _choose(*self._handle(device), gemm, tf32))

    def _handle(self, device: int) -> tuple[Any, int]:
        bindings = import_bindings("cublasLt", "cuBLASLt")
        handle = self._handles.get(device)
        if handle is None:
            handle = self._handles[device] = open_handle(bindings, "cuBLASLt")
        return bindings, handle


PRODUCTS: Final = Products()


@final
class Descriptions:
    """The library's descriptions of a product and of its matrices, on the host."""

    def __init__(self, bindings: Any) -> None:
        self._bindings = bindings
        self._made: list[tuple[Callable[[int], None], int]] = []
        self.product = 0
        self.layouts: tuple[int, int, int] = (0, 0, 0)

    def describe_product(self, compute: int, factor: int, transposed: tuple[bool, bool]) -> None:
        """Describe the product of two matrices by columns."""
        bindings = self._bindings
        self.product = self._keep(bindings.matmul_desc_destroy, bindings.matmul_desc_create(compute, factor))
        about, setter = bindings.MatmulDescAttribute, bindings.matmul_desc_set_attribute
        for attribute, flag in zip((about.TRANSA, about.TRANSB), transposed, strict=True):
            _set(setter, self.product, attribute, flag * _TRANSPOSED, np.int32)

    def matrix(self, element: int, shape: tuple[int, int], operand: GemmOperand, batch: int) -> int:
        """Return the layout of a matrix of this shape by columns; with `by_columns`, its transposed is in memory."""
        bindings = self._bindings
        rows, columns = reversed(shape) if operand.by_columns else shape
        layout: int = bindings.matrix_layout_create(element, rows, columns, operand.leading)
        self._keep(bindings.matrix_layout_destroy, layout)
        if batch > 1:
            about, set_layout = bindings.MatrixLayoutAttribute, bindings.matrix_layout_set_attribute
            _set(set_layout, layout, about.BATCH_COUNT, batch, np.int32)
            _set(set_layout, layout, about.STRIDED_BATCH_OFFSET, operand.batch, np.int64)
        return layout

    def destroy(self) -> None:
        """Free the descriptions. The library has no use for them after the calls that they were given to."""
        while self._made:
            free, thing = self._made.pop()
            free(thing)

    def _keep(self, free: Callable[[int], None], thing: int) -> int:
        self._made.append((free, thing))
        return thing


def _choose(bindings: Any, handle: int, gemm: Gemm, tf32: bool) -> ChosenProduct:
    """Choose the algorithm that cuBLASLt expects to be the fastest within `SCRATCH` bytes. Nothing is measured, so the
    choice follows from shapes, layouts and the device model alone."""
    parts = Descriptions(bindings)
    try:
        return _choose_first(bindings, handle, parts, gemm, tf32)
    except BaseException as error:
        parts.destroy()
        if isinstance(error, DeviceError) or not isinstance(error, Exception):
            raise
        raise library_error("cublasLtMatmulAlgoGetHeuristic", error) from error


def _choose_first(bindings: Any, handle: int, parts: Descriptions, gemm: Gemm, tf32: bool) -> ChosenProduct:
    element, compute, factor = _TYPES[gemm.dtype]
    parts.describe_product(_TF32 if tf32 else compute, factor, (gemm.b.by_columns, gemm.a.by_columns))
    first = parts.matrix(element, (gemm.n, gemm.k), gemm.b, gemm.batch)
    second = parts.matrix(element, (gemm.k, gemm.m), gemm.a, gemm.batch)
    out = GemmOperand(False, gemm.n, gemm.m * gemm.n, MOST_ALIGNED)
    result = parts.matrix(element, (gemm.n, gemm.m), out, gemm.batch)
    parts.layouts = first, second, result
    found, count = np.zeros(1, bindings.matmul_heuristic_result_dtype), np.zeros(1, np.int32)
    wanted, about = bindings.matmul_preference_create(), bindings.MatmulPreferenceAttribute
    try:
        setter: Callable[..., None] = bindings.matmul_preference_set_attribute
        _set(setter, wanted, about.MAX_WORKSPACE_BYTES, SCRATCH, np.uint64)
        _set(setter, wanted, about.MIN_ALIGNMENT_A_BYTES, gemm.b.aligned, np.uint32)
        _set(setter, wanted, about.MIN_ALIGNMENT_B_BYTES, gemm.a.aligned, np.uint32)
        bindings.matmul_algo_get_heuristic(
            handle, parts.product, first, second, result, result, wanted, 1, found.ctypes.data, count.ctypes.data
        )
    finally:
        bindings.matmul_preference_destroy(wanted)
    if not count[0]:
        raise DeviceError(
            f"cuBLASLt has no algorithm for {gemm.batch} products of ({gemm.m}, {gemm.k}) by ({gemm.k}, {gemm.n}) in "
            f"{gemm.dtype}. Convert the tensors to f32, say."
        )
    return ChosenProduct(bindings.matmul, handle, parts, found, np.float64 if factor else np.float32)


def _set(setter: Callable[..., None], thing: int, attribute: int, value: int, dtype: Any) -> None:
    """Set an attribute, which the library copies."""
    buffer = np.array([value], dtype)
    setter(thing, attribute, buffer.ctypes.data, buffer.nbytes)
