"""`Cluster` runs ops on the workers of a Dask cluster; `Progress` and `checkpoint` are of its runs."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, final

import numpy as np

from dagpu.cluster.blobs import WriteCheckpoint
from dagpu.cluster.connection import Tls, WorkerInfo, check_address, refuse_to_run_again
from dagpu.cluster.opening import Joining, OpenCluster, Options, Starting, opened
from dagpu.cluster.report import report
from dagpu.cluster.worker import StoredArray
from dagpu.common.errors import ClusterError
from dagpu.common.frozen import plain
from dagpu.common.places import Origin, describe, here
from dagpu.common.wrong_arguments import check_count, check_path, wrong_argument
from dagpu.handles import SharedTensor, Tensor
from dagpu.ops.base import DeviceOp, check_op
from dagpu.ops.compose import value
from dagpu.ops.creation import from_host
from dagpu.plans.cost_model import CostModel
from dagpu.plans.mesh import Mesh
from dagpu.plans.placing import Spread
from dagpu.plans.plan import Plan
from dagpu.runtime.interpreter import StreamInterpreter

if TYPE_CHECKING:
    from dagpu.cluster.engine import DaskEngine


@final
@plain
class Progress:
    """How far the runs are that are under way."""

    done: int
    """Parts that are done."""
    running: int
    """Parts that are submitted and not done."""
    total: int
    """All parts."""
    redone: int
    """Parts that were begun again, because a worker was lost."""
    lost_workers: tuple[str, ...]
    """The addresses of the workers that were lost since the cluster was opened."""


async def next_progress(engine: "DaskEngine", last: Progress | None) -> tuple[bool, Progress]:
    """Return the progress once it differs from `last`."""
    event = asyncio.Event()
    engine.listeners.add(event)
    try:
        while True:
            now = _progress_of(engine)
            if now != last or engine.closed:
                return now != last, now
            await event.wait()
            event.clear()
    finally:
        engine.listeners.discard(event)


def _progress_of(engine: "DaskEngine") -> Progress:
    states = engine.states
    done = sum([len(state.done) for state in states])
    return Progress(
        done,
        sum([len(state.submitted) for state in states]) - done,
        sum([len(state.tasks) for state in states]),
        sum([state.redone for state in states]),
        tuple(engine.lost_workers),
    )


# ---- cluster interpreter
#
# `Cluster`: runs ops on the workers of a Dask cluster.

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
            window: the most parts of a run that a worker has at once; short parts that are sent together are one.
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


# ---- checkpoints
#
# `checkpoint`: writes a tensor to a file, and goes on with what is read from there.

_D = TypeVar("_D", bound=np.generic)


def checkpoint(t: "Tensor[_D] | DeviceOp[Tensor[_D], Any, Any]", store: str | PathLike[str]) -> DeviceOp[Tensor[_D]]:
    """Return an op that writes a tensor to the file `store`, in NumPy's format, and gives a tensor with its contents.

    On a cluster this cuts the lineage: if the result is lost with its worker, it is read from the file, and nothing
    before it is computed again. All workers and this process must see the file under that path. The file is whole or
    not there, and may be removed once nothing that was made of the tensor is needed any more. On a device of this
    process the op does the same.

    Args:
        t: the tensor, which moves into the op, or an op that makes it.
        store: the path of the file. It is replaced if it is there.

    Raises:
        ClusterError: this process does not see the file that was written.
    """
    origin = here()
    check_path(store, "checkpoint", origin)
    given: Any = t  # whatever the user gave
    if not isinstance(given, Tensor | SharedTensor | DeviceOp):
        cure = "Write checkpoint(t, path), with a tensor or an op that makes one"
        raise wrong_argument("checkpoint", origin, "t", given, "a tensor or an op", cure)
    path = str(Path(fspath(store)).absolute())
    source: Any = given if isinstance(given, DeviceOp) else value(given)
    written: DeviceOp[str] = source.to_host().host_map(WriteCheckpoint(path))
    return written.then(partial(_read, origin, path))


def _read(origin: Origin, path: str, element: str) -> DeviceOp[Any]:
    """Return an op that makes a tensor of the file, which is read where it is needed.

    Args:
        origin: the place of the checkpoint.
        path: the path of the file.
        element: the name of the element type, which NumPy's format does not keep for bf16.
    """
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
        return from_host(StoredArray(path, found.offset, element, found.shape).open())
    except OSError as error:
        raise ClusterError(
            f"checkpoint() at {describe(origin)}: {path} was written on a worker, and this process cannot read it "
            f"({error}). Give a path on a file system that all machines share."
        ) from None
