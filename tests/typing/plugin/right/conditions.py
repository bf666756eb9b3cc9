"""Conditions about handles, and those that a program expects to be refused."""

# mypy: disable-error-code="truthy-bool,redundant-expr"

import pytest

from dagpu import NotReadyError
from tests.typing.plugin.kernels import eat, maybe, vector


def by_is() -> None:
    x = maybe()
    eat(x if x is not None else vector())


def of_a_list() -> None:
    ts = [vector()]
    if ts:
        eat(ts.pop())
    while ts:
        eat(ts.pop())


def of_what_a_tensor_says() -> None:
    x = vector()
    if x.shape and x.ndim != 2:
        eat(x)


def of_the_result_of_a_run() -> None:
    x = vector()
    if x.to_host().sync().sum() or False:
        print("some")


def refused_on_purpose() -> None:
    x = vector()
    with pytest.raises(NotReadyError):
        print(not x)
    try:
        if x:
            print("true")
    except NotReadyError:
        print("refused")


def of_what_items_say() -> None:
    xs = [vector().share()]
    print(any(x.shape for x in xs), all([xs]), any(x.ndim > 1 for x in xs), bool(xs))
    print([*filter(None, [xs])], [*filter(lambda x: x.ndim > 1, xs)])
