"""The programs of updates: some instructions of another program, and comparisons of cutoffs behind them.

What the instructions find is input, what they leave is output. A comparison is a launch, behind what makes the tensor
of a cutoff: it compares it with the tensor that the cutoff let through last, and writes flags into memory of the host
that the device reaches, 4 bytes for a small tensor, 4 KB for the largest. The tensors stay where they are, and nothing
is copied to the host, so the update is one launch of a graph on memory of the device. The launch is no part of the op:
it stands behind the instructions of its program, and the plan of an update takes those of the cutoffs that it decides.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, final

from dagpu.common.frozen import plain
from dagpu.common.layout import Layout, contiguous_layout
from dagpu.common.places import Origin
from dagpu.plans.program import Buffer, Instruction, Launch, Program, Renumbering, Role, Tiles, View, operands
from dagpu.reactive.bit_comparison import FLAG, bits_of, differ_kernel, flag_count
from dagpu.reactive.claims import Comparison, Subprogram


def extract(whole: Program, chosen: tuple[int, ...], targets: set[int]) -> Subprogram:
    """Return the subprogram of these instructions. It leaves the targets that it makes in memory that stays."""
    policies = [whole.policy_of[index] for index in chosen]
    return assemble(whole, [whole.instructions[index] for index in chosen], policies, chosen, targets, {})


def assemble(
    whole: Program,
    instructions: Sequence[Instruction],
    policies: Sequence[int],
    chosen: tuple[int, ...],
    targets: set[int],
    in_place_of: Mapping[int, int],
) -> Subprogram:
    """Return the subprogram of instructions that have the buffer numbers of the whole program, each with the number of
    its policy. Among them are those with the indices `chosen`. `in_place_of` has buffers, each with the one that they
    use in its place."""
    written = {buffer for instruction in instructions for buffer in instruction.writes}
    used = written.union(*[each.reads for each in instructions])
    used.update([operand.buffer for each in instructions for operand in operands(each)])  # numbers and seeds too
    touched = sorted({in_place_of.get(buffer, buffer) for buffer in used})
    number = {buffer: index for index, buffer in enumerate(touched)}
    number |= {buffer: number[other] for buffer, other in in_place_of.items() if buffer in used}
    devices = sorted({whole.buffers[b].device for b in touched} | {i.device for i in instructions})
    device_number = {device: index for index, device in enumerate(device for device in devices if device >= 0)}
    device_number[-1] = -1

    def role_of(buffer: int) -> Role:
        if buffer not in written:
            return Role.INPUT
        return Role.OUTPUT if buffer in targets or whole.buffers[buffer].device < 0 else Role.TEMPORARY

    buffers = [Buffer(whole.buffers[b].nbytes, device_number[whole.buffers[b].device], role_of(b)) for b in touched]
    renumber = Renumbering()
    program = Program(
        tuple(whole.devices[device] for device in devices if device >= 0),
        tuple(buffers),
        tuple([renumber.instruction(each, number, device_number[each.device]) for each in instructions]),
        whole.policies,
        tuple(policies),
    )
    return Subprogram(
        program,
        chosen,
        tuple((b, number[b]) for b in touched if b not in written),
        tuple((b, number[b]) for b in touched if b in written and b in targets),
    )


# ---- comparisons

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
