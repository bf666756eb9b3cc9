"""One table has three uses, which agree: equal keys, a guard that accepts, and equal stand-ins come all or none."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, Final
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import use_device
from dagpu.tracing import cache_key, value_kinds
from dagpu.tracing.call_guard import Guard
from dagpu.tracing.flattened import CacheKey, Row
from tests.support.check_mutants import check_mutants
from tests.unit.tracing.arguments.known_calls import Known, pairs_differ, two_calls


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_key_guard_and_stand_ins_agree(data: st.DataObject) -> None:
    """For two calls whose nested arguments are the same or differ in one place: if one of them says that one plan
    serves both, all do."""
    with use_device("host"):
        first, second = two_calls(data)
        equal = first.key == second.key
        assert equal == (first.told == second.told)
        for mine, its in ((first, second), (second, first)):
            guard = mine.guard()
            if guard is not None:
                assert mine.is_read_by(guard)
                assert its.is_read_by(guard) == equal


# ---- each condition is needed


def disagreements(calls: Sequence[Known]) -> Iterator[tuple[object, object]]:
    """Iterate over the pairs of calls of which the guard of one accepts the other, whose key is another, or refuses it
    although it is equal."""
    for one in calls:
        guard = one.guard()
        if guard is None:
            continue
        for other in calls:
            try:
                agrees = other.is_read_by(guard) == (one.key == other.key)
            except Exception:  # it has looked at a value of another kind
                agrees = False
            if not agrees:
                yield one.trees, other.trees


CONDITIONS: Final[tuple[tuple[type[Any], str], ...]] = (
    (Guard, "read"), (Guard, "_find"), (Guard, "_accepts"), (value_kinds.PlainKind, "accepts"),
    (value_kinds.FixedKind, "accepts"), (value_kinds.Container, "found_items"), (value_kinds.ArrayKind, "read"),
    (cache_key.RecordKind, "accepts"), (cache_key.EqualKind, "accepts"), (cache_key.KernelKind, "accepts"),
)  # fmt: skip
"""The functions that may refuse a value. Those of handles and numbers are tried in tests.unit.runtime.
test_direct_guards."""


def test_a_guard_without_a_condition_disagrees_with_the_key() -> None:
    """Each condition is needed for that."""
    with use_device("host"):
        calls = pairs_differ()
        assert list(disagreements(calls)) == []
        tried = 0
        for owner, name in CONDITIONS:
            for what, mutant in check_mutants(getattr(owner, name)):
                tried += 1
                with patch.object(owner, name, mutant):
                    assert next(disagreements(calls), None) is not None, what
        assert tried > 15


FACTS: Final[dict[str, range]] = {
    "Handle": range(3, 10), "Number": range(3, 4), "Array": range(3, 5), "Again": range(2, 3), "Plain": range(2, 3),
    "Named": range(2, 3), "Fixed": range(2, 3), "Items": range(4, 5), "Dict": range(4, 6), "Composite": range(4, 6),
    "Record": range(4, 5), "Kernel": range(2, 3), "Equal": range(2, 3), "Node": range(4, 6),
}  # fmt: skip
"""The numbers of the facts of each kind of row on which a trace depends."""


def without(rows: Sequence[Row], kind: str, fact: int) -> CacheKey:
    """Return a key without one fact of the rows of one kind."""
    return CacheKey(tuple([
        (*row[:fact], *row[fact + 1 :]) if repr(row[0]) == kind and len(row) > fact else row for row in rows
    ]))  # fmt: skip


def test_a_key_without_a_fact_is_equal_for_calls_of_which_traces_differ() -> None:
    """Each fact of a row is needed."""
    with use_device("host"):
        calls = pairs_differ()
        for one, other in product(calls, calls):
            assert (one.key == other.key) == (one.told == other.told), (one.trees, other.trees)
        for kind, facts in FACTS.items():
            for fact in facts:
                known: dict[object, str | None] = {}
                keys = [(without(each.key.rows, kind, fact), each.told) for each in calls if each.key is not None]
                assert any(known.setdefault(key, told) != told for key, told in keys), (kind, fact)
