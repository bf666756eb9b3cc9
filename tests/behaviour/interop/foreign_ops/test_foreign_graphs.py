"""Foreign ops in CUDA graphs: captured once for each graph, again where something moves, and reasons where not."""

import gc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dagpu import (
    CaptureError,
    DeviceLostError,
    In,
    Out,
    OutOfMemoryError,
    Tensor,
    array,
    current_device,
    f32,
    foreign,
    from_host,
    full,
    pipeline,
    u8,
    zip_ops,
)
from dagpu.interop import current_lane, new
from tests.behaviour.interop.foreign_ops.foreign_programs import affine, halves, product
from tests.simulated.array_libraries import array_libraries
from tests.simulated.cuda import driver, installed
from tests.simulated.gpu import CAPTURING

A = np.arange(6, dtype=f32).reshape(2, 3)
FAULTS = ("cuStreamBeginCapture", "cuStreamEndCapture", "cuGraphAddChildGraphNode", "cuGraphInstantiate")


def waiting(capture: Any) -> Any:
    """An op whose body waits for the device in a capture; `calls` has True for each capture."""
    calls: list[bool] = []

    @foreign(capture=capture)
    def waits(x: In[f32]) -> Tensor[f32]:
        return new(x)

    @waits.on("torch")
    def _(x: Any, out: Any) -> None:
        calls.append(current_lane().capturing)
        out.copy_(x + 1.0)
        out.item() if current_lane().capturing else None

    return waits, calls


def counted(capture: Any = "auto") -> Any:
    """An op whose body can be captured; the list has True for each capture, False for another call."""
    calls: list[bool] = []

    @foreign(capture=capture)
    def adds(x: In[f32], number: float) -> Tensor[f32]:
        return new(x)

    @adds.on("torch")
    def _(x: Any, number: float, out: Any) -> None:
        calls.append(current_lane().capturing)
        out.copy_(x + number)

    return adds, calls


def test_a_body_is_called_once_and_captured_once() -> None:
    """The first run calls it, the second captures it, later ones launch the graph: nothing of Python runs."""
    adds, calls = counted()
    with installed() as machine, array_libraries(machine, "torch"):
        x = from_host(A).sync().share()
        step = pipeline(graph_from=2)(lambda t: adds(array.cumsum(t, 0), 1.0))
        for _ in range(6):
            assert_array_equal(step(x).to_host().sync(), np.cumsum(A, 0) + 1)
        assert calls == [False, True]
        assert machine.gpus[0].calls["cuGraphLaunch"] == 5


def test_small_operands_that_move_are_copied() -> None:
    """From the first move on, the graph has copies between where they are in each run and where the body has them: the
    body is captured once more for that, again for another number, and never again for an address."""
    adds, calls = counted()
    with installed() as machine, array_libraries(machine, "torch"):
        step = pipeline(graph_from=2)(lambda t, number: adds(t, number))
        one, two = from_host(A).sync().share(), from_host(A * 2).sync().share()
        for t, contents, number in ((one, A, 1.0), (one, A, 1.0), (two, A * 2, 1.0), (two, A * 2, 3.0), (one, A, 3.0)):
            for repeat in range(2):
                assert_array_equal(step(t, number).to_host().sync(), contents + f32(number), f"{repeat}")
        assert calls == [False, True, True, True]
        assert machine.gpus[0].calls["cuGraphInstantiate"] == 2
        others = [from_host(A * number).sync().share() for number in range(6)]
        held = [step(t, 3.0).sync() for t in others]  # the results move too
        assert calls[4:] == [False, True, True]  # a plan of its own, without a copy to the host
        held += [step(t, 3.0).sync() for t in others]
        assert len(calls) == 7
        for number, tensor in enumerate(held):
            assert_array_equal(tensor.to_host().sync(), A * f32(number % 6) + 3)
        explained = adds(one.clone(), 1.0).explain()
        assert "If captured, adds at" in explained
        assert "x, new tensor 0 are copied once their addresses move" in explained


def test_a_graph_has_a_node_for_each_body_and_no_other() -> None:
    """Ten ops are ten nodes, as in a capture of the library's own: nothing copies their operands. Only an input that
    moves between runs has a copy, one for all runs from then on."""
    adds, _ = counted()

    def added(call: str) -> int:
        return gpu.calls[f"cuGraphAdd{call}Node"] - before[f"cuGraphAdd{call}Node"]

    with installed() as machine, array_libraries(machine, "torch"):
        gpu = machine.gpus[0]

        @pipeline(graph_from=2)
        def ten(x: Any) -> Any:
            for _ in range(10):
                x = adds(x, 1.0)
            return x

        x, other = from_host(A).sync().share(), from_host(-A).sync().share()
        before = gpu.calls.copy()
        for _ in range(4):
            assert_array_equal(ten(x).sync().to_host().sync(), A + 10)
        assert [added(call) for call in ("ChildGraph", "Memcpy", "Kernel", "Memset")] == [10, 0, 0, 0]
        before = gpu.calls.copy()
        for each, expected in ((other, 10 - A), (x, A + 10), (other, 10 - A)):
            assert_array_equal(ten(each).sync().to_host().sync(), expected)
        assert [added(call) for call in ("ChildGraph", "Memcpy", "Kernel", "Memset")] == [10, 1, 0, 0]


LARGE = (64 << 20) + 1


def test_large_operands_that_move_are_captured_again() -> None:
    """Above 64 MiB a capture costs less than a copy; `explain()` says which operands these are."""
    calls: list[bool] = []

    @foreign
    def first_of(x: In[u8], start: In[u8]) -> Tensor[u8]:
        return new(start)

    @first_of.on("torch")
    def _(x: Any, start: Any, out: Any) -> None:
        calls.append(current_lane().capturing)
        out.written_by(lambda a, b: a[:4] + b, x, start)

    with installed() as machine, array_libraries(machine, "torch"):
        step = pipeline(graph_from=2)(lambda x, start: first_of(x, start))
        large = [full((LARGE,), number, u8).sync().share() for number in (1, 2)]
        small = [full((4,), number, u8).sync().share() for number in (10, 20)]
        for each, other in ((0, 0), (0, 0), (0, 1), (1, 1), (0, 0), (0, 1), (1, 0)):
            expected = np.full(4, each + 1 + 10 * (other + 1), u8)
            assert_array_equal(step(large[each], small[other]).to_host().sync(), expected)
        assert calls == [False] + [True] * 5
        explained = first_of(large[0].clone(), small[0].clone()).explain()
        assert "start, new tensor 0 are copied once their addresses move; x is captured again" in explained


STEPS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.booleans()), min_size=3, max_size=9)


@settings(max_examples=15, deadline=None)
@given(STEPS, st.integers(0, 1000))
def test_a_graph_whose_operands_move_is_right(steps: Any, seed: int) -> None:
    """Inputs, results and an argument that the body adds to are anywhere in each run, two bodies read each other's
    results, and memory may be too short to copy them: the results are those of NumPy."""

    @foreign
    def accumulated(y: Out[f32], x: In[f32], by: float) -> None: ...

    @accumulated.on("torch")
    def _(y: Any, x: Any, by: float) -> None:
        y.copy_(y + x * by)

    with installed(seed=seed) as machine, array_libraries(machine, "torch"):
        gpu = machine.gpus[0]
        tensors = [from_host(A * number).sync().share() for number in range(4)]
        expected = [np.zeros((2, 3), f32) for _ in range(3)]
        sums = [from_host(each).sync() for each in expected]

        @pipeline(graph_from=2)
        def step(y: Any, x: Any, by: float) -> Any:
            made = affine(x, by, 1.0)
            return zip_ops(accumulated(y, affine(made, 1.0), by).first(), affine(x, by))

        held = []
        for number, which, short in steps:
            if short:
                gpu.fail("cuMemAlloc", 2)
            try:
                y, x = sums[which].borrow_mut().partition((1, 3)), tensors[number].clone()
                _, other = step(y, x, float(which)).sync()
            except OutOfMemoryError:
                assert short
            else:
                expected[which] = expected[which] + (A * number * f32(which) + 1) * f32(which)
                assert_array_equal(other.to_host().sync(), A * number * f32(which))
                held.append(other)
            gpu.heal()
        for total, right in zip(sums, expected, strict=True):
            assert_array_equal(total.to_host().sync(), right)
        assert machine.problems == []


@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_temporaries_live_as_long_as_the_graph(library: str) -> None:
    """They come from memory of the graph's own: nothing else gets it, until the graph is gone."""
    with installed(memory=1 << 20) as machine, array_libraries(machine, library) as found:
        used = current_device().memory_used()
        x = from_host(A).sync().share()
        step = pipeline(graph_from=1)(lambda t: product(affine(t, 2.0, 1.0), from_host(A.T.copy())))
        for number in range(4):
            from_host(np.full(1000, number, f32)).sync()
            assert_array_equal(step(x).to_host().sync(), (A * 2 + 1) @ A.T)
        assert CAPTURING not in found[library].workspaces  # each captured product has one of its own
        if library == "cupy":
            assert current_device().memory_used() > used + A.nbytes
        del step, x
        array_of_plans_is_dropped()
        assert current_device().memory_used() == used
        assert machine.problems == []


def array_of_plans_is_dropped() -> None:
    """Drop what plans keep, as a program does that is over with a pipeline."""
    gc.collect()
    found: Any = driver()
    with found.gpu.current():
        found.destroy_retired()
    gc.collect()


def test_a_captured_graph_has_the_work_of_bodies() -> None:
    """`op.graph()` calls it once, captures it once, and its launches call no body."""
    adds, calls = counted()
    with installed() as machine, array_libraries(machine, "torch"):
        graph = adds(from_host(A), 1.0).graph()
        out = graph.take_output()
        for _ in range(3):
            graph.launch().sync()
        assert_array_equal(out.borrow().to_host().sync(), A + 1)
        assert calls == [False, True]


def test_what_cannot_be_captured_goes_through_streams() -> None:
    """The results are right, it is tried once, and `explain()` says why."""
    waits, calls = waiting("auto")
    with installed() as machine, array_libraries(machine, "torch"):
        x = from_host(A).sync().share()
        assert "CUDA graph" not in waits(x.clone()).explain()
        step = pipeline(graph_from=2)(lambda t: waits(t))
        for _ in range(4):
            assert_array_equal(step(x).to_host().sync(), A + 1)
        assert calls == [False, True, False, False, False]
        assert "No CUDA graph" in waits(x.clone()).explain()
        assert "it raised RuntimeError: operation not permitted when stream is capturing" in waits(x.clone()).explain()
        assert "cuGraphLaunch" not in machine.gpus[0].calls


def test_never() -> None:
    """It is not tried, and `explain()` says so; `op.graph()` refuses."""
    adds, calls = counted("never")
    with installed() as machine, array_libraries(machine, "torch"):
        x = from_host(A).sync().share()
        step = pipeline(graph_from=1)(lambda t: adds(t, 1.0))
        for _ in range(3):
            assert_array_equal(step(x).to_host().sync(), A + 1)
        assert calls == [False] * 3
        assert 'it is declared with capture="never"' in adds(x.clone(), 1.0).explain()
        with pytest.raises(CaptureError, match=r'capture="never". Declare it'):
            adds(x, 1.0).graph()


@pytest.mark.parametrize("capture", ["never", "auto"])
def test_a_run_through_streams_takes_no_events(capture: str) -> None:
    """A run for which a thread waits goes to one idle stream, and is over when that is idle: of a body that must not be
    captured, and of one that cannot be."""
    op, _ = waiting(capture)
    with installed() as machine, array_libraries(machine, "torch"):
        x, calls = from_host(A).sync().share(), machine.gpus[0].calls
        step = pipeline(graph_from=2)(lambda t: op(op(t)))
        for _ in range(3):
            step(x).sync()
        before = calls.copy()
        result = step(x).sync()
        done = calls - before
        assert done["cuStreamQuery"]
        assert not any(name.startswith("cuEvent") for name in done)
        assert_array_equal(result.to_host().sync(), A + 2)


def test_required() -> None:
    """The run that would become a graph raises, and so does each after it."""
    waits, _ = waiting("required")
    with installed() as machine, array_libraries(machine, "torch"):
        x = from_host(A).sync().share()
        step = pipeline(graph_from=2)(lambda t: waits(t))
        step(x).sync()
        for _ in range(2):
            with pytest.raises(CaptureError, match=r"waits, declared at \S+, called at \S+: its body cannot be in a"):
                step(x).sync()
        with pytest.raises(CaptureError, match="operation not permitted"):
            waits(x.clone()).graph()
        assert machine.gpus[0].graphs == 0
        (adds, _), (never, _) = counted("required"), counted("never")
        both = pipeline(graph_from=2)(lambda t: adds(never(t, 1.0), 1.0))
        both(x).sync()
        with pytest.raises(CaptureError, match='cannot be part of a CUDA graph: it is declared with capture="never"'):
            both(x).sync()


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(FAULTS), st.integers(1, 3), st.sampled_from([1, 2, 901])), max_size=2),
    st.integers(0, 1000),
)
def test_a_driver_that_refuses_a_capture(faults: Any, seed: int) -> None:
    """At whatever call: the results are right or the run fails with the device's error, and no context is left over."""
    with installed(seed=seed) as machine, array_libraries(machine, "torch"):
        x = from_host(A).sync().share()
        step = pipeline(graph_from=2)(lambda t, number: product(affine(t, number), from_host(A.T.copy())))
        step(x, 1.0).sync()
        for call, nth, code in faults:
            machine.gpus[0].fail(call, code, nth)
        for number in (1.0, 1.0, 2.0, 2.0, 3.0):
            try:
                found = step(x, number).to_host().sync()
            except OutOfMemoryError:
                assert 2 in [code for _, _, code in faults]
            else:
                assert_array_equal(found, (A * f32(number)) @ A.T)
        assert not machine.stack()


def test_a_device_lost_in_a_capture_ends_the_run() -> None:
    """As a loss anywhere does."""
    with installed() as machine, array_libraries(machine, "torch"):
        x = from_host(A).sync().share()
        step = pipeline(graph_from=2)(lambda t: halves(t))
        step(x).sync()
        machine.gpus[0].fail("cuStreamBeginCapture", 700)
        with pytest.raises(DeviceLostError):
            step(x).sync()


def test_threads_share_the_graphs_of_bodies() -> None:
    """Four threads call one pipeline of bodies with operands and numbers of their own. Each gets its results, while
    graphs are captured, captured again, and lent."""
    wrong: list[object] = []

    def call(step: Any, number: int) -> None:
        for k in range(6):
            x = A * number + k
            got = step(from_host(x).sync().share(), float(number)).to_host().sync()
            if not np.array_equal(got, x * number + 2):
                wrong.append((number, k, got))

    with installed(seed=1) as machine, array_libraries(machine, "torch"):
        step = pipeline(graph_from=2)(lambda x, by: affine(affine(x, by, 1.0), 1.0, 1.0))
        with ThreadPoolExecutor(4) as threads:
            for each in [threads.submit(call, step, number) for number in range(4)]:
                each.result()
        assert wrong == []
        assert machine.problems == []
