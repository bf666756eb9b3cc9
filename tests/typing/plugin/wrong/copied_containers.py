"""Items that are used again in a container made of the items of another, or at the index that they have later."""

# ruff: noqa: C416, C414  # each spelling of a copy is checked

from collections import deque
from dataclasses import dataclass, replace

from dagpu import Tensor, f32
from tests.typing.plugin.kernels import eat, vector


@dataclass
class P:
    """Two tensors."""

    a: Tensor[f32]
    b: Tensor[f32]


def some(count: int) -> list[Tensor[f32]]:
    """A list whose length no type checker knows."""
    return [vector() for _ in range(count)]


def table(names: str) -> dict[str, Tensor[f32]]:
    """A dictionary whose keys no type checker knows."""
    return {name: vector() for name in names}


def list_of_a_list() -> None:
    ts = some(3)
    us = list(ts)
    eat(us[0])
    print(ts[0].shape)  # E: dagpu-use-after-move


def tuple_of_a_list() -> None:
    ts = some(3)
    us = tuple(ts)
    for u in us:
        eat(u)
    print(ts[0].shape)  # E: dagpu-use-after-move


def whole_slice() -> None:
    ts = some(3)
    us = ts[:]
    eat(ts[1])
    print(us[1].shape)  # E: dagpu-use-after-move


def copy_method() -> None:
    ts = some(3)
    us = ts.copy()
    eat(us[-1])
    print(ts[-1].shape)  # E: dagpu-use-after-move


def star() -> None:
    ts = some(3)
    us = [*ts]
    eat(us[0])
    for t in ts:
        print(t.shape)  # E: dagpu-use-after-move


def sorted_copy() -> None:
    ts = some(3)
    us = sorted(ts, key=lambda t: t.size)
    eat(us[0])
    print([t.shape for t in ts])  # E: dagpu-use-after-move


def reversed_copy() -> None:
    ts = some(3)
    us = list(reversed(ts))
    for u in us:
        eat(u)
    print(ts[0].shape)  # E: dagpu-use-after-move


def comprehension() -> None:
    ts = some(3)
    us = [t for t in ts]
    eat(us[0])
    print(ts[0].shape)  # E: dagpu-use-after-move


def unpacked_copy() -> None:
    ts = some(3)
    a, *_ = list(ts)
    eat(a)
    print(ts[0].shape)  # E: dagpu-use-after-move


def copied_after_a_move() -> None:
    ts = some(3)
    eat(ts[0])
    us = list(ts)
    print(us[0].shape)  # E: dagpu-use-after-move


def lent_in_a_copy() -> None:
    ts = some(3)
    us = list(ts)
    r = us[0].borrow()
    eat(ts[0])  # E: dagpu-conflicting-borrow
    print(r.shape)


def queue_of_variables() -> None:
    a, b = vector(), vector()
    q = deque([a, b])
    t = q.popleft()
    eat(t)
    eat(q.popleft())
    print(b.shape)  # E: dagpu-use-after-move


def popped_from_a_copy() -> None:
    d = {"a": vector()}
    e = dict(d)
    eat(e.pop("a"))
    print(d["a"].shape)  # E: dagpu-use-after-move


def all_popped_from_a_copy() -> None:
    d = {"a": vector()}
    e = d.copy()
    while e:
        _, t = e.popitem()
        eat(t)
    for v in d.values():
        print(v.shape)  # E: dagpu-use-after-move


def popped_after_a_move() -> None:
    ts = some(3)
    eat(ts[0])
    eat(ts.pop(0))  # E: dagpu-use-after-move


def loop_after_an_append() -> None:
    ts = some(3)
    for t in ts:
        eat(t)
    ts.append(vector())
    for t in ts:
        print(t.shape)  # E: dagpu-use-after-move


def replaced_object() -> None:
    p = P(vector(), vector())
    q = replace(p, a=vector())
    eat(q.b)
    print(p.b.shape)  # E: dagpu-use-after-move


def dict_comprehension() -> None:
    d = {"a": vector()}
    e = {k: v for k, v in d.items()}
    for v in e.values():
        eat(v)
    print(d["a"].shape)  # E: dagpu-use-after-move


def popped_and_put_back() -> None:
    ts = some(3)
    t = ts.pop(0)
    us = [t]
    eat(us.pop())
    print(t.shape)  # E: dagpu-use-after-move


def set_by_default() -> None:
    d = table("ab")
    t = d.setdefault("a", vector())
    eat(t)
    print(d["a"].shape)  # E: dagpu-use-after-move


def copy_of_a_copy() -> None:
    ts = some(3)
    us = list(list(ts))
    vs = tuple(us)
    eat(vs[0])
    print(ts[0].shape)  # E: dagpu-use-after-move


def attributes_in_a_list() -> None:
    pair = P(vector(), vector())
    ts = [pair.a, pair.b]
    us = list(ts)
    eat(us[0])
    print(pair.a.shape)  # E: dagpu-use-after-move


def list_of_a_pair() -> None:
    pair = (vector(), vector())
    us = list(pair)
    eat(us[-1])
    print(pair[1].shape)  # E: dagpu-use-after-move


def reversed_in_place() -> None:
    ts = some(3)
    us = ts.copy()
    us.reverse()
    for u in us:
        eat(u)
    print(ts[0].shape)  # E: dagpu-use-after-move
