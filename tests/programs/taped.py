"""Random steps of the shape of a gradient: values made one after the other, and read again in the opposite order. They
are made as programs without an op, and as ops with their results by NumPy."""

from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagpu import DeviceOp, SharedTensor, expr, f32, from_host, value
from dagpu.plans.policies import SchedulingPolicy
from dagpu.plans.program import Buffer, Instruction, Program, Role
from tests.programs.plain_programs import launch

Reads = tuple[tuple[int, ...], ...]
"""For each value of a step the values that it is made of, which are earlier; 0 and 1 are inputs."""


def random_step(seed: int, depth: int) -> tuple[Reads, tuple[int, ...]]:
    """Return the values of a random step, and which of them are results. Later halves read what earlier ones made, so
    there are long pauses in the uses of values."""
    draw = Random(seed)
    reads: list[tuple[int, ...]] = [(), ()]
    for made in range(2, depth + 2):
        far = draw.randrange(max(0, made - 4), made)
        reads.append((made - 1,) if draw.random() < 0.5 else (made - 1, far))
    forward = len(reads)
    results: list[int] = []
    for back in range(forward - 1, 1, -1):
        if draw.random() < 0.15:
            continue
        reads.append((len(reads) - 1, back))
        if draw.random() < 0.3:
            reads.append((back, len(reads) - 1))
            results.append(len(reads) - 1)
    results.append(len(reads) - 1)
    return tuple(reads), tuple(dict.fromkeys(results))


def taped_program(seed: int, depth: int, policy: SchedulingPolicy, *, unit: int = 4096) -> Program:
    """Return a random step as a program. Its buffers have one to four units of bytes."""
    draw = Random(seed + 1)
    reads, results = random_step(seed, depth)
    buffers: list[Buffer] = []
    instructions: list[Instruction] = []
    for made, sources in enumerate(reads):
        role = Role.INPUT if made < 2 else Role.OUTPUT if made in results else Role.TEMPORARY
        buffers.append(Buffer(draw.choice((1, 2, 4)) * unit, 0, role))
        if made >= 2:
            instructions.append(launch(sources, (made,)))
    return Program(("host:0",), tuple(buffers), tuple(instructions), (policy,), (0,) * len(instructions))


_ONE = expr(f32)(lambda x: 0.5 * x + 1.0)
_TWO = expr(f32, f32)(lambda x, y: x * y - 0.25 * x)


def taped_op(seed: int, depth: int, size: int = 1 << 10) -> DeviceOp[tuple[SharedTensor[f32], ...], Any]:
    """Return a random step as an op of kernels that dagpu writes; its result has all results."""
    reads, results = random_step(seed, depth)

    def go_on(values: tuple[SharedTensor[f32], ...]) -> DeviceOp[tuple[SharedTensor[f32], ...], Any]:
        if len(values) == len(reads):
            return value(tuple([values[each] for each in results]))
        sources = [values[each] for each in reads[len(values)]]
        made = _ONE(sources[0]) if len(sources) == 1 else _TWO(*sources)
        return made.share().then(lambda new: go_on((*values, new)))

    first, second = (from_host(each).share() for each in _inputs(size))
    return first.then(lambda x: second.then(lambda y: go_on((x, y))))


def taped_results(seed: int, depth: int, size: int = 1 << 10) -> list[NDArray[np.float32]]:
    """Return the results of `taped_op`, by NumPy."""
    reads, results = random_step(seed, depth)
    half, one, quarter = np.float32(0.5), np.float32(1.0), np.float32(0.25)
    values = list(_inputs(size))
    for sources in reads[2:]:
        x, *rest = [values[each] for each in sources]
        values.append(half * x + one if not rest else x * rest[0] - quarter * x)
    return [values[each] for each in results]


def _inputs(size: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    draw = np.random.default_rng(size)
    return draw.random(size, np.float32), draw.random(size, np.float32)
