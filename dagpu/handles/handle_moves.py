"""Functions that move handles of any kind, and refuse values that are not handles of the right kind."""

from typing import Any, Final, TypeAlias

from dagpu.common.origin import Origin
from dagpu.handles.handle_errors import wrong_kind
from dagpu.handles.handle_state import live_state, take_state
from dagpu.handles.partitions import Partition, cut_of, partition_tensor, unpartition_tensor
from dagpu.handles.tensors import SharedTensor, Tensor, TensorMut, TensorRef

Handle: TypeAlias = (
    Tensor[Any, Any] | SharedTensor[Any, Any] | TensorRef[Any, Any] | TensorMut[Any, Any] | Partition[Any, Any]
)
"""A handle of any kind."""

Owning: TypeAlias = Tensor[Any, Any] | TensorMut[Any, Any] | Partition[Any, Any]
"""A handle of a kind that moves when it is passed on."""

HANDLES: Final = frozenset((Tensor, SharedTensor, TensorRef, TensorMut, Partition))
"""The classes of handles."""
OWNING: Final = frozenset((Tensor, TensorMut, Partition))
"""The classes of handles that move when they are passed on."""


def partition_handle(handle: Any, tile: object, partial: bool, where: Origin) -> Partition[Any, Any]:
    """Partition a handle of any kind: `handle.partition(tile)`. `where` is the place of the call in the user's code."""
    if type(handle) is not Tensor and type(handle) is not TensorMut:
        raise wrong_kind(handle, "partition()", where)
    return partition_tensor(handle, tile, partial, where)


def unpartition_handle(partition: Partition[Any, Any], where: Origin) -> Any:
    """Unpartition a handle: `partition.unpartition()`. `where` is the place of the call in the user's code."""
    if type(partition) is not Partition:
        raise wrong_kind(partition, "unpartition()", where)
    return unpartition_tensor(partition, where)


def move_handle(handle: Any, how: str, where: Origin) -> Any:
    """Move a handle, and return a new handle of the same kind to the same memory.

    A value that does not move (a `SharedTensor`, a `TensorRef`, a value that is not a handle) is returned itself.

    Raises:
        MovedError: the handle or its lender has been moved before.
    """
    kind = type(handle)
    if kind is Tensor:
        return Tensor(take_state(handle, how, where))
    if kind is Partition:
        return Partition(take_state(handle, how, where), cut_of(handle))
    if kind is TensorMut:
        live_state(handle)
        return TensorMut(take_state(handle, how, where))
    if kind is SharedTensor or kind is TensorRef:
        live_state(handle)
    return handle
