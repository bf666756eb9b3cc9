"""Tells code and its output apart: a page in Markdown has both as blocks, and the style
sheet and the copy button need to know which is which.

- A block of text directly below code is its `output`, or the error that it `raises`.
- CUDA is highlighted, also where it is the output of a program.
- The pieces of a script have its line numbers, if an output of the page names lines of
  that script.
"""

import re
from pathlib import Path
from typing import Any

from tests.support.doc_pages import DOCS

FENCE = re.compile(
    r"(?P<mark>(?:^<!--[^\n]*-->\n)?)^```(?P<kind>\{code-block\} python|python|text)\n"
    r"(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
PIECE = re.compile(r"<!-- (?P<script>\S+\.py): ")


def told_apart(folder: Path, text: str) -> str:
    """Return the text of a page in `folder` whose blocks say what they are."""
    parts: list[str] = []
    done = 0
    above: re.Match[str] | None = None
    for fence in FENCE.finditer(text):
        between = text[done : fence.start()]
        if fence["kind"] == "text":
            options = _output_options(fence, above if not between.strip() else None)
            language = "cuda" if "__global__ void" in fence["code"] else "text"
        else:
            options = _piece_options(fence, folder, text)
            language = "python"
        block = fence[0]
        if options or language == "cuda":
            lines = "".join([f":{name}: {value}\n" for name, value in options.items()])
            head = f"{fence['mark']}```{{code-block}} {language}\n{lines}\n"
            block = f"{head}{fence['code']}```"
        parts += [between, block]
        done = fence.end()
        above = fence
    return "".join([*parts, text[done:]])


def _output_options(
    fence: re.Match[str], above: re.Match[str] | None
) -> dict[str, str]:
    """Return the options of a block of text, directly below the block `above`."""
    if "prints" in fence["mark"]:
        return {"class": "output"}
    if above is None or above["kind"] == "text" or fence["mark"]:
        return {}
    return {"class": "raises" if "raises:" in above["mark"] else "output"}


def _piece_options(fence: re.Match[str], folder: Path, text: str) -> dict[str, str]:
    """Return the options of a block of code: line numbers for the piece of a script."""
    piece = PIECE.match(fence["mark"])
    if piece is None or not re.search(rf"{re.escape(piece['script'])}:\d", text):
        return {}
    script = (folder / piece["script"]).read_text(encoding="utf-8")
    line = script[: script.index(fence["code"])].count("\n") + 1
    return {"lineno-start": str(line)}


def tell_apart(_app: Any, name: str, source: list[str]) -> None:
    """Tell the blocks of each page apart as Sphinx reads it."""
    source[0] = told_apart((DOCS / name).parent, source[0])


def setup(app: Any) -> dict[str, bool]:
    """Sphinx's entry."""
    app.connect("source-read", tell_apart)
    return {"parallel_read_safe": True}
