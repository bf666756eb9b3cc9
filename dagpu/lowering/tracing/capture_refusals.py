"""Refuses ops that cannot be added to a graph's work: ops that make memory, wait for the host, or launch graphs."""

from typing import Final

from dagpu.common.errors import CaptureError
from dagpu.common.origin import Origin, describe
from dagpu.lowering.program import CopyDtoD, CopyDtoH, CopyHtoD, GraphLaunch, HostCall, Instruction, Launch
from dagpu.lowering.tracing.program_builder import BuilderMark, ProgramBuilder

_NEW_TENSOR: Final = "a new tensor"


def refuse_new_memory(builder: ProgramBuilder, mark: BuilderMark, how: str, where: Origin) -> None:
    """Raise `CaptureError` if an op that was added since the mark makes memory, waits for the host, or launches another
    graph."""
    for instruction in builder.instructions[mark.instructions :]:
        if isinstance(instruction, HostCall | CopyDtoH):
            raise waits_for_host_error(how, where, f": {_name_of(instruction)} at {describe(instruction.origin)}")
        new = [buffer for buffer in instruction.writes if buffer >= mark.buffers and buffer not in builder.inputs]
        if new or isinstance(instruction, GraphLaunch):
            what = "launches another graph" if isinstance(instruction, GraphLaunch) else "makes memory of its own"
            raise _capture_error(what, _name_of(instruction), instruction.origin, how, where)
    for origin in builder.unwritten_since(mark):
        raise _capture_error("makes memory of its own", _NEW_TENSOR, origin, how, where)


def _name_of(instruction: Instruction) -> str:
    """Return the words of the user's code for an instruction."""
    match instruction:
        case Launch():
            return instruction.kernel.label
        case GraphLaunch():
            return "graph launch"
        case HostCall():
            return "host_map"
        case CopyDtoH():
            return "to_host"
        case CopyHtoD():
            return "from_host"
        case CopyDtoD():
            return "a copy"
        case _:
            return _NEW_TENSOR


def waits_for_host_error(how: str, where: Origin, by: str = "") -> CaptureError:
    """Return the error for an op that was added to a graph's work and needs host data. `by` names the part of the op
    that needs them."""
    return CaptureError(
        f"the op {how} at {describe(where)} waits for data of the host{by}. Nothing waits here. Leave to_host() and "
        "host_map() to an op that runs after the launch."
    )


def _capture_error(what: str, name: str, origin: Origin, how: str, where: Origin) -> CaptureError:
    """Return the error for an op that was added to a graph's work and makes memory, or launches another graph."""
    return CaptureError(
        f"the op {how} at {describe(where)} {what}: {name} at {describe(origin)}. Such an op works on tensors "
        "that were made before, and lent: t.borrow(), t.borrow_mut().partition(tile). op.graph() captures ops that "
        "make memory."
    )
