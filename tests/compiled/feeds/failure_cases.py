"""Updates of feeds that fail, wait, are cancelled or left: the next value is right, and nothing is held."""

import gc
import signal
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import trio
import trio.testing
from outcome import Value

import dagpu
from dagpu import observe, source, zip_ops
from dagpu.backends.cuda.driver.driver_protocol import EXIT_GUARD
from dagpu.testing import storage_of
from tests.compiled.feeds.worlds import OFTEN, Asked, Op, add_case, added, scaled, tensor, watched
from tests.compiled.worlds import Case, World, case, when_called

LAUNCH, UPDATE, QUERY = b"cuGraphLaunch", b"cuGraphExecKernelNodeSetParams", b"cuStreamQuery"


def ops(number: Any, given: Any) -> dict[str, Op]:
    """Ops over a number and a tensor."""
    return {
        "one kernel": scaled(number, given),
        "three kernels": added(scaled(number, given), scaled(2.0, scaled(number, given))),
        "two results": zip_ops(scaled(number, given).share(), scaled(3.0, given).share()),
    }


FORMS = tuple(ops(source(0.0), source(0.0)))


async def warm(asked: Asked, number: Any) -> None:
    """Make updates until the compiled reader makes them."""
    await asked.times(OFTEN + 2, lambda n: number.set(n + 100.0))


def disturbed(form: str, disturb: Callable[[World], object], *, keeps: bool = False) -> Case:
    """Something happens in one update. The next ones are right, and made as before. With `keeps` the user holds the
    values, so that each update needs memory."""

    def run(w: World) -> Any:
        number, given = source(1.0), source(tensor())

        async def script(asked: Asked) -> None:
            kept: list[Any] = []
            await warm(asked, number)
            if keeps:
                kept.append(await asked.next_after(partial(number.set, 90.0)))
            for value in (5.0, 6.0):
                number.set(value)
                disturb(w)
                try:
                    await asked.next()
                except dagpu.DagpuError:
                    w.note(asked.feed.explain())
                    w.note(w.lock_of(given.get()), len(EXIT_GUARD.inside))
                    restore(w)
                    try:
                        await asked.next()
                    except dagpu.DagpuError as error:
                        w.note(str(error))
                restore(w)
            kept.clear()
            await asked.times(OFTEN, lambda n: number.set(n + 20.0))
            await asked.times(OFTEN, lambda n: given.set(tensor(n)))
            await asked.times(3, lambda n: number.set(n + 30.0))

        return watched(w, ops(number, given)[form], script)

    return run


def restore(w: World) -> None:
    w.calls.null_fail(b"", 0, 0)
    w.calls.null_busy(0)
    w.device.gpu.room = 1 << 40


def no_memory(w: World) -> None:
    w.device.memory.trim()
    w.device.gpu.room = 0


DISTURBANCES: dict[str, Callable[[World], object]] = {
    "a launch that is refused": lambda w: w.calls.null_fail(LAUNCH, 1, 0),
    "a launch without memory": lambda w: w.calls.null_fail(LAUNCH, 2, 0),
    "a launch that loses the device": lambda w: w.calls.null_fail(LAUNCH, 700, 0),
    "a change of a node that is refused": lambda w: w.calls.null_fail(UPDATE, 1, 0),
    "a second change of a node that is refused": lambda w: w.calls.null_fail(UPDATE, 1, 1),
    "a query that is refused": lambda w: w.calls.null_fail(QUERY, 1, 0),
    "a lost device": lambda w: w.calls.null_fail(QUERY, 719, 0),
    "a device that is busy": lambda w: w.calls.null_busy(3),
    "a device that is busy for longer": lambda w: w.calls.null_busy(4_000_000),
    "a device that is busy until it is waited for": lambda w: w.calls.null_busy(1 << 40),
}
for _form, (_name, _disturb) in product(FORMS, DISTURBANCES.items()):
    add_case(f"{_name}, in an update of {_form}", disturbed(_form, _disturb), 4)
for _form in FORMS:
    add_case(f"no memory in an update of {_form}", disturbed(_form, no_memory, keeps=True), 4)
    add_case(f"another library's memory in an update of {_form}", disturbed(_form, lambda w: None, keeps=True), 4)


# ---- cancellation


@case(serves=4)
def updates_that_are_cancelled(w: World) -> Any:
    """Before the launch, between the launch and the look, and while the device works."""
    number, given = source(1.0), source(tensor())

    async def script(asked: Asked) -> None:
        starts = trio.Event()
        await warm(asked, number)

        async def cancelled(value: float, scope: trio.CancelScope) -> None:
            number.set(value)
            starts.set()
            with scope:
                await asked.next()
            w.note(scope.cancelled_caught)

        scope = trio.CancelScope()
        scope.cancel()
        await cancelled(1.0, scope)
        w.note(w.driver.log(), asked.feed.stats.values)
        await asked.next()
        await warm(asked, number)

        scope, starts = trio.CancelScope(), trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancelled, 2.0, scope)
            await starts.wait()
            scope.cancel()
        await warm(asked, number)

        scope = trio.CancelScope()
        w.calls.null_hold()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancelled, 3.0, scope)
            await trio.testing.wait_all_tasks_blocked()
            w.note(len(w.device.live), w.lock_of(given.get()))
            scope.cancel()
            await trio.testing.wait_all_tasks_blocked()
            w.calls.null_release()
        w.note(len(w.device.live), w.lock_of(given.get()))
        if scope.cancelled_caught:
            await asked.next()
        await warm(asked, number)

    return watched(w, ops(number, given)["three kernels"], script)


async def call(function: Callable[[], object]) -> None:
    function()


@case(serves=4)
def an_update_while_others_wait(w: World) -> Any:
    """The device works until another task has changed the sources: the value is that of the launch."""
    number, given = source(1.0), source(tensor())

    async def script(asked: Asked) -> None:
        await warm(asked, number)
        for n in range(2):
            another = tensor(n)
            w.calls.null_hold()
            async with trio.open_nursery() as nursery:
                number.set(1.0 + n)
                nursery.start_soon(asked.next)
                await trio.testing.wait_all_tasks_blocked()
                number.set(50.0 + n)
                given.set(another)
                w.calls.null_release()
            await asked.next()
            await warm(asked, number)

    return watched(w, ops(number, given)["one kernel"], script)


# ---- coroutines by hand


def step(w: World, act: Callable[[], Any]) -> Any:
    """Make a step of a coroutine, and note how it ends. Return its value, if it gives one."""
    try:
        given = act()
    except StopIteration as stop:
        w.note("end")
        return stop.value
    except BaseException as error:
        w.note(type(error).__name__, str(error))
    else:
        w.note(getattr(given, "__name__", type(given).__name__))
    return None


WAYS: dict[str, Callable[[Any], Any]] = {
    "goes on": lambda steps: steps.send(Value(None)),
    "is closed": lambda steps: steps.close(),
    "gets an error": lambda steps: steps.throw(ValueError("thrown")),
    "gets an exit": lambda steps: steps.throw(GeneratorExit()),
    "is dropped": lambda steps: None,
}


def by_hand(form: str, busy: int, end: Callable[[Any], Any], *, launched: bool) -> Case:
    """A coroutine of `next()` that ends before its launch or after it."""

    def run(w: World) -> Any:
        number, given = source(1.0), source(tensor())

        async def script(asked: Asked) -> None:
            await warm(asked, number)
            for value in (5.0, 6.0):
                number.set(value)
                coroutine: Any = asked.feed.next()
                if launched:
                    step(w, partial(coroutine.send, None))
                    w.note(w.lock_of(given.get()), len(w.device.live))
                    number.set(value + 0.5)
                w.calls.null_busy(busy)
                made = step(w, partial(end, coroutine))
                if made is not None:
                    asked.note(made)
                del coroutine, made
                w.calls.null_busy(0)
                w.note(w.lock_of(given.get()), len(w.device.live), len(EXIT_GUARD.inside))
                number.set(value + 0.75)
                await asked.next()
            await warm(asked, number)

        return watched(w, ops(number, given)[form], script)

    return run


for _form, _busy, (_name, _end) in product(FORMS[:2], (0, 50), WAYS.items()):
    if _name != "goes on" or not _busy:
        add_case(f"an update of {_form} that {_name}, busy {_busy}", by_hand(_form, _busy, _end, launched=True), 4)
for _name in ("is closed", "gets an error", "is dropped"):
    add_case(f"an update that {_name} before its launch", by_hand(FORMS[0], 0, WAYS[_name], launched=False), 4)


def left(busy: int, end: Callable[[Any], Any]) -> Case:
    """The feed's block ends while an update is under way."""

    def run(w: World) -> Any:
        number, given = source(1.0), source(tensor())
        held: list[Any] = []

        async def main() -> None:
            async with observe(ops(number, given)["three kernels"]) as feed:
                asked = Asked(w, feed)
                await warm(asked, number)
                number.set(5.0)
                held.append(feed.next())
                step(w, lambda: held[0].send(None))
                w.calls.null_busy(busy)
            w.note(w.lock_of(given.get()), len(w.device.live))
            made = step(w, lambda: end(held[0]))
            w.note(made is None)
            held.clear()
            w.calls.null_busy(0)

        trio.run(main)
        gc.collect()
        return [w.lock_of(given.get()), len(w.device.live), len(EXIT_GUARD.inside)]

    return run


for _busy, (_name, _end) in product((0, 50), WAYS.items()):
    if _name != "goes on" or not _busy:
        add_case(f"a feed that is left before its update {_name}, busy {_busy}", left(_busy, _end), 4)


@case(serves=4)
def a_feed_that_is_left_while_a_task_waits(w: World) -> Any:
    number, given = source(1.0), source(tensor())

    async def main() -> None:
        with trio.CancelScope() as scope:
            async with observe(ops(number, given)["three kernels"]) as feed, trio.open_nursery() as nursery:
                await warm(Asked(w, feed), number)
                w.calls.null_hold()
                number.set(5.0)
                nursery.start_soon(attempt, feed)
                await trio.testing.wait_all_tasks_blocked()
                w.note(w.lock_of(given.get()), len(w.device.live))
                scope.cancel()
                nursery.start_soon(call, w.calls.null_release)

    async def attempt(feed: Any) -> None:
        await feed.next()
        w.note("a value")

    trio.run(main)
    return [w.lock_of(given.get()), len(w.device.live)]


# ---- Ctrl-C


def pressed(press: Callable[[World], object], during: str = "", *disturb: Callable[[World], object]) -> Case:
    """Ctrl-C in an update, in a call of the driver or of a function of dagpu's. The value is made, or made again."""

    def run(w: World) -> Any:
        number, given = source(1.0), source(tensor())
        w.is_steady = False
        found: list[Any] = []

        async def main() -> None:
            async with observe(ops(number, given)["one kernel"]) as feed:
                for n in range(OFTEN + 2):
                    number.set(n + 100.0)
                    kept = await feed.next()  # the next update needs memory
                number.set(5.0)
                for each in disturb:
                    each(w)
                value: Any = None
                try:
                    press(w)
                    with when_called(during, lambda: signal.raise_signal(signal.SIGINT)):
                        value = await feed.next()
                    for _ in range(3):  # trio raises it in a checkpoint
                        await trio.lowlevel.checkpoint()
                except KeyboardInterrupt:
                    found.append("interrupted")
                lock = storage_of(given.get()).lock
                found.append([lock.writer is None, lock.readers, len(w.device.live), len(EXIT_GUARD.inside)])
                restore(w)
                if value is None:
                    number.set(6.0)
                    await feed.next()
                number.set(7.0)
                kept = await feed.next()
                del kept
                found.append(w.driver.parameters().hex()[48:56])

        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            trio.run(main)
        finally:
            signal.signal(signal.SIGINT, before)
        return found

    return run


def press_in(w: World, call: bytes) -> None:
    w.calls.null_press_in(call)


def nothing(w: World) -> None:
    pass


def trim(w: World) -> None:
    """Let Python take the memory of the next update."""
    w.device.memory.trim()


for _call in (LAUNCH, UPDATE, QUERY):
    add_case(f"Ctrl-C in {_call.decode()} of an update", pressed(partial(press_in, call=_call)), 4)
for _during in ("__init__", "take", "_block", "clone", "shared", "update_failed"):
    add_case(f"Ctrl-C in a call of {_during} in an update", pressed(nothing, _during, trim), 4)
add_case(
    "Ctrl-C in a query of an update that is busy",
    pressed(lambda w: w.calls.null_press_in(QUERY), "", lambda w: w.calls.null_busy(400_000)),
    4,
)
