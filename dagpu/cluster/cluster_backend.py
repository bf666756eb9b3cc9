"""A cluster as a backend: its devices, and the cut of plans for them."""

from collections.abc import Mapping, Sequence
from typing import Literal, final

from dagpu.cluster.cluster_runs import ClusterPlan, Engine
from dagpu.cluster.parts.cutting import cut
from dagpu.cluster.parts.part import Part
from dagpu.cluster.parts.part_checks import verify_parts
from dagpu.cluster.parts.part_encoder import Encoder
from dagpu.cluster.parts.part_times import choose_part_seconds
from dagpu.cluster.remote_driver import RemoteDriver
from dagpu.cluster.task_lists import TaskList
from dagpu.common.env_vars import CLUSTER_NAMES, VERIFY
from dagpu.common.errors import NoDeviceError
from dagpu.handles.device_handles import Device
from dagpu.lowering.plan import Plan
from dagpu.lowering.program import Program
from dagpu.lowering.schedule.cost_model import CostModel
from dagpu.lowering.schedule.mesh import Mesh


@final
class ClusterBackend:
    """The devices of a cluster's workers. Implements `dagpu.backends.protocol.Backend`.

    Args:
        workers: the names of the workers, and those of their devices: all of one kind.
        costs: predicts the times of parts.
        part_seconds: the predicted time of a part; None to choose it for each plan.
        code: false to refuse plans whose code would have to be sent as Python code.
        tag: a text that no other cluster's runs have in their names.
    """

    def __init__(
        self,
        workers: Mapping[str, Sequence[str]],
        engine: Engine,
        costs: CostModel,
        part_seconds: float | None = None,
        *,
        code: bool = True,
        tag: str = "",
    ) -> None:
        self.engine = engine
        self.costs = costs
        self.tag = tag
        self._part_seconds = part_seconds
        kinds = {name.partition(":")[0] for names in workers.values() for name in names}
        if kinds not in ({"host"}, {"cuda"}):
            found = ", ".join([f"{worker}: {' '.join(names) or 'none'}" for worker, names in workers.items()])
            raise NoDeviceError(
                f"the workers of a cluster have devices of one kind, host or cuda, and these have: {found}. Name the "
                'devices of each worker: devices=["host:0"].'
            )
        (found_kind,) = kinds
        self._kind: Literal["host", "cuda"] = "host" if found_kind == "host" else "cuda"
        self._encoder = Encoder(on_host=self._kind == "host", code=code)
        self._devices = {
            f"{worker}/{name}": Device(
                self._kind, int(name.partition(":")[2]), RemoteDriver(engine, worker, name, code=code), worker
            )
            for worker, names in workers.items()
            for name in names
        }
        rows = {len(names) for names in workers.values()}
        grid = ((len(workers), rows.pop()), ("workers", "devices")) if len(rows) == 1 else (None, ("devices",))
        self.mesh = Mesh(list(self._devices.values()), *grid)
        """All devices, a row for each worker if all have as many."""

    @property
    def kind(self) -> Literal["host", "cuda", "explore"]:
        return self._kind

    @property
    def nodes(self) -> list[str]:
        """The part before the colon in the names of the devices."""
        return list(dict.fromkeys([name.partition(":")[0] for name in self._devices]))

    def device_count(self) -> int:
        """Return 0: a program uses the devices of a cluster only if it says so."""
        return 0

    def device(self, index: int) -> Device:
        """Return device number `index` of the mesh."""
        return self.mesh.devices[index]

    def named(self, name: str) -> Device:
        """Return a device by its whole name.

        Raises:
            NoDeviceError: the cluster has no such device.
        """
        found = self._devices.get(name)
        if found is None:
            raise NoDeviceError(
                f"the cluster has no device {name}: it has {', '.join(self._devices)}. Use one of cluster.mesh.devices."
            )
        return found

    def prepare(self, plan: Plan) -> ClusterPlan:
        """Prepare a plan for any number of runs, also concurrent ones."""
        return ClusterPlan(plan, self.tasks_of, self.engine, self.tag)

    def spin(self) -> float:
        """Return 0: polling for milliseconds would take the processor from others."""
        return 0.0

    def tasks_of(self, program: Program) -> TaskList:
        """Return the tasks of a placed program, whose cut is proved."""
        parts = self.parts_of(program)
        if VERIFY.get():
            verify_parts(program, parts)
        return TaskList(program, parts, self._encoder, names=CLUSTER_NAMES.get())

    def parts_of(self, program: Program) -> Sequence[Part]:
        """Return the parts of a placed program."""
        seconds = self._part_seconds
        if seconds is None:
            return choose_part_seconds(program, self.mesh, self.costs)
        return cut(program, self.mesh, part_seconds=seconds, costs=self.costs)
