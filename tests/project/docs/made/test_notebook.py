"""The notebook of the tutorial runs, and what it makes shows itself."""

import re
from typing import Any

import pytest

from tests.project.docs.made.notebooks import NOTEBOOK, as_page, executed

pytestmark = pytest.mark.host_only("the notebook shows what is made on the host")


@pytest.fixture(scope="module")
def cells() -> list[Any]:
    """The cells of the notebook, run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGPU_DEVICE", "host")
        return executed(NOTEBOOK)


def shown(cells: list[Any], last_line: str) -> dict[str, str]:
    """What the cell shows that ends with this line: the data of its outputs by their type."""
    (cell,) = [cell for cell in cells if cell.cell_type == "code" and cell.source.splitlines()[-1] == last_line]
    return {kind: data for output in cell.outputs for kind, data in output.data.items()}


def test_no_cell_warns(cells: list[Any]) -> None:
    """Nor prints: all that is seen is what the last line of a cell gives, and what is displayed."""
    streams = [output for cell in cells if cell.cell_type == "code" for output in cell.outputs if "text" in output]
    assert streams == []


@pytest.mark.parametrize(("last_line", "title"), [("op", "DAG of"), ("plan_of(op)", "Plan of"), ("graph", "Plan of")])
def test_ops_plans_and_graphs_show_pictures(cells: list[Any], last_line: str, title: str) -> None:
    """In a box that scrolls, so that a wide one is not made smaller."""
    page = shown(cells, last_line)["text/html"]
    assert page.startswith('<div style="overflow-x:auto"><svg')
    assert f"<title>{title}" in page


def test_a_place_in_a_notebook_is_a_cell_and_a_line(cells: list[Any]) -> None:
    """Named as Jupyter names it, not as the temporary file under which it is compiled."""
    page = shown(cells, "op")["text/html"]
    assert ">In[2]:7<" in page
    assert "\nat In[2]:10" in page
    assert "ipykernel" not in page


def test_handles_feeds_and_timelines_show_tables(cells: list[Any]) -> None:
    """Each with its numbers."""
    assert "float32" in shown(cells, "tensor")["text/html"]
    assert "Overlap, measured: " in shown(cells, "timeline")["text/html"]
    feed = shown(cells, "await in_trio(two_values)")
    assert "Feed opened at" in feed["text/html"]
    assert "values=2" in feed["text/html"]
    assert "launched=12, reused=4" in feed["text/html"]


def test_the_values_are_right(cells: list[Any]) -> None:
    """The norms of a ramp that is cut off at 1, by its integral: the higher the gain, the louder."""
    assert shown(cells, "float(quiet.round()), float(loud.round())")["text/plain"] == "(836.0, 935.0)"
    assert shown(cells, "await in_trio(two_values)")["text/plain"] == "[[836.0, 935.0], [903.0, 935.0]]"


def test_the_page_of_the_notebook_has_every_cell(cells: list[Any]) -> None:
    """In order, each with its outputs. Code has the numbers by which pictures name it."""
    page = as_page(cells)
    code = [cell for cell in cells if cell.cell_type == "code"]
    assert re.findall(r"^:caption: (.*)$", page, re.MULTILINE) == [f"In[{n + 1}]" for n in range(len(code))]
    places = [page.index(cell.source) for cell in cells]
    assert places == sorted(places)
    assert page.count("<svg") == 3


def test_the_notebook_is_kept_without_outputs() -> None:
    """They are made anew for the page, so that none is stale."""
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert '"outputs": []' in text
    assert '"output_type"' not in text
