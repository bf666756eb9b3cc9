"""Foreign ops in CUDA graphs: captured once for each graph, again where something moves, and reasons where not."""

import gc
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
    OutOfMemoryError,
    Tensor,
    array,
    current_device,
    f32,
    foreign,
    from_host,
    pipeline,
)
from dagpu.interop import current_lane, new
from tests.behaviour.interop.foreign_programs import affine, halves, product
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


def test_it_is_captured_again_for_other_addresses_and_numbers() -> None:
    """One more capture for each change, and none where nothing has changed; the graph is instantiated once."""
    adds, calls = counted()
    with installed() as machine, array_libraries(machine, "torch"):
        step = pipeline(graph_from=2)(lambda t, number: adds(t, number))
        one, two = from_host(A).sync().share(), from_host(A * 2).sync().share()
        for t, contents, number in ((one, A, 1.0), (one, A, 1.0), (two, A * 2, 1.0), (two, A * 2, 3.0)):
            for repeat in range(2):
                assert_array_equal(step(t, number).to_host().sync(), contents + f32(number), f"{repeat}")
        assert calls == [False, True, True, True]
        assert machine.gpus[0].calls["cuGraphInstantiate"] == 1


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
