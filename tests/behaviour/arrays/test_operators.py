"""Operators on ops and tensors: NumPy's values, one kernel for a tree of them, and where a kernel ends."""

import operator
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dagpu import (
    DeviceOp,
    KernelArgumentError,
    MovedError,
    ShapeError,
    array,
    expr,
    f32,
    f64,
    from_host,
    i32,
    ones,
    pipeline,
    plan_of,
    source,
    use_device,
    value,
    zeros,
    zip_ops,
)
from dagpu.kernels.operators import MOST_INPUTS, MOST_OPERATORS
from dagpu.plans.program import Launch
from dagpu.testing import program_of

Op = DeviceOp[Any, Any, Any]


def launches(op: Op) -> int:
    """The number of kernels that a run of an op launches."""
    return sum(isinstance(each, Launch) for each in program_of(op).instructions)


def shared(values: Any, dtype: Any = f32) -> Any:
    return from_host(np.asarray(values, dtype)).sync().share()


def numbers(*shape: int) -> Any:
    return (np.arange(np.prod(shape), dtype=f32).reshape(shape) - 3) / 2


# ---- trees against NumPy

FLOATS: list[Callable[[Any, Any], Any]] = [
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod),
]
TESTS: list[Callable[[Any, Any], Any]] = [
    *(operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne),
]
UNARY: list[Callable[[Any], Any]] = [operator.neg, abs, operator.pos]
BITS: list[Callable[[Any, Any], Any]] = [operator.and_, operator.or_, operator.xor]
SHIFTS: list[Callable[[Any, Any], Any]] = [operator.lshift, operator.rshift]
SHAPES = [(3, 4), (4,), (3, 1), (1,)]


@st.composite
def trees(draw: st.DrawFn, dtype: Any, depth: int = 3) -> Callable[[list[Any]], Any]:
    """A function that makes a tree of operators of four inputs, which are ops, tensors or arrays alike."""
    if depth == 0 or draw(st.integers(0, 4)) == 0:
        place = draw(st.integers(0, len(SHAPES) - 1))
        return lambda inputs: inputs[place]
    inner = draw(trees(dtype, depth - 1))
    match draw(st.integers(0, 3)):
        case 0:
            unary = draw(st.sampled_from(UNARY))
            return lambda inputs: unary(inner(inputs))
        case 1:
            number = dtype(draw(st.sampled_from([-2, 1, 3]))).item()
            compute = draw(st.sampled_from(FLOATS[:3] if dtype is f32 else [*FLOATS[:3], *BITS]))
            if draw(st.booleans()):
                return lambda inputs: compute(number, inner(inputs))
            return lambda inputs: compute(inner(inputs), number)
        case 2:
            exponent = draw(st.sampled_from([1, 2]))
            return lambda inputs: inner(inputs) ** exponent
        case _:
            other = draw(trees(dtype, depth - 1))
            compute = draw(st.sampled_from(FLOATS[:3] if dtype is f32 else [*FLOATS[:3], *BITS]))
            return lambda inputs: compute(inner(inputs), other(inputs))


@given(tree=st.sampled_from([f32, i32]).flatmap(lambda dtype: st.tuples(st.just(dtype), trees(dtype))), data=st.data())
def test_a_tree_is_numpys_to_the_bit(tree: tuple[Any, Any], data: st.DataObject) -> None:
    """Of floats and of whole numbers, which broadcast, some of them ops and some tensors: one kernel, on the host and
    where every order of a run is tried."""
    dtype, compute = tree
    arrays = [np.asarray(numbers(*shape) * 2, dtype) for shape in SHAPES]
    lazy = data.draw(st.lists(st.booleans(), min_size=4, max_size=4))
    held = [shared(each, dtype) for each in arrays]

    def made() -> Any:
        return compute([value(each) if is_op else each for is_op, each in zip(lazy, held, strict=True)])

    with np.errstate(all="ignore"):
        wanted = compute(arrays)
    op = made()
    if not isinstance(op, DeviceOp):
        return  # an input alone
    found = op.to_host().sync()
    assert found.dtype == wanted.dtype
    assert_array_equal(found, np.broadcast_to(wanted, found.shape), strict=True)
    with use_device("explore"):
        there = [from_host(each).sync().share() for each in arrays]
        assert_array_equal(compute(there).to_host().sync(), found)


@pytest.mark.parametrize("compute", [*FLOATS, *TESTS])
def test_each_operator_of_floats(compute: Callable[[Any, Any], Any]) -> None:
    """Of two tensors, and of a number on either side; NaN, infinities and zeros among them."""
    a = np.array([1.5, -2.0, 0.0, -0.0, np.inf, np.nan, 7.0], f32)
    b = np.array([2.0, 3.0, 0.0, 5.0, -1.0, 2.0, -3.0], f32)
    x, y = shared(a), shared(b)
    with np.errstate(all="ignore"):
        for made, wanted in (
            (compute(x, y), compute(a, b)),
            (compute(x, 2), compute(a, f32(2))),
            (compute(2, y), compute(f32(2), b)),
        ):
            assert_array_equal(made.to_host().sync(), wanted, strict=True)
            assert_array_equal(compute(value(x), y).to_host().sync(), compute(a, b))


@pytest.mark.parametrize("compute", [*FLOATS[:3], *FLOATS[4:], *BITS, *SHIFTS, *TESTS])
def test_each_operator_of_whole_numbers(compute: Callable[[Any, Any], Any]) -> None:
    """Also of a NumPy scalar on the left."""
    a, b = np.array([7, -7, 12, 5], i32), np.array([2, 3, 1, 4], i32)
    x, y = shared(a, i32), shared(b, i32)
    assert_array_equal(compute(x, y).to_host().sync(), compute(a, b), strict=True)
    assert_array_equal(compute(i32(9), y).to_host().sync(), compute(i32(9), b), strict=True)
    assert_array_equal((~x).to_host().sync(), ~a)


def test_masks_powers_and_products() -> None:
    """`& | ^ ~` of masks; powers by exponents that are part of the kernel; `@`."""
    a = numbers(3, 4)
    x = shared(a)
    assert_array_equal(((x > 0) & ~(x == 1)).to_host().sync(), (a > 0) & ~(a == 1))
    assert_array_equal(((x > 0) | True).to_host().sync(), np.ones((3, 4), bool))
    for exponent in (0.5, 1, 2, -1):
        with np.errstate(all="ignore"):
            assert_array_equal((x**exponent).to_host().sync(), a ** f32(exponent))
    n = shared([2, 3, -1], i32)
    assert_array_equal((n**3).to_host().sync(), [8, 27, -1])
    with pytest.raises(KernelArgumentError, match="Convert it first: convert"):
        n**-1
    assert_array_equal((x @ x.reshape((4, 3))).to_host().sync(), a @ a.reshape(4, 3))
    assert_array_equal((ones((2, 3)) @ x * 2).to_host().sync(), np.ones((2, 3), f32) @ a * 2)


# ---- where a kernel ends


def test_a_tree_is_one_kernel() -> None:
    """Of five operators, which reads each tensor once; what is no operator ends it: a function, and `shared()`."""
    x, m, s = ones((8,)), zeros((8,)), ones((8,))
    op = ((x - m) / s + 1) * 2
    assert launches(op) == 1
    assert str(op).startswith("<(((a - b) / c) + n) * n at ")
    assert "1  Fill" in op.explain()
    assert launches(array.exp((shared([1.0]) - 1) * 2) + 1) == 3
    kept = (shared([1.0]) + 1).shared()
    assert launches(kept * kept + 1) == 2
    assert launches((shared([1.0]) + 1)[None] * 2) == 2


def test_the_kernel_of_a_tree_reads_a_tensor_once() -> None:
    """`(x - m) / s` with `x` in it twice has one input for it; so has an op."""
    x = shared([1.0, 2.0])
    (launch,) = [i for i in program_of((x - 1) / (x + 1) * x).instructions if isinstance(i, Launch)]
    assert len(launch.reads) == 1
    y = x * 3
    (launch,) = [i for i in program_of((y - y * y) + y).instructions if isinstance(i, Launch)]
    assert len(launch.reads) == 1
    assert launch.kernel.cuda.count(" * x1") == 1  # y itself is computed once
    assert_array_equal(((y - y * y) + y).to_host().sync(), [6 - 9, 12 - 36])


def test_an_op_counts_once_in_a_tree_and_once_in_a_run() -> None:
    """Within one kernel it stands any number of times; across kernels the error says `.shared()`, and that cures it."""
    x = shared([1.0, 2.0])
    y = x + 1
    assert_array_equal((y * y).to_host().sync(), [4, 9])
    for twice in (
        zip_ops(y * 2, y.to_host()),
        zip_ops(y.to_host(), y * 2),
        zip_ops(y * 2, y * 3),
        array.exp(y) * y,
        zip_ops((y + 1) * 2, y),
    ):
        for _ in range(2):
            with pytest.raises(MovedError, match=r"<a \+ n at .*> is used twice in one run.*\.shared\(\)"):
                twice.sync()
    once = (x + 1).shared()
    doubled, plain = zip_ops((once * 2).to_host(), once.to_host()).sync()
    assert_array_equal(doubled, plain * 2)


def test_a_plan_of_two_ops_does_not_serve_one_op_that_is_used_twice() -> None:
    """Though the trees are equal, and their operators stand on one line: the first is right, the second a mistake."""
    x = shared([1.0, 2.0])

    def plus() -> Op:
        return x + 1  # type: ignore[no-any-return]

    def both(one: Op, other: Op) -> Op:
        return zip_ops(one * 2, other.to_host())

    for _ in range(3):
        _, plain = both(plus(), plus()).sync()
        assert_array_equal(plain, [2, 3])
    once = plus()
    with pytest.raises(MovedError, match=r"is used twice in one run"):
        both(once, once).sync()


def test_operands_are_taken_as_inputs() -> None:
    """An owned tensor moves into the op, once in one operator; a shared one and a borrow do not; a mistake moves
    none."""
    t = ones((2,)).sync()
    with pytest.raises(ShapeError):
        t + ones((3,))
    with pytest.raises(KernelArgumentError):
        t + np.ones(2)  # type: ignore[operator]  # reason: refused
    assert_array_equal((t.borrow() + t.borrow()).to_host().sync(), [2, 2])
    squared = t * t
    with pytest.raises(MovedError, match=r"was moved by being passed to operator \* at .*test_operators\.py:\d+"):
        t + 1
    assert_array_equal(squared.to_host().sync(), [1, 1])
    with pytest.raises(MovedError):
        squared.sync()
    m = zeros((2,)).sync()
    assert_array_equal((m.borrow_mut() + 1).to_host().sync(), [1, 1])


def test_a_long_chain_has_kernels_of_bounded_size() -> None:
    """A loop may build any number of operators; a kernel has a bounded number of them, and of inputs."""
    x = op = shared([0.0, 1.0])
    for _ in range(5 * MOST_OPERATORS):
        op = op + 1
    assert 5 <= launches(op) <= 6 + 5 * MOST_OPERATORS // MOST_INPUTS
    assert_array_equal(op.to_host().sync(), [5 * MOST_OPERATORS, 5 * MOST_OPERATORS + 1])
    total: Any = x
    for _ in range(3 * MOST_INPUTS):
        total = total + shared([1.0, 1.0])
    assert launches(total) <= 4
    assert_array_equal(total.to_host().sync(), [48, 49])


# ---- plans, pipelines and sources


def test_runs_find_their_plan_whatever_the_numbers() -> None:
    """The numbers of operators are arguments of the kernel: other numbers have the plan, other exponents do not."""
    x = shared([1.0, 2.0])

    def plan(by: float, exponent: int = 2) -> object:
        op = (x**exponent) * by - 1
        found = op.to_host().sync()
        assert_array_equal(found, np.array([1.0, 2.0], f32) ** exponent * f32(by) - 1)
        return plan_of((x**exponent) * by - 1)

    first = plan(2.0)
    assert plan(3.5) == first
    assert plan(3.5, 3) != first


def test_operators_in_a_pipeline_and_on_sources() -> None:
    """A pipeline's numbers stay arguments on either side; a feed's numbers and tensors change."""

    @pipeline
    def step(w: Any, g: Any, rate: float) -> Op:
        made: Op = w - rate * g * rate
        return made

    w, g = shared([1.0, 2.0]), shared([4.0, 8.0])
    for rate in (0.5, 0.25, 1.0, 2.0):
        assert_array_equal(
            step(w, g, rate).to_host().sync(), np.array([1, 2], f32) - f32(rate) * np.array([4, 8], f32) * f32(rate)
        )
    gain = source(2.0)
    op = (g * gain + 1).to_host()
    assert_array_equal(op.sync(), [9, 17])
    gain.set(3.0)
    assert_array_equal(op.sync(), [13, 25])


def test_an_op_of_a_number_is_an_operand() -> None:
    """What a run computes on the host takes the element type of the tensor beside it."""
    x: Any = ones((4,)).sync().share()
    largest = (x * 3.0).to_host().map(lambda a: float(a.max()))
    for op, expected in ((x * value(2.5), 2.5), (largest - x, 2.0), ((x * 2.0) * value(2) + largest, 7.0)):
        found = op.to_host().sync()
        assert (found.dtype, found.tolist()) == (np.float32, [expected] * 4)


def test_a_number_of_a_run_beside_two_element_types() -> None:
    """One kernel passes a source as one type; with a kernel for each operator it has both, as the error says."""
    x, n, number = shared([1.0, 2.0, 3.0]), shared([3, 2, 1], i32), source(2)
    for least in (number, value(2).shared()):
        assert_array_equal(((x >= least).shared() & (n >= least)).to_host().sync(), [False, True, False])
        with pytest.raises(KernelArgumentError, match=r"as one of f32. Give each a kernel of its own, by .shared\(\)"):
            ((x >= least) & (n >= least)).sync()


def test_what_a_closure_makes_of_its_tensor() -> None:
    """Handles in a function have operators as well, and so has an op whose element type only the run knows."""
    op = ones((4,)).then(lambda t: (t + 1) * 2)
    assert_array_equal((op - 1).to_host().sync(), [3] * 4)
    hidden: Any = ones((4,)).map(lambda t: t)
    assert_array_equal((hidden * 2 + hidden).to_host().sync(), [3] * 4)
    late: Any = zeros((3,), i32).map(lambda t: t)
    with pytest.raises(KernelArgumentError, match=rf"/ at {re.escape(__file__)}:\d+: it does not take elements of i32"):
        (late / 2).sync()


# ---- mistakes


def test_mistakes_name_the_operator_and_its_line() -> None:
    """Known when the op is built, or in its run, in a tree of several lines the line of the operator."""
    x: Any = shared([1.0, 2.0])
    n: Any = shared([1, 2], i32)
    number: Any = source(1.0)
    wrongs: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: x + shared([1.0], f64), KernelArgumentError, "+ at HERE: operands of f32 and f64."),
        (lambda: n * 0.5, KernelArgumentError, "* at HERE: the number 0.5 does not fit i32"),
        (
            lambda: n % 2**40,
            KernelArgumentError,
            "does not fit i32, the type of the tensor beside it. Convert that tensor first: convert(t, i64).",
        ),
        (lambda: n & 0.5, KernelArgumentError, "does not fit i32, the type of the tensor beside it. Give one that it"),
        (
            lambda: x * 1e39,
            KernelArgumentError,
            "does not fit f32, the type of the tensor beside it. Convert that tensor first: convert(t, f64).",
        ),
        (lambda: x * 1j, KernelArgumentError, "convert(t, c64)."),
        (lambda: shared([1.0], f64) * 1j, KernelArgumentError, "convert(t, c128)."),
        (lambda: x + True, KernelArgumentError, "the type of the tensor beside it. Write it as a number: 1."),
        (lambda: (x > 0) & 1, KernelArgumentError, "Write it as a truth value: True."),
        (lambda: (x > 0) & 2, KernelArgumentError, "convert(t, i32)."),
        (lambda: n / 2, KernelArgumentError, "divide whole numbers by //"),
        (lambda: (x > 0) + 1, KernelArgumentError, "for masks there are & | ^ ~"),
        (lambda: ~x, KernelArgumentError, "~ at HERE: it does not take elements of f32. Compare it first, t > 0"),
        (lambda: x & x, KernelArgumentError, "& at HERE: it does not take elements of f32"),
        (lambda: x << 1, KernelArgumentError, "<< at HERE"),
        (lambda: x + zeros((3,)), ShapeError, "operators at HERE: shapes (2,), (3,) do not broadcast"),
        (lambda: x + np.ones(2), KernelArgumentError, "Bring it to the device: from_host(array)"),
        (lambda: np.ones(2) == x, KernelArgumentError, "Bring it to the device: from_host(array)"),
        (lambda: [1.0, 2.0] * x, KernelArgumentError, "from_host(np.asarray(...))"),
        (lambda: x + zeros((2,)).sync().partition((1,)), KernelArgumentError, "Put it together: .unpartition()"),
        (lambda: number * 2, KernelArgumentError, "operator * at HERE: its operands are numbers alone"),
        (lambda: x + "text", TypeError, "unsupported operand"),
        (lambda: pow(n, 2, 3), KernelArgumentError, "pow() at HERE has three arguments. Say x ** y % n."),
        (lambda: ((x > number) & (n > number)).sync(), KernelArgumentError, "> at HERE: its number is of i32"),
        (lambda: expr(f32)(lambda e: e + x), TypeError, "Give it elements of one expression"),
        (lambda: bool(x == x), TypeError, "neither true nor false"),
        (lambda: 1.0 in [x, x], TypeError, "neither true nor false"),
    ]
    here = re.escape(__file__) + r":\d+"
    for wrong, kind, says in wrongs:
        with pytest.raises(kind, match=re.escape(says).replace("HERE", here)):
            wrong()
    assert x in [x, 1]
    assert x is not None
    assert (x == None) is False  # noqa: E711  # reason: that is the question


def test_operands_of_which_only_the_run_knows_that_none_is_a_tensor() -> None:
    """An array that came to the host, several results, and a number: the operator is named, with the cures."""
    x: Any = shared([1.0, 2.0])
    pair: Any = zip_ops(x + 0, x + 1)
    number: Any = value(3)
    for op in (x.to_host() + 1, -x.to_host(), pair * 2, number + 1):
        with pytest.raises(
            KernelArgumentError, match=rf"at {re.escape(__file__)}:\d+: no operand is a tensor, nor an op"
        ):
            op.sync()


def test_comparing_with_what_is_no_operand() -> None:
    """Text and None differ from any tensor, as Python says of two objects."""
    t: Any = ones((2,)).sync()
    for other in (None, "text", [1.0], object()):
        assert partial(operator.ne, t)(other) is True
        assert partial(operator.eq, other)(t) is False
