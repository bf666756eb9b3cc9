"""What the stand-ins for libraries have in common: errors that a test asks for, and the memory at an address."""

from threading import get_ident
from typing import final

import numpy as np
from numpy.typing import NDArray

from tests.simulated.gpu import SimulatedGpu
from tests.simulated.machine import Machine


class LibraryError(Exception):
    """An error of a stand-in, as the bindings raise it."""


@final
class FailingCalls:
    """The calls of functions that were made, and those that are to fail."""

    def __init__(self) -> None:
        self.failing: dict[str, int] = {}
        """For a name of a function, the number of the call from now on that fails: 1 for the next."""
        self.made: list[str] = []
        self.threads: dict[str, int] = {}
        """The thread that has made the last call of a function."""

    def call(self, name: str) -> None:
        """Note a call; raise an error if it is to fail."""
        self.made.append(name)
        self.threads[name] = get_ident()
        if name in self.failing:
            self.failing[name] -= 1
            if not self.failing[name]:
                del self.failing[name]
                raise LibraryError(f"{name}: EXECUTION_FAILED (13)")


def current_gpu(machine: Machine) -> SimulatedGpu:
    """Return the GPU whose context is current on this thread."""
    assert machine.stack(), "no context is current"
    return machine.stack()[-1]


def bytes_on(gpu: SimulatedGpu, address: int, nbytes: int) -> NDArray[np.uint8]:
    """Return the bytes at an address; others, if the device is lost by that."""
    found = gpu.bytes_at(address, nbytes)
    return np.zeros(nbytes, np.uint8) if found is None else found
