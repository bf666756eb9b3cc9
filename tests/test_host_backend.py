"""The host backend replays plans: what each instruction does, order, failures, cancelling, memory and
threads.

Plans are made here straight from the data types. Nothing sleeps: threads meet at barriers and events, and
every wait has a deadline, so that a hang is a failure.
"""

import gc
import random
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import pytest

from dagpu.backends.base import Backend, Bindings, Replay
from dagpu.backends.host import HostBackend, HostMemory
from dagpu.backends.host.backend import SPREAD
from dagpu.backends.host_work import resolve
from dagpu.critical import in_user_code
from dagpu.device import Driver, driver_of
from dagpu.dtypes import bf16
from dagpu.errors import DagpuError, NoDeviceError, OutOfMemoryError, PlanError, ShapeError
from dagpu.layout import Layout, contiguous, sliced, tiling
from dagpu.lowering.plan import ALIGNMENT, Allocate, Execute, Lane, Plan, Record, Release, Step, Wait
from dagpu.lowering.program import (
    HOST,
    Buffer,
    Cell,
    CopyDtoD,
    CopyDtoH,
    CopyHtoD,
    Fill,
    HostCall,
    Instruction,
    Items,
    Launch,
    Role,
    Tiles,
    View,
)
from dagpu.ops.launch import HostBody, KernelSpec, Param
from dagpu.ops.recipes import Constant
from dagpu.origin import Origin, here
from dagpu.tile import Tile

F32 = np.dtype(np.float32)
PATIENCE = 30.0
"""Seconds after which a test calls it a hang."""


def origin() -> Origin:
    """A place in this file."""
    return here()


def kernel(body: Callable[..., object] | None, *, whole: bool = False, name: str = "step") -> KernelSpec:
    """A kernel with this host body and one output `y`."""
    y = Param("y", "out", None, None, None, False)
    return KernelSpec(
        name=name, params=(y,), cuda="", source_name="", abi="views", block=None, options=(), checked=False,
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
        layout = layout or contiguous((16,), F32)
        cut, own = tiling(layout.shape, tile or layout.shape, True) if layout.size else (tile or (1,), grid or (0,))
        views = tuple(View(i, layout) for i in inputs)
        args = (Tiles(View(out, layout), cut, own), *views)
        spec = kernel(body, whole=whole)
        return self.put(Launch(spec, args, own if grid is None else grid, inputs, (out,), 0, origin()), lane)

    def call(self, function: Callable[[Any], object], argument: object, out: int, *reads: int, lane: int = 0) -> None:
        self.put(HostCall(function, argument, out, reads, (out,), 0, origin()), lane)

    def after(self, first: int, then: int) -> None:
        """What comes next in lane `then` waits for all before in lane `first`."""
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

    def bindings(self) -> Bindings:
        bindings = Bindings(len(self.buffers))
        for buffer, value in self.given.items():
            bindings.memory[buffer] = value
        return bindings

    def start(self, backend: HostBackend) -> tuple[Replay, Bindings]:
        bindings = self.bindings()
        return backend.prepare(self.plan()).submit(bindings), bindings

    def run(self, backend: HostBackend) -> list[object]:
        """Run it without failures; gives what the buffers are bound to."""
        replay, bindings = self.start(backend)
        finish(replay)
        assert [f.error for f in replay.failures()] == []
        return bindings.memory

    def fail(self, backend: HostBackend) -> BaseException:
        """Run it; gives the one error."""
        replay, _ = self.start(backend)
        finish(replay)
        (failure,) = replay.failures()
        return failure.error


def finish(replay: Replay) -> None:
    assert replay.wait(PATIENCE), "hangs"


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


# ---- devices
# -----------------------------------------------------------------------------------------------------


def test_it_is_a_backend(backend: HostBackend) -> None:
    """It has the shape of `Backend`, one device unless asked for more, and 20 us of spinning."""
    as_backend: Backend = backend
    driver: Driver = driver_of(backend.device(0))
    assert (as_backend.kind, as_backend.device_count(), as_backend.spin()) == ("host", 1, 20e-6)
    assert driver.stream_handle(driver.open_stream()) == 0


def test_devices_exist_up_to_the_limit(backend: HostBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device is the same object each time; past the limit the error names the variable that raises it."""
    assert backend.device(7) is backend.device(7)
    assert backend.device(7).name == "host:7"
    with pytest.raises(NoDeviceError, match=r"no device host:8.*set DAGPU_HOST_DEVICES=9"):
        backend.device(8)
    monkeypatch.setenv("DAGPU_HOST_DEVICES", "9")
    assert backend.device(8).index == 8
    monkeypatch.setenv("DAGPU_HOST_DEVICES", "many")
    with pytest.raises(ValueError, match="DAGPU_HOST_DEVICES='many' is not a whole number, 1 or more"):
        backend.device(10)


def test_memory_info_is_of_the_machine(backend: HostBackend) -> None:
    """Free memory is some, and no more than the total."""
    free, total = backend.device(0).memory_info()
    assert 0 < free <= total


def test_a_plan_for_another_kind_is_refused(backend: HostBackend) -> None:
    """A device name that is not the host's is an error at once."""
    with pytest.raises(NoDeviceError, match="'cuda:0'"):
        backend.prepare(Builder(devices=("cuda:0",)).plan()).submit(Bindings(0))


def test_a_lane_of_another_device_is_refused(backend: HostBackend) -> None:
    """A user's stream works on its own device only."""
    with pytest.raises(PlanError, match="no stream of that device"):
        backend.prepare(Builder(backend.device(1).stream().lane).plan()).submit(Bindings(0))


# ---- launches
# ----------------------------------------------------------------------------------------------------


def test_a_body_is_called_for_each_tile(backend: HostBackend) -> None:
    """Tiles come in C order with their place; those at the edge are smaller; inputs are whole and read-
    only."""
    seen: list[object] = []

    def body(y: Tile[Any], x: "np.ndarray[Any, Any]") -> None:
        seen.append((y.index, y.shape, y.at, x.shape, x.flags.writeable))
        y[...] = x[y.at] * 10

    build = Builder()
    layout = contiguous((3, 5), F32)
    x = HostMemory(driver_of(backend.device(0)).account, 60)  # type: ignore[attr-defined]  # reason: the host's driver
    bytes_of(x)[:] = range(15)
    out = build.buffer(60)
    build.launch(body, out, build.given_memory(x), layout=layout, tile=(2, 3))
    memory = build.run(backend)
    assert seen == [
        ((0, 0), (2, 3), (slice(0, 2), slice(0, 3)), (3, 5), False),
        ((0, 1), (2, 2), (slice(0, 2), slice(3, 5)), (3, 5), False),
        ((1, 0), (1, 3), (slice(2, 3), slice(0, 3)), (3, 5), False),
        ((1, 1), (1, 2), (slice(2, 3), slice(3, 5)), (3, 5), False),
    ]
    assert bytes_of(memory[out]).tolist() == [10.0 * i for i in range(15)]


def test_scalars_are_passed_as_they_are(backend: HostBackend) -> None:
    """A number among the arguments reaches the body in its position."""
    build = Builder()
    out = build.buffer()
    layout = contiguous((16,), F32)
    spec = kernel(lambda y, a: y.fill(a))
    build.put(Launch(spec, (Tiles(View(out, layout), (4,), (4,)), 2.5), (4,), (), (out,), 0, None))
    assert bytes_of(build.run(backend)[out]).tolist() == [2.5] * 16


def test_a_whole_body_is_called_once(backend: HostBackend) -> None:
    """Its tile is all of the output, at index zero, whatever the partition."""
    seen: list[object] = []
    build = Builder()
    layout = contiguous((4, 4), F32)
    build.launch(lambda y: seen.append((y.at, y.index)), build.buffer(), layout=layout, tile=(2, 2), whole=True)
    build.run(backend)
    assert seen == [((slice(0, 4), slice(0, 4)), (0, 0))]


@pytest.mark.parametrize(
    ("grid", "shapes"),
    [
        ((3,), [(2, 4), (2, 4), (0, 4)]),
        ((1, 2), [(2, 4), (2, 0)]),
        ((1, 1, 2), [(2, 4), (0, 0)]),
        ((0,), []),
    ],
)
def test_a_grid_of_its_own(backend: HostBackend, grid: tuple[int, ...], shapes: list[object]) -> None:
    """An index outside the output's grid gets an empty tile; axes that the grid lacks count as 0."""
    seen: list[object] = []
    build = Builder()
    build.launch(lambda y: seen.append(y.shape), build.buffer(), layout=contiguous((4, 4), F32), tile=(2, 4), grid=grid)
    build.run(backend)
    assert seen == shapes


def test_a_grid_of_its_own_over_no_axes(backend: HostBackend) -> None:
    """An output without axes is written at index 0; beyond it the tile is empty, so writing does nothing."""

    def body(y: Tile[Any]) -> None:
        calls.append(y.size)
        y[...] = len(calls)

    calls: list[int] = []
    build = Builder()
    out = build.buffer(4)
    build.launch(body, out, layout=contiguous((), F32), tile=(), grid=(3,))
    assert bytes_of(build.run(backend)[out]).tolist() == [1.0]
    assert calls == [1, 0, 0]


def test_more_tiles_than_are_kept_in_tables(backend: HostBackend) -> None:
    """A grid too big to keep is walked afresh, with the same places."""
    build = Builder()
    out = build.buffer(4 * 1000)

    def body(y: Tile[Any]) -> None:
        y[...] = y.index[0]

    build.launch(body, out, layout=contiguous((1000,), F32), tile=(2,))
    assert bytes_of(build.run(backend)[out]).tolist() == [i // 2 for i in range(1000)]


def test_nothing_is_called_for_no_elements(backend: HostBackend) -> None:
    """A tensor of no elements has no tiles, whole body or not."""
    for whole in (False, True):
        build = Builder()
        layout = contiguous((0, 4), F32)
        build.launch(lambda y: 1 / 0, build.buffer(0), layout=layout, tile=(1, 4), grid=(0, 1), whole=whole)
        build.run(backend)


def test_bfloat16(backend: HostBackend) -> None:
    """Elements that NumPy itself does not know are views of their bytes like any."""
    build = Builder()
    out = build.buffer(8)
    build.launch(adding(1.5), out, layout=contiguous((4,), np.dtype(bf16)), tile=(2,))
    assert bytes_of(build.run(backend)[out], bf16).astype(float).tolist() == [1.5] * 4


def test_a_kernel_without_host_body(backend: HostBackend) -> None:
    """The error names the kernel, the place of the launch and the cure."""
    build = Builder()
    build.launch(None, build.buffer())
    error = build.fail(backend)
    assert isinstance(error, DagpuError)
    assert "kernel step" in str(error)
    assert __file__ in str(error)
    assert "@step.host" in str(error)


def test_a_body_that_returns_something(backend: HostBackend) -> None:
    """A result that would be lost is an error that says where to write it."""
    build = Builder()
    build.launch(lambda y: y * 2, build.buffer())
    error = build.fail(backend)
    assert isinstance(error, DagpuError)
    assert "returned a value of type ndarray" in str(error)
    assert "y[...] =" in str(error)


# ---- tiles
# -------------------------------------------------------------------------------------------------------


def test_what_is_computed_from_a_tile_is_plain(backend: HostBackend) -> None:
    """Arithmetic and reductions forget that they came from a tile; in-place arithmetic is still the tile."""
    seen: list[type] = []

    def body(y: Tile[Any]) -> None:
        y[...] = 1
        before, at = y, y.at
        y += 1
        np.add(y, 1, out=y)
        assert y is before
        assert y.at is at
        seen.extend(map(type, (y * 2, y + y[0], y.sum(), np.sqrt(y), y.sum(axis=0), y == y, np.zeros(16) + y)))

    build = Builder()
    out = build.buffer()
    build.launch(body, out)
    assert bytes_of(build.run(backend)[out]).tolist() == [3.0] * 16
    assert seen == [np.ndarray, np.ndarray, np.float32, np.ndarray, np.float32, np.ndarray, np.ndarray]


def test_views_of_a_tile_write_to_it_and_have_no_place(backend: HostBackend) -> None:
    """A slice reaches the tile's memory; its `.at` and `.index` say that they are the tile's alone."""

    def body(y: Tile[Any]) -> None:
        part = y[4:]
        part[...] = 7
        with pytest.raises(AttributeError, match=r"no \.at of its own"):
            getattr(part, "at")  # noqa: B009  # NumPy's stub says that a slice is a plain array
        with pytest.raises(AttributeError, match=r"no \.index of its own"):
            getattr(part, "index")  # noqa: B009

    build = Builder()
    out = build.buffer()
    build.launch(body, out, whole=True)
    assert bytes_of(build.run(backend)[out])[4:].tolist() == [7.0] * 12


def test_a_tile_is_generic() -> None:
    """`Tile[np.float32]` may stand in an annotation that is read at run time."""
    assert Tile[np.float32] is not None


# ---- copies, fills, calls
# ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
def test_host_to_device_and_back(backend: HostBackend, shape: tuple[int, ...]) -> None:
    """What goes in comes out, as a new writable contiguous array that shares nothing with the first."""
    array = np.array(np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape), order="F")
    layout = contiguous(shape, F32)
    build = Builder()
    source, device, out = build.cell(array), build.buffer(layout.nbytes), build.cell()
    build.put(CopyHtoD(View(device, layout), source, (source,), (device,), 0, None))
    build.put(CopyDtoH(out, View(device, layout), (device,), (out,), 0, None))
    result = build.run(backend)[out]
    assert isinstance(result, np.ndarray)
    assert type(result) is np.ndarray
    assert (result.shape, result.dtype, result.base) == (shape, F32, None)
    assert result.flags.c_contiguous
    assert result.flags.writeable
    np.testing.assert_array_equal(result, array)


@pytest.mark.parametrize("wrong", [np.zeros(3, np.float32), np.zeros(4, np.float64), [1.0]])
def test_a_host_array_that_does_not_fit(backend: HostBackend, wrong: object) -> None:
    """Another shape or element type than the trace saw is an error, not a conversion."""
    build = Builder()
    source, device = build.cell(wrong), build.buffer(16)
    build.put(CopyHtoD(View(device, contiguous((4,), F32)), source, (source,), (device,), 0, origin()))
    error = build.fail(backend)
    assert isinstance(error, ShapeError)
    assert "expected an array of float32 and shape (4,), found" in str(error)
    assert __file__ in str(error)


def test_strided_copies(backend: HostBackend) -> None:
    """Views with steps, negative ones too, are read and written where their strides say."""
    layout = contiguous((8,), F32)
    build = Builder()
    source, a, b, out = (
        build.cell(np.arange(8, dtype=np.float32)),
        build.buffer(32),
        build.buffer(32),
        build.cell(),
    )
    backwards = sliced(layout, (slice(None, None, -2),))
    build.put(CopyHtoD(View(a, layout), source, (source,), (a,), 0, None))
    build.put(Fill(View(b, layout), Constant(-1.0), (), (b,), 0, None))
    build.put(CopyDtoD(View(b, sliced(layout, (slice(0, 8, 2),))), View(a, backwards), (a,), (b,), 0, None))
    build.put(CopyDtoH(out, View(b, layout), (b,), (out,), 0, None))
    result = build.run(backend)[out]
    assert isinstance(result, np.ndarray)
    assert result.tolist() == [7, -1, 5, -1, 3, -1, 1, -1]


@pytest.mark.parametrize("target", [np.int8, np.float64, np.bool_, bf16])
def test_converting_copies_warn_of_nothing(backend: HostBackend, target: Any) -> None:
    """A copy between element types converts as `astype` does, and says nothing of what does not fit."""
    values = np.array([0.0, 1.5, -3.0, 1e30, np.nan], np.float32)
    with np.errstate(all="ignore"):
        expected = values.astype(target)
    layout, there = contiguous((5,), F32), contiguous((5,), np.dtype(target))
    build = Builder()
    source, a, b, out = build.cell(values), build.buffer(20), build.buffer(there.nbytes), build.cell()
    build.put(CopyHtoD(View(a, layout), source, (source,), (a,), 0, None))
    build.put(CopyDtoD(View(b, there), View(a, layout), (a,), (b,), 0, None))
    build.put(CopyDtoH(out, View(b, there), (b,), (out,), 0, None))
    result = build.run(backend)[out]
    assert isinstance(result, np.ndarray)
    assert result.tobytes() == expected.tobytes()


def test_copies_between_devices(backend: HostBackend) -> None:
    """A buffer counts on its own device; a copy reaches across."""
    build = Builder(devices=("host:0", "host:1"))
    a, b, out = build.buffer(64), build.buffer(64, device=1), build.cell()
    layout = contiguous((16,), F32)
    build.put(Fill(View(a, layout), Constant(4.0), (), (a,), 0, None))
    build.put(CopyDtoD(View(b, layout), View(a, layout), (a,), (b,), 1, None))
    build.put(CopyDtoH(out, View(b, layout), (b,), (out,), 1, None))
    memory = build.run(backend)
    result = memory[out]
    assert isinstance(result, np.ndarray)
    assert result.tolist() == [4.0] * 16
    assert (used(backend, 0), used(backend, 1)) == (64, 64)
    memory[a] = None
    assert (used(backend, 0), used(backend, 1)) == (0, 64)


def test_a_host_call_gets_its_cells(backend: HostBackend) -> None:
    """The argument is rebuilt with the cells' values; the result goes to a cell."""
    build = Builder()
    a, b, out = build.cell("a"), build.cell("b"), build.cell()
    build.call(lambda x: ("got", x), Items((Cell(a), 1, Items((Cell(b), (Cell,))))), out, a, b)
    assert build.run(backend)[out] == ("got", ("a", 1, ("b", (Cell,))))


def test_templates_nest_to_any_depth() -> None:
    """A hundred thousand tuples in each other do not meet the recursion limit."""
    template: object = Cell(0)
    for _ in range(100_000):
        template = Items((template,))
    value = resolve(template, ["deep"])
    while isinstance(value, tuple):
        (value,) = value
    assert value == "deep"
    while isinstance(template, Items):  # taken apart here, where no destructor recurses
        (template,) = template.items


def test_user_code_is_inside_a_run(backend: HostBackend) -> None:
    """Bodies and host calls are marked as inside a run, so that a run in them is refused."""
    seen: list[bool] = []
    build = Builder()
    build.launch(lambda y: seen.append(in_user_code()), build.buffer())
    build.call(lambda x: seen.append(in_user_code()), None, build.cell())
    build.run(backend)
    assert seen == [True, True]
    assert not in_user_code()


# ---- order
# -------------------------------------------------------------------------------------------------------


def test_lanes_overlap(backend: HostBackend) -> None:
    """Two launches in two lanes run at the same time: each waits inside its body for the other."""
    both = threading.Barrier(2)

    def meet(y: Tile[Any]) -> None:
        both.wait(PATIENCE)

    build = Builder(0, 1)
    for lane in (0, 1):
        build.launch(meet, build.buffer(lane=lane), lane=lane)
    build.run(backend)


def test_devices_overlap(backend: HostBackend) -> None:
    """Lane 0 of one device is not lane 0 of another."""
    both = threading.Barrier(2)

    def meet(y: Tile[Any]) -> None:
        both.wait(PATIENCE)

    build = Builder(devices=("host:0", "host:1"))
    build.lanes.append(Lane(1, 0))
    for lane in (0, 1):
        build.launch(meet, build.buffer(lane=lane), lane=lane)
    build.run(backend)


def test_a_wait_holds_until_the_record(backend: HostBackend) -> None:
    """Lane 1 does nothing until lane 0 has written, however long that takes."""
    log: list[str] = []
    go = threading.Event()
    build = Builder(0, 1)
    a, b = build.buffer(), build.buffer()

    def first(y: Tile[Any]) -> None:
        assert go.wait(PATIENCE)
        log.append("first")

    build.launch(first, a)
    build.after(0, 1)
    build.launch(lambda y, x: log.append("second"), b, a, lane=1)
    replay, _ = build.start(backend)
    assert not replay.wait(0.0)
    assert not replay.done()
    go.set()
    finish(replay)
    assert log == ["first", "second"]


def test_lanes_that_are_one_stream(backend: HostBackend) -> None:
    """Lanes of one key, and lanes 64 apart, share a thread; events between them are in the plan's order."""
    for other in (0, 64):
        build = Builder(0, other)
        a, b = build.buffer(), build.buffer()
        build.launch(adding(1), a)
        build.after(0, 1)
        build.launch(adding(2), b, a, lane=1)
        build.after(1, 0)
        build.launch(adding(3), a, b)
        assert bytes_of(build.run(backend)[a])[0] == 6


def test_a_plan_of_no_steps_is_done_at_once(backend: HostBackend) -> None:
    """Nothing to do takes no thread."""
    replay, _ = Builder(0, 1).start(backend)
    called: list[int] = []
    replay.when_done(lambda: called.append(1))
    assert (replay.done(), replay.wait(), replay.failures(), called) == (True, True, [], [1])


def test_when_done_calls_back_once(backend: HostBackend) -> None:
    """`wake` is called after the end, whether asked for before it or after."""
    go, woken = threading.Event(), threading.Semaphore(0)

    def hold(y: Tile[Any]) -> None:
        go.wait(PATIENCE)

    build = Builder()
    build.launch(hold, build.buffer())
    replay, _ = build.start(backend)
    states: list[bool] = []

    def wake() -> None:
        states.append(replay.done())
        woken.release()

    for _ in range(2):
        replay.when_done(wake)
    assert states == []
    go.set()
    assert woken.acquire(timeout=PATIENCE)
    assert woken.acquire(timeout=PATIENCE)
    replay.when_done(lambda: states.append(True))
    assert states == [True] * 3


# ---- failures
# ----------------------------------------------------------------------------------------------------


def test_errors_of_user_code_keep_their_type(backend: HostBackend) -> None:
    """The exception is the user's own object, with a note of the launch; its traceback starts in the user's
    file."""
    mine = KeyError("mine")

    def body(y: Tile[Any]) -> None:
        raise mine

    build = Builder()
    build.launch(body, build.buffer())
    error = build.fail(backend)
    assert error is mine
    (note,) = error.__notes__
    assert note.startswith(f"dagpu: in the host body of kernel step, launched at {__file__}:")
    assert [frame.name for frame in traceback.extract_tb(error.__traceback__)] == ["body"]
    build.fail(backend)
    assert len(error.__notes__) == 1


def test_errors_of_host_calls(backend: HostBackend) -> None:
    """They say that they come from a host_map and where it was built."""
    build = Builder()
    build.call(lambda x: x / 0, 1, build.cell())
    error = build.fail(backend)
    assert isinstance(error, ZeroDivisionError)
    assert error.__notes__[0].startswith(f"dagpu: in the function of the host_map at {__file__}:")


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_no_exception_ends_a_worker(backend: HostBackend, kind: type[BaseException]) -> None:
    """What would end a program is a failure like any, and the lane goes on with the next plan."""

    def body(y: Tile[Any]) -> None:
        raise kind

    build = Builder()
    build.launch(body, build.buffer())
    assert type(build.fail(backend)) is kind
    after = Builder()
    after.launch(adding(0), after.buffer())
    after.run(backend)


def test_failures_follow_the_data(backend: HostBackend) -> None:
    """What depends on a failed launch is skipped, across lanes; all else runs; failures come in the plan's
    order.

    a (fails) -> b -> c      d -> e      f (fails); b also overwrites d's input after d has read it
    """
    ran: list[str] = []

    def note(name: str) -> Callable[..., None]:
        return lambda *_: ran.append(name)

    def fail(y: Tile[Any]) -> None:
        raise ValueError

    build = Builder(0, 1)
    a, b, c, d, e, f, g = (build.buffer(lane=i % 2) for i in range(7))
    build.after(0, 1)
    build.after(1, 0)
    last = build.launch(fail, f, lane=1)
    first = build.launch(fail, a)
    build.launch(note("d"), d, b)
    build.launch(note("b"), b, a)
    build.after(0, 1)
    build.launch(note("c"), c, b, lane=1)
    build.launch(note("e"), e, d, lane=1)
    build.launch(note("g"), g, c, d, lane=1)
    build.launch(note("again"), a)
    replay, _ = build.start(backend)
    finish(replay)
    assert [failure.instruction for failure in replay.failures()] == [last, first]
    assert sorted(ran) == ["d", "e"]


def test_running_out_of_memory(backend: HostBackend) -> None:
    """It is said before anything has begun: how much, what is alive then, where, and the cure."""
    ran: list[str] = []
    for role in (Role.OUTPUT, Role.TEMPORARY):
        build = Builder()
        a, b, c = build.buffer(1 << 60, role=role), build.buffer(), build.buffer()
        build.launch(lambda y: ran.append("a"), a)
        build.launch(lambda y, x: ran.append("b"), b, a)
        build.launch(lambda y: ran.append("c"), c)
        with pytest.raises(OutOfMemoryError) as caught:
            build.start(backend)
        said = str(caught.value)
        assert "host:0: no room for 1,152,921,504,606,846,976 bytes" in said
        assert f"alive at the peak: Launch step at {__file__}" in said
        assert "(64 bytes)" in said
        assert "Let go of handles" in said
        assert ran == []
    del caught
    assert used(backend) == 0


# ---- cancelling
# --------------------------------------------------------------------------------------------------


def test_cancelling_skips_what_has_not_begun(backend: HostBackend) -> None:
    """What runs goes on to its end, and only then is the replay done; lanes that wait for it do not hang."""
    began, go = threading.Event(), threading.Event()
    ran: list[str] = []

    def slow(y: Tile[Any]) -> None:
        began.set()
        assert go.wait(PATIENCE)
        ran.append("slow")

    build = Builder(0, 1)
    a, b = build.buffer(), build.buffer()
    build.launch(slow, a)
    build.after(0, 1)
    build.launch(lambda y, x: ran.append("next"), b, a, lane=1)
    replay, _ = build.start(backend)
    assert began.wait(PATIENCE)
    replay.cancel()
    assert not replay.done()
    go.set()
    finish(replay)
    assert (ran, replay.failures()) == (["slow"], [])
    after = Builder(0, 1)
    after.launch(lambda y: ran.append("after"), after.buffer(lane=1), lane=1)
    after.run(backend)
    assert ran == ["slow", "after"]


# ---- memory and threads
# ------------------------------------------------------------------------------------------


def test_memory_is_aligned_and_counted(backend: HostBackend) -> None:
    """Blocks start at a multiple of 64 bytes, and count for as long as somebody holds them."""
    build = Builder()
    sizes = [1, 0, 100, 4096, 3]
    buffers = [build.buffer(size) for size in sizes]
    freed = build.buffer(1 << 20)
    build.release(freed)
    memory = build.run(backend)
    held = [memory[buffer] for buffer in buffers]
    starts = [m.block.ctypes.data for m in held if isinstance(m, HostMemory) and m.nbytes]
    assert [start % 64 for start in starts] == [0] * 4
    assert [m.block.nbytes for m in held if isinstance(m, HostMemory)] == sizes
    assert memory[freed] is None
    assert used(backend) == sum(sizes)
    del memory, held
    assert used(backend) == 0


def test_a_finished_replay_holds_nothing(backend: HostBackend) -> None:
    """Once it is done, neither it nor the idle workers keep the bindings, the plan, its functions or its
    arrays."""

    class Function:
        def __call__(self, argument: object) -> None:
            pass

    array, function = np.zeros(16, np.float32), Function()
    watched: list[weakref.ref[Any]] = [weakref.ref(array), weakref.ref(function)]
    build = Builder(0, 1)
    source, device, out = build.cell(array), build.buffer(), build.cell()
    build.put(CopyHtoD(View(device, contiguous((16,), F32)), source, (source,), (device,), 0, None))
    build.after(0, 1)
    build.call(function, Cell(source), out, source, lane=1)
    replay, bindings = build.start(backend)
    finish(replay)
    del array, function, build, bindings, source
    assert [ref() for ref in watched] == [None, None]
    assert backend.device(0).memory_used() == 0
    assert replay.done()


def test_an_error_of_ours_keeps_no_memory(backend: HostBackend) -> None:
    """Holding on to the exception of a failed run does not hold on to the run."""
    build = Builder()
    build.launch(None, build.buffer())
    error = build.fail(backend)
    assert error.__traceback__ is None
    assert backend.device(0).memory_used() == 0


def test_a_stream_of_ones_own_ends_with_its_last_reference(backend: HostBackend) -> None:
    """Its thread starts with the first work and goes when nobody has the stream any more."""
    stream = backend.device(0).stream()
    threads: list[threading.Thread] = []
    build = Builder(stream.lane)
    build.call(lambda x: threads.append(threading.current_thread()), None, build.cell())
    build.run(backend)
    build.run(backend)
    (thread,) = set(threads)
    assert thread.name == "dagpu-host:0/own-1"
    assert thread.daemon
    del stream, build
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_the_threads_of_a_backend_end_with_it() -> None:
    """Pool threads are named after their lane, are at most 64 for each device, and go with the backend."""
    backend = HostBackend()
    threads: set[threading.Thread] = set()
    build = Builder(*range(100))
    for lane in range(100):
        build.call(lambda x: threads.add(threading.current_thread()), None, build.cell(), lane=lane)
    build.run(backend)
    assert {thread.name for thread in threads} == {f"dagpu-host:0/{n}" for n in range(64)}
    del backend
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)


SCRIPT = """
import os, threading
from tests.test_host_backend import Builder, HostBackend, HostMemory, adding
backend = HostBackend()
def run():
    build = Builder(0, 1)
    a, b = build.buffer(), build.buffer()
    build.launch(adding(1), a)
    build.after(0, 1)
    build.launch(adding(2), b, a, lane=1)
    return build.run(backend)[b].block[:4].view('f4')[0]
assert run() == 3
child = os.fork()
if child == 0:
    assert threading.active_count() == 1
    assert run() == 3 and run() == 3
    assert threading.active_count() == 3
    print("child", flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert run() == 3
print("parent")
"""


def test_a_forked_child_starts_anew() -> None:
    """After a fork the child has no threads, starts its own, and both go on; the end of the process is
    quiet."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", SCRIPT],
        capture_output=True, text=True, check=False, timeout=PATIENCE * 2,
    )  # fmt: skip
    assert (done.stdout.split(), done.stderr, done.returncode) == (["child", "parent"], "", 0)


def random_plan(rng: random.Random, fails: bool) -> tuple[Builder, dict[int, float], list[Instruction]]:
    """Launches over up to 4 lanes, each after all that it depends on; what each output should hold; what
    should fail.

    Every step into another lane is ordered by an event, so the plan is right by construction.
    """
    lanes = rng.randint(1, 4)
    build = Builder(*rng.sample(range(6), lanes))
    made: list[tuple[int, int, int]] = []  # buffer, lane, when
    value: dict[int, float] = {}
    bad: set[int] = set()
    failing: list[Instruction] = []

    def fail(y: Tile[Any], *xs: object) -> None:
        raise ValueError("at random")

    for _ in range(rng.randint(1, 20)):
        lane = rng.randrange(lanes)
        inputs = rng.sample(made, min(len(made), rng.randint(0, 2)))
        for _, other, _ in inputs:
            if other != lane:
                build.after(other, lane)
        out = build.buffer(lane=lane)
        reads = tuple(buffer for buffer, _, _ in inputs)
        broken = fails and rng.random() < 0.1
        launched = build.launch(fail if broken else adding(len(made)), out, *reads, lane=lane)
        if broken or bad.intersection(reads):
            if not bad.intersection(reads):
                failing.append(launched)
            bad.add(out)
        else:
            value[out] = len(made) + sum(value[r] for r in reads)
        made.append((out, lane, len(build.steps)))
    return build, value, failing


@pytest.mark.parametrize("seed", range(3))
def test_many_plans_at_once(backend: HostBackend, seed: int) -> None:
    """200 plans from 4 threads with failures and cancels at random: no hang, right results, nothing left
    behind."""
    errors: list[BaseException] = []

    def client(number: int) -> None:
        rng = random.Random(1000 * seed + number)
        try:
            running = []
            for _ in range(50):
                build, value, failing = random_plan(rng, fails=rng.random() < 0.5)
                replay, bindings = build.start(backend)
                cancelled = rng.random() < 0.3
                if cancelled:
                    replay.cancel()
                running.append((replay, bindings, value, failing, cancelled))
                if rng.random() < 0.3:
                    finish(replay)
            for replay, bindings, value, failing, cancelled in running:
                finish(replay)
                failed = [failure.instruction for failure in replay.failures()]
                if cancelled:
                    assert [one for one in failing if one in failed] == failed
                    continue
                assert failed == failing
                for buffer, expected in value.items():
                    assert bytes_of(bindings.memory[buffer]).tolist() == [expected] * 16
        except BaseException as error:
            errors.append(error)

    before = threading.active_count()
    clients = [threading.Thread(target=client, args=(number,), daemon=True) for number in range(4)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join(4 * PATIENCE)
    assert not any(thread.is_alive() for thread in clients)
    assert errors == []
    assert threading.active_count() <= before + SPREAD
    assert used(backend) == 0
