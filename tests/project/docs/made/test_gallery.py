"""The gallery shows each example with its lines, its kept run time and its picture."""

import json
import re
import runpy
from pathlib import Path

import pytest

from tests.project.docs.made.gallery_page import RESULTS, entries, gallery
from tests.project.docs.made.gallery_pictures import LARGEST, SHOWN, Shown, drawn
from tests.support.example_scripts import EXAMPLES, LONG, SCRIPTS, texts


def test_the_gallery_has_every_example() -> None:
    """Once, in the order of examples/README.md, with a section of its own."""
    found = entries()
    assert sorted(entry.script for entry in found) == SCRIPTS
    page = gallery()
    places = [page.index(f"\n## {entry.name}\n") for entry in found]
    assert places == sorted(places)
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    rows = [readme.index(f"\n| `{entry.name}` |") for entry in found]
    assert rows == sorted(rows)


def test_lines_and_times_are_those_of_the_example_and_of_its_kept_result() -> None:
    """The time is that of the processor. A long example is marked as run in its short form."""
    measured = json.loads(RESULTS.read_text(encoding="utf-8"))["tables"][0]["rows"]
    used = {row["name"]: row["cpu"] for row in measured}
    page = gallery()
    for entry in entries():
        (row,) = [line for line in page.splitlines() if line.startswith(f"| [`{entry.name}`]")]
        cells = [cell.strip() for cell in row.split("|")]
        assert cells[3] == str(texts(entry.script).count("\n"))
        short = " (quick)" if entry.script.stem in LONG else ""
        assert cells[4] == (f"{used[entry.name]:.1f} s{short}" if entry.name in used else "")


def test_an_example_without_a_picture_shows_none() -> None:
    """One whose packages are not installed runs no op, and one whose point no picture shows has none. The page says
    so."""
    found = entries()
    page = gallery({found[0].picture})
    assert f"_static/generated/{found[0].picture}" in page
    assert page.count("_static/generated/") == 1
    without = [name for name, shown in SHOWN.items() if shown.draws == "nothing"]
    assert page.count("Its lanes are not drawn") == len(found) - len(without) - 1
    assert page.count("There is no picture: ") == len(without)
    assert gallery().count("_static/generated/") == len(found) - len(without)


def test_a_picture_holds_no_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """An example that gets its tensor back, which no kept op may hold, runs to its end."""
    monkeypatch.setattr("sys.argv", [])
    monkeypatch.setenv("DAGPU_DEVICE", "host")
    assert drawn(EXAMPLES / "borrowed.py", LARGEST) is not None


def test_what_is_shown_is_of_an_example() -> None:
    """And constants are those of a file."""
    scripts = {script.stem: script for script in SCRIPTS}
    for name, shown in SHOWN.items():
        constants = runpy.run_path(str(scripts[name]), run_name="read") if shown.constants else {}
        assert shown.constants.keys() <= constants.keys()
        assert shown.says
    assert SHOWN.keys() <= scripts.keys()


def test_an_example_shows_what_it_writes_and_its_source() -> None:
    """The pictures that it has written, and each of its files, those of a folder too."""
    page = gallery({"written-life-life.gif"})
    life, digits = [page[page.index(f"\n## {name}\n") :].partition("\n## ")[2] for name in ("life.py", "digits")]
    assert "![What life.py writes](_static/generated/written-life-life.gif)" in life
    assert page.count("written-") == 1
    for entry in entries():
        for file in entry.files:
            assert f"../examples/{file.relative_to(EXAMPLES).as_posix()}\n" in page
    assert digits.index("digits/__main__.py") < digits.index("digits/batches.py")


def test_an_example_that_exits_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a program with a status does."""
    (tmp_path / "exits.py").write_text(
        "import sys\nfrom dagpu import zeros\nzeros((4,)).to_host().sync()\nsys.exit(0)\n", encoding="utf-8"
    )
    monkeypatch.setattr("sys.argv", [])
    monkeypatch.setenv("DAGPU_DEVICE", "host")
    assert drawn(tmp_path / "exits.py", LARGEST) is not None


def test_the_picture_is_of_the_largest_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the plans that the example runs: a copy of each array to the device, a launch and a copy back, say."""
    (tmp_path / "two.py").write_text(
        "from dagpu import zeros, zip_ops\nzeros((4,)).to_host().sync()\n"
        "zip_ops(zeros((4,)).to_host(), zeros((5,)).to_host()).sync()\n",
        encoding="utf-8",
    )
    monkeypatch.setattr("sys.argv", [])
    monkeypatch.setenv("DAGPU_DEVICE", "host")
    assert "Plan of 4 instructions" in str(drawn(tmp_path / "two.py", LARGEST))


def test_a_picture_is_of_what_shows_the_point_of_an_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the last plan, of the DAG, of a smaller size, or nothing."""
    (tmp_path / "sizes.py").write_text(
        "import sys\nfrom dagpu import zeros, zip_ops\nMANY = 5\n\ndef main():\n"
        "    zip_ops(*[zeros((4,)) for _ in range(MANY + len(sys.argv) - 1)]).sync()\n    zeros((4,)).sync()\n\n"
        "if __name__ == '__main__':\n    main()\n",
        encoding="utf-8",
    )
    monkeypatch.setattr("sys.argv", [])
    monkeypatch.setenv("DAGPU_DEVICE", "host")

    def title(shown: Shown) -> str:
        found = re.search(r"<title>(\w+ of \d+ \w+)", str(drawn(tmp_path / "sizes.py", shown)))
        return found[1] if found else ""

    assert title(LARGEST) == "Plan of 5 instructions"
    assert title(Shown(constants={"MANY": 2})) == "Plan of 2 instructions"
    assert title(Shown(arguments=("--more",))) == "Plan of 6 instructions"
    assert title(Shown("last plan")) == "Plan of 1 instruction"
    assert title(Shown("DAG")).startswith("DAG of ")
    assert drawn(tmp_path / "sizes.py", Shown("nothing")) is None
