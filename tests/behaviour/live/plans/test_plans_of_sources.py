"""Plain runs of ops over sources: planned once for each structure, whatever the values of the sources."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dagpu
from dagpu import (
    Elem,
    SharedTensor,
    batch,
    convert,
    cutoff,
    expr,
    f32,
    fold_in,
    from_host,
    rand,
    source,
    zip_ops,
)
from tests.behaviour.live.live_kernels import Op, array, blended, flipped, gathered
from tests.behaviour.live.live_trials import machine, same
from tests.support.reused_ops import no_plans_yet as no_plans_yet
from tests.support.reused_ops import traces

KINDS = ("host", "simulated")
ROUNDS = 5


@expr
def lifted(x: Elem[f32], by: Elem[f32]) -> Elem[f32]:
    return x * by + 1


def tensor(number: float) -> SharedTensor[Any]:
    return from_host(array(number)).sync().share()


def ops_over(x: Any, level: Any, t: Any) -> dict[str, Op]:
    """Ops over sources of an array, a number and a tensor."""
    loaded = x.then(from_host).shared()
    seed = source(17)
    return {
        "number": blended(t, t, level).to_host(),
        "expression": zip_ops(lifted(tensor(1), level).to_host(), lifted.sum()(level, tensor(2)).to_host()),
        "array": flipped(x.then(from_host)).to_host(),
        "shared": zip_ops(blended(loaded, t, level).to_host(), gathered(loaded, loaded).to_host()),
        "below another": blended(gathered(loaded).share().shared(), flipped(loaded).share().shared(), level).to_host(),
        "cutoff": zip_ops(flipped(cutoff(gathered(loaded))).to_host(), blended(t, loaded, level).to_host()),
        "values": zip_ops(x, level, t.to_host(), level),
        "expression of an array": lifted(x.then(from_host), level).to_host(),
        "functions of an array": zip_ops(
            dagpu.array.sum(x.then(from_host)).to_host(),
            dagpu.array.var(convert(loaded, f32)).to_host(),
            lifted.softmax()(loaded, 2.0).to_host(),
            dagpu.array.dropout(loaded, 0.5, seed=fold_in(3, 4)).to_host(),
        ),
        "random numbers": zip_ops(level, rand((4,), seed=seed).to_host()),
        "parts": zip_ops(*[part.to_host() for part in zip_ops(gathered(loaded), flipped(t)).unzip(2)]),
    }


NAMES = tuple(ops_over(source(array(1)), source(1.0), source("x")))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_one_op_is_traced_once(kind: str, name: str) -> None:
    """In a loop that sets all sources, one op is traced in its first runs alone, and so are ops that the loop builds;
    each value is that of a run of its own."""
    with machine(kind):
        x, level, t = source(array(1)), source(1.0), source(tensor(1))
        one = ops_over(x, level, t)[name]
        wanted = []
        for number in range(ROUNDS):
            values = array(number), number + 0.5, tensor(number)
            wanted.append(ops_over(source(values[0]), source(values[1]), source(values[2]))[name].sync())
        with traces() as count:
            for number in range(ROUNDS):
                with batch():
                    x.set(array(number))
                    level.set(number + 0.5)
                    t.set(tensor(number))
                before = count.now
                assert same(one.sync(), wanted[number])
                if name != "parts":  # its components are taken
                    assert same(one.sync(), wanted[number])
                assert same(ops_over(x, level, t)[name].sync(), wanted[number])
                if number > 1:
                    assert count.now == before


@settings(max_examples=80)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from((*NAMES, "x", "level", "t", "type")), st.booleans(), st.integers(0, 3)), max_size=16
    )
)
def test_runs_from_plans_have_the_values_of_traced_runs(steps: list[tuple[str, bool, int]]) -> None:
    """Whichever sources change between runs, also to values of another type or shape, and in whichever order ops around
    the same nodes run: each value has the bits of a run of new ops over new sources."""
    x: Any = source(array(1))
    level: Any = source(1.0)
    t: Any = source(tensor(1))
    ops = ops_over(x, level, t)
    for name, fresh, number in steps:
        match name:
            case "x":
                x.set(array(number))
            case "level":
                level.set(float(number))
            case "t":
                t.set(tensor(number))
            case "type":
                level.set(number if fresh else float(number))
            case _:
                op = ops_over(x, level, t)[name] if fresh or name == "parts" else ops[name]
                new: list[Any] = [source(each.get()) for each in (x, level, t)]
                assert same(op.sync(), ops_over(*new)[name].sync())


def test_a_run_hands_out_a_handle_of_its_own() -> None:
    """A tensor that a source holds, and that is a result, is another handle in each run and each part of one."""
    given = source(tensor(3))
    for _ in range(ROUNDS):
        first, second = zip_ops(given, given).sync()
        assert first.to_host().sync()[0] == 3
        del first
        assert second.to_host().sync()[0] == 3
        del second
    assert given.get().to_host().sync()[0] == 3


def test_two_sources_of_one_tensor_are_two() -> None:
    """A plan that was made while two sources held one tensor serves no run in which they hold two."""
    one = tensor(1)
    a, b = source(one.clone()), source(one)
    op = zip_ops(blended(a, b, 0.0).to_host(), blended(b, a, 0.0).to_host())
    for x, y in ((1.0, 1.0), (1.0, 1.0), (1.0, 3.0), (2.0, 2.0), (2.0, 5.0)):
        both = tensor(x)
        a.set(both.clone())
        b.set(both if x == y else tensor(y))
        assert [float(each[0]) for each in op.sync()] == [x / 2 + y, y / 2 + x]
