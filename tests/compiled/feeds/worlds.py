"""What cases with feeds work with: ops over sources, and a feed whose every value is noted with all that it leaves."""

import gc
import warnings
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from typing import Any, Final, TypeAlias, final

import numpy as np
import trio

from dagpu import DeviceOp, In, Lazy, Out, SharedTensor, Tensor, empty, f32, full, kernel, observe
from dagpu.common.containers import values_in
from dagpu.testing import storage_of
from tests.compiled.worlds import CASES, PATIENCE, Case, S, World, told
from tests.programs.arithmetic import add, scale

OFTEN: Final = 9
"""Updates of one kind after which the compiled reader makes them: the first traces, six are of the general way."""

Op: TypeAlias = DeviceOp[Any, Any, Any]


@kernel(cuda="__global__ void tune(Tile<float, 2> z, long long k, bool b, View<const float, 2> x) {}")
def tune(z: Out[f32], k: Lazy[int], b: Lazy[bool], x: In[f32]) -> None:
    """Stands for a kernel with numbers of other types."""


def tensor(number: float = 1.0) -> Any:
    return full(S, number).sync().share()


def scaled(a: Any, x: Any) -> Op:
    """A new tensor a * x."""
    return scale(empty(S).partition(S), a, x).first().unpartition()


def added(x: Any, y: Any) -> Op:
    """A new tensor x + y."""
    return add(empty(S).partition(S), x, y).first().unpartition()


def tuned(k: Any, b: Any, x: Any) -> Op:
    """A new tensor of a number and a truth value."""
    return tune(empty(S).partition(S), k, b, x).first().unpartition()


@final
class Asked:
    """An open feed. Each value is noted, with the memory in which it lies, and what the update has called and counted.

    Memory is told by names, in the order of its first appearance.
    """

    def __init__(self, w: World, feed: Any) -> None:
        self.w = w
        self.feed = feed
        self.is_exact = True
        """False if the garbage collector decides which memory is free: after another trace Python's reader keeps that
        of the last one until then."""
        self._names: dict[int, int] = {}

    def place(self, handle: Any) -> int:
        memory: Any = storage_of(handle).memory
        return self._names.setdefault(memory.address, len(self._names))

    async def next(self) -> Any:
        """Ask for the next value, and note it, or the error."""
        try:
            value = await self.feed.next()
        except Exception as error:
            self.w.note(type(error).__name__, str(error))
            self.note_counts()
            raise
        self.note(value)
        return value

    async def next_after(self, change: Callable[[], object]) -> Any:
        change()
        return await self.next()

    async def times(self, count: int, change: Callable[[int], object]) -> None:
        """Change something so often, and ask for the value."""
        for number in range(count):
            change(number)
            await self.next()

    def note(self, value: Any) -> None:
        tensors = [each for each in values_in(value) if isinstance(each, Tensor | SharedTensor)]
        self.w.note(told(value), [self.w.lock_of(each) for each in tensors])
        if self.is_exact:
            self.w.note([self.place(each) for each in tensors])
        self.note_counts()

    def note_counts(self) -> None:
        """Note the numbers of the feed, the live runs, the calls since the last note, and the last launch."""
        stats = self.feed.stats
        self.w.note([stats.values, stats.skipped, stats.launched, stats.reused, stats.kept_bytes])
        calls = [call for call in self.w.driver.log() if self.is_exact or not call.startswith("cuMem")]
        if self.is_exact:
            self.w.note(self.w.device.memory.used)
        self.w.note(len(self.w.device.live), calls, list(self._parameters()))

    def _parameters(self) -> Iterator[str]:
        """Iterate over the parameters of the nodes in the last launch."""
        for node in count():
            text = self.w.driver.parameters(node)
            if not text:
                return
            words = [text[at : at + 8] for at in range(0, len(text), 8)]
            yield " ".join(["ADDRESS" if self._is_address(word) else word.hex() for word in words])

    def _is_address(self, word: bytes) -> bool:
        """Return true for an address of the host, and of the device if those of two processes may differ. What the
        process has from its heap may lie anywhere."""
        address = int.from_bytes(word, "little")
        if len(word) < 8 or self.w.driver.is_pinned_at(address):
            return len(word) == 8
        return address >> 44 in ((5, 7) if self.is_exact else (1, 5, 7))


Script: TypeAlias = Callable[[Asked], Awaitable[Any]]


def watched(w: World, op: Any, script: Script) -> Any:
    """Run a script on a feed of an op that is open meanwhile, in a task of its own. The collector does not run by
    itself: it would decide which memory is free."""

    async def main() -> Any:
        with trio.fail_after(PATIENCE / 2):
            async with observe(op) as feed:
                asked = Asked(w, feed)
                asked.note(await feed.next())
                found = await script(asked)
                w.is_steady = asked.is_exact
                w.note(feed.explain())
        return found

    gc.disable()
    try:
        with warnings.catch_warnings(action="ignore"):  # of sync() in a task, which makes tensors in between
            return trio.run(main)
    finally:
        gc.enable()


def array(number: float) -> Any:
    return np.full(S, number, np.float32)


def add_case(name: str, case: Case, serves: int = 0) -> None:
    assert name not in CASES
    CASES[name] = case, serves
