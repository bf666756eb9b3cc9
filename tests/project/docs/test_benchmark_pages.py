"""The pages of measurements show what the kept results say."""

import json
import re

from tests.project.docs.benchmark_pages import FIGURES, RESULTS, details, summary
from tests.support.paths import ROOT


def test_each_figure_shows_the_medians_of_its_rows() -> None:
    """A figure has a bar for each of its rows, and the longest is the slowest one."""
    page = summary()
    widths = [float(width) for width in re.findall(r"width:([\d.]+)%", page)]
    assert len(widths) == sum(len(figure.bars) for figure in FIGURES)
    assert widths.count(100.0) >= len(FIGURES)
    for figure in FIGURES:
        assert f"## {figure.question}" in page


def test_each_result_has_a_page() -> None:
    """The page begins with its title, keeps every table, and ends with the machine."""
    made = details()
    assert made.keys() == {file.name for file in RESULTS.glob("*.md")}
    for name, page in made.items():
        kept = (RESULTS / name).read_text(encoding="utf-8")
        assert sorted(filter(None, kept.splitlines())) == sorted(
            line for line in page.splitlines() if line and line != "## Machine"
        )


def test_the_first_page_says_what_was_measured() -> None:
    """Its two numbers are the rounded medians of one run."""
    rows = json.loads((RESULTS / "graph.json").read_text(encoding="utf-8"))["tables"][1]["rows"]
    medians = {row["name"]: round(row["median"]) for row in rows}
    ours, floor = medians["dagpu: pipeline, nothing changed"], medians["C++, CUDA graph"]
    first = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert f"takes {ours} us on an H200, where a C++ program takes {floor}" in re.sub(r"\s+", " ", first)
