"""Cuts of programs into parts: each computes the same, and the verifier of cuts finds every one that does not."""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import CostModel, PlanError, Spread
from dagpu.cluster.cutting import Part, Version, cut
from dagpu.cluster.part_checks import verify_parts
from dagpu.plans.placing import place
from dagpu.plans.policies import SingleStream
from dagpu.testing import (
    HOST,
    Buffer,
    Cell,
    CopyDtoD,
    CopyDtoH,
    CopyHtoD,
    Instruction,
    Launch,
    Program,
    Role,
    View,
    contiguous_layout,
    verify,
)
from tests.programs.meshes import EAGER, Scatter, unplaced, workers
from tests.programs.plain_programs import kernel, launch

policies = st.builds(
    lambda count, each, seed: Scatter(workers(count, each), seed) if seed else Spread(workers(count), costs=EAGER),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(0, 3),
)
granularities = st.sampled_from([1e-9, 3e-3, 2e-2, 1.0])
"""Predicted seconds of a part: each instruction for itself, about three of them, about twenty, of which each is short
beside the part, or all."""


def _step(instruction: Instruction, contents: list[Hashable], ran: Counter[Hashable]) -> None:
    """Follow what an instruction does to the contents of buffers."""
    if isinstance(instruction, Launch):
        ran[
            instruction.grid,
            tuple([contents[b] for b in instruction.reads]),
            tuple([contents[b] for b in instruction.writes]),
        ] += 1
        for at, buffer in enumerate(instruction.writes):
            contents[buffer] = (instruction.grid, at)
    else:
        assert isinstance(instruction, CopyDtoD)
        contents[instruction.out.buffer] = contents[instruction.source.buffer]


def computed(program: Program) -> tuple[Counter[Hashable], dict[int, Hashable]]:
    """The launches with the launches that made what they use, and what is in each buffer that stays."""
    contents: list[Hashable] = [("given", n) if b.role is Role.INPUT else None for n, b in enumerate(program.buffers)]
    ran: Counter[Hashable] = Counter()
    for each in program.instructions:
        _step(each, contents, ran)
    return ran, {n: contents[n] for n, b in enumerate(program.buffers) if b.role is not Role.TEMPORARY}


def computed_by_parts(program: Program, parts: Sequence[Part]) -> tuple[Counter[Hashable], dict[int, Hashable]] | None:
    """The same for parts, each with memory of its own; None if one takes what is not there."""
    there: dict[Version, Hashable] = {
        (n, 0): ("given", n) for n, b in enumerate(program.buffers) if b.role is Role.INPUT
    }
    ran: Counter[Hashable] = Counter()
    for part in parts:
        contents: list[Hashable] = [None] * len(part.program.buffers)
        for version, buffer in zip(part.imports, part.takes, strict=True):
            if version not in there:
                return None
            contents[buffer] = there[version]
        for each in part.program.instructions:
            _step(each, contents, ran)
        there |= {version: contents[buffer] for version, buffer in zip(part.exports, part.gives, strict=True)}
    stays = {n for n, b in enumerate(program.buffers) if b.role is not Role.TEMPORARY}
    return ran, {n: there.get(max([v for v in there if v[0] == n], default=(n, 0))) for n in stays}


@settings(max_examples=60)
@given(unplaced(), policies, granularities)
def test_every_cut_computes_the_same(program: Program, policy: Any, seconds: float) -> None:
    """On any workers, in parts of any size: each launch runs once on what it ran on, and all that stays is the same.
    Parts need only parts before them, write nothing that they take, and have a plan that the verifier proves."""
    parts = cut(place(program, policy, policy.mesh), policy.mesh, part_seconds=seconds, costs=EAGER)
    assert computed_by_parts(program, parts) == computed(program)
    verify_parts(program, parts)
    for index, part in enumerate(parts):
        assert all(need < index for need in part.needs)
        assert not {b for i in part.program.instructions for b in i.writes} & {*part.takes}
        assert all("/" not in name for name in part.program.devices)
        verify(part.plan)
        assert sum(part.peak_bytes.values()) == part.plan.peak_bytes


def _mutant(parts: Sequence[Part], random: Random) -> list[Part]:
    """Return the parts with one mistake: a copy dropped, a stale version taken, two versions given in each other's
    place, a part too early, a launch left out or run twice."""
    wrong = list(parts)
    at = random.randrange(len(wrong))
    part = wrong[at]
    steps = list(part.program.instructions)
    match random.randrange(6):
        case 0 if any(isinstance(each, CopyDtoD) for each in steps):
            steps.remove(random.choice([each for each in steps if isinstance(each, CopyDtoD)]))
        case 1 if part.imports:
            n = random.randrange(len(part.imports))
            versions = [v for other in parts for v in other.exports] + [(part.imports[n][0], 0)]
            imports = (*part.imports[:n], random.choice(versions), *part.imports[n + 1 :])
            wrong[at] = replace(part, imports=imports)
            return wrong
        case 2 if len(part.gives) > 1:
            wrong[at] = replace(part, gives=(*part.gives[1:], part.gives[0]))
            return wrong
        case 3:
            wrong.insert(random.randrange(len(wrong)), wrong.pop(at))
            return wrong
        case 4:
            del steps[random.randrange(len(steps))]
        case _:
            steps.insert(random.randrange(len(steps)), random.choice(steps))
    program = replace(part.program, instructions=tuple(steps), policy_of=(0,) * len(steps))
    wrong[at] = replace(part, program=program)
    return wrong


@settings(max_examples=80)
@given(unplaced(), policies, granularities, st.integers(0, 9))
def test_mistakes_of_a_cut_are_found(program: Program, policy: Any, seconds: float, seed: int) -> None:
    """Whatever mistake changes what is computed, or leaves a part without what it takes, is refused."""
    parts = cut(place(program, policy, policy.mesh), policy.mesh, part_seconds=seconds, costs=EAGER)
    random, wanted = Random(seed), computed(program)
    for _ in range(6):
        wrong = _mutant(parts, random)
        if computed_by_parts(program, wrong) != wanted:
            with pytest.raises(PlanError):
                verify_parts(program, wrong)


def _changed_twice(*devices: int) -> Program:
    """A program that writes one buffer on `w0/host:0`, which a launch on another device reads, and changes it then."""
    buffers = (Buffer(8, 0, Role.OUTPUT), Buffer(8, 1, Role.OUTPUT))
    first, reader, second = launch((), (0,)), launch((0,), (1,), 1), launch((), (0,))
    instructions = (first, *[replace(reader, device=d) for d in devices], second)
    return Program(("w0/host:0", "w1/host:0"), buffers, instructions, (SingleStream(),), (0,) * len(instructions))


def test_a_version_that_another_worker_takes_is_not_written() -> None:
    """The part that changes it writes to a copy, also if it has made the version itself."""
    program = _changed_twice(1)
    parts = cut(program, workers(2), part_seconds=1.0)
    verify_parts(program, parts)
    mine, theirs = parts
    assert [type(each).__name__ for each in mine.program.instructions] == ["Launch", "CopyDtoD", "Launch"]
    assert mine.exports == ((0, 1), (0, 2))
    assert theirs.imports == ((0, 1),)
    assert theirs.needs == (0,)


def test_a_part_that_writes_what_it_takes_is_refused() -> None:
    """Others may read the version at the same time, and it is what the part takes when it is run again."""
    program = _changed_twice(1)
    first, second = cut(program, workers(2), part_seconds=1e-9)[:2]
    spoilt = replace(second, program=replace(second.program, instructions=(launch((), (second.takes[0],)),)))
    with pytest.raises(PlanError):
        verify_parts(program, [first, spoilt])


def test_chunks_are_as_long_as_asked() -> None:
    """A chain of ten launches of a millisecond on one worker: one part, five or ten."""
    chain = tuple([launch((0,), (0,)) for _ in range(10)])
    program = Program(("w0/host:0",), (Buffer(8, 0, Role.INPUT),), chain, (SingleStream(),), (0,) * 10)
    costs = CostModel(launch=1e-3)
    counts = [len(cut(program, workers(1), part_seconds=s, costs=costs)) for s in (1.0, 2e-3, 1e-9)]
    assert counts == [1, 5, 10]


def test_short_instructions_do_not_chain_parts() -> None:
    """Ten independent chains of an upload, a long launch and a download are ten parts that need nothing of each other,
    in whatever order the program has them."""
    count, view = 10, contiguous_layout((8,), np.dtype(np.uint8))
    cells, blocks, results = range(count), range(count, 3 * count), range(3 * count, 4 * count)
    buffers = (
        *[Buffer(0, HOST, Role.INPUT) for _ in cells],
        *[Buffer(8, 0, Role.TEMPORARY) for _ in blocks],
        *[Buffer(0, HOST, Role.OUTPUT) for _ in results],
    )
    chains: list[list[Instruction]] = []
    for at in range(count):
        source, out, result = blocks[at], blocks[count + at], results[at]
        up = CopyHtoD(View(source, view), Cell(cells[at]), (cells[at],), (source,), 0, None)
        down = CopyDtoH(Cell(result), View(out, view), (out,), (result,), 0, None)
        chains.append([up, launch((source,), (out,)), down])
    by_chain = [each for chain in chains for each in chain]
    by_kind = [chain[at] for at in range(3) for chain in chains]
    for instructions in (by_chain, by_kind):
        program = Program(("w0/host:0",), buffers, tuple(instructions), (SingleStream(),), (0,) * len(instructions))
        parts = cut(program, workers(1), part_seconds=0.05, costs=CostModel().declare({kernel().name: 0.1}))
        verify_parts(program, parts)
        assert [len(part.program.instructions) for part in parts] == [3] * count
        assert not any(part.needs for part in parts)


@pytest.mark.parametrize("target", [0, 1], ids=["the same device", "another device"])
@pytest.mark.parametrize("changed", [False, True])
def test_a_version_may_go_to_another_worker_and_back(target: int, changed: bool) -> None:
    """A part finds a version that it has made itself, also on another device of its worker, and after the buffer holds
    the next one."""
    buffers = (
        Buffer(8, 0, Role.OUTPUT), Buffer(8, 2, Role.TEMPORARY), Buffer(8, target, Role.TEMPORARY),
        Buffer(8, target, Role.OUTPUT),
    )  # fmt: skip
    view = contiguous_layout((8,), np.dtype(np.uint8))
    there = CopyDtoD(View(1, view), View(0, view), (0,), (1,), 2, None)
    back = CopyDtoD(View(2, view), View(1, view), (1,), (2,), target, None)
    change = [launch((0,), (0,))] if changed else []
    steps: tuple[Instruction, ...] = (launch((), (0,)), there, *change, back, launch((2,), (3,), target))
    devices = ("w0/host:0", "w0/host:1", "w1/host:0")
    program = Program(devices, buffers, steps, (SingleStream(),), (0,) * len(steps))
    for seconds in (1e-9, 1.0):
        verify_parts(program, cut(program, workers(2, 2), part_seconds=seconds))
