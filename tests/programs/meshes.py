"""Meshes, placements by chance, and random programs whose instructions are on no device yet."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from random import Random
from typing import final

from hypothesis import strategies as st

from dagpu import CostModel, Device, Link, Links, Mesh
from dagpu.plans.policies import SingleStream
from dagpu.runtime.device_lookup import find_device
from dagpu.testing import HOST, Buffer, Instruction, Launch, Program, Role, driver_of
from tests.programs.plain_programs import kernel

EAGER = CostModel(launch=1e-3, links=Links(peer=Link(1e-6, 1e12)))
"""Costs at which nearly everything is worth a device of its own."""


def mesh(count: int, kind: str = "host") -> Mesh:
    """Return a mesh of the first devices of a kind."""
    return Mesh([f"{kind}:{number}" for number in range(count)])


def workers(count: int, each: int = 1) -> Mesh:
    """Return a mesh of devices on several workers of a cluster that does not exist: `w0/host:0`, `w0/host:1`, ..."""
    driver = driver_of(find_device("host:0"))
    return Mesh([Device("host", at, driver, f"w{worker}") for worker in range(count) for at in range(each)])


@final
@dataclass(frozen=True)
class Scatter:
    """A policy that places by chance: each instruction on any device, and on any of three streams."""

    mesh: Mesh
    seed: int

    def assign(self, program: Program, mesh: Mesh, /) -> Sequence[int]:
        random = Random(self.seed)
        return [random.randrange(len(mesh)) for _ in program.instructions]

    def place(self, program: Program) -> Sequence[Hashable]:
        random = Random(self.seed)
        return [random.randrange(3) for _ in program.instructions]


_KERNEL = kernel()


@st.composite
def unplaced(draw: st.DrawFn, most: int = 30) -> Program:
    """Draw a program on `host:auto`: launches that read and overwrite temporaries, outputs, and inputs that lie on
    `host:0` and `host:6`. The grid of a launch is its number in the program."""
    random = Random(draw(st.integers(0, 2**32 - 1)))
    count, numbers = draw(st.integers(1, most)), range(draw(st.integers(1, 8)))
    inputs = [Buffer(random.choice((0, 64, 1 << 20)), random.choice((0, 1)), Role.INPUT) for _ in range(3)]
    roles = (Role.TEMPORARY, Role.OUTPUT)
    buffers = [*inputs, *[Buffer(random.choice((8, 1 << 20)), 2, random.choice(roles)) for _ in numbers]]
    written = {0, 1, 2}
    instructions: list[Instruction] = []
    for number in range(count):
        reads = random.sample(sorted(written), random.randint(0, min(3, len(written))))
        if random.random() < 0.2:
            writes = [random.randrange(3)]
        else:
            writes = random.sample([3 + n for n in numbers], min(len(numbers), random.choice((1, 1, 2))))
        instructions.append(Launch(_KERNEL, (), (number,), tuple(reads), tuple(writes), 2, None))
        written.update(writes)
    devices = ("host:0", "host:6", "host:auto")
    assert all(buffer.device != HOST for buffer in buffers)
    return Program(devices, tuple(buffers), tuple(instructions), (SingleStream(),), (0,) * count)
