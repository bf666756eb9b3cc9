"""All public names of dagpu. The package `dagpu` loads this module at the first access to one of them."""

from typing import Final

from dagpu.cluster.checkpoints import checkpoint
from dagpu.cluster.cluster_interpreter import Cluster
from dagpu.cluster.connection.members import WorkerInfo
from dagpu.cluster.connection.security import Tls
from dagpu.cluster.engine.run_progress import Progress
from dagpu.cluster.parts.cutting import cut as cut
from dagpu.cluster.parts.part import Part
from dagpu.cluster.parts.part_checks import verify_parts
from dagpu.common.dtypes import Shape, bf16, bool_, c64, c128, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
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
    InteropError,
    KernelArgumentError,
    KernelBoundsError,
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
from dagpu.common.origin import record_origins
from dagpu.handles import Partition, SharedTensor, Tensor, TensorMut, TensorRef
from dagpu.handles.device_handles import Device, Stream
from dagpu.interop.foreign_arrays import stream_of
from dagpu.interop.foreign_ops.foreign_calls import Foreign, ForeignFunction
from dagpu.interop.foreign_ops.foreign_declaration import foreign
from dagpu.interop.incoming import adopt, from_array, lend, lend_mut, share_array
from dagpu.interop.lent_arrays import Lent, lent_out, unversioned
from dagpu.interop.python_kernels.cutile_kernels import cutile_kernel
from dagpu.interop.python_kernels.numba_kernels import numba_kernel
from dagpu.interop.python_kernels.triton_kernels import triton_kernel
from dagpu.kernels import arrays as array
from dagpu.kernels.decorator import In, Kernel, Lazy, NewOutput, Out, kernel  # noqa: F401  # reason: a fact names it
from dagpu.kernels.expressions.element import Elem
from dagpu.kernels.expressions.expr_decorator import Expr1, Expr2, Expr3, Expr4, Expr5, Expr6, Expr7, Expr8, expr
from dagpu.kernels.expressions.expression import Expression
from dagpu.kernels.expressions.reduced_expression import ReducedExpression  # noqa: F401  # reason: a fact names it
from dagpu.kernels.sees import Along, Around, Columns, Here, Rows
from dagpu.kernels.tile import Tile
from dagpu.lowering.plan import Plan, peak_bytes_on
from dagpu.lowering.program import Program
from dagpu.lowering.schedule.cost_model import CostModel
from dagpu.lowering.schedule.links import Link, Links
from dagpu.lowering.schedule.list_schedule import ListSchedule
from dagpu.lowering.schedule.mesh import Mesh, use_mesh
from dagpu.lowering.schedule.mesh_placement.placing import DevicePolicy, place
from dagpu.lowering.schedule.policies import RoundRobin, SchedulingPolicy, SingleStream
from dagpu.lowering.schedule.spread import Spread
from dagpu.lowering.verify.placed_values import verify_placement
from dagpu.ops.base import Borrowed, DeviceOp, MayAlloc, NoAlloc, Static
from dagpu.ops.compose import value, zip_ops
from dagpu.ops.creation import (
    arange,
    convert,
    dup,
    empty,
    eye,
    fill,
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
from dagpu.ops.launch import KernelOp
from dagpu.ops.live.changes import batch
from dagpu.ops.live.parts import Region
from dagpu.ops.live.source_op import Source, cutoff, source
from dagpu.ops.seeds import fold_in
from dagpu.reactive import put_part as _put_part  # noqa: F401  # reason: it sets the slot of `Source.write`
from dagpu.reactive.asyncio_guest import in_trio
from dagpu.reactive.flows.asking import Ask, batching
from dagpu.reactive.flows.feed import Feed
from dagpu.reactive.flows.flow_class import Flow
from dagpu.reactive.flows.flow_makers import every, flow, merge, zip_flows
from dagpu.reactive.flows.stats import Stats
from dagpu.reactive.observing import observe
from dagpu.reactive.terminal import watch
from dagpu.runtime.device_lookup import current_device, device, devices, use_device
from dagpu.runtime.interpreter import Interpreter, StreamInterpreter, plan_of, use_interpreter
from dagpu.runtime.pipelines.pipeline_class import Pipeline, pipeline
from dagpu.runtime.spawning import Pending, spawn
from dagpu.runtime.timeline import Trace, trace
from dagpu.sharding.collectives import all_gather, all_reduce, broadcast, reduce_scatter
from dagpu.sharding.device_boxes import Blocks, Cyclic
from dagpu.sharding.device_boxes import DeviceLayout as Layout
from dagpu.sharding.each_results import as_partials, as_shards, unzip_each
from dagpu.sharding.halos import halo
from dagpu.sharding.laying_out import gather, reshard, shard, shard_host, sharded_empty
from dagpu.sharding.per_device import each
from dagpu.sharding.reducing import Reduction
from dagpu.sharding.spread_values import Each, Haloed, Partials, PerDevice, Rank, Replicated, Sharded, ShardedRef

__all__ = [
    "Along", "Around", "Ask", "Blocks", "BorrowError", "Borrowed", "CaptureError", "Cluster", "ClusterError",
    "ClusterLostError", "ClusterSecurityError", "Columns", "CompileError", "CostModel", "CudaGraph", "Cyclic",
    "DagpuError", "Device", "DeviceError", "DeviceLostError", "DeviceOp", "DevicePolicy", "Each", "Elem", "ExportError",
    "Expr1", "Expr2", "Expr3", "Expr4", "Expr5", "Expr6", "Expr7", "Expr8", "Expression", "Feed", "Flow", "Foreign",
    "ForeignError", "ForeignFunction", "Haloed", "Here", "In", "InteropError", "Interpreter", "Kernel",
    "KernelArgumentError", "KernelBoundsError", "KernelOp", "Layout", "Lazy", "Lent", "Link", "Links", "ListSchedule",
    "MayAlloc", "Mesh", "MeshError", "Module", "MovedError", "NestedRunError", "NoAlloc", "NoDeviceError",
    "NotReadyError", "OperationCancelled", "Out", "OutOfMemoryError", "OwnershipError", "Part",
    "PartKilledWorkersError", "Partials", "Partition", "PartitionError", "Pending", "PerDevice", "Pipeline", "Plan",
    "PlanError", "Program", "Progress", "Rank", "Reduction", "Region", "Replicated", "RoundRobin", "Rows",
    "SchedulingPolicy", "Scope", "Shape", "ShapeError", "Sharded", "ShardedRef", "SharedTensor", "SingleStream",
    "Source", "SourceError", "Spread", "Static", "Stats", "Stream", "StreamInterpreter", "Tensor", "TensorMut",
    "TensorRef", "Tile", "Tls", "Trace", "UpdateError", "VersionMismatchError", "WorkerInfo", "adopt", "all_gather",
    "all_reduce", "arange", "array", "as_partials", "as_shards", "batch", "batching", "bf16", "bool_", "broadcast",
    "c64", "c128", "checkpoint", "convert", "current_device", "cutile_kernel", "cutoff", "device", "devices", "dup",
    "each", "empty", "every", "expr", "eye", "f16", "f32", "f64", "fill", "flow", "fold_in", "foreign", "from_array",
    "from_host", "full", "gather", "halo", "i8", "i16", "i32", "i64", "in_trio", "kernel", "lend", "lend_mut",
    "lent_out", "linspace", "memcpy", "merge", "numba_kernel", "observe", "ones", "peak_bytes_on", "pipeline", "place",
    "plan_of", "rand", "randn", "record_origins", "reduce_scatter", "reshard", "shard", "shard_host", "sharded_empty",
    "share_array", "source", "spawn", "stream_of", "trace", "triton_kernel", "u8", "u16", "u32", "u64", "unversioned",
    "unzip_each", "use_device", "use_interpreter", "use_mesh", "value", "verify_parts", "verify_placement", "watch",
    "zeros", "zip_flows", "zip_ops",
]  # fmt: skip

BY_NAME_ONLY: Final = ("cut",)
"""Public names that `from dagpu import *` leaves out, since programs call their own tensors and partitions so."""
