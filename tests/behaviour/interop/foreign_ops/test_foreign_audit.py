"""The audit of a body before its work becomes part of a graph, and the declared cost of a foreign op."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dagpu import (
    CostModel,
    ForeignError,
    In,
    ListSchedule,
    Tensor,
    current_device,
    f32,
    foreign,
    from_host,
    full,
    pipeline,
    plan_of,
    zip_ops,
)
from dagpu.interop import new
from dagpu.plans.program import label
from dagpu.testing import Execute, storage_of
from tests.behaviour.interop.foreign_ops.foreign_programs import affine
from tests.simulated.array_libraries import FakeArray, array_libraries
from tests.simulated.cuda import driver, installed

A = np.arange(6, dtype=f32).reshape(2, 3)


def declared(body: Any, **options: Any) -> Any:
    """A foreign op with this body for PyTorch."""

    @foreign(**options)
    def op(x: In[f32], y: In[f32]) -> Tensor[f32]:
        return new(x)

    op.on("torch")(body)
    return op


def runs(op: Any, *tensors: Any) -> Any:
    """Run a pipeline of the op through streams, and as a graph."""
    step = pipeline(graph_from=2)(lambda x, y: op(x, y))
    for _ in range(3):
        found = step(*tensors).to_host().sync()
    return found


def hidden_array(found: Any, tensor: Any) -> FakeArray:
    """An array over a tensor that no op is given, as a body may keep it."""
    exchange: Any = driver().exchange
    address = exchange.address_of(storage_of(tensor).memory)
    return FakeArray(found["torch"], tensor, address, (2, 3), (12, 4), np.dtype(f32))


SIZE = 64
READS = st.lists(st.sampled_from(["x", "y", "out", "hidden"]), max_size=3)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["out", "temporary"]), READS), max_size=3), st.integers(0, 100))
def test_only_what_is_declared_becomes_part_of_a_graph(lines: Any, seed: int) -> None:
    """A body is refused if and only if it enqueues nothing, never points at its output, or points at memory of dagpu
    that is no operand. Its own temporaries are its own, and what is refused leaves nothing behind."""
    with installed(seed=seed) as machine, array_libraries(machine, "torch") as found:
        hidden = from_host(A).sync()
        other = hidden_array(found, hidden)

        def body(x: Any, y: Any, out: Any) -> None:
            for target, names in lines:
                read = {"x": x, "y": y, "out": out, "hidden": other}
                into = out if target == "out" else x.like(x.shape)
                into.written_by(lambda *arrays: sum(arrays, np.zeros((2, 3), f32)), *[read[name] for name in names])

        used = {target for target, _ in lines}.union(*[names for _, names in lines])
        x, y = from_host(A).sync().share(), from_host(A).sync().share()
        if "out" in used and "hidden" not in used:
            runs(declared(body), x, y)
            assert machine.gpus[0].graphs == 1
        else:
            why = "enqueued nothing" if not lines else "points at"
            with pytest.raises(ForeignError, match=rf"op, declared at \S+, called at \S+: .*{why}"):
                runs(declared(body), x, y)
            runs(declared(body, verify="none"), x, y)
            assert machine.gpus[0].graphs == 1
        assert not machine.stack()
        assert machine.problems == []


def test_a_word_that_looks_like_a_pointer_is_told_from_one() -> None:
    """It is not the same in a second capture: the plan becomes a graph, and `explain()` has a remark."""
    with installed() as machine, array_libraries(machine, "torch") as found:
        kept = from_host(A).sync()
        words = found["torch"].stale
        words.append(hidden_array(found, kept).address)

        def body(x: Any, y: Any, out: Any) -> None:
            words[0] += 4
            out.copy_(x + y)

        op, x = declared(body), from_host(A).sync().share()
        assert_array_equal(runs(op, x.clone(), x.clone()), A + A)
        assert machine.gpus[0].graphs == 1
        assert "look like pointers into dagpu's memory" in op(x.clone(), x.clone()).explain()


def test_the_end_of_an_operand_is_told_from_the_block_behind_it() -> None:
    """A kernel may be given the end of an operand. The same address is refused if it is that of a block of dagpu's."""
    with installed() as machine, array_libraries(machine, "torch") as found:
        exchange: Any = driver().exchange
        both = from_host(np.ones(2 * SIZE, f32)).sync()
        first = both.slice(slice(SIZE))
        words = found["torch"].stale
        words.append(exchange.address_of(storage_of(both.borrow()).memory) + 4 * SIZE)

        def behind(x: Any, y: Any, out: Any) -> None:
            out.copy_(x + y)

        with pytest.raises(ForeignError, match="memory of dagpu that is no operand"):
            runs(declared(behind), first, first)

        def end(x: Any, y: Any, out: Any) -> None:
            words[0] = x.address + 4 * SIZE
            out.copy_(x + y)

        op = declared(end)
        assert_array_equal(runs(op, first, first), np.full(SIZE, 2, f32))
        assert "look like pointers" not in op(first, first).explain()


def test_an_audit_is_made_once_for_each_graph() -> None:
    """Captures for other addresses and numbers are not read again; a plan that goes through streams is never read."""
    with installed() as machine, array_libraries(machine, "torch"):
        step = pipeline(graph_from=2)(lambda t, number: affine(t, number))
        x = from_host(A).sync().share()
        for number in (1.0, 1.0, 2.0, 3.0):
            assert_array_equal(step(x, number).to_host().sync(), A * f32(number))
        assert machine.gpus[0].calls["cuStreamBeginCapture"] == 3
        assert current_device().memory_used() < 1 << 20


# ---- cost
def test_a_declared_cost_is_the_predicted_time() -> None:
    """Schedules and `explain()` use it in place of the bytes; the policy's own declaration comes first."""

    @foreign(cost=5e-3)
    def slow(x: In[f32]) -> Tensor[f32]:
        return new(x)

    @slow.host
    def _(x: Any, out: Any) -> None:
        out[...] = x

    x = full((4,), 1.0).sync().share()
    assert "slow at" in slow(x.clone()).explain()
    assert "5.01 ms predicted, declared with the op, cost=" in slow(x.clone()).explain()
    assert "predicted, unknown, so by its bytes" in affine(x.clone(), 2.0).explain()
    own = ListSchedule(costs=CostModel().declare({"slow": 1e-3}))
    assert "1.01 ms predicted, declared to the policy's CostModel" in slow(x.clone()).schedule(own).explain()
    branches = zip_ops(affine(affine(x.clone(), 1.0), 1.0), slow(x.clone()), affine(x.clone(), 2.0))
    plan = plan_of(branches.schedule(ListSchedule(2, costs=CostModel().declare({"affine": 1e-5}))))
    beside = [step.instruction for step in plan.steps if isinstance(step, Execute) and step.lane == _lane_of(plan)]
    assert len(beside) == 1  # the short ones share the other lane


def _lane_of(plan: Any) -> int:
    """The lane of the op with the declared cost."""
    named = [step for step in plan.steps if isinstance(step, Execute) and label(step.instruction) == "Launch slow"]
    return named[0].lane
