"""Handles: what an op yields for device data. They know shape, dtype and device; the contents stay on the device.

Ownership at run time is one flag for each handle. A handle that owns its memory can be *moved* once: the memory goes
to a new handle, and the old one raises `MovedError` from then on. Borrows point back at their lender; locks on memory
are taken by runs (dagpu.runtime), for their length.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NoReturn, Self, TypeAlias, cast, final

import numpy as np
from typing_extensions import TypeVar

from dagpu.critical import Bookkeeping
from dagpu.device import Device
from dagpu.dtypes import Shape
from dagpu.errors import MovedError, NotReadyError, OwnershipError, PartitionError, ShapeError
from dagpu.layout import Layout, reshaped, sliced, tiling
from dagpu.origin import Origin, describe, here, here_but_for
from dagpu.slot import Slot
from dagpu.storage import Holders, Storage
from dagpu.wrong_arguments import no_attribute

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dagpu.ops.base import Borrowed, DeviceOp  # the result type of to_host; imported by no running code

_D_co = TypeVar("_D_co", bound=np.generic, covariant=True)
_S_co = TypeVar("_S_co", bound=tuple[int, ...], covariant=True, default=tuple[int, ...])
_Tile_co = TypeVar("_Tile_co", bound=tuple[int, ...], covariant=True, default=tuple[int, ...])
_V_co = TypeVar("_V_co", covariant=True)


def refuse_copy(handle: Any, _protocol: object = None) -> NoReturn:
    """What copy.copy, copy.deepcopy and pickle find: a copy would be a second owner, or a holder that nobody counts.

    Raises:
        OwnershipError: always; it says where that was, and how to have a second one.
    """
    why = "The copy of a handle would have the same memory, and nobody would know of it"
    raise copy_error(f"{handle!r} made at {describe(handle._made)}", f"{why}. {_COPIES[type(handle).__name__]}")


def copy_error(what: str, why: str) -> OwnershipError:
    """The error for a copy or pickle of what has one owner. `why` ends with the cure, and has no full stop."""
    return OwnershipError(f"{what} was to be copied or pickled at {describe(here_but_for(*_COPIERS))}. {why}.")


_COPIERS = ("copy", "copyreg", "pickle")
"""The modules that call `__reduce_ex__`."""
_ARRAY = "the array that .to_host() gives can be copied and pickled"
_COPIES = {
    "Tensor": f"Copy its contents with dup(t.borrow()), or share it with .share(); {_ARRAY}",
    "SharedTensor": f"One more handle to the same memory is .clone(); {_ARRAY}",
    "TensorRef": f"Borrow the tensor once more with .borrow(); {_ARRAY}",
    "TensorMut": "A tensor is lent for writing to one at a time: when that is done, lend it again with .borrow_mut()",
    "Partition": "Put it together with .unpartition(): a tensor can be copied with dup(t.borrow())",
}
"""How to have a second one of each kind of handle."""


ARRAY_NAMES = frozenset(
    ("T", "all", "any", "argmax", "argmin", "astype", "copy", "cpu", "dot", "flatten", "get", "item", "max", "mean",
     "min", "numpy", "prod", "ravel", "std", "sum", "tolist", "transpose", "var")
)  # fmt: skip
"""What arrays of NumPy, CuPy and PyTorch have, and neither handles nor ops."""

OP_NAMES = frozenset(
    ("explain", "first", "graph", "graph_on", "host_map", "inspect", "last", "map", "on", "save_svg", "schedule",
     "shared", "sync", "sync_on", "then", "to_dot", "to_svg", "unzip")
)  # fmt: skip
"""What ops have, and no handle."""

_CONTENTS = (int, float, complex, np.generic, np.ndarray)
"""What the contents of a tensor might be compared with."""


def _no_attribute(handle: Any, name: str) -> NoReturn:
    """What a handle says of a name that it lacks, where arrays, ops or other handles have it.

    Raises:
        AttributeError: always.
    """
    if name.startswith("_"):  # a protocol that somebody looks for
        raise no_attribute(handle, name)
    if name in HANDLE_NAMES:
        cure = _cure(type(handle), name)
    elif name in ARRAY_NAMES:
        whole = ".unpartition()" if type(handle) is Partition else ""
        cure = (
            f"Its contents are on the device: t{whole}.to_host().sync(), or await t{whole}.to_host(), is a NumPy array"
        )
    elif name == "sync":
        cure = "It is there already, and no op: leave .sync() out"
    elif name in OP_NAMES:
        cure = f"It is there already, and no op. Make one of it: value(t).{name}(...)"
    else:
        raise no_attribute(handle, name)
    raise AttributeError(f"{handle!r} made at {describe(handle._made)} has no {name!r}. {cure}.")


def _no_await(handle: Any) -> NoReturn:
    raise TypeError(
        f"await at {describe(here())} of {handle!r}, which is there already, and no op: leave await out. Its contents "
        "come with await t.to_host()."
    )


@final
class _Loan:
    """One `borrow_mut()`: alive while a handle that came of it is."""

    __slots__ = ("__weakref__",)


class _Array(Generic[_D_co, _S_co]):
    """What the handles of arrays have in common."""

    __slots__ = ("_layout", "_made", "_moved", "_storage")
    _word: ClassVar[str]

    def __init__(self, storage: Storage, layout: Layout, made: Origin) -> None:
        self._storage: Storage | None = storage
        self._layout = layout
        self._made = made
        self._moved: tuple[str, Origin] | None = None

    @property
    def shape(self) -> _S_co:
        """Extents in elements."""
        self._live()
        return cast(_S_co, self._layout.shape)

    @property
    def strides(self) -> Shape:
        """Strides in bytes."""
        self._live()
        return self._layout.strides

    @property
    def dtype(self) -> "np.dtype[Any]":
        self._live()
        return self._layout.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """How many elements."""
        self._live()
        return self._layout.size

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        self._live()
        return self._layout.nbytes

    @property
    def device(self) -> Device:
        """Where it lies."""
        return self._live().device

    def _live(self) -> Storage:
        """Its storage; `MovedError` if it has been moved."""
        storage = self._storage
        if storage is None:
            raise moved_error(self)
        return storage

    def _take(self, how: str, where: Origin) -> Storage:
        """Mark it moved, at `where` in the user's code, and give its storage away."""
        # Two threads cannot both take it: CPython changes threads at calls and at jumps back, and there is none from
        # here to where it is gone.
        storage = self._storage
        if storage is None:
            raise moved_error(self)
        self._storage, self._moved = None, (how, where)
        return storage

    def __repr__(self) -> str:
        layout = self._layout
        state = "gone" if self._storage is None else self._storage.device.name
        return f"{self._word}({layout.dtype.name}, {layout.shape}, {state})"

    def _repr_html_(self) -> str:
        """A row for a notebook: metadata only, as ever."""
        gone = self._storage is None
        where = "gone" if self._storage is None else self._storage.device.name
        cells = (self._word, self._layout.dtype.name, " &times; ".join(map(str, self._layout.shape)) or "scalar", where)
        row = "".join(f"<td>{cell}</td>" for cell in cells)
        return (
            f"<table><tr{' style=opacity:0.5' if gone else ''}>{row}<td>{self._layout.nbytes:,} bytes</td></tr></table>"
        )

    if not TYPE_CHECKING:  # a checker must refuse these by itself, so it may not see them
        __getattr__ = _no_attribute
        __await__ = _no_await

        def _no_contents(self, *_args: object, **_kwargs: object) -> NoReturn:
            raise NotReadyError(
                f"{self._word} made at {describe(self._made)}: a handle never yields its contents by itself; inside a "
                "run they are not there yet, outside they are on the device. Get them with .to_host()."
            )

        __reduce_ex__ = refuse_copy  # by which copy, deepcopy and pickle go
        __array__ = __getitem__ = __setitem__ = __iter__ = __len__ = __bool__ = _no_contents
        __float__ = __int__ = __complex__ = __index__ = _no_contents
        __add__ = __sub__ = __mul__ = __truediv__ = __matmul__ = __pow__ = __neg__ = _no_contents
        __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rmatmul__ = __rpow__ = _no_contents
        __lt__ = __le__ = __gt__ = __ge__ = __mod__ = __floordiv__ = __abs__ = _no_contents

        def __eq__(self, other: object) -> bool:
            """Handles are equal that are one object. Comparing contents with a number or an array is refused."""
            if isinstance(other, _CONTENTS):
                self._no_contents()
            return NotImplemented

        __hash__ = object.__hash__  # a class with an `__eq__` of its own has none otherwise


@final
class Tensor(_Array[_D_co, _S_co]):
    """An array in device memory that is owned by one variable. Passing it on moves it."""

    __slots__ = ("__weakref__",)
    _word = "Tensor"

    def partition(self, tile: Shape, *, partial: bool = False) -> "Partition[Self]":
        """Cut it into disjoint tiles, to be written by a kernel. Moves it; `.unpartition()` gives it back.

        Raises:
            PartitionError: the tile does not divide the shape and `partial` is false.
        """
        return cast("Partition[Self]", cut_up(self, tile, partial, here()))

    def share(self) -> "SharedTensor[_D_co, _S_co]":
        """Give up writing for reading from any number of places. Moves it."""
        return share(self, here())

    def reshape(self, shape: Shape) -> "Tensor[_D_co]":
        """The same elements, in C order, under another shape. Moves it."""
        return cast("Tensor[_D_co]", reshape(self, shape, here()))

    def to_host(self) -> "DeviceOp[NDArray[_D_co]]":
        """An op that gives a new NumPy array with its contents. Moves it."""
        return cast("DeviceOp[NDArray[_D_co]]", TO_HOST.value(self))

    def borrow(self) -> "TensorRef[_D_co, _S_co]":
        """Lend it for reading: any number of times at once, while nobody writes."""
        return TensorRef(self._live(), self._layout, here(), self)

    def borrow_mut(self) -> "TensorMut[_D_co, _S_co]":
        """Lend it for writing, through `.partition()`: to one at a time."""
        return TensorMut(self._live(), self._layout, here(), self, _Loan())

    def view(self, shape: Shape) -> "TensorRef[_D_co]":
        """Borrow it under another shape."""
        where = here()
        return TensorRef(self._live(), _reshaped(self._layout, shape, "view()", where), where, self)

    def slice(self, *ranges: slice) -> "TensorRef[_D_co]":
        """Borrow a part of it: one `slice` for each of the first axes, by Python's rules."""
        where = here()
        return TensorRef(self._live(), _sliced(self._layout, ranges, where), where, self)


@final
class SharedTensor(_Array[_D_co, _S_co]):
    """An array in device memory that nobody writes any more. Passing it on does not move it."""

    __slots__ = ("__weakref__", "_counted", "_holders")
    _word = "SharedTensor"

    def __init__(self, storage: Storage, layout: Layout, made: Origin, holders: Holders) -> None:
        super().__init__(storage, layout, made)
        self._holders = holders
        self._counted = holders.add(self)

    def clone(self) -> "SharedTensor[_D_co, _S_co]":
        """One more handle to the same memory."""
        return cast("SharedTensor[_D_co, _S_co]", self._another(self._layout, self._holders))

    def _another(self, layout: Layout, holders: Holders) -> "SharedTensor[_D_co]":
        """One more handle, unless the memory has an owner by now: `MovedError`."""
        with Bookkeeping():
            return SharedTensor(self._live(), layout, self._made, holders)

    def try_unwrap(self) -> "Tensor[_D_co, _S_co]":
        """Back to an owned `Tensor`, if this is the last handle to its memory. Moves it.

        Safe against `clone()` in another thread: one of the two is refused.

        Raises:
            OwnershipError: others hold it: clones, a `shared()` op that remembers it, or a run that is reading it.
        """
        where = here()
        with Bookkeeping():
            storage = self._live()
            others = len(self._holders.alive) - 1
            if not others and not storage.readers:
                storage = self._take("try_unwrap()", where)
                self._holders.alive.discard(self._counted)
                return Tensor(storage, self._layout, self._made)
        who = "a run that is reading it"
        if others:
            who = "1 more handle" if others == 1 else f"{others} more handles"
        raise OwnershipError(
            f"try_unwrap() of a SharedTensor made at {describe(self._made)}: its memory is still held by {who}. "
            "Drop the clones and the shared() op first, or copy it with dup(t)."
        )

    def reshape(self, shape: Shape) -> "SharedTensor[_D_co]":
        """One more handle to the same memory, under another shape."""
        return cast("SharedTensor[_D_co]", reshape(self, shape, here()))

    def to_host(self) -> "DeviceOp[NDArray[_D_co]]":
        """An op that gives a new NumPy array with its contents."""
        return cast("DeviceOp[NDArray[_D_co]]", TO_HOST.value(self))

    if not TYPE_CHECKING:  # a checker says so by itself

        def partition(self, *_args: object, **_kwargs: object) -> NoReturn:
            raise _wrong_kind(self, "partition()", here())


class _Lent(_Array[_D_co, _S_co]):
    """A borrow: it keeps its lender alive, and is void once the lender has been moved."""

    __slots__ = ("_lender",)

    def __init__(self, storage: Storage, layout: Layout, made: Origin, lender: "Tensor[Any, Any]") -> None:
        super().__init__(storage, layout, made)
        self._lender = lender

    def _live(self) -> Storage:
        storage = super()._live()
        lender = self._lender
        if lender._storage is not storage:
            how, where = lender._moved or ("", None)
            raise MovedError(
                f"{self._word} borrowed at {describe(self._made)}: its tensor, made at {describe(lender._made)}, was "
                f"moved by {how} at {describe(where)}. Use the borrow before the tensor moves, or share() the tensor."
            )
        return storage


@final
class TensorRef(_Lent[_D_co, _S_co]):
    """A tensor lent for reading. An op that holds one cannot outlive it."""

    __slots__ = ("__weakref__",)
    _word = "TensorRef"

    def reshape(self, shape: Shape) -> "TensorRef[_D_co]":
        """The same elements under another shape; `ShapeError` where they do not lie in one piece."""
        return cast("TensorRef[_D_co]", reshape(self, shape, here()))

    def slice(self, *ranges: slice) -> "TensorRef[_D_co]":
        """A part of it: one `slice` for each of the first axes, by Python's rules."""
        return TensorRef(self._live(), _sliced(self._layout, ranges, here()), self._made, self._lender)

    def to_host(self) -> "DeviceOp[NDArray[_D_co], Borrowed]":
        """An op that gives a new NumPy array with its contents."""
        return cast("DeviceOp[NDArray[_D_co], Borrowed]", TO_HOST.value(self))

    if not TYPE_CHECKING:  # a checker says so by itself

        def partition(self, *_args: object, **_kwargs: object) -> NoReturn:
            raise _wrong_kind(self, "partition()", here())


@final
class TensorMut(_Lent[_D_co, _S_co]):
    """A tensor lent for writing, to one at a time; what is written lands in the tensor.

    A kernel takes it as an input as well, and gives it back in its result: what reads it there runs before what
    writes it afterwards.
    """

    __slots__ = ("__weakref__", "_loan")
    _word = "TensorMut"

    def __init__(self, storage: Storage, layout: Layout, made: Origin, lender: "Tensor[Any, Any]", loan: _Loan) -> None:
        super().__init__(storage, layout, made, lender)
        self._loan = loan

    def partition(self, tile: Shape, *, partial: bool = False) -> "Partition[Self]":
        """Cut it into disjoint tiles, to be written by a kernel. Moves it; `.unpartition()` gives it back.

        Raises:
            PartitionError: the tile does not divide the shape and `partial` is false.
        """
        return cast("Partition[Self]", cut_up(self, tile, partial, here()))

    def reshape(self, shape: Shape) -> "TensorMut[_D_co]":
        """The same loan of the same elements, in C order, under another shape. Moves it.

        Raises:
            ShapeError: the shape has another number of elements.
        """
        return cast("TensorMut[_D_co]", reshape(self, shape, here()))

    def to_host(self) -> "DeviceOp[NDArray[_D_co], Borrowed]":
        """An op that gives a new NumPy array with its contents. Moves it: the loan ends with that op's run."""
        return cast("DeviceOp[NDArray[_D_co], Borrowed]", TO_HOST.value(self))


@final
class Partition(Generic[_V_co, _Tile_co]):
    """A tensor cut into disjoint tiles: the only form that a kernel's output takes."""

    __slots__ = ("__weakref__", "_cut", "_grid", "_inner", "_made", "_moved", "_whole")

    def __init__(self, inner: _V_co, tile: Shape, grid: Shape) -> None:
        self._inner: Tensor[Any, Any] | TensorMut[Any, Any] | None = cast("Tensor[Any, Any]", inner)
        self._cut = tile
        self._grid = grid
        self._whole = self._inner._layout
        self._made = self._inner._made
        self._moved: tuple[str, Origin] | None = None

    @property
    def shape(self) -> Shape:
        """Extents of the whole, in elements."""
        self._live()
        return self._whole.shape

    @property
    def dtype(self) -> "np.dtype[Any]":
        self._live()
        return self._whole.dtype

    @property
    def tile(self) -> _Tile_co:
        """Extents of one tile, in elements."""
        self._live()
        return cast(_Tile_co, self._cut)

    @property
    def grid(self) -> Shape:
        """How many tiles there are along each axis."""
        self._live()
        return self._grid

    def unpartition(self) -> _V_co:
        """What was cut, whole again. Moves the partition."""
        return cast(_V_co, put_together(self, here()))

    def _live(self) -> "Tensor[Any, Any] | TensorMut[Any, Any]":
        inner = self._inner
        if inner is None:
            raise moved_error(self)
        return inner

    def _take(self, how: str, where: Origin) -> "Tensor[Any, Any] | TensorMut[Any, Any]":
        inner = self._live()
        self._inner, self._moved = None, (how, where)
        return inner

    def __repr__(self) -> str:
        state = "gone" if self._inner is None else f"grid {self._grid}"
        return f"Partition({self._whole.dtype.name}, {self._whole.shape}, tile {self._cut}, {state})"

    if not TYPE_CHECKING:  # as for the other handles
        __getattr__ = _no_attribute
        __await__ = _no_await

        def _no_contents(self, *_args: object, **_kwargs: object) -> NoReturn:
            raise NotReadyError(
                f"Partition of a tensor made at {describe(self._made)}: a handle never yields its contents by itself. "
                "Put it together with .unpartition(), and get them with .to_host()."
            )

        __reduce_ex__ = refuse_copy
        __array__ = __getitem__ = __setitem__ = __iter__ = __len__ = __bool__ = _no_contents
        __float__ = __int__ = __complex__ = __index__ = _no_contents
        __eq__, __hash__ = _Array.__eq__, object.__hash__


def _members(kind: type[Any]) -> Iterator[tuple[str, object]]:
    for base in kind.__mro__:
        yield from vars(base).items()


Handle: TypeAlias = (
    Tensor[Any, Any] | SharedTensor[Any, Any] | TensorRef[Any, Any] | TensorMut[Any, Any] | Partition[Any, Any]
)
Owning: TypeAlias = Tensor[Any, Any] | TensorMut[Any, Any] | Partition[Any, Any]
"""The handles that move."""

HANDLES = frozenset((Tensor, SharedTensor, TensorRef, TensorMut, Partition))
OWNING = frozenset((Tensor, TensorMut, Partition))

HANDLE_NAMES: Final = {
    name: not isinstance(member, property) for kind in HANDLES for name, member in _members(kind) if name[0] != "_"
}
"""Every public name that some kind of handle has, and whether it is a method."""


def moved_error(handle: Handle | _Array[Any, Any]) -> MovedError:
    """What to raise when a handle is used that has been moved."""
    how, where = handle._moved or ("a move", None)
    made = f" made at {describe(handle._made)}"
    cure = "use what the move gave back"
    if isinstance(handle, TensorMut):
        cure += ", or lend the tensor anew with .borrow_mut()"
    elif isinstance(handle, SharedTensor):
        cure += ", or share that anew with .share()"
    elif how.startswith("partition"):
        cure += (
            ", lend it for writing: .borrow_mut().partition(tile), or write to memory of its own, "
            "empty(shape).partition(tile), and read this"
        )
    elif not isinstance(handle, Partition):
        cure += ", lend it with .borrow(), or share it with .share()"
    return MovedError(
        f"{handle!r}{made} was moved by {how} at {describe(where)} and used again. To use it twice: {cure}."
    )


def _wrong_kind(value: object, method: str, where: Origin) -> OwnershipError:
    """What to raise when partition(), unpartition() or share() is asked of a value that has none."""
    cure = _cure(type(value), method.removesuffix("()"))
    return OwnershipError(f"{method} at {describe(where)} of a value of type {type(value).__name__}. {cure}.")


def _cure(kind: type[Any], name: str) -> str:
    """What to write in place of `name`, which some kind of handle has and a value of this type lacks."""
    if issubclass(kind, tuple):
        return "A kernel call gives a tuple of all its arguments: pick one with .first() or .unzip()"
    if name == "unpartition" and kind in HANDLES:
        return "It is whole already. Leave that out, or pick the output if this is an input of a kernel"
    otherwise = _OTHERWISE.get(kind, "Only tensors on a device have that; from_host(array) makes one")
    return _CURES.get((kind, name), otherwise)


_CURES: Final[dict[tuple[type[Any], str], str]] = {
    (Tensor, "clone"): "It has one owner. Copy its contents with dup(t.borrow()), or share it: t.share().clone()",
    (Tensor, "try_unwrap"): "It is owned already: leave .try_unwrap() out",
    (Tensor, "tile"): "Tiles belong to what is cut: t.partition(tile) has them",
    (Tensor, "grid"): "Tiles belong to what is cut: t.partition(tile) has them",
    (SharedTensor, "share"): "It is shared already: .clone() makes one more handle",
    (SharedTensor, "borrow"): "It need not be lent: pass it itself, as often as you like",
    (SharedTensor, "view"): "Give it the other shape with .reshape(shape): one more handle to the same memory",
    (SharedTensor, "slice"): "Slice a tensor before it is shared, or a copy: dup(t).sync().slice(...)",
    (TensorRef, "share"): "It is only lent: share the tensor that it was lent from",
    (TensorRef, "try_unwrap"): "It is only lent: use the tensor that it was lent from",
    (TensorRef, "borrow"): "It is lent already, for reading: pass it itself, as often as you like",
    (TensorRef, "clone"): "It is lent already, for reading: pass it itself, as often as you like",
    (TensorRef, "view"): "Give it the other shape with .reshape(shape)",
    (TensorMut, "share"): "It is only lent: share the tensor that it was lent from",
    (TensorMut, "try_unwrap"): "It is only lent: use the tensor that it was lent from",
    (TensorMut, "borrow"): "It is lent already, for writing. A kernel reads it too: pass it itself",
    (TensorMut, "borrow_mut"): "It is lent already, for writing: pass it itself, or cut it with .partition(tile)",
    (TensorMut, "tile"): "Tiles belong to what is cut: t.partition(tile) has them",
    (TensorMut, "grid"): "Tiles belong to what is cut: t.partition(tile) has them",
    (TensorMut, "view"): "Give it the other shape with .reshape(shape)",
    (Partition, "partition"): "It is cut already. To cut it otherwise, put it together: .unpartition().partition(tile)",
}
"""By the kind of handle, and a name that it lacks."""

_OTHERWISE: Final[dict[type[Any], str]] = {
    SharedTensor: "It is immutable: write to a copy, dup(t), or to an empty(shape)",
    TensorRef: "It is lent for reading: lend the tensor for writing, .borrow_mut().partition(tile)",
    TensorMut: "It is lent for writing: ask that of the tensor, before it is lent or after that",
    Partition: "Put it together first: .unpartition()",
}
"""For the other names."""


def cut_up(handle: Any, tile: object, partial: bool, where: Origin) -> Partition[Any, Any]:
    """`handle.partition(tile)` for a caller that knows where the user's code stands."""
    if type(handle) is not Tensor and type(handle) is not TensorMut:
        raise _wrong_kind(handle, "partition()", where)
    handle._live()
    try:
        cut, grid = tiling(handle._layout.shape, tile, partial)
    except PartitionError as error:
        raise PartitionError(f"partition() at {describe(where)}: {error}") from None
    return Partition(move_in(handle, "partition()", where), cut, grid)


def put_together(partition: Partition[Any, Any], where: Origin) -> Any:
    """`partition.unpartition()`, likewise."""
    if type(partition) is not Partition:
        raise _wrong_kind(partition, "unpartition()", where)
    return partition._take("unpartition()", where)


def share(tensor: Tensor[_D_co, _S_co], where: Origin) -> SharedTensor[_D_co, _S_co]:
    """`tensor.share()`, likewise."""
    if type(tensor) is not Tensor:
        raise _wrong_kind(tensor, "share()", where)
    graph = tensor._live().graph()
    if graph is not None:
        raise OwnershipError(
            f"share() at {describe(where)} of what {graph!r} writes: every launch writes it anew, and what is shared "
            "is written by nobody. Copy it with dup(t.borrow()), or read it with t.borrow()."
        )
    return SharedTensor(tensor._take("share()", where), tensor._layout, tensor._made, Holders())


def reshape(handle: Any, shape: object, where: Origin) -> Any:
    """`handle.reshape(shape)`, likewise, of each kind of tensor. Moves what moves."""
    kind = type(handle)
    if kind is Partition or kind not in HANDLES:
        raise _wrong_kind(handle, "reshape()", where)
    storage = handle._live()
    layout = _reshaped(handle._layout, shape, "reshape()", where)
    if kind is SharedTensor:
        return handle._another(layout, handle._holders)
    if kind is TensorRef:
        return TensorRef(storage, layout, handle._made, handle._lender)
    handle._take("reshape()", where)
    if kind is TensorMut:
        return TensorMut(storage, layout, handle._made, handle._lender, handle._loan)
    return Tensor(storage, layout, handle._made)


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


def move_in(handle: Any, how: str, where: Origin) -> Any:
    """Move a handle: a fresh one of the same kind on the same memory, and the old one is void.

    What does not move (a `SharedTensor`, a `TensorRef`, any other value) is given back as it is, once it is known to
    be alive.
    """
    kind = type(handle)
    if kind is Tensor:
        return Tensor(handle._take(how, where), handle._layout, handle._made)
    if kind is Partition:
        return Partition(handle._take(how, where), handle._cut, handle._grid)
    if kind is TensorMut:
        handle._live()
        return TensorMut(handle._take(how, where), handle._layout, handle._made, handle._lender, handle._loan)
    if kind is SharedTensor or kind is TensorRef:
        handle._live()
    return handle


TO_HOST: Final = Slot[Callable[[Any], object]]("dagpu.ops.memory")
"""Builds the op of `handle.to_host()`: handles cannot import ops."""
