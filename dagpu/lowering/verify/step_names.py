"""Names of the steps of a plan in the verifier's messages."""

from typing import Final

from dagpu.common.origin import describe
from dagpu.lowering.plan import Allocate, Execute, Plan, Record, Release, Wait
from dagpu.lowering.program import label

CURE: Final = (
    "The plan is at fault, not the program: place it with SingleStream() for now, "
    "and report it together with what print(plan) shows."
)


def name_of(plan: Plan, at: int) -> str:
    """Name a step for a message: `step 7 (Launch saxpy, lane 1, at file.py:12)`. Steps count from 1, as in
    `print(plan)`.

    A step that executes no instruction has no origin of its own, so the message names the instruction that it serves.
    For a buffer this is the first instruction that uses it. For an event it is the one before the record or after the
    wait, on the same lane.
    """
    step = plan.steps[at]
    served: Execute | None = None
    match step:
        case Execute(instruction, _):
            return f"step {at + 1} ({label(instruction)}, lane {step.lane}, at {describe(instruction.origin)})"
        case Allocate(buffer, _) | Release(buffer, _):
            what = f"{type(step).__name__} of buffer {buffer}"
            for other in plan.steps:
                if isinstance(other, Execute) and buffer in (
                    *other.instruction.reads,
                    *other.instruction.writes,
                ):
                    served = other
                    break
        case Record(event, _) | Wait(event, _):
            what = f"{type(step).__name__} of event {event}"
            nearby = plan.steps[at:] if isinstance(step, Wait) else reversed(plan.steps[:at])
            for other in nearby:
                if isinstance(other, Execute) and other.lane == step.lane:
                    served = other
                    break
    where = "" if served is None else f", for {label(served.instruction)} at {describe(served.instruction.origin)}"
    return f"step {at + 1} ({what}, lane {step.lane}{where})"
