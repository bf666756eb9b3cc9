"""The functions of a device that is on another machine."""

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np

from dagpu.cluster.cluster_runs import Engine
from dagpu.cluster.parts.part_blobs import refused_code
from dagpu.common.errors import ClusterError
from dagpu.common.layout import Layout
from dagpu.handles.device_handles import NO_GRAPHS, Exchange, MappedMemory
from dagpu.handles.library_bodies import LibraryBody

if TYPE_CHECKING:
    from numpy.typing import NDArray


@final
class RemoteDriver:
    """The functions of one device of a cluster. Implements `dagpu.handles.device_handles.Driver`."""

    __slots__ = ("_code", "_engine", "_name", "_scratch", "_worker")

    def __init__(self, engine: Engine, worker: str, name: str, *, code: bool) -> None:
        self._engine = engine
        self._worker = worker
        self._name = name
        self._code = code
        """False if no Python code is sent."""
        self._scratch: dict[tuple[int, tuple[Layout, ...]], tuple[LibraryBody, int]] = {}

    @property
    def arch(self) -> str:
        """Return the empty text: each worker compiles kernels for its own devices."""
        return ""

    @property
    def lacks_conditions(self) -> str:
        """The reason why no graph decides: workers run the parts of a plan."""
        return NO_GRAPHS

    @property
    def exchange(self) -> Exchange:
        """Refuse: other libraries of this process cannot read the memory of another one.

        Raises:
            ClusterError: always.
        """
        raise ClusterError(
            f"the tensor is on {self._worker}/{self._name}, whose memory is in another process, and is not given to "
            "libraries of this one. Copy it to this process first: t.to_host().sync()."
        )

    def open_stream(self) -> Hashable:
        """Refuse: each worker chooses the streams of its parts.

        Raises:
            ClusterError: always.
        """
        raise ClusterError(
            f"{self._worker}/{self._name} is a device of a cluster, where each worker chooses the streams of its "
            f'parts. Name the device alone: op.on("{self._worker}/{self._name}").'
        )

    def stream_handle(self, lane: Hashable) -> int:
        """Return 0: there are no streams."""
        return 0

    def memory_info(self) -> tuple[int, int]:
        """Return the free and the total memory, in bytes. The worker is asked."""
        return self._engine.memory_info(self._worker, self._name)

    def memory_used(self) -> int:
        """Return the bytes of the tensors on the device that are held for this process."""
        return self._engine.memory_used(f"{self._worker}/{self._name}")

    def mapped_memory(self, nbytes: int) -> MappedMemory:
        """Refuse: this process and the worker have no memory in common.

        Raises:
            ClusterError: always.
        """
        raise ClusterError(
            f"{self._worker}/{self._name} has no memory in common with this process. Feeds and tiles run on devices of "
            "this process: leave use_interpreter(cluster) out there."
        )

    def write_part(self, memory: object, layout: Layout, array: "NDArray[Any]") -> bool:
        """Return False: that needs a run."""
        return False

    def copy_part(self, memory: object, layout: Layout, source: object) -> bool:
        """Return False: that needs a run."""
        return False

    def copy_for_later(self, array: "NDArray[Any]") -> "NDArray[Any] | None":
        """Return a copy of an array."""
        return np.array(array)

    def reaches(self, peer: int) -> bool:
        """Return true: the devices of one worker are taken to read each other's memory."""
        return True

    def is_known(self, body: LibraryBody, operands: Sequence[Layout]) -> bool:
        """True if no worker has to be asked for the scratch memory of a library."""
        return self._name.startswith("host") or (id(body), tuple(operands)) in self._scratch

    def scratch_bytes(self, body: LibraryBody, operands: Sequence[Layout]) -> int:
        """Return the bytes of scratch memory that a library needs on the worker, which is asked; 0 on a host.

        Raises:
            ClusterSecurityError: the cluster takes no code.
        """
        if self._name.startswith("host"):
            return 0
        found = self._scratch.get((id(body), tuple(operands)))
        if found is None:
            if not self._code:
                raise refused_code(f"a library's kernel on {self._worker}/{self._name}")
            asked = self._engine.scratch_bytes(self._worker, self._name, body, operands)
            found = self._scratch[id(body), tuple(operands)] = body, asked
        return found[1]
