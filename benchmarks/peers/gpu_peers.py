"""Launches by hand from Python: with PyCUDA, cuda.core, CuPy and PyTorch, each as its users write it.

All except PyTorch launch the machine code of floor/kernels.cu, so that only the cost of a launch differs. PyTorch has
its own kernels: `mul(out=)` for the tiny one, and `torch.cuda._sleep`, which counts cycles, for the long one.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, final

import numpy as np

from benchmarks.support.gpu import Bench, Floor, optional, rounds
from benchmarks.support.gpu_kernels import BLOCK, BRANCHES, DEPTH, FACTOR, SIZE, SPIN_US, WIDTH, same, scaled
from benchmarks.support.table import Span
from dagpu import f32

_T = TypeVar("_T")

GRID, THREADS = (SIZE // BLOCK, 1), (BLOCK, 1, 1)
BRANCH_GRID = (WIDTH // BLOCK, 1)


@final
@dataclass(frozen=True, slots=True)
class Peer:
    """One way of launching. `scope` is entered around a round, outside of its clock."""

    name: str
    chain: Callable[[int], None] | None = None
    """Submits a number of tiny launches in a row, and waits for the last."""
    fork_join: Callable[[], None] | None = None
    """Zeroes each branch and runs its kernels on a separate stream, ordered by events; waits for all."""
    scope: Callable[[], AbstractContextManager[object]] = nullcontext

    def rounds(self, work: Callable[[], None], count: int) -> dict[str, Span]:
        """Return the median over `count` calls."""
        with self.scope():
            return rounds(self.name, work, count)

    def chain_rounds(self, n: int, count: int) -> dict[str, Span]:
        """Return the seconds of a chain of `n`."""
        if self.chain is None:
            raise AssertionError(f"{self.name} has no chain")
        return self.rounds(partial(self.chain, n), count)


def _checked_chain(floor: Floor, peer: Peer, memory: int) -> Peer:
    """Return the peer, after checking the result of its launches on `memory`, which contains ones."""
    if peer.chain is not None:
        with peer.scope():
            peer.chain(10)
        same(peer.name, floor.read(memory, SIZE), scaled(10))
    return peer


def _checked_branches(floor: Floor, peer: Peer, memories: list[int]) -> Peer:
    """Return the peer, after checking the result of its fork-join."""
    if peer.fork_join is not None:
        with peer.scope():
            peer.fork_join()
        for memory in memories:
            same(peer.name, floor.read(memory, WIDTH), DEPTH)
    return peer


# ---- PyCUDA


@final
class PyCuda:
    """PyCUDA on the primary context, which is current only within `scope`."""

    def __init__(self, floor: Floor) -> None:
        self.driver: Any = optional("pycuda.driver")
        self._pack: Any = optional("pycuda._pvt_struct").pack
        self.driver.init()
        self._context = self.driver.Device(0).retain_primary_context()
        with self.scope():
            module = self.driver.module_from_file(str(floor.kernels))
            self.scale, self.spin = module.get_function("scale"), module.get_function("spin")
            self.saxpy, self.gemm = module.get_function("saxpy"), module.get_function("gemm")
            self.scale.prepare("Pfi")
            self.spin.prepare("Pfi")
            self.saxpy.prepare("PfPi")
            self.gemm.prepare("PPPiii")
            self.streams = [self.driver.Stream(1) for _ in range(BRANCHES)]  # 1: non-blocking
            no_timing = self.driver.event_flags.DISABLE_TIMING
            self._forked, *self._joined = (self.driver.Event(no_timing) for _ in range(1 + BRANCHES))
        self.tiny = floor.ones(SIZE)
        self.branches = [floor.ones(WIDTH) for _ in range(BRANCHES)]

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Within the `with` block, the context is on this thread's stack."""
        self._context.push()
        try:
            yield
        finally:
            self.driver.Context.pop()

    def prepared(self, n: int) -> None:
        """Launch `n` times by `prepared_async_call`, the documented fast way."""
        call, stream, y = self.scale.prepared_async_call, self.streams[0], self.tiny
        for _ in range(n):
            call(GRID, THREADS, stream, y, FACTOR, SIZE)
        stream.synchronize()

    def packed(self, n: int) -> None:
        """Launch `n` times by `_launch_kernel`, which it calls internally, with arguments packed ahead."""
        launch, stream = self.scale._launch_kernel, self.streams[0]  # noqa: SLF001  # it is set on this class itself
        arguments = self._pack(self.scale.arg_format, self.tiny, FACTOR, SIZE)
        for _ in range(n):
            launch(GRID, THREADS, arguments, 0, stream)
        stream.synchronize()

    def fork_join(self) -> None:
        """Run the fork-join on four streams, with events."""
        main = self.streams[0]
        self._forked.record(main)
        for stream, joined, y in zip(self.streams, self._joined, self.branches, strict=True):
            stream.wait_for_event(self._forked)
            self.driver.memset_d32_async(y, 0, WIDTH, stream)
            for _ in range(DEPTH):
                self.spin.prepared_async_call(BRANCH_GRID, THREADS, stream, y, SPIN_US, WIDTH)
            joined.record(stream)
            main.wait_for_event(joined)
        main.synchronize()


def _pycuda(floor: Floor) -> list[Peer]:
    hand = PyCuda(floor)
    first = Peer("PyCUDA prepared_async_call", hand.prepared, hand.fork_join, hand.scope)
    _checked_chain(floor, first, hand.tiny)
    return [
        _checked_branches(floor, first, hand.branches),
        Peer("PyCUDA _launch_kernel, packed ahead", hand.packed, None, hand.scope),
    ]


# ---- cuda.core


def _cuda_core(floor: Floor) -> list[Peer]:
    core = optional("cuda.core")
    device = core.Device(0)
    device.set_current()
    stream = device.create_stream()
    kernel = core.ObjectCode.from_cubin(floor.kernels.read_bytes()).get_kernel("scale")
    config = core.LaunchConfig(grid=GRID[0], block=BLOCK)
    y = floor.ones(SIZE)
    a, n_elements, launch = np.float32(FACTOR), np.int32(SIZE), core.launch

    def chain(n: int) -> None:
        for _ in range(n):
            launch(stream, config, kernel, y, a, n_elements)
        stream.sync()

    return [_checked_chain(floor, Peer("cuda.core launch", chain), y)]


# ---- CuPy


def _cupy(floor: Floor) -> list[Peer]:
    cupy = optional("cupy")
    module = cupy.RawModule(path=str(floor.kernels))
    scale, spin = module.get_function("scale"), module.get_function("spin")
    y, size, width = cupy.ones(SIZE, f32), np.int32(SIZE), np.int32(WIDTH)
    branches = [cupy.ones(WIDTH, f32) for _ in range(BRANCHES)]
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(BRANCHES)]
    forked, *joined = (cupy.cuda.Event(disable_timing=True) for _ in range(1 + BRANCHES))
    cupy.cuda.Device(0).synchronize()
    a, microseconds, grid, block = np.float32(FACTOR), np.float32(SPIN_US), (GRID[0],), (BLOCK,)

    def chain(n: int) -> None:
        for _ in range(n):
            scale(grid, block, (y, a, size))
        streams[0].synchronize()

    def fork_join() -> None:
        main = streams[0]
        forked.record(main)
        for stream, event, branch in zip(streams, joined, branches, strict=True):
            stream.wait_event(forked)
            with stream:
                branch.data.memset_async(0, branch.nbytes, stream)
                for _ in range(DEPTH):
                    spin((BRANCH_GRID[0],), block, (branch, microseconds, width))
            event.record(stream)
            main.wait_event(event)
        main.synchronize()

    peer = Peer("CuPy RawKernel", chain, fork_join, lambda: streams[0])
    _checked_chain(floor, peer, y.data.ptr)
    return [_checked_branches(floor, peer, [branch.data.ptr for branch in branches])]


# ---- PyTorch


def _cycles_of(torch: Any, microseconds: float) -> int:
    """Return the cycles for which `_sleep` takes `microseconds` at the GPU's present clock rate."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    cycles = 20_000_000
    for _ in range(3):  # the first raises the GPU's clock
        start.record()
        torch.cuda._sleep(cycles)  # noqa: SLF001  # PyTorch has no public name for it
        end.record()
        end.synchronize()
    return int(cycles * microseconds / (start.elapsed_time(end) * 1e3))


def _torch(floor: Floor) -> list[Peer]:
    torch = optional("torch")
    if not torch.cuda.is_available():
        raise ImportError("it has no CUDA")
    y = torch.ones(SIZE, device="cuda:0")
    branches = [torch.ones(WIDTH, device="cuda:0") for _ in range(BRANCHES)]
    streams = [torch.cuda.Stream() for _ in range(BRANCHES)]
    forked, *joined = (torch.cuda.Event() for _ in range(1 + BRANCHES))
    cycles = _cycles_of(torch, SPIN_US)
    torch.cuda.synchronize()

    def chain(n: int) -> None:
        for _ in range(n):
            torch.mul(y, FACTOR, out=y)
        streams[0].synchronize()

    def fork_join() -> None:
        main = streams[0]
        forked.record(main)
        for stream, event, branch in zip(streams, joined, branches, strict=True):
            stream.wait_event(forked)
            with torch.cuda.stream(stream):
                branch.zero_()
                for _ in range(DEPTH):
                    torch.cuda._sleep(cycles)  # noqa: SLF001  # PyTorch has no public name for it
            event.record(stream)
            main.wait_event(event)
        main.synchronize()

    peer = Peer("PyTorch eager mul(out=)", chain, fork_join, lambda: torch.cuda.stream(streams[0]))
    return [_checked_chain(floor, peer, y.data_ptr())]


def all_peers(bench: Bench) -> list[Peer]:
    """Return every peer that is installed and gives right results. `bench.left_out` has the reasons for the others."""
    if bench.floor is None:
        bench.left_out.append("all peers, which need the GPU")
        return []
    peers: list[Peer] = []
    makers = {"PyCUDA": _pycuda, "cuda.core": _cuda_core, "CuPy": _cupy, "PyTorch": _torch}
    for name, make in makers.items():
        peers += installed(bench, name, partial(make, bench.floor))
    return peers


def installed(bench: Bench, name: str, make: Callable[[], list[_T]]) -> list[_T]:
    """Return the result of `make` for a peer. If it fails, return nothing and add a note: the benchmark goes on."""
    try:
        return make()
    except ImportError as error:
        bench.left_out.append(f"{name} (not installed: {error})")
    except Exception as error:
        bench.left_out.append(f"{name} ({type(error).__name__}: {error})")
    return []


__all__ = ["Peer", "PyCuda", "all_peers", "installed"]
