"""What the run of a CUDA text has found, as errors: the place in the text, the thread, the block and the element."""

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, final

from dagpu.backends.host.cuda_text.line_table import read_lines
from dagpu.backends.host.cuda_text.loaded_kernel import LoadedKernel
from dagpu.backends.host.cuda_text.source_text import INCLUDE, TEXT
from dagpu.backends.kernel_text.units import PRELUDE
from dagpu.common.errors import (
    DagpuError,
    KernelAssertionError,
    KernelBarrierError,
    KernelBoundsError,
    KernelFaultError,
    KernelRaceError,
    KernelUninitialisedError,
    KernelUnwrittenError,
)

MOST: Final = 16
"""The most faults of one launch that are kept: one for each place."""


class Report(ctypes.Structure):
    """A fault, as the runtime reports it (`runtime.h`)."""

    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("kind", "region", "thread", "block", "other_thread", "other_block")),
        *((name, ctypes.c_uint32) for name in ("count", "size")),
        *((name, ctypes.c_uint64) for name in ("pc", "other_pc", "offset", "flags")),
    )
    kind: int
    region: int
    thread: int
    block: int
    other_thread: int
    other_block: int
    count: int
    size: int
    pc: int
    other_pc: int
    offset: int
    flags: int


@final
class Named(NamedTuple):
    """The memory of a region, for messages."""

    what: str
    """`'y'`, `shared memory 's'`."""
    itemsize: int
    """Bytes of an element; 0 if that is not known."""
    nbytes: int


@final
class Fault(NamedTuple):
    """A fault: the class of its error, and what happened where."""

    error: type[DagpuError]
    text: str
    cure: str


@final
class FoundFaults:
    """Makes faults of the reports of one launch."""

    def __init__(
        self,
        kernel: LoadedKernel,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        regions: Mapping[int, Named],
        text: str,
    ) -> None:
        self._kernel = kernel
        self._grid = grid
        self._block = block
        self._regions = regions
        self._text = text
        """What an assertion says, or the type of an array."""

    def faults(self, reports: Sequence[Report]) -> list[Fault]:
        """Return the faults, what is to be put right first before the others."""
        places = _places(self._kernel, [pc for report in reports for pc in (report.pc, report.other_pc)])
        # What a race has spoilt may look as if it had not been written.
        ordered = sorted(reports, key=lambda report: _TABLE[report.kind][0] is KernelUninitialisedError)
        return [self._fault(report, places) for report in ordered]

    def _fault(self, report: Report, places: Mapping[int, str]) -> Fault:
        error, text, cure = _TABLE[report.kind]
        offset = report.offset - (1 << 64) if report.offset >> 63 else report.offset
        signed = report.flags - (1 << 64) if report.flags >> 63 else report.flags
        words = {
            "who": f"thread {_index(report.thread, self._block)} of block {_index(report.block, self._grid)}",
            "other": f"thread {_index(report.other_thread, self._block)} of block "
            f"{_index(report.other_block, self._grid)}",
            "there": f"thread {_index(report.other_thread, self._block)}",
            "element": self._element(report, offset),
            "at": places.get(report.pc, "an unknown place"),
            "other_at": places.get(report.other_pc, "an unknown place"),
            "access": "writes" if report.flags & 1 else "reads",
            "size": report.size,
            "times": f" ({report.count:,} times)" if report.count > 1 else "",
            "flags": signed,
            "type": self._text,
            "said": self._kernel.in_words(self._text),
            "waits": {3: "__syncthreads()", 4: "its warp", 5: "the grid"}.get(report.flags, "another block"),
            "also": f"; thread {report.other_thread} waits at {places[report.other_pc]}" if report.other_pc else "",
            "launched": f"{'x'.join(map(str, self._grid))} blocks of {'x'.join(map(str, self._block))} threads",
            "divisor": "zero" if not report.flags else "-1, and the result is too large",
        }
        if error is KernelUnwrittenError:
            return self._unwritten(report, offset)
        return Fault(error, text.format(**words), cure)

    def _unwritten(self, report: Report, offset: int) -> Fault:
        named = self._regions[report.region]
        per = max(named.itemsize // report.size, 1)
        text = (
            f"no thread writes {-(-report.flags // per):,} of the {named.nbytes // named.itemsize:,} elements of the "
            f"new output {named.what}, the first of them is element {offset // named.itemsize}, in a launch of "
            f"{'x'.join(map(str, self._grid))} blocks of {'x'.join(map(str, self._block))} threads"
        )
        return Fault(KernelUnwrittenError, text, _TABLE[report.kind][2])

    def _element(self, report: Report, offset: int) -> str:
        named = self._regions.get(report.region)
        if named is None:
            return "memory that is no argument's"
        size = named.itemsize or report.size
        if named.itemsize or (offset % size == 0 and size):
            return f"element {offset // size} of {named.nbytes // size} of {named.what}"
        return f"byte {offset} of {named.nbytes} of {named.what}"


_RACE: Final = "Order the two: __syncthreads() among the threads of a block, atomics or two launches among blocks"
_INDEX: Final = "Correct the index, or give the launch fewer threads"
# By the numbers of FaultKind in runtime.h.
_TABLE: Final[Mapping[int, tuple[type[DagpuError], str, str]]] = {
    1: (KernelBoundsError, "{who} {access} {size} bytes out of bounds, {element}, at {at}", _INDEX),
    2: (KernelFaultError, "{who} writes to the input, {element}, at {at}", "Declare it Out, or write to another"),
    3: (
        KernelUninitialisedError, "{who} reads {element}, which nothing has written, at {at}{times}",
        "Write it first, or begin with zeros",
    ),
    4: (KernelRaceError, "{who} writes {element} at {at}\n    and {other} wrote it at {other_at}{times}", _RACE),
    5: (KernelRaceError, "{who} reads {element} at {at}\n    and {other} wrote it at {other_at}{times}", _RACE),
    6: (KernelRaceError, "{who} writes {element} at {at}\n    and {other} read it at {other_at}{times}", _RACE),
    7: (KernelUnwrittenError, "", "Launch more threads: with .grid(...) and .block(...), or another tile"),
    8: (
        KernelBarrierError, "{who} waits at a barrier, and {there} has ended without it, at {at}",
        "Have all threads of the block come to the barrier",
    ),
    9: (
        KernelBarrierError, "{who} waits for {waits} for ever at {at}{also}",
        "Have all threads come to the same barrier",
    ),
    10: (KernelAssertionError, "{who}: the assertion failed: {said}", "Correct the kernel or its arguments"),
    11: (KernelAssertionError, "{who} calls __trap() at {at}", "Correct the kernel or its arguments"),
    12: (
        KernelUninitialisedError, "{who} reads {element}, which nothing has set, at {at}",
        "Give it an initialiser in the text, or pass it as an argument",
    ),
    13: (
        KernelBarrierError, "{who} asks for a lane that does not take part at {at}",
        "Have all lanes of the mask come there",
    ),
    14: (KernelBoundsError, "{who} accesses a null pointer at {at}", "Pass a tensor, or ask for null first"),
    15: (
        KernelFaultError, "{who} accesses {size} bytes at an address that is no multiple of it, {element}, at {at}",
        "Read elements one by one, or begin at a multiple",
    ),
    16: (KernelBoundsError, "{who} uses index {flags} of an array of type {type} at {at}", "Correct the index"),
    17: (KernelFaultError, "{who} divides a whole number by {divisor} at {at}", "Correct the divisor"),
    18: (
        KernelFaultError, "{who} needs more than the 256 KiB of stack that a thread has at {at}",
        "Have fewer or smaller local arrays, and no deep recursion",
    ),
    19: (KernelBoundsError, "{who} accesses local memory outside of its variables at {at}", "Correct the index"),
    20: (
        KernelBarrierError,
        "{who} and 65,536 others wait at the same time, in a launch of {launched}: too many for the host",
        "Launch fewer threads there",
    ),
}  # fmt: skip


def _index(number: int, extents: tuple[int, int, int]) -> str:
    x, y, z = extents
    return str(number) if y * z == 1 else f"({number % x}, {number // x % y}, {number // x // y})"


# ---- places
def _places(kernel: LoadedKernel, addresses: Sequence[int]) -> dict[int, str]:
    """Return file and line of the user's, and the line itself, for addresses in the library; 0 is none."""
    wanted = sorted({address for address in addresses if address})
    if not wanted:
        return {}
    find: Callable[[bytes, Sequence[int]], list[list[tuple[str, int]]]]
    find = _by_addr2line if shutil.which("addr2line") else read_lines
    found = find(kernel.code, wanted)
    return {address: _in_words(kernel, lines) for address, lines in zip(wanted, found, strict=True)}


def _by_addr2line(library: bytes, addresses: Sequence[int]) -> list[list[tuple[str, int]]]:
    """Return for each address the places of the calls that are inlined there, the innermost first."""
    with tempfile.NamedTemporaryFile(prefix="dagpu-", suffix=".so") as file:
        file.write(library)
        file.flush()
        command = ["addr2line", "-a", "-i", "-e", file.name, *map(hex, addresses)]
        said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found: list[list[tuple[str, int]]] = []
    for line in said.splitlines():
        if line.startswith("0x"):
            found.append([])
            continue
        path, _, rest = line.rpartition(":")
        number = rest.split()[0] if rest else ""
        if found and number.isdigit():
            found[-1].append((path, int(number)))
    return found if len(found) == len(addresses) else [[] for _ in addresses]


def _in_words(kernel: LoadedKernel, lines: Sequence[tuple[str, int]]) -> str:
    for path, number in lines:
        if path.endswith(TEXT):
            file, line = kernel.source.place(number)
            texts = kernel.source.unit.text.splitlines()
            quoted = texts[number - 1].strip() if 0 < number <= len(texts) else ""
            return f"{file}:{line}" + (f"\n        {quoted[:140]}" if quoted else "")
        if not _is_ours(path):
            return f"{path}:{number}"
    return "an unknown place"


def _is_ours(path: str) -> bool:
    return path.startswith(("/usr/", "?")) or Path(path).is_relative_to(INCLUDE) or PRELUDE.name in path or "<" in path
