"""Cutoffs on the GPU: the kernel that compares, and updates of random ops with cutoffs."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import cutoff, f32, from_host, source, use_device, zip_ops
from dagpu.handles import live_state
from tests.behaviour.live.live_kernels import flipped, gathered
from tests.behaviour.live.live_trials import Changes, Recipe, Trial, change, changes, recipes, trial_of
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
