"""Cubins on disk, and the key that says which cubin a source has.

It stands in for PyCUDA's own cache, which serves nvcc alone, where most kernels here are compiled by NVRTC.
An entry is written beside its place and moved there, so another process sees a whole one or none; one that
does not match its checksum is as good as none, and so is a folder that cannot be read or written. Entries are
never rewritten with anything else: the folder may be deleted at any time.

What is loaded runs on the GPU, in this process, and a checksum says nothing of who wrote it. So only a folder, and an
entry, that belongs to this user and that nobody else can write to is trusted.
"""

import hashlib
import os
import secrets
import stat
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, final

from dagpu.common.env_vars import CACHE_DIR

_FORMAT = b"dagpu cubin 1\n"
"""Begins every entry, and is part of every key."""


def default_cache_dir() -> Path | None:
    """$DAGPU_CACHE_DIR, else `dagpu` in $XDG_CACHE_HOME or ~/.cache; None where there is no home.

    Raises:
        ValueError: $DAGPU_CACHE_DIR is relative.
    """
    if (given := CACHE_DIR.get()) is not None:
        return given
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if base.is_absolute():  # the XDG specification: a relative one is to be ignored
        return base / "dagpu"
    try:
        return Path.home() / ".cache" / "dagpu"
    except RuntimeError:
        return None


def digest(parts: Iterable[str | bytes]) -> str:
    """SHA-256 over `parts`, each with its length, so that no two lists run together."""
    total = hashlib.sha256(_FORMAT)
    for part in parts:
        data = part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "little"))
        total.update(data)
    return total.hexdigest()


_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH
"""Writable by the group or by everybody."""
_READ: Final = os.O_RDONLY | os.O_CLOEXEC
_WRITE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@final
class DiskCache:
    """Cubins by key, in one folder; without a folder it is always empty. No method raises OSError.

    Where the folder or an entry is not this user's alone, it is done without, and a RuntimeWarning says so once.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._warned = False

    def load(self, key: str) -> bytes | None:
        """The cubin stored under `key`; None if there is none, or it is damaged, or somebody else's."""
        try:
            with self._opened() as folder:
                if folder is None:
                    return None
                with os.fdopen(os.open(f"{key}.cubin", _READ | os.O_NOFOLLOW, dir_fd=folder), "rb") as file:
                    if not self._trusted(file.fileno(), f"{self.folder}/{key}.cubin"):
                        return None
                    entry = file.read()
        except OSError:
            return None
        head = len(_FORMAT) + hashlib.sha256().digest_size
        cubin = entry[head:]
        return cubin if entry[:head] == _FORMAT + hashlib.sha256(cubin).digest() else None

    def store(self, key: str, cubin: bytes) -> None:
        """Keep `cubin`; where that fails (a read-only or full disk) it is compiled again next time."""
        name = f"{key[:16]}-{secrets.token_hex(8)}.tmp"
        try:
            if self.folder is not None:
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._opened() as folder:
                if folder is None:
                    return
                try:
                    with os.fdopen(os.open(name, _WRITE, 0o600, dir_fd=folder), "wb") as file:
                        file.write(_FORMAT + hashlib.sha256(cubin).digest() + cubin)
                    os.replace(name, f"{key}.cubin", src_dir_fd=folder, dst_dir_fd=folder)
                except OSError:
                    os.unlink(name, dir_fd=folder)
        except OSError:
            pass

    @contextmanager
    def _opened(self) -> Iterator[int | None]:
        """A descriptor of the folder, by which its files are reached: whatever becomes of its path meanwhile, they are
        this folder's. None where there is none to be trusted."""
        if self.folder is None:
            yield None
            return
        folder = os.open(self.folder, _READ | os.O_DIRECTORY)
        try:
            yield folder if self._trusted(folder, str(self.folder)) else None
        finally:
            os.close(folder)

    def _trusted(self, descriptor: int, path: str) -> bool:
        """Is what is open this user's, and writable by nobody else?"""
        about = os.fstat(descriptor)
        if about.st_uid == os.geteuid() and not about.st_mode & _OTHERS:
            return True
        if not self._warned:
            self._warned = True
            why = "others can write to it" if about.st_uid == os.geteuid() else "it belongs to another user"
            warnings.warn(
                f"compiled kernels in {path} are not used: {why}, and could have put anything there. Take it from them "
                "(chown, chmod go-w), or name a folder of your own in DAGPU_CACHE_DIR.",
                RuntimeWarning,
                stacklevel=2,
            )
        return False
