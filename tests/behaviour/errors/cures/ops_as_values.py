"""Ops taken for values, and mistakes in functions of the user's."""

from collections.abc import Callable, Iterator
from operator import setitem
from random import Random
from typing import Any

import numpy as np
import trio

from dagpu import (
    DeviceOp,
    array,
    c64,
    convert,
    dup,
    f32,
    f64,
    fill,
    from_host,
    full,
    i32,
    memcpy,
    ones,
    pipeline,
    source,
    value,
    zeros,
    zip_ops,
)
from tests.behaviour.errors.cures.catalogue import (
    Catalogue,
    N,
    Program,
    add,
    anything,
    awaited,
    new,
    of_body,
    out,
    with_limit,
)

CATALOGUE = Catalogue()
case = CATALOGUE.add


def lent_to_write(use: Callable[[Any], Any]) -> object:
    t = new()
    return use(t.borrow_mut()).sync()


# ---- ops taken for values


case(lambda: bool(anything(value(1))), ("Run it, and test its result", lambda: bool(value(1).sync())))
case(
    lambda: list(anything(zip_ops(value(1), value(2)))),
    ("Say .unzip()", lambda: [op.sync() for op in zip_ops(value(1), value(2)).unzip()]),
)
case(
    lambda: anything(zip_ops(value(1), value(2)))[0],
    (".first()", lambda: zip_ops(value(1), value(2)).first().sync()),
    (".unzip()", lambda: zip_ops(value(1), value(2)).unzip()[0].sync()),
)
case(
    lambda: anything(ones((2,)).to_host())[1:],
    ("Slice the tensor before .to_host()", lambda: ones((2,))[1:].to_host().sync()),
    (".map(lambda array: array[1:])", lambda: ones((2,)).to_host().map(lambda array: array[1:]).sync()),
)
case(lambda: ones((2,))[anything("x")], ("Write a number, a slice such as 1:, ... or None", lambda: ones((2,))[1:]))
case(lambda: ones((2,)).view(anything(3)), ("Say op.view(i32)", lambda: ones((2,)).view(i32).sync()))
case(lambda: ones((2,)).view(anything((2, 1))), ("op.reshape(shape)", lambda: ones((2,)).reshape((2, 1)).sync()))
case(
    lambda: float(anything(ones((2,)))),
    ("Run it: op.sync()", lambda: ones((2,)).to_host().sync() + 1),
    ("await op in a trio task", lambda: awaited(ones((2,)).to_host())),
    ("a tensor's contents come with op.to_host().sync()", lambda: ones((2,)).to_host().sync() == 1),
)
case(lambda: divmod(anything(new()), 2), ("x // y, and x % y", lambda: (new() // 2, new() % 2)))
case(lambda: anything(source(2.0)) + 1, ("op.map(lambda x: x + 1)", lambda: source(2.0).map(lambda x: x + 1).sync()))
case(lambda: new() + anything(np.ones(N)), ("from_host(array)", lambda: (new() + from_host(np.ones(N, f32))).sync()))
case(
    lambda: new() + anything(ones((N,), f64)),
    ("say convert(t, f32)", lambda: (new() + convert(ones((N,), f64), f32)).sync()),
)
case(
    lambda: zeros((N,), i32) * anything(0.5),
    ("Convert that tensor first: convert(t, f32)", lambda: (convert(zeros((N,), i32), f32) * 0.5).sync()),
)
case(
    lambda: zeros((N,), i32) & anything(0.5),
    ("Give one that it holds", lambda: (zeros((N,), i32) & 1).sync()),
)
case(
    lambda: new() * anything(1j),
    ("Convert that tensor first: convert(t, c64)", lambda: (convert(new(), c64) * 1j).sync()),
)
case(lambda: new() * anything(True), ("Write it as a number: 1", lambda: (new() * 1).sync()))
case(lambda: (new() > 0) & anything(1), ("Write it as a truth value: True", lambda: ((new() > 0) & True).sync()))
case(
    lambda: ((new() > (number := value(1).shared())) & (zeros((N,), i32) > number)).sync(),
    (
        "by .shared() of the result of one of them: (x > n).shared() & (y > n)",
        lambda: ((new() > (number := value(1).shared())).shared() & (zeros((N,), i32) > number)).sync(),
    ),
)
case(
    lambda: (anything(new()).to_host() + 1).sync(),
    ("from_host(array)", lambda: (from_host(np.ones(N, f32)) + 1).sync()),
    ("take one tensor of several, op.unzip()", lambda: (zip_ops(ones((N,)), ones((N,))).unzip()[0] + 1).sync()),
    ("op.map(lambda x: x + 1)", lambda: value(1).map(lambda x: x + 1).sync()),
)
case(lambda: pow(anything(zeros((N,), i32)), 2, 3), ("Say x ** y % n", lambda: (zeros((N,), i32) ** 2 % 3).sync()))
case(
    lambda: anything(zeros((N,), i32)) / 2,
    ("convert(t, f32), or", lambda: (convert(zeros((N,), i32), f32) / 2).sync()),
    ("divide whole numbers by //", lambda: (zeros((N,), i32) // 2).sync()),
)
case(
    lambda: anything(new() > 0) + 1,
    ("convert(t, i32)", lambda: (convert(new() > 0, i32) + 1).sync()),
    ("for masks there are & | ^ ~", lambda: ((new() > 0) | (new() < 1)).sync()),
)
case(
    lambda: anything(zeros((N,), i32)) ** zeros((N,), i32),
    ("convert(t, f32)", lambda: (convert(zeros((N,), i32), f32) ** new()).sync()),
)
case(lambda: anything(new()) << 1, ("convert(t, i32)", lambda: (convert(new(), i32) << 1).sync()))
case(
    lambda: ~anything(new()),
    ("Compare it first, t > 0", lambda: (~(new() > 0)).sync()),
    ("or convert it: convert(t, i32)", lambda: (~convert(new(), i32)).sync()),
)
case(
    lambda: new() + ones((3,)),
    ("x.reshape((n, 1))", lambda: (new() + ones((3,)).reshape((3, 1))).sync()),
    ("x[:, None]", lambda: (new() + ones((3,))[:, None]).sync()),
)
case(
    lambda: setitem(anything(new()), slice(1, None), 0),
    ("fill(t.borrow_mut()[1:], 0)", lambda: lent_to_write(lambda m: fill(m[1:], 0))),
    ("memcpy(t.borrow_mut()[1:], x)", lambda: lent_to_write(lambda m: memcpy(m[1:], ones((N - 1,)).sync()))),
)
case(
    lambda: new().T,
    ("On the device say array.transpose(t)", lambda: array.transpose(new()).sync()),
)
case(
    lambda: np.asarray(anything(ones((2,)))),
    ("Run it: op.sync()", lambda: np.asarray(ones((2,)).to_host().sync())),
)
case(
    lambda: anything(dup(new())).shape,
    (".map(lambda t: t.shape)", lambda: dup(new()).map(lambda t: t.shape).sync()),
    ("run the op first", lambda: dup(new()).sync().shape),
)
case(
    lambda: anything(ones((2,))).sum(),
    ("Get the array with op.to_host().sync()", lambda: ones((2,)).to_host().sync().sum()),
    ("await op.to_host() in a trio task", lambda: awaited(ones((2,)).to_host())),
    ("Compute on a device with array.sum(op, axis)", lambda: array.sum(ones((2,)), 0).sync()),
    ("or with a kernel", lambda: add(out(), ones((N,))).sync()),
)
case(
    lambda: anything(ones((2,)).to_host().shared()).sum(),
    ("Get the array with op.sync()", lambda: ones((2,)).to_host().shared().sync().sum()),
    ("await op in a trio task", lambda: awaited(ones((2,)).to_host())),
)
case(
    lambda: anything(ones((2,))).borrow(),
    (".map(lambda t: t.borrow())", lambda: ones((2,)).map(lambda t: t.borrow()).then(lambda t: t.to_host()).sync()),
    ("run the op first", lambda: ones((2,)).sync().borrow()),
)
case(
    lambda: anything(ones((2,)).to_host()).to_host().sync(),
    ("It is on the host already: leave .to_host() out", lambda: ones((2,)).to_host().sync()),
)
case(
    lambda: anything(ones((2,))).unzip(),
    ("not a tuple. Leave", lambda: ones((2,)).sync()),
    ("zip_ops(a, b)", lambda: [op.sync() for op in zip_ops(ones((2,)), ones((2,))).unzip()]),
)
case(lambda: anything(ones((2,))).first().sync(), ("not a tuple. Leave", lambda: ones((2,)).sync()))
case(lambda: anything(value(3)).first().sync(), ("which has no components. Leave", lambda: value(3).sync()))
case(
    lambda: anything(value(())).last().sync(),
    ("or let the op return a tuple that has some", lambda: value((1, 2)).last().sync()),
)
case(
    lambda: value(ones((2,))),
    ("Use the op itself", lambda: ones((2,)).sync()),
)
case(
    lambda: value((ones((2,)), ones((2,)))),
    ("zip_ops(a, b)", lambda: zip_ops(ones((2,)), ones((2,))).sync()),
)
case(
    lambda: anything(zip_ops)([ones((2,)), ones((2,))]),
    ("Unpack it: zip_ops(*ops)", lambda: zip_ops(*[ones((2,)), ones((2,))]).sync()),
)
case(lambda: anything(zip_ops)(ones((2,)), 3), ("value(x)", lambda: zip_ops(ones((2,)), value(3)).sync()))
case(
    lambda: ones((2,)).map(lambda t: dup(t)).sync(),
    ("Use .then", lambda: ones((2,)).then(lambda t: dup(t)).sync()),
)
case(
    lambda: ones((2,)).map(lambda t: (dup(t.borrow()), dup(t.borrow()))).sync(),
    (
        "Use .then, and zip_ops(a, b)",
        lambda: ones((2,)).then(lambda t: zip_ops(dup(t.borrow()), dup(t.borrow()))).sync(),
    ),
)
case(
    lambda: value(1).host_map(lambda n: zeros((n,))).sync(),
    ("Use .then", lambda: value(1).then(lambda n: zeros((n,))).sync()),
)
case(
    lambda: value(1).then(anything(lambda x: x + 1)).sync(),
    ("Return an op (value(x) makes one of a value)", lambda: value(1).then(lambda x: value(x + 1)).sync()),
    ("use .map", lambda: value(1).map(lambda x: x + 1).sync()),
)
case(
    lambda: pipeline(anything(lambda x: x))(3).sync(),
    ("Return an op (value(x) makes one of a value)", lambda: pipeline(lambda x: value(x))(3).sync()),
)


class Foreign(DeviceOp[Any]):
    """An op of somebody else's."""

    origin = None


case(lambda: Foreign().sync(), ("Build it from ops and kernels", lambda: value(1).map(str).sync()))


async def waits(x: Any) -> Any:
    return x


def yields(x: Any) -> Iterator[Any]:
    yield x


async def waits_and_yields(x: Any) -> Any:
    yield x


def awaited_f() -> object:
    async def main() -> object:
        op = value(3)
        return await waits(await op)

    return trio.run(main)


def iterated_f() -> object:
    async def main() -> object:
        op = value(3)
        return [x async for x in waits_and_yields(await op)]

    return trio.run(main)


hidden_waits: Any = lambda x: waits(x)  # noqa: E731  # reason: that hides it
hidden_yields: Any = lambda x: yields(x)  # noqa: E731


# ---- functions of the user's


case(lambda: value(3).map(waits), ("await f(await op)", awaited_f))
case(lambda: value(3).map(waits_and_yields), ("async for x in f(await op)", iterated_f))
case(
    lambda: value(3).map(yields), (".map(lambda x: list(f(x)))", lambda: value(3).map(lambda x: list(yields(x))).sync())
)
case(
    lambda: anything(value(3)).then(yields),
    ("Return an op from it: with return, not yield", lambda: value(3).then(lambda x: value(x)).sync()),
)
case(lambda: value(3).map(hidden_waits).sync(), ("await f(await op)", awaited_f))
case(
    lambda: value(3).host_map(hidden_yields).sync(),
    (".host_map(lambda x: list(f(x)))", lambda: value(3).host_map(lambda x: list(yields(x))).sync()),
)
case(lambda: anything(value(3)).map(3), ("Write .map(lambda x: ...)", lambda: value(3).map(lambda x: x + 1).sync()))
case(
    lambda: value(iter(())).map(lambda it: next(it)).sync(),
    ("Catch it there", lambda: value(iter(())).map(lambda it: next(it, None)).sync()),
    ("next(iterator, None)", lambda: value(iter(())).map(lambda it: next(it, None)).sync()),
)
case(
    lambda: in_body_stop(None),
    ("next(iterator, None)", lambda: in_body_stop(0.0)),
)


def in_body_stop(default: float | None) -> object:
    empty_iterator: Iterator[float] = iter(())

    def body(y: Any, x: Any) -> None:
        y[...] = next(empty_iterator) if default is None else next(empty_iterator, default)

    return of_body(body)


def down_from(n: int) -> DeviceOp[int]:
    return value(n) if n <= 0 else value(n - 1).then(down_from)


def endless(n: int) -> DeviceOp[int]:
    return value(n).then(endless)


case(
    lambda: with_limit(20, lambda: value(0).then(endless).sync()),
    ("Let the last one return an op without .then", lambda: with_limit(20, lambda: value(9).then(down_from).sync())),
    ("set DAGPU_MAX_CLOSURES=200", lambda: with_limit(200, lambda: value(99).then(down_from).sync())),
)
case(
    lambda: value(0).map(lambda _: value(1).sync()).sync(),
    ("Return the op from .then instead", lambda: value(0).then(lambda _: value(1)).sync()),
)


def contents_in_a_pipeline() -> object:
    return pipeline(lambda x: full((2,), float(x[0])))(np.ones(2, f32)).sync()


case(
    contents_in_a_pipeline,
    ("from_host(x)", lambda: pipeline(lambda x: from_host(x))(np.ones(2, f32)).sync()),
    ("compute with it before the call", lambda: pipeline(lambda a: full((2,), a))(float(np.ones(2, f32)[0])).sync()),
)
case(
    lambda: pipeline(lambda a: full((2,), Random(a).random()))(-3).sync(),
    ("Write Random(int(a))", lambda: pipeline(lambda a: full((2,), Random(int(a)).random()))(-3).sync()),
)
case(
    lambda: pipeline(anything(3)),
    ("Write @pipeline above a def that returns an op", lambda: pipeline(lambda: ones((2,)))().sync()),
)
case(
    lambda: pipeline(anything(waits)),
    ("Write a plain def that returns the op", lambda: pipeline(lambda: ones((2,)))().sync()),
)


def pipeline_as_a_method() -> None:
    class Model:
        @pipeline
        def step(self) -> DeviceOp[Any]:
            return ones((2,))

    Model()


def pipeline_of_an_object() -> object:
    class Model:
        def __init__(self) -> None:
            self.step = pipeline(self._step)

        def _step(self) -> DeviceOp[Any]:
            return ones((2,))

    return Model().step().sync()


case(
    lambda: unwrapped(pipeline_as_a_method),
    ("Decorate a function", lambda: pipeline(lambda: ones((2,)))().sync()),
    ("self.step = pipeline(self._step) in __init__", pipeline_of_an_object),
)


def unwrapped(program: Program) -> object:
    """Before 3.12, Python wraps what `__set_name__` raises."""
    try:
        return program()
    except RuntimeError as error:
        raise error.__cause__ or error from None
