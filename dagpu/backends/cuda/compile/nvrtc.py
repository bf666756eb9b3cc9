"""NVRTC, the CUDA compiler as a library: it runs in this process, and is many times quicker than nvcc.

This module calls it through `cuda.bindings.nvrtc`, which has no type annotations; `Any` stays inside this module.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, final

from dagpu.common.errors import DeviceError

_COMPILATION = 6  # nvrtcResult NVRTC_ERROR_COMPILATION: the log has the source's errors
_INVALID_OPTION = 5  # nvrtcResult NVRTC_ERROR_INVALID_OPTION: the log names the option


@final
@dataclass(frozen=True, slots=True)
class Refusal:
    """A compiler's refusal of a source; `log` is the compiler's complete output."""

    log: str


class Toolchain(Protocol):
    """A CUDA compiler. Several threads may use it at once."""

    @property
    def name(self) -> str:
        """The compiler's name in messages."""
        ...

    @property
    def identity(self) -> str:
        """Text that differs between compilers that may compile one text differently: version, path."""
        ...

    def compile(self, text: str, file: str, options: Sequence[str]) -> bytes | Refusal:
        """Compile `text`, which comes from `file`, to a cubin. The result is empty if the options request other
        output."""
        ...


class Nvrtc(Toolchain, Protocol):
    """The interface of NVRTC, which tests implement too."""

    @property
    def major(self) -> int:
        """The major number of the CUDA release that NVRTC belongs to."""
        ...


@final
class BindingsNvrtc:
    """NVRTC through `cuda.bindings`. Compilation releases the GIL."""

    def __init__(self, module: Any) -> None:
        """`module` is `cuda.bindings.nvrtc`.

        Raises:
            RuntimeError: the NVRTC library is not installed.
        """
        self._nvrtc = module
        major, minor = self._call("nvrtcVersion")
        self._version = int(major), int(minor)

    @property
    def name(self) -> str:
        return "NVRTC {}.{}".format(*self._version)

    @property
    def identity(self) -> str:
        return self.name

    @property
    def major(self) -> int:
        return self._version[0]

    def compile(self, text: str, file: str, options: Sequence[str]) -> bytes | Refusal:
        """Compile `text` to a cubin.

        Raises:
            DeviceError: NVRTC failed for a reason outside the text and the options.
        """
        source, name = (part.encode("utf-8", "surrogateescape") for part in (text, file))
        program = self._call("nvrtcCreateProgram", source, name, 0, [], [])
        try:
            given = [option.encode("utf-8", "surrogateescape") for option in options]
            code = int(self._nvrtc.nvrtcCompileProgram(program, len(given), given)[0])
            if code:
                log = self._read(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog")
                if code not in (_COMPILATION, _INVALID_OPTION):
                    raise DeviceError(f"{self.name}: compiling {file} failed with {self._error(code)}. {_text(log)}")
                return Refusal(_text(log))
            return self._read(program, "nvrtcGetCUBINSize", "nvrtcGetCUBIN")
        finally:
            self._call("nvrtcDestroyProgram", program)

    def _read(self, program: object, size: str, get: str) -> bytes:
        """Return a result that NVRTC writes into a buffer of the caller's."""
        buffer = bytearray(int(self._call(size, program)))
        # cuda.bindings accepts any writable buffer. It would modify even a bytes object, which must not change.
        self._call(get, program, buffer)
        return bytes(buffer)

    def _call(self, function: str, *args: object) -> Any:
        """Call a function of NVRTC and return its result: an empty tuple, one value, or a tuple of several."""
        code, *results = getattr(self._nvrtc, function)(*args)
        if int(code):
            raise DeviceError(f"{function} failed with {self._error(int(code))}.")
        return results[0] if len(results) == 1 else tuple(results)

    def _error(self, code: int) -> str:
        return f"nvrtcResult {code} ({self._nvrtc.nvrtcResult(code).name})"


def _text(log: bytes) -> str:
    return log.rstrip(b"\0").decode("utf-8", "replace")


def load_nvrtc() -> BindingsNvrtc | None:
    """Return NVRTC; None if `cuda.bindings` or the library is not installed."""
    try:
        # By name: the module has no type annotations, and type checkers do not find it where CUDA is not installed.
        return BindingsNvrtc(import_module("cuda.bindings.nvrtc"))
    except (ImportError, RuntimeError, DeviceError):  # RuntimeError: the bindings are installed, the library is not
        return None
