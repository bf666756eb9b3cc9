"""`ResultFetch`: brings the values that the caller gets to this process while a run goes on.

A value that is here is not lost with its worker, and its memory there is free. Fetches are collected: one costs a few
milliseconds, however many values it brings.
"""

import asyncio
import contextlib
from typing import Any, Final, final

from dagpu.cluster.engine.run_state import RunState
from dagpu.cluster.tasks import Group, Task

_FETCH_SECONDS: Final = 0.05
"""The shortest time from one fetch to the next, unless all tasks are done."""


@final
class ResultFetch:
    """The fetches of one run. It is used in the event loop alone.

    Args:
        client: the client of Dask.
        state: the run.
        direct: true if the workers can be reached from this process; otherwise values come through the scheduler.
    """

    def __init__(self, client: Any, state: RunState, *, direct: bool) -> None:
        self.values: dict[Group, Any] = {}
        """The values that are here."""
        self._client = client
        self._state = state
        self._direct = direct
        self._ready: dict[Group, Any] = {}
        """The futures of values that are made and not here."""
        self._fetching: asyncio.Task[None] | None = None
        self._last = asyncio.Event()
        """Set once all tasks are done."""

    def note_done(self, task: Task) -> None:
        """Note that the values of a task are made, and begin to fetch those that the caller gets."""
        for group in self._state.values_of(task):
            if group in self._state.fetched and group not in self.values:
                self._ready[group] = self._state.futures[group]
        if len(self._state.done) == len(self._state.tasks):
            self._last.set()
        if self._ready and self._fetching is None:
            self._fetching = asyncio.get_running_loop().create_task(self._fetch())

    def is_complete(self) -> bool:
        """Return whether all values are here."""
        return len(self.values) == len(self._state.fetched)

    def stop(self) -> None:
        """End the fetch that is under way."""
        if self._fetching is not None:
            self._fetching.cancel()

    async def _fetch(self) -> None:
        """Fetch what is made, until nothing is left."""
        state, loop = self._state, asyncio.get_running_loop()
        try:
            while self._ready:
                begun, ready, self._ready = loop.time(), self._ready, {}
                batch = {group: future for group, future in ready.items() if self._is_there(group, future)}
                try:
                    found = await self._client.gather([*batch.values()], direct=self._direct)
                except Exception as error:
                    left = {group: future for group, future in batch.items() if self._is_there(group, future)}
                    if len(left) == len(batch):
                        state.errors[-1] = error
                        return
                    self._ready |= left  # the others are fetched once they are made again
                    state.lost |= state.is_lost()
                    state.changed.set()
                    continue
                for group, content in zip(batch, found, strict=True):
                    self.values[group] = content
                    state.kept.discard(group)
                    state.release_unused(group[0])
                if self.is_complete():
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(begun + _FETCH_SECONDS):
                        await self._last.wait()
        finally:
            self._fetching = None
            state.changed.set()

    def _is_there(self, group: Group, future: Any) -> bool:
        """Return whether a value is neither lost nor taken back by the run, to be made again."""
        return future.status != "cancelled" and self._state.futures.get(group) is future
