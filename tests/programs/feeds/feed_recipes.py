"""Random recipes of programs over sources, which a builder makes ops of, or nodes of the model."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, final

from hypothesis import strategies as st

Part: TypeAlias = Any
"""A part of a program, as its builder makes it: a tensor or a number that is there when the program runs."""

TENSORS: Final = (
    "halve", "blend", "flip", "soften", "add", "cutoff", "sign", "hosted", "hosted pair", "mapped", "constant",
    "closure", "pipeline", "handle", "chosen", "late", "nested",
)  # fmt: skip
"""The steps that make a tensor."""
SEVERAL: Final = ("split", "three", "unzip", "pipeline pair")
"""Those that make several."""
NUMBERS: Final = ("doubled", "rounded", "near", "summed", "total", "host number")
"""Those that make a number."""
ON_MESHES: Final = ("each",)
"""Those that need several devices."""


class Step(NamedTuple):
    """One step: it makes parts of earlier parts."""

    kind: str
    picks: tuple[int, int, int]
    """Which earlier parts it takes: these numbers, modulo the number of parts that there are."""
    shared: bool
    """True to make the result `shared()`. Else only one later step uses it, if it is a tensor."""


class Recipe(NamedTuple):
    """A program: sources, steps, and what the two roots have."""

    arrays: int
    """The number of sources of arrays, at least 1. The last of several is one of a tensor."""
    numbers: int
    """The number of sources of numbers, at least 1."""
    steps: tuple[Step, ...]
    ends: tuple[int, int]
    """For each root a set of the parts that no step uses, as bits; it has one at least."""


class Builder(Protocol):
    """Makes the parts of a program."""

    def array(self, source: Part) -> Part:
        """The tensor of a source."""
        ...

    def step(self, number: int, kind: str, parts: list[Part]) -> list[Part]:
        """What a step makes of tensors and numbers, which are as many as `TAKES` says."""
        ...

    def shared(self, part: Part) -> Part:
        """The part, remembered."""
        ...

    def root(self, tensors: list[Part], numbers: list[Part]) -> Part:
        """The arrays of these tensors, and these numbers."""
        ...


TAKES: Final[dict[str, tuple[int, int]]] = {
    "blend": (2, 1), "add": (2, 0), "hosted pair": (1, 1), "constant": (0, 0), "closure": (0, 0), "chosen": (2, 1),
    "late": (2, 0), "nested": (1, 2), "three": (2, 0), "unzip": (2, 0), "doubled": (0, 1), "rounded": (0, 1),
    "near": (0, 1), "summed": (0, 2), "host number": (0, 1),
}  # fmt: skip
"""How many tensors and numbers a step takes; one tensor if it is not here."""


@final
class _Pool:
    """The parts that steps may take."""

    def __init__(self, sources: list[Part]) -> None:
        self.parts = sources
        self.own = len(sources)
        """How many of them are sources."""
        self._shared = [True] * self.own
        self._used = [False] * self.own

    def add(self, part: Part, shared: bool) -> None:
        """Add what a step has made."""
        self.parts.append(part)
        self._shared.append(shared)
        self._used.append(False)

    def pick(self, index: int) -> Part:
        """Take a part. One that is not shared is taken once."""
        free = [at for at, shared in enumerate(self._shared) if shared or not self._used[at]]
        at = free[index % len(free)]
        self._used[at] = True
        return self.parts[at]

    @property
    def loose(self) -> list[int]:
        """The parts that nothing has taken; the last one that is shared, if there is no such part."""
        found = [at for at, used in enumerate(self._used) if not used and at >= self.own]
        return found or [at for at, shared in enumerate(self._shared) if shared][-1:]


def assemble(recipe: Recipe, builder: Builder, arrays: list[Any], numbers: list[Any]) -> list[Part]:
    """Build the two roots of a recipe over these sources."""
    tensors = _Pool([builder.array(each) for each in arrays])
    scalars = _Pool(list(numbers))
    for number, (kind, picks, shared) in enumerate(recipe.steps):
        count, reads = TAKES.get(kind, (1, 0))
        taken = [tensors.pick(index) for index in picks[:count]]
        given = [scalars.pick(index) for index in picks[3 - reads :]] if reads else []
        pool = scalars if kind in NUMBERS else tensors
        for made in builder.step(number, kind, [*taken, *given]):
            pool.add(builder.shared(made) if shared else made, shared)

    def root(ends: int) -> Part:
        found = [at for place, at in enumerate(tensors.loose) if ends >> place & 1] or tensors.loose[-1:]
        return builder.root(
            [tensors.parts[at] for at in found],
            [scalars.parts[at] for at in scalars.loose if at >= scalars.own] if ends >> 7 & 1 else [],
        )

    return [root(ends) for ends in recipe.ends]


@st.composite
def recipes(
    draw: st.DrawFn, *, most: int = 9, meshes: bool = False, all_shared: bool = False, without: Sequence[str] = ()
) -> Recipe:
    """Draw recipes of all steps but those `without`. With `all_shared` for plain runs: what a run makes of a tuple for
    a part that it does not need serves later runs, of which the model knows nothing."""
    several = [each for each in SEVERAL if each != "unzip" or not all_shared]
    every = (*TENSORS, *several, *several, *NUMBERS, *(ON_MESHES if meshes else ()))
    kinds = st.sampled_from([each for each in every if each not in without])
    at = st.integers(0, 40)
    step = st.builds(
        Step, kinds, st.tuples(at, at, at), st.just(True) if all_shared else st.sampled_from((True, True, False))
    )
    steps = draw(st.lists(step, min_size=2, max_size=most))
    ends = st.integers(0, 255)
    one = draw(ends)
    return Recipe(
        draw(st.integers(1, 3)), draw(st.integers(1, 2)), tuple(steps), (one, draw(st.one_of(st.just(one), ends)))
    )


class Turn(NamedTuple):
    """Changes, and which feeds are asked behind them."""

    changes: tuple[tuple[int, int], ...]
    """For each change the number of a source, and of a value."""
    together: bool
    """True for one `batch()`."""
    asks: tuple[int, ...]
    """The feeds that are asked, one after the other; 2 for both at once."""
    trouble: tuple[str, int] | None
    """What happens in the first of these updates, and in which of the functions."""


@st.composite
def turns(draw: st.DrawFn, *, most: int = 6, feeds: int = 1, troubles: bool = True) -> list[Turn]:
    """Draw changes of sources, and who asks."""
    change = st.tuples(st.integers(0, 4), st.integers(0, 63))
    who = st.sampled_from(((0,),) if feeds == 1 else ((0,), (1,), (0, 1), (1, 0), (2,)))
    trouble = st.tuples(st.sampled_from(("fail", "fail", "cancel", "cancel in")), st.integers(0, 30))
    maybe = st.one_of(st.none(), trouble) if troubles else st.none()
    turn = st.builds(Turn, st.lists(change, min_size=1, max_size=3).map(tuple), st.booleans(), who, maybe)
    return draw(st.lists(turn, min_size=2, max_size=most))
