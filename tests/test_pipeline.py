"""Pipelines: a call gives what the function gives, whatever earlier calls have left.

Whether the function was called is counted; that the device was given a graph is tested with the CUDA backend.
"""

import gc
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, final
from unittest.mock import patch

import numpy as np
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import (
    BorrowError,
    KernelArgumentError,
    MovedError,
    NotReadyError,
    Out,
    OwnershipError,
    RoundRobin,
    StreamInterpreter,
    Tensor,
    TensorMut,
    Tile,
    current_device,
    device,
    dup,
    empty,
    f32,
    fill,
    from_host,
    full,
    kernel,
    memcpy,
    ones,
    pipeline,
    plan_of,
    spawn,
    trace,
    use_device,
    use_interpreter,
    value,
    zeros,
    zip_ops,
)
from dagpu.backends.explore import exploring
from dagpu.handles import made_at, move_in
from dagpu.lowering.program import Program, Role
from dagpu.lowering.reuse import Bound
from dagpu.ownership import Undo, storage_of
from dagpu.runtime import kept
from dagpu.runtime.kept import plans
from dagpu.storage import Locks
from tests.arithmetic import add, axpy, scale
from tests.expressions import Building, Evaluation, Expr, Op, Shape2, bits, build, evaluate
from tests.places import place
from tests.strategies import expressions, shapes

S = (2, 2)
PATIENCE = 30.0
"""Seconds after which a test calls it a hang."""


@pytest.fixture(autouse=True)
def no_plans_yet() -> Iterator[None]:
    """Whatever ran before has left nothing that an op of the same structure would find, and warned of nothing."""
    plans.clear()
    kept._warned.clear()  # noqa: SLF001  # a warning comes once in a process
    yield
    plans.clear()


def out(shape: tuple[int, ...] = S) -> Op:
    return empty(shape).partition(shape)


def tensor(number: float = 0.0, shape: tuple[int, ...] = S) -> Any:
    return full(shape, number).sync()


def shared(number: float = 0.0, shape: tuple[int, ...] = S) -> Any:
    return full(shape, number).share().sync()


def scaled(by: Any, x: Any) -> Op:
    return scale(out(), by, x).first().unpartition()


def added(x: Any, y: Any) -> Op:
    return add(out(), x, y).first().unpartition()


def number_in(handle: Any) -> float:
    """The first element of a tensor, which stays alive."""
    borrowed = handle.borrow() if hasattr(handle, "borrow") else handle
    return float(borrowed.to_host().sync().flat[0])


@final
class Calls:
    """A pipeline that counts how often its function is called."""

    def __init__(self, f: Callable[..., Op], **options: Any) -> None:
        self.count = 0

        def counted(*arguments: Any, **named: Any) -> Op:
            self.count += 1
            return f(*arguments, **named)

        self.pipeline: Any = pipeline(**options)(counted)

    def __call__(self, *arguments: Any, **named: Any) -> Op:
        op: Op = self.pipeline(*arguments, **named)
        return op


# ---- laws


@st.composite
def programs(draw: st.DrawFn) -> tuple[Shape2, Expr]:
    """A shape, and a DAG over five inputs of that shape."""
    shape = draw(shapes)
    return shape, draw(expressions(shape, 3, (shape,) * 5, writes=False, borrows=False))


class Inputs(NamedTuple):
    """What a call brings: contents of three inputs, a number for a kernel, one for a creation op."""

    contents: tuple[int, int, int]
    a: float
    n: int


inputs = st.builds(Inputs, st.tuples(*[st.integers(-5, 5)] * 3), st.sampled_from([2.0, -1.0, 0.0]), st.integers(0, 1))


def array(shape: Shape2, seed: int) -> Any:
    return ((np.arange(shape[0] * shape[1]) * 3 + seed) % 7 - 3).astype(f32).reshape(shape)


@settings(max_examples=60)
@given(programs(), st.lists(inputs, min_size=3, max_size=4))
def test_a_call_gives_what_numpy_gives(program: tuple[Shape2, Expr], calls: list[Inputs]) -> None:
    """Any DAG as a pipeline: each call gives NumPy's result for its own contents, tensors and numbers, to the bit."""
    shape, e = program

    @pipeline
    def f(t: Any, lent: Any, others: dict[str, Any], a: float, n: int) -> Op:
        ops = [
            t.share(),
            lent,
            from_host(others["array"]).on(place(0)).shared(),
            scale(out(shape), a, lent).first().unpartition().on(place(0)).shared(),
            full(shape, n).on(place(0)).shared(),
        ]
        return build(e, Building(scope=[(op if hasattr(op, "sync") else value(op), 0) for op in ops])).to_host()

    for contents, a, n in calls:
        x, y, z = (array(shape, seed) for seed in contents)
        lender = from_host(y).sync()
        found = f(from_host(x).sync(), lender.borrow(), {"array": z}, a, n).sync()
        product = np.fmod(f32(a) * y, f32(64)) + f32(0)
        assert bits(found) == bits(evaluate(e, Evaluation(scope=[x, y, z, product, np.full(shape, n, f32)])))
        assert bits(lender.to_host().sync()) == bits(y)


def test_a_call_is_the_function() -> None:
    """`p(x)` is `value(x).then(f)`: the same result, and the same arguments are used up."""

    def f(pair: tuple[Any, Any]) -> Op:
        return axpy(pair[0].partition(S), 2.0, pair[1]).first().unpartition()

    p = pipeline(f)
    x = shared(3)
    for _ in range(3):
        t, u = tensor(1), tensor(1)
        assert number_in(p((t, x)).sync()) == number_in(value((u, x)).then(f).sync()) == 7
        for used in (t, u):
            with pytest.raises(MovedError, match=r"pipeline f\(\)|value\(\)"):
                used.borrow()


# ---- when the function is called


def test_the_function_is_called_once_for_each_combination() -> None:
    """Of shapes, element types, devices and kinds; never for contents, addresses and numbers that kernels take."""
    p = Calls(lambda x, a, h: add(out(x.shape), scale(out(x.shape), a, x).first().unpartition(), from_host(h)).first())
    for k in range(4):
        for n in (2, 4):
            shape = (n, n)
            assert number_in(p(shared(k, shape), float(k), np.full(shape, k, f32)).sync().unpartition()) == k * k + k
    assert p.count == 2
    assert p.pipeline.cache_info() == (6, 2, 32, 2)
    p(tensor(1).borrow(), 1.0, np.ones(S, f32)).sync()
    p(shared(1), 1, np.ones(S, f32)).sync()
    with use_device(place(1)):
        p(shared(1), 1.0, np.ones(S, f32)).sync()
    assert p.count == (5 if device(place(1)) is not current_device() else 4)
    p.pipeline.cache_clear()
    assert p.pipeline.cache_info() == (0, 0, 32, 0)


def test_the_same_call_may_run_again() -> None:
    """A call is an op: it may run any number of times where it owns nothing, with the trace of its first run."""
    h = np.ones(S, f32)
    p = Calls(lambda x, h: added(x, from_host(h)).to_host())
    op = p(shared(2), h)
    for k in range(3):
        h[...] = k
        assert op.sync()[0, 0] == 2 + k
    assert p.count == 1


def matched(k: Any) -> Op:
    """Another result for each type."""
    match k:
        case float():
            return full(S, 1)
        case int():
            return full(S, 2)
        case _:
            raise AssertionError(k)


READ: dict[str, tuple[Callable[[Any], Op], list[Any], int]] = {
    "a shape": (lambda n: ones((n, n)), [1, 2, 1, 2], 2),
    "a branch": (lambda a: ones(S) if a > 0 else zeros(S), [1.0, 2.0, -1.0, 1.0, -1.0], 3),
    "a recipe": (lambda a: full(S, a), [0.0, -0.0, 1.0, 0.0, -0.0], 3),
    "the sign of a zero": (lambda a: full(S, np.copysign(1.0, a)), [0.0, -0.0, 0.0, -0.0], 2),
    "a tile": (
        lambda n: axpy(zeros((4, 4)).partition((n, n)), 1.0, ones((4, 4))).first().unpartition(),
        [1, 2, 4, 1],
        3,
    ),
    "arithmetic": (lambda a: scaled(a * 2 + 1, ones(S)), [1.0, 2.0, 1.0], 2),
    "a slice": (lambda n: ones((4, 4)).then(lambda t: dup(t.slice(slice(0, n)))), [1, 2, 1], 2),
    "a closure": (lambda n: ones(S).map(lambda t: t.reshape((n, 4 // n))), [1, 2, 4, 2], 3),
    "a host function": (lambda n: ones(S).to_host().host_map(lambda x: x * n).then(from_host), [1, 2, 1], 3),
    "the end of a host function": (lambda n: ones(S).to_host().host_map(lambda x: (x * n, n)), [1, 2, 1, 2], 2),
    "int and float": (lambda n: full(S, n / 2), [1, 1.0, 1], 2),
    "True is no 1": (lambda n: full(S, 5) if n is True else full(S, 6), [1, True, 1, True], 2),
    "isinstance": (lambda k: full(S, 1) if isinstance(k, float) else full(S, 2), [1, 1.0, 2, 2.0], 2),
    "a match on a class": (matched, [1, 1.0, 2, 2.0], 2),
    "a NumPy number": (lambda n: scaled(n, ones(S)), [f32(2), f32(3), f32(2)], 2),
    "a text": (lambda n: full(S, len(n)), ["a", "bc", "a"], 2),
}
"""A function, its argument in one call after the other, and how many traces that takes."""


def bits_of(result: Any) -> Any:
    if isinstance(result, tuple):
        return tuple(map(bits_of, result))
    if isinstance(result, np.ndarray):
        return bits(result)
    return (type(result), result) if isinstance(result, int | float) else bits(result.to_host().sync())


@pytest.mark.parametrize("name", READ)
def test_what_is_read_is_no_constant(name: str) -> None:
    """A number that the function looks at makes a plan for its value: no call gets another value's result."""
    f, arguments, traces = READ[name]
    p = Calls(f)
    found = [bits_of(p(argument).sync()) for argument in arguments]
    assert found == [bits_of(value(argument).then(f).sync()) for argument in arguments]
    assert p.count == traces


def test_the_type_of_a_number_is_asked_for_by_isinstance() -> None:
    """`type(k)` is that of the stand-in: a function that asks so gets its `else`, and the docstring says what to ask
    instead."""
    p = pipeline(lambda k: full(S, 1) if type(k) is float else full(S, 2))
    assert number_in(p(1.0).sync()) == 2
    assert pipeline.__doc__ is not None
    assert "Ask for its type with `isinstance(k, float)`" in pipeline.__doc__


def test_numbers_anywhere() -> None:
    """In tuples, lists, dicts, named tuples, and by name: each reaches its own parameter, in each call."""

    class Pair(NamedTuple):
        left: Any
        right: Any

    def f(a: Any, b: Any, *, c: Any) -> Op:
        ops = [scaled(x, ones(S)).to_host() for x in (a[0], a[1][0], b["x"].left, b["x"].right, c)]
        return zip_ops(*ops, value((a, b, c)))

    p = Calls(f)
    for k in range(3):
        arguments = (1.0 + k, [2.0 + k]), {"x": Pair(3.0 + k, 4.0 + k)}
        *arrays, given_back = p(*arguments, c=5.0 + k).sync()
        assert [x[0, 0] for x in arrays] == [1 + k, 2 + k, 3 + k, 4 + k, 5 + k]
        assert given_back == (*arguments, 5.0 + k)
        assert type(given_back[2]) is float
        assert type(given_back[1]["x"]) is Pair
    assert p.count == 3  # a list in a result is a new one each time, made by a trace


def test_a_number_that_no_kernel_takes_is_refused() -> None:
    """In each call, as in the first: what is wrong, with which argument, where, and nothing is used up."""
    p = Calls(lambda t, a: axpy(t.partition(S), a, ones(S)).first().unpartition())
    wrong = p(tensor(), 1e60)
    with pytest.raises(KernelArgumentError) as first:
        wrong.sync()
    t = p(tensor(), 1.0).sync()
    op = p(t, 1e60)
    with pytest.raises(KernelArgumentError) as second:
        op.sync()
    assert str(first.value) == str(second.value)
    assert f"Called at {__file__}" in str(second.value)


def test_contents_of_an_array_are_not_there() -> None:
    """The plan serves other arrays too: the error says so, where the pipeline was called, and how to mend it."""
    p = Calls(lambda h: full(S, float(h[0, 0])))
    with pytest.raises(NotReadyError, match="from_host") as caught:
        p(np.ones(S, f32)).sync()
    assert any("in pipeline" in note and __file__ in note for note in caught.value.__notes__)


def first_in(held: Any) -> Any:
    """The first item in the first item, and so on."""
    while isinstance(held, list | tuple | dict):
        held = next(iter(held.values())) if isinstance(held, dict) else held[0]
    return held


def containers_in(held: Any) -> Iterator[Any]:
    """Each list and dict in the first item of the first item, and so on."""
    while isinstance(held, list | tuple | dict):
        if not isinstance(held, tuple):
            yield held
        held = next(iter(held.values())) if isinstance(held, dict) else held[0]


CHANGED: dict[str, Callable[[Any], Any]] = {
    "a list": lambda inner: inner,
    "a dict": lambda inner: {"a": inner[0]},
    "a list in a tuple": lambda inner: (inner, 1),
    "a dict in a tuple": lambda inner: ({"a": inner[0]}, 1),
    "a list in a dict": lambda inner: {"a": inner},
    "a dict in a dict": lambda inner: {"a": {"a": inner[0]}},
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_call_has_its_containers_to_itself(name: str) -> None:
    """What becomes of a list or dict after the call is of no consequence to any run of it: the call keeps its items, as
    it keeps what moved into it."""
    p = Calls(lambda held: scaled(2.0, first_in(held)).to_host())
    inner: Any = [shared(1)]
    held = CHANGED[name](inner)
    containers, op = list(containers_in(held)), p(held)
    for k in range(2, 6):
        for container in containers:
            container["a" if isinstance(container, dict) else 0] = shared(k)
        assert op.sync()[0, 0] == 2
    assert p.count == 1


def test_an_array_that_changes_its_shape_in_place() -> None:
    """Whatever the function did with the shape is done anew, even where nothing is copied from the array."""
    p = Calls(lambda h: full((2,), h.shape[0]).to_host())
    h = np.zeros(4, f32)
    op = p(h)
    assert op.sync()[0] == 4
    h.resize((2, 2), refcheck=False)
    assert op.sync()[0] == 2
    assert p(h).sync()[0] == 2


def test_other_arguments_make_it_a_plain_function() -> None:
    """An op, a function, an object: the function is called for each run, and is right; `misses` counts that."""
    p = Calls(lambda x, f: f(x))
    for k in range(3):
        with nullcontext() if k else pytest.warns(RuntimeWarning, match="a value of type Alloc, by which no plan"):
            assert number_in(p(full(S, k), lambda op: op).sync()) == k
    assert p.count == 3
    assert p.pipeline.cache_info() == (0, 3, 32, 0)


@dataclass
class Setting:
    """What can be changed in place."""

    number: float = 2.0


def deep(depth: int) -> Any:
    """A number in so many tuples."""
    found: Any = 1.0
    for _ in range(depth):
        found = (found,)
    return found


ODD: dict[str, tuple[Any, str]] = {
    "a dataclass": (Setting(), "a value of type Setting"),
    "a set": ({1, 2}, "a value of type set"),
    "a function": (len, "a value of type builtin_function_or_method"),
    "an op": (ones(S), "a value of type Alloc"),
    "an object in a list": ([Setting()], "a value of type Setting"),
    "a dict by objects": ({(1, 2): 1}, "a value of type dict whose keys are not all numbers and texts"),
    "deep tuples": (deep(40), "tuples, lists or dicts more than 20 deep"),
}


@pytest.mark.parametrize("name", ODD)
def test_an_argument_by_which_no_plan_is_found_is_no_secret(name: str) -> None:
    """A warning says once for each place which pipeline was called where, with what, and the cure; which works. Each
    run calls the function, and counts as a miss."""
    argument, what = ODD[name]
    p = Calls(lambda x, a: scaled(2.0, x))

    def call(k: int) -> float:
        return number_in(p.pipeline(shared(k), argument).sync())

    with pytest.warns(RuntimeWarning) as warned:
        assert [call(k) for k in range(3)] == [0, 2, 4]
    (warning,) = warned
    said = str(warning.message)
    assert f"<pipeline counted at {__file__}" in said
    assert f"called at {warning.filename}:{warning.lineno}, got {what}, by which no plan can be found" in said
    assert warning.filename == __file__
    assert p.pipeline.cache_info() == (0, 3, 32, 0)
    cured = Calls(lambda x: scaled(2.0, x) if argument is not None else x)
    for k in range(3):
        assert number_in(cured(shared(k)).sync()) == 2 * k
    assert cured.pipeline.cache_info() == (2, 1, 32, 1)


def test_misses_count_the_calls_of_the_function() -> None:
    """Of the outer function, of one within it, and where closures around the call keep a plan from being found."""
    inner = Calls(lambda x: scaled(2.0, x))
    outer = Calls(lambda x: added(inner(x), inner(x)))
    for k in range(3):
        outer(shared(k)).sync()
        outer(shared(k)).map(lambda t: t).sync()
    assert outer.pipeline.cache_info()[:2] == (2, outer.count) == (2, 4)
    assert inner.pipeline.cache_info()[:2] == (0, inner.count) == (0, 8)


def test_a_bounded_number_of_plans() -> None:
    """The one that has not been used for longest makes room."""
    p = Calls(lambda n: ones((n,)), cache_size=2)
    for n in (1, 2, 1, 3, 1):
        p(n).sync()
    assert p.count == 3
    p = Calls(lambda x: dup(x), cache_size=2)
    for n in (1, 2, 1, 3, 1, 2):
        p(shared(0, (n,))).sync()
    assert p.count == 4
    assert p.pipeline.cache_info() == (2, 4, 2, 2)


def test_another_policy_has_plans_of_its_own() -> None:
    """As for any op."""
    p = Calls(lambda x: zip_ops(scaled(1.0, x), scaled(2.0, x)))
    for streams in (1, 2, 1, 2):
        with use_interpreter(StreamInterpreter(policy=RoundRobin(streams))):
            first, second = p(shared(3)).sync()
        assert (number_in(first), number_in(second)) == (3, 6)
    assert p.count == 2


class Streams:
    """A policy that looks at its number when the plan is made."""

    def __init__(self, count: Any) -> None:
        self.count = count

    def place(self, program: Program) -> Any:
        return RoundRobin(int(self.count)).place(program)


def test_what_is_read_after_the_trace_is_noted() -> None:
    """By a policy, which places the program that the trace gave: each number has a plan of its own."""
    p = Calls(lambda x, n: zip_ops(scaled(1.0, x), scaled(2.0, x)).on(Streams(n)))
    for n in (1, 2, 1, 2):
        p(shared(1), n).sync()
        assert len(plan_of(p(shared(1), n)).lanes) == n
    assert p.count == 2 + 4  # and one for each plan that is only looked at


@pytest.mark.parametrize("wrong", [{"cache_size": 0}, {"graph_from": 0}])
def test_wrong_options(wrong: dict[str, int]) -> None:
    """They are refused where the pipeline is declared."""
    with pytest.raises(ValueError, match=f"{__file__}.* is 0, but a whole number, 1 or more, is wanted"):
        pipeline(**wrong)(ones)


def test_arguments_that_the_function_does_not_take() -> None:
    """Too few, too many, or of another name: refused where the pipeline is called, with that line, and before anything
    has moved. What Python's own rules allow is welcome."""

    @pipeline
    def scaled(x: Any, /, by: float = 2.0, *, times: int = 1) -> Op:
        return axpy(zeros(x.shape).partition(x.shape), by * times, x).first().unpartition().to_host()

    loose: Any = scaled
    x = ones((4, 4)).sync()
    calls: list[Any] = [
        lambda: loose(),
        lambda: loose(x, 1.0, 2),
        lambda: loose(x, factor=1.0),
        lambda: loose(x=x),
        lambda: loose(x, 1.0, by=2.0),
    ]
    for call in calls:
        with pytest.raises(TypeError) as caught:
            call()
        where = rf"{re.escape(__file__)}:{call.__code__.co_firstlineno}"
        assert re.match(rf"pipeline scaled called at {where}: [a-z']", str(caught.value))
        assert str(caught.value).endswith(": call scaled(x, /, by=2.0, *, times=1).")
    for arguments, named in (((), {}), ((3.0,), {}), ((), {"by": 3.0}), ((3.0,), {"times": 2})):
        assert loose(x.borrow(), *arguments, **named).sync().shape == (4, 4)


def test_the_signature_of_a_callable_object_counts() -> None:
    """Of a `functools.partial` and of an object that is called Python knows the arguments too."""
    part: Any = pipeline(partial(lambda a, b: value(a + b), 1))
    assert part(2).sync() == 3
    with pytest.raises(TypeError, match=r"missing a required .*argument: 'b'"):
        part()


def test_what_is_no_function() -> None:
    """Neither is an op."""
    with pytest.raises(TypeError, match="but a function from inputs to an op is wanted"):
        pipeline(zeros(S))  # type: ignore[call-overload]  # reason: wrong on purpose
    with pytest.raises(TypeError, match="gave int, no op"):
        pipeline(lambda: 3)().sync()  # type: ignore[arg-type, return-value]  # reason: wrong on purpose


# ---- who shares memory with whom


W: list[Any] = []
"""What functions of the tests below close over: its first item."""


ALIASES: dict[str, tuple[Callable[[float], Any], Callable[[Any], Any], Callable[[Any], Op]]] = {
    "a clone": (shared, lambda s: s.clone(), lambda x: added(x, W[0].clone())),
    "the same handle": (shared, lambda s: s, lambda x: added(x, W[0])),
    "a clone of the argument too": (shared, lambda s: s, lambda x: added(x.clone(), W[0].reshape(S))),
    "a borrow": (tensor, lambda t: t.borrow(), lambda x: added(x, W[0].borrow())),
    "a slice": (tensor, lambda t: t.slice(slice(0, 2)), lambda x: added(x.slice(slice(0, 2)), W[0].borrow())),
    "in a value": (shared, lambda s: s, lambda x: zip_ops(value(x), value(W[0])).then(lambda p: added(p[0], p[1]))),
    "its own given back": (shared, lambda s: s, lambda x: dup(x).map(lambda _: W[0])),
    "the argument given back": (shared, lambda s: s, lambda x: added(W[0], W[0]).map(lambda _: x)),
    "an argument that is not used": (tensor, lambda t: t.borrow(), lambda x: scaled(2.0, W[0].borrow())),
    "a loan that is not used": (tensor, lambda t: t.borrow_mut(), lambda x: scaled(2.0, W[0].borrow())),
}


@pytest.mark.parametrize("name", ALIASES)
@pytest.mark.parametrize("order", [(0, 1, 2, 0, 1), (1, 0, 2, 0, 1)])
def test_an_argument_may_be_what_the_function_closes_over(name: str, order: tuple[int, ...]) -> None:
    """And need not be in the next call: what the function has of its own stays its own."""
    make, give, f = ALIASES[name]
    handles = [make(number) for number in (1.0, 10.0, 20.0)]
    W[:] = handles[:1]
    try:
        p = pipeline(f)
        found = [number_in(p(give(handles[k])).sync()) for k in order]
        plain = [number_in(value(give(handles[k])).then(f).sync()) for k in order]
        assert found == plain
    finally:
        W.clear()


def test_a_tensor_that_the_function_writes() -> None:
    """Even where an unused argument lends the same one."""
    w, z = tensor(0), tensor(0)
    p = pipeline(lambda m: axpy(w.borrow_mut().partition(S), 1.0, ones(S)).map(lambda _: None))
    for argument in (w, z, w, z):
        p(argument.borrow_mut()).sync()
    assert (number_in(w), number_in(z)) == (4, 0)


def test_an_array_may_be_what_the_function_closes_over() -> None:
    """As for tensors, copied from or given back."""
    h, other = np.ones(S, f32), np.full(S, 10, f32)
    p = pipeline(lambda x: zip_ops(added(from_host(x), from_host(h)).to_host(), value(None).map(lambda _: h)))
    for x in (h, other, h, other):
        found, mine = p(x).sync()
        assert found[0, 0] == x[0, 0] + 1
        assert mine is h


def test_arguments_that_share_memory() -> None:
    """Two of one memory, and two of two: plans of their own."""
    p = Calls(lambda x, y: zip_ops(added(x, y), value((x, y))))
    a, b = shared(1), shared(10)
    for x, y in ((a, a), (a, b), (b, b), (a, a.clone()), (b, a)):
        total, given_back = p(x, y).sync()
        assert number_in(total) == number_in(x) + number_in(y)
        assert given_back[0] is x
        assert given_back[1] is y


def test_a_conflict_of_borrows_is_one_in_each_call() -> None:
    """Writing what another part reads is refused, before and after the plan is there; nothing stays locked."""
    p = pipeline(lambda m, x: axpy(m.partition(S), 1.0, x).map(lambda _: None))
    t, u = tensor(1), tensor(2)
    p(t.borrow_mut(), u.borrow()).sync()
    for _ in range(2):
        with pytest.raises((BorrowError, KernelArgumentError)):
            p(t.borrow_mut(), t.borrow()).sync()
        p(t.borrow_mut(), u.borrow()).sync()
    assert number_in(t) == 7
    assert (storage_of(t).lock.writer, storage_of(t).lock.readers) == (None, 0)


def test_an_argument_that_is_not_used_is_not_locked() -> None:
    """A run that writes it is in nobody's way, in the first call and in later ones."""
    p = pipeline(lambda r, x: scaled(2.0, x))
    t = tensor(1)
    writer = Locks(None)
    writer.acquire({storage_of(t): True})
    for k in range(3):
        assert number_in(p(t.borrow(), shared(k)).sync()) == 2 * k
    writer.release()


def test_a_shared_argument_is_never_unwrapped() -> None:
    """The op holds it as well, so nobody could give it away: refused in the first call and in every other."""
    p = pipeline(lambda s: value(s.try_unwrap()))
    for _ in range(2):
        s = shared(1)
        with pytest.raises(OwnershipError, match="1 more handle") as caught:
            p(s).sync()
        del caught
        assert number_in(s) == 1


KINDS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Op]]] = {
    "a tensor": (lambda t: t, value),
    "a partition": (lambda t: t.partition(S), value),
    "a tensor out of a partition": (lambda t: t.partition(S), lambda p: value(p.unpartition())),
    "a partition of a tensor": (lambda t: t, lambda t: value(t.partition((1, 2)))),
    "shared by the function": (lambda t: t, lambda t: value(t.share())),
    "reshaped": (lambda t: t, lambda t: value(t.reshape((4,)))),
    "filled": (lambda t: t, lambda t: fill(t, 3)),
    "a shared tensor": (lambda t: t.share(), value),
    "a clone": (lambda t: t.share(), lambda s: value(s.clone())),
    "a borrow": (lambda t: t.borrow(), value),
    "a slice of a borrow": (lambda t: t.borrow(), lambda r: value(r.slice(slice(0, 1)))),
    "a loan": (lambda t: t.borrow_mut(), value),
    "a loan cut and put together": (
        lambda t: t.borrow_mut(),
        lambda m: value(m.partition(S).unpartition()),
    ),
    "a loan of an argument": (lambda t: t, lambda t: value(t.borrow_mut())),
    "a loan beside a borrow": (lambda t: (t.borrow(), t.borrow_mut()), lambda p: value(p[1])),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_handle_that_comes_back(name: str) -> None:
    """It is of the kind, on the memory and from the place that the function alone would give, in each call."""
    give, f = KINDS[name]
    p = pipeline(f)
    try:
        for number in range(3):
            t, u = tensor(number), full(S, number).sync()
            memory = storage_of(t)
            found, plain = p(give(t)).sync(), value(give(u)).then(f).sync()
            assert type(found) is type(plain)
            assert storage_of(found) is memory
            assert repr(found) == repr(plain)
            assert (memory.lock.writer, memory.lock.readers) == (None, 0)
    finally:
        W.clear()


def test_a_partition_keeps_its_tiles() -> None:
    """Tiles of other sizes may make one grid, where those at the edges are smaller: each call has its own."""
    p = pipeline(lambda cut, x: scale(cut, 2.0, x))
    for tile in (3, 4, 3, 5):
        cut, _, _ = p(zeros((5, 2)).sync().partition((tile, 2), partial=True), shared(1, (5, 2))).sync()
        assert (cut.tile, cut.grid) == ((tile, 2), (-(-5 // tile), 1))
        assert (cut.unpartition().to_host().sync() == 2).all()


def test_a_partition_of_what_is_lent_is_lent() -> None:
    """One of an owned tensor and one of a loan: what comes back is of the kind that went in."""
    p = pipeline(lambda cut: scale(cut, 2.0, ones(S)).first().unpartition())
    lender = tensor(0)
    for _ in range(2):
        assert type(p(tensor(0).partition(S)).sync()) is Tensor
        assert type(p(lender.borrow_mut().partition(S)).sync()) is TensorMut
    assert number_in(lender) == 2


def test_a_result_says_where_it_was_made() -> None:
    """An error about a tensor that went through a pipeline names the place where that one was made."""
    p = pipeline(lambda t: fill(t, 1))
    places = set()
    for op in (zeros(S), ones(S), full(S, 2)):
        t = op.sync()
        made = made_at(t)
        found = p(t).sync()
        assert made_at(found) == made
        found.share()
        with pytest.raises(MovedError, match=f"made at {__file__}:") as caught:
            found.borrow()
        places.add(str(caught.value).split(" was moved by")[0])
    assert len(places) == 1  # all on one line


def test_a_borrow_that_comes_back_ends_with_its_tensor() -> None:
    """The stand-in that the function saw is not what the caller gets."""
    p = pipeline(lambda r: value((r, r.slice(slice(0, 1)))))
    for _ in range(2):
        t = tensor(1)
        whole, part = p(t.borrow()).sync()
        assert number_in(part) == 1
        t.share()
        for handle in (whole, part):
            with pytest.raises(MovedError, match=r"share\(\)"):
                handle.to_host()


def test_no_result_is_overwritten() -> None:
    """What a call gave is the caller's, whatever later calls write."""
    p = pipeline(lambda x, a: zip_ops(scaled(a, x), scaled(a, x).share(), scaled(a, x).to_host()))
    results = [p(shared(1), float(k)).sync() for k in range(6)]
    for k, (t, s, h) in enumerate(results):
        assert (number_in(t), number_in(s), h[0, 0]) == (k, k, k)
    assert len({id(storage_of(r)) for result in results for r in result[:2]}) == 12


# ---- pipelines and other ops


def test_a_pipeline_within_a_pipeline() -> None:
    """Its numbers and tensors are those of each call; both functions are called once."""
    inner = Calls(lambda x, a: scaled(a, x))
    outer = Calls(lambda x, a, b: added(inner(x, a), inner(x, b)))
    for k in range(3):
        assert number_in(outer(shared(1 + k), 2.0 + k, 3.0).sync()) == (1 + k) * (5 + k)
    assert (outer.count, inner.count) == (1, 2)


def test_a_pipeline_within_a_dag() -> None:
    """Beside ops of its own structure; the pipeline keeps the plan, since that keeps what the pipeline closes over."""
    w = shared(100)
    p = Calls(lambda x, a: added(scaled(a, x), w))
    for k in range(3):
        first, second = zip_ops(p(shared(1), 2.0 + k), scaled(3.0 + k, shared(k))).sync()
        assert (number_in(first), number_in(second)) == (np.fmod(102 + k, 64), (3 + k) * k)
    assert p.count == 1
    assert plans.info().misses == plans.info().currsize
    assert p.pipeline.cache_info().currsize == 1


def test_two_pipelines_in_a_dag_are_right() -> None:
    """Neither may keep what the other closes over, so such a DAG is traced each time."""
    p, q = Calls(lambda x: scaled(2.0, x)), Calls(lambda x: scaled(3.0, x))
    for k in range(3):
        first, second = zip_ops(p(shared(k)), q(shared(k))).sync()
        assert (number_in(first), number_in(second)) == (2 * k, 3 * k)
    assert p.count == q.count == 3


def test_closures_around_a_call() -> None:
    """`then` and `map` after a call run anew in each run, as ever."""
    p = Calls(lambda x: scaled(2.0, x))
    seen: list[Any] = []
    for k in range(3):
        assert number_in(p(shared(k)).inspect(seen.append).sync()) == 2 * k
    assert len(seen) == 3


def test_shared_and_unzip_inside() -> None:
    """Made by the function they are its own: each call evaluates them, once."""

    def f(x: Any, a: float) -> Op:
        y = scaled(a, x).shared()
        left, right = zip_ops(added(y, y), scaled(2.0, y)).unzip()
        return added(left, right)

    p = Calls(f)
    for k in range(4):
        assert number_in(p(shared(1), float(k)).sync()) == 4 * k
    assert p.count == 1


def test_shared_outside() -> None:
    """What the function closes over is evaluated once, by whoever comes first."""
    made: list[Any] = []
    constant = ones(S).inspect(lambda t: made.append(t.shape)).shared()
    p = Calls(lambda x: added(x, constant))
    assert [number_in(p(shared(k)).sync()) for k in range(4)] == [1, 2, 3, 4]
    assert len(made) == 1
    assert p.count == 2  # by the second call it is a constant


def test_a_component_is_taken_once() -> None:
    """`unzip` gives each component to one run, pipeline or not."""
    left, right = zip_ops(ones(S).share(), zeros(S)).unzip()
    right.sync()
    p = Calls(lambda x: added(x, left))
    assert number_in(p(shared(1)).sync()) == 2
    for _ in range(2):
        with pytest.raises(MovedError, match="taken before"):
            p(shared(1)).sync()


def test_an_owned_tensor_is_used_up() -> None:
    """A function that consumes a tensor of its own works once."""
    mine = tensor(1)
    p = Calls(lambda x: axpy(mine.partition(S), 1.0, x).first().unpartition())
    assert number_in(p(shared(1)).sync()) == 2
    with pytest.raises(MovedError):
        p(shared(1)).sync()


def test_host_functions_get_their_own_call() -> None:
    """What a function for `host_map` closes over may be an argument: it is that of its own call."""
    h = np.ones(S, f32)
    p = Calls(lambda x, y: from_host(y).to_host().host_map(lambda array: (array, x)))
    for s in (shared(1), shared(2)):
        assert p(s, h).sync()[1] is s
    assert p.count == 2
    q = Calls(lambda x, a: x.to_host().host_map(lambda array: float(array[0, 0])))
    assert [q(shared(k), 1.0).sync() for k in range(3)] == [0, 1, 2]
    assert q.count == 1


# ---- failures


FAIL = """__global__ void fails_below(Tile<float, 2> y, float a) { for (auto i : y) y[i] += a; }"""


@kernel(cuda=FAIL)
def fails_below(y: Out[f32], a: float) -> None:
    """y += a, which fails for a < 0."""


@fails_below.host
def _(y: Tile[f32], a: float) -> None:
    if a < 0:
        raise ArithmeticError(f"a = {a}")
    y[...] += a


def unlocked(*handles: Any) -> bool:
    return all((storage_of(h).lock.writer, storage_of(h).lock.readers) == (None, 0) for h in handles)


@pytest.mark.host_only("the kernel's host body fails")
def test_a_call_that_fails_once_submitted_has_used_up_its_arguments() -> None:
    """In the first call and in later ones; the next call is well, and nothing stays locked."""
    p = Calls(lambda t, x, a: zip_ops(fails_below(t.partition(S), a).first().unpartition(), scaled(1.0, x)))
    x = shared(1)
    for a in (-1.0, 1.0, -1.0, 2.0):
        op = p(tensor(1), x, a)
        if a > 0:
            assert number_in(op.sync()[0]) == 1 + a
        else:
            with pytest.raises(ArithmeticError, match=f"a = {a}"):
                op.sync()
            with pytest.raises(MovedError):
                op.sync()
        assert unlocked(x)
    assert p.count == 1


@pytest.mark.parametrize("before", [0, 2])
def test_a_call_that_fails_before_keeps_its_arguments(before: int) -> None:
    """A lock in the way, a number that does not fit: the same op runs when that is mended."""
    p = pipeline(lambda t, x, a: axpy(t.partition(S), a, x).first().unpartition())
    for _ in range(before):
        p(tensor(), shared(1), 1.0).sync()
    lent = tensor(2)
    op = p(tensor(1), lent.borrow(), 3.0)
    for _ in range(before):
        p(tensor(), lent.borrow(), 1.0).sync()
    writer = Locks(None)
    writer.acquire({storage_of(lent): True})
    for _ in range(2):
        with pytest.raises(BorrowError):
            op.sync()
    writer.release()
    assert number_in(op.sync()) == 7
    assert unlocked(lent)


@pytest.mark.parametrize("before", [0, 2])
def test_a_call_that_is_cancelled_before_keeps_its_arguments(before: int) -> None:
    """Nothing was submitted: the op may be awaited again."""
    p = pipeline(lambda t, x: axpy(t.partition(S), 3.0, x).first().unpartition())
    for _ in range(before):
        p(tensor(), shared(1)).sync()
    x = shared(2)
    op = p(tensor(1), x)

    async def body() -> float:
        with trio.CancelScope() as scope:
            scope.cancel()
            await op
        assert scope.cancelled_caught
        assert unlocked(x)
        return float((await (await op).to_host())[0, 0])

    assert trio.run(body) == 7


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("how", ["cancelled", "refused"])
def test_all_arguments_come_back(before: int, how: str) -> None:
    """Where nothing was submitted, each tensor, partition and loan among the arguments is the op's again, not the first
    or the last alone: it may run."""
    p = pipeline(
        lambda t, cut, m, u: zip_ops(
            axpy(t.partition(S), 1.0, ones(S)).first(),
            axpy(cut, 1.0, ones(S)).first(),
            axpy(m.partition(S), 1.0, ones(S)).first(),
            axpy(u.partition(S), 1.0, ones(S)).first(),
        )
    )

    def call(lender: Any) -> Op:
        return p(tensor(1), tensor(2).partition(S), lender.borrow_mut(), tensor(4))

    for _ in range(before):
        call(tensor(3)).sync()
    lender = tensor(3)
    op = call(lender)

    async def body() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            await op
        assert scope.cancelled_caught

    if how == "cancelled":
        trio.run(body)
    else:
        with patch.object(Locks, "acquire", side_effect=BorrowError("in the way")), pytest.raises(BorrowError):
            op.sync()
    assert unlocked(lender)
    assert [number_in(cut.unpartition()) for cut in op.sync()[:2]] == [2, 3]
    assert number_in(lender) == 4


def test_a_lost_race_for_one_argument_gives_back_the_others() -> None:
    """Another thread takes one of the tensors of a call while that begins: the call is refused, and gives back those
    that it had taken by then, from the first to the last."""
    p = pipeline(lambda t, u, v: zip_ops(fill(t, 1), fill(u, 2), fill(v, 3)))
    p(tensor(), tensor(), tensor()).sync()
    op = p(tensor(), tensor(), tensor())
    (held, _) = op.source.held  # type: ignore[attr-defined]  # reason: the call of a pipeline
    take = Bound.take
    gone: list[Any] = []

    def late(bound: Bound, origin: Any) -> None:
        gone.append(Undo(held[2]))
        move_in(held[2], "another thread", None)
        take(bound, origin)

    with patch.object(Bound, "take", late), pytest.raises(MovedError, match="another thread"):
        op.sync()
    gone[0].undo()
    assert [number_in(t) for t in op.sync()] == [1, 2, 3]


@pytest.mark.host_only("it runs on a device of its own")
@pytest.mark.parametrize("before", [0, 2])
def test_cancelled_at_each_step(before: int) -> None:
    """Wherever a call is cancelled, its arguments are gone, its locks are back, and so is its memory."""
    where = device("explore:0")
    p = pipeline(lambda t, x, a: axpy(t.partition(S), a, x).first().unpartition().then(lambda t: scaled(2.0, t)))
    with use_device(where):
        x = shared(2)
        for _ in range(before):
            p(tensor(), x, 1.0).sync()
        used = where.memory_used()
        for step in range(100):

            async def body(step: int = step) -> tuple[bool, float]:
                result = None
                with trio.CancelScope() as scope, exploring(cancel_at=step, cancel=scope.cancel) as order:
                    result = await p(await full(S, 1), x, 3.0)
                ended = 0.0 if result is None else float((await result.to_host())[0, 0])
                assert scope.cancelled_caught == (result is None)
                return order.steps < step, ended

            past_the_end, result = trio.run(body)
            assert result in (0, 14)
            assert unlocked(x)
            assert where.memory_used() == used
            if past_the_end:
                break
        assert result == 14
        assert step > 8


# ---- several at once


GATE = """__global__ void meets(Tile<float, 2> y, float a) { for (auto i : y) y[i] += a; }"""


@kernel(cuda=GATE)
def meets(y: Out[f32], a: float) -> None:
    """y += a, once two calls have come here."""


MEETING = threading.Barrier(2)


@meets.host
def _(y: Tile[f32], a: float) -> None:
    MEETING.wait(PATIENCE)
    y[...] += a


@pytest.mark.host_only("the kernel's host body waits for another call")
@pytest.mark.parametrize("before", [0, 1])
def test_calls_overlap(before: int) -> None:
    """Two calls of one pipeline are under way at once, the first calls included; each has its own result."""
    p = pipeline(lambda t, a: meets(t.partition(S), a).first().unpartition().to_host())

    async def body(first: float) -> list[Any]:
        async with trio.open_nursery() as nursery:
            pending = [spawn(nursery, p(await full(S, 10), first + k)) for k in range(2)]
            return [(await each)[0, 0] for each in pending]

    for k in range(before + 1):
        assert trio.run(body, float(k)) == [10 + k, 11 + k]


def test_many_calls_in_flight() -> None:
    """Each gets the result of its own arguments, in whatever order they end."""
    p = Calls(lambda x, h, a: added(scaled(a, x), from_host(h)).to_host())
    x = shared(1)

    async def body() -> list[Any]:
        async with trio.open_nursery() as nursery:
            pending = [spawn(nursery, p(x, np.full(S, k, f32), float(k % 3))) for k in range(24)]
            return [(await each)[0, 0] for each in pending]

    for _ in range(2):
        assert trio.run(body) == [k + k % 3 for k in range(24)]
    assert unlocked(x)


def test_calls_from_threads() -> None:
    """First calls included: no thread gets another's result."""
    p = pipeline(lambda x, h, a: added(scaled(a, x), from_host(h)).to_host())
    x = shared(1)
    start = threading.Barrier(4)

    def some(number: int) -> list[float]:
        start.wait(PATIENCE)
        return [p(x, np.full(S, k, f32), float(number)).sync()[0, 0] for k in range(12)]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(some, range(4)))
    assert found == [[number + k for k in range(12)] for number in range(4)]
    assert p.cache_info().currsize == 1


# ---- memory


@pytest.mark.host_only("on a GPU a plan keeps the memory of its graphs")
def test_memory_comes_back() -> None:
    """A pipeline keeps what it closes over and nothing else; dropped, it keeps nothing. By reference counts alone."""
    here = current_device()
    plans.clear()
    gc.collect()
    gc.disable()
    try:
        before = here.memory_used()

        def make() -> Any:
            mine = ones((100,)).share().sync()
            return pipeline(
                lambda t, x, a: zip_ops(
                    dup(mine), scaled(a, x).then(lambda u: scaled(2.0, u.borrow())), fill(t, 3).share(), dup(x)
                )
            )

        p = make()
        assert here.memory_used() == before + 400
        for _ in range(3):
            results = p(tensor(), shared(1), 2.0).sync()
            zip_ops(p(tensor(), shared(1), 2.0), ones((50,))).sync()
            del results
            assert here.memory_used() == before + 400
        del p
        assert here.memory_used() == before
    finally:
        gc.enable()


@pytest.mark.host_only("on a GPU a plan keeps the memory of its graphs")
def test_the_cache_for_all_keeps_nothing_of_the_users() -> None:
    """Plans of plain ops have no handles, no arrays and no streams in them; streams of the user's keep an op out."""
    here = current_device()
    before = here.memory_used()
    h = np.ones((100,), f32)
    stream = here.stream()
    for _ in range(2):
        zip_ops(dup(shared(1)), from_host(h), fill(tensor(), 1), dup(tensor().borrow())).sync()
    assert plans.info().currsize > 0
    assert here.memory_used() == before
    size = plans.info().currsize
    ones((7,)).sync_on(stream)
    zip_ops(pipeline(lambda: ones(S))(), zeros((3,))).sync()
    assert plans.info().currsize == size
    held = gc.get_referrers(h)
    assert not any(type(holder).__module__.startswith("dagpu") for holder in held)


def test_temporaries_of_closures_are_temporaries() -> None:
    """What closures lend, or move on, lies in the run's arena: it takes no memory of its own, in a pipeline or not."""

    def f() -> Op:
        lent = ones(S).then(lambda t: scaled(2.0, t.borrow()))
        return lent.then(lambda t: scaled(3.0, t)).then(lambda t: fill(t, 3)).then(lambda t: scaled(3.0, t))

    for op in (f(), pipeline(f)()):
        roles = [buffer.role for buffer in plan_of(op).buffers]
        assert roles == [Role.TEMPORARY] * (len(roles) - 1) + [Role.OUTPUT]


# ---- looking


@pytest.mark.parametrize("what", ["code", "class of a tuple", "type"])
def test_what_a_key_names_lives_as_long_as_the_key(what: str) -> None:
    """An object that stands in a key by its id is kept with the plan: no other gets that id, and with it the plan."""
    p = pipeline(lambda *arguments: scaled(2.0, ones(S)))

    def run() -> Any:
        if what == "code":
            scope: dict[str, Any] = {}
            exec(compile("def built(op): return op.reshape((4,))", "elsewhere.py", "exec"), scope)
            zip_ops(scope["built"](scaled(2.0, ones(S))), zeros(S)).sync()
            return scope["built"].__code__
        made: Any = NamedTuple("Made", [("x", int)]) if what == "class of a tuple" else type("Made", (), {})
        p(made(1) if what == "class of a tuple" else made).sync()
        return made

    found = weakref.ref(run())
    gc.collect()
    assert found() is not None
    plans.clear()
    p.cache_clear()
    gc.collect()
    assert found() is None


def test_errors_name_their_own_place() -> None:
    """Another DAG of the same structure, built elsewhere, has messages of its own."""

    def failing() -> Op:
        return zip_ops(ones((3,)).reshape((2, 2)), zeros(S))

    said = []
    for op in (failing(), failing(), zip_ops(ones((3,)).reshape((2, 2)), zeros(S))):
        with pytest.raises(Exception, match="cannot reshape") as caught:
            op.sync()
        said.append(caught.value.__notes__[0])
    assert said[0] == said[1] != said[2]
    assert all(__file__ in note for note in said)


def test_plans_name_their_own_place() -> None:
    """Two DAGs of one structure at two places have two plans."""
    first = scaled(2.0, shared(1))
    second = scale(out(), 2.0, shared(1)).first().unpartition()
    for op in (first, second, first):
        op.sync()
    places = [
        [step.instruction.origin for step in plan_of(op).steps if hasattr(step, "instruction")]
        for op in (first, second)
    ]
    assert places[0] != places[1]


def test_a_call_explains_itself() -> None:
    """`explain`, `plan_of` and `to_dot` show what the function does, and use nothing up."""
    p = pipeline(lambda t, a, h: zip_ops(axpy(t.partition(S), a, from_host(h)).first(), ones(S)))
    for _ in range(2):
        op = p(tensor(1), 2.0, np.ones(S, f32))
        text = op.explain()
        assert "Launch axpy" in text
        assert "CopyHtoD" in text
        assert __file__.rsplit("/", 1)[-1] in text
        assert len(plan_of(op).steps) >= 3
        assert "Then" in op.to_dot()
        assert number_in(op.sync()[0].unpartition()) == 3


@pytest.mark.host_only("on a GPU a call may be one graph")
def test_a_trace_shows_the_steps_of_each_call() -> None:
    """Each call is a run with its plan's instructions, though only the first was traced."""
    p = pipeline(lambda x, a, h: added(scaled(a, x), from_host(h)).to_host())
    with trace() as found:
        for k in range(3):
            p(shared(1), float(k), np.ones(S, f32)).sync()
    calls = [run for run in found.runs if any(piece.name == "scale" for piece in run.measured.pieces)]
    assert len(calls) == 3
    assert all(
        {piece.name for piece in run.measured.pieces} == {"CopyHtoD", "scale", "add", "CopyDtoH"} for run in calls
    )
    assert "Trace: " in str(found)


def test_it_looks_like_its_function() -> None:
    """Name, documentation and place."""

    @pipeline
    def step(x: int) -> Op:
        """One step."""
        return ones((x,))

    assert (step.__name__, step.__doc__) == ("step", "One step.")
    assert f"pipeline step at {__file__}" in repr(step)


def test_memcpy_into_what_is_lent() -> None:
    """An op with no result of its own, in each call on another tensor."""
    p = Calls(lambda m, x: memcpy(m, x))
    for k in range(3):
        t = tensor(0)
        assert p(t.borrow_mut(), shared(k)).sync() is None
        assert number_in(t) == k
        assert unlocked(t)
    assert p.count == 1
