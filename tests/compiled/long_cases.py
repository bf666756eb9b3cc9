"""Many calls: counts of objects and of memory stay level, threads and Ctrl-C leave nothing behind.

How many calls of each kind succeed depends on the machine. So the outcomes have only what does not.
"""

import gc
import os
import signal
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import trio

import dagpu
from dagpu import DeviceOp, SharedTensor, Tensor, empty, f32, full, observe, ones, pipeline, source
from dagpu.common.critical import BOOKKEEPING
from dagpu.handles import state_of
from dagpu.ops.versions import SNAPSHOTS
from dagpu.testing import storage_of
from tests.compiled.worlds import CASES, TILE, Case, N, S, World, blend, case, fresh
from tests.programs.arithmetic import scale

MANY: Final = int(os.environ.get("DAGPU_TEST_CALLS", "100000"))
"""Calls of the first case."""
OTHERS: Final = min(MANY, 1_000_000)
"""Those from which the numbers of calls of the others are counted."""
FIRST: Final = 1_000
"""Calls after which the counts are level."""
SLACK: Final = 200
"""Blocks that a count may differ by: caches of Python's."""


def stays_level(w: World, once: Callable[[int], object], count: int, *watched: object) -> list[Any]:
    """Return whether memory and the references to some objects are the same before and after so many calls."""
    for number in range(FIRST):
        once(number)
    loaded = w.loaded()
    objects = (*watched, loaded, loaded.settings, loaded.prepared, None, ())

    def counts() -> tuple[int, list[int]]:
        gc.collect()
        return sys.getallocatedblocks(), [sys.getrefcount(each) for each in objects]

    blocks, references = counts()
    tracked = len(gc.get_objects())
    for number in range(count):
        once(number)
    tracked_after = len(gc.get_objects())
    blocks_after, references_after = counts()
    grown = [
        (type(each).__name__, after - before)
        for each, before, after in zip(objects, references, references_after, strict=True)
        if abs(after - before) > SLACK
    ]
    more, objects_more = blocks_after - blocks, tracked_after - tracked
    return [grown, "level" if abs(more) < SLACK else more, "level" if objects_more < 5 * SLACK else objects_more]


@case(serves=MANY)
def calls_of_a_pipeline(w: World) -> Any:
    x = fresh()
    layout = state_of(x).layout  # type: ignore[union-attr]  # it is alive
    storage = storage_of(x)

    def once(number: int) -> None:
        nonlocal x
        x = w.step(x, float(number % 7)).sync()

    found = stays_level(w, once, MANY, layout, storage, storage.lock, w.step)
    gone = weakref.ref(storage)
    del storage, x, once
    gc.collect()
    return [*found, gone() is None]


@case(serves=OTHERS // 10)
def calls_with_new_results(w: World) -> Any:
    @pipeline
    def made(x: SharedTensor[f32], a: float) -> DeviceOp[Any]:
        return scale(empty(S).partition(S), a, x).first().unpartition()

    x = full(S, 1).sync().share()

    def once(number: int) -> None:
        made(x, float(number % 3)).sync()

    return stays_level(w, once, OTHERS // 10, x, storage_of(x), storage_of(x).lock)


@case(serves=OTHERS // 10)
def calls_that_share(w: World) -> Any:
    @pipeline
    def mix(x: Tensor[f32], y: Any) -> DeviceOp[Any]:
        return blend(x.partition(TILE), 0.5, y).first().unpartition()

    x, y = fresh(), fresh().share()

    def once(number: int) -> None:
        nonlocal x
        x = mix(x, y).sync()

    return stays_level(w, once, OTHERS // 10, y, storage_of(y).lock)


@case(serves=OTHERS // 20)
def plain_ops(w: World) -> Any:
    x = full(S, 1).sync().share()
    again = scale(empty(S).partition(S), 0.5, x).first().unpartition()

    def once(number: int) -> None:
        scale(empty(S).partition(S), float(number % 5), x).first().unpartition().sync()
        again.sync()

    return stays_level(w, once, OTHERS // 20, x, storage_of(x).lock)


@case(serves=OTHERS // 10)
def calls_that_are_refused(w: World) -> Any:
    """Those that are moved, locked, or do not fit: Python raises their errors."""
    x, moved, locked, other = fresh(), fresh(), fresh(), fresh().share()
    moved.share()
    storage = storage_of(locked)
    op = w.step(locked, 0.5)
    storage.lock.readers = 1

    def once(number: int) -> None:
        nonlocal x
        for refused in (lambda: w.step(moved, 0.5), op.sync, lambda: w.step(x, 1, 2, 3)):
            try:
                refused()
            except (dagpu.MovedError, dagpu.BorrowError, TypeError):
                continue
            raise AssertionError
        for _ in range(10):
            x = w.step(x, 0.5).sync()

    return stays_level(w, once, OTHERS // 50, storage, storage.lock, op, other)


@case(serves=OTHERS // 10)
def awaited_calls(w: World) -> Any:
    async def main() -> Any:
        x = await ones((N,))

        async def many(count: int) -> None:
            nonlocal x
            for number in range(count):
                x = await w.step(x, float(number % 7))
                if number % 16 == 0:  # it takes longer than the spin, and Python goes on
                    w.calls.null_busy(2)

        def counts() -> tuple[int, int, int]:
            gc.collect()
            return sys.getallocatedblocks(), sys.getrefcount(w.loaded()), sys.getrefcount(None)

        await many(FIRST)
        before = counts()
        await many(OTHERS // 10)
        return ["level" if abs(b - a) < SLACK else b - a for a, b in zip(before, counts(), strict=True)]

    return trio.run(main)


@case(serves=OTHERS // 2)
def updates_of_a_feed(w: World) -> Any:
    """Of numbers and of tensors, some that Python makes, that fail, and that are dropped."""
    number, given = source(0.5), source(full(S, 1).sync().share())
    tensors = [full(S, k).sync().share() for k in range(3)]
    op: Any = scale(empty(S).partition(S), number, given).first().unpartition()

    async def main() -> Any:
        async with observe(op) as feed:
            kept: Any = None

            async def many(count: int) -> None:
                nonlocal kept
                for k in range(count):
                    if k % 3 == 0:
                        given.set(tensors[k // 3 % 3])
                    number.set(k % 7 + 0.5)
                    if k % 64 == 0:
                        w.calls.null_busy(2)
                    if k % 256 == 0:
                        w.calls.null_fail(b"cuGraphExecKernelNodeSetParams", 1, 0)
                    try:
                        value = await feed.next()
                    except dagpu.DeviceError:
                        value = await feed.next()
                    if k % 5 == 0:
                        kept = value
                    if k % 128 == 0:
                        number.set(9.0)
                        dropped: Any = feed.next()
                        dropped.send(None)
                        dropped.close()

            def counts() -> tuple[int, ...]:
                gc.collect()
                watched = feed, number, given, *tensors, given.cell.history, storage_of(kept).device, None
                return sys.getallocatedblocks(), len(gc.get_objects()), *map(sys.getrefcount, watched)

            await many(2 * FIRST)
            before, used = counts(), w.device.memory.used
            await many(OTHERS)
            w.note(w.device.memory.used - used, len(number.cell.history.versions), len(SNAPSHOTS))
            w.note([storage_of(each).lock.readers for each in tensors], gate_is_free())
            return ["level" if abs(b - a) < SLACK else b - a for a, b in zip(before, counts(), strict=True)]

    return trio.run(main)


def gate_is_free() -> bool:
    found: list[bool] = []

    def look() -> None:
        found.append(BOOKKEEPING.acquire(blocking=False))
        if found[0]:
            BOOKKEEPING.release()

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return found[0]


def threads_that_fight(count: int) -> Case:
    """Threads that take each other's tensors, and those that have their own."""

    def run(w: World) -> Any:
        shared: list[Any] = [fresh() for _ in range(3)]
        seen: Counter[str] = Counter()
        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)

        def fight(first: int) -> None:
            for number in range(first, first + 1000):
                try:
                    shared[number % 3] = w.step(shared[number % 3], float(number)).sync()
                except dagpu.MovedError:
                    shared[number % 3] = fresh()
                except dagpu.BorrowError:
                    continue
                except BaseException as error:
                    seen[repr(error)] += 1

        def own(first: int) -> None:
            x = fresh()
            for number in range(500):
                x = w.step(x, float(number)).sync()
            seen["own"] += 1

        threads = [threading.Thread(target=(fight, own)[k % 2], args=(k,)) for k in range(count)]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(before)
        alive = [storage_of(each).lock for each in shared if state_of(each) is not None]
        w.is_steady = False
        w.note(all(lock.writer is None for lock in alive), sum(lock.readers for lock in alive), gate_is_free())
        return sorted(seen.items())

    return run


CASES["six threads"] = threads_that_fight(6), 1


@case(serves=1)
def every_run_is_counted(w: World) -> Any:
    """Also those of threads that wait for the gate at the same time."""
    runs = w.loaded().runs

    def work() -> None:
        x = fresh()
        for _ in range(300):
            x = w.step(x, 0.5).sync()

    w.is_steady = False
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return w.loaded().runs - runs


@case(serves=100)
def ctrl_c_during_many_calls(w: World) -> Any:
    """In the driver, and by a thread at any other moment. Each call is whole, or has not begun."""
    is_over = threading.Event()
    main = threading.main_thread().ident
    assert main is not None
    is_armed, calls, caught = False, 0, 0

    def press(*_: object) -> None:
        nonlocal is_armed
        if is_armed:
            is_armed = False
            raise KeyboardInterrupt

    def presses() -> None:
        target = 0
        while not is_over.is_set():
            if w.calls.null_launches() >= target:
                target = w.calls.null_launches() + 1 + target % 7
                signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=presses)
    before = signal.signal(signal.SIGINT, press)
    x: Any = fresh()
    storages = [storage_of(x)]
    thread.start()
    w.calls.null_press(13)
    try:
        while calls < 3000:
            try:
                is_armed = True
                while calls < 3000:
                    if state_of(x) is None:
                        x = fresh()
                        storages.append(storage_of(x))
                    x = w.step(x, 0.5).sync()
                    calls += 1
                is_armed = False
            except KeyboardInterrupt:
                caught += 1
    finally:
        w.calls.null_press(0)
        is_over.set()
        thread.join()
        signal.signal(signal.SIGINT, before)
    w.is_steady = False
    w.note(sum(each.lock.writer is not None or each.lock.readers > 0 for each in storages), gate_is_free())
    return [calls, caught > 100]


@case(serves=100)
def finalisers_that_run_ops(w: World) -> Any:
    """The collector calls them inside of allocations of other runs. A run within the bookkeeping of another is refused;
    any other is made."""
    w.is_steady = False
    ended = Counter[str]()

    class Loop:
        """An object in a cycle, which runs an op when it is collected."""

        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            try:
                w.step(fresh(), 0.5).sync()
                ended["run"] += 1
            except dagpu.NestedRunError:
                ended["refused"] += 1

    x, storages = fresh(), []
    before = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        for _ in range(200):
            Loop()
            x = w.step(x, 0.5).sync()
            storages.append(storage_of(x))
    finally:
        gc.set_threshold(*before)
    gc.collect()
    held = sum(each.lock.writer is not None or each.lock.readers > 0 for each in storages)
    w.note(sum(ended.values()), held, gate_is_free())
    return ended["run"] > 0
