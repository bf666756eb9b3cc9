"""An error that is kept does not keep the memory of the run that it came of, and shows the user's own frames.

All on the host and on a simulated GPU. The cyclic collector is off: what a kept error refers to is let go at once.
"""

import gc
import re
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pytest
import trio
from numpy.typing import NDArray

from dagpu import (
    BorrowError,
    CaptureError,
    DagpuError,
    DeviceOp,
    In,
    KernelBoundsError,
    Out,
    OutOfMemoryError,
    Tensor,
    Tile,
    current_device,
    dup,
    f32,
    from_host,
    kernel,
    memcpy,
    observe,
    ones,
    pipeline,
    plan_of,
    source,
    spawn,
    use_device,
    value,
    zeros,
    zip_ops,
)
from dagpu.common.places import is_ours
from tests.simulated.cuda import installed
from tests.simulated.kernels import Violation

N = 1 << 16
"""Elements: large enough to be seen, whatever else is held."""


@pytest.fixture(autouse=True, params=["host", "simulated"])
def somewhere(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "simulated":
        with installed(seed=3):
            yield
        return
    with use_device("host"):
        yield


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    """Disable the cyclic collector, so that objects are freed only by their reference counts."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@kernel(cuda="__global__ void stray(Tile<float, 1> y, View<const float, 1> x) {}", checked=True)
def stray(y: Out[f32], x: In[f32]) -> None:
    """Reads beyond the end of `x`."""


@stray.host
def _(y: Tile[f32], x: NDArray[f32]) -> None:
    if current_device().kind == "cuda":
        raise Violation(1, (N,), (N,))
    y[...] = x[1 : len(x) + 1]


@kernel(cuda="__global__ void add(Tile<float, 1> y, View<const float, 1> x) {}")
def add(y: Out[f32], x: In[f32]) -> None:
    """y += x"""


@add.host
def _(y: Tile[f32], x: NDArray[f32]) -> None:
    y[...] += x[y.at]


def big() -> DeviceOp[Tensor[f32]]:
    return ones((N,))


def fail(*_: object) -> Any:
    raise ZeroDivisionError("the user's own")


def in_a_kernel() -> DeviceOp[Any]:
    return zip_ops(big(), stray(zeros((N,)).partition((N,)), big()))


def in_a_host_map() -> DeviceOp[Any]:
    return zip_ops(big(), big().to_host().host_map(fail))


def in_a_host_map_with_a_handle() -> DeviceOp[Any]:
    return zip_ops(big(), big().host_map(fail))


def in_a_closure() -> DeviceOp[Any]:
    return zip_ops(big(), big()).then(fail)


def in_a_closure_of_a_later_stage() -> DeviceOp[Any]:
    return zip_ops(big(), ones((4,)).to_host()).then(fail)


def in_a_map_of_a_later_stage() -> DeviceOp[Any]:
    return zip_ops(big(), ones((4,)).to_host()).map(fail)


def by_a_conflict() -> DeviceOp[Any]:
    t: Any = zeros((4,)).sync()  # mypy would refuse it
    other: Any = memcpy(t.borrow_mut(), zeros((4,)).sync())
    return zip_ops(big(), dup(t.borrow()), other)


def by_a_conflict_in_a_later_stage() -> DeviceOp[Any]:
    t: Any = zeros((4,)).sync()
    late = zip_ops(big(), ones((4,)).to_host()).then(lambda p: add(t.borrow_mut().partition((4,)), ones((4,))))
    return zip_ops(big(), dup(t.borrow()), late)


def for_want_of_memory() -> DeviceOp[Any]:
    return zip_ops(big(), zeros((1 << 50,)))


def for_want_of_memory_in_a_later_stage() -> DeviceOp[Any]:
    return zip_ops(big(), ones((4,)).to_host()).then(lambda p: zip_ops(value(p[0]), zeros((1 << 50,))))


def by_a_wrong_tile(tile: int = 2) -> DeviceOp[Any]:
    return zip_ops(big(), ones((4,)).to_host(), ones((5,))).then(lambda p: value(p[2]).partition((tile,)))


def of_several_branches() -> DeviceOp[Any]:
    return zip_ops(big(), big().to_host().host_map(fail), big().to_host().host_map(fail))


FAILURES: dict[Callable[[], DeviceOp[Any]], type[BaseException]] = {
    in_a_kernel: KernelBoundsError,
    in_a_host_map: ZeroDivisionError,
    in_a_host_map_with_a_handle: ZeroDivisionError,
    in_a_closure: ZeroDivisionError,
    in_a_closure_of_a_later_stage: ZeroDivisionError,
    in_a_map_of_a_later_stage: ZeroDivisionError,
    by_a_conflict: BorrowError,
    by_a_conflict_in_a_later_stage: BorrowError,
    for_want_of_memory: OutOfMemoryError,
    for_want_of_memory_in_a_later_stage: OutOfMemoryError,
    by_a_wrong_tile: DagpuError,
    of_several_branches: ExceptionGroup,
}


Make: TypeAlias = Callable[[], DeviceOp[Any]]


# Each way to run an op that `make` gives. Their own frames, which an error leads to, hold none of it.
def sync(make: Make) -> object:
    return make().sync()


def on_a_stream(make: Make) -> object:
    return make().sync_on(current_device().stream())


def awaited(make: Make) -> object:
    made = [make()]  # not in trio: some are made by runs

    async def main() -> object:
        return await made.pop()

    return trio.run(main)


def spawned(make: Make) -> object:
    made = [make()]

    async def main() -> object:
        async with trio.open_nursery() as nursery:
            try:
                return await spawn(nursery, made.pop())
            finally:
                nursery.cancel_scope.cancel()

    return trio.run(main)


def planned(make: Make) -> object:
    return plan_of(make())


def explained(make: Make) -> object:
    return make().explain()


def captured(make: Make) -> object:
    return make().graph()


WAYS = (sync, on_a_stream, awaited, spawned, planned, explained, captured)


def error_of(way: Callable[[Make], object], make: Make) -> BaseException | None:
    """Return the error that this way of running raises; None without one. Keeps only the error alive."""
    try:
        way(make)
    except BaseException as error:
        return error
    return None


def test_kept_errors_keep_no_memory() -> None:
    """After many failures, all of them kept, a device holds what it held before."""
    kept = []
    for way in WAYS:
        for make, kind in FAILURES.items():
            before = current_device().memory_used()
            error = error_of(way, make)
            kept.append(error)
            assert current_device().memory_used() == before, (way, make)
            if way in (sync, on_a_stream, awaited):
                assert isinstance(error, kind), (way, make, error)
    assert len(kept) == len(WAYS) * len(FAILURES)


@pytest.mark.parametrize("way", [sync, awaited])
def test_an_error_of_the_users_shows_his_frames(way: Callable[[Make], object]) -> None:
    """The traceback goes from where the op was run to the function of the user's that failed; dagpu's frames in between
    are left out. The note says which function that was."""
    for make in (in_a_host_map, in_a_closure, in_a_closure_of_a_later_stage, in_a_map_of_a_later_stage):
        error = error_of(way, make)
        assert error is not None
        names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        assert names[0] == "error_of"
        assert names[-1] == "fail"
        files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        assert not any(map(is_ours, files))
        assert any("dagpu: in the " in note for note in error.__notes__)


@pytest.mark.parametrize(
    "make",
    [
        lambda: value("three").map(int),
        lambda: value("three").host_map(int),
        lambda: value(3).then(partial(lambda f, x, y: f(x, y), max)),
        lambda: value(3).map(partial(lambda x, y: x)),
        lambda: value(3).host_map(partial(lambda x, y: x)),
    ],
)
@pytest.mark.parametrize("way", [sync, awaited])
def test_an_error_of_a_function_without_a_frame_shows_the_users_frames_alone(
    way: Callable[[Make], object], make: Make
) -> None:
    """A function of C, and a call with arguments that the function does not take, have no frame that has failed:
    dagpu's frames are left out all the same, and the note says whose closure it was, at which line."""
    error = error_of(way, make)
    assert isinstance(error, TypeError | ValueError)
    assert not any(is_ours(frame.filename) for frame in traceback.extract_tb(error.__traceback__))
    assert re.search(rf"dagpu: in the (closure|function) of .* at {re.escape(__file__)}:\d+$", error.__notes__[0])


class RefusesNotes(Exception):
    def add_note(self, note: str) -> None:
        raise RuntimeError("no notes")


@dataclass(frozen=True)
class Frozen(Exception):
    code: int


class NotesOfItsOwn(Exception):
    __notes__ = 5  # type: ignore[assignment]  # reason: a class of a user's that gives the name another meaning


@pytest.mark.parametrize("own", [RefusesNotes(), Frozen(3), NotesOfItsOwn()], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("way", [sync, awaited])
def test_an_error_that_takes_no_note_comes_out_itself(way: Callable[[Make], object], own: Exception) -> None:
    """Whatever the class of the user's error does with notes and assignments, the run raises that error, and the next
    run finds the threads of the device alive."""

    def raise_own(*_: object) -> Any:
        raise own

    @pipeline
    def model(x: float) -> DeviceOp[Any]:
        return value(x).then(raise_own)

    for make in (
        lambda: value(1).map(raise_own),
        lambda: value(1).inspect(raise_own),
        lambda: value(1).then(raise_own),
        lambda: value(1).host_map(raise_own),
        lambda: ones((4,)).to_host().map(raise_own),
        lambda: ones((4,)).to_host().host_map(raise_own),
        lambda: model(1.0),
    ):
        assert error_of(way, make) is own
    assert ones((4,)).to_host().host_map(len).sync() == 4


def test_an_error_of_dagpus_shows_where_the_op_was_run() -> None:
    """Its message says the rest."""
    error = error_of(sync, by_a_conflict)
    assert error is not None
    assert [frame.name for frame in traceback.extract_tb(error.__traceback__)] == ["error_of", "sync"]


def test_a_defect_of_dagpus_shows_all_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error out of dagpu's own code that it did not mean keeps the lines of its traceback, for whoever mends it; the
    variables of those frames are gone, and with them the run's memory."""

    class Broken:
        def place(self, program: Any) -> Any:
            return None

    before = current_device().memory_used()
    error = error_of(sync, lambda: zip_ops(big(), ones((4,)).to_host()).then(lambda p: ones((4,)).schedule(Broken())))
    assert isinstance(error, TypeError)
    assert current_device().memory_used() == before
    frames = traceback.extract_tb(error.__traceback__)
    assert is_ours(frames[-1].filename)


def test_the_cause_of_an_error_keeps_no_memory_either() -> None:
    """The cause of an error is freed together with the error."""

    def wrapped(t: Any) -> Any:
        try:
            return fail(t)
        except ZeroDivisionError as error:
            raise ValueError("from it") from error

    before = current_device().memory_used()
    error = error_of(sync, lambda: zip_ops(big(), ones((4,)).to_host()).then(wrapped))
    assert isinstance(error, ValueError)
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert current_device().memory_used() == before


def test_handles_of_a_run_that_failed_are_void() -> None:
    """A handle that a closure keeps from a run that fails later has no contents: a handle leaves its run only as part
    of the result. The value that a `shared()` op has computed in the meantime stays.
    """
    aside: list[Any] = []
    remembered = big().shared()
    op = zip_ops(big().inspect(aside.append), remembered, ones((4,)).to_host()).then(fail)
    with pytest.raises(ZeroDivisionError):
        op.sync()
    with pytest.raises(DagpuError, match="its contents were lost"):
        dup(aside[0].borrow()).sync()
    assert remembered.to_host().sync().sum() == N


def test_runs_by_a_kept_plan_keep_no_memory() -> None:
    """The later calls of a pipeline, which trace nothing, keep no memory after an error either."""

    @pipeline
    def failing(x: NDArray[f32], rate: float) -> DeviceOp[Any]:
        return add(zeros((N,)).partition((N,)), from_host(x)).first().unpartition().to_host().host_map(broken)

    def broken(_: object) -> object:
        raise ZeroDivisionError

    kept, x = [], np.ones(N, f32)
    for _ in range(4):
        before = current_device().memory_used()
        kept.append(error_of(sync, lambda: failing(x, 1.0)))
        assert current_device().memory_used() == before
    assert all(isinstance(error, ZeroDivisionError) for error in kept)


def test_an_update_that_fails_keeps_no_memory() -> None:
    """A failed update in a graph's stream keeps no memory."""
    x, y = zeros((N,)).sync(), zeros((N,)).sync()
    graph = add(y.borrow_mut().partition((N,)), x.borrow()).graph()
    before = current_device().memory_used()
    error: BaseException | None = None
    try:
        making: Any = big()  # mypy would refuse it
        graph.update(making)
    except CaptureError as found:
        error = found
    assert error is not None
    assert current_device().memory_used() == before


@pytest.mark.parametrize("own", [RefusesNotes(), Frozen(3), NotesOfItsOwn()], ids=lambda error: type(error).__name__)
def test_an_error_that_takes_no_note_comes_out_of_a_feed(own: Exception) -> None:
    """So it is in the updates of a feed, whose next value is right."""
    number = source(1.0)

    def doubled(v: float) -> float:
        if v == 2.0:
            raise own
        return 2 * v

    async def main() -> None:
        async with observe(number.map(doubled)) as feed:
            assert await feed.next() == 2.0
            number.set(2.0)
            with pytest.raises(type(own)) as raised:
                await feed.next()
            assert raised.value is own
            number.set(3.0)
            assert await feed.next() == 6.0

    trio.run(main)
