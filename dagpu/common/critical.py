"""Critical sections: code of dagpu into which neither Ctrl-C nor a finaliser can break.

A run takes locks, claims and handles, and starts work that uses memory. An exception between any two bytecodes of it
could leave a lock taken for ever, or give memory back while a kernel writes it. Two things can run in between on the
same thread, and both are held off here, for all code that stands in a section:

- **Signal handlers.** On the main thread SIGINT goes to `_Hold` while a section is open. It calls the handler that was
  there before, keeps what that raises, tells the run to cancel its work, and raises when the section ends: by then the
  work has been drained and everything has been given back. Under trio a run is a coroutine, and trio's own handler asks
  whether a stack frame is protected, so `dagpu.runtime` marks the frames of a run instead.
- **Finalisers.** The garbage collector may call a `__del__` anywhere, and that may run an op. A run inside the
  bookkeeping of another one is refused with `NestedRunError`, so no lock is asked for twice by one thread.

Functions of the user's that dagpu calls (closures, policies) are not critical: `call_user` leaves the section for their
length, so Ctrl-C ends an endless loop in a closure at once.

Rejected: a flag that a handler looks at cannot be set and cleared exactly around a call of user code (trio,
`_core/_ki.py`); masking SIGINT for the thread only makes another thread take the signal and the main thread run the
handler.
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from importlib import import_module
from types import FrameType
from typing import Any, Final, NoReturn, TypeAlias, TypeVar, final

from dagpu.common.errors import NestedRunError
from dagpu.common.origin import describe, here, is_ours
from dagpu.common.tracebacks import passes_on

_T = TypeVar("_T")

_raw_signal: Any = import_module("_signal")
"""The module behind `signal`: its functions take 0.3 us each, those of `signal`, which convert to enums, 2 us."""
_set_handler: Callable[[int, Any], Any] = _raw_signal.signal
_handler_of: Callable[[int], Any] = _raw_signal.getsignal

_OUTSIDE: Final = 0
_CRITICAL: Final = 1
_USERS: Final = 2

_SIGINT: Final = int(signal.SIGINT)

PRESSES: Final = 3
"""Number of Ctrl-C within `PRESS_SECONDS` that ends the process while a cancelled run waits for its work to end."""

PRESS_SECONDS: Final = 1.0

SIGNALS_SECONDS: Final = 0.1
"""Seconds for which a thread may block without checking for signals. A signal that comes just before the thread goes to
sleep does not wake it."""

Handler: TypeAlias = Callable[[int, FrameType | None], Any]


class _Thread(threading.local):
    """The section that the current thread is in."""

    where = _OUTSIDE
    hold: "_Hold | None" = None
    """The object that defers Ctrl-C on this thread; None on threads that get no signals, and outside sections."""


_thread = _Thread()
_main_thread = threading.main_thread().ident


# ---- functions of the user's ---------------------------------------------------------------------------------------


def call_user(f: Callable[[Any], _T], argument: Any) -> _T:
    """Call a function of the user's: Ctrl-C may break into it, and ops that it runs are refused.

    A Ctrl-C that has come since the section began is raised first: between two functions of the user's nothing is half
    done, so a trace of many closures ends at the next one. Under trio the driver of the trace looks for one.
    """
    hold = _thread.hold
    if hold is not None:
        hold.check()
    before = _thread.where
    _thread.where = _USERS
    try:
        return user_code(f, argument)
    finally:
        _thread.where = before


@passes_on
def user_code(f: Callable[[Any], _T], argument: Any) -> _T:
    """The frame by which signal handlers know that a function of the user's was called."""
    return f(argument)


def enter_user_code() -> int:
    """Say that this thread runs functions of the user's from now on; `leave` ends it. Ops that they run are refused."""
    before, _thread.where = _thread.where, _USERS
    return before


def in_user_code() -> bool:
    """True while dagpu calls a function of the user on this thread."""
    return _thread.where == _USERS


# ---- impatience ----------------------------------------------------------------------------------------------------


@final
class _Presses:
    """The Ctrl-C of the last second."""

    def __init__(self) -> None:
        self._times: list[float] = []

    def clear(self) -> None:
        """Forget them."""
        self._times.clear()

    def add(self) -> None:
        """Count one more. The last but one says what the next will do, and the last ends the process."""
        now = time.monotonic()
        self._times = [press for press in self._times if now - press <= PRESS_SECONDS]
        self._times.append(now)
        if len(self._times) >= PRESSES:
            _end_process()
        if len(self._times) == PRESSES - 1:
            _say("dagpu: work that has begun is being waited for; one more Ctrl-C within a second ends the process")


@final
class _Patience:
    """While tasks of a trio loop drain cancelled runs: Ctrl-C goes to the loop's handler, and is counted."""

    def __init__(self) -> None:
        self._tasks = 0
        self._previous: Handler = signal.default_int_handler
        self._presses = _Presses()

    def __enter__(self) -> None:
        if threading.get_ident() != _main_thread:
            return
        previous = _handler_of(_SIGINT)
        if not self._tasks and callable(previous):
            self._previous = previous
            self._presses.clear()
            _set_handler(_SIGINT, self)
            self._presses.add()  # what cancelled the run, more often than not
        self._tasks += 1

    def __exit__(self, *_error: object) -> None:
        if threading.get_ident() != _main_thread:
            return
        self._tasks -= 1
        if not self._tasks and _handler_of(_SIGINT) is self:
            _set_handler(_SIGINT, self._previous)
            self._previous = signal.default_int_handler

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        self._presses.add()
        self._previous(signum, frame)


patience: Final = _Patience()
"""A `with` block for the length of a drain in a trio task: a third Ctrl-C within a second ends the process."""


def _end_process() -> NoReturn:
    """End the process at once, as an unhandled Ctrl-C does. The work of devices is not waited for."""
    _say(f"dagpu: {PRESSES} Ctrl-C within a second: the process ends, and work on devices is not waited for")
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.raise_signal(signal.SIGINT)
    os._exit(128 + _SIGINT)  # where SIGINT is blocked


def _say(text: str) -> None:
    try:
        os.write(2, f"{text}\n".encode())
    except OSError:
        pass  # nobody reads


_forks = 0


def forks() -> int:
    """Number of forks between this process and the first. A claim of a run in a parent process is never given back
    here."""
    return _forks


def _after_fork() -> None:
    global _forks, _main_thread
    _forks += 1
    _main_thread = threading.get_ident()  # the thread that forks is the child's main thread


os.register_at_fork(after_in_child=_after_fork)

# ---- sections ------------------------------------------------------------------------------------------------------


def enter(what: str) -> int:
    """Open a section by hand, for code that cannot use a `with` block; `leave` closes it.

    It defers finalisers alone.

    Raises:
        NestedRunError: this thread is in a section.
    """
    before = _thread.where
    if before == _CRITICAL:
        raise _nested(what)
    _thread.where = _CRITICAL
    return before


def pause() -> int:
    """Leave the section for a call that may run ops itself; `leave` goes back into it."""
    before, _thread.where = _thread.where, _OUTSIDE
    return before


def leave(before: int) -> None:
    """Restore the state of this thread before `enter`, `enter_user_code` or `pause`, which returned `before`."""
    _thread.where = before


def in_section() -> bool:
    """True if this thread is in a section."""
    return _thread.where == _CRITICAL


def refuse_nested(what: str) -> None:
    """Raise if this thread is in a section.

    Raises:
        NestedRunError: it is, so a finaliser or a signal handler of the user's runs in the middle of dagpu's code.
    """
    if _thread.where == _CRITICAL:
        raise _nested(what)


def _nested(what: str) -> NestedRunError:
    return NestedRunError(
        f"{what} at {describe(here())} while dagpu was at work on this thread: a finaliser (__del__, a callback of a "
        "weak reference) or a signal handler called it, and would wait for this very thread. Let it only note down "
        "what is to be done, in a queue.SimpleQueue, and do it outside."
    )


@final
class Section:
    """A `with` block that neither Ctrl-C nor a finaliser breaks into. `what` names the call in error messages.

    A Ctrl-C within it is raised at its end.

    Raises:
        NestedRunError: this thread is in a section already.
    """

    __slots__ = ("_before", "_installed", "_what")

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        self._installed = _hold.install()  # first: until it is there, an interrupt may come, and leaves nothing behind
        try:
            self._before = enter(self._what)
        except NestedRunError:
            if self._installed:
                _hold.remove()
            raise

    def __exit__(self, *_error: object) -> None:
        _thread.where = self._before
        if self._installed:
            _hold.remove()


@final
class _Hold:
    """The SIGINT handler while the main thread is in a section. There is one; sections do not nest."""

    def __init__(self) -> None:
        self._previous: Handler = signal.default_int_handler
        self._raised: BaseException | None = None
        self._presses = _Presses()
        self._cancel: Callable[[], None] | None = None

    def install(self) -> bool:
        """Take the place of the handler, if this is the main thread and the handler is a function of Python's."""
        if threading.get_ident() != _main_thread:
            return False
        previous = _handler_of(_SIGINT)
        if not callable(previous) or previous is self:
            return False
        self._previous, self._raised = previous, None
        self._presses.clear()
        _set_handler(_SIGINT, self)
        _thread.hold = self
        return True

    def remove(self) -> None:
        """Put the handler back. Raises what that has raised meanwhile."""
        _thread.hold = self._cancel = None
        replaced = _set_handler(_SIGINT, self._previous)
        if replaced is not self:  # a function of the user's has set another one
            _set_handler(_SIGINT, replaced)
        self._previous = signal.default_int_handler  # that of a trio loop would keep the loop
        self.check()

    def check(self) -> None:
        """Raise what the handler has raised since the section began."""
        raised, self._raised = self._raised, None
        if raised is not None:
            try:
                raise raised.with_traceback(None)
            finally:
                del raised

    def cancels(self, cancel: Callable[[], None] | None) -> None:
        """Have `cancel` called at an interrupt, from the signal handler: it takes no lock."""
        self._cancel = cancel
        if cancel is not None and self._raised is not None:
            cancel()

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        if _breaks_into_user_code(frame):
            self._previous(signum, frame)
            return
        try:
            self._previous(signum, frame)
        except BaseException as error:
            self._raised = error
        else:
            return
        cancel = self._cancel
        if cancel is not None:
            cancel()
        self._presses.add()


_hold: Final = _Hold()


def _breaks_into_user_code(frame: FrameType | None) -> bool:
    """True if the interrupted frame was called through `call_user`, with no frame of dagpu further in."""
    while frame is not None:
        code = frame.f_code
        if is_ours(code.co_filename):
            return False
        frame = frame.f_back
        if frame is not None and frame.f_code is user_code.__code__:
            return True
    return False


def interrupts() -> _Hold | None:
    """The object that defers Ctrl-C on this thread; None where nothing does."""
    return _thread.hold


# ---- locks ---------------------------------------------------------------------------------------------------------

BOOKKEEPING: Final = threading.RLock()
"""Guards what runs of several threads share: locks on storages, claims of `shared()` and `unzip()`, caches of plans.

It is held for some bytecodes at a time, so one is enough. A fork takes it first: a child begins with bookkeeping that
no other thread had half changed.
"""


@final
class Bookkeeping:
    """A `with` block that holds `BOOKKEEPING`, for calls that may be made outside of sections.

    A Ctrl-C within it is raised at its end.

    At the end of `with BOOKKEEPING` itself Python stands once more on that line before it lets go of the lock. A trace
    function (a debugger's, that of coverage) is called there, and so may be a signal handler: what that raises would
    leave the lock taken for ever.
    """

    __slots__ = ("_installed",)

    def __enter__(self) -> None:
        self._installed = _hold.install()
        BOOKKEEPING.acquire()

    def __exit__(self, *_error: object) -> None:
        BOOKKEEPING.release()
        if self._installed:
            _hold.remove()


os.register_at_fork(before=BOOKKEEPING.acquire, after_in_parent=BOOKKEEPING.release, after_in_child=BOOKKEEPING.release)
