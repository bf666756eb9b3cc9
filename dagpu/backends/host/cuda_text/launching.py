"""Launches of CUDA texts on the host: their memory, their parameters, the order of their threads and blocks."""

import ctypes
import mmap
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any, Final, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from dagpu.backends.host.arrays import writable_array
from dagpu.backends.host.bounds_reports import LAYOUT, bounds_error
from dagpu.backends.host.cuda_text.compilers import Mode
from dagpu.backends.host.cuda_text.found_faults import MOST, Fault, FoundFaults, Named, Report
from dagpu.backends.host.cuda_text.loaded_kernel import LoadedKernel, loaded_kernel
from dagpu.backends.host.cuda_text.source_text import LIMITS
from dagpu.backends.kernel_text.launch_params import (
    LIST,
    REPORT,
    SCRATCH,
    PackedLaunch,
    block_for,
    check_limits,
    pack,
)
from dagpu.backends.kernel_text.loaded_function import Function
from dagpu.common.env_vars import HOST_CHECKS
from dagpu.common.errors import CompileError, DagpuError, KernelArgumentError, OutOfMemoryError
from dagpu.common.layout import address_of
from dagpu.common.places import describe
from dagpu.ops.kernel_spec import KernelSpec
from dagpu.plans.plan import Execute, Plan
from dagpu.plans.program import Launch, Role, Tiles

FORWARDS, BACKWARDS, RANDOM = 0, 1, 2


@final
class Order(NamedTuple):
    """The order in which threads and blocks run."""

    threads: int = FORWARDS
    blocks: int = FORWARDS
    seed: int = 1


_USUAL: Final = Order()


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Choice:
    """What one open `texts_run` says; None where it says nothing."""

    order: Order | None
    mode: Mode | None
    thread: int | None
    """The thread that it speaks of; None for all."""


_choices: tuple[_Choice, ...] = ()
"""Those that are open, the latest last. Threads open and close them in any order."""
_choosing: Final = threading.Lock()


@contextmanager
def texts_run(*, order: Order | None = None, mode: Mode | None = None, here: bool = False) -> Iterator[None]:
    """Have texts run in an order and a mode while the block is open: in all threads, or `here`, in this thread alone.
    The latest open block that says something counts."""
    global _choices
    mine = _Choice(order, mode, threading.get_ident() if here else None)
    with _choosing:
        _choices = (*_choices, mine)
    try:
        yield
    finally:
        with _choosing:
            _choices = tuple([each for each in _choices if each is not mine])


def _chosen() -> tuple[Order, Mode]:
    """Return how texts run in this thread: checked, unless DAGPU_HOST_CHECKS or an open block says otherwise."""
    order, mode = _USUAL, None
    for each in _choices:
        if each.thread is None or each.thread == threading.get_ident():
            order, mode = each.order or order, each.mode or mode
    return order, mode or Mode(checked=HOST_CHECKS.get())


# ---- the structures of runtime.h
_INPUT, _OUTPUT, _VARIABLE, _CONSTANT, _SHARED, _PRIVATE, _READABLE = range(7)
_KINDS: Final = {
    "shared": _SHARED, "constant": _CONSTANT, "device": _VARIABLE, "own": _PRIVATE, "guard": _PRIVATE,
}  # fmt: skip
_SPACES: Final = {"shared": "shared memory", "constant": "__constant__", "device": "__device__"}
_STOP: Final = ctypes.CFUNCTYPE(ctypes.c_int)
_PRINT: Final = ctypes.CFUNCTYPE(None, ctypes.c_char_p)


class _Region(ctypes.Structure):
    _fields_ = (
        ("low", ctypes.c_uint64), ("size", ctypes.c_uint64), ("kind", ctypes.c_uint32), ("granule", ctypes.c_uint32),
        ("fresh", ctypes.c_uint32), ("number", ctypes.c_uint32),
    )  # fmt: skip


class _LaunchIn(ctypes.Structure):
    _fields_ = (
        ("thunk", ctypes.c_void_p), ("arguments", ctypes.c_void_p), ("dynamic", ctypes.c_void_p), ("print", _PRINT),
        ("stop", _STOP), ("base", ctypes.c_uint64), ("regions", ctypes.POINTER(_Region)),
        ("reports", ctypes.POINTER(Report)), ("shared_bytes", ctypes.c_uint64), ("dynamic_offset", ctypes.c_uint64),
        ("grid", ctypes.c_uint32 * 3), ("block", ctypes.c_uint32 * 3),
        *((name, ctypes.c_uint32) for name in ("thread_order", "block_order", "seed", "workers", "checked",
          "cooperative", "region_count", "most_reports", "report_count", "stopped")),
        ("text", ctypes.c_char * 256),
    )  # fmt: skip
    report_count: int
    stopped: int
    text: bytes


_FAILED, _NO_ROOM = 1, 2


# ---- the memory of a launch
_ALIGNMENT: Final = 256
"""The alignment of a block on a GPU."""
_GAPS: Final = (1 << 34, 1 << 28, 1 << 20, 1 << 12)
"""Bytes between the copies of two tensors, the first that the system grants: 2**34 tell every index of 32 bits that is
out of bounds, whatever the elements are, of up to 8 bytes, from one within another tensor."""
_MOST_RESERVED: Final = 1 << 44
"""The most bytes of address space that one launch reserves, an eighth of all that a process has."""
_NORESERVE: Final = 0x4000 if sys.platform == "linux" else 0
"""MAP_NORESERVE, which the module `mmap` names since Python 3.13 only."""


def _reserved(spans: Sequence[int]) -> tuple["NDArray[np.uint8]", list[int]]:
    """Reserve address space for memory of these sizes. Only pages that are touched take memory of the machine.

    Returns: the bytes, and where each memory begins in them.
    """
    for gap in _GAPS:
        starts = [gap]
        for span in spans:
            starts.append(-(-(starts[-1] + span + gap) // gap) * gap)
        if starts[-1] > _MOST_RESERVED and gap != _GAPS[-1]:
            continue
        try:
            found = mmap.mmap(-1, starts.pop(), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)
        except OSError:  # a limit of the process (RLIMIT_AS), or no overcommitment
            continue
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            found.madvise(mmap.MADV_NOHUGEPAGE)  # else a tensor of 4 bytes takes 2 MiB
        return np.frombuffer(found, np.uint8), starts
    raise MemoryError


def _reach(array: "NDArray[Any]") -> tuple[int, int]:
    """Return where the bytes of an array begin, counted from its first element, and their number."""
    if not array.size:
        return 0, 0
    ends = [(extent - 1) * stride for extent, stride in zip(array.shape, array.strides, strict=True)]
    low = sum(min(end, 0) for end in ends)
    return low, sum(max(end, 0) for end in ends) - low + array.itemsize


@final
class _Memory:
    """The tensors of a launch as its text gets them: in a checked run copies that lie far from each other, so that an
    index out of bounds is not taken for one of another tensor."""

    def __init__(self, launch: Launch, memory: Sequence[object], *, checked: bool) -> None:
        self.regions: list[tuple[int, int, int, int, int]] = []
        """Address, size, kind, bytes of an element of the shadow, number for messages."""
        self.names: dict[int, Named] = {}
        self._back: list[tuple[NDArray[Any], NDArray[Any]]] = []
        self._keep: list[object] = []
        self.written_over: set[int] = set()
        """The numbers of outputs that are written over an input: that is what they contain at first."""
        self.addresses: dict[int, int] = {}
        """The address of the first element of each tensor, by its index in the arguments."""
        arrays = {number: writable_array(memory[view.buffer], view.layout) for number, view in launch.views}
        if checked:
            self._copy(launch, arrays)
        else:
            self.addresses = {number: address_of(array) for number, array in arrays.items()}
        self._list_addresses(launch, checked=checked)
        if checked and (tiles := launch.tile_list) is not None:
            array = writable_array(memory[tiles.buffer], tiles.layout)
            self.regions.append((address_of(array), array.nbytes, _INPUT, 4, _LISTS - 1))
            self.names[_LISTS - 1] = Named("the list of tiles", 4, array.nbytes)

    def _copy(self, launch: Launch, arrays: dict[int, "NDArray[Any]"]) -> None:
        outputs = {(address_of(array), array.nbytes): number for number, array in arrays.items()
                   if array.nbytes and type(launch.args[number]) is Tiles}  # fmt: skip
        over = {number: outputs.get((address_of(array), array.nbytes), number) for number, array in arrays.items()}
        copied = [number for number in arrays if over[number] == number]
        raw, starts = _reserved([_ALIGNMENT + _reach(arrays[number])[1] for number in copied])
        self._keep.append(raw)
        for number, begin in zip(copied, starts, strict=True):
            self.addresses[number] = self._copied(launch, number, arrays[number], raw, begin)
        for number in arrays.keys() - copied:  # an input that is written over
            self.addresses[number] = self.addresses[over[number]]
            self.written_over.add(over[number])

    def _copied(self, launch: Launch, number: int, array: "NDArray[Any]", raw: "NDArray[np.uint8]", begin: int) -> int:
        is_out = type(launch.args[number]) is Tiles
        low, span = _reach(array)
        start = begin + (launch.view(number).layout.offset + low) % _ALIGNMENT
        copy = np.ndarray(array.shape, array.dtype, raw.data, start - low, array.strides)
        copy[...] = array
        if is_out:
            self._back.append((array, copy))
        item, first = array.dtype.itemsize, address_of(raw) + start
        self.regions.append((first, span, _OUTPUT if is_out else _INPUT, _granule(item), number))
        self.names[number] = Named(f"'{launch.kernel.params[number].name}'", item, span)
        return int(first - low)

    def _list_addresses(self, launch: Launch, *, checked: bool) -> None:
        self.lists: dict[int, int] = {}
        for start, count in launch.kernel.lists:
            found = np.array([self.addresses.get(start + each, 0) for each in range(count)], np.uint64)
            self._keep.append(found)
            self.lists[start] = address_of(found)
            if checked:
                number = _LISTS + start
                self.regions.append((address_of(found), found.nbytes, _INPUT, 8, number))
                self.names[number] = Named(f"the list '{launch.kernel.params[start].name}'", 8, found.nbytes)

    def write_back(self) -> None:
        """Write the outputs of a checked run to the tensors."""
        for array, copy in self._back:
            array[...] = copy


_LISTS, _VARIABLES = 1000, 100_000
"""The first numbers of regions that are lists of addresses, and that are variables of the text."""


_NOBODY: Final = 0xFFFFFFFF
"""The number of a region that messages do not name."""


def _granule(itemsize: int) -> int:
    return next(size for size in (4, 2, 1) if itemsize % size == 0)


# ---- launches
def run_text(
    launch: Launch,
    memory: Sequence[object],
    *,
    plan: Plan | None = None,
    stop: Callable[[], bool] | None = None,
) -> bool:
    """Run the CUDA text of a launch to its end. Return False if `stop` has stopped it before.

    Args:
        launch: the launch.
        memory: the memory of each buffer, and the value of each cell.
        plan: the plan of the run: what no other instruction of it writes, the launch has to write as a whole.
        stop: asked now and then, on this thread, whether to stop.

    Raises:
        KernelBoundsError, KernelFaultError: the text does what it must not. No output is changed.
        CompileError: the text does not compile, or calls what cannot be checked.
        DeviceError: there is no C++ compiler.
        KernelArgumentError: the block, the grid or the shared memory exceeds the limits of a GPU.
    """
    order, mode = _chosen()
    whose = launch
    if mode.checked and launch.kernel.abi == "views" and not launch.kernel.checked:
        launch = replace(launch, kernel=_checked(launch.kernel))
    spec = launch.kernel
    packed = pack(launch, LIMITS)
    if packed is None:
        return True
    try:
        kernel = loaded_kernel(spec, packed.form.variant, mode)
    except CompileError as error:
        raise CompileError(f"{error} It is launched at {describe(launch.origin)}.") from None
    function = Function(None, LIMITS.threads, kernel.static_shared, 0, lambda _: None)
    grid, block = packed.form.grid, block_for(launch, packed.form, function)
    check_limits(launch, replace(packed.form, accepted=set()), block, function, LIMITS, "the host")
    if prod(grid) >= 1 << 32:
        raise KernelArgumentError(f"kernel {spec.name!r}, launched at {describe(launch.origin)}: {prod(grid)} blocks.")
    tensors = _Memory(launch, memory, checked=mode.checked)
    report = np.zeros(REPORT, np.uint8)
    data = _parameters(packed, launch, memory, tensors, address_of(report))
    _set_constants(kernel, launch, memory)
    run = _Run(kernel, launch, grid, block, order)
    if mode.checked:
        run.add_tensors(tensors, frozenset() if plan is None else fresh_outputs(plan, whose))
        run.add(address_of(report), report.nbytes, _PRIVATE, number=_NOBODY)
        run.add_variables(spec.shared_bytes)
    status = run.run(data, stop)
    if status == _NO_ROOM:
        raise OutOfMemoryError(f"kernel {spec.name!r}, launched at {describe(launch.origin)}: no room for its checks.")
    said = report.view(LAYOUT)[0]
    if said["state"]:
        raise bounds_error(launch, said)
    if faults := run.faults(tensors.names):
        raise _error(launch, faults)
    if run.was_stopped:
        return False
    tensors.write_back()
    return True


@lru_cache(maxsize=1024)
def _checked(spec: KernelSpec) -> KernelSpec:
    """Return a kernel with the checks of `Tile` and `View`, which know the bounds of tiles."""
    return replace(spec, checked=True)


def _parameters(
    packed: PackedLaunch, launch: Launch, memory: Sequence[object], tensors: _Memory, report: int
) -> bytearray:
    data = bytearray(packed.parameters)
    for at, cell, convert in packed.cells:
        value = convert(memory[cell])
        data[at : at + len(value)] = value
    for at, number, offset in packed.form.pointers:
        if number == LIST:
            assert launch.tile_list is not None
            address = address_of(writable_array(memory[launch.tile_list.buffer], launch.tile_list.layout))
        elif number == SCRATCH:
            assert launch.scratch is not None
            address = tensors.lists[(offset - launch.scratch.layout.offset) // 8]
        else:
            address = tensors.addresses[number]
        data[at : at + 8] = address.to_bytes(8, "little")
    for at in packed.form.reports:
        data[at : at + 8] = report.to_bytes(8, "little")
    return data


def _set_constants(kernel: LoadedKernel, launch: Launch, memory: Sequence[object]) -> None:
    """Set the `__constant__` variables that are parameters in Python. What the contents leave of one is zero."""
    for number, param in launch.kernel.constants:
        view = launch.view(number)
        contents = writable_array(memory[view.buffer], view.layout).tobytes()
        address, nbytes = kernel.constant(param.name)
        if len(contents) > nbytes:
            raise KernelArgumentError(
                f"kernel {launch.kernel.name!r}, launched at {describe(launch.origin)}: argument {param.name!r} has "
                f"{len(contents)} bytes, but its __constant__ variable has {nbytes}. Pass at most as many."
            )
        ctypes.memmove(address, contents.ljust(nbytes, b"\0"), nbytes)


def _error(launch: Launch, faults: Sequence[Fault]) -> DagpuError:
    first = faults[0]
    also = "".join(f"\n  Also: {fault.text}." for fault in faults[1:4])
    return first.error(
        f"kernel {launch.kernel.name!r}, launched at {describe(launch.origin)}: {first.text}.\n  {first.cure}.{also}"
    )


@final
class _Run:
    """One launch of a loaded kernel."""

    def __init__(
        self,
        kernel: LoadedKernel,
        launch: Launch,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        order: Order,
    ) -> None:
        self._kernel, self._launch, self._grid, self._block = kernel, launch, grid, block
        self._order = order
        self._regions: list[_Region] = []
        self._names: dict[int, Named] = {}
        self._reports = (Report * MOST)()
        self._found = 0
        self._text = b""
        self.was_stopped = False

    def add(self, low: int, size: int, kind: int, granule: int = 4, fresh: int = 0, number: int = 0) -> None:
        """Let the text access memory."""
        self._regions.append(_Region(low, size, kind, granule, fresh, number))

    def add_tensors(self, tensors: _Memory, fresh: frozenset[int]) -> None:
        """Let the text access the arguments."""
        for low, size, kind, granule, number in tensors.regions:
            is_new = kind == _OUTPUT and number not in tensors.written_over
            is_fresh = is_new and self._launch.view(number).buffer in fresh
            if is_fresh:
                ctypes.memset(low, 0xFF, size)  # a NaN, or -1
            self.add(low, size, kind, granule, int(is_fresh), number)
        self._names |= tensors.names

    def add_variables(self, dynamic: int) -> None:
        """Let the text access its variables, and its own code's constants."""
        kernel = self._kernel
        begin = kernel.dynamic_address()
        for number, variable in enumerate(kernel.symbols.variables, _VARIABLES):
            of_block = variable.kind in ("shared", "guard")
            low = variable.address + (begin - kernel.dynamic_offset if of_block else kernel.base)
            fresh = variable.kind == "shared" or variable.name in kernel.unset
            granule = 1 if kernel.is_small(variable) else 4
            self.add(low, variable.nbytes, _KINDS[variable.kind], granule, int(fresh), number)
            if variable.kind in _SPACES:
                self._names[number] = Named(f"{_SPACES[variable.kind]} '{variable.name}'", 0, variable.nbytes)
        number = _VARIABLES - 1
        self.add(begin, dynamic, _SHARED, 1 if _has_small_dynamic(kernel) else 4, 1, number)
        self._names[number] = Named("dynamic shared memory", 0, dynamic)
        for address, size in kernel.symbols.constants:
            self.add(kernel.base + address, size, _READABLE, number=_NOBODY)

    def run(self, data: bytearray, stop: Callable[[], bool] | None) -> int:
        """Run the launch. Return 0 if it came to its end."""
        kernel, checked = self._kernel, self._kernel.mode.checked
        room = len(data) + 512
        thunk, arguments = ctypes.c_void_p(), ctypes.create_string_buffer(room + 64)
        at = -(-ctypes.addressof(arguments) // 64) * 64
        taken = kernel.entry(bytes(data), ctypes.byref(thunk), ctypes.c_void_p(at), ctypes.c_size_t(room))
        assert -(-taken // 8) * 8 == -(-len(data) // 8) * 8, f"it takes {taken} bytes of parameters, not {len(data)}"
        if checked:
            self.add(at, room, _PRIVATE, number=_NOBODY)
        failure: list[BaseException] = []

        def asked() -> int:
            try:
                return int(stop is not None and stop())
            except BaseException as error:  # a signal: raised again where it can be
                failure.append(error)
                return 1

        def printed(text: bytes) -> None:
            sys.stdout.write(text.decode("utf-8", "replace"))

        table = (_Region * len(self._regions))(*self._regions)
        order = self._order
        given = _LaunchIn(
            thunk.value, at, kernel.dynamic.value, _PRINT(printed), _STOP(asked), kernel.base, table, self._reports,
            kernel.symbols.shared_bytes, kernel.dynamic_offset, (ctypes.c_uint32 * 3)(*self._grid),
            (ctypes.c_uint32 * 3)(*self._block), order.threads, order.blocks, order.seed, _workers(), checked,
            kernel.waits_for_grid, len(table), MOST,
        )  # fmt: skip
        status: int = kernel.runtime.launch(ctypes.byref(given))
        if failure:
            raise failure[0]
        self._found, self._text, self.was_stopped = given.report_count, given.text, bool(given.stopped)
        return status

    def faults(self, names: dict[int, Named]) -> list[Fault]:
        """Return what the run has found."""
        found = FoundFaults(
            self._kernel, self._grid, self._block, self._names | names, self._text.decode("utf-8", "replace")
        )
        return found.faults(self._reports[: self._found]) if self._found else []


def _has_small_dynamic(kernel: LoadedKernel) -> bool:
    """Return true if elements of dynamic shared memory may have less than 4 bytes."""
    return any(word in kernel.source.unit.text for word in ("char", "half", "bfloat16", "short", "int8_t", "int16_t"))


def fresh_outputs(plan: Plan, launch: Launch) -> frozenset[int]:
    """Return the buffers that this launch alone writes in a run of a plan: it has to write them as a whole."""
    if launch.tile_list is not None:
        return frozenset()
    others: set[int] = set()
    for step in plan.steps:
        if type(step) is Execute and step.instruction is not launch:
            others.update(step.instruction.writes)
    return frozenset(b for b in launch.writes if b not in others and plan.buffers[b].role is not Role.INPUT)


def _workers() -> int:
    return len(os.sched_getaffinity(0))
