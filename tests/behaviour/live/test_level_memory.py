"""Updates leave nothing behind: bytes of the device and objects of Python, counted exactly.

`python -m tests.gpu.long.updates` makes a million of them.
"""

import gc
from typing import Any

import pytest
import trio

from dagpu import batch, current_device, cutoff, from_host, observe, source, zip_ops
from tests.behaviour.live.live_kernels import array, blended, gathered
from tests.behaviour.live.live_trials import machine


@pytest.mark.parametrize("kind", ["host", "simulated"])
def test_two_feeds_that_share_hold_what_they_held(kind: str) -> None:
    """After 200 updates of two feeds of one node, a tenth of them cancelled, exactly as many bytes exist as after 80,
    and on the host exactly as many objects: values, plans and snapshots."""

    async def main() -> None:
        given, level, amount = source(array(1, 2)), source(1.0), source(2.0)
        loaded = given.then(from_host).shared()
        node: Any = gathered(loaded).share().shared()
        levels: list[tuple[int, int]] = []
        async with (
            observe(blended(cutoff(node), loaded, level)) as one,
            observe(zip_ops(blended(node, node, amount).to_host(), amount.map(lambda x: 2 * x))) as two,
        ):
            for part in range(6):
                for number in range(40):
                    asked: Any = one if number & 4 else two
                    with batch():
                        if asked is one or number & 1:
                            level.set(float(number))
                        if asked is two or number & 2:
                            amount.set(float(number))
                        if number % 7 == 0:
                            given.set(array(number % 5, part))
                    with trio.CancelScope() as scope:
                        if number % 10 == 0:
                            scope.cancel()
                        await asked.next()
                given.set(array(part, 7))
                amount.set(-1.0)
                level.set(-1.0)
                await one.next()
                await two.next()
                gc.collect()
                levels.append((current_device().memory_used(), len(gc.get_objects())))
        assert len({memory for memory, _ in levels[2:]}) == 1, levels
        if kind == "host":  # a run on a GPU may drop its last objects after it is over, at any time
            assert len(set(levels[2:])) == 1, levels

    with machine(kind):
        trio.run(main)
