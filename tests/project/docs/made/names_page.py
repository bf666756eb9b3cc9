"""The page docs/guides/numpy-names.md, of the tables by which `dagpu.array` answers names of NumPy's.

    python -m tests.project.docs.made.names_page

writes it; a test holds it against the tables.
"""

from collections.abc import Mapping

from dagpu import array
from dagpu.arrays.numpy_names import LEFT_OUT, NUMPY_NAMES
from tests.support.doc_pages import DOCS

PAGE = DOCS / "guides" / "numpy-names.md"
HEAD = """\
# Names of NumPy and CuPy

Each function of NumPy's namespace, of `numpy.linalg` and `numpy.fft`, which have those of the array API and CuPy's, is
in `dagpu.array`, has another name here, or is left out. `array.max` and the like are errors that say what is in this
table.

| names | |
| --- | --- |
| {here} | are functions here |
| {other} | have another name, or are written otherwise |
| {out} | are left out |

## Functions here

{functions}

## Other names

| NumPy | here |
| --- | --- |
{others}

## Left out

| NumPy | why |
| --- | --- |
{left}
"""


def _grouped(answers: Mapping[str, str]) -> str:
    """Return the rows of a table: names that have one answer are one row."""
    groups: dict[str, list[str]] = {}
    for name, answer in sorted(answers.items()):
        groups.setdefault(answer.replace(f"{name}(", "X(").replace(f"linalg.{name}", "linalg.X"), []).append(name)
    rows = sorted(groups.items(), key=lambda row: row[1])
    return "\n".join([f"| `{' '.join(names)}` | {_told(answer)} |" for answer, names in rows])


def _told(answer: str) -> str:
    """Return an answer as a cell."""
    text = answer.removeprefix("Write ").removeprefix("it in an expression: ").replace("|", "\\|")
    plain = any(word in text for word in (" of ", ", or ", "; ", " for ", ", one ", " before ", ", with ", " and "))
    return text if plain or not answer.startswith("Write ") else f"`{text}`"


def page() -> str:
    """The page."""
    return HEAD.format(
        here=len(array.__all__),
        other=len(NUMPY_NAMES),
        out=len(LEFT_OUT),
        functions=f"`{' '.join(array.__all__)}`",
        others=_grouped(NUMPY_NAMES),
        left=_grouped(LEFT_OUT),
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
