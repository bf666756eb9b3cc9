"""Runs a part on a worker: finds its plan, binds what it takes, waits, and returns what it gives."""

import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final, final
from weakref import WeakKeyDictionary

import numpy as np

from dagpu.backends.host.arrays import HostMemory
from dagpu.backends.protocol import Bindings, Prepared
from dagpu.cluster.parts.part import Version
from dagpu.cluster.parts.part_decoder import Decoder
from dagpu.cluster.worker.part_spans import Span, part_spans
from dagpu.cluster.worker.part_values import Block, PartValue, loaded
from dagpu.common.errors import OperationCancelled
from dagpu.common.frozen import plain
from dagpu.handles.module_state import ModuleState
from dagpu.lowering.plan import Execute, Plan
from dagpu.lowering.program import HOST, Launch
from dagpu.runtime.calls.loaded_plan import device_kind_of, plan_program
from dagpu.runtime.calls.run_call import raise_failures
from dagpu.runtime.device_lookup import backend

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


@final
class _LoadedPart:
    """The plan of a part, prepared for its runs."""

    __slots__ = ("lock", "plan", "prepared", "runs", "spin", "states")

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        launches = [step.instruction for step in plan.steps if isinstance(step, Execute)]
        found = [each.kernel.state for each in launches if isinstance(each, Launch)]
        self.states = sorted({state for state in found if state is not None}, key=id)
        """What its launches share with those of other parts, in one order for all parts."""
        driver = backend(device_kind_of(plan))
        self.prepared: Prepared = driver.prepare(plan)
        self.spin = driver.spin()
        self.runs = 0
        self.lock = threading.Lock()

    def ready(self) -> bool:
        """Do the slow work before a run, and return whether the run is one graph."""
        with self.lock:
            self.runs += 1
            graph = self.runs >= GRAPH_FROM
            slow = self.prepared.before_graph if graph else self.prepared.before_first
            if slow is not None:
                slow()
            return graph


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
        with self._lock:
            if call.run in self._cancelled:
                raise OperationCancelled("the run of this part was cancelled")
            self._running[call.run] += 1
        try:
            return self._run(call, codes, values)
        except Exception as error:
            if worker:
                error.add_note(f"dagpu: on worker {worker}")
            raise
        finally:
            with self._lock:
                self._running[call.run] -= 1
                if not self._running[call.run]:
                    del self._running[call.run]

    def cancel(self, run: str) -> int:
        """Cancel the parts of a run. Return the number of those that are still under way."""
        with self._lock:
            self._cancelled[run] = None
            while len(self._cancelled) > CANCELLED:
                del self._cancelled[next(iter(self._cancelled))]
            return self._running[run]

    def take_spans(self, run: str) -> list[Span]:
        """Return the times of a traced run on this worker, in seconds of its clock, and forget them."""
        with self._lock:
            return self._spans.pop(run, [])

    def _run(self, call: PartCall, codes: Mapping[str, bytes], values: Sequence[Any]) -> PartValue:
        if not call.traced:
            return self._run_plan(call, codes, values)
        with part_spans(call.traced) as spans:
            made = self._run_plan(call, codes, values)
        with self._lock:
            self._spans.setdefault(call.run, []).extend(spans)
        return made

    def _run_plan(self, call: PartCall, codes: Mapping[str, bytes], values: Sequence[Any]) -> PartValue:
        part = self._load(call, codes)
        graph = part.ready()
        bindings = _bind(call, part.plan, values)
        with ExitStack() as held:
            for lock in self._locks_of(part):
                held.enter_context(lock)
            run = part.prepared.submit(bindings, part.spin, graph=graph)
            while not run.wait(FLAG_SECONDS):
                if call.run in self._cancelled:
                    run.cancel()
        failures = run.failures()
        if failures:
            raise_failures(failures)
        if call.run in self._cancelled:
            raise OperationCancelled("the run of this part was cancelled")
        return _value_of(call, part.plan, bindings.memory)

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


def _bind(call: PartCall, plan: Plan, values: Sequence[Any]) -> Bindings:
    """Return the memory of a part's run, with its inputs."""
    memory: list[object] = [None] * len(plan.buffers)
    for buffer, content in call.given.items():
        memory[buffer] = content.open() if type(content) is StoredArray else content
    for buffer, index, version in call.taken:
        found = values[index]
        if version is None:
            memory[buffer] = found
        elif plan.buffers[buffer].device == HOST:
            memory[buffer] = loaded(found.cells[version])
        else:
            memory[buffer] = found.blocks[version].on(plan.devices[plan.buffers[buffer].device])
    return Bindings(memory)


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
