"""The tests of tests/test_once.py again, on the GPU, whose kernels leave their marks in page-locked memory."""

from collections.abc import Iterator

import numpy as np
import pytest

from dagpu import device
from tests.gpu.support import NAME, theirs
from tests.marks import LENGTH, MARKS
from tests.test_once import *  # noqa: F403  # every test and fixture there is


@pytest.fixture(autouse=True, scope="module")
def marks_of_the_gpu() -> Iterator[None]:
    """CuPy's page-locked memory has one address for the host and for every GPU."""
    if device(NAME).kind != "cuda":
        yield
        return
    words = theirs("cupyx").zeros_pinned(LENGTH, np.int32)
    MARKS.use(words, words.ctypes.data)
    yield
    MARKS.use(None, 0)
