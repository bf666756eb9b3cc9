"""The nodes that a call of a kernel and the composition of ops build, and the functions that they apply."""

import itertools
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol, final, overload

from typing_extensions import TypeVar

from dagpu.common.containers import values_in
from dagpu.common.errors import ShapeError
from dagpu.common.frozen import frozen, plain
from dagpu.common.layout import Layout, reshape_layout, viewed_type
from dagpu.common.places import Origin, describe, here, leaves_run, without_our_frames
from dagpu.common.wrong_arguments import as_whole_number, format_value, wrong_argument
from dagpu.handles import HANDLES, partition_handle, reshape_handle, share_tensor, unpartition_handle
from dagpu.handles.device_handles import Device, Stream
from dagpu.handles.tensors import move_handles
from dagpu.ops.base import Borrowed, DeviceOp, MayAlloc, NoAlloc, Place, Static, cure_by_await
from dagpu.ops.kernel_spec import KernelSpec
from dagpu.ops.parts import Part, Reread, plain_index
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
    """An op whose result is a value that exists already. The handles in it have moved into this op."""

    content: Any
    origin: Origin


@final
@frozen
class Then(DeviceOp[_T_co, _L_co, _G_co]):
    """Calls `f` with the source's result; `f` returns an op, and its result is the result."""

    source: DeviceOp[Any, Any, Any]
    f: Callable[[Any], DeviceOp[Any, Any, Any]]
    origin: Origin


@final
@frozen
class Map(DeviceOp[_T_co, _L_co, _G_co]):
    """Applies `f` to the source's result."""

    source: DeviceOp[Any, Any, Any]
    f: "Callable[[Any], Any] | Builtin | Inspect"
    origin: Origin


@final
@frozen
class Zip(DeviceOp[_T_co, _L_co, _G_co]):
    """The results of independent sources, as a tuple."""

    sources: tuple[DeviceOp[Any, Any, Any], ...]
    origin: Origin


@final
@frozen
class Split:
    """The state shared by the components of one `unzip()`."""

    source: DeviceOp[Any, Any, Any]
    n: int
    once: Once
    """Remembers the list of components. A component that is taken is replaced by a `Taken`."""
    takers: "list[weakref.ref[Unzip[Any]]]"
    """Weak references to the ops that may take a component. An op that is dead never takes one."""
    in_each_run: bool = False
    """True if every run evaluates the source for itself, and no component stays for another run."""


@final
@frozen
class Unzip(DeviceOp[_T_co, _L_co, _G_co]):
    """Component `index` of the tuple that is the result of `split.source`."""

    split: Split
    index: int
    origin: Origin

    @property
    def once(self) -> Once:
        """Remembers the list of components, also for the other ops of the same `unzip()`."""
        return self.split.once


@final
@frozen
class Shared(DeviceOp[_T_co, _L_co, _G_co]):
    """The source's result, computed once and remembered."""

    source: DeviceOp[Any, Any, Any]
    once: Once
    origin: Origin


@final
@frozen
class Cutoff(DeviceOp[_T_co, _L_co, _G_co]):
    """The source's result. In a feed, what comes after it is stale only if the value differs from the one before."""

    source: Shared[Any]
    equal: Callable[[Any, Any], bool] | None
    """The comparison of an old and a new value; None for a comparison of the bits of arrays, or by `==`."""
    origin: Origin


@final
@frozen
class ToHost(DeviceOp[_T_co, _L_co, _G_co]):
    """A NumPy array with the contents of the source's result, a handle."""

    source: DeviceOp[Any, Any, Any]
    origin: Origin


@final
@frozen
class HostCall(DeviceOp[_T_co, _L_co, _G_co]):
    """Calls `f` with the source's result on a worker thread."""

    source: DeviceOp[Any, Any, Any]
    f: Callable[[Any], Any]
    origin: Origin


class KernelOp(DeviceOp[Any, Any, Any]):
    """The type of a kernel call for a type checker without the plugin. With it, the type is `DeviceOp[tuple[...]]`."""

    __slots__ = ()

    if TYPE_CHECKING:  # other types for the same methods; real overrides would cost as much as building the op

        def unzip(self, n: int | None = None) -> tuple[DeviceOp[Any, Any, Any], ...]:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # reason: any arity
            """Return one op for each argument of the call, in the form in which it was passed."""
            return super().unzip(n)

        def first(self) -> DeviceOp[Any, Any, Any]:
            """Return an op for the first argument, in the form in which it was passed; the others are dropped."""
            return super().first()


@final
@frozen
class Launch(KernelOp):
    """A kernel call. `args` are handles, ops and numbers, in the order of the kernel's parameters.

    The result is a tuple of all arguments, each in the form in which it was passed. Handles among them have moved into
    this op.
    """

    kernel: KernelSpec
    args: tuple[Any, ...]
    origin: Origin


@final
@frozen
class On(DeviceOp[_T_co, _L_co, _G_co]):
    """Places its source on a device, by a policy, or on one stream."""

    source: DeviceOp[Any, Any, Any]
    place: "Place | Stream"
    origin: Origin


@final
class Taken:
    """Replaces a component that an `Unzip` has taken."""

    __slots__ = ()


# ---- building

UNKNOWN_RESULTS: set[type[Any]] = set()
"""Further types of ops whose structure does not show their result. Modules that are imported later add them."""


@leaves_run
def value(x: _T) -> "DeviceOp[_T, Static, NoAlloc]":
    """Return an op whose result is `x`. The handles in `x` (also in tuples, lists and dicts) move into the op."""
    origin = here()
    inner = _op_in(x)
    if inner is not None:
        raise TypeError(
            f"value at {describe(origin)}: x {'is' if inner is x else 'contains'} {inner!r}, which no run would "
            "execute. Use the op itself; zip_ops(a, b) makes one op of several."
        )
    return Value(move_handles(x, "value()", origin), origin)


def _op_in(x: object) -> DeviceOp[Any, Any, Any] | None:
    """Return the first op that `dagpu.common.containers.values_in` finds in a value; None if there is none."""
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
def zip_ops(
    a: DeviceOp[Any, _L, _G],
    b: DeviceOp[Any, _L, _G],
    c: DeviceOp[Any, _L, _G],
    d: DeviceOp[Any, _L, _G],
    e: DeviceOp[Any, _L, _G],
    f: DeviceOp[Any, _L, _G],
    g: DeviceOp[Any, _L, _G],
    h: DeviceOp[Any, _L, _G],
    i: DeviceOp[Any, _L, _G],
    /,
    *ops: DeviceOp[Any, _L, _G],
) -> DeviceOp[tuple[Any, ...], _L, _G]: ...
def zip_ops(*ops: Any) -> Any:
    """Return an op whose result is the tuple of the results of its arguments, which are ops. They are independent, so
    their work may overlap."""
    try:
        origin = here()
        for index, op in enumerate(ops):
            if not isinstance(op, DeviceOp):
                listed = isinstance(op, tuple | list) and op and all(isinstance(item, DeviceOp) for item in op)
                cure = "Unpack it: zip_ops(*ops)" if listed else "Make an op of a value: value(x)"
                raise wrong_argument("zip_ops", origin, f"argument {index}", op, "an op", cure_by_await(op) or cure)
        return Zip(ops, origin)
    except BaseException as error:
        without_our_frames(error)
        raise


def placed(op: DeviceOp[Any, Any, Any], place: Any, origin: Origin) -> On[Any, Any, Any]:
    """Build the op that `op.on(place)` returns."""
    if not isinstance(place, Device | Stream | str):
        wanted = "a device, its name, or a scheduling policy"
        _check_policy(place, "on", "place", wanted, "Write device('host:1'), 'host:1', or RoundRobin(4)", origin)
    return On(op, place, origin)


def scheduled(op: DeviceOp[Any, Any, Any], policy: Any, origin: Origin) -> On[Any, Any, Any]:
    """Build the op that `op.schedule(policy)` returns."""
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
    """Build the op that `op.shared()` returns: `op` itself if it is shared already."""
    return op if isinstance(op, Shared) else Shared(op, Once(), origin)


def arity(op: DeviceOp[Any, Any, Any]) -> int | None:
    """Return the number of components in an op's result; None if the op's structure does not show it."""
    while True:
        match op:
            case Zip():
                return len(op.sources)
            case Launch():
                return len(op.args)
            case Value():
                return len(op.content) if isinstance(op.content, tuple) else None
            case Shared() | On() | Cutoff():
                op = op.source
            case Map() if isinstance(op.f, Inspect):
                op = op.source
            case Map(source=Launch(args=args), f=Outputs(first=first)):
                return len(args) - first
            case Map(f=Components(count=count)):
                return count
            case _:
                return None


def produces_host_data(op: DeviceOp[Any, Any, Any]) -> bool:
    """True if the structure of an op shows that its result is host data."""
    while isinstance(op, Shared | On | Cutoff) or (isinstance(op, Map) and isinstance(op.f, Inspect)):
        op = op.source
    return isinstance(op, ToHost | HostCall)


def _produces_one_value(op: DeviceOp[Any, Any, Any]) -> bool:
    """True if the structure of an op shows that its result is not a tuple."""
    while isinstance(op, Shared | On | Cutoff) or (isinstance(op, Map) and isinstance(op.f, Inspect)):
        op = op.source
    match op:
        case Value():
            return not isinstance(op.content, tuple | list)
        case Map():
            return isinstance(op.f, Cut | Reshape | Part | Reread | Uncut | Share)
        case ToHost():
            return True
        case Zip() | Launch() | Then() | HostCall() | Unzip():
            return False
        case _ if type(op) in UNKNOWN_RESULTS:
            return False
        case _:
            return True  # an op that makes a tensor, or the launch of a graph, whose result is None


def components_of(op: DeviceOp[Any, Any, Any], origin: Origin) -> tuple[Unzip[Any], ...]:
    """Build an op of each component of a tuple, for one op that is built of them all.

    Unlike those of `op.unzip()`, they are no results of their own: each run of the op evaluates `op`.
    """
    count = arity(op)
    assert count is not None
    return _split(op, count, origin, in_each_run=True)


def unzip(op: DeviceOp[Any, Any, Any], n: int | None, origin: Origin) -> tuple[Unzip[Any], ...]:
    """Build the ops that `op.unzip(n)` returns."""
    seen = arity(op)
    if n is not None and ((count := as_whole_number(n)) is None or count < 0):
        raise ShapeError(
            f"unzip at {describe(origin)}: n is {format_value(n)}, but the number of components is wanted. "
            "Write unzip(2)."
        )
    if _produces_one_value(op):
        raise ShapeError(
            f"unzip() at {describe(origin)} of {op!r}, whose result is one value, not a tuple. Leave unzip() out, or "
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
    return _split(op, total, origin)


def _split(
    op: DeviceOp[Any, Any, Any], count: int, origin: Origin, *, in_each_run: bool = False
) -> tuple[Unzip[Any], ...]:
    split = Split(op, count, Once(), [], in_each_run)
    parts: tuple[Unzip[Any], ...] = tuple(Unzip(split, index, origin) for index in range(count))
    split.takers.extend(map(weakref.ref, parts))
    return parts


def sources_of(op: DeviceOp[Any, Any, Any]) -> Iterable[DeviceOp[Any, Any, Any]]:
    """Return the direct sources of an op that are visible without calling closures."""
    match op:
        case Then() | Map() | Shared() | Cutoff() | ToHost() | HostCall() | On():
            return (op.source,)
        case Zip():
            return op.sources
        case Unzip():
            return (op.split.source,)
        case Launch():
            return tuple(arg for arg in op.args if isinstance(arg, DeviceOp))
        case _:
            return ()


def nodes_of(
    root: DeviceOp[Any, Any, Any],
    inputs_of: Callable[[DeviceOp[Any, Any, Any]], Iterable[DeviceOp[Any, Any, Any]]] = sources_of,
) -> list[DeviceOp[Any, Any, Any]]:
    """List the ops of a DAG, each once, the nearest to `root` first, as far as visible without calling closures."""
    found: dict[DeviceOp[Any, Any, Any], None] = {root: None}
    frontier = [root]
    while frontier:
        nearer, frontier = frontier, []
        for op in nearer:
            for source in inputs_of(op):
                if source not in found:
                    found[source] = None
                    frontier.append(source)
    return list(found)


def part_of(op: DeviceOp[Any, Any, Any], index: Any, origin: Origin) -> Map[Any]:
    """Build the op that `op[index]` returns."""
    if arity(op) is not None:
        raise ShapeError(
            f"[] at {describe(origin)} of {op!r}, whose result is a tuple. Pick a part of it with .first() or .unzip()."
        )
    if produces_host_data(op):
        raise ShapeError(
            f"[] at {describe(origin)} of {op!r}, whose result is on the host. Slice the tensor before .to_host(), or "
            "the array: .map(lambda array: array[1:])."
        )
    try:
        return Map(op, Part(plain_index(index)), origin)
    except ShapeError as error:
        raise ShapeError(f"[] at {describe(origin)} of {op!r}: {error}") from None


def reread_as(op: DeviceOp[Any, Any, Any], dtype: Any, origin: Origin) -> Map[Any]:
    """Build the op that `op.view(dtype)` returns."""
    found = viewed_type(dtype)
    if found is None:
        raise ShapeError(
            f"view() at {describe(origin)} of {op!r}: {format_value(dtype)} is not an element type. Say op.view(i32), "
            "with i32 from dagpu; another shape is op.reshape(shape)."
        )
    return Map(op, Reread(found.name), origin)


# ---- node functions
#
# The functions that `Map` and `Then` apply for fluent methods and pipelines: data, so that a plan can be found by the
# structure of an op.


class Builtin(Protocol):
    """A built-in function on handles. Its errors name `where`, the place of the user's call."""

    def apply(self, x: Any, where: Origin, /) -> Any: ...


@final
@plain
class Cut:
    """The function `t.partition(tile)`."""

    tile: Any
    partial: bool

    def apply(self, t: Any, where: Origin) -> Any:
        return partition_handle(t, self.tile, self.partial, where)


@final
@plain
class Reshape:
    """The function `t.reshape(shape)`."""

    shape: Any

    def apply(self, t: Any, where: Origin) -> Any:
        return reshape_handle(t, self.shape, where)

    def layout_of(self, layout: Layout) -> Layout:
        return reshape_layout(layout, self.shape)


@final
@plain
class Uncut:
    """The function `p.unpartition()`."""

    def apply(self, p: Any, where: Origin) -> Any:
        return unpartition_handle(p, where)


@final
@plain
class Share:
    """The function `t.share()`."""

    def apply(self, t: Any, where: Origin) -> Any:
        return share_tensor(t, where)


@final
@plain
class Item:
    """The function that returns one component of a tuple."""

    index: int

    def apply(self, x: Any, where: Origin) -> Any:
        call = "last()" if self.index else "first()"
        if type(x) in HANDLES:
            raise ShapeError(
                f"{call} at {describe(where)}: the result of the op is one {type(x).__name__}, not a tuple. Leave "
                f"{call} out."
            )
        try:
            return x[self.index]
        except (TypeError, LookupError):
            raise ShapeError(
                f"{call} at {describe(where)}: the result of the op is {format_value(x)}, which has no components. "
                f"Leave {call} out, or let the op return a tuple that has some."
            ) from None


@final
@plain
class Outputs:
    """The function that returns the outputs of a launch, its arguments from number `first` on, as whole tensors."""

    first: int

    def apply(self, x: Any, where: Origin) -> Any:
        return tuple([unpartition_handle(each, where) for each in x[self.first :]])


@final
@plain
class Components:
    """The function that returns a tuple itself. The structure of the op shows the number of its components."""

    count: int

    def apply(self, x: Any, where: Origin) -> Any:
        return x


@final
@plain
class Inspect:
    """The function that calls the user's `f` with a value, and returns that value."""

    f: Callable[[Any], object]


@final
@frozen
class Pure:
    """The function of a pipeline. The user promises that its result depends on its arguments alone.

    A trace of the function may be used again for other arguments. A pipeline has one `Pure`, which all its calls share.
    """

    f: Callable[..., DeviceOp[Any, Any, Any]]
    number: int
    """The number of the pipeline. No other pipeline in the process has it."""
    name: str
    """The pipeline in messages: its name and the place of its declaration."""
    plans: Any
    """The plans of the pipeline: a `PlanCache` of dagpu.runtime.plan_lookup."""

    def __repr__(self) -> str:
        return self.name

    def __call__(self, arguments: tuple[tuple[Any, ...], tuple[tuple[str, Any], ...]]) -> DeviceOp[Any, Any, Any]:
        return self.f(*arguments[0], **dict(arguments[1]))


@final
@frozen
class ByResults:
    """A function of dagpu's that builds an op of the results of others: of their layouts, and of what it closes over,
    which does not change."""

    f: Callable[[Any], DeviceOp[Any, Any, Any]]
    name: str
    """The name of the op in messages and pictures."""
    folded: tuple[DeviceOp[Any, Any, Any], ...] = ()
    """The ops whose work is part of this op's, so that none of them is a result of its own in a run."""
    numbers: tuple[Any, ...] = ()
    """Numbers that follow the results, as arguments of the kernel: a plan serves others."""
    layout: Layout | None = None
    """The layout of the result, if it is known."""
    waits_for_length: bool = False
    """True if it waits for a number of the device that says the length of its result: not where the call has a
    `size`."""

    def __call__(self, results: Any) -> DeviceOp[Any, Any, Any]:
        return self.f(results)


@final
@frozen
class ByTrace:
    """A function of dagpu's that builds an op of the results of others and of the state of the trace: the first of its
    arguments is the result, the second the evaluation."""

    f: Callable[[Any, Any], DeviceOp[Any, Any, Any]]
    name: str
    """The name of the op in messages and pictures."""

    def __call__(self, result: Any) -> DeviceOp[Any, Any, Any]:
        raise AssertionError  # the trace calls `f` itself


pipeline_numbers: Final = itertools.count()

FIRST, LAST, UNCUT, SHARE = Item(0), Item(-1), Uncut(), Share()
BUILT_IN = frozenset((Cut, Reshape, Part, Reread, Uncut, Share, Item, Outputs, Components))
