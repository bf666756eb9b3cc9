"""Tables of measurements, which every benchmark prints and saves, with a description of the machine."""

import gc
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple, final

RESULTS = Path(__file__).parents[1] / "results"


@final
class Span(NamedTuple):
    """A duration in seconds: on the clock, and in processor time (all threads of this process together).

    On one core the two differ by the time of other processes, and by waits in which the core was idle. `cpu` is nan if
    it was not measured, which is so for clocks outside of this process.
    """

    wall: float
    cpu: float

    def since(self, start: "Span") -> "Span":
        """Return the duration from `start` to this point."""
        return Span(self.wall - start.wall, self.cpu - start.cpu)


def now() -> Span:
    """Read the two clocks. The difference of two readings is a duration."""
    return Span(time.perf_counter(), time.process_time())


@final
@dataclass(frozen=True, slots=True)
class Row:
    """One quantity, measured `samples` times.

    `median` and `best` are times on the clock, `cpu` is the median of processor time, all in the table's unit. `target`
    is the largest acceptable `median`, if set. `ratio` is `median` divided by the median of the row that the table
    compares with, if set. `remark` is shown in the column `remarks` of the table.
    """

    name: str
    median: float
    best: float
    cpu: float | None
    samples: int
    target: float | None = None
    ratio: float | None = None
    remark: str = ""

    @property
    def verdict(self) -> str:
        """Return if the target is met, as text; empty without a target."""
        if self.target is None:
            return ""
        return "yes" if self.median <= self.target else f"no, {self.median / self.target:.2f}x"


@final
@dataclass(slots=True)
class Table:
    """Rows of one unit. `note` explains the numbers; `ratio_to` names the divisor of the ratios.

    `remarks` heads the column of the rows' remarks.
    """

    title: str
    unit: str
    note: str = ""
    ratio_to: str = ""
    remarks: str = ""
    rows: list[Row] = field(default_factory=list)

    def add(
        self,
        name: str,
        spans: Sequence[Span],
        scale: float,
        *,
        target: float | None = None,
        base: Sequence[Span] | None = None,
        remark: str = "",
    ) -> None:
        """Append a row of `spans` times `scale`, with its ratio to `base`."""
        walls = [span.wall for span in spans]
        median, cpu = statistics.median(walls), statistics.median(span.cpu for span in spans)
        ratio = None if base is None else median / statistics.median(span.wall for span in base)
        best = min(walls) * scale
        processor = None if math.isnan(cpu) else cpu * scale
        self.rows.append(Row(name, median * scale, best, processor, len(spans), target, ratio, remark))

    def cells(self) -> list[list[str]]:
        """Return header and rows as text. Empty columns are left out."""
        header = ["", self.unit, "best", "cpu", "samples", "target", "met", f"/ {self.ratio_to}", self.remarks]
        rows = [
            [
                row.name,
                _number(row.median),
                _number(row.best),
                "" if row.cpu is None else _number(row.cpu),
                str(row.samples),
                "" if row.target is None else f"<= {row.target:g}",
                row.verdict,
                "" if row.ratio is None else f"{_number(row.ratio)}x",
                row.remark,
            ]
            for row in self.rows
        ]
        kept = [column for column in range(len(header)) if any(row[column] for row in rows)]
        return [[row[column] for column in kept] for row in [header, *rows]]

    def text(self) -> str:
        """Return the text for a terminal."""
        return _text(self.title, self.note, self.cells())

    def markdown(self) -> str:
        """Return Markdown for a page."""
        return _markdown(self.title, self.note, self.cells())


@final
@dataclass(slots=True)
class Grid:
    """Medians of measurements at several sizes: a row for each name, a column for each size, all of one unit.

    A whole number is a count, and is shown without decimals. nan is shown as "-": there is none.
    """

    title: str
    columns: list[str]
    note: str = ""
    rows: dict[str, list[float]] = field(default_factory=dict)

    def cells(self) -> list[list[str]]:
        """Return header and rows as text."""
        return [["", *self.columns], *([name, *map(_number, row)] for name, row in self.rows.items())]

    def text(self) -> str:
        """Return the text for a terminal."""
        return _text(self.title, self.note, self.cells())

    def markdown(self) -> str:
        """Return Markdown for a page."""
        return _markdown(self.title, self.note, self.cells())


def _text(title: str, note: str, cells: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [_aligned(row, widths) for row in cells]
    lines.insert(1, "-" * len(lines[0]))
    return "\n".join([title, *textwrap.wrap(note, 100), "", *lines])


def _markdown(title: str, note: str, cells: Sequence[Sequence[str]]) -> str:
    header, *rows = cells
    rule = ["---", *["---:"] * (len(header) - 1)]
    lines = [f"| {' | '.join(row)} |" for row in [header, rule, *rows]]
    return "\n".join([f"## {title}", "", *([note, ""] if note else []), *lines])


def _number(value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    if math.isnan(value):
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.2f}"


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    name, *numbers = (
        cell.ljust(width) if column == 0 else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    return "  ".join([name, *numbers]).rstrip()


def measure(
    contenders: Iterable[Callable[[], Mapping[str, Span]]], repeats: int, warmups: int = 1
) -> dict[str, list[Span]]:
    """Call each contender `repeats` times, after calls that do not count. Return the samples of each name.

    The contenders take turns, so that a temporary slowdown of the machine affects all of them. The collector runs
    before each call and stays on during it, as for users.
    """
    samples: dict[str, list[Span]] = {}
    contenders = list(contenders)
    for turn in range(warmups + repeats):
        for contender in contenders:
            gc.collect()
            for name, sample in contender().items():
                if turn >= warmups:
                    samples.setdefault(name, []).append(sample)
    return samples


def machine(packages: Iterable[str], device: str = "host") -> dict[str, str]:
    """Describe the machine: processor, system, Python, the versions of these packages, and the load; and the GPU if the
    work is measured on one."""
    found = {
        **({"gpu": query_gpu("name")} if device.startswith("cuda") else {}),
        "cpu": _cpu(),
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    found["date"] = time.strftime("%Y-%m-%d")
    found["load average before"] = load_average()
    return found


def query_gpu(what: str) -> str:
    """Return one property of the first GPU by nvidia-smi; an empty string if it reports none."""
    command = ["nvidia-smi", "--id=0", f"--query-gpu={what}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def load_average() -> str:
    """Return the load average over 1, 5 and 15 minutes."""
    if not hasattr(os, "getloadavg"):
        return "unknown"
    return " ".join(f"{load:.2f}" for load in os.getloadavg())


def _cpu() -> str:
    """Return the processor's model, with details that distinguish models to which a hypervisor gives one name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    about: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        about.setdefault(key.strip(), value.strip())
    name = about.get("model name") or platform.machine()
    details = [f"{key} {about[key]}" for key in ("cpu family", "model", "stepping") if key in about]
    return f"{name} ({', '.join(details)})" if details else name


def pin_to_one_core() -> str:
    """Pin this process, its threads and its children to the idlest core. Return a text that says which, if any."""
    if sys.platform != "linux":
        return "not pinned: this system cannot pin a process"
    before = _busy()
    time.sleep(0.5)
    after = _busy()
    core = min(sorted(os.sched_getaffinity(0)), key=lambda core: after.get(core, 0) - before.get(core, 0))
    os.sched_setaffinity(0, {core})
    return f"core {core}"


def _busy() -> dict[int, int]:
    """Return the ticks that each core has spent neither idle nor waiting for a disk (proc_stat(5))."""
    ticks = {}
    for line in Path("/proc/stat").read_text(encoding="ascii").splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name != "cpu":
            ticks[int(name[3:])] = sum(map(int, fields[:3])) + sum(map(int, fields[5:8]))
    return ticks


def show(tables: Iterable[Table | Grid], about: dict[str, str]) -> str:
    """Return the tables and the machine as text for a terminal."""
    facts = "\n".join(f"{key + ':':22}{value}" for key, value in about.items())
    return "\n\n".join([*(table.text() for table in tables), facts])


def save(name: str, title: str, tables: Sequence[Table | Grid], about: dict[str, str]) -> list[Path]:
    """Save the results as `results/<name>.json` and `.md`. Return their paths."""
    RESULTS.mkdir(exist_ok=True)
    data = {"machine": about, "tables": [asdict(table) for table in tables]}
    facts = "\n".join(f"- {key}: {value}" for key, value in about.items())
    page = "\n\n".join([f"# {title}", facts, *(table.markdown() for table in tables)])
    paths = [RESULTS / f"{name}.json", RESULTS / f"{name}.md"]
    for path, content in zip(paths, (json.dumps(data, indent=2), page), strict=True):
        path.write_text(content + "\n", encoding="utf-8")
    return paths


def kept_tables(name: str) -> list[Table]:
    """Return the tables of rows in `results/<name>.json`; none if there is no such file."""
    path = RESULTS / f"{name}.json"
    kept = json.loads(path.read_text(encoding="utf-8"))["tables"] if path.exists() else []
    return [Table(**{**table, "rows": [Row(**row) for row in table["rows"]]}) for table in kept]


__all__ = [
    "Grid",
    "Row",
    "Span",
    "Table",
    "kept_tables",
    "load_average",
    "machine",
    "measure",
    "now",
    "pin_to_one_core",
    "save",
    "show",
]
