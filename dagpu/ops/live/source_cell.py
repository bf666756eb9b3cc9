"""`SourceCell`, the changing part of a source: the versions of its value, and the feeds that watch it."""

from collections.abc import Callable
from struct import Struct
from typing import Any, Final, final

from dagpu.common.critical import Bookkeeping
from dagpu.ops.live.array_parts import ArrayParts
from dagpu.ops.live.versions import History

_EXACT: Final = frozenset((int, bool, str, bytes, type(None)))
"""The types of values that are equal by `==` exactly if nothing can distinguish them."""
_bits: Final = Struct("d").pack

PLAIN: Final = _EXACT | {float}
"""The types of numbers, truth values and texts: values that cannot be changed in place, and hold nothing else."""


@final
class SourceCell:
    """The changing part of a source: the versions of its value, and the feeds that watch it."""

    __slots__ = ("_equal", "_watchers", "history", "parts")

    def __init__(self, value: Any, equal: Callable[[Any, Any], bool] | None) -> None:
        self._equal = equal
        self._watchers: dict[object, Callable[[], None]] = {}
        self.history = History(value)
        self.parts = ArrayParts()
        """Makes the versions of an array of which parts are written."""

    def differs(self, old: Any, new: Any) -> bool:
        """Return true if a new value is a change."""
        if self._equal is not None:
            return not self._equal(old, new)
        if old is new:
            return False
        kind = type(new)
        if kind is not type(old):
            return True
        if kind is float:
            return bool(old != new) if old == old and new else _bits(old) != _bits(new)  # NaN, and 0.0 or -0.0
        return kind not in _EXACT or bool(old != new)

    def watch(self, watcher: object, wake: Callable[[], None]) -> None:
        """Call `wake` after each change, on the thread that made it, until `unwatch`."""
        with Bookkeeping():
            self._watchers[watcher] = wake

    def unwatch(self, watcher: object) -> None:
        """End the calls that `watch` began."""
        with Bookkeeping():
            self._watchers.pop(watcher, None)

    def watchers(self) -> list[Callable[[], None]]:
        """Return the functions to call after a change."""
        return list(self._watchers.values())
