"""Ops that are spread over simulated GPUs, with and without access to each other's memory."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import Links, Spread, StreamInterpreter, arange, convert, dup, f32, f64, use_interpreter
from tests.programs.expressions import bits
from tests.programs.meshes import EAGER, Scatter, mesh
from tests.programs.trials import random_dag
from tests.simulated.cuda import installed


@settings(max_examples=12)
@given(st.integers(0, 999), st.integers(1, 3), st.booleans(), st.integers(0, 3))
def test_any_placement_gives_the_bits_of_the_host(dag: int, count: int, peers: bool, seed: int) -> None:
    """On streams that finish in any order, whether GPUs read each other's memory or not."""
    wanted = random_dag(dag).sync()
    with installed(seed=dag, gpus=3) as machine:
        machine.peers = peers
        found = mesh(count, "cuda")
        policy: Any = Scatter(found, seed) if seed else Spread(found, costs=EAGER)
        with use_interpreter(StreamInterpreter(policy=policy)):
            got = [random_dag(dag).sync() for _ in range(2)]
    for each in got:
        assert [*map(bits, each)] == [*map(bits, wanted)]


@pytest.mark.parametrize("peers", [True, False])
def test_access_is_enabled_before_copies(peers: bool) -> None:
    """A device may read its peers before the first copy from them, where the hardware can. Without access the costs are
    those of copies through the host."""
    with installed(gpus=2) as machine:
        machine.peers = peers
        links, found = Links(), mesh(2, "cuda")
        with use_interpreter(StreamInterpreter(policy=Scatter(found, 1))):
            random_dag(3).sync()
        assert [gpu.reached for gpu in machine.gpus] == ([{1}, {0}] if peers else [set(), set()])
        assert links.between(*found.devices) == (links.peer if peers else links.host)


def test_copies_of_a_part_need_no_access() -> None:
    """A strided or converting copy from a GPU whose memory is not read is made of the whole tensor, and then there."""
    with installed(gpus=2) as machine:
        machine.peers = False
        t = arange(12, f32).reshape((3, 4)).on("cuda:1").sync()
        with use_interpreter(StreamInterpreter(policy=Scatter(mesh(1, "cuda"), 0))):
            part = dup(t.slice(slice(None), slice(1, 3))).to_host().sync()
            converted = convert(t, f64).to_host().sync()
        assert part.tolist() == [[1, 2], [5, 6], [9, 10]]
        assert converted.ravel().tolist() == [*range(12)]
