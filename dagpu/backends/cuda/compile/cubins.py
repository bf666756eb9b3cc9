"""Cubins: the names of their kernels, and what their compiler says of the parameters.

A kernel is launched by its symbol, and the symbol of a `__global__` function that is not `extern "C"` is mangled. A
cubin is a 64-bit little-endian ELF file (System V ABI, chapter 4). Its kernels are the function symbols with the flag
STO_CUDA_ENTRY. Neither cuobjdump nor a demangler is needed.
"""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, final

# ---- inside a cubin


_SYMTAB = 2  # SHT_SYMTAB
_OBJECT = 1  # STT_OBJECT
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
    return [name for name, is_kernel, _ in _symbols(cubin) if is_kernel]


def variables(cubin: bytes) -> list[tuple[str, int]]:
    """Return the symbols of all variables in `cubin`, with their sizes in bytes.

    Raises:
        ValueError: `cubin` is not an ELF file, or it is cut short.
    """
    return [(name, size) for name, is_kernel, size in _symbols(cubin) if not is_kernel]


ENTRY: Final = "dagpu_entry"
"""The variable template by whose instance a text names one kernel: `dagpu_entry<&ns::k<float, 256>>`."""
_NAMED_ENTRY = re.compile(rf"_Z\w*?{len(ENTRY)}{ENTRY}IXadL(_Z\w+)EEE")
_SUBSTITUTION = re.compile(r"S[0-9A-Z]*_")


def entry_symbol(cubin: bytes) -> str | None:
    """Return the symbol of the kernel that the instance of `ENTRY` names; None if there is none.

    Its mangled name is in that of the variable, where what stands again is counted from another number.
    """
    symbols = _symbols(cubin)
    named = [_SUBSTITUTION.sub("S", found[1]) for name, _, _ in symbols if (found := _NAMED_ENTRY.fullmatch(name))]
    kernels = [name for name, is_kernel, _ in symbols if is_kernel and _SUBSTITUTION.sub("S", name) in named]
    return kernels[0] if len(kernels) == 1 else None


def _symbols(cubin: bytes) -> list[tuple[str, bool, int]]:
    """Return all symbols in `cubin` in order, each with True if it is a kernel, and its size in bytes.

    Raises:
        ValueError: `cubin` is not an ELF file, or it is cut short.
    """
    if not is_cubin(cubin):
        raise ValueError("not a 64-bit little-endian ELF file")
    try:
        sections = _sections(cubin)
        found: list[tuple[str, bool, int]] = []
        for kind, offset, size, link, _ in sections:
            if kind == _SYMTAB:
                names = sections[link][1]
                for name, info, other, _, _, nbytes in _SYMBOL.iter_unpack(cubin[offset : offset + size]):
                    is_kernel = info & 0xF == _FUNCTION and bool(other & _ENTRY)
                    if is_kernel or info & 0xF == _OBJECT:
                        found.append((_text(cubin, names + name), is_kernel, nbytes))
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
