"""Collectives and `halo`: ops in which devices exchange parts."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, reduce
from itertools import product
from math import prod
from operator import add, mul
from typing import Any, Final, Literal, TypeAlias, overload

import numpy as np
from typing_extensions import TypeVar

from dagpu.arrays.element_functions import maximum, minimum
from dagpu.common.errors import MeshError
from dagpu.common.frozen import plain
from dagpu.common.layout import Layout, contiguous_layout, slice_layout
from dagpu.common.places import Origin, describe, here, leaves_run
from dagpu.common.wrong_arguments import as_whole_number, check_flag, wrong_argument
from dagpu.handles import SharedTensor, Tensor, TensorRef, share_tensor
from dagpu.handles.device_handles import Device, reaches
from dagpu.kernels.element import trace_expression
from dagpu.kernels.expression import Expression
from dagpu.meshes.layouts import FIRST_AXIS, DeviceLayout, as_slices, intersection
from dagpu.meshes.moving import (
    AnyOp,
    CopyInto,
    Readable,
    Together,
    assembled,
    check_layout,
    check_mesh,
    layout_of,
    pieces_between,
    sources_of_whole,
    then_of,
    view_of,
    whole_part,
)
from dagpu.meshes.nccl import check_nccl, reduced_by_nccl
from dagpu.meshes.values import (
    Haloed,
    Partials,
    PartShape,
    Replicated,
    Sharded,
    ShardedRef,
    Spreading,
    copied_on,
    cut_at,
    part_of,
    parts_of,
    spreading_of,
)
from dagpu.ops.base import Borrowed, DeviceOp
from dagpu.ops.compose import Launch, Map, On, Then, Value, Zip
from dagpu.ops.creation import dup
from dagpu.ops.kernel_spec import KernelSpec
from dagpu.ops.recording import RECORDER, recorded
from dagpu.plans.mesh import Mesh

_L = TypeVar("_L", bound=Borrowed)
_N = TypeVar("_N", bound=np.generic)


Reduction: TypeAlias = Literal["sum", "max", "min", "prod", "mean"]
"""How the summands of `Partials` are combined."""

REDUCTIONS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "sum": add, "max": maximum, "min": minimum, "prod": mul, "mean": add,
}  # fmt: skip

_MOST: Final = 8
"""The most tensors that one kernel reads. The bits do not depend on it: each operation rounds."""


def check_reduction(how: Any, call: str, where: Origin) -> None:
    """Check the name of a reduction.

    Raises:
        ValueError: there is no such reduction.
    """
    if not isinstance(how, str) or how not in REDUCTIONS:
        names = ", ".join(map(repr, REDUCTIONS))
        raise wrong_argument(call, where, "how", how, f"one of {names}", "Leave it out for a sum", ValueError)


def check_element(how: str, dtype: "np.dtype[Any]", call: str, where: Origin) -> None:
    """Check that elements of this type can be reduced so.

    Raises:
        MeshError: they cannot.
    """
    wrong = None
    if dtype.kind in "bc":
        wrong = f"elements of {dtype.name} have no {how} here"
    elif how == "mean" and dtype.kind in "iu":
        wrong = f"the mean of elements of {dtype.name} is no such element"
    if wrong is not None:
        cure = "Reduce them as f32: let the function of each convert(t, f32)"
        raise MeshError(f"{call} at {describe(where)}: {wrong}. {cure}.")


def combined(how: str, tensors: Sequence[Any], where: Origin) -> AnyOp:
    """Return an op whose result is a new tensor: the tensors combined from left to right.

    It is placed on a device, which reads the memory of those where the tensors are.
    """
    if RECORDER.get() is None or how in ("sum", "mean"):
        return combined_at_once(how, list(tensors), where)
    so_far: AnyOp = dup(tensors[0])  # steps that have derivatives, of copies on the device; the bits are the same
    for each in tensors[1:]:
        so_far = REDUCTIONS[how](so_far, dup(each))
    return so_far


@recorded
def combined_at_once(how: str, tensors: list[Any], where: Origin) -> AnyOp:
    """Return the op of `combined` of handles, or of ops of them, by as few kernels as possible."""
    if any(isinstance(each, DeviceOp) for each in tensors):
        return Then(Zip(tuple(tensors), where), lambda handles: combined_at_once(how, list(handles), where), where)
    count, dtype = len(tensors), tensors[0].dtype
    first = _combine(how, dtype, min(count, _MOST), count if count <= _MOST else 0)
    op = _reading_peers(first.build(tuple(tensors[:_MOST]), where))
    for start in range(_MOST, count, _MOST - 1):
        more = tuple(tensors[start : start + _MOST - 1])
        last = start + len(more) == count
        further = _combine(how, dtype, len(more) + 1, count if last else 0)
        op = Then(op, _Further(further, more, where), where)
    return op


class _Further:
    """Combines what is reduced so far with further tensors."""

    def __init__(self, further: Expression[..., Any], more: tuple[Any, ...], where: Origin) -> None:
        self._further, self._more, self._where = further, more, where

    def __call__(self, so_far: Any) -> AnyOp:
        return _reading_peers(self._further.build((so_far, *self._more), self._where))


def _reading_peers(op: AnyOp) -> AnyOp:
    """Return the op of a call of an expression, for inputs that are on several devices."""
    if isinstance(op, Map):
        return Map(_reading_peers(op.source), op.f, op.origin)
    assert isinstance(op, Launch), "the layouts of the arguments are known"
    return Launch(_peer_kernel(op.kernel), op.args, op.origin)


@lru_cache(256)
def _peer_kernel(kernel: KernelSpec) -> KernelSpec:
    """Return the kernel for inputs on several devices. Its output takes the memory of none of them."""
    return replace(kernel, peers=True, in_place=False)


@lru_cache(256)
def _combine(how: str, dtype: "np.dtype[Any]", count: int, divisor: int) -> Expression[..., Any]:
    """Return the expression that combines this number of tensors, and for a mean divides by `divisor`, unless it is
    0."""
    combine = REDUCTIONS[how]

    def combined(*elements: Any) -> Any:
        whole = reduce(combine, elements)
        return whole / divisor if how == "mean" and divisor else whole

    combined.__name__ = f"{how}_of_{count}"
    names = [inspect.Parameter(f"x{number}", inspect.Parameter.POSITIONAL_ONLY) for number in range(count)]
    vars(combined)["__signature__"] = inspect.Signature(names)
    return Expression(trace_expression(combined, (dtype,) * count), (combined.__code__, 0))


# ---- collectives
#
# Collectives: ops in which every device of a mesh gets something of all of them.
#
# They consist of copies between devices and of element-wise kernels, so they overlap with other work, are planned and
# verified with it, and never wait for each other on a device. Summands are added in the order of the devices: the bits
# are the same on all devices and in all runs.
#
# What waits is an edge of the graph between devices, and not a flag in peer memory, which gains nothing: on two H200s
# edges between all of two devices add 2.9 us to a graph of 11.2 us, and memory operations 12. Kernels that wait for
# flags add two summands of 16 KiB in 19.5 us and of 16 MiB in 73.6, where edges and a plain kernel take 15.5 and 66.2
# (`benchmarks.hops`).

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
        return combined(self.how, tensors, self.where)


def summed_on(device: Device, tensors: Sequence[Readable], where: Origin) -> AnyOp:
    """Return the op of the sum of tensors of one shape, on a device."""
    whole = whole_part(tensors[0].shape)
    return _reduced("sum", tensors, whole, [device], [whole], where)[0]


# ---- halos
#
# `halo`: every device's block with a rim of its neighbours' elements.


@overload
def halo(s: ShardedRef[_N], width: int | Sequence[int], *, wrap: bool = ...) -> DeviceOp[Haloed[_N], Borrowed]: ...
@overload
def halo(s: Sharded[_N], width: int | Sequence[int], *, wrap: bool = ...) -> DeviceOp[Haloed[_N]]: ...
@overload
def halo(
    s: DeviceOp[Sharded[_N] | ShardedRef[_N], _L, Any], width: int | Sequence[int], *, wrap: bool = ...
) -> DeviceOp[Haloed[_N], _L]: ...
@leaves_run
def halo(s: Any, width: int | Sequence[int], *, wrap: bool = False) -> Any:
    """Copy every device's block, with a rim of its neighbours' elements around it.

    All parts have the rim on all sides, so the device's own elements begin at index `width` along each axis.

    Args:
        s: a whole that is cut into one block for each device: by `Blocks`.
        width: the width of the rim in elements, for all axes or for each.
        wrap: what is beyond the end of the whole: 0, or with `wrap` the elements of the other end.

    Raises:
        MeshError: a device has several boxes, or with `wrap` the rim is wider than the whole.
        MovedError: the value has been moved before.
        TypeError, ValueError: an argument is of a wrong type, or a width is negative.
    """
    where = here()
    periodic = check_flag(wrap, "halo", where, "wrap")
    given = _checked_width(width, where)

    def widths_of(whole: Any) -> tuple[int, ...]:
        about = spreading_of(whole)
        widths = given * len(about.shape) if len(given) == 1 and not isinstance(width, Sequence) else given
        _check_fits(about, widths, periodic, where)
        return widths

    def widen(whole: Any) -> AnyOp:
        about, widths = spreading_of(whole), widths_of(whole)
        sources = sources_of_whole(whole)
        ops: list[AnyOp] = []
        for device, boxes in zip(about.mesh.devices, about.boxes, strict=True):
            rim = tuple([(start - w, stop + w) for (start, stop), w in zip(boxes[0], widths, strict=True)])
            shape = tuple([stop - start for start, stop in rim])
            target, copies = contiguous_layout(shape, about.dtype), []
            for (handle, part), shift in product(sources, _shifts(about, widths, periodic)):
                for piece in part.pieces:
                    moved = tuple([(a + by, b + by) for (a, b), by in zip(piece.box, shift, strict=True)])
                    common = intersection(rim, moved)
                    if common is not None:
                        box = tuple([(a - by, b - by) for (a, b), by in zip(common, shift, strict=True)])
                        at = tuple([(a - low, b - low) for (a, b), (low, _) in zip(common, rim, strict=True)])
                        source = view_of(handle, piece.layout_in(layout_of(handle), box), where)
                        copies.append(CopyInto(source, slice_layout(target, as_slices(at))))
            beyond = not periodic and any(a < 0 or b > n for (a, b), n in zip(rim, about.shape, strict=True))
            ops.append(assembled(device, shape, about.dtype, copies, where, zeros=beyond))
        made = Spreading(about.mesh, about.shape, about.dtype, about.layout, about.boxes, (), None, widths)
        return Map(Zip(tuple(ops), where), _Rimmed(made, where), where)

    return then_of(s, (Sharded, ShardedRef), widen, "halo", "s", where, widths_of)


@plain
class _Rimmed:
    """Makes a `Haloed` of the tensors of all devices."""

    about: Spreading
    where: Origin

    def __call__(self, tensors: tuple[Any, ...]) -> Haloed[Any]:
        return Haloed(self.about, tuple([share_tensor(tensor, self.where) for tensor in tensors]))


def _checked_width(width: Any, where: Origin) -> tuple[int, ...]:
    """Return the widths that were given: one, or one for each axis."""
    listed = list(width) if isinstance(width, tuple | list) else [width]
    found = [as_whole_number(each) for each in listed]
    widths = tuple([each for each in found if each is not None])
    if not found or len(widths) < len(found) or min(widths) < 0:
        kind: type[Exception] = TypeError if len(widths) < len(found) else ValueError
        wanted = "a number of elements, 0 or more, for all axes or for each,"
        raise wrong_argument("halo", where, "width", width, wanted, "Write 1, or (1, 0)", kind)
    return widths


def _check_fits(about: Spreading, widths: tuple[int, ...], periodic: bool, where: Origin) -> None:
    """Raise a `MeshError` if a whole has no rims of these widths."""
    if any(len(boxes) != 1 for boxes in about.boxes):
        raise MeshError(
            f"halo at {describe(where)}: {about.layout!r} gives a device several boxes, and only one block has a rim. "
            "Cut the whole by Blocks: reshard(s, Blocks(0))."
        )
    if len(widths) != len(about.shape):
        raise MeshError(
            f"halo at {describe(where)}: {len(widths)} widths for the shape {about.shape}. Give one for each axis, 0 "
            "where no rim is wanted."
        )
    if periodic and any(w > extent for w, extent in zip(widths, about.shape, strict=True)):
        raise MeshError(
            f"halo at {describe(where)}: the rim {widths} is wider than the shape {about.shape}, which it would wrap "
            "around twice. Give smaller widths."
        )


def _shifts(about: Spreading, widths: tuple[int, ...], periodic: bool) -> Iterator[tuple[int, ...]]:
    """Return by how much the whole is moved along each axis for what lies in a rim: by an extent, if it wraps."""
    along = [(-n, 0, n) if periodic and w else (0,) for n, w in zip(about.shape, widths, strict=True)]
    return product(*along)


# ---- chunk exchange
#
# Building blocks of collectives: rows of devices, chunks of tensors, and their exchange.

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
