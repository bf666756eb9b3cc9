"""Functions and operators that only look at handles: texts, orders and reductions."""

import functools
import itertools

from dagpu import Tensor, f32
from tests.typing.plugin.kernels import add, eat, vector


def plus(a: Tensor[f32], b: Tensor[f32]) -> Tensor[f32]:
    """The sum, in the memory of the first one."""
    return add(a.partition((4,)), b, vector()).first().unpartition().sync()


def in_a_text() -> None:
    x = vector()
    text = "%s" % x  # noqa: UP031
    text += "%s of %d" % (x, 1)  # noqa: UP031
    text += f"{x!r:>40} {x}"
    text += f"{x} {x}"
    text += ", ".join([str(x), repr([x])])
    print(text)
    eat(x)


def reduced() -> Tensor[f32]:
    ts = [vector(), vector()]
    return functools.reduce(plus, ts)


def reduced_from_a_display() -> None:
    x, y = vector(), vector()
    eat(functools.reduce(plus, [x, y]))


def reduced_with_a_first_one() -> None:
    x = vector()
    print(functools.reduce(lambda n, t: n + t.ndim, [x, vector()], 0))
    eat(functools.reduce(plus, [vector()], x))


def in_order() -> None:
    x, y = vector(), vector()
    for t in sorted([x, y], key=lambda t: t.shape):
        print(t.shape)
    eat(x)
    eat(y)


def largest() -> None:
    x, y = vector(), vector()
    print(max((x, y), key=lambda t: t.shape).shape)
    print(min(x, y, key=lambda t: t.shape).shape)
    eat(x)
    eat(y)


def given_to_a_lambda() -> None:
    x = vector()
    print((lambda t: t.shape)(x))  # noqa: PLC3002
    eat(x)


def compared() -> None:
    x = vector()
    print(x is None, (x, 1))
    eat(x)


def gone_over_side_by_side(x: Tensor[f32], y: Tensor[f32]) -> None:
    for t in itertools.chain([x], [y]):
        print(t.shape)
    for a, b in itertools.pairwise([x, y]):
        print(a.shape, b.shape)
    for a, b in itertools.product([x], [y]):
        print(a.shape, b.shape)
    eat(x)
    eat(y)


def larger_of_two() -> None:
    ts = [vector(), vector()]
    best = functools.reduce(lambda a, b: a if a.shape > b.shape else b, ts)
    print(best.shape, ts[0].shape)
    for t in ts:
        eat(t)
