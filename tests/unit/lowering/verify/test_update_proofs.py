"""The proof of updates derives by itself what it checks: a mistake of the planner of updates is no mistake of the
proof too."""

import ast
from pathlib import Path
from typing import Final

import pytest

import dagpu
from dagpu.common.errors import PlanError
from dagpu.lowering.program import Buffer, Program, Role
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
