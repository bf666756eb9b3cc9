"""A call that builds an op moves all handles among its arguments into the op, or where it is refused, none."""

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import (
    DagpuError,
    DeviceOp,
    MovedError,
    OwnershipError,
    Tensor,
    convert,
    dup,
    f32,
    f64,
    fill,
    memcpy,
    ones,
    pipeline,
    value,
    zip_ops,
)
from dagpu.handles import HANDLES, OWNING, last_move, move_handle, state_of
from dagpu.handles.tensors import move_handles
from dagpu.testing import handles_in
from tests.programs.arithmetic import add, axpy

Op = DeviceOp[Any, Any, Any]
S, TILE = (2, 2), (1, 2)
PATIENCE = 30.0
"""Seconds after which a test calls it a hang."""


@pipeline
def taking(*arguments: Any, **named: Any) -> Op:
    """Takes whatever it is given."""
    return ones(S)


KINDS: Final[dict[str, Callable[[Any], Any]]] = {
    "Tensor": lambda tensor: tensor,
    "SharedTensor": lambda tensor: tensor.share(),
    "TensorRef": lambda tensor: tensor.borrow(),
    "TensorMut": lambda tensor: tensor.borrow_mut(),
    "Partition": lambda tensor: tensor.partition(TILE),
    "Partition of a loan": lambda tensor: tensor.borrow_mut().partition(TILE),
    "TensorMut of a part": lambda tensor: tensor.borrow_mut().reshape((1, 4)),
}


def gone(handle: Any) -> Any:
    """Return the same handle, after moving it if it can be moved."""
    if type(handle) in OWNING:
        move_handle(handle, "a test", None)
    return handle


def looped(handle: Any) -> Any:
    """A list that holds the handle and itself."""
    loop: list[Any] = [handle]
    loop.append(loop)
    return loop


WRAPPED: Final[dict[str, Callable[[Any], Any]]] = {
    "itself": lambda x: x,
    "in a list": lambda x: [x, 1],
    "in a dict in a tuple": lambda x: ({"a": x},),
    "in a list with itself": looped,
    "twice": lambda x: (x, x),
}
text: Any = "a"
"""No number, and no element type."""

BUILDERS: Final[dict[str, Callable[..., Any]]] = {
    "value": lambda *xs: value(xs),
    "pipeline": lambda *xs: taking(*xs),
    "pipeline, by name": lambda *xs: taking(xs[0], k=list(xs[1:])),
    "add": lambda *xs: add(*xs[:3]),
    "axpy": lambda *xs: axpy(xs[0], 1.0, xs[1]),
    "axpy with a number that is none": lambda *xs: axpy(xs[0], text, xs[1]),
    "memcpy": lambda *xs: memcpy(xs[0], xs[1]),
    "dup": lambda *xs: dup(xs[0]),
    "convert": lambda *xs: convert(xs[0], f64),
    "convert to no type": lambda *xs: convert(xs[0], text),
    "fill": lambda *xs: fill(xs[0], 2),
    "fill with no number": lambda *xs: fill(xs[0], text),
    "zip_ops": lambda *xs: zip_ops(*xs),
    "to_host": lambda *xs: xs[0].to_host(),
    "partition": lambda *xs: xs[0].partition((2, 3)),
    "reshape": lambda *xs: xs[0].reshape((3,)),
}
"""All that takes handles and builds an op, or a handle."""

LOOKING_INTO: Final = ("value", "pipeline", "pipeline, by name")
"""Those that take all handles in containers too."""


def state(handle: Any) -> tuple[object, ...]:
    """All that a move changes of a handle: the state of a living one, the note of where it went of another."""
    living = state_of(handle)
    return id(living), last_move(handle) if living is None else None


arguments = st.lists(
    st.tuples(st.sampled_from(sorted(KINDS)), st.booleans(), st.sampled_from(sorted(WRAPPED))),
    min_size=3,
    max_size=4,
)


@pytest.mark.parametrize("builder", BUILDERS)
@settings(max_examples=40)
@given(arguments, st.lists(st.integers(0, 3), max_size=1))
def test_a_refused_build_moves_nothing(builder: str, drawn: Any, again: list[int]) -> None:
    """Whatever is wrong with the arguments, each handle among them is as it was; if nothing is, all have moved."""
    tensors = [ones(S).sync() for _ in drawn]
    handles: list[Any] = []
    passed: list[Any] = []
    for tensor, (kind, alive, wrapping) in zip(tensors, drawn, strict=True):
        handle = KINDS[kind](tensor)
        handles.append(handle if alive else gone(handle))
        passed.append(WRAPPED[wrapping](handle) if builder in LOOKING_INTO else handle)
    for index in again:
        passed[-1] = passed[index % len(passed)]
    before = [state(handle) for handle in handles]
    try:
        BUILDERS[builder](*passed)
    except (AttributeError, DagpuError, TypeError, ValueError):
        assert [state(handle) for handle in handles] == before
    else:
        if builder in LOOKING_INTO:
            assert all(state_of(handle) is None for handle in handles_in(passed) if type(handle) in OWNING)


REFUSED: Final[dict[str, tuple[Callable[[Any, Any], Any], type[Exception]]]] = {
    "a value with one that is gone": (lambda x, gone: value((x, gone)), MovedError),
    "a value with one twice": (lambda x, _: value((x, x)), MovedError),
    "a list that holds itself": (lambda x, _: value(looped(x)), OwnershipError),
    "a call with one that is gone": (lambda x, gone: taking(x, gone), MovedError),
    "a call with one twice": (lambda x, _: taking(x, x), MovedError),
    "a call with one twice, by name": (lambda x, _: taking(x, k=[x]), MovedError),
    "a call with a list that holds itself": (lambda x, _: taking(looped(x)), OwnershipError),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_was_refused_can_be_used(name: str) -> None:
    """The tensor is there with its contents, and the one that was gone still tells where it went."""
    build, error = REFUSED[name]
    x: Any = ones(S).sync()
    void: Any = ones(S).sync()
    void.share()
    with pytest.raises(error):
        build(x, void)
    assert (x.to_host().sync() == 1).all()
    with pytest.raises(MovedError, match=r"moved by share\(\)"):
        void.to_host()


def test_a_partition_that_was_refused_can_be_used() -> None:
    """It is whole, with the tensor in it."""
    part: Any = ones(S).sync().partition(TILE)
    void: Any = ones(S).sync()
    void.share()
    with pytest.raises(MovedError):
        value([part, void])
    assert (add(part, ones(S), ones(S)).first().unpartition().to_host().sync() == np.full(S, 2, f32)).all()


def test_a_lost_race_for_one_argument_leaves_the_others() -> None:
    """Two threads pass one shared tensor and another of their own to kernels: one thread is refused, and keeps its
    other tensor.
    """
    x: Any = ones(S).sync()
    mine: list[Any] = [ones(S).sync().partition(S) for _ in range(2)]
    both = threading.Barrier(2)

    def checked_together(value: Any, how: str, where: Any) -> Any:
        both.wait(PATIENCE)
        return move_handles(value, how, where)

    def call(part: Any) -> Any:
        try:
            return axpy(part, 1.0, x)
        except MovedError as error:
            return error

    with (
        patch.object(sys.modules["dagpu.kernels.decorator"], "move_handles", checked_together),
        ThreadPoolExecutor(2) as pool,
    ):
        built = list(pool.map(call, mine))
    refused = [index for index, found in enumerate(built) if isinstance(found, MovedError)]
    assert len(refused) == 1
    (kept,) = (mine[index] for index in refused)
    assert kept.unpartition().shape == S
    assert isinstance(built[1 - refused[0]].sync()[2], Tensor)


def test_every_kind_of_handle_is_tried() -> None:
    """The list above has all classes of handles."""
    assert {type(make(ones(S).sync())) for make in KINDS.values()} == HANDLES
