"""Mistakes in the arguments of a kernel call."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagpu import (
    In,
    Out,
    Tile,
    convert,
    dup,
    empty,
    f32,
    f64,
    from_host,
    kernel,
    ones,
    u8,
    value,
    zeros,
)
from tests.behaviour.errors.cures.catalogue import (
    TILE,
    Catalogue,
    N,
    add,
    anything,
    both,
    lazily,
    lent_for_writing_twice,
    loose,
    new,
    out,
    run,
    scale,
)

CATALOGUE = Catalogue()
case = CATALOGUE.add


@kernel(cuda="__global__ void split(Tile<float, 1> low, Tile<float, 1> high, View<const float, 1> x) {}")
def split(low: Out[f32], high: Out[f32], x: In[f32]) -> None:
    """low = high = x"""


@split.host
def _(low: Tile[f32], high: Tile[f32], x: NDArray[f32]) -> None:
    low[...] = x[low.at]
    high[...] = x[high.at]


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


loose_scale: Any = scale


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
    lambda: loose(out(), None),
    ("Pass the tensor itself", lambda: add(out(), ones((N,))).sync()),
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
        "convert(t, f32)",
        lambda: add(out(), convert(ones((N,), f64), f32)).sync(),
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
    lambda: scale.block(anything((32, 8))),
    ("Pass the numbers themselves: block(32, 8)", lambda: scale.block(32, 8)(out(), 2.0).sync()),
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
