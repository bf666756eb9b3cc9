"""A gradient is never 0 without a reason: what has no rule is refused, whatever node or instruction it goes through."""

import gc
from collections.abc import Callable
from dataclasses import fields
from typing import Any, get_args, get_origin

import numpy as np
import pytest
from numpy.typing import NDArray

from dagpu import (
    GradientError,
    In,
    Out,
    SharedTensor,
    Tensor,
    Tile,
    array,
    c128,
    cutoff,
    dup,
    empty,
    expr,
    f64,
    fill,
    from_host,
    kernel,
    memcpy,
    pipeline,
    value,
    zeros,
    zip_ops,
)
from dagpu.grad import gradient_of, stop_gradient, value_and_grad
from dagpu.ops.nodes import Node
from dagpu.plans import program


@kernel(cuda="__global__ void twice(Tile<double, 1> y, View<const double, 1> x) { for (auto i : y) y[i] = 2 * x[i]; }")
def twice(y: Out[f64], x: In[f64]) -> None: ...


@twice.host
def _(y: Tile[f64], x: NDArray[f64]) -> None:
    y[...] = 2 * x[y.at]


square = expr(f64)(lambda x: x * x)
plus = expr(f64, f64)(lambda x, y: x + y)
times = expr(f64, f64)(lambda x, y: x * y)
VALUES = np.arange(1.0, 5.0)


def leaf() -> Any:
    return from_host(VALUES).sync().share()


def launched(x: Any) -> Any:
    return twice(empty((4,), f64).partition((4,)), x).first().unpartition()


def copied_into(x: Any) -> Any:
    """A copy to memory that exists already."""

    def copy(t: Any) -> Any:
        return memcpy(t.borrow_mut(), x).map(lambda _: t)

    return empty((4,), f64).then(copy)


BY_NODE: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "Value": (lambda x: value(x), 1 + 0 * VALUES),
    "Then": (lambda x: array.exp(x).then(array.log), 1 + 0 * VALUES),
    "Map": (lambda x: square(x).map(lambda t: t.reshape((2, 2))), 2 * VALUES),
    "Zip": (lambda x: zip_ops(square(x), array.exp(x)).first(), 2 * VALUES),
    "Unzip": (lambda x: plus(*zip_ops(square(x), square(x)).unzip()), 4 * VALUES),
    "Shared": (lambda x: square(x).shared().then(lambda y: times(y, y)), 4 * VALUES**3),
    "On": (lambda x: square(x).on("host"), 2 * VALUES),
    "Cutoff": (lambda x: cutoff(square(x).shared()), 2 * VALUES),
    "Alloc": (lambda x: plus(zeros((4,), f64), x), 1 + 0 * VALUES),
    "FromHost": (lambda x: times(from_host(VALUES), x), VALUES),
    "Copy": (copied_into, None),
    "Launch": (launched, None),
    "ToHost": (lambda x: square(x).to_host().then(from_host), None),
    "HostCall": (lambda x: square(x).to_host().host_map(lambda a: 2 * a).then(from_host), None),
}
"""For each node a function by way of it, and its gradient; None for one that is refused."""
ELSEWHERE = {"GraphLaunch": "its instruction reads memory like any other", "Source": "a source holds data of the host"}


@pytest.mark.parametrize("name", [each.__name__ for each in (get_origin(n) or n for n in get_args(Node))])
def test_each_node(name: str) -> None:
    """By way of each node the gradient is right or refused, with the place of the call in the message."""
    if name in ELSEWHERE:
        return
    function, expected = BY_NODE[name]
    op = value_and_grad(lambda x: array.sum(function(x)))(leaf())
    if expected is None:
        with pytest.raises(GradientError, match=r"test_never_zero.py:\d+.*(stop_gradient|its gradient would be 0)"):
            op.sync()
    else:
        np.testing.assert_allclose(op.sync()[1].to_host().sync(), expected)


def test_each_instruction_says_what_it_reads_and_writes() -> None:
    """The check goes by the memory of instructions: each kind has these, so none can be overlooked."""
    kinds = get_args(program.Instruction)
    assert len(kinds) >= 7
    for kind in kinds:
        assert {"reads", "writes", "origin"} <= {each.name for each in fields(kind)}


def refused(function: Callable[[Any], Any], match: str) -> None:
    with pytest.raises(GradientError, match=match):
        value_and_grad(function)(leaf()).sync()


def largest(x: Any) -> Any:
    """A call without a rule."""
    return array.scatter_max(zeros((4,), f64), from_host(np.arange(4)), x)


def test_calls_without_a_rule_are_named() -> None:
    """A kernel's `new`, transforms, a function without a rule: each is named with its place, and nothing runs."""
    refused(lambda x: array.sum(twice.new((4,), (4,))(x)), r"kernel 'twice' at .*test_never_zero.py:\d+ has no")
    refused(lambda x: array.sum(largest(x)), r"array.scatter_max at .* has no derivative")
    refused(lambda x: array.sum(expr(f64, f64)(lambda a, b: array.nextafter(a, b))(x, 1.0)), "nextafter has no")


def test_an_op_from_outside_is_refused_where_it_reads_a_leaf() -> None:
    """The calls of an op that was built before are not recorded: it is data, unless it reads a leaf."""
    x = leaf()
    before, data = array.exp(x), array.exp(from_host(VALUES))
    with pytest.raises(GradientError, match=r"kernel 'exp' at .* reads what is differentiated"):
        value_and_grad(lambda x: array.sum(before))(x).sync()
    _, g = value_and_grad(lambda x: array.sum(times(data, x)))(x).sync()
    np.testing.assert_allclose(g.to_host().sync(), np.exp(VALUES))


def test_a_value_that_is_written_over_is_refused_before_anything_runs() -> None:
    """The rule of a square reads its argument, which an update has written over: both places, and a cure that works."""

    def loss(x: Any, keep: bool) -> Any:
        def go_on(t: Any) -> Any:
            def change(s: Any) -> Any:
                kept = dup(t) if keep else value(t)
                changed = kept.then(lambda t: times.update(t.partition((4,)), 2.0).first().unpartition())
                return changed.then(array.sum).then(lambda r: plus(r, s))

            return array.sum(square(t.borrow())).then(change)

        return array.sin(x).then(go_on)

    refused(
        lambda x: loss(x, keep=False), r"an expression at .*test_never_zero.py:\d+ is differentiated by .* but an ex"
    )
    _, g = value_and_grad(lambda x: loss(x, keep=True))(leaf()).sync()
    np.testing.assert_allclose(g.to_host().sync(), (2 * np.sin(VALUES) + 2) * np.cos(VALUES))


def test_a_write_that_no_rule_knows() -> None:
    """A value of which a kernel has written anything is not differentiated; one that is filled anew is a constant."""

    def written(x: Any) -> Any:
        return (
            square(x).then(lambda t: twice(t.partition((4,)), from_host(VALUES)).first().unpartition()).then(array.sum)
        )

    refused(written, r"array.sum at .* reads a value that kernel 'twice' at .* has written to")
    _, g = value_and_grad(lambda x: square(x).then(lambda t: fill(t, 3.0)).then(array.sum))(leaf()).sync()
    assert g.to_host().sync().tolist() == [0.0] * 4


def test_leaves_that_cannot_have_a_gradient() -> None:
    """Integers, memory that is two leaves, what is no shared tensor, and a value of several elements."""
    with pytest.raises(TypeError, match="elements of int64, which has no derivative"):
        value_and_grad(lambda x: array.sum(x))(from_host(np.arange(3)).sync().share())
    x = leaf()
    with pytest.raises(GradientError, match=r"two leaves .* are one memory"):
        value_and_grad(lambda m: array.sum(m[0]))((x, x)).sync()
    unchecked: Any = value(1)
    with pytest.raises(TypeError, match="shared tensors are wanted"):
        value_and_grad(lambda x: array.sum(x))(unchecked)
    refused(lambda x: array.exp(x), r"with the shape \(4,\), but a gradient is that of one element. Add them up")
    refused(lambda x: array.argmax(x), "gives a tensor of int64")


def test_stop_gradient() -> None:
    """What is stopped is a constant, and may go to the host; elsewhere the function is its argument."""
    _, g = value_and_grad(lambda x: array.sum(times(x, stop_gradient(x))))(leaf()).sync()
    assert g.to_host().sync().tolist() == VALUES.tolist()
    seen: list[Any] = []

    def watched(x: Any) -> Any:
        return stop_gradient(x).to_host().map(seen.append).then(lambda _: array.sum(square(x)))

    _, g = value_and_grad(watched)(leaf()).sync()
    assert g.to_host().sync().tolist() == (2 * VALUES).tolist()
    assert seen[0].tolist() == VALUES.tolist()
    assert stop_gradient(leaf()).to_host().sync().tolist() == VALUES.tolist()


def test_a_refused_gradient_leaves_its_arguments_as_they_were() -> None:
    """An owned tensor among the arguments is still there after a refusal, which happens before anything runs."""
    data = from_host(VALUES).sync()
    op = value_and_grad(lambda x, d: array.sum(times(largest(x), d)))(leaf(), data.borrow())
    with pytest.raises(GradientError):
        op.sync()
    assert data.to_host().sync().tolist() == VALUES.tolist()


# ---- parts of a memory, and what runs elsewhere


LONG = np.arange(1.0, 13.0)


def gradient(function: Callable[[Any], Any], x: Any) -> Any:
    """The gradient of a function by a tensor, as an array."""
    return value_and_grad(function)(x).sync()[1].to_host().sync()


PARTS: dict[str, Callable[[Any], Any]] = {
    "a front": lambda t: t[:4],
    "a back": lambda t: t[8:],
    "reversed": lambda t: t[::-1],
    "every other": lambda t: t[1::2],
    "a column": lambda t: t.reshape((3, 4))[:, 1],
    "a block, turned": lambda t: t.reshape((3, 4))[::2, ::-1],
}


@pytest.mark.parametrize("name", PARTS)
def test_a_leaf_that_is_a_part(name: str) -> None:
    """Its gradient has its elements in its order, whatever else reads the same memory."""
    whole, part = from_host(LONG).sync().share(), PARTS[name]
    x: Any = part(LONG)
    np.testing.assert_array_equal(gradient(lambda t: array.sum(t * t * t), part(whole)), 3 * x * x)
    beside = part(from_host(LONG).sync().share())
    np.testing.assert_array_equal(gradient(lambda t: array.sum(t * beside), part(whole)), x)
    later = 3.0 * (np.indices(x.shape)[0] > 0)
    np.testing.assert_array_equal(gradient(lambda t: array.sum(t[1:] * 3.0), part(whole)), later)


def test_memory_beside_a_leaf_is_a_constant() -> None:
    """Parameters that lie in one memory do not see each other's gradients."""
    packed = from_host(LONG).sync().share()
    np.testing.assert_array_equal(gradient(lambda w: array.sum(w * packed[4:8]), packed[:4]), LONG[4:8])
    np.testing.assert_array_equal(gradient(lambda w: array.sum(packed[4:] * packed[4:]), packed[:4]), np.zeros(4))


@pipeline
def of_squares(x: SharedTensor[f64]) -> Any:
    return array.sum(square(x))


@pipeline
def squares(x: Tensor[f64]) -> Any:
    return square(x)


def test_a_pipeline_within_what_is_differentiated() -> None:
    """A part that has a plan of its own is recorded with all the rest."""
    np.testing.assert_array_equal(gradient(of_squares, leaf()), 2 * VALUES)
    found = gradient(lambda x: array.sum(times(times(x, 2.0).then(squares), x)), leaf())
    np.testing.assert_array_equal(found, 12 * VALUES**2)


def test_what_a_rule_cannot_see_is_refused() -> None:
    """A tensor that a function with a rule reaches in a closure, and bits that are read as another type."""
    scaled = gradient_of(lambda x, by: times(x, by()))(lambda g, y, x, by: (g, None))
    other = leaf()
    refused_of = value_and_grad(lambda m: array.sum(scaled(m[0], lambda: m[1])))
    with pytest.raises(GradientError, match="reads what is differentiated beside its arguments"):
        refused_of((leaf(), other)).sync()
    refused(lambda x: array.sum(array.abs(square(x).map(lambda t: t.view(c128)))), "reads the bits of what")
    refused(lambda x: array.sum(array.abs(x.view(c128))), "reads the bits of what is differentiated as another type")


def test_a_part_that_is_written_is_no_constant() -> None:
    """A fill of a part, and a result that is written in another order than that of its memory, are refused."""

    def part_filled(t: Any) -> Any:
        return fill(t.borrow_mut()[:2], 3.0).map(lambda _: t)

    refused(lambda x: array.sum(square(x).then(part_filled)), "reads a value that a fill at .* has written to")

    def turned(z: Any, x: Any) -> Any:
        return square.into(z.borrow_mut()[::-1].partition((4,)), x).then(lambda _: array.sum(z.borrow()[:2]))

    refused(lambda x: zeros((4,), f64).then(lambda z: turned(z, x)), "or not in the order of its memory")


def test_what_has_no_elements_gives_0_with_a_reason() -> None:
    """A call that makes a tensor without elements reads nothing: what is added up of it depends on no argument."""
    functions: list[Any] = [
        lambda x: array.sum(x[4:] * x[4:]), lambda x: array.prod(x[:0]), lambda x: array.sum(array.cumsum(x[:0])),
        lambda x: array.sum(array.exp(x[:0]).reshape((0, 3))), lambda x: array.sum(array.pad(x[:0], 1)),
        lambda x: array.sum(array.take(x, from_host(np.zeros(0, np.int64)))),
    ]  # fmt: skip
    for function in functions:
        _, g = value_and_grad(function)(leaf()).sync()
        assert g.to_host().sync().tolist() == [0.0] * 4
    _, g = value_and_grad(lambda x: array.sum(array.concatenate([x[:0], x])))(leaf()).sync()
    assert g.to_host().sync().tolist() == [1.0] * 4


def test_a_refused_gradient_lets_go_of_its_leaf() -> None:
    """At once, without the garbage collector, also where the trace has a second stage: the leaf may be unwrapped."""
    refused: list[Callable[[Any], Any]] = [
        array.unique,
        lambda x: array.unique(array.compress(stop_gradient(x) > 0, x)),
        lambda x: x.to_host().host_map(np.tanh).then(from_host),
    ]
    gc.disable()
    try:
        for f in refused:
            x: Any = from_host(np.array([1.0, -1.0])).sync().share()
            with pytest.raises(GradientError) as caught:
                value_and_grad(lambda x, f=f: array.sum(f(x)))(x).sync()
            del caught
            assert x.try_unwrap().shape == (2,)
    finally:
        gc.enable()
