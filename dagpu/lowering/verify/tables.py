"""Checks of a plan that need no walk over its steps: the indices are in range, and the sums of bytes are right."""

from dagpu.common.errors import PlanError
from dagpu.lowering.plan import ALIGNMENT, Plan
from dagpu.lowering.program import HOST, Buffer, Role
from dagpu.lowering.verify.step_names import CURE


def check_tables(plan: Plan) -> None:
    """Check that `lanes` and `buffers` refer to devices of the plan, and that the sums of bytes are right.

    Raises:
        PlanError: an index is out of range, or a sum is wrong.
    """
    for index, lane in enumerate(plan.lanes):
        if not 0 <= lane.device < len(plan.devices):
            raise PlanError(f"lane {index} is on device {lane.device} of {len(plan.devices)}. {CURE}")
    for number, buffer in enumerate(plan.buffers):
        if not HOST <= buffer.device < len(plan.devices) or buffer.nbytes < 0:
            raise PlanError(
                f"buffer {number} has {buffer.nbytes} bytes on device {buffer.device} of {len(plan.devices)}. {CURE}"
            )
    if len(plan.offsets) != len(plan.buffers) or len(plan.arena_bytes) != len(plan.devices):
        raise PlanError(
            f"{len(plan.offsets)} offsets for {len(plan.buffers)} buffers, and {len(plan.arena_bytes)} arenas for "
            f"{len(plan.devices)} devices. {CURE}"
        )
    ends, handed_out = [0] * len(plan.devices), 0
    for number, (buffer, offset) in enumerate(zip(plan.buffers, plan.offsets, strict=True)):
        if offset >= 0 and buffer.role is Role.TEMPORARY and buffer.device != HOST and offset % ALIGNMENT == 0:
            ends[buffer.device] = max(ends[buffer.device], offset + buffer.nbytes)
        elif offset != -1:
            raise PlanError(f"buffer {number}, {_a(buffer)}, has the offset {offset} in an arena. {CURE}")
        if buffer.role is Role.OUTPUT and buffer.device != HOST:
            handed_out += buffer.nbytes
    for name, end, nbytes in zip(plan.devices, ends, plan.arena_bytes, strict=True):
        if end != nbytes:
            raise PlanError(f"the arena of {name} has {nbytes:,} bytes, and what lies in it takes {end:,}. {CURE}")
    if plan.peak_bytes != sum(ends) + handed_out:
        raise PlanError(
            f"peak_bytes is {plan.peak_bytes:,}, but the arenas take {sum(ends):,} and the outputs {handed_out:,}. "
            f"{CURE}"
        )


def _a(buffer: Buffer) -> str:
    """Name the kind of a buffer for a message."""
    return "a cell" if buffer.device == HOST else "a temporary" if buffer.role is Role.TEMPORARY else "not a temporary"
