"""Who may speak to a cluster: TLS with certificates of one authority, or loopback."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

pytest.importorskip("distributed", reason="a cluster needs Dask: pip install 'dagpu[cluster]'")
pytest.importorskip("cryptography", reason="certificates are made by it: pip install 'dagpu[cluster]'")

from distributed import Security

from dagpu import Cluster, ClusterError, ClusterSecurityError, Tls, full, use_interpreter
from dagpu.cluster.connection import Bridge
from tests.conftest import only_deep
from tests.unit.cluster.certificates import certificates
from tests.unit.cluster.schedulers import start, stop


@pytest.fixture
def bridge() -> Iterator[Bridge]:
    """A thread for a scheduler."""
    bridge = Bridge("test-scheduler")
    yield bridge
    bridge.stop()


def _security(tls: Tls) -> Security:
    own = {"tls_scheduler_cert": tls.certificate, "tls_scheduler_key": tls.key}
    own |= {"tls_worker_cert": tls.certificate, "tls_worker_key": tls.key}
    return Security(**tls.options(), **{name: str(path) for name, path in own.items()})


def _connected(address: str, tls: Tls | None, timeout: float = 60.0) -> Any:
    """Run an op on the cluster of a scheduler."""

    async def main() -> Any:
        async with Cluster.connect(address, tls=tls, devices=["host:0"], timeout=timeout) as cluster:
            with use_interpreter(cluster):
                assert cluster.mesh.devices[0].name == "node0/host:0"
                return await full((2,), 3.0).to_host()

    return trio.run(main)


@only_deep
def test_ends_of_one_authority_speak_to_each_other(bridge: Bridge, tmp_path: Path) -> None:
    """An op runs over TLS; an end whose certificate is of another authority is refused, with the reason."""
    tls, other = certificates(tmp_path / "ours"), certificates(tmp_path / "theirs")
    scheduler, workers = bridge.block(start(_security(tls), 1))
    try:
        assert _connected(scheduler.address, tls).tolist() == [3, 3]
        with pytest.raises(ClusterSecurityError, match="not of the other's authority"):
            _connected(scheduler.address, other, timeout=3.0)
    finally:
        bridge.block(stop(scheduler, workers))


@pytest.mark.parametrize("address", ["tcp://head:8786", "tcp://10.0.0.7:8786", "head:8786", "ucx://head:1"])
def test_nothing_is_said_in_the_clear(address: str) -> None:
    """Without TLS only loopback is spoken to, and nothing else is tried."""
    with pytest.raises(ClusterSecurityError, match=r"in the clear.*tls=Tls"):
        Cluster.connect(address)
    with pytest.raises(ClusterSecurityError, match="TLS needs certificates"):
        Cluster.connect("tls://head:8786")


def test_missing_files_and_schedulers_are_named(tmp_path: Path) -> None:
    """A file that is not there, before anything is opened; a port on which nothing listens."""
    with pytest.raises(ClusterSecurityError, match=r"ca is '.*none.pem', and there is no such file"):
        Tls(tmp_path / "none.pem", tmp_path / "none.pem", tmp_path / "none.pem")
    with pytest.raises(ClusterError, match="no scheduler and worker answered"):
        _connected("tcp://127.0.0.1:1", None, timeout=0.2)
