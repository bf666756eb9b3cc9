"""The program that some instructions of another program make. What they find is input, what they leave is output."""

from collections.abc import Mapping, Sequence

from dagpu.lowering.updates.claims import Subprogram
from dagpu.plans.program import Buffer, Instruction, Program, Role, operands
from dagpu.plans.renumbering import Renumbering


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
