"""The functions that `Map` applies for `op[index]` and `op.view(dtype)`: data, as the others of dagpu.ops.compose."""

from typing import Any, Final, final

import numpy as np

from dagpu.common.frozen import plain
from dagpu.common.layout import Layout, Viewed, part_layout, whole_number
from dagpu.common.places import Origin
from dagpu.handles import handle_part


@final
@plain
class Part:
    """The function `t[index]` that keeps the kind of `t`."""

    index: tuple[Any, ...]
    """The items of the index, plain values, so that a key can have them: `SLICE` is followed by the start, the stop and
    the step of a slice."""

    def apply(self, t: Any, where: Origin) -> Any:
        return handle_part(t, self.items, "[]", where)

    def layout_of(self, layout: Layout) -> Layout:
        return part_layout(layout, self.items)

    @property
    def items(self) -> tuple[Any, ...]:
        """The index itself."""
        given, items = iter(self.index), list[Any]()
        for item in given:
            items.append(slice(next(given), next(given), next(given)) if item == SLICE else item)
        return tuple(items)

    @property
    def text(self) -> str:
        """The index as it is written."""
        return ", ".join(map(_text_of_item, self.items))


SLICE: Final = "slice"


def _text_of_item(item: Any) -> str:
    if isinstance(item, slice):
        ends = [item.start, item.stop] if item.step is None else [item.start, item.stop, item.step]
        return ":".join(["" if end is None else str(end) for end in ends])
    return "..." if item is ... else str(item)


def plain_index(index: Any) -> tuple[Any, ...]:
    """Return the items of an index as a `Part` has them.

    Raises:
        ShapeError: it has an item that is neither a whole number, nor a slice of them, nor `...`, nor None.
    """
    found: list[Any] = []
    for axis, item in enumerate(index if type(index) is tuple else (index,)):
        if isinstance(item, slice):
            ends = (item.start, item.stop, item.step)
            found += (SLICE, *[None if end is None else whole_number(end, axis) for end in ends])
        else:
            found.append(item if item is None or item is ... else whole_number(item, axis))
    return tuple(found)


@final
@plain
class Reread:
    """The function `t.view(dtype)` that keeps the kind of `t`."""

    dtype: str
    """The name of the element type."""

    def apply(self, t: Any, where: Origin) -> Any:
        return handle_part(t, Viewed(np.dtype(self.dtype)), "view()", where)

    def layout_of(self, layout: Layout) -> Layout:
        return part_layout(layout, Viewed(np.dtype(self.dtype)))
