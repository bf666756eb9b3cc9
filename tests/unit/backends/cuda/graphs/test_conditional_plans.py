"""Plans with an `If` as graphs, on simulated GPUs: the body after all that it reads, in every order of the nodes."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagpu import RoundRobin, full, ones, zip_ops
from dagpu.backends.cuda.executable import Executable
from dagpu.testing import Buffer, If, Program, Role, View, contiguous_layout
from tests.programs.arithmetic import axpy
from tests.programs.graph_trials import block, bound, prepared, program_of, results, run, texts
from tests.simulated.cuda import installed

FLAG = contiguous_layout((1,), np.dtype(np.uint32))


def branches() -> Any:
    """Two branches of launches, which three results on the host read."""
    ends = []
    for number in (1, 2):
        made: Any = full((2, 2), number)
        for _ in range(2):
            made = axpy(made.partition((2, 2)), 1.0, ones((2, 2))).first().unpartition()
        ends.append(made.shared())
    chosen = enumerate((ends[0], ends[1], ends[0]))
    results_of = [axpy(full((2, 2), n).partition((2, 2)), 2.0, each).first() for n, each in chosen]
    return zip_ops(*[each.unpartition().to_host() for each in results_of])


def with_if(program: Program, at: int) -> tuple[Program, int]:
    """The program with an `If` before the instruction `at`, whose body is all that follows; and the buffer of its flag,
    which is an input."""
    flag = len(program.buffers)
    rest = len(program.instructions) - at
    decides = If((View(flag, FLAG),), rest, (flag,), (), 0, None)
    made = replace(
        program,
        buffers=(*program.buffers, Buffer(4, 0, Role.INPUT)),
        instructions=(*program.instructions[:at], decides, *program.instructions[at:]),
        policy_of=(*program.policy_of, 0),
    )
    return made, flag


def launched(plan: Executable, inputs: dict[int, Any]) -> list[bytes]:
    """Run a plan as a graph, and return the bytes of its results on the host."""
    bindings = bound(plan, inputs)
    run = plan.launch_whole(bindings, 0.0, True)
    assert run is not None
    assert run.wait()
    assert run.failures() == []
    return texts(results(plan, bindings))


@given(at=st.integers(0, 12), seed=st.integers(0, 999), lanes=st.integers(1, 3))
def test_a_body_comes_after_all_that_it_reads(at: int, seed: int, lanes: int) -> None:
    """Wherever it begins, on as many lanes as there are, in a first launch and a later one; a condition that is false
    leaves it out."""
    with installed(seed, gpus=1) as machine:
        program, inputs = program_of(branches(), RoundRobin(lanes))
        wanted = texts(run(prepared(program), inputs, graph=False))
        at = min(at, len(program.instructions) - 1)
        conditional, flag = with_if(program, at)
        plan = prepared(conditional)
        decisions = (1, 0, 1, 1)
        for value in decisions:
            found = launched(plan, {**inputs, flag: block(np.array([value], np.uint32), machine)})
            assert found == wanted if value else found != wanted
        assert machine.decisions == [bool(value) for value in decisions]


def test_a_plan_with_an_if_goes_through_no_stream() -> None:
    """It is launched as a graph or not at all."""
    with installed(gpus=1) as machine:
        program, inputs = program_of(branches())
        conditional, flag = with_if(program, 3)
        plan = prepared(conditional)
        given_inputs = {**inputs, flag: block(np.ones(1, np.uint32), machine)}
        with pytest.raises(AssertionError, match="streams decide nothing"):
            plan.submit(bound(plan, given_inputs), graph=True)
        machine.gpus[0].fail("cuGraphAddNode", 801)
        assert plan.launch_whole(bound(plan, given_inputs), 0.0, True) is None
        assert "cuGraphAddNode failed" in plan.lacks_graph
        assert machine.gpus[0].calls["cuLaunchKernelEx"] == 0
