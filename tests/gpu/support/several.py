"""Several GPUs for a test: those of the machine, or simulated ones that rehearse it.

`DAGPU_TEST_SIMULATED=4` has four simulated GPUs stand in for the machine's. The tests need a default device then, which
`DAGPU_TEST_DEVICE=host:0` gives them. Kernels that have no body for the host cannot run on simulated GPUs.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Final

import pytest

from dagpu import Device, devices
from tests.simulated.cuda import installed

SIMULATED: Final = int(os.environ.get("DAGPU_TEST_SIMULATED", "0"))
"""The number of simulated GPUs; 0 for the machine's own."""


@contextmanager
def several_gpus(count: int) -> Iterator[Sequence[Device]]:
    """Give the first `count` GPUs, and skip the test where there are fewer."""
    with installed(0, SIMULATED, memory=1 << 29) if SIMULATED else nullcontext():
        found = [each for each in devices() if each.kind == "cuda"]
        if len(found) < count:
            pytest.skip(f"the test needs {count} GPUs, and here are {len(found)}")
        yield found[:count]
