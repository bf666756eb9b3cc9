"""Mistakes in what a kernel declares that its tiles see, and in writes to parts of sources."""

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagpu import Along, Around, Columns, Here, In, Out, Rows, Source, Tile, f32, from_host, kernel, ones, source, value
from tests.behaviour.errors.cures.catalogue import Catalogue, N, anything, cuda, declare, out, run

CATALOGUE = Catalogue()
case = CATALOGUE.add

TWO = "Tile<float, 2> y, View<const float, 2> x"


def declare_on(parameters: str, sees: Any, more: str = "", **options: Any) -> object:
    """Declare a kernel `k(y, x)` that says what its tiles see."""

    def k(y: Out[f32], x: In[f32]) -> None: ...

    return declare(cuda(parameters, more), k, sees=sees, **options)


matrix = partial(declare_on, TWO)
vector = partial(declare_on, "Tile<float, 1> y, View<const float, 2> x")

# ---- declarations


case(
    lambda: matrix(anything([Here()])),
    ('Give a dict from names of inputs: sees={"x": Around(3, 3)}', lambda: matrix({"x": Around(3, 3)})),
)
case(lambda: matrix({"y": Here()}), ("Name inputs alone", lambda: matrix({"x": Here()})))
case(
    lambda: declare_on("float* y, const float* x", {"x": Here()}, abi="pointers"),
    ("Leave sees out", lambda: declare_on("float* y, const float* x", None, abi="pointers")),
    ("or take a Tile for each output", lambda: declare_on("Tile<float, 2> y, View<const float, 2> x", {"x": Here()})),
)


def declare_without_output() -> object:
    def k(x: In[f32]) -> None: ...

    return declare(cuda("View<const float, 1> x"), k, sees={"x": Here()})


case(declare_without_output, ("Leave sees out", lambda: matrix(None)))
USES_BLOCK = "__device__ int place() { return blockIdx.x; }\n"
case(
    lambda: matrix({"x": Here()}, USES_BLOCK),
    ("Take the place from the tile: y.tile_index(axis)", lambda: matrix({"x": Here()})),
)
case(
    lambda: vector({"x": Here()}),
    (
        "Say for each axis of the input which axis of the output it follows: (Along(0), None)",
        lambda: vector({"x": (Along(0), None)}),
    ),
)
case(
    lambda: matrix({"x": Around(3)}),
    ("Give one margin for each axis: Around(1, 1)", lambda: matrix({"x": Around(1, 1)})),
)
case(
    lambda: matrix({"x": Around(-1, 0)}),
    ("Give a number of elements, 0 or more", lambda: matrix({"x": Around(1, 0)})),
)
case(
    lambda: matrix({"x": (Along(0, -1), None)}),
    ("Give a number of elements, 0 or more", lambda: matrix({"x": (Along(0, 1), None)})),
)
case(
    lambda: matrix({"x": anything("all")}),
    ("Give Here()", lambda: matrix({"x": Here()})),
    ("Around(3, 3)", lambda: matrix({"x": Around(3, 3)})),
    ("Rows()", lambda: matrix({"x": Rows()})),
    ("Columns()", lambda: matrix({"x": Columns()})),
    ("or for each axis of the input Along(axis) or None", lambda: matrix({"x": (Along(0), None)})),
)
case(
    lambda: matrix({"x": (Along(0),)}),
    ("Give one part for each axis of the input", lambda: matrix({"x": (Along(0), Along(1))})),
)
case(
    lambda: matrix({"x": (Along(2), None)}),
    ("Count the output's axes from 0", lambda: matrix({"x": (Along(1), None)})),
)


# ---- tiles that look at more


def looks_around(*, margin: int) -> None:
    """Run a kernel whose tiles look one element beyond their own place."""

    @kernel(
        cuda="__global__ void shift(Tile<float, 1> y, View<const float, 1> x) {"
        " for (auto i : y) y[i] = x(i[0] ? i[0] - 1 : 0); }",
        sees={"x": Around(margin)},
        checked=True,
    )
    def shift(y: Out[f32], x: In[f32]) -> None: ...

    @shift.host
    def _(y: Tile[f32], x: NDArray[f32]) -> None:
        y[...] = x[[max(i - 1, 0) for i in range(y.at[0].start, y.at[0].stop)]]

    run(shift(out(), from_host(np.arange(N, dtype=np.float32))))


for simulated in (False, True):
    case(
        lambda: looks_around(margin=0),
        ("Declare what it looks at", lambda: looks_around(margin=1)),
        simulated=simulated,
    )


# ---- writes


def held() -> Source[Any]:
    """A source of a tensor, whose type is hidden so that the mistakes pass the type checker."""
    return source(ones((N,)).sync())


def data(n: int = 2, dtype: Any = np.float32) -> Any:
    return np.zeros(n, dtype)


case(
    lambda: anything(source(3)).write(slice(0, 2), data()),
    ("Set it: source.set(value)", lambda: source(3).set(4)),
)
for wrong in (slice(0, N + 1), slice(0, 4, 2), (slice(0, 2), slice(0, 2)), 3, slice(0.5, 2)):
    case(
        partial(lambda part: held().write(anything(part), data()), wrong),
        ("Give a slice for each axis, within the shape and without a step", lambda: held().write(slice(0, 2), data())),
    )
case(
    lambda: held().write(slice(0, 2), anything([0.0, 0.0])),
    ("Give an array or a tensor of shape (2,) and float32", lambda: held().write(slice(0, 2), data())),
)
case(
    lambda: source(data(N)).write(slice(0, 2), anything(ones((2,)).sync())),
    ("Give an array of shape (2,) and float32", lambda: source(data(N)).write(slice(0, 2), data())),
)
case(
    lambda: held().write(slice(0, 2), data(3)),
    ("Give data of the shape and element type of the part", lambda: held().write(slice(0, 3), data(3))),
)
case(
    lambda: held().write(slice(0, 2), data(2, np.float64)),
    ("Give data of the shape and element type of the part", lambda: held().write(slice(0, 2), data(2, np.float32))),
)


def write_in_a_closure() -> None:
    s = held()
    value(0).map(lambda _: s.write(slice(0, 2), data())).sync()


def write_where_it_arrives() -> None:
    s = held()
    value(0).sync()
    s.write(slice(0, 2), data())


case(write_in_a_closure, ("set it where the result of the op arrives", write_where_it_arrives))
