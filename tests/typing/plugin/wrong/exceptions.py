"""A handle may have been moved when an exception comes by."""

from contextlib import suppress

from dagpu import PartitionError
from tests.typing.plugin.kernels import eat, give_up, no, total, vector, yes


def moved_in_try_read_in_except() -> None:
    t = vector()
    try:
        eat(t)
        give_up()
    except RuntimeError:
        print(t.shape)  # E: dagpu-use-after-move


def moved_in_try_read_in_finally() -> None:
    t = vector()
    try:
        eat(t)
    finally:
        print(t.shape)  # E: dagpu-use-after-move


def moved_in_try_read_in_else() -> None:
    t = vector()
    try:
        eat(t)
    except RuntimeError:
        print("failed")
    else:
        print(t.shape)  # E: dagpu-use-after-move


def moved_in_try_read_behind() -> None:
    t = vector()
    try:
        eat(t)
        give_up()
    except RuntimeError:
        print("failed")
    print(t.shape)  # E: dagpu-use-after-move


def moved_in_except_read_behind() -> None:
    t = vector()
    try:
        if yes():
            raise RuntimeError("for a test")
    except RuntimeError:
        eat(t)
    print(t.shape)  # E: dagpu-use-after-move


def moved_in_else_read_behind() -> None:
    t = vector()
    try:
        print("trying")
    except RuntimeError:
        print("failed")
    else:
        eat(t)
    total(t.borrow())  # E: dagpu-use-after-move


def moved_in_finally_read_behind() -> None:
    t = vector()
    try:
        print(t.shape)
    finally:
        eat(t)
    print(t.shape)  # E: dagpu-use-after-move


def moved_in_try_and_in_finally() -> None:
    t = vector()
    try:
        eat(t)
    finally:
        eat(t)  # E: dagpu-use-after-move


def returned_and_read_in_finally() -> None:
    def body() -> object:
        t = vector()
        try:
            return eat(t)
        finally:
            print(t.shape)  # E: dagpu-use-after-move

    body()


def left_by_break_and_read_in_finally() -> None:
    t = vector()
    for _ in range(2):
        try:
            eat(t)
            break
        finally:
            print(t.shape)  # E: dagpu-use-after-move


def one_of_two_handlers() -> None:
    t = vector()
    try:
        give_up()
    except ValueError:
        print("kept")
    except RuntimeError:
        eat(t)
    print(t.shape)  # E: dagpu-use-after-move


def in_a_group_of_errors() -> None:
    t = vector()
    try:
        eat(t)
        raise ExceptionGroup("both", [RuntimeError("one"), RuntimeError("two")])
    except* RuntimeError:
        print(t.shape)  # E: dagpu-use-after-move


def the_second_statement_fails() -> None:
    a, b = vector(), vector()
    try:
        eat(a)
        give_up()
        eat(b)
    except RuntimeError:
        print(b.shape, a.shape)  # E: dagpu-use-after-move


def made_anew_after_what_may_fail() -> None:
    t = vector()
    try:
        eat(t)
        if yes():
            give_up()
        t = vector()
    except RuntimeError:
        print("failed")
    print(t.shape)  # E: dagpu-use-after-move


def tried_again() -> None:
    t = vector()
    for _ in range(2):
        try:
            eat(t)  # E: dagpu-use-after-move
            give_up()
        except RuntimeError:
            continue


def in_a_nested_try() -> None:
    t = vector()
    try:
        try:
            eat(t)
            give_up()
        finally:
            print("inner")
    except RuntimeError:
        print(t.shape)  # E: dagpu-use-after-move


def raised_from_a_handler() -> None:
    t = vector()
    try:
        try:
            give_up()
        except RuntimeError as error:
            eat(t)
            raise ValueError("other") from error
    except ValueError:
        print(t.shape)  # E: dagpu-use-after-move


def suppressed() -> None:
    t = vector()
    with suppress(RuntimeError):
        eat(t)
        give_up()
    print(t.shape)  # E: dagpu-use-after-move


def moved_in_the_message() -> None:
    t = vector()
    try:
        raise ValueError(eat(t).ndim)
    except ValueError:
        print(t.shape)  # E: dagpu-use-after-move


def moved_before_what_was_refused() -> None:
    t = vector()
    try:
        t.reshape((2, 4)).partition((3, 3))
    except PartitionError:
        print(t.shape)  # E: dagpu-use-after-move


def in_a_with_block() -> None:
    t = vector()
    with memoryview(b"bytes") as view:
        eat(t)
    print(t.shape, view)  # E: dagpu-use-after-move


def in_the_head_of_a_with_block() -> None:
    t = vector()
    with memoryview(bytes(eat(t).shape)) as view:
        print(len(view), t.shape)  # E: dagpu-use-after-move


def moved_unless_it_fails() -> None:
    t = vector()
    try:
        if no():
            give_up()
        eat(t)
    except RuntimeError:
        return
    print(t.shape)  # E: dagpu-use-after-move


def moved_by_two_handlers_of_a_group() -> None:  # R: runs
    t = vector()
    try:
        print()
    except* ValueError:
        eat(t)
    except* KeyError:
        eat(t)  # E: dagpu-use-after-move
