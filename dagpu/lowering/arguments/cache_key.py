"""The inputs in which runs of one plan may differ, and a key that is equal exactly where a trace would give the same
plan.

A key is a flat tuple of tokens, in the order of a walk that both DAGs would take alike. *Leaves* are the inputs of a
run: handles, NumPy arrays and numbers. For a handle the key has everything but the memory, and also which leaves share
that memory and whether a graph writes it; for an array the shape and element type; for a number whether it is an `int`
or a `float`. All other objects are in the key themselves. Stand-ins that are left over from an earlier trace count as
their numbers and arrays.

A run that finds its plan by a key skips the checks of a trace, so tokens are exact: two are equal only where nothing in
a trace can tell them apart. `(2.0,)` equals `(2,)` in Python, and is not a tile. So a plain value is in a key with its
type and its bits (`exact`), and an immutable object with its identity (`_Reader._name`); any other object has no token.
No `__eq__` of the user's is called.

A closure cannot be inspected, since it may read state that has changed; `Shared` and `Unzip` remember. An op that has
one of these has no key, and is traced in each run.
"""

from collections.abc import Callable, Hashable
from dataclasses import replace
from enum import Enum
from struct import Struct
from typing import Any, Final, TypeAlias, final

import numpy as np

from dagpu.common.dtypes import SUPPORTED, element_type
from dagpu.common.origin import Origin
from dagpu.handles import HANDLES, Partition, cut_of, living_state
from dagpu.handles.device_handles import Device, Stream
from dagpu.handles.storage import Storage
from dagpu.handles.symbolic import SymbolicArray, SymbolicNumber, without_standins
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import BUILT_IN, FIRST, LAST, SHARE, UNCUT, Map, On, Pure, Then, ToHost, Value, Zip
from dagpu.ops.creation import Alloc, Copy, FromHost
from dagpu.ops.graph import Captured, GraphLaunch
from dagpu.ops.initializers import Constant, Normal, Recipe, Uniform
from dagpu.ops.launch import Launch

AnyOp: TypeAlias = DeviceOp[Any, Any, Any]

PLAIN: Final = frozenset(
    {bool, int, float, complex, str, bytes, type(None)} | {np.dtype(element).type for element in SUPPORTED}
)
"""The types of immutable values that refer to no other objects."""

_INT: Final = frozenset((int,))
_NUMBERS: Final = frozenset((int, float, SymbolicNumber))
"""The types of numbers that may differ from run to run. A stand-in that comes here is left over from another trace: it
counts as its number."""
_CONSTANT: Final = frozenset(map(id, (FIRST, LAST, SHARE, UNCUT)))
"""The functions that `Map` applies in most DAGs. These objects live as long as the process, so their ids are exact."""

_DEEPEST: Final = 20
"""Tuples nested deeper are not looked into."""

SEED_PLACE: Final = 0
"""The place of the seed in `Flattened.places`, for an op that has one number at most."""

MOST_NODES: Final = 20_000
"""A larger DAG gets no key: its plan would be kept for the sake of a walk as long as this."""


@final
class CacheKey:
    """Tokens, hashed once: a cache asks several times, and a long chain has some ten for each launch."""

    __slots__ = ("_hash", "_tokens")

    def __init__(self, tokens: tuple[Hashable, ...]) -> None:
        self._tokens = tokens
        self._hash = hash(tokens)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return type(other) is CacheKey and self._tokens == other._tokens


@final
class Flattened:
    """The leaves of one run, and the key of the plans that suit it."""

    __slots__ = (
        "arrays", "changeable", "graphs", "key", "leaves", "named", "nodes", "owners", "places", "starts", "streams",
    )  # fmt: skip

    def __init__(self, key: CacheKey, reader: "_Reader") -> None:
        self.key = key
        self.leaves: list[Any] = reader.leaves
        self.nodes: set[AnyOp] = reader.nodes
        """The ops that hold leaves. A closure may build other ops around the same objects, where they are not
        leaves."""
        self.arrays: dict[int, int] = reader.arrays
        """The number of the array of a `FromHost` among the leaves, by the id of that op."""
        self.places: dict[tuple[int, int], int] = reader.places
        """The number of a number in a kernel's call, by the id of the `Launch` and its place among the arguments; of a
        seed, by the id of the `Alloc` and `SEED_PLACE`."""
        self.starts: dict[int, int] = reader.starts
        """The number of the first leaf of a pipeline's arguments, by the id of the `Value` that holds them."""
        self.named: dict[int, object] = reader.named
        """The objects whose ids are in the key, by their ids. The owner of the key keeps these objects alive, so that
        the ids stay unique."""
        self.graphs: list[Captured] = reader.graphs
        """The graphs that are launched. Their plans keep what they point at."""
        self.owners: list[Any] = reader.owners
        """The pipelines that are called. Their plans keep what they close over."""
        self.streams = reader.streams
        """True if the op names a stream. Its plan keeps that stream."""
        self.changeable = reader.changeable
        """True if the same op might have another key in its next run, because an array may get another shape or element
        type in place. (Lists and dicts belong to the op alone: a call copies them.)"""

    def numbers(self) -> list[int]:
        """The indices of the leaves that are numbers."""
        return [index for index, leaf in enumerate(self.leaves) if type(leaf) is int or type(leaf) is float]


Refused: TypeAlias = Callable[[Any, Origin, str], None]
"""Told of a pipeline, of the place where it was called, and of what among the arguments no key can hold, in words."""


def inputs_of(op: AnyOp, most: int = MOST_NODES, refused: Refused | None = None) -> Flattened | None:
    """The leaves of a DAG; None where it has no key, or more than `most` nodes."""
    reader = _Reader(most)
    if not reader.read_dag(op):
        if refused is not None and reader.refused is not None:
            refused(*reader.refused)
        return None
    return Flattened(CacheKey(tuple(reader.tokens)), reader)


@final
class _Reader:
    def __init__(self, most: int) -> None:
        self._most = most
        self.tokens: list[Any] = []
        self.leaves: list[Any] = []
        self.nodes: set[AnyOp] = set()
        self.arrays: dict[int, int] = {}
        self.places: dict[tuple[int, int], int] = {}
        self.starts: dict[int, int] = {}
        self.named: dict[int, object] = {}
        self.graphs: list[Captured] = []
        self.owners: list[Any] = []
        self.refused: tuple[Any, Origin, str] | None = None
        """The pipeline with an argument that cannot be read, where it was called, and what that is."""
        self.streams = False
        self.changeable = False
        self._odd: str | None = None
        self._numbers: dict[int, int] = {}
        self._storages: dict[Storage, int] = {}

    # ---- values

    def read(self, value: Any, depth: int = 0) -> bool:
        """Add an argument to the key; False where that cannot be."""
        kind = type(value)
        if kind in HANDLES:
            return self._handle(value)
        if kind is int or kind is float:
            self._leaf(value, kind)
        elif kind in PLAIN:
            self.tokens.append(exact(value))
        elif isinstance(value, type | Enum | Device | np.dtype):
            self.tokens += ("named", self._name(value))
        elif kind is np.ndarray:
            self.changeable = True
            self._array(value)
        elif is_tuple(value) or kind is list:
            self.tokens += (kind if kind is tuple or kind is list else self._name(kind), len(value))
            return (depth < _DEEPEST or self._too_deep()) and all(self.read(item, depth + 1) for item in value)
        elif kind is dict and PLAIN.issuperset(map(type, value)):
            self.tokens += (dict, tuple(map(exact, value)))
            return (depth < _DEEPEST or self._too_deep()) and all(self.read(item, depth + 1) for item in value.values())
        elif kind is SymbolicNumber or kind is SymbolicArray:
            return self.read(without_standins(value), depth)
        else:
            keys = " whose keys are not all numbers and texts" if kind is dict else ""
            self._odd = f"a value of type {kind.__name__}{keys}"
            return False
        return True

    def _too_deep(self) -> bool:
        """False: that cannot be looked into."""
        self._odd = f"tuples, lists or dicts more than {_DEEPEST} deep"
        return False

    def _handles_or_plain(self, value: Any, depth: int = 0) -> bool:
        """Add a value that runs must return unchanged, with the same numbers, and that must be immutable. False where
        it cannot be added."""
        if type(value) in PLAIN:
            self.tokens.append(exact(value))
            return True
        if type(value) is SymbolicNumber:
            return self._handles_or_plain(value.number)
        if is_tuple(value):
            self.tokens += (tuple if type(value) is tuple else self._name(type(value)), len(value))
            return depth < _DEEPEST and all(self._handles_or_plain(item, depth + 1) for item in value)
        return type(value) in HANDLES and self._handle(value)

    def _name(self, value: object) -> int:
        """A token for an object that does not change: it is equal to itself alone."""
        self.named[id(value)] = value
        return id(value)

    def _fields(self, held: Any) -> bool:
        """Add one of our own dataclasses, whose fields hold what the user gave: plain values, and tuples of these."""
        self.tokens.append(type(held))
        for name in held.__slots__:
            value = getattr(held, name)
            if type(value) in PLAIN:
                self.tokens.append(exact(value))
            elif type(value) is tuple and PLAIN.issuperset(map(type, value)):
                self.tokens.append(value if _INT.issuperset(map(type, value)) else tuple(map(exact, value)))
            else:
                return False  # a trace says what is wrong with it
        return True

    def _leaf(self, value: Any, token: object) -> None:
        self.tokens.append(token)
        self.leaves.append(value)

    def _known(self, leaf: Any) -> bool:
        """True if this object was added before: then the key refers to its index. Otherwise the object is recorded."""
        index = self._numbers.setdefault(id(leaf), len(self.leaves))
        if index == len(self.leaves):
            return False
        self.tokens += ("again", index)
        return True

    def _array(self, array: "np.ndarray[Any, Any]") -> None:
        if not self._known(array):
            dtype = array.dtype
            element = element_type(dtype) if dtype.metadata is None else None
            self._leaf(array, (self._name(dtype) if element is None else element, array.shape))

    def _handle(self, handle: Any) -> bool:
        if self._known(handle):
            return True
        state = living_state(handle)
        if state is None or state.storage.memory is None:
            return False  # a trace says what is wrong with it
        storage = state.storage
        alias = self._storages.setdefault(storage, len(self._storages))
        cut = (state.kind, *cut_of(handle)) if type(handle) is Partition else None
        device, written = storage.device, storage.graph() is not None
        self.named[id(device)] = device
        self._leaf(handle, (type(handle), state.layout, id(device), storage.nbytes, alias, cut, written))
        return True

    # ---- DAGs

    def read_dag(self, root: AnyOp) -> bool:
        """Add a DAG: each node, then its sources, the last one first."""
        todo: list[AnyOp] = [root]
        seen = self.nodes
        while todo:
            op = todo.pop()
            if len(seen) == self._most or (op in seen and type(op) is not Value):
                return False
            seen.add(op)
            kind = type(op)
            self.tokens.append(kind)
            if (kind is Launch or kind is Map or not self._source(op)) and not self._change(op, todo):
                return False
        return True

    def _source(self, op: AnyOp) -> bool:
        """Add an op without sources. The places of values and of calls of pipelines are not in the plan, so they are
        not in the key. False for any other op, and where the op cannot be inspected."""
        match op:
            case Value(held=held):
                return self._handles_or_plain(held)
            case Then(source=Value(held=arguments) as source, f=Pure(owner=owner)):
                self.nodes.add(source)
                self.owners.append(owner)
                self.tokens.append(owner.number)
                self.starts[id(source)] = len(self.leaves)
                found = self.read(arguments)
                if self._odd is not None:
                    self.refused = owner, op.origin, self._odd
                return found
            case GraphLaunch(captured=captured, origin=origin):
                self.tokens += self._origin(origin)
                self.graphs.append(captured)
                self._leaf(captured, captured.number)
                return True
            case Alloc(shape=shape, dtype=dtype, recipe=recipe, origin=origin):
                self.tokens += (*self._origin(origin), shape, dtype)
                if isinstance(recipe, Uniform | Normal) and type(recipe.seed) in _NUMBERS:
                    self.places[id(op), SEED_PLACE] = len(self.leaves)
                    self.read(recipe.seed)
                    recipe = replace(recipe, seed=None)
                return self._recipe(recipe)
            case FromHost(array=given, origin=origin) if type(array := _array_of(given)) is np.ndarray:
                self.tokens += self._origin(origin)
                self._array(array)
                self.arrays[id(op)] = self._numbers[id(array)]
                return True
            case Copy(source=source, into=into, dtype=dtype, origin=origin):
                self.tokens += (*self._origin(origin), dtype)
                if type(source) is Constant:
                    return self._recipe(source) and self.read(into)
                return self.read(source) and (into is None or self.read(into))
            case _:
                return False

    def _change(self, op: AnyOp, todo: list[AnyOp]) -> bool:
        """Add an op with sources, and put the sources on `todo`. False where it cannot be added."""
        self.tokens += self._origin(op.origin)
        match op:
            case Launch():
                return self._launch(op, todo)
            case Map(source=source, f=f) if type(f) in BUILT_IN:
                todo.append(source)
                if id(f) not in _CONSTANT:
                    return self._fields(f)
                self.tokens.append(id(f))
            case ToHost(source=source):
                todo.append(source)
            case On(source=source, place=Stream() as stream):
                self.streams = True
                self.tokens += (self._name(stream.device), stream.lane)
                todo.append(source)
            case On(source=source, place=Device() as place):
                self.tokens += ("named", self._name(place))
                todo.append(source)
            case On(source=source, place=place) if type(place) is str:  # a policy of the user's may change
                self.tokens.append(place)
                todo.append(source)
            case Zip(sources=sources):
                self.tokens.append(len(sources))
                todo += sources
            case _:
                return False
        return True

    def _launch(self, launch: Launch, todo: list[AnyOp]) -> bool:
        spec = launch.kernel
        # Copies that `kernel.grid(...)` and the like make have the declared kernel's host body.
        self.tokens += (spec.host, spec.grid, spec.block, spec.shared_bytes)
        for place, argument in enumerate(launch.args):
            if isinstance(argument, DeviceOp):
                self.tokens.append("op")
                todo.append(argument)
                continue
            if type(argument) in _NUMBERS:
                self.places[id(launch), place] = len(self.leaves)
            if not self.read(argument):
                return False
        return True

    def _origin(self, origin: Origin) -> tuple[Hashable, ...]:
        """Plans name the places of their ops: DAGs that other code built get plans of their own."""
        if origin is None:
            return (None,)
        code = origin[0]
        self.named[id(code)] = code
        return id(code), origin[1]

    def _recipe(self, recipe: Recipe | None) -> bool:
        """Add the contents that a creation op writes."""
        if recipe is None:
            self.tokens.append(None)
            return True
        return self._fields(recipe)


def _array_of(given: Any) -> Any:
    """The array itself, also where the stand-in of an earlier trace is given."""
    return given.source if type(given) is SymbolicArray else given


_bits: Final = Struct("d").pack
"""The bytes of a float: `float.hex` calls each NaN 'nan'."""


def is_fixed(value: Any, depth: int = 0) -> bool:
    """True for a value that cannot be changed in place, as far as it is inspected."""
    if is_tuple(value):
        return depth < _DEEPEST and all(is_fixed(item, depth + 1) for item in value)
    return type(value) in PLAIN


def is_tuple(value: Any) -> bool:
    """True for plain tuples, and for named tuples that have no attributes besides their fields."""
    return type(value) is tuple or (isinstance(value, tuple) and hasattr(value, "_fields") and not _more(value))


def _more(value: object) -> bool:
    return bool(getattr(value, "__dict__", None))


def exact(value: Any) -> Hashable:
    """A value of a plain type, so that equal tokens mean the same bits: 0.0 is not -0.0, True is not 1, and one NaN is
    another only with the same sign and payload."""
    kind = type(value)
    if kind is float:
        return float, _bits(value)
    if kind is complex:
        return complex, _bits(value.real), _bits(value.imag)
    if isinstance(value, np.generic):
        return kind, value.tobytes()
    return kind, value
