"""`sort`, `argsort` and `topk`: the values of NumPy, and the launches."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import bf16, bool_, f16, f32, f64, from_host, i8, i32, i64, u16, u64, zeros
from dagpu.arrays.sorting import FEW, TILE
from dagpu.ops.compose import Launch
from dagpu.testing import nodes_of
from tests.behaviour.arrays.array_places import steps
from tests.support.bits import same_bits
from tests.unit.kernels.arrays.sorts import expected, ran
from tests.unit.kernels.expressions.element_trees import samples

TYPES = (f16, bf16, f32, f64, i8, i32, i64, u16, u64, bool_)
NAMES = ("sort", "argsort", "topk")


@st.composite
def cases(draw: st.DrawFn) -> Any:
    """A sort, rows with many equal elements and NaNs, how many elements are wanted, and the axis."""
    dtype = draw(st.sampled_from(TYPES))
    length = draw(st.sampled_from((1, 2, 31, 33, 400, 4096, 4097, 9000)))
    others = draw(st.sampled_from(((), (1,), (3,), (2, 2))))
    at = draw(st.integers(0, len(others)))
    shape = (*others[:at], length, *others[at:])
    x = samples(dtype, int(np.prod(shape)), draw(st.integers(0, 99))).reshape(shape)
    axis = draw(st.sampled_from((at, at - len(shape), None)))
    return draw(st.sampled_from(NAMES)), x, draw(st.integers(1, length)), axis


@settings(max_examples=25)
@given(cases(), st.tuples(steps, steps, steps))
def test_rows_are_sorted_as_numpy_sorts_them(case: Any, ranges: Any) -> None:
    """Stable, NaNs last, along any axis, in rows with gaps and in reversed ones; the input is not changed."""
    name, x, k, axis = case
    t = from_host(x).sync()
    part = x[ranges[: x.ndim]]
    if 0 in part.shape:
        return
    k = min(k, part.size if axis is None else part.shape[axis])
    found = ran(name, t.slice(*ranges[: x.ndim]), k, axis).sync()
    for each, right in zip(found if isinstance(found, tuple) else (found,), expected(name, part, k, axis), strict=True):
        assert same_bits(each.to_host().sync(), right)
    assert same_bits(t.to_host().sync().ravel(), x.ravel())


@settings(max_examples=20)
@given(st.sampled_from(TYPES), st.sampled_from(NAMES), st.integers(1, 3), st.integers(1, 50_000), st.data())
def test_launches_follow_from_the_length_and_the_element_type(
    dtype: Any, name: str, rows: int, length: int, data: st.DataObject
) -> None:
    """One for a row of one tile, three for each byte of an element for a longer one; where few are wanted, each launch
    leaves a quarter of the elements at most. All write what the next one reads."""
    wanted = data.draw(st.integers(1, length)) if name == "topk" else length
    op = ran(name, zeros((rows, length), dtype), wanted)
    launches = [node for node in nodes_of(op) if isinstance(node, Launch)][::-1]
    if length <= TILE or wanted <= FEW:
        left = length
        for launch in launches:
            assert launch.kernel.name == "sort_tile"
            before, left = left, shape_of(launch.args[0])[1]
            assert left == wanted if launch is launches[-1] else wanted < left <= -(-before // TILE) * FEW
        assert len(launches) == 1 or length > TILE
        return
    steps = ["count_digits", "add_up_counts", "scatter_by_digit"] * np.dtype(dtype).itemsize
    cuts = ["resize_matrix"] * (2 if wanted < length else 0)
    assert sorted(launch.kernel.name for launch in launches) == sorted(steps + cuts)
    assert all(shape_of(launch.args[0])[-1] == wanted for launch in launches if launch.kernel.name == "resize_matrix")


def shape_of(target: Any) -> tuple[int, ...]:
    """The shape of a launch's new output."""
    made: tuple[int, ...] = target.source.shape
    return made
