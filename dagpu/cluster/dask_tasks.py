"""What Dask calls on a worker, and the errors that it sends back."""

import asyncio
import os
import platform
import socket
import sys
from collections.abc import Sequence
from typing import Any, final

import numpy as np
import tblib.pickling_support
from distributed import get_worker
from distributed.protocol import pickle as dask_pickle

from dagpu.cluster.blobs import FORMAT
from dagpu.cluster.cutting import Version
from dagpu.cluster.worker import RUNNER, BatchCall, PartValue, Span
from dagpu.common.errors import ClusterError, DeviceLostError, NoDeviceError
from dagpu.common.layout import Layout
from dagpu.handles.device_handles import LibraryBody, driver_of
from dagpu.runtime.device_lookup import devices, find_device


def run_batch(call: BatchCall, *values: Any) -> PartValue:
    """Run parts. If a device of this worker is lost, the worker ends at once, as if it had been killed: its nanny
    starts another one, the parts run elsewhere, and one that loses devices again and again is given up.

    Raises:
        SentError: a part has failed.
    """
    try:
        return RUNNER.run_batch(call, values, str(get_worker().name))
    except DeviceLostError as error:
        sys.stderr.write(f"dagpu: a device is lost, so this worker ends: {error}\n")
        sys.stderr.flush()
        os._exit(1)
    except Exception as error:
        sent = sent_error(error)
    raise sent


def select_versions(value: PartValue, versions: Sequence[Version]) -> PartValue:
    """Return some versions of a value, as the value of a key of its own."""
    return value.subset(versions)


def same(content: Any) -> Any:
    """Return the argument: a value that can be made again, unlike scattered ones."""
    return content


def cancel_run(run: str) -> int:
    """Cancel the parts of a run on this worker. Return the number of those that are still under way."""
    return RUNNER.cancel(run)


def count_parts(run: str) -> int:
    """Return the number of parts of a run that this worker is at."""
    return RUNNER.count(run)


def take_spans(run: str) -> list[Span]:
    """Return the times of a traced run on this worker, in seconds of its clock, and forget them."""
    return RUNNER.take_spans(run)


def versions_here() -> dict[str, str]:
    """Return the versions that have to agree on all machines."""
    return {
        "dagpu": str(vars(sys.modules["dagpu"])["__version__"]),
        "format of parts": str(FORMAT),
        "Python": ".".join(map(str, sys.version_info[:2])),
        "NumPy": np.__version__,
        "byte order": sys.byteorder,
        "machine": platform.machine(),
    }


def describe_worker(wanted: Sequence[str] | None, dask_worker: Any = None) -> dict[str, Any]:
    """Return what a client has to know of this worker: versions, devices and their memory."""
    try:
        found = [find_device(name) for name in wanted] if wanted is not None else devices()
        error = ""
    except NoDeviceError as failed:
        found, error = [], str(failed)
    gpus = [each for each in found if each.kind == "cuda"]
    chosen = gpus or [each for each in found if each.kind == "host"]
    return {
        "versions": versions_here(),
        "devices": [each.name for each in chosen],
        "memory": {each.name: each.memory_info() for each in chosen},
        "name": str(dask_worker.name),
        "host": socket.gethostname(),
        "error": error,
    }


def memory_of(device: str) -> tuple[int, int]:
    """Return the free and the total memory of a device of this worker."""
    return find_device(device).memory_info()


def scratch_of(device: str, body: LibraryBody, operands: Sequence[Layout]) -> int:
    """Return the bytes of scratch memory that a library needs on a device of this worker."""
    return driver_of(find_device(device)).scratch_bytes(body, operands)


def restrict_tasks(client: str, addresses: Sequence[str], dask_scheduler: Any = None) -> None:
    """Let the tasks of a client run on these workers alone, of which some may be new. It runs on the scheduler, in one
    turn of its loop."""
    tag = client.rpartition("-")[2]
    for task in dask_scheduler.tasks.values():
        if tag in str(task.key):
            task.worker_restrictions, task.host_restrictions, task.loose_restrictions = set(addresses), None, False
    waiting = {task.key: "processing" for task in dask_scheduler.unrunnable if tag in str(task.key)}
    if waiting and addresses:
        dask_scheduler.transitions(waiting, f"dagpu-restrict-{tag}")


async def know_tasks(keys: Sequence[str], dask_scheduler: Any = None) -> None:
    """Wait until the scheduler knows these tasks, which come to it by another way than this call; for half a minute at
    most, since a run that has ended takes them back. It runs on the scheduler."""
    for _ in range(1_000):
        if all(key in dask_scheduler.tasks for key in keys):
            return
        await asyncio.sleep(0.03)


def follow_workers(client: str, allowed_failures: int, dask_scheduler: Any = None) -> list[str]:
    """Set how many workers may die on one part before it is given up, and have all events sent to a client. Return the
    addresses of the workers that are there when that begins. It runs on the scheduler, in one turn of its loop."""
    dask_scheduler.allowed_failures = allowed_failures
    dask_scheduler.subscribe_topic("all", client)
    return [*dask_scheduler.workers]


# ---- part errors
#
# The error of a part on its way to the caller: as it was raised, with its notes, causes and traceback.
#
# What Dask would send is not that error if its text is longer than 10,000 characters, as a compiler's can be, or if a
# pickle of it cannot be read: then its notes are dropped, and with them the worker that they name.

_SHOWN = 200
"""The characters of an error's text in the logs of Dask."""


@final
class SentError(Exception):
    """An error as a pickle, for which Dask has nothing to cut off. Its arguments are the pickle and a short text."""

    def __str__(self) -> str:
        return str(self.args[1])

    def __repr__(self) -> str:
        return f"SentError({self})"


def sent_error(error: BaseException) -> SentError:
    """Return what is raised on a worker for an error of a part."""
    text = f"{type(error).__name__}: {error}"
    tblib.pickling_support.install(error)
    try:
        content = dask_pickle.dumps(error)
        dask_pickle.loads(content)
    except Exception as failed:
        content = dask_pickle.dumps(_without_type(text, failed, getattr(error, "__notes__", ())))
    return SentError(content, text[:_SHOWN])


def received_error(error: BaseException) -> BaseException:
    """Return the error of a part that has come from a worker; another error as it is."""
    if not isinstance(error, SentError):
        return error
    try:
        found: BaseException = dask_pickle.loads(error.args[0])
    except Exception as failed:
        return _without_type(str(error), failed, ())
    return found


def _without_type(text: str, failed: Exception, notes: "tuple[str, ...] | list[str]") -> ClusterError:
    """Return the error for one whose pickle cannot be written or read."""
    stand_in = ClusterError(
        f"{text}\n(A worker raised it, and its type does not survive a pickle: {type(failed).__name__}: {failed})"
    )
    for note in notes:
        stand_in.add_note(note)
    return stand_in
