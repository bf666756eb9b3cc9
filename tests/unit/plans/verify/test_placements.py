"""Placements on a mesh: every one computes the same, and the verifier of placements finds every one that does not."""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import Mesh, PlanError, Spread
from dagpu.plans.mesh_simulation import Versions
from dagpu.plans.placed_values import verify_placement
from dagpu.plans.placing import Assignment, DevicePolicy, OwnerPlacement, place
from dagpu.plans.plan import peak_bytes_on
from dagpu.plans.policies import SingleStream
from dagpu.testing import (
    Buffer,
    Constant,
    CopyDtoD,
    Fill,
    Instruction,
    Launch,
    Program,
    Role,
    View,
    contiguous_layout,
    schedule,
    verify,
)
from tests.programs.meshes import EAGER, Scatter, mesh, unplaced
from tests.programs.plain_programs import launch


@final
@dataclass(frozen=True)
class Owned:
    """A policy by which buffers have owners by chance, and instructions run where they write."""

    mesh: Mesh
    seed: int

    def assign(self, program: Program, mesh: Mesh, /) -> Assignment:
        random = Random(self.seed)
        return OwnerPlacement(mesh, [random.randrange(len(mesh)) for _ in program.buffers]).assign(program, mesh)

    def place(self, program: Program) -> Sequence[Hashable]:
        return Scatter(self.mesh, self.seed).place(program)


def _policy(count: int, seed: int) -> DevicePolicy:
    if not seed:
        return Spread(mesh(count), costs=EAGER)
    return Owned(mesh(count), seed) if seed > 2 else Scatter(mesh(count), seed)


placements = st.builds(_policy, st.integers(1, 5), st.integers(0, 4))


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


@final
@dataclass(frozen=True)
class Given:
    """A policy that has been told the devices."""

    devices: Sequence[int]

    def assign(self, program: Program, mesh: Mesh, /) -> Sequence[int]:
        return list(self.devices)


def test_a_copy_to_a_part_brings_the_rest_along() -> None:
    """A copy reads its source on any device. What is in the rest of its target has to be where it writes."""
    whole, half = contiguous_layout((16,), np.dtype(np.uint8)), contiguous_layout((8,), np.dtype(np.uint8))
    buffers = (Buffer(8, 0, Role.INPUT), Buffer(16, 1, Role.OUTPUT))
    fill = Fill(View(1, whole), Constant(7), (), (1,), 1, None)
    copy = CopyDtoD(View(1, half), View(0, half), (0, 1), (1,), 1, None)
    before = Program(("host:0", "host:auto"), buffers, (fill, copy), (SingleStream(),), (0, 0))
    for devices in ([0, 1], [1, 0], [1, 1], [0, 0]):
        after = place(before, Given(devices), mesh(2))
        verify_placement(before, after)
        copies = [each.source.layout.nbytes for each in after.instructions if isinstance(each, CopyDtoD)]
        assert copies.count(16) == len({*devices}) - 1


# ---- the order by longest paths


@settings(max_examples=60)
@given(unplaced(), st.integers(0, 99))
def test_the_order_by_longest_paths_is_one_in_which_the_program_may_run(before: Program, seed: int) -> None:
    """Whatever the instructions cost: each comes after those that make what it uses, and before those that write over
    that."""
    random, versions = Random(seed), Versions(before, mesh(3))
    order, path = versions.by_path([random.choice((0.0, 1.0, 50.0)) for _ in before.instructions])
    at = {instruction: position for position, instruction in enumerate(order)}
    assert sorted(order) == list(range(len(before.instructions)))
    assert path >= 0
    following = {}
    newest: dict[int, int] = {}
    for version, buffer in enumerate(versions.buffer):
        if buffer in newest:
            following[newest[buffer]] = versions.maker[version]
        newest[buffer] = version
    for instruction, uses in enumerate(versions.uses):
        for version in uses:
            assert at[instruction] > at.get(versions.maker[version], -1)
            assert instruction == following.get(version, instruction) or at[instruction] < at[following[version]]


# ---- by owner


@settings(max_examples=40)
@given(unplaced(), st.integers(1, 5), st.integers(0, 99))
def test_a_plan_by_owner_counts_what_the_placed_program_does(before: Program, count: int, seed: int) -> None:
    """Each instruction runs on the owner of what it writes, unless that has its place. Each version is copied to a
    device once, and no device passes one on more than twice."""
    there, random = mesh(count), Random(seed)
    policy = OwnerPlacement(there, [random.randrange(count) for _ in before.buffers])
    plan = policy.plan(before)
    copies = [i for i in place(before, policy, there).instructions if isinstance(i, CopyDtoD)]
    assert len(copies) == len(plan.first) == len({*zip(plan.version.tolist(), plan.target.tolist(), strict=True)})
    assert sum(plan.sent) == sum(plan.received) == sum(i.source.layout.nbytes for i in copies)
    passed = Counter(zip(plan.version.tolist(), plan.source.tolist(), strict=True))
    assert all(times <= 2 for times in passed.values())
    for instruction, at in zip(before.instructions, plan.devices, strict=True):
        written = instruction.writes[0]
        if before.buffers[written].role is not Role.INPUT and all(
            before.buffers[each].role is not Role.INPUT for each in instruction.writes
        ):
            assert at == policy.owners[written]
    assert plan.makespan >= max(plan.work, default=0.0) * (1 - 1e-9)


def test_owners_are_devices_of_the_mesh() -> None:
    """One for each buffer."""
    before = launch_chain()
    for owners in ([0], [0] * len(before.buffers) + [1], [2] * len(before.buffers)):
        with pytest.raises(PlanError, match="Give each buffer the index of its device"):
            OwnerPlacement(mesh(2), owners).plan(before)


def launch_chain() -> Program:
    """Two launches, the second of which reads what the first writes."""
    buffers = tuple(Buffer(8, 0, Role.TEMPORARY) for _ in range(2))
    first, second = launch((), (0,)), launch((0,), (1,))
    return Program(("host:auto",), buffers, (first, second), (SingleStream(),), (0, 0))
