"""Pipelines whose tensors are copied between two devices, run while the pools of the devices are trimmed.

A request for more memory than a device has makes its pool give all idle memory back to the driver, which then maps
other memory at the same addresses.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pytest

from dagpu import (
    Device,
    Mesh,
    OutOfMemoryError,
    all_reduce,
    as_partials,
    broadcast,
    dup,
    each,
    empty,
    f32,
    ones,
    pipeline,
    zeros,
)
from dagpu.testing import parts_of
from tests.programs.arithmetic import scale

SHAPE: Final = (256, 256)
"""The shape of each tensor."""

STEPS: Final = ("call", "call", "keep", "drop", "trim 0", "trim 1")


def pipelines(places: Sequence[Device]) -> list[Callable[[float], Any]]:
    """Return pipelines over two devices that give tensors of twice their argument, which may be read often."""
    mesh = Mesh(list(places))

    def scaled(number: float, t: Any, place: Device) -> Any:
        return scale(zeros(SHAPE).on(place).partition(SHAPE), number, t).first().unpartition()

    @pipeline
    def there_and_back(number: float) -> Any:
        near = scaled(number, ones(SHAPE).on(places[0]), places[0])
        far = near.then(lambda t: dup(t).on(places[1])).then(lambda t: scaled(2.0, t, places[1]))
        return far.then(lambda t: dup(t).on(places[0])).map(lambda t: t.share())

    @pipeline
    def sent(number: float) -> Any:
        return broadcast(scaled(2 * number, ones(SHAPE).on(places[1]), places[1]), mesh)

    @pipeline
    def summed(number: float) -> Any:
        spread = broadcast(scaled(number, ones(SHAPE).on(places[0]), places[0]), mesh)
        return all_reduce(as_partials(each(lambda part, rank: dup(part), spread)))

    return [there_and_back, sent, summed]


def trial(places: Sequence[Device], steps: Sequence[tuple[str, int]]) -> Iterator[None]:
    """Take these steps, of STEPS each with the number of a pipeline. Check each result when it is made, and all that
    are kept at the end. Yields after each call."""
    calls = pipelines(places)
    kept: list[tuple[float, Any]] = []
    for turn, (step, which) in enumerate(steps):
        if step.startswith("trim"):
            with pytest.raises(OutOfMemoryError):
                empty((1 << 50,), f32).on(places[int(step[-1])]).sync()
        elif step == "drop":
            kept.clear()
        else:
            number = float(turn % 16)  # `scale` counts modulo 64
            result = calls[which % len(calls)](number).sync()
            kept.append((number, result))
            _check(kept[-1:])
            if step != "keep":
                kept.pop()
            del result
            yield
    _check(kept)


def _check(kept: Sequence[tuple[float, Any]]) -> None:
    for number, result in kept:
        tensors = parts_of(result) if hasattr(result, "mesh") else [result]
        assert all((t.to_host().sync() == 2 * number).all() for t in tensors)
