"""Versions of the values of sources: snapshots, which read all sources at one instant, and batches of changes.

A clock counts the changes of all sources together. Each version of a source records the instant of its change. So a
snapshot is one number, and a source that a trace finds late is read at the same instant as the others. A source keeps
an old version only while a snapshot that needs it exists.
"""

import itertools
import time
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from struct import Struct
from typing import Any, Final, final

from dagpu.common.critical import Bookkeeping


@final
class Version:
    """One value of a source, and when it was set."""

    __slots__ = ("instant", "revision", "since", "value")

    def __init__(self, instant: int, revision: int, value: Any) -> None:
        self.instant = instant
        """The number of changes of all sources up to and with this one."""
        self.revision = revision
        """The number of changes of this source."""
        self.value = value
        self.since = time.perf_counter()
        """The time of the change, in seconds of `time.perf_counter`."""


@final
class Snapshot:
    """One instant at which all sources are read. The versions of that instant live as long as this object.

    Taking a snapshot acquires no lock, so that it never waits for a change of another thread.
    """

    __slots__ = ("__weakref__", "instant")

    def __init__(self) -> None:
        number = next(_numbers)
        self.instant = -1  # until it is known, every version is needed
        _snapshots[number] = weakref.ref(self, lambda _: _snapshots.pop(number, None))
        self.instant = _clock.now


_numbers: Final = itertools.count()
_snapshots: Final[dict[int, "weakref.ref[Snapshot]"]] = {}
"""The snapshots that exist, by numbers. Single operations of a dict are atomic."""


@final
class _Clock:
    """The instant of the newest change that is complete.

    A change gives all its sources their versions first, and advances the clock then; so a snapshot has all of it or
    nothing. Versions that no snapshot needs are dropped after that.
    """

    def __init__(self) -> None:
        self.now = 0


_clock: Final = _Clock()


@final
class History:
    """The versions of one source that are still needed: the newest one, and those of snapshots that exist."""

    __slots__ = ("_versions",)

    def __init__(self, value: Any) -> None:
        self._versions: tuple[Version, ...] = (Version(_clock.now, 0, value),)

    @property
    def newest(self) -> Version:
        """The version that was set last."""
        return self._versions[-1]

    def at(self, snapshot: Snapshot) -> Version:
        """Return the version of a snapshot; the oldest one for a source that is younger than the snapshot."""
        versions = self._versions  # one read: another thread may replace the tuple
        newest = versions[-1]
        if newest.instant <= snapshot.instant:
            return newest
        return versions[max(_position(versions, snapshot.instant), 0)]

    def add(self, instant: int, value: Any) -> None:
        """Add a version. The caller holds the lock of the bookkeeping."""
        self._versions = (*self._versions, Version(instant, self.newest.revision + 1, value))

    def drop_old(self) -> None:
        """Drop the versions that no snapshot needs. The caller holds the lock of the bookkeeping."""
        versions = self._versions
        if not _snapshots:
            self._versions = versions[-1:]
            return
        living = [snapshot for reference in list(_snapshots.values()) if (snapshot := reference()) is not None]
        needed = {max(_position(versions, snapshot.instant), 0) for snapshot in living}
        if any(snapshot.instant < 0 for snapshot in living):
            return  # it is being taken in another thread
        needed.add(len(versions) - 1)
        self._versions = tuple([versions[index] for index in sorted(needed)])


def _position(versions: Sequence[Version], instant: int) -> int:
    """Return the index of the newest version that is not younger than this instant; -1 if all are younger."""
    return bisect_right(versions, instant, key=lambda version: version.instant) - 1


_EXACT: Final = frozenset((int, bool, str, bytes, type(None)))
"""The types of values that are equal by `==` exactly if nothing can distinguish them."""
_bits: Final = Struct("d").pack


@final
class SourceCell:
    """The changing part of a source: the versions of its value, and the feeds that watch it."""

    __slots__ = ("_equal", "_watchers", "history")

    def __init__(self, value: Any, equal: Callable[[Any, Any], bool] | None) -> None:
        self._equal = equal
        self._watchers: dict[object, Callable[[], None]] = {}
        self.history = History(value)

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
            return _bits(old) != _bits(new)
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


@final
class _Pending:
    """The changes of a batch that is open."""

    def __init__(self, around: "_Pending | None") -> None:
        self.around = around
        self.open = True
        self.changes: dict[SourceCell, Any] = {}


_batch: ContextVar[_Pending | None] = ContextVar("dagpu_batch", default=None)


def _open_batch() -> _Pending | None:
    """Return the innermost batch of this task or thread; None if there is none, or if it ended in another task."""
    pending = _batch.get()
    while pending is not None and not pending.open:
        pending = pending.around
    return pending


def newest_value(source: SourceCell) -> tuple[Any, Version]:
    """Return the value that this task or thread set last, in its batch or outside of it, and the newest version."""
    version, pending = source.history.newest, _open_batch()
    while pending is not None:
        if source in pending.changes:
            return pending.changes[source], version
        pending = pending.around
    return version.value, version


def change_source(source: SourceCell, value: Any, only_after: Version | None = None) -> bool:
    """Set a source now, or at the end of the batch. Return false, and change nothing, if the newest version is another
    one than `only_after`."""
    pending = _open_batch()
    if pending is not None:
        pending.changes[source] = value
        return True
    return _apply({source: value}, only_after)


def _apply(changes: dict[SourceCell, Any], only_after: Version | None = None) -> bool:
    """Make changes visible together, and wake the feeds that watch the sources.

    A comparison may call a function of the user's, so it is made without the lock, and again if a source has changed
    meanwhile.
    """
    while True:
        before = {source: source.history.newest for source in changes}
        if only_after is not None and only_after not in before.values():
            return False
        differing = [source for source, value in changes.items() if source.differs(before[source].value, value)]
        with Bookkeeping():
            if any(source.history.newest is not version for source, version in before.items()):
                continue
            if not differing:
                return True
            instant = _clock.now + 1
            for source in differing:
                source.history.add(instant, changes[source])
            _clock.now = instant
            for source in differing:
                source.history.drop_old()
            woken = dict.fromkeys(wake for source in differing for wake in source.watchers())
        for wake in woken:
            wake()
        return True


@contextmanager
def batch() -> Iterator[None]:
    """Make all changes of sources within the `with` block visible together, when the outermost block ends.

    No run and no feed sees some of the changes without the others. A block that ends with an exception changes nothing.
    The block collects the changes of its own task or thread alone, and other threads do not wait for it. `get()` within
    the block returns what the block has set.
    """
    pending = _Pending(_open_batch())
    token = _batch.set(pending)
    try:
        yield
    finally:
        pending.open = False
        _batch.reset(token)
    if pending.around is not None and pending.around.open:
        pending.around.changes.update(pending.changes)
    elif pending.changes:
        _apply(pending.changes)
