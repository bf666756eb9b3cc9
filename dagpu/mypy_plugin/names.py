"""The full names, as mypy knows them, of all in dagpu and elsewhere that the rules are about."""

from typing import Final

TENSOR: Final = "dagpu.handles.Tensor"
SHARED_TENSOR: Final = "dagpu.handles.SharedTensor"
TENSOR_REF: Final = "dagpu.handles.TensorRef"
TENSOR_MUT: Final = "dagpu.handles.TensorMut"
PARTITION: Final = "dagpu.handles.Partition"

DEVICE_OP: Final = "dagpu.ops.base.DeviceOp"
KERNEL_OP: Final = "dagpu.ops.launch.KernelOp"
STATIC: Final = "dagpu.ops.base.Static"
BORROWED: Final = "dagpu.ops.base.Borrowed"
NO_ALLOC: Final = "dagpu.ops.base.NoAlloc"
MAY_ALLOC: Final = "dagpu.ops.base.MayAlloc"
KERNEL: Final = "dagpu.kernel.Kernel"
KERNEL_CALL: Final = "dagpu.kernel.Kernel.__call__"
KERNEL_DECORATOR: Final = "dagpu.kernel.kernel"

VALUE: Final = "dagpu.ops.compose.value"
THEN: Final = "dagpu.ops.base.DeviceOp.then"
ZIP_OPS: Final = "dagpu.ops.compose.zip_ops"
SPAWN: Final = "dagpu.runtime.spawn.spawn"
PENDING: Final = "dagpu.runtime.spawn.Pending"
CUDA_GRAPH: Final = "dagpu.ops.graph.CudaGraph"
SCOPE: Final = "dagpu.ops.graph.Scope"
MODULE: Final = "dagpu.ops.graph.Module"
PIPELINE: Final = "dagpu.runtime.pipeline.Pipeline"
PIPELINE_CALL: Final = f"{PIPELINE}.__call__"
PIPELINE_DECORATOR: Final = "dagpu.runtime.pipeline.pipeline"

MOVES_SELF: Final = {
    f"{TENSOR}.partition": "partition()",
    f"{TENSOR}.share": "share()",
    f"{TENSOR}.reshape": "reshape()",
    f"{TENSOR}.to_host": "to_host()",
    f"{SHARED_TENSOR}.try_unwrap": "try_unwrap()",
    f"{TENSOR_MUT}.partition": "partition()",
    f"{TENSOR_MUT}.reshape": "reshape()",
    f"{TENSOR_MUT}.to_host": "to_host()",
    f"{PARTITION}.unpartition": "unpartition()",
}
"""Methods that move the handle they are called on, in the words of the run-time error."""

LENDS_SELF: Final = {
    f"{TENSOR}.borrow": False,
    f"{TENSOR}.view": False,
    f"{TENSOR}.slice": False,
    f"{TENSOR}.borrow_mut": True,
}
"""Methods that borrow the handle they are called on, and whether for writing."""

NEVER_RAISES: Final = frozenset(
    {f"{TENSOR}.borrow", f"{TENSOR}.borrow_mut", f"{SHARED_TENSOR}.clone", f"{SHARED_TENSOR}.to_host"}
)
"""Methods that raise nothing but `MovedError`, which is reported where it would be raised."""

RUNS: Final = frozenset({f"{DEVICE_OP}.sync", f"{DEVICE_OP}.sync_on", f"{DEVICE_OP}.__await__"})
"""Methods that run an op."""

REMEMBERS: Final = frozenset({f"{DEVICE_OP}.shared", f"{DEVICE_OP}.unzip", f"{KERNEL_OP}.unzip"})
"""Methods whose op runs its source once, however often it is run itself."""

STARTS_TASK: Final = frozenset({"trio._core._run.Nursery.start_soon", "trio._core._run.Nursery.start"})
OPENS_NURSERY: Final = frozenset({"trio._core._run.open_nursery"})

PARTIAL: Final = frozenset({"functools.partial"})
"""Binds its arguments to a function that takes them later."""

LOOKS: Final = frozenset(
    {
        *(f"builtins.{name}" for name in ("zip", "enumerate", "reversed", "iter", "len", "any", "all", "sum")),
        *("weakref.ref", "weakref.ReferenceType", "weakref.finalize"),
    }
)
"""Generic functions that take nothing over; what is iterated over stays with whoever has it."""

ADDS_TO_SELF: Final = frozenset(
    {
        *(f"builtins.list.{name}" for name in ("append", "extend", "insert", "__iadd__", "__setitem__")),
        *(f"builtins.set.{name}" for name in ("add", "update")),
        *(f"builtins.dict.{name}" for name in ("setdefault", "update", "__setitem__")),
        *(f"typing.MutableMapping.{name}" for name in ("setdefault", "update", "__setitem__")),
        *(f"typing.MutableSequence.{name}" for name in ("append", "extend", "insert")),
        *(f"typing.MutableSet.{name}" for name in ("add",)),
        *(f"collections.deque.{name}" for name in ("append", "appendleft", "extend", "extendleft", "insert")),
        *(f"queue.Queue.{name}" for name in ("put", "put_nowait")),
        *(f"trio._channel.MemorySendChannel.{name}" for name in ("send", "send_nowait")),
        "trio._abc.SendChannel.send",
    }
)
"""Methods by which a container or a channel keeps its arguments."""

EMPTIES_SELF: Final = frozenset(
    {"builtins.list.clear", "builtins.dict.clear", "builtins.set.clear", "collections.deque.clear"}
) | {"typing.MutableMapping.clear", "typing.MutableSequence.clear"}
"""Methods by which a container lets go of all that it keeps."""

SUSPENDED: Final = frozenset(
    {
        "functools.partial",
        "typing.Awaitable",
        "typing.Coroutine",
        "typing.Generator",
        "typing.AsyncGenerator",
        "typing.Iterator",
        "typing.AsyncIterator",
    }
)
"""Classes of work that has been begun, or will be: it holds what it was given."""

PLAIN_MODULES: Final = frozenset(
    {
        *("builtins", "typing", "typing_extensions", "collections", "collections.abc", "abc", "enum", "types"),
        *("functools", "itertools", "contextlib", "pathlib", "re", "os", "io", "threading", "logging", "datetime"),
        *("numpy", "dagpu.device", "dagpu.dtypes", "dagpu.tile", "dagpu.kernel", "dagpu.runtime.spawn"),
    }
)
"""Modules whose classes keep nothing of ours but what their type arguments say. Only saves time."""

RUNTIME_ERRORS: Final = {
    "MovedError": frozenset({"dagpu-use-after-move"}),
    "BorrowError": frozenset({"dagpu-conflicting-borrow", "dagpu-borrow-escape"}),
    "OwnershipError": frozenset({"dagpu-use-after-move", "dagpu-conflicting-borrow", "dagpu-borrow-escape"}),
}
"""Who expects one of these says that the mistake is meant."""

NURSERIES: Final = frozenset({"trio._core._run.NurseryManager"})
"""Context managers that end no exception but the cancellation they were asked for."""
