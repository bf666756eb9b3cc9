"""The table of costs: what has run has a measured cost, which later plans use, and which changes no result."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import dagpu
from dagpu import (
    CostModel,
    DeviceOp,
    In,
    ListSchedule,
    Out,
    Tile,
    empty,
    expr,
    f32,
    from_host,
    i32,
    kernel,
    ones,
    plan_of,
    zip_ops,
)
from dagpu.backends.host import measuring
from dagpu.handles.device_handles import kind_of
from dagpu.plans.cost_model import MEASURED, MeasuredCosts, at_size, is_near
from dagpu.testing import Execute, Launch
from tests.programs.plain_programs import kernel as spec

pytestmark = pytest.mark.host_only("it measures host bodies, with a clock of its own")

N = 64


PACE: list["Pace"] = []
"""The clock that the kernel drives, if a test has one."""


@kernel(cuda="__global__ void slow(Tile<float, 1> y, View<const float, 1> x) { for (auto i : y) y[i] = x[i]; }")
def slow(y: Out[f32], x: In[f32]) -> None:
    """y = x"""


@slow.host(whole=True)
def _(y: Tile[f32], x: NDArray[f32]) -> None:
    if x[0] < 0:
        raise ArithmeticError("less than 0")
    for pace in PACE:
        pace.now += pace.seconds(len(x))
    y[...] = x


class Ticks:
    """A clock on which each look takes a second, and counts."""

    def __init__(self) -> None:
        self.looks = count(1)
        self.looked = 0

    def perf_counter(self) -> float:
        self.looked = next(self.looks)
        return float(self.looked)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ticks]:
    """Turn the table on, empty, with a clock of its own."""
    ticks = Ticks()
    monkeypatch.setenv("DAGPU_MEASURE", "1")
    monkeypatch.setattr(measuring, "time", ticks)
    MEASURED.clear()
    yield ticks
    MEASURED.clear()


class Pace:
    """A clock that goes on while the kernel runs alone: by a fixed time, and by that of its bytes."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def seconds(self, length: int) -> float:
        return 25e-6 + 8 * length * 1e-10

    def op(self, length: int) -> DeviceOp[Any]:
        return copied(length=length)


@pytest.fixture
def paced(clock: Ticks, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pace]:
    """Have the kernel take its time on a clock of its own."""
    pace = Pace()
    monkeypatch.setattr(measuring, "time", pace)
    PACE.append(pace)
    yield pace
    PACE.clear()


def copied(number: float = 1.0, length: int = N) -> DeviceOp[Any]:
    x = from_host(np.full(length, number, f32))
    return slow(empty((length,)).partition((length,)), x).first().unpartition().to_host()


def seconds_of(op: DeviceOp[Any], costs: CostModel | None = None) -> float:
    """Return the predicted seconds of the launch of an op."""
    plan = plan_of(op)
    launches = [s.instruction for s in plan.steps if isinstance(s, Execute) and isinstance(s.instruction, Launch)]
    return (costs or CostModel()).seconds(launches[0], plan)


def test_a_body_is_measured_in_the_first_runs_of_a_plan(clock: Ticks) -> None:
    """Later plans have its time, and their report says where it comes from; after some runs nothing is measured."""
    op = copied()
    assert "Times of kernels, unknown, so by its bytes: slow" in op.explain()
    for _ in range(10):
        op.sync()
    instructions = sum(isinstance(step, Execute) for step in plan_of(op).steps)
    assert clock.looked == 2 * 3 * instructions  # at the begin and the end of each, in three runs
    assert seconds_of(copied()) == pytest.approx(1.0, rel=1e-3)
    assert "Times of kernels, measured in earlier runs: slow" in copied().explain()
    assert not CostModel().guesses(plan_of(copied()))


def test_what_a_user_says_comes_first(clock: Ticks) -> None:
    """A declared or learnt time is used in place of the measured one."""
    copied().sync()
    assert seconds_of(copied(), CostModel().declare({"slow": 5.0})) == pytest.approx(5.0, rel=1e-3)
    assert seconds_of(copied(), CostModel().learn([("slow", 8 * N, 3.0)])) == pytest.approx(3.0, rel=1e-3)
    learnt = copied().schedule(ListSchedule(costs=CostModel().learn([("slow", 8 * N, 3.0)])))
    assert "Times of kernels, learnt by the policy's CostModel: slow" in learnt.explain()


def test_a_run_that_fails_leaves_no_cost(clock: Ticks) -> None:
    """A body that raised was not run to its end."""
    with pytest.raises(ArithmeticError):
        copied(-1.0).sync()
    assert "unknown, so by its bytes: slow" in copied().explain()


def test_a_trace_measures_too(clock: Ticks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kernel of a run in a trace, on any device."""
    op = copied()
    for _ in range(10):
        op.sync()
    MEASURED.clear()
    op.sync()
    assert "unknown, so by its bytes: slow" in copied().explain()
    with dagpu.trace():
        op.sync()
    assert "measured in earlier runs: slow" in copied().explain()


def test_the_table_can_be_turned_off(clock: Ticks, monkeypatch: pytest.MonkeyPatch) -> None:
    """DAGPU_MEASURE=0: nothing is measured, and what was measured is not used. So no plan depends on earlier runs."""
    copied().sync()
    monkeypatch.setenv("DAGPU_MEASURE", "0")
    assert "unknown, so by its bytes: slow" in copied().explain()
    looked = clock.looked
    zip_ops(copied(), copied()).sync()
    assert clock.looked == looked


def test_kernels_that_dagpu_has_written_are_measured_in_a_trace_alone(clock: Ticks) -> None:
    """Their bytes tell their time, so no run is measured for them."""
    op = expr(i32)(lambda x: x + 1)(ones((N,), i32)).to_host()
    op.sync()
    assert clock.looked == 0
    assert "Times of kernels" not in op.explain()
    with dagpu.trace():
        op.sync()
    assert "Times of kernels, measured in earlier runs: expression" in op.explain()


def test_times_are_kept_by_kernel_and_kind_of_device_and_size(clock: Ticks) -> None:
    """The least time of each counts, and the sizes are sorted."""
    table, one, other = MeasuredCosts(), spec("one"), spec("other")
    for seconds in (3.0, 2.0, 5.0):
        table.add("host:3", one, 100, seconds)
    table.add("node1/cuda:0", one, 100, 7.0)
    table.add("host:0", one, 10_000, 50.0)
    assert table.sizes("w3/host:1", one) == [(100, 2.0), (10_000, 50.0)]
    assert table.sizes("cuda:auto", one) == [(100, 7.0)]
    assert table.sizes("host:0", other) == []
    assert list(map(kind_of, ("host:0", "w0/host:1", "cuda:auto"))) == ["host", "host", "cuda"]
    table.clear()
    assert table.sizes("host:0", one) == []


LAUNCH, BYTE = CostModel().machine("host:0")[:2]
seconds_a_byte = st.floats(BYTE, 1e-6)


@given(
    overhead=st.floats(0, 1e-3),
    byte=seconds_a_byte,
    sizes=st.lists(st.integers(2, 40).map(lambda power: 1 << power), min_size=2, unique=True),
    nbytes=st.integers(1, 1 << 42),
)
def test_what_takes_an_overhead_and_its_bytes_is_known_by_two_sizes(
    overhead: float, byte: float, sizes: list[int], nbytes: int
) -> None:
    """Exactly, from the smaller of them on, and at the sizes themselves."""
    known = [(size, overhead + byte * size) for size in sorted(sizes)]
    for wanted in (*sizes, max(nbytes, known[0][0])):
        assert at_size(known, wanted, LAUNCH, BYTE) == pytest.approx(overhead + byte * wanted, rel=1e-3)


@given(st.floats(0, 3 * LAUNCH), st.integers(1, 1 << 40))
def test_a_tiny_size_tells_the_overhead(overhead: float, nbytes: int) -> None:
    """A kernel takes the overhead of some launches on 64 bytes. On more it takes longer by their time at the device's
    pace. In proportion to the tiny size it would take hours in place of a second."""
    known = [(64, overhead + BYTE * 64)]
    assert at_size(known, 64 + nbytes, LAUNCH, BYTE) == pytest.approx(overhead + BYTE * (64 + nbytes))


@given(overhead=st.floats(0, 1e-3), byte=st.floats(0, 1e-6), size=st.integers(1, 1 << 30), factor=st.floats(0.25, 4))
def test_a_size_that_is_near_is_wrong_by_four_times_at_most(
    overhead: float, byte: float, size: int, factor: float
) -> None:
    """Whatever part of a time is an overhead."""
    nbytes = max(int(size * factor), -(-size // 4))
    known = [(size, overhead + byte * size)]
    true, found = overhead + byte * nbytes, at_size(known, nbytes, LAUNCH, BYTE)
    assert is_near(known, nbytes)
    assert true / 4.001 <= found <= true * 4.001


def test_sizes_that_are_near() -> None:
    """Up to four times larger or smaller; nothing is near to no size."""
    for nbytes, near in ((24, False), (25, True), (400, True), (401, False), (1599, False), (1600, True)):
        assert is_near([(100, 1.0), (6400, 1.0)], nbytes) is near
    assert not is_near([], 100)


def test_a_size_that_is_far_is_unknown_and_measured_too(paced: Pace) -> None:
    """A kernel was measured on 16 numbers, which take as long as its calls. So of 4 MiB little is known: the first runs
    of a plan are measured again. Then sizes near it and between are known."""
    for _ in range(4):
        paced.op(16).sync()
    small, large, between = paced.op(16), paced.op(1 << 20), paced.op(1 << 19)
    assert not CostModel().guesses(plan_of(small))
    assert CostModel().guesses(plan_of(large))
    assert "measured in earlier runs at other sizes: slow" in large.explain()
    assert seconds_of(large) <= 2 * paced.seconds(1 << 20)
    large.sync()
    assert not CostModel().guesses(plan_of(paced.op(1 << 20)))
    assert not CostModel().guesses(plan_of(between))
    for number in (1 << 20, 1 << 19, 1 << 21):
        assert seconds_of(paced.op(number)) == pytest.approx(paced.seconds(number) + LAUNCH, rel=1e-2)
    assert "Times of kernels, measured in earlier runs: slow" in between.explain()


def test_the_table_is_bounded(clock: Ticks) -> None:
    """The kernel, and the size, that came first is dropped first."""
    table = MeasuredCosts()
    for number in range(5000):
        table.add("host:0", spec(f"k{number}"), 8, 1.0)
    assert table.sizes("host:0", spec("k0")) == []
    assert table.sizes("host:0", spec("k4999")) == [(8, 1.0)]
    for nbytes in range(100):
        table.add("host:0", spec("k4999"), nbytes, 1.0)
    assert len(table.sizes("host:0", spec("k4999"))) == 64
