"""The kernels of the named DAGs: their CUDA C++, run on the CPU, gives the bits of their host bodies."""

from struct import pack
from typing import Any

import numpy as np
import pytest

from dagpu import SingleStream
from dagpu.backends.host.arrays import Account, HostMemory, writable_array
from dagpu.backends.host.numpy_execution import execute
from dagpu.testing import HOST, Execute, Launch, Plan, Role, Tiles, View
from tests.emulation import Emulation, emulation, shared_folder
from tests.programs import named_kernels
from tests.programs.named_dags import LARGER, NAMED
from tests.programs.trials import planned
from tests.unit.backends.cuda.kernels.emulated_prelude import in_namespace, packed

NAMES = (
    *("affine", "step", "gather", "twist", "gemm", "squash", "gate", "blend"),
    *("potrf", "getrf", "trsm_right", "trsm_left", "subtract"),
)
# Blocks have one thread here, so a barrier has nobody to wait for.
ON_CPU = "#include <algorithm>\nusing std::max;\nusing std::min;\ninline void __syncthreads() {}\n"


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Emulation:
    texts = [getattr(named_kernels, name.upper()) for name in NAMES]
    exported = [f"EMULATED({name}, (linear::{name}))\n" for name in NAMES]
    return emulation(
        ON_CPU + in_namespace("linear", "".join(texts)) + "".join(exported), shared_folder(tmp_path_factory)
    )


def parameters(launch: Launch, memory: list[object]) -> bytes:
    """The arguments of a launch, packed as the driver takes them."""
    data = b""
    for argument in launch.args:
        match argument:
            case Tiles(view=view, tile=tile):
                part = packed("linear", writable_array(memory[view.buffer], view.layout), tile)
            case View():
                part = packed("linear", writable_array(memory[argument.buffer], argument.layout))
            case _:
                part = pack("<?" if isinstance(argument, bool) else "<i", argument)
        align = min(8, len(part))
        data = data.ljust(-(-len(data) // align) * align, b"\0") + part
    return data


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
def test_cuda_and_host_body_agree(kernels: Emulation, name: str, larger: bool) -> None:
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
        kernels.launch(launch.kernel.name, (int(np.prod(launch.grid)),), (1,), parameters(launch, memory))
        on_device = [array.copy() for array in outputs(launch, memory)]
        for array, old in zip(outputs(launch, memory), before, strict=True):
            array[...] = old
        execute(launch, memory)
        for array, found in zip(outputs(launch, memory), on_device, strict=True):
            np.testing.assert_array_equal(array, found, strict=True)
