"""Changes of sources: `set` and `write` now, or together at the end of a batch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event
from typing import Any, TypeAlias, final

from dagpu.common.critical import Bookkeeping, Section
from dagpu.ops.live.open_batches import (
    CURRENT_BATCH,
    Again,
    IsAlone,
    OpenBatch,
    Put,
    SourceChange,
    innermost,
    newest_value,
    open_batch,
    outer_base,
)
from dagpu.ops.live.parts import Box
from dagpu.ops.live.source_cell import SourceCell
from dagpu.ops.live.versions import CLOCK, SNAPSHOTS, History, Version, snapshot_instants


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
