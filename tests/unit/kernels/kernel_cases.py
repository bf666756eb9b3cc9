"""Kernels, partitions and refusals that the tests of kernels share."""

import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

from dagpu.common.errors import KernelArgumentError, MovedError
from dagpu.common.layout import Layout, f32, strides_of
from dagpu.common.places import describe
from dagpu.handles import HandleState, Tensor
from dagpu.handles.device_handles import Device
from dagpu.handles.handle_state import Storage
from dagpu.handles.tensors import storage_key
from dagpu.kernels.decorator import In, Kernel, Lazy, Out, kernel
from dagpu.ops.compose import value

HOST = Device("host", 0, cast(Any, None))

SAXPY = """
__global__ void saxpy(Tile<float, 2> y, float a, View<const float, 2> x) {
    for (auto i : y) y[i] += a * x[i];
}
"""


@kernel(cuda=SAXPY)
def saxpy(y: Out[f32], a: float, x: In[f32]) -> None:
    """y += a * x."""


@kernel(cuda="""__global__ void split(Tile<float, 1> y, Tile<float, 1> z, View<const float, 1> x, int n) {}""")
def split(y: Out[f32], z: Out[f32], x: In[f32], n: int = 7) -> None: ...


@kernel(cuda="__global__ void lazily(Tile<float, 1> y, float a) {}")
def lazily(y: Out[f32], a: Lazy[float]) -> None: ...


@kernel(cuda="__global__ void add(Tile<float, 1> y, View<const float, 1> a, View<const float, 1> b) {}")
def add(y: Out[f32], a: In[f32], b: In[f32]) -> None: ...


def tensor(shape: tuple[int, ...] = (16, 16), dtype: Any = f32) -> Tensor[Any]:
    """An owned tensor that has memory in name only."""
    element = np.dtype(dtype)
    layout = Layout(element, shape, strides_of(shape, element.itemsize), 0)
    return Tensor(HandleState(Tensor, Storage(HOST, math.prod(shape) * element.itemsize), layout, None))


def cut(shape: tuple[int, ...] = (16, 16), tile: tuple[int, ...] = (4, 4), dtype: Any = f32) -> Any:
    """A partition of a fresh tensor."""
    return tensor(shape, dtype).partition(tile)


def lazy(handle: object) -> Any:
    """An op that yields `handle`."""
    return value(handle)


def refused(call: Callable[..., object], *args: object, **kwargs: object) -> str:
    """The message with which a call is refused; the call itself is on the line of `return` below."""
    with pytest.raises(KernelArgumentError) as caught:
        call(*args, **kwargs)
    return str(caught.value)


def alive(handle: Any) -> bool:
    """Return True if the handle can still be used."""
    try:
        storage_key(handle)
    except MovedError:
        return False
    return True


def declared_line(k: Kernel[Any]) -> str:
    return describe(k.spec.origin)
