"""`UpdateRows`: how an update of a feed finds what its buffers hold, one row for each.

Two readers use the rows of one update: `bind` here, and the compiled reader, which also launches the update, waits for
it and makes the value (dagpu.reactive.compiled_updates).
"""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from dagpu.reactive.claims import Subprogram
from dagpu.reactive.leaf_values import LeafValues, content_of_constant, content_of_input
from dagpu.reactive.live_result import TargetMemory
from dagpu.tracing.live_inputs import LiveInput
from dagpu.tracing.traced_arguments import NumberUse


class UpdateRows(NamedTuple):
    """The rows of an update. Each begins with a buffer of the update."""

    size: int
    """The number of the update's buffers."""
    kept: Sequence[tuple[int, int]]
    """Kept memory that it reads, with its buffer in the whole program."""
    constants: Sequence[tuple[int, Any]]
    """Leaves that do not change: memory of the op's own, or a value."""
    inputs: Sequence[tuple[int, LiveInput, NumberUse | None]]
    """Inputs of the feed, each with the use of a number."""
    made: Sequence[tuple[int, int]]
    """Targets on devices that it makes, with their buffers in the whole program. It writes them where they are, if
    nothing else reads them."""


def rows_of(
    update: Subprogram,
    outputs: Sequence[tuple[int, int]],
    leaves: LeafValues,
    targets: Collection[int],
    on_devices: Collection[int],
) -> UpdateRows:
    """Return the rows of an update that makes the targets `outputs`, each with its number in the update. `targets` are
    all that the stage makes, and `on_devices` those of them in memory of devices."""
    kept: list[tuple[int, int]] = []
    constants: list[tuple[int, Any]] = []
    inputs: list[tuple[int, LiveInput, NumberUse | None]] = []
    for buffer, here in update.inputs:
        found = leaves.live(buffer)
        if buffer in targets:
            kept.append((here, buffer))
        elif found is None:
            constants.append((here, leaves.constant(buffer)))
        else:
            inputs.append((here, *found))
    made = [(here, buffer) for buffer, here in outputs if buffer in on_devices]
    return UpdateRows(len(update.program.buffers), kept, constants, inputs, made)


def bind(rows: UpdateRows, targets: TargetMemory) -> list[Any]:
    """Return what the buffers of an update hold.

    Raises:
        KernelArgumentError: a number does not fit its use.
    """
    memory: list[Any] = [None] * rows.size
    for here, buffer in rows.kept:
        memory[here] = targets.memory[buffer]
    for here, constant in rows.constants:
        memory[here] = content_of_constant(constant)
    for here, made, use in rows.inputs:
        memory[here] = content_of_input(made, use)
    for here, buffer in rows.made:
        memory[here] = targets.own_memory(buffer)
    return memory
