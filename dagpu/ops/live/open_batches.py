"""The changes of sources that wait for the end of a `batch()`, by the task or thread that has made them."""

from collections.abc import Callable
from contextvars import ContextVar
from threading import get_ident
from typing import Any, Final, NamedTuple, TypeAlias, final

from dagpu.common.slot import Slot
from dagpu.ops.live.parts import Box
from dagpu.ops.live.source_cell import SourceCell
from dagpu.ops.live.versions import Version

Put: TypeAlias = Callable[[Any, bool], Any]
"""Writes a part of a value, in place if the flag says so, and returns the value that has it."""


IsAlone: TypeAlias = Callable[[Any], bool]
"""True for a value that nothing but its source holds. The caller holds the lock of the bookkeeping."""


Again: TypeAlias = Callable[[Version], Any]
"""Makes a value of that of a version."""


@final
class SourceChange(NamedTuple):
    """What a batch has set a source to."""

    value: Any
    base: Version | None = None
    """For a value of which parts were written: the version that it was made of."""
    writes: tuple[tuple[Box, Put], ...] = ()
    """These parts, and what writes them."""
    is_alone: IsAlone | None = None
    """If not None, `value` is that of the base: the parts are written when the batch ends, in place if this allows
    it."""
    read: Version | None = None
    """For a value that a function made of another one: the version that it was made of."""
    again: Again | None = None
    """This function, which is called again if another thread has changed the source meanwhile."""

    def written(self) -> "SourceChange":
        """Return the same change with the parts written, in a copy of the base."""
        if self.is_alone is None or self.base is None:
            return self
        value = self.base.settled().value
        for number, (_, put) in enumerate(self.writes):
            value = put(value, number > 0)
        return SourceChange(value, self.base, self.writes)

    def made_of(self, newest: Version) -> "SourceChange":
        """Return the same change of the newest version, which is settled."""
        if self.again is not None:
            return self if self.read is newest else SourceChange(self.again(newest), read=newest, again=self.again)
        if self.base is None:
            return self
        if self.is_alone is not None:
            same = self.base is newest and self.value is newest.value
            return self if same else SourceChange(newest.value, newest, self.writes, self.is_alone)
        return self if self.base is newest else SourceChange(newest.value, newest, self.writes, _never).written()

    @property
    def boxes(self) -> list[Box] | None:
        """The parts that differ from the version of which it was made; None for everything."""
        return None if self.base is None else [box for box, _ in self.writes]


def _never(_value: Any) -> bool:
    """Return false: of a value that was made of a copy, every further write makes a copy."""
    return False


@final
class OpenBatch:
    """The changes of a batch that is open."""

    def __init__(self, around: "OpenBatch | None") -> None:
        self.around = around
        self.owner = _task_or_thread()
        self.open = True
        self.changes: dict[SourceCell, SourceChange] = {}


CURRENT_BATCH: ContextVar[OpenBatch | None] = ContextVar("dagpu_batch", default=None)
innermost: Final = CURRENT_BATCH.get
"""Returns the innermost batch of this task or thread, which may have ended; None if there is none."""


FIND_TASK: Final = Slot[Callable[[], object]]("dagpu.runtime.waiting.trio_waits")
"""Returns the task that runs now on this thread; None outside of tasks."""


def _task_or_thread() -> object:
    """Return the task that runs now, or a number for the thread."""
    return FIND_TASK.value() or get_ident()


def open_batch() -> OpenBatch | None:
    """Return the innermost open batch of this task or thread; None if there is none.

    A child task and a thread of `trio.to_thread` inherit the variable, and not the batch.
    """
    pending = CURRENT_BATCH.get()
    if pending is None:
        return None
    owner = _task_or_thread()
    while pending is not None and not (pending.open and pending.owner == owner):
        pending = pending.around
    return pending


def in_open_batch() -> bool:
    """Return true if changes of this task or thread wait for the end of a batch."""
    return innermost() is not None and open_batch() is not None


def newest_value(source: SourceCell) -> tuple[Any, Version]:
    """Return the value that this task or thread set last, in its batch or outside of it, and the newest version."""
    version = source.history.versions[-1]
    pending = None if innermost() is None else open_batch()
    while pending is not None:
        if source in pending.changes:
            new = pending.changes[source] = pending.changes[source].written()
            return new.value, version
        pending = pending.around
    return (version if version.written is None else version.settled()).value, version


def value_to_write(source: SourceCell) -> Any:
    """Return a value of the shape and element type that a write meets: that which a batch of this task or thread has
    set, or the newest."""
    pending = None if innermost() is None else open_batch()
    while pending is not None:
        new = pending.changes.get(source)
        if new is not None:
            return new.value
        pending = pending.around
    return source.history.newest.settled().value


def outer_base(pending: OpenBatch, source: SourceCell, newest: Version) -> Version | None:
    """Return the version of which a value in a batch is made; None if a batch around this one has set the source."""
    around = pending.around
    while around is not None:
        if source in around.changes:
            return None
        around = around.around
    return newest
