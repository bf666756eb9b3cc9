"""One handle is several items of a container, or a function calls another with each item."""

import concurrent.futures
import itertools
from collections.abc import Iterator
from functools import reduce

from dagpu import Tensor, f32
from tests.typing.plugin.kernels import eat, total, vector


def repeated_list() -> None:
    t = vector()
    ts = [t] * 2
    eat(ts[0])
    eat(ts[1])  # E: dagpu-use-after-move


def repeated_then_named() -> None:
    t = vector()
    ts = [t] * 3
    eat(ts[1])
    print(t.shape)  # E: dagpu-use-after-move


def key_of(t: Tensor[f32]) -> int:
    return t.share().size


def sort_key() -> None:
    ts = [vector(), vector()]
    ts.sort(key=key_of)
    print(ts[0].shape)  # E: dagpu-use-after-move


def sorted_key() -> None:
    ts = [vector(), vector()]
    us = sorted(ts, key=key_of)
    print(us[0].shape)  # E: dagpu-use-after-move


def sort_lambda() -> None:
    ts = [vector(), vector()]
    ts.sort(key=lambda t: t.share().size)
    print(ts[0].shape)  # E: dagpu-use-after-move


def reduced() -> None:
    ts = [vector(), vector()]
    n = reduce(lambda acc, t: acc + t.share().size, ts, 0)
    print(n, ts[0].shape)  # E: dagpu-use-after-move


def chained() -> None:
    ts, us = [vector()], [vector()]
    for t in itertools.chain(ts, us):
        eat(t)
    print(us[0].shape)  # E: dagpu-use-after-move


def sliced() -> None:
    ts = [vector(), vector()]
    for t in itertools.islice(ts, 1):
        eat(t)
    print(ts[0].shape)  # E: dagpu-use-after-move


def cycled() -> None:
    ts = [vector(), vector()]
    for t in itertools.cycle(ts):
        eat(t)  # E: dagpu-use-after-move


def repeated() -> None:
    t = vector()
    for u in itertools.repeat(t, 2):
        eat(u)  # E: dagpu-use-after-move


def combined() -> None:
    ts = [vector(), vector(), vector()]
    for a, b in itertools.combinations(ts, 2):
        eat(a)  # E: dagpu-use-after-move
        total(b.borrow())


def producted() -> None:
    ts = [vector(), vector()]
    for t, n in itertools.product(ts, range(3)):
        eat(t)  # E: dagpu-use-after-move
        print(n)


def saxpy_it(t: Tensor[f32], a: float) -> int:
    return t.share().size + int(a)


def starmapped() -> None:
    t = vector()
    print(list(itertools.starmap(saxpy_it, [(t, 1.0)])))
    print(t.shape)  # E: dagpu-use-after-move


def pool_map() -> None:
    ts = [vector()]
    with concurrent.futures.ThreadPoolExecutor() as p:
        print(list(p.map(eat, ts)))
    print(ts[0].shape)  # E: dagpu-use-after-move


def yields(ts: list[Tensor[f32]]) -> Iterator[Tensor[f32]]:
    yield from ts


def yields_from() -> None:
    ts = [vector()]
    for t in yields(ts):
        eat(t)
    print(ts[0].shape)  # E: dagpu-use-after-move


def yields_each(ts: list[Tensor[f32]]) -> Iterator[Tensor[f32]]:
    for t in ts:  # noqa: UP028  # this spelling is checked
        yield t


def yields_each_used() -> None:
    ts = [vector()]
    for t in yields_each(ts):
        eat(t)
    print(ts[0].shape)  # E: dagpu-use-after-move
