"""Versions of the values of sources, and the changes that make them.

A clock counts the changes of all sources together. Each version of a source records the instant of its change. So a
snapshot is one number, and a source that a trace finds late is read at the same instant as the others. A source keeps
an old version only while a snapshot that needs it exists.
"""

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from struct import Struct
from threading import Event, get_ident
from typing import Any, Final, NamedTuple, TypeAlias, final

from dagpu.common.critical import SIGNALS_SECONDS, Bookkeeping, Reference, Section
from dagpu.common.frozen import Slot
from dagpu.ops.array_parts import ArrayParts, Box, Parts


@final
class Version:
    """One value of a source, and when it was set."""

    __slots__ = ("instant", "parts", "revision", "since", "value", "written")

    def __init__(self, instant: int, revision: int, value: Any, parts: Parts | None = None) -> None:
        self.instant = instant
        """The number of changes of all sources up to and with this one."""
        self.revision = revision
        """The number of changes of this source."""
        self.value = value
        self.parts = parts
        """The parts that differ from earlier versions; None if everything may."""
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

    def parts_since(self, revision: int) -> tuple[Box, ...] | None:
        """Return the parts that have changed since an earlier revision; None for everything."""
        return None if self.parts is None else self.parts.since(revision)


@final
class Snapshot:
    """One instant at which all sources are read. The versions of that instant live as long as this object.

    Taking a snapshot acquires no lock, so that it never waits for a change of another thread.
    """

    __slots__ = ("__weakref__", "instant")

    def __init__(self) -> None:
        self.instant = -1  # until it is known, every version is needed
        SNAPSHOTS.add(Reference(self, SNAPSHOTS.discard))
        self.instant = CLOCK.now


SNAPSHOTS: Final[set[Reference[None]]] = set()
"""The snapshots that exist. Single operations of a set are atomic."""


def snapshot_instants() -> list[int]:
    """Return the instants of the snapshots that exist; -1 for one that another thread is taking."""
    return [snapshot.instant for reference in SNAPSHOTS.copy() if (snapshot := reference()) is not None]


@final
class Clock:
    """The instant of the newest change that is complete.

    A change gives all its sources their versions first, and advances the clock then; so a snapshot has all of it or
    nothing. Versions that no snapshot needs are dropped after that.
    """

    def __init__(self) -> None:
        self.now = 0
        self.changing = 0
        """The number of changes under way that hold the lock of the bookkeeping. Meanwhile there is none without."""


CLOCK: Final = Clock()
"""The clock of all sources."""


@final
class History:
    """The versions of one source that are still needed: the newest one, and those of snapshots that exist."""

    __slots__ = ("versions",)

    def __init__(self, value: Any) -> None:
        self.versions: tuple[Version, ...] = (Version(CLOCK.now, 0, value),)
        """The versions, the newest one last."""

    @property
    def newest(self) -> Version:
        """The version that was set last."""
        return self.versions[-1]

    def at(self, snapshot: Snapshot) -> Version:
        """Return the version of a snapshot; the oldest one for a source that is younger than the snapshot."""
        versions = self.versions  # one read: another thread may replace the tuple
        newest = versions[-1]
        if newest.instant <= snapshot.instant:
            return newest if newest.written is None else newest.settled()
        return versions[max(_position(versions, snapshot.instant), 0)].settled()

    def add(self, instant: int, value: Any, boxes: Sequence[Box] | None = None) -> Version:
        """Add a version, and return it. It differs from the newest one in these parts, or None for everything. The
        caller holds the lock of the bookkeeping."""
        newest = self.versions[-1]
        revision, parts = newest.revision + 1, None
        if boxes is not None:
            parts = newest.parts or Parts(newest.revision)
            for box in boxes:
                parts = parts.with_part(revision, box)
        added = Version(instant, revision, value, parts)
        self.versions = (*self.versions, added)
        return added

    def older_is_read(self, instants: Sequence[int]) -> bool:
        """Return true if a snapshot of one of these instants may need a version before the newest one; `instants` are
        those of `snapshot_instants` after the clock has advanced. The caller holds the lock of the bookkeeping."""
        return min(instants, default=CLOCK.now) < self.versions[-1].instant

    def drop_old(self, instants: Sequence[int]) -> None:
        """Drop the versions that no snapshot of these instants needs; see `older_is_read`."""
        versions = self.versions
        if not instants:
            self.versions = versions[-1:]
        elif min(instants) >= 0:
            needed = {max(_position(versions, instant), 0) for instant in instants}
            needed.add(len(versions) - 1)
            self.versions = tuple([versions[index] for index in sorted(needed)])


def _position(versions: Sequence[Version], instant: int) -> int:
    """Return the index of the newest version that is not younger than this instant; -1 if all are younger."""
    return bisect_right(versions, instant, key=lambda version: version.instant) - 1


# ---- source cell
#
# `SourceCell`, the changing part of a source: the versions of its value, and the feeds that watch it.

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


# ---- open batches
#
# The changes of sources that wait for the end of a `batch()`, by the task or thread that has made them.

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


FIND_TASK: Final = Slot[Callable[[], object]]("dagpu.runtime.trio_waits")
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


# ---- changes
#
# Changes of sources: `set` and `write` now, or together at the end of a batch.


def change_source(
    source: SourceCell, value: Any, only_after: Version | None = None, again: Again | None = None
) -> bool:
    """Set a source now, or at the end of the batch. Return false, and change nothing, if the newest version is another
    one than `only_after`. A batch calls `again` then, unless it has set the source itself."""
    pending = None if innermost() is None else open_batch()
    if pending is not None:
        is_first = source not in pending.changes and outer_base(pending, source, source.history.newest) is not None
        pending.changes[source] = SourceChange(value, read=only_after, again=again) if is_first else SourceChange(value)
        return True
    history = source.history
    while True:
        before = history.versions[-1]
        if only_after is not None and before is not only_after:
            return False
        if not source.differs(before.value, value):
            return True
        added, is_added = Version(CLOCK.now + 1, before.revision + 1, value), False
        # Without the lock, if no thread that has it makes a change: on one line without calls no other thread and no
        # signal handler comes in between. To defer a Ctrl-C and to lock takes a third of the time of a change.
        if not (SNAPSHOTS or CLOCK.changing) and history.versions[-1] is before and CLOCK.now < added.instant: history.versions = (added,); CLOCK.now = added.instant; is_added = True  # fmt: skip  # noqa: E501, E701, E702
        if not is_added and not _add_version(history, before, value):
            continue
        for wake in source.watchers():
            wake()
        return True


def _add_version(history: History, before: Version, value: Any) -> bool:
    """Give a source another version after `before`. Return False, and change nothing, if that is not the newest one."""
    with Bookkeeping(), _Changing():
        if history.versions[-1] is not before:
            return False
        instant = CLOCK.now + 1
        history.add(instant, value)
        CLOCK.now = instant
        history.drop_old(snapshot_instants() if SNAPSHOTS else [])
        return True


@final
class _Changing:
    """A `with` block in which other threads make no change without the lock of the bookkeeping, which the caller
    holds."""

    def __enter__(self) -> None:
        CLOCK.changing += 1

    def __exit__(self, *_error: object) -> None:
        CLOCK.changing -= 1


def write_source(source: SourceCell, box: Box, put: Put, is_alone: IsAlone | None) -> None:
    """SourceChange a part of a source now, or at the end of the batch.

    `put` writes the part. It writes in place if nothing else holds the value: no other handle, by `is_alone`, and no
    run that has begun. The new version is announced first, and readers of it wait until it is written. Without
    `is_alone`, each version is a value of its own.
    """
    pending = open_batch()
    if pending is not None:
        _write_in_batch(pending, source, box, put, is_alone)
        return
    if is_alone is None:
        value, newest = newest_value(source)
        _apply({source: SourceChange(put(value, False), newest, ((box, put),))})
        return
    newest = source.history.newest
    _apply({source: SourceChange(newest.value, newest, ((box, put),), is_alone)})


def _write_in_batch(pending: OpenBatch, source: SourceCell, box: Box, put: Put, is_alone: IsAlone | None) -> None:
    """Write a part of the value that a batch has set, when the batch ends if nothing has asked for the value before;
    else in place if the batch alone holds it, or of a copy."""
    mine = pending.changes.get(source)
    if mine is not None and mine.is_alone is not None:
        pending.changes[source] = mine._replace(writes=(*mine.writes, (box, put)))
        return
    newest = source.history.newest
    if mine is None and is_alone is not None and outer_base(pending, source, newest) is not None:
        pending.changes[source] = SourceChange(newest.value, newest, ((box, put),), is_alone)
        return
    value, newest = newest_value(source)
    if mine is None:
        pending.changes[source] = SourceChange(put(value, False), outer_base(pending, source, newest), ((box, put),))
        return
    with Bookkeeping():
        alone = is_alone is not None and is_alone(value)
    writes = () if mine.base is None else (*mine.writes, (box, put))
    pending.changes[source] = SourceChange(put(value, alone), mine.base, writes)


def _apply(changes: dict[SourceCell, SourceChange]) -> None:
    """Make changes visible together, and wake the feeds that watch the sources.

    A comparison may call a function of the user's, so it is made without the lock, and again if a source has changed
    meanwhile. Parts that are still to be written are written after their versions are announced.
    """
    if all(new.is_alone is None for new in changes.values()):
        for wake in _announce(changes)[1]:
            wake()
        return
    with Section("a part of a source was written"):  # a Ctrl-C in between would leave readers waiting
        if len(changes) > 1:  # copies may need more memory than there is: nothing is visible yet
            changes = {
                source: new if _may_be_in_place(source, new) else new.written() for source, new in changes.items()
            }
        announced, woken = _announce(changes)
        try:
            _write_announced(announced)
        finally:
            for wake in woken:
                wake()


def _may_be_in_place(source: SourceCell, new: SourceChange) -> bool:
    """Return False if the parts of a change have to be written to a copy."""
    with Bookkeeping():
        instants = snapshot_instants() if SNAPSHOTS else []
        return new.is_alone is not None and new.is_alone(new.value) and not source.history.older_is_read(instants)


_Announced: TypeAlias = list[tuple[Version, SourceChange, bool]]
"""Versions whose parts are still to be written, and whether that may be in place."""


def _announce(changes: dict[SourceCell, SourceChange]) -> tuple[_Announced, list[Callable[[], None]]]:
    """Give sources new versions at one instant. Return those that are still to be written, and the functions to call
    when they are."""
    while True:
        before = {source: source.history.newest.settled() for source in changes}
        changes = {source: new.made_of(before[source]) for source, new in changes.items()}
        differing = [
            source
            for source, new in changes.items()
            if new.is_alone is not None or source.differs(before[source].value, new.value)
        ]
        with Bookkeeping(), _Changing():
            if any(source.history.newest is not version for source, version in before.items()):
                continue
            if not differing:
                return [], []
            instant, to_write = CLOCK.now + 1, list[tuple[SourceCell, Version, SourceChange, bool]]()
            for source in differing:
                new = changes[source]
                version = source.history.add(instant, new.value, new.boxes)
                if new.is_alone is not None:
                    version.written = Event()
                    to_write.append((source, version, new, new.is_alone(new.value)))
            CLOCK.now = instant
            instants = snapshot_instants() if SNAPSHOTS else []
            announced = [
                (version, new, alone and not source.history.older_is_read(instants))
                for source, version, new, alone in to_write
            ]
            for source in differing:
                source.history.drop_old(instants)
            return announced, list(dict.fromkeys([wake for source in differing for wake in source.watchers()]))


def _write_announced(announced: _Announced) -> None:
    """Write the parts of versions, and let their readers go on; also those of which a part could not be written.

    A Ctrl-C ends the run that writes a part. It is raised once all parts are written.
    """
    interrupt: KeyboardInterrupt | None = None
    try:
        for version, new, alone in announced:
            for number, (_, put) in enumerate(new.writes):
                written = None
                while written is None:
                    try:
                        written = put(version.value, alone or number > 0)
                    except KeyboardInterrupt as error:
                        interrupt = error
                version.value = written
    finally:
        for version, _, _ in announced:
            ready = version.written
            assert ready is not None
            ready.set()
            version.written = None  # later readers ask no event
    if interrupt is not None:
        raise interrupt


@contextmanager
def batch() -> Iterator[None]:
    """Make all changes of sources within the `with` block visible together, when the outermost block ends.

    No run and no feed sees some of the changes without the others. A block that ends with an exception changes nothing.
    The block collects the changes of its own task or thread alone, and other threads do not wait for it. `get()` within
    the block returns what the block has set.
    """
    pending = OpenBatch(open_batch())
    try:
        try:
            CURRENT_BATCH.set(pending)
            yield
        finally:
            pending.open = False
            CURRENT_BATCH.set(pending.around)
    finally:
        pending.open = False  # also if Ctrl-C came before the same line above: later changes must not go to this batch
    if pending.around is not None and pending.around.open:
        pending.around.changes.update(pending.changes)
    elif pending.changes:
        _apply(pending.changes)
