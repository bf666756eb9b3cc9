"""Outputs that are written in place, over an input that has no other reader."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dagpu import (
    In,
    Out,
    RoundRobin,
    SingleStream,
    StreamInterpreter,
    Tile,
    f32,
    from_host,
    i32,
    kernel,
    plan_of,
    use_interpreter,
    value,
    zip_ops,
)
from dagpu.common.errors import PlanError
from dagpu.common.layout import Layout
from dagpu.plans.plan import may_write_over
from dagpu.testing import (
    Execute,
    Lane,
    Launch,
    Plan,
    Record,
    Release,
    Step,
    Tiles,
    View,
    Wait,
    contiguous_layout,
    verify,
)
from tests.programs.plain_programs import launch
from tests.unit.plans.memory.in_place_kernels import SHAPE, N, double_beside, double_over, doubled_by, numbers


@kernel(
    cuda="__global__ void halve(Tile<int, 2> y, View<const float, 2> x) { for (auto i : y) y[i] = x[i] / 2; }",
    in_place=True,
)
def halve(y: Out[i32], x: In[f32]) -> None:
    """y = x / 2, of another type and the same size."""


@halve.host
def _(y: Tile[i32], x: NDArray[f32]) -> None:
    y[...] = x[y.at] // 2


NBYTES = N * N * 4


def _overwritten(plan: Plan) -> list[tuple[int, int]]:
    """Pairs of an input and an output of one launch that lie at one place."""
    return [
        (source, out)
        for step in plan.steps
        if isinstance(step, Execute)
        for source in step.instruction.reads
        for out in step.instruction.writes
        if plan.offsets[source] == plan.offsets[out] >= 0
    ]


def test_a_chain_in_place_takes_one_place() -> None:
    """Each output lies where its input did, and the numbers are right; kernels that say nothing take two places."""
    for k, places in ((double_over, 1), (double_beside, 2)):
        op: Any = from_host(numbers())
        for _ in range(5):
            op = doubled_by(k, op)
        op = op.to_host()
        plan = plan_of(op)
        assert plan.arena_bytes == (places * NBYTES,)
        assert len(_overwritten(plan)) == (5 if places == 1 else 0)
        assert (op.sync() == 32 * numbers()).all()


def test_another_type_of_the_same_size_is_written_in_place() -> None:
    """Four bytes over four bytes."""
    op = doubled_by(halve, from_host(numbers()), i32).to_host()
    assert len(_overwritten(plan_of(op))) == 1
    assert (op.sync() == numbers() // 2).all()


def test_what_somebody_else_needs_is_not_written_over() -> None:
    """An input that is remembered, and that another launch reads as well, later or on another lane."""
    for policy in (SingleStream(), RoundRobin(2)):
        with use_interpreter(StreamInterpreter(policy=policy)):
            x = from_host(numbers()).shared()
            op = zip_ops(doubled_by(double_over, x).to_host(), doubled_by(double_over, x).to_host())
            plan = plan_of(op)
            verify(plan)
            assert not _overwritten(plan)  # it is remembered: nobody ends it
            for result in op.sync():
                assert (result == 2 * numbers()).all()


def test_elements_at_other_places_are_not_written_over() -> None:
    """An input seen in another shape: its element of the same index lies elsewhere."""
    op = doubled_by(double_over, from_host(numbers().reshape(2 * N, N // 2)).reshape(SHAPE)).to_host()
    assert len(_overwritten(plan_of(op))) == 1  # reshaped as a whole, elements stay in order
    there = contiguous_layout(SHAPE, np.dtype(f32))
    turned = Layout(there.dtype, SHAPE, there.strides[::-1], 0)
    spec = double_over.spec
    for layout, may in ((there, True), (turned, False), (replace(there, shape=(N, N - 1)), False)):
        args = (Tiles(View(1, there), SHAPE, (1, 1)), View(0, layout))
        assert may_write_over(Launch(spec, args, (1, 1), (0,), (1,), 0, None), 0, 1) == may


def test_results_and_what_was_lent_are_never_written_over() -> None:
    """Only temporaries are: a result has a block of its own, and a lender keeps what he lent."""
    lent = from_host(numbers()).sync()
    op = doubled_by(double_over, lent.borrow())
    assert not _overwritten(plan_of(op))
    assert (op.to_host().sync() == 2 * numbers()).all()
    assert (lent.to_host().sync() == numbers()).all()


def _in_place_plan() -> Plan:
    op = doubled_by(double_over, doubled_by(double_over, from_host(numbers()))).to_host()
    return plan_of(op)


def test_only_a_kernel_that_says_so_may_write_in_place() -> None:
    """The same plan is refused for a kernel without `in_place`, and the message names launch, buffers and bytes."""
    plan = _in_place_plan()
    verify(plan)
    (source, out), *_ = _overwritten(plan)
    steps = [
        Execute(replace(step.instruction, kernel=double_beside.spec), step.lane)  # type: ignore[arg-type]  # reason: it is a launch
        if isinstance(step, Execute) and out in step.instruction.writes
        else step
        for step in plan.steps
    ]
    with pytest.raises(
        PlanError, match=rf"of buffer {out}, .* takes bytes 0 to 16,384 .* from buffer {source}, .* may not write"
    ):
        verify(replace(plan, steps=tuple(steps)))


def test_what_was_written_over_is_not_read_again() -> None:
    """A second read of the input, behind the launch that wrote over it, is refused."""
    plan = _in_place_plan()
    (source, out), *_ = _overwritten(plan)
    at = next(n for n, s in enumerate(plan.steps) if isinstance(s, Execute) and out in s.instruction.writes)
    again = Execute(launch((source,), ()), plan.steps[at].lane)
    with pytest.raises(PlanError, match="which a launch before it has written over in place"):
        verify(replace(plan, steps=(*plan.steps[: at + 1], again, *plan.steps[at + 1 :])))


def test_bytes_written_over_go_back_once_both_are_released() -> None:
    """The release of what was written over, on another lane, has to come before that of what lies there now."""
    plan = _in_place_plan()
    (source, out), *_ = _overwritten(plan)
    steps = list(plan.steps)
    launch_at = next(n for n, s in enumerate(steps) if isinstance(s, Execute) and out in s.instruction.writes)
    lane = steps[launch_at].lane
    first = next(n for n, s in enumerate(steps) if isinstance(s, Release) and s.buffer == source)
    del steps[first]
    other = len(plan.lanes)
    lanes = (*plan.lanes, Lane(0, "another"))
    away: list[Step] = [Record(plan.events, lane), Wait(plan.events, other), Release(source, other)]
    unordered = [*steps[: launch_at + 1], *away, *steps[launch_at + 1 :]]
    with pytest.raises(PlanError, match=rf"gives back bytes of buffer {source}, .* nothing orders the release of that"):
        verify(replace(plan, lanes=lanes, events=plan.events + 1, steps=tuple(unordered)))


@pytest.mark.parametrize(
    "drop",
    [
        lambda op: op.map(lambda t: 0),
        lambda op: zip_ops(value(0), op).first(),
        lambda op: zip_ops(op, value(0)).unzip()[1],
        lambda op: op.share().map(lambda t: 0),
    ],
)
@pytest.mark.parametrize("policy", [SingleStream(), RoundRobin(2)])
def test_an_output_that_nobody_reads_takes_no_place_of_an_input_that_ends_later(drop: Any, policy: Any) -> None:
    """Both end with the launch. The plan is proved, and runs."""
    op = drop(doubled_by(double_over, doubled_by(double_beside, from_host(numbers())))).schedule(policy)
    plan = plan_of(op)
    verify(plan)
    assert op.sync() == 0
