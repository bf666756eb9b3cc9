"""The program of an update in which some launches run a list of their tiles.

All lists of an update are one array, an input of the plan in memory that the host writes and kernels read where it is.
So no copy goes before the kernels, and one plan serves all lists of the same lengths. A list is as long as the next
power of two, but no longer than a launch with a list may be, and ends with numbers that are no tiles. So a few plans
serve updates of any number of tiles.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING, Final, final

import numpy as np

from dagpu.common.frozen import plain
from dagpu.common.layout import Layout, contiguous_layout
from dagpu.lowering.updates.claims import Subprogram
from dagpu.lowering.updates.dirty.tile_updates import WHOLE_FROM
from dagpu.plans.program import Buffer, CopyDtoD, Instruction, Launch, Program, Role, View

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NUMBER: Final = np.dtype(np.int32)
_ALIGNMENT: Final = 16
"""The number of tiles at multiples of which lists begin."""


@final
@plain
class TiledProgram:
    """A subprogram with lists of tiles."""

    subprogram: Subprogram
    lists: tuple[tuple[int, int], ...]
    """The buffers of the array with all lists: for each device whose launches have one its number, and the buffer."""
    old: tuple[tuple[int, int], ...]
    """For each target that begins as a copy of what it held: its number in the whole program, and that of the buffer
    with the old contents here."""


def lengths_of(lists: "Mapping[int, NDArray[np.int32]]", totals: Mapping[int, int]) -> tuple[tuple[int, int], ...]:
    """Return each launch that has a list, with the length that a plan has for it."""
    return tuple([(i, _length(len(lists[i]), totals[i])) for i in sorted(lists)])


def _length(count: int, total: int) -> int:
    return max(1, min(1 << (count - 1).bit_length() if count else 1, ceil(WHOLE_FROM * total) - 1))


def with_lists(subprogram: Subprogram, lengths: tuple[tuple[int, int], ...], copied: tuple[int, ...]) -> TiledProgram:
    """Return a subprogram in which launches run lists of tiles of these lengths. The targets `copied` begin as copies
    of what they held, in new memory."""
    program = subprogram.program
    buffers, number = list(program.buffers), {whole: here for here, whole in enumerate(subprogram.chosen)}
    instructions: list[Instruction] = list(program.instructions)
    policies = list(program.policy_of)
    first: list[tuple[Instruction, int]] = []
    places, end = _places(lengths)
    outputs = dict(subprogram.outputs)
    fresh = {outputs[buffer] for buffer in copied}
    on_device: dict[int, int] = {}
    if places:
        launches = [number[index] for index, _, _ in places]
        for device in sorted({instructions[here].device for here in launches}):
            on_device[device] = len(buffers)
            buffers.append(Buffer(end * _NUMBER.itemsize, device, Role.INPUT))
        for here, (_, start, length) in zip(launches, places, strict=True):
            launch = instructions[here]
            assert type(launch) is Launch
            listing = View(on_device[launch.device], Layout(_NUMBER, (length,), (4,), start * _NUMBER.itemsize))
            for out_number in launch.writes:  # what is not copied holds all of its tiles when the run begins
                if buffers[out_number].role is Role.OUTPUT and out_number not in fresh:
                    buffers[out_number] = replace(buffers[out_number], role=Role.INPUT)
            reads = (*launch.reads, listing.buffer)
            instructions[here] = replace(launch, tile_list=listing, reads=reads)
    old: list[tuple[int, int]] = []
    for buffer in copied:
        out_number = outputs[buffer]
        about, before = buffers[out_number], len(buffers)
        buffers.append(Buffer(about.nbytes, about.device, Role.INPUT))
        old.append((buffer, before))
        bytes_of = contiguous_layout((about.nbytes,), np.dtype(np.uint8))
        writer = next(here for here, each in enumerate(instructions) if out_number in each.writes)
        origin, target, source = instructions[writer].origin, View(out_number, bytes_of), View(before, bytes_of)
        first.append((CopyDtoD(target, source, (before,), (out_number,), about.device, origin), policies[writer]))
    tiled = Program(
        program.devices,
        tuple(buffers),
        (*[each for each, _ in first], *instructions),
        program.policies,
        (*[policy for _, policy in first], *policies),
    )
    return TiledProgram(replace(subprogram, program=tiled), tuple(on_device.items()), tuple(old))


def list_array(
    lengths: tuple[tuple[int, int], ...], lists: "Mapping[int, NDArray[np.int32]]", totals: Mapping[int, int]
) -> "NDArray[np.int32]":
    """Return the array with all lists."""
    places, end = _places(lengths)
    array = np.empty(end, _NUMBER)
    for index, start, length in places:
        numbers = lists[index]
        end = start + len(numbers)
        array[start:end] = numbers
        array[end : start + length] = totals[index]
    return array


def shifted_lists(
    array: "NDArray[np.int32]",
    lengths: tuple[tuple[int, int], ...],
    lists: "Mapping[int, NDArray[np.int32]]",
    by: Mapping[int, int],
) -> "NDArray[np.int32]":
    """Return the array of `list_array` for these lists, with a number added to all tiles of each launch."""
    shifted = array.copy()
    for index, start, _ in _places(lengths)[0]:
        shifted[start : start + len(lists[index])] += by[index]
    return shifted


def _places(lengths: tuple[tuple[int, int], ...]) -> tuple[list[tuple[int, int, int]], int]:
    """Return for each list its launch in the whole program, its first place in the array, and its length; and the
    length of the array."""
    places, end = [], 0
    for index, length in lengths:
        places.append((index, end, length))
        end += -(-length // _ALIGNMENT) * _ALIGNMENT
    return places, end
