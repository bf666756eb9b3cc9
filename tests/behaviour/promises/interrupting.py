"""Interrupts and finalisers at every line of dagpu that a call passes through."""

import functools
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, final

import numpy as np
import pytest
import trio
import trio.testing

import dagpu
from dagpu import CudaGraph, DeviceOp, Out, Tile, f32, from_host, full, kernel, ones, use_device, zeros, zip_ops
from dagpu.backends.host.failures import Outcome
from dagpu.common.critical import in_section
from dagpu.ops.compose import Shared
from dagpu.testing import storage_of
from tests.programs.arithmetic import add, axpy, scale
from tests.simulated.cuda import driver, installed

PACKAGE: Final = str(Path(dagpu.__file__).parent) + os.sep

EVERY: Final = os.environ.get("DAGPU_EVERY_LINE") == "1"
DEEP: Final = os.environ.get("DAGPU_DEEP") == "1"

TRACING: Final = tuple(f"tracing/{module}" for module in ("undo_log", "tracer", "evaluate"))
EverySoMany = dict[tuple[str, ...], int]

EVERY_SO_MANY: Final[EverySoMany] = {
    tuple(PACKAGE + name for name in ("common/critical", "runtime", "handles/handle_state", "ops/single_flight")): 1,
    tuple(PACKAGE + name for name in ("backends", *TRACING)): 8,
    (PACKAGE,): 60,
}
"""Of the lines of these files, every so many-th is tried."""
assert all(Path(name).exists() or Path(f"{name}.py").exists() for names in EVERY_SO_MANY for name in names)


SHAPE, TILE = (4, 4), (2, 4)
PATIENCE: Final = 60.0


Place = tuple[str, int]
"""A line of dagpu: its file and its number."""


@final
class Finger:
    """Calls `press` when this thread comes to a line of dagpu; notes all lines that it comes to.

    It presses the first time that it comes to each line, or with `after`, once: after so many lines, whichever. With
    places, it looks at the functions that they are in, until it has pressed at each, and at nothing else.
    """

    def __init__(self, press: Callable[[], None] | None = None, *at: Place, after: int | None = None) -> None:
        self._press = press
        self._at = set(at)
        """Where it is still to press, if at some lines alone."""
        self._trace = self._call_near if at else self._call
        self._left = after
        self.pressed = False
        self.lines: dict[Place, None] = {}

    def __enter__(self) -> "Finger":
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, event: str, arg: object) -> Any:
        return self._line if frame.f_code.co_filename.startswith(PACKAGE) else None

    def _line(self, frame: FrameType, event: str, arg: object) -> Any:
        if event != "line":
            return self._line
        place = frame.f_code.co_filename, frame.f_lineno
        if self._left is not None:
            self._left -= 1
            if self._left >= 0 or self.pressed:
                return self._line
        elif place in self.lines:
            return self._line
        self.lines[place] = None
        if self._press is not None:
            self.pressed = True
            self._press()
        return self._line

    def _call_near(self, frame: FrameType, event: str, arg: object) -> Any:
        code = frame.f_code
        for file, line in self._at:
            if file == code.co_filename and line >= code.co_firstlineno and line in _lines_in(code):
                return self._line_near
        return None

    def _line_near(self, frame: FrameType, event: str, arg: object) -> Any:
        place = frame.f_code.co_filename, frame.f_lineno
        if event == "line" and place in self._at:
            self._at.remove(place)
            if not self._at:
                sys.settrace(None)
            self.pressed = True
            assert self._press is not None
            self._press()
        return self._line_near


@functools.cache
def _lines_in(code: CodeType) -> frozenset[int | None]:
    return frozenset(line for _, _, line in code.co_lines())


def interrupt() -> None:
    """Ctrl-C."""
    signal.raise_signal(signal.SIGINT)


@final
class State:
    """State that lives longer than one run: tensors that runs borrow, and a node that keeps its result."""

    def __init__(self) -> None:
        self.read = full(SHAPE, 3.0).sync()
        self.written = zeros(SHAPE).sync()
        self.given = full(SHAPE, 5.0).sync().share()
        self.begin()

    def begin(self) -> None:
        """Forget the graph and what the node keeps. The tensors stay: making them takes longer than a run."""
        self.graph: CudaGraph[Any] | None = None
        self.shared = scale(zeros(SHAPE).partition(TILE), 2.0, ones(SHAPE)).first().unpartition().shared()

    def op(self) -> DeviceOp[Any, Any, Any]:
        """Branches that read what is shared, lent and remembered, and write what is lent; a closure; two stages."""
        left, right = zip_ops(
            add(zeros(SHAPE).partition(TILE), self.shared, self.read.borrow()).first().unpartition(),
            add(zeros(SHAPE).partition(TILE), self.shared, self.given).first().unpartition(),
        ).unzip()
        joined = add(self.written.borrow_mut().partition(TILE), left, right).first()
        return joined.then(lambda p: axpy(p, 1.0, from_host(np.ones(SHAPE, np.float32))).first().unpartition()).then(
            lambda t: self.host(t)
        )

    def host(self, _: object) -> DeviceOp[Any, Any, Any]:
        return zip_ops(self.shared, full(SHAPE, 1.0)).then(
            lambda both: add(zeros(SHAPE).partition(TILE), *both).first().unpartition().to_host()
        )

    def check(self, place: object) -> None:
        """Nothing is locked, claimed or switched off. `place` is where the interrupt came."""
        assert not in_section(), place
        assert gc.isenabled(), place
        if self.graph is not None:
            self.graph.launch().sync()  # what has been enqueued for it holds its locks until then
        for handle in (self.read, self.written, self.given):
            storage = storage_of(handle)
            assert (storage.lock.readers, storage.lock.writer) == (0, None), place
        assert isinstance(self.shared, Shared)
        assert self.shared.once.settled(), place


def blocking(build: Callable[[State], DeviceOp[Any, Any, Any]]) -> Callable[[State], Callable[[], object]]:
    return lambda state: build(state).sync


def in_a_task(build: Callable[[State], DeviceOp[Any, Any, Any]]) -> Callable[[State], Callable[[], object]]:
    def way(state: State) -> Callable[[], object]:
        op = build(state)

        async def main() -> None:
            await op
            await trio.lowlevel.checkpoint()  # at the latest here trio raises what came too late for the run

        return lambda: trio.run(main)

    return way


@kernel(cuda="__global__ void tiles(Tile<float, 1> y, int n) { for (auto i : y) y[i] = n; }")
def tiles(y: Out[f32], n: int) -> None:
    """Counts its tiles, on the host."""


@tiles.host
def _(y: Tile[f32], n: int) -> None:
    began.append(n)
    while at_first:
        at_first.pop()()


began: list[int] = []


at_first: list[Callable[[], None]] = []


@pytest.fixture
def cancelled(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Set once a run has been cancelled."""
    found, real = threading.Event(), Outcome.cancel

    def cancel(outcome: Outcome) -> None:
        real(outcome)
        found.set()

    monkeypatch.setattr(Outcome, "cancel", cancel)
    began.clear()
    yield found
    at_first.clear()


# ---- machines, and the lines that are tried


@contextmanager
def on_simulated_gpu() -> Iterator[None]:
    with installed(seed=5):
        for each in (add, axpy, scale):
            each.compile()
        yield


PLACES: Final[dict[str, Callable[[], AbstractContextManager[object]]]] = {
    "host": lambda: use_device("host"),
    "explore": lambda: use_device("explore:0"),
    "cuda": on_simulated_gpu,
}


def nothing_under_way(where: str) -> bool:
    """Return True if every device has done all of its work."""
    return where != "cuda" or not any(driver(number).live for number in range(2))


def lines_of(call: Callable[[], object], every: EverySoMany | None = None) -> list[Place]:
    """The lines of dagpu that this passes and that are to be tried: of some files, every so many-th."""
    return lines_to_try(lines_passed(call), every or EVERY_SO_MANY)


def lines_passed(call: Callable[[], object]) -> list[Place]:
    """All lines of dagpu that this passes, in the order in which it first comes to them."""
    with Finger() as finger:
        call()
    return list(finger.lines)


def lines_to_try(lines: Iterable[Place], every: EverySoMany = EVERY_SO_MANY) -> list[Place]:
    """Of the lines of some files, every so many-th."""
    return [line for n, line in enumerate(lines) if EVERY or n % _stride(line, every) == 0]


def _stride(line: Place, every: EverySoMany) -> int:
    return next(stride for files, stride in every.items() if line[0].startswith(files))
