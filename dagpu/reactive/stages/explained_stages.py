"""What `feed.explain()` says of an observed op: what runs again for each source, in which tiles, and what is kept."""

from collections.abc import Sequence
from typing import Final

from dagpu.common.places import describe
from dagpu.lowering.updates.live_inputs import LiveInputs
from dagpu.ops.drawing import name_of
from dagpu.ops.source_op import Source
from dagpu.plans.program import label
from dagpu.reactive.stages.live_stage import LiveStage

_SHOWN: Final = (int, float, str)
"""Values of these types are shown beside the places of their sources."""
_MOST_SHOWN: Final = 12
"""The most instructions that `explain` names for one source."""


def explain_stages(live: LiveInputs, stages: Sequence[LiveStage], kept_bytes: int, *, traces: bool) -> list[str]:
    """Describe the stages of an observed op, one fact a line. With `traces` each update traces the op again."""
    instructions = sum(len(stage.staleness.program.instructions) for stage in stages)
    lines = [_explain_bit(live, stages, number, instructions) for number in range(len(live.bit_names))]
    if traces:
        lines.append(f"{len(stages)} stages: a closure waits for host data, so each update traces the op again")
    lines += _explain_tiles(stages)
    total = sum(buffer.nbytes for stage in stages for buffer in stage.staleness.program.buffers)
    lines.append(f"kept {kept_bytes:,} bytes of {total:,}")
    return lines


def _explain_bit(live: LiveInputs, stages: Sequence[LiveStage], number: int, total: int) -> str:
    """Describe what runs again for the source or the cutoff of this bit, of a total number of instructions."""
    node, bit = live.bit_names[number], 1 << number
    again: list[str] = []
    for stage in stages:
        stale = stage.staleness
        again += [label(stale.program.instructions[i]) for i in stale.instructions_for_mask(bit)]
    what = name_of(node) if type(node) is Source else "cutoff, if its value differs,"
    shown = ", ".join(again[:_MOST_SHOWN]) + (", ..." if len(again) > _MOST_SHOWN else "")
    why = "; a closure reads it, so the op is traced again" if bit & live.structural_bits() else ""
    value = f", now {node.get()!r}" if type(node) is Source and issubclass(node.kind, _SHOWN) else ""
    for stage in stages:
        if bit & stage.cutoffs.bits:
            last = "was cut off" if bit & stage.cutoffs.cut_off else "was let through"
            why += f"; {stage.cutoffs.describe()}, and the last tensor {last}"
    where = f"{what} at {describe(node.origin)}{value}"
    return f"{where}: {len(again)} of {total} instructions{f': {shown}' if again else ''}{why}"


def _explain_tiles(stages: Sequence[LiveStage]) -> list[str]:
    """Describe which tiles the last update ran, and from how many on it runs all of them."""
    counts = [(stage, count) for stage in stages for count in stage.tiles.counts if count.tiles]
    if not counts:
        return []
    names = [label(stage.staleness.program.instructions[count.instruction]) for stage, count in counts]
    ran, least = [], []
    for name, (stage, count) in list(zip(names, counts, strict=True))[:_MOST_SHOWN]:
        ran.append(f"{name} {count.tiles:,} of {count.total:,}")
        least.append(f"{name} {stage.tiles.whole_from(count.instruction):,}")
    more = ", ..." if len(counts) > _MOST_SHOWN else ""
    return [
        f"from this number of dirty tiles on, a launch runs all of them and has no list: {', '.join(least)}{more}",
        f"the last update ran tiles: {', '.join(ran)} tiles{more}",
    ]
