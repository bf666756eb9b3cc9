"""`sort`, `argsort` and `topk`: the values of NumPy, and the lengths of all passes."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import bf16, bool_, f16, f32, f64, from_host, i8, i32, i64, u16, u64
from dagpu.kernels.arrays.sorting.merge_passes import EACH, merge_passes, threads_of
from tests.behaviour.arrays.array_places import steps
from tests.emulation.emulated_kernels import same_bits
from tests.unit.kernels.arrays.sorts import expected, ran
from tests.unit.kernels.expressions.element_trees import samples

TYPES = (f16, bf16, f32, f64, i8, i32, i64, u16, u64, bool_)
NAMES = ("sort", "argsort", "topk")


@st.composite
def cases(draw: st.DrawFn) -> Any:
    """A sort, rows with many equal elements and NaNs, how many elements are wanted, and the axis."""
    dtype = draw(st.sampled_from(TYPES))
    length = draw(st.sampled_from((1, 2, 7, 8, 9, 33, 255, 256, 257, 400)))
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
