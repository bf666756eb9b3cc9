"""Mistakes with layouts, and with values that lie on several devices."""

from typing import Any

import numpy as np

from dagpu import (
    Blocks,
    Cyclic,
    DeviceOp,
    Layout,
    Mesh,
    Partials,
    Rank,
    Replicated,
    Tensor,
    all_gather,
    all_reduce,
    as_partials,
    as_shards,
    bool_,
    broadcast,
    convert,
    dup,
    each,
    f32,
    f64,
    from_host,
    full,
    gather,
    halo,
    i32,
    ones,
    reduce_scatter,
    reshard,
    shard,
    unzip_each,
    value,
    zip_ops,
)
from dagpu.grad import grad
from tests.behaviour.errors.cures.catalogue import Catalogue, anything

CATALOGUE = Catalogue()
case = CATALOGUE.add

PAIR = Mesh(["host:0", "host:1"])
SQUARE = Mesh(["host:0", "host:1", "host:2", "host:3"], (2, 2), ("rows", "columns"))
OTHER = Mesh(["host:2", "host:3"])


class Boxes:
    """A layout of one's own."""

    def __init__(self, *boxes: Any) -> None:
        self._boxes = boxes

    def boxes(self, shape: Any, mesh: Mesh, /) -> Any:
        return self._boxes

    def __repr__(self) -> str:
        return "Boxes()"


def cut(layout: Any, shape: tuple[int, ...] = (4, 4), mesh: Any = PAIR) -> Any:
    return shard(ones(shape), mesh, layout).sync()


def halves(*rest: Any) -> list[list[Any]]:
    return [[(slice(0, 2), *rest)], [(slice(2, 4), *rest)]]


# ---- layouts

case(
    lambda: Blocks(anything("rows")),
    ("Write Blocks(0)", lambda: Blocks(0)),
    ('Blocks({0: "rows", 1: "columns"})', lambda: Blocks({0: "rows", 1: "columns"})),
)
case(lambda: Cyclic((0, 64)), ("Write Cyclic((64, 64))", lambda: Cyclic((64, 64))))
case(lambda: cut(Blocks(2)), ("Cut one of these: Blocks(0)", lambda: cut(Blocks(0))))
case(lambda: cut(Blocks({0: "rows"})), ("Name one of these", lambda: cut(Blocks({0: "devices"}))))
case(
    lambda: cut(Blocks(0), (5, 4)),
    ("Say Blocks(0, partial=True) to allow smaller blocks at the end", lambda: cut(Blocks(0, partial=True), (5, 4))),
)
case(
    lambda: cut(Blocks({0: "rows"}), mesh=SQUARE),
    ("Blocks({0: 'rows', 1: 'columns'})", lambda: cut(Blocks({0: "rows", 1: "columns"}), mesh=SQUARE)),
)
case(
    lambda: cut(Cyclic((2,))),
    ("Give the tile as many axes as the array", lambda: cut(Cyclic((2, 2)))),
)
WHOLE = slice(0, 4)
case(
    lambda: cut(Boxes([])),
    ("Return one for each device of the mesh", lambda: cut(Boxes(*halves(WHOLE)))),
)
case(lambda: cut(Boxes(*halves())), ("Return a slice for each axis", lambda: cut(Boxes(*halves(WHOLE)))))
case(
    lambda: cut(Boxes(*halves(slice(0, 5)))),
    ("Return boxes of the shape", lambda: cut(Boxes(*halves(WHOLE)))),
)
case(
    lambda: cut(Boxes(halves(WHOLE)[0], [(WHOLE, WHOLE)])),
    ("Give each element to one device", lambda: cut(Boxes(*halves(WHOLE)))),
)
case(
    lambda: cut(Boxes(halves(WHOLE)[0], [])),
    ("Let its boxes cover the whole", lambda: cut(Boxes(*halves(WHOLE)))),
)
case(
    lambda: cut(anything(Blocks)),
    ("Write Blocks(0)", lambda: cut(Blocks(0))),
    ("Cyclic((64, 64))", lambda: cut(Cyclic((64, 64)))),
)
case(
    lambda: shard(ones((4,)), anything(["host:0"])),
    ('Write Mesh(["cuda:0", "cuda:1"])', lambda: Mesh(["cuda:0", "cuda:1"])),
    simulated=True,
)

# ---- values


def shards() -> DeviceOp[Any]:
    return shard(ones((4, 4)), PAIR)


def owned(part: Tensor[f32], rank: Rank) -> DeviceOp[Tensor[f32]]:
    return value(part)


def summands(of: Any = owned) -> DeviceOp[Partials[Any]]:
    return as_partials(each(of, shards()))


case(lambda: gather(anything(3)), ("Make one with shard(t, mesh)", lambda: gather(shard(ones((4,)), PAIR)).sync()))
case(
    lambda: gather(anything(ones((4,)))).sync(),
    ("Make one with shard(t, mesh)", lambda: gather(shard(ones((4,)), PAIR)).sync()),
)
case(
    lambda: shard(anything(np.ones(4, f32)), PAIR),
    ("Make one with from_host(array)", lambda: shard(from_host(np.ones(4, f32)), PAIR).sync()),
)
case(
    lambda: all_reduce(anything(3)),
    ("Make one with as_partials(each(f, a))", lambda: all_reduce(as_partials(each(owned, shards()))).sync()),
)
case(
    lambda: as_partials(anything(3)),
    ("Make one with each(f, a)", lambda: as_partials(each(owned, shards())).sync()),
)
case(lambda: gather(shards(), anything(0)), ('Write on="cuda:0"', lambda: value(1)))


def along_rows() -> DeviceOp[Replicated[Any]]:
    return all_gather(shard(ones((4, 4)), SQUARE, Blocks({0: "rows", 1: "columns"})), axis="rows")


def cloned(part: Any, rank: Rank) -> DeviceOp[Any]:
    return dup(part)


case(
    lambda: along_rows().sync().to_host(),
    ("Read them device by device: each(f, replicas)", lambda: each(cloned, along_rows().sync()).sync()),
)
case(
    lambda: all_gather(shards(), axis="rows").sync(),
    ("Write axis='devices'", lambda: all_gather(shards(), axis="devices").sync()),
)


def uneven(layout: Layout) -> DeviceOp[Any]:
    return shard(ones((3, 4)), SQUARE, layout)


UNEVEN, EVEN = Blocks({0: "rows", 1: "columns"}, partial=True), Cyclic((1, 4))
case(
    lambda: all_gather(uneven(UNEVEN), axis="columns").sync(),
    ("Gather without an axis", lambda: all_gather(uneven(UNEVEN)).sync()),
    (
        "reshard before",
        lambda: all_gather(
            reshard(uneven(UNEVEN), Blocks({1: "rows", 0: "columns"}, partial=True)), axis="columns"
        ).sync(),
    ),
)

# ---- each


def second(part: Tensor[f32], rank: Rank) -> DeviceOp[tuple[Tensor[f32], Tensor[f32]]]:
    return zip_ops(value(part), ones((2,)))


case(
    lambda: anything(each)(owned),
    ("Write each(f, shards)", lambda: each(owned, shards()).sync()),
)
case(
    lambda: each(anything(lambda part: value(part)), shards()),
    ("Write def f(part, rank)", lambda: each(lambda part, rank: value(part), shards()).sync()),
)
case(
    lambda: each(anything(lambda part, rank: part), shards()).sync(),
    ("value(x) makes one of a value", lambda: each(lambda part, rank: value(part), shards()).sync()),
)


def both(a: Any, b: Any, rank: Rank) -> DeviceOp[Any]:
    return value(a)


def elsewhere(bring: bool) -> object:
    there = shard(ones((4, 4)), OTHER)
    return each(both, shards(), reshard(there, Blocks(0), PAIR) if bring else there).sync()


def replicas(mesh: Mesh) -> object:
    return each(both, shards(), broadcast(ones((2,)), mesh)).sync()


case(
    lambda: elsewhere(False),
    ("reshard(s, layout, mesh)", lambda: elsewhere(True)),
    ("broadcast(t, mesh)", lambda: replicas(PAIR)),
)


def hidden(part: Tensor[f32], rank: Rank) -> Any:
    return second(part, rank)


case(
    lambda: anything(unzip_each)(each(hidden, shards())),
    ("Say how many: unzip_each(e, 2)", lambda: [op.sync() for op in unzip_each(each(hidden, shards()), 2)]),
)
case(
    lambda: unzip_each(each(second, shards()), -1),
    ("Say how many: unzip_each(e, 2)", lambda: unzip_each(each(second, shards()), 2)[0].sync()),
)
case(
    lambda: unzip_each(anything(each(owned, shards())), 2)[0].sync(),
    ("Say how many it has", lambda: unzip_each(each(second, shards()), 2)[0].sync()),
)
case(
    lambda: unzip_each(each(second, shards()), 3)[0].sync(),
    ("Say how many it has", lambda: unzip_each(each(second, shards()), 2)[0].sync()),
)


def wide(part: Tensor[f32], rank: Rank) -> DeviceOp[Tensor[f32]]:
    return ones((3, 4))


def tall(part: Tensor[f32], rank: Rank) -> DeviceOp[Tensor[f32]]:
    return ones((2, 4))


def growing(part: Tensor[f32], rank: Rank) -> DeviceOp[Tensor[f32]]:
    return ones((rank.number + 1,))


def mixed(part: Tensor[f32], rank: Rank) -> DeviceOp[Tensor[Any]]:
    return ones((2,), f64) if rank.number else ones((2,))


def strays(part: Tensor[f32], rank: Rank) -> DeviceOp[Tensor[f32]]:
    return ones((2,)).on("host:5")


def returns(part: Tensor[f32], rank: Rank) -> DeviceOp[Tensor[f32]]:
    return ones((2,)).on("host:5").then(dup)


case(
    lambda: as_shards(each(wide, shards()), (4, 4)).sync(),
    ("Let the function return that shape", lambda: as_shards(each(tall, shards()), (4, 4)).sync()),
)
case(
    lambda: as_shards(each(wide, shards()), (4, 4), Boxes([], halves(WHOLE)[0] + halves(WHOLE)[1])).sync(),
    ("Let the function return that shape", lambda: as_shards(each(tall, shards()), (4, 4)).sync()),
)
case(
    lambda: as_partials(each(growing, shards())).sync(),
    ("Let the function return one shape", lambda: as_partials(each(tall, shards())).sync()),
)
case(
    lambda: as_partials(each(mixed, shards())).sync(),
    ("Let the function return one type", lambda: as_partials(each(tall, shards())).sync()),
)
case(
    lambda: as_partials(each(strays, shards())).sync(),
    ("Leave the placement to each", lambda: as_partials(each(tall, shards())).sync()),
    ("copy the result: .then(dup)", lambda: as_partials(each(returns, shards())).sync()),
)


def paired(take: bool) -> object:
    made: DeviceOp[Any] = each(second, shards())
    return as_partials(unzip_each(made, 2)[0] if take else anything(made)).sync()


case(
    lambda: paired(False),
    ("Let the function return an op of a Tensor", lambda: as_partials(each(owned, shards())).sync()),
    ("unzip_each(e) takes tuples apart", lambda: paired(True)),
)
case(
    lambda: Rank(PAIR, 0).coordinate("rows"),
    ("Write coordinate('devices')", lambda: Rank(PAIR, 0).coordinate("devices")),
)

# ---- reductions and rims


def typed(dtype: Any) -> Any:
    def f(part: Tensor[f32], rank: Rank) -> DeviceOp[Tensor[Any]]:
        return full((2,), 1, dtype)

    return f


def converted(part: Tensor[f32], rank: Rank) -> DeviceOp[Tensor[Any]]:
    return full((2,), 1, i32).then(lambda t: convert(t, f32))


MEAN = "Reduce them as f32: let the function of each convert(t, f32)"
case(
    lambda: all_reduce(summands(typed(i32)), "mean").sync(),
    (MEAN, lambda: all_reduce(summands(converted), "mean").sync()),
)
case(
    lambda: reduce_scatter(summands(typed(bool_))).sync(),
    (MEAN, lambda: reduce_scatter(summands(converted)).sync()),
)
case(
    lambda: all_reduce(summands(), anything("median")),
    ("Leave it out for a sum", lambda: all_reduce(summands()).sync()),
)
case(
    lambda: all_reduce(summands(), engine=anything("gloo")),
    ("Leave it out", lambda: all_reduce(summands()).sync()),
)
case(
    lambda: all_reduce(summands(), engine="nccl").sync(),
    ("Leave engine out", lambda: all_reduce(summands()).sync()),
)
case(
    lambda: halo(shards(), -1),
    ("Write 1", lambda: halo(shards(), 1).sync()),
    ("(1, 0)", lambda: halo(shards(), (1, 0)).sync()),
)
case(
    lambda: halo(shards(), (1,)).sync(),
    ("Give one for each axis, 0 where no rim is wanted", lambda: halo(shards(), (1, 0)).sync()),
)
case(
    lambda: halo(shard(ones((4, 4)), PAIR, Cyclic((1, 4))), 1).sync(),
    (
        "Cut the whole by Blocks: reshard(s, Blocks(0))",
        lambda: halo(reshard(shard(ones((4, 4)), PAIR, Cyclic((1, 4))), Blocks(0)), 1).sync(),
    ),
)
case(
    lambda: halo(shards(), 5, wrap=True).sync(),
    ("Give smaller widths", lambda: halo(shards(), 4, wrap=True).sync()),
)


# ---- gradients
def slope(total: bool) -> Any:
    """A gradient of a function over two devices, of all that they have or not."""

    def loss(x: Any) -> Any:
        found = as_partials(each(lambda t, rank: t * t, broadcast(x, PAIR)))
        return all_reduce(found) if total else found

    differentiated: Any = grad
    return differentiated(loss)(ones(()).sync().share()).sync()


case(
    lambda: slope(total=False),
    ("Add up what the devices have: all_reduce(as_partials(each(f, x)))", lambda: slope(total=True)),
)
