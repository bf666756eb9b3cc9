"""Ops in a program of asyncio, such as a Jupyter notebook: awaited in a thread, or by
trio on asyncio's own loop.

`asyncio.to_thread(op.sync)` is one line, and any number of ops run at once. Flows,
`spawn` and cancellation are trio's: `in_trio` runs a function of trio's as a guest of
asyncio's loop, in the same thread.
"""

import asyncio

import numpy as np
import trio

from dagpu import array, f32, from_host, in_trio


async def main() -> None:
    x = np.arange(6, dtype=f32)
    total = array.sum(from_host(x)).to_host()
    largest = array.amax(from_host(x)).to_host()
    found = await asyncio.gather(
        asyncio.to_thread(total.sync), asyncio.to_thread(largest.sync)
    )

    async def doubled() -> float:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 0)  # anything of trio's
            return float(await array.sum(from_host(x * 2)).to_host())

    ticks = 0
    task = asyncio.ensure_future(in_trio(doubled))
    while not task.done():  # asyncio goes on meanwhile
        ticks += 1
        await asyncio.sleep(0)
    twice = task.result()
    assert (float(found[0]), float(found[1]), twice) == (15.0, 5.0, 30.0)
    assert ticks > 0
    waiting = asyncio.ensure_future(in_trio(trio.sleep_forever))
    await asyncio.sleep(0)
    waiting.cancel()
    assert isinstance(
        (await asyncio.gather(waiting, return_exceptions=True))[0],
        asyncio.CancelledError,
    )
    print(
        f"in asyncio: {float(found[0])}, {float(found[1])} and {twice}, and a "
        "function of trio's was cancelled"
    )


if __name__ == "__main__":
    asyncio.run(main())
