"""Page-locked memory for the marks that kernels leave (`tests.support.marks`)."""

from collections.abc import Iterator

import numpy as np
import pytest

from dagpu import device
from tests.gpu.support.gpu_support import NAME, theirs
from tests.support.marks import LENGTH, MARKS


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
