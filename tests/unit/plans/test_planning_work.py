"""What planning does as work grows, counted in operations: each pass takes a number that is linear in the program."""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from types import FrameType
from typing import Any, Final, SupportsIndex, final

import numpy as np
import pytest

from dagpu import ListSchedule, Spread
from dagpu.plans.memory import lay_out
from dagpu.plans.placed_values import verify_placement
from dagpu.plans.placing import place_spread
from dagpu.testing import (
    Allocate,
    Buffer,
    Execute,
    Instruction,
    Launch,
    Program,
    Release,
    Role,
    Step,
    Tiles,
    View,
    contiguous_layout,
    schedule,
    verify,
)
from tests.programs.meshes import mesh
from tests.programs.plain_programs import launch, temporary
from tests.unit.plans.memory.in_place_kernels import SHAPE, double_over

_LAYOUT: Final = contiguous_layout(SHAPE, np.dtype(np.float32))


def _doubled(source: int, out: int) -> Launch:
    """Return a launch of a kernel that may work in place."""
    args = (Tiles(View(out, _LAYOUT), SHAPE, (1, 1)), View(source, _LAYOUT))
    return Launch(double_over.spec, args, (1, 1), (source,), (out,), 0, None)


def _random(count: int) -> list[Instruction]:
    random = Random(count)
    nearby = [range(max(0, at - 50), at) for at in range(count)]
    return [launch(random.sample(each, min(len(each), random.randint(1, 3))), (at,)) for at, each in enumerate(nearby)]


_SHAPES: Final[dict[str, Callable[[int], list[Instruction]]]] = {
    "chain": lambda n: [launch((at - 1,) if at else (), (at,)) for at in range(n)],
    "in place": lambda n: [launch((), (0,)), *[_doubled(at - 1, at) for at in range(1, n)]],
    "fan-out": lambda n: [launch((0,) if at else (), (at,)) for at in range(n)],
    "fan-in": lambda n: [*[launch((), (at,)) for at in range(n - 1)], launch(range(n - 1), (n - 1,))],
    "overwritten": lambda n: [launch((), (0,)), *[launch((0,), (at,)) for at in range(1, n - 1)], launch((), (0,))],
    "random": _random,
}


def _lines(call: Callable[[], object]) -> int:
    """Return the number of lines of Python that a call runs."""
    count = 0

    def local(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return local

    before = sys.gettrace()
    sys.settrace(lambda *_: local)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def _plan(shape: str, count: int, devices: int) -> None:
    """Place, schedule and prove a program."""
    instructions = _SHAPES[shape](count)
    policy = ListSchedule(4) if devices == 1 else Spread(mesh(devices))
    where = "host:0" if devices == 1 else "host:auto"
    program = Program((where,), (temporary(),) * count, tuple(instructions), (policy,), (0,) * count)
    placed = place_spread(program)
    if placed is not program:
        verify_placement(program, placed)
    verify(schedule(placed))


@pytest.mark.parametrize("devices", [1, 3])
@pytest.mark.parametrize("shape", _SHAPES)
def test_four_times_the_work_is_planned_in_four_times_the_lines(shape: str, devices: int) -> None:
    """No pass walks again and again over what it has seen, whatever the shape."""
    few, many = (_lines(partial(_plan, shape, count, devices)) for count in (100, 400))
    assert many < 4.8 * few


@final
class _Counted(list[Step]):
    """Steps that count how many of them have been taken."""

    taken = 0

    def __getitem__(self, at: SupportsIndex | slice) -> Any:
        self.taken += len(range(*at.indices(len(self)))) if isinstance(at, slice) else 1
        return super().__getitem__(at)

    def __iter__(self) -> Iterator[Step]:
        for step in super().__iter__():
            self.taken += 1
            yield step


def test_the_memory_of_launches_in_place_takes_each_step_a_few_times() -> None:
    """What ends with a launch is found in the steps right behind it, not in a copy of all that follow."""
    count = 300
    buffers = [Buffer(_LAYOUT.nbytes, 0, Role.TEMPORARY)] * count
    steps = _Counted([Allocate(0, 0), Execute(launch((), (0,)), 0)])
    for at in range(1, count):
        steps += [Allocate(at, 0), Execute(_doubled(at - 1, at), 0), Release(at - 1, 0)]
    offsets, arenas = lay_out(buffers, steps, 1, 1, 0)
    assert set(offsets) == {0}
    assert arenas == (_LAYOUT.nbytes,)
    assert steps.taken < 5 * len(steps)
