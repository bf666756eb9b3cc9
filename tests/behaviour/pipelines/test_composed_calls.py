"""Calls of pipelines that are composed with functions of the user's, and with each other: they find their plans."""

import gc
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from dagpu import (
    DeviceOp,
    current_device,
    cutoff,
    every,
    expr,
    f32,
    flow,
    from_host,
    ones,
    pipeline,
    source,
    value,
    zip_flows,
    zip_ops,
)
from dagpu.testing import live_state

Op = DeviceOp[Any, Any, Any]
scaled = expr(f32, f32)(lambda x, a: x * a)
X = np.arange(4, dtype=np.float32)


def double(x: Any) -> Any:
    return 2 * x


@pipeline
def on_host(x: Any, a: Any) -> Any:
    """a * x, as an array."""
    return scaled(from_host(x), a).to_host()


@pipeline
def on_device(x: Any, a: Any) -> Any:
    """a * x, as a tensor."""
    return scaled(from_host(x), a)


PIPELINES = (on_host, on_device)


def noted(list_of: list[Any], what: Any, y: Any) -> Any:
    """Return `y`, and note that this was called."""
    list_of.append(what(y))
    return y


def clear() -> None:
    for each in PIPELINES:
        each.cache_clear()


def traces() -> int:
    """The number of calls of the functions of the pipelines."""
    return sum(each.cache_info().misses for each in PIPELINES)


def hits() -> int:
    return sum(each.cache_info().hits for each in PIPELINES)


WAYS: dict[str, tuple[Callable[[Any], Any], float]] = {
    "map": (lambda a: on_host(X, a).map(lambda y: 2 * y), 2),
    "map of a named function": (lambda a: on_host(X, a).map(double), 2),
    "map twice": (lambda a: on_host(X, a).map(double).map(lambda y: y + 0), 2),
    "inspect": (lambda a: on_host(X, a).inspect(lambda y: y.shape), 1),
    "host_map": (lambda a: on_host(X, a).host_map(lambda y: 3 * y), 3),
    "host_map and map": (lambda a: on_host(X, a).map(lambda y: y).host_map(double).map(lambda y: y), 2),
    "then a value": (lambda a: on_host(X, a).then(lambda y: value(5 * y)), 5),
    "then an op of the device": (lambda a: on_device(X, a).then(lambda t: scaled(t, 3.0)).to_host(), 3),
    "then another call": (lambda a: on_host(X, a).then(lambda y: on_host(y, 2.0)), 2),
    "the call in a closure": (lambda a: value(X).then(lambda x: on_host(x, a)), 1),
    "shared": (lambda a: on_host(X, a).shared(), 1),
    "map and shared": (lambda a: on_host(X, a).map(double).shared(), 2),
    "shared and map": (lambda a: on_host(X, a).shared().map(lambda y: double(y)), 2),
    "used twice": (lambda a: used_twice(on_host(X, a).map(double).shared()), 4),
    "shared tensor": (lambda a: on_device(X, a).shared().map(lambda t: t).to_host(), 1),
    "placed": (lambda a: on_host(X, a).map(lambda y: y).on(current_device()), 1),
    "cutoff": (lambda a: cutoff(on_host(X, a).map(lambda y: y)), 1),
    "map of a tensor": (lambda a: on_device(X, a).map(lambda t: t).to_host(), 1),
    "a kernel after map": (lambda a: scaled(on_device(X, a).map(lambda t: t), 3.0).to_host(), 3),
    "zip with a closure": (lambda a: zip_ops(on_host(X, a).map(double), on_host(X, a)).map(sum), 3),
    "zip of two pipelines": (lambda a: zip_ops(on_host(X, a), on_device(X, a).to_host()).map(lambda p: p[0] + p[1]), 2),
    "zip with a plain op": (lambda a: both(on_host(X, a).map(double), scaled(from_host(X), a).to_host()), 3),
    "unzip": (lambda a: zip_ops(on_host(X, a), on_host(X, a)).unzip()[0].map(lambda y: y), 1),
    "unzip twice": (lambda a: both(*zip_ops(on_host(X, a), on_host(X, a)).unzip()), 2),
    "first": (lambda a: zip_ops(on_host(X, a), on_host(X, a)).map(lambda p: p).first(), 1),
    "a source": (lambda a: on_host(X, source(a)).map(lambda y: y), 1),
}  # fmt: skip
"""For each way to compose calls on `X` and a number `a`: an op, and by what the result is more than `a * X`."""


def both(one: Op, other: Op) -> Op:
    """Their sum, by closures."""
    return zip_ops(one.map(lambda y: y), other).map(lambda p: p[0] + p[1])


def used_twice(shared: Op) -> Op:
    return zip_ops(shared.map(lambda y: y), shared).map(lambda p: p[0] + p[1])


async def awaited(op: Op) -> Any:
    return await op


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("run", [lambda op: op.sync(), lambda op: trio.run(awaited, op)], ids=["sync", "await"])
def test_a_composed_call_finds_its_plan(way: str, run: Callable[[Op], Any]) -> None:
    """The functions are new in each call and the numbers change: the second call and all later ones trace nothing, and
    give what NumPy does."""
    make, factor = WAYS[way]
    clear()
    np.testing.assert_array_equal(run(make(1.0)), factor * X)
    before, found = traces(), hits()
    for a in (2.0, 3.0, -1.5):
        np.testing.assert_array_equal(run(make(a)), np.float32(factor) * np.float32(a) * X)
    assert traces() == before
    assert hits() >= found + 3


@given(st.data())
def test_compositions_nest(data: st.DataObject) -> None:
    """Any composition of compositions: its second run traces no pipeline, and gives the same as the first and as the
    same functions of NumPy."""
    a = data.draw(st.sampled_from([2.0, 0.5]))
    depth = data.draw(st.integers(1, 4))
    names = [data.draw(st.sampled_from(sorted(STEPS))) for _ in range(depth)]

    def build() -> tuple[Op, Any]:
        op, expected = on_host(X, a), np.float32(a) * X
        for name in names:
            op, expected = STEPS[name](op), NUMPY[name](expected)
        return op, expected

    clear()
    for number in range(3):
        if number == 1:
            before = traces()
        op, expected = build()
        np.testing.assert_array_equal(op.sync(), expected)
    assert traces() == before


STEPS: dict[str, Callable[[Op], Op]] = {
    "map": lambda op: op.map(lambda y: y + 1),
    "inspect": lambda op: op.inspect(lambda y: y.shape),
    "host_map": lambda op: op.host_map(lambda y: y + 2),
    "then": lambda op: op.then(lambda y: value(y + 3)),
    "call": lambda op: op.then(lambda y: on_host(y, 2.0)),
    "kernel": lambda op: op.then(lambda y: scaled(from_host(y), 3.0)).to_host(),
    "shared": lambda op: op.shared(),
    "twice": lambda op: used_twice(op.shared()),
    "zip": lambda op: zip_ops(op, on_host(X, 4.0)).map(lambda p: p[0] + p[1]),
    "unzip": lambda op: zip_ops(op, on_host(X, 4.0)).unzip()[0].map(lambda y: y),
    "on": lambda op: op.on(current_device()),
}
NUMPY: dict[str, Callable[[Any], Any]] = {
    "map": lambda y: y + 1,
    "inspect": lambda y: y,
    "host_map": lambda y: y + 2,
    "then": lambda y: y + 3,
    "call": lambda y: np.float32(2) * y,
    "kernel": lambda y: np.float32(3) * y,
    "shared": lambda y: y,
    "twice": lambda y: y + y,
    "zip": lambda y: y + np.float32(4) * X,
    "unzip": lambda y: y,
    "on": lambda y: y,
}


# ---- what stays as it was


negated = expr(f32)(lambda x: -x)


@pipeline
def tripled(x: Any) -> Any:
    """3 * x, as an array."""
    return scaled(x, 3.0).to_host()


def read(s: Any) -> Op:
    """An op of a source, by a kernel that the layout of its value chooses."""
    return negated(s.then(from_host)).shared()


AROUND: dict[str, tuple[Callable[[Any, Any], Op], float]] = {
    "above": (lambda x, s: negated(on_device(x, 2.0)).to_host(), -2),
    "above, made anew": (lambda x, s: expr(f32)(lambda v: -v)(on_device(x, 2.0)).to_host(), -2),
    "in an argument": (lambda x, s: tripled(read(s)), -3),
    "in an argument, below a function": (lambda x, s: tripled(read(s)).map(double), -6),
    "above, and in an argument": (lambda x, s: negated(tripled(read(s)).then(from_host)).to_host(), 3),
    "beside": (lambda x, s: zip_ops(read(s).to_host(), on_host(x, 2.0)).map(lambda p: p[1]), 2),
    "above another call, in an argument": (lambda x, s: tripled(negated(on_device(x, 2.0)).shared()).map(double), -12),
}


@pytest.mark.parametrize("name", AROUND)
def test_a_call_finds_its_plan_where_layouts_choose_a_kernel(name: str) -> None:
    """Above the call, beside it or in its arguments."""
    make, factor = AROUND[name]
    clear()
    tripled.cache_clear()
    samples = source(X)
    for step in range(5):
        samples.set(step * X)
        np.testing.assert_array_equal(make(step * X, samples).sync(), np.float32(factor * step) * X)
    assert max(each.cache_info().misses for each in (*PIPELINES, tripled)) == 1


def test_a_closure_is_called_in_each_run() -> None:
    """One that captures a number that changes, or opens a branch on values of the host, gives what it gives now."""
    clear()
    for number in (1.0, 2.0, 3.0, 2.0):
        op: Op = on_host(X, 2.0).map(partial(np.multiply, np.float32(number)))
        op = op.then(lambda y: on_host(y, -1.0) if y[1] > 3 else value(y))
        np.testing.assert_array_equal(op.sync(), 2 * number * X * (-1 if 2 * number > 3 else 1))
    told: list[float] = []
    op = on_host(X, 2.0).inspect(lambda y: told.append(float(y[1])))
    op.sync()
    op.sync()
    assert told == [2.0, 2.0]


def test_parts_and_functions_read_sources_at_one_instant() -> None:
    """A source that is set between two parts of a run: all of the run has the value of before."""
    number = source(1.0)

    def sets(y: Any) -> Any:
        setter = threading.Thread(target=number.set, args=(float(y[1]) + 10,))
        setter.start()
        setter.join()
        return y

    op = zip_ops(on_host(X, number).map(sets).then(lambda y: zip_ops(value(y), on_host(X, number))), number)
    for expected in (1.0, 11.0, 21.0):
        (before, after), read = op.sync()
        np.testing.assert_array_equal(before, expected * X)
        np.testing.assert_array_equal(after, expected * X)
        assert read == expected


def test_what_shared_remembers_depends_on_the_sources_of_its_parts() -> None:
    """It is made again once the source of a call has changed, and once for each change."""
    number, made = source(2.0), list[float]()
    op = on_host(X, number).map(lambda y: noted(made, lambda y: float(y[1]), y)).shared()
    for expected in (2.0, 3.0, 3.0, 4.0):
        number.set(expected)
        np.testing.assert_array_equal(op.sync(), expected * X)
        np.testing.assert_array_equal(op.map(double).sync(), 2 * expected * X)
    assert made == [2.0, 3.0, 4.0]


def test_a_part_that_needs_a_value_of_the_whole() -> None:
    """A pipeline closes over a `shared()` op that the run of the whole is making: the value is made once."""
    made: list[int] = []
    whole: Op = on_host(X, 2.0).map(lambda y: noted(made, lambda _: 1, y)).shared()

    @pipeline
    def closes_over_it(x: Any) -> Op:
        return zip_ops(from_host(x).to_host(), whole)

    for op in (zip_ops(whole.map(lambda y: y), closes_over_it(X).map(lambda p: p[1])), whole):
        found = op.sync()
        np.testing.assert_array_equal(found[0] if isinstance(found, tuple) else found, 2 * X)
    assert made == [1]


def test_a_failure_gives_the_error_of_the_function_and_the_next_run_works() -> None:
    """The error has its note; handles that have moved into a call stay moved only if the call has run."""

    def fails(_: Any) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        on_host(X, 2.0).map(fails).sync()
    assert any("the closure of .map" in note for note in caught.value.__notes__)
    np.testing.assert_array_equal(on_host(X, 2.0).map(double).sync(), 4 * X)


def test_one_run_makes_a_shared_value_for_many_threads() -> None:
    """The function and the call run once, whoever comes first."""
    made: list[int] = []
    op = on_host(X, 2.0).map(lambda y: noted(made, lambda _: 1, y)).shared()
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(op.map(double).sync())) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 6
    assert made == [1]


def test_a_loop_of_calls_keeps_only_what_it_needs() -> None:
    """A tensor that one call has made and the next one has taken is freed during the run."""
    alive: list[weakref.ref[Any]] = []

    @pipeline
    def step(t: Any) -> Op:
        return scaled(t, 2.0)

    def again(t: Any, left: int) -> Op:
        alive.append(weakref.ref(memory_of(t)))
        return step(t).then(lambda y: again(y, left - 1)) if left else value(t)

    op: Op = ones((2,)).then(lambda t: again(t, 6)).map(lambda t: (t, sum(each() is not None for each in alive)))
    tensor, living = op.sync()
    assert tensor.to_host().sync().tolist() == [64, 64]
    assert living <= 2


def memory_of(handle: Any) -> Any:
    return live_state(handle).storage


@pytest.mark.parametrize("kind", ["run", "fold", "every"])
def test_calls_in_flows_find_their_plans(kind: str) -> None:
    """The ops of a flow's function are composed anew for each item."""
    clear()

    async def main() -> list[Any]:
        numbers = flow([1.0, 2.0, 3.0, 4.0])
        described: Any = {
            "run": lambda: numbers.run(lambda a: on_host(X, a).map(lambda y: float(y[1])), in_flight=2),
            "every": lambda: zip_flows(every(0.001), numbers).run(
                lambda p: on_host(X, p[1]).host_map(lambda y: float(y[1]))
            ),
            "fold": lambda: numbers.fold(
                value(0.0), lambda s, a: on_host(X, a).map(lambda y: (s + float(y[1]), float(y[1])))
            ),
        }[kind]()
        async with described as feed:
            return [x async for x in feed]

    assert trio.run(main) == [1.0, 2.0, 3.0, 4.0]
    assert traces() <= 2
    assert hits() >= 2


# ---- plans of several pipelines


def test_a_plan_of_two_pipelines_lives_as_long_as_both() -> None:
    """What the second one closes over is freed with it, and its plans with that; `cache_clear()` of either removes the
    plan."""
    held = ones((4,)).shared().sync()

    def second() -> Any:
        mine = held.clone()

        @pipeline
        def closes_over_it(x: Any) -> Op:
            return zip_ops(from_host(x).to_host(), value(mine.clone()).to_host())

        return closes_over_it

    other = second()
    freed = weakref.ref(other)
    clear()
    for _ in range(3):
        zip_ops(other(X), on_host(X, 2.0)).sync()
    assert on_host.cache_info()[:2] == (2, 1)
    assert other.cache_info()[:2] == (2, 1)
    other.cache_clear()
    assert on_host.cache_info().currsize == 0
    zip_ops(other(X), on_host(X, 2.0)).sync()
    assert on_host.cache_info().misses == 2
    assert on_host.cache_info().currsize == 1
    del other
    gc.collect()
    assert freed() is None
    on_host(X, 2.0).sync()
    assert on_host.cache_info().currsize == 1  # that of the call alone


def test_a_pipeline_forgets_plans_that_are_gone() -> None:
    """A pipeline that is composed with one made anew in each step, and with constants that push each other out of a
    cache, knows only the plans that there are."""

    @pipeline(cache_size=2)
    def small(x: Any, a: Any) -> Op:
        return scaled(from_host(x), a.stop).to_host()

    for step in range(20):

        @pipeline
        def once(x: Any) -> Op:
            return scaled(from_host(x), 3.0).to_host()

        for op in (zip_ops(on_host(X, 2.0), once(X)), zip_ops(once(X), on_host(X, 2.0))):
            assert sorted([float(each[1]) for each in op.sync()]) == [2, 3]
        zip_ops(small(X, slice(float(step))), on_host(X, 2.0)).sync()
        gc.collect()
        assert len(on_host.plans.elsewhere) <= 6


def test_what_shared_remembers_depends_on_its_own_part_alone() -> None:
    """Of two calls that run together, the source of one does not make the value of the other again."""
    one, other = source(1.0), source(2.0)
    made: list[str] = []
    left = on_host(X, one).map(lambda y: noted(made, lambda _: "left", y)).shared()
    right = on_host(X, other).map(lambda y: noted(made, lambda _: "right", y)).shared()
    op = zip_ops(left, right)
    for change in (None, one, other, None):
        if change is not None:
            change.set(change.get() + 10)
        found = op.sync()
        np.testing.assert_array_equal(found[0], one.get() * X)
        np.testing.assert_array_equal(found[1], other.get() * X)
    assert sorted(made) == ["left", "left", "right", "right"]
