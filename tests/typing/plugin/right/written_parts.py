"""Parts that lie in their sources, with data that fits, and such as the run time alone can judge."""

import numpy as np
import pytest

from dagpu import SourceError, f32, source, zeros
from tests.typing.plugin.kernels import vector


class Notebook:
    """No source, with a method of that name."""

    def write(self, at: slice, data: object) -> None: ...


def parts() -> None:
    s = source(zeros((4, 8)).sync())
    s.write(slice(0, 2), zeros((2, 8)).sync())
    s.write((slice(1, 4), slice(-2, -1)), zeros((3, 1)).sync())
    s.write((slice(None), slice(6, None)), zeros((4, 2)).sync())
    s.write((slice(2, 2),), zeros((0, 8)).sync())
    s.write((slice(1, -1, 1), slice(None, 4, None)), np.zeros((2, 4), f32))


def ends_that_are_not_known(begin: int = 2, rows: int = 2) -> None:
    s = source(zeros((4, 8)).sync())
    s.write((slice(begin, begin + rows),), zeros((rows, 8)).sync())
    s.write((slice(-rows, 4),), zeros((2, 8)).sync())
    for row in range(4):
        s.write((slice(row, row + 1), slice(0, 8)), zeros((1, 8)).sync())


def an_expected_error() -> None:
    s = source(vector())
    with pytest.raises(SourceError):
        s.write(slice(4, 2), np.zeros(2, f32))
    try:
        s.write(slice(0, 8, 2), np.zeros(4, f32))
    except SourceError:
        pass


def no_source() -> None:
    Notebook().write(slice(4, 2), zeros((3,)).sync())
