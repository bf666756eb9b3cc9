"""The headers before each CUDA text as g++ has read them: reading them is most of the time that a kernel takes."""

import os
import tempfile
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Final, final

from dagpu.backends.host.cuda_text.compilers import CxxCompiler, Mode
from dagpu.backends.host.cuda_text.source_text import INCLUDE, header_texts
from dagpu.backends.kernel_text.disk_cache import DiskCache, digest

HEADER: Final = "dagpu_device.h"
"""The header that each text includes first."""


@final
class PrecompiledHeader:
    """The header, precompiled for a compiler and a mode. The file has no name, so that nothing of it is left when the
    process ends in any way."""

    def __init__(self, compiler: CxxCompiler, mode: Mode, cache: DiskCache) -> None:
        self._compiler, self._mode, self._cache = compiler, mode, cache
        self._file: int | None = None
        self._tried = False
        self._lock = threading.Lock()

    def link(self, folder: Path) -> None:
        """Let a compilation find the header in a folder of its own. Without it, the compiler reads the text: clang has
        another form, other systems have no way to a file without a name, and other options than dagpu's own may not
        fit."""
        if self._compiler.is_clang or not Path("/proc/self/fd").is_dir():
            return
        with self._lock:
            if not self._tried:
                self._tried = True
                self._file = self._made()
        if self._file is not None:
            (folder / f"{HEADER}.gch").symlink_to(f"/proc/{os.getpid()}/fd/{self._file}")

    def _made(self) -> int | None:
        """Return a descriptor of the file; None if the compiler makes none."""
        options = self._compiler.options(self._mode)
        key = digest([*header_texts(), *options, self._compiler.version, *self._compiler.command, str(INCLUDE)])
        code = self._cache.load(key)
        if code is None:
            code = self._compiled(options)
            if code is None:
                return None
            self._cache.store(key, code)
        descriptor, path = tempfile.mkstemp(prefix="dagpu-")
        Path(path).unlink()
        weakref.finalize(self, os.close, descriptor)
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(code)
        return descriptor

    def _compiled(self, options: tuple[str, ...]) -> bytes | None:
        with tempfile.TemporaryDirectory(prefix="dagpu-") as folder:
            made = Path(folder, "header.gch")
            ran = self._compiler.run(*options, "-x", "c++-header", str(INCLUDE / HEADER), "-o", str(made))
            return made.read_bytes() if not ran.returncode and made.is_file() else None


_headers: Final[dict[object, PrecompiledHeader]] = {}


def precompiled_header(compiler: CxxCompiler, mode: Mode, cache: Callable[[str], DiskCache]) -> PrecompiledHeader:
    """Return the header for a compiler and a mode. `cache` gives the cache on disk for a kind of files."""
    key = (compiler, mode)
    found = _headers.get(key)
    return found or _headers.setdefault(key, PrecompiledHeader(compiler, mode, cache("gch")))


os.register_at_fork(after_in_child=_headers.clear)  # a lock may be held by a thread that the child does not have
