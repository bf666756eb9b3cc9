"""Hypothesis strategies for descriptions of random well-formed ops; see `tests.programs.expressions`."""

from typing import Literal

from hypothesis import strategies as st

from dagpu import RoundRobin, SchedulingPolicy, SingleStream
from tests.programs.expressions import (
    CHANGES,
    MAKERS,
    Call,
    Change,
    Expr,
    Lent,
    Let,
    Make,
    Number,
    Shape2,
    Update,
    Var,
    Write,
)

_extents = st.integers(1, 5)
shapes = st.tuples(_extents, _extents)
policies: st.SearchStrategy[SchedulingPolicy] = st.one_of(
    st.just(SingleStream()), st.builds(RoundRobin, st.integers(1, 4))
)


@st.composite
def makes(draw: st.DrawFn, shape: Shape2) -> Make:
    """Draw a creation op of a shape."""
    return Make(shape, draw(st.sampled_from(MAKERS)), draw(st.integers(-4, 4)))


@st.composite
def expressions(
    draw: st.DrawFn,
    shape: Shape2,
    depth: int = 4,
    scope: tuple[Shape2, ...] = (),
    *,
    writes: bool = True,
    borrows: bool = True,
) -> Expr:
    """Draw a description of a tensor of a shape. It may contain a `Var` for each shape in `scope`.

    The value of a `Let` contains no `writes`, because it does not run if it is not used. Inside a closure there are no
    `borrows` either, because the lender is made by a run.
    """
    known = [index for index, bound in enumerate(scope) if bound == shape]
    kinds = ["make"] + ["lent"] * borrows + ["var"] * 3 * bool(known)
    if depth:
        kinds += ["let"] * 2 + ["call"] * 4 + ["change"] * 4 + ["write", "update"] * (writes and borrows)

    def part(shape: Shape2, depth: int = depth - 1, scope: tuple[Shape2, ...] = scope, writes: bool = writes) -> Expr:
        return draw(expressions(shape, depth, scope, writes=writes, borrows=borrows))

    def number() -> Number:
        source = part((1, 2), depth // 2) if depth > 1 and draw(st.integers(0, 3)) == 3 else None
        return Number(draw(st.integers(-3, 3)), draw(st.booleans()), source)

    match draw(st.sampled_from(kinds)):
        case "make":
            return draw(makes(shape))
        case "lent":
            return Lent(draw(makes(shape)))
        case "var":
            return Var(draw(st.sampled_from(known)))
        case "let":
            bound = draw(st.one_of(st.just(shape), shapes))
            return Let(part(bound, writes=False), part(shape, scope=(*scope, bound)))
        case "change":
            return Change(shape, draw(st.sampled_from(CHANGES)), part(shape), draw(st.integers(-4, 4)))
        case "write":
            lent = draw(makes(draw(shapes)))
            return Write(lent, number(), part(lent.shape, depth // 2), part(shape), _tile(draw, lent.shape))
        case "update":
            again = draw(st.booleans())  # if so, it has the shape of the whole
            lent = draw(makes(shape if again else draw(shapes)))
            x, rest = part(lent.shape, depth // 2), part(shape)
            return Update(lent, number(), x, rest, _tile(draw, lent.shape), draw(st.integers(0, 3)), again)
        case _:
            pass
    name: Literal["add", "scale", "axpy", "matmul"] = draw(st.sampled_from(["add", "scale", "axpy", "matmul"]))
    left, right = shape, shape
    if name == "matmul":
        inner = draw(_extents)
        left, right = (shape[0], inner), (inner, shape[1])
    x = part(left)
    y = x if name == "scale" else part(right)
    way: Literal["direct", "zipped", "unzipped"] = draw(st.sampled_from(["direct", "zipped", "unzipped"]))
    return Call(shape, name, x, y, number() if name in ("scale", "axpy") else Number(1), _tile(draw, shape), way)


def _tile(draw: st.DrawFn, shape: Shape2) -> Shape2:
    return draw(st.integers(1, shape[0])), draw(st.integers(1, shape[1]))


descriptions = shapes.flatmap(expressions)
"""Descriptions of any shape, without free variables."""
