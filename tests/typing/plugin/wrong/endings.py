"""Handlers and assertions that are reached with a moved tensor."""

# ruff: noqa: B011, PT015  # the forms of assertions are the subject

from contextlib import suppress

from tests.typing.plugin.kernels import eat, no, vector, yes


def handler_of_an_assertion() -> None:
    t = vector()
    try:
        eat(t)
        assert False
    except AssertionError:
        print(t.shape)  # E: dagpu-use-after-move


def assertion_that_may_hold() -> None:
    t = vector()
    if yes():
        eat(t)
        assert yes()
    print(t.shape)  # E: dagpu-use-after-move


def finally_after_an_assertion() -> None:
    t = vector()
    try:
        eat(t)
        assert False
    finally:
        print(t.shape)  # E: dagpu-use-after-move


def assertion_that_is_true() -> None:
    t = vector()
    if yes():
        eat(t)
        assert True
    print(t.shape)  # E: dagpu-use-after-move


def ended_on_the_other_path() -> None:
    t = vector()
    if no():
        assert False
    else:
        eat(t)
    print(t.shape)  # E: dagpu-use-after-move


def suppressed_assertion() -> None:
    t = vector()
    with suppress(AssertionError):
        eat(t)
        assert False
    print(t.shape)  # E: dagpu-use-after-move
