"""Checks the bodies of a plan's `If`s: nothing reads what a body writes, unless the body has run then.

It knows nothing of cutoffs. A body has run where one of its flags is set. A flag that is written in a body is set only
if that body has run, because whoever starts a run clears all flags.
"""

from collections.abc import Sequence
from typing import final

from dagpu.common.errors import PlanError
from dagpu.lowering.plan import Execute, Plan
from dagpu.lowering.program import If, Instruction, Launch, bodies_of
from dagpu.lowering.verify.step_names import CURE, name_of


def verify_bodies(plan: Plan) -> None:
    """Check the bodies of a plan with an `If`.

    Raises:
        PlanError: a body is not complete, or contains an `If`, or something reads what a body writes that may not have
            run.
    """
    steps = [at for at, step in enumerate(plan.steps) if type(step) is Execute]
    _Walk(plan, steps, [step.instruction for step in plan.steps if type(step) is Execute]).run()


@final
class _Walk:
    """One walk over the instructions of a plan with bodies."""

    def __init__(self, plan: Plan, steps: Sequence[int], instructions: Sequence[Instruction]) -> None:
        self._plan = plan
        self._steps = steps
        self._instructions = instructions
        self._bodies = bodies_of(instructions)
        """For each instruction the index of the `If` in whose body it is; -1 for none."""
        self._written_in: dict[int, dict[int, int]] = {}
        """For each buffer the bodies that have written it, each with the last instruction that did."""

    def run(self) -> None:
        """Check all instructions in order."""
        for index, instruction in enumerate(self._instructions):
            body = self._bodies[index]
            if isinstance(instruction, If):
                if body >= 0:
                    raise PlanError(f"{self._name(index)} is in the body of {self._name(body)}. {CURE}")
                if index + instruction.body >= len(self._instructions):
                    raise PlanError(f"the body of {self._name(index)} ends after the plan does. {CURE}")
            else:
                self._check_reads(index, instruction, body)
            for buffer in instruction.writes:
                self._written_in.setdefault(buffer, {})[body] = index

    def _check_reads(self, index: int, instruction: Instruction, body: int) -> None:
        """Check that all bodies have run that write what an instruction reads. A kernel may read what it writes."""
        reads = [*instruction.reads, *(instruction.writes if type(instruction) is Launch else ())]
        for buffer in reads:
            for other, writer in self._written_in.get(buffer, {}).items():
                if other >= 0 and not self._has_run(other, body):
                    raise PlanError(
                        f"{self._name(index)} reads buffer {buffer}, which {self._name(writer)} writes only if "
                        f"{self._name(other)} lets it. {CURE}"
                    )

    def _has_run(self, other: int, body: int) -> bool:
        """Return true if the body `other` has run wherever something in `body` runs; -1 is outside of all bodies."""
        if body < 0:
            return False
        own = self._instructions[other].reads
        return other == body or all(
            flags in own or self._are_set_after(other, flags) for flags in self._instructions[body].reads
        )

    def _are_set_after(self, other: int, flags: int) -> bool:
        """Return true if these flags are set only where the body `other` has run."""
        setting = self._written_in.get(flags, {})
        return bool(setting) and all(self._has_run(other, body) for body in setting)

    def _name(self, index: int) -> str:
        return name_of(self._plan, self._steps[index])
