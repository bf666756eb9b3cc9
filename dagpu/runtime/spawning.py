"""`spawn`: start an op in a nursery and get on with something else."""

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, Generic, NoReturn, final

import trio
from typing_extensions import TypeVar

from dagpu.common.containers import mapped
from dagpu.common.errors import BorrowError, MovedError, OperationCancelled
from dagpu.common.origin import Origin, describe, here, started_at
from dagpu.common.tracebacks import leaves_run, without_our_frames
from dagpu.common.wrong_arguments import no_attribute, wrong_argument
from dagpu.handles import ARRAY_NAMES, HANDLE_NAMES, OP_NAMES, TensorMut, copy_error, made_at, state_of
from dagpu.handles.handle_trees import for_several, handles_in, moves
from dagpu.ops.base import DeviceOp, Static, check_op
from dagpu.ops.compose import Value, nodes_of
from dagpu.ops.creation import Copy
from dagpu.ops.launch import Launch

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)


@final
class Pending(Generic[_T_co]):
    """An op that was started by `spawn`. Await it for its result, any number of times and in any number of tasks.

    A result that owns handles goes to the first task that awaits it; a second one gets a `MovedError`. Any other result
    goes to all tasks: so NumPy arrays in it are read-only, even if one task alone awaits it (`array.copy()` can be
    written). A task that runs the op itself, with `await op`, is the sole taker of its result, and may write to it.
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
        """Cancel it: what has been submitted is drained. Does nothing once it is done."""
        self._scope.cancel()

    def done(self) -> bool:
        """True if it has ended, with a result, an error or a cancellation."""
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
                f"the result of {self._op!r} was awaited before, and went to whoever came first: it owns handles. "
                "Await once, or spawn op.shared()."
            )
        result: _T_co = self._value
        if moves(result):
            self._value, self._state = None, "taken"
            return result
        own: _T_co = mapped(lambda item: item, result)  # lists and dicts of his own
        return own

    async def _run(self) -> None:
        try:
            with self._scope, started_at(self._origin):
                value = await self._op
                self._value = value if moves(value) else for_several(value)
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
            del self  # the frame may live on with an error

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        raise copy_error(
            repr(self), "A copy would give what the op makes to a second owner. Await the Pending itself, in any task"
        )

    def __repr__(self) -> str:
        return f"<Pending {self._state}: {self._op!r}>"

    if not TYPE_CHECKING:  # a checker must refuse these by itself, so it may not see them

        def __getattr__(self, name: str) -> NoReturn:
            if name not in HANDLE_NAMES and name not in ARRAY_NAMES and name not in OP_NAMES:
                raise no_attribute(self, name)
            cure = "await it" if name == "sync" else f"await it, and ask what that gives: (await pending).{name}"
            raise AttributeError(f"{self!r} has no {name!r}: its result comes with await. In its trio loop, {cure}.")


@leaves_run
def spawn(nursery: trio.Nursery, op: DeviceOp[_T, Static, Any]) -> Pending[_T]:
    """Start an op as a child of `nursery`, and go on at once.

    If it fails, the nursery fails like with any child, and awaiting the `Pending` raises the same error.

    Raises:
        BorrowError: the op holds a borrow, which its lender may not outlive; share() the tensor instead.
    """
    origin = here()
    if not isinstance(nursery, trio.Nursery):
        cure = "Open one: async with trio.open_nursery() as nursery: spawn(nursery, op)"
        raise wrong_argument("spawn", origin, "nursery", nursery, "a trio.Nursery", cure)
    check_op(op, "spawn", "Pass an op; nursery.start_soon(f) starts an async function")
    for borrow, made in _borrows(op):
        raise BorrowError(
            f"spawn at {describe(origin)} of an op that holds {borrow}, borrowed at {describe(made)}: the "
            "task may outlive the loan. share() the tensor and pass that, or await the op."
        )
    pending: Pending[_T] = Pending(op, origin)
    nursery.start_soon(pending._run, name=f"dagpu {type(op).__name__}")  # noqa: SLF001  # no user starts it
    return pending


def _borrows(root: DeviceOp[Any, Any, Any]) -> Iterator[tuple[str, Origin]]:
    """The reprs of the borrowed handles in a DAG and the places of their borrows, as far as they can be found without a
    call of closures."""
    for op in nodes_of(root):
        held = op.held if isinstance(op, Value) else op.args if isinstance(op, Launch) else ()
        if isinstance(op, Copy):
            held = (op.source, op.into)
        for handle in handles_in(held):
            state = state_of(handle)
            if state is not None and state.lender is not None:
                yield repr(state), state.made
            elif isinstance(handle, TensorMut):  # moved by an earlier run
                yield repr(handle), made_at(handle)
