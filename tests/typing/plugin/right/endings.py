"""Branches that end the program or raise: what moves in them has not moved behind them."""

# ruff: noqa: B011, PLW0129, PT015, PT018, SIM223  # the forms of assertions and exits are the subject

import os
import sys
from typing import Literal, NoReturn, assert_never

from tests.typing.plugin.kernels import async_vector, eat, give_up, no, vector, yes


class Fail:
    """Has a method that never returns."""

    def fail(self) -> NoReturn:
        raise ValueError

    async def never(self) -> NoReturn:
        raise ValueError


def assert_false() -> None:
    t = vector()
    if no():
        eat(t)
        assert False
    print(t.shape)


def assert_false_with_a_message() -> None:
    t = vector()
    if no():
        eat(t)
        assert False, "no"
    print(t.shape)


def assert_zero() -> None:
    t = vector()
    if no():
        eat(t)
        assert 0
    print(t.shape)


def exit_of_sys() -> None:
    t = vector()
    if no():
        eat(t)
        sys.exit(1)
    print(t.shape)


def exit_of_the_shell() -> None:
    t = vector()
    if no():
        eat(t)
        exit()
    print(t.shape)


def function_that_never_returns() -> None:
    t = vector()
    if no():
        eat(t)
        give_up()
    print(t.shape)


def raise_of_system_exit() -> None:
    t = vector()
    if no():
        eat(t)
        raise SystemExit
    print(t.shape)


def exit_of_os() -> None:
    t = vector()
    if no():
        eat(t)
        os._exit(1)
    print(t.shape)


def abort() -> None:
    t = vector()
    if no():
        eat(t)
        os.abort()
    print(t.shape)


def method_that_never_returns() -> None:
    t = vector()
    if no():
        eat(t)
        Fail().fail()
    print(t.shape)


async def coroutine_that_never_returns() -> None:
    t = await async_vector()
    if no():
        eat(t)
        await Fail().never()
    print(t.shape)


def argument_that_never_returns() -> None:
    t = vector()
    if no():
        eat(t)
        print(give_up())
    print(t.shape)


def loop_without_an_end() -> None:
    t = vector()
    if no():
        eat(t)
        while True:
            pass
    print(t.shape)


def under_finally() -> None:
    t = vector()
    try:
        if no():
            eat(t)
            assert False
    finally:
        print(1)
    print(t.shape)


def in_a_loop() -> None:
    t = vector()
    for _ in range(3):
        if no():
            eat(t)
            assert False, "never"
    print(t.shape)


def last_case() -> None:
    t = vector()
    match yes():
        case True:
            pass
        case _:
            eat(t)
            assert False
    print(t.shape)


def right_operand() -> None:
    t = vector()
    x = yes() or (eat(t), give_up())
    print(t.shape, x)


def assert_not_true() -> None:
    t = vector()
    if no():
        eat(t)
        assert not True
    print(t.shape)


def nested_function_that_never_returns() -> None:
    t = vector()

    def fail() -> NoReturn:
        raise ValueError

    if no():
        eat(t)
        fail()
    print(t.shape)


def quit_of_the_shell() -> None:
    t = vector()
    if no():
        eat(t)
        quit()
    print(t.shape)


def raise_of_an_assertion_error() -> None:
    t = vector()
    if no():
        eat(t)
        raise AssertionError
    print(t.shape)


def assert_none() -> None:
    t = vector()
    if no():
        eat(t)
        assert None
    print(t.shape)


def assert_empty_string() -> None:
    t = vector()
    if no():
        eat(t)
        assert ""
    print(t.shape)


def assert_debug_and_false() -> None:
    t = vector()
    if no():
        eat(t)
        assert __debug__ and False
    print(t.shape)


def assert_never_of_a_union() -> None:
    def use(x: int | str) -> None:
        t = vector()
        if isinstance(x, int):
            print(t.shape)
        elif isinstance(x, str):
            print(t.ndim)
        else:
            eat(t)
            assert_never(x)
        print(t.shape)

    use(1)


def assert_never_of_a_literal() -> None:
    def use(mode: Literal["a", "b"]) -> None:
        t = vector()
        match mode:
            case "a" | "b":
                pass
            case _:
                eat(t)
                assert_never(mode)
        print(t.shape)

    use("a")
