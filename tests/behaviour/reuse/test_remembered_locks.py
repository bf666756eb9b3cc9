"""The memory of `shared()` and `unzip()` values: a run that goes on, or has not quite ended, does not lock it for
others."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import patch

import pytest

from dagpu import BorrowError, fill, ones, value, zip_ops
from dagpu.ops.single_flight import Once
from tests.behaviour.laws.marked_ops import Op
from tests.behaviour.reuse.acting_kernels import act, acting, forked, lists
from tests.behaviour.reuse.acting_kernels import gate_of_kernel_one as gate_of_kernel_one
from tests.behaviour.reuse.acting_kernels import nothing_called as nothing_called
from tests.support.gates import PATIENCE, Gate
from tests.support.reused_ops import no_plans_yet as no_plans_yet

pytestmark = pytest.mark.host_only("kernels' host bodies")


def written() -> Op:
    """Return an op whose kernel writes a tensor that moves into it: a run locks the tensor for writing."""
    return act(ones((4,)).sync().partition((4,)), ones((4,)), 1).first().unpartition()


NODES: dict[str, Callable[[], Any]] = {
    "shared": lambda: written().shared(),
    "component": lambda: zip_ops(written(), written()).unzip()[0].shared(),
    "in a later stage": lambda: later(written()).shared(),
}


def host_data() -> Op:
    """Return an op that the run has to wait for."""
    return ones((1,)).to_host()


def later(op: Op) -> Op:
    """Return an op that runs `op` in a stage of its own."""
    return host_data().then(lambda _: op)


@pytest.mark.parametrize("name", NODES)
@pytest.mark.parametrize("earlier", [0, 1])
def test_a_value_is_unlocked_when_it_is_there(name: str, earlier: int) -> None:
    """A run that gets the value from a run that has not quite ended may read it, with a trace as with a plan."""
    for _ in range(earlier):
        forked(NODES[name]()).sync()
    node = NODES[name]()
    op = forked(node)
    publish, found = Once.publish, []

    def then_read(once: Once, value: Any, *made_for: Any) -> None:
        publish(once, value, *made_for)
        if once is node.once:
            with ThreadPoolExecutor(1) as pool:
                found.append(lists(pool.submit(forked(node).sync).result(PATIENCE)))

    with patch.object(Once, "publish", then_read):
        wanted = lists(op.sync())
    assert found == [wanted] == [[[5.0] * 4, [6.0] * 4]]


@pytest.mark.parametrize("stages", [1, 2])
def test_a_value_is_unlocked_between_the_stages_of_a_run(stages: int, gate: Gate) -> None:
    """Its memory is free for others as soon as it is remembered, although the run that made it goes on."""
    tensor = ones((4,)).sync()
    node: Op = fill(tensor, 3).shared()
    pair: Op = zip_ops(fill(ones((4,)).sync(), 4), node)
    going_on = later(acting(1))
    if stages == 2:
        pair, going_on = later(pair), later(going_on)
    parts: Any = pair.unzip(2)
    first, second = parts
    with ThreadPoolExecutor(1) as pool:
        going = pool.submit(zip_ops(second, going_on).sync)
        assert gate.started.wait(PATIENCE)
        assert acting(2, node).to_host().sync().tolist() == [5.0] * 4
        assert fill(first.sync(), 5).to_host().sync().tolist() == [5.0] * 4
        assert not going.done()
        gate.open.set()
        going.result(PATIENCE)


def test_a_borrow_that_is_remembered_stays_locked(gate: Gate) -> None:
    """The run that goes on may still read the lender, so that other runs cannot write it."""
    tensor = ones((4,)).sync()
    node: Op = value(tensor.borrow()).shared()
    going_on = zip_ops(node, host_data()).then(lambda pair: acting(1, value(pair[0])))
    with ThreadPoolExecutor(1) as pool:
        going = pool.submit(zip_ops(acting(2, node), going_on).last().to_host().sync)
        assert gate.started.wait(PATIENCE)
        assert acting(3, node).to_host().sync().tolist() == [4.0] * 4
        with pytest.raises(BorrowError):
            fill(tensor.borrow_mut(), 7).sync()
        gate.open.set()
        assert going.result(PATIENCE).tolist() == [2.0] * 4
