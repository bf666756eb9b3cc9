"""A plan compiled for its devices, as immutable data. All its runs and graphs read it; none changes it."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import final

from dagpu.backends.cuda.commands.relocation import BaseOffset
from dagpu.backends.cuda.commands.transfers import CopyIn, CopyOut
from dagpu.backends.cuda.resources.cuda_device import CudaDevice
from dagpu.plans.plan import Plan
from dagpu.plans.program import Launch


@final
@dataclass(frozen=True, slots=True, eq=False)
class CompiledPlan:
    """A plan, its devices, and the base from which each of its addresses is counted."""

    plan: Plan
    devices: Sequence[CudaDevice]
    keys: Sequence[Hashable]
    """The key of each lane's stream."""
    bases: int
    """The number of bases."""
    places: Sequence[BaseOffset | None]
    """For each buffer the place where it begins; None for cells and for buffers that nothing allocates."""
    outputs: Sequence[tuple[int, int, int, int]]
    """For each result: buffer, base, number of the device, bytes."""
    inputs: Sequence[tuple[int, int]]
    """For each input, a buffer that the caller gives: buffer, base."""
    arenas: Sequence[tuple[int, int]]
    """For each arena: number of the device, bytes."""
    gathers: Sequence[tuple[int, int, int]]
    """For each copy out of a strided source: base of the memory in which it is gathered, number of the device,
    bytes."""
    report_base: int
    """The base of the reports of bounds violations."""
    reports: Sequence[Launch]
    """The launches that report a violation of bounds, in the order of their reports."""
    copies_in: Sequence[CopyIn]
    bytes_in: int
    """Bytes that all copies from the host copy together."""
    copies_out: Sequence[CopyOut]
    allocates: bool
    """True if runs allocate memory: arenas, results, or what copies and reports need."""
    copies_host: bool
    """True if runs copy from or to the host."""
    blocking: bool
    """True if the submission of a run may take long for any inputs. Worker threads submit such a run."""
    calls_user: bool = False
    """True if the submission calls bodies of foreign ops. One thread that may wait submits such a run, in the plan's
    order: the current stream of a library belongs to a thread."""
    decides: bool = False
    """True if the plan has an `If`. Then each run is one graph, which decides what runs."""
