"""Scripts: a plan in the form that the machine executes, the actions of each lane in order.

An instruction is two actions. It *begins* by reading all of its inputs (and the buffers that it overwrites), and is
*published* when its results become visible. Other lanes may go on between the two, as on a GPU: so of two unordered
updates of one buffer, one gets lost. If each update were one action, none would.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple, final

from dagpu.plans.plan import Allocate, Execute, Plan, Record, Release, Wait, may_write_over
from dagpu.plans.program import HOST, Instruction, Launch, Role

ALLOCATE: Final = 0
RELEASE: Final = 1
BEGIN: Final = 2
PUBLISH: Final = 3
RECORD: Final = 4
WAIT: Final = 5


@final
class Action(NamedTuple):
    """One action of a lane; `number` is a buffer or an event, -1 for an action without one."""

    kind: int
    number: int
    step: int
    """Index of the step in the plan that the action belongs to."""
    instruction: Instruction | None


@final
@dataclass(frozen=True, slots=True)
class Script:
    """The actions of each lane of a plan."""

    plan: Plan
    lanes: tuple[tuple[Action, ...], ...]
    steps: int
    """Number of actions that touch memory: all but records and waits."""
    successor: dict[int, int]
    """Maps a buffer that is written over in place to the buffer that takes its bytes. The release of the first and the
    allocation of the second poison no memory."""


def script_of(plan: Plan) -> Script:
    """Convert a plan to a script."""
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
    """Record the outputs of a launch that are written in place, at the address of one of its inputs."""
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
    """A division of memory into numbered places.

    Arenas are cut wherever a buffer starts or ends. A buffer outside the arenas is one place. Two buffers overlap if
    and only if they have a place in common.
    """

    of: tuple[tuple[int, ...], ...]
    """The numbers of each buffer's places."""
    count: int


def places_of(plan: Plan) -> Places:
    """Divide the memory of a plan into places."""
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
