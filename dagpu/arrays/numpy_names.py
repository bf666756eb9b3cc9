"""Names of NumPy's, and of the array API's, whose functions have another name here: what to write instead."""

from collections.abc import Collection
from typing import Final, NoReturn

from dagpu.common.places import leaves_run

_RENAMED: Final = {
    "max": "amax", "min": "amin", "concat": "concatenate", "absolute": "abs", "fabs": "abs", "power": "pow",
    "round": "rint", "around": "rint", "cumulative_sum": "cumsum", "permute_dims": "transpose", "dot": "matmul",
    "swapaxes": "transpose", "moveaxis": "transpose", "matrix_transpose": "transpose", "hstack": "concatenate",
    "vstack": "concatenate", "column_stack": "stack",
}  # fmt: skip
_OF_DAGPU: Final = ("arange", "empty", "eye", "full", "linspace", "ones", "rand", "randn", "zeros")
_OPERATORS: Final = {
    "add": "x + y", "subtract": "x - y", "multiply": "x * y", "divide": "x / y", "true_divide": "x / y",
    "floor_divide": "x // y", "remainder": "x % y", "mod": "x % y", "equal": "x == y", "not_equal": "x != y",
    "less": "x < y", "less_equal": "x <= y", "greater": "x > y", "greater_equal": "x >= y", "logical_and": "x & y",
    "logical_or": "x | y", "logical_xor": "x ^ y", "bitwise_and": "x & y", "bitwise_or": "x | y",
    "bitwise_xor": "x ^ y", "left_shift": "x << y", "right_shift": "x >> y",
}  # fmt: skip
_OF_ONE: Final = {"negative": "-x", "square": "x * x", "reciprocal": "1 / x", "logical_not": "~x", "invert": "~x"}


def _typed(text: str, count: int) -> str:
    """Return an expression of this text, for elements of a type that has its operations."""
    dtype = "bool_" if text[0] == "~" or any(sign in text for sign in "&|^") else "i32" if "<<" in text else "f32"
    dtype = "i32" if ">>" in text else dtype
    names = "x, y" if count == 2 else "x"
    return f"Write it in an expression: expr({', '.join([dtype] * count)})(lambda {names}: {text})"


NUMPY_NAMES: Final[dict[str, str]] = {
    **{name: f"Write array.{ours}" for name, ours in _RENAMED.items()},
    **{name: f"Write dagpu.{name}" for name in _OF_DAGPU},
    **{name: _typed(text, 2) for name, text in _OPERATORS.items()},
    **{name: _typed(text, 1) for name, text in _OF_ONE.items()},
    "asarray": "Write dagpu.from_host(x)",
    "astype": "Write dagpu.convert(t, f32)",
    "copy": "Write dagpu.dup(t)",
    "reshape": "Write t.reshape(shape)",
}
"""The cures, as sentences without their full stop."""


_ELEMENT_TYPES: Final = {
    "float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64", "int8": "i8", "int16": "i16",
    "int32": "i32", "int64": "i64", "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64",
    "complex64": "c64", "complex128": "c128",
}  # fmt: skip
PACKAGE_NAMES: Final[dict[str, str]] = {
    **{name: cure for name, cure in NUMPY_NAMES.items() if name not in _OF_DAGPU},
    **{name: f"Write dagpu.{ours}" for name, ours in _ELEMENT_TYPES.items()},
    **{f"{name}_like": f"Write dagpu.{name}(t.shape, t.dtype)" for name in ("empty", "ones", "zeros")},
    "asnumpy": "Write t.to_host().sync()",
    "ElementwiseKernel": "Write dagpu.expr",
    "RawKernel": "Write dagpu.kernel",
}
"""The cures for names of NumPy's and CuPy's that the package lacks, beside those of the functions of `dagpu.array`."""


@leaves_run
def refuse_name_of_package(name: str, of_array: Collection[str]) -> NoReturn:
    """Raise the error for a name that `dagpu` lacks, with what does the work of NumPy's or CuPy's of this name.
    `of_array` has the names of `dagpu.array`."""
    text = f"module 'dagpu' has no attribute {name!r}"
    cure = f"Write dagpu.array.{name}" if name in of_array else PACKAGE_NAMES.get(name)
    raise AttributeError(text if cure is None else f"{text}. {cure.replace('Write array.', 'Write dagpu.array.')}.")


@leaves_run
def refuse_name(name: str) -> NoReturn:
    """Raise the error for a name that `dagpu.array` lacks, with what does the work of NumPy's of this name."""
    text = f"module 'dagpu.array' has no attribute {name!r}"
    raise AttributeError(text if name not in NUMPY_NAMES else f"{text}. {NUMPY_NAMES[name]}.")
