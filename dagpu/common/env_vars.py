"""The environment variables that dagpu reads: their names, accepted values and defaults.

All modules read them through this module, so wrong values give the same error, and the documentation lists all of them.
"""

import math
import os
import shlex
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Generic, TypeVar, final

_T_co = TypeVar("_T_co", covariant=True)

variables: Final[Mapping[Any, Any]] = getattr(os.environ, "_data", os.environ)
"""The dict behind CPython's `os.environ`. A look-up takes 0.05 us here, and 0.9 us through `os.environ`."""
_decode: Final[Callable[[Any], str]] = str if variables is os.environ else os.environ.decodevalue


@final
class Variable(Generic[_T_co]):
    """One environment variable. An empty value counts as unset.

    Each use reads the variable again, because a program may set it at any time.
    """

    __slots__ = ("_default", "_last", "_read", "example", "key", "name", "takes")

    def __init__(self, name: str, takes: str, example: str, read: Callable[[str], _T_co], default: _T_co) -> None:
        self.name = name
        self.takes = takes
        """The accepted values, as a noun phrase for messages: "a whole number"."""
        self.example = example
        """An accepted value, as text, for messages."""
        self._read = read
        self._default = default
        self._last: tuple[Any, _T_co] | None = None
        """The last text that was read, as the dict has it, and its value."""
        self.key: Any = name if variables is os.environ else os.environ.encodekey(name)
        """The name as the dict has it."""

    def get(self) -> _T_co:
        """Return the value of the variable, or its default if it is unset.

        Raises:
            ValueError: the variable does not accept this value.
        """
        raw = variables.get(self.key)
        if not raw:
            return self._default
        last = self._last
        if last is not None and last[0] == raw:
            return last[1]
        text = _decode(raw)
        try:
            found = self._read(text)
        except ValueError:
            raise ValueError(f"{self.name}={text!r} is not {self.takes}. {self.cure}") from None
        self._last = raw, found
        return found

    @property
    def cure(self) -> str:
        """The cure for a wrong value: the last sentence of its message."""
        return f"Set {self.name}={self.example}, for example, or unset it."


def _switch(text: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    found = words.get(text.strip().lower())
    if found is None:
        raise ValueError(text)
    return found


def _whole_from(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        number = int(text)
        if number < least:
            raise ValueError(text)
        return number

    return read


def _absolute_path(text: str) -> Path:
    path = Path(text)
    if not path.is_absolute():
        raise ValueError(text)
    return path


def _library(text: str) -> str:
    if text not in ("torch", "cupy", "numba", "raw"):
        raise ValueError(text)
    return text


def _command(text: str) -> str:
    words = shlex.split(text)
    if not words or shutil.which(words[0]) is None:
        raise ValueError(text)
    return text


def _host_code(text: str) -> str:
    if text not in ("body", "cuda"):
        raise ValueError(text)
    return text


def _microseconds(text: str) -> float:
    number = float(text)
    if not 0 <= number < math.inf:
        raise ValueError(text)
    return number * 1e-6


CACHE_DIR: Final = Variable[Path | None](
    "DAGPU_CACHE_DIR", "the absolute path of a folder", "/tmp/dagpu", _absolute_path, None
)
"""The folder of compiled kernels. The path is absolute: a relative path would depend on the working directory."""
CHECKED: Final = Variable("DAGPU_CHECKED", "0 or 1", "1", _switch, False)
"""True compiles bounds checks into kernels that are declared without `checked`, and checks the calls of such foreign
ops."""
CLUSTER_NAMES: Final = Variable("DAGPU_CLUSTER_NAMES", "0 or 1", "0", _switch, True)
"""True puts the names of files and kernels into the keys of a cluster, which its dashboard shows."""
COMPILED: Final = Variable("DAGPU_COMPILED", "0 or 1", "1", _switch, True)
"""True reads calls by the compiled reader, where it was built. It is read once, when dagpu is imported."""
CXX: Final = Variable[str | None]("DAGPU_CXX", "the command of a C++ compiler", "g++", _command, None)
"""The C++ compiler that compiles the CUDA texts of kernels for the host; None for the first that is found."""
DEVICE: Final = Variable[str | None]("DAGPU_DEVICE", "the name of a device", "host", str, None)
"""The default device of ops."""
DIRECT: Final = Variable("DAGPU_DIRECT", "0 or 1", "1", _switch, True)
"""True runs a plan by the function that is written for it, where it has one."""
EXPLORE_SEED: Final = Variable("DAGPU_EXPLORE_SEED", "a whole number", "17", int, 0)
"""The seed of the execution order on explore devices."""
FOREIGN: Final = Variable[str | None]("DAGPU_FOREIGN", "torch, cupy, numba or raw", "cupy", _library, None)
"""The body of foreign ops that runs on a GPU, where an op has one of this kind; None for the first that can run."""
HOST: Final = Variable("DAGPU_HOST", "body or cuda", "cuda", _host_code, "body")
"""What of a kernel runs on the host: its host body where it has one, or its CUDA text even so."""
HOST_CHECKS: Final = Variable("DAGPU_HOST_CHECKS", "0 or 1", "0", _switch, True)
"""True checks each access of a CUDA text that runs on the host."""
HOST_DEVICES: Final = Variable("DAGPU_HOST_DEVICES", "a whole number, 1 or more", "8", _whole_from(1), 8)
"""The number of host devices."""
MAX_CLOSURES: Final = Variable("DAGPU_MAX_CLOSURES", "a whole number, 1 or more", "100000", _whole_from(1), 100_000)
"""The maximum number of closures that one run calls, which stops an endless chain of `then`."""
MEASURE: Final = Variable("DAGPU_MEASURE", "0 or 1", "0", _switch, True)
"""True measures host bodies in the first runs of a plan, and has later plans use the times of earlier runs."""
PINNED_BYTES: Final = Variable[int | None](
    "DAGPU_PINNED_BYTES", "a number of bytes", "1073741824", _whole_from(0), None
)
"""The limit of page-locked memory in bytes; None for a quarter of the machine's memory."""
SPIN_US: Final = Variable[float | None](
    "DAGPU_SPIN_US", "a number of microseconds, 0 or more", "20", _microseconds, None
)
"""The time that a wait polls before it sleeps: set in microseconds, read in seconds. None: the backend chooses."""
VERIFY: Final = Variable("DAGPU_VERIFY", "0 or 1", "1", _switch, True)
"""True verifies each plan before it runs."""

raw_value: Final[Callable[[Any], Any]] = variables.get
"""Returns the text of a variable by its `key`, as the environment has it, to notice that it has changed."""


VARIABLES: Final[tuple[Variable[object], ...]] = (
    CACHE_DIR, CHECKED, CLUSTER_NAMES, COMPILED, CXX, DEVICE, DIRECT, EXPLORE_SEED, FOREIGN, HOST, HOST_CHECKS,
    HOST_DEVICES, MAX_CLOSURES, MEASURE, PINNED_BYTES, SPIN_US, VERIFY,
)  # fmt: skip
"""All environment variables that dagpu reads."""
