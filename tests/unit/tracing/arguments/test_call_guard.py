"""The guard of a pipeline's plan: it calls no code of the user's, and it tells one object twice from two objects."""

from enum import Enum
from typing import Any

import numpy as np

from dagpu import empty, full, pipeline, use_device
from dagpu.tracing.call_guard import LeafBinding, guard_call
from tests.programs.arithmetic import add, scale
from tests.unit.tracing.arguments.argument_trees import table_of
from tests.unit.tracing.arguments.structure_keys import shared


class Picky(Enum):
    """An enum whose comparison reads what only its members have."""

    A = 1
    B = 2

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Picky)
        return bool(self.value == other.value)

    def __hash__(self) -> int:
        return 1


class Lax(Enum):
    """An enum whose members are all equal to everything."""

    A = 1
    B = 2

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1


class _Meta(type):
    """The class of classes that are equal to everything."""

    def __eq__(cls, other: object) -> bool:
        return True

    def __hash__(cls) -> int:
        return 1


class First(metaclass=_Meta):
    """A class that is equal to every class."""


class Second(metaclass=_Meta):
    """Another one."""


def test_a_guard_calls_no_comparison_of_the_users() -> None:
    """An enum member or a class whose comparison raises, or is always true, is found by its identity."""
    with use_device("host"):
        for one, other in ((Picky.A, Picky.B), (Lax.A, Lax.B), (First, Second)):
            f = pipeline(lambda x, mode: scale(empty((2, 2)).partition((2, 2)), 2.0, x).first().unpartition().to_host())
            for mode in (one, one, one, other, one, other):
                assert (f(shared(), mode).sync() == 2).all()
            assert f.cache_info().misses == 2


def test_a_call_with_one_object_twice_has_a_guard_that_refuses_two_objects() -> None:
    """A shared tensor and an array that a call has twice are one leaf each, and another call needs the same pattern."""
    with use_device("host"):
        one, other, array = shared(), shared(), np.ones(2, np.float32)
        call: tuple[Any, ...] = one, [array, one], array, other
        table = table_of(call, ())
        assert table is not None
        guard = guard_call(call, (), table, [LeafBinding()] * len(table.leaves))
        assert guard is not None
        found = guard.read(call)
        assert found is not None
        assert list(map(id, found[1])) == list(map(id, (one, array, other)))
        assert guard.read((other, [array, other], array, one)) is not None
        for wrong in ((one, [array, other], array, one), (one, [array, one], array.copy(), other)):
            assert guard.read(wrong) is None
        assert guard.read((one, [array, one], array, one)) is None


def test_a_pipeline_that_gets_one_tensor_twice_is_called_directly() -> None:
    """The plan of such calls has a direct call, and calls with two tensors have a plan of their own."""
    with use_device("host"):
        twice = pipeline(lambda x, y: add(empty((2, 2)).partition((2, 2)), x, y).first().unpartition().to_host())
        one, other = full((2, 2), 3).share().sync(), full((2, 2), 4).share().sync()
        for x, y, total in ((one, one, 6), (other, other, 8), (one, other, 7), (one, one, 6), (other, other, 8)):
            assert (twice(x, y).sync() == total).all()
        assert twice.source
        assert twice.cache_info().misses == 2
