"""`DeviceOp`, what every op is, and its fluent methods. Building an op does nothing; running is dagpu.runtime's.

A base class cannot import its own subclasses, so dagpu.ops.nodes puts the ops that the methods build into the slot
`NODES`, and dagpu.runtime puts what runs them into the slot `RUNNER`.
"""

from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, Protocol, TypeAlias, final, overload

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from dagpu.common.dtypes import Shape
from dagpu.common.errors import NotReadyError
from dagpu.common.origin import Origin, describe, here
from dagpu.common.slot import Slot
from dagpu.common.tracebacks import leaves_run, without_our_frames
from dagpu.common.wrong_arguments import check_function, check_path, no_attribute, wrong_argument
from dagpu.handles import (
    ARRAY_NAMES,
    HANDLE_NAMES,
    HANDLES,
    Partition,
    SharedTensor,
    Tensor,
    TensorMut,
    TensorRef,
    copy_error,
)
from dagpu.handles.device_handles import Device, Stream

if TYPE_CHECKING:
    from dagpu.ops.graph import Captured, CudaGraph, Scope  # result types; imported by no running code


class Borrowed:
    """Phantom: the op may hold a borrow of a tensor."""


class Static(Borrowed):
    """Phantom: the op holds no borrow; it may be spawned, returned, stored."""


class MayAlloc:
    """Phantom: the op may allocate or free device memory."""


class NoAlloc(MayAlloc):
    """Phantom: the op does neither; it may be recorded into a CUDA graph."""


_T = TypeVar("_T")
_U = TypeVar("_U")
_A = TypeVar("_A")
_B = TypeVar("_B")
_C = TypeVar("_C")
_D = TypeVar("_D")
_E = TypeVar("_E")
_F = TypeVar("_F")
_H = TypeVar("_H")
_I = TypeVar("_I")
_N = TypeVar("_N", bound=np.generic)
_L = TypeVar("_L", bound=Borrowed)
_G = TypeVar("_G", bound=MayAlloc)
_T_co = TypeVar("_T_co", covariant=True)
_L_co = TypeVar("_L_co", bound=Borrowed, covariant=True, default=Static)
_G_co = TypeVar("_G_co", bound=MayAlloc, covariant=True, default=MayAlloc)


class Policy(Protocol):
    """A scheduling policy, as far as an op needs to know one; dagpu.lowering.schedule.policies has the whole."""

    def place(self, program: Any) -> Any: ...


Place: TypeAlias = Device | Policy | str


def check_stream(stream: object, call: str, where: Origin) -> None:
    """A stream of one's own; a TypeError for anything else."""
    if not isinstance(stream, Stream):
        cure = "Open one on a device: device().stream()"
        raise wrong_argument(call, where, "stream", stream, "a Stream", cure)


def has_op(made: Any) -> bool:
    """True if the result of a function of `map` or `host_map` is an op, or has one in it.

    All items of a tuple are examined, and the first one of a list or dict: these may be long, and are of one kind.
    """
    items: Iterable[object] = (made,)
    if isinstance(made, tuple):
        items = made
    elif type(made) is list:
        items = made[:1]
    elif type(made) is dict:
        items = islice(made.values(), 1)
    return any(isinstance(item, DeviceOp) for item in items)


def refuse_op(made: Any, whose: str) -> NoReturn:
    """Raise for what a function gave that `has_op`. `whose` names the function, with its place.

    Raises:
        TypeError: always.
    """
    if isinstance(made, DeviceOp):
        raise TypeError(f"{whose} gave an op, which nobody would run. Use .then.")
    raise TypeError(
        f"{whose} gave a {type(made).__name__} with an op in it, which nobody would run. Use .then, and "
        "zip_ops(a, b) for several ops."
    )


def await_first(x: object) -> str | None:
    """The cure for what has to be awaited before it can be passed: a `Pending`, a coroutine; None of anything else."""
    if isinstance(x, Awaitable) and not isinstance(x, DeviceOp) and type(x) not in HANDLES:
        return "Its result comes with await: pass await x in place of x"
    return None


def check_op(op: object, call: str, cure: str = "Pass one that is there, or make one of a value: value(x)") -> None:
    """An op; a TypeError for anything else."""
    if not isinstance(op, DeviceOp):
        raise wrong_argument(call, here(), "op", op, "an op", await_first(op) or cure)


def _fixed(extents: Any) -> Any:
    """A list of extents as a tuple, so that a later change of the list does not change the op. The trace refuses
    anything else that is not a tuple of extents."""
    return tuple(extents) if isinstance(extents, list | np.ndarray) else extents


class DeviceOp(Generic[_T_co, _L_co, _G_co]):
    """An immutable description of device work with a result of type `T`.

    `L` says whether it is free of borrows, `G` whether it allocates. Run it with `await op`, `op.sync()`,
    `op.sync_on(stream)` or `spawn(nursery, op)`.
    """

    __slots__ = ("__weakref__", "_kept")
    origin: Origin
    _kept: Any
    """The plans that its runs leave for later runs. The slot is unset until `keep_for_later_runs` sets it."""

    # ---- running

    def __await__(self) -> Generator[Any, Any, _T_co]:
        """Run it in a trio task, on the current device; a checkpoint."""
        return RUNNER.value.run(self).__await__()

    def sync(self) -> _T_co:
        """Run it, and block until its result is there. For programs without trio."""
        try:
            return RUNNER.value.run_sync(self)
        except BaseException as error:
            without_our_frames(error)
            del self
            raise

    @leaves_run
    def sync_on(self, stream: Stream) -> _T_co:
        """Run the whole of it on one explicit stream, and block until its result is there."""
        origin = here()
        check_stream(stream, "sync_on", origin)
        placed: DeviceOp[_T_co, Any, Any] = NODES.value.on(self, stream, origin)
        return RUNNER.value.run_sync(placed)

    def schedule(self, policy: Policy) -> "DeviceOp[_T_co, _L_co, _G_co]":
        """The same op, placed on streams by `policy`. The innermost placement wins."""
        return NODES.value.scheduled(self, policy, here())

    def on(self, place: Place) -> "DeviceOp[_T_co, _L_co, _G_co]":
        """The same op on a device (`"host:1"`, `device("cuda:0")`) or placed by a policy. The innermost wins."""
        return NODES.value.placed(self, place, here())

    # ---- composing

    def then(self, f: "Callable[[_T_co], DeviceOp[_U, _L, _G]]") -> "DeviceOp[_U, _L_co | _L, _G_co | _G]":
        """`f(handle)` gives an op that runs after this one, with no host synchronisation in between."""
        origin = here()
        check_function(f, "then", origin)
        return NODES.value.then(self, f, origin)

    def map(self, f: Callable[[_T_co], _U]) -> "DeviceOp[_U, _L_co, _G_co]":
        """`f(x)` of the result; no device work. Over device data, `f` sees handles."""
        origin = here()
        check_function(f, "map", origin)
        return NODES.value.map(self, f, origin)

    def host_map(self, f: Callable[[_T_co], _U]) -> "DeviceOp[_U, _L_co]":
        """`f(x)` on a worker thread once the value has arrived: for CPU work that must not hold up the loop."""
        origin = here()
        check_function(f, "host_map", origin)
        return NODES.value.host_call(self, f, origin)

    def inspect(self, f: Callable[[_T_co], object]) -> "DeviceOp[_T_co, _L_co, _G_co]":
        """Call `f(x)` in passing; the result goes on unchanged."""
        origin = here()
        check_function(f, "inspect", origin)
        return NODES.value.map(self, NODES.value.inspect(f), origin)

    @overload
    def shared(self: "DeviceOp[Tensor[_N], _L, _G]") -> "DeviceOp[SharedTensor[_N], _L, _G]": ...
    @overload
    def shared(self: "DeviceOp[_T, _L, _G]") -> "DeviceOp[_T, _L, _G]": ...
    def shared(self) -> Any:
        """Runs at most once, ever, and remembers its result while the node lives; a `Tensor` becomes a `SharedTensor`.

        Any number of consumers, in any number of runs. A failed or cancelled run is not remembered. As the result is
        everybody's, NumPy arrays in it are read-only: `array.copy()` can be written. (Without `shared()` whoever runs
        the op is the sole taker of its result, and may write to its arrays.)
        """
        return NODES.value.shared(self, here())

    @overload
    def unzip(self: "DeviceOp[tuple[_A], _L, _G]", n: int | None = None) -> tuple["DeviceOp[_A, _L, _G]"]: ...
    @overload
    def unzip(
        self: "DeviceOp[tuple[_A, _B], _L, _G]", n: int | None = None
    ) -> tuple["DeviceOp[_A, _L, _G]", "DeviceOp[_B, _L, _G]"]: ...
    @overload
    def unzip(
        self: "DeviceOp[tuple[_A, _B, _C], _L, _G]", n: int | None = None
    ) -> tuple["DeviceOp[_A, _L, _G]", "DeviceOp[_B, _L, _G]", "DeviceOp[_C, _L, _G]"]: ...
    @overload
    def unzip(
        self: "DeviceOp[tuple[_A, _B, _C, _D], _L, _G]", n: int | None = None
    ) -> tuple["DeviceOp[_A, _L, _G]", "DeviceOp[_B, _L, _G]", "DeviceOp[_C, _L, _G]", "DeviceOp[_D, _L, _G]"]: ...
    @overload
    def unzip(
        self: "DeviceOp[tuple[_A, _B, _C, _D, _E], _L, _G]", n: int | None = None
    ) -> tuple[
        "DeviceOp[_A, _L, _G]",
        "DeviceOp[_B, _L, _G]",
        "DeviceOp[_C, _L, _G]",
        "DeviceOp[_D, _L, _G]",
        "DeviceOp[_E, _L, _G]",
    ]: ...
    @overload
    def unzip(
        self: "DeviceOp[tuple[_A, _B, _C, _D, _E, _F], _L, _G]", n: int | None = None
    ) -> tuple[
        "DeviceOp[_A, _L, _G]",
        "DeviceOp[_B, _L, _G]",
        "DeviceOp[_C, _L, _G]",
        "DeviceOp[_D, _L, _G]",
        "DeviceOp[_E, _L, _G]",
        "DeviceOp[_F, _L, _G]",
    ]: ...
    @overload
    def unzip(
        self: "DeviceOp[tuple[_A, _B, _C, _D, _E, _F, _H], _L, _G]", n: int | None = None
    ) -> tuple[
        "DeviceOp[_A, _L, _G]",
        "DeviceOp[_B, _L, _G]",
        "DeviceOp[_C, _L, _G]",
        "DeviceOp[_D, _L, _G]",
        "DeviceOp[_E, _L, _G]",
        "DeviceOp[_F, _L, _G]",
        "DeviceOp[_H, _L, _G]",
    ]: ...
    @overload
    def unzip(
        self: "DeviceOp[tuple[_A, _B, _C, _D, _E, _F, _H, _I], _L, _G]", n: int | None = None
    ) -> tuple[
        "DeviceOp[_A, _L, _G]",
        "DeviceOp[_B, _L, _G]",
        "DeviceOp[_C, _L, _G]",
        "DeviceOp[_D, _L, _G]",
        "DeviceOp[_E, _L, _G]",
        "DeviceOp[_F, _L, _G]",
        "DeviceOp[_H, _L, _G]",
        "DeviceOp[_I, _L, _G]",
    ]: ...
    @overload
    def unzip(
        self: "DeviceOp[tuple[Any, ...], _L, _G]", n: int | None = None
    ) -> tuple["DeviceOp[Any, _L, _G]", ...]: ...
    def unzip(self, n: int | None = None) -> Any:
        """One op for each component of the tuple; the source runs at most once, and each component is taken once.

        The source runs whole for the component that is taken first, whichever that is: a run of a component ends, or
        fails, when all of them are there, or one has failed.

        `n` is needed only where the op's structure does not show how many there are: after a closure.
        """
        return NODES.value.unzip(self, n, here())

    @overload
    def first(self: "DeviceOp[tuple[_A], _L, _G]") -> "DeviceOp[_A, _L, _G]": ...
    @overload
    def first(self: "DeviceOp[tuple[_A, _B], _L, _G]") -> "DeviceOp[_A, _L, _G]": ...
    @overload
    def first(self: "DeviceOp[tuple[_A, _B, _C], _L, _G]") -> "DeviceOp[_A, _L, _G]": ...
    @overload
    def first(self: "DeviceOp[tuple[_A, _B, _C, _D], _L, _G]") -> "DeviceOp[_A, _L, _G]": ...
    @overload
    def first(self: "DeviceOp[tuple[_A, _B, _C, _D, _E], _L, _G]") -> "DeviceOp[_A, _L, _G]": ...
    @overload
    def first(self: "DeviceOp[tuple[_A, _B, _C, _D, _E, _F], _L, _G]") -> "DeviceOp[_A, _L, _G]": ...
    @overload
    def first(self: "DeviceOp[tuple[_A, _B, _C, _D, _E, _F, _H], _L, _G]") -> "DeviceOp[_A, _L, _G]": ...
    @overload
    def first(self: "DeviceOp[tuple[_A, _B, _C, _D, _E, _F, _H, _I], _L, _G]") -> "DeviceOp[_A, _L, _G]": ...
    @overload
    def first(self: "DeviceOp[tuple[Any, ...], _L, _G]") -> "DeviceOp[Any, _L, _G]": ...
    def first(self) -> Any:
        """The first component; the others are dropped."""
        return NODES.value.map(self, NODES.value.first, here())

    @overload
    def last(self: "DeviceOp[tuple[_A], _L, _G]") -> "DeviceOp[_A, _L, _G]": ...
    @overload
    def last(self: "DeviceOp[tuple[_A, _B], _L, _G]") -> "DeviceOp[_B, _L, _G]": ...
    @overload
    def last(self: "DeviceOp[tuple[_A, _B, _C], _L, _G]") -> "DeviceOp[_C, _L, _G]": ...
    @overload
    def last(self: "DeviceOp[tuple[_A, _B, _C, _D], _L, _G]") -> "DeviceOp[_D, _L, _G]": ...
    @overload
    def last(self: "DeviceOp[tuple[_A, _B, _C, _D, _E], _L, _G]") -> "DeviceOp[_E, _L, _G]": ...
    @overload
    def last(self: "DeviceOp[tuple[_A, _B, _C, _D, _E, _F], _L, _G]") -> "DeviceOp[_F, _L, _G]": ...
    @overload
    def last(self: "DeviceOp[tuple[_A, _B, _C, _D, _E, _F, _H], _L, _G]") -> "DeviceOp[_H, _L, _G]": ...
    @overload
    def last(self: "DeviceOp[tuple[_A, _B, _C, _D, _E, _F, _H, _I], _L, _G]") -> "DeviceOp[_I, _L, _G]": ...
    @overload
    def last(self: "DeviceOp[tuple[Any, ...], _L, _G]") -> "DeviceOp[Any, _L, _G]": ...
    def last(self) -> Any:
        """The last component; the others are dropped."""
        return NODES.value.map(self, NODES.value.last, here())

    # ---- the handle's own methods, lazily

    @overload
    def partition(
        self: "DeviceOp[Tensor[_N], _L, _G]", tile: Shape, *, partial: bool = False
    ) -> "DeviceOp[Partition[Tensor[_N]], _L, _G]": ...
    @overload
    def partition(
        self: "DeviceOp[TensorMut[_N], _L, _G]", tile: Shape, *, partial: bool = False
    ) -> "DeviceOp[Partition[TensorMut[_N]], _L, _G]": ...
    def partition(self, tile: Shape, *, partial: bool = False) -> Any:
        """`t.partition(tile)` of the result, a `Tensor` or a `TensorMut`."""
        return NODES.value.map(self, NODES.value.cut(tile if type(tile) is tuple else _fixed(tile), partial), here())

    def unpartition(self: "DeviceOp[Partition[_T], _L, _G]") -> "DeviceOp[_T, _L, _G]":
        """`p.unpartition()` of the result."""
        return NODES.value.map(self, NODES.value.uncut, here())

    def share(self: "DeviceOp[Tensor[_N], _L, _G]") -> "DeviceOp[SharedTensor[_N], _L, _G]":
        """`t.share()` of the result. Not to be confused with `shared()`, which remembers."""
        return NODES.value.map(self, NODES.value.share, here())

    @overload
    def reshape(self: "DeviceOp[Tensor[_N], _L, _G]", shape: Shape) -> "DeviceOp[Tensor[_N], _L, _G]": ...
    @overload
    def reshape(self: "DeviceOp[TensorMut[_N], _L, _G]", shape: Shape) -> "DeviceOp[TensorMut[_N], _L, _G]": ...
    def reshape(self, shape: Shape) -> Any:
        """`t.reshape(shape)` of the result."""
        return NODES.value.map(self, NODES.value.reshape(_fixed(shape)), here())

    @overload
    def to_host(self: "DeviceOp[Tensor[_N], _L, _G]") -> "DeviceOp[NDArray[_N], _L]": ...
    @overload
    def to_host(self: "DeviceOp[SharedTensor[_N], _L, _G]") -> "DeviceOp[NDArray[_N], _L]": ...
    @overload
    def to_host(self: "DeviceOp[TensorRef[_N], _L, _G]") -> "DeviceOp[NDArray[_N], _L]": ...
    @overload
    def to_host(self: "DeviceOp[TensorMut[_N], _L, _G]") -> "DeviceOp[NDArray[_N], _L]": ...
    def to_host(self) -> Any:
        """A new NumPy array with the contents of the result.

        It belongs to the sole taker of this op's result, who may write to it. Where there may be several, behind
        `shared()` or as the result of a `Pending`, it is read-only.
        """
        return NODES.value.to_host(self, here())

    # ---- capturing

    @leaves_run
    def graph(self) -> "CudaGraph[_T_co]":
        """Run it, block until its result is there, and keep what it did as a graph, to be launched again as a whole:
        one CUDA graph on a GPU, a replayed plan on the host.

        What `shared()` ops in it remember already is a constant of the graph; what the capture has to make of them is
        part of it. Its output lies in the graph's memory: see `CudaGraph`.

        Raises:
            CaptureError: part of it cannot be in a graph: `host_map`, a closure that waits for data of the host.
        """
        return RUNNER.value.graph(self, None)

    @leaves_run
    def graph_on(self, stream: Stream) -> "CudaGraph[_T_co]":
        """`graph()`, to be launched on this stream."""
        check_stream(stream, "graph_on", here())
        return RUNNER.value.graph(self, stream)

    # ---- looking

    @leaves_run
    def explain(self) -> str:
        """The plan of a run of it, in words: what runs where and waits for what, the predicted time and the memory
        against their lower bounds, and why branches do not overlap. Nothing is run, and closures are called once, with
        handles.

        Raises whatever a run raises before it submits anything.
        """
        return RUNNER.value.explain(self)

    def to_dot(self) -> str:
        """The DAG in Graphviz DOT, as far as it can be seen without calling closures."""
        return NODES.value.to_dot(self)

    def to_svg(self) -> str:
        """A picture of the DAG, as far as it can be seen without calling closures; that of its plan on its lanes is
        `plan_of(op).to_svg()`. Jupyter shows it for an op."""
        return NODES.value.to_svg(self)

    def save_svg(self, path: str | PathLike[str]) -> None:
        """`to_svg()`, as a file."""
        check_path(path, "save_svg", here())
        Path(path).write_text(self.to_svg(), encoding="utf-8")

    def _repr_svg_(self) -> str:
        return self.to_svg()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} built at {describe(self.origin)}>"

    if not TYPE_CHECKING:

        def __reduce_ex__(self, _protocol: object) -> NoReturn:
            raise copy_error(
                repr(self),
                "A copy would own the same handles, and remember apart from it. Use the op itself wherever it is "
                "wanted: nothing changes it, and .shared() gives its result to several",
            )

        def __bool__(self) -> bool:
            raise TypeError(f"{self!r} is a description, neither true nor false. Run it, and test its result.")

        def __iter__(self) -> NoReturn:
            raise TypeError(f"{self!r} cannot be unpacked: it has not run. Say .unzip() for an op of each component.")

        def __getitem__(self, _index: object) -> NoReturn:
            raise TypeError(
                f"{self!r} has no items: it has not run. Say .first() or .unzip() for the parts of a tuple; "
                "the contents of a tensor come with .to_host()."
            )

        def _no_arithmetic(self, _other: object = None) -> NoReturn:
            raise NotReadyError(
                f"{self!r} is a description and has no contents. Run it: op.sync(), or await op in a trio task. "
                "Arithmetic on a device is what kernels are for (@kernel); a tensor's contents come with op.to_host()."
            )

        __add__ = __sub__ = __mul__ = __truediv__ = __matmul__ = __pow__ = __neg__ = _no_arithmetic
        __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rmatmul__ = __rpow__ = _no_arithmetic

        def __getattr__(self, name: str) -> NoReturn:
            if name in HANDLE_NAMES:
                called = f"{name}{_arguments(name) if HANDLE_NAMES[name] else ''}"
                raise AttributeError(
                    f"{self!r} has no {name!r}: what it yields has. Take that inside a closure, "
                    f".map(lambda t: t.{called}), or run the op first."
                )
            if name in ARRAY_NAMES:
                op = "op" if NODES.value.yields_host_data(self) else "op.to_host()"
                raise AttributeError(
                    f"{self!r} has no {name!r}: it is no array, and has not run. The array is what {op}.sync() gives, "
                    f"or await {op} in a trio task; on a device kernels compute."
                )
            raise no_attribute(self, name)

        def __array__(self, *_args: object, **_kwargs: object) -> NoReturn:
            raise NotReadyError(
                f"{self!r} is a description and has no contents. Run it: op.sync(), or await op in a trio task; "
                "a tensor's contents come with op.to_host()."
            )


def _arguments(name: str) -> str:
    return "(...)" if name in ("reshape", "slice", "view") else "()"


def kept_from_earlier_runs(op: DeviceOp[Any, Any, Any]) -> Any:
    """The object that `keep_for_later_runs` was given last; None if there is none."""
    try:
        return _read_kept(op)
    except AttributeError:
        return None


_read_kept: Callable[[DeviceOp[Any, Any, Any]], Any] = DeviceOp.__dict__["_kept"].__get__
"""The slot's own descriptor: `op._kept` of an unset slot would go on to `DeviceOp.__getattr__`, which is for users."""

keep_for_later_runs: Callable[[DeviceOp[Any, Any, Any], object], None] = DeviceOp.__dict__["_kept"].__set__
"""Attach an object to an op; it dies with the op. Ops are frozen: this sets no field, but the slot beside them."""


_Op: TypeAlias = DeviceOp[Any, Any, Any]


@final
@dataclass(frozen=True, slots=True)
class Nodes:
    """The ops that the fluent methods build, and what they show of a DAG. dagpu.ops.nodes has the functions."""

    then: Callable[[_Op, Callable[[Any], _Op], Origin], _Op]
    map: Callable[[_Op, Any, Origin], _Op]
    host_call: Callable[[_Op, Callable[[Any], Any], Origin], _Op]
    on: Callable[[_Op, Stream, Origin], _Op]
    placed: Callable[[_Op, Any, Origin], _Op]
    scheduled: Callable[[_Op, Any, Origin], _Op]
    shared: Callable[[_Op, Origin], _Op]
    unzip: Callable[[_Op, int | None, Origin], tuple[_Op, ...]]
    to_host: Callable[[_Op, Origin], _Op]
    inspect: Callable[[Callable[[Any], object]], object]
    """This and the following ones are functions for `map`."""
    cut: Callable[[Any, bool], object]
    reshape: Callable[[Any], object]
    first: object
    last: object
    uncut: object
    share: object
    yields_host_data: Callable[[_Op], bool]
    to_dot: Callable[[_Op], str]
    to_svg: Callable[[_Op], str]


NODES: Final = Slot[Nodes]("dagpu.ops.nodes")


class Runner(Protocol):
    """Runs ops, captures and explains them, and starts the updates of graphs."""

    def run(self, op: "DeviceOp[_T, Any, Any]", /) -> Coroutine[Any, Any, _T]: ...
    def run_sync(self, op: "DeviceOp[_T, Any, Any]", /) -> _T: ...
    def graph(self, op: "DeviceOp[_T, Any, Any]", stream: Stream | None, /) -> "CudaGraph[_T]": ...
    def explain(self, op: "DeviceOp[Any, Any, Any]", /) -> str: ...
    def scope(self, stream: Stream, /) -> "AbstractContextManager[Scope]": ...
    def update(self, captured: "Captured", op: "DeviceOp[_T, Any, Any]", /) -> _T: ...


RUNNER: Final = Slot[Runner]("dagpu.runtime.interpreter")
