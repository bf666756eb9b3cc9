"""Updates leave nothing behind: bytes of the device and objects of Python, counted exactly.

`python -m tests.gpu.long.updates` makes a million of them.
"""

import gc
from typing import Any

import pytest
import trio
import trio.testing

from dagpu import OwnershipError, batch, current_device, cutoff, from_host, full, observe, source, spawn, zip_ops
from tests.behaviour.live.live_kernels import array, blended, gathered
from tests.behaviour.live.live_trials import Trial, machine
from tests.simulated.cuda import installed
from tests.support.gates import Gate


@pytest.mark.parametrize("kind", ["host", "simulated"])
def test_two_feeds_that_share_hold_what_they_held(kind: str) -> None:
    """After 480 updates of two feeds of one node, a tenth of them cancelled, exactly as many bytes exist as after 320,
    and on the host exactly as many objects: values, plans and snapshots. By 320 each plan has its direct call, which is
    made in its seventh run: a rare plan had it after 200 once."""

    async def main() -> None:
        await wait_once()
        given, level, amount = source(array(1, 2)), source(1.0), source(2.0)
        loaded = given.then(from_host).shared()
        node: Any = gathered(loaded).share().shared()
        levels: list[tuple[int, int]] = []
        async with (
            observe(blended(cutoff(node), loaded, level)) as one,
            observe(zip_ops(blended(node, node, amount).to_host(), amount.map(lambda x: 2 * x))) as two,
        ):
            for part in range(12):
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
        assert len({memory for memory, _ in levels[8:]}) == 1, levels
        if kind == "host":  # a run on a GPU may drop its last objects after it is over, at any time
            assert len(set(levels[8:])) == 1, levels

    with machine(kind):
        trio.run(main)


async def wait_once() -> None:
    """Let a task of this loop wait for a run. The first that does makes what wakes tasks of the loop: a task of the
    system, and its queue. Whether an update is the first is a matter of time."""
    gate = Gate()
    async with trio.open_nursery() as nursery:
        pending = spawn(nursery, full((1,), 1.0).host_map(gate))
        await trio.testing.wait_all_tasks_blocked()
        gate.open.set()
        await pending


class SavesItself:
    """An object in a cycle of references, which a finalizer puts back into the world with the value that it has."""

    def __init__(self, value: object, saved: list[Any]) -> None:
        self.value = value
        self._saved = saved
        self._itself = self

    def __del__(self) -> None:
        self._saved.append(self.value)


def test_a_result_that_a_finalizer_brings_back_is_not_written() -> None:
    """The collector clears weak references to what it finds before it calls finalizers. A handle that one of these
    saves still counts as a holder: its bits stay, and no other handle can become the owner."""
    with installed(3, gpus=1):
        level = source(1.0)
        tensor = full((8,), 2.0).sync().share()
        trial = Trial(blended(tensor, tensor, level).share(), [level])
        saved: list[Any] = []
        for number in range(3):
            level.set(2.0 + number)
            trial.update()
        level.set(9.0)
        SavesItself(trial.update(), saved)
        gc.collect()
        (found,) = saved
        bits = found.to_host().sync().tobytes()
        for number in range(3):
            level.set(10.0 + number)
            trial.update()
            assert found.to_host().sync().tobytes() == bits
        other = full((8,), 1.0).sync().share()
        SavesItself(other.clone(), saved)
        gc.collect()
        with pytest.raises(OwnershipError, match="1 more handle"):
            other.try_unwrap()
