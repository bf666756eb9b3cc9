"""A run in a trio task: protected from Ctrl-C at every bytecode, and known to stand in a critical section."""

import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

import trio

from dagpu.common.critical import enter, leave, user_code

_T = TypeVar("_T")


@trio.lowlevel.enable_ki_protection
@types.coroutine
def protected(begin: Callable[[], Coroutine[Any, Any, _T]], what: str) -> Generator[Any, Any, _T]:
    """Await the coroutine that `begin` returns, each of its steps in a section of dagpu.common.critical.

    Trio raises a Ctrl-C in no frame that was called from here, but for functions of the user's: it comes at the next
    checkpoint, or wakes the task where that waits. Between two steps other tasks run, which stand in no section.

    Raises:
        NestedRunError: the thread is in a section; `what` names the call.
    """
    before = enter(what)
    try:
        coroutine = begin()
    finally:
        leave(before)
    step: Callable[[Any], Any] = coroutine.send
    argument: Any = None
    while True:
        before = enter(what)
        try:
            awaited = step(argument)
        except StopIteration as end:
            result: _T = end.value
            return result
        finally:
            leave(before)
            argument = None  # an exception that was thrown in must not keep this frame
        try:
            argument, step = (yield awaited), coroutine.send
        except BaseException as error:
            argument, step = error, coroutine.throw


trio.lowlevel.disable_ki_protection(user_code)
