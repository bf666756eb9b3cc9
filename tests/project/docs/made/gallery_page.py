"""The gallery of the examples: what each teaches, its lines, its processor time, the lanes of its largest plan, the
pictures that it writes, and its source.

The sentences are those of examples/README.md, the run times those of benchmarks/results/gallery.json, and the pictures
are drawn by running the examples on the host:

    python -m tests.project.docs.made.gallery_page EXAMPLE PICTURE
"""

import contextlib
import json
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from dagpu import DeviceOp, StreamInterpreter, use_interpreter
from dagpu.lowering.plan import Execute, Plan
from tests.support.example_scripts import EXAMPLES, LONG, SCRIPTS, environment, texts
from tests.support.paths import ROOT

RESULTS: Final = ROOT / "benchmarks" / "results" / "gallery.json"
_ROW: Final = re.compile(
    r"^\| `(?P<name>\S+)` \| (?P<teaches>.*?) \| (?P<lines>\d+) \| no \|(?P<extra>.*)\|$", re.MULTILINE
)


@final
@dataclass(frozen=True)
class Entry:
    """An example of the gallery."""

    script: Path
    teaches: str
    extra: str
    """The extra that it needs; empty without one."""
    seconds: float | None
    """Its kept processor time on the host; None if it was not measured."""

    @property
    def name(self) -> str:
        return self.script.name

    @property
    def picture(self) -> str:
        """The name of the file with its picture."""
        return f"example-{self.script.stem}.svg"

    @property
    def files(self) -> list[Path]:
        """Its source files, the one that a reader begins with first."""
        if self.script.is_file():
            return [self.script]
        return sorted(self.script.glob("*.py"), key=lambda file: (file.stem != "__main__", file.stem))

    @property
    def lines(self) -> int:
        return texts(self.script).count("\n")


def entries() -> list[Entry]:
    """Return the examples, in the order of examples/README.md."""
    scripts = {script.name: script for script in SCRIPTS}
    measured = json.loads(RESULTS.read_text(encoding="utf-8"))["tables"][0]["rows"]
    seconds = {row["name"]: row["cpu"] for row in measured}
    table = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    return [
        Entry(scripts[row["name"]], row["teaches"], row["extra"].strip(), seconds.get(row["name"]))
        for row in _ROW.finditer(table)
    ]


def gallery(drawn: set[str] | None = None) -> str:
    """Return the page. `drawn` has the names of the pictures that there are: by default one of the lanes of each."""
    found = entries()
    about = json.loads(RESULTS.read_text(encoding="utf-8"))["machine"]
    rows = [f"| [`{e.name}`](#{_anchor(e)}) | {e.teaches} | {e.lines} | {_time(e)} |" for e in found]
    return "\n".join(
        [
            "# Examples\n",
            "Each example ends in an assertion, and runs without a GPU: a file by `python examples/hello.py`, a",
            "folder by `python -m examples.digits`. A time is that of the processor, from the start of Python to its",
            f"end, on the host ({about['cpu'].partition(' (')[0]}, {about['date']}), with `--quick` where that is",
            "said. The first picture of each shows the lanes of the largest plan that the example runs: a row for each",
            "stream of a device, such as `host:0/1`, and `host:0/own-1` for one that the example has opened itself.",
            "Point at a bar or an arrow to read what it is. The other pictures are what the example writes.\n",
            "| example | teaches | lines | time |",
            "| --- | --- | ---: | ---: |",
            *rows,
            "",
            *[_section(e, {e.picture} if drawn is None else drawn) for e in found],
        ]
    )


def _anchor(entry: Entry) -> str:
    return f"example-{entry.script.stem.replace('_', '-')}"


def _time(entry: Entry) -> str:
    if entry.seconds is None:
        return ""
    return f"{entry.seconds:.1f} s" + " (quick)" * (entry.script.stem in LONG)


def _section(entry: Entry, drawn: set[str]) -> str:
    needs = f" It needs the extra {entry.extra}." if entry.extra else ""
    parts = [
        f"({_anchor(entry)})=",
        f"## {entry.name}\n",
        f"{entry.teaches[0].upper()}{entry.teaches[1:]}.{needs}\n",
    ]
    if entry.picture in drawn:
        alt = f"The lanes of the largest plan of {entry.name}"
        parts += [":::{container} lanes", f"![{alt}](_static/generated/{entry.picture})", ":::\n"]
    else:
        parts.append("There is no picture: what it needs was not installed where these pages were made.\n")
    written = sorted(name for name in drawn if name.startswith(_written(entry.script, "")))
    parts += [f"![What {entry.name} writes](_static/generated/{name})\n" for name in written]
    parts.append("<details><summary>Source</summary>\n")
    for file in entry.files:
        path = file.relative_to(EXAMPLES).as_posix()
        parts += [f"`examples/{path}`\n"] if len(entry.files) > 1 else []
        parts += ["```{literalinclude} ../examples/" + path, ":language: python", "```\n"]
    parts.append("</details>\n")
    return "\n".join(parts)


def _written(script: Path, name: str) -> str:
    """Return the name in the documentation of a picture that an example writes."""
    return f"written-{script.stem}-{name}"


def draw_all(folder: Path) -> set[str]:
    """Write the pictures of all examples to a folder: of their plans, and those that they write themselves. Return the
    names of the files.

    An example whose packages are not installed runs no op, and has no picture.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in [*folder.glob("example-*.svg"), *folder.glob("written-*")]:
        old.unlink()

    def draw(script: Path) -> list[str]:
        picture = folder / f"example-{script.stem}.svg"
        command = [sys.executable, "-m", __name__, script.name, str(picture.resolve())]
        with tempfile.TemporaryDirectory() as here:
            subprocess.run(
                command, cwd=here, env=environment({"DAGPU_DEVICE": "host"}), check=False, capture_output=True
            )
            made = [file for file in Path(here).iterdir() if file.suffix in (".png", ".gif")]
            for file in made:
                shutil.copy(file, folder / _written(script, file.name))
        return [*([picture.name] if picture.exists() else []), *[_written(script, file.name) for file in made]]

    with ThreadPoolExecutor(2) as pool:
        return {name for names in pool.map(draw, SCRIPTS) for name in names}


def largest_plan(script: Path) -> Plan | None:
    """Run an example, in its short form if it is long, and return the largest of its plans; None without any."""
    plans: list[Plan] = []

    def keep(_op: DeviceOp[Any, Any, Any], plan: Plan) -> None:
        plans.append(plan)

    sys.argv = [str(script), *(["--quick"] if script.stem in LONG else [])]
    with use_interpreter(StreamInterpreter(on_plan=keep)), contextlib.suppress(SystemExit):
        if script.is_dir():
            runpy.run_module(f"examples.{script.name}", run_name="__main__")
        else:
            runpy.run_path(str(script), run_name="__main__")
    return max(plans, key=lambda plan: sum(isinstance(step, Execute) for step in plan.steps), default=None)


if __name__ == "__main__":
    _, example, written = sys.argv
    plan = largest_plan(EXAMPLES / example)
    if plan is not None:
        plan.save_svg(written)
