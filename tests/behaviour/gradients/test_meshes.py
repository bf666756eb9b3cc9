"""Gradients around collectives: by each of them, by values on several devices, and over random programs of them."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import (
    Blocks,
    Cyclic,
    GradientError,
    Mesh,
    Partials,
    Replicated,
    Sharded,
    SingleStream,
    all_gather,
    all_reduce,
    array,
    as_partials,
    as_shards,
    broadcast,
    c128,
    convert,
    dup,
    each,
    expr,
    f64,
    from_host,
    gather,
    halo,
    observe,
    pipeline,
    plan_of,
    reduce_scatter,
    reshard,
    shard,
    shard_host,
    source,
    unzip_each,
    use_device,
    use_mesh,
    value,
    zip_ops,
)
from dagpu.grad import assert_gradient, grad, sgd, updated, value_and_grad, vjp
from dagpu.meshes import collectives
from tests.conftest import only_deep
from tests.simulated.cuda import installed

A: Any = array
A_GRADIENT: Any = value_and_grad  # of what it refuses
square = expr(f64)(lambda a: a * a)
SHAPE = 6, 4
VALUES = np.random.default_rng(0).uniform(-1, 1, SHAPE)
HOSTS = [f"host:{number}" for number in range(4)]
MESHES = {
    "1": Mesh(HOSTS[:1]),
    "2": Mesh(HOSTS[:2]),
    "3": Mesh(HOSTS[:3]),
    "4, the leaf on the last": Mesh(HOSTS[::-1]),
    "2 x 2": Mesh(HOSTS, (2, 2), ("rows", "columns")),
}
LAYOUTS: list[Any] = [Blocks(0, partial=True), Blocks(1, partial=True), Cyclic((1, 2)), Cyclic((2, 1))]
REDUCTIONS: dict[str, Any] = {"sum": A.sum, "mean": A.mean, "max": A.amax, "min": A.amin, "prod": A.prod}


@pytest.fixture(params=[False, True], ids=["whole", "in chunks"])
def chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large tensors go to more than two devices in chunks: here all do."""
    if request.param:
        monkeypatch.setattr(collectives, "SMALL", 0)
        monkeypatch.setattr(collectives, "ALIGNED", 2)


def up(a: Any) -> Any:
    return from_host(np.asarray(a, np.float64)).sync().share()


def down(x: Any) -> Any:
    return x.to_host().sync()


def blocks(mesh: Mesh) -> Any:
    return Blocks({0: "rows", 1: "columns"}, partial=True) if len(mesh.axes) > 1 else LAYOUTS[0]


# ---- steps, each with its twin on one device


def scales(mesh: Mesh) -> list[float]:
    return [0.5 + number / 3 for number in range(len(mesh))]


def summands(r: Any, mesh: Mesh) -> Any:
    return as_partials(each(lambda x, rank: A.sin(x) * scales(mesh)[rank.number], r))


def all_reduced(r: Any, mesh: Mesh, _layout: Any, how: Any) -> Any:
    return all_reduce(summands(r, mesh), how)


def reduce_scattered(r: Any, mesh: Mesh, layout: Any, how: Any) -> Any:
    return reduce_scatter(summands(r, mesh), layout, how)


def summed(x: Any, mesh: Mesh, how: str) -> Any:
    return REDUCTIONS[how](A.stack([A.sin(x) * scale for scale in scales(mesh)]), 0)


def neighbours(part: Any) -> Any:
    """The sum of an element and of those above and below, without the rim."""
    rows = part.shape[0]
    return part[: rows - 2] + part[1 : rows - 1] * 2.0 + part[2:]


def rimmed(s: Any, mesh: Mesh, _layout: Any, wrap: bool) -> Any:
    rims = halo(reshard(s, blocks(mesh)), (1, 0), wrap=wrap)
    return as_shards(each(lambda p, rank: neighbours(p), rims), SHAPE, blocks(mesh))


def with_rim(x: Any, _mesh: Mesh, wrap: bool) -> Any:
    return A.pad(x, ((1, 1), (0, 0)), mode="wrap" if wrap else "constant").share().then(neighbours)


def tanh_of(s: Any) -> Any:
    return as_shards(each(lambda x, rank: A.tanh(x), s), SHAPE, s.layout)


def weighed(s: Any, mesh: Mesh) -> Any:
    weights = shard_host(VALUES, mesh, s.layout)
    return as_shards(each(lambda x, w, rank: x * w, s, weights), SHAPE, s.layout)


Step = tuple[str, Callable[[Any, Mesh, Any], Any], Callable[[Any, Mesh], Any], str]
"""The kind of the argument, the step, what it does on one device, and the kind of the result."""


def steps_of() -> list[Step]:
    found: list[Step] = [
        ("whole", lambda t, mesh, layout: shard(dup(t), mesh, layout), lambda x, mesh: x, "cut"),
        ("whole", lambda t, mesh, layout: broadcast(dup(t), mesh), lambda x, mesh: x, "copied"),
        ("whole", lambda t, mesh, layout: A.tanh(t).on(t.device), lambda x, mesh: A.tanh(x), "whole"),
        ("cut", lambda s, mesh, layout: tanh_of(s), lambda x, mesh: A.tanh(x), "cut"),
        ("cut", lambda s, mesh, layout: weighed(s, mesh), lambda x, mesh: x * from_host(VALUES), "cut"),
        ("cut", lambda s, mesh, layout: reshard(s, layout), lambda x, mesh: x, "cut"),
        ("cut", lambda s, mesh, layout: all_gather(s), lambda x, mesh: x, "copied"),
        ("cut", lambda s, mesh, layout: gather(s), lambda x, mesh: x, "whole"),
        ("cut", lambda s, mesh, layout: gather(s, mesh.devices[-1]), lambda x, mesh: x, "whole"),
    ]
    found += [("cut", partial(rimmed, wrap=wrap), partial(with_rim, wrap=wrap), "cut") for wrap in (False, True)]
    for how in REDUCTIONS:
        found.append(("copied", partial(all_reduced, how=how), partial(summed, how=how), "copied"))
        found.append(("copied", partial(reduce_scattered, how=how), partial(summed, how=how), "cut"))
    return found


STEPS = steps_of()


def value_of(kind: str, x: Any, mesh: Mesh) -> Any:
    """The sum of all squares, as one element."""
    if kind == "whole":
        return A.sum(square(x)).on(x.device)
    each_sum = as_partials(each(lambda part, rank: A.sum(square(part)), x))
    return all_reduce(each_sum, "sum" if kind == "cut" else "mean")


def pair_of(numbers: list[tuple[int, int]], mesh: Mesh) -> tuple[Any, Any]:
    """A random function over a mesh, and its twin on one device."""
    chosen, kind = [], "whole"
    for number, of_layout in numbers:
        fitting = [step for step in STEPS if step[0] == kind]
        step = fitting[number % len(fitting)]
        layout = (blocks(mesh), *LAYOUTS)[of_layout % 5]
        two_axes = len(mesh.axes) > 1 and layout in LAYOUTS[:2]
        chosen.append((step[1], step[2], blocks(mesh) if two_axes else layout))
        kind = step[3]

    def over_mesh(x: Any, at: int = 0) -> Any:
        if at == len(chosen):
            return value_of(kind, x, mesh)
        op = chosen[at][0](x, mesh, chosen[at][2])
        return op.then(lambda y: over_mesh(y.share() if hasattr(y, "share") else y, at + 1))

    def on_one(x: Any, at: int = 0) -> Any:
        if at == len(chosen):
            return A.sum(square(x))
        y = chosen[at][1](x, mesh)
        return on_one(y, at + 1) if y is x else y.share().then(lambda y: on_one(y, at + 1))

    return over_mesh, on_one


def try_pair(numbers: list[tuple[int, int]], name: str) -> None:
    over_mesh, on_one = pair_of(numbers, MESHES[name])
    x = up(VALUES)
    found, slope = value_and_grad(over_mesh)(x).sync()
    wanted, expected = value_and_grad(on_one)(x).sync()
    shown = down(found)
    np.testing.assert_allclose(shown, down(wanted), rtol=1e-12)
    assert slope.device == x.device
    np.testing.assert_allclose(down(slope), down(expected), rtol=1e-9, atol=1e-12)
    assert shown.tobytes() == down(over_mesh(x).sync()).tobytes()


programs = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 4)), min_size=1, max_size=7)


@pytest.mark.parametrize("name", MESHES)
@settings(max_examples=8)
@given(numbers=programs)
def test_random_programs(numbers: list[tuple[int, int]], name: str) -> None:
    """A random program over a mesh has the value and the gradient of the same program on one device."""
    try_pair(numbers, name)


@only_deep
@pytest.mark.parametrize("name", MESHES)
@settings(max_examples=80)
@given(numbers=programs)
def test_80_random_programs(numbers: list[tuple[int, int]], name: str) -> None:
    """The same over many programs."""
    try_pair(numbers, name)


@pytest.mark.parametrize("number", range(len(STEPS)))
def test_each_step(number: int, chunks: None) -> None:
    """Each collective by itself, on each mesh, also in chunks."""
    kind = STEPS[number][0]
    before = {"whole": [], "cut": [(0, 1)], "copied": [(1, 0)]}[kind]
    fitting = [step for step in STEPS if step[0] == kind]
    for name in MESHES:
        for of_layout in (0, 3):
            try_pair([*before, (fitting.index(STEPS[number]), of_layout)], name)


@settings(max_examples=4)
@given(numbers=programs)
def test_second_derivatives_and_schedules(numbers: list[tuple[int, int]]) -> None:
    """Rules are made of functions that have rules; bits do not depend on the schedule, and a pipeline plans once."""
    over_mesh, on_one = pair_of(numbers[:4], MESHES["3"])
    x = up(VALUES)
    second = [grad(lambda x, f=f: grad(f)(x).then(lambda g: A.sum(A.sin(g))))(x).sync() for f in (over_mesh, on_one)]
    np.testing.assert_allclose(down(second[0]), down(second[1]), rtol=1e-9, atol=1e-12)
    expected = [down(each).tobytes() for each in value_and_grad(over_mesh)(x).sync()]
    in_order = value_and_grad(over_mesh)(x).schedule(SingleStream()).sync()
    assert [down(each).tobytes() for each in in_order] == expected
    step = pipeline(lambda x: value_and_grad(over_mesh)(x))
    for _ in range(3):
        assert [down(each).tobytes() for each in step(x).sync()] == expected
    assert step.cache_info().misses == 1


# ---- leaves and values on several devices


def layer(x: Any, w: Any, rank: Any) -> Any:
    return A.sum(square(A.tanh(A.matmul(x, w))))


def weights_and_rows(mesh: Mesh) -> tuple[Any, Any, Any]:
    """Weights, rows of a batch on each device, and the gradient by NumPy."""
    draws = np.random.default_rng(1)
    w, x = draws.standard_normal((4, 3)), draws.standard_normal((8, 4))
    y = np.tanh(x @ w)
    return w, shard_host(x, mesh).sync(), x.T @ (2 * y * (1 - y * y))


@pytest.mark.parametrize("name", ["1", "2", "4, the leaf on the last"])
def test_leaves_on_several_devices(name: str) -> None:
    """By what is cut the gradient is cut, and by replicas it has a summand on each device; NumPy has the same."""
    mesh = MESHES[name]
    w, x, expected = weights_and_rows(mesh)

    def of_shards(s: Any) -> Any:
        return all_reduce(as_partials(each(layer, x.borrow(), all_gather(s))))

    def of_replicas(r: Any) -> Any:
        return all_reduce(as_partials(each(layer, x.borrow(), r)))

    cut, copies = shard_host(w, mesh).sync(), broadcast(up(w), mesh).sync()
    found, by_cut = value_and_grad(of_shards)(cut.borrow()).sync()
    assert type(found) is Replicated
    assert type(by_cut) is Sharded
    assert by_cut.layout == cut.layout
    np.testing.assert_allclose(down(by_cut), expected, rtol=1e-12)
    by_copies = grad(of_replicas)(copies).sync()
    assert type(by_copies) is Partials
    np.testing.assert_allclose(down(all_reduce(by_copies).sync()), expected, rtol=1e-12)

    def product(pair: Any) -> Any:
        values = zip_ops(of_shards(pair[0]), of_shards(pair[1]))
        return values.then(lambda v: all_reduce(as_partials(each(lambda a, b, rank: a * b, *v)), "mean"))

    both = grad(product)((cut.borrow(), shard_host(w, mesh).sync().borrow()))
    for slope in both.sync():
        np.testing.assert_allclose(down(slope), expected * down(found), rtol=1e-12)


def test_a_gradient_of_two_leaves_is_two_tensors() -> None:
    """Owned gradients that are equal have memory of their own, and a leaf that nothing reads has zeros in its place."""
    mesh = MESHES["3"]
    pair = [shard_host(VALUES, mesh).sync() for _ in range(3)]

    def loss(leaves: Any) -> Any:
        added = as_partials(each(lambda a, b, rank: A.sum(a + b), leaves[0], leaves[1]))
        return all_reduce(added)

    found = grad(loss)(tuple(s.borrow() for s in pair)).sync()
    assert [down(each).tolist() for each in found] == [np.ones(SHAPE).tolist()] * 2 + [np.zeros(SHAPE).tolist()]


def test_an_axis_of_the_mesh() -> None:
    """A sum along one axis of the mesh has its gradient along it alone."""
    mesh = MESHES["2 x 2"]
    cut = Blocks({0: "rows", 1: "columns"})

    def along_rows(x: Any) -> Any:
        parts = shard(dup(x), mesh, cut)
        rows = all_reduce(as_partials(each(lambda p, rank: A.sum(A.sin(p)), parts)), axis="columns")
        return all_reduce(as_partials(each(lambda r, rank: r * r, rows)))

    def gathered(x: Any) -> Any:
        rows = all_gather(shard(dup(x), mesh, cut), axis="columns")
        return all_reduce(as_partials(each(lambda r, rank: A.sum(A.sin(r)) * (rank.number + 1.0), rows)))

    for function in (along_rows, gathered):
        assert_gradient(function, up(VALUES))


def test_complex_elements() -> None:
    """What only moves elements moves complex ones too."""
    mesh = MESHES["3"]

    def loss(x: Any) -> Any:
        turned = shard(convert(x, c128) * (1 + 2j), mesh, LAYOUTS[3])
        replicas = all_gather(reshard(turned, LAYOUTS[0]))
        return all_reduce(as_partials(each(lambda z, rank: A.sum(square(A.abs(z))), replicas)), "mean")

    assert_gradient(loss, up(VALUES))


def work_of(op: Any) -> "Counter[str]":
    """How often a plan has each kernel, and how often a copy."""
    found = [getattr(each, "kernel", each) for each in plan_of(op).program.instructions]
    return Counter([getattr(each, "label", type(each).__name__) for each in found])


def test_the_plan_is_that_of_the_dual_collectives() -> None:
    """The gradient of `all_gather` is the work of a `reduce_scatter`, and that of `shard` that of `gather`."""
    mesh = MESHES["4, the leaf on the last"]
    w, x, _ = weights_and_rows(mesh)
    cut = shard_host(w, mesh).sync()

    def loss(s: Any) -> Any:
        return all_reduce(as_partials(each(layer, x.borrow(), all_gather(s))))

    def slope(x: Any, w: Any, rank: Any) -> Any:
        return grad(lambda w: layer(x, w, rank))(w).map(lambda g: g.try_unwrap())

    by_hand = reduce_scatter(as_partials(each(slope, x.borrow(), all_gather(cut.borrow()))))
    more = work_of(grad(loss)(cut.borrow()))
    more.subtract(work_of(by_hand))
    assert {name: count for name, count in more.items() if count} == {"sum_of_4": 4}, "the value is added up too"

    def there_and_back(t: Any) -> Any:
        return gather(shard(dup(t), mesh), "host:0").then(lambda y: A.sum(square(y)))

    copies = work_of(grad(there_and_back)(up(np.ones((8, 3)))))["CopyDtoD"]
    assert copies == 1 + (4 + 4) + (3 + 4), "dup, there and back, and so back: one part is where it goes to"


def test_values_that_are_not_one() -> None:
    """Summands, parts, and replicas along one axis of the mesh are no value."""
    mesh = MESHES["2 x 2"]
    copied, differentiated = broadcast(up(1.0), mesh).sync(), A_GRADIENT
    for function in (
        lambda r: as_partials(each(lambda x, rank: square(x), r)),
        lambda r: each(lambda x, rank: square(x), r),
        lambda r: all_reduce(as_partials(each(lambda x, rank: square(x), r)), axis="rows"),
    ):
        with pytest.raises(GradientError, match=r"gives .* which is not one value. Add up what the devices have"):
            differentiated(function)(copied).sync()


@pytest.mark.host_only("GPUs of its own")
@pytest.mark.parametrize("peers", [True, False])
def test_on_gpus_that_may_not_read_each_other(peers: bool) -> None:
    """Sums read the memory of other GPUs where they can, and get copies where they cannot."""
    numbers = [[(0, 2), (4, 0), (2, 4), (3, 0), (0, 0)], [(1, 0), (1, 1), (0, 0)], [(0, 0), (5, 0), (3, 0), (2, 0)]]
    slopes: list[list[Any]] = []
    for kind in ("host", "cuda"):
        slopes.append([])
        with installed(1, 3) as machine:
            machine.peers = peers
            there = Mesh([f"{kind}:{number}" for number in range(3)])
            x: Any = from_host(VALUES).on(there.devices[0]).sync().share()
            for each_program in numbers:
                over_mesh, _ = pair_of(each_program, there)
                slopes[-1].append(down(grad(over_mesh)(x).sync()).tobytes())
    assert slopes[0] == slopes[1]


@settings(max_examples=5)
@given(numbers=programs)
def test_in_orders_that_find_a_missing_wait(numbers: list[tuple[int, int]]) -> None:
    """On devices that try other orders the bits are the same."""
    over_mesh, _ = pair_of(numbers, Mesh(HOSTS[:3]))
    expected = down(grad(over_mesh)(up(VALUES)).sync()).tobytes()
    with use_device("explore:0"):
        over_mesh, _ = pair_of(numbers, Mesh([f"explore:{number}" for number in range(3)]))
        assert down(grad(over_mesh)(up(VALUES)).sync()).tobytes() == expected


def test_feeds_graphs_and_placed_runs() -> None:
    """The gradient over a mesh is right in a feed, as one graph, and where the rest of the op is placed by a policy."""
    over_mesh, _ = pair_of([(0, 0), (5, 0), (3, 0)], MESHES["3"])
    data = source(VALUES, name="x")

    def wanted(factor: float) -> bytes:
        return bytes(down(grad(over_mesh)(up(factor * VALUES)).sync()).tobytes())

    async def follow() -> list[bytes]:
        found = []
        async with observe(data.then(from_host).share().then(lambda x: grad(over_mesh)(x)).to_host()) as feed:
            for factor in (1.0, 2.0, 0.5):
                data.set(factor * VALUES)
                found.append((await feed.next()).tobytes())
        return found

    with use_device("host"):
        assert trio.run(follow) == [wanted(1.0), wanted(2.0), wanted(0.5)]
    x = up(VALUES)
    graph = grad(over_mesh)(x).graph()
    graph.launch().sync()
    assert down(graph.take_output()).tobytes() == wanted(1.0)
    with use_mesh(MESHES["3"]):
        assert down(grad(over_mesh)(x).sync()).tobytes() == wanted(1.0)


def of_positive(p: Any, rank: Any) -> Any:
    """A sum of which only the run knows over how many."""
    return value(p.share()).then(lambda q: A.sum(A.exp(A.compress(q > 0.0, q))))


def two_sums(p: Any, rank: Any) -> Any:
    return value(p.share()).then(lambda q: zip_ops(A.sum(q), A.sum(A.exp(q))))


def of_both_sums(x: Any) -> Any:
    first, second = unzip_each(each(two_sums, shard(dup(x), MESHES["3"])), 2)
    both = zip_ops(all_reduce(as_partials(first)), all_reduce(as_partials(second), "mean"))
    return both.then(lambda v: all_reduce(as_partials(each(lambda s, t, rank: s * t, *v)), "mean"))


def of_overlapping_parts(x: Any) -> Any:
    parts = each(lambda w, rank: A.sum(A.sin(w[rank.number : rank.number + 3, ::2])), broadcast(x[1:], MESHES["3"]))
    return all_reduce(as_partials(parts))


AROUND: dict[str, Any] = {
    "calls that wait": lambda x: all_reduce(as_partials(each(of_positive, shard(dup(x), MESHES["3"])))),
    "tuples of each": of_both_sums,
    "parts of replicas of a part": of_overlapping_parts,
    "calls that are placed one by one": lambda x: A.sum(A.tanh(dup(x).on("host:1")).on("host:1")).on("host:1"),
}


@pytest.mark.parametrize("name", AROUND)
def test_what_stands_around_collectives(name: str) -> None:
    """Calls on the devices may wait, have several results, and read parts."""
    assert_gradient(AROUND[name], up(VALUES))


def test_vjp_and_updates_over_a_mesh() -> None:
    """A cotangent may lie elsewhere; and lent weights are written in the run that reads them over a mesh."""
    mesh = MESHES["3"]
    cotangent = from_host(2 * VALUES).on("host:1")
    found, slope = vjp(lambda x: gather(shard(dup(x), mesh), "host:2"), up(VALUES), cotangent=cotangent).sync()
    assert (found.device.name, slope.device.name) == ("host:2", "host:0")
    assert down(slope).tolist() == (2 * VALUES).tolist()
    own: Any = from_host(VALUES).sync()

    def loss(w: Any) -> Any:
        parts = each(lambda w, rank: A.sum(square(w)) * (rank.number + 1.0), broadcast(w, mesh))
        return all_reduce(as_partials(parts))

    updated(own.borrow_mut(), lambda w: value_and_grad(loss)(w), lambda w, g: sgd(w, g, 0.01)).sync()
    np.testing.assert_allclose(down(own), VALUES * (1 - 0.01 * 2 * 6), rtol=1e-12)
