"""Builds a recipe of dagpu's ops."""

from collections.abc import Callable
from typing import Any, Final, final

from dagpu import (
    DeviceOp,
    Rank,
    SharedTensor,
    Tensor,
    as_shards,
    cutoff,
    dup,
    each,
    f32,
    from_host,
    gather,
    ones,
    pipeline,
    shard,
    zip_ops,
)  # fmt: skip
from tests.programs.feeds.counted_functions import (
    STRIP,
    N,
    Op,
    add,
    blend,
    constant,
    first,
    flip,
    halve,
    new,
    noted,
    sign,
    soften,
    split,
    three,
)
from tests.programs.meshes import mesh


@pipeline
def halved(number: int, x: SharedTensor[f32]) -> DeviceOp[Tensor[f32]]:
    return first(halve(new(), number, x))


@pipeline
def pair(number: int, x: SharedTensor[f32]) -> DeviceOp[tuple[Tensor[f32], Tensor[f32]]]:
    p, q, *_ = split(new(), new(), number, x).unzip()
    return zip_ops(p.unpartition(), q.unpartition())


def _halve(number: int, a: Op) -> Op:
    return first(halve(new(), number, a))


def _shift(number: int, a: Op, by: float) -> Op:
    return first(blend(new(), number, a, ones((N,)), by))


def _add(number: int, a: Op, b: Op) -> Op:
    out: Op = ones((N,)).partition((N,))
    for each_number, part in ((number + 100, a), (number, b)):
        out = add(out, each_number, part).first()
    return out.unpartition()


def _hosted(number: int, a: Op, f: Callable[[Any], Any]) -> Op:
    return a.host_map(noted(f"host {number}", f)).then(from_host)


def _chosen(number: int, a: Op, b: Op, c: Op) -> Op:
    def choose(v: float) -> Op:
        return _halve(number, a) if v > 0 else first(flip(new(), number + 100, b))

    return c.then(noted(f"closure {number}", choose))


def _late(number: int, a: Op, b: Op) -> Op:
    value = b.to_host().map(noted(f"map {number}", lambda x: float(x[0])))
    return value.then(noted(f"closure {number}", lambda v: _shift(number, a, v)))


def _nested(number: int, a: Op, c: Op, d: Op) -> Op:
    def outer(v: float) -> Op:
        return d.then(noted(f"inner {number}", lambda w: _shift(number, a, v + w)))

    return c.then(noted(f"closure {number}", outer))


def _outputs(launch: Op, *which: int) -> list[Op]:
    outs = launch.unzip()
    return [outs[index].unpartition() for index in which]


def _each(number: int, a: Op) -> Op:
    def of_part(part: Tensor[f32], _: Rank) -> Op:
        return first(halve(new(N // 2, N // 2), number, part.share()))

    parts: Op = each(of_part, shard(a.then(dup), mesh(2)))
    return gather(as_shards(parts, (N,)), "host:0")


STEPS: Final[dict[str, Callable[..., Op | list[Op]]]] = {
    "halve": _halve,
    "blend": lambda number, a, b, c: first(blend(new(), number, a, b, c)),
    "flip": lambda number, a: first(flip(new(), number, a)),
    "soften": lambda number, a: first(soften(new(STRIP), number, a)),
    "add": _add,
    "cutoff": lambda number, a: cutoff(_halve(number, a)),
    "sign": lambda number, a: cutoff(first(sign(new(), number, a))),
    "hosted": lambda number, a: _hosted(number, a.to_host(), lambda x: x - f32(1)),
    "hosted pair": lambda number, a, c: _hosted(number, zip_ops(a.to_host(), c), lambda p: p[0] + f32(p[1])),
    "mapped": lambda number, a: a.to_host().map(noted(f"map {number}", lambda x: x * f32(0.5))).then(from_host),
    "constant": lambda number: _halve(number, ones((N,)).shared()),
    "closure": lambda number: _halve(number, constant().shared()),
    "pipeline": lambda number, a: halved(number, a),
    "handle": lambda number, a: a.then(lambda t: _halve(number, t)),
    "chosen": _chosen,
    "late": _late,
    "nested": _nested,
    "split": lambda number, a: _outputs(split(new(), new(), number, a), 0, 1),
    "three": lambda number, a, b: _outputs(three(new(), new(), new(), number, a, b), 0, 2),
    "unzip": lambda number, a, b: list(zip_ops(_halve(number, a), first(flip(new(), number + 100, b))).unzip()),
    "pipeline pair": lambda number, a: list(pair(number, a).unzip(2)),
    "each": _each,
    "doubled": lambda number, c: c.map(noted(f"map {number}", lambda v: 1.0 - v)),
    "rounded": lambda number, c: cutoff(c.map(noted(f"map {number}", lambda v: float(int(v))))),
    "near": lambda number, c: cutoff(c.map(noted(f"map {number}", lambda v: v / 4)), lambda one, two: one == two),
    "summed": lambda number, c, d: zip_ops(c, d).map(noted(f"map {number}", lambda p: (p[0] + p[1]) / 2)),
    "total": lambda number, a: a.to_host().map(noted(f"map {number}", lambda x: float(x[1]))),
    "host number": lambda number, c: c.host_map(noted(f"host {number}", lambda v: v / 2)),
}


@final
class OpBuilder:
    """Makes ops."""

    def array(self, source: Any) -> Op:
        tensor: Op = source if isinstance(source.get(), SharedTensor) else source.then(from_host).shared()
        return tensor

    def shared(self, part: Op) -> Op:
        return part.shared()

    def root(self, tensors: list[Op], numbers: list[Op]) -> Op:
        return zip_ops(*[each.to_host() for each in tensors], *numbers)

    def step(self, number: int, kind: str, parts: list[Op]) -> list[Op]:
        made = STEPS[kind](number, *parts)
        return made if isinstance(made, list) else [made]
