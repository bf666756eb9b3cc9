"""The internal state of a handle, and the count of those that share a storage."""

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from sys import getrefcount
from typing import Final, TypeAlias, final

from dagpu.common.errors import MovedError
from dagpu.common.layout import Layout
from dagpu.common.places import Origin, describe
from dagpu.handles.storage import Storage


@final
class Holders:
    """The live `SharedTensor`s of one storage.

    Each of them refers to one common object, the *token*, and the references to it are their count. Weak references to
    the handles would not do: the garbage collector clears those of a cycle before it calls finalizers, and a finalizer
    may bring a handle back. The collector does not track the token, so it is released with the handle itself.

    Invariant, under `BOOKKEEPING`: the storage has an owner  =>  no holder of it is alive.

    So code that clones a holder, and code that makes the last holder an owner, must hold that lock. The death of a
    holder does not need the lock, because it only decreases the count.
    """

    __slots__ = ("_token",)

    def __init__(self, *, held_elsewhere: bool = False) -> None:
        """With `held_elsewhere` something counts that no one can give up."""
        token = object()
        self._token = [token, token] if held_elsewhere else [token]
        """The token, in a list that all aliases have. A second reference in it counts for ever."""

    def add(self) -> object:
        """Count a holder as long as it refers to the object that this returns."""
        return self._token[0]

    @property
    def count(self) -> int:
        """The number of live holders."""
        return getrefcount(self._token[0]) - _OF_NONE

    def alias(self) -> "Holders":
        """Return another object that shares the same set of holders."""
        other = Holders()
        other._token = self._token
        return other


_NO_HOLDER: Final = [object()]

_OF_NONE: Final = getrefcount(_NO_HOLDER[0])
"""What `getrefcount` gives for a token that only its list refers to. It differs between versions of Python."""


# ---- handle state
#
# The internal state of a handle, and the functions that read, move and restore it.
#
# A live handle has one `HandleState`, which is immutable. A move passes this object to another handle, and stores a
# `Moved` record in the old handle. So a move allocates no state, and a moved handle does not keep memory alive.
#
# Modules outside this package read the state through `state_of`, `live_state` and `find_live_state`, not through slots.

Moved: TypeAlias = tuple[str, Origin, Layout, Origin]
"""The record of a move: how the handle was moved, the place of the move, its layout, and the place that made it."""

END_OF_LOAN: Final = "the end of "
"""How the lender of a loan is moved at the end of its block; the name of the call follows."""

HANDLE_NAMES: Final[dict[str, bool]] = {}
"""The public attributes of all classes of handles; the value is true for a method, false for a property."""


@final
class Loan:
    """The identity of one `borrow_mut()`. All handles that derive from it refer to this object."""

    __slots__ = ("__weakref__",)


@final
@dataclass(slots=True, eq=False, repr=False)
class HandleState:
    """The state of one live handle. It is immutable.

    A `Partition` has the state of the tensor that was cut: there `kind` is `Tensor` or `TensorMut`.

    Invariants:
        loan is not None     <=>  kind is TensorMut
        lender is not None   <=>  kind is TensorRef or TensorMut
        holders is not None  <=>  kind is SharedTensor
    """

    kind: "type[HandleBase]"
    """The class of the handle; for a `Partition`, the class of the tensor that was cut."""
    storage: Storage
    layout: Layout
    origin: Origin
    """The place in the user's code that made the handle, or borrowed it."""
    lender: "Lender | None" = None
    """The tensor that a borrow was borrowed from. The borrow is void once this tensor has been moved."""
    loan: Loan | None = None
    """The `borrow_mut()` that the handle derives from."""
    holders: Holders | None = None
    """The live `SharedTensor`s on the same memory."""

    @property
    def writable(self) -> bool:
        """True for an owned tensor and for a tensor that is lent for writing."""
        return self.loan is not None or (self.lender is None and self.holders is None)

    @property
    def void(self) -> bool:
        """True for a borrow whose lender has been moved."""
        return self.lender is not None and self.lender._state is None

    def with_layout(self, layout: Layout) -> "HandleState":
        """Return a copy of the state with another layout."""
        return HandleState(self.kind, self.storage, layout, self.origin, self.lender, self.loan, self.holders)

    def with_lender(self, lender: "Lender") -> "HandleState":
        """Return a copy of the state of a borrow with another lender."""
        return HandleState(self.kind, self.storage, self.layout, self.origin, lender, self.loan)

    def __repr__(self) -> str:
        layout = self.layout
        return f"{self.kind.__name__}({layout.dtype.name}, {layout.shape}, {self.storage.device.name})"


class HandleBase:
    """The base class of all handles, with the slots for their state.

    Invariant: state is None  =>  moved is set.
    """

    __slots__ = ("_moved", "_state")
    _moved: Moved
    """The last move of this handle; unset before the first move."""

    def __init__(self, state: HandleState) -> None:
        self._state: HandleState | None = state

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        HANDLE_NAMES.update({k: not isinstance(member, property) for k, member in vars(cls).items() if k[0] != "_"})

    def _unmoved_state(self) -> HandleState:
        """Return the state of a handle that has not been moved. Unlike `live_state`, it accepts a void borrow.

        Raises:
            MovedError: the handle has been moved.
        """
        state = self._state
        if state is None:
            raise moved_error(self)
        return state

    def _summary(self) -> tuple[Layout, Origin, str]:
        """Return the layout, the place that made the handle, and the name of its device, or "gone" after a move."""
        state = self._state
        if state is None:
            _, _, layout, made = self._moved
            return layout, made, "gone"
        return state.layout, state.origin, state.storage.device.name


@final
class LenderAlias:
    """The lender of a borrow of a pipeline's argument: it represents the tensor that lent the argument.

    The alias counts as moved once that tensor has been moved.
    """

    __slots__ = ("tensor",)

    def __init__(self, tensor: "Lender") -> None:
        self.tensor: HandleBase = tensor.tensor if isinstance(tensor, LenderAlias) else tensor

    @property
    def _state(self) -> HandleState | None:
        return self.tensor._state

    @property
    def _moved(self) -> Moved:
        return self.tensor._moved


Lender: TypeAlias = HandleBase | LenderAlias
"""The tensor that a borrow was borrowed from, or its alias."""

state_of: Final[Callable[[Lender], HandleState | None]] = attrgetter("_state")
"""Return the state of a handle or lender; None after a move. Hot paths call it, so it is a C function."""


def live_state(handle: HandleBase) -> HandleState:
    """Return the state of a handle that is usable.

    Raises:
        MovedError: the handle has been moved, or it is a borrow whose lender has been moved.
    """
    state = handle._state
    if state is None:
        raise moved_error(handle)
    lender = state.lender
    if lender is not None and lender._state is None:
        raise _void_error(state, lender)
    return state


def find_live_state(handle: HandleBase) -> HandleState | None:
    """Return the state of a handle that is usable; None if it has been moved, or is a borrow of a moved tensor."""
    state = handle._state
    return None if state is None or state.void else state


def take_state(handle: HandleBase, how: str, where: Origin) -> HandleState:
    """Mark a handle as moved, and return its state for the next handle.

    `how` and `where` describe the move for the messages of later errors.

    Raises:
        MovedError: the handle has been moved before.
    """
    # Two threads cannot both take the state: CPython switches threads at calls and backward jumps, and the lines from
    # the read of the state to its removal contain neither.
    state = handle._state
    if state is None:
        raise moved_error(handle)
    handle._moved = how, where, state.layout, state.origin
    handle._state = None
    return state


def take_known_state(handle: HandleBase, state: HandleState, how: str, where: Origin) -> bool:
    """Mark a handle as moved, as `take_state` does, if its state is still `state`. Return false if it is not."""
    if handle._state is not state:
        return False
    handle._moved = how, where, state.layout, state.origin  # no thread switch since the read: see `take_state`
    handle._state = None
    return True


def restore_state(handle: HandleBase, state: HandleState) -> None:
    """Undo a move: restore the state of a handle."""
    handle._state = state


def origin_of(handle: Lender) -> Origin:
    """Return the place in the user's code that made a handle. The handle may have been moved."""
    state = handle._state
    return handle._moved[3] if state is None else state.origin


def last_move(handle: Lender) -> tuple[str, Origin]:
    """Return how and where a moved handle was moved last."""
    return handle._moved[:2]


def moved_error(handle: HandleBase) -> MovedError:
    """Return the error for the use of a moved handle."""
    how, where, _, made = handle._moved
    kind = type(handle).__name__
    cure = "use what the move gave back"
    if kind == "TensorMut":
        cure += ", or lend the tensor again with .borrow_mut()"
    elif kind == "SharedTensor":
        cure += ", or share that again with .share()"
    elif how.startswith("partition"):
        cure += (
            ", lend it for writing: .borrow_mut().partition(tile), or write to memory of its own, "
            "empty(shape).partition(tile), and read this"
        )
    elif kind != "Partition":
        cure += ", lend it with .borrow(), or share it with .share()"
    return MovedError(
        f"{handle!r} made at {describe(made)} was moved by {how} at {describe(where)} and used again. To use it twice: "
        f"{cure}."
    )


def _void_error(state: HandleState, lender: Lender) -> MovedError:
    """Return the error for the use of a borrow whose lender has been moved."""
    how, where = last_move(lender)
    if how.startswith(END_OF_LOAN):
        return MovedError(
            f"{state.kind.__name__} lent at {describe(state.origin)} is used after {how}. Use it in the block, or "
            "share the array for longer: share_array(x)."
        )
    made_at = describe(origin_of(lender))
    return MovedError(
        f"{state.kind.__name__} borrowed at {describe(state.origin)}: its tensor, made at {made_at}, was moved by "
        f"{how} at {describe(where)}. Use the borrow before the tensor moves, or share() the tensor."
    )
