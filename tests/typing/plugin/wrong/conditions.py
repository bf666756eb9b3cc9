"""A handle or an op is asked whether it is true."""

# mypy: disable-error-code="truthy-bool,redundant-expr"

import itertools
import operator

from dagpu import NotReadyError, zeros
from tests.typing.plugin.kernels import maybe, vector


def by_if() -> None:
    x = vector()
    if x:  # E: dagpu-not-ready
        print(x.shape)


def by_elif() -> None:
    x = maybe()
    if x is None:
        print("none")
    elif x:  # E: dagpu-not-ready
        print(x.shape)


def by_or() -> None:
    x = vector() or None  # E: dagpu-not-ready
    print(x)


def by_and_in_a_condition() -> None:
    x, n = vector(), 3
    if n and x:  # E: dagpu-not-ready
        print(n)


def by_not() -> None:
    x = vector()
    print(not x)  # E: dagpu-not-ready


def by_while() -> None:
    x = vector()
    while x:  # E: dagpu-not-ready
        print(x.shape)


def by_assert() -> None:
    x = vector().share()
    assert x, "none"  # E: dagpu-not-ready


def by_a_conditional_expression() -> None:
    x = vector()
    print(1 if x else 2)  # E: dagpu-not-ready


def in_a_comprehension() -> None:
    print([t.shape for t in (vector(), vector()) if t])  # E: dagpu-not-ready


def by_a_walrus() -> None:
    if x := vector():  # E: dagpu-not-ready
        print(x.shape)


def by_bool() -> None:
    print(bool(vector()))  # E: dagpu-not-ready


def of_a_loan() -> None:
    x = vector()
    if r := x.borrow():  # E: dagpu-not-ready
        print(r.shape)


def of_an_op() -> None:
    op = zeros((8,))
    if op:  # E: dagpu-not-ready
        op.sync()


def expected_elsewhere() -> None:
    x = vector()
    try:
        print(x.shape)
    except NotReadyError:
        pass
    if x:  # E: dagpu-not-ready
        print(x.shape)


def items_of_a_display() -> None:
    x = vector()
    print(any([x]))  # E: dagpu-not-ready
    print(all((x, True)))  # E: dagpu-not-ready


def items_of_a_list() -> None:
    xs = [vector().share()]
    print(all(xs))  # E: dagpu-not-ready
    print(any(x for x in xs))  # E: dagpu-not-ready
    print([*filter(None, xs)])  # E: dagpu-not-ready
    print([*itertools.takewhile(bool, xs)])  # E: dagpu-not-ready


def by_an_operator() -> None:
    print(operator.not_(vector().share()))  # E: dagpu-not-ready
