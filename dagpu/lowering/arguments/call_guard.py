"""The guard of a pipeline's plan: it tests whether a call has the key of an earlier call, and binds the arguments.

A key says which plan serves a call; a guard says only whether it is the plan of one earlier call, in a tenth of the
time. It compares what the key contains (dagpu.lowering.arguments.cache_key), value by value, and collects the same
leaves in the same order. If it refuses, the key decides. On the way it does for each leaf what `Signature.bind` does.

A guard is text, in a direct call (dagpu.lowering.arguments.call_text): each kind of argument writes its own lines.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Final, Protocol, final

import numpy as np

from dagpu.common.containers import Composite, about_of, items_of
from dagpu.common.dtypes import element_type
from dagpu.common.frozen import frozen
from dagpu.common.layout import Layout
from dagpu.handles import HANDLES, Cut, Partition, SharedTensor, Tensor, cut_of, live_state
from dagpu.handles.device_handles import Device
from dagpu.handles.storage import Storage
from dagpu.lowering.arguments.call_text import CallText, HandleNames
from dagpu.lowering.arguments.exact_tokens import COMPARABLE, PLAIN, exact_token, is_named, is_tuple
from dagpu.lowering.arguments.fixed_tokens import fixed_token

_DEEPEST: Final = 4
"""The depth of nested tuples, lists and dicts to which a guard is made."""


@final
@frozen
class LeafBinding:
    """The use of one leaf in a program."""

    buffer: int = -1
    """The buffer of a handle's memory, or the cell of an array; -1 if the program does not use it."""
    lock: bool | None = None
    """True if a handle's memory is locked for writing, false for reading, None if it is not locked."""
    numbers: tuple[tuple[int, Callable[[float], object]], ...] = ()
    """For each use of a number its cell, and the check that returns the value of the cell."""


UNUSED: Final = LeafBinding()


class ArgumentGuard(Protocol):
    """The facts of one argument on which the key depends. Each kind of argument has a class."""

    def write(self, text: CallText, value: str) -> None:
        """Write the lines that refuse an argument with other facts, and bind it. `value` is its name."""
        ...


@final
@frozen
class HandleGuard:
    """Accepts a handle of the same kind, layout and memory size on the same device, which no graph writes."""

    kind: type[Any]
    layout: Layout
    device: Device
    nbytes: int
    """The size in bytes of the handle's whole memory."""
    alias: int
    """The index of the handle's memory among the memories of all handles, in order of appearance."""
    cut: tuple[type[Any], Cut] | None
    """The kind of tensor that a `Partition` has cut, and the cut; None for other handles."""
    binding: LeafBinding

    def write(self, text: CallText, value: str) -> None:
        layout, device = text.constant("LAYOUT", self.layout), text.constant("DEVICE", self.device)
        text.refuse_if(f"type({value}) is not {text.class_name(self.kind)}")
        state, storage = text.read_handle(
            value, borrows=self.kind is not Tensor and self.kind is not SharedTensor, buffer=self.binding.buffer,
            lock=self.binding.lock, reads=True,
        )  # fmt: skip
        text.refuse_if(f"{state}.layout is not {layout} and {state}.layout != {layout}")
        text.refuse_if(f"{storage}.device is not {device} or {storage}.nbytes != {text.constant('BYTES', self.nbytes)}")
        text.refuse_if(f"{storage}.graph is not NO_GRAPH and {storage}.graph() is not None")
        if self.cut is not None:
            kind, cut = text.constant("CUT_KIND", self.cut[0]), text.constant("CUT", self.cut[1])
            text.refuse_if(f"{state}.kind is not {kind} or {value}._cut != {cut}")
        for known in text.handles.values():
            if known.alias == self.alias:
                text.refuse_if(f"{value} is {known.value}")
        text.add_memory(storage, self.alias)
        index = text.add_leaf(value)
        text.handles[index] = HandleNames(value, state, storage, self.kind, self.layout, self.alias)


@final
@frozen
class NumberGuard:
    """Accepts an int or a float that fits into its parameters. A trace raises the error of one that does not, with the
    place of the call."""

    kind: type[Any]
    binding: LeafBinding

    def write(self, text: CallText, value: str) -> None:
        text.refuse_if(f"type({value}) is not {self.kind.__name__}")
        for cell, check in self.binding.numbers:
            text.bind_number(cell, value, check)
        text.add_leaf(value)


@final
@frozen
class ArrayGuard:
    """Accepts another NumPy array of the same shape and element type."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    binding: LeafBinding

    def write(self, text: CallText, value: str) -> None:
        array, dtype = text.constant("ARRAY", np.ndarray), text.constant("DTYPE", self.dtype)
        shape, has_dtype = text.constant("SHAPE", self.shape), text.function_name(_has_dtype)
        text.refuse_if(f"type({value}) is not {array} or {value}.shape != {shape} or not {has_dtype}({value}, {dtype})")
        for known in text.arrays:
            text.refuse_if(f"{value} is {known}")
        text.arrays.append(value)
        if self.binding.buffer >= 0:
            text.cells[self.binding.buffer] = value
        text.add_leaf(value)


@final
@frozen
class RepeatedGuard:
    """Accepts the object itself that is an earlier leaf, such as a tensor that a call has twice."""

    leaf: int
    """The index of that leaf."""

    def write(self, text: CallText, value: str) -> None:
        text.refuse_if(f"{value} is not {text.leaves[self.leaf]}")


@final
@frozen
class TokenGuard:
    """Accepts an equal value that is in the key itself. An object that is in the key by its identity is its own token,
    and may have an `__eq__` of its own."""

    kind: type[Any]
    value: Any

    def write(self, text: CallText, value: str) -> None:
        kind, known = text.class_name(self.kind), text.constant("TOKEN", self.value)
        if self.kind in COMPARABLE:
            text.refuse_if(f"type({value}) is not {kind} or {value} != {known}")
            return
        text.refuse_if(f"type({value}) is not {kind}")
        other = f"{known} is not {value}"
        if not is_named(self.value):
            token = text.constant("TOKEN", exact_token(self.value))
            other += f" and {token} != {text.function_name(exact_token)}({value})"
        text.refuse_if(other)


@final
@frozen
class FixedGuard:
    """Accepts a value with the same token, by dagpu.lowering.arguments.fixed_tokens. The key of the plan keeps alive
    what is in the token by its identity."""

    token: Hashable

    def write(self, text: CallText, value: str) -> None:
        known = text.constant("TOKEN", self.token)
        text.refuse_if(f"{text.function_name(_token_of)}({value}) != {known}")


def _token_of(value: object) -> Hashable:
    return fixed_token(value, id)


@final
@frozen
class ItemsGuard:
    """Accepts a tuple, list or dict of the same type whose items are accepted."""

    kind: type[Any]
    items: tuple[ArgumentGuard, ...]
    keys: Hashable
    """The tokens of the keys of a dict; None for others."""

    def write(self, text: CallText, value: str) -> None:
        text.refuse_if(f"type({value}) is not {text.class_name(self.kind)}")
        items = text.new_name("i")
        if self.kind is dict:
            keys, token = text.constant("KEYS", self.keys), text.function_name(exact_token)
            text.lines.append(f"{items} = dict({value})")  # another thread may change it meanwhile
            text.refuse_if(f"tuple(map({token}, {items})) != {keys}")
            _write_each(self.items, text, f"{items}.values()")
            return
        if self.kind is list:
            text.lines.append(f"{items} = tuple({value})")
        else:
            if self.kind is not tuple:
                text.refuse_if(f"not {text.function_name(is_tuple)}({value})")
            items = value
        write_items(self.items, text, items)


@final
@frozen
class CompositeGuard:
    """Accepts a value of dagpu's own of the same class whose items are accepted, and of which the rest is the same
    object. The results of a pipeline have it in common."""

    kind: type[Composite]
    about: object
    items: tuple[ArgumentGuard, ...]

    def write(self, text: CallText, value: str) -> None:
        kind, about = text.constant("KIND", self.kind), text.constant("ABOUT", self.about)
        text.refuse_if(f"type({value}) is not {kind} or {value}._about is not {about}")
        items = text.new_name("i")
        text.lines.append(f"{items} = {value}._items")
        write_items(self.items, text, items)


def write_items(guards: Sequence[ArgumentGuard], text: CallText, items: str) -> None:
    """Write the guards of the items of the tuple with this name."""
    text.refuse_if(f"len({items}) != {len(guards)}")
    _write_each(guards, text, items)


def _write_each(guards: Sequence[ArgumentGuard], text: CallText, items: str) -> None:
    """Write the guards of as many items as there are."""
    if guards:
        names = [f"a{len(text.lines)}_{index}" for index in range(len(guards))]
        text.lines.append(f"{', '.join(names)}, = {items}")
        for guard, name in zip(guards, names, strict=True):
            guard.write(text, name)


@final
@frozen
class CallGuard:
    """The arguments of one call, as far as plans depend on them. Make it with `guard_call`."""

    arguments: tuple[ArgumentGuard, ...]
    names: tuple[str, ...]
    """The names of the keyword arguments."""
    named: tuple[ArgumentGuard, ...]
    """The guards of the keyword arguments."""

    def write(self, text: CallText) -> None:
        """Write the lines that refuse a call with other arguments, and bind those of an accepted one. The arguments are
        in the variables `arguments` and `named`.

        A call is refused too if a handle has been moved or has no memory, or if a number does not fit.
        """
        write_items(self.arguments, text, "arguments")
        if self.named:
            text.refuse_if(f"[name for name, _ in named] != {text.constant('NAMES', list(self.names))}")
            _write_each(self.named, text, "[value for _, value in named]")
        else:
            text.refuse_if("named")
        text.refuse_aliases()


def guard_call(
    arguments: tuple[Any, ...], named: tuple[Any, ...], leaves: Sequence[Any], bindings: Sequence[LeafBinding]
) -> CallGuard | None:
    """Return the guard of a call with these positional and keyword arguments, whose leaves are `leaves`. `bindings` has
    the use of each leaf.

    Return None if it has no guard: an argument that is deeply nested, or of a kind without guard, is left to the key.
    """
    walk = ArgumentWalk(iter(bindings))
    guards = walk.guard_items(arguments, 0)
    named_guards = walk.guard_items([value for _, value in named], 0)
    if guards is None or named_guards is None or list(map(id, walk.leaves)) != list(map(id, leaves)):
        return None
    return CallGuard(guards, tuple([name for name, _ in named]), named_guards)


@final
class ArgumentWalk:
    """The walk over the arguments of the call that is guarded. The guards are written in the order of the walk."""

    def __init__(self, bindings: Iterator[LeafBinding]) -> None:
        self.leaves: list[Any] = []
        """The leaves so far, in the order of the key."""
        self._known: dict[int, int] = {}
        """The indices of the handles and arrays so far, by their ids. Each of these objects is one leaf."""
        self._storages: dict[Storage, int] = {}
        self._bindings = bindings

    def guard_items(self, values: Iterable[Any], depth: int) -> tuple[ArgumentGuard, ...] | None:
        """Return the guards of these values; None if one has none."""
        guards: list[ArgumentGuard] = []
        for value in values:
            guard = self.guard(value, depth)
            if guard is None:
                return None
            guards.append(guard)
        return tuple(guards)

    def guard(self, value: Any, depth: int = 0) -> ArgumentGuard | None:
        """Return the guard of a value; None if it has none."""
        kind = type(value)
        if kind in PLAIN and kind is not int and kind is not float:
            return TokenGuard(kind, value)
        if is_named(value):
            return TokenGuard(kind, value)
        if kind is list or kind is dict or is_tuple(value):
            if depth == _DEEPEST or (kind is dict and not PLAIN.issuperset(map(type, value))):
                return None
            items = self.guard_items(value.values() if kind is dict else value, depth + 1)
            keys = tuple(map(exact_token, value)) if kind is dict else None
            return None if items is None else ItemsGuard(kind, items, keys)
        if isinstance(value, Composite):
            items = None if depth == _DEEPEST else self.guard_items(items_of(value), depth + 1)
            return None if items is None else CompositeGuard(type(value), about_of(value), items)
        if kind in HANDLES or kind is np.ndarray:
            index = self._known.setdefault(id(value), len(self.leaves))
            if index < len(self.leaves):
                return RepeatedGuard(index)
        if kind in HANDLES:
            return self._guard_handle(value, kind)
        if kind is np.ndarray:
            if value.dtype.metadata is not None or element_type(value.dtype) is None:
                return None  # a key has such an element type by its identity
            return ArrayGuard(value.shape, value.dtype, self._add_leaf(value))
        if kind is int or kind is float:
            return NumberGuard(kind, self._add_leaf(value))
        token = _token_of(value)
        return None if token is None else FixedGuard(token)

    def _guard_handle(self, handle: Any, kind: type[Any]) -> HandleGuard | None:
        """Return the guard of a handle; None if a graph writes its memory."""
        state = live_state(handle)
        storage = state.storage
        if storage.graph() is not None:
            return None
        alias = self._storages.setdefault(storage, len(self._storages))
        cut = (state.kind, cut_of(handle)) if kind is Partition else None
        return HandleGuard(kind, state.layout, storage.device, storage.nbytes, alias, cut, self._add_leaf(handle))

    def _add_leaf(self, value: Any) -> LeafBinding:
        """Add a leaf, and return its use in the program."""
        self.leaves.append(value)
        return next(self._bindings, UNUSED)


def _has_dtype(array: "np.ndarray[Any, Any]", dtype: np.dtype[Any]) -> bool:
    """Return True if an array has this element type, without metadata."""
    found = array.dtype
    return found is dtype or (found == dtype and found.metadata is None)
