"""Instruction selection: the kernel launch, driver call or host function that each instruction of a plan becomes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeAlias, assert_never, final

from dagpu.backends.cuda.commands.buffers import CompiledPlan
from dagpu.backends.cuda.commands.command_list import BaseOffset, Kind
from dagpu.backends.cuda.commands.encoder import (
    Selected,
    SelectedBuiltin,
    SelectedCommand,
    SelectedConstant,
    SelectedKernel,
)
from dagpu.backends.cuda.commands.library_calls import LibraryCall
from dagpu.backends.cuda.commands.transfers import PROMPT_IN, CopyIn, CopyOut, host_call
from dagpu.backends.cuda.graphs.instances import CapturedGraph, LaunchGraph
from dagpu.backends.cuda.kernels import fill_and_copy
from dagpu.backends.cuda.kernels.fill_and_copy import LARGE_COPY, MOST_ADDRESSES, BuiltinWork, Memcpy, Memcpy2D, Memset
from dagpu.backends.cuda.resources.cuda_device import CudaDevice
from dagpu.backends.kernel_text import launch_params
from dagpu.backends.kernel_text.launch_params import PackedLaunch
from dagpu.backends.kernel_text.loaded_function import Function, Limits
from dagpu.common.layout import Layout, contiguous_layout
from dagpu.handles.device_handles import LibraryBody, UserBody
from dagpu.ops.initializers import Recipe
from dagpu.plans.plan import Execute, Plan
from dagpu.plans.program import (
    HOST,
    CopyDtoD,
    CopyDtoH,
    CopyHtoD,
    Fill,
    GraphLaunch,
    HostCall,
    If,
    Instruction,
    Launch,
    Role,
)

# ---- the functions that choose a kernel launch or a driver call for an instruction, bundled as one argument of the
# backend.


class CopyFactory(Protocol):
    """The type of `fill_and_copy.copy`."""

    def __call__(self, out: Layout, source: Layout, *, by_kernel: bool = False) -> BuiltinWork | Memcpy | Memcpy2D: ...


@final
@dataclass(frozen=True, slots=True)
class LaunchFactories:
    """One function for each kind of instruction. The defaults launch real kernels; a simulated GPU has its own."""

    pack: Callable[[Launch, Limits], PackedLaunch | None] = launch_params.pack
    """Packs the parameters of a user's kernel; returns None if its grid is empty."""
    fill: Callable[[Recipe, Layout], BuiltinWork | Memset] = fill_and_copy.fill
    """Chooses a kernel or a memset that initializes an array."""
    copy: CopyFactory = fill_and_copy.copy
    """Chooses a kernel or a memcpy that copies one array to another."""
    decide: Callable[[Sequence[int]], BuiltinWork] = fill_and_copy.decide
    """Returns the kernel that decides whether the body of a conditional node runs."""
    addresses: Callable[[int], BuiltinWork] = fill_and_copy.addresses
    """Returns the kernel that writes so many addresses of tensors."""


LAUNCH_FACTORIES: Final = LaunchFactories()
"""The factories for real GPUs."""


Wanted: TypeAlias = dict[object, Callable[[], Function]]
"""Kernels that are not compiled yet, each with the function that compiles it."""


@final
class Selection(NamedTuple):
    """The result of `select`."""

    compiled: CompiledPlan
    steps: Sequence[Sequence[Selected]]
    """The launches and commands of each step of the plan; empty for a step that executes nothing."""
    wanted: Wanted


def select(plan: Plan, devices: Sequence[CudaDevice], factories: LaunchFactories) -> Selection:
    """Select launches and commands for every instruction of a plan, and assign a base to each of the plan's addresses.

    Raises:
        KernelArgumentError: a kernel takes plain pointers and is given a strided view.
        DeviceError: a device cannot read the memory of another device.
    """
    selector = _Selector(plan, devices, factories)
    steps = [selector.instruction(step.instruction) if type(step) is Execute else () for step in plan.steps]
    return Selection(selector.compiled(), steps, selector.wanted)


@final
class _Selector:
    """Selects launches and commands for the instructions of one plan, in the plan's order."""

    def __init__(self, plan: Plan, devices: Sequence[CudaDevice], factories: LaunchFactories) -> None:
        self._plan = plan
        self._devices = devices
        self._factories = factories
        self.wanted: Wanted = {}
        self._bases = len(devices)
        self._places: list[BaseOffset | None] = [None] * len(plan.buffers)
        self._outputs: list[tuple[int, int, int, int]] = []
        self._inputs: list[tuple[int, int]] = []
        self._gathers: list[tuple[int, int, int]] = []
        self._reports: list[Launch] = []
        self._copies_in: list[CopyIn] = []
        self._bytes_in = 0
        self._copies_out: list[CopyOut] = []
        self._blocking = False
        self._calls_user = False
        self._decides = False
        for buffer, offset in enumerate(plan.offsets):
            if offset >= 0:
                self._places[buffer] = BaseOffset(plan.buffers[buffer].device, offset)
        for buffer, about in enumerate(plan.buffers):
            if about.role is not Role.TEMPORARY and about.device != HOST:
                self._places[buffer] = place = BaseOffset(self._new_base(), 0)
                if about.role is Role.OUTPUT:
                    self._outputs.append((buffer, place.base, about.device, about.nbytes))
                else:
                    self._inputs.append((buffer, place.base))
        self._report_base = self._new_base()

    def compiled(self) -> CompiledPlan:
        """Return the compiled plan. Call `instruction` for every instruction first."""
        plan = self._plan
        arenas = [(number, nbytes) for number, nbytes in enumerate(plan.arena_bytes) if nbytes]
        return CompiledPlan(
            plan=plan,
            devices=self._devices,
            keys=[lane.key for lane in plan.lanes],
            bases=self._bases,
            places=self._places,
            outputs=self._outputs,
            inputs=self._inputs,
            arenas=arenas,
            gathers=self._gathers,
            report_base=self._report_base,
            reports=self._reports,
            copies_in=self._copies_in,
            bytes_in=self._bytes_in,
            copies_out=self._copies_out,
            allocates=bool(arenas or self._outputs or self._gathers or self._reports),
            copies_host=bool(self._copies_in or self._copies_out),
            blocking=self._blocking,
            calls_user=self._calls_user,
            decides=self._decides,
        )

    def instruction(self, instruction: Instruction) -> Sequence[Selected]:
        """Return the launches and commands of one instruction. Add its kernel to `wanted` if that is not compiled
        yet."""
        device = self._devices[instruction.device]
        match instruction:
            case Launch():
                return self._launch(instruction, device)
            case Fill():
                return (self._fill(instruction, device),)
            case CopyDtoD():
                return (self._copy_within(instruction, device),)
            case CopyDtoH():
                return self._copy_out(instruction, device)
            case CopyHtoD(out=out):
                copied = CopyIn(instruction, self._place(out.buffer, out.layout.offset), self._new_base())
                self._copies_in.append(copied)
                self._bytes_in += copied.nbytes
                return (SelectedCommand(instruction, copied),)
            case HostCall():
                self._blocking = True
                return (SelectedCommand(instruction, host_call(instruction), Kind.HOST),)
            case GraphLaunch(graph=frozen):
                assert isinstance(frozen, CapturedGraph)
                assert device in frozen.devices
                self._blocking |= frozen.staged_bytes > PROMPT_IN
                return (SelectedCommand(instruction, LaunchGraph(instruction, frozen)),)
            case If(flags=flags):
                self._decides = True
                made = self._factories.decide([view.layout.size for view in flags])
                self._want_builtin(device, made)
                places = [self._place(view.buffer, view.layout.offset) for view in flags]
                return (SelectedBuiltin(instruction, made, places, None),)
            case _:
                assert_never(instruction)

    def _launch(self, launch: Launch, device: CudaDevice) -> Sequence[Selected]:
        if launch.kernel.library is not None:
            return self._library_call(launch, launch.kernel.library, device)
        packed = self._factories.pack(launch, device.gpu.limits)
        if packed is None:
            return ()
        spec, variant, library = launch.kernel, packed.form.variant, device.library
        if spec.peers:
            self._reach_peers(launch, device)
        if library.find_kernel(spec, variant) is None:
            self._want(device, (spec, variant), lambda: library.load_kernel(spec, variant))
        report = len(self._reports)
        if packed.form.reports:
            self._reports.append(launch)
        selected = SelectedKernel(launch, packed, report)
        if not (spec.lists or spec.constants):
            return (selected,)
        return (*self._lists(launch, device), *self._constants(launch, variant, device), selected)

    def _lists(self, launch: Launch, device: CudaDevice) -> Iterator[Selected]:
        """Yield the launches that write the addresses of lists of tensors to the scratch memory of a launch."""
        for start, count in launch.kernel.lists:
            assert launch.scratch is not None, "the addresses are in memory of the launch"
            for first in range(start, start + count, MOST_ADDRESSES):
                part = range(first, min(first + MOST_ADDRESSES, start + count))
                made = self._factories.addresses(len(part))
                self._want_builtin(device, made)
                views = [launch.view(number) for number in part]
                places = [self._place(view.buffer, view.layout.offset) for view in views]
                out = self._place(launch.scratch.buffer, launch.scratch.layout.offset + 8 * first)
                yield SelectedBuiltin(launch, made, [out, *places], None)

    def _constants(self, launch: Launch, variant: int, device: CudaDevice) -> Iterator[Selected]:
        """Yield the copies that set the `__constant__` variables of a launch."""
        for number, (index, _) in enumerate(launch.kernel.constants):
            view = launch.view(index)
            dense = contiguous_layout(view.layout.shape, view.layout.dtype)
            copy = self._factories.copy(dense, view.layout, by_kernel=not view.layout.contiguous)
            assert not isinstance(copy, Memcpy2D), "a kernel copies what is strided"
            if isinstance(copy, BuiltinWork):
                self._want_builtin(device, copy)
            source, nowhere = self._place(view.buffer), self._new_base()
            yield SelectedConstant(launch, variant, number, copy, dense.nbytes, source, nowhere)

    def _reach_peers(self, launch: Launch, device: CudaDevice) -> None:
        """Enable the device to read the memory of the other devices that a launch reads."""
        for buffer in launch.reads:
            there = self._plan.buffers[buffer].device
            if there != launch.device:
                reached = device.reaches(self._devices[there].gpu.index)
                assert reached, "what the device does not reach is copied to it"

    def _library_call(self, launch: Launch, body: LibraryBody, device: CudaDevice) -> Sequence[Selected]:
        if 0 in launch.grid:
            return ()
        numbers = [a for a, p in zip(launch.args, launch.kernel.params, strict=True) if not p.form.is_tensor]
        views = [view for _, view in launch.views]
        layouts = [view.layout for view in views]
        with device.gpu.current():
            enqueue = body.bind(layouts, device.gpu.index)
        operands = [self._place(view.buffer, view.layout.offset) for view in views]
        scratch = None if launch.scratch is None else self._place(launch.scratch.buffer)
        used = layouts if launch.scratch is None else [*layouts, launch.scratch.layout]
        nbytes = max([layout.nbytes for layout in used])
        self._calls_user |= isinstance(body, UserBody)
        self._blocking |= body.waits
        call = LibraryCall(launch, enqueue, operands, scratch, nbytes, tuple(numbers))
        return (SelectedCommand(launch, call),)

    def _fill(self, instruction: Fill, device: CudaDevice) -> Selected:
        out, seed = instruction.out, instruction.seed
        made, place = self._factories.fill(instruction.recipe, out.layout), self._place(out.buffer)
        if isinstance(made, Memset):
            return SelectedCommand(instruction, made.placed(place))
        self._want_builtin(device, made)
        return SelectedBuiltin(instruction, made, (place,), None if seed is None else seed.buffer)

    def _copy_within(self, instruction: CopyDtoD, device: CudaDevice) -> Selected:
        out, source = instruction.out, instruction.source
        copy = self._factories.copy(out.layout, source.layout)
        here, there = self._plan.buffers[out.buffer].device, self._plan.buffers[source.buffer].device
        if there != here:
            if isinstance(copy, Memcpy):  # without peer access the driver copies through the host
                device.reaches(self._devices[there].gpu.index)
                return SelectedCommand(instruction, copy.placed(self._place(out.buffer), self._place(source.buffer)))
            device.reach(self._devices[there], instruction)
        places = self._place(out.buffer), self._place(source.buffer)
        return self._copied(instruction, device, copy, (out.layout, source.layout), places)

    def _copy_out(self, instruction: CopyDtoH, device: CudaDevice) -> Sequence[Selected]:
        """Select a copy to the host. A strided source is gathered on the device first."""
        layout, buffer = instruction.source.layout, instruction.source.buffer
        gathered: tuple[Selected, ...] = ()
        if layout.contiguous:
            place = self._place(buffer, layout.offset)
        else:
            dense, source = contiguous_layout(layout.shape, layout.dtype), self._place(buffer)
            copy, place = self._factories.copy(dense, layout), BaseOffset(self._new_base(), 0)
            gathered = (self._copied(instruction, device, copy, (dense, layout), (place, source)),)
            layout = dense
            self._gathers.append((place.base, instruction.device, layout.nbytes))
        copied = CopyOut(instruction, layout, place, self._new_base())
        self._copies_out.append(copied)
        return (*gathered, SelectedCommand(instruction, copied))

    def _copied(
        self,
        instruction: Instruction,
        device: CudaDevice,
        copy: BuiltinWork | Memcpy | Memcpy2D,
        layouts: tuple[Layout, Layout],
        places: tuple[BaseOffset, BaseOffset],
    ) -> Selected:
        """Select a copy within a device. `layouts` and `places` are those of the output and of the source."""
        match copy:
            case Memcpy() if copy.nbytes <= LARGE_COPY:
                return SelectedCommand(instruction, copy.placed(*places))
            case Memcpy() | Memcpy2D():
                by_kernel = self._factories.copy(*layouts, by_kernel=True)
                assert isinstance(by_kernel, BuiltinWork)
                return SelectedCommand(instruction, copy.placed(*places, by_kernel))
            case BuiltinWork():
                self._want_builtin(device, copy)
                return SelectedBuiltin(instruction, copy, places, None)
            case _:
                assert_never(copy)

    def _want_builtin(self, device: CudaDevice, made: BuiltinWork) -> None:
        library = device.library
        if library.find_builtin(made) is None:
            self._want(device, made.source + made.name, lambda: library.load_builtin(made))

    def _want(self, device: CudaDevice, key: object, make: Callable[[], Function]) -> None:
        self.wanted[device.gpu.index, key] = make

    def _place(self, buffer: int, distance: int = 0) -> BaseOffset:
        """Return the place in a buffer at this distance from its start."""
        found = self._places[buffer]
        assert found is not None, "it is a cell, or nothing allocates it"
        return BaseOffset(found.base, found.offset + distance) if distance else found

    def _new_base(self) -> int:
        self._bases += 1
        return self._bases - 1
