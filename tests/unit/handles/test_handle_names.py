"""Operations that a handle refuses: reading its contents, names that it lacks, and comparisons."""

import operator
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import trio

from dagpu import DeviceOp, NotReadyError, Tensor, zeros
from dagpu.handles import ARRAY_NAMES, HANDLE_NAMES, OP_NAMES


def tensor(shape: tuple[int, ...] = (4, 6)) -> Tensor[Any]:
    """A tensor whose errors name this file."""
    return zeros(shape).sync()


CONTENTS: list[Callable[[Any], object]] = [
    np.asarray,
    float,
    int,
    complex,
    bool,
    iter,
    len,
    operator.index,
    lambda h: h[0],
    lambda h: operator.setitem(h, 0, 1),
    lambda h: 3 in h,
]


# ---- contents


@pytest.mark.parametrize("read", CONTENTS, ids=range(len(CONTENTS)))
@pytest.mark.parametrize(
    "handle",
    [lambda: tensor(), lambda: tensor().share(), lambda: tensor().borrow(), lambda: tensor().borrow_mut()],
    ids=["Tensor", "SharedTensor", "TensorRef", "TensorMut"],
)
def test_a_handle_never_yields_its_contents(read: Callable[[Any], object], handle: Callable[[], Any]) -> None:
    """Outside a closure and inside one it is NotReadyError, which says where it was made and `.to_host()`."""
    attempts: list[Callable[[], object]] = [lambda: read(handle()), lambda: zeros((2,)).map(read).sync()]
    for attempt in attempts:
        with pytest.raises(NotReadyError, match=r"\.to_host\(\)") as caught:
            attempt()
        assert __file__ in str(caught.value)


@pytest.mark.parametrize("read", [np.asarray, float, bool, iter, len, lambda h: h[0]], ids=range(6))
def test_nor_does_a_partition(read: Callable[[Any], object]) -> None:
    """Its cure begins with `.unpartition()`."""
    with pytest.raises(NotReadyError, match=r"\.unpartition\(\)"):
        read(tensor().partition((2, 2)))


def test_nor_does_a_partition_as_a_number() -> None:
    """int() and the like, as for the other handles."""
    reads: list[Callable[[Any], object]] = [int, complex, operator.index]
    for read in reads:
        with pytest.raises(NotReadyError):
            read(tensor().partition((2, 2)))


KINDS: list[Callable[[Tensor[Any]], Any]] = [
    lambda t: t,
    lambda t: t.share(),
    lambda t: t.borrow(),
    lambda t: t.borrow_mut(),
    lambda t: t.partition((2, 3)),
]
"""Each kind of handle, made of a tensor."""

TOLD = HANDLE_NAMES.keys() | ARRAY_NAMES | OP_NAMES


# ---- names that a handle lacks, and comparisons


def test_the_tables_have_every_name() -> None:
    """The tables list every name that ops have and handles lack, and every name of arrays: they are as long as the
    classes.
    """
    assert {name for name in dir(DeviceOp) if name[0] != "_"} - HANDLE_NAMES.keys() == OP_NAMES
    assert all(hasattr(np.ndarray, name) or name in ("cpu", "get", "numpy") for name in ARRAY_NAMES)
    assert all(HANDLE_NAMES[name] == callable(getattr(Tensor, name)) for name in HANDLE_NAMES if hasattr(Tensor, name))


@pytest.mark.parametrize("kind", KINDS)
def test_a_handle_says_what_to_write_for_a_name_that_it_lacks(kind: Callable[[Tensor[Any]], Any]) -> None:
    """Whatever arrays, ops or other handles have: an AttributeError with the place where the handle was made, and a
    cure. For other names it is Python's own, so that protocols are looked for in vain."""
    lender = tensor()
    handle = kind(lender)
    made = rf"{re.escape(__file__)}:\d+"
    for name in sorted(TOLD - set(dir(handle))):
        with pytest.raises(AttributeError) as caught:
            getattr(handle, name)
        text = str(caught.value)
        assert re.fullmatch(rf"{re.escape(repr(handle))} made at {made} has no '{name}'\. [A-Z].*\.", text)
    for name in ("no_such", "_repr_png_", "__array_interface__"):
        assert not hasattr(handle, name)


@pytest.mark.parametrize("kind", KINDS)
def test_comparing_a_handle_with_contents_is_refused(kind: Callable[[Tensor[Any]], Any]) -> None:
    """With a number or an array: the contents are not there. Two handles are equal that are one object, and a handle
    differs from what has no contents."""
    handle = kind(tensor())
    for other in (1, 2.5, True, 1j, np.float32(3), np.ones((4, 6))):
        for compare in (operator.eq, operator.ne):
            with pytest.raises(NotReadyError):
                compare(handle, other)
            with pytest.raises(NotReadyError):
                compare(other, handle)
    same = handle
    assert handle == same
    assert handle != kind(tensor())
    assert handle != "text"
    assert handle is not None
    assert {handle: 1}[handle] == 1
    assert hash(handle) == object.__hash__(handle)


@pytest.mark.parametrize("kind", KINDS[:4])
def test_ordering_a_handle_is_refused(kind: Callable[[Tensor[Any]], Any]) -> None:
    """Comparing handles by order is refused, as is arithmetic."""
    for compare in (operator.lt, operator.le, operator.gt, operator.ge, operator.mod, operator.floordiv):
        with pytest.raises(NotReadyError):
            compare(kind(tensor()), 1)


def test_awaiting_a_handle_says_that_it_is_there() -> None:
    """With the place of the await."""

    t: Any = tensor()

    async def main() -> None:
        await t

    with pytest.raises(TypeError) as caught:
        trio.run(main)
    assert re.match(rf"await at {re.escape(__file__)}:\d+ of Tensor\(float32, \(4, 6\), ", str(caught.value))
