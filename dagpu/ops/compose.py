"""The nodes that compose ops, and `Value`, where every DAG begins."""

import weakref
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol, final, overload

from typing_extensions import TypeVar

from dagpu.common.containers import values_in
from dagpu.common.errors import ShapeError
from dagpu.common.frozen import frozen, plain
from dagpu.common.origin import Origin, describe, here, place_of
from dagpu.common.wrong_arguments import shown, whole, wrong_argument
from dagpu.handles import HANDLES, cut_up, put_together, reshape, share
from dagpu.handles.device_handles import Device, Stream
from dagpu.handles.handle_trees import moved_in
from dagpu.ops.base import Borrowed, DeviceOp, MayAlloc, NoAlloc, Place, Static, await_first
from dagpu.ops.launch import Launch
from dagpu.ops.single_flight import Once

_T = TypeVar("_T")
_A = TypeVar("_A")
_B = TypeVar("_B")
_C = TypeVar("_C")
_D = TypeVar("_D")
_E = TypeVar("_E")
_F = TypeVar("_F")
_H = TypeVar("_H")
_I = TypeVar("_I")
_L = TypeVar("_L", bound=Borrowed)
_L2 = TypeVar("_L2", bound=Borrowed)
_G = TypeVar("_G", bound=MayAlloc)
_G2 = TypeVar("_G2", bound=MayAlloc)
_T_co = TypeVar("_T_co", covariant=True)
_L_co = TypeVar("_L_co", bound=Borrowed, covariant=True, default=Static)
_G_co = TypeVar("_G_co", bound=MayAlloc, covariant=True, default=MayAlloc)


@final
@frozen
class Value(DeviceOp[_T_co, _L_co, _G_co]):
    """A value that is there already. The handles in it have moved into this op."""

    held: Any
    origin: Origin


@final
@frozen
class Then(DeviceOp[_T_co, _L_co, _G_co]):
    """`f` of the source's value is an op; its value is the result."""

    source: DeviceOp[Any, Any, Any]
    f: Callable[[Any], DeviceOp[Any, Any, Any]]
    origin: Origin


@final
@frozen
class Map(DeviceOp[_T_co, _L_co, _G_co]):
    """`f` of the source's value."""

    source: DeviceOp[Any, Any, Any]
    f: "Callable[[Any], Any] | Builtin | Inspect"
    origin: Origin


@final
@frozen
class Zip(DeviceOp[_T_co, _L_co, _G_co]):
    """The values of independent sources, as a tuple."""

    sources: tuple[DeviceOp[Any, Any, Any], ...]
    origin: Origin


@final
@frozen
class Split:
    """The state that the components of one `unzip()` share."""

    source: DeviceOp[Any, Any, Any]
    n: int
    once: Once
    """Remembers the list of components; each is replaced by a `Taken` when it is taken."""
    takers: "list[weakref.ref[Unzip[Any]]]"
    """The ops that may take them. One that is gone never will."""


@final
@frozen
class Unzip(DeviceOp[_T_co, _L_co, _G_co]):
    """Component `index` of the tuple that `split.source` gives."""

    split: Split
    index: int
    origin: Origin


@final
@frozen
class Shared(DeviceOp[_T_co, _L_co, _G_co]):
    """The source's value, made once and remembered."""

    source: DeviceOp[Any, Any, Any]
    once: Once
    origin: Origin


@final
@frozen
class ToHost(DeviceOp[_T_co, _L_co, _G_co]):
    """A NumPy array with the contents of the handle that the source gives."""

    source: DeviceOp[Any, Any, Any]
    origin: Origin


@final
@frozen
class HostCall(DeviceOp[_T_co, _L_co, _G_co]):
    """`f` of the source's value, on a worker thread."""

    source: DeviceOp[Any, Any, Any]
    f: Callable[[Any], Any]
    origin: Origin


@final
@frozen
class On(DeviceOp[_T_co, _L_co, _G_co]):
    """The source, placed on a device, by a policy, or on one stream."""

    source: DeviceOp[Any, Any, Any]
    place: "Place | Stream"
    origin: Origin


@final
class _Taken:
    """Replaces a component of an `Unzip` that was taken; `by` is the place where that was."""

    __slots__ = ("by",)

    def __init__(self, by: Origin) -> None:
        self.by = by


Taken = _Taken


# ---- functions that `Map` applies for the fluent methods: data, so that a plan can be found by structure


class Builtin(Protocol):
    """A built-in function on handles. It is given the place of the user's call, for its errors."""

    def apply(self, x: Any, where: Origin, /) -> Any: ...


@final
@plain
class Cut:
    """`t.partition(tile)`."""

    tile: Any
    partial: bool

    def apply(self, t: Any, where: Origin) -> Any:
        return cut_up(t, self.tile, self.partial, where)


@final
@plain
class Reshape:
    """`t.reshape(shape)`."""

    shape: Any

    def apply(self, t: Any, where: Origin) -> Any:
        return reshape(t, self.shape, where)


@final
@plain
class Uncut:
    """`p.unpartition()`."""

    def apply(self, p: Any, where: Origin) -> Any:
        return put_together(p, where)


@final
@plain
class Share:
    """`t.share()`."""

    def apply(self, t: Any, where: Origin) -> Any:
        return share(t, where)


@final
@plain
class Item:
    """One component of a tuple."""

    index: int

    def apply(self, x: Any, where: Origin) -> Any:
        if type(x) in HANDLES:
            call = "last()" if self.index else "first()"
            raise ShapeError(
                f"{call} at {describe(where)}: the result of the op is one {type(x).__name__}, and no tuple. Leave "
                f"{call} out."
            )
        return x[self.index]


@final
@plain
class Inspect:
    """Call the user's `f` in passing."""

    f: Callable[[Any], object]


@final
@plain
class Pure:
    """The function of a pipeline. The user promises that its result follows from its arguments.

    `owner` is the pipeline. A trace of it may be kept for other arguments.
    """

    f: Callable[..., DeviceOp[Any, Any, Any]]
    owner: Any

    def __call__(self, arguments: tuple[tuple[Any, ...], tuple[tuple[str, Any], ...]]) -> DeviceOp[Any, Any, Any]:
        return self.f(*arguments[0], **dict(arguments[1]))


FIRST, LAST, UNCUT, SHARE = Item(0), Item(-1), Uncut(), Share()
BUILT_IN = frozenset((Cut, Reshape, Uncut, Share, Item))


# ---- building


def value(x: _T) -> "DeviceOp[_T, Static, NoAlloc]":
    """An op whose result is `x`. The handles in it (also in tuples, lists and dicts) move into the op."""
    origin = here()
    inner = _op_in(x)
    if inner is not None:
        raise TypeError(
            f"value at {describe(origin)}: {'x is' if inner is x else 'in x there is'} {inner!r}, which nobody would "
            "run. Use the op itself; zip_ops(a, b) makes one op of several."
        )
    return Value(moved_in(x, "value()", origin), origin)


def _op_in(x: object) -> DeviceOp[Any, Any, Any] | None:
    """The first op in a value; see `dagpu.common.containers.values_in`."""
    return next((item for item in values_in(x) if isinstance(item, DeviceOp)), None)


@overload
def zip_ops(a: DeviceOp[_A, _L, _G], /) -> DeviceOp[tuple[_A], _L, _G]: ...
@overload
def zip_ops(a: DeviceOp[_A, _L, _G], b: DeviceOp[_B, _L2, _G2], /) -> DeviceOp[tuple[_A, _B], _L | _L2, _G | _G2]: ...
@overload
def zip_ops(
    a: DeviceOp[_A, _L, _G], b: DeviceOp[_B, _L, _G], c: DeviceOp[_C, _L2, _G2], /
) -> DeviceOp[tuple[_A, _B, _C], _L | _L2, _G | _G2]: ...
@overload
def zip_ops(
    a: DeviceOp[_A, _L, _G], b: DeviceOp[_B, _L, _G], c: DeviceOp[_C, _L, _G], d: DeviceOp[_D, _L2, _G2], /
) -> DeviceOp[tuple[_A, _B, _C, _D], _L | _L2, _G | _G2]: ...
@overload
def zip_ops(
    a: DeviceOp[_A, _L, _G],
    b: DeviceOp[_B, _L, _G],
    c: DeviceOp[_C, _L, _G],
    d: DeviceOp[_D, _L, _G],
    e: DeviceOp[_E, _L2, _G2],
    /,
) -> DeviceOp[tuple[_A, _B, _C, _D, _E], _L | _L2, _G | _G2]: ...
@overload
def zip_ops(
    a: DeviceOp[_A, _L, _G],
    b: DeviceOp[_B, _L, _G],
    c: DeviceOp[_C, _L, _G],
    d: DeviceOp[_D, _L, _G],
    e: DeviceOp[_E, _L, _G],
    f: DeviceOp[_F, _L2, _G2],
    /,
) -> DeviceOp[tuple[_A, _B, _C, _D, _E, _F], _L | _L2, _G | _G2]: ...
@overload
def zip_ops(
    a: DeviceOp[_A, _L, _G],
    b: DeviceOp[_B, _L, _G],
    c: DeviceOp[_C, _L, _G],
    d: DeviceOp[_D, _L, _G],
    e: DeviceOp[_E, _L, _G],
    f: DeviceOp[_F, _L, _G],
    g: DeviceOp[_H, _L2, _G2],
    /,
) -> DeviceOp[tuple[_A, _B, _C, _D, _E, _F, _H], _L | _L2, _G | _G2]: ...
@overload
def zip_ops(
    a: DeviceOp[_A, _L, _G],
    b: DeviceOp[_B, _L, _G],
    c: DeviceOp[_C, _L, _G],
    d: DeviceOp[_D, _L, _G],
    e: DeviceOp[_E, _L, _G],
    f: DeviceOp[_F, _L, _G],
    g: DeviceOp[_H, _L, _G],
    h: DeviceOp[_I, _L2, _G2],
    /,
) -> DeviceOp[tuple[_A, _B, _C, _D, _E, _F, _H, _I], _L | _L2, _G | _G2]: ...
@overload
def zip_ops(*ops: DeviceOp[Any, _L, _G]) -> DeviceOp[tuple[Any, ...], _L, _G]: ...
def zip_ops(*ops: Any) -> Any:
    """The results of all `ops`, as a tuple. The branches are independent: they overlap where the device allows."""
    origin = here()
    for index, op in enumerate(ops):
        if not isinstance(op, DeviceOp):
            listed = isinstance(op, tuple | list) and op and all(isinstance(item, DeviceOp) for item in op)
            cure = "Unpack it: zip_ops(*ops)" if listed else "Make an op of a value: value(x)"
            raise wrong_argument("zip_ops", origin, f"argument {index}", op, "an op", await_first(op) or cure)
    return Zip(ops, origin)


def placed(op: DeviceOp[Any, Any, Any], place: Any, origin: Origin) -> On[Any, Any, Any]:
    """`op.on(place)`."""
    if not isinstance(place, Device | Stream | str):
        wanted = "a device, its name, or a scheduling policy"
        _check_policy(place, "on", "place", wanted, "Write device('host:1'), 'host:1', or RoundRobin(4)", origin)
    return On(op, place, origin)


def scheduled(op: DeviceOp[Any, Any, Any], policy: Any, origin: Origin) -> On[Any, Any, Any]:
    """`op.schedule(policy)`."""
    cure = "Write SingleStream(), RoundRobin(4), ListSchedule(4), or an object with a method place(program)"
    _check_policy(policy, "schedule", "policy", "a scheduling policy", f"{cure}; .on(...) takes a device", origin)
    return On(op, policy, origin)


def _check_policy(policy: Any, call: str, name: str, wanted: str, cure: str, origin: Origin) -> None:
    if isinstance(policy, type) and callable(getattr(policy, "place", None)):
        cure = f"Make one of the class: {policy.__name__}()"
    elif callable(getattr(policy, "place", None)) and not isinstance(policy, DeviceOp):
        return
    raise wrong_argument(call, origin, name, policy, wanted, cure)


def shared(op: DeviceOp[Any, Any, Any], origin: Origin) -> Shared[Any]:
    """`op.shared()`; sharing twice is sharing once."""
    return op if isinstance(op, Shared) else Shared(op, Once(), origin)


def arity(op: DeviceOp[Any, Any, Any]) -> int | None:
    """The number of components in the tuple that an op gives; None where its structure does not show it."""
    while True:
        match op:
            case Zip():
                return len(op.sources)
            case Launch():
                return len(op.args)
            case Value():
                return len(op.held) if isinstance(op.held, tuple) else None
            case Shared() | On():
                op = op.source
            case Map() if isinstance(op.f, Inspect):
                op = op.source
            case _:
                return None


def yields_host_data(op: DeviceOp[Any, Any, Any]) -> bool:
    """True if the structure of an op shows that its result is host data."""
    while isinstance(op, Shared | On) or (isinstance(op, Map) and isinstance(op.f, Inspect)):
        op = op.source
    return isinstance(op, ToHost | HostCall)


def _yields_one_value(op: DeviceOp[Any, Any, Any]) -> bool:
    """True if the structure of an op shows that its result is not a tuple."""
    while isinstance(op, Shared | On) or (isinstance(op, Map) and isinstance(op.f, Inspect)):
        op = op.source
    match op:
        case Value():
            return not isinstance(op.held, tuple | list)
        case Map():
            return isinstance(op.f, Cut | Reshape | Uncut | Share)
        case ToHost():
            return True
        case Zip() | Launch() | Then() | HostCall() | Unzip():
            return False
        case _:
            return True  # what makes a tensor, or a graph's launch, which gives None


def unzip(op: DeviceOp[Any, Any, Any], n: int | None, origin: Origin) -> tuple[Unzip[Any], ...]:
    """`op.unzip(n)`."""
    seen = arity(op)
    if n is not None and ((count := whole(n)) is None or count < 0):
        raise ShapeError(
            f"unzip at {describe(origin)}: n is {shown(n)}, but the number of components is wanted. Write unzip(2)."
        )
    if _yields_one_value(op):
        raise ShapeError(
            f"unzip() at {describe(origin)} of {op!r}, whose result is one value and no tuple. Leave unzip() out, or "
            "make one op of several first: zip_ops(a, b)."
        )
    if n is None and seen is None:
        raise ShapeError(
            f"unzip() at {describe(origin)} of {op!r}: the op's structure does not show how many components its result "
            "has. Say how many: unzip(2)."
        )
    if n is not None and seen is not None and n != seen:
        raise ShapeError(
            f"unzip({n}) at {describe(origin)} of {op!r}, whose result has {seen} components. Say unzip()."
        )
    total = seen if n is None else n
    assert total is not None
    split = Split(op, total, Once(), [])
    parts: tuple[Unzip[Any], ...] = tuple(Unzip(split, index, origin) for index in range(total))
    split.takers.extend(map(weakref.ref, parts))
    return parts


def sources_of(op: DeviceOp[Any, Any, Any]) -> Iterable[DeviceOp[Any, Any, Any]]:
    """The ops that an op is seen to be made of, closures not called."""
    match op:
        case Then() | Map() | Shared() | ToHost() | HostCall() | On():
            return (op.source,)
        case Zip():
            return op.sources
        case Unzip():
            return (op.split.source,)
        case Launch():
            return tuple(arg for arg in op.args if isinstance(arg, DeviceOp))
        case _:
            return ()


def nodes_of(root: DeviceOp[Any, Any, Any]) -> list[DeviceOp[Any, Any, Any]]:
    """All ops of a DAG, each once, the nearest to `root` first; as far as is visible without calling closures."""
    found: dict[DeviceOp[Any, Any, Any], None] = {root: None}
    frontier = [root]
    while frontier:
        nearer, frontier = frontier, []
        for op in nearer:
            for source in sources_of(op):
                if source not in found:
                    found[source] = None
                    frontier.append(source)
    return list(found)


_IN_DOT: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r"})
"""Escapes for the characters of a label between quotation marks (Graphviz: the DOT language, escString)."""


def to_dot(root: DeviceOp[Any, Any, Any]) -> str:
    """The DAG in Graphviz DOT: one node an op with its origin, one edge a value, data flowing downwards."""
    numbers = {op: number for number, op in enumerate(nodes_of(root))}
    lines = ["digraph dagpu {", "  node [shape=box, fontname=monospace];"]
    for op, number in numbers.items():
        place = place_of(op.origin)
        where = "" if place is None else f"\n{place[0].rsplit('/', 1)[-1]}:{place[1]}"
        lines.append(f'  n{number} [label="{(label_of(op) + where).translate(_IN_DOT)}"];')
        lines += [f"  n{numbers[source]} -> n{number};" for source in sources_of(op)]
    return "\n".join([*lines, "}"])


def label_of(op: DeviceOp[Any, Any, Any]) -> str:
    """A label for an op, of a word or two: `Launch saxpy`."""
    match op:
        case Launch():
            return f"Launch {op.kernel.name}"
        case Map(f=Cut(tile=tile)):
            return f"partition {tile}"
        case Map(f=Uncut() | Share() | Reshape() as change):
            return {Uncut: "unpartition", Share: "share", Reshape: "reshape"}[type(change)]
        case Map(f=Item(index=index)):
            return "first" if index == 0 else "last"
        case Unzip():
            return f"Unzip [{op.index}]"
        case _:
            return type(op).__name__
