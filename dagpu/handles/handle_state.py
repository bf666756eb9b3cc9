"""The internal state of a handle, and the functions that read it, take it away and give it back.

A living handle has one `HandleState`, which never changes. A move hands this object on to another handle, and leaves a
note in the handle that was moved: where it went, its layout, and where it was made. So a move allocates no state, and
a handle that was moved does not keep memory alive.

Modules outside this package reach the state through `state_of`, `live` and `living_state`, never through a slot.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Final, TypeAlias, final

from dagpu.common.errors import MovedError
from dagpu.common.layout import Layout
from dagpu.common.origin import Origin, describe
from dagpu.handles.holders import Holders
from dagpu.handles.storage import Storage

Moved: TypeAlias = tuple[str, Origin, Layout, Origin]
"""The note that a move leaves in the old handle: how it was moved, where, its layout, and where it was made."""

HANDLE_NAMES: Final[dict[str, bool]] = {}
"""Every public attribute name of some class of handles; the value is true for a method, false for a property."""


@final
class Loan:
    """One `borrow_mut()`. Each handle that comes of it refers to it."""

    __slots__ = ("__weakref__",)


@final
class HandleState:
    """The state of one living handle. It is immutable.

    A `Partition` has the state of the tensor that was cut: there `kind` is `Tensor` or `TensorMut`.

    Invariants:
        loan is not None     <=>  kind is TensorMut
        lender is not None   <=>  kind is TensorRef or TensorMut
        holders is not None  <=>  kind is SharedTensor
    """

    __slots__ = ("holders", "kind", "layout", "lender", "loan", "made", "storage")

    def __init__(
        self,
        kind: "type[HandleBase]",
        storage: Storage,
        layout: Layout,
        made: Origin,
        lender: "Lender | None" = None,
        loan: Loan | None = None,
        holders: Holders | None = None,
    ) -> None:
        self.kind = kind
        """The class of the handle; for a `Partition`, the class of the tensor that was cut."""
        self.storage = storage
        self.layout = layout
        self.made = made
        """The place in the user's code that made the handle, or borrowed it."""
        self.lender = lender
        """The tensor that a borrow was borrowed from. The borrow is void once this tensor has been moved."""
        self.loan = loan
        self.holders = holders

    @property
    def writable(self) -> bool:
        """True for an owned tensor and for one that is lent for writing."""
        return self.loan is not None or (self.lender is None and self.holders is None)

    @property
    def void(self) -> bool:
        """True for a borrow whose lender has been moved."""
        return self.lender is not None and self.lender._state is None

    def with_layout(self, layout: Layout) -> "HandleState":
        """The same memory, of the same kind, under another layout."""
        return HandleState(self.kind, self.storage, layout, self.made, self.lender, self.loan, self.holders)

    def with_lender(self, lender: "Lender") -> "HandleState":
        """The same borrow of another lender."""
        return HandleState(self.kind, self.storage, self.layout, self.made, lender, self.loan)

    def __repr__(self) -> str:
        layout = self.layout
        return f"{self.kind.__name__}({layout.dtype.name}, {layout.shape}, {self.storage.device.name})"


class HandleBase:
    """The slots of every handle.

    Invariant: state is None  =>  moved is set.
    """

    __slots__ = ("_moved", "_state")
    _moved: Moved
    """The last move of this handle; unset before the first one."""

    def __init__(self, state: HandleState) -> None:
        self._state: HandleState | None = state

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        HANDLE_NAMES.update({k: not isinstance(member, property) for k, member in vars(cls).items() if k[0] != "_"})

    def _held(self) -> HandleState:
        """The state; `MovedError` after a move. A void borrow still has one: see `live`."""
        state = self._state
        if state is None:
            raise moved_error(self)
        return state

    def _face(self) -> tuple[Layout, Origin, str]:
        """The layout, the place that made the handle, and its device, or "gone" after a move."""
        state = self._state
        if state is None:
            _, _, layout, made = self._moved
            return layout, made, "gone"
        return state.layout, state.made, state.storage.device.name


@final
class LenderAlias:
    """Stands for the tensor that lent an argument of a pipeline: a borrow of the argument has the alias as its lender.

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

state_of: Final[Callable[[Lender], HandleState | None]] = attrgetter("_state")
"""The state of a handle or lender; None after a move. It is a function of C: hot paths call it."""


def live(handle: HandleBase) -> HandleState:
    """The state of a handle that may be used.

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


def living_state(handle: HandleBase) -> HandleState | None:
    """The state of a handle that may be used, and None where `live` would raise."""
    state = handle._state
    return None if state is None or state.void else state


def take(handle: HandleBase, how: str, where: Origin) -> HandleState:
    """Mark a handle as moved, at `where` in the user's code, and give its state away.

    Raises:
        MovedError: the handle has been moved before.
    """
    # Two threads cannot both take it: CPython changes threads at calls and at jumps back, and there is none from here
    # to where it is gone.
    state = handle._state
    if state is None:
        raise moved_error(handle)
    handle._moved = how, where, state.layout, state.made
    handle._state = None
    return state


def give_back(handle: HandleBase, state: HandleState) -> None:
    """Undo a `take`: the handle has its state again."""
    handle._state = state


def made_at(handle: Lender) -> Origin:
    """The place in the user's code that made a handle, moved or not."""
    state = handle._state
    return handle._moved[3] if state is None else state.made


def last_move(handle: Lender) -> tuple[str, Origin]:
    """How and where a handle was moved that has been moved."""
    return handle._moved[:2]


def moved_error(handle: HandleBase) -> MovedError:
    """The error for the use of a handle that has been moved."""
    how, where, _, made = handle._moved
    kind = type(handle).__name__
    cure = "use what the move gave back"
    if kind == "TensorMut":
        cure += ", or lend the tensor anew with .borrow_mut()"
    elif kind == "SharedTensor":
        cure += ", or share that anew with .share()"
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
    """The error for the use of a borrow whose lender has been moved."""
    how, where = last_move(lender)
    return MovedError(
        f"{state.kind.__name__} borrowed at {describe(state.made)}: its tensor, made at {describe(made_at(lender))}, "
        f"was moved by {how} at {describe(where)}. Use the borrow before the tensor moves, or share() the tensor."
    )
