"""Ops and handles compare by identity wherever dagpu keeps them: `==` of two of them is element-wise, and an op."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import trio

from dagpu import (
    DeviceOp,
    Elem,
    SharedTensor,
    array,
    batch,
    cutoff,
    expr,
    f32,
    from_host,
    observe,
    ones,
    pipeline,
    plan_of,
    source,
    value,
    zeros,
    zip_ops,
)
from dagpu.handles.array_handle import ArrayHandle
from dagpu.handles.operators import Operators

Op = DeviceOp[Any, Any, Any]


@dataclass(frozen=True)
class Pair:
    """Two values in a frozen object."""

    a: Any
    b: Any


@expr
def plus(x: Elem[f32], y: Elem[f32]) -> Elem[f32]:
    """The sum."""
    return x + y


@pipeline
def total(xs: Any, named: dict[str, Any]) -> Op:
    """The sum of what a tuple or a list begins with and an item of a dictionary."""
    return plus(xs[0], named["a"])


def shared() -> SharedTensor[f32]:
    """A new tensor that has several owners."""
    return ones((4,)).sync().share()


def in_one_run() -> None:
    once = ones((4,)).shared()
    both = plus(once, once).shared()
    zip_ops(both, once, both).sync()
    a, b = zip_ops(ones((4,)), zeros((4,))).unzip()
    zip_ops(b, a).sync()
    print(both, both.explain())


def in_structures() -> None:
    x, y = shared(), shared()
    value(((x, y), [x, (y, x)], {"x": x, "y": [y]}, Pair(x, y))).shared().map(lambda parts: parts[0]).sync()
    value((x, y)).then(lambda pair: plus(*pair)).sync()


def in_sequences() -> None:
    x = shared()
    array.stack([x, x, shared()]).sync()
    array.concatenate((ones((4,)).sync(), x)).sync()


def in_arguments_of_a_pipeline() -> None:
    for _ in range(3):  # traced, looked up, and looked up again
        x, y = shared(), shared()
        total((x, y), {"a": x, "b": y}).sync()
        total([y, x], {"a": y, "b": y}).sync()
        total((ones((4,)), x), {"a": ones((4,))}).map(lambda tensor: tensor).sync()
    plan_of(plus(shared(), shared()))


def in_feeds() -> None:
    data, gain = source(shared()), source(2.0)
    part = plus(data, data).shared()
    news = [from_host(np.full(4, number, np.float32)).sync().share() for number in range(3)]
    watched = zip_ops(part, cutoff(plus(part, gain)), part.to_host(), gain)

    async def main() -> None:
        async with observe(watched) as feed, observe(zip_ops(part, gain)) as other:
            await anext(feed)
            await anext(other)
            for number in range(3):
                with batch():
                    data.set(news[number])
                    gain.set(float(number))
                await anext(feed)
                await anext(other)

    trio.run(main)


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the classes of which `==` or `!=` was asked; the latter asks the former."""
    found: list[str] = []

    def note(self: object, other: object) -> bool:
        found.append(type(self).__name__)
        return self is other

    for base in (DeviceOp, ArrayHandle):
        monkeypatch.setattr(base, "__eq__", note)
    return found


@pytest.mark.parametrize("walk", [in_one_run, in_structures, in_sequences, in_arguments_of_a_pipeline, in_feeds])
def test_nothing_compares_ops_or_handles(walk: Callable[[], None], compared: list[str]) -> None:
    """Public calls with ops and handles in tuples, lists, dictionaries and frozen objects, with their second calls,
    which find plans, and with feeds, which take over what has not changed."""
    walk()
    assert compared == []


@pytest.mark.parametrize(
    "make", [lambda: ones((4,)), lambda: ones((4,)).sync(), shared], ids=["op", "tensor", "shared"]
)
def test_such_a_comparison_would_be_seen(make: Callable[[], Any], compared: list[str]) -> None:
    """In a tuple or a list, two of them are compared by `==`; a dictionary asks identity."""
    one, other = make(), make()
    assert {one: 1, other: 2}[other] == 2
    assert other in {one, other}
    assert compared == []
    assert (one,) != (other,)
    assert compared


def subclasses(cls: type[Any]) -> Iterator[Any]:
    """The classes that a class has below it."""
    for below in cls.__subclasses__():
        yield below
        yield from subclasses(below)


def test_no_class_has_a_comparison_of_its_own() -> None:
    """A data class among the ops would compare its fields, which are ops. All hash by identity."""
    own = [
        below.__name__
        for below in subclasses(Operators)
        if below.__module__.startswith("dagpu.")
        and (below.__eq__ is not Operators.__eq__ or below.__hash__ is not object.__hash__)
    ]
    assert own == []


def test_colliding_hashes_compare_nothing(compared: list[str]) -> None:
    """Ops and handles whose hashes begin at one slot of a table are told apart by their identities: two that are alive
    have different hashes, which a table compares first. So sets and dictionaries of them never ask `==`."""
    held = [ones((4,)).sync().share() for _ in range(600)]
    made = [each.to_host() for each in held]
    for things in (held, made):
        slots: dict[int, list[Any]] = {}
        for each in things:
            slots.setdefault(hash(each) % 64, []).append(each)
        colliding: list[Any] = max(slots.values(), key=len)[:6]
        assert len(colliding) > 2
        table = {each: number for number, each in enumerate(colliding)}
        assert [table[each] for each in colliding] == list(range(len(colliding)))
        assert set(colliding) == table.keys()
    runs: Any = [plus(each, each).shared() for each in colliding_shared(held)]
    zip_ops(*runs, *runs).sync()
    assert compared == []


def colliding_shared(held: list[SharedTensor[f32]]) -> list[SharedTensor[f32]]:
    """Some of these tensors, with equal last bits of their hashes."""
    return [each for each in held if hash(each) % 16 == hash(held[0]) % 16][:8]
