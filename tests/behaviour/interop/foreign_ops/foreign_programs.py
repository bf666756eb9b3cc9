"""Foreign ops for tests, with bodies for every library."""

from typing import Any

from dagpu import In, Out, Tensor, f32, foreign
from dagpu.interop import extent, new, require, reserve


@foreign
def affine(x: In[f32], by: float, plus: float = 0.0) -> Tensor[f32]:
    """x * by + plus"""
    return new(x)


@affine.on("torch", host=True)
def _(x: Any, by: float, plus: float, out: Any) -> None:
    out.copy_(x * by + plus)


@affine.on("cupy")
def _(x: Any, by: float, plus: float, out: Any) -> None:
    out[...] = x * by + plus


@affine.host
def _(x: Any, by: float, plus: float, out: Any) -> None:
    out[...] = x * f32(by) + f32(plus)


@foreign
def product(a: In[f32], b: In[f32]) -> Tensor[f32]:
    """a @ b"""
    require(extent(a, 1) == extent(b, 0), f"the inner extents {extent(a, 1)} and {extent(b, 0)} differ")
    return new((extent(a, 0), extent(b, -1)), f32)


@product.on("torch")
def _(a: Any, b: Any, out: Any) -> None:
    out.copy_(a @ b)


@product.on("cupy", host=True)
def _(a: Any, b: Any, out: Any) -> None:
    out[...] = a @ b


@foreign
def shifted(y: Out[f32], x: In[f32], by: float) -> None:
    """y = x + by, the same for each partition of y"""
    require(extent(y, 0) == extent(x, 0), "y and x have other lengths")


@shifted.on("torch", host=True)
def _(y: Any, x: Any, by: float) -> None:
    y.copy_(x + by)


@shifted.on("cupy", host=True)
def _(y: Any, x: Any, by: float) -> None:
    y[...] = x + by


@foreign
def halves(x: In[f32]) -> tuple[Tensor[f32], Tensor[f32]]:
    """(x + 1, 2 x)"""
    return new(x), new(x)


@halves.on("torch")
def _(x: Any, first: Any, second: Any) -> None:
    first.copy_(x + 1.0)
    second.copy_(x * 2.0)


@halves.on("cupy", host=True)
def _(x: Any, first: Any, second: Any) -> None:
    first[...] = x + f32(1)
    second[...] = x * f32(2)


@foreign
def scratched(x: In[f32]) -> Tensor[f32]:
    """-x, by way of scratch memory"""
    reserve(4 * extent(x, 0))
    return new(x)


@scratched.host
def _(x: Any, out: Any) -> None:
    out[...] = -x
