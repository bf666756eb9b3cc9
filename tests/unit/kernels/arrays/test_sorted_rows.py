"""`sort`, `argsort` and `topk`: the values of NumPy, and the CUDA text of every pass on the CPU."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dagpu import array, bf16, bool_, f16, f32, f64, from_host, i8, i32, i64, u16, u64
from dagpu.kernels.arrays.sorting.merge_passes import EACH, merge_passes, threads_of
from dagpu.ops.compose import nodes_of
from dagpu.ops.creation import Alloc
from dagpu.ops.launch import Launch
from tests.behaviour.arrays.array_places import steps
from tests.emulation import shared_folder
from tests.emulation.emulated_kernels import EmulatedKernels, same_bits
from tests.unit.kernels.expressions.element_trees import samples

TYPES = (f16, bf16, f32, f64, i8, i32, i64, u16, u64, bool_)
NAMES = ("sort", "argsort", "topk")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_folder(tmp_path_factory)


def places(rows: NDArray[Any], *, descending: bool = False) -> list[list[int]]:
    """The places that sort each row, one comparison after the other: stable, and a NaN is the largest."""
    found = []
    for row in rows.tolist():
        keys = [(x != x, 0 if x != x else x) for x in row]
        if descending:
            keys = [(not odd, -x) for odd, x in keys]
        found.append(sorted(range(len(row)), key=keys.__getitem__))
    return found


def expected(name: str, x: NDArray[Any], k: int) -> list[NDArray[Any]]:
    rows = x.reshape(-1, x.shape[-1])
    order = np.array(places(rows, descending=name == "topk"), np.int64).reshape(rows.shape)
    order = order[:, :k] if name == "topk" else order
    shape = (*x.shape[:-1], order.shape[1])
    values = np.take_along_axis(rows, order, 1).reshape(shape)
    order = order.reshape(shape)
    return {"sort": [values], "argsort": [order], "topk": [values, order]}[name]


@st.composite
def cases(draw: st.DrawFn) -> Any:
    """A sort, rows with many equal elements and NaNs, and how many elements are wanted."""
    dtype = draw(st.sampled_from(TYPES))
    length = draw(st.sampled_from((1, 2, 7, 8, 9, 33, 255, 256, 257, 400)))
    shape = (*draw(st.sampled_from(((), (1,), (3,), (2, 2)))), length)
    x = samples(dtype, int(np.prod(shape)), draw(st.integers(0, 99))).reshape(shape)
    return draw(st.sampled_from(NAMES)), x, draw(st.integers(1, length))


def ran(name: str, t: Any, k: int) -> Any:
    return array.topk(t, k) if name == "topk" else getattr(array, name)(t)


@settings(max_examples=40)
@given(cases(), st.tuples(steps, steps, steps))
def test_rows_are_sorted_as_numpy_sorts_them(case: Any, ranges: Any) -> None:
    """Stable, NaNs last, in rows with gaps and in reversed ones; the input is not changed."""
    name, x, k = case
    t = from_host(x).sync()
    part = x[ranges[: x.ndim]]
    if 0 in part.shape:
        return
    k = min(k, part.shape[-1])
    found = ran(name, t.slice(*ranges[: x.ndim]), k).sync()
    for each, right in zip(found if isinstance(found, tuple) else (found,), expected(name, part, k), strict=True):
        assert same_bits(each.to_host().sync(), right)
    assert same_bits(t.to_host().sync().ravel(), x.ravel())


@settings(max_examples=40)
@given(st.integers(1, 200_000), st.data())
def test_passes_end_with_what_is_wanted(length: int, data: st.DataObject) -> None:
    """Each halves the runs, a tile lies in one run, and only what is wanted is written at the end."""
    wanted, span = data.draw(st.integers(1, length)), threads_of(length) * EACH
    now, run = length, 0
    for each in merge_passes(length, wanted, span):
        assert (each.length, each.run) == (now, run)
        assert each.made % span == 0
        pairs = -(-now // (2 * run)) if run else -(-now // span)
        assert each.made_length == wanted if each.last else -(-each.made_length // each.made) == pairs
        now, run = each.made_length, each.made
    assert each.last
    assert sum(1 for _ in merge_passes(length, wanted, span)) == 1 + max(0, (-(-length // span) - 1).bit_length())


def emulated(device: EmulatedKernels, launches: list[Launch], x: NDArray[Any]) -> list[NDArray[Any]]:
    """Run all passes of a sort on rows."""
    now: list[NDArray[Any]] = [x.reshape(-1, x.shape[-1])]
    for launch in launches:
        outputs, tiles = [], []
        for argument in launch.args:
            target: Any = argument
            if isinstance(getattr(target, "source", None), Alloc):
                outputs.append(np.zeros(target.source.shape, target.source.dtype))
                tiles.append(target.f.tile)
        numbers = [argument for argument in launch.args if isinstance(argument, int)]
        device.launch(launch.kernel, [*outputs, *now, *numbers], tiles)
        now = outputs
    return now


CASES: Any = [
    ("sort", f32, (2, 4500), 0),
    ("argsort", bf16, (3, 4100), 0),
    ("topk", f64, (6000,), 5),
    ("topk", f64, (6000,), 3000),
    ("argsort", bf16, (2, 2, 33), 0),
]


def test_the_cuda_text_sorts(folder: Path) -> None:
    """In every pass, with the threads of a block in two orders: the bits are those of the host."""
    found = []
    for number, (name, dtype, shape, k) in enumerate(CASES):
        x = samples(dtype, int(np.prod(shape)), number).reshape(shape)
        launches = [node for node in nodes_of(ran(name, from_host(x), k)) if isinstance(node, Launch)][::-1]
        found.append((name, x, k, launches))
    specs = list({id(launch.kernel): launch.kernel for *_, launches in found for launch in launches}.values())
    device = EmulatedKernels(specs, folder, blocks=True)
    for name, x, k, launches in found:
        for made, right in zip(emulated(device, launches, x), expected(name, x, k), strict=True):
            assert same_bits(made.reshape(right.shape), right), launches[-1].kernel.cuda
