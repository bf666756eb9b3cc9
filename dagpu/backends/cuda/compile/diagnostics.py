"""Translates a CUDA compiler's messages to places in the user's own source.

NVRTC and nvcc share a front end. It writes `file(line): error: text`, the line as it saw it and a caret, then the chain
of template instantiations. Errors also come from nvcc's preprocessor (gcc: `file:line:column: error: text`), and from
ptxas and the drivers of both, which give no line of the source. Warnings and notes are omitted.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

_SHOWN = 5
"""The number of errors that one message shows. The first errors cause most of the others."""

_ERROR = r"(?:catastrophic |internal |fatal |command-line )?error(?: #[\w-]+)?:"
_FRONT_END = re.compile(rf"(?P<file>.+)\((?P<line>\d+)\): {_ERROR} (?P<text>.*)")
_AT_END = re.compile(rf"At end of source: {_ERROR} (?P<text>.*)")
_GCC = re.compile(rf"(?P<file>.+?):(?P<line>\d+):(?:(?P<column>\d+):)? {_ERROR} (?P<text>.*)")
_NO_LINE = re.compile(r"(?:ptxas|nvcc|nvrtc|nvlink|cicc)\b.*?(?:error|fatal) *: (?P<text>.*)")
_OTHER = re.compile(r"(?P<file>.+)\((?P<line>\d+)\): (?:warning|note|remark|error)\b.*|Remark: .*")
_INSTANTIATED = re.compile(r"\bat line (?P<line>\d+) of (?P<file>.+)")
_PTX_ABORTED = "Ptx assembly aborted due to errors"  # follows the errors themselves


@final
@dataclass(frozen=True, slots=True)
class SourceText:
    """The user's text, its file and first line, and the user's files that it includes, by path."""

    file: str
    line: int
    text: str
    included: tuple[tuple[str, str], ...] = ()

    def at(self, file: str, line: int) -> str | None:
        """Return a line of the user's files; None if `file` is not one of them or has no such line."""
        texts = {**dict(self.included), self.file: self.text}
        lines = texts.get(file, "").split("\n")
        index = line - (self.line if file == self.file else 1)
        return lines[index].rstrip("\r") if file in texts and 0 <= index < len(lines) else None


@final
@dataclass(frozen=True, slots=True)
class Problem:
    """One error. `line` is 0 if the compiler gives none; `after` is the compiler's echo of the line, from the caret
    on."""

    text: str
    file: str = ""
    line: int = 0
    column: int = 0
    after: str = ""


# ---- reading ----------------------------------------------------------------------------------
def read_log(log: str, source: SourceText) -> list[Problem]:
    """Return the errors in a compiler's log, each once. Each has a place in the user's files if one is known."""
    lines = log.splitlines()
    problems: dict[Problem, None] = {}
    for at, line in enumerate(lines):
        if found := _FRONT_END.fullmatch(line) or _AT_END.fullmatch(line):
            problems[_front_end(found, _block(lines, at + 1), source)] = None
        elif found := _GCC.fullmatch(line):
            column = int(found["column"] or 0)
            problems[Problem(found["text"], found["file"], int(found["line"]), column)] = None
        elif (found := _NO_LINE.match(line)) and found["text"] != _PTX_ABORTED:
            problems[Problem(found["text"])] = None
    return list(problems)


def _block(lines: Sequence[str], start: int) -> list[str]:
    """Return the lines after an error's first line, up to the next message."""
    end = start
    while end < len(lines) and lines[end].strip() and not _FRONT_END.fullmatch(lines[end]):
        end += 1
    return list(lines[start:end])


def _front_end(found: re.Match[str], block: Sequence[str], source: SourceText) -> Problem:
    text = found["text"]
    notes = [i for i, line in enumerate(block) if _OTHER.fullmatch(line)]
    own = block[: notes[0]] if notes else block
    caret = next((i for i, line in enumerate(own) if line.strip() == "^"), 0)
    detected = next((i for i, line in enumerate(own) if line.lstrip().startswith("detected during")), len(own))
    # Details, such as the argument types of a call, are between the message and the echoed line.
    text = "; ".join([text, *(line.strip() for line in own[: max(0, (caret or detected) - 1)])])
    after = own[caret - 1][own[caret].index("^") :] if caret else ""
    if "file" not in found.groupdict():  # At end of source: a note gives the place of the open bracket
        note = _OTHER.fullmatch(block[notes[0]]) if notes else None
        if note is None or note["file"] is None:
            return Problem(text, source.file, source.line + source.text.rstrip().count("\n"))
        return Problem(f"{text} to match the one here", note["file"], int(note["line"]))
    problem = Problem(text, found["file"], int(found["line"]), 0, after)
    if source.at(problem.file, problem.line) is not None:
        return problem
    # In dagpu's code or the toolkit's: show the innermost line of the user's that instantiates it.
    for line in block:
        place = _INSTANTIATED.search(line)
        if place and source.at(place["file"], int(place["line"])) is not None:
            header = f"{text} (in {Path(problem.file).name}, which this line uses)"
            return replace(problem, text=header, file=place["file"], line=int(place["line"]), after="")
    return problem


# ---- explaining -------------------------------------------------------------------------------
_TOOLKIT = "install the CUDA toolkit, which has nvcc"
_CURES = (
    (
        r"gpu.architecture",
        "This compiler does not know the GPU: install a newer CUDA toolkit, or a newer nvidia-cuda-nvrtc.",
    ),
    (
        r"gcc: not found|cl\.exe|clang|cc1plus|host compiler",
        "nvcc needs a host compiler: install one that it supports, or name it: options=('-ccbin', 'its path').",
    ),
    (
        r"open source file \"(?:nv|cuda|cub|thrust)/|\b(?:nv|cuda|cub|thrust)/\S+: No such file",
        "It is a header of CUDA C++: pip install nvidia-cuda-cccl, or install the CUDA toolkit.",
    ),
    (
        r"open source file|No such file or directory",
        f"Name the header's folder: options=('-I/its/folder',). For headers of the host, {_TOOLKIT}.",
    ),
    (
        r"in JIT mode|calling a __host__ function",
        f"Mark functions that kernels call __device__; to have host code beside kernels, {_TOOLKIT}.",
    ),
    (
        r"unrecognized option|unknown option|invalid value for|the options ask|(?:needs|requires|expected) an argument",
        "Correct options= of the kernel.",
    ),
    (
        r"too much shared data",
        "Declare large arrays `extern __shared__`, and give their bytes with .shared_memory(...).",
    ),
    (
        r"unresolved extern function",
        "Define the function in this source or a header of it: a kernel is not linked to other files.",
    ),
)
"""Patterns of error texts, matched without regard to case, each with its cure. The first match counts."""


def explain(kernel: str, declared: str, compiler: str, log: str, source: SourceText) -> str:
    """Return the message of a `CompileError`: kernel, place, each error with its line, the cure."""
    problems = read_log(log, source)
    parts = [f"kernel {kernel!r}, CUDA source at {declared}: {compiler} refused it."]
    for problem in problems[:_SHOWN]:
        parts += _shown(problem, source)
    if len(problems) > _SHOWN:
        parts.append(f"  and {len(problems) - _SHOWN} more")
    if not problems:
        parts += [f"  {line}" for line in log.strip().splitlines()[-10:]] or ["  The compiler gives no further text."]
    told = "\n".join(problem.text for problem in problems) or log
    default = "Correct the lines shown." if any(p.line for p in problems) else "Correct the source, or its options=."
    cure = next((cure for pattern, cure in _CURES if re.search(pattern, told, re.IGNORECASE)), default)
    return "\n".join([*parts, cure])


def _shown(problem: Problem, source: SourceText) -> list[str]:
    """Return the lines that show an error: place and text, the user's line, a caret."""
    if not problem.line:
        return [f"  {problem.text}"]
    lines = [f"  {problem.file}:{problem.line}: {problem.text}"]
    echo = source.at(problem.file, problem.line)
    if echo is None:
        return lines
    lines.append(f"    {echo}")
    column = problem.column - 1
    # nvcc echoes the preprocessed line, in which __global__ and macros are expanded. The text right of the caret is the
    # user's again.
    if column < 0 and problem.after.strip() and echo.rstrip().endswith(problem.after.rstrip()):
        column = len(echo.rstrip()) - len(problem.after.rstrip())
    if 0 <= column <= len(echo):
        lines.append("    " + "".join("\t" if c == "\t" else " " for c in echo[:column]) + "^")
    return lines
