"""The gallery of the examples: what each teaches, its lines, its processor time, a picture of what it runs, the
pictures that it writes, and its source.

The sentences are those of examples/README.md, the run times those of benchmarks/results/gallery.json, and
`gallery_pictures` draws the pictures.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from tests.project.docs.made.gallery_pictures import LARGEST, SHOWN, written_name
from tests.support.example_scripts import EXAMPLES, LONG, SCRIPTS, texts
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
            "said. The first picture of each shows lanes, of the largest plan that the example runs if nothing else is",
            "said: a row for each stream of a device, such as `host:0/1`, and `host:0/own-1` for one that the example",
            "has opened itself. Point at a bar or an arrow to read what it is. The other pictures are what the example",
            "writes.\n",
            ":::{container} gallery",
            "| example | teaches | lines | time |",
            "| --- | --- | ---: | ---: |",
            *rows,
            ":::",
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
    shown = SHOWN.get(entry.script.stem, LARGEST)
    if shown.draws == "nothing":
        parts.append(f"{shown.says}\n")
    elif entry.picture in drawn:
        alt = f"What {entry.name} runs, as a {'DAG' if shown.draws == 'DAG' else 'row of bars for each stream'}"
        parts += [":::{container} lanes", f"![{alt}](_static/generated/{entry.picture})", ":::\n"]
        parts += [f"{shown.says}\n"] if shown.says else []
    else:
        needs = "a package that it needs" if not entry.extra else f"the extra {entry.extra}"
        parts.append(f"Its lanes are not drawn: this page was made on a machine without {needs}.\n")
    written = sorted(name for name in drawn if name.startswith(written_name(entry.script, "")))
    parts += [f"![What {entry.name} writes](_static/generated/{name})\n" for name in written]
    parts.append("<details><summary>Source</summary>\n")
    for file in entry.files:
        path = file.relative_to(EXAMPLES).as_posix()
        parts += [f"`examples/{path}`\n"] if len(entry.files) > 1 else []
        parts += ["```{literalinclude} ../examples/" + path, ":language: python", "```\n"]
    parts.append("</details>\n")
    return "\n".join(parts)
