"""Feeds that share nodes and run in tiles, one after another: with writes, plain runs, closed feeds, failures and
cancellations in between, each value is that of a run from scratch, and nothing writes it later."""

from contextlib import nullcontext, suppress
from typing import Any, Final, final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import DagpuError, PlanError
from dagpu.ops.single_flight import Once
from dagpu.runtime.waits import BlockingWaits, Pace
from dagpu.testing import Run
from tests.behaviour.live.live_trials import MACHINES, explored, machine, same
from tests.behaviour.tiles.mixed_feeds import (
    Ends,
    Fuse,
    MixedRecipe,
    OpenFeed,
    World,
    budgets,
    ends,
    mixed_recipes,
    op_of,
    sets,
)
from tests.behaviour.tiles.tile_trials import on_host
from tests.simulated.cuda import installed

CALLS: Final = ("cuLaunchKernelEx", "cuMemAlloc", "cuGraphLaunch", "cuGraphInstantiate", "cuMemHostAlloc")
"""The calls of the driver that fail."""

feed = st.integers(0, 2)
actions = st.one_of(
    *sets,
    st.tuples(st.just("update"), feed, st.booleans()),
    st.tuples(st.just("update all"), st.none(), st.none()),
    st.tuples(st.just("open"), ends, budgets),
    st.tuples(st.just("close"), feed, st.none()),
    st.tuples(st.just("plain"), ends, st.none()),
    st.tuples(st.just("fail"), feed, st.integers(0, 12)),
    st.tuples(st.just("refuse"), st.sampled_from(CALLS), st.integers(0, 4)),
    st.tuples(st.just("cancel"), feed, st.integers(0, 8)),
    st.tuples(st.just("begin"), feed, st.none()),
    st.tuples(st.just("drop"), st.integers(0, 5), st.none()),
)


class Cancelled(Exception):
    """Raised by a run that `CancellingWaits` ends."""


@final
class CancellingWaits:
    """Blocks the thread, and cancels the run at the nth occasion."""

    polls_at_submit = False

    def __init__(self, left: int) -> None:
        self._left = left
        self._waits = BlockingWaits()

    def must_end(self) -> bool:
        self._left -= 1
        return self._left < 0

    def pause_is_due(self) -> bool:
        return True

    async def pause(self) -> None:
        if self.must_end():
            raise Cancelled

    async def raise_reason(self) -> None:
        raise Cancelled

    async def wait_for_run(self, run: Run, spin: float, pace: Pace | None = None) -> None:
        if self.must_end():
            run.cancel()
            await self.drain_run(run)
            raise Cancelled
        await self._waits.wait_for_run(run, spin, pace)

    async def run_slow_work(self, work: Any) -> None:
        work()

    async def drain_run(self, run: Run) -> None:
        await self._waits.drain_run(run)

    async def wait_for_any(self, onces: list[Once]) -> None:
        await self._waits.wait_for_any(onces)

    async def finish_run(self, waited: bool) -> None:
        return


@final
class Session:
    """The open feeds over one world, and all values that were handed out and are held."""

    def __init__(self, recipe: MixedRecipe, found: Any) -> None:
        self.world = World(recipe)
        self.feeds: list[OpenFeed] = []
        self.held: list[tuple[Any, Any]] = []
        self._gpu = None if found is None else found.gpus[0]

    def check_held(self) -> None:
        """Hold each value that was handed out against what it was."""
        for value, wanted in self.held:
            assert same(on_host(value), wanted), (on_host(value), wanted)

    def act(self, name: str, what: Any, more: Any) -> None:
        """Do one action, if there is a feed for it."""
        chosen = self.feeds[what % len(self.feeds) if type(what) is int else 0] if self.feeds else None
        match name:
            case "write" | "set" | "number":
                self.world.change(name, what, more)
            case "plain":
                value, wanted = op_of(self.world.pool, what).sync(), self.world.from_scratch(self.world.state(), what)
                assert same(on_host(value), wanted), (on_host(value), wanted)
                self.held.append((value, wanted))
            case "open" if len(self.feeds) < 3:
                self._open(what, more)
            case "update all":
                self.held += [each.update() for each in self.feeds]
            case "drop" if self.held:
                del self.held[what % len(self.held)]
            case _ if chosen is not None:
                self._act_on(chosen, name, what, more)
            case _:
                pass

    def _open(self, wanted: Ends, memory: int | None) -> None:
        if any(step[0] == "branch" for step in self.world.recipe.steps):
            memory = None  # the results of what a closure builds next may not fit
        opened = OpenFeed(self.world, wanted, memory)
        try:
            self.held.append(opened.update())
        except PlanError:
            opened.close()
            assert memory is not None
        else:
            self.feeds.append(opened)

    def _act_on(self, chosen: OpenFeed, name: str, what: Any, more: Any) -> None:
        match name:
            case "update":
                found = chosen.update()
                if more:
                    self.held.append(found)
            case "cancel":
                with suppress(Cancelled):
                    self.held.append(chosen.update(CancellingWaits(more)))
            case "fail" if self._gpu is None:
                Fuse.left = more
                try:
                    self.held.append(chosen.update())
                except* (ZeroDivisionError, DagpuError):
                    pass  # the body's failure, the injected one, or both in ops that do not depend on each other
                finally:
                    Fuse.left = -1
            case "refuse" if self._gpu is not None:
                self._gpu.fail(what, 2 if "Alloc" in what else 1, more + 1)
                with suppress(DagpuError):
                    self.held.append(chosen.update())
                self._gpu.heal()
            case "begin":
                chosen.begin()
            case "close":
                chosen.close()
                self.feeds.remove(chosen)
            case _:
                pass


@pytest.mark.parametrize("kind", MACHINES)
@settings(max_examples=30)
@given(
    recipe=mixed_recipes(),
    opened=st.lists(st.tuples(st.just("open"), ends, budgets), min_size=1, max_size=2),
    steps=st.lists(actions, min_size=3, max_size=14),
    seed=st.integers(0, 9),
)
def test_each_feed_has_the_value_of_its_instant(
    kind: str, recipe: MixedRecipe, opened: list[Any], steps: list[Any], seed: int
) -> None:
    """Whatever was done before, and after each failure as well; all values that were handed out stay as they were."""
    with installed(seed, gpus=1) if kind == "simulated" else machine(kind, seed) as found:
        with explored(kind, seed):
            session = Session(recipe, found)
        try:
            for number, (name, what, more) in enumerate([*opened, *steps, *[("update all", None, None)] * 2]):
                fault = more % 7 if name == "fail" else None
                failing = suppress(DagpuError) if name == "fail" else nullcontext()
                with failing, explored(kind, seed * 31 + number, fault):
                    session.act(name, what, more)
                with explored(kind, seed):
                    session.check_held()
        finally:
            for each in session.feeds:
                each.close()
