"""`Spread`: places what an op has placed on no device, over the devices of a mesh."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final, Protocol, TypeGuard, final

from dagpu.common.errors import MeshError, PlanError
from dagpu.common.places import describe, here
from dagpu.common.wrong_arguments import as_whole_number, check_count, is_real_number, wrong_argument
from dagpu.plans.cost_model import CostModel
from dagpu.plans.list_schedule import ListSchedule, place_on_streams
from dagpu.plans.mesh import Mesh, chosen_mesh
from dagpu.plans.mesh_simulation import MeshSimulation
from dagpu.plans.placing import Assignment, DevicePolicy, place
from dagpu.plans.policies import Placement, placed_by
from dagpu.plans.program import Program

_GOOD: Final = 1.05
"""Factor of the lower bound within which a placement needs no further attempt."""

_MANY: Final = 4
"""The number of devices from which on the longest paths are tried before program order. On fewer devices program order
is often good enough, and moves less: tiled Cholesky of 20 x 20 tiles takes 2,181 and 2,838 instructions on 2."""

_makespan: Final = attrgetter("makespan")


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
    soonest. Program order and one device for everything are simulated too, and the fastest of the three is taken. So
    work that is too small to be worth its copies stays on one device.
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

    def assign(self, program: Program, mesh: Mesh, /) -> Assignment:
        """Return for each instruction the index of its device in the mesh; 0 for one that has its device already.

        Time: O(n log n + n d), with d devices that have what an instruction uses.
        """
        simulation = MeshSimulation(program, mesh, self.costs, self.streams)
        versions, order = simulation.versions, range(len(program.instructions))
        if len(mesh) == 1:
            return Assignment(versions, simulation.run(order, shun=self.shun_moves))
        work = simulation.work()
        ranked, path = versions.by_path(simulation.times)
        first, second = (order, ranked) if len(mesh) < _MANY else (ranked, order)
        best = simulation.run(first, shun=self.shun_moves)
        if best.makespan > _GOOD * max(path, work / len(mesh)):
            best = min(best, simulation.run(second, shun=self.shun_moves), key=_makespan)
        if best.makespan >= work:
            best = min(simulation.run(order, only=versions.start_place()), best, key=_makespan)
        return Assignment(versions, best)

    def limit_on(self, device: str) -> int | None:
        """Return the most bytes that a run may take on a device beyond its inputs; None for any number."""
        limit = self.memory_limit
        return limit.get(device) if isinstance(limit, Mapping) else limit

    def place(self, program: Program) -> Placement:
        """Return the stream of each instruction, and the order in which the instructions start."""
        return place_on_streams(program, self.streams, self.costs, placed_by(program, self))


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
        return Spread(mesh, policy.streams, policy.costs, memory_limit=policy.memory_limit)
    return policy


def on_one_device(policy: Any) -> Any:
    """Return the policy for work that has to be on one device: that of `Spread` for streams alone."""
    if isinstance(policy, Spread):
        return ListSchedule(policy.streams, policy.costs)
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
