"""Calls that are awaited in tasks of trio: the device takes long, a task is cancelled, other threads look."""

import gc
import sys
import threading
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import trio
import trio.testing
from outcome import Value

from dagpu import ones
from dagpu.backends.cuda.driver.driver_protocol import EXIT_GUARD
from dagpu.testing import storage_of
from tests.compiled.worlds import CASES, Case, N, World, case, fresh, told


@case(serves=2)
def awaited(w: World) -> Any:
    async def main() -> Any:
        x = fresh_of_task = await ones((N,))
        y = await w.step(x, 0.5)
        z = await w.step(y, 0.25)
        w.note_states(fresh_of_task, y, z)
        return z

    return trio.run(main)


@case(serves=2)
def awaited_while_busy(w: World) -> Any:
    async def main() -> Any:
        x = await ones((N,))
        w.calls.null_busy(3)
        x = await w.step(x, 0.5)
        w.calls.null_busy(4_000_000)
        x = await w.step(x, 0.5)
        return await w.step(x, 1.5)

    return trio.run(main)


@case(serves=1)
def awaited_and_asleep(w: World) -> Any:
    async def main() -> Any:
        x = await ones((N,))
        w.calls.null_hold()
        found: list[Any] = []

        async def one() -> None:
            found.append(await w.step(x, 0.5))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one)
            await trio.testing.wait_all_tasks_blocked()
            w.note(len(w.device.live), len(found))
            w.calls.null_release()
        return found

    return trio.run(main)


@case()
def cancelled_before(w: World) -> Any:
    async def main() -> Any:
        x = await ones((N,))
        op = w.step(x, 0.5)
        with trio.CancelScope() as scope:
            scope.cancel()
            await op
        w.note(scope.cancelled_caught)
        w.note_states(op.source.content[0][0])

    return trio.run(main)


@case()
def cancelled_under_way(w: World) -> Any:
    async def main() -> Any:
        x = await ones((N,))
        op = w.step(x, 0.5)
        held = storage_of(op.source.content[0][0])
        found: list[Any] = []
        w.calls.null_hold()

        scope = trio.CancelScope()

        async def one() -> None:
            with scope:
                found.append(await op)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            await trio.testing.wait_all_tasks_blocked()
            w.note(held.lock.writer is None)
            w.calls.null_release()
        w.note(held.lock.writer is None, held.lock.readers, len(found))
        w.note_states(op.source.content[0][0])
        return scope.cancelled_caught

    return trio.run(main)


@case(serves=1)
def cancelled_between_launch_and_look(w: World) -> Any:
    async def main() -> Any:
        x = await ones((N,))
        found: list[Any] = []
        starts = trio.Event()

        async def one() -> None:
            starts.set()
            found.append(await w.step(x, 0.5))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one)
            await starts.wait()
            nursery.cancel_scope.cancel()
        return found

    return trio.run(main)


def stepped_by_hand(end: Callable[[Any], object]) -> Case:
    """A coroutine that ends between the launch and its end."""

    def run(w: World) -> Any:
        storages: list[Any] = []

        async def main() -> None:
            x: Any = await ones((N,))
            storages.append(storage_of(x))
            steps = w.step(x, 0.5).__await__()
            w.note(type(steps.send(None)).__name__)
            w.calls.null_busy(50)
            try:
                end(steps)
            except BaseException as error:
                w.note(type(error).__name__)

        trio.run(main)
        gc.collect()
        lock = storages[0].lock
        return [lock.writer is None, lock.readers, len(w.device.live), len(EXIT_GUARD.inside)]

    return run


@case()
def steps_before_and_after_a_run(w: World) -> Any:
    """The steps are those of a generator: before the launch, after it, while it waits, and after the end."""

    async def main() -> None:
        def told_step(call: Callable[[], Any]) -> None:
            try:
                given = call()
            except StopIteration as stop:
                w.note("end", told(stop.value) if stop.value is not None else None)
            except BaseException as error:
                w.note(type(error).__name__, str(error), [type(error.__cause__).__name__])
            else:
                w.note(getattr(given, "__name__", type(given).__name__))

        begins: list[Callable[[Any], Any]] = [lambda steps: steps.send(None), next]
        goes_on: list[Callable[[Any], Any]] = [lambda steps: steps.send(Value(None))]
        ends: list[Callable[[Any], Any]] = [
            lambda steps: steps.close(),
            lambda steps: steps.throw(ValueError("thrown")),
            lambda steps: steps.throw(ValueError, "thrown"),
        ]
        for busy, first in product((0, 40), (*begins, *ends)):
            for second, third in product(ends if busy else (*goes_on, *ends), (next, *ends)):
                x: Any = await ones((N,))
                steps = w.step(x, 0.5).__await__()
                w.note(busy, iter(steps) is steps)
                w.calls.null_busy(busy)
                for act in (first, second, third):
                    told_step(partial(act, steps))
                steps.close()
                w.calls.null_busy(0)

    trio.run(main)
    return len(w.device.live)


CASES["a coroutine that is closed"] = stepped_by_hand(lambda steps: steps.close()), 0
CASES["a coroutine that gets an error"] = stepped_by_hand(lambda steps: steps.throw(ValueError("x"))), 0
CASES["a coroutine that is dropped"] = stepped_by_hand(lambda steps: None), 0


@case()
def awaited_outside_of_trio(w: World) -> Any:
    return w.step(fresh(), 0.5).__await__().send(None)


@case()
def awaited_with_a_refused_launch(w: World) -> Any:
    async def main() -> Any:
        x = await ones((N,))
        op = w.step(x, 2.5)
        w.calls.null_fail(b"cuGraphLaunch", 1, 0)
        try:
            return await op
        finally:
            w.note_states(x, op.source.content[0][0])
            w.note(told(await w.step(await ones((N,)), 0.5)))

    return trio.run(main)


@case()
def awaited_and_lost(w: World) -> Any:
    async def main() -> Any:
        x = await ones((N,))
        op = w.step(x, 2.5)
        w.calls.null_fail(b"cuStreamQuery", 719, 0)
        try:
            return await op
        finally:
            w.note_states(x, op.source.content[0][0])

    return trio.run(main)


@case()
def awaited_and_locked(w: World) -> Any:
    async def main() -> Any:
        x = await ones((N,))
        op = w.step(x, 0.5)
        lock = storage_of(op.source.content[0][0]).lock
        lock.writer = "another run"
        try:
            return await op
        finally:
            lock.writer = None
            w.note(told(await op))

    return trio.run(main)


@case(serves=20)
def tasks_side_by_side(w: World) -> Any:
    async def main() -> Any:
        done: list[str] = []

        async def some(name: str) -> None:
            x = await ones((N,))
            for _ in range(10):
                x = await w.step(x, 0.5)
            done.append(name)

        async with trio.open_nursery() as nursery:
            for name in "abc":
                nursery.start_soon(some, name)
        return sorted(done)

    return trio.run(main)


@case()
def live_runs_are_polled_while_a_task_waits(w: World) -> Any:
    """As a thread does that reclaims memory; the run is over before the task looks."""

    async def main() -> Any:
        x = await ones((N,))
        steps = w.step(x, 0.5).__await__()
        steps.send(None)
        w.calls.null_busy(2)
        w.note(len(w.device.live))
        for _ in range(4):
            w.note([[run.done(), run.finishing] for run in list(w.device.live)])
        return last_step(steps)

    return trio.run(main)


def polled_meanwhile(end: Callable[[Any], Any]) -> Case:
    """Another thread is in the driver, where it polls the run, when the task goes on."""

    def run(w: World) -> Any:
        async def main() -> Any:
            x = await ones((N,))
            steps = w.step(x, 0.5).__await__()
            steps.send(None)
            (live,) = w.device.live
            w.calls.null_meet(b"cuStreamQuery")
            may_go_on = threading.Lock()
            may_go_on.acquire()

            def go_on() -> None:
                with may_go_on:
                    w.calls.null_go_on()

            threads = threading.Thread(target=lambda: w.note(live.done())), threading.Thread(target=go_on)
            for thread in threads:
                thread.start()
            w.calls.null_met()
            before = sys.getswitchinterval()
            sys.setswitchinterval(1000)  # from here on the other threads run once this one waits
            may_go_on.release()
            try:
                return end(steps)
            finally:
                for thread in threads:
                    thread.join()
                sys.setswitchinterval(before)

        return trio.run(main)

    return run


def last_step(steps: Any) -> Any:
    """Let a coroutine go on, and return its result."""
    try:
        steps.send(Value(None))
    except StopIteration as stop:
        return told(stop.value)
    return "it goes on"


CASES["a run that lands while another thread polls it"] = polled_meanwhile(last_step), 0
CASES["a coroutine that is closed while another thread polls"] = polled_meanwhile(lambda steps: steps.close()), 0
