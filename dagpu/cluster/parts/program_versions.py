"""`ProgramVersions`: which contents of its buffers each instruction of a program uses and makes."""

from collections.abc import Sequence
from typing import Any, final

from dagpu.cluster.parts.part import Version
from dagpu.common.errors import CaptureError, ClusterError
from dagpu.common.origin import describe
from dagpu.handles.handle_trees import handles_in
from dagpu.lowering.program import Buffer, CopyDtoD, GraphLaunch, HostCall, Instruction, Items, Program, Role
from dagpu.lowering.schedule.links import node_of


@final
class ProgramVersions:
    """The versions of a program's buffers and cells.

    A copy of all bytes of a version to another worker makes no version: the other worker takes the same one.
    """

    def __init__(self, program: Program) -> None:
        nodes = [node_of(name) for name in program.devices]
        self.node_of = nodes
        """For each device, its worker."""
        buffers = program.buffers
        self.names: list[Version] = []
        """For each version, its buffer and its number."""
        self.maker: list[int] = []
        """For each version, the instruction that makes it; -1 if it exists before."""
        self.uses: list[tuple[tuple[int, int], ...]] = []
        """For each instruction, the buffers that it finds contents in, with their versions."""
        self.makes: list[tuple[tuple[int, int, int], ...]] = []
        """For each instruction, the buffers that it writes, with the version before, -1 if that is not used, and the
        new one."""
        self.passed: set[int] = set()
        """The instructions that are such copies."""
        newest, accesses = [-1] * len(buffers), program.accesses
        count = [0] * len(buffers)
        for buffer, each in enumerate(buffers):
            if each.role is Role.INPUT:
                newest[buffer] = self._new(buffer, 0, -1)
        self.start = list(newest)
        """For each buffer, its version before the program starts; -1 if it has none."""
        for index, instruction in enumerate(program.instructions):
            if type(instruction) is CopyDtoD and _passes(instruction, buffers, nodes):
                newest[instruction.out.buffer] = newest[instruction.source.buffer]
                self.passed.add(index)
                self.uses.append(())
                self.makes.append(())
                continue
            _refuse(instruction)
            found = [accesses.buffer[value] for value in accesses.uses[index]]
            self.uses.append(tuple([(buffer, newest[buffer]) for buffer in found if newest[buffer] >= 0]))
            makes: list[tuple[int, int, int]] = []
            for buffer in instruction.writes:
                old = newest[buffer] if buffer in found else -1
                count[buffer] += 1
                newest[buffer] = self._new(buffer, count[buffer], index)
                makes.append((buffer, old, newest[buffer]))
            self.makes.append(tuple(makes))
        self.last = newest
        """For each buffer, its version at the end."""

    def _new(self, buffer: int, number: int, maker: int) -> int:
        self.names.append((buffer, number))
        self.maker.append(maker)
        return len(self.names) - 1


def _passes(copy: CopyDtoD, buffers: Sequence[Buffer], nodes: Sequence[str]) -> bool:
    """Return whether a copy only takes all bytes of a buffer to a temporary of another worker."""
    source, out = buffers[copy.source.buffer], buffers[copy.out.buffer]
    return (
        out.role is Role.TEMPORARY
        and nodes[source.device] != nodes[out.device]
        and source.nbytes == out.nbytes == copy.out.layout.nbytes
        and copy.source.layout == copy.out.layout
    )


def _refuse(instruction: Instruction) -> None:
    """Raise for an instruction that only this process can run."""
    if isinstance(instruction, GraphLaunch):
        raise CaptureError(
            f"the graph {instruction.name} is launched at {describe(instruction.origin)}, and its memory is in this "
            "process. On a cluster run the op itself: workers make graphs of what runs often."
        )
    if isinstance(instruction, HostCall) and any(_handles(instruction.argument)):
        raise ClusterError(
            f"the function of the host_map at {describe(instruction.origin)} gets a handle, but on a cluster it runs "
            "on another machine. Give it arrays: .to_host().host_map(f)."
        )


def _handles(argument: Any) -> list[bool]:
    """Return a true value for each handle in the argument of a `HostCall`."""
    if type(argument) is Items:
        return [found for item in argument.items for found in _handles(item)]
    return [True for _ in handles_in(argument)]
