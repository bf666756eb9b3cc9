"""Pages and pictures that are made from the project itself, so that they cannot fall
behind it.

- `benchmarks.md` and `benchmarks/` from benchmarks/results;
- `parity.md` from tests/project/parity, whose rows are also tests;
- `examples.md`, the gallery, and the pictures in it, by running the examples;
- `tutorial/notebook.md` from the notebook beside it, by running that;
- the cartoon of the tutorial, before and after, by running its script;
- the curves of recomputation, from their kept result;
- the pictures under `_static/generated/`, which the code of a page writes with
  `save_svg` (see `tests/support/doc_pages.py`). They are part of the page, so that they
  follow its theme and show their tooltips.
"""

import html
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from PIL import Image

from tests.project.docs.made import (
    benchmark_pages,
    gallery_page,
    gallery_pictures,
    memory_curves,
    notebooks,
)
from tests.support.doc_pages import (
    DOCS,
    GENERATED,
    draw,
    names_of,
    pages,
    pictures,
    with_made_pages,
)

ROOT = DOCS.parent


def write_pictures() -> None:
    """Run the pages that have pictures.

    Raises:
        RuntimeError: a page shows a picture that its code does not write.
    """
    for page in pages():
        wanted = pictures(page)
        if not wanted:
            continue
        drawn = draw(page)
        if missing := wanted - drawn.keys():
            raise RuntimeError(
                f"{page} shows {', '.join(sorted(missing))}, which its code does "
                "not write"
            )
        for name in wanted:
            _write(GENERATED / name, drawn[name])


def write_cartoon() -> None:
    """Write a part of the tutorial's picture, and the same part of its cartoon."""
    names = names_of(DOCS / "tutorial" / "05_branches.py")
    for name, picture in (("before", names["picture"]), ("after", names["drawn"])):
        part = (255 * picture[:252, :360]).astype("uint8")
        Image.fromarray(part).save(GENERATED / f"cartoon-{name}.png")


def parity() -> str:
    """The parity table: a part for each document of the originals."""
    from tests.project.parity import ROWS

    parts = [
        "# Parity with cuda-async and cutile\n",
        "dagpu brings the ideas of three libraries of Rust to Python: cuda-async,",
        "cutile and async-cuda-core. This page has every construct, example and",
        "exercise that their documentation shows, and its counterpart here.",
        "`tests/project/test_parity.py` runs each row.",
    ]
    for source in dict.fromkeys(row.source for row in ROWS):
        parts += [f"\n## {source}\n", "| there | here |", "| --- | --- |"]
        parts += [
            f"| {_cell(row.theirs)} | {_cell(row.ours)} |"
            for row in ROWS
            if row.source == source
        ]
    return "\n".join(parts) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def write_all(_app: Any = None) -> None:
    """Write what has changed; Sphinx builds anew what is newer."""
    sys.path.insert(0, str(ROOT))
    _write(DOCS / "benchmarks.md", benchmark_pages.summary())
    for name, page in benchmark_pages.details().items():
        _write(DOCS / "benchmarks" / name, page)
    _write(DOCS / "parity.md", parity())
    drawn = gallery_pictures.draw_all(GENERATED)
    _write(DOCS / "examples.md", gallery_page.gallery(drawn))
    cells = notebooks.executed(notebooks.NOTEBOOK)
    _write(DOCS / "tutorial" / "notebook.md", notebooks.as_page(cells))
    write_pictures()
    _write(GENERATED / memory_curves.NAME, memory_curves.drawn())
    write_cartoon()


def _write(file: Path, text: str) -> None:
    if not file.exists() or file.read_text(encoding="utf-8") != text:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def lead_to_pages(_app: Any, name: str, source: list[str]) -> None:
    """Let links to files lead to the pages that are made of them."""
    source[0] = with_made_pages(DOCS / f"{name}.md", source[0])


def include_pictures(_app: Any, page: nodes.document) -> None:
    """Replace each generated picture by its SVG, with the words that describe it.

    Its tooltips name files from the root of the project on.
    """
    for image in list(page.findall(nodes.image)):
        file = GENERATED / Path(image["uri"]).name
        if (
            image["uri"].endswith(f"_static/generated/{file.name}")
            and file.suffix == ".svg"
        ):
            words = html.escape(image["alt"])
            text = file.read_text(encoding="utf-8")
            drawn = text.replace("<svg ", f'<svg aria-label="{words}" ', 1)
            drawn = drawn.replace(f"{html.escape(str(ROOT))}/", "")  # in tooltips
            image.parent.replace(image, nodes.raw("", drawn, format="html"))


def setup(app: Any) -> dict[str, bool]:
    """Sphinx's entry."""
    app.connect("builder-inited", write_all)
    app.connect("source-read", lead_to_pages)
    # before Sphinx collects the files of images
    app.connect("doctree-read", include_pictures, priority=400)
    return {"parallel_read_safe": True}
