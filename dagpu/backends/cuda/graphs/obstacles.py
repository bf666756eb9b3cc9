"""Why a plan cannot be one CUDA graph."""

from dagpu.common.errors import CaptureError
from dagpu.common.places import describe
from dagpu.handles.device_handles import UserBody
from dagpu.plans.plan import Execute, Plan
from dagpu.plans.program import GraphLaunch, HostCall, Instruction, Launch


def obstacle(plan: Plan) -> tuple[Instruction | None, str] | None:
    """Return the reason why a plan cannot be one graph: the instruction that prevents it, if there is one, and the
    cause with its cure. None if the plan can be one graph."""
    for step in plan.steps:
        if isinstance(step, Execute):
            instruction = step.instruction
            if isinstance(instruction, HostCall):
                return instruction, "it calls a function of the host. Take the host_map out of the captured op"
            if isinstance(instruction, GraphLaunch):
                return instruction, "it launches a graph itself. Launch both, one after the other"
            body = body_of(instruction)
            if body is not None and body.capture == "never":
                return instruction, 'it is declared with capture="never". Declare it with @foreign(capture="auto")'
    own = {(lane.device, lane.key) for lane in plan.lanes if not isinstance(lane.key, int)}
    if len(own) > 1:
        return None, "it is on several streams of your own, and a graph is launched on one stream. Use only one of them"
    if any(device for device, _ in own):
        return None, "it is on a stream of your own, and begins on another device. Use a stream of the first device"
    return None


def cannot_capture(instruction: Instruction | None, why: str) -> CaptureError:
    """Return the error for a plan that cannot be one graph. The arguments are those that `obstacle` returns."""
    where = f" at {describe(instruction.origin)}" if instruction is not None else ""
    what = f"{type(instruction).__name__}{where}" if instruction is not None else "the op"
    return CaptureError(f"{what} cannot be part of a CUDA graph: {why}.")


def body_of(instruction: Instruction) -> UserBody | None:
    """Return the user's body that an instruction calls; None if it calls none."""
    body = instruction.kernel.library if isinstance(instruction, Launch) else None
    return body if isinstance(body, UserBody) else None
