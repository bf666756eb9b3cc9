"""Keeps the bodies of `If`s together, in whatever order a policy starts the instructions of a program."""

from collections.abc import Sequence

from dagpu.lowering.program import If, Program, bodies_of


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
