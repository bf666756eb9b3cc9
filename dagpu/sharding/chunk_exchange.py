"""Building blocks of collectives: rows of devices, chunks of tensors, and their exchange."""

from collections.abc import Sequence
from math import prod
from typing import Any, Final

from dagpu.common.errors import MeshError
from dagpu.common.frozen import plain
from dagpu.common.layout import Layout, contiguous_layout
from dagpu.common.origin import Origin
from dagpu.common.wrong_arguments import wrong_argument
from dagpu.handles import Tensor, share_tensor
from dagpu.handles.device_handles import Device
from dagpu.lowering.schedule.mesh import Mesh
from dagpu.ops.compose import Map, Then, Zip
from dagpu.sharding.assembling import AnyOp, Readable, assembled, layout_of, pieces_between, view_of, whole_part
from dagpu.sharding.part_geometry import PartShape, part_of
from dagpu.sharding.spread_values import Replicated, Spreading

ALIGNED: Final = 128
"""The multiple of elements at which chunks begin."""


def rows_along(mesh: Mesh, axis: Any, call: str, where: Origin) -> list[list[int]]:
    """Return the rows of devices along an axis, each by the numbers of its devices; one row of all without an axis."""
    if axis is None:
        return [list(range(len(mesh)))]
    if not isinstance(axis, str) or axis not in mesh.axes:
        names = " or ".join(map(repr, mesh.axes))
        raise wrong_argument(call, where, "axis", axis, names, f"Write axis={mesh.axes[0]!r}", MeshError)
    number = {device: rank for rank, device in enumerate(mesh.devices)}
    return [[number[device] for device in row.devices] for row in mesh.along(axis)]


def even_chunks(size: int, count: int) -> list[PartShape]:
    """Return `count` ranges of about the same length that cover `size` elements, as parts of one axis. They begin where
    a block of memory may be read with the widest loads."""
    step = -(-size // (count * ALIGNED)) * ALIGNED
    ranges = [(min(number * step, size), min((number + 1) * step, size)) for number in range(count)]
    return [part_of(((each,),), 1) for each in ranges]


def flat_view(handle: Readable, where: Origin) -> Readable:
    """Return a handle that reads a contiguous tensor in one axis."""
    layout = layout_of(handle)
    return view_of(handle, Layout(layout.dtype, (layout.size,), (layout.dtype.itemsize,), layout.offset), where)


def pulled_parts(
    sources: Sequence[tuple[Readable, PartShape]], devices: list[Device], parts: list[PartShape], where: Origin
) -> list[AnyOp]:
    """Return for each device the op that copies its part from the sources."""
    dtype, ops = sources[0][0].dtype, []
    for device, part in zip(devices, parts, strict=True):
        copies = pieces_between(sources, part, contiguous_layout(part.shape, dtype), where)
        ops.append(assembled(device, part.shape, dtype, copies, where))
    return ops


def exchanged(
    about: Spreading, chunks: list[AnyOp], parts: list[PartShape], devices: list[Device], where: Origin
) -> AnyOp:
    """Return the op of the whole on each device, as a tuple, from a chunk of its elements on each device."""
    return Then(Zip(tuple(chunks), where), _Exchange(about, tuple(parts), tuple(devices), where), where)


@plain
class _Exchange:
    """Copies all chunks to every device."""

    about: Spreading
    parts: tuple[PartShape, ...]
    devices: tuple[Device, ...]
    where: Origin

    def __call__(self, chunks: tuple[Any, ...]) -> AnyOp:
        shape, dtype, where = self.about.shape, self.about.dtype, self.where
        flat = contiguous_layout((prod(shape),), dtype)
        sources = list(zip(chunks, self.parts, strict=True))
        copies = [pieces_between(sources, whole_part(flat.shape), flat, where) for _ in self.devices]
        ops = [assembled(at, shape, dtype, each, where) for at, each in zip(self.devices, copies, strict=True)]
        return Zip(tuple(ops), where)


def replicated(about: Spreading, rows: list[AnyOp], ranks: list[list[int]], where: Origin) -> AnyOp:
    """Return the op of a `Replicated`, from ops of the tensors of several devices each; `ranks` are their numbers."""
    return Map(Zip(tuple(rows), where), _Share(about, tuple(map(tuple, ranks)), where), where)


@plain
class _Share:
    """Makes a `Replicated` of the tensors of rows of devices."""

    about: Spreading
    ranks: tuple[tuple[int, ...], ...]
    where: Origin

    def __call__(self, rows: tuple[tuple[Any, ...], ...]) -> Replicated[Any]:
        found: dict[int, Any] = {}
        for row, ranks in zip(rows, self.ranks, strict=True):
            for handle, rank in zip(row, ranks, strict=True):
                found[rank] = share_tensor(handle, self.where) if isinstance(handle, Tensor) else handle
        return Replicated(self.about, tuple([found[rank] for rank in range(len(found))]))
