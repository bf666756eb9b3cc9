"""The pages of measurements show what the kept results say."""

import json
import re

from benchmarks.checking.packages import PYTHONS, RESOLUTIONS, SHOWN, requirements
from tests.project.docs.made.benchmark_pages import FIGURES, RESULTS, command, details, summary
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


def test_each_result_says_how_and_when_it_was_measured() -> None:
    """Every row of the table of all results has the date of the result, and a module that there is."""
    page = summary()
    for file in RESULTS.glob("*.md"):
        (row,) = re.findall(rf"^\|.*\(benchmarks/{file.name}\).*$", page, re.MULTILINE)
        (date,) = re.findall(r"^- date: (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
        assert f"| {date} | `{command(file.stem)}` |" in row
        module = command(file.stem).split()[0].replace(".", "/")
        assert (ROOT / f"{module}.py").exists()


def test_the_first_page_says_what_was_measured() -> None:
    """Its two numbers are the rounded medians of one run."""
    rows = json.loads((RESULTS / "graph.json").read_text(encoding="utf-8"))["tables"][1]["rows"]
    medians = {row["name"]: round(row["median"]) for row in rows}
    ours, floor = medians["dagpu: pipeline, nothing changed"], medians["C++, CUDA graph"]
    first = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert f"takes {ours} us on an H200, where a C++ program takes {floor}" in re.sub(r"\s+", " ", first)


def test_the_kept_matrix_of_packages_is_whole() -> None:
    """A row for each Python, package and end of the ranges. Each environment works, and those of the oldest versions
    have the lower bounds of pyproject.toml."""
    text = (RESULTS / "packages.md").read_text(encoding="utf-8")
    lines = [line.strip("|") for line in text.splitlines() if line.startswith("| 3.")]
    rows = [[cell.strip() for cell in line.split("|")] for line in lines]
    tried = [row for row in rows if not row[-1].startswith("not tried: ")]
    assert tried
    assert all(row[-1] == "works" for row in tried)
    assert {row[0] for row in rows} == set(PYTHONS)
    for python in {row[0] for row in tried}:
        packages = {(row[1], row[2]) for row in tried if row[0] == python}
        assert packages >= {(f"dagpu, {kind}", end) for kind in ("wheel", "sdist") for end in RESOLUTIONS}
        assert packages >= {("pycuda-stubs, wheel", "newest"), ("pycuda-stubs, sdist", "newest")}
    bounds = dict(re.findall(r"^(\w+)>=([\d.]+)$", "\n".join(requirements()), re.MULTILINE))
    for row in tried:
        if row[2] == "oldest":
            for package, version in zip(SHOWN, row[3:6], strict=True):
                assert f"{version}.".startswith(f"{bounds[package]}.")
