"""The CUDA text of the operations of an expression, for registers of each element type.

A register of f16 or bf16 is a `float` with a rounded value. Text is compiled without contraction of `a * b + c` to one
fused operation (`-fmad=false`), so each operation rounds once, as in NumPy.
"""

from typing import Any, Final, NamedTuple

import numpy as np

from dagpu.kernels.cuda_source.cuda_scalars import SPELLINGS


class CudaText(NamedTuple):
    """The text of a value, and the names of the helper functions in `HELPERS` that it calls."""

    text: str
    helpers: tuple[str, ...] = ()


def memory_type(dtype: "np.dtype[Any]") -> str:
    """Return the C++ type of an element in memory."""
    return SPELLINGS[dtype.name][0]


def complex_struct(dtype: "np.dtype[Any]") -> str:
    """Return the declaration of `Element`, a C++ type for the elements of c64 or c128 in memory."""
    part = memory_type(np.dtype(f"f{dtype.itemsize // 2}"))
    return f"struct alignas({dtype.itemsize}) Element {{\n    {part} real, imaginary;\n}};\n"


def register_type(dtype: "np.dtype[Any]") -> str:
    """Return the C++ type of an element in a register: `float` for f16 and bf16."""
    return "float" if is_half(dtype) else memory_type(dtype)


def is_half(dtype: "np.dtype[Any]") -> bool:
    """True for f16 and bf16."""
    return dtype.itemsize == 2 and dtype.kind not in "iu"


# ---- memory and registers
def load_text(dtype: "np.dtype[Any]", text: str) -> str:
    """Return the text that reads an element `text` of memory into a register."""
    return {"float16": f"__half2float({text})", "bfloat16": f"__bfloat162float({text})"}.get(dtype.name, text)


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


# ---- helper functions
_UNSIGNED = """\
// Integers wrap: C++ says so of unsigned ones alone.
template <class T> struct unsigned_of { typedef unsigned int type; };
template <> struct unsigned_of<long long> { typedef unsigned long long type; };
template <> struct unsigned_of<unsigned long long> { typedef unsigned long long type; };
"""


def _rounding(name: str, source: str, half: str, widen: str, narrow: str) -> str:
    return f"""\
__device__ __forceinline__ float {name}({source} x) {{
    const {half} rounded = {narrow}(x);
    return {widen}(rounded);
}}
"""


def _wrapping(name: str, sign: str) -> str:
    return f"""\
template <class T> __device__ __forceinline__ T {name}(T a, T b) {{
    typedef typename unsigned_of<T>::type U;
    return static_cast<T>(static_cast<U>(a) {sign} static_cast<U>(b));
}}
"""


def _extremum(name: str, sign: str, bits: str) -> str:
    return f"""\
// A NaN wins, and -0 is below 0. Without branches: a branch would keep the reads behind it from being under way.
__device__ __forceinline__ float {name}(float a, float b) {{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    float c;
    asm("{name[:3]}.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
#else
    const float chosen = (a != a) | (a {sign} b) ? a : b;
    return a == b ? __uint_as_float(__float_as_uint(a) {bits} __float_as_uint(b)) : chosen;
#endif
}}
__device__ __forceinline__ double {name}(double a, double b) {{
    const double chosen = (a != a) | (a {sign} b) ? a : b;
    return a == b ? __longlong_as_double(__double_as_longlong(a) {bits} __double_as_longlong(b)) : chosen;
}}
"""


HELPERS: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "round_to_half": ((), _rounding("round_to_half", "float", "__half", "__half2float", "__float2half_rn")),
    "round_double_to_half": (
        (),
        _rounding("round_double_to_half", "double", "__half", "__half2float", "__double2half"),
    ),
    "round_to_bfloat16": (
        (),
        _rounding("round_to_bfloat16", "float", "__nv_bfloat16", "__bfloat162float", "__float2bfloat16_rn"),
    ),
    "unsigned_of": ((), _UNSIGNED),
    "wrapping_add": (("unsigned_of",), _wrapping("wrapping_add", "+")),
    "wrapping_subtract": (("unsigned_of",), _wrapping("wrapping_subtract", "-")),
    "wrapping_multiply": (("unsigned_of",), _wrapping("wrapping_multiply", "*")),
    "wrapping_absolute": (
        ("wrapping_subtract",),
        """\
template <class T> __device__ __forceinline__ T wrapping_absolute(T a) {
    return a < 0 ? wrapping_subtract<T>(0, a) : a;
}
""",
    ),
    "minimum": ((), _extremum("minimum", "<", "|")),
    "maximum": ((), _extremum("maximum", ">", "&")),
    "left_shift": (
        ("unsigned_of",),
        """\
template <class T> __device__ __forceinline__ T left_shift(T a, T count) {
    typedef typename unsigned_of<T>::type U;
    return static_cast<U>(count) < 8 * sizeof(T) ? static_cast<T>(static_cast<U>(a) << count) : T(0);
}
""",
    ),
    "right_shift": (
        ("unsigned_of",),
        """\
template <class T> __device__ __forceinline__ T right_shift(T a, T count) {
    typedef typename unsigned_of<T>::type U;
    return static_cast<U>(count) < 8 * sizeof(T) ? static_cast<T>(a >> count) : static_cast<T>(a < T(0) ? -1 : 0);
}
""",
    ),
    "floor_divide": (
        ("wrapping_subtract",),
        """\
// Rounded down. A division by 0 gives 0, and the lowest number by -1 itself.
template <class T> __device__ __forceinline__ T floor_divide(T a, T b) {
    if (b == 0) return T(0);
    if (T(-1) < T(0) && b == T(-1)) return wrapping_subtract<T>(0, a);
    const T quotient = static_cast<T>(a / b);
    return a % b != 0 && (a < 0) != (b < 0) ? static_cast<T>(quotient - 1) : quotient;
}
""",
    ),
    "floor_remainder": (
        (),
        """\
// With the sign of the divisor. A division by 0 gives 0.
template <class T> __device__ __forceinline__ T floor_remainder(T a, T b) {
    if (b == 0 || (T(-1) < T(0) && b == T(-1))) return T(0);
    const T rest = static_cast<T>(a % b);
    return rest != 0 && (rest < 0) != (b < 0) ? static_cast<T>(rest + b) : rest;
}
""",
    ),
    "floor_divide_real": (
        (),
        """\
// Of an exact remainder; the quotient is whole but for rounding.
template <class T> __device__ __forceinline__ T floor_divide_real(T a, T b) {
    if (b == 0) return a / b;
    const T rest = fmod(a, b);
    T quotient = (a - rest) / b;
    if (rest != 0 && (b < 0) != (rest < 0)) quotient -= 1;
    if (quotient == 0) return copysign(T(0), a / b);
    const T whole = floor(quotient);
    return quotient - whole > T(0.5) ? whole + 1 : whole;
}
""",
    ),
    "floor_remainder_real": (
        (),
        """\
// With the sign of the divisor, exact.
template <class T> __device__ __forceinline__ T floor_remainder_real(T a, T b) {
    const T rest = fmod(a, b);
    if (b == 0) return rest;
    if (rest == 0) return copysign(T(0), b);
    return rest == rest && (b < 0) != (rest < 0) ? rest + b : rest;
}
""",
    ),
}
"""The helper functions, each with those that it calls and its text."""


def helper_texts(names: "set[str]") -> str:
    """Return the text of helper functions and of all that they call, each once and after those that it calls."""
    wanted: dict[str, None] = {}
    todo = sorted(names, key=list(HELPERS).index, reverse=True)
    while todo:
        name = todo.pop()
        missing = [each for each in HELPERS[name][0] if each not in wanted]
        if missing:
            todo += [name, *missing]
        else:
            wanted[name] = None
    return "".join(HELPERS[name][1] for name in wanted)
