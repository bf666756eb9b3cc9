"""`spawn`, which starts an op in a nursery, and `Pending`, the handle of its result."""

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, Generic, NoReturn, final

import trio
from typing_extensions import TypeVar

from dagpu.common.containers import own_containers
from dagpu.common.errors import BorrowError, MovedError, OperationCancelled
from dagpu.common.places import Origin, StartedAt, describe, here, leaves_run, without_our_frames
from dagpu.common.wrong_arguments import no_attribute, wrong_argument
from dagpu.handles import ARRAY_NAMES, HANDLE_NAMES, OP_NAMES, TensorMut, copy_error, origin_of, state_of
from dagpu.handles.tensors import handles_in, has_owning_handle, make_unwritable
from dagpu.ops.base import DeviceOp, Static, check_op
from dagpu.ops.compose import Launch, Value, nodes_of
from dagpu.ops.creation import Copy

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)


@final
class Pending(Generic[_T_co]):
    """An op that `spawn` started. Await it for its result, any number of times and in any number of tasks.

    A result that owns handles goes to the first task that awaits it; a second one gets a `MovedError`. Any other result
    goes to all tasks, so NumPy arrays in it are read-only, even if only one task awaits it (`array.copy()` can be
    written); each task gets lists, dicts, sets and bytearrays of its own. A task that runs the op itself, with
    `await op`, owns the result alone, and may write to it.
    """

    def __init__(self, op: DeviceOp[_T_co, Static, Any], origin: Origin) -> None:
        self._op = op
        self._origin = origin
        self._ended = trio.Event()
        self._scope = trio.CancelScope()
        self._value: Any = None
        self._error: BaseException | None = None
        self._state = "running"

    def cancel(self) -> None:
        """Cancel the op. Submitted work is drained first. Does nothing once the op is done."""
        self._scope.cancel()

    def done(self) -> bool:
        """True if the op has ended, with a result, an error or a cancellation."""
        return self._ended.is_set()

    def __await__(self) -> Generator[Any, Any, _T_co]:
        return self._result().__await__()

    async def _result(self) -> _T_co:
        await self._ended.wait()
        if self._error is not None:
            try:
                raise self._error
            except BaseException as error:
                without_our_frames(error)
                del self
                raise
        if self._state == "cancelled":
            raise OperationCancelled(
                f"{self._op!r} was cancelled before it was done. Run it again, or do not await it."
            )
        if self._state == "taken":
            raise MovedError(
                f"the result of {self._op!r} was awaited before, and went to the task that awaited it first: it "
                "owns handles. Await once, or spawn op.shared()."
            )
        result: _T_co = self._value
        if has_owning_handle(result):
            self._value, self._state = None, "taken"
            return result
        own: _T_co = own_containers(result)
        return own

    async def _run(self) -> None:
        try:
            with self._scope, StartedAt(self._origin):
                value = await self._op
                self._value = value if has_owning_handle(value) else make_unwritable(value)
                self._state = "done"
            if self._state == "running":
                self._state = "cancelled"
        except trio.Cancelled:
            self._state = "cancelled"
            raise
        except BaseException as error:
            self._error = without_our_frames(error)
            raise
        finally:
            self._ended.set()
            del self  # an error may keep the frame alive

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        raise copy_error(
            repr(self), "A copy would give what the op makes to a second owner. Await the Pending itself, in any task"
        )

    def __repr__(self) -> str:
        return f"<Pending {self._state}: {self._op!r}>"

    if not TYPE_CHECKING:  # a type checker that saw this method would accept any attribute

        def __getattr__(self, name: str) -> NoReturn:
            if name not in HANDLE_NAMES and name not in ARRAY_NAMES and name not in OP_NAMES:
                raise no_attribute(self, name)
            cure = "await it" if name == "sync" else f"await it, and use its result: (await pending).{name}"
            raise AttributeError(f"{self!r} has no {name!r}: its result comes with await. In its trio loop, {cure}.")


@leaves_run
def spawn(nursery: trio.Nursery, op: DeviceOp[_T, Static, Any]) -> Pending[_T]:
    """Start an op as a child task of `nursery`, and return at once.

    If the op fails, the nursery fails as with any child, and awaiting the `Pending` raises the same error.

    Raises:
        BorrowError: the op holds a borrow, and may outlive the lender; share() the tensor instead.
    """
    origin = here()
    if not isinstance(nursery, trio.Nursery):
        cure = "Open one: async with trio.open_nursery() as nursery: spawn(nursery, op)"
        raise wrong_argument("spawn", origin, "nursery", nursery, "a trio.Nursery", cure)
    check_op(op, "spawn", "Pass an op; nursery.start_soon(f) starts an async function")
    for borrow, made in borrows_in(op):
        raise BorrowError(
            f"spawn at {describe(origin)} of an op that holds {borrow}, borrowed at {describe(made)}: the "
            "task may outlive the loan. share() the tensor and pass that, or await the op."
        )
    pending: Pending[_T] = Pending(op, origin)
    nursery.start_soon(pending._run, name=f"dagpu {type(op).__name__}")  # noqa: SLF001  # no user starts it
    return pending


def borrows_in(root: DeviceOp[Any, Any, Any]) -> Iterator[tuple[str, Origin]]:
    """Yield the repr of each borrowed handle in a DAG with the place of its borrow, without calling closures."""
    for op in nodes_of(root):
        held = op.content if isinstance(op, Value) else op.args if isinstance(op, Launch) else ()
        if isinstance(op, Copy):
            held = (op.source, op.into)
        for handle in handles_in(held):
            state = state_of(handle)
            if state is not None and state.lender is not None:
                yield repr(state), state.origin
            elif isinstance(handle, TensorMut):  # moved by an earlier run
                yield repr(handle), origin_of(handle)
