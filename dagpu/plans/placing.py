"""Placement on a mesh: where the instructions of a program run, and `Spread`, the policy that places what an op has
placed on no device.

The result is an ordinary `Program` of several devices. Its copies between devices are instructions of it, and so the
scheduler, the memory plan, the verifier and the backends need no mesh. The buffers of the program keep their numbers:
memory that a run hands out, cells and inputs are found where they were. Replicas get buffers of their own behind these.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeGuard, final, overload

import numpy as np

from dagpu.common.errors import MeshError, PlanError
from dagpu.common.layout import Layout, contiguous_layout
from dagpu.common.places import Origin, describe, here
from dagpu.common.wrong_arguments import as_whole_number, check_count, is_real_number, wrong_argument
from dagpu.handles.device_handles import is_automatic
from dagpu.plans.cost_model import DEFAULT_COSTS, CostModel
from dagpu.plans.fitting import fit
from dagpu.plans.list_schedule import ListSchedule, place_on_streams
from dagpu.plans.mesh import Mesh, chosen_mesh, node_of
from dagpu.plans.mesh_search import best_run
from dagpu.plans.mesh_simulation import MeshSimulation, Move, SimulatedRun, Versions, link_table
from dagpu.plans.order_search import RUNS
from dagpu.plans.policies import Fixed, Placement, check_runs, is_limited, place_program, placed_by
from dagpu.plans.program import (
    HOST,
    Buffer,
    CopyDtoD,
    GraphLaunch,
    Instruction,
    Program,
    Renumbering,
    Role,
    View,
    on_device,
)
from dagpu.plans.scheduler import as_placed

if TYPE_CHECKING:
    from numpy.typing import NDArray


class DevicePolicy(Protocol):
    """Chooses a device for each instruction that has none. No choice changes a result: see `verify_placement`."""

    def assign(self, program: Program, mesh: Mesh, /) -> Sequence[int]:
        """Return for each instruction the index of its device in `mesh.devices`.

        The index of an instruction that has to run on a certain device is not looked at: one that an op placed there,
        or that writes memory that is there.
        """
        ...


def place(program: Program, policy: DevicePolicy, mesh: Mesh) -> Program:
    """Return the program with a device of the mesh for each instruction and buffer on `host:auto` (`cuda:auto`), and
    with the copies between devices that this needs. A program without such places is returned itself.

    Each copy comes from the replica from which it is there first, in the cost model of the policy's `costs`.

    Raises:
        PlanError: the policy does not choose a device of the mesh for each instruction; a kernel writes memory of
            several devices.
    """
    if not any(map(is_automatic, program.devices)):
        return program
    chosen = policy.assign(program, mesh)
    if isinstance(chosen, Assignment):
        versions, run = chosen.versions, chosen.run
    else:
        count = len(program.instructions)
        if len(chosen) != count or not all(type(n) is int and 0 <= n < len(mesh) for n in chosen):
            raise PlanError(
                f"the policy {policy} did not choose one of the {len(mesh)} devices of the mesh for each of {count} "
                "instructions. Return a list of indices of mesh.devices."
            )
        costs = getattr(policy, "costs", None)
        simulation = MeshSimulation(program, mesh, costs if isinstance(costs, CostModel) else DEFAULT_COSTS)
        versions = simulation.versions
        given = [choice if fixed < 0 else fixed for choice, fixed in zip(chosen, versions.fixed, strict=True)]
        run = simulation.run(range(count), given)
    placing = _Placing(program, versions)
    for index in run.order:
        placing.put(index, run.devices[index], run.moves.get(index, ()), run.sources.get(index, {}))
    return placing.finish()


@final
class Assignment(Sequence[int]):
    """Devices for the instructions of a program, as indices in the mesh, with the simulated run that has chosen them.
    `place` takes the order of the run and its copies."""

    __slots__ = ("about", "run", "versions")

    def __init__(self, versions: Versions, run: SimulatedRun, about: str = "") -> None:
        self.versions = versions
        self.run = run
        self.about = about
        """How the run was found, in words, for `explain`."""

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        found = [place if place < self.versions.free else 0 for place in self.run.devices]
        return found[index]

    def __len__(self) -> int:
        return len(self.run.devices)


@final
class _Numbers(dict[int, int]):
    """New numbers of buffers. A buffer that is not in it keeps its number."""

    def __missing__(self, buffer: int) -> int:
        return buffer


@final
class _Placing:
    """A placed program under construction.

    A *replica* is one of the buffers that have contents of one buffer of the program before, on one place.
    """

    def __init__(self, program: Program, versions: Versions) -> None:
        self._program = program
        self._versions = versions
        self._next = len(program.buffers)
        self._newest: list[dict[int, int]] = [{place: b} if place >= 0 else {} for b, place in enumerate(versions.home)]
        """For each buffer, the replicas of its newest version, by place."""
        self._last = [b if place >= 0 else -1 for b, place in enumerate(versions.home)]
        """For each buffer, the replica in which its newest version was made; -1 while there is none."""
        self._made: list[tuple[int, int]] = []
        """For each replica that is no buffer of the program, its buffer there and its place."""
        self._steps: list[tuple[Instruction | _Copy, dict[int, int], int, int]] = []
        """The instructions and copies, each with its replicas by buffer, its place and its policy."""
        self._renumbering = Renumbering()

    def put(self, index: int, place: int, moves: Sequence[Move], sources: Mapping[int, int]) -> None:
        """Add an instruction on a place, after these copies. `sources` are the places from which it reads buffers, if
        those are other ones."""
        program, newest = self._program, self._newest
        instruction, policy = program.instructions[index], program.policy_of[index]
        for move in moves:
            buffer = self._versions.buffer[move.version]
            nbytes = program.buffers[buffer].nbytes
            copy = _Copy(newest[buffer][move.source], self._replica(buffer, place), nbytes, instruction.origin)
            self._steps.append((copy, {}, place, policy))
        replicas = _Numbers()
        if isinstance(instruction, GraphLaunch):
            for buffer in instruction.writes:
                newest[buffer] = {self._versions.home[buffer]: buffer}
                self._last[buffer] = buffer
            self._steps.append((instruction, replicas, place, policy))  # it uses the buffers themselves
            return
        for buffer in instruction.reads:
            there = newest[buffer]
            if there:
                found = there.get(sources.get(buffer, place))
                replicas[buffer] = self._last[buffer] if found is None else found
        for buffer in instruction.writes:
            if program.buffers[buffer].device != HOST:
                found = newest[buffer].get(place)
                found = self._replica(buffer, place) if found is None else found
                newest[buffer] = {place: found}
                self._last[buffer] = replicas[buffer] = found
        self._steps.append((instruction, replicas, place, policy))

    def _replica(self, buffer: int, place: int) -> int:
        """Return a new replica of the newest version of a buffer."""
        replica = self._next + len(self._made)
        self._made.append((buffer, place))
        self._newest[buffer][place] = replica
        return replica

    def finish(self) -> Program:
        """Return the placed program."""
        number, device = self._number_replicas(), self._number_devices()
        buffers = self._buffers(number, device)
        instructions: list[Instruction] = []
        policy_of: list[int] = []
        whole: dict[int, View] = {}
        for step, replicas, place, policy in self._steps:
            policy_of.append(policy)
            if isinstance(step, _Copy):
                instructions.append(step.instruction(number, device[place], whole))
                continue
            is_same = True
            for buffer, replica in replicas.items():
                new = replicas[buffer] = number[replica]
                is_same = is_same and new == buffer
            if is_same:
                instructions.append(on_device(step, device[place]))
            else:
                instructions.append(self._renumbering.instruction(step, replicas, device[place]))
        devices = tuple(sorted(device, key=device.__getitem__))
        names_of = tuple([self._versions.places[place] for place in devices])
        return Program(names_of, tuple(buffers), tuple(instructions), self._program.policies, tuple(policy_of))

    def _number_replicas(self) -> list[int]:
        """Return the new number of each replica. A buffer of the program keeps its number, and the last replica of one
        that is on no device before gets that buffer's number."""
        number = list(range(self._next))
        last, home, following = self._last, self._versions.home, self._next
        for replica, (buffer, _) in enumerate(self._made, self._next):
            if last[buffer] == replica and home[buffer] < 0:
                number.append(buffer)
            else:
                number.append(following)
                following += 1
        return number

    def _number_devices(self) -> dict[int, int]:
        """Return the number of each place's device in the placed program: the devices that the program has named
        come first."""
        versions = self._versions
        used = [place for place in versions.place_of if place >= 0]
        used += sorted({place for _, _, place, _ in self._steps} | {place for _, place in self._made})
        return {place: number for number, place in enumerate(dict.fromkeys(used or [0]))}

    def _buffers(self, number: Sequence[int], device: dict[int, int]) -> list[Buffer]:
        """Return the buffers of the placed program."""
        program, first = self._program, next(iter(device.values()))
        found: list[Any] = [
            buffer if buffer.device == HOST else Buffer(buffer.nbytes, device.get(home, first), buffer.role)
            for buffer, home in zip(program.buffers, self._versions.home, strict=True)
        ]
        found += [None] * (max(number, default=-1) + 1 - len(found))
        for at, (buffer, place) in enumerate(self._made):
            old, new = program.buffers[buffer], number[self._next + at]
            role = old.role if new == buffer else Role.TEMPORARY
            found[new] = Buffer(old.nbytes, device[place], role)
        return found


@final
class _Copy(NamedTuple):
    """A copy of all bytes of a version from one replica to another."""

    source: int
    into: int
    nbytes: int
    origin: Origin

    def instruction(self, number: Sequence[int], device: int, whole: dict[int, View]) -> Instruction:
        """Return the copy with the new numbers of the replicas, as an instruction of the device that it goes to.
        `whole` has the views of all bytes of buffers, by their numbers; what is missing is added."""
        source, into = number[self.source], number[self.into]
        out, read = whole.get(into), whole.get(source)
        if out is None:
            out = whole[into] = View(into, _bytes_layout(self.nbytes))
        if read is None:
            read = whole[source] = View(source, _bytes_layout(self.nbytes))
        return CopyDtoD(out, read, (source,), (into,), device, self.origin)


@lru_cache(maxsize=256)
def _bytes_layout(nbytes: int) -> Layout:
    return contiguous_layout((nbytes,), np.dtype(np.uint8))


# ---- owner placement
#
# Placement by owner: each instruction runs where the memory that it writes lies, as layouts say.
#
# Nothing is searched, so a program of a million instructions on ten thousand devices is planned in seconds. The tables
# are arrays, and one pass simulates the whole. A version that several devices read goes to them along a binary tree, in
# the order in which they need it: each device passes it on at most twice.

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


# ---- the policy of a mesh


def mesh_in_use() -> Mesh:
    """Return the mesh of the innermost `use_mesh`.

    Raises:
        MeshError: there is none.
    """
    mesh = chosen_mesh()
    if mesh is None:
        raise MeshError(
            f'Spread() at {describe(here())}: no mesh is in use. Name the devices: Spread(Mesh(["cuda:0", "cuda:1"])).'
        )
    return mesh


@final
@dataclass(frozen=True, slots=True)
class Spread:
    """Spreads work over the devices of a mesh: each instruction runs where the cost model predicts that it is done
    soonest, copies between devices included. On each device it places work on streams as `ListSchedule` does.

    `op.schedule(Spread(mesh))`, `use_mesh(mesh)` around runs, or an interpreter with this policy. What an op places
    with `.on(device)` stays there, and an instruction that writes memory from outside runs where that is. The devices
    never change a result.

    The choice is that of HEFT (Topcuoglu, Hariri and Wu, "Performance-effective and low-complexity task scheduling for
    heterogeneous computing", IEEE TPDS 13, 2002): instructions by their longest remaining path, each where it is done
    soonest. Program order and one device for everything are simulated too. Where it is worth the time, HEFT and PEFT as
    in their papers follow, and orders found by search; the fastest is taken. So work that is too small to be worth its
    copies stays on one device.

    `shun_moves` makes copies dearer than they are predicted. `runs` says how often a plan is to run, and so how long a
    search is worth. `memory_limit` is the most bytes that a run may take on a device beyond its inputs.
    """

    mesh: Mesh = field(default_factory=mesh_in_use)
    """The devices; by default those of the `use_mesh` around the call."""
    streams: int = 4
    """Streams of each device, besides those for copies."""
    costs: CostModel = field(default_factory=CostModel)
    """The cost model that predicts the time of each instruction and of each copy between devices."""
    shun_moves: float = 0.3
    """Share of the time of its copies that a device has to be sooner by, to be chosen (StarPU's dmda has such a
    weight). In simulations of tiled Cholesky on 64 devices 0.3 moved 28 % less than 0, and was 14 % faster."""
    memory_limit: int | Mapping[str, int] | None = None
    """Most bytes that a run may take on one device beyond its inputs, as one number for each device, or numbers by
    the names of devices. Where a device needs more, overlap is given up there until the plan fits."""
    runs: float = RUNS
    """The runs that a plan is made for. Planning tries further orders as long as it takes less time than so many runs
    could gain by them: see `dagpu.plans.order_search`. 0 for a plan that is to be made soon, 1000 for one that runs
    all day."""

    def __post_init__(self) -> None:
        where = here()
        if not isinstance(self.mesh, Mesh):
            cure = 'Write Spread(Mesh(["cuda:0", "cuda:1"]))'
            raise wrong_argument("Spread", where, "mesh", self.mesh, "a Mesh", cure)
        check_count(self.streams, "Spread", where, "streams")
        if not isinstance(self.costs, CostModel):
            cure = "Write costs=CostModel(), or leave it out"
            raise wrong_argument("Spread", where, "costs", self.costs, "a CostModel", cure)
        weight: Any = self.shun_moves  # whatever the user gave
        if not is_real_number(weight) or not weight >= 0:
            raise wrong_argument("Spread", where, "shun_moves", weight, "0 or more", "Write shun_moves=0.3", ValueError)
        if self.memory_limit is not None:
            object.__setattr__(self, "memory_limit", _checked_limit(self.memory_limit, self.mesh))
        check_runs("Spread", self.runs)

    def assign(self, program: Program, mesh: Mesh, /) -> Assignment:
        """Return for each instruction the index of its device in the mesh; 0 for one that has its device already.

        What is tried, and how long, is in `dagpu.plans.mesh_search`.
        """
        simulation = MeshSimulation(program, mesh, self.costs, self.streams)
        chosen = best_run(simulation, self.shun_moves, self.runs)
        return Assignment(simulation.versions, chosen.run, chosen.about)

    def limit_on(self, device: str) -> int | None:
        """Return the most bytes that a run may take on a device beyond its inputs; None for any number."""
        limit = self.memory_limit
        return limit.get(device) if isinstance(limit, Mapping) else limit

    def place(self, program: Program) -> Placement:
        """Return the stream of each instruction, and the order in which the instructions start."""
        return place_on_streams(program, self.streams, self.costs, placed_by(program, self), self.runs)


def _checked_limit(limit: Any, mesh: Mesh) -> "int | DeviceLimits":
    """Return a memory limit in a form that is immutable and compared by value."""
    wanted = "a number of bytes, or a mapping of devices' names to bytes,"
    names = {device.name for device in mesh.devices}
    pairs = limit.items() if isinstance(limit, Mapping) else [(None, limit)]
    found: dict[str, int] = {}
    for name, nbytes in pairs:
        number = as_whole_number(nbytes)
        if number is None or number < 0 or (name is not None and name not in names):
            cure = "Write memory_limit=8 << 20 for 8 MiB on each device, or leave it out"
            raise wrong_argument("Spread", here(), "memory_limit", limit, wanted, cure, ValueError)
        if name is None:
            return number
        found[name] = number
    return DeviceLimits(found)


@final
class DeviceLimits(dict[str, int]):
    """Bytes by the names of devices. It is not changed once it is made."""

    # reason for both: a dict has no hash
    def __hash__(self) -> int:  # type: ignore[override]  # pyright: ignore[reportIncompatibleVariableOverride]
        return hash(frozenset(self.items()))


class MeshPolicy(DevicePolicy, Protocol):
    """A policy that chooses devices of a mesh, and streams on each, as `Spread` does. `op.schedule` takes it too."""

    @property
    def mesh(self) -> Mesh:
        """The devices."""
        ...

    def place(self, program: Program) -> Sequence[Hashable]:
        """See `SchedulingPolicy.place`. The instructions of the program are on their devices."""
        ...


def spreads(policy: Any) -> TypeGuard[MeshPolicy]:
    """Return whether a policy also chooses devices."""
    return type(policy) is Spread or (
        isinstance(getattr(policy, "mesh", None), Mesh) and callable(getattr(policy, "assign", None))
    )


def over_mesh(policy: Any, mesh: Mesh) -> Any:
    """Return the policy of a run in `use_mesh(mesh)` whose interpreter has `policy`: a `ListSchedule` is spread over
    the mesh; any other policy is returned itself, since it says what runs where."""
    if type(policy) is ListSchedule:
        return Spread(mesh, policy.streams, policy.costs, memory_limit=policy.memory_limit, runs=policy.runs)
    return policy


def on_one_device(policy: Any) -> Any:
    """Return the policy for work that has to be on one device: that of `Spread` for streams alone."""
    if isinstance(policy, Spread):
        return ListSchedule(policy.streams, policy.costs, runs=policy.runs)
    return ListSchedule() if spreads(policy) else policy


def place_spread(program: Program) -> Program:
    """Return the program as its policies of type `Spread` place it. See `mesh_placement.placing.place`.

    Raises:
        PlanError: its policies name several meshes.
    """
    found = list(filter(spreads, program.policies))
    if not found:
        return program
    first, *others = found
    for other in others:
        if other.mesh != first.mesh:
            raise PlanError(
                f"an op is spread over {first.mesh} and over {other.mesh}: a run has one mesh. Use one mesh in all of "
                "the op, or run the two parts one after the other."
            )
    return place(program, first, first.mesh)


def how_chosen(before: Program, placed: Program) -> list[str]:
    """Say in words how the policies of a program have found its devices, and the order on their streams. `before` is
    the program before its placement, `placed` the one after it."""
    found: list[str] = []
    for number, policy in enumerate(placed.policies):
        if number not in placed.policy_of:
            continue
        if before is not placed and isinstance(policy, Spread):
            found.append(f"Devices: {policy.assign(before, policy.mesh).about}")
        if isinstance(policy, ListSchedule | Spread) and (about := policy.place(placed).about):
            found.append(f"Order: {about}")
        if isinstance(policy, Fixed):
            found.append(f"Memory limit {policy.memory_limit:,}: {policy.placement.about}")
    if is_limited(placed) and (about := fit(placed, place_program(placed), as_placed).about):
        found.append(f"Memory limit: {about}")
    return found
