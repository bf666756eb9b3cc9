"""What a compiled library holds: its variables, what it calls, and where its parts are. It is a 64-bit ELF file
(System V ABI, chapter 4)."""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, final

_SYMBOL: Final = struct.Struct("<IBBHQQ")
_SYMTAB, _DYNSYM = 2, 11
_OBJECT, _TLS, _WEAK = 1, 6, 2
_WRITABLE: Final = 1
_OF_COMPILER: Final = re.compile(r"dagpu_|__|completed\.\d")
_OWN: Final = re.compile(r"_ZZ?N(?:5dagpu|14dagpu_emulated)")
_GUARD: Final = re.compile(r"_ZGV")
"""A variable of the compiler's that says whether another one was constructed. GCC has one for `__shared__ half s[9]`,
whose constructor does nothing, and the text has none."""
_LOAD: Final = 1
_READABLE: Final = 4
"""The flags of a segment that is neither written nor executed."""
_TLS_SEGMENT: Final = 7


@final
class Variable(NamedTuple):
    """A variable of a text. `address` is relative to the library's base; of shared memory to that of the block."""

    name: str
    address: int
    nbytes: int
    kind: str
    """`shared`, `constant` or `device`; `own` if it is dagpu's; `guard` of a shared variable: see `_GUARD`."""


@final
@dataclass(frozen=True, slots=True)
class Symbols:
    """What a library holds."""

    variables: tuple[Variable, ...]
    values: dict[str, int]
    """The addresses of what it defines, by symbol."""
    called: tuple[str, ...]
    """The symbols that it needs of others, without those that may be missing."""
    segments: tuple[tuple[int, int], ...]
    """The segments of its constants, that nobody may write: address and size."""
    constants: tuple[tuple[int, int], ...]
    """All places of constants: these segments, and what the loader has to fill in."""
    shared_bytes: int
    """The bytes of shared memory, all of it."""


def read_symbols(library: bytes) -> Symbols:
    """Return what a library holds."""
    sections = list(_sections(library))
    (names_at,) = struct.unpack_from("<H", library, 0x3E)
    names = sections[names_at].offset
    titles = [_text(library, names + section.name) for section in sections]
    variables: list[Variable] = []
    values: dict[str, int] = {}
    called: list[str] = []
    constant: list[tuple[int, int]] = []
    for section in sections:
        if section.kind not in (_SYMTAB, _DYNSYM):
            continue
        texts = sections[section.link].offset
        for entry in range(section.offset, section.offset + section.size, _SYMBOL.size):
            at, info, _, of, value, size = _SYMBOL.unpack_from(library, entry)
            name, kind = _text(library, texts + at), info & 0xF
            if not of:
                if section.kind == _DYNSYM and name and info >> 4 != _WEAK:
                    called.append(name)
                continue
            if section.kind == _DYNSYM or of >= len(sections):
                continue
            values.setdefault(name, value)
            if not size or _OF_COMPILER.match(name):
                continue
            if kind == _OBJECT and titles[of] == ".data.rel.ro":
                constant.append((value, size))
            if kind == _TLS:
                kind_of = "guard" if _GUARD.match(name) else "shared"
                variables.append(Variable(_source_name(name), value, size, kind_of))
            elif kind == _OBJECT and sections[of].flags & _WRITABLE and titles[of] != ".data.rel.ro":
                where = "constant" if titles[of] == "dagpu_constant" else "own" if _OWN.search(name) else "device"
                variables.append(Variable(_source_name(name), value, size, where))
    segments = list(_segments(library))
    loads = [(at, size, flags) for kind, at, size, flags in segments if kind == _LOAD]
    opened = tuple([(at, size) for at, size, flags in loads if flags == _READABLE])
    shared = sum(size for kind, _, size, _ in segments if kind == _TLS_SEGMENT)
    return Symbols(tuple(variables), values, tuple(dict.fromkeys(called)), opened, (*opened, *constant), shared)


@final
class _Section(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int


def _sections(elf: bytes) -> Iterator[_Section]:
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    each, count = struct.unpack_from("<HH", elf, 0x3A)
    for at in range(table, table + each * count, each or 1):
        yield _Section(*struct.unpack_from("<IIQQQQI", elf, at))


def _segments(elf: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield kind, address, size in memory and flags of each segment."""
    (table,) = struct.unpack_from("<Q", elf, 0x20)
    each, count = struct.unpack_from("<HH", elf, 0x36)
    for at in range(table, table + each * count, each or 1):
        kind, flags, _, address, _, _, size = struct.unpack_from("<IIQQQQQ", elf, at)
        yield kind, address, size, flags


def _text(elf: bytes, at: int) -> str:
    return elf[at : elf.index(b"\0", at)].decode("utf-8", "replace")


def _source_name(symbol: str) -> str:
    """Return the name of a variable in the source: `s` for `_ZZ1kPfE1s_0` (Itanium C++ ABI, 5.1)."""
    for found in re.finditer(r"\d+", symbol):
        end = found.end() + int(found[0])
        if found.end() < end <= len(symbol) and re.fullmatch(r"(?:_\d*_?)?", symbol[end:]):
            return symbol[found.end() : end]
    return symbol


def section_of(library: bytes, title: str) -> bytes:
    """Return the contents of the section with a name; nothing if there is none."""
    sections = list(_sections(library))
    (names_at,) = struct.unpack_from("<H", library, 0x3E)
    for section in sections:
        if _text(library, sections[names_at].offset + section.name) == title:
            return library[section.offset : section.offset + section.size]
    return b""
