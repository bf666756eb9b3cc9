"""Reductions: the order that their description says, the values of NumPy, and the bits of the CUDA text."""

from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dagpu import array, bf16, bool_, c64, c128, f16, f32, f64, from_host, i8, i32, i64, u16
from dagpu.backends.kernel_text.launch_params import NARROW
from dagpu.kernels import reduction_kernels
from dagpu.kernels.reduction_order import ReducedAxes, ReductionOrder, merge_axes, reduction_order
from dagpu.ops.compose import Launch
from dagpu.testing import nodes_of
from tests.behaviour.arrays.array_places import steps
from tests.conftest import DEEP
from tests.support.bits import same_bits
from tests.support.text_runs import by_text, launch_text
from tests.unit.kernels.expressions.element_trees import factor, samples

NAMES = ("sum", "prod", "mean", "norm", "amin", "amax", "any", "all")
FLOATS = ("mean", "norm")
TYPES = (f16, bf16, f32, f64, i8, i32, i64, u16, c64, c128, bool_)


@st.composite
def cases(draw: st.DrawFn, names: Any = NAMES) -> Any:
    """A reduction, an input with long and short axes, the axes, and keepdims."""
    name = draw(st.sampled_from(names))
    dtype = draw(st.sampled_from([t for t in TYPES if accepted(name, t)]))
    long = st.sampled_from((1, 2, 3, 4, 7, 17, 40, 300, 5000, 20_000))
    shape = draw(st.lists(long, max_size=4).filter(lambda shape: np.prod(shape) <= 30_000))
    axes = tuple(draw(st.permutations(range(len(shape))))[: draw(st.integers(0, len(shape)))])
    x = samples(dtype, int(np.prod(shape, dtype=int)), draw(st.integers(0, 99))).reshape(shape)
    return name, x, draw(st.sampled_from((None, axes))), draw(st.booleans())


def accepted(name: str, dtype: Any) -> bool:
    kind = np.dtype(dtype).kind
    ordered = kind != "c" or name not in ("amin", "amax")
    return ordered and not (kind == "b" and name not in ("any", "all")) and not (kind in "iu" and name in FLOATS)


def shifted(x: NDArray[Any]) -> NDArray[Any]:
    """A copy that begins one element after a multiple of 16 bytes."""
    copy = np.empty(x.size + 1, x.dtype)[1:].reshape(x.shape)
    copy[...] = x
    return copy


def by_the_rule(name: str, x: NDArray[Any], axes: ReducedAxes) -> NDArray[Any]:
    """Reduce by the text of `reduction_order`, one number after the other."""
    wide = x.astype(f32) if x.dtype.itemsize == 2 and x.dtype.kind not in "iu" else x
    if name == "norm":
        wide = wide.real * wide.real + wide.imag * wide.imag if x.dtype.kind == "c" else wide * wide
    wide = wide != 0 if name in ("any", "all") else wide
    kept = [n for n, kind in enumerate(axes.reduced) if not kind]
    turned = wide.reshape(axes.shape).transpose([*kept, *[n for n, kind in enumerate(axes.reduced) if kind]])
    rows = turned.reshape(axes.rows, axes.length)
    combine: Any = {
        "prod": factor if x.dtype.kind == "c" else np.multiply,
        "amin": least,
        "amax": most,
        "any": np.logical_or,
        "all": np.logical_and,
    }.get(name, np.add)
    found = []
    for row in rows:
        numbers, now = list(row), axes
        while True:
            order = reduction_order(now.length, now.neighbours)
            numbers = [span(numbers[at : at + order.span], order, combine) for at in range(0, len(numbers), order.span)]
            if len(numbers) == 1:
                break
            now = ReducedAxes((axes.rows, len(numbers)), (False, True))
        found.append(numbers[0])
    result = np.array(found, wide.dtype)
    if name == "mean":
        parts = result.view(result.real.dtype)
        parts /= result.real.dtype.type(axes.length)
    if name == "norm":
        norms: NDArray[Any] = np.sqrt(result).astype(x.real.dtype if x.dtype.kind == "c" else x.dtype)
        return norms
    return result.astype(bool if name in ("any", "all") else x.dtype)


def span(numbers: list[Any], order: ReductionOrder, combine: Any) -> Any:
    columns: list[Any] = [None] * order.width
    for n, number in enumerate(numbers):
        column = n % order.width
        columns[column] = number if columns[column] is None else combine(columns[column], number)
    for left in (64, 8, 1):
        if len(columns) > left:
            columns = [in_turn(columns[at::left], combine) for at in range(left)]
    return columns[0]


def in_turn(numbers: list[Any], combine: Any) -> Any:
    """None stands for nothing, which changes no number."""
    found = None
    for number in numbers:
        found = number if found is None else found if number is None else combine(found, number)
    return found


def least(a: Any, b: Any) -> Any:
    return a if a != a or a < b or (a == b and np.signbit(a)) else b


def most(a: Any, b: Any) -> Any:
    return a if a != a or a > b or (a == b and not np.signbit(a)) else b


@settings(max_examples=60)
@given(cases())
def test_elements_are_combined_in_the_order_of_the_rule(case: Any) -> None:
    """To the bit, for every element type, over any axes."""
    name, x, axis, keepdims = case
    chosen = range(x.ndim) if axis is None else axis
    axes = merge_axes(x.shape, tuple(n in chosen for n in range(x.ndim)), contiguous=True)
    with np.errstate(all="ignore"):
        expected = by_the_rule(name, x, axes)
    found = getattr(array, name)(from_host(x), axis, keepdims=keepdims).to_host().sync()
    assert found.shape == np.any(x, axis=axis, keepdims=keepdims).shape
    assert same_bits(found.ravel(), expected), (found, expected)


@settings(max_examples=80)
@given(cases(), st.tuples(steps, steps, steps, steps))
def test_values_are_those_of_numpy(case: Any, ranges: Any) -> None:
    """Of inputs with gaps and of reversed ones too, with the bits of a copy; integers wrap in their own type."""
    name, x, axis, keepdims = case
    t = from_host(x).sync()
    part = x[ranges[: x.ndim]]
    if 0 in part.shape:
        return
    reduce = getattr(array, name)
    found = reduce(t.slice(*ranges[: x.ndim]), axis, keepdims=keepdims).to_host().sync()
    assert same_bits(found, reduce(from_host(np.array(part, order="C")), axis, keepdims=keepdims).to_host().sync())
    with np.errstate(all="ignore"):
        if name in ("any", "all") or x.dtype.kind in "iu":
            options = {} if name in ("any", "all", "amin", "amax") else {"dtype": x.dtype}
            expected = getattr(np, name)(
                part != 0 if name in ("any", "all") else part, axis, keepdims=keepdims, **options
            )
            np.testing.assert_array_equal(found, expected, strict=True)
            return
        wide = part.astype(c128 if part.dtype.kind == "c" else f64)
        exact = np.sqrt((abs(wide) * abs(wide)).sum(axis, keepdims=keepdims)) if name == "norm" else getattr(np, name)(
            wide, axis, keepdims=keepdims
        )  # fmt: skip
    if name in ("amin", "amax"):
        np.testing.assert_array_equal(found.astype(f64), exact)
        return
    size = np.abs(wide).max(initial=0)
    if np.isfinite(wide).all() and size**2 * wide.size < 1e4 and name != "prod":
        np.testing.assert_allclose(found.astype(wide.dtype), exact, rtol=2e-2, atol=2e-2 * size)


@settings(max_examples=60)
@given(cases(), st.sampled_from((1, 400, 40_000)), st.sampled_from((1, 40)))
def test_the_parts_in_which_the_host_works_change_nothing(case: Any, nbytes: int, loops: int) -> None:
    """Large inputs are reduced in parts of rows and of spans: the bits are those of the whole."""
    name, x, axis, keepdims = case
    t, reduce = from_host(x).sync().share(), getattr(array, name)
    expected = reduce(t, axis, keepdims=keepdims).to_host().sync()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reduction_kernels, "SMALL", 0)
        patch.setattr(reduction_kernels, "FEW", 0)
        patch.setattr(reduction_kernels, "LOOPS", loops)
        patch.setattr(reduction_kernels, "NBYTES", nbytes)
        assert same_bits(reduce(t, axis, keepdims=keepdims).to_host().sync(), expected)


@pytest.mark.deep
@settings(max_examples=5 if DEEP else 1, phases=(Phase.explicit, Phase.generate))
@given(st.lists(cases(), min_size=8, max_size=8))
def test_the_cuda_text_gives_the_bits_of_the_host_body(drawn: Any) -> None:
    """Every pass, with the threads of a block in two orders, of arrays that vectors fit and of others."""
    passes = []
    for number, (name, x, axis, keepdims) in enumerate(drawn):
        op = getattr(array, name)(from_host(x), axis, keepdims=keepdims)
        launches = [node for node in nodes_of(op) if isinstance(node, Launch)][::-1]
        passes.append((op.to_host().sync(), shifted(x) if number % 2 else x, launches, axis))
    for expected, x, launches, axis in passes:
        chosen = range(x.ndim) if axis is None else axis
        axes = merge_axes(x.shape, tuple(n in chosen for n in range(x.ndim)), contiguous=True)
        now: NDArray[Any] = x.reshape(axes.shape)
        for launch in launches:
            target: Any = launch.args[0]
            alloc, tile = target.source, target.f.tile
            out = np.zeros(alloc.shape, alloc.dtype)
            launch_text(launch.kernel, [out, now, *launch.args[2:]], [tile])
            now = out
        assert same_bits(now.reshape(expected.shape), expected), launches[0].kernel.cuda


@pytest.mark.parametrize("reduced", [(True, False), (False, True)])
@pytest.mark.parametrize(
    "shape", [(16, 3), (16, 5), (300, 1), (1, 300), (31, 2), (3, 31), (300, 7), (7, 300), (64, 1000), (1000, 64)]
)
@pytest.mark.parametrize("nbytes", [16, 1 << 19])
def test_the_order_of_memory_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int], reduced: tuple[bool, bool], nbytes: int
) -> None:
    """Along neighbours in memory NumPy would add in pairs: the host body has the bits of the rule there too."""
    monkeypatch.setattr(reduction_kernels, "NBYTES", nbytes)
    monkeypatch.setattr(reduction_kernels, "SMALL", nbytes)
    x = np.random.default_rng(0).standard_normal(shape, dtype=f32)
    axes = ReducedAxes(shape, reduced)
    order = reduction_order(axes.length, axes.neighbours)
    assert axes.length <= order.span
    body = reduction_kernels.pass_twin("sum", np.dtype(f32), reduced, order, (True, True))
    for array_of in (x, np.asfortranarray(x), x[::-1][::-1], np.repeat(x, 2, 1)[:, ::2]):
        found = np.empty((axes.rows, 1), f32)
        body(found, array_of)
        assert same_bits(found[:, 0], by_the_rule("sum", x, axes))


def test_a_sum_of_negative_zeros_is_one() -> None:
    """As in the order of the rule: no +0 begins it, on the host neither."""
    for shape, axis in (((), None), ((64,), None), ((3, 5000), 1), ((5000, 3), 0), ((40_000,), None)):
        found = array.sum(from_host(np.full(shape, -0.0, f32)), axis).to_host().sync()
        assert not found.any()
        assert np.signbit(found).all()


@given(st.integers(1, NARROW - 1), st.sampled_from((1, 2, 3, 4, 31, 32, 1000)))
def test_positions_fit_in_32_bits_where_indices_do(length: int, neighbours: int) -> None:
    """Also those past the end of a row, which a block looks at and leaves out. Two passes are enough."""
    order = reduction_order(length, neighbours)
    spans = -(-length // order.span)
    step = order.width
    assert -(-length // step) * step < 2**31
    assert (spans - 1) * order.span < length
    after = reduction_order(spans, 1)
    assert spans == 1 or spans <= after.span


# ---- argmin and argmax


@st.composite
def places(draw: st.DrawFn) -> Any:
    """argmin or argmax of an input with equal elements, NaNs among them, along an axis or without one."""
    name, x, _, _ = draw(cases(("amin", "amax")))
    axis = draw(st.one_of(st.none(), st.integers(-x.ndim, x.ndim - 1))) if x.ndim else None
    return f"arg{name[1:]}", x, axis


@settings(max_examples=80)
@given(places(), st.tuples(steps, steps, steps, steps))
def test_places_are_those_of_numpy(case: Any, ranges: Any) -> None:
    """The first of equal elements; of inputs with gaps and of reversed ones too."""
    name, x, axis = case
    part = x[ranges[: x.ndim]]
    if 0 in part.shape:
        return
    found = getattr(array, name)(from_host(x).sync().slice(*ranges[: x.ndim]), axis).to_host().sync()
    wide = part.astype(f32) if part.dtype.itemsize == 2 and part.dtype.kind not in "iu" else part
    np.testing.assert_array_equal(found, getattr(np, name)(wide, axis), strict=True)


@pytest.mark.deep
@settings(max_examples=4 if DEEP else 1, phases=(Phase.explicit, Phase.generate))
@given(st.lists(places(), min_size=8, max_size=8))
def test_the_cuda_text_finds_the_same_places(drawn: Any) -> None:
    """Every pass, with the threads of a block in two orders."""
    found = []
    for name, x, axis in drawn:
        op = getattr(array, name)(from_host(x), axis)
        launches = [node for node in nodes_of(op) if isinstance(node, Launch)][::-1]
        found.append((op.to_host().sync(), x, launches, axis))
    for expected, x, launches, axis in found:
        chosen = range(x.ndim) if axis is None else (axis % x.ndim,)
        axes = merge_axes(x.shape, tuple(n in chosen for n in range(x.ndim)), contiguous=True)
        inputs: list[NDArray[Any]] = [x.reshape(axes.shape)]
        outputs: list[NDArray[Any]] = []
        for launch in launches:
            forms = [param.form for param in launch.kernel.params]
            targets: list[Any] = [arg for arg, form in zip(launch.args, forms, strict=True) if form.is_written]
            outputs = [np.zeros(target.source.shape, target.source.dtype) for target in targets]
            launch_text(launch.kernel, [*outputs, *inputs], [target.f.tile for target in targets])
            inputs = outputs[::-1]
        np.testing.assert_array_equal(outputs[0].reshape(expected.shape), expected, strict=True)


def test_ones_change_no_bit_of_a_complex_product() -> None:
    """Nor does what fills a block up: a product with an infinity or a zero of either sign stays what it is, in the CUDA
    text as on the host."""
    ops, expected = [], []
    for number in (complex(np.inf, 2), complex(-0.0, -3), complex(-0.0, -0.0), complex(0.5, -np.inf)):
        for count in (1, 5, 300):
            x = np.ones(count, c64)
            x[count // 2] = number
            ops.append(array.prod(from_host(x)))
            expected.append(np.array(number, c64))
    for op, wanted in zip(ops, expected, strict=True):
        assert same_bits(op.to_host().sync(), wanted)
        assert same_bits(by_text(op), wanted)
