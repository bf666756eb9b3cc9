"""Opens a Dask cluster for a block: a client in a loop of its own, the workers' answers, and the engine."""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, final

import trio

from dagpu.cluster.backend import ClusterBackend
from dagpu.cluster.connection import Bridge, Members, Tls, mismatch, warn_of_excluded
from dagpu.cluster.report import CLUSTER_COSTS
from dagpu.cluster.tasks import memory_of
from dagpu.common.errors import ClusterError, ClusterSecurityError
from dagpu.common.frozen import plain
from dagpu.common.places import Origin, describe
from dagpu.common.wrong_arguments import check_count
from dagpu.plans.cost_model import CostModel
from dagpu.runtime.device_lookup import add_nodes, remove_nodes

if TYPE_CHECKING:
    from dagpu.cluster.engine import DaskEngine

_CONNECT_SECONDS: Final = 3.0
"""The time after which a process of a local cluster that cannot be reached counts as lost. Dask's own is 30 s."""
_INSTALL: Final = "pip install 'distributed>=2025.1' cloudpickle cryptography"


@final
@plain
class _Connected:
    """What the loop of Dask has connected."""

    client: Any
    local: Any
    """The processes of a local cluster; None otherwise."""
    found: dict[str, dict[str, Any] | BaseException]
    """What each worker has said of itself, or the error of its answer, by its address."""
    settings: Any
    """Settings of Dask that hold until the cluster is closed; None if there are none."""


@final
@plain
class Options:
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
class Joining:
    """A cluster that is there."""

    address: str
    tls: Tls | None


@final
@plain
class Starting:
    """A cluster of processes that are to be started."""

    workers: int


@final
@plain
class OpenCluster:
    """A cluster that is open: its devices, the engine that runs tasks on them, and its workers."""

    backend: ClusterBackend
    engine: "DaskEngine"
    members: Members
    dashboard: str | None
    """The address of Dask's dashboard."""


@asynccontextmanager
async def opened(how: Joining | Starting, options: Options) -> AsyncIterator[OpenCluster]:
    """Open a cluster for a block."""
    check_count(options.window, "Cluster", options.origin, "window")
    bridge = Bridge("dagpu-cluster")
    try:
        connected = await bridge.run(_connect(how, options))
        try:
            cluster = _cluster_of(bridge, connected, options)
        except BaseException:
            with trio.CancelScope(shield=True):
                await bridge.run(_close(connected, None))
            raise
        add_nodes(cluster.backend.nodes, cluster.backend)
        try:
            await bridge.run(_listen(connected.client, cluster, options.allowed_failures))
            yield cluster
        finally:
            remove_nodes(cluster.backend.nodes)
            with trio.CancelScope(shield=True):
                await bridge.run(_close(connected, cluster.engine))
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(bridge.stop)


async def _connect(how: Joining | Starting, options: Options) -> _Connected:
    """Open a client, and ask the workers what they are. It runs in Dask's loop."""
    try:
        from dask import config as dask_config
        from distributed import Client, LocalCluster, Security
    except ImportError as error:
        raise ClusterError(f"a cluster needs Dask: {error}. Install it: {_INSTALL}.") from None
    from dagpu.cluster.dask_tasks import describe_worker

    local: Any = None
    client: Any = None
    settings: Any = None
    try:
        if isinstance(how, Starting):
            # A nanny that takes its time to start a worker again must not be closed meanwhile. And what fetches from a
            # process that was killed tries to reach it until a time-out. Workers inherit these settings.
            settings = dask_config.set(
                {
                    "distributed.deploy.lost-worker-timeout": "1h",
                    "distributed.comm.timeouts.connect": f"{_CONNECT_SECONDS} s",
                }
            )
            local = await LocalCluster(
                n_workers=how.workers, threads_per_worker=2, processes=True, host="127.0.0.1", asynchronous=True,
                dashboard_address="127.0.0.1:0", worker_dashboard_address=None, silence_logs=50,
            )  # fmt: skip
            client = await Client(local, asynchronous=True, set_as_default=False, timeout=options.timeout)
            client.rpc.timeout = _CONNECT_SECONDS  # it has the client's own, which is the time to wait for a scheduler
        else:
            security = None if how.tls is None else Security(**how.tls.options())
            client = await Client(
                how.address, asynchronous=True, set_as_default=False, timeout=options.timeout, security=security
            )
        await client.wait_for_workers(1, timeout=options.timeout)
        found = await client.run(describe_worker, options.devices, on_error="return")
    except BaseException as error:
        await _close(_Connected(client, local, {}, settings), None)
        if isinstance(how, Joining) and isinstance(error, OSError | TimeoutError):
            raise _unreached(how, error, options) from error
        raise
    return _Connected(client, local, found, settings)


def _unreached(how: Joining, error: BaseException, options: Options) -> ClusterError:
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


async def _listen(client: Any, cluster: OpenCluster, allowed_failures: int) -> None:
    """Follow the workers that come and go, also those that have come or gone while the cluster was opened, and tell the
    scheduler how many may die on a part."""
    from dagpu.cluster.dask_tasks import follow_workers

    def note(event: Any) -> None:
        cluster.members.note_event(event)
        cluster.engine.note_event(event)

    client.subscribe_topic("all", note)
    there = await client.run_on_scheduler(follow_workers, client.id, allowed_failures)
    for address in set(cluster.members.addresses.values()) - set(there):
        cluster.members.note_event((0.0, {"action": "remove-worker", "worker": address}))
    for address in there:
        cluster.members.note_arrival(address)


async def _close(connected: _Connected, engine: "DaskEngine | None") -> None:
    """End all runs, and close the client, and the workers of a local cluster."""
    if engine is not None:
        await engine.close()
        connected.client.unsubscribe_topic("all")
    if connected.client is not None:
        await connected.client.close()
    if connected.local is not None:
        await connected.local.close()
    if connected.settings is not None:
        connected.settings.__exit__(None, None, None)


def _name_in_dask(item: tuple[str, "dict[str, Any] | BaseException"]) -> str:
    address, about = item
    return str(about["name"]) if isinstance(about, dict) else address


def _cluster_of(bridge: Bridge, connected: _Connected, options: Options) -> OpenCluster:
    """Return the cluster of the workers that have answered.

    Raises:
        VersionMismatchError: none has the versions of this process.
        NoDeviceError: they do not have the devices.
    """
    from dagpu.cluster.engine import DaskEngine

    members = Members(bridge, connected.client, options.devices)
    found: dict[str, Sequence[str]] = {}
    limits: dict[str, int] = {}
    for address, about in sorted(connected.found.items(), key=_name_in_dask):
        if isinstance(about, OSError):
            continue  # it is gone, or is asked again once the events of the scheduler are followed
        name = members.admit(address, about)
        if name is not None and isinstance(about, dict):
            if about["error"]:
                raise ClusterError(f"worker {name} ({about['host']}): {about['error']}")
            found[name] = about["devices"]
            limits.update({memory_of(f"{name}/{device}"): total for device, (_, total) in about["memory"].items()})
    if not found:
        raise mismatch(members, options.origin)
    warn_of_excluded(members, options.origin)
    engine = DaskEngine(
        bridge, connected.client, members.addresses, limits, members.excluded,
        window=options.window, allowed_failures=options.allowed_failures, drain_seconds=options.timeout,
        direct=connected.local is not None,
    )  # fmt: skip
    costs = CLUSTER_COSTS if options.costs is None else options.costs
    tag = str(connected.client.id).rpartition("-")[2]
    backend = ClusterBackend(found, engine, costs, options.part_seconds, code=options.code, tag=tag)
    return OpenCluster(backend, engine, members, connected.client.dashboard_link)
