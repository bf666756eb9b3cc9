"""Reads the names of the kernels in a cubin.

A kernel is launched by its symbol, and the symbol of a `__global__` function that is not `extern "C"` is mangled. A
cubin is a 64-bit little-endian ELF file (System V ABI, chapter 4). Its kernels are the function symbols with the flag
STO_CUDA_ENTRY. Neither cuobjdump nor a demangler is needed.
"""

import re
import struct

_SYMTAB = 2  # SHT_SYMTAB
_FUNCTION = 2  # STT_FUNC
_ENTRY = 0x10  # STO_CUDA_ENTRY, in st_other: the symbol is a kernel, not a __device__ function
_SYMBOL = struct.Struct("<IBBHQQ")
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
        for kind, offset, size, link in sections:
            if kind == _SYMTAB:
                names = sections[link][1]
                for name, info, other, _, _, _ in _SYMBOL.iter_unpack(cubin[offset : offset + size]):
                    if info & 0xF == _FUNCTION and other & _ENTRY:
                        found.append(_text(cubin, names + name))
    except (struct.error, IndexError, ValueError) as error:
        raise ValueError("an ELF file that is cut short") from error
    return found


def _sections(elf: bytes) -> list[tuple[int, int, int, int]]:
    """Return type, offset, size and link of each section; offset and size in bytes."""
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    each, count = struct.unpack_from("<HH", elf, 0x3A)
    found: list[tuple[int, int, int, int]] = []
    for at in range(table, table + each * count, each or 1):
        kind, _, _, offset, size, link = struct.unpack_from("<IQQQQI", elf, at + 4)
        found.append((kind, offset, size, link))
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
