"""`DeviceOp`, the base class of all ops, with its fluent methods. Building an op runs nothing; dagpu.runtime runs ops.

A base class cannot import its own subclasses. So dagpu.ops.nodes puts the ops that the methods build into the slot
`NODES`, and dagpu.runtime puts its runner into the slot `RUNNER`.
"""

from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NoReturn, Protocol, TypeAlias, final, overload

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from dagpu.common.compiled import READER
from dagpu.common.errors import NotReadyError
from dagpu.common.frozen import Slot
from dagpu.common.layout import Index, NewShape, Shape
from dagpu.common.places import Origin, describe, here, leaves_run, without_our_frames
from dagpu.common.wrong_arguments import check_function, check_path, no_attribute, wrong_argument
from dagpu.handles import (
    ARRAY_NAMES,
    HANDLE_NAMES,
    HANDLES,
    READING,
    Partition,
    SharedTensor,
    Tensor,
    TensorMut,
    TensorRef,
    copy_error,
    device_call,
)
from dagpu.handles.device_handles import Device, Stream
from dagpu.handles.operators import Operators, refuse_divmod

if TYPE_CHECKING:
    from dagpu.ops.graph import Captured, CudaGraph, Scope  # result types; imported by no running code


class Borrowed:
    """Phantom type: the op may hold a borrow of a tensor."""


class Static(Borrowed):
    """Phantom type: the op holds no borrow, so it may be spawned, returned and stored."""


class MayAlloc:
    """Phantom type: the op may allocate or free device memory."""


class NoAlloc(MayAlloc):
    """Phantom type: the op allocates and frees no device memory, so it may be recorded into a CUDA graph."""


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
_L2 = TypeVar("_L2", bound=Borrowed)
_G2 = TypeVar("_G2", bound=MayAlloc)
_T_co = TypeVar("_T_co", covariant=True)
_L_co = TypeVar("_L_co", bound=Borrowed, covariant=True, default=Static)
_G_co = TypeVar("_G_co", bound=MayAlloc, covariant=True, default=MayAlloc)


class Policy(Protocol):
    """The part of a scheduling policy that ops check for; dagpu.plans.policies has the whole protocol."""

    def place(self, program: Any) -> Any: ...


Place: TypeAlias = Device | Policy | str


def check_stream(stream: object, call: str, where: Origin) -> None:
    """Raise a TypeError if `stream` is not a `Stream`."""
    if not isinstance(stream, Stream):
        cure = "Open one on a device: device().stream()"
        raise wrong_argument(call, where, "stream", stream, "a Stream", cure)


def has_op(returned: Any) -> bool:
    """True if the value that a function for `map` or `host_map` returned is an op or contains one.

    All items of a tuple are examined. Of a list or dict, which may be long and has items of one type, only the first.
    """
    items: Iterable[object] = (returned,)
    if isinstance(returned, tuple):
        items = returned
    elif type(returned) is list:
        items = returned[:1]
    elif type(returned) is dict:
        items = islice(returned.values(), 1)
    return any(isinstance(item, DeviceOp) for item in items)


def refuse_op(returned: Any, whose: str) -> NoReturn:
    """Raise for a returned value in which `has_op` found an op. `whose` names the function and its place.

    Raises:
        TypeError: always.
    """
    if isinstance(returned, DeviceOp):
        raise TypeError(f"{whose} returned an op, which no run would execute. Use .then.")
    raise TypeError(
        f"{whose} returned a {type(returned).__name__} that contains an op, which no run would execute. Use .then, and "
        "zip_ops(a, b) for several ops."
    )


def cure_by_await(x: object) -> str | None:
    """Return the cure for an argument that must be awaited first, a `Pending` or a coroutine; None for others."""
    if isinstance(x, Awaitable) and not isinstance(x, DeviceOp) and type(x) not in HANDLES:
        return "Its result comes with await: pass await x in place of x"
    return None


def check_op(
    op: object, call: str, cure: str = "Pass an op, or make one from a value: value(x)", name: str = "op"
) -> None:
    """Raise a TypeError with this cure if `op` is not an op. `name` is that of the parameter."""
    if not isinstance(op, DeviceOp):
        raise wrong_argument(call, here(), name, op, "an op", cure_by_await(op) or cure)


def _as_tuple(extents: Any) -> Any:
    """Return a list or array of extents as a tuple, which a later change of the list does not affect.

    Any other value is returned as it is. The trace refuses it if it is not a tuple of extents.
    """
    return tuple(extents) if isinstance(extents, list | np.ndarray) else extents


class DeviceOp(Operators[_T_co, _L_co], Generic[_T_co, _L_co, _G_co]):
    """An immutable description of device work with a result of type `T`.

    `L` is `Static` if the op holds no borrow, `G` is `NoAlloc` if it does not allocate. Run it with `await op`,
    `op.sync()`, `op.sync_on(stream)` or `spawn(nursery, op)`.
    """

    __slots__ = ("__weakref__", "_plans")
    origin: Origin
    _plans: Any
    """The plans that runs of this op leave for its later runs; None until `attach_plans` sets it."""
    _empty_slots: ClassVar = ("_plans",)
    """The slots that are no fields. `frozen` sets them to None: to read a slot that is not set takes a microsecond."""

    # ---- running

    def __await__(self) -> Generator[Any, Any, _T_co]:
        """Run the op in a trio task, on the current device. The run is a checkpoint."""
        return RUNNER.value.run(self)

    def sync(self) -> _T_co:
        """Run the op, and block until its result is complete. For programs without trio."""
        try:
            return RUNNER.value.run_sync(self)
        except BaseException as error:
            without_our_frames(error)
            del self
            raise

    @leaves_run
    def sync_on(self, stream: Stream) -> _T_co:
        """Run the whole op on one explicit stream, and block until its result is complete."""
        origin = here()
        check_stream(stream, "sync_on", origin)
        placed: DeviceOp[_T_co, Any, Any] = NODES.value.on(self, stream, origin)
        return RUNNER.value.run_sync(placed)

    @leaves_run
    def schedule(self, policy: Policy) -> "DeviceOp[_T_co, _L_co, _G_co]":
        """Return the same op, placed on streams by `policy`. The innermost placement wins."""
        return NODES.value.scheduled(self, policy, here())

    @leaves_run
    def on(self, place: Place) -> "DeviceOp[_T_co, _L_co, _G_co]":
        """Return the same op on a device (`"host:1"`, `device("cuda:0")`) or placed by a policy. The innermost wins."""
        return NODES.value.placed(self, place, here())

    # ---- composing

    def then(self, f: "Callable[[_T_co], DeviceOp[_U, _L2, _G2]]") -> "DeviceOp[_U, _L_co | _L2, _G_co | _G2]":
        """Run the op that `f(result)` returns after this one, with no host synchronisation in between."""
        try:
            origin = here()
            check_function(f, "then", origin)
            return NODES.value.then(self, f, origin)
        except BaseException as error:
            without_our_frames(error)
            raise

    def map(self, f: Callable[[_T_co], _U]) -> "DeviceOp[_U, _L_co, _G_co]":
        """Apply `f` to the result, without device work. For results on a device, `f` gets handles."""
        try:
            origin = here()
            check_function(f, "map", origin)
            return NODES.value.map(self, f, origin)
        except BaseException as error:
            without_our_frames(error)
            raise

    def host_map(self, f: Callable[[_T_co], _U]) -> "DeviceOp[_U, _L_co]":
        """Call `f(x)` on a worker thread once the result `x` is complete: for CPU work that must not block the loop.

        It sees the context variables of the task or thread that runs the op.
        """
        try:
            origin = here()
            check_function(f, "host_map", origin)
            return NODES.value.host_call(self, f, origin)
        except BaseException as error:
            without_our_frames(error)
            raise

    def inspect(self, f: Callable[[_T_co], object]) -> "DeviceOp[_T_co, _L_co, _G_co]":
        """Call `f(x)` with the result `x`, and pass that result on unchanged."""
        try:
            origin = here()
            check_function(f, "inspect", origin)
            return NODES.value.map(self, NODES.value.inspect(f), origin)
        except BaseException as error:
            without_our_frames(error)
            raise

    @overload
    def shared(self: "DeviceOp[Tensor[_N], _L_co, _G_co]") -> "DeviceOp[SharedTensor[_N], _L_co, _G_co]": ...
    @overload
    def shared(self: "DeviceOp[_T, _L_co, _G_co]") -> "DeviceOp[_T, _L_co, _G_co]": ...
    def shared(self) -> Any:
        """Return an op that runs at most once and remembers its result while it lives; a `Tensor` becomes a
        `SharedTensor`.

        The result may have any number of consumers, in any number of runs. A failed or cancelled run is not remembered.
        NumPy arrays in the result are read-only, because all consumers share them: `array.copy()` can be written.
        (Without `shared()` the caller that runs the op owns its result alone, and may write to its arrays.)

        Over sources, the result is remembered until one of the sources that it depends on changes. Of several feeds
        that observe the op, one computes it for each snapshot of its sources, and the others take its result.
        """
        return NODES.value.shared(self, here())

    @overload
    def unzip(
        self: "DeviceOp[tuple[_A], _L_co, _G_co]", n: int | None = None
    ) -> tuple["DeviceOp[_A, _L_co, _G_co]"]: ...
    @overload
    def unzip(
        self: "DeviceOp[tuple[_A, _B], _L_co, _G_co]", n: int | None = None
    ) -> tuple["DeviceOp[_A, _L_co, _G_co]", "DeviceOp[_B, _L_co, _G_co]"]: ...
    @overload
    def unzip(
        self: "DeviceOp[tuple[_A, _B, _C], _L_co, _G_co]", n: int | None = None
    ) -> tuple["DeviceOp[_A, _L_co, _G_co]", "DeviceOp[_B, _L_co, _G_co]", "DeviceOp[_C, _L_co, _G_co]"]: ...
    @overload
    def unzip(
        self: "DeviceOp[tuple[_A, _B, _C, _D], _L_co, _G_co]", n: int | None = None
    ) -> tuple[
        "DeviceOp[_A, _L_co, _G_co]",
        "DeviceOp[_B, _L_co, _G_co]",
        "DeviceOp[_C, _L_co, _G_co]",
        "DeviceOp[_D, _L_co, _G_co]",
    ]: ...
    @overload
    def unzip(
        self: "DeviceOp[tuple[_A, _B, _C, _D, _E], _L_co, _G_co]", n: int | None = None
    ) -> tuple[
        "DeviceOp[_A, _L_co, _G_co]",
        "DeviceOp[_B, _L_co, _G_co]",
        "DeviceOp[_C, _L_co, _G_co]",
        "DeviceOp[_D, _L_co, _G_co]",
        "DeviceOp[_E, _L_co, _G_co]",
    ]: ...
    @overload
    def unzip(
        self: "DeviceOp[tuple[_A, _B, _C, _D, _E, _F], _L_co, _G_co]", n: int | None = None
    ) -> tuple[
        "DeviceOp[_A, _L_co, _G_co]",
        "DeviceOp[_B, _L_co, _G_co]",
        "DeviceOp[_C, _L_co, _G_co]",
        "DeviceOp[_D, _L_co, _G_co]",
        "DeviceOp[_E, _L_co, _G_co]",
        "DeviceOp[_F, _L_co, _G_co]",
    ]: ...
    @overload
    def unzip(
        self: "DeviceOp[tuple[_A, _B, _C, _D, _E, _F, _H], _L_co, _G_co]", n: int | None = None
    ) -> tuple[
        "DeviceOp[_A, _L_co, _G_co]",
        "DeviceOp[_B, _L_co, _G_co]",
        "DeviceOp[_C, _L_co, _G_co]",
        "DeviceOp[_D, _L_co, _G_co]",
        "DeviceOp[_E, _L_co, _G_co]",
        "DeviceOp[_F, _L_co, _G_co]",
        "DeviceOp[_H, _L_co, _G_co]",
    ]: ...
    @overload
    def unzip(
        self: "DeviceOp[tuple[_A, _B, _C, _D, _E, _F, _H, _I], _L_co, _G_co]", n: int | None = None
    ) -> tuple[
        "DeviceOp[_A, _L_co, _G_co]",
        "DeviceOp[_B, _L_co, _G_co]",
        "DeviceOp[_C, _L_co, _G_co]",
        "DeviceOp[_D, _L_co, _G_co]",
        "DeviceOp[_E, _L_co, _G_co]",
        "DeviceOp[_F, _L_co, _G_co]",
        "DeviceOp[_H, _L_co, _G_co]",
        "DeviceOp[_I, _L_co, _G_co]",
    ]: ...
    @overload
    def unzip(
        self: "DeviceOp[tuple[Any, ...], _L_co, _G_co]", n: int | None = None
    ) -> tuple["DeviceOp[Any, _L_co, _G_co]", ...]: ...
    @leaves_run
    def unzip(self, n: int | None = None) -> Any:
        """Return one op for each component of the tuple. The source runs at most once; each component is taken once.

        The first component that is taken runs the whole source. So its run ends when all components are complete, and
        fails when one of them fails.

        `n`, the number of components, is needed only where the op's structure does not show it: after a closure.
        """
        return NODES.value.unzip(self, n, here())

    @overload
    def first(self: "DeviceOp[tuple[_A], _L_co, _G_co]") -> "DeviceOp[_A, _L_co, _G_co]": ...
    @overload
    def first(self: "DeviceOp[tuple[_A, _B], _L_co, _G_co]") -> "DeviceOp[_A, _L_co, _G_co]": ...
    @overload
    def first(self: "DeviceOp[tuple[_A, _B, _C], _L_co, _G_co]") -> "DeviceOp[_A, _L_co, _G_co]": ...
    @overload
    def first(self: "DeviceOp[tuple[_A, _B, _C, _D], _L_co, _G_co]") -> "DeviceOp[_A, _L_co, _G_co]": ...
    @overload
    def first(self: "DeviceOp[tuple[_A, _B, _C, _D, _E], _L_co, _G_co]") -> "DeviceOp[_A, _L_co, _G_co]": ...
    @overload
    def first(self: "DeviceOp[tuple[_A, _B, _C, _D, _E, _F], _L_co, _G_co]") -> "DeviceOp[_A, _L_co, _G_co]": ...
    @overload
    def first(self: "DeviceOp[tuple[_A, _B, _C, _D, _E, _F, _H], _L_co, _G_co]") -> "DeviceOp[_A, _L_co, _G_co]": ...
    @overload
    def first(
        self: "DeviceOp[tuple[_A, _B, _C, _D, _E, _F, _H, _I], _L_co, _G_co]",
    ) -> "DeviceOp[_A, _L_co, _G_co]": ...
    @overload
    def first(self: "DeviceOp[tuple[Any, ...], _L_co, _G_co]") -> "DeviceOp[Any, _L_co, _G_co]": ...
    def first(self) -> Any:
        """Return an op for the first component of the tuple; the others are dropped."""
        return NODES.value.map(self, NODES.value.first, here())

    @overload
    def last(self: "DeviceOp[tuple[_A], _L_co, _G_co]") -> "DeviceOp[_A, _L_co, _G_co]": ...
    @overload
    def last(self: "DeviceOp[tuple[_A, _B], _L_co, _G_co]") -> "DeviceOp[_B, _L_co, _G_co]": ...
    @overload
    def last(self: "DeviceOp[tuple[_A, _B, _C], _L_co, _G_co]") -> "DeviceOp[_C, _L_co, _G_co]": ...
    @overload
    def last(self: "DeviceOp[tuple[_A, _B, _C, _D], _L_co, _G_co]") -> "DeviceOp[_D, _L_co, _G_co]": ...
    @overload
    def last(self: "DeviceOp[tuple[_A, _B, _C, _D, _E], _L_co, _G_co]") -> "DeviceOp[_E, _L_co, _G_co]": ...
    @overload
    def last(self: "DeviceOp[tuple[_A, _B, _C, _D, _E, _F], _L_co, _G_co]") -> "DeviceOp[_F, _L_co, _G_co]": ...
    @overload
    def last(self: "DeviceOp[tuple[_A, _B, _C, _D, _E, _F, _H], _L_co, _G_co]") -> "DeviceOp[_H, _L_co, _G_co]": ...
    @overload
    def last(self: "DeviceOp[tuple[_A, _B, _C, _D, _E, _F, _H, _I], _L_co, _G_co]") -> "DeviceOp[_I, _L_co, _G_co]": ...
    @overload
    def last(self: "DeviceOp[tuple[Any, ...], _L_co, _G_co]") -> "DeviceOp[Any, _L_co, _G_co]": ...
    def last(self) -> Any:
        """Return an op for the last component of the tuple; the others are dropped."""
        return NODES.value.map(self, NODES.value.last, here())

    # ---- the handle's own methods, lazily

    @overload
    def partition(
        self: "DeviceOp[Tensor[_N], _L_co, _G_co]", tile: Shape, *, partial: bool = False
    ) -> "DeviceOp[Partition[Tensor[_N]], _L_co, _G_co]": ...
    @overload
    def partition(
        self: "DeviceOp[TensorMut[_N], _L_co, _G_co]", tile: Shape, *, partial: bool = False
    ) -> "DeviceOp[Partition[TensorMut[_N]], _L_co, _G_co]": ...
    def partition(self, tile: Shape, *, partial: bool = False) -> Any:
        """Apply `t.partition(tile)` to the result, a `Tensor` or a `TensorMut`."""
        return NODES.value.map(self, NODES.value.cut(tile if type(tile) is tuple else _as_tuple(tile), partial), here())

    def unpartition(self: "DeviceOp[Partition[_T], _L_co, _G_co]") -> "DeviceOp[_T, _L_co, _G_co]":
        """Apply `p.unpartition()` to the result, a `Partition`."""
        return NODES.value.map(self, NODES.value.uncut, here())

    def share(self: "DeviceOp[Tensor[_N], _L_co, _G_co]") -> "DeviceOp[SharedTensor[_N], _L_co, _G_co]":
        """Apply `t.share()` to the result, a `Tensor`. Unlike `shared()`, this remembers nothing."""
        return NODES.value.map(self, NODES.value.share, here())

    @overload
    def reshape(
        self: "DeviceOp[Tensor[_N], _L_co, _G_co]", shape: NewShape
    ) -> "DeviceOp[Tensor[_N], _L_co, _G_co]": ...
    @overload
    def reshape(
        self: "DeviceOp[TensorMut[_N], _L_co, _G_co]", shape: NewShape
    ) -> "DeviceOp[TensorMut[_N], _L_co, _G_co]": ...
    def reshape(self, shape: NewShape) -> Any:
        """Apply `t.reshape(shape)` to the result, a `Tensor` or a `TensorMut`. One extent may be -1: what is left."""
        return NODES.value.map(self, NODES.value.reshape(_as_tuple(shape)), here())

    @overload
    def __getitem__(
        self: "DeviceOp[Tensor[_N], _L_co, _G_co]", index: Index
    ) -> "DeviceOp[Tensor[_N], _L_co, _G_co]": ...
    @overload
    def __getitem__(
        self: "DeviceOp[SharedTensor[_N], _L_co, _G_co]", index: Index
    ) -> "DeviceOp[SharedTensor[_N], _L_co, _G_co]": ...
    @overload
    def __getitem__(
        self: "DeviceOp[TensorRef[_N], _L_co, _G_co]", index: Index
    ) -> "DeviceOp[TensorRef[_N], _L_co, _G_co]": ...
    @overload
    def __getitem__(
        self: "DeviceOp[TensorMut[_N], _L_co, _G_co]", index: Index
    ) -> "DeviceOp[TensorMut[_N], _L_co, _G_co]": ...
    @leaves_run
    def __getitem__(self, index: Index) -> Any:
        """Apply `t[index]` to the result, a tensor of any kind, which moves: a part of a `Tensor` owns its memory.

        It is a view, and copies nothing: `op[1:, ::2]`, `op[-1]`, `op[..., None]`.
        """
        return NODES.value.part(self, index, here())

    @overload
    def view(self: "DeviceOp[Tensor[Any], _L_co, _G_co]", dtype: type[_N]) -> "DeviceOp[Tensor[_N], _L_co, _G_co]": ...
    @overload
    def view(
        self: "DeviceOp[SharedTensor[Any], _L_co, _G_co]", dtype: type[_N]
    ) -> "DeviceOp[SharedTensor[_N], _L_co, _G_co]": ...
    @overload
    def view(
        self: "DeviceOp[TensorRef[Any], _L_co, _G_co]", dtype: type[_N]
    ) -> "DeviceOp[TensorRef[_N], _L_co, _G_co]": ...
    @overload
    def view(
        self: "DeviceOp[TensorMut[Any], _L_co, _G_co]", dtype: type[_N]
    ) -> "DeviceOp[TensorMut[_N], _L_co, _G_co]": ...
    @leaves_run
    def view(self, dtype: Any) -> Any:
        """Apply `t.view(dtype)` to the result, a tensor of any kind, which moves: its bytes as other elements."""
        return NODES.value.reread(self, dtype, here())

    @overload
    def to_host(self: "DeviceOp[Tensor[_N], _L_co, _G_co]") -> "DeviceOp[NDArray[_N], _L_co]": ...
    @overload
    def to_host(self: "DeviceOp[SharedTensor[_N], _L_co, _G_co]") -> "DeviceOp[NDArray[_N], _L_co]": ...
    @overload
    def to_host(self: "DeviceOp[TensorRef[_N], _L_co, _G_co]") -> "DeviceOp[NDArray[_N], _L_co]": ...
    @overload
    def to_host(self: "DeviceOp[TensorMut[_N], _L_co, _G_co]") -> "DeviceOp[NDArray[_N], _L_co]": ...
    def to_host(self) -> Any:
        """Copy the result, a handle, to a new NumPy array.

        The caller that runs the op owns the array, and may write to it. An array that several consumers may share,
        behind `shared()` or as the result of a `Pending`, is read-only.
        """
        return NODES.value.to_host(self, here())

    # ---- capturing

    @leaves_run
    def graph(self) -> "CudaGraph[_T_co]":
        """Run the op, block until its result is complete, and capture its work as a graph that is launched as a whole:
        one CUDA graph on a GPU, a replayed plan on the host.

        A value that a `shared()` op in it remembered before is a constant of the graph. A value that the capture
        computes is part of the graph. The output lies in the graph's memory: see `CudaGraph`.

        Raises:
            CaptureError: part of it cannot be in a graph: `host_map`, a closure that waits for data of the host.
        """
        return RUNNER.value.graph(self, None)

    @leaves_run
    def graph_on(self, stream: Stream) -> "CudaGraph[_T_co]":
        """Capture the op as `graph()` does, for launches on this stream."""
        check_stream(stream, "graph_on", here())
        return RUNNER.value.graph(self, stream)

    # ---- looking

    @leaves_run
    def explain(self) -> str:
        """Describe the plan of a run in words: the stream and the waits of each instruction, the predicted time and the
        memory against their lower bounds, and the reasons for which branches do not overlap.

        Nothing is run. Closures are called once, with handles. Raises the errors that a run raises before it submits
        work.
        """
        return RUNNER.value.explain(self)

    def to_dot(self) -> str:
        """Return the DAG in Graphviz DOT, as far as it is visible without calling closures."""
        return NODES.value.to_dot(self)

    def to_svg(self) -> str:
        """Draw the DAG as SVG, as far as it is visible without calling closures. Jupyter shows this picture of an op.

        `plan_of(op).to_svg()` draws the plan of the DAG on its lanes.
        """
        return NODES.value.to_svg(self)

    @leaves_run
    def save_svg(self, path: str | PathLike[str]) -> None:
        """Write the picture that `to_svg()` returns to a file."""
        check_path(path, "save_svg", here())
        Path(path).write_text(self.to_svg(), encoding="utf-8")

    def _repr_svg_(self) -> str:
        return self.to_svg()

    def _repr_html_(self) -> str:
        from dagpu.ops.svg import in_page

        return in_page(self.to_svg())

    def __repr__(self) -> str:
        return f"<{NODES.value.name_of_call(self)} at {describe(self.origin)}>"

    if not TYPE_CHECKING:

        @leaves_run
        def __reduce_ex__(self, _protocol: object) -> NoReturn:
            raise copy_error(
                repr(self),
                "A copy would own the same handles, and remember its own result. Use the op itself wherever it is "
                "wanted: it never changes, and .shared() gives its result to several consumers",
            )

        @leaves_run
        def __bool__(self) -> bool:
            raise TypeError(
                f"{self!r} is a description, neither true nor false. Run it, and test its result. Masks are combined "
                "by & | and ~, with each comparison in brackets."
            )

        @leaves_run
        def __iter__(self) -> NoReturn:
            raise TypeError(f"{self!r} cannot be unpacked: it has not run. Say .unzip() for an op of each component.")

        def _not_ready(self) -> NotReadyError:
            """Return the error for a use that needs the contents."""
            return NotReadyError(
                f"{self!r} is a description and has no contents. Run it: op.sync(), or await op in a trio task; "
                "a tensor's contents come with op.to_host().sync()."
            )

        @leaves_run
        def _no_contents(self, *_args: object, **_kwargs: object) -> NoReturn:
            raise self._not_ready()

        __divmod__ = __rdivmod__ = refuse_divmod
        vars().update(dict.fromkeys(READING, _no_contents))
        __setitem__ = __delitem__ = _no_contents

        @leaves_run
        def __getattr__(self, name: str) -> NoReturn:
            if name in HANDLE_NAMES:
                called = f"{name}{_example_arguments(name) if HANDLE_NAMES[name] else ''}"
                raise AttributeError(
                    f"{self!r} has no {name!r}: its result has. Use the result inside a closure, "
                    f".map(lambda t: t.{called}), or run the op first."
                )
            if name in ARRAY_NAMES:
                op = "op" if NODES.value.produces_host_data(self) else "op.to_host()"
                call = None if op == "op" else device_call(name, "op")
                compute = "with a kernel" if call is None else f"with {call}, or with a kernel"
                raise AttributeError(
                    f"{self!r} has no {name!r}: it is not an array, and has not run. Get the array with {op}.sync(), "
                    f"or with await {op} in a trio task. Compute on a device {compute}."
                )
            raise no_attribute(self, name)


def _example_arguments(name: str) -> str:
    return "(...)" if name in ("reshape", "slice", "view") else "()"


read_plans: Callable[[DeviceOp[Any, Any, Any]], Any] = DeviceOp.__dict__["_plans"].__get__
"""Return the object that `attach_plans` attached last to an op; None if there is none. It raises an `AttributeError`
for a copy, which is made without `__init__`. `op._plans` would call `DeviceOp.__getattr__`, which formats an error for
users."""

attach_plans: Callable[[DeviceOp[Any, Any, Any], object], None] = DeviceOp.__dict__["_plans"].__set__
"""Attach an object to an op; it dies with the op. Ops are frozen: this sets no field, only the slot `_plans`."""


_Op: TypeAlias = DeviceOp[Any, Any, Any]


@final
@dataclass(frozen=True, slots=True)
class Nodes:
    """The functions by which fluent methods build ops and draw DAGs. dagpu.ops.nodes provides them."""

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
    """`inspect`, and the fields from here to `share` but for `part` and `reread`, make or are functions for `map`."""
    cut: Callable[[Any, bool], object]
    reshape: Callable[[Any], object]
    part: Callable[[_Op, Any, Origin], _Op]
    reread: Callable[[_Op, Any, Origin], _Op]
    first: object
    last: object
    uncut: object
    share: object
    produces_host_data: Callable[[_Op], bool]
    name_of_call: Callable[[_Op], str]
    to_dot: Callable[[_Op], str]
    to_svg: Callable[[_Op], str]


NODES: Final = Slot[Nodes]("dagpu.ops.nodes")


class Runner(Protocol):
    """Runs ops, captures and explains them, and starts the updates of graphs."""

    def run(self, op: "DeviceOp[_T, Any, Any]", /) -> Generator[Any, Any, _T]: ...
    def run_sync(self, op: "DeviceOp[_T, Any, Any]", /) -> _T: ...
    def graph(self, op: "DeviceOp[_T, Any, Any]", stream: Stream | None, /) -> "CudaGraph[_T]": ...
    def explain(self, op: "DeviceOp[Any, Any, Any]", /) -> str: ...
    def scope(self, stream: Stream, /) -> "AbstractContextManager[Scope]": ...
    def update(self, captured: "Captured", op: "DeviceOp[_T, Any, Any]", /) -> _T: ...


RUNNER: Final = Slot[Runner]("dagpu.runtime.interpreter")


if READER is not None:  # the name of a method is looked up in the class: without a frame of Python
    DeviceOp.sync = READER.sync_method(DeviceOp, DeviceOp.sync)  # type: ignore[method-assign]  # the same, in C
    DeviceOp.__await__ = READER.await_method(DeviceOp, DeviceOp.__await__)  # type: ignore[method-assign]  # as `sync`
