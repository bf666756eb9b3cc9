"""Random flows, the lists that they must equal, ops that take time on trio's clock, and loops under a clock that jumps.

A list here has outcomes: a value, or a `Failure` in its place. `Chain` applies the same operators to a flow and to a
list of outcomes, so that a test can compare the two.
"""

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, final

import trio
import trio.testing
from hypothesis import strategies as st

from dagpu import DeviceOp, Flow, StreamInterpreter, flow, value, zip_flows
from dagpu.testing import Plan

T = TypeVar("T")
Outcomes: TypeAlias = list[Any]


@final
@dataclass(frozen=True)
class Failure:
    """An error in the place of a value."""

    number: int


class Broken(Exception):
    """The error of an item. Its argument is the number of the failure."""


def clocked(main: Callable[..., Awaitable[T]], *arguments: Any) -> T:
    """Run under a clock that jumps ahead whenever all tasks wait, so that sleeps take no time."""
    return trio.run(main, *arguments, clock=trio.testing.MockClock(autojump_threshold=0))


# ---- ops that take time -------------------------------------------------------------------------------------------


@final
class SlowInterpreter:
    """Runs ops after a sleep on trio's clock, and counts how many run at once.

    `seconds` gives the length of the sleeps; it is called once for each run.
    """

    def __init__(self, seconds: Callable[[], float] = lambda: 1.0) -> None:
        self._seconds = seconds
        self._inner = StreamInterpreter()
        self.running = 0
        self.most = 0
        self.begun = 0
        self.cancelled = 0

    async def run(self, op: DeviceOp[T, Any, Any], /) -> T:
        self.running += 1
        self.begun += 1
        self.most = max(self.most, self.running)
        try:
            await trio.sleep(self._seconds())
            return await self._inner.run(op)
        except trio.Cancelled:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1

    def run_sync(self, op: DeviceOp[T, Any, Any], /) -> T:
        return self._inner.run_sync(op)

    def plan_of(self, op: DeviceOp[Any, Any, Any], /) -> Plan:
        return self._inner.plan_of(op)


def seeded_seconds(seed: int) -> Callable[[], float]:
    """Return a function that gives lengths of sleeps from 0 to 3, several of them equal."""
    numbers = random.Random(seed)
    return lambda: numbers.choice((0.0, 0.0, 0.5, 1.0, 1.0, 2.0, 3.0))


# ---- producers ----------------------------------------------------------------------------------------------------


def raise_failures(x: Any) -> Any:
    """Return a value; raise for a `Failure`. For `map`."""
    if isinstance(x, Failure):
        raise Broken(x.number)
    return x


@final
class Producer:
    """An async iterable that sleeps before each item, and counts the items that were pulled."""

    def __init__(self, items: list[Any], seconds: Callable[[], float] = lambda: 0.0) -> None:
        self._items = items
        self._seconds = seconds
        self.pulled = 0

    async def __aiter__(self) -> AsyncIterator[Any]:
        for item in self._items:
            await trio.sleep(self._seconds())
            self.pulled += 1
            yield item


# ---- operators, of flows and of lists -------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Chain:
    """Operators, each with a number, that are applied one after another."""

    operators: tuple[tuple[str, int], ...]

    def of_flow(self, start: Flow[Any]) -> Flow[Any]:
        for name, number in self.operators:
            start = FLOWS[name](start, number)
        return start

    def of_list(self, start: Outcomes) -> Outcomes:
        for name, number in self.operators:
            start = list(LISTS[name](start, number))
        return start


def total(x: Any) -> int:
    """Return a number for any value, so that operators may follow each other in any order."""
    return sum(map(total, x)) if isinstance(x, tuple) else int(x)


def mapped(x: Any, n: int) -> int:
    if total(x) % 11 == n:
        raise Broken(total(x))
    return total(x) * 3 + n


def kept(x: Any, n: int) -> bool:
    return (total(x) + n) % 3 != 0


def op_of(x: Any, n: int) -> DeviceOp[int]:
    """Return an op; one item in thirteen fails where the op is built, and one in thirteen in its run."""
    number = total(x)
    if number % 13 == n:
        raise Broken(number)
    return value(number).map(lambda y: failing(y, n))


def failing(y: int, n: int) -> int:
    if y % 13 == n + 1:
        raise Broken(y)
    return y * 2 + n


def step_of(state: int, x: Any, n: int) -> DeviceOp[tuple[int, int]]:
    number = total(x)
    if number % 29 == 28:
        raise Broken(number)
    return value((state + number, state * n + number))


FLOWS: dict[str, Callable[[Flow[Any], int], Flow[Any]]] = {
    "map": lambda f, n: f.map(lambda x: mapped(x, n)),
    "where": lambda f, n: f.where(lambda x: kept(x, n)),
    "take": lambda f, n: f.take(n + 1),
    "window": lambda f, n: f.window(n % 3 + 1, n % 4 + 1),
    "run": lambda f, n: f.run(lambda x: op_of(x, n), in_flight=n + 1),
    "fold": lambda f, n: f.fold(value(n), lambda s, x: step_of(s, x, n), in_flight=n + 1),
    "batched": lambda f, n: f.batched(n + 1),
    "zip": lambda f, n: zip_flows(f, flow(range(100)).map(lambda x: mapped(x, n))),
}


def each(outcomes: Outcomes, f: Callable[[Any], Any]) -> Iterator[Any]:
    for x in outcomes:
        try:
            yield x if isinstance(x, Failure) else f(x)
        except Broken as error:
            yield Failure(error.args[0])


def first(outcomes: Outcomes, count: int) -> Iterator[Any]:
    for x in outcomes:
        if not count:
            return
        count -= not isinstance(x, Failure)
        yield x


def windows(outcomes: Outcomes, count: int, step: int) -> Iterator[Any]:
    values: list[Any] = []
    ahead = 0  # how many of the values to come are before the next window
    for x in outcomes:
        if isinstance(x, Failure):
            yield x
        elif ahead:
            ahead -= 1
        else:
            values.append(x)
            if len(values) == count:
                yield tuple(values)
                ahead = max(0, step - count)
                del values[:step]


def folded(outcomes: Outcomes, n: int) -> Iterator[Any]:
    state = n
    for x in outcomes:
        if isinstance(x, Failure):
            yield x
            continue
        number = total(x)
        if number % 29 == 28:
            yield Failure(number)
            return
        yield state * n + number
        state += number


def batches(outcomes: Outcomes, most: int) -> Iterator[Any]:
    items: list[Any] = []
    for x in outcomes:
        failed = isinstance(x, Failure)
        items += [] if failed else [x]
        if items and (failed or len(items) == most):
            yield tuple(items)
            items = []
        if failed:
            yield x
    if items:
        yield tuple(items)


def pairs(outcomes: Outcomes, n: int) -> Iterator[Any]:
    for x, y in zip(outcomes, each(list(range(100)), lambda x: mapped(x, n)), strict=False):
        failed = [z for z in (x, y) if isinstance(z, Failure)]
        yield failed[0] if failed else (x, y)


def checked_op(x: Any, n: int) -> int:
    number = total(x)
    if number % 13 == n:
        raise Broken(number)
    return failing(number, n)


LISTS: dict[str, Callable[[Outcomes, int], Iterator[Any]]] = {
    "map": lambda xs, n: each(xs, lambda x: mapped(x, n)),
    "where": lambda xs, n: (x for x in xs if isinstance(x, Failure) or kept(x, n)),
    "take": lambda xs, n: first(xs, n + 1),
    "window": lambda xs, n: windows(xs, n % 3 + 1, n % 4 + 1),
    "run": lambda xs, n: each(xs, lambda x: checked_op(x, n)),
    "fold": lambda xs, n: folded(xs, n),
    "batched": lambda xs, n: batches(xs, n + 1),
    "zip": lambda xs, n: pairs(xs, n),
}

chains = st.lists(st.tuples(st.sampled_from(sorted(FLOWS)), st.integers(0, 5)), max_size=5).map(
    lambda found: Chain(tuple(found))
)
items = st.lists(st.one_of(st.integers(0, 30), st.integers(0, 30), st.integers(0, 9).map(Failure)), max_size=25)


async def outcomes_of(described: Flow[Any], *, pause: Callable[[], float] = lambda: 0.0) -> Outcomes:
    """Open a flow, and return its outcomes to the end. The consumer sleeps before it asks for each."""
    found: Outcomes = []
    async with described as feed:
        while True:
            await trio.sleep(pause())
            try:
                found.append(await feed.next())
            except Broken as error:
                found.append(Failure(error.args[0]))
            except trio.EndOfChannel:
                return found
