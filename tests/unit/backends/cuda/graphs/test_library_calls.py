"""Kernels whose work a library does, on simulated GPUs: scratch memory, addresses, capture, and every failure."""

import gc
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import trio

from dagpu import DeviceError, DeviceLostError, array, f32, from_host, pipeline, zip_ops
from dagpu.arrays.nvidia import cufft
from dagpu.arrays.products import matrix_products
from dagpu.backends.cuda.resources.pools import MemoryBlock
from dagpu.common.errors import NoDeviceError
from dagpu.plans.policies import RoundRobin
from dagpu.runtime import plan_lookup
from dagpu.testing import Launch, Role
from tests.programs.graph_trials import block, prepared, program_of, run
from tests.simulated.libraries import WORKSPACE, SimulatedCublasLt, libraries
from tests.simulated.machine import Machine
from tests.simulated.runs import fresh_machine  # noqa: F401  # a fixture

A, B = np.random.default_rng(5).standard_normal((2, 6, 6)).astype(f32)


@pytest.fixture(name="lt")
def simulated_library(machine: Machine) -> Iterator[SimulatedCublasLt]:
    """Put stand-ins in the place of NVIDIA's libraries."""
    with libraries(machine) as simulated:
        yield simulated


def product(a: Any = A, b: Any = B) -> Any:
    return array.matmul(from_host(a), from_host(b)).to_host()


def launches(program: Any) -> list[Launch]:
    return [each for each in program.instructions if isinstance(each, Launch)]


# ---- scratch memory
def test_scratch_memory_is_a_temporary_of_the_plan(lt: SimulatedCublasLt) -> None:
    """It lies in the arena, for as long as its launch, so two products one after the other share its bytes."""
    x = from_host(A).sync().share()
    program, _ = program_of(array.matmul(array.matmul(x, x), x))
    plan = prepared(program).compiled.plan
    first, second = [each.scratch for each in launches(program)]
    assert first is not None
    assert second is not None
    assert program.buffers[first.buffer].role is Role.TEMPORARY
    assert program.buffers[first.buffer].nbytes == WORKSPACE
    assert plan.offsets[first.buffer] == plan.offsets[second.buffer] >= 0
    assert plan.arena_bytes[0] < 2 * WORKSPACE


def test_products_side_by_side_have_scratch_of_their_own(lt: SimulatedCublasLt) -> None:
    """They may run at once, in two lanes."""
    x = from_host(A).sync().share()
    op = zip_ops(array.matmul(x, x), array.matmul(x, x, transpose="a"))
    program, _ = program_of(op, RoundRobin(2))
    plan = prepared(program).compiled.plan
    scratch = {plan.offsets[buffer] for buffer, about in enumerate(plan.buffers) if about.nbytes == WORKSPACE}
    assert len(scratch) == 2
    first, second = zip_ops(array.matmul(x, x), array.matmul(x, x, transpose="a")).sync()
    np.testing.assert_allclose(first.to_host().sync(), A @ A, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(second.to_host().sync(), A.T @ A, rtol=1e-5, atol=1e-5)


def test_an_algorithm_is_chosen_once_for_each_shape(lt: SimulatedCublasLt) -> None:
    """Whatever ops and plans multiply; another layout or precision has its own."""
    x = from_host(A).sync().share()
    for _ in range(2):
        array.matmul(x, x).sync()
        array.matmul(array.matmul(x, x), x).sync()
    assert lt.calls.count("matmul_algo_get_heuristic") == 1
    array.matmul(x, x, transpose="b").sync()
    array.matmul(x, x, precision="tf32").sync()
    assert lt.calls.count("matmul_algo_get_heuristic") == 3
    assert lt.calls.count("create") == 1


def test_plans_of_shapes_that_are_no_longer_used_are_freed(
    lt: SimulatedCublasLt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipeline keeps the plans of its own calls, whichever shapes came after them."""
    monkeypatch.setattr(matrix_products, "PRODUCTS", matrix_products.Products(2))
    monkeypatch.setattr(cufft, "PLANS", cufft.TransformPlans(2))

    @pipeline
    def smooth(x: Any) -> Any:
        return array.irfft(array.rfft(array.matmul(x, x))).to_host()

    x = from_host(A).sync().share()
    expected = smooth(x).sync()
    for n in range(2, 9):
        wide = np.ones((n, n), f32)
        np.testing.assert_allclose(array.matmul(from_host(wide), from_host(wide)).to_host().sync(), wide @ wide)
        array.rfft(from_host(np.ones((1, n), f32))).to_host().sync()
        np.testing.assert_array_equal(smooth(x).sync(), expected)
    plan_lookup.plans.clear()
    gc.collect()
    array.matmul(from_host(A[:1]), from_host(B)).sync()
    array.rfft(from_host(A[:2])).sync()
    assert lt.transforms is not None
    assert lt.transforms.plans <= 2 + 2  # those that are kept, and those of the pipeline
    assert lt.things <= 1 + 4 * (2 + 1)


def test_a_new_shape_does_not_block_the_loop(lt: SimulatedCublasLt) -> None:
    """Another thread loads the library and prepares the work, while a task waits; later runs need no thread."""
    x = from_host(A).sync().share()

    async def main() -> None:
        for op in (array.matmul(x, x), array.rfft(x), array.matmul(array.matmul(x, x, transpose="a"), x)):
            await op

    trio.run(main)
    assert lt.calls.count("matmul_algo_get_heuristic") == 2
    for name in ("create", "matmul_algo_get_heuristic", "cufftCreate", "make_plan_many64"):
        assert lt.threads[name] != threading.get_ident()
    assert threading.get_ident() == lt.threads["matmul"]


# ---- graphs
def moving(lt: SimulatedCublasLt, machine: Machine) -> tuple[Any, Any, Any]:
    """Return a prepared plan of one product, its inputs, and inputs elsewhere with other contents."""
    x = from_host(A).sync().share()
    program, inputs = program_of(array.matmul(x, x).to_host())
    (buffer,) = [number for number, held in inputs.items() if isinstance(held, MemoryBlock)]
    return prepared(program), inputs, {buffer: block(B, machine)}


def test_a_child_graph_is_aimed_at_other_addresses(lt: SimulatedCublasLt, machine: Machine) -> None:
    """By another capture of the call, in which nothing runs; the graph is instantiated once."""
    plan, inputs, elsewhere = moving(lt, machine)
    for held, expected in ((inputs, A), (elsewhere, B), (inputs, A), (inputs, A)):
        np.testing.assert_allclose(run(plan, held)[0], expected @ expected, rtol=1e-5, atol=1e-5)
    calls = machine.gpus[0].calls
    assert calls["cuGraphInstantiate"] == 1
    assert calls["cuGraphExecChildGraphNodeSetParams"] == 2
    assert calls["cuStreamBeginCapture"] == calls["cuStreamEndCapture"] == 3


def test_work_with_other_nodes_is_instantiated_again(lt: SimulatedCublasLt, machine: Machine) -> None:
    """The driver refuses to put it in the place of the old work."""
    plan, inputs, elsewhere = moving(lt, machine)
    run(plan, inputs)
    machine.gpus[0].fail("cuGraphExecChildGraphNodeSetParams", 910)
    for held, expected in ((elsewhere, B), (inputs, A)):
        np.testing.assert_allclose(run(plan, held)[0], expected @ expected, rtol=1e-5, atol=1e-5)
    assert machine.gpus[0].calls["cuGraphInstantiate"] == 2
    assert machine.gpus[0].graphs == 1


def test_a_long_graph_is_prepared_before_its_first_launch(lt: SimulatedCublasLt) -> None:
    """Its products are captured at placeholder addresses, and aimed later."""

    @pipeline
    def power(x: Any) -> Any:
        y = x
        for _ in range(110):
            y = array.matmul(y, x)
        return y

    x = from_host(np.linalg.qr(A)[0].astype(f32)).sync().share()
    expected = np.linalg.matrix_power(np.linalg.qr(A)[0].astype(np.float64), 111)
    for _ in range(4):
        np.testing.assert_allclose(power(x).to_host().sync(), expected, atol=1e-3)


# ---- failures
def test_a_missing_library_is_named_with_its_cure(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a product is traced for a GPU, and nowhere before: the host needs none."""
    monkeypatch.setitem(sys.modules, "nvmath.bindings.cublasLt", None)
    op = product()
    with pytest.raises(
        NoDeviceError, match=r"matmul at \S+test_library_calls.py:\d+ on cuda:0: it needs cuBLASLt"
    ) as e:
        op.sync()
    assert "pip install 'nvmath-python" in str(e.value)
    np.testing.assert_allclose(op.on("host").sync(), A @ B, rtol=1e-5)


@pytest.mark.parametrize("name", ["cufftCreate", "make_plan_many64", "cufftExec"])
def test_a_transform_that_fails(lt: SimulatedCublasLt, name: str) -> None:
    """The error names it; the next try works."""
    lt.failing[name] = 1
    with pytest.raises(DeviceError, match=r"rfft.* at \S+test_library_calls.py:\d+.*EXECUTION_FAILED"):
        array.rfft(from_host(A)).to_host().sync()
    np.testing.assert_allclose(array.rfft(from_host(A)).to_host().sync(), np.fft.rfft(A), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["create", "matmul_algo_get_heuristic"])
def test_a_library_that_cannot_begin_fails_the_op(lt: SimulatedCublasLt, name: str) -> None:
    """The error names the product; the next try works."""
    lt.failing[name] = 1
    with pytest.raises(DeviceError, match=r"matmul at \S+test_library_calls.py:\d+ on cuda:0: .*EXECUTION_FAILED"):
        product().sync()
    np.testing.assert_allclose(product().sync(), A @ B, rtol=1e-5, atol=1e-5)


def test_a_product_without_an_algorithm(lt: SimulatedCublasLt) -> None:
    """It says which product, and what to do."""
    lt.algorithms = False
    with pytest.raises(DeviceError, match=r"no algorithm for 1 products of \(6, 6\) by \(6, 6\) in float32. Convert"):
        product().sync()


def test_a_refused_call_fails_its_results_alone(lt: SimulatedCublasLt) -> None:
    """In a stream: another branch has its value, and the next run works."""
    x = from_host(A).sync().share()
    lt.failing["matmul"] = 1
    op = zip_ops(array.matmul(x, x).to_host(), array.sum(x).to_host())
    with pytest.raises(DeviceError, match=r"kernel 'matmul' at \S+:\d+.*cublasLtMatmul failed: .*EXECUTION_FAILED"):
        op.sync()
    assert op.sync()[1] == array.sum(x).to_host().sync()


@pytest.mark.parametrize("fault", ["cuStreamBeginCapture", "cuStreamEndCapture", "cuGraphAddChildGraphNode", "matmul"])
def test_what_cannot_be_captured_goes_through_streams(lt: SimulatedCublasLt, machine: Machine, fault: str) -> None:
    """The plan says why it is not a graph, and its results are right."""
    plan, inputs, _ = moving(lt, machine)
    if fault == "matmul":
        lt.failing[fault] = 1
    else:
        machine.gpus[0].fail(fault, 901)
    for _ in range(3):
        np.testing.assert_allclose(run(plan, inputs)[0], A @ A, rtol=1e-5, atol=1e-5)
    assert plan.graphs.refused is not None
    assert "failed" in plan.graphs.refused


@pytest.mark.parametrize("fault", ["cuStreamBeginCapture", "cuStreamEndCapture", "matmul"])
def test_a_graph_that_cannot_be_aimed_fails_one_run(lt: SimulatedCublasLt, machine: Machine, fault: str) -> None:
    """The error names the product, and the next run has another graph."""
    plan, inputs, elsewhere = moving(lt, machine)
    run(plan, inputs)
    if fault == "matmul":
        lt.failing[fault] = 1
    else:
        machine.gpus[0].fail(fault, 901)
    with pytest.raises(DeviceError, match=r"CUDA graph of 2 instructions, among them kernel 'matmul' at .* failed"):
        run(plan, elsewhere)
    np.testing.assert_allclose(run(plan, elsewhere)[0], B @ B, rtol=1e-5, atol=1e-5)
    assert machine.gpus[0].graphs == 1


def test_a_device_lost_in_a_capture_ends_the_run(lt: SimulatedCublasLt, machine: Machine) -> None:
    """As a loss anywhere does."""
    plan, inputs, elsewhere = moving(lt, machine)
    run(plan, inputs)
    machine.gpus[0].fail("cuStreamBeginCapture", 700)
    with pytest.raises(DeviceLostError):
        run(plan, elsewhere)
