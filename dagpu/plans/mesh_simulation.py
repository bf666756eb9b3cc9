"""The simulation of a program on a mesh, and the versions of memory that it moves.

What crosses from device to device is a *version*: the contents of a buffer between two writes. A *replica* is a copy of
a version on another device, and is never written.
"""

from collections.abc import Sequence
from copy import copy
from math import inf
from typing import Final, NamedTuple, TypeAlias, final

from dagpu.common.errors import PlanError
from dagpu.common.places import describe
from dagpu.handles.device_handles import FIND_DEVICE, is_automatic, reaches
from dagpu.plans.cost_model import CostModel, without_engines
from dagpu.plans.mesh import Mesh, node_of
from dagpu.plans.order_search import by_length, longest_paths
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
        self.before = accesses.predecessors
        """For each instruction, those that it must follow."""
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
        buffer_of, first, used = self.buffer, accesses.first, accesses.uses
        has_bytes = [buffer.device != HOST for buffer in program.buffers]
        on_device = [has_bytes[buffer] for buffer in buffer_of]
        self.uses = used if all(on_device) else [[each for each in versions if on_device[each]] for versions in used]
        for index, instruction in enumerate(program.instructions):
            makes = [version for version in range(first[index], first[index + 1]) if on_device[version]]
            fixed, stays = place_of[instruction.device], True
            is_graph = type(instruction) is GraphLaunch
            if is_graph:
                self.in_place.add(index)
            for version in makes:
                at = home[buffer_of[version]]
                if at < 0:
                    stays = False
                elif fixed != at and not is_graph:
                    if fixed >= 0:
                        raise _two_homes(instruction, self.places[fixed], self.places[at])
                    fixed = at
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
        if all(buffer.device != HOST for buffer in self._program.buffers):
            return
        in_cell = [self._program.buffers[buffer].device == HOST for buffer in self.buffer]
        for index, reads in enumerate(self._program.accesses.reads):
            found = [made for value in reads if in_cell[value] and (made := self.maker[value]) >= 0]
            if found:
                self.numbers_of[index] = found

    def by_path(self, times: Sequence[float]) -> tuple[list[int], float]:
        """Return the instructions by descending longest path from their start (upward rank), then in program order, and
        the longest path in seconds.

        Each instruction comes after all that make what it uses, numbers of the host included, and after all that use
        what it writes over: so the order is one in which the program may run.
        """
        paths = longest_paths(times, self.before)
        return by_length(paths), max(paths, default=0.0)

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
would stand idle as long as it runs. What is lost if it takes more is what `dagpu.plans.mesh_search` looks at."""
_FEW: Final = 8
"""The most devices of a mesh of which each is looked at for each instruction. On 4 and 8 that is 1 % better than to
look at some. On 16 in two nodes it is 14 % worse, for tiled Cholesky, since work strays from its node."""
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


_Ways: TypeAlias = list[tuple[float, list[tuple[float, float, bool]]]]
"""For each group of places that has a version, when one of them can send it first, and the links of the group to all
places."""
_Used: TypeAlias = tuple[dict[int, float], int, _Ways, float, float]
"""A version that an instruction uses: when it is on each place that has it, its bytes, and the ways to copy it. If
there is one way, the same to all places: when it can be sent first, and the seconds of the copy; else 0 and -1."""


def _groups(links: LinkTable) -> list[int]:
    """Return for each place the first one whose links to all places are the same, as those of a node's devices are."""
    first: dict[tuple[tuple[float, float, bool], ...], int] = {}
    return [first.setdefault(tuple(row), place) for place, row in enumerate(links)]


@final
class MeshSimulation:
    """Simulated runs of one program on a mesh."""

    def __init__(self, program: Program, mesh: Mesh, costs: CostModel, streams: int = 4) -> None:
        self.versions = Versions(program, mesh)
        self.times, self.unknown = costs.estimates(program)
        """Seconds of each instruction, wherever it runs. A kernel of unknown cost has at least `UNKNOWN`."""
        self._guessed = [
            index
            for index, instruction in enumerate(program.instructions)
            if self.unknown[index] and type(instruction) is Launch
        ]
        """The kernels of unknown cost."""
        for index in self._guessed:
            self.times[index] = max(self.times[index], UNKNOWN)
        on_host = without_engines((mesh.automatic.name,))[0]
        engine_of: dict[type, int] = {HostCall: _NONE} if on_host else _ENGINE_OF
        self.engine = [engine_of.get(type(instruction), _COMPUTE) for instruction in program.instructions]
        """For each instruction, the queue of its device that it waits for."""
        self._overlapped = costs.machine(mesh.automatic.name).launch * (1 - 1 / streams)
        self.busy = self._busy(self.times)
        """Seconds for which each instruction occupies the queue of its device."""
        self._ports = costs.links.peer.ports
        self._links = link_table(self.versions.places, costs)
        self._made_late = [
            not uses and self._is_made_late(at, each, costs)
            for at, (uses, each) in enumerate(zip(self.versions.uses, program.instructions, strict=True))
        ]
        """For each instruction, whether it is sooner made again than copied."""

    def _busy(self, times: Sequence[float]) -> list[float]:
        """Return `busy` for these times."""
        overlapped = self._overlapped
        return [
            (seconds - overlapped if seconds > overlapped else 0.0) if engine == _COMPUTE else seconds
            for seconds, engine in zip(times, self.engine, strict=True)
        ]

    def if_unknown_take(self, seconds: float) -> "MeshSimulation | None":
        """Return the simulation in which each kernel of unknown cost takes so many seconds at least; None if there is
        no such kernel. What is sooner made again than copied stays so."""
        if not self._guessed:
            return None
        found = copy(self)
        found.times = list(self.times)
        for index in self._guessed:
            found.times[index] = max(found.times[index], seconds)
        found.busy = self._busy(found.times)
        return found

    def _is_made_late(self, index: int, instruction: Instruction, costs: CostModel) -> bool:
        """Return whether an instruction that uses nothing makes its result in less time than a copy of it takes. An
        upload does: its bytes are copied from the host anyway."""
        versions = self.versions
        if not versions.makes[index]:
            return False
        if type(instruction) is CopyHtoD:
            return True
        nbytes = sum([versions.nbytes[version] for version in versions.makes[index]])
        return self.busy[index] <= costs.links.peer.seconds(nbytes)

    def work(self) -> float:
        """Return the seconds that one device takes at least for all instructions."""
        return sum([seconds for seconds, engine in zip(self.busy, self.engine, strict=True) if engine == _COMPUTE])

    def seconds_of(self, version: int, source: int, target: int) -> float:
        """Return the seconds of a copy of a version between two places."""
        latency, byte, _ = self._links[source][target]
        return latency + self.versions.nbytes[version] * byte

    def copy_seconds(self) -> list[float]:
        """Return for each instruction the seconds in which its results are copied from one device of the mesh to the
        next; 0 if it has none."""
        return [sum([self.seconds_of(version, 0, 1) for version in makes]) for makes in self.versions.makes]

    def run(
        self, order: Sequence[int], given: Sequence[int] | None = None, *, shun: float = 0.0, only: int = -1
    ) -> SimulatedRun:
        """Simulate the program, its instructions in this order.

        An instruction that may run on any place of the mesh takes that of `given`, or else the place `only`, or else
        the place where it is done soonest, plus `shun` times the seconds of the copies that it needs there. One that
        uses nothing, and takes no longer than a copy of its result, goes where that is used first: an upload, a fill.
        """
        versions, engines = self.versions, self.engine
        execution = _Execution(versions, self.times, self.busy, engines, self._ports, self._links)
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
        self._group = _groups(links)
        """For each place, the first place that has the same links."""
        self._one_way = None if any(self._group) else links[0][0]
        """The link between any two places; None if there are several."""
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

        Each copy comes from the replica from which it is there first, as in `_move`. On a mesh of up to `_FEW` devices
        all places are looked at; on more those that made what it uses, and the idlest one.
        """
        candidates, used = self._choices(index)
        free, receives, overlapped = self._free[self._engine[index]], self._receives, 1 - 1 / self._ports
        best, chosen = inf, len(free)
        for place in candidates:
            begin, extra, port = free[place], 0.0, receives[place]
            for replicas, nbytes, ways, first, took in used:
                if place in replicas:
                    arrival = replicas[place]
                elif took >= 0:
                    if first > port:
                        port = first
                    arrival = port + took
                    port = arrival - took * overlapped
                    extra += took
                else:
                    arrival, busy = inf, 0.0
                    for sent, links in ways:
                        latency, byte, _ = links[place]
                        seconds = latency + nbytes * byte
                        end = sent + seconds if sent > port else port + seconds
                        if end < arrival:
                            arrival, busy = end, seconds
                    port = arrival - busy * overlapped
                    extra += busy
                if arrival > begin:
                    begin = arrival
            score = begin + shun * extra
            if score < best or (score == best and place < chosen):
                best, chosen = score, place
        return chosen

    def _choices(self, index: int) -> tuple[Sequence[int], list[_Used]]:
        """Return the places to look at for an instruction, and what it uses."""
        sends, limit, one_way = self._sends, self._versions.free, self._one_way
        candidates: Sequence[int] = range(limit) if limit <= _FEW else [self.idlest(self._engine[index])]
        used: list[_Used] = []
        for version in self._versions.uses[index]:
            replicas, nbytes = self._there[version], self._versions.nbytes[version]
            if replicas:
                if one_way:
                    first = inf
                    for source, ready in replicas.items():
                        sent = sends[source]
                        if ready > sent:
                            sent = ready
                        if sent < first:
                            first = sent
                    used.append((replicas, nbytes, [], first, one_way[0] + nbytes * one_way[1]))
                else:
                    used.append((replicas, nbytes, self._ways(replicas), 0.0, -1.0))
                home = next(iter(replicas))  # the first is where it was made
                if limit > _FEW and home < limit and home not in candidates:
                    candidates = [*candidates, home]
        return candidates, used

    def _ways(self, replicas: dict[int, float]) -> _Ways:
        """Return the ways to copy a version from the places that have it, each since a time."""
        soonest: dict[int, float] = {}
        for source, ready in replicas.items():
            sent, group = max(self._sends[source], ready), self._group[source]
            if group not in soonest or sent < soonest[group]:
                soonest[group] = sent
        return [(sent, self._links[group]) for group, sent in soonest.items()]

    def _soonest(self, sources: dict[int, float], nbytes: int, place: int, port: float) -> tuple[float, float, int]:
        """Return when a copy from one of these places is there first, the seconds that it takes, and the place.
        `sources` has the time at which each has the bytes; the place receives from `port` on."""
        links, sends = self._links, self._sends
        arrival, took, found = inf, 0.0, -1
        for source, ready in sources.items():
            latency, byte, _ = links[source][place]
            seconds, begin = latency + nbytes * byte, sends[source]
            if ready > begin:
                begin = ready
            if port > begin:
                begin = port
            if begin + seconds < arrival:
                arrival, took, found = begin + seconds, seconds, source
        return arrival, took, found

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
        links, sends, nbytes = self._links, self._sends, self._versions.nbytes[version]
        arrival, busy, found = self._soonest(self._there[version], nbytes, place, self._receives[place])
        sends[found] = self._receives[place] = arrival - busy + busy / self._ports
        if self._versions.anywhere[index] and links[found][place][2]:
            self.sources.setdefault(index, {})[self._versions.buffer[version]] = found
        else:
            self.moves.setdefault(index, []).append(Move(version, found))
            self._there[version][place] = arrival
        return arrival
