"""Places in the user's code: where ops are built and handles move, and which frames an error shows.

Every op records its origin, so recording is on the hot path. It stores the code object and the offset of the current
instruction, which takes 0.2 us. File and line are computed only when they are read.
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from dis import opmap
from functools import wraps
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR, CO_ITERABLE_COROUTINE
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar, cast, final

from dagpu.common.compiled import teach
from dagpu.common.errors import DagpuError

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


teach(origins=globals(), ours=_ours, is_ours=is_ours, started=_started)


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


# ---- tracebacks
#
# Tracebacks of errors that leave a run: they keep the user's frames and drop dagpu's, with the objects of the run.
#
# A traceback refers to each frame that the error passed through, and each frame refers to its variables and its caller:
# so to the tracer, bindings and handles of the run. Code that keeps the error (a test, a log, a retry) would keep the
# memory of the run.

_P = ParamSpec("_P")
_T = TypeVar("_T")
_C = TypeVar("_C", bound=Callable[..., object])


def without_our_frames(error: BaseException) -> BaseException:
    """Remove dagpu's frames from the traceback of an error, its causes and its parts, and return the error.

    Frames of dagpu that have ended also lose their variables.

    A `DagpuError` needs no traceback of dagpu's code, because its message is complete. An error of another type that
    comes out of dagpu's code may be a defect, so its traceback keeps the frames that have ended. It is not a defect if
    a `raise` of dagpu's has raised it, with a message of dagpu's; nor if `passes_on` marks the innermost frame: then a
    function of the user's failed, for example one written in C, or one called with wrong arguments.
    """
    todo, seen = [error], set[int]()
    while todo:
        found = todo.pop()
        if id(found) in seen:
            continue
        seen.add(id(found))
        entries = _entries(found.__traceback__)
        ended = {id(frame) for entry in entries for frame in _cleared(entry.tb_frame)}
        defect = bool(entries) and not _is_refusal(found, entries[-1])
        kept = [e for e in entries if not _is_ours(e.tb_frame) or (defect and id(e.tb_frame) in ended)]
        BaseException.with_traceback(found, _joined(kept))  # an error that is a frozen dataclass takes no assignment
        todo += [other for other in (found.__cause__, found.__context__) if other is not None]
        if isinstance(found, BaseExceptionGroup):
            todo += found.exceptions
    return error


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an error of the user's, once, however often it is raised. An error that takes no notes gets none:
    what comes out is the user's own error."""
    with suppress(Exception):
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)


_NO_LINE: Final = -1
"""The line for which a traceback gives None."""
_passing: Final[set[CodeType]] = set()


def passes_on(caller: _C) -> _C:
    """Decorate a function of dagpu that calls a function of the user's, or raises an earlier error again.

    An error whose traceback ends in such a function is not a defect of dagpu.
    """
    _passing.add(cast(FunctionType, caller).__code__)
    return caller


_RAISE: Final = opmap["RAISE_VARARGS"]
"""The instruction of `raise error`, and of a failed `assert`."""


_REFUSAL: Final = "refusal_of_dagpu"
"""The attribute of an error that was found to be no defect. A caller that it leaves later has no other way to tell."""


def _is_refusal(error: BaseException, innermost: TracebackType) -> bool:
    """Return true for an error that comes of the user's code, or by a statement `raise` of dagpu's. `innermost` is the
    last entry of its traceback."""
    if isinstance(error, DagpuError) or hasattr(error, _REFUSAL):
        return True
    code = innermost.tb_frame.f_code
    if not _is_ours(innermost.tb_frame) or code in _passing:
        return True
    if code.co_code[innermost.tb_lasti] != _RAISE or isinstance(error, AssertionError):
        return False
    with suppress(Exception):  # of a class that takes no attributes
        setattr(error, _REFUSAL, True)
    return True


_MAY_BE_SUSPENDED: Final = CO_COROUTINE | CO_GENERATOR | CO_ITERABLE_COROUTINE | CO_ASYNC_GENERATOR
_YIELD: Final = opmap["YIELD_VALUE"]
"""The instruction at which the frame of a suspended coroutine or generator stands, in Python 3.11 and 3.12."""


def _is_ours(frame: FrameType) -> bool:
    """Return true for a frame of dagpu's code."""
    return is_ours(frame.f_code.co_filename)


def _entries(first: TracebackType | None) -> list[TracebackType]:
    """Return the entries of a traceback, outermost first."""
    found = []
    while first is not None:
        found.append(first)
        first = first.tb_next
    return found


def _cleared(innermost: FrameType) -> list[FrameType]:
    """Clear the variables of the frame and its callers that are dagpu's and have ended, and return these frames."""
    found: list[FrameType] = []
    frame: FrameType | None = innermost
    while frame is not None:
        if _is_ours(frame) and not _is_suspended(frame):
            try:
                frame.clear()
                found.append(frame)
            except RuntimeError:  # it has not ended
                pass
        frame = frame.f_back
    return found


def _is_suspended(frame: FrameType) -> bool:
    """Return true for the frame of a coroutine or generator that may go on. To clear it would close that, before Python
    3.13, which refuses.

    Two kinds of such frames are found here. A coroutine that has caught the error, or its context, may wait for
    something else by now. And trio makes the `Cancelled` of a task in the task that cancels it.
    """
    code = frame.f_code
    return bool(code.co_flags & _MAY_BE_SUSPENDED) and frame.f_lasti >= 0 and code.co_code[frame.f_lasti] == _YIELD


def _joined(entries: list[TracebackType]) -> TracebackType | None:
    """Return a new traceback of these entries."""
    later: TracebackType | None = None
    for entry in reversed(entries):
        line: int | None = entry.tb_lineno  # None where Python knows no line: a signal may arrive between two lines
        later = TracebackType(later, entry.tb_frame, entry.tb_lasti, _NO_LINE if line is None else line)
    return later


def leaves_run(call: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate a public call that builds, traces or runs ops: errors that leave it have only the user's frames.

    Such an error refers to none of the arguments. The decorator takes 0.2 us in each call, so what programs call most
    often (`sync()`, `then`, `ones`, a kernel) contains the same code inline.
    """

    @wraps(call)
    def outermost(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return call(*args, **kwargs)
        except BaseException as error:
            without_our_frames(error)
            del args, kwargs  # this frame is still running, and the traceback refers to it
            raise

    return outermost


def scope_of_caller() -> dict[str, Any]:
    """Return the local variables of the function that called the caller of this one, for annotations that are text.

    A caller that `leaves_run` decorates is called by that function and not by the decorator's.
    """
    frame = sys._getframe(2)
    while frame.f_code is _OUTERMOST and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_locals


_OUTERMOST: Final = cast("FunctionType", leaves_run(scope_of_caller)).__code__
"""The code of all functions that `leaves_run` makes."""
