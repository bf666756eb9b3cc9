"""The cache key of an op, which is equal for two ops exactly where a trace would give the same plan, and the inputs in
which runs of one plan may differ.

A key is a table: rows in the order of a walk that is the same for both DAGs (dagpu.tracing.value_kinds has
those of values). The walk also collects the *leaves*, which are the inputs of a run: handles, NumPy arrays and numbers.
For a handle the key has everything except the memory, and also which leaves share that memory and whether a graph
writes it. For an array it has the shape and element type, for a number its type, `int` or `float`. All other objects
are in the key themselves. A stand-in that is left over from an earlier trace counts as its number or array.

A run that finds its plan by a key skips the checks of a trace, so rows are exact: two are equal only where a trace
cannot distinguish their values. In Python `(2.0,)` equals `(2,)`, but only the second is a valid tile. So a plain value
is in the key with its type and its bits (`exact_token`), and an immutable object with its identity. Any other object
has no row. The walk calls no `__eq__` method of the user's.

A `Shared` or `Unzip` that has run counts as a source: the parts of its value are leaves. One that has not run is a part
of the DAG like any other node, but several nodes may use it. The `Once` that will remember its value is a leaf. One
that another run is computing has no key: a trace waits for that run.

The value of a source is a leaf, or in the key if it is no handle, array or number. The walk reads all sources at one
instant. A value that a `Shared` has remembered of sources is one of another instant as soon as one of them has changed;
the run then computes it, and it is made for the revisions of this instant.

A closure cannot be inspected, since it may read state that has changed. An op that contains one has no key, and is
traced in each run. One of dagpu's own, which chooses a kernel by the layouts of results (`ByResults`), reads what it
closes over alone: that is in the key.
"""

import sys
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Final, TypeAlias, final

import numpy as np

from dagpu.common.env_vars import CHECKED
from dagpu.common.places import Origin
from dagpu.handles import OWNING
from dagpu.handles.device_handles import Device, Stream
from dagpu.handles.symbolic import SymbolicArray
from dagpu.kernels.operators import Fusion
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import (
    BUILT_IN,
    FIRST,
    LAST,
    SHARE,
    UNCUT,
    ByResults,
    Cutoff,
    Launch,
    Map,
    On,
    Pure,
    Shared,
    Taken,
    Then,
    ToHost,
    Unzip,
    Value,
    Zip,
)
from dagpu.ops.creation import Alloc, Copy, FromHost, from_host
from dagpu.ops.graph import GraphLaunch
from dagpu.ops.initializers import Constant, Normal, Uniform
from dagpu.ops.single_flight import NOTHING, Once
from dagpu.ops.source_op import Source
from dagpu.ops.versions import Snapshot
from dagpu.tracing.call_guard import Guard
from dagpu.tracing.flattened import SEED_PLACE, AnyOp, CacheKey, Flattened, RememberedValue, Row
from dagpu.tracing.value_kinds import ITEMS, NAMED, NUMBERS, PLAIN_VALUE, Kind, TableWalk, Values
from dagpu.tracing.value_tokens import field_token, fixed_token

_CONSTANTS: Final = frozenset(map(id, (FIRST, LAST, SHARE, UNCUT)))
"""The ids of the functions that `Map` applies in most DAGs. These objects live as long as the process, so their ids are
exact."""

_OFTEN_USED: Final = frozenset((Value, Shared, Source, Cutoff))
"""The nodes that a DAG may use any number of times."""

_NOWHERE: Final = (None, -1)
"""The place of an op that has none."""

MOST_NODES: Final = 20_000
"""The most nodes of a DAG that gets a key. For a larger DAG, the walk that makes the key takes too long for a cached
plan to be worthwhile."""


Refused: TypeAlias = Callable[[Any, Origin, str], None]
"""A function that is called for an argument that no key can hold: with the pipeline, the place of its call, and a
description of the value."""


def flatten_op(
    op: AnyOp, most: int = MOST_NODES, refused: Refused | None = None, instant: Snapshot | None = None
) -> Flattened | None:
    """Return the leaves and the key of a DAG; None if it has no key, or more than `most` nodes. The run reads sources
    at `instant`, if that is given."""
    walk = _DagWalk(most)
    walk.snapshot = instant
    walk.places = 2  # a guard has the op at place 0, and the keyword arguments of a call at place 1
    # A call of a pipeline under such a function has a plan of its own, which serves any kernel above it.
    if walk.add_dag(op, 0) and not (walk.chooses and walk.owners):
        walk.key = CacheKey(tuple(walk.rows))
        for what in (walk.rows, walk.storages, walk.splits):  # the run must not keep memory that it moves elsewhere
            what.clear()
        return walk
    if refused is not None and walk.refused is not None:
        refused(*walk.refused)
    return None


# ---- rows of nodes and of what they hold


class _Fields(Kind):
    """A kind of objects with fields. A row has the place of the first field, and the type."""

    opens = True

    def open(self, row: Row, values: Values) -> None:
        _, place, start, kind, *_ = row
        values.update(enumerate(_getter(kind)(values[place]), start))

    def _guard_fields(self, row: Row, guard: Guard, code: object, offset: int) -> None:
        _, place, start, kind, *_ = row
        end = guard.at(start) + len(_names_of(kind))
        guard.inner.append((guard.at(place), kind, end, _getter(kind), code, offset))


def _names_of(kind: Any) -> tuple[str, ...]:
    """Return the names of the fields of a node or of a record. The place of a node in the code is in its own row."""
    return tuple([name for name in kind.__slots__ if name != "origin"])


def _getter(kind: Any) -> Callable[[Any], tuple[Any, ...]]:
    """Return the function that returns the fields."""
    names = _names_of(kind)
    if len(names) > 1:
        return attrgetter(*names)
    return lambda record: tuple([getattr(record, name) for name in names])


@final
class NodeKind(_Fields):
    """A node: its type, and its place in the code. Equal code objects are not the same place. Plans name the places of
    ops, so DAGs that other code built get plans of their own. A plan does not contain the places of values."""

    def guard(self, row: Row, value: Any, guard: Guard) -> bool:
        _, place, _, kind, code, offset = row
        at = guard.at(place)
        if kind is Value:
            self._guard_fields(row, guard, ..., 0)
        else:
            self._guard_fields(row, guard, guard.named(code), offset)
            guard.alike.setdefault((kind, code, offset), []).append(at)
        return True


@final
class RecordKind(_Fields):
    """One of dagpu's own dataclasses, which holds what the user gave: plain values, and tuples of these. A field with a
    row of its own has an ellipsis."""

    def guard(self, row: Row, value: Any, guard: Guard) -> bool:
        _, _, start, _, *tokens = row
        self._guard_fields(row, guard, ..., 0)
        guard.checks += [(at, self, token) for at, token in enumerate(tokens, guard.at(start)) if token is not ...]
        return True

    def accepts(self, value: Any, token: Any) -> bool:
        return bool(field_token(value) == token)


@final
class KernelKind(Kind):
    """A declaration of a kernel: its body, grid, block and shared memory. Copies that `kernel.grid(...)` and similar
    calls make share the body."""

    def guard(self, row: Row, value: Any, guard: Guard) -> bool:
        guard.checks.append((guard.at(row[1]), self, value))
        return True

    def accepts(self, value: Any, spec: Any) -> bool:
        return value is spec or (
            value.host is spec.host
            and value.grid == spec.grid
            and value.block == spec.block
            and value.shared_bytes == spec.shared_bytes
        )


@final
class EqualKind(Kind):
    """A shape or an element type of dagpu's own making."""

    def guard(self, row: Row, value: Any, guard: Guard) -> bool:
        guard.checks.append((guard.at(row[1]), self, row[2]))
        return True

    def accepts(self, value: Any, wanted: Any) -> bool:
        return bool(value == wanted)


NODE, RECORD, KERNEL, EQUAL = NodeKind(), RecordKind(), KernelKind(), EqualKind()


# ---- the walk


@final
class _DagWalk(TableWalk):
    """The walk over one DAG, which collects its rows and its leaves."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self.refused: tuple[Any, Origin, str] | None = None
        """The pipeline with an argument that cannot be in a key, the place of its call, and a description of the
        value."""
        self.chooses = False
        """True if a function of dagpu's builds a part of the op of results."""
        self.splits: dict[Once, int] = {}
        """The number of each source whose components every run takes itself."""
        self._todo: list[tuple[AnyOp, int]] = []
        """The ops that come next, the last one first, with their places."""

    def add_dag(self, root: AnyOp, at: int) -> bool:
        """Add a DAG: each node, then its sources, the last one first. Return false if it cannot have a key."""
        todo, before, seen = self._todo, len(self._todo), self.nodes
        todo.append((root, at))
        while len(todo) > before:
            op, place = todo.pop()
            kind = type(op)
            if len(seen) == self._most or (op in seen and kind not in _OFTEN_USED):
                return False
            seen.add(op)
            add = _NODES.get(kind)
            if add is None or not add(self, op, place):
                return False
        return True

    def add_op_argument(self, op: AnyOp, at: int) -> bool:
        before, known, chooses = len(self.leaves), set(self.remembered), self.chooses
        self.unreadable = f"{op!r}, which holds a function or a tensor of its own"
        if not self.add_dag(op, at) or any(type(leaf) in OWNING for leaf in self.leaves[before:]):
            return False
        self.unreadable, self.chooses = None, chooses
        for once in self.remembered.keys() - known:
            self.remembered[once].uses = sys.maxsize  # the function may use it any number of times
        return True

    def _open_node(self, op: AnyOp, at: int, fields: int) -> int:
        """Add a node with this number of fields. Return the place of the first."""
        code, offset = op.origin or _NOWHERE
        token = id(code)
        self.named[token] = code
        start = self.places
        self.places = start + fields
        self.rows.append((NODE, at, start, type(op), token, offset))
        return start

    def _add_place(self, op: AnyOp, *facts: object) -> None:
        """Add a node that only keys can compare."""
        code, offset = op.origin or _NOWHERE
        self.named[id(code)] = code
        self.add_facts(type(op), id(code), offset, *facts)

    def _add_record(self, record: Any, at: int, own: str | None = None) -> int | None:
        """Add one of dagpu's own dataclasses, whose field `own` has a row of its own. Return the place of that, or of
        the first field; None if it holds anything but plain values, and tuples of these: a trace raises the error for
        it."""
        names, tokens = record.__slots__, list[object]()
        for name in names:
            token = ... if name == own else field_token(getattr(record, name))
            if token is None:
                return None
            tokens.append(token)
        start = self.places
        self.places = start + len(names)
        self.rows.append((RECORD, at, start, type(record), *tokens))
        return start if own is None else start + names.index(own)

    # ---- nodes that a guard can compare

    def add_launch(self, launch: Launch, at: int) -> bool:
        start = self._open_node(launch, at, 2)
        spec, args = launch.kernel, launch.args
        self.rows.append((KERNEL, start, spec.host, spec.grid, spec.block, spec.shared_bytes))
        first = self.places
        self.places = first + len(args)
        self.rows.append((ITEMS, start + 1, first, len(args), tuple))
        for number, argument in enumerate(args):
            if isinstance(argument, DeviceOp):
                self._todo.append((argument, first + number))
                continue
            if type(argument) in NUMBERS:
                self.number_leaves[id(launch), number] = len(self.leaves)
            if not self.add_value(argument, first + number):
                return False
        return True

    def add_map(self, op: Map[Any], at: int) -> bool:
        f = op.f
        if type(f) not in BUILT_IN:
            return False
        start = self._open_node(op, at, 2)
        self._todo.append((op.source, start))
        if id(f) in _CONSTANTS:
            self.named[id(f)] = f
            self.rows.append((NAMED, start + 1, id(f)))
            return True
        return self._add_record(f, start + 1) is not None

    def add_to_host(self, op: ToHost[Any], at: int) -> bool:
        self._todo.append((op.source, self._open_node(op, at, 1)))
        return True

    def add_on(self, op: On[Any], at: int) -> bool:
        start, place = self._open_node(op, at, 2), op.place
        self._todo.append((op.source, start))
        if isinstance(place, Stream):
            self.streams = True
            self.add_facts(self.identity(place.device), place.lane)
            return True
        if isinstance(place, Device):
            return NAMED.add(self, place, start + 1, 0)
        return type(place) is str and PLAIN_VALUE.add(self, place, start + 1, 0)  # a user-defined policy may change

    def add_zip(self, op: Zip[Any], at: int) -> bool:
        first = self.add_tuple(op.sources, self._open_node(op, at, 1))
        self._todo += [(source, place) for place, source in enumerate(op.sources, first)]
        return True

    def add_held(self, op: Value[Any], at: int) -> bool:
        start = self.places
        self.places += 1
        self.rows.append((NODE, at, start, Value, None, -1))
        return self.add_immutable(op.content, start)

    def add_alloc(self, op: Alloc[Any], at: int) -> bool:
        start, recipe = self._open_node(op, at, 3), op.recipe
        self.rows += ((EQUAL, start, op.shape), (EQUAL, start + 1, op.dtype))
        if recipe is None:
            return PLAIN_VALUE.add(self, None, start + 2, 0)
        if not isinstance(recipe, Uniform | Normal) or type(recipe.seed) not in NUMBERS:
            return self._add_record(recipe, start + 2) is not None
        seed = self._add_record(recipe, start + 2, "seed")
        self.number_leaves[id(op), SEED_PLACE] = len(self.leaves)
        return seed is not None and self.add_value(recipe.seed, seed)

    def add_from_host(self, op: FromHost[Any], at: int) -> bool:
        array: Any = op.array
        if type(array) is SymbolicArray:  # left over from an earlier trace
            array = array.source
        if type(array) is not np.ndarray:
            return False
        self.array_leaves[id(op)] = self.add_array(array, self._open_node(op, at, 1))
        return True

    def add_copy(self, op: Copy[Any], at: int) -> bool:
        start = self._open_node(op, at, 3)
        self.rows.append((EQUAL, start + 2, op.dtype))
        if type(op.source) is Constant:
            added = self._add_record(op.source, start) is not None
        else:
            added = self.add_value(op.source, start)
        return added and self.add_value(op.into, start + 1)

    # ---- nodes that only keys can compare

    def add_source(self, op: Source[Any], at: int) -> bool:
        self.add_facts(Source)
        return self.add_source_value(op)

    def add_call(self, op: Then[Any], at: int) -> bool:
        """Add the call of a pipeline, or the tensor of a source."""
        source, f = op.source, op.f
        if isinstance(source, Source) and f is from_host:
            self._add_place(op)
            self.nodes.add(source)
            return self.add_source_value(source)
        if isinstance(f, ByResults):
            return self._add_choice(op, f)
        if not isinstance(source, Value) or not isinstance(f, Pure):
            return False
        self.nodes.add(source)
        self.owners.append(f)
        self.add_facts(Then, f.number)
        first, place = len(self.rows), self.places
        self.places += 1
        found = self.add_value(source.content, place)
        self.calls[id(source)] = slice(first, len(self.rows))
        if self.unreadable is not None:
            self.refused = f, op.origin, self.unreadable
        return found

    def _add_choice(self, op: Then[Any], f: ByResults) -> bool:
        """Add an op that a function of dagpu's builds of results: the rows of its sources show their layouts."""
        token = f.f.nodes if isinstance(f.f, Fusion) else fixed_token(f.f, self.identity)
        if token is None or any(each in self.nodes for each in f.folded):
            return False
        self.nodes.update(f.folded)
        self.chooses = True
        self._add_place(op, token, CHECKED.get())
        for number, value in enumerate(f.numbers):
            if type(value) in NUMBERS:
                self.number_leaves[id(op), number] = len(self.leaves)
            if not self.add_value(value, -1):
                return False
        self._todo.append((op.source, -1))
        return True

    def add_graph(self, op: GraphLaunch, at: int) -> bool:
        captured = op.captured
        self._add_place(op, captured.number)
        self.graphs.append(captured)
        self.leaves.append(captured)
        return True

    def add_cutoff(self, op: Cutoff[Any], at: int) -> bool:
        self._add_place(op)
        self._todo.append((op.source, -1))
        return True

    def add_shared(self, op: Shared[Any], at: int) -> bool:
        self._add_place(op)
        return self._add_remembered(op, op.source)

    def add_unzip(self, op: Unzip[Any], at: int) -> bool:
        self._add_place(op)
        split = op.split
        if not split.in_each_run:
            return self._add_remembered(op, split.source)
        if split.once not in self.splits:
            self.splits[split.once] = len(self.splits)
            self._todo.append((split.source, -1))
        self.add_facts(self.splits[split.once], op.index)
        return True

    def _is_stale(self, made_for: Mapping[Any, int]) -> bool:
        return any(self.revision(each) != revision for each, revision in made_for.items())

    def _add_remembered(self, node: Shared[Any] | Unzip[Any], source: AnyOp) -> bool:
        """Add an op that remembers its value: with the value if it has run, else with its source, which comes next for
        the first use. Return false if it cannot be added."""
        once = node.once
        found = self.remembered.get(once)
        if found is None:
            value, made_for = once.find(self._is_stale)
            if value is NOTHING:
                if not once.settled():
                    return False
            elif made_for:
                self.changeable = True
                if type(node) is Unzip:
                    return False  # a run that takes a component must find those of its own instant
                self.add_facts("made for", len(made_for))
                for each in made_for:
                    self.add_revision(each)
            found = self.remembered[once] = RememberedValue(value, len(self.leaves), made_for)
            if value is NOTHING:
                self.changeable = True
                if type(node) is Unzip:
                    found.alive = tuple([taker() is not None for taker in node.split.takers])
                self.add_facts(found.alive)
                self.leaves.append(once)
                self._todo.append((source, -1))
        found.uses += 1
        if type(node) is Unzip:
            found.components.add(node.index)
            self.add_facts(node.index)
        if found.value is NOTHING:
            self.add_facts("computed", found.leaf)
            return True
        if type(node) is not Unzip:
            return self.add_immutable(found.value, -1, arrays=True)
        self.add_facts("taken")
        self.leaves.append(node)
        component = found.value[node.index]
        return type(component) is not Taken and self.add_immutable(component, -1, arrays=True)


_NODES: Final[dict[type[Any], Callable[[_DagWalk, Any, int], bool]]] = {
    Alloc: _DagWalk.add_alloc, Copy: _DagWalk.add_copy, Cutoff: _DagWalk.add_cutoff, FromHost: _DagWalk.add_from_host,
    GraphLaunch: _DagWalk.add_graph, Launch: _DagWalk.add_launch, Map: _DagWalk.add_map, On: _DagWalk.add_on,
    Shared: _DagWalk.add_shared, Source: _DagWalk.add_source, Then: _DagWalk.add_call, ToHost: _DagWalk.add_to_host,
    Unzip: _DagWalk.add_unzip, Value: _DagWalk.add_held, Zip: _DagWalk.add_zip,
}  # fmt: skip
"""The method that adds a node, by the kind of the node. Other nodes have no key: they call functions of the user's."""
