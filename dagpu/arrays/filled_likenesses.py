"""`zeros_like`, `ones_like` and `full_like`: new tensors of the shape and the element type of another one.

They read the layout of their argument, and neither its contents nor move it. An op of which only a run shows the result
is run for its layout.
"""

from typing import Any

import numpy as np
from typing_extensions import TypeVar

from dagpu.arrays.reductions import checked_input
from dagpu.common.layout import Layout
from dagpu.common.places import here, leaves_run
from dagpu.handles import Tensor
from dagpu.kernels.annotations import In
from dagpu.kernels.generated_launch import AnyOp, array_call
from dagpu.ops.base import DeviceOp
from dagpu.ops.creation import filled

_D = TypeVar("_D", bound=np.generic)


@leaves_run
def zeros_like(x: In[_D]) -> DeviceOp[Tensor[_D], Any]:
    """Return a new tensor of zeros, of the shape and the element type of `x`, which does not move.

    For another element type or shape there is `dagpu.zeros(x.shape, f32)`.

    Args:
        x: a tensor, or an op whose result is one.

    Raises:
        KernelArgumentError: `x` is a number.
    """
    return _filled_like("zeros_like", x, 0)


@leaves_run
def ones_like(x: In[_D]) -> DeviceOp[Tensor[_D], Any]:
    """Return a new tensor of ones. Argument and errors are those of `zeros_like`."""
    return _filled_like("ones_like", x, 1)


@leaves_run
def full_like(x: In[_D], fill_value: complex) -> DeviceOp[Tensor[_D], Any]:
    """Return a new tensor with `fill_value` in each element, of the shape and the element type of `x`.

    Args:
        x: a tensor, or an op whose result is one. It does not move.
        fill_value: a number that elements of this type can have.

    Raises:
        KernelArgumentError: `x` is a number.
        ShapeError: elements of this type cannot have the value, as for `dagpu.full`.
    """
    return _filled_like("full_like", x, fill_value)


def _filled_like(name: str, x: Any, number: Any) -> AnyOp:
    origin = here()

    def build(_: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        layout = checked_input(name, layouts[0], "any", origin)
        return filled(layout.shape, layout.dtype, number, name, origin)

    return array_call(name, ("x",), (x,), build, origin)
