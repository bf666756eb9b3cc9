"""What a later run of the same op needs in place of a trace: its inputs, and how its result is put together.

A trace may be spared where a second one would give the same program, whatever has happened in between. It gives the
same program if nothing in the op
    calls a function of the user's (`then`, `map`, `inspect`, `host_map`): it may read what has changed since;
    remembers (`Shared`, `Unzip`): its second run takes another way than its first;
    moves (an owned `Tensor`, a `TensorMut`, a `Partition`): the second run is a `MovedError`;
    can be changed in place (a list in a `Value`);
    waits for host data: then there is more than one program.
The tracer sees all of this in passing. What may still change between two runs is looked at in each of them (`bind`):
handles may have been moved or lost, and arrays may have got another shape. Then the op is traced anew, and that trace
says what is wrong, in the words that it always uses.
"""

from collections.abc import Callable
from typing import Any, Final, TypeAlias, final

import numpy as np

from dagpu.dtypes import SUPPORTED, Shape
from dagpu.handles import Partition, SharedTensor, Tensor, TensorRef
from dagpu.layout import Layout
from dagpu.lowering.builder import Builder
from dagpu.lowering.later import FromCell, FromItems, Later
from dagpu.storage import Holders, Storage

Make: TypeAlias = Callable[[list[Any]], Any]
"""Makes (a part of) a run's result of the memory that the run leaves."""

Given: TypeAlias = SharedTensor[Any, Any] | TensorRef[Any, Any]
"""The handles that do not move."""

PLAIN: Final = frozenset(
    {bool, int, float, complex, str, bytes, type(None)} | {np.dtype(element).type for element in SUPPORTED}
)
"""The types of values that nobody can change, and that know nothing of anything else."""

_DEEPEST: Final = 20
"""A result whose tuples are nested deeper is made by a trace."""


def is_fixed(value: Any, depth: int = 0) -> bool:
    """Can nobody change this value in place?"""
    if type(value) is tuple:
        return depth < _DEEPEST and all(is_fixed(item, depth + 1) for item in value)
    return type(value) in PLAIN


@final
class Repeat:
    """Immutable, and of no run in particular: any number of runs may use it at once.

    It refers to handles that the op holds anyway, never to their memory: that goes when they are moved and dropped.
    """

    __slots__ = ("_arrays", "_given", "buffers", "result")

    def __init__(
        self,
        buffers: int,
        given: tuple[tuple[Given, int], ...],
        arrays: tuple[tuple[int, Any, Layout], ...],
        result: Make,
    ) -> None:
        self.buffers = buffers
        """How many the program has."""
        self._given = given
        """Each handle with the buffer that its memory is; -1 where the program has no use for it."""
        self._arrays = arrays
        """Each array that is copied from, with its cell, and the shape and element type that it was traced with."""
        self.result = result

    def bind(self, memory: list[Any]) -> dict[Storage, bool] | None:
        """Put this run's inputs in their places; gives back what it must lock.

        None where only a trace will do: something has been moved, or lost, or changed.
        """
        locks: dict[Storage, bool] = {}
        for handle, buffer in self._given:
            storage = handle._storage
            if storage is None or (type(handle) is TensorRef and handle._lender._storage is not storage):
                return None
            if buffer >= 0:
                if storage.memory is None:
                    return None
                memory[buffer] = storage.memory
                locks[storage] = False
        for cell, array, layout in self._arrays:
            if array.shape != layout.shape or array.dtype != layout.dtype:
                return None
            memory[cell] = array
        return locks


def repeat_of(root: Any, given: list[Given], layouts: list[Layout], builder: Builder) -> Repeat | None:
    """What to keep of a trace that could be spared; None where its result cannot be put together without it.

    `root` is what the trace gave, not settled yet; `given` are the handles that stand in the op; `layouts` those of
    the arrays that are copied from, in the order of their cells.
    """
    result = _Template(builder, given).part(root, 0)
    if result is None:
        return None
    external = builder.external()
    if any(builder.locks.values()) or not builder.locks.keys() <= external.keys():
        return None
    read: list[tuple[Given, int]] = []
    for handle in given:
        storage = handle._storage
        if storage is None:  # moved meanwhile, by another thread
            return None
        read.append((handle, external.get(storage, -1)))
    arrays: list[tuple[int, Any, Layout]] = []
    if layouts:
        imported = set(external.values())
        held = [(cell, array) for cell, array in builder.inputs.items() if cell not in imported]
        arrays = [(cell, array, layout) for (cell, array), layout in zip(held, layouts, strict=True)]
    return Repeat(builder.size(), tuple(read), tuple(arrays), result)


@final
class _Template:
    """Reads off a traced value how to make another of its kind."""

    __slots__ = ("_builder", "_given", "_used")

    def __init__(self, builder: Builder, given: list[Given]) -> None:
        self._builder = builder
        self._given = set(map(id, given))
        self._used: set[int] = set()

    def part(self, value: Any, depth: int) -> Make | None:
        """How to make this part of the result; None if that is not known."""
        kind = type(value)
        if kind is Tensor:
            return self._tensor(value)
        if kind in PLAIN or id(value) in self._given:
            return _Same(value)
        if kind is tuple:
            return self._items(value, value, depth)
        if kind is Later:
            if type(value.cause) is FromCell:
                return _cell(value.cause.buffer)
            return self._items(value.cause.items, None, depth) if type(value.cause) is FromItems else None
        if kind is Partition:
            inner = self._tensor(value._inner) if type(value._inner) is Tensor else None
            return None if inner is None else _partition(inner, value._cut, value._grid)
        if kind is SharedTensor:
            return self._shared(value)
        return None  # such as a new handle to memory from outside: `reshape` of a SharedTensor

    def _items(self, items: tuple[Any, ...], whole: object, depth: int) -> Make | None:
        if depth == _DEEPEST:
            return None
        parts: list[Make] = []
        for item in items:
            part = self.part(item, depth + 1)
            if part is None:
                return None
            parts.append(part)
        if whole is not None and all(type(part) is _Same for part in parts):
            return _Same(whole)
        return lambda memory: tuple([part(memory) for part in parts])

    def _own(self, storage: Storage) -> bool:
        """Was this memory made by the trace, and is it met for the first time? Each storage gets one handle."""
        if storage.run is not self._builder or storage.buffer in self._used:
            return False
        self._used.add(storage.buffer)
        return True

    def _tensor(self, tensor: "Tensor[Any, Any]") -> Make | None:
        storage, layout, made = tensor._storage, tensor._layout, tensor._made
        if storage is None or not self._own(storage):
            return None
        device, nbytes, buffer = storage.device, storage.nbytes, storage.buffer

        def make(memory: list[Any]) -> Any:
            return Tensor(Storage(device, nbytes, None, buffer, memory[buffer]), layout, made)

        return make

    def _shared(self, shared: "SharedTensor[Any, Any]") -> Make | None:
        storage, layout, made = shared._storage, shared._layout, shared._made
        if storage is None or not self._own(storage):
            return None
        device, nbytes, buffer = storage.device, storage.nbytes, storage.buffer

        def make(memory: list[Any]) -> Any:
            return SharedTensor(Storage(device, nbytes, None, buffer, memory[buffer]), layout, made, Holders())

        return make


@final
class _Same:
    """The same object in every run."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    def __call__(self, memory: list[Any]) -> Any:
        return self._value


def _cell(buffer: int) -> Make:
    return lambda memory: memory[buffer]


def _partition(inner: Make, tile: Shape, grid: Shape) -> Make:
    return lambda memory: Partition(inner(memory), tile, grid)
