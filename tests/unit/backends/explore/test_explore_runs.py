"""The interpreter on the explore backend: whole runs in any order, and with something going wrong at every step."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dagpu import (
    DagpuError,
    DeviceError,
    NestedRunError,
    NoDeviceError,
    Out,
    RoundRobin,
    SchedulingPolicy,
    StreamInterpreter,
    Tensor,
    Tile,
    arange,
    device,
    devices,
    i32,
    kernel,
    ones,
    spawn,
    use_device,
    use_interpreter,
    zeros,
    zip_ops,
)
from dagpu.testing import exploring
from tests.programs.dag_results import expected, run
from tests.programs.expressions import Expr
from tests.programs.named_dags import EXPECTED, NAMED, Op
from tests.programs.named_kernels import affine, gather, step
from tests.programs.strategies import descriptions, policies
from tests.unit.backends.explore.explored_runs import HERE, explored, used


def lent_and_forked(total: Tensor[i32]) -> Op:
    """Writes into a tensor of the caller's, beside a fork and a join whose result it gives."""
    root = arange(8, i32).shared()
    branches = [affine(zeros((8,), i32).partition((4,)), root, k + 2, 1).first().unpartition() for k in range(3)]
    joined = gather(branches[0].partition((8,)), branches[1]).first().unpartition()
    effect = gather(total.borrow_mut().partition((8,)), branches[2])
    return zip_ops(effect, joined.to_host()).last()


JOINED = 5 * np.arange(8, dtype=i32) + i32(2)


# ---- runs


@pytest.mark.parametrize("name", NAMED)
def test_named_dags_run(name: str) -> None:
    """Traced, planned and run in four orders, each named DAG gives what NumPy gives, and leaves no memory behind."""
    before = used()
    for seed in range(4):
        with explored(seed, RoundRobin(4)):
            for want, got in zip(EXPECTED[name](), NAMED[name]().sync(), strict=True):
                np.testing.assert_array_equal(want, got, strict=True)
    assert used() == before


@settings(max_examples=60)
@given(descriptions, policies, st.integers(0, 2**32))
def test_a_run_gives_what_numpy_gives(e: Expr, policy: SchedulingPolicy, seed: int) -> None:
    """Whatever the DAG, the policy and the order, the result and all that is written outside are NumPy's."""
    with explored(seed):
        assert run(e, policy) == expected(e)


@settings(max_examples=25)
@given(descriptions, policies, st.integers(0, 2**32))
def test_await_gives_what_numpy_gives(e: Expr, policy: SchedulingPolicy, seed: int) -> None:
    """The result of `await` in a trio task equals NumPy's."""
    with explored(seed):
        assert run(e, policy, under_trio=True) == expected(e)


def test_an_op_runs_again_from_its_kept_plan() -> None:
    """The plan of the first run is replayed in the orders of the later ones."""
    op = gather(arange(8, i32).partition((4,)), ones((8,), i32)).first().unpartition().to_host()
    orders = set()
    for seed in range(20):
        with use_device(HERE), use_interpreter(StreamInterpreter(HERE, RoundRobin(2))), exploring(seed=seed) as e:
            assert op.sync().tolist() == list(range(1, 9))
        orders.add(tuple(e.taken))
    assert len(orders) > 2


def test_spawned_ops_run() -> None:
    """Several runs of one trio loop, each in an order of its own."""

    async def main() -> list[Any]:
        async with trio.open_nursery() as nursery:
            pending = [spawn(nursery, NAMED["fork_join"]()) for _ in range(5)]
            return [await each for each in pending]

    with explored(3, RoundRobin(4)):
        for (got,) in trio.run(main):
            np.testing.assert_array_equal(EXPECTED["fork_join"]()[0], got)


def test_no_run_inside_a_run() -> None:
    """A host function may not run an op, here as on worker threads."""
    with explored(0), pytest.raises(NestedRunError):
        ones((2,)).to_host().host_map(lambda a: ones((2,)).sync()).sync()


# ---- the same again


def test_a_seed_replays_exactly() -> None:
    """The same seed gives the same steps, and so do its choices. Another seed gives others."""
    taken = []
    with use_device(HERE), use_interpreter(StreamInterpreter(HERE, RoundRobin(4))):
        for how in ({"seed": 5}, {"seed": 5}, {"seed": 6}):
            with exploring(seed=how["seed"]) as found:
                NAMED["lu"]().sync()
            taken.append(found.taken)
        with exploring(choices=taken[0]) as found:
            NAMED["lu"]().sync()
    assert taken[0] == taken[1] == found.taken
    assert taken[0] != taken[2]
    assert len(found.taken) == found.steps


def test_the_environment_has_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """DAGPU_EXPLORE_SEED is the seed of runs that nobody gave one; it must be a number."""
    monkeypatch.setenv("DAGPU_EXPLORE_SEED", "41")
    with use_device(HERE), exploring() as found:
        assert found.seed == 41
        ones((1,)).sync()
    monkeypatch.setenv("DAGPU_EXPLORE_SEED", "x")
    with pytest.raises(ValueError, match="DAGPU_EXPLORE_SEED='x' is not a whole number"), use_device(HERE):
        ones((1,)).sync()


@pytest.mark.parametrize("runs", [0, 1])
def test_exploring_nothing_is_an_error(runs: int) -> None:
    """A block that explores no run, since it has none or they went to another device, says so, with the cure; but
    not where something else has gone wrong."""

    def explore() -> None:
        with exploring(seed=1):
            for _ in range(runs):
                ones((1,)).sync()

    with use_device("host:0"):
        with pytest.raises(DagpuError, match=r"nothing within the block ran on an explore device.*Put use_device\("):
            explore()
        with pytest.raises(ZeroDivisionError), exploring(seed=1):
            _ = 1 // 0
    with exploring(seed=1):
        ones((1,)).on(HERE).sync()


def test_a_seed_and_choices_exclude_each_other() -> None:
    """One of the two decides."""
    with pytest.raises(ValueError, match="a seed or choices, not both"), exploring(seed=1, choices=[0]):
        pass


def test_failures_say_how_to_have_them_again() -> None:
    """An error out of a run, or one that leaves the block, has a note: the seed or the choices, and the faults."""
    with pytest.raises(DeviceError) as caught, use_device(HERE), exploring(seed=7, fail_at=1):
        ones((1,)).sync()
    assert caught.value.__notes__ == [
        "explored with DAGPU_EXPLORE_SEED=7: exploring(seed=7, fail_at=1) replays it exactly"
    ]
    with pytest.raises(AssertionError) as asserted, use_device(HERE), exploring(choices=[0]):
        np.testing.assert_array_equal(0, ones((1,)).to_host().sync())
    assert asserted.value.__notes__ == ["exploring(choices=[0, 0, 0, 0, 0, 0]) replays it exactly"]


def every_step(attempt: Callable[[int], bool]) -> int:
    """Call `attempt(0)`, `attempt(1)`, ... until one says that there is no such step; gives back how many there are."""
    at = 0
    while attempt(at):
        at += 1
    return at


# ---- failures and cancellation at every step


@pytest.mark.parametrize("seed", range(6))
def test_a_failure_at_any_step_is_raised_and_leaves_nothing(seed: int) -> None:
    """The run raises the very failure; memory and locks are given back, and the tensor can be lent again at once."""
    with explored(seed):
        total = zeros((8,), i32).sync()
    before = used()

    def attempt(at: int) -> bool:
        with use_device(HERE), use_interpreter(StreamInterpreter(HERE, RoundRobin(3))):
            with exploring(seed=seed, fail_at=at) as found:
                try:
                    result = lent_and_forked(total).sync()
                except DeviceError as error:
                    raised = str(error)
                else:
                    raised = ""
                    np.testing.assert_array_equal(JOINED, result)
            assert ("injected" in raised) == (found.steps > at)
            total.borrow_mut()
            return found.steps > at

    assert every_step(attempt) > 20
    assert used() == before


@pytest.mark.parametrize("seed", range(6))
def test_an_interrupt_at_any_step_leaves_nothing(seed: int) -> None:
    """At an interrupt, as by Ctrl-C in `sync()`, instructions that have not begun are skipped.

    When it is raised, no resource is held any more.
    """
    with explored(seed):
        total = zeros((8,), i32).sync()
    before = used()

    def attempt(at: int) -> bool:
        with use_device(HERE), use_interpreter(StreamInterpreter(HERE, RoundRobin(3))):
            op = lent_and_forked(total)
            with exploring(seed=seed, cancel_at=at) as found:
                try:
                    result = op.sync()
                except KeyboardInterrupt:
                    assert found.steps >= at
                else:
                    np.testing.assert_array_equal(JOINED, result)
                    return False
            del op
            total.borrow_mut()
            return True

    assert every_step(attempt) > 20
    assert used() == before


@pytest.mark.parametrize("seed", range(6))
def test_trio_cancels_at_any_step(seed: int) -> None:
    """A scope cancelled while a run is under way: the run is drained, `Cancelled` ends the scope, and what the op
    needed can be made again, `shared()` values included."""
    with explored(seed):
        total = zeros((8,), i32).sync()
    before = used()

    async def attempt(at: int) -> bool:
        op = lent_and_forked(total)
        with trio.CancelScope() as scope, exploring(seed=seed, cancel_at=at, cancel=scope.cancel):
            np.testing.assert_array_equal(JOINED, await op)
        del op
        total.borrow_mut()
        return scope.cancelled_caught

    async def main() -> int:
        at = 0
        while await attempt(at):
            at += 1
        return at

    with use_device(HERE), use_interpreter(StreamInterpreter(HERE, RoundRobin(3))):
        assert trio.run(main) > 20
    assert used() == before


def test_a_shared_value_is_made_again_after_a_failure() -> None:
    """A failure is not remembered: the next run of the same op makes it, and gives the right result."""
    with use_device(HERE), use_interpreter(StreamInterpreter(HERE, RoundRobin(3))):
        for at in range(40):
            op = NAMED["fork_join"](branches=2, depth=1)
            with exploring(seed=at, fail_at=at), pytest.raises(DeviceError, match="injected"):
                op.sync()
            np.testing.assert_array_equal(EXPECTED["fork_join"](2, 1)[0], op.sync()[0])
            if at > 10:
                break


FRAGILE = "__global__ void fragile(Tile<int, 1> y, int number, bool fails) { for (auto i : y) y[i] += number; }"


@kernel(cuda=FRAGILE)
def fragile(y: Out[i32], number: int, fails: bool) -> None:
    """y += number; on the host it raises where it is told to."""


@fragile.host
def _(y: Tile[i32], number: int, fails: bool) -> None:
    if fails:
        raise ArithmeticError(f"number {number} fails")
    y[...] += i32(number)


def fragile_dag(failing: frozenset[int]) -> Op:
    """Five chains of three, joined; the numbers in `failing` fail."""
    total: Op | None = None
    for chain in range(5):
        op: Op = zeros((4,), i32)
        for link in range(3):
            number = 3 * chain + link
            op = fragile(op.partition((4,)), number, number in failing).first().unpartition()
        total = op if total is None else gather(total.partition((4,)), op).first().unpartition()
    assert total is not None
    return total.to_host()


def failures(place: str, failing: frozenset[int]) -> object:
    """Return the error of a run, or its result."""
    with use_device(place), use_interpreter(StreamInterpreter(place, RoundRobin(4))):
        try:
            result: NDArray[Any] = fragile_dag(failing).sync()
        except ArithmeticError as error:
            return [str(error)]
        except ExceptionGroup as group:
            return [str(error) for error in group.exceptions]
        return result.tolist()


@settings(max_examples=40)
@given(st.frozensets(st.integers(0, 14), max_size=5), st.integers(0, 2**32))
def test_what_fails_is_what_fails_on_the_host(failing: frozenset[int], seed: int) -> None:
    """The set and the order of failed instructions depend on the data flow, and not on the order of steps."""
    with exploring(seed=seed):
        assert failures("host:0", failing) == failures(HERE, failing)


# ---- the device


def test_the_devices_are_there_for_those_who_ask() -> None:
    """By name, but not in the list of what the machine has; a stream of one's own is a lane like any other."""
    assert device(HERE).kind == "explore"
    assert device("explore").name == HERE
    assert all(found.kind != "explore" for found in devices())
    assert device(HERE).memory_info()[1] > 0
    with pytest.raises(NoDeviceError, match="explore:8"):
        device("explore:8")
    stream = device(HERE).stream()
    assert stream.handle == 0
    with use_device(HERE):
        op = step(ones((4,), i32).partition((4,)), 2, 1).first().unpartition().to_host()
        assert op.sync_on(stream).tolist() == [3] * 4
