"""The cut: turns a program on the devices of several workers into parts, of which each runs on one worker.

A part is a class of instructions: those of one worker, one *epoch* and one *chunk*. The epoch of an instruction counts
the changes of workers on the longest way to it; a chunk is full when its instructions take `part_seconds`. Whatever an
instruction uses was made in an earlier epoch, or on its own worker in an earlier or the same chunk. So the graph of
parts has no cycle, however the program is placed. Chunks are what overlaps: without them a worker waits for all of an
epoch before it begins the next one.
"""

from collections.abc import Sequence
from typing import Any, Final, final

import numpy as np

from dagpu.cluster.parts.part import Part, Version
from dagpu.common.errors import CaptureError, ClusterError
from dagpu.common.layout import contiguous_layout
from dagpu.common.origin import describe
from dagpu.handles.device_handles import is_automatic
from dagpu.handles.handle_trees import handles_in
from dagpu.lowering.program import (
    HOST,
    Buffer,
    Cell,
    CopyDtoD,
    CopyHtoD,
    Fill,
    GraphLaunch,
    HostCall,
    Instruction,
    Items,
    Launch,
    Program,
    Role,
    View,
)
from dagpu.lowering.schedule.cost_model import CostModel
from dagpu.lowering.schedule.links import node_of
from dagpu.lowering.schedule.list_schedule import ListSchedule
from dagpu.lowering.schedule.mesh import Mesh
from dagpu.lowering.schedule.placing import place
from dagpu.lowering.schedule.spread import Spread
from dagpu.lowering.updates.subprogram import Renumbering
from dagpu.runtime.execute import quiet_collector

_POLICIES: Final = (ListSchedule(),)
"""The policy by which each worker plans its parts."""
_BYTES: Final = np.dtype(np.uint8)


def cut(program: Program, mesh: Mesh, *, part_seconds: float, costs: CostModel | None = None) -> Sequence[Part]:
    """Return the parts of a program, each after those whose versions it takes.

    Work that is on no device yet is placed on the mesh first. Time: linear in the instructions and what they access.

    Args:
        program: the program.
        mesh: the devices of all workers.
        part_seconds: the predicted time after which a part is full, in seconds.
        costs: the cost model that predicts times.

    Raises:
        CaptureError: the program launches a captured graph, whose memory is in this process.
        ClusterError: a function of `host_map` gets a handle, whose memory is on another machine.
    """
    model = CostModel() if costs is None else costs
    if any(map(is_automatic, program.devices)):
        program = place(program, Spread(mesh, costs=model), mesh)
    with quiet_collector():
        versions = _Versions(program)
        drafts, home = _assign(program, versions, model.times(program), part_seconds)
        wanted = _wanted_versions(program, versions, home)
        return [_Writer(program, versions, home, wanted).part(draft) for draft in drafts]


@final
class _Versions:
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
        newest = [-1] * len(buffers)
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
            found = dict.fromkeys(instruction.reads)
            if type(instruction) is not CopyHtoD:
                _refuse(instruction)
                found.update(dict.fromkeys(_cells_of(instruction)))
            covers = _covers(instruction, buffers)
            makes: list[tuple[int, int, int]] = []
            for buffer in instruction.writes:
                old = -1 if covers and buffer not in found else newest[buffer]
                if old >= 0:
                    found[buffer] = None
                makes.append((buffer, old, -1))
            self.uses.append(tuple([(buffer, newest[buffer]) for buffer in found if newest[buffer] >= 0]))
            for at, (buffer, old, _) in enumerate(makes):
                count[buffer] += 1
                newest[buffer] = self._new(buffer, count[buffer], index)
                makes[at] = buffer, old, newest[buffer]
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


def _covers(instruction: Instruction, buffers: Sequence[Buffer]) -> bool:
    """Return whether an instruction writes all of its output, and so uses nothing of what was there."""
    if isinstance(instruction, Fill | CopyHtoD | CopyDtoD):
        return instruction.out.layout.nbytes == buffers[instruction.out.buffer].nbytes
    return False


def _cells_of(instruction: Instruction) -> list[int]:
    """Return the cells that an instruction uses and that are not in its `reads`: numbers and seeds."""
    if type(instruction) is Launch:
        return [operand.buffer for operand in instruction.args if type(operand) is Cell]
    if type(instruction) is Fill and instruction.seed is not None:
        return [instruction.seed.buffer]
    return []


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


@final
class _Draft:
    """A part before its program is written."""

    __slots__ = ("at", "seconds", "steps")

    def __init__(self, at: tuple[str, int, int]) -> None:
        self.at = at
        """The worker, the epoch and the chunk."""
        self.steps: list[int] = []
        self.seconds = 0.0


def _assign(
    program: Program, versions: _Versions, times: Sequence[float], part_seconds: float
) -> tuple[list[_Draft], list[int]]:
    """Return the drafts of the parts, each after those that it needs, and for each instruction the index of its own."""
    epochs = [0] * len(times)
    nodes, maker = [versions.node_of[i.device] for i in program.instructions], versions.maker
    newest: dict[tuple[str, int], _Draft] = {}
    drafts: list[_Draft] = []
    owner: list[_Draft | None] = []
    for index, node in enumerate(nodes):
        if index in versions.passed:
            owner.append(None)
            continue
        epoch = 0
        for _, version in versions.uses[index]:
            made = maker[version]
            if made >= 0:
                after = epochs[made] + (nodes[made] != node)
                if after > epoch:
                    epoch = after
        epochs[index] = epoch
        draft = newest.get((node, epoch))
        if draft is None or draft.seconds >= part_seconds:
            chunk = 0 if draft is None else draft.at[2] + 1
            draft = newest[node, epoch] = _Draft((node, epoch, chunk))
            drafts.append(draft)
        draft.steps.append(index)
        draft.seconds += times[index]
        owner.append(draft)
    drafts.sort(key=lambda draft: (draft.at[1], draft.at[2], draft.at[0]))
    number = {draft.at: at for at, draft in enumerate(drafts)}
    return drafts, [-1 if draft is None else number[draft.at] for draft in owner]


def _wanted_versions(program: Program, versions: _Versions, home: Sequence[int]) -> set[int]:
    """Return the versions that leave the part that makes them: for other parts, or because they outlive the program."""
    wanted: set[int] = set()
    maker = versions.maker
    for index, uses in enumerate(versions.uses):
        for _, version in uses:
            made = maker[version]
            if made >= 0 and home[made] != home[index]:
                wanted.add(version)
    for buffer, version in enumerate(versions.last):
        if version >= 0 and maker[version] >= 0 and program.buffers[buffer].role is not Role.TEMPORARY:
            wanted.add(version)
    return wanted


@final
class _Writer:
    """Writes the program of one part."""

    def __init__(self, program: Program, versions: _Versions, home: Sequence[int], wanted: set[int]) -> None:
        self._program = program
        self._versions = versions
        self._home = home
        self._wanted = wanted
        self._local: dict[tuple[int, int], int] = {}
        """For each version in the part and the device that it is on, its buffer in the part."""
        self._buffers: list[Buffer] = []
        self._devices: dict[int, int] = {}
        self._instructions: list[Instruction] = []
        self._imports: list[tuple[int, int]] = []
        self._exports: list[tuple[int, int]] = []
        self._renumbering = Renumbering()

    def part(self, draft: _Draft) -> Part:
        """Return the part of a draft."""
        for index in draft.steps:
            self._write(index)
        for _, buffer in self._exports:
            old = self._buffers[buffer]
            if old.role is not Role.OUTPUT:
                self._buffers[buffer] = Buffer(old.nbytes, old.device, Role.OUTPUT)
        worker, epoch, chunk = draft.at
        names, maker = self._versions.names, self._versions.maker
        program = Program(
            tuple([self._program.devices[device].rpartition("/")[2] for device in self._devices]),
            tuple(self._buffers),
            tuple(self._instructions),
            _POLICIES,
            (0,) * len(self._instructions),
        )
        needs = {self._home[maker[version]] for version, _ in self._imports if maker[version] >= 0}
        return Part(
            worker,
            epoch,
            chunk,
            program,
            tuple([names[version] for version, _ in self._imports]),
            tuple([buffer for _, buffer in self._imports]),
            tuple([names[version] for version, _ in self._exports]),
            tuple([buffer for _, buffer in self._exports]),
            tuple(sorted(needs)),
            draft.seconds,
        )

    def _write(self, index: int) -> None:
        """Write one instruction, after the copies of what it changes and must not write."""
        old, versions = self._program.instructions[index], self._versions
        node = versions.node_of[old.device]
        numbers: dict[int, int] = {}
        for buffer, version in versions.uses[index]:
            numbers[buffer] = self._find(buffer, version, old.device, node)
        for buffer, before, after in versions.makes[index]:
            device = self._program.buffers[buffer].device
            here = numbers.get(buffer, -1) if before >= 0 else -1
            if here < 0 or before in self._wanted or self._buffers[here].role is Role.INPUT:
                role = Role.OUTPUT if device == HOST else Role.TEMPORARY
                there = self._new_buffer(buffer, device, role)
                if here >= 0:
                    self._copy(here, there, old)
                here = there
            numbers[buffer] = self._local[after, device] = here
            if after in self._wanted:
                self._exports.append((after, here))
        self._instructions.append(self._renumbering.instruction(old, numbers, self._device(old.device)))

    def _find(self, buffer: int, version: int, device: int, node: str) -> int:
        """Return the buffer of the part with a version that an instruction on `device` uses. A version of another
        worker is taken to that device."""
        home = self._program.buffers[buffer].device
        if home != HOST and self._versions.node_of[home] != node:
            home = device
        found = self._local.get((version, home))
        if found is None:
            found = self._local[version, home] = self._new_buffer(buffer, home, Role.INPUT)
            self._imports.append((version, found))
        return found

    def _new_buffer(self, buffer: int, device: int, role: Role) -> int:
        number = HOST if device == HOST else self._device(device)
        self._buffers.append(Buffer(self._program.buffers[buffer].nbytes, number, role))
        return len(self._buffers) - 1

    def _device(self, device: int) -> int:
        """Return the number of a device in the part."""
        return self._devices.setdefault(device, len(self._devices))

    def _copy(self, source: int, into: int, why: Instruction) -> None:
        """Copy a version that outlives the part, or was taken, before it is changed."""
        buffer = self._buffers[into]
        whole = contiguous_layout((buffer.nbytes,), _BYTES)
        views = View(into, whole), View(source, whole)
        self._instructions.append(CopyDtoD(*views, (source,), (into,), buffer.device, why.origin))
