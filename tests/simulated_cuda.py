"""`installed` puts simulated GPUs in the place of `cuda:0` and `cuda:1`: the driver, the compiler and the kernels.

What dagpu's own kernels mean is in their text, which nobody here can run, and the shapes of plain pointers are nowhere:
wrappers around what prepares launches put a number behind the parameters, by which they are found. A driver would not
look at it.
"""

import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, final

import numpy as np
import pytest

from dagpu.backends.cuda import backend as backend_module
from dagpu.backends.cuda import builtin, packing, prepared
from dagpu.backends.cuda import device as device_module
from dagpu.backends.cuda.backend import CudaBackend
from dagpu.backends.cuda.builtin import Builtin
from dagpu.backends.cuda.device import CudaDevice
from dagpu.backends.cuda.driver import Extents, Function, Limits
from dagpu.backends.cuda.memory import Pool
from dagpu.backends.cuda.packing import Packed, entry_of
from dagpu.backends.host.recipes import write
from dagpu.errors import CompileError
from dagpu.layout import Layout
from dagpu.lowering.program import Launch
from dagpu.ops.launch import KernelSpec
from dagpu.ops.recipes import seeded
from dagpu.runtime.device import backend
from dagpu.runtime.kept import plans
from tests import places
from tests.simulated_gpu import LIMITS, SimulatedGpu
from tests.simulated_kernels import PLAIN, Loaded, placed, refuse
from tests.simulated_machine import Machine


@final
class SimulatedLibrary:
    """In the place of `dagpu.backends.cuda.library.Library`."""

    def __init__(self, gpu: Any, compiler: object) -> None:
        self.gpu: SimulatedGpu = gpu
        self.compiled: list[str] = []
        """Names, in order."""
        self._units: set[object] = set()
        self._functions: dict[tuple[int, int], tuple[KernelSpec, Function]] = {}
        self._own = Function(self._launch, gpu.limits.threads, 0, 32, lambda nbytes: None)

    def found(self, spec: KernelSpec, variant: int) -> Function | None:
        """A kernel, if it has been compiled."""
        if entry_of(spec, variant) not in self._units:
            return None
        key = id(spec), variant
        if key not in self._functions:
            self._functions[key] = spec, Loaded(self.gpu, spec, variant).function
        return self._functions[key][1]

    def kernel(self, spec: KernelSpec, variant: int) -> Function:
        """A kernel; text with an `#error` in it does not compile."""
        if "#error" in spec.cuda:
            raise CompileError(f"{spec.name}: #error")
        if entry_of(spec, variant) not in self._units:
            self.compiled.append(spec.name)
            self._units.add(entry_of(spec, variant))
        function = self.found(spec, variant)
        assert function is not None
        return function

    def builtin_found(self, made: Builtin) -> Function | None:
        """One of dagpu's own kernels, if it has been compiled."""
        return self._own if (made.source, made.name) in self._units else None

    def builtin(self, made: Builtin) -> Function:
        """One of dagpu's own kernels."""
        if self.builtin_found(made) is None:
            self.compiled.append(made.name)
            self._units.add((made.source, made.name))
        return self._own

    def _launch(self, grid: Extents, block: Extents, parameters: Any, shared: int, stream: Any) -> None:
        with self.gpu.bound("cuLaunchKernel"):
            stream.put(self.act(grid, block, parameters, shared), takes_room=True)

    def act(self, grid: Extents, block: Extents, parameters: Any, shared: int) -> Callable[[], None]:
        """What a launch of one of dagpu's own kernels does."""
        text = bytes(parameters)
        made, act = OWN[int.from_bytes(text[-8:], "little")]
        addresses = [int.from_bytes(text[at : at + 8], "little") for at in made.pointers]
        plain = bytearray(text)
        for at in made.pointers:
            plain[at : at + 8] = bytes(8)
        numbers = []
        if made.seed is not None:
            numbers.append(int.from_bytes(text[made.seed : made.seed + 8], "little"))
            plain[made.seed : made.seed + 8] = bytes(8)
        assert plain == made.arguments
        assert (grid, block) == (made.grid, made.block)
        refuse(self.gpu, grid, block, shared)
        return lambda: act(self.gpu, *addresses, *numbers)


# ---- what is not in the parameters --------------------------------------------------------------------------------
OWN: Final[list[tuple[Builtin, Callable[..., None]]]] = []


def _pack(launch: Launch, limits: Limits) -> Packed | None:
    packed = packing.pack(launch, limits)
    if packed is not None and launch.kernel.abi == "pointers":
        packed.parameters.extend(bytes(-len(packed.parameters) % 8) + struct.pack("<Q", len(PLAIN)))
        PLAIN.append(launch)
    return packed


def _array(gpu: SimulatedGpu, address: int, layout: Layout) -> "np.ndarray[Any, Any] | None":
    found = placed(gpu, address + layout.offset, layout)
    if found is None:
        return None
    memory: Any = found[0]
    return np.ndarray(layout.shape, layout.dtype, memory.block, found[1], layout.strides)


def _numbered(made: Any, act: Callable[..., None]) -> Any:
    if not isinstance(made, Builtin):
        return made
    made = replace(made, arguments=made.arguments + struct.pack("<Q", len(OWN)))
    OWN.append((made, act))
    return made


def _fill(recipe: Any, layout: Layout) -> Any:
    def act(gpu: SimulatedGpu, out: int, *seed: int) -> None:
        array = _array(gpu, out, layout)
        if array is not None:
            write(seeded(recipe, *seed) if seed else recipe, array)

    return _numbered(builtin.fill(recipe, layout), act)


def _copy(out: Layout, source: Layout, *, rows: bool = True) -> Any:
    def act(gpu: SimulatedGpu, to: int, origin: int) -> None:
        target, values = _array(gpu, to, out), _array(gpu, origin, source)
        if target is not None and values is not None:
            with np.errstate(all="ignore"):
                np.copyto(target, values, casting="unsafe")

    return _numbered(builtin.copy(out, source, rows=rows), act)


# ---- in the place of the driver ---------------------------------------------------------------------------------
def _poison_free(pool: Pool, machine: Machine) -> None:
    """Overwrite what is dropped into a pool, at once: nobody may use it from then on, on any stream."""

    class Poisoning(type(pool.dropped)):  # type: ignore[misc]  # reason: a deque, of the pool's own parameters
        def append(self, dropped: tuple[int, int, int]) -> None:
            if dropped[2]:
                machine.poison(dropped[0], dropped[2])
            super().append(dropped)

    pool.dropped = Poisoning()


@contextmanager
def installed(
    seed: int = 0, gpus: int = 2, *, limits: Limits = LIMITS, memory: int = 1 << 32, pinned: int = 1 << 32
) -> Iterator[Machine]:
    """Within the `with` block `cuda:0`, `cuda:1`, ... are simulated, and `cuda:0` is the current device.

    Each has so many bytes of `memory`, and the host can lock so many (`pinned`) for all.
    """
    machine = Machine(seed, pinned)
    machine.gpus = [SimulatedGpu(machine, index, memory, limits) for index in range(gpus)]
    cuda = backend("cuda")
    assert isinstance(cuda, CudaBackend)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend_module, "open_gpus", lambda: machine.gpus)
        patch.setattr(backend_module, "load_nvrtc", lambda: None)
        patch.setattr(backend_module, "Compiler", lambda nvrtc: None)
        patch.setattr(device_module, "Library", SimulatedLibrary)
        patch.setattr(prepared, "pack", _pack)
        patch.setattr(prepared, "fill", _fill)
        patch.setattr(prepared, "copy", _copy)
        patch.setattr(sys.modules["dagpu.kernel"], "_compiler", None)
        patch.setattr(cuda, "_devices", None)
        patch.setattr(cuda, "_missing", None)
        patch.setattr(places, "_count", lambda kind: gpus if kind == "cuda" else places.HOST_DEVICES)
        patch.setenv("DAGPU_DEVICE", "cuda:0")
        for number in range(gpus):
            found = driver(number)
            _poison_free(found.memory, machine)
            _poison_free(found.pinned, machine)
        try:
            yield machine
        finally:
            machine.shut_down()
            plans.clear()  # they are of this machine
    assert not machine.problems
    assert machine.no_context_left()


def driver(number: int = 0) -> CudaDevice:
    """What drives `cuda:<number>`."""
    cuda = backend("cuda")
    assert isinstance(cuda, CudaBackend)
    return cuda._find(number)[1]
