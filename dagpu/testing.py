"""What tests take from inside of dagpu: programs and plans as data, their proofs, every order of a run, and the driver.

Tests of pipelines need `exploring`, which runs a plan in adversarial orders, `program_of` and `plan_of`, and
`plans.info()`, which counts what was planned. Tests of policies build a `Program` by hand, `schedule` it and `verify`
the `Plan`. `checking_kernels` checks the CUDA text of each launch, as the fixture `check_kernels` of pytest does, and
`texts_run` chooses the order of its threads. A stand-in for a GPU implements `Gpu` and the other protocols of the
driver. These names stay where they are while the modules behind them move. Nothing in dagpu imports this module.
"""

from typing import Any

from dagpu.backends.cuda import declared_kernels, find_compiler
from dagpu.backends.cuda.driver.driver_protocol import (
    LAUNCH,
    CapturedNode,
    CopyNode,
    EnqueuedWork,
    FillNode,
    Gpu,
    GraphNode,
    IfNode,
    KernelLaunch,
    RawGraph,
    RawStream,
)
from dagpu.backends.explore import Exploration, Search, exploring
from dagpu.backends.host import HostBackend
from dagpu.backends.host.cuda_text.compilers import Mode, find_cxx
from dagpu.backends.host.cuda_text.launching import Order, texts_run
from dagpu.backends.host.cuda_text.text_checks import CheckedKernels, checking_kernels
from dagpu.backends.kernel_text.loaded_function import Function, Limits
from dagpu.backends.protocol import Failure, Prepared, Run
from dagpu.common.layout import check_tiling, contiguous_layout, slice_layout
from dagpu.handles import live_state
from dagpu.handles.device_handles import driver_of
from dagpu.handles.handle_state import Locks
from dagpu.handles.tensors import handles_in, storage_of
from dagpu.meshes.values import parts_of
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import nodes_of
from dagpu.ops.initializers import Arange, Constant, Normal, Uniform
from dagpu.ops.kernel_spec import Form, HostBody, KernelSpec, Param
from dagpu.plans.plan import ALIGNMENT, Allocate, Execute, Lane, Plan, Record, Release, Step, Wait
from dagpu.plans.program import (
    HOST,
    Buffer,
    Cell,
    CopyDtoD,
    CopyDtoH,
    CopyHtoD,
    Fill,
    GraphLaunch,
    HostCall,
    If,
    Instruction,
    Launch,
    Program,
    Role,
    Tiles,
    View,
)
from dagpu.plans.scheduler import schedule
from dagpu.plans.verifier import verify
from dagpu.runtime.device_lookup import backend, replaced_backend
from dagpu.runtime.interpreter import plan_of
from dagpu.runtime.plan_lookup import plans

__all__ = [
    "ALIGNMENT", "HOST", "LAUNCH", "Allocate", "Arange", "Buffer", "CapturedNode", "Cell", "CheckedKernels", "Constant",
    "CopyDtoD", "CopyDtoH", "CopyHtoD", "CopyNode", "EnqueuedWork", "Execute", "Exploration", "Failure", "Fill",
    "FillNode", "Form", "Function", "Gpu", "GraphLaunch", "GraphNode", "HostBackend", "HostBody", "HostCall", "If",
    "IfNode", "Instruction", "KernelLaunch", "KernelSpec", "Lane", "Launch", "Limits", "Locks", "Mode", "Normal",
    "Order", "Param", "Plan", "Prepared", "Program", "RawGraph", "RawStream", "Record", "Release", "Role", "Run",
    "Search", "Step", "Tiles", "Uniform", "View", "Wait", "backend", "check_tiling", "checking_kernels",
    "contiguous_layout", "declared_kernels", "driver_of", "exploring", "find_compiler", "find_cxx", "handles_in",
    "live_state", "nodes_of", "parts_of", "plan_of", "plans", "program_of", "replaced_backend", "schedule",
    "slice_layout", "storage_of", "texts_run", "verify",
]  # fmt: skip


def program_of(op: DeviceOp[Any, Any, Any]) -> Program:
    """Return the program of a run of `op`, until a closure needs host data, as `plan_of(op).program`. Nothing is run,
    and the op can run afterwards.

    Raises the errors that a run raises before it submits work.
    """
    return plan_of(op).program
