"""Arrays of any layout, and the public calls of expressions."""

from typing import Any, Final, NamedTuple

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from dagpu import Tensor, from_host
from dagpu.backends.host.numpy_initializers import write
from dagpu.ops.initializers import Uniform


def drawn(recipe: Uniform, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return the numbers of a recipe, computed by itself."""
    found = np.empty(shape, dtype)
    write(recipe, found)
    return found


class Cut(NamedTuple):
    """A tensor on the current device, the ranges that are lent of it, and their contents in NumPy."""

    tensor: Tensor[Any]
    ranges: tuple[slice, ...]
    array: NDArray[Any]

    def lent(self) -> Any:
        """A borrow of the ranges."""
        return self.tensor.slice(*self.ranges)


def cut(array: NDArray[Any], ranges: tuple[slice, ...]) -> Cut:
    """Return a part of an array on the current device, which has gaps and may run backwards."""
    return Cut(from_host(array).sync(), ranges, array[ranges])


steps = st.sampled_from((slice(None), slice(None), slice(None, None, 2), slice(1, None), slice(None, None, -1)))

ARRAY_CALLS: Final = {
    **dict.fromkeys(("expr", "Elem.to", "Expression.__call__"), "test_wrong_array_arguments tries them"),
    "Elem.equals": "it is ==, an operator",
    **dict.fromkeys(("Expression.into", "Expression.update"), "test_wrong_array_arguments tries them"),
    **dict.fromkeys(
        ("Expression.build", "Expression.broadcast", "Expression.by_position", "Expression.check"),
        "functions of dagpu.array call it",
    ),
    **dict.fromkeys(
        [f"Expression.{name}" for name in ("sum", "prod", "mean", "norm", "amin", "amax", "any", "all", "softmax")],
        "tests/unit/kernels/arrays/test_fused_reductions.py",
    ),
    **dict.fromkeys(("Expression.compile", "Expression.kernel_for"), "tests/unit/backends/cuda/compile"),
}
"""Public calls of expressions, which have a table of their own for wrong arguments."""
