"""Feeds that share nodes and run in tiles, at the same time in tasks of their own: the value of each is that of a run
from scratch at an instant of its call, and nothing writes it later."""

from typing import Any, Final, final

import numpy as np
import pytest
import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dagpu import Feed, Flow, from_host, observe, source
from tests.behaviour.live.live_trials import MACHINES, explored, machine, same
from tests.behaviour.tiles.mixed_feeds import Ends, MixedRecipe, World, ends, mixed_recipes, op_of, sets
from tests.behaviour.tiles.tile_kernels import N, negated, smoothed
from tests.support.gates import PATIENCE

feed = st.integers(0, 2)
actions = st.one_of(
    *sets[:-1],
    st.tuples(st.just("next"), feed, st.none()),
    st.tuples(st.just("next"), feed, st.none()),
    st.tuples(st.just("plain"), ends, st.none()),
    st.tuples(st.just("turns"), st.integers(1, 12), st.none()),
    st.tuples(st.just("turns"), st.integers(1, 60), st.none()),
    st.tuples(st.just("cancel"), feed, st.none()),
    st.tuples(st.just("close"), feed, st.none()),
)


async def arrays_of(values: Any) -> tuple[Any, ...]:
    """The arrays of a value."""
    return tuple([each if isinstance(each, np.ndarray) else await each.clone().to_host() for each in values])


@final
class Crowd:
    """A world whose feeds and plain runs are tasks. Each value is noted with the states that it may be of."""

    def __init__(self, recipe: MixedRecipe) -> None:
        self.world = World(recipe)
        self.found: list[tuple[Ends, int, int, Any, tuple[Any, ...]]] = []

    @property
    def newest(self) -> int:
        return len(self.world.states) - 1

    async def note(self, wanted: Ends, since: int, value: Any) -> None:
        """Note a value of one of the states from `since` on."""
        until = self.newest
        self.found.append((wanted, since, until, value, await arrays_of(value)))

    async def run_plain(self, wanted: Ends) -> None:
        """Run an op that no feed observes."""
        since = self.newest
        await self.note(wanted, since, await op_of(self.world.pool, wanted))

    async def check(self) -> None:
        """Hold each value against what it was when it was handed out."""
        for *_, value, was in self.found:
            assert same(await arrays_of(value), was)

    def check_states(self) -> None:
        """Hold each value against runs from scratch."""
        world = self.world
        for wanted, since, until, _, was in self.found:
            assert any(same(was, world.from_scratch(world.states[at], wanted)) for at in range(until, since - 1, -1))


@final
class Member:
    """A feed in a task of its own."""

    def __init__(self, wanted: Ends) -> None:
        self.wanted = wanted
        self.asked = trio.Event()
        self.over = trio.CancelScope()
        self.call = trio.CancelScope()

    async def serve(self, crowd: Crowd) -> None:
        """Ask the feed for a value each time that this is asked."""
        flow: Flow[Any] = observe(op_of(crowd.world.pool, self.wanted))
        with self.over:
            async with flow as values:
                while True:
                    await self.asked.wait()
                    self.asked = trio.Event()
                    with trio.CancelScope() as self.call:
                        since = crowd.newest
                        value = await values.next()
                        await crowd.note(self.wanted, since, value)


async def act(crowd: Crowd, members: list[Member], nursery: trio.Nursery, action: Any) -> None:
    """Do one action."""
    name, what, more = action
    member = members[what % len(members) if type(what) is int else 0]
    match name:
        case "next":
            member.asked.set()
        case "turns":
            for _ in range(what):
                await trio.lowlevel.checkpoint()
        case "plain":
            nursery.start_soon(crowd.run_plain, what)
        case "cancel":
            member.call.cancel()
        case "close":
            member.over.cancel()
        case _:
            crowd.world.change(name, what, more)


JOIN: Final = ("join", 0, 0, 0)


@pytest.mark.parametrize("kind", MACHINES)
@settings(max_examples=25)
@example(  # a cutoff of the third stage, whose tensor an earlier stage has made of what a closure was given
    recipe=MixedRecipe((False,), (JOIN, JOIN, ("stages", 0, 0, 0), JOIN, JOIN, ("stages", 0, 3, 0)), frozenset({0, 5})),
    opened=[Ends((0,), False), Ends((0,), False)],
    steps=[
        ("number", 0.5, None),
        ("next", 2, None),
        ("write", [(0, (slice(0, 0), slice(0, 2)), 0)], False),
        ("cancel", 0, None),
        ("number", 0.5, None),
        ("number", 1.0, None),
    ],
    seed=0,
)
@given(
    recipe=mixed_recipes(),
    opened=st.lists(ends, min_size=2, max_size=3),
    steps=st.lists(actions, min_size=6, max_size=24),
    seed=st.integers(0, 9),
)
def test_each_value_is_that_of_an_instant_of_its_call(
    kind: str, recipe: MixedRecipe, opened: list[Ends], steps: list[Any], seed: int
) -> None:
    """Also where feeds wait for each other, are cancelled or closed, and sources are written while they run; a feed
    that is opened at the end has the newest value."""

    async def main() -> None:
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                members = [Member(wanted) for wanted in opened]
                for member in members:
                    nursery.start_soon(member.serve, crowd)
                for action in [*steps, ("turns", 40, None)]:
                    await act(crowd, members, nursery, action)
                nursery.cancel_scope.cancel()
            await crowd.check()
            async with observe(op_of(crowd.world.pool, opened[0])) as last:
                await crowd.note(opened[0], crowd.newest, await last.next())

    with machine(kind, seed):
        with explored(kind, seed):
            crowd = Crowd(recipe)
        with explored(kind, seed):
            trio.run(main)
    crowd.check_states()


@pytest.mark.host_only("kernels' host bodies")
def test_feeds_that_share_go_on_in_tiles() -> None:
    """A feed runs the tiles that see a write, alone and beside another feed that opens later and shares its node."""
    held = source(from_host(np.zeros((N, N), np.float32)).sync())
    common = negated(held).shared()

    async def write_and_ask(feed: Feed[Any], step: int) -> None:
        held.write((slice(0, 2), slice(0, 2)), np.full((2, 2), step, np.float32))
        assert (await feed.next()).tobytes() == (await smoothed(common).to_host()).tobytes()

    async def main() -> None:
        async with observe(smoothed(common).to_host()) as first:
            await first.next()
            for step in range(1, 3):
                await write_and_ask(first, step)
            assert "ran tiles: Launch negate 1 of 9, Launch smooth 4 of 9 tiles" in first.explain()
            async with observe(common) as second:
                await second.next()
                for step in range(3, 6):
                    await write_and_ask(first, step)
                    await second.next()
                assert "ran tiles: Launch negate 1 of 9, Launch smooth 4 of 9 tiles" in first.explain()

    trio.run(main)
