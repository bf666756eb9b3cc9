"""Instructions as the errors of a run name them: with the user's file and line."""

from dagpu.common.places import describe
from dagpu.plans.plan import Execute, Plan
from dagpu.plans.program import Instruction, Launch


def describe_instruction(instruction: Instruction) -> str:
    """Return the text by which messages name an instruction."""
    name = f"kernel {instruction.kernel.name!r}" if isinstance(instruction, Launch) else type(instruction).__name__
    return f"{name} at {describe(instruction.origin)}"


def instructions_of(plan: Plan) -> list[Instruction]:
    """Return all instructions of a plan, in the plan's order."""
    return [step.instruction for step in plan.steps if isinstance(step, Execute)]
