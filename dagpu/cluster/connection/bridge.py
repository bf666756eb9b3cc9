"""The bridge between Dask's event loop, on a thread of its own, and the tasks of trio and the threads that wait for it.

A wait takes no thread: one call goes to the loop, and one call comes back, by the pipe of
`dagpu.runtime.waiting.trio_waits`.
"""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar, final

from dagpu.backends.common.worker_threads import start_thread
from dagpu.backends.protocol import Failure
from dagpu.runtime.waiting.trio_waits import TrioWaits

_T = TypeVar("_T")


@final
class Bridge:
    """A thread with an asyncio loop."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        start_thread(self._thread)

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        pending = asyncio.all_tasks(self.loop)
        for task in pending:
            task.cancel()
        if pending:
            self.loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    def call(self, coroutine: Coroutine[Any, Any, _T]) -> "BridgedCall[_T]":
        """Start a coroutine in the loop."""
        return BridgedCall(asyncio.run_coroutine_threadsafe(coroutine, self.loop))

    def block(self, coroutine: Coroutine[Any, Any, _T], timeout: float | None = None) -> _T:
        """Run a coroutine in the loop, and block this thread until it is done."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout)

    async def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine in the loop, and suspend this trio task until it is done. A cancellation cancels the
        coroutine, and is raised once that has ended."""
        call = self.call(coroutine)
        await TrioWaits(has_yielded=True).wait_for_run(call, 0.0)
        return call.result()

    def stop(self) -> None:
        """End the loop and its thread."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(10.0)


@final
class BridgedCall(Generic[_T]):
    """A coroutine under way in the loop. Implements `dagpu.backends.protocol.Run`, so that all waits are alike."""

    def __init__(self, future: "concurrent.futures.Future[_T]") -> None:
        self._future = future

    def result(self) -> _T:
        """Return the result, or raise the error, of a coroutine that has ended."""
        return self._future.result(0)

    def done(self) -> bool:
        return self._future.done()

    def wait(self, timeout: float | None = None) -> bool:
        concurrent.futures.wait([self._future], timeout)
        return self._future.done()

    def poll(self, seconds: float) -> bool:
        return self._future.done()

    def succeeds(self, seconds: float) -> bool:
        return self._future.done() and not self._future.cancelled() and self._future.exception() is None

    @property
    def cancellable(self) -> bool:
        return True

    def readable(self) -> None:
        return

    def woken(self) -> None:
        return

    def when_done(self, wake: Callable[[], None]) -> None:
        self._future.add_done_callback(lambda _: wake())

    def cancel(self) -> None:
        self._future.cancel()

    def failures(self) -> list[Failure]:
        return []

    def spoilt(self) -> None:
        return None
