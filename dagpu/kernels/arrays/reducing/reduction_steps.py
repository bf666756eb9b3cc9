"""What each reduction does with elements: its number for nothing, how it combines two, and what it makes of the last.

The CUDA text and the NumPy functions of a step stand side by side. f16 and bf16 are reduced in f32, and the result is
rounded once.
"""

from typing import Any, Final, NamedTuple, final

import numpy as np

from dagpu.kernels.expressions.operations.cuda_operations import constant_text, operation_text
from dagpu.kernels.expressions.operations.element_operations import Domain
from dagpu.kernels.expressions.operations.numpy_operations import register_dtype


@final
class ReductionStep(NamedTuple):
    """A reduction: the operation that combines two numbers, and the element types that it accepts.

    `start` is what each element becomes: itself, its square, or whether it is not 0. `finish` is what becomes of the
    last number: itself, its square root ("sqrt"), its quotient by a count ("mean"), or the square root of that quotient
    ("root").
    """

    operation: str
    domain: Domain
    start: str = "itself"
    finish: str = "itself"


REDUCTIONS: Final[dict[str, ReductionStep]] = {
    "sum": ReductionStep("add", "number"),
    "prod": ReductionStep("multiply", "number"),
    "mean": ReductionStep("add", "float", finish="mean"),
    "norm": ReductionStep("add", "float", start="square", finish="sqrt"),
    "amin": ReductionStep("minimum", "number"),
    "amax": ReductionStep("maximum", "number"),
    "any": ReductionStep("bitwise_or", "any", start="test"),
    "all": ReductionStep("bitwise_and", "any", start="test"),
}
"""The reductions of elements as they are."""

STEPS: Final[dict[str, ReductionStep]] = {
    **REDUCTIONS,
    "var": ReductionStep("add", "float", finish="mean"),
    "std": ReductionStep("add", "float", finish="root"),
}
"""All reductions. `var` and `std` are of squares of deviations."""

COUNTED: Final = ("mean", "root")
"""The values of `finish` for which a kernel gets a count."""


def number_type(name: str, dtype: "np.dtype[Any]") -> "np.dtype[Any]":
    """Return the type in which a reduction of elements of this type combines numbers."""
    return np.dtype(np.bool_) if STEPS[name].start == "test" else register_dtype(dtype)


def result_type(name: str, dtype: "np.dtype[Any]") -> "np.dtype[Any]":
    """Return the element type of the result: that of the input, or bool."""
    return np.dtype(np.bool_) if STEPS[name].start == "test" else dtype


def identity(operation: str, dtype: "np.dtype[Any]") -> Any:
    """Return the number that changes no other when it is combined with it. For sums of floats this is -0."""
    match operation:
        case "add":
            return dtype.type(-0.0) if dtype.kind == "f" else dtype.type(0)
        case "multiply":
            return dtype.type(1)
        case "bitwise_or" | "bitwise_and":
            return np.bool_(operation == "bitwise_and")
        case _ if dtype.kind == "f":
            return dtype.type(np.inf if operation == "minimum" else -np.inf)
        case _:
            bounds = np.iinfo(dtype)
            return dtype.type(bounds.max if operation == "minimum" else bounds.min)


def identity_text(operation: str, dtype: "np.dtype[Any]") -> str:
    """Return `identity` as CUDA text."""
    return constant_text(identity(operation, dtype), dtype)


# ---- CUDA
def start_text(start: str, x: str) -> str:
    """Return the text of what an element in a register becomes."""
    return {"itself": x, "square": f"square({x})", "test": f"{x} != 0"}[start]


def finish_text(finish: str, x: str, dtype: "np.dtype[Any]") -> str:
    """Return the text of what the last number becomes."""
    quotient = f"{x} / count" if finish in COUNTED else x
    return operation_text("sqrt", dtype, (quotient,)).text if finish in ("sqrt", "root") else quotient
