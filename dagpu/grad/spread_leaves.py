"""Values on several devices as leaves and as results of what is differentiated.

The types are each other's duals: the gradient by what is `Replicated` is `Partials`, a summand for each replica, and
that by a `Sharded`, which is lent for it, is `Sharded`.
"""

from collections.abc import Sequence
from typing import Any, Final

from dagpu.common.errors import GradientError, OwnershipError
from dagpu.common.places import Origin, describe
from dagpu.handles import SharedTensor, Tensor
from dagpu.handles.handle_state import live_state
from dagpu.meshes.values import (
    Partials,
    Replicated,
    Sharded,
    ShardedRef,
    Spreading,
    copied_on,
    parts_of,
    spreading_of,
)
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import Map, On, Value, Zip
from dagpu.ops.creation import dup

SPREAD_LEAVES: Final = (ShardedRef, Replicated)
"""The classes of values on several devices by which a function is differentiated."""


def handles_of(leaf: Any) -> tuple[Any, ...]:
    """Return the tensors of a leaf: of one on several devices those of all devices."""
    return parts_of(leaf) if type(leaf) in SPREAD_LEAVES else (leaf,)


def gradients_of(leaves: Sequence[Any], found: Sequence[Any], origin: Origin) -> DeviceOp[Any, Any, Any]:
    """Return the op of a tuple with the gradient by each leaf, of the gradients by all tensors of the leaves."""
    ops: list[DeviceOp[Any, Any, Any]] = []
    rest = iter(found)
    for leaf in leaves:
        gradients = [next(rest) for _ in handles_of(leaf)]
        if type(leaf) in SPREAD_LEAVES:
            owned: DeviceOp[Any, Any, Any] = Zip(tuple([_owned(each, origin) for each in gradients]), origin)
            ops.append(Map(owned, _Dual(type(leaf), spreading_of(leaf)), origin))
        else:
            ops.append(Value(gradients[0], origin))
    return Zip(tuple(ops), origin)


class _Dual:
    """Makes the gradient by a value on several devices of the tensors on these."""

    def __init__(self, kind: type[Any], about: Spreading) -> None:
        self._kind, self._about = kind, about

    def __call__(self, tensors: tuple[Tensor[Any], ...]) -> "Sharded[Any] | Partials[Any]":
        about = self._about
        if self._kind is ShardedRef:
            return Sharded(about, tensors)
        return Partials(copied_on(about.mesh, about.shape, about.dtype), tensors)


def _owned(x: SharedTensor[Any], origin: Origin) -> DeviceOp[Any, Any, Any]:
    """Return the op of a tensor with an owner: a copy of one that is the gradient by another leaf too."""
    try:
        return Value(x.try_unwrap(), origin)
    except OwnershipError:
        return On(dup(x), live_state(x).storage.device, origin)


def checked_replica(value: Any, origin: Origin) -> Any:
    """Return the replica whose gradient is that of a value on several devices.

    Raises:
        GradientError: the value is not the same on all devices.
    """
    if type(value) is Replicated and spreading_of(value).axis is None:
        return parts_of(value)[0]
    raise GradientError(
        f"the function that is differentiated at {describe(origin)} gives {value!r}, which is not one value. Add up "
        "what the devices have: all_reduce(as_partials(each(f, x)))."
    )
