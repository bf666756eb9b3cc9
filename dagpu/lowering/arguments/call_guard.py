"""The test whether a call of a pipeline has the key of an earlier call.

A key says which plan serves a call; a guard says only whether it is the plan of one earlier call, in a tenth of the
time. It compares what the key contains (dagpu.lowering.arguments.cache_key), value by value, and collects the same
leaves in the same order. If it refuses, the key decides.
"""

from collections.abc import Hashable, Sequence
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
        self.items: tuple[_Expected, ...] | None = None
        """The items of a tuple, list or dict; None for other arguments."""
        self.keys: Hashable = None
        """The tokens of the keys of a dict."""


@final
class CallGuard:
    """The arguments of one call, as far as plans depend on them. Make it with `guard_call`."""

    __slots__ = ("_expected", "_named")

    def __init__(self, expected: tuple[_Expected, ...], named: bool) -> None:
        self._expected = expected
        self._named = named
        """True for a call with keyword arguments."""

    def match(self, arguments: tuple[Any, ...], named: tuple[Any, ...]) -> tuple[list[Any], dict[Storage, int]] | None:
        """Return the leaves of a call, and their memory, if its key is that of the earlier call.

        Return None if it has another key, or if a handle has been moved or has no memory.
        """
        if self._named is not (named != ()):
            return None
        leaves: list[Any] = []
        storages: dict[Storage, int] = {}
        values = (arguments, named) if named else arguments
        return (leaves, storages) if _match(values, self._expected, leaves, storages) else None


def guard_call(arguments: tuple[Any, ...], named: tuple[Any, ...], leaves: Sequence[Any]) -> CallGuard | None:
    """Return the guard of a call with these positional and keyword arguments, whose leaves are `leaves`.

    Return None if it has no guard: an argument that appears twice, or that is deeply nested, is left to the key.
    """
    found: list[Any] = []
    expected = _expect((arguments, named) if named else arguments, found, {}, 0)
    if expected is None or len(found) != len(leaves) or any(a is not b for a, b in zip(found, leaves, strict=True)):
        return None
    return CallGuard(expected, named != ())


def _expect(
    values: Sequence[Any], leaves: list[Any], storages: dict[Storage, int], depth: int
) -> tuple[_Expected, ...] | None:
    """Return the facts of these arguments, and append the leaves among them to `leaves`; None if there is no guard."""
    if depth == _DEEPEST:
        return None
    expected: list[_Expected] = []
    for value in values:
        kind = type(value)
        facts = _Expected(kind)
        expected.append(facts)
        if kind in HANDLES:
            state = live_state(value)
            storage = state.storage
            if storage.graph() is not None:
                return None
            facts.layout, facts.device, facts.nbytes = state.layout, storage.device, storage.nbytes
            facts.alias = storages.setdefault(storage, len(storages))
            if kind is Partition:
                facts.cut = state.kind, *cut_of(value)
            leaves.append(value)
        elif kind is int or kind is float:
            leaves.append(value)
        elif kind is np.ndarray:
            if value.dtype.metadata is not None:
                return None
            facts.shape, facts.dtype = value.shape, value.dtype
            leaves.append(value)
        elif kind in PLAIN:
            facts.token = exact_token(value)
        elif isinstance(value, NAMED):
            facts.token = value
        elif kind is list or kind is dict or is_tuple(value):
            if kind is dict:
                if not PLAIN.issuperset(map(type, value)):
                    return None
                facts.keys = tuple(map(exact_token, value))
            facts.items = _expect(list(value.values()) if kind is dict else value, leaves, storages, depth + 1)
            if facts.items is None:
                return None
        else:
            return None
    return tuple(expected)


def _match(
    values: Sequence[Any], expected: Sequence[_Expected], leaves: list[Any], storages: dict[Storage, int]
) -> bool:
    """Return True if these arguments have the expected facts. Append their leaves, and add the memory of handles."""
    if len(values) != len(expected):
        return False
    for value, facts in zip(values, expected, strict=True):
        if type(value) is not facts.kind:
            return False
        if facts.layout is not None:
            state = state_of(value)
            if state is None or (state.lender is not None and state_of(state.lender) is None):
                return False
            storage, layout, known = state.storage, state.layout, len(storages)
            if (
                storage.memory is None
                or (layout is not facts.layout and layout != facts.layout)
                or storage.device is not facts.device
                or storage.nbytes != facts.nbytes
                or storages.setdefault(storage, known) != facts.alias
                or (len(storages) == known and _is_among(value, leaves))
                or (storage.graph is not no_graph and storage.graph() is not None)
                or (facts.cut is not None and facts.cut != (state.kind, *cut_of(value)))
            ):
                return False
            leaves.append(value)
        elif facts.shape is not None:
            dtype = value.dtype
            if value.shape != facts.shape or dtype != facts.dtype or dtype.metadata is not None:
                return False
            if _is_among(value, leaves):
                return False
            leaves.append(value)
        elif facts.items is not None:
            if facts.keys is not None:
                if tuple(map(exact_token, value)) != facts.keys:
                    return False
                value = value.values()
            elif facts.kind is not list and not is_tuple(value):
                return False
            if not _match(value, facts.items, leaves, storages):
                return False
        elif facts.token is None:
            leaves.append(value)  # a number
        elif facts.token is not value and facts.token != exact_token(value):
            return False
    return True


def _is_among(value: object, leaves: list[Any]) -> bool:
    """Return True if this very object is one of the leaves."""
    return any(leaf is value for leaf in leaves)
