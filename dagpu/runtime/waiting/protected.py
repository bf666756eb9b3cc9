"""Runs a coroutine in a trio task, protected from Ctrl-C at every bytecode, and in a critical section of dagpu."""

import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, TypeVar

import trio

from dagpu.common.critical import CRITICAL, CURRENT_THREAD, refuse_nested, run_user_code

_T = TypeVar("_T")


@trio.lowlevel.enable_ki_protection
@types.coroutine
def await_steps(steps: Generator[Any, Any, _T]) -> Generator[Any, Any, _T]:
    """Await what a generator such as `protected` does. Only a method `__await__` may return such a generator as it
    is."""
    return (yield from steps)


@trio.lowlevel.enable_ki_protection
def protected(coroutine: Coroutine[Any, Any, _T], what: str) -> Generator[Any, Any, _T]:
    """Do the steps of a coroutine, each in a section of dagpu.common.critical.

    In frames called from here, except those of user functions, trio raises no Ctrl-C: it is raised at the next
    checkpoint, or wakes the task if that waits. Between two steps other tasks run, outside the section.

    Raises:
        NestedRunError: the thread is in a section already. The message contains `what`, the name of the call.
    """
    step: Callable[[Any], Any] = coroutine.send
    argument: Any = None
    while True:
        thread = CURRENT_THREAD.state  # as by `enter_section` and `restore_section`, without two calls for each step
        before = thread.where
        if before == CRITICAL:
            coroutine.close()
            refuse_nested(what)
        thread.where = CRITICAL
        try:
            awaited = step(argument)
        except StopIteration as end:
            result: _T = end.value
            return result
        finally:
            thread.where = before
            argument = None  # an exception that was thrown in must not keep this frame alive
        try:
            argument, step = (yield awaited), coroutine.send
        except BaseException as error:
            argument, step = error, coroutine.throw


@trio.lowlevel.disable_ki_protection
async def await_user(awaitable: Awaitable[_T]) -> _T:
    """Await what is the user's, which Ctrl-C may interrupt, in a task of dagpu's, which it may not."""
    return await awaitable


trio.lowlevel.disable_ki_protection(run_user_code)
