"""Functions that move, gather and add elements on every kind of device: ownership, shapes, pipelines and graphs."""

from typing import Any

import numpy as np
import pytest

from dagpu import (
    KernelArgumentError,
    KernelBoundsError,
    MovedError,
    ShapeError,
    array,
    bf16,
    dup,
    f16,
    f32,
    f64,
    from_host,
    i8,
    i64,
    ones,
    pipeline,
    value,
    zeros,
)
from tests.simulated.each_device import where as where
from tests.support.reused_ops import no_plans_yet as no_plans_yet
from tests.support.reused_ops import traces

anyhow: Any = array
x = np.random.default_rng(3).standard_normal((6, 500)).astype(f32)
places = np.array([[0, -1], [5, 2]])


def held(a: Any) -> Any:
    """A shared tensor."""
    return from_host(a).sync().share()


# ---- values


def test_elements_are_moved_on_every_device(where: Any) -> None:
    """By every function, with NumPy's results, also behind an op whose shape only a run shows."""
    t, late = held(x), from_host(x).then(lambda t: value(t))
    np.testing.assert_array_equal(array.transpose(t).to_host().sync(), x.T, strict=True)
    np.testing.assert_array_equal(array.transpose(late, (-1, 0)).to_host().sync(), x.T, strict=True)
    for axis in (0, 1, -1):
        joined = array.concatenate((t, from_host(x), t), axis).to_host().sync()
        np.testing.assert_array_equal(joined, np.concatenate((x, x, x), axis), strict=True)
    for axis in (0, 1, 2, -1):
        np.testing.assert_array_equal(array.stack([t, t], axis).to_host().sync(), np.stack([x, x], axis), strict=True)
    for axis in (0, 1):
        found = array.take(t, held(places), axis).to_host().sync()
        np.testing.assert_array_equal(found, x.take(places, axis), strict=True)
    np.testing.assert_array_equal(array.one_hot(held(places), 3).to_host().sync()[1], [[0, 0, 0], [0, 0, 1]])


def test_many_parts_take_several_launches(where: Any) -> None:
    """More than one launch has parameters for."""
    parts = [np.full((n % 3, 2), n, f32) for n in range(40)]
    found = array.concatenate([from_host(part) for part in parts]).to_host().sync()
    np.testing.assert_array_equal(found, np.concatenate(parts), strict=True)


def test_sums_have_the_same_bits_on_every_device(where: Any) -> None:
    """Those of the host, of one launch and of three, and in f32 for halves."""
    long = np.random.default_rng(5).standard_normal(9000).astype(f32)
    found = array.cumsum(held(long)).to_host().sync()
    assert found[[15, 4095, 4096, -1]].tobytes() == bytes.fromhex("2555c1bf78fff5426f6df542efc64143")
    np.testing.assert_allclose(found, long.astype(f64).cumsum(), atol=1e-3)
    np.testing.assert_allclose(array.cumsum(held(x)).to_host().sync()[-1], x.sum(), atol=1e-3)
    assert array.cumsum(ones((5000,), f16)).to_host().sync()[-1] == 5000
    into, values = zeros((3,), bf16), ones((3000,), bf16)
    added = array.scatter_add(into, held(np.arange(3000) % 3), values).to_host().sync()
    assert added.tolist() == [1000, 1000, 1000]


def test_integers_are_not_widened(where: Any) -> None:
    """A running sum and a scattered one wrap in the type of the input, where NumPy's cumsum would widen."""
    assert array.cumsum(ones((130,), i8)).to_host().sync()[-1] == -126
    assert array.scatter_add(zeros((1,), i8), zeros((130,), i64), ones((130,), i8)).to_host().sync() == [-126]


def test_softmax_of_short_and_long_rows(where: Any) -> None:
    """Rows add up to 1 and follow the formula; a NaN takes its row."""
    for shape, axis in (((6, 500), 1), ((6, 500), 0), ((20_000,), -1)):
        numbers = np.random.default_rng(1).standard_normal(shape).astype(f32)
        powers = np.exp(numbers.astype(f64))
        found = array.softmax(held(numbers), axis).to_host().sync()
        np.testing.assert_allclose(found, powers / powers.sum(axis, keepdims=True), rtol=2e-6)
    odd = np.array([[1, np.nan, 2], [0, -np.inf, 0], [np.inf, 0, 0], [-np.inf] * 3], f32)
    found = array.softmax(held(odd)).to_host().sync()
    np.testing.assert_array_equal(np.isnan(found), [[1, 1, 1], [0, 0, 0], [1, 1, 1], [1, 1, 1]])
    assert found[1].tolist() == [0.5, 0, 0.5]


# ---- ownership and errors


def test_what_the_functions_take(where: Any) -> None:
    """Tensors move, borrows do not, and a refused call moves nothing."""
    t, other = from_host(x).sync(), ones((4, 4)).sync()
    with pytest.raises(ShapeError, match="shape"):
        anyhow.concatenate((t, other))
    with pytest.raises(ShapeError, match="Name each of them"):
        anyhow.transpose(t, (0, 0))
    with pytest.raises(KernelArgumentError, match="i32 or i64"):
        anyhow.take(t, other)
    part = t.slice(slice(1, 4), slice(None, None, -2))
    np.testing.assert_array_equal(array.transpose(part).to_host().sync(), x[1:4, ::-2].T, strict=True)
    op = anyhow.stack((t, from_host(x)))
    with pytest.raises(MovedError, match="moved by being passed to stack at"):
        anyhow.softmax(t)
    assert op.to_host().sync().shape == (2, 6, 500)


def test_scatter_add_writes_the_tensor_that_moves_in(where: Any) -> None:
    """Its result is that tensor; shared and lent ones are refused, because they are not to be written."""
    t = zeros((3,)).sync()
    op = array.scatter_add(t, held(np.array([0, 0, -1])), held(np.array([1, 2, 3], f32)))
    with pytest.raises(MovedError):
        t.borrow()
    many = op.sync().share()
    assert many.to_host().sync().tolist() == [3, 0, 3]
    with pytest.raises(KernelArgumentError, match="into is a SharedTensor, and it is written"):
        array.scatter_add(many, held(np.array([0])), held(np.array([1], f32)))  # type: ignore[arg-type]  # reason: that is what is refused
    twice = array.scatter_add(dup(many), held(np.array([1])), held(np.array([1], f32)))
    assert twice.to_host().sync().tolist() == [3, 1, 3]


@pytest.mark.parametrize(("index", "extent"), [(6, 6), (-7, 6)])
def test_an_index_beyond_the_axis_names_the_line(
    where: Any, index: int, extent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the index, the extent, and the indices that are right."""
    monkeypatch.setenv("DAGPU_CHECKED", "1")  # a GPU looks only then
    wrong, row = held(np.array([0, index])), ones((2, 500)).sync().share()
    said = (
        rf"at .*test_movement_calls.py:\d+: indices has the index {index}, but the axis has {extent} elements. Give ind"
    )
    with pytest.raises(KernelBoundsError, match=f"take {said}"):
        array.take(held(x), wrong).sync()
    with pytest.raises(KernelBoundsError, match=f"scatter_add {said}"):
        array.scatter_add(from_host(x), wrong, row).sync()


def test_nothing_is_moved(where: Any) -> None:
    """Empty tensors and empty lists of indices have empty results."""
    none: Any = np.zeros((0,), i64)
    empty = held(np.zeros((0, 3), f32))
    assert array.transpose(empty).to_host().sync().shape == (3, 0)
    assert array.concatenate((empty, empty), 1).to_host().sync().shape == (0, 6)
    assert array.take(held(x), held(none)).to_host().sync().shape == (0, 500)
    assert array.cumsum(empty).to_host().sync().shape == (0,)
    assert array.softmax(empty, 0).to_host().sync().shape == (0, 3)
    assert array.one_hot(held(none), 4).to_host().sync().shape == (0, 4)
    kept = array.scatter_add(from_host(x), held(none), held(np.zeros((0, 500), f32))).to_host().sync()
    np.testing.assert_array_equal(kept, x)


# ---- plans


def test_a_pipeline_of_them_has_one_plan(where: Any) -> None:
    """The tensors of each call lie elsewhere."""

    @pipeline
    def mixed(t: Any, indices: Any) -> Any:
        chosen = array.take(array.transpose(t), indices)
        return array.cumsum(array.softmax(array.concatenate((chosen, chosen_again(t, indices)), 1)), 0).to_host()

    def chosen_again(t: Any, indices: Any) -> Any:
        return array.transpose(array.take(t, indices, 1))

    for seed in range(4):
        t = np.random.default_rng(seed).standard_normal((5, 70)).astype(f32)
        found = mixed(held(t), held(places.ravel() + seed)).sync()
        both = np.concatenate([t.T[places.ravel() + seed]] * 2, 1).astype(f64)
        powers = np.exp(both)
        np.testing.assert_allclose(found, (powers / powers.sum(1, keepdims=True)).cumsum(0), rtol=1e-5)
    assert mixed.cache_info()[:2] == (3, 1)


def test_plain_calls_have_one_plan(where: Any) -> None:
    """Of one launch and of several."""
    t, long = held(x), held(np.ones(9000, f32))
    rows, again = held(np.array([1, 2])), held(np.array([0, 3]))
    with traces() as count:
        for _ in range(3):
            array.cumsum(long).to_host().sync()
            array.softmax(array.stack((t, t)), 1).to_host().sync()
            array.scatter_add(zeros((6, 500)), rows, array.take(t, again)).to_host().sync()
    assert count.now == 3


def test_a_graph_of_them(where: Any) -> None:
    """Captured, and launched again after its input has changed."""
    t = from_host(x).sync()
    graph = array.cumsum(array.transpose(t.borrow()), 0).graph()
    out = graph.take_output()
    graph.launch().sync()
    first = dup(out.borrow()).to_host().sync()
    np.testing.assert_allclose(first, x.T.astype(f64).cumsum(0), atol=1e-3)
