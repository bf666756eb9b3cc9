"""Building blocks of the ops over a mesh: arguments, views of parts, and tensors that are assembled from copies."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from dagpu.common.dtypes import Shape
from dagpu.common.frozen import plain
from dagpu.common.layout import Layout
from dagpu.common.origin import Origin
from dagpu.common.wrong_arguments import wrong_argument
from dagpu.handles import HandleState, SharedTensor, Tensor, TensorRef, clone_shared, live_state, move_handle
from dagpu.handles.device_handles import Device, reaches
from dagpu.handles.handle_trees import move_handles
from dagpu.lowering.schedule.mesh import Mesh
from dagpu.ops.base import DeviceOp, cure_by_await
from dagpu.ops.compose import Map, On, Then, Value, Zip
from dagpu.ops.creation import Alloc, Copy
from dagpu.ops.initializers import Constant
from dagpu.ops.node_functions import LAST
from dagpu.sharding.device_boxes import intersection
from dagpu.sharding.part_geometry import PartShape, part_of

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
    device: Device,
    shape: Shape,
    dtype: "np.dtype[Any]",
    copies: Sequence[CopyInto],
    where: Origin,
    *,
    zeros: bool = False,
) -> AnyOp:
    """Return an op whose result is a new tensor on a device, to which these copies are made. With `zeros` it is filled
    before."""
    empty = Alloc[Any, Any, Any](shape, dtype, Constant(0) if zeros else None, where)
    return On(Then(empty, _Copies(tuple(copies), where), where), device, where)


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
