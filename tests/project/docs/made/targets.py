"""Which targets the kept results meet, and what the columns of their tables mean."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple, final

COLUMNS: Final = {
    "best": "`best` is the shortest of the `samples`, whose median stands before it.",
    "cpu": "`cpu` is the median of the processor time of all threads.",
    "target": "`target` is the longest median that we accept.",
    "met": "`met` says if the target is met: `no, 1.49x` means that the median is 1.49 times the target.",
    "/ ": "`/ X` is the row's median divided by that of X.",
    "of the copy's bandwidth": (
        "The last column compares the bytes that the work must move in a second with those of the fastest copy of its "
        "size, in the run that measured the table. Reading alone is faster than copying, so a sum may exceed 100%."
    ),
}
"""The meaning of each column that many tables have, by the beginning of its head."""


def legend(text: str) -> str:
    """Return sentences on the columns that the tables of a page have; empty if they have none of `COLUMNS`."""
    heads = {head.strip() for line in re.findall(r"^\|  \|(.*)\|$", text, re.MULTILINE) for head in line.split("|")}
    said = [words for column, words in COLUMNS.items() if any(head.startswith(column) for head in heads)]
    return " ".join(said)


@final
class Targets(NamedTuple):
    """How many targets a file of results has, and the rows that miss theirs."""

    total: int
    missed: list[tuple[float, str]]
    """For each missed one its median divided by the target, and the title of its table."""

    def says(self) -> str:
        """Return the cells of a row: how many are met, and what misses by how much at worst, the farthest first."""
        worst: dict[str, float] = {}
        for ratio, table in sorted(self.missed, reverse=True):
            worst.setdefault(_work(table), ratio)
        listed = "; ".join([f"{work} {ratio:.2f}x" for work, ratio in worst.items()])
        return f"{self.total - len(self.missed)} of {self.total} | {listed}"


def _work(table: str) -> str:
    """Return the title of a table without its size: the same work in other sizes has the same."""
    return re.sub(r", [\d,]+ (?:elements|bytes|by [\d,]+)", "", table)


def targets(kept: Path) -> Targets:
    """Return the targets of a JSON file of results. Some files have no tables, and some tables no rows of times."""
    if not kept.exists():
        return Targets(0, [])
    tables = json.loads(kept.read_text(encoding="utf-8")).get("tables", [])
    rows = [(table["title"], row) for table in tables if isinstance(table["rows"], list) for row in table["rows"]]
    aimed = [(title, row["median"] / row["target"]) for title, row in rows if row["target"] is not None]
    return Targets(len(aimed), [(ratio, title) for title, ratio in aimed if ratio > 1])


def missed_table(results: Iterable[tuple[str, Path]]) -> list[str]:
    """Return the lines of a table of all results that miss a target. `results` has a link and a JSON file for each."""
    found = [(link, targets(kept)) for link, kept in results]
    rows = [f"| {link} | {each.says()} |" for link, each in found if each.missed]
    count, missed = sum(each.total for _, each in found), sum(len(each.missed) for _, each in found)
    return [
        f"Of {count} targets {missed} are missed. The last column has the work that misses one, and how many times its",
        "target the median is, at the worst of its sizes.\n",
        "| results | met | missed by |",
        "| --- | --- | --- |",
        *rows,
    ]
