"""Versions of the values of sources, and snapshots, which read all sources at one instant.

A clock counts the changes of all sources together. Each version of a source records the instant of its change. So a
snapshot is one number, and a source that a trace finds late is read at the same instant as the others. A source keeps
an old version only while a snapshot that needs it exists.
"""

import time
from bisect import bisect_right
from collections.abc import Sequence
from threading import Event
from typing import Any, Final, final

from dagpu.common.critical import SIGNALS_SECONDS
from dagpu.common.reference_queue import Reference
from dagpu.ops.live.parts import Box, Parts


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
