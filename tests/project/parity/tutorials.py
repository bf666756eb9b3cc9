"""Rows of the tutorial and of async-cuda-core."""

import numpy as np
import trio
from numpy.typing import NDArray

from dagpu import (
    arange,
    current_device,
    f32,
    from_host,
    full,
    ones,
    randn,
    trace,
    zeros,
    zip_ops,
)
from tests.project.parity.rows import BUFFERS, TUTORIAL, Table, add, numbers, saxpy

TABLE = Table()
row = TABLE.row

# ---- the tutorial


@row(TUTORIAL, "async vector addition, 32x32 in 4x4 tiles", "the same program; `examples/async_add.py`")
def _() -> None:
    async def main() -> float:
        x, y = await ones((32, 32)).share(), await ones((32, 32)).share()
        z: NDArray[f32] = await add(zeros((32, 32)).partition((4, 4)), x, y).first().unpartition().to_host()
        return float(z[0, 0])

    assert trio.run(main) == 2.0


@row(TUTORIAL, "exercise 1: async SAXPY", "`examples/saxpy.py`")
def _() -> None:
    async def main() -> NDArray[f32]:
        result: NDArray[f32] = await (
            saxpy(ones((4, 4)).partition((2, 2)), 2.0, arange(16).reshape((4, 4))).first().unpartition().to_host()
        )
        return result

    assert np.array_equal(trio.run(main), 1 + 2 * np.arange(16.0).reshape(4, 4))


@row(TUTORIAL, "exercise 2: four tensors in parallel", "`examples/parallel_tensors.py`")
def _() -> None:
    op = zip_ops(ones((10, 10)).share(), zeros((10, 10)).share(), randn((10, 10), seed=1).share(), arange(100).share())
    assert [t.size for t in op.sync()] == [100] * 4


@row(TUTORIAL, "exercise 3: measure the difference with `Instant`", "`dagpu.trace`, `examples/overlap_spawn.py`")
def _() -> None:
    with trace() as measured:
        zip_ops(ones((8,)).to_host(), zeros((8,)).to_host()).sync()
    assert [len(run.spans()) for run in measured.runs] == [4]


# ---- async-cuda-core


@row(
    BUFFERS,
    "`HostBuffer`, `DeviceBuffer`: allocated and copied asynchronously",
    "`from_host`, `empty`, `.to_host()`, awaited",
)
def _() -> None:
    async def main() -> list[float]:
        result: list[float] = (await (await from_host(np.array([1, 2], np.float32))).to_host()).tolist()
        return result

    assert trio.run(main) == [1, 2]


@row(BUFFERS, "`DeviceBuffer2D`: pitched copies", "strided views: `t.slice(rows, columns).to_host()`")
def _() -> None:
    t = arange(12).reshape((3, 4)).sync()
    assert t.slice(slice(1, 3), slice(1, 3)).to_host().sync().tolist() == [[5, 6], [9, 10]]


@row(BUFFERS, "a buffer filled with a value", "`full`, `fill`")
def _() -> None:
    assert numbers(full((3,), 7.0)).tolist() == [7.0] * 3


@row(
    BUFFERS,
    "`Stream::new().await`, `stream.synchronize().await`",
    "`device.stream()`; `await op` waits for its work alone",
)
def _() -> None:
    async def main() -> list[float]:
        result: list[float] = (await full((2,), 2.0).to_host()).tolist()
        return result

    stream = current_device().stream()
    with trace() as measured:
        assert zip_ops(ones((4,)).to_host(), zeros((4,)).to_host()).sync_on(stream)[0].tolist() == [1] * 4
    assert len(set(measured.runs[0].streams)) == 1
    assert trio.run(main) == [2.0, 2.0]


@row(
    BUFFERS,
    "a future that is leaked or forgotten is undefined behaviour",
    "runs are structured: nothing outlives its scope",
)
def _() -> None:
    async def main() -> None:
        with trio.move_on_after(0):
            await ones((4,)).to_host()

    before = current_device().memory_used()
    trio.run(main)
    assert current_device().memory_used() == before
