"""Every mistake that dagpu has a message for, beside the program with the message's cure applied to it, word by word.

`CASES` has one entry for each message: the wrong program, and for each cure that its message offers, the words of the
cure and the program with it. A text whose cure cannot be applied in a test stands in `LEFT_OUT`, with the reason.
"""

import asyncio
import contextlib
import copy
import importlib
import os
import pickle
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from random import Random
from typing import Any, Final, NamedTuple, final

import numpy as np
import trio
from numpy.typing import NDArray

from dagpu import (
    CostModel,
    CudaGraph,
    DeviceOp,
    In,
    Lazy,
    ListSchedule,
    Out,
    OwnershipError,
    RoundRobin,
    SingleStream,
    StreamInterpreter,
    Tensor,
    Tile,
    arange,
    convert,
    device,
    dup,
    empty,
    f32,
    f64,
    fill,
    from_host,
    full,
    i8,
    i32,
    kernel,
    linspace,
    memcpy,
    ones,
    pipeline,
    plan_of,
    rand,
    randn,
    record_origins,
    spawn,
    trace,
    u8,
    use_device,
    use_interpreter,
    value,
    zeros,
    zip_ops,
)
from dagpu.backends.explore import exploring
from tests.simulated_kernels import Violation

Program = Callable[[], object]


class Cure(NamedTuple):
    """`says` are words of the message; `program` does what they say, and succeeds."""

    says: str
    program: Program


@final
@dataclass(frozen=True)
class Case:
    """A mistake, and its cures."""

    wrong: Program
    cures: tuple[Cure, ...]
    simulated: bool = False
    """Is it about GPUs? Then it runs on simulated ones."""


CASES: Final[list[Case]] = []


def case(wrong: Program, *cures: tuple[str, Program], simulated: bool = False) -> None:
    """Add one."""
    CASES.append(Case(wrong, tuple(Cure(*cure) for cure in cures), simulated))


# ---- what the programs share --------------------------------------------------------------------------------------

N, TILE = 8, (4,)


@kernel(cuda="__global__ void add(Tile<float, 1> y, View<const float, 1> x) { for (auto i : y) y[i] += x[i]; }")
def add(y: Out[f32], x: In[f32]) -> None:
    """y += x"""


@add.host
def _(y: Tile[f32], x: NDArray[f32]) -> None:
    y[...] += x[y.at]


@kernel(cuda="__global__ void both(Tile<float, 1> z, View<const float, 1> x, View<const float, 1> y) {}")
def both(z: Out[f32], x: In[f32], y: In[f32]) -> None:
    """z = x + y"""


@both.host
def _(z: Tile[f32], x: NDArray[f32], y: NDArray[f32]) -> None:
    z[...] = x[z.at] + y[z.at]


@kernel(cuda="__global__ void split(Tile<float, 1> low, Tile<float, 1> high, View<const float, 1> x) {}")
def split(low: Out[f32], high: Out[f32], x: In[f32]) -> None:
    """low = high = x"""


@split.host
def _(low: Tile[f32], high: Tile[f32], x: NDArray[f32]) -> None:
    low[...] = x[low.at]
    high[...] = x[high.at]


@kernel(cuda="__global__ void scale(Tile<float, 1> y, float by) {}")
def scale(y: Out[f32], by: float) -> None:
    """y *= by"""


@scale.host
def _(y: Tile[f32], by: float) -> None:
    y *= by


@kernel(cuda="__global__ void lazily(Tile<float, 1> y, float by) {}")
def lazily(y: Out[f32], by: Lazy[float]) -> None:
    """y *= by"""


@lazily.host
def _(y: Tile[f32], by: float) -> None:
    y *= by


@kernel(cuda="__global__ void bytes_of(Tile<unsigned char, 1> y, unsigned char n) {}")
def bytes_of(y: Out[u8], n: int) -> None:
    """y = n"""


@bytes_of.host
def _(y: Tile[u8], n: int) -> None:
    y[...] = n


@kernel(cuda="__global__ void wide(Tile<unsigned char, 1> y, unsigned int n) {}")
def wide(y: Out[u8], n: int) -> None:
    """y = n, of a wider type"""


@wide.host
def _(y: Tile[u8], n: int) -> None:
    y[...] = n % 256


@kernel(cuda="__global__ void look(View<const float, 1> x) {}")
def look(x: In[f32]) -> None:
    """Reads, and writes nothing."""


@look.host
def _(x: NDArray[f32]) -> None:
    assert x.size


@kernel(cuda="__global__ void alone(int n) {}")
def alone(n: int) -> None:
    """Has no tensors."""


@alone.host
def _(n: int) -> None:
    assert n


loose: Any = add
"""`add`, to a type checker that shall not see what is wrong with a call."""
loose_scale: Any = scale
anything: Any = lambda x: x  # noqa: E731  # hides a type


def new(n: int = N) -> Any:
    """A tensor, whose type is hidden so that the mistakes pass the type checker."""
    return ones((n,)).sync()


def out(n: int = N) -> Any:
    return zeros((n,)).partition(TILE)


def run(op: Any) -> object:
    return op.sync()


def awaited(op: DeviceOp[Any]) -> object:
    async def main() -> object:
        return await op

    return trio.run(main)


# ---- handles: moved, lent, shared --------------------------------------------------------------------------------


def passed_twice() -> None:
    x = new()
    run(add(out(), x))
    run(add(out(), x))


def taken_back() -> None:
    x = new()
    _, x = add(out(), x).sync()
    run(add(out(), x))


def lent_to_both() -> None:
    x = new()
    run(add(out(), x.borrow()))
    run(add(out(), x.borrow()))


def shared_by_both() -> None:
    x = new().share()
    run(add(out(), x))
    run(add(out(), x))


case(
    passed_twice,
    ("use what the move gave back", taken_back),
    ("lend it with .borrow()", lent_to_both),
    ("share it with .share()", shared_by_both),
)


def cut_twice() -> None:
    t = new()
    run(add(t.partition(TILE), ones((N,))))
    run(add(t.partition(TILE), ones((N,))))


def cut_and_taken_back() -> None:
    t = new()
    p, _ = add(t.partition(TILE), ones((N,))).sync()
    run(add(p.unpartition().partition(TILE), ones((N,))))


def lent_for_writing_twice() -> None:
    t = new()
    run(add(t.borrow_mut().partition(TILE), ones((N,))))
    run(add(t.borrow_mut().partition(TILE), ones((N,))))


case(
    cut_twice,
    ("use what the move gave back", cut_and_taken_back),
    ("lend it for writing: .borrow_mut().partition(tile)", lent_for_writing_twice),
)


def cut_and_read() -> None:
    t = new()
    run(add(t.partition(TILE), t))


def read_into_another() -> None:
    t = new()
    run(add(empty((N,)).partition(TILE), t))


case(cut_and_read, ("write to memory of its own, empty(shape).partition(tile), and read this", read_into_another))


def op_cut_and_read() -> None:
    x = ones((N,))
    run(loose(x.partition(TILE), x))


def op_read_into_another() -> None:
    x = ones((N,))
    run(add(empty((N,)).partition(TILE), x))


case(
    op_cut_and_read,
    ("write to memory of its own there, empty(shape).partition(tile)", op_read_into_another),
    ("build the op once for each use", lambda: run(add(ones((N,)).partition(TILE), ones((N,))))),
)


def loan_used_twice() -> None:
    t = new()
    m = t.borrow_mut()
    run(add(m.partition(TILE), ones((N,))))
    run(add(m.partition(TILE), ones((N,))))


def loan_taken_back() -> None:
    m = new().borrow_mut()
    p, _ = add(m.partition(TILE), ones((N,))).sync()
    run(add(p.unpartition().partition(TILE), ones((N,))))


case(
    loan_used_twice,
    ("use what the move gave back", loan_taken_back),
    ("lend the tensor anew with .borrow_mut()", lent_for_writing_twice),
)


def unwrapped_and_used() -> None:
    s = new().share()
    s.try_unwrap()
    run(add(out(), s))


def unwrapped_and_taken() -> None:
    s = new().share()
    run(add(out(), s.try_unwrap()))


def unwrapped_and_shared() -> None:
    run(add(out(), new().share().try_unwrap().share()))


case(
    unwrapped_and_used,
    ("use what the move gave back", unwrapped_and_taken),
    ("share that anew with .share()", unwrapped_and_shared),
)


def partition_used_twice() -> None:
    p = new().partition(TILE)
    run(add(p, ones((N,))))
    run(add(p, ones((N,))))


def partition_taken_back() -> None:
    p = new().partition(TILE)
    p, _ = add(p, ones((N,))).sync()
    run(add(p, ones((N,))))


case(partition_used_twice, ("use what the move gave back", partition_taken_back))


def run_twice() -> None:
    op = dup(new())
    run(op)
    run(op)


def run_twice_of_a_loan() -> None:
    t = new()
    op = dup(t.borrow())
    run(op)
    run(op)


def run_twice_of_shared() -> None:
    op = dup(new().share())
    run(op)
    run(op)


case(run_twice, ("lend it with .borrow()", run_twice_of_a_loan), ("share it with .share()", run_twice_of_shared))


def loan_outlives() -> None:
    t = new()
    r = t.borrow()
    t.share()
    run(add(out(), r))


def loan_used_before() -> None:
    t = new()
    run(add(out(), t.borrow()))
    t.share()


def shared_instead() -> None:
    s = new().share()
    run(add(out(), s))


case(
    loan_outlives, ("Use the borrow before the tensor moves", loan_used_before), ("share() the tensor", shared_instead)
)


def not_the_last() -> None:
    s = new().share()
    other = s.clone()
    s.try_unwrap()
    assert other.shape


def clone_dropped() -> None:
    s = new().share()
    other = s.clone()
    del other
    s.try_unwrap()


def copied_instead() -> None:
    s = new().share()
    other = s.clone()
    assert dup(s).sync().shape == other.shape


case(
    not_the_last,
    ("Drop the clones", clone_dropped),
    ("copy it with dup(t)", copied_instead),
)


def unwrapped_while_it_is_read() -> None:
    s = new().share()
    zip_ops(add(out(), s).map(lambda _: None), value(0).host_map(lambda _: s.try_unwrap())).sync()


def unwrapped_after_it_was_read() -> None:
    s = new().share()
    run(add(out(), s).map(lambda _: None))
    s.try_unwrap()


case(unwrapped_while_it_is_read, ("copy it with dup(t)", copied_instead))
case(lambda: np.asarray(new()), ("Get them with .to_host()", lambda: np.asarray(new().to_host().sync())))
case(
    lambda: zeros((1,)).map(lambda t: float(anything(t))).sync(),
    ("Get them with .to_host()", lambda: zeros((1,)).to_host().map(lambda a: float(a[0])).sync()),
)
case(
    lambda: len(anything(new().partition(TILE))),
    (
        "Put it together with .unpartition(), and get them with .to_host()",
        lambda: len(new().partition(TILE).unpartition().to_host().sync()),
    ),
)


def shared_graph_output() -> None:
    graph = add(out(), ones((N,))).graph()
    p, _ = graph.take_output()
    p.unpartition().share()


def graph_output() -> Any:
    graph = add(out(), ones((N,))).graph()
    return graph, graph.take_output()[0].unpartition()


def copied_graph_output() -> None:
    graph, t = graph_output()
    dup(t.borrow()).sync().share()
    graph.launch().sync()


def lent_graph_output() -> None:
    graph, t = graph_output()
    run(add(out(), t.borrow()))
    graph.launch().sync()


case(
    shared_graph_output,
    ("Copy it with dup(t.borrow())", copied_graph_output),
    ("read it with t.borrow()", lent_graph_output),
)

# ---- partition, unpartition, share, reshape of something else ------------------------------------------------------

case(
    lambda: anything(add(out(), ones((N,)))).unpartition().sync(),
    (".first()", lambda: add(out(), ones((N,))).first().unpartition().sync()),
    (".unzip()", lambda: add(out(), ones((N,))).unzip()[0].unpartition().sync()),
)
case(
    lambda: anything(out()).share().sync(),
    ("Put it together first: .unpartition()", lambda: out().unpartition().share().sync()),
)
case(
    lambda: anything(add(out(), ones((N,)))).last().unpartition().sync(),
    ("Leave that out", lambda: add(out(), ones((N,))).last().sync()),
    ("pick the output", lambda: add(out(), ones((N,))).first().unpartition().sync()),
)
case(
    lambda: anything(zeros((N,)).share()).share().sync(),
    ("It is shared already: .clone()", lambda: zeros((N,)).share().map(lambda s: (s, s.clone())).sync()),
)


def share_of_a_loan() -> None:
    t = new()
    run(anything(value(t.borrow())).share())


def share_of_the_lender() -> None:
    run(value(new().share()))


case(share_of_a_loan, ("share the tensor that it was lent from", share_of_the_lender))
case(
    lambda: add(new().share().partition(TILE), ones((N,))).sync(),
    ("write to a copy, dup(t)", lambda: add(dup(new().share()).partition(TILE), ones((N,))).sync()),
    ("to an empty(shape)", lambda: both(empty((N,)).partition(TILE), ones((N,)), ones((N,))).sync()),
)
case(
    lambda: add(new().borrow().partition(TILE), ones((N,))).sync(),
    ("lend the tensor for writing, .borrow_mut().partition(tile)", lent_for_writing_twice),
)
case(
    lambda: anything(value(np.ones(N, f32))).partition(TILE).sync(),
    ("from_host(array) makes one", lambda: from_host(np.ones(N, f32)).partition(TILE).sync()),
)

# ---- shapes and tiles ----------------------------------------------------------------------------------------------

case(lambda: zeros(anything(4)), ("Write it as (4,)", lambda: zeros((4,)).sync()))
case(lambda: zeros(anything(2.5)), ("(rows, columns), or (n,) for one axis", lambda: zeros((2, 3)).sync()))
case(lambda: zeros((1 << 70, 0)), ("Write smaller ones beside the 0", lambda: zeros((1 << 40, 0)).sync()))
case(lambda: zeros((-1,)), ("Extents count elements: 0 or more", lambda: zeros((0,)).sync()))
case(lambda: new().reshape((3, 3)), ("Give a shape with as many elements", lambda: new().reshape((2, 4))))


def strided_reshape() -> None:
    t = new()
    t.slice(slice(None, None, 2)).reshape((2, 2))


def copied_reshape() -> None:
    t = new()
    run(dup(t.slice(slice(None, None, 2))).reshape((2, 2)))


case(strided_reshape, ("Make them so with dup(...) first", copied_reshape))
case(
    lambda: new().slice(slice(1), slice(1)),
    ("Give at most one for each axis", lambda: new().slice(slice(1))),
)
case(lambda: new().slice(1), ("Write slice(start, stop)", lambda: new().slice(slice(1, 3))))
case(
    lambda: new().slice(slice(0, 4, 0)),
    ("Use whole numbers and a step that is not 0", lambda: new().slice(slice(0, 4, 2))),
)
case(
    lambda: new().partition(TILE, partial=3),
    ("Say partial=True, or leave it out", lambda: new().partition(TILE, partial=True)),
    ("leave it out", lambda: new().partition(TILE)),
)
case(lambda: new().partition((4, 4)), ("Give one tile extent for each axis", lambda: new().partition((4,))))
case(lambda: new().partition((0,)), ("A tile has at least 1", lambda: new().partition((1,))))
case(
    lambda: new().partition((3,)),
    ("Choose a tile that divides it", lambda: new().partition((2,))),
    ("say partial=True", lambda: new().partition((3,), partial=True)),
)

# ---- two parts of one op, and two runs ------------------------------------------------------------------------------


def reader_and_writer() -> None:
    t = new()
    g = add(zeros((N,)).partition(TILE), t.borrow()).first().unpartition()
    run(add(t.borrow_mut().partition(TILE), g))


def lent_once() -> None:
    t = new()
    m = t.borrow_mut()
    g, back = add(zeros((N,)).partition(TILE), m).unzip()
    run(add(back.partition(TILE), g.unpartition()))


def two_ops() -> None:
    t = new()
    g = add(zeros((N,)).partition(TILE), t.borrow()).first().unpartition().sync()
    run(add(t.borrow_mut().partition(TILE), g))


case(
    reader_and_writer,
    ("Lend it once, m = t.borrow_mut(): a kernel takes m as an input too", lent_once),
    ("Or run the two parts as two ops, one after the other", two_ops),
)


def two_writers() -> None:
    t = new()
    run(zip_ops(scale(t.borrow_mut().partition(TILE), 2.0), scale(t.borrow_mut().partition(TILE), 3.0)))


def one_writer_after_the_other() -> None:
    t = new()
    m = t.borrow_mut()
    run(scale(scale(m.partition(TILE), 2.0).first(), 3.0))


def two_ops_that_write() -> None:
    t = new()
    run(scale(t.borrow_mut().partition(TILE), 2.0))
    run(scale(t.borrow_mut().partition(TILE), 3.0))


case(
    two_writers,
    ("Lend it once, m = t.borrow_mut()", one_writer_after_the_other),
    ("Or run the two parts as two ops", two_ops_that_write),
)


def used_twice() -> None:
    source = ones((N,))
    run(zip_ops(source, source))


def used_twice_shared() -> None:
    source = ones((N,)).shared()
    run(zip_ops(source, source))


def built_twice() -> None:
    run(zip_ops(ones((N,)), ones((N,))))


case(used_twice, ("say .shared()", used_twice_shared), ("build the op once for each use", built_twice))


def component_twice() -> None:
    a, _ = zip_ops(ones((N,)), value(1)).unzip()
    run(a)
    run(a)


def component_shared() -> None:
    a, _ = zip_ops(ones((N,)), value(1)).unzip()
    s = a.shared()
    run(s)
    run(s)


case(component_twice, ("Say .shared()", component_shared))
case(
    lambda: zip_ops(ones((N,)), ones((N,))).shared().sync(),
    (
        "unzip() first, and share the parts",
        lambda: zip_ops(*[part.shared() for part in zip_ops(ones((N,)), ones((N,))).unzip()]).sync(),
    ),
)
case(
    lambda: ones((N,)).partition(TILE).shared().sync(),
    (
        "Put it together first: .unpartition().shared()",
        lambda: ones((N,)).partition(TILE).unpartition().shared().sync(),
    ),
)


def run_shared(cut: bool) -> None:
    lent = new().borrow_mut()
    run(value(lent.partition(TILE) if cut else lent).shared())


def passed_on() -> None:
    t = new()
    _, lent = add(out(), t.borrow_mut()).unzip()
    add(out(), lent).sync()


def lent_for_reading() -> None:
    t = new()
    both(out(), t.borrow(), t.borrow()).sync()


for cut in (False, True):
    case(
        partial(run_shared, cut),
        ("pass on what each call gives back", passed_on),
        ("lend the tensor for reading, t.borrow(), as often as it is read", lent_for_reading),
    )
case(
    lambda: value(1).map(lambda _: (1, 2)).unzip(3)[0].sync(),
    ("Say unzip(2)", lambda: value(1).map(lambda _: (1, 2)).unzip(2)[0].sync()),
)
case(
    lambda: value(1).map(lambda _: ()).unzip(2)[0].sync(),
    ("Let the op give a tuple of 2", lambda: value(1).map(lambda x: (x, str(x))).unzip(2)[0].sync()),
)
case(
    lambda: anything(value(1).map(str)).unzip(2)[0].sync(),
    ("Let the op give a tuple of 2", lambda: value(1).map(lambda x: (x, str(x))).unzip(2)[0].sync()),
)
case(
    lambda: anything(value(1).map(str)).unzip(),
    ("Say how many: unzip(2)", lambda: value(1).map(lambda x: (x, x)).unzip(2)[0].sync()),
)
case(
    lambda: zip_ops(value(1), value(2)).unzip(3),
    ("Say unzip()", lambda: zip_ops(value(1), value(2)).unzip()[0].sync()),
)
case(
    lambda: zip_ops(value(1), value(2)).unzip(anything("2")),
    ("Write unzip(2)", lambda: zip_ops(value(1), value(2)).unzip(2)[0].sync()),
)


def own_result() -> None:
    box: list[DeviceOp[Any]] = []
    box.append(value(1).then(lambda _: box[0]).shared())
    run(box[0])


case(
    own_result,
    ("Let the closure build an op of its own", lambda: value(1).then(lambda _: value(2)).shared().sync()),
)


def while_it_is_written(work: Callable[[Any, Any], DeviceOp[Any]]) -> object:
    """While one run writes a tensor, another one is awaited: `work` of the tensor and of a copy made before."""
    t = new()
    copy = dup(t.borrow()).sync()
    begun, go_on = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        begun.set()
        go_on.wait(30)

    async def main() -> object:
        async with trio.open_nursery() as nursery:

            async def write() -> None:
                await zip_ops(scale(t.borrow_mut().partition(TILE), 2.0).map(lambda _: None), value(0).host_map(hold))

            nursery.start_soon(write)
            await trio.to_thread.run_sync(begun.wait, 30)
            try:
                return await work(t, copy)
            finally:
                go_on.set()

    with suppressed_groups():
        return trio.run(main)


@contextlib.contextmanager
def suppressed_groups() -> Iterator[None]:
    """One error of a nursery as itself."""
    try:
        yield
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


def written_and_then_read() -> None:
    t = new()

    async def main() -> None:
        await scale(t.borrow_mut().partition(TILE), 2.0)
        await add(out(), t.borrow())

    trio.run(main)


case(
    lambda: while_it_is_written(lambda t, _: add(out(), t.borrow())),
    ("Await that run first", written_and_then_read),
    (
        "work on a copy that was made before it: dup(t.borrow())",
        lambda: while_it_is_written(lambda _, copy: add(out(), copy.borrow())),
    ),
)

# ---- kernels: the arguments of a call -------------------------------------------------------------------------------

case(
    lambda: loose(out(), ones((N,)), 3, 4),
    ("Leave the rest out", lambda: loose(out(), ones((N,))).sync()),
)


@kernel(cuda="__global__ void named(Tile<float, 1> y, float by, float shift) {}")
def named(y: Out[f32], by: float, *, shift: float = 0.0) -> None:
    """y = by y + shift"""


@named.host
def _(y: Tile[f32], by: float, shift: float) -> None:
    y[...] = by * y + shift


@kernel(cuda="__global__ void placed(Tile<float, 1> y, float by) {}")
def placed(y: Out[f32], by: float, /) -> None:
    """y *= by"""


@placed.host
def _(y: Tile[f32], by: float) -> None:
    y *= by


loose_named: Any = named
loose_placed: Any = placed

case(
    lambda: loose_named(out(), 2.0, 1.0),
    ("pass it by name", lambda: named(out(), 2.0, shift=1.0).sync()),
)
case(
    lambda: loose_placed(out(), by=2.0),
    ("Match the call to the declaration", lambda: placed(out(), 2.0).sync()),
)
case(
    lambda: loose_scale(out(), factor=2.0),
    ("Match the call to the declaration", lambda: scale(out(), by=2.0).sync()),
)
case(lambda: loose_scale(out(), 2.0, by=2.0), ("Pass it once", lambda: scale(out(), 2.0).sync()))
case(
    lambda: loose_scale(out()),
    ("Pass an argument for every parameter without a default", lambda: scale(out(), 2.0).sync()),
)
case(
    lambda: look(ones((N,))).sync(),
    ("Give the grid: look.grid(...)(...)", lambda: look.grid(1)(ones((N,))).sync()),
)
case(
    lambda: alone.grid(1)(1).sync(),
    ("Give it an output", lambda: bytes_of(empty((N,), u8).partition(TILE), 1).sync()),
)
case(
    lambda: loose_scale(out(), value(2.0)).sync(),
    ("Annotate the parameter Lazy[...]", lambda: lazily(out(), value(2.0)).sync()),
    ("call the kernel inside .then(...) on the number", lambda: value(2.0).then(lambda by: scale(out(), by)).sync()),
)
case(
    lambda: loose_scale(out(), np.array([2], f32)),
    ("Take the number out of it: array.item()", lambda: scale(out(), np.array([2], f32).item()).sync()),
)
case(
    lambda: loose_scale(out(), ones((1,)).sync()),
    (
        "Take the number out of it first, on the host: .to_host()",
        lambda: scale(out(), ones((1,)).sync().to_host().sync().item()).sync(),
    ),
)
case(
    lambda: loose_scale(out(), "2"),
    ("Convert it with float(...) if that is meant", lambda: scale(out(), float("2")).sync()),
)
case(
    lambda: loose(out(), add(out(), ones((N,)))).sync(),
    (".first()", lambda: add(out(), add(out(), ones((N,))).first().unpartition()).sync()),
    (".unzip()", lambda: add(out(), add(out(), ones((N,))).unzip()[1]).sync()),
)
case(
    lambda: loose(new().share(), ones((N,))),
    ("write to a copy, dup(t).partition(tile)", lambda: add(dup(new().share()).partition(TILE), ones((N,))).sync()),
    ("to an empty(...).partition(tile)", lambda: both(empty((N,)).partition(TILE), ones((N,)), ones((N,))).sync()),
)
case(
    lambda: loose(new().borrow(), ones((N,))),
    ("lend it for writing, .borrow_mut().partition(tile)", lent_for_writing_twice),
)
case(
    lambda: loose(new(), ones((N,))),
    ("Cut it into tiles: .partition((...,))", lambda: add(new().partition((4,)), ones((N,))).sync()),
)
case(
    lambda: loose(out(), new().partition(TILE)),
    ("Put it together: .unpartition()", lambda: add(out(), new().partition(TILE).unpartition()).sync()),
)
case(
    lambda: loose(out(), np.ones(N, f32)),
    ("from_host(array)", lambda: add(out(), from_host(np.ones(N, f32))).sync()),
)
case(
    lambda: loose(np.ones(N, f32), ones((N,))),
    ("from_host(array).partition((...,))", lambda: add(from_host(np.ones(N, f32)).partition((4,)), ones((N,))).sync()),
)
case(
    lambda: loose(out(), [1, 2, 3, 4, 5, 6, 7, 8]),
    (
        "from_host(np.asarray(..., f32))",
        lambda: add(out(), from_host(np.asarray([1, 2, 3, 4, 5, 6, 7, 8], f32))).sync(),
    ),
)
case(
    lambda: loose_scale(2.0, out()),
    ("check the order of the arguments", lambda: scale(out(), 2.0).sync()),
)
case(
    lambda: loose(out(), ones((N,), f64).sync()),
    ("convert(t, f32)", lambda: add(out(), convert(ones((N,), f64).sync(), f32)).sync()),
)
case(
    lambda: loose(out(), ones((N,), f64)).sync(),
    (
        "for an op .then(lambda t: convert(t, f32))",
        lambda: add(out(), ones((N,), f64).then(lambda t: convert(t, f32))).sync(),
    ),
)
case(
    lambda: loose(zeros((N,), f64).sync().partition(TILE), ones((N,))),
    (
        "Convert it before it is cut: convert(t, f32)",
        lambda: add(convert(zeros((N,), f64).sync(), f32).partition(TILE), ones((N,))).sync(),
    ),
)
case(
    lambda: add(out(), ones((2, 4))).sync(),
    ("Reshape it with .reshape(shape)", lambda: add(out(), ones((2, 4)).reshape((8,))).sync()),
)


def declare_flat(rank: int) -> Any:
    @kernel(cuda="__global__ void flat(Tile<float, %d> y) {}" % rank)  # noqa: UP031  # the braces are CUDA's
    def flat(y: Out[f32]) -> None: ...

    @flat.host
    def _(y: Tile[f32]) -> None:
        y[...] = 1

    return flat


case(
    lambda: declare_flat(1)(zeros((2, 4)).partition((2, 2))).sync(),
    (
        "Reshape it before it is cut with .reshape(shape)",
        lambda: declare_flat(1)(zeros((2, 4)).reshape((8,)).partition((4,))).sync(),
    ),
    ("declare that rank in CUDA", lambda: declare_flat(2)(zeros((2, 4)).partition((2, 2))).sync()),
)


def one_tensor_twice() -> None:
    x = new()
    run(both(out(), x, x))


def one_tensor_shared() -> None:
    t = new()
    t = t.share()
    run(both(out(), t, t))


case(one_tensor_twice, ("Share it: t = t.share()", one_tensor_shared))


def one_partition_twice() -> None:
    p = new().partition(TILE)
    run(split(p, p, ones((N,))))


case(
    one_partition_twice,
    ("Give each output memory of its own", lambda: split(out(), out(), ones((N,))).sync()),
)


def two_outputs_on_one() -> None:
    t = new()
    run(split(t.borrow_mut().partition(TILE), t.borrow_mut().partition(TILE), ones((N,))))


case(
    two_outputs_on_one,
    (
        "Write each to memory of its own, empty(shape).partition(tile)",
        lambda: split(empty((N,)).partition(TILE), empty((N,)).partition(TILE), ones((N,))).sync(),
    ),
)


def output_and_input() -> None:
    t = new()
    run(both(t.borrow_mut().partition(TILE), t.borrow(), ones((N,))))


def memory_of_its_own() -> None:
    t = new()
    run(both(empty((N,)).partition(TILE), t.borrow(), ones((N,))))


def copy_made_before() -> None:
    t = new()
    copy = dup(t.borrow()).sync()
    run(both(t.borrow_mut().partition(TILE), copy, ones((N,))))


case(
    output_and_input,
    ("Write to memory of its own, empty(shape).partition(tile)", memory_of_its_own),
    ("read a copy that was made before: dup(t.borrow()).sync()", copy_made_before),
)


def tensor_and_its_loan() -> None:
    t = new()
    run(both(out(), t, t.borrow()))


def borrowed_for_both() -> None:
    t = new()
    run(both(out(), t.borrow(), t.borrow()))


case(
    tensor_and_its_loan,
    ("Pass .borrow() for both", borrowed_for_both),
    ("share it: t = t.share()", one_tensor_shared),
)


def loan_for_writing_twice() -> None:
    m = new().borrow_mut()
    run(both(out(), m, m))


case(loan_for_writing_twice, ("Pass .borrow() for both: a kernel may read one tensor twice", borrowed_for_both))
case(
    lambda: split(out(), zeros((16,)).sync().partition(TILE), ones((16,))).sync(),
    ("Cut both into equally many tiles", lambda: split(out(), zeros((16,)).partition((8,)), ones((16,))).sync()),
)
case(
    lambda: split(new().partition((4,)), new().partition((8,)), ones((N,))),
    (
        "give the grid: split.grid(...)(...)",
        lambda: split.grid(1)(new().partition((8,)), new().partition((4,)), ones((N,))).sync(),
    ),
)
case(
    lambda: bytes_of(empty((N,), u8).partition(TILE), 256),
    ("Pass one in the range", lambda: bytes_of(empty((N,), u8).partition(TILE), 255).sync()),
    ("declare a wider type", lambda: wide(empty((N,), u8).partition(TILE), 256).sync()),
)
case(
    lambda: anything(bytes_of)(empty((N,), u8).partition(TILE), 2.0),
    ("Convert it with int(...) if that is meant", lambda: bytes_of(empty((N,), u8).partition(TILE), int(2.0)).sync()),
)
case(
    lambda: scale(out(), 1e60),
    ("Pass one in the range", lambda: scale(out(), 1e30).sync()),
)
case(
    lambda: scale.block(2048),
    ("A block has at most 1024", lambda: scale.block(1024)(out(), 2.0).sync()),
)
case(
    lambda: scale.grid(0),
    ("Give 1 to 3 whole numbers, each 1 or more", lambda: scale.grid(2)(out(), 2.0).sync()),
)
case(
    lambda: scale.shared_memory(-1),
    ("Give a number of bytes, 0 or more", lambda: scale.shared_memory(64)(out(), 2.0).sync()),
)
case(
    lambda: add(zeros((N,)).on("host:0").partition(TILE), ones((N,)).on("host:1")).sync(),
    (
        'dup(t).on("host:0")',
        lambda: add(
            zeros((N,)).on("host:0").partition(TILE), ones((N,)).on("host:1").then(lambda t: dup(t).on("host:0"))
        ).sync(),
    ),
    ('op.on("host:0")', lambda: add(zeros((N,)).on("host:0").partition(TILE), ones((N,)).on("host:0")).sync()),
)

# ---- kernels: declarations -----------------------------------------------------------------------------------------

SCALE = "__global__ void k(Tile<float, 1> y, float by) {}"


def declare(source: Any = SCALE, annotated: Any = None, **options: Any) -> Any:
    """Declare a kernel `k`; `annotated` is the Python function, `(y: Out[f32], by: float)` unless given."""
    if annotated is None:

        def k(y: Out[f32], by: float) -> None: ...

        annotated = k
    annotated.__name__ = "k"
    return kernel(cuda=source, **options)(annotated)


def declared_body(body: Any) -> Any:
    made = declare()
    made.host(body)
    return made


def a_body(y: Any, by: float) -> None:
    """A right one for `k`."""


def first_body(y: Any) -> None:
    """A wrong one."""


def set_twice() -> None:
    made = declare()
    made.host(a_body)
    made.host(a_body)


def yielding(y: Any, by: float) -> Iterator[Any]:
    yield y


case(lambda: declared_body(3), ("Decorate a function with @kernel.host", lambda: declared_body(a_body)))
case(
    lambda: declared_body(yielding),
    ("Write a plain function: def, with no await and no yield", lambda: declared_body(a_body)),
)
case(set_twice, ("Keep one of them", lambda: declared_body(a_body)))
case(
    lambda: declared_body(type("Odd", (), {"__call__": 3, "__signature__": 3})()),
    ("Wrap it in a Python function", lambda: declared_body(lambda y, by: None)),
)
case(
    lambda: declared_body(first_body),
    ("Give the body the kernel's parameters in their order", lambda: declared_body(a_body)),
)
case(
    lambda: scale.compile(),
    ("on the host, which compiles nothing", lambda: scale(out(), 2.0).sync()),
)
case(lambda: anything(kernel)(a_body), ("Write @kernel(cuda=...)", lambda: kernel(cuda=SCALE)))
case(
    lambda: anything(kernel)(SCALE),
    ("Write @kernel(cuda=...)", lambda: kernel(cuda=SCALE)),
)
case(lambda: kernel(cuda=SCALE)(anything(print)), ("Decorate a `def`", declare))
case(lambda: declare(abi="c"), ("Give 'views' or 'pointers'", lambda: declare(abi="views")))
case(
    lambda: declare(options="-lineinfo"),
    ('Give a sequence of texts: ("-lineinfo",)', lambda: declare(options=("-lineinfo",))),
)
case(
    lambda: declare(in_place=1),
    ("Say in_place=True", lambda: declare(in_place=True)),
    ("leave it out", declare),
)
case(lambda: declare(3), ("Give CUDA C++ source text", declare))


def written(text: bytes) -> Any:
    """A source in a file."""
    Path("k.cu").write_bytes(text)
    return declare(Path("k.cu").absolute())


case(
    lambda: declare("there/is/none.cu"),
    ("A relative path starts at the declaring module's folder", lambda: written(SCALE.encode())),
)
case(
    lambda: written(b"\xff\xfe"),
    ("A relative path starts at the declaring module's folder", lambda: written(SCALE.encode())),
)
case(
    lambda: declare(block=(0,)),
    ("Give 1 to 3 whole numbers, each 1 or more", lambda: declare(block=(32,))),
)


def starred(*y: Out[f32]) -> None: ...
def bare(y: Out[f32], by) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001  # reason: that is the mistake
def defaulted(y: Out[f32] = None, by: float = 1.0) -> None: ...  # type: ignore[assignment]  # reason: the mistake
def texted(y: "Out[f32]", by: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821  # reason: the mistake
def listed(y: Out[f32], by: list[int]) -> None: ...
def arrayed(y: Out[f32], by: NDArray[f32]) -> None: ...
def handled(y: Tensor[f32], by: float) -> None: ...
def element_less(y: Out, by: float) -> None: ...  # type: ignore[type-arg]  # reason: the mistake
def odd_element(y: Out[np.complex64], by: float) -> None: ...
def right(y: Out[f32], by: float) -> None: ...
def two_numbers(y: Out[f32], by: float, n: int) -> None: ...
def of_ints(y: Out[i32], by: float) -> None: ...
def an_input(y: In[f32], by: float) -> None: ...
def out_of_range(y: Out[f32], by: float = 1e60) -> None: ...
def swapped(by: float, y: Out[f32]) -> None: ...
def by_array(y: Out[f32], by: In[f32]) -> None: ...
def by_int(y: Out[f32], by: int) -> None: ...


ANNOTATED = "Annotate it In[f32] (read), Out[f32] (written), int, float"


def fresh(function: Any) -> Any:
    """A function of its own for each declaration."""
    import types

    copy = types.FunctionType(function.__code__, function.__globals__, "k", function.__defaults__, function.__closure__)
    copy.__annotations__ = dict(function.__annotations__)
    return copy


case(lambda: declare(annotated=fresh(starred)), ("Name every parameter", lambda: declare(annotated=fresh(right))))
for wrong in (bare, listed, arrayed, handled, element_less, odd_element):
    case(partial(lambda w: declare(annotated=fresh(w)), wrong), (ANNOTATED, lambda: declare(annotated=fresh(right))))
case(
    lambda: declare(annotated=fresh(defaulted)),
    ("Leave the default out: a handle can be moved into one call only", lambda: declare(annotated=fresh(right))),
)
case(
    lambda: declare(annotated=fresh(texted)),
    ("Have every name in it defined when the kernel is declared", lambda: declare(annotated=fresh(right))),
)
case(
    lambda: declare(annotated=fresh(out_of_range)),
    ("Pass one in the range".lower(), lambda: declare(annotated=fresh(right))),
)

ONE = "Tile<float, 1> y"


def cuda(parameters: str, more: str = "") -> str:
    return f"{more}__global__ void k({parameters}) {{}}"


for source, says, better in (
    (cuda(f"{ONE}, float& by"), "Kernels take parameters by value: drop the '&'", SCALE),
    (cuda(f"{ONE}, Odd by"), "Write the C type out (float, double", SCALE),
    (cuda(f"{ONE}, A by", "#if X\ntypedef float A;\n#else\ntypedef int A;\n#endif\n"), "Write the C type out", SCALE),
    (cuda(f"{ONE}, float** by"), "Pass one flat array and its extents", SCALE),
    (cuda(f"{ONE},\n#if X\nfloat by\n#endif\n"), "Take the condition out of the parameter list", SCALE),
    (cuda("float* y, float by"), "Declare Tile<float, N> (output) or View<const float, N> (input)", SCALE),
    (cuda("Tile<float, 1>* y, float by"), "Pass the Tile by value: drop the '*'", SCALE),
    (
        cuda("Tile<float> y, float by"),
        "Give the element type and the rank as a number of 1 or more, as in Tile<float, 2>",
        SCALE,
    ),
    (cuda("Tile<Odd, 1> y, float by"), "Write the C type out", SCALE),
    (cuda("Vector<float, 1> y, float by"), "Take Tile<T, N>, View<const T, N> or scalars", SCALE),
    (cuda(f"{ONE}, auto by"), "Write the C type out", SCALE),
    (cuda(f"{ONE}, const by"), "Write the C type out", SCALE),
    (cuda(f"{ONE}, float by", "template <typename T> "), "Write the types out", SCALE),
    ("__global__ void k(Tile<float, 1> y, float by", "Add the missing ')'", SCALE),
    (
        SCALE + cuda(f"{ONE}"),
        "give each overload a name of its own",
        SCALE + "__global__ void other(Tile<float, 1> y) {}",
    ),
    (
        "__global__ void other(Tile<float, 1> y, float by) {}",
        "Give the Python function and the CUDA kernel one name",
        SCALE,
    ),
    (
        "void k(Tile<float, 1> y, float by) {}",
        "has 'k(' with no __global__ to be seen before it: write it there",
        SCALE,
    ),
    (cuda(f"{ONE}"), "2 parameters in Python, 1 in CUDA", SCALE),
):
    case(partial(declare, source), (says, partial(declare, better)))

case(
    lambda: declare(cuda(f"{ONE}, float by"), abi="pointers"),
    ("Declare float* (output) or const float* (input)", lambda: declare(cuda("float* y, float by"), abi="pointers")),
    ("leave abi='pointers' out", declare),
)
case(
    lambda: declare(cuda("float* y, float by")),
    ("or use abi='pointers'", lambda: declare(cuda("float* y, float by"), abi="pointers")),
)
DISAGREE: Final[list[tuple[Any, str, str]]] = [
    (of_ints, SCALE, "Declare 'Tile<int, 1> y'"),
    (an_input, SCALE, "Declare 'View<const float, 1> y'"),
    (right, cuda("View<const float, 1> y, float by"), "Declare 'Tile<float, 1> y'"),
    (right, cuda("View<float, 1> y, float by"), "Declare 'Tile<float, 1> y'"),
    (an_input, cuda("View<float, 1> y, float by"), "Declare 'View<const float, 1> y'"),
    (swapped, SCALE, "the Python parameter 'y' is number 2"),
    (by_array, SCALE, "a scalar against an array"),
    (by_int, SCALE, "Declare 'int by'"),
    (two_numbers, SCALE, "nothing stands against"),
]
for wrong_function, declared_source, says in DISAGREE:
    case(
        partial(lambda w, s: declare(s, fresh(w)), wrong_function, declared_source),
        (says, lambda: declare(annotated=fresh(right))),
    )
case(
    lambda: declare(cuda("const float* y, float by"), fresh(right), abi="pointers"),
    ("an output is not const", lambda: declare(cuda("float* y, float by"), fresh(right), abi="pointers")),
)
case(
    lambda: declare(cuda("float* y, float by"), fresh(an_input), abi="pointers"),
    ("an input is const", lambda: declare(cuda("const float* y, float by"), fresh(an_input), abi="pointers")),
)

# ---- kernels: host bodies ------------------------------------------------------------------------------------------


def of_body(body: Any, *, x: int = N, times: int = 1) -> Any:
    """A kernel `k(y, x)` with this host body, called."""

    @kernel(cuda="__global__ void k(Tile<float, 1> y, View<const float, 1> x) {}")
    def k(y: Out[f32], x: In[f32]) -> None: ...

    if body is not None:
        k.host(body)
    del times
    return k(out(), ones((x,))).sync()


def adds(y: Any, x: Any) -> None:
    y[...] += x[y.at]


def returns(y: Any, x: Any) -> Any:
    return y + x[y.at]


def adds_at_most(y: Any, x: Any) -> None:
    (rows,) = y.at
    part = x[rows.start : min(rows.stop, x.shape[0])]
    y[: len(part)] += part


def places_of_a_view(y: Any, x: Any) -> None:
    y[...] += x[y[:2].at]


case(lambda: of_body(returns), ("Write the result into the output's tile: y[...] = ...", lambda: of_body(adds)))
case(lambda: of_body(None), ("Give it one with @k.host", lambda: of_body(adds)))
case(
    lambda: of_body(adds, x=6),
    ("Give the kernel an input that covers the output", lambda: of_body(adds, x=8)),
    ("cut the slice in its host body: min(8, x.shape[0])", lambda: of_body(adds_at_most, x=6)),
)
case(
    lambda: of_body(places_of_a_view),
    ("Take .at from the tile that the host body was given", lambda: of_body(adds)),
)

# ---- creating and copying ------------------------------------------------------------------------------------------

case(lambda: zeros((2,), anything(object)), ("Use one of f16 bf16 f32", lambda: zeros((2,), f32).sync()))
case(
    lambda: rand((2,), anything(i32)),
    ("Use f16, bf16, f32 or f64, and convert", lambda: rand((2,), f32).then(lambda t: convert(t, i32)).sync()),
)
case(lambda: rand((2,), seed=anything("x")), ("Write seed=17, say", lambda: rand((2,), seed=17).sync()))
case(lambda: rand((2,), seed=anything(1.5)), ("leave it out: each run draws one then", lambda: rand((2,)).sync()))
case(
    lambda: linspace(anything(1j), 2, 3),
    ("Take its .real or .imag", lambda: linspace((1j).real, 2, 3).sync()),
)
case(lambda: full((2,), 1j), ("Take `.real` or `.imag`", lambda: full((2,), (1j).imag).sync()))
case(lambda: full((2,), anything("1")), ("Write fill_value=1.5, say", lambda: full((2,), fill_value=1.5).sync()))
case(lambda: full((2,), 300, u8), ("Use a wider type", lambda: full((2,), 300, i32).sync()))
case(lambda: full((2,), 10**400), ("Give a smaller one", lambda: full((2,), 10**30).sync()))
case(lambda: full((2,), float("nan"), i32), ("Give a finite number", lambda: full((2,), 3.0, i32).sync()))
case(lambda: linspace(0, float("inf"), 3), ("Give a finite number", lambda: linspace(0, 1e30, 3).sync()))
case(lambda: linspace(-1.7e308, 1.7e308, 3, f64), ("Scale it", lambda: linspace(-1.7, 1.7, 3, f64).sync()))
case(lambda: randn((2,), std=-1.0), ("A standard deviation is 0 or more", lambda: randn((2,), std=1.0).sync()))
case(lambda: arange(300, i8), ("Use a wider type", lambda: arange(300, i32).sync()))
case(lambda: from_host(anything([1.0])), ("np.asarray(x)", lambda: from_host(np.asarray([1.0])).sync()))


def saved_and_loaded() -> object:
    np.save("x.npy", np.ones(2, f32))
    return from_host(np.load("x.npy")).sync()


case(lambda: from_host(anything("x.npy")), ("from_host(np.load(x))", saved_and_loaded))
case(lambda: from_host(anything(None)), ("Pass the array itself, from_host(array)", lambda: from_host(np.ones(2, f32))))
case(
    lambda: from_host(anything({"a": np.ones(2, f32)})),
    ("zip_ops(*map(from_host, x.values()))", lambda: zip_ops(*map(from_host, {"a": np.ones(2, f32)}.values())).sync()),
)
case(
    lambda: pipeline(lambda x: from_host(anything(x)))([np.ones(2, f32), np.ones(2, f32)]).sync(),
    (
        "zip_ops(*map(from_host, x))",
        lambda: pipeline(lambda x: zip_ops(*map(from_host, x)))([np.ones(2, f32), np.ones(2, f32)]).sync(),
    ),
)


def of_elements(dtype: str) -> Any:
    return np.ones(2, f32).astype(dtype)


case(
    lambda: from_host(of_elements(">f4")),
    (
        'array.astype(array.dtype.newbyteorder("="))',
        lambda: from_host((a := of_elements(">f4")).astype(a.dtype.newbyteorder("="))).sync(),
    ),
)
case(
    lambda: from_host(of_elements("complex64")),
    (
        "zip_ops(from_host(array.real), from_host(array.imag))",
        lambda: zip_ops(from_host((a := of_elements("complex64")).real), from_host(a.imag)).sync(),
    ),
)
case(
    lambda: from_host(np.array([1, 2], object)),
    ("array.astype(np.float32)", lambda: from_host(np.array([1, 2], object).astype(np.float32)).sync()),
)
case(
    lambda: from_host(np.zeros(2, "M8[s]")),
    ("array.astype(np.int64)", lambda: from_host(np.zeros(2, "M8[s]").astype(np.int64)).sync()),
)
case(
    lambda: from_host(np.zeros(2, [("a", "f4"), ("b", "i4")])),
    ("from_host(array['a'])", lambda: from_host(np.zeros(2, [("a", "f4"), ("b", "i4")])["a"]).sync()),
)
case(
    lambda: convert(new(), anything("f64")),
    ("without quotes: from dagpu import f64", lambda: convert(new(), f64).sync()),
)


def copied_into(source: Any) -> object:
    dst = new()
    return memcpy(dst.borrow_mut(), source).sync()


def copied_in_a_closure() -> object:
    dst = new()
    return from_host(np.ones(N, f32)).then(lambda t: memcpy(dst.borrow_mut(), t)).sync()


case(
    lambda: copied_into(np.ones(N, f32)),
    ("t = from_host(array).sync()", lambda: copied_into(from_host(np.ones(N, f32)).sync())),
    ("from_host(array).then(lambda t: memcpy(dst, t))", copied_in_a_closure),
)
case(
    lambda: dup(anything(out().sync())),
    ("Put it together first: .unpartition()", lambda: dup(out().sync().unpartition())),
)
case(
    lambda: new().reshape((2, -1)),
    ("Write the number itself: (2, 4)", lambda: new().reshape((2, 4))),
)
case(lambda: from_host(anything(ones((2,)))), ("leave from_host out", lambda: ones((2,)).sync()))
case(lambda: from_host(new()), ("It is on a device already: leave from_host out", new))
case(
    lambda: from_host(np.ma.masked_array(np.ones(2, f32), [False, True])),
    (
        "from_host(array.filled(0))",
        lambda: from_host(np.ma.masked_array(np.ones(2, f32), [False, True]).filled(0)).sync(),
    ),
)


def changed_in_place() -> None:
    array = np.zeros(4, f32)
    op = from_host(array).then(lambda t: dup(t)).to_host()
    plan_of(op)
    array.shape = (2, 2)
    op.sync()


def unchanged() -> None:
    array = np.zeros(4, f32)
    op = from_host(array).then(lambda t: dup(t)).to_host()
    op.sync()


case(lambda: anything(dup)(ones((2,))), ("op.then(lambda t: dup(t))", lambda: ones((2,)).then(lambda t: dup(t)).sync()))
case(lambda: anything(dup)(3), ("Pass a Tensor, SharedTensor, TensorRef or TensorMut", lambda: dup(new()).sync()))
case(lambda: memcpy(new(), new()), ("Pass t.borrow_mut()", lambda: memcpy(new().borrow_mut(), new()).sync()))
case(
    lambda: memcpy(new().borrow_mut(), ones((N,), f64).sync()),
    ("see convert(...)", lambda: memcpy(new().borrow_mut(), convert(ones((N,), f64).sync(), f32).sync()).sync()),
)
case(
    lambda: memcpy(new().borrow_mut(), ones((2, 4)).sync()),
    ("reshape(...)", lambda: memcpy(new().borrow_mut(), ones((2, 4)).sync().reshape((8,))).sync()),
)


def copied_to_itself() -> None:
    t = new()
    run(memcpy(t.borrow_mut(), t.borrow()))


def copied_from_a_copy() -> None:
    t = new()
    copy = dup(t.borrow()).sync()
    run(memcpy(t.borrow_mut(), copy))


case(copied_to_itself, ("copy = dup(t.borrow()).sync()", copied_from_a_copy))
case(
    lambda: anything(fill)(ones((2,)), 1),
    ("Run it before, t = op.sync()", lambda: fill(ones((2,)).sync(), 1).sync()),
    ("op.then(lambda t: fill(t, fill_value))", lambda: ones((2,)).then(lambda t: fill(t, 1)).sync()),
)
case(
    lambda: fill(new().borrow(), 1),
    ("Pass a Tensor", lambda: fill(new(), 1).sync()),
    ("lend one for writing: t.borrow_mut()", lambda: fill(new().borrow_mut(), 1).sync()),
)
case(
    lambda: anything(out()).to_host().sync(),
    ("Put it together first: .unpartition().to_host()", lambda: out().unpartition().to_host().sync()),
)
case(
    lambda: anything(add(out(), ones((N,)))).to_host().sync(),
    (".first()", lambda: add(out(), ones((N,))).first().unpartition().to_host().sync()),
    (".unzip()", lambda: add(out(), ones((N,))).unzip()[1].to_host().sync()),
)

# ---- names that a handle, or a pending run, lacks -------------------------------------------------------------------


case(
    lambda: new().sum(),
    ("t.to_host().sync()", lambda: new().to_host().sync().sum()),
    ("await t.to_host()", lambda: awaited(new().to_host())),
)
case(
    lambda: anything(out().sync()).item(),
    ("t.unpartition().to_host().sync()", lambda: out().unpartition().to_host().sync().item(0)),
)
case(lambda: new().sync(), ("leave .sync() out", new))
case(lambda: new().then(dup), ("value(t).then(...)", lambda: value(new()).then(dup).sync()))
case(
    lambda: new().clone(),
    ("dup(t.borrow())", lambda: dup((t := new()).borrow()).sync().shape == t.shape),
    ("t.share().clone()", lambda: new().share().clone()),
)
case(lambda: new().try_unwrap(), ("It is owned already: leave", new))
case(lambda: new().grid, ("t.partition(tile) has them", lambda: new().partition(TILE).grid))
case(
    lambda: new().share().borrow_mut(),
    ("write to a copy, dup(t)", lambda: dup(new().share()).sync().borrow_mut()),
    ("empty(shape)", lambda: empty((N,)).sync().borrow_mut()),
)
case(lambda: new().share().borrow(), ("pass it itself", lambda: add(out(), new().share()).sync()))
case(lambda: new().share().view((N,)), (".reshape(shape)", lambda: new().share().reshape((2, 4))))
case(
    lambda: new().share().slice(slice(2)),
    ("dup(t).sync().slice(...)", lambda: (t := dup(new().share()).sync()).slice(slice(2)).shape == t.shape),
    ("Slice a tensor before it is shared", lambda: new().slice(slice(2))),
)


def lent(use: Callable[[Any], object]) -> object:
    t = new()
    return use(t.borrow())


def lent_to_write(use: Callable[[Any], object]) -> object:
    t = new()
    return use(t.borrow_mut())


def lent_afterwards() -> object:
    t = new()
    scale(t.borrow_mut().partition(TILE), 2.0).sync()
    return t.slice(slice(2)).shape


case(lambda: lent(lambda t: t.borrow()), ("pass it itself", lambda: lent(lambda t: add(out(), t).sync())))
case(lambda: lent(lambda t: t.view((2, 4))), (".reshape(shape)", lambda: lent(lambda t: t.reshape((2, 4)))))
case(lambda: lent(lambda t: t.try_unwrap()), ("use the tensor that it was lent from", new))
case(lambda: lent_to_write(lambda m: m.share()), ("share the tensor that it was lent from", lambda: new().share()))
case(
    lambda: lent_to_write(lambda m: m.borrow()),
    ("pass it itself", lambda: lent_to_write(lambda m: add(out(), m).sync())),
)
case(
    lambda: lent_to_write(lambda m: m.borrow_mut()),
    ("cut it with .partition(tile)", lambda: lent_to_write(lambda m: scale(m.partition(TILE), 2.0).sync())),
)
case(
    lambda: lent_to_write(lambda m: m.slice(slice(2))),
    ("ask that of the tensor, before it is lent or after that", lent_afterwards),
)
case(
    lambda: new().partition(TILE).partition((2,)),
    (".unpartition().partition(tile)", lambda: new().partition(TILE).unpartition().partition((2,))),
)


def awaits_a_handle(*, as_it_is: bool) -> object:
    async def main() -> object:
        t = anything(await ones((2,)))
        return await (t if as_it_is else t.to_host())

    return trio.run(main)


case(lambda: awaits_a_handle(as_it_is=True), ("await t.to_host()", lambda: awaits_a_handle(as_it_is=False)))


def with_pending(use: Callable[[Any], object], *, first: bool) -> object:
    """Use a pending run, or what awaiting it gives."""

    async def main() -> object:
        async with trio.open_nursery() as nursery:
            pending = anything(spawn(nursery, from_host(np.ones(N, f32))))
            return use(await pending if first else pending)

    with suppressed_groups():
        return trio.run(main)


def pending_case(use: Callable[[Any], object], says: str = "pass await x in place of x") -> None:
    """What is refused of a pending run is welcome once that was awaited."""
    case(partial(with_pending, use, first=False), (says, partial(with_pending, use, first=True)))


pending_case(lambda x: add(out(), x))
pending_case(dup)
pending_case(lambda x: fill(x, 1))
pending_case(lambda x: x.partition(TILE), "(await pending).partition")
case(
    partial(with_pending, lambda x: scale(out(), x), first=False),
    ("pass await x", lambda: scale(out(), 2.0).sync()),
)
case(partial(with_pending, lambda x: x.sync(), first=False), ("await it", partial(with_pending, repr, first=True)))
case(
    partial(with_pending, lambda x: zip_ops(x), first=False),
    ("pass await x", partial(with_pending, lambda x: zip_ops(value(x)), first=True)),
)

# ---- ops taken for values ------------------------------------------------------------------------------------------

case(lambda: bool(anything(value(1))), ("Run it, and test its result", lambda: bool(value(1).sync())))
case(
    lambda: list(anything(zip_ops(value(1), value(2)))),
    ("Say .unzip()", lambda: [op.sync() for op in zip_ops(value(1), value(2)).unzip()]),
)
case(
    lambda: anything(zip_ops(value(1), value(2)))[0],
    (".first()", lambda: zip_ops(value(1), value(2)).first().sync()),
    (".unzip()", lambda: zip_ops(value(1), value(2)).unzip()[0].sync()),
    ("the contents of a tensor come with .to_host()", lambda: new().to_host().sync()[0]),
)
case(
    lambda: anything(ones((2,))) + 1,
    ("Run it: op.sync()", lambda: ones((2,)).to_host().sync() + 1),
    ("await op in a trio task", lambda: awaited(ones((2,)).to_host())),
    ("@kernel", lambda: add(out(), ones((N,))).sync()),
)
case(
    lambda: np.asarray(anything(ones((2,)))),
    ("Run it: op.sync()", lambda: np.asarray(ones((2,)).to_host().sync())),
)
case(
    lambda: anything(dup(new())).shape,
    (".map(lambda t: t.shape)", lambda: dup(new()).map(lambda t: t.shape).sync()),
    ("run the op first", lambda: dup(new()).sync().shape),
)
case(
    lambda: anything(ones((2,))).sum(),
    ("The array is what op.to_host().sync() gives", lambda: ones((2,)).to_host().sync().sum()),
    ("await op.to_host() in a trio task", lambda: awaited(ones((2,)).to_host())),
    ("on a device kernels compute", lambda: add(out(), ones((N,))).sync()),
)
case(
    lambda: anything(ones((2,)).to_host().shared()).sum(),
    ("The array is what op.sync() gives", lambda: ones((2,)).to_host().shared().sync().sum()),
    ("await op in a trio task", lambda: awaited(ones((2,)).to_host())),
)
case(
    lambda: anything(ones((2,))).borrow(),
    (".map(lambda t: t.borrow())", lambda: ones((2,)).map(lambda t: t.borrow()).then(lambda t: t.to_host()).sync()),
    ("run the op first", lambda: ones((2,)).sync().borrow()),
)
case(
    lambda: anything(ones((2,)).to_host()).to_host().sync(),
    ("It is on the host already: leave .to_host() out", lambda: ones((2,)).to_host().sync()),
)
case(
    lambda: anything(ones((2,))).unzip(),
    ("and no tuple. Leave", lambda: ones((2,)).sync()),
    ("zip_ops(a, b)", lambda: [op.sync() for op in zip_ops(ones((2,)), ones((2,))).unzip()]),
)
case(lambda: anything(ones((2,))).first().sync(), ("and no tuple. Leave", lambda: ones((2,)).sync()))
case(
    lambda: value(ones((2,))),
    ("Use the op itself", lambda: ones((2,)).sync()),
)
case(
    lambda: value((ones((2,)), ones((2,)))),
    ("zip_ops(a, b)", lambda: zip_ops(ones((2,)), ones((2,))).sync()),
)
case(
    lambda: anything(zip_ops)([ones((2,)), ones((2,))]),
    ("Unpack it: zip_ops(*ops)", lambda: zip_ops(*[ones((2,)), ones((2,))]).sync()),
)
case(lambda: anything(zip_ops)(ones((2,)), 3), ("value(x)", lambda: zip_ops(ones((2,)), value(3)).sync()))
case(
    lambda: ones((2,)).map(lambda t: dup(t)).sync(),
    ("Use .then", lambda: ones((2,)).then(lambda t: dup(t)).sync()),
)
case(
    lambda: ones((2,)).map(lambda t: (dup(t.borrow()), dup(t.borrow()))).sync(),
    (
        "Use .then, and zip_ops(a, b)",
        lambda: ones((2,)).then(lambda t: zip_ops(dup(t.borrow()), dup(t.borrow()))).sync(),
    ),
)
case(
    lambda: value(1).host_map(lambda n: zeros((n,))).sync(),
    ("Use .then", lambda: value(1).then(lambda n: zeros((n,))).sync()),
)
case(
    lambda: value(1).then(anything(lambda x: x + 1)).sync(),
    ("Return an op (value(x) makes one of a value)", lambda: value(1).then(lambda x: value(x + 1)).sync()),
    ("use .map", lambda: value(1).map(lambda x: x + 1).sync()),
)
case(
    lambda: pipeline(anything(lambda x: x))(3).sync(),
    ("Return an op (value(x) makes one of a value)", lambda: pipeline(lambda x: value(x))(3).sync()),
)


class Foreign(DeviceOp[Any]):
    """An op of somebody else's."""

    origin = None


case(lambda: Foreign().sync(), ("Build it from ops and kernels", lambda: value(1).map(str).sync()))

# ---- functions of the user's ---------------------------------------------------------------------------------------


async def waits(x: Any) -> Any:
    return x


def yields(x: Any) -> Iterator[Any]:
    yield x


async def waits_and_yields(x: Any) -> Any:
    yield x


def awaited_f() -> object:
    async def main() -> object:
        op = value(3)
        return await waits(await op)

    return trio.run(main)


def iterated_f() -> object:
    async def main() -> object:
        op = value(3)
        return [x async for x in waits_and_yields(await op)]

    return trio.run(main)


hidden_waits: Any = lambda x: waits(x)  # noqa: E731  # reason: that hides it
hidden_yields: Any = lambda x: yields(x)  # noqa: E731

case(lambda: value(3).map(waits), ("await f(await op)", awaited_f))
case(lambda: value(3).map(waits_and_yields), ("async for x in f(await op)", iterated_f))
case(
    lambda: value(3).map(yields), (".map(lambda x: list(f(x)))", lambda: value(3).map(lambda x: list(yields(x))).sync())
)
case(
    lambda: anything(value(3)).then(yields),
    ("Return an op from it: with return, not yield", lambda: value(3).then(lambda x: value(x)).sync()),
)
case(lambda: value(3).map(hidden_waits).sync(), ("await f(await op)", awaited_f))
case(
    lambda: value(3).host_map(hidden_yields).sync(),
    (".host_map(lambda x: list(f(x)))", lambda: value(3).host_map(lambda x: list(yields(x))).sync()),
)
case(lambda: anything(value(3)).map(3), ("Write .map(lambda x: ...)", lambda: value(3).map(lambda x: x + 1).sync()))
case(
    lambda: value(iter(())).map(lambda it: next(it)).sync(),
    ("Catch it there", lambda: value(iter(())).map(lambda it: next(it, None)).sync()),
    ("next(iterator, None)", lambda: value(iter(())).map(lambda it: next(it, None)).sync()),
)
case(
    lambda: in_body_stop(None),
    ("next(iterator, None)", lambda: in_body_stop(0.0)),
)


def in_body_stop(default: float | None) -> object:
    empty_iterator: Iterator[float] = iter(())

    def body(y: Any, x: Any) -> None:
        y[...] = next(empty_iterator) if default is None else next(empty_iterator, default)

    return of_body(body)


def down_from(n: int) -> DeviceOp[int]:
    return value(n) if n <= 0 else value(n - 1).then(down_from)


def endless(n: int) -> DeviceOp[int]:
    return value(n).then(endless)


def with_limit(limit: int, program: Program) -> object:
    """With this many closures at most."""
    with environment("DAGPU_MAX_CLOSURES", str(limit)):
        return program()


@contextlib.contextmanager
def environment(name: str, setting: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = setting
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


case(
    lambda: with_limit(20, lambda: value(0).then(endless).sync()),
    ("Let the last one return an op without .then", lambda: with_limit(20, lambda: value(9).then(down_from).sync())),
    ("set DAGPU_MAX_CLOSURES=200", lambda: with_limit(200, lambda: value(99).then(down_from).sync())),
)
case(
    lambda: value(0).map(lambda _: value(1).sync()).sync(),
    ("Return the op from .then instead", lambda: value(0).then(lambda _: value(1)).sync()),
)


def contents_in_a_pipeline() -> object:
    return pipeline(lambda x: full((2,), float(x[0])))(np.ones(2, f32)).sync()


case(
    contents_in_a_pipeline,
    ("from_host(x)", lambda: pipeline(lambda x: from_host(x))(np.ones(2, f32)).sync()),
    ("compute with it before the call", lambda: pipeline(lambda a: full((2,), a))(float(np.ones(2, f32)[0])).sync()),
)
case(
    lambda: pipeline(lambda a: full((2,), Random(a).random()))(-3).sync(),
    ("Write Random(int(a))", lambda: pipeline(lambda a: full((2,), Random(int(a)).random()))(-3).sync()),
)
case(
    lambda: pipeline(anything(3)),
    ("Write @pipeline above a def that returns an op", lambda: pipeline(lambda: ones((2,)))().sync()),
)
case(
    lambda: pipeline(anything(waits)),
    ("Write a plain def that returns the op", lambda: pipeline(lambda: ones((2,)))().sync()),
)


def pipeline_as_a_method() -> None:
    class Model:
        @pipeline
        def step(self) -> DeviceOp[Any]:
            return ones((2,))

    Model()


def pipeline_of_an_object() -> object:
    class Model:
        def __init__(self) -> None:
            self.step = pipeline(self._step)

        def _step(self) -> DeviceOp[Any]:
            return ones((2,))

    return Model().step().sync()


case(
    lambda: unwrapped(pipeline_as_a_method),
    ("Make it of a function", lambda: pipeline(lambda: ones((2,)))().sync()),
    ("self.step = pipeline(self._step) in __init__", pipeline_of_an_object),
)


def unwrapped(program: Program) -> object:
    """Before 3.12, Python wraps what `__set_name__` raises."""
    try:
        return program()
    except RuntimeError as error:
        raise error.__cause__ or error from None


# ---- running -------------------------------------------------------------------------------------------------------


def awaited_in_asyncio() -> object:
    async def main() -> object:
        return await value(1)

    return asyncio.run(main())


case(
    awaited_in_asyncio,
    ("Use op.sync()", lambda: value(1).sync()),
    ("await it in an async function that trio.run(...) runs", lambda: awaited(value(1))),
)


def shared_in_one_thread() -> object:
    """A task makes a shared value; another blocks for it in the same thread."""
    begun, go_on = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        begun.set()
        go_on.wait(30)

    remembered = value(1).host_map(hold).shared()

    async def main(waits_by_sync: bool) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(awaits, remembered)
            await trio.to_thread.run_sync(begun.wait, 30)
            try:
                if waits_by_sync:
                    remembered.sync()
            finally:
                go_on.set()
            await remembered

    with suppressed_groups(), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return trio.run(main, WAITS_BY_SYNC[-1])


WAITS_BY_SYNC = [True]


async def awaits(op: DeviceOp[Any]) -> None:
    await op


def shared_and_awaited() -> object:
    WAITS_BY_SYNC.append(False)
    try:
        return shared_in_one_thread()
    finally:
        WAITS_BY_SYNC.pop()


case(shared_in_one_thread, ("Use await here", shared_and_awaited))


def spawning(make: Program, *, cancel: bool = False, times: int = 1) -> object:
    made: list[Any] = [make()]

    async def main() -> object:
        async with trio.open_nursery() as nursery:
            pending = spawn(nursery, made.pop())
            if cancel:
                pending.cancel()
            for _ in range(times):
                found = await pending
            return found

    with suppressed_groups():
        return trio.run(main)


def lending() -> Any:
    KEPT.append(new())
    return KEPT[-1].borrow().to_host()


KEPT: list[Any] = []
"""Tensors that outlive the programs that lend them; the tests clear it."""

case(
    lambda: spawning(lending),
    ("share() the tensor and pass that", lambda: spawning(lambda: new().share().to_host())),
    ("await the op", lambda: awaited(lending())),
)
case(
    lambda: spawning(lambda: ones((2,)), cancel=True),
    ("Run it again", lambda: spawning(lambda: ones((2,)))),
)
case(
    lambda: spawning(lambda: ones((2,)), times=2),
    ("Await once", lambda: spawning(lambda: ones((2,)))),
    ("spawn op.shared()", lambda: spawning(lambda: ones((2,)).shared(), times=2)),
)


def spawned_in(nursery: Any, op: Any) -> object:
    async def main() -> None:
        async with trio.open_nursery() as real:
            await spawn(real if nursery is None else nursery, op)

    with suppressed_groups():
        return trio.run(main)


case(lambda: spawned_in(3, value(1)), ("async with trio.open_nursery()", lambda: spawned_in(None, value(1))))
case(lambda: spawned_in(None, 3), ("Pass an op", lambda: spawned_in(None, value(3))))


def escaped() -> object:
    aside: list[Any] = []
    with contextlib.suppress(ZeroDivisionError):
        ones((N,)).inspect(aside.append).host_map(lambda _: 1 / 0).sync()
    return add(out(), aside[0]).sync()


case(escaped, ("Make it anew", lambda: add(out(), ones((N,)).sync()).sync()))


def used_in_another_run() -> object:
    aside: list[Any] = []
    return ones((N,)).inspect(aside.append).then(lambda _: two_step(aside)).sync()


def two_step(aside: list[Any]) -> Any:
    inner = trio.lowlevel  # a run of its own, in another thread
    del inner
    found: list[BaseException] = []

    def other() -> None:
        try:
            dup(aside[0].borrow()).sync()
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    raise found[0]


case(
    used_in_another_run,
    ("A handle leaves its run as part of the run's result", lambda: dup(ones((N,)).sync().borrow()).sync()),
)
case(lambda: device("tpu"), ("Known: cuda, explore, host", lambda: device("host")))
case(lambda: device("host:x"), ("'host', 'host:1', 'cuda:0'", lambda: (device("host"), device("host:1"))))
case(
    lambda: device("host:99"),
    ("Use one of these", lambda: device("host:7")),
)
case(
    lambda: device("explore:99"),
    ("Use one of explore:0 to explore:7", lambda: (device("explore:0"), device("explore:7"))),
)
case(lambda: device(anything(3)), ('Write device("host:1")', lambda: device("host:1")))
case(
    lambda: use_device(anything(3)),
    ('Write use_device("host:1")', lambda: use_device("host:1")),
    ('pass device("host:1")', lambda: use_device(device("host:1"))),
)
case(
    lambda: zip_ops(ones((2,)).on("host"), ones((2,)).on("explore:0")).sync(),
    (
        "array = await op.to_host(), then from_host(array)",
        lambda: zip_ops(
            ones((2,)).on("host"), from_host(ones((2,)).on("explore:0").to_host().sync()).on("host")
        ).sync(),
    ),
)
case(
    lambda: ones((2,)).sync_on(anything("x")),
    ("device().stream()", lambda: ones((2,)).sync_on(device().stream())),
)
case(
    lambda: ones((2,)).on("host:1").sync_on(device("host:0").stream()),
    ("give a stream of host:1", lambda: ones((2,)).on("host:1").sync_on(device("host:1").stream())),
    ("make the op and its inputs on host:0", lambda: ones((2,)).on("host:0").sync_on(device("host:0").stream())),
)
case(
    lambda: ones((2,)).schedule(anything("fast")),
    ("SingleStream()", lambda: ones((2,)).schedule(SingleStream()).sync()),
    ("RoundRobin(4)", lambda: ones((2,)).schedule(RoundRobin(4)).sync()),
    ("ListSchedule(4)", lambda: ones((2,)).schedule(ListSchedule(4)).sync()),
    (".on(...) takes a device", lambda: ones((2,)).on("host:1").sync()),
)
case(
    lambda: ones((2,)).schedule(anything(SingleStream)),
    ("SingleStream()", lambda: ones((2,)).schedule(SingleStream()).sync()),
)
case(
    lambda: ones((2,)).on(anything(3)),
    ("device('host:1')", lambda: ones((2,)).on(device("host:1")).sync()),
    ("'host:1'", lambda: ones((2,)).on("host:1").sync()),
    ("RoundRobin(4)", lambda: ones((2,)).on(RoundRobin(4)).sync()),
)
case(
    lambda: StreamInterpreter(anything(3)),
    ('Write "host:1"', lambda: StreamInterpreter("host:1").run_sync(ones((2,)))),
    ("leave it out for the current device", lambda: StreamInterpreter().run_sync(ones((2,)))),
)
case(
    lambda: StreamInterpreter(policy=anything(3)),
    ("policy=RoundRobin(4)", lambda: StreamInterpreter(policy=RoundRobin(4)).run_sync(ones((2,)))),
    ("leave it out for ListSchedule(4)", lambda: StreamInterpreter(policy=ListSchedule(4)).run_sync(ones((2,)))),
)
case(
    lambda: use_interpreter(anything(3)),
    ("Write use_interpreter(StreamInterpreter(...))", lambda: use_interpreter(StreamInterpreter())),
)
case(lambda: plan_of(anything(3)), ("value(x)", lambda: plan_of(value(3))))
case(lambda: RoundRobin(anything("4")), ("Write streams=4, say", lambda: RoundRobin(streams=4)))
case(
    lambda: RoundRobin(memory_limit=anything("8M")),
    ("Write memory_limit=8 << 20 for 8 MiB", lambda: RoundRobin(memory_limit=8 << 20)),
    ("leave it out", RoundRobin),
)
case(
    lambda: ones((1 << 10,)).schedule(RoundRobin(memory_limit=64)).sync(),
    ("Raise the limit", lambda: ones((1 << 10,)).schedule(RoundRobin(memory_limit=1 << 20)).sync()),
    ("cut the work into smaller pieces", lambda: ones((1 << 3,)).schedule(RoundRobin(memory_limit=64)).sync()),
)
case(
    lambda: ListSchedule(costs=anything(3)),
    ("Write costs=CostModel()", lambda: ListSchedule(costs=CostModel())),
    ("leave it out", ListSchedule),
)


class Gives:
    """A policy that gives what it is told to."""

    def __init__(self, keys: Callable[[int], Any]) -> None:
        self._keys = keys

    def place(self, program: Any) -> Any:
        return self._keys(len(program.instructions))


case(
    lambda: ones((2,)).schedule(Gives(lambda n: [])).sync(),
    ("return one lane key for each", lambda: ones((2,)).schedule(Gives(lambda n: [0] * n)).sync()),
)
case(
    lambda: ones((2,)).schedule(Gives(lambda n: [[0]] * n)).sync(),
    ("Return a number for each instruction", lambda: ones((2,)).schedule(Gives(lambda n: [0] * n)).sync()),
)
case(
    lambda: ones((2,)).schedule(Gives(lambda n: ["a"] * n)).sync(),
    ("Use a number", lambda: ones((2,)).schedule(Gives(lambda n: [0] * n)).sync()),
    (
        "a stream that device.stream() of the same device gave",
        lambda: ones((2,)).sync_on(device("host:0").stream()),
    ),
)
case(
    lambda: CostModel(bandwidth=0),
    ("Write 4.29e12, say", lambda: CostModel(bandwidth=4.29e12)),
)
case(lambda: CostModel().declare({"add": -1.0}), ("Write 3e-5, say", lambda: CostModel().declare({"add": 3e-5})))
case(
    lambda: CostModel().declare(anything(["add"])),
    ('Write .declare({"gemm": 3e-5})', lambda: CostModel().declare({"gemm": 3e-5})),
)


def measured() -> Any:
    with trace() as found:
        add(out(), ones((N,))).sync()
    return found


case(
    lambda: CostModel().learn(anything([1])),
    (".learn(trace.kernel_times())", lambda: CostModel().learn(measured().kernel_times())),
)
case(lambda: trace(costs=anything(3)), ("Write costs=CostModel()", lambda: trace(costs=CostModel())))
case(lambda: trace(anything(3)), ('"run.json"', lambda: trace("run.json")))
case(
    lambda: trace(nvtx=True).__enter__(),
    ("leave nvtx=True out", lambda: trace().__enter__().end()),
)
case(lambda: trace(nvtx=anything(3)), ("Say nvtx=True or nvtx=False", lambda: trace(nvtx=False)))


def overlap(at_least: Any, *, ran: bool = True) -> object:
    with trace() as found:
        if ran:
            add(out(), ones((N,))).sync()
    found.assert_overlap(at_least)
    return found


case(lambda: overlap("half"), ("Write 0.5 for a half", lambda: overlap(0.0)))
case(lambda: overlap(0.0, ran=False), ("run an op in its block", lambda: overlap(0.0)))
case(lambda: overlap(0.99), ("op.explain() says why", lambda: add(out(), ones((N,))).explain()))


def out_of_memory() -> object:
    return ones((1 << 50,)).sync()


case(
    out_of_memory,
    ("Let go of handles that are no longer needed", lambda: ones((1 << 5,)).sync()),
    ("cut the work into smaller pieces", lambda: ones((1 << 5,)).sync()),
)
case(lambda: record_origins(anything(3)), ("Say record_origins(True)", lambda: record_origins(True)))
case(
    lambda: with_limit(anything("many"), lambda: value(1).map(str).sync()),
    ("Set DAGPU_MAX_CLOSURES=100000, for example", lambda: with_limit(100000, lambda: value(1).map(str).sync())),
)
case(
    lambda: importlib.import_module("dagpu").zeroes,
    ("has no attribute 'zeroes'", lambda: importlib.import_module("dagpu").zeros),
)

# ---- copies --------------------------------------------------------------------------------------------------------


def lent_twice() -> None:
    t = new()
    scale(t.borrow_mut().partition(TILE), 2.0).sync()
    scale(t.borrow_mut().partition(TILE), 2.0).sync()


def in_itself() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@final
class Around:
    """An object that dagpu does not look into."""

    def __init__(self, inner: object) -> None:
        self.inner = inner


def recorded_copy() -> None:
    t = new()
    with CudaGraph.scope(device("host:0").stream()) as scope:
        copy.copy(scope).record(fill(t.borrow_mut(), 1.0))


def recorded_itself() -> None:
    t = new()
    with CudaGraph.scope(device("host:0").stream()) as scope:
        scope.record(fill(t.borrow_mut(), 1.0))


def awaited_by(taker: Program) -> None:
    """Await what `taker`, such as `copy.copy`, makes of a `Pending`."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            pending = spawn(nursery, ones((N,)).to_host())
            try:
                taken = anything(taker)(pending)
            except OwnershipError as error:
                refused.append(error)
            else:
                await taken

    refused: list[OwnershipError] = []
    trio.run(main)
    for error in refused:
        raise error


case(
    lambda: setattr(ones((N,)), "shape", (3,)),
    ("Build a new one as you want it", lambda: ones((3,)).sync()),
)
case(recorded_copy, ("Use the scope itself", recorded_itself))
case(
    lambda: awaited_by(anything(copy.copy)),
    ("Await the Pending itself, in any task", lambda: awaited_by(anything(lambda pending: pending))),
)
case(
    lambda: copy.copy(ones((N,)).graph()),
    ("Use the graph itself wherever it is wanted", lambda: [g := ones((N,)).graph(), g.launch().sync(), g.launch()]),
    ("capture the op once more with op.graph()", lambda: [ones((N,)).graph() for _ in range(2)]),
)

ARRAY = "the array that .to_host() gives can be copied and pickled"
case(
    lambda: copy.copy(new()),
    ("Copy its contents with dup(t.borrow())", lambda: dup(new().borrow()).sync()),
    ("share it with .share()", lambda: new().share().clone()),
    (ARRAY, lambda: pickle.dumps(copy.copy(new().to_host().sync()))),
)
case(
    lambda: copy.deepcopy(new().share()),
    ("One more handle to the same memory is .clone()", lambda: new().share().clone()),
    (ARRAY, lambda: pickle.dumps(copy.deepcopy(new().share().to_host().sync()))),
)
case(
    lambda: pickle.dumps(new().borrow()),
    ("Borrow the tensor once more with .borrow()", lambda: [t := new(), t.borrow(), t.borrow()]),
    (ARRAY, lambda: pickle.dumps(copy.copy(new().borrow().to_host().sync()))),
)
case(lambda: copy.copy(new().borrow_mut()), ("when that is done, lend it again with .borrow_mut()", lent_twice))
case(
    lambda: copy.copy(new().partition(TILE)),
    ("Put it together with .unpartition()", lambda: new().partition(TILE).unpartition()),
    ("can be copied with dup(t.borrow())", lambda: dup(new().partition(TILE).unpartition().borrow()).sync()),
)
case(
    lambda: copy.deepcopy(ones((N,))),
    ("Use the op itself wherever it is wanted", lambda: [op := ones((N,)), op.sync(), op.sync()]),
    (".shared() gives its result to several", lambda: [op := ones((N,)).shared(), both(out(), op, op).sync()]),
)
case(
    lambda: value(in_itself()),
    ("Put an object of a class of your own around it", lambda: value(Around(in_itself())).sync()),
)

# ---- finalisers ----------------------------------------------------------------------------------------------------


class Late:
    """Calls a function when it goes."""

    def __init__(self, when_gone: Program) -> None:
        self._when_gone = when_gone

    def __del__(self) -> None:
        self._when_gone()


def dropping(late: Program) -> Any:
    """An op whose run drops a `Late` while dagpu is at work."""
    return value(0).map(lambda _: Late(late)).map(lambda _: None)


def at_once(do: Program, during: Callable[[Program], object]) -> None:
    """A finaliser that does something while `during` is at work. Its error, which Python would only print."""
    errors: list[Exception] = []

    def late() -> None:
        try:
            do()
        except Exception as error:
            errors.append(error)

    during(late)
    if errors:
        raise errors[0]


def noted_down(do: Program, during: Callable[[Program], object]) -> None:
    """The same, done later."""
    noted: SimpleQueue[Program] = SimpleQueue()
    during(lambda: noted.put(do))
    noted.get_nowait()()


def in_a_scope(how: Callable[[Program, Callable[[Program], object]], None]) -> None:
    """A finaliser that records something while something else is recorded."""
    t = new()
    with CudaGraph.scope(device("host").stream()) as scope:
        late = partial(scope.record, scale(t.borrow_mut().partition(TILE), 2.0))
        how(late, lambda late: scope.record(zip_ops(scale(t.borrow_mut().partition(TILE), 2.0), dropping(late))))


OUTSIDE = "note down what is to be done, in a queue.SimpleQueue, and do it outside"
case(
    lambda: at_once(lambda: ones((2,)).sync(), lambda late: dropping(late).sync()),
    (OUTSIDE, lambda: noted_down(lambda: ones((2,)).sync(), lambda late: dropping(late).sync())),
)
case(
    lambda: at_once(scale.compile, lambda late: dropping(late).sync()),
    (OUTSIDE, lambda: noted_down(scale.compile, lambda late: dropping(late).sync())),
    simulated=True,
)
case(lambda: in_a_scope(at_once), (OUTSIDE, lambda: in_a_scope(noted_down)))

# ---- CUDA graphs ---------------------------------------------------------------------------------------------------


def scoped(*ops: Program, where: str = "host") -> CudaGraph[None]:
    with CudaGraph.scope(device(where).stream()) as scope:
        for op in ops:
            scope.record(anything(op()))
    return scope.graph


def recorded_into(t: Any) -> Program:
    return lambda: scale(t.borrow_mut().partition(TILE), 2.0)


case(
    lambda: scoped(),
    ("scope.record(op)", lambda: scoped(recorded_into(new()))),
)
case(
    lambda: scoped(recorded_into(new()), where="host:1"),
    ("Give a stream of host:0", lambda: scoped(recorded_into(new()), where="host:0")),
)
case(
    lambda: value(1).graph(),
    ("Capture a kernel", lambda: add(out(), ones((N,))).graph()),
    ("a fill", lambda: ones((2,)).graph()),
)
case(
    lambda: zip_ops(ones((2,)).on("host:0"), ones((2,)).on("host:1")).graph(),
    (
        "Capture what runs on each by itself, and compose the launches",
        lambda: zip_ops(ones((2,)).on("host:0").graph().launch(), ones((2,)).on("host:1").graph().launch()).sync(),
    ),
)
case(
    lambda: ones((2,)).to_host().host_map(len).graph(),
    ("Capture what comes before it", lambda: ones((2,)).to_host().graph()),
)


def nested_graphs() -> Any:
    return ones((2,)).graph(), ones((2,)).graph()


def captured_launch() -> object:
    a, b = nested_graphs()
    return a.launch().then(lambda _: b.launch()).graph()


def composed_launches() -> object:
    a, b = nested_graphs()
    return a.launch().then(lambda _: b.launch()).sync()


case(captured_launch, ("a.launch().then(lambda _: b.launch())", composed_launches))
case(
    lambda: ones((2,)).to_host().then(lambda a: from_host(a)).graph(),
    ("Capture what comes before that", lambda: ones((2,)).to_host().graph()),
)


def left_over_component() -> object:
    a, b = zip_ops(ones((2,)), zeros((2,))).unzip()
    return a.graph(), b


def component_let_go() -> object:
    a, b = zip_ops(ones((2,)), zeros((2,))).unzip()
    del b
    return a.graph()


def components_captured() -> object:
    a, b = zip_ops(ones((2,)), zeros((2,))).unzip()
    return zip_ops(a, b).graph()


case(
    left_over_component,
    ("Let go of it (del)", component_let_go),
    ("capture it too", components_captured),
)


def output_taken_twice() -> None:
    graph = ones((2,)).graph()
    graph.take_output()
    graph.take_output()


def output_kept() -> None:
    graph = ones((2,)).graph()
    t = graph.take_output()
    graph.launch().sync()
    t.borrow().to_host().sync()


case(output_taken_twice, ("keep what that gave", output_kept))


def moved_since() -> None:
    t = new()
    graph = scale(t.borrow_mut().partition(TILE), 2.0).graph()
    t.share()
    graph.launch().sync()


def kept_where_it_is() -> None:
    t = new()
    graph = scale(t.borrow_mut().partition(TILE), 2.0).graph()
    graph.launch().sync()
    t.share()


def captured_again() -> None:
    t = new()
    scale(t.borrow_mut().partition(TILE), 2.0).graph()
    u = t.reshape((N,))
    scale(u.borrow_mut().partition(TILE), 2.0).graph().launch().sync()


case(
    moved_since,
    ("Keep the tensor where it is while the graph is in use", kept_where_it_is),
    ("capture the graph again", captured_again),
)


def recorded_late() -> None:
    t = new()
    with CudaGraph.scope(device("host").stream()) as scope:
        scope.record(scale(t.borrow_mut().partition(TILE), 2.0))
    scope.record(scale(t.borrow_mut().partition(TILE), 2.0))


case(recorded_late, ("Record within its with block", lambda: scoped(recorded_into(new()))))


def graph_taken_early() -> object:
    with CudaGraph.scope(device("host").stream()) as scope:
        return scope.graph


case(graph_taken_early, ("Take it after its with block", lambda: scoped(recorded_into(new()))))


def graph_of_a_failed_scope() -> object:
    with contextlib.suppress(ZeroDivisionError), CudaGraph.scope(device("host").stream()) as scope:
        raise ZeroDivisionError
    return scope.graph


case(graph_of_a_failed_scope, ("Record it again", lambda: scoped(recorded_into(new()))))


def run_in_a_scope() -> object:
    with CudaGraph.scope(device("host").stream()):
        return ones((2,)).sync()


def run_before_a_scope() -> object:
    t = ones((N,)).sync()
    return scoped(recorded_into(t))


case(
    run_in_a_scope,
    ("Record it with scope.record(op)", lambda: scoped(recorded_into(new()))),
    ("run it before or after the with block", run_before_a_scope),
)
case(
    lambda: scoped(lambda: 3),
    ("a kernel call on t.borrow_mut().partition(tile)", lambda: scoped(recorded_into(new()))),
)


def updating(op: Program) -> object:
    t = new()
    graph = add(zeros((N,)).partition(TILE), t.borrow()).graph()
    KEPT.append(t)
    graph.update(anything(op()))
    return graph.launch().sync()


def updated_by(source: Any) -> object:
    t = new()
    graph = add(zeros((N,)).partition(TILE), t.borrow()).graph()
    graph.update(memcpy(t.borrow_mut(), source))
    return graph.launch().sync()


case(
    lambda: updated_by(from_host(np.ones(N, f32))),
    ("Run it before, t = op.sync()", lambda: updated_by(from_host(np.ones(N, f32)).sync())),
)


def updated_from() -> object:
    t = new()
    graph = add(zeros((N,)).partition(TILE), t.borrow()).graph()
    graph.update(memcpy(t.borrow_mut(), new()))
    return graph.launch().sync()


case(
    lambda: updating(lambda: ones((2,))),
    ("t.borrow_mut().partition(tile)", lambda: updating(recorded_into(new()))),
    ("op.graph()", lambda: ones((2,)).graph().launch().sync()),
)
case(lambda: updating(lambda: 3), ("memcpy(t.borrow_mut(), new)", updated_from))
case(
    lambda: updating(lambda: ones((2,)).graph().launch()),
    ("op.graph()", lambda: ones((2,)).graph().launch().sync()),
)
case(
    lambda: updating(lambda: new().to_host().host_map(len)),
    (
        "Leave to_host() and host_map() to an op that runs after the launch",
        lambda: (updated_from(), new().to_host().host_map(len).sync()),
    ),
)

# ---- explore devices -----------------------------------------------------------------------------------------------


def shifting(y: Any, x: Any) -> None:
    y[...] = np.roll(x[...], 1)[y.at]


def in_place(body: Any, *, says: bool = True) -> object:
    @kernel(cuda="__global__ void k(Tile<float, 1> y, View<const float, 1> x) {}", in_place=says)
    def k(y: Out[f32], x: In[f32]) -> None: ...

    k.host(body)
    with use_device("explore:0"):
        return k(empty((N,)).partition((N,)), arange(N)).first().unpartition().to_host().sync()


def elementwise(y: Any, x: Any) -> None:
    y[...] = x[y.at]


case(
    lambda: in_place(shifting),
    ("Leave in_place=True out", lambda: in_place(shifting, says=False)),
    ("read an element of that input only to write the same one", lambda: in_place(elementwise)),
)


def explored(*, on: str = "explore:0", **asked: Any) -> object:
    with exploring(**asked), use_device(on):
        return zip_ops(ones((2,)), zeros((2,))).sync()


case(
    lambda: explored(seed=1, choices=[0]),
    ("not both", lambda: explored(seed=1)),
)
case(
    lambda: explored(on="host"),
    ('Put use_device("explore:0") around it', explored),
)
case(
    lambda: explored(choices=[7]),
    ("Choices belong to the plan they were made for", lambda: explored(choices=[])),
)


def explored_out_of_memory() -> object:
    with use_device("explore:0"):
        return ones((1 << 50,)).sync()


case(
    explored_out_of_memory,
    ("Let go of handles that are no longer needed", explored),
    ("cut the work into smaller pieces", explored),
)


case(
    lambda: lazily(out(), anything("2")),
    ("Convert it with float(...) if that is meant", lambda: lazily(out(), float("2")).sync()),
)
case(
    lambda: lazily(out(), anything(new(1))),
    (
        "Take the number out of it first, on the host: .to_host()",
        lambda: lazily(out(), new(1).to_host().map(lambda a: a.item())).sync(),
    ),
)
case(partial(declare, cuda(f"{ONE}, void by")), ("Write the C type out", partial(declare, SCALE)))


def changed_in_the_run() -> object:
    array = np.zeros(4, f32)
    return zip_ops(from_host(array), value((2, 2)).map(partial(setattr, array, "shape"))).sync()


case(
    changed_in_the_run,
    ("Do not change the array in place between giving it and the run", lambda: from_host(np.zeros(4, f32)).sync()),
)


# ---- functions with other arguments --------------------------------------------------------------------------------


def plus(a: int, b: int) -> int:
    return a + b


def three() -> int:
    return 3


def with_factor(a: int, *, by: int) -> int:
    return a * by


case(
    lambda: value((1, 2)).map(anything(plus)).sync(),
    ("unpack it: .map(lambda x: f(*x))", lambda: value((1, 2)).map(lambda x: plus(*x)).sync()),
)
case(
    lambda: value(1).host_map(anything(three)),
    ("Write .host_map(lambda _: f())", lambda: value(1).host_map(lambda _: three())),
)
case(
    lambda: value(1).map(anything(with_factor)),
    ("lambda x: f(x, ...)", lambda: value(1).map(lambda x: with_factor(x, by=2)).sync()),
)


@pipeline
def uploaded(x: NDArray[f32], by: float = 1.0) -> DeviceOp[Tensor[f32]]:
    return from_host(x)


case(lambda: anything(uploaded)(), ("call uploaded(x, by=1.0)", lambda: uploaded(np.ones(2, f32), by=1.0).sync()))


def while_it_is_read(work: Callable[[Any, Any], DeviceOp[Any]]) -> object:
    """Like `while_it_is_written`, of a tensor that another run reads."""
    t = new()
    copy = dup(t.borrow()).sync()
    begun, go_on = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        begun.set()
        go_on.wait(30)

    async def main() -> object:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(awaits, zip_ops(dup(t.borrow()), value(0).host_map(hold)))
            await trio.to_thread.run_sync(begun.wait, 30)
            try:
                return await work(t, copy)
            finally:
                go_on.set()

    with suppressed_groups():
        return trio.run(main)


case(
    lambda: while_it_is_read(lambda t, _: scale(t.borrow_mut().partition(TILE), 2.0)),
    (
        "work on a copy that was made before it: dup(t.borrow())",
        lambda: while_it_is_read(lambda _, copy: scale(copy.borrow_mut().partition(TILE), 2.0)),
    ),
)

# ---- GPUs ----------------------------------------------------------------------------------------------------------

on_gpus = partial(case, simulated=True)

on_gpus(lambda: device("cuda:5"), ("Use one of these", lambda: (device("cuda:0"), device("cuda:1"))))
on_gpus(
    lambda: ones((1 << 40,)).sync(),
    ("Let go of handles that are no longer needed", lambda: ones((1 << 5,)).sync()),
    ("cut the work into smaller pieces", lambda: ones((1 << 5,)).sync()),
)
on_gpus(
    lambda: scale.shared_memory(300 << 10)(out(), 2.0).sync(),
    ("Give fewer: scale.shared_memory(...)", lambda: scale.shared_memory(1 << 10)(out(), 2.0).sync()),
)


@kernel(cuda="__global__ void plain(float* y, const float* x) {}", abi="pointers")
def plain(y: Out[f32], x: In[f32]) -> None:
    """y = x, by pointers"""


@plain.host
def _(y: Tile[f32], x: NDArray[f32]) -> None:
    y[...] = x[y.at]


@kernel(cuda="__global__ void viewed(Tile<float, 1> y, View<const float, 1> x) {}")
def viewed(y: Out[f32], x: In[f32]) -> None:
    """y = x, by views"""


@viewed.host
def _(y: Tile[f32], x: NDArray[f32]) -> None:
    y[...] = x[y.at]


def strided(call: Any, *, copied: bool = False) -> object:
    t = new(2 * N)
    part = t.slice(slice(None, None, 2))
    return call(empty((N,)).partition(TILE), dup(part) if copied else part).sync()


on_gpus(
    lambda: strided(plain),
    ("Make it contiguous with dup(...)", lambda: strided(plain, copied=True)),
    ('use abi="views"', lambda: strided(viewed)),
)
on_gpus(
    lambda: ones((2,)).schedule(Gives(lambda n: ["a"] * n)).sync(),
    ("Use a number", lambda: ones((2,)).schedule(Gives(lambda n: [0] * n)).sync()),
)


def on_two_streams(*, same: bool) -> object:
    first = device("cuda:0").stream()
    second = first if same else device("cuda:0").stream()
    return zip_ops(ones((2,)).on(anything(first)), ones((2,)).on(anything(second))).graph()


on_gpus(lambda: on_two_streams(same=False), ("Use one of them", lambda: on_two_streams(same=True)))


@kernel(cuda="__global__ void stray(Tile<float, 1> y, int by) {}", checked=True)
def stray(y: Out[f32], by: int) -> None:
    """y = by, and `by` elements beyond."""


@stray.host
def _(y: Tile[f32], by: int) -> None:
    y[...] = by
    if by:
        raise Violation(0, (N + by,), (N,), 0)


on_gpus(
    lambda: stray(zeros((N,)).partition((N,)), 3).sync(),
    ("Correct the index in the kernel", lambda: stray(zeros((N,)).partition((N,)), 0).sync()),
)

# ---- the rest ------------------------------------------------------------------------------------------------------

COMPILER = "what a real compiler says: tests/test_cuda_compiler.py has its errors, and what comes of them"
NO_GPU = "only a real GPU, or a machine without one, fails like this: tests/gpu and tests/test_cuda_failures.py"
AT_FAULT = "no program makes a plan that is wrong: tests/test_verify.py breaks them; the cure is to report it"
INTERNAL = "no program gets there: it guards one part of dagpu against another"

LEFT_OUT: Final[dict[str, str]] = {
    "backends/cuda/backend.py": NO_GPU,
    "backends/cuda/builtin.py": INTERNAL,
    "backends/cuda/compiler.py": COMPILER,
    "backends/cuda/cubin.py": COMPILER,
    "backends/cuda/device.py": NO_GPU,
    "backends/cuda/diagnostics.py": COMPILER,
    "backends/cuda/driver.py": NO_GPU,
    "backends/cuda/frozen_plan.py freeze": "page-locked memory must run out: tests/test_cuda_graph_failures.py",
    "backends/cuda/graphs.py obstacle": "an op's capture refuses these before a backend is asked",
    "backends/cuda/memory.py": INTERNAL,
    "backends/cuda/nvrtc.py": COMPILER,
    "backends/cuda/packing.py check_limits": "limits like that of shared memory: tests/test_cuda_packing.py",
    "backends/cuda/pycuda_driver.py": NO_GPU,
    "backends/cuda/transfers.py": INTERNAL,
    "backends/cuda/walk.py": "a view of more axes than NumPy's arrays have",
    "backends/device_registry.py driver": INTERNAL,
    "backends/explore/exploration.py injected": "the failure that a test of the user's asks for",
    "backends/explore/machine.py": AT_FAULT,
    "backends/host/execute.py _copy_out": "NumPy itself must run out of memory: tests/test_host_backend.py",
    "backends/host/philox.py": INTERNAL,
    "backends/host/recipes.py write": AT_FAULT,
    "backends/host/streams.py ready": "the interpreter must end: tests/test_interrupts.py",
    "handles.py _to_host": INTERNAL,
    "lowering/tables.py": AT_FAULT,
    "lowering/verify.py": AT_FAULT,
    "lowering/walk.py _apply": INTERNAL,
    "ops/recipes.py _check_real": INTERNAL,
    "ops/recipes.py _floor": INTERNAL,
    "ops/recipes.py check": INTERNAL,
    "runtime/capture.py capture": "why a handle is void, in the message of a later use: `escaped` above",
    "runtime/completion.py drive": INTERNAL,
    "wrong_arguments.py no_attribute": "Python's own words for a name that is nothing's",
    "runtime/timeline.py assert_overlap": "a machine must be too busy to overlap: tests/test_timeline.py",
}
"""Texts that no program here meets, by module, or by module and function, and why."""
