"""One CUDA graph over several simulated GPUs: where its nodes work, and what happens when one of the GPUs fails."""

import gc
from typing import Any

import numpy as np
import pytest

from dagpu import (
    DeviceLostError,
    OutOfMemoryError,
    StreamInterpreter,
    array,
    dup,
    f32,
    from_host,
    ones,
    pipeline,
    use_interpreter,
    zeros,
    zip_ops,
)
from dagpu.backends.cuda import instruction_selection
from dagpu.backends.cuda.graphs import instances
from tests.programs.arithmetic import scale
from tests.programs.graph_trials import bound, prepared, program_of, run
from tests.programs.meshes import Scatter, mesh
from tests.programs.trials import random_dag
from tests.simulated.cuda import driver, installed
from tests.simulated.libraries import libraries
from tests.simulated.machine import Machine
from tests.simulated.runs import fresh_machine  # noqa: F401  # a fixture


def there_and_back(rounds: int, shape: tuple[int, int] = (2, 2), devices: int = 2) -> Any:
    """Doubled on each device in turn."""
    op: Any = from_host(np.ones(shape, f32)).on("cuda:0")
    for number in range(rounds):
        place = f"cuda:{(number + 1) % devices}"
        op = op.then(lambda t, place=place: dup(t).on(place)).then(
            lambda t, place=place: scale(zeros(shape).on(place).partition(shape), 2.0, t)
        )
        op = op.first().unpartition()
    return op.to_host()


def bounces(rounds: int) -> Any:
    """A pipeline of `there_and_back`."""
    return pipeline(lambda: there_and_back(rounds))


@pytest.mark.parametrize("polled", [False, True])
def test_every_node_is_on_its_device(machine: Machine, polled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels and fills work where their memory is, and a copy between devices is pushed. The whole is one launch, in a
    stream of the first device. No event orders the devices. The second waits for the end, to notice a loss, but not for
    a run that ends while it is polled."""
    monkeypatch.setenv("DAGPU_SPIN_US", "1000000" if polled else "0")
    bounced = bounces(4)
    assert (bounced().sync() == 16).all()
    one, other = machine.gpus
    before = [gpu.calls["cuStreamWaitEvent"] for gpu in machine.gpus]
    for _ in range(3):
        assert (bounced().sync() == 16).all()
    waits = [gpu.calls["cuStreamWaitEvent"] for gpu in machine.gpus]
    assert waits == [before[0], before[1] + 3 * (not polled)]
    assert (one.calls["cuGraphInstantiate"], one.calls["cuGraphLaunch"]) == (1, 3)
    assert other.calls["cuGraphLaunch"] == 0


def test_memory_of_every_device_moves_from_run_to_run(machine: Machine) -> None:
    """Results that are kept take the addresses that the graph had before, on each device."""

    @pipeline
    def made(x: Any) -> Any:
        far = scale(zeros((2, 2)).on("cuda:1").partition((2, 2)), 3.0, dup(x).on("cuda:1")).first().unpartition()
        return far.map(lambda t: t.share()).then(lambda t: zip_ops(dup(t).on("cuda:0"), dup(t).on("cuda:1")))

    kept = []
    for number in range(6):
        x = from_host(np.full((2, 2), number, f32)).sync()
        kept.append(made(x.share()).sync())
    for number, pair in enumerate(kept):
        assert [t.device.name for t in pair] == ["cuda:0", "cuda:1"]
        assert all((t.to_host().sync() == 3 * number).all() for t in pair)
    assert sum(gpu.calls["cuGraphExecMemcpyNodeSetParams"] for gpu in machine.gpus) > 0


def test_a_graph_is_instantiated_ahead_on_every_device(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its copies get placeholders in the memory of the devices that they will copy from and to."""
    monkeypatch.setattr(instances, "PROMPT_NODES", 2)
    bounced = bounces(3)
    for _ in range(4):
        assert (bounced().sync() == 8).all()
    assert machine.gpus[0].calls["cuGraphInstantiate"] == 1


def test_large_copies_between_devices_stay_copies(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a device a kernel makes them; one device may be unable to read the other's memory."""
    monkeypatch.setattr(instruction_selection, "LARGE_COPY", 8)
    machine.peers = False
    bounced = bounces(2)
    for _ in range(3):
        assert (bounced().sync() == 4).all()
    assert machine.gpus[0].calls["cuGraphLaunch"] == 2


def test_the_work_of_a_library_is_captured_on_its_device(machine: Machine) -> None:
    """A product on the second device is a node of the graph, also when its operands move."""
    a = np.random.default_rng(0).standard_normal((6, 6)).astype(f32)

    @pipeline
    def product(x: Any) -> Any:
        far = dup(x).on("cuda:1").map(lambda t: t.share())
        return far.then(lambda t: array.matmul(t, t)).on("cuda:1")

    kept = []
    with libraries(machine):
        for number in range(4):
            x = from_host(a + number).sync().share()
            kept.append((a + number, x, product(x).sync()))
    assert machine.gpus[0].calls["cuGraphAddChildGraphNode"] == 1
    assert machine.gpus[0].calls["cuStreamBeginCapture"] == 0
    for wanted, _, found in kept:
        np.testing.assert_allclose(found.to_host().sync(), wanted @ wanted, rtol=1e-4, atol=1e-4)
    del kept, x, found


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_device_that_is_lost_fails_the_graph(lost: int) -> None:
    """A run under way ends with the loss, whichever of its devices is lost. After a graph, the others work on."""
    for graph in (True, False):
        with installed(lost, 3) as machine:
            program, inputs = program_of(there_and_back(6, devices=3))
            plan = prepared(program)
            run(plan, inputs)
            with machine.hold():
                started = plan.submit(bound(plan, inputs), graph=graph)
                machine.gpus[lost].lose()
            assert started.wait()
            assert {type(failure.error) for failure in started.failures()} == {DeviceLostError}
            del started
            with pytest.raises(DeviceLostError, match=rf"cuda:{lost}"):
                plan.submit(bound(plan, inputs), graph=graph)
            del plan
            gc.collect()  # the graph is destroyed by the next run
            for other in {0, 1, 2} - {lost} if graph else ():
                assert (ones((2, 2)).on(f"cuda:{other}").to_host().sync() == 1).all()
            assert [driver(n).lost is not None for n in range(3)] == [n == lost for n in range(3)]


def test_out_of_memory_on_one_device_loses_nothing() -> None:
    """The run fails and says where; a smaller one goes on, as a graph too."""
    with installed(0, 2, memory=4 << 20) as machine:
        bounced = pipeline(lambda: there_and_back(2, (256, 256)))
        for _ in range(3):
            bounced().sync()
        held = zeros((1 << 9, 15 << 7)).on("cuda:1").sync()
        with pytest.raises(OutOfMemoryError, match="cuda:1"):
            bounced().sync()
        del held
        assert (bounced().sync() == 4).all()
        assert machine.gpus[0].calls["cuGraphInstantiate"] == 1


def test_nothing_is_kept_of_runs_over_devices(machine: Machine) -> None:
    """Memory and streams of all devices go back to their pools."""
    with use_interpreter(StreamInterpreter(policy=Scatter(mesh(2, "cuda"), 5), graph_from=2)):
        for _ in range(4):
            random_dag(5).sync()
    gc.collect()
    assert [driver(n).memory.used for n in range(2)] == [0, 0]
    assert not any(driver(n).live for n in range(2))
