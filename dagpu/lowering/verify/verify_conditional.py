"""Proves an update that decides cutoffs by itself: in each outcome it leaves what a run from scratch would.

The program of such an update is executed as its `If`s say, for every set of cutoffs whose tensors may differ.
"""

from dataclasses import replace

from dagpu.common.errors import PlanError
from dagpu.lowering.updates.claims import Change, ConditionalUpdate, Subprogram, runs
from dagpu.lowering.verify.data_flow import Compared, comparisons_of
from dagpu.lowering.verify.verify_update import UpdateVerifier
from dagpu.plans.program import If, bodies_of
from dagpu.plans.verifier import CURE


def verify_conditional(verifier: UpdateVerifier, comparisons: Compared, update: ConditionalUpdate) -> None:
    """Prove a conditional update. `verifier` is that of the updates of the program.

    In each outcome, the targets must hold what a run from scratch leaves, where the changed sources have changed and
    those cutoffs let another tensor through whose tensors differ. The comparisons must be those of the cutoffs that the
    update is said to decide, and the targets that it makes those that it is said to make.

    Raises:
        PlanError: in some outcome that does not hold.
    """
    compared = comparisons_of(comparisons, update.cutoffs)
    flags = {each.flags for each in compared}
    for differing in update.outcomes():
        part = _executed(update.subprogram, {each.flags for each in compared if each.bit & differing})
        written = {buffer for buffer, _ in part.outputs}
        decided = sum([each.bit for each in compared if each.flags in written])
        made = {buffer for buffer, _, guard in update.made if runs(guard, differing)}
        if decided != update.compared(differing) or written - flags != made:
            raise PlanError(f"an update decides about other cutoffs or targets than it is said to. {CURE}")
        let_through = {each.buffer: each.passed for each in compared if each.passed is not None and each.bit & decided}
        change = Change(update.mask | differing, compare=decided)
        verifier.verify(change, part, let_through=let_through)


def _executed(update: Subprogram, flags: set[int]) -> Subprogram:
    """Return what of an update is executed if these flags are set, by their numbers in the whole program."""
    program = update.program
    here = {number for buffer, number in update.outputs if buffer in flags}
    chosen = [
        index
        for index, body in enumerate(bodies_of(program.instructions))
        if type(program.instructions[index]) is not If
        and (body < 0 or not here.isdisjoint(program.instructions[body].reads))
    ]
    instructions = tuple([program.instructions[index] for index in chosen])
    written = {buffer for instruction in instructions for buffer in instruction.writes}
    policies = tuple([program.policy_of[index] for index in chosen])
    executed = replace(program, instructions=instructions, policy_of=policies)
    outputs = tuple([(buffer, number) for buffer, number in update.outputs if number in written])
    return Subprogram(executed, update.chosen, update.inputs, outputs)
