"""Scheduling policies: they choose the stream of each instruction. `schedule` then orders the streams by events."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, final, overload

from dagpu.common.errors import DagpuError, PlanError
from dagpu.common.places import describe, here
from dagpu.common.wrong_arguments import as_whole_number, check_count, is_real_number, wrong_argument
from dagpu.plans.program import HOST, If, Program, Role, bodies_of, label


@final
@dataclass(frozen=True, slots=True)
class Placement(Sequence[Hashable]):
    """Stream of each instruction of a program, and the order in which the instructions start.

    As a sequence, it is its `keys`.
    """

    keys: Sequence[Hashable]
    """A lane key for each instruction, in the order of `program.instructions`."""
    order: Sequence[int] | None = None
    """Indices of all instructions, in the order in which they start; None for program order.

    Each instruction has to come after all that it depends on by the buffers of both. So results stay the same.
    """
    about: str = field(default="", compare=False)
    """How the order was found, in words, for `explain`."""
    ended: Sequence[int] | None = None
    """For each instruction the number of those that start before it ends, in a run whose use of memory the plan has: a
    lane then waits for bytes that another lane gives back. None if a lane takes only bytes that are free without a
    further wait."""

    @overload
    def __getitem__(self, index: int) -> Hashable: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Hashable]: ...
    def __getitem__(self, index: int | slice) -> Hashable | Sequence[Hashable]:
        return self.keys[index]

    def __len__(self) -> int:
        return len(self.keys)

    def one_by_one(self) -> "Placement":
        """Return the placement with the memory of a run in which no two instructions overlap."""
        order = range(len(self.keys)) if self.order is None else self.order
        ended = [0] * len(self.keys)
        for place, index in enumerate(order, 1):
            ended[index] = place
        return replace(self, ended=ended)


class SchedulingPolicy(Protocol):
    """Decides placement, and nothing else: every placement gives the same results.

    A user-defined policy needs this one method.
    """

    def place(self, program: Program) -> Sequence[Hashable]:
        """Return a lane key for each instruction, in the order of `program.instructions`.

        An int is the number of a stream in the pool of the instruction's device. Lanes are per device, so key 0 on one
        device and key 0 on another are two lanes. Instructions with equal device and key run in program order. Where a
        program has several policies, only the keys of those instructions are used that `program.policy_of` gives to
        this one.

        A policy that also chooses the order in which instructions start returns a `Placement`. The order decides what
        overlaps where a stream takes several instructions. It applies to the whole program: the program's other
        policies then place the instructions in that order, so `place` may be called a second time.
        """
        ...


def place_program(program: Program) -> Placement:
    """Return one placement for all instructions, from the policies of a program.

    The order is that of the first policy that returns one and places some instruction.

    Raises:
        PlanError: a policy does not return one lane key for each instruction.
    """
    found: list[Sequence[Hashable]] = []
    for number, policy in enumerate(program.policies):
        placement = _ask(policy, program)
        if placement.order is not None and number in program.policy_of:
            return placement if len(program.policies) == 1 else _place_others(program, number, placement)
        found.append(placement.keys)
    return Placement(found[0] if len(found) == 1 else [found[p][at] for at, p in enumerate(program.policy_of)])


def reordered(program: Program, order: Sequence[int]) -> Program:
    """Return the program with its instructions in another order, given by their indices."""
    return replace(
        program,
        instructions=tuple([program.instructions[at] for at in order]),
        policy_of=tuple([program.policy_of[at] for at in order]),
    )


def with_bodies_together(program: Program, order: Sequence[int]) -> Sequence[int]:
    """Return an order of the instructions with each `If` before its body, and nothing else between or in them.

    Within a body, and between bodies, it is the given order, in which each instruction comes after all that it depends
    on. What is before, in and after a body in the program stays there, so that holds for the result too.
    """
    instructions = program.instructions
    if If not in map(type, instructions):
        return order
    part, parts, before = 0, list[int](), -1
    for instruction, body in zip(instructions, bodies_of(instructions), strict=True):
        part += type(instruction) is If or body != before
        parts.append(part)
        before = body
    return sorted(order, key=parts.__getitem__)


def _place_others(program: Program, number: int, chosen: Placement) -> Placement:
    """Let the other policies place their instructions in the order that policy `number` has chosen."""
    order = chosen.order
    assert order is not None
    after = reordered(program, order)
    merged = list(chosen.keys)
    for other, policy in enumerate(program.policies):
        if other != number:
            placement = _ask(policy, after)
            for at, key in zip(order, placement.keys, strict=True):
                if program.policy_of[at] == other:
                    merged[at] = key
    return Placement(merged, order)


def _check_order(policy: SchedulingPolicy, program: Program, order: Sequence[int]) -> None:
    """Raise `PlanError` unless the order has every instruction once, each after all that it depends on."""
    count = len(program.instructions)
    position = [-1] * count
    for at, index in enumerate(order):
        if not 0 <= index < count or position[index] >= 0:
            break
        position[index] = at
    if len(order) != count or -1 in position:
        raise PlanError(
            f"the policy {policy} returned an order that does not have each of the {count} instructions once. Return a "
            "permutation of range(len(program.instructions)), or None for program order."
        )
    if position == list(range(count)):
        return
    for index, (before, own) in enumerate(zip(program.accesses.predecessors, position, strict=True)):
        for earlier in before:
            if position[earlier] > own:
                raise PlanError(
                    f"the policy {policy} returned an order in which instruction {index} comes before instruction "
                    f"{earlier}, on which it depends. Return an order that keeps producers before consumers."
                )


def _ask(policy: SchedulingPolicy, program: Program) -> Placement:
    """Call `place` of a policy, and check the lane keys."""
    answer = policy.place(program)
    placement = answer if isinstance(answer, Placement) else Placement(answer)
    if placement.order is not None:
        _check_order(policy, program, placement.order)
    keys = placement.keys
    if len(keys) != len(program.instructions):
        raise PlanError(
            f"the policy {policy} placed {len(keys)} of {len(program.instructions)} instructions; "
            f"its `place` must return one lane key for each"
        )
    for key in keys:
        if type(key) is not int and not isinstance(key, Hashable):
            raise PlanError(
                f"the policy {policy} gave the lane key {key!r}, but a lane key must be hashable. Return a number for "
                "each instruction."
            )
    return placement


def placed_by(program: Program, policy: SchedulingPolicy) -> list[bool]:
    """Return, for each instruction, whether `policy` places it.

    A policy that is not one of the program's places all instructions: a user-defined policy may have called it.
    """
    own = [candidate is policy for candidate in program.policies] if len(program.policies) > 1 else [True]
    if all(own) or not any(own):
        return [True] * len(program.instructions)
    return [own[number] for number in program.policy_of]


@final
@dataclass(frozen=True, slots=True)
class SingleStream:
    """Runs everything on one stream of each device, in program order: no overlap, and on one device no event."""

    def place(self, program: Program) -> Sequence[Hashable]:
        return (0,) * len(program.instructions)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Fixed:
    """The policy of a program whose placement was found together with the program: see `dagpu.plans.recomputing`."""

    policy: SchedulingPolicy
    """The policy that the user has given."""
    placement: Placement
    memory_limit: int

    def place(self, program: Program) -> Placement:
        """Return the placement."""
        return self.placement


def check_settings(policy: str, streams: object, memory_limit: object) -> None:
    """Check the arguments of a policy when it is constructed.

    Raises:
        TypeError: `streams` is not a whole number.
        ValueError: `streams` is less than 1, or `memory_limit` is not a number of bytes.
    """
    origin = here()
    check_count(streams, policy, origin, "streams")
    if memory_limit is not None:
        limit = as_whole_number(memory_limit)
        if limit is None or limit < 0:
            cure = "Write memory_limit=8 << 20 for 8 MiB, or leave it out"
            raise wrong_argument(policy, origin, "memory_limit", memory_limit, "a number of bytes", cure, ValueError)


def check_runs(policy: str, runs: object) -> None:
    """Check the number of runs that a plan is made for, when a policy is constructed.

    Raises:
        ValueError: it is no number, or less than 0.
    """
    if not is_real_number(runs) or not runs >= 0:
        raise wrong_argument(policy, here(), "runs", runs, "a number, 0 or more", "Write runs=1000", ValueError)


@final
@dataclass(frozen=True, slots=True)
class RoundRobin:
    """Takes the `streams` streams of each device in turn.

    The producers of an instruction are the last writers of the buffers that it reads and writes. The first consumer of
    a producer stays on the producer's stream. So chains stay together and need no event, and neither does one branch of
    a fork. An instruction that is the first consumer of several producers takes the stream of the latest, which is
    likely to finish last. Every other instruction goes to the next stream of its device.
    """

    streams: int = 4
    """Streams of each device."""
    memory_limit: int | None = None
    """Most bytes that a run may take beyond its inputs. Overlap is given up until the plan fits."""

    def __post_init__(self) -> None:
        check_settings("RoundRobin", self.streams, self.memory_limit)

    def place(self, program: Program) -> Sequence[Hashable]:
        own = placed_by(program, self)
        instructions = program.instructions
        keys = [0] * len(instructions)
        writer = [-1] * len(program.buffers)
        # The device of each instruction while it has no consumer, then -1.
        open_on = [-1] * len(instructions)
        turn = [0] * len(program.devices)
        for index, instruction in enumerate(instructions):
            device = instruction.device
            producer = -1
            for buffer in (*instruction.reads, *instruction.writes):
                last = writer[buffer]
                if last > producer and open_on[last] == device:
                    producer = last
            for buffer in instruction.writes:
                writer[buffer] = index
            if not own[index]:
                continue  # another policy places it, on an unknown stream
            if producer >= 0:
                open_on[producer] = -1
                keys[index] = keys[producer]
            else:
                key = turn[device]
                turn[device] = (key + 1) % self.streams
                keys[index] = key
            open_on[index] = device
        return keys


@final
@dataclass(frozen=True, slots=True)
class OnStream:
    """Runs everything on the one stream `key` of the device `device_name`; `op.sync_on(stream)` uses this policy."""

    device_name: str
    key: Hashable

    def place(self, program: Program) -> Sequence[Hashable]:
        """Return the key of that stream for each instruction.

        Raises:
            DagpuError: an instruction that this policy places is on another device.
        """
        own = placed_by(program, self)
        here = program.devices.index(self.device_name) if self.device_name in program.devices else None
        for instruction, is_own in zip(program.instructions, own, strict=True):
            if instruction.device != here and is_own:
                there = program.devices[instruction.device]
                raise DagpuError(
                    f"{label(instruction)}, built at {describe(instruction.origin)}, belongs on {there}, "
                    f"but was to run on a stream of {self.device_name}; "
                    f"give a stream of {there}, or make the op and its inputs on {self.device_name}"
                )
        return (self.key,) * len(program.instructions)


_ASK_FROM: Final = 16 << 20
"""The least bytes of a program's own buffers together for which its device is asked what it has free."""


def own_bytes(program: Program) -> int:
    """Return the bytes of all buffers of a program on devices, but for its inputs: no run takes more."""
    return sum([each.nbytes for each in program.buffers if each.role is not Role.INPUT and each.device != HOST])


def may_be_limited(program: Program) -> bool:
    """Return whether a policy of a program has a limit of memory, or its run may take so much that its device may have
    less."""
    return own_bytes(program) >= _ASK_FROM or is_limited(program)


def is_limited(program: Program) -> bool:
    """Return whether a policy of a program has a limit of memory."""
    for policy in program.policies:
        if getattr(policy, "memory_limit", None) is not None or hasattr(policy, "limit_on"):
            return True
    return False
