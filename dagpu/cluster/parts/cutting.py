"""The cut: turns a program on the devices of several workers into parts, of which each runs on one worker.

A part is a class of instructions: those of one worker, one *epoch* and one *chunk*. The epoch of an instruction counts
the changes of workers on the longest way to it; a chunk is full when its instructions take `part_seconds`. Whatever an
instruction uses was made in an earlier epoch, or on its own worker in an earlier or the same chunk. So the graph of
parts has no cycle, however the program is placed. Chunks are what overlaps: without them a worker waits for all of an
epoch before it begins the next one.

What takes next to no time beside a part opens none: uploads go into the part that uses them, downloads into the part
that makes what they copy. So independent work stays independent, whatever the order of the program.
"""

from collections.abc import Sequence

from dagpu.cluster.parts.part import Part
from dagpu.cluster.parts.part_writer import LIGHT, Draft, PartWriter
from dagpu.cluster.parts.program_versions import ProgramVersions
from dagpu.handles.device_handles import is_automatic
from dagpu.lowering.program import Program, Role
from dagpu.lowering.schedule.cost_model import CostModel
from dagpu.lowering.schedule.mesh import Mesh
from dagpu.lowering.schedule.mesh_placement.placing import place
from dagpu.lowering.schedule.spread import Spread
from dagpu.runtime.execute import quiet_collector


def cut(program: Program, mesh: Mesh, *, part_seconds: float, costs: CostModel | None = None) -> Sequence[Part]:
    """Return the parts of a program, each after those whose versions it takes.

    Work that is on no device yet is placed on the mesh first. Time: linear in the instructions and what they access.

    Args:
        program: the program.
        mesh: the devices of all workers.
        part_seconds: the predicted time after which a part is full, in seconds.
        costs: the cost model that predicts times.

    Raises:
        CaptureError: the program launches a captured graph, whose memory is in this process.
        ClusterError: a function of `host_map` gets a handle, whose memory is on another machine.
    """
    model = CostModel() if costs is None else costs
    if any(map(is_automatic, program.devices)):
        program = place(program, Spread(mesh, costs=model), mesh)
    with quiet_collector():
        versions = ProgramVersions(program)
        drafts, home = _assign(program, versions, model.times(program), part_seconds)
        wanted = _wanted_versions(program, versions, home)
        return [PartWriter(program, versions, home, wanted).part(draft) for draft in drafts]


def _assign(
    program: Program, versions: ProgramVersions, times: Sequence[float], part_seconds: float
) -> tuple[list[Draft], list[int]]:
    """Return the drafts of the parts, each after those that it needs, and for each instruction the index of its own.

    An instruction goes into the newest draft of its worker and epoch. But one that is short goes into the draft that
    makes the last of what it uses, though that is full: in the newest one, which does other work, it would keep what
    needs it waiting. And one that is short and uses nothing goes into the draft of the only one that uses it.
    """
    nodes, maker = [versions.node_of[each.device] for each in program.instructions], versions.maker
    users = _only_users(program, versions)
    epochs = [0] * len(times)
    newest: dict[tuple[str, int], Draft] = {}
    drafts: list[Draft] = []
    owner: list[Draft | None] = [None] * len(times)
    before: dict[int, list[int]] = {}
    light = LIGHT * part_seconds
    for index, node in enumerate(nodes):
        if index in versions.passed:
            continue
        epoch, uses_none, latest = 0, True, None
        for _, version in versions.uses[index]:
            made = maker[version]
            if made >= 0:
                uses_none, near = False, nodes[made] == node
                after = epochs[made] if near else epochs[made] + 1
                if after > epoch:
                    epoch, latest = after, None
                if near and after == epoch:
                    draft = owner[made]
                    if latest is None or (draft is not None and draft.at[2] > latest.at[2]):
                        latest = draft
        if uses_none and users[index] >= 0 and times[index] <= light and nodes[users[index]] == node:
            before.setdefault(users[index], []).append(index)
            continue
        if latest is None or not latest.has_room(times[index]):
            latest = newest.get((node, epoch))
            if latest is None or latest.seconds >= part_seconds:
                chunk = 0 if latest is None else latest.at[2] + 1
                latest = newest[node, epoch] = Draft((node, epoch, chunk), part_seconds)
                drafts.append(latest)
        for each in (*before.pop(index, ()), index):
            epochs[each], owner[each] = epoch, latest
            latest.add(each, times[each])
    drafts.sort(key=lambda draft: (draft.at[1], draft.at[2], draft.at[0]))
    number = {draft.at: at for at, draft in enumerate(drafts)}
    return drafts, [-1 if draft is None else number[draft.at] for draft in owner]


def _only_users(program: Program, versions: ProgramVersions) -> list[int]:
    """Return for each instruction the only one that uses what it makes; -1 if there are more, or it outlives the
    program."""
    found = [-1] * len(versions.maker)
    for index, uses in enumerate(versions.uses):
        for _, version in uses:
            found[version] = index if found[version] == -1 else -2
    for buffer, version in enumerate(versions.last):
        if version >= 0 and program.buffers[buffer].role is not Role.TEMPORARY:
            found[version] = -2
    made = [[version for _, _, version in makes] for makes in versions.makes]
    return [max(found[each[0]], -1) if len(each) == 1 else -1 for each in made]


def _wanted_versions(program: Program, versions: ProgramVersions, home: Sequence[int]) -> set[int]:
    """Return the versions that leave the part that makes them: for other parts, or because they outlive the program."""
    wanted: set[int] = set()
    maker = versions.maker
    for index, uses in enumerate(versions.uses):
        for _, version in uses:
            made = maker[version]
            if made >= 0 and home[made] != home[index]:
                wanted.add(version)
    for buffer, version in enumerate(versions.last):
        if version >= 0 and maker[version] >= 0 and program.buffers[buffer].role is not Role.TEMPORARY:
            wanted.add(version)
    return wanted
