"""Cubins: the names of their kernels, what their compiler says of the parameters, and their cache on disk.

A kernel is launched by its symbol, and the symbol of a `__global__` function that is not `extern "C"` is mangled. A
cubin is a 64-bit little-endian ELF file (System V ABI, chapter 4). Its kernels are the function symbols with the flag
STO_CUDA_ENTRY. Neither cuobjdump nor a demangler is needed.
"""

import hashlib
import os
import re
import secrets
import stat
import struct
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final, final

from dagpu.common.env_vars import CACHE_DIR

# ---- inside a cubin


_SYMTAB = 2  # SHT_SYMTAB
_FUNCTION = 2  # STT_FUNC
_ENTRY = 0x10  # STO_CUDA_ENTRY, in st_other: the symbol is a kernel, not a __device__ function
_SYMBOL = struct.Struct("<IBBHQQ")
# The section .nv.info.<symbol> lists attributes: one byte each for format and kind, then two bytes of value, or of the
# size of a value that follows.
_SIZED = 4
_PARAMETER = 0x17  # EIATTR_KPARAM_INFO: index, ordinal and offset, then a word with the size in its upper 14 bits
_BLOCK = 0x10  # EIATTR_REQNTID
_INFO = struct.Struct("<IHHI")
# _Z, L for internal linkage, N and qualifiers for a nested name; then <length><name> again and again.
_NESTED = re.compile(r"_Z(?:N[rVKRO]*)?")
_LENGTH = re.compile(r"L?(\d+)")


def is_cubin(data: bytes) -> bool:
    """Return True if `data` begins like a cubin: a 64-bit little-endian ELF file."""
    return data[:6] == b"\x7fELF\x02\x01"


def kernel_symbols(cubin: bytes) -> list[str]:
    """Return the symbols of all kernels in `cubin`, in the order of its symbol table.

    Raises:
        ValueError: `cubin` is not an ELF file, or it is cut short.
    """
    if not is_cubin(cubin):
        raise ValueError("not a 64-bit little-endian ELF file")
    try:
        sections = _sections(cubin)
        found: list[str] = []
        for kind, offset, size, link, _ in sections:
            if kind == _SYMTAB:
                names = sections[link][1]
                for name, info, other, _, _, _ in _SYMBOL.iter_unpack(cubin[offset : offset + size]):
                    if info & 0xF == _FUNCTION and other & _ENTRY:
                        found.append(_text(cubin, names + name))
    except (struct.error, IndexError, ValueError) as error:
        raise ValueError("an ELF file that is cut short") from error
    return found


@final
@dataclass(frozen=True, slots=True)
class KernelFacts:
    """What a cubin says of a kernel."""

    parameters: tuple[tuple[int, int], ...]
    """Offset and size of each parameter in bytes, in order."""
    block: tuple[int, ...]
    """The block dimensions that it requires; empty if it requires none."""


def kernel_facts(cubin: bytes, symbol: str) -> KernelFacts:
    """Return what a cubin says of a kernel.

    Raises:
        ValueError: `cubin` is not an ELF file, it is cut short, or it says nothing of the kernel.
    """
    if not is_cubin(cubin):
        raise ValueError("not a 64-bit little-endian ELF file")
    parameters: dict[int, tuple[int, int]] = {}
    block: tuple[int, ...] = ()
    known = False
    try:
        sections = _sections(cubin)
        (names,) = struct.unpack_from("<H", cubin, 0x3E)
        for _, offset, size, _, name in sections:
            if _text(cubin, sections[names][1] + name) != f".nv.info.{symbol}":
                continue
            known = True
            for kind, value in _attributes(cubin[offset : offset + size]):
                if kind == _PARAMETER:
                    _, ordinal, at, word = _INFO.unpack(value)
                    parameters[ordinal] = at, word >> 18
                elif kind == _BLOCK:
                    block = struct.unpack("<3I", value)
    except (struct.error, IndexError, ValueError) as error:
        raise ValueError("an ELF file that is cut short") from error
    if not known:
        raise ValueError(f"it says nothing of a kernel {symbol}")
    return KernelFacts(tuple([parameters[number] for number in sorted(parameters)]), block)


def _attributes(section: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield kind and value of the attributes whose value follows."""
    at = 0
    while at < len(section):
        form, kind, size = struct.unpack_from("<BBH", section, at)
        at += 4
        if form == _SIZED:
            yield kind, section[at : at + size]
            at += size


def _sections(elf: bytes) -> list[tuple[int, int, int, int, int]]:
    """Return type, offset, size, link and name of each section; offset and size in bytes, the name as its place in the
    table of names."""
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    each, count = struct.unpack_from("<HH", elf, 0x3A)
    found: list[tuple[int, int, int, int, int]] = []
    for at in range(table, table + each * count, each or 1):
        name, kind, _, _, offset, size, link = struct.unpack_from("<IIQQQQI", elf, at)
        found.append((kind, offset, size, link, name))
    return found


def _text(elf: bytes, at: int) -> str:
    return elf[at : elf.index(b"\0", at)].decode("utf-8", "replace")


def plain_name(symbol: str) -> str:
    """Return the function's own name in a symbol: `saxpy` for `_ZN2my5saxpyEPf` and for `saxpy`.

    It parses names within namespaces (Itanium C++ ABI, 5.1.2), and omits a template's arguments.
    """
    start = _NESTED.match(symbol)
    if start is None:
        return symbol
    name, at = symbol, start.end()
    while (length := _LENGTH.match(symbol, at)) is not None:
        at = length.end() + int(length[1])
        name = symbol[length.end() : at]
        if "N" not in start[0]:
            break
    return name


# ---- makes cubins of PTX text with nvJitLink, where it is installed ---------------------------------------------


def link_ptx(ptx: bytes, arch: str) -> bytes:
    """Return the cubin of a PTX text that ends with a zero byte; the text itself if no linker is installed.

    The driver compiles the text then, when the kernel is loaded. A linker costs less, and its result can be checked.

    Raises:
        RuntimeError: the linker refuses the text.
    """
    try:
        # By name: the module has no type annotations, and type checkers do not find it where CUDA is not installed.
        linker: Any = import_module("cuda.bindings.nvjitlink")
        handle = linker.create(1, [f"-arch={arch}"])
    except (ImportError, RuntimeError):  # RuntimeError: the bindings are installed, the library is not
        return ptx
    try:
        linker.add_data(handle, linker.InputType.PTX, ptx, len(ptx), "kernel.ptx")
        linker.complete(handle)
        cubin = bytearray(linker.get_linked_cubin_size(handle))
        linker.get_linked_cubin(handle, cubin)
        return bytes(cubin)
    finally:
        linker.destroy(handle)


# ---- the cache on disk, and the digest that makes its keys
#
# It replaces PyCUDA's own cache, which serves nvcc alone: NVRTC compiles most kernels here. An entry is written to a
# temporary file beside its place and then moved, so another process sees a whole entry or none. An entry that does not
# match its checksum counts as missing, and so does a folder that cannot be read or written. An entry is never
# overwritten with other contents, so the folder may be deleted at any time.
#
# A loaded cubin runs on the GPU, in this process, and a checksum does not identify its author. Therefore the cache
# trusts a folder and an entry only if they belong to this user and no other user can write to them.


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
    """Cubins by key, in one folder; without a folder the cache is always empty. No method raises OSError.

    The cache does not use a folder or an entry that other users own or can write to. It issues one RuntimeWarning then,
    and where the folder cannot be made.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._warned = False

    def load(self, key: str) -> bytes | None:
        """Return the cubin stored under `key`; None if it is missing, damaged or not trusted."""
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
        """Store `cubin` under `key`. If that fails (a read-only or full disk), it is compiled again next time."""
        name = f"{key[:16]}-{secrets.token_hex(8)}.tmp"
        try:
            self._make_folder()
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
