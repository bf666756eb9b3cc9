"""Several feeds over common nodes: random ops of kernels in tiles, cutoffs and closures, and a model of their sources
that gives the value of a run from scratch for any earlier state."""

from typing import Any, Final, NamedTuple, final

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from dagpu import (
    Here,
    In,
    Out,
    StreamInterpreter,
    Tile,
    batch,
    cutoff,
    f32,
    from_host,
    kernel,
    source,
    use_device,
    zip_ops,
)
from dagpu.common.critical import Section
from dagpu.common.places import here
from dagpu.ops.versions import Snapshot
from dagpu.reactive.incremental import IncrementalRun
from dagpu.reactive.shared_work import SharedWork
from dagpu.runtime.waits import BlockingWaits, Waits, drive
from tests.behaviour.live.live_trials import same
from tests.behaviour.tiles.tile_kernels import TILES, N, Op, out
from tests.behaviour.tiles.tile_trials import KINDS, made, on_host, parts

State = tuple[tuple[NDArray[np.float32], ...], float]
"""The values of all sources at one instant."""

SIZE: Final = N * N * 4
"""The bytes of one tensor."""


@final
class Fuse:
    """Lets the kernel `fragile` raise on the host after some tiles; below 0, never."""

    left = -1


@kernel(
    cuda="__global__ void fragile(Tile<float, 2> y, View<const float, 2> x) { for (auto i : y) y[i] = x[i] + 1.0f; }",
    sees={"x": Here()},
)
def fragile(y: Out[f32], x: In[f32]) -> None: ...


@fragile.host
def _(y: Tile[f32], x: NDArray[f32]) -> None:
    if Fuse.left >= 0:
        Fuse.left -= 1
        if Fuse.left < 0:
            raise ZeroDivisionError("the fuse has burned down")
    y[...] = x[y.at] + f32(1)


@kernel(
    cuda="__global__ void coarse(Tile<float, 2> y, View<const float, 2> x) {"
    " for (auto i : y) y[i] = floorf(x[i] / 4.0f); }",
    sees={"x": Here()},
)
def coarse(y: Out[f32], x: In[f32]) -> None: ...


@coarse.host
def _(y: Tile[f32], x: NDArray[f32]) -> None:
    y[...] = np.floor(x[y.at] / f32(4))


class MixedRecipe(NamedTuple):
    """Random nodes over sources of arrays and tensors, and one number."""

    arrays: tuple[bool, ...]
    """For each source whether it holds an array of the host, and not a tensor."""
    steps: tuple[tuple[str, int, int, int], ...]
    """For each node its kind, which earlier nodes it uses, and its tile."""
    cutoffs: frozenset[int]
    """The nodes that are cutoffs. The others are `shared()`."""


class Ends(NamedTuple):
    """The op of a feed: the nodes that it gives, counted from the last one, and whether on the host."""

    which: tuple[int, ...]
    host: bool


@st.composite
def mixed_recipes(draw: st.DrawFn) -> MixedRecipe:
    """Random recipes, the small ones first."""
    kinds = st.sampled_from((*KINDS, "fragile", "coarse", "branch", "stages"))
    step = st.tuples(kinds, st.integers(0, 9), st.integers(0, 9), st.integers(0, len(TILES) - 1))
    arrays = draw(st.lists(st.booleans(), min_size=1, max_size=2))
    steps = draw(st.lists(step, min_size=1, max_size=6))
    cut = draw(st.sets(st.integers(0, len(steps) - 1), max_size=2))
    return MixedRecipe(tuple(arrays), tuple(steps), frozenset(cut))


ends = st.builds(Ends, st.lists(st.integers(0, 7), min_size=1, max_size=3).map(tuple), st.booleans())
written = st.tuples(st.integers(0, 1), parts(), st.integers(0, 20))
budgets = st.sampled_from((None, None, None, 3 * SIZE, 5 * SIZE, 8 * SIZE))

sets = (
    st.tuples(st.just("write"), st.lists(written, min_size=1, max_size=3), st.booleans()),
    st.tuples(st.just("write"), st.lists(written, min_size=1, max_size=1), st.just(False)),
    st.tuples(st.just("number"), st.sampled_from((0.5, 1.0, 2.0, 3.5, 4.0, 6.5)), st.none()),
    st.tuples(st.just("set"), st.integers(0, 1), st.integers(0, 20)),
)
"""Actions that change sources."""


def nodes_over(recipe: MixedRecipe, inputs: list[Any], number: Any) -> list[Op]:
    """The nodes of a recipe over these sources."""
    pool: list[Any] = [
        each.then(from_host).shared() if on_host else each for each, on_host in zip(inputs, recipe.arrays, strict=True)
    ]
    rounded = cutoff(number.map(lambda x: float(x // 2)))
    for index, (kind, first, second, tile) in enumerate(recipe.steps):
        op = _node(kind, pool[first % len(pool)], pool[second % len(pool)], number, rounded, TILES[tile])
        pool.append(cutoff(op) if index in recipe.cutoffs else op.shared())
    return pool


def _node(kind: str, a: Any, b: Any, number: Any, rounded: Any, tile: tuple[int, int]) -> Op:
    """One node of a recipe."""
    op: Op
    match kind:
        case "fragile":
            op = fragile(out(tile), a).first().unpartition()
        case "coarse":
            op = coarse(out(tile), a).first().unpartition()
        case "branch":
            op = rounded.then(lambda x: made("join" if x % 2 else "smooth", a, b, 0.25, tile))
        case "stages":
            op = a.to_host().then(lambda x: made("join", from_host(x * 2).shared(), b, 0.125, tile))
        case _:
            op = made(kind, a, b, rounded if kind == "join" else number, tile)
    return op


def op_of(pool: list[Op], wanted: Ends) -> Op:
    """The op of a feed over these nodes."""
    chosen = [pool[-1 - index % len(pool)] for index in wanted.which]
    return zip_ops(*[each.to_host() if wanted.host else each for each in chosen])


def _sources(arrays: Any, recipe: MixedRecipe) -> list[Any]:
    """Sources of these arrays."""
    return [
        source(each) if on_host else source(from_host(each).sync())
        for each, on_host in zip(arrays, recipe.arrays, strict=True)
    ]


@final
class World:
    """The sources of a recipe, its nodes, and the model of the sources."""

    def __init__(self, recipe: MixedRecipe) -> None:
        self.recipe = recipe
        self._now = [
            np.arange(N * N, dtype=np.float32).reshape(N, N) % np.float32(7 + i) for i in range(len(recipe.arrays))
        ]
        self._number = source(0.5)
        self._inputs = _sources(self._now, recipe)
        self.pool = nodes_over(recipe, self._inputs, self._number)
        self.states = [self.state()]
        """All states of the sources that a run may have seen, in order."""

    def state(self) -> State:
        """The newest values of all sources."""
        return tuple([each.copy() for each in self._now]), self._number.get()

    def from_scratch(self, state: State, wanted: Ends) -> tuple[Any, ...]:
        """The value of an op with these values of the sources, computed with other nodes on the host."""
        with use_device("host:0"):
            pool = nodes_over(self.recipe, _sources(state[0], self.recipe), source(state[1]))
            return on_host(op_of(pool, wanted._replace(host=True)).sync())

    def change(self, name: str, what: Any, more: Any, tensor: Any = None) -> None:
        """Do one of the actions of `sets`. `tensor` is what a source of a tensor is set to, if it is made already."""
        if name == "number":
            self._number.set(what)
        elif name == "set":
            index = what % len(self._inputs)
            self._now[index] = new = np.full((N, N), more, np.float32)
            self._inputs[index].set(new if self.recipe.arrays[index] else tensor or from_host(new).sync())
        elif more:
            with batch():
                for each in what:
                    self._write(*each)
        else:
            for each in what:
                self._write(*each)
                self.states.append(self.state())
        self.states.append(self.state())

    def _write(self, which: int, at: tuple[slice, slice], to: int) -> None:
        index = which % len(self._inputs)
        data = np.full([each.stop - each.start for each in at], to, np.float32)
        self._inputs[index].write(at, data)
        self._now[index] = self._now[index].copy()
        self._now[index][at] = data


@final
class OpenFeed:
    """A feed that shares with others, and updates when it is told to, for the present or for an earlier instant."""

    def __init__(self, world: World, wanted: Ends, memory: int | None) -> None:
        self._world, self._wanted = world, wanted
        self._shared = SharedWork(op_of(world.pool, wanted))
        settings = StreamInterpreter(verify=True).settings()
        self.run = IncrementalRun(op_of(world.pool, wanted), settings, memory, here(), self._shared)
        self._instant: tuple[Snapshot, State] | None = None

    def begin(self) -> None:
        """Let the next update be for this instant."""
        if self._instant is None:
            self._instant = Snapshot(), self._world.state()

    def update(self, waits: Waits | None = None) -> tuple[Any, tuple[Any, ...]]:
        """Update, hold the value against a run from scratch, bit for bit, and return both."""
        snapshot, state = self._instant or (Snapshot(), self._world.state())
        with Section("an update was run"):
            value = drive(self.run.update(snapshot, BlockingWaits() if waits is None else waits))
        self._instant = None
        wanted = self._world.from_scratch(state, self._wanted)
        assert same(on_host(value), wanted), (on_host(value), wanted)
        return value, wanted

    def close(self) -> None:
        """Share with other feeds no more."""
        self._shared.close()
