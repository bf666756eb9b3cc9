"""The operations of an expression: their element types and their CUDA text.

The table of the operations comes first. Their CUDA text and its device functions follow it; `numpy_operations` has
their NumPy functions.

f16 and bf16 are computed in f32, and each operation rounds its result once to the element type. For `+ - * /` and
`sqrt` this is the exact result, rounded once (Figueroa, "When is double rounding innocuous?", 1995).
"""

from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np

from dagpu.common.layout import COMPLEX, FLOATING, SUPPORTED, part_type
from dagpu.kernels.cuda_types import SPELLINGS

Domain: TypeAlias = Literal["any", "ordered", "number", "real", "inexact", "float", "complex", "int", "bits"]
"""The element types that an operation accepts."""

DOMAINS: Final[dict[Domain, frozenset["np.dtype[np.generic]"]]] = {
    "any": frozenset(SUPPORTED),
    "ordered": frozenset(SUPPORTED - COMPLEX),
    "number": frozenset(d for d in SUPPORTED if d.kind != "b"),
    "real": frozenset(d for d in SUPPORTED - COMPLEX if d.kind != "b"),
    "inexact": frozenset(FLOATING | COMPLEX),
    "float": frozenset(FLOATING),
    "complex": frozenset(COMPLEX),
    "int": frozenset(d for d in SUPPORTED if d.kind in "iu"),
    "bits": frozenset(d for d in SUPPORTED if d.kind in "iub"),
}


class ElementOperation(NamedTuple):
    """One operation: the text that names it in messages, the types of its operands, and the type of its result.

    `gives` is "operand" for a result of the element type of the operands, "bool", or "part" for the type of the real
    part of complex operands, which is the type of the operands if they are real.
    """

    shown: str
    domain: Domain
    gives: Literal["operand", "bool", "part"] = "operand"

    def result_type(self, dtype: "np.dtype[Any]") -> "np.dtype[Any]":
        """Return the element type of the result for operands of this type."""
        return {"operand": dtype, "bool": np.dtype(np.bool_), "part": part_type(dtype)}[self.gives]


OPERATIONS: Final[dict[str, ElementOperation]] = {
    "add": ElementOperation("+", "number"),
    "subtract": ElementOperation("-", "number"),
    "multiply": ElementOperation("*", "number"),
    "divide": ElementOperation("/", "inexact"),
    "floor_divide": ElementOperation("//", "real"),
    "remainder": ElementOperation("%", "real"),
    "power": ElementOperation("**", "float"),
    "negative": ElementOperation("-", "number"),
    "absolute": ElementOperation("abs", "number", "part"),
    "real": ElementOperation("real", "complex", "part"),
    "imag": ElementOperation("imag", "complex", "part"),
    "conj": ElementOperation("conj", "complex"),
    "angle": ElementOperation("angle", "complex", "part"),
    "less": ElementOperation("<", "ordered", "bool"),
    "less_equal": ElementOperation("<=", "ordered", "bool"),
    "greater": ElementOperation(">", "ordered", "bool"),
    "greater_equal": ElementOperation(">=", "ordered", "bool"),
    "equal": ElementOperation("==", "any", "bool"),
    "not_equal": ElementOperation("!=", "any", "bool"),
    "bitwise_and": ElementOperation("&", "bits"),
    "bitwise_or": ElementOperation("|", "bits"),
    "bitwise_xor": ElementOperation("^", "bits"),
    "invert": ElementOperation("~", "bits"),
    "left_shift": ElementOperation("<<", "int"),
    "right_shift": ElementOperation(">>", "int"),
    "minimum": ElementOperation("minimum", "real"),
    "maximum": ElementOperation("maximum", "real"),
    "sqrt": ElementOperation("sqrt", "inexact"),
    "exp": ElementOperation("exp", "inexact"),
    "expm1": ElementOperation("expm1", "float"),
    "log": ElementOperation("log", "float"),
    "log1p": ElementOperation("log1p", "float"),
    "tanh": ElementOperation("tanh", "float"),
    "sin": ElementOperation("sin", "float"),
    "cos": ElementOperation("cos", "float"),
    "erf": ElementOperation("erf", "float"),
    **{name: ElementOperation(name, "float") for name in ("tan", "asin", "acos", "atan", "atan2")},
    **{name: ElementOperation(name, "float") for name in ("sinh", "cosh", "asinh", "acosh", "atanh")},
    **{name: ElementOperation(name, "float") for name in ("log2", "log10", "logaddexp", "hypot")},
    **{name: ElementOperation(name, "float") for name in ("trunc", "copysign", "nextafter")},
    "floor": ElementOperation("floor", "float"),
    "ceil": ElementOperation("ceil", "float"),
    "rint": ElementOperation("rint", "float"),
    "isnan": ElementOperation("isnan", "inexact", "bool"),
    "isfinite": ElementOperation("isfinite", "inexact", "bool"),
    "isinf": ElementOperation("isinf", "inexact", "bool"),
    "signbit": ElementOperation("signbit", "float", "bool"),
    "sign": ElementOperation("sign", "real"),
    "positive": ElementOperation("positive", "number"),
}
"""The operations whose operands have one element type. `where`, casts, constants and parameters are apart."""

OF_LIBRARIES: Final = (
    "exp", "expm1", "log", "log1p", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh",
    "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "hypot",
)  # fmt: skip
TRANSCENDENTAL: Final = frozenset((*OF_LIBRARIES, "power", "logaddexp", "angle"))
"""The operations whose results may differ by a few ulp between devices. All others give the same bits everywhere, of
real elements; of complex ones `abs` and `sqrt` may differ too."""


def type_name(dtype: "np.dtype[np.generic]") -> str:
    """Return the short name of an element type, as dagpu exports it: `f32`, `u8`, `bf16`, `bool_`."""
    if dtype.name in ("bool", "bfloat16"):
        return "bool_" if dtype.name == "bool" else "bf16"
    return f"{dtype.kind}{dtype.itemsize * 8}"


# ---- cuda operations
#
# The CUDA text of the operations of an expression, for registers of each element type.
#
# A register of f16 or bf16 is a `float` with a rounded value. Text is compiled without contraction of `a * b + c` to
# one fused operation (`-fmad=false`), so each operation rounds once, as in NumPy.


class CudaText(NamedTuple):
    """The text of a value, and the names of the device functions that it calls."""

    text: str
    helpers: tuple[str, ...] = ()


def memory_type(dtype: "np.dtype[Any]") -> str:
    """Return the C++ type of an element in memory. A bool is a byte there, which need not be 0 or 1 (`load_text`)."""
    return "unsigned char" if dtype.kind == "b" else SPELLINGS[dtype.name][0]


def register_type(dtype: "np.dtype[Any]") -> str:
    """Return the C++ type of an element in a register: `float` for f16 and bf16."""
    return "float" if is_half(dtype) else "bool" if dtype.kind == "b" else memory_type(dtype)


def is_half(dtype: "np.dtype[Any]") -> bool:
    """True for f16 and bf16."""
    return dtype.itemsize == 2 and dtype.kind not in "iu"


def register_dtype(dtype: "np.dtype[Any]") -> "np.dtype[Any]":
    """Return the element type in which values are kept between operations: f32 for f16 and bf16."""
    return np.dtype(np.float32) if is_half(dtype) else dtype


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
    if dtype.kind == "c":
        parts = [constant_text(part, part_type(dtype)) for part in (value.real, value.imag)]
        return f"{register_type(dtype)}({', '.join(parts)})"
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
_TESTED: Final = {
    "isnan": "{a} != {a}", "isfinite": "{a} - {a} == 0", "isinf": "{a} == {a} && {a} - {a} != 0",
    "signbit": "copysign{f}(1, {a}) < 0",
}  # fmt: skip
_OF_PARTS: Final = {
    "real": "{a}.real", "imag": "{a}.imag", "conj": "{type}({a}.real, -{a}.imag)",
    "isfinite": "{a}.real - {a}.real == 0 && {a}.imag - {a}.imag == 0",
    "isinf": "({a}.real == {a}.real && {a}.real - {a}.real != 0) || ({a}.imag == {a}.imag && {a}.imag - {a}.imag != 0)",
    "absolute": "hypot({a}.real, {a}.imag)", "angle": "atan2({a}.imag, {a}.real)",
}  # fmt: skip
"""The texts of complex operands that have no operator."""
_OF_COMPLEX: Final = {"sqrt": "complex_sqrt", "exp": "complex_exp"}
_WRAPPING: Final = {"add": "wrapping_add", "subtract": "wrapping_subtract", "multiply": "wrapping_multiply"}
_LIBRARY: Final = {
    **{name: name for name in (*OF_LIBRARIES, "sqrt", "floor", "ceil", "rint", "trunc", "copysign", "nextafter")},
    "power": "pow", "absolute": "fabs",
}  # fmt: skip
"""Functions of CUDA's mathematical library; the f32 version has the suffix f."""
_ROUNDS: Final = TRANSCENDENTAL | {"add", "subtract", "multiply", "divide", "floor_divide", "remainder", "sqrt"}
"""The operations whose result on f16 and bf16 must be rounded; the others give a number of the type."""


def operation_text(operation: str, dtype: "np.dtype[Any]", operands: "tuple[str, ...]") -> CudaText:
    """Return the text of an operation on registers; `dtype` is the element type of the operands."""
    if dtype.kind == "c" and operation in _OF_PARTS:
        return CudaText(_OF_PARTS[operation].format(a=operands[0], type=register_type(dtype)))
    if dtype.kind == "c" and operation in _OF_COMPLEX:
        return CudaText(f"{_OF_COMPLEX[operation]}({operands[0]})", (_OF_COMPLEX[operation],))
    found = _plain_text(operation, dtype, operands)
    if is_half(dtype) and operation in _ROUNDS:
        rounding = _ROUND[dtype.name]
        return CudaText(f"{rounding}({found.text})", (*found.helpers, rounding))
    return found


def combined_text(operation: str, number: "np.dtype[Any]", operands: tuple[str, str]) -> CudaText:
    """Return the text that combines two numbers of a reduction or a running sum.

    The product of 1 and a complex number is that number, as the identity of a reduction must have it. The formula of a
    product makes a NaN of the 0 of 1 and an infinity.
    """
    if operation == "multiply" and number.kind == "c":
        return CudaText(f"complex_factor({', '.join(operands)})", ("complex_factor",))
    return operation_text(operation, number, operands)


def _plain_text(operation: str, dtype: "np.dtype[Any]", operands: "tuple[str, ...]") -> CudaText:
    a, b = operands[0], operands[-1]
    whole = dtype.kind in "iu"
    if whole and operation in _WRAPPING:
        return _helper(_WRAPPING[operation], operands, dtype)
    if operation in _INFIX:
        return CudaText(f"{a} {_INFIX[operation]} {b}")
    if operation in _TESTED:
        return CudaText(_TESTED[operation].format(a=a, f="" if dtype.itemsize == 8 else "f"))
    match operation:
        case "negative":
            return _helper("wrapping_subtract", ("0", a), dtype) if whole else CudaText(f"-{a}")
        case "absolute" if whole:
            return CudaText(a) if dtype.kind == "u" else _helper("wrapping_absolute", operands, dtype)
        case "invert":
            return CudaText(f"!{a}" if dtype.kind == "b" else f"static_cast<{register_type(dtype)}>(~{a})")
        case "positive":
            return CudaText(a)
        case "sign" | "logaddexp":
            return _helper(operation, operands, dtype)
        case "nextafter" if is_half(dtype):
            name = "next_half" if dtype.name == "float16" else "next_bfloat16"
            return CudaText(f"{name}({a}, {b})", (name,))
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
    if target.kind == "c":
        parts = [cast_text(source, part_type(target), a).text, "0"]
        if source.kind == "c":
            parts = [cast_text(part_type(source), part_type(target), f"{a}.{part}").text for part in ("real", "imag")]
        return CudaText(f"{register_type(target)}({', '.join(parts)})")
    if target.name == "float16" and source.name == "float64":
        return CudaText(f"round_double_to_half({a})", ("round_double_to_half",))
    if is_half(target):
        rounding = _ROUND[target.name]
        return CudaText(f"{rounding}(static_cast<float>({a}))", (rounding,))
    return CudaText(f"static_cast<{register_type(target)}>({a})")


# ---- cuda helpers
#
# The device functions that the CUDA text of an operation calls: rounding, wrapping, and division that rounds down.

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
    "sign": (
        (),
        """\
// A NaN stays one, and the sign of -0 is 0.
template <class T> __device__ __forceinline__ T sign(T a) {
    return static_cast<T>(a > 0 ? T(1) : a < 0 ? T(-1) : a == 0 ? T(0) : a);
}
""",
    ),
    "logaddexp": (
        (),
        """\
// log(exp(a) + exp(b)). Equal operands may be infinite, where their difference is a NaN.
template <class T> __device__ __forceinline__ T logaddexp(T a, T b) {
    if (a == b) return a + T(0.693147180559945309417232121458);
    const T apart = a - b;
    if (apart != apart) return apart;
    return (apart > 0 ? a : b) + log1p(exp(apart > 0 ? -apart : apart));
}
""",
    ),
    "complex_factor": (
        (),
        """\
// A product in which 1 changes no bit.
template <class T>
__device__ __forceinline__ dagpu::complex<T> complex_factor(dagpu::complex<T> a, dagpu::complex<T> b) {
    return a == T(1) ? b : b == T(1) ? a : a * b;
}
""",
    ),
    "complex_sqrt": (
        (),
        """\
// The root in the right half of the plane, with the special cases of C's csqrt (C99, G.6.4.2). By the method of Hull,
// Fairgrieve and Tang ("Implementing complex elementary functions using exception handling", 1994); scaled, so that
// nothing on the way overflows or loses digits.
__device__ __forceinline__ dagpu::complex<double> complex_sqrt(dagpu::complex<double> z) {
    double a = z.real, b = z.imag, scale = 1;
    if (a == 0 && b == 0) return dagpu::complex<double>(0, b);
    if (b == b && b - b != 0) return dagpu::complex<double>(fabs(b), b);
    if (a != a) return dagpu::complex<double>(a, a);
    if (a - a != 0)
        return copysign(1.0, a) < 0 ? dagpu::complex<double>(fabs(b - b), copysign(a, b))
                                    : dagpu::complex<double>(a, copysign(b - b, b));
    const double size = fmax(fabs(a), fabs(b));
    if (size > 4e307) a *= 0.0625, b *= 0.0625, scale = 4;
    if (size < 1e-290) a *= 18014398509481984.0, b *= 18014398509481984.0, scale = 7.450580596923828125e-09;
    const double root = sqrt((fabs(a) + hypot(a, b)) * 0.5), other = fabs(b) / (2 * root);
    return a >= 0 ? dagpu::complex<double>(scale * root, copysign(scale * other, b))
                  : dagpu::complex<double>(scale * other, copysign(scale * root, b));
}
__device__ __forceinline__ dagpu::complex<float> complex_sqrt(dagpu::complex<float> z) {
    const dagpu::complex<double> root = complex_sqrt(dagpu::complex<double>(z.real, z.imag));
    return dagpu::complex<float>(static_cast<float>(root.real), static_cast<float>(root.imag));
}
""",
    ),
    "complex_exp": (
        (),
        """\
// With the special cases of C's cexp (C99, G.6.3.1). Where exp(z.real) alone overflows or vanishes, its root is
// multiplied in twice.
template <class T> __device__ __forceinline__ dagpu::complex<T> complex_exp(dagpu::complex<T> z) {
    const T size = exp(z.real);
    if (z.imag == 0) return dagpu::complex<T>(size, z.imag);
    if (z.imag - z.imag != 0) {
        if (z.real - z.real == 0 || z.real != z.real) return dagpu::complex<T>(z.imag - z.imag, z.imag - z.imag);
        return z.real < 0 ? dagpu::complex<T>(0, 0) : dagpu::complex<T>(z.real, z.imag - z.imag);
    }
    const T x = cos(z.imag), y = sin(z.imag);
    if (z.real - z.real == 0 && (size == 0 || size - size != 0)) {
        const T root = exp(z.real / 2);
        return dagpu::complex<T>(root * x * root, root * y * root);
    }
    return dagpu::complex<T>(size * x, size * y);
}
""",
    ),
    "next_half": (
        (),
        """\
// The next number of f16 after a, towards b; both are numbers of f16. Below 2^-14 they are 2^-24 apart, and above they
// have 13 bits less than a float.
__device__ __forceinline__ float next_half(float a, float b) {
    if (a != a || b != b) return a + b;
    if (a == b) return b;
    const float size = fabsf(a), unit = 5.9604645e-08f, normal = 6.1035156e-05f;
    if (a == 0) return copysignf(unit, b);
    const bool away = (a < b) == (a > 0);
    if (size < normal || (size == normal && !away)) return copysignf(away ? size + unit : size - unit, a);
    if (size > 65504.0f) return copysignf(65504.0f, a);
    if (size == 65504.0f && away) return copysignf(INFINITY, a);
    return __uint_as_float(away ? __float_as_uint(a) + 0x2000u : __float_as_uint(a) - 0x2000u);
}
""",
    ),
    "next_bfloat16": (
        (),
        """\
// The next number of bf16 after a, towards b; both are numbers of bf16, which are floats without their lower 16 bits.
__device__ __forceinline__ float next_bfloat16(float a, float b) {
    if (a != a || b != b) return a + b;
    if (a == b) return b;
    if (a == 0) return copysignf(__uint_as_float(0x10000u), b);
    const bool away = (a < b) == (a > 0);
    return __uint_as_float(away ? __float_as_uint(a) + 0x10000u : __float_as_uint(a) - 0x10000u);
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
