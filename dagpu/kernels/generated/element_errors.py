"""The errors for uses of an element that its expression cannot follow, each with a cure."""

from collections.abc import Callable
from typing import Any, Final, NoReturn

from dagpu.common.errors import KernelArgumentError
from dagpu.common.origin import Origin, describe, here
from dagpu.common.wrong_arguments import no_attribute
from dagpu.handles import ARRAY_NAMES, HANDLE_NAMES
from dagpu.kernels.expressions.operations.element_operations import OPERATIONS

_REDUCTIONS: Final = frozenset(
    ("all", "amax", "amin", "any", "argmax", "argmin", "cumsum", "max", "mean", "min", "norm", "prod", "softmax", "std",
     "sum", "var")
)  # fmt: skip

REDUCE: Final = (
    "Reduce the results of the expression, expr(f32)(lambda x: x * x).sum(axis), or reduce the tensor before and pass "
    "the result as one more argument"
)
"""The cure for a function of a whole tensor in an expression."""

_CHOICE: Final = "For a choice say where(condition, a, b); & | ~ stand for and, or, not; 0 < x < 1 is (0 < x) & (x < 1)"
_NUMBER: Final = (
    "The functions of math are in dagpu.array: array.sqrt(x), array.floor(x). Another element type is x.to(i32)"
)
_ITEM: Final = (
    "It is one element of a tensor, and has no items: slice the tensor before the call, or write a kernel (@kernel), "
    "which sees its neighbours"
)


def _no_value(cure: str) -> Callable[..., NoReturn]:
    """Return a method that refuses to give the value of an element."""

    def refuse(element: object, *_args: object) -> NoReturn:
        kind = repr(element).removeprefix("<Elem of ").removesuffix(">")
        raise TypeError(
            f"an element of type {kind} was asked for its value at {describe(here())}, while its expression is traced. "
            f"{cure}."
        )

    return refuse


refuse_choice: Final = _no_value(_CHOICE)
refuse_number: Final = _no_value(_NUMBER)
refuse_item: Final = _no_value(_ITEM)


def refuse_element_name(element: Any, name: str) -> NoReturn:
    """Raise for an unknown attribute, with a cure if arrays or handles have it. It is the `__getattr__` of elements.

    Raises:
        AttributeError: always.
    """
    if name in ("astype", "type", "float", "int"):
        cure = "Convert it: x.to(f32)"
    elif name in _REDUCTIONS:
        cure = f"It is one element. {REDUCE}"
    elif name in OPERATIONS and OPERATIONS[name].shown.isidentifier():
        cure = f"Use the function: array.{OPERATIONS[name].shown}(x)"
    elif name in ARRAY_NAMES or name in HANDLE_NAMES:
        cure = "It is one element: change the form of the tensor before the call"
    else:
        raise no_attribute(element, name)
    raise AttributeError(f"{element!r} at {describe(here())} has no {name!r}. {cure}.")


def refuse_call_in_expression(what: str, origin: Origin, cure: str) -> NoReturn:
    """Raise for an element that is passed where a tensor is wanted. `what` names the call.

    Raises:
        KernelArgumentError: always.
    """
    raise KernelArgumentError(
        f"{what} at {describe(origin)}: got an element of an expression, but it takes tensors. {cure}."
    )
