"""What runs on a worker: a part, the values that it takes and gives, and its spans."""

import pickle
import sys
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final, TypeAlias, final
from weakref import WeakKeyDictionary

import numpy as np

from dagpu.backends.host.arrays import ALIGNMENT, Account, HostMemory
from dagpu.backends.host.measuring import FEEDS, MeasuredRun, SpanTrack, reset_recorder, set_recorder
from dagpu.cluster.blobs import Decoder
from dagpu.cluster.cutting import Version
from dagpu.common.errors import OperationCancelled
from dagpu.common.frozen import plain
from dagpu.common.layout import contiguous_layout, element_type
from dagpu.common.places import add_note
from dagpu.handles.handle_state import ModuleState
from dagpu.plans.plan import Execute, Plan
from dagpu.plans.policies import SingleStream
from dagpu.plans.prediction import forecast
from dagpu.plans.program import HOST, Buffer, Cell, CopyDtoH, CopyHtoD, Instruction, Launch, Program, Role, View
from dagpu.plans.scheduler import schedule
from dagpu.runtime.device_lookup import backend, find_device
from dagpu.runtime.loaded_plan import LoadedPlan, Settings, plan_program
from dagpu.runtime.run_call import raise_failures, start_call
from dagpu.runtime.waits import BlockingWaits, drive
from dagpu.tracing.signature import BoundArguments

Bytes: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"
_U8: Final = np.dtype(np.uint8)
_PLAIN: Final = (bool, float, str, type(None))
"""Types of host values that travel as they are, with smaller integers."""
_LARGE: Final = 1 << 63


@final
class Block:
    """Device memory that holds a version, or the bytes of one that has come from another worker."""

    __slots__ = ("device", "memory", "nbytes")

    def __init__(self, device: str, memory: Any, nbytes: int) -> None:
        self.device = device
        """The name of the device on this worker; empty for bytes in the worker's own memory."""
        self.memory = memory
        """The memory object of the device's backend, or an array of bytes."""
        self.nbytes = nbytes

    def content(self) -> Bytes:
        """Return the bytes: the memory itself on the host, a copy of device memory."""
        if not self.device:
            found: Bytes = self.memory
            return found
        if isinstance(self.memory, HostMemory):
            return self.memory.block
        return _download(self.device, self.memory, self.nbytes)

    def on(self, device: str) -> Any:
        """Return memory of a device that holds the version, which must not be written."""
        if self.device == device:
            return self.memory
        return upload(device, self.content())


def upload(device: str, content: Bytes) -> Any:
    """Return memory of a device with these bytes. On the host it is the array itself if its address suits."""
    if device.startswith("host"):
        if content.ctypes.data % ALIGNMENT == 0 or not content.nbytes:
            return HostMemory.over(content)
        memory = HostMemory(_ACCOUNT, content.nbytes)
        memory.block[...] = content
        return memory
    return _run_copy(device, content.nbytes, content, into_device=True)


def _download(device: str, memory: Any, nbytes: int) -> Bytes:
    found: Bytes = _run_copy(device, nbytes, memory, into_device=False)
    return found


_ACCOUNT: Final = Account()


def _run_copy(device: str, nbytes: int, content: Any, *, into_device: bool) -> Any:
    """Copy bytes from the host to a device or back, by a plan of one copy: all backends do it alike."""
    view = View(0 if not into_device else 1, contiguous_layout((nbytes,), _U8))
    cell, block = Buffer(0, HOST, Role.INPUT), Buffer(nbytes, 0, Role.OUTPUT)
    copy: Instruction = CopyHtoD(view, Cell(0), (0,), (1,), 0, None)
    if not into_device:
        cell, block = Buffer(nbytes, 0, Role.INPUT), Buffer(0, HOST, Role.OUTPUT)
        copy = CopyDtoH(Cell(1), view, (0,), (1,), 0, None)
    plan = schedule(Program((device,), (cell, block), (copy,), (SingleStream(),), (0,)))
    prepared = backend(device.partition(":")[0]).prepare(plan)
    if prepared.before_first is not None:
        prepared.before_first()
    bindings = [content, None]
    run = prepared.submit(bindings)
    run.wait()
    for failure in run.failures():
        raise failure.error
    return bindings[1]


@final
class PartValue:
    """Versions that a part has made: blocks of device memory, and the values of cells."""

    __slots__ = ("__weakref__", "blocks", "cells", "seconds")

    def __init__(
        self, blocks: Mapping[Version, Block], cells: Mapping[Version, Any], seconds: Mapping[str, float] | None = None
    ) -> None:
        self.blocks = dict(blocks)
        self.cells = dict(cells)
        self.seconds = {} if seconds is None else dict(seconds)
        """The times of functions of the host that were called for it, by their hashes; see `PartCall.function`."""

    def subset(self, versions: Iterable[Version]) -> "PartValue":
        """Return some of the versions, without a copy."""
        wanted = list(versions)
        return PartValue(
            {v: self.blocks[v] for v in wanted if v in self.blocks},
            {v: self.cells[v] for v in wanted if v in self.cells},
            self.seconds,
        )

    def __sizeof__(self) -> int:
        """Return the bytes that the value holds, for Dask."""
        arrays = [x.nbytes for x in self.cells.values() if isinstance(x, np.ndarray)]
        return 200 + sum([block.nbytes for block in self.blocks.values()]) + sum(arrays)

    def __repr__(self) -> str:
        return f"<PartValue of {len(self.blocks)} tensors and {len(self.cells)} host values>"


@final
class Pickled:
    """A host value as a pickle. It is loaded where it is used, so that reading it from the network runs no code."""

    __slots__ = ("content",)

    def __init__(self, content: bytes) -> None:
        self.content = content


def load_cell(cell: Any) -> Any:
    """Return a host value, which may have come from another process."""
    return pickle.loads(cell.content) if type(cell) is Pickled else cell


# ---- how Dask sends values: the bytes of tensors and arrays as frames, without a pickle


def write_value(value: PartValue) -> tuple[dict[str, Any], list[Any]]:
    """Return a value as a header of plain data and frames."""
    entries: list[tuple[Any, ...]] = []
    frames: list[Any] = []
    for version, block in value.blocks.items():
        entries.append(("block", version, block.nbytes))
        frames.append(_frame(block.content()) if block.nbytes else b"")
    for version, cell in value.cells.items():
        if type(cell) is np.ndarray and element_type(cell.dtype) is not None:
            entries.append(("array", version, cell.dtype.name, cell.shape))
            frames.append(_frame(np.ascontiguousarray(cell)) if cell.nbytes else b"")
        elif type(cell) in _PLAIN or (type(cell) is int and abs(cell) < _LARGE):
            entries.append(("plain", version, cell))
            frames.append(b"")
        else:
            import cloudpickle

            entries.append(("pickle", version))
            frames.append(cell.content if type(cell) is Pickled else cloudpickle.dumps(cell))
    return {"entries": entries, "seconds": value.seconds}, frames


def read_value(header: dict[str, Any], frames: list[Any]) -> PartValue:
    """Return the value of a header and frames. Its memory is that of the frames."""
    blocks: dict[Any, Block] = {}
    cells: dict[Any, Any] = {}
    for (kind, version, *about), frame in zip(header["entries"], frames, strict=True):
        named = tuple(version)
        if kind == "block":
            content = np.frombuffer(frame, np.uint8)
            content.flags.writeable = False
            blocks[named] = Block("", content, about[0])
        elif kind == "array":
            name, shape = about
            cells[named] = np.frombuffer(bytearray(frame), np.dtype(name)).reshape(tuple(shape))
        elif kind == "plain":
            (cells[named],) = about
        else:
            cells[named] = Pickled(bytes(frame))
    return PartValue(blocks, cells, header["seconds"])


def _frame(array: Any) -> memoryview:
    """Return the bytes of a contiguous array."""
    return memoryview(array.reshape(-1).view(np.uint8))


def register_frames() -> None:
    """Tell Dask how to send values."""
    from distributed.protocol.serialize import dask_deserialize, dask_serialize

    dask_serialize.register(PartValue)(write_value)
    dask_deserialize.register(PartValue)(read_value)


if "distributed" in sys.modules:  # a worker that gets a value imports this module to read it
    register_frames()


# ---- part spans
#
# Measures a part on a worker, and each of its instructions, for the trace of the process that runs the op.

Span: TypeAlias = tuple[str, str, float, float]
"""The name of a track, the name of a span, and its begin and end, in seconds of this process's `time.perf_counter`."""
PARTS_TRACK: Final = "parts"
"""The name of the track with the parts of a worker. The others have the names of its devices."""


@final
class _PartRecorder:
    """Keeps the measurements of a part. Implements `dagpu.backends.host.measuring.RunRecorder`."""

    def __init__(self) -> None:
        self._runs: list[MeasuredRun] = []
        self._devices: list[Sequence[str]] = []

    def begin(self, plan: Plan, streams: Sequence[object]) -> MeasuredRun:
        """Begin to measure a run of a plan."""
        measured = MeasuredRun(plan, forecast(plan, None), range(len(streams)), None)
        self._runs.append(measured)
        self._devices.append([plan.devices[lane.device] for lane in plan.lanes])
        return measured

    def track(self, name: str, process: str = FEEDS) -> SpanTrack:
        """Return a track that is not kept: a part has no feeds."""
        return SpanTrack(name, process)

    def spans(self) -> Iterator[Span]:
        """Yield the times of the instructions that have ended."""
        for run, there in zip(self._runs, self._devices, strict=True):
            for piece, span in zip(run.forecast.pieces, run.spans(), strict=True):
                if span is not None:
                    yield there[piece.lane], piece.name, *span


@contextmanager
def part_spans(name: str) -> Iterator[list[Span]]:
    """Measure the runs of this thread in the block, as one part. The list is filled when the block ends."""
    recorder, found = _PartRecorder(), list[Span]()
    token, begin = set_recorder(recorder), time.perf_counter()
    try:
        yield found
    finally:
        reset_recorder(token)
        found.append((PARTS_TRACK, name, begin, time.perf_counter()))
        found += recorder.spans()


# ---- part runs
#
# Runs a part on a worker: finds its plan, binds what it takes, waits, and returns what it gives.

PLANS: Final = 512
"""The number of plans that a worker keeps, those that it has used last."""
CANCELLED: Final = 10_000
"""The number of cancelled runs that a worker knows, the last ones: parts of them may still come."""
GRAPH_FROM: Final = 3
"""The run of a part's plan from which on it is one CUDA graph."""
FLAG_SECONDS: Final = 0.02
"""The time between two looks at whether the run of a part is cancelled, in seconds."""


@final
@plain
class StoredArray:
    """An array in a file that every worker can read."""

    path: str
    offset: int
    dtype: str
    shape: tuple[int, ...]

    def open(self) -> "np.ndarray[Any, Any]":
        """Return the array. Its elements are read as they are used."""
        return np.memmap(self.path, np.dtype(self.dtype), "r", self.offset, self.shape)


@final
@plain
class PartCall:
    """What a worker needs to run a part, besides the values of other keys."""

    run: str
    """The name of the run, to cancel its parts."""
    blob: bytes
    digest: str
    taken: tuple[tuple[int, int, Version | None], ...]
    """For each buffer that a value of another key fills: the buffer, the index of that value, and the version in it;
    None for a value that is an array itself."""
    given: Mapping[int, Any]
    """The values of the other inputs, by their buffers."""
    exports: tuple[Version, ...]
    gives: tuple[int, ...]
    """For each of `exports`, the buffer that holds it."""
    traced: str = ""
    """The name of the part in a trace; empty if its times are not wanted."""
    function: str = ""
    """The hash of the function of the host that is all of the part, if its time is wanted."""


@final
@plain
class BatchCall:
    """What a worker needs to run parts one after the other."""

    parts: tuple[PartCall, ...]
    """The parts. The values that they take have the indices of the parts that make them, and then of those that the
    worker gets."""
    codes: tuple[int | None, ...]
    """For each part, the index of its code among these values; None if it needs none."""
    gives: tuple[Version, ...]
    """The versions that others take."""


@final
class _LoadedPart:
    """The plan of a part, prepared for its runs."""

    __slots__ = ("loaded", "plan", "states")

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        launches = [step.instruction for step in plan.steps if isinstance(step, Execute)]
        found = [each.kernel.state for each in launches if isinstance(each, Launch)]
        self.states = sorted({state for state in found if state is not None}, key=id)
        """What its launches share with those of other parts, in one order for all parts."""
        where = find_device(plan.devices[0])
        self.loaded = LoadedPlan(plan, Settings(where, SingleStream(), True, GRAPH_FROM, None, False, None))
        self.loaded.keep(None, GRAPH_FROM)


@final
class PartRunner:
    """Runs parts. A worker process has one, for all of its threads."""

    def __init__(self) -> None:
        self._decoder = Decoder()
        self._plans: OrderedDict[str, _LoadedPart] = OrderedDict()
        self._lock = threading.Lock()
        self._running: Counter[str] = Counter()
        self._cancelled: dict[str, None] = {}
        """The last runs that were cancelled."""
        self._locks: WeakKeyDictionary[ModuleState, threading.Lock] = WeakKeyDictionary()
        """For the variables of each kernel's module, a lock of the part that changes them."""
        self._spans: dict[str, list[Span]] = {}
        """For each traced run, the times of its parts and their instructions."""

    def run(self, call: PartCall, codes: Mapping[str, bytes], values: Sequence[Any], worker: str = "") -> PartValue:
        """Run a part, and return the versions that it makes. `worker` names this process in errors.

        Raises:
            OperationCancelled: the run of the part is cancelled.
        """
        with self._counted(call.run):
            try:
                return self._run(call, codes, values)
            except Exception as error:
                if worker:
                    add_note(error, f"dagpu: on worker {worker}")
                raise

    @contextmanager
    def _counted(self, run: str) -> Iterator[None]:
        """Count what is under way for a run in the block.

        Raises:
            OperationCancelled: the run is cancelled.
        """
        with self._lock:
            if run in self._cancelled:
                raise OperationCancelled("the run of this part was cancelled")
            self._running[run] += 1
        try:
            yield
        finally:
            with self._lock:
                self._running[run] -= 1
                if not self._running[run]:
                    del self._running[run]

    def run_batch(self, call: BatchCall, values: Sequence[Any], worker: str = "") -> PartValue:
        """Run parts one after the other, and return the versions that others take; see `run`.

        Raises:
            OperationCancelled: the run of the parts is cancelled. Those that have not begun never do.
        """
        known = [*[None] * len(call.parts), *values]
        blocks: dict[Version, Block] = {}
        cells: dict[Version, Any] = {}
        seconds: dict[str, float] = {}
        with self._counted(call.parts[0].run):  # also between two parts
            for at, (part, code) in enumerate(zip(call.parts, call.codes, strict=True)):
                known[at] = made = self.run(part, {} if code is None else known[code], known, worker)
                blocks.update(made.blocks)
                cells.update(made.cells)
                seconds.update({each: max(longest, seconds.get(each, 0.0)) for each, longest in made.seconds.items()})
        return PartValue(blocks, cells, seconds).subset(call.gives)

    def cancel(self, run: str) -> int:
        """Cancel the parts of a run. Return the number of those, and of batches, that are still under way."""
        with self._lock:
            self._cancelled[run] = None
            while len(self._cancelled) > CANCELLED:
                del self._cancelled[next(iter(self._cancelled))]
            return self._running[run]

    def count(self, run: str) -> int:
        """Return the number of parts and batches of a run that are under way."""
        with self._lock:
            return self._running[run]

    def take_spans(self, run: str) -> list[Span]:
        """Return the times of a traced run on this worker, in seconds of its clock, and forget them."""
        with self._lock:
            return self._spans.pop(run, [])

    def _run(self, call: PartCall, codes: Mapping[str, bytes], values: Sequence[Any]) -> PartValue:
        if not call.traced and not call.function:
            return self._run_plan(call, codes, values)
        with part_spans(call.traced) as spans:
            made = self._run_plan(call, codes, values)
        if call.function:
            made.seconds = {call.function: sum([end - begin for name, _, begin, end in spans if name != PARTS_TRACK])}
        if call.traced:
            with self._lock:
                self._spans.setdefault(call.run, []).extend(spans)
        return made

    def _run_plan(self, call: PartCall, codes: Mapping[str, bytes], values: Sequence[Any]) -> PartValue:
        part = self._load(call, codes)
        loaded, memory = part.loaded, _bind(call, part.plan, values)
        with ExitStack() as held:
            for lock in self._locks_of(part):
                held.enter_context(lock)
            bound = BoundArguments(memory, {}, (), ())
            run = drive(start_call(loaded, bound, None, BlockingWaits(), loaded.spin))
            assert run is not None, "a part decides nothing"
            while not run.wait(FLAG_SECONDS):
                if call.run in self._cancelled:
                    run.cancel()
        failures = run.failures()
        if failures:
            raise_failures(failures)
        if call.run in self._cancelled:
            raise OperationCancelled("the run of this part was cancelled")
        return _value_of(call, part.plan, memory)

    def _locks_of(self, part: _LoadedPart) -> list[threading.Lock]:
        """Return the locks of a part. Parts of two runs, and of two clients, may have a kernel in common, and one that
        runs again may meet one that has begun later."""
        with self._lock:
            return [self._locks.setdefault(state, threading.Lock()) for state in part.states]

    def _load(self, call: PartCall, codes: Mapping[str, bytes]) -> _LoadedPart:
        """Return the plan of a part, which equal parts share."""
        with self._lock:
            found = self._plans.get(call.digest)
            if found is not None:
                self._plans.move_to_end(call.digest)
                return found
        made = _LoadedPart(plan_program(self._decoder.decode(call.blob, codes), True))
        with self._lock:
            found = self._plans.setdefault(call.digest, made)
            while len(self._plans) > PLANS:
                self._plans.popitem(last=False)
        return found


def _bind(call: PartCall, plan: Plan, values: Sequence[Any]) -> list[object]:
    """Return the memory of a part's run, with its inputs."""
    memory: list[object] = [None] * len(plan.buffers)
    for buffer, content in call.given.items():
        memory[buffer] = content.open() if type(content) is StoredArray else content
    for buffer, index, version in call.taken:
        found = values[index]
        if version is None:
            memory[buffer] = found
        elif plan.buffers[buffer].device == HOST:
            memory[buffer] = load_cell(found.cells[version])
        else:
            memory[buffer] = found.blocks[version].on(plan.devices[plan.buffers[buffer].device])
    return memory


def _value_of(call: PartCall, plan: Plan, memory: Sequence[Any]) -> PartValue:
    """Return the versions that a part has made."""
    blocks: dict[Version, Block] = {}
    cells: dict[Version, Any] = {}
    for version, buffer in zip(call.exports, call.gives, strict=True):
        about = plan.buffers[buffer]
        if about.device == HOST:
            cells[version] = memory[buffer]
        else:
            held = memory[buffer]
            if isinstance(held, HostMemory):
                held.block.flags.writeable = False  # a key's value is never written
            blocks[version] = Block(plan.devices[about.device], held, about.nbytes)
    return PartValue(blocks, cells)


RUNNER: Final = PartRunner()
"""The runner of this process."""
