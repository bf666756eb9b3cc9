"""Runs the notebook of the tutorial, and makes a page of it: its cells, each with what it shows."""

import re
from pathlib import Path
from typing import Any, Final

import nbformat
from nbclient import NotebookClient

from tests.support.doc_pages import DOCS

NOTEBOOK: Final = DOCS / "tutorial" / "12_notebook.ipynb"
_DEADLINE_S: Final = 120
"""Seconds after which a cell, or the start of the kernel, counts as hung."""


def executed(notebook: Path) -> list[Any]:
    """Run a notebook from its first cell to its last, in a fresh kernel. Return its cells with their outputs.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell raised an error.
    """
    read: Any = nbformat.read  # it has no types
    opened = read(notebook, as_version=4)
    client: Any = NotebookClient(
        opened,
        kernel_name="python3",
        timeout=_DEADLINE_S,
        startup_timeout=_DEADLINE_S,
        resources={"metadata": {"path": str(notebook.parent)}},
    )
    client.execute()
    return list(opened.cells)


def as_page(cells: list[Any]) -> str:
    """Return the cells as a page in MyST Markdown."""
    parts: list[str] = []
    for cell in cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
        else:
            number = f":caption: In[{cell.execution_count}]"  # by which pictures name it
            parts += [f"```{{code-block}} python\n{number}\n\n{cell.source}\n```", *map(_shown, cell.outputs)]
    return "\n\n".join(parts) + "\n"


def _shown(output: Any) -> str:
    """Return an output as Markdown: the HTML that a notebook prefers, else text."""
    if output.output_type == "stream":
        return f"```text\n{output.text.rstrip()}\n```"
    if "text/html" in output.data:
        inline = re.sub(r"\n{2,}", "\n", output.data["text/html"])
        inline = inline.replace('<div style="overflow-x:auto">', "<div>", 1)  # the box around it scrolls
        return f'```{{raw}} html\n<div class="lanes">{inline}</div>\n```'
    return f"```text\n{output.data['text/plain']}\n```"
