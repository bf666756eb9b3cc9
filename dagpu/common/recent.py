"""`Recent`: values that are kept by key, those used last."""

from collections import OrderedDict
from typing import TypeVar, final

_K = TypeVar("_K")
_V = TypeVar("_V")


@final
class Recent(OrderedDict[_K, _V]):
    """A dict of at most a number of entries, the one used last at the end."""

    __slots__ = ("_most",)

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def use(self, key: _K) -> _V | None:
        """Return what is kept for a key, which has been used last from now on; None if there is nothing."""
        found = self.get(key)
        if found is not None:
            self.move_to_end(key)
        return found

    def keep(self, key: _K, value: _V) -> _V:
        """Keep a value, and drop the one that was not used for the longest time, if there are too many. Return the
        value."""
        self[key] = value
        if len(self) > self._most:
            self.popitem(last=False)
        return value
