"""A cluster in this process, whose engine is an `Adversary`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dagpu import CostModel, StreamInterpreter, use_interpreter
from dagpu.cluster.backend import ClusterBackend
from dagpu.cluster.worker import PartValue, read_value, write_value
from dagpu.runtime.device_lookup import add_nodes, remove_nodes
from tests.programs.meshes import Scatter
from tests.unit.cluster.adversary import Adversary

WORKERS = ("w0", "w1", "w2")


def sent(value: PartValue) -> PartValue:
    """The value as it arrives on another worker."""
    header, frames = write_value(value)
    return read_value(header, [bytes(frame) for frame in frames])


@contextmanager
def cluster(
    choose: Callable[[int], int], seconds: float, kills: int = 0, redone: int = 0, *, code: bool = True
) -> Iterator[tuple[ClusterBackend, Adversary]]:
    """A cluster in this process, whose devices have names as long as the block is open."""
    engine = Adversary(WORKERS, choose, sent, kills, redone)
    backend = ClusterBackend({each: ["host:0"] for each in WORKERS}, engine, CostModel(), seconds, code=code)
    add_nodes(backend.nodes, backend)
    try:
        yield backend, engine
    finally:
        remove_nodes(backend.nodes)


def interpreter(backend: ClusterBackend, seed: int) -> Any:
    """Runs ops on the cluster, placed by chance."""
    return use_interpreter(StreamInterpreter(backend.mesh.devices[0], Scatter(backend.mesh, seed)))
