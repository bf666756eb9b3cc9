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
from dagpu.common.layout import contiguous_layout
from dagpu.lowering.program import Buffer, CopyDtoD, Instruction, Program, Role, View
from dagpu.lowering.updates.staleness import Change, Staleness
from dagpu.lowering.updates.subprogram import Subprogram, extract
from dagpu.lowering.verify.verify_update import UpdateVerifier
from tests.programs.plain_programs import launch, output, program, temporary

VERIFY: Final = Path(dagpu.__file__).parent / "lowering" / "verify"
DATA: Final = {"Change", "Comparison", "ConditionalUpdate", "CutoffComparisons", "Dirt", "Dirty", "LeafDirt"}
DATA_OF_UPDATES: Final = {"Subprogram", "TileUpdate"}
"""What a proof may take over from the planner: the types of what it is to prove, and no function."""


def test_proofs_import_no_function_of_the_planner() -> None:
    """The files in `lowering/verify` import types of data from `lowering/updates`, and nothing that computes."""
    for path in VERIFY.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dagpu.lowering.updates"):
                names = {each.name for each in node.names}
                assert names <= DATA | DATA_OF_UPDATES | {"runs"}, f"{path.name} imports {sorted(names)}"


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
    leave the buffer out."""
    half, whole = contiguous_layout((8,), np.dtype(np.float32)), contiguous_layout((16,), np.dtype(np.float32))
    part = CopyDtoD(View(2, half), View(1, half), (1,), (2,), 0, None)
    rest = CopyDtoD(View(2, whole), View(0, whole), (0,), (2,), 0, None)
    given = Buffer(64, 0, Role.INPUT)
    change, staleness, update = update_of(program([rest, part], [given, given, output()]), 2)
    with pytest.raises(PlanError, match="stale"):
        UpdateVerifier(staleness).verify(change, update)


Mutation = Callable[[Staleness], None]


def _drop_read(staleness: Staleness) -> None:
    """Leave out the last thing that an instruction reads."""
    for needs, deps in zip(staleness.needs, range(len(staleness.deps)), strict=True):
        if len(needs) > 1:
            needs.pop()
            _depend_again(staleness, deps)


def _depend_again(staleness: Staleness, first: int) -> None:
    """Find the bits of the instructions from `first` on again."""
    for index in range(first, len(staleness.deps)):
        bits = 0
        for buffer, writer in staleness.needs[index]:
            bits |= staleness.bits.get(buffer, 0) if writer < 0 else staleness.deps[writer]
        staleness.deps[index] = bits


def _early_writer(staleness: Staleness) -> None:
    """Take the first writer of a buffer for its last one."""
    for buffer, writers in staleness.writers.items():
        staleness.last[buffer] = writers[0]


def _no_bits(staleness: Staleness) -> None:
    """Forget that the last instruction depends on anything."""
    staleness.deps[-1] = 0


def _fewer_bits(staleness: Staleness) -> None:
    """Forget the first source."""
    staleness.deps[:] = [deps & ~1 for deps in staleness.deps]


@pytest.mark.parametrize("mutation", [_drop_read, _early_writer, _no_bits, _fewer_bits])
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


def _random_program(chance: Random) -> Program:
    """Launches with one or two outputs on two inputs; some write a buffer again."""
    buffers, instructions = [Buffer(64, 0, Role.INPUT)] * 2, list[Instruction]()
    known = [0, 1]
    for _ in range(chance.randint(2, 7)):
        reads = sorted({chance.choice(known) for _ in range(chance.randint(1, 3))})
        again = [buffer for buffer in known if buffer > 1 and buffer not in reads]
        writes = []
        for _ in range(chance.randint(1, 2)):
            if again and chance.random() < 0.2:
                writes.append(again.pop(chance.randrange(len(again))))
            else:
                writes.append(len(buffers))
                buffers = [*buffers, output() if chance.random() < 0.5 else temporary()]
        known += [buffer for buffer in writes if buffer not in known]
        instructions.append(launch(reads, writes))
    return program(instructions, buffers)
