"""Finds the files that a compiler may read for a source; the key of its cubin covers them.

NVRTC does not report the files that it reads, so this module scans the text: the phases of translation before
preprocessing (line splices, comments, literals), then the lines that begin with `#` or `%:`. It evaluates nothing: text
under `#if 0` counts as included, and a file that is in two folders counts twice. The result may contain too many files,
which costs a compilation, but never too few: if a text is not understood, the result says so.
"""

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple, final

_UNSURE: Final = re.compile(r"\?\?[=/]|\r(?!\n)|\\[ \t\v\f]+\r?\n")
"""Text that compilers treat differently: trigraphs for `#` and `\\`, which only some standards have; a lone carriage
return; a backslash before spaces at the end of a line, which some compilers treat as a splice."""
_SPLICE: Final = re.compile(r"\\\r?\n")
_RAW: Final = re.compile(r"R\"")
_GAP: Final = r"(?:[ \t\v\f]|/\*(?:[^*]|\*(?!/))*\*/)*"
"""White space and comments between two tokens of a line."""
_COMMENT: Final = re.compile(r"/\*(?:[^*]|\*(?!/))*\*/")
_NAME: Final = r"(?:\"(?P<quoted>[^\"\n]*)\"|<(?P<angled>[^>\n]*)>)"
_LITERAL: Final = (
    r"""(?:u8|[uUL])?R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)" | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*'"""
)
_LEXEME: Final = re.compile(
    rf"""(?P<directive> ^{_GAP}(?:\#|%:){_GAP}(?P<word>\w*){_GAP}(?:{_NAME})? )
       | (?P<module> ^{_GAP}(?:export{_GAP})?import{_GAP}["<] )
       | (?P<comment> //[^\n]* | /\*(?:[^*]|\*(?!/))*(?:\*/|\Z) )
       | (?P<has> __has_(?:include(?:_next)?|embed){_GAP}\({_GAP}(?P<asked>(?:"[^"\n]*"|<[^>\n]*>)?) )
       | (?P<literal> {_LITERAL} )
       | (?P<number> \.?\d(?:[eEpP][+-] | '?[\w.])* )
       | (?P<other> \w+ | [^\S\n]+ | . )""",
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
_INCLUDING: Final = frozenset(("include", "include_next", "import"))
_WHEN: Final = re.compile(r"\b(?:__DATE__|__TIME__|__TIMESTAMP__)\b")
_FOLDER_OPTION: Final = re.compile(r"(?:-I|--include-path|-isystem|--system-include)(?:=)?(.*)", re.DOTALL)
_OTHER_OPTIONS: Final = re.compile(r"@.*|-optf.*|--options-file.*|-Xcompiler.*|--compiler-options.*", re.DOTALL)
"""Options that pass further options to a compiler. This module does not parse those."""


class Name(NamedTuple):
    """The name in an `#include`, and its delimiters: quotes or angle brackets."""

    text: str
    quoted: bool


@final
@dataclass(frozen=True, slots=True)
class Reading:
    """The result of scanning one text."""

    code: str
    """The text without comments and line splices."""
    names: tuple[Name, ...]
    """The names of the files that the text includes or tests with __has_include."""
    understood: bool
    """True if the text depends on nothing else. False if a macro names a file, or if the text uses the date of
    compilation."""


def is_plain(text: str) -> bool:
    """Return false for a text whose lines compilers may divide differently."""
    return not (_UNSURE.search(text) or (_SPLICE.search(text) and _RAW.search(text)))  # raw literals are not spliced


@lru_cache(maxsize=64)
def read(text: str) -> Reading:
    """Scan one text. The latest results are cached, as sources share headers."""
    spliced = _SPLICE.sub("", text)
    understood = is_plain(text)
    parts: list[str] = []
    names: list[Name] = []
    at = 0
    while (found := _LEXEME.match(spliced, at)) is not None:
        at = found.end()
        match found.lastgroup:
            case "comment":
                parts.append(" ")
                continue
            case "directive" if found["word"] in _INCLUDING:
                named = _named(found["quoted"], found["angled"])
                names += named
                understood &= bool(named)
            case "has":
                asked = found["asked"]
                names += [Name(asked[1:-1], asked[0] == '"')] if asked else []
                understood &= bool(asked)
            case "directive":
                understood &= found["word"] != "embed"
            case "module":
                understood = False
            case _:
                pass
        parts.append(_COMMENT.sub(" ", found[0]) if found.lastgroup in ("directive", "has") else found[0])
    code = "".join(parts)
    return Reading(code, tuple(names), understood and not _WHEN.search(code))


def _named(quoted: str | None, angled: str | None) -> list[Name]:
    return [Name(text, text is quoted) for text in (quoted, angled) if text]


# ---- files ----------------------------------------------------------------------------------------
@final
@dataclass(frozen=True, slots=True)
class Included:
    """A file that a source includes, directly or through other files, with its text."""

    path: Path
    text: str


@final
@dataclass(frozen=True, slots=True)
class Includes:
    """All files that a source may include."""

    files: tuple[Included, ...]
    complete: bool
    """True if these are all files. If False, a cached cubin may be out of date."""


def include_folders(options: Sequence[str]) -> list[Path]:
    """Return the include folders that a compiler's options name, in order; relative paths stay relative."""
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


def environment_options() -> list[str]:
    """Return the options that nvcc, and the host compiler that it calls, read from the environment."""
    options: list[str] = []
    for name in ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"):
        flags = os.environ.get(name, "")
        try:
            options += shlex.split(flags)
        except ValueError:  # an unclosed quotation mark
            options.append(f"@{flags}")
    for name in ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH"):
        if folders := os.environ.get(name):
            options += [f"-I{folder or '.'}" for folder in folders.split(os.pathsep)]
    return options


def included_files(text: str, folder: Path, options: Sequence[str]) -> Includes:
    """Return all files that `text` may include, directly or through other files.

    The search covers `folder`, the folders of `options` and of the environment, and the folder of each including file.

    Headers that are not found are the compiler's own; the compiler's version identifies them. Files that the options
    name (`--pre-include=file`) count as included.
    """
    options = [*options, *environment_options()]
    folders = [folder, *include_folders(options)]
    complete = not any(_OTHER_OPTIONS.fullmatch(option) for option in options)
    found: dict[Path, Included] = {}
    beside = dict.fromkeys([folder])
    named = [name for option in options for name in (option, option.partition("=")[2]) if name]
    waiting = [file for name in named for file in find_files([Path(), *folders], name)]
    source: Included | None = Included(folder / "text", text)
    while source is not None:
        reading = read(source.text)
        complete &= reading.understood
        beside[source.path.parent] = None
        for name in reading.names:
            waiting += find_files([*beside, *folders] if name.quoted else folders, name.text)
        source = None
        while waiting and source is None:
            candidate = waiting.pop(0)
            if candidate.path not in found:
                found[candidate.path] = source = candidate
    return Includes(tuple(found.values()), complete)


def find_files(folders: Iterable[Path], name: str) -> Iterator[Included]:
    """Yield the files of this name in all of these folders. With `#include_next` a file may include another of its own
    name."""
    for path in dict.fromkeys(folder / name for folder in folders):
        try:
            yield Included(path, path.read_text(encoding="utf-8", errors="surrogateescape"))
        except (OSError, ValueError):  # ValueError: a null byte in the name
            pass
