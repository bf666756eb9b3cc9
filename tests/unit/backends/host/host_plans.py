"""Plans of the host backend, written instruction by instruction."""

import gc
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import pytest

from dagpu.backends.host import HostMemory
from dagpu.backends.host.body_checks import Tile
from dagpu.common.layout import Layout
from dagpu.common.places import Origin, here
from dagpu.testing import (
    ALIGNMENT,
    HOST,
    Allocate,
    Buffer,
    Cell,
    Execute,
    Form,
    HostBackend,
    HostBody,
    HostCall,
    Instruction,
    KernelSpec,
    Lane,
    Launch,
    Param,
    Plan,
    Record,
    Release,
    Role,
    Run,
    Step,
    Tiles,
    View,
    Wait,
    check_tiling,
    contiguous_layout,
)

F32 = np.dtype(np.float32)
PATIENCE = 30.0
"""Seconds after which a test calls it a hang."""


def origin() -> Origin:
    """A place in this file."""
    return here()


def kernel(
    body: Callable[..., object] | None, *, whole: bool = False, name: str = "step", inputs: int = 0
) -> KernelSpec:
    """A kernel with this host body, one output `y` and so many inputs."""
    y = Param("y", Form.OUT, None, None, None, False)
    others = [Param(f"x{n}", Form.IN, None, None, None, False) for n in range(inputs)]
    return KernelSpec(
        name=name, params=(y, *others), cuda="", source_name="", abi="views", block=None, options=(), checked=False,
        origin=None, host=HostBody(body, whole),  # type: ignore[arg-type]  # reason: tests give wrong bodies too
    )  # fmt: skip


class Builder:
    """A plan in the making. Buffers and lanes are numbered as they come."""

    def __init__(self, *lanes: Hashable, devices: tuple[str, ...] = ("host:0",)) -> None:
        self.devices = devices
        self.lanes = [Lane(0, key) for key in lanes or (0,)]
        self.buffers: list[Buffer] = []
        self.steps: list[Step] = []
        self.given: dict[int, object] = {}
        self.events = 0

    def buffer(self, nbytes: int = 64, *, role: Role = Role.OUTPUT, lane: int = 0, device: int = 0) -> int:
        """A buffer that is allocated in the plan."""
        self.buffers.append(Buffer(nbytes, device, role))
        self.steps.append(Allocate(len(self.buffers) - 1, lane))
        return len(self.buffers) - 1

    def given_memory(self, memory: HostMemory) -> int:
        """An input buffer."""
        self.buffers.append(Buffer(memory.nbytes, 0, Role.INPUT))
        self.given[len(self.buffers) - 1] = memory
        return len(self.buffers) - 1

    def cell(self, value: object = None) -> int:
        self.buffers.append(Buffer(0, HOST, Role.INPUT))
        self.given[len(self.buffers) - 1] = value
        return len(self.buffers) - 1

    def put(self, instruction: Instruction, lane: int = 0) -> Instruction:
        self.steps.append(Execute(instruction, lane))
        return instruction

    def launch(
        self,
        body: Callable[..., object] | None,
        out: int,
        *inputs: int,
        lane: int = 0,
        layout: Layout | None = None,
        tile: tuple[int, ...] | None = None,
        grid: tuple[int, ...] | None = None,
        whole: bool = False,
    ) -> Instruction:
        """A launch that writes buffer `out` and reads `inputs`, all of the same layout."""
        layout = layout or contiguous_layout((16,), F32)
        cut, own = (
            check_tiling(layout.shape, tile or layout.shape, True) if layout.size else (tile or (1,), grid or (0,))
        )
        views = tuple(View(i, layout) for i in inputs)
        args = (Tiles(View(out, layout), cut, own), *views)
        spec = kernel(body, whole=whole, inputs=len(inputs))
        return self.put(Launch(spec, args, own if grid is None else grid, inputs, (out,), 0, origin()), lane)

    def call(self, function: Callable[[Any], object], argument: object, out: int, *reads: int, lane: int = 0) -> None:
        self.put(HostCall(function, argument, Cell(out), reads, (out,), 0, origin()), lane)

    def after(self, first: int, then: int) -> None:
        """Make the next step of lane `then` wait for all steps so far in lane `first`."""
        self.steps += [Record(self.events, first), Wait(self.events, then)]
        self.events += 1

    def release(self, buffer: int, lane: int = 0) -> None:
        self.steps.append(Release(buffer, lane))

    def plan(self) -> Plan:
        """Each temporary has bytes of its own."""
        ends = [0] * len(self.devices)
        offsets: list[int] = []
        for buffer in self.buffers:
            inside = buffer.role is Role.TEMPORARY and buffer.device != HOST
            offsets.append(ends[buffer.device] if inside else -1)
            if inside:
                ends[buffer.device] += -(-buffer.nbytes // ALIGNMENT) * ALIGNMENT
        lanes, buffers, steps = tuple(self.lanes), tuple(self.buffers), tuple(self.steps)
        return Plan(self.devices, lanes, buffers, steps, self.events, sum(ends), tuple(offsets), tuple(ends))

    def bindings(self) -> list[Any]:
        bindings: list[Any] = [None] * len(self.buffers)
        for buffer, value in self.given.items():
            bindings[buffer] = value
        return bindings

    def start(self, backend: HostBackend) -> tuple[Run, list[Any]]:
        bindings = self.bindings()
        return backend.prepare(self.plan()).submit(bindings), bindings

    def run(self, backend: HostBackend) -> list[object]:
        """Run it without failures; gives what the buffers are bound to."""
        run, bindings = self.start(backend)
        finish(run)
        assert [f.error for f in run.failures()] == []
        return bindings

    def fail(self, backend: HostBackend) -> BaseException:
        """Run it; gives the one error."""
        run, _ = self.start(backend)
        finish(run)
        (failure,) = run.failures()
        return failure.error


def finish(run: Run) -> None:
    assert run.wait(PATIENCE), "hangs"


def bytes_of(memory: object, dtype: Any = np.float32) -> "np.ndarray[Any, Any]":
    assert isinstance(memory, HostMemory)
    return memory.block.view(dtype)


def used(backend: HostBackend, index: int = 0) -> int:
    gc.collect()
    return backend.device(index).memory_used()


def adding(amount: float) -> Callable[..., None]:
    def body(y: Tile[Any], *xs: "np.ndarray[Any, Any]") -> None:
        y[...] = amount
        for x in xs:
            y += x[y.at]

    return body


@pytest.fixture
def backend() -> HostBackend:
    return HostBackend()
