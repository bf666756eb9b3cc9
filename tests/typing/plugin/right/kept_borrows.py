"""Borrows that a default, a generator or a list kept, which are not used any more."""

# ruff: noqa: B008  # the default is the form that is checked

from dagpu import TensorRef, f32
from tests.typing.plugin.kernels import eat, total, vector


def generator_asked_before() -> None:
    t = vector()
    r = t.borrow()
    print(sum(total(r) for _ in range(2)))
    eat(t)


def list_read_before() -> None:
    ts = [vector(), vector()]
    rs = [t.borrow() for t in ts]
    print([total(r) for r in rs])
    eat(ts[0])


def another_list() -> None:
    ts = [vector(), vector()]
    us = [vector(), vector()]
    rs = [t.borrow() for t in ts]
    eat(us[0])
    print([total(r) for r in rs])


def default_used_before() -> None:
    t = vector()

    def look(r: TensorRef[f32] = t.borrow()) -> float:
        return total(r)

    print(look())
    eat(t)


def borrowed_in_each_round() -> None:
    ts = [vector(), vector()]
    for t in ts:
        r = t.borrow()
        print(total(r))
    for t in ts:
        eat(t)
