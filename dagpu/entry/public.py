"""All public names of dagpu. The package `dagpu` loads this module at the first access to one of them."""

from typing import Final

from dagpu import arrays as array
from dagpu.backends.host.body_checks import Tile
from dagpu.cluster.cluster import Cluster, Progress, checkpoint
from dagpu.cluster.connection import Tls, WorkerInfo
from dagpu.cluster.cutting import Part
from dagpu.cluster.cutting import cut as cut
from dagpu.cluster.part_checks import verify_parts
from dagpu.common.errors import (
    BorrowError,
    CaptureError,
    ClusterError,
    ClusterLostError,
    ClusterSecurityError,
    CompileError,
    DagpuError,
    DeviceError,
    DeviceLostError,
    ExportError,
    ForeignError,
    GradientError,
    InteropError,
    KernelArgumentError,
    KernelAssertionError,
    KernelBarrierError,
    KernelBoundsError,
    KernelFaultError,
    KernelMismatchError,
    KernelRaceError,
    KernelUninitialisedError,
    KernelUnwrittenError,
    MeshError,
    MovedError,
    NestedRunError,
    NoDeviceError,
    NotReadyError,
    OperationCancelled,
    OutOfMemoryError,
    OwnershipError,
    PartitionError,
    PartKilledWorkersError,
    PlanError,
    ShapeError,
    SourceError,
    UpdateError,
    VersionMismatchError,
)
from dagpu.common.layout import Shape, bf16, bool_, c64, c128, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from dagpu.common.places import record_origins
from dagpu.handles import Partition, SharedTensor, Tensor, TensorMut, TensorRef
from dagpu.handles.device_handles import Device, Stream
from dagpu.interop.arrays import stream_of
from dagpu.interop.cutile_kernels import cutile_kernel
from dagpu.interop.foreign_ops import Foreign, ForeignFunction, foreign
from dagpu.interop.incoming import Lent, adopt, from_array, lend, lend_mut, lent_out, share_array, unversioned
from dagpu.interop.numba_kernels import numba_kernel
from dagpu.interop.triton_kernels import triton_kernel
from dagpu.kernels.declared_expressions import Expr1, Expr2, Expr3, Expr4, Expr5, Expr6, Expr7, Expr8, expr
from dagpu.kernels.decorator import In, Kernel, Lazy, NewOutput, NewOutputs, Out, kernel  # noqa: F401  # reason: a fact names it
from dagpu.kernels.element import Elem
from dagpu.kernels.expression import Expression, ReducedExpression, TupleExpression  # noqa: F401  # reason: a fact names it
from dagpu.kernels.sees import Along, Around, Columns, Here, Rows
from dagpu.meshes.collectives import Reduction, all_gather, all_reduce, broadcast, halo, reduce_scatter
from dagpu.meshes.layouts import Blocks, Cyclic
from dagpu.meshes.layouts import DeviceLayout as Layout
from dagpu.meshes.moving import gather, reshard, shard, shard_host, sharded_empty
from dagpu.meshes.per_device import as_partials, as_shards, each, unzip_each
from dagpu.meshes.values import Each, Haloed, Partials, PerDevice, Rank, Replicated, Sharded, ShardedRef
from dagpu.ops.array_parts import Region
from dagpu.ops.base import Borrowed, DeviceOp, MayAlloc, NoAlloc, Static
from dagpu.ops.compose import KernelOp, value, zip_ops
from dagpu.ops.creation import (
    arange,
    convert,
    dup,
    empty,
    eye,
    fill,
    fold_in,
    from_host,
    full,
    linspace,
    memcpy,
    ones,
    rand,
    randn,
    zeros,
)
from dagpu.ops.graph import CudaGraph, Module, Scope
from dagpu.ops.source_op import Source, cutoff, source
from dagpu.ops.versions import batch
from dagpu.plans.cost_model import CostModel
from dagpu.plans.list_schedule import ListSchedule
from dagpu.plans.mesh import Link, Links, Mesh, use_mesh
from dagpu.plans.placed_values import verify_placement
from dagpu.plans.placing import DevicePolicy, Spread, place
from dagpu.plans.plan import Plan, peak_bytes_on
from dagpu.plans.policies import RoundRobin, SchedulingPolicy, SingleStream
from dagpu.plans.program import Program
from dagpu.reactive import put_part as _put_part  # noqa: F401  # reason: it sets the slot of `Source.write`
from dagpu.reactive.asyncio_guest import in_trio
from dagpu.reactive.flows.asking import Ask, batching
from dagpu.reactive.flows.feed import Feed
from dagpu.reactive.flows.flow_class import Flow, every, flow, merge, zip_flows
from dagpu.reactive.flows.stage import Stats
from dagpu.reactive.observing import observe
from dagpu.reactive.terminal import watch
from dagpu.runtime.device_lookup import current_device, device, devices, use_device
from dagpu.runtime.interpreter import Interpreter, StreamInterpreter, plan_of, use_interpreter
from dagpu.runtime.pipeline_class import Pipeline, pipeline
from dagpu.runtime.spawning import Pending, spawn
from dagpu.runtime.timeline import Trace, trace

__all__ = [
    "Along", "Around", "Ask", "Blocks", "BorrowError", "Borrowed", "CaptureError", "Cluster", "ClusterError",
    "ClusterLostError", "ClusterSecurityError", "Columns", "CompileError", "CostModel", "CudaGraph", "Cyclic",
    "DagpuError", "Device", "DeviceError", "DeviceLostError", "DeviceOp", "DevicePolicy", "Each", "Elem", "ExportError",
    "Expr1", "Expr2", "Expr3", "Expr4", "Expr5", "Expr6", "Expr7", "Expr8", "Expression", "Feed", "Flow", "Foreign",
    "ForeignError", "ForeignFunction", "GradientError", "Haloed", "Here", "In", "InteropError", "Interpreter", "Kernel",
    "KernelArgumentError", "KernelAssertionError", "KernelBarrierError", "KernelBoundsError", "KernelFaultError",
    "KernelMismatchError", "KernelOp", "KernelRaceError", "KernelUninitialisedError", "KernelUnwrittenError", "Layout",
    "Lazy", "Lent", "Link", "Links", "ListSchedule", "MayAlloc", "Mesh", "MeshError", "Module", "MovedError",
    "NestedRunError", "NoAlloc", "NoDeviceError", "NotReadyError", "OperationCancelled", "Out", "OutOfMemoryError",
    "OwnershipError", "Part", "PartKilledWorkersError", "Partials", "Partition", "PartitionError", "Pending",
    "PerDevice", "Pipeline", "Plan", "PlanError", "Program", "Progress", "Rank", "Reduction", "Region", "Replicated",
    "RoundRobin", "Rows", "SchedulingPolicy", "Scope", "Shape", "ShapeError", "Sharded", "ShardedRef", "SharedTensor",
    "SingleStream", "Source", "SourceError", "Spread", "Static", "Stats", "Stream", "StreamInterpreter", "Tensor",
    "TensorMut", "TensorRef", "Tile", "Tls", "Trace", "UpdateError", "VersionMismatchError", "WorkerInfo", "adopt",
    "all_gather", "all_reduce", "arange", "array", "as_partials", "as_shards", "batch", "batching", "bf16", "bool_",
    "broadcast", "c64", "c128", "checkpoint", "convert", "current_device", "cutile_kernel", "cutoff", "device",
    "devices", "dup", "each", "empty", "every", "expr", "eye", "f16", "f32", "f64", "fill", "flow", "fold_in",
    "foreign", "from_array", "from_host", "full", "gather", "halo", "i8", "i16", "i32", "i64", "in_trio", "kernel",
    "lend", "lend_mut", "lent_out", "linspace", "memcpy", "merge", "numba_kernel", "observe", "ones", "peak_bytes_on",
    "pipeline", "place", "plan_of", "rand", "randn", "record_origins", "reduce_scatter", "reshard", "shard",
    "shard_host", "sharded_empty", "share_array", "source", "spawn", "stream_of", "trace", "triton_kernel", "u8", "u16",
    "u32", "u64", "unversioned", "unzip_each", "use_device", "use_interpreter", "use_mesh", "value", "verify_parts",
    "verify_placement", "watch", "zeros", "zip_flows", "zip_ops",
]  # fmt: skip

BY_NAME_ONLY: Final = ("cut",)
"""Public names that `from dagpu import *` leaves out, since programs call their own tensors and partitions so."""
