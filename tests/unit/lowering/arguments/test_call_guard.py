"""The guard of a pipeline's plan: it accepts a call only if the key would, and a refused call ends as without it."""

from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from itertools import permutations
from typing import Any, NamedTuple, final
from unittest.mock import patch

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import DeviceOp, empty, full, pipeline, use_device, value
from dagpu.common.errors import DagpuError
from dagpu.lowering.arguments.cache_key import flatten_op
from dagpu.lowering.arguments.call_guard import CallGuard, ItemsRow, LeafBinding, TokenRow, guard_call
from dagpu.ops.compose import Pure, Then, Value
from dagpu.runtime.calls.direct_call import MISS
from tests.programs.arithmetic import add, scale
from tests.support.check_mutants import check_mutants
from tests.unit.lowering.arguments.structure_keys import Colour, Pair, named, shared, tensor


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


class Other(NamedTuple):
    """A tuple with the same names as `Pair`."""

    left: Any
    right: Any


TINY = np.dtype([("a", np.int8), ("b", np.int32)])
ALIGNED = np.dtype({"names": ["a", "b"], "formats": [np.int8, np.int32], "offsets": [0, 1], "itemsize": 5})

ARRAYS: list[Callable[[], Any]] = [
    lambda: np.zeros(2, np.float32), lambda: np.zeros(2, ">f4"), lambda: np.zeros(2, np.float64),
    lambda: np.zeros(4, np.float32)[::2], lambda: np.zeros((2, 1), np.float32), lambda: np.float32(0),
    lambda: np.zeros(2, np.dtype("f4", metadata={"a": 1})), lambda: np.zeros(2, TINY), lambda: np.zeros(2, ALIGNED),
    lambda: np.zeros(2, np.dtype([("a", "i4")])), lambda: np.zeros(2, np.dtype([("a", "i4")], align=True)),
    lambda: np.zeros((), np.float32), lambda: np.zeros(2, np.longlong), lambda: np.zeros(2, np.int64),
]  # fmt: skip
PLAIN: list[Any] = [
    1, 2, True, False, 0.0, -0.0, 1.0, float("nan"), 1j, complex(0.0, -0.0), "1", "a", b"1", None, np.float64(1),
    np.float32(1), np.int64(1), np.bool_(True), Colour.RED, Colour.BLUE, Picky.A, Picky.B, Lax.A, Lax.B, int, float,
    First, Second, np.dtype("f4"), np.dtype(">f4"), np.dtype("S3"), np.dtype("S4"), TINY, ALIGNED, named(0), named(1),
    Other(1, 2), Pair(1, 2), (1, 2), [1, 2], {}, (), [],
]  # fmt: skip


@final
class Handles:
    """Tensors, of which an example uses some, several times, or after they have been moved."""

    def __init__(self) -> None:
        t, s, small = tensor(), shared(), tensor(shape=(1, 2))
        gone, lent = tensor(), tensor()
        void = gone.borrow()
        gone.share()
        self.all: list[Any] = [
            t, t.borrow(), s, s.clone(), shared(), tensor(), lent.borrow(), lent.borrow_mut(), small, gone, void,
            full((2, 2), 1, dtype=np.float64).sync(), tensor().partition((1, 2)),
            tensor().partition((2, 1)), lent.borrow_mut().partition((1, 2)), s.reshape((4,)),
            lent.borrow().slice(slice(0, 1), slice(0, 2)),
        ]  # fmt: skip


HANDLES = 17


def leaves() -> st.SearchStrategy[Any]:
    """Strategy of descriptions of leaves: a handle's or an object's number, or a new object."""
    return st.one_of(
        st.tuples(st.just("handle"), st.integers(0, HANDLES - 1)),
        st.tuples(st.just("array"), st.integers(0, len(ARRAYS) - 1)),
        st.tuples(st.just("known"), st.integers(0, len(ARRAYS) - 1)),
        st.tuples(st.just("plain"), st.integers(0, len(PLAIN) - 1)),
    )


KEYS = ("a", 1, 1.0, True, None, -0.0, 0.0)
TREES = st.recursive(
    leaves(),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["tuple", "list", "Pair", "Other"]), st.lists(inner, min_size=2, max_size=2)),
        st.tuples(st.just("dict"), st.lists(st.tuples(st.sampled_from(KEYS), inner), max_size=2)),
    ),
    max_leaves=4,
)


def built(tree: Any, handles: Handles, arrays: list[Any]) -> Any:
    """The argument that a description describes."""
    kind, what = tree
    if kind == "handle":
        return handles.all[what]
    if kind == "array":
        return ARRAYS[what]()
    if kind == "known":
        return arrays[what]
    if kind == "plain":
        return PLAIN[what]
    if kind == "dict":
        return {k: built(v, handles, arrays) for k, v in what}
    items = [built(each, handles, arrays) for each in what]
    makers: dict[str, Callable[[list[Any]], Any]] = {
        "tuple": tuple, "list": list, "Pair": Pair._make, "Other": Other._make
    }  # fmt: skip
    return makers[kind](items)


def reading(*_: object, **__: object) -> DeviceOp[Any]:
    """The function of a pipeline that is never called."""
    return value(1)


CALL = pipeline(reading)


def changed(draw: Callable[[Any], Any], tree: Any) -> Any:
    """The same description, or one that differs in a place."""
    if draw(st.integers(0, 3)) == 0:
        return draw(TREES)
    kind, what = tree
    if kind == "dict":
        return kind, [(k, changed(draw, v)) for k, v in what]
    return (kind, [changed(draw, each) for each in what]) if isinstance(what, list) else tree


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_a_guard_accepts_only_calls_with_the_key_of_its_own(data: st.DataObject) -> None:
    """For nested values, aliases, moved handles and look-alikes: what it accepts has the key, and the same leaves; the
    call itself is accepted."""
    with use_device("host"):
        handles, arrays = Handles(), [make() for make in ARRAYS]
        one = data.draw(st.lists(TREES, max_size=3))
        names = data.draw(st.lists(st.sampled_from("xyz"), unique=True, max_size=2))
        other = [changed(data.draw, each) for each in one]
        other_names = names if data.draw(st.booleans()) else data.draw(st.permutations(names))
        first, second = ([built(each, handles, arrays) for each in trees] for trees in (one, other))
        count = data.draw(st.integers(0, min(len(names), len(first))))
        calls = [
            (tuple(v[: len(v) - count]), tuple(zip(n, v[len(v) - count :], strict=False)))
            for v, n in ((first, names), (second, other_names))
        ]
        found = [_flat(*call) for call in calls]
        if found[0] is None:
            return
        guard = guard_call(*calls[0], found[0].leaves, [LeafBinding()] * len(found[0].leaves))
        if guard is None:
            return
        accept = accepting(guard)
        for call, flat in zip((calls[0], calls[1]), found, strict=True):
            leaves = accept(*call)
            accepted = leaves is not MISS
            assert accepted or call is calls[1]
            if accepted:
                assert flat is not None
                assert flat.key == found[0].key
                assert list(map(id, leaves)) == list(map(id, flat.leaves))


def accepting(guard: CallGuard) -> Callable[..., Any]:
    """A function that returns the leaves of a call that the guard accepts."""

    def accept(arguments: Any, named: Any) -> Any:
        found = guard.read(arguments, named)
        return MISS if found is None else found[1]

    return accept


def _flat(arguments: tuple[Any, ...], names: tuple[Any, ...]) -> Any:
    """The key and leaves of a call; None if it has none."""
    with suppress(DagpuError):
        known = CALL(1)
        assert isinstance(known, Then)
        assert isinstance(known.f, Pure)
        return flatten_op(Then(Value((arguments, names), None), known.f, None))
    return None


class Noted(Pair):
    """A named tuple that takes attributes, of which no guard knows."""


def odd_pairs() -> list[tuple[Any, Any]]:
    """Any two of the plain values, and named tuples with and without an attribute."""
    noted = Noted(1, 2)
    noted.note = 1  # type: ignore[attr-defined]  # reason: a class without slots
    items = [((1, "a"), (1, "b")), ({"a": 1}, {"b": 1}), ({"a": "a"}, {"a": "b"})]
    return [*permutations([*PLAIN, Noted(1, 2)], 2), (Noted(1, 2), noted), *items]


def accepts_wrongly() -> list[tuple[Any, Any]]:
    """The pairs of which the guard of a call with the one accepts a call with the other, which has another key."""
    found = []
    for one, other in odd_pairs():
        first, second = _flat((one,), ()), _flat((other,), ())
        guard = None if first is None else guard_call((one,), (), first.leaves, [LeafBinding()] * len(first.leaves))
        if guard is not None and guard.read((other,), ()) is not None and (second is None or first.key != second.key):
            found.append((one, other))
    return found


def is_wrong() -> bool:
    """True if a value is accepted for another, or if it is read as one of another kind, which fails."""
    try:
        return accepts_wrongly() != []
    except (AssertionError, IndexError, TypeError):
        return True


def test_a_guard_tells_all_plain_values_apart() -> None:
    """As keys do: of no two values that a key tells apart is one accepted for the other, and each condition of the rows
    is needed for that."""
    with use_device("host"):
        assert accepts_wrongly() == []
        for row in (TokenRow, ItemsRow):
            for what, mutant in check_mutants(row.find):
                with patch.object(row, "find", mutant):
                    assert is_wrong(), what


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
        flat = _flat(call, ())
        guard = guard_call(call, (), flat.leaves, [LeafBinding()] * len(flat.leaves))
        assert guard is not None
        accept = accepting(guard)
        assert list(map(id, accept(call, ()))) == list(map(id, (one, array, other)))
        assert accept((other, [array, other], array, one), ()) is not MISS
        assert accept((one, [array, other], array, one), ()) is MISS
        assert accept((one, [array, one], array.copy(), other), ()) is MISS
        assert accept((one, [array, one], array, one), ()) is MISS


def test_a_pipeline_that_gets_one_tensor_twice_is_called_directly() -> None:
    """The plan of such calls has a direct call, and calls with two tensors have a plan of their own."""
    with use_device("host"):
        twice = pipeline(lambda x, y: add(empty((2, 2)).partition((2, 2)), x, y).first().unpartition().to_host())
        one, other = full((2, 2), 3).share().sync(), full((2, 2), 4).share().sync()
        for x, y, total in ((one, one, 6), (other, other, 8), (one, other, 7), (one, one, 6), (other, other, 8)):
            assert (twice(x, y).sync() == total).all()
        assert twice.source
        assert twice.cache_info().misses == 2
