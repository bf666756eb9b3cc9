"""The device functions that the CUDA text of an operation calls: rounding, wrapping, and division that rounds down."""

from typing import Final

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
