"""A limit for the memory that a feed keeps: which kept buffers are dropped, and made again when they are needed."""

from dagpu.common.errors import PlanError
from dagpu.common.places import Origin, describe
from dagpu.lowering.updates.staleness import Staleness


def fit_into(staleness: Staleness, limit: int, where: Origin) -> Staleness:
    """Return the analysis of the same program with at most `limit` bytes of targets.

    Kept buffers are dropped, those first that are made again with the fewest bytes of traffic for each byte that they
    take. `where` is the place of `observe`.

    Raises:
        PlanError: the results alone take more.
    """
    program = staleness.program
    size = {buffer: program.buffers[buffer].nbytes for buffer in staleness.targets}
    results = sum(size[buffer] for buffer in staleness.results)
    if results > limit:
        raise PlanError(
            f"observe at {describe(where)} with memory={limit:,}: results alone take {results:,} bytes. Raise it, or "
            "observe less."
        )
    dropped: set[int] = set()
    total = sum(size.values())
    droppable = [buffer for buffer in staleness.kept if size[buffer]]
    for buffer in sorted(droppable, key=lambda each: (_traffic(staleness, each) / size[each], each)):
        if total <= limit:
            break
        dropped.add(buffer)
        total -= size[buffer]
    if not dropped:
        return staleness
    return Staleness(program, staleness.bits, staleness.compared, dropped, staleness.also_kept)


def _traffic(staleness: Staleness, buffer: int) -> int:
    """Return the bytes that the instructions write which make one kept buffer of the others."""
    chosen = staleness.instructions_for({buffer})
    buffers = staleness.program.buffers
    return sum(buffers[written].nbytes for index in chosen for written in staleness.program.instructions[index].writes)
