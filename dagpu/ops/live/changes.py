"""Changes of sources: `set` and `write` now, or together at the end of a batch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from struct import Struct
from threading import Event, get_ident
from typing import Any, Final, NamedTuple, TypeAlias, final

from dagpu.common.critical import Bookkeeping, Section
from dagpu.common.slot import Slot
from dagpu.ops.live.parts import Box
from dagpu.ops.live.versions import CLOCK, SNAPSHOTS, History, Version, snapshot_instants

_EXACT: Final = frozenset((int, bool, str, bytes, type(None)))
"""The types of values that are equal by `==` exactly if nothing can distinguish them."""
_bits: Final = Struct("d").pack

PLAIN: Final = _EXACT | {float}
"""The types of numbers, truth values and texts: values that cannot be changed in place, and hold nothing else."""


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


IsAlone: TypeAlias = Callable[[Any], bool]
"""True for a value that nothing but its source holds. The caller holds the lock of the bookkeeping."""


Again: TypeAlias = Callable[[Version], Any]
"""Makes a value of that of a version."""


@final
class _New(NamedTuple):
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
    again: "Again | None" = None
    """This function, which is called again if another thread has changed the source meanwhile."""

    def written(self) -> "_New":
        """Return the same change with the parts written, in a copy of the base."""
        if self.is_alone is None or self.base is None:
            return self
        value = self.base.settled().value
        for number, (_, put) in enumerate(self.writes):
            value = put(value, number > 0)
        return _New(value, self.base, self.writes)

    def made_of(self, newest: Version) -> "_New":
        """Return the same change of the newest version, which is settled."""
        if self.again is not None:
            return self if self.read is newest else _New(self.again(newest), read=newest, again=self.again)
        if self.base is None:
            return self
        if self.is_alone is not None:
            same = self.base is newest and self.value is newest.value
            return self if same else _New(newest.value, newest, self.writes, self.is_alone)
        return self if self.base is newest else _New(newest.value, newest, self.writes, _never).written()

    @property
    def boxes(self) -> list[Box] | None:
        """The parts that differ from the version of which it was made; None for everything."""
        return None if self.base is None else [box for box, _ in self.writes]


def _never(_value: Any) -> bool:
    return False


@final
class _Pending:
    """The changes of a batch that is open."""

    def __init__(self, around: "_Pending | None") -> None:
        self.around = around
        self.owner = _task_or_thread()
        self.open = True
        self.changes: dict[SourceCell, _New] = {}


_batch: ContextVar[_Pending | None] = ContextVar("dagpu_batch", default=None)
_innermost: Final = _batch.get
"""Returns the innermost batch of this task or thread, which may have ended; None if there is none."""


FIND_TASK: Final = Slot[Callable[[], object]]("dagpu.runtime.waiting")
"""Returns the task that runs now on this thread; None outside of tasks."""


def _task_or_thread() -> object:
    """Return the task that runs now, or a number for the thread."""
    return FIND_TASK.value() or get_ident()


def _open_batch() -> _Pending | None:
    """Return the innermost open batch of this task or thread; None if there is none.

    A child task and a thread of `trio.to_thread` inherit the variable, and not the batch.
    """
    pending = _batch.get()
    if pending is None:
        return None
    owner = _task_or_thread()
    while pending is not None and not (pending.open and pending.owner == owner):
        pending = pending.around
    return pending


def in_open_batch() -> bool:
    """Return true if changes of this task or thread wait for the end of a batch."""
    return _innermost() is not None and _open_batch() is not None


def newest_value(source: SourceCell) -> tuple[Any, Version]:
    """Return the value that this task or thread set last, in its batch or outside of it, and the newest version."""
    version = source.history.versions[-1]
    pending = None if _innermost() is None else _open_batch()
    while pending is not None:
        if source in pending.changes:
            new = pending.changes[source] = pending.changes[source].written()
            return new.value, version
        pending = pending.around
    return (version if version.written is None else version.settled()).value, version


def value_to_write(source: SourceCell) -> Any:
    """Return a value of the shape and element type that a write meets: that which a batch of this task or thread has
    set, or the newest."""
    pending = None if _innermost() is None else _open_batch()
    while pending is not None:
        new = pending.changes.get(source)
        if new is not None:
            return new.value
        pending = pending.around
    return source.history.newest.settled().value


def change_source(
    source: SourceCell, value: Any, only_after: Version | None = None, again: Again | None = None
) -> bool:
    """Set a source now, or at the end of the batch. Return false, and change nothing, if the newest version is another
    one than `only_after`. A batch calls `again` then, unless it has set the source itself."""
    pending = None if _innermost() is None else _open_batch()
    if pending is not None:
        is_first = source not in pending.changes and _outer_base(pending, source, source.history.newest) is not None
        pending.changes[source] = _New(value, read=only_after, again=again) if is_first else _New(value)
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
    newest = source.history.newest
    _apply({source: _New(newest.value, newest, ((box, put),), is_alone)})


def _write_in_batch(pending: _Pending, source: SourceCell, box: Box, put: Put, is_alone: IsAlone | None) -> None:
    """Write a part of the value that a batch has set, when the batch ends if nothing has asked for the value before;
    else in place if the batch alone holds it, or of a copy."""
    mine = pending.changes.get(source)
    if mine is not None and mine.is_alone is not None:
        pending.changes[source] = mine._replace(writes=(*mine.writes, (box, put)))
        return
    newest = source.history.newest
    if mine is None and is_alone is not None and _outer_base(pending, source, newest) is not None:
        pending.changes[source] = _New(newest.value, newest, ((box, put),), is_alone)
        return
    value, newest = newest_value(source)
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


def _apply(changes: dict[SourceCell, _New]) -> None:
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


def _may_be_in_place(source: SourceCell, new: _New) -> bool:
    """Return False if the parts of a change have to be written to a copy."""
    with Bookkeeping():
        instants = snapshot_instants() if SNAPSHOTS else []
        return new.is_alone is not None and new.is_alone(new.value) and not source.history.older_is_read(instants)


_Announced: TypeAlias = list[tuple[Version, _New, bool]]
"""Versions whose parts are still to be written, and whether that may be in place."""


def _announce(changes: dict[SourceCell, _New]) -> tuple[_Announced, list[Callable[[], None]]]:
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
            instant, to_write = CLOCK.now + 1, list[tuple[SourceCell, Version, _New, bool]]()
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
    pending = _Pending(_open_batch())
    try:
        try:
            _batch.set(pending)
            yield
        finally:
            pending.open = False
            _batch.set(pending.around)
    finally:
        pending.open = False  # also if Ctrl-C came before the same line above: later changes must not go to this batch
    if pending.around is not None and pending.around.open:
        pending.around.changes.update(pending.changes)
    elif pending.changes:
        _apply(pending.changes)
