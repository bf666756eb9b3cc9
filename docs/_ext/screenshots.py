"""Takes pictures of the main pages with a headless Chromium, light and dark.

    python docs/_ext/screenshots.py [FOLDER] [PAGE ...]

The pages are those of docs/_build/html, which `make docs` builds, in a window that is
1280 pixels wide. The pictures go to FOLDER, by default docs/_build/screenshots.
"""

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


def take(browser: str, page: str, scheme: str, folder: Path) -> Path:
    """Write the picture of a page. Return its file."""
    picture = folder / f"{page.replace('/', '-')}-{scheme}.png"
    options = [
        "--headless=new",
        "--no-sandbox",
        "--hide-scrollbars",
        f"--window-size={WIDTH},{HEIGHT}",
        "--virtual-time-budget=3000",
        f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}",
        f"--screenshot={picture}",
    ]
    address = (BUILT / f"{page}.html").as_uri()
    subprocess.run([browser, *options, address], check=True, capture_output=True)
    return picture


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
    return 0


if __name__ == "__main__":
    sys.exit(main())
