"""Random expressions as trees, evaluated on elements and, by NumPy's own operators, on arrays."""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import ml_dtypes
import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from dagpu import array, bf16, bool_, c64, c128, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64

Array: TypeAlias = NDArray[Any]

REALS: Final = (f16, bf16, f32, f64)
WHOLES: Final = (i8, i16, i32, i64, u8, u16, u32, u64)
PARTS: Final[dict[Any, Any]] = {c64: f32, c128: f64}
"""The complex types, each with the type of its parts."""
TYPES: Final = (*REALS, *WHOLES, *PARTS, bool_)


class Tree(NamedTuple):
    """An operation on subtrees with a result of type `dtype`. `value` is a parameter's number or a constant."""

    operation: str
    dtype: Any
    below: "tuple[Tree, ...]" = ()
    value: Any = None


ARITHMETIC: Final = ("add", "subtract", "multiply", "floor_divide", "remainder", "minimum", "maximum")
TESTS: Final = ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")
OF_ONE: Final = ("negative", "absolute", "sign", "positive", "sqrt", "floor", "ceil", "rint", "trunc")
BITS: Final = ("bitwise_and", "bitwise_or", "bitwise_xor")
OPERATORS: Final[dict[str, Callable[..., Any]]] = {
    "add": lambda a, b: a + b, "subtract": lambda a, b: a - b, "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b, "floor_divide": lambda a, b: a // b, "remainder": lambda a, b: a % b,
    "less": lambda a, b: a < b, "less_equal": lambda a, b: a <= b, "greater": lambda a, b: a > b,
    "greater_equal": lambda a, b: a >= b, "equal": lambda a, b: a == b, "not_equal": lambda a, b: a != b,
    "bitwise_and": lambda a, b: a & b, "bitwise_or": lambda a, b: a | b, "bitwise_xor": lambda a, b: a ^ b,
    "left_shift": lambda a, b: a << b, "right_shift": lambda a, b: a >> b, "negative": lambda a: -a,
    "absolute": lambda a: abs(a), "invert": lambda a: ~a,
}  # fmt: skip


# ---- drawing
_KINDS: Final = (
    (*ARITHMETIC, "divide", "copysign", "nextafter", *OF_ONE, "where", "cast", "same", "real", "imag"),
    ("test", *BITS, "invert", "isnan", "isfinite", "isinf", "signbit", "where"),
    (
        *ARITHMETIC,
        *BITS,
        "left_shift",
        "right_shift",
        "negative",
        "absolute",
        "sign",
        "invert",
        "where",
        "cast",
        "same",
    ),
    ("add", "subtract", "multiply", "divide", "negative", "positive", "conj", "where", "cast", "same"),
)
"""The operations with a float, a bool, a whole number and a complex number for a result."""


def constants(dtype: Any) -> st.SearchStrategy[Any]:
    """Numbers that a type holds, extremes among them."""
    if dtype is bool_:
        return st.booleans()
    if dtype in WHOLES:
        bounds = np.iinfo(dtype)
        return st.one_of(st.sampled_from((0, 1, 2, 7)), st.integers(int(bounds.min), int(bounds.max)))
    if dtype in PARTS:
        return st.builds(complex, constants(f32), constants(f32))
    return st.sampled_from((0.0, -0.0, 0.5, 1.0, -1.5, 3.0, 1.702, 1e-3, float("inf")))


@st.composite
def trees(draw: st.DrawFn, parameters: Sequence[Any], dtype: Any, depth: int) -> Tree:
    """Draw a tree with a result of this element type, over parameters of these types."""
    same = [n for n, each in enumerate(parameters) if each is dtype]
    leaf = Tree("parameter", dtype, (), draw(st.sampled_from(same))) if same else None
    if depth == 0 or draw(st.integers(0, 5)) == 0:
        if leaf is not None:
            return leaf
        n = draw(st.integers(0, len(parameters) - 1))
        return convert(Tree("parameter", parameters[n], (), n), dtype)

    def below(of: Any) -> Tree:
        return draw(trees(parameters, of, depth - 1))

    kind = draw(st.sampled_from(_KINDS[1 if dtype is bool_ else 0 if dtype in REALS else 3 if dtype in PARTS else 2]))
    if kind == "test":
        of = draw(st.sampled_from(TYPES))
        return Tree(draw(st.sampled_from(TESTS[-2:] if of in PARTS else TESTS)), bool_, (below(of), below(of)))
    if kind in ("isnan", "isfinite", "isinf", "signbit"):
        part = below(draw(st.sampled_from(REALS if kind == "signbit" else (*REALS, *PARTS))))
        return Tree(kind, bool_, (number_of(part) if kind == "signbit" else part,))
    if kind == "same":  # one part used twice
        part = below(dtype)
        return Tree("multiply", dtype, (part, part))
    if kind == "cast":
        return convert(below(draw(st.sampled_from(TYPES))), dtype)
    if kind == "where":
        return Tree("where", dtype, (below(bool_), below(dtype), below(dtype)))
    if kind in ("real", "imag"):
        whole = [each for each, part_type in PARTS.items() if part_type is dtype]
        return Tree(kind, dtype, (below(whole[0]),)) if whole else below(dtype)
    if kind in (*OF_ONE, "invert", "conj"):
        return Tree(kind, dtype, (below(dtype),))
    left, right = below(dtype), below(dtype)
    right = number_of(right) if kind == "copysign" else right
    if draw(st.booleans()):
        number = Tree("constant", dtype, (), draw(constants(dtype)))
        left, right = (number, right) if draw(st.booleans()) else (left, number)
    return Tree(kind, dtype, (left, right))


def number_of(tree: Tree) -> Tree:
    """Return a tree with 1 in the place of NaNs, whose sign may be either."""
    one = Tree("constant", tree.dtype, (), 1.0)
    return Tree("where", tree.dtype, (Tree("isnan", bool_, (tree,)), one, tree))


def convert(tree: Tree, dtype: Any) -> Tree:
    """Return a tree with another element type. A float that becomes a whole number is brought into its range before."""
    if tree.dtype is dtype:
        return tree
    if tree.dtype in PARTS and dtype not in PARTS and dtype is not bool_:
        return convert(Tree("real", PARTS[tree.dtype], (tree,)), dtype)
    if tree.dtype in REALS and dtype in WHOLES:
        low, high = (0, 100) if np.iinfo(dtype).min == 0 else (-100, 100)
        bounds = [Tree("constant", tree.dtype, (), float(n)) for n in (low, high)]
        inside = Tree("minimum", tree.dtype, (Tree("maximum", tree.dtype, (tree, bounds[0])), bounds[1]))
        tree = Tree("where", tree.dtype, (Tree("isnan", bool_, (tree,)), bounds[1], inside))
    return Tree("cast", dtype, (tree,))


# ---- evaluating
def on_elements(tree: Tree, elements: Sequence[Any]) -> Any:
    """Return the element that a tree makes of the parameters' elements."""
    if tree.operation == "parameter":
        return elements[tree.value]
    if tree.operation == "constant":
        return tree.value
    values = [on_elements(each, elements) for each in tree.below]
    if tree.operation == "where" and not hasattr(values[1], "to") and not hasattr(values[2], "to"):
        values[1] = elements[0].to(tree.dtype) * 0 + values[1]
    if tree.operation == "cast":
        return values[0].to(tree.dtype)
    return (OPERATORS.get(tree.operation) or getattr(array, tree.operation))(*values)


def on_arrays(tree: Tree, arrays: Sequence[Array]) -> Any:
    """Return what NumPy makes of the parameters' arrays, one operation after the other."""
    dtype = np.dtype(tree.dtype)
    if tree.operation == "parameter":
        return arrays[tree.value]
    if tree.operation == "constant":
        return dtype.type(tree.value)
    values = [on_arrays(each, arrays) for each in tree.below]
    with np.errstate(all="ignore"):
        match tree.operation:
            case "cast" if tree.dtype is bool_:
                return values[0] != 0
            case "cast":
                return values[0].astype(dtype)
            case "where":
                return np.where(*values)
            case "minimum" | "maximum" if tree.dtype in REALS:
                return extremum(tree.operation, *np.broadcast_arrays(*values))
            case "nextafter" if dtype.itemsize == 2:  # NumPy's own of f16 leaves -0 where 0 is next
                after = np.nextafter(*np.broadcast_arrays(*values))
                return np.where(values[0] == values[1], values[1], after)
            case "multiply" if tree.dtype in PARTS:
                a, b = map(np.asarray, values)
                product: Array = np.empty(np.broadcast_shapes(a.shape, b.shape), dtype)
                product.real = a.real * b.real - a.imag * b.imag
                product.imag = a.real * b.imag + a.imag * b.real
                return product
            case operation if operation not in OPERATORS:
                return getattr(np, operation)(*values)
            case operation:
                return OPERATORS[operation](*values)


def extremum(name: str, a: Any, b: Any) -> Any:
    """IEEE 754-2019 `minimum` and `maximum`: a NaN wins, and -0 is below 0."""
    first = (a < b) | ((a == b) & np.signbit(a)) if name == "minimum" else (a > b) | ((a == b) & ~np.signbit(a))
    return np.where(np.isnan(a), a, np.where(np.isnan(b), b, np.where(first, a, b)))


def factor(a: Any, b: Any) -> Any:
    """The product of complex numbers by parts, in which 1 changes no bit."""
    if a == 1 or b == 1:
        return b if a == 1 else a
    found: Array = np.empty((), np.asarray(a).dtype)
    found.real, found.imag = a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real
    return found[()]


def samples(dtype: Any, count: int, seed: int) -> Array:
    """Return numbers of a type, with its extremes, zeros, infinities and NaNs among them."""
    if dtype in PARTS:
        both: Array = np.empty(count, dtype)
        both.real, both.imag = samples(PARTS[dtype], count, seed), samples(PARTS[dtype], count, seed + 1000)
        return both
    rng = np.random.default_rng(seed)
    if dtype is bool_:
        return rng.random(count) < 0.5
    if dtype in WHOLES:
        bounds = np.iinfo(dtype)
        found = rng.integers(bounds.min, bounds.max, count, dtype, endpoint=True)
        small = rng.random(count) < 0.6
        found[small] = rng.integers(0 if bounds.min == 0 else -9, 10, int(small.sum()))
        ends = np.array([bounds.min, bounds.max, 0, 1], dtype)
    else:
        found = (rng.standard_normal(count) * 10.0 ** rng.integers(-3, 4, count)).astype(dtype)
        whole = rng.random(count) < 0.3
        found[whole] = np.rint(found[whole].astype(np.float64)).astype(dtype)
        finfo: Any = ml_dtypes.finfo
        tiny = finfo(dtype).smallest_subnormal
        with np.errstate(all="ignore"):
            ends = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, float(tiny), float(finfo(dtype).max)]).astype(dtype)
    places = rng.random(count) < 0.2
    found[places] = ends[rng.integers(0, len(ends), int(places.sum()))]
    return found
