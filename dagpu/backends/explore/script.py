"""A plan as the machine plays it: for each lane its actions, in order.

An instruction is two actions. It *begins* by reading all that it reads (what it overwrites included), and is
*published* when what it writes becomes visible. Between the two other lanes go on, as they may on a GPU: so two
unordered updates of one buffer lose one of them, which two updates that each ran in one piece never would.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple, final

from dagpu.lowering.plan import Allocate, Execute, Plan, Record, Release, Wait, may_write_over
from dagpu.lowering.program import HOST, Instruction, Launch, Role

ALLOCATE: Final = 0
RELEASE: Final = 1
BEGIN: Final = 2
PUBLISH: Final = 3
RECORD: Final = 4
WAIT: Final = 5


@final
class Action(NamedTuple):
    """What a lane does at one time; `number` is a buffer or an event, -1 where it is neither."""

    kind: int
    number: int
    step: int
    """Of the plan."""
    instruction: Instruction | None


@final
@dataclass(frozen=True, slots=True)
class Script:
    """The actions of each lane."""

    plan: Plan
    lanes: tuple[tuple[Action, ...], ...]
    steps: int
    """How many actions touch memory: all but records and waits."""
    successor: dict[int, int]
    """For a buffer that is written over in place: the buffer that takes its bytes. So the end of the one and the start
    of the other poison nothing."""


def script_of(plan: Plan) -> Script:
    """The actions of a plan's lanes."""
    lanes: list[list[Action]] = [[] for _ in plan.lanes]
    successor: dict[int, int] = {}
    steps = 0
    for at, step in enumerate(plan.steps):
        put = lanes[step.lane].append
        match step:
            case Execute(instruction, _):
                put(Action(BEGIN, -1, at, instruction))
                put(Action(PUBLISH, -1, at, instruction))
                if isinstance(instruction, Launch):
                    _find_successors(plan, instruction, successor)
                steps += 2
            case Allocate(buffer, _):
                put(Action(ALLOCATE, buffer, at, None))
                steps += 1
            case Release(buffer, _):
                put(Action(RELEASE, buffer, at, None))
                steps += 1
            case Record(event, _):
                put(Action(RECORD, event, at, None))
            case Wait(event, _):
                put(Action(WAIT, event, at, None))
    return Script(plan, tuple(map(tuple, lanes)), steps, successor)


def _find_successors(plan: Plan, launch: Launch, successor: dict[int, int]) -> None:
    """Where the kernel works in place: its output lies where one of its inputs lies."""
    for out in launch.writes:
        for source in launch.reads:
            if (
                plan.offsets[out] >= 0
                and plan.offsets[out] == plan.offsets[source]
                and plan.buffers[out].device == plan.buffers[source].device
                and may_write_over(launch, source, out)
            ):
                successor[source] = out


@final
@dataclass(frozen=True, slots=True)
class Places:
    """Memory as a set of numbered places: arenas cut wherever a buffer starts or ends, and what lies in no arena.

    Two buffers overlap if and only if they have a place in common.
    """

    of: tuple[tuple[int, ...], ...]
    """The places of each buffer."""
    count: int


def places_of(plan: Plan) -> Places:
    """Cut the arenas of a plan."""
    edges: list[set[int]] = [set() for _ in plan.devices]
    for buffer, offset in zip(plan.buffers, plan.offsets, strict=True):
        if buffer.device != HOST and offset >= 0 and buffer.role is Role.TEMPORARY:
            edges[buffer.device].update((offset, offset + buffer.nbytes))
    numbers: dict[tuple[int, int], int] = {}
    cuts = [sorted(edge) for edge in edges]
    for device, cut in enumerate(cuts):
        for start, _ in pairwise(cut):
            numbers[device, start] = len(numbers)
    count = len(numbers)
    found: list[tuple[int, ...]] = []
    for buffer, offset in zip(plan.buffers, plan.offsets, strict=True):
        if buffer.device != HOST and offset >= 0 and buffer.role is Role.TEMPORARY:
            stop = offset + buffer.nbytes
            found.append(tuple(numbers[buffer.device, at] for at in cuts[buffer.device] if offset <= at < stop))
        else:
            found.append((count,))
            count += 1
    return Places(tuple(found), count)
