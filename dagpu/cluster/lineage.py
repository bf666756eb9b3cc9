"""Warns of tensors whose history has grown long: losing one would mean that all of it is run again."""

import warnings
from collections.abc import Sequence
from typing import Any

from dagpu.cluster.task_lists import MOST_PARTS, TaskList
from dagpu.cluster.tasks import RemoteMemory
from dagpu.common.origin import describe, place_of

_warned: set[object] = set()


def warn_of_long_lineages(tasks: TaskList, memory: Sequence[Any]) -> None:
    """Warn, once for each place, of an input whose loss would cost more than `MOST_PARTS` parts, unless the run makes a
    checkpoint."""
    if tasks.makes_checkpoint:
        return
    for buffer in tasks.inputs:
        held = memory[buffer]
        if type(held) is RemoteMemory and held.lineage > MOST_PARTS:
            users = [each for each in tasks.program.instructions if buffer in (*each.reads, *each.writes)]
            origin = users[0].origin if users else None
            place = place_of(origin)
            if place not in _warned:
                _warned.add(place)
                file, line = ("dagpu", 0) if place is None else place
                message = (
                    f"a tensor on a cluster is used at {describe(origin)}, and more than {MOST_PARTS:,} parts would "
                    "have to be run again if its worker died: the scheduler remembers all of them. Cut this history "
                    "now and then: t = await dagpu.checkpoint(t, path)."
                )
                warnings.warn_explicit(message, RuntimeWarning, file, line)
            return
