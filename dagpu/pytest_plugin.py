"""Fixtures for tests of programs with dagpu. pytest finds them where dagpu is installed."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from dagpu.testing import CheckedKernels


@pytest.fixture
def check_kernels() -> "Iterator[CheckedKernels]":
    """Check the CUDA text of each launch on the host in a test; see `dagpu.testing.checking_kernels`."""
    from dagpu.testing import checking_kernels  # here, so that other tests need not import it

    with checking_kernels() as checked:
        yield checked
