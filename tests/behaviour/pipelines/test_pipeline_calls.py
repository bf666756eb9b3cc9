"""Pipelines: when the function is called, and which arguments share a trace."""

import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

from dagpu import (
    KernelArgumentError,
    NotReadyError,
    RoundRobin,
    StreamInterpreter,
    current_device,
    device,
    dup,
    f32,
    from_host,
    full,
    ones,
    pipeline,
    plan_of,
    use_device,
    use_interpreter,
    value,
    zeros,
    zip_ops,
)
from dagpu.testing import Program
from tests.behaviour.pipelines import pipeline_calls
from tests.behaviour.pipelines.pipeline_calls import Calls, S, added, number_in, out, scaled, shared, tensor
from tests.behaviour.pipelines.pipeline_calls import no_plans_yet as no_plans_yet
from tests.programs.arithmetic import add, axpy, scale
from tests.programs.expressions import Op, bits
from tests.support.places import place


def test_the_function_is_called_once_for_each_combination() -> None:
    """The function is called once for each combination of shapes, element types, devices and kinds; never for
    contents, addresses and numbers that kernels take."""
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


@pytest.mark.filterwarnings("ignore:.*is traced again in each run")
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
    assert p.count == 1


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
    assert any("in pipeline" in note and pipeline_calls.__file__ in note for note in caught.value.__notes__)


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
    """A change of a list or dict after a call affects no run of it: the call keeps the items, as it keeps the handles
    that moved into it.
    """
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
    """An op that owns a tensor, an object: the function is called for each run, and is right; `misses` counts that."""
    p = Calls(lambda x, f: f(x))
    for k in range(3):
        with nullcontext() if k else pytest.warns(RuntimeWarning, match="a tensor of its own, by which no plan"):
            assert number_in(p(value(full(S, k).sync()), lambda op: op).sync()) == k
    assert p.count == 3
    assert p.pipeline.cache_info() == (0, 3, 32, 0)


@dataclass
class Setting:
    """A mutable object."""

    number: float = 2.0


setting = Setting()


def deep(depth: int) -> Any:
    """A number in so many tuples."""
    found: Any = 1.0
    for _ in range(depth):
        found = (found,)
    return found


ODD: dict[str, tuple[Any, str]] = {
    "a dataclass": (Setting(), "a value of type Setting"),
    "a set of objects": (frozenset((Setting, object())), "a value of type frozenset"),
    "a function over an object": (lambda: setting, "a value of type function"),
    "an op with a function": (ones(S).map(lambda t: t), "<.*>, which holds a function or a tensor of its own"),
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
    assert f"<pipeline counted at {pipeline_calls.__file__}" in said
    place = re.escape(f"{warning.filename}:{warning.lineno}")
    assert re.search(rf"called at {place}, got {what}, by which no plan can be found", said)
    assert warning.filename == __file__
    assert p.pipeline.cache_info() == (0, 3, 32, 0)
    cured = Calls(lambda x: scaled(2.0, x) if argument is not None else x)
    for k in range(3):
        assert number_in(cured(shared(k)).sync()) == 2 * k
    assert cured.pipeline.cache_info() == (2, 1, 32, 1)


def test_misses_count_the_calls_of_the_function() -> None:
    """Misses count the calls of the outer function, and of one within it. A closure keeps no plan from being found."""
    inner = Calls(lambda x: scaled(2.0, x))
    outer = Calls(lambda x: added(inner(x), inner(x)))
    for k in range(3):
        outer(shared(k)).sync()
        outer(shared(k)).map(lambda t: t).sync()
    assert outer.pipeline.cache_info()[:2] == (5, outer.count) == (5, 1)
    assert inner.pipeline.cache_info()[:2] == (0, inner.count) == (0, 2)


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
    """A pipeline under another policy has its own plans, like any op."""
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


def test_calls_that_differ_in_a_keyword_have_plans_of_their_own() -> None:
    """Also right after calls with another value of it, with none, and with another keyword of the same value."""
    p = Calls(lambda x, **named: scaled(2.0 if named.get("twice") else 1.0, x))
    for _ in range(2):
        for named, factor in (({"twice": True}, 2), ({"twice": False}, 1), ({}, 1), ({"thrice": True}, 1)):
            for k in range(1, 4):
                assert number_in(p(shared(k), **named).sync()) == factor * k
    assert p.count == 4


@pytest.mark.parametrize("wrong", [{"cache_size": 0}, {"graph_from": 0}])
def test_wrong_options(wrong: dict[str, Any]) -> None:
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
    """The arguments of a `functools.partial` and of a callable object are known from its signature."""
    part: Any = pipeline(partial(lambda a, b: value(a + b), 1))
    assert part(2).sync() == 3
    with pytest.raises(TypeError, match=r"missing a required .*argument: 'b'"):
        part()


def test_what_is_no_function() -> None:
    """An object that is not a function is refused, and so is a function whose result is not an op."""
    with pytest.raises(TypeError, match="but a function from inputs to an op is wanted"):
        pipeline(zeros(S))  # type: ignore[call-overload]  # reason: wrong on purpose
    with pytest.raises(TypeError, match="returned int, which is not an op"):
        pipeline(lambda: 3)().sync()  # type: ignore[arg-type, return-value]  # reason: wrong on purpose
