"""Kernels and memory orders that tests of the CUDA backend share."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagpu import u64
from dagpu.testing import HOST, Buffer, HostBody, KernelSpec, Launch, Param, Program, Tiles, View, contiguous_layout

WORD = np.dtype(u64)


def mixed(number: int, inputs: list[NDArray[u64]], outputs: list[NDArray[u64]], fresh: set[int]) -> None:
    """Return the results of one launch.

    Every output depends on its old contents (unless it is `fresh`), on all inputs and on the launch.
    """
    total = (sum(int(x.sum(dtype=u64)) * (2 * place + 3) for place, x in enumerate(inputs)) + number) % 2**62
    for place, y in enumerate(outputs):
        old = np.zeros_like(y) if place in fresh else y
        y[...] = old * u64(6364136223846793005) + u64(total + place)


def mixing(number: int, launch: Launch, buffers: tuple[Buffer, ...], written: set[int]) -> Launch:
    """A launch of `programs()` as one that really reads and writes those buffers. Adds to `written`."""
    reads = [b for b in launch.reads if buffers[b].device != HOST and b not in launch.writes]
    writes = [b for b in launch.writes if buffers[b].device != HOST]
    fresh = {place for place, b in enumerate(writes) if b not in written}
    written.update(writes)

    def body(*arrays: Any) -> None:
        mixed(number, list(arrays[: len(reads)]), list(arrays[len(reads) :]), fresh)

    def view(buffer: int) -> View:
        return View(buffer, contiguous_layout((buffers[buffer].nbytes // 8,), WORD))

    params = [Param(f"x{b}", "in", WORD, 1, None, False) for b in reads]
    params += [Param(f"y{b}", "out", WORD, 1, None, False) for b in writes]
    spec = KernelSpec("mix", tuple(params), "", "mix.cu", "views", None, (), False, None, HostBody(body, True), (1,))
    outs = tuple(Tiles(view(b), (1000,), (1,)) for b in writes)
    return Launch(spec, (*map(view, reads), *outs), (1,), launch.reads, launch.writes, launch.device, None)


def in_order(program: Program) -> list[NDArray[u64]]:
    """Return the contents of the buffers if the launches run one after the other.

    Initially, buffer n holds n, n + 1, ...
    """
    memory = [np.arange(b.nbytes // 8, dtype=u64) + u64(n) for n, b in enumerate(program.buffers)]
    for launch in program.instructions:
        assert isinstance(launch, Launch)
        assert launch.kernel.host.function is not None
        launch.kernel.host.function(*[memory[(a.view if type(a) is Tiles else a).buffer] for a in launch.args])
    return memory
