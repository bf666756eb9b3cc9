"""Which files a compiler may read for a source: what the key of its cubin has to hold.

NVRTC tells nobody what it has read, so the text is read here as far as that takes: the phases of translation before
preprocessing (line splices, comments, literals), then the lines that begin with `#` or `%:`. Nothing is evaluated: what
stands under `#if 0` counts as included, and a file that lies in two folders counts twice. So too much is found, at the
cost of compiling once too often, and never too little: of a text that is not understood, this says so.
"""

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple, final

_UNSURE: Final = re.compile(r"\?\?[=/]|\r(?!\n)|\\[ \t\v\f]+\r?\n")
"""Trigraphs for `#` and `\\`, which a standard may or may not have; a lone return; a backslash before spaces at the end
of a line, which some compilers take for a splice."""
_SPLICE: Final = re.compile(r"\\\r?\n")
_RAW: Final = re.compile(r"R\"")
_GAP: Final = r"(?:[ \t\v\f]|/\*(?:[^*]|\*(?!/))*\*/)*"
"""Between two tokens of a line."""
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
"""Options that give a compiler more options, which are not looked at here."""


class Name(NamedTuple):
    """What stands in an `#include`."""

    text: str
    quoted: bool


@final
@dataclass(frozen=True, slots=True)
class Reading:
    """One text, read."""

    code: str
    """Without comments and line splices."""
    names: tuple[Name, ...]
    """Of the files that it includes, or asks for with __has_include."""
    understood: bool
    """Is that all that it depends on? Not where a file is named by a macro, nor where the day of compiling shows."""


@lru_cache(maxsize=64)
def read(text: str) -> Reading:
    """Read one text; the latest are remembered, as headers are shared."""
    spliced = _SPLICE.sub("", text)
    understood = not (_UNSURE.search(text) or (spliced != text and _RAW.search(text)))  # raw literals are not spliced
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
    """A file that a source includes, however deep. `text` is what it holds."""

    path: Path
    text: str


@final
@dataclass(frozen=True, slots=True)
class Includes:
    """All that a source may include."""

    files: tuple[Included, ...]
    complete: bool
    """Is that all? If not, nobody can tell whether a cubin is still the source's."""


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


def environment_options() -> list[str]:
    """What nvcc, and the host compiler that it calls, take from the environment."""
    options: list[str] = []
    for name in ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"):
        flags = os.environ.get(name, "")
        try:
            options += shlex.split(flags)
        except ValueError:  # a quotation mark without its other
            options.append(f"@{flags}")
    for name in ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH"):
        if folders := os.environ.get(name):
            options += [f"-I{folder or '.'}" for folder in folders.split(os.pathsep)]
    return options


def included_files(text: str, folder: Path, options: Sequence[str]) -> Includes:
    """All files that `text` may include: beside it in `folder`, in the folders of `options` and of the environment,
    beside whatever includes them; and what these include.

    Headers found nowhere are the compiler's own, and its version stands for them. Files that the options name
    (`--pre-include=file`) count as included.
    """
    options = [*options, *environment_options()]
    folders = [folder, *include_folders(options)]
    complete = not any(_OTHER_OPTIONS.fullmatch(option) for option in options)
    found: dict[Path, Included] = {}
    beside = dict.fromkeys([folder])
    named = [name for option in options for name in (option, option.partition("=")[2]) if name]
    waiting = [file for name in named for file in _files([Path(), *folders], name)]
    source: Included | None = Included(folder / "text", text)
    while source is not None:
        reading = read(source.text)
        complete &= reading.understood
        beside[source.path.parent] = None
        for name in reading.names:
            waiting += _files([*beside, *folders] if name.quoted else folders, name.text)
        source = None
        while waiting and source is None:
            candidate = waiting.pop(0)
            if candidate.path not in found:
                found[candidate.path] = source = candidate
    return Includes(tuple(found.values()), complete)


def _files(folders: Sequence[Path], name: str) -> Iterator[Included]:
    """Those of this name, in every one of these folders: a file may include the next one that is called as itself."""
    for path in dict.fromkeys(folder / name for folder in folders):
        try:
            yield Included(path, path.read_text(encoding="utf-8", errors="surrogateescape"))
        except (OSError, ValueError):  # ValueError: a null byte in the name
            pass
