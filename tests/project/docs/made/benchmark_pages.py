"""The pages of measurements: a summary with bars, and a page for each file of benchmarks/results.

Every number comes from a result that a benchmark has kept, with its machine and its date.
"""

import html
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

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
    table: int
    """The table in it, from 0."""
    bars: tuple[tuple[str, str], ...]
    """The names of the rows, each with its label."""


FIGURES: Final = (
    Figure(
        "What does a call cost?",
        "One tiny kernel as a CUDA graph, from the call to the end of the work. The C++ program is the floor.",
        "graph",
        1,
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
        "One kernel of a graph of 1,000. Graphs of PyTorch and CuPy read their inputs where they were captured.",
        "graph",
        0,
        (
            ("C++, CUDA graph", "C++ graph"),
            ("C++, CUDA graph, every node set anew", "C++ graph, new inputs"),
            ("cuda.core launch", "cuda.core, one by one"),
            ("CuPy RawKernel", "CuPy, one by one"),
            ("PyTorch eager mul(out=)", "PyTorch, one by one"),
            ("PyTorch CUDA graph", "PyTorch graph"),
            ("dagpu: pipeline, nothing changed", "dagpu pipeline"),
            ("dagpu: pipeline, every address changed", "dagpu pipeline, new inputs"),
        ),
    ),
    Figure(
        "What does overlap bring?",
        "Four branches of eight kernels. The libraries' streams and events are written by hand; dagpu's are planned.",
        "forkjoin",
        0,
        (
            ("C++, one stream", "C++, one stream"),
            ("C++, four streams and events", "C++, four streams"),
            ("CuPy by hand, four streams and events", "CuPy by hand"),
            ("PyTorch by hand, four streams and events", "PyTorch by hand"),
            ("dagpu: zip_ops, the same op again", "dagpu, nothing by hand"),
        ),
    ),
    Figure(
        "What does a decode step cost?",
        "One token of a transformer with 2.5 GB of weights. The roofline is the time in which they can be copied.",
        "decoding",
        0,
        (
            ("roofline: bytes by bandwidth of a copy", "roofline of a copy"),
            ("PyTorch eager, in a CUDA graph", "PyTorch eager, graph"),
            ("PyTorch torch.compile, in a CUDA graph", "torch.compile, graph"),
            ("dagpu: pipeline, as one CUDA graph", "dagpu pipeline"),
        ),
    ),
    Figure(
        "What does an expression cost?",
        "x / (1 + exp(-1.702 x)) of 16,777,216 floats, as an `expr` and as the libraries' operators.",
        "arrays_gpu",
        1,
        (("CuPy", "CuPy"), ("PyTorch", "PyTorch"), ("dagpu", "dagpu")),
    ),
    Figure(
        "What does an update cost?",
        "Three of 1,000 launches depend on a source that is set. The pipeline runs all of them.",
        "updates",
        0,
        (("1000: pipeline, all of it", "all 1,000"), ("1000: update", "update of 3")),
    ),
    Figure(
        "What does a frame cost?",
        "480 x 640 pixels through a flow, and through a loop with three streams written by hand.",
        "flows",
        1,
        (("by hand", "by hand"), ("flow", "dagpu flow")),
    ),
)


def summary() -> str:
    """Return the page with a figure for each question, and links to all results."""
    files = sorted(RESULTS.glob("*.md"))
    parts = [
        "# Benchmarks\n",
        "Every number is the median of one run, in which all rows of its figure were measured. Ratios count more than",
        "times: machines differ by half. Shorter bars are better.\n",
        *map(_drawn, FIGURES),
        "## All results\n",
        "Each page has its machine and its targets. `python -m` with the last column measures a result again.\n",
        "| results | measured on | date | module |",
        "| --- | --- | --- | --- |",
        *map(_row, files),
        "\n```{toctree}\n:maxdepth: 1\n:hidden:\n",
        *[f"benchmarks/{file.stem}" for file in files],
        "```\n",
    ]
    return "\n".join(parts)


def details() -> dict[str, str]:
    """Return the page of each file of results, by its name."""
    return {file.name: _details(file) for file in sorted(RESULTS.glob("*.md"))}


def command(name: str) -> str:
    """Return the arguments of `python -m` that measure a file of results again."""
    module, device = name.removesuffix("_gpu"), " --device cuda:0" * name.endswith("_gpu")
    (found,) = [*(ROOT / "benchmarks").rglob(f"{module}.py"), *(ROOT / "benchmarks").rglob(f"{module}_campaign.py")]
    return f"{'.'.join(found.relative_to(ROOT).with_suffix('').parts)}{device}"


def _row(file: Path) -> str:
    """Return the row of a file of results in the table of all."""
    text = file.read_text(encoding="utf-8")
    facts = dict(re.findall(r"^- (\w[\w ]*): (.*)$", text, re.MULTILINE))
    title = text.partition("\n")[0].removeprefix("# ")
    where = facts.get("gpu") or _processor(facts.get("cpu", "none: counts"))
    return f"| [{title}](benchmarks/{file.name}) | {where} | {facts['date']} | `{command(file.stem)}` |"


def _processor(cpu: str) -> str:
    """Return the name of a processor, without the details of its model."""
    return cpu.partition(" (cpu family")[0].replace("(R)", "").removesuffix(" Processor")


def _details(file: Path) -> str:
    """Return a file of results as a page: the table first, the machine last."""
    title, _, rest = file.read_text(encoding="utf-8").partition("\n")
    machine = re.match(r"\s*((?:- .*\n)+)", rest)
    if machine is None:
        return f"{title}\n{rest}"
    return f"{title}\n{rest[machine.end() :]}\n## Machine\n\n{machine[1]}"


def _drawn(figure: Figure) -> str:
    found = json.loads((RESULTS / f"{figure.result}.json").read_text(encoding="utf-8"))
    table = found["tables"][figure.table]
    medians = {row["name"]: row["median"] for row in table["rows"]}
    longest = max(medians[name] for name, _ in figure.bars)
    about = found["machine"]
    measured_on = about.get("gpu") or f"the host, {_processor(about['cpu'])}"
    where = f"[{measured_on}, {about['date']}](benchmarks/{figure.result}.md)"
    bars = [_bar(label, medians[name], longest, table["unit"]) for name, label in figure.bars]
    return "\n".join(
        [
            f"## {figure.question}\n",
            f"{figure.says} {where}.\n",
            "```{raw} html",
            '<div class="bars">',
            *bars,
            "</div>",
            "```\n",
        ]
    )


def _bar(label: str, value: float, longest: float, unit: str) -> str:
    ours = " ours" if label.startswith(("dagpu", "update")) else ""
    shown = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return (
        f'<div class="row{ours}"><span class="label">{html.escape(label)}</span>'
        f'<span class="track"><span class="bar" style="width:{100 * value / longest:.1f}%"></span></span>'
        f'<span class="value">{shown} {html.escape(unit)}</span></div>'
    )
