"""Laws of wholes over meshes: cutting, gathering and reducing lose nothing, and give the same bits everywhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dagpu import (
    Blocks,
    DeviceOp,
    Each,
    Mesh,
    Partials,
    Rank,
    Spread,
    StreamInterpreter,
    Tensor,
    all_gather,
    all_reduce,
    as_partials,
    as_shards,
    broadcast,
    convert,
    each,
    expr,
    f64,
    from_host,
    gather,
    halo,
    plan_of,
    reduce_scatter,
    reshard,
    shard,
    shard_host,
    use_interpreter,
    zip_ops,
)
from dagpu.meshes import collectives
from dagpu.plans.plan import peak_bytes_on
from dagpu.testing import exploring, parts_of
from tests.programs.layouts import Whole, wholes
from tests.programs.meshes import EAGER, Scatter

negate = expr(f64)(lambda x: -x)

pytestmark = pytest.mark.host_only("it names the devices of its meshes")


def same(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether two arrays have the same shape, type and bits."""
    return (one.shape, one.dtype, one.tobytes()) == (other.shape, other.dtype, other.tobytes())


def arrays(value: Any) -> list[NDArray[Any]]:
    """The contents of each device's part."""
    return [part.to_host().sync() for part in parts_of(value)]


def partials_of(whole: Whole) -> DeviceOp[Partials[Any]]:
    """A summand on each device, made from the array and the device's number."""

    def summand(rank: Rank) -> NDArray[Any]:
        return np.asarray(np.roll(whole.array, rank.number) * whole.array.dtype.type(rank.number + 1))

    def upload(_: Any, rank: Rank) -> DeviceOp[Tensor[Any]]:
        return from_host(summand(rank))

    found: DeviceOp[Each[Tensor[Any]]] = each(upload, broadcast(from_host(np.zeros(1, np.float32)), whole.mesh))
    return as_partials(found)


def added(whole: Whole) -> NDArray[Any]:
    """The sum of these summands in the order of the devices."""
    count, dtype = len(whole.mesh), whole.array.dtype.type
    parts = [np.roll(whole.array, number) * dtype(number + 1) for number in range(count)]
    return np.asarray(reduce(np.add, parts))


@settings(max_examples=60)
@given(wholes())
def test_a_whole_survives_cutting(w: Whole) -> None:
    """`gather(shard(t)) == t`, also from the host and to it, and through another layout or device."""
    t = from_host(w.array).sync()
    assert same(gather(shard(t.borrow(), w.mesh, w.layout)).to_host().sync(), w.array)
    cut = shard_host(w.array, w.mesh, w.layout).sync()
    assert all(part.device == device for part, device in zip(parts_of(cut), w.mesh.devices, strict=True))
    assert cut.nbytes == w.array.nbytes
    direct = reshard(cut.borrow(), w.other).sync()
    there = gather(reshard(direct, w.layout), "host:5").sync()
    assert there.device.name == "host:5"
    assert same(there.to_host().sync(), w.array)
    assert same(cut.to_host().sync(), w.array)


@settings(max_examples=40)
@given(wholes())
def test_resharding_is_sharding(w: Whole) -> None:
    """`reshard(reshard(s, K), L) == reshard(s, L)`, device by device, and that is `shard(t, L)`, to another mesh
    too."""
    s = shard_host(w.array, w.mesh, w.layout).sync()
    twice = reshard(reshard(s.borrow(), w.other), w.layout).sync()
    once = shard_host(w.array, w.mesh, w.layout).sync()
    assert all(map(same, arrays(twice), arrays(once)))
    single = Mesh(["host:4"], (1,) * len(w.mesh.shape), w.mesh.axes)
    back = reshard(reshard(s, w.layout, single), w.other, w.mesh).sync()
    assert same(back.to_host().sync(), w.array)


@settings(max_examples=40)
@given(wholes(), st.sampled_from([0, 1 << 20]))
def test_every_device_has_the_same_bits(w: Whole, small: int) -> None:
    """`all_gather(s) == broadcast(gather(s))`, and `all_reduce(p) == all_gather(reduce_scatter(p))`, in one step and
    in two, and each device has these bits."""
    with _small(small):
        replicas = arrays(all_gather(shard_host(w.array, w.mesh, w.layout)).sync())
        replicas += arrays(broadcast(gather(shard_host(w.array, w.mesh, w.layout)), w.mesh).sync())
        assert all(same(each, w.array) for each in replicas)
        sums = arrays(all_reduce(partials_of(w)).sync())
        sums += arrays(all_gather(reduce_scatter(partials_of(w), w.layout)).sync())
        assert all(same(each, added(w)) for each in sums)


@contextmanager
def _small(nbytes: int) -> Iterator[None]:
    """With another number of bytes up to which a collective takes one step."""
    before, collectives.SMALL = collectives.SMALL, nbytes  # type: ignore[misc]
    try:
        yield
    finally:
        collectives.SMALL = before  # type: ignore[misc]


@settings(max_examples=30)
@given(wholes())
def test_each_composes(w: Whole) -> None:
    """`each(g, each(f, x)) == each(g . f, x)`, and over a mesh of one `each` is the function."""

    def f(part: Tensor[Any], rank: Rank) -> DeviceOp[Tensor[Any]]:
        return convert(part, f64)

    def g(part: Tensor[Any], rank: Rank) -> DeviceOp[Tensor[Any]]:
        return negate(part)

    def both(part: Tensor[Any], rank: Rank) -> DeviceOp[Tensor[Any]]:
        return f(part, rank).then(lambda made: g(made, rank))

    s = shard_host(w.array, w.mesh, w.layout)
    twice = as_shards(each(g, each(f, s)), w.array.shape, w.layout).then(gather).to_host().sync()
    once = as_shards(each(both, shard_host(w.array, w.mesh, w.layout)), w.array.shape, w.layout)
    assert same(twice, once.then(gather).to_host().sync())
    assert same(twice, -w.array.astype(f64))
    alone = Mesh(["host:3"])
    (only,) = each(both, shard_host(w.array, alone)).sync()
    assert same(only.to_host().sync(), both(from_host(w.array).sync(), Rank(alone, 0)).to_host().sync())


@settings(max_examples=40)
@given(wholes(), st.lists(st.integers(0, 3), min_size=3, max_size=3), st.booleans())
def test_a_rim_is_what_lies_around_a_block(w: Whole, widths: list[int], wrap: bool) -> None:
    """As `np.pad` says, with zeros or wrapped around, whatever the neighbours' blocks are; at most the whole."""
    layout = Blocks(0, partial=True)
    extents = w.array.shape
    width = [min(most, extent) if wrap else most for most, extent in zip(widths, extents, strict=False)]
    if wrap and 0 in extents:
        return  # NumPy does not wrap around nothing
    padded = np.pad(w.array, [(each, each) for each in width], mode="wrap" if wrap else "constant")
    s = shard_host(w.array, w.mesh, layout).sync()
    rimmed = halo(s.borrow(), width, wrap=wrap).sync()
    for part, (box,) in zip(arrays(rimmed), layout.boxes(extents, w.mesh), strict=True):
        around = [slice(at.start, at.stop + 2 * each) for at, each in zip(box, width, strict=True)]
        assert same(part, padded[tuple(around)])
    assert same(s.to_host().sync(), w.array)


@settings(max_examples=30)
@given(wholes(), st.integers(0, 3))
def test_placement_is_no_semantics(w: Whole, seed: int) -> None:
    """Whatever policy chooses the devices of the rest, in whatever order explored devices work, one of them slow: the
    bits are those of one order. The peak bytes of the devices are known before, and are those of the plan together."""
    mesh = Mesh([each.name.replace("host", "explore") for each in w.mesh.devices], w.mesh.shape, w.mesh.axes)
    moved = w._replace(mesh=mesh)
    policy = Scatter(mesh, seed) if seed else Spread(mesh, costs=EAGER)

    def op(whole: Whole) -> DeviceOp[Any]:
        sums = all_reduce(partials_of(whole))
        back = shard(from_host(whole.array), whole.mesh, whole.layout)
        return zip_ops(sums, reshard(back, whole.other))

    with use_interpreter(StreamInterpreter(policy=policy)), exploring(seed=seed), _small(0):
        plan = plan_of(op(moved))
        sums, cut = op(moved).sync()
        got = [*arrays(sums), cut.to_host().sync()]
    wanted, whole = op(w).sync()
    assert all(map(same, got, [*arrays(wanted), whole.to_host().sync()]))
    assert sum(peak_bytes_on(plan).values()) == plan.peak_bytes
    assert {*plan.devices} >= {device.name for device in mesh.devices}
