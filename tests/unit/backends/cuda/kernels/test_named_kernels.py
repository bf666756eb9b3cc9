"""The kernels of the named DAGs: their CUDA C++, run on the CPU, gives the bits of their host bodies."""

from typing import Any

import numpy as np
import pytest

from dagpu import SingleStream
from dagpu.backends.host.arrays import Account, HostMemory, writable_array
from dagpu.backends.host.cuda_text.launching import run_text
from dagpu.backends.host.numpy_execution import execute
from dagpu.testing import HOST, Execute, Launch, Plan, Role, Tiles
from tests.programs.named_dags import LARGER, NAMED
from tests.programs.trials import planned


def outputs(launch: Launch, memory: list[object]) -> list["np.ndarray[Any, Any]"]:
    """Return the outputs of a launch."""
    return [writable_array(memory[a.view.buffer], a.view.layout) for a in launch.args if isinstance(a, Tiles)]


def bound(plan: Plan, inputs: dict[int, object]) -> list[object]:
    """Memory for every buffer of a plan."""
    memory: list[object] = [
        None if buffer.device == HOST or buffer.role is Role.INPUT else HostMemory(Account(), buffer.nbytes)
        for buffer in plan.buffers
    ]
    for number, held in inputs.items():
        memory[number] = held
    return memory


@pytest.mark.parametrize("larger", [False, True])
@pytest.mark.parametrize("name", NAMED)
def test_cuda_and_host_body_agree(name: str, larger: bool) -> None:
    """Every launch of a named DAG, done by either on the same memory, leaves the same bits."""
    plan, inputs = planned(NAMED[name](**LARGER[name] if larger else {}), SingleStream())
    memory = bound(plan, inputs)
    for step in plan.steps:
        if not isinstance(step, Execute):
            continue
        launch = step.instruction
        if not isinstance(launch, Launch):
            execute(launch, memory)
            continue
        before = [array.copy() for array in outputs(launch, memory)]
        assert run_text(launch, memory)
        by_text = [array.copy() for array in outputs(launch, memory)]
        for array, old in zip(outputs(launch, memory), before, strict=True):
            array[...] = old
        execute(launch, memory)
        for array, found in zip(outputs(launch, memory), by_text, strict=True):
            np.testing.assert_array_equal(array, found, strict=True)
