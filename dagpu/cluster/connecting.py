"""`Cluster`: opens a Dask cluster, and runs ops on it."""

import re
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

import trio

from dagpu.cluster.bridge import Bridge
from dagpu.cluster.cluster_backend import ClusterBackend, program_of
from dagpu.cluster.cluster_report import report
from dagpu.cluster.parts.part_times import CLUSTER_COSTS
from dagpu.cluster.security import Tls, check_address
from dagpu.common.errors import ClusterError, ClusterSecurityError, VersionMismatchError
from dagpu.common.frozen import plain
from dagpu.common.origin import Origin, describe, here
from dagpu.common.wrong_arguments import check_count, wrong_argument
from dagpu.handles.device_handles import Device
from dagpu.lowering.plan import Plan
from dagpu.lowering.schedule.cost_model import CostModel
from dagpu.lowering.schedule.mesh import Mesh
from dagpu.lowering.schedule.spread import Spread
from dagpu.ops.base import DeviceOp, check_op
from dagpu.runtime.device_lookup import add_nodes, backends, remove_nodes
from dagpu.runtime.interpreter import StreamInterpreter

if TYPE_CHECKING:
    from dagpu.cluster.engine import DaskEngine

_T = TypeVar("_T")
_ASKED: Final = 100
"""The number of times that a new worker is asked what it is."""
_ASK_SECONDS: Final = 0.1
_INSTALL: Final = "pip install 'distributed>=2025.1' cloudpickle cryptography"


@final
@plain
class WorkerInfo:
    """A worker of a cluster."""

    address: str
    """The address by which the scheduler and other workers reach it."""
    devices: tuple[Device, ...]
    """Its devices. Their names begin with that of the worker."""
    versions: Mapping[str, str]
    """Its versions of dagpu and of what has to agree with it."""


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


@final
@plain
class _Opened:
    """What the loop of Dask has opened."""

    client: Any
    local: Any
    """The processes of a local cluster; None otherwise."""
    found: dict[str, dict[str, Any]]
    """What each worker has said of itself, by its address."""
    settings: Any
    """Settings of Dask that hold until the cluster is closed; None if there are none."""


@final
class Cluster:
    """The workers of a Dask cluster as devices. `Cluster.connect` and `Cluster.local` open one.

    It is an interpreter: within `use_interpreter(cluster)`, `await op` and `op.sync()` run ops on the cluster. What no
    op places goes where the cost model predicts that it is done soonest; `op.on("node3/cuda:1")` names a device. A
    result is a handle as any other: its device is one of the cluster's, its memory stays there, `to_host()` copies it
    to this process, and it is freed with the last handle.

    Results are those of one device, to the bit, also if workers die while an op runs.
    """

    def __init__(
        self, backend: ClusterBackend, engine: "DaskEngine", members: "_Members", dashboard: str | None
    ) -> None:
        self._backend = backend
        self._engine = engine
        self._members = members
        self._dashboard = dashboard
        self._interpreter = StreamInterpreter(
            backend.mesh.devices[0], Spread(backend.mesh, costs=backend.costs), graph_from=None
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
        options = _Options(devices, part_seconds, window, allowed_failures, timeout, code, costs, origin)
        return _opened(_Joining(address, tls), options)

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

        Each worker has the same `devices`. The other arguments are those of `connect`.
        """
        origin = here()
        check_count(workers, "Cluster.local", origin, "workers")
        options = _Options(list(devices), part_seconds, window, allowed_failures, timeout, code, costs, origin)
        return _opened(_Starting(workers), options)

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

    def explain(self, op: DeviceOp[Any, Any, Any], /) -> str:
        """Describe how an op would run on the cluster: its parts, the bytes between workers, the predicted time, and
        what holds it up. Nothing is run."""
        program = program_of(self.plan_of(op))
        return report(program, self._backend.parts_of(program), self._backend.costs)

    def plan_of(self, op: DeviceOp[Any, Any, Any], /) -> Plan:
        """Return the plan of the op's first stage, before it is cut into parts. Nothing is run."""
        return self._interpreter.plan_of(op)

    async def progress(self) -> AsyncIterator[Progress]:
        """Yield how far the runs under way are, each time that it changes, until the cluster is closed."""
        engine, bridge = self._engine, self._members.bridge
        last: Progress | None = None
        while not engine.closed:
            seen, now = await bridge.run(_next_progress(engine, last))
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


async def _next_progress(engine: "DaskEngine", last: Progress | None) -> tuple[bool, Progress]:
    """Return the progress once it differs from `last`."""
    import asyncio

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


@final
@plain
class _Options:
    """The arguments of `connect` and `local`."""

    devices: Sequence[str] | None
    part_seconds: float | None
    window: int
    allowed_failures: int
    timeout: float
    code: bool
    costs: CostModel | None
    origin: Origin


@final
@plain
class _Joining:
    """A cluster that is there."""

    address: str
    tls: Tls | None


@final
@plain
class _Starting:
    """A cluster of processes that are to be started."""

    workers: int


@final
class _Members:
    """The workers of a cluster as they come and go. It is changed in Dask's loop alone."""

    def __init__(self, bridge: Bridge, client: Any, devices: Sequence[str] | None) -> None:
        self.bridge = bridge
        self.addresses: dict[str, str] = {}
        """The address of each worker that is alive, by its name here."""
        self.versions: dict[str, dict[str, str]] = {}
        """The versions of each worker, by its address."""
        self.excluded: dict[str, dict[str, str]] = {}
        """The versions of workers that get no parts, since they differ from those of this process."""
        self._client = client
        self._devices = devices
        self._names: dict[str, str] = {}
        """The name here of each worker, by its name in Dask."""
        self._asking: set[Any] = set()

    @property
    def scheduler(self) -> str:
        """The address of the scheduler."""
        return str(self._client.scheduler.address)

    def admit(self, address: str, about: Mapping[str, Any]) -> str | None:
        """Note what a worker has said of itself. Return its name here; None if its versions differ."""
        from dagpu.cluster.worker.dask_tasks import versions_here

        self.versions[address] = about["versions"]
        if about["versions"] != versions_here():
            self.excluded[address] = about["versions"]
            return None
        name = self._names.get(about["name"])
        if name is None:
            name = self._names[about["name"]] = self._name_of(about)
        self.addresses[name] = address
        return name

    def _name_of(self, about: Mapping[str, Any]) -> str:
        """Return a new name for a worker: its own, if it has one, or that of its host."""
        own = about["name"]
        wanted = f"w{own}" if own.isdecimal() else own if re.fullmatch(r"[A-Za-z0-9_.-]+", own) else about["host"]
        taken = {*self._names.values(), *[kind.partition("/")[0] for kind in backends if "/" in kind]}
        number, name = 1, wanted
        while name in taken:
            number += 1
            name = f"{wanted}.{number}"
        return str(name)

    def note_event(self, event: Any) -> None:
        """Note an event of the scheduler: workers that are new or gone."""
        import asyncio

        _, message = event
        address = str(message.get("worker", ""))
        if message.get("action") == "remove-worker":
            self.excluded.pop(address, None)
            for name in [name for name, where in self.addresses.items() if where == address]:
                del self.addresses[name]
        elif message.get("action") == "add-worker":
            asking = asyncio.get_running_loop().create_task(self._ask(address))
            self._asking.add(asking)
            asking.add_done_callback(self._asking.discard)

    async def _ask(self, address: str) -> None:
        import asyncio

        from dagpu.cluster.worker.dask_tasks import describe_worker

        for _ in range(_ASKED):  # it may not be ready to answer yet
            try:
                found = await self._client.run(describe_worker, self._devices, workers=[address], on_error="return")
            except Exception:
                found = {}
            if isinstance(found.get(address), dict):
                self.admit(address, found[address])
                return
            await asyncio.sleep(_ASK_SECONDS)


@asynccontextmanager
async def _opened(how: _Joining | _Starting, options: _Options) -> AsyncIterator[Cluster]:
    """Open a cluster for a block."""
    check_count(options.window, "Cluster", options.origin, "window")
    bridge = Bridge("dagpu-cluster")
    try:
        opened = await bridge.run(_open(how, options))
        try:
            cluster = _cluster_of(bridge, opened, options)
        except BaseException:
            with trio.CancelScope(shield=True):
                await bridge.run(_close(opened, None))
            raise
        backend, engine = cluster._backend, cluster._engine  # noqa: SLF001  # reason: it is made here
        add_nodes(backend.nodes, backend)
        try:
            await bridge.run(_listen(opened.client, cluster, options.allowed_failures))
            yield cluster
        finally:
            remove_nodes(backend.nodes)
            with trio.CancelScope(shield=True):
                await bridge.run(_close(opened, engine))
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(bridge.stop)


async def _open(how: _Joining | _Starting, options: _Options) -> _Opened:
    """Open a client, and ask the workers what they are. It runs in Dask's loop."""
    try:
        from dask import config as dask_config
        from distributed import Client, LocalCluster, Security
    except ImportError as error:
        raise ClusterError(f"a cluster needs Dask: {error}. Install it: {_INSTALL}.") from None
    from dagpu.cluster.worker.dask_tasks import describe_worker

    local: Any = None
    client: Any = None
    settings: Any = None
    try:
        if isinstance(how, _Starting):
            # A nanny that takes its time to start a worker again must not be closed meanwhile.
            settings = dask_config.set({"distributed.deploy.lost-worker-timeout": "1h"})
            local = await LocalCluster(
                n_workers=how.workers, threads_per_worker=2, processes=True, host="127.0.0.1", asynchronous=True,
                dashboard_address="127.0.0.1:0", worker_dashboard_address=None, silence_logs=50,
            )  # fmt: skip
            client = await Client(local, asynchronous=True, set_as_default=False, timeout=options.timeout)
        else:
            security = None if how.tls is None else Security(**how.tls.options())
            client = await Client(
                how.address, asynchronous=True, set_as_default=False, timeout=options.timeout, security=security
            )
        await client.wait_for_workers(1, timeout=options.timeout)
        found = await client.run(describe_worker, options.devices)
    except BaseException as error:
        await _close(_Opened(client, local, {}, settings), None)
        if isinstance(how, _Joining) and isinstance(error, OSError | TimeoutError):
            raise _unreached(how, error, options) from error
        raise
    return _Opened(client, local, found, settings)


def _unreached(how: _Joining, error: BaseException, options: _Options) -> ClusterError:
    """Return the error for a scheduler that cannot be spoken to."""
    text = f"{error} {error.__cause__ or ''}"
    where = f"Cluster.connect({how.address!r}) at {describe(options.origin)}"
    if how.tls is not None and re.search(r"(?i)certificate|ssl|tls", text.replace(how.address, "")):
        return ClusterSecurityError(
            f"{where}: the certificate of one end is not of the other's authority ({text.strip()}). Make all "
            "certificates by one authority, and pass its file as ca."
        )
    return ClusterError(
        f"{where}: no scheduler and worker answered within {options.timeout} s ({text.strip()}). Start them first: "
        "dask scheduler, and dask worker on each host."
    )


async def _listen(client: Any, cluster: Cluster, allowed_failures: int) -> None:
    """Follow the workers that come and go, and tell the scheduler how many may die on a part."""
    from dagpu.cluster.worker.dask_tasks import set_allowed_failures

    await client.run_on_scheduler(set_allowed_failures, allowed_failures)

    def note(event: Any) -> None:
        cluster._members.note_event(event)  # noqa: SLF001  # reason: these are parts of one cluster
        cluster._engine.note_event(event)  # noqa: SLF001

    client.subscribe_topic("all", note)


async def _close(opened: _Opened, engine: "DaskEngine | None") -> None:
    """End all runs, and close the client, and the workers of a local cluster."""
    if engine is not None:
        await engine.close()
        opened.client.unsubscribe_topic("all")
    if opened.client is not None:
        await opened.client.close()
    if opened.local is not None:
        await opened.local.close()
    if opened.settings is not None:
        opened.settings.__exit__(None, None, None)


def _cluster_of(bridge: Bridge, opened: _Opened, options: _Options) -> Cluster:
    """Return the cluster of the workers that have answered.

    Raises:
        VersionMismatchError: none has the versions of this process.
        NoDeviceError: they do not have the devices.
    """
    from dagpu.cluster.engine import DaskEngine

    members = _Members(bridge, opened.client, options.devices)
    found: dict[str, Sequence[str]] = {}
    limits: dict[str, int] = {}
    for address, about in sorted(opened.found.items(), key=lambda item: str(item[1]["name"])):
        name = members.admit(address, about)
        if name is not None:
            if about["error"]:
                raise ClusterError(f"worker {name} ({about['host']}): {about['error']}")
            found[name] = about["devices"]
            totals = [total for _, total in about["memory"].values()] or [0]
            limits[name] = max(totals) if about["devices"][0].startswith("host") else sum(totals)
    if not found:
        raise _mismatch(members, options)
    engine = DaskEngine(
        bridge, opened.client, members.addresses, limits, members.excluded,
        window=options.window, allowed_failures=options.allowed_failures, drain_seconds=options.timeout,
    )  # fmt: skip
    costs = CLUSTER_COSTS if options.costs is None else options.costs
    tag = str(opened.client.id).rpartition("-")[2]
    backend = ClusterBackend(found, engine, costs, options.part_seconds, code=options.code, tag=tag)
    engine.codes = backend.codes
    dashboard = opened.client.dashboard_link
    return Cluster(backend, engine, members, dashboard)


def _mismatch(members: _Members, options: _Options) -> VersionMismatchError:
    """Return the error for workers of which none has the versions of this process."""
    from dagpu.cluster.worker.dask_tasks import versions_here

    mine = versions_here()
    rows = [
        f"  {what}: {mine.get(what, 'none')} here, {theirs.get(what, 'none')} on {address}"
        for address, theirs in members.excluded.items()
        for what in {**mine, **theirs}
        if mine.get(what) != theirs.get(what)
    ]
    return VersionMismatchError(
        f"Cluster at {describe(options.origin)}: no worker has the versions of this process ({socket.gethostname()}):\n"
        + "\n".join(rows)
        + "\nInstall the same versions everywhere."
    )
