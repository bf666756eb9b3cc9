"""Random ops of kernels that declare what a tile sees, random writes to their sources, and a model of the tiles that
must run: by elements, and with no arithmetic but that of NumPy's slices."""

from math import prod
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from dagpu import cutoff, from_host, source, zip_ops
from dagpu.ops.source_op import Source
from dagpu.reactive.carried_dirt import sight_of
from dagpu.testing import CopyHtoD, Launch, Tiles, View
from tests.behaviour.live.live_trials import Trial, same
from tests.behaviour.tiles.tile_kernels import (
    TILES,
    N,
    Op,
    folded,
    gained,
    joined,
    multiplied,
    negated,
    smoothed,
    turned,
)

KINDS = ("join", "smooth", "turn", "product", "negate", "gain", "fold")


class TileRecipe(NamedTuple):
    """A random op over sources of tensors and arrays, and one number."""

    arrays: tuple[bool, ...]
    """For each source whether it holds an array of the host, and not a tensor."""
    steps: tuple[tuple[str, int, int, int], ...]
    """For each op its kind, which earlier values it uses, and its tile."""
    on_device: bool
    """True if the results stay on the device."""
    cutoffs: frozenset[int] = frozenset()
    """The steps behind which there is a cutoff."""


Write = tuple[int, tuple[slice, slice]]
"""Which source is written, and where."""


@st.composite
def tile_recipes(draw: st.DrawFn, most: int = 5, *, cutoffs: bool = False) -> TileRecipe:
    """Random recipes, the small ones first."""
    arrays = tuple(draw(st.lists(st.booleans(), min_size=1, max_size=2)))
    step = st.tuples(st.sampled_from(KINDS), st.integers(0, 9), st.integers(0, 9), st.integers(0, len(TILES) - 1))
    steps = tuple(draw(st.lists(step, min_size=1, max_size=most)))
    cut = draw(st.sets(st.integers(0, len(steps) - 1), max_size=2)) if cutoffs else ()
    return TileRecipe(arrays, steps, draw(st.booleans()), frozenset(cut))


@st.composite
def parts(draw: st.DrawFn) -> tuple[slice, slice]:
    """A part of the two axes, most often a small one."""
    found = []
    for _ in range(2):
        begin = draw(st.integers(0, N - 1))
        found.append(slice(begin, draw(st.integers(begin, min(begin + 3, N)))))
    return found[0], found[1]


writes = st.lists(st.lists(st.tuples(st.integers(0, 1), parts()), min_size=1, max_size=3), min_size=1, max_size=4)
"""The writes before each of a few updates."""


def trial_of(recipe: TileRecipe, memory: int | None = None) -> Trial:
    """The trial of a recipe, over new sources, the last of which is a number."""
    number = source(0.5)
    inputs: list[Any] = []
    for index, on_host in enumerate(recipe.arrays):
        array = np.arange(N * N, dtype=np.float32).reshape(N, N) % (7 + index)
        inputs.append(source(array) if on_host else source(from_host(array).sync()))
    pool: list[Any] = [
        each.then(from_host).shared() if on_host else each for each, on_host in zip(inputs, recipe.arrays, strict=True)
    ]
    used: set[int] = set()

    def pick(index: int) -> Any:
        used.add(index % len(pool))
        return pool[index % len(pool)]

    for index, (kind, first, second, tile) in enumerate(recipe.steps):
        op = made(kind, pick(first), pick(second), number, TILES[tile])
        pool.append(cutoff(op) if index in recipe.cutoffs else op.shared())
    ends = [each if recipe.on_device else each.to_host() for index, each in enumerate(pool) if index not in used]
    return Trial(zip_ops(*ends), [*inputs, number], memory)


def made(kind: str, a: Any, b: Any, number: Any, tile: tuple[int, int]) -> Op:
    """One op of a recipe."""
    match kind:
        case "join":
            return joined(a, b, number, tile)
        case "smooth":
            return smoothed(a, tile)
        case "turn":
            return turned(a, tile)
        case "product":
            return multiplied(a, b, tile)
        case "negate":
            return negated(a, tile)
        case "gain":
            return gained(a, b, tile=tile)
        case _:
            return folded(a, tile)


def write(trial: Trial, written: list[Write], step: int) -> dict[int, list[tuple[slice, slice]]]:
    """Write other numbers to parts of sources; return the parts by source."""
    found: dict[int, list[tuple[slice, slice]]] = {}
    inputs = trial.sources[:-1]
    for number, (which, at) in enumerate(written):
        target: Source[Any] = inputs[which % len(inputs)]
        shape = tuple(part.stop - part.start for part in at)
        target.write(at, np.full(shape, step + 0.25 * number, np.float32))
        if prod(shape):
            found.setdefault(which % len(inputs), []).append(at)
    return found


def dirty_tiles(trial: Trial, written: dict[int, list[tuple[slice, slice]]]) -> dict[int, tuple[int, int]]:
    """The model: for each launch of a kernel that declares something how many tiles see a change, of how many.

    Dirt is kept for each element of each version of each buffer. A launch makes all elements of a tile dirty if one of
    those is that the tile sees.
    """
    (stage,) = trial.run._stages  # noqa: SLF001  # the analysis is not public
    staleness, live = stage.staleness, trial.run._live  # noqa: SLF001
    assert live is not None
    elements: dict[int, NDArray[np.bool_]] = {}  # by buffer, as the program has run so far
    for buffer, (made_input, _) in stage.leaves._live.items():  # noqa: SLF001
        index = next(n for n, each in enumerate(trial.sources) if each is made_input.source)
        if index < len(trial.sources) - 1:
            mask = elements[buffer] = np.zeros((N, N), np.bool_)
            for at in written.get(index, ()):
                mask[at] = True
    clean = np.zeros((N, N), np.bool_)
    found: dict[int, tuple[int, int]] = {}
    for index, instruction in enumerate(staleness.program.instructions):
        made_dirty = np.zeros((N, N), np.bool_)
        if isinstance(instruction, CopyHtoD):
            made_dirty = elements.get(instruction.source.buffer, clean)
        elif isinstance(instruction, Launch):
            (tiles,) = [each for each in instruction.args if type(each) is Tiles]
            count = 0
            for number in np.ndindex(tiles.grid):
                steps = zip(number, tiles.tile, strict=True)
                where = tuple(slice(i * step, min((i + 1) * step, N)) for i, step in steps)
                if any(
                    elements.get(buffer, clean)[seen_part(instruction, position, where)].any()
                    for position, buffer in buffers_of(instruction)
                ):
                    made_dirty[where] = True
                    count += 1
            if instruction.kernel.sees is not None:
                found[index] = count, prod(tiles.grid)
        for buffer in instruction.writes:
            elements[buffer] = made_dirty
    return found


def buffers_of(launch: Launch) -> list[tuple[int, int]]:
    """The buffers that a launch reads, with the positions of the arguments; what it adds to is read too."""
    found = []
    for position, argument in enumerate(launch.args):
        if type(argument) is View:
            found.append((position, argument.buffer))
        elif type(argument) is Tiles and launch.kernel.name == "gain":
            found.append((position, argument.view.buffer))
    return found


def seen_part(launch: Launch, position: int, at: tuple[slice, ...]) -> tuple[slice, ...]:
    """The part of an argument that a tile sees."""
    sight = sight_of(launch, position)
    if sight is None:
        return (slice(None), slice(None))
    parts_seen = []
    for part in sight.axes:
        if part is None:
            parts_seen.append(slice(None))
        else:
            axis, before, after = part
            parts_seen.append(slice(max(at[axis].start - before, 0), at[axis].stop + after))
    return tuple(parts_seen)


def on_host(value: Any) -> tuple[Any, ...]:
    """The arrays of a value of a trial."""
    return tuple([each if isinstance(each, np.ndarray) else each.clone().to_host().sync() for each in value])


def check(trial: Trial) -> Any:
    """Update, hold the value against a run from scratch, bit for bit, and return it."""
    value = trial.update()
    got, wanted = on_host(value), on_host(trial.op.sync())
    assert same(got, wanted), (got, wanted)
    return value
