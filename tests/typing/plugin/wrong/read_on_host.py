"""NumPy is asked to make an array of a handle or of an op."""

import numpy as np

from dagpu import zeros
from tests.typing.plugin.kernels import vector


def asarray_of_a_tensor() -> None:
    print(np.asarray(vector()))  # E: dagpu-not-ready


def array_of_a_shared_tensor() -> None:
    print(np.array(vector().share(), copy=True))  # E: dagpu-not-ready


def asarray_of_an_op() -> None:
    print(np.asarray(zeros((8,))))  # E: dagpu-not-ready


def asarray_of_a_host_op() -> None:
    print(np.asarray(zeros((8,)).to_host()))  # E: dagpu-not-ready


def asanyarray_of_a_loan() -> None:
    t = vector()
    print(np.asanyarray(t.borrow()))  # E: dagpu-not-ready


def contiguous_array_of_a_tensor() -> None:
    print(np.ascontiguousarray(vector()))  # E: dagpu-not-ready


def array_of_a_partition() -> None:
    print(np.asarray(vector().partition((4,))))  # E: dagpu-not-ready


def in_a_comprehension() -> None:
    print([np.asarray(t) for t in (vector(), vector())])  # E: dagpu-not-ready


def memory_is_taken() -> None:
    t = vector()
    print(np.from_dlpack(t))
    print(t.shape)  # E: dagpu-use-after-move
