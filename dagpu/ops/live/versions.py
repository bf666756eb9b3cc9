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
from threading import Event
from typing import Any, Final, NamedTuple, TypeAlias, final

from dagpu.common.critical import SIGNALS_SECONDS, Bookkeeping, Section
from dagpu.ops.live.parts import Box, Parts


@final
class Version:
    """One value of a source, and when it was set."""

    __slots__ = ("instant", "parts", "revision", "since", "value", "written")

    def __init__(self, instant: int, revision: int, value: Any, parts: Parts) -> None:
        self.instant = instant
        """The number of changes of all sources up to and with this one."""
        self.revision = revision
        """The number of changes of this source."""
        self.value = value
        self.parts = parts
        """The parts that differ from earlier versions."""
        self.written: Event | None = None
        """Set once the memory of the value holds it; None if it does already. `settled` waits for it."""
        self.since = time.perf_counter()
        """The time of the change, in seconds of `time.perf_counter`."""

    def settled(self) -> "Version":
        """Return this version once its value is in its memory: another thread may be writing a part of it."""
        written = self.written
        if written is not None:
            while not written.wait(SIGNALS_SECONDS):
                pass
            self.written = None
        return self


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
        self._versions: tuple[Version, ...] = (Version(_clock.now, 0, value, Parts(0)),)

    @property
    def newest(self) -> Version:
        """The version that was set last."""
        return self._versions[-1]

    def at(self, snapshot: Snapshot) -> Version:
        """Return the version of a snapshot; the oldest one for a source that is younger than the snapshot."""
        versions = self._versions  # one read: another thread may replace the tuple
        newest = versions[-1]
        if newest.instant <= snapshot.instant:
            return newest if newest.written is None else newest.settled()
        return versions[max(_position(versions, snapshot.instant), 0)].settled()

    def add(self, instant: int, value: Any, boxes: Sequence[Box] | None = None) -> Version:
        """Add a version, and return it. It differs from the newest one in these parts, or None for everything. The
        caller holds the lock of the bookkeeping."""
        revision, parts = self.newest.revision + 1, self.newest.parts
        if boxes is None:
            parts = Parts(revision)
        for box in boxes or ():
            parts = parts.with_part(revision, box)
        added = Version(instant, revision, value, parts)
        self._versions = (*self._versions, added)
        return added

    def older_is_read(self) -> bool:
        """Return true if a snapshot may need a version before the newest one. The caller holds the lock of the
        bookkeeping."""
        living = [snapshot for reference in list(_snapshots.values()) if (snapshot := reference()) is not None]
        return any(snapshot.instant < 0 or snapshot.instant < self.newest.instant for snapshot in living)

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


Put: TypeAlias = Callable[[Any, bool], Any]
"""Writes a part of a value, in place if the flag says so, and returns the value that has it."""


@final
class _New(NamedTuple):
    """What a batch has set a source to."""

    value: Any
    base: Version | None = None
    """For a value of which parts were written: the version that it was made of."""
    writes: tuple[tuple[Box, Put], ...] = ()
    """These parts, and what writes them."""

    def made_of(self, newest: Version) -> "_New":
        """Return the same change of the newest version."""
        if self.base is None or self.base is newest:
            return self
        value = newest.settled().value
        for number, (_, put) in enumerate(self.writes):
            value = put(value, number > 0)
        return _New(value, newest, self.writes)

    @property
    def boxes(self) -> list[Box] | None:
        """The parts that differ from the version of which it was made; None for everything."""
        return None if self.base is None else [box for box, _ in self.writes]


@final
class _Pending:
    """The changes of a batch that is open."""

    def __init__(self, around: "_Pending | None") -> None:
        self.around = around
        self.open = True
        self.changes: dict[SourceCell, _New] = {}


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
            return pending.changes[source].value, version
        pending = pending.around
    return version.settled().value, version


def change_source(source: SourceCell, value: Any, only_after: Version | None = None) -> bool:
    """Set a source now, or at the end of the batch. Return false, and change nothing, if the newest version is another
    one than `only_after`."""
    pending = _open_batch()
    if pending is not None:
        pending.changes[source] = _New(value)
        return True
    return _apply({source: _New(value)}, only_after)


def write_source(source: SourceCell, box: Box, put: Put, is_alone: Callable[[Any], bool] | None) -> None:
    """Change a part of a source now, or at the end of the batch.

    `put` writes the part. It writes in place if nothing else holds the value: no other handle, by `is_alone`, and no
    run that has begun. The new version is announced first, and readers of it wait until it is written. Without
    `is_alone`, each version is a value of its own.
    """
    pending = _open_batch()
    if pending is not None:
        _write_in_batch(pending, source, box, put, is_alone)
        return
    if is_alone is None:
        value, newest = newest_value(source)
        _apply({source: _New(put(value, False), newest, ((box, put),))})
        return
    with Section("a part of a source was written"):  # a Ctrl-C in between would leave readers waiting
        _write_announced(source, box, put, is_alone)


def _write_announced(source: SourceCell, box: Box, put: Put, is_alone: Callable[[Any], bool]) -> None:
    """Announce a version, and write it."""
    while True:
        before = source.history.newest.settled()
        with Bookkeeping():
            if source.history.newest is not before:
                continue
            alone = is_alone(before.value)
            instant = _clock.now + 1
            version = source.history.add(instant, before.value, (box,))
            version.written = written = Event()
            _clock.now = instant
            alone = alone and not source.history.older_is_read()
            source.history.drop_old()
            woken = source.watchers()
        break
    try:
        version.value = put(before.value, alone)
    finally:
        written.set()
        for wake in woken:
            wake()


def _write_in_batch(
    pending: _Pending, source: SourceCell, box: Box, put: Put, is_alone: Callable[[Any], bool] | None
) -> None:
    """Write a part of the value that a batch has set, in place if the batch alone holds it, or of a copy."""
    value, newest = newest_value(source)
    mine = pending.changes.get(source)
    if mine is None:
        pending.changes[source] = _New(put(value, False), _outer_base(pending, source, newest), ((box, put),))
        return
    with Bookkeeping():
        alone = is_alone is not None and is_alone(value)
    writes = () if mine.base is None else (*mine.writes, (box, put))
    pending.changes[source] = _New(put(value, alone), mine.base, writes)


def _outer_base(pending: _Pending, source: SourceCell, newest: Version) -> Version | None:
    """Return the version of which a value in a batch is made; None if a batch around this one has set the source."""
    around = pending.around
    while around is not None:
        if source in around.changes:
            return None
        around = around.around
    return newest


def _apply(changes: dict[SourceCell, _New], only_after: Version | None = None) -> bool:
    """Make changes visible together, and wake the feeds that watch the sources.

    A comparison may call a function of the user's, so it is made without the lock, and again if a source has changed
    meanwhile.
    """
    while True:
        before = {source: source.history.newest for source in changes}
        if only_after is not None and only_after not in before.values():
            return False
        changes = {source: new.made_of(before[source]) for source, new in changes.items()}
        differing = [source for source, new in changes.items() if source.differs(before[source].value, new.value)]
        with Bookkeeping():
            if any(source.history.newest is not version for source, version in before.items()):
                continue
            if not differing:
                return True
            instant = _clock.now + 1
            for source in differing:
                source.history.add(instant, changes[source].value, changes[source].boxes)
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
