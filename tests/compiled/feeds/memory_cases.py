"""Updates of feeds by who reads their memory: handles of the user's, other libraries, runs, other feeds."""

import gc
import struct
import threading
from typing import Any

import trio
import trio.testing
from outcome import Value

import dagpu
from dagpu import full, observe, source, zip_ops
from dagpu.reactive.shared_work import SharedWork
from dagpu.testing import storage_of
from tests.compiled.feeds.worlds import OFTEN, Asked, added, scaled, tensor, watched
from tests.compiled.worlds import S, World, case, told

# ---- handles


@case(serves=12)
def values_that_are_kept(w: World) -> Any:
    """The memory of a value that the user holds is replaced, and given back once it is dropped."""
    number, x = source(1.0), tensor()

    async def script(asked: Asked) -> None:
        await asked.times(OFTEN, lambda n: number.set(float(n + 2)))
        kept: list[Any] = []
        for n in range(8):
            number.set(float(n))
            kept.append(await asked.next())
            if n % 3 == 2:
                kept.clear()
            w.note([asked.place(each) for each in kept], w.device.memory.used)
        kept.clear()
        await asked.times(3, lambda n: number.set(n + 20.0))
        w.note(w.device.memory.used)

    return watched(w, scaled(number, x), script)


@case(serves=8)
def clones_of_values(w: World) -> Any:
    """A clone holds the memory, and so does a handle that `try_unwrap` was tried on."""
    number, x = source(1.0), tensor()

    async def script(asked: Asked) -> None:
        await asked.times(OFTEN, lambda n: number.set(float(n + 2)))
        found = await changed(asked, number, 0.0)
        clone = found.clone()
        del found
        again = await changed(asked, number, 1.0)
        w.note(asked.place(clone) == asked.place(again))
        try:
            again.try_unwrap()
        except dagpu.OwnershipError as error:
            w.note(str(error))
        del clone, again
        await asked.times(2, lambda n: number.set(float(n + 20)))
        moved: Any = await changed(asked, number, 3.0)
        await scaled(2.0, moved)
        await asked.times(2, lambda n: number.set(float(n + 30)))

    return watched(w, scaled(number, x), script)


@case(serves=8)
def values_that_are_dropped_while_an_update_is_under_way(w: World) -> Any:
    """Their memory is free at once: the feed has taken other memory."""
    number, x = source(1.0), tensor()

    async def script(asked: Asked) -> None:
        await asked.times(OFTEN, lambda n: number.set(float(n + 2)))
        for n in range(3):
            kept = await changed(asked, number, n + 20.0)
            number.set(n + 30.0)
            coroutine: Any = asked.feed.next()
            coroutine.send(None)
            before = w.device.memory.used
            del kept
            w.note(before - w.device.memory.used)
            try:
                coroutine.send(Value(None))
            except StopIteration as stop:
                asked.note(stop.value)

    return watched(w, scaled(number, x), script)


async def changed(asked: Asked, number: Any, value: Any) -> Any:
    number.set(value)
    return await asked.next()


@case(serves=8)
def two_results_of_which_one_is_kept(w: World) -> Any:
    one, two, x = source(1.0), source(2.0), tensor()

    async def script(asked: Asked) -> None:
        await asked.times(OFTEN, lambda n: one.set(float(n + 2)))
        kept = (await changed(asked, one, 0.0))[0]
        await asked.times(2, lambda n: one.set(n + 20.0))
        await asked.times(OFTEN + 2, lambda n: two.set(float(n + 20)))
        w.note(asked.place(kept))
        del kept
        await asked.times(3, lambda n: one.set(n + 30.0))
        await asked.times(3, lambda n: two.set(n + 60.0))

    return watched(w, zip_ops(scaled(one, x).share(), scaled(two, scaled(one, x)).share()), script)


@case(serves=8)
def values_in_the_hands_of_another_library(w: World) -> Any:
    """A block that was given away is visited: it is never written again, also once the library has dropped it."""
    number, x = source(1.0), tensor()

    async def script(asked: Asked) -> None:
        await asked.times(OFTEN, lambda n: number.set(float(n + 2)))
        found = await changed(asked, number, 0.0)
        given = found.__dlpack__(stream=-1, max_version=(1, 0))
        w.note(type(given).__name__, asked.place(found))
        del found
        await asked.times(2, lambda n: number.set(n + 20.0))
        del given
        gc.collect()
        await asked.times(3, lambda n: number.set(n + 30.0))
        found = await changed(asked, number, 0.0)
        given = found.__dlpack__(stream=-1, max_version=(1, 0))
        del given, found
        await asked.times(3, lambda n: number.set(n + 40.0))

    return watched(w, scaled(number, x), script)


@case(serves=4)
def a_source_of_another_library(w: World) -> Any:
    """Its tensor was given away before."""
    given, number = source(tensor()), source(1.0)

    async def script(asked: Asked) -> None:
        await asked.times(OFTEN + 2, lambda n: number.set(float(n + 2)))
        capsule = given.get().__dlpack__(stream=-1, max_version=(1, 0))
        await asked.times(4, lambda n: number.set(float(n + 20)))
        del capsule
        await asked.times(4, lambda n: number.set(float(n + 30)))

    return watched(w, scaled(number, given), script)


# ---- locks


@case(serves=8)
def a_value_that_a_run_reads(w: World) -> Any:
    """The run is under way at the next update, which takes other memory."""
    number, x = source(1.0), tensor()

    async def script(asked: Asked) -> None:
        await asked.times(OFTEN + 2, lambda n: number.set(float(n + 2)))
        for lock in ("readers", "writer"):
            found = await changed(asked, number, 0.0)
            held, before = storage_of(found).lock, asked.place(found)
            setattr(held, lock, 1)
            del found
            try:
                w.note(asked.place(await changed(asked, number, 1.0)) == before)
            finally:
                setattr(held, lock, 0 if lock == "readers" else None)
            await asked.times(3, lambda n: number.set(n + 20.0))

    return watched(w, scaled(number, x), script)


@case(serves=8)
def memory_of_the_ops_own_that_is_locked(w: World) -> Any:
    """A run writes the constant of an op, or a source's tensor: the update is refused, and made once it may read it."""
    number, x, given = source(1.0), tensor(), source(tensor())
    own: Any = full(S, 3).sync()
    locks = [storage_of(each).lock for each in (own, x, given.get())]

    async def script(asked: Asked) -> None:
        await asked.times(OFTEN + 2, lambda n: number.set(float(n + 2)))
        number.set(0.25)
        coroutine: Any = asked.feed.next()
        coroutine.send(None)
        w.note([lock.readers for lock in locks])
        coroutine.close()
        w.note([lock.readers for lock in locks])
        await asked.times(OFTEN + 2, lambda n: number.set(float(n + 2)))
        for lock in locks:
            lock.writer = "another run"
            number.set(0.0)
            try:
                await asked.next()
            except dagpu.BorrowError:
                w.note("locked")
            finally:
                lock.writer = None
            number.set(1.0)
            await asked.next()
            lock.readers += 1
            await changed(asked, number, 5.0)
            lock.readers -= 1
            await asked.times(OFTEN, lambda n: number.set(n + 20.0))
        w.note(w.lock_of(x), w.lock_of(given.get()))

    return watched(w, added(scaled(number, x), added(scaled(number, own), given)), script)


@case(serves=4)
def a_handle_of_the_op_that_moves_away(w: World) -> Any:
    """The updates after that are refused."""
    number, x = source(1.0), full(S, 2).sync()
    op = scaled(number, x)

    async def script(asked: Asked) -> None:
        await asked.times(OFTEN + 2, lambda n: number.set(float(n + 2)))
        w.note(told(await op))  # this run takes it
        for n in range(3):
            number.set(n + 50.0)
            try:
                await asked.next()
            except dagpu.MovedError:
                w.note("moved")

    return watched(w, op, script)


# ---- other feeds


@case(serves=10)
def a_feed_that_opens_and_closes_in_between(w: World) -> Any:
    """While two feeds observe a node, one of them makes it for both. The new one takes what the other one holds."""
    number, other, x = source(1.0), source(2.0), tensor()
    node = scaled(number, x).share().shared()

    async def script(asked: Asked) -> None:
        asked.is_exact = False
        for _ in range(2):
            await asked.times(OFTEN + 4, lambda n: number.set(float(n + 2)))
            async with observe(scaled(other, node)) as feed:
                second = Asked(w, feed)
                second.is_exact = False
                await second.next()
                for n in range(OFTEN):
                    number.set(n + 40.0)
                    await second.next()
                    await asked.next()
                await second.times(OFTEN + 4, lambda n: other.set(n + 40.0))
            await asked.times(OFTEN + 4, lambda n: number.set(float(n + 2)))

    return watched(w, scaled(0.5, node), script)


@case(serves=4)
def a_feed_that_waits_for_a_change(w: World) -> Any:
    """It is not busy meanwhile: other feeds may take its memory."""
    number, x = source(1.0), tensor()

    async def script(asked: Asked) -> None:
        await asked.times(OFTEN + 2, lambda n: number.set(float(n + 2)))
        w.note([each.busy for each in gc.get_objects() if type(each) is SharedWork])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(asked.next)
            await trio.testing.wait_all_tasks_blocked()
            w.note([each.busy for each in gc.get_objects() if type(each) is SharedWork])
            number.set(0.5)
        w.note([each.busy for each in gc.get_objects() if type(each) is SharedWork])

    return watched(w, scaled(number, x), script)


@case(serves=10)
def two_feeds_that_share_nothing(w: World) -> Any:
    number, other, x = source(1.0), source(2.0), tensor()

    async def script(asked: Asked) -> None:
        asked.is_exact = False
        await asked.times(OFTEN + 4, lambda n: number.set(float(n + 2)))
        async with observe(scaled(other, x)) as feed:
            second = Asked(w, feed)
            second.is_exact = False
            for n in range(2 * OFTEN):
                number.set(n + 40.0)
                other.set(n + 60.0)
                await second.next()
                await asked.next()

    return watched(w, scaled(number, x), script)


@case(serves=10)
def a_feed_in_another_thread(w: World) -> Any:
    """It observes the same node, and opens and closes while this one makes updates."""
    w.is_steady = False
    number, other, x = source(1.0), source(2.0), tensor()
    node = scaled(number, x).share().shared()
    failed: list[BaseException] = []

    async def theirs() -> None:
        for _ in range(4):
            async with observe(scaled(other, node)) as feed:
                for n in range(12):
                    other.set(other.get() + 1.0 + n)
                    await feed.next()

    def run() -> None:
        try:
            trio.run(theirs)
        except BaseException as error:
            failed.append(error)

    async def ours() -> Any:
        value: Any = None
        async with observe(scaled(0.5, node)) as feed:
            for n in range(2 * OFTEN):
                number.set(n + 5.0)
                await feed.next()
            thread = threading.Thread(target=run)
            thread.start()
            n = 0
            while thread.is_alive():
                n += 1
                number.set(n + 5.0)
                value = await feed.next()
                await trio.sleep(0.001)  # else this feed has claimed the node again before the other one is awake
            thread.join()
            for n in range(2 * OFTEN):
                number.set(n + 5.5)
                value = await feed.next()
            w.note(w.lock_of(value), told(value))
        return [repr(error) for error in failed]

    return trio.run(ours)


# ---- the collector


@case(serves=8)
def updates_while_the_collector_runs(w: World) -> Any:
    """At each allocation."""
    number, given = source(1.0), source(tensor())

    async def script(asked: Asked) -> None:
        await asked.times(OFTEN + 2, lambda n: number.set(float(n + 2)))
        before = gc.get_threshold()
        gc.set_threshold(1, 1, 1)
        gc.enable()
        try:
            await asked.times(4, lambda n: number.set(float(n + 20)))
        finally:
            gc.set_threshold(*before)
        await asked.times(2, lambda n: number.set(float(n)))

    return watched(w, scaled(number, given), script)


@case(serves=8)
def finalisers_that_set_sources(w: World) -> Any:
    """Each value is one of an instant: what two sources were set to together is seen together."""
    one, two, x = source(1.0), source(-1.0), tensor()
    count = 0

    class Loop:
        """An object in a cycle, which changes the sources when it is collected."""

        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            nonlocal count
            count += 1
            with dagpu.batch():
                one.set(float(count))
                two.set(-float(count))

    async def script(asked: Asked) -> None:
        w.is_steady = asked.is_exact = False

        def both(n: int) -> None:
            with dagpu.batch():
                one.set(n + 1000.0)
                two.set(-n - 1000.0)

        for n in range(OFTEN + 2):
            both(n)
            await asked.next()
        before = gc.get_threshold()
        wrong = 0
        gc.set_threshold(1, 1, 1)
        gc.enable()
        try:
            for n in range(60):
                Loop()
                both(n)
                await asked.feed.next()
                wrong += not opposite(w)
        finally:
            gc.set_threshold(*before)
        w.driver.log()
        gc.collect()
        both(5)
        await asked.feed.next()
        w.note(count, wrong, opposite(w))

    def opposite(w: World) -> bool:
        found: list[float] = [struct.unpack_from("<f", w.driver.parameters(node), 24)[0] for node in (0, 1)]
        return found[0] == -found[1]

    return watched(w, added(scaled(one, x), scaled(two, x)), script)
