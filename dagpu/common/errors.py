"""The exceptions of dagpu.

Messages say what went wrong, where (the user's file and line) and the cure, in that order. Each error can be pickled
and copied: it comes from a worker, or from another process, with its type, arguments, attributes and notes.
This module imports nothing of dagpu.
"""

from typing import Self


class DagpuError(Exception):
    """The base class of all errors of dagpu."""


class OwnershipError(DagpuError):
    """A program broke a rule of ownership."""


class MovedError(OwnershipError):
    """A handle was used after a move, or an op after it was used up."""


class BorrowError(OwnershipError):
    """Two accesses to one tensor conflict, one of them exclusive."""


class PartitionError(DagpuError, ValueError):
    """A tile does not cut the tensor's shape."""


class ShapeError(DagpuError, ValueError):
    """Shapes, ranges or element types do not fit together."""


class KernelArgumentError(DagpuError, TypeError):
    """A kernel was declared or called with arguments that do not fit its signature."""


class KernelBoundsError(DagpuError, IndexError):
    """A kernel accessed an element outside its tile or view, or memory that is none of its arguments'."""


class KernelFaultError(DagpuError):
    """The CUDA text of a kernel, run on the host, did what it must not: it wrote an input, divided by zero, used up its
    stack, or another of the errors below. The message has the place in the text, the thread and the block."""


class KernelRaceError(KernelFaultError):
    """Two threads accessed one element, one of them to write it, and nothing orders the two."""


class KernelUninitialisedError(KernelFaultError):
    """A thread read what nothing has written: shared memory, an element of a new output, a `__constant__` variable."""


class KernelUnwrittenError(KernelFaultError):
    """No thread wrote an element of a new output."""


class KernelBarrierError(KernelFaultError):
    """Threads wait for ever, or for a thread that does not come to their barrier or shuffle."""


class KernelAssertionError(KernelFaultError, AssertionError):
    """An `assert` of a kernel failed, or it called `__trap()`."""


class KernelMismatchError(KernelFaultError):
    """The CUDA text of a kernel and its host body have different results, or the text in another order of threads."""


class CompileError(DagpuError):
    """A compiler refused a kernel's source."""


class NotReadyError(DagpuError):
    """The program read the contents of a handle, which is device data."""


class NestedRunError(DagpuError):
    """An op was run from inside a run."""


class PlanError(DagpuError):
    """A plan breaks one of its invariants: a defect in a scheduling policy, or in dagpu."""


class MeshError(DagpuError, ValueError):
    """A mesh has no devices, or devices of several kinds, or its shape and axes do not fit; or a layout does not fit a
    shape and a mesh, or gives an element to two devices or to none; or values are on different meshes."""


class OperationCancelled(DagpuError):
    """A task awaited a `Pending` that was cancelled."""


class CaptureError(DagpuError):
    """An op cannot be recorded into a CUDA graph."""


class InteropError(DagpuError, ValueError):
    """An array of another library cannot be used as it is."""


class ExportError(DagpuError, BufferError):
    """A handle cannot be given to another library as it is."""


class ForeignError(DagpuError):
    """A foreign op is declared wrongly, has no body that can run, or its body does not keep to its declaration."""


class GradientError(DagpuError):
    """A derivative was asked for where there is none: by way of a call without a rule, or of a value that has been
    overwritten. A gradient is never 0 for such a reason."""


class SourceError(DagpuError):
    """A source was given a value that it cannot hold, or was set where it may not change."""


class UpdateError(DagpuError):
    """An update of a feed, or a call of a pipeline, with `check=True` differs from a run from scratch; or two values
    cannot be compared."""


class DeviceError(DagpuError):
    """A driver or device failed. `code` is the CUresult; 0 if the failure has no such code."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[type[Self], tuple[object, ...], dict[str, object]]:
        """Return how a copy and a pickle make the error again: by a call, since `__new__` of a class with two built-in
        bases (`OutOfMemoryError`) cannot be called alone."""
        return type(self), self.args, vars(self)


class OutOfMemoryError(DeviceError, MemoryError):
    """A device does not have enough memory for a run."""


class DeviceLostError(DeviceError):
    """A device failed, and does not recover in this process."""


class ClusterError(DagpuError, RuntimeError):
    """A cluster cannot do what it was asked to."""


class VersionMismatchError(ClusterError):
    """No worker of a cluster has the versions of this process. The message has a table: what, here, there."""


class PartKilledWorkersError(ClusterError):
    """A part of an op was under way on several workers when they died. The message names the op and the workers."""


class ClusterLostError(ClusterError):
    """A cluster's scheduler is gone, or contents that cannot be made again. What was under way has to be run again."""


class ClusterSecurityError(ClusterError):
    """A cluster would be spoken to in the clear, a certificate is not of its authority, or code would be sent that the
    cluster does not take."""


class NoDeviceError(DeviceError):
    """The requested device does not exist on this machine."""
