"""The cut of a program into parts, of which each runs on one worker."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, final

import numpy as np

from dagpu.common.errors import CaptureError, ClusterError
from dagpu.common.layout import contiguous_layout
from dagpu.common.places import describe
from dagpu.handles.device_handles import is_automatic
from dagpu.handles.tensors import handles_in
from dagpu.plans.cost_model import DEFAULT_COSTS, CostModel
from dagpu.plans.list_schedule import ListSchedule
from dagpu.plans.mesh import Mesh, node_of
from dagpu.plans.placing import Spread, place
from dagpu.plans.plan import Plan, peak_bytes_on
from dagpu.plans.program import (
    HOST,
    Buffer,
    CopyDtoD,
    GraphLaunch,
    HostCall,
    Instruction,
    Items,
    Program,
    Renumbering,
    Role,
    View,
)
from dagpu.plans.scheduler import schedule
from dagpu.runtime.execute import quiet_collector

Version: TypeAlias = tuple[int, int]
"""Contents of a buffer of the whole program between two writes: the buffer, and the number of writes before."""


@final
@dataclass(frozen=True, eq=False, slots=True)
class Part:
    """What one worker gets: a program of its own, with the versions that it takes from other parts, from the caller or
    from earlier runs, and those that it gives.

    A version is a value that is never written: a part that changes one changes a copy.
    """

    worker: str
    """The worker that is to run it, which is the node in the names of its devices. Any other would compute the same."""
    epoch: int
    """The most changes of workers on a way from the start of the program to the part."""
    chunk: int
    """The number of the part among those of its worker and epoch, in the order of the program."""
    program: Program
    """Its instructions. The names of their devices are the worker's own, without the name of the worker."""
    imports: tuple[Version, ...]
    """The versions that it takes."""
    takes: tuple[int, ...]
    """For each of `imports`, the buffer of `program` that holds it before the part starts."""
    exports: tuple[Version, ...]
    """The versions that it makes and that other parts, or the caller, want."""
    gives: tuple[int, ...]
    """For each of `exports`, the buffer of `program` that holds it when the part ends."""
    needs: tuple[int, ...]
    """The indices of the parts that make its imports; each is less than its own."""
    seconds: float
    """The predicted time of its instructions, one after the other."""

    _plans: list[Plan] = field(default_factory=list, repr=False)
    """The plan of the part, once it has been asked for."""

    @property
    def plan(self) -> Plan:
        """The plan of the part, as its worker makes it."""
        if not self._plans:
            self._plans.append(schedule(self.program))
        return self._plans[0]

    @property
    def peak_bytes(self) -> Mapping[str, int]:
        """The bytes that the part allocates on each device of its worker, beyond what it takes."""
        return peak_bytes_on(self.plan)


# ---- program versions
#
# `ProgramVersions`: which contents of its buffers each instruction of a program uses and makes.


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


# ---- part writer
#
# `PartWriter`: writes the program of one part, with copies of the versions that it changes and must not write.

LIGHT: Final = 0.1
"""The share of a part's time up to which an instruction goes into the part of what it needs, or of what needs it."""
_POLICIES: Final = (ListSchedule(),)
"""The policy by which each worker plans its parts."""
_BYTES: Final = np.dtype(np.uint8)


@final
class Draft:
    """A part before its program is written."""

    __slots__ = ("_room", "at", "seconds", "steps")

    def __init__(self, at: tuple[str, int, int], part_seconds: float) -> None:
        self.at = at
        """The worker, the epoch and the chunk."""
        self.steps: list[int] = []
        """Its instructions. Each is after those that make what it uses."""
        self.seconds = 0.0
        self._room = part_seconds
        """The seconds up to which instructions are added; once it is full, a tenth more than it has."""

    def add(self, index: int, seconds: float) -> None:
        """Add an instruction, which takes `seconds`."""
        full = self.seconds >= self._room
        self.steps.append(index)
        self.seconds += seconds
        if not full and self.seconds >= self._room:
            self._room = self.seconds * (1 + LIGHT)

    def has_room(self, seconds: float) -> bool:
        """Return whether an instruction fits in that takes `seconds`."""
        return self.seconds + seconds <= self._room


@final
class PartWriter:
    """Writes the program of one part."""

    def __init__(self, program: Program, versions: ProgramVersions, home: Sequence[int], wanted: set[int]) -> None:
        self._program = program
        self._versions = versions
        self._home = home
        self._wanted = wanted
        self._local: dict[tuple[int, int], int] = {}
        """For each version in the part and the device that it is on, its buffer in the part."""
        self._made: dict[int, int] = {}
        """For each version that the part makes, the buffer that it makes it in."""
        self._last_use: dict[int, int] = {}
        """For each version, the last instruction of the part that uses it."""
        self._buffers: list[Buffer] = []
        self._devices: dict[int, int] = {}
        self._instructions: list[Instruction] = []
        self._imports: list[tuple[int, int]] = []
        self._exports: list[tuple[int, int]] = []
        self._renumbering = Renumbering()

    def part(self, draft: Draft) -> Part:
        """Return the part of a draft."""
        for at, index in enumerate(draft.steps):
            for _, version in self._versions.uses[index]:
                self._last_use[version] = at
        for at, index in enumerate(draft.steps):
            self._write(at, index)
        for _, buffer in self._exports:
            old = self._buffers[buffer]
            if old.role is Role.TEMPORARY:
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

    def _write(self, at: int, index: int) -> None:
        """Write instruction number `at` of the part, after the copies of what it changes and must not write."""
        old, versions = self._program.instructions[index], self._versions
        node = versions.node_of[old.device]
        numbers: dict[int, int] = {}
        for buffer, version in versions.uses[index]:
            numbers[buffer] = self._find(buffer, version, old, node)
        for buffer, before, after in versions.makes[index]:
            device = self._program.buffers[buffer].device
            here = numbers.get(buffer, -1) if before >= 0 else -1
            kept = here >= 0 and (before in self._wanted or self._last_use[before] > at)
            shares = device == HOST and here >= 0  # it stands for the variables of a module, and has no bytes
            if not shares and (here < 0 or kept or self._buffers[here].role is Role.INPUT):
                role = Role.OUTPUT if device == HOST else Role.TEMPORARY
                there = self._new_buffer(buffer, device, role)
                if here >= 0:
                    self._copy(here, there, old)
                here = there
            numbers[buffer] = self._local[after, device] = self._made[after] = here
            if after in self._wanted:
                self._exports.append((after, here))
        self._instructions.append(self._renumbering.instruction(old, numbers, self._device(old.device)))

    def _find(self, buffer: int, version: int, why: Instruction, node: str) -> int:
        """Return the buffer of the part with a version that an instruction uses. A version of another worker is taken
        to the instruction's device."""
        home = self._program.buffers[buffer].device
        if home != HOST and self._versions.node_of[home] != node:
            home = why.device
        found = self._local.get((version, home))
        if found is None and version in self._made:  # it went to another worker and back, to another device
            found = self._local[version, home] = self._new_buffer(buffer, home, Role.TEMPORARY)
            self._copy(self._made[version], found, why)
        elif found is None:
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


# ---- cutting
#
# The cut: turns a program on the devices of several workers into parts, of which each runs on one worker.
#
# A part is a class of instructions: those of one worker, one *epoch* and one *chunk*. The epoch of an instruction
# counts the changes of workers on the longest way to it; a chunk is full when its instructions take `part_seconds`.
# Whatever an instruction uses was made in an earlier epoch, or on its own worker in an earlier or the same chunk. So
# the graph of parts has no cycle, however the program is placed. Chunks are what overlaps: without them a worker waits
# for all of an epoch before it begins the next one.
#
# What takes next to no time beside a part opens none: uploads go into the part that uses them, downloads into the part
# that makes what they copy. So independent work stays independent, whatever the order of the program.


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
    model = DEFAULT_COSTS if costs is None else costs
    if any(map(is_automatic, program.devices)):
        program = place(program, Spread(mesh, costs=model), mesh)
    with quiet_collector():
        versions = ProgramVersions(program)
        drafts, home = _assign(program, versions, model.times(program), part_seconds)
        wanted = _wanted_versions(program, versions, home)
        return [PartWriter(program, versions, home, wanted).part(draft) for draft in drafts]


def _assign(
    program: Program, versions: ProgramVersions, times: Sequence[float], part_seconds: float
) -> tuple[list[Draft], list[int]]:
    """Return the drafts of the parts, each after those that it needs, and for each instruction the index of its own.

    An instruction goes into the newest draft of its worker and epoch. But one that is short goes into the draft that
    makes the last of what it uses, though that is full: in the newest one, which does other work, it would keep what
    needs it waiting. And one that is short and uses nothing goes into the draft of the only one that uses it.
    """
    nodes, maker = [versions.node_of[each.device] for each in program.instructions], versions.maker
    users = _only_users(program, versions)
    epochs = [0] * len(times)
    newest: dict[tuple[str, int], Draft] = {}
    drafts: list[Draft] = []
    owner: list[Draft | None] = [None] * len(times)
    before: dict[int, list[int]] = {}
    light = LIGHT * part_seconds
    for index, node in enumerate(nodes):
        if index in versions.passed:
            continue
        epoch, uses_none, latest = 0, True, None
        for _, version in versions.uses[index]:
            made = maker[version]
            if made >= 0:
                uses_none, near = False, nodes[made] == node
                after = epochs[made] if near else epochs[made] + 1
                if after > epoch:
                    epoch, latest = after, None
                if near and after == epoch:
                    draft = owner[made]
                    if latest is None or (draft is not None and draft.at[2] > latest.at[2]):
                        latest = draft
        if uses_none and users[index] >= 0 and times[index] <= light and nodes[users[index]] == node:
            before.setdefault(users[index], []).append(index)
            continue
        if latest is None or not latest.has_room(times[index]):
            latest = newest.get((node, epoch))
            if latest is None or latest.seconds >= part_seconds:
                chunk = 0 if latest is None else latest.at[2] + 1
                latest = newest[node, epoch] = Draft((node, epoch, chunk), part_seconds)
                drafts.append(latest)
        for each in (*before.pop(index, ()), index):
            epochs[each], owner[each] = epoch, latest
            latest.add(each, times[each])
    drafts.sort(key=lambda draft: (draft.at[1], draft.at[2], draft.at[0]))
    number = {draft.at: at for at, draft in enumerate(drafts)}
    return drafts, [-1 if draft is None else number[draft.at] for draft in owner]


def _only_users(program: Program, versions: ProgramVersions) -> list[int]:
    """Return for each instruction the only one that uses what it makes; -1 if there are more, or it outlives the
    program."""
    found = [-1] * len(versions.maker)
    for index, uses in enumerate(versions.uses):
        for _, version in uses:
            found[version] = index if found[version] == -1 else -2
    for buffer, version in enumerate(versions.last):
        if version >= 0 and program.buffers[buffer].role is not Role.TEMPORARY:
            found[version] = -2
    made = [[version for _, _, version in makes] for makes in versions.makes]
    return [max(found[each[0]], -1) if len(each) == 1 else -1 for each in made]


def _wanted_versions(program: Program, versions: ProgramVersions, home: Sequence[int]) -> set[int]:
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
