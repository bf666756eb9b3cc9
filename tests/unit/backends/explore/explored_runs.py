"""Runs on the explore device, for tests."""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

from dagpu import SchedulingPolicy, StreamInterpreter, device, ones, use_device, use_interpreter
from dagpu.testing import exploring

HERE = "explore:0"


@contextmanager
def explored(seed: int, policy: SchedulingPolicy | None = None) -> Iterator[None]:
    """Runs are on the explore device, also those of tests that take their device from the environment."""
    before = os.environ["DAGPU_DEVICE"]
    os.environ["DAGPU_DEVICE"] = HERE
    try:
        with use_device(HERE), use_interpreter(StreamInterpreter(HERE, policy)), exploring(seed=seed) as found:
            yield
            if not found.explored:  # an op that does no work on a device may be among those that a strategy draws
                ones((1,)).sync()
    finally:
        os.environ["DAGPU_DEVICE"] = before


def used() -> int:
    """Bytes held on the device. Errors that have been caught leave cycles."""
    gc.collect()
    return device(HERE).memory_used()
