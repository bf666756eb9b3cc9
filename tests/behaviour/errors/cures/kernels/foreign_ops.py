"""Mistakes with foreign ops: in declarations, in bodies and in calls."""

from collections.abc import Callable
from typing import Any

import numpy as np

from dagpu import In, Lazy, Out, Tensor, dup, f32, foreign, from_host, ones, pipeline, share_array, zeros
from dagpu.interop import current_lane, extent, new, require, reserve
from tests.behaviour.errors.cures.catalogue import Catalogue
from tests.behaviour.interop.foreign_ops.foreign_programs import affine, product, shifted
from tests.simulated.array_libraries import array_libraries
from tests.simulated.cuda import driver
from tests.simulated.foreign_arrays import Library

CATALOGUE = Catalogue()
case = CATALOGUE.add
A = np.ones((2, 3), f32)


def untyped(x: object) -> Any:
    return x


def declared(declaration: Any = None, **options: Any) -> Any:
    """A foreign op `op(x)` with a new tensor, or with this declaration."""
    if declaration is None:

        def op(x: In[f32]) -> Tensor[f32]:
            return new(x)

        declaration = op
    return untyped(foreign)(**options)(declaration)


def called(declaration: Any) -> object:
    return untyped(foreign)(declaration)(ones((2, 3)).sync())


# ---- declarations
case(
    lambda: declared(capture="maybe"),
    ('Write capture="auto", "never" or "required"', lambda: declared(capture="never")),
)
case(
    lambda: untyped(foreign)(3),
    ("Decorate a def that names and types the parameters", declared),
)


def unannotated(x: In[f32]):  # type: ignore[no-untyped-def]  # noqa: ANN201  # reason: it is what is refused
    return new(x)


def shaped(x: In[f32]) -> Tensor[f32]:
    return new((untyped(x).shape[0],), f32)


def extended(x: In[f32]) -> Tensor[f32]:
    return new((extent(x, 0),), f32)


def alike(x: In[f32]) -> Tensor[f32]:
    return new(x)


case(
    lambda: called(shaped),
    ("Read an extent: extent(x, 0)", lambda: called(extended)),
    ("A result of that shape and element type is new(x)", lambda: called(alike)),
)


def with_out(y: Out[f32]) -> Tensor[f32]:
    return new((1,), f32)


def nothing_written(x: In[f32]) -> None: ...


def out_alone(y: Out[f32]) -> None: ...


def lazily(x: In[f32], by: Lazy[float]) -> Tensor[f32]:
    return new(x)


def by_number(x: In[f32], by: float) -> Tensor[f32]:
    return new(x)


case(
    lambda: declared(unannotated),
    ("Annotate it -> None if its outputs are Out parameters", lambda: declared(out_alone)),
    ("-> Tensor[f32] if they are new tensors", declared),
)
case(
    lambda: declared(with_out),
    ("Annotate it -> None", lambda: declared(out_alone)),
    ("make that output a new tensor too", declared),
)
case(
    lambda: declared(nothing_written),
    ("Annotate a parameter Out[f32]", lambda: declared(out_alone)),
    ("return new(...)", lambda: called(lambda_new)),
)
case(lambda: declared(lazily), ("Annotate it float", lambda: declared(by_number)))


def lambda_new(x: In[f32]) -> Tensor[f32]:
    return new(x)


def not_returned(x: In[f32]) -> Tensor[f32]:
    new(x)
    other: Tensor[f32] = untyped(x)
    return other


def computing(x: In[f32]) -> Tensor[f32]:
    return new(untyped(x) + 1)


case(
    lambda: called(computing),
    ("Compute in a body; read an extent by extent(x, 0)", lambda: called(whole_axis)),
)


def wrong_axis(x: In[f32]) -> Tensor[f32]:
    return new((extent(x, 2),), f32)


def text_axis(x: In[f32]) -> Tensor[f32]:
    return new((extent(x, untyped("0")),), f32)


def whole_axis(x: In[f32]) -> Tensor[f32]:
    return new((extent(x, 0),), f32)


def extent_of_text(x: In[f32]) -> Tensor[f32]:
    return new((extent(untyped("x"), 0),), f32)


def no_element(x: In[f32]) -> Tensor[f32]:
    return new((2,), untyped("text"))


def negative(x: In[f32]) -> Tensor[f32]:
    reserve(-1)
    return new(x)


def reserving(x: In[f32]) -> Tensor[f32]:
    reserve(0)
    return new(x)


case(lambda: called(not_returned), ("Return what each new(...) gives, in that order", lambda: called(lambda_new)))
case(
    lambda: called(wrong_axis),
    (
        "Reshape it before: t.reshape(shape)",
        lambda: untyped(foreign)(wrong_axis)(ones((2, 3)).reshape((1, 2, 3)).sync()),
    ),
)
case(lambda: called(text_axis), ("Write extent(x, 0), say", lambda: called(whole_axis)))
case(lambda: called(extent_of_text), ("Pass a tensor parameter of the declaration", lambda: called(whole_axis)))
case(lambda: called(no_element), ("Write new(shape, f32), or new(x), say", lambda: called(lambda_new)))
case(lambda: called(negative), ("Give a number of bytes, 0 or more", lambda: called(reserving)))
case(
    lambda: require(True, "outside"),
    ("Call it in the function that @foreign decorates", lambda: product(from_host(A), from_host(A.T.copy())).sync()),
)
case(
    lambda: product(from_host(A), from_host(A)),
    (
        "Pass arguments that the declaration at",
        lambda: product(from_host(A), from_host(A.T.copy())).sync(),
    ),
)


# ---- bodies
def body(x: Any, out: Any) -> None:
    out[...] = x


def registered(register: Callable[[Any], object]) -> Any:
    op = declared()
    register(op)
    return op


def twice(op: Any) -> None:
    op.host(body)
    op.host(body)


async def suspended(x: Any, out: Any) -> None: ...


case(
    lambda: declared().on("jax"),
    ('Write "torch", "cupy" or "numba"', lambda: declared().on("torch")(body)),
    ("use raw for others", lambda: declared().raw(lambda lane, x, out: None)),
)
case(lambda: declared().host(3), ("Decorate a function, def", lambda: declared().host(body)))
case(lambda: declared().host(suspended), ("Write a plain function: def", lambda: declared().host(body)))
case(lambda: registered(twice), ("Keep one of them", lambda: registered(lambda op: op.host(body))))
case(
    lambda: declared().on("cupy")(lambda x: None),
    ("Give the body the declaration's parameters in their order", lambda: declared().on("cupy")(body)),
)
case(
    lambda: declared().raw(lambda x: None),
    ("then one for each new tensor", lambda: declared().raw(lambda lane, x, out: None)),
)
case(
    current_lane,
    ("Call it in the body", lambda: on_gpu(lambda op: op.raw(asking))),
    simulated=True,
)


def asking(lane: Any, x: Any, out: Any) -> None:
    assert current_lane() is lane


def on_gpu(register: Callable[[Any], object], *names: str, on_host: bool = False) -> object:
    op = registered(register)
    with array_libraries(untyped(driver()).gpu.machine, *names):
        run = op(ones((2, 3)))
        return run.on("host").sync() if on_host else run.sync()


def copying(op: Any) -> None:
    def copies(x: Any, out: Any) -> None:
        out.copy_(x)

    op.on("torch")(copies)


def returning(op: Any) -> None:
    def copies(x: Any, out: Any) -> Any:
        return x

    op.on("torch", host=True)(copies)


def with_numpy(op: Any) -> None:
    copying(op)
    op.host(body)


case(
    lambda: on_gpu(returning, "torch"),
    ("out.copy_(...) in PyTorch", lambda: on_gpu(copying, "torch")),
    ("out[...] = ... in CuPy", lambda: on_gpu(lambda op: op.on("cupy")(body), "cupy")),
    simulated=True,
)
case(
    lambda: on_gpu(with_numpy),
    ("Install one: pip install torch", lambda: on_gpu(with_numpy, "torch")),
    ('On the host it needs none: op.on("host")', lambda: on_gpu(with_numpy, on_host=True)),
    simulated=True,
)
case(
    lambda: on_gpu(lambda op: op.host(body)),
    ('Give it one: @op.on("torch")', lambda: on_gpu(with_numpy, "torch")),
    ("@op.raw", lambda: on_gpu(lambda op: op.raw(lambda lane, x, out: None))),
    ('op.on("host")', lambda: on_gpu(with_numpy, on_host=True)),
    simulated=True,
)


def on_torch_tensors(op: Any) -> None:
    def copies(x: Any, out: Any) -> None:
        out.copy_(x)

    op.on("torch", host=True)(copies)


case(
    lambda: on_gpu(on_torch_tensors, on_host=True),
    ("Install it: pip install torch", lambda: on_gpu(on_torch_tensors, "torch", on_host=True)),
    ("give the op a NumPy body with @op.host", lambda: on_gpu(with_numpy, on_host=True)),
    simulated=True,
)


# ---- in graphs
def captured(capture: str, wait: bool) -> object:
    op = declared(capture=capture)

    def copies(x: Any, out: Any) -> None:
        out.copy_(x)
        if wait and current_lane().capturing:
            out.item()

    op.on("torch")(copies)

    with array_libraries(untyped(driver()).gpu.machine, "torch"):
        x = ones((2, 3)).sync().share()
        step = pipeline(graph_from=2)(lambda t: op(t))
        return [step(x).sync() for _ in range(3)] if capture != "captured" else op(x).graph()


def of_reversed(before: Callable[[Any], Any]) -> object:
    machine = untyped(driver()).gpu.machine
    theirs = Library(machine).array(np.zeros(4, f32))
    x = share_array(theirs.interface(data=(theirs.address + 12, True), strides=(-4,)), f32)
    op = registered(copying)
    with array_libraries(machine, "torch"):
        return op(before(x)).sync()


case(lambda: of_reversed(lambda x: x), ("Copy it before the call: dup(x)", lambda: of_reversed(dup)), simulated=True)


def as_graph(capture: str) -> object:
    op = declared(capture=capture)
    copying(op)
    with array_libraries(untyped(driver()).gpu.machine, "torch"):
        return op(ones((2, 3))).graph()


case(
    lambda: captured("required", wait=True),
    ("Take out of it what waits for the device (.item(), .cpu())", lambda: captured("required", wait=False)),
    ('declare it with @foreign(capture="never")', lambda: captured("never", wait=True)),
    simulated=True,
)
case(
    lambda: as_graph("never"),
    ('Declare it with @foreign(capture="auto")', lambda: as_graph("auto")),
    simulated=True,
)
case(
    lambda: untyped(shifted)(zeros((2,)).partition((1,)), ones((3,)), 1.0).sync(),
    ("Pass arguments that the declaration at", lambda: affine(ones((2,)), 1.0).sync()),
)
