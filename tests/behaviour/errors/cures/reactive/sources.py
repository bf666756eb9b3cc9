"""Values that a source cannot hold, and ops that a feed cannot observe."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import trio

from dagpu import (
    DeviceOp,
    Source,
    StreamInterpreter,
    Tensor,
    cutoff,
    dup,
    f32,
    observe,
    ones,
    source,
    use_interpreter,
    value,
    zeros,
    zip_ops,
)
from tests.behaviour.errors.cures.catalogue import TILE, Catalogue, N, add, anything

CATALOGUE = Catalogue()
case = CATALOGUE.add

Op = DeviceOp[Any, Any, Any]


def tensor() -> Tensor[f32]:
    return ones((N,)).sync()


def held() -> Source[Any]:
    """A source of a tensor."""
    return source(tensor())


def first(op: Op, **options: Any) -> None:
    """Ask a feed of the op for its first value."""

    async def main() -> None:
        async with observe(op, **options) as feed:
            await feed.next()

    trio.run(main)


def added(y: Any, x: Any) -> Op:
    return add(y, x).first().unpartition()


# ---- values of sources


def set_in_a_closure() -> None:
    s = source(1)
    value(2).map(s.set).sync()


def set_where_it_arrives() -> None:
    s = source(1)
    s.set(value(2).sync())


case(set_in_a_closure, ("set it where the result of the op arrives", set_where_it_arrives))


def set_in_the_function_of_change() -> None:
    s = source(1)

    def careless(x: int) -> int:
        s.set(x + 1)
        return x

    s.change(careless)


def returned_by_the_function_of_change() -> None:
    s = source(1)
    s.change(lambda x: x + 1)


case(
    set_in_the_function_of_change,
    ("Return the new value from it, and set nothing in it", returned_by_the_function_of_change),
)


def set_to_a_list() -> None:
    source((1, 2)).set(anything([3, 4]))


case(
    set_to_a_list,
    ("Set a tuple", lambda: source((1, 2)).set((3, 4))),
    ("an array", lambda: source(ones((N,)).to_host().sync()).set(zeros((N,)).to_host().sync())),
    ("or a tensor", lambda: held().set(tensor())),
)
case(lambda: source(anything([1])), ("Set a tuple", lambda: source((1,))))
case(lambda: source(anything(memoryview(bytearray(2)))), ("an array", lambda: source(np.zeros(2, np.uint8))))


def masked() -> Any:
    return np.ma.masked_array(np.zeros(N, f32), np.arange(N) == 1)


case(
    lambda: source(masked()),
    ("Fill the masked elements first: array.filled(0)", lambda: source(masked().filled(0))),
)
case(
    lambda: held().write(slice(0, N), masked()),
    ("Fill the masked elements first: array.filled(0)", lambda: held().write(slice(0, N), masked().filled(0))),
)


def set_to_a_loan() -> None:
    s, t = held(), tensor()
    s.set(anything(t.borrow()))


def set_to_a_copy() -> None:
    s, t = held(), tensor()
    s.set(dup(t.borrow()).sync())


case(
    set_to_a_loan,
    ("Set a copy, dup(t)", set_to_a_copy),
    ("or give the tensor away", lambda: held().set(tensor())),
)
case(
    lambda: held().set(anything(tensor().partition(TILE))),
    ("Put it together first: .unpartition()", lambda: held().set(tensor().partition(TILE).unpartition())),
)
case(
    lambda: source(anything((tensor(), 1))),
    ("Make a source of each", lambda: (source(tensor()), source(1))),
)
case(
    lambda: held().set(anything(ones((N,)))),
    ("set its result: await op, or op.sync()", lambda: held().set(ones((N,)).sync())),
)

# ---- ops that cannot be observed


def observe_a_borrow() -> None:
    t = tensor()
    first(anything(added(zeros((N,)).partition(TILE), t.borrow())))


def observe_what_is_shared() -> None:
    t = tensor().share()
    first(added(zeros((N,)).partition(TILE), t))


def observe_a_hidden_borrow() -> None:
    t = tensor()
    first(anything(value(None).then(lambda _: added(zeros((N,)).partition(TILE), t.borrow()))))


def observe_what_a_closure_shares() -> None:
    t = tensor().share()
    first(value(None).then(lambda _: added(zeros((N,)).partition(TILE), t)))


case(observe_a_borrow, ("share() the tensor and pass that", observe_what_is_shared))
case(
    observe_a_hidden_borrow,
    ("share() the tensor and pass that", observe_what_a_closure_shares),
)
case(
    lambda: first(anything(zeros((N,)).graph().launch())),
    ("Observe the op itself", lambda: first(zeros((N,)))),
)


def write_over_what_moved_in() -> None:
    first(added(tensor().partition(TILE), tensor().share()))


def begin_with_a_copy() -> None:
    t = tensor().share()
    first(added(value(t).then(dup).partition(TILE), tensor().share()))


case(
    write_over_what_moved_in,
    ("Share it, t.share(), and begin with a copy at each update, value(t).then(dup)", begin_with_a_copy),
    ("or begin with zeros", lambda: first(added(zeros((N,)).partition(TILE), tensor().share()))),
)
case(
    lambda: first(zip_ops(ones((N,)), zeros((N,)))),
    ("Let the op share it: .share()", lambda: first(zip_ops(ones((N,)).share(), zeros((N,)).share()))),
)
case(
    lambda: first(ones((N,)).partition(TILE)),
    ("or .unpartition().share()", lambda: first(ones((N,)).partition(TILE).unpartition().share())),
)
case(
    lambda: first(ones((N,)), memory=4),
    ("Raise it", lambda: first(ones((N,)), memory=4 * N)),
    ("or observe less", lambda: first(ones((1,)), memory=4)),
)

# ---- comparisons


class Unlike:
    """An object whose `==` gives an array."""

    def __init__(self, x: float) -> None:
        self.x = np.array([x, x])

    def __eq__(self, other: object) -> Any:
        return self.x == other.x if isinstance(other, Unlike) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # reason: so does Python


@dataclass
class Boxed:
    """An object whose `==` fails."""

    x: Any


def cut_off(make: Callable[[float], object], **options: Any) -> None:
    """Ask for two values of a cutoff behind a closure."""
    level = source(1.0)
    op = zip_ops(cutoff(level.map(make), **options), level)

    async def main() -> None:
        async with observe(op) as feed:
            await feed.next()
            level.set(2.0)
            await feed.next()

    trio.run(main)


def same_numbers(a: Any, b: Any) -> bool:
    return bool(np.array_equal(a.x, b.x))


for unlike in (Unlike, lambda x: [Boxed(np.array([x, x]))]):
    case(
        partial(cut_off, unlike),
        (
            "Say what makes two of them equal: cutoff(op, equal=f)",
            lambda: (partial(cut_off, Unlike, equal=same_numbers)(), cutoff(source(1), equal=same_numbers)),
        ),
    )
case(
    partial(cut_off, Unlike, equal=anything(lambda a, b: a.x == b.x)),
    ("Return True or False", partial(cut_off, Unlike, equal=same_numbers)),
)
case(
    lambda: source(np.ones(2), equal=anything(lambda a, b: a == b)).set(np.ones(2)),
    (
        "Return True or False: np.array_equal(old, new), say",
        lambda: source(np.ones(2), equal=lambda a, b: np.array_equal(a, b)).set(np.ones(2)),
    ),
)
case(lambda: source(1, name=anything(1)), ('Write name="gain", say', lambda: source(1, name="gain")))
case(
    lambda: first(source(1.0).map(Unlike), check=True),
    (
        "Return arrays, numbers, texts, and tuples, lists and dicts of these",
        lambda: first(source(1.0).map(lambda x: [np.array([x])]), check=True),
    ),
)


# ---- closures that read what they are not given


def observe_a_counter(count: Callable[[], Op]) -> None:
    first(count(), check=True)


def count_outside() -> Op:
    calls = itertools.count()
    return value(None).map(lambda _: next(calls))


def count_outside_of_a_source() -> Op:
    calls = itertools.count()
    return source(0).map(lambda x: x + next(calls))


case(
    partial(observe_a_counter, count_outside),
    ("Make what it reads a source", lambda: observe_a_counter(lambda: source(1).map(lambda n: n))),
)
case(
    partial(observe_a_counter, count_outside_of_a_source),
    ("Make what it reads a source", lambda: observe_a_counter(lambda: zip_ops(source(0), source(1)).map(sum))),
)


# ---- interpreters


class OnlyRuns:
    """An interpreter that makes no plans."""

    async def run(self, op: Any, /) -> Any:
        return await StreamInterpreter().run(op)

    def run_sync(self, op: Any, /) -> Any:
        return StreamInterpreter().run_sync(op)


def observe_with(interpreter: Any) -> None:
    with use_interpreter(interpreter):
        first(value(1))


case(
    lambda: observe_with(OnlyRuns()),
    ("use_interpreter(StreamInterpreter())", lambda: observe_with(StreamInterpreter())),
)


# ---- cutoffs


def by_size(a: Any, b: Any) -> bool:
    return bool(abs(a - b).max() < 1)


case(
    lambda: first(cutoff(held(), anything(by_size))),
    ("Leave equal out", lambda: first(cutoff(held()))),
    ("bring the result to the host: cutoff(op.to_host(), equal)", lambda: first(cutoff(held().to_host(), by_size))),
)
