"""Ops that bring a whole to the devices of a mesh, to another layout, and back."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from dagpu.common.errors import MeshError, NoDeviceError, ShapeError
from dagpu.common.frozen import plain
from dagpu.common.layout import Layout, Shape, as_shape, contiguous_layout, element_type
from dagpu.common.places import Origin, describe, here, leaves_run
from dagpu.common.wrong_arguments import add_call_place, wrong_argument
from dagpu.handles import HandleState, SharedTensor, Tensor, TensorRef, clone_shared, live_state, move_handle
from dagpu.handles.device_handles import FIND_DEVICE, Device, reaches
from dagpu.handles.symbolic import SymbolicArray
from dagpu.handles.tensors import move_handles
from dagpu.meshes.layouts import FIRST_AXIS, DeviceLayout, as_slices, intersection
from dagpu.meshes.values import (
    TO_ARRAY,
    PartShape,
    Replicated,
    Sharded,
    ShardedRef,
    Spreading,
    cut_at,
    part_of,
    parts_of,
    spreading_of,
)
from dagpu.ops.base import Borrowed, DeviceOp, cure_by_await
from dagpu.ops.compose import LAST, HostCall, Map, On, Then, ToHost, Value, Zip
from dagpu.ops.creation import Alloc, Copy, from_host, wanted_element_type
from dagpu.ops.initializers import Constant
from dagpu.ops.recording import recorded
from dagpu.plans.mesh import Mesh

AnyOp: TypeAlias = DeviceOp[Any, Any, Any]
Readable: TypeAlias = Tensor[Any] | SharedTensor[Any] | TensorRef[Any]
"""A handle that is read. A `Tensor` is lent for that; it has to stay alive until the copies are traced."""


class CopyInto(NamedTuple):
    """A copy of a tensor to a part of another one, whose layout this is."""

    source: Readable
    into: Layout


# ---- arguments


def check_mesh(mesh: Any, call: str, where: Origin) -> Mesh:
    """Return a mesh.

    Raises:
        TypeError: the value is no `Mesh`.
    """
    if not isinstance(mesh, Mesh):
        raise wrong_argument(call, where, "mesh", mesh, "a Mesh", 'Write Mesh(["cuda:0", "cuda:1"])')
    return mesh


def check_layout(layout: Any, call: str, where: Origin) -> None:
    """Check that an argument is a layout.

    Raises:
        TypeError: it is not.
    """
    if isinstance(layout, type) or not callable(getattr(layout, "boxes", None)):
        raise wrong_argument(call, where, "layout", layout, "a layout", "Write Blocks(0) or Cyclic((64, 64))")


def _takes_any(value: Any) -> None:
    """Refuse no value."""


def ops_of(
    values: Sequence[Any],
    kinds: tuple[type[Any], ...],
    call: str,
    names: Sequence[str],
    where: Origin,
    fits: Callable[[tuple[Any, ...]], object],
) -> list[AnyOp]:
    """Return the arguments of a call as ops: an op itself, or one of the handles in a value of these classes, which
    move. `fits` gets the values, and raises if the call cannot take them. If the call is refused, nothing has moved.

    Raises:
        MovedError: a handle has been moved before.
        TypeError: a value is of another class.
    """
    for value, name in zip(values, names, strict=True):
        if not isinstance(value, (DeviceOp, *kinds)):
            raise _wrong_value(value, kinds, call, name, where)
    known = tuple([value for value in values if not isinstance(value, DeviceOp)])
    if known:
        fits(known)
    moved = iter(move_handles(known, f"{call}()", where))
    return [value if isinstance(value, DeviceOp) else Value(next(moved), where) for value in values]


def op_of(
    value: Any,
    kinds: tuple[type[Any], ...],
    call: str,
    name: str,
    where: Origin,
    fits: Callable[[Any], object] = _takes_any,
) -> AnyOp:
    """Return one argument as an op; see `ops_of`."""
    return ops_of([value], kinds, call, [name], where, lambda values: fits(values[0]))[0]


def check_result(value: Any, kinds: tuple[type[Any], ...], call: str, name: str, where: Origin) -> None:
    """Check the result of an op among the arguments.

    Raises:
        TypeError: it is of none of these classes.
    """
    if not isinstance(value, kinds):
        raise _wrong_value(value, kinds, call, f"the result of {name}", where)


def _wrong_value(value: Any, kinds: tuple[type[Any], ...], call: str, name: str, where: Origin) -> Exception:
    names = [kind.__name__ for kind in kinds]
    wanted = f"a {' or '.join([', '.join(names[:-1]), names[-1]] if len(names) > 1 else names)}"
    cure = cure_by_await(value) or f"Make one with {_MAKERS[names[0]]}"
    return wrong_argument(call, where, name, value, f"{wanted}, or an op with such a result,", cure)


_MAKERS: Final = {
    "Tensor": "from_host(array)",
    "Sharded": "shard(t, mesh)",
    "Partials": "as_partials(each(f, a))",
    "Each": "each(f, a)",
}


@plain
class _Checked:
    """A function of an op over a mesh, which the trace calls with the result of the op's source, if it `fits`."""

    f: Callable[[Any], AnyOp]
    fits: Callable[[Any], object]
    kinds: tuple[type[Any], ...]
    call: str
    name: str
    where: Origin

    def __call__(self, value: Any) -> AnyOp:
        check_result(value, self.kinds, self.call, self.name, self.where)
        self.fits(value)
        return self.f(value)


def then_of(
    value: Any,
    kinds: tuple[type[Any], ...],
    f: Callable[[Any], AnyOp],
    call: str,
    name: str,
    where: Origin,
    fits: Callable[[Any], object] = _takes_any,
) -> AnyOp:
    """Return the op that calls `f` with a value of these classes, or with the result of an op, in the trace.

    `fits` raises if the call cannot take the value: at once for a value, before it moves.
    """
    return Then(op_of(value, kinds, call, name, where, fits), _Checked(f, fits, kinds, call, name, where), where)


# ---- views and copies


def view_of(handle: Readable, layout: Layout, where: Origin) -> Readable:
    """Return a handle that reads the same memory in another layout."""
    state = live_state(handle)
    if isinstance(handle, Tensor):
        return TensorRef(HandleState(TensorRef, state.storage, layout, where, handle))
    if isinstance(handle, SharedTensor):
        return clone_shared(handle, layout)
    return TensorRef(state.with_layout(layout))


def layout_of(handle: Any) -> Layout:
    """Return the layout of a living handle."""
    return live_state(handle).layout


def assembled(
    device: Device | None,
    shape: Shape,
    dtype: "np.dtype[Any]",
    copies: Sequence[CopyInto],
    where: Origin,
    *,
    zeros: bool = False,
) -> AnyOp:
    """Return an op whose result is a new tensor on a device, to which these copies are made. With `zeros` it is filled
    before. Without a device it is where the op is placed."""
    sources, into = [each.source for each in copies], tuple([each.into for each in copies])
    return put_together(sources, into, device, contiguous_layout(shape, dtype), where, zeros=zeros)


@recorded
def put_together(
    sources: list[Any], into: tuple[Layout, ...], device: Device | None, whole: Layout, where: Origin, *, zeros: bool
) -> AnyOp:
    """Return the op of `assembled`, for handles, or for ops of them."""
    if any(isinstance(each, DeviceOp) for each in sources):

        def of_handles(handles: tuple[Any, ...]) -> AnyOp:
            return put_together(list(handles), into, device, whole, where, zeros=zeros)

        return Then(Zip(tuple(sources), where), of_handles, where)
    empty = Alloc[Any, Any, Any](whole.shape, whole.dtype, Constant(0) if zeros else None, where)
    made: AnyOp = Then(empty, _Copies(tuple(map(CopyInto, sources, into)), where), where)
    return made if device is None else On(made, device, where)


@plain
class _Copies:
    """Makes the copies to a new tensor, and returns it."""

    copies: tuple[CopyInto, ...]
    where: Origin

    def __call__(self, made: Tensor[Any]) -> AnyOp:
        state, where = live_state(made), self.where
        steps: list[AnyOp] = []
        for source, layout in self.copies:
            if layout.size:
                # Handles to parts of the tensor: their writes are ordered, and this one alone leaves the trace.
                target: Tensor[Any] = Tensor(HandleState(Tensor, state.storage, layout, where))
                steps.append(_copy(source, target, where))
        whole: AnyOp = Value(move_handle(made, "an op over a mesh", where), where)
        return Map(Zip((*steps, whole), where), LAST, where)


def _copy(source: Readable, target: Tensor[Any], where: Origin) -> AnyOp:
    """Return the op that copies to a part of a tensor. To a device that does not read the memory of the other one,
    strided elements go in one piece."""
    strided = not layout_of(source).contiguous or not layout_of(target).contiguous
    here, there = target.device, source.device  # index -1: it is chosen later
    if not strided or here == there or there.index < 0 or reaches(here, there):
        return Copy(source, target, None, where)
    packed: AnyOp = On(Copy(source, None, None, where), source.device, where)
    arrived: AnyOp = On(Then(packed, partial(_duplicate, where=where), where), target.device, where)
    return Then(arrived, partial(_put, target, where), where)


def _duplicate(t: Tensor[Any], where: Origin) -> AnyOp:
    return Copy(t, None, None, where)


def _put(target: Tensor[Any], where: Origin, t: Tensor[Any]) -> AnyOp:
    return Copy(t, target, None, where)


def pieces_between(
    sources: Sequence[tuple[Readable, PartShape]], wanted: PartShape, target: Layout, where: Origin
) -> list[CopyInto]:
    """Return the copies that fill a part, with this layout, from the parts of a whole."""
    found: list[CopyInto] = []
    for piece in wanted.pieces:
        for handle, part in sources:
            for other in part.pieces:
                common = intersection(piece.box, other.box)
                if common is not None:
                    source = view_of(handle, other.layout_in(layout_of(handle), common), where)
                    found.append(CopyInto(source, piece.layout_in(target, common)))
    return found


def whole_part(shape: Shape) -> PartShape:
    """Return the part that is the whole."""
    return part_of((tuple([(0, extent) for extent in shape]),), len(shape))


# ---- laying out
#
# Ops that bring a whole to the devices of a mesh, from one layout to another, and back to one place.

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
