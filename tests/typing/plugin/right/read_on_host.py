"""Arrays of the host that are made of what a run gives, and of what is shared."""

import numpy as np

from dagpu import zeros
from tests.typing.plugin.kernels import total, vector


def asarray_of_a_result() -> None:
    print(np.asarray(zeros((8,)).to_host().sync()))


def array_of_a_list() -> None:
    print(np.array([total(t.borrow()) for t in (vector(), vector())]))


def array_of_a_shape() -> None:
    t = vector()
    print(np.asarray(t.shape), t.shape)


def memory_is_shared() -> None:
    s = vector().share()
    print(np.from_dlpack(s))
    print(s.shape)


def memory_is_taken() -> None:
    print(np.from_dlpack(vector()))


def metadata() -> None:
    t = vector()
    print(np.dtype(t.dtype), np.prod(t.shape), t.shape)


def in_a_map() -> None:
    print(zeros((8,)).to_host().map(lambda a: np.asarray(a).sum()).sync())
