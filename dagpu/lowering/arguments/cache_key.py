"""The cache key of an op, which is equal for two ops exactly where a trace would give the same plan, and the inputs in
which runs of one plan may differ.

A key is a flat tuple of tokens, in the order of a walk that is the same for both DAGs. The walk also collects the
*leaves*, which are the inputs of a run: handles, NumPy arrays and numbers. For a handle the key has everything except
the memory, and also which leaves share that memory and whether a graph writes it. For an array it has the shape and
element type, for a number its type, `int` or `float`. All other objects are in the key themselves. A stand-in that is
left over from an earlier trace counts as its number or array.

A run that finds its plan by a key skips the checks of a trace, so tokens are exact: two are equal only where a trace
cannot distinguish their values. In Python `(2.0,)` equals `(2,)`, but only the second is a valid tile. So a plain value
is in the key with its type and its bits (`exact_token`), and an immutable object with its identity. Any other object
has no token. The walk calls no `__eq__` method of the user's.

A `Shared` or `Unzip` that has run counts as a source: the parts of its value are leaves. One that has not run is a part
of the DAG like any other node, but several nodes may use it. The `Once` that will remember its value is a leaf. One
that another run is computing has no key: a trace waits for that run.

The value of a source is a leaf, or in the key if it is no handle, array or number. The walk reads all sources at one
instant. A value that a `Shared` has remembered of sources is one of another instant as soon as one of them has changed;
the run then computes it, and it is made for the revisions of this instant.

A closure cannot be inspected, since it may read state that has changed. An op that contains one has no key, and is
traced in each run.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import Enum
from typing import Any, Final, TypeAlias, final

import numpy as np

from dagpu.common.containers import Composite, items_of, tokens_of
from dagpu.common.dtypes import element_type
from dagpu.common.origin import Origin
from dagpu.handles import HANDLES, Partition, SharedTensor, cut_of, find_live_state
from dagpu.handles.device_handles import Device, Stream
from dagpu.handles.storage import Storage
from dagpu.handles.symbolic import SymbolicArray, SymbolicNumber, replace_standins
from dagpu.lowering.arguments.exact_tokens import DEEPEST, PLAIN, exact_token, field_token, is_tuple
from dagpu.lowering.arguments.flattened import SEED_PLACE, AnyOp, CacheKey, Flattened, RememberedValue
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import (
    BUILT_IN,
    FIRST,
    LAST,
    SHARE,
    UNCUT,
    Cutoff,
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
from dagpu.ops.initializers import Constant, Normal, Recipe, Uniform
from dagpu.ops.launch import Launch
from dagpu.ops.live.source_op import Source
from dagpu.ops.live.versions import Snapshot
from dagpu.ops.single_flight import NOTHING, Once

NAMED: Final = (type, Enum, Device, np.dtype)
"""The classes of values that are in a key by their identity."""
_NUMBERS: Final = frozenset((int, float, SymbolicNumber))
"""The types of numbers that may differ between runs. A stand-in among them is left over from another trace, and counts
as its number."""
CONSTANTS: Final = frozenset(map(id, (FIRST, LAST, SHARE, UNCUT)))
"""The ids of the functions that `Map` applies in most DAGs. These objects live as long as the process, so their ids are
exact."""

_OFTEN_USED: Final = frozenset((Value, Shared, Source, Cutoff))
"""The nodes that a DAG may use any number of times."""

_PLACELESS: Final = frozenset((Value, Source, Then))
"""The nodes whose places are not in the key. Plans name the places of all other ops, so DAGs that other code built get
plans of their own. A plan does not contain the places of values and of calls of pipelines."""

_NOWHERE: Final = (None, -1)
"""The place of an op that has none."""

MOST_NODES: Final = 20_000
"""The most nodes of a DAG that gets a key. For a larger DAG, the walk that makes the key takes too long for a cached
plan to be worthwhile."""


Refused: TypeAlias = Callable[[Any, Origin, str], None]
"""A function that is called for an argument that no key can hold: with the pipeline, the place of its call, and a
description of the value."""


def flatten_op(op: AnyOp, most: int = MOST_NODES, refused: Refused | None = None) -> Flattened | None:
    """Return the leaves and the key of a DAG; None if it has no key, or more than `most` nodes."""
    reader = _Reader(most)
    if reader.add_dag(op):
        reader.finish()
        return reader
    if refused is not None and reader.refused is not None:
        refused(*reader.refused)
    return None


@final
class _Reader(Flattened):
    """The walk over one DAG, which collects its tokens and its leaves."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self._tokens: list[Any] = []
        self.refused: tuple[Any, Origin, str] | None = None
        """The pipeline with an argument that cannot be in a key, the place of its call, and a description of the
        value."""
        self._unreadable: str | None = None
        self._numbers: dict[int, int] = {}
        self._storages: dict[Storage, int] = {}
        self._splits: dict[Once, int] = {}
        """The number of each source whose components every run takes itself."""

    def finish(self) -> None:
        """Make the key, and drop what only the walk needs. The run must not keep memory that it moves elsewhere."""
        self.key = CacheKey(tuple(self._tokens))
        self._tokens.clear()
        self._storages.clear()
        self._splits.clear()

    # ---- values

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
        elif isinstance(value, NAMED):
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
        else:
            keys = " whose keys are not all numbers and texts" if kind is dict else ""
            self._unreadable = f"a value of type {kind.__name__}{keys}"
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

    def _add_source_argument(self, node: Source[Any]) -> bool:
        """Add a source that a pipeline is called with: its function gets the source itself. Return false if it cannot
        be added."""
        self.nodes.add(node)
        if not self._add_source_value(node):
            self._unreadable = f"a source of a value of type {type(node.get()).__name__}"
            return False
        self.source_ends.setdefault(node, len(self.leaves))
        return True

    # ---- DAGs

    def add_dag(self, root: AnyOp) -> bool:
        """Add a DAG: each node, then its sources, the last one first. Return false if it cannot have a key."""
        todo: list[AnyOp] = [root]
        seen = self.nodes
        while todo:
            op = todo.pop()
            if len(seen) == self._most or (op in seen and type(op) not in _OFTEN_USED):
                return False
            seen.add(op)
            kind = type(op)
            self._tokens.append(kind)
            if kind not in _PLACELESS or (type(op) is Then and op.f is from_host):
                code, at = op.origin or _NOWHERE
                self.named[id(code)] = code
                self._tokens += (id(code), at)
            if (kind is Launch or kind is Map or not self._add_source(op)) and not self._add_inner_node(op, todo):
                return False
        return True

    def _add_source(self, op: AnyOp) -> bool:
        """Add an op without sources. Return false for any other op, and for an op that cannot be inspected."""
        match op:
            case Source():
                return self._add_source_value(op)
            case Then(source=Source() as source, f=f) if f is from_host:
                self._tokens.append("from_host")
                self.nodes.add(source)
                return self._add_source_value(source)
            case Value(content=held):
                return self._add_immutable(held)
            case Then(source=Value(content=arguments) as source, f=Pure() as owner):
                self.nodes.add(source)
                self.owners.append(owner)
                self._tokens.append(owner.number)
                self.argument_starts[id(source)] = len(self.leaves)
                found = self.add_value(arguments)
                if self._unreadable is not None:
                    self.refused = owner, op.origin, self._unreadable
                return found
            case GraphLaunch(captured=captured):
                self.graphs.append(captured)
                self._add_leaf(captured, captured.number)
                return True
            case Alloc(shape=shape, dtype=dtype, recipe=recipe):
                self._tokens += (shape, dtype)
                if isinstance(recipe, Uniform | Normal) and type(recipe.seed) in _NUMBERS:
                    self.number_leaves[id(op), SEED_PLACE] = len(self.leaves)
                    self.add_value(recipe.seed)
                    recipe = replace(recipe, seed=None)
                return self._add_recipe(recipe)
            case FromHost(array=given) if type(array := _unwrapped_array(given)) is np.ndarray:
                self._add_array(array)
                self.array_leaves[id(op)] = self._numbers[id(array)]
                return True
            case Copy(source=source, into=into, dtype=dtype):
                self._tokens.append(dtype)
                if type(source) is Constant:
                    return self._add_recipe(source) and self.add_value(into)
                return self.add_value(source) and (into is None or self.add_value(into))
            case _:
                return False

    def _add_inner_node(self, op: AnyOp, todo: list[AnyOp]) -> bool:
        """Add an op with sources, and put the sources on `todo`. Return false if it cannot be added."""
        match op:
            case Launch():
                return self._add_launch(op, todo)
            case Map(source=source, f=f) if type(f) in BUILT_IN:
                todo.append(source)
                if id(f) not in CONSTANTS:
                    return self._add_fields(f)
                self._tokens.append(id(f))
            case ToHost(source=source) | Cutoff(source=source):
                todo.append(source)
            case On(source=source, place=Stream() as stream):
                self.streams = True
                self._tokens += (self._identity_token(stream.device), stream.lane)
                todo.append(source)
            case On(source=source, place=Device() as place):
                self._tokens += ("named", self._identity_token(place))
                todo.append(source)
            case On(source=source, place=place) if type(place) is str:  # a user-defined policy may change
                self._tokens.append(place)
                todo.append(source)
            case Zip(sources=sources):
                self._tokens.append(len(sources))
                todo += sources
            case Shared():
                return self._add_remembered(op, op.source, todo)
            case Unzip(split=split) if split.in_each_run:
                if split.once not in self._splits:
                    self._splits[split.once] = len(self._splits)
                    todo.append(split.source)
                self._tokens += (self._splits[split.once], op.index)
            case Unzip():
                return self._add_remembered(op, op.split.source, todo)
            case _:
                return False
        return True

    def _add_remembered(self, node: Shared[Any] | Unzip[Any], source: AnyOp, todo: list[AnyOp]) -> bool:
        """Add an op that remembers its value: with the value if it has run, else with its source, which is put on
        `todo` for the first use. Return false if it cannot be added."""
        once = node.once
        found = self.remembered.get(once)
        if found is None:
            value, made_for = once.remembered()
            if value is not NOTHING and made_for:
                self.changeable = True
                if any(self._revision(each) != revision for each, revision in made_for.items()):
                    once.expire(value)
                    value, made_for = NOTHING, {}
            if value is NOTHING:
                made_for = {}
                if not once.settled():
                    return False
            elif made_for:
                if type(node) is Unzip:
                    return False  # a run that takes a component must find those of its own instant
                self._tokens += ("made for", len(made_for))
                for each in made_for:
                    self._add_revision(each)
            found = self.remembered[once] = RememberedValue(value, len(self.leaves), made_for)
            if value is NOTHING:
                self.changeable = True
                if type(node) is Unzip:
                    found.alive = tuple([taker() is not None for taker in node.split.takers])
                self._add_leaf(once, found.alive)
                todo.append(source)
        found.uses += 1
        if type(node) is Unzip:
            found.components.add(node.index)
            self._tokens.append(node.index)
        if found.value is NOTHING:
            self._tokens += ("computed", found.leaf)
            return True
        if type(node) is not Unzip:
            return self._add_immutable(found.value, arrays=True)
        self._add_leaf(node, "taken")
        component = found.value[node.index]
        return type(component) is not Taken and self._add_immutable(component, arrays=True)

    def _add_launch(self, launch: Launch, todo: list[AnyOp]) -> bool:
        """Add a launch with its arguments, and put the ops among them on `todo`. Return false if an argument cannot be
        added."""
        spec = launch.kernel
        # The host body identifies the kernel: copies that `kernel.grid(...)` and similar calls make share it.
        self._tokens += (spec.host, spec.grid, spec.block, spec.shared_bytes)
        for place, argument in enumerate(launch.args):
            if isinstance(argument, DeviceOp):
                self._tokens.append("op")
                todo.append(argument)
                continue
            if type(argument) in _NUMBERS:
                self.number_leaves[id(launch), place] = len(self.leaves)
            if not self.add_value(argument):
                return False
        return True

    def _add_recipe(self, recipe: Recipe | None) -> bool:
        """Add the contents that a creation op writes. Return false if they cannot be added."""
        if recipe is None:
            self._tokens.append(None)
            return True
        return self._add_fields(recipe)


def _unwrapped_array(array: Any) -> Any:
    """Return the array itself, also for the stand-in of an earlier trace."""
    return array.source if type(array) is SymbolicArray else array
