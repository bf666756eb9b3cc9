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

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeAlias, final

import numpy as np

from dagpu.common.places import Origin
from dagpu.handles import OWNING
from dagpu.handles.device_handles import Device, Stream
from dagpu.handles.symbolic import SymbolicArray
from dagpu.lowering.arguments.flattened import SEED_PLACE, AnyOp, CacheKey, Flattened, RememberedValue
from dagpu.lowering.arguments.value_tokens import NUMBERS, ValueReader
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
from dagpu.ops.single_flight import NOTHING, Once
from dagpu.ops.source_op import Source
from dagpu.ops.versions import Snapshot

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


def flatten_op(
    op: AnyOp, most: int = MOST_NODES, refused: Refused | None = None, instant: Snapshot | None = None
) -> Flattened | None:
    """Return the leaves and the key of a DAG; None if it has no key, or more than `most` nodes. The run reads sources
    at `instant`, if that is given."""
    reader = _DagReader(most)
    reader.snapshot = instant
    if reader.add_dag(op):
        reader.finish()
        return reader
    if refused is not None and reader.refused is not None:
        refused(*reader.refused)
    return None


@final
class _DagReader(ValueReader):
    """The walk over one DAG, which collects its tokens and its leaves."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self.refused: tuple[Any, Origin, str] | None = None
        """The pipeline with an argument that cannot be in a key, the place of its call, and a description of the
        value."""
        self._splits: dict[Once, int] = {}
        """The number of each source whose components every run takes itself."""

    def finish(self) -> None:
        """Make the key, and drop what only the walk needs. The run must not keep memory that it moves elsewhere."""
        self.key = CacheKey(tuple(self._tokens))
        self._tokens.clear()
        self._storages.clear()
        self._splits.clear()

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

    def _add_op_argument(self, op: AnyOp) -> bool:
        before, known = len(self.leaves), set(self.remembered)
        self._tokens.append("op")
        self._unreadable = f"{op!r}, which holds a function or a tensor of its own"
        if not self.add_dag(op) or any(type(leaf) in OWNING for leaf in self.leaves[before:]):
            return False
        self._unreadable = None
        for once in self.remembered.keys() - known:
            self.remembered[once].uses = sys.maxsize  # the function may use it any number of times
        self.op_arguments.setdefault(op, (before, len(self.leaves)))
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
                if isinstance(recipe, Uniform | Normal) and type(recipe.seed) in NUMBERS:
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
            if type(argument) in NUMBERS:
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
