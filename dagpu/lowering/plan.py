"""A `Plan`: what a scheduler gives, a verifier proves and a backend replays. Plain data.

Happens-before in a plan is the order of the steps within each lane, and every `Record` of an event before each `Wait`
for it. Nothing else orders two steps of different lanes.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TypeAlias, final

from dagpu.frozen import plain
from dagpu.lowering.program import Buffer, Instruction


@final
@plain
class Lane:
    """A stream: number `key` of the device's pool, or, where `key` is no number, a stream of the user's own."""

    device: int
    key: Hashable


@final
@plain
class Allocate:
    """`buffer` has memory from here on."""

    buffer: int
    lane: int


@final
@plain
class Release:
    """`buffer` gives its memory back."""

    buffer: int
    lane: int


@final
@plain
class Execute:
    """One instruction."""

    instruction: Instruction
    lane: int


@final
@plain
class Record:
    """Event `event` happens when the lane's work before this is done."""

    event: int
    lane: int


@final
@plain
class Wait:
    """The lane's work after this waits for event `event`."""

    event: int
    lane: int


Step: TypeAlias = Allocate | Release | Execute | Record | Wait


@final
@dataclass(frozen=True, slots=True)
class Plan:
    """Steps in an order in which they may be submitted: every `Record` stands before the `Wait`s for it.

    `devices`, `lanes` and `buffers` are what the numbers in the steps refer to; `events` is how many events there are.
    """

    devices: tuple[str, ...]
    lanes: tuple[Lane, ...]
    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    events: int
    peak_bytes: int
    """An upper bound, in every execution that the plan allows, of the bytes that it holds at once beyond its inputs."""

    def __str__(self) -> str:
        from dagpu.lowering.show import show_plan

        return show_plan(self)
