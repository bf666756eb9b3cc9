"""The operations of an expression: their element types, their CUDA text and their NumPy functions.

The table of the operations comes first. Their CUDA text, its device functions, and their NumPy functions follow it.

f16 and bf16 are computed in f32, and each operation rounds its result once to the element type. For `+ - * /` and
`sqrt` this is the exact result, rounded once (Figueroa, "When is double rounding innocuous?", 1995).
"""

from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from dagpu.common.layout import FLOATING, SUPPORTED
from dagpu.kernels.cuda_signature import SPELLINGS

Domain: TypeAlias = Literal["number", "float", "int", "bits", "any"]
"""The element types that an operation accepts."""

DOMAINS: Final[dict[Domain, frozenset["np.dtype[np.generic]"]]] = {
    "any": frozenset(SUPPORTED),
    "number": frozenset(d for d in SUPPORTED if d.kind != "b"),
    "float": frozenset(FLOATING),
    "int": frozenset(d for d in SUPPORTED if d.kind in "iu"),
    "bits": frozenset(d for d in SUPPORTED if d.kind in "iub"),
}


class ElementOperation(NamedTuple):
    """One operation: the text that names it in messages, the types of its operands, and whether its result is bool.

    Without `is_test` the result has the element type of the operands.
    """

    shown: str
    domain: Domain
    is_test: bool = False


OPERATIONS: Final[dict[str, ElementOperation]] = {
    "add": ElementOperation("+", "number"),
    "subtract": ElementOperation("-", "number"),
    "multiply": ElementOperation("*", "number"),
    "divide": ElementOperation("/", "float"),
    "floor_divide": ElementOperation("//", "number"),
    "remainder": ElementOperation("%", "number"),
    "power": ElementOperation("**", "float"),
    "negative": ElementOperation("-", "number"),
    "absolute": ElementOperation("abs", "number"),
    "less": ElementOperation("<", "any", True),
    "less_equal": ElementOperation("<=", "any", True),
    "greater": ElementOperation(">", "any", True),
    "greater_equal": ElementOperation(">=", "any", True),
    "equal": ElementOperation("==", "any", True),
    "not_equal": ElementOperation("!=", "any", True),
    "bitwise_and": ElementOperation("&", "bits"),
    "bitwise_or": ElementOperation("|", "bits"),
    "bitwise_xor": ElementOperation("^", "bits"),
    "invert": ElementOperation("~", "bits"),
    "left_shift": ElementOperation("<<", "int"),
    "right_shift": ElementOperation(">>", "int"),
    "minimum": ElementOperation("minimum", "number"),
    "maximum": ElementOperation("maximum", "number"),
    "sqrt": ElementOperation("sqrt", "float"),
    "exp": ElementOperation("exp", "float"),
    "expm1": ElementOperation("expm1", "float"),
    "log": ElementOperation("log", "float"),
    "log1p": ElementOperation("log1p", "float"),
    "tanh": ElementOperation("tanh", "float"),
    "sin": ElementOperation("sin", "float"),
    "cos": ElementOperation("cos", "float"),
    "erf": ElementOperation("erf", "float"),
    "floor": ElementOperation("floor", "float"),
    "ceil": ElementOperation("ceil", "float"),
    "rint": ElementOperation("rint", "float"),
    "isnan": ElementOperation("isnan", "float", True),
    "isfinite": ElementOperation("isfinite", "float", True),
}
"""The operations whose operands have one element type. `where`, casts, constants and parameters are apart."""

TRANSCENDENTAL: Final = frozenset(("exp", "expm1", "log", "log1p", "tanh", "sin", "cos", "erf", "power"))
"""The operations whose results may differ by 2 ulp between devices. All others give the same bits everywhere."""


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


# ---- error function
#
# The error function, which NumPy does not have, for arrays of f32 and f64.
#
# The approximations are those of FreeBSD's s_erf.c (Sun Microsystems, 1993), with an error below 1 ulp. f32 is computed
# in f64 and rounded.

_TINY: Final = (
    (1.28379167095512558561e-01, -3.25042107247001499370e-01, -2.84817495755985104766e-02, -5.77027029648944159157e-03,
     -2.37630166566501626084e-05),
    (1.0, 3.97917223959155352819e-01, 6.50222499887672944485e-02, 5.08130628187576562776e-03,
     1.32494738004321644526e-04, -3.96022827877536812320e-06),
)  # fmt: skip
"""Numerator and denominator for |x| below 0.84375."""
_NEAR: Final = (
    (-2.36211856075265944077e-03, 4.14856118683748331666e-01, -3.72207876035701323847e-01, 3.18346619901161753674e-01,
     -1.10894694282396677476e-01, 3.54783043256182359371e-02, -2.16637559486879084300e-03),
    (1.0, 1.06420880400844228286e-01, 5.40397917702171048937e-01, 7.18286544141962662868e-02,
     1.26171219808761642112e-01, 1.36370839120290507362e-02, 1.19844998467991074170e-02),
)  # fmt: skip
"""For |x| from there to 1.25, about 1."""
_MIDDLE: Final = (
    (-9.86494403484714822705e-03, -6.93858572707181764372e-01, -1.05586262253232909814e+01, -6.23753324503260060396e+01,
     -1.62396669462573470355e+02, -1.84605092906711035994e+02, -8.12874355063065934246e+01,
     -9.81432934416914548592e+00),
    (1.0, 1.96512716674392571292e+01, 1.37657754143519042600e+02, 4.34565877475229228821e+02,
     6.45387271733267880336e+02, 4.29008140027567833386e+02, 1.08635005541779435134e+02, 6.57024977031928170135e+00,
     -6.04244152148580987438e-02),
)  # fmt: skip
"""For |x| from there to 1 / 0.35."""
_FAR: Final = (
    (-9.86494292470009928597e-03, -7.99283237680523006574e-01, -1.77579549177547519889e+01, -1.60636384855821916062e+02,
     -6.37566443368389627722e+02, -1.02509513161107724954e+03, -4.83519191608651397019e+02),
    (1.0, 3.03380607434824582924e+01, 3.25792512996573918826e+02, 1.53672958608443695994e+03,
     3.19985821950859553908e+03, 2.55305040643316442583e+03, 4.74528541206955367215e+02, -2.24409524465858183362e+01),
)  # fmt: skip
"""For |x| from there to 6."""
_ONE_PART: Final = 8.45062911510467529297e-01
"""erf(1), as a number with few bits."""


def erf(x: Any, out: Any = None) -> Any:
    """Return the error function of each element, with the element type of `x`, in `out` if that is given."""
    given = np.asarray(x)
    found = _erf(np.atleast_1d(given).astype(np.float64)).reshape(given.shape).astype(given.dtype)
    if out is None:
        return found[()]
    np.copyto(out, found)
    return out


def _erf(x: NDArray[np.float64]) -> NDArray[np.float64]:
    size = np.abs(x)
    found = np.sign(x)  # NaN stays NaN; from 6 on it is 1
    tiny = size < 0.84375
    part = x[tiny]
    found[tiny] = part + part * _ratio(_TINY, part * part)
    near = ~tiny & (size < 1.25)
    found[near] *= _ONE_PART + _ratio(_NEAR, size[near] - 1.0)
    for table, low, high in ((_MIDDLE, 1.25, 1 / 0.35), (_FAR, 1 / 0.35, 6.0)):
        inside = (size >= low) & (size < high)
        part = size[inside]
        # exp(-x * x) of the exact square: z is x without its lower bits, so that z * z is exact.
        z = (part.view(np.int64) & ~np.int64(0xFFFFFFFF)).view(np.float64)
        tail = np.exp(-z * z - 0.5625) * np.exp((z - part) * (z + part) + _ratio(table, 1.0 / (part * part)))
        found[inside] *= 1.0 - tail / part
    return found


def _ratio(table: "tuple[tuple[float, ...], tuple[float, ...]]", x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the quotient of two polynomials; coefficients in rising order."""
    numerator, denominator = (_polynomial(coefficients, x) for coefficients in table)
    found: NDArray[np.float64] = numerator / denominator
    return found


def _polynomial(coefficients: "tuple[float, ...]", x: NDArray[np.float64]) -> NDArray[np.float64]:
    found = np.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        found = found * x + coefficient
    return found


# ---- numpy operations
#
# The NumPy functions of the operations of an expression: the same bits as the CUDA text, and no warnings.
#
# Each function takes arrays or NumPy scalars, and an array for its result or None. The element type of the operands has
# been checked. f16 and bf16 arrive as f32 with rounded values, and `numpy_function` rounds the result.

Array: TypeAlias = NDArray[Any]
NumpyFunction: TypeAlias = Callable[..., Any]
"""A function `f(*operands, out=None)`, which returns its result; that is `out` if it is given."""


def register_dtype(dtype: "np.dtype[Any]") -> "np.dtype[Any]":
    """Return the element type in which values are kept between operations: f32 for f16 and bf16."""
    return np.dtype(np.float32) if is_half(dtype) else dtype


def round_half(x: Any, dtype: "np.dtype[Any]") -> Any:
    """Return f32 numbers rounded to f16 or bf16, as f32."""
    return x.astype(dtype).astype(np.float32)


def numpy_function(operation: str, dtype: "np.dtype[Any]", result: "np.dtype[Any]") -> NumpyFunction:
    """Return the function of an operation on operands of element type `dtype`, with a result of type `result`."""
    found = _OWN.get(operation) or getattr(np, operation)
    if operation in ("minimum", "maximum") and dtype.kind in "iu":
        found = getattr(np, operation)
    if not is_half(dtype) or result.kind == "b":
        return found

    def rounded(*operands: Any, out: Any = None) -> Any:
        return _into(out, round_half(found(*operands), dtype))

    return rounded


def cast_function(source: "np.dtype[Any]", target: "np.dtype[Any]") -> NumpyFunction:
    """Return the function that converts elements to another type."""

    def cast(x: Any, out: Any = None) -> Any:
        if target.kind == "b":
            return np.not_equal(x, 0, out=out)
        if is_half(target):
            narrow = x.astype(np.float32) if target == ml_dtypes.bfloat16 else x
            return _into(out, narrow.astype(target).astype(np.float32))
        if out is None:
            return x.astype(target)
        np.copyto(out, x, casting="unsafe")
        return out

    del source
    return cast


def where(condition: Any, a: Any, b: Any, out: Any = None) -> Any:
    """Return `a` where the condition holds, else `b`."""
    return _into(out, np.where(condition, a, b))


def _into(out: Any, found: Any) -> Any:
    """Return a result, in `out` if that is given."""
    if out is None:
        return found
    np.copyto(out, found)
    return out


def _numpy_extremum(choose: Any, combine: Any) -> NumpyFunction:
    """Return `np.minimum` or `np.maximum` with -0 below 0; NumPy leaves open which of two zeros it gives.

    Two equal floats have the same bits, unless they are zeros. So `combine`, `|` or `&` of the bits, is right for both.
    """

    def extremum(a: Any, b: Any, out: Any = None) -> Any:
        number = a if isinstance(a, np.generic) else b if isinstance(b, np.generic) else None
        if number is not None and number != 0:  # then no two zeros meet
            return choose(a, b, out=out)
        found = choose(a, b)
        if number is not None and choose is np.maximum and not np.signbit(number):
            return np.add(found, number, out=out)  # at least 0, so that this makes 0 of -0 and changes no other
        zeros = np.equal(found, 0)
        if zeros.any():
            ties = zeros & np.equal(a, b)
            bits = np.dtype(f"u{found.dtype.itemsize}")
            both = combine(np.asarray(a).view(bits), np.asarray(b).view(bits)).view(found.dtype)
            found = np.where(ties, both, found)
        return _into(out, found)

    return extremum


def _power(a: Any, b: Any, out: Any = None) -> Any:
    """Return `np.power`, with 0 for -0 and infinity for -infinity to the power of 0.5, as C and IEEE 754 have it.

    NumPy takes a square root where the exponents are one number, and `pow` where they are an array.
    """
    roots = np.equal(b, 0.5)
    if roots.any():
        a = np.where(roots & (np.equal(a, 0) | np.equal(a, -np.inf)), np.abs(a), a)
    return np.power(a, b, out=out)


def _in_double(function: "np.ufunc") -> NumpyFunction:
    """Return a function of NumPy computed in f64 and rounded, which is within 0.51 units in the last place of f32.

    NumPy's own loops for f32 are off by up to 3.8 (log), 2.4 (exp), 2.6 (expm1), 1.9 (log1p) and 2.2 (tanh), by other
    amounts on each kind of processor. This takes 1 to 2 ns for an element more, of blocks that NumPy converts.
    """

    def in_double(x: Any, out: Any = None) -> Any:
        if isinstance(x, np.ndarray):
            room = np.empty(x.shape, x.dtype) if out is None else out
            return function(x, out=room, dtype=np.float64, casting="same_kind")
        return _into(out, function(x, dtype=np.float64).astype(x.dtype))

    return in_double


IN_DOUBLE: Final = {name: _in_double(getattr(np, name)) for name in ("exp", "expm1", "log", "log1p", "tanh")}
"""The operations that are computed in f64. `sin`, `cos` and `pow` of f32 are within 1.5 units, and twenty times as fast
as in f64."""


def writes_result(function: NumpyFunction) -> bool:
    """Return true if a function writes its result into the array for it, and makes none on the way."""
    return isinstance(function, np.ufunc) or any(function is each for each in IN_DOUBLE.values())


_OWN: Final[dict[str, NumpyFunction]] = {
    **IN_DOUBLE,
    "minimum": _numpy_extremum(np.minimum, np.bitwise_or),
    "maximum": _numpy_extremum(np.maximum, np.bitwise_and),
    "erf": erf,
    "power": _power,
}
"""The operations that NumPy lacks or leaves open; all others are its functions of the same name."""
