"""The proof of updates derives by itself what it checks: a mistake of the planner of updates is no mistake of the
proof too."""

import ast
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final

import numpy as np
import pytest

import dagpu
from dagpu.common.errors import PlanError
from dagpu.reactive.claims import Change, Subprogram
from dagpu.reactive.staleness import Staleness
from dagpu.reactive.subprogram import extract
from dagpu.reactive.verify_updates import UpdateVerifier
from dagpu.testing import Buffer, CopyDtoD, Instruction, Program, Role, View, contiguous_layout
from tests.programs.plain_programs import launch, output, program, temporary

PACKAGE: Final = Path(dagpu.__file__).parent
PROOFS: Final = sorted((PACKAGE / "reactive").glob("verify_*.py"))


OF_FEEDS: Final = ("live_inputs", "sources", "compare_values")
"""The modules of traces that are about feeds."""


def test_proofs_import_claims_and_nothing_else_of_updates() -> None:
    """The proofs have what is claimed from `claims`, which is data, and nothing of what computes it."""
    allowed = {"dagpu.reactive.claims", *[f"dagpu.reactive.{path.stem}" for path in PROOFS]}
    planners = ("dagpu.reactive", *[f"dagpu.tracing.{name}" for name in OF_FEEDS])
    assert len(PROOFS) == 2
    assert all((PACKAGE / "tracing" / f"{name}.py").exists() for name in OF_FEEDS)
    for path in PROOFS:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(planners):
                assert node.module in allowed, f"{path.name} imports {node.module}"


def test_proofs_ask_the_analysis_nothing() -> None:
    """Of the planner's analysis a proof has the program, the bits of what comes from outside, and what is to be right
    after each update."""
    change, staleness, update = update_of(PAIR, 1)

    class Silent:
        program, bits, targets = staleness.program, staleness.bits, staleness.targets

    UpdateVerifier(Silent()).verify(change, update)


PAIR: Final[Program] = program(
    [launch((0,), (1, 2)), launch((1, 2), (3,))], [Buffer(64, 0, Role.INPUT), output(), output(), output()]
)
"""A kernel with two outputs, and one that reads both."""


def update_of(program: Program, mask: int) -> tuple[Change, Staleness, Subprogram]:
    """The update of a program whose buffers from outside have one bit each, in order."""
    inputs = [number for number, buffer in enumerate(program.buffers) if buffer.role is Role.INPUT]
    staleness = Staleness(program, {buffer: 1 << at for at, buffer in enumerate(inputs)})
    change = Change(mask)
    chosen = staleness.instructions_for(staleness.stale_targets(change))
    return change, staleness, extract(program, chosen, staleness.targets)


def test_an_update_that_swaps_two_outputs_of_a_kernel_is_refused() -> None:
    """Both are made by one launch of the same inputs, and differ all the same."""
    change, staleness, update = update_of(PAIR, 1)
    UpdateVerifier(staleness).verify(change, update)
    one, other, *rest = update.outputs
    swapped = ((one[0], other[1]), (other[0], one[1]), *rest)
    wrong = Subprogram(update.program, update.chosen, update.inputs, swapped)
    with pytest.raises(PlanError, match="stale"):
        UpdateVerifier(staleness).verify(change, wrong)


def test_an_update_that_reads_the_other_output_is_refused() -> None:
    """A kept output of a kernel is taken for its sibling."""
    whole = program(
        [launch((0,), (2, 3)), launch((2, 1), (4,)), launch((3, 1), (5,))],
        [*[Buffer(64, 0, Role.INPUT)] * 2, temporary(), temporary(), output(), output()],
    )
    change, staleness, update = update_of(whole, 2)
    UpdateVerifier(staleness).verify(change, update)
    here = dict(update.inputs)
    inputs = tuple([(buffer, {2: here[3], 3: here[2]}.get(buffer, at)) for buffer, at in update.inputs])
    with pytest.raises(PlanError, match="stale"):
        UpdateVerifier(staleness).verify(change, Subprogram(update.program, update.chosen, inputs, update.outputs))


def test_an_analysis_without_a_result_is_refused() -> None:
    """Each result of the program is a target: none is left as it was."""
    staleness = Staleness(PAIR, {0: 1})
    staleness.targets.discard(3)
    with pytest.raises(PlanError, match=r"results in buffers \[3\]"):
        UpdateVerifier(staleness)


def test_an_update_that_writes_a_part_needs_the_rest() -> None:
    """A copy to a part of a buffer that is made again without what was there before is refused, also if its `reads`
    leave the buffer out. The planner makes that again too."""
    half, whole = contiguous_layout((8,), np.dtype(np.float32)), contiguous_layout((16,), np.dtype(np.float32))
    part = CopyDtoD(View(2, half), View(1, half), (1,), (2,), 0, None)
    rest = CopyDtoD(View(2, whole), View(0, whole), (0,), (2,), 0, None)
    given = Buffer(64, 0, Role.INPUT)
    both = program([rest, part], [given, given, output()])
    change, staleness, update = update_of(both, 2)
    assert update.chosen == (0, 1)
    UpdateVerifier(staleness).verify(change, update)
    with pytest.raises(PlanError, match="stale"):
        UpdateVerifier(staleness).verify(change, extract(both, (1,), staleness.targets))


def test_an_update_that_leaves_an_earlier_version_of_a_kept_buffer_is_refused() -> None:
    """A kernel needs an earlier version of a result again, and that is made in its memory: then the last one is made
    again too, though its inputs have not changed."""
    whole = program(
        [launch((0,), (2,)), launch((2, 1), (3,)), launch((0,), (2,))],
        [*[Buffer(64, 0, Role.INPUT)] * 2, output(), output()],
    )
    change, staleness, update = update_of(whole, 2)
    assert update.chosen == (0, 1, 2)
    UpdateVerifier(staleness).verify(change, update)
    with pytest.raises(PlanError, match="stale"):
        UpdateVerifier(staleness).verify(change, extract(whole, (0, 1), staleness.targets))


Mutation = Callable[[Staleness], None]


def _no_bits(staleness: Staleness) -> None:
    """Forget that the last instruction depends on anything."""
    staleness.deps[-1] = 0


def _fewer_bits(staleness: Staleness) -> None:
    """Forget the first source."""
    staleness.deps[:] = [deps & ~1 for deps in staleness.deps]


@pytest.mark.parametrize("mutation", [_no_bits, _fewer_bits])
def test_a_mistake_of_the_analysis_is_noticed(mutation: Mutation) -> None:
    """Over random programs with two sources, each update that the mistaken analysis makes is refused, or is the right
    one; some are refused."""
    refused = 0
    for seed in range(200):
        whole = _random_program(Random(seed))
        right, wrong = (Staleness(whole, {0: 1, 1: 2}) for _ in range(2))
        mutation(wrong)
        for mask in (1, 2, 3):
            change = Change(mask)
            chosen = wrong.instructions_for(wrong.stale_targets(change))
            wanted = right.instructions_for(right.stale_targets(change))
            update = extract(whole, chosen, right.targets)
            try:
                UpdateVerifier(right).verify(change, update)
            except PlanError:
                refused += 1
            else:
                assert set(chosen) >= set(wanted), "what is left out was needed"
    assert refused > 20


def _random_program(chance: Random, again_share: float = 0.2) -> Program:
    """Launches with one or two outputs on two inputs. This share of what they write is a buffer that was written
    before."""
    buffers, instructions = [Buffer(64, 0, Role.INPUT)] * 2, list[Instruction]()
    known = [0, 1]
    for _ in range(chance.randint(2, 7)):
        reads = sorted({chance.choice(known) for _ in range(chance.randint(1, 3))})
        again = [buffer for buffer in known if buffer > 1 and buffer not in reads]
        writes = []
        for _ in range(chance.randint(1, 2)):
            if again and chance.random() < again_share:
                writes.append(again.pop(chance.randrange(len(again))))
            else:
                writes.append(len(buffers))
                buffers = [*buffers, output() if chance.random() < 0.5 else temporary()]
        known += [buffer for buffer in writes if buffer not in known]
        instructions.append(launch(reads, writes))
    return program(instructions, buffers)


Mistake = Callable[[Random, Program, Staleness, Change], Subprogram]
"""Makes a wrong update for a change."""


def _made(whole: Program, staleness: Staleness, change: Change) -> Subprogram:
    """The update that the planner makes."""
    return extract(whole, staleness.instructions_for(staleness.stale_targets(change)), staleness.targets)


def _left_out(chance: Random, whole: Program, staleness: Staleness, change: Change) -> Subprogram:
    """An instruction is missing."""
    chosen = list(_made(whole, staleness, change).chosen)
    del chosen[chance.randrange(len(chosen))]
    return extract(whole, tuple(chosen), staleness.targets)


def _turned(chance: Random, whole: Program, staleness: Staleness, change: Change) -> Subprogram:
    """Two neighbours have each other's place."""
    chosen = list(_made(whole, staleness, change).chosen)
    at = chance.randrange(len(chosen))
    chosen[at - 1 : at + 1] = chosen[at - 1 : at + 1][::-1]
    return extract(whole, tuple(chosen), staleness.targets)


def _unread_output(chance: Random, whole: Program, staleness: Staleness, change: Change) -> Subprogram:
    """A target that was made is not taken over."""
    update = _made(whole, staleness, change)
    outputs = list(update.outputs)
    del outputs[chance.randrange(len(outputs))]
    return Subprogram(update.program, update.chosen, update.inputs, tuple(outputs))


def _other_output(chance: Random, whole: Program, staleness: Staleness, change: Change) -> Subprogram:
    """A target is taken over from the memory of another one."""
    update = _made(whole, staleness, change)
    outputs = [(buffer, chance.choice(update.outputs)[1]) for buffer, _ in update.outputs]
    return Subprogram(update.program, update.chosen, update.inputs, tuple(outputs))


def _other_input(chance: Random, whole: Program, staleness: Staleness, change: Change) -> Subprogram:
    """A buffer is read in the place of another one."""
    update = _made(whole, staleness, change)
    inputs = [(chance.choice(update.inputs)[0], here) for _, here in update.inputs]
    return Subprogram(update.program, update.chosen, tuple(inputs), update.outputs)


def _lost_is_kept(_: Random, whole: Program, staleness: Staleness, change: Change) -> Subprogram:
    """What an update that failed has lost counts as right."""
    return _made(whole, staleness, change._replace(lost=frozenset()))


def _too_few_bits(chance: Random, whole: Program, staleness: Staleness, change: Change) -> Subprogram:
    """One of the sources that have changed is forgotten."""
    return _made(whole, staleness, change._replace(mask=change.mask & chance.choice((1, 2))))


def _taken_as_given(chance: Random, whole: Program, staleness: Staleness, change: Change) -> Subprogram:
    """What no other run has made is taken for given."""
    return _made(whole, staleness, change._replace(given=frozenset([chance.choice(sorted(staleness.targets))])))


def _left_for_later(chance: Random, whole: Program, staleness: Staleness, change: Change) -> Subprogram:
    """What waits for nothing is left for a later part."""
    return _made(whole, staleness, change._replace(wait=chance.choice((1, 2))))


def _made_before(chance: Random, whole: Program, staleness: Staleness, change: Change) -> Subprogram:
    """What no earlier part has made counts as made."""
    return _made(whole, staleness, change._replace(only=chance.choice((1, 2))))


MISTAKES: Final = (
    _left_out, _turned, _unread_output, _other_output, _other_input, _lost_is_kept, _too_few_bits, _taken_as_given,
    _left_for_later, _made_before,
)  # fmt: skip


@pytest.mark.parametrize("mistake", [None, *MISTAKES])
def test_a_proof_refuses_exactly_the_updates_that_leave_something_wrong(mistake: Mistake | None) -> None:
    """Over random programs, sets of sources and lost targets a wrong update is refused, and one that is right in spite
    of a mistake is not: an execution on terms, written apart from the proof, says which one it is."""
    refused = 0
    for seed in range(150):
        chance = Random(seed)
        whole = _random_program(chance, again_share=0.5)
        staleness = Staleness(whole, {0: 1, 1: 2})
        lost = frozenset([buffer for buffer in sorted(staleness.targets) if chance.random() < 0.3])
        change = Change(chance.randint(1, 3), lost=lost)
        if not _made(whole, staleness, change).chosen:
            continue
        update = _made(whole, staleness, change) if mistake is None else mistake(chance, whole, staleness, change)
        wrong = _leaves_wrong(whole, staleness, change, update)
        try:
            UpdateVerifier(staleness).verify(change, update)
        except PlanError:
            refused += 1
            assert wrong, seed
        else:
            assert not wrong, seed
    assert (refused == 0) if mistake is None else refused > 3, refused


def test_what_parts_of_an_update_leave_to_each_other_is_accepted() -> None:
    """A first part leaves what waits for a cutoff, a second one what the first has made, and each what another run has
    made; without that word each of them is refused somewhere."""
    refused = 0
    for seed in range(60):
        chance = Random(seed)
        whole = _random_program(chance)
        staleness = Staleness(whole, {0: 1, 1: 2})
        given = frozenset(sorted(staleness.targets)[:1])
        for change in (Change(3, wait=2), Change(3, only=2), Change(3, given=given)):
            update = _made(whole, staleness, change)
            UpdateVerifier(staleness).verify(change, update)
            try:
                UpdateVerifier(staleness).verify(Change(3), update)
            except PlanError:
                refused += 1
    assert refused > 60


def test_a_lost_target_may_stay_lost_exactly_if_nothing_reads_it() -> None:
    """An update that leaves it out is refused if something that runs reads it, or without that word."""
    accepted, refused = 0, 0
    for seed in range(60):
        whole = _random_program(Random(seed))
        staleness = Staleness(whole, {0: 1, 1: 2})
        for buffer in sorted(staleness.targets):
            change = Change(3, lost=frozenset((buffer,)), left=frozenset((buffer,)))
            update = _made(whole, staleness, change)
            if buffer in [written for written, _ in update.outputs]:
                continue
            if buffer in [read for read, _ in update.inputs]:
                with pytest.raises(PlanError):
                    UpdateVerifier(staleness).verify(change, update)
                refused += 1
                continue
            UpdateVerifier(staleness).verify(change, update)
            with pytest.raises(PlanError, match="stale"):
                UpdateVerifier(staleness).verify(change._replace(left=frozenset()), update)
            accepted += 1
    assert accepted > 20, accepted
    assert refused > 5, refused


Terms = dict[tuple[object, ...], int]


def _leaves_wrong(whole: Program, staleness: Staleness, change: Change, update: Subprogram) -> bool:
    """True if an update reads what holds nothing, or leaves a target that is not what a run from scratch leaves."""
    terms: Terms = {}
    before, after = [
        _executed(whole, {0: ("given", 0, 1 & mask), 1: ("given", 1, 2 & mask)}, terms) for mask in (0, change.mask)
    ]
    held = {buffer: before[buffer] for buffer in staleness.targets - change.lost}
    given = {0: ("given", 0, 1 & change.mask), 1: ("given", 1, 2 & change.mask)}
    memory = {here: given[buffer] if buffer in given else held.get(buffer) for buffer, here in update.inputs}
    read = {buffer for each in update.program.instructions for buffer in (*each.reads, *each.writes)}
    if any(term is None and here in read for here, term in memory.items()):
        return True
    left = _executed(update.program, memory, terms)
    held |= {buffer: left.get(here) for buffer, here in update.outputs}
    return any(held.get(buffer) != after[buffer] for buffer in staleness.targets)


def _executed(whole: Program, memory: dict[int, object], terms: Terms) -> dict[int, object]:
    """What launches leave in memory. They may read what they write."""
    memory = dict(memory)
    for each in whole.instructions:
        reads = (*each.reads, *[buffer for buffer in each.writes if buffer not in each.reads])
        found = tuple([memory.get(buffer) for buffer in reads])
        for at, buffer in enumerate(each.writes):
            memory[buffer] = terms.setdefault((len(each.writes), at, *found), len(terms))
    return memory
