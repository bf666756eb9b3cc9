"""What `shared()` remembers of sources: each run gets the value of its own snapshot, which is computed once for it,
also where plans are found by structure."""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, final

import numpy as np
import pytest
import trio
from numpy.typing import NDArray

from dagpu import DeviceOp, SharedTensor, Source, cutoff, f32, from_host, observe, pipeline, source, value, zip_ops
from dagpu.ops.single_flight import NOTHING, Claims, Once
from tests.behaviour.laws.marked_ops import marked
from tests.behaviour.laws.marked_ops import no_marks as no_marks
from tests.behaviour.live.live_trials import machine
from tests.support.gates import PATIENCE
from tests.support.marks import MARKS
from tests.support.reused_ops import no_plans_yet as no_plans_yet
from tests.support.reused_ops import traces

pytestmark = pytest.mark.host_only("kernels' host bodies")

Op = DeviceOp[Any, Any, Any]
Given = Source[SharedTensor[f32]]
KINDS = ("host", "simulated")
ROUNDS = 4
"""The runs of an op; the later ones of a plan would be launches of a graph."""


def pair(number: float) -> NDArray[np.float32]:
    return np.full(2, number, f32)


def tensor(number: float) -> SharedTensor[f32]:
    return from_host(pair(number)).sync().share()


def in_pipeline(given: Given) -> Op:
    """A call of a pipeline whose function closes over the source."""

    @pipeline
    def reading(number: float) -> Any:
        return marked(1, given)

    called: Op = reading(0.0)
    return called.shared()


NODES: dict[str, Callable[[Given], Op]] = {
    "visible": lambda given: marked(1, given).shared(),
    "below another": lambda given: marked(1, marked(9, given).shared()).shared(),
    "cutoff": lambda given: cutoff(marked(1, given)),
    "in a closure": lambda given: value(0).then(lambda _: marked(1, given)).shared(),
    "in a later stage": lambda given: marked(8).to_host().then(lambda _: marked(1, given)).shared(),
    "in a pipeline": in_pipeline,
}
"""Ops whose value is that of the source and 1; the kernel that computes it leaves the mark 1."""


def forked(node: Op) -> Op:
    """Two uses of a node, which add 2 and 3 to it."""
    return zip_ops(marked(2, node).to_host(), marked(3, node).to_host())


def of(number: float, name: str) -> list[float]:
    """The values of the two uses for a source of this number."""
    base = number + 1 + 9 * (name == "below another")
    return [base + 2, base + 3]


def found(result: Any) -> list[float]:
    """The first elements of a result's arrays."""
    return [float(array[0]) for array in result]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NODES)
def test_plain_runs_of_one_op_follow_the_source(kind: str, name: str) -> None:
    """The value is that of the newest revision in each run, and is computed once for each."""
    with machine(kind):
        given = source(tensor(0))
        op = forked(NODES[name](given))
        for number in range(ROUNDS):
            given.set(tensor(number))
            MARKS.clear()
            assert found(op.sync()) == found(op.sync()) == of(number, name)
            assert MARKS.seen().count(1) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NODES)
def test_ops_that_a_loop_builds_follow_the_source(kind: str, name: str) -> None:
    """So do new ops of one structure, around one node and around a new one each time."""
    with machine(kind):
        given = source(tensor(0))
        node = NODES[name](given)
        for number in range(ROUNDS):
            given.set(tensor(number))
            MARKS.clear()
            for op in (forked(node), forked(node), forked(NODES[name](given))):
                assert found(op.sync()) == of(number, name)
            assert MARKS.seen().count(1) == 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NODES)
def test_a_feed_and_plain_runs_of_one_node(kind: str, name: str) -> None:
    """A feed follows the source also if a plain run has remembered the node's value, and a plain run if a feed has."""

    async def main() -> None:
        for first in ("plain", "feed"):
            given = source(tensors[0])
            node = NODES[name](given)
            op = forked(node)
            if first == "plain":
                assert found(await op) == of(0, name)
            async with observe(forked(node), check=True) as feed:
                for number in range(ROUNDS):
                    if number:
                        given.set(tensors[number])
                    assert found(await feed.next()) == of(number, name)
                    assert found(await op) == of(number, name)
            given.set(tensors[9])
            assert found(await op) == of(9, name)

    with machine(kind):
        tensors = [tensor(number) for number in range(10)]
        trio.run(main)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NODES)
def test_an_update_computes_a_node_once(kind: str, name: str) -> None:
    """An update computes a node once, for all of its uses, and only if its source has changed."""

    async def main() -> None:
        given, other = source(tensors[0]), source(tensors[0])
        node = NODES[name](given)
        op = zip_ops(marked(2, node, other).to_host(), marked(3, node, other).to_host())
        async with observe(op) as feed:
            assert found(await feed.next()) == of(0, name)
            assert MARKS.seen().count(1) == 1
            given.set(tensors[5])
            assert found(await feed.next()) == of(5, name)
            assert MARKS.seen().count(1) == 2
            other.set(tensors[1])
            assert found(await feed.next()) == of(6, name)
            assert MARKS.seen().count(1) == 2

    with machine(kind):
        tensors = [tensor(number) for number in range(6)]
        trio.run(main)


@pytest.mark.parametrize("kind", KINDS)
def test_a_node_beside_sources_has_a_plan(kind: str) -> None:
    """A `shared()` that depends on no source is computed once, and ops around it alone are found by their structure."""
    with machine(kind):
        given = source(tensor(0))
        node = marked(4).shared()
        for number in range(ROUNDS):
            given.set(tensor(number))
            assert found(zip_ops(marked(2, node, given).to_host(), marked(3, node).to_host()).sync())[0] == 6.0 + number
        assert MARKS.seen().count(4) == 1
        forked(node).sync()
        with traces() as count:
            for _ in range(ROUNDS):
                forked(node).sync()
        assert count.now <= 1


def test_host_values_of_a_feed_are_none_of_its_stand_ins() -> None:
    """What a feed remembers of sources for a node is a value that a plain run can have."""

    async def main() -> None:
        helds: list[Any] = [2.0, "two", (1, 2.0), pair(2)]
        for held in helds:
            given: Source[Any] = source(held)
            node: Op = value(0).then(lambda _, given=given: given).shared()  # type: ignore[misc]  # a default's type
            async with observe(node) as feed:
                first: Any = await feed.next()
                got: Any = await node
                assert np.array_equal(first, held)
                assert type(got) is type(held)
                assert np.array_equal(got, held)

    trio.run(main)


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_of_a_feed_are_none_of_its_stand_ins(kind: str) -> None:
    """So is a tensor of a source, and one behind a cutoff, whether a closure has built it or not."""

    async def main() -> None:
        nodes: list[Op] = [
            value(0).then(lambda _: source(held)).shared(),
            value(0).then(lambda _: cutoff(marked(1))).shared(),
            cutoff(marked(1)).shared(),
        ]
        for node in nodes:
            async with observe(node.to_host()) as feed:
                assert found([await feed.next()]) == found([await node.to_host()]) == [1.0]

    with machine(kind):
        held = tensor(1)
        trio.run(main)


def built(inner: Op) -> Op:
    """A node whose source is built by a closure, so that it is remembered without a key of its own."""
    return value(0).then(lambda _: inner).shared()


@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_of_remembered_constants_serves_no_remembered_value_of_sources(kind: str) -> None:
    """Two ops of one structure, whose nodes have run, have one plan; an op whose node depends on a source has none."""
    with machine(kind):
        for constant in (constants := [built(marked(1)) for _ in range(ROUNDS)]):
            for _ in range(2):
                assert found(forked(constant).sync()) == [3.0, 4.0]
        given = source(tensor(0))
        node = built(marked(1, given))
        for number in range(ROUNDS):
            given.set(tensor(number))
            for _ in range(2):
                assert found(forked(node).sync()) == [number + 3.0, number + 4.0]
        with traces() as count:
            forked(constants[-1]).sync()
        assert count.now == 0


@final
class Stop:
    """A place in a closure at which a run stops, until the test goes on."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        assert self.open.wait(PATIENCE)


def test_a_feed_that_waits_for_a_plain_run_follows_the_source() -> None:
    """A feed that finds a node being computed by a plain run depends on the sources of the node all the same."""
    given, later, stop = source(tensor(1)), tensor(5), Stop()
    stops = [stop]

    def build(_: int) -> Any:
        if stops:
            stops.pop()()
        return marked(1, given)

    node = value(0).then(build).shared()

    async def main() -> None:
        async with observe(marked(2, node).to_host()) as feed:
            async with trio.open_nursery() as nursery:
                first: list[Any] = []

                async def ask() -> None:
                    first.append(await feed.next())

                nursery.start_soon(ask)
                await trio.testing.wait_all_tasks_blocked()
                stop.open.set()
            assert found(first) == [4.0]
            assert found([await trio.to_thread.run_sync(plain.result, PATIENCE)]) == [2.0]
            given.set(later)
            assert found([await feed.next()]) == [8.0]

    with ThreadPoolExecutor(1) as pool:
        plain = pool.submit(node.to_host().sync)
        assert stop.reached.wait(PATIENCE)
        trio.run(main)


def test_only_the_value_that_a_run_has_seen_expires() -> None:
    """A value that another run has made meanwhile stays, and so does a claim."""
    once, old, new = Once(), object(), object()
    assert once.claim("first") == "claimed"
    once.publish(old)
    once.expire(old)
    assert once.remembered()[0] is NOTHING
    assert once.claim("second") == "claimed"
    once.expire(old)
    assert once.claim("third") == "busy"
    once.publish(new)
    once.expire(old)
    assert once.remembered()[0] is new


def test_one_run_claims_a_value_another_waits_and_a_stale_one_is_made_again() -> None:
    """A run may claim again what it has claimed. It gives up no value that it has published, and forgets no value that
    is of its sources."""
    once, given, old, new = Once(), source(1), object(), object()
    first, second, woken = Claims(), Claims(), list[int]()

    def is_stale(made_for: Mapping[Any, int]) -> bool:
        return made_for[given] < 1

    assert [claims.take(once, is_stale)[0] for claims in (first, first, second)] == ["claimed", "claimed", "busy"]
    once.when_settled(lambda: woken.append(1))
    first.publish(once, old, {given: 0})
    first.abandon()
    assert woken == [1]
    assert once.remembered() == (old, {given: 0})
    assert not second.take_all([Once(), once])
    assert second.take(once, is_stale)[0] == "claimed"
    second.publish(once, new, {given: 1})
    assert first.take(once, is_stale) == ("done", new, {given: 1})
    other = Once()
    assert not second.take_all([other, once])
    assert other.settled()


def test_a_run_keeps_what_it_has_made_when_another_run_replaces_it() -> None:
    """A later stage of a run uses the value of its own instant, also after a run of another instant has expired it."""
    given = source(tensor(1))
    doubled = marked(1, given).shared()

    def with_data(array: NDArray[np.float32]) -> Op:
        once: Any = doubled
        once.once.expire(once.once.value)  # as a feed does that reads a later revision
        return zip_ops(value(array), doubled).then(lambda both: both[1].to_host().map(lambda again: (both[0], again)))

    first, again = doubled.then(lambda t: t.to_host()).then(with_data).sync()
    assert first.tobytes() == again.tobytes()
