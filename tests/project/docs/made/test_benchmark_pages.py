"""The pages of measurements show what the kept results say."""

import json
import re

from benchmarks.checking.packages import PYTHONS, RESOLUTIONS, SHOWN, requirements
from examples.digits.command import ABOUT_THE_HOST
from tests.project.docs.made.benchmark_pages import FIGURES, RESULTS, command, details, summary
from tests.project.docs.made.targets import targets
from tests.support.paths import ROOT


def test_each_figure_shows_the_medians_of_its_rows() -> None:
    """A figure has a bar for each of its rows, and the longest is the slowest one."""
    page = summary()
    widths = [float(width) for width in re.findall(r"width:([\d.]+)%", page)]
    assert len(widths) == sum(len(figure.bars) for figure in FIGURES)
    assert widths.count(100.0) >= len(FIGURES)
    for figure in FIGURES:
        assert f"## {figure.question}" in page


OURS = re.compile(r"dagpu|flow|\d+: |roofline")
"""The beginnings of the names of rows that are dagpu's, or bounds."""


def test_a_bar_that_would_flatten_the_others_has_a_gap() -> None:
    """It is cut where the others still differ, and the text says so."""
    cut = [part for part in summary().split("## ") if 'class="row ours cut"' in part]
    assert [part.partition("\n")[0] for part in cut] == ["What does an update cost?"]
    (part,) = cut
    assert "The bar with a gap is longer than drawn." in part
    assert max(float(width) for width in re.findall(r"width:([\d.]+)%", part) if width != "100.0") == 80


def test_each_group_of_bars_has_its_heading() -> None:
    """Above the first of its rows."""
    page = summary()
    for figure in FIGURES:
        labels = dict(figure.bars)
        for name, head in figure.heads.items():
            assert f'<p class="head">{head}</p>\n<div class="row"><span class="label">{labels[name]}<' in page


def test_each_target_that_is_missed_is_counted() -> None:
    """The pages of results say `no` as often as the table of the missed ones does."""
    page = summary()
    says = sum(len(re.findall(r"\| no, [\d.]+x \|", made)) for made in details().values())
    met = sum(len(re.findall(r"\| yes \|", made)) for made in details().values())
    assert f"Of {says + met} targets {says} are missed." in page
    for file in RESULTS.glob("*.json"):
        found = targets(file)
        if found.missed:
            assert f"(benchmarks/{file.stem}.md) | {found.total - len(found.missed)} of {found.total} | " in page


def test_the_columns_of_tables_are_explained() -> None:
    """On each page that has them, before the first table."""
    for page in details().values():
        first = page.partition("\n|")[0]
        assert ("`met` says" in first) == ("| met |" in page)
        assert ("`cpu` is" in first) == ("| cpu |" in page)


def test_each_figure_shows_its_best_peer() -> None:
    """Of the rows of the same table that are others', the fastest has a bar."""
    for figure in FIGURES:
        kept = json.loads((RESULTS / f"{figure.result}.json").read_text(encoding="utf-8"))["tables"]
        (rows,) = [table["rows"] for table in kept if table["title"] == figure.table]
        peers = [row for row in rows if not OURS.match(row["name"]) and "p99" not in row["name"]]
        best = min(peers, key=lambda row: row["median"])["name"]
        assert best in [name for name, _ in figure.bars], figure.question


def test_each_result_has_a_page() -> None:
    """The page begins with its title, keeps every row and every fact of the machine, and ends with the machine."""
    made = details()
    assert made.keys() == {file.name for file in RESULTS.glob("*.md")}
    for name, page in made.items():
        title, *kept = (RESULTS / name).read_text(encoding="utf-8").splitlines()
        assert page.startswith(title)
        shown = page.splitlines()
        assert "## Machine" in shown or not any(line.startswith("- cpu") for line in kept)
        for line in kept:
            joined = line.startswith(("## ", "| ---", "|  |"))  # of one table a size is a column
            assert joined or any(each.endswith(line) for each in shown), line


def test_sizes_of_the_same_work_are_in_one_table() -> None:
    """With a column for the size, in place of a heading for each."""
    page = details()["arrays_gpu.md"]
    headings = re.findall(r"^## (.*)$", page, re.MULTILINE)
    assert len(headings) == len(set(headings))
    (table,) = re.findall(r"^## sum\n\n((?:\|.*\n)+)", page, re.MULTILINE)
    sizes = re.findall(r"^\| ([\d,]+ elements) \| dagpu ", table, re.MULTILINE)
    assert sizes == ["1,048,576 elements", "16,777,216 elements", "268,435,456 elements"]


def test_no_two_results_have_one_title() -> None:
    """Of a pair, one measured on a GPU and one on the host, each says which it is."""
    titles = [page.partition("\n")[0] for page in details().values()]
    assert len(titles) == len(set(titles))


def test_each_result_says_how_and_when_it_was_measured() -> None:
    """Every row of the table of all results has the date of the result, and a module that there is."""
    page = summary()
    for file in RESULTS.glob("*.md"):
        (row,) = re.findall(rf"^\|.*\(benchmarks/{file.name}\) .* `benchmarks\..*$", page, re.MULTILINE)
        (date,) = re.findall(r"^- date: (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
        assert f"| {date} | `{command(file.stem)}` |" in row
        module = command(file.stem).split()[0].replace(".", "/")
        assert (ROOT / f"{module}.py").exists()


def test_the_first_page_says_what_was_measured() -> None:
    """Its two numbers are the rounded medians of one run, with what ran and its date."""
    kept = json.loads((RESULTS / "calls.json").read_text(encoding="utf-8"))
    (rows,) = [table["rows"] for table in kept["tables"] if table["title"] == "A pipeline of one kernel"]
    medians = {row["name"]: round(row["median"]) for row in rows}
    ours, floor = medians["dagpu: pipeline(x, a).sync()"], medians["C++: an idle graph, launched and polled"]
    first = " ".join((ROOT / "docs" / "index.md").read_text(encoding="utf-8").split())
    assert (
        f"A call of a pipeline of one tiny kernel takes {ours} us on an H200, where a C++ program takes {floor} "
        f"(measured on {kept['machine']['date']})"
    ) in first


def test_the_demo_says_what_was_measured_on_a_gpu() -> None:
    """Its numbers are the rounded medians of the kept run, with its date."""
    kept = json.loads((RESULTS / "digits.json").read_text(encoding="utf-8"))
    medians = {row["name"]: round(row["median"]) for row in kept["tables"][0]["rows"]}
    assert kept["machine"]["gpu"] == "NVIDIA H200"
    assert (
        f"On an H200 the step of 128 hidden units takes {medians['dagpu: one call of a pipeline']} us, and "
        f"{medians['PyTorch in a CUDA graph']} us as a CUDA graph of PyTorch's "
        f"(measured on {kept['machine']['date']})."
    ) in ABOUT_THE_HOST


def test_the_readme_says_what_the_plugin_found() -> None:
    """As many of the mistakes that were made as the kept campaign counts."""
    (table,) = json.loads((RESULTS / "seeded_mistakes.json").read_text(encoding="utf-8"))["tables"]
    made, found, missed = table["rows"]["all"]
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"Of {made:,} that were made in right programs it [found {found:,}]" in readme
    assert missed


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
