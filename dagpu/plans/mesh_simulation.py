"""The simulation of a program on a mesh, and the versions of memory that it moves.

What crosses from device to device is a *version*: the contents of a buffer between two writes. A *replica* is a copy of
a version on another device, and is never written.
"""

from collections.abc import Sequence
from math import inf
from typing import Final, NamedTuple, TypeAlias, final

from dagpu.common.errors import PlanError
from dagpu.common.places import describe
from dagpu.handles.device_handles import FIND_DEVICE, is_automatic, reaches
from dagpu.plans.cost_model import CostModel, without_engines
from dagpu.plans.mesh import Mesh, node_of
from dagpu.plans.program import (
    HOST,
    CopyDtoH,
    CopyHtoD,
    GraphLaunch,
    HostCall,
    Instruction,
    Launch,
    Program,
    covers,
    label,
    reads_peers,
)


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
        accesses = program.accesses
        self.buffer = accesses.buffer
        """For each version, its buffer. A version is a value of the program's accesses, in memory of a device."""
        self.maker = accesses.maker
        """For each version, the instruction that makes it; -1 if it exists before."""
        self.nbytes = [program.buffers[buffer].nbytes for buffer in self.buffer]
        self.start = [-1] * len(self.buffer)
        """For each version, the place that has it before the program starts; -1 if an instruction makes it."""
        self.start[: len(self.home)] = [
            -1 if accesses.is_blank(buffer) else place for buffer, place in enumerate(self.home)
        ]
        self.uses: list[list[int]] = []
        """For each instruction, the versions that it reads, and those that it changes."""
        self.makes: list[list[int]] = []
        """For each instruction, the versions that it makes."""
        self.fixed: list[int] = []
        """For each instruction, the place where it has to run; -1 if any place of the mesh will do."""
        self.in_place: set[int] = set()
        """The launches of captured graphs, which use their memory where it is."""
        self.numbers_of: dict[int, list[int]] = {}
        """For an instruction that reads numbers of the host, the instructions that make them."""
        self.anywhere: list[bool] = []
        """For each instruction, whether it reads what it uses on other devices too, as copies do."""
        self._program = program
        self._scan()
        self._find_numbers()

    def _scan(self) -> None:
        """Fill in the tables of instructions."""
        program, accesses, home, place_of = self._program, self._program.accesses, self.home, self.place_of
        on_device = [program.buffers[buffer].device != HOST for buffer in self.buffer]
        for index, instruction in enumerate(program.instructions):
            makes = [version for version in accesses.makes(index) if on_device[version]]
            fixed, stays = place_of[instruction.device], True
            is_graph = type(instruction) is GraphLaunch
            if is_graph:
                self.in_place.add(index)
            for version in makes:
                at = home[self.buffer[version]]
                if at < 0:
                    stays = False
                elif fixed != at and not is_graph:
                    if fixed >= 0:
                        raise _two_homes(instruction, self.places[fixed], self.places[at])
                    fixed = at
            self.uses.append([version for version in accesses.uses[index] if on_device[version]])
            self.makes.append(makes)
            self.fixed.append(fixed)
            # What is changed in part has to be there before: in memory that has its place, it is.
            self.anywhere.append(reads_peers(instruction) and (stays or not self._changes(instruction, makes)))

    def _changes(self, instruction: Instruction, makes: Sequence[int]) -> bool:
        """Return whether an instruction leaves some of what was in the memory that it writes."""
        accesses = self._program.accesses
        return not covers(instruction, self._program.buffers) and not all(
            accesses.is_blank(accesses.before[version]) for version in makes
        )

    def _find_numbers(self) -> None:
        """Fill in `numbers_of`."""
        in_cell = [self._program.buffers[buffer].device == HOST for buffer in self.buffer]
        for index, reads in enumerate(self._program.accesses.reads if any(in_cell) else ()):
            found = [made for value in reads if in_cell[value] and (made := self.maker[value]) >= 0]
            if found:
                self.numbers_of[index] = found

    def by_path(self, times: Sequence[float]) -> tuple[list[int], float]:
        """Return the instructions by descending longest path from their start (upward rank), then in program order, and
        the longest path in seconds.

        Each instruction comes after all that make what it uses, numbers of the host included, and after all that use
        what it writes over: so the order is one in which the program may run.
        """
        before = self._program.accesses.predecessors
        rest = list(times)
        for index in range(len(rest) - 1, -1, -1):
            length = rest[index]
            for earlier in before[index]:
                if rest[earlier] < times[earlier] + length:
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


def _two_homes(instruction: Instruction, one: str, other: str) -> PlanError:
    return PlanError(
        f"{label(instruction)}, built at {describe(instruction.origin)}, writes memory of {one} and of {other}: a "
        f'kernel runs on one device. Copy one of the tensors to the other device first: dup(t).on("{one}").'
    )


# ---- mesh simulation
#
# A simulation of a program on the devices of a mesh, in the cost model, which chooses devices as it goes.
#
# A copy of a version takes a port of its link at both ends, and comes from the replica that can have it there first; so
# a version that many devices need spreads as a tree.
#
# A device works as one queue here, since kernels that are worth a device of their own fill it. But its streams launch
# at once, so the overhead of launches is shared out over them.

UNKNOWN: Final = 100e-6
"""Seconds that a kernel of unknown cost is taken for, at least, when devices are chosen. An assumption: it has 35 MB
moved to an idle device. If the kernel takes less, the run loses copies; if it took more and stayed, the other devices
would stand idle as long as it runs."""
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


def link_table(places: Sequence[str], costs: CostModel) -> LinkTable:
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
        self.times, unknown = costs.estimates(program)
        """Seconds of each instruction, wherever it runs. A kernel of unknown cost has at least `UNKNOWN`."""
        for index, instruction in enumerate(program.instructions):
            if unknown[index] and type(instruction) is Launch:
                self.times[index] = max(self.times[index], UNKNOWN)
        on_host = without_engines((mesh.automatic.name,))[0]
        engine_of: dict[type, int] = {HostCall: _NONE} if on_host else _ENGINE_OF
        self._engine = [engine_of.get(type(instruction), _COMPUTE) for instruction in program.instructions]
        overlapped = costs.machine(mesh.automatic.name).launch * (1 - 1 / streams)
        self._busy = [
            max(seconds - overlapped, 0.0) if engine == _COMPUTE else seconds
            for seconds, engine in zip(self.times, self._engine, strict=True)
        ]
        """Seconds for which each instruction occupies the queue of its device."""
        self._ports = costs.links.peer.ports
        self._links = link_table(self.versions.places, costs)
        self._made_late = [self._is_made_late(at, each, costs) for at, each in enumerate(program.instructions)]
        """For each instruction, whether it is sooner made again than copied."""

    def _is_made_late(self, index: int, instruction: Instruction, costs: CostModel) -> bool:
        """Return whether an instruction uses nothing, and makes its result in less time than a copy of it takes. An
        upload is one: its bytes are copied from the host anyway."""
        versions = self.versions
        if versions.uses[index] or not versions.makes[index]:
            return False
        if type(instruction) is CopyHtoD:
            return True
        nbytes = sum([versions.nbytes[version] for version in versions.makes[index]])
        return self._busy[index] <= costs.links.peer.seconds(nbytes)

    def work(self) -> float:
        """Return the seconds that one device takes at least for all instructions."""
        return sum([seconds for seconds, engine in zip(self._busy, self._engine, strict=True) if engine == _COMPUTE])

    def run(
        self, order: Sequence[int], given: Sequence[int] | None = None, *, shun: float = 0.0, only: int = -1
    ) -> SimulatedRun:
        """Simulate the program, its instructions in this order.

        An instruction that may run on any place of the mesh takes that of `given`, or else the place `only`, or else
        the place where it is done soonest, plus `shun` times the seconds of the copies that it needs there. One that
        uses nothing, and takes no longer than a copy of its result, goes where that is used first: an upload, a fill.
        """
        versions, engines = self.versions, self._engine
        execution = _Execution(versions, self.times, self._busy, engines, self._ports, self._links)
        makes, fixed, late, later = versions.makes, versions.fixed, self._made_late, execution.later
        for index in order:
            place = fixed[index] if given is None else given[index]
            if place < 0:
                if late[index]:
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
        self._ends = [0.0] * len(versions.uses)
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
        for earlier in self._versions.numbers_of.get(index, ()):
            begin = max(begin, self._ends[earlier])
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
        self._ends[index] = end
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
