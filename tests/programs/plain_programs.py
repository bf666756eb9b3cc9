"""Programs made directly from the data types, without ops, for tests of the scheduler and the verifier."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, final

from hypothesis import strategies as st

from dagpu.common.places import Origin
from dagpu.plans.policies import RoundRobin, SingleStream
from dagpu.testing import HOST, Buffer, Cell, HostBody, HostCall, Instruction, KernelSpec, Launch, Program, Role


@final
@dataclass(frozen=True, slots=True)
class Keys:
    """A policy that returns the keys that it was constructed with."""

    keys: tuple[Hashable, ...]

    def place(self, program: Program) -> Sequence[Hashable]:
        return self.keys


def kernel(name: str = "step") -> KernelSpec:
    """Return a kernel without bodies."""
    return KernelSpec(
        name=name,
        params=(),
        cuda="",
        source_name="",
        abi="views",
        block=None,
        options=(),
        checked=False,
        origin=None,
    )


def written(name: str = "step") -> KernelSpec:
    """Return a kernel as those that dagpu has written: its bytes tell what it takes."""
    return replace(kernel(name), host=HostBody(generated=lambda *_: None))


_KERNEL = kernel()


def launch(reads: Sequence[int], writes: Sequence[int], device: int = 0, origin: Origin = None) -> Launch:
    """Return a launch that accesses these buffers."""
    return Launch(_KERNEL, (), (1,), tuple(reads), tuple(writes), device, origin)


def host_call(reads: Sequence[int], out: int, device: int = 0) -> HostCall:
    """Return a host call whose result goes to cell `out`."""
    return HostCall(len, (), Cell(out), tuple(reads), (out,), device, None)


def program(
    instructions: Sequence[Instruction],
    buffers: Sequence[Buffer],
    *policies: Any,
    policy_of: Sequence[int] = (),
    kind: str = "host",
) -> Program:
    """Return a program on the devices of a kind that its parts name. By default, all instructions have the first
    policy."""
    last = max([0, *(i.device for i in instructions), *(b.device for b in buffers)])
    return Program(
        tuple(f"{kind}:{device}" for device in range(last + 1)),
        tuple(buffers),
        tuple(instructions),
        policies or (SingleStream(),),
        tuple(policy_of) or (0,) * len(instructions),
    )


def temporary(nbytes: int = 64, device: int = 0) -> Buffer:
    return Buffer(nbytes, device, Role.TEMPORARY)


def output(nbytes: int = 64, device: int = 0) -> Buffer:
    return Buffer(nbytes, device, Role.OUTPUT)


def chain(length: int, *policies: Any) -> Program:
    """Return a chain: each launch reads the buffer of the one before and writes a new one. The last is the output."""
    instructions = [launch((i - 1,) if i else (), (i,)) for i in range(length)]
    return program(instructions, [*[temporary()] * (length - 1), output()], *policies)


def fork_join(branches: int, *policies: Any, depth: int = 1) -> Program:
    """Return one root, `branches` chains of `depth` launches from it, and one launch that reads all of their ends."""
    instructions = [launch((), (0,))]
    ends: list[int] = []
    for _ in range(branches):
        end = 0
        for _ in range(depth):
            instructions.append(launch((end,), (len(instructions),)))
            end = len(instructions) - 1
        ends.append(end)
    instructions.append(launch(ends, (len(instructions),)))
    return program(instructions, [*[temporary()] * (len(instructions) - 1), output()], *policies)


def layers(width: int, depth: int, *policies: Any) -> Program:
    """Return `depth` layers of `width` launches. Each reads two neighbours in the layer before."""
    instructions: list[Instruction] = []
    for layer in range(depth):
        for place in range(width):
            base = (layer - 1) * width
            reads = (base + place, base + (place + 1) % width) if layer else ()
            instructions.append(launch(reads, (layer * width + place,)))
    return program(instructions, [temporary()] * (width * depth), *policies)


def sized(source: Program, seed: int) -> Program:
    """Return the program with buffers of 8 KiB to 1.6 MiB: mostly powers of two, some of other sizes."""
    random = Random(seed)
    sizes = [random.choice([1, 2, 4, 8, 16, 32, 64, random.randint(1, 200)]) for _ in source.buffers]
    buffers = [replace(buffer, nbytes=8192 * size) for buffer, size in zip(source.buffers, sizes, strict=True)]
    return replace(source, buffers=tuple(buffers))


def scattered(count: int, seed: int, *policies: Any) -> Program:
    """Return a random DAG: each launch reads up to three of the twelve before it."""
    random = Random(seed)
    instructions = [
        launch(sorted({random.randrange(max(0, n - 12), n) for _ in range(random.randint(1, 3))}) if n else (), (n,))
        for n in range(count)
    ]
    return program(instructions, [temporary()] * count, *policies)


def conflicts(instructions: Sequence[Instruction]) -> set[tuple[int, int]]:
    """Return the pairs of instructions, as their identities, that must keep their order."""
    found: set[tuple[int, int]] = set()
    for later, second in enumerate(instructions):
        for first in instructions[:later]:
            if {*first.writes} & {*second.reads, *second.writes} or {*first.reads} & {*second.writes}:
                found.add((id(first), id(second)))
    return found


@st.composite
def programs(draw: st.DrawFn, max_instructions: int = 60) -> Program:
    """Draw a valid program on up to three devices, with cells, all roles, overwritten buffers and several policies.

    Hypothesis draws and shrinks only the numbers of instructions, buffers and devices. `random` chooses all else,
    because drawing each choice takes ten times as long as most properties.
    """
    count, devices = draw(st.integers(0, max_instructions)), draw(st.integers(1, 3))
    numbers = range(draw(st.integers(1, 14)))
    random = Random(draw(st.integers(0, 2**32 - 1)))
    buffers = [
        Buffer(random.choice([0, 8, 64, 1000]), random.randint(HOST, devices - 1), random.choice(list(Role)))
        for _ in numbers
    ]
    defined = {b for b in numbers if buffers[b].role is Role.INPUT}
    instructions: list[Instruction] = []
    for _ in range(count):
        reads = random.choices(sorted(defined), k=random.randint(0, 3)) if defined else []
        writes = random.sample(numbers, min(random.randint(0, 2), len(numbers)))
        instructions.append(launch(reads, writes, random.randrange(devices)))
        defined.update(writes)
    instructions += [
        host_call((), b)
        for b in numbers
        if buffers[b].role is Role.OUTPUT and buffers[b].device == HOST and b not in defined
    ]
    policies = [_policy(random, len(instructions)) for _ in range(random.randint(1, 2))]
    policy_of = [random.randrange(len(policies)) for _ in instructions]
    names = tuple(f"host:{device}" for device in range(devices))
    return Program(names, tuple(buffers), tuple(instructions), tuple(policies), tuple(policy_of))


@st.composite
def short_lived(draw: st.DrawFn, max_instructions: int = 14) -> Program:
    """Draw a program with short-lived temporaries: each launch writes one, and reads some of the last few."""
    count, most = draw(st.integers(2, max_instructions)), draw(st.integers(1, 3))
    random = Random(draw(st.integers(0, 2**32 - 1)))
    instructions = [
        launch(random.sample(range(max(0, at - 3), at), random.randint(0, min(at, 2))), (at,)) for at in range(count)
    ]
    lanes = Keys(tuple([random.randrange(most) for _ in range(count)]))
    return program(instructions, [temporary(random.choice((8, 1000))) for _ in range(count)], lanes)


def _policy(random: Random, count: int) -> Any:
    """Return a policy of dagpu's or, half of the time, a random placement of `count` instructions on up to 6 lanes."""
    match random.randrange(4):
        case 0:
            return SingleStream()
        case 1:
            return RoundRobin(random.randint(1, 5))
        case _:
            most = random.randint(0, 5)
            return Keys(tuple([random.randint(0, most) for _ in range(count)]))
