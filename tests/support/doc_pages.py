"""Reads and runs pages of the documentation: their blocks of code, their scripts and their pictures.

- A page is one program: its ```` ```python ```` blocks run in order, on the host. The comment of
  `print(...)  # text` is the expected output, as is a ```` ```text ```` block below `<!-- prints -->`. A block below
  `<!-- raises: MovedError -->` must raise that error. The ```` ```text ```` block after it is the message; for a group,
  also the messages of its parts, as `told` formats them. A block below `<!-- not run: why -->` is only shown. A
  ```` ```text ```` block below `<!-- mypy -->` is the report of mypy, with the plugin, on the block of code before it.
- A page of the tutorial also shows, piece by piece, a script `NN_name.py` in the same folder. A block below
  `<!-- 01_hello.py: describe -->` is the piece of that script from its line `# docs: describe` to its next line
  `# docs: `; `python -m tests.support.doc_pages` writes the pieces of the scripts into the pages. The ```` ```text ````
  blocks below `<!-- prints -->` are together the output of that script. Below `<!-- prints, measured -->`, times and
  percentages match any others.
- A picture `_static/generated/name.svg` of a page is written by its code, or its script, with `save_svg("name.svg")`;
  those of `OF_RESULTS` are made of kept results of benchmarks.

In messages, the first block of a page is the file `common.py`, unless it raises, and each other block a `program.py`.
Their lines count from 1. Any white space matches any other, `...` matches anything, and files are named without their
folder.
"""

import contextlib
import io
import linecache
import os
import re
import runpy
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from tests.support.paths import ROOT

DOCS = ROOT / "docs"
GENERATED = DOCS / "_static" / "generated"


OF_RESULTS = frozenset({"memory-curves.svg"})
"""The pictures that docs/_ext/generated.py makes of kept results."""

_MADE_OF = {
    ROOT / "benchmarks" / "results": DOCS / "benchmarks.md",
    ROOT / "examples" / "README.md": DOCS / "examples.md",
    ROOT / "tests" / "project" / "parity" / "rows.py": DOCS / "parity.md",
    DOCS / "tutorial" / "12_notebook.ipynb": DOCS / "tutorial" / "notebook.md",
}
"""The files and folders of which docs/_ext/generated.py makes a page, and that page."""

LINK = re.compile(r"(?P<text>\[[^\]]*\])\((?P<target>[^)\s#]+)(?P<part>#[^)\s]*)?\)")


def page_of(file: Path) -> Path | None:
    """Return the page that the documentation makes of a file or folder; None if there is none."""
    if file.parent == ROOT / "benchmarks" / "results" and file.suffix == ".md":
        return DOCS / "benchmarks" / file.name
    return _MADE_OF.get(file)


def is_made(page: Path) -> bool:
    """Return true for a page that docs/_ext/generated.py writes. It exists once the documentation has been built."""
    return page in _MADE_OF.values() or page.parent == DOCS / "benchmarks"


def with_made_pages(page: Path, text: str) -> str:
    """Return the text of a page whose links to files lead to the pages made of them.

    The links of a page lead to what a clone has, so that they work where nothing has been built. A page that is made of
    a file may offer the file itself.
    """

    def led(match: re.Match[str]) -> str:
        made = page_of(Path(os.path.normpath(page.parent / match["target"])))
        if made is None or made == page:
            return match[0]
        return f"{match['text']}({os.path.relpath(made, page.parent)}{match['part'] or ''})"

    return LINK.sub(led, text)


_BLOCK = re.compile(
    r"^(?P<mark>(?:<!--[^\n]*-->\n)?)```(?P<kind>python|text)\b[^\n]*\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
_PIECE = re.compile(
    r"^(?P<mark><!-- (?P<file>\S+\.py): (?P<name>[^\n]+) -->\n```python\n)(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
_PICTURE = re.compile(r"_static/generated/(?P<name>[\w-]+\.svg)")


@final
@dataclass(frozen=True)
class Block:
    """One block of Python: its lines, the comment above it, and the messages below it."""

    line: int
    """The line of the page on which the code begins."""
    file: str
    """The name of the file that it is in messages."""
    code: str
    raises: str | None
    skipped: bool
    message: str | None
    mypy: tuple[str, ...]
    output: str
    """The output below it; empty without one."""

    @property
    def prints(self) -> list[str]:
        """Return the lines that the block prints, according to its comments and to the output below it."""
        return [*re.findall(r"print\(.*\)\s+# (.*)", self.code), *self.output.splitlines()]

    def run(self, page: Path, names: dict[str, Any]) -> None:
        """Run the block. It can import the modules in the page's folder."""
        file = str(page.parent / self.file)
        program = compile(self.code, file, "exec")
        # as a file that is there: tracebacks show its lines, and dagpu may read its source
        linecache.cache[file] = (len(self.code), None, self.code.splitlines(keepends=True), file)
        with neighbours(page):
            exec(program, names)


@contextlib.contextmanager
def neighbours(file: Path) -> Iterator[None]:
    """Within the `with` block, the modules in the file's folder can be imported."""
    sys.path.insert(0, str(file.parent))
    try:
        yield
    finally:
        sys.path.remove(str(file.parent))


def pages() -> list[Path]:
    """Return all pages that are written by hand."""
    return sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts and not is_made(page))


def blocks(page: Path) -> Iterator[Block]:
    """Iterate over the Python blocks of a page, without the pieces of scripts."""
    text = page.read_text(encoding="utf-8")
    found = list(_BLOCK.finditer(text))
    file = "common.py"
    for number, match in enumerate(found):
        if match["kind"] != "python" or ".py: " in match["mark"]:
            continue
        raises = re.search(r"raises: (\w+)", match["mark"])
        message: str | None = None
        mypy: list[str] = []
        output = ""
        for after in found[number + 1 :]:
            if after["kind"] == "python":
                break
            if "mypy" in after["mark"]:
                mypy += after["code"].strip().split("\n\n")
            elif "prints" in after["mark"]:
                output += after["code"]
            elif raises and not after["mark"] and message is None:
                message = after["code"]
        line = text[: match.start("code")].count("\n") + 1
        if raises and file == "common.py":
            file = "program.py"  # a page of one program
        skipped = "not run:" in match["mark"]
        yield Block(line, file, match["code"], raises and raises[1], skipped, message, tuple(mypy), output)
        file = "program.py"


_TIME = re.compile(r"\d+(?:\\\.\d+)?\\s\+[um]?s\b")


def said(message: str, *, measured: bool = False) -> re.Pattern[str]:
    """Return a message of the documentation as a pattern.

    White space matches any, and `...` matches anything. Of `measured` output, so do the numbers of times and
    percentages.
    """
    words = re.split(r"\s+", message.strip())
    pattern = r"\s+".join(re.escape(word).replace(r"\.\.\.", ".*?") for word in words)
    if measured:
        pattern = re.sub(r"\d+%", lambda _: r"\d+%", _TIME.sub(lambda _: r"[\d.]+\s+[um]?s", pattern))
    return re.compile(pattern, re.DOTALL)


def told(error: BaseException) -> str:
    """Return an error as a page shows it: its type and message. Below the message of a group are those of its parts."""
    parts = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return "\n".join([f"{type(error).__name__}: {error}", *map(told, parts)])


@final
@dataclass(frozen=True)
class Piece:
    """One piece of a script that a page shows."""

    script: Path
    name: str
    """The name in the line `# docs: ` above the piece, in the script."""
    code: str
    """The piece as the page shows it."""


def pieces(page: Path) -> list[Piece]:
    """Return the pieces of scripts that a page shows."""
    found = _PIECE.finditer(page.read_text(encoding="utf-8"))
    return [Piece(page.parent / match["file"], match["name"], match["code"]) for match in found]


def pieces_of(script: Path) -> dict[str, str]:
    """Return the pieces of a script by their names, without blank lines around them. The checks at its end are none."""
    _, *parts = re.split(r"^# docs: (.*)\n", script.read_text(encoding="utf-8"), flags=re.MULTILINE)
    named = zip(parts[::2], parts[1::2], strict=True)
    return {name: code.strip("\n") + "\n" for name, code in named if name != "end"}


def with_pieces(page: Path) -> str:
    """Return the text of a page with each piece as its script has it."""

    def filled(match: re.Match[str]) -> str:
        return f"{match['mark']}{pieces_of(page.parent / match['file'])[match['name']]}```"

    return _PIECE.sub(filled, page.read_text(encoding="utf-8"))


def script_of(page: Path) -> Path | None:
    """Return the script that a page of the tutorial shows, or None."""
    return next((piece.script for piece in pieces(page) if piece.script.name[0].isdigit()), None)


def printed(page: Path) -> re.Pattern[str]:
    """Return the output of the script according to the page, as a pattern."""
    found = [match for match in _BLOCK.finditer(page.read_text(encoding="utf-8")) if "prints" in match["mark"]]
    patterns = [said(match["code"], measured="measured" in match["mark"]).pattern for match in found]
    return re.compile(r"\s+".join(patterns), re.DOTALL)


def pictures(page: Path) -> set[str]:
    """Return the names of the generated pictures in a page that its code writes."""
    return {match["name"] for match in _PICTURE.finditer(page.read_text(encoding="utf-8"))} - OF_RESULTS


def run_script(script: Path) -> dict[str, Any]:
    """Run a script of the tutorial as Python does. Return its global names."""
    with neighbours(script):
        return runpy.run_path(str(script), run_name="__main__")


@contextlib.contextmanager
def _aside() -> Iterator[Path]:
    """Within the `with` block, code runs on the host, in a separate folder, and prints nothing."""
    import dagpu

    silent = contextlib.redirect_stdout(io.StringIO())
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), silent, dagpu.use_device("host"):
        yield Path(folder)


def draw(page: Path) -> dict[str, str]:
    """Run a page's code on the host, in a separate folder. Return the pictures that it writes, by name."""
    with _aside() as folder:
        script = script_of(page)
        if script is not None:
            run_script(script)
        names: dict[str, Any] = {"__name__": "__main__"}
        for block in blocks(page):
            with contextlib.suppress(*[Exception] if block.raises else []):
                if not block.skipped:
                    block.run(page, names)
        return {file.name: file.read_text(encoding="utf-8") for file in folder.glob("*.svg")}


def names_of(script: Path) -> dict[str, Any]:
    """Run a script of the tutorial on the host, in a separate folder. Return its global names."""
    with _aside():
        return run_script(script)


if __name__ == "__main__":
    for written in pages():
        written.write_text(with_pieces(written), encoding="utf-8")
