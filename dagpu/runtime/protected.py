"""Runs a coroutine in a trio task, protected from Ctrl-C at every bytecode, and in a critical section of dagpu."""

import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

import trio

from dagpu.common.critical import enter_section, restore_section, run_user_code

_T = TypeVar("_T")


@trio.lowlevel.enable_ki_protection
@types.coroutine
def protected(begin: Callable[[], Coroutine[Any, Any, _T]], what: str) -> Generator[Any, Any, _T]:
    """Await the coroutine that `begin` returns, each of its steps in a section of dagpu.common.critical.

    In frames called from here, except those of user functions, trio raises no Ctrl-C: it is raised at the next
    checkpoint, or wakes the task if that waits. Between two steps other tasks run, outside the section.

    Raises:
        NestedRunError: the thread is in a section already. The message contains `what`, the name of the call.
    """
    before = enter_section(what)
    try:
        coroutine = begin()
        awaited = coroutine.send(None)
    except StopIteration as end:
        result: _T = end.value
        return result
    finally:
        restore_section(before)
    step: Callable[[Any], Any]
    argument: Any
    while True:
        try:
            argument, step = (yield awaited), coroutine.send
        except BaseException as error:
            argument, step = error, coroutine.throw
        before = enter_section(what)
        try:
            awaited = step(argument)
        except StopIteration as end:
            result = end.value
            return result
        finally:
            restore_section(before)
            argument = None  # an exception that was thrown in must not keep this frame alive


trio.lowlevel.disable_ki_protection(run_user_code)
