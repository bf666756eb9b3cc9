"""A plan that is used again takes the arguments of the new run."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dagpu import (
    DagpuError,
    Device,
    RoundRobin,
    SingleStream,
    StreamInterpreter,
    current_device,
    device,
    f32,
    from_host,
    ones,
    use_device,
    use_interpreter,
    value,
    zeros,
    zip_ops,
)
from dagpu.testing import Locks, storage_of
from tests.programs.arithmetic import add
from tests.programs.expressions import Op, bits
from tests.support.places import place
from tests.support.reused_ops import Asked, contents, scaled, shared_input, traces, twice_scaled
from tests.support.reused_ops import let_go as let_go
from tests.support.reused_ops import no_plans_yet as no_plans_yet


def test_an_array_is_read_anew() -> None:
    """`from_host` copies what the array holds when the run starts."""
    array = np.zeros((2, 3), f32)
    op = scaled(from_host(array)).to_host()
    found = []
    with traces() as count:
        for number in range(3):
            array[...] = number
            found.append(op.sync()[0, 0])
    assert found == [0, 2, 4]
    assert count.now == 1


def test_an_array_of_another_shape_is_traced_anew() -> None:
    """Its shape may be changed in place: the result has that shape, and so has every later one."""
    array = np.ones((2, 3), f32)
    op = from_host(array).to_host()
    assert op.sync().shape == (2, 3)
    array.resize((3, 2), refcheck=False)
    with traces() as count:
        assert [op.sync().shape for _ in range(3)] == [(3, 2)] * 3
    assert count.now == 1


def said_by(op: Op) -> tuple[str, str]:
    """The error of a run that must fail."""
    with pytest.raises(DagpuError) as caught:
        op.sync()
    return type(caught.value).__name__, re.sub(r"test_reused_arguments\.py:\d+", "", str(caught.value))


@pytest.mark.parametrize("before", [0, 2])
def test_a_moved_input_is_the_same_error(before: int) -> None:
    """A `SharedTensor` that was unwrapped, a borrow of a tensor that has moved: `MovedError`, in the same words."""
    shared, lent = ones((2, 3)).share().sync(), ones((2, 3)).sync()
    ops = [scaled(value(shared)), zip_ops(value(shared), ones((1,))), scaled(value(lent.borrow()))]
    for op in ops * before:
        op.sync()
    fresh = [scaled(value(shared)), zip_ops(value(shared), ones((1,))), scaled(value(lent.borrow()))]
    tensor = shared.try_unwrap()
    moved = lent.share()
    for op, other in zip(ops, fresh, strict=True):
        said = said_by(op)
        assert said == said_by(other)
        assert said[0] == "MovedError"
    assert contents(tensor) == ("Tensor", contents(moved)[1])


def test_an_op_that_owns_is_used_up() -> None:
    """Its second run is a `MovedError`, as is every later one."""
    for op in (scaled(value(ones((2, 3)).sync())), ones((2,)).sync().to_host(), value(zeros((1,)).sync())):
        op.sync()
        said = said_by(op)
        assert said[0] == "MovedError"
        assert said_by(op) == said


def test_what_a_run_remembers_is_remembered_once() -> None:
    """`unzip` gives each component once, `shared` the same memory to every run."""
    left, right = zip_ops(ones((2,)), zeros((2,))).unzip()
    kept = ones((4,)).shared()
    left.sync()
    assert said_by(left)[0] == "MovedError"
    right.sync()
    assert storage_of(kept.sync()) is storage_of(kept.sync())


def test_a_written_input_is_refused_until_it_is_free() -> None:
    """A repeated run takes its locks: `BorrowError` while another run writes, and then it runs again."""
    tensor = ones((2, 3)).sync()
    op, other = (scaled(value(tensor.borrow())).to_host() for _ in range(2))
    wanted = bits(op.sync())
    writer = Locks(None)
    writer.acquire({storage_of(tensor): True})
    assert said_by(op) == said_by(other)
    assert said_by(op)[0] == "BorrowError"
    writer.release()
    with traces() as count:
        assert bits(op.sync()) == wanted
    assert count.now == 0
    assert storage_of(tensor).lock.readers == 0


@pytest.mark.parametrize("by", [lambda op: op, lambda op: op.schedule(SingleStream())], ids=["by key", "by itself"])
@pytest.mark.parametrize("handle", ["borrowed", "shared"])
def test_a_repeated_run_reads_beside_other_readers(handle: str, by: Callable[[Op], Op]) -> None:
    """A tensor that the op reads is locked only for reading, in the second run as in the first.

    This holds if the plan was found by the op's structure, and if the op keeps it under its own policy.
    """
    tensor: Any = ones((2, 3)).sync() if handle == "borrowed" else ones((2, 3)).share().sync()
    reader = Locks(None)
    reader.acquire({storage_of(tensor): False})
    op = by(scaled(value(tensor.borrow() if handle == "borrowed" else tensor)).to_host())
    with traces() as count:
        for _ in range(3):
            assert op.sync()[0, 0] == 2
            assert (storage_of(tensor).lock.writer, storage_of(tensor).lock.readers) == (None, 1)
    assert count.now == 1
    reader.release()


def test_a_repeated_run_reads_what_is_there_now() -> None:
    """A tensor that is lent may be written between two runs."""
    tensor = ones((2, 3)).sync()
    op = scaled(value(tensor.borrow())).to_host()
    assert op.sync()[0, 0] == 2
    add(tensor.borrow_mut().partition((2, 3)), shared_input(), shared_input()).map(lambda _: None).sync()
    with traces() as count:
        assert op.sync()[0, 0] == 4
    assert count.now == 0


def test_another_device_has_a_plan_of_its_own() -> None:
    """The current device decides in each run; both plans are kept."""
    op = twice_scaled()
    there: Device = device(place(1))
    with traces() as count:
        for _ in range(3):
            assert op.sync().device is current_device()
            with use_device(there):
                assert op.sync().device is there
    assert count.now == (1 if there is current_device() else 2)


def test_another_policy_has_a_plan_of_its_own() -> None:
    """A policy is asked once for each op; one of the user's is known by identity, the given ones by value."""
    op, policies = twice_scaled(), [Asked(), Asked()]
    for _ in range(2):
        for policy in policies:
            with use_interpreter(StreamInterpreter(policy=policy)):
                op.sync()
    assert [policy.times for policy in policies] == [1, 1]
    with traces() as count:
        for _ in range(3):
            with use_interpreter(StreamInterpreter(policy=RoundRobin(2))):
                op.sync()
    assert count.now == 1


def test_a_plan_that_was_not_verified_is_not_taken_for_one_that_was() -> None:
    """A run that requires verification never gets a plan that was not verified."""
    op = twice_scaled()
    with traces() as count:
        for check in (False, False, True, True):
            with use_interpreter(StreamInterpreter(verify=check)):
                op.sync()
    assert count.now == 2


def test_only_the_latest_plans_are_kept() -> None:
    """However many policies an op has been run with, the memory of its plans is bounded."""
    op = twice_scaled()
    for _ in range(20):
        with use_interpreter(StreamInterpreter(policy=Asked())):
            op.sync()
    assert len(op._plans) == 8  # noqa: SLF001  # no public call shows it
