"""Placement on a mesh: turns a program whose instructions are on no device yet into one on the devices of a mesh.

The result is an ordinary `Program` of several devices. Its copies between devices are instructions of it, and so the
scheduler, the memory plan, the verifier and the backends need no mesh. The buffers of the program keep their numbers:
memory that a run hands out, cells and inputs are found where they were. Replicas get buffers of their own behind these.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, final, overload

import numpy as np

from dagpu.common.errors import PlanError
from dagpu.common.layout import Layout, contiguous_layout
from dagpu.common.origin import Origin
from dagpu.handles.device_handles import is_automatic
from dagpu.lowering.program import HOST, Buffer, CopyDtoD, GraphLaunch, Instruction, Program, Role, View
from dagpu.lowering.renumbering import Renumbering
from dagpu.lowering.schedule.cost_model import CostModel
from dagpu.lowering.schedule.mesh import Mesh
from dagpu.lowering.schedule.mesh_placement.memory_versions import Versions
from dagpu.lowering.schedule.mesh_placement.mesh_simulation import MeshSimulation, Move, SimulatedRun


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
        simulation = MeshSimulation(program, mesh, costs if isinstance(costs, CostModel) else CostModel())
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

    __slots__ = ("run", "versions")

    def __init__(self, versions: Versions, run: SimulatedRun) -> None:
        self.versions = versions
        self.run = run

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
        whole = _WholeViews()
        for step, replicas, place, policy in self._steps:
            policy_of.append(policy)
            if isinstance(step, _Copy):
                instructions.append(step.instruction(number, device[place], whole))
                continue
            for buffer, replica in replicas.items():
                replicas[buffer] = number[replica]
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

    def instruction(self, number: Sequence[int], device: int, whole: "_WholeViews") -> Instruction:
        """Return the copy with the new numbers of the replicas, as an instruction of the device that it goes to."""
        source, into = number[self.source], number[self.into]
        views = whole[into, self.nbytes], whole[source, self.nbytes]
        return CopyDtoD(*views, (source,), (into,), device, self.origin)


@final
class _WholeViews(dict[tuple[int, int], View]):
    """Views of all bytes of buffers, by number and size."""

    def __missing__(self, key: tuple[int, int]) -> View:
        view = self[key] = View(key[0], _bytes_layout(key[1]))
        return view


@lru_cache(maxsize=256)
def _bytes_layout(nbytes: int) -> Layout:
    return contiguous_layout((nbytes,), np.dtype(np.uint8))
