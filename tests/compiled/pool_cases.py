"""Memory of results: which block a run takes, of those that were dropped, of idle ones, and of new ones."""

import random
from collections.abc import Callable
from importlib import import_module
from typing import Any

from dagpu import DeviceOp, empty, pipeline, zip_ops
from dagpu.common.compiled import READER
from dagpu.testing import storage_of
from tests.compiled.worlds import CASES, TILE, UNRAISABLE, WARM, Case, World, case, grow

SIZES = 64, 128, 192, 4096, 1 << 20


def maker(*sizes: int) -> Callable[[float], DeviceOp[Any]]:
    """A pipeline whose results are new tensors of these sizes."""

    @pipeline
    def made(a: float) -> DeviceOp[Any]:
        return zip_ops(*[grow(empty((n,)).partition(TILE), a).first().unpartition() for n in sizes])

    for _ in range(WARM):
        made(0.5).sync()
    return made


def place(tensor: Any) -> list[int]:
    block: Any = storage_of(tensor).memory
    return [block.address, block.nbytes, block.size]


def state(w: World) -> list[Any]:
    pool = w.device.memory
    idle = {size: list(found) for size, found in pool._idle.items()}  # noqa: SLF001
    return [pool.used, pool.held, pool.parked_bytes, idle, list(pool._sizes), len(pool.dropped._alive)]  # noqa: SLF001


def random_runs(seed: int) -> Case:
    """Results are kept, dropped in any order, and given to another library; sometimes the pool is trimmed."""

    def run(w: World) -> Any:
        draw = random.Random(seed)
        makers = [maker(*draw.choices(SIZES, k=draw.randint(1, 3))) for _ in range(4)]
        w.device.memory.trim()
        kept: list[Any] = []
        for _ in range(120):
            what = draw.random()
            if what < 0.6:
                results = list(draw.choice(makers)(draw.random()).sync())
                w.note([place(each) for each in results])
                draw.shuffle(results)
                kept += results[: draw.randint(0, len(results))]
                del results
            elif what < 0.85:
                draw.shuffle(kept)
                del kept[draw.randint(0, len(kept)) :]
            elif what < 0.9 and kept:
                w.device.memory.visited.add(place(draw.choice(kept))[0])
            elif what < 0.93:
                w.device.memory.trim()
            elif what < 0.96:
                w.device.memory.unpark(lambda: None)
            w.note(state(w) if draw.random() < 0.3 else None)
        kept.clear()
        return state(w)

    return run


for number in range(8):
    CASES[f"runs that take and drop memory, {number}"] = random_runs(number), 0


@case()
def an_idle_block_at_the_wanted_address(w: World) -> Any:
    """It is taken rather than the block that was dropped last, so no parameter of the graph changes."""
    made, other = maker(256), maker(4096)
    (first,), (second,) = made(0.5).sync(), made(0.5).sync()
    places = [place(first), place(second)]
    del second
    kept = other(0.5).sync()  # what was dropped becomes idle
    del first
    (again,) = made(0.5).sync()
    return [*places, place(again), len(kept), state(w)]


class Held:
    """A lock that says that another thread has it, and lets this one in."""

    entered = 0

    def locked(self) -> bool:
        return True

    def __enter__(self) -> None:
        self.entered += 1

    def __exit__(self, *_error: object) -> None:
        pass


@case()
def another_thread_is_in_the_pool(w: World) -> Any:
    """A run waits for it."""
    made, pool, held = maker(256), w.device.memory, Held()
    lock = pool._lock  # noqa: SLF001
    pool._lock = held  # noqa: SLF001
    try:
        (tensor,) = made(0.5).sync()
    finally:
        pool._lock = lock  # noqa: SLF001
    return [held.entered > 0, place(tensor)]


@case()
def the_host_has_no_memory_in_a_run(w: World) -> Any:
    """One allocation of the host's fails, each one after the other: no two results have one block, and what is dropped
    is not used any more."""
    w.is_steady = False
    if READER is None:  # it has other allocations
        return [0, 0]
    testing: Any = import_module("_testcapi")
    made, others, shared = maker(256), 0, 0
    kept = [made(0.5).sync()[0] for _ in range(4)]
    used = w.device.memory.used
    for number in range(80):
        dropped = [made(0.5).sync()[0] for _ in range(3)]
        del dropped[number % 3]
        run = made(0.5).sync
        try:
            testing.set_nomemory(number, number + 1)
            try:
                run()
            finally:
                testing.remove_mem_hooks()
        except MemoryError:
            pass
        del dropped[:]
        more = [made(0.5).sync()[0] for _ in range(6)]
        shared += len({place(each)[0] for each in kept + more}) != len(kept + more)
        del more
        others += w.device.memory.used != used
        used = w.device.memory.used
    UNRAISABLE.clear()  # a graph that was to be kept is dropped
    return [others, shared]
