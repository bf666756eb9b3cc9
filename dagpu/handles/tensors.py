"""The kinds of tensor handles, and the functions that find and move handles of any kind, also in values."""

from collections.abc import Callable, Iterator
from operator import is_
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, Self, TypeAlias, cast, final, overload

import numpy as np
from typing_extensions import TypeVar

from dagpu.common.containers import (
    Composite,
    about_of,
    is_container,
    items_of,
    made_by,
    map_values,
    own_containers,
    values_in,
)
from dagpu.common.critical import Bookkeeping
from dagpu.common.errors import OwnershipError, ShapeError
from dagpu.common.frozen import Slot
from dagpu.common.layout import (
    Index,
    Layout,
    NewShape,
    Shape,
    Viewed,
    part_layout,
    reshape_layout,
)
from dagpu.common.places import Origin, describe, here, leaves_run, without_our_frames
from dagpu.handles.array_handle import (
    EXPORTS,
    ArrayHandle,
    D_co,
    DLPackExport,
    S_co,
    wrong_kind,
)
from dagpu.handles.device_handles import driver_of, is_remote
from dagpu.handles.handle_state import (
    HandleBase,
    HandleState,
    Holders,
    Loan,
    Storage,
    live_state,
    origin_of,
    release_returned_loans,
    restore_state,
    state_of,
    take_state,
)
from dagpu.handles.operators import Operators
from dagpu.handles.partitions import Partition, cut_of, partition_tensor, unpartition_tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dagpu.ops.base import Borrowed, DeviceOp, Static  # noqa: F401  # reason: in texts of types


# ---- tensors

_E = TypeVar("_E", bound=np.generic)


@final
class Tensor(ArrayHandle[D_co, S_co], Operators["Tensor[D_co]", "Static"], DLPackExport):
    """An array in device memory with one owner. Passing it on moves it."""

    __slots__ = ("__weakref__",)

    if TYPE_CHECKING:  # for checkers unhashable, so that no source takes it; at run time it hashes by identity
        # As in typeshed for lists; object declares a method.
        __hash__: ClassVar[None]  # type: ignore[assignment]  # pyright: ignore[reportIncompatibleMethodOverride]

    def partition(self, tile: Shape, *, partial: bool = False) -> "Partition[Self]":
        """Divide the tensor into disjoint tiles, for a kernel to write. Moves it; `.unpartition()` returns it.

        Raises:
            PartitionError: the tile does not divide the shape, and `partial` is false.
        """
        try:
            return cast("Partition[Self]", partition_tensor(self, tile, partial, here()))
        except BaseException as error:
            without_our_frames(error)
            raise

    @leaves_run
    def share(self) -> "SharedTensor[D_co, S_co]":
        """Return an immutable `SharedTensor` of the same memory, for any number of readers. Moves the tensor."""
        return share_tensor(self, here())

    def reshape(self, shape: NewShape) -> "Tensor[D_co]":
        """Return a tensor of the same elements, in C order, with another shape. Moves the tensor.

        One extent may be -1, which stands for what is left; -1 alone is (-1,).

        Raises:
            ShapeError: the shape has another number of elements.
        """
        try:
            return cast("Tensor[D_co]", reshape_handle(self, shape, here()))
        except BaseException as error:
            without_our_frames(error)
            raise

    def to_host(self) -> "DeviceOp[NDArray[D_co]]":
        """Return an op whose result is a new NumPy array with the contents. Moves the tensor."""
        try:
            return cast("DeviceOp[NDArray[D_co]]", TO_HOST.value(self, here()))
        except BaseException as error:
            without_our_frames(error)
            del self
            raise

    def borrow(self) -> "TensorRef[D_co, S_co]":
        """Lend the tensor for reading, any number of times at once, while no run writes it."""
        state = live_state(self)
        return TensorRef(HandleState(TensorRef, state.storage, state.layout, here(), self))

    def borrow_mut(self) -> "TensorMut[D_co, S_co]":
        """Lend the tensor for writing, through `.partition()`, to one user at a time."""
        state = live_state(self)
        return TensorMut(HandleState(TensorMut, state.storage, state.layout, here(), self, Loan()))

    @overload
    def view(self, shape: NewShape) -> "TensorRef[D_co]": ...
    @overload
    def view(self, shape: type[_E]) -> "TensorRef[_E]": ...
    @leaves_run
    def view(self, shape: Any) -> Any:
        """Lend the tensor for reading: with another shape, of which one extent may be -1, or with another element type,
        `t.view(i32)`, as which the same bytes are read.

        Elements of another size change the extent of the last axis, as in NumPy.

        Raises:
            ShapeError: the shape has another number of elements, or the last axis cannot be read as such elements.
        """
        where, state = here(), live_state(self)
        return TensorRef(HandleState(TensorRef, state.storage, _viewed(state.layout, shape, where), where, self))

    @leaves_run
    def slice(self, *ranges: slice) -> "TensorRef[D_co]":
        """Lend a part of the tensor for reading: `t.slice(slice(1, None))` is `t[1:]`."""
        return cast("TensorRef[D_co]", lent_part(self, ranges, "slice()", here()))

    @leaves_run
    def __getitem__(self, index: Index) -> "TensorRef[D_co]":
        """Lend a part of the tensor for reading, by Python's rules: `t[1:, ::2]`, `t[-1]`, `t[..., None]`.

        It is a view: no element is copied.

        Raises:
            ShapeError: a number is out of range, or there are more of them than axes.
        """
        return cast("TensorRef[D_co]", lent_part(self, index, "[]", here()))


@final
class SharedTensor(ArrayHandle[D_co, S_co], Operators["SharedTensor[D_co]", "Static"], DLPackExport):
    """An immutable array in device memory with any number of handles. Passing it on does not move it."""

    __slots__ = ("__weakref__", "_counted", "_holders")

    def __init__(self, state: HandleState) -> None:
        assert state.holders is not None
        self._state = state
        self._holders = state.holders
        self._counted = state.holders.add()

    def clone(self) -> "SharedTensor[D_co, S_co]":
        """Return another handle to the same memory."""
        return cast("SharedTensor[D_co, S_co]", clone_shared(self))

    @leaves_run
    def try_unwrap(self) -> "Tensor[D_co, S_co]":
        """Return an owned `Tensor` if this is the last handle to its memory. Moves the handle.

        It is safe against a concurrent `clone()` in another thread: one of the two calls is refused. If another library
        has had the memory, the next run that uses the tensor begins when the device is idle, since work of that library
        may still read it.

        Raises:
            OwnershipError: the memory is held by a clone, by a `shared()` op, by a run that reads it, or by another
                library whose array it is (`share_array`).
        """
        where = here()
        with Bookkeeping():
            state, holders = self._unmoved_state(), self._holders
            storage = state.storage
            if storage.lock.readers:
                release_returned_loans()
            if holders.count == 1 and not storage.lock.readers:
                take_state(self, "try_unwrap()", where)
                if holders.count == 1:  # else another thread gives the handle out: it counts first, and then looks
                    self._counted = None  # it counts no longer
                    if storage.memory is not None and not is_remote(storage.device):
                        driver_of(storage.device).exchange.await_visitors(storage.memory)
                    return Tensor(HandleState(Tensor, storage, state.layout, state.origin))
                restore_state(self, state)
            others = holders.count - 1
        who = "a run that is reading it, or by the library whose array it is"
        if others:
            who = "1 more handle" if others == 1 else f"{others} more handles"
        raise OwnershipError(
            f"try_unwrap() of a SharedTensor made at {describe(origin_of(self))}: its memory is still held by {who}. "
            "Drop the clones and the shared() op first, or copy it with dup(t)."
        )

    @leaves_run
    def reshape(self, shape: NewShape) -> "SharedTensor[D_co]":
        """Return another handle to the same memory, with another shape, of which one extent may be -1.

        Raises:
            ShapeError: the shape has another number of elements.
        """
        return cast("SharedTensor[D_co]", reshape_handle(self, shape, here()))

    @leaves_run
    def view(self, dtype: type[_E]) -> "SharedTensor[_E]":
        """Return another handle to the same memory, whose bytes are read as elements of another type, as by
        `Tensor.view`."""
        return cast("SharedTensor[_E]", handle_part(self, Viewed(dtype), "view()", here()))

    @leaves_run
    def slice(self, *ranges: slice) -> "SharedTensor[D_co]":
        """Return another handle to a part of the same memory: `t.slice(slice(1, None))` is `t[1:]`."""
        return cast("SharedTensor[D_co]", handle_part(self, ranges, "slice()", here()))

    @leaves_run
    def __getitem__(self, index: Index) -> "SharedTensor[D_co]":
        """Return another handle to a part of the same memory, by the rules of `Tensor`. It keeps all of the memory."""
        return cast("SharedTensor[D_co]", handle_part(self, index, "[]", here()))

    @leaves_run
    def to_host(self) -> "DeviceOp[NDArray[D_co]]":
        """Return an op whose result is a new NumPy array with the contents."""
        return cast("DeviceOp[NDArray[D_co]]", TO_HOST.value(self, here()))

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The CUDA array interface, version 3: read-only, without a stream because the contents are complete.

        Raises:
            AttributeError: the tensor is on the host.
        """
        return EXPORTS.value.interface(self)

    if not TYPE_CHECKING:  # hidden from type checkers, which report the call themselves

        @leaves_run
        def partition(self, *_args: object, **_kwargs: object) -> NoReturn:
            raise wrong_kind(self, "partition()", here())


@final
class TensorRef(ArrayHandle[D_co, S_co], Operators["TensorRef[D_co]", "Borrowed"]):
    """A tensor that is lent for reading. An op that holds one cannot outlive it.

    The borrow keeps its lender alive, and becomes void when the lender is moved.
    """

    __slots__ = ("__weakref__",)

    if TYPE_CHECKING:  # for checkers unhashable, so that no source takes it; at run time it hashes by identity
        # As in typeshed for lists; object declares a method.
        __hash__: ClassVar[None]  # type: ignore[assignment]  # pyright: ignore[reportIncompatibleMethodOverride]

    @leaves_run
    def reshape(self, shape: NewShape) -> "TensorRef[D_co]":
        """Return a borrow of the same elements with another shape, of which one extent may be -1.

        Raises:
            ShapeError: the shape has another number of elements, or the elements are not contiguous.
        """
        return cast("TensorRef[D_co]", reshape_handle(self, shape, here()))

    @leaves_run
    def view(self, dtype: type[_E]) -> "TensorRef[_E]":
        """Return a borrow whose bytes are read as elements of another type, as by `Tensor.view`."""
        return cast("TensorRef[_E]", handle_part(self, Viewed(dtype), "view()", here()))

    @leaves_run
    def slice(self, *ranges: slice) -> "TensorRef[D_co]":
        """Return a borrow of a part: `t.slice(slice(1, None))` is `t[1:]`."""
        return cast("TensorRef[D_co]", handle_part(self, ranges, "slice()", here()))

    @leaves_run
    def __getitem__(self, index: Index) -> "TensorRef[D_co]":
        """Return a borrow of a part, by the rules of `Tensor`."""
        return cast("TensorRef[D_co]", handle_part(self, index, "[]", here()))

    def to_host(self) -> "DeviceOp[NDArray[D_co], Borrowed]":
        """Return an op whose result is a new NumPy array with the contents."""
        try:
            return cast("DeviceOp[NDArray[D_co], Borrowed]", TO_HOST.value(self, here()))
        except BaseException as error:
            without_our_frames(error)
            del self
            raise

    if not TYPE_CHECKING:  # hidden from type checkers, which report the call themselves

        @leaves_run
        def partition(self, *_args: object, **_kwargs: object) -> NoReturn:
            raise wrong_kind(self, "partition()", here())


@final
class TensorMut(ArrayHandle[D_co, S_co], Operators["TensorMut[D_co]", "Borrowed"]):
    """A tensor that is lent for writing, to one user at a time. Writes go to the memory of the tensor.

    The borrow keeps its lender alive, and becomes void when the lender is moved. A kernel also accepts it as an input,
    and returns it in its result. So the kernel that reads it runs before a kernel that writes it later.
    """

    __slots__ = ("__weakref__",)

    if TYPE_CHECKING:  # for checkers unhashable, so that no source takes it; at run time it hashes by identity
        # As in typeshed for lists; object declares a method.
        __hash__: ClassVar[None]  # type: ignore[assignment]  # pyright: ignore[reportIncompatibleMethodOverride]

    def partition(self, tile: Shape, *, partial: bool = False) -> "Partition[Self]":
        """Divide the tensor into disjoint tiles, for a kernel to write. Moves it; `.unpartition()` returns it.

        Raises:
            PartitionError: the tile does not divide the shape, and `partial` is false.
        """
        try:
            return cast("Partition[Self]", partition_tensor(self, tile, partial, here()))
        except BaseException as error:
            without_our_frames(error)
            raise

    @leaves_run
    def reshape(self, shape: NewShape) -> "TensorMut[D_co]":
        """Return the same loan of the same elements, in C order, with another shape. Moves the borrow.

        One extent may be -1, which stands for what is left; -1 alone is (-1,).

        Raises:
            ShapeError: the shape has another number of elements.
        """
        return cast("TensorMut[D_co]", reshape_handle(self, shape, here()))

    @leaves_run
    def view(self, dtype: type[_E]) -> "TensorMut[_E]":
        """Return the same loan, whose bytes are elements of another type, as by `Tensor.view`. Moves the borrow."""
        return cast("TensorMut[_E]", handle_part(self, Viewed(dtype), "view()", here()))

    @leaves_run
    def slice(self, *ranges: slice) -> "TensorMut[D_co]":
        """Lend a part for writing: `t.slice(slice(1, None))` is `t[1:]`."""
        return cast("TensorMut[D_co]", lent_part(self, ranges, "slice()", here()))

    @leaves_run
    def __getitem__(self, index: Index) -> "TensorMut[D_co]":
        """Lend a part for writing, by the rules of `Tensor`. The borrow itself stays, for other parts.

        One op may use parts that have no element in common, each as if it were a tensor of its own: two that overlap
        are a `BorrowError`, and so are a part and the whole.
        """
        return cast("TensorMut[D_co]", lent_part(self, index, "[]", here()))

    @leaves_run
    def to_host(self) -> "DeviceOp[NDArray[D_co], Borrowed]":
        """Return an op whose result is a new NumPy array with the contents. Moves the borrow; its run ends the loan."""
        return cast("DeviceOp[NDArray[D_co], Borrowed]", TO_HOST.value(self, here()))


_KINDS = frozenset((Tensor, SharedTensor, TensorRef, TensorMut))


def clone_shared(
    shared: SharedTensor[D_co, Any], layout: Layout | None = None, holders: Holders | None = None
) -> SharedTensor[D_co]:
    """Return another handle to the memory of a `SharedTensor`, with another layout or other holders if given.

    Raises:
        MovedError: the handle has been moved.
    """
    with Bookkeeping():
        state = shared._unmoved_state()
        return SharedTensor(
            HandleState(
                SharedTensor,
                state.storage,
                state.layout if layout is None else layout,
                state.origin,
                holders=state.holders if holders is None else holders,
            )
        )


def share_tensor(tensor: Tensor[D_co, S_co], where: Origin) -> SharedTensor[D_co, S_co]:
    """Return a `SharedTensor` of the memory of a tensor, as `tensor.share()` does. Moves the tensor.

    `where` is the place of the call in the user's code.

    Raises:
        MovedError: the tensor has been moved.
        OwnershipError: the value is not a `Tensor`, or a captured graph writes its memory.
    """
    if type(tensor) is not Tensor:
        raise wrong_kind(tensor, "share()", where)
    graph = live_state(tensor).storage.graph()
    if graph is not None:
        raise OwnershipError(
            f"share() at {describe(where)} of the output of {graph!r}: every launch writes it again, and shared "
            "memory is never written. Copy it with dup(t.borrow()), or read it with t.borrow()."
        )
    state = take_state(tensor, "share()", where)
    return SharedTensor(HandleState(SharedTensor, state.storage, state.layout, state.origin, holders=Holders()))


def reshape_handle(handle: Any, shape: object, where: Origin) -> Any:
    """Return a handle of the same kind and memory with another shape, as `handle.reshape(shape)` does.

    It moves a `Tensor` or `TensorMut`. `where` is the place of the call in the user's code.

    Raises:
        OwnershipError: the value is not a handle that has `reshape()`.
        ShapeError: the shape has another number of elements, or the elements are not contiguous.
    """
    kind = type(handle)
    if kind not in _KINDS:
        raise wrong_kind(handle, "reshape()", where)
    state = live_state(handle)
    layout = _reshape_layout(state.layout, shape, "reshape()", where)
    if kind is SharedTensor:
        return clone_shared(handle, layout)
    if kind is not TensorRef:
        take_state(handle, "reshape()", where)
    return kind(state.with_layout(layout))


def _reshape_layout(layout: Layout, shape: object, what: str, where: Origin) -> Layout:
    """Return the layout with another shape; errors name the call `what` and its place."""
    try:
        return reshape_layout(layout, shape)
    except ShapeError as error:
        raise ShapeError(f"{what} at {describe(where)}: {error}") from None


def _viewed(layout: Layout, shape: Any, where: Origin) -> Layout:
    """Return the layout of `t.view(shape)`, or `t.view(dtype)`."""
    if not isinstance(shape, type | np.dtype):
        return _reshape_layout(layout, shape, "view()", where)
    return _part_layout(layout, Viewed(shape), "view()", where)


def _part_layout(layout: Layout, part: object, call: str, where: Origin) -> Layout:
    """Return the layout of a part; errors name the call and its place."""
    try:
        return part_layout(layout, part)
    except ShapeError as error:
        raise ShapeError(f"{call} at {describe(where)}: {error}") from None


def lent_part(tensor: HandleBase, part: object, call: str, where: Origin) -> Any:
    """Lend a part of a `Tensor` for reading, or a part of a `TensorMut` for writing: `t[part]`. Neither moves.

    Raises:
        MovedError: the tensor has been moved.
        ShapeError: it has no such part.
    """
    state = live_state(tensor)
    layout = _part_layout(state.layout, part, call, where)
    if type(tensor) is Tensor:
        return TensorRef(HandleState(TensorRef, state.storage, layout, where, tensor))
    return TensorMut(HandleState(TensorMut, state.storage, layout, where, state.lender, Loan(state.loan)))


def handle_part(handle: Any, part: object, call: str, where: Origin) -> Any:
    """Return a handle of the same kind to a part of its memory, as `op[part]` does. It moves a `Tensor` or `TensorMut`:
    the owner of a part owns all of the memory.

    Raises:
        MovedError: the handle has been moved.
        OwnershipError: the value is not a tensor.
        ShapeError: it has no such part.
    """
    kind = type(handle)
    if kind not in _KINDS:
        raise wrong_kind(handle, call, where)
    state = live_state(handle)
    layout = _part_layout(state.layout, part, call, where)
    if kind is SharedTensor:
        return clone_shared(handle, layout)
    if kind is not TensorRef:
        take_state(handle, call, where)
    return kind(state.with_layout(layout))


TO_HOST: Final = Slot[Callable[[Any, Origin], object]]("dagpu.ops.creation")
"""Builds the op of `handle.to_host()`. It is a slot, because handles cannot import ops."""


# ---- handle moves
#
# Functions that move handles of any kind, and refuse values that are not handles of the right kind.

Handle: TypeAlias = (
    Tensor[Any, Any] | SharedTensor[Any, Any] | TensorRef[Any, Any] | TensorMut[Any, Any] | Partition[Any, Any]
)
"""A handle of any kind."""

Owning: TypeAlias = Tensor[Any, Any] | TensorMut[Any, Any] | Partition[Any, Any]
"""A handle of a kind that moves when it is passed on."""

HANDLES: Final = frozenset((Tensor, SharedTensor, TensorRef, TensorMut, Partition))
"""The classes of handles."""
OWNING: Final = frozenset((Tensor, TensorMut, Partition))
"""The classes of handles that move when they are passed on."""


def partition_handle(handle: Any, tile: object, partial: bool, where: Origin) -> Partition[Any, Any]:
    """Partition a handle of any kind: `handle.partition(tile)`. `where` is the place of the call in the user's code."""
    if type(handle) is not Tensor and type(handle) is not TensorMut:
        raise wrong_kind(handle, "partition()", where)
    return partition_tensor(handle, tile, partial, where)


def unpartition_handle(partition: Partition[Any, Any], where: Origin) -> Any:
    """Unpartition a handle: `partition.unpartition()`. `where` is the place of the call in the user's code."""
    if type(partition) is not Partition:
        raise wrong_kind(partition, "unpartition()", where)
    return unpartition_tensor(partition, where)


def move_handle(handle: Any, how: str, where: Origin) -> Any:
    """Move a handle, and return a new handle of the same kind to the same memory.

    A value that does not move (a `SharedTensor`, a `TensorRef`, a value that is not a handle) is returned itself.

    Raises:
        MovedError: the handle or its lender has been moved before.
    """
    kind = type(handle)
    if kind is Tensor:
        return Tensor(take_state(handle, how, where))
    if kind is Partition:
        return Partition(take_state(handle, how, where), cut_of(handle))
    if kind is TensorMut:
        live_state(handle)
        return TensorMut(take_state(handle, how, where))
    if kind is SharedTensor or kind is TensorRef:
        live_state(handle)
    return handle


# ---- handles inside nested values


_SHALLOW: Final = 4
"""The depth to which tuples are walked by recursion."""


def storage_of(handle: Handle) -> Storage:
    """Return the memory of a handle.

    Raises:
        MovedError: the handle or its lender has been moved.
    """
    return live_state(handle).storage


def storage_key(handle: Handle) -> object:
    """Return a key that is equal for two handles exactly if they share memory."""
    return storage_of(handle)


def map_handles(change: Callable[[Any], Any], value: Any) -> Any:
    """Return `value` with `change` applied to each handle in its tuples, lists and dicts."""
    return map_values(change, value, HANDLES)


def move_handles(
    value: Any, how: str, where: Origin, around: list[tuple[Any, Any]] | None = None, depth: int = 0
) -> Any:
    """Move all handles in a value with `move_handle`, and return the value with the new handles.

    If one move fails, the others are undone: those of `around` too, which are of the values around this one, by the
    outermost call.

    A check before the moves would not suffice, because another thread may move a handle after the check.

    Raises:
        MovedError: a handle has been moved before, or a handle that moves is in `value` twice.
        OwnershipError: a list or dict contains itself.
    """
    moved: list[tuple[Any, Any]] = [] if around is None else around
    try:
        if type(value) is not tuple:
            return _move_nested(value, how, where, moved)
        items: list[Any] = []
        for item in value:  # most are handles, numbers, and shallow tuples of these
            kind = type(item)
            if kind in HANDLES:
                taken = move_handle(item, how, where)
                if taken is not item:
                    moved.append((item, taken))
                items.append(taken)
            elif kind is int or kind is float:
                items.append(item)
            elif kind is tuple and depth < _SHALLOW:
                items.append(move_handles(item, how, where, moved, depth + 1))
            elif issubclass(kind, Composite) and depth < _SHALLOW:
                parts = items_of(item)
                taken = move_handles(parts, how, where, moved, depth + 1)
                items.append(item if taken is parts else made_by(kind)(about_of(item), taken))
            elif is_container(item):
                items.append(_move_nested(item, how, where, moved))
            else:
                items.append(item)
        return value if all(map(is_, items, value)) else tuple(items)
    except BaseException:
        if around is None:
            for handle, taken in moved:
                state = state_of(taken)
                assert state is not None  # only this function has a reference to it
                restore_state(handle, state)
        raise


def _move_nested(value: Any, how: str, where: Origin, moved: list[tuple[Any, Any]]) -> Any:
    """Return a value with its handles moved. Adds each handle that moves to `moved`, with the new one."""

    def move(handle: Any) -> Any:
        taken = move_handle(handle, how, where)
        if taken is not handle:
            moved.append((handle, taken))
        return taken

    return map_handles(move, value)


def handles_in(value: Any) -> Iterator[Handle]:
    """Return an iterator over the handles in the tuples, lists and dicts of a value."""
    return (item for item in values_in(value) if type(item) in HANDLES)


def make_unwritable(value: Any) -> Any:
    """Return a value that several consumers share: its NumPy arrays become read-only views.

    So one consumer cannot write an array that another one reads. Each of them gets lists, dicts, sets and bytearrays of
    its own by `own_containers`.
    """
    return own_containers(map_values(_unwritable, value))


def _unwritable(item: Any) -> Any:
    """Return a read-only view of a NumPy array, or any other value itself. A view that is read-only stays the same
    object: by that a later trace knows it."""
    if not issubclass(type(item), np.ndarray):  # isinstance would be true for a `SymbolicArray`
        return item
    if not item.flags.writeable and item.base is not None:
        return item
    view = item.view()
    view.flags.writeable = False
    return view


def has_owning_handle(value: Any) -> bool:
    """Return true if a value contains a handle that moves when it is passed on."""
    return any(type(item) in OWNING for item in values_in(value))
