"""Every exception that dagpu raises of its own accord.

Messages say what went wrong, where (the user's file and line) and the cure, in that order.
This module imports nothing.
"""


class DagpuError(Exception):
    """The root of the tree: `except DagpuError` catches whatever the library itself refuses."""


class OwnershipError(DagpuError):
    """A rule of ownership was broken."""


class MovedError(OwnershipError):
    """A handle or an op was used after it had been moved or used up."""


class BorrowError(OwnershipError):
    """Two accesses to one tensor conflict, one of them exclusive."""


class PartitionError(DagpuError, ValueError):
    """A tile does not cut the tensor's shape."""


class ShapeError(DagpuError, ValueError):
    """Shapes, ranges or element types do not fit together."""


class KernelArgumentError(DagpuError, TypeError):
    """A kernel was declared or called with arguments that do not fit its signature."""


class KernelBoundsError(DagpuError, IndexError):
    """A kernel compiled with `checked=True` went outside its tile or view."""


class CompileError(DagpuError):
    """The CUDA compiler refused a kernel's source."""


class NotReadyError(DagpuError):
    """The contents of device data were asked for where only a handle can be had."""


class NestedRunError(DagpuError):
    """An op was run from inside a run."""


class PlanError(DagpuError):
    """A plan breaks one of its invariants: a defect in a scheduling policy, or in dagpu."""


class OperationCancelled(DagpuError):
    """A `Pending` that was cancelled has been awaited."""


class CaptureError(DagpuError):
    """An op cannot be recorded into a CUDA graph."""


class DeviceError(DagpuError):
    """A driver or device failed. `code` is the CUresult, 0 where there is none."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class OutOfMemoryError(DeviceError, MemoryError):
    """A device has too little memory for a run."""


class DeviceLostError(DeviceError):
    """A device failed in a way that it does not recover from in this process."""


class NoDeviceError(DeviceError):
    """The device that was asked for does not exist here."""
