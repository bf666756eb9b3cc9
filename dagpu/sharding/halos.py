"""`halo`: every device's block with a rim of its neighbours' elements."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, overload

import numpy as np
from typing_extensions import TypeVar

from dagpu.common.errors import MeshError
from dagpu.common.frozen import plain
from dagpu.common.layout import contiguous_layout, slice_layout
from dagpu.common.origin import Origin, describe, here
from dagpu.common.tracebacks import leaves_run
from dagpu.common.wrong_arguments import as_whole_number, check_flag, wrong_argument
from dagpu.handles import share_tensor
from dagpu.ops.base import Borrowed, DeviceOp
from dagpu.ops.compose import Map, Zip
from dagpu.sharding.assembling import AnyOp, CopyInto, assembled, layout_of, then_of, view_of
from dagpu.sharding.device_boxes import as_slices, intersection
from dagpu.sharding.laying_out import sources_of_whole
from dagpu.sharding.spread_values import Haloed, Sharded, ShardedRef, Spreading, spreading_of

_N = TypeVar("_N", bound=np.generic)
_L = TypeVar("_L", bound=Borrowed)


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
