"""Cubins on disk, and the key that says which cubin a source has.

It stands in for PyCUDA's own cache, which serves nvcc alone, where most kernels here are compiled by NVRTC.
An entry is written beside its place and moved there, so another process sees a whole one or none; one that
does not match its checksum is as good as none, and so is a folder that cannot be read or written. Entries are
never rewritten with anything else: the folder may be deleted at any time.
"""

import hashlib
import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from dagpu.env_vars import CACHE_DIR

_FORMAT = b"dagpu cubin 1\n"
"""Begins every entry, and is part of every key."""


def default_cache_dir() -> Path | None:
    """$DAGPU_CACHE_DIR, else `dagpu` in $XDG_CACHE_HOME or ~/.cache; None where there is no home."""
    if given := CACHE_DIR.get():
        return Path(given)
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


@final
class DiskCache:
    """Cubins by key, in one folder; without a folder it is always empty. No method raises OSError."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def load(self, key: str) -> bytes | None:
        """The cubin stored under `key`; None if there is none, or it is damaged."""
        if self.folder is None:
            return None
        try:
            entry = (self.folder / f"{key}.cubin").read_bytes()
        except OSError:
            return None
        head = len(_FORMAT) + hashlib.sha256().digest_size
        cubin = entry[head:]
        return cubin if entry[:head] == _FORMAT + hashlib.sha256(cubin).digest() else None

    def store(self, key: str, cubin: bytes) -> None:
        """Keep `cubin`; where that fails (a read-only or full disk) it is compiled again next time."""
        if self.folder is None:
            return
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.folder, prefix=f"{key[:16]}-", suffix=".tmp")
        except OSError:
            return
        written = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_FORMAT + hashlib.sha256(cubin).digest() + cubin)
            written.replace(self.folder / f"{key}.cubin")
        except OSError:
            try:
                written.unlink()
            except OSError:
                pass


# ---- what a source includes -------------------------------------------------------------------
_INCLUDE = re.compile(r"""^[ \t]*\#[ \t]*include(?:_next)?\b[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>|([^\n]*))""", re.MULTILINE)
_FOLDER_OPTION = re.compile(r"(?:-I|--include-path|-isystem|--system-include)(?:=)?(.*)", re.DOTALL)


@final
@dataclass(frozen=True, slots=True)
class Included:
    """A file that a source includes, however deep. `text` is what it holds."""

    path: Path
    text: str


def include_folders(options: Sequence[str]) -> list[Path]:
    """The folders that a compiler's options give it to search, in order; relative ones as they stand."""
    folders: list[Path] = []
    expected = False
    for option in options:
        found = _FOLDER_OPTION.fullmatch(option)
        if expected or (found is not None and found[1]):
            folders.append(Path(option if expected or found is None else found[1]))
            expected = False
        else:
            expected = found is not None
    return folders


def included_files(text: str, folder: Path, options: Sequence[str]) -> list[Included] | None:
    """All files that `text` may include, beside it in `folder` or in the folders of `options`, and theirs.

    Conditions are not weighed: what stands under `#if 0` counts, at the cost of compiling once too often.
    Headers found nowhere are the compiler's own, and its version stands for them. Files that the options name
    (`--pre-include=file`) count as included. None: an `#include` of a macro, whose file is not known.
    """
    folders = [folder, *include_folders(options)]
    found: dict[Path, Included] = {}
    names = [name for option in options for name in (option, option.partition("=")[2]) if name]
    waiting = [read for name in names for place in (Path(), *folders) if (read := _read(place / name)) is not None]
    source: Included | None = Included(folder / "text", text)
    while source is not None:
        for quoted, angled, other in _INCLUDE.findall(source.text):
            if not (quoted or angled):
                if other:
                    return None
                continue
            near = [source.path.parent, *folders] if quoted else folders
            reads = (_read(place / (quoted or angled)) for place in near)
            waiting += [read for read in [next(filter(None, reads), None)] if read is not None]
        source = None
        while waiting and source is None:
            candidate = waiting.pop(0)
            if candidate.path not in found:
                found[candidate.path] = source = candidate
    return list(found.values())


def _read(path: Path) -> Included | None:
    try:
        return Included(path, path.read_text(encoding="utf-8", errors="surrogateescape"))
    except (OSError, ValueError):  # ValueError: a null byte in the name
        return None
