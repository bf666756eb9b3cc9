"""The tokens of values in a cache key: arguments, handles, arrays, numbers, and the sources of values."""

from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from dagpu.common.containers import Composite, items_of, tokens_of
from dagpu.common.layout import element_type
from dagpu.handles import HANDLES, Partition, SharedTensor, cut_of, find_live_state
from dagpu.handles.storage import Storage
from dagpu.handles.symbolic import SymbolicArray, SymbolicNumber, replace_standins
from dagpu.lowering.arguments.exact_tokens import DEEPEST, PLAIN, exact_token, field_token, is_named, is_tuple
from dagpu.lowering.arguments.fixed_tokens import describe_unreadable, fixed_token
from dagpu.lowering.arguments.flattened import AnyOp, Flattened
from dagpu.ops.base import DeviceOp
from dagpu.ops.source_op import Source
from dagpu.ops.versions import Snapshot

NUMBERS: Final = frozenset((int, float, SymbolicNumber))
"""The types of numbers that may differ between runs. A stand-in among them is left over from another trace, and counts
as its number."""


class ValueReader(Flattened):
    """The tokens and leaves that a walk has collected so far, and the functions that add values to them."""

    def __init__(self) -> None:
        super().__init__()
        self._tokens: list[Any] = []
        self._unreadable: str | None = None
        """A description of the value that cannot be in a key."""
        self._numbers: dict[int, int] = {}
        """The index of each object among the leaves that was added, by its id."""
        self._storages: dict[Storage, int] = {}

    def add_value(self, value: Any, depth: int = 0) -> bool:
        """Add an argument to the key. Return false if it cannot be added."""
        kind = type(value)
        if kind in HANDLES:
            return self._add_handle(value)
        if kind is int or kind is float:
            self._add_leaf(value, kind)
        elif kind in PLAIN:
            self._tokens.append(exact_token(value))
        elif kind is tuple:
            self._tokens += (tuple, len(value))
            return self._add_items(value, depth)
        elif is_named(value):
            self._tokens += ("named", self._identity_token(value))
        elif kind is np.ndarray:
            self.changeable = True
            self._add_array(value)
        elif kind is list or is_tuple(value):
            self._tokens += (kind if kind is list else self._identity_token(kind), len(value))
            return self._add_items(value, depth)
        elif kind is dict and PLAIN.issuperset(map(type, value)):
            self._tokens += (dict, tuple(map(exact_token, value)))
            return self._add_items(value.values(), depth)
        elif isinstance(value, Composite):
            self._tokens += (self._identity_token(kind), tokens_of(value)(self._identity_token))
            return self._add_items(items_of(value), depth)
        elif kind is SymbolicNumber or kind is SymbolicArray:
            return self.add_value(replace_standins(value), depth)
        elif kind is Source:
            return self._add_source_argument(value)
        elif isinstance(value, DeviceOp):
            return self._add_op_argument(value)
        elif kind is not dict and (token := fixed_token(value, self._identity_token)) is not None:
            self.changeable = True
            self._tokens += ("fixed", token)
        else:
            self._unreadable = describe_unreadable(value)
            return False
        return True

    def _add_items(self, items: Iterable[Any], depth: int) -> bool:
        """Add the items of a tuple, list or dict at this depth. Return false if one cannot be added."""
        if depth == DEEPEST:
            self._unreadable = f"tuples, lists or dicts more than {DEEPEST} deep"
            return False
        for item in items:  # noqa: SIM110  # `all` of a generator takes twice as long
            if not self.add_value(item, depth + 1):
                return False
        return True

    def _add_immutable(self, value: Any, depth: int = 0, *, arrays: bool = False) -> bool:
        """Add a value that runs must return unchanged, with the same numbers, and that must be immutable. With
        `arrays` it may contain arrays, which become leaves. Return false if it cannot be added."""
        if type(value) in PLAIN:
            self._tokens.append(exact_token(value))
            return True
        if type(value) is SymbolicNumber:
            return self._add_immutable(value.number)
        if arrays and type(value) is np.ndarray:
            self._add_array(value)
            return True
        if is_tuple(value):
            self._tokens += (tuple if type(value) is tuple else self._identity_token(type(value)), len(value))
            return depth < DEEPEST and all(self._add_immutable(item, depth + 1, arrays=arrays) for item in value)
        return type(value) in HANDLES and self._add_handle(value)

    def _identity_token(self, value: object) -> int:
        """Return the token of an object that does not change: the token is equal to that of the same object alone."""
        self.named[id(value)] = value
        return id(value)

    def _add_fields(self, record: Any) -> bool:
        """Add one of dagpu's own dataclasses whose fields hold what the user gave: plain values, and tuples of these.
        Return false if it holds anything else."""
        self._tokens.append(type(record))
        for name in record.__slots__:
            token = field_token(getattr(record, name))
            if token is None:
                return False  # a trace raises the error for it
            self._tokens.append(token)
        return True

    def _add_leaf(self, value: Any, token: object) -> None:
        """Add a leaf, with the token of the facts that a trace depends on."""
        self._tokens.append(token)
        self.leaves.append(value)

    def _refer_to_known(self, leaf: Any) -> bool:
        """Return true if this object was added before; the key then refers to its index. Otherwise record the
        object."""
        index = self._numbers.setdefault(id(leaf), len(self.leaves))
        if index == len(self.leaves):
            return False
        self._tokens += ("again", index)
        return True

    def _add_array(self, array: "np.ndarray[Any, Any]") -> None:
        """Add an array as a leaf, with its shape and element type in the key."""
        if not self._refer_to_known(array):
            dtype = array.dtype
            element = element_type(dtype) if dtype.metadata is None else None
            self._add_leaf(array, (self._identity_token(dtype) if element is None else element, array.shape))

    def _add_handle(self, handle: Any) -> bool:
        """Add a living handle as a leaf. Return false if it has been moved, or has no memory."""
        if self._refer_to_known(handle):
            return True
        state = find_live_state(handle)
        if state is None or state.storage.memory is None:
            return False  # a trace raises the error for it
        storage = state.storage
        alias = self._storages.setdefault(storage, len(self._storages))
        cut = (state.kind, *cut_of(handle)) if type(handle) is Partition else None
        device, written = storage.device, storage.graph() is not None
        self.named[id(device)] = device
        self._add_leaf(handle, (type(handle), state.layout, id(device), storage.nbytes, alias, cut, written))
        return True

    # ---- sources

    def _at(self) -> Snapshot:
        """Return the instant at which the run reads sources."""
        if self.snapshot is None:
            self.snapshot = Snapshot()
        return self.snapshot

    def _revision(self, node: Source[Any]) -> int:
        """Return the revision of a source at the instant of the run."""
        return node.cell.history.at(self._at()).revision

    def _add_revision(self, node: Source[Any]) -> None:
        """Add a source to the key, by the index of the leaf that has its revision."""
        index = self.source_leaves.setdefault(node, len(self.leaves))
        if index == len(self.leaves):
            self.leaves.append((node, self._revision(node)))
        self._tokens += ("source", index)

    def _add_source_value(self, node: Source[Any]) -> bool:
        """Add a source and its value: a handle, an array or a number as a leaf. Return false if it cannot be added."""
        self.changeable = True
        self._add_revision(node)
        if node in self.source_values:
            return True
        value = node.cell.history.at(self._at()).value
        kind, self.source_values[node] = type(value), -1
        if kind is not int and kind is not float and kind is not np.ndarray and kind is not SharedTensor:
            return self._add_immutable(value)
        if kind is SharedTensor:
            value = value.clone()  # the run's own handle, which it may hand out
        if kind is np.ndarray and id(value) in self._numbers:
            self.source_values[node] = self._numbers[id(value)]
        else:
            self.source_values[node] = len(self.leaves)
        return self.add_value(value)

    def _add_op_argument(self, op: AnyOp) -> bool:
        """Add an op that a pipeline is called with: its function gets the op itself. Return false if it cannot be
        added."""
        raise NotImplementedError

    def _add_source_argument(self, node: Source[Any]) -> bool:
        """Add a source that a pipeline is called with: its function gets the source itself. Return false if it cannot
        be added."""
        self.nodes.add(node)
        if not self._add_source_value(node):
            self._unreadable = f"a source of a value of type {type(node.get()).__name__}"
            return False
        self.source_ends.setdefault(node, len(self.leaves))
        return True
