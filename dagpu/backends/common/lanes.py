"""Assigns a stream to each lane of a plan. The backends share it."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TypeVar

from dagpu.common.errors import PlanError
from dagpu.plans.plan import Lane

_S = TypeVar("_S")


def streams_of_lanes(
    keys: Sequence[Hashable],
    device: str,
    own: Callable[[Hashable], _S | None],
    pooled: Callable[[int], Iterator[_S]],
) -> list[_S]:
    """Return a stream for each lane of a plan, given the lanes' keys.

    A lane whose key is a number belongs to this plan alone. It gets the least busy stream of the pool that the plan
    does not use yet, so that concurrent runs overlap. Any other key is a stream that the user has opened.

    Args:
        keys: one for each lane.
        device: name of the device, for the error.
        own: returns the stream of a key that is not a number, or None if the key is not a stream of this device.
        pooled: given a count, returns at least that many streams of the pool, the least busy one first.

    Raises:
        PlanError: a key is neither a number nor a stream of this device.
    """
    numbered = len([key for key in keys if isinstance(key, int)])
    free = pooled(numbered) if numbered else iter(())
    found = []
    for key in keys:
        if isinstance(key, int):
            found.append(next(free))
        elif (stream := own(key)) is not None:
            found.append(stream)
        else:
            raise PlanError(
                f"a lane on {device} has the key {key!r}, which is not a stream of that device. "
                "Use a number, or stream.lane of a stream = device.stream() of the same device."
            )
    return found


def streams_by_device(
    lanes: Sequence[Lane], devices: int, take: Callable[[int, Sequence[Hashable]], Sequence[_S]]
) -> list[_S]:
    """Return a stream for each lane of a plan on several devices, in the order of the lanes.

    Args:
        lanes: the lanes of the plan.
        devices: number of devices of the plan.
        take: given the number of a device and keys, returns a stream of that device for each key.
    """
    parts = [iter(take(number, [lane.key for lane in lanes if lane.device == number])) for number in range(devices)]
    return [next(parts[lane.device]) for lane in lanes]
