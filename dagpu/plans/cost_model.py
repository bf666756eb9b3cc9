"""The cost model: the engines of a device, and the time of each instruction on them.

The model has bytes and bandwidths, and the kernel times that were declared or measured. It serves to choose between
schedules and to compare them. It leaves out how kernels on several streams share a device, the host's time to submit
them, and the cost of an event.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, final

from dagpu.common.critical import BOOKKEEPING
from dagpu.common.env_vars import MEASURE
from dagpu.common.errors import NotReadyError
from dagpu.common.places import here, leaves_run, place_of
from dagpu.common.wrong_arguments import as_whole_number, is_real_number, wrong_argument
from dagpu.handles.device_handles import Effort, kind_of
from dagpu.ops.kernel_spec import KernelSpec
from dagpu.plans.mesh import Links, node_of
from dagpu.plans.plan import Execute, Plan
from dagpu.plans.program import (
    Buffer,
    CopyDtoD,
    CopyDtoH,
    CopyHtoD,
    Fill,
    GraphLaunch,
    HostCall,
    Instruction,
    Launch,
    Program,
    Tiles,
    View,
)

# ---- measured costs


_KERNELS: Final = 4096
"""The most kernels in the table. The one that came first is dropped first."""
_SIZES: Final = 64
"""The most sizes of a kernel in the table."""
NEAR: Final = 4
"""The most that a size may differ from a measured one, as a factor, for its time to be known. The time of a size that
is further off is a guess: that size is measured too."""
_FIXED: Final = 4
"""The overheads of a launch, in number, that a time is taken to have in it whatever the size. A function of NumPy on a
few numbers, or a kernel between two events, takes some."""

_Key: TypeAlias = tuple[str, str, object]


@final
class MeasuredCosts:
    """Seconds of launches, without the overhead of a launch. Several threads may use it at once."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[_Key, dict[int, float]] = {}
        """For each kernel and kind of device the least seconds, by bytes. The least is closest to what the kernel takes
        by itself: a first call and a busy machine only add to it."""

    def add(self, device: str, kernel: KernelSpec, nbytes: int, seconds: float) -> None:
        """Note that a launch on the device of this name took so many seconds, and moved so many bytes."""
        if not MEASURE.get():
            return
        key = _key(device, kernel)
        with BOOKKEEPING:
            sizes = self._found.setdefault(key, {})
            sizes[nbytes] = min(seconds, sizes.get(nbytes, seconds))
            if len(sizes) > _SIZES:
                del sizes[next(iter(sizes))]
            if len(self._found) > _KERNELS:
                del self._found[next(iter(self._found))]

    def sizes(self, device: str, kernel: KernelSpec) -> list[tuple[int, float]]:
        """Return the bytes and seconds of launches on devices of the kind of this one, sorted by bytes; none if none
        were measured."""
        if not self._found or not MEASURE.get():
            return []
        with BOOKKEEPING:
            return sorted(self._found.get(_key(device, kernel), {}).items())

    def clear(self) -> None:
        """Forget all costs."""
        with BOOKKEEPING:
            self._found.clear()


def _key(device: str, kernel: KernelSpec) -> _Key:
    """Return the key of a kernel: its declaration, which changed copies share, and the kind of device. It keeps nothing
    of the user's alive."""
    return kind_of(device), kernel.label, place_of(kernel.origin) or kernel.source_name


def is_near(sizes: Sequence[tuple[int, float]], nbytes: int) -> bool:
    """Return whether one of some sizes, which are sorted, differs from `nbytes` by a factor of `NEAR` at most."""
    place = bisect_left(sizes, (-(-nbytes // NEAR),))
    return place < len(sizes) and sizes[place][0] <= max(nbytes, 1) * NEAR


def at_size(sizes: Sequence[tuple[int, float]], nbytes: int, launch: float, byte: float) -> float:
    """Return the seconds of `nbytes`, by the bytes and seconds of some launches, sorted by bytes.

    Between two sizes, times are on a straight line. Above the largest they go on along a line: that through it and the
    largest of at most half its bytes, or else that of one size. Below the smallest they are on the line of one size: of
    its time the overheads of `_FIXED` launches, of `launch` seconds each, are the same for all bytes, and the rest is
    in proportion. A line rises by `byte` seconds for a byte at least, the device's own pace, unless the size itself was
    faster.
    """
    place = bisect_left(sizes, (nbytes,))
    if 0 < place < len(sizes):
        (size, seconds), (larger, longer) = sizes[place - 1 : place + 1]
        return seconds + (longer - seconds) * (nbytes - size) / (larger - size)
    size, seconds = sizes[min(place, len(sizes) - 1)]
    half = bisect_left(sizes, (size // 2 + 1,)) if place and size else 0
    if half:
        smaller, shorter = sizes[half - 1]
        rate = (seconds - shorter) / (size - smaller)
    else:
        rate = (seconds - _FIXED * launch) / max(size, 1)
    return seconds + (nbytes - size) * max(rate, min(byte, seconds / max(size, 1)))


MEASURED: Final = MeasuredCosts()
"""The costs of this process."""


# ---- the model


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

_RATES: Final[Mapping[str, tuple[float, float]]] = {
    "f64": (54e12, 30e9), "f32": (54e12, 50e9), "tf32": (400e12, 50e9), "f16": (790e12, 45e9),
    "transform": (4e12, 1.5e9),
}  # fmt: skip
"""Operations a second of each kind of library call, on a GPU and on a host. Those of products on a GPU are four fifths
of what NVIDIA says of an H200 (its data sheet, without sparsity); a transform is bound by its bytes there. Those of the
host are medians measured with NumPy 2.4 on two cores of a server (Xeon, 29 November 2026): products of 256, 1024 and
2048 rows, transforms of 2**10, 2**16 and 2**20 elements; f16 is converted to f32 and back."""

BY_BYTES: Final = "by its bytes"
"""The origin of the time of a kernel that reads and writes its bytes once."""
_BY_OPERATIONS: Final = "by the operations of their library"
"""The origin of the time of a call of a library that says what it does."""
_DECLARED: Final = "declared to the policy's CostModel"
_DECLARED_WITH_OP: Final = "declared with the op, cost="
_LEARNT: Final = "learnt by the policy's CostModel"
_MEASURED: Final = "measured in earlier runs"


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
    declared but the kernel was learnt, it is the mean at the same bytes. At other bytes, it is on a line between the
    means of the next sizes; beyond these, on a line that starts at the overhead of four launches. If the kernel was not
    learnt but has run before, it is the least time of earlier runs of this process, on such lines; DAGPU_MEASURE=0
    turns this off. Else a product or a transform takes the time of its operations or that of its bytes, whichever is
    longer. Any other kernel takes its bytes at `bandwidth`: the counted ones, or each view that is read or written,
    whole and once. A time by bytes, or by measured sizes that are all more than four times larger or smaller, is a
    guess, unless dagpu has written the kernel. A model is immutable and compared by value; `declare`, `count` and
    `learn` return another model.

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
    """Bytes per second between page-locked host memory and a device, in either direction. An array in ordinary memory
    is staged first, at a quarter of this speed on one stream of an H200. A plan is made for either, with the shorter
    time: if uploads take longer, kernels overlap less, and none waits for a kernel that it could run beside."""
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

    def size(self, launch: Launch, program: _Buffered) -> int:
        """Return that by which the measured times of a kernel are known: its bytes; for a call of a library that says
        what it does, its operations. Two products of as many bytes may take very different times."""
        return _Clock(self, program).size(launch)

    def machine(self, device: str) -> DeviceCosts:
        """Return what the work on the device of this name costs: the numbers of this model, and on a host those of a
        host in place of each that is left at its default."""
        return _device_costs(device, self.launch, self.bandwidth, self.host_bandwidth, self.host_call)

    def basis(self, launch: Launch, program: _Buffered) -> str:
        """Return the origin of the time of a launch, in words; `program` is the program or the plan that it belongs
        to."""
        return _Clock(self, program).basis(launch)

    def bases(self, plan: Plan) -> dict[str, list[str]]:
        """Return the labels of a plan's kernels by the origin of their times, in words."""
        clock = _Clock(self, plan)
        found: dict[str, dict[str, None]] = {}
        for step in plan.steps:
            if type(step) is Execute and type(launch := step.instruction) is Launch:
                found.setdefault(clock.basis(launch), {})[launch.kernel.label] = None
        return {basis: list(labels) for basis, labels in found.items()}

    def seconds(self, instruction: Instruction, program: _Buffered) -> float:
        """Return the seconds of an instruction; `program` is the program or the plan that it belongs to."""
        return _Clock(self, program).seconds(instruction)

    def estimates(self, program: Program) -> tuple[list[float], list[bool]]:
        """Return the seconds of each instruction of a program, and whether they are a guess: so it is for functions of
        the host, and for kernels that dagpu has not written, without a time that is declared, learnt, or measured near
        their size."""
        return _Clock(self, program).estimates(program.instructions)

    def guesses(self, plan: Plan) -> bool:
        """Return whether a plan has a kernel whose time is a guess, or follows from operations: then it is measured."""
        clock = _Clock(self, plan)
        return any(type(each) is Execute and clock.is_to_measure(each.instruction) for each in plan.steps)

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


def _rate(device: str, kind: str) -> float:
    """Return the operations a second of a kind on the device of this name."""
    return _RATES[kind][kind_of(device) == "host"]


def _is_plain(kernel: KernelSpec) -> bool:
    """Return whether a kernel reads and writes its bytes once, and does little with them, as those do that dagpu has
    written. A library does more."""
    return kernel.host.generated is not None and kernel.library is None


def _check_seconds(call: str, name: object, seconds: object) -> None:
    if not is_real_number(seconds) or not 0 <= seconds < math.inf:
        cure = "Write 3e-5, say"
        wanted = "a number of seconds, 0 or more and finite,"
        raise wrong_argument(call, here(), f"the time of {name}", seconds, wanted, cure, ValueError)


@final
class _Clock:
    """A cost model with its tables as dicts, for the instructions of one program."""

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
        self._copies: dict[tuple[int, int, int], float] = {}
        """The seconds of copies between devices, by these and by bytes."""
        self._sizes: dict[int, int] = {}
        """The bytes of each layout, by its identity."""
        self._efforts: dict[tuple[int, ...], Effort | None] = {}
        """What calls of libraries do, by the identity of their kernels and layouts."""

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
            args = instruction.args
            for index, _ in instruction.kernel.tensors:  # `views` would take longer, for each launch of a schedule
                argument = args[index]
                if argument is None:
                    continue
                layout = (argument.view if type(argument) is Tiles else argument).layout
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
        """Return the seconds of each instruction, and whether they are a guess."""
        seconds: list[float] = []
        unknown: list[bool] = []
        known_of, machines = self._known, self._machines
        nbytes_of = self.nbytes if self._counted else self._bytes_of_views
        for instruction in instructions:
            if type(instruction) is not Launch:
                seconds.append(self.seconds(instruction))
                unknown.append(type(instruction) is HostCall)
                continue
            kernel, device = instruction.kernel, instruction.device
            known, machine = known_of.get((id(kernel), device)) or self._known_of(instruction), machines[device]
            if known.by_bytes:  # most are
                unknown.append(known.is_guess)
                seconds.append(machine.launch + nbytes_of(instruction) * machine.byte)
            elif known.seconds is not None:
                unknown.append(False)
                seconds.append(machine.launch + known.seconds)
            elif kernel.peers:  # its time depends on where its inputs are
                unknown.append(self.is_unknown(instruction))
                seconds.append(self.seconds(instruction))
            else:
                named = None if instruction.kernel.library is None else self._effort(instruction)
                size = named or self._bytes_of_views(instruction)
                found = known.by_size.get(size)
                if found is None:
                    found = known.by_size[size] = self.seconds(instruction), self.is_unknown(instruction)
                seconds.append(found[0])
                unknown.append(found[1])
        return seconds, unknown

    def seconds(self, instruction: Instruction) -> float:
        kind = type(instruction)
        machine = self._machines[instruction.device]
        if kind is HostCall:
            return machine.host_call
        if type(instruction) is CopyDtoD and (peer := peer_of(instruction, self._buffers)) >= 0:
            return self._from_peer(instruction, peer)
        nbytes = (self.nbytes if self._counted else self._bytes_of_views)(instruction)
        if kind is CopyHtoD or kind is CopyDtoH:
            return machine.launch + nbytes * machine.host_byte
        if isinstance(instruction, Launch):
            known = self._known_of(instruction)
            if known.seconds is not None:
                return machine.launch + known.seconds
            if known.learnt:
                return machine.launch + at_size(known.learnt, nbytes, machine.launch, machine.byte)
            effort = None if instruction.kernel.label in self._counted else self._effort(instruction)
            if known.measured:
                size, unit = self.size(instruction), machine.byte
                if (named := self._effort(instruction)) is not None:
                    unit = 1 / _rate(self._devices[instruction.device], named.kind)
                return machine.launch + at_size(known.measured, size, machine.launch, unit)
            if effort is not None:
                operations = effort.operations / _rate(self._devices[instruction.device], effort.kind)
                return machine.launch + max(operations, effort.nbytes * machine.byte)
            if instruction.kernel.peers:
                return machine.launch + nbytes * machine.byte + self._from_peers(instruction)
        return machine.launch + nbytes * machine.byte

    def basis(self, launch: Launch) -> str:
        """Return the origin of the time of a launch, in words."""
        known = self._known_of(launch)
        return f"{known.basis} at other sizes" if self._is_far(launch, known) else known.basis

    def is_unknown(self, instruction: Instruction) -> bool:
        """Return whether the time of an instruction is a guess."""
        if type(instruction) is Launch:
            known = self._known_of(instruction)
            return known.is_guess or self._is_far(instruction, known)
        return type(instruction) is HostCall

    def size(self, launch: Launch) -> int:
        effort = self._effort(launch)
        return self._bytes_of_views(launch) if effort is None else int(effort.operations)

    def _effort(self, launch: Launch) -> Effort | None:
        """Return what a call of a library does; None for other kernels, and for those that do not say it."""
        library = launch.kernel.library
        if library is None or not launch.args:
            return None
        layouts = [view.layout for _, view in launch.views]
        key = (id(launch.kernel), *map(id, layouts))
        if key not in self._efforts:
            self._efforts[key] = library.effort(layouts)
        return self._efforts[key]

    def is_to_measure(self, instruction: Instruction) -> bool:
        """Return whether an instruction has run at no size like this one, and its bytes do not tell its time."""
        if type(instruction) is Launch and (known := self._known_of(instruction)).has_effort:
            near = known.basis == _MEASURED and is_near(known.measured, self.size(instruction))
            return known.basis in (_BY_OPERATIONS, _MEASURED) and not near
        return self.is_unknown(instruction)

    def _is_far(self, launch: Launch, known: "_Known") -> bool:
        """Return whether the time of a launch was measured, but at other sizes, which say little of its own."""
        return known.basis == _MEASURED and not (
            _is_plain(launch.kernel) or known.has_effort or is_near(known.measured, self._bytes_of_views(launch))
        )

    def _from_peer(self, copy: CopyDtoD, peer: int) -> float:
        """Return the seconds of a copy from the device `peer`."""
        key = peer, self._buffers[copy.out.buffer].device, copy.source.layout.nbytes
        found = self._copies.get(key)
        if found is None:
            near = node_of(self._devices[peer]) == node_of(self._devices[key[1]])
            found = self._copies[key] = (self._model.links.peer if near else self._model.links.node).seconds(key[2])
        return found

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
            has_effort = self._effort(launch) is not None
            guess = by_bytes and not has_effort and not _is_plain(kernel)
            if seconds is not None:
                basis = _DECLARED if name in self._declared else _DECLARED_WITH_OP
            elif learnt or measured:
                basis = _LEARNT if learnt else _MEASURED
            elif has_effort and name not in self._counted:
                basis = _BY_OPERATIONS
            else:
                basis = f"unknown, so {BY_BYTES}" if guess else BY_BYTES
            by_bytes = by_bytes and not kernel.peers and not has_effort
            found = self._known[key] = _Known(seconds, learnt, measured, by_bytes, guess, basis, has_effort, {})
        return found


@final
class _Known(NamedTuple):
    """What is known of a kernel."""

    seconds: float | None
    """The declared time."""
    learnt: Sequence[tuple[int, float]]
    """Bytes and seconds that the model has learnt, sorted."""
    measured: Sequence[tuple[int, float]]
    """Bytes and seconds of earlier runs, sorted."""
    by_bytes: bool
    """True if its time is that of its bytes, all on its device, and not of a library's operations."""
    is_guess: bool
    """True if its bytes are all that is known, and dagpu has not written it."""
    basis: str
    """The origin of its time, in words."""
    has_effort: bool
    """True if a library says what a call of it does."""
    by_size: dict[int | Effort, tuple[float, bool]]
    """For the bytes or the effort of its launches so far: their seconds, and whether these are a guess."""


DEFAULT_COSTS: Final = CostModel()
"""The model that predicts times where no other one is given."""


# ---- engines
#
# The engines of a device, which instructions occupy: its compute units, and one for each way that copies go.

COMPUTE: Final = 0
"""Engine of kernels, fills, copies within a device, and host calls: they run concurrently."""
UPLOAD: Final = 1
"""Engine of copies from the host: each device has one, so they run one at a time."""
DOWNLOAD: Final = 2
"""Engine of copies to the host: each device has one, so they run one at a time."""
PEER_IN: Final = 3
"""Engine of copies from another device, on the device that they go to. It runs as many at once as its link has
ports."""
PEER_OUT: Final = 4
"""Engine of copies to another device, on the device that they come from. The other device's lane runs the copy."""
ENGINES: Final = 5
"""Number of engines of a device."""

ENGINE_OF: Final[dict[type[Any], int]] = {
    Launch: COMPUTE, Fill: COMPUTE, HostCall: COMPUTE, GraphLaunch: COMPUTE, CopyHtoD: UPLOAD, CopyDtoH: DOWNLOAD,
}  # fmt: skip
"""The engine of every instruction on a GPU, except a `CopyDtoD`, whose engine depends on where its buffers are."""


def peer_of(instruction: Instruction, buffers: Sequence[Buffer]) -> int:
    """Return the device that a copy between two devices comes from; -1 for any other instruction."""
    if type(instruction) is CopyDtoD:
        source = buffers[instruction.source.buffer].device
        if source != buffers[instruction.out.buffer].device:
            return source
    return -1


@lru_cache(256)
def without_engines(devices: tuple[str, ...]) -> list[bool]:
    """Return for each device, by its name, whether its copies from and to the host are work of its streams, as on a
    host: there a thread makes them, and several at once."""
    return list(map("host".__eq__, map(kind_of, devices)))


def engine_of(instruction: Instruction, buffers: Sequence[Buffer], without: Sequence[bool]) -> int:
    """Return the engine of its device that an instruction occupies: `COMPUTE`, `UPLOAD`, `DOWNLOAD` or `PEER_IN`.
    `without` is the result of `without_engines`."""
    engine = ENGINE_OF.get(type(instruction))
    if engine in (UPLOAD, DOWNLOAD) and without[instruction.device]:
        return COMPUTE
    if engine is None:
        return COMPUTE if peer_of(instruction, buffers) < 0 else PEER_IN
    return engine


@final
@dataclass(slots=True, eq=False)
class EngineTimes:
    """The times at which engines are free, while a schedule is simulated. `ports` is the number of copies between
    devices that a device sends at once, and that it receives at once; any other copy engine runs one copy."""

    _ports: int
    _free: dict[tuple[int, int], list[float]] = field(default_factory=dict)

    def claim(self, ready: float, seconds: float, places: Sequence[tuple[int, int]]) -> float:
        """Occupy each of these engines, given by device and number, for the same `seconds`. Return the begin: the first
        time from `ready` on at which all of them are free."""
        slots, begin = [self.slots(place) for place in places], ready
        for each in slots:
            begin = max(begin, min(each))
        for each in slots:
            each[each.index(min(each))] = begin + seconds
        return begin

    def slots(self, place: tuple[int, int]) -> list[float]:
        """Return the times at which the ports of an engine are free."""
        found = self._free.get(place)
        if found is None:
            found = self._free[place] = [0.0] * (self._ports if place[1] >= PEER_IN else 1)
        return found


def engines_of(device: int, engine: int, peer: int) -> list[tuple[int, int]]:
    """Return the copy engines that an instruction occupies: none for work on `COMPUTE`, both ends of a copy between
    two devices."""
    if engine == COMPUTE:
        return []
    return [(device, engine)] if peer < 0 else [(device, engine), (peer, PEER_OUT)]
