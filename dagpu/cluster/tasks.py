"""The tasks of a run: its parts in the form in which an engine runs them, on any worker and any number of times.

An engine has keys for values: each task makes the value of one key, or of several, so that a worker which needs some of
the versions does not fetch all of them. What is here knows no engine.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias, final

import numpy as np

from dagpu.cluster.parts.part import Version
from dagpu.cluster.parts.part_blobs import Blob
from dagpu.cluster.worker.part_runs import PartCall, StoredArray
from dagpu.common.frozen import plain

INLINE: Final = 1 << 20
"""Bytes of the largest array that travels inside a task. Larger ones are sent to a worker before."""

Group: TypeAlias = tuple[int, int]
"""A value of a task: the index of the task, and that of the value among its values."""


def memory_of(device: str) -> str:
    """Return the name of the memory of a device: its own for a GPU, that of its worker for a host."""
    worker, _, name = device.partition("/")
    return f"{worker}/host" if name.startswith("host") else device


class Hold(Protocol):
    """Keeps the value of a key alive on the cluster, as long as it is referred to."""

    @property
    def key(self) -> Hashable: ...


@final
class RemoteMemory:
    """The memory object of a cluster: a version, and the key whose value has it. A run that writes it puts another
    version in its place once all of the run has succeeded."""

    __slots__ = ("__weakref__", "hold", "lineage", "nbytes", "version")

    def __init__(self, hold: Hold, version: Version, nbytes: int, lineage: int) -> None:
        self.hold = hold
        self.version = version
        self.nbytes = nbytes
        self.lineage = lineage
        """The number of parts on the longest history of runs that has led to it: if all workers died, at least as many
        would be run again."""

    def __repr__(self) -> str:
        return f"<RemoteMemory of {self.nbytes} bytes>"


@final
@plain
class Task:
    """A part as an engine runs it."""

    index: int
    """Its index in the run. It needs tasks before it alone."""
    worker: str
    """The worker that is to run it."""
    name: str
    """The place in the user's file and the kernel of its last instruction: `fit.py:12-axpy`."""
    blob: Blob
    buffers: tuple[tuple[int, Version, Group | None], ...]
    """For each input, its buffer, its version, and the value of another task that has it; None for an input of the
    run."""
    given: tuple[tuple[int, int], ...]
    """For each input that is a value of the caller's: its buffer in the part, and in the whole program."""
    exports: tuple[Version, ...]
    gives: tuple[int, ...]
    groups: tuple[tuple[Version, ...], ...]
    """The versions of each of its values."""
    needs: tuple[int, ...]
    seconds: float
    peak_bytes: Mapping[str, int]
    """For each memory, the bytes that it allocates there beyond what it takes; see `memory_of`."""
    origins: tuple[str, ...]
    """The places of its instructions, for messages."""


def call_of(
    task: Task,
    run: str,
    memory: Sequence[Any],
    source: Callable[[Any], int],
    place_array: Callable[[Any], int],
    *,
    traced: bool = False,
) -> PartCall:
    """Return what a worker needs to run a task. `source` returns the index of a value among those that the worker
    gets, for a `Group` or a `Hold`; `place_array` that of a large array. `traced` asks for times of instructions."""
    taken: list[tuple[int, int, Version | None]] = []
    for local, version, group in task.buffers:
        if group is not None:
            taken.append((local, source(group), version))
        else:
            held = memory[version[0]]
            taken.append((local, source(held.hold), held.version))
    given: dict[int, Any] = {}
    for local, buffer in task.given:
        content = memory[buffer]
        stored = stored_array(content)
        if stored is not None:
            given[local] = stored
        elif is_large(content):
            taken.append((local, place_array(content), None))
        else:
            given[local] = content
    blob = task.blob
    return PartCall(
        run, blob.content, blob.digest, tuple(taken), given, task.exports, task.gives, task.name if traced else ""
    )


def is_large(content: Any) -> bool:
    """Return whether an input of a run is an array that is sent to a worker before the task that takes it."""
    return type(content) is np.ndarray and content.nbytes > INLINE and stored_array(content) is None


def stored_array(content: Any) -> StoredArray | None:
    """Return the place of an array that is all of a file that nobody writes, such as one of a checkpoint; None for any
    other value."""
    base = content.base if type(content) is np.ndarray else None
    if (
        not isinstance(base, np.memmap)
        or base.mode != "r"
        or base.filename is None
        or (base.shape, base.strides, base.dtype) != (content.shape, content.strides, content.dtype)
        or not content.flags.c_contiguous
    ):
        return None
    return StoredArray(str(base.filename), base.offset, base.dtype.name, base.shape)
