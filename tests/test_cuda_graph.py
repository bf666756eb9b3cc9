"""Graphs that the user captures: a launch is the op once more on the same memory, and a run like any other."""

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import (
    BorrowError,
    CaptureError,
    CudaGraph,
    In,
    Module,
    MovedError,
    NestedRunError,
    Out,
    Tile,
    convert,
    current_device,
    device,
    dup,
    empty,
    f32,
    fill,
    from_host,
    full,
    i32,
    kernel,
    memcpy,
    ones,
    pipeline,
    plan_of,
    spawn,
    trace,
    use_device,
    value,
    zeros,
    zip_ops,
)
from dagpu.backends.explore import exploring
from dagpu.ownership import storage_of
from dagpu.runtime import cuda_graph
from tests.arithmetic import add, axpy, scale
from tests.expressions import Building, Call, Change, Evaluation, Expr, Lent, Make, Op, bits, build, evaluate
from tests.places import place
from tests.strategies import shapes
from tests.test_reuse import pure

S = (2, 2)
CURES = {
    "memory": "tensors that were made before, and lent: t.borrow(), t.borrow_mut().partition(tile)",
    "host": "Leave to_host() and host_map() to an op that runs after the launch",
}
"""What the two kinds of ops that no graph can take are told."""
PATIENCE = 30.0
"""Seconds after which a test calls it a hang."""


def out(shape: tuple[int, ...] = S) -> Op:
    return empty(shape).partition(shape)


def tensor(number: float = 0.0, shape: tuple[int, ...] = S) -> Any:
    return full(shape, number).sync()


def shared(number: float = 0.0) -> Any:
    return full(S, number).share().sync()


def scaled(by: float, x: Any) -> Op:
    return scale(out(), by, x).first().unpartition()


def adds(y: Any, a: float, x: Any) -> Op:
    """y += a * x, of a tensor that is lent."""
    return axpy(y.borrow_mut().partition(S), a, x)


def number_in(handle: Any) -> float:
    """The first element of a tensor, which stays alive."""
    if isinstance(handle, np.ndarray):
        return float(handle.flat[0])
    borrowed = handle.borrow() if hasattr(handle, "borrow") else handle
    return float(borrowed.to_host().sync().flat[0])


def unlocked(*handles: Any) -> bool:
    return all((storage_of(h).lock.writer, storage_of(h).lock.readers) == (None, 0) for h in handles)


def settle(graph: CudaGraph[Any]) -> None:
    """Until what `update` has put into the graph's stream is done, and its locks are back."""
    zeros((1,)).sync_on(graph.stream)
    deadline = time.monotonic() + PATIENCE
    while graph._captured.updates._locks is not None:  # a thread of the device's gives them back  # noqa: SLF001  # no public call shows it
        assert time.monotonic() < deadline
        os.sched_yield()


# ---- what a launch does


def test_a_launch_does_it_again() -> None:
    """On the memory that it was captured with: the output is written anew, and no other memory is taken."""
    x = tensor(1)
    graph = scaled(2.0, x.borrow()).graph()
    output = graph.take_output()
    assert number_in(output) == 2
    used = current_device().memory_used()
    for k in range(3):
        graph.update(memcpy(x.borrow_mut(), shared(k)))
        graph.launch().sync()
        assert number_in(output) == 2 * k
        assert current_device().memory_used() == used
    assert unlocked(x, output)


def test_the_output_is_taken_once() -> None:
    """Then it is the caller's: the error says where it was taken."""
    graph = zip_ops(zeros(S), ones(S).to_host()).graph()
    output, array = graph.take_output()
    assert (number_in(output), number_in(array)) == (0, 1)
    with pytest.raises(MovedError, match=f"was taken at {__file__}"):
        graph.take_output()


def test_arrays_are_written_anew() -> None:
    """`to_host` in a graph fills the array that the capture gave."""
    x = tensor(1)
    graph = x.borrow().to_host().graph()
    array = graph.take_output()
    array[:] = 7
    fill_ = full(S, 5).sync()
    graph.update(memcpy(x.borrow_mut(), fill_))
    graph.launch().sync()
    assert (array == 5).all()


def test_closures_are_not_called_again() -> None:
    """Everything was fixed when it was captured."""
    called: list[Any] = []
    graph = ones(S).inspect(lambda t: called.append(t.shape)).then(lambda t: scaled(2.0, t)).graph()
    graph.launch().sync()
    assert len(called) == 1


def test_branches_and_temporaries() -> None:
    """A graph is made of the plan: forks, joins, temporaries in its own memory."""
    x = tensor(1)

    def f() -> Op:
        y = ones(S).then(lambda t: axpy(t.partition(S), 1.0, x.borrow())).first().unpartition()
        return y.then(lambda t: value(t.share())).then(
            lambda s: add(out(), scaled(2.0, s), scaled(3.0, s)).first().unpartition()
        )

    graph = f().graph()
    output = graph.take_output()
    for k in (0, 2, 5):
        graph.update(memcpy(x.borrow_mut(), shared(k)))
        graph.launch().sync()
        assert number_in(output) == 5 * (1 + k)


def test_a_launch_on_a_stream_of_ones_own() -> None:
    """`graph_on(stream)` launches there."""
    stream = current_device().stream()
    graph = zeros(S).graph_on(stream)
    assert graph.stream is stream
    assert plan_of(graph.launch()).lanes[0].key is stream.lane
    other = zeros(S).graph()
    assert other.stream.lane is not stream.lane


def changed(e: Expr, by: int) -> Expr:
    """The same DAG over other contents of what is lent."""
    match e:
        case Call():
            return replace(e, x=changed(e.x, by), y=changed(e.y, by))
        case Change():
            return replace(e, x=changed(e.x, by))
        case Lent(make):
            return Lent(Make(make.shape, "from_host", make.number + by))
        case _:
            return e


def lent(e: Expr) -> list[Make]:
    """What is lent, in the order in which `build` comes to it."""
    match e:
        case Call():
            return [*lent(e.x), *(() if e.kernel == "scale" else lent(e.y))]
        case Change():
            return lent(e.x)
        case Lent(make):
            return [make]
        case _:
            return []


@settings(max_examples=60)
@given(shapes.flatmap(pure), st.lists(st.integers(0, 5), min_size=2, max_size=3), st.booleans())
def test_a_launch_is_the_op_again(e: Expr, steps: list[int], to_host: bool) -> None:
    """Any DAG: capture, then other contents and a launch, gives to the bit what running the op on those gives."""
    b = Building()
    graph = (build(e, b).to_host() if to_host else build(e, b)).graph()
    output = graph.take_output()
    for by in steps:
        other = changed(e, by)
        for lender, make in zip(b.lenders, lent(other), strict=True):
            graph.update(memcpy(lender.borrow_mut(), from_host(make.array()).sync()))
        graph.launch().sync()
        found: Any = output if isinstance(output, np.ndarray) else output.borrow().to_host().sync()
        assert bits(found) == bits(evaluate(other, Evaluation()))
    assert unlocked(*b.lenders)


# ---- composing


def test_launches_compose() -> None:
    """A launch is an op: after a copy, before a `to_host`, beside another launch, in a trio task."""
    x, y = tensor(1), tensor(0)
    first, second = scaled(2.0, x.borrow()).graph(), adds(y, 1.0, x.borrow()).graph()
    output = first.take_output()

    def op(k: int) -> Op:
        copied = memcpy(x.borrow_mut(), shared(k)).then(lambda _: zip_ops(first.launch(), second.launch()))
        return copied.then(lambda _: zip_ops(output.borrow().to_host(), y.borrow().to_host()))

    total = 1
    for k in range(4):
        found = op(k).sync() if k % 2 else trio.run(_await, op(k))
        total += k
        assert tuple(map(number_in, found)) == (2 * k, total)
    assert unlocked(x, y, output)


async def _await(op: Any) -> Any:
    return await op


def test_a_graph_twice_in_one_op() -> None:
    """One after the other, in the order of the op."""
    y = tensor(0)
    graph = adds(y, 1.0, shared(1)).graph()
    for _ in range(2):
        zip_ops(graph.launch(), graph.launch()).sync()
    assert number_in(y) == 5


def test_a_pipeline_may_launch() -> None:
    """A graph that it closes over."""
    y = tensor(0)
    graph = adds(y, 1.0, shared(1)).graph()
    p = pipeline(lambda x: graph.launch().then(lambda _: adds(y, 2.0, x)).map(lambda _: None))
    for _ in range(3):
        p(shared(1)).sync()
    assert number_in(y) == 10


def test_a_pipeline_may_be_captured() -> None:
    """Its function is traced for the graph; numbers are fixed with it."""
    x = tensor(1)
    p = pipeline(lambda t, a: scaled(a, t))
    p(x.borrow(), 1.0).sync()
    graph = p(x.borrow(), 3.0).graph()
    output = graph.take_output()
    copy: Any = p_copy(x.borrow_mut(), shared(2))  # a pipeline does not say in its type that it makes no memory
    graph.update(copy)
    graph.launch().sync()
    assert number_in(output) == 6


p_copy = pipeline(lambda m, x: memcpy(m, x))


class Doubler:
    """A model whose forward pass is a captured graph."""

    def __init__(self) -> None:
        self._x = tensor()
        self._graph = scaled(2.0, self._x.borrow()).graph()
        self._output = self._graph.take_output()

    def forward(self, input: Any, /) -> Any:  # noqa: A002  # the protocol's name
        copied = memcpy(self._x.borrow_mut(), input)
        return copied.then(lambda _: self._graph.launch()).then(lambda _: dup(self._output.borrow()))


def test_a_module() -> None:
    """Copy the input in, replay, yield the output: what was given is not overwritten by the next."""
    model: Module[Any, Any] = Doubler()
    results = [model.forward(shared(k)).sync() for k in range(3)]
    assert list(map(number_in, results)) == [0, 2, 4]


# ---- updates


def test_an_update_with_no_launch() -> None:
    """It is done, its locks come back, and the next launch sees it."""
    x = tensor(1)
    graph = scaled(1.0, x.borrow()).graph()
    for k in range(5):
        assert graph.update(memcpy(x.borrow_mut(), shared(k))) is None
        settle(graph)
        assert unlocked(x)
        assert number_in(x) == k
    graph.launch().sync()
    assert number_in(graph.take_output()) == 4


def test_an_update_gives_what_its_op_gives() -> None:
    """Handles that it was given, as they are by the next launch."""
    x = tensor(1)
    graph = scaled(1.0, x.borrow()).graph()
    for k in range(3):
        filled = graph.update(fill(tensor(), k))
        graph.launch().sync()
        assert number_in(filled) == k


def test_updates_leave_nothing_behind() -> None:
    """However many there are before a launch."""
    x = tensor(1)
    graph = scaled(1.0, x.borrow()).graph()
    for k in range(50):
        graph.update(memcpy(x.borrow_mut(), shared(k % 7)))
        settle(graph)
    assert len(graph._captured.updates._enqueued.replays) <= 1  # noqa: SLF001  # no public call shows it


def test_an_update_of_a_known_structure_needs_no_trace() -> None:
    """The first one is traced and planned. Others that differ in their handles alone take its plan, and write what they
    were given."""
    x = tensor(1)
    graph = scaled(1.0, x.borrow()).graph()
    output = graph.take_output()
    traced: list[object] = []
    tracer: Any = vars(cuda_graph)["Tracer"]

    def counting(*args: Any) -> Any:
        traced.append(args)
        return tracer(*args)

    with patch.object(cuda_graph, "Tracer", counting):
        for k in range(4):
            graph.update(memcpy(x.borrow_mut(), shared(k)))
            graph.launch().sync()
            assert number_in(output) == k
    assert len(traced) == 1


@pytest.mark.parametrize(
    ("op", "why"),
    [
        (lambda x: ones(S), "makes memory of its own: Fill"),
        (lambda x: dup(x.borrow()), "makes memory of its own: CopyDtoD"),
        (lambda x: x.borrow().to_host(), "waits for data of the host: CopyDtoH"),
        (lambda x: value(1).host_map(float), "waits for data of the host: HostCall"),
        (lambda x: scaled(1.0, x.borrow()), "makes memory of its own: Launch"),
    ],
)
def test_what_is_no_update(op: Callable[[Any], Any], why: str) -> None:
    """An op that makes memory, or waits for the host: the error names it and its place, and the cure."""
    x = tensor(1)
    graph = scaled(1.0, x.borrow()).graph()
    asked = op(x)
    for refused in (asked, graph.launch()):
        with pytest.raises(CaptureError) as caught:
            graph.update(refused)
        assert str(caught.value).count(__file__) == 2
        assert (why if refused is asked else "launches another graph: GraphLaunch") in str(caught.value)
        assert CURES["host" if "host" in why and refused is asked else "memory"] in str(caught.value)
    assert unlocked(x)
    graph.launch().sync()


@pytest.mark.host_only("a kernel's host body waits until it is told to go on")
def test_an_update_that_is_refused_keeps_its_arguments() -> None:
    """A lock in the way is a `BorrowError`; the same op may be given again."""
    x = tensor(1)
    graph = scaled(1.0, x.borrow()).graph()
    ops = [memcpy(x.borrow_mut(), tensor(k)) for k in (2, 3)]
    for op in ops:  # the second by the plan of the first
        with held(x), pytest.raises(BorrowError):
            graph.update(op)
        graph.update(op)
        graph.launch().sync()
        with pytest.raises(MovedError):
            graph.update(op)
    assert number_in(graph.take_output()) == 3


@contextmanager
def held(t: Any) -> Iterator[None]:
    """A run that writes this tensor is under way."""
    op = waits_for_it(t.borrow_mut().partition(S)).map(lambda _: None)
    GO.clear()
    BUSY.clear()
    thread = threading.Thread(target=op.sync)
    thread.start()
    try:
        assert BUSY.wait(PATIENCE)
        yield
    finally:
        GO.set()
        thread.join(PATIENCE)


@kernel(cuda="__global__ void waits_for_it(Tile<float, 2> y) { for (auto i : y) y[i] += 0; }")
def waits_for_it(y: Out[f32]) -> None:
    """Does nothing, until told to go on."""


GO, BUSY = threading.Event(), threading.Event()


@waits_for_it.host
def _(y: Tile[f32]) -> None:
    BUSY.set()
    assert GO.wait(PATIENCE)


@kernel(cuda="__global__ void may_fail(Tile<float, 2> y, View<const float, 2> x) { for (auto i : y) y[i] = x[i]; }")
def may_fail(y: Out[f32], x: In[f32]) -> None:
    """y = x, unless TOLD is set."""


TOLD = threading.Event()


@may_fail.host
def _(y: Tile[f32], x: Any) -> None:
    if TOLD.is_set():
        raise ArithmeticError("as told")
    y[...] = x[y.at]


@contextmanager
def failing() -> Iterator[None]:
    """`may_fail` fails."""
    TOLD.set()
    try:
        yield
    finally:
        TOLD.clear()


def copied(y: Any, x: Any) -> Op:
    return may_fail(y.borrow_mut().partition(S), x).map(lambda _: None)


@pytest.mark.host_only("the kernel's host body fails")
@pytest.mark.parametrize("before", [0, 2])
def test_an_update_that_fails_surfaces_at_the_next_launch(before: int) -> None:
    """Once: the launch itself is done, nothing stays locked, and the one after is well."""
    x = tensor(1)
    graph = scaled(2.0, x.borrow()).graph()
    output = graph.take_output()
    for k in range(before):
        graph.update(copied(x, shared(k)))
        graph.launch().sync()
    with failing():
        graph.update(copied(x, shared(5)))
        settle(graph)
    assert unlocked(x)
    fill_ = shared(3)
    graph.update(copied(x, fill_))
    with pytest.raises(ArithmeticError, match="as told"):
        graph.launch().sync()
    assert number_in(output) == 6
    graph.launch().sync()
    assert unlocked(x, output)


@pytest.mark.host_only("the kernel's host body fails")
def test_several_updates_that_fail() -> None:
    """Come as one group."""
    x, y = tensor(1), tensor(1)
    graph = add(out(), x.borrow(), y.borrow()).first().unpartition().graph()
    with failing():
        graph.update(copied(x, shared(5)))
        graph.update(copied(y, shared(5)))
        settle(graph)
    with pytest.raises(ExceptionGroup) as caught:
        graph.launch().sync()
    assert [str(error) for error in caught.value.exceptions] == ["as told", "as told"]


@pytest.mark.host_only("the kernel's host body fails")
def test_a_launch_that_fails() -> None:
    """Raises what failed, keeps no lock, and may be launched again."""
    x = tensor(1)
    graph = may_fail(out(), x.borrow()).first().unpartition().graph()
    output = graph.take_output()
    for k in range(3):
        graph.update(memcpy(x.borrow_mut(), shared(k)))
        with failing(), pytest.raises(ArithmeticError, match="as told"):
            graph.launch().sync()
        assert unlocked(x, output)
        graph.launch().sync()
        assert number_in(output) == k


@pytest.mark.parametrize("before", [0, 2])
def test_a_launch_that_is_cancelled(before: int) -> None:
    """Before anything was submitted: nothing is launched, updates are done all the same, and nothing stays locked."""
    x = tensor(1)
    graph = scaled(2.0, x.borrow()).graph()
    output = graph.take_output()
    for _ in range(before):
        graph.launch().sync()

    new = shared(4)

    async def body() -> None:
        graph.update(memcpy(x.borrow_mut(), new))
        with trio.CancelScope() as scope:
            scope.cancel()
            await graph.launch()
        assert scope.cancelled_caught

    trio.run(body)
    assert (number_in(x), number_in(output)) == (4, 2)
    assert unlocked(x, output)
    graph.launch().sync()
    assert number_in(output) == 8


# ---- who may use what, and when


@pytest.mark.host_only("a kernel's host body waits until it is told to go on")
def test_a_launch_is_a_borrower() -> None:
    """Of what was lent to it, of its output, and of itself: while one runs, others are refused."""
    y, x = tensor(1), tensor(1)
    graph = zip_ops(waits_for_it(y.borrow_mut().partition(S)), scaled(2.0, x.borrow())).last()
    GO.set()
    captured: Any = graph.graph()
    output = captured.take_output()
    GO.clear()
    BUSY.clear()
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(captured.launch().sync)
        try:
            assert BUSY.wait(PATIENCE)
            for op in (
                captured.launch(),
                dup(y.borrow()),
                memcpy(x.borrow_mut(), shared(1)),
                dup(output.borrow()),
            ):
                with pytest.raises(BorrowError, match=f"by the run started at {__file__}|concurrent"):
                    op.sync()
            with pytest.raises(BorrowError):
                captured.update(memcpy(x.borrow_mut(), shared(1)))
            assert number_in(x) == 1  # reading what it reads
        finally:
            GO.set()
        under_way.result(PATIENCE)
    assert unlocked(x, y, output)
    captured.launch().sync()


@pytest.mark.host_only("a kernel's host body waits until it is told to go on")
def test_a_launch_has_the_graph_to_itself() -> None:
    """A graph that writes nothing but temporaries, and was lent nothing, runs once at a time all the same: two launches
    would share its temporaries."""
    GO.set()
    captured: Any = waits_for_it(zeros(S).partition(S)).map(lambda _: None).graph()
    assert set(captured._captured.storages.values()) == set()  # noqa: SLF001  # no public call shows it
    GO.clear()
    BUSY.clear()
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(captured.launch().sync)
        try:
            assert BUSY.wait(PATIENCE)
            with pytest.raises(BorrowError, match=f"by the run started at {__file__}|concurrent"):
                captured.launch().sync()
        finally:
            GO.set()
        under_way.result(PATIENCE)
    captured.launch().sync()


MOVES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "shared": (lambda t: t.share(), "share()"),
    "used up": (lambda t: t.to_host().sync(), "to_host()"),
    "unwrapped": (lambda t: t.try_unwrap(), "try_unwrap()"),
}


@pytest.mark.parametrize("name", MOVES)
@pytest.mark.parametrize("before", [0, 2])
def test_a_tensor_that_has_moved_away(name: str, before: int) -> None:
    """A launch says which one, where it went, and the cure; whatever it was lent for."""
    move, how = MOVES[name]
    x = shared(1) if name == "unwrapped" else tensor(1)
    graph = scaled(2.0, x if name == "unwrapped" else x.borrow()).graph()
    for _ in range(before):
        graph.launch().sync()
    moved = move(x)
    for op in (graph.launch(), zip_ops(graph.launch(), zeros(S)), value(0).then(lambda _: graph.launch())):
        with pytest.raises(MovedError, match="capture the graph again") as caught:
            op.sync()
        assert how in str(caught.value)
        assert f"graph captured at {__file__}" in str(caught.value)
    del moved


@pytest.mark.host_only("it counts bytes, which a GPU rounds up")
def test_a_graph_keeps_what_it_points_at() -> None:
    """Tensors that were lent to it, and its outputs, though nobody else has them; and nothing once it is gone."""
    here = current_device()
    gc.collect()
    gc.disable()
    try:
        before = here.memory_used()

        def capture() -> Any:
            x = tensor(3, (100,))
            graph = fill(tensor(0, (100,)), 2).then(lambda t: zip_ops(value(t), dup(x.borrow()))).graph()
            graph.take_output()
            return graph

        graph = capture()
        for _ in range(3):
            graph.launch().sync()
            graph.launch().then(lambda _: zeros(S)).sync()
        assert here.memory_used() == before + 1200
        op = graph.launch()
        del graph
        op.sync()
        assert here.memory_used() == before + 1200
        del op
        assert here.memory_used() == before
    finally:
        gc.enable()


def test_an_output_outlives_its_graph() -> None:
    """It keeps the memory that it lies in."""
    graph = ones(S).graph()
    output = graph.take_output()
    del graph
    assert number_in(output) == 1


def test_plans_of_launches_are_kept_by_the_graph() -> None:
    """Each place where it is launched has a plan, with its own origin."""
    graph = ones(S).graph()
    for _ in range(3):
        graph.launch().sync()
    graph.launch().sync()
    assert graph._captured.plans.info()[:2] == (2, 2)  # noqa: SLF001  # no public call shows it


# ---- what is captured


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a function of the host": (lambda: zeros(S).to_host().host_map(lambda a: a), "calls a function of the host"),
    "nothing to do": (lambda: value(1), "nothing to launch again"),
    "data of the host": (lambda: ones(S).to_host().then(from_host), "goes on only when data has come to the host"),
    "another graph": (lambda: ones(S).graph().launch(), "launches another graph"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_captured(name: str) -> None:
    """Is refused before anything runs: what, where, and the cure. The op runs as before."""
    make, what = REFUSED[name]
    op = make()
    for _ in range(2):
        with pytest.raises(CaptureError, match=what) as caught:
            op.graph()
        assert f"captured at {__file__}" in str(caught.value)
    op.sync()


def test_several_devices_are_refused() -> None:
    """A graph is launched on one."""
    if device(place(1)) is device(place(0)):
        pytest.skip("there is one device")
    with pytest.raises(CaptureError, match="Capture what runs on each by itself"):
        zip_ops(ones(S).on(place(0)), ones(S).on(place(1))).graph()


def test_a_refused_capture_keeps_its_arguments() -> None:
    """What the op owns it owns still; a component that nobody took can still be asked for."""
    op = value(tensor(1)).then(lambda t: zip_ops(t.to_host(), value(None)).first().host_map(lambda a: a))
    with pytest.raises(CaptureError):
        op.graph()
    assert number_in(op.sync()) == 1
    left, right = zip_ops(zeros(S), ones(S)).unzip()
    with pytest.raises(CaptureError, match=r"Let go of it \(del\)"):
        left.graph()
    assert (number_in(left.sync()), number_in(right.sync())) == (0, 1)


@pytest.mark.host_only("a kernel's host body waits until it is told to go on")
def test_a_capture_in_the_way_of_a_run() -> None:
    """Is a `BorrowError`, and the op may be captured later."""
    x = tensor(1)
    op = scaled(2.0, x.borrow())
    with held(x), pytest.raises(BorrowError):
        op.graph()
    assert number_in(op.graph().take_output()) == 2
    assert unlocked(x)


@pytest.mark.host_only("the kernel's host body fails")
def test_a_capture_that_fails() -> None:
    """Raises what failed, and nothing stays locked."""
    x = tensor(1)
    with failing(), pytest.raises(ArithmeticError, match="as told"):
        may_fail(out(), x.borrow()).graph()
    assert unlocked(x)


def test_what_is_shared_is_evaluated_once() -> None:
    """Before the capture: a launch reads it."""
    made: list[Any] = []
    constant = ones(S).inspect(lambda t: made.append(t.shape)).shared()
    graph = add(out(), constant, shared(1)).first().unpartition().graph()
    graph.launch().sync()
    assert number_in(constant.sync()) == 1
    assert number_in(graph.take_output()) == 2
    assert len(made) == 1


def test_two_threads_capture_at_once() -> None:
    """Each gets its own graph."""
    start = threading.Barrier(2)

    def some(number: int) -> list[float]:
        found = []
        start.wait(PATIENCE)
        for k in range(5):
            x, y = tensor(number), shared(k)
            graph = scaled(2.0, x.borrow()).graph()
            with CudaGraph.scope(current_device().stream()) as scope:
                scope.record(adds(x, 1.0, y))
            scope.graph.launch().sync()
            graph.launch().sync()
            found.append(number_in(graph.take_output()))
        return found

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(some, (1, 10))
    assert first == [2 + 2 * k for k in range(5)]
    assert second == [20 + 2 * k for k in range(5)]


# ---- scopes


def test_a_scope_records() -> None:
    """Nothing runs within it; a launch does all of it, in order, and each op sees what those before have written."""
    x, y, z = tensor(1), tensor(10), tensor(0)
    with CudaGraph.scope(current_device().stream()) as scope:
        for _ in range(2):
            assert scope.record(adds(y, 2.0, x.borrow()).map(lambda _: "done")) == "done"
        scope.record(memcpy(z.borrow_mut(), y.borrow()))
        scope.record(adds(z, 1.0, x.borrow()))
    assert (number_in(y), number_in(z)) == (10, 0)
    for k in range(1, 4):
        scope.graph.launch().sync()
        assert (number_in(y), number_in(z)) == (10 + 4 * k, 11 + 4 * k)
    with pytest.raises(MovedError):
        scope.graph.take_output(), scope.graph.take_output()
    assert unlocked(x, y, z)


def test_a_scope_takes_owned_tensors() -> None:
    """What is recorded of them is given back, on the graph's memory."""
    mine, x = tensor(1), shared(2)
    with CudaGraph.scope(current_device().stream()) as scope:
        t = scope.record(fill(mine, 3))
        scope.record(adds(t, 1.0, x))
    scope.graph.launch().sync()
    assert number_in(t) == 5


@pytest.mark.parametrize(
    ("op", "what"),
    [
        (lambda x: ones(S), "makes memory of its own: Fill"),
        (lambda x: empty(S), "makes memory of its own: Alloc"),
        (lambda x: dup(x.borrow()), "makes memory of its own: CopyDtoD"),
        (lambda x: convert(x.borrow(), i32), "makes memory of its own: CopyDtoD"),
        (lambda x: from_host(np.ones(S, f32)), "makes memory of its own: CopyHtoD"),
        (lambda x: x.borrow().to_host(), "waits for data of the host: CopyDtoH"),
        (lambda x: scaled(1.0, x.borrow()), "makes memory of its own: Launch"),
        (lambda x: value(2).host_map(float), "waits for data of the host: HostCall"),
        (lambda x: GRAPHS[0].launch(), "launches another graph: GraphLaunch"),
    ],
)
def test_what_a_scope_refuses(op: Callable[[Any], Any], what: str) -> None:
    """What it is, where it was built and recorded, and the cure; the rest of the scope is not touched."""
    x, one = tensor(1), shared(1)
    GRAPHS[:] = [ones(S).graph()]
    with CudaGraph.scope(current_device().stream()) as scope:
        scope.record(adds(x, 1.0, one))
        with pytest.raises(CaptureError, match=what) as caught:
            scope.record(op(x))
        assert str(caught.value).count(__file__) >= 2
        assert CURES["host" if "host" in what else "memory"] in str(caught.value)
        scope.record(adds(x, 2.0, one))
    scope.graph.launch().sync()
    assert number_in(x) == 4
    GRAPHS.clear()


GRAPHS: list[Any] = []


def test_nothing_runs_inside_a_scope() -> None:
    """`sync`, `await`, `spawn`, `graph` and `update` are refused, with the scope's place; afterwards all is well."""
    x = tensor(1)
    graph = ones(S).graph()
    refusals: list[str] = []

    def refused(run: Callable[[], Any]) -> None:
        with pytest.raises(NestedRunError, match=r"scope\.record\(op\)") as caught:
            run()
        refusals.append(str(caught.value))

    async def body() -> None:
        with CudaGraph.scope(current_device().stream()) as scope:
            scope.record(adds(x, 1.0, shared_before))
            with pytest.raises(NestedRunError, match=r"scope\.record\(op\)"):
                await zeros(S)
            with pytest.raises(ExceptionGroup) as caught:
                async with trio.open_nursery() as nursery:
                    spawn(nursery, zeros(S))
            assert caught.value.subgroup(NestedRunError) is not None
        await scope.graph.launch()

    shared_before = shared(1)
    with CudaGraph.scope(current_device().stream()) as scope:
        refused(lambda: zeros(S).sync())
        refused(lambda: zeros(S).sync_on(current_device().stream()))
        refused(lambda: zeros(S).graph())
        refused(lambda: graph.update(memcpy(x.borrow_mut(), shared_before)))
        refused(lambda: graph.launch().sync())
        scope.record(adds(x, 1.0, shared_before))
    assert all(said.count(__file__) >= 2 for said in refusals)
    scope.graph.launch().sync()
    trio.run(body)
    assert number_in(x) == 3


def test_nothing_runs_inside_a_closure() -> None:
    """Neither an update nor a capture, as with `sync`."""
    x, new = tensor(1), shared(2)
    graph = ones(S).graph()

    def nested(run: Callable[[], Any]) -> Any:
        return zeros(S).map(lambda _: run())

    for op in (nested(lambda: graph.update(memcpy(x.borrow_mut(), new))), nested(lambda: zeros(S).graph())):
        with pytest.raises(NestedRunError, match=r"Return the op from \.then"):
            op.sync()
    assert unlocked(x)
    assert number_in(x) == 1


def test_capturing_in_a_trio_task_warns() -> None:
    """It blocks every other task, as `sync` does; updates, scopes and launches do not."""
    x, new = tensor(1), shared(2)

    async def body() -> CudaGraph[Any]:
        with pytest.warns(RuntimeWarning, match=r"graph\(\) at .* blocks every other task"):
            graph = scaled(2.0, x.borrow()).graph()
        graph.update(memcpy(x.borrow_mut(), new))
        with CudaGraph.scope(graph.stream) as scope:
            scope.record(adds(x, 1.0, new))
        await graph.launch()
        await scope.graph.launch()
        return graph

    assert number_in(trio.run(body).take_output()) == 4
    assert number_in(x) == 4


def test_other_threads_and_tasks_go_on() -> None:
    """A scope is its own task's, or thread's: others run ops meanwhile."""
    with CudaGraph.scope(current_device().stream()) as scope, ThreadPoolExecutor(1) as pool:
        x = pool.submit(lambda: tensor(1)).result(PATIENCE)
        scope.record(adds(x, 1.0, pool.submit(lambda: shared(1)).result(PATIENCE)))
    scope.graph.launch().sync()
    assert number_in(x) == 2


def test_an_exception_inside_a_scope() -> None:
    """Comes out; what was recorded has its handles back, nothing is locked, and stream and device are usable."""
    x = tensor(1)
    stream = current_device().stream()
    filled, added = fill(tensor(2), 3), adds(x, 1.0, shared(1))

    def record(scope: Any) -> None:
        scope.record(filled)
        scope.record(added)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), CudaGraph.scope(stream) as scope:
        record(scope)
    late: Callable[[], Any]
    for late, why in ((lambda: scope.graph, "because it failed"), (lambda: scope.record(added), "after the end")):
        with pytest.raises(CaptureError, match=why):
            late()
    assert number_in(filled.sync()) == 3
    added.sync_on(stream)
    assert number_in(x) == 2
    assert unlocked(x)
    one = shared(1)
    with CudaGraph.scope(stream) as again:
        again.record(adds(x, 1.0, one))
    again.graph.launch().sync()
    assert number_in(x) == 3


def test_a_scope_that_cannot_be_captured_gives_its_handles_back() -> None:
    """With nothing recorded, or on another device than its stream: an error at its end."""
    stream = current_device().stream()
    with pytest.raises(CaptureError, match=f"the scope at {__file__}.*has recorded nothing"), CudaGraph.scope(stream):
        pass
    there = device(place(1))
    if there is current_device():
        return
    op = fill(tensor(1), 2)
    with pytest.raises(CaptureError, match="Give a stream of"), CudaGraph.scope(there.stream()) as scope:
        scope.record(op)
    assert number_in(op.sync()) == 2


def test_a_scope_has_no_graph_before_its_end() -> None:
    """Take it after the `with` block."""
    x, one = tensor(1), shared(1)
    with CudaGraph.scope(current_device().stream()) as scope:
        scope.record(adds(x, 1.0, one))
        with pytest.raises(CaptureError, match="Take it after its with block"):
            scope.graph
    assert "graph captured at" in repr(scope.graph)


def test_one_op_conflicts_with_itself_alone() -> None:
    """Two ops of a scope may write one tensor; one op may not read what it writes."""
    x, one = tensor(1), shared(1)
    with CudaGraph.scope(current_device().stream()) as scope:
        scope.record(adds(x, 1.0, one))
        with pytest.raises(BorrowError):
            scope.record(zip_ops(adds(x, 1.0, one), memcpy(x.borrow_mut(), one)))
        scope.record(adds(x, 2.0, one))
    scope.graph.launch().sync()
    assert number_in(x) == 4


# ---- looking


def test_a_launch_explains_itself() -> None:
    """One instruction, which says where the graph was captured and where it is launched."""
    graph = ones(S).graph()
    op = graph.launch()
    here = __file__.rsplit("/", 1)[-1]
    for text in (op.explain(), str(plan_of(op))):
        assert f"GraphLaunch {here}:" in text
    assert "GraphLaunch" in op.to_dot()
    assert "GraphLaunch" in op.to_svg()
    op.sync()


def test_a_trace_shows_a_launch_as_one_span() -> None:
    """With the place where it was captured, and that of the launch: each its own."""
    graph = zip_ops(ones(S), zeros(S)).graph()
    with trace() as found:
        graph.launch().sync()
        graph.launch().sync()
        zip_ops(graph.launch(), ones(S)).sync()
    spans = [event for event in found.events() if event["ph"] == "X" and event["cat"] == "GraphLaunch"]
    assert len(spans) == 3
    assert len({span["name"] for span in spans}) == 1
    assert len({span["args"]["origin"] for span in spans}) == 3
    assert str(found).startswith("Trace: 3 runs, 4 instructions")


# ---- in every order


@pytest.mark.host_only("it runs on a device of its own")
@pytest.mark.parametrize("seed", range(6))
def test_graphs_in_every_order(seed: int) -> None:
    """On a device that poisons memory and picks its order at random: launches, updates and pipelines are right."""
    p = pipeline(lambda x, a: add(out(), scaled(a, x), scaled(2.0, x)).first().unpartition())
    with use_device(device("explore:0")), exploring(seed=seed):
        x, y = tensor(1), tensor(0)
        graph = zip_ops(scaled(2.0, x.borrow()), scaled(3.0, x.borrow()), x.borrow().to_host()).graph()
        twice, thrice, array = graph.take_output()
        with CudaGraph.scope(current_device().stream()) as scope:
            scope.record(adds(y, 1.0, x.borrow()))
            scope.record(adds(y, 2.0, x.borrow()))
        total = 0
        for k in (3, 4, 5):
            graph.update(memcpy(x.borrow_mut(), shared(k)))
            zip_ops(graph.launch(), scope.graph.launch()).sync()
            total += 3 * k
            assert (number_in(twice), number_in(thrice), number_in(array)) == (2 * k, 3 * k, k)
            assert number_in(y) == np.fmod(total, 64)
            assert number_in(p(x.borrow(), float(k)).sync()) == k * k + 2 * k
        assert unlocked(x, y, twice, thrice)
