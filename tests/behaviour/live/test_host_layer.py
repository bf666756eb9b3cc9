"""Host values that closures compute of sources: equal to runs from scratch, and each closure called when it must be."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import DeviceOp, Source, batch, cutoff, source, zip_ops
from tests.behaviour.live.live_trials import Trial

Op = DeviceOp[Any, Any, Any]
Step = tuple[str, int, int]

KINDS = ("add", "pair", "first", "half", "cut", "text", "array")


def grow(steps: list[Step], sources: list[Source[int]], called: Counter[int]) -> Op:
    """A random DAG of host values; `called` counts the calls of each closure by the number of its step."""
    pool: list[Op] = list(sources)

    def noted(number: int, f: Any) -> Any:
        def call(x: Any) -> Any:
            called[number] += 1
            return f(x)

        return call

    for number, (kind, i, j) in enumerate(steps):
        a, b = pool[i % len(pool)], pool[j % len(pool)]
        match kind:
            case "add":
                made: Op = zip_ops(a, b).map(noted(number, lambda pair: size(pair[0]) + size(pair[1])))
            case "pair":
                made = zip_ops(a, zip_ops(b, a)).map(noted(number, lambda pair: (size(pair[1]), 7)))
            case "first":
                made = zip_ops(a, b).first()
            case "half":
                made = a.map(noted(number, lambda x: size(x) // 2))
            case "cut":
                made = cutoff(a.map(noted(number, lambda x: size(x) // 4)))
            case "text":
                made = a.map(noted(number, lambda x: str(size(x))))
            case _:
                made = a.map(noted(number, lambda x: np.full(3, size(x) % 5)))
        pool.append(made.shared())
    return zip_ops(*pool[-6:])


def size(x: Any) -> int:
    """A number that says all of a value."""
    if isinstance(x, tuple):
        return sum(size(item) for item in x)
    return int(x) if isinstance(x, int | str) else int(x.sum())


@settings(max_examples=80)
@given(
    steps=st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=12),
    changes=st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20)), max_size=3), min_size=1, max_size=4),
)
def test_host_values_equal_those_of_a_run_from_scratch(steps: list[Step], changes: list[list[tuple[int, int]]]) -> None:
    """After any changes; and no closure is called twice in an update, nor any if nothing has changed."""
    sources = [source(0), source(8), source(16)]
    called: Counter[int] = Counter()
    trial = Trial(grow(steps, sources, called), [*sources])
    trial.check()
    for change in changes:
        with batch():
            for which, value in change:
                sources[which].set(value)
        called.clear()
        value = trial.update()
        assert max(called.values(), default=0) <= 1
        called.clear()
        trial.update()
        assert not called
        trial.run = Trial(trial.op, []).run  # a run from scratch, by another trace
        assert str(trial.update()) == str(value)


def test_a_change_behind_a_closure_that_fails_is_not_lost() -> None:
    """A cutoff that has let a value through stays stale behind it, if a later closure of the update fails."""
    level, divisor = source(4), source(2)
    through = cutoff(level.map(lambda x: x // 4))
    op = zip_ops(through.map(lambda x: x * 100), divisor.map(lambda d: 6 // d))
    trial = Trial(op, [level, divisor])
    trial.check()
    with batch():
        level.set(9)
        divisor.set(0)
    with pytest.raises(ZeroDivisionError) as caught:
        trial.update()
    assert any("the closure of .map at" in note for note in caught.value.__notes__)
    divisor.set(3)
    assert trial.check() == (200, 2)


def test_a_value_of_another_type_or_shape_takes_another_trace() -> None:
    """A closure may give an int, then a float, then an array, and arrays of several shapes."""
    kind = source(0)
    values: list[Any] = [1, 2.5, np.ones(3, np.float32), np.ones((2, 2), np.float32), "text", None, (1, "a")]
    trial = Trial(kind.map(lambda index: values[index]).map(lambda x: x), [kind])
    for index in range(len(values)):
        kind.set(index)
        trial.check()


def test_a_chain_is_as_long_as_memory_allows() -> None:
    """A chain of 3,000 closures is compiled in pieces, and meets no recursion limit."""
    level = source(0)
    op: Op = level
    for _ in range(3000):
        op = op.map(lambda x: x + 1)
    trial = Trial(op, [level])
    for value in (0, 5, -3):
        level.set(value)
        assert trial.update() == value + 3000
