"""Collectives: ops in which every device of a mesh gets something of all of them.

They consist of copies between devices and of element-wise kernels, so they overlap with other work, are planned and
verified with it, and never wait for each other on a device. Summands are added in the order of the devices: the bits
are the same on all devices and in all runs.
"""

from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias, overload

import numpy as np
from typing_extensions import TypeVar

from dagpu.common.errors import MeshError
from dagpu.common.frozen import plain
from dagpu.common.layout import contiguous_layout
from dagpu.common.origin import Origin, describe, here
from dagpu.common.tracebacks import leaves_run
from dagpu.common.wrong_arguments import wrong_argument
from dagpu.handles import SharedTensor, Tensor, TensorRef, share_tensor
from dagpu.handles.device_handles import Device, reaches
from dagpu.lowering.schedule.mesh import Mesh
from dagpu.ops.base import Borrowed, DeviceOp
from dagpu.ops.compose import Map, On, Then, Value, Zip
from dagpu.sharding.assembling import (
    AnyOp,
    Readable,
    assembled,
    check_layout,
    check_mesh,
    layout_of,
    pieces_between,
    then_of,
    whole_part,
)
from dagpu.sharding.chunk_exchange import (
    even_chunks,
    exchanged,
    flat_view,
    pulled_parts,
    replicated,
    rows_along,
)
from dagpu.sharding.device_boxes import FIRST_AXIS, DeviceLayout
from dagpu.sharding.laying_out import Together, sources_of_whole
from dagpu.sharding.nccl import check_nccl, reduced_by_nccl
from dagpu.sharding.part_geometry import PartShape, part_of
from dagpu.sharding.reducing import Reduction, check_element, check_reduction, reduced
from dagpu.sharding.spread_values import (
    Partials,
    Replicated,
    Sharded,
    ShardedRef,
    Spreading,
    copied_on,
    cut_at,
    parts_of,
    spreading_of,
)

_N = TypeVar("_N", bound=np.generic)
_L = TypeVar("_L", bound=Borrowed)

Engine: TypeAlias = Literal["direct", "nccl"]
"""What combines summands: kernels of dagpu's, or NCCL."""

SMALL: Final = 256 << 10
"""The most bytes of a summand that every device reads whole. On four H200s two steps, each through a part, are sooner
from there on."""


# ---- replicas


@overload
def broadcast(t: TensorRef[_N], mesh: Mesh) -> DeviceOp[Replicated[_N], Borrowed]: ...
@overload
def broadcast(t: Tensor[_N] | SharedTensor[_N], mesh: Mesh) -> DeviceOp[Replicated[_N]]: ...
@overload
def broadcast(
    t: DeviceOp[Tensor[_N] | SharedTensor[_N] | TensorRef[_N], _L, Any], mesh: Mesh
) -> DeviceOp[Replicated[_N], _L]: ...
def broadcast(t: Any, mesh: Mesh) -> Any:
    """Copy a tensor to every device of a mesh. Moves a `Tensor`.

    On the device where it is, a `Tensor` or `SharedTensor` is the replica itself. A large tensor goes to several
    devices in chunks, which these then copy from each other: so the link of its device is not the bottleneck.

    Raises:
        MovedError: the tensor has been moved before.
        TypeError: an argument is of a wrong type.
    """
    where = here()
    check_mesh(mesh, "broadcast", where)

    def copy(given: Any) -> AnyOp:
        whole: Any = share_tensor(given, where) if isinstance(given, Tensor) else given
        about, contiguous = copied_on(mesh, whole.shape, whole.dtype), layout_of(whole).contiguous
        kept = contiguous and isinstance(whole, SharedTensor)  # the replica of its own device
        ranks = [rank for rank, device in enumerate(mesh.devices) if not kept or device != whole.device]
        devices = [mesh.devices[rank] for rank in ranks]
        if len(devices) > 2 and contiguous and whole.nbytes > SMALL:
            flat = flat_view(whole, where)
            chunks = even_chunks(whole.size, len(devices))
            pulled = pulled_parts([(flat, whole_part(flat.shape))], devices, chunks, where)
            copies = exchanged(about, pulled, chunks, devices, where)
        else:
            part = whole_part(whole.shape)
            copies = Zip(tuple(pulled_parts([(whole, part)], devices, [part] * len(devices), where)), where)
        home = [rank for rank, device in enumerate(mesh.devices) if kept and device == whole.device]
        there: AnyOp = Value((whole,) if home else (), where)
        return replicated(about, [copies, there], [ranks, home], where)

    return then_of(t, (Tensor, SharedTensor, TensorRef), copy, "broadcast", "t", where)


@overload
def all_gather(s: ShardedRef[_N], *, axis: str | None = ...) -> DeviceOp[Replicated[_N], Borrowed]: ...
@overload
def all_gather(s: Sharded[_N], *, axis: str | None = ...) -> DeviceOp[Replicated[_N]]: ...
@overload
def all_gather(
    s: DeviceOp[Sharded[_N] | ShardedRef[_N], _L, Any], *, axis: str | None = ...
) -> DeviceOp[Replicated[_N], _L]: ...
@leaves_run
def all_gather(s: Any, *, axis: str | None = None) -> Any:
    """Put a whole together on every device of its mesh.

    Args:
        s: the whole.
        axis: an axis of the mesh. Each device gets the boxes of the devices in its row along this axis alone, and the
            replicas are equal along it alone. These boxes must form one block of the same shape in each row.

    Raises:
        MeshError: the mesh has no such axis, or the boxes along it form no such block.
        MovedError: the value has been moved before.
        TypeError: an argument is of a wrong type.
    """
    where = here()

    def rows_of(whole: Any) -> tuple[list[list[int]], list[PartShape]]:
        about = spreading_of(whole)
        rows = rows_along(about.mesh, axis, "all_gather", where)
        boxes = [tuple([box for rank in row for box in about.boxes[rank]]) for row in rows]
        one = whole_part(about.shape)
        parts = [one] if len(rows) == 1 else [part_of(mine, len(about.shape)) for mine in boxes]
        shape = parts[0].shape
        if any(part.shape != shape for part in parts) or len(shape) != len(about.shape):
            raise MeshError(
                f"all_gather at {describe(where)}: {about.layout!r} of {about.shape} does not give each row of devices "
                f"along {axis!r} one block of the same shape. Gather without an axis, or reshard before."
            )
        return rows, parts

    def join(whole: Any) -> AnyOp:
        about, sources, (rows, parts) = spreading_of(whole), sources_of_whole(whole), rows_of(whole)
        ops: list[AnyOp] = []
        for row, part in zip(rows, parts, strict=True):
            mine, devices = [sources[rank] for rank in row], [about.mesh.devices[rank] for rank in row]
            ops.append(Zip(tuple(pulled_parts(mine, devices, [part] * len(row), where)), where))
        made = copied_on(about.mesh, parts[0].shape, about.dtype, axis if len(rows) > 1 else None)
        return replicated(made, ops, rows, where)

    return then_of(s, (Sharded, ShardedRef), join, "all_gather", "s", where, rows_of)


# ---- reductions


@overload
def all_reduce(
    p: Partials[_N], how: Reduction = ..., *, axis: str | None = ..., engine: Engine = ...
) -> DeviceOp[Replicated[_N]]: ...
@overload
def all_reduce(
    p: DeviceOp[Partials[_N], _L, Any], how: Reduction = ..., *, axis: str | None = ..., engine: Engine = ...
) -> DeviceOp[Replicated[_N], _L]: ...
@leaves_run
def all_reduce(p: Any, how: Reduction = "sum", *, axis: str | None = None, engine: Engine = "direct") -> Any:
    """Combine the summands of all devices, element by element, and put the result on every device.

    The order is that of the devices in the mesh, so all devices and all runs have the same bits. Each device reduces
    one chunk and copies the other chunks from their devices; small summands, and those of two devices, it reads whole.

    Args:
        p: the summands.
        how: "sum", "mean", "max", "min" or "prod".
        axis: an axis of the mesh. Each device gets the result of the devices in its row along this axis alone, and the
            replicas are equal along it alone.
        engine: "direct", or "nccl" for NVIDIA's library (the extra `nccl`), on GPUs alone. NCCL adds in an order of its
            own, so the bits may differ from those of "direct". The run waits for the summands before it, and the op
            cannot be captured in a graph.

    Raises:
        DeviceError: NCCL is not installed, or refuses the call.
        MeshError: the mesh has no such axis, or elements of this type have no such result.
        MovedError: the value has been moved before.
        TypeError, ValueError: an argument is of a wrong type, or no reduction or engine has the name.
    """
    where = here()
    check_reduction(how, "all_reduce", where)
    chosen: Any = engine  # whatever the user gave
    if not isinstance(chosen, str) or chosen not in ("direct", "nccl"):
        cure = 'Leave it out, or write engine="nccl"'
        raise wrong_argument("all_reduce", where, "engine", engine, "'direct' or 'nccl'", cure, ValueError)

    def rows_of(summands: Any) -> list[list[int]]:
        about = spreading_of(summands)
        check_element(how, about.dtype, "all_reduce", where)
        if engine == "nccl":
            check_nccl(about, where)
        return rows_along(about.mesh, axis, "all_reduce", where)

    def reduce(summands: Any) -> AnyOp:
        about, handles, rows = spreading_of(summands), parts_of(summands), rows_of(summands)
        combine = reduced_by_nccl if engine == "nccl" else _reduced_everywhere
        ops = [
            combine(how, about, [handles[rank] for rank in row], [about.mesh.devices[rank] for rank in row], where)
            for row in rows
        ]
        made = copied_on(about.mesh, about.shape, about.dtype, axis if len(rows) > 1 else None)
        return replicated(made, ops, rows, where)

    return then_of(p, (Partials,), reduce, "all_reduce", "p", where, rows_of)


@overload
def reduce_scatter(p: Partials[_N], layout: DeviceLayout = ..., how: Reduction = ...) -> DeviceOp[Sharded[_N]]: ...
@overload
def reduce_scatter(
    p: DeviceOp[Partials[_N], _L, Any], layout: DeviceLayout = ..., how: Reduction = ...
) -> DeviceOp[Sharded[_N], _L]: ...
@leaves_run
def reduce_scatter(p: Any, layout: DeviceLayout = FIRST_AXIS, how: Reduction = "sum") -> Any:
    """Combine the summands of all devices, element by element. Each device gets the boxes of the layout.

    The order is that of the devices in the mesh, and the bits are those of `all_reduce`.

    Raises:
        MeshError: the layout does not fit the shape and the mesh, or elements of this type have no such result.
        MovedError: the value has been moved before.
        TypeError, ValueError: an argument is of a wrong type, or no reduction has the name.
    """
    where = here()
    check_layout(layout, "reduce_scatter", where)
    check_reduction(how, "reduce_scatter", where)

    def made_of(summands: Any) -> Spreading:
        about = spreading_of(summands)
        check_element(how, about.dtype, "reduce_scatter", where)
        return cut_at(layout, about.mesh, about.shape, about.dtype, "reduce_scatter", where)

    def reduce(summands: Any) -> AnyOp:
        about, made = spreading_of(summands), made_of(summands)
        whole = whole_part(about.shape)
        ops = _reduced(how, list(parts_of(summands)), whole, list(about.mesh.devices), list(made.parts), where)
        return Map(Zip(tuple(ops), where), Together(Sharded, made), where)

    return then_of(p, (Partials,), reduce, "reduce_scatter", "p", where, made_of)


def _reduced_everywhere(
    how: str, about: Spreading, handles: list[Readable], devices: list[Device], where: Origin
) -> AnyOp:
    """Return the op of the whole result on each device, as a tuple."""
    nbytes = contiguous_layout(about.shape, about.dtype).nbytes
    if len(devices) <= 2 or nbytes <= SMALL or not all(layout_of(handle).contiguous for handle in handles):
        whole = whole_part(about.shape)
        return Zip(tuple(_reduced(how, handles, whole, devices, [whole] * len(devices), where)), where)
    flat = [flat_view(handle, where) for handle in handles]
    chunks = even_chunks(flat[0].size, len(devices))
    made = _reduced(how, flat, whole_part(flat[0].shape), devices, chunks, where)
    return exchanged(about, made, chunks, devices, where)


def _reduced(
    how: str,
    handles: Sequence[Readable],
    whole: PartShape,
    devices: list[Device],
    parts: list[PartShape],
    where: Origin,
) -> list[AnyOp]:
    """Return for each device the op that combines its part of all handles, in their order."""
    ops: list[AnyOp] = []
    for device, part in zip(devices, parts, strict=True):
        target = contiguous_layout(part.shape, handles[0].dtype)
        pulled: list[AnyOp] = []
        for handle in handles:
            copies = pieces_between([(handle, whole)], part, target, where)
            in_one = len(copies) == 1 and copies[0].source.shape == part.shape
            if in_one and handle.device.index >= 0 and reaches(device, handle.device):
                pulled.append(Value(copies[0].source, where))  # the kernel reads it where it is
            else:
                pulled.append(assembled(device, part.shape, target.dtype, copies, where))
        combine = _Combine(how, where)
        ops.append(On(Then(Zip(tuple(pulled), where), combine, where), device, where))
    return ops


@plain
class _Combine:
    """Combines the tensors that are on one device."""

    how: str
    where: Origin

    def __call__(self, tensors: tuple[Any, ...]) -> AnyOp:
        return reduced(self.how, tensors, self.where)
