"""Generated kernels of matrices of real or complex elements: with another shape, and multiplied by a number."""

from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dagpu.kernels.expressions.operations.cuda_operations import complex_struct, memory_type
from dagpu.kernels.generated.generated_launch import generated_kernel, number_input, output, tensor_input
from dagpu.ops.kernel_spec import KernelSpec

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


def part_type(dtype: "np.dtype[Any]") -> "np.dtype[Any]":
    """Return the type of the real part of an element."""
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype


def _element(dtype: "np.dtype[Any]") -> str:
    """Return the declaration of `Element`, a type with a zero: `Element{}`."""
    return complex_struct(dtype) if dtype.kind == "c" else f"typedef {memory_type(dtype)} Element;\n"


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
    product = "Element{x.real * factor, x.imaginary * factor}" if dtype.kind == "c" else "x * factor"
    text = _element(dtype) + _SCALE.format(part=memory_type(part), product=product)
    return generated_kernel("scale_matrix", params, text, body, place, in_place=True)
