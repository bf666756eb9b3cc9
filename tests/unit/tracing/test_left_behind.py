"""Stand-ins that outlive their trace, in caches, globals and results: to every other trace they are plain values."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import lru_cache
from random import Random
from typing import Any, Final, final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import DeviceOp, Pipeline, empty, from_host, full, pipeline, rand, use_device, value, zeros, zip_ops
from dagpu.handles.symbolic import SymbolicArray, SymbolicNumber
from dagpu.testing import plans
from tests.programs.arithmetic import scale
from tests.simulated.cuda import installed

Op = DeviceOp[Any, Any, Any]
Place = Callable[[], AbstractContextManager[object]]
S = (1, 1)
PLACES: Final[dict[str, Place]] = {
    "host": lambda: use_device("host"),
    "explore": lambda: use_device("explore:0"),
    "cuda": lambda: installed(seed=3),
}
in_each_place = pytest.mark.parametrize("where", PLACES)
pytestmark = pytest.mark.filterwarnings("ignore:.*is traced again in each run")
"""The pipeline `leaks` has no plan, and says so once, in whichever test calls it often enough."""


@pytest.fixture(autouse=True)
def no_plans_yet() -> Iterator[None]:
    """Plans of earlier tests are not found here."""
    plans.clear()
    yield
    plans.clear()


@final
class Box:
    """An object of a class of the user's, into which dagpu does not look."""

    def __init__(self, held: Any) -> None:
        self.held = held


def scaled(by: Any) -> Op:
    """A matrix of one element, which is the number `by`."""
    return scale(empty(S).partition(S), by, full(S, 1)).first().unpartition().to_host()


# ---- helpers that keep what they were given


class Caches:
    """Pure helpers, each of which gives its argument back and keeps it for a later call with an equal one."""

    def __init__(self) -> None:
        self.by_function = lru_cache(maxsize=None)(lambda a: (a, a))
        self.boxes = lru_cache(maxsize=None)(Box)
        self.table: dict[Any, Any] = {}
        self.listed: list[Any] = []

    def lru(self, a: Any) -> Any:
        return self.by_function(a)[0]

    def in_an_object(self, a: Any) -> Any:
        return self.boxes(a).held

    def by_number(self, a: Any) -> Any:
        return self.table.setdefault(a, a)

    def by_text(self, a: Any) -> Any:
        return self.table.setdefault(str(a), a)

    def by_comparison(self, a: Any) -> Any:
        for kept in self.listed:
            if kept == a:
                return kept
        self.listed.append(a)
        return a

    def not_at_all(self, a: Any) -> Any:
        return a


HELPERS: Final = [name for name in vars(Caches) if not name.startswith("_")]
ARGUMENTS: Final = 3
numbers = st.sampled_from([0, 1, 2, 3, 0.5, 1.0, 2.0, 3.5])
orders = st.permutations(range(ARGUMENTS))
programs = st.lists(
    st.tuples(orders, st.lists(st.sampled_from(HELPERS), min_size=3, max_size=3)), min_size=1, max_size=2
)
calls = st.lists(
    st.tuples(st.integers(0, 1), st.tuples(*[st.tuples(numbers, st.booleans())] * ARGUMENTS)), min_size=2, max_size=8
)


@in_each_place
@settings(max_examples=25)
@given(programs, calls)
def test_pipelines_with_cached_helpers_give_what_fresh_traces_give(where: str, programs: Any, calls: Any) -> None:
    """Pipelines whose pure helpers keep stand-ins, with the parameters in any order, compute with the call's own
    numbers, also where a stand-in that an earlier trace has left behind is passed for one."""
    caches = Caches()
    left_behind: list[Any] = []

    def built(order: tuple[int, ...], helpers: list[str]) -> Pipeline[..., Any]:
        def f(*arguments: Any) -> Op:
            left_behind.extend(arguments)
            named = [arguments[place] for place in order]
            kept = [getattr(caches, helper)(number) for helper, number in zip(helpers, named, strict=True)]
            return zip_ops(*map(scaled, kept))

        return pipeline(f)

    pipelines = [built(*program) for program in programs]
    with PLACES[where]():
        for number_drawn, drawn in calls:
            which = number_drawn % len(pipelines)
            passed = [number for number, _ in drawn]
            stale = {standin.number: standin for standin in left_behind if type(standin) is SymbolicNumber}
            given = [stale.get(number, number) if left else number for number, left in drawn]
            found = [array.item() for array in pipelines[which](*given).sync()]
            assert found == [passed[place] for place in programs[which][0]]


# ---- what leaves a run


@pipeline
def leaks(x: Any, a: Any) -> Op:
    """Its result has the arguments in objects, sets, and containers that dagpu looks into."""
    op: Op = zip_ops(value(Box(a)), value({a: (a, frozenset((a, (a,))))}), value([x, {"x": x}]), scaled(a))
    return op


def leaked(a: Any = 2.0) -> Any:
    """A stand-in that its trace has left behind."""
    number = leaks(np.ones(S, np.float32), a).sync()[0].held
    assert type(number) is SymbolicNumber
    return number


def types_in(x: Any) -> set[type[Any]]:
    """The types of all that is in a result."""
    if type(x) is dict:
        return types_in((tuple(x), tuple(x.values())))
    if type(x) in (tuple, list, set, frozenset):
        return set().union(*map(types_in, x))
    return {type(x)}


@in_each_place
def test_a_result_has_no_stand_ins_in_containers(where: str) -> None:
    """Tuples, lists, sets, and dicts with their keys have the arguments themselves, however they came into them."""
    x = np.ones(S, np.float32)

    @pipeline
    def by_a_host_function(x: Any, a: Any) -> Op:
        return scaled(a).host_map(lambda _: ({a}, {a: [a]}, frozenset((a, frozenset((a, 1))))))

    with PLACES[where]():
        for _ in range(3):
            _, found, arrays, _ = leaks(x, 2.0).sync()
            assert found == {2.0: (2.0, {2.0, (2.0,)})}
            assert arrays[0] is arrays[1]["x"] is x
            assert {SymbolicNumber, SymbolicArray}.isdisjoint(types_in((found, arrays)))
            kept = by_a_host_function(x, 2.0).sync()
            assert kept == ({2.0}, {2.0: [2.0]}, {2.0, frozenset((2.0, 1))})
            assert types_in(kept) == {float, int}


LEFT: dict[str, Callable[[Any], Op]] = {
    "a kernel's number": scaled,
    "a number that an op gives": lambda a: scaled(value(a)),
    "a value": value,
    "a value in a tuple": lambda a: value((a, 1)),
    "what fills a tensor": lambda a: full(S, a).to_host(),
    "an extent": lambda a: zeros((a, a)).to_host(),
    "a seed": lambda a: rand(S, seed=a).to_host(),
    "in a host function": lambda a: value(1).host_map(lambda one: one + a),
    "in a closure": lambda a: value(1).then(lambda _: scaled(a)),
}


@pytest.mark.filterwarnings("ignore:.*is traced again in each run")
@in_each_place
@pytest.mark.parametrize("name", LEFT)
def test_a_stand_in_that_was_left_behind_is_its_number(where: str, name: str) -> None:
    """Outside a trace, in another pipeline's trace, and as its argument, ops get the number, on every run."""

    @pipeline
    def closing(b: Any) -> Op:
        return zip_ops(LEFT[name](standin), scaled(b))

    @pipeline
    def taking(b: Any, a: Any) -> Op:
        return zip_ops(LEFT[name](a), scaled(b))

    with PLACES[where]():
        standin = leaked(2)
        wanted = LEFT[name](2).sync()
        op = LEFT[name](standin)
        found = [op.sync(), op.sync(), *(LEFT[name](standin).sync() for _ in range(3))]
        for b in (5, 7, 9):
            for call in (closing(b), taking(b, standin), taking(b, 2)):
                one, other = call.sync()
                assert other.item() == b
                found.append(one)
        for one in found:
            np.testing.assert_array_equal(one, wanted)


@in_each_place
def test_ops_that_differ_in_a_number_left_behind_differ(where: str) -> None:
    """A plan that was made with a stand-in of another trace serves other numbers by their own values."""
    with PLACES[where]():
        for a in (2.0, 3.0, leaked(4.0), 5.0, leaked(6.0)):
            assert scaled(a).sync().item() == a
            assert scaled(a).sync().item() == a
        for seed in (2, leaked(3), 4, leaked(5)):
            assert rand(S, seed=seed).to_host().sync() == rand(S, seed=int(seed)).to_host().sync()


@in_each_place
def test_an_op_that_a_trace_has_left_behind_runs_by_itself(where: str) -> None:
    """An op that a pipeline's function has built and kept has the numbers of that call, whatever other calls have."""
    kept: list[Op] = []

    @pipeline
    def p(a: Any, b: Any) -> Op:
        kept.append(scaled(b))
        return scaled(a)

    with PLACES[where]():
        for numbers in ((2.0, 3.0), (4.0, 5.0)):
            p(*numbers).sync()
        (op,) = kept
        assert [op.sync().item(), scaled(7.0).sync().item(), op.sync().item()] == [3.0, 7.0, 3.0]

        @pipeline
        def q(a: Any) -> Op:
            return zip_ops(scaled(a), op)

        assert [[x.item() for x in q(a).sync()] for a in (8.0, 9.0)] == [[8.0, 3.0], [9.0, 3.0]]


@in_each_place
def test_an_array_that_was_left_behind_is_that_array(where: str) -> None:
    """The stand-in of an array that another trace has left behind never stands for an array of this one."""
    kept: list[Any] = []

    @pipeline
    def first(x: Any) -> Op:
        kept.append(x)
        return from_host(x).to_host()

    @pipeline
    def second(x: Any) -> Op:
        return zip_ops(from_host(kept[0]).to_host(), from_host(x).to_host())

    one, two, three = (np.full(S, number, np.float32) for number in (1, 2, 3))
    with PLACES[where]():
        first(one).sync()
        assert issubclass(type(kept[0]), SymbolicArray)
        assert [[x.item() for x in second(y).sync()] for y in (two, three)] == [[1, 2], [1, 3]]
        assert [x.item() for x in second(kept[0]).sync()] == [1, 1]
        assert from_host(kept[0]).to_host().sync().item() == 1
        one[...] = 4
        assert [x.item() for x in second(three).sync()] == [4, 3]


# ---- where a number of C is wanted


@pytest.mark.parametrize("seed", [-5, -1, 1 << 61, 1 << 70, -(1 << 80)])
def test_a_generator_of_pythons_does_not_take_the_hash_for_a_seed(seed: int) -> None:
    """`random.Random(a)` is refused where Python would take another seed than for the number; `int(a)` cures it."""

    @pipeline
    def as_it_is(a: Any) -> Op:
        return scaled(Random(a).random())

    @pipeline
    def cured(a: Any) -> Op:
        return scaled(Random(int(a)).random())

    with pytest.raises(TypeError, match=r"Write Random\(int\(a\)\)") as caught:
        as_it_is(seed).sync()
    assert f" at {__file__}:" in str(caught.value)
    for a in (seed, 3, seed):
        assert cured(a).sync().item() == np.float32(Random(a).random())


@pytest.mark.parametrize("seed", [0, 5, 1 << 40, 0.5, -2.5])
def test_a_generator_of_pythons_takes_the_other_seeds(seed: float) -> None:
    """If the hash is the seed that Python uses for the number itself, the result is that for the number."""

    @pipeline
    def p(a: Any) -> Op:
        return scaled(Random(a).random())

    for a in (seed, 3, seed):
        assert p(a).sync().item() == np.float32(Random(a).random())
