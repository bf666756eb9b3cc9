"""A plan, made ready for the driver once for all its runs: what each instruction takes, and the script of it all."""

from collections import deque
from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, assert_never, final

from dagpu.backends.cuda import transfers
from dagpu.backends.cuda.builtin import Builtin, Memcpy, Memcpy2D, Memset, copy, fill
from dagpu.backends.cuda.driver import Function
from dagpu.backends.cuda.packing import REPORT, Packed, check_limits, pack
from dagpu.backends.cuda.script import Action, Do, Kind, Place, Script
from dagpu.backends.cuda.streams import MARK_EVERY
from dagpu.backends.cuda.turns import in_turn
from dagpu.layout import contiguous
from dagpu.lowering.plan import Execute, Plan, Record, Wait
from dagpu.lowering.program import (
    HOST,
    CopyDtoD,
    CopyDtoH,
    CopyHtoD,
    Fill,
    HostCall,
    Instruction,
    Launch,
    Role,
    View,
)

if TYPE_CHECKING:
    from dagpu.backends.base import Bindings
    from dagpu.backends.cuda.device import CudaDevice
    from dagpu.backends.cuda.run import CudaRun


@final
class PreparedPlan:
    """A plan on its devices. Implements `dagpu.backends.base.Prepared`."""

    def __init__(self, plan: Plan, devices: "Sequence[CudaDevice]") -> None:
        for device in devices:
            device.refuse_if_lost()
        self.plan = plan
        self.devices = devices
        self.keys = [lane.key for lane in plan.lanes]
        self._places: list[Place | None] = [None] * len(plan.buffers)
        self._count_bases = len(devices)
        for buffer, offset in enumerate(plan.offsets):
            if offset >= 0:
                self._places[buffer] = Place(plan.buffers[buffer].device, offset)
        self.outputs: list[tuple[int, int, int, int]] = []
        """Of each result: buffer, base, number of the device, bytes."""
        self.inputs: list[tuple[int, int]] = []
        """Of each buffer that the caller brings: buffer, base."""
        for buffer, about in enumerate(plan.buffers):
            if about.role is Role.OUTPUT and about.device != HOST:
                self.outputs.append((buffer, self._own_base(buffer), about.device, about.nbytes))
            elif about.role is Role.INPUT and about.device != HOST:
                self.inputs.append((buffer, self._own_base(buffer)))
        self.arenas = [(number, nbytes) for number, nbytes in enumerate(plan.arena_bytes) if nbytes]
        """Number of the device, and bytes."""
        self.gathers: list[tuple[int, int, int]] = []
        """Of each copy out of a strided source: the base of what it is gathered in, number of the device, bytes."""
        self.reports: list[Launch] = []
        """The launches that report a violation of bounds, in the order of their reports."""
        self.report_base = self._new_base()
        self.puts = [0] * len(plan.lanes)
        """Instructions put into each lane after its last MARK."""
        self.copies_in: list[CopyHtoD] = []
        self.blocking = False
        """May playing it take long, whatever its inputs? Then threads do."""
        self._wanted: dict[object, Callable[[], Function]] = {}
        self._scripts: deque[Script] = deque()
        self._first: Script | None = None
        self._steps = [self._prepare(step.instruction) if type(step) is Execute else None for step in plan.steps]
        if not self._wanted:
            self._write()

    @property
    def before_first(self) -> Callable[[], None] | None:
        """Compiles, where a kernel has not been compiled yet."""
        return None if self._first is not None else self._compile

    def submit(self, bindings: "Bindings", spin: float = 0.0) -> "CudaRun":
        """Start a run; see `Prepared.submit`."""
        from dagpu.backends.cuda.run import start

        if self._first is None:
            self._compile()
        return start(self, bindings, spin)

    def borrow_script(self) -> Script:
        """A script for one submission. Give it back when everything has been submitted."""
        try:
            return self._scripts.popleft()
        except IndexError:
            assert self._first is not None
            return self._first.copy()

    def return_script(self, script: Script) -> None:
        """It is free for the next run."""
        self._scripts.append(script)

    def place(self, buffer: int) -> Place:
        """Where a buffer begins."""
        found = self._places[buffer]
        assert found is not None, "it is a cell, or nothing allocates it"
        return found

    # ---- what each instruction needs --------------------------------------------------------------------------

    def _prepare(self, instruction: Instruction) -> Any:
        """What is made of an instruction before its kernel is compiled; asks for the kernel."""
        device = self.devices[instruction.device]
        match instruction:
            case Launch(kernel=spec):
                packed = pack(instruction, device.gpu.limits)
                if packed is not None and device.library.found(spec, packed.form.variant) is None:
                    variant = packed.form.variant
                    self._want(device, (spec, variant), lambda: device.library.kernel(spec, variant))
                return packed
            case Fill(out=out, recipe=recipe):
                return self._builtin(device, fill(recipe, out.layout))
            case CopyDtoD():
                return self._prepare_copy(instruction, device)
            case CopyDtoH():
                return self._prepare_copy_out(instruction, device)
            case CopyHtoD():
                self.copies_in.append(instruction)
                return None
            case HostCall():
                self.blocking = True
                return None
            case _:
                assert_never(instruction)

    def _prepare_copy(self, instruction: CopyDtoD, device: "CudaDevice") -> Any:
        source, out = self.plan.buffers[instruction.source.buffer], self.plan.buffers[instruction.out.buffer]
        made = copy(instruction.out.layout, instruction.source.layout)
        if source.device != out.device and not isinstance(made, Memcpy):
            device.reach(self.devices[source.device], instruction)
        return self._builtin(device, made)

    def _prepare_copy_out(self, instruction: CopyDtoH, device: "CudaDevice") -> Any:
        """A strided source is gathered on the device first."""
        layout = instruction.source.layout
        self.blocking |= layout.nbytes > transfers.PROMPT_OUT
        if layout.contiguous:
            return None
        dense = contiguous(layout.shape, layout.dtype)
        base = self._new_base()
        self.gathers.append((base, instruction.device, layout.nbytes))
        return dense, Place(base, 0), self._builtin(device, copy(dense, layout))

    def _builtin(self, device: "CudaDevice", made: Any) -> Any:
        if isinstance(made, Builtin) and device.library.builtin_found(made) is None:
            self._want(device, made.source + made.name, lambda: device.library.builtin(made))
        return made

    def _want(self, device: "CudaDevice", key: object, make: Callable[[], Function]) -> None:
        self._wanted[device.gpu.index, key] = make

    def _compile(self) -> None:
        for make in self._wanted.values():
            make()
        if self._first is None:
            self._write()

    def _new_base(self) -> int:
        self._count_bases += 1
        return self._count_bases - 1

    def _own_base(self, buffer: int) -> int:
        base = self._new_base()
        self._places[buffer] = Place(base, 0)
        return base

    # ---- the script ---------------------------------------------------------------------------------------------

    def _write(self) -> None:
        """All actions, now that every kernel is there."""
        writer = _Writer(self)
        device_of_event = [0] * self.plan.events
        for step, made in zip(self.plan.steps, self._steps, strict=True):
            match step:
                case Execute(instruction=instruction, lane=lane):
                    writer.instruction(instruction, lane, made)
                case Record(event=event, lane=lane):
                    device_of_event[event] = self.plan.lanes[lane].device
                    writer.add(Action(Kind.RECORD, lane, None, event))
                case Wait(event=event, lane=lane):
                    writer.add(Action(Kind.WAIT, lane, None, event))
                case _:
                    pass  # where memory lies has been settled
        self.puts = writer.puts
        self._wanted.clear()
        self._steps = []
        recorders = [self.devices[number] for number in device_of_event]
        self._first = Script(writer.script(), writer.patches, [0] * self._count_bases, recorders)
        self._scripts.append(self._first)

    def bases(self) -> list[int]:
        """A list with room for every base of a run."""
        return [0] * self._count_bases


@final
class _Writer:
    """Writes a script."""

    def __init__(self, prepared: PreparedPlan) -> None:
        self._prepared = prepared
        self.actions: list[Action] = []
        self.patches: list[list[tuple[bytearray, int, int]]] = [[] for _ in prepared.bases()]
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
            case Fill(out=out):
                self._made(instruction, lane, made, [prepared.place(out.buffer)])
            case CopyDtoD(out=out, source=source):
                self._made(instruction, lane, made, [prepared.place(out.buffer), prepared.place(source.buffer)])
            case CopyHtoD(out=out):
                self._do(instruction, lane, transfers.copy_in(instruction, prepared.place(out.buffer)))
            case CopyDtoH(source=source):
                layout, place = source.layout, prepared.place(source.buffer)
                if made is not None:
                    dense, gathered, gather = made
                    self._made(instruction, lane, gather, [gathered, place])
                    layout, place = dense, gathered
                self._do(instruction, lane, transfers.copy_out(instruction, layout, place))
            case HostCall():
                self.add(Action(Kind.HOST, lane, instruction, transfers.host_call(instruction)))
            case _:
                assert_never(instruction)

    def _launch(self, launch: Launch, lane: int, packed: Packed) -> None:
        prepared = self._prepared
        device = prepared.devices[launch.device]
        form, parameters = packed.form, packed.parameters
        function = device.library.found(launch.kernel, form.variant)
        assert function is not None
        block = form.block
        if launch.kernel.block is None and prod(block) > function.max_threads:
            block = max(function.max_threads // 32, 1) * 32, 1, 1  # ours to choose, so no error
        check_limits(launch, form, block, function, device.gpu.limits, device.name)
        for at, number, distance in form.pointers:
            argument = launch.args[number]
            place = prepared.place(argument.buffer if type(argument) is View else argument.view.buffer)
            self.patches[place.base].append((parameters, at, place.offset + distance))
        if form.reports:
            report = len(prepared.reports) * REPORT
            prepared.reports.append(launch)
            for at in form.reports:
                self.patches[prepared.report_base].append((parameters, at, report))
        self._put(launch, lane, function, form.grid, block, parameters, launch.kernel.shared_bytes)

    def _made(self, instruction: Instruction, lane: int, made: Any, places: list[Place]) -> None:
        """One of dagpu's own kernels, or a copy or fill by the driver. `places`: of the output and the source."""
        prepared = self._prepared
        device = prepared.devices[prepared.plan.lanes[lane].device]
        match made:
            case Builtin():
                function = device.library.builtin(made)
                parameters = bytearray(made.arguments)
                for at, place in zip(made.pointers, places, strict=True):
                    self.patches[place.base].append((parameters, at, place.offset))
                self._put(instruction, lane, function, made.grid, made.block, parameters, 0)
            case Memset():
                self._do(instruction, lane, transfers.memset(made, places[0], device.gpu))
            case Memcpy():
                self._do(instruction, lane, transfers.memcpy(made, places[0], places[1], device.gpu))
            case Memcpy2D():
                self._do(instruction, lane, transfers.memcpy_pitched(made, places[0], places[1], device.gpu))
            case _:
                raise AssertionError(made)

    def _put(
        self,
        instruction: Instruction,
        lane: int,
        function: Function,
        grid: Any,
        block: Any,
        parameters: Any,
        shared: int,
    ) -> None:
        self.add(Action(Kind.LAUNCH, lane, instruction, function.launch, grid, block, parameters, shared))
        self._count(lane)

    def _do(self, instruction: Instruction, lane: int, do: Do) -> None:
        self.add(Action(Kind.DO, lane, instruction, do))
        self._count(lane)

    def _count(self, lane: int) -> None:
        self.puts[lane] += 1
        if self.puts[lane] == MARK_EVERY:
            self.puts[lane] = 0
            self.add(Action(Kind.MARK, lane, None, MARK_EVERY))
