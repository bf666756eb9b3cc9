"""Origins: the places in the user's code that build ops and move handles.

Every op records its origin, so recording is on the hot path. It stores the code object and the offset of the current
instruction, which takes 0.2 us. File and line are computed only when they are read.
"""

import sys
from contextvars import ContextVar
from types import CodeType, FrameType
from typing import Any, TypeAlias, final

Origin: TypeAlias = tuple[CodeType, int] | None
"""A code object and the byte offset of an instruction in it; None if origins are turned off."""

_PACKAGE = __file__.rsplit("common", 1)[0]
_ours: dict[str, bool] = {}
_frame_above = sys._getframe
_enabled = True


def record_origins(enabled: bool) -> bool:
    """Turn the recording of origins on or off for the whole process, and return the previous setting.

    Without origins each op costs about 0.2 us less, and errors say "an unknown place".

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
    """Return true for a source file of dagpu."""
    ours = _ours.get(filename)
    if ours is None:
        ours = _ours[filename] = filename.startswith(_PACKAGE) or filename == "<string>"
    return ours


def is_ours_at(origin: Origin) -> bool:
    """Return true for a place in dagpu's own code."""
    return origin is not None and is_ours(origin[0].co_filename)


def here() -> Origin:
    """Return the origin of the innermost frame outside dagpu; None if origins are turned off."""
    if not _enabled:
        return None
    nearest = _frame_above(2)
    code = nearest.f_code
    if _ours.get(code.co_filename) is False:  # nearly always: user code called the caller of this
        return code, nearest.f_lasti
    return _innermost_outside(nearest)


def _innermost_outside(frame: FrameType | None) -> Origin:
    """Return the origin of this frame or its nearest caller that is outside dagpu; None if all are inside."""
    while frame is not None:
        code = frame.f_code
        ours = _ours.get(code.co_filename)
        if ours is None:
            ours = is_ours(code.co_filename)
        if not ours:
            return code, frame.f_lasti
        frame = frame.f_back
    return None


def here_outside(*modules: str) -> Origin:
    """Return the origin of the innermost frame outside dagpu and outside these modules of the standard library.

    For errors only, because it is slower than `here`.
    """
    frame: FrameType | None = _frame_above(1)
    while frame is not None and (is_ours(frame.f_code.co_filename) or frame.f_globals.get("__name__") in modules):
        frame = frame.f_back
    return None if frame is None or not _enabled else (frame.f_code, frame.f_lasti)


_started: ContextVar[Origin] = ContextVar("dagpu_started", default=None)


@final
class StartedAt:
    """A `with` block that sets the place where runs in this task start.

    `spawn` runs its op in a new task, whose nearest frame outside dagpu belongs to trio.
    """

    __slots__ = ("_origin", "_token")

    def __init__(self, origin: Origin) -> None:
        self._origin = origin

    def __enter__(self) -> None:
        self._token = _started.set(self._origin)

    def __exit__(self, *_error: object) -> None:
        _started.reset(self._token)


def start_of_run(depth: int = 1) -> Origin:
    """Return the origin of a run that starts now.

    It is the place that `StartedAt` sets, else the innermost frame outside dagpu. The search begins `depth` frames
    above this function: the frames below are dagpu's.
    """
    started = _started.get()
    if started is not None:
        return started
    if not _enabled:
        return None
    frame: FrameType | None = _frame_above(depth)
    while frame is not None:  # as in `_innermost_outside`, without a call
        code = frame.f_code
        ours = _ours.get(code.co_filename)
        if not ours:
            return (code, frame.f_lasti) if ours is False else _innermost_outside(frame)
        frame = frame.f_back
    return None


def place_of(origin: Origin) -> tuple[str, int] | None:
    """Return the file and line of an origin; None for an unknown place. A cell of a notebook is named `In[3]`."""
    if origin is None:
        return None
    code, at = origin
    file = _cell_name(code.co_filename) if "ipykernel_" in code.co_filename else code.co_filename
    for start, end, line in code.co_lines():
        if start <= at < end and line is not None:
            return file, line
    return file, code.co_firstlineno


def _cell_name(file: str) -> str:
    """Return the name that Jupyter shows for a cell, which is compiled under the name of a temporary file."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    named = None if shell is None else shell.compile.format_code_name(file)
    return file if named is None else str(named[1])


def describe(origin: Origin) -> str:
    """Return an origin as text: `file.py:12`, or "an unknown place"."""
    place = place_of(origin)
    return "an unknown place" if place is None else f"{place[0]}:{place[1]}"
