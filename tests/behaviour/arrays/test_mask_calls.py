"""`nonzero`, `compress`, `unique` and `unique_counts` on every kind of device: NumPy's elements, as many as there are,
or as many as are wanted, in plain runs, pipelines, graphs and feeds."""

from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dagpu import (
    CaptureError,
    KernelArgumentError,
    MovedError,
    ShapeError,
    array,
    bf16,
    bool_,
    c64,
    c128,
    f16,
    f32,
    f64,
    from_host,
    i8,
    i16,
    i32,
    i64,
    memcpy,
    observe,
    pipeline,
    source,
    u8,
    u16,
    u32,
    u64,
    value,
    zeros,
)
from tests.behaviour.arrays.array_places import cut, steps
from tests.simulated.each_device import where as where
from tests.support.reused_ops import no_plans_yet as no_plans_yet
from tests.support.reused_ops import traces

ORDERED = (f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, bool_)
TYPES = (*ORDERED, c64, c128)
SHAPES = ((), (1,), (7,), (0,), (3, 4), (2, 0, 3), (2, 3, 4), (5000,))
anyhow: Any = array


@pipeline
def positives(t: Any) -> Any:
    return array.compress(t > 0.0, t).to_host()


random = np.random.default_rng(11)


def kept(found: NDArray[Any], size: int | None, fill: Any, axis: int = 0) -> NDArray[Any]:
    """The first elements along an axis, and a number behind them."""
    if size is None:
        return found
    shape = list(found.shape)
    shape[axis] = size
    result = np.full(shape, fill).astype(found.dtype)
    some = (*[slice(None)] * axis, slice(min(size, found.shape[axis])))
    result[some] = found[some]
    return result


def on_host(op: Any) -> Any:
    """The contents of an op's result: an array, or a tuple of them."""
    found = op.sync()
    return tuple([each.to_host().sync() for each in found]) if isinstance(found, tuple) else found.to_host().sync()


def numbers(dtype: Any, shape: tuple[int, ...], draw: Any = random) -> NDArray[Any]:
    """Few different elements of a type, of which some are 0; with NaNs and both zeros of a float."""
    found = np.asarray(draw.integers(0, 4, shape)).astype(dtype)
    if np.dtype(dtype).kind in "fVc" and found.ndim:
        found[draw.random(shape) < 0.2] = np.nan
        found[draw.random(shape) < 0.2] = -0.0
    return found


def assert_same(found: NDArray[Any], expected: NDArray[Any]) -> None:
    """Hold elements against NumPy's, which does not know the NaN of bf16."""
    assert found.dtype == expected.dtype
    one, other = (each.astype(f32) if each.dtype == bf16 else each for each in (found, expected))
    np.testing.assert_array_equal(one, other, strict=True)


@settings(max_examples=60)
@given(st.data())
def test_results_are_those_of_numpy(data: st.DataObject) -> None:
    """Of parts of tensors of any shape and element type, with all elements, some and none, with a size and without."""
    draw: Any = data.draw
    dtype, size = draw(st.sampled_from(TYPES)), draw(st.sampled_from((None, 0, 1, 3, 40, 6000)))
    shape, seed = draw(st.sampled_from(SHAPES)), draw(st.integers(0, 99))
    drawn = np.random.default_rng(seed)
    whole = numbers(dtype, shape, drawn)
    part = cut(whole, tuple([draw(steps) for _ in shape]))
    x, mask = part.array, np.asarray(drawn.random(part.array.shape) < draw(st.sampled_from((0, 0.3, 1))))
    held = from_host(mask).sync().share()

    found = on_host(array.compress(held, part.lent(), size=size, fill_value=1))
    assert_same(found, kept(x[mask], size, 1))
    if x.shape:
        places = on_host(array.nonzero(part.lent(), size=size, fill_value=-7))
        for one, expected in zip(places, np.nonzero(x), strict=True):
            assert_same(one, kept(expected, size, -7))
        axis = draw(st.integers(-len(shape), len(shape) - 1))
        rows = np.asarray(drawn.random(x.shape[axis]) < draw(st.sampled_from((0, 0.5, 1))))
        found = on_host(array.compress(from_host(rows), part.lent(), axis, size=size, fill_value=1))
        expected = kept(np.compress(rows, x, axis), size, 1, axis % len(shape))
        assert_same(found, expected)
    if dtype in ORDERED:
        wide = x.astype(f32) if dtype is bf16 else x
        values, counts = np.unique(wide, return_counts=True)
        found, times = on_host(array.unique_counts(part.lent(), size=size, fill_value=1))
        assert_same(found, kept(values.astype(dtype), size, 1))
        assert_same(times, kept(counts, size, 0))
        assert_same(on_host(array.unique(part.lent(), size=size, fill_value=1)), found)


@pytest.mark.parametrize("size", [None, 900])
def test_masks_of_several_blocks_on_each_device(where: Any, size: int | None) -> None:
    """Sums of several spans and sorts of several passes; of ops whose shape only a run shows, too."""
    x = random.integers(0, 700, (60, 300)).astype(f32)
    mask = x % 3 > 1
    lent = from_host(x).sync().share()
    for given_x in (lent, value(lent), from_host(x).then(lambda t: value(t))):
        found = on_host(array.compress(from_host(mask), given_x, size=size))
        np.testing.assert_array_equal(found, kept(x[mask], size, 0), strict=True)
    for found, expected in zip(on_host(array.nonzero(from_host(mask), size=size)), np.nonzero(mask), strict=True):
        np.testing.assert_array_equal(found, kept(expected, size, 0), strict=True)
    values, counts = np.unique_counts(x)
    found, times = on_host(array.unique_counts(lent, size=size))
    np.testing.assert_array_equal(found, kept(values, size, 0), strict=True)
    np.testing.assert_array_equal(times, kept(counts, size, 0), strict=True)


def test_an_op_runs_again_with_other_contents(where: Any) -> None:
    """Nothing of a run is remembered: the same op counts anew."""
    h = np.zeros(6, bool)
    ops = array.nonzero(from_host(h)), array.nonzero(from_host(h), size=2)
    assert [[each.tolist() for each in on_host(op)] for op in ops] == [[[]], [[0, 0]]]
    h[3:] = True
    assert [[each.tolist() for each in on_host(op)] for op in ops] == [[[3, 4, 5]], [[3, 4]]]


def test_zeros_and_numbers_that_follow(where: Any) -> None:
    """Of -0 and 0 the first one of the tensor stays; what follows may be infinite, a NaN or a complex number."""
    for x in ([0.0, -0.0, 1.0], [-0.0, 0.0, 1.0]):
        h = np.array(x, f32)
        assert on_host(array.unique(from_host(h))).tobytes() == h[[0, 2]].tobytes()
    none = from_host(np.zeros(2, bool)).sync().share()
    assert on_host(array.compress(none, zeros((2,), f16), size=2, fill_value=-np.inf)).tolist() == [-np.inf] * 2
    assert np.isnan(on_host(array.compress(none, zeros((2,), bf16), size=1, fill_value=np.nan)).astype(f32)).all()
    assert on_host(array.compress(none, zeros((2,), c64), size=1, fill_value=2 - 1j)).tolist() == [2 - 1j]
    assert on_host(array.compress(none, zeros((2,), u64), size=1, fill_value=2**64 - 1)).tolist() == [2**64 - 1]
    assert on_host(array.compress(none, none, size=1, fill_value=True)).tolist() == [True]


def test_the_next_op_takes_a_result_of_unknown_length(where: Any) -> None:
    """Functions and operators of a result, whose shape only the run shows."""
    x = np.array([3, -1, 0, 5, -2], f32)
    t = from_host(x).sync().share()
    total = array.sum(array.compress(t > 0, t) * 2.0)
    assert float(total.to_host().sync()) == 16
    (places,) = array.nonzero(t).sync()
    assert on_host(array.take(t, places)).tolist() == [3, -1, 5, -2]


def test_a_pipeline_with_a_size_has_one_plan(where: Any) -> None:
    """It serves all contents."""

    @pipeline
    def positive(t: Any) -> Any:
        return array.compress(t > 0.0, t, size=4, fill_value=-1).to_host()

    @pipeline
    def distinct(t: Any) -> Any:
        return array.unique(t, size=3).to_host()

    inputs = [random.integers(-2, 3, 50).astype(f32) * np.float32(number % 3) for number in range(6)]
    for x in inputs:
        t = from_host(x).sync().share()
        np.testing.assert_array_equal(positive(t).sync(), kept(x[x > 0], 4, -1))
        np.testing.assert_array_equal(distinct(t).sync(), kept(np.unique(x), 3, 0))
    assert positive.cache_info()[:2] == distinct.cache_info()[:2] == (5, 1)


def test_a_pipeline_without_a_size_is_right_and_warns() -> None:
    """Each call is traced again, and the warning names the function."""
    inputs = [np.arange(6, dtype=f32) - number for number in range(7)]
    with pytest.warns(
        RuntimeWarning, match=r"array\.compress at .* Say the length of its result, size=100, or make one pipeline"
    ):
        found = [positives(from_host(x).sync().share()).sync() for x in inputs]
    for x, of_x in zip(inputs, found, strict=True):
        np.testing.assert_array_equal(of_x, x[x > 0])


def test_an_op_with_a_size_has_one_plan_in_a_loop(where: Any) -> None:
    """As other functions: the loop builds it again, and its plan is found."""
    t = from_host(random.integers(0, 2, (30, 30))).sync().share()
    with traces() as count:
        for _ in range(5):
            array.nonzero(t, size=7).map(lambda places: places).sync()
            on_host(array.unique(t, size=2))
    assert count.now <= 5 + 2


def test_graphs_hold_what_has_a_size(where: Any) -> None:
    """Each launch counts anew. Without a size there is no graph, and the error says why."""
    x = zeros((3, 4)).sync()
    graph = array.nonzero(x.borrow(), size=3, fill_value=-1).graph()
    rows, columns = graph.take_output()
    for h in (np.eye(3, 4), np.zeros((3, 4)), np.ones((3, 4))):
        graph.update(memcpy(x.borrow_mut(), from_host(h.astype(f32)).sync()))
        graph.launch().sync()
        expected = [kept(each, 3, -1).tolist() for each in np.nonzero(h)]
        assert [on_host(value(each.borrow())).tolist() for each in (rows, columns)] == expected
    with pytest.raises(
        CaptureError,
        match=r"array.nonzero at .*test_mask_calls.py:\d+ waits for the length .* Say the length: size=100",
    ):
        array.nonzero(x.borrow()).graph()


@pytest.mark.parametrize("size", [None, 3])
def test_feeds_follow_a_mask(where: Any, size: int | None) -> None:
    """An update of a source counts anew, with a size and without."""
    masks = [np.array(each, bool) for each in ([0, 1, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 1])]
    given_mask = source(masks[0])
    x = from_host(np.arange(4, dtype=f32) + 1).sync().share()

    async def main() -> None:
        op = array.compress(given_mask.then(from_host), x, size=size, fill_value=-1).to_host()
        async with observe(op) as feed:
            for mask in masks:
                given_mask.set(mask)
                found = await feed.next()
                np.testing.assert_array_equal(found, kept(np.arange(1, 5, dtype=f32)[mask], size, -1))

    trio.run(main)


def test_what_moves_and_what_is_refused(where: Any) -> None:
    """A refused call moves nothing; owned arguments move into a call, borrows do not."""
    x, mask = from_host(np.arange(4, dtype=f32)).sync(), from_host(np.array([True, False, True, True])).sync()
    with pytest.raises(KernelArgumentError, match=r"condition has elements of f32, and bool is wanted\. .* mask first"):
        anyhow.compress(x.borrow(), mask.borrow())
    with pytest.raises(ShapeError, match=r"condition has shape \(4,\), but \(2, 3\) or \(6,\) is wanted"):
        array.compress(mask.borrow(), zeros((2, 3)))
    with pytest.raises(ShapeError, match=r"condition has shape \(4,\), but \(2,\) is wanted .* axis=0"):
        array.compress(mask.borrow(), zeros((2, 2)), 0)
    with pytest.raises(ShapeError, match=r"compress at .*300"):
        array.compress(mask.borrow(), zeros((4,), i8), size=3, fill_value=300)
    with pytest.raises(ShapeError, match="x has no axis, so it has no places"):
        array.nonzero(zeros(()))
    with pytest.raises(ValueError, match="size is -1, but a whole number, 0 or more, or None, is wanted"):
        array.unique(x, size=-1)
    with pytest.raises(KernelArgumentError, match=r"unique at .* does not take elements of c64"):
        anyhow.unique(zeros((4,), c64))
    assert on_host(array.compress(mask, x)).tolist() == [0, 2, 3]
    with pytest.raises(MovedError):
        array.compress(mask, x)
