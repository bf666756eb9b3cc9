"""Random numbers: a seed is a number like those that kernels take, and without one each run draws its own.

So a program that draws other numbers in each step (dropout) has one plan for all of them.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dagpu import (
    DeviceOp,
    In,
    Out,
    ShapeError,
    Tile,
    array,
    bf16,
    empty,
    f16,
    f32,
    f64,
    fold_in,
    from_host,
    i32,
    kernel,
    ones,
    pipeline,
    plan_of,
    rand,
    randn,
    source,
    zeros,
    zip_ops,
)
from dagpu.backends.host.numpy_initializers import key_of, philox4x32, write
from dagpu.testing import Normal, Uniform, plans
from dagpu.tracing.cache_key import flatten_op
from tests.programs.expressions import bits
from tests.programs.graph_trials import graph_calls
from tests.simulated.each_device import where as where
from tests.support.reused_ops import traces

Op = DeviceOp[Any, Any, Any]
S = (3, 5)
SEEDS = [0, 1, -1, 7, 1 << 63, (1 << 64) - 1, 12345678901234567890]


@pytest.fixture(autouse=True)
def no_plans_yet() -> Iterator[None]:
    plans.clear()
    yield
    plans.clear()


def numbers(seed: int, shape: tuple[int, ...] = S, dtype: Any = f32) -> Any:
    """Return the numbers that `rand` draws with this seed, computed by the recipe itself."""
    found = np.empty(shape, dtype)
    write(Uniform(seed % 2**64), found)
    return found


def normals(seed: int, shape: tuple[int, ...] = S, *, mean: float = 0.0, std: float = 1.0) -> Any:
    """Return the numbers that `randn` draws with this seed, computed by the recipe itself."""
    found = np.empty(shape, f32)
    write(Normal(mean, std, seed % 2**64), found)
    return found


DROP = """
__global__ void drop(Tile<float, 2> y, View<const float, 2> x, View<const float, 2> noise, float rate) {
    for (auto i : y) y[i] = noise[i] < rate ? 0.f : x[i];
}
"""


@kernel(cuda=DROP)
def drop(y: Out[f32], x: In[f32], noise: In[f32], rate: float) -> None:
    """y = x where the noise is at least `rate`, else 0."""


@drop.host
def _(y: Tile[f32], x: NDArray[f32], noise: NDArray[f32], rate: float) -> None:
    y[...] = np.where(noise[y.at] < f32(rate), f32(0), x[y.at])


def dropout(x: Any, noise: Op, rate: float = 0.5) -> Op:
    return drop(empty(S).partition((3, 5)), x, noise, rate).first().unpartition()


# ---- a seed


def test_a_seed_is_an_argument_of_one_plan(where: Any) -> None:
    """A pipeline that gets a seed is traced once for all seeds, on every kind of device, and from its second call on it
    is one graph, whose nodes get the seed."""

    @pipeline
    def p(x: Any, seed: int) -> Op:
        noise = rand(S, seed=seed).shared()
        normal = randn(S, mean=1.0, std=0.5, seed=seed)
        return zip_ops(dropout(x, noise).to_host(), normal.to_host(), noise.to_host())

    x = ones(S).share().sync()
    for seed in SEEDS:
        kept, normal, noise = p(x, seed).sync()
        assert bits(noise) == bits(numbers(seed))
        assert bits(kept) == bits(np.where(noise < 0.5, f32(0), f32(1)))
        assert bits(normal) == bits(normals(seed, mean=1.0, std=0.5))
    assert p.cache_info()[:2] == (len(SEEDS) - 1, 1)
    if where is not None and hasattr(where, "gpus"):
        made, launched, changed = graph_calls(where)
        assert (made, launched) == (1, len(SEEDS) - 1)
        assert changed >= 2 * (len(SEEDS) - 2)


def test_plain_ops_that_differ_in_their_seeds_have_one_plan(where: Any) -> None:
    """A loop that draws with another seed in each step is planned once."""
    with traces() as count:
        found = [zip_ops(rand(S, seed=k).to_host(), randn(S, seed=k + 1).to_host()).sync() for k in SEEDS]
    assert count.now == 1
    for seed, (uniform, normal) in zip(SEEDS, found, strict=True):
        assert bits(uniform) == bits(numbers(seed))
        assert bits(normal) == bits(normals(seed + 1))


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(-(2**70), 2**70), st.integers(-(2**70), 2**70)), min_size=2, max_size=4),
    st.sampled_from([f16, bf16, f32, f64]),
    st.tuples(st.integers(0, 4), st.integers(0, 4)),
)
def test_seeds_of_any_size(pairs: list[tuple[int, int]], dtype: Any, shape: tuple[int, int]) -> None:
    """Whole numbers modulo 2**64, two of them in one op, each in its own place; of any shape and element type."""
    p = pipeline(lambda a, b: zip_ops(rand(shape, dtype, seed=a).to_host(), rand(shape, dtype, seed=b).to_host()))
    for a, b in pairs:
        for found in (
            p(a, b).sync(),
            zip_ops(rand(shape, dtype, seed=a).to_host(), rand(shape, dtype, seed=b).to_host()).sync(),
        ):
            assert bits(found[0]) == bits(numbers(a, shape, dtype))
            assert bits(found[1]) == bits(numbers(b, shape, dtype))


def test_one_seed_is_one_number() -> None:
    """Two ops of one seed give the same numbers, and a seed that a kernel takes as well is that number there."""
    p = pipeline(
        lambda x, k: zip_ops(
            rand(S, seed=k).to_host(), rand(S, seed=k).to_host(), take(empty(S).partition(S), k).first()
        )
    )
    for seed in (3, 4):
        one, other, taken = p(ones(S).share().sync(), seed).sync()
        assert bits(one) == bits(other) == bits(numbers(seed))
        assert taken.unpartition().to_host().sync()[0, 0] == seed
    assert p.cache_info().misses == 1


@kernel(cuda="__global__ void take(Tile<float, 2> y, int n) { for (auto i : y) y[i] = n; }")
def take(y: Out[f32], n: int) -> None:
    """y = n."""


@take.host
def _(y: Tile[f32], n: int) -> None:
    y[...] = n


READ: dict[str, Callable[[Any], Any]] = {
    "computed with": lambda k: k + 1,
    "converted": int,
    "negated": lambda k: -k,
}


@pytest.mark.parametrize("name", READ)
def test_a_seed_that_is_computed_is_a_constant_of_its_plan(name: str) -> None:
    """A computed seed is a constant of its plan, like any number that the host reads: each value has its own plan, with
    right results.
    """
    p = pipeline(lambda k: rand(S, seed=READ[name](k)).to_host())
    for k in (1, 2, 1):
        assert bits(p(k).sync()) == bits(numbers(READ[name](k)))
    assert p.cache_info().misses == 2


def test_what_is_a_seed() -> None:
    """Anything that is a whole number, of Python or NumPy."""
    same: list[Any] = [1, np.int64(1), np.uint8(1), 1 + 2**64]
    assert {bits(rand(S, seed=seed).to_host().sync()) for seed in same} == {bits(numbers(1))}
    last: Any = np.int64(-1)
    assert bits(rand(S, seed=last).to_host().sync()) == bits(numbers(2**64 - 1))


@pytest.mark.parametrize("make", [rand, randn])
@pytest.mark.parametrize("seed", [2.0, "2", (2,), f32(2), True, np.True_])
def test_what_is_no_seed(make: Callable[..., Op], seed: Any) -> None:
    """It is refused where the op is built, with what it is and the cure; as a pipeline's argument, too."""
    said = []
    for build in (lambda: make(S, seed=seed), lambda: pipeline(lambda k: make(S, seed=k))(seed).sync()):
        with pytest.raises(
            ShapeError, match=rf"{make.__name__} at {__file__}:\d+: seed is .*, but a whole number is wanted"
        ) as caught:
            build()
        said.append(str(caught.value))
    assert len(said) == 2


def test_seeds_in_keys() -> None:
    """A seed is a leaf; whether there is one, and all else of the recipe, stands in the key."""

    def key(op: Op) -> Any:
        found = flatten_op(op)
        assert found is not None
        return found.key

    seeds = [key(rand(S, seed=seed)) for seed in (1, 2)]
    assert seeds[0] == seeds[1]
    others = [
        key(op)
        for op in (
            rand(S), rand(S, seed=1), randn(S), randn(S, seed=1), randn(S, mean=1.0, seed=1), randn(S, std=2.0, seed=1),
            rand(S, f64, seed=1),
        )
    ]  # fmt: skip
    assert len(set(others)) == len(others)


# ---- no seed


def all_differ(found: list[Any]) -> bool:
    return len({bits(array) for array in found}) == len(found)


def test_without_a_seed_each_run_draws_one(where: Any) -> None:
    """Runs of one op, of ops of one structure, of ops with closures, and calls of a pipeline: all have numbers of their
    own, though they have one plan."""
    op = rand(S).to_host()
    with traces() as count:
        found = [op.sync() for _ in range(3)]
        found += [rand(S).to_host().sync() for _ in range(2)]
    assert count.now == 2
    found += [ones(S).then(lambda _: rand(S)).to_host().sync() for _ in range(2)]
    p = pipeline(lambda x: zip_ops(rand(S).to_host(), rand(S).to_host(), dropout(x, rand(S))))
    x = ones(S).share().sync()
    for _ in range(4):
        one, other, kept = p(x).sync()
        found += [one, other]
        assert set(np.unique(kept.to_host().sync())) <= {0.0, 1.0}
    assert p.cache_info()[:2] == (3, 1)
    assert all_differ(found)
    for each in found:
        assert 0 <= each.min() <= each.max() < 1


def test_what_is_shared_is_drawn_once() -> None:
    """`shared()` remembers the numbers of its one run."""
    op = rand(S).shared()
    assert bits(op.to_host().sync()) == bits(op.to_host().sync())


def test_a_captured_graph_draws_for_each_launch(where: Any) -> None:
    """Each launch is a run: without a seed it has numbers of its own, with one the same as the capture had."""
    graph = zip_ops(rand(S).to_host(), rand(S, seed=5).to_host(), dropout(ones(S), rand(S)).to_host()).graph()
    fresh, seeded, kept = graph.take_output()
    found = [fresh.copy()]
    for _ in range(4):
        graph.launch().sync()
        found.append(fresh.copy())
        assert bits(seeded) == bits(numbers(5))
        assert set(np.unique(kept)) <= {0.0, 1.0}
    assert all_differ(found)


def test_planning_shows_where_a_seed_comes_from() -> None:
    """A plan is data: the seed of a fill stands in a cell, or in its recipe where it is a constant."""
    p = pipeline(lambda k: zip_ops(rand(S, seed=k), rand(S, seed=3), rand(S)))
    fills = [step.instruction for step in plan_of(p(1)).steps if hasattr(step, "instruction")]
    seeds: list[Any] = [(getattr(fill.recipe, "seed", 0), fill.seed is None) for fill in fills]  # type: ignore[union-attr]  # reason: they are fills
    assert sorted(seeds, key=str) == sorted([(None, False), (3, True), (None, False)], key=str)


def test_other_creation_ops_have_no_seed() -> None:
    """Nothing changes for them: zeros are zeros in each run."""
    op = zip_ops(zeros(S).to_host(), from_host(np.ones(S, i32)).to_host())
    assert [array.max() for array in op.sync()] == [0, 1]


# ---- streams, and seeds made of seeds
COUNT = 50_000
DRAWING: dict[str, Callable[[Any], Any]] = {
    "rand": lambda seed: rand((COUNT,), seed=seed),
    "randn": lambda seed: randn((COUNT,), seed=seed),
    "dropout": lambda seed: array.dropout(ones((COUNT,)), 0.5, seed=seed),
    "permutation": lambda seed: array.permutation(COUNT, seed=seed),
}
"""All functions that draw, each with its seed."""


def correlated(one: Any, other: Any) -> float:
    return float(abs(np.corrcoef(one.astype(f64), other.astype(f64))[0, 1]))


def test_functions_with_one_seed_are_independent() -> None:
    """What one function draws of a seed tells nothing of what another does: neither the numbers nor their order."""
    found = {name: draw(5).to_host().sync() for name, draw in DRAWING.items()}
    found["order of rand"] = np.argsort(np.argsort(found["rand"]))
    found["order of permutation"] = np.argsort(found["permutation"])
    for one, x in found.items():
        for other, y in found.items():
            if one < other and {one, other} != {"rand", "order of rand"}:
                assert correlated(x, y) < 5 / COUNT**0.5, (one, other)


@pytest.mark.parametrize("draw", DRAWING.values(), ids=DRAWING)
def test_a_source_and_an_op_are_seeds(draw: Callable[[Any], Any]) -> None:
    """Each run draws by the value of this instant, as with the number itself; another value that is no whole number is
    refused by the run."""
    seed = source(3)
    ops = [draw(seed).to_host(), draw(fold_in(seed, 4)).to_host(), draw(fold_in(1, seed)).to_host()]
    for number in (3, -8):
        seed.set(number)
        wanted = [number, fold_in(number, 4), fold_in(1, number)]
        for op, plain in zip(ops, wanted, strict=True):
            np.testing.assert_array_equal(op.sync(), draw(plain).to_host().sync())
    with pytest.raises(ShapeError, match=r"seed is 'x', but a whole number is wanted"):
        draw(source("x")).to_host().sync()


@given(st.sampled_from(SEEDS), st.sampled_from(SEEDS))
def test_a_folded_seed_is_a_block_of_philox(seed: int, data: int) -> None:
    """Words 0 and 1 of the block whose counter is the number, in a stream that nothing draws from."""
    low, high = (int(each) for each in key_of(data))
    words = philox4x32(np.array([[low, high, 0, 4]], np.uint32), key_of(seed))[0]
    assert fold_in(seed, data) == int(words[0]) + (int(words[1]) << 32)


def test_folded_seeds_differ_and_are_independent() -> None:
    """Neighbouring numbers and seeds, and folds of folds, give other seeds, whose numbers have nothing in common."""
    folded = [fold_in(seed, data) for seed in range(50) for data in range(50)]
    twice = [fold_in(fold_in(0, n), m) for n in range(20) for m in range(20)]
    assert len({*folded, *twice, *range(50)}) == 2500 + 400 + 50
    drawn = [numbers(seed, (COUNT,)) for seed in (7, fold_in(7, 0), fold_in(7, 1), fold_in(8, 0), fold_in(0, 7))]
    for n, x in enumerate(drawn):
        assert all(correlated(x, y) < 5 / COUNT**0.5 for y in drawn[:n])


def test_what_fold_in_refuses() -> None:
    """Numbers that are not whole, by the name of the argument; of an op when it runs."""
    anyhow: Any = fold_in
    with pytest.raises(ShapeError, match=r"fold_in at .*: data is 1.5, but a whole number is wanted"):
        anyhow(1, 1.5)
    with pytest.raises(ShapeError, match=r"fold_in at .*: seed is None, but a whole number is wanted"):
        anyhow(None, 1)
    with pytest.raises(ShapeError, match=r"fold_in at .*: seed is 'x', but a whole number is wanted"):
        anyhow(source("x"), 1).sync()


def test_a_pipeline_folds_what_it_is_called_with() -> None:
    """A seed that is folded in the function is that of this call, also when the next call has another."""

    @pipeline
    def drawn(seed: int, step: int) -> Op:
        return rand(S, seed=fold_in(seed, step)).to_host()

    for seed, step in ((1, 2), (2, 1), (1, 2), (1, 3)):
        np.testing.assert_array_equal(drawn(seed, step).sync(), numbers(fold_in(seed, step)))
