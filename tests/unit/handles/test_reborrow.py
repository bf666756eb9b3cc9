"""A `TensorMut` stands wherever an input does: kernels read it, give it back, and write it after that.

Every test runs on the host, on an explore device, which tries an order of its own, and on a simulated GPU.
"""

import re
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import pytest
import trio
from numpy.typing import NDArray

from dagpu import (
    Borrowed,
    BorrowError,
    CudaGraph,
    DeviceOp,
    In,
    KernelArgumentError,
    MovedError,
    Out,
    Tensor,
    TensorMut,
    Tile,
    convert,
    current_device,
    dup,
    empty,
    f32,
    f64,
    fill,
    from_host,
    kernel,
    memcpy,
    ones,
    pipeline,
    plan_of,
    use_device,
    value,
    zeros,
    zip_ops,
)
from dagpu.handles import origin_of
from dagpu.testing import Execute, Launch
from tests.simulated.cuda import installed

N, TILE, RATE = 8, (4,), 0.25
Op: TypeAlias = DeviceOp[Any, Any, Any]


@pytest.fixture(autouse=True, params=["host", "explore:0", "simulated"])
def somewhere(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each kind of device in turn is the current one."""
    if request.param == "simulated":
        with installed(seed=5):
            yield
        return
    with use_device(request.param):
        yield


@kernel(
    cuda="""
__global__ void slope(Tile<float, 1> g, View<const float, 1> w, View<const float, 1> x) {
    for (auto i : g) g[i] = 2 * (w[i] - x[i]);
}
"""
)
def slope(g: Out[f32], w: In[f32], x: In[f32]) -> None:
    """g = 2 (w - x): the gradient of a squared distance."""


@slope.host
def _(g: Tile[f32], w: NDArray[f32], x: NDArray[f32]) -> None:
    g[...] = 2 * (w[g.at] - x[g.at])


@kernel(
    cuda="""
__global__ void descend(Tile<float, 1> w, float rate, View<const float, 1> g) {
    for (auto i : w) w[i] -= rate * g[i];
}
""",
    in_place=True,
)
def descend(w: Out[f32], rate: float, g: In[f32]) -> None:
    """w -= rate g."""


@descend.host
def _(w: Tile[f32], rate: float, g: NDArray[f32]) -> None:
    w[...] -= f32(rate) * g[w.at]


@kernel(
    cuda="""
__global__ void twice(Tile<float, 1> y, View<const float, 1> x) {
    for (auto i : y) y[i] = 2 * x[i];
}
""",
    in_place=True,
)
def twice(y: Out[f32], x: In[f32]) -> None:
    """y = 2 x, element by element."""


@twice.host
def _(y: Tile[f32], x: NDArray[f32]) -> None:
    y[...] = 2 * x[y.at]


X = np.arange(N, dtype=f32)


def new() -> Tensor[f32]:
    return ones((N,)).sync()


def contents(t: Tensor[f32]) -> list[float]:
    found: list[float] = t.borrow().to_host().sync().tolist()
    return found


def stepped(w: NDArray[f32], steps: int = 1) -> list[float]:
    """Return `w` after that number of steps."""
    for _ in range(steps):
        w = w - f32(RATE) * 2 * (w - X)
    found: list[float] = w.tolist()
    return found


def step(w: "TensorMut[f32] | DeviceOp[TensorMut[f32], Borrowed]", x: Any) -> Op:
    """One step of gradient descent, in place: a kernel reads `w`, gives it back, and the next one writes it."""
    g, lent, _ = slope(empty((N,)).partition(TILE), w, x).unzip()
    return descend(lent.partition(TILE), RATE, g.unpartition()).first().unpartition()


# ---- one loan, read and then written


def test_read_and_then_written_in_one_op() -> None:
    """The commonest pattern of training is one op: the gradient reads the weights before the update writes them."""
    w, x = new(), from_host(X).sync()
    lent = step(w.borrow_mut(), x.borrow()).sync()
    assert type(lent) is TensorMut
    assert contents(w) == stepped(np.ones(N, f32))


def test_an_op_that_yields_it_is_welcome_too() -> None:
    """`value(w.borrow_mut())` stands for it, and so does every op that gives it back."""
    w = new()
    op: Op = value(w.borrow_mut())
    for _ in range(3):
        op = step(op, from_host(X))
    assert type(op.sync()) is TensorMut
    assert contents(w) == stepped(np.ones(N, f32), 3)


def test_it_comes_back_in_the_tuple_as_it_was() -> None:
    """The call's result has the TensorMut in its place, and that can be passed on, read and cut, in later runs too."""
    w, x = new(), from_host(X).sync()
    g, lent, x_back = slope(empty((N,)).partition(TILE), w.borrow_mut(), x).sync()
    assert (type(lent), type(x_back)) == (TensorMut, Tensor)
    _, lent, _ = slope(empty((N,)).partition(TILE), lent, x_back).sync()
    descend(lent.partition(TILE), RATE, g.unpartition()).sync()
    assert contents(w) == stepped(np.ones(N, f32))


def test_inside_then() -> None:
    """A closure gets it as a handle, passes it on and cuts it."""
    w, x = new(), from_host(X).sync()

    def update(found: Any) -> Op:
        g, lent, _ = found
        return descend(lent.partition(TILE), RATE, g.unpartition())

    value(w.borrow_mut()).then(lambda m: slope(empty((N,)).partition(TILE), m, x.borrow())).then(update).sync()
    assert contents(w) == stepped(np.ones(N, f32))


def test_first_and_last_of_the_tuple() -> None:
    """`first()` and `last()` pick it like any other argument."""
    w = new()
    twice(twice(empty((N,)).partition(TILE), w.borrow_mut()).last().partition(TILE), ones((N,))).sync()
    assert contents(w) == [2.0] * N


def test_a_tensor_of_the_run_itself() -> None:
    """A closure may lend what its own run has made, read it, and write it."""

    def body(t: Any) -> Op:  # mypy would refuse to move it while the op has it lent
        return step(t.borrow_mut(), from_host(X)).map(lambda _: t)

    assert ones((N,)).then(body).to_host().sync().tolist() == stepped(np.ones(N, f32))


def test_over_several_stages() -> None:
    """Between the read and the write the host may have its say: the loan lasts as long as the run."""
    w = new()
    g, lent, _ = slope(empty((N,)).partition(TILE), w.borrow_mut(), from_host(X)).unzip()
    largest = g.unpartition().to_host().host_map(lambda a: float(abs(a).max()))
    zip_ops(lent, largest).then(lambda p: descend(p[0].partition(TILE), p[1], ones((N,)))).sync()
    assert contents(w) == [1 - 12.0] * N


def test_many_readers_then_a_writer() -> None:
    """Each reader hands it to the next; the plan still lets all of them read at once, and the writer waits for all."""
    w = new()
    op: Op = value(w.borrow_mut())
    found = []
    for _ in range(4):
        out, op = twice(empty((N,)).partition(TILE), op).unzip()
        found.append(out.unpartition().to_host())
    results = zip_ops(*found, twice(op.partition(TILE), ones((N,)))).sync()
    assert all((array == 2).all() for array in results[:4])
    assert contents(w) == [2.0] * N


def test_the_plan_orders_the_write_behind_the_read() -> None:
    """The program has one buffer for the tensor, which the first launch reads and the second writes; the verifier, on
    in every run, holds the plan to that order."""
    w = new()
    plan = plan_of(step(w.borrow_mut(), from_host(X)))
    done = [step.instruction for step in plan.steps if isinstance(step, Execute)]
    by_name = {launch.kernel.name: launch for launch in done if isinstance(launch, Launch)}
    assert set(by_name["slope"].reads) & set(by_name["descend"].writes)


# ---- what copies and reads besides kernels


def test_contents_by_to_host() -> None:
    """`to_host()` reads it and ends the loan, as a method of the handle and of the op."""
    w = new()
    assert w.borrow_mut().to_host().sync().tolist() == [1.0] * N
    assert step(w.borrow_mut(), from_host(X)).to_host().sync().tolist() == stepped(np.ones(N, f32))
    lent = w.borrow_mut()
    assert lent.to_host().sync().tolist() == contents(w)
    with pytest.raises(MovedError, match=r"was moved by to_host\(\).*lend the tensor again with \.borrow_mut\(\)"):
        lent.partition(TILE)


def test_copies_of_it() -> None:
    """`dup`, `convert` and the source of `memcpy` take it and end the loan, as they take an owned tensor."""
    w, target = new(), zeros((N,)).sync()
    assert dup(w.borrow_mut()).to_host().sync().tolist() == [1.0] * N
    assert convert(w.borrow_mut(), f64).to_host().sync().dtype == np.float64
    memcpy(target.borrow_mut(), w.borrow_mut()).sync()
    assert contents(target) == contents(w) == [1.0] * N


def test_fill_writes_it() -> None:
    """`fill` writes what is lent for writing, and gives the loan back."""
    w = new()
    lent = fill(w.borrow_mut(), 3).sync()
    assert type(lent) is TensorMut
    twice(empty((N,)).partition(TILE), lent).sync()
    assert contents(w) == [3.0] * N


def test_reshape_of_it() -> None:
    """`reshape` gives the same loan under another shape, as a method and lazily."""
    w = ones((2, 4)).sync()
    fill(w.borrow_mut().reshape((N,)), 5).sync()
    descend(value(w.borrow_mut()).reshape((N,)).partition(TILE), 1.0, ones((N,))).sync()
    assert contents(w.reshape((N,))) == [4.0] * N


# ---- pipelines and graphs


def test_as_an_argument_of_a_pipeline() -> None:
    """A pipeline takes it, reads and writes it, and gives it back; later calls take the plan of the first."""

    @pipeline
    def descent(w: TensorMut[f32], x: Tensor[f32]) -> DeviceOp[TensorMut[f32], Borrowed]:
        return step(w, x)

    weights = [new(), new()]
    for _ in range(4):
        for w in weights:
            assert type(descent(w.borrow_mut(), from_host(X).sync()).sync()) is TensorMut
    lent = weights[0].borrow_mut()
    for _ in range(2):
        lent = descent(lent, from_host(X).sync()).sync()
    assert contents(weights[0]) == stepped(np.ones(N, f32), 6)
    assert contents(weights[1]) == stepped(np.ones(N, f32), 4)
    assert descent.cache_info().misses == 1


def test_plain_ops_of_one_structure_share_a_plan() -> None:
    """An op built anew for each step takes the plan of the one before, with another tensor too."""
    for w in (new(), new()):
        for steps in range(1, 5):
            twice(twice(empty((N,)).partition(TILE), w.borrow_mut()).last().partition(TILE), ones((N,))).sync()
            assert contents(w) == [2.0] * N, steps


def test_captured_in_a_graph() -> None:
    """Each launch of a graph is one step: it locks the tensor, reads it and writes it."""
    w, x = new(), from_host(X).sync()
    graph = step(w.borrow_mut(), x.borrow()).graph()
    for _ in range(2):
        graph.launch().sync()
    assert contents(w) == stepped(np.ones(N, f32), 3)


def test_recorded_in_a_scope() -> None:
    """A scope records an op that reads a loan and one that writes it; the loan comes back from the first."""
    w, x, g = new(), from_host(X).sync(), zeros((N,)).sync()
    with CudaGraph.scope(current_device().stream()) as scope:
        made, lent, _ = scope.record(slope(g.borrow_mut().partition(TILE), w.borrow_mut(), x.borrow()))
        scope.record(descend(lent.partition(TILE), RATE, made.unpartition()))
    for _ in range(3):
        scope.graph.launch().sync()
    assert contents(w) == stepped(np.ones(N, f32), 3)


def test_put_into_a_graphs_stream() -> None:
    """`graph.update` takes an op that reads a loan, and another that writes what the first gave back."""
    w, y = new(), zeros((N,)).sync()
    graph = twice(y.borrow_mut().partition(TILE), w.borrow()).graph()
    other = zeros((N,)).sync()
    for turn in range(3):
        _, lent = graph.update(twice(other.borrow_mut().partition(TILE), w.borrow_mut()))
        graph.update(fill(lent, turn))
        graph.launch().sync()
        assert contents(y) == [2.0 * turn] * N
    assert contents(other) == [2.0] * N


def test_awaited_in_trio() -> None:
    """Under trio as blocking."""
    w = new()

    async def main() -> None:
        await step(w.borrow_mut(), from_host(X))

    trio.run(main)
    assert contents(w) == stepped(np.ones(N, f32))


# ---- still refused


def test_it_is_alone_in_a_run() -> None:
    """A second borrow in the same run conflicts, also where both only read; the message says to lend it once."""
    w: Any = new()  # mypy would refuse it
    op = zip_ops(twice(empty((N,)).partition(TILE), w.borrow_mut()), w.borrow().to_host())
    with pytest.raises(BorrowError, match=r"Lend it once, m = t\.borrow_mut\(\)"):
        op.sync()
    assert contents(w) == [1.0] * N


def test_a_conflict_within_one_op_names_both_places() -> None:
    """The message names the places of both borrows, also of the earlier one."""
    w: Any = new()  # mypy would refuse it
    written = w.borrow_mut()
    made = origin_of(written)
    assert made is not None
    line = made[0].co_firstlineno + 3
    read = w.borrow()
    with pytest.raises(BorrowError) as caught:
        zip_ops(twice(empty((N,)).partition(TILE), written), read.to_host()).sync()
    places = re.findall(rf"{re.escape(__file__)}:(\d+)", str(caught.value))
    assert [int(place) for place in places] == [line + 4, line]


@pytest.mark.parametrize("lazy", [False, True])
def test_a_writer_beside_it_in_one_call(lazy: bool) -> None:
    """A call may not read by one argument a tensor that it writes by another."""
    w = new()
    source: Any = value(w.borrow_mut()) if lazy else w.borrow_mut()
    with pytest.raises(KernelArgumentError, match="output 'y' is on the same memory as input 'x'"):
        twice(w.borrow_mut().partition(TILE), source).sync()


@pytest.mark.parametrize("other", ["itself", "reader", "writer"])
def test_a_second_loan_beside_it_in_one_call(other: str) -> None:
    """Two arguments of one call cannot both be lent one tensor where one of the loans is for writing."""
    w: Any = new()  # mypy would refuse it
    lent = w.borrow_mut()
    beside = {"itself": lent, "reader": w.borrow(), "writer": w.borrow_mut()}[other]
    with pytest.raises(KernelArgumentError, match=r"Pass \.borrow\(\) for both"):
        slope(empty((N,)).partition(TILE), lent, beside)
    slope(empty((N,)).partition(TILE), w.borrow(), w.borrow()).sync()


def test_using_it_after_it_was_passed_on() -> None:
    """Passing it to a kernel moves it: the result has it, the variable does not."""
    w = new()
    lent = w.borrow_mut()
    op = twice(empty((N,)).partition(TILE), lent)
    with pytest.raises(MovedError, match=r"use what the move gave back, or lend the tensor again with \.borrow_mut"):
        lent.partition(TILE)
    op.last().partition(TILE).sync()
