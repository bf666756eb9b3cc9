"""One handle is several items of a container, and is used once; functions that only look at the items."""

import concurrent.futures
import itertools
from collections.abc import Iterator
from functools import reduce

from dagpu import Tensor, f32, zeros
from tests.typing.plugin.kernels import eat, saxpy, total, vector


def key_of(t: Tensor[f32]) -> int:
    return t.share().size


def reduced_right() -> None:
    ts = [vector(), vector()]
    n = reduce(lambda acc, t: acc + t.size, ts, 0)
    print(n, ts[0].shape)


def chained_right() -> None:
    ts, us = [vector()], [vector()]
    for t in itertools.chain(ts, us):
        total(t.borrow())
    print(us[0].shape)


def pool_map_right() -> None:
    ts = [vector()]
    with concurrent.futures.ThreadPoolExecutor() as p:
        print(list(p.map(total, [t.borrow() for t in ts])))
    print(ts[0].shape)


def yields(ts: list[Tensor[f32]]) -> Iterator[Tensor[f32]]:
    yield from ts


def repeated_and_used_once() -> None:
    t = vector()
    ts = [t] * 2
    eat(ts[0])


def repeated_numbers() -> None:
    t = vector()
    sizes = [t.size] * 2
    eat(t)
    print(sizes[0], sizes[1])


def repeated_shared() -> None:
    s = vector().share()
    for u in [s] * 2:
        saxpy(zeros((8,)).partition((4,)), 1.0, u).sync()


def made_for_each() -> None:
    ts = [vector() for _ in range(2)]
    for t in ts:
        eat(t)


def fromkeys_of_numbers() -> None:
    t = vector()
    d = dict.fromkeys(("a", "b"), t.size)
    eat(t)
    print(d["a"] + d["b"])


def sort_by_size() -> None:
    ts = [vector(), vector()]
    ts.sort(key=lambda t: t.size)
    for t in sorted(ts, key=lambda t: t.ndim):
        eat(t)


def another_chain() -> None:
    ts, us = [vector()], [vector()]
    for t in itertools.chain(ts, [vector()]):
        eat(t)
    print(us[0].shape)


def a_slice_of_fresh_items() -> None:
    for t in itertools.islice((vector() for _ in range(3)), 2):
        eat(t)


def looked_at_in_pairs() -> None:
    ts = [vector(), vector()]
    for a, b in itertools.combinations(ts, 2):
        print(total(a.borrow()) + total(b.borrow()))
    for t in ts:
        eat(t)


def yields_and_looks() -> None:
    ts = [vector()]
    for t in yields(ts):
        print(t.shape)
    eat(ts[0])
