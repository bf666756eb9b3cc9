"""A call that is refused moves nothing: each argument is as usable after it as before."""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest

import dagpu.array
from dagpu import (
    Blocks,
    Cyclic,
    DagpuError,
    DeviceOp,
    Mesh,
    Rank,
    Tensor,
    all_gather,
    all_reduce,
    as_partials,
    as_shards,
    convert,
    dup,
    each,
    empty,
    expr,
    f32,
    full,
    halo,
    i32,
    memcpy,
    reduce_scatter,
    reshard,
    shard,
    unzip_each,
    value,
    zip_ops,
)
from dagpu.common.containers import values_in
from dagpu.handles import HANDLES
from dagpu.testing import live_state
from tests.behaviour.errors.argument_sorts import MESH_OPS, WRONG
from tests.programs.meshes import mesh
from tests.programs.named_kernels import affine, twist

pytestmark = pytest.mark.host_only("it names the devices of its meshes")

SHARDING = (
    "shard", "reshard", "gather", "broadcast", "all_gather", "all_reduce", "reduce_scatter", "halo", "as_shards",
    "as_partials",
)  # fmt: skip
Case: TypeAlias = tuple[Callable[..., object], Callable[[], list[Any]]]
"""A call, and its arguments, of which it refuses some."""


def alive(values: Any) -> bool:
    """Whether every handle in the values may be used, as `live_state` does or refuses."""
    found = [item for item in values_in(values) if type(item) in HANDLES]
    return all(live_state(handle) is not None for handle in found)


TRIED = [(name, parameter) for name in SHARDING for parameter in MESH_OPS[name].right()]


@pytest.mark.parametrize(("name", "parameter"), TRIED, ids=[".".join(pair) for pair in TRIED])
def test_a_call_with_a_wrong_type_moves_nothing(name: str, parameter: str) -> None:
    """Whatever is wrong with one argument, all the others are untouched, once the call has raised. They are given as
    values and not as ops, so that the call itself would move them."""
    public = MESH_OPS[name]
    right = {*public.fine.get(parameter, ()), *public.untried.get(parameter, ())}
    others = {key: made(other) for key, other in public.right().items() if key != parameter}
    refused = 0
    for sort in [sort for sort in WRONG if sort not in right]:
        try:
            public.of(**others, **{parameter: WRONG[sort]()})
        except (DagpuError, TypeError, ValueError):
            refused += 1
            assert alive(list(others.values())), sort
        else:  # it is refused in a run, and the op owns its arguments
            others = {key: made(other) for key, other in public.right().items() if key != parameter}
    assert refused


def made(argument: Any) -> Any:
    """The value of an argument that may be an op."""
    return argument.sync() if isinstance(argument, DeviceOp) else argument


def kept(part: Any, rank: Rank) -> DeviceOp[Tensor[Any]]:
    return value(part)


def uneven(part: Any, rank: Rank) -> DeviceOp[Tensor[f32]]:
    return empty((rank.number + 1,))


def pair(part: Any, rank: Rank) -> DeviceOp[tuple[Any, int]]:
    return zip_ops(value(part), value(1))


def both(part: Any, other: Any, rank: Rank) -> DeviceOp[Any]:
    return value(part)


def tensor(*shape: int, dtype: Any = f32) -> Tensor[Any]:
    made: Tensor[Any] = full(shape, 1, dtype).sync()
    return made


def shards(count: int = 2, layout: Any = None, dtype: Any = f32) -> Any:
    return shard(tensor(4, 6, dtype=dtype), mesh(count), layout or Blocks(0)).sync()


def summands(dtype: Any = f32) -> Any:
    return as_partials(each(kept, shards(dtype=dtype))).sync()


GRID = Mesh(["host:0", "host:1", "host:2", "host:3"], (2, 2), ("rows", "columns"))
REFUSED: dict[str, Case] = {
    "shard: rows that are no multiple": (lambda t: shard(t, mesh(3)), lambda: [tensor(4, 6)]),
    "shard: an axis that is not there": (lambda t: shard(t, mesh(2), Blocks(5)), lambda: [tensor(4, 6)]),
    "shard: tiles of another rank": (lambda t: shard(t, mesh(2), Cyclic((2,))), lambda: [tensor(4, 6)]),
    "reshard: rows that are no multiple": (lambda s: reshard(s, Blocks(0), mesh(3)), lambda: [shards()]),
    "reshard: an axis that is not there": (lambda s: reshard(s, Blocks(5)), lambda: [shards()]),
    "reshard: no layout": (lambda s: reshard(s, 3), lambda: [shards()]),  # type: ignore[call-overload]  # refused
    "halo: several boxes": (lambda s: halo(s, 1), lambda: [shards(layout=Cyclic((1, 2)))]),
    "halo: too many widths": (lambda s: halo(s, (1, 1, 1)), lambda: [shards()]),
    "halo: a rim around twice": (lambda s: halo(s, 9, wrap=True), lambda: [shards()]),
    "halo: a negative width": (lambda s: halo(s, -1), lambda: [shards()]),
    "all_gather: an axis that is not there": (lambda s: all_gather(s, axis="rows"), lambda: [shards()]),
    "all_gather: no block along an axis": (
        lambda s: all_gather(s, axis="columns"), lambda: [shard(tensor(5, 4), GRID, Blocks(0, partial=True)).sync()]
    ),
    "all_reduce: an axis that is not there": (lambda p: all_reduce(p, axis="rows"), lambda: [summands()]),
    "all_reduce: a mean of whole numbers": (lambda p: all_reduce(p, "mean"), lambda: [summands(i32)]),
    "all_reduce: NCCL on the host": (lambda p: all_reduce(p, engine="nccl"), lambda: [summands()]),
    "reduce_scatter: a mean of whole numbers": (lambda p: reduce_scatter(p, how="mean"), lambda: [summands(i32)]),
    "reduce_scatter: an axis that is not there": (lambda p: reduce_scatter(p, Blocks(5)), lambda: [summands()]),
    "as_shards: another shape": (lambda e: as_shards(e, (9, 9)), lambda: [each(kept, shards()).sync()]),
    "as_partials: summands of several shapes": (as_partials, lambda: [each(uneven, shards()).sync()]),
    "unzip_each: another number": (lambda e: unzip_each(e, 3), lambda: [each(pair, shards()).sync()]),
    "unzip_each: no number": (unzip_each, lambda: [each(pair, shards()).sync()]),
    "each: a second argument of no mesh": (lambda a, b: each(both, a, b), lambda: [shards(), 3]),
    "each: two meshes": (lambda a, b: each(both, a, b), lambda: [shards(), shards(4)]),
    "each: a value twice": (lambda a: each(both, a, a), lambda: [shards()]),
    "each: a function of fewer parts": (lambda a, b: each(kept, a, b), lambda: [shards(), shards()]),  # type: ignore[arg-type]  # refused
    "a kernel: an input of another rank": (
        lambda z, x: affine(z.partition((4,)), x, 1, 2), lambda: [empty((4,), i32), tensor(2, 2, dtype=i32)]
    ),
    "a kernel: an input of other elements": (
        lambda z, x, y: twist(x.partition((4,)), y, 3), lambda: [0, empty((4,), i32), tensor(4).partition((4,))]
    ),
    "a kernel: a tensor twice": (
        lambda y: twist(y, y, 3), lambda: [tensor(4, dtype=i32).partition((4,))]
    ),
    "an expression: shapes that do not fit": (
        expr(f32, f32)(lambda x, y: x + y), lambda: [tensor(3), tensor(4)]
    ),
    "an expression: a tensor and no tensor": (
        expr(f32, f32)(lambda x, y: x + y), lambda: [tensor(3), object()]
    ),
    "matmul: shapes that do not fit": (dagpu.array.matmul, lambda: [tensor(3, 2), tensor(3, 2)]),
    "concatenate: shapes that do not fit": (
        lambda x, y: dagpu.array.concatenate((x, y)), lambda: [tensor(3, 2), tensor(3, 3)]
    ),
    "stack: shapes that do not fit": (lambda x, y: dagpu.array.stack((x, y)), lambda: [tensor(3, 2), tensor(3, 3)]),
    "where: shapes that do not fit": (
        dagpu.array.where, lambda: [tensor(3, dtype=np.bool_), tensor(3), tensor(4)]
    ),
    "memcpy: another shape": (memcpy, lambda: [tensor(4).borrow_mut(), tensor(3)]),
    "convert: no type": (lambda t: convert(t, "no"), lambda: [tensor(4)]),  # type: ignore[call-overload]  # refused
    "dup: two": (lambda x, y: dup((x, y)), lambda: [tensor(4), tensor(3)]),  # type: ignore[call-overload]  # refused
    "zip_ops: a value": (lambda x, y: zip_ops(value(1), x, y), lambda: [tensor(4), tensor(3)]),
    "value: a tensor twice": (lambda x: value((x, x)), lambda: [tensor(4)]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_call_moves_nothing(name: str) -> None:
    """Arguments that do not go together are refused by the call, not by a run, and are what they were."""
    call, arguments = REFUSED[name]
    given = arguments()
    with pytest.raises((DagpuError, TypeError, ValueError)):
        call(*given)
    assert alive(given)
