"""Items of one container that were added to another, and are used under one of them."""

from typing import NamedTuple, TypedDict

from dagpu import Tensor, f32
from tests.typing.plugin.kernels import eat, vector


class Named(NamedTuple):
    t: Tensor[f32]
    n: int


class Typed(TypedDict):
    t: Tensor[f32]
    n: int


def tail_slice_param_right(ts: list[Tensor[f32]]) -> None:
    for t in ts[1:]:
        eat(t)
    print(ts[0].shape)


def extended_and_forgotten() -> None:
    ts, us = [vector()], [vector()]
    ts.extend(us)
    for t in ts:
        eat(t)


def another_list_stays() -> None:
    ts, us, vs = [vector()], [vector()], [vector()]
    for t in ts + us:
        eat(t)
    print(vs[0].shape)


def assigned_again() -> None:
    ts, us = [vector()], [vector()]
    ts += us
    for t in ts:
        eat(t)
    us = [vector()]
    print(us[0].shape)


def another_key() -> None:
    d, e = {"a": vector()}, {"b": vector()}
    d.update(e)
    eat(d["a"])
    print(e["b"].shape)


def merged_over() -> None:
    d, e = {"a": vector()}, {"a": vector()}
    f = d | e
    eat(f["a"])
    print(d["a"].shape)


def merged_over_in_place() -> None:
    d, e = {"a": vector()}, {"a": vector(), "b": vector()}
    d |= e
    eat(d["b"])
    print(e["a"].shape)


def replaced_component() -> None:
    n = Named(vector(), 1)
    m = n._replace(t=vector())
    eat(m.t)
    print(n.t.shape)


def typed_dict_assigned() -> None:
    d: Typed = {"t": vector(), "n": 1}
    eat(d["t"])
    d["t"] = vector()
    print(d["t"].shape)


def tuples_of_two() -> None:
    ts, us = (vector(), 1), (vector(), 2)
    both = ts + us
    eat(both[0])
    print(us[0].shape)
