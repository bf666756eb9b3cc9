"""The place in the user's code where an op was built or a handle was moved.

Every op records its origin, so this is on the hot path: it keeps the code object and the index of its current
instruction, which takes 0.2 us. File and line are computed only when they are read.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import CodeType, FrameType
from typing import TypeAlias

Origin: TypeAlias = tuple[CodeType, int] | None
"""The code object and the byte offset of its current instruction; None where origins are turned off."""

_PACKAGE = __file__.rsplit("common", 1)[0]
_ours: dict[str, bool] = {}
_frame_above = sys._getframe
_enabled = True


def record_origins(enabled: bool) -> bool:
    """Turn the recording of origins on or off for the whole process; gives back what it was before.

    Off saves about 0.2 us for each op; errors then say "an unknown place".

    Raises:
        TypeError: `enabled` is neither True nor False.
    """
    global _enabled
    if not isinstance(enabled, bool):
        raise TypeError(
            f"record_origins at {describe(here())}: enabled is {enabled!r}, but True or False is wanted. Say "
            "record_origins(True) or record_origins(False)."
        )
    before, _enabled = _enabled, enabled
    return before


def is_ours(filename: str) -> bool:
    """True for a file of the package itself."""
    ours = _ours.get(filename)
    if ours is None:
        ours = _ours[filename] = filename.startswith(_PACKAGE) or filename == "<string>"
    return ours


def here() -> Origin:
    """The innermost frame outside dagpu, or None when origins are off."""
    if not _enabled:
        return None
    nearest = _frame_above(2)
    code = nearest.f_code
    if _ours.get(code.co_filename) is False:  # nearly always: the user called what called this
        return code, nearest.f_lasti
    frame: FrameType | None = nearest
    while frame is not None:
        code = frame.f_code
        ours = _ours.get(code.co_filename)
        if ours is None:
            ours = is_ours(code.co_filename)
        if not ours:
            return code, frame.f_lasti
        frame = frame.f_back
    return None


def here_but_for(*modules: str) -> Origin:
    """The innermost frame that is neither in dagpu nor in these modules of the standard library. For errors: it takes
    longer than `here`."""
    frame: FrameType | None = _frame_above(1)
    while frame is not None and (is_ours(frame.f_code.co_filename) or frame.f_globals.get("__name__") in modules):
        frame = frame.f_back
    return None if frame is None or not _enabled else (frame.f_code, frame.f_lasti)


_started: ContextVar[Origin] = ContextVar("dagpu_started", default=None)


@contextmanager
def started_at(origin: Origin) -> Iterator[None]:
    """Set the place where runs within the `with` block, in this task, count as started. `spawn` is called in another
    task than the one that runs its op, and the nearest frame of that one is trio's."""
    token = _started.set(origin)
    try:
        yield
    finally:
        _started.reset(token)


def start_of_run() -> Origin:
    """The place where a run that begins now was started: the innermost frame outside dagpu, or the place that
    `started_at` sets."""
    return _started.get() or here()


def place_of(origin: Origin) -> tuple[str, int] | None:
    """File and line of an origin."""
    if origin is None:
        return None
    code, at = origin
    for start, end, line in code.co_lines():
        if start <= at < end and line is not None:
            return code.co_filename, line
    return code.co_filename, code.co_firstlineno


def describe(origin: Origin) -> str:
    """An origin as `file.py:12`, or "an unknown place"."""
    place = place_of(origin)
    return "an unknown place" if place is None else f"{place[0]}:{place[1]}"
