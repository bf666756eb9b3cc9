"""SVG elements for pictures of DAGs and plans: well-formed XML, readable on light and dark pages.

Colours are CSS classes. An inline picture shares the page's style sheets, so all classes begin with `dagpu-`. It has
the colours of the page's theme where the page says which (`_LIGHT_PAGE`, `_DARK_PAGE`), else those of the system. The
background is drawn, not left to the page, because a viewer may follow the system's colour scheme where the page does
not.
"""

import re
from collections.abc import Sequence
from html import escape

KINDS = {
    "Launch": ("#3b78c9", "#5b9bf0"),
    "Fill": ("#8a8f98", "#8b929e"),
    "CopyHtoD": ("#2f8f4e", "#4fb872"),
    "CopyDtoH": ("#b0641b", "#e0954a"),
    "CopyDtoD": ("#80711a", "#c4b243"),
    "HostCall": ("#8a4bb3", "#b884dd"),
    "GraphLaunch": ("#b8327a", "#e87bb0"),
    "other": ("#5f6b7a", "#7c8898"),
}
"""The colours of the class `fill-<kind>` for each kind of instruction: on a light page, on a dark page."""

_BASE = (
    ("page", "fill", "#ffffff", "#16181d"),
    ("band", "fill", "#f1f3f6", "#20242b"),
    ("text", "fill", "#1c2128", "#e4e8ee"),
    ("faint", "fill", "#5a6472", "#a3adba"),
    ("rule", "stroke", "#c3c9d2", "#434b57"),
    ("edge", "stroke", "#7a8491", "#8d97a5"),
    ("head", "fill", "#7a8491", "#8d97a5"),
    ("wait", "stroke", "#c0392b", "#ff7d6e"),
    ("tip", "fill", "#c0392b", "#ff7d6e"),
    ("on", "fill", "#ffffff", "#101216"),
)


_LIGHT_PAGE = ":is([data-theme=light],[data-jp-theme-light=true],.vscode-light)"
_DARK_PAGE = ":is([data-theme=dark],[data-jp-theme-light=false],.vscode-dark)"
"""Pages that choose a theme themselves: Sphinx's Furo, JupyterLab, and Visual Studio Code."""


def _styles() -> str:
    rules = [*_BASE, *[(f"fill-{kind}", "fill", light, dark) for kind, (light, dark) in KINDS.items()]]
    light = [f".dagpu-{name}{{{what}:{colour}}}" for name, what, colour, _ in rules]
    dark = [f".dagpu-{name}{{{what}:{colour}}}" for name, what, _, colour in rules]
    shapes = ".dagpu-edge,.dagpu-wait{fill:none;stroke-width:1.3}.dagpu-rule{stroke-width:1}"
    shapes += ".dagpu-many{opacity:.35}.dagpu-many:hover{opacity:1}"
    on_light_page = "".join([f"{_LIGHT_PAGE} {rule}" for rule in light])
    on_dark_page = "".join([f"{_DARK_PAGE} {rule}" for rule in dark])
    system = f"@media (prefers-color-scheme:dark){{{''.join(dark)}}}"
    return f"{''.join(light)}{shapes}{system}{on_light_page}{on_dark_page}"


def document(width: float, height: float, title: str, body: Sequence[str]) -> str:
    """Return the whole picture. Screen readers read its `title`."""
    size = f'width="{_tenths(width)}" height="{_tenths(height)}" viewBox="0 0 {_tenths(width)} {_tenths(height)}"'
    font = "font-family:ui-monospace,Menlo,Consolas,monospace;font-size:11px"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size} style="{font}">',
            f"<title>{escape_xml(title)}</title>",
            f"<style>{_styles()}</style>",
            rect(0, 0, width, height, "page"),
            *body,
            "</svg>",
        ]
    )


def rect(x: float, y: float, width: float, height: float, style: str, round_by: float = 0) -> str:
    """Return a rectangle of the class `dagpu-<style>`."""
    corners = f' rx="{_tenths(round_by)}"' if round_by else ""
    place = f'x="{_tenths(x)}" y="{_tenths(y)}" width="{_tenths(width)}" height="{_tenths(height)}"'
    return f'<rect {place}{corners} class="dagpu-{style}"/>'


def text(x: float, y: float, words: str, style: str = "text", anchor: str = "start") -> str:
    """Return one line of text, its baseline at `y`."""
    place = f'x="{_tenths(x)}" y="{_tenths(y)}"'
    return f'<text {place} text-anchor="{anchor}" class="dagpu-{style}">{escape_xml(words)}</text>'


def line(x: float, y: float, to_x: float, to_y: float, style: str = "rule") -> str:
    """Return a straight line of the class `dagpu-<style>`."""
    return (
        f'<line x1="{_tenths(x)}" y1="{_tenths(y)}" x2="{_tenths(to_x)}" y2="{_tenths(to_y)}" class="dagpu-{style}"/>'
    )


def curve(points: Sequence[tuple[float, float]], style: str, *, head: str) -> str:
    """Return a smooth arrow through these points, vertical at each of them."""
    x, y = points[0]
    path = [f"M{_tenths(x)},{_tenths(y)}"]
    down = True
    for to_x, to_y in points[1:]:
        middle, down = (y + to_y) / 2, to_y >= y
        bend = f"{_tenths(x)},{_tenths(middle)} {_tenths(to_x)},{_tenths(middle)}"
        path.append(f"C{bend} {_tenths(to_x)},{_tenths(to_y)}")
        x, y = to_x, to_y
    behind = y - HEAD if down else y + HEAD
    away = [(x - 3, behind), (x + 3, behind)]
    corners = " ".join([f"{_tenths(a)},{_tenths(b)}" for a, b in [(x, y), *away]])
    return f'<path d="{" ".join(path)}" class="dagpu-{style}"/><polygon points="{corners}" class="dagpu-{head}"/>'


def in_page(picture: str) -> str:
    """Return a picture as HTML that a page or a notebook includes. A picture that is wider than the page scrolls."""
    return f'<div style="overflow-x:auto">{picture}</div>'


def text_in_page(words: str) -> str:
    """Return lines of text as HTML that a notebook includes. Long lines scroll."""
    return f'<pre style="overflow-x:auto">{escape_xml(words)}</pre>'


def group(parts: Sequence[str], tooltip: str, style: str = "") -> str:
    """Return a group of these parts, with one tooltip; of the class `dagpu-<style>` if one is given."""
    kind = f' class="dagpu-{style}"' if style else ""
    return f"<g{kind}><title>{escape_xml(tooltip)}</title>{''.join(parts)}</g>"


def escape_xml(words: str) -> str:
    """Return the text, escaped for XML. Characters that XML forbids become `?`."""
    return escape(_FORBIDDEN.sub("?", words), quote=False)


_FORBIDDEN = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""The characters that XML 1.0, section 2.2, forbids in a document."""


def fit_text(words: str, width: float) -> str:
    """Return the text, cut to `width` with an ellipsis; empty if three letters do not fit."""
    most = int(width / LETTER)
    if len(words) <= most:
        return words
    return words[: most - 1] + "…" if most > 3 else ""


HEAD = 6.0
"""Length of an arrow's head, in pixels."""
LETTER = 6.7
"""Width of a letter of the pictures' monospaced font, in pixels."""


def _tenths(number: float) -> str:
    """Return a number as text, rounded to tenths."""
    return f"{number:.1f}".removesuffix(".0")
