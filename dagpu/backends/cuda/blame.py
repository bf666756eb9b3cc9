"""Whom the errors of a run name: the instructions, with the user's file and line."""

from typing import TYPE_CHECKING

from dagpu.backends.cuda.driver import OUT_OF_MEMORY
from dagpu.errors import OutOfMemoryError
from dagpu.lowering.plan import Execute, Plan
from dagpu.lowering.program import Instruction, Launch, Role
from dagpu.origin import describe

if TYPE_CHECKING:
    from dagpu.backends.cuda.device import CudaDevice


def what(instruction: Instruction) -> str:
    """An instruction, as messages name it."""
    name = f"kernel {instruction.kernel.name!r}" if isinstance(instruction, Launch) else type(instruction).__name__
    return f"{name} at {describe(instruction.origin)}"


def instructions_of(plan: Plan) -> list[Instruction]:
    """All of them, in the plan's order."""
    return [step.instruction for step in plan.steps if isinstance(step, Execute)]


def out_of_memory(plan: Plan, device: "CudaDevice", number: int, nbytes: int, output: int | None) -> OutOfMemoryError:
    """There is no room for an output of a plan, or (None) for its temporaries on a device, whose number in the plan is
    given. The temporaries are blamed on what writes the largest of them."""
    writers = {written: use for use in reversed(instructions_of(plan)) for written in use.writes}
    here = [b for b in writers if plan.buffers[b].device == number and plan.buffers[b].role is Role.TEMPORARY]
    blamed = max(here, key=lambda b: plan.buffers[b].nbytes, default=None) if output is None else output
    purpose = "a result" if output is not None else "the temporaries of a run"
    if output is None and blamed is not None:
        purpose += f", the largest of them {plan.buffers[blamed].nbytes:,}"
    if blamed in writers:
        purpose += f", written by {what(writers[blamed])}"
    free, total = device.gpu.memory_info()
    return OutOfMemoryError(
        f"{device.name}: no room for {nbytes:,} bytes ({nbytes / 2**30:.2f} GiB) for {purpose}. {free:,} of {total:,} "
        f"bytes are free, and dagpu's handles and runs hold {device.memory.used:,}. Let go of handles that are no "
        "longer needed, or cut the work into smaller pieces.",
        OUT_OF_MEMORY,
    )
