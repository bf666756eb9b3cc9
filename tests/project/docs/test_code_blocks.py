"""The built pages tell code and its output apart: docs/_ext/code_blocks.py."""

import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.support.doc_pages import DOCS


@pytest.fixture(scope="module")
def told_apart() -> Any:
    return runpy.run_path(str(DOCS / "_ext" / "code_blocks.py"))["told_apart"]


def test_text_directly_below_code_is_its_output(told_apart: Any) -> None:
    """Prose in between makes it something else, and so does a comment that says what it is."""
    code = "```python\nprint(1)\n```\n"
    shown = "```{code-block} text\n:class: output\n\n1\n```\n"
    assert told_apart(DOCS, f"{code}\n```text\n1\n```\n") == f"{code}\n{shown}"
    for other in (f"{code}\nSee:\n\n```text\n1\n```\n", f"{code}\n<!-- mypy -->\n```text\n1\n```\n"):
        assert told_apart(DOCS, other) == other


def test_a_message_is_what_the_code_raises(told_apart: Any) -> None:
    """And not what it prints."""
    page = "<!-- raises: MovedError -->\n```python\nx\n```\n```text\nMovedError: x\n```\n"
    assert ":class: raises\n" in told_apart(DOCS, page)


def test_cuda_is_highlighted_as_cuda(told_apart: Any) -> None:
    """Below code, and by itself."""
    page = "Text:\n\n```text\n__global__ void f() {}\n```\n"
    assert told_apart(DOCS, page) == "Text:\n\n```{code-block} cuda\n\n__global__ void f() {}\n```\n"


def test_pieces_have_the_lines_of_their_script_if_an_output_names_lines(told_apart: Any, tmp_path: Path) -> None:
    """The numbers are those of the file, not of the piece."""
    (tmp_path / "01_a.py").write_text("import b\n\n# docs: run\nb.run()\n", encoding="utf-8")
    page = "<!-- 01_a.py: run -->\n```python\nb.run()\n```\n"
    numbered = "<!-- 01_a.py: run -->\n```{code-block} python\n:lineno-start: 4\n\nb.run()\n```\n"
    assert told_apart(tmp_path, page) == page
    assert told_apart(tmp_path, f"{page}\nbuilt at 01_a.py:4\n") == f"{numbered}\nbuilt at 01_a.py:4\n"
