"""Compiled kernels on disk, and the digest that makes their keys.

An entry is written to a temporary file beside its place and then moved, so another process sees a whole entry or none.
An entry that does not match its checksum counts as missing, and so does a folder that cannot be read or written. An
entry is never overwritten with other contents, so the folder may be deleted at any time.

A loaded kernel runs in this process, or on the GPU for it, and a checksum does not identify its author. Therefore the
cache trusts a folder and an entry only if they belong to this user and no other user can write to them.
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
"""The header of every entry. It is also part of every key."""


def default_cache_dir() -> Path | None:
    """Return $DAGPU_CACHE_DIR, else `dagpu` in $XDG_CACHE_HOME or ~/.cache; None if the user has no home directory.

    Raises:
        ValueError: $DAGPU_CACHE_DIR is relative.
    """
    if (given := CACHE_DIR.get()) is not None:
        return given
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if base.is_absolute():  # the XDG specification: ignore a relative path
        return base / "dagpu"
    try:
        return Path.home() / ".cache" / "dagpu"
    except RuntimeError:
        return None


def digest(parts: Iterable[str | bytes]) -> str:
    """Return the SHA-256 of `parts`, each with its length, so that different lists never have the same input."""
    total = hashlib.sha256(_FORMAT)
    for part in parts:
        data = part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "little"))
        total.update(data)
    return total.hexdigest()


_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH
"""Mode bits of a file that its group or all users can write to."""
_READ: Final = os.O_RDONLY | os.O_CLOEXEC
_WRITE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@final
class DiskCache:
    """Compiled kernels of one kind by key, in one folder; without a folder the cache is always empty. No method raises
    OSError.

    The cache does not use a folder or an entry that other users own or can write to. It issues one RuntimeWarning then,
    and where the folder cannot be made.
    """

    def __init__(self, folder: Path | None, kind: str = "cubin") -> None:
        self.folder = folder
        self._kind = kind
        """The end of the names of the files."""
        self._warned = False

    def load(self, key: str) -> bytes | None:
        """Return the code stored under `key`; None if it is missing, damaged or not trusted."""
        try:
            with self._opened() as folder:
                if folder is None:
                    return None
                with os.fdopen(os.open(f"{key}.{self._kind}", _READ | os.O_NOFOLLOW, dir_fd=folder), "rb") as file:
                    if not self._trusted(file.fileno(), f"{self.folder}/{key}.{self._kind}"):
                        return None
                    entry = file.read()
        except OSError:
            return None
        head = len(_FORMAT) + hashlib.sha256().digest_size
        code = entry[head:]
        return code if entry[:head] == _FORMAT + hashlib.sha256(code).digest() else None

    def store(self, key: str, code: bytes) -> None:
        """Store `code` under `key`. If that fails (a read-only or full disk), it is compiled again next time."""
        name = f"{key[:16]}-{secrets.token_hex(8)}.tmp"
        try:
            self._make_folder()
            with self._opened() as folder:
                if folder is None:
                    return
                try:
                    with os.fdopen(os.open(name, _WRITE, 0o600, dir_fd=folder), "wb") as file:
                        file.write(_FORMAT + hashlib.sha256(code).digest() + code)
                    os.replace(name, f"{key}.{self._kind}", src_dir_fd=folder, dst_dir_fd=folder)
                except OSError:
                    os.unlink(name, dir_fd=folder)
        except OSError:
            pass

    def _make_folder(self) -> None:
        """Make the folder. If that fails, warn, as no process will find a kernel there, and raise the OSError."""
        if self.folder is None:
            return
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            self._warn(
                f"compiled kernels are not kept, since the folder {self.folder} cannot be made ({error.strerror}): "
                "each process compiles them again. Set DAGPU_CACHE_DIR to a folder of your own."
            )
            raise

    def _warn(self, message: str) -> None:
        """Issue a RuntimeWarning, the first time."""
        if not self._warned:
            self._warned = True
            warnings.warn(message, RuntimeWarning, stacklevel=2)

    @contextmanager
    def _opened(self) -> Iterator[int | None]:
        """Open the folder and yield its descriptor, or None if it is not trusted. Files are opened relative to the
        descriptor, so they are in this folder even if its path changes meanwhile."""
        if self.folder is None:
            yield None
            return
        folder = os.open(self.folder, _READ | os.O_DIRECTORY)
        try:
            yield folder if self._trusted(folder, str(self.folder)) else None
        finally:
            os.close(folder)

    def _trusted(self, descriptor: int, path: str) -> bool:
        """Return True if the open file belongs to this user and no other user can write to it. Warn otherwise."""
        about = os.fstat(descriptor)
        if about.st_uid == os.geteuid() and not about.st_mode & _OTHERS:
            return True
        why = "others can write to it" if about.st_uid == os.geteuid() else "it belongs to another user"
        self._warn(
            f"compiled kernels in {path} are not used: {why}, so the contents cannot be trusted. Make it yours alone "
            "(chown, chmod go-w), or set DAGPU_CACHE_DIR to a folder of your own."
        )
        return False
