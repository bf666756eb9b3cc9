"""`CutoffComparisons`: the instructions by which an update compares tensors with those that cutoffs let through last.

A comparison is a launch, behind what makes the tensor. It writes flags into memory of the host that the device reaches:
4 bytes for a small tensor, 4 KB for the largest. The tensors stay where they are, and nothing is copied to the host, so
the update is one launch of a graph on memory of the device. The launch is no part of the op: it stands behind the
instructions of its program, and the plan of an update takes those of the cutoffs that it decides.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, final

from dagpu.common.frozen import plain
from dagpu.common.layout import Layout, contiguous_layout
from dagpu.common.places import Origin
from dagpu.kernels.bit_comparison import FLAG, bits_of, differ_kernel, flag_count
from dagpu.lowering.updates.claims import Comparison, Subprogram
from dagpu.lowering.updates.subprogram import extract
from dagpu.plans.program import Buffer, Instruction, Launch, Program, Role, Tiles, View

_FLAG_TILE: Final = (1,)


@final
@plain
class ComparedBuffer:
    """A buffer that a cutoff compares."""

    bit: int
    """The bit of the cutoff."""
    buffer: int
    passed: int | None
    """The buffer of the tensor that the cutoff lets through; None if no instruction uses it."""
    layout: Layout
    origin: Origin
    """The place of the cutoff in the user's code."""


@final
class CutoffComparisons:
    """The comparisons of a program, by the bits of their cutoffs."""

    def __init__(self, program: Program, compared: Sequence[ComparedBuffer]) -> None:
        self.by_bit: dict[int, Comparison] = {}
        buffers, instructions = list(program.buffers), list[Instruction](program.instructions)
        policies = list(program.policy_of)
        for each in compared:
            about, last = program.buffers[each.buffer], len(buffers)
            flags, here = last + 1, len(instructions)
            count, bits = flag_count(each.layout), bits_of(each.layout)
            spec = differ_kernel(bits.dtype.itemsize, len(bits.shape), each.layout.contiguous)
            out = View(flags, contiguous_layout((count,), FLAG))
            buffers += [
                Buffer(about.nbytes, about.device, Role.INPUT),
                Buffer(out.layout.nbytes, about.device, Role.OUTPUT),
            ]
            reads, device = (last, each.buffer), about.device
            arguments = (Tiles(out, _FLAG_TILE, (count,)), View(last, bits), View(each.buffer, bits))
            instructions.append(Launch(spec, arguments, (count,), reads, (flags,), device, each.origin))
            writer = max((i for i, made in enumerate(program.instructions) if each.buffer in made.writes), default=0)
            policies.append(program.policy_of[writer] if program.policy_of else 0)
            self.by_bit[each.bit] = Comparison(
                each.bit, each.buffer, each.passed, last, flags, out.layout, device, here
            )
        self.program = replace(
            program, buffers=tuple(buffers), instructions=tuple(instructions), policy_of=tuple(policies)
        )
        """The program, with the comparisons behind its own buffers and instructions."""

    def of(self, bits: int) -> list[Comparison]:
        """Return the comparisons of these cutoffs."""
        return [each for bit, each in self.by_bit.items() if bit & bits]

    def extract(self, chosen: tuple[int, ...], bits: int, targets: set[int]) -> Subprogram:
        """Return the subprogram of these instructions of the op, and of the comparisons of these cutoffs. It leaves the
        targets that it makes, and the flags, in memory that stays."""
        added = self.of(bits)
        behind = [each.chosen for each in added]
        return extract(self.program, (*chosen, *behind), targets | {each.flags for each in added})
