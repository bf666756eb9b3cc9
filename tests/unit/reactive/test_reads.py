"""Reads: a remembered value depends on the sources and cutoffs below its op, and on nothing that is met beside it."""

import gc
import weakref
from typing import Any

from dagpu import DeviceOp, cutoff, source, value, zip_ops
from dagpu.ops.compose import Cutoff, Shared, Then, Unzip
from dagpu.tracing.sources import Reads

A, B, C = source(1.0), source(2.0), source(3.0)
Op = DeviceOp[Any, Any, Any]


def remembered(op: Op) -> Shared[Any]:
    """The op as one whose value is remembered."""
    made: Any = op.shared()
    assert type(made) is Shared
    return made


def closure(op: Op) -> Then[Any]:
    """An op that a closure builds: the tests say what it has returned."""
    made: Any = op.then(lambda _: A)
    assert type(made) is Then
    return made


def sources_of(reads: Reads, node: Shared[Any] | Unzip[Any]) -> set[Any]:
    """What the value of a node depends on; each is there once."""
    found = reads.of(node.once)
    assert len(set(found)) == len(found)
    return set(found)


def plus(op: Op) -> Op:
    """An op on this one."""
    return op.map(lambda x: x + 1)


def test_a_value_depends_on_what_is_below_its_op() -> None:
    """Of nested values each has its own sources, and those of the values in it; a value beside them adds nothing."""
    inner = remembered(plus(A))
    middle = remembered(plus(zip_ops(inner, B)))
    outer, beside, constant = remembered(zip_ops(middle, A, A)), remembered(plus(C)), remembered(value(1))
    reads = Reads()
    for node in (outer, beside, middle, inner, constant):
        reads.start(node)
    assert sources_of(reads, inner) == {A}
    assert sources_of(reads, middle) == {A, B}
    assert sources_of(reads, outer) == {A, B}
    assert sources_of(reads, beside) == {C}
    assert sources_of(reads, constant) == set()


def test_the_order_in_which_a_run_meets_values_changes_nothing() -> None:
    """A value that was met by itself is found in another one, and the other way round."""
    for turned in (False, True):
        inner = remembered(plus(A))
        several = [remembered(zip_ops(inner, each)) for each in (B, C)]
        both = remembered(zip_ops(*several))
        reads = Reads()
        for node in [both, *several, inner][:: -1 if turned else 1]:
            reads.start(node)
        assert [sources_of(reads, each) for each in (*several, inner)] == [{A, B}, {A, C}, {A}]
        assert sources_of(reads, both) == {A, B, C}


def test_all_components_of_a_tuple_depend_on_its_source() -> None:
    """They are one remembered value. One that is built of a component depends on the same sources."""
    one, other = zip_ops(plus(A), plus(B)).unzip()
    assert type(one) is Unzip
    assert type(other) is Unzip
    built = remembered(plus(one))
    reads = Reads()
    reads.start(built)
    for node in (one, other, built):
        assert sources_of(reads, node) == {A, B}


def test_a_cutoff_is_read_with_the_sources_below_it() -> None:
    """Both count: a run from scratch has no cutoff."""
    cut: Any = cutoff(plus(A))
    node = remembered(zip_ops(cut, B))
    reads = Reads()
    reads.start(node)
    assert type(cut) is Cutoff
    assert sources_of(reads, node) == {cut, A, B}


def test_a_value_depends_on_what_closures_below_it_have_returned() -> None:
    """Also closures in closures, and remembered values that they build; closures beside it do not count."""
    outer, beside = closure(A), closure(A)
    node, other = remembered(plus(outer)), remembered(beside)
    reads = Reads()
    reads.start(node)
    reads.start(other)
    inner, made = closure(B), remembered(plus(C))
    reads.built(outer, plus(inner))
    reads.built(inner, zip_ops(made, made))
    reads.built(beside, value(1))
    assert sources_of(reads, node) == {A, B, C}
    assert sources_of(reads, made) == {C}
    assert sources_of(reads, other) == {A}


def test_a_closure_below_a_value_in_another_counts_for_both() -> None:
    """The outer value sees it through the inner one, also if the run met that first."""
    for turned in (False, True):
        called = closure(A)
        inner = remembered(called)
        outer = remembered(zip_ops(inner, C))
        reads = Reads()
        for node in (inner, outer) if turned else (outer, inner):
            reads.start(node)
        reads.built(called, plus(B))
        assert sources_of(reads, inner) == {A, B}
        assert sources_of(reads, outer) == {A, B, C}


def test_a_value_of_an_earlier_run_depends_on_what_that_one_has_read() -> None:
    """Not on what its op would read now: no closure below it is called."""
    earlier = remembered(closure(A))
    node, other = remembered(zip_ops(earlier, B)), remembered(plus(earlier))
    reads = Reads()
    reads.start(node)
    reads.used(earlier.once, {A: 3, C: 4})
    reads.start(other)
    assert sources_of(reads, earlier) == {A, C}
    assert sources_of(reads, node) == {A, B, C}
    assert sources_of(reads, other) == {A, C}


def test_a_part_that_ran_by_a_plan_of_its_own_counts_for_what_it_is_in() -> None:
    """Its closures were called there, so this run knows what they have read from that run alone."""
    part, beside = plus(closure(A)), closure(A)
    node, other = remembered(zip_ops(part, B)), remembered(beside)
    outer = remembered(plus(node))
    reads = Reads()
    for each in (outer, other):
        reads.start(each)
    reads.ran(part, {A: 1, C: 2})
    reads.built(beside, value(1))
    assert sources_of(reads, node) == {A, B, C}
    assert sources_of(reads, outer) == {A, B, C}
    assert sources_of(reads, other) == {A}


def test_no_op_that_a_closure_has_built_is_kept() -> None:
    """Once all closures have been called: it may hold handles, and what a handle refers to is a result of the run."""

    class Held:
        """What such an op holds."""

    called = closure(A)
    node = remembered(plus(called))
    reads = Reads()
    reads.start(node)
    held = Held()
    kept = weakref.ref(held)
    reads.built(called, zip_ops(plus(value(held)), B))
    del held
    reads.settle(depends=True)
    gc.collect()
    assert kept() is None
    assert sources_of(reads, node) == {A, B}


def test_a_long_row_of_values_takes_no_recursion() -> None:
    """Ten thousand values, each of the one before it, twice. Nor does it take a time that grows with the ways."""
    row = [remembered(plus(A))]
    for _ in range(10_000):
        row.append(remembered(zip_ops(row[-1], row[-1])))
    reads = Reads()
    reads.start(row[-1])
    assert sources_of(reads, row[-1]) == {A}
