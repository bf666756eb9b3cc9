"""Critical sections, which neither Ctrl-C nor a finaliser interrupts, and finalisers without Python code.

A run acquires locks, claims and handles, and starts work that uses memory. An exception between two of its bytecodes
could leave a lock acquired for ever, or free memory while a kernel writes it. Signal handlers and finalisers can run
between two bytecodes on the same thread. A section defers both:

- **Signal handlers.** On the main thread `_DeferredInterrupt` handles SIGINT while a section is open. It calls the
  previous handler, stores the exception of that handler, tells the run to cancel its work, and raises the exception
  when the section ends. By then the work is drained and everything is released. Under trio a run is a coroutine, and
  trio's own handler checks whether a stack frame is protected, so `dagpu.runtime` marks the frames of a run instead.
- **Finalisers.** The garbage collector may call a `__del__` anywhere, and the `__del__` may run an op. A run inside the
  bookkeeping of another run is refused with `NestedRunError`, so one thread never acquires a lock twice.

The user's functions that dagpu calls (closures, policies) are not critical. `call_user` leaves the section while such a
function runs, so Ctrl-C ends an endless loop in a closure at once.

Two alternatives were rejected. A flag that the handler reads cannot be set and cleared exactly around a call of user
code (trio, `_core/_ki.py`). A signal mask on the thread makes another thread receive SIGINT, and the main thread still
runs the handler.
"""

import os
import signal
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from importlib import import_module
from threading import get_ident
from types import FrameType
from typing import Any, Final, Generic, NoReturn, TypeAlias, TypeVar, final

from dagpu.common.compiled import teach
from dagpu.common.errors import NestedRunError
from dagpu.common.places import describe, here, is_ours, passes_on

_T = TypeVar("_T")


_raw_signal: Any = import_module("_signal")
"""The C module behind `signal`. Its functions take 0.3 us each; those of `signal` convert to enums and take 2 us."""
_set_handler: Callable[[int, Any], Any] = _raw_signal.signal
_handler_of: Callable[[int], Any] = _raw_signal.getsignal

OUTSIDE: Final = 0
CRITICAL: Final = 1
_USERS: Final = 2

_SIGINT: Final = int(signal.SIGINT)

PRESSES: Final = 3
"""Number of Ctrl-C within `PRESS_SECONDS` that ends the process while a cancelled run waits for its work to end."""

PRESS_SECONDS: Final = 1.0
"""The interval in seconds within which `PRESSES` Ctrl-C end the process."""

SIGNALS_SECONDS: Final = 0.1
"""The longest time in seconds that a thread blocks without a check for signals.

A signal that arrives just before the thread blocks does not wake it.
"""

Handler: TypeAlias = Callable[[int, FrameType | None], Any]


@final
class ThreadState:
    """The state of one thread: outside, in a section, or in user code."""

    __slots__ = ("gets_signals", "hold", "where")

    def __init__(self) -> None:
        self.gets_signals = get_ident() == _main_thread
        """True for the main thread, on which alone Python runs signal handlers."""
        self.where = OUTSIDE
        self.hold: _DeferredInterrupt | None = None
        """The object that defers Ctrl-C; None outside sections, and on threads that receive no signals."""


class _CurrentThread(threading.local):
    """The state of the current thread, behind one access to a thread-local, which takes 0.05 us."""

    def __init__(self) -> None:
        self.state = ThreadState()


_main_thread = threading.main_thread().ident
CURRENT_THREAD: Final = _CurrentThread()
"""The current thread. Hot paths elsewhere read its state directly, since they cannot afford a call."""


# ---- user code -----------------------------------------------------------------------------------------------------


def call_user(f: Callable[[Any], _T], argument: Any) -> _T:
    """Call a function of the user's. Ctrl-C may interrupt it, and ops that it runs are refused.

    A Ctrl-C since the start of the section is raised before the call, because the state is consistent between two calls
    of user code. So a trace of many closures ends at the next call. Under trio the driver of the trace checks for it.
    """
    thread = CURRENT_THREAD.state
    if thread.hold is not None:
        thread.hold.check()
    before, thread.where = thread.where, _USERS
    try:
        return run_user_code(f, argument)
    finally:
        thread.where = before


@passes_on
def run_user_code(f: Callable[[Any], _T], argument: Any) -> _T:
    """Call `f`. Signal handlers recognise user code by the frame of this function."""
    return f(argument)


def enter_user_code() -> int:
    """Mark this thread as running user code until `restore_section`. Ops that the user code runs are refused.

    Return the previous state, for `restore_section`.
    """
    before, CURRENT_THREAD.state.where = CURRENT_THREAD.state.where, _USERS
    return before


def in_user_code() -> bool:
    """Return true while dagpu calls a function of the user's on this thread."""
    return CURRENT_THREAD.state.where == _USERS


# ---- repeated Ctrl-C -----------------------------------------------------------------------------------------------


@final
class _Presses:
    """A count of the Ctrl-C within the last `PRESS_SECONDS`."""

    def __init__(self) -> None:
        self.times: list[float] = []
        """The times of these Ctrl-C. Clear the list to reset the count."""

    def add(self) -> None:
        """Count one Ctrl-C. The last but one warns that the next one ends the process; the last one ends it."""
        now = time.monotonic()
        self.times = [press for press in self.times if now - press <= PRESS_SECONDS]
        self.times.append(now)
        if len(self.times) >= PRESSES:
            _end_process()
        if len(self.times) == PRESSES - 1:
            _print_warning("dagpu: waiting for work that has begun; one more Ctrl-C within a second ends the process")


@final
class _InterruptCounter:
    """The SIGINT handler while trio tasks drain cancelled runs: it counts Ctrl-C and calls the loop's handler."""

    def __init__(self) -> None:
        self._tasks = 0
        self._previous: Handler = signal.default_int_handler
        self._presses = _Presses()

    def __enter__(self) -> None:
        if get_ident() != _main_thread:
            return
        previous = _handler_of(_SIGINT)
        if not self._tasks and callable(previous):
            self._previous = previous
            self._presses.times.clear()
            _set_handler(_SIGINT, self)
            self._presses.add()  # usually a Ctrl-C cancelled the run
        self._tasks += 1

    def __exit__(self, *_error: object) -> None:
        if get_ident() != _main_thread:
            return
        self._tasks -= 1
        if not self._tasks and _handler_of(_SIGINT) is self:
            _set_handler(_SIGINT, self._previous)
            self._previous = signal.default_int_handler

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        self._presses.add()
        self._previous(signum, frame)


counting_interrupts: Final = _InterruptCounter()
"""A `with` block around a drain in a trio task. In it, a third Ctrl-C within a second ends the process."""


def _end_process() -> NoReturn:
    """End the process at once, as an unhandled Ctrl-C does, without waiting for work on devices."""
    _print_warning(f"dagpu: {PRESSES} Ctrl-C within a second: the process ends without waiting for work on devices")
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.raise_signal(signal.SIGINT)
    os._exit(128 + _SIGINT)  # reached if SIGINT is blocked


def _print_warning(text: str) -> None:
    """Write a line to stderr. Safe in a signal handler: it bypasses Python's buffers."""
    try:
        os.write(2, f"{text}\n".encode())
    except OSError:
        pass  # stderr is closed


_forks = 0


def count_forks() -> int:
    """Return the number of forks between the first process and this one.

    A claim that was made before a fork is never released in the child.
    """
    return _forks


def _after_fork() -> None:
    global _forks, _main_thread
    _forks += 1
    _main_thread = get_ident()  # the forking thread is the main thread of the child
    CURRENT_THREAD.state.gets_signals = True


os.register_at_fork(after_in_child=_after_fork)

# ---- sections ------------------------------------------------------------------------------------------------------


def enter_section(what: str) -> int:
    """Enter a section without a `with` block, and return the previous state for `restore_section`.

    It refuses runs in finalisers, but does not defer Ctrl-C. `what` names the call in messages.

    Raises:
        NestedRunError: this thread is in a section already.
    """
    before = CURRENT_THREAD.state.where
    if before == CRITICAL:
        raise _nested(what)
    CURRENT_THREAD.state.where = CRITICAL
    return before


def pause_section() -> int:
    """Leave the section for a call that may run ops, and return the previous state, for `restore_section`."""
    before, CURRENT_THREAD.state.where = CURRENT_THREAD.state.where, OUTSIDE
    return before


def restore_section(before: int) -> None:
    """Restore the state of this thread that `enter_section`, `enter_user_code` or `pause_section` returned."""
    CURRENT_THREAD.state.where = before


def in_section() -> bool:
    """Return true if this thread is in a section."""
    return CURRENT_THREAD.state.where == CRITICAL


def refuse_nested(what: str) -> None:
    """Raise if this thread is in a section. `what` names the call in the message.

    Raises:
        NestedRunError: a finaliser or a signal handler of the user's made the call in the middle of dagpu's code.
    """
    if CURRENT_THREAD.state.where == CRITICAL:
        raise _nested(what)


def _nested(what: str) -> NestedRunError:
    """Return the error for a call inside a section."""
    return NestedRunError(
        f"{what} at {describe(here())} while dagpu was at work on this thread: a finaliser (__del__, a callback of a "
        "weak reference) or a signal handler called it, and would wait for its own thread. Let it only put the work "
        "into a queue.SimpleQueue, and do it outside."
    )


@final
class Section:
    """A `with` block that neither Ctrl-C nor a finaliser interrupts. `what` names the call in messages.

    A Ctrl-C within the block is raised at its end.

    Raises:
        NestedRunError: this thread is in a section already.
    """

    __slots__ = ("_before", "_installed", "_what")

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        thread = CURRENT_THREAD.state
        self._before = before = thread.where
        if before == CRITICAL:
            raise _nested(self._what)
        self._installed = _deferred_interrupt.install(thread)  # an interrupt before it leaves nothing to undo
        thread.where = CRITICAL

    def __exit__(self, *_error: object) -> None:
        thread = CURRENT_THREAD.state
        thread.where = self._before
        if self._installed:
            _deferred_interrupt.remove(thread)


def begin_section(thread: ThreadState) -> bool:
    """Begin what a `Section` does on this thread, which is outside of sections. A run uses it, which takes a third of
    the time of the `with` block. `end_section` takes the result."""
    installed = _deferred_interrupt.install(thread)
    thread.where = CRITICAL
    return installed


def end_section(thread: ThreadState, installed: bool) -> None:
    """End the section that `begin_section` began, and raise the Ctrl-C that came within it."""
    thread.where = OUTSIDE
    if installed:
        _deferred_interrupt.remove(thread)


@final
class _DeferredInterrupt:
    """The SIGINT handler while the main thread is in a section. One object is enough, because sections do not nest."""

    def __init__(self) -> None:
        self._previous: Handler = signal.default_int_handler
        self.raised: BaseException | None = None
        """The exception that the previous handler has raised since the start of the section; None if it raised none."""
        self._presses = _Presses()
        self._cancel: Callable[[], None] | None = None

    def install(self, thread: ThreadState) -> bool:
        """Replace the SIGINT handler if it is a Python function and this is the main thread. Return True if replaced.
        `thread` is the current thread."""
        if not thread.gets_signals:
            return False
        previous = _handler_of(_SIGINT)
        if not callable(previous) or previous is self:
            return False
        self._previous, self.raised = previous, None
        if self._presses.times:
            self._presses.times.clear()
        _set_handler(_SIGINT, self)
        thread.hold = self
        return True

    def remove(self, thread: ThreadState) -> None:
        """Restore the previous handler, and raise the exception that it raised during the section."""
        thread.hold = self._cancel = None
        replaced = _set_handler(_SIGINT, self._previous)
        if replaced is not self:  # user code has set another handler
            _set_handler(_SIGINT, replaced)
        self._previous = signal.default_int_handler  # a handler of a trio loop would keep the loop alive
        if self.raised is not None:
            self.check()

    def check(self) -> None:
        """Raise the exception that the previous handler raised since the start of the section."""
        raised, self.raised = self.raised, None
        if raised is not None:
            try:
                raise raised.with_traceback(None)
            finally:
                del raised

    def set_cancel(self, cancel: Callable[[], None] | None) -> None:
        """Set the function that the signal handler calls at an interrupt; it must not acquire a lock."""
        self._cancel = cancel
        if cancel is not None and self.raised is not None:
            cancel()

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        if _breaks_into_user_code(frame):
            self._previous(signum, frame)
            return
        try:
            self._previous(signum, frame)
        except BaseException as error:
            self.raised = error
        else:
            return
        cancel = self._cancel
        if cancel is not None:
            cancel()
        self._presses.add()


_deferred_interrupt: Final = _DeferredInterrupt()
INTERRUPT: Final = _deferred_interrupt
"""The Ctrl-C of the section on the main thread: its attribute `raised` is None if there has been none."""
teach(
    critical=CRITICAL, get_handler=_handler_of, set_handler=_set_handler, deferred=_deferred_interrupt,
    end_section=end_section,
)  # fmt: skip


def _breaks_into_user_code(frame: FrameType | None) -> bool:
    """Return true if the interrupted frame was called through `call_user`, with no frame of dagpu between them."""
    while frame is not None:
        code = frame.f_code
        if is_ours(code.co_filename):
            return False
        frame = frame.f_back
        if frame is not None and frame.f_code is run_user_code.__code__:
            return True
    return False


def deferred_interrupt() -> _DeferredInterrupt | None:
    """Return the object that defers Ctrl-C on this thread; None if Ctrl-C is not deferred."""
    return CURRENT_THREAD.state.hold


# ---- locks ---------------------------------------------------------------------------------------------------------

BOOKKEEPING: Final = threading.RLock()
"""Guards the state that runs on several threads share: locks on storages, claims of `shared()` and `unzip()`, and
caches of plans.

One lock is enough, because each holder holds it for a few bytecodes. A fork acquires it first, so a child never starts
with state that another thread had changed in part.
"""


@final
class Bookkeeping:
    """A `with` block that holds `BOOKKEEPING`, for calls that may be made outside of sections.

    A Ctrl-C within the block is raised at its end.

    `with BOOKKEEPING` itself is not safe here: before Python releases the lock, it returns to the line of the `with`,
    and may call a trace function (of a debugger or of coverage) or a signal handler. An exception there would leave the
    lock acquired for ever.
    """

    __slots__ = ("_installed",)

    def __enter__(self) -> None:
        self._installed = _deferred_interrupt.install(CURRENT_THREAD.state)
        BOOKKEEPING.acquire()

    def __exit__(self, *_error: object) -> None:
        BOOKKEEPING.release()
        if self._installed:
            _deferred_interrupt.remove(CURRENT_THREAD.state)


os.register_at_fork(before=BOOKKEEPING.acquire, after_in_parent=BOOKKEEPING.release, after_in_child=BOOKKEEPING.release)


# ---- reference queue
#
# Finalisers without Python code: when an owner dies, C code puts the resource that belonged to it into a queue.
#
# A `__del__` is Python code that runs where the last reference is dropped: on any thread, in the middle of any other
# code. Python prints an interrupt in it and ignores it, and the memory or event that it was about to release is lost.
# The callback of a weak reference may be a method written in C, such as `deque.append`. Such a callback is atomic.


@final
class Reference(weakref.ref[Any], Generic[_T]):
    """A weak reference to an owner, with the resource to release once the owner is gone."""

    __slots__ = ("resource",)
    resource: _T

    # The methods of weakref.ref compare and hash the owner.
    __eq__ = object.__eq__
    __hash__ = object.__hash__


@final
class ReferenceQueue(Generic[_T]):
    """A queue of the resources of dead owners, in the order of their deaths. The name is Java's.

    It is thread-safe.
    """

    __slots__ = ("_alive", "_append", "gone")

    def __init__(self, gone: "deque[Reference[_T]] | None" = None) -> None:
        self.gone: Final[deque[Reference[_T]]] = deque() if gone is None else gone
        """The references whose owners are gone, to ask in a hot path if there are any."""
        self._append = self.gone.append
        self._alive: Final[set[Reference[_T]]] = set()
        """The references to living owners. A reference that dies before its owner does not call its callback."""

    def watch(self, owner: object, resource: _T) -> Reference[_T]:
        """Put `resource` into the queue once `owner` is gone. Return the weak reference to `owner`."""
        reference: Reference[_T] = Reference(owner, self._append)
        reference.resource = resource
        self._alive.add(reference)
        return reference

    def pop(self) -> _T:
        """Remove and return the first resource.

        Raises:
            IndexError: the queue is empty.
        """
        reference = self.gone.popleft()
        self._alive.discard(reference)
        return reference.resource

    def __bool__(self) -> bool:
        return bool(self.gone)


teach(reference=Reference, reference_queue=ReferenceQueue)
