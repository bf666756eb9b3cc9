"""NVIDIA's compilers of kernels: NVRTC, which runs in this process and is many times quicker, and nvcc, which supports
the host's headers and all options.

This module calls NVRTC through `cuda.bindings.nvrtc`, which has no type annotations; `Any` stays inside this module.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, final

from dagpu.common.errors import DeviceError

# ---- NVRTC


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


# ---- nvcc


def find_nvcc() -> str | None:
    """Return the path of nvcc: on the PATH, else in $CUDA_HOME, $CUDA_PATH or /usr/local/cuda; None if not found."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    places = [str(Path(home, "bin")) for home in homes if home]
    return shutil.which("nvcc") or shutil.which("nvcc", path=os.pathsep.join(places))


def find_toolkit_headers(nvcc: str | None, major: int) -> Path | None:
    """Return the folder with the CUDA headers (`cuda_fp16.h`), which NVRTC does not find by itself; None if not found.

    Headers installed as Python packages for CUDA `major` come first: they match an NVRTC that is installed as a package
    too. Next come the toolkit of $CUDA_HOME or $CUDA_PATH, the toolkit of nvcc, and /usr/local/cuda.
    """
    wheels = [Path(folder, "nvidia", f"cu{major}", "include") for folder in sys.path if folder]
    if major == 12:  # packages of CUDA 12 have a folder for each library
        wheels += [Path(folder, "nvidia", "cuda_runtime", "include") for folder in sys.path if folder]
    homes = [Path(home) for name in ("CUDA_HOME", "CUDA_PATH") if (home := os.environ.get(name))]
    homes += [Path(nvcc).resolve().parent.parent] if nvcc else []
    toolkits = [home / "include" for home in [*homes, Path("/usr/local/cuda")]]
    return next((folder for folder in [*wheels, *toolkits] if (folder / "cuda_fp16.h").is_file()), None)


@final
class Nvcc:
    """The nvcc at `path`."""

    def __init__(self, path: str) -> None:
        self.path = path

    @property
    def name(self) -> str:
        """The compiler's name in messages."""
        return "nvcc"

    @property
    def identity(self) -> str:
        """The executable, its version and the flags that it reads from the environment."""
        flags = [os.environ.get(name, "") for name in ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN")]
        return "\n".join(["nvcc", self.path, *flags, self._version])

    @cached_property
    def _version(self) -> str:
        return self._run(["--version"]).stdout

    def compile(self, text: str, file: str, options: Sequence[str]) -> bytes | Refusal:
        """Compile `text` to a cubin. `file` is not used: a `#line` in the text gives its place.

        Raises:
            OSError: nvcc cannot be started, or the disk has too little room for its temporary files.
        """
        with tempfile.TemporaryDirectory(prefix="dagpu-") as folder:
            source, cubin = Path(folder, "kernel.cu"), Path(folder, "kernel.cubin")
            source.write_text(text, encoding="utf-8", errors="surrogateescape")
            done = self._run(["-cubin", *options, "-o", str(cubin), str(source)])
            if done.returncode or not cubin.is_file():
                return Refusal(done.stdout + done.stderr)
            return cubin.read_bytes()

    def _run(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run nvcc, and return its output and exit status. The caller checks for failure."""
        command = [self.path, *arguments]
        return subprocess.run(
            command, check=False, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL
        )
