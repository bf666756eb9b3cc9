"""The guard of a plain op's plan: a table that tests whether an op has the key of an earlier op, and binds its leaves.

A loop builds its op again in each round, always in the same place of the code. To make the key of such an op
(dagpu.lowering.arguments.cache_key) takes longer than to launch it. The guard compares what the key contains, node by
node in the order of the key, in a fifth of the time. If it refuses, the key decides.

A row has the fields of a node that the key depends on, each with a row of its own (dagpu.lowering.arguments.
call_guard). A DAG with another node, such as one that remembers its value or calls a function, has no guard.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, final

import numpy as np

from dagpu.common.frozen import plain
from dagpu.common.places import Origin
from dagpu.handles import HANDLES
from dagpu.handles.device_handles import Device
from dagpu.lowering.arguments.cache_key import CONSTANTS
from dagpu.lowering.arguments.call_guard import (
    ArgumentWalk,
    ItemsRow,
    LeafBinding,
    Reading,
    Structure,
    TokenRow,
    ValueTable,
)
from dagpu.lowering.arguments.exact_tokens import DEEPEST, PLAIN, field_token
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import BUILT_IN, Map, On, ToHost, Value, Zip
from dagpu.ops.creation import Alloc, Copy, FromHost
from dagpu.ops.initializers import Constant, Normal, Uniform
from dagpu.ops.kernel_spec import KernelSpec
from dagpu.ops.launch import Launch

Fields: TypeAlias = tuple[tuple[str, Structure], ...]
"""The names of attributes, with the structures of their values."""


@final
class FoundValues(list[Any]):
    """The values that are found in a DAG, and the ops whose rows come next, the last one first."""

    __slots__ = ("todo",)

    def __init__(self, root: object) -> None:
        super().__init__()
        self.todo = [root]


@final
class OneOp:
    """The structure of an op, whose own row comes later."""

    __slots__ = ()

    def find(self, value: Any, values: Any) -> bool:
        values.todo.append(value)
        return True

    def __repr__(self) -> str:
        return "op"


ONE_OP: Final = OneOp()


@final
@plain
class SameRow:
    """Accepts one object."""

    value: object

    def find(self, value: Any, values: list[Any]) -> bool:
        return value is self.value


@final
@plain
class EqualRow:
    """Accepts an equal shape or element type."""

    value: object

    def find(self, value: Any, values: list[Any]) -> bool:
        return bool(value == self.value)


@final
@plain
class KernelRow:
    """Accepts a declaration with the same body, grid, block and shared memory."""

    spec: KernelSpec

    def find(self, value: Any, values: list[Any]) -> bool:
        mine = self.spec
        return value is mine or (
            value.host is mine.host
            and value.grid == mine.grid
            and value.block == mine.block
            and value.shared_bytes == mine.shared_bytes
        )


@final
@plain
class RecordRow:
    """Accepts one of dagpu's own dataclasses whose fields are accepted."""

    kind: type[Any]
    fields: Fields

    def find(self, value: Any, values: list[Any]) -> bool:
        if type(value) is not self.kind:
            return False
        for name, row in self.fields:  # noqa: SIM110  # a generator takes twice as long
            if not row.find(getattr(value, name), values):
                return False
        return True


@final
@plain
class NodeRow:
    """Accepts a node of this kind, from this place of the code, whose fields are accepted. Equal code objects are not
    the same place. A plan does not contain the places of values, so theirs is an ellipsis."""

    kind: type[Any]
    origin: Any
    fields: Fields

    def find(self, value: Any, values: FoundValues) -> bool:
        if type(value) is not self.kind:
            return False
        mine = self.origin
        if mine is not ...:
            origin = value.origin
            if origin is None or mine is None:
                if origin is not mine:
                    return False
            elif origin[0] is not mine[0] or origin[1] != mine[1]:
                return False
        for name, row in self.fields:
            if row is ONE_OP:
                values.todo.append(getattr(value, name))
            elif type(row) is SameRow:
                if getattr(value, name) is not row.value:
                    return False
            elif not row.find(getattr(value, name), values):
                return False
        return True


@final
@plain
class DagGuard:
    """The table of one op: its nodes, as far as plans depend on them. Make it with `guard_dag`."""

    nodes: tuple[NodeRow, ...]
    alike: tuple[tuple[int, ...], ...]
    """The nodes of one kind and place, which only can be one node. A node that is used twice has no key."""
    table: ValueTable

    def read(self, op: Any, _named: object = ()) -> Reading | None:
        """Read another op. Return None if it has another key; if a handle has been moved or has no memory; or if a
        number does not fit."""
        values = FoundValues(op)
        todo, seen = values.todo, []
        for row in self.nodes:
            node = todo.pop()
            if not row.find(node, values):
                return None
            seen.append(node)
        for places in self.alike:
            if len({id(seen[at]) for at in places}) != len(places):
                return None
        return self.table.read(values)

    def __str__(self) -> str:
        nodes = [
            f"{row.kind.__name__}({', '.join(f'{name}={each}' for name, each in row.fields)})" for row in self.nodes
        ]
        return "\n".join([*nodes, *[f"  {number}: {row}" for number, row in enumerate(self.table.rows)]])


def guard_dag(op: Any, leaves: Sequence[Any], bindings: Sequence[LeafBinding], buffers: int = 0) -> DagGuard | None:
    """Return the guard of ops of the structure of `op`; None if it has none. `leaves` are its leaves, and `bindings`
    has the use of each in a program of this number of `buffers`."""
    walk = _DagWalk(bindings)
    found = walk.guard_dag(op)
    if found is None or list(map(id, walk.values.leaves)) != list(map(id, leaves)):
        return None
    return DagGuard(*found, ValueTable(walk.values.rows, buffers))


class _NoGuardError(Exception):
    """Raised for a node without a guard."""


@final
class _DagWalk:
    """The walk over the op that is guarded. Each method of a node returns the rows of its fields."""

    def __init__(self, bindings: Sequence[LeafBinding]) -> None:
        self.values = ArgumentWalk(bindings)
        self._todo: list[Any] = []

    def guard_dag(self, root: Any) -> tuple[tuple[NodeRow, ...], tuple[tuple[int, ...], ...]] | None:
        """Return the nodes of a guard: each node, then its sources, the last one first."""
        self._todo.append(root)
        rows: list[NodeRow] = []
        places: dict[tuple[type[Any], Origin], list[int]] = {}
        seen: set[Any] = set()
        while self._todo:
            op = self._todo.pop()
            kind = type(op)
            fields = _FIELDS.get(kind)
            if fields is None or (op in seen and kind is not Value):
                return None
            seen.add(op)
            if kind is not Value:
                places.setdefault((kind, op.origin), []).append(len(rows))
            try:
                rows.append(NodeRow(kind, ... if kind is Value else op.origin, fields(self, op)))
            except _NoGuardError:
                return None
        return tuple(rows), tuple([tuple(each) for each in places.values() if len(each) > 1])

    def _value(self, value: Any) -> Structure:
        """Return the structure of a handle, an array, a number or another argument."""
        row = self.values.guard(value)
        if row is None:
            raise _NoGuardError
        return row

    def _immutable(self, value: Any, depth: int = 0) -> Structure:
        """Return the structure of a value whose numbers are in the key."""
        kind = type(value)
        if kind in PLAIN:
            return TokenRow(kind, value)
        if kind is tuple and depth < DEEPEST:
            return ItemsRow(tuple, tuple([self._immutable(each, depth + 1) for each in value]), None)
        if kind in HANDLES:
            return self._value(value)
        raise _NoGuardError

    def _record(self, record: Any, *, seed: bool = False) -> Structure:
        """Return the structure of one of dagpu's own dataclasses, whose fields hold plain values, and tuples of these.
        The number in the field `seed` is a leaf, if that is set."""
        fields = []
        for name in type(record).__slots__:
            value = getattr(record, name)
            if name == "seed" and seed:
                continue
            if field_token(value) is None:
                raise _NoGuardError
            fields.append((name, self._immutable(value)))
        if seed:
            fields.append(("seed", self._value(record.seed)))
        return RecordRow(type(record), tuple(fields))

    def _op(self, op: Any) -> Structure:
        self._todo.append(op)
        return ONE_OP

    # ---- nodes

    def of_launch(self, launch: Launch) -> Fields:
        rows = [self._op(each) if isinstance(each, DeviceOp) else self._value(each) for each in launch.args]
        return ("kernel", KernelRow(launch.kernel)), ("args", ItemsRow(tuple, tuple(rows), None))

    def of_map(self, op: Map[Any, Any, Any]) -> Fields:
        f = op.f
        if type(f) not in BUILT_IN:
            raise _NoGuardError
        return ("f", SameRow(f) if id(f) in CONSTANTS else self._record(f)), ("source", self._op(op.source))

    def of_source(self, op: Any) -> Fields:
        return (("source", self._op(op.source)),)

    def of_on(self, op: On[Any, Any, Any]) -> Fields:
        if type(op.place) is not str and not isinstance(op.place, Device):
            raise _NoGuardError
        place: Structure = TokenRow(str, op.place) if type(op.place) is str else SameRow(op.place)
        return ("place", place), ("source", self._op(op.source))

    def of_zip(self, op: Zip[Any, Any, Any]) -> Fields:
        return (("sources", ItemsRow(tuple, tuple(map(self._op, op.sources)), None)),)

    def of_held(self, op: Value[Any, Any, Any]) -> Fields:
        return (("content", self._immutable(op.content)),)

    def of_alloc(self, op: Alloc[Any, Any, Any]) -> Fields:
        recipe: Structure = SameRow(None)
        if op.recipe is not None:
            seed = isinstance(op.recipe, Uniform | Normal) and op.recipe.seed is not None
            recipe = self._record(op.recipe, seed=seed)
        return ("shape", EqualRow(op.shape)), ("dtype", EqualRow(op.dtype)), ("recipe", recipe)

    def of_from_host(self, op: FromHost[Any, Any, Any]) -> Fields:
        if type(op.array) is not np.ndarray:
            raise _NoGuardError
        return (("array", self._value(op.array)),)

    def of_copy(self, op: Copy[Any, Any, Any]) -> Fields:
        source = self._record(op.source) if type(op.source) is Constant else self._value(op.source)
        return ("dtype", EqualRow(op.dtype)), ("source", source), ("into", self._value(op.into))


_FIELDS: Final[dict[type[Any], Callable[[_DagWalk, Any], Fields]]] = {
    Alloc: _DagWalk.of_alloc,
    Copy: _DagWalk.of_copy,
    FromHost: _DagWalk.of_from_host,
    Launch: _DagWalk.of_launch,
    Map: _DagWalk.of_map,
    On: _DagWalk.of_on,
    ToHost: _DagWalk.of_source,
    Value: _DagWalk.of_held,
    Zip: _DagWalk.of_zip,
}
"""The method that returns the rows of a node's fields, by the kind of the node."""
