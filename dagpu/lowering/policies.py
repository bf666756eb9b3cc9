"""Scheduling policies: which stream each instruction goes to. `schedule` then orders the streams."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, final, runtime_checkable

from dagpu.errors import DagpuError
from dagpu.lowering.program import Program, label
from dagpu.origin import describe, here
from dagpu.wrong_arguments import check_count, whole, wrong_argument


class SchedulingPolicy(Protocol):
    """Decides placement, and nothing else: every placement gives the same results.

    A policy of one's own needs this one method.
    """

    def place(self, program: Program) -> Sequence[Hashable]:
        """A lane key for each instruction, in the order of `program.instructions`.

        An int is the number of a stream in the pool of the instruction's device: lanes are per device, so key
        0 on one device and key 0 on another are two lanes. Instructions with equal device and key run in
        program order. Where a program has several policies, only the keys of those instructions are used that
        `program.policy_of` gives to this one.
        """
        ...


def owned_by(program: Program, policy: SchedulingPolicy) -> list[bool]:
    """Which of the program's policies `policy` stands for: itself, or all where it is none of them."""
    owned = [candidate is policy for candidate in program.policies]
    return owned if any(owned) else [True] * len(owned)


@runtime_checkable
class ArrangingPolicy(SchedulingPolicy, Protocol):
    """A policy that also says in which order to start, which decides what overlaps where a stream takes several.

    Its order takes the place of the program's. What depends on each other keeps its order, so results stay the same.
    """

    def arrange(self, program: Program) -> tuple[Sequence[Hashable], Sequence[int] | None]:
        """The lane keys that `place` gives, and the indices of all instructions in the new order; None to keep it.

        In the new order, each instruction has to stand after all that it depends on by the buffers of both.
        """
        ...


@final
@dataclass(frozen=True, slots=True)
class Arranged:
    """The choice that `policy` has made for the program in which this stands, instruction by instruction."""

    policy: SchedulingPolicy
    keys: Sequence[Hashable]

    @property
    def memory_limit(self) -> int | None:
        """The policy's own, where it has one."""
        limit: int | None = getattr(self.policy, "memory_limit", None)
        return limit

    def place(self, program: Program) -> Sequence[Hashable]:
        return self.keys

    def __str__(self) -> str:
        return str(self.policy)


def arranged(program: Program) -> Program:
    """The program in the order that its policy asks for, with that policy's choice of lanes made.

    Where several policies place a program, it is the first of them that asks for an order at all. A program whose
    policies ask for none is given back as it is.
    """
    asked = set(program.policy_of)
    for number, policy in enumerate(program.policies):
        if number in asked and isinstance(policy, ArrangingPolicy):
            break
    else:
        return program
    keys, order = policy.arrange(program)
    instructions, policy_of = program.instructions, program.policy_of
    if order is not None:
        keys = [keys[index] for index in order]
        instructions = tuple([instructions[index] for index in order])
        policy_of = tuple([policy_of[index] for index in order])
    policies = (*program.policies[:number], Arranged(policy, keys), *program.policies[number + 1 :])
    return replace(program, instructions=instructions, policies=policies, policy_of=policy_of)


@final
@dataclass(frozen=True, slots=True)
class SingleStream:
    """Everything on one stream for each device, in program order: no overlap, and on one device no event."""

    def place(self, program: Program) -> Sequence[Hashable]:
        return (0,) * len(program.instructions)


def check_settings(policy: str, streams: object, memory_limit: object) -> None:
    """Refuse what means nothing, where the policy is made.

    Raises:
        TypeError: `streams` is no whole number.
        ValueError: there are no streams, or `memory_limit` is no number of bytes.
    """
    origin = here()
    check_count(streams, policy, origin, "streams")
    if memory_limit is not None:
        limit = whole(memory_limit)
        if limit is None or limit < 0:
            cure = "Write memory_limit=8 << 20 for 8 MiB, or leave it out"
            raise wrong_argument(policy, origin, "memory_limit", memory_limit, "a number of bytes", cure, ValueError)


@final
@dataclass(frozen=True, slots=True)
class RoundRobin:
    """Over `streams` streams of each device, in turn.

    An instruction that is the first to go on from one of its producers (the last writers of what it reads and
    writes) stays on that producer's stream: chains stay together and need no event, and one branch of a fork
    needs none. Of several such producers it takes the latest, which is likely the last to be done. Everything
    else goes to the device's next stream in turn.
    """

    streams: int = 4
    memory_limit: int | None = None
    """Bytes that a run may take beyond its inputs: streams are given up until it fits."""

    def __post_init__(self) -> None:
        check_settings("RoundRobin", self.streams, self.memory_limit)

    def place(self, program: Program) -> Sequence[Hashable]:
        owned = owned_by(program, self)
        instructions = program.instructions
        keys = [0] * len(instructions)
        writer = [-1] * len(program.buffers)
        # The device of each instruction while nothing has gone on from it, then -1.
        open_on = [-1] * len(instructions)
        turn = [0] * len(program.devices)
        for index, instruction in enumerate(instructions):
            device = instruction.device
            producer = -1
            for buffer in instruction.reads:
                last = writer[buffer]
                if last > producer and open_on[last] == device:
                    producer = last
            for buffer in instruction.writes:
                last = writer[buffer]
                if last > producer and open_on[last] == device:
                    producer = last
                writer[buffer] = index
            if not owned[program.policy_of[index]]:
                continue  # another policy places it, on a stream that is not known here
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
    """Everything on the one stream `key` of the device `device_name`: what `op.sync_on(stream)` uses."""

    device_name: str
    key: Hashable

    def place(self, program: Program) -> Sequence[Hashable]:
        """Raises `DagpuError` where an instruction that this policy places is on another device."""
        owned = owned_by(program, self)
        here = program.devices.index(self.device_name) if self.device_name in program.devices else None
        for instruction, policy in zip(program.instructions, program.policy_of, strict=True):
            if instruction.device != here and owned[policy]:
                there = program.devices[instruction.device]
                raise DagpuError(
                    f"{label(instruction)}, built at {describe(instruction.origin)}, belongs on {there}, "
                    f"but was to run on a stream of {self.device_name}; "
                    f"give a stream of {there}, or make the op and its inputs on {self.device_name}"
                )
        return (self.key,) * len(program.instructions)
