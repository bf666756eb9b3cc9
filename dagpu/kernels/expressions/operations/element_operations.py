"""The operations of an expression: the element types that each accepts, and the element type of its result.

The CUDA text of an operation is in `cuda_operations`, its NumPy function in `numpy_operations`. Both follow this table.

f16 and bf16 are computed in f32, and each operation rounds its result once to the element type. For `+ - * /` and
`sqrt` this is the exact result, rounded once (Figueroa, "When is double rounding innocuous?", 1995).
"""

from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np

from dagpu.common.dtypes import FLOATING, SUPPORTED

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
