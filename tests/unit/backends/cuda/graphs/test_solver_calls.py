"""Factorisations by cuSOLVER on simulated GPUs: handles, scratch memory, captures, threads, and every failure."""

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import trio

from dagpu import DeviceError, array, f32, f64, from_host, pipeline
from dagpu.common.errors import NoDeviceError
from dagpu.testing import Launch, Role
from tests.programs.graph_trials import prepared, program_of
from tests.simulated.libraries import SimulatedCublasLt, libraries
from tests.simulated.machine import Machine
from tests.simulated.runs import fresh_machine  # noqa: F401  # a fixture
from tests.simulated.solvers import DEVICE_BYTES

M = np.random.default_rng(2).standard_normal((6, 6))
A = (M @ M.T + 6 * np.eye(6)).astype(f32)


@pytest.fixture(name="solvers")
def simulated_libraries(machine: Machine) -> Iterator[SimulatedCublasLt]:
    """Put stand-ins in the place of NVIDIA's libraries."""
    with libraries(machine) as simulated:
        yield simulated


def test_scratch_memory_is_a_temporary_of_the_plan(solvers: SimulatedCublasLt) -> None:
    """It has room for the workspace, and for what lies beside it."""
    x = from_host(A).sync().share()
    for op, most in ((array.cholesky(x), DEVICE_BYTES), (array.solve(x, x), DEVICE_BYTES + 2 * 256)):
        program, _ = program_of(op)
        plan = prepared(program).compiled.plan
        (scratch,) = [
            each.scratch
            for each in program.instructions
            if isinstance(each, Launch) and each.kernel.library is not None
        ]
        assert scratch is not None
        assert program.buffers[scratch.buffer].role is Role.TEMPORARY
        assert program.buffers[scratch.buffer].nbytes == most
        assert plan.offsets[scratch.buffer] >= 0


def test_a_device_has_a_handle_for_calls_that_wait_and_one_for_the_others(solvers: SimulatedCublasLt) -> None:
    """Whatever shapes they have; each shape asks for the size of its workspace once."""
    for _ in range(2):
        for n in (3, 5):
            x = from_host(A[:n, :n].copy()).sync().share()
            array.cholesky(x).sync()
            array.qr(x).sync()
            array.svd(x).sync()
    assert solvers.calls.count("cusolverDnCreate") == 2
    for name in ("xpotrf_buffer_size", "xgeqrf_buffer_size", "xgesvd_buffer_size"):
        assert solvers.calls.count(name) == 2


def test_a_pipeline_is_a_graph_of_captured_calls(solvers: SimulatedCublasLt, machine: Machine) -> None:
    """Which are captured again where addresses move, and not called in each run."""
    lower = pipeline(lambda x: array.cholesky(x).to_host())
    x = from_host(A).sync().share()
    for _ in range(8):
        np.testing.assert_allclose(lower(x).sync(), np.linalg.cholesky(A), rtol=1e-5)
    assert solvers.calls.count("xpotrf") < 8
    assert machine.gpus[0].calls["cuStreamBeginCapture"]


def test_a_call_that_cannot_be_captured_goes_through_streams(solvers: SimulatedCublasLt, machine: Machine) -> None:
    """From the capture that fails on: each run calls the library."""
    lower = pipeline(lambda x: array.cholesky(x).to_host())
    x = from_host(A).sync().share()
    for number in range(6):
        if not machine.gpus[0].calls["cuStreamBeginCapture"]:
            solvers.failing["xpotrf"] = 1 if number else 2
        np.testing.assert_allclose(lower(x).sync(), np.linalg.cholesky(A), rtol=1e-5)
    assert machine.gpus[0].calls["cuStreamBeginCapture"] == 1
    assert "xpotrf" not in solvers.failing
    assert solvers.calls.count("xpotrf") == 7


def test_a_thread_that_may_wait_calls_what_waits(solvers: SimulatedCublasLt) -> None:
    """In the first run of a shape and in the next ones; other calls need no thread once they are known."""
    x = from_host(A.astype(f64)).sync().share()

    async def main() -> None:
        for _ in range(2):
            await array.svd(x)
            assert solvers.threads["xgesvd"] != threading.get_ident()
        for _ in range(2):
            await array.cholesky(x)
        assert solvers.threads["xpotrf"] == threading.get_ident()
        assert solvers.threads["xpotrf_buffer_size"] != threading.get_ident()

    trio.run(main)


def test_an_explanation_says_why_there_is_no_graph(solvers: SimulatedCublasLt) -> None:
    """Of a plan with a call that waits, and of no other."""
    x = from_host(A).sync().share()
    line = "No CUDA graph, every run goes through streams: the library that computes svd at "
    assert line in array.svd(x).explain()
    assert "No CUDA graph" not in array.qr(x).explain()


@pytest.mark.parametrize("name", ["xpotrf_buffer_size", "xpotrf", "cusolverDnCreateParams"])
def test_a_refused_call_fails_its_run_alone(solvers: SimulatedCublasLt, name: str) -> None:
    """With the library's words; the next run works."""
    x = from_host(A).sync().share()
    solvers.failing[name] = 1
    with pytest.raises(DeviceError, match=r"failed: .*EXECUTION_FAILED.*It is a defect in dagpu, or in the library"):
        array.cholesky(x).to_host().sync()
    np.testing.assert_allclose(array.cholesky(x).to_host().sync(), np.linalg.cholesky(A), rtol=1e-5)


def test_a_library_that_cannot_be_loaded(solvers: SimulatedCublasLt) -> None:
    """The error names it, and what installs it."""
    solvers.failing["cusolverDnCreate"] = 1
    x: Any = from_host(A).sync().share()
    with pytest.raises(NoDeviceError, match=r"it needs cuSOLVER, which cannot be loaded .*nvidia-cusolver"):
        array.cholesky(x).sync()
    array.cholesky(x).sync()
