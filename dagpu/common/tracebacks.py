"""Tracebacks of errors that leave a run: the user's frames stay, dagpu's own go, and with them what the run held.

A traceback refers to the variables of every frame that an error came through, and each of these frames to the one that
called it: so to the tracer, bindings and handles of the run. Whoever kept the error (a test, a log, a retry) would keep
the run's memory.
"""

from collections.abc import Callable
from functools import wraps
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import Final, ParamSpec, TypeVar, cast

from dagpu.common.errors import DagpuError
from dagpu.common.origin import is_ours

_P = ParamSpec("_P")
_T = TypeVar("_T")
_C = TypeVar("_C", bound=Callable[..., object])


def without_our_frames(error: BaseException) -> BaseException:
    """The same error, with dagpu's frames taken out of its traceback, and out of those of its causes and parts; frames
    of dagpu's that have ended lose their variables, wherever they can be reached from.

    An error of dagpu's own making says all it has to say in its message. One of another type that comes out of dagpu's
    code may be a defect: the lines of frames that have ended stay in its traceback, for whoever mends that. Where the
    innermost frame is one that `passes_on` marks, what failed is the user's: a function of C, or a call with
    arguments that the function does not take.
    """
    todo, seen = [error], set[int]()
    while todo:
        found = todo.pop()
        if id(found) in seen:
            continue
        seen.add(id(found))
        entries = _entries(found.__traceback__)
        ended = {id(frame) for entry in entries for frame in _cleared(entry.tb_frame)}
        defect = entries and _may_be_a_defect(entries[-1].tb_frame) and not isinstance(found, DagpuError)
        kept = [e for e in entries if not _is_ours(e.tb_frame) or (defect and id(e.tb_frame) in ended)]
        found.__traceback__ = _joined(kept)
        todo += [other for other in (found.__cause__, found.__context__) if other is not None]
        if isinstance(found, BaseExceptionGroup):
            todo += found.exceptions
    return error


_passing: Final[set[CodeType]] = set()


def passes_on(caller: _C) -> _C:
    """Decorate a function of dagpu that calls a function of the user, or raises an earlier error again, and makes no
    errors itself: an error whose traceback ends in it is not a defect of dagpu."""
    _passing.add(cast(FunctionType, caller).__code__)
    return caller


def _may_be_a_defect(innermost: FrameType) -> bool:
    return _is_ours(innermost) and innermost.f_code not in _passing


def _is_ours(frame: FrameType) -> bool:
    return is_ours(frame.f_code.co_filename)


def _entries(first: TracebackType | None) -> list[TracebackType]:
    found = []
    while first is not None:
        found.append(first)
        first = first.tb_next
    return found


def _cleared(innermost: FrameType) -> list[FrameType]:
    """Those of a frame and its callers that are dagpu's and have ended, without their variables now."""
    found: list[FrameType] = []
    frame: FrameType | None = innermost
    while frame is not None:
        if _is_ours(frame):
            try:
                frame.clear()
                found.append(frame)
            except RuntimeError:  # it has not ended
                pass
        frame = frame.f_back
    return found


def _joined(entries: list[TracebackType]) -> TracebackType | None:
    later: TracebackType | None = None
    for entry in reversed(entries):
        later = TracebackType(later, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return later


def leaves_run(call: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate a public call that runs or traces ops: an error that leaves it has the user's frames alone, and refers
    to none of its arguments. `DeviceOp.sync`, which is called more often, has the same written out."""

    @wraps(call)
    def outermost(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return call(*args, **kwargs)
        except BaseException as error:
            without_our_frames(error)
            del args, kwargs  # this frame has not ended, and whatever refers to it will
            raise

    return outermost
