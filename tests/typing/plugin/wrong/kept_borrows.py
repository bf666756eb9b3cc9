"""Borrows that a default, a generator or a list keeps while the tensor moves."""

# ruff: noqa: B008  # the default is the form that is checked

from collections.abc import Iterator
from functools import partial

from dagpu import TensorRef, f32
from tests.typing.plugin.kernels import eat, total, vector


def default() -> None:
    t = vector()

    def look(r: TensorRef[f32] = t.borrow()) -> float:
        return total(r)

    eat(t)  # E: dagpu-conflicting-borrow
    print(look())


def generator() -> None:
    t = vector()
    r = t.borrow()
    g = (total(r) for _ in range(2))
    eat(t)  # E: dagpu-conflicting-borrow
    print(list(g))


def list_of_borrows() -> None:
    ts = [vector(), vector()]
    g = [t.borrow() for t in ts]
    eat(ts[0])  # E: dagpu-conflicting-borrow
    print(total(g[0]))


def partial_function() -> None:
    t = vector()
    look = partial(total, t.borrow())
    eat(t)  # E: dagpu-conflicting-borrow
    print(look())


def generator_function() -> None:
    t = vector()

    def rows(r: TensorRef[f32]) -> Iterator[float]:
        yield total(r)
        yield total(r)

    g = rows(t.borrow())
    eat(t)  # E: dagpu-conflicting-borrow
    print(list(g))


def list_in_a_dict() -> None:
    t = vector()
    groups: dict[str, list[TensorRef[f32]]] = {}
    groups.setdefault("a", []).append(t.borrow())
    eat(t)  # E: dagpu-conflicting-borrow
    print(total(groups["a"][0]))


def returned_in_a_list_in_a_dict() -> dict[str, list[TensorRef[f32]]]:  # R: runs
    t = vector()
    groups: dict[str, list[TensorRef[f32]]] = {}
    groups.setdefault("a", []).append(t.borrow())
    return groups  # E: dagpu-borrow-escape
