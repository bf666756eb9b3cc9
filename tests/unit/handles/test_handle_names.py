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
def test_a_handle_is_a_key_by_its_identity(kind: Callable[[Tensor[Any]], Any]) -> None:
    """It differs from what has no contents, and has the hash of its identity."""
    handle = kind(tensor())
    assert handle != "text"
    assert handle is not None
    assert handle != [handle]
    assert {handle: 1}[handle] == 1
    assert handle in [handle, 1]
    assert hash(handle) == object.__hash__(handle)


UNARY: list[Callable[[Any], object]] = [round, math.trunc, reversed, partial(divmod, 7)]


@pytest.mark.parametrize("kind", [*KINDS, lambda _: zeros((4, 6)), lambda _: source(2.0), lambda t: value(t).shared()])
def test_what_reads_contents_is_refused(kind: Callable[[Tensor[Any]], Any]) -> None:
    """On a handle or an op: an error which says where it was made and what to do. The operators of NumPy's arrays are
    there, all of them."""
    x = kind(tensor())
    attempts = [partial(f, x) for f in (*CONTENTS, *UNARY) if isinstance(x, HandleBase) or f not in (bool, iter)]
    for attempt in attempts:
        with pytest.raises((NotReadyError, TypeError), match=r"to_host\(\)|sync\(\)|x // y, and x % y") as caught:
            attempt()
        assert __file__ in str(caught.value)
    theirs = {name for name in dir(np.ndarray) if name.startswith("__")} - set(dir(object)) - NO_OPERATORS
    assert not {name for name in theirs if not name.startswith("__i")} - set(dir(type(x)))


@pytest.mark.parametrize("compute", [operator.add, operator.eq, operator.matmul, operator.neg, operator.lt])
def test_a_partition_has_no_operators(compute: Callable[..., object]) -> None:
    """It is put together first."""
    operands = [tensor().partition((2, 3)) for _ in range(1 if compute is operator.neg else 2)]
    with pytest.raises(NotReadyError, match=r"\.unpartition\(\)"):
        compute(*operands)


NO_OPERATORS = {
    *("__array_finalize__", "__array_function__", "__array_interface__", "__array_namespace__", "__array_prepare__"),
    *("__array_priority__", "__array_struct__", "__array_ufunc__", "__array_wrap__", "__buffer__", "__class_getitem__"),
    *("__copy__", "__deepcopy__", "__dlpack__", "__dlpack_device__", "__setstate__"),
}
"""Methods of NumPy's arrays by which libraries talk to each other, and those of copies."""


def test_an_op_is_a_key_by_its_identity() -> None:
    """Beside others, with the hash of its identity, which no other object has."""
    op: Any = zeros((3,))
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
