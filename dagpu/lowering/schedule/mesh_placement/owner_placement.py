"""Placement by owner: each instruction runs where the memory that it writes lies, as layouts say.

Nothing is searched, so a program of a million instructions on ten thousand devices is planned in seconds. The tables
are arrays, and one pass simulates the whole. A version that several devices read goes to them along a binary tree, in
the order in which they need it: each device passes it on at most twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias, final

import numpy as np

from dagpu.common.errors import PlanError
from dagpu.lowering.program import Program
from dagpu.lowering.schedule.cost_model import CostModel
from dagpu.lowering.schedule.links import node_of
from dagpu.lowering.schedule.list_schedule import place_on_streams
from dagpu.lowering.schedule.mesh import Mesh
from dagpu.lowering.schedule.mesh_placement.memory_versions import Versions
from dagpu.lowering.schedule.mesh_placement.mesh_simulation import Move, SimulatedRun, link_table
from dagpu.lowering.schedule.mesh_placement.placing import Assignment
from dagpu.lowering.schedule.policies import Placement, placed_by

if TYPE_CHECKING:
    from numpy.typing import NDArray

Numbers: TypeAlias = "NDArray[np.int64]"


@final
@dataclass(frozen=True, slots=True)
class OwnerPlan:
    """Where each instruction of a program runs, what is copied from where to where, and the predicted times."""

    devices: list[int]
    """For each instruction, the index of its device in the mesh."""
    first: Numbers
    """For each copy, the instruction before which it is made. Copies are in this order."""
    version: Numbers
    """For each copy, the version that is copied; see `Versions`."""
    source: Numbers
    """For each copy, the device that it comes from."""
    target: Numbers
    """For each copy, the device that it goes to."""
    makespan: float
    """Seconds until everything is done, in a simulation in which each device works in the program's order."""
    work: "NDArray[np.float64]"
    """For each device, the seconds of its instructions."""
    sent: Numbers
    """For each device, the bytes that it sends."""
    received: Numbers
    """For each device, the bytes that it receives."""

    def run(self) -> SimulatedRun:
        """Return the plan in the form of which `place` makes a program."""
        moves: dict[int, list[Move]] = {}
        for index, version, source in zip(
            self.first.tolist(), self.version.tolist(), self.source.tolist(), strict=True
        ):
            moves.setdefault(index, []).append(Move(version, source))
        return SimulatedRun(range(len(self.devices)), self.makespan, self.devices, moves, {})


@final
@dataclass(frozen=True, slots=True, eq=False)
class OwnerPlacement:
    """A policy by which each instruction runs on the device that owns the first buffer that it writes. Implements
    `DevicePolicy`; it chooses streams as `ListSchedule` does."""

    mesh: Mesh
    owners: Sequence[int]
    """For each buffer of the program, the index of its device in the mesh."""
    costs: CostModel = field(default_factory=CostModel)
    streams: int = 4

    def assign(self, program: Program, mesh: Mesh, /) -> Assignment:
        """Return the device of each instruction, with the copies between devices."""
        versions = Versions(program, mesh)
        return Assignment(versions, self.plan(program, versions).run())

    def plan(self, program: Program, versions: Versions | None = None) -> OwnerPlan:
        """Return the plan of a program, whose automatic device is on the mesh.

        Raises:
            PlanError: a buffer has no owner in the mesh; an instruction writes nothing that has one.
        """
        known = Versions(program, self.mesh) if versions is None else versions
        if len(self.owners) != len(program.buffers) or not all(0 <= at < known.free for at in self.owners):
            raise PlanError(
                f"{len(self.owners)} owners are given for {len(program.buffers)} buffers on {known.free} devices. Give "
                "each buffer the index of its device in the mesh."
            )
        return _planned(program, known, self._devices(program, known), self.costs)

    def _devices(self, program: Program, versions: Versions) -> list[int]:
        """Return the place of each instruction."""
        owners, buffer_of = self.owners, versions.buffer
        found: list[int] = []
        for fixed, makes, uses, instruction in zip(
            versions.fixed, versions.makes, versions.uses, program.instructions, strict=True
        ):
            if fixed >= 0:
                found.append(fixed)
            elif makes or uses:
                found.append(owners[buffer_of[(makes or uses)[0]]])
            else:
                found.append(owners[(*instruction.writes, *instruction.reads, 0)[0]])
        return found

    def place(self, program: Program) -> Placement:
        """Return the stream of each instruction, and the order in which the instructions start."""
        return place_on_streams(program, self.streams, self.costs, placed_by(program, self))


def _planned(program: Program, versions: Versions, devices: list[int], costs: CostModel) -> OwnerPlan:
    """Return the plan for instructions on these devices."""
    count, places = len(devices), len(versions.places)
    on = np.array(devices, np.int64)
    lengths = np.fromiter(map(len, versions.uses), np.int64, count)
    used = np.fromiter(chain.from_iterable(versions.uses), np.int64, int(lengths.sum()))
    user = np.repeat(np.arange(count, dtype=np.int64), lengths)
    maker, start = np.array(versions.maker, np.int64), np.array(versions.start, np.int64)
    home = np.where(maker >= 0, on[maker] if count else start, start)
    # A version is copied to a device once, before its first use there.
    away = np.flatnonzero(on[user] != home[used])
    keys, at_first, of_use = np.unique(used[away] * places + on[user[away]], return_index=True, return_inverse=True)
    first = user[away][at_first]
    order = np.argsort(first, kind="stable")
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    copy_of = np.full(len(used), -1, np.int64)
    copy_of[away] = number[of_use]
    version, target, first = (keys // places)[order], (keys % places)[order], first[order]
    parent = _parents(version)
    source = np.where(parent >= 0, target[parent] if len(parent) else parent, home[version])
    nbytes = np.array(versions.nbytes, np.int64)[version]
    latency, seconds = _link_seconds(versions.places, source, target, nbytes, costs)
    times = costs.times(program)
    ends = _Timeline(versions, devices, times, costs.links.peer.ports)
    makespan = ends.simulate(used, lengths, copy_of, parent, source, latency, seconds)
    return OwnerPlan(
        devices,
        first,
        version,
        source,
        target,
        makespan,
        np.bincount(on, weights=np.array(times, np.float64), minlength=places).astype(np.float64),
        np.bincount(source, nbytes, places).astype(np.int64),
        np.bincount(target, nbytes, places).astype(np.int64),
    )


def _parents(version: Numbers) -> Numbers:
    """Return for each copy the earlier copy of the same version from whose device it comes; -1 for the first two, which
    come from where the version was made."""
    by_version = np.argsort(version, kind="stable")
    ordered = version[by_version]
    begin = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(ordered) else by_version
    within = np.arange(len(ordered)) - np.repeat(begin, np.diff(np.r_[begin, len(ordered)]))
    node = (within // 2) - 1  # of a binary tree whose root is the home
    found = np.full(len(version), -1, np.int64)
    inner = np.flatnonzero(node >= 0)
    found[by_version[inner]] = by_version[inner - within[inner] + node[inner]]
    return found


def _link_seconds(
    places: Sequence[str], source: Numbers, target: Numbers, nbytes: Numbers, costs: CostModel
) -> tuple[list[float], list[float]]:
    """Return for each copy the seconds before its first byte, and those of its bytes."""
    links, nodes = costs.links, [node_of(place) for place in places]
    if all(nodes):
        number = {name: at for at, name in enumerate(dict.fromkeys(nodes))}
        node = np.array([number[name] for name in nodes], np.int64)
        near = node[source] == node[target]
        latency = np.where(near, links.peer.latency, links.node.latency)
        byte = np.where(near, 1 / links.peer.bandwidth, 1 / links.node.bandwidth)
    else:
        table: Any = np.array([[(each[0], each[1]) for each in row] for row in link_table(places, costs)])
        latency, byte = table[source, target].T if len(source) else (np.zeros(0), np.zeros(0))
    return latency.tolist(), (nbytes * byte).tolist()


@final
class _Timeline:
    """A simulation in which each device works in the program's order, and copies take the ports at both ends."""

    def __init__(self, versions: Versions, devices: list[int], times: list[float], ports: int) -> None:
        self._versions = versions
        self._devices = devices
        self._times = times
        self._ports = ports

    def simulate(
        self,
        used: Numbers,
        lengths: Numbers,
        copy_of: Numbers,
        parent: Numbers,
        source: Numbers,
        latency: list[float],
        seconds: list[float],
    ) -> float:
        """Return the seconds until everything is done."""
        versions, places = self._versions, len(self._versions.places)
        free, sends, receives = [0.0] * places, [0.0] * places, [0.0] * places
        done = [0.0] * len(versions.buffer)
        arrival = [-1.0] * len(latency)
        uses, copies = iter(used.tolist()), iter(copy_of.tolist())
        parents, sources, share = parent.tolist(), source.tolist(), 1 / self._ports
        for place, count, makes, took in zip(self._devices, lengths.tolist(), versions.makes, self._times, strict=True):
            begin = free[place]
            for _ in range(count):
                version, copy = next(uses), next(copies)
                if copy < 0:
                    ready = done[version]
                else:
                    ready = arrival[copy]
                    if ready < 0:
                        before, sender = parents[copy], sources[copy]
                        ready = done[version] if before < 0 else arrival[before]
                        sent, received = sends[sender], receives[place]
                        if sent > ready:
                            ready = sent
                        if received > ready:
                            ready = received
                        whole = latency[copy] + seconds[copy]
                        sends[sender] = receives[place] = ready + whole * share
                        ready += whole
                        arrival[copy] = ready
                if ready > begin:
                    begin = ready
            end = free[place] = begin + took
            for version in makes:
                done[version] = end
        return max(free, default=0.0)
