"""Shapes, arrays and uses of handles that their tests share."""

import inspect
from typing import Any

import numpy as np
from hypothesis import strategies as st

from dagpu import Tensor, zeros

shapes = st.lists(st.integers(0, 6), max_size=3).map(tuple)


def line(back: int = 0) -> str:
    """Return the caller's `file:line`, or that of `back` lines before."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return f"{frame.f_back.f_code.co_filename}:{frame.f_back.f_lineno - back}"


def tensor(shape: tuple[int, ...] = (4, 6)) -> Tensor[Any]:
    return zeros(shape).sync()


def counted(shape: tuple[int, ...]) -> "np.ndarray[Any, np.dtype[np.float32]]":
    return np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
