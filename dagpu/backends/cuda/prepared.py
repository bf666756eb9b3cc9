"""A plan, made ready for the driver once for all its runs: what each instruction takes, and the script of it all."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, assert_never, final

from dagpu.backends.cuda.begin import start
from dagpu.backends.cuda.builtin import Builtin, Memcpy, Memcpy2D
from dagpu.backends.cuda.driver import Function
from dagpu.backends.cuda.frozen_plan import FrozenPlan, LaunchFrozen, freeze
from dagpu.backends.cuda.graphs import Graphs
from dagpu.backends.cuda.launch_factories import LaunchFactories
from dagpu.backends.cuda.parameters import Place
from dagpu.backends.cuda.script import Script
from dagpu.backends.cuda.transfers import PROMPT_IN, CopyIn, CopyOut
from dagpu.backends.cuda.writer import NOTHING, write
from dagpu.layout import contiguous
from dagpu.lowering.plan import Execute, Plan
from dagpu.lowering.program import (
    HOST,
    CopyDtoD,
    CopyDtoH,
    CopyHtoD,
    Fill,
    GraphLaunch,
    HostCall,
    Instruction,
    Launch,
    Role,
)

if TYPE_CHECKING:
    from dagpu.backends.base import Bindings
    from dagpu.backends.cuda.device import CudaDevice
    from dagpu.backends.cuda.run import CudaRun


@final
class PreparedPlan:
    """A plan on its devices. Implements `dagpu.backends.base.Prepared`."""

    def __init__(self, plan: Plan, devices: "Sequence[CudaDevice]", factories: LaunchFactories) -> None:
        for device in devices:
            device.refuse_if_lost()
        self.plan = plan
        self.devices = devices
        self._factories = factories
        self.keys = [lane.key for lane in plan.lanes]
        self.bases = len(devices)
        """How many there are."""
        self._places: list[Place | None] = [None] * len(plan.buffers)
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
        self.copies_in: list[CopyIn] = []
        self.copies_out: list[CopyOut] = []
        self.blocking = False
        """May playing it take long, whatever its inputs? Then threads do."""
        self.graphs = Graphs(plan, devices)
        self._wanted: dict[object, Callable[[], Function]] = {}
        self._scripts: deque[Script] = deque()
        self._first: Script | None = None
        self.written = NOTHING
        """What came of the steps, once every kernel was there."""
        self._steps = [self._prepare(step.instruction) if type(step) is Execute else None for step in plan.steps]
        if not self._wanted:
            self._write()

    @property
    def before_first(self) -> Callable[[], None] | None:
        """Compiles, where a kernel has not been compiled yet."""
        return None if self._first is not None else self._compile

    @property
    def before_graph(self) -> Callable[[], None] | None:
        """Instantiates the first graph, where that takes long."""
        return self._prepare_graph if self.graphs.slow else None

    def submit(self, bindings: "Bindings", spin: float = 0.0, *, graph: bool = False) -> "CudaRun":
        """Start a run; see `Prepared.submit`."""
        if self._first is None:
            self._compile()
        return start(self, bindings, spin, graph)

    def freeze(self, bindings: "Bindings") -> FrozenPlan:
        """A graph with this memory for good; see `Prepared.freeze`."""
        if self._first is None:
            self._compile()
        return freeze(self, bindings.memory)

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
                packed = self._factories.pack(instruction, device.gpu.limits)
                if packed is not None and device.library.found(spec, packed.form.variant) is None:
                    variant = packed.form.variant
                    self._want(device, (spec, variant), lambda: device.library.kernel(spec, variant))
                return packed
            case Fill(out=out, recipe=recipe):
                return self._builtin(device, self._factories.fill(recipe, out.layout))
            case CopyDtoD():
                return self._prepare_copy(instruction, device)
            case CopyDtoH():
                return self._prepare_copy_out(instruction, device)
            case CopyHtoD(out=out):
                place = self.place(out.buffer)
                copied = CopyIn(instruction, Place(place.base, place.offset + out.layout.offset), self._new_base())
                self.copies_in.append(copied)
                return copied
            case HostCall():
                self.blocking = True
                return None
            case GraphLaunch(graph=frozen):
                assert isinstance(frozen, FrozenPlan)
                assert frozen.device is device
                self.blocking |= frozen.staged_bytes > PROMPT_IN
                return LaunchFrozen(instruction, frozen)
            case _:
                assert_never(instruction)

    def _prepare_copy(self, instruction: CopyDtoD, device: "CudaDevice") -> Any:
        source, out = self.plan.buffers[instruction.source.buffer], self.plan.buffers[instruction.out.buffer]
        made = self._factories.copy(instruction.out.layout, instruction.source.layout)
        if source.device != out.device and not isinstance(made, Memcpy):
            device.reach(self.devices[source.device], instruction)
        if isinstance(made, Memcpy2D):
            return made, self._factories.copy(instruction.out.layout, instruction.source.layout, rows=False)
        return self._builtin(device, made)

    def _prepare_copy_out(self, instruction: CopyDtoH, device: "CudaDevice") -> Any:
        """A strided source is gathered on the device first."""
        layout, place = instruction.source.layout, self.place(instruction.source.buffer)
        made: Any = None
        if layout.contiguous:
            place = Place(place.base, place.offset + layout.offset)
        else:
            dense = contiguous(layout.shape, layout.dtype)
            made = self._factories.copy(dense, layout)
            if isinstance(made, Memcpy2D):
                made = made, self._factories.copy(dense, layout, rows=False)
            layout, place = dense, Place(self._new_base(), 0)
            self.gathers.append((place.base, instruction.device, layout.nbytes))
        copied = CopyOut(instruction, layout, place, self._new_base())
        self.copies_out.append(copied)
        return self._builtin(device, made), copied

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

    def _prepare_graph(self) -> None:
        if self._first is None:
            self._compile()
        self.graphs.prepare_first(self)

    def _write(self) -> None:
        """All actions, now that every kernel is there."""
        self.written = written = write(self, self._steps)
        self._wanted.clear()
        self._steps = []
        self._first = Script(written, written.parameters, self.devices)
        self._scripts.append(self._first)

    def _new_base(self) -> int:
        self.bases += 1
        return self.bases - 1

    def _own_base(self, buffer: int) -> int:
        base = self._new_base()
        self._places[buffer] = Place(base, 0)
        return base
