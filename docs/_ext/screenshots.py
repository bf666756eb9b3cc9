"""Takes pictures of the main pages with a headless Chromium, light and dark.

    python docs/_ext/screenshots.py [FOLDER] [PAGE ...]

The pages are those of docs/_build/html, which `make docs` builds, in a window that is
1280 pixels wide. The pictures go to FOLDER, by default docs/_build/screenshots.

Then the browser measures every page, or those that are named: code, tables and bars
that are wider than the page are listed, and the exit status is 1. Pictures of DAGs and
lanes may be wider, for they scroll.
"""

import html
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

BUILT = Path(__file__).resolve().parents[1] / "_build" / "html"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SCHEMES = {"dark": 0, "light": 1}
"""Chromium's numbers of the colour schemes that a page may ask for."""
PAGES = (
    "index",
    "examples",
    "benchmarks",
    "tutorial/index",
    "tutorial/branches",
    "tutorial/notebook",
    "guides/memory",
    "guides/scheduling",
    "reference/arrays",
    "reference/ops",
)
WIDTH, HEIGHT = 1280, 4000
OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--virtual-time-budget=3000",
    f"--window-size={WIDTH},{HEIGHT}",
)
MEASURE = """<script>addEventListener("load", () => setTimeout(() => {
  const cut = [...document.querySelectorAll("article :is(pre, .table-wrapper, .bars)")]
    .filter((each) => each.clientWidth && each.scrollWidth > each.clientWidth + 1)
    .map((each) => `${each.scrollWidth} px in ${each.clientWidth}: `
      + each.textContent.trim().replace(/\\s+/g, " ").slice(0, 60));
  document.title = "cut" + JSON.stringify(cut);
}, 100))</script>"""
"""Replaces the title of a page by the list of what is wider than its place."""


def take(browser: str, page: str, scheme: str, folder: Path) -> Path:
    """Write the picture of a page. Return its file."""
    picture = folder / f"{page.replace('/', '-')}-{scheme}.png"
    options = [
        *OPTIONS,
        f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}",
        f"--screenshot={picture}",
    ]
    address = (BUILT / f"{page}.html").as_uri()
    subprocess.run([browser, *options, address], check=True, capture_output=True)
    return picture


def cut(browser: str, page: str) -> list[str]:
    """Return what is wider than its place in a page, with the beginning of its text."""
    built = BUILT / f"{page}.html"
    copy = built.with_suffix(".measured.html")
    text = built.read_text(encoding="utf-8").replace("</body>", f"{MEASURE}</body>")
    copy.write_text(text, encoding="utf-8")
    try:
        shown = subprocess.run(
            [browser, *OPTIONS, "--dump-dom", copy.as_uri()],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    finally:
        copy.unlink()
    (found,) = re.findall(r"<title>cut(.*?)</title>", shown)
    return [f"{page}: {each}" for each in json.loads(html.unescape(found))]


def all_pages() -> list[str]:
    """Return the names of all pages but the indices that Sphinx adds."""
    names = [str(p.relative_to(BUILT).with_suffix("")) for p in BUILT.rglob("*.html")]
    return sorted({*names} - {"genindex", "search", "py-modindex"})


def main() -> int:
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        print(
            f"There is no browser here: one of {', '.join(BROWSERS)}", file=sys.stderr
        )
        return 2
    folder, *pages = sys.argv[1:] or [str(BUILT.parent / "screenshots")]
    Path(folder).mkdir(parents=True, exist_ok=True)
    for page in pages or PAGES:
        for scheme in SCHEMES:
            print(take(browser, page, scheme, Path(folder).resolve()))
    wide = [each for page in pages or all_pages() for each in cut(browser, page)]
    print("\n".join(["Wider than the page:", *wide] if wide else ["All of it fits."]))
    return int(bool(wide))


if __name__ == "__main__":
    sys.exit(main())
