"""Functions of `host_map` in a pipeline: what one call leaves behind, no other call sees.

Without a plan a pipeline's function is called for each run, and makes whatever it makes anew. With a plan it was called
once: so a plan may only serve other calls where that makes no difference.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest

from dagpu import DeviceOp, from_host, ones, pipeline, value, zip_ops
from dagpu.handles.symbolic import SymbolicArray, SymbolicNumber
from dagpu.testing import plans, storage_of
from dagpu.tracing.value_tokens import is_stateless

Op = DeviceOp[Any, Any, Any]
S = (2,)
X = np.arange(2, dtype=np.float32)


@pytest.fixture(autouse=True)
def no_plans_yet() -> Iterator[None]:
    plans.clear()
    yield
    plans.clear()


def doubled(array: Any, seen: list[int] = []) -> Any:  # noqa: B006  # reason: it is that which is tested
    """A function that is found under its name; its list is that of all who call it."""
    seen.append(1)
    return array * 2, len(seen)


class Pair(NamedTuple):
    """A tuple with names."""

    left: Any
    right: Any


class Box:
    """A value that can be changed in place."""

    def __init__(self, number: float) -> None:
        self.number = number

    def grow(self, array: Any) -> float:
        """A method, which has a state."""
        self.number += float(array[1])
        return self.number


# ---- which functions a plan may keep


def counting() -> Any:
    """A function that counts its calls in a variable from outside."""
    calls = 0

    def count(array: Any) -> int:
        nonlocal calls
        calls += 1
        return calls

    return count


def counting_within() -> Any:
    """Return the same counting function, nested in a function."""
    calls = 0

    def count(array: Any) -> int:
        def add() -> None:
            nonlocal calls
            calls += 1

        add()
        return calls

    return count


def counting_on_itself() -> Any:
    """A function that counts its calls in an attribute."""

    def count(array: Any) -> Any:
        count.calls = getattr(count, "calls", 0) + 1  # type: ignore[attr-defined]  # reason: it is that which is tested
        return count.calls  # type: ignore[attr-defined]  # reason: likewise

    return count


def counting_on_another() -> Any:
    """A function that counts its calls in an attribute of a second one."""

    def other() -> None:
        pass

    def count(array: Any) -> Any:
        other.calls = getattr(other, "calls", 0) + 1  # type: ignore[attr-defined]  # reason: it is that which is tested
        return other.calls  # type: ignore[attr-defined]  # reason: likewise

    return count


def with_attribute() -> Any:
    """A function that has an attribute."""

    def f(array: Any) -> Any:
        return array

    f.calls = []  # type: ignore[attr-defined]  # reason: it is that which is tested
    return f


def counting_in_a_list() -> Any:
    """A function that counts its calls in a list."""
    calls: list[int] = []

    def count(array: Any) -> int:
        calls.append(1)
        return len(calls)

    return count


def counting_in_a_class() -> Any:
    """A function that counts its calls in a class that was made with it."""

    class Counter:
        calls = 0

    def count(array: Any) -> int:
        Counter.calls += 1
        return Counter.calls

    return count


def counting_in_its_default() -> Any:
    """A function that counts its calls in its default."""

    def count(array: Any, calls: list[int] = []) -> int:  # noqa: B006  # reason: it is that which is tested
        calls.append(1)
        return len(calls)

    return count


def counting_in_a_generator() -> Any:
    """A function that counts its calls in a generator."""
    numbers = iter(range(9))
    return lambda array: next(numbers)


def counting_in_globals_of_its_own() -> Any:
    """A function that counts its calls among globals that no module has."""
    return eval("lambda array: next(numbers)", {"numbers": itertools.count()})


def counting_among_globals_with_a_modules_name() -> Any:
    """A function that counts its calls among globals that say to be those of a module."""
    return eval("lambda array: next(numbers)", {"numbers": itertools.count(), "__name__": "math"})


def counting_in_a_module() -> Any:
    """A function that counts its calls in a module that no import finds."""
    module: Any = ModuleType("math")
    module.numbers = itertools.count()
    return lambda array: next(module.numbers)


STATE: dict[str, Callable[[], Any]] = {
    "globals of its own": counting_in_globals_of_its_own,
    "globals with the name of a module": counting_among_globals_with_a_modules_name,
    "a module of its own": counting_in_a_module,
    "nonlocal": counting,
    "nonlocal, further in": counting_within,
    "an attribute of its own": counting_on_itself,
    "an attribute of another": counting_on_another,
    "an attribute that is there": with_attribute,
    "a list": counting_in_a_list,
    "a class": counting_in_a_class,
    "a default": counting_in_its_default,
    "a generator": counting_in_a_generator,
    "a method": lambda: Box(0).grow,
    "a partial": lambda: functools.partial(doubled, seen=[]),
    "an object": lambda: np.vectorize(float),
    "a built-in method": lambda: [].append,
}
"""Functions that may give something else in their second call than in their first."""


@pytest.mark.filterwarnings("ignore:.*is traced again in each run")
@pytest.mark.parametrize("name", STATE)
def test_a_function_with_a_state_is_new_in_each_call(name: str) -> None:
    """State that a function keeps in one call of a pipeline is not visible in the next call, with or without a plan."""

    def f(array: Any) -> Op:
        return from_host(array).to_host().host_map(STATE[name]())

    p = pipeline(f)
    found = [spoken(p(X).sync()) for _ in range(3)]
    assert found == [spoken(value(X).then(f).sync()) for _ in range(3)]
    assert not is_stateless(STATE[name]())


def spoken(x: Any) -> str:
    return f"{type(x).__name__} {x!r}"


def test_what_a_plan_may_keep() -> None:
    """A function that is found under its name, and one that has numbers, texts and such functions from outside."""
    number, two, text, module = SymbolicNumber(0, 2, set()), 2, "two", math
    good: list[Any] = [
        float, len, math.sqrt, doubled, np.sum, Box, lambda x: x, lambda x: x * number,
        lambda x, by=2: x * by, lambda x, *, by=number: x * by, lambda x: (text, x * two), lambda x: doubled(x),
        lambda x: np.sum(x), lambda x: module.sqrt(x), lambda x: [x for _ in range(two)],
        lambda x: {y: lambda z: z * two for y in x},
    ]  # fmt: skip
    array = SymbolicArray(0, X, set())
    unbound: Any
    bad: list[Any] = [
        lambda x: array, lambda x, y=array: y, lambda x: good, lambda x: unbound, lambda x: Pair(x, good),
    ]  # fmt: skip
    assert [is_stateless(f) for f in good] == [True] * len(good)
    assert [is_stateless(f) for f in bad] == [False] * len(bad)
    unbound = 1
    assert is_stateless(bad[3])


def test_a_function_under_its_name_has_the_state_that_it_has_anyway() -> None:
    """It is one and the same in all calls, with a plan and without."""
    p = pipeline(lambda array: from_host(array).to_host().host_map(doubled))
    counts = [p(X).sync()[1] for _ in range(3)]
    assert counts == list(range(counts[0], counts[0] + 3))
    assert p.cache_info().misses == 1


def test_a_function_without_a_state_is_kept() -> None:
    """The pipeline's function is called once, and each call gets the result of its own array and its own number."""
    calls: list[float] = []

    @pipeline
    def p(array: Any, by: float) -> Op:
        calls.append(1)
        return from_host(array).to_host().host_map(lambda x: x * by + 1)

    for k in range(3):
        assert p(X + np.float32(k), 2.0).sync().tolist() == [2 * k + 1, 2 * k + 3]
    assert len(calls) == 1


# ---- which arguments a plan may keep


def appended(x: Any) -> Any:
    """Changes its argument in place, and gives it."""
    while isinstance(x, tuple):
        x = x[0]
    if isinstance(x, list):
        x.append(len(x))
    elif isinstance(x, dict):
        x[len(x)] = 1
    elif isinstance(x, set):
        x.add(len(x))
    elif isinstance(x, Box):
        x.number += 1
    else:
        x += 1
    return x


HELD: dict[str, Callable[[], Any]] = {
    "a list": list,
    "a list in a tuple": lambda: ([], 1),
    "a list in a named tuple": lambda: Pair([], 1),
    "a dict": dict,
    "a set": set,
    "an object": lambda: Box(0),
    "an array": lambda: np.zeros(S),
}
"""What a function may change that gets it."""


def contents(x: Any) -> str:
    return str(x.number if isinstance(x, Box) else x)


@pytest.mark.filterwarnings("ignore:.*is traced again in each run")
@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("name", HELD)
def test_what_a_pipeline_makes_is_made_for_each_call(name: str, beside: bool) -> None:
    """A list that the pipeline's function makes, and a function of `host_map` fills and returns, is that call's own:
    no later call adds to what an earlier one returned. So too beside data of the device."""

    def f(array: Any) -> Op:
        made: Op = value(HELD[name]())
        if beside:
            return zip_ops(made, from_host(array).to_host()).host_map(appended)
        return zip_ops(made.host_map(appended), from_host(array)).first()

    p = pipeline(f)
    results = [p(X).sync() for _ in range(3)]
    wanted = [value(X).then(f).sync() for _ in range(3)]
    assert [contents(result) for result in results] == [contents(result) for result in wanted]
    assert len({id(result) for result in results}) == 3


def first_of_all(x: Any) -> Any:
    """The first thing in tuples."""
    while isinstance(x, tuple):
        x = x[0]
    return x


@pytest.mark.filterwarnings("ignore:.*is traced again in each run")
@pytest.mark.parametrize("in_tuple", [False, True])
@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("kind", ["shared", "array", "borrow"])
def test_an_argument_reaches_the_function_of_its_own_call(kind: str, beside: bool, in_tuple: bool) -> None:
    """A handle or array that goes on to `host_map`, alone or beside data of the device, is that of its call."""

    def f(x: Any, array: Any) -> Op:
        given: Op = value((x, 1)) if in_tuple else value(x)
        if beside:
            return zip_ops(given, from_host(array).to_host()).host_map(first_of_all)
        return zip_ops(given.host_map(first_of_all), from_host(array)).first()

    lent = [ones(S).sync() for _ in range(3)]
    make: dict[str, Callable[[int], Any]] = {
        "shared": lambda k: ones(S).share().sync(),
        "array": lambda k: np.full(S, k),
        "borrow": lambda k: lent[k].borrow(),
    }
    p = pipeline(f)
    for k in range(3):
        x = make[kind](k)
        found = p(x, X).sync()
        if kind == "borrow" or kind == "shared":
            assert storage_of(found) is storage_of(x)
        else:
            assert found is x


def test_plain_arguments_are_kept() -> None:
    """Numbers, texts and tuples of these cannot be changed: one trace for all calls."""
    p = pipeline(
        lambda array, k: zip_ops(value((k, "a", Pair(1, (2.0, None)))), from_host(array).to_host()).host_map(str)
    )
    assert [p(X, 3).sync() for _ in range(3)] == [p(X, 3).sync()] * 3
    assert p.cache_info().misses == 1
