"""Lets a cancelled run end amid a long host body: one that dagpu has made works in parts, and stops between two."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar, final

_T = TypeVar("_T")


def _never() -> bool:
    return False


@final
class _Run(threading.local):
    """The run whose host body this thread executes."""

    def __init__(self) -> None:
        self.is_cancelled: Callable[[], bool] = _never


_run = _Run()


@contextmanager
def cancelled_by(is_cancelled: Callable[[], bool]) -> Iterator[None]:
    """Bodies that are called in the `with` block stop if this function returns True."""
    before, _run.is_cancelled = _run.is_cancelled, is_cancelled
    try:
        yield
    finally:
        _run.is_cancelled = before


def until_cancelled(parts: Iterable[_T]) -> Iterator[_T]:
    """Yield the parts of a body's work, and stop if its run is cancelled. What the body has not written then is
    discarded with the run."""
    is_cancelled = _run.is_cancelled
    for part in parts:
        if is_cancelled():
            return
        yield part
