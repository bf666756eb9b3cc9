"""`explain`: predictions, lower bounds, and why branches do not overlap."""

import re
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from benchmarks.support.makespan_bound import lower_bound
from benchmarks.support.plan_times import simulate
from dagpu import (
    CostModel,
    DeviceOp,
    In,
    ListSchedule,
    Out,
    SharedTensor,
    SingleStream,
    StreamInterpreter,
    expr,
    f32,
    kernel,
    ones,
    plan_of,
    zeros,
    zip_ops,
)
from dagpu.common.places import place_of
from dagpu.plans import report as missed_overlap
from dagpu.plans.prediction import dependencies, forecast, least_bytes, overlap_of
from dagpu.plans.report import Serialized, branches_apart, explain
from dagpu.plans.text import duration
from dagpu.testing import (
    HOST,
    Buffer,
    Cell,
    CopyHtoD,
    Execute,
    Lane,
    Launch,
    Plan,
    Program,
    Record,
    Role,
    Step,
    View,
    Wait,
    contiguous_layout,
    schedule,
)
from tests.programs.named_dags import NAMED
from tests.programs.plain_programs import Keys, chain, fork_join, launch, output, program, programs, temporary
from tests.support.places import place

EACH = CostModel(launch=1.0, bandwidth=1e30, host_bandwidth=1e30, host_call=1.0)
"""A second for every instruction."""


@kernel(cuda="__global__ void mix(Tile<float, 1> y, View<const float, 1> x) {}")
def mix(y: Out[f32], x: In[f32]) -> None: ...


def happens_before(plan: Plan) -> list[set[int]]:
    """Return for each step all steps that happen before it, by brute force."""
    before: list[set[int]] = []
    latest: dict[int, int] = {}
    recorded: dict[int, int] = {}
    for at, step in enumerate(plan.steps):
        direct = {latest[step.lane]} if step.lane in latest else set()
        if isinstance(step, Wait):
            direct.add(recorded[step.event])
        if isinstance(step, Record):
            recorded[step.event] = at
        latest[step.lane] = at
        before.append(direct.union(*[before[other] for other in direct]))
    return before


def instructions(plan: Plan) -> list[tuple[int, Execute]]:
    return [(at, step) for at, step in enumerate(plan.steps) if isinstance(step, Execute)]


def the_pair(source: Program, costs: CostModel = EACH) -> Serialized:
    """The one pair of independent branches of a program that does not overlap."""
    (found,) = branches_apart(forecast(schedule(source), costs)).apart
    return found


# ---- predictions


@given(programs(25))
def test_a_forecast_is_what_the_cost_model_simulates(source: Program) -> None:
    """Each instruction begins and ends when `simulate` says; a plan is not costed in two ways."""
    plan = schedule(source)
    timing = simulate(plan, CostModel())
    expected = [(timing.starts[at], timing.ends[at]) for at, _ in instructions(plan)]
    found = forecast(plan)
    assert expected == [(piece.begin, piece.end) for piece in found.pieces]
    assert found.makespan == max([end for _, end in expected], default=0.0)


def kernel_table(report: str) -> list[list[str]]:
    """The rows of the table of kernels, cut at two spaces or more; none if the report has no such table."""
    lines = report.splitlines()
    title = "Predicted time by kernel:"
    if title not in lines:
        return []
    begin = lines.index(title) + 2
    return [re.split(r" {2,}", line) for line in lines[begin : lines.index("", begin)]]


@given(programs(25))
def test_the_table_of_kernels_sums_up_all_instructions(source: Program) -> None:
    """Launches and bytes of all rows are those of the plan, the largest time is first; there is no such table if each
    kernel is launched once."""
    plan = schedule(source)
    found, rows = forecast(plan), kernel_table(explain(plan))
    names = [piece.name for piece in found.pieces]
    assert bool(rows) == (len(set(names)) < len(names))
    if rows:
        assert sum(int(row[1].replace(",", "")) for row in rows) == len(names)
        assert sum(int(row[2].replace(",", "")) for row in rows) == sum(piece.moved for piece in found.pieces)
        shares = [float(row[4].removesuffix("%")) for row in rows]
        assert shares == sorted(shares, reverse=True)
        assert sum(shares) == pytest.approx(100, abs=0.05 * len(rows) + 1e-9)


def test_small_kernels_share_a_row() -> None:
    """At most twelve rows: the last has the launches, the bytes and the time of the others."""
    names = [f"k{number}" for number in range(20)] * 2
    plain = [launch((), (n,)) for n in range(len(names))]
    named = [replace(each, kernel=replace(each.kernel, name=name)) for each, name in zip(plain, names, strict=True)]
    rows = kernel_table(explain(schedule(program(named, [output()] * len(names)))))
    assert len(rows) == 12
    assert rows[-1][:2] == ["(9 more)", "18"]


@given(programs(25))
def test_no_forecast_is_below_its_bound(source: Program) -> None:
    """Nothing can end sooner than the critical path, nor than the work shared out over the lanes."""
    found = forecast(schedule(source), EACH)
    assert found.makespan >= found.bound - 1e-9
    assert found.critical_seconds == pytest.approx(lower_bound(schedule(source).program, EACH, 1).critical_path)


@given(programs(25))
def test_the_critical_path_is_a_chain_of_dependencies(source: Program) -> None:
    """Each instruction on it needs the one before, and together they take what is said."""
    plan = schedule(source)
    found, needs = forecast(plan, EACH), dependencies(plan)
    for earlier, later in zip(found.critical, found.critical[1:], strict=False):
        assert earlier in needs[later]
    assert found.critical_seconds == pytest.approx(len(found.critical))


def test_copies_one_way_share_their_engine_in_the_bound() -> None:
    """However many streams they are on, uploads of one device take at least the sum of their times; work on streams of
    one device is shared out over these."""
    cells = [Buffer(0, HOST, Role.INPUT)] * 3
    layout = contiguous_layout((4,), np.dtype(np.float32))
    copies = [CopyHtoD(View(3 + n, layout), Cell(n), (n,), (3 + n,), 0, None) for n in range(3)]
    work = [launch((), (6 + n,)) for n in range(4)]
    plan = schedule(program([*copies, *work], [*cells, *[output(16)] * 7], Keys((0, 1, 2, 3, 4, 3, 4)), kind="cuda"))
    assert forecast(plan, EACH).work_seconds == pytest.approx(3.0)
    assert forecast(schedule(program(work, [output()] * 10, Keys((0, 1, 0, 1)))), EACH).work_seconds == 2.0


def test_a_wait_for_a_stream_that_has_done_nothing_holds_nothing_up() -> None:
    """An event that is recorded before the first instruction of its lane is no instruction's end."""
    plan = schedule(program([launch((), (0,))], [output()]))
    steps: tuple[Step, ...] = (Record(0, 1), Wait(0, 0), *plan.steps)
    found = forecast(replace(plan, lanes=(*plan.lanes, Lane(0, "idle")), events=1, steps=steps), EACH)
    assert [(piece.begin, piece.waits) for piece in found.pieces] == [(0.0, ())]


def test_overlap_is_the_share_of_work_that_ran_beside_other_work() -> None:
    """None in a row, (k - 1) / k of k side by side, and nothing of nothing."""
    assert overlap_of([]) == 0
    assert overlap_of([(0, 1), (1, 2), (2, 3)]) == 0
    assert overlap_of([(0, 1)] * 4) == pytest.approx(0.75)
    assert overlap_of([(0, 2), (1, 3)]) == pytest.approx(0.25)


# ---- the least memory


@given(programs(30))
def test_the_least_memory_is_what_is_alive_in_every_execution(source: Program) -> None:
    """The least memory equals a brute-force count over all pairs, and no plan takes less."""
    plan = schedule(source)
    before, executed = happens_before(plan), instructions(plan)
    most = [0] * len(plan.devices)
    for device in range(len(plan.devices)):
        own = [b for b, about in enumerate(plan.buffers) if about.device == device and about.role is not Role.INPUT]
        results = [b for b in own if plan.buffers[b].role is Role.OUTPUT]
        most[device] = sum(plan.buffers[b].nbytes for b in results)
        for at, _ in executed:
            alive = 0
            for buffer in own:
                writes = [w for w, step in executed if buffer in step.instruction.writes]
                uses = [u for u, s in executed if buffer in (*s.instruction.reads, *s.instruction.writes)]
                begun = bool(writes) and (writes[0] == at or writes[0] in before[at])
                needed = buffer in results or any(use == at or at in before[use] for use in uses)
                alive += plan.buffers[buffer].nbytes if begun and needed else 0
            most[device] = max(most[device], alive)
    assert sum(most) == least_bytes(plan)
    assert least_bytes(plan) <= plan.peak_bytes


def test_a_chain_needs_two_buffers_at_a_time() -> None:
    """However long it is."""
    assert least_bytes(schedule(chain(50, SingleStream()))) == 128


# ---- why branches do not overlap


def test_two_branches_on_one_stream_though_another_is_idle() -> None:
    """The reason names the stream, and one that was free."""
    found = the_pair(
        program([launch((), (0,)), launch((), (1,)), launch((1, 0), (2,))], [output()] * 3, Keys((0, 0, 1)))
    )
    assert found.cause == "same stream"
    assert "same stream host:0/0" in found.why
    assert "host:0/1 is idle" in found.why


def test_two_branches_on_one_stream_while_all_others_are_busy() -> None:
    """With more branches than streams, some must queue, and that is said."""
    both = branches_apart(
        forecast(schedule(program([launch((), (b,)) for b in range(4)], [output()] * 4, Keys((0, 1, 0, 1)))), EACH)
    )
    assert {"same stream", "busy stream"} == {pair.cause for pair in both.apart}
    assert any("every other stream is busy" in pair.why for pair in both.apart)


def test_a_branch_behind_others_on_its_stream_is_held_up_by_the_last_of_them() -> None:
    """The reason names the instruction that runs on the stream just before, not the first that ever did."""
    plan = schedule(program([launch((), (b,)) for b in range(4)], [output()] * 4, Keys((0, 1, 1, 1))))
    numbers = numbers_of(plan)
    pairs = {(pair.first.pieces, pair.second.pieces): pair for pair in branches_apart(forecast(plan, EACH)).apart}
    found = pairs[(0,), (3,)]
    assert found.cause == "busy stream"
    assert f"busy with #{numbers[2]} until then" in found.why


def test_the_only_stream() -> None:
    """On one stream there is nowhere else to go."""
    found = the_pair(program([launch((), (0,)), launch((), (1,))], [output()] * 2, SingleStream()))
    assert (found.cause, found.lost) == ("same stream", 1.0)
    assert "the only one" in found.why


def test_a_branch_held_up_by_a_wait_that_is_not_its_own() -> None:
    """A stream that waits for one branch holds up another that is put behind the wait."""
    source = program(
        [launch((), (0,)), launch((0,), (1,)), launch((0,), (2,)), launch((), (3,))],
        [*[temporary()] * 1, *[output()] * 3],
        Keys((0, 0, 1, 1)),
    )
    found = branches_apart(forecast(schedule(source), EACH))
    reasons = {(pair.first.pieces, pair.second.pieces): pair for pair in found.apart}
    held = reasons[(0,), (3,)]
    assert held.cause == "wait"
    assert "needs" in held.why
    assert "host:0/0" in held.why


def test_a_branch_that_begins_as_soon_as_its_input_is_there() -> None:
    """Nothing was lost by the schedule."""
    source = program(
        [launch((), (0,)), launch((), (1,)), launch((1,), (2,)), launch((1,), (3,))],
        [output(), temporary(), output(), output()],
        Keys((0, 1, 1, 2)),
    )
    causes = {
        (p.first.pieces, p.second.pieces): p.cause for p in branches_apart(forecast(schedule(source), EACH)).apart
    }
    assert causes == {((0,), (2,)): "input", ((0,), (3,)): "input"}


def test_copies_that_share_an_engine() -> None:
    """Two uploads on two streams still go one after the other."""
    cells = [Buffer(0, HOST, Role.INPUT)] * 2
    layout = contiguous_layout((4,), np.dtype(np.float32))
    copies = [CopyHtoD(View(2 + n, layout), Cell(n), (n,), (2 + n,), 0, None) for n in range(2)]
    found = the_pair(program(copies, [*cells, output(16), output(16)], Keys((0, 1)), kind="cuda"))
    assert found.cause == "copy engine"


@given(programs(24))
def test_every_pair_that_does_not_overlap_is_told(source: Program) -> None:
    """Among all branches, held against each other the slow way: no pair is forgotten, none made up. Those that lose
    most come first, and last those that no schedule could have overlapped."""
    plan = schedule(source)
    found, needs = forecast(plan, EACH), dependencies(plan)
    above: list[set[int]] = []
    for direct in needs:
        above.append(set(direct).union(*[above[other] for other in direct]))
    told = branches_apart(found)
    assert sorted(index for branch in told.longest for index in branch.pieces) == list(range(len(found.pieces)))
    expected, pairs = set(), 0
    for one, other in combinations(told.longest, 2):
        if one.pieces[-1] in above[other.pieces[0]] or other.pieces[-1] in above[one.pieces[0]]:
            continue
        pairs += 1
        if one.begin >= other.end or other.begin >= one.end:
            expected.add(frozenset((one.pieces, other.pieces)))
    assert pairs == told.pairs
    assert expected == {frozenset((pair.first.pieces, pair.second.pieces)) for pair in told.apart}
    order = [(pair.cause == "input", -pair.lost) for pair in told.apart]
    assert order == sorted(order)
    assert all(pair.first.end <= pair.second.begin and pair.why for pair in told.apart)


def test_of_very_many_branches_the_longest_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the time that their work takes, whatever their places in the plan. How many there are in all is still said."""
    monkeypatch.setattr(missed_overlap, "MOST_BRANCHES", 3)
    lengths = (1, 4, 2, 5, 1, 3, 2)
    instructions: list[Launch] = []
    for length in lengths:
        for step in range(length):
            instructions.append(launch((len(instructions) - 1,) if step else (), (len(instructions),)))
    source = program(instructions, [output()] * sum(lengths), SingleStream())
    found = branches_apart(forecast(schedule(source), EACH))
    assert [len(branch.pieces) for branch in found.longest] == [4, 5, 3]
    assert (found.count, found.pairs) == (7, 3)


# ---- the text


def numbers_of(plan: Plan) -> list[int]:
    """The numbers of the instructions in reports."""
    return [number for number, _ in enumerate(instructions(plan), 1)]


def instruction_table(report: str) -> list[str]:
    """The rows of the table of instructions."""
    lines = report.splitlines()
    (begin,) = [at for at, line in enumerate(lines) if line.split()[:2] == ["#", "instruction"]]
    return lines[begin + 1 : lines.index("", begin)]


def test_the_table_has_every_instruction_with_its_number_stream_waits_bytes_and_origin() -> None:
    """Instructions are numbered from 1 without gaps."""
    origin = zeros((1,)).origin
    source = program(
        [launch((), (0,), origin=origin), launch((), (1,)), launch((0, 1), (2,))],
        [temporary(1000), temporary(), output()],
        Keys((0, 1, 1)),
    )
    plan = schedule(source)
    numbers = numbers_of(plan)
    rows = [line.split() for line in instruction_table(explain(plan, EACH))]
    assert [str(number) for number in numbers] == [row[0] for row in rows] == ["1", "2", "3"]
    assert [["Launch", "step", f"host:0/{lane}"] for lane in (0, 1, 1)] == [row[1:4] for row in rows]
    assert "1,000" in rows[0]
    line = place_of(origin)
    assert line is not None
    assert rows[0][-1] == f"test_explain.py:{line[1]}"
    assert rows[2][4] == f"#{numbers[0]}"


def test_the_summary_tells_path_makespan_and_memory_against_their_bounds() -> None:
    """A fork of three over two streams: 4 s where 3 s are needed and 2.5 s of work for each stream."""
    text = explain(schedule(fork_join(3, Keys((0, 0, 1, 0, 0)))), EACH)
    assert "Critical path, predicted: 3.00 s in 3 instructions: #" in text
    assert "Makespan, predicted: 4.00 s, 1.33x the lower bound 3.00 s\n  (critical path 3.00 s, work" in text
    assert "work / lanes 2.50 s" in text
    assert "Memory beyond the inputs:" in text
    assert "independent pairs: 3, of which 2 do not overlap:" in text


@given(programs(25))
def test_reports_and_pictures_of_a_plan_agree_on_its_numbers(source: Program) -> None:
    """`print(plan)`, `explain` and the drawing give each instruction the same number, from 1 without gaps. The steps of
    `print(plan)` have numbers of their own."""
    plan = schedule(source)
    count = len(instructions(plan))
    steps = str(plan).splitlines()[2 : 2 + len(plan.steps)]
    assert [line.split()[0] for line in steps] == [str(number) for number in range(1, len(steps) + 1)]
    executed = [line.split()[1:3] for line, step in zip(steps, plan.steps, strict=True) if isinstance(step, Execute)]
    told = [line.split()[:2] for line in instruction_table(explain(plan))] if count else []
    assert executed == told
    assert [number for number, _ in told] == [str(number) for number in numbers_of(plan)]
    drawn = re.findall(r"<title>#(\d+) (\w+) .* on ", plan.to_svg())
    assert [list(pair) for pair in drawn] == told


@pytest.mark.parametrize("keeps", [True, False])
def test_outputs_that_are_not_in_the_result_are_named(keeps: bool) -> None:
    """A closure that keeps handles turns temporaries into outputs. The report names them, their bytes and the cure, and
    compares the peak with what the plan would hold without them."""
    kept: list[object] = []
    twice = expr(f32)(lambda x: 2 * x)
    op: DeviceOp[SharedTensor[f32]] = ones((1 << 10,)).share()

    def doubled(t: SharedTensor[f32]) -> DeviceOp[SharedTensor[f32]]:
        if keeps:
            kept.append(t)
        return twice(t).share()

    for _ in range(5):
        op = op.then(doubled)
    report = op.schedule(SingleStream()).explain()
    memory = " ".join(report[report.index("Memory beyond") :].split())
    if keeps:
        assert memory.startswith("Memory beyond the inputs: 24,576 bytes, 3.00x the lower bound 8,192")
        assert "Alive to the end, 20,480 bytes, and not in the result: #1 Fill at" in memory
        assert memory.count("(4,096 bytes)") == 5
        assert "drop it" in memory
    else:
        assert "not in the result" not in memory
    assert len(kept) == 5 * keeps


def test_what_other_runs_may_have_is_not_called_kept() -> None:
    """The value of a `shared()` op is an output that other runs read."""
    once = ones((1 << 10,)).share().shared()
    assert "not in the result" not in zip_ops(once, once.to_host()).explain()
    assert "not in the result" not in zip_ops(ones((4,)), ones((8,)).to_host()).explain()


def test_the_first_lines_say_how_to_read_the_table() -> None:
    """Above the table, in lines that fit a page."""
    lines = explain(schedule(fork_join(3))).splitlines()
    head = lines[: lines.index("")]
    assert head[0].startswith("Plan: ")
    for words in ("in the order of submission", "same lane (a stream of a device)", "waits on", "predicted"):
        assert words in " ".join(head[1:])
    assert all(len(line) <= 88 for line in head)


def test_a_long_plan_is_abridged_and_says_so() -> None:
    """Rows and pairs have a limit; what is left out is counted."""
    source = program([launch((), (b,)) for b in range(30)], [output()] * 30, SingleStream())
    text = explain(schedule(source), EACH, rows=10, pairs=5)
    assert "... 20 more instructions ..." in text
    assert text.count("Launch step") == 10
    assert "430 pairs more that lose less (same stream: 430)" in text


def test_a_long_path_is_told_by_its_two_ends() -> None:
    """All instructions of a critical path of up to twelve are named.

    Of a longer one, the first six and the last six are named, and the rest are counted.
    """
    for length in (12, 13, 30):
        plan = schedule(chain(length, SingleStream()))
        text = explain(plan, EACH)
        lines = text.splitlines()
        at = [line.startswith("Critical path") for line in lines].index(True)
        whole = lines[at : [line.startswith("Makespan") for line in lines].index(True)]
        assert all(len(line) <= 88 for line in whole)
        line = " ".join([part.strip() for part in whole])
        named = [f"#{number} step" for number in numbers_of(plan)]
        if length > 12:
            named[6:-6] = [f"({length - 12} more)"]
        assert line.endswith(f"in {length} instructions: {' -> '.join(named)}")


def test_how_many_branches_were_compared_is_said_where_not_all_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line tells of the longest branches only where there are more."""
    monkeypatch.setattr(missed_overlap, "MOST_BRANCHES", 3)
    monkeypatch.setattr("dagpu.plans.report.MOST_BRANCHES", 3)
    for count, said in ((3, "Branches: 3; independent pairs: 3"), (4, "Branches: 4; of them the 3 longest; ")):
        source = program([launch((), (b,)) for b in range(count)], [output()] * count, SingleStream())
        assert said in explain(schedule(source), EACH)


def test_a_plan_of_nothing() -> None:
    """There is nothing to tell but that."""
    assert explain(schedule(program([], []))).startswith("Plan: 0 instructions, 0 lanes")


@pytest.mark.parametrize("name", NAMED)
def test_named_dags_are_explained(name: str) -> None:
    """Every instruction is in the table, and each part of the summary is there."""
    op = NAMED[name]()
    text = op.explain()
    assert len(instructions(plan_of(op))) == len(instruction_table(text))
    for part in ("Critical path", "Makespan", "Memory beyond the inputs", "Overlap", "independent pairs"):
        assert part in text


def test_explain_predicts_with_the_cost_model_of_the_policy() -> None:
    """The table shows the declared cost of a kernel."""
    interpreter = StreamInterpreter(place(), ListSchedule(costs=CostModel(launch=0).declare({"mix": 0.25})))
    y, z = (zeros((4,)).partition((4,)) for _ in range(2))
    op: Any = zip_ops(mix(y, zeros((4,))).first(), mix(z, zeros((4,))).first())
    assert "250.00 ms" in interpreter.explain(op)


def test_explain_runs_nothing() -> None:
    """After `explain`, an op still owns its handles and can be run."""
    tensor = zeros((4,)).sync()
    op = tensor.to_host()
    assert "CopyDtoH" in op.explain()
    assert op.sync().tolist() == [0.0] * 4


def test_durations_have_units() -> None:
    """Three magnitudes."""
    assert [duration(2e-6), duration(2.5e-3), duration(3.0)] == ["2.0 us", "2.50 ms", "3.00 s"]
