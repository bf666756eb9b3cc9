"""SVG, as much of it as pictures of DAGs and plans need: well-formed XML, readable on light and dark pages.

Colours are classes. A picture put inline into a page shares the page's style sheets, so all classes begin with
`dagpu-`. The background is drawn, not left to the page: a viewer that follows the system's colour scheme and a page
that does not may disagree.
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
    "GraphLaunch": ("#b35a00", "#f0a050"),
    "other": ("#5f6b7a", "#7c8898"),
}
"""The colour of each kind, on light and on dark: `fill-<kind>`."""

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
)


def _styles() -> str:
    rules = [*_BASE, *[(f"fill-{kind}", "fill", light, dark) for kind, (light, dark) in KINDS.items()]]
    light = "".join([f".dagpu-{name}{{{what}:{colour}}}" for name, what, colour, _ in rules])
    dark = "".join([f".dagpu-{name}{{{what}:{colour}}}" for name, what, _, colour in rules])
    shapes = ".dagpu-edge,.dagpu-wait{fill:none;stroke-width:1.3}.dagpu-rule{stroke-width:1}.dagpu-on{fill:#ffffff}"
    return f"{light}{shapes}@media (prefers-color-scheme:dark){{{dark}.dagpu-on{{fill:#101216}}}}"


def document(width: float, height: float, title: str, body: Sequence[str]) -> str:
    """The whole picture; `title` is what a screen reader says of it."""
    size = f'width="{_n(width)}" height="{_n(height)}" viewBox="0 0 {_n(width)} {_n(height)}"'
    font = "font-family:ui-monospace,Menlo,Consolas,monospace;font-size:11px"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size} style="{font}">',
            f"<title>{clean(title)}</title>",
            f"<style>{_styles()}</style>",
            rect(0, 0, width, height, "page"),
            *body,
            "</svg>",
        ]
    )


def rect(x: float, y: float, width: float, height: float, style: str, round_by: float = 0) -> str:
    """A rectangle of the class `dagpu-<style>`."""
    corners = f' rx="{_n(round_by)}"' if round_by else ""
    place = f'x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}"'
    return f'<rect {place}{corners} class="dagpu-{style}"/>'


def text(x: float, y: float, words: str, style: str = "text", anchor: str = "start") -> str:
    """One line of text, its baseline at `y`."""
    return f'<text x="{_n(x)}" y="{_n(y)}" text-anchor="{anchor}" class="dagpu-{style}">{clean(words)}</text>'


def line(x: float, y: float, to_x: float, to_y: float, style: str = "rule") -> str:
    """A straight line."""
    return f'<line x1="{_n(x)}" y1="{_n(y)}" x2="{_n(to_x)}" y2="{_n(to_y)}" class="dagpu-{style}"/>'


def curve(points: Sequence[tuple[float, float]], style: str, *, head: str, upright: bool) -> str:
    """An arrow through these points, without corners; it leaves and arrives upright, or level."""
    x, y = points[0]
    path = [f"M{_n(x)},{_n(y)}"]
    for to_x, to_y in points[1:]:
        if upright:
            middle = (y + to_y) / 2
            bend = f"{_n(x)},{_n(middle)} {_n(to_x)},{_n(middle)}"
        else:
            reach = max(abs(to_x - x) / 2, 6)
            bend = f"{_n(x + reach)},{_n(y)} {_n(to_x - reach)},{_n(to_y)}"
        path.append(f"C{bend} {_n(to_x)},{_n(to_y)}")
        x, y = to_x, to_y
    away = [(x - 3, y - 6), (x + 3, y - 6)] if upright else [(x - 6, y - 3), (x - 6, y + 3)]
    corners = " ".join([f"{_n(a)},{_n(b)}" for a, b in [(x, y), *away]])
    return f'<path d="{" ".join(path)}" class="dagpu-{style}"/><polygon points="{corners}" class="dagpu-{head}"/>'


def group(parts: Sequence[str], tooltip: str) -> str:
    """Parts that show a tooltip together."""
    return f"<g><title>{clean(tooltip)}</title>{''.join(parts)}</g>"


def clean(words: str) -> str:
    """The text, escaped for XML. Characters that XML forbids become `?`."""
    return escape(_FORBIDDEN.sub("?", words), quote=False)


_FORBIDDEN = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""XML 1.0, 2.2: all but these characters may stand in a document."""


def fitting(words: str, width: float) -> str:
    """The text, cut to `width` with an ellipsis; empty if three letters do not fit."""
    most = int(width / LETTER)
    if len(words) <= most:
        return words
    return words[: most - 1] + "…" if most > 3 else ""


LETTER = 6.7
"""Width of a letter."""


def _n(number: float) -> str:
    """A number, in tenths."""
    return f"{number:.1f}".removesuffix(".0")
