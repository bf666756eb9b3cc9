"""The work of `run` and `fold` for each item: the user's function makes an op, and the op runs."""

from collections.abc import Awaitable, Callable
from functools import partial
from types import CoroutineType
from typing import Any, Final, TypeVar

from dagpu.common.containers import own_containers
from dagpu.common.critical import run_user_code
from dagpu.common.places import Origin, describe, passes_on
from dagpu.common.wrong_arguments import format_value, refuse_stop_iteration
from dagpu.ops.base import DeviceOp, Static
from dagpu.reactive.flows.in_flight import ItemWork
from dagpu.runtime.interpreter import plan_of

_T = TypeVar("_T")
_U = TypeVar("_U")
_S = TypeVar("_S")

_UNSET: Final[Any] = object()


def run_work(
    f: Callable[[_T], DeviceOp[_U, Static, Any]], permits: int, memory: int | None, ordered: bool, origin: Origin
) -> ItemWork[_T, _U]:
    """Return the work of `run`: each item in a task of its own."""
    whose = f"the function of run at {describe(origin)}"
    begin: Callable[[_T], Awaitable[_U]] = partial(begin_op, f, whose)
    return ItemWork(begin, permits, tasks=permits, ordered=ordered, memory=memory, nbytes_of=_peak_bytes)


def fold_work(
    state: DeviceOp[_S, Static, Any],
    f: Callable[[_S, _T], DeviceOp[tuple[_S, _U], Static, Any]],
    permits: int,
    origin: Origin,
) -> ItemWork[_T, _U]:
    """Return the work of `fold` for one open flow: one step at a time, which takes the state of the step before it."""
    whose = f"the function of fold at {describe(origin)}"
    held: Any = _UNSET

    @passes_on
    async def step(item: _T) -> _U:
        nonlocal held
        if held is _UNSET:
            held = await state
        before, held = held, None  # it moves into the step
        op = begin_op(partial(f, before), whose, item)
        del before, item
        found: Any = await op
        if not isinstance(found, tuple) or len(found) != 2:
            raise TypeError(
                f"{whose} returned an op with the result {format_value(found)}, but a tuple of the next state and an "
                "output is wanted. Join two ops: zip_ops(state, output)."
            )
        held, output = found
        given: _U = own_containers(output)  # an op may put one list into both
        return given

    return ItemWork(step, permits, tasks=1, ends_with_error=True)


@passes_on
def begin_op(f: Callable[[_T], DeviceOp[_U, Static, Any]], whose: str, item: _T) -> DeviceOp[_U, Static, Any]:
    """Return the op that a function of the user's makes of an item.

    Raises:
        TypeError: it made something else.
    """
    try:
        made: Any = run_user_code(f, item)
    except StopIteration as error:
        refuse_stop_iteration(error, whose)
    if isinstance(made, DeviceOp):
        return made
    if type(made) is CoroutineType:
        made.close()  # else Python warns that it was never awaited
    raise TypeError(
        f"{whose} returned {format_value(made)}, but an op is wanted. Return an op: value(x) makes one of a value, and "
        ".map(f) of a flow takes a function of the host."
    )


def _peak_bytes(op: Any) -> int:
    return plan_of(op).peak_bytes
