"""Bodies of foreign ops that do something else than their declaration says: found by the audit, and in checked mode."""

from collections.abc import Callable
from typing import Any

import numpy as np

from dagpu import In, Out, Tensor, f32, foreign, from_host, ones, zeros
from dagpu.interop import new, reserve
from dagpu.testing import EnqueuedWork
from tests.behaviour.errors.cures.catalogue import Catalogue
from tests.simulated.array_libraries import FakeArray, array_libraries
from tests.simulated.cuda import driver

CATALOGUE = Catalogue()
case = CATALOGUE.add
A = np.ones((6,), f32)


def untyped(x: object) -> Any:
    return x


def declared(body: Any, kind: str = "torch", **options: Any) -> Any:
    """The op `op(x)` with this body."""

    def new_like(x: In[f32]) -> Tensor[f32]:
        return new(x)

    op = untyped(foreign)(**options)(new_like)
    (op.host if kind == "host" else op.raw if kind == "raw" else op.on(kind))(body)
    return op


# ---- options
case(
    lambda: declared(right, verify="always"),
    ('Write verify="audit"', lambda: declared(right, verify="audit")),
    ('"none"', lambda: declared(right, verify="none")),
)
case(lambda: declared(right, cost=-1), ("Write cost=3e-5, say", lambda: declared(right, cost=3e-5)))
case(lambda: declared(right, checked=3), ("Write checked=True or False", lambda: declared(right, checked=True)))


# ---- the audit
def right(x: Any, out: Any) -> None:
    out.copy_(x)


def captured(op: Any) -> object:
    with array_libraries(untyped(driver()).gpu.machine, "torch"):
        return op(ones((6,))).graph()


def elsewhere(x: Any, out: Any) -> None:
    machine: Any = untyped(driver()).gpu
    with out.library.on_stream(machine.foreign_stream(1)):
        out.copy_(x)


def raw_copy(lane: Any, x: Any, out: Any) -> None:
    machine: Any = untyped(driver()).gpu.machine
    machine.stream_of(lane.handle).put(lambda: None, enqueued=EnqueuedWork("a copy", (out.address, x.address)))


def unrelated(x: Any, out: Any) -> None:
    x.like(x.shape).copy_(x)


case(
    lambda: captured(declared(elsewhere)),
    ("use the current one", lambda: captured(declared(right))),
    ("lane.handle in a raw body", lambda: captured(declared(raw_copy, "raw"))),
    simulated=True,
)
case(
    lambda: captured(declared(unrelated)),
    ("Write the output", lambda: captured(declared(right))),
    ('declare the op with @foreign(verify="none")', lambda: captured(declared(unrelated, verify="none"))),
    simulated=True,
)


def with_hidden(how: str) -> object:
    """Add a tensor that the op is not given; with `how` as another input, or without an audit."""
    with array_libraries(untyped(driver()).gpu.machine, "torch") as found:
        hidden = from_host(A).sync().share()
        address = hidden.__cuda_array_interface__["data"][0]
        kept = FakeArray(found["torch"], hidden, address, (6,), (4,), np.dtype(f32))
        if how == "declared":

            @foreign
            def total(x: In[f32], y: In[f32]) -> Tensor[f32]:
                return new(x)

            @total.on("torch")
            def _(x: Any, y: Any, out: Any) -> None:
                out.copy_(x + y)

            return total(ones((6,)), hidden).graph()
        op = declared(lambda x, out: out.copy_(x + kept) and None, verify="none" if how == "none" else "audit")
        return op(ones((6,))).graph()


case(
    lambda: with_hidden("kept"),
    ("Declare it as In", lambda: with_hidden("declared")),
    ('declare the op with @foreign(verify="none")', lambda: with_hidden("none")),
    simulated=True,
)


# ---- checked calls
def checked(body: Callable[..., object], scratch: int = 0) -> object:
    @foreign(checked=True)
    def op(x: In[f32]) -> Tensor[f32]:
        reserve(scratch)
        return new(x)

    if scratch:
        op.raw(body)
        return op(ones((6,))).sync()
    op.on("torch")(body)
    with array_libraries(untyped(driver()).gpu.machine, "torch"):
        return op(ones((6,))).sync()


def over_input(x: Any, out: Any) -> None:
    x.copy_(x + 1.0)
    out.copy_(x)


def copied_first(x: Any, out: Any) -> None:
    out.copy_(x + 1.0)


def as_output() -> object:
    @foreign(checked=True)
    def op(x: Out[f32], y: Out[f32]) -> None: ...

    @op.on("torch")
    def _(x: Any, y: Any) -> None:
        over_input(x, y)

    with array_libraries(untyped(driver()).gpu.machine, "torch"):
        return op(zeros((6,)).partition((2,)), zeros((6,)).partition((2,))).sync()


def part_of(x: Any, count: int) -> FakeArray:
    return FakeArray(x.library, x.memory, x.address, (count,), (4,), x.dtype)


def too_long(x: Any, out: Any) -> None:
    part_of(out, 8).written_by(lambda: np.zeros(8, f32))


def in_scratch(nbytes: int) -> Callable[..., None]:
    def body(lane: Any, x: Any, out: Any, scratch: Any) -> None:
        gpu: Any = untyped(driver()).gpu
        places = scratch.address, out.address

        def act() -> None:
            gpu.bytes_at(places[0], nbytes)[...] = 0
            gpu.bytes_at(places[1], 24)[...] = 0

        gpu.machine.stream_of(lane.handle).put(act, enqueued=EnqueuedWork("kernel `f`", places))

    return body


case(
    lambda: checked(over_input),
    ("Declare it Out", as_output),
    ("write to a copy", lambda: checked(copied_first)),
    simulated=True,
)
case(
    lambda: checked(too_long),
    ("Keep to the shape and strides that it is given", lambda: checked(right)),
    simulated=True,
)
case(
    lambda: checked(in_scratch(20), scratch=16),
    ("Reserve what it needs in the declaration: reserve(nbytes)", lambda: checked(in_scratch(20), scratch=20)),
    simulated=True,
)
case(
    lambda: checked(unrelated),
    ("out.copy_(...) in PyTorch", lambda: checked(right)),
    simulated=True,
)


def on_numpy(body: Callable[..., object]) -> object:
    @foreign(checked=True)
    def op(x: In[f32]) -> Tensor[f32]:
        return new(x)

    op.host(body)
    return op(ones((6,))).sync()


def half(x: Any, out: Any) -> None:
    out[:3] = x[:3]


def whole(x: Any, out: Any) -> None:
    out[...] = x


case(lambda: on_numpy(half), ("Write all of it: out[...] = ...", lambda: on_numpy(whole)))
