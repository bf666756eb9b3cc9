"""The workers of a cluster as they come and go."""

import asyncio
import re
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Final, final

from dagpu.cluster.connection.bridge import Bridge
from dagpu.common.errors import VersionMismatchError
from dagpu.common.frozen import plain
from dagpu.common.origin import Origin, describe
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


def mismatch(members: Members, origin: Origin) -> VersionMismatchError:
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
        f"Cluster at {describe(origin)}: no worker has the versions of this process ({socket.gethostname()}):\n"
        + "\n".join(rows)
        + "\nInstall the same versions everywhere."
    )
