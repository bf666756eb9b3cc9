"""NVRTC, the CUDA compiler as a library: in-process, and many times quicker than nvcc.

It is reached through `cuda.bindings.nvrtc`, which carries no types; `Any` stays inside this module.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, final

from dagpu.common.errors import DeviceError

_COMPILATION = 6  # nvrtcResult NVRTC_ERROR_COMPILATION: the log says what is wrong with the source
_INVALID_OPTION = 5  # nvrtcResult NVRTC_ERROR_INVALID_OPTION: the log says which


@final
@dataclass(frozen=True, slots=True)
class Refusal:
    """A compiler's refusal of a source; `log` is all that it wrote."""

    log: str


class Toolchain(Protocol):
    """A CUDA compiler. Both members and the method may be used from many threads at once."""

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    @property
    def identity(self) -> str:
        """All that can make it compile one text differently: its version, where it was found."""
        ...

    def compile(self, text: str, file: str, options: Sequence[str]) -> bytes | Refusal:
        """The cubin of `text`, which comes from `file`; empty if the options ask for something else."""
        ...


class Nvrtc(Toolchain, Protocol):
    """NVRTC, or what stands in for it in a test."""

    @property
    def major(self) -> int:
        """The major number of the CUDA release it comes from."""
        ...


@final
class BindingsNvrtc:
    """NVRTC through `cuda.bindings`; compiling releases the GIL."""

    def __init__(self, module: Any) -> None:
        """`module` is `cuda.bindings.nvrtc`.

        Raises:
            RuntimeError: the library itself is not installed.
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
        """The cubin of `text`.

        Raises:
            DeviceError: NVRTC failed for another reason than the text and the options.
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
        """A result that NVRTC writes into a buffer of the caller's."""
        buffer = bytearray(int(self._call(size, program)))
        # cuda.bindings takes any writable buffer; a bytes object would be changed in place, behind Python's back.
        self._call(get, program, buffer)
        return bytes(buffer)

    def _call(self, function: str, *args: object) -> Any:
        """The result of a call: nothing, one value, or a tuple of several."""
        code, *results = getattr(self._nvrtc, function)(*args)
        if int(code):
            raise DeviceError(f"{function} failed with {self._error(int(code))}.")
        return results[0] if len(results) == 1 else tuple(results)

    def _error(self, code: int) -> str:
        return f"nvrtcResult {code} ({self._nvrtc.nvrtcResult(code).name})"


def _text(log: bytes) -> str:
    return log.rstrip(b"\0").decode("utf-8", "replace")


def load_nvrtc() -> BindingsNvrtc | None:
    """NVRTC, if `cuda.bindings` and the library are installed."""
    try:
        # By name: the module has no types, and where CUDA is not installed no type checker finds it at all.
        return BindingsNvrtc(import_module("cuda.bindings.nvrtc"))
    except (ImportError, RuntimeError, DeviceError):  # RuntimeError: the bindings are there, the library is not
        return None
