"""What a trace keeps of the calls that build its ops, for a gradient to go back through them.

A `Recorder` is active while a function that is differentiated runs, and while the trace calls the closures of its op.
The calls that `recorded` decorates ask it then to build their op; at any other time that is one look-up more.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, Final, ParamSpec, Protocol, TypeVar, cast

from dagpu.common.places import without_our_frames

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Recorder(Protocol):
    """Who is told of the calls of a trace."""

    def call(self, function: object, build: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what `build(*args, **kwargs)` returns, an op, and see its arguments and its result in the trace.
        `function` says by which rule it is differentiated."""
        ...


RECORDER: Final[ContextVar[Recorder | None]] = ContextVar("dagpu_recorder", default=None)
"""The recorder that is active in this task or thread; None nearly always."""


@contextmanager
def recording_by(recorder: Recorder | None) -> Iterator[None]:
    """Within the `with` block this recorder is active; with None there is none."""
    token = RECORDER.set(recorder)
    try:
        yield
    finally:
        RECORDER.reset(token)


def recorded(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate a public function that builds an op of tensors, so that a gradient knows its calls."""

    @wraps(function)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        recorder = RECORDER.get()
        try:
            if recorder is None:
                return function(*args, **kwargs)
            return cast(_T, recorder.call(called, function, args, kwargs))
        except BaseException as error:
            without_our_frames(error)
            del args, kwargs  # this frame is still running, and the traceback refers to it
            raise

    return called
