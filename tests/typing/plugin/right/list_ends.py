"""Items of lists that are counted from both ends and are different ones, or may be."""

from dagpu import Tensor, f32
from tests.typing.plugin.kernels import eat, vector, yes


def both_ends() -> None:
    ts = [vector(), vector()]
    eat(ts[0])
    eat(ts[-1])


def length_unknown(ts: list[Tensor[f32]]) -> None:
    eat(ts[0])
    eat(ts[-1])


def length_appended() -> None:
    ts = [vector(), vector()]
    ts.append(vector())
    eat(ts[1])
    eat(ts[-1])


def length_deleted() -> None:
    ts = [vector(), vector()]
    eat(ts[1])
    del ts[1]
    eat(ts[-1])


def length_by_another_name() -> None:
    ts = [vector(), vector()]
    us = ts
    us.append(vector())
    eat(ts[1])
    eat(ts[-1])


def length_by_a_slice() -> None:
    ts = [vector(), vector()]
    ts[0:0] = [vector()]
    eat(ts[1])
    eat(ts[-1])


def length_by_plus() -> None:
    ts = [vector(), vector()]
    ts += [vector()]
    eat(ts[1])
    eat(ts[-1])


def length_by_branch() -> None:
    ts = [vector()]
    if yes():
        ts = [vector(), vector()]
    eat(ts[0])
    if len(ts) > 1:
        eat(ts[-1])


def tuple_in_a_loop() -> None:
    pair = (vector(), vector())
    for t in pair:
        eat(t)


def tuple_looked_at() -> None:
    pair = (vector(), vector())
    for t in pair:
        print(t.shape)
    eat(pair[0])
    print(pair[1].shape)
