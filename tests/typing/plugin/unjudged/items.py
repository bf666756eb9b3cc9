"""Mistakes with items that mypy does not report, and a run does: at an index that the run computes, or that changes.

Judged are an item at a literal index or key, the last item, and the items that a loop goes over.
"""

# ruff: noqa: PLC0206  # the index is the form that is looked at

from dagpu import Tensor, f32
from tests.typing.plugin.kernels import eat, total, vector


def some(count: int) -> list[Tensor[f32]]:
    """A list whose length no type checker knows."""
    return [vector() for _ in range(count)]


class Bag:
    """Tensors that methods give by an index or a name."""

    def __init__(self) -> None:
        self.ts = [vector(), vector()]
        self.d = {"a": vector()}

    def __getitem__(self, i: int) -> Tensor[f32]:
        return self.ts[i]

    def named(self, name: str) -> Tensor[f32]:
        return self.d[name]


def key_in_a_variable(key: str = "a") -> None:
    d = {"a": vector()}
    eat(d[key])
    eat(d[key])


def got_by_a_key_in_a_variable(key: str = "a") -> None:
    d = {"a": vector()}
    for t in (d.get(key), d.get(key)):
        if t is not None:
            eat(t)


def lent_at_an_index_in_a_variable() -> None:
    ts = some(2)
    i = len(ts) - 1
    r = ts[i].borrow()
    eat(ts[i])
    total(r)


def popped_while_lent() -> None:
    ts = some(2)
    r = ts[-1].borrow()
    eat(ts.pop())
    total(r)


def item_of_a_slice() -> None:
    ts = some(3)
    for t in ts[1:]:
        eat(t)
    print(ts[2].shape)


def one_of_those_that_moved_set_again() -> None:
    ts = some(2)
    for t in ts:
        eat(t)
    ts[0] = vector()
    print(ts[1].shape)


def starred_list() -> None:
    ts = [vector()]
    us = [*ts, vector()]
    eat(us[0])
    print(ts[0].shape)


def index_after_a_pop() -> None:
    ts = some(3)
    eat(ts[1])
    ts.pop(0)
    print(ts[0].shape)


def index_before_a_pop() -> None:
    ts = some(3)
    eat(ts[0])
    ts.pop()
    print(ts[0].shape)


def index_after_an_append() -> None:
    ts = some(3)
    eat(ts[-1])
    ts.append(vector())
    print(ts[-2].shape)


def index_after_an_insert() -> None:
    ts = some(3)
    eat(ts[0])
    ts.insert(0, vector())
    print(ts[1].shape)


def index_after_a_deletion() -> None:
    ts = some(3)
    eat(ts[1])
    del ts[0]
    print(ts[0].shape)


def popped_by_another_name() -> None:
    ts = some(3)
    us = ts
    eat(ts[1])
    us.pop(0)
    print(ts[0].shape)


def same_index() -> None:
    ts = [vector(), vector()]
    i = 0
    eat(ts[i])
    eat(ts[i])


def same_index_in_a_round() -> None:
    ts = [vector(), vector()]
    for i in range(2):
        eat(ts[i])
        print(ts[i].shape)


def same_key_in_a_round() -> None:
    ts = {"a": vector()}
    for k in ts:
        eat(ts[k])
        print(ts[k].shape)


def index_then_negative() -> None:
    ts = [vector(), vector()]
    eat(ts[1])
    eat(ts[-1])


def first_then_negative() -> None:
    ts = [vector(), vector(), vector()]
    eat(ts[0])
    eat(ts[-3])


def negative_then_unpacked() -> None:
    ts = [vector(), vector(), vector()]
    eat(ts[-1])
    a, b, c = ts
    print(a.shape, b.shape)
    print(c.shape)


def single_item() -> None:
    ts = [vector()]
    eat(ts[0])
    print(ts[-1].shape)


def named_from_the_end() -> None:
    ts = [vector(), vector()]
    t = ts[-1]
    eat(t)
    print(ts[1].shape)


def bag_item() -> None:
    bag = Bag()
    eat(bag[0])
    eat(bag[0])


def bag_named() -> None:
    bag = Bag()
    eat(bag.named("a"))
    eat(bag.named("a"))


def repeated_left() -> None:
    t = vector()
    ts = 2 * [t]
    for u in ts:
        eat(u)


def fromkeys() -> None:
    t = vector()
    d = dict.fromkeys(("a", "b"), t)
    eat(d["a"])
    eat(d["b"])


def fromkeys_loop() -> None:
    t = vector()
    d = dict.fromkeys(["a", "b"], t)
    for u in d.values():
        eat(u)
