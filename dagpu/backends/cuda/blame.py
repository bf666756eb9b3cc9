"""Whom the errors of a run name: the instructions, with the user's file and line."""

from typing import TYPE_CHECKING

from dagpu.backends.cuda.driver import OUT_OF_MEMORY
from dagpu.errors import OutOfMemoryError
from dagpu.lowering.memory import describe_peak
from dagpu.lowering.plan import Execute, Plan
from dagpu.lowering.program import Instruction, Launch
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


def out_of_memory(plan: Plan, device: "CudaDevice", number: int, nbytes: int, purpose: str) -> OutOfMemoryError:
    """There is no room for something that a run of a plan needs on a device, whose number in the plan is given."""
    free, total = device.gpu.memory_info()
    return OutOfMemoryError(
        f"{device.name}: no room for {nbytes:,} bytes ({nbytes / 2**30:.2f} GiB) for {purpose}. A run takes "
        f"{plan.peak_bytes:,}; alive at the peak: {describe_peak(plan, number)}. {free:,} of {total:,} bytes are free, "
        f"and dagpu's handles and runs hold {device.memory.used:,}. Let go of handles that are no longer needed, or "
        "cut the work into smaller pieces.",
        OUT_OF_MEMORY,
    )
