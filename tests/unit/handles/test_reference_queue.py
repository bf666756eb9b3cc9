"""The value that belongs to an object is available in the queue once the object is freed, with no Python code in
between.
"""

import gc
import sys
import threading
from types import FrameType
from typing import Any

from dagpu.common.critical import ReferenceQueue


class Owner:
    """Something that others refer to. It compares equal to nothing, and has no hash."""

    __hash__ = None  # type: ignore[assignment]  # reason: a queue must not ask for it

    def __eq__(self, other: object) -> bool:
        raise AssertionError("a queue must not compare owners")


def test_what_belonged_comes_out_in_the_order_of_the_ends() -> None:
    """A queue is false while all owners live, and gives each what belonged to it once it is gone."""
    queue: ReferenceQueue[int] = ReferenceQueue()
    owners = [Owner() for _ in range(5)]
    for number, owner in enumerate(owners):
        queue.watch(owner, number)
    del owner
    assert not queue
    for number in (3, 0, 0, 1, 0):
        del owners[number]
    assert [queue.pop() for _ in range(5)] == [3, 0, 1, 4, 2]
    assert not queue


def test_owners_in_a_cycle_come_out() -> None:
    """The cyclic collector's victims are noticed like any others."""
    queue: ReferenceQueue[str] = ReferenceQueue()
    owner: Any = Owner()
    owner.itself = owner
    queue.watch(owner, "gone")
    del owner
    gc.collect()
    assert queue.pop() == "gone"


def test_no_line_of_python_runs_when_an_owner_goes() -> None:
    """No line of Python runs when an owner is freed, so there is no line at which an interrupt could occur."""
    queue: ReferenceQueue[int] = ReferenceQueue()
    owners = [Owner()]
    queue.watch(owners[0], 1)
    called: list[str] = []

    def trace(frame: FrameType, event: str, arg: object) -> None:
        called.append(frame.f_code.co_qualname)

    sys.settrace(trace)
    owners.pop()
    sys.settrace(None)
    assert called == []
    assert queue.pop() == 1


def test_owners_may_go_on_any_thread() -> None:
    """Nothing is lost where several threads let go at once."""
    queue: ReferenceQueue[int] = ReferenceQueue()
    heaps = [[Owner() for _ in range(200)] for _ in range(4)]
    for number, heap in enumerate(heaps):
        for owner in heap:
            queue.watch(owner, number)
    del owner, heap
    threads = [threading.Thread(target=heap.clear) for heap in heaps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found: list[int] = []
    while queue:
        found.append(queue.pop())
    assert sorted(found) == sorted(list(range(4)) * 200)
