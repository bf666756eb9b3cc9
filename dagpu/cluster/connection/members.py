"""The workers of a cluster as they come and go."""

import asyncio
import re
import socket
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final, final

from dagpu.cluster.connection.bridge import Bridge
from dagpu.common.errors import NoDeviceError, VersionMismatchError
from dagpu.common.frozen import plain
from dagpu.common.origin import Origin, describe, place_of
from dagpu.handles.device_handles import Device
from dagpu.runtime.device_lookup import backends

_ASKED: Final = 100
"""The number of times that a new worker is asked what it is."""
_ASK_SECONDS: Final = 0.1


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
class Members:
    """The workers of a cluster as they come and go. It is changed in Dask's loop alone."""

    def __init__(self, bridge: Bridge, client: Any, devices: Sequence[str] | None) -> None:
        self.bridge = bridge
        self.addresses: dict[str, str] = {}
        """The address of each worker that is alive, by its name here."""
        self.versions: dict[str, dict[str, str]] = {}
        """The versions of each worker, by its address."""
        self.excluded: dict[str, dict[str, str]] = {}
        """The versions of workers that get no parts: they differ from those of this process, or it has none."""
        self._client = client
        self._devices = devices
        self._names: dict[str, str] = {}
        """The name here of each worker, by its name in Dask."""
        self._asking: set[Any] = set()

    @property
    def scheduler(self) -> str:
        """The address of the scheduler."""
        return str(self._client.scheduler.address)

    def admit(self, address: str, about: "Mapping[str, Any] | BaseException") -> str | None:
        """Note what a worker has said of itself, or the error of its answer. Return its name here; None if its versions
        differ, or if it cannot run dagpu."""
        from dagpu.cluster.worker.dask_tasks import versions_here

        if isinstance(about, BaseException):
            self.excluded[address] = {**versions_here(), "dagpu": f"none ({type(about).__name__}: {about})"}
            return None
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
        _, message = event
        address = str(message.get("worker", ""))
        if message.get("action") == "remove-worker":
            self.excluded.pop(address, None)
            for name in [name for name, where in self.addresses.items() if where == address]:
                del self.addresses[name]
        elif message.get("action") == "add-worker":
            self.note_arrival(address)

    def note_arrival(self, address: str) -> None:
        """Ask a worker what it is, unless it is known."""
        if address not in self.excluded and address not in self.addresses.values():
            asking = asyncio.get_running_loop().create_task(self._ask(address))
            self._asking.add(asking)
            asking.add_done_callback(self._asking.discard)

    async def _ask(self, address: str) -> None:
        from dagpu.cluster.worker.dask_tasks import describe_worker, restrict_tasks

        answer: Any = None
        for _ in range(_ASKED):  # it may not be ready to answer yet
            try:
                found = await self._client.run(describe_worker, self._devices, workers=[address], on_error="return")
            except Exception:
                found = {}
            answer = found.get(address)
            if isinstance(answer, dict | ImportError | AttributeError):
                break
            await asyncio.sleep(_ASK_SECONDS)
        if isinstance(answer, dict) and (answer["error"] or not answer["devices"]):
            answer = NoDeviceError(answer["error"])
        if answer is not None:
            self.admit(address, answer)
        if self.excluded:
            await self._client.run_on_scheduler(restrict_tasks, self._client.id, [*self.addresses.values()])


def mismatch(members: Members, origin: Origin) -> VersionMismatchError:
    """Return the error for workers of which none has the versions of this process."""
    return VersionMismatchError(
        f"Cluster at {describe(origin)}: no worker has the versions of this process ({socket.gethostname()}):\n"
        + _table(members)
        + "\nInstall the same versions everywhere."
    )


def warn_of_excluded(members: Members, origin: Origin) -> None:
    """Warn of workers that get no parts, if there are any, at the place where the cluster is opened."""
    if members.excluded:
        file, line = place_of(origin) or ("dagpu", 0)
        message = (
            f"Cluster at {describe(origin)}: {len(members.excluded)} of the workers get no work, since they have not "
            f"the versions of this process ({socket.gethostname()}):\n{_table(members)}\n"
            "Install the same versions everywhere."
        )
        warnings.warn_explicit(message, RuntimeWarning, file, line)


def _table(members: Members) -> str:
    """Return a line for each version of a worker that differs from that of this process."""
    from dagpu.cluster.worker.dask_tasks import versions_here

    mine = versions_here()
    rows = [
        f"  {what}: {mine.get(what, 'none')} here, {theirs.get(what, 'none')} on {address}"
        for address, theirs in members.excluded.items()
        for what in {**mine, **theirs}
        if mine.get(what) != theirs.get(what)
    ]
    return "\n".join(rows)
