"""Code fits the pages: a window of 1280 pixels shows 88 characters of it in a line. Tables are whole."""

import ast
import builtins
import re
from pathlib import Path

import pytest

from tests.support.doc_pages import DOCS, pages
from tests.support.example_scripts import EXAMPLES
from tests.support.paths import ROOT

WIDEST = 88
FENCE = re.compile(r"^```(?P<kind>\w*)[^\n]*\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)

PROGRAMS = sorted([*(ROOT / "examples").rglob("*.py"), *(DOCS / "tutorial").glob("*.py")])


@pytest.mark.parametrize("page", [*pages(), ROOT / "README.md"], ids=lambda page: page.name)
def test_the_code_of_a_page_fits(page: Path) -> None:
    """Programs, commands and messages alike."""
    for match in FENCE.finditer(page.read_text(encoding="utf-8")):
        assert [line for line in match["text"].splitlines() if len(line) > WIDEST] == []


MEASURED = re.compile(r"\b\d[\d.,]* (?:us|GB/s|TB/s)\b")
"""A time or a rate that somebody has measured."""
CHOSEN = re.compile(r"declared to|taken for|`DAGPU_SPIN_US`|`within`|Parts of 50 ms")
"""Words beside numbers that somebody has chosen."""


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_a_measured_number_leads_to_its_measurement(page: Path) -> None:
    """In prose, a time in microseconds or a rate stands in a paragraph that links the kept result, with its machine and
    date. Such a number in the output of a program is a prediction of that program."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for paragraph in re.split(r"\n\s*\n", text):
        if MEASURED.search(paragraph) and not CHOSEN.search(paragraph):
            assert "benchmarks/results" in paragraph, paragraph


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_a_program_that_is_only_shown_defines_its_names(page: Path) -> None:
    """One that needs a library which the tests have not, and so is no block of Python: it imports or assigns whatever
    it uses."""
    for match in FENCE.finditer(page.read_text(encoding="utf-8")):
        if match["kind"] != "text" or not match["text"].startswith(("import ", "from ")):
            continue
        nodes = list(ast.walk(ast.parse(match["text"])))
        bound = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
        bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        bound |= {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
        for node in nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                bound |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        used = {node.id for node in nodes if isinstance(node, ast.Name)}
        assert used - bound - set(dir(builtins)) == set()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_the_lines_of_a_program_fit(program: Path) -> None:
    """In the examples and in the scripts of the tutorial."""
    lines = program.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if len(line) > WIDEST] == []


@pytest.mark.parametrize("page", [*pages(), *ROOT.glob("*.md"), EXAMPLES / "README.md"], ids=lambda page: page.name)
def test_every_table_has_a_head(page: Path) -> None:
    """A blank line inside a table cuts it in two, and the second one is shown as text. All rows have as many cells."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for match in re.finditer(r"^\|.*\n(?:\|.*\n)*", text, re.MULTILINE):
        rows = match[0].splitlines()
        assert len(rows) > 2, rows
        assert re.fullmatch(r"\|(?: :?-+:? \|)+", rows[1]), rows[:2]
        cells = {len(re.sub(r"`[^`]*`|\\\|", "", row).split("|")) for row in rows}
        assert len(cells) == 1, rows


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_no_table_is_mangled_by_ellipses(page: Path) -> None:
    """An ellipsis in the output of a program stands for whole lines, or for a name or a number, not for columns."""
    for match in FENCE.finditer(page.read_text(encoding="utf-8")):
        if match["kind"] == "text":
            assert [line for line in match["text"].splitlines() if re.search(r"\S {2,}\S.* \.\.\.$", line)] == []
