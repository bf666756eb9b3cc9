"""Placements on a mesh: every one computes the same, and the verifier of placements finds every one that does not."""

from collections import Counter
from collections.abc import Hashable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import Mesh, PlanError, Spread
from dagpu.lowering.plan import peak_bytes_on
from dagpu.lowering.program import CopyDtoD, Instruction, Launch, Program, Role, View
from dagpu.lowering.schedule.placing import DevicePolicy, place
from dagpu.lowering.schedule.scheduler import schedule
from dagpu.lowering.verify.placed_values import verify_placement
from dagpu.lowering.verify.verifier import verify
from tests.programs.meshes import EAGER, Scatter, mesh, unplaced
from tests.programs.plain_programs import launch

placements = st.builds(
    lambda count, seed: Scatter(mesh(count), seed) if seed else Spread(mesh(count), costs=EAGER),
    st.integers(1, 5),
    st.integers(0, 3),
)


def origins(program: Program, outside: int) -> tuple[Counter[Hashable], list[Hashable]]:
    """The launches with the launches that made what they use, and those that made what stays."""
    maker: list[Hashable] = [("given", at) if b.role is Role.INPUT else None for at, b in enumerate(program.buffers)]
    ran: Counter[Hashable] = Counter()
    for i in program.instructions:
        if isinstance(i, Launch):
            ran[i.grid, tuple([maker[b] for b in i.reads]), tuple([maker[b] for b in i.writes])] += 1
            for at, buffer in enumerate(i.writes):
                maker[buffer] = (i.grid, at)
        else:
            assert isinstance(i, CopyDtoD)
            maker[i.out.buffer] = maker[i.source.buffer]
    return ran, [maker[n] for n, b in enumerate(program.buffers[:outside]) if b.role is not Role.TEMPORARY]


@settings(max_examples=60)
@given(unplaced(), placements)
def test_every_placement_computes_the_same(before: Program, policy: Any) -> None:
    """On any devices, by chance or by costs: each launch uses what it used, once, and all that stays is the same. The
    placed program has a plan that the verifier proves, and its bytes are counted where they lie."""
    after = place(before, policy, policy.mesh)
    assert origins(after, len(before.buffers)) == origins(before, len(before.buffers))
    verify_placement(before, after)
    plan = schedule(after)
    verify(plan)
    assert sum(peak_bytes_on(plan).values()) == plan.peak_bytes
    assert {*after.devices} <= {*before.devices[:2], *[device.name for device in policy.mesh.devices]}


def _mutants(program: Program, random: Random) -> Program:
    """Return the program with one mistake: a copy dropped, another source, another buffer read, two steps swapped."""
    steps: list[Instruction] = list(program.instructions)
    at = random.randrange(len(steps))
    step = steps[at]
    match random.randrange(4):
        case 0 if isinstance(step, CopyDtoD):
            del steps[at]
        case 1 if isinstance(step, CopyDtoD):
            other = random.choice(_alike(program, step.source.buffer))
            source = View(other, step.source.layout)
            steps[at] = replace(step, source=source, reads=(other,))
        case 2 if isinstance(step, Launch) and step.reads:
            read = random.randrange(len(step.reads))
            other = random.choice(_alike(program, step.reads[read]))
            steps[at] = replace(step, reads=(*step.reads[:read], other, *step.reads[read + 1 :]))
        case _:
            other = random.randrange(len(steps))
            steps[at], steps[other] = steps[other], steps[at]
    policies = (0,) * len(steps)
    return replace(program, instructions=tuple(steps), policy_of=policies)


def _alike(program: Program, buffer: int) -> list[int]:
    """The buffers of the same size on the same device."""
    own = program.buffers[buffer]
    return [n for n, b in enumerate(program.buffers) if (b.nbytes, b.device) == (own.nbytes, own.device)]


@settings(max_examples=80)
@given(unplaced(), st.integers(2, 4), st.integers(0, 9))
def test_mistakes_of_a_placement_are_found(before: Program, count: int, seed: int) -> None:
    """A copy dropped, a stale replica, two versions in each other's place: each is refused, if it changes anything."""
    after = place(before, Scatter(mesh(count), seed), mesh(count))
    random, wanted = Random(seed), origins(before, len(before.buffers))
    for _ in range(6):
        wrong = _mutants(after, random)
        if origins(wrong, len(before.buffers)) == wanted:
            verify_placement(before, wrong)
        else:
            with pytest.raises(PlanError):
                verify_placement(before, wrong)


def test_a_placed_program_is_left_as_it_is() -> None:
    """Without an automatic device there is nothing to place."""
    program = Program(("host:0",), (), (), (), ())
    policy: DevicePolicy = Spread(mesh(2))
    assert place(program, policy, mesh(2)) is program


def test_a_choice_outside_of_the_mesh_is_refused() -> None:
    """A policy returns one index for each instruction."""

    class Wrong:
        def assign(self, program: Program, mesh: Mesh, /) -> list[int]:
            return [len(mesh)]

    program = Program(("host:auto",), (), (launch((), ()),), (), (0,))
    with pytest.raises(PlanError, match="Return a list of indices"):
        place(program, Wrong(), mesh(2))
