"""The lines of addresses, from the table that a compiler leaves in a library (DWARF 4, 6.2): for where there is no
addr2line.

It has no calls that are inlined: for an address in a header, the last place before it that is in none is its.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Final

from dagpu.backends.host.cuda_text.library_symbols import section_of

_COPY, _ADVANCE_PC, _ADVANCE_LINE, _FILE, _CONST_PC, _FIXED_PC = 1, 2, 3, 4, 8, 9
_END, _SET_ADDRESS = 1, 2
_NEAR: Final = 4096
"""Bytes of code: the most between an address and its place."""


def read_lines(library: bytes, addresses: Sequence[int]) -> list[list[tuple[str, int]]]:
    """Return for each address the places at and before it, the nearest first."""
    rows = sorted(row for row in _rows(section_of(library, ".debug_line")) if row[2])
    found: list[list[tuple[str, int]]] = []
    for address in addresses:
        before = [row for row in rows if address - _NEAR < row[0] <= address]
        found.append([(name, line) for _, name, line in reversed(before)])
    return found


def _rows(data: bytes) -> Iterator[tuple[int, str, int]]:
    """Yield address, file and line of each row; of a table of another version nothing."""
    at = 0
    while at + 4 <= len(data):
        (length,) = struct.unpack_from("<I", data, at)
        end = at + 4 + length
        (version,) = struct.unpack_from("<H", data, at + 4)
        if version in (2, 3, 4):
            yield from _program(data[at + 6 : end], version)
        at = end


def _program(data: bytes, version: int) -> Iterator[tuple[int, str, int]]:  # noqa: C901  # a branch for each opcode
    (header,) = struct.unpack_from("<I", data, 0)
    start = 4 + header
    step, at = data[4], 5 + (version >= 4)
    base, width, first = struct.unpack_from("<bBB", data, at + 1)
    lengths = data[at + 4 : at + 3 + first]
    at += 3 + first
    while data[at]:  # folders
        at = data.index(0, at) + 1
    at += 1
    files = [""]
    while data[at]:
        end = data.index(0, at)
        files.append(data[at:end].decode("utf-8", "replace"))
        at = end + 1
        for _ in range(3):
            _, at = _uleb(data, at)
    address, file, line, at = 0, 1, 1, start
    while at < len(data):
        code = data[at]
        at += 1
        if code >= first:
            address += (code - first) // width * step
            line += base + (code - first) % width
            yield address, files[file] if file < len(files) else "", line
        elif code == 0:
            size, at = _uleb(data, at)
            if data[at] == _SET_ADDRESS:
                (address,) = struct.unpack_from("<Q", data, at + 1)
            elif data[at] == _END:
                address, file, line = 0, 1, 1
            at += size
        elif code == _COPY:
            yield address, files[file] if file < len(files) else "", line
        elif code == _ADVANCE_PC:
            ahead, at = _uleb(data, at)
            address += ahead * step
        elif code == _ADVANCE_LINE:
            ahead, at = _sleb(data, at)
            line += ahead
        elif code == _FILE:
            file, at = _uleb(data, at)
        elif code == _CONST_PC:
            address += (255 - first) // width * step
        elif code == _FIXED_PC:
            address += struct.unpack_from("<H", data, at)[0]
            at += 2
        else:
            for _ in range(lengths[code - 1]):
                _, at = _uleb(data, at)


def _uleb(data: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _sleb(data: bytes, at: int) -> tuple[int, int]:
    begin = at
    value, at = _uleb(data, at)
    bits = 7 * (at - begin)
    return (value - (1 << bits) if value >> (bits - 1) & 1 else value), at
