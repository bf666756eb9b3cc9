"""The connection to a Dask cluster: its workers, its event loop, and who may speak to it.

A wait takes no thread: one call goes to the loop, and one call comes back, by the pipe of
`dagpu.runtime.trio_waits`.
"""

import ast
import asyncio
import concurrent.futures
import ipaddress
import linecache
import re
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from types import FrameType, ModuleType
from typing import Any, Final, Generic, TypeVar, final

from dagpu.backends.host.worker_threads import start_thread
from dagpu.backends.protocol import Failure
from dagpu.common.errors import ClusterError, ClusterSecurityError, NoDeviceError, VersionMismatchError
from dagpu.common.frozen import plain
from dagpu.common.places import Origin, describe, here, place_of
from dagpu.common.wrong_arguments import check_path
from dagpu.handles.device_handles import Device
from dagpu.runtime.device_lookup import backends
from dagpu.runtime.trio_waits import TrioWaits

_T = TypeVar("_T")


@final
class Bridge:
    """A thread with an asyncio loop."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        start_thread(self._thread)

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        pending = asyncio.all_tasks(self.loop)
        for task in pending:
            task.cancel()
        if pending:
            self.loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    def call(self, coroutine: Coroutine[Any, Any, _T]) -> "BridgedCall[_T]":
        """Start a coroutine in the loop."""
        return BridgedCall(asyncio.run_coroutine_threadsafe(coroutine, self.loop))

    def block(self, coroutine: Coroutine[Any, Any, _T], timeout: float | None = None) -> _T:
        """Run a coroutine in the loop, and block this thread until it is done."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout)

    async def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine in the loop, and suspend this trio task until it is done. A cancellation cancels the
        coroutine, and is raised once that has ended."""
        call = self.call(coroutine)
        await TrioWaits(has_yielded=True).wait_for_run(call, 0.0)
        return call.result()

    def stop(self) -> None:
        """End the loop and its thread."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(10.0)


@final
class BridgedCall(Generic[_T]):
    """A coroutine under way in the loop. Implements `dagpu.backends.protocol.Run`, so that all waits are alike."""

    is_launch: bool = False

    def __init__(self, future: "concurrent.futures.Future[_T]") -> None:
        self._future = future

    def result(self) -> _T:
        """Return the result, or raise the error, of a coroutine that has ended."""
        return self._future.result(0)

    def done(self) -> bool:
        return self._future.done()

    def wait(self, timeout: float | None = None) -> bool:
        concurrent.futures.wait([self._future], timeout)
        return self._future.done()

    def poll(self, seconds: float) -> bool:
        return self._future.done()

    def succeeds(self, seconds: float) -> bool:
        return self._future.done() and not self._future.cancelled() and self._future.exception() is None

    @property
    def cancellable(self) -> bool:
        return True

    def readable(self) -> None:
        return

    def woken(self) -> None:
        return

    def when_done(self, wake: Callable[[], None]) -> None:
        self._future.add_done_callback(lambda _: wake())

    def cancel(self) -> None:
        self._future.cancel()

    def failures(self) -> list[Failure]:
        return []

    def spoilt(self) -> None:
        return None


# ---- members
#
# The workers of a cluster as they come and go.

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
        self._has_excluded = False
        """True once a worker was excluded, also if it is gone."""
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
        from dagpu.cluster.dask_tasks import versions_here

        if isinstance(about, BaseException):
            self._has_excluded = True
            self.excluded[address] = {**versions_here(), "dagpu": f"none ({type(about).__name__}: {about})"}
            return None
        self.versions[address] = about["versions"]
        if about["versions"] != versions_here():
            self._has_excluded = True
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
        from dagpu.cluster.dask_tasks import describe_worker, restrict_tasks

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
        if self._has_excluded:  # those that are gone too: tasks may still be kept from all workers
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
    from dagpu.cluster.dask_tasks import versions_here

    mine = versions_here()
    rows = [
        f"  {what}: {mine.get(what, 'none')} here, {theirs.get(what, 'none')} on {address}"
        for address, theirs in members.excluded.items()
        for what in {**mine, **theirs}
        if mine.get(what) != theirs.get(what)
    ]
    return "\n".join(rows)


# ---- security
#
# Who may speak to a cluster: TLS with certificates of one's own authority, or loopback alone.


@final
@dataclass(frozen=True, slots=True)
class Tls:
    """The certificates of one end of a cluster's connections. Every end shows one of the same authority.

    A certificate is permission to run code on all machines of the cluster.

    Args:
        ca: the file with the certificate of the authority, in PEM.
        certificate: the file with this end's certificate, in PEM.
        key: the file with this end's private key, in PEM. Others must not be able to read it.
    """

    ca: Path | str
    certificate: Path | str
    key: Path | str

    def __post_init__(self) -> None:
        for name in ("ca", "certificate", "key"):
            check_path(getattr(self, name), "Tls", here())
            path = Path(getattr(self, name))
            if not path.is_file():
                raise ClusterSecurityError(
                    f"Tls() at {describe(here())}: {name} is {str(path)!r}, and there is no such file. Make the "
                    "certificates first: docs/guides/cluster.md shows how."
                )

    def options(self) -> Mapping[str, Any]:
        """Return the arguments of Dask's `Security`."""
        own = {"tls_client_cert": self.certificate, "tls_client_key": self.key}
        return {"tls_ca_file": str(self.ca), "require_encryption": True, **{k: str(v) for k, v in own.items()}}


_LOOPBACK: Final = ("localhost", "ip6-localhost")


def check_address(address: str, tls: Tls | None, origin: Origin) -> None:
    """Check that an address is one that may be spoken to.

    Raises:
        ClusterSecurityError: it is neither TLS with certificates nor loopback.
    """
    scheme, _, rest = address.rpartition("://")
    host = rest.rpartition(":")[0].strip("[]") or rest
    if scheme == "tls" and tls is None:
        raise ClusterSecurityError(
            f"Cluster.connect({address!r}) at {describe(origin)}: TLS needs certificates. Pass tls=Tls(ca, "
            "certificate, key)."
        )
    if scheme == "tls" or _is_loopback(host):
        return
    raise ClusterSecurityError(
        f"Cluster.connect({address!r}) at {describe(origin)}: in the clear, whoever reads the network can run code on "
        "the cluster. Start the scheduler with TLS, and connect to tls://... with tls=Tls(ca, certificate, key)."
    )


def _is_loopback(host: str) -> bool:
    try:
        return host in _LOOPBACK or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# ---- main guard
#
# Finds a program that its own worker processes would run again.
#
# A process that Python starts imports the main module anew (`multiprocessing`, start method spawn), so that it has the
# functions and classes of that module. What the module runs at its top level runs there too, unless an `if` excludes
# it.


def refuse_to_run_again(origin: Origin) -> None:
    """Raise an error if the processes of `Cluster.local`, called at this place, would run the program again.

    Raises:
        ClusterError: the main module is running, and no `if` excludes processes that import it.
    """
    found = line_to_guard()
    if found is not None:
        file, line = found
        where = f"{PurePath(file).name}:{line}"
        raise ClusterError(
            f"Cluster.local at {describe(origin)}: each worker is a process that imports the main module again, and "
            f"would run {where} again, and with it this call. Put that line under an if of its own: "
            'if __name__ == "__main__":'
        )


def line_to_guard() -> tuple[str, int] | None:
    """Return the file and the line of the main module that is running now, and that a process would run again.

    None if an `if` encloses the line, if the main module is none that processes import, or if its source is not there.
    """
    main = sys.modules.get("__main__")
    if main is None or not _is_imported_again(main):
        return None
    frame: FrameType | None = sys._getframe()
    while frame is not None and not (frame.f_globals is vars(main) and frame.f_code.co_name == "<module>"):
        frame = frame.f_back
    if frame is None:
        return None
    file, line = frame.f_code.co_filename, frame.f_lineno
    return None if is_guarded("".join(linecache.getlines(file)), line) else (file, line)


def _is_imported_again(main: ModuleType) -> bool:
    """True for a file or a module, false for a package, for `python -c`, an interpreter and a notebook, as
    `multiprocessing.spawn` has it."""
    spec = main.__spec__
    if spec is not None:
        return not f".{spec.name}".endswith(".__main__")
    return getattr(main, "__file__", None) is not None


def is_guarded(source: str, line: int) -> bool:
    """Return true if an `if` encloses a line of a module, or if this source is not that of a module with the line."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return True
    at_line = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and _has_line(node, line)]
    return not at_line or any(isinstance(node, ast.If) for node in at_line)


def _has_line(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)
