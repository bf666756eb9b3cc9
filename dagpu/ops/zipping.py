"""`zip_ops`: independent ops side by side."""

from typing import Any, overload

from typing_extensions import TypeVar

from dagpu.ops.base import Borrowed, DeviceOp, MayAlloc, await_first
from dagpu.ops.compose import Zip
from dagpu.origin import here
from dagpu.wrong_arguments import wrong_argument

_A = TypeVar("_A")
_B = TypeVar("_B")
_C = TypeVar("_C")
_D = TypeVar("_D")
_E = TypeVar("_E")
_F = TypeVar("_F")
_H = TypeVar("_H")
_I = TypeVar("_I")
_L = TypeVar("_L", bound=Borrowed)
_L2 = TypeVar("_L2", bound=Borrowed)
_G = TypeVar("_G", bound=MayAlloc)
_G2 = TypeVar("_G2", bound=MayAlloc)


@overload
def zip_ops(a: DeviceOp[_A, _L, _G], /) -> DeviceOp[tuple[_A], _L, _G]: ...
@overload
def zip_ops(a: DeviceOp[_A, _L, _G], b: DeviceOp[_B, _L2, _G2], /) -> DeviceOp[tuple[_A, _B], _L | _L2, _G | _G2]: ...
@overload
def zip_ops(
    a: DeviceOp[_A, _L, _G], b: DeviceOp[_B, _L, _G], c: DeviceOp[_C, _L2, _G2], /
) -> DeviceOp[tuple[_A, _B, _C], _L | _L2, _G | _G2]: ...
@overload
def zip_ops(
    a: DeviceOp[_A, _L, _G], b: DeviceOp[_B, _L, _G], c: DeviceOp[_C, _L, _G], d: DeviceOp[_D, _L2, _G2], /
) -> DeviceOp[tuple[_A, _B, _C, _D], _L | _L2, _G | _G2]: ...
@overload
def zip_ops(
    a: DeviceOp[_A, _L, _G],
    b: DeviceOp[_B, _L, _G],
    c: DeviceOp[_C, _L, _G],
    d: DeviceOp[_D, _L, _G],
    e: DeviceOp[_E, _L2, _G2],
    /,
) -> DeviceOp[tuple[_A, _B, _C, _D, _E], _L | _L2, _G | _G2]: ...
@overload
def zip_ops(
    a: DeviceOp[_A, _L, _G],
    b: DeviceOp[_B, _L, _G],
    c: DeviceOp[_C, _L, _G],
    d: DeviceOp[_D, _L, _G],
    e: DeviceOp[_E, _L, _G],
    f: DeviceOp[_F, _L2, _G2],
    /,
) -> DeviceOp[tuple[_A, _B, _C, _D, _E, _F], _L | _L2, _G | _G2]: ...
@overload
def zip_ops(
    a: DeviceOp[_A, _L, _G],
    b: DeviceOp[_B, _L, _G],
    c: DeviceOp[_C, _L, _G],
    d: DeviceOp[_D, _L, _G],
    e: DeviceOp[_E, _L, _G],
    f: DeviceOp[_F, _L, _G],
    g: DeviceOp[_H, _L2, _G2],
    /,
) -> DeviceOp[tuple[_A, _B, _C, _D, _E, _F, _H], _L | _L2, _G | _G2]: ...
@overload
def zip_ops(
    a: DeviceOp[_A, _L, _G],
    b: DeviceOp[_B, _L, _G],
    c: DeviceOp[_C, _L, _G],
    d: DeviceOp[_D, _L, _G],
    e: DeviceOp[_E, _L, _G],
    f: DeviceOp[_F, _L, _G],
    g: DeviceOp[_H, _L, _G],
    h: DeviceOp[_I, _L2, _G2],
    /,
) -> DeviceOp[tuple[_A, _B, _C, _D, _E, _F, _H, _I], _L | _L2, _G | _G2]: ...
@overload
def zip_ops(*ops: DeviceOp[Any, _L, _G]) -> DeviceOp[tuple[Any, ...], _L, _G]: ...
def zip_ops(*ops: Any) -> Any:
    """The results of all `ops`, as a tuple. The branches are independent: they overlap where the device allows."""
    origin = here()
    for index, op in enumerate(ops):
        if not isinstance(op, DeviceOp):
            listed = isinstance(op, tuple | list) and op and all(isinstance(item, DeviceOp) for item in op)
            cure = "Unpack it: zip_ops(*ops)" if listed else "Make an op of a value: value(x)"
            raise wrong_argument("zip_ops", origin, f"argument {index}", op, "an op", await_first(op) or cure)
    return Zip(ops, origin)
