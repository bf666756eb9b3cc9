"""`each`: a function that is traced once for each device, and its results put together."""

import inspect
from collections.abc import Callable
from typing import Any, get_args, get_origin, get_type_hints, overload

import numpy as np
from typing_extensions import TypeVar

from dagpu.common.errors import MeshError, ShapeError
from dagpu.common.frozen import plain
from dagpu.common.layout import Shape, as_shape
from dagpu.common.places import Origin, describe, here, leaves_run
from dagpu.common.wrong_arguments import add_call_place, as_whole_number, check_function, wrong_argument
from dagpu.handles import Tensor
from dagpu.meshes.layouts import FIRST_AXIS, DeviceLayout, show_box
from dagpu.meshes.moving import AnyOp, check_layout, check_result, op_of, ops_of
from dagpu.meshes.values import (
    SPREAD_VALUES,
    Each,
    Partials,
    PerDevice,
    Rank,
    Sharded,
    boxes_of,
    copied_on,
    cut_at,
    parts_of,
)
from dagpu.ops.base import Borrowed, DeviceOp, MayAlloc, Static
from dagpu.ops.compose import Map, On, Then, Zip, unzip
from dagpu.plans.mesh import Mesh

_A = TypeVar("_A")
_B = TypeVar("_B")
_C = TypeVar("_C")
_D = TypeVar("_D")
_E = TypeVar("_E")
_F = TypeVar("_F")
_G = TypeVar("_G", bound=MayAlloc)
_H = TypeVar("_H")
_I = TypeVar("_I")
_L = TypeVar("_L", bound=Borrowed)
_T = TypeVar("_T")
_L2 = TypeVar("_L2", bound=Borrowed, default=Static)


@overload
def each(
    function: Callable[[_A, Rank], DeviceOp[_T, _L, _G]],
    a: PerDevice[_A] | DeviceOp[PerDevice[_A], _L2, Any],
    /,
) -> DeviceOp[Each[_T], _L | _L2, _G]: ...
@overload
def each(
    function: Callable[[_A, _B, Rank], DeviceOp[_T, _L, _G]],
    a: PerDevice[_A] | DeviceOp[PerDevice[_A], _L2, Any],
    b: PerDevice[_B] | DeviceOp[PerDevice[_B], _L2, Any],
    /,
) -> DeviceOp[Each[_T], _L | _L2, _G]: ...
@overload
def each(
    function: Callable[[_A, _B, _C, Rank], DeviceOp[_T, _L, _G]],
    a: PerDevice[_A] | DeviceOp[PerDevice[_A], _L2, Any],
    b: PerDevice[_B] | DeviceOp[PerDevice[_B], _L2, Any],
    c: PerDevice[_C] | DeviceOp[PerDevice[_C], _L2, Any],
    /,
) -> DeviceOp[Each[_T], _L | _L2, _G]: ...
@overload
def each(
    function: Callable[[_A, _B, _C, _D, Rank], DeviceOp[_T, _L, _G]],
    a: PerDevice[_A] | DeviceOp[PerDevice[_A], _L2, Any],
    b: PerDevice[_B] | DeviceOp[PerDevice[_B], _L2, Any],
    c: PerDevice[_C] | DeviceOp[PerDevice[_C], _L2, Any],
    d: PerDevice[_D] | DeviceOp[PerDevice[_D], _L2, Any],
    /,
) -> DeviceOp[Each[_T], _L | _L2, _G]: ...
@overload
def each(
    function: Callable[[_A, _B, _C, _D, _E, Rank], DeviceOp[_T, _L, _G]],
    a: PerDevice[_A] | DeviceOp[PerDevice[_A], _L2, Any],
    b: PerDevice[_B] | DeviceOp[PerDevice[_B], _L2, Any],
    c: PerDevice[_C] | DeviceOp[PerDevice[_C], _L2, Any],
    d: PerDevice[_D] | DeviceOp[PerDevice[_D], _L2, Any],
    e: PerDevice[_E] | DeviceOp[PerDevice[_E], _L2, Any],
    /,
) -> DeviceOp[Each[_T], _L | _L2, _G]: ...
@overload
def each(
    function: Callable[[_A, _B, _C, _D, _E, _F, Rank], DeviceOp[_T, _L, _G]],
    a: PerDevice[_A] | DeviceOp[PerDevice[_A], _L2, Any],
    b: PerDevice[_B] | DeviceOp[PerDevice[_B], _L2, Any],
    c: PerDevice[_C] | DeviceOp[PerDevice[_C], _L2, Any],
    d: PerDevice[_D] | DeviceOp[PerDevice[_D], _L2, Any],
    e: PerDevice[_E] | DeviceOp[PerDevice[_E], _L2, Any],
    f: PerDevice[_F] | DeviceOp[PerDevice[_F], _L2, Any],
    /,
) -> DeviceOp[Each[_T], _L | _L2, _G]: ...
@overload
def each(
    function: Callable[[_A, _B, _C, _D, _E, _F, _H, Rank], DeviceOp[_T, _L, _G]],
    a: PerDevice[_A] | DeviceOp[PerDevice[_A], _L2, Any],
    b: PerDevice[_B] | DeviceOp[PerDevice[_B], _L2, Any],
    c: PerDevice[_C] | DeviceOp[PerDevice[_C], _L2, Any],
    d: PerDevice[_D] | DeviceOp[PerDevice[_D], _L2, Any],
    e: PerDevice[_E] | DeviceOp[PerDevice[_E], _L2, Any],
    f: PerDevice[_F] | DeviceOp[PerDevice[_F], _L2, Any],
    g: PerDevice[_H] | DeviceOp[PerDevice[_H], _L2, Any],
    /,
) -> DeviceOp[Each[_T], _L | _L2, _G]: ...
@overload
def each(
    function: Callable[[_A, _B, _C, _D, _E, _F, _H, _I, Rank], DeviceOp[_T, _L, _G]],
    a: PerDevice[_A] | DeviceOp[PerDevice[_A], _L2, Any],
    b: PerDevice[_B] | DeviceOp[PerDevice[_B], _L2, Any],
    c: PerDevice[_C] | DeviceOp[PerDevice[_C], _L2, Any],
    d: PerDevice[_D] | DeviceOp[PerDevice[_D], _L2, Any],
    e: PerDevice[_E] | DeviceOp[PerDevice[_E], _L2, Any],
    f: PerDevice[_F] | DeviceOp[PerDevice[_F], _L2, Any],
    g: PerDevice[_H] | DeviceOp[PerDevice[_H], _L2, Any],
    h: PerDevice[_I] | DeviceOp[PerDevice[_I], _L2, Any],
    /,
) -> DeviceOp[Each[_T], _L | _L2, _G]: ...
@leaves_run
def each(function: Any, /, *args: Any) -> Any:
    """Call a function for each device of a mesh, with the parts that the device has of the arguments, and its `Rank`.

    It returns an op, which is placed on the device. The results are an `Each`: `as_shards` or `as_partials` say how
    they belong together. The function is called while the op is traced, like a closure of `then`, and sees handles: a
    `Tensor` of a `Sharded`, which it may pass on once, a `TensorRef` of a `ShardedRef`, a `SharedTensor` of a
    `Replicated`, and of an `Each` what the function before it has returned.

    Args:
        function: the function. Its parameters are the parts, in the order of the arguments, and the rank.
        args: one to eight values of one mesh, or ops with such results. Owned values move.

    Raises:
        MeshError: the arguments are on different meshes.
        MovedError: a value has been moved before.
        TypeError: an argument is no value of a mesh, the function takes another number of arguments, or returned no op.
    """
    where = here()
    check_function(function, "each", where, "function")
    _check_parameters(function, len(args), where)
    names = [f"argument {number}" for number in range(1, len(args) + 1)]
    ops = ops_of(args, SPREAD_VALUES, "each", names, where, lambda values: one_mesh(values, "each", where))
    return Then(Zip(tuple(ops), where), CallEach(function, where), where)


def _check_parameters(f: Any, count: int, where: Origin) -> None:
    """Raise a TypeError if `f` does not take this number of parts and a rank, or if there are no parts."""
    if not count:
        cure = "Write each(f, shards): f is called with each device's part, and with its rank"
        raise wrong_argument("each", where, "the list of arguments", (), "a value of a mesh", cure)
    try:
        signature = inspect.signature(f)
    except (TypeError, ValueError):  # a function that does not tell
        return
    try:
        signature.bind(*[None] * (count + 1))
    except TypeError:
        parts = "one part" if count == 1 else f"{count} parts"
        wanted = f"a function of {parts} and a rank"
        raise wrong_argument("each", where, "function", f, wanted, "Write def f(part, rank)") from None


@plain
class CallEach:
    """Calls the function of `each` for each device."""

    f: Callable[..., Any]
    where: Origin

    def __call__(self, values: tuple[Any, ...]) -> AnyOp:
        for number, value in enumerate(values, 1):
            check_result(value, SPREAD_VALUES, "each", f"argument {number}", self.where)
        mesh = one_mesh(values, "each", self.where)
        cut = next((value for value in values if boxes_of(value, 0)), None)
        ops: list[AnyOp] = []
        for number, device in enumerate(mesh.devices):
            rank = Rank(mesh, number, () if cut is None else boxes_of(cut, number))
            op = self.f(*[parts_of(value)[number] for value in values], rank)
            if not isinstance(op, DeviceOp):
                cure = "Return an op: value(x) makes one of a value"
                raise wrong_argument("each", self.where, "the result of the function", op, "an op", cure)
            ops.append(On(op, device, self.where))
        return Map(Zip(tuple(ops), self.where), _Collected(mesh), self.where)


def one_mesh(values: tuple[Any, ...], call: str, where: Origin) -> Mesh:
    """Return the mesh that the values are on.

    Raises:
        MeshError: they are on different ones.
    """
    mesh: Mesh = values[0].mesh
    for value in values:
        if value.mesh != mesh:
            raise MeshError(
                f"{call} at {describe(where)}: its arguments are on different meshes, {mesh!r} and {value.mesh!r}. "
                "Bring them to one: reshard(s, layout, mesh), broadcast(t, mesh)."
            )
    return mesh


@plain
class _Collected:
    """Makes an `Each` of the results of all devices."""

    mesh: Mesh

    def __call__(self, results: tuple[Any, ...]) -> Each[Any]:
        return Each(self.mesh, results)


# ---- each results
#
# The results of `each`, put together: tuples taken apart, parts of a whole, and summands.

_N = TypeVar("_N", bound=np.generic)


@overload
def unzip_each(e: DeviceOp[Each[tuple[_A]], _L, _G], n: int | None = None) -> tuple[DeviceOp[Each[_A], _L, _G]]: ...
@overload
def unzip_each(
    e: DeviceOp[Each[tuple[_A, _B]], _L, _G], n: int | None = None
) -> tuple[DeviceOp[Each[_A], _L, _G], DeviceOp[Each[_B], _L, _G]]: ...
@overload
def unzip_each(
    e: DeviceOp[Each[tuple[_A, _B, _C]], _L, _G], n: int | None = None
) -> tuple[DeviceOp[Each[_A], _L, _G], DeviceOp[Each[_B], _L, _G], DeviceOp[Each[_C], _L, _G]]: ...
@overload
def unzip_each(
    e: DeviceOp[Each[tuple[_A, _B, _C, _D]], _L, _G], n: int | None = None
) -> tuple[
    DeviceOp[Each[_A], _L, _G], DeviceOp[Each[_B], _L, _G], DeviceOp[Each[_C], _L, _G], DeviceOp[Each[_D], _L, _G]
]: ...
@overload
def unzip_each(
    e: DeviceOp[Each[tuple[_A, _B, _C, _D, _E]], _L, _G], n: int | None = None
) -> tuple[
    DeviceOp[Each[_A], _L, _G],
    DeviceOp[Each[_B], _L, _G],
    DeviceOp[Each[_C], _L, _G],
    DeviceOp[Each[_D], _L, _G],
    DeviceOp[Each[_E], _L, _G],
]: ...
@overload
def unzip_each(
    e: DeviceOp[Each[tuple[_A, _B, _C, _D, _E, _F]], _L, _G], n: int | None = None
) -> tuple[
    DeviceOp[Each[_A], _L, _G],
    DeviceOp[Each[_B], _L, _G],
    DeviceOp[Each[_C], _L, _G],
    DeviceOp[Each[_D], _L, _G],
    DeviceOp[Each[_E], _L, _G],
    DeviceOp[Each[_F], _L, _G],
]: ...
@overload
def unzip_each(
    e: DeviceOp[Each[tuple[_A, _B, _C, _D, _E, _F, _H]], _L, _G], n: int | None = None
) -> tuple[
    DeviceOp[Each[_A], _L, _G],
    DeviceOp[Each[_B], _L, _G],
    DeviceOp[Each[_C], _L, _G],
    DeviceOp[Each[_D], _L, _G],
    DeviceOp[Each[_E], _L, _G],
    DeviceOp[Each[_F], _L, _G],
    DeviceOp[Each[_H], _L, _G],
]: ...
@overload
def unzip_each(
    e: DeviceOp[Each[tuple[_A, _B, _C, _D, _E, _F, _H, _I]], _L, _G], n: int | None = None
) -> tuple[
    DeviceOp[Each[_A], _L, _G],
    DeviceOp[Each[_B], _L, _G],
    DeviceOp[Each[_C], _L, _G],
    DeviceOp[Each[_D], _L, _G],
    DeviceOp[Each[_E], _L, _G],
    DeviceOp[Each[_F], _L, _G],
    DeviceOp[Each[_H], _L, _G],
    DeviceOp[Each[_I], _L, _G],
]: ...
@leaves_run
def unzip_each(e: Any, n: int | None = None) -> Any:
    """Return an op for each component of the tuples that a function of `each` has made on the devices.

    Args:
        e: the op of `each`.
        n: the number of components. By default it is that of the function's return annotation.

    Raises:
        ShapeError: the number of components is not known, or not that of the tuples.
        TypeError: `e` is not an op.
    """
    where = here()
    count = _components(e) if n is None else as_whole_number(n)
    if isinstance(e, DeviceOp | Each) and (count is None or count < 1):
        wrong = f"n is {n!r}" if n is not None else "no annotation shows how many components the results have"
        raise ShapeError(f"unzip_each at {describe(where)}: {wrong}. Say how many: unzip_each(e, 2).")
    apart = _Transposed(count or 1, where)
    return unzip(Map(op_of(e, (Each,), "unzip_each", "e", where, apart), apart, where), apart.count, where)


def _components(op: Any) -> int | None:
    """Return the number of components that the return annotation of the function of `each` shows."""
    while isinstance(op, On):
        op = op.source
    if not isinstance(op, Then) or not isinstance(op.f, CallEach):
        return None
    try:
        annotation = get_type_hints(op.f.f).get("return")
    except Exception:  # a text annotation is code, and may raise anything
        return None
    arguments = get_args(annotation)
    result = arguments[0] if arguments and get_origin(annotation) is DeviceOp else None
    items = get_args(result) if get_origin(result) is tuple else ()
    return None if not items or Ellipsis in items else len(items)


@plain
class _Transposed:
    """Makes a tuple of `Each` of an `Each` of tuples."""

    count: int
    where: Origin

    def __call__(self, each: Any) -> tuple[Each[Any], ...]:
        check_result(each, (Each,), "unzip_each", "e", self.where)
        for result in parts_of(each):
            if not isinstance(result, tuple) or len(result) != self.count:
                found = f"{len(result)} components" if isinstance(result, tuple) else "no components"
                raise ShapeError(
                    f"unzip_each at {describe(self.where)}: {self.count} components are wanted, and a result of the "
                    f"function has {found}. Say how many it has: unzip_each(e, n)."
                )
        return tuple([Each(each.mesh, tuple(component)) for component in zip(*parts_of(each), strict=True)])


@overload
def as_shards(e: Each[Tensor[_N]], shape: Shape, layout: DeviceLayout = ...) -> DeviceOp[Sharded[_N]]: ...
@overload
def as_shards(
    e: DeviceOp[Each[Tensor[_N]], _L, _G], shape: Shape, layout: DeviceLayout = ...
) -> DeviceOp[Sharded[_N], _L, _G]: ...
@leaves_run
def as_shards(e: Any, shape: Shape, layout: DeviceLayout = FIRST_AXIS) -> Any:
    """Take the results of `each` as the parts of a whole of this shape, which the layout cuts.

    The tensor of a device has the elements of its boxes: one block in the block's shape; tiles of `Cyclic` in the order
    of the whole, packed along the axes. No data moves.

    Raises:
        MeshError: the layout does not fit, or a tensor has another shape or element type than its part.
        MovedError: `e` has been moved before.
        ShapeError: `shape` is not a shape.
        TypeError: an argument is of a wrong type.
    """
    where = here()
    try:
        whole = as_shape(shape)
    except ShapeError as error:
        raise add_call_place("as_shards", where, error) from None
    check_layout(layout, "as_shards", where)
    joined = _Joined(whole, layout, where)
    return Map(op_of(e, (Each,), "as_shards", "e", where, joined), joined, where)


@plain
class _Joined:
    """Makes a `Sharded` of an `Each` of tensors."""

    shape: Shape
    layout: DeviceLayout
    where: Origin

    def __call__(self, each: Any) -> Sharded[Any]:
        check_result(each, (Each,), "as_shards", "e", self.where)
        tensors = _tensors_of(each, "as_shards", self.where)
        about = cut_at(self.layout, each.mesh, self.shape, tensors[0].dtype, "as_shards", self.where)
        for device, tensor, part, boxes in zip(about.mesh.devices, tensors, about.parts, about.boxes, strict=True):
            if tensor.shape != part.shape:
                of = show_box(boxes[0]) if len(boxes) == 1 else f"{len(boxes)} boxes"
                raise MeshError(
                    f"as_shards at {describe(self.where)}: the tensor on {device.name} has the shape {tensor.shape}, "
                    f"and {self.layout!r} of {self.shape} gives that device {of}, in a tensor of shape {part.shape}. "
                    "Let the function return that shape."
                )
        return Sharded(about, tensors)


@overload
def as_partials(e: Each[Tensor[_N]]) -> DeviceOp[Partials[_N]]: ...
@overload
def as_partials(e: DeviceOp[Each[Tensor[_N]], _L, _G]) -> DeviceOp[Partials[_N], _L, _G]: ...
@leaves_run
def as_partials(e: Any) -> Any:
    """Take the results of `each` as summands, for `all_reduce` or `reduce_scatter`. No data moves.

    Raises:
        MeshError: the tensors differ in shape or element type.
        MovedError: `e` has been moved before.
        TypeError: `e` is neither an `Each` nor an op.
    """
    where = here()
    summands = _Summands(where)
    return Map(op_of(e, (Each,), "as_partials", "e", where, summands), summands, where)


@plain
class _Summands:
    """Makes `Partials` of an `Each` of tensors."""

    where: Origin

    def __call__(self, each: Any) -> Partials[Any]:
        check_result(each, (Each,), "as_partials", "e", self.where)
        tensors = _tensors_of(each, "as_partials", self.where)
        first = tensors[0]
        for device, tensor in zip(each.mesh.devices, tensors, strict=True):
            if tensor.shape != first.shape:
                raise MeshError(
                    f"as_partials at {describe(self.where)}: the summands have different shapes, {first.shape} on "
                    f"{each.mesh.devices[0].name} and {tensor.shape} on {device.name}. Let the function return one "
                    "shape."
                )
        return Partials(copied_on(each.mesh, first.shape, first.dtype), tensors)


def _tensors_of(each: Each[Any], call: str, where: Origin) -> tuple[Tensor[Any], ...]:
    """Return the results of `each`, which must be tensors of one element type, each on its device."""
    found = parts_of(each)
    for device, tensor in zip(each.mesh.devices, found, strict=True):
        if type(tensor) is not Tensor:
            cure = "Let the function return an op of a Tensor; unzip_each(e) takes tuples apart"
            raise wrong_argument(call, where, f"the result on {device.name}", tensor, "a Tensor", cure)
        if tensor.dtype != found[0].dtype:
            raise MeshError(
                f"{call} at {describe(where)}: the results have different element types, {found[0].dtype.name} and "
                f"{tensor.dtype.name}. Let the function return one type."
            )
        if tensor.device != device:
            raise MeshError(
                f"{call} at {describe(where)}: the result for {device.name} is on {tensor.device.name}. Leave the "
                "placement to each, or copy the result: .then(dup)."
            )
    return found
