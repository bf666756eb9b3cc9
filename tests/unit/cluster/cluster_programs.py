"""Kernels and functions that workers run in the tests of real clusters: they wait for files, and end processes."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dagpu import DeviceLostError, In, Out, Tile, i32, kernel

_ADD = """__global__ void add_one(Tile<int, 1> y, View<const int, 1> x) { for (auto i : y) y[i] = x[i] + 1; }"""


@kernel(cuda=_ADD)
def add_one(y: Out[i32], x: In[i32]) -> None:
    """y = x + 1."""


@add_one.host
def _(y: Tile[i32], x: NDArray[i32]) -> None:
    y[...] = x[y.at] + i32(1)


class Await:
    """A function that notes its process in a folder, and returns its argument once the file `go` is there."""

    def __init__(self, folder: Path, name: str = "begun") -> None:
        self.folder = str(folder)
        self.name = name

    def __call__(self, x: NDArray[np.int32]) -> NDArray[np.int32]:
        folder = Path(self.folder)
        (folder / f"{self.name}-{os.getpid()}").touch()
        while not (folder / "go").exists():
            time.sleep(0.005)
        return x


def die(x: object) -> object:
    """End the process of the worker."""
    os.kill(os.getpid(), signal.SIGKILL)
    return x


def fail(x: object) -> object:
    """Raise an error of the user's."""
    raise ValueError("wrong on purpose")


def lose_device(x: object) -> object:
    """Fail as a part whose device is lost."""
    raise DeviceLostError("lost on purpose")


class ReadSlowly:
    """A value that notes the process which reads it from the network, and is read once the file `go` is there."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Callable[[str], "ReadSlowly"], tuple[str]]:
        return _read_slowly, (self.folder,)


def _read_slowly(folder: str) -> ReadSlowly:
    Await(Path(folder), "reading")(np.zeros(0, np.int32))
    return ReadSlowly(folder)


def folder_of(found: ReadSlowly) -> str:
    """Return the folder of a value that has been read."""
    return found.folder
