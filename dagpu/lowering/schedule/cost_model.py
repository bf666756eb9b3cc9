"""The cost model: predicts the time of each instruction.

The model has bytes and bandwidths, and the kernel times that were declared or measured. It serves to choose between
schedules and to compare them. It leaves out how kernels on several streams share a device, the host's time to submit
them, and the cost of an event.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, final

from dagpu.common.errors import NotReadyError
from dagpu.common.origin import here
from dagpu.common.tracebacks import leaves_run
from dagpu.common.wrong_arguments import as_whole_number, is_real_number, wrong_argument
from dagpu.handles.device_handles import kind_of
from dagpu.lowering.plan import Execute, Plan
from dagpu.lowering.program import (
    Buffer,
    CopyDtoD,
    CopyDtoH,
    CopyHtoD,
    Fill,
    HostCall,
    Instruction,
    Launch,
    Program,
    Tiles,
    View,
)
from dagpu.lowering.schedule.engines import peer_of
from dagpu.lowering.schedule.links import Links, node_of
from dagpu.lowering.schedule.measured_costs import MEASURED, in_proportion
from dagpu.ops.kernel_spec import KernelSpec

_Learnt: TypeAlias = tuple[tuple[str, tuple[tuple[int, float, int], ...]], ...]
"""For each kernel name: bytes, mean seconds and number of measurements, sorted by bytes."""


@final
class DeviceCosts(NamedTuple):
    """What the work on a device costs."""

    launch: float
    """Seconds of overhead for each instruction."""
    byte: float
    """Seconds of each byte that is read or written on the device."""
    host_byte: float
    """Seconds of each byte that is copied from or to NumPy's memory."""
    host_call: float
    """Seconds of a `HostCall`."""


_GPU: Final = {"launch": 2.4e-6, "bandwidth": 4.29e12, "host_bandwidth": 55e9, "host_call": 107e-6}
"""The defaults: medians measured on one H200 (driver 580, CUDA 13.0, 21 November 2026)."""
_HOST: Final = {"launch": 8e-6, "bandwidth": 20e9, "host_bandwidth": 14e9, "host_call": 14e-6}
"""The defaults for devices of the host: medians measured with NumPy 2.4 on two cores of a server (Xeon, CPython 3.11,
28 November 2026). Launches of a chain of 1,000; an addition of two arrays of 16 MiB; a copy of 16 MiB to new memory; a
chain of 200 functions of the host."""

BY_BYTES: Final = "by its bytes"
"""The origin of the time of a kernel that reads and writes its bytes once."""


class _Buffered(Protocol):
    """A `Program` or a `Plan`."""

    @property
    def buffers(self) -> tuple[Buffer, ...]: ...
    @property
    def devices(self) -> tuple[str, ...]: ...


@final
@dataclass(frozen=True, slots=True)
class CostModel:
    """Predicts the seconds of an instruction: `launch`, and its bytes at a bandwidth or a kernel's own time.

    A kernel's time is the declared one: that of `declare`, else that of the kernel's own declaration. If none is
    declared but the kernel was learnt, it is the mean at the same bytes, or the mean at the nearest bytes (by ratio)
    scaled by the bytes. If it was not learnt but has run before, it is the least time of earlier runs of this process,
    scaled likewise; DAGPU_MEASURE=0 turns this off. Else it is the kernel's bytes at `bandwidth`: the counted ones, or
    each view that is read or written, whole and once. That is a guess, unless dagpu has written the kernel. A model is
    immutable and compared by value; `declare`, `count` and `learn` return another model.

    A copy between two devices takes the time of their link. The defaults are medians measured on one H200 (driver 580,
    CUDA 13.0, 21 November 2026); `Links` has those between devices. A number that is left at its default is a host's on
    devices of the host, where NumPy works: 8 us a launch, 20 GB/s, 14 GB/s for copies from and to NumPy's memory, and
    14 us for a `HostCall`.
    """

    launch: float = _GPU["launch"]
    """Seconds of overhead for each instruction on a device, measured in a chain of 1,000 tiny launches from C++."""
    bandwidth: float = _GPU["bandwidth"]
    """Bytes per second on a device, read plus written, measured for a copy within a device."""
    host_bandwidth: float = _GPU["host_bandwidth"]
    """Bytes per second between page-locked host memory and a device, in either direction."""
    host_call: float = _GPU["host_call"]
    """Seconds of a `HostCall`, for handing work to a thread and back, without the time of the function itself."""
    declared: tuple[tuple[str, float], ...] = ()
    """Kernel names with declared seconds, sorted; `declare` adds to them."""
    learnt: _Learnt = ()
    """Measured kernel times; `learn` adds to them."""
    counted: tuple[tuple[str, int], ...] = ()
    """Kernel names with the bytes of a launch, sorted; `count` adds to them."""
    links: Links = field(default_factory=Links)
    """The links between devices."""

    def __post_init__(self) -> None:
        number: Any  # whatever the user gave
        for name, number in (("bandwidth", self.bandwidth), ("host_bandwidth", self.host_bandwidth)):
            if not is_real_number(number) or not number > 0:
                wanted = "a number of bytes a second, more than 0,"
                raise wrong_argument("CostModel", here(), name, number, wanted, "Write 4.29e12, say", ValueError)
        for name, number in (("launch", self.launch), ("host_call", self.host_call), *self.declared):
            _check_seconds("CostModel", name, number)
        if not isinstance(self.links, Links):
            raise wrong_argument("CostModel", here(), "links", self.links, "a Links", "Write links=Links(), say")

    @leaves_run
    def declare(self, kernels: Mapping[str, float]) -> "CostModel":
        """Return a model with these seconds on the device for each launch of the kernels of these names.

        Raises:
            TypeError: `kernels` is not a mapping of names to numbers.
            ValueError: a time is negative or not finite.
        """
        if not isinstance(kernels, Mapping):
            cure = 'Write .declare({"gemm": 3e-5})'
            raise wrong_argument("declare", here(), "kernels", kernels, "a mapping of kernels' names to seconds", cure)
        for name, seconds in kernels.items():
            _check_seconds("declare", name, seconds)
        return replace(self, declared=tuple(sorted({**dict(self.declared), **kernels}.items())))

    @leaves_run
    def count(self, kernels: Mapping[str, int]) -> "CostModel":
        """Return a model with these bytes, read plus written, for each launch of the kernels of these names.

        It is for kernels that read or write only a part of their arguments, such as one layer of many.

        Raises:
            TypeError: `kernels` is not a mapping of names to whole numbers.
            ValueError: a number is negative.
        """
        wanted, cure = "a mapping of kernels' names to bytes", 'Write .count({"gemm": 4096})'
        if not isinstance(kernels, Mapping):
            raise wrong_argument("count", here(), "kernels", kernels, wanted, cure)
        found = dict(self.counted)
        for name, nbytes in kernels.items():
            number = as_whole_number(nbytes)
            if number is None:
                raise wrong_argument("count", here(), f"the bytes of {name}", nbytes, "a whole number", cure)
            if number < 0:
                raise wrong_argument("count", here(), f"the bytes of {name}", nbytes, "0 or more", cure, ValueError)
            found[name] = number
        return replace(self, counted=tuple(sorted(found.items())))

    @leaves_run
    def learn(self, measured: Iterable[tuple[str, int, float]]) -> "CostModel":
        """Return a model with times of earlier runs: kernel name, bytes as `nbytes` counts them, seconds on the device.

        Times of equal kernel and bytes are averaged, together with those learnt before.

        Raises:
            TypeError: `measured` is not a list of such triples.
            ValueError: a time is negative or not finite.
        """
        try:
            triples = [(name, nbytes, seconds) for name, nbytes, seconds in measured]
        except (TypeError, ValueError, NotReadyError):
            wanted, cure = "a list of (name, bytes, seconds)", "Take a trace's: .learn(trace.kernel_times())"
            raise wrong_argument("learn", here(), "measured", measured, wanted, cure) from None
        known = {name: {size: (mean, count) for size, mean, count in sizes} for name, sizes in self.learnt}
        for name, nbytes, seconds in triples:
            _check_seconds("learn", name, seconds)
            sizes = known.setdefault(name, {})
            mean, count = sizes.get(nbytes, (0.0, 0))
            sizes[nbytes] = (mean + (seconds - mean) / (count + 1), count + 1)
        found = [
            (name, tuple([(size, mean, count) for size, (mean, count) in sorted(sizes.items())]))
            for name, sizes in sorted(known.items())
        ]
        return replace(self, learnt=tuple(found))

    def nbytes(self, instruction: Instruction, program: _Buffered) -> int:
        """Return the bytes that an instruction reads and writes on a device; for a copy from or to the host, its bytes.

        `program` is the program or the plan that the instruction belongs to.
        """
        return _Clock(self, program).nbytes(instruction)

    def machine(self, device: str) -> DeviceCosts:
        """Return what the work on the device of this name costs: the numbers of this model, and on a host those of a
        host in place of each that is left at its default."""
        return _device_costs(device, self.launch, self.bandwidth, self.host_bandwidth, self.host_call)

    def basis(self, kernel: KernelSpec, device: str = "") -> str:
        """Return the origin of a kernel's time on the device of this name, in words."""
        if kernel.label in dict(self.declared):
            return "declared to the policy's CostModel"
        if kernel.seconds is not None:
            return "declared with the op, cost="
        if dict(self.learnt).get(kernel.label):
            return "learnt by the policy's CostModel"
        if MEASURED.sizes(device, kernel):
            return "measured in earlier runs"
        return BY_BYTES if _is_plain(kernel) else f"unknown, so {BY_BYTES}"

    def seconds(self, instruction: Instruction, program: _Buffered) -> float:
        """Return the seconds of an instruction; `program` is the program or the plan that it belongs to."""
        return _Clock(self, program).seconds(instruction)

    def estimates(self, program: Program) -> tuple[list[float], list[bool]]:
        """Return the seconds of each instruction of a program, and whether nothing but its bytes is known: so it is for
        kernels that dagpu has not written, without a declared, learnt or measured time, and for functions of the
        host."""
        return _Clock(self, program).estimates(program.instructions)

    def guesses(self, plan: Plan) -> bool:
        """Return whether a plan has a kernel of which nothing but the bytes is known."""
        clock = _Clock(self, plan)
        return any(type(each) is Execute and clock.is_unknown(each.instruction) for each in plan.steps)

    def times(self, program: Program) -> list[float]:
        """Return the seconds of each instruction of a program."""
        return self.estimates(program)[0]


@lru_cache(256)
def _device_costs(device: str, *numbers: float) -> DeviceCosts:
    """Return what the work on a device costs, from the numbers of a model."""
    if kind_of(device) == "host":
        numbers = tuple(
            [own if own != gpu else _HOST[name] for own, (name, gpu) in zip(numbers, _GPU.items(), strict=True)]
        )
    launch, bandwidth, host_bandwidth, host_call = numbers
    return DeviceCosts(launch, 1 / bandwidth, 1 / host_bandwidth, host_call)


def _is_plain(kernel: KernelSpec) -> bool:
    """Return whether a kernel reads and writes its bytes once, and does little with them, as those do that dagpu has
    written. What a library does is not known."""
    return kernel.host.generated is not None and kernel.library is None


def _check_seconds(call: str, name: object, seconds: object) -> None:
    if not is_real_number(seconds) or not 0 <= seconds < math.inf:
        cure = "Write 3e-5, say"
        wanted = "a number of seconds, 0 or more and finite,"
        raise wrong_argument(call, here(), f"the time of {name}", seconds, wanted, cure, ValueError)


@final
class _Clock:
    """A cost model with its tables as dicts, for the instructions of one program."""

    __slots__ = (
        "_buffers", "_counted", "_declared", "_devices", "_known", "_learnt", "_machines", "_model", "_sizes"
    )  # fmt: skip

    def __init__(self, model: CostModel, program: _Buffered) -> None:
        self._model = model
        self._buffers = program.buffers
        self._devices = program.devices
        self._machines = list(map(model.machine, program.devices))
        self._declared = dict(model.declared)
        self._learnt = dict(model.learnt)
        self._counted = dict(model.counted)
        self._known: dict[tuple[int, int], _Known] = {}
        """What is known of each kernel on each device, by identity and number."""
        self._sizes: dict[int, int] = {}
        """The bytes of each layout, by its identity."""

    def nbytes(self, instruction: Instruction) -> int:
        if isinstance(instruction, Launch) and self._counted:
            counted = self._counted.get(instruction.kernel.label)
            if counted is not None:
                return counted
        return self._bytes_of_views(instruction)

    def _bytes_of_views(self, instruction: Instruction) -> int:
        if type(instruction) is Launch:
            if not instruction.args:  # a program that is not from a trace may leave them out
                return sum([self._buffers[buffer].nbytes for buffer in (*instruction.reads, *instruction.writes)])
            total, sizes = 0, self._sizes
            for arg in instruction.args:
                what = type(arg)
                if what is Tiles:
                    layout = arg.view.layout
                elif what is View:
                    layout = arg.layout
                else:
                    continue
                nbytes = sizes.get(id(layout))
                if nbytes is None:
                    nbytes = sizes[id(layout)] = prod(layout.shape) * layout.dtype.itemsize
                total += nbytes
            return total
        total = 0
        if isinstance(instruction, (CopyDtoH, CopyDtoD)):
            layout = instruction.source.layout
            total += prod(layout.shape) * layout.dtype.itemsize
        if isinstance(instruction, (Fill, CopyHtoD, CopyDtoD)):
            layout = instruction.out.layout
            total += prod(layout.shape) * layout.dtype.itemsize
        return total

    def estimates(self, instructions: Sequence[Instruction]) -> tuple[list[float], list[bool]]:
        """Return the seconds of each instruction, and whether nothing but its bytes is known."""
        seconds: list[float] = []
        unknown: list[bool] = []
        known_of, machines = self._known, self._machines
        nbytes_of = self.nbytes if self._counted else self._bytes_of_views
        for instruction in instructions:
            if type(instruction) is not Launch:
                seconds.append(self.seconds(instruction))
                unknown.append(type(instruction) is HostCall)
                continue
            kernel = instruction.kernel
            known = known_of.get((id(kernel), instruction.device)) or self._known_of(instruction)
            unknown.append(known.is_guess)
            if known.by_bytes:  # most are
                machine = machines[instruction.device]
                seconds.append(machine.launch + nbytes_of(instruction) * machine.byte)
            else:
                seconds.append(self.seconds(instruction))
        return seconds, unknown

    def seconds(self, instruction: Instruction) -> float:
        kind = type(instruction)
        machine = self._machines[instruction.device]
        if kind is HostCall:
            return machine.host_call
        nbytes = (self.nbytes if self._counted else self._bytes_of_views)(instruction)
        if kind is CopyHtoD or kind is CopyDtoH:
            return machine.launch + nbytes * machine.host_byte
        if isinstance(instruction, Launch):
            known = self._known_of(instruction)
            if known.seconds is not None:
                return machine.launch + known.seconds
            if known.learnt:
                return machine.launch + in_proportion(known.learnt, nbytes)
            if known.measured:
                return machine.launch + in_proportion(known.measured, self._bytes_of_views(instruction))
            if instruction.kernel.peers:
                return machine.launch + nbytes * machine.byte + self._from_peers(instruction)
        elif isinstance(instruction, CopyDtoD):
            peer = peer_of(instruction, self._buffers)
            if peer >= 0:
                here = self._buffers[instruction.out.buffer].device
                near = node_of(self._devices[peer]) == node_of(self._devices[here])
                return (self._model.links.peer if near else self._model.links.node).seconds(
                    instruction.source.layout.nbytes
                )
        return machine.launch + nbytes * machine.byte

    def is_unknown(self, instruction: Instruction) -> bool:
        """Return whether nothing but the bytes of an instruction is known."""
        if type(instruction) is Launch:
            return self._known_of(instruction).is_guess
        return type(instruction) is HostCall

    def _from_peers(self, launch: Launch) -> float:
        """Return the seconds in which a launch reads its inputs on other devices. They come over one port."""
        inputs = [arg for arg in launch.args if type(arg) is View and self._buffers[arg.buffer].device != launch.device]
        return sum([arg.layout.nbytes for arg in inputs]) / self._model.links.peer.bandwidth

    def _known_of(self, launch: Launch) -> "_Known":
        """Return what is known of the kernel of a launch on its device."""
        kernel = launch.kernel
        key = id(kernel), launch.device
        found = self._known.get(key)
        if found is None:
            name = kernel.label
            seconds = self._declared.get(name, kernel.seconds)
            learnt = [(size, mean) for size, mean, _ in self._learnt[name]] if name in self._learnt else []
            measured = MEASURED.sizes(self._devices[launch.device], kernel)
            by_bytes = seconds is None and not learnt and not measured
            guess = by_bytes and not _is_plain(kernel)
            found = self._known[key] = _Known(seconds, learnt, measured, by_bytes and not kernel.peers, guess)
        return found


@final
class _Known(NamedTuple):
    """What is known of a kernel."""

    seconds: float | None
    """The declared time."""
    learnt: Sequence[tuple[int, float]]
    """Bytes and seconds that the model has learnt."""
    measured: Sequence[tuple[int, float]]
    """Bytes and seconds of earlier runs."""
    by_bytes: bool
    """True if its time is that of its bytes, all on its device."""
    is_guess: bool
    """True if its bytes are all that is known, and dagpu has not written it."""
