"""Encodes a plan as commands. Every kernel of the plan must be compiled.

The commands of several lanes are interleaved for submission, round robin. A plan's own order may finish one branch
before it begins the next. At some microseconds a launch, the last branch then begins late by the launches of all the
others. An order is correct if it keeps each lane's own order and records each event before any wait for it.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeAlias, assert_never, final

from dagpu.backends.cuda.commands.buffers import CompiledPlan
from dagpu.backends.cuda.commands.command_list import (
    BaseOffset,
    Command,
    Do,
    Encoded,
    Kind,
    LaunchParameters,
    Relocations,
)
from dagpu.backends.cuda.driver.driver_protocol import (
    KernelLaunch,
)
from dagpu.backends.cuda.kernels.fill_and_copy import BuiltinWork, Memcpy, Memset, packed_seed
from dagpu.backends.cuda.resources.streams import MARK_EVERY
from dagpu.backends.kernel_text.launch_params import LIST, REPORT, PackedLaunch, block_for, check_limits
from dagpu.backends.kernel_text.loaded_function import GridExtents
from dagpu.common.errors import KernelArgumentError
from dagpu.common.places import describe
from dagpu.plans.plan import Execute, Record, Wait
from dagpu.plans.program import If, Instruction, Launch, View


@final
class SelectedKernel(NamedTuple):
    """A launch of a user's kernel, which may not be compiled yet."""

    launch: Launch
    packed: PackedLaunch
    report: int
    """Number of its report of bounds violations, if the kernel is checked."""


@final
class SelectedBuiltin(NamedTuple):
    """A launch of one of dagpu's own kernels, which may not be compiled yet."""

    instruction: Instruction
    builtin: BuiltinWork
    places: Sequence[BaseOffset]
    """The places where the buffers of the output and of the source begin."""
    seed: int | None
    """The cell of the seed that each run gives; None if the kernel takes no such seed."""


@final
class SelectedCommand(NamedTuple):
    """A driver call or a host function."""

    instruction: Instruction
    command: Do
    kind: Kind = Kind.DO
    """DO or HOST."""


CLUSTERS: Final = 90
"""The first architecture with clusters of blocks."""
PROGRAMMATIC: Final = 90
"""The first architecture with programmatic dependent launch; on others `wait_for_inputs` does nothing."""


@final
class SelectedConstant(NamedTuple):
    """The copy of an input to the `__constant__` variable that it sets, whose address is known once the kernel is
    compiled."""

    launch: Launch
    variant: int
    number: int
    """The number of the variable among those of the kernel."""
    copy: BuiltinWork | Memcpy
    nbytes: int
    source: BaseOffset
    """The place where the input's buffer begins."""
    nowhere: int
    """A base that is 0 in each run."""


Selected: TypeAlias = SelectedKernel | SelectedBuiltin | SelectedCommand | SelectedConstant
"""A launch or command that an instruction, or a part of one, becomes."""


def encode(compiled: CompiledPlan, steps: Sequence[Sequence[Selected]]) -> Encoded:
    """Encode all steps of a plan, given the launches and commands that were selected for each step.

    Raises:
        KernelArgumentError: the device would refuse a launch.
    """
    plan = compiled.plan
    encoder = _Encoder(compiled)
    device_of_event = [0] * plan.events
    for step, selected in zip(plan.steps, steps, strict=True):
        match step:
            case Execute(instruction, lane):
                if type(instruction) is If or encoder.left:
                    encoder.begin(instruction)
                for each in selected:
                    encoder.selected(each, lane)
            case Record(event=event, lane=lane):
                device_of_event[event] = plan.lanes[lane].device
                encoder.actions.append(Command(Kind.RECORD, lane, None, event))
            case Wait(event=event, lane=lane):
                encoder.actions.append(Command(Kind.WAIT, lane, None, event))
            case _:
                pass  # memory has its place already
    parameters = LaunchParameters(encoder.texts, encoder.relocations)
    return Encoded(encoder.ordered_commands(), encoder.launches, parameters, encoder.unmarked, device_of_event)


def _generation(arch: str) -> int:
    """Return the number of an architecture: 90 of `sm_90a`."""
    return int(arch.removeprefix("sm_").rstrip("af"))


@final
class _Encoder:
    """Encodes one plan."""

    def __init__(self, compiled: CompiledPlan) -> None:
        self._compiled = compiled
        self.actions: list[Command] = []
        self.texts: list[bytearray | memoryview] = []
        self.launches: list[tuple[KernelLaunch, int]] = []
        self.relocations = Relocations([[] for _ in range(compiled.bases)])
        self.unmarked = [0] * len(compiled.plan.lanes)
        self._cuts: list[int] = []
        """The numbers of commands before and after each `If`, and after its body. No command moves across one."""
        self.left = 0
        """The number of instructions until after the end of a body, that one included; 0 if there is none."""

    def begin(self, instruction: Instruction) -> None:
        """Note where the commands of an instruction begin: an `If`, or one that is in a body or comes after one."""
        if type(instruction) is If:
            self._cuts += [len(self.actions), len(self.actions) + 1]
            self.left = instruction.body + 1
        else:
            self.left -= 1
            if not self.left:
                self._cuts.append(len(self.actions))

    def ordered_commands(self) -> list[Command]:
        """Return all commands in the order in which they are submitted, with switches between devices."""
        lanes = self._compiled.plan.lanes
        actions = self.actions
        if len(lanes) > 1:
            recorded, ends = set[int](), [*self._cuts, len(actions)]
            actions = [
                action
                for start, end in zip([0, *self._cuts], ends, strict=True)
                for action in round_robin(self.actions[start:end], len(lanes), recorded)
            ]
        if len(self._compiled.devices) == 1:
            return actions
        here, found = 0, []
        for action in actions:
            device = lanes[action.lane].device
            if device != here:
                here = device
                found.append(Command(Kind.SWITCH, action.lane, None, device))
            found.append(action)
        return found

    def selected(self, selected: Selected, lane: int) -> None:
        """Append the command of a selected launch, driver call or host function."""
        match selected:
            case SelectedKernel():
                self._kernel(selected, lane)
            case SelectedBuiltin():
                self._builtin(selected, lane)
            case SelectedCommand(instruction, command, kind):
                self.actions.append(Command(kind, lane, instruction, command))
                if kind is not Kind.HOST:  # a host function adds nothing to the stream
                    self._count(lane)
            case SelectedConstant():
                self._constant(selected, lane)
            case _:
                assert_never(selected)

    def _kernel(self, selected: SelectedKernel, lane: int) -> None:
        launch, packed, report = selected
        compiled, form, number = self._compiled, packed.form, len(self.texts)
        device, places = compiled.devices[launch.device], compiled.places
        function = device.library.find_kernel(launch.kernel, form.variant)
        assert function is not None
        block = block_for(launch, form, function)
        if function not in form.accepted:
            with device.gpu.current():  # the driver asks for one to count the blocks that are resident
                check_limits(launch, form, block, function, device.gpu.limits, device.name)
        addresses = self.relocations.addresses
        for at, index, distance in form.pointers:
            view = launch.view(index) if index >= 0 else launch.tile_list if index == LIST else launch.scratch
            assert view is not None, "its form has a place for it"
            place = places[view.buffer]
            assert place is not None, "it is a cell, or nothing allocates it"
            addresses[place.base].append((number, at, place.offset + distance))
        for at, cell, convert in packed.cells:
            self._patch(cell, number, at, convert)
        for at in form.reports:
            addresses[compiled.report_base].append((number, at, report * REPORT))
        shared, early = launch.kernel.shared_bytes + function.dynamic_shared, self._may_start_early(launch)
        made = KernelLaunch(function, form.grid, block, packed.parameters, shared, early)
        if launch.kernel.cooperative or launch.kernel.cluster is not None:
            made = made._replace(cooperative=launch.kernel.cooperative, cluster=self._cluster(launch, form.grid))
        self._put(launch, lane, made)

    def _cluster(self, launch: Launch, grid: GridExtents) -> GridExtents | None:
        """Return the extents of the clusters of a launch; None if it gives none.

        Raises:
            KernelArgumentError: the device has no clusters, or the grid is not made of whole ones.
        """
        given, device = launch.kernel.cluster, self._compiled.devices[launch.device]
        if given is None:
            return None
        x, y, z = (*given, 1, 1)[:3]
        kernel = f"kernel {launch.kernel.name!r}, launched at {describe(launch.origin)}"
        if _generation(device.gpu.arch) < CLUSTERS:
            raise KernelArgumentError(
                f"{kernel}: it has clusters of {given} blocks, which {device.name} ({device.gpu.arch}) does not have. "
                "Run it on a GPU of compute capability 9.0 or newer, or leave cluster= out."
            )
        if any(blocks % each for blocks, each in zip(grid, (x, y, z), strict=True)):
            raise KernelArgumentError(
                f"{kernel}: its grid of {grid} blocks is not made of whole clusters of {(x, y, z)}. Give another grid: "
                f"{launch.kernel.name}.grid(...), or another tile."
            )
        return x, y, z

    def _constant(self, selected: SelectedConstant, lane: int) -> None:
        """Append the copy to a `__constant__` variable, and set what it leaves to zero."""
        launch, copy, device = selected.launch, selected.copy, self._compiled.devices[selected.launch.device]
        function = device.library.find_kernel(launch.kernel, selected.variant)
        assert function is not None
        address, nbytes = function.variables[selected.number], function.sizes[selected.number]
        if selected.nbytes > nbytes:
            name = launch.kernel.constants[selected.number][1].name
            raise KernelArgumentError(
                f"kernel {launch.kernel.name!r}, launched at {describe(launch.origin)}: argument {name!r} has "
                f"{selected.nbytes} bytes, but its __constant__ variable has {nbytes}. Pass at most as many."
            )
        target = BaseOffset(selected.nowhere, address)
        if isinstance(copy, Memcpy):
            self.selected(SelectedCommand(launch, copy.placed(target, selected.source)), lane)
        else:
            self._builtin(SelectedBuiltin(launch, copy, (target, selected.source), None), lane)
        if left := nbytes - selected.nbytes:
            fill = Memset(1, 0, left, selected.nbytes).placed(target)
            self.selected(SelectedCommand(launch, fill), lane)

    def _may_start_early(self, launch: Launch) -> bool:
        """Return True if the kernel waits for the one before it, and no instruction of the plan writes what it reads
        before: that is complete when the run begins."""
        early, arch = launch.kernel.early_reads, self._compiled.devices[launch.device].gpu.arch
        if launch.tile_list is not None or launch.kernel.constants:  # a tile reads its number before it waits
            return False
        if early is None or launch.kernel.cooperative or _generation(arch) < PROGRAMMATIC:
            return False
        read = [launch.args[index] for index in early]
        return not any(isinstance(argument, View) and argument.buffer in self._written for argument in read)

    @cached_property
    def _written(self) -> frozenset[int]:
        """The buffers that an instruction of the plan writes."""
        steps = self._compiled.plan.steps
        return frozenset([out for step in steps if type(step) is Execute for out in step.instruction.writes])

    def _patch(self, cell: int, launch: int, at: int, convert: Callable[[Any], bytes]) -> None:
        """Add a relocation of a number that each run gives to the parameters of a launch."""
        self.relocations.numbers.setdefault(cell, []).append((launch, at, convert))

    def _builtin(self, selected: SelectedBuiltin, lane: int) -> None:
        instruction, builtin, places, seed = selected
        number, parameters = len(self.texts), bytearray(builtin.arguments)
        if seed is not None and builtin.seed is not None:
            self._patch(seed, number, builtin.seed, packed_seed)
        for at, place in zip(builtin.pointers, places, strict=True):
            self.relocations.addresses[place.base].append((number, at, place.offset))
        device = self._compiled.devices[self._compiled.plan.lanes[lane].device]
        function = device.library.load_builtin(builtin)
        self._put(instruction, lane, KernelLaunch(function, builtin.grid, builtin.block, parameters, 0))

    def _put(self, instruction: Instruction, lane: int, launch: KernelLaunch) -> None:
        self.actions.append(Command(Kind.LAUNCH, lane, instruction, len(self.launches)))
        self.launches.append((launch, lane))
        self.texts.append(launch.parameters)
        self._count(lane)

    def _count(self, lane: int) -> None:
        self.unmarked[lane] += 1
        if self.unmarked[lane] == MARK_EVERY:
            self.unmarked[lane] = 0
            self.actions.append(Command(Kind.MARK, lane, None, MARK_EVERY))


def round_robin(actions: Sequence[Command], lanes: int, recorded: set[int]) -> list[Command]:
    """Return the same commands, interleaved: in each turn one instruction of a lane, and the events and marks around
    it. A lane whose next command waits for an event is skipped until the event is recorded. `recorded` has the events
    that were recorded before, to which these are added."""
    queues: list[deque[Command]] = [deque() for _ in range(lanes)]
    for action in actions:
        queues[action.lane].append(action)
    turns = deque(filter(None, queues))
    blocked: dict[int, list[deque[Command]]] = {}
    found: list[Command] = []
    while turns:
        queue = turns.popleft()
        submitted = False
        while queue:
            action = queue[0]
            if action.kind is Kind.WAIT and action.a not in recorded:
                blocked.setdefault(action.a, []).append(queue)
                break
            if action.instruction is not None:
                if submitted:
                    turns.append(queue)
                    break
                submitted = True
            found.append(queue.popleft())
            if action.kind is Kind.RECORD:
                recorded.add(action.a)
                turns.extend(blocked.pop(action.a, ()))
    return found
