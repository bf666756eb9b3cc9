"""Gradients by way of what has none, of values that are gone, and rules and trees that do not fit."""

from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from dagpu import (
    array,
    c64,
    convert,
    dup,
    expr,
    f32,
    f64,
    from_host,
    i32,
    ones,
    value,
    zeros,
)
from dagpu.grad import (
    Parameterized,
    adam,
    assert_gradient,
    derivative,
    grad,
    gradient_of,
    momentum,
    sgd,
    stop_gradient,
    updated,
    value_and_grad,
    vjp,
    zip_parameters,
)
from tests.behaviour.errors.cures.catalogue import TILE, Catalogue, N, Program, add, new, scale

CATALOGUE = Catalogue()
case = CATALOGUE.add

T = TypeVar("T")


@dataclass(frozen=True)
class Pair(Parameterized[T]):
    """Two leaves."""

    a: T
    b: T

    def mapped(self, f: Any, /) -> "Pair[Any]":
        return Pair(f(self.a), f(self.b))


@dataclass(frozen=True)
class Bare(Parameterized[T]):
    """A tree without its method."""

    a: T


@dataclass(frozen=True)
class NoTree:
    """A dataclass that is no tree."""

    a: Any


square: Any = expr(f32)(lambda x: x * x)
fine: Any = expr(f64)(lambda x: x * x)
plus: Any = expr(f32, f32)(lambda x, y: x + y)
doubled: Any = expr(f32)(lambda x: 2 * x)
turned: Any = expr(f64, f64)(lambda x, y: array.nextafter(x, y))


def leaf() -> Any:
    return ones((N,)).sync().share()


def of(f: Any, *args: Any) -> Program:
    """A program that differentiates a function."""
    return lambda: value_and_grad(f)(leaf(), *args).sync()


def largest(x: Any) -> Any:
    """A call without a rule."""
    return array.scatter_max(zeros((N,)), from_host(np.arange(N)), x)


def total(x: Any) -> Any:
    return array.sum(square(x))


def with_rule(f: Any, rule: Any) -> Any:
    """A function of ops with this rule."""
    return gradient_of(lambda *xs: f(*xs))(rule)


def scaled(x: Any) -> Any:
    """A kernel's launch, which has no rule."""
    return add(zeros((N,)).partition(TILE), x).first().unpartition()


# ---- without a rule
case(
    of(lambda x: array.sum(array.unique(x))),
    ("keep it out: stop_gradient(x)", of(lambda x: array.sum(x) + array.sum(array.unique(stop_gradient(x))))),
)
case(
    of(lambda x: array.sum(scaled(x))),
    ("build it of functions of dagpu.array", of(lambda x: array.sum(doubled(x)))),
    ("Give it a rule (gradient_of)", of(lambda x: array.sum(with_rule(scaled, lambda g, y, x: doubled(g))(x)))),
    ("keep it out: stop_gradient(x)", of(lambda x: array.sum(plus(x, scaled(stop_gradient(x)))))),
)
case(
    of(lambda x: array.abs(array.prod(convert(x, c64)))),
    ("Compute with their parts as real numbers", of(lambda x: array.prod(array.real(convert(x, c64))))),
    (
        "keep them out: stop_gradient(x)",
        of(lambda x: array.sum(x) + array.abs(array.prod(convert(stop_gradient(x), c64)))),
    ),
)
case(
    of(lambda x: array.sum(array.fft(x))),
    (
        "Make a real number of it: array.real(y), array.imag(y), or array.abs(y)",
        lambda: value_and_grad(
            lambda x: array.sum(array.fft(x)).share().then(lambda y: array.real(y) + array.imag(y) + array.abs(y))
        )(leaf()).sync(),
    ),
)
case(
    of(lambda x: array.sum(with_rule(lambda y: plus(y, x), lambda g, y, x: g)(square(x)))),
    (
        "Pass each tensor as an argument of its own",
        of(lambda x: array.sum(with_rule(plus, lambda g, y, a, b: (g, g))(square(x), x))),
    ),
    (
        "keep it out: stop_gradient(x)",
        of(lambda x: stop_gradient(x).then(lambda c: array.sum(with_rule(lambda y: plus(y, c), lambda g, y, x: g)(x)))),
    ),
)
case(
    of(lambda x: array.sum(convert(x.view(i32), f32))),
    ("Compute with the values themselves", of(lambda x: array.sum(square(x)))),
    (
        "keep them out: stop_gradient(x)",
        of(lambda x: stop_gradient(x).then(lambda c: array.sum(plus(x, convert(c.view(i32), f32))))),
    ),
)
case(
    of(lambda x: array.sum(largest(x))),
    ("keep it out: stop_gradient(x)", of(lambda x: array.sum(plus(x, largest(stop_gradient(x)))))),
)
case(
    lambda: grad(lambda x: array.sum(turned(x, 1.0)))(from_host(np.ones(2)).sync().share()).sync(),
    (
        "Keep it out of what is differentiated: stop_gradient(x)",
        lambda: grad(lambda x: array.sum(fine(stop_gradient(x))))(from_host(np.ones(2)).sync().share()).sync(),
    ),
)
case(
    of(lambda x: array.sum(array.dropout(x, 0.5))),
    ("array.dropout(x, p, seed=n)", lambda: of(lambda x: array.sum(array.dropout(x, 0.5, seed=3)))()),
)


# ---- values that are gone
def changed_after(keep: bool) -> Any:
    """Square a value, and write over it."""

    def go_on(t: Any) -> Any:
        def change(s: Any) -> Any:
            kept: Any = dup(t) if keep else value(t)
            changed: Any = kept.then(lambda t: doubled.update(t.partition(TILE)).first().unpartition())
            return changed.then(lambda y: plus(array.sum(y), s))

        return array.sum(square(t.borrow())).then(change)

    wave: Any = array.sin
    return lambda x: wave(x).then(go_on)


case(of(changed_after(keep=False)), ("Give the one that writes a copy: dup(x)", lambda: of(changed_after(keep=True))()))


def overwritten(x: Any, own: bool) -> Any:
    kept = dup(stop_gradient(x)) if own else square(x)
    return kept.then(lambda y: scale(y.partition(TILE), 2.0).first().unpartition()).then(
        lambda y: array.sum(plus(x, y))
    )


case(
    of(lambda x: overwritten(x, own=False)),
    ("Write to memory of its own there", of(lambda x: overwritten(x, own=True))),
)


# ---- leaves and values
def moved() -> Any:
    x = leaf()
    op = value_and_grad(total)(x)
    return op, x


def run_moved() -> None:
    op, x = moved()
    x.try_unwrap()
    op.sync()


case(run_moved, ("Share it: t.share()", lambda: value_and_grad(total)(new().share()).sync()))
case(
    lambda: value_and_grad(lambda m: total(m[0]))((one := leaf(), one)).sync(),
    (
        "make a copy of it: dup(x)",
        lambda: value_and_grad(lambda m: total(m[0]))((leaf(), dup(leaf()).sync().share())).sync(),
    ),
)
unchecked: Any = value_and_grad
case(
    lambda: unchecked(total)(new()),
    ("t.share()", lambda: unchecked(total)(new().share())),
    ("from_host(x).sync().share()", lambda: unchecked(total)(from_host(np.ones(N, f32)).sync().share())),
)
case(
    lambda: unchecked(total)(ones((N,), i32).sync().share()),
    ("pass it as an argument after the first", lambda: unchecked(lambda x, _: total(x))(leaf(), 1)),
    ("or convert it", lambda: unchecked(total)(convert(ones((N,), i32), f32).sync().share())),
)
case(of(square), ("Add them up, array.sum(y)", lambda: of(lambda x: array.sum(square(x)))()),
     ("vjp(f, x, cotangent=g)", lambda: vjp(square, leaf(), cotangent=leaf()).sync()))  # fmt: skip
case(of(lambda x: array.argmax(x)), ("Return the op of one", of(lambda x: array.amax(x))))
case(of(lambda x: value(3)), ("Return the op of one", of(total)))
case(of(lambda x: 3), ("Return one", of(total)))
case(
    lambda: vjp(square, leaf(), cotangent=ones((N // 2,))).sync(),
    ("Pass one like the value", lambda: vjp(square, leaf(), cotangent=ones((N,))).sync()),
)


# ---- rules of one's own
case(
    of(lambda x: array.sum(with_rule(square, lambda g, y, x: array.sum(g))(x))),
    ("Return one like the argument", of(lambda x: array.sum(with_rule(square, lambda g, y, x: doubled(g))(x)))),
)
case(
    of(lambda x: array.sum(with_rule(square, lambda g, y, x: (g, g))(x))),
    ("Return one for each", of(lambda x: array.sum(with_rule(square, lambda g, y, x: (doubled(g),))(x)))),
)


def ruled_twice(again: Any) -> None:
    def function(x: Any) -> Any:
        return square(x)

    def rule(g: Any, y: Any, x: Any) -> Any:
        return doubled(g)

    expression: Any = expr(f32)(lambda x: x)
    gradient_of(expression)(rule)
    gradient_of(expression if again else function)(rule)


case(lambda: ruled_twice(again=True), ("Keep one of them", lambda: ruled_twice(again=False)))
wrongly: Any = gradient_of
case(lambda: wrongly(3), ("Apply it to kernel.new", lambda: wrongly(scale.new if hasattr(scale, "new") else square)))
case(lambda: wrongly(total)(3), ("Decorate a function", lambda: wrongly(total)(lambda g, y, x: g)))


# ---- functions of elements
slope: Any = derivative
case(
    lambda: slope(square),
    ("expr(f32)(derivative(f))", lambda: expr(f32)(derivative(lambda x: x * x))),
)
case(lambda: slope(lambda x: x, 1), ("Give the number of one, from 0 to 0", lambda: slope(lambda x: x, 0)))
case(
    lambda: expr(i32)(slope(lambda x: x * x)),
    ("Convert them: x.to(f32)", lambda: expr(i32)(lambda x: slope(lambda x: x * x)(x.to(f32)))),
)
case(
    lambda: expr(f32, f32)(slope(lambda x, y: array.nextafter(x, y))),
    ("Keep it out", lambda: expr(f32, f32)(lambda x, y: array.nextafter(slope(lambda x: x * x)(x), y))),
)


# ---- trees
case(
    lambda: unchecked(total)(NoTree(leaf())),
    ("Derive it from Parameterized", lambda: unchecked(lambda m: total(m.a))(Pair(leaf(), leaf()))),
)
case(
    lambda: unchecked(lambda m: total(m.a))(Bare(leaf())),
    ("Return the class itself", lambda: unchecked(lambda m: total(m.a))(Pair(leaf(), leaf()))),
)
zipped: Any = zip_parameters
case(
    lambda: zipped(Pair(1, 2), (1, 2)),
    ("Pass two of one class and form", lambda: zipped(Pair(1, 2), Pair(3, 4))),
)


# ---- updates and checks
def update(*states: Any, lent: bool = True) -> Any:
    model: Any = new().borrow_mut() if lent else new()
    changed: Any = updated
    return changed(model, lambda m: value_and_grad(total)(m), lambda w, g, *_: sgd(w, g, 0.1), *states)


case(lambda: update(lent=False), ("Lend each", lambda: update().sync()))
case(
    lambda: update((new().borrow_mut(), new().borrow_mut())),
    ("Pass trees of one form", lambda: update(new().borrow_mut())),
)


def stepped(step: Any) -> Any:
    """A model of two tensors, each changed by a step."""
    lent: Any = (new().borrow_mut(), new().borrow_mut())
    return updated(lent, lambda m: unchecked(lambda m: total(m[0] * m[1]))(m), step)


def adapted(squares: Any) -> Any:
    """A step of Adam of complex elements."""
    w: Any = zeros((N,), c64).sync()
    m, v = zeros(w.shape, c64).sync(), zeros(w.shape, squares).sync()
    step: Any = adam
    return step(w.borrow_mut(), ones(w.shape, c64).sync().share(), m.borrow_mut(), v.borrow_mut(), 1.0).sync()


case(lambda: adapted(c64), ("Begin with real zeros: zeros(w.shape, f32)", lambda: adapted(f32)))


def sped(shape: tuple[int, ...]) -> Any:
    """A step with momentum, with speeds of this shape."""
    w, speed = zeros((N,)).sync(), zeros(shape).sync()
    step: Any = momentum
    return step(w.borrow_mut(), ones((N,)).sync().share(), speed.borrow_mut(), 0.1).sync()


case(lambda: sped((1,)), ("Give all of them one shape", lambda: sped((N,))))
less: Any = expr(f32, f32)(lambda w, g: w - 0.1 * g)
unwritten: list[Any] = [lambda w, g: w - 0.1 * g, lambda w, g: value(w), lambda w, g: less(w, g)]
for bad in unwritten:
    case(
        partial(lambda step: stepped(step).sync(), bad),
        ("sgd(w, g, rate)", lambda: stepped(lambda w, g: sgd(w, g, 0.1)).sync()),
        ("f.update(w.partition(tile), g)", lambda: stepped(lambda w, g: less.update(w.partition(TILE), g)).sync()),
    )
loose: Any = assert_gradient
case(
    lambda: loose(total, leaf()),
    ("convert(t, f64)", lambda: loose(lambda x: array.sum(fine(x)), convert(leaf(), f64).sync().share())),
)
