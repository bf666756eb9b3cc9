"""Copies between the host and a real GPU, of sizes that are staged whole, piece by piece, or by several threads."""

from itertools import pairwise
from typing import Any, Final

import numpy as np
import pytest
from numpy.typing import NDArray

from dagpu import Device, from_host, i32, pipeline, use_device
from dagpu.backends.cuda.commands.transfers import CHUNK, PIECE, PROMPT_IN, SLOTS, SMALL, STAGERS
from dagpu.common.compiled import READER, WHY_NOT, served

SIZES: Final = sorted(
    {size + more for size in (SMALL, PIECE, 3 * PIECE, PROMPT_IN, SLOTS * STAGERS * CHUNK) for more in (-4, 0, 4)}
)
"""Bytes on both sides of each size at which another way is taken."""


def numbers(nbytes: int, start: int) -> NDArray[i32]:
    return np.arange(start, start + nbytes // 4, dtype=i32)


@pytest.mark.parametrize("graph_from", [None, 2])
def test_arrays_of_any_size_arrive(gpu: Device, graph_from: int | None) -> None:
    """Run after run, through streams and through a graph, although the array changes as soon as a run is over."""
    up_and_down: Any = pipeline(graph_from=graph_from)(lambda array: from_host(array).to_host())
    with use_device(gpu):
        for nbytes in SIZES:
            array = numbers(nbytes, 0)
            for start in range(4):
                array[...] = numbers(nbytes, start)
                back = up_and_down(array).sync()
                array[...] = -1
                assert (back == numbers(nbytes, start)).all(), nbytes


def test_an_array_of_any_size_arrives_by_a_run_of_its_own(gpu: Device) -> None:
    """So does it come back."""
    with use_device(gpu):
        for nbytes in SIZES:
            array = numbers(nbytes, 0)
            for start in range(4):
                array[...] = numbers(nbytes, start)
                tensor = from_host(array).sync()
                array[...] = -1
                assert (tensor.to_host().sync() == numbers(nbytes, start)).all(), nbytes


@pytest.mark.skipif(READER is None, reason=f"there is no compiled reader: {WHY_NOT}")
def test_the_compiled_reader_makes_copies(gpu: Device) -> None:
    """Of an ordinary array, of a page-locked one, and to the host, once their plans have direct calls."""
    with use_device(gpu):
        ordinary = numbers(1 << 20, 0)
        locked = from_host(ordinary).to_host().sync()
        tensor = from_host(ordinary).sync()
        ways = (lambda: from_host(ordinary).sync(), lambda: from_host(locked).sync(), tensor.borrow().to_host().sync)
        for way in ways:
            for _ in range(10):
                way()
            before, _ = served()
            for _ in range(5):
                way()
            assert served()[0] == before + 5


def test_a_page_locked_array_is_copied_as_it_is_now(gpu: Device) -> None:
    """A result of `to_host` that was written to is copied from where it lies, its views too."""
    with use_device(gpu):
        array = from_host(numbers(PROMPT_IN, 0)).to_host().sync()
        for start in range(3):
            array[...] = numbers(PROMPT_IN, start)
            assert (from_host(array).to_host().sync() == array).all()
            for a, b in pairwise((0, PIECE, PROMPT_IN // 4)):
                assert (from_host(array[a:b]).to_host().sync() == array[a:b]).all()
