"""Parts of sources are written that leave elements out, end before they begin, or have not the shape of the data."""

import numpy as np

from dagpu import f32, source, zeros
from tests.typing.plugin.kernels import vector


def with_a_step() -> None:
    s = source(vector())
    s.write((slice(0, 8, 2),), np.zeros(4, f32))  # E: dagpu-source-part


def backwards() -> None:
    s = source(vector())
    s.write(slice(4, 2), np.zeros(2, f32))  # E: dagpu-source-part


def backwards_from_the_end() -> None:
    s = source(np.zeros((8, 8), f32))
    s.write((slice(None), slice(-2, -4)), np.zeros((8, 2), f32))  # E: dagpu-source-part


def by_numbers_of_variables() -> None:
    s, begin = source(vector()), 6
    s.write((slice(begin, begin - 2),), np.zeros(2, f32))  # E: dagpu-source-part


def data_of_another_length() -> None:
    s = source(vector())
    s.write((slice(0, 4),), zeros((5,)).sync())  # E: dagpu-source-part


def data_of_another_length_from_the_end() -> None:
    s = source(vector())
    s.write((slice(-4, -1),), zeros((4,)).sync())  # E: dagpu-source-part


def data_of_too_few_axes() -> None:
    s, t = source(zeros((4, 4)).sync()), zeros((16,)).sync()
    s.write((slice(0, 4), slice(0, 4)), t)  # E: dagpu-source-part


def shared_data() -> None:
    s, t = source(vector()), zeros((3,)).sync().share()
    s.write(slice(4), t)  # E: dagpu-source-part


def data_by_name() -> None:
    source(vector()).write((slice(2, 4),), zeros((2, 1)).sync().reshape((1, 2)))  # E: dagpu-source-part
