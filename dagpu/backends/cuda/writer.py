"""Writing a plan down as actions, once every kernel that it needs is there."""

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Final, assert_never, final

from dagpu.backends.cuda.builtin import Builtin, Memcpy, Memset, packed_seed
from dagpu.backends.cuda.driver import Extents, Function, KernelLaunch
from dagpu.backends.cuda.packing import REPORT, Packed, check_limits
from dagpu.backends.cuda.parameters import Parameters, Patches, Place
from dagpu.backends.cuda.script import Action, Do, Kind, Written
from dagpu.backends.cuda.streams import MARK_EVERY
from dagpu.backends.cuda.transfers import DeviceCopy, DeviceFill, RowsCopy, host_call
from dagpu.backends.cuda.turns import in_turn
from dagpu.lowering.plan import Execute, Record, Wait
from dagpu.lowering.program import (
    CopyDtoD,
    CopyDtoH,
    CopyHtoD,
    Fill,
    GraphLaunch,
    HostCall,
    Instruction,
    Launch,
    View,
)

if TYPE_CHECKING:
    from dagpu.backends.cuda.prepared import PreparedPlan


NOTHING: Final = Written((), (), Parameters((), Patches([])), (), ())


def write(prepared: "PreparedPlan", steps: Sequence[Any]) -> Written:
    """All steps of a plan, given what was made of each for its kernel to be compiled.

    Raises:
        KernelArgumentError: the device would refuse a launch.
    """
    plan = prepared.plan
    writer = _Writer(prepared)
    device_of_event = [0] * plan.events
    for step, made in zip(plan.steps, steps, strict=True):
        match step:
            case Execute(instruction=instruction, lane=lane):
                writer.instruction(instruction, lane, made)
            case Record(event=event, lane=lane):
                device_of_event[event] = plan.lanes[lane].device
                writer.add(Action(Kind.RECORD, lane, None, event))
            case Wait(event=event, lane=lane):
                writer.add(Action(Kind.WAIT, lane, None, event))
            case _:
                pass  # where memory lies has been settled
    parameters = Parameters(writer.texts, writer.patches)
    return Written(writer.script(), writer.launches, parameters, writer.puts, device_of_event)


@final
class _Writer:
    """Writes one plan."""

    def __init__(self, prepared: "PreparedPlan") -> None:
        self._prepared = prepared
        self.actions: list[Action] = []
        self.texts: list[bytearray] = []
        self.launches: list[tuple[KernelLaunch, int]] = []
        self.patches = Patches([[] for _ in range(prepared.bases)])
        self.puts = [0] * len(prepared.plan.lanes)

    def add(self, action: Action) -> None:
        """Append an action."""
        self.actions.append(action)

    def script(self) -> list[Action]:
        """All actions in the order in which they are submitted, with switches between devices."""
        lanes = self._prepared.plan.lanes
        actions = in_turn(self.actions, len(lanes)) if len(lanes) > 1 else self.actions
        if len(self._prepared.devices) == 1:
            return actions
        here, found = 0, []
        for action in actions:
            device = lanes[action.lane].device
            if device != here:
                here = device
                found.append(Action(Kind.SWITCH, action.lane, None, device))
            found.append(action)
        return found

    def instruction(self, instruction: Instruction, lane: int, made: Any) -> None:
        """Append what an instruction takes."""
        prepared = self._prepared
        match instruction:
            case Launch():
                if made is not None:
                    self._launch(instruction, lane, made)
            case Fill(out=out, seed=seed):
                if seed is not None and isinstance(made, Builtin) and made.seed is not None:
                    self._patch(seed.buffer, len(self.texts), made.seed, packed_seed)
                self._made(instruction, lane, made, [prepared.place(out.buffer)])
            case CopyDtoD(out=out, source=source):
                self._made(instruction, lane, made, [prepared.place(out.buffer), prepared.place(source.buffer)])
            case CopyHtoD() | GraphLaunch():
                self._do(instruction, lane, made)
            case CopyDtoH(source=source):
                gather, copied = made
                if gather is not None:
                    self._made(instruction, lane, gather, [copied.source, prepared.place(source.buffer)])
                self._do(instruction, lane, copied)
            case HostCall():
                self.add(Action(Kind.HOST, lane, instruction, host_call(instruction)))
            case _:
                assert_never(instruction)

    def _launch(self, launch: Launch, lane: int, packed: Packed) -> None:
        prepared = self._prepared
        device = prepared.devices[launch.device]
        form, number = packed.form, len(self.texts)
        function = device.library.found(launch.kernel, form.variant)
        assert function is not None
        block = form.block
        if launch.kernel.block is None and prod(block) > function.max_threads:
            block = max(function.max_threads // 32, 1) * 32, 1, 1  # ours to choose, so no error
        check_limits(launch, form, block, function, device.gpu.limits, device.name)
        addresses = self.patches.addresses
        for at, index, distance in form.pointers:
            argument = launch.args[index]
            place = prepared.place(argument.buffer if type(argument) is View else argument.view.buffer)
            addresses[place.base].append((number, at, place.offset + distance))
        for at, cell, convert in packed.cells:
            self._patch(cell, number, at, convert)
        if form.reports:
            report = len(prepared.reports) * REPORT
            prepared.reports.append(launch)
            for at in form.reports:
                addresses[prepared.report_base].append((number, at, report))
        self._put(launch, lane, function, form.grid, block, packed.parameters, launch.kernel.shared_bytes)

    def _patch(self, cell: int, launch: int, at: int, convert: Callable[[Any], bytes]) -> None:
        """A number that each run brings goes into these parameters."""
        self.patches.numbers.setdefault(cell, []).append((launch, at, convert))

    def _made(self, instruction: Instruction, lane: int, made: Any, places: list[Place]) -> None:
        """One of dagpu's own kernels, or a copy or fill by the driver. `places`: of the output and the source."""
        device = self._prepared.devices[self._prepared.plan.lanes[lane].device]
        match made:
            case Builtin():
                parameters = bytearray(made.arguments)
                for at, place in zip(made.pointers, places, strict=True):
                    self.patches.addresses[place.base].append((len(self.texts), at, place.offset))
                self._put(instruction, lane, device.library.builtin(made), made.grid, made.block, parameters, 0)
            case Memset(offset=offset):
                self._do(instruction, lane, DeviceFill(device.gpu, made, _beyond(places[0], offset)))
            case Memcpy(nbytes=nbytes, out_offset=there, source_offset=here):
                out, source = _beyond(places[0], there), _beyond(places[1], here)
                self._do(instruction, lane, DeviceCopy(device.gpu, nbytes, out, source))
            case pitched, by_kernel:
                self._do(instruction, lane, RowsCopy(device.gpu, pitched, by_kernel, *places))
            case _:
                raise AssertionError(made)

    def _put(
        self,
        instruction: Instruction,
        lane: int,
        function: Function,
        grid: Extents,
        block: Extents,
        parameters: bytearray,
        shared: int,
    ) -> None:
        self.add(Action(Kind.LAUNCH, lane, instruction, len(self.launches)))
        self.launches.append((KernelLaunch(function, grid, block, parameters, shared), lane))
        self.texts.append(parameters)
        self._count(lane)

    def _do(self, instruction: Instruction, lane: int, do: Do) -> None:
        self.add(Action(Kind.DO, lane, instruction, do))
        self._count(lane)

    def _count(self, lane: int) -> None:
        self.puts[lane] += 1
        if self.puts[lane] == MARK_EVERY:
            self.puts[lane] = 0
            self.add(Action(Kind.MARK, lane, None, MARK_EVERY))


def _beyond(place: Place, distance: int) -> Place:
    return Place(place.base, place.offset + distance)
