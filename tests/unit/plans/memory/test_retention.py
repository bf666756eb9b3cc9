"""States of a search for recomputation: what they hold, moves that are undone, and how near they come to the bound."""

from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.support.taped_steps import SHAPES, least_work
from dagpu import CostModel
from dagpu.plans.fitting import depth_first
from dagpu.plans.plan import ALIGNMENT
from dagpu.plans.policies import SingleStream, reordered
from dagpu.plans.program import Program, Role
from dagpu.plans.recomputing import Recomputation
from dagpu.plans.retention import Retention, Values
from tests.programs.taped import taped_program

COSTS = CostModel()


def alive(made: Program) -> int:
    """The most bytes of temporaries that are alive at once in the order of a program, by the definition."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for at, each in enumerate(made.instructions):
        for buffer in (*each.reads, *each.writes):
            first.setdefault(buffer, at)
            last[buffer] = at
    sizes = [-(-each.nbytes // ALIGNMENT) * ALIGNMENT for each in made.buffers]
    own = [buffer for buffer in first if made.buffers[buffer].role is Role.TEMPORARY]
    return max(sum([sizes[b] for b in own if first[b] <= at <= last[b]]) for at in range(len(made.instructions)))


@settings(max_examples=5)
@given(st.integers(0, 1 << 16), st.integers(6, 24))
def test_a_state_holds_and_takes_what_its_program_does(seed: int, depth: int) -> None:
    """Its peak is what is alive at once in its program, its work the sum of the times of that."""
    source = taped_program(seed, depth, SingleStream())
    search = Recomputation(source, COSTS.times(source))
    for state in search.states:
        made = search.program(state)
        assert state.peak == alive(made)
        assert state.work == pytest.approx(sum(COSTS.times(made)))
        assert state.again == len(made.instructions) - len(source.instructions)


def _values(source: Program) -> Values:
    sizes = [each.nbytes if each.role is Role.TEMPORARY else 0 for each in source.buffers]
    reads = [tuple([b for b in dict.fromkeys(each.reads) if sizes[b]]) for each in source.instructions]
    writes = [tuple([b for b in each.writes if sizes[b]]) for each in source.instructions]
    nothing = [0] * len(reads)
    return Values(reads, writes, sizes, [size > 0 for size in sizes], nothing, COSTS.times(source))


def _all_of(state: Retention) -> Any:
    """What a state says of itself, as data that does not change with it."""
    spans = [[tuple(span) for span in each] for each in state.spans]
    return spans, [tuple(each) for each in state.uses], [tuple(each) for each in state.again], state.held().tolist()


def _moves(state: Retention, draw: Random, count: int) -> None:
    """Make some moves by chance."""
    for _ in range(count):
        gaps = [(value, *gap) for value in range(len(state.spans)) for gap in state.gaps(value)]
        split = [(value, at) for value, spans in enumerate(state.spans) for at in range(len(spans) - 1)]
        if gaps and (not split or draw.random() < 0.7):
            state.end(*draw.choice(gaps))
        elif split:
            state.keep(*draw.choice(split))


@settings(max_examples=25)
@given(st.integers(0, 1 << 16), st.integers(6, 20), st.integers(0, 1 << 16))
def test_moves_are_undone(seed: int, depth: int, chance: int) -> None:
    """Trials within a trial are undone or accepted; when the outer one is undone, the state is what it was."""
    draw = Random(chance)
    state = Retention(_values(taped_program(seed, depth, SingleStream())))
    _moves(state, draw, 3)
    before, work = _all_of(state), state.work
    state.begin()
    _moves(state, draw, 2)
    for _ in range(3):
        now = _all_of(state)
        state.begin()
        _moves(state, draw, 3)
        if draw.random() < 0.5:
            state.accept()
        else:
            state.undo()
            assert _all_of(state) == now
    state.undo()
    assert _all_of(state) == before
    assert state.work == work


@settings(max_examples=25)
@given(st.integers(0, 1 << 16), st.integers(6, 20), st.integers(0, 1 << 16))
def test_whatever_the_moves_what_is_used_is_there(seed: int, depth: int, chance: int) -> None:
    """Each value that a stage reads has a span there, which begins where the value is made; the spans of a value do not
    overlap; nothing is made again that nothing uses; and the work is the sum of what runs."""
    values = _values(taped_program(seed, depth, SingleStream()))
    state = Retention(values)
    _moves(state, Random(chance), 12)
    for value, spans in enumerate(state.spans):
        assert all(one[1] < other[0] for one, other in pairwise(spans))
        for number, (begin, end) in enumerate(spans):
            assert (begin == state.maker[value]) if number == 0 else (value in state.again[begin])
            assert number == 0 or any(begin <= use <= end for use in state.uses[value])
    for stage, again in enumerate(state.again):
        assert all(stage in [begin for begin, _ in state.spans[value][1:]] for value in again)
        for maker in (*[state.maker[value] for value in again], stage):
            for value in values.reads[maker]:
                begin, end = state.spans[value][state.span_at(value, stage)]
                assert begin <= stage <= end
    made = [state.maker[value] for again in state.again for value in again]
    assert state.work == pytest.approx(sum(values.times) + sum([values.times[at] for at in made]))


@pytest.mark.parametrize(
    ("name", "factors"),
    [
        ("U-Net of 24", {0.5: 1.3, 0.4: 1.4}),
        ("12 blocks", {0.5: 1.2, 0.33: 1.2, 0.15: 1.2}),
        ("16 transforms", {0.5: 1.2, 0.33: 1.2}),
    ],
)
def test_near_the_bound(name: str, factors: dict[float, float]) -> None:
    """What is made again takes little more than what no schedule within these bytes is below."""
    source, costs = SHAPES[name]().program()
    times = costs.times(source)
    search = Recomputation(source, times)
    for share, factor in factors.items():
        limit = int(share * search.states[0].peak)
        state = next(state for state in search.states if state.peak <= limit)
        assert 0 < state.work - sum(times) <= factor * (least_work(source, times, limit) - sum(times))


def test_an_order_that_makes_values_late_is_searched() -> None:
    """All transforms are made before the first one is read, which no recomputation can mend; the depth-first order
    makes each when it is read."""
    source, costs = SHAPES["16 transforms"]().program()
    order = depth_first(source)
    assert order != list(range(len(order)))
    search = Recomputation(source, costs.times(source))
    made = search.program(search.states[0])
    assert made.instructions == reordered(source, order).instructions
