"""Work that `CudaGraph.update` has enqueued holds its locks until it is done, or until a launch takes them over."""

from collections.abc import Callable
from typing import final

import pytest

from dagpu import BorrowError, Device, device
from dagpu.handles.handle_state import Storage
from dagpu.runtime.run_call import EnqueuedUpdate, GraphUpdates
from dagpu.testing import Failure, Locks


@final
class ManualRun:
    """A run that is done when the test says so. Implements `dagpu.backends.protocol.Run`."""

    is_launch: bool = False

    def __init__(self) -> None:
        self._done = False
        self._wakes: list[Callable[[], None]] = []

    def itself(self) -> "ManualRun":
        """Return this run. It is passed as the function that starts the work."""
        return self

    def finish(self) -> None:
        """It is done."""
        self._done = True
        for wake in self._wakes:
            wake()

    def done(self) -> bool:
        return self._done

    def wait(self, timeout: float | None = None) -> bool:
        return self._done

    def poll(self, seconds: float) -> bool:
        return self._done

    def succeeds(self, seconds: float) -> bool:
        return self._done

    @property
    def cancellable(self) -> bool:
        return not self._done

    def readable(self) -> None:
        return

    def woken(self) -> None:
        return

    def when_done(self, wake: Callable[[], None]) -> None:
        self._wakes.append(wake)

    def cancel(self) -> None:
        raise AssertionError("nothing cancels an update")

    def failures(self) -> list[Failure]:
        return []

    def spoilt(self) -> frozenset[int]:
        return frozenset()


@pytest.fixture(name="where")
def host() -> Device:
    return device("host")


def refused(storage: Storage) -> bool:
    """Return True if a run that writes this tensor would be refused now."""
    locks = Locks(None)
    try:
        locks.acquire({storage: True})
    except BorrowError:
        return True
    locks.release()
    return False


def starting(storage: Storage, submit: Callable[[], ManualRun]) -> Callable[[Locks], ManualRun]:
    """The start of an update that writes a storage."""

    def start(locks: Locks) -> ManualRun:
        locks.acquire({storage: True})
        return submit()

    return start


def test_locks_of_updates_go_back_when_the_last_is_done(where: Device) -> None:
    """The end of one update frees nothing while another is under way, in whatever order they end."""
    for first_to_end in (0, 1):
        updates, storages = GraphUpdates(), [Storage(where, 4), Storage(where, 4)]
        runs = [ManualRun(), ManualRun()]
        for storage, run in zip(storages, runs, strict=True):
            updates.enqueue(None, starting(storage, run.itself))
        runs[first_to_end].finish()
        assert [refused(storage) for storage in storages] == [True, True]
        runs[1 - first_to_end].finish()
        assert [refused(storage) for storage in storages] == [False, False]


def test_locks_of_updates_go_over_to_a_launch(where: Device) -> None:
    """Nobody comes between: the storage stays locked until the launch gives it back, though the update has ended."""
    updates, storage, run = GraphUpdates(), Storage(where, 4), ManualRun()
    updates.enqueue(None, starting(storage, run.itself))
    launch, taken = Locks(None), EnqueuedUpdate()
    updates.transfer(launch, taken)
    assert taken.runs == [run]
    run.finish()
    assert refused(storage)
    launch.release()
    assert not refused(storage)


def test_an_update_that_cannot_start_locks_nothing(where: Device) -> None:
    """An update that cannot start locks nothing, and a refused one leaves earlier updates as they were."""
    updates, storages = GraphUpdates(), [Storage(where, 4), Storage(where, 4)]

    def fail() -> ManualRun:
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        updates.enqueue(None, starting(storages[0], fail))
    assert not refused(storages[0])
    run = ManualRun()
    updates.enqueue(None, starting(storages[0], run.itself))
    with pytest.raises(ArithmeticError):
        updates.enqueue(None, starting(storages[1], fail))
    assert refused(storages[0])
    run.finish()
    assert not refused(storages[0])
    assert not refused(storages[1])
