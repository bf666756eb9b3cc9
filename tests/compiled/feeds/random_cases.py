"""Random ops over sources, and random changes of these: each case is one seed."""

import warnings
from random import Random
from typing import Any, Final, final

import numpy as np
import trio

import dagpu
from dagpu import batch, observe, source, zip_ops
from tests.compiled.feeds.worlds import Asked, Op, add_case, added, scaled, tensor, tuned, watched
from tests.compiled.worlds import Case, World

SEEDS: Final = range(24)
STEPS: Final = 60
NUMBERS: Final = (0.0, -0.0, 0.5, 1.0, 2.0, 3.5, 1e-40, -7.25, 1e30)
AT: Final = (slice(0, 2), slice(0, 4))


@final
class Program:
    """A random op over one to four sources, each of numbers or of tensors."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.floats: list[Any] = []
        self.ints: list[Any] = []
        self.tensors: list[Any] = []
        for _ in range(random.randint(1, 4)):
            kind = random.choice("ffftti")
            if kind == "f":
                self.floats.append(source(0.25))
            elif kind == "i":
                self.ints.append(source(0))
            else:
                self.tensors.append(source(tensor()))
        self.spare = [tensor(n) for n in range(3)]
        """Tensors that sources are set to, more than once."""
        self.constant = tensor(9)
        self.op = self._op()

    @property
    def sources(self) -> list[Any]:
        return [*self.floats, *self.ints, *self.tensors]

    def _number(self) -> Any:
        return self.random.choice([*self.floats, *self.floats, 1.5])

    def _op(self) -> Op:
        """Some kernels, each of which reads what is before it; the result is one tensor, or several."""
        random = self.random
        made: list[Any] = [*self.tensors, self.constant]
        for each in self.sources:  # each source is read
            if each.kind is float:
                made.append(self._kept(scaled(each, random.choice(made))))
            elif each.kind is int:
                made.append(self._kept(tuned(each, False, random.choice(made))))
            else:
                made.append(self._kept(scaled(self._number(), each)))
        for _ in range(random.randint(0, 3)):
            one, two = random.choice(made), random.choice(made)
            form = random.randrange(4)
            if form == 0:
                made.append(self._kept(scaled(self._number(), one)))
            elif form == 1:
                made.append(self._kept(added(one, two)))
            elif form == 2:
                made.append(zip_ops(scaled(self._number(), one).share(), added(one, two).share()).shared())
                made[-1:] = [part.shared() for part in made[-1].unzip(2)]
            else:
                made.append(self._kept(scaled(self._number(), added(one, two))))
        results = made[len(self.tensors) + 1 :]
        whole: Op = results[0]  # of all sources: each change makes a value
        for each in results[1 : len(self.sources)]:
            whole = self._kept(added(whole, each))
        chosen = [*random.sample(results, random.randint(0, len(results))), whole]
        if len(chosen) == 1:
            return whole
        result: Any = zip_ops(*chosen)
        several: list[Op] = [result, result, result.map(list), zip_ops(result, self.sources[0])]
        return random.choice(several)

    def _kept(self, op: Op) -> Op:
        return op.share().shared()

    def change(self, each: Any) -> None:
        """Set a source, or write a part of it."""
        random = self.random
        if each.kind is float:
            each.set(random.choice(NUMBERS))
        elif each.kind is int:
            each.set(random.randint(-3, 3))
        elif random.random() < 0.1:
            each.write(AT, np.full((2, 4), random.randint(0, 9), np.float32))
        else:
            each.set(random.choice([*self.spare, *self.spare, tensor(3)]))


def trial(seed: int) -> Case:
    """Random changes, of few kinds at a time, so that the compiled reader serves. What happens depends on the seed
    alone."""

    def run(w: World) -> Any:
        program = Program(Random(seed))
        random = Random(~seed)

        async def script(asked: Asked) -> None:
            kept: list[Any] = []
            mask = program.sources
            for number in range(STEPS):
                if number % 14 == 0:
                    mask = random.sample(program.sources, random.randint(1, len(program.sources)))
                before = [each.revision for each in program.sources]
                if random.random() < 0.5:
                    with batch():
                        for each in mask:
                            program.change(each)
                else:
                    for each in mask * random.randint(1, 2):
                        program.change(each)
                disturb(w, random)
                if before != [each.revision for each in program.sources]:
                    value = await attempt(asked)
                    if random.random() < 0.3:
                        kept.append(value)
                    del value
                if random.random() < 0.2:
                    kept.clear()
                w.calls.null_busy(0)

        return watched(w, program.op, script)

    return run


def disturb(w: World, random: Random) -> None:
    """Now and then the device is busy, or refuses a call."""
    chance = random.random()
    if chance < 0.06:
        w.calls.null_busy(random.choice((1, 4, 1 << 40)))
    elif chance < 0.09:
        w.calls.null_fail(b"cuGraphLaunch", random.choice((1, 2)), 0)
    elif chance < 0.11:
        w.calls.null_fail(b"cuGraphExecKernelNodeSetParams", 1, random.randint(0, 1))


async def attempt(asked: Asked) -> Any:
    """Ask for a value, again if the update fails."""
    for _ in range(3):
        try:
            return await asked.next()
        except dagpu.DagpuError:
            continue
    raise AssertionError


for _seed in SEEDS:
    add_case(f"random feed {_seed}", trial(_seed))


# ---- two feeds of one program


def side_by_side(seed: int) -> Case:
    """Two feeds, of which one opens and closes, in one thread."""

    def run(w: World) -> Any:
        w.is_steady = False
        program = Program(Random(seed))
        random = Random(~seed)

        async def main() -> None:
            async with observe(program.op) as one:
                for _ in range(3):
                    await alone(one)
                    async with observe(program.op) as two:
                        for _ in range(12):
                            change()
                            for feed in random.sample([one, two], 2):
                                await ask(feed)

        async def alone(feed: Any) -> None:
            for _ in range(14):
                change()
                await ask(feed)

        def change() -> None:
            with batch():
                for each in program.sources[:2]:
                    program.change(each)

        async def ask(feed: Any) -> None:
            with trio.move_on_after(0) as scope:
                await feed.next()
            stats = feed.stats
            w.note(
                [scope.cancelled_caught, stats.values, stats.skipped, stats.launched, stats.reused, stats.kept_bytes]
            )

        with warnings.catch_warnings(action="ignore"):  # of sync() in a task
            return trio.run(main)

    return run


for _seed in SEEDS[:8]:
    add_case(f"two feeds of random op {_seed}", side_by_side(_seed))
