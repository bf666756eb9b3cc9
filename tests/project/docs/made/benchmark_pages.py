"""The pages of measurements: a summary with bars, and a page for each file of benchmarks/results.

Every number comes from a result that a benchmark has kept, with its machine and its date.
"""

import ast
import html
import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, final

from tests.project.docs.made.targets import legend, missed_table
from tests.support.paths import ROOT

RESULTS: Final = ROOT / "benchmarks" / "results"


@final
@dataclass(frozen=True)
class Figure:
    """A question of a reader, and the rows of one table that answer it."""

    question: str
    says: str
    """A sentence on what was measured."""
    result: str
    """The name of the file of results."""
    table: str
    """The title of the table in it."""
    bars: tuple[tuple[str, str], ...]
    """The names of the rows, each with its label."""
    heads: Mapping[str, str] = field(default_factory=dict)
    """The headings of groups of bars, each by the name of the row below it."""


FIGURES: Final = (
    Figure(
        "What does a call cost?",
        "One tiny kernel as a CUDA graph, from the call to the end of the work. The C++ program is the floor.",
        "graph",
        "A graph of one kernel",
        (
            ("C++, CUDA graph", "C++"),
            ("cuda.core graph", "cuda.core graph"),
            ("CuPy CUDA graph", "CuPy graph"),
            ("PyTorch CUDA graph", "PyTorch graph"),
            ("dagpu: pipeline, nothing changed", "dagpu pipeline"),
            ("dagpu: pipeline, every address changed", "dagpu pipeline, new inputs"),
        ),
    ),
    Figure(
        "What does a launch cost?",
        "One kernel of 1,000 in a row. The graphs of cuda.core, CuPy and PyTorch read their inputs where they were "
        "captured.",
        "graph",
        "A graph of 1,000 tiny kernels in a row",
        (
            ("PyCUDA _launch_kernel, packed ahead", "PyCUDA"),
            ("cuda.core launch", "cuda.core"),
            ("CuPy RawKernel", "CuPy"),
            ("PyTorch eager mul(out=)", "PyTorch"),
            ("dagpu: pipeline, launched one by one", "dagpu pipeline, no graph"),
            ("C++, CUDA graph", "C++"),
            ("C++, CUDA graph, every node set anew", "C++, new inputs"),
            ("cuda.core graph", "cuda.core"),
            ("CuPy CUDA graph", "CuPy"),
            ("PyTorch CUDA graph", "PyTorch"),
            ("dagpu: pipeline, nothing changed", "dagpu pipeline"),
            ("dagpu: pipeline, every address changed", "dagpu pipeline, new inputs"),
        ),
        {"PyCUDA _launch_kernel, packed ahead": "Launched one by one", "C++, CUDA graph": "As one CUDA graph"},
    ),
    Figure(
        "What does overlap bring?",
        "Four branches of eight kernels. The libraries' streams and events are written by hand; dagpu's are planned. A "
        "fresh DAG is built for one run; the same op again is one CUDA graph.",
        "forkjoin",
        "4 branches of 8 kernels of 47 us",
        (
            ("C++, one stream", "C++, one stream"),
            ("C++, four streams and events", "C++, four streams"),
            ("C++, one CUDA graph", "C++, one CUDA graph"),
            ("PyCUDA by hand, four streams and events", "PyCUDA by hand"),
            ("CuPy by hand, four streams and events", "CuPy by hand"),
            ("PyTorch by hand, four streams and events", "PyTorch by hand"),
            ("dagpu: zip_ops, a fresh DAG", "dagpu, a fresh DAG"),
            ("dagpu: zip_ops, the same op again", "dagpu, the same op again"),
        ),
    ),
    Figure(
        "What does a decode step cost?",
        "One token of a transformer with 2.5 GB of weights. The rooflines are the times in which they can be read, and "
        "in which they can be copied.",
        "decoding",
        "A decode step",
        (
            ("roofline: bytes by bandwidth of reads", "roofline of reads"),
            ("roofline: bytes by bandwidth of a copy", "roofline of a copy"),
            ("PyTorch eager, in a CUDA graph", "PyTorch eager, graph"),
            ("PyTorch torch.compile, in a CUDA graph", "torch.compile, graph"),
            ("dagpu: pipeline, as one CUDA graph", "dagpu pipeline"),
        ),
    ),
    Figure(
        "What does an expression cost?",
        "x / (1 + exp(-1.702 x)) of 16,777,216 floats. An `expr` is one kernel; CuPy and PyTorch run a kernel for each "
        "operator. What fuses theirs was not measured: `cupy.fuse`, CuPy's `ElementwiseKernel`, `torch.compile`. A "
        "fused kernel moves as many bytes as ours, so expect about our time of it.",
        "arrays_gpu",
        "x / (1 + exp(-1.702 x)), 16,777,216 elements",
        (("CuPy", "CuPy operators"), ("PyTorch", "PyTorch operators"), ("dagpu", "dagpu expr")),
    ),
    Figure(
        "What does an update cost?",
        "Three of 1,000 launches depend on a source that is set. The pipeline runs all of them. By hand, somebody has "
        "made a graph of the three.",
        "updates",
        "An update of 3 of n launches",
        (
            ("C++: graph of 3, all arguments written", "C++, graph of 3 by hand"),
            ("Python, by hand: the same through cuda.bindings, awaited", "Python, by hand"),
            ("PyTorch: graph of 3, its input changed", "PyTorch, graph of 3"),
            ("1000: pipeline, all of it", "dagpu, all 1,000"),
            ("1000: update", "dagpu, update of 3"),
        ),
    ),
    Figure(
        "What does a frame cost?",
        "480 x 640 pixels through a flow, and through a loop with three streams written by hand.",
        "flows",
        "A frame of 480 x 640 on host",
        (("by hand", "by hand"), ("flow", "dagpu flow")),
    ),
)


def summary() -> str:
    """Return the page with a figure for each question, and links to all results."""
    files = sorted(RESULTS.glob("*.md"))
    parts = [
        "# Benchmarks\n",
        "Every number is the median of one run, in which all rows of its figure were measured. Shorter bars are",
        "better; a hatched bar is a bound that was computed. Compare bars of one figure, not of two: the same program",
        "has taken a third longer in another run on the same kind of machine. Not every target is met: [those that",
        "are missed](#targets-that-are-missed) are listed below the figures.\n",
        *map(_drawn, FIGURES),
        "## Targets that are missed\n",
        ":::{container} missed",
        *missed_table([(_link(file), file.with_suffix(".json")) for file in files]),
        ":::\n",
        "## All results\n",
        "Each page has its machine and its targets. `python -m` with the last column measures a result again.\n",
        ":::{container} results",
        "| results | measured on | date | module |",
        "| --- | --- | --- | --- |",
        *map(_row, files),
        ":::\n",
        "```{toctree}\n:maxdepth: 1\n:hidden:\n",
        *[f"benchmarks/{file.stem}" for file in files],
        "```\n",
    ]
    return "\n".join(parts)


def details() -> dict[str, str]:
    """Return the page of each file of results, by its name."""
    return {file.name: _details(file) for file in sorted(RESULTS.glob("*.md"))}


def command(name: str) -> str:
    """Return the arguments of `python -m` that measure a file of results again."""
    device = " --device cuda:0" * name.endswith("_gpu")
    return f"{'.'.join(_benchmark(name).relative_to(ROOT).with_suffix('').parts)}{device}"


def _benchmark(name: str) -> Path:
    """Return the module that measures a file of results, on a GPU or of one part of the code."""
    module = name.removesuffix("_gpu").partition("_of_")[0]
    (found,) = [*(ROOT / "benchmarks").rglob(f"{module}.py"), *(ROOT / "benchmarks").rglob(f"{module}_campaign.py")]
    return found


def _introduction(file: Path, text: str) -> str:
    """Return what a page of results says first: what its benchmark measures, and what the columns mean."""
    about = ast.get_docstring(ast.parse(_benchmark(file.stem).read_text(encoding="utf-8"))) or ""
    return "\n\n".join(filter(None, [about.partition("\n\n")[0], legend(text)])) + "\n"


def _row(file: Path) -> str:
    """Return the row of a file of results in the table of all."""
    text = file.read_text(encoding="utf-8")
    facts = dict(re.findall(r"^- (\w[\w ]*): (.*)$", text, re.MULTILINE))
    where = facts.get("gpu") or _processor(facts.get("cpu", "none: counts"))
    return f"| {_link(file)} | {where} | {facts['date']} | `{command(file.stem)}` |"


def _link(file: Path) -> str:
    return f"[{_title(file, file.read_text(encoding='utf-8'))}](benchmarks/{file.name})"


def _processor(cpu: str) -> str:
    """Return the name of a processor, without the details of its model."""
    return cpu.partition(" (cpu family")[0].replace("(R)", "").removesuffix(" Processor")


def _details(file: Path) -> str:
    """Return a file of results as a page: what was measured first, then the tables, and the machine last."""
    text = file.read_text(encoding="utf-8")
    title, rest = f"# {_title(file, text)}\n\n{_introduction(file, text)}", text.partition("\n")[2]
    machine = re.match(r"\s*((?:- .*\n)+)", rest)
    if machine is None:
        return f"{title}\n{_joined(rest)}"
    commit = re.search(r"^- commit: (\w+)$", machine[1], re.MULTILINE)
    old = f"\nFiles are named as they were at commit `{commit[1]}`; some have moved since.\n" if commit else ""
    return f"{title}\n{old}{_joined(rest[machine.end() :])}\n## Machine\n\n{machine[1]}"


def _title(file: Path, text: str) -> str:
    """Return the title of a file of results. It says where it was measured if there is one of a GPU and one of the
    host."""
    title = text.partition("\n")[0].removeprefix("# ")
    pair = {file.with_stem(file.stem.removesuffix("_gpu")), file.with_stem(f"{file.stem.removesuffix('_gpu')}_gpu")}
    if not all(each.exists() for each in pair):
        return title
    return f"{title}, {'on a GPU' if file.stem.endswith('_gpu') else 'on the host'}"


_SECTION: Final = re.compile(
    r"^## (?P<what>[^\n]*?), (?P<size>[\d,]+ (?:elements|bytes|by [\d,]+))\n(?P<body>.*?)(?=^## |\Z)",
    re.MULTILINE | re.DOTALL,
)
"""A section of one table for one size: its title, the size and the rest."""


def _joined(text: str) -> str:
    """Return the text with one table for all sizes of the same work, where the first of them stands."""
    sections = [match for match in _SECTION.finditer(text) if _is_table(match)]
    works: dict[str, list[re.Match[str]]] = {}
    for match in sections:
        works.setdefault(_heading(match), []).append(match)
    parts: list[str] = []
    at = 0
    for match in sections:
        parts.append(text[at : match.start()])
        at = match.end()
        heading = _heading(match)
        sizes = sorted(works.pop(heading, ()), key=lambda each: int(re.sub(r"\D.*", "", each["size"].replace(",", ""))))
        if sizes:
            rows = [_rows(each) for each in sizes]
            parts.append("\n".join([heading, *itertools.chain.from_iterable(rows), "", ""]))
    return "".join([*parts, text[at:]])


def _is_table(section: re.Match[str]) -> bool:
    """Return True if a section is a table and no words."""
    lines = [line for line in section["body"].splitlines() if line]
    return bool(lines) and all(line.startswith("|") for line in lines)


def _heading(section: re.Match[str]) -> str:
    head, rule = [line for line in section["body"].splitlines() if line][:2]
    return f"## {section['what']}\n\n| size {head}\n| ---: {rule}"


def _rows(section: re.Match[str]) -> list[str]:
    rows = [line for line in section["body"].splitlines() if line][2:]
    return [f"| {'' if number else section['size'] + ' '}{row}" for number, row in enumerate(rows)]


def _drawn(figure: Figure) -> str:
    found = json.loads((RESULTS / f"{figure.result}.json").read_text(encoding="utf-8"))
    (table,) = [each for each in found["tables"] if each["title"] == figure.table]
    medians = {row["name"]: row["median"] for row in table["rows"]}
    values = [medians[name] for name, _ in figure.bars]
    longest = _length_of_longest(values)
    about = found["machine"]
    measured_on = about.get("gpu") or f"the host, {_processor(about['cpu'])}"
    date = about["date"].replace("-", "\N{NON-BREAKING HYPHEN}")
    where = f"[{measured_on}, {date}](benchmarks/{figure.result}.md)"
    bars = []
    for name, label in figure.bars:
        if name in figure.heads:
            bars.append(f'<p class="head">{html.escape(figure.heads[name])}</p>')
        bars.append(_bar(label, medians[name], longest, table["unit"]))
    broken = " The bar with a gap is longer than drawn." * (max(values) > longest)
    return "\n".join(
        [
            f"## {figure.question}\n",
            f"{figure.says}{broken} {where}.\n",
            "```{raw} html",
            '<div class="bars">',
            *bars,
            "</div>",
            "```\n",
        ]
    )


def _length_of_longest(values: list[float]) -> float:
    """Return the value that takes the whole width. One that is more than 4 times the others is cut off there."""
    *_, second, longest = sorted(values)
    return 1.25 * second if longest > 4 * second else longest


def _bar(label: str, value: float, longest: float, unit: str) -> str:
    kind = " ours" * label.startswith("dagpu") + " bound" * label.startswith("roofline") + " cut" * (value > longest)
    shown = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    width = min(100.0, 100 * value / longest)
    return (
        f'<div class="row{kind}"><span class="label">{html.escape(label)}</span>'
        f'<span class="track"><span class="bar" style="width:{width:.1f}%"></span></span>'
        f'<span class="value">{shown} {html.escape(unit)}</span></div>'
    )
