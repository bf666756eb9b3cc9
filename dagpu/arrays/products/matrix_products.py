"""Products of matrices: `matmul`, by cuBLASLt on a GPU and by NumPy on the host."""

from collections.abc import Callable, Sequence
from functools import cache
from math import gcd, prod
from typing import Any, Final, Literal, NamedTuple, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from dagpu.arrays.nvidia.libraries import KeptPlans, import_bindings, library_error, open_handle
from dagpu.common.errors import DeviceError, ShapeError
from dagpu.common.layout import (
    Layout,
    Shape,
    bf16,
    c64,
    c128,
    contiguous_layout,
    f16,
    f32,
    f64,
    part_type,
    reshape_layout,
)
from dagpu.common.places import Origin, describe, here, leaves_run
from dagpu.common.wrong_arguments import format_value
from dagpu.handles import Tensor
from dagpu.handles.device_handles import Effort, Enqueue
from dagpu.kernels.annotations import In
from dagpu.kernels.element import trace_expression
from dagpu.kernels.expression import TILE, Expression
from dagpu.kernels.expression_text import broadcast_shape, tile_of
from dagpu.kernels.generated_launch import (
    AnyOp,
    array_call,
    contiguous_copy,
    first_output,
    generated_kernel,
    library_kernel,
    move_arguments,
    new_output,
    number_input,
    output,
    refused_call,
    refused_type,
    reshaped,
    tensor_input,
)
from dagpu.kernels.operations import DOMAINS, memory_type, type_name
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import FIRST, UNCUT, Map
from dagpu.ops.creation import Alloc
from dagpu.ops.initializers import Constant
from dagpu.ops.kernel_spec import KernelSpec

# Constrained, not bounded: handles are covariant, so a bound would join f32 and f64 to np.generic, and refuse nothing.
_M = TypeVar("_M", f16, bf16, f32, f64, c64, c128)

_TRANSPOSED: Final = {"": (False, False), "a": (True, False), "b": (False, True), "ab": (True, True)}
_PRECISIONS: Final = ("ieee", "tf32")


@leaves_run
def matmul(
    a: In[_M], b: In[_M], *, transpose: Literal["", "a", "b", "ab"] = "", precision: Literal["ieee", "tf32"] = "ieee"
) -> DeviceOp[Tensor[_M], Any]:
    """Return the matrix product of a (..., m, k) and b (..., k, n), of shape (..., m, n).

    The axes before the last two are a batch, and broadcast by NumPy's rules. An operand with one axis is a row (`a`)
    or a column (`b`), whose axis of extent 1 the result does not have. f16 and bf16 are added in f32, and the sum is
    rounded once.

    On a GPU it is one call of cuBLASLt (extra `math`), in streams and in graphs; its algorithm is chosen once for each
    shape, so every run gives the same bits. On the host it is `numpy.matmul`. The two add in different orders: with
    elements of about 1, results differ by some `eps * k ** 0.5`, with eps of f32 for f16, bf16 and f32, and a rounding
    of the result.

    Args:
        a: a tensor of floats (f16, bf16, f32 or f64) or complex numbers (c64, c128), or an op whose result is one. No
            conjugate is taken. Convert integers before: `convert(t, f32)`, whose products are exact up to 2**24, or f64
            up to 2**53.
        b: the same, of the same element type.
        transpose: the operands whose last two axes are exchanged before: "a", "b", "ab" or "" for none. No memory is
            copied for it.
        precision: "tf32" lets tensor cores round f32 operands to 10 bits of mantissa. The host computes in f32.

    Raises:
        KernelArgumentError: the elements are whole numbers or of two types, or `precision` is "tf32" for elements other
            than f32.
        ShapeError: the inner extents differ, the batches do not broadcast, or an operand has no axis.
        DeviceError: the run raises it if cuBLASLt is missing or refuses.
    """
    origin = here()
    if type(transpose) is not str or transpose not in _TRANSPOSED:
        cure = 'Write "", "a", "b" or "ab"'
        raise refused_call("matmul", origin, f"transpose is {format_value(transpose)}", cure)
    chosen = _TRANSPOSED[transpose]
    if type(precision) is not str or precision not in _PRECISIONS:
        cure = 'Write "ieee" or "tf32"'
        raise refused_call("matmul", origin, f"precision is {format_value(precision)}", cure)

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        return product(arguments, layouts, chosen, precision == "tf32", origin)

    return array_call("matmul", ("a", "b"), (a, b), build, origin)


def product(
    arguments: tuple[Any, ...],
    layouts: tuple[Layout | None, ...],
    flags: tuple[bool, bool],
    tf32: bool,
    origin: Origin,
) -> AnyOp:
    """Return the op of a product. `flags` says which operands are transposed."""
    left, right = _checked(layouts, flags, tf32, origin)
    dtype, drops = left.dtype, (len(left.shape) == 1, len(right.shape) == 1)
    shapes = _matrices(left.shape, right.shape)
    (m, k), (inner, n) = matrix_shape(shapes[0], flags[0]), matrix_shape(shapes[1], flags[1])
    batch = broadcast_shape([shapes[0][:-2], shapes[1][:-2]])
    if k != inner:
        raise _unequal(left.shape, right.shape, (k, inner), flags, drops, origin)
    if batch is None:
        raise ShapeError(
            f"matmul at {describe(origin)}: the axes before the last two, {shapes[0][:-2]} and {shapes[1][:-2]}, do "
            "not broadcast. Extents must be equal, or 1; reshape one: x.reshape((n, 1, rows, columns)), say."
        )
    shape = (*batch, *([] if drops[0] else [m]), *([] if drops[1] else [n]))
    moved = move_arguments("matmul", arguments, origin)
    if 0 in (*batch, m, n, k):
        return Alloc(shape, dtype, Constant(0), origin)
    passed = [
        _operand(arg, layout, wanted, transposed, batch, origin)
        for arg, layout, wanted, transposed in zip(moved, (left, right), shapes, flags, strict=True)
    ]
    target = new_output((*batch, m, n), dtype, (*batch, m, n), origin)
    op = first_output(_kernel(dtype, flags, tf32), (target, *passed), origin)
    result: AnyOp = reshaped(op, contiguous_layout((*batch, m, n), dtype), shape, origin)
    return result


def _checked(
    layouts: tuple[Layout | None, ...], flags: tuple[bool, bool], tf32: bool, origin: Origin
) -> tuple[Layout, Layout]:
    """Return the layouts of the operands."""
    left, right = layouts
    if left is None or right is None:
        raise refused_call("matmul", origin, f"{'ab'[left is not None]} is a number", "Multiply by it: t * x")
    for layout in (left, right):
        if layout.dtype not in DOMAINS["inexact"]:
            raise refused_type("matmul", origin, layout.dtype)
    if left.dtype != right.dtype:
        what = f"operands of {type_name(left.dtype)} and {type_name(right.dtype)}"
        raise refused_call("matmul", origin, what, "Convert one: convert(t, f32), say")
    if tf32 and left.dtype != np.float32:
        what = f'precision="tf32" is for elements of f32, and these are of {type_name(left.dtype)}'
        raise refused_call("matmul", origin, what, "Leave it out")
    for name, layout, transposed in zip("ab", (left, right), flags, strict=True):
        if len(layout.shape) < 1 + transposed:
            raise ShapeError(
                f"matmul at {describe(origin)}: {name} has the shape {layout.shape}, and "
                f"{'two axes are exchanged' if transposed else 'at least one axis is multiplied'}. Reshape it: "
                "x.reshape((rows, columns)), say."
            )
    return left, right


def _matrices(left: Shape, right: Shape) -> tuple[Shape, Shape]:
    """Return the shapes of operands as matrices: a row for `a`, a column for `b`."""
    return (1, *left) if len(left) == 1 else left, (*right, 1) if len(right) == 1 else right


def _operand(arg: Any, layout: Layout, shape: Shape, transposed: bool, batch: Shape, origin: Origin) -> Any:
    """Return an operand as matrices of this shape, in a layout that the library takes. Others are copied."""
    if layout.shape == shape and gemm_operand(layout, transposed, batch) is not None:
        return arg
    if not layout.contiguous:
        arg, layout = contiguous_copy(arg, origin), contiguous_layout(layout.shape, layout.dtype)
    arg, layout = reshaped(arg, layout, shape, origin), reshape_layout(layout, shape)
    if gemm_operand(layout, transposed, batch) is not None:
        return arg
    whole = (*batch, *shape[-2:])  # its matrices lie at several distances
    target = new_output(whole, layout.dtype, tile_of(whole, TILE), origin)
    return Map(Map(_identity(layout.dtype).into(target, arg), FIRST, origin), UNCUT, origin)


@cache
def _identity(dtype: "np.dtype[Any]") -> Expression[[Any], Any]:
    """Return the expression that copies elements, and broadcasts them to the shape of its output."""
    return Expression(trace_expression(lambda x: x, (dtype,)).named("broadcast"), (matmul.__code__, 0))


def _unequal(
    left: Shape,
    right: Shape,
    extents: tuple[int, int],
    flags: tuple[bool, bool],
    drops: tuple[bool, bool],
    origin: Origin,
) -> ShapeError:
    """Return the error for inner extents that differ."""
    cure = "Give operands with as many elements there"
    if not any(drops):
        (m, k), (rows, n) = matrix_shape(left, flags[0]), matrix_shape(right, flags[1])
        for which in ("b", "a"):
            if (k == n) if which == "b" else (m == rows):
                chosen = "".join(name for name, flag in zip("ab", flags, strict=True) if flag is not (name == which))
                cure = f'Transpose one: transpose="{chosen}"'
                break
    return ShapeError(
        f"matmul at {describe(origin)}: {left} times {right}: the inner extents {extents[0]} and {extents[1]} differ. "
        f"{cure}."
    )


@cache
def _kernel(dtype: "np.dtype[Any]", flags: tuple[bool, bool], tf32: bool) -> KernelSpec:
    params = [output("y", dtype, None), tensor_input("a", dtype, None), tensor_input("b", dtype, None)]
    place = (_kernel.__wrapped__.__code__, 0)
    return library_kernel("matmul", params, CublasLtProduct(flags, tf32), _twin(flags), place)


def _twin(flags: tuple[bool, bool]) -> Callable[..., None]:
    def body(y: NDArray[Any], *operands: NDArray[Any]) -> None:
        wide = np.float32 if y.dtype.itemsize == 2 else y.dtype
        turned = [x.swapaxes(-1, -2) if flag else x for x, flag in zip(operands, flags, strict=True)]
        a, b = [x.astype(wide, copy=False) for x in turned]
        if wide == y.dtype:
            np.matmul(a, b, out=y)
        else:
            y[...] = np.matmul(a, b)

    return body


# ---- gemm layouts
#
# Products of matrices as the libraries compute them: two operands with a leading dimension each, and one batch stride.
#
# A matrix is seen in rows or in columns: its elements follow each other along its last axis or its first. The leading
# dimension is the distance between rows, or between columns.

MOST_ALIGNED = 256
"""Bytes: alignment above it is of no use to a library. Memory of dagpu's begins at such an address."""


@final
class GemmOperand(NamedTuple):
    """One operand: whether its columns lie in memory in one piece, and its distances in elements."""

    by_columns: bool
    leading: int
    batch: int
    """The distance between the matrices of a batch; 0 for the same matrix each time."""
    aligned: int
    """Bytes to which the address of its first element is aligned."""


@final
class Gemm(NamedTuple):
    """`batch` products of (m, k) by (k, n). The result is contiguous."""

    dtype: str
    batch: int
    m: int
    n: int
    k: int
    a: GemmOperand
    b: GemmOperand


def matrix_shape(shape: Shape, transposed: bool) -> tuple[int, int]:
    """Return the rows and columns of the matrices that an operand stands for."""
    rows, columns = shape[-2:]
    return (columns, rows) if transposed else (rows, columns)


def gemm_operand(layout: Layout, transposed: bool, batch: Shape) -> GemmOperand | None:
    """Return an operand that is broadcast to this batch; None if it needs another layout."""
    rows, columns = matrix_shape(layout.shape, transposed)
    size = layout.dtype.itemsize
    if any(stride % size for stride in layout.strides):
        return None
    steps = [stride // size for stride in layout.strides]
    down, right = reversed(steps[-2:]) if transposed else steps[-2:]
    stride = _batch_stride(layout.shape[:-2], steps[:-2], batch)
    if stride is None:
        return None
    aligned = gcd(MOST_ALIGNED, layout.offset)
    if (columns == 1 or right == 1) and (rows == 1 or down >= columns):
        return GemmOperand(False, down if rows > 1 else columns, stride, aligned)
    if (rows == 1 or down == 1) and (columns == 1 or right >= rows):
        return GemmOperand(True, right if columns > 1 else rows, stride, aligned)
    return None


def find_gemm(a: Layout, b: Layout, transposed: tuple[bool, bool], batch: Shape) -> Gemm:
    """Return the product of two operands that have a layout for it.

    A batch of one and the same right matrix is one product with more rows.
    """
    left, right = gemm_operand(a, transposed[0], batch), gemm_operand(b, transposed[1], batch)
    assert left is not None
    assert right is not None
    (m, k), (_, n) = matrix_shape(a.shape, transposed[0]), matrix_shape(b.shape, transposed[1])
    count = 1
    for extent in batch:
        count *= extent
    if count > 1 and right.batch == 0 and not left.by_columns and left.batch == m * left.leading:
        count, m = 1, count * m
    return Gemm(a.dtype.name, count, m, n, k, left, right)


def _batch_stride(shape: Shape, steps: list[int], batch: Shape) -> int | None:
    """Return the one distance between the matrices of a broadcast batch, in C order; None if there is none."""
    missing = len(batch) - len(shape)
    found, span = 0, 0  # nothing is known before the last axis of more than one matrix
    known = False
    for axis in reversed(range(len(batch))):
        if batch[axis] == 1:
            continue
        own = axis - missing
        step = steps[own] if own >= 0 and shape[own] > 1 else 0
        if not known:
            known, found = True, step
        elif step != span:
            return None
        span = step * batch[axis]
    return found if found >= 0 else None


# ---- matrix kernels
#
# Generated kernels of matrices of real or complex elements: with another shape, and multiplied by a number.

_RESIZE: Final = """\
__global__ void resize_matrix(Tile<Element, 2> out, View<const Element, 2> x) {
    for (auto i : out) {
        const bool there = i[0] < x.extent(0) && i[1] < x.extent(1);
        out[i] = there ? x(i[0], i[1]) : Element{};
    }
}
"""
_SCALE: Final = """\
__device__ __forceinline__ Element times(Element x, {part} factor) {{
    return {product};
}}
__global__ void scale_matrix(Tile<Element, 2> out, View<const Element, 2> x, {part} factor) {{
    for (auto i : out) out[i] = times(x[i], factor);
}}
"""


def _element(dtype: "np.dtype[Any]") -> str:
    """Return the declaration of `Element`, a type with a zero: `Element{}`."""
    return f"typedef {memory_type(dtype)} Element;\n"


@cache
def resize_kernel(dtype: "np.dtype[Any]") -> KernelSpec:
    """Return the kernel that cuts rows and columns off, or adds zeros at their ends."""

    def body(out: NDArray[Any], x: NDArray[Any]) -> None:
        rows, columns = min(out.shape[0], x.shape[0]), min(out.shape[1], x.shape[1])
        out[:rows, :columns] = x[:rows, :columns]
        out[rows:] = 0
        out[:, columns:] = 0

    params = [output("out", dtype, 2), tensor_input("x", dtype, 2)]
    place = (resize_kernel.__wrapped__.__code__, 0)
    return generated_kernel("resize_matrix", params, _element(dtype) + _RESIZE, body, place)


@cache
def scale_kernel(dtype: "np.dtype[Any]") -> KernelSpec:
    """Return the kernel that multiplies each element by a real number, which rounds each part once."""
    part = part_type(dtype)

    def body(out: NDArray[Any], x: NDArray[Any], factor: Any) -> None:
        np.multiply(x.view(part), part.type(factor), out=out.view(part))

    params = [output("out", dtype, 2), tensor_input("x", dtype, 2), number_input("factor", part, "scale_matrix")]
    place = (scale_kernel.__wrapped__.__code__, 0)
    product = "Element(x.real * factor, x.imag * factor)" if dtype.kind == "c" else "x * factor"
    text = _element(dtype) + _SCALE.format(part=memory_type(part), product=product)
    return generated_kernel("scale_matrix", params, text, body, place, in_place=True)


# ---- cublaslt
#
# Products of matrices by cuBLASLt, by address. One algorithm is chosen for each product and kept for its next use.
#
# cuBLASLt sees matrices by columns. A contiguous result in rows is the transposed product in columns, so the operands
# change places: y = a b is y' = b' a'.

SCRATCH: Final = 32 << 20
"""The most bytes of scratch memory of a product: what NVIDIA recommends for Hopper (cublasSetWorkspace)."""

MOST: Final = 1024
"""The most products that are kept for a device: a few KB of the host's memory each."""

# library_types.h and cublas_api.h: cudaDataType of the elements, cublasComputeType_t, and cudaDataType of the factors.
_TYPES: Final = {
    "float16": (2, 68, 0), "bfloat16": (14, 68, 0), "float32": (0, 68, 0), "float64": (1, 70, 1),
    "complex64": (4, 68, 4), "complex128": (5, 70, 5),
}  # fmt: skip
_FACTORS: Final[dict[int, type[np.generic]]] = {0: f32, 1: f64, 4: c64, 5: c128}
"""The types of the factors."""
_KINDS: Final[dict[str, Literal["f64", "f32", "f16"]]] = {
    "float16": "f16", "bfloat16": "f16", "float32": "f32", "float64": "f64", "complex64": "f32", "complex128": "f64",
}  # fmt: skip
_TF32: Final = 77
_TRANSPOSE: Final = 1


@final
class ChosenProduct:
    """A product with its algorithm."""

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
        self.waits: Final = False
        self.no_graph: Final = ""

    def scratch_bytes(self, operands: Sequence[Layout], device: int) -> int:
        return self._chosen(operands, device).scratch

    def bind(self, operands: Sequence[Layout], device: int) -> Enqueue:
        return self._chosen(operands, device).enqueue

    def is_known(self, operands: Sequence[Layout], device: int) -> bool:
        return PRODUCTS.is_known(device, self._gemm(operands), self._tf32)

    def effort(self, operands: Sequence[Layout]) -> Effort:
        y, a, b = operands
        (m, k), (_, n) = matrix_shape(a.shape, self._transposed[0]), matrix_shape(b.shape, self._transposed[1])
        kind = "tf32" if self._tf32 else _KINDS[y.dtype.name]
        operations = 8.0 if y.dtype.kind == "c" else 2.0
        return Effort(kind, operations * prod(y.shape[:-2]) * m * n * k, y.nbytes + a.nbytes + b.nbytes)

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
            _set(setter, self.product, attribute, flag * _TRANSPOSE, np.int32)

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
    return ChosenProduct(bindings.matmul, handle, parts, found, _FACTORS[factor])


def _set(setter: Callable[..., None], thing: int, attribute: int, value: int, dtype: Any) -> None:
    """Set an attribute, which the library copies."""
    buffer = np.array([value], dtype)
    setter(thing, attribute, buffer.ctypes.data, buffer.nbytes)
