"""`each`: a function that is traced once for each device of a mesh, with the parts that the device has."""

import inspect
from collections.abc import Callable
from typing import Any, overload

from typing_extensions import TypeVar

from dagpu.common.errors import MeshError
from dagpu.common.frozen import plain
from dagpu.common.origin import Origin, describe, here
from dagpu.common.tracebacks import leaves_run
from dagpu.common.wrong_arguments import check_function, wrong_argument
from dagpu.lowering.schedule.mesh import Mesh
from dagpu.ops.base import Borrowed, DeviceOp, MayAlloc, Static
from dagpu.ops.compose import Map, On, Then, Zip
from dagpu.sharding.assembling import AnyOp, check_result, ops_of
from dagpu.sharding.spread_values import (
    SPREAD_VALUES,
    Each,
    PerDevice,
    Rank,
    boxes_of,
    parts_of,
)

_T = TypeVar("_T")
_A = TypeVar("_A")
_B = TypeVar("_B")
_C = TypeVar("_C")
_D = TypeVar("_D")
_E = TypeVar("_E")
_F = TypeVar("_F")
_H = TypeVar("_H")
_I = TypeVar("_I")
_L = TypeVar("_L", bound=Borrowed)
_L2 = TypeVar("_L2", bound=Borrowed, default=Static)
_G = TypeVar("_G", bound=MayAlloc)


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
