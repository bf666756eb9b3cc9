"""`Source`, an op whose value is set from outside, and `cutoff`, which hides equal values from what comes after it."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import partial
from threading import get_ident
from typing import Any, Final, TypeAlias, final, overload

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from dagpu.common.critical import CURRENT_THREAD, OUTSIDE, in_user_code
from dagpu.common.errors import SourceError
from dagpu.common.frozen import Slot, frozen
from dagpu.common.places import Origin, describe, here, leaves_run, without_our_frames
from dagpu.common.wrong_arguments import check_function, format_value, wrong_argument
from dagpu.handles import HANDLES, OWNING, SharedTensor, Tensor, live_state
from dagpu.handles.device_handles import driver_of
from dagpu.handles.tensors import handles_in, share_tensor
from dagpu.ops.array_parts import Box, Region, box_of
from dagpu.ops.base import DeviceOp, NoAlloc, Static, check_op
from dagpu.ops.compose import UNKNOWN_RESULTS, Cutoff, shared
from dagpu.ops.versions import (
    PLAIN,
    Snapshot,
    SourceCell,
    Version,
    change_source,
    in_open_batch,
    newest_value,
    value_to_write,
    write_source,
)

_T = TypeVar("_T")
_N = TypeVar("_N", bound=np.generic)
_H = TypeVar("_H", bound=Hashable)


PutPart: TypeAlias = Callable[[SharedTensor[Any], Box, Any, bool, Origin], SharedTensor[Any]]
"""Writes data to a part of a tensor, in place if the flag says so, and returns a handle to the tensor that has it."""

PUT_PART: Final = Slot[PutPart]("dagpu.reactive.put_part")

KEEP_PART: Final = Slot[Callable[[SharedTensor[Any], "NDArray[Any]", Origin], Any]]("dagpu.reactive.put_part")
"""Returns a copy of data for a part of a tensor, which `PUT_PART` writes later."""


@final
@frozen
class Source(DeviceOp[_T, Static, NoAlloc]):
    """An input that changes. As an op its result is its value, and it may have any number of uses.

    Each run reads all sources at one instant. `observe(op)` gives the values of an op as its sources change.
    """

    cell: SourceCell
    """The versions of the value, and what a change of it wakes."""
    kind: type[Any]
    """The type of the first value."""
    name: str | None
    """The name in messages, pictures and `explain()`."""
    origin: Origin

    @property
    def title(self) -> str:
        """What messages call the source, with its name and the place that made it."""
        named = "the source" if self.name is None else f"source {self.name!r}"
        return f"{named} made at {describe(self.origin)}"

    @property
    def revision(self) -> int:
        """The number of changes since the source was made."""
        return self.cell.history.newest.revision

    def get(self) -> _T:
        """Return the value that was set last: a tensor as another handle to it, an array as a read-only array."""
        value: _T = newest_value(self.cell)[0]
        if type(value) is not SharedTensor:
            return value
        del value
        snapshot = Snapshot()  # while it exists, nothing writes the memory of what was set
        value = as_read(newest_value(self.cell)[0])
        del snapshot
        return value

    @overload
    def set(self: "Source[SharedTensor[_N]]", x: "Tensor[_N] | SharedTensor[_N]", /) -> None: ...
    @overload
    def set(self, x: _T, /) -> None: ...
    def set(self, x: Any, /) -> None:
        """Change the value. From any thread: it wakes the feeds that depend on it, and never waits.

        The source holds the value alone: a NumPy array is copied at once, and a `Tensor` moves in. A number, text or
        truth value that equals the present one changes nothing; with `equal`, any value that it finds equal.

        Raises:
            SourceError: the value can be changed in place, or is lent, or a closure of a run called this.
        """
        try:
            if CURRENT_THREAD.state.where != OUTSIDE:
                self._refuse_in_closure()
            kind = self.kind
            change_source(self.cell, x if type(x) is kind and kind in PLAIN else _own(x, kind, self))
        except BaseException as error:
            without_our_frames(error)
            raise

    @leaves_run
    def change(self, f: Callable[[_T], _T], /) -> None:
        """Set the value to `f(get())`, with no change of another thread in between: `f` is called again after one.

        Raises:
            SourceError: as `set` does; or `f` itself changes the source.
        """
        self._refuse_in_closure()
        check_function(f, "change", here())
        if self._changed_by(f):
            return
        mine, changed = get_ident(), list[bool]()
        watcher = object()
        self.cell.watch(watcher, lambda: changed.append(True) if get_ident() == mine else None)
        try:
            while not self._changed_by(f):
                if changed:
                    raise SourceError(
                        f"{self.title} is changed by the function that change() at "
                        f"{describe(here())} calls. Return the new value from it, and set nothing in it."
                    )
        finally:
            self.cell.unwatch(watcher)

    def _changed_by(self, f: Callable[[_T], _T]) -> bool:
        """Set the value to `f(get())`. Return False, and change nothing, if it has changed since it was read."""
        snapshot = Snapshot()
        value, version = newest_value(self.cell)
        given = as_read(value)
        del snapshot, value

        def again(newer: Version) -> Any:
            snapshot = Snapshot()
            given = as_read(newer.settled().value)
            del snapshot
            return _own(f(given), self.kind, self)

        return change_source(self.cell, _own(f(given), self.kind, self), version, again)

    @overload
    def write(
        self: "Source[SharedTensor[_N]]", at: Region, data: "NDArray[_N] | Tensor[_N] | SharedTensor[_N]", /
    ) -> None: ...
    @overload
    def write(self: "Source[NDArray[_N]]", at: Region, data: NDArray[_N], /) -> None: ...
    @leaves_run
    def write(self: "Source[Any]", at: Any, data: Any, /) -> None:
        """Change a part of a tensor or an array. What depends on other parts alone does not run again.

            picture.write((slice(0, 64), slice(128, 192)), patch)

        A feed runs the tiles that see the part, of kernels that declare what a tile looks at (`sees`). Sets and writes
        between two updates add up. From any thread, and in a `batch()`: the call returns when the part is written.
        Memory that something else still holds is copied first, on its device: a handle, or a run that reads it.

        Args:
            at: for each axis a `slice` without a step; axes that are left out are written whole.
            data: an array or a tensor of the shape of the part. A `Tensor` moves into the call.

        Raises:
            SourceError: the source holds neither a tensor nor an array, the part does not lie in it, the data has
                another shape or element type, or a closure of a run called this.
        """
        origin = here()
        self._refuse_in_closure("written")
        held = value_to_write(self.cell)
        box = self._checked_part(held, at, data, origin)
        if not all(begin < end for begin, end in box):
            return
        is_later = in_open_batch()
        if isinstance(held, np.ndarray):
            copied = np.array(data) if is_later else data
            with_part = self.cell.parts.with_part
            write_source(self.cell, box, lambda value, alone: with_part(value, box, copied), None)
            return
        if not isinstance(data, np.ndarray):
            given = share_tensor(data, origin) if type(data) is Tensor else data.clone()
        else:
            given = KEEP_PART.value(held, data, origin) if is_later else data
        put = PUT_PART.value
        write_source(self.cell, box, lambda value, alone: put(value, box, given, alone, origin), _is_alone)

    def _checked_part(self, held: Any, at: Any, data: Any, origin: Origin) -> Box:
        """Return the part that a call of `write` names, if it and the data fit."""
        if not isinstance(held, np.ndarray) and type(held) is not SharedTensor:
            raise SourceError(
                f"{self._written(origin)}, and holds {format_value(held)}, which has no parts. Set it: "
                "source.set(value)."
            )
        box = box_of(at, held.shape)
        if isinstance(box, str):
            raise SourceError(
                f"{self._written(origin)} in the part {format_value(at)} of its shape {held.shape}: {box}. Give a "
                "slice for each axis, within the shape and without a step."
            )
        wanted = tuple([end - begin for begin, end in box])
        if not isinstance(data, np.ndarray) and (
            type(held) is not SharedTensor or not isinstance(data, Tensor | SharedTensor)
        ):
            what = "an array or a tensor" if type(held) is SharedTensor else "an array"
            raise SourceError(
                f"{self._written(origin)} with {format_value(data)}. Give {what} of shape {wanted} and "
                f"{held.dtype.name}."
            )
        if isinstance(data, np.ndarray):
            _refuse_mask(data, f"{self._written(origin)} with")
        if data.shape != wanted or data.dtype != held.dtype:
            raise SourceError(
                f"{self._written(origin)} with {data.dtype.name} of shape {data.shape}, but the part has "
                f"{held.dtype.name} of shape {wanted}. Give data of the shape and element type of the part."
            )
        return box

    def _written(self, origin: Origin) -> str:
        """Return the beginning of a message about a write."""
        return f"{self.title} was written at {describe(origin)}"

    def _refuse_in_closure(self, done: str = "set") -> None:
        if in_user_code():
            raise SourceError(
                f"{self.title} was {done} at {describe(here())}, inside a closure of a "
                "run. What an op computes may not change what it is computed of: set it where the result of the op "
                "arrives."
            )


UNKNOWN_RESULTS.add(Source)


@overload
def source(x: Tensor[_N], /, *, name: str | None = ...) -> Source[SharedTensor[_N]]: ...
@overload
def source(x: SharedTensor[_N], /, *, name: str | None = ...) -> Source[SharedTensor[_N]]: ...
@overload
def source(
    x: NDArray[_N], /, *, equal: Callable[[NDArray[_N], NDArray[_N]], bool] | None = ..., name: str | None = ...
) -> Source[NDArray[_N]]: ...
@overload
def source(x: _H, /, *, equal: Callable[[_H, _H], bool] | None = ..., name: str | None = ...) -> Source[_H]: ...
@leaves_run
def source(x: Any, /, *, equal: Callable[[Any, Any], bool] | None = None, name: str | None = None) -> Any:
    """Return an input that changes: an op whose value `set` replaces.

    Args:
        x: the first value. A `Tensor` moves in and becomes a `SharedTensor`, a NumPy array is copied, and any other
            value must be hashable: a number, a text, a tuple, a frozen dataclass.
        equal: called with the old and the new value of each `set`. If it returns true, nothing has changed.
        name: the name in messages, pictures and `feed.explain()`, where one line of code makes several sources.

    Raises:
        SourceError: the value can be changed in place, or is lent.
    """
    origin = here()
    if equal is not None and not callable(equal):
        check_function(equal, "source", origin, "equal")
    if name is not None and not isinstance(name, str):
        raise wrong_argument("source", origin, "name", name, "a text", 'Write name="gain", say')
    compare = None if equal is None else partial(_is_equal, equal, origin)
    made: Source[Any] = Source(SourceCell(_own(x, type(x), None), compare), type(x), name, origin)
    return made


def _is_equal(equal: Callable[[Any, Any], object], origin: Origin, old: Any, new: Any) -> bool:
    """Return what a function `equal` of the user's says of two values.

    Raises:
        SourceError: it says neither true nor false, as an array of several elements.
    """
    found = equal(old, new)
    try:
        return bool(found)
    except (TypeError, ValueError):
        raise SourceError(
            f"source at {describe(origin)}: its `equal` returned {format_value(found)}, which is neither true nor "
            "false. Return True or False: np.array_equal(old, new), say."
        ) from None


@overload
def cutoff(op: DeviceOp[Tensor[_N], Static, Any], /) -> DeviceOp[SharedTensor[_N]]: ...
@overload
def cutoff(op: DeviceOp[SharedTensor[_N], Static, Any], /) -> DeviceOp[SharedTensor[_N]]: ...
@overload
def cutoff(op: DeviceOp[_T, Static, Any], /, equal: Callable[[_T, _T], bool] = ...) -> DeviceOp[_T]: ...
@leaves_run
def cutoff(op: Any, /, equal: Callable[[Any, Any], bool] | None = None) -> Any:
    """Return an op with the same result, after which a feed runs nothing again while the value stays the same.

    Tensors and NumPy arrays are compared by their bits, and other values by `==`; with `equal`, values of the host are
    compared by `equal(old, new)`. The result may have any number of uses, as that of `op.shared()`. A run outside a
    feed is not affected.

    A tensor is compared on its device, on the stream behind the kernels that make it, with the one that was let through
    last; one flag for each 16 KB, at most 1,024, goes to the host. If no bit differs, the new tensor is dropped and the
    old one stays where it is. Otherwise a second run makes what comes after.

    Raises:
        NotReadyError: in a feed, if the result is a tensor and `equal` is given.
        OwnershipError: in the run, if the result owns handles and is not one bare `Tensor`.
    """
    origin = here()
    check_op(op, "cutoff")
    if equal is not None and not callable(equal):
        check_function(equal, "cutoff", origin, "equal")
    return Cutoff(shared(op, origin), equal, origin)


def _is_alone(tensor: Any) -> bool:
    """Return true if there is no other handle to the memory of a tensor, and no run or other library that uses it."""
    state = live_state(tensor)
    storage = state.storage
    if state.holders is None or state.holders.count > 1 or storage.lock.readers or storage.lock.writer is not None:
        return False
    return not driver_of(storage.device).exchange.is_parked(storage.memory)


def as_read(value: Any) -> Any:
    """Return the value of a source for one more reader: a tensor as another handle to it."""
    return value.clone() if type(value) is SharedTensor else value


def revisions_at(instant: Snapshot, sources: Iterable[Source[Any]]) -> Mapping[Any, int]:
    """Return the revisions of sources at an instant."""
    return {node: node.cell.history.at(instant).revision for node in sources}


def differ(made_for: Mapping[Any, int], instant: Snapshot) -> bool:
    """Return true if one of these sources has another revision at an instant."""
    return any(node.cell.history.at(instant).revision != revision for node, revision in made_for.items())


def _own(x: Any, kind: type[Any], whose: Source[Any] | None) -> Any:
    """Return a value in the form in which a source holds it, by value. `whose` is the source; None for a new one.

    Raises:
        SourceError: it can be changed in place, or is lent, or owns handles that cannot be shared.
    """
    given = type(x)
    if given is Tensor:
        return share_tensor(x, here())
    if given is SharedTensor:
        return x.clone()
    if isinstance(x, np.ndarray):
        _refuse_mask(x, _was(whose))
        copy = np.array(x, copy=True, subok=False)
        copy.flags.writeable = False
        return copy
    if kind is float and given is int:
        return float(x)
    if given in PLAIN:
        return x
    for handle in (x,) if given in HANDLES else handles_in(x):
        if type(handle) in HANDLES:
            raise _held_handle_error(x, handle, whose)
    if isinstance(x, DeviceOp):
        raise SourceError(
            f"{_was(whose)} {x!r} at {describe(here())}, which is an op and has no value yet. Run it, and set its "
            "result: await op, or op.sync()."
        )
    if not _is_hashable(x):
        raise SourceError(
            f"{_was(whose)} a {given.__name__} at {describe(here())}, which can be changed in place, and no feed "
            "would know. Set a tuple, a frozen dataclass, an array or a tensor."
        )
    return x


def _refuse_mask(array: "np.ndarray[Any, Any]", begin: str) -> None:
    """Raise a `SourceError` that begins like this for a masked array."""
    if isinstance(array, np.ma.MaskedArray):
        raise SourceError(
            f"{begin} a masked array at {describe(here())}, whose mask would be lost. Fill the masked elements first: "
            "array.filled(0)."
        )


def _is_hashable(x: object) -> bool:
    """Return true if nothing in a value says that it can be changed in place."""
    try:
        hash(x)
    except (TypeError, ValueError):  # ValueError: a memoryview of bytes that can be written
        return False
    return True


def _was(whose: Source[Any] | None) -> str:
    """Return the beginning of a message about the value of a source."""
    return "a source was made of" if whose is None else f"{whose.title} was set to"


def _held_handle_error(x: Any, handle: Any, whose: Source[Any] | None) -> SourceError:
    """Return the error for a value that is a loan, or that contains handles."""
    if x is handle and live_state(handle).lender is not None:
        return SourceError(
            f"{_was(whose)} {handle!r} at {describe(here())}: a source keeps its value for as long as it likes, "
            "and a loan ends. Set a copy, dup(t), or give the tensor away."
        )
    if type(handle) in OWNING and x is handle:
        return SourceError(
            f"{_was(whose)} {handle!r} at {describe(here())}, which is cut into tiles for a kernel to write. Put "
            "it together first: .unpartition()."
        )
    return SourceError(
        f"{_was(whose)} a {type(x).__name__} that holds {handle!r} at {describe(here())}: a source holds one "
        "tensor, or host values. Make a source of each."
    )
