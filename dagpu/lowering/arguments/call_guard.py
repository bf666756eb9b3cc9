"""The guard of a pipeline's plan: a table that tests whether a call has the key of an earlier call, and binds it.

A key says which plan serves a call; a guard says only whether it is the plan of one earlier call, in a tenth of the
time. It compares what the key contains (dagpu.lowering.arguments.cache_key), value by value, and collects the same
leaves in the same order. If it refuses, the key decides. On the way it does for each leaf what `Signature.bind` does.

A guard is a table. The structure of the arguments says where the values are: handles, arrays, numbers and whatever else
is in the key. Each value has a row, which is data: what the value has to be, and what of it the program uses. `read`
compares the values with their rows, and puts what the run needs into a `Reading`. A refused call has had no effect.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final, Protocol, TypeAlias, final

import numpy as np

from dagpu.common.containers import Composite, about_of, items_of
from dagpu.common.errors import KernelArgumentError
from dagpu.common.frozen import plain
from dagpu.common.layout import Layout, element_type
from dagpu.handles import HANDLES, Cut, HandleState, Partition, SharedTensor, Tensor, cut_of, live_state, state_of
from dagpu.handles.device_handles import Device
from dagpu.handles.storage import Lock, Storage, no_graph
from dagpu.kernels.declaration import ScalarCheck
from dagpu.lowering.arguments.exact_tokens import COMPARABLE, PLAIN, exact_token, is_named, is_tuple
from dagpu.lowering.arguments.fixed_tokens import fixed_token

_DEEPEST: Final = 4
"""The depth of nested tuples, lists and dicts to which a guard is made."""


Moved: TypeAlias = tuple[int, Any, HandleState]
"""A handle that moves into the run, with the index of its leaf before it, and its state as it was read after it."""

Reading: TypeAlias = tuple[list[Any], list[Any], list[Lock], list[Lock], list[Moved]]
"""What a direct call has read of its inputs, which is all that a run with the plan needs: the memory and the values of
the program's buffers, with None where nothing is bound; the leaves in the order of the key; the locks that the run
takes for writing, and those for reading; and the handles that move. A class would take as long to make as a handle to
read."""


@final
@plain
class LeafBinding:
    """The use of one leaf in a program."""

    buffer: int = -1
    """The buffer of a handle's memory, or the cell of an array; -1 if the program does not use it."""
    lock: bool | None = None
    """True if a handle's memory is locked for writing, false for reading, None if it is not locked."""
    moves: bool = False
    """True if a handle moves into the run."""
    numbers: tuple[tuple[int, Callable[[float], object]], ...] = ()
    """For each use of a number its cell, and the check that returns the value of the cell."""


UNUSED: Final = LeafBinding()


# ---- rows of single values


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
    cut: tuple[type[Any], Cut] | None
    """The kind of tensor that a `Partition` has cut, and the cut; None for other handles."""
    binding: LeafBinding


@final
@plain
class NumberRow:
    """Accepts an int or a float that fits into its parameters. A trace raises the error of one that does not, with the
    place of the call."""

    kind: type[Any]
    binding: LeafBinding


@final
@plain
class ArrayRow:
    """Accepts another NumPy array of the same shape and element type."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    binding: LeafBinding

    def accepts(self, value: Any) -> bool:
        if type(value) is not np.ndarray or value.shape != self.shape:
            return False
        dtype = value.dtype
        return dtype is self.dtype or (dtype == self.dtype and dtype.metadata is None)


@final
@plain
class RepeatedRow:
    """Accepts the object itself that is an earlier leaf, such as a tensor that a call has twice."""

    place: int
    """The index of that leaf among the values."""


ValueRow: TypeAlias = HandleRow | NumberRow | ArrayRow | RepeatedRow
"""The facts of one value on which the key depends."""


# ---- structures, which find the values


class Structure(Protocol):
    """The structure of one argument, with all that is in the key itself. Each kind of structure has a class."""

    def find(self, value: Any, values: list[Any]) -> bool:
        """Add the values in an argument to `values`. Return false if its structure is another."""
        ...


@final
class OneValue:
    """The structure of a value that has a row of its own."""

    __slots__ = ()

    def find(self, value: Any, values: list[Any]) -> bool:
        values.append(value)
        return True

    def __repr__(self) -> str:
        return "value"


ONE_VALUE: Final = OneValue()


@final
@plain
class TokenRow:
    """Accepts an equal value that is in the key itself. An object that is in the key by its identity is its own token,
    and may have an `__eq__` of its own."""

    kind: type[Any]
    value: Any

    def find(self, value: Any, values: list[Any]) -> bool:
        kind = self.kind
        if type(value) is not kind:
            return False
        if kind in COMPARABLE:
            return bool(value == self.value)
        if value is self.value:
            return True
        return not is_named(value) and exact_token(value) == exact_token(self.value)


@final
@plain
class FixedRow:
    """Accepts a value with the same token, by dagpu.lowering.arguments.fixed_tokens. The key of the plan keeps alive
    what is in the token by its identity."""

    token: Hashable

    def find(self, value: Any, values: list[Any]) -> bool:
        return _token_of(value) == self.token


def _token_of(value: object) -> Hashable:
    return fixed_token(value, id)


@final
@plain
class ItemsRow:
    """Accepts a tuple, list or dict of the same type whose items are accepted."""

    kind: type[Any]
    items: tuple[Structure, ...]
    keys: Hashable
    """The tokens of the keys of a dict; None for others."""

    def find(self, value: Any, values: list[Any]) -> bool:
        kind = self.kind
        if type(value) is not kind:
            return False
        if kind is dict:
            value = dict(value)  # another thread may change it meanwhile
            if tuple(map(exact_token, value)) != self.keys:
                return False
            return find_items(self.items, tuple(value.values()), values)
        if kind is not tuple and kind is not list and not is_tuple(value):
            return False
        return find_items(self.items, tuple(value), values)


@final
@plain
class CompositeRow:
    """Accepts a value of dagpu's own of the same class whose items are accepted, and of which the rest is the same
    object. The results of a pipeline have it in common."""

    kind: type[Composite]
    about: object
    items: tuple[Structure, ...]

    def find(self, value: Any, values: list[Any]) -> bool:
        if type(value) is not self.kind or about_of(value) is not self.about:
            return False
        return find_items(self.items, items_of(value), values)


def find_items(rows: Sequence[Structure], items: Sequence[Any], values: list[Any]) -> bool:
    """Add the values in as many items as there are rows. Return false if there are more or fewer, or if one has another
    structure."""
    if len(items) != len(rows):
        return False
    for row, item in zip(rows, items, strict=True):
        if row is ONE_VALUE:
            values.append(item)
        elif not row.find(item, values):
            return False
    return True


# ---- the table


@final
class ValueTable:
    """The rows of all values of a call, in the order of the key, in the form in which they are read in one loop for
    each kind. The functions of Python that a loop calls would take as long as all that it compares."""

    __slots__ = (
        "_aliases", "_arrays", "_borrows", "_buffers", "_cuts", "_distinct", "_handles", "_is_odd", "_leaves", "_moves",
        "_numbers", "_reads", "_repeated", "_twins", "_writes", "rows",
    )  # fmt: skip

    def __init__(self, rows: Sequence[ValueRow], buffers: int) -> None:
        """`buffers` is the number of the program's buffers and cells."""
        self.rows = tuple(rows)
        self._buffers = buffers + 1
        """One more than the program has: what it does not use is bound to the last one."""
        self._handles: list[tuple[Any, ...]] = []
        self._numbers: list[tuple[Any, ...]] = []
        self._arrays: list[tuple[int, ArrayRow]] = []
        self._repeated: list[tuple[int, int]] = []
        self._twins: list[tuple[int, int]] = []
        """The pairs of values that must be two objects: handles to one memory, and arrays."""
        self._aliases: list[tuple[int, int]] = []
        """The pairs of handles, by their numbers, that have one memory."""
        self._borrows: list[int] = []
        self._cuts: list[tuple[int, int, object]] = []
        self._writes: list[int] = []
        self._reads: list[int] = []
        self._moves: list[tuple[int, int, int]] = []
        """Each handle that moves: its leaf, its place among the values, and its number among the handles."""
        leaves = [at for at, row in enumerate(rows) if not isinstance(row, RepeatedRow)]
        self._leaves: list[int] | None = None if len(leaves) == len(rows) else leaves
        """The indices of the leaves among the values; None if all values are leaves."""
        known: dict[int, tuple[int, int]] = {}
        """For each memory the first handle to it, and its place."""
        for leaf, at in enumerate(leaves):
            row = rows[at]
            if isinstance(row, HandleRow):
                self._add_handle(leaf, at, row, known)
            elif isinstance(row, NumberRow):
                for cell, check in row.binding.numbers or ((-1, None),):
                    range_ = (check.kind, check.low, check.high) if isinstance(check, ScalarCheck) else (None, 0, 0)
                    self._numbers.append((at, row.kind, cell, check, *range_))
            elif isinstance(row, ArrayRow):
                self._twins += [(at, other) for other, _ in self._arrays]
                self._arrays.append((at, row))
        self._repeated += [(at, row.place) for at, row in enumerate(rows) if isinstance(row, RepeatedRow)]
        self._distinct = len(known)
        """The number of memories of all handles."""
        self._is_odd = bool(self._aliases or self._arrays or self._borrows or self._cuts or self._repeated)

    def _add_handle(self, leaf: int, at: int, row: HandleRow, known: dict[int, tuple[int, int]]) -> None:
        number, use = len(self._handles), row.binding
        self._handles.append((at, row.kind, row.layout, row.device, row.nbytes, use.buffer))
        first, _ = known.setdefault(row.alias, (number, at))
        if first != number:
            self._aliases.append((number, first))
            same = [
                i for i, each in enumerate(self.rows[:at]) if isinstance(each, HandleRow) and each.alias == row.alias
            ]
            self._twins += [(at, other) for other in same]
        if row.cut is not None:
            self._cuts.append((at, number, row.cut))
        if row.kind is not Tensor and row.kind is not SharedTensor:
            self._borrows.append(number)
        if use.lock is not None:
            (self._writes if use.lock else self._reads).append(number)
        if use.moves:
            self._moves.append((leaf, at, number))

    def read(self, values: Sequence[Any]) -> Reading | None:  # a loop that calls nothing
        """Read as many values as there are rows. Return None if a row refuses one: if its facts are others; if a handle
        has been moved or has no memory; or if a number does not fit."""
        memory: list[Any] = [None] * self._buffers
        storages: list[Storage] = []
        states: list[HandleState] = []
        for at, kind, layout, device, nbytes, buffer in self._handles:
            handle = values[at]
            if type(handle) is not kind:
                return None
            state = handle._state  # noqa: SLF001  # `state_of` is a call
            if state is None:
                return None
            storage = state.storage
            memory[buffer] = block = storage.memory
            if (
                block is None
                or (state.layout is not layout and state.layout != layout)
                or storage.device is not device
                or storage.nbytes != nbytes
                or (storage.graph is not no_graph and storage.graph() is not None)
            ):
                return None
            storages.append(storage)
            states.append(state)
        if self._is_odd and not self._accepts_odd(values, storages, states):
            return None
        if len(set(storages)) != self._distinct:
            return None
        for at, kind, cell, check, wanted, low, high in self._numbers:
            number = values[at]
            if type(number) is not kind:
                return None
            if kind is wanted and low <= number <= high:  # nearly all numbers
                memory[cell] = number
            elif check is not None:
                try:
                    memory[cell] = check(number)
                except KernelArgumentError:
                    return None
        for at, row in self._arrays:
            memory[row.binding.buffer] = values[at]
        found = self._leaves
        leaves = list(values) if found is None else [values[at] for at in found]
        writes = [storages[at].lock for at in self._writes]
        reads = [storages[at].lock for at in self._reads]
        return memory, leaves, writes, reads, [(leaf, values[at], states[of]) for leaf, at, of in self._moves]

    def _accepts_odd(self, values: Sequence[Any], storages: list[Storage], states: list[HandleState]) -> bool:
        """Return false if a partition has another cut, a borrow has no lender any more, an array has other facts, or
        two values are one object or memory that were two in the earlier call, or the reverse."""
        for at, of, cut in self._cuts:
            if (states[of].kind, cut_of(values[at])) != cut:
                return False
        for of in self._borrows:
            lender = states[of].lender
            if lender is not None and state_of(lender) is None:
                return False
        return (
            all(storages[at] is storages[other] for at, other in self._aliases)
            and all(row.accepts(values[at]) for at, row in self._arrays)
            and all(values[at] is values[place] for at, place in self._repeated)
            and all(values[at] is not values[other] for at, other in self._twins)
        )


@final
class CallGuard:
    """The table of one call: its arguments, as far as plans depend on them. Make it with `guard_call`."""

    __slots__ = ("_count", "_names", "arguments", "named", "table")

    def __init__(
        self, arguments: tuple[Structure, ...], names: tuple[str, ...], named: tuple[Structure, ...], table: ValueTable
    ) -> None:
        self.arguments = arguments
        self.named = named
        """The structures of the keyword arguments, with the names `names`."""
        self.table = table
        self._names = names
        flat = not named and all(row is ONE_VALUE for row in arguments)
        self._count = len(arguments) if flat else -1
        """The number of the arguments, if they are the values themselves; else -1."""

    def read(self, arguments: Any, named: Any) -> Reading | None:
        """Read another call. Return None if it has another key; if a handle has been moved or has no memory; or if a
        number does not fit."""
        if self._count >= 0:
            return None if named or len(arguments) != self._count else self.table.read(arguments)
        values: list[Any] = []
        if not find_items(self.arguments, arguments, values):
            return None
        if tuple([name for name, _ in named]) != self._names:
            return None
        if not find_items(self.named, [value for _, value in named], values):
            return None
        return self.table.read(values)

    def __str__(self) -> str:
        names = "".join(f", {name}={row}" for name, row in zip(self._names, self.named, strict=True))
        lines = [f"call({', '.join(map(str, self.arguments))}{names})"]
        return "\n".join([*lines, *[f"  {number}: {row}" for number, row in enumerate(self.table.rows)]])


def guard_call(
    arguments: tuple[Any, ...],
    named: tuple[Any, ...],
    leaves: Sequence[Any],
    bindings: Sequence[LeafBinding],
    buffers: int = 0,
) -> CallGuard | None:
    """Return the guard of a call with these positional and keyword arguments, whose leaves are `leaves`. `bindings` has
    the use of each leaf in a program of this number of `buffers`.

    Return None if it has no guard: an argument that is deeply nested, or of a kind without guard, is left to the key.
    """
    walk = ArgumentWalk(bindings)
    structures = walk.guard_items(arguments, 0)
    named_structures = walk.guard_items([value for _, value in named], 0)
    if structures is None or named_structures is None or list(map(id, walk.leaves)) != list(map(id, leaves)):
        return None
    names = tuple([name for name, _ in named])
    return CallGuard(structures, names, named_structures, ValueTable(walk.rows, buffers))


@final
class ArgumentWalk:
    """The walk over the arguments of the call that is guarded."""

    def __init__(self, bindings: Sequence[LeafBinding]) -> None:
        self.leaves: list[Any] = []
        """The leaves so far, in the order of the key."""
        self.rows: list[ValueRow] = []
        """The rows of the values so far."""
        self._places: dict[int, int] = {}
        """The places of the handles and arrays so far, by their ids. Each of these objects is one leaf."""
        self._storages: dict[Storage, int] = {}
        self._bindings = bindings

    def guard_items(self, values: Iterable[Any], depth: int) -> tuple[Structure, ...] | None:
        """Return the structures of these values; None if one has none."""
        guards: list[Structure] = []
        for value in values:
            guard = self.guard(value, depth)
            if guard is None:
                return None
            guards.append(guard)
        return tuple(guards)

    def guard(self, value: Any, depth: int = 0) -> Structure | None:
        """Return the structure of a value, and add the rows of the values in it; None if it has none."""
        kind = type(value)
        if kind is list or kind is dict or is_tuple(value):
            if depth == _DEEPEST or (kind is dict and not PLAIN.issuperset(map(type, value))):
                return None
            items = self.guard_items(value.values() if kind is dict else value, depth + 1)
            keys = tuple(map(exact_token, value)) if kind is dict else None
            return None if items is None else ItemsRow(kind, items, keys)
        if isinstance(value, Composite):
            items = None if depth == _DEEPEST else self.guard_items(items_of(value), depth + 1)
            return None if items is None else CompositeRow(type(value), about_of(value), items)
        if (kind in PLAIN and kind is not int and kind is not float) or is_named(value):
            return TokenRow(kind, value)
        if kind in HANDLES or kind in (int, float, np.ndarray):
            row = self._row_of(value, kind)
            if row is None:
                return None
            self.rows.append(row)
            return ONE_VALUE
        token = _token_of(value)
        return None if token is None else FixedRow(token)

    def _row_of(self, value: Any, kind: type[Any]) -> ValueRow | None:
        """Return the row of a handle, an array or a number; None if it has none."""
        if kind is int or kind is float:
            return NumberRow(kind, self._add_leaf(value))
        place = self._places.setdefault(id(value), len(self.rows))
        if place < len(self.rows):
            return RepeatedRow(place)
        if kind in HANDLES:
            return self._guard_handle(value, kind)
        if value.dtype.metadata is not None or element_type(value.dtype) is None:
            return None  # a key has such an element type by its identity
        return ArrayRow(value.shape, value.dtype, self._add_leaf(value))

    def _guard_handle(self, handle: Any, kind: type[Any]) -> HandleRow | None:
        """Return the row of a handle; None if a graph writes its memory."""
        state = live_state(handle)
        storage = state.storage
        if storage.graph() is not None:
            return None
        alias = self._storages.setdefault(storage, len(self._storages))
        cut = (state.kind, cut_of(handle)) if kind is Partition else None
        return HandleRow(kind, state.layout, storage.device, storage.nbytes, alias, cut, self._add_leaf(handle))

    def _add_leaf(self, value: Any) -> LeafBinding:
        """Add a leaf, and return its use in the program."""
        self.leaves.append(value)
        number = len(self.leaves) - 1
        return self._bindings[number] if number < len(self._bindings) else UNUSED
