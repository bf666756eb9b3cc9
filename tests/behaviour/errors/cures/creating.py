"""Mistakes in creating and copying, and names that a handle or a pending run lacks."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import trio

from dagpu import (
    arange,
    bool_,
    convert,
    dup,
    empty,
    f16,
    f32,
    f64,
    fill,
    fold_in,
    from_host,
    full,
    i8,
    i32,
    linspace,
    memcpy,
    ones,
    pipeline,
    plan_of,
    rand,
    randn,
    source,
    spawn,
    u8,
    value,
    zeros,
    zip_ops,
)
from tests.behaviour.errors.cures.catalogue import (
    TILE,
    Catalogue,
    N,
    add,
    anything,
    awaited,
    lent,
    new,
    out,
    run,
    scale,
    suppressed_groups,
)

CATALOGUE = Catalogue()
case = CATALOGUE.add


# ---- creating and copying


case(lambda: zeros((2,), anything(object)), ("Use one of f16 bf16 f32", lambda: zeros((2,), f32).sync()))
case(
    lambda: rand((2,), anything(i32)),
    ("Use f16, bf16, f32 or f64, and convert", lambda: rand((2,), f32).then(lambda t: convert(t, i32)).sync()),
)
case(lambda: rand((2,), seed=anything("x")), ("Write seed=17, say", lambda: rand((2,), seed=17).sync()))
case(lambda: rand((2,), seed=anything(1.5)), ("leave it out: each run draws one then", lambda: rand((2,)).sync()))
case(
    lambda: linspace(anything(1j), 2, 3),
    ("Take its .real or .imag", lambda: linspace((1j).real, 2, 3).sync()),
)
case(lambda: full((2,), 1j), ("Take `.real` or `.imag`", lambda: full((2,), (1j).imag).sync()))
case(lambda: full((2,), anything("1")), ("Write fill_value=1.5, say", lambda: full((2,), fill_value=1.5).sync()))
case(
    lambda: full((2,), 1.5, i32),
    ("Use f32", lambda: full((2,), 1.5, f32).sync()),
    ("give a whole number", lambda: full((2,), 2, i32).sync()),
)
case(lambda: full((2,), 2, bool_), ("Use a wider type", lambda: full((2,), 2, u8).sync()))
case(
    lambda: full((2,), True),
    ("Write 1", lambda: full((2,), 1).sync()),
    ("make it a tensor of bool_", lambda: full((2,), True, bool_).sync()),
)
case(lambda: arange(0, True), ("Write stop=2, say", lambda: arange(0, stop=2).sync()))
case(lambda: linspace(0, 1, 2, bool_), ("Use f32, say", lambda: linspace(0, 1, 2, f32).sync()))
case(lambda: rand((2,), seed=True), ("Write seed=17, say", lambda: rand((2,), seed=17).sync()))
case(lambda: full((2,), 300, u8), ("Use a wider type", lambda: full((2,), 300, i32).sync()))
case(lambda: full((2,), 1e6, f16), ("Use a wider type", lambda: full((2,), 1e6, f32).sync()))
case(
    lambda: fold_in(anything("x"), 1),
    ("Pass it, fold_in(17, 3), say", lambda: fold_in(17, 3)),
    ("a source or an op whose value it is", lambda: fold_in(source(17), 3).sync()),
)
case(lambda: full((2,), 10**400), ("Give a smaller one", lambda: full((2,), 10**30).sync()))
case(lambda: full((2,), float("nan"), i32), ("Give a finite number", lambda: full((2,), 3.0, i32).sync()))
case(lambda: linspace(0, float("inf"), 3), ("Give a finite number", lambda: linspace(0, 1e30, 3).sync()))
case(lambda: linspace(-1.7e308, 1.7e308, 3, f64), ("Scale it", lambda: linspace(-1.7, 1.7, 3, f64).sync()))
case(lambda: randn((2,), std=-1.0), ("A standard deviation is 0 or more", lambda: randn((2,), std=1.0).sync()))
case(lambda: arange(300, i8), ("Use a wider type", lambda: arange(300, i32).sync()))
case(lambda: from_host(anything([1.0])), ("np.asarray(x)", lambda: from_host(np.asarray([1.0])).sync()))


case(
    lambda: from_host(anything(source(np.ones(2, f32)))),
    ("If it is a NumPy array, say op.then(from_host)", lambda: source(np.ones(2, f32)).then(from_host).sync()),
)


def saved_and_loaded() -> object:
    np.save("x.npy", np.ones(2, f32))
    return from_host(np.load("x.npy")).sync()


case(lambda: from_host(anything("x.npy")), ("from_host(np.load(x))", saved_and_loaded))
case(lambda: from_host(anything(None)), ("Pass the array itself, from_host(array)", lambda: from_host(np.ones(2, f32))))
case(
    lambda: from_host(anything({"a": np.ones(2, f32)})),
    ("zip_ops(*map(from_host, x.values()))", lambda: zip_ops(*map(from_host, {"a": np.ones(2, f32)}.values())).sync()),
)
case(
    lambda: pipeline(lambda x: from_host(anything(x)))([np.ones(2, f32), np.ones(2, f32)]).sync(),
    (
        "zip_ops(*map(from_host, x))",
        lambda: pipeline(lambda x: zip_ops(*map(from_host, x)))([np.ones(2, f32), np.ones(2, f32)]).sync(),
    ),
)


def of_elements(dtype: str) -> Any:
    return np.ones(2, f32).astype(dtype)


case(
    lambda: from_host(of_elements(">f4")),
    (
        'array.astype(array.dtype.newbyteorder("="))',
        lambda: from_host((a := of_elements(">f4")).astype(a.dtype.newbyteorder("="))).sync(),
    ),
)
case(
    lambda: from_host(of_elements("clongdouble")),
    (
        "Round it: array.astype(np.complex128)",
        lambda: from_host(of_elements("clongdouble").astype(np.complex128)).sync(),
    ),
)
case(
    lambda: from_host(np.array([1, 2], object)),
    ("array.astype(np.float32)", lambda: from_host(np.array([1, 2], object).astype(np.float32)).sync()),
)
case(
    lambda: zeros((1,) * 65),
    ("Combine axes into one", lambda: zeros((1,) * 64).to_host().sync()),
)
case(
    lambda: from_host(np.zeros(2, "M8[s]")),
    ("array.astype(np.int64)", lambda: from_host(np.zeros(2, "M8[s]").astype(np.int64)).sync()),
)
case(
    lambda: from_host(np.zeros(2, [("a", "f4"), ("b", "S4")])),
    (
        "Take its fields by themselves: array['a']",
        lambda: from_host(np.zeros(2, [("a", "f4"), ("b", "S4")])["a"]).sync(),
    ),
)
case(
    lambda: convert(new(), anything("f64")),
    ("without quotes: from dagpu import f64", lambda: convert(new(), f64).sync()),
)


def copied_into(source: Any) -> object:
    dst = new()
    return memcpy(dst.borrow_mut(), source).sync()


def copied_in_a_closure() -> object:
    dst = new()
    return from_host(np.ones(N, f32)).then(lambda t: memcpy(dst.borrow_mut(), t)).sync()


case(
    lambda: copied_into(np.ones(N, f32)),
    ("t = from_host(array).sync()", lambda: copied_into(from_host(np.ones(N, f32)).sync())),
    ("from_host(array).then(lambda t: memcpy(dst, t))", copied_in_a_closure),
)
case(
    lambda: dup(anything(out().sync())),
    ("Put it together first: .unpartition()", lambda: dup(out().sync().unpartition())),
)
case(
    lambda: new().reshape((3, -1)),
    ("Write extents whose product divides that number", lambda: new().reshape((2, -1))),
)
case(
    lambda: new().reshape((-1, -1)),
    ("Write -1 for one of them at most", lambda: new().reshape((-1,))),
)
case(
    lambda: arange(5, 0, 0),
    ("Give finite numbers, and a step that is not 0", lambda: arange(5, 0, -1).sync()),
)
case(lambda: from_host(anything(ones((2,)))), ("leave from_host out", lambda: ones((2,)).sync()))
case(lambda: from_host(new()), ("It is on a device already: leave from_host out", new))
case(
    lambda: from_host(np.ma.masked_array(np.ones(2, f32), [False, True])),
    (
        "from_host(array.filled(0))",
        lambda: from_host(np.ma.masked_array(np.ones(2, f32), [False, True]).filled(0)).sync(),
    ),
)


def changed_in_place() -> None:
    array = np.zeros(4, f32)
    op = from_host(array).then(lambda t: dup(t)).to_host()
    plan_of(op)
    array.shape = (2, 2)
    op.sync()


def unchanged() -> None:
    array = np.zeros(4, f32)
    op = from_host(array).then(lambda t: dup(t)).to_host()
    op.sync()


case(
    lambda: copied_into(ones((N,))),
    ("Run it before, t = op.sync()", lambda: copied_into(ones((N,)).sync())),
    ("op.then(lambda t: memcpy(dst, t))", copied_in_a_closure),
)
case(lambda: anything(dup)(3), ("Pass a Tensor, SharedTensor, TensorRef or TensorMut", lambda: dup(new()).sync()))
case(lambda: memcpy(new(), new()), ("Pass t.borrow_mut()", lambda: memcpy(new().borrow_mut(), new()).sync()))
case(
    lambda: memcpy(new().borrow_mut(), ones((N,), f64).sync()),
    ("see convert(...)", lambda: memcpy(new().borrow_mut(), convert(ones((N,), f64).sync(), f32).sync()).sync()),
)
case(
    lambda: memcpy(new().borrow_mut(), ones((2, 4)).sync()),
    ("reshape(...)", lambda: memcpy(new().borrow_mut(), ones((2, 4)).sync().reshape((8,))).sync()),
)


def copied_to_itself() -> None:
    t = new()
    run(memcpy(t.borrow_mut(), t.borrow()))


def copied_from_a_copy() -> None:
    t = new()
    copy = dup(t.borrow()).sync()
    run(memcpy(t.borrow_mut(), copy))


case(copied_to_itself, ("copy = dup(t.borrow()).sync()", copied_from_a_copy))
case(
    lambda: anything(fill)(ones((2,)), 1),
    ("Run it before, t = op.sync()", lambda: fill(ones((2,)).sync(), 1).sync()),
    ("op.then(lambda t: fill(t, fill_value))", lambda: ones((2,)).then(lambda t: fill(t, 1)).sync()),
)
case(
    lambda: fill(new().borrow(), 1),
    ("Pass a Tensor", lambda: fill(new(), 1).sync()),
    ("lend one for writing: t.borrow_mut()", lambda: fill(new().borrow_mut(), 1).sync()),
)
case(
    lambda: anything(out()).to_host().sync(),
    ("Put it together first: .unpartition().to_host()", lambda: out().unpartition().to_host().sync()),
)
case(
    lambda: anything(add(out(), ones((N,)))).to_host().sync(),
    (".first()", lambda: add(out(), ones((N,))).first().unpartition().to_host().sync()),
    (".unzip()", lambda: add(out(), ones((N,))).unzip()[1].to_host().sync()),
)


# ---- names that a handle, or a pending run, lacks


case(
    lambda: new().sum(),
    ("t.to_host().sync()", lambda: new().to_host().sync().sum()),
    ("await t.to_host()", lambda: awaited(new().to_host())),
)
case(
    lambda: anything(out().sync()).item(),
    ("t.unpartition().to_host().sync()", lambda: out().unpartition().to_host().sync().item(0)),
)
case(lambda: new().sync(), ("leave .sync() out", new))
case(lambda: new().then(dup), ("value(t).then(...)", lambda: value(new()).then(dup).sync()))
case(
    lambda: new().clone(),
    ("dup(t.borrow())", lambda: dup((t := new()).borrow()).sync().shape == t.shape),
    ("t.share().clone()", lambda: new().share().clone()),
)
case(lambda: new().try_unwrap(), ("It is owned already: leave", new))
case(lambda: new().grid, ("t.partition(tile) has them", lambda: new().partition(TILE).grid))
case(
    lambda: new().share().borrow_mut(),
    ("write to a copy, dup(t)", lambda: dup(new().share()).sync().borrow_mut()),
    ("empty(shape)", lambda: empty((N,)).sync().borrow_mut()),
)
case(lambda: new().share().borrow(), ("pass it itself", lambda: add(out(), new().share()).sync()))


def lent_to_write(use: Callable[[Any], object]) -> object:
    t = new()
    return use(t.borrow_mut())


def lent_afterwards() -> object:
    t = new()
    scale(t.borrow_mut().partition(TILE), 2.0).sync()
    return t.slice(slice(2)).shape


case(lambda: lent(lambda t: t.borrow()), ("pass it itself", lambda: lent(lambda t: add(out(), t).sync())))
case(lambda: lent(lambda t: t.try_unwrap()), ("use the tensor that it was lent from", new))
case(lambda: lent_to_write(lambda m: m.share()), ("share the tensor that it was lent from", lambda: new().share()))
case(
    lambda: lent_to_write(lambda m: m.borrow()),
    ("pass it itself", lambda: lent_to_write(lambda m: add(out(), m).sync())),
)
case(
    lambda: lent_to_write(lambda m: m.borrow_mut()),
    ("cut it with .partition(tile)", lambda: lent_to_write(lambda m: scale(m.partition(TILE), 2.0).sync())),
)
case(
    lambda: lent_to_write(lambda m: m.clone()),
    ("ask that of the tensor, before it is lent or after that", lent_afterwards),
)
case(
    lambda: new().partition(TILE).partition((2,)),
    (".unpartition().partition(tile)", lambda: new().partition(TILE).unpartition().partition((2,))),
)


def awaits_a_handle(*, as_it_is: bool) -> object:
    async def main() -> object:
        t = anything(await ones((2,)))
        return await (t if as_it_is else t.to_host())

    return trio.run(main)


case(lambda: awaits_a_handle(as_it_is=True), ("await t.to_host()", lambda: awaits_a_handle(as_it_is=False)))


def with_pending(use: Callable[[Any], object], *, first: bool) -> object:
    """Use a pending run, or what awaiting it gives."""

    async def main() -> object:
        async with trio.open_nursery() as nursery:
            pending = anything(spawn(nursery, from_host(np.ones(N, f32))))
            return use(await pending if first else pending)

    with suppressed_groups():
        return trio.run(main)


def pending_case(use: Callable[[Any], object], says: str = "pass await x in place of x") -> None:
    """An operation that a pending run refuses is accepted once the run has been awaited."""
    case(partial(with_pending, use, first=False), (says, partial(with_pending, use, first=True)))


pending_case(lambda x: add(out(), x))
pending_case(dup)
pending_case(lambda x: fill(x, 1))
pending_case(lambda x: x.partition(TILE), "(await pending).partition")
case(
    partial(with_pending, lambda x: scale(out(), x), first=False),
    ("pass await x", lambda: scale(out(), 2.0).sync()),
)
case(partial(with_pending, lambda x: x.sync(), first=False), ("await it", partial(with_pending, repr, first=True)))
case(
    partial(with_pending, lambda x: zip_ops(x), first=False),
    ("pass await x", partial(with_pending, lambda x: zip_ops(value(x)), first=True)),
)
