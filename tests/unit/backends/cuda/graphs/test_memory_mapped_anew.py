"""Graphs whose memory went back to the driver and was mapped anew at the same address.

A copy node between two devices is bound to the mappings that its memory had when the node was last set. A launch after
that fails (CUDA 13.0, driver 580: `unspecified launch failure`), and the simulator does the same.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import SharedTensor, Tensor, dup, f32, pipeline, share_array
from dagpu.ops.base import DeviceOp
from tests.programs.meshes import mesh
from tests.programs.trimmed_runs import STEPS, trial
from tests.simulated.cuda import installed
from tests.simulated.foreign_arrays import Library
from tests.simulated.machine import Machine


@pytest.fixture(name="remapping")
def remapping_machine() -> Iterator[Machine]:
    """Two devices of 64 MiB, which give freed addresses out again."""
    with installed(3, 2, memory=64 << 20) as machine:
        machine.maps_anew = True
        yield machine


WARM: Final = [("call", number) for number in range(3)] * 3
"""Calls after which each pipeline is one graph."""


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 2)), min_size=4, max_size=24), st.integers(0, 99))
def test_any_order_of_runs_and_trims_gives_right_values(steps: list[tuple[str, int]], seed: int) -> None:
    """No device is lost, whatever goes back to the driver between two launches of a graph."""
    with installed(seed, 2, memory=64 << 20) as machine:
        machine.maps_anew = True
        for _ in trial(mesh(2, "cuda").devices, WARM + steps):
            pass


def test_a_call_after_a_trim_is_one_launch_of_the_same_graph(remapping: Machine) -> None:
    """The nodes are set again, and no graph is made anew."""
    one = remapping.gpus[0]
    steps = [("call", 0)] * 4 + [("trim 0", 0), ("trim 1", 0), ("call", 0)]
    launches = [one.calls["cuGraphLaunch"] for _ in trial(mesh(2, "cuda").devices, steps)]
    assert launches[-1] == launches[-2] + 1
    assert one.calls["cuGraphInstantiate"] == 1


def test_memory_of_another_library_is_mapped_anew(remapping: Machine) -> None:
    """A library may free an array and get the same address for the next one: the graph takes it as it is then."""
    library = Library(remapping)

    @pipeline(graph_from=2)
    def sent(x: SharedTensor[f32]) -> DeviceOp[Tensor[f32]]:
        return dup(dup(x).on("cuda:1")).on("cuda:1")  # a copy alone is no graph

    addresses = set()
    for number in range(5):
        array = library.array(np.full((8, 8), number, f32))
        addresses.add(array.address)
        x = share_array(array, f32)
        with library.gpu.current():
            library.gpu.synchronize()  # a graph waits for none of its inputs
        assert (sent(x).sync().to_host().sync() == number).all()
        with library.gpu.current():
            library.gpu.free(array.address)
    assert len(addresses) == 1
    assert remapping.gpus[0].calls["cuGraphLaunch"] == 4
