"""The test whether a call of a pipeline has the key of an earlier call.

A key says which plan serves a call; a guard says only whether it is the plan of one earlier call, in a tenth of the
time. It compares what the key contains (dagpu.lowering.arguments.cache_key), value by value, and collects the same
leaves in the same order. If it refuses, the key decides.
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Final, final

import numpy as np

from dagpu.common.layout import Layout
from dagpu.handles import HANDLES, Partition, cut_of, live_state, state_of
from dagpu.handles.device_handles import Device
from dagpu.handles.storage import Storage, no_graph
from dagpu.lowering.arguments.cache_key import NAMED, PLAIN, exact_token, is_tuple

_DEEPEST: Final = 4
"""The depth of nested tuples, lists and dicts to which a guard is made."""


@final
class _Expected:
    """The facts of one argument on which the key depends."""

    __slots__ = ("alias", "cut", "device", "dtype", "items", "keys", "kind", "layout", "nbytes", "shape", "token")

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


@final
class CallGuard:
    """The arguments of one call, as far as plans depend on them. Make it with `guard_call`."""

    __slots__ = ("_expected", "named")

    def __init__(self, expected: Sequence[_Expected], named: "CallGuard | None" = None) -> None:
        self._expected = expected
        self.named = named
        """The guard of the keyword arguments, each a pair; None for a call without them."""

    def match(self, arguments: Sequence[Any], leaves: list[Any], storages: dict[Storage, int]) -> bool:
        """Return True if these arguments have the facts of those of the earlier call. Append their leaves, and add the
        memory of each, with its number in order of appearance.

        Return False too if a handle has been moved or has no memory.
        """
        if len(arguments) != len(self._expected):
            return False
        for value, facts in zip(arguments, self._expected, strict=True):
            if type(value) is not facts.kind:
                return False
            layout = facts.layout
            if layout is not None:
                state = state_of(value)
                if state is None or (state.lender is not None and state_of(state.lender) is None):
                    return False
                storage, known = state.storage, len(storages)
                if (
                    storage.memory is None
                    or (state.layout is not layout and state.layout != layout)
                    or storage.device is not facts.device
                    or storage.nbytes != facts.nbytes
                    or storages.setdefault(storage, known) != facts.alias
                    or (len(storages) == known and _is_among(value, leaves))
                    or (storage.graph is not no_graph and storage.graph() is not None)
                    or (facts.cut is not None and facts.cut != (state.kind, *cut_of(value)))
                ):
                    return False
            elif facts.shape is not None:
                if value.shape != facts.shape or not _has_dtype(value, facts.dtype) or _is_among(value, leaves):
                    return False
            elif facts.token is not None or facts.items is not None:
                if not _matches_fixed(value, facts, leaves, storages):
                    return False
                continue
            leaves.append(value)
        return True


def guard_call(arguments: tuple[Any, ...], named: tuple[Any, ...], leaves: Sequence[Any]) -> CallGuard | None:
    """Return the guard of a call with these positional and keyword arguments, whose leaves are `leaves`.

    Return None if it has no guard: an argument that appears twice, or that is deeply nested, is left to the key.
    """
    found: list[Any] = []
    storages: dict[Storage, int] = {}
    guard = _guard_items(arguments, found, storages, 0)
    if guard is not None and named:
        guard.named = _guard_items(named, found, storages, 0)
    if guard is None or (named and guard.named is None) or list(map(id, found)) != list(map(id, leaves)):
        return None
    return guard


def _guard_items(
    values: Iterable[Any], leaves: list[Any], storages: dict[Storage, int], depth: int
) -> CallGuard | None:
    """Return the guard of these values, and append the leaves among them; None if there is none."""
    expected: list[_Expected] = []
    for value in values:
        facts = _expect(value, leaves, storages, depth)
        if facts is None:
            return None
        expected.append(facts)
    return CallGuard(expected)


def _expect(value: Any, leaves: list[Any], storages: dict[Storage, int], depth: int) -> _Expected | None:
    """Return the facts of a value, and append the leaves in it; None if it cannot be guarded."""
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
        facts.items = _guard_items(value.values() if kind is dict else value, leaves, storages, depth + 1)
        return None if facts.items is None else facts
    if kind in HANDLES:
        state = live_state(value)
        storage = state.storage
        if storage.graph() is not None:
            return None
        facts.layout, facts.device, facts.nbytes = state.layout, storage.device, storage.nbytes
        facts.alias = storages.setdefault(storage, len(storages))
        facts.cut = (state.kind, *cut_of(value)) if kind is Partition else None
    elif kind is np.ndarray:
        if value.dtype.metadata is not None:
            return None
        facts.shape, facts.dtype = value.shape, value.dtype
    elif kind is not int and kind is not float:
        return None
    leaves.append(value)
    return facts


def _matches_fixed(value: Any, facts: _Expected, leaves: list[Any], storages: dict[Storage, int]) -> bool:
    """Return True if a value that is not a leaf is the expected one, or a container whose items are as expected."""
    if facts.items is None:
        return facts.token is value or facts.token == exact_token(value)
    if facts.kind is dict:
        return facts.keys == tuple(map(exact_token, value)) and facts.items.match(
            list(value.values()), leaves, storages
        )
    return (facts.kind is list or is_tuple(value)) and facts.items.match(value, leaves, storages)


def _has_dtype(array: "np.ndarray[Any, Any]", dtype: np.dtype[Any] | None) -> bool:
    """Return True if an array has this element type, without metadata."""
    found = array.dtype
    return found is dtype or (found == dtype and found.metadata is None)


def _is_among(value: object, leaves: list[Any]) -> bool:
    """Return True if this very object is one of the leaves."""
    return any(leaf is value for leaf in leaves)
