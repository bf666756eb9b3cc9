"""Functions that move a handle of any kind, or refuse a value that is not a handle of the right kind."""

from typing import Any, Final, TypeAlias

from dagpu.common.origin import Origin
from dagpu.handles.handle_errors import wrong_kind
from dagpu.handles.handle_state import live, take
from dagpu.handles.partitions import Partition, cut, cut_of, whole
from dagpu.handles.tensors import SharedTensor, Tensor, TensorMut, TensorRef

Handle: TypeAlias = (
    Tensor[Any, Any] | SharedTensor[Any, Any] | TensorRef[Any, Any] | TensorMut[Any, Any] | Partition[Any, Any]
)
Owning: TypeAlias = Tensor[Any, Any] | TensorMut[Any, Any] | Partition[Any, Any]
"""The handles that move."""

HANDLES: Final = frozenset((Tensor, SharedTensor, TensorRef, TensorMut, Partition))
OWNING: Final = frozenset((Tensor, TensorMut, Partition))


def cut_up(handle: Any, tile: object, partial: bool, where: Origin) -> Partition[Any, Any]:
    """`handle.partition(tile)` at the place `where` of the user's code."""
    if type(handle) is not Tensor and type(handle) is not TensorMut:
        raise wrong_kind(handle, "partition()", where)
    return cut(handle, tile, partial, where)


def put_together(partition: Partition[Any, Any], where: Origin) -> Any:
    """`partition.unpartition()` at the place `where` of the user's code."""
    if type(partition) is not Partition:
        raise wrong_kind(partition, "unpartition()", where)
    return whole(partition, where)


def move_in(handle: Any, how: str, where: Origin) -> Any:
    """Move a handle: the result is a new one of the same kind on the same memory, and the old one is void.

    A value that does not move (a `SharedTensor`, a `TensorRef`, any other value) is returned as it is.

    Raises:
        MovedError: the handle has been moved before, or its lender has.
    """
    kind = type(handle)
    if kind is Tensor:
        return Tensor(take(handle, how, where))
    if kind is Partition:
        return Partition(take(handle, how, where), cut_of(handle))
    if kind is TensorMut:
        live(handle)
        return TensorMut(take(handle, how, where))
    if kind is SharedTensor or kind is TensorRef:
        live(handle)
    return handle
