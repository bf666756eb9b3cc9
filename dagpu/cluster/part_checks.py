"""The verifier of cuts: proves that the parts of a program compute together what the program computes.

All parts are walked in order, as `dagpu.plans.placed_values` walks a placed program: equal numbers mean equal
contents. It knows nothing of how a cut is made.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from dagpu.cluster.cutting import Part, Version
from dagpu.common.errors import PlanError
from dagpu.plans.placed_values import BLANK, Terms, ValueWalk
from dagpu.plans.program import HOST, Launch, Program, Role

_CURE: Final = (
    "The cut is at fault, not the program: run it on one device for now, and report it together with what "
    "cluster.explain(op) shows."
)


def verify_parts(program: Program, parts: Sequence[Part]) -> None:
    """Check that the parts are the program.

    Each instruction of the program is in one part, and reads the same contents there. Each version has one maker, in a
    part before those that take it, so that there is no cycle. No part writes what it takes. What outlives the program
    is in the last version of its buffer.

    Time: linear in the instructions and their accesses.

    Raises:
        PlanError: this does not hold. The message names the instruction, the version or the part.
    """
    terms = Terms()
    whole = ValueWalk(program, terms, name="the parts", cure=_CURE)
    whole.run(None)
    values: dict[Version, int] = {
        (buffer, 0): terms.number(("given", buffer))
        for buffer, each in enumerate(program.buffers)
        if each.role is Role.INPUT
    }
    home: dict[Version, int] = {}
    made: Counter[int] = Counter()
    last: dict[int, Version] = {}
    for index, part in enumerate(parts):
        name = f"part {index} of worker {part.worker}"
        given = _imports(part, index, values, home, name)
        walk = ValueWalk(part.program, terms, given, name, _CURE)
        walk.made = made
        walk.run(whole.made)
        _check_writes(part, name)
        for version, buffer in zip(part.exports, part.gives, strict=True):
            if version in values:
                raise PlanError(f"{name} makes version {version}, which is there already. {_CURE}")
            values[version], home[version] = walk.values[buffer], index
            if version[1] > last.get(version[0], (0, 0))[1]:
                last[version[0]] = version
    whole.check_missing(made)
    for buffer, each in enumerate(program.buffers):
        final = last.get(buffer, (buffer, 0))
        if each.role is not Role.TEMPORARY and values.get(final, BLANK) != whole.values[buffer]:
            raise PlanError(f"buffer {buffer}, which outlives the program, holds other contents at its end. {_CURE}")


def _imports(part: Part, index: int, values: dict[Version, int], home: dict[Version, int], name: str) -> dict[int, int]:
    """Check what a part takes, and return the values of its inputs by their buffers."""
    given: dict[int, int] = {}
    for version, buffer in zip(part.imports, part.takes, strict=True):
        if version not in values:
            raise PlanError(f"{name} takes version {version}, which no part before it makes. {_CURE}")
        given[buffer] = values[version]
    if sorted({home[version] for version in part.imports if version in home}) != list(part.needs):
        raise PlanError(f"{name} does not wait for the parts that make what it takes. {_CURE}")
    inputs = {buffer for buffer, each in enumerate(part.program.buffers) if each.role is Role.INPUT}
    if inputs != set(given):
        raise PlanError(f"{name} has inputs {sorted(inputs)}, but takes {sorted(given)}. {_CURE}")
    return given


def _check_writes(part: Part, name: str) -> None:
    """Check that a part writes nothing that it takes, since others may read that."""
    taken = set(part.takes)
    for instruction in part.program.instructions:
        for buffer in instruction.writes:
            # A launch writes no cell but that which stands for the variables of its module, and has no bytes.
            shares = type(instruction) is Launch and part.program.buffers[buffer].device == HOST
            if buffer in taken and not shares:
                raise PlanError(f"{name} writes buffer {buffer}, which holds a version that it takes. {_CURE}")
