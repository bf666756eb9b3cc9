"""The reader in C accepts a call exactly if the guard in Python does, which is if their keys are equal. What the two
return is the same, and a call that begins has the same effects."""

from collections.abc import Iterator
from itertools import permutations
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import use_device
from dagpu.common.compiled import READER
from dagpu.handles import HANDLES
from dagpu.tracing.cache_key import flatten_op
from dagpu.tracing.call_guard import LeafBinding, guard_op
from dagpu.tracing.value_kinds import PLAIN_VALUE
from tests.compiled.readings import NUMBERS, SPOILS, Readers, a_loaded_plan, binding_of, check_begin, disagreements
from tests.compiled.readings import guard_of as guard_of_call
from tests.programs.expressions import Building, Op, build
from tests.programs.strategies import shapes
from tests.support.reused_ops import pure, renumbered
from tests.unit.tracing.arguments.known_calls import Known, two_calls
from tests.unit.tracing.arguments.odd_values import FORMS, ODD
from tests.unit.tracing.arguments.structure_keys import key

pytestmark = pytest.mark.skipif(READER is None, reason="there is no compiled reader")

BROKEN: Final = (ZeroDivisionError,)
"""What the tests' own functions raise, by both readers."""


@pytest.fixture(name="loaded", scope="module")
def any_plan() -> Any:
    with use_device("host"):
        return a_loaded_plan()


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_calls_are_read_alike(loaded: Any, data: st.DataObject) -> None:
    """Two calls whose nested arguments are the same or differ in one place, with any use of the leaves; handles are
    moved, lost or changed between the calls."""
    with use_device("host"):
        first, second = two_calls(data)
        if first.table is None:
            return
        choice = data.draw(st.integers(0, 200))
        uses = [binding_of(leaf, at, choice + at * 5) for at, leaf in enumerate(first.table.leaves)]
        plain = first.guard()
        guard = first.guard(uses, 2 * len(uses))
        if guard is None or plain is None:
            return
        for readers, calls in ((Readers(plain), (first, second)), (Readers(guard), (first, second))):
            for call in calls:
                found = _read(readers, call)
                assert found is None or call.key == first.key
                assert readers.guard is guard or (found is not None) == (call.key == first.key)
                if found is not None:
                    check_begin(found, loaded, ("a place", choice))
        handles = [] if second.table is None else [each for each in second.table.leaves if type(each) in HANDLES]
        if handles:
            data.draw(st.sampled_from(SPOILS[:-1]))(data.draw(st.sampled_from(handles)))
            for readers in (Readers(plain), Readers(guard)):
                _read(readers, second)


def _read(readers: Readers, call: Known) -> Any:
    try:
        return readers.read(call.call.arguments, call.call.named)
    except BROKEN:
        return None


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.one_of(st.sampled_from(NUMBERS), st.integers(), st.floats()), min_size=1, max_size=4),
    st.integers(0, 50),
)
def test_numbers_are_read_alike(numbers: list[Any], choice: int) -> None:
    """At the limits of the types of C, beyond them, and of other types of Python."""
    first = tuple([0.5 if type(number) is float else 1 for number in numbers])
    uses = [binding_of(number, at, 2 + 3 * (choice + at)) for at, number in enumerate(first)]
    readers = Readers(guard_of_call(first, uses, 2 * len(first)))
    for call in (tuple(numbers), (*numbers, 1), tuple(numbers[:-1])):
        try:
            found = readers.read(call)
        except BROKEN:
            continue
        assert found is None or [*map(type, call)] == [*map(type, first)]


def readers_of_op(op: Op) -> Readers | None:
    inputs = flatten_op(op)
    if inputs is None:
        return None
    uses = [binding_of(leaf, at, 2 + at) for at, leaf in enumerate(inputs.leaves)]
    if any(type(leaf) in (int, float) for leaf in inputs.leaves):
        uses = [LeafBinding()] * len(inputs.leaves)
    guard = guard_op(op, inputs, uses, 2 * len(uses))
    return None if guard is None else Readers(guard)


@settings(max_examples=60)
@given(shapes.flatmap(pure), shapes.flatmap(pure), st.integers(1, 5))
def test_plain_ops_are_read_alike(loaded: Any, e: Any, other: Any, by: int) -> None:
    """Random ops, those of the same description with other numbers and contents, and others."""
    op = build(e, Building())
    readers = readers_of_op(op)
    if readers is None:
        return
    for each in (op, build(renumbered(e, by), Building()), build(other, Building())):
        found = readers.read(each)
        assert (found is not None) == (key(each) == key(op))
        if found is not None:
            check_begin(found, loaded, None)


@pytest.mark.parametrize("form", sorted(FORMS))
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::RuntimeWarning")
def test_odd_values_are_read_alike(form: str) -> None:
    """Values that Python calls equal and a trace does not, wherever a program may write one."""

    def made() -> Iterator[tuple[Op, Readers]]:
        for value in ODD:
            try:
                op = FORMS[form](value)
            except Exception:  # refused where it is written
                continue
            readers = readers_of_op(op)
            if readers is not None:
                yield op, readers

    with use_device("host"):
        for (op, readers), (other, _) in permutations(list(made()), 2):
            assert (readers.read(other) is not None) == (key(op) == key(other))


def test_nothing_is_read_or_begun_differently() -> None:
    """Each kind of value read for each other, numbers at the limits, many handles, locks and moves."""
    assert list(disagreements()) == []


def test_rows_that_are_wrong_are_refused() -> None:
    """The reader trusts no index of a table."""
    with use_device("host"):
        guard = guard_of_call((1, 2.0), [LeafBinding(), LeafBinding()], 1)
        for name, rows in (
            ("equal", [(9, int, 1)]), ("same", [(-1, None)]), ("again", [(0, 2)]), ("different", {7}),
            ("checks", [(5, PLAIN_VALUE, 1)]), ("leaf_places", [3]), ("inner", [(0, tuple, 1, None, ..., 0)]),
            ("same", [(1,)]), ("same", [1]),
        ):  # fmt: skip
            before = getattr(guard, name)
            setattr(guard, name, rows)
            with pytest.raises((ValueError, TypeError)):
                Readers(guard)
            setattr(guard, name, before)
        Readers(guard)


@pytest.mark.parametrize(
    "reading",
    [
        None, (), ([], [], [], []), ([], [], [], [], ()), ([], [], [], [], [1]), ([], [], [], [], [(0, 1, 2)]),
        ([], [], [1], [], []),
    ],
)  # fmt: skip
def test_only_what_a_reader_returns_begins(loaded: Any, reading: Any) -> None:
    with pytest.raises(TypeError):
        READER.begin(reading, loaded, None)
    with pytest.raises(TypeError):
        READER.end(reading)
    with pytest.raises(TypeError):
        READER.begin(([], [], [], [], []), None, None)
