"""The four kinds of tensor handles: `Tensor`, `SharedTensor`, `TensorRef` and `TensorMut`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, cast, final

from dagpu.common.critical import Bookkeeping
from dagpu.common.dtypes import Shape
from dagpu.common.errors import OwnershipError, ShapeError
from dagpu.common.layout import Layout, reshaped, sliced
from dagpu.common.origin import Origin, describe, here
from dagpu.common.slot import Slot
from dagpu.handles.array_handle import ArrayHandle, D_co, S_co
from dagpu.handles.handle_errors import wrong_kind
from dagpu.handles.handle_state import HandleState, Loan, live, made_at, take
from dagpu.handles.holders import Holders
from dagpu.handles.partitions import Partition, cut

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dagpu.ops.base import Borrowed, DeviceOp  # the result type of to_host; imported by no running code


@final
class Tensor(ArrayHandle[D_co, S_co]):
    """An array in device memory that is owned by one variable. Passing it on moves it."""

    __slots__ = ("__weakref__",)

    def partition(self, tile: Shape, *, partial: bool = False) -> "Partition[Self]":
        """Cut it into disjoint tiles, to be written by a kernel. Moves it; `.unpartition()` gives it back.

        Raises:
            PartitionError: the tile does not divide the shape and `partial` is false.
        """
        return cast("Partition[Self]", cut(self, tile, partial, here()))

    def share(self) -> "SharedTensor[D_co, S_co]":
        """Give up writing for reading from any number of places. Moves it."""
        return share(self, here())

    def reshape(self, shape: Shape) -> "Tensor[D_co]":
        """The same elements, in C order, under another shape. Moves it."""
        return cast("Tensor[D_co]", reshape(self, shape, here()))

    def to_host(self) -> "DeviceOp[NDArray[D_co]]":
        """An op whose result is a new NumPy array with its contents. Moves it."""
        return cast("DeviceOp[NDArray[D_co]]", TO_HOST.value(self))

    def borrow(self) -> "TensorRef[D_co, S_co]":
        """Lend it for reading: any number of times at once, while no run writes it."""
        state = live(self)
        return TensorRef(HandleState(TensorRef, state.storage, state.layout, here(), self))

    def borrow_mut(self) -> "TensorMut[D_co, S_co]":
        """Lend it for writing, through `.partition()`: to one at a time."""
        state = live(self)
        return TensorMut(HandleState(TensorMut, state.storage, state.layout, here(), self, Loan()))

    def view(self, shape: Shape) -> "TensorRef[D_co]":
        """Borrow it under another shape."""
        where, state = here(), live(self)
        layout = _reshaped(state.layout, shape, "view()", where)
        return TensorRef(HandleState(TensorRef, state.storage, layout, where, self))

    def slice(self, *ranges: slice) -> "TensorRef[D_co]":
        """Borrow a part of it: one `slice` for each of the first axes, by Python's rules."""
        where, state = here(), live(self)
        layout = _sliced(state.layout, ranges, where)
        return TensorRef(HandleState(TensorRef, state.storage, layout, where, self))


@final
class SharedTensor(ArrayHandle[D_co, S_co]):
    """An array in device memory that is not written any more. Passing it on does not move it."""

    __slots__ = ("__weakref__", "_counted", "_holders")

    def __init__(self, state: HandleState) -> None:
        assert state.holders is not None
        self._state = state
        self._holders = state.holders
        self._counted = state.holders.add(self)

    def clone(self) -> "SharedTensor[D_co, S_co]":
        """One more handle to the same memory."""
        return cast("SharedTensor[D_co, S_co]", another(self))

    def try_unwrap(self) -> "Tensor[D_co, S_co]":
        """Back to an owned `Tensor`, if this is the last handle to its memory. Moves it.

        Safe against `clone()` in another thread: one of the two is refused.

        Raises:
            OwnershipError: others hold it: clones, a `shared()` op that remembers it, or a run that is reading it.
        """
        where = here()
        with Bookkeeping():
            state = self._held()
            others = len(self._holders.alive) - 1
            if not others and not state.storage.lock.readers:
                take(self, "try_unwrap()", where)
                self._holders.alive.discard(self._counted)
                return Tensor(HandleState(Tensor, state.storage, state.layout, state.made))
        who = "a run that is reading it"
        if others:
            who = "1 more handle" if others == 1 else f"{others} more handles"
        raise OwnershipError(
            f"try_unwrap() of a SharedTensor made at {describe(made_at(self))}: its memory is still held by {who}. "
            "Drop the clones and the shared() op first, or copy it with dup(t)."
        )

    def reshape(self, shape: Shape) -> "SharedTensor[D_co]":
        """One more handle to the same memory, under another shape."""
        return cast("SharedTensor[D_co]", reshape(self, shape, here()))

    def to_host(self) -> "DeviceOp[NDArray[D_co]]":
        """An op whose result is a new NumPy array with its contents."""
        return cast("DeviceOp[NDArray[D_co]]", TO_HOST.value(self))

    if not TYPE_CHECKING:  # a checker says so by itself

        def partition(self, *_args: object, **_kwargs: object) -> NoReturn:
            raise wrong_kind(self, "partition()", here())


@final
class TensorRef(ArrayHandle[D_co, S_co]):
    """A tensor lent for reading. An op that holds one cannot outlive it.

    It keeps its lender alive, and is void once the lender has been moved.
    """

    __slots__ = ("__weakref__",)

    def reshape(self, shape: Shape) -> "TensorRef[D_co]":
        """The same elements under another shape; `ShapeError` where they do not lie in one piece."""
        return cast("TensorRef[D_co]", reshape(self, shape, here()))

    def slice(self, *ranges: slice) -> "TensorRef[D_co]":
        """A part of it: one `slice` for each of the first axes, by Python's rules."""
        state = live(self)
        return TensorRef(state.with_layout(_sliced(state.layout, ranges, here())))

    def to_host(self) -> "DeviceOp[NDArray[D_co], Borrowed]":
        """An op whose result is a new NumPy array with its contents."""
        return cast("DeviceOp[NDArray[D_co], Borrowed]", TO_HOST.value(self))

    if not TYPE_CHECKING:  # a checker says so by itself

        def partition(self, *_args: object, **_kwargs: object) -> NoReturn:
            raise wrong_kind(self, "partition()", here())


@final
class TensorMut(ArrayHandle[D_co, S_co]):
    """A tensor lent for writing, to one at a time; what is written lands in the tensor.

    It keeps its lender alive, and is void once the lender has been moved. A kernel takes it as an input as well, and
    gives it back in its result: what reads it there runs before what writes it afterwards.
    """

    __slots__ = ("__weakref__",)

    def partition(self, tile: Shape, *, partial: bool = False) -> "Partition[Self]":
        """Cut it into disjoint tiles, to be written by a kernel. Moves it; `.unpartition()` gives it back.

        Raises:
            PartitionError: the tile does not divide the shape and `partial` is false.
        """
        return cast("Partition[Self]", cut(self, tile, partial, here()))

    def reshape(self, shape: Shape) -> "TensorMut[D_co]":
        """The same loan of the same elements, in C order, under another shape. Moves it.

        Raises:
            ShapeError: the shape has another number of elements.
        """
        return cast("TensorMut[D_co]", reshape(self, shape, here()))

    def to_host(self) -> "DeviceOp[NDArray[D_co], Borrowed]":
        """An op whose result is a new NumPy array with its contents. Moves it: the loan ends with that op's run."""
        return cast("DeviceOp[NDArray[D_co], Borrowed]", TO_HOST.value(self))


_KINDS = frozenset((Tensor, SharedTensor, TensorRef, TensorMut))


def another(
    shared: SharedTensor[D_co, Any], layout: Layout | None = None, holders: Holders | None = None
) -> SharedTensor[D_co]:
    """One more handle to the memory of a `SharedTensor`: under another layout, or counted among other holders.

    Raises:
        MovedError: the memory has an owner by now.
    """
    with Bookkeeping():
        state = shared._held()
        return SharedTensor(
            HandleState(
                SharedTensor,
                state.storage,
                state.layout if layout is None else layout,
                state.made,
                holders=state.holders if holders is None else holders,
            )
        )


def share(tensor: Tensor[D_co, S_co], where: Origin) -> SharedTensor[D_co, S_co]:
    """`tensor.share()` at the place `where` of the user's code."""
    if type(tensor) is not Tensor:
        raise wrong_kind(tensor, "share()", where)
    graph = live(tensor).storage.graph()
    if graph is not None:
        raise OwnershipError(
            f"share() at {describe(where)} of what {graph!r} writes: every launch writes it anew, and what is shared "
            "is written by nobody. Copy it with dup(t.borrow()), or read it with t.borrow()."
        )
    state = take(tensor, "share()", where)
    return SharedTensor(HandleState(SharedTensor, state.storage, state.layout, state.made, holders=Holders()))


def reshape(handle: Any, shape: object, where: Origin) -> Any:
    """`handle.reshape(shape)` at the place `where` of the user's code, for each kind of tensor. Moves what moves."""
    kind = type(handle)
    if kind not in _KINDS:
        raise wrong_kind(handle, "reshape()", where)
    state = live(handle)
    layout = _reshaped(state.layout, shape, "reshape()", where)
    if kind is SharedTensor:
        return another(handle, layout)
    if kind is not TensorRef:
        take(handle, "reshape()", where)
    return kind(state.with_layout(layout))


def _reshaped(layout: Layout, shape: object, what: str, where: Origin) -> Layout:
    try:
        return reshaped(layout, shape)
    except ShapeError as error:
        raise ShapeError(f"{what} at {describe(where)}: {error}") from None


def _sliced(layout: Layout, ranges: tuple[slice, ...], where: Origin) -> Layout:
    try:
        return sliced(layout, ranges)
    except ShapeError as error:
        raise ShapeError(f"slice() at {describe(where)}: {error}") from None


TO_HOST: Final = Slot[Callable[[Any], object]]("dagpu.ops.creation")
"""Builds the op of `handle.to_host()`: handles cannot import ops."""
