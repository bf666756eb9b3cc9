"""Whom the errors of a run name: the instructions, with the user's file and line."""

from dagpu.common.origin import describe
from dagpu.lowering.plan import Execute, Plan
from dagpu.lowering.program import Instruction, Launch


def what(instruction: Instruction) -> str:
    """An instruction, as messages name it."""
    name = f"kernel {instruction.kernel.name!r}" if isinstance(instruction, Launch) else type(instruction).__name__
    return f"{name} at {describe(instruction.origin)}"


def instructions_of(plan: Plan) -> list[Instruction]:
    """All of them, in the plan's order."""
    return [step.instruction for step in plan.steps if isinstance(step, Execute)]
