"""Descriptions of arguments of all kinds, nested, and what a trace can tell of them.

A description is built twice for a pair of calls, each time with other memory and other numbers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, final

import numpy as np
from hypothesis import strategies as st

from dagpu import full, pipeline, source, use_device, value, zeros
from dagpu.common.containers import Composite, about_of, items_of
from dagpu.common.frozen import plain
from dagpu.common.layout import element_type
from dagpu.handles import Partition, cut_of, live_state
from dagpu.handles.handle_state import Storage
from dagpu.handles.symbolic import SymbolicArray, SymbolicNumber
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import Pure, Then, Value
from dagpu.tracing.cache_key import flatten_op
from dagpu.tracing.flattened import Flattened, Row
from dagpu.tracing.value_kinds import Trace, with_standins
from tests.programs.arithmetic import axpy, scale
from tests.unit.tracing.arguments.structure_keys import Colour, Pair, S, named, out, shared, tensor

Leaf: TypeAlias = str
"""The name of a leaf."""
Tree: TypeAlias = "Leaf | tuple[str, Sequence[Any]]"
"""A leaf, or the kind of a container with its items."""


class Other(NamedTuple):
    """A tuple with the names of `Pair`."""

    left: Any
    right: Any


@final
class Box(Composite):
    """A composite of its items."""

    __slots__ = ()


@final
class Crate(Composite):
    """Another one."""

    __slots__ = ()


@final
@dataclass(frozen=True)
class Settings:
    """A frozen dataclass."""

    gain: Any
    steps: Any = 1


class Lax(type):
    """The class of classes that are equal to everything."""

    def __eq__(cls, other: object) -> bool:
        return True

    def __hash__(cls) -> int:
        return 1


@final
@dataclass(frozen=True, eq=False)
class Equal(metaclass=Lax):
    """A frozen dataclass that is equal to everything, as its class is."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1


ABOUT: Final = (object(), object())


PACKED: Final = np.dtype([("a", np.int8), ("b", np.int32)])
ALIGNED: Final = np.dtype({"names": ["a", "b"], "formats": [np.int8, np.int32], "offsets": [0, 1], "itemsize": 5})
"""An equal type: both are dtypes, which keys have by their identity."""


SWAPPED: Final = np.dtype(">f4")
NOTED: Final = np.dtype("f4", metadata={"a": 1})


def doubled(x: float) -> float:
    """A function of a module."""
    return 2 * x


def halved(x: float) -> float:
    """Another one."""
    return x / 2


def closed_over(number: Any) -> Callable[[], Any]:
    """A new function, which returns a number."""
    return lambda: number


def lent(number: float, shape: tuple[int, ...] = S) -> Any:
    lender = tensor(number, shape)
    borrow = lender.borrow()
    LENDERS.append(lender)
    return borrow


LENDERS: Final[list[Any]] = []
"""The tensors that are lent, which live as long as an example."""


def moved(number: float) -> Any:
    """A tensor that has no key any more."""
    found = tensor(number)
    found.share()
    return found


def void(number: float) -> Any:
    """A borrow of such a tensor."""
    lender = tensor(number)
    found = lender.borrow()
    lender.share()
    return found


def elsewhere(number: float) -> Any:
    with use_device("host:1"):
        return shared(number)


def held_op(number: float, kernel: Any, x: Any) -> Any:
    """An op in one place of the code."""
    return kernel(out(), number, x).first()


def chosen_op(tile: tuple[int, int], place: str) -> Any:
    """Another op, with facts of its own."""
    return zeros((4, 4)).partition(tile).unpartition().on(place)


def zeros_here(second: bool) -> Any:
    return [zeros(S), zeros(S)][second]


def zeros_there(second: bool) -> Any:
    return [zeros(S), zeros(S)][second]


def zeros_of(*shape: int) -> Any:
    return zeros(shape)


def zeros_nowhere() -> Any:
    node: Any = zeros(S)
    return type(node)(node.shape, node.dtype, node.recipe, None)


def written(number: float) -> Any:
    """A tensor whose memory a graph writes."""
    found = shared(number)
    live_state(found).storage.graph = lambda: found
    return found


MADE: Final[dict[Leaf, Callable[[float], Any]]] = {
    "int": lambda k: int(k), "float": float,
    "tensor": tensor, "tensor of another shape": lambda k: tensor(k, (4,)), "shared": shared,
    "shared, elsewhere": elsewhere, "shared f64": lambda k: full((2, 1), k, dtype=np.float64).sync().share(),
    "borrow, strides": lambda k: lent(k, (4, 2)).slice(slice(0, 4, 2)),
    "borrow, offset": lambda k: lent(k, (4, 2)).slice(slice(2, 4)),
    "borrow, large memory": lambda k: lent(k, (4, 2)).slice(slice(0, 2)),
    "borrow": lent, "partition": lambda k: tensor(k).partition(S), "rows": lambda k: tensor(k).partition((1, 2)),
    "array": lambda k: np.full(S, k, np.float32), "array f64": lambda k: np.full(S, k, np.float64),
    "array of another shape": lambda k: np.full(4, k, np.float32),
    "source of int": lambda k: source(int(k)), "source of text": lambda _: source("a"),
    "source of another text": lambda _: source("b"), "source of an array": lambda k: source(np.full(S, k)),
    "array, of long long": lambda k: np.full(S, k, np.longlong), "array of i64": lambda k: np.full(S, k, np.int64),
    "array, of the other byte order": lambda k: np.full(S, k, SWAPPED),
    "array, of a packed type": lambda _: np.zeros(S, PACKED), "array with metadata": lambda k: np.full(S, k, NOTED),
    "array, of an aligned type": lambda _: np.zeros(S, ALIGNED),
    "moved": moved, "void": void, "masked array": lambda _: np.ma.zeros(2),
    "op": lambda k: held_op(k, scale, shared(k)), "op of another kernel": lambda k: held_op(k, axpy, shared(k)),
    "op of another tensor": lambda k: held_op(k, scale, shared(k, (2, 1))),
    "op in tiles": lambda _: chosen_op(S, "host:0"), "op in other tiles": lambda _: chosen_op((4, 4), "host:0"),
    "zeros": lambda _: zeros_here(False), "zeros of four": lambda _: zeros_of(4),
    "zeros of two": lambda _: zeros_of(2), "zeros of another place": lambda _: zeros_here(True),
    "zeros of another function": lambda _: zeros_there(False), "zeros of no place": lambda _: zeros_nowhere(),
    "op elsewhere": lambda _: chosen_op(S, "host:1"), "written by a graph": written,
}  # fmt: skip
"""Leaves that are new in each call, of a number that differs from call to call."""

MEANT: Final[dict[Leaf, Callable[[], Any]]] = {
    "True": lambda: True, "False": lambda: False, "None": lambda: None, "'a'": lambda: "a", "'b'": lambda: "b",
    "b'a'": lambda: b"a", "1j": lambda: 1j, "-0j": lambda: complex(0.0, -0.0), "0j": lambda: 0j,
    "f32(0)": lambda: np.float32(0), "f32(-0)": lambda: np.float32(-0.0), "i64(0)": lambda: np.int64(0),
    "RED": lambda: Colour.RED, "BLUE": lambda: Colour.BLUE, "class float": lambda: float, "class int": lambda: int,
    "dtype f4": lambda: np.dtype("f4"), "dtype f8": lambda: np.dtype("f8"),
    "nan": lambda: np.float64("nan"), "-nan": lambda: -np.float64("nan"), "f64(0)": lambda: np.float64(0),
    "dtype >f4": lambda: SWAPPED, "dtype packed": lambda: PACKED, "dtype aligned": lambda: ALIGNED,
    "a subclass of Pair": lambda: named(0), "one with an attribute": lambda: named(1), "object": object,
    "a module": lambda: np, "{(1,): 1}": lambda: {(1,): 1},
    "range(3)": lambda: range(3), "range(4)": lambda: range(4), "slice(3)": lambda: slice(3),
    "slice(3.0)": lambda: slice(3.0), "{1}": lambda: {1}, "{2}": lambda: {2}, "frozenset(1)": lambda: frozenset((1,)),
    "Settings(1)": lambda: Settings(1), "Settings(1.0)": lambda: Settings(1.0), "Settings(0.0)": lambda: Settings(0.0),
    "Settings(-0.0)": lambda: Settings(-0.0), "doubled": lambda: doubled, "halved": lambda: halved,
    "lambda: 1": lambda: closed_over(1), "lambda: 2": lambda: closed_over(2),
    "partial(doubled, 1)": lambda: partial(doubled, 1), "partial(doubled, 2)": lambda: partial(doubled, 2),
    "equal to all": Equal, "scale": lambda: scale, "axpy": lambda: axpy,
}  # fmt: skip
"""Leaves that stand for themselves, by what a trace can tell of them."""

CONTAINERS: Final[dict[str, Callable[[list[Any]], Any]]] = {
    "tuple": tuple, "list": list, "Pair": Pair._make, "Other": Other._make,
    "dict a b": lambda items: dict(zip("ab", items, strict=True)),
    "dict b a": lambda items: dict(zip("ba", items, strict=True)),
    "dict a c": lambda items: dict(zip("ac", items, strict=True)),
    "dict c b": lambda items: dict(zip("cb", items, strict=True)),
    "dict 1.0 -0.0": lambda items: dict(zip((1.0, -0.0), items, strict=True)),
    "dict 1 0.0": lambda items: dict(zip((1, 0.0), items, strict=True)),
    "Box": lambda items: Box(ABOUT[0], tuple(items)), "Box of another": lambda items: Box(ABOUT[1], tuple(items)),
    "Crate": lambda items: Crate(ABOUT[0], tuple(items)),
}  # fmt: skip
"""Containers of two items; a tuple or list may have more."""

AGAIN: Final = ("first", "last", "clone of the first")
"""The first and the last shared tensor or array of the call so far, and another handle to the first memory."""

LEAVES: Final = (*MADE, *MEANT, *AGAIN)

trees: st.SearchStrategy[Tree] = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.tuples(st.sampled_from(sorted(CONTAINERS)), st.lists(inner, min_size=2, max_size=2)),
    max_leaves=5,
)
"""Strategy of descriptions."""


def never_called(*_: object, **__: object) -> DeviceOp[Any]:
    """The function of a pipeline."""
    return value(1)


CALLED: Final = pipeline(never_called)


def table_of(arguments: tuple[Any, ...], named: tuple[Any, ...]) -> Flattened | None:
    """Return the table of a call; None if it has none."""
    known = CALLED(1)
    assert isinstance(known, Then)
    assert isinstance(known.f, Pure)
    return flatten_op(Then(Value((arguments, named), None), known.f, None))


@final
class Call:
    """The values of one call, and what they mean."""

    def __init__(self, arguments: Sequence[Tree], names: Sequence[str], number: float) -> None:
        """The last ones of the arguments have these names."""
        self.meanings: dict[int, str] = {}
        self._number = number
        self._held: list[Any] = [None]
        self._kept: list[Any] = []
        built = tuple([self._built(each) for each in arguments])
        count = len(built) - len(names)
        self.arguments, self.named = built[:count], tuple(zip(names, built[count:], strict=True))

    def _built(self, tree: Tree) -> Any:
        if isinstance(tree, tuple):
            kind, items = tree
            return CONTAINERS[kind]([self._built(each) for each in items])
        if tree in AGAIN:
            first = self._held[min(1, len(self._held) - 1)]
            if tree == "last":
                return self._held[-1]
            return first if tree == "first" or not hasattr(first, "clone") else first.clone()
        self._number += 1
        found = MADE[tree](self._number) if tree in MADE else MEANT[tree]()
        if tree.startswith(("shared", "array")):
            self._held.append(found)
        self.meanings[id(found)] = tree
        self._kept.append(found)
        return found

    def told(self, rows: Sequence[Row], leaves: Sequence[Any]) -> str:
        """Return all that a trace can tell of the arguments of this call, which have these rows and leaves."""
        memories: dict[Storage, int] = {}
        places = {id(leaf): number for number, leaf in enumerate(leaves)}
        reads: set[int] = set()

        def take(handle: Any) -> Taken:
            state = live_state(handle)
            memory = memories.setdefault(state.storage, len(memories))
            cut = cut_of(handle) if type(handle) is Partition else None
            written = state.storage.graph() is not None
            facts = type(handle), state.kind, state.layout, state.storage.device, state.storage.nbytes
            return Taken(f"handle {places[id(handle)]} {facts} {memory} {cut} {written}")

        def told(x: Any) -> str:
            kind = type(x)
            if kind is Taken:
                return str(x.text)
            if kind is SymbolicNumber:
                return f"number {x.index_in(reads)} {type(x.number)}"
            if kind is SymbolicArray:
                return f"array {x.index_in(reads)} {x.dtype.str if is_element(x.dtype) else id(x.dtype)} {x.shape}"
            if kind is dict:
                return f"{[(type(key), repr(key), told(item)) for key, item in x.items()]}"
            if isinstance(x, Composite):
                return f"{kind} {id(about_of(x))} {[told(each) for each in items_of(x)]}"
            if isinstance(x, tuple | list):
                return f"{kind} {[told(each) for each in x]}"
            if isinstance(x, np.dtype):
                return f"dtype {id(x)}"
            if isinstance(x, DeviceOp) or callable(x):
                return self.meanings[id(x)]
            return f"{kind} {x.tobytes().hex() if isinstance(x, np.generic) else repr(x)}"

        return told(with_standins(rows, (self.arguments, self.named), Trace(reads, leaves, take)))


@final
@plain
class Taken:
    """What a trace sees of a handle."""

    text: str


def is_element(dtype: Any) -> bool:
    """True for the element type of a tensor, which is no other whichever object names it."""
    return element_type(dtype) is not None and dtype.metadata is None
