"""What one consumer changes in place, no other value shows: containers are fresh for each hand-out."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import Flow, cutoff, flow, observe, ones, source, spawn, use_device, value, zip_ops
from tests.programs.expressions import Op
from tests.simulated.cuda import installed


def as_list(x: Any) -> Any:
    return [x, 0]


def as_dict(x: Any) -> Any:
    return {"x": [x]}


def as_set(x: Any) -> Any:
    return {x, -1}


def as_bytes(x: Any) -> Any:
    return bytearray([x % 256])


def as_nested(x: Any) -> Any:
    return (1, [x, {"in": {x}}, bytearray(b"a")])


MAKERS: Final = (as_list, as_dict, as_set, as_bytes, as_nested)


def spoil(x: Any) -> None:
    """Change every container in a value in place."""
    if isinstance(x, list | tuple):
        for item in x:
            spoil(item)
    if isinstance(x, dict):
        for item in x.values():
            spoil(item)
        x["spoilt"] = True
    elif isinstance(x, list | bytearray):
        x.append(99)
    elif isinstance(x, set):
        x.add(99)


def spoiling(x: Any) -> Any:
    """A function that changes what it is given, and returns how it looks then."""
    spoil(x)
    return repr(x)


@pytest.mark.parametrize("kept", [lambda op: op, cutoff, lambda op: op.shared()])
@pytest.mark.parametrize("make", MAKERS)
def test_a_consumer_of_a_feed_has_its_own(make: Callable[[Any], Any], kept: Callable[[Op], Op]) -> None:
    """A part that did not change is handed out again as it was made, whatever a consumer did to the value before."""

    async def main() -> None:
        a, b = source(1), source(0)
        async with observe(zip_ops(kept(a.map(make)), b), check=True) as feed:
            for n in range(4):
                b.set(n)
                found = await feed.next()
                assert found == (make(1), n)
                spoil(found)

    trio.run(main)


@pytest.mark.parametrize("on_the_host", [False, True])
@pytest.mark.parametrize("make", MAKERS)
def test_a_closure_of_a_feed_has_its_own(make: Callable[[Any], Any], on_the_host: bool) -> None:
    """A closure that changes what it is given gets it fresh in each update, as in a run from scratch."""

    def changed(op: Op) -> Op:
        return op.host_map(spoiling) if on_the_host else op.map(spoiling)

    async def main() -> None:
        a, b = source(1), source(0)
        op = changed(zip_ops(a.map(make), b))
        async with observe(op, check=True) as feed:
            for n in range(4):
                b.set(n)
                assert await feed.next() == spoiling((make(1), n))

    trio.run(main)


@pytest.mark.parametrize("machine", ["host", "simulated"])
def test_results_of_host_map_are_kept_as_they_were_made(machine: str) -> None:
    """Between updates, beside work of a device: the consumer's changes do not reach what the feed keeps."""

    def listed(x: Any) -> Any:
        return [float(x[0]), set()]

    async def main() -> None:
        a, b = source(1), source(0)
        made = ones((4,)).to_host().host_map(listed).shared()
        async with observe(zip_ops(made, a.host_map(as_list), made.map(spoiling), b), check=True) as feed:
            for n in range(4):
                b.set(n)
                found: Any = await feed.next()
                assert found == ([1.0, set()], [1, 0], spoiling([1.0, set()]), n)
                spoil(found)

    with installed(seed=3) if machine == "simulated" else use_device("host"):
        trio.run(main)


programs = st.recursive(
    st.sampled_from(["a", "b"]),
    lambda inner: st.one_of(
        st.tuples(st.just("map"), st.sampled_from([*MAKERS, spoiling]), inner),
        st.tuples(st.just("cutoff"), inner),
        st.tuples(st.just("zip"), inner, inner),
        st.tuples(st.just("twice"), inner),
    ),
    max_leaves=5,
)


def built(e: Any, sources: dict[str, Op]) -> Op:
    match e:
        case str():
            return sources[e]
        case "map", f, inner:
            return built(inner, sources).map(lambda x: f(len(repr(x)) if f in (as_bytes, as_set, as_nested) else x))
        case "cutoff", inner:
            return cutoff(built(inner, sources))
        case "twice", inner:
            both = built(inner, sources).shared()
            return zip_ops(both, both)
        case _:
            return zip_ops(built(e[1], sources), built(e[2], sources))


@settings(max_examples=60, deadline=None)
@given(programs, st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3)), max_size=6))
def test_a_value_is_that_of_a_run_from_scratch(e: Any, changes: list[tuple[str, int]]) -> None:
    """For any program of host values, with closures and consumers that change all that they get."""

    async def main() -> None:
        sources: dict[str, Any] = {name: source(0) for name in "ab"}
        op = built(("zip", e, "b"), sources)
        async with observe(op) as feed:
            spoil(await feed.next())
            for name, number in changes:
                before = sources[name].revision
                sources[name].set(number)
                if sources[name].revision != before and (name == "b" or "'a'" in repr(e)):
                    expected = await op
                    found = await feed.next()
                    assert repr(found) == repr(expected)
                    spoil(found)

    trio.run(main)


def test_each_task_that_awaits_a_pending_has_its_own() -> None:
    """Lists, dicts, sets and bytearrays, as NumPy arrays are read-only."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            pending = spawn(nursery, value(1).map(as_nested))
            for _ in range(3):
                found = await pending
                assert found == as_nested(1)
                spoil(found)

    trio.run(main)


def test_each_consumer_of_a_shared_op_has_its_own() -> None:
    """In one run, and in the next."""
    op = value(1).map(as_nested).shared()
    for _ in range(3):
        one, other = zip_ops(op, op).sync()
        spoil(one)
        assert other == as_nested(1)


def test_a_value_in_several_windows_is_unwritable() -> None:
    """Arrays are read-only and containers are fresh, where windows overlap; else each value has one consumer."""

    async def main() -> None:
        values: list[list[Any]] = [[n, np.zeros(1)] for n in range(4)]
        async with flow(values).window(2) as feed:
            async for window in feed:
                assert [len(each) for each in window] == [2, 2]
                assert not window[0][1].flags.writeable
                spoil(window)
        async with flow(values).window(2, 2) as feed:
            async for window in feed:
                assert window[0][1].flags.writeable

    trio.run(main)


def test_the_state_of_a_fold_is_not_its_output() -> None:
    """An op may put one list into both: a consumer's change of the output does not reach the next step."""
    empty: Any = value(0).map(lambda _: [])

    def both(seen: Any, x: int) -> Any:
        return value(None).map(lambda _: [[*seen, x]] * 2).map(tuple)

    async def main() -> None:
        numbers: Flow[Any] = flow(range(3)).fold(empty, both)
        async with numbers as feed:
            for n in range(3):
                found = await feed.next()
                assert found == list(range(n + 1))
                found.append(99)

    trio.run(main)


@pytest.mark.parametrize("make", MAKERS)
def test_each_run_of_a_value_hands_out_its_own(make: Callable[[Any], Any]) -> None:
    """The object that the op was made of is nobody's result, and two parts of one result are apart."""
    held = make(1)
    op = value(held)
    for _ in range(3):
        found = op.sync()
        assert found == make(1)
        spoil(found)
    assert held == make(1)
    one, other = zip_ops(op, op).sync()
    spoil(one)
    assert other == make(1)
