"""Refuses runs in wrong places: inside a critical section of dagpu, a closure of another run or a `with` block that
records a graph, and `await` outside of trio. Warns of `sync()` in a trio task."""

import warnings
import weakref
from contextvars import ContextVar
from typing import Any, Protocol

import trio

from dagpu.common.compiled import teach
from dagpu.common.critical import CURRENT_THREAD, OUTSIDE, in_user_code
from dagpu.common.critical import refuse_nested as refuse_in_section
from dagpu.common.errors import NestedRunError
from dagpu.common.places import Origin, describe, here, place_of
from dagpu.ops.base import DeviceOp


class RecordingBlock(Protocol):
    """The context manager of a `CudaGraph.scope`."""

    @property
    def origin(self) -> Origin: ...


_block: "ContextVar[weakref.ref[RecordingBlock] | None]" = ContextVar("dagpu_scope", default=None)
"""The innermost recording block around this task or thread. The reference is weak, because an interrupt can end a
`with` block without its `__exit__`: the block must not refuse later runs then."""


teach(block=_block)
recording_block = _block.get
"""Returns a reference to the innermost recording block around this task or thread; None if there is none."""


def enter_recording(block: RecordingBlock) -> "weakref.ref[RecordingBlock] | None":
    """Refuse runs in this task or thread from now on. Returns the block around this one, for `leave_recording`."""
    around = _block.get()
    _block.set(weakref.ref(block))
    return around


def leave_recording(around: "weakref.ref[RecordingBlock] | None") -> None:
    """Restore the block that `enter_recording` returned."""
    _block.set(around)


def refuse_nested(op: DeviceOp[Any, Any, Any]) -> None:
    """Raise if `op` is run inside a critical section of dagpu, a closure, or a recording block.

    Raises:
        NestedRunError: the message names the place of the run and the cure.
    """
    if CURRENT_THREAD.state.where == OUTSIDE and _block.get() is None:
        return
    refuse_in_section("an op was run")
    if in_user_code():
        raise NestedRunError(
            f"{op!r} was run at {describe(here())}, inside a closure or host_map of another run. "
            "Return the op from .then instead: it becomes part of that run."
        )
    around = _block.get()
    block = None if around is None else around()
    if block is not None:
        raise NestedRunError(
            f"{op!r} was run at {describe(here())}, inside the scope at {describe(block.origin)}, in which ops are "
            "only recorded. Record it with scope.record(op), or run it before or after the with block."
        )


def outside_trio(op: DeviceOp[Any, Any, Any]) -> RuntimeError:
    """Return the error for an op that is awaited outside a trio task."""
    return RuntimeError(
        f"{op!r} was awaited at {describe(here())}, outside a trio task (asyncio and Jupyter run none). "
        "Use op.sync(), or await it in an async function that trio.run(...) runs."
    )


_warned: set[object] = set()


def warn_in_task(call: str, cure: str) -> None:
    """Warn, once for each place, of a call in a trio task that waits without `await`: it blocks all other tasks."""
    if not trio.lowlevel.in_trio_task():
        return
    origin = here()
    place = place_of(origin)
    if place not in _warned:
        _warned.add(place)
        file, line = ("dagpu", 0) if place is None else place
        message = f"{call} at {describe(origin)} in a trio task blocks every other task until it is done. {cure}"
        warnings.warn_explicit(message, RuntimeWarning, file, line)
