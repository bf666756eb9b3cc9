"""Mistakes with kernels of Triton, Numba and cuTile: in declarations, and in launches on a simulated GPU."""

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from dagpu import (
    In,
    Out,
    array,
    c64,
    cutile_kernel,
    dup,
    f32,
    from_host,
    numba_kernel,
    triton_kernel,
    use_device,
    zeros,
)
from tests.behaviour.errors.cures.catalogue import Catalogue
from tests.behaviour.interop.python_kernels.stand_ins import AXPY, TRITON, InterpretedFunction, installed_triton
from tests.behaviour.interop.python_kernels.stand_ins import Tile as TileKernel

CATALOGUE = Catalogue()
case = CATALOGUE.add
_D = TypeVar("_D", f32, np.float64)
X = np.arange(16, dtype=f32)


def untyped(x: object) -> Any:
    return x


def declared(y: Out[f32], x: In[f32], a: float, n: int) -> None: ...


def other_order(x: In[f32], n: int, a: float, y: Out[f32]) -> None: ...


def swapped(y: In[f32], x: Out[f32], a: float, n: int) -> None: ...


def generic(y: Out[_D], x: In[_D], a: float, n: int) -> None: ...


def of_complex(y: Out[c64], x: In[c64], a: float, n: int) -> None: ...


def no_output(y: In[f32], x: In[f32], a: float, n: int) -> None: ...


def triton(
    jit: object = AXPY,
    declaration: Callable[..., None] = declared,
    then: Callable[[Any], object] = untyped,
    about: dict[str, object] | None = None,
    **options: Any,
) -> object:
    """Declare a kernel of Triton, and do something with it."""
    with installed_triton(TRITON[-1]) as fake:
        fake.about = about or {}
        made = untyped(triton_kernel)(jit, **{"constexprs": {"BLOCK": 4}} | options)(declaration)
        made.spec.host.function = lambda y, x, a, n: None
        return then(made)


def launched(kernel: Any, shape: tuple[int, ...] = (16,), tile: tuple[int, ...] = (4,), x: Any = None) -> object:
    return kernel(zeros(shape, f32).partition(tile), from_host(X) if x is None else x, 1.0, 16).sync()


def column(copied: Callable[[Any], Any] = untyped) -> Any:
    return copied(from_host(X.reshape(4, 4)).sync().slice(slice(0, 4), slice(0, 1)))


# ---- declarations
case(
    lambda: triton(jit=3),
    ("Pass a function that is decorated with @triton.jit", triton),
)
case(
    lambda: triton(declaration=untyped(3)),
    ("Decorate a `def` that names and types the kernel's parameters", triton),
)
case(
    lambda: triton(declaration=generic),
    ("Write the type: In[f32], Out[f32]", triton),
)
case(
    lambda: triton(declaration=of_complex),
    (
        "Pass its parts by themselves: array.real(t), array.imag(t)",
        lambda: triton(then=lambda k: [launched(k, x=f(zeros((16,), c64))) for f in (array.real, array.imag)]),
    ),
)
case(
    lambda: triton(declaration=other_order),
    ("Declare its parameters in their order, without the constants", triton),
)
case(
    lambda: triton(declaration=swapped),
    ("Declare it y: Out[float32]", triton),
)
case(
    lambda: triton(num_warps=3),
    ("Give 1, 2, 4, 8, 16 or 32", lambda: triton(num_warps=8)),
)
case(
    lambda: triton(constexprs={}),
    ('Give its value: constexprs={"BLOCK": ...}', triton),
)
case(
    lambda: triton(constexprs={"BLOCK": 4, "WIDTH": 3}),
    ("Leave it out, or match its name", triton),
)
case(
    lambda: triton(constexprs={"BLOCK": [4]}),
    ("Give a number, a text, a tuple, None, or a type of the library", triton),
)
case(
    lambda: triton(then=lambda kernel: kernel.block(64)),
    ("Say it where the kernel is declared", lambda: triton(num_warps=2)),
)
case(
    lambda: triton(jit=AXPY, declaration=no_output),
    ("Declare it y: Out[float32]", triton),
)


# ---- under TRITON_INTERPRET=1


def stores(y: Any, x: Any, a: Any, n: Any, BLOCK: int, PLACE: str) -> None:  # noqa: N803  # as Triton names constants
    """Store to the element of y that n says, unless it is masked, or to x."""
    access = untyped(sys.modules["triton.runtime.interpreter"])._interpreter  # noqa: SLF001  # Triton's name
    at = (y if PLACE != "input" else x).handle.data + np.uint64(4) * n.handle.data.astype(np.uint64)
    access.store(at, np.ones(1, f32), np.full(1, PLACE != "masked"))


def writes_x(y: In[f32], x: Out[f32], a: float, n: int) -> None: ...


def interpreted(place: str, declaration: Callable[..., None] = declared, then: Any = None) -> object:
    with installed_triton(TRITON[-1]), use_device("host"):
        kernel = untyped(triton_kernel)(InterpretedFunction(stores), constexprs={"BLOCK": 4, "PLACE": place})(
            declaration
        )
        if then is not None:
            return then(kernel)
        out, x = zeros((16,), f32).partition((4,)), from_host(X)
        return kernel(*((out, x) if declaration is declared else (x, out)), 1.0, 16 if place != "input" else 0).sync()


case(
    lambda: interpreted("beyond"),
    ("Mask the access", lambda: interpreted("masked")),
)
case(
    lambda: interpreted("input"),
    ("declare the tensor that it means", lambda: interpreted("input", writes_x)),
)
case(
    lambda: interpreted("masked", then=lambda kernel: kernel.compile(arch="sm_90")),
    ('Run it there: with use_device("host")', lambda: interpreted("masked")),
    ("unset TRITON_INTERPRET before Triton is imported", triton),
)


def plain(y: Any, a: Any, x: Any) -> None:
    y[0] = x[0]


def numba(function: object = plain, **options: Any) -> Any:
    def axpy(y: Out[f32], a: float, x: In[f32]) -> None: ...

    return untyped(numba_kernel)(function, **options)(axpy)


case(
    lambda: numba(3),
    ("Pass a plain function, or what @numba.cuda.jit makes of one", numba),
)
case(
    lambda: numba(lambda a: None),
    ("Declare its parameters in their order, without the constants", numba),
)
case(
    lambda: untyped(cutile_kernel)(plain)(declared),
    (
        "Pass a function that is decorated with @cuda.tile.kernel",
        lambda: untyped(cutile_kernel)(TileKernel(lambda y, x, a, n: None, ""))(declared),
    ),
)

# ---- launches
case(
    lambda: triton(then=lambda kernel: launched(kernel, (2, 1, 2, 4), (1, 1, 1, 1))),
    ("Reshape the output first", lambda: triton(then=launched)),
    ("give a grid: declared.grid(...)(...)", lambda: triton(then=lambda kernel: launched(kernel.grid(16)))),
    simulated=True,
)
case(
    lambda: triton(then=lambda kernel: launched(kernel, x=column())),
    ("Make it contiguous with dup(...)", lambda: triton(then=lambda kernel: launched(kernel, x=column(dup)))),
    simulated=True,
)
case(
    lambda: triton(about={"shared": 300_000}, then=launched),
    ("smaller tiles, num_warps or num_stages", lambda: triton(num_warps=2, num_stages=1, then=launched)),
    simulated=True,
)
case(
    lambda: triton(constexprs=lambda tile: {"BLOCK": tile[1]}, then=launched),
    ("Let it accept tiles of the output's rank", lambda: triton(constexprs=lambda t: {"BLOCK": t[0]}, then=launched)),
    simulated=True,
)
case(
    lambda: triton(constexprs=lambda tile: 4, then=launched),
    ('Return a dict: lambda tile: {"BLOCK": tile[0]}', lambda: triton(constexprs=lambda t: {"BLOCK": t[0]})),
    simulated=True,
)
