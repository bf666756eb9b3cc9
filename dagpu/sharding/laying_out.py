"""Ops that bring a whole to the devices of a mesh, from one layout to another, and back to one place."""

from typing import Any, overload

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from dagpu.common.dtypes import Shape, element_type
from dagpu.common.errors import MeshError, NoDeviceError, ShapeError
from dagpu.common.frozen import plain
from dagpu.common.layout import as_shape, contiguous_layout
from dagpu.common.origin import Origin, describe, here
from dagpu.common.tracebacks import leaves_run
from dagpu.common.wrong_arguments import add_call_place, wrong_argument
from dagpu.handles import Tensor, TensorRef
from dagpu.handles.device_handles import FIND_DEVICE, Device
from dagpu.handles.handle_trees import move_handles
from dagpu.handles.symbolic import SymbolicArray
from dagpu.lowering.schedule.mesh import Mesh
from dagpu.ops.base import Borrowed, DeviceOp
from dagpu.ops.compose import HostCall, Map, On, Then, ToHost, Value, Zip
from dagpu.ops.creation import Alloc, from_host, wanted_element_type
from dagpu.sharding.assembling import (
    AnyOp,
    CopyInto,
    Readable,
    assembled,
    check_layout,
    check_mesh,
    pieces_between,
    then_of,
    whole_part,
)
from dagpu.sharding.device_boxes import FIRST_AXIS, DeviceLayout, as_slices
from dagpu.sharding.part_geometry import PartShape
from dagpu.sharding.spread_values import (
    TO_ARRAY,
    Replicated,
    Sharded,
    ShardedRef,
    Spreading,
    cut_at,
    parts_of,
    spreading_of,
)

_N = TypeVar("_N", bound=np.generic)
_L = TypeVar("_L", bound=Borrowed)


# ---- to the devices


@overload
def shard(t: TensorRef[_N], mesh: Mesh, layout: DeviceLayout = ...) -> DeviceOp[Sharded[_N], Borrowed]: ...
@overload
def shard(t: Tensor[_N], mesh: Mesh, layout: DeviceLayout = ...) -> DeviceOp[Sharded[_N]]: ...
@overload
def shard(
    t: DeviceOp[Tensor[_N] | TensorRef[_N], _L, Any], mesh: Mesh, layout: DeviceLayout = ...
) -> DeviceOp[Sharded[_N], _L]: ...
@leaves_run
def shard(t: Any, mesh: Mesh, layout: DeviceLayout = FIRST_AXIS) -> Any:
    """Cut a tensor by a layout: each device of the mesh gets a copy of its boxes. Moves a `Tensor`.

    Raises:
        MeshError: the layout does not fit the shape and the mesh, or its boxes overlap or leave something out.
        MovedError: the tensor has been moved before.
        TypeError: an argument is of a wrong type.
    """
    where = here()
    check_mesh(mesh, "shard", where)
    check_layout(layout, "shard", where)

    def about(whole: Readable) -> Spreading:
        return cut_at(layout, mesh, whole.shape, whole.dtype, "shard", where)

    def cut(whole: Readable) -> AnyOp:
        return laid_out(about(whole), [(whole, whole_part(whole.shape))], where)

    return then_of(t, (Tensor, TensorRef), cut, "shard", "t", where, about)


def shard_host(array: NDArray[_N], mesh: Mesh, layout: DeviceLayout = FIRST_AXIS) -> DeviceOp[Sharded[_N]]:
    """Cut a NumPy array by a layout: each device of the mesh uploads its own boxes.

    Each run reads the array again: leave it unchanged until the run has ended. An argument of a pipeline goes to the
    first device as a whole, and from there to the others.

    Raises:
        MeshError: the layout does not fit the shape and the mesh, or its boxes overlap or leave something out.
        ShapeError: `array` is not a NumPy array of an element type that tensors have.
        TypeError: the mesh or the layout is of a wrong type.
    """
    where = here()
    check_mesh(mesh, "shard_host", where)
    check_layout(layout, "shard_host", where)
    try:
        whole = from_host(array)
    except ShapeError as error:
        raise add_call_place("shard_host", where, error) from None
    given: Any = array
    if type(given) is SymbolicArray:
        return shard(whole.on(mesh.devices[0]), mesh, layout)
    dtype = element_type(array.dtype)
    assert dtype is not None, "from_host has checked it"
    about = cut_at(layout, mesh, array.shape, dtype, "shard_host", where)
    ops: list[AnyOp] = [
        On(_uploaded(array, device, part, dtype, where), device, where)
        for device, part in zip(mesh.devices, about.parts, strict=True)
    ]
    return Map(Zip(tuple(ops), where), Together(Sharded, about), where)


def _uploaded(array: NDArray[Any], device: Device, part: PartShape, dtype: "np.dtype[Any]", where: Origin) -> AnyOp:
    """Return the op that uploads a device's boxes of an array to its part."""
    if len(part.pieces) == 1:
        return from_host(array[as_slices(part.pieces[0].box)])
    target = contiguous_layout(part.shape, dtype)
    uploads = tuple([from_host(array[as_slices(piece.box)]) for piece in part.pieces])
    into = [piece.layout_in(target, piece.box) for piece in part.pieces]

    def join(tensors: tuple[Tensor[Any], ...]) -> AnyOp:
        return assembled(device, part.shape, dtype, list(map(CopyInto, tensors, into)), where)

    return Then(Zip(uploads, where), join, where)


def sharded_empty(
    shape: Shape, dtype: type[_N], mesh: Mesh, layout: DeviceLayout = FIRST_AXIS
) -> DeviceOp[Sharded[_N]]:
    """Create a whole whose parts are not initialised, for kernels to write.

    What is read before it is written is 0, as for `empty`.

    Raises:
        MeshError: the layout does not fit the shape and the mesh, or its boxes overlap or leave something out.
        ShapeError: the shape or the element type is not valid.
        TypeError: the mesh or the layout is of a wrong type.
    """
    where = here()
    check_mesh(mesh, "sharded_empty", where)
    check_layout(layout, "sharded_empty", where)
    try:
        whole = as_shape(shape)
    except ShapeError as error:
        raise add_call_place("sharded_empty", where, error) from None
    element = wanted_element_type(dtype, where, "sharded_empty")
    about = cut_at(layout, mesh, whole, element, "sharded_empty", where)
    ops: list[AnyOp] = [
        On(Alloc[Any, Any, Any](part.shape, element, None, where), device, where)
        for device, part in zip(mesh.devices, about.parts, strict=True)
    ]
    return Map(Zip(tuple(ops), where), Together(Sharded, about), where)


# ---- from layout to layout, and back


@overload
def reshard(s: ShardedRef[_N], layout: DeviceLayout, mesh: Mesh | None = ...) -> DeviceOp[Sharded[_N], Borrowed]: ...
@overload
def reshard(s: Sharded[_N], layout: DeviceLayout, mesh: Mesh | None = ...) -> DeviceOp[Sharded[_N]]: ...
@overload
def reshard(
    s: DeviceOp[Sharded[_N] | ShardedRef[_N], _L, Any], layout: DeviceLayout, mesh: Mesh | None = ...
) -> DeviceOp[Sharded[_N], _L]: ...
@leaves_run
def reshard(s: Any, layout: DeviceLayout, mesh: Mesh | None = None) -> Any:
    """Cut a whole by another layout, also over another mesh. Each device copies what it gets from where that is.

    Raises:
        MeshError: the layout does not fit the shape and the mesh, or its boxes overlap or leave something out.
        MovedError: the value has been moved before.
        TypeError: an argument is of a wrong type.
    """
    where = here()
    check_layout(layout, "reshard", where)
    if mesh is not None:
        check_mesh(mesh, "reshard", where)

    def about(whole: Any) -> Spreading:
        before = spreading_of(whole)
        return cut_at(layout, mesh or before.mesh, before.shape, before.dtype, "reshard", where)

    def cut(whole: Any) -> AnyOp:
        after = about(whole)
        if after == spreading_of(whole) and isinstance(whole, Sharded):
            return Value(move_handles(whole, "reshard()", where), where)
        return laid_out(after, sources_of_whole(whole), where)

    return then_of(s, (Sharded, ShardedRef), cut, "reshard", "s", where, about)


@overload
def gather(s: ShardedRef[_N], on: Device | str | None = ...) -> DeviceOp[Tensor[_N], Borrowed]: ...
@overload
def gather(s: Sharded[_N], on: Device | str | None = ...) -> DeviceOp[Tensor[_N]]: ...
@overload
def gather(
    s: DeviceOp[Sharded[_N] | ShardedRef[_N], _L, Any], on: Device | str | None = ...
) -> DeviceOp[Tensor[_N], _L]: ...
@leaves_run
def gather(s: Any, on: Device | str | None = None) -> Any:
    """Put a whole together in one tensor on one device, by default the first of its mesh.

    Raises:
        MovedError: the value has been moved before.
        NoDeviceError: this machine has no such device.
        TypeError: an argument is of a wrong type.
    """
    where = here()
    place = None if on is None else _device_of(on, where)

    def join(whole: Any) -> AnyOp:
        about = spreading_of(whole)
        return assembled_whole(place or about.mesh.devices[0], about, sources_of_whole(whole), where)

    return then_of(s, (Sharded, ShardedRef), join, "gather", "s", where)


def _device_of(on: Any, where: Origin) -> Device:
    """Return a device that may be given by its name."""
    if isinstance(on, Device):
        return on
    if not isinstance(on, str):
        raise wrong_argument("gather", where, "on", on, "a device or its name", 'Write on="cuda:0"')
    try:
        return FIND_DEVICE.value(on)
    except NoDeviceError as error:
        raise add_call_place("gather", where, error) from None


# ---- building blocks


@plain
class Together:
    """Makes a value of a mesh of the handles on its devices."""

    kind: type[Any]
    about: Spreading

    def __call__(self, parts: tuple[Any, ...]) -> Any:
        return self.kind(self.about, parts)


def sources_of_whole(value: Any) -> list[tuple[Readable, PartShape]]:
    """Return the parts of a whole that is cut by a layout, each with its geometry."""
    return list(zip(parts_of(value), spreading_of(value).parts, strict=True))


def laid_out(about: Spreading, sources: list[tuple[Readable, PartShape]], where: Origin) -> AnyOp:
    """Return an op whose result is a `Sharded`, with copies from the parts of a whole."""
    ops: list[AnyOp] = []
    for device, part in zip(about.mesh.devices, about.parts, strict=True):
        target = contiguous_layout(part.shape, about.dtype)
        ops.append(assembled(device, part.shape, about.dtype, pieces_between(sources, part, target, where), where))
    return Map(Zip(tuple(ops), where), Together(Sharded, about), where)


def assembled_whole(
    device: Device, about: Spreading, sources: list[tuple[Readable, PartShape]], where: Origin
) -> AnyOp:
    """Return an op whose result is the whole as a tensor on one device."""
    target = contiguous_layout(about.shape, about.dtype)
    copies = pieces_between(sources, whole_part(about.shape), target, where)
    return assembled(device, about.shape, about.dtype, copies, where)


# ---- to the host


@plain
class _AssembleOnHost:
    """Puts the arrays of all parts together."""

    about: Spreading

    def __call__(self, arrays: tuple[NDArray[Any], ...]) -> NDArray[Any]:
        about = self.about
        whole = np.empty(about.shape, about.dtype)
        for array, part in zip(arrays, about.parts, strict=True):
            for piece in part.pieces:
                if array.ndim == whole.ndim:
                    extents = [stop - start for start, stop in piece.box]
                    at = [slice(start, start + extent) for start, extent in zip(piece.start, extents, strict=True)]
                    whole[as_slices(piece.box)] = array[tuple(at)]
                else:
                    into = whole[as_slices(piece.box)]
                    into[...] = array[piece.start[0] : piece.start[0] + into.size].reshape(into.shape)
        return whole


def _to_host(value: Any) -> AnyOp:
    """Return the op of `to_host()`."""
    where, about = here(), spreading_of(value)
    if isinstance(value, Replicated):
        if about.axis is not None:
            raise MeshError(
                f"to_host() at {describe(where)} of {value!r}, whose replicas are equal along one axis alone. Read "
                "them device by device: each(f, replicas)."
            )
        return ToHost(Value(parts_of(value)[0], where), where)
    moved = move_handles(value, "to_host()", where)
    arrays: list[AnyOp] = [ToHost(Value(part, where), where) for part in parts_of(moved)]
    return HostCall(Zip(tuple(arrays), where), _AssembleOnHost(about), where)


TO_ARRAY.set(_to_host)
