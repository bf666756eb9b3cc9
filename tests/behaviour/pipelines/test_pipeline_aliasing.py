"""Pipelines: results, inputs and captured handles that share memory."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dagpu import (
    BorrowError,
    KernelArgumentError,
    MovedError,
    OwnershipError,
    Tensor,
    TensorMut,
    dup,
    f32,
    fill,
    from_host,
    full,
    ones,
    pipeline,
    value,
    zeros,
    zip_ops,
)
from dagpu.handles import origin_of
from dagpu.testing import Locks, storage_of
from tests.behaviour.pipelines.pipeline_calls import Calls, S, added, number_in, scaled, shared, tensor
from tests.behaviour.pipelines.pipeline_calls import no_plans_yet as no_plans_yet
from tests.programs.arithmetic import axpy, scale
from tests.programs.expressions import Op

W: list[Any] = []
"""What functions of the tests below close over: its first item."""


ALIASES: dict[str, tuple[Callable[[float], Any], Callable[[Any], Any], Callable[[Any], Op]]] = {
    "a clone": (shared, lambda s: s.clone(), lambda x: added(x, W[0].clone())),
    "the same handle": (shared, lambda s: s, lambda x: added(x, W[0])),
    "a clone of the argument too": (shared, lambda s: s, lambda x: added(x.clone(), W[0].reshape(S))),
    "a borrow": (tensor, lambda t: t.borrow(), lambda x: added(x, W[0].borrow())),
    "a slice": (tensor, lambda t: t.slice(slice(0, 2)), lambda x: added(x.slice(slice(0, 2)), W[0].borrow())),
    "in a value": (shared, lambda s: s, lambda x: zip_ops(value(x), value(W[0])).then(lambda p: added(p[0], p[1]))),
    "its own given back": (shared, lambda s: s, lambda x: dup(x).map(lambda _: W[0])),
    "the argument given back": (shared, lambda s: s, lambda x: added(W[0], W[0]).map(lambda _: x)),
    "an argument that is not used": (tensor, lambda t: t.borrow(), lambda x: scaled(2.0, W[0].borrow())),
    "a loan that is not used": (tensor, lambda t: t.borrow_mut(), lambda x: scaled(2.0, W[0].borrow())),
}


@pytest.mark.filterwarnings("ignore:.*is traced again in each run")
@pytest.mark.parametrize("name", ALIASES)
@pytest.mark.parametrize("order", [(0, 1, 2, 0, 1), (1, 0, 2, 0, 1)])
def test_an_argument_may_be_what_the_function_closes_over(name: str, order: tuple[int, ...]) -> None:
    """An argument may be a handle that the function closes over, and another one in the next call: the function
    keeps its own handle."""
    make, give, f = ALIASES[name]
    handles = [make(number) for number in (1.0, 10.0, 20.0)]
    W[:] = handles[:1]
    try:
        p = pipeline(f)
        found = [number_in(p(give(handles[k])).sync()) for k in order]
        plain = [number_in(value(give(handles[k])).then(f).sync()) for k in order]
        assert found == plain
    finally:
        W.clear()


def test_a_tensor_that_the_function_writes() -> None:
    """A tensor that the function writes may also be lent by an unused argument: each call writes it."""
    w, z = tensor(0), tensor(0)
    p = pipeline(lambda m: axpy(w.borrow_mut().partition(S), 1.0, ones(S)).map(lambda _: None))
    for argument in (w, z, w, z):
        p(argument.borrow_mut()).sync()
    assert (number_in(w), number_in(z)) == (4, 0)


@pytest.mark.filterwarnings("ignore:.*is traced again in each run")
def test_an_array_may_be_what_the_function_closes_over() -> None:
    """An array argument may be the array that the function closes over: copies and results are right."""
    h, other = np.ones(S, f32), np.full(S, 10, f32)
    p = pipeline(lambda x: zip_ops(added(from_host(x), from_host(h)).to_host(), value(None).map(lambda _: h)))
    for x in (h, other, h, other):
        found, mine = p(x).sync()
        assert found[0, 0] == x[0, 0] + 1
        assert mine is h


def test_arguments_that_share_memory() -> None:
    """Two of one memory, and two of two: plans of their own."""
    p = Calls(lambda x, y: zip_ops(added(x, y), value((x, y))))
    a, b = shared(1), shared(10)
    for x, y in ((a, a), (a, b), (b, b), (a, a.clone()), (b, a)):
        total, given_back = p(x, y).sync()
        assert number_in(total) == number_in(x) + number_in(y)
        assert given_back[0] is x
        assert given_back[1] is y


def test_a_conflict_of_borrows_is_one_in_each_call() -> None:
    """Writing what another part reads is refused, before and after the plan is there; nothing stays locked."""
    p = pipeline(lambda m, x: axpy(m.partition(S), 1.0, x).map(lambda _: None))
    t, u = tensor(1), tensor(2)
    p(t.borrow_mut(), u.borrow()).sync()
    for _ in range(2):
        with pytest.raises((BorrowError, KernelArgumentError)):
            p(t.borrow_mut(), t.borrow()).sync()
        p(t.borrow_mut(), u.borrow()).sync()
    assert number_in(t) == 7
    assert (storage_of(t).lock.writer, storage_of(t).lock.readers) == (None, 0)


def test_an_argument_that_is_not_used_is_not_locked() -> None:
    """A run that writes it is in nobody's way, in the first call and in later ones."""
    p = pipeline(lambda r, x: scaled(2.0, x))
    t = tensor(1)
    writer = Locks(None)
    writer.acquire({storage_of(t): True})
    for k in range(3):
        assert number_in(p(t.borrow(), shared(k)).sync()) == 2 * k
    writer.release()


def test_a_shared_argument_is_never_unwrapped() -> None:
    """The op holds it as well, so nobody could give it away: refused in the first call and in every other."""
    p = pipeline(lambda s: value(s.try_unwrap()))
    for _ in range(2):
        s = shared(1)
        with pytest.raises(OwnershipError, match="1 more handle") as caught:
            p(s).sync()
        del caught
        assert number_in(s) == 1


KINDS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Op]]] = {
    "a tensor": (lambda t: t, value),
    "a partition": (lambda t: t.partition(S), value),
    "a tensor out of a partition": (lambda t: t.partition(S), lambda p: value(p.unpartition())),
    "a partition of a tensor": (lambda t: t, lambda t: value(t.partition((1, 2)))),
    "shared by the function": (lambda t: t, lambda t: value(t.share())),
    "reshaped": (lambda t: t, lambda t: value(t.reshape((4,)))),
    "filled": (lambda t: t, lambda t: fill(t, 3)),
    "a shared tensor": (lambda t: t.share(), value),
    "a clone": (lambda t: t.share(), lambda s: value(s.clone())),
    "a borrow": (lambda t: t.borrow(), value),
    "a slice of a borrow": (lambda t: t.borrow(), lambda r: value(r.slice(slice(0, 1)))),
    "a loan": (lambda t: t.borrow_mut(), value),
    "a loan cut and put together": (
        lambda t: t.borrow_mut(),
        lambda m: value(m.partition(S).unpartition()),
    ),
    "a loan of an argument": (lambda t: t, lambda t: value(t.borrow_mut())),
    "a loan beside a borrow": (lambda t: (t.borrow(), t.borrow_mut()), lambda p: value(p[1])),
}


@pytest.mark.filterwarnings("ignore:.*no plan can make a part of its result, a Tensor(Ref|Mut)")
@pytest.mark.parametrize("name", KINDS)
def test_a_handle_that_comes_back(name: str) -> None:
    """It is of the kind, on the memory and from the place that the function alone would give, in each call."""
    give, f = KINDS[name]
    p = pipeline(f)
    try:
        for number in range(3):
            t, u = tensor(number), full(S, number).sync()
            memory = storage_of(t)
            found, plain = p(give(t)).sync(), value(give(u)).then(f).sync()
            assert type(found) is type(plain)
            assert storage_of(found) is memory
            assert repr(found) == repr(plain)
            assert (memory.lock.writer, memory.lock.readers) == (None, 0)
    finally:
        W.clear()


def test_a_partition_keeps_its_tiles() -> None:
    """Tiles of other sizes may make one grid, where those at the edges are smaller: each call has its own."""
    p = pipeline(lambda cut, x: scale(cut, 2.0, x))
    for tile in (3, 4, 3, 5):
        cut, _, _ = p(zeros((5, 2)).sync().partition((tile, 2), partial=True), shared(1, (5, 2))).sync()
        assert (cut.tile, cut.grid) == ((tile, 2), (-(-5 // tile), 1))
        assert (cut.unpartition().to_host().sync() == 2).all()


def test_a_partition_of_what_is_lent_is_lent() -> None:
    """One of an owned tensor and one of a loan: what comes back is of the kind that went in."""
    p = pipeline(lambda cut: scale(cut, 2.0, ones(S)).first().unpartition())
    lender = tensor(0)
    for _ in range(2):
        assert type(p(tensor(0).partition(S)).sync()) is Tensor
        assert type(p(lender.borrow_mut().partition(S)).sync()) is TensorMut
    assert number_in(lender) == 2


def test_a_result_says_where_it_was_made() -> None:
    """An error about a tensor that went through a pipeline names the place where that one was made."""
    p = pipeline(lambda t: fill(t, 1))
    places = set()
    for op in (zeros(S), ones(S), full(S, 2)):
        t = op.sync()
        made = origin_of(t)
        found = p(t).sync()
        assert origin_of(found) == made
        found.share()
        with pytest.raises(MovedError, match=f"made at {__file__}:") as caught:
            found.borrow()
        places.add(str(caught.value).split(" was moved by")[0])
    assert len(places) == 1  # all on one line


@pytest.mark.filterwarnings("ignore:.*no plan can make a part of its result, a TensorRef")
def test_a_borrow_that_comes_back_ends_with_its_tensor() -> None:
    """The stand-in that the function saw is not what the caller gets."""
    p = pipeline(lambda r: value((r, r.slice(slice(0, 1)))))
    for _ in range(2):
        t = tensor(1)
        whole, part = p(t.borrow()).sync()
        assert number_in(part) == 1
        t.share()
        for handle in (whole, part):
            with pytest.raises(MovedError, match=r"share\(\)"):
                handle.to_host()


def test_no_result_is_overwritten() -> None:
    """The result of a call belongs to the caller, and later calls do not overwrite it."""
    p = pipeline(lambda x, a: zip_ops(scaled(a, x), scaled(a, x).share(), scaled(a, x).to_host()))
    results = [p(shared(1), float(k)).sync() for k in range(6)]
    for k, (t, s, h) in enumerate(results):
        assert (number_in(t), number_in(s), h[0, 0]) == (k, k, k)
    assert len({id(storage_of(r)) for result in results for r in result[:2]}) == 12
