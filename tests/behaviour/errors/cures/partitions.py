"""Mistakes with partitions, shapes and tiles, and ops that two runs or two parts of one op use."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import trio

from dagpu import (
    DeviceOp,
    array,
    dup,
    empty,
    expr,
    f32,
    f64,
    from_host,
    i32,
    ones,
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
    both,
    lent_for_writing_twice,
    new,
    out,
    run,
    scale,
    suppressed_groups,
)

CATALOGUE = Catalogue()
case = CATALOGUE.add


# ---- partition, unpartition, share, reshape of something else


case(
    lambda: anything(add(out(), ones((N,)))).unpartition().sync(),
    (".first()", lambda: add(out(), ones((N,))).first().unpartition().sync()),
    (".unzip()", lambda: add(out(), ones((N,))).unzip()[0].unpartition().sync()),
)
case(
    lambda: anything(out()).share().sync(),
    ("Put it together first: .unpartition()", lambda: out().unpartition().share().sync()),
)
case(
    lambda: anything(add(out(), ones((N,)))).last().unpartition().sync(),
    ("Leave that out", lambda: add(out(), ones((N,))).last().sync()),
    ("pick the output", lambda: add(out(), ones((N,))).first().unpartition().sync()),
)
case(
    lambda: anything(zeros((N,)).share()).share().sync(),
    ("It is shared already: .clone()", lambda: zeros((N,)).share().map(lambda s: (s, s.clone())).sync()),
)


def share_of_a_loan() -> None:
    t = new()
    run(anything(value(t.borrow())).share())


def share_of_the_lender() -> None:
    run(value(new().share()))


case(share_of_a_loan, ("share the tensor that it was lent from", share_of_the_lender))
case(
    lambda: add(new().share().partition(TILE), ones((N,))).sync(),
    ("write to a copy, dup(t)", lambda: add(dup(new().share()).partition(TILE), ones((N,))).sync()),
    ("to an empty(shape)", lambda: both(empty((N,)).partition(TILE), ones((N,)), ones((N,))).sync()),
)
case(
    lambda: add(new().borrow().partition(TILE), ones((N,))).sync(),
    ("lend the tensor for writing, .borrow_mut().partition(tile)", lent_for_writing_twice),
)
case(
    lambda: anything(value(np.ones(N, f32))).partition(TILE).sync(),
    ("from_host(array) makes one", lambda: from_host(np.ones(N, f32)).partition(TILE).sync()),
)


# ---- shapes and tiles


case(lambda: zeros(anything(4)), ("Write it as (4,)", lambda: zeros((4,)).sync()))
case(lambda: zeros(anything(2.5)), ("(rows, columns), or (n,) for one axis", lambda: zeros((2, 3)).sync()))
case(lambda: zeros((1 << 70, 0)), ("Write smaller extents beside the 0", lambda: zeros((1 << 40, 0)).sync()))
case(lambda: zeros((-1,)), ("Extents count elements: 0 or more", lambda: zeros((0,)).sync()))
case(lambda: new().reshape((3, 3)), ("Give a shape with as many elements", lambda: new().reshape((2, 4))))


def strided_reshape() -> None:
    t = new()
    t.slice(slice(None, None, 2)).reshape((2, 2))


def copied_reshape() -> None:
    t = new()
    run(dup(t.slice(slice(None, None, 2))).reshape((2, 2)))


case(strided_reshape, ("Make them so with dup(...) first", copied_reshape))
case(
    lambda: new().slice(slice(1), slice(1)),
    ("Give at most one for each axis", lambda: new().slice(slice(1))),
)
case(lambda: new().slice(slice(True, 3)), ("Use whole numbers", lambda: new().slice(slice(1, 3))))
case(lambda: new()[N], ("Give -8 to 7", lambda: new()[-N]))
case(lambda: new()[:0][0], ("A slice of it is empty: write : there", lambda: new()[:0][:]))
case(lambda: new()[anything((..., ...))], ("Write one of them", lambda: new()[...]))
case(
    lambda: new()[anything([0, 2])],
    ("array.take(t, from_host(np.array(places)))", lambda: array.take(new(), from_host(np.array([0, 2]))).sync()),
)
case(
    lambda: new()[anything(new().share())],
    ("array.take(t, places)", lambda: array.take(new(), from_host(np.array([0, 2]))).sync()),
    ("array.where(mask, t, 0)", lambda: array.where(expr(f32)(lambda x: x > 0)(new()), new(), 0).sync()),
)
case(
    lambda: new()[anything(np.ones(N, bool))],
    (
        "array.where(mask, t, 0), which keeps the shape",
        lambda: array.where(from_host(np.ones(N, bool)), new(), 0).sync(),
    ),
)
case(lambda: new().view(anything(str)), ("Say t.view(i32)", lambda: new().view(i32)))
case(lambda: new()[0].view(u8), ("Give it one: t[None]", lambda: new()[0][None].view(u8)))
case(lambda: new()[::2].view(u8), ("Make it so with dup(...) first", lambda: dup(new()[::2]).sync().view(u8)))
case(lambda: new()[1:].view(f64), ("Slice it before, so that it is", lambda: new()[2:].view(f64)))
case(lambda: new()[1:7].view(f64), ("Make it so with dup(...) first", lambda: dup(new()[1:7]).sync().view(f64)))
case(
    lambda: new().slice(slice(0, 4, 0)),
    ("Use whole numbers and a step that is not 0", lambda: new().slice(slice(0, 4, 2))),
)
case(
    lambda: new().partition(TILE, partial=3),
    ("Say partial=True, or leave it out", lambda: new().partition(TILE, partial=True)),
    ("leave it out", lambda: new().partition(TILE)),
)
case(lambda: new().partition((4, 4)), ("Give one tile extent for each axis", lambda: new().partition((4,))))
case(lambda: new().partition((0,)), ("A tile has at least 1", lambda: new().partition((1,))))
case(
    lambda: new().partition((3,)),
    ("Choose a tile that divides it", lambda: new().partition((2,))),
    ("say partial=True", lambda: new().partition((3,), partial=True)),
)


def reader_and_writer() -> None:
    t = new()
    g = add(zeros((N,)).partition(TILE), t.borrow()).first().unpartition()
    run(add(t.borrow_mut().partition(TILE), g))


def lent_once() -> None:
    t = new()
    m = t.borrow_mut()
    g, back = add(zeros((N,)).partition(TILE), m).unzip()
    run(add(back.partition(TILE), g.unpartition()))


def two_ops() -> None:
    t = new()
    g = add(zeros((N,)).partition(TILE), t.borrow()).first().unpartition().sync()
    run(add(t.borrow_mut().partition(TILE), g))


# ---- two parts of one op, and two runs


case(
    reader_and_writer,
    ("Lend it once, m = t.borrow_mut(): a kernel takes m as an input too", lent_once),
    ("Or run the two parts as two ops, one after the other", two_ops),
)


def two_writers() -> None:
    t = new()
    run(zip_ops(scale(t.borrow_mut().partition(TILE), 2.0), scale(t.borrow_mut().partition(TILE), 3.0)))


def one_writer_after_the_other() -> None:
    t = new()
    m = t.borrow_mut()
    run(scale(scale(m.partition(TILE), 2.0).first(), 3.0))


def two_ops_that_write() -> None:
    t = new()
    run(scale(t.borrow_mut().partition(TILE), 2.0))
    run(scale(t.borrow_mut().partition(TILE), 3.0))


case(
    two_writers,
    ("Lend it once, m = t.borrow_mut()", one_writer_after_the_other),
    ("Or run the two parts as two ops", two_ops_that_write),
)


def used_twice() -> None:
    source = ones((N,))
    run(zip_ops(source, source))


def used_twice_shared() -> None:
    source = ones((N,)).shared()
    run(zip_ops(source, source))


def built_twice() -> None:
    run(zip_ops(ones((N,)), ones((N,))))


case(used_twice, ("say .shared()", used_twice_shared), ("build the op once for each use", built_twice))


def component_twice() -> None:
    a, _ = zip_ops(ones((N,)), value(1)).unzip()
    run(a)
    run(a)


def component_shared() -> None:
    a, _ = zip_ops(ones((N,)), value(1)).unzip()
    s = a.shared()
    run(s)
    run(s)


case(component_twice, ("Say .shared()", component_shared))
case(
    lambda: zip_ops(ones((N,)), ones((N,))).shared().sync(),
    (
        "unzip() first, and share the parts",
        lambda: zip_ops(*[part.shared() for part in zip_ops(ones((N,)), ones((N,))).unzip()]).sync(),
    ),
)
case(
    lambda: ones((N,)).partition(TILE).shared().sync(),
    (
        "Put it together first: .unpartition().shared()",
        lambda: ones((N,)).partition(TILE).unpartition().shared().sync(),
    ),
)


def run_shared(cut: bool) -> None:
    lent = new().borrow_mut()
    run(value(lent.partition(TILE) if cut else lent).shared())


def passed_on() -> None:
    t = new()
    _, lent = add(out(), t.borrow_mut()).unzip()
    add(out(), lent).sync()


def lent_for_reading() -> None:
    t = new()
    both(out(), t.borrow(), t.borrow()).sync()


for cut in (False, True):
    case(
        partial(run_shared, cut),
        ("pass on the value that each call returns", passed_on),
        ("lend the tensor for reading, t.borrow(), as often as it is read", lent_for_reading),
    )
case(
    lambda: value(1).map(lambda _: (1, 2)).unzip(3)[0].sync(),
    ("Say unzip(2)", lambda: value(1).map(lambda _: (1, 2)).unzip(2)[0].sync()),
)
case(
    lambda: value(1).map(lambda _: ()).unzip(2)[0].sync(),
    ("Let the op return a tuple of 2", lambda: value(1).map(lambda x: (x, str(x))).unzip(2)[0].sync()),
)
case(
    lambda: anything(value(1).map(str)).unzip(2)[0].sync(),
    ("Let the op return a tuple of 2", lambda: value(1).map(lambda x: (x, str(x))).unzip(2)[0].sync()),
)
case(
    lambda: anything(value(1).map(str)).unzip(),
    ("Say how many: unzip(2)", lambda: value(1).map(lambda x: (x, x)).unzip(2)[0].sync()),
)
case(
    lambda: zip_ops(value(1), value(2)).unzip(3),
    ("Say unzip()", lambda: zip_ops(value(1), value(2)).unzip()[0].sync()),
)
case(
    lambda: zip_ops(value(1), value(2)).unzip(anything("2")),
    ("Write unzip(2)", lambda: zip_ops(value(1), value(2)).unzip(2)[0].sync()),
)


def own_result() -> None:
    box: list[DeviceOp[Any]] = []
    box.append(value(1).then(lambda _: box[0]).shared())
    run(box[0])


case(
    own_result,
    ("Let the closure build an op of its own", lambda: value(1).then(lambda _: value(2)).shared().sync()),
)


def while_it_is_written(work: Callable[[Any, Any], DeviceOp[Any]]) -> object:
    """While one run writes a tensor, another one is awaited: `work` of the tensor and of a copy made before."""
    t = new()
    copy = dup(t.borrow()).sync()
    begun, go_on = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        begun.set()
        go_on.wait(30)

    async def main() -> object:
        async with trio.open_nursery() as nursery:

            async def write() -> None:
                await zip_ops(scale(t.borrow_mut().partition(TILE), 2.0).map(lambda _: None), value(0).host_map(hold))

            nursery.start_soon(write)
            await trio.to_thread.run_sync(begun.wait, 30)
            try:
                return await work(t, copy)
            finally:
                go_on.set()

    with suppressed_groups():
        return trio.run(main)


def written_and_then_read() -> None:
    t = new()

    async def main() -> None:
        await scale(t.borrow_mut().partition(TILE), 2.0)
        await add(out(), t.borrow())

    trio.run(main)


case(
    lambda: while_it_is_written(lambda t, _: add(out(), t.borrow())),
    ("Await that run first", written_and_then_read),
    (
        "work on a copy that was made before it: dup(t.borrow())",
        lambda: while_it_is_written(lambda _, copy: add(out(), copy.borrow())),
    ),
)
