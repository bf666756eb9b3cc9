"""The guard of a plain op's plan: it tests whether an op has the key of an earlier op, and binds its leaves.

A loop builds its op again in each round, always in the same place of the code. To make the key of such an op
(dagpu.lowering.arguments.cache_key) takes longer than to launch it. The guard compares what the key contains, node by
node in the order of the key, in a fifth of the time. If it refuses, the key decides.

The guard is text, in a direct call (dagpu.lowering.arguments.call_text). Each kind of node writes its own lines. A DAG
with another node, such as one that remembers its value or calls a function, has no guard.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, final

import numpy as np

from dagpu.common.origin import Origin
from dagpu.handles import HANDLES
from dagpu.handles.device_handles import Device
from dagpu.lowering.arguments.cache_key import CONSTANTS
from dagpu.lowering.arguments.call_guard import ArgumentWalk, LeafBinding, TokenGuard
from dagpu.lowering.arguments.call_text import CallText
from dagpu.lowering.arguments.exact_tokens import DEEPEST, PLAIN, field_token
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import Map, On, ToHost, Value, Zip
from dagpu.ops.creation import Alloc, Copy, FromHost
from dagpu.ops.initializers import Constant, Normal, Uniform
from dagpu.ops.kernel_spec import KernelSpec
from dagpu.ops.launch import Launch
from dagpu.ops.node_functions import BUILT_IN


def guard_dag(text: CallText, op: Any, leaves: Sequence[Any], bindings: Sequence[LeafBinding]) -> bool:
    """Write the lines that refuse an op with another key than `op`, and bind the leaves of an accepted one.

    The accepted op is in the variable `arguments`. Return False if `op` has no guard. `leaves` are its leaves, and
    `bindings` has the use of each.
    """
    walk = _DagWalk(text, bindings)
    return walk.write_dag(op) and list(map(id, walk.values.leaves)) == list(map(id, leaves))


@final
class _DagWalk:
    """The walk over the op that is guarded. Each method of a node returns False if the node has no guard."""

    def __init__(self, text: CallText, bindings: Sequence[LeafBinding]) -> None:
        self.values = ArgumentWalk(iter(bindings))
        self._text = text
        self._todo: list[tuple[Any, str]] = []
        """The nodes to write, each with its name in the text."""
        self._names: dict[tuple[type[Any], Origin], list[str]] = {}
        """The names of the nodes so far by type and place. Only nodes with the same ones can be one node."""

    def write_dag(self, root: Any) -> bool:
        """Write the lines of a DAG: each node, then its sources, the last one first."""
        self._todo.append((root, "arguments"))
        seen: set[Any] = set()
        while self._todo:
            op, name = self._todo.pop()
            kind = type(op)
            write = _WRITERS.get(kind)
            if write is None or (op in seen and kind is not Value):
                return False
            seen.add(op)
            self._text.refuse_if(f"type({name}) is not {self._text.class_name(kind)}")
            if kind is not Value:  # a plan does not contain the places of values
                self._write_origin(op.origin, name)
                self._names.setdefault((kind, op.origin), []).append(name)
            if not write(self, op, name):
                return False
        for names in self._names.values():
            self._text.refuse_same(names)  # a node that is used twice has no key
        self._text.refuse_aliases()
        return True

    def _write_origin(self, origin: Origin, name: str) -> None:
        """Write the lines that refuse an op from another place. Equal code objects are not the same place."""
        text = self._text
        place = self._name("p", f"{name}.origin")
        if origin is None:
            text.refuse_if(f"{place} is not None")
            return
        code, at = text.constant("CODE", origin[0]), text.constant("AT", origin[1])
        text.refuse_if(f"{place} is None or {place}[0] is not {code} or {place}[1] != {at}")

    def _name(self, letter: str, expression: str) -> str:
        """Write a line that binds a new name to an expression, and return the name."""
        name = self._text.new_name(letter)
        self._text.lines.append(f"{name} = {expression}")
        return name

    def _names_of(self, items: str, count: int) -> list[str]:
        """Write the lines that bind new names to the items of a tuple, and refuse one of another length."""
        items = self._name("i", items)
        self._text.refuse_if(f"len({items}) != {count}")
        names = [f"{items}_{index}" for index in range(count)]
        if names:
            self._text.lines.append(f"{', '.join(names)}, = {items}")
        return names

    def _write_value(self, value: Any, name: str) -> bool:
        """Write the lines of a handle, an array, a number or another argument."""
        guard = self.values.guard(value)
        if guard is not None:
            guard.write(self._text, name)
        return guard is not None

    def _write_immutable(self, value: Any, name: str, depth: int = 0) -> bool:
        """Write the lines of a value whose numbers are in the key."""
        kind = type(value)
        if kind in PLAIN:
            TokenGuard(kind, value).write(self._text, name)
            return True
        if kind is tuple:
            self._text.refuse_if(f"type({name}) is not tuple")
            names = self._names_of(name, len(value))
            return depth < DEEPEST and all(map(self._write_immutable, value, names, [depth + 1] * len(names)))
        return kind in HANDLES and self._write_value(value, name)

    def _write_fields(self, record: Any, name: str, *, without: str = "") -> bool:
        """Write the lines of one of dagpu's own dataclasses, whose fields hold plain values, and tuples of these."""
        text = self._text
        text.refuse_if(f"type({name}) is not {text.constant('KIND', type(record))}")
        for field in type(record).__slots__:
            if field == without:
                continue
            value = getattr(record, field)
            if field_token(value) is None or not self._write_immutable(value, self._name("f", f"{name}.{field}")):
                return False
        return True

    # ---- nodes

    def write_launch(self, launch: Launch, name: str) -> bool:
        spec, known = self._name("k", f"{name}.kernel"), self._text.constant("KERNEL", launch.kernel)
        self._text.refuse_if(
            f"{spec} is not {known} and not {self._text.function_name(_launches_alike)}({spec}, {known})"
        )
        for argument, each in zip(launch.args, self._names_of(f"{name}.args", len(launch.args)), strict=True):
            if isinstance(argument, DeviceOp):
                self._todo.append((argument, each))
            elif not self._write_value(argument, each):
                return False
        return True

    def write_map(self, op: Map[Any, Any, Any], name: str) -> bool:
        f = op.f
        if type(f) not in BUILT_IN:
            return False
        self.write_source(op, name)
        if id(f) in CONSTANTS:
            self._text.refuse_if(f"{name}.f is not {self._text.constant('FUNCTION', f)}")
            return True
        return self._write_fields(f, self._name("f", f"{name}.f"))

    def write_source(self, op: Any, name: str) -> bool:
        self._todo.append((op.source, self._name("o", f"{name}.source")))
        return True

    def write_on(self, op: On[Any, Any, Any], name: str) -> bool:
        place = self._name("d", f"{name}.place")
        if type(op.place) is str:
            TokenGuard(str, op.place).write(self._text, place)
        elif isinstance(op.place, Device):
            self._text.refuse_if(f"{place} is not {self._text.constant('DEVICE', op.place)}")
        else:
            return False
        return self.write_source(op, name)

    def write_zip(self, op: Zip[Any, Any, Any], name: str) -> bool:
        self._todo += zip(op.sources, self._names_of(f"{name}.sources", len(op.sources)), strict=True)
        return True

    def write_held(self, op: Value[Any, Any, Any], name: str) -> bool:
        return self._write_immutable(op.content, self._name("v", f"{name}.content"))

    def write_alloc(self, op: Alloc[Any, Any, Any], name: str) -> bool:
        shape, dtype = self._text.constant("SHAPE", op.shape), self._text.constant("DTYPE", op.dtype)
        self._text.refuse_if(f"{name}.shape != {shape} or {name}.dtype != {dtype}")
        recipe = self._name("r", f"{name}.recipe")
        if op.recipe is None:
            self._text.refuse_if(f"{recipe} is not None")
            return True
        if isinstance(op.recipe, Uniform | Normal) and op.recipe.seed is not None:
            return self._write_fields(op.recipe, recipe, without="seed") and self._write_value(
                op.recipe.seed, self._name("s", f"{recipe}.seed")
            )
        return self._write_fields(op.recipe, recipe)

    def write_from_host(self, op: FromHost[Any, Any, Any], name: str) -> bool:
        return type(op.array) is np.ndarray and self._write_value(op.array, self._name("h", f"{name}.array"))

    def write_copy(self, op: Copy[Any, Any, Any], name: str) -> bool:
        self._text.refuse_if(f"{name}.dtype != {self._text.constant('DTYPE', op.dtype)}")
        source = self._name("c", f"{name}.source")
        write = self._write_fields if type(op.source) is Constant else self._write_value
        return write(op.source, source) and self._write_value(op.into, self._name("c", f"{name}.into"))


_Writer: TypeAlias = Callable[[_DagWalk, Any, str], bool]

_WRITERS: Final[dict[type[Any], _Writer]] = {
    Alloc: _DagWalk.write_alloc,
    Copy: _DagWalk.write_copy,
    FromHost: _DagWalk.write_from_host,
    Launch: _DagWalk.write_launch,
    Map: _DagWalk.write_map,
    On: _DagWalk.write_on,
    ToHost: _DagWalk.write_source,
    Value: _DagWalk.write_held,
    Zip: _DagWalk.write_zip,
}


def _launches_alike(one: KernelSpec, other: KernelSpec) -> bool:
    """Return True if two declarations have the same body, grid, block and shared memory."""
    return one.host is other.host and (one.grid, one.block, one.shared_bytes) == (
        other.grid,
        other.block,
        other.shared_bytes,
    )
