"""What of a run is submitted: as much as the workers have room for."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dagpu import CostModel, Spread, StreamInterpreter, from_host, plan_of, use_interpreter, zip_ops
from dagpu.cluster.backend import ClusterBackend, ClusterRun
from dagpu.cluster.run_state import RunState
from dagpu.runtime.device_lookup import add_nodes, remove_nodes
from tests.unit.cluster.adversary import Adversary

Admit = Callable[..., list[str]]


@pytest.fixture(params=["cuda", "host"])
def admit(request: pytest.FixtureRequest) -> Admit:
    """Three uploads of 4 KiB to each of two devices of one worker, in turns, of which `admit` returns the devices of
    those that are submitted at once."""
    names = [f"{request.param}:{at}" for at in range(2)]
    engine = Adversary(["w0"], lambda n: 0, lambda value: value, 0, 0)
    backend = ClusterBackend({"w0": names}, engine, CostModel(), 1e-9)
    add_nodes(backend.nodes, backend)
    try:
        ops = [from_host(np.zeros(1024, np.int32)).on(f"w0/{names[at % 2]}") for at in range(6)]
        policy = Spread(backend.mesh, costs=backend.costs)
        with use_interpreter(StreamInterpreter(backend.mesh.devices[0], policy, graph_from=None)):
            program = plan_of(zip_ops(*ops)).program
        tasks = backend.tasks_of(program)
    finally:
        remove_nodes(backend.nodes)

    def devices(window: int, used: dict[str, int], limits: dict[str, int]) -> list[str]:
        state = RunState(ClusterRun("run", tasks, [], engine), 0)
        admitted: Any = state.admit(Counter(used), window, limits)
        return [next(iter(task.peak_bytes)) for task in admitted]

    return devices


def test_a_window_bounds_the_tasks_of_a_worker(admit: Admit) -> None:
    """And no other bound is there where no limit is known."""
    assert [len(admit(window, {}, {})) for window in (1, 4, 64)] == [1, 4, 6]


def test_a_task_waits_for_memory_of_its_own_device(admit: Admit, request: pytest.FixtureRequest) -> None:
    """What is on another GPU takes no room on this one; the hosts of a worker have one memory. A worker that is at
    nothing gets a task in any case."""
    kind = request.node.callspec.params["admit"]
    memories = ["w0/cuda:0", "w0/cuda:1"] if kind == "cuda" else ["w0/host"]
    room = dict.fromkeys(memories, 2 * 4096)
    assert len(admit(64, {}, room)) == 2 * len(memories)
    assert len(admit(64, {memories[0]: 4096}, room)) == len(memories)
    assert len(admit(64, dict.fromkeys(memories, 1 << 20), room)) == 1
