"""Clusters as type checkers see them: opening, running, watching, and checkpoints."""

from pathlib import Path
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

from dagpu import Cluster, DeviceOp, Interpreter, Mesh, Progress, Tensor, Tls, WorkerInfo, checkpoint, f32, zeros


async def opened() -> None:
    async with Cluster.local(2, ["host:0"], part_seconds=0.1, code=True) as local:
        assert_type(local, Cluster)
    tls = Tls(Path("ca.pem"), "own.pem", "own-key.pem")
    async with Cluster.connect("tls://head:8786", tls=tls, window=8, allowed_failures=1, timeout=5.0) as cluster:
        assert_type(cluster.workers, tuple[WorkerInfo, ...])
        assert_type(cluster.mesh, Mesh)
        assert_type(cluster.dashboard, str | None)
        interpreter: Interpreter = cluster
        assert_type(await cluster.run(zeros((2,)).to_host()), NDArray[f32])
        assert_type(cluster.run_sync(zeros((2,))).dtype, np.dtype[Any])
        assert_type(cluster.explain(zeros((2,))), str)
        async for now in cluster.progress():
            assert_type(now, Progress)
            assert_type(now.lost_workers, tuple[str, ...])
        print(interpreter)


def cut(t: Tensor[f32], op: DeviceOp[Tensor[f32]]) -> None:
    assert_type(checkpoint(t, "weights.npy").sync(), Tensor[f32])
    assert_type(checkpoint(op, Path("weights.npy")).sync(), Tensor[f32])
    checkpoint(3.0, "weights.npy")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def wrong() -> None:
    Tls("ca.pem")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Cluster.connect(8786)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
