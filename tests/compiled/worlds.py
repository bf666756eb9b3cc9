"""What the cases of this folder work with: a driver of their own, pipelines, and what a call leaves behind as text.

A case is a function that gets a `World`, and returns or raises something. `iterate` runs the cases that a module has
added to `CASES`, and gives what each has returned, raised, noted and left behind, as JSON has it. It is run twice in
processes of their own, with the compiled reader and without it, and the outcomes are compared.
"""

import faulthandler
import gc
import os
import re
import struct
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias, final
from unittest.mock import patch

import dagpu
from dagpu import DeviceOp, In, Lazy, Out, SharedTensor, Tensor, f32, kernel, ones, pipeline
from dagpu.backends.cuda.backend import CudaBackend
from dagpu.backends.cuda.driver.driver_protocol import EXIT_GUARD
from dagpu.common.compiled import READER, served
from dagpu.common.places import describe
from dagpu.handles import state_of
from dagpu.handles.handle_state import last_move, origin_of
from dagpu.testing import driver_of, live_state, plans, storage_of
from tests.compiled.null_gpu import Driver, opened

N: Final = 256
TILE: Final = (64,)
S: Final = (4, 4)
PATIENCE: Final = float(os.environ.get("DAGPU_TEST_PATIENCE", "60"))
"""Seconds after which a case hangs."""
WARM: Final = 6
"""Runs of a pipeline after which its calls are direct and launched as a graph."""


@kernel(cuda="__global__ void grow(Tile<float, 1> y, float a) {}")
def grow(y: Out[f32], a: Lazy[float]) -> None:
    """Stands for y *= a."""


@kernel(cuda="__global__ void blend(Tile<float, 1> y, float a, View<const float, 1> x) {}")
def blend(y: Out[f32], a: Lazy[float], x: In[f32]) -> None:
    """Stands for y += a * x."""


def fresh(n: int = N, device: str = "cuda:0") -> Any:
    """A tensor, typed so that a case may use it after it was moved."""
    return ones((n,)).on(device).sync()


def new_step() -> Any:
    """A pipeline of one kernel, which changes the tensor that it moves."""

    @pipeline
    def step(x: Tensor[f32], a: float) -> DeviceOp[Any]:
        return grow(x.partition(TILE), a).first().unpartition()

    x = fresh()
    for _ in range(WARM):
        x = step(x, 0.5).sync()
    return step


@final
class World:
    """What a case works with."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.calls: Any = driver.calls
        self.device: Any = driver_of(dagpu.device("cuda:0"))
        self.step = new_step()
        self.notes: list[Any] = []
        self.is_steady = True
        """False if the order of threads decides how often something happens."""

    def note(self, *what: Any) -> None:
        """Add to the outcome."""
        self.notes += what

    def note_states(self, *handles: Any) -> None:
        """Add the states of handles, with how and where they were moved, and the locks of their memory."""
        for handle in handles:
            state: Any = state_of(handle)
            if state is None:
                how, where = last_move(handle)
                self.note([how, describe(where), describe(origin_of(handle))])
            else:
                self.note([state.kind.__name__, str(state.layout), describe(state.origin), self.lock_of(handle)])

    def lock_of(self, handle: Any) -> list[Any]:
        lock = storage_of(handle).lock
        return [lock.writer is None, lock.readers, describe(lock.holder)]

    def note_launch(self, node: int = 0, **named: Any) -> None:
        """Add the parameters of a node in the last launch, with the addresses of handles as their names."""
        known: dict[int, str] = {}
        for name, handle in named.items():
            storage: Any = storage_of(handle)
            start = storage.memory.address
            known |= {start + at: f"{name} + {at}" for at in range(0, storage.nbytes, 4)}
        text = self.driver.parameters(node)
        words = [struct.unpack_from("<Q", text, at)[0] for at in range(0, len(text) - 7, 8)]
        self.note([known.get(word, f"{word:#018x}") for word in words], text[len(words) * 8 :].hex())

    def loaded(self, owner: Any = None) -> Any:
        return (self.step if owner is None else owner).plans.latest

    def rest(self) -> dict[str, Any]:
        """What is held once a case is over."""
        gc.collect()
        loaded = self.loaded()
        graphs = None if loaded is None else loaded.prepared.graphs
        held = {
            "problems": self.driver.problems(),
            "contexts": self.calls.null_contexts(),
            "inside": len(EXIT_GUARD.inside),
            "live": len(self.device.live),
            "unraisable": UNRAISABLE.copy(),
        }
        if not self.is_steady:
            return held
        return {
            **held,
            "runs": None if loaded is None else loaded.runs,
            "hits": self.step.plans.hits,
            "idle": None if graphs is None else [len(graphs.idle), graphs.instances],
            "streams": len(self.device.streams.exclusive),
            "memory": self.device.memory.used,
            "log": self.driver.log(),
        }


UNRAISABLE: Final[list[str]] = []
"""The errors since the begin of a case that nobody could raise."""


def _note_unraisable(found: Any) -> None:
    UNRAISABLE.append(f"{found.exc_value!r} in {type(found.object).__name__}")


Case: TypeAlias = Callable[[World], Any]
CASES: Final[dict[str, tuple[Case, int]]] = {}
"""For each case its function, and how many of its calls the compiled reader has to serve at least."""


def case(serves: int = 0) -> Callable[[Case], Case]:
    def add_case(function: Case) -> Case:
        CASES[function.__name__.replace("_", " ")] = function, serves
        return function

    return add_case


@contextmanager
def when_called(name: str, act: Callable[[], object]) -> Iterator[None]:
    """Within the `with` block, `act` is called once: in the first call of a function of dagpu's with this name."""

    def hook(frame: Any, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name == name and "/dagpu/" in frame.f_code.co_filename:
            sys.setprofile(None)
            act()

    sys.setprofile(hook)
    try:
        yield
    finally:
        sys.setprofile(None)


def told(value: Any) -> Any:
    """Return a value as JSON has it."""
    if isinstance(value, Tensor | SharedTensor):
        state: Any = live_state(value)
        return [type(value).__name__, list(state.layout.shape), state.storage.device.name, describe(state.origin)]
    if isinstance(value, tuple | list):
        return [told(each) for each in value]
    return value if isinstance(value, str | int | float | type(None)) else repr(value)


def told_error(error: BaseException) -> list[Any]:
    """Return an error's words and notes, and the functions of its traceback that are not dagpu's."""
    own = [frame.name for frame in traceback.extract_tb(error.__traceback__) if "/dagpu/dagpu/" not in frame.filename]
    inside = [name for name in own if not name.startswith("_")]
    text = re.sub(r"0x[0-9a-f]+", "ADDRESS", str(error))
    return ["error", type(error).__name__, text, getattr(error, "__notes__", []), inside[1:2]]


def outcome(function: Case, world: World) -> list[Any]:
    try:
        return ["value", told(function(world))]
    except BaseException as error:
        return told_error(error)


ENOUGH: Final = 0.02
"""For how many seconds the update of a feed looks whether the device is done, before it sleeps. In the usual 20 us a
busy machine may give a reader no time for a second look: then it sleeps, and the other one does not."""


def iterate(library: Path, parts: Sequence[str] = ()) -> Iterator[tuple[str, dict[str, Any]]]:
    """Iterate over the cases whose names contain one of these parts, or over all: run each, and give its outcome."""
    sys.unraisablehook = _note_unraisable
    for name, (function, serves) in CASES.items():
        UNRAISABLE.clear()
        if parts and not any(part in name for part in parts):
            continue
        faulthandler.dump_traceback_later(PATIENCE, exit=True)  # of a case that hangs
        with patch.object(CudaBackend, "spin", lambda _: ENOUGH), opened(library) as driver:
            world = World(driver)
            driver.log()
            before = served()[0]
            result = outcome(function, world)
            count = served()[0] - before
            found = {"result": result, "notes": told(world.notes), "rest": world.rest()}
            if READER is not None and count < serves:
                found["served"] = f"{count} of {serves} calls"
            del world
            plans.clear()
        yield name, found
    faulthandler.cancel_dump_traceback_later()
