"""Tables as text, and the names in them, for printing programs, plans and reports."""

from collections.abc import Sequence
from pathlib import PurePath

from dagpu.common.places import Origin, place_of


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the lines of a table. Each column is as wide as its widest entry, and columns of numbers are
    right-aligned."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    right = [title in ("step", "#", "bytes", "at", "from", "to", "launches", "time", "share") for title in head]
    return [
        "  ".join(
            [
                text.rjust(width) if to_right else text.ljust(width)
                for text, width, to_right in zip(row, widths, right, strict=True)
            ]
        ).rstrip()
        for row in (head, *rows)
    ]


class OriginColumn:
    """Formats origins as `file.py:12`, and caches the texts: many steps share one origin, and each look-up walks a line
    table."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[Origin, str] = {None: ""}

    def text_of(self, origin: Origin) -> str:
        """Return the text for an origin; the empty text if its place is not known."""
        text = self._known.get(origin)
        if text is None:
            place = place_of(origin)
            text = "" if place is None else f"{PurePath(place[0]).name}:{place[1]}"
            self._known[origin] = text
        return text


def name_at(names: Sequence[str], number: int) -> str:
    """Return the name with that index. An index out of range is printed as `?7`, because the plan may be wrong."""
    return names[number] if 0 <= number < len(names) else f"?{number}"


def counted(number: int, what: str) -> str:
    """Return a number with its noun: `1 lane`, `2,000 lanes`."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def duration(seconds: float) -> str:
    """Format seconds: `12.3 us`, `4.56 ms`, `1.23 s`."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} us"
