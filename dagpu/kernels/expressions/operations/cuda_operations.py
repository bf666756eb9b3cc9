"""The CUDA text of the operations of an expression, for registers of each element type.

A register of f16 or bf16 is a `float` with a rounded value. Text is compiled without contraction of `a * b + c` to one
fused operation (`-fmad=false`), so each operation rounds once, as in NumPy.
"""

from typing import Any, Final, NamedTuple

import numpy as np

from dagpu.kernels.cuda_source.cuda_scalars import SPELLINGS


class CudaText(NamedTuple):
    """The text of a value, and the names of the functions of `cuda_helpers` that it calls."""

    text: str
    helpers: tuple[str, ...] = ()


def memory_type(dtype: "np.dtype[Any]") -> str:
    """Return the C++ type of an element in memory. A bool is a byte there, which need not be 0 or 1 (`load_text`)."""
    return "unsigned char" if dtype.kind == "b" else SPELLINGS[dtype.name][0]


def complex_struct(dtype: "np.dtype[Any]") -> str:
    """Return the declaration of `Element`, a C++ type for the elements of c64 or c128 in memory."""
    part = memory_type(np.dtype(f"f{dtype.itemsize // 2}"))
    return f"struct alignas({dtype.itemsize}) Element {{\n    {part} real, imaginary;\n}};\n"


def register_type(dtype: "np.dtype[Any]") -> str:
    """Return the C++ type of an element in a register: `float` for f16 and bf16."""
    return "float" if is_half(dtype) else "bool" if dtype.kind == "b" else memory_type(dtype)


def is_half(dtype: "np.dtype[Any]") -> bool:
    """True for f16 and bf16."""
    return dtype.itemsize == 2 and dtype.kind not in "iu"


# ---- memory and registers
def load_text(dtype: "np.dtype[Any]", text: str) -> str:
    """Return the text that reads an element `text` of memory into a register. Of a bool any byte but 0 is true, as on
    the host (`dtypes.as_truth`)."""
    return {
        "float16": f"__half2float({text})", "bfloat16": f"__bfloat162float({text})", "bool": f"({text} != 0)",
    }.get(dtype.name, text)  # fmt: skip


def store_text(dtype: "np.dtype[Any]", text: str) -> str:
    """Return the text that makes an element for memory of a register `text`."""
    return {"float16": f"__float2half_rn({text})", "bfloat16": f"__float2bfloat16_rn({text})"}.get(dtype.name, text)


_ROUND: Final = {"float16": "round_to_half", "bfloat16": "round_to_bfloat16"}


def constant_text(value: Any, dtype: "np.dtype[Any]") -> str:
    """Return a number as a literal of the register's type."""
    if dtype.kind == "b":
        return "true" if value else "false"
    if dtype.kind in "iu":
        return _whole_text(int(value), dtype)
    number = np.float64(value) if dtype.itemsize == 8 else np.float32(value)
    sign = "-" if np.signbit(number) else ""
    if not np.isfinite(number):
        text = "NAN" if np.isnan(number) else f"{sign}INFINITY"
        return f"double({text})" if dtype.itemsize == 8 else text
    text = str(abs(number))  # the shortest text that reads as this number
    point = "" if "." in text or "e" in text else ".0"
    return f"{sign}{text}{point}{'' if dtype.itemsize == 8 else 'f'}"


def _whole_text(value: int, dtype: "np.dtype[Any]") -> str:
    if dtype.itemsize == 8:
        suffix = "LL" if dtype.kind == "i" else "ULL"
    else:
        suffix = "U" if dtype.name == "uint32" else ""
    if dtype.itemsize >= 4 and value == np.iinfo(dtype).min < 0:  # its digits alone are too large for the type
        return f"(-{-value - 1}{suffix} - 1)"
    return f"{value}{suffix}"


# ---- operations
_INFIX: Final = {
    "add": "+", "subtract": "-", "multiply": "*", "divide": "/", "less": "<", "less_equal": "<=", "greater": ">",
    "greater_equal": ">=", "equal": "==", "not_equal": "!=", "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^",
}  # fmt: skip
_WRAPPING: Final = {"add": "wrapping_add", "subtract": "wrapping_subtract", "multiply": "wrapping_multiply"}
_LIBRARY: Final = {
    "sqrt": "sqrt", "exp": "exp", "expm1": "expm1", "log": "log", "log1p": "log1p", "tanh": "tanh", "sin": "sin",
    "cos": "cos", "erf": "erf", "power": "pow", "floor": "floor", "ceil": "ceil", "rint": "rint", "absolute": "fabs",
}  # fmt: skip
"""Functions of CUDA's mathematical library; the f32 version has the suffix f."""
_ROUNDS: Final = frozenset(("add", "subtract", "multiply", "divide", "floor_divide", "remainder")) | frozenset(
    ("sqrt", "exp", "expm1", "log", "log1p", "tanh", "sin", "cos", "erf", "power")
)
"""The operations whose result on f16 and bf16 must be rounded; the others give a number of the type."""


def operation_text(operation: str, dtype: "np.dtype[Any]", operands: "tuple[str, ...]") -> CudaText:
    """Return the text of an operation on registers; `dtype` is the element type of the operands."""
    found = _plain_text(operation, dtype, operands)
    if is_half(dtype) and operation in _ROUNDS:
        rounding = _ROUND[dtype.name]
        return CudaText(f"{rounding}({found.text})", (*found.helpers, rounding))
    return found


def _plain_text(operation: str, dtype: "np.dtype[Any]", operands: "tuple[str, ...]") -> CudaText:
    a, b = operands[0], operands[-1]
    whole = dtype.kind in "iu"
    if whole and operation in _WRAPPING:
        return _helper(_WRAPPING[operation], operands, dtype)
    if operation in _INFIX:
        return CudaText(f"{a} {_INFIX[operation]} {b}")
    match operation:
        case "negative":
            return _helper("wrapping_subtract", ("0", a), dtype) if whole else CudaText(f"-{a}")
        case "absolute" if whole:
            return CudaText(a) if dtype.kind == "u" else _helper("wrapping_absolute", operands, dtype)
        case "invert":
            return CudaText(f"!{a}" if dtype.kind == "b" else f"static_cast<{register_type(dtype)}>(~{a})")
        case "isnan":
            return CudaText(f"{a} != {a}")
        case "isfinite":
            return CudaText(f"{a} - {a} == 0")
        case "minimum" | "maximum" if whole:
            return CudaText(f"{a} {'<' if operation == 'minimum' else '>'} {b} ? {a} : {b}")
        case "minimum" | "maximum":
            return CudaText(f"{operation}({a}, {b})", (operation,))
        case "left_shift" | "right_shift":
            return _helper(operation, operands, dtype)
        case "floor_divide" | "remainder":
            name = operation if operation == "floor_divide" else "floor_remainder"
            return _helper(f"{name}{'' if whole else '_real'}", operands, dtype)
        case _:
            suffix = "" if dtype.itemsize == 8 else "f"
            return CudaText(f"{_LIBRARY[operation]}{suffix}({', '.join(operands)})")


def _helper(name: str, operands: "tuple[str, ...]", dtype: "np.dtype[Any]") -> CudaText:
    """Return the text of a call of a template for this type: a literal among the operands may be of another one."""
    return CudaText(f"{name}<{register_type(dtype)}>({', '.join(operands)})", (name,))


def cast_text(source: "np.dtype[Any]", target: "np.dtype[Any]", a: str) -> CudaText:
    """Return the text that converts a register to another element type."""
    if target.kind == "b":
        return CudaText(f"{a} != 0")
    if target.name == "float16" and source.name == "float64":
        return CudaText(f"round_double_to_half({a})", ("round_double_to_half",))
    if is_half(target):
        rounding = _ROUND[target.name]
        return CudaText(f"{rounding}(static_cast<float>({a}))", (rounding,))
    return CudaText(f"static_cast<{register_type(target)}>({a})")
