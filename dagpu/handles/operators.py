"""The operators of ops and tensors: each calls `OPERATE`. Their types are in `operators.pyi`."""

from collections.abc import Callable
from typing import Any, Final, Generic

import numpy as np
from typing_extensions import TypeVar

from dagpu.common.frozen import Slot
from dagpu.common.places import Origin, describe, here, leaves_run

_T = TypeVar("_T")
_L = TypeVar("_L")

OPERATE: Final = Slot[Callable[[str, tuple[Any, ...], Origin], Any]]("dagpu.kernels.operators")
"""Builds the op of an operator. It is a slot, because handles cannot import kernels."""

BINARY: Final = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "floordiv": "floor_divide",
    "mod": "remainder", "pow": "power", "matmul": "matmul", "lshift": "left_shift", "rshift": "right_shift",
    "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
}  # fmt: skip
"""The operations of the operators with a reflected form, by their names in Python."""
COMPARISONS: Final = {
    "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal", "ne": "not_equal",
}  # fmt: skip
UNARY: Final = {"neg": "negative", "pos": "positive", "abs": "absolute", "invert": "invert"}
UFUNCS: Final = {
    **{name: name for name in (*BINARY.values(), *COMPARISONS.values(), *UNARY.values())}, "true_divide": "divide",
}  # fmt: skip
"""The operations by the names of NumPy's functions, which the operators of its scalars call."""


class Operators(Generic[_T, _L]):
    """The base class of ops with results of type `T`, and of handles. Operators build ops; see dagpu.kernels.operators.

    Operands have one element type: it is not converted, so say `convert(t, f32)`. A number takes the type of the tensor
    beside it. Shapes broadcast by NumPy's rules. Owned tensors among the operands move into the op.

    `==` is element-wise, as in NumPy, and the hash is that of the identity.
    """

    __slots__ = ()

    __hash__ = object.__hash__

    @leaves_run
    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """Accept an operator with a scalar or an array of NumPy on the left; refuse functions of NumPy."""
        name = UFUNCS.get(ufunc.__name__)
        if method == "__call__" and name is not None and not options:
            # NumPy makes an array of a scalar that it compares.
            operands = [x[()] if isinstance(x, np.ndarray) and not x.ndim else x for x in inputs]
            return OPERATE.value(name, tuple(operands), here())
        return np.asarray(self)  # raises, with the cure


def _operator(name: str) -> Callable[..., Any]:
    @leaves_run
    def operator(*operands: Any) -> Any:
        return OPERATE.value(name, operands, here())

    return operator


def _reflected(name: str) -> Callable[..., Any]:
    @leaves_run
    def operator(self: Any, other: Any) -> Any:
        return OPERATE.value(name, (other, self), here())

    return operator


@leaves_run
def refuse_divmod(self: object, _other: object) -> Any:
    """Raise for `divmod`. It is the `__divmod__` of handles and ops.

    Raises:
        TypeError: always.
    """
    raise TypeError(f"divmod() at {describe(here())} of {self!r} would be two ops. Build both: x // y, and x % y.")


for _name, _operation in (*BINARY.items(), *COMPARISONS.items(), *UNARY.items()):
    setattr(Operators, f"__{_name}__", _operator(_operation))
for _name, _operation in BINARY.items():
    setattr(Operators, f"__r{_name}__", _reflected(_operation))
