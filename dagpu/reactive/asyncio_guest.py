"""`in_trio`: a function of trio's in a program of asyncio, such as a notebook. Trio is a guest of asyncio's loop."""

import asyncio
from collections.abc import Awaitable, Callable
from types import CoroutineType
from typing import TYPE_CHECKING, Final, TypeVar, TypeVarTuple

import trio

from dagpu.common.places import describe, here_outside, without_our_frames
from dagpu.common.wrong_arguments import wrong_argument

if TYPE_CHECKING:
    from outcome import Outcome

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

_ASYNCIO: Final = ("asyncio.base_events", "asyncio.events", "asyncio.runners", "asyncio.tasks")
"""The modules whose frames may be above a task of asyncio."""


async def in_trio(function: Callable[[*_Ts], Awaitable[_T]], /, *args: *_Ts) -> _T:
    """Await an async function of trio's, for feeds, flows, `spawn` and nurseries, in a task of asyncio.

        async def two_values():
            async with observe(op) as feed:
                return await feed.next(), await feed.next()

        await in_trio(two_values)                # a cell of a notebook

    Trio runs on asyncio's loop, in the same thread and with the context of the task, so both go on beside each other. A
    thread has one loop of trio's at a time: put what belongs together into one function with a nursery. A cancellation
    by asyncio cancels the function, and its runs are drained.

    Raises:
        RuntimeError: no loop of asyncio runs in this thread, or one of trio's does already.
        TypeError: `function` is no function.
    """
    try:
        return await _as_guest(function, args)
    except BaseException as error:
        without_our_frames(error)
        del function, args  # this frame is still running, and the traceback refers to it
        raise


async def _as_guest(function: Callable[[*_Ts], Awaitable[_T]], args: tuple[*_Ts]) -> _T:
    if not callable(function):
        if isinstance(function, CoroutineType):
            function.close()  # else Python warns that it was never awaited
        cure = "Pass the async function itself, without calling it: in_trio(main)"
        raise wrong_argument("in_trio", here_outside(*_ASYNCIO), "function", function, "an async function", cure)
    if trio.lowlevel.in_trio_run():
        raise RuntimeError(
            f"in_trio at {describe(here_outside(*_ASYNCIO))}: trio runs in this thread already. Await the function "
            "there, or put what belongs together into one function with a nursery."
        )
    loop, scope = asyncio.get_running_loop(), trio.CancelScope()
    done: asyncio.Future[Outcome[_T]] = loop.create_future()

    async def work() -> _T:
        with scope:
            return await function(*args)
        raise asyncio.CancelledError

    trio.lowlevel.start_guest_run(
        work,
        run_sync_soon_threadsafe=loop.call_soon_threadsafe,
        done_callback=done.set_result,
        host_uses_signal_set_wakeup_fd=True,
    )
    cancelled = False
    while not done.done():
        try:
            await asyncio.shield(done)
        except asyncio.CancelledError:  # also a second one, while the runs are drained
            cancelled = True
            scope.cancel()
    value = done.result().unwrap()
    if cancelled:
        raise asyncio.CancelledError
    return value
