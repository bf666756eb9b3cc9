"""Trials of feeds: a program, changes of its sources, and all that is right about the values and about what runs."""

import random
from collections import Counter
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack, ExitStack
from typing import Any, Final, NamedTuple, final

import numpy as np
import trio
from numpy.typing import NDArray

from dagpu import batch, from_host, observe, source
from tests.programs.feeds.counted_functions import RUNS, N, Op, PlannedError
from tests.programs.feeds.feed_model import Cell, ModelFeed, Node, Update, bits, from_scratch, run
from tests.programs.feeds.feed_recipes import SEVERAL, Recipe, Turn, assemble
from tests.programs.feeds.model_builder import MOST_RUNS, ModelBuilder
from tests.programs.feeds.op_builder import OpBuilder
from tests.support.gates import PATIENCE

UPDATES: Final = Counter[str]()
"""The updates that were tried, and how they went."""

Runs = Counter[str]


def array_of(value: int) -> NDArray[np.float32]:
    """An array of this value: another one for each value, but for one in eight, of which the signs are others."""
    chance = random.Random(value % 56)
    return np.array([chance.randint(-16, 16) / 4 for _ in range(N)], np.float32)


def number_of(value: int) -> float:
    """A number of this value."""
    return (value % 24 - 11) / 4


@final
class Model:
    """The model of a program: cells, and a feed for each root."""

    def __init__(self, recipe: Recipe, roots: tuple[int, ...] = (0, 1)) -> None:
        self.arrays = recipe.arrays
        self.cells = [Cell(array_of(number)) for number in range(recipe.arrays)]
        self.cells += [Cell(number_of(number + 13)) for number in range(recipe.numbers)]
        cells = self.cells
        built = assemble(recipe, ModelBuilder(), cells[: recipe.arrays], cells[recipe.arrays :])
        self.roots: list[Node] = built
        self.feeds = {root: ModelFeed(built[root]) for root in roots}


CLOSURES: Final = ("closure", "inner")
"""What the names of closures that build ops begin with."""


def maybe_run(recipe: Recipe) -> set[str]:
    """The functions that one of two feeds need not run, because of the other one: a kernel in a tuple, which that one
    has run for a part that it did not need; and what is not `shared()`, of which both may take one value."""
    found = set[str]()
    for at, step in enumerate(recipe.steps):
        if step.kind == "unzip" or not step.shared:
            found |= {f"{what} {at}" for what in ("kernel", "map", "host", *CLOSURES)}
            found.add(f"kernel {at + 100}")
    return found


CAPTURED: Final = {"chosen": (0, 1), "late": (0,), "nested": (0, 2)}
"""Which of the parts that a step takes only its closure refers to. A feed observes them once it has called that."""


@final
class _Part:
    """A part of a recipe, for `run_once`."""

    def __init__(self, below: "list[_Part]", names: AbstractSet[str] = frozenset()) -> None:
        self.names: frozenset[str] = frozenset(names).union(*[part.names for part in below])
        """The functions below it."""
        self.shared: frozenset[_Part] = frozenset().union(*[part.shared for part in below])
        """The parts that are `shared()` below it, or that it is itself."""


@final
class _PartsBuilder:
    """Makes parts. `several` has the steps whose outputs are all `shared()` and used by both feeds."""

    def __init__(self, several: AbstractSet[int]) -> None:
        self._several = several

    def array(self, source: object) -> _Part:
        return _Part([])

    def shared(self, part: _Part) -> _Part:
        made = _Part([part])
        made.shared |= {made}
        return made

    def root(self, tensors: list[_Part], numbers: list[_Part]) -> _Part:
        return _Part([*tensors, *numbers])

    def step(self, number: int, kind: str, parts: list[_Part]) -> list[_Part]:
        names = {f"{what} {number}" for what in ("kernel", "map", "host", *CLOSURES)} | {f"kernel {number + 100}"}
        whole = _Part(parts, names)
        visible = [part for at, part in enumerate(parts) if at not in CAPTURED.get(kind, ())]
        whole.shared = _Part(visible).shared
        if kind not in SEVERAL:
            return [whole]
        if number not in self._several:  # each feed may use another output, or one that is not shared
            whole.names = frozenset()
        return [whole, whole]


def run_once(recipe: Recipe) -> frozenset[str]:
    """The functions below a `shared()` op that both feeds observe: what one feed has run for a snapshot the other one
    does not run. An op that only closures refer to is observed too late, and a component of `unzip()` may be made
    before its `shared()` op is met."""
    same = recipe.ends[0] == recipe.ends[1]
    several = {at for at, step in enumerate(recipe.steps) if same and step.shared and step.kind != "unzip"}
    sources = [_Part([]) for _ in range(recipe.arrays + recipe.numbers)]
    one, other = assemble(recipe, _PartsBuilder(several), sources[: recipe.arrays], sources[recipe.arrays :])
    return _Part(list(one.shared & other.shared)).names


@final
class FeedTrial:
    """A program as ops, and its models: one of both feeds together, and one of each alone.

    What depends on the change runs, and nothing else. Two feeds together run what feeds run that share what is
    `shared()`; what is not below such an op that both observe, they may run as feeds that share nothing.
    """

    def __init__(self, recipe: Recipe, feeds: int, place: str = "host") -> None:
        self.recipe = recipe
        self.place = place
        self.both = Model(recipe, tuple(range(feeds)))
        self.alone = [Model(recipe, (each,)) for each in range(feeds)]
        self.sources: list[Any] = [source(cell.content) for cell in self.both.cells]
        self.tensor = recipe.arrays - 1 if recipe.arrays > 1 else None
        """The source of a tensor."""
        self.most = {f"kernel {at}": MOST_RUNS.get(step.kind, 1) for at, step in enumerate(recipe.steps)}
        self.maybe = maybe_run(recipe) if feeds > 1 else set[str]()
        self.once = run_once(recipe) if feeds > 1 else frozenset[str]()
        """The functions that one feed does not run if the other one has."""
        self.times = 8 if place == "explore" else 1
        """How often one launch calls a body: in explored orders it is tried in several ways."""

    async def build(self) -> list[Op]:
        """The roots as ops."""
        if self.tensor is not None:
            self.sources[self.tensor] = source(await from_host(self.both.cells[self.tensor].content))
        return self.built(self.sources)

    def built(self, sources: list[Any]) -> list[Op]:
        """The roots as ops over these sources."""
        return assemble(self.recipe, OpBuilder(), sources[: self.recipe.arrays], sources[self.recipe.arrays :])

    # ---- changes

    async def change(self, turn: Turn) -> None:
        """Change the sources of the ops and of all models."""
        made: dict[int, Any] = {}
        with ExitStack() as stack:
            if turn.together:
                stack.enter_context(batch())
            for drawn, value in turn.changes:
                at = drawn % len(self.sources)
                made[at] = await self._set(at, value, made.get(at, self.both.cells[at].content))
                if not turn.together:
                    self._set_cells(made)
        self._set_cells(made)

    def _set_cells(self, made: dict[int, Any]) -> None:
        for at, content in made.items():
            for model in (self.both, *self.alone):
                model.cells[at].set(content)
        made.clear()

    async def _set(self, at: int, value: int, before: Any) -> Any:
        """Set a source, or write a part of its array, and return what it has then."""
        given = self.sources[at]
        if at >= self.recipe.arrays:
            given.set(number_of(value))
            return number_of(value)
        if value % 3:
            given.set(await from_host(array_of(value)) if at == self.tensor else array_of(value))
            return array_of(value)
        part = (slice(value % N, value % N + 2),)
        content = before.copy()
        content[part] = array_of(value)[part]
        given.write((slice(value % N, min(value % N + 2, N)),), content[part])
        return content

    # ---- what is right

    def check_value(self, which: int, value: Any) -> None:
        """Hold a value against NumPy's."""
        wanted = from_scratch(self.both.roots[which])
        assert bits(tuple(value)) == bits(tuple(wanted)), (which, value, wanted)

    async def check_scratch(self) -> None:
        """Hold NumPy's values against a run of new ops over new sources."""
        for which in self.both.feeds:
            sources: list[Any] = [source(cell.content) for cell in self.both.cells]
            self.check_value(which, await self.built(sources)[which])
        RUNS.take()

    def check_runs(self, ran: Runs, due: "_Due", earlier: Runs | None = None) -> None:
        """Hold what has run against the model of feeds that share what is `shared()`, and of those that share nothing.
        `earlier` has what an attempt has run that failed; without it, this attempt has."""
        least, apart, once = _least(due.shared), _most(due.alone), _most(due.shared)
        # Two feeds at once may each call a closure before its op can be shared, and each make what the other one has
        # made and given up, when it had to wait for another part.
        shares = len(due.shared) == 1
        for name in ran.keys() | least.keys():
            times = self.most.get(name, 1) * (self.times if name.startswith("kernel") else 1)
            upper = once[name] if shares and name in self.once else apart[name]
            lower = 0 if earlier is None or name in self.maybe | due.maybe else least[name] - earlier[name]
            assert lower <= ran[name] <= upper * times, (
                f"{name} ran {ran[name]} times, and {lower} to {upper} are right"
            )
        if len(self.alone) > 1:  # what has run too early for one feed may serve the other
            self.maybe |= {name for name in ran if ran[name] > least[name]}

    def ask_models(self, which: tuple[int, ...]) -> "_Due":
        """Ask these feeds of both kinds of model."""
        due = _Due([], [], set())
        for each in which:
            due = due.behind(self.preview(each))
            self.both.feeds[each].next()
            self.alone[each].feeds[each].next()
        return due

    def preview(self, which: int) -> "_Due":
        """What a feed is to do next."""
        shared = self.both.feeds[which].preview()
        return _Due([shared], [self.alone[which].feeds[which].preview()], shared.kept_by(self.both.feeds.values()))


class _Due(NamedTuple):
    """What feeds are to do."""

    shared: list[Update]
    """The updates of feeds that share what is `shared()`."""
    alone: list[Update]
    """Those of feeds that share nothing."""
    maybe: AbstractSet[str]
    """The functions that need not run: a feed keeps their values, or has called them with the same contents."""

    def behind(self, further: "_Due") -> "_Due":
        """What the feeds are to do if one is asked after the others."""
        return _Due(self.shared + further.shared, self.alone + further.alone, self.maybe | further.maybe)


def _least(updates: list[Update]) -> Runs:
    """How often each function runs in these updates."""
    least = Runs()
    for update in updates:
        least += update.ran
    return least


def _most(updates: list[Update]) -> Runs:
    """How often each function may run in these updates."""
    most = _least(updates)
    for update in updates:
        most += Runs({name: 1 for name in update.again if not update.ran[name]})
    return most


async def try_feeds(recipe: Recipe, steps: list[Turn], feeds: int, place: str = "host") -> None:
    """Ask the feeds of a recipe behind changes, and check each value, and what has run for it."""
    trial = FeedTrial(recipe, feeds, place)
    ops = await trial.build()
    RUNS.take()
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(observe(op)) for op in ops[:feeds]]
        first = Turn((), False, tuple(range(feeds)), None)
        for turn in (first, *steps):
            await trial.change(turn)
            asks = (0, 1) if turn.asks == (2,) else turn.asks
            due = tuple([each for each in asks if each < feeds and trial.both.feeds[each].due])
            trouble = turn.trouble
            if turn.asks == (2,) and trouble is None:
                await _ask(trial, opened, due)
                continue
            for each in due:
                before = None
                if trouble is not None:
                    before, trouble = await _trouble(trial, opened, each, trouble), None
                    if before is None:
                        continue
                await _ask(trial, opened, (each,), before)
        await trial.check_scratch()


class _Attempt(NamedTuple):
    """What an update has done that failed or was cancelled."""

    ran: Runs
    left: AbstractSet[str] | None
    """The functions that may run when it is made again; None for any."""


async def _ask(trial: FeedTrial, opened: list[Any], which: tuple[int, ...], before: _Attempt | None = None) -> None:
    """Ask feeds, at once if there are two, also behind an attempt."""
    values: dict[int, Any] = {}

    async def ask(each: int) -> None:
        values[each] = await opened[each].next()

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            for each in which:
                nursery.start_soon(ask, each)
    ran = RUNS.take()
    due = trial.ask_models(which)
    UPDATES["updates"] += len(which)
    for each in which:
        trial.check_value(each, values[each])
    trial.check_runs(ran, due, Runs() if before is None else before.ran)
    if before is not None and before.left is not None:
        again = ran.keys() - before.left
        assert not again, f"{sorted(again)} had been completed before the update failed"


async def _trouble(trial: FeedTrial, opened: list[Any], which: int, trouble: tuple[str, int]) -> _Attempt | None:
    """Let an update fail, or cancel it. Return what it has done; None if it has handed out its value all the same."""
    kind, at = trouble
    due = trial.preview(which)
    (alone,) = due.alone
    fails = trial.place != "simulated" or kind == "cancel in"  # a simulated GPU takes no body that raises
    names = sorted(each for each in alone.ran if fails or not each.startswith("kernel"))
    failing = set[str]()
    scope = trio.CancelScope()
    if kind == "cancel":
        scope.cancel()
    elif names:
        failing = {names[at % len(names)]}
        RUNS.failing = names[at % len(names)]
        if kind == "cancel in":
            token = trio.lowlevel.current_trio_token()
            RUNS.on_failing = lambda: token.run_sync_soon(scope.cancel)
    value = None
    try:
        with trio.fail_after(PATIENCE), scope:
            value = await opened[which].next()
    except PlannedError:
        UPDATES["failed"] += 1
    ran = RUNS.take()
    if value is None:
        UPDATES["cancelled"] += kind != "fail"
        trial.check_runs(ran, due)
        return _Attempt(ran, alone.left_by(ran.keys() - failing) if kind == "fail" else None)
    trial.ask_models((which,))
    UPDATES["updates"] += 1
    trial.check_value(which, value)
    trial.check_runs(ran, due, Runs())
    return None


async def try_runs(recipe: Recipe, steps: list[Turn]) -> None:
    """Run both roots of a recipe behind changes, and check each value, and what has run for it."""
    trial = FeedTrial(recipe, 2)
    ops = await trial.build()
    RUNS.take()
    for turn in (Turn((), False, (0,), None), *steps):
        await trial.change(turn)
        for which in (0, 1):
            with trio.fail_after(PATIENCE):
                value = await ops[which]
            ran = RUNS.take()
            update = run(trial.both.roots[which])
            trial.check_value(which, value)
            trial.check_runs(ran, _Due([update], [update], set()), Runs())
            UPDATES["runs"] += 1
