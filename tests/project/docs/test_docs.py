"""The documentation's code runs as it stands there, its pictures are drawn, and its links lead somewhere.

tests/support/doc_pages.py says how a page is read.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dagpu
from tests.support.doc_pages import (
    DOCS,
    GENERATED,
    LINK,
    blocks,
    is_made,
    pages,
    pictures,
    pieces,
    pieces_of,
    printed,
    run_script,
    said,
    script_of,
    told,
    with_made_pages,
)
from tests.support.mypy_checks import Checker, Message, dependencies
from tests.support.paths import ROOT

PAGES = pages()
GUIDES = [page for page in PAGES if page.parent.name == "guides" and any(blocks(page))]
TUTORIAL = [page for page in PAGES if script_of(page) is not None]

pytestmark = pytest.mark.host_only("the pages show what is printed on the host")

READ_FIRST = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "examples" / "README.md"]


def name(page: Path) -> str:
    return str(page.relative_to(DOCS if DOCS in page.parents else ROOT))


def linked(page: Path) -> list[Path]:
    """Return the files and folders that a page links, without addresses."""
    targets = [match["target"] for match in LINK.finditer(page.read_text(encoding="utf-8"))]
    return [(page.parent / target).resolve() for target in targets if not re.match(r"https?://|mailto:", target)]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_code_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In order, on the host; it prints what it says, fails as it says, and writes the pictures that the page shows."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    expected: list[str] = []
    for block in blocks(page):
        if block.skipped:
            continue
        with dagpu.use_device("host"):
            if block.raises is None:
                block.run(page, names)
            else:
                with pytest.raises(Exception) as caught:  # noqa: PT011  # which one is looked at below
                    block.run(page, names)
                assert type(caught.value).__name__ == block.raises
                if block.message is not None:
                    assert said(block.message).fullmatch(told(caught.value).replace(f"{page.parent}/", ""))
        expected += block.prints
    assert capsys.readouterr().out.replace(f"{page.parent}/", "").splitlines() == expected
    if script_of(page) is None:
        assert pictures(page) <= {file.name for file in tmp_path.glob("*.svg")}


@pytest.mark.parametrize("page", TUTORIAL, ids=name)
def test_a_script_of_the_tutorial_prints_what_its_page_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of it, in order; and it writes the pictures that the page shows."""
    monkeypatch.chdir(tmp_path)
    script = script_of(page)
    assert script is not None
    with dagpu.use_device("host"):
        run_script(script)
    assert printed(page).fullmatch(capsys.readouterr().out.strip().replace(f"{script.parent}/", ""))
    assert pictures(page) <= {file.name for file in tmp_path.glob("*.svg")}


def test_every_script_of_the_tutorial_has_a_page() -> None:
    """Every script of the tutorial has exactly one page."""
    shown = sorted(script_of(page) or page for page in TUTORIAL)
    assert sorted((DOCS / "tutorial").glob("[0-9]*.py")) == shown


@pytest.mark.parametrize("page", TUTORIAL, ids=name)
def test_the_pieces_that_a_page_shows_make_the_whole_script(page: Path) -> None:
    """In order, with nothing left out but the checks at its end: whoever pastes them has a program that runs.

    Where a piece is another one than in the script: `python -m tests.support.doc_pages` writes it into the page.
    """
    script = script_of(page)
    assert script is not None
    for piece in pieces(page):
        assert piece.code == pieces_of(piece.script)[piece.name]
    assert [piece.name for piece in pieces(page) if piece.script == script] == list(pieces_of(script))


@pytest.mark.parametrize("page", [*PAGES, *READ_FIRST], ids=name)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    """To a file or folder of a clone in which nothing has been built, or to an address. Pictures alone are made."""
    for file in linked(page):
        assert file.exists() or file.parent == GENERATED, f"{page.name} leads to {file}"
        assert not is_made(file), f"{page.name} leads to {file}, which only the built documentation has"


def test_a_reader_of_a_clone_reaches_every_page() -> None:
    """By links, from the README."""
    seen: set[Path] = set()
    ahead = [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        if page not in seen and page.suffix == ".md" and page.exists():
            seen.add(page)
            ahead += linked(page)
    assert set(PAGES) <= seen


def test_links_to_files_lead_to_the_pages_made_of_them() -> None:
    """In the built documentation: relative to the page, with the part that the link names."""
    page = DOCS / "guides" / "graphs.md"
    text = "[a](../../benchmarks/results/launch.md#launches) [b](../../benchmarks/results) [c](memory.md) [d](#here)"
    assert (
        with_made_pages(page, text)
        == "[a](../benchmarks/launch.md#launches) [b](../benchmarks.md) [c](memory.md) [d](#here)"
    )


def test_the_page_of_the_notebook_offers_the_notebook() -> None:
    """The file, for a link from the page that is made of it to itself leads nowhere."""
    link = "[the notebook](12_notebook.ipynb)"
    assert with_made_pages(DOCS / "tutorial" / "notebook.md", link) == link
    assert with_made_pages(DOCS / "tutorial" / "index.md", link) == "[the notebook](notebook.md)"


def module_name(page: Path) -> str:
    return f"guide_{page.stem.replace('-', '_')}.py"


@pytest.fixture(scope="module")
def guides_checked(tmp_path_factory: pytest.TempPathFactory) -> list[Message]:
    """What mypy says of all guides in one run: the blocks of each as one program, on the lines of the page."""
    checker = Checker(tmp_path_factory.mktemp("guides"), dependencies(tmp_path_factory))
    programs: dict[str, str] = {}
    for page in GUIDES:
        lines = [""] * page.read_text(encoding="utf-8").count("\n")
        for block in blocks(page):
            code = block.code.splitlines()
            lines[block.line - 1 : block.line - 1 + len(code)] = code
        programs[module_name(page)] = "\n".join(lines) + "\n"
    checker.write(programs)
    return checker.check(*programs)


@pytest.mark.skipif(np.__version__ < "2", reason="mypy names NumPy's own types, which NumPy 1 has other names for")
@pytest.mark.xdist_group("mypy_docs")  # they share a run
@pytest.mark.parametrize("page", GUIDES, ids=name)
def test_mypy_says_of_a_guide_what_the_guide_says(page: Path, guides_checked: list[Message]) -> None:
    """With the plugin: each message at the block that stands before it, and of nothing else anything; so what somebody
    pastes from a guide is accepted by his checker too. Blocks that are only shown are checked as well."""
    expected: list[tuple[range, str]] = []
    for block in blocks(page):
        expected += [(range(block.line, block.line + block.code.count("\n") + 1), message) for message in block.mypy]
    found = [each for each in guides_checked if each.file == module_name(page) and each.kind == "error"]
    assert len(found) == len(expected), found
    for message, (where, wanted) in zip(found, expected, strict=True):
        assert message.line in where
        # a block's lines count from 1 for its reader
        text = re.sub(r"(?<=on line )\d+", lambda match: str(int(match[0]) - where.start + 1), message.text)  # noqa: B023
        assert said(wanted).fullmatch(f"error: {text}  [{message.code}]"), text
