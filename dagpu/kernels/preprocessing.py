"""What a compiler reads for a CUDA text: its headers, and its tokens with macros expanded.

`preprocess` evaluates nothing but `#if 0` and `#if 1`. Under any other condition both branches are there, and a macro
with several definitions becomes all of them, one after the other: more than the compiler sees, and not less.
`preprocess_decided` evaluates conditions, and marks what depends on unknown ones. Where a text hides what it is, the
result says so (`Preprocessed.unread`). Headers are read if quotes name them, or if they lie in the folder of the
source. What else is in angle brackets is a library's, and a file that is not found the compiler's.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias, final

from dagpu.kernels.cuda_lexer import (
    Decide,
    Definition,
    Directive,
    Token,
    has_guard,
    read_definition,
    read_tokens,
    value_of,
    with_annotations,
)

_DEEPEST: Final = 200
"""The most files that include each other, which is a limit of compilers, and the most calls of macros in each other's
arguments."""
_MOST: Final = 1_000_000
"""The most tokens of a text and its headers."""
_MOST_MADE: Final = 100_000
"""The most tokens that macros become, which take a second."""

_DEFINING: Final = ("--define-macro", "-D")

_Marked: TypeAlias = tuple[Token, frozenset[str]]
"""A token, and the macros that are not expanded in it, as it comes from them."""


@final
class Preprocessed(NamedTuple):
    """The tokens of a text and of its headers."""

    tokens: list[Token]
    unread: str
    """Why it may have others; empty if it has no others."""


class _UnreadError(Exception):
    """Why a text cannot be read through."""


def preprocess(source: str, folder: Path | None = None, options: Sequence[str] = ()) -> Preprocessed:
    """Return the tokens of a text. Headers are searched in `folder`, that of the source, and quoted ones in those that
    the options name, too. The options also define macros."""
    files = _Files(folder, options)
    try:
        files.add_definitions(options)
        files.add(source, folder, "")
        expanded = _Expansion(files.macros).of([(token, frozenset()) for token in files.tokens])
        return Preprocessed(with_annotations([token for token, _ in expanded]), "")
    except _UnreadError as error:
        return Preprocessed(with_annotations(files.tokens), str(error))


@lru_cache(maxsize=64)
def preprocess_decided(source: str, folder: Path | None = None, options: tuple[str, ...] = ()) -> Preprocessed:
    """Return the tokens as `preprocess`, but those that the compiler sees, with macros as they are where they stand.

    Where a condition is unknown, both branches are there, between tokens `#`, and their tokens are `guarded`.
    """
    files = _Decided(folder, options)
    try:
        files.add_definitions(options)
        files.add(source, folder, "")
        files.expand()
        return Preprocessed(with_annotations(files.tokens), "")
    except _UnreadError as error:
        return Preprocessed(with_annotations(files.tokens), str(error))


# ---- files ------------------------------------------------------------------------------------
class _Files:
    """The tokens of a text and of the files that it includes, in their order, and the definitions of macros."""

    keeps_branches = False
    """True if tokens `#` stand at the begin and the end of branches."""
    decide: Decide | None = None

    def __init__(self, folder: Path | None, options: Sequence[str]) -> None:
        self.tokens: list[Token] = []
        self.macros: dict[str, list[Definition]] = {}
        self._folder = [] if folder is None else [folder]
        self._folders = include_folders(options)
        self._open: list[Path] = []
        self._once = set[Path]()
        self.missing = False
        """True if a quoted header is not found."""

    def add_definitions(self, options: Sequence[str]) -> None:
        """Add the macros of a compiler's options: `-DNAME`, `-DNAME=text`, `-D NAME=text`, `--define-macro=NAME`."""
        waiting = False
        for option in options:
            name = next((option.removeprefix(each) for each in _DEFINING if option.startswith(each)), None)
            if waiting or name:
                name, equals, text = (option if waiting or not name else name).lstrip("=").partition("=")
                self._define(Directive("define", f"{name} {text if equals else '1'}", 0, False))
            waiting = not waiting and name == ""

    def hide(self, why: str) -> None:
        """Take note that the text has something that is not read here.

        Raises:
            _UnreadError: always, with the reason.
        """
        raise _UnreadError(why)

    def add(self, text: str, folder: Path | None, file: str) -> None:
        """Add the tokens of a text in this folder, and of what it includes.

        Raises:
            _UnreadError: it cannot be read through.
        """
        if not is_plain(text):
            self.hide("has lines that compilers may divide differently")
        if self._open and has_guard(text):
            self._once.add(self._open[-1])
        for each in read_tokens(text, self.decide):
            if isinstance(each, Token):
                if each.text != "#" or self.keeps_branches:
                    self.tokens.append(each._replace(file=file) if file else each)
            elif each.word in ("include", "include_next", "import"):
                self._include(each.rest, folder)
            elif each.word == "pragma" and each.rest.split()[:1] == ["once"] and self._open:
                self._once.add(self._open[-1])
            else:
                self._define(each)
        if len(self.tokens) > _MOST:
            raise _UnreadError("is too large")

    def _define(self, directive: Directive) -> None:
        found = read_definition(directive)
        if found is not None:
            definitions = self.macros.setdefault(found[0], [])
            if found[1] not in definitions:
                definitions.append(found[1])

    def _include(self, named: str, folder: Path | None) -> None:
        end = {'"': '"', "<": ">"}.get(named[:1])
        name, closed, _ = named[1:].partition(end or " ")
        if end is None or not closed:
            self.hide("includes a file that a macro names (name the file itself)")
            return
        beside = [] if folder is None else [folder]
        places = self._angled(name) if end == ">" else [*beside, *self._folder, *self._folders]
        found: Included | None = next(find_files(places, name), None)
        path = None if found is None else found.path.resolve()
        if found is None or path is None:
            self.missing |= end == '"'
            return
        if path in self._open or path in self._once:
            return
        if len(self._open) == _DEEPEST:
            raise _UnreadError("includes files that include each other without end")
        self._open.append(path)
        self.add(found.text, path.parent, name)
        self._open.pop()

    def _angled(self, name: str) -> list[Path]:
        """Return the folders in which a header in angle brackets is searched."""
        return self._folder


_OF_LIBRARIES: Final = re.compile(
    r"(?:cub|thrust|cuda|cute|cutlass|cooperative_groups|nv|std|boost|Eigen|torch|ATen)/.*"
)
"""Headers in angle brackets that are not read even where an option names their folder: they are long, and declare no
kernels of the user's."""
_NEVER: Final = frozenset(
    ("_WIN32", "_WIN64", "_MSC_VER", "__APPLE__", "__HIPCC__", "__HIP__", "__HIP_PLATFORM_AMD__",
     "__HIP_PLATFORM_HCC__", "__OPENCL_VERSION__", "__INTELLISENSE__", "__SYCL_DEVICE_ONLY__")
)  # fmt: skip
"""Macros that no compiler of CUDA for Linux defines."""
_OF_COMPILERS: Final = re.compile(r"_|CUDA(?:RT)?_VERSION|CUDA_NO_|CUDA_API_|CUB_|NV_|THRUST_|NDEBUG")
"""Macros that a compiler or its headers may define."""
_ALWAYS: Final[Mapping[str, int | None]] = {"__CUDACC__": 1, "__cplusplus": None, "__linux__": 1, "__x86_64__": None}
"""Macros that each compiler of CUDA defines, with those values that are the same for all."""


@final
class _Decided(_Files):
    """The tokens that a compiler sees: conditions are evaluated, and a macro has the definition that stands before."""

    keeps_branches = True

    def __init__(self, folder: Path | None, options: Sequence[str]) -> None:
        super().__init__(folder, options)
        self.decide = self._decide
        self._expanded = 0

    def expand(self) -> None:
        """Expand the macros in what has been read since the last time."""
        pending = self.tokens[self._expanded :]
        if pending:
            made = _Expansion(self.macros).of([(token, frozenset()) for token in pending])
            self.tokens[self._expanded :] = [token for token, _ in made]
        self._expanded = len(self.tokens)

    def _define(self, directive: Directive) -> None:
        if directive.word == "undef":
            name = directive.rest.split()[0] if directive.rest.split() else ""
            if name in self.macros:
                self.expand()
                known = self.macros.pop(name)
                if directive.guarded:
                    self.macros[name] = [each._replace(sure=False) for each in known]
            return
        found = read_definition(directive)
        if found is not None and found[0] in self.macros and not directive.guarded:
            if self.macros[found[0]] == [found[1]]:
                return
            self.expand()
            del self.macros[found[0]]
        super()._define(directive)

    def hide(self, why: str) -> None:
        """Take note that the text has something that is not read here: what it defines is not known."""
        self.missing = True

    def _angled(self, name: str) -> list[Path]:
        return self._folder if _OF_LIBRARIES.fullmatch(name) else [*self._folder, *self._folders]

    def _is_defined(self, name: str) -> bool | None:
        """Return whether a macro is defined; None if that is not known."""
        if name in self.macros:
            return True if all(each.sure for each in self.macros[name]) else None
        if name in _ALWAYS:
            return True
        if name in _NEVER:
            return False
        hidden = self.missing or _OF_COMPILERS.match(name)
        return None if hidden else False

    def _decide(self, word: str, condition: tuple[str, ...]) -> bool | None:
        """Return whether a condition holds; None if that is not known."""
        if word in ("ifdef", "ifndef"):
            defined = self._is_defined(condition[0]) if condition else None
            return None if defined is None else defined is (word == "ifdef")
        asked: list[str] = []
        unknown = "unknown"
        at = 0
        while at < len(condition):
            if condition[at] == "defined":
                bracket = condition[at + 1 : at + 2] == ("(",)
                name = condition[at + 1 + bracket : at + 2 + bracket]
                holds = self._is_defined(name[0]) if name else None
                asked.append(unknown if holds is None else str(int(holds)))
                at += 2 + 2 * bracket
            else:
                asked.append(condition[at])
                at += 1
        tokens = [(Token(text, 0, False), frozenset[str]()) for text in asked]
        value = value_of([token.text for token, _ in _Expansion(self.macros).of(tokens)], self._number)
        return None if value is None else bool(value)

    def _number(self, name: str) -> int | None:
        """Return the value of a word that is no macro in the condition of an `#if`: 0, if it surely is none."""
        if name in _ALWAYS:
            return _ALWAYS[name]
        return 0 if name != "unknown" and self._is_defined(name) is False else None


# ---- macros -----------------------------------------------------------------------------------
@final
class _Expansion:
    """The expansion of macros in one text: Prosser's algorithm, with all definitions of a macro."""

    def __init__(self, macros: Mapping[str, Sequence[Definition]]) -> None:
        self._macros = macros
        self._left = _MOST_MADE

    def of(self, given: Sequence[_Marked], depth: int = 0) -> list[_Marked]:
        """Return the tokens with their macros expanded.

        Raises:
            _UnreadError: that does not come to an end.
        """
        found: list[_Marked] = []
        waiting = list(reversed(given))
        while waiting:
            if self._left < 0 or depth > _DEEPEST:
                raise _UnreadError("has macros that become too large")
            token, hidden = waiting.pop()
            definitions = () if token.text in hidden else self._macros.get(token.text, ())
            made = self._made_of(token, hidden, definitions, waiting, depth) if definitions else None
            if made is None:
                found.append((token, hidden))
            else:
                waiting += reversed(made)
                self._left -= len(made)
        return found

    def _made_of(
        self,
        token: Token,
        hidden: frozenset[str],
        definitions: Sequence[Definition],
        waiting: list[_Marked],
        depth: int,
    ) -> list[_Marked] | None:
        """Return what a macro becomes, and take its arguments from what follows it; None if it stays as it is."""
        called = any(each.params is not None for each in definitions)
        taken, arguments = _taken_arguments(waiting) if called else ([], None)
        values = None if arguments is None else [self.of(each, depth + 1) for each in arguments]
        own = hidden | {token.text}
        token = token._replace(guarded=token.guarded or len(definitions) > 1 or not definitions[0].sure)
        # A macro that may have no definition may stand for itself: `#ifndef __CUDACC__`, `#define __device__`.
        made: list[_Marked] = (
            [] if any(each.sure or each.params is not None for each in definitions) else [(token, own)]
        )
        fits = bool(made)
        for each in definitions:
            if each.params is None:
                made += [(token._replace(text=text), own) for text in each.body if text != "#"]
                made += taken
                fits = True
            elif arguments is not None and values is not None:
                raw, whole = _by_name(each, arguments, token), _by_name(each, values, token)
                if raw is not None and whole is not None:
                    made += _substituted(each.body, raw, whole, token, own)
                    fits = True
        if not fits:
            waiting += reversed(taken)
        return made if fits else None


def _taken_arguments(waiting: list[_Marked]) -> tuple[list[_Marked], list[list[_Marked]] | None]:
    """Take the arguments of a macro, which come next, and return them with their brackets, and one by one. None if no
    bracket comes next, or none closes it."""
    taken: list[_Marked] = []
    arguments: list[list[_Marked]] = [[]]
    depth = 0
    while waiting and (taken or waiting[-1][0].text == "("):
        taken.append(waiting.pop())
        text = taken[-1][0].text
        depth += (text == "(") - (text == ")")
        if not depth:
            return taken, arguments
        if text == "," and depth == 1:
            arguments.append([])
        elif len(taken) > 1:
            arguments[-1].append(taken[-1])
    waiting += reversed(taken)
    return [], None


def _by_name(
    definition: Definition, arguments: Sequence[list[_Marked]], token: Token
) -> dict[str, list[_Marked]] | None:
    """Return the arguments by the names of the parameters; None if there are too few or too many."""
    names = definition.params or ()
    given = list(arguments)
    if definition.variadic:
        last = given[len(names) - 1 :]
        joined = [item for each in last for item in [(token._replace(text=","), frozenset[str]()), *each]][1:]
        given = [*given[: len(names) - 1], joined]
    elif not names and given == [[]]:
        given = []
    return dict(zip(names, given, strict=True)) if len(given) == len(names) else None


def _substituted(
    body: Sequence[str],
    raw: Mapping[str, list[_Marked]],
    whole: Mapping[str, list[_Marked]],
    token: Token,
    own: frozenset[str],
) -> list[_Marked]:
    """Return the body of a macro with its arguments: `whole` ones, expanded, and `raw` ones beside `##`."""
    made: list[_Marked] = []
    at, left = 0, False
    joins = False
    while at < len(body):
        text = body[at]
        if text == "#" and body[at + 1 : at + 2] == ("#",):
            joins = left
            at += 2
            continue
        if text == "#":  # what follows becomes a literal
            at += 2
            continue
        beside = joins or tuple(body[at + 1 : at + 3]) == ("#", "#")
        piece = (raw if beside else whole).get(text)
        piece = [(token._replace(text=text), own)] if piece is None else piece
        if joins and piece and made:
            made[-1] = (made[-1][0]._replace(text=made[-1][0].text + piece[0][0].text), own)
            piece = piece[1:]
            left = True
        else:
            left = bool(piece)
        made += piece
        joins = False
        at += 1
    return made


# ---- includes
#
# Finds the files that a compiler may read for a source; the key of its cubin covers them.
#
# NVRTC does not report the files that it reads, so this module scans the text: the phases of translation before
# preprocessing (line splices, comments, literals), then the lines that begin with `#` or `%:`. It evaluates nothing:
# text under `#if 0` counts as included, and a file that is in two folders counts twice. The result may contain too many
# files, which costs a compilation, but never too few: if a text is not understood, the result says so.

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
