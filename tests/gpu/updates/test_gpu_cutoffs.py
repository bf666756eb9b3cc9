"""Cutoffs on the GPU: the kernel that compares, and updates of random ops with cutoffs."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import cutoff, f32, from_host, source, use_device, zip_ops
from dagpu.backends.cuda.backend import CudaBackend
from dagpu.backends.cuda.resources.cuda_device import CudaDevice
from dagpu.testing import backend, driver_of, live_state
from tests.behaviour.live.live_kernels import flipped, gathered
from tests.behaviour.live.live_trials import Changes, Recipe, Trial, change, changes, recipes, trial_of
from tests.gpu.support.conditional_graphs import ConditionalGraph
from tests.gpu.support.gpu_support import NAME

pytestmark = pytest.mark.skipif(not NAME.startswith("cuda"), reason="the host compares elsewhere")


@settings(max_examples=40)
@given(recipe=recipes(cutoffs=True), steps=changes())
def test_an_update_with_cutoffs_equals_a_run_from_scratch(recipe: Recipe, steps: Changes) -> None:
    """After any changes, made twice, so that each plan is a graph in the end."""
    with use_device(NAME):
        trial = trial_of(recipe)
        trial.check()
        for number, which in enumerate((*steps, *steps)):
            change(trial, which, number // 2)
            trial.check()


@pytest.mark.parametrize("elements", [1, 3, 4, 1023, 4096, 100_003, 1 << 22])
@settings(max_examples=8)
@given(place=st.floats(0, 1, exclude_max=True), dtype=st.sampled_from(("u1", "u2", "f4", "f8")))
def test_one_element_of_any_tensor_counts(elements: int, place: float, dtype: str) -> None:
    """A tensor of any length and element type is let through if one element differs, and else cut off."""
    array = np.arange(elements).astype(dtype)
    with use_device(NAME):
        s: Any = source(from_host(array).sync())
        trial = Trial(cutoff(s), [s])
        held = trial.update()
        s.set(from_host(array).sync())
        assert trial.update().shape == array.shape
        assert trial.run.explain()[1].endswith("was cut off")
        array[int(place * elements)] = not array[int(place * elements)]
        s.set(from_host(array).sync())
        assert np.array_equal(trial.update().to_host().sync(), array)
        assert trial.run.explain()[1].endswith("was let through")
    del held


def test_a_cut_off_tensor_keeps_its_address() -> None:
    """Its memory is that of the tensor let through last, from the first launch to those of graphs."""
    with use_device(NAME):
        x = source(np.ones(8, f32))
        tensor = cutoff(gathered(x.then(from_host).shared()))
        trial = Trial(zip_ops(tensor, flipped(tensor).to_host()), [x])
        first, _ = trial.update()
        for _ in range(6):
            x.set(np.ones(8, f32))
            again, _ = trial.update()
            assert live_state(again).storage.memory is live_state(first).storage.memory


@pytest.fixture(name="device", scope="module")
def with_conditional_nodes() -> CudaDevice:
    """The device. Skips the test where its driver or cuda.bindings have no conditional nodes."""
    found = backend("cuda")
    assert isinstance(found, CudaBackend)
    driver = driver_of(found.device(int(NAME.partition(":")[2])))
    assert isinstance(driver, CudaDevice)
    if driver.lacks_conditions:
        pytest.skip(driver.lacks_conditions)
    return driver


@settings(max_examples=20)
@given(flags=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=8))
def test_a_body_runs_if_a_flag_is_set(device: CudaDevice, flags: list[tuple[bool, bool]]) -> None:
    """By the driver layer alone: in each launch anew, and after its nodes have got other addresses."""
    graph = ConditionalGraph(device)
    for first, second in flags:
        assert graph.run(first=first, second=second) == (first, first or second)
    graph.move()
    for first, second in flags:
        assert graph.run(first=first, second=second) == (first, first or second)
    graph.destroy()


def test_an_update_with_a_cutoff_is_one_graph(device: CudaDevice) -> None:
    """It says so, it runs what the bits decide, and what is held from earlier updates stays as it was."""
    with use_device(NAME):
        x = source(np.ones(8, f32))
        tensor: Any = cutoff(gathered(x.then(from_host).shared()))
        trial = Trial(zip_ops(tensor, flipped(gathered(tensor)).to_host()), [x])
        before, array = trial.update()
        held: list[tuple[Any, bytes]] = []
        for value in (1, 2, 2, 3, 3, 3, 1, 2, 2, 2, 4):
            x.set(np.full(8, value, f32))
            now, after = trial.update()
            differs = live_state(now).storage.memory is not live_state(before).storage.memory
            assert differs == (after is not array)
            assert trial.ran == (7 if differs else 3)
            assert "one graph compares the bits, and decides what runs" in trial.run.explain()[1]
            held.append((now, now.clone().to_host().sync().tobytes()))
            assert held[-1][1] == np.full(8, 1 + value / 4, f32).tobytes()
            assert all(each.clone().to_host().sync().tobytes() == bits for each, bits in held)
            before, array = now, after
