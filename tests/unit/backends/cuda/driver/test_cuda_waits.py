"""No thread waits for the device with the GIL held: the list of the driver's calls, held against the source, against a
driver that sees who holds the GIL, and against simulated GPUs."""

import ast
import contextlib
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from dagpu import full, ones
from dagpu.backends.cuda.driver import pycuda_driver, pycuda_graphs, pycuda_streams
from dagpu.backends.cuda.driver.driver_protocol import DriverCall
from dagpu.testing import LAUNCH
from tests.programs.arithmetic import axpy
from tests.simulated.cuda import driver, installed
from tests.simulated.machine import PATIENCE, Machine
from tests.stand_in.build import StandIn, on_the_stand_in  # noqa: F401  # a fixture
from tests.support import driver_calls as listed
from tests.support.driver_calls import driver_calls

MODULES = (pycuda_driver, pycuda_graphs, pycuda_streams)
NO_CALLS = frozenset({"cuda.device_attribute.names"})
"""What is used of PyCUDA and calls no driver."""


# ---- the source -----------------------------------------------------------------------------------------------------
def dotted(node: ast.expr) -> str:
    """`a.b.c`, from the last name on that is no attribute; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ""


def made_in(source: str) -> set[tuple[str, str]]:
    """Calls of the driver that a module's text makes, as the list names them: name and through what. The name of what
    PyCUDA calls is not in the text, so it is empty."""
    tree = ast.parse(source)
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    found: set[tuple[str, str]] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and id(node) not in inner:
            name = dotted(node)
            if node.attr.startswith("cu") and node.attr[2:3].isupper():
                found.add((node.attr, "bindings"))
            elif name.startswith("cuda."):
                found.add(("", name))
            elif name.startswith("device."):
                found.add(("", f"Device.{node.attr}"))
        elif isinstance(node, ast.Call) and dotted(node.func) == "_function":
            called = node.args[1]
            found.add((str(called.value) if isinstance(called, ast.Constant) else LAUNCH, "ctypes"))
    return {call for call in found if call[1] not in NO_CALLS}


def test_every_call_in_the_source_is_listed_and_no_other() -> None:
    """A call of the driver that is added to the driver layer, or goes, has to be added to the list, or go."""
    made = set[tuple[str, str]]()
    for module in MODULES:
        assert module.__file__ is not None
        made |= made_in(Path(module.__file__).read_text(encoding="utf-8"))
    assert {(row.name if row.through in ("bindings", "ctypes") else "", row.through) for row in driver_calls()} == made


def test_a_call_is_seen_in_the_source() -> None:
    """The reader of the source finds each way in which a call can be made."""
    text = """
code = self._bindings.cuMemFree(address)
push = bindings.cuCtxPushCurrent
call = _function(driver, "cuLaunchHostFunc")
launch = _function(driver, LAUNCH)
found = cuda.Device(0)
name = device.name()
attributes = cuda.device_attribute.names
"""
    assert made_in(text) == {
        ("cuMemFree", "bindings"),
        ("cuCtxPushCurrent", "bindings"),
        ("cuLaunchHostFunc", "ctypes"),
        ("cuLaunchKernelEx", "ctypes"),
        ("", "cuda.Device"),
        ("", "Device.name"),
    }


@pytest.mark.parametrize("row", driver_calls(), ids=lambda row: f"{row.name} {row.through}")
def test_what_may_wait_lets_go_of_the_gil(row: DriverCall) -> None:
    """A call that may wait, for the device or behind a load, is made through a function that lets go of the GIL."""
    assert row.releases or not row.may_wait


# ---- the libraries --------------------------------------------------------------------------------------------------
def test_the_libraries_do_with_the_gil_what_the_list_says(stand_in: StandIn) -> None:
    """While a call is in the driver, another Python thread runs where the list says so, and nowhere else."""
    done = stand_in("tests.stand_in.waits", "calls")
    assert done.returncode == 0, done.stderr
    wanted = {f"{row.name} {row.through}": "released" if row.releases else "held" for row in driver_calls()}
    assert json.loads(done.stdout) == wanted


@pytest.mark.parametrize(("who", "function"), [("ours", "ours"), ("pycuda", "ours"), ("ours", "python")])
def test_a_module_is_loaded_while_a_host_function_waits(stand_in: StandIn, who: str, function: str) -> None:
    """Ours takes no GIL, so it runs whoever waits; and while we load, anybody's runs."""
    done = stand_in("tests.stand_in.waits", who, function)
    assert done.returncode == 0, done.stderr


def test_a_deadlock_is_seen(stand_in: StandIn) -> None:
    """A thread that waits with the GIL held for a host function that takes it: the stand-in says so."""
    done = stand_in("tests.stand_in.waits", "pycuda", "python")
    assert done.returncode == 86
    assert "deadlock: cuModuleLoadDataEx waits" in done.stderr


def test_nobody_waits_for_ever_behind_a_load(stand_in: StandIn) -> None:
    """Each call is made while another thread's load waits for a host function that takes the GIL: those wait for the
    load that the list says, and all come to their end."""
    done = stand_in("tests.stand_in.waits", "behind", "ours")
    assert done.returncode == 0, done.stderr
    waited = set(json.loads(done.stdout))
    assert {row.name for row in driver_calls() if row.behind_a_load == "waits"} <= waited
    assert waited <= {row.name for row in driver_calls() if row.behind_a_load != "-"}


def test_a_deadlock_behind_a_load_is_seen(stand_in: StandIn) -> None:
    """PyCUDA records an event with the GIL held, which the function that the load waits for takes."""
    done = stand_in("tests.stand_in.waits", "behind", "pycuda")
    assert done.returncode == 86
    assert "deadlock: cuEventRecord waits behind a load" in done.stderr


# ---- simulated GPUs -------------------------------------------------------------------------------------------------
def python_function(number: int) -> threading.Event:
    """Put a host function that takes the GIL into a stream of `cuda:<number>`, like another library.

    Return the event that it sets.
    """
    ran, gpu = threading.Event(), driver(number).gpu
    with gpu.current():
        stream: Any = gpu.new_stream()
    stream.put(ran.set, python=True)
    return ran


def first_run() -> Any:
    """Run a kernel that has not been compiled."""
    return axpy(full((4, 4), 2).partition((2, 2)), 1.0, ones((4, 4))).first().unpartition().to_host().sync()


def test_kernels_are_loaded_while_a_host_function_in_python_waits() -> None:
    """The load waits for the function, and the function has the GIL."""
    with installed(seed=3):
        ran = python_function(0)
        assert (first_run() == 3).all()
        assert ran.is_set()


def test_who_waits_with_the_gil_held_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """If loading held the GIL it would wait for ever: that is found at once, and not waited out."""
    held = [row._replace(releases=row.name != "cuModuleLoadData") for row in driver_calls()]
    monkeypatch.setattr(listed, "driver_calls", lambda: held)
    problem = "cuModuleLoadData would wait for ever, with the GIL held that a host function needs"
    with installed(seed=3) as machine:
        python_function(0)
        with pytest.raises(AssertionError, match=problem):
            first_run()
        assert machine.problems == [problem]
        machine.problems.clear()


def record_beside_a_load(machine: Machine) -> None:
    """Record an event on one thread while another loads a module, behind which a host function in Python waits. Both
    have come to their ends, or a problem of the machine's ended them."""
    gpu = machine.gpus[0]
    with gpu.current():
        stream, event = gpu.new_stream(), gpu.new_event()

    def load() -> None:
        with contextlib.suppress(AssertionError):
            axpy.compile()

    def record() -> None:
        with contextlib.suppress(AssertionError), gpu.current():
            event.record(stream)

    threads = [threading.Thread(target=load), threading.Thread(target=record)]
    with machine.hold():
        python_function(0)
        threads[0].start()
        with machine.changed:
            assert machine.changed.wait_for(lambda: machine.loads(gpu), PATIENCE)
        threads[1].start()
        with machine.changed:
            assert machine.changed.wait_for(lambda: gpu.calls["cuEventRecord"], PATIENCE)
    for thread in threads:
        thread.join(2 * PATIENCE)
        assert not thread.is_alive()


def test_an_event_is_recorded_behind_a_load() -> None:
    """Whoever records an event while a module is loaded waits, and leaves the GIL to the host function that the load
    waits for."""
    with installed(seed=4) as machine:
        record_beside_a_load(machine)
        assert not machine.problems


def test_who_waits_behind_a_load_with_the_gil_held_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """If recording held the GIL, the load would wait for ever."""
    held = [row._replace(releases=row.name != "cuEventRecord") for row in driver_calls()]
    monkeypatch.setattr(listed, "driver_calls", lambda: held)
    problem = "cuModuleLoadData would wait for ever, with the GIL held that a host function needs"
    with installed(seed=4) as machine:
        record_beside_a_load(machine)
        assert machine.problems == [problem]
        machine.problems.clear()


def test_loading_waits_for_what_is_under_way() -> None:
    """As on a GPU, a module is loaded only once all work in progress on the device is done."""
    with installed(seed=5) as machine:
        gpu, order = machine.gpus[0], list[str]()

        def load() -> None:
            axpy.compile()
            order.append("loaded")

        with machine.hold():
            with gpu.current():
                stream: Any = gpu.new_stream()
            stream.put(lambda: order.append("worked"))
            thread = threading.Thread(target=load)
            thread.start()
            with machine.changed:
                assert machine.changed.wait_for(lambda: gpu.calls["cuModuleLoadData"], PATIENCE)
        thread.join()
        assert order == ["worked", "loaded"]
