"""Calls with values of several tensors, which lie on a mesh, and with tensors that are lent."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

import dagpu
from dagpu import (
    Blocks,
    Cyclic,
    DeviceOp,
    Mesh,
    Partials,
    Rank,
    Replicated,
    Sharded,
    ShardedRef,
    Tensor,
    TensorRef,
    all_reduce,
    as_partials,
    broadcast,
    dup,
    each,
    f32,
    from_host,
    pipeline,
    shard_host,
    zip_ops,
)
from dagpu.common.containers import items_of
from dagpu.grad import Parameterized
from tests.compiled.worlds import TILE, WARM, N, World, blend, case, fresh, grow, told

NAMES: Final = ("cuda:0", "cuda:1")


def mesh(*names: str) -> Mesh:
    return Mesh(names or NAMES)


def parts(value: Any) -> list[Any]:
    """The handles that a value on a mesh has on the devices."""
    return list(items_of(value))


def doubled(part: Any, rank: Rank) -> DeviceOp[Tensor[f32]]:
    op: DeviceOp[Tensor[f32]] = part * 2.0
    return op


def grown(part: Tensor[f32], rank: Rank) -> DeviceOp[Tensor[f32]]:
    return grow(part.partition(TILE), 0.5).first().unpartition()


def replicas() -> Replicated[f32]:
    return broadcast(from_host(np.ones(N, f32)), mesh()).sync()


def shards(layout: Any = Blocks(0)) -> Sharded[f32]:  # noqa: B008  # it is immutable
    return shard_host(np.ones(2 * N, f32), mesh(), layout).sync()


@case(serves=4)
def replicas_become_summands(w: World) -> Any:
    """Shared tensors come in, and tensors go out."""

    @pipeline
    def copies(s: Replicated[f32]) -> DeviceOp[Partials[f32]]:
        return as_partials(each(doubled, s))

    s = replicas()
    for _ in range(WARM + 4):
        made = copies(s).sync()
        named = {f"s{at}": part for at, part in enumerate(parts(s))}
        w.note_launch(0, **named, **{f"p{at}": part for at, part in enumerate(parts(made))})
    w.note_states(*parts(s), *parts(made))
    return [type(made).__name__, repr(made), made.mesh == s.mesh]


@case(serves=4)
def summands_move_and_become_replicas(w: World) -> Any:
    """Tensors move in, and shared tensors go out, of which each counts its holders."""

    @pipeline
    def reduced(s: Partials[f32]) -> DeviceOp[Replicated[f32]]:
        return all_reduce(s)

    def summands() -> Partials[f32]:
        return as_partials(each(doubled, replicas())).sync()

    for _ in range(WARM + 4):
        given = summands()
        made = reduced(given).sync()
    w.note_states(*parts(given), *parts(made))
    one, other = parts(made)
    clone = other.clone()
    del made
    w.note(told(one.try_unwrap()))
    try:
        other.try_unwrap()
    except dagpu.OwnershipError as error:
        w.note(str(error))
    del clone
    w.note(told(other.try_unwrap()))
    try:
        reduced(given).sync()
    except dagpu.MovedError as error:
        w.note(str(error))
    return repr(reduced(summands()).sync())


@case(serves=2)
def a_part_moves_elsewhere(w: World) -> Any:
    """A value of which one tensor is gone is refused, and nothing of it moves."""

    @pipeline
    def both(s: Sharded[f32], a: float) -> DeviceOp[Any]:
        return each(grown, s)

    s = shards()
    for number in range(WARM + 2):
        s = both(s, float(number)).sync()
    first, second = parts(s)
    dup(second).sync()
    try:
        both(s, 0.5)
    except dagpu.MovedError as error:
        w.note(str(error))
    w.note_states(first)


@case(serves=2)
def a_value_that_is_there_twice(w: World) -> Any:
    @pipeline
    def two(s: Sharded[f32], t: Sharded[f32]) -> DeviceOp[Any]:
        return zip_ops(each(grown, s), each(grown, t))

    s, t = shards(), shards()
    for _ in range(WARM + 2):
        s, t = two(s, t).sync()
    try:
        two(s, s)
    except dagpu.MovedError as error:
        w.note(str(error))
    w.note_states(*parts(s), *parts(t))


@case(serves=3)
def a_value_that_is_lent(w: World) -> Any:
    @pipeline
    def copies(s: ShardedRef[f32]) -> DeviceOp[Any, Any, Any]:
        return each(doubled, s)

    s: Any = shards()
    for _ in range(WARM + 4):
        made = copies(s.borrow()).sync()
    w.note_states(*parts(s), *parts(made))
    w.is_steady = False  # each reader marks the end of a run over two devices in its way
    lent = s.borrow()
    s.to_host().sync()
    try:
        copies(lent)
    except dagpu.MovedError as error:
        w.note(str(error))
    return repr(made)


@case()
def other_layouts_and_meshes(w: World) -> Any:
    """Each has a plan of its own; equal ones have one."""
    calls: list[str] = []

    @pipeline
    def copies(s: ShardedRef[f32]) -> DeviceOp[Any, Any, Any]:
        calls.append(repr(s))
        return each(doubled, s)

    for _ in range(WARM):
        for layout in (Blocks(0), Cyclic((64,)), Blocks(0)):
            w.note(repr(copies(shards(layout).borrow()).sync()))
    w.note(len(calls))
    other = shard_host(np.ones(2 * N, f32), mesh("cuda:1", "cuda:0")).sync()
    w.note(repr(copies(other.borrow()).sync()))
    w.note(repr(copies(shard_host(np.ones(4 * N, f32), mesh()).sync().borrow()).sync()))
    return calls


@case(serves=3)
def a_tensor_that_is_lent(w: World) -> Any:
    @pipeline
    def blended(y: Tensor[f32], a: float, x: TensorRef[f32]) -> DeviceOp[Any, Any, Any]:
        return blend(y.partition(TILE), a, x).first().unpartition()

    x, y = fresh(), fresh()
    for number in range(WARM + 4):
        y = blended(y, float(number), x.borrow()).sync()
        w.note_launch(x=x, y=y)
    w.note_states(x, y)
    lent = x.borrow()
    dup(x).sync()
    try:
        blended(y, 0.5, lent)
    except dagpu.MovedError as error:
        w.note(str(error))
    w.note_states(y)
    x = fresh()
    op = blended(y, 0.5, x.borrow())
    dup(x).sync()
    try:
        op.sync()
    except dagpu.MovedError as error:
        w.note(str(error))


@dataclass(frozen=True)
class Pair(Parameterized[Any]):
    """A tree of the program's own: what it is about and its items are made when they are asked for."""

    one: Any
    other: Any
    name: str

    def mapped(self, f: Any, /) -> "Pair":
        return Pair(f(self.one), f(self.other), self.name)


@case()
def a_tree_of_the_program(w: World) -> Any:
    calls: list[str] = []

    @pipeline
    def grown_pair(pair: Any, a: float) -> DeviceOp[Any]:
        calls.append(pair.name)
        return zip_ops(
            grow(pair.one.partition(TILE), a).first().unpartition(),
            grow(pair.other.partition(TILE), a).first().unpartition(),
        )

    x, y = fresh(), fresh()
    for number in range(WARM):
        x, y = grown_pair(Pair(x, y, "first"), float(number)).sync()
    x, y = grown_pair(Pair(x, y, "second"), 0.5).sync()

    @pipeline
    def a_pair(x: Tensor[f32], y: Tensor[f32], a: float) -> DeviceOp[Pair]:
        return zip_ops(
            grow(x.partition(TILE), a).first().unpartition(), grow(y.partition(TILE), a).first().unpartition()
        ).map(lambda both: Pair(*both, "third"))

    for number in range(WARM + 2):
        pair = a_pair(x, y, float(number)).sync()
        x, y = pair.one, pair.other
    w.note(pair.name, told([x, y]))
    given = Pair(x, y, "second")
    grown_pair(given, 0.5).sync()
    w.note_states(given.one, given.other)
    return calls
