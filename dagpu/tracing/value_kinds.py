"""The table of a run: a row for each value, and for each kind of value what its rows are used for.

One walk makes the table (dagpu.tracing.cache_key). A row is a tuple: the kind of the value, its place, and
what a trace can tell of it. The place says where the value is: each container has given numbers to its items, and each
node to its fields. A place of -1 is no argument: the value of a source, or one that an op remembers.

The four uses of a row stand beside one another in the class of its kind, so they cannot come to differ:

- `add` makes the row. The rows are the cache key: two runs have one plan if their rows are equal.
- `guard` gives the conditions under which another value would get an equal row (dagpu.tracing.call_guard).
- `read` of a leaf compares it, and binds it to a program.
- `put_standin` puts what a trace sees in the place of a leaf.

A row has the type and the bits of a plain value (`exact_token`), and the identity of an immutable object. No `__eq__`
method of the user's is called.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias, final

import numpy as np

from dagpu.common.containers import Composite, about_of, items_of, rebuild, tokens_of
from dagpu.common.errors import KernelArgumentError
from dagpu.common.frozen import plain
from dagpu.common.layout import element_type
from dagpu.handles import HANDLES, HandleState, Partition, SharedTensor, Tensor, cut_of, find_live_state, state_of
from dagpu.handles.handle_state import Storage, no_graph
from dagpu.handles.symbolic import SymbolicArray, SymbolicNumber, replace_standins, standin_of
from dagpu.kernels.declaration import ScalarCheck
from dagpu.ops.base import DeviceOp
from dagpu.ops.source_op import Source
from dagpu.ops.versions import Snapshot
from dagpu.tracing.call_guard import Guard, LeafBinding, Reading
from dagpu.tracing.flattened import AnyOp, Flattened, Row
from dagpu.tracing.value_tokens import (
    COMPARABLE,
    DEEPEST,
    PLAIN,
    describe_unreadable,
    exact_token,
    fixed_token,
    is_named,
    is_tuple,
)

NUMBERS: Final = frozenset((int, float, SymbolicNumber))
"""The types of numbers that may differ between runs. A stand-in among them is left over from another trace, and counts
as its number."""

Values: TypeAlias = dict[int, Any]
"""Values by their places."""


@final
@plain
class Trace:
    """The trace for which stand-ins are made."""

    reads: set[int]
    leaves: Sequence[Any]
    take: Callable[[Any], Any]
    """Moves a handle into the run, and returns what stands for it."""


class Kind:
    """A kind of row. This one is of facts that are in keys alone."""

    opens = False
    """True if the value has items, which have rows of their own."""

    def __repr__(self) -> str:
        return type(self).__name__.removesuffix("Kind")

    def guard(self, row: Row, value: Any, guard: Guard) -> bool:
        """Add the conditions under which another value has this row, which is that of `value`. Return false if only a
        key can tell."""
        return False

    def open(self, row: Row, values: Values) -> None:
        """Put the items of a container or a node at their places."""

    def put_standin(self, row: Row, values: Values, trace: Trace) -> None:
        """Put what a trace sees at the place of a value."""

    def close(self, row: Row, values: Values) -> None:
        """Put a container of the stand-ins at the place of one of the values."""


ONLY_IN_KEY: Final = Kind()


class ValueKind(Kind):
    """A kind of values."""

    def add(self, walk: "TableWalk", value: Any, at: int, depth: int) -> bool:
        """Add the row of a value, and those of its items. Return false if it cannot be in a key."""
        raise NotImplementedError


# ---- leaves


@final
class HandleRows:
    """The rows of the handles of a guard."""

    __slots__ = ("aliases", "borrows", "cuts", "memories", "pairs", "rows")

    def __init__(self) -> None:
        self.rows: list[Row] = []
        """For each handle: its index among the values, kind, layout, device, size of memory, buffer and lock, and the
        index of its leaf if it moves, else -1."""
        self.aliases: list[int] = []
        """The index of the memory of each handle among the memories, in order of appearance."""
        self.memories = 0
        self.pairs: list[tuple[int, int]] = []
        """The pairs of handles, by their numbers, that have one memory."""
        self.cuts: list[tuple[int, int, object]] = []
        """For each partition its number, its index among the values, and its cut."""
        self.borrows: list[int] = []
        """The numbers of the handles that may have a lender."""


@final
class HandleKind(ValueKind):
    """A living handle: its kind and layout, the device and the size of its memory, the index of that memory among all
    memories, and the cut of a `Partition`; true if a graph writes the memory."""

    def add(self, walk: "TableWalk", value: Any, at: int, depth: int) -> bool:
        """Return false for a handle that has been moved, or has no memory: a trace raises the error."""
        if walk.refer_to_known(value, at):
            return True
        state = find_live_state(value)
        if state is None or state.storage.memory is None:
            return False
        storage, kind = state.storage, type(value)
        alias = walk.storages.setdefault(storage, len(walk.storages))
        cut = (state.kind, *cut_of(value)) if kind is Partition else None
        device, written = storage.device, storage.graph() is not None
        walk.named[id(device)] = device
        walk.rows.append(
            (self, at, len(walk.leaves), kind, state.layout, id(device), storage.nbytes, alias, cut, written)
        )
        walk.leaves.append(value)
        return True

    def guard(self, row: Row, value: Any, guard: Guard) -> bool:
        """Return false if a graph writes the memory."""
        _, place, leaf, kind, layout, device, nbytes, alias, cut, written = row
        use, at = guard.add_leaf(leaf, place), guard.at(place)
        known = guard.leaf_rows.setdefault(self, HandleRows())
        number = len(known.rows)
        moves = leaf if use.moves else -1
        known.rows.append((at, kind, layout, guard.named(device), nbytes, use.buffer, use.lock, moves))
        known.aliases.append(alias)
        first = known.aliases.index(alias)
        if first == number:
            known.memories += 1
        else:
            known.pairs.append((number, first))
            guard.different |= {known.rows[first][0], at}
        if cut is not None:
            known.cuts.append((number, at, cut))
        if kind is not Tensor and kind is not SharedTensor:
            known.borrows.append(number)
        return not written

    def read(self, rows: HandleRows, values: Sequence[Any], found: Reading) -> bool:
        memory, _, writes, reads, moved = found
        storages: list[Storage] = []
        states: list[HandleState] = []
        for at, kind, layout, device, nbytes, buffer, lock, moves in rows.rows:
            handle = values[at]
            if type(handle) is not kind:
                return False
            state = handle._state  # noqa: SLF001  # `state_of` is a call
            if state is None:
                return False
            storage = state.storage
            memory[buffer] = block = storage.memory
            if (
                block is None
                or (state.layout is not layout and state.layout != layout)
                or storage.device is not device
                or storage.nbytes != nbytes
                or (storage.graph is not no_graph and storage.graph() is not None)
            ):
                return False
            if lock is not None:
                (writes if lock else reads).append(storage.lock)
            if moves >= 0:
                moved.append((moves, handle, state))
            storages.append(storage)
            states.append(state)
        for number, first in rows.pairs:
            if storages[number] is not storages[first]:
                return False
        for number, at, cut in rows.cuts:
            if not has_cut(values[at], states[number].kind, cut):
                return False
        for number in rows.borrows:
            lender = states[number].lender
            if lender is not None and state_of(lender) is None:
                return False
        return bool(len(storages) < 2 or len(set(storages)) == rows.memories)

    def put_standin(self, row: Row, values: Values, trace: Trace) -> None:
        values[row[1]] = trace.take(values[row[1]])


def has_cut(partition: Partition[Any], kind: type[Any], cut: object) -> bool:
    """Return true if a partition of a tensor of this kind has the cut of a row."""
    return (kind, *cut_of(partition)) == cut


class UnreadKind(ValueKind):
    """A kind of leaves whose values a trace does not see, unless it reads them."""

    def put_standin(self, row: Row, values: Values, trace: Trace) -> None:
        _, place, leaf, *_ = row
        values[place] = standin_of(leaf, trace.leaves[leaf], trace.reads)


@final
class NumberKind(UnreadKind):
    """An int or a float: its type. A trace raises the error of one that does not fit into its parameters, with the
    place of the call."""

    def add(self, walk: "TableWalk", value: Any, at: int, depth: int) -> bool:
        walk.rows.append((self, at, len(walk.leaves), type(value)))
        walk.leaves.append(value)
        return True

    def guard(self, row: Row, value: Any, guard: Guard) -> bool:
        _, place, leaf, kind = row
        rows = guard.leaf_rows.setdefault(self, [])
        for cell, check in guard.add_leaf(leaf, place).numbers or ((-1, None),):
            range_ = (check.kind, check.low, check.high) if isinstance(check, ScalarCheck) else (None, 0, 0)
            rows.append((guard.at(place), kind, cell, check, *range_))
        return True

    def read(self, rows: Sequence[Row], values: Sequence[Any], found: Reading) -> bool:
        memory = found[0]
        for at, kind, cell, check, wanted, low, high in rows:
            number = values[at]
            if type(number) is not kind:
                return False
            if kind is wanted and low <= number <= high:  # nearly all numbers
                memory[cell] = number
            elif check is not None:
                try:
                    memory[cell] = check(number)
                except KernelArgumentError:
                    return False
        return True


@final
class ArrayKind(UnreadKind):
    """A NumPy array: its element type and its shape."""

    def add(self, walk: "TableWalk", value: Any, at: int, depth: int) -> bool:
        walk.changeable = True
        walk.add_array(value, at)
        return True

    def guard(self, row: Row, value: Any, guard: Guard) -> bool:
        """Return false for an element type that tensors cannot have: a key has it by its identity."""
        _, place, leaf, element, shape = row
        use, at = guard.add_leaf(leaf, place), guard.at(place)
        guard.leaf_rows.setdefault(self, []).append((at, element, shape, use.buffer))
        guard.different.add(at)
        return type(element) is not int

    def read(self, rows: Sequence[Row], values: Sequence[Any], found: Reading) -> bool:
        memory = found[0]
        for at, element, shape, cell in rows:
            array = values[at]
            if type(array) is not np.ndarray or array.shape != shape:
                return False
            if array.dtype is not element and not has_elements(array.dtype, element):
                return False
            memory[cell] = array
        return True


def has_elements(dtype: "np.dtype[Any]", element: object) -> bool:
    """Return true if an array of this dtype has the element type of a row."""
    return dtype.metadata is None and element_type(dtype) is element


@final
class AgainKind(Kind):
    """A handle or an array that is an earlier leaf, such as a tensor that a call has twice: the index of that leaf."""

    def guard(self, row: Row, value: Any, guard: Guard) -> bool:
        guard.again.append((guard.at(row[1]), guard.places[row[2]]))
        return True

    def put_standin(self, row: Row, values: Values, trace: Trace) -> None:
        kind: ValueKind = ARRAY if type(values[row[1]]) is np.ndarray else HANDLE
        kind.put_standin(row, values, trace)


# ---- values that are in the key themselves


@final
class PlainKind(ValueKind):
    """A plain value: its type and its bits."""

    def add(self, walk: "TableWalk", value: Any, at: int, depth: int) -> bool:
        walk.rows.append((self, at, exact_token(value)))
        return True

    def guard(self, row: Row, value: Any, guard: Guard) -> bool:
        _, place, token = row
        if token[0] in COMPARABLE:
            guard.equal.append((guard.at(place), *token))
        else:
            guard.checks.append((guard.at(place), self, token))
        return True

    def accepts(self, value: Any, token: Any) -> bool:
        return type(value) is token[0] and bool(exact_token(value) == token)


@final
class NamedKind(ValueKind):
    """An object that never changes: its identity. It may have an `__eq__` of its own."""

    def add(self, walk: "TableWalk", value: Any, at: int, depth: int) -> bool:
        walk.rows.append((self, at, walk.identity(value)))
        return True

    def guard(self, row: Row, value: Any, guard: Guard) -> bool:
        guard.same.append((guard.at(row[1]), value))
        return True


@final
class FixedKind(ValueKind):
    """A value without a place for inputs, such as a slice, a function or a frozen dataclass: its token, by
    dagpu.tracing.value_tokens. The key keeps alive what is in the token by its identity."""

    def add(self, walk: "TableWalk", value: Any, at: int, depth: int) -> bool:
        token = fixed_token(value, walk.identity)
        if token is None:
            walk.unreadable = describe_unreadable(value)
            return False
        walk.changeable = True
        walk.rows.append((self, at, token))
        return True

    def guard(self, row: Row, value: Any, guard: Guard) -> bool:
        guard.checks.append((guard.at(row[1]), self, row[2]))
        return True

    def accepts(self, value: Any, token: Any) -> bool:
        return bool(fixed_token(value, id) == token)


# ---- values with items


class Container(ValueKind):
    """A kind of containers. A row has the place of the first item and the number of the items."""

    opens = True

    def facts(self, value: Any, identity: Callable[[object], int]) -> Row | None:
        """Return what a row has of a container beside its items; None if it cannot be in a key."""
        raise NotImplementedError

    def items(self, value: Any) -> Collection[Any]:
        raise NotImplementedError

    def found_items(self, facts: Row, value: Any) -> Collection[Any] | None:
        """Return the items of a container of the same type; None if it has other facts."""
        return self.items(value) if self.facts(value, id) == facts else None

    def add(self, walk: "TableWalk", value: Any, at: int, depth: int) -> bool:
        if depth == DEEPEST:
            walk.unreadable = f"tuples, lists or dicts more than {DEEPEST} deep"
            return False
        facts = self.facts(value, walk.identity)
        if facts is None:
            walk.unreadable = describe_unreadable(value)
            return False
        items, start = self.items(value), walk.places
        walk.rows.append((self, at, start, len(items), *facts))
        walk.places = start + len(items)
        return walk.add_items(items, start, depth + 1)

    def guard(self, row: Row, value: Any, guard: Guard) -> bool:
        _, place, start, count, *facts = row
        kind = type(value)
        items = None if kind is tuple or kind is list else self.reader(tuple(facts))
        guard.inner.append((guard.at(place), kind, guard.at(start) + count, items, ..., 0))
        return True

    def reader(self, facts: Row) -> Callable[[Any], Collection[Any] | None]:
        """Return the function that returns the items of a container of the same type; None if it has other facts."""
        return partial(self.found_items, facts)

    def open(self, row: Row, values: Values) -> None:
        values.update(enumerate(self.items(values[row[1]]), row[2]))

    def close(self, row: Row, values: Values) -> None:
        _, place, start, count, *_ = row
        values[place] = rebuild(values[place], [values[each] for each in range(start, start + count)])


@final
class ItemsKind(Container):
    """A tuple, a named tuple without more than its fields, or a list: its type."""

    def add(self, walk: "TableWalk", value: Any, at: int, depth: int) -> bool:
        if depth == DEEPEST:
            return super().add(walk, value, at, depth)
        return walk.add_items(value, walk.add_tuple(value, at), depth + 1)

    def facts(self, value: Any, identity: Callable[[object], int]) -> Row | None:
        kind = type(value)
        if kind is tuple or kind is list:
            return (kind,)
        return (identity(kind),) if is_tuple(value) else None

    def items(self, value: Any) -> Collection[Any]:
        found: Collection[Any] = value
        return found


@final
class DictKind(Container):
    """A dict whose keys are plain values: its keys in order."""

    def facts(self, value: Any, identity: Callable[[object], int]) -> Row | None:
        return tuple(map(exact_token, value)) if PLAIN.issuperset(map(type, value)) else None

    def items(self, value: Any) -> Collection[Any]:
        return tuple(value.values())

    def found_items(self, facts: Row, value: Any) -> Collection[Any] | None:
        return super().found_items(facts, dict(value))  # another thread may change it meanwhile


@final
class CompositeKind(Container):
    """A value of dagpu's own that consists of others: its class, and what it has beside these."""

    def facts(self, value: Any, identity: Callable[[object], int]) -> Row | None:
        return identity(type(value)), *tokens_of(value)(identity)

    def items(self, value: Any) -> Collection[Any]:
        return items_of(value)

    def reader(self, facts: Row) -> Callable[[Any], Collection[Any] | None]:
        """See `Container.reader`. Most values are about the same object as the value before, which is immutable: so its
        facts are not made again (2 of 11 us of a call with a value on a mesh)."""
        about: Any = facts  # no value is about it

        def found_items(value: Any) -> Collection[Any] | None:
            nonlocal about
            if about_of(value) is not about:
                if self.facts(value, id) != facts:
                    return None
                about = about_of(value)
            return items_of(value)

        return found_items


# ---- values that stand for others


@final
class LeftOverKind(ValueKind):
    """A stand-in that is left over from an earlier trace counts as its number or array."""

    def add(self, walk: "TableWalk", value: Any, at: int, depth: int) -> bool:
        number_or_array: Any = replace_standins(value)
        return walk.add_value(number_or_array, at, depth)


@final
class SourceKind(ValueKind):
    """A source that a pipeline is called with. Its function gets the source itself."""

    def add(self, walk: "TableWalk", value: Any, at: int, depth: int) -> bool:
        walk.nodes.add(value)
        if not walk.add_source_value(value):
            walk.unreadable = f"a source of a value of type {type(value.get()).__name__}"
            return False
        return True


@final
class OpKind(ValueKind):
    """An op that a pipeline is called with. Its function gets the op itself."""

    def add(self, walk: "TableWalk", value: Any, at: int, depth: int) -> bool:
        return walk.add_op_argument(value, at)


HANDLE, NUMBER, ARRAY, AGAIN = HandleKind(), NumberKind(), ArrayKind(), AgainKind()
PLAIN_VALUE, NAMED, FIXED = PlainKind(), NamedKind(), FixedKind()
ITEMS, DICT, COMPOSITE = ItemsKind(), DictKind(), CompositeKind()
LEFT_OVER, SOURCE, OP = LeftOverKind(), SourceKind(), OpKind()

_KINDS: Final[dict[type[Any], ValueKind]] = {
    **dict.fromkeys(PLAIN, PLAIN_VALUE), int: NUMBER, float: NUMBER, **dict.fromkeys(HANDLES, HANDLE),
    tuple: ITEMS, list: ITEMS, dict: DICT, np.ndarray: ARRAY,
    SymbolicNumber: LEFT_OVER, SymbolicArray: LEFT_OVER, Source: SOURCE,
}  # fmt: skip
"""The kinds of the values of these types."""


def _kind_of(value: Any) -> ValueKind:
    """Return the kind of a value of another type."""
    if is_named(value):
        return NAMED
    if is_tuple(value):
        return ITEMS
    if isinstance(value, Composite):
        return COMPOSITE
    return OP if isinstance(value, DeviceOp) else FIXED


class TableWalk(Flattened):
    """The rows and leaves that a walk has collected so far, and the functions that add values to them."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Row] = []
        self.places = 0
        """The next place that no value has."""
        self.unreadable: str | None = None
        """A description of the value that cannot be in a key."""
        self.storages: dict[Storage, int] = {}
        self._numbers: dict[int, int] = {}
        """The index of each object among the leaves that was added, by its id."""

    def add_value(self, value: Any, at: int, depth: int = 0) -> bool:
        """Add a value. Return false if it cannot be in a key."""
        return (_KINDS.get(type(value)) or _kind_of(value)).add(self, value, at, depth)

    def add_items(self, items: Iterable[Any], start: int, depth: int) -> bool:
        """Add values that have the places from `start` on. Return false if one cannot be in a key."""
        for at, value in enumerate(items, start):
            if not (_KINDS.get(type(value)) or _kind_of(value)).add(self, value, at, depth):
                return False
        return True

    def add_immutable(self, value: Any, at: int, depth: int = 0, *, arrays: bool = False) -> bool:
        """Add a value that runs must return unchanged, with the same numbers, and that must be immutable. With
        `arrays` it may contain arrays, which become leaves. Return false if it cannot be added."""
        kind = type(value)
        if kind in PLAIN:
            return PLAIN_VALUE.add(self, value, at, depth)
        if kind is SymbolicNumber:
            return PLAIN_VALUE.add(self, value.number, at, depth)
        if arrays and kind is np.ndarray:
            self.add_array(value, at)
            return True
        if not is_tuple(value):
            return kind in HANDLES and HANDLE.add(self, value, at, depth)
        start = self.add_tuple(value, at)
        return depth < DEEPEST and all(
            self.add_immutable(item, place, depth + 1, arrays=arrays) for place, item in enumerate(value, start)
        )

    def add_tuple(self, value: Collection[Any], at: int) -> int:
        """Add a tuple or list without its items. Return the place of the first."""
        start, kind, count = self.places, type(value), len(value)
        self.places = start + count
        self.rows.append((ITEMS, at, start, count, kind if kind is tuple or kind is list else self.identity(kind)))
        return start

    def identity(self, value: object) -> int:
        """Return the token of an object that does not change: the token is equal to that of the same object alone."""
        self.named[id(value)] = value
        return id(value)

    def refer_to_known(self, value: Any, at: int) -> bool:
        """Return true if this object was added before; the row then has the index of its leaf. Otherwise the object
        becomes the next leaf."""
        leaf = self._numbers.setdefault(id(value), len(self.leaves))
        if leaf == len(self.leaves):
            return False
        self.rows.append((AGAIN, at, leaf))
        return True

    def add_array(self, array: "np.ndarray[Any, Any]", at: int) -> int:
        """Add an array as a leaf, and return the index of the leaf."""
        if not self.refer_to_known(array, at):
            dtype = array.dtype
            element = element_type(dtype) if dtype.metadata is None else None
            self.rows.append(
                (ARRAY, at, len(self.leaves), self.identity(dtype) if element is None else element, array.shape)
            )
            self.leaves.append(array)
        return self._numbers[id(array)]

    def add_facts(self, *facts: object) -> None:
        """Add facts that only keys can compare."""
        self.rows.append((ONLY_IN_KEY, -1, *facts))

    # ---- sources

    def _at(self) -> Snapshot:
        """Return the instant at which the run reads sources."""
        if self.snapshot is None:
            self.snapshot = Snapshot()
        return self.snapshot

    def revision(self, node: Source[Any]) -> int:
        """Return the revision of a source at the instant of the run."""
        return node.cell.history.at(self._at()).revision

    def add_revision(self, node: Source[Any]) -> None:
        """Add a source to the key, by the index of the leaf that has its revision."""
        index = self.source_leaves.setdefault(node, len(self.leaves))
        if index == len(self.leaves):
            self.leaves.append((node, self.revision(node)))
        self.add_facts("source", index)

    def add_source_value(self, node: Source[Any]) -> bool:
        """Add a source and its value: a handle, an array or a number as a leaf. Return false if it cannot be added."""
        self.changeable = True
        self.add_revision(node)
        if node in self.source_values:
            return True
        value = node.cell.history.at(self._at()).value
        kind, self.source_values[node] = type(value), -1
        if kind is not int and kind is not float and kind is not np.ndarray and kind is not SharedTensor:
            return self.add_immutable(value, -1)
        if kind is SharedTensor:
            value = value.clone()  # the run's own handle, which it may hand out
        if kind is np.ndarray and id(value) in self._numbers:
            self.source_values[node] = self._numbers[id(value)]
        else:
            self.source_values[node] = len(self.leaves)
        return self.add_value(value, -1)

    def add_op_argument(self, op: AnyOp, at: int) -> bool:
        """Add an op that a pipeline is called with. Return false if it cannot be added."""
        raise NotImplementedError


def with_standins(rows: Sequence[Row], value: Any, trace: Trace) -> Any:
    """Return a value with what a trace sees in the places of its leaves, and with containers of its own. `rows` are
    those of the value; the first is its own. Handles are taken from left to right."""
    place = rows[0][1]
    values = {place: value}
    known = []
    for row in rows:
        if row[1] in values and isinstance(row[0], (ValueKind, AgainKind)):
            known.append(row)
            row[0].put_standin(row, values, trace)
            row[0].open(row, values)
    for row in reversed(known):
        row[0].close(row, values)
    return values[place]


def guard_leaves(leaves: Sequence[Any], bindings: Sequence[LeafBinding], buffers: int) -> Guard | None:
    """Return the guard of further runs with these very leaves, which reads them as the arguments of a call. None if one
    is no handle and no number, or there is no guard. See `guard_call`."""
    walk = TableWalk()
    for at, leaf in enumerate(leaves):
        if not ((type(leaf) in HANDLES or type(leaf) in NUMBERS) and walk.add_value(leaf, at)):
            return None
    guard = Guard(walk.rows, walk.named, bindings, buffers)
    fits = len(walk.leaves) == len(leaves) and guard.fill(dict(enumerate(leaves)), 0, len(leaves))
    return guard if fits else None
