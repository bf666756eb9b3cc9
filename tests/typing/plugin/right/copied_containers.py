"""Containers that are made of the items of others, and items that change their indices, used as they may be."""

# each spelling of a copy is checked

from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, replace

from dagpu import Tensor, TensorRef, f32, zeros
from tests.typing.plugin.kernels import eat, maybe, scale, vector, yes


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


def copy_loses_its_first() -> None:
    ts = [vector(), vector()]
    us = list(ts)
    us.pop(0)
    eat(us[0])
    eat(ts[0])


def item_of_a_copy_is_replaced() -> None:
    ts = [vector(), vector()]
    us = list(ts)
    us[0] = vector()
    eat(us[0])
    print(ts[0].shape)


def ends_of_a_reversed_copy() -> None:
    ts = some(3)
    us = list(reversed(ts))
    eat(us[0])
    eat(ts[0])


def copy_grows() -> None:
    ts = some(3)
    us = list(ts)
    us.append(vector())
    eat(us[-1])
    for t in ts:
        print(t.shape)


def end_after_an_append() -> None:
    ts = some(3)
    eat(ts[-1])
    ts.append(vector())
    print(ts[-1].shape)


def first_is_dropped() -> None:
    a, b = vector(), vector()
    ts = [a, b]
    ts.pop(0)
    eat(ts[0])


def stack_is_emptied() -> None:
    ts = some(3)
    while ts:
        eat(ts[-1])
        ts.pop()
    ts.append(vector())
    print(ts[0].shape)


def largest_and_the_rest() -> None:
    ts = some(3)
    best = max(ts, key=lambda t: t.size)
    rest = [t for t in ts if t is not best]
    eat(best)
    for t in rest:
        eat(t)


def largest_first() -> None:
    ts = some(3)
    while ts:
        best = max(ts, key=lambda t: t.size)
        ts.remove(best)
        eat(best)


def keys_are_popped() -> None:
    d = {"a": vector(), "b": vector()}
    eat(d.pop("a"))
    d["a"] = vector()
    eat(d["a"])
    eat(d.pop("b"))


def ring() -> None:
    ring = deque([vector() for _ in range(3)])
    for _ in range(9):
        t = ring.popleft()
        u = t.reshape((2, 4)).reshape((8,))
        ring.append(u)
    for t in ring:
        eat(t)


def attribute_of_a_copy_is_replaced() -> None:
    p = P(vector(), vector())
    q = replace(p, a=vector())
    eat(q.a)
    print(p.a.shape)


def original_is_cleared() -> None:
    ts = some(3)
    us = ts[:]
    ts.clear()
    ts.append(vector())
    for u in us:
        eat(u)
    for t in ts:
        eat(t)


def items_are_sorted_out() -> None:
    ts = some(3)
    for t in list(ts):
        if yes():
            ts.remove(t)
            eat(t)
    for t in ts:
        print(t.shape)


def sorted_and_spent() -> None:
    ts = some(3)
    us = sorted(ts, key=lambda t: t.size)
    for u in us:
        eat(u)


def always_the_last() -> None:
    ts = some(3)
    del ts[0]
    for _ in range(3):
        ts.append(vector())
        eat(ts[-1])


def variable_is_asked() -> None:
    t = maybe()
    if t is not None:
        eat(t)
    print(t is None)


def one_is_taken_out() -> None:
    ts = some(3)
    for i in range(len(ts)):
        if yes():
            eat(ts.pop(i))
            break
    for t in ts:
        print(t.shape)


def first_and_the_rest() -> None:
    ts = some(3)
    first = next(iter(ts))
    rest = [t for t in ts if t is not first]
    eat(first)
    for t in rest:
        print(t.shape)


def found_or_made() -> None:
    d: dict[str, Tensor[f32]] = {}
    for name in ("a", "b", "a"):
        t = d.get(name)
        if t is None:
            t = vector()
            d[name] = t
    for v in d.values():
        eat(v)


def set_by_default() -> None:
    d: dict[str, Tensor[f32]] = {}
    for name in ("a", "b", "a"):
        t = d.setdefault(name, vector())
        print(t.shape)


def value_of_a_copy_is_replaced() -> None:
    d = {"a": vector()}
    e = dict(d)
    e["a"] = vector()
    eat(e["a"])
    print(d["a"].shape)


def ends_are_popped() -> None:
    ts = some(3)
    a = ts.pop()
    b = ts.pop()
    eat(a)
    eat(b)
    ts.insert(0, vector())
    print(ts[0].shape)


def pool() -> None:
    pool: list[Tensor[f32]] = []
    for _ in range(4):
        t = pool.pop() if pool else vector()
        scale(t.borrow_mut().partition((4,)), 2.0).sync()
        pool.append(t)
    print(pool[0].shape)


def longer_copy_is_read() -> None:
    ts = some(3)
    us = [*ts, vector()]
    for u in us:
        print(u.shape)
    for t in ts:
        eat(t)


def stack_of_two() -> None:
    stack = [vector(), vector()]
    top = stack[-1]
    print(top.shape)
    eat(stack.pop())
    eat(stack.pop())


def callback_of_something_else() -> None:
    with ExitStack() as stack:
        t = vector()
        stack.callback(print, "done")
        print(t.shape)
        eat(t)


def one_of_the_values() -> None:
    d = table("ab")
    vs = list(d.values())
    eat(vs[0])
    print(d["b"].shape)


def item_set_at_a_variable_index() -> None:
    ts, i = some(3), len(table("a")) - 1
    us = list(ts)
    ts[i] = vector()
    eat(us[0])
    print(ts[0].shape)


def last_one_after_an_append() -> None:
    ts = some(3)
    r = ts[-1].borrow()
    ts.append(vector())
    eat(ts[-1])
    print(r.shape)


def two_slices() -> None:
    ts = some(3)
    for t in ts[:2]:
        eat(t)
    for t in ts[2:]:
        eat(t)


def some_and_the_others() -> None:
    ts = [*some(2), zeros((4,)).sync()]
    long = [t for t in ts if t.size > 4]
    short = [t for t in ts if t.size <= 4]
    for t in long:
        eat(t)
    for t in short:
        eat(t)


def lent_at_an_index(ts: list[Tensor[f32]], i: int) -> TensorRef[f32]:
    t = ts[i]
    return t.borrow()


def both_lent_in_each_round() -> None:
    ts = some(3)
    for i in range(3):
        for j in range(i):
            a, b = ts[i].borrow(), ts[j].borrow_mut()
            print(a.shape, b.shape)


def value_set_at_a_variable_key() -> None:
    d = table("a")
    key = next(iter(d))
    r = d["a"].borrow()
    d[key] = vector()
    eat(d["a"])
    print(r.shape)
