"""Independent work overlaps, whatever is known of its cost: nothing, something wrong, or what it took before.

A plan is made with the costs that a policy knows, and simulated with the true ones. The bounds hold for every plan.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks.support.makespan_bound import lower_bound
from benchmarks.support.plan_times import simulate
from dagpu import CostModel, ListSchedule, RoundRobin, Spread, expr, f32, from_host, plan_of, zeros, zip_ops
from dagpu.plans.placing import place
from dagpu.plans.policies import SchedulingPolicy
from dagpu.testing import (
    HOST,
    Buffer,
    Cell,
    CopyHtoD,
    Execute,
    Instruction,
    Launch,
    Plan,
    Program,
    Role,
    View,
    Wait,
    contiguous_layout,
    schedule,
    verify,
)
from tests.programs.meshes import mesh
from tests.programs.plain_programs import fork_join, kernel, program, temporary, written

NAMES = "abcd"
KERNELS = [kernel(name) for name in NAMES]
KINDS = st.sampled_from(("host", "cuda"))
STREAMS = 4


def pieces(seed: int, uploads: float, joins: float, kind: str = "cuda") -> Program:
    """Return a random DAG of kernels of four kinds, on a device of a kind. A share `joins` of them reads results of
    others; a share `uploads` of the others is behind an upload of its own, of 4 KiB to 16 MiB."""
    draw = Random(seed)
    instructions: list[Instruction] = []
    buffers: list[Buffer] = []
    made: list[int] = []
    for _ in range(draw.randint(8, 60)):
        most = draw.choice((0, 1, 1, 1, 2)) if draw.random() < joins else 0
        reads = draw.sample(made[-10:], min(len(made[-10:]), most))
        if not reads and draw.random() < uploads:
            reads = [_upload(draw.choice((1 << 12, 1 << 20, 1 << 24)), instructions, buffers)]
        instructions.append(Launch(draw.choice(KERNELS), (), (1,), tuple(reads), (len(buffers),), 0, None))
        made.append(len(buffers))
        buffers.append(temporary(1 << 12))
    return program(instructions, buffers, kind=kind)


def _upload(nbytes: int, instructions: list[Instruction], buffers: list[Buffer]) -> int:
    """Add an upload, and return its buffer."""
    cell, made = len(buffers), len(buffers) + 1
    buffers += [Buffer(0, HOST, Role.INPUT), temporary(nbytes)]
    view = View(made, contiguous_layout((nbytes,), np.dtype(np.int8)))
    instructions.append(CopyHtoD(view, Cell(cell), (cell,), (made,), 0, None))
    return made


def by(source: Program, policy: SchedulingPolicy) -> Program:
    return replace(source, policies=(policy,), policy_of=(0,) * len(source.instructions))


def ratio(source: Program, known: CostModel, true: CostModel) -> float:
    """Return the true makespan of the plan that is made with what is known, as a multiple of the lower bound."""
    plan = schedule(by(source, ListSchedule(STREAMS, known)))
    verify(plan)
    return simulate(plan, true).makespan / lower_bound(source, true, STREAMS).seconds


def times(seed: int, wrong: float = 1.0, equal: bool = False) -> dict[str, float]:
    """Return seconds for each kind of kernel, from 1 us to 10 ms, each wrong by at most a factor either way."""
    draw, errors = Random(seed), Random(seed + 1)
    seconds = [10 ** draw.uniform(-6, -2) for _ in NAMES]
    found = dict.fromkeys(NAMES, seconds[0]) if equal else dict(zip(NAMES, seconds, strict=True))
    return {name: time * wrong ** errors.uniform(-1, 1) for name, time in found.items()}


KNOWN: dict[str, tuple[Callable[[int], dict[str, float]], bool, float]] = {
    "unknown, all alike": (lambda seed: {}, True, 2.0),
    "unknown": (lambda seed: {}, False, 3.25),
    "wrong by up to four times": (lambda seed: times(seed, wrong=4.0), False, 2.75),
    "learnt": (times, False, 1.75),
}
"""What is known of the kernels, whether all take the same time, and the most times the bound that a plan may take.
Graham's factor for four streams is 1.75. Of what takes unknown and unequal times, long kernels may meet on one stream.
When the bytes of an unknown kernel were believed, the first two were up to 3.05 and 3.58, on a host 3.64 and 3.88."""


@settings(max_examples=60)
@given(st.integers(0, 1 << 16), st.floats(0, 1), st.floats(0, 1), KINDS, st.sampled_from(sorted(KNOWN)))
def test_a_plan_keeps_its_bound_under_the_true_costs(
    seed: int, uploads: float, joins: float, kind: str, how: str
) -> None:
    """Over random DAGs, with kernels of which nothing is known, something wrong, or what they took. On a host, uploads
    are work of the streams, too."""
    known, alike, most = KNOWN[how]
    true = CostModel().declare(times(seed, equal=alike))
    assert ratio(pieces(seed, uploads, joins, kind), CostModel().declare(known(seed)), true) <= most


@pytest.mark.parametrize("kind", ["host", "cuda"])
def test_what_is_unknown_costs_a_sixth_at_most_on_average(kind: str) -> None:
    """Over forty random DAGs, with kernels that take equal and unknown times, plans are near the bound in the mean. A
    plan for a host that believes the bytes of such kernels is 1.4 times as long."""
    found: list[float] = []
    for seed in range(40):
        draw = Random(seed)
        true = CostModel().declare(times(seed, equal=True))
        found.append(ratio(pieces(seed, draw.random(), draw.random(), kind), CostModel(), true))
    assert sum(found) / len(found) <= 7 / 6


@pytest.mark.parametrize(("seed", "uploads", "joins"), [(199, 0.3967187864781303, 0.9440615776210729), (819, 0.932, 1)])
def test_long_uploads_are_shared_out_among_short_kernels(seed: int, uploads: float, joins: float) -> None:
    """On a host, kernels of unknown cost take a fiftieth of a long upload. A plan in which each counts as long as an
    average piece has two such uploads behind one another, and takes more than twice the bound."""
    true = CostModel().declare(times(seed, equal=True))
    assert ratio(pieces(seed, uploads, joins, "host"), CostModel(), true) <= 1.6


def test_unknown_kernels_do_not_pile_up_behind_small_uploads() -> None:
    """On a host, three of four streams upload a large array each. Meanwhile the fourth does not take all of the other
    29 kernels, which are behind small uploads."""
    instructions: list[Instruction] = []
    buffers: list[Buffer] = []
    for number in range(32):
        read = _upload(1 << 27 if number < 3 else 1 << 12, instructions, buffers)
        instructions.append(Launch(KERNELS[0], (), (1,), (read,), (len(buffers),), 0, None))
        buffers.append(temporary())
    found = Counter(lanes_of(schedule(by(program(instructions, buffers), ListSchedule(STREAMS))), "a"))
    assert max(found.values()) <= 20


def lanes_of(plan: Plan, name: str) -> list[int]:
    """Return the lane of each launch of a kernel, in the plan's order."""
    launches = [s for s in plan.steps if isinstance(s, Execute) and isinstance(s.instruction, Launch)]
    return [s.lane for s in launches if s.instruction.kernel.label == name]  # type: ignore[union-attr]  # launches


@settings(max_examples=25)
@given(st.integers(2, 40), st.sampled_from((1 << 8, 1 << 20, 1 << 26)), st.integers(1, 5), KINDS)
def test_equal_kernels_of_unknown_cost_are_dealt_out(count: int, nbytes: int, streams: int, kind: str) -> None:
    """Each behind an upload of its own, of any size: every stream gets as many, as RoundRobin has it."""
    instructions: list[Instruction] = []
    buffers: list[Buffer] = []
    for _ in range(count):
        read = _upload(nbytes, instructions, buffers)
        instructions.append(Launch(KERNELS[0], (), (1,), (read,), (len(buffers),), 0, None))
        buffers.append(temporary())
    found = Counter(lanes_of(schedule(by(program(instructions, buffers, kind=kind), ListSchedule(streams))), "a"))
    assert len(found) == min(streams, count)
    assert max(found.values()) - min(found.values()) <= 1


def test_what_is_known_to_be_quick_keeps_its_stream() -> None:
    """Kernels that are done before the next upload has ended share a stream: declared, learnt, or written by dagpu."""
    instructions: list[Instruction] = []
    buffers: list[Buffer] = []
    for _ in range(8):
        read = _upload(1 << 20, instructions, buffers)
        instructions.append(Launch(KERNELS[0], (), (1,), (read,), (len(buffers),), 0, None))
        buffers.append(temporary())
    source = program(instructions, buffers, kind="cuda")
    for costs in (CostModel().declare({"a": 1e-6}), CostModel().learn([("a", 1 << 20, 1e-6)])):
        assert len(set(lanes_of(schedule(by(source, ListSchedule(4, costs))), "a"))) == 1
    assert len(set(lanes_of(schedule(by(source, RoundRobin(4))), "a"))) == 4
    quick = written("w")
    instructions = [replace(each, kernel=quick) if isinstance(each, Launch) else each for each in source.instructions]
    assert len(set(lanes_of(schedule(by(replace(source, instructions=tuple(instructions)), ListSchedule())), "w"))) == 1


def test_a_host_has_no_engines_for_copies() -> None:
    """Its threads copy, several at once: each of eight chains of an upload, a kernel and a download stays on one of
    four streams, without a wait. On a GPU the copies each way have a stream."""
    arrays = [np.full(1 << 16, number, np.float32) for number in range(8)]
    plus = expr(f32)(lambda x: x + 1)
    plan = plan_of(zip_ops(*[from_host(each).then(plus).to_host() for each in arrays]))
    assert (len(plan.lanes), plan.events) == (4, 0)
    assert set(Counter(step.lane for step in plan.steps if isinstance(step, Execute)).values()) == {6}


@pytest.mark.parametrize("depth", [1, 2, 10])
def test_chains_stay_on_their_streams(depth: int) -> None:
    """Doubt moves no chain: a fork-join of unknown kernels has its branches on a stream each, and waits at its ends."""
    plan = schedule(by(fork_join(4, depth=depth), ListSchedule(4)))
    lane_of = {step.instruction.writes[0]: step.lane for step in plan.steps if isinstance(step, Execute)}
    for first in range(1, 4 * depth, depth):
        assert len({lane_of[buffer] for buffer in range(first, first + depth)}) == 1
    assert sum(isinstance(step, Wait) for step in plan.steps) == 6
    diamond = schedule(by(fork_join(2), ListSchedule(4)))
    assert (len(diamond.lanes), diamond.events) == (2, 2)
    assert len(plan_of(zeros((4,)).then(expr(f32)(lambda x: x + 1))).lanes) == 1


# ---- on a mesh


@settings(max_examples=25)
@example(20000, 5, 0.625, 0.0, False)  # three of five devices have a long upload
@example(12833, 5, 0.13709149570281687, 0.0, False)  # between short and long kernels, neither guess is right
@given(st.integers(0, 1 << 16), st.integers(2, 5), st.floats(0, 1), st.floats(0, 0.5), st.booleans())
def test_a_mesh_shares_the_work(seed: int, devices: int, uploads: float, joins: float, known: bool) -> None:
    """Kernels that take much longer than copies: a placement takes at most twice the longest path and an equal share of
    the work on each device, one kernel at a time, whether it knows how long they take or not."""
    source = replace(pieces(seed, uploads, joins), devices=("host:auto",))
    seconds = 10 ** Random(seed).uniform(-2, -1)
    true = CostModel().declare(dict.fromkeys(NAMES, seconds))
    there = mesh(devices)
    policy = Spread(there, costs=true if known else CostModel())
    placed = place(by(source, policy), policy, there)
    load = Counter(i.device for i in placed.instructions if isinstance(i, Launch))
    path = lower_bound(source, true, STREAMS).critical_path
    share = -(-sum(load.values()) // devices) * seconds
    assert max(load.values()) * seconds <= 2 * max(share, path)
