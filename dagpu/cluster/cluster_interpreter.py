"""`Cluster`: runs ops on the workers of a Dask cluster."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar, final

from dagpu.cluster.connection.main_guard import refuse_to_run_again
from dagpu.cluster.connection.members import WorkerInfo
from dagpu.cluster.connection.opening import Joining, OpenCluster, Options, Starting, opened
from dagpu.cluster.connection.security import Tls, check_address
from dagpu.cluster.engine.run_progress import Progress, next_progress
from dagpu.cluster.parts.part_report import report
from dagpu.common.origin import here
from dagpu.common.wrong_arguments import check_count, wrong_argument
from dagpu.lowering.plan import Plan
from dagpu.lowering.schedule.cost_model import CostModel
from dagpu.lowering.schedule.mesh import Mesh
from dagpu.lowering.schedule.spread import Spread
from dagpu.ops.base import DeviceOp, check_op
from dagpu.runtime.interpreter import StreamInterpreter

_T = TypeVar("_T")


@final
class Cluster:
    """The workers of a Dask cluster as devices. `Cluster.connect` and `Cluster.local` open one.

    It is an interpreter: within `use_interpreter(cluster)`, `await op` and `op.sync()` run ops on the cluster. What no
    op places goes where the cost model predicts that it is done soonest; `op.on("node3/cuda:1")` names a device. A
    result is a handle as any other: its device is one of the cluster's, its memory stays there, `to_host()` copies it
    to this process, and it is freed with the last handle.

    Results are those of one device, to the bit, also if workers die while an op runs.
    """

    def __init__(self, opened: OpenCluster) -> None:
        self._backend = opened.backend
        self._engine = opened.engine
        self._members = opened.members
        self._dashboard = opened.dashboard
        self._interpreter = StreamInterpreter(
            self.mesh.devices[0], Spread(self.mesh, costs=opened.backend.costs), graph_from=None
        )

    # ---- opening

    @classmethod
    def connect(
        cls,
        address: str,
        *,
        tls: Tls | None = None,
        devices: Sequence[str] | None = None,
        part_seconds: float | None = None,
        window: int = 4,
        allowed_failures: int = 3,
        timeout: float = 30.0,
        code: bool = True,
        costs: CostModel | None = None,
    ) -> "AbstractAsyncContextManager[Cluster]":
        """Open the cluster of a scheduler, for the `async with` block. The block ends when all of its runs have.

        Args:
            address: that of the scheduler: `tls://head:8786`.
            tls: the certificates of this end. Without them only loopback is spoken to: `tcp://127.0.0.1:8786`.
            devices: the devices of each worker, by their names there; by default all its GPUs, or else its host.
            part_seconds: the predicted time of a part, in seconds; by default the best of several by simulation.
            window: the most parts of a run that a worker has at once.
            allowed_failures: the number of workers that may die on one part.
            timeout: the seconds to wait for the scheduler and a worker, and for a cancelled run to end.
            code: false to send no Python code: no functions of `host_map`, no host bodies of kernels.
            costs: the cost model; by default that of one GPU, with the links of a cluster.

        Raises:
            ClusterSecurityError: the address is in the clear, or a certificate is not of the authority.
            ClusterError: there is no scheduler, or no worker within `timeout`.
            VersionMismatchError: no worker has the versions of this process.
        """
        origin = here()
        if not isinstance(address, str):
            raise wrong_argument("Cluster.connect", origin, "address", address, "an address", 'Write "tls://head:8786"')
        check_address(address, tls, origin)
        options = Options(devices, part_seconds, window, allowed_failures, timeout, code, costs, origin)
        return _opened(Joining(address, tls), options)

    @classmethod
    def local(
        cls,
        workers: int = 2,
        devices: Sequence[str] = ("host:0",),
        *,
        part_seconds: float | None = None,
        window: int = 4,
        allowed_failures: int = 3,
        timeout: float = 30.0,
        code: bool = True,
        costs: CostModel | None = None,
    ) -> "AbstractAsyncContextManager[Cluster]":
        """Start a cluster of processes on this machine, for the `async with` block: workers `w0`, `w1`, ...

        Each worker has the same `devices`. The other arguments are those of `connect`. The processes import the main
        module of the program again, so that what it runs stands under `if __name__ == "__main__":`.

        Raises:
            ClusterError: the main module would run this call again in each process.
        """
        origin = here()
        refuse_to_run_again(origin)
        check_count(workers, "Cluster.local", origin, "workers")
        options = Options(list(devices), part_seconds, window, allowed_failures, timeout, code, costs, origin)
        return _opened(Starting(workers), options)

    # ---- looking

    @property
    def workers(self) -> tuple[WorkerInfo, ...]:
        """The workers that are alive."""
        return tuple(
            [
                WorkerInfo(
                    address,
                    tuple([each for each in self.mesh.devices if each.name.partition("/")[0] == worker]),
                    self._members.versions.get(address, {}),
                )
                for worker, address in sorted(self._members.addresses.items())
            ]
        )

    @property
    def scheduler(self) -> str:
        """The address of the scheduler, for `Cluster.connect`."""
        return self._members.scheduler

    @property
    def mesh(self) -> Mesh:
        """The devices of all workers that were there when the cluster was opened, a row for each worker."""
        return self._backend.mesh

    @property
    def dashboard(self) -> str | None:
        """The address of Dask's dashboard; None if there is none. The names of tasks are places in your files."""
        return self._dashboard

    def explain(self, op: DeviceOp[Any, Any, Any]) -> str:
        """Describe how an op would run on the cluster: its parts, the bytes between workers, the predicted time, and
        what holds it up. Nothing is run."""
        program = self.plan_of(op).program
        return report(program, self._backend.parts_of(program), self._backend.costs)

    def plan_of(self, op: DeviceOp[Any, Any, Any], /) -> Plan:
        """Return the plan of the op's first stage, before it is cut into parts. Nothing is run."""
        return self._interpreter.plan_of(op)

    async def progress(self) -> AsyncIterator[Progress]:
        """Yield how far the runs under way are, each time that it changes, until the cluster is closed."""
        engine, bridge = self._engine, self._members.bridge
        last: Progress | None = None
        while not engine.closed:
            seen, now = await bridge.run(next_progress(engine, last))
            if seen:
                last = now
                yield now

    # ---- running

    async def run(self, op: DeviceOp[_T, Any, Any], /) -> _T:
        """Run an op in a trio task. A cancellation is raised once no worker is at a part of the run."""
        check_op(op, "run")
        return await self._interpreter.run(op)

    def run_sync(self, op: DeviceOp[_T, Any, Any], /) -> _T:
        """Run an op, and block this thread until its result is complete."""
        check_op(op, "run_sync")
        return self._interpreter.run_sync(op)

    def __repr__(self) -> str:
        return f"<Cluster of {len(self._members.addresses)} workers, {len(self.mesh)} devices>"


@asynccontextmanager
async def _opened(how: Joining | Starting, options: Options) -> AsyncIterator[Cluster]:
    """Open a cluster for a block."""
    async with opened(how, options) as found:
        yield Cluster(found)
