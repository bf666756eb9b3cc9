"""Each proof derives by itself what instructions read and write: a mistake in the accesses of a program, which all
planners read, makes a plan that is refused, or one that is right all the same.

What is right is said by walks that are written here, apart from planners and proofs.
"""

import ast
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Final, NoReturn

import pytest

import dagpu
from dagpu.cluster.cutting import Part, Version, cut
from dagpu.cluster.part_checks import verify_parts
from dagpu.common.errors import PlanError
from dagpu.plans import mesh_simulation
from dagpu.plans import program as programs
from dagpu.plans.placed_values import verify_placement
from dagpu.plans.placing import place
from dagpu.plans.policies import RoundRobin
from dagpu.plans.program import Accesses
from dagpu.reactive.claims import Change, Subprogram
from dagpu.reactive.staleness import Staleness
from dagpu.reactive.subprogram import extract
from dagpu.reactive.verify_updates import UpdateVerifier
from dagpu.testing import (
    Buffer,
    CopyDtoD,
    Execute,
    Instruction,
    Launch,
    Plan,
    Program,
    Record,
    Release,
    Role,
    View,
    Wait,
    schedule,
    verify,
)
from tests.programs.meshes import EAGER, Scatter, mesh, workers
from tests.programs.mixed_programs import FLAT, HALVES
from tests.programs.plain_programs import conflicts, kernel, program

PACKAGE: Final = Path(dagpu.__file__).parent
VERIFIERS: Final = [
    *(PACKAGE / "reactive").glob("verify_*.py"),
    *[PACKAGE / f"{proof}.py" for proof in ("plans/verifier", "plans/placed_values", "cluster/part_checks")],
]
SHARED: Final = {
    "accesses", "Accesses", "covers", "operands", "operands_in", "operand_values", "map_operands", "Renumbering",
    "Staleness", "ValueNumbers", "ProgramVersions", "Versions", "Dependences",
}  # fmt: skip
"""What planners share, and a proof must do without."""


def test_no_proof_names_what_planners_share() -> None:
    """By imports and by attributes."""
    assert len(VERIFIERS) == 5
    for path in VERIFIERS:
        for node in ast.walk(ast.parse(path.read_text())):
            names: set[str] = set()
            if isinstance(node, ast.ImportFrom):
                names = {each.name for each in node.names}
            elif isinstance(node, ast.Attribute):
                names = {node.attr}
            assert not names & SHARED, f"{path.name}, line {getattr(node, 'lineno', 0)}"


# ---- programs


def _random_program(chance: Random) -> Program:
    """Launches with one or two outputs, and copies of all or of a half, on inputs 0 and 1. Each launch is told apart by
    its grid."""
    buffers, instructions, known = [Buffer(64, 0, Role.INPUT)] * 2, list[Instruction](), [0, 1]
    for number in range(chance.randint(2, 9)):
        again, writes = [buffer for buffer in known if buffer > 1], list[int]()
        for _ in range(chance.choice((1, 1, 2))):
            if again and chance.random() < 0.4:
                writes.append(again.pop(chance.randrange(len(again))))
            else:
                writes.append(len(buffers))
                buffers = [*buffers, Buffer(64, 0, chance.choice((Role.OUTPUT, Role.TEMPORARY)))]
        reads = sorted({chance.choice(known) for _ in range(chance.randint(1, 3))} - {*writes})
        if reads and chance.random() < 0.3:
            out, source = writes[0], reads[0]
            layout = chance.choice((FLAT, *HALVES)) if out in known else FLAT
            writes, reads = [out], [source, out] if layout is not FLAT and chance.random() < 0.5 else [source]
            views = View(out, layout), View(source, layout)
            instructions.append(CopyDtoD(*views, tuple(reads), (out,), 0, None))
        else:
            instructions.append(Launch(_KERNEL, (), (number,), tuple(reads), tuple(writes), 0, None))
        known += [buffer for buffer in writes if buffer not in known]
    return program(instructions, buffers, RoundRobin(3))


_KERNEL: Final = kernel()


def _unplaced(whole: Program) -> Program:
    """The program on no device yet, but for its inputs."""
    buffers = [each if each.role is Role.INPUT else replace(each, device=1) for each in whole.buffers]
    instructions = [replace(each, device=1) for each in whole.instructions]
    devices = ("host:0", "host:auto")
    return replace(whole, devices=devices, buffers=tuple(buffers), instructions=tuple(instructions))


# ---- what is right

Contents = tuple[Hashable, Hashable]
"""What is in the halves of a buffer."""
NOTHING: Final[Contents] = None, None


def _execute(
    instructions: Iterable[Instruction], memory: dict[int, Contents], terms: dict[Hashable, int]
) -> Counter[Hashable]:
    """Change the contents of memory as instructions do, and return the launches that ran, with what they found. A
    launch may read what it writes."""
    ran: Counter[Hashable] = Counter()
    for each in instructions:
        if isinstance(each, Launch):
            found = each.grid, *[memory.get(b, NOTHING) for b in dict.fromkeys((*each.reads, *each.writes))]
            made = terms.setdefault(found, len(terms))
            ran[made] += 1
            memory |= {buffer: ((made, at, 0), (made, at, 1)) for at, buffer in enumerate(each.writes)}
        else:
            assert isinstance(each, CopyDtoD)
            source, (first, second) = memory.get(each.source.buffer, NOTHING), memory.get(each.out.buffer, NOTHING)
            halves = {HALVES[0]: (source[0], second), HALVES[1]: (first, source[1])}
            memory[each.out.buffer] = halves.get(each.out.layout, source)
    return ran


def _given(whole: Program, mask: int = 0) -> dict[int, Contents]:
    """What is in memory before a program, after a change of its inputs, which have a bit each."""
    inputs = [number for number, each in enumerate(whole.buffers) if each.role is Role.INPUT]
    return {number: ((number, mask >> number & 1, 0), (number, mask >> number & 1, 1)) for number in inputs}


def _stays(whole: Program, memory: dict[int, Contents]) -> list[Contents]:
    """What is in the memory that outlives a program."""
    return [memory.get(number, NOTHING) for number, each in enumerate(whole.buffers) if each.role is not Role.TEMPORARY]


def _is_right_plan(whole: Program, plan: Plan) -> bool:
    """Whether all that conflicts is ordered by lanes and events, and nothing uses memory that was released."""
    order = conflicts(whole.instructions)
    before: list[set[int]] = [set() for _ in plan.lanes]  # what is done for sure, on each lane
    events: dict[int, set[int]] = {}
    executed: list[Instruction] = []
    for step in plan.steps:
        if isinstance(step, Execute):
            if any((id(one), id(step.instruction)) in order and id(one) not in before[step.lane] for one in executed):
                return False
            executed.append(step.instruction)
            before[step.lane].add(id(step.instruction))
        elif isinstance(step, Record):
            events[step.event] = {*before[step.lane]}
        elif isinstance(step, Wait):
            before[step.lane] |= events[step.event]
        elif isinstance(step, Release):
            users = {id(each) for each in whole.instructions if step.buffer in (*each.reads, *each.writes)}
            if not users <= before[step.lane]:
                return False
    return True


def _is_right_update(staleness: Staleness, change: Change, update: Subprogram) -> bool:
    """Whether each target holds after an update what a run from scratch leaves."""
    whole, terms = staleness.program, dict[Hashable, int]()
    before, after = _given(whole), _given(whole, change.mask)
    given = dict(after)
    _execute(whole.instructions, before, terms)
    _execute(whole.instructions, after, terms)
    held = {buffer: before[buffer] for buffer in staleness.targets}
    memory = {here: given.get(buffer, held.get(buffer, NOTHING)) for buffer, here in update.inputs}
    _execute(update.program.instructions, memory, terms)
    held |= {buffer: memory.get(here, NOTHING) for buffer, here in update.outputs}
    results = {buffer for each in whole.instructions for buffer in each.writes if _is_result(whole, buffer)}
    return results <= staleness.targets and all(held[buffer] == after[buffer] for buffer in staleness.targets)


def _is_result(whole: Program, buffer: int) -> bool:
    return whole.buffers[buffer].role is Role.OUTPUT


def _is_right_placement(whole: Program, placed: Program) -> bool:
    """Whether each launch finds what it found before, and the same contents stay."""
    terms: dict[Hashable, int] = {}
    before, after = _given(whole), _given(whole)
    same = _execute(whole.instructions, before, terms) == _execute(placed.instructions, after, terms)
    return same and _stays(whole, before) == [
        after.get(number, NOTHING) for number, each in enumerate(whole.buffers) if each.role is not Role.TEMPORARY
    ]


def _are_right_parts(whole: Program, parts: Sequence[Part]) -> bool:
    """The same for parts, each with memory of its own."""
    terms: dict[Hashable, int] = {}
    before = _given(whole)
    there: dict[Version, Contents] = {(buffer, 0): held for buffer, held in before.items()}
    left, ran = _execute(whole.instructions, before, terms), Counter[Hashable]()
    for part in parts:
        if not {*part.imports} <= there.keys():
            return False
        memory = {buffer: there[version] for version, buffer in zip(part.imports, part.takes, strict=True)}
        ran += _execute(part.program.instructions, memory, terms)
        there |= {
            version: memory.get(buffer, NOTHING) for version, buffer in zip(part.exports, part.gives, strict=True)
        }
    newest = {buffer: held for (buffer, _), held in sorted(there.items(), key=lambda item: item[0])}
    return ran == left and _stays(whole, before) == _stays(whole, newest)


# ---- planners, each with its proof

Proof = Callable[[], None]
Planner = Callable[[Program, Random], tuple[bool, Proof]]
"""Plans something, and returns whether that is right and its proof."""


def _plan(whole: Program, _: Random) -> tuple[bool, Proof]:
    plan = schedule(whole)
    return _is_right_plan(whole, plan), lambda: verify(plan)


def _update(whole: Program, chance: Random) -> tuple[bool, Proof]:
    staleness, change = Staleness(whole, {0: 1, 1: 2}), Change(chance.randint(1, 3))
    update = extract(whole, staleness.instructions_for(staleness.stale_targets(change)), staleness.targets)
    return _is_right_update(staleness, change, update), lambda: UpdateVerifier(staleness).verify(change, update)


def _placement(whole: Program, chance: Random) -> tuple[bool, Proof]:
    placed = place(whole, Scatter(mesh(3), chance.randrange(100)), mesh(3))
    return _is_right_placement(whole, placed), lambda: verify_placement(whole, placed)


def _parts(whole: Program, chance: Random) -> tuple[bool, Proof]:
    parts = cut(whole, workers(3), part_seconds=chance.choice((1e-9, 3e-3, 1.0)), costs=EAGER)
    return _are_right_parts(whole, parts), lambda: verify_parts(whole, parts)


def _on_workers(whole: Program) -> Program:
    return place(_unplaced(whole), Scatter(workers(3), len(whole.instructions)), workers(3))


PLANNERS: Final[dict[Planner, Callable[[Program], Program]]] = {
    _plan: lambda whole: whole,
    _update: lambda whole: whole,
    _placement: _unplaced,
    _parts: _on_workers,
}
"""The planners, each with what makes a program for it."""


# ---- mistakes

Mistake = Callable[[Accesses, Random], None]


def _unmistaken(_: Accesses, __: Random) -> None:
    """No mistake."""


def _dropped_read(accesses: Accesses, chance: Random) -> None:
    """An instruction is said not to read one of its `reads`."""
    where = [(index, value) for index, reads in enumerate(accesses.reads) for value in reads]
    if where:
        index, value = chance.choice(where)
        accesses.uses[index] = [each for each in accesses.uses[index] if each != value]
        accesses.reads[index] = [each for each in accesses.reads[index] if each != value]
        accesses.predecessors[index] = [one for one in accesses.predecessors[index] if one != accesses.maker[value]]
        buffer = accesses.buffer[value]
        if accesses.last[buffer] == value:
            accesses.readers[buffer] = [one for one in accesses.readers[buffer] if one != index]


def _dropped_rest(accesses: Accesses, chance: Random) -> None:
    """An instruction is said to cover what it writes in part."""
    where = [
        (index, value)
        for index, uses in enumerate(accesses.uses)
        for value in uses
        if value in [accesses.before[made] for made in accesses.makes(index)]
    ]
    if where:
        index, value = chance.choice(where)
        accesses.uses[index].remove(value)


def _swapped_outputs(accesses: Accesses, chance: Random) -> None:
    """Two outputs of an instruction are taken for each other."""
    where = [index for index in range(len(accesses.reads)) if len(accesses.makes(index)) == 2]
    if where:
        one, other = accesses.makes(chance.choice(where))
        turned = {one: other, other: one}
        accesses.uses[:] = [[turned.get(value, value) for value in uses] for uses in accesses.uses]
        accesses.last[:] = [turned.get(value, value) for value in accesses.last]


def _earlier_writer(accesses: Accesses, chance: Random) -> None:
    """The value before one is taken for it."""
    where = [value for value, old in enumerate(accesses.before) if old >= 0]
    value = chance.choice(where)
    old, buffer = accesses.before[value], accesses.buffer[value]
    late, early = accesses.maker[value], accesses.maker[old]
    for index, uses in enumerate(accesses.uses):
        if value in uses:
            uses[uses.index(value)] = old
            before = accesses.predecessors[index]
            before = [early if one == late else one for one in before]
            accesses.predecessors[index] = [one for one in before if one >= 0]
    if accesses.last[buffer] == value and early >= 0:
        accesses.last[buffer], accesses.writer[buffer] = old, early


def _all_cover(_: Accesses, __: Random) -> None:
    """Every instruction is said to write all of its outputs."""


def _none_covers(_: Accesses, __: Random) -> None:
    """No instruction is said to."""


COVERS: Final[dict[Mistake, bool]] = {_all_cover: True, _none_covers: False}
MISTAKES: Final[dict[Mistake, set[Planner]]] = {
    _unmistaken: set(),
    _dropped_read: {_plan, _update, _placement},
    _dropped_rest: {_update, _placement, _parts},
    _swapped_outputs: {_placement, _parts},
    _earlier_writer: {_plan, _update},
    _all_cover: {_update, _placement, _parts},
    _none_covers: set(),
}
"""Mistakes, each with the planners that are often misled by it. Some programs mislead others too. By the last one
they only do more than they need."""


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda each: each.__name__.strip("_"))
def test_a_mistake_about_accesses_is_refused_or_does_no_harm(mistake: Mistake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over random programs, what is planned by mistaken accesses is right, or its proof refuses it, or the planner
    cannot make it."""
    refused: Counter[Planner] = Counter()
    for seed in range(60):
        for planner, prepared in PLANNERS.items():
            chance = Random(seed)
            whole = prepared(_random_program(chance))
            with monkeypatch.context() as patch:
                if mistake in COVERS:
                    patch.setattr(programs, "covers", lambda *_: COVERS[mistake])
                    patch.setattr(mesh_simulation, "covers", lambda *_: COVERS[mistake])
                wrong = replace(whole)
                accesses = wrong.accesses
                for each in (accesses.buffer, accesses.maker, accesses.before, accesses.reads, accesses.uses):
                    assert each is not None  # all is derived before the mistake
                mistake(accesses, chance)
                try:
                    right, proof = planner(wrong, chance)
                    proof()
                except PlanError:
                    refused[planner] += 1
                except KeyError:
                    assert MISTAKES[mistake], "it is not mistaken"
                else:
                    assert right, (planner, seed)
    misled = MISTAKES[mistake]
    assert refused.keys() >= misled if misled else not refused


@pytest.mark.parametrize("mistake", [_unmistaken, _dropped_read], ids=["right", "wrong"])
def test_a_proof_asks_a_program_for_no_accesses(mistake: Mistake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its verdict is the same where a program has none."""

    def refuse(*_: object) -> NoReturn:
        raise AssertionError("a proof has asked what planners share")

    for seed in range(12):
        for planner, prepared in PLANNERS.items():
            chance = Random(seed)
            wrong = replace(prepared(_random_program(chance)))
            assert wrong.accesses.uses is not None
            mistake(wrong.accesses, chance)
            try:
                _, proof = planner(wrong, chance)
            except KeyError:
                continue
            wanted = _is_accepted(proof)
            with monkeypatch.context() as patch:
                patch.setattr(Program, "accesses", property(refuse))
                for name in ("Accesses", "covers", "operands", "operands_in", "operand_values", "map_operands"):
                    patch.setattr(programs, name, refuse)
                assert _is_accepted(proof) == wanted


def _is_accepted(proof: Proof) -> bool:
    try:
        proof()
    except PlanError:
        return False
    return True
