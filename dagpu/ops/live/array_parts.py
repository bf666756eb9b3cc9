"""`ArrayParts`, which writes parts of an array that others may be reading: each version is an array of its own.

The memory of a version that nothing reads any more becomes that of a later one: it differs from the newest version in
the parts that were written since, so these alone are copied. A version is a view of an array that is made of a buffer,
and every view of it refers to that array too. So this array is dropped only after all readers of the version.
"""

from typing import Any, Final, NamedTuple, TypeAlias, final
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from dagpu.ops.live.parts import Box, slices_of

LEAST: Final = 1 << 16
"""The fewest bytes of an array whose memory is used again: a smaller one is copied as quickly."""

_MOST_SPARE: Final = 2
"""The most versions whose memory waits to be used again."""
_MOST_BOXES: Final = 16
"""The most parts in which such memory differs from the newest version."""

_Array: TypeAlias = NDArray[Any]


@final
class _Spare(NamedTuple):
    """The memory of a version that was replaced."""

    memory: _Array
    """The array that owns it."""
    read: "ref[Any]"
    """The buffer on which all arrays of the version are based, as long as something reads the version."""
    boxes: tuple[Box, ...]
    """The parts in which it differs from the newest version."""


@final
class _Made(NamedTuple):
    """The version that was made last."""

    version: "ref[_Array]"
    own: _Spare
    """Its memory."""
    spare: list[_Spare]
    """Memory of earlier versions, as it differs from this one."""


@final
class ArrayParts:
    """Makes the versions of one source that holds an array. Any thread may call it: one that comes between another
    thread's steps finds no memory to use again, and copies all."""

    __slots__ = ("_made",)

    def __init__(self) -> None:
        self._made: list[_Made] = []
        """What was made last, unless a thread is making a version of it. Popping is atomic."""

    def with_part(self, array: _Array, box: Box, data: _Array) -> _Array:
        """Return a read-only array that has `data` in a part, and is equal to `array` everywhere else."""
        if array.nbytes < LEAST:
            copy = np.array(array)
            copy[slices_of(box)] = data
            copy.flags.writeable = False
            return copy
        try:
            last = self._made.pop()
        except IndexError:
            last = None
        is_of_last = last is not None and last.version() is array
        spare = last.spare if last is not None and is_of_last else []
        free = next((each for each in spare if each.read() is None), None)
        if free is None:
            memory = np.empty(array.shape, array.dtype)
            memory[...] = array
        else:
            memory = free.memory
            for part in map(slices_of, free.boxes):
                memory[part] = array[part]
        memory[slices_of(box)] = data
        whole = np.frombuffer(memory.reshape(-1).view(np.uint8).data.toreadonly(), array.dtype)
        lowest: Any = whole.base
        made = whole.reshape(array.shape)
        kept = [each._replace(boxes=(*each.boxes, box)) for each in spare if each is not free]
        if last is not None and is_of_last:
            kept.append(last.own._replace(boxes=(box,)))
        kept = [each for each in kept[-_MOST_SPARE:] if len(each.boxes) <= _MOST_BOXES]
        self._made = [_Made(ref(made), _Spare(memory, ref(lowest), ()), kept)]
        return made
