"""The test whether a call of a pipeline has the key of an earlier call, which also binds the arguments.

A key says which plan serves a call; a guard says only whether it is the plan of one earlier call, in a tenth of the
time. It compares what the key contains (dagpu.lowering.arguments.cache_key), value by value, and collects the same
leaves in the same order. If it refuses, the key decides. On the way it does for each leaf what `Signature.bind` does.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Final, final

import numpy as np

from dagpu.common.dtypes import element_type
from dagpu.common.errors import KernelArgumentError
from dagpu.common.frozen import frozen
from dagpu.common.layout import Layout
from dagpu.handles import HANDLES, Partition, cut_of, live_state, state_of
from dagpu.handles.device_handles import Device
from dagpu.handles.storage import Storage, no_graph
from dagpu.lowering.arguments.cache_key import NAMED
from dagpu.lowering.arguments.exact_tokens import PLAIN, exact_token, is_tuple

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


@final
class _Expected:
    """The facts of one argument on which the key depends."""

    __slots__ = (
        "alias", "binding", "cut", "device", "dtype", "items", "keys", "kind", "layout", "nbytes", "shape", "token",
    )  # fmt: skip

    def __init__(self, kind: type[Any]) -> None:
        self.kind = kind
        self.layout: Layout | None = None
        """The layout of a handle; None for other arguments."""
        self.device: Device | None = None
        self.nbytes = 0
        """The size in bytes of a handle's whole memory."""
        self.alias = 0
        """The index of the handle's memory among the memories of all handles, in order of appearance."""
        self.cut: object = None
        """The cut of a `Partition`, with the kind of tensor that was cut."""
        self.shape: tuple[int, ...] | None = None
        """The shape of an array; None for other arguments."""
        self.dtype: np.dtype[Any] | None = None
        self.token: Hashable = None
        """The token of a value that is in the key itself; None for other arguments."""
        self.items: CallGuard | None = None
        """The guard of the items of a tuple, list or dict; None for other arguments."""
        self.keys: Hashable = None
        """The tokens of the keys of a dict."""
        self.binding = UNUSED
        """The use of a leaf in the program."""


@final
class CallGuard:
    """The arguments of one call, as far as plans depend on them. Make it with `guard_call`."""

    __slots__ = ("_expected", "named")

    def __init__(self, expected: Sequence[_Expected], named: "CallGuard | None" = None) -> None:
        self._expected = expected
        self.named = named
        """The guard of the keyword arguments, each a pair; None for a call without them."""

    def match(
        self,
        arguments: Sequence[Any],
        memory: list[Any],
        leaves: list[Any],
        storages: dict[Storage, int],
        locks: dict[Storage, bool],
    ) -> bool:
        """Return True if these arguments have the facts of those of the earlier call, and bind them.

        Return False too if a handle has been moved or has no memory, or if a number does not fit.

        Args:
            arguments: the arguments, or the items of one.
            memory: filled with the memory and values of the program's buffers.
            leaves: extended by the leaves.
            storages: extended by the memory of the leaves, each with its number in order of appearance.
            locks: extended by the memory that the run locks, exclusively where the value is true.
        """
        if len(arguments) != len(self._expected):
            return False
        for value, facts in zip(arguments, self._expected, strict=True):
            if type(value) is not facts.kind:
                return False
            layout, binding = facts.layout, facts.binding
            if layout is not None:
                state = state_of(value)
                if state is None or (state.lender is not None and state_of(state.lender) is None):
                    return False
                storage, known = state.storage, len(storages)
                block = storage.memory
                if (
                    block is None
                    or (state.layout is not layout and state.layout != layout)
                    or storage.device is not facts.device
                    or storage.nbytes != facts.nbytes
                    or storages.setdefault(storage, known) != facts.alias
                    or (len(storages) == known and _is_among(value, leaves))
                    or (storage.graph is not no_graph and storage.graph() is not None)
                    or (facts.cut is not None and facts.cut != (state.kind, *cut_of(value)))
                ):
                    return False
                if binding.buffer >= 0:
                    memory[binding.buffer] = block
                if binding.lock is not None:
                    locks[storage] = binding.lock
                leaves.append(value)
            elif binding.numbers:
                if not _bind_number(value, binding, memory):
                    return False
                leaves.append(value)
            elif facts.items is not None:
                items = _items_of(value, facts)
                if items is None or not facts.items.match(items, memory, leaves, storages, locks):
                    return False
            elif not _match_value(value, facts, memory, leaves):
                return False
        return True


def guard_call(
    arguments: tuple[Any, ...], named: tuple[Any, ...], leaves: Sequence[Any], bindings: Sequence[LeafBinding]
) -> CallGuard | None:
    """Return the guard of a call with these positional and keyword arguments, whose leaves are `leaves`. `bindings` has
    the use of each leaf.

    Return None if it has no guard: an argument that appears twice, or that is deeply nested, is left to the key.
    """
    walk = _Walk(iter(bindings))
    guard = walk.guard_items(arguments, 0)
    if guard is not None and named:
        guard.named = walk.guard_items(named, 0)
    if guard is None or (named and guard.named is None) or list(map(id, walk.leaves)) != list(map(id, leaves)):
        return None
    return guard


@final
class _Walk:
    """The walk over the arguments of the call that is guarded."""

    def __init__(self, bindings: Iterator[LeafBinding]) -> None:
        self.leaves: list[Any] = []
        self._storages: dict[Storage, int] = {}
        self._bindings = bindings

    def guard_items(self, values: Iterable[Any], depth: int) -> CallGuard | None:
        """Return the guard of these values; None if there is none."""
        expected: list[_Expected] = []
        for value in values:
            facts = self._expect(value, depth)
            if facts is None:
                return None
            expected.append(facts)
        return CallGuard(expected)

    def _expect(self, value: Any, depth: int) -> _Expected | None:
        """Return the facts of a value; None if it cannot be guarded."""
        kind = type(value)
        facts = _Expected(kind)
        if kind in PLAIN and kind is not int and kind is not float:
            facts.token = exact_token(value)
            return facts
        if isinstance(value, NAMED):
            facts.token = value
            return facts
        if kind is list or kind is dict or is_tuple(value):
            if depth == _DEEPEST or (kind is dict and not PLAIN.issuperset(map(type, value))):
                return None
            if kind is dict:
                facts.keys = tuple(map(exact_token, value))
            facts.items = self.guard_items(value.values() if kind is dict else value, depth + 1)
            return None if facts.items is None else facts
        if kind in HANDLES:
            state = live_state(value)
            storage = state.storage
            if storage.graph() is not None:
                return None
            facts.layout, facts.device, facts.nbytes = state.layout, storage.device, storage.nbytes
            facts.alias = self._storages.setdefault(storage, len(self._storages))
            facts.cut = (state.kind, *cut_of(value)) if kind is Partition else None
        elif kind is np.ndarray:
            if value.dtype.metadata is not None or element_type(value.dtype) is None:
                return None  # a key has such an element type by its identity
            facts.shape, facts.dtype = value.shape, value.dtype
        elif kind is not int and kind is not float:
            return None
        self.leaves.append(value)
        facts.binding = next(self._bindings, UNUSED)
        return facts


def _match_value(value: Any, facts: _Expected, memory: list[Any], leaves: list[Any]) -> bool:
    """Return True if an array or another value that is no handle has the expected facts, and bind it."""
    token = facts.token
    if token is not None:  # an object in the key by its identity is its own token, and may have an `__eq__` of its own
        return token is value or (type(token) is tuple and token == exact_token(value))
    binding = facts.binding
    if facts.shape is not None:
        if value.shape != facts.shape or not _has_dtype(value, facts.dtype) or _is_among(value, leaves):
            return False
        if binding.buffer >= 0:
            memory[binding.buffer] = value
    leaves.append(value)
    return True


def _bind_number(value: Any, binding: LeafBinding, memory: list[Any]) -> bool:
    """Bind a number. Return False if it does not fit into a parameter: a trace raises the error, with the place of the
    call."""
    try:
        for cell, check in binding.numbers:
            memory[cell] = check(value)
    except KernelArgumentError:
        return False
    return True


def _items_of(value: Any, facts: _Expected) -> Sequence[Any] | None:
    """Return the items of a tuple, list or dict; None if a dict has other keys than expected."""
    if facts.kind is dict:
        return list(value.values()) if facts.keys == tuple(map(exact_token, value)) else None
    items: Sequence[Any] = value
    return items if facts.kind is list or is_tuple(value) else None


def _has_dtype(array: "np.ndarray[Any, Any]", dtype: np.dtype[Any] | None) -> bool:
    """Return True if an array has this element type, without metadata."""
    found = array.dtype
    return found is dtype or (found == dtype and found.metadata is None)


def _is_among(value: object, leaves: list[Any]) -> bool:
    """Return True if this very object is one of the leaves."""
    for leaf in leaves:  # noqa: SIM110  # `any` of a generator takes twice as long
        if leaf is value:
            return True
    return False
