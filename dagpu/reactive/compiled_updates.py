"""The updates of a feed that the compiled reader makes, from the sources that have changed to the value.

They are launches of idle graphs that decide nothing. It reads the rows that `bind` reads (dagpu.reactive.update_rows),
and compares the values of sources by the rows of a guard, as it does the arguments of a pipeline. Any other update it
leaves to `IncrementalRun.update`, before its first effect.
"""

import time
from collections.abc import Sequence
from typing import Any

from dagpu.common.compiled import READER, teach
from dagpu.common.places import Origin
from dagpu.handles import HandleBase, Holders, SharedTensor
from dagpu.handles.device_handles import Exchange, driver_of
from dagpu.ops.source_op import Source
from dagpu.ops.versions import CLOCK, History, Snapshot, Version
from dagpu.reactive.flows.stage import Stats
from dagpu.reactive.live_result import Build, SharedTarget, TargetMemory
from dagpu.reactive.live_stage import LiveStage
from dagpu.reactive.shared_work import SharedWork
from dagpu.reactive.update_plans import UpdatePlan
from dagpu.runtime.device_lookup import find_device
from dagpu.tracing.call_guard import LeafBinding
from dagpu.tracing.live_inputs import LiveInput
from dagpu.tracing.traced_arguments import NumberUse
from dagpu.tracing.value_kinds import ARRAY, HANDLE, NUMBER, guard_leaves


def compiled_updates(
    sources: Sequence[tuple[Source[Any], LiveInput]],
    held: Sequence[HandleBase],
    shared: SharedWork | None,
    stage: LiveStage,
    origin: Origin,
) -> Any:
    """Return what makes the updates of a feed by the compiled reader; None without a compiled reader. `sources` are all
    inputs of the feed, and `held` the handles that must not have moved."""
    if READER is None:
        return None
    return READER.Updates(
        tuple([node for node, _ in sources]),
        tuple([node.cell.history for node, _ in sources]),
        tuple([made for _, made in sources]),
        tuple([made.own for _, made in sources]),
        tuple(held),
        shared,
        None if shared is None else shared.observed,
        0 if shared is None else shared.observed.changes,
        stage.targets,
        origin,
    )


def compiled_update(stage: LiveStage, update: UpdatePlan, sources: Sequence[LiveInput], mask: int, build: Build) -> Any:
    """Return the update in the form of the compiled reader; None if it cannot make it. `sources` are the inputs of the
    feed, which are all sources, and the bits of those that have changed are `mask`."""
    loaded, rows = update.loaded, stage.rows_of(update)
    if loaded is None or READER is None or not isinstance(loaded.prepared.flight, READER.Flight):
        return None
    uses: dict[int, list[tuple[int, NumberUse | None]]] = {id(made): [] for made in sources if made.own & mask}
    for here, made, use in rows.inputs:
        uses.setdefault(id(made), []).append((here, use))
    read = [(number, made) for number, made in enumerate(sources) if id(made) in uses]
    bindings = [binding for _, made in read if (binding := _binding(uses[id(made)])) is not None]
    if len(bindings) < len(read) or len(rows.made) < len(update.outputs):
        return None
    guard = guard_leaves([made.value for _, made in read], bindings, rows.size)
    devices = {buffer: _exchange_of(stage, buffer) for _, buffer in rows.made}
    if guard is None or any(exchange.visited is None for exchange in devices.values()):
        return None
    spin = loaded.settings.spin
    return READER.Update(
        READER.Rows(guard, (HANDLE, NUMBER, ARRAY)),
        [(number,) for number, _ in read],
        rows.kept,
        rows.constants,
        [(here, buffer, devices[buffer].visited, devices[buffer].is_parked) for here, buffer in rows.made],
        any(type(made.value) is SharedTensor for _, made, _ in rows.inputs),
        loaded,
        loaded.spin if spin is None else spin,
        loaded.pace if spin is None else None,
        tuple([storage.lock for storage in update.locks]),
        build if type(build) is SharedTarget else (lambda _memory, _leaves: build()),
        update,
        update.ran,
        len(stage.staleness.program.instructions) - update.ran,
    )


def _exchange_of(stage: LiveStage, buffer: int) -> Exchange:
    """Return the exchange of the device of a target."""
    program = stage.staleness.program
    return driver_of(find_device(program.devices[program.buffers[buffer].device])).exchange


def _binding(uses: Sequence[tuple[int, NumberUse | None]]) -> LeafBinding | None:
    """Return the use of an input's value by the buffers of an update; None if rows cannot tell."""
    numbers = [(here, use.check) for here, use in uses if use is not None]
    buffers = [here for here, use in uses if use is None]
    if len(buffers) > 1 or (numbers and buffers):
        return None
    return LeafBinding(buffers[0] if buffers else -1, numbers=tuple(numbers))


teach(
    history=History, version=Version, live_input=LiveInput, holders=Holders, target_memory=TargetMemory,
    shared_target=SharedTarget, clock=CLOCK, snapshot=Snapshot, perf_counter=time.perf_counter, stats=Stats,
)  # fmt: skip
