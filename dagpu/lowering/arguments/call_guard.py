"""The guard of a pipeline's plan: a table that tests whether a call has the key of an earlier call, and binds it.

A key says which plan serves a call; a guard says only whether it is the plan of one earlier call, in a tenth of the
time. It compares what the key contains (dagpu.lowering.arguments.cache_key), value by value, and collects the same
leaves in the same order. If it refuses, the key decides. On the way it does for each leaf what `Signature.bind` does.

A guard is made of rows, one for each argument. A row is data: what the argument has to be, and what of it the program
uses. `read` compares a value with its row and puts what the run needs into a `Reading`. A refused call has had no
effect.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Final, Protocol, final

import numpy as np

from dagpu.common.containers import Composite, about_of, items_of
from dagpu.common.dtypes import element_type
from dagpu.common.errors import KernelArgumentError
from dagpu.common.frozen import plain
from dagpu.common.layout import Layout
from dagpu.handles import HANDLES, Cut, Partition, cut_of, find_live_state, live_state
from dagpu.handles.device_handles import Device
from dagpu.handles.storage import Lock, Storage, no_graph
from dagpu.lowering.arguments.exact_tokens import COMPARABLE, NAMED, PLAIN, exact_token, is_tuple
from dagpu.lowering.arguments.fixed_tokens import fixed_token

_DEEPEST: Final = 4
"""The depth of nested tuples, lists and dicts to which a guard is made."""


@final
class Reading:
    """What a direct call has read of its inputs: all that a run with the plan needs."""

    __slots__ = ("arrays", "leaves", "locks", "memory", "states", "storages", "todo")

    def __init__(self, memory: list[Any]) -> None:
        self.memory = memory
        """The memory and the values of the program's buffers; None where nothing is bound."""
        self.leaves: list[Any] = []
        """The leaves in the order of the key."""
        self.states: list[Any] = []
        """For each leaf the state of the handle, as the guard has read it; None for a leaf that is no handle."""
        self.storages: list[Storage] = []
        """The memories of the handles, each once, in order of appearance."""
        self.locks: list[tuple[Lock, bool]] = []
        """The locks that the run takes, and true for an exclusive one."""
        self.arrays: list[Any] = []
        """Those leaves that are arrays."""
        self.todo: list[Any] = []
        """The ops of a DAG whose rows come next, the last one first."""

    def is_distinct(self) -> bool:
        """Return false if two memories are one that were two in the earlier call."""
        storages = self.storages
        return len(storages) < 2 or len(set(storages)) == len(storages)


@final
@plain
class LeafBinding:
    """The use of one leaf in a program."""

    buffer: int = -1
    """The buffer of a handle's memory, or the cell of an array; -1 if the program does not use it."""
    lock: bool | None = None
    """True if a handle's memory is locked for writing, false for reading, None if it is not locked."""
    numbers: tuple[tuple[int, Callable[[float], object]], ...] = ()
    """For each use of a number its cell, and the check that returns the value of the cell."""


UNUSED: Final = LeafBinding()


class Row(Protocol):
    """The facts of one argument on which the key depends. Each kind of argument has a class."""

    def read(self, value: Any, call: Reading) -> bool:
        """Bind a value. Return false if its facts are others, or if it has been moved or lost."""
        ...


@final
@plain
class HandleRow:
    """Accepts a handle of the same kind, layout and memory size on the same device, which no graph writes."""

    kind: type[Any]
    layout: Layout
    device: Device
    nbytes: int
    """The size in bytes of the handle's whole memory."""
    alias: int
    """The index of the handle's memory among the memories of all handles, in order of appearance."""
    twins: tuple[int, ...]
    """The earlier leaves that are other handles to the same memory."""
    cut: tuple[type[Any], Cut] | None
    """The kind of tensor that a `Partition` has cut, and the cut; None for other handles."""
    binding: LeafBinding

    def read(self, value: Any, call: Reading) -> bool:
        state = find_live_state(value) if type(value) is self.kind else None
        if state is None or (state.layout is not self.layout and state.layout != self.layout):
            return False
        storage, memory = state.storage, state.storage.memory
        if memory is None or storage.device is not self.device or storage.nbytes != self.nbytes:
            return False
        if storage.graph is not no_graph and storage.graph() is not None:
            return False
        if self.cut is not None and (state.kind, cut_of(value)) != self.cut:
            return False
        storages = call.storages
        if self.alias == len(storages):
            storages.append(storage)
        elif storages[self.alias] is not storage or any(call.leaves[twin] is value for twin in self.twins):
            return False
        binding = self.binding
        if binding.buffer >= 0:
            call.memory[binding.buffer] = memory
        if binding.lock is not None:
            call.locks.append((storage.lock, binding.lock))
        call.leaves.append(value)
        call.states.append(state)
        return True


@final
@plain
class NumberRow:
    """Accepts an int or a float that fits into its parameters. A trace raises the error of one that does not, with the
    place of the call."""

    kind: type[Any]
    binding: LeafBinding

    def read(self, value: Any, call: Reading) -> bool:
        if type(value) is not self.kind:
            return False
        for cell, check in self.binding.numbers:
            try:
                call.memory[cell] = check(value)
            except KernelArgumentError:
                return False
        call.leaves.append(value)
        call.states.append(None)
        return True


@final
@plain
class ArrayRow:
    """Accepts another NumPy array of the same shape and element type."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    binding: LeafBinding

    def read(self, value: Any, call: Reading) -> bool:
        if type(value) is not np.ndarray or value.shape != self.shape:
            return False
        dtype = value.dtype
        if dtype is not self.dtype and (dtype != self.dtype or dtype.metadata is not None):
            return False
        if any(known is value for known in call.arrays):
            return False
        call.arrays.append(value)
        if self.binding.buffer >= 0:
            call.memory[self.binding.buffer] = value
        call.leaves.append(value)
        call.states.append(None)
        return True


@final
@plain
class RepeatedRow:
    """Accepts the object itself that is an earlier leaf, such as a tensor that a call has twice."""

    leaf: int
    """The index of that leaf."""

    def read(self, value: Any, call: Reading) -> bool:
        return value is call.leaves[self.leaf]


@final
@plain
class TokenRow:
    """Accepts an equal value that is in the key itself. An object that is in the key by its identity is its own token,
    and may have an `__eq__` of its own."""

    kind: type[Any]
    value: Any

    def read(self, value: Any, call: Reading) -> bool:
        kind = self.kind
        if type(value) is not kind:
            return False
        if kind in COMPARABLE:
            return bool(value == self.value)
        if value is self.value:
            return True
        return not isinstance(value, NAMED) and exact_token(value) == exact_token(self.value)


@final
@plain
class FixedRow:
    """Accepts a value with the same token, by dagpu.lowering.arguments.fixed_tokens. The key of the plan keeps alive
    what is in the token by its identity."""

    token: Hashable

    def read(self, value: Any, call: Reading) -> bool:
        return _token_of(value) == self.token


def _token_of(value: object) -> Hashable:
    return fixed_token(value, id)


@final
@plain
class ItemsRow:
    """Accepts a tuple, list or dict of the same type whose items are accepted."""

    kind: type[Any]
    items: tuple[Row, ...]
    keys: Hashable
    """The tokens of the keys of a dict; None for others."""

    def read(self, value: Any, call: Reading) -> bool:
        kind = self.kind
        if type(value) is not kind:
            return False
        if kind is dict:
            value = dict(value)  # another thread may change it meanwhile
            if tuple(map(exact_token, value)) != self.keys:
                return False
            return read_items(self.items, tuple(value.values()), call)
        if kind is not tuple and kind is not list and not is_tuple(value):
            return False
        return read_items(self.items, tuple(value), call)


@final
@plain
class CompositeRow:
    """Accepts a value of dagpu's own of the same class whose items are accepted, and of which the rest is the same
    object. The results of a pipeline have it in common."""

    kind: type[Composite]
    about: object
    items: tuple[Row, ...]

    def read(self, value: Any, call: Reading) -> bool:
        if type(value) is not self.kind or about_of(value) is not self.about:
            return False
        return read_items(self.items, items_of(value), call)


def read_items(rows: Sequence[Row], values: Sequence[Any], call: Reading) -> bool:
    """Bind as many values as there are rows. Return false if there are more or fewer, or if one is refused."""
    if len(values) != len(rows):
        return False
    for row, value in zip(rows, values, strict=True):  # noqa: SIM110  # a generator takes twice as long
        if not row.read(value, call):
            return False
    return True


@final
@plain
class CallGuard:
    """The arguments of one call, as far as plans depend on them. Make it with `guard_call`."""

    arguments: tuple[Row, ...]
    names: tuple[str, ...]
    """The names of the keyword arguments."""
    named: tuple[Row, ...]
    """The rows of the keyword arguments."""

    def read(self, arguments: Any, named: Any, call: Reading) -> bool:
        """Bind the arguments of another call. Return false if they have another key; if a handle has been moved or has
        no memory; or if a number does not fit."""
        if not read_items(self.arguments, arguments, call):
            return False
        if named or self.names:
            if tuple([name for name, _ in named]) != self.names:
                return False
            if not read_items(self.named, [value for _, value in named], call):
                return False
        return call.is_distinct()


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
    """The walk over the arguments of the call that is guarded."""

    def __init__(self, bindings: Iterator[LeafBinding]) -> None:
        self.leaves: list[Any] = []
        """The leaves so far, in the order of the key."""
        self._known: dict[int, int] = {}
        """The indices of the handles and arrays so far, by their ids. Each of these objects is one leaf."""
        self._storages: dict[Storage, tuple[int, list[int]]] = {}
        """For each memory its number, and the leaves so far that are handles to it."""
        self._bindings = bindings

    def guard_items(self, values: Iterable[Any], depth: int) -> tuple[Row, ...] | None:
        """Return the guards of these values; None if one has none."""
        guards: list[Row] = []
        for value in values:
            guard = self.guard(value, depth)
            if guard is None:
                return None
            guards.append(guard)
        return tuple(guards)

    def guard(self, value: Any, depth: int = 0) -> Row | None:
        """Return the guard of a value; None if it has none."""
        kind = type(value)
        if kind in PLAIN and kind is not int and kind is not float:
            return TokenRow(kind, value)
        if isinstance(value, NAMED):
            return TokenRow(kind, value)
        if kind is list or kind is dict or is_tuple(value):
            if depth == _DEEPEST or (kind is dict and not PLAIN.issuperset(map(type, value))):
                return None
            items = self.guard_items(value.values() if kind is dict else value, depth + 1)
            keys = tuple(map(exact_token, value)) if kind is dict else None
            return None if items is None else ItemsRow(kind, items, keys)
        if isinstance(value, Composite):
            items = None if depth == _DEEPEST else self.guard_items(items_of(value), depth + 1)
            return None if items is None else CompositeRow(type(value), about_of(value), items)
        if kind in HANDLES or kind is np.ndarray:
            index = self._known.setdefault(id(value), len(self.leaves))
            if index < len(self.leaves):
                return RepeatedRow(index)
        if kind in HANDLES:
            return self._guard_handle(value, kind)
        if kind is np.ndarray:
            if value.dtype.metadata is not None or element_type(value.dtype) is None:
                return None  # a key has such an element type by its identity
            return ArrayRow(value.shape, value.dtype, self._add_leaf(value))
        if kind is int or kind is float:
            return NumberRow(kind, self._add_leaf(value))
        token = _token_of(value)
        return None if token is None else FixedRow(token)

    def _guard_handle(self, handle: Any, kind: type[Any]) -> HandleRow | None:
        """Return the guard of a handle; None if a graph writes its memory."""
        state = live_state(handle)
        storage = state.storage
        if storage.graph() is not None:
            return None
        known = self._storages.setdefault(storage, (len(self._storages), []))
        alias, twins = known[0], tuple(known[1])
        known[1].append(len(self.leaves))
        cut = (state.kind, cut_of(handle)) if kind is Partition else None
        return HandleRow(kind, state.layout, storage.device, storage.nbytes, alias, twins, cut, self._add_leaf(handle))

    def _add_leaf(self, value: Any) -> LeafBinding:
        """Add a leaf, and return its use in the program."""
        self.leaves.append(value)
        return next(self._bindings, UNUSED)
