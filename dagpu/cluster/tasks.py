"""The parts of a program as tasks, in the form in which an engine runs them.

An engine has keys for values: each task makes the value of one key, or of several, so that a worker which needs some of
the versions does not fetch all of them. What is here knows no engine.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final, Protocol, TypeAlias, final

import numpy as np

from dagpu.cluster.blobs import Blob, Encoder, WriteCheckpoint, refused_code
from dagpu.cluster.cutting import Part, Version
from dagpu.cluster.report import PART_COST
from dagpu.cluster.worker import PartCall, Pickled, StoredArray, load_cell
from dagpu.common.frozen import plain
from dagpu.common.places import describe, place_of
from dagpu.plans.program import HOST, CopyDtoH, HostCall, Instruction, Launch, Program, Role

INLINE: Final = 1 << 20
"""Bytes of the largest array that travels inside a task. Larger ones are sent to a worker before."""
SHORT: Final = 0.1 * PART_COST
"""The predicted time up to which a part may be sent together with others, in seconds."""

Group: TypeAlias = tuple[int, int]
"""A value of a task: the index of the task, and that of the value among its values."""


def memory_of(device: str) -> str:
    """Return the name of the memory of a device: its own for a GPU, that of its worker for a host."""
    worker, _, name = device.partition("/")
    return f"{worker}/host" if name.startswith("host") else device


class Hold(Protocol):
    """Keeps the value of a key alive on the cluster, as long as it is referred to."""

    @property
    def key(self) -> Hashable: ...


@final
class RemoteMemory:
    """The memory object of a cluster: a version, and the key whose value has it. A run that writes it puts another
    version in its place once all of the run has succeeded."""

    __slots__ = ("__weakref__", "hold", "lineage", "nbytes", "version")

    def __init__(self, hold: Hold, version: Version, nbytes: int, lineage: int) -> None:
        self.hold = hold
        self.version = version
        self.nbytes = nbytes
        self.lineage = lineage
        """The number of parts on the longest history of runs that has led to it: if all workers died, at least as many
        would be run again."""

    def __repr__(self) -> str:
        return f"<RemoteMemory of {self.nbytes} bytes>"


@final
@plain
class Task:
    """A part as an engine runs it."""

    index: int
    """Its index in the run. It needs tasks before it alone."""
    worker: str
    """The worker that is to run it."""
    name: str
    """The place in the user's file and the kernel of its last instruction: `fit.py:12-axpy`."""
    blob: Blob
    buffers: tuple[tuple[int, Version, Group | None], ...]
    """For each input, its buffer, its version, and the value of another task that has it; None for an input of the
    run."""
    given: tuple[tuple[int, int], ...]
    """For each input that is a value of the caller's: its buffer in the part, and in the whole program."""
    exports: tuple[Version, ...]
    gives: tuple[int, ...]
    groups: tuple[tuple[Version, ...], ...]
    """The versions of each of its values."""
    takers: tuple[Mapping[Hashable, Hashable], ...]
    """For each of its values, who takes it: the index of a task, with its worker; or the caller, or a buffer that
    outlives the run, with itself."""
    needs: tuple[int, ...]
    seconds: float
    peak_bytes: Mapping[str, int]
    """For each memory, the bytes that it allocates there beyond what it takes; see `memory_of`."""
    origins: tuple[str, ...]
    """The places of its instructions, for messages."""
    is_short: bool
    """Whether it may be sent together with others, if its function is quick, when it has one; see `_is_short`."""


def call_of(
    task: Task,
    run: str,
    memory: Sequence[Any],
    source: Callable[[Any], int],
    place_array: Callable[[Any], int],
    *,
    traced: bool = False,
) -> PartCall:
    """Return what a worker needs to run a task. `source` returns the index of a value among those that the worker
    gets, for a `Group` or a `Hold`; `place_array` that of a large array. `traced` asks for times of instructions."""
    taken: list[tuple[int, int, Version | None]] = []
    for local, version, group in task.buffers:
        if group is not None:
            taken.append((local, source(group), version))
        else:
            held = memory[version[0]]
            taken.append((local, source(held.hold), held.version))
    given: dict[int, Any] = {}
    for local, buffer in task.given:
        content = memory[buffer]
        stored = stored_array(content)
        if stored is not None:
            given[local] = stored
        elif is_large(content):
            taken.append((local, place_array(content), None))
        else:
            given[local] = content
    blob = task.blob
    return PartCall(
        run, blob.content, blob.digest, tuple(taken), given, task.exports, task.gives, task.name if traced else "",
        blob.function,
    )  # fmt: skip


def is_large(content: Any) -> bool:
    """Return whether an input of a run is an array that is sent to a worker before the task that takes it."""
    return type(content) is np.ndarray and content.nbytes > INLINE and stored_array(content) is None


def stored_array(content: Any) -> StoredArray | None:
    """Return the place of an array that is all of a file that nobody writes, such as one of a checkpoint; None for any
    other value."""
    base = content.base if type(content) is np.ndarray else None
    if (
        not isinstance(base, np.memmap)
        or base.mode != "r"
        or base.filename is None
        or (base.shape, base.strides, base.dtype) != (content.shape, content.strides, content.dtype)
        or not content.flags.c_contiguous
    ):
        return None
    return StoredArray(str(base.filename), base.offset, base.dtype.name, base.shape)


# ---- task lists
#
# `TaskList`: the parts of a program as tasks, for any number of runs, and what their values become.

MOST_PARTS: Final = 1_000
"""The parts that may have to be run again for a tensor, without a warning."""


@final
class TaskList:
    """The tasks of a program, for any number of runs."""

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
        blobs: dict[str, Blob] = {}
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
            _task(
                index, part, program, _same(blobs, encoder.encode(part.program)), groups[index], group_of, names=names
            )
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
            memory[buffer] = load_cell(cell)
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


def _same(known: dict[str, Blob], blob: Blob) -> Blob:
    """Return the first of the blobs that are equal to this one: a message has the bytes of each once."""
    return known.setdefault(blob.digest, blob)


_Value: TypeAlias = tuple[tuple[Version, ...], Mapping[Hashable, Hashable]]
"""The versions of a value, and who takes it; see `Task.takers`."""


def _groups(
    program: Program, parts: Sequence[Part], last: Mapping[int, Version], private: set[int]
) -> tuple[list[list[_Value]], dict[Version, Group]]:
    """Return the values of each task: versions that the same others take are one value. And the value of each
    version."""
    takers: dict[Version, dict[Hashable, Hashable]] = {}
    for index, part in enumerate(parts):
        for version in part.imports:
            takers.setdefault(version, {})[index] = part.worker
    for buffer, version in last.items():
        about = program.buffers[buffer]
        if about.device == HOST and buffer not in private:
            takers.setdefault(version, {})["caller"] = "caller"
        elif about.device != HOST and about.role is not Role.TEMPORARY:
            takers.setdefault(version, {})["stays", buffer] = "stays", buffer
    groups: list[list[_Value]] = []
    group_of: dict[Version, Group] = {}
    for index, part in enumerate(parts):
        sets: dict[tuple[Hashable, ...], list[Version]] = {}
        for version in part.exports:
            sets.setdefault(tuple(takers.get(version, ())), []).append(version)
        groups.append([(tuple(versions), takers.get(versions[0], {})) for versions in sets.values()])
        for at, versions in enumerate(sets.values()):
            group_of.update(dict.fromkeys(versions, (index, at)))
    return groups, group_of


def _is_short(part: Part, blob: Blob) -> bool:
    """Return whether a part may be sent together with others.

    The time of a function of `host_map` is known if it is all of a part that has run before; see `Times`. A part that
    changes variables of a module changes them each time that it runs, and is run no more often than it must be. And
    tensors of more than 1 MiB are kept no longer than anything needs them.
    """
    if part.seconds > SHORT or sum([buffer.nbytes for buffer in part.program.buffers]) > INLINE:
        return False
    return not any(
        (type(each) is HostCall and not blob.function) or (type(each) is Launch and each.kernel.state is not None)
        for each in part.program.instructions
    )


def _task(
    index: int,
    part: Part,
    program: Program,
    blob: Blob,
    groups: Sequence[_Value],
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
        tuple([versions for versions, _ in groups]),
        tuple([takers for _, takers in groups]),
        part.needs,
        part.seconds,
        peaks,
        tuple(dict.fromkeys([_place(each) for each in part.program.instructions])),
        _is_short(part, blob),
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


# ---- lineage
#
# Warns of tensors whose history has grown long: losing one would mean that all of it is run again.

_warned: set[object] = set()


def warn_of_long_lineages(tasks: TaskList, memory: Sequence[Any]) -> None:
    """Warn, once for each place, of an input whose loss would cost more than `MOST_PARTS` parts, unless the run makes a
    checkpoint."""
    if tasks.makes_checkpoint:
        return
    for buffer in tasks.inputs:
        held = memory[buffer]
        if type(held) is RemoteMemory and held.lineage > MOST_PARTS:
            users = [each for each in tasks.program.instructions if buffer in (*each.reads, *each.writes)]
            origin = users[0].origin if users else None
            place = place_of(origin)
            if place not in _warned:
                _warned.add(place)
                file, line = ("dagpu", 0) if place is None else place
                message = (
                    f"a tensor on a cluster is used at {describe(origin)}, and more than {MOST_PARTS:,} parts would "
                    "have to be run again if its worker died: the scheduler remembers all of them. Cut this history "
                    "now and then: t = await dagpu.checkpoint(t, path)."
                )
                warnings.warn_explicit(message, RuntimeWarning, file, line)
            return
