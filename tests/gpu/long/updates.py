"""Updates of four feeds without end: memory, objects and plans stay level.

    python -m tests.gpu.long.updates 1000000              on the host: 22 minutes on two busy cores
    python -m tests.gpu.long.updates 1000000 cuda:0       on a GPU

Two feeds observe ops around one `shared()` node, one of them behind a cutoff. A third one shares nothing, so that its
updates run by direct calls. A fourth one computes on the host alone; half of the updates are its. Four sources change
in all combinations: two numbers, an array and a tensor. A tenth of the calls of `next()` is cancelled. After each
hundredth of the updates the check notes what is allocated, and at the end it asserts that nothing has grown since the
third. On 23 November 2026, a million updates on the host held 256 bytes of the device and 57,885 objects after each
tenth of them, and 55,112 KiB at most.
"""

import gc
import resource
import sys
import time
from typing import Any

import trio

from dagpu import batch, current_device, cutoff, from_host, observe, source, use_device, zip_ops
from tests.behaviour.live.live_kernels import array, blended, gathered

PARTS = 100


async def run(updates: int) -> list[tuple[int, int]]:
    """Make the updates, and return the bytes of the device and the number of objects after each part."""
    given, level, amount = source(array(1, 2)), source(1.0), source(2.0)
    tensors = [(await from_host(array(number))).share() for number in range(4)]
    held = source(tensors[0])
    loaded = given.then(from_host).shared()
    node: Any = gathered(loaded, held).share().shared()
    levels: list[tuple[int, int]] = []
    begin = time.perf_counter()
    async with (
        observe(blended(cutoff(node), loaded, level)) as one,
        observe(zip_ops(blended(node, held, amount).to_host(), amount.map(lambda x: 2 * x))) as two,
        observe(blended(held, held, level)) as three,
        observe(zip_ops(level.map(str), cutoff(amount.map(lambda x: x // 8)).map(float), level, amount)) as four,
    ):
        feeds: tuple[Any, ...] = (one, two, three, three, four, four, four, four)
        for part in range(PARTS):
            for number in range(updates // PARTS):
                asked = feeds[number & 7]
                with batch():
                    if asked is not two or number & 16:
                        level.set(float(number))
                    if asked is two or number & 32:
                        amount.set(float(number))
                    if number % 7 == 0:
                        given.set(array(number % 5, part))
                    if number % 11 == 0:
                        held.set(tensors[number // 11 % 4])
                with trio.CancelScope() as scope:
                    if number % 10 == 0:
                        scope.cancel()
                    await asked.next()
            given.set(array(part, 7))  # all feeds have values of the same snapshot at the end of a part
            held.set(tensors[part % 4])
            amount.set(-1.0)
            level.set(-1.0)
            for asked in feeds[:3] + feeds[7:]:
                await asked.next()
            gc.collect()
            levels.append((current_device().memory_used(), len(gc.get_objects())))
            if part % 10 == 9:
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                seconds = time.perf_counter() - begin
                print(
                    f"{(part + 1) * (updates // PARTS):>9,} updates, {seconds:6.0f} s: {levels[-1][0]:,} bytes on the "
                    f"device, {levels[-1][1]:,} objects, {peak:,} KiB at most",
                    flush=True,
                )
    return levels


def main() -> None:
    """Run the check; the arguments are the number of updates and the device."""
    updates = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with use_device(sys.argv[2] if len(sys.argv) > 2 else "host:0"):
        levels = trio.run(run, updates)
        gc.collect()
    memory, objects = zip(*levels[2:], strict=True)
    assert len(set(memory)) == 1, sorted(set(memory))
    assert max(objects) - objects[0] < 200, (objects[0], max(objects))
    print("level")


if __name__ == "__main__":
    main()
