"""Operations that a handle refuses: reading its contents, names that it lacks, and comparisons."""

import math
import operator
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import trio

from dagpu import DeviceOp, NotReadyError, Tensor, source, value, zeros
from dagpu.handles import ARRAY_NAMES, HANDLE_NAMES, OP_NAMES, HandleBase


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
    """With a number, an array, another handle or an op: the contents are not there. A handle is equal to itself, and
    differs from what has no contents, so it is a key of a dict, with the hash of its identity."""
    handle = kind(tensor())
    for other in (1, 2.5, True, 1j, np.float32(3), np.ones((4, 6)), kind(tensor()), tensor().share(), zeros((2,))):
        for compare in (operator.eq, operator.ne):
            with pytest.raises(NotReadyError):
                compare(handle, other)
            with pytest.raises(NotReadyError):
                compare(other, handle)
    same = handle
    assert handle == same
    assert handle != "text"
    assert handle is not None
    assert {handle: 1}[handle] == 1
    assert hash(handle) == object.__hash__(handle)


OPERATORS: list[Callable[..., object]] = [
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, divmod),
    *(operator.pow, operator.matmul, operator.lshift, operator.rshift, operator.and_, operator.or_, operator.xor),
    *(operator.lt, operator.le, operator.gt, operator.ge),
]
UNARY: list[Callable[[Any], object]] = [operator.neg, operator.pos, operator.invert, abs, round, math.trunc, reversed]


@pytest.mark.parametrize("kind", [*KINDS, lambda _: zeros((4, 6)), lambda _: source(2.0), lambda t: value(t).shared()])
def test_all_operators_of_arrays_are_refused(kind: Callable[[Tensor[Any]], Any]) -> None:
    """On a handle or an op, on either side: NotReadyError, which says where it was made and how to get the contents.
    The operators are those of NumPy's arrays, all of them."""
    x = kind(tensor())
    attempts = [partial(f, x) for f in (*CONTENTS, *UNARY) if isinstance(x, HandleBase) or f not in (bool, iter)]
    for compute in OPERATORS:
        attempts += [partial(compute, x, 2), partial(compute, 2, x), partial(compute, x, kind(tensor()))]
    for attempt in attempts:
        with pytest.raises((NotReadyError, TypeError), match=r"to_host\(\)|sync\(\)") as caught:
            attempt()
        assert __file__ in str(caught.value)
    theirs = {name for name in dir(np.ndarray) if name.startswith("__")} - set(dir(object)) - NO_OPERATORS
    assert not {name for name in theirs if not name.startswith("__i")} - set(dir(type(x)))


NO_OPERATORS = {
    *("__array_finalize__", "__array_function__", "__array_interface__", "__array_namespace__", "__array_prepare__"),
    *("__array_priority__", "__array_struct__", "__array_ufunc__", "__array_wrap__", "__buffer__", "__class_getitem__"),
    *("__copy__", "__deepcopy__", "__dlpack__", "__dlpack_device__", "__setstate__"),
}
"""Methods of NumPy's arrays by which libraries talk to each other, and those of copies."""


@pytest.mark.parametrize(("kind", "says"), [(KINDS[0], ".slice("), (KINDS[1], ".slice("), (KINDS[2], ".slice(")])
def test_square_brackets_name_slice(kind: Callable[[Tensor[Any]], Any], says: str) -> None:
    """A part of a tensor is cut on its device; the op of a tensor says so, too."""
    whole: list[Any] = [kind(tensor()), zeros((3, 4))]
    for wrong in whole:
        with pytest.raises((NotReadyError, TypeError), match=re.escape(says)):
            wrong[1:, ::2]


def test_comparing_an_op_with_contents_is_refused() -> None:
    """By `==`, `!=` and `in`, with a number, an array, a handle or another op: it has not run. An op is equal to
    itself, and a key of a dict beside others, with the hash of its identity, which no other object has."""
    op: Any = zeros((3,))
    for other in (1, 3.0, True, np.float32(3), np.ones(3), zeros((3,)), tensor()):
        for compare in (operator.eq, operator.ne):
            for one, two in ((op, other), (other, op)):
                with pytest.raises(NotReadyError, match=r"sync\(\)"):
                    compare(one, two)
    with pytest.raises(NotReadyError):
        assert 3.0 in [op, None]
    same = op
    assert op == same
    assert op != "text"
    assert op in [op, None]
    assert hash(op) == object.__hash__(op)
    ops = [zeros((3,)) for _ in range(100)]
    numbered = {each: i for i, each in enumerate(ops)}
    assert [numbered[each] for each in ops] == list(range(100))


def test_awaiting_a_handle_says_that_it_is_there() -> None:
    """With the place of the await."""

    t: Any = tensor()

    async def main() -> None:
        await t

    with pytest.raises(TypeError) as caught:
        trio.run(main)
    assert re.match(rf"await at {re.escape(__file__)}:\d+ of Tensor\(float32, \(4, 6\), ", str(caught.value))
