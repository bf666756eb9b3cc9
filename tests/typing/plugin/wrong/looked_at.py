"""What functions that look at handles give back is a handle still."""

import functools
import itertools

from dagpu import Tensor, f32
from tests.typing.plugin.kernels import add, eat, vector


def plus(a: Tensor[f32], b: Tensor[f32]) -> Tensor[f32]:
    """The sum, in the memory of the first one."""
    return add(a.partition((4,)), b, vector()).first().unpartition().sync()


def in_a_text() -> None:
    x = vector()
    eat(x)
    print("%s" % (x.shape,))  # noqa: UP031  # E: dagpu-use-after-move


def largest_of_a_display() -> None:
    x, y = vector(), vector()
    eat(max((x, y), key=lambda t: t.shape))
    print(x.shape)  # E: dagpu-use-after-move


def smallest_of_two() -> None:
    x, y = vector(), vector()
    eat(min(x, y, key=lambda t: t.shape))
    print(x.shape)  # E: dagpu-use-after-move


def reduced() -> None:
    ts = [vector(), vector()]
    eat(functools.reduce(plus, ts))
    print(ts[0].shape)  # E: dagpu-use-after-move


def reduced_from_a_display() -> None:
    x, y = vector(), vector()
    functools.reduce(plus, [x, y])
    print(x.shape)  # E: dagpu-use-after-move


def moved_by_a_lambda() -> None:
    x = vector()
    (lambda t: t.share())(x)  # noqa: PLC3002
    print(x.shape)  # E: dagpu-use-after-move


def gone_over_one_behind_the_other(x: Tensor[f32], y: Tensor[f32]) -> None:
    for t in itertools.chain([x], [y]):
        eat(t)
    print(x.shape)  # E: dagpu-use-after-move


def larger_of_two() -> None:
    ts = [vector(), vector()]
    eat(functools.reduce(lambda a, b: a if a.shape > b.shape else b, ts))
    for t in ts:
        print(t.shape)  # E: dagpu-use-after-move


def larger_of_two_that_moved() -> None:
    ts = [vector(), vector()]
    best = functools.reduce(lambda a, b: a if a.shape > b.shape else b, ts)
    for t in ts:
        eat(t)
    print(best.shape)  # E: dagpu-use-after-move
