"""Changes of sources by several threads at once: each counts, whether it takes the lock or not."""

import sys
import threading
from collections.abc import Iterator

import pytest

from dagpu import batch, source
from dagpu.common.critical import Bookkeeping
from dagpu.ops import versions
from dagpu.ops.versions import CLOCK, Snapshot, Version


@pytest.fixture
def many_switches() -> Iterator[None]:
    """Threads have turns as short as can be."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("many_switches")
def test_sets_and_batches_of_threads_each_count() -> None:
    """Threads that set a source alone, which takes no lock, and with another one in batches: each change is a revision,
    the clock counts each once, and what is left is the last value of one of them."""
    a, b = source((-1, 0)), source((-1, 0))
    before = CLOCK.now
    both_run = threading.Barrier(4)

    def change(thread: int) -> None:
        both_run.wait()
        for number in range(300):
            if thread % 2:
                with batch():
                    a.set((thread, number))
                    b.set((thread, number))
            else:
                a.set((thread, number))

    threads = [threading.Thread(target=change, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (a.revision, b.revision, CLOCK.now - before) == (1200, 600, 1200)
    assert a.get()[1] == b.get()[1] == 299


def test_each_snapshot_has_its_version_until_it_is_dropped() -> None:
    """Of a source that changes while several snapshots exist, each snapshot has the version of its instant, and the
    newest one is there too. What none of them needs is dropped with the next change."""
    given = source((0, 0))
    history = given.cell.history
    snapshots = dict[int, Snapshot]()
    for number in range(1, 8):
        if number % 2:
            snapshots[number - 1] = Snapshot()
        with batch():  # a change with the lock
            given.set((number, 0))
        assert [history.at(snapshot).value for snapshot in snapshots.values()] == [(at, 0) for at in snapshots]
        assert history.newest.value == (number, 0)
    assert [version.value[0] for version in history.versions] == [0, 2, 4, 6, 7]
    for dropped in (2, 0, 6, 4):
        del snapshots[dropped]
        number += 1
        given.set((number, 0))
        assert [version.value[0] for version in history.versions] == [*snapshots, number]


@pytest.mark.parametrize(
    "in_way", ["an earlier set", "another set", "another source", "a change with the lock", "a snapshot", "nothing"]
)
def test_a_set_without_the_lock_is_made_only_where_nothing_is_in_the_way(
    in_way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it takes the lock: it waits for a change under way, follows another one, and keeps the version that a
    snapshot needs."""
    meddle = [in_way == "an earlier set"]

    def equal(old: int, new: int) -> bool:
        if meddle.pop() if meddle else False:
            a.set(5)
        return old == new

    a, b = source(0, equal=equal), source(0)
    locked: list[str] = []
    snapshots: list[Snapshot] = []
    done = threading.Event()
    add = versions._add_version  # noqa: SLF001  # a seam

    def interfere(instant: int, revision: int, value: int) -> Version:
        monkeypatch.setattr(versions, "Version", Version)
        if in_way == "another set":
            a.set(5)
        elif in_way == "another source":
            b.set(5)
        elif in_way == "a snapshot":
            snapshots.append(Snapshot())
        return Version(instant, revision, value)

    def noted(*arguments: object) -> bool:
        locked.append("locked")
        done.set()
        return add(*arguments)  # type: ignore[arg-type]  # reason: handed on as they are

    monkeypatch.setattr(versions, "Version", interfere)
    monkeypatch.setattr(versions, "_add_version", noted)
    if in_way == "a change with the lock":
        with Bookkeeping(), versions._Changing():  # noqa: SLF001  # a seam
            other = threading.Thread(target=a.set, args=(9,))
            other.start()
            assert done.wait(10)
            assert a.cell.history.newest.value == 0
        other.join()
    else:
        a.set(9)
    assert locked == ([] if in_way == "nothing" else ["locked"])
    assert (a.get(), a.revision) == (9, 2 if in_way in ("an earlier set", "another set") else 1)
    assert a.cell.history.newest.instant == CLOCK.now
    assert b.cell.history.newest.instant == CLOCK.now - 1 or in_way != "another source"
    if snapshots:
        assert a.cell.history.at(snapshots[0]).value == 0
