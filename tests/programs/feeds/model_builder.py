"""Builds a recipe of the model's nodes. Its functions are NumPy's, on whole arrays."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from tests.programs.feeds.feed_model import Bind, Call, Cell, Cut, Given, Memo, Node, Output, Several

Array: TypeAlias = NDArray[np.float32]

F32 = np.float32
N = 8
STRIPS = 4
"""How many times a run of `soften` calls its body at most."""


def halve(a: Array) -> Array:
    return a * F32(0.5) + F32(1)


def blend(a: Array, b: Array, c: float) -> Array:
    return (a + b) * F32(0.5) + F32(c)


def flip(a: Array) -> Array:
    return F32(1) - a


def soften(a: Array) -> Array:
    wide = np.concatenate((a[:1], a, a[-1:]))
    most: Array = np.maximum(np.maximum(wide[:-2], wide[1:-1]), wide[2:])
    return most


def sign(a: Array) -> Array:
    return np.where(a < 0, F32(-1), F32(1)).astype(F32)


def add(y: Array, a: Array) -> Array:
    return y + a * F32(0.25)


ONES = Given(np.ones(N, F32))


def _launch(f: Callable[..., Any], number: int, *inputs: Node) -> Node:
    return Call(f"kernel {number}", f, inputs)


def _hosted(f: Callable[..., Any], number: int, *inputs: Node) -> Node:
    return Call(f"host {number}", f, inputs)


def _mapped(f: Callable[..., Any], number: int, *inputs: Node) -> Node:
    return Call(f"map {number}", f, inputs)


def _shift(number: int, a: Node, by: float) -> Node:
    return _launch(blend, number, a, ONES, Given(by))


def _add(number: int, a: Node, b: Node) -> Node:
    return Call(f"kernel {number}", add, (_launch(add, number + 100, ONES, a), b), over=0)


def _chosen(number: int, a: Node, b: Node, c: Node) -> Node:
    def choose(v: float) -> Node:
        return _launch(halve, number, a) if v > 0 else _launch(flip, number + 100, b)

    return Bind(f"closure {number}", c, choose)


def _late(number: int, a: Node, b: Node) -> Node:
    value = _mapped(lambda x: float(x[0]), number, b)
    return Bind(f"closure {number}", value, lambda v: _shift(number, a, v))


def _nested(number: int, a: Node, c: Node, d: Node) -> Node:
    def outer(v: float) -> Node:
        return Bind(f"inner {number}", d, lambda w: _shift(number, a, v + w), held=v)

    return Bind(f"closure {number}", c, outer)


def _split(number: int, a: Node) -> list[Node]:
    whole = Memo(Call(f"kernel {number}", lambda x: (x + F32(1), x - F32(1)), (a,), outs=2))
    return [Output(whole, 0), Output(whole, 1)]


def _three(number: int, a: Node, b: Node) -> list[Node]:
    whole = Memo(Call(f"kernel {number}", lambda x, y: (x, y, x - y), (a, b), outs=3))
    return [Output(whole, 0), Output(whole, 2)]


def _unzip(number: int, a: Node, b: Node) -> list[Node]:
    both = Several((_launch(halve, number, a), _launch(flip, number + 100, b)))
    return [Output(both, 0), Output(both, 1)]


STEPS: Final[dict[str, Callable[..., Node | list[Node]]]] = {
    **dict.fromkeys(("halve", "pipeline", "handle", "each"), partial(_launch, halve)),
    **dict.fromkeys(("constant", "closure"), lambda number: _launch(halve, number, ONES)),
    **dict.fromkeys(("split", "pipeline pair"), _split),
    "blend": partial(_launch, blend),
    "flip": partial(_launch, flip),
    "soften": partial(_launch, soften),
    "add": _add,
    "cutoff": lambda number, a: Cut(Memo(_launch(halve, number, a))),
    "sign": lambda number, a: Cut(Memo(_launch(sign, number, a))),
    "hosted": partial(_hosted, lambda x: x - F32(1)),
    "hosted pair": partial(_hosted, lambda x, v: x + F32(v)),
    "mapped": partial(_mapped, lambda x: x * F32(0.5)),
    "chosen": _chosen,
    "late": _late,
    "nested": _nested,
    "three": _three,
    "unzip": _unzip,
    "doubled": partial(_mapped, lambda v: 1.0 - v),
    "rounded": lambda number, c: Cut(Memo(_mapped(lambda v: float(int(v)), number, c))),
    "near": lambda number, c: Cut(Memo(_mapped(lambda v: v / 4, number, c))),
    "summed": partial(_mapped, lambda v, w: (v + w) / 2),
    "total": partial(_mapped, lambda x: float(x[1])),
    "host number": partial(_hosted, lambda v: v / 2),
}


@final
class ModelBuilder:
    """Makes nodes."""

    def array(self, source: Cell) -> Node:
        return source

    def shared(self, part: Node) -> Node:
        return Memo(part)

    def root(self, tensors: list[Node], numbers: list[Node]) -> Node:
        return Several((*tensors, *numbers))

    def step(self, number: int, kind: str, parts: list[Node]) -> list[Node]:
        made = STEPS[kind](number, *parts)
        return made if isinstance(made, list) else [made]


MOST_RUNS: Final = {"soften": STRIPS, "each": 2}
"""How often one run of a step notes its name at most: a kernel does so in each tile, and on each device."""
