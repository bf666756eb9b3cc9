"""Values inside tuples, lists and dicts: one walk finds them and replaces them, however deep they lie."""

from collections import namedtuple
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from dagpu import (
    DeviceOp,
    MovedError,
    OwnershipError,
    Tensor,
    from_host,
    ones,
    pipeline,
    spawn,
    use_device,
    value,
    zip_ops,
)
from dagpu.common.containers import Composite, about_of, items_of, map_values, values_in
from dagpu.handles.tensors import has_owning_handle
from dagpu.testing import handles_in

Op = DeviceOp[Any, Any, Any]
S = (2,)
DEEP = 20_000
"""Far more than Python's stack holds."""


class Pair(NamedTuple):
    """A tuple with names."""

    left: Any
    right: Any


class Row(tuple[Any, ...]):  # noqa: SLOT001  # reason: it has attributes
    """A tuple whose class wants other arguments than its items, and which knows more than these."""

    def __new__(cls, a: Any, b: Any, name: str) -> "Row":
        made = super().__new__(cls, (a, b))
        made.name = name
        return made

    name: str


class Parts(Composite):
    """A value of several values."""

    __slots__ = ()


Odd = namedtuple("Odd", ["only"])  # noqa: PYI024  # reason: as older programs have them

nested = st.recursive(
    st.integers(-9, 9),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=2), inner, max_size=3),
        st.builds(Pair, inner, inner),
        st.builds(Row, inner, inner, st.just("x")),
        st.builds(Odd, inner),
        st.lists(inner, max_size=3).map(lambda items: Parts("x", tuple(items))),
    ),
    max_leaves=12,
)


def shape_of(value: Any) -> Any:
    """The containers of a value with their classes; recursion, for the depth that Hypothesis makes."""
    if isinstance(value, dict):
        return dict, [(key, shape_of(item)) for key, item in value.items()]
    if isinstance(value, Composite):
        return type(value), about_of(value), [shape_of(item) for item in items_of(value)]
    if isinstance(value, tuple | list):
        return type(value), getattr(value, "name", None), [shape_of(item) for item in value]
    return value


@given(nested)
def test_each_value_is_found_and_replaced_in_one_order(value: Any) -> None:
    """Values are found and replaced in the same order, from left to right.

    Containers keep their classes and other state.
    """
    found = list(values_in(value))
    seen: list[int] = []

    def noted(item: int) -> int:
        seen.append(item)
        return item + 100

    changed = map_values(noted, value)
    assert seen == found
    assert list(values_in(changed)) == [item + 100 for item in found]
    assert shape_of(map_values(lambda item: item - 100, changed)) == shape_of(value)


@given(nested)
def test_only_what_may_change_is_copied(value: Any) -> None:
    """With nothing changed a tuple comes back as it was, if no list or dict is in it; each list and dict is a new
    one."""
    same = map_values(lambda item: item, value)
    assert shape_of(same) == shape_of(value)
    if not has_mutable(value):
        assert same is value
    elif isinstance(value, list | dict):
        assert same is not value


def has_mutable(value: Any) -> bool:
    items = items_of(value) if isinstance(value, Composite) else value if isinstance(value, tuple) else ()
    return isinstance(value, list | dict) or any(map(has_mutable, items))


def test_what_is_no_container_is_not_looked_into() -> None:
    """A list of a class of one's own is an object like any other: what finds handles and what moves them agree."""

    class Mine(list[Any]):
        pass

    tensor: Any = ones(S).sync()
    held = Mine([tensor])
    assert not has_owning_handle(held)
    assert list(handles_in((held, 1))) == []
    assert value(held).sync() is held
    assert tensor.to_host().sync().tolist() == [1, 1]


LOOPS: dict[str, Callable[[Any], Any]] = {
    "a list": lambda loop: loop,
    "a list in a tuple": lambda loop: (1, (loop,)),
    "a list in a dict": lambda loop: {"a": {"b": loop}},
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_list_that_holds_itself_is_refused(name: str) -> None:
    """The error says where the value was given; an object around it is the cure, and works."""
    loop: list[Any] = [1]
    loop.append(loop)
    with pytest.raises(
        OwnershipError, match=rf"{__file__}:\d+ has a list in it that contains itself.*class of your own"
    ):
        value(LOOPS[name](loop))

    class Box:
        def __init__(self, held: Any) -> None:
            self.held = held

    assert value(Box(loop)).sync().held is loop


def test_one_list_in_two_places_is_no_loop() -> None:
    """Only what holds itself has no end."""
    twice = [1]
    assert value((twice, [twice, twice])).sync() == ([1], [[1], [1]])


# ---- results that are nested deeper than Python's stack


def deep_value(inner: Any) -> Any:
    for _ in range(DEEP):
        inner = (inner,)
    return inner


def bottom(value: Any) -> Any:
    """Return the innermost value."""
    depth = 0
    while isinstance(value, tuple):
        (value,) = value
        depth += 1
    assert depth == DEEP
    return value


def deep_zip(op: Op) -> Op:
    for _ in range(DEEP):
        op = zip_ops(op)
    return op


async def awaited_twice(op: Op) -> Any:
    async with trio.open_nursery() as nursery:
        pending = spawn(nursery, op)
        first = await pending
        assert bottom(await pending) is bottom(first)
        return first


ROUTES: dict[str, Callable[[], Any]] = {
    "value": lambda: value(deep_value(3)).sync(),
    "map": lambda: value(3).map(deep_value).sync(),
    "zip": lambda: deep_zip(value(3)).sync(),
    "zip of what comes later": lambda: deep_zip(value(3).host_map(int)).sync(),
    "host_map": lambda: value(3).host_map(deep_value).sync(),
    "the argument of host_map": lambda: deep_zip(value(3).host_map(int)).host_map(lambda x: x).sync(),
    "shared": lambda: [op := value(3).map(deep_value).shared(), op.sync(), op.map(lambda x: x).sync()][-1],
    "shared, later": lambda: [op := value(3).host_map(deep_value).shared(), op.sync(), op.sync()][-1],
    "spawn": lambda: trio.run(awaited_twice, value(3).map(deep_value)),
    "unzip": lambda: zip_ops(value(3).map(deep_value), ones(S)).unzip()[0].sync(),
    "a pipeline's result": lambda: pipeline(lambda: value(deep_value(3)))().sync(),
    "a pipeline's zips": lambda: [p := pipeline(lambda x: deep_zip(value(x))), p(3).sync(), p(3).sync()][-1],
    "then": lambda: value(deep_value(3)).then(value).sync(),
    "last": lambda: zip_ops(ones(S), value(deep_value(3))).last().sync(),
}


@pytest.mark.filterwarnings("ignore:.*its result is nested more than 20 deep")
@pytest.mark.parametrize("name", ROUTES)
def test_a_result_may_be_nested_as_deep_as_a_program_is_long(name: str) -> None:
    """Whatever way a value takes, no part of it meets Python's recursion limit."""
    assert bottom(ROUTES[name]()) == 3


@pytest.mark.host_only("they run on devices of their own")
def test_deep_results_of_the_explore_device() -> None:
    """Deeply nested results also work on the explore device, which runs nothing on threads."""
    with use_device("explore:0"):
        assert bottom(deep_zip(from_host(np.ones(S, np.float32)).to_host()).sync()).tolist() == [1, 1]


def test_deep_handles_move() -> None:
    """A tensor at the bottom of a deep value moves into the op, and into the run, as one at the top does."""
    tensor = ones(S).sync()
    op = value(deep_value(tensor))
    with pytest.raises(MovedError):
        tensor.borrow()
    found = bottom(op.sync())
    assert isinstance(found, Tensor)
    with pytest.raises(MovedError):
        op.sync()
    with pytest.raises(OwnershipError, match=r"unzip\(\) first"):
        value(deep_value(found)).shared().sync()
