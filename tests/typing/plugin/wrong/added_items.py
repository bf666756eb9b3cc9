"""Items of one container that were added to another, and are used under both."""

from typing import NamedTuple, TypedDict

from dagpu import Tensor, f32
from tests.typing.plugin.kernels import eat, vector


class Named(NamedTuple):
    t: Tensor[f32]
    n: int


def extended2() -> None:
    ts, us = [vector()], [vector()]
    ts.extend(us)
    for t in ts:
        eat(t)
    print(us[0].shape)  # E: dagpu-use-after-move


def plus_assigned() -> None:
    ts, us = [vector()], [vector()]
    ts += us
    for t in ts:
        eat(t)
    print(us[0].shape)  # E: dagpu-use-after-move


def added() -> None:
    ts, us = [vector()], [vector()]
    both = ts + us
    for t in both:
        eat(t)
    print(us[0].shape)  # E: dagpu-use-after-move


def added_tuples() -> None:
    ts, us = (vector(), 1), (vector(), 2)
    both = ts + us
    eat(both[2])
    print(us[0].shape)  # E: dagpu-use-after-move


def updated() -> None:
    d, e = {"a": vector()}, {"b": vector()}
    d.update(e)
    eat(d["b"])
    print(e["b"].shape)  # E: dagpu-use-after-move


def merged() -> None:
    d, e = {"a": vector()}, {"b": vector()}
    f = d | e
    eat(f["b"])
    print(e["b"].shape)  # E: dagpu-use-after-move


def merged_in() -> None:
    d, e = {"a": vector()}, {"b": vector()}
    d |= e
    eat(d["b"])
    print(e["b"].shape)  # E: dagpu-use-after-move


def replaced() -> None:
    n = Named(vector(), 1)
    m = n._replace(n=2)
    eat(m.t)
    print(n.t.shape)  # E: dagpu-use-after-move


class Typed(TypedDict):
    t: Tensor[f32]
    n: int


def typed_dict() -> None:
    d: Typed = {"t": vector(), "n": 1}
    eat(d["t"])
    print(d["t"].shape)  # E: dagpu-use-after-move


def typed_dict2(d: Typed) -> None:
    t = d["t"]
    eat(t)
    print(d["t"].shape)  # E: dagpu-use-after-move
