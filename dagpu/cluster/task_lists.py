"""`TaskList`: the parts of a program as tasks, for any number of runs, and what their values become."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final, final

from dagpu.cluster.parts.part import Part, Version
from dagpu.cluster.parts.part_blobs import WriteCheckpoint, refused_code
from dagpu.cluster.parts.part_encoder import Encoder
from dagpu.cluster.tasks import Group, Hold, RemoteMemory, Task, memory_of
from dagpu.cluster.worker.part_values import Pickled, loaded
from dagpu.common.origin import place_of
from dagpu.lowering.program import HOST, CopyDtoH, HostCall, Instruction, Launch, Program, Role

MOST_PARTS: Final = 1_000
"""The parts that may have to be run again for a tensor, without a warning."""


@final
class TaskList:
    """The tasks of a program, for any number of runs."""

    __slots__ = (
        "_cells",
        "_code",
        "_lengths",
        "_outputs",
        "_written",
        "inputs",
        "makes_checkpoint",
        "parts",
        "program",
        "tasks",
    )

    def __init__(self, program: Program, parts: Sequence[Part], encoder: Encoder, *, names: bool) -> None:
        self.program = program
        self.parts = parts
        self._code = encoder.allowed
        self._lengths: dict[int, int] = {}
        """For tasks that make what outlives the run, the number of tasks that have to run for it."""
        self.inputs = [buffer for buffer, x in enumerate(program.buffers) if x.role is Role.INPUT and x.device != HOST]
        """The buffers whose tensors earlier runs have made."""
        self.makes_checkpoint = any(map(_is_checkpoint, program.instructions))
        last = _last_versions(parts)
        private = _private_cells(program)
        self._outputs: dict[int, tuple[Group, Version]] = {}
        self._written: dict[int, tuple[Group, Version]] = {}
        self._cells: dict[int, tuple[Group, Version]] = {}
        groups, group_of = _groups(program, parts, last, private)
        for version in last.values():
            buffer, found = version[0], (group_of[version], version)
            about = program.buffers[buffer]
            if about.device == HOST:
                if buffer not in private:
                    self._cells[buffer] = found
            elif about.role is Role.INPUT:
                self._written[buffer] = found
            elif about.role is Role.OUTPUT:
                self._outputs[buffer] = found
        self.tasks = [
            _task(index, part, program, encoder, groups[index], group_of, names=names)
            for index, part in enumerate(parts)
        ]

    def fetched(self) -> list[Group]:
        """Return the values that the caller gets: those with the results on the host."""
        return list(dict.fromkeys([group for group, _ in self._cells.values()]))

    def kept(self) -> list[Group]:
        """Return the values that outlive the run on the cluster."""
        return list(dict.fromkeys([group for group, _ in (*self._outputs.values(), *self._written.values())]))

    def settle(self, memory: list[Any], holds: Mapping[Group, Hold], values: Mapping[Group, Any]) -> None:
        """Put what a run has made into the memory of the program's buffers.

        Raises:
            ClusterSecurityError: a result is a pickle, and the cluster takes no code.
        """
        cells = {buffer: values[group].cells[version] for buffer, (group, version) in self._cells.items()}
        for buffer, cell in cells.items():
            if type(cell) is Pickled and not self._code:
                raise refused_code("a result of the op, which a worker has sent as a pickle,")
            memory[buffer] = loaded(cell)
        before = max([memory[buffer].lineage for buffer in self.inputs], default=0)
        for buffer, (group, version) in self._outputs.items():
            lineage = before + self._length(group[0])
            memory[buffer] = RemoteMemory(holds[group], version, self.program.buffers[buffer].nbytes, lineage)
        for buffer, (group, version) in self._written.items():
            held = memory[buffer]
            held.hold, held.version, held.lineage = holds[group], version, before + self._length(group[0])

    def _length(self, index: int) -> int:
        """Return the number of tasks that have to run for the values of one, at most `MOST_PARTS + 1`."""
        found = self._lengths.get(index)
        if found is None:
            todo, seen = [index], {index}
            while todo and len(seen) <= MOST_PARTS:
                for need in self.tasks[todo.pop()].needs:
                    if need not in seen:
                        seen.add(need)
                        todo.append(need)
            found = self._lengths[index] = min(len(seen), MOST_PARTS + 1)
        return found


def _last_versions(parts: Sequence[Part]) -> dict[int, Version]:
    """Return the last version of each buffer that parts export."""
    found: dict[int, Version] = {}
    for part in parts:
        for version in part.exports:
            if version[1] > found.get(version[0], (0, 0))[1]:
                found[version[0]] = version
    return found


def _private_cells(program: Program) -> set[int]:
    """Return the cells that only the function of a checkpoint reads: they need not come to the caller."""
    readers: dict[int, list[Instruction]] = {}
    for instruction in program.instructions:
        for buffer in instruction.reads:
            if program.buffers[buffer].device == HOST:
                readers.setdefault(buffer, []).append(instruction)
    return {buffer for buffer, found in readers.items() if all(map(_is_checkpoint, found))}


def _is_checkpoint(instruction: Instruction) -> bool:
    return type(instruction) is HostCall and type(instruction.function) is WriteCheckpoint


def _groups(
    program: Program, parts: Sequence[Part], last: Mapping[int, Version], private: set[int]
) -> tuple[list[list[tuple[Version, ...]]], dict[Version, Group]]:
    """Return the values of each task: versions that the same others take are one value. And the value of each
    version."""
    takers: dict[Version, list[Hashable]] = {}
    for index, part in enumerate(parts):
        for version in dict.fromkeys(part.imports):
            takers.setdefault(version, []).append(index)
    for buffer, version in last.items():
        about = program.buffers[buffer]
        if about.device == HOST and buffer not in private:
            takers.setdefault(version, []).append("caller")
        elif about.device != HOST and about.role is not Role.TEMPORARY:
            takers.setdefault(version, []).append(("stays", buffer))
    groups: list[list[tuple[Version, ...]]] = []
    group_of: dict[Version, Group] = {}
    for index, part in enumerate(parts):
        sets: dict[tuple[Hashable, ...], list[Version]] = {}
        for version in part.exports:
            sets.setdefault(tuple(takers.get(version, ())), []).append(version)
        groups.append([tuple(versions) for versions in sets.values()])
        for at, versions in enumerate(sets.values()):
            group_of.update(dict.fromkeys(versions, (index, at)))
    return groups, group_of


def _task(
    index: int,
    part: Part,
    program: Program,
    encoder: Encoder,
    groups: Sequence[tuple[Version, ...]],
    group_of: Mapping[Version, Group],
    *,
    names: bool,
) -> Task:
    buffers: list[tuple[int, Version, Group | None]] = []
    given: list[tuple[int, int]] = []
    for version, local in zip(part.imports, part.takes, strict=True):
        group = group_of.get(version)
        if group is None and program.buffers[version[0]].device == HOST:
            given.append((local, version[0]))
        else:
            buffers.append((local, version, group))
    blob = encoder.encode(part.program)
    peaks: Counter[str] = Counter()
    for device, nbytes in part.peak_bytes.items():
        peaks[memory_of(f"{part.worker}/{device}")] += nbytes
    return Task(
        index,
        part.worker,
        _name_of(part.program.instructions[-1]) if names else "dagpu",
        blob,
        tuple(buffers),
        tuple(given),
        part.exports,
        part.gives,
        tuple(groups),
        part.needs,
        part.seconds,
        peaks,
        tuple(dict.fromkeys([_place(each) for each in part.program.instructions])),
    )


def _place(instruction: Instruction) -> str:
    place = place_of(instruction.origin)
    return "an unknown place" if place is None else f"{place[0]}:{place[1]}"


def _name_of(instruction: Instruction) -> str:
    """Return the name of an instruction for the keys of an engine, and so for its dashboard."""
    what = type(instruction).__name__
    if type(instruction) is Launch:
        what = instruction.kernel.name
    elif type(instruction) is CopyDtoH:
        what = "to_host"
    elif type(instruction) is HostCall:
        what = getattr(instruction.function, "__name__", type(instruction.function).__name__)
    place = place_of(instruction.origin)
    return what if place is None else f"{PurePath(place[0]).name}:{place[1]}-{what}"
