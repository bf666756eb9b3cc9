"""Checked calls of foreign ops: what a body writes and must write, on the host, explore and a simulated GPU."""

import ctypes
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dagpu import ForeignError, In, Out, Tensor, current_device, f32, foreign, from_host, pipeline, use_device
from dagpu.interop import Lane, View, current_lane, extent, new, reserve
from dagpu.testing import EnqueuedWork
from tests.simulated.array_libraries import FakeArray, array_libraries
from tests.simulated.cuda import driver, installed

N = 6
A = np.arange(1, N + 1, dtype=f32)
PLACES = ["host", "explore:0", "torch"]


@contextmanager
def place(name: str) -> Iterator[Any]:
    """The host, explore, or a simulated GPU with PyTorch."""
    with ExitStack() as stack:
        if name == "torch":
            machine = stack.enter_context(installed(seed=1))
            stack.enter_context(array_libraries(machine, "torch"))
            yield machine
            assert machine.problems == []
        else:
            stack.enter_context(use_device(name))
            yield None


def poke(x: Any, first: int, count: int, value: float) -> None:
    """Write a number to elements of an array of either kind, without regard to its bounds."""
    if isinstance(x, FakeArray):
        at = FakeArray(x.library, x.memory, x.address + 4 * first, (count,), (4,), x.dtype)
        at.written_by(lambda: np.full(count, value, f32))
    else:
        memory = (ctypes.c_float * count).from_address(x.ctypes.data + 4 * first)
        memory[:] = [value] * count


def pokes(writes: Any, **options: Any) -> Any:
    """A checked op whose body makes these writes: (operand, first element, count)."""

    @foreign(checked=True, **options)
    def op(x: In[f32]) -> Tensor[f32]:
        return new(x)

    def body(x: Any, out: Any) -> None:
        for target, first, count in writes:
            poke(x if target == "x" else out, first, count, 7.0)

    op.on("torch")(body)
    op.host(body)
    return op


WRITES = st.lists(
    st.tuples(st.sampled_from(["out", "out", "out", "x"]), st.integers(-2, 5), st.integers(1, 7)), max_size=3
)


@settings(max_examples=40, deadline=None)
@given(WRITES, st.sampled_from(PLACES))
def test_a_body_writes_its_outputs_and_nothing_else(writes: Any, where: str) -> None:
    """A call passes if and only if each element of the output is written, and no other byte."""
    inside = [(target, max(first, 0), min(count, N - max(first, 0))) for target, first, count in writes]
    with place(where):
        x = from_host(A).sync().share()
        op = pokes([each for each in inside if each[0] == "x"] + [each for each in writes if each[0] == "out"])
        written = {n for target, first, count in writes if target == "out" for n in range(first, first + count)}
        if any(target == "x" for target, _, _ in writes):
            expected = r"op \(checked\), called at \S+: its body wrote to input 'x'. Declare it Out"
        elif written - set(range(N)):
            expected = r"its body wrote \d+ bytes outside of new tensor 0. Keep"
        elif not written:
            expected = "its body never wrote new tensor 0. Write all of it"
        elif len(written) < N:
            expected = rf"its body left {N - len(written)} of 6 elements unwritten in new tensor 0"
        else:
            assert_array_equal(op(x.clone()).to_host().sync(), np.full(N, 7, f32))
            return
        with pytest.raises(ForeignError, match=expected):
            op(x.clone()).sync()


@pytest.mark.parametrize("where", PLACES)
def test_an_argument_begins_with_its_contents(where: str) -> None:
    """A body may add to an `Out` argument. Without elements there is nothing to write."""

    @foreign(checked=True)
    def added(y: Out[f32], x: In[f32]) -> None: ...

    @added.on("torch")
    def _(y: Any, x: Any) -> None:
        y.copy_(y + x)

    @added.host
    def _(y: Any, x: Any) -> None:
        y += x

    with place(where):
        for shape in ((4, 6), (0, 4)):
            y = from_host(np.full(shape, 2, f32)).sync()
            added(y.borrow_mut().partition((2, 2)), from_host(np.ones(shape, f32))).sync()
            assert_array_equal(y.to_host().sync(), np.full(shape, 3, f32))


def test_a_body_keeps_to_its_scratch_memory() -> None:
    """The scratch memory of a raw body lies between canaries too."""

    @foreign(checked=True)
    def negated(x: In[f32], by: int) -> Tensor[f32]:
        reserve(4 * extent(x, 0))
        return new(x)

    @negated.raw
    def _(lane: Lane, x: View[f32], by: int, out: View[f32], scratch: View[np.uint8]) -> None:
        gpu: Any = driver().gpu
        addresses = x.address, out.address, scratch.address

        def act() -> None:
            source, target = [gpu.bytes_at(address, 4 * N) for address in addresses[:2]]
            room = gpu.bytes_at(addresses[2], 4 * N + by)
            room[...] = 0
            room[: 4 * N] = source
            target.view(f32)[...] = -room[: 4 * N].view(f32)

        with gpu.machine.changed:
            work = EnqueuedWork("kernel `neg`", addresses)
            gpu.machine.stream_of(lane.handle).put(act, takes_room=True, enqueued=work)

    with installed(seed=2) as machine:
        used = current_device().memory_used()
        assert_array_equal(negated(from_host(A), 0).to_host().sync(), -A)
        with pytest.raises(ForeignError, match=r"wrote 3 bytes outside of its scratch memory. Reserve what it needs"):
            negated(from_host(A), 3).sync()
        assert current_device().memory_used() == used
        assert machine.problems == []


def test_a_checked_call_is_audited_and_no_graph() -> None:
    """The work is read in a capture that is thrown away, after the call; runs go through streams, and say so. A body
    that cannot be captured is checked all the same."""
    calls: list[bool] = []

    @foreign(checked=True)
    def op(x: In[f32], wait: bool) -> Tensor[f32]:
        return new(x)

    @op.on("torch")
    def _(x: Any, wait: bool, out: Any) -> None:
        calls.append(current_lane().capturing)
        out.copy_(x * 2.0)
        out.item() if wait else None

    with place("torch") as machine:
        x = from_host(A[:1]).sync().share()
        for wait in (False, True):
            step = pipeline(graph_from=1)(partial(op, wait=wait))
            for repeat in range(3):
                assert_array_equal(step(x).to_host().sync(), A[:1] * 2, f"{repeat}")
            assert calls == [False, True] * 3
            calls.clear()
        assert "its calls are checked" in op(x.clone(), False).explain()
        assert machine.gpus[0].graphs == 0


def test_a_checked_call_without_enqueued_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """DAGPU_CHECKED=1 checks the ops that are declared while it is set: here a body that works on the wrong stream."""
    monkeypatch.setenv("DAGPU_CHECKED", "1")

    @foreign
    def op(x: In[f32]) -> Tensor[f32]:
        return new(x)

    @foreign(checked=False)
    def unchecked(x: In[f32]) -> Tensor[f32]:
        return new(x)

    monkeypatch.delenv("DAGPU_CHECKED")
    with place("torch") as machine:

        def body(x: Any, out: Any) -> None:
            with out.library.on_stream(machine.gpus[0].foreign_stream(1)):
                out.copy_(x)
            machine.gpus[0].synchronize()

        op.on("torch")(body)
        unchecked.on("torch")(body)
        x = from_host(A).sync().share()
        assert_array_equal(unchecked(x.clone()).to_host().sync(), A)
        with pytest.raises(ForeignError, match="enqueued nothing on the lane's stream"):
            op(x.clone()).sync()
