"""The rule of stencils: what an element has given to its neighbours comes back from them."""

from functools import lru_cache
from typing import Any

from dagpu import arrays as array
from dagpu.arrays.stencils import Stencil
from dagpu.common.layout import Shape
from dagpu.grad.cotangents import Cotangent, Steps, total
from dagpu.grad.element_derivatives import Form, applied
from dagpu.grad.element_rules import derivative_of, expression_of
from dagpu.grad.reverse import OF_COMPLEX, RULES, CallBack
from dagpu.grad.rules import without_border
from dagpu.ops.creation import zeros


def _stencil(back: CallBack) -> Steps:
    """With y[i] = f(x[i + o], ...) the gradient of x[j] is the sum over the offsets o of g[j - o] times the derivative
    of f by that neighbour at j - o: of a linear f it is a stencil too, with the offsets turned around, and 0 beyond the
    border. What lies beyond a border of x was read from within."""
    made: Stencil[Any, Any] = back.function
    shape = back.shape("x")
    if 0 in shape:
        return {"x": zeros(shape, back.g.dtype.type)}
    slopes = [derivative_of(made.traced, (Form(number),)) for number in range(len(made.offsets))]
    if all(each is None for each in slopes):
        return {"x": None}
    radius = max(1, *[abs(each) for offset in made.offsets for each in offset])
    g = yield from back.whole_g()
    if all(each is None or each.reads == ("g0",) for each in slopes):
        turned = _turned(made, radius)
        if made.border == "constant":
            return {"x": turned(g)}
        wide = yield turned(array.pad(g, radius))
    else:
        wide = yield from _of_neighbours(made, slopes, radius, g, back.read("x"))
    pairs = [(radius, radius)] * len(shape)
    return {"x": (yield from without_border(wide, shape, pairs, made.border))}


@lru_cache(maxsize=256)
def _turned(made: "Stencil[Any, Any]", radius: int) -> "Stencil[Any, Any]":
    """Return the stencil of the gradient of a linear one."""

    def added(g: Any) -> Any:
        found: Any = None
        for number, offset in enumerate(made.offsets):
            slope = derivative_of(made.traced, (Form(number),))
            if slope is not None:
                (part,) = applied(slope.traced, [g[tuple([-each for each in offset])]])
                found = part if found is None else found + part
        return found

    turned: Stencil[Any, Any] = array.stencil(made.traced.dtype.type, radius, border="constant")(added)
    return turned


def _of_neighbours(made: "Stencil[Any, Any]", slopes: list[Any], radius: int, g: Any, x: Any) -> Steps:
    """Return the gradient of x with its border, one launch for each neighbour and one that puts it in its place."""
    shape = x.shape
    padded = yield array.pad(x, radius, made.border, constant_values=made.value.real.item())
    wide: Shape = tuple([n + 2 * radius for n in shape])
    parts: list[Cotangent] = []
    for offset, slope in zip(made.offsets, slopes, strict=True):
        if slope is None:
            continue
        given = [g if read == "g0" else padded[_place(made.offsets[int(read)], radius, shape)] for read in slope.reads]
        found = yield expression_of(slope.traced)(*given)
        widths = tuple([(radius + each, radius - each) for each in offset])
        parts.append(Cotangent((yield array.pad(found, widths)), wide, slope.traced.dtype))
    return (yield from total(parts)).value


def _place(offset: Shape, radius: int, shape: Shape) -> tuple[slice, ...]:
    """Return where the neighbours at an offset are in a tensor with its border."""
    return tuple([slice(radius + each, radius + each + n) for each, n in zip(offset, shape, strict=True)])


RULES["stencil"] = _stencil
OF_COMPLEX.add("stencil")
