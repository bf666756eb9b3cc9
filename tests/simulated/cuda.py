"""`installed` replaces `cuda:0` and `cuda:1` by simulated GPUs: the driver, the compiler and the kernels.

The simulator cannot run the text of a kernel. So wrappers around the preparation of launches append a number to the
parameters. By this number the simulator finds the host body, the action of one of dagpu's own kernels, and the shapes
of plain pointers. A driver would ignore it. Everything else is the real backend: its library compiles and loads the
modules that it needs.
"""

import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, final

import numpy as np
import pytest

from dagpu.backends.cuda.backend import CudaBackend
from dagpu.backends.cuda.compile.compiler import Compiled, Compiler
from dagpu.backends.cuda.instruction_selection import LaunchFactories
from dagpu.backends.cuda.kernels import fill_and_copy
from dagpu.backends.cuda.kernels.fill_and_copy import BuiltinWork
from dagpu.backends.cuda.resources.cuda_device import CudaDevice
from dagpu.backends.cuda.resources.pools import Pool
from dagpu.backends.host.numpy_initializers import write
from dagpu.backends.kernel_text import launch_params
from dagpu.backends.kernel_text.launch_params import PackedLaunch
from dagpu.backends.kernel_text.units import Unit
from dagpu.common.critical import Reference, ReferenceQueue
from dagpu.common.errors import CompileError
from dagpu.common.layout import Layout
from dagpu.kernels.declaration import COMPILER
from dagpu.ops.initializers import with_seed
from dagpu.testing import KernelSpec, Launch, Limits, backend, plans, replaced_backend
from tests.simulated.gpu import LIMITS, SimulatedGpu
from tests.simulated.kernels import KERNELS, OWN, placed
from tests.simulated.machine import Machine
from tests.support import places


@final
class SimulatedCompiler:
    """Replaces `dagpu.backends.cuda.compile.compiler.Compiler`. A cubin is the index of one of the machine's units."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def compile(self, unit: Unit) -> Compiled:
        """Return a cubin for the unit. Text that contains `#error` does not compile."""
        if "#error" in unit.text:
            raise CompileError(f"{unit.name}: #error")
        self._machine.units.append(unit)
        constants = tuple([name for name, _ in unit.constants])
        return Compiled(str(len(self._machine.units) - 1).encode(), unit.name, constants=constants)

    def compile_python(self, spec: KernelSpec, variant: int, arch: str) -> Compiled:
        """Return a cubin for a kernel in Python, once its library, or what stands in for it, has compiled it."""
        made = Compiler().compile_python(spec, variant, arch)
        unit = Unit(spec.name, spec.cuda, made.symbol, 1, False, (), (), arch)
        return replace(self.compile(unit), block=made.block, shared=made.shared)


# ---- data that is not in the parameters ---------------------------------------------------------------------------
def _pack(launch: Launch, limits: Limits) -> PackedLaunch | None:
    packed = launch_params.pack(launch, limits)
    if packed is not None:
        spec = launch.kernel
        known: object = launch if spec.abi == "pointers" or spec.constants else spec
        number = _numbers.setdefault(id(known), len(KERNELS))
        if number == len(KERNELS):
            KERNELS.append(known)
        packed.parameters.extend(bytes(-len(packed.parameters) % 8) + struct.pack("<Q", number))
    return packed


_numbers: dict[int, int] = {}


def _array(gpu: SimulatedGpu, address: int, layout: Layout) -> "np.ndarray[Any, Any] | None":
    found = placed(gpu, address + layout.offset, layout)
    if found is None:
        return None
    memory: Any = found[0]
    return np.ndarray(layout.shape, layout.dtype, memory.block, found[1], layout.strides)


def _numbered(made: Any, act: Callable[..., None]) -> Any:
    if not isinstance(made, BuiltinWork):
        return made
    made = replace(made, arguments=made.arguments + struct.pack("<Q", len(OWN)))
    OWN.append((made, act))
    return made


def _fill(recipe: Any, layout: Layout) -> Any:
    def act(gpu: SimulatedGpu, out: int, *seed: int) -> None:
        array = _array(gpu, out, layout)
        if array is not None:
            write(with_seed(recipe, *seed) if seed else recipe, array)

    return _numbered(fill_and_copy.fill(recipe, layout), act)


def _copy(out: Layout, source: Layout, *, by_kernel: bool = False) -> Any:
    def act(gpu: SimulatedGpu, to: int, origin: int) -> None:
        target, values = _array(gpu, to, out), _array(gpu, origin, source)
        if target is not None and values is not None:
            with np.errstate(all="ignore"):
                np.copyto(target, values, casting="unsafe")

    return _numbered(fill_and_copy.copy(out, source, by_kernel=by_kernel), act)


def _decide(counts: Sequence[int]) -> BuiltinWork:
    def act(gpu: SimulatedGpu, *addresses_and_handle: int) -> None:
        *addresses, handle = addresses_and_handle
        flags = [gpu.bytes_at(address, 4 * count) for address, count in zip(addresses, counts, strict=True)]
        if handle not in gpu.machine.conditions:
            gpu.machine.problem(f"{handle:#x} is the handle of no condition")
        gpu.machine.conditions[handle] = any(each is not None and each.any() for each in flags)

    made: BuiltinWork = _numbered(fill_and_copy.decide(counts), act)
    return made


def _addresses(count: int) -> BuiltinWork:
    def act(gpu: SimulatedGpu, out: int, *addresses: int) -> None:
        memory = gpu.bytes_at(out, 8 * count)
        if memory is not None:
            memory[:] = np.frombuffer(struct.pack(f"<{count}Q", *addresses), np.uint8)

    made: BuiltinWork = _numbered(fill_and_copy.addresses(count), act)
    return made


# ---- replacement of the driver ----------------------------------------------------------------------------------
def _poison_free(pool: Pool, machine: Machine) -> None:
    """Overwrite memory as soon as it is returned to a pool: from then on, no stream may use it."""

    class Poisoning(deque[Reference[tuple[int, int, int]]]):
        def append(self, dropped: Reference[tuple[int, int, int]]) -> None:
            address, _, size = dropped.resource
            if size and address not in pool.visited:
                machine.poison(address, size)
            super().append(dropped)

    class Poisoned(Pool):  # type: ignore[misc]  # reason: it is final for all but this
        __slots__ = ()

        def _make_idle(self, address: int, size: int) -> None:  # parked memory becomes free here
            machine.poison(address, size)
            super()._make_idle(address, size)

    pool.dropped = ReferenceQueue(Poisoning())
    pool.__class__ = Poisoned


@contextmanager
def _compiler_put_back() -> Iterator[None]:
    """Within the `with` block, no backend compiles kernels ahead of time, until one is opened."""
    before = COMPILER.value
    COMPILER.set(None)
    try:
        yield
    finally:
        COMPILER.set(before)


@contextmanager
def installed(
    seed: int = 0, gpus: int = 2, *, limits: Limits = LIMITS, memory: int = 1 << 32, pinned: int = 1 << 32
) -> Iterator[Machine]:
    """Within the `with` block, `cuda:0`, `cuda:1`, ... are simulated, and `cuda:0` is the current device.

    Each device has `memory` bytes of memory. The host can lock `pinned` bytes in total.
    """
    machine = Machine(seed, pinned)
    machine.gpus = [SimulatedGpu(machine, index, memory, limits) for index in range(gpus)]
    cuda = CudaBackend(
        lambda: machine.gpus,
        lambda: SimulatedCompiler(machine),
        LaunchFactories(_pack, _fill, _copy, _decide, _addresses),
    )
    with (
        pytest.MonkeyPatch.context() as patch,
        replaced_backend("cuda", cuda),
        _compiler_put_back(),
        places.counted("cuda", gpus),
    ):
        patch.setenv("DAGPU_DEVICE", "cuda:0")
        for number in range(gpus):
            found = driver(number)
            _poison_free(found.memory, machine)
            _poison_free(found.pinned, machine)
            machine.looks.append(found.watchdog.poll_all)
        try:
            yield machine
        finally:
            machine.shut_down()
            plans.clear()  # they belong to this machine
    assert not machine.problems, machine.problems
    assert machine.no_context_left()


def driver(number: int = 0) -> CudaDevice:
    """Return the driver of `cuda:<number>`."""
    cuda = backend("cuda")
    assert isinstance(cuda, CudaBackend)
    return cuda._find(number)[1]  # noqa: SLF001  # the simulator has no other way in
