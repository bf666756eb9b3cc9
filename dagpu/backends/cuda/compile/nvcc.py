"""nvcc as a compiler of kernels: slower than NVRTC, but it supports the host's headers and all options."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import final

from dagpu.backends.cuda.compile.nvrtc import Refusal


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
