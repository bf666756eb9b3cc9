"""A pipeline keeps its plan, or a warning says why it does not: compositions of host and device values."""

import itertools
import re
import warnings
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import (
    MovedError,
    SharedTensor,
    Tensor,
    array,
    f32,
    from_host,
    ones,
    pipeline,
    source,
    use_device,
    value,
    zip_ops,
)
from dagpu.runtime import plan_lookup
from tests.behaviour.pipelines.pipeline_calls import Calls, S, added, scaled, shared, tensor
from tests.behaviour.pipelines.pipeline_calls import no_plans_yet as no_plans_yet
from tests.programs.expressions import Op
from tests.simulated.cuda import installed

MADE: Final = itertools.count()


@pytest.fixture(params=["host", "simulated"])
def machine(request: pytest.FixtureRequest) -> Iterator[None]:
    """The host, and a simulated GPU, which launches a plan as a graph from its second run on."""
    if request.param == "simulated":
        with installed(seed=5):
            yield
        return
    with use_device("host"):
        yield


class Pair(NamedTuple):
    """A result with names."""

    left: Any
    right: Any


def listed(x: Any) -> Any:
    """A list of a value, beside others: a new one each time."""
    return [x, {"again": 1.0}]


def paired(x: Any) -> Any:
    return Pair(1, x)


def same(x: Any) -> Any:
    return x


def impure(x: Any, seen: Any = MADE) -> Any:
    """A function that a plan may not keep, although its result is the same each time."""
    next(seen)
    return x


# ---- random compositions

HOST_FUNCTIONS: Final = (listed, paired, same)

leaves = st.sampled_from(["shared argument", "array argument", "number", "made", "downloaded"])
"""The operands: what the call is given, and what a device makes."""


def _grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=2, max_size=3).map(tuple)
    return st.one_of(
        st.tuples(st.just("zip"), several),
        st.tuples(st.sampled_from(["first", "last", "one of unzip", "placed zip"]), several),
        st.tuples(st.just("twice"), inner),
    )


compositions = st.recursive(leaves, _grown, max_leaves=6)
"""Compositions of built-in functions alone."""

calling = st.recursive(
    leaves,
    lambda inner: st.one_of(
        _grown(inner),
        st.tuples(st.just("map"), st.sampled_from([*HOST_FUNCTIONS, impure]), inner),
        st.tuples(st.just("host_map"), st.sampled_from([*HOST_FUNCTIONS, impure]), inner),
        st.tuples(st.just("then"), inner),
    ),
    max_leaves=6,
)
"""Compositions that call functions of the user's too."""


def built(e: Any, x: Any, h: Any, k: Any) -> Any:
    """The op of a composition, over a shared tensor, an array and a number."""
    if isinstance(e, str):
        return OPERANDS[e](x, h, k)
    name, *rest = e
    if name in JOINS:
        return JOINS[name](zip_ops(*(built(item, x, h, k) for item in rest[0])))
    *functions, inner = rest
    return CHANGES[name](built(inner, x, h, k), *functions)


def twice(op: Op) -> Op:
    both = op.shared()
    return zip_ops(both, both)


OPERANDS: Final[dict[str, Any]] = {
    "shared argument": lambda x, h, k: value(x.clone()),
    "array argument": lambda x, h, k: from_host(h).share(),
    "number": lambda x, h, k: scaled(k, x).share(),
    "made": lambda x, h, k: ones(S).share(),
    "downloaded": lambda x, h, k: scaled(k, x).to_host(),
}
JOINS: Final[dict[str, Any]] = {
    "zip": lambda op: op,
    "first": lambda op: op.first(),
    "last": lambda op: op.last(),
    "placed zip": lambda op: op.on("auto").first(),
    "one of unzip": lambda op: op.unzip()[1],
}
CHANGES: Final[dict[str, Any]] = {
    "twice": twice,
    "map": lambda op, f: op.map(f),
    "host_map": lambda op, f: op.host_map(f),
    "then": lambda op: op.then(value),
}


def told(x: Any) -> Any:
    """What a caller can see of a result: types and contents."""
    if isinstance(x, tuple | list):
        return type(x), [told(item) for item in x]
    if isinstance(x, dict):
        return dict, [(key, told(item)) for key, item in x.items()]
    if isinstance(x, np.ndarray):
        return x.dtype, x.shape, x.tobytes()
    return (type(x), told(x.to_host().sync())) if isinstance(x, SharedTensor | Tensor) else (type(x), x)


def seen_of(e: Any, calls: int = 3) -> tuple[Calls, list[str]]:
    """Call the composition as a pipeline, beside work of the device. Each result is that of its function. Return the
    pipeline and the warnings."""

    def f(x: Any, h: Any, k: Any) -> Op:
        return zip_ops(built(e, x, h, k), ones(S).to_host())

    p = Calls(f)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in range(calls):
            arguments = shared(1 + n), np.full(S, 5 + n, f32), 2.0 + n
            expected = told(value(arguments).then(lambda a: f(*a)).sync())
            assert told(p(*arguments).sync()) == expected
    return p, [str(each.message) for each in caught]


@settings(max_examples=60)
@given(compositions)
def test_a_composition_of_built_in_functions_keeps_its_plan(e: Any) -> None:
    """Any composition of `zip_ops`, `first`, `last`, `unzip`, `shared`, `on` and `to_host` over values of the host and
    the device: the function is called once, and no warning comes."""
    p, said = seen_of(e)
    assert (p.count, said) == (1, [])


@settings(max_examples=80)
@given(calling)
def test_a_second_equal_call_is_a_hit_or_a_warning_was_given(e: Any) -> None:
    """Also with functions of the user's in `map`, `host_map` and `then`: each call has the result of the function, and
    if a plan is not kept, a warning says so."""
    plan_lookup._warned.clear()  # noqa: SLF001  # a warning comes once in a process
    p, said = seen_of(e)
    assert (p.count, len(said)) in ((1, 0), (3, 1)), said


# ---- single compositions


def totals(pair: Any) -> Any:
    """A function that a plan may call in each run."""
    return pair[0].sum(), pair[1]


def thrice(h: Any) -> Op:
    return zip_ops(h, h.map(np.sum), h)


def both_ways(h: Any) -> Op:
    return zip_ops(h.host_map(len), h.map(len), h, h.host_map(str), h)


def two_calls(h: Any) -> Op:
    return zip_ops(h.host_map(np.sum), h.host_map(np.max))


KEPT: Final[dict[str, Any]] = {
    "first of zip_ops": lambda x: zip_ops(x.to_host(), ones((3,)).to_host()).first(),
    "last of zip_ops": lambda x: zip_ops(x.to_host(), ones((3,)).to_host()).last(),
    "an item by map": lambda x: zip_ops(x.to_host(), ones((3,)).to_host()).map(lambda t: t[0]),
    "a tensor beside an array": lambda x: zip_ops(x.to_host(), ones(S).share()).map(totals),
    "two maps": lambda x: zip_ops(x.to_host(), ones((3,)).to_host()).map(totals).map(lambda t: float(t[0])),
    "components of a map": lambda x: zip_ops(*zip_ops(x.to_host(), ones(S).share()).map(totals).unzip(2)),
    "the first of host_map": lambda x: x.to_host().host_map(lambda a: (a + 1, 2)).first(),
    "components of host_map": lambda x: zip_ops(*x.to_host().host_map(lambda a: (a + 1, 2)).unzip(2)),
    "shared host values": lambda x: thrice(x.to_host().shared()),
    "host_map of a shared host value": lambda x: both_ways(x.to_host().shared()),
    "host_map of a shared host value alone": lambda x: x.to_host().shared().host_map(np.sum),
    "two host_maps of a shared host value": lambda x: two_calls(x.to_host().shared()),
    "host_map of shared host values": lambda x: zip_ops(x.to_host(), value(2)).shared().host_map(totals),
    "host_map beside a shared host value": lambda x: zip_ops(x.to_host().shared(), value(2)).host_map(totals),
    "host_map of what a host_map shares": lambda x: both_ways(x.to_host().host_map(listed).shared()),
    "host_map of what is shared twice": lambda x: both_ways(x.to_host().shared().shared()),
    "a look at a host value": lambda x: x.to_host().inspect(id),
    "a list": lambda x: ones(S).share().map(listed),
    "topk": lambda x: array.topk(x, 1).first(),
}


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.usefixtures("machine")
def test_it_keeps_its_plan(name: str) -> None:
    """The second call of the pipeline uses the plan of the first, and has the result of the function."""
    p = Calls(KEPT[name])
    for n in range(4):
        expected = value(tensor(n)).then(KEPT[name]).sync()
        found = p(tensor(n)).sync()
        if not isinstance(found, tuple | list):
            found, expected = (found,), (expected,)
        for one, other in zip(found, expected, strict=True):
            assert told(one) == told(other)
    assert p.count == 1


@pytest.mark.usefixtures("machine")
def test_no_function_of_host_map_writes_what_others_share() -> None:
    """An array that `shared()` hands on is read-only, in a run that is traced and in one by the plan; a list is each
    consumer's own."""

    def write(a: Any) -> bool:
        a[...] = 0.0
        return True

    def extend(some: list[int]) -> int:
        some.append(7)
        return len(some)

    def numbers(a: Any) -> list[int]:
        return [int(a[0, 0])]

    written = Calls(lambda x: x.to_host().shared().host_map(write))
    for n in range(3):
        with pytest.raises(ValueError, match="read-only"):
            written(tensor(n)).sync()

    def lists(x: Any) -> Op:
        shared_list = x.to_host().host_map(numbers).shared()
        return zip_ops(shared_list.host_map(extend), shared_list, shared_list.host_map(extend), shared_list)

    extended = Calls(lists)
    for n in range(3):
        found = extended(tensor(n)).sync()
        assert found == (2, [n], 2, [n])
        assert found[1] is not found[3]
    assert (written.count, extended.count) == (1, 1)


def test_a_list_in_a_result_is_a_new_one_in_each_call() -> None:
    """What the caller does with it reaches no later call."""
    p = Calls(lambda x: zip_ops(ones(S).to_host(), value([x.share(), 1])))
    first = p(tensor()).sync()
    first[1].append(5)
    assert len(p(tensor()).sync()[1]) == 2
    assert p.count == 1


@pytest.mark.usefixtures("machine")
def test_a_function_is_called_with_the_values_of_its_own_call() -> None:
    """Numbers and contents of the call itself reach a function of `map` that a plan calls, in threads and in tasks."""
    p = Calls(lambda x, k: zip_ops(scaled(3.0, x).to_host(), value(k)).map(lambda pair: pair[0] * pair[1]))

    async def in_a_task(op: Any) -> float:
        return float((await op)[0, 0])

    for n in range(12):
        assert p(tensor(n), float(n)).sync()[0, 0] == 3 * n * n
        assert trio.run(in_a_task, p(tensor(n), float(n))) == 3 * n * n
    assert p.count == 1


def test_an_error_of_a_kept_function_is_that_of_the_function() -> None:
    """With its type, and a note that names its place; the pipeline stays usable."""
    p = Calls(lambda x: x.to_host().map(lambda a: 1 / int(a[0, 0])))
    assert p(tensor(1)).sync() == 1
    for _ in range(2):
        with pytest.raises(ZeroDivisionError) as caught:
            p(tensor(0)).sync()
        assert any("in the closure of .map at" in note for note in caught.value.__notes__)
    assert p(tensor(2)).sync() == 0.5
    assert p.count == 1


# ---- ops without work

NO_WORK: Final[dict[str, Any]] = {
    "a constant": lambda x, h, k: value(3),
    "a number": lambda x, h, k: value(k),
    "an array": lambda x, h, k: value((h, 2)),
    "a list": lambda x, h, k: value([h, k]),
    "a shared value": lambda x, h, k: twice(value(h)),
    "a tensor": lambda x, h, k: value(x),
    "another shape": lambda x, h, k: value(x).reshape((4,)).share(),
    "a tensor and a number": lambda x, h, k: zip_ops(value(x), value(k)).last(),
    "of a function": lambda x, h, k: value(x).then(lambda t: value(t)),
    "components": lambda x, h, k: zip_ops(*value((k, h)).unzip(2)),
}
"""Functions of a tensor, an array and a number, whose op does nothing on a device."""


@pytest.mark.parametrize("name", NO_WORK)
@pytest.mark.usefixtures("machine")
def test_an_op_without_work_keeps_its_plan(name: str) -> None:
    """Its function is called once; each call has the result of its own arguments, in threads and in tasks, also as a
    part of another op. The arguments have moved."""
    p = Calls(NO_WORK[name])

    async def in_a_task(op: Any) -> Any:
        return await op

    ways: list[Any] = [lambda op: op.sync(), lambda op: trio.run(in_a_task, op), lambda op: op.map(same).sync()]
    for n in range(4):
        for run in ways:
            arguments = tensor(n), np.full(S, 5 + n, f32), 2.0 + n
            expected = told(NO_WORK[name](tensor(n), *arguments[1:]).sync())
            assert told(run(p(*arguments))) == expected
            with pytest.raises(MovedError):
                p(*arguments)
    assert p.count == 1


def test_an_op_without_work_whose_result_no_plan_makes_is_warned_of() -> None:
    """As one with work is."""
    p = pipeline(lambda: value(b"".join))
    with pytest.warns(RuntimeWarning, match="no plan can make a part of its result"):
        p().sync()


# ---- where no plan can be kept

UNKEPT: Final[dict[str, tuple[Any, str]]] = {
    "then of a host value": (lambda x: x.to_host().then(from_host), "the function of .then at .* needs values that"),
    "a kernel's number": (
        lambda x: scaled(x.to_host().map(np.sum).map(float), ones(S)),
        "<scale at .*> needs values that come to the host during the run. Make one pipeline of what comes before it",
    ),
    "host_map after map": (lambda x: x.to_host().map(same).host_map(same), "<host_map at .*> needs values that come"),
    "a closure over an object": (
        lambda x: x.to_host().map(lambda a, seen=[]: (seen.append(1), len(seen))[1]),  # that is the point
        "the closure of .map at .* may differ from call to call: .*. Define it at the top level",
    ),
    "host_map over an object": (
        lambda x: x.to_host().host_map(lambda a, seen=[]: len(seen)),  # that is the point
        "the function of .host_map at .* may differ from call to call: .*. Define it at the top level",
    ),
    "host_map of a list": (
        lambda x: zip_ops(x.to_host(), value([1])).host_map(len),
        "the function of .host_map at .* gets a list, and may change it in place. Give it results of ops",
    ),
    "a value that is not returned": (
        lambda x: zip_ops(x.to_host().map(np.sum), ones(S).to_host()).last(),
        "<map at .*> computes a value that the result does not contain. Return it, or leave it out",
    ),
    "an object": (
        lambda x: zip_ops(x.to_host(), value(b"".join)),
        "no plan can make a part of its result, a builtin_function_or_method, again. Return handles that it has made",
    ),
    "a tensor of outside": (
        lambda x: added(x, ones(S)).map(lambda _: OUTSIDE[0]),
        "no plan can make a part of its result, a SharedTensor, again. Return handles that it has made",
    ),
    "a result that is nested deep": (
        lambda x: zip_ops(x.to_host(), value(DEEP)),
        "its result is nested more than 20 deep. Return a flatter one",
    ),
    "a source that is no argument": (
        lambda x: scaled(SOURCES[0], x),
        "its function uses <source at .*>, which is not among its arguments. Pass it the source",
    ),
    "an array in a kernel's place": (
        lambda x: zip_ops(x.to_host(), value(ARRAY).first()),
        r"the op at .* is given an array of the host. Copy it to the device first, with from_host\(x\)",
    ),
}
"""Pipelines whose plan is not kept, and the reason in the warning, with its cure."""

OUTSIDE: Final[list[Any]] = []
ARRAY: Final[Any] = np.ones(3, f32)
SOURCES: Final[list[Any]] = []
DEEP: Any = 1
for _ in range(22):
    DEEP = (DEEP,)


@pytest.mark.parametrize("name", UNKEPT)
def test_a_warning_says_why_no_plan_is_kept(name: str) -> None:
    """Once for each place, with the pipeline, the place of the call, the reason and the cure."""
    f, why = UNKEPT[name]
    OUTSIDE[:], SOURCES[:] = [shared()], [source(2.0)]
    try:
        p = pipeline(f)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(3):
                p(tensor(1)).sync()
        [said] = [str(each.message) for each in caught]
        assert re.fullmatch(rf"<pipeline .*>, called at .*, is traced again in each run: .*{why}.*\.", said), said
        assert (caught[0].category, caught[0].filename) == (RuntimeWarning, __file__)
        assert p.cache_info().hits == 0
    finally:
        OUTSIDE.clear()
        SOURCES.clear()


ON_NUMBERS: Final[dict[str, Any]] = {
    "a number": lambda x, a: value(a).host_map(doubled),
    "a number in a tuple": lambda x, a: value((1, (a, "b"))).host_map(same),
    "a number beside a result": lambda x, a: zip_ops(scaled(2.0, x).to_host(), value(a)).host_map(last_of),
    "a number that is picked": lambda x, a: zip_ops(value(a), scaled(2.0, x)).first().host_map(doubled),
    "a number that is shared": lambda x, a: value(a).shared().host_map(doubled),
    "a number that is taken apart": lambda x, a: zip_ops(value(a), value(2)).unzip()[0].host_map(doubled),
    "a function of map before it": lambda x, a: value(a).map(doubled).host_map(doubled),
}


def doubled(x: Any) -> Any:
    return x * 2


def last_of(x: Any) -> Any:
    return x[-1]


@pytest.mark.parametrize("name", ON_NUMBERS)
@pytest.mark.usefixtures("machine")
def test_a_function_of_the_host_gets_the_numbers_of_its_call(name: str) -> None:
    """Also where the plan of an earlier call serves, for numbers that come again and for new ones."""
    f, x = ON_NUMBERS[name], shared(1)
    p = pipeline(f)
    for a in (0.5, 1.5, 0.5, 2.5, 1.5):
        assert repr(p(x, a).sync()) == repr(f(x, a).sync())


@pytest.mark.usefixtures("machine")
def test_a_function_of_the_host_gets_the_value_of_a_source() -> None:
    """A source as an argument is read in each call."""
    p, s = pipeline(lambda s: s.host_map(doubled)), source(1.0)
    for a in (1.0, 2.0, 1.0, 3.0):
        s.set(a)
        assert p(s).sync() == 2 * a


def total(found: Any) -> float:
    return float(found[1].sum())


@pytest.mark.usefixtures("machine")
def test_a_function_of_results_reads_arrays_of_the_call() -> None:
    """In the first call too, which makes the plan."""
    p = Calls(lambda x, a: zip_ops(scaled(a, from_host(x)).to_host(), value(x)).map(total))
    for k in range(4):
        assert p(np.full(S, k, f32), 1.0 + k).sync() == k * np.prod(S)
    assert p.count == 1
