"""A simulation of a program on the devices of a mesh, in the cost model, which chooses devices as it goes.

What crosses from device to device is a *version*: the contents of a buffer between two writes. A *replica* is a copy of
a version on another device, and is never written. A copy takes a port of its link at both ends, and comes from the
replica that can have it there first; so a version that many devices need spreads as a tree.

A device works as one queue here, since kernels that are worth a device of their own fill it. But its streams launch at
once, so the overhead of launches is shared out over them.
"""

from collections.abc import Sequence
from math import inf
from typing import Final, NamedTuple, TypeAlias, final

from dagpu.common.errors import PlanError
from dagpu.common.origin import describe
from dagpu.handles.device_handles import is_automatic, reaches
from dagpu.lowering.program import (
    HOST,
    CopyDtoD,
    CopyDtoH,
    CopyHtoD,
    Fill,
    GraphLaunch,
    HostCall,
    Instruction,
    Launch,
    Program,
    Role,
    label,
    reads_peers,
)
from dagpu.lowering.schedule.cost_model import CostModel
from dagpu.lowering.schedule.links import node_of
from dagpu.lowering.schedule.mesh import FIND_DEVICE, Mesh

_COMPUTE: Final = 0
_UPLOAD: Final = 1
_DOWNLOAD: Final = 2
_NONE: Final = 3
_ENGINE_OF: Final[dict[type, int]] = {CopyHtoD: _UPLOAD, CopyDtoH: _DOWNLOAD, HostCall: _NONE}
"""The queue of its device that an instruction waits for: those of copies from and to the host, none for a call of a
host function, and that of kernels for all others."""

LinkTable: TypeAlias = list[list[tuple[float, float, bool]]]
"""For each two places the latency, the seconds of a byte, and whether one reads the memory of the other."""


@final
class Move(NamedTuple):
    """A copy of a version to the device of an instruction that uses it."""

    version: int
    source: int
    """The place that has a replica of it."""


@final
class Versions:
    """The versions of a program's device memory, and the places that may run its instructions.

    A *place* is the number of a device: those of the mesh come first, in its order, then the program's other devices.
    """

    def __init__(self, program: Program, mesh: Mesh) -> None:
        names = [device.name for device in mesh.devices]
        self.free = len(names)
        """The number of places that an instruction without a device may run on: 0 to `free - 1`."""
        self.places: list[str] = list(dict.fromkeys([*names, *[n for n in program.devices if not is_automatic(n)]]))
        """The name of the device of each place."""
        number = {name: place for place, name in enumerate(self.places)}
        self.place_of = [number.get(name, -1) for name in program.devices]
        """For each device of the program, its place; -1 for an automatic device."""
        self.home = [-1 if buffer.device == HOST else self.place_of[buffer.device] for buffer in program.buffers]
        """For each buffer, the place of its device; -1 for a cell, and for memory without a device."""
        self.buffer: list[int] = []
        """For each version, its buffer."""
        self.nbytes: list[int] = []
        self.start: list[int] = []
        """For each version, the place that has it before the program starts; -1 if an instruction makes it."""
        self.maker: list[int] = []
        """For each version, the instruction that makes it; -1 if it exists before."""
        self.uses: list[list[int]] = []
        """For each instruction, the versions that it reads, and those that it changes."""
        self.makes: list[list[int]] = []
        """For each instruction, the versions that it makes."""
        self.fixed: list[int] = []
        """For each instruction, the place where it has to run; -1 if any place of the mesh will do."""
        self.in_place: set[int] = set()
        """The launches of captured graphs, which use their memory where it is."""
        self.anywhere: list[bool] = []
        """For each instruction, whether it reads what it uses on other devices too, as copies do."""
        self._program = program
        self._scan()

    def _scan(self) -> None:
        """Fill in the versions and the tables of instructions."""
        program, home, place_of = self._program, self.home, self.place_of
        on_device = [buffer.device != HOST for buffer in program.buffers]
        newest = [-1] * len(home)
        for number, buffer in enumerate(program.buffers):
            if buffer.role is Role.INPUT and on_device[number]:
                newest[number] = self._new(number, home[number], -1)
        for index, instruction in enumerate(program.instructions):
            uses: list[int] = []
            for read in instruction.reads:
                version = newest[read]
                if version >= 0 and version not in uses:
                    uses.append(version)
            makes: list[int] = []
            fixed, changes, stays = place_of[instruction.device], False, True
            is_graph = type(instruction) is GraphLaunch
            if is_graph:
                self.in_place.add(index)
            for written in instruction.writes:
                if not on_device[written]:
                    continue
                version, at = newest[written], home[written]
                if version >= 0 and not _covers(instruction, program):
                    changes = True
                    if version not in uses:
                        uses.append(version)
                if at < 0:
                    stays = False
                elif fixed != at and not is_graph:
                    if fixed >= 0:
                        raise _two_homes(instruction, self.places[fixed], self.places[at])
                    fixed = at
                newest[written] = version = self._new(written, -1, index)
                makes.append(version)
            self.uses.append(uses)
            self.makes.append(makes)
            self.fixed.append(fixed)
            # What is changed in part has to be there before: in memory that has its place, it is.
            self.anywhere.append((stays or not changes) and reads_peers(instruction))

    def _new(self, buffer: int, start: int, maker: int) -> int:
        self.buffer.append(buffer)
        self.nbytes.append(self._program.buffers[buffer].nbytes)
        self.start.append(start)
        self.maker.append(maker)
        return len(self.buffer) - 1

    def by_path(self, times: Sequence[float]) -> tuple[list[int], float]:
        """Return the instructions by descending longest path from their start (upward rank), then in program order, and
        the longest path in seconds.

        Each instruction comes after all that make what it uses, and after all that use what it writes over: so the
        order is one in which the program may run.
        """
        readers: list[list[int]] = [[] for _ in self.buffer]
        before: list[list[int]] = []
        newest: dict[int, int] = {}
        for index, uses in enumerate(self.uses):
            needs = [self.maker[version] for version in uses if self.maker[version] >= 0]
            for version in self.makes[index]:
                buffer = self.buffer[version]
                old = newest.get(buffer, -1)
                if old >= 0:
                    needs += readers[old]
                    needs.append(self.maker[old])
                newest[buffer] = version
            for version in uses:
                readers[version].append(index)
                newest.setdefault(self.buffer[version], version)
            before.append(needs)
        rest = list(times)
        for index in range(len(rest) - 1, -1, -1):
            length = rest[index]
            for earlier in before[index]:
                if earlier >= 0 and rest[earlier] < times[earlier] + length:
                    rest[earlier] = times[earlier] + length
        order = sorted(range(len(rest)), key=rest.__getitem__, reverse=True)  # the sort is stable
        return order, max(rest, default=0.0)

    def start_place(self) -> int:
        """Return the place of the mesh that has most of the inputs' bytes."""
        held = [0] * self.free
        for version, place in enumerate(self.start):
            if 0 <= place < self.free:
                held[place] += self.nbytes[version]
        return max(range(self.free), key=held.__getitem__)


def _covers(instruction: Instruction, program: Program) -> bool:
    """Return whether an instruction writes every byte of its output, and so uses nothing of what was there."""
    if type(instruction) is Launch:  # most instructions are launches
        return False
    if isinstance(instruction, (Fill, CopyHtoD, CopyDtoD)):
        return instruction.out.layout.nbytes == program.buffers[instruction.out.buffer].nbytes
    return False


def _two_homes(instruction: Instruction, one: str, other: str) -> PlanError:
    return PlanError(
        f"{label(instruction)}, built at {describe(instruction.origin)}, writes memory of {one} and of {other}: a "
        f'kernel runs on one device. Copy one of the tensors to the other device first: dup(t).on("{one}").'
    )


@final
class SimulatedRun(NamedTuple):
    """The outcome of a simulation."""

    order: Sequence[int]
    """The instructions in the order of the simulation."""
    makespan: float
    """Seconds until everything is done."""
    devices: list[int]
    """For each instruction, its place."""
    moves: dict[int, list[Move]]
    """The copies that have to come before an instruction, in order."""
    sources: dict[int, dict[int, int]]
    """For each instruction that reads replicas of other places, these places by buffer."""


def _link_table(places: Sequence[str], costs: CostModel) -> LinkTable:
    """Return the links between places."""
    links = costs.links
    nodes = [node_of(name) for name in places]
    devices = [None if node else FIND_DEVICE.value(name) for name, node in zip(places, nodes, strict=True)]
    table: LinkTable = []
    for source, source_node in zip(devices, nodes, strict=True):
        row: list[tuple[float, float, bool]] = []
        for target, target_node in zip(devices, nodes, strict=True):
            link, peers = links.peer, True
            if source_node != target_node:
                link, peers = links.node, False
            elif source and target and source is not target and not reaches(target, source):
                link, peers = links.host, False
            row.append((link.latency, 1 / link.bandwidth, peers))
        table.append(row)
    return table


@final
class MeshSimulation:
    """Simulated runs of one program on a mesh."""

    def __init__(self, program: Program, mesh: Mesh, costs: CostModel, streams: int = 4) -> None:
        self.versions = Versions(program, mesh)
        self.times = costs.times(program)
        """Seconds of each instruction, wherever it runs."""
        self._engine = [_ENGINE_OF.get(type(instruction), _COMPUTE) for instruction in program.instructions]
        overlapped = costs.launch * (1 - 1 / streams)
        self._busy = [
            max(seconds - overlapped, 0.0) if engine == _COMPUTE else seconds
            for seconds, engine in zip(self.times, self._engine, strict=True)
        ]
        """Seconds for which each instruction occupies the queue of its device."""
        self._ports = costs.links.peer.ports
        self._links = _link_table(self.versions.places, costs)

    def work(self) -> float:
        """Return the seconds that one device takes at least for all instructions."""
        return sum([seconds for seconds, engine in zip(self._busy, self._engine, strict=True) if engine == _COMPUTE])

    def run(
        self, order: Sequence[int], given: Sequence[int] | None = None, *, shun: float = 0.0, only: int = -1
    ) -> SimulatedRun:
        """Simulate the program, its instructions in this order.

        An instruction that may run on any place of the mesh takes that of `given`, or else the place `only`, or else
        the place where it is done soonest, plus `shun` times the seconds of the copies that it needs there. One that
        uses nothing, such as an upload or a fill, goes where its result is used first.
        """
        versions, engines = self.versions, self._engine
        execution = _Execution(versions, self.times, self._busy, engines, self._ports, self._links)
        uses, makes, fixed, later = versions.uses, versions.makes, versions.fixed, execution.later
        for index in order:
            place = fixed[index] if given is None else given[index]
            if place < 0:
                if not uses[index] and makes[index]:
                    for version in makes[index]:
                        later[version] = index
                    continue
                place = only if only >= 0 else execution.best_place(index, shun)
            execution.commit(index, place)
        for index in dict.fromkeys(later.values()):
            execution.commit(index, only if only >= 0 else execution.idlest(engines[index]))
        return SimulatedRun(order, execution.end, execution.devices, execution.moves, execution.sources)


@final
class _Execution:
    """The state of one simulated run."""

    def __init__(
        self,
        versions: Versions,
        times: Sequence[float],
        busy: Sequence[float],
        engines: Sequence[int],
        ports: int,
        links: LinkTable,
    ) -> None:
        places = len(versions.places)
        self._versions = versions
        self._times = times
        self._busy = busy
        self._engine = engines
        self._ports = ports
        self._links = links
        self._free = [[0.0] * places for _ in range(4)]
        """For each engine, when it is free on each place."""
        self._sends = [0.0] * places
        self._receives = [0.0] * places
        self._there: list[dict[int, float]] = [{place: 0.0} if place >= 0 else {} for place in versions.start]
        """For each version, when it is on each place that has it; the place that made it is the first."""
        self.later: dict[int, int] = {}
        """For each version that nothing has used yet, the instruction that makes it where it is used first."""
        self.devices = [-1] * len(versions.uses)
        self.moves: dict[int, list[Move]] = {}
        self.sources: dict[int, dict[int, int]] = {}
        self.end = 0.0

    def idlest(self, engine: int) -> int:
        """Return the place of the mesh whose engine is free first."""
        free = self._free[engine][: self._versions.free]
        return free.index(min(free))

    def best_place(self, index: int, shun: float) -> int:
        """Return the place of the mesh where an instruction is done soonest, and which needs few copies.

        Those are looked at that made what it uses, and the idlest one. Here a copy comes from where its version was
        made; the copies that are really made come from the nearest replica.
        """
        there, limit, receives, nbytes = self._there, self._versions.free, self._receives, self._versions.nbytes
        engine, links = self._engine[index], self._links
        free = self._free[engine]
        candidates = [self.idlest(engine)]
        used: list[tuple[dict[int, float], int, float, int]] = []
        for version in self._versions.uses[index]:
            replicas = there[version]
            for home, ready in replicas.items():
                used.append((replicas, home, ready, nbytes[version]))
                if home not in candidates and home < limit:
                    candidates.append(home)
                break  # the first is where it was made
        best, chosen = inf, limit
        for place in candidates:
            begin, extra, port = free[place], 0.0, receives[place]
            for replicas, home, ready, size in used:
                if place == home:
                    arrival = ready
                elif place in replicas:
                    arrival = replicas[place]
                else:
                    latency, byte, _ = links[home][place]
                    seconds = latency + size * byte
                    arrival = (max(port, ready)) + seconds
                    extra += seconds
                if arrival > begin:
                    begin = arrival
            score = begin + shun * extra
            if score < best or (score == best and place < chosen):
                best, chosen = score, place
        return chosen

    def commit(self, index: int, place: int) -> None:
        """Run an instruction on a place, after the copies of what it uses."""
        if index in self._versions.in_place:
            self._commit_in_place(index, place)
            return
        there, engine = self._there, self._engine[index]
        free = self._free[engine]
        begin = 0.0 if engine == _NONE else free[place]
        for version in self._versions.uses[index]:
            if version in self.later:
                self._commit_maker(self.later[version], place)
            ready = there[version].get(place)
            if ready is None:
                ready = min(there[version].values()) if engine == _NONE else self._move(index, version, place)
            if ready > begin:
                begin = ready
        end = begin + self._times[index]
        free[place] = begin + self._busy[index]
        for version in self._versions.makes[index]:
            there[version] = {place: end}
        self.devices[index] = place
        if end > self.end:
            self.end = end

    def _commit_in_place(self, index: int, place: int) -> None:
        """Run an instruction on a place that uses its memory where it is, on any place."""
        versions, there = self._versions, self._there
        homes = [versions.home[versions.buffer[version]] for version in versions.uses[index]]
        ready = [there[version][home] for version, home in zip(versions.uses[index], homes, strict=True)]
        end = max([self._free[_COMPUTE][place], *ready]) + self._times[index]
        for version in versions.makes[index]:
            there[version] = {versions.home[versions.buffer[version]]: end}
        for used in (place, *homes):
            self._free[_COMPUTE][used] = end
        self.devices[index] = place
        self.end = max(self.end, end)

    def _commit_maker(self, index: int, place: int) -> None:
        """Run an instruction that uses nothing on the place where its result is used first."""
        for version in self._versions.makes[index]:
            del self.later[version]
        self.commit(index, place)

    def _move(self, index: int, version: int, place: int) -> float:
        """Copy a version to the place of an instruction, from the replica from which it is there first. Return when."""
        nbytes, links, sends = self._versions.nbytes[version], self._links, self._sends
        port, arrival, busy, found = self._receives[place], inf, 0.0, -1
        for source, ready in self._there[version].items():
            latency, byte, _ = links[source][place]
            seconds, sent = latency + nbytes * byte, sends[source]
            end = (max(sent, ready)) if sent > port or ready > port else port
            end += seconds
            if end < arrival:
                arrival, busy, found = end, seconds, source
        sends[found] = self._receives[place] = arrival - busy + busy / self._ports
        if self._versions.anywhere[index] and links[found][place][2]:
            self.sources.setdefault(index, {})[self._versions.buffer[version]] = found
        else:
            self.moves.setdefault(index, []).append(Move(version, found))
            self._there[version][place] = arrival
        return arrival
