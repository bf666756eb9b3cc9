"""Tables as text, and the names in them: what programs, plans and reports print with."""

from collections.abc import Sequence
from pathlib import PurePath

from dagpu.common.origin import Origin, place_of


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Lines with columns as wide as their widest entry; numbers to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    right = [title in ("#", "bytes", "at", "from", "to") for title in head]
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
    """Origins as `file.py:12`. Many steps share one origin, and each costs a walk over a line table."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[Origin, str] = {None: ""}

    def of(self, origin: Origin) -> str:
        text = self._known.get(origin)
        if text is None:
            place = place_of(origin)
            text = "" if place is None else f"{PurePath(place[0]).name}:{place[1]}"
            self._known[origin] = text
        return text


def name_at(names: Sequence[str], number: int) -> str:
    """The name with that number. A number out of range is shown: the plan may be wrong."""
    return names[number] if 0 <= number < len(names) else f"?{number}"
