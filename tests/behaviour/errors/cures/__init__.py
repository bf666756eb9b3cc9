"""Every mistake that dagpu has a message for, beside the program with the message's cure applied to it, word by word.

`CASES` has one entry for each message: the wrong program, and for each cure that its message offers, the words of the
cure and the program with it. A text whose cure cannot be applied in a test is in `LEFT_OUT`, with the reason.
"""

from typing import Final

from tests.behaviour.errors.cures import (
    copies,
    creating,
    devices,
    graphs,
    handles,
    kernel_calls,
    kernel_declarations,
    ops_as_values,
    partitions,
    running,
)
from tests.behaviour.errors.cures.catalogue import KEPT, Case, Program
from tests.behaviour.errors.cures.reactive import sources

__all__ = ["CASES", "KEPT", "LEFT_OUT", "Case", "Program"]

CASES: Final[list[Case]] = [
    case
    for module in (
        handles,
        partitions,
        kernel_calls,
        kernel_declarations,
        creating,
        ops_as_values,
        running,
        copies,
        graphs,
        devices,
        sources,
    )
    for case in module.CATALOGUE.cases
]

# ---- the messages that no program here provokes, each with the reason

COMPILER = "what a real compiler says: test_compile_errors.py has its errors, and what comes of them"
NO_GPU = "only a real GPU, or a machine without one, fails like this: tests/gpu and test_cuda_failures.py"
AT_FAULT = "no program makes a plan that is wrong: test_verify.py breaks them; the cure is to report it"
INTERNAL = "no program gets there: it guards one part of dagpu against another"

LEFT_OUT: Final[dict[str, str]] = {
    "backends/cuda/backend.py": NO_GPU,
    "backends/cuda/kernels/fill_and_copy.py": INTERNAL,
    "backends/cuda/compile/compiler.py": COMPILER,
    "backends/cuda/compile/cubin.py": COMPILER,
    "backends/cuda/resources/cuda_device.py": NO_GPU,
    "backends/cuda/compile/diagnostics.py": COMPILER,
    "backends/cuda/driver/driver_protocol.py": NO_GPU,
    "backends/cuda/graphs/captured.py capture": "page-locked memory must run out: test_cuda_graph_failures.py",
    "backends/cuda/graphs/instances.py obstacle": "an op's capture refuses these before a backend is asked",
    "backends/cuda/resources/pools.py": INTERNAL,
    "backends/cuda/compile/nvrtc.py": COMPILER,
    "backends/cuda/kernels/launch_params.py check_limits": "limits like that of shared memory: test_cuda_packing.py",
    "backends/cuda/driver/pycuda_driver.py": NO_GPU,
    "backends/cuda/commands/transfers.py": INTERNAL,
    "backends/cuda/kernels/strided_loop.py": "a view of more axes than NumPy's arrays have",
    "backends/common/device_registry.py driver": INTERNAL,
    "backends/explore/exploration.py injected": "the failure that a test of the user's asks for",
    "backends/explore/machine.py": AT_FAULT,
    "backends/host/numpy_execution.py _copy_out": "NumPy itself must run out of memory: test_host_failures.py",
    "backends/common/philox.py": INTERNAL,
    "backends/common/numpy_initializers.py write": AT_FAULT,
    "backends/common/worker_threads.py ready": "the interpreter must end: test_interrupted_processes.py",
    "lowering/verify/tables.py": AT_FAULT,
    "lowering/verify/verifier.py": AT_FAULT,
    "lowering/verify/verify_update.py": AT_FAULT,
    "lowering/tracing/evaluate.py _apply_node": INTERNAL,
    "ops/initializers.py _check_real": INTERNAL,
    "ops/initializers.py _floor": INTERNAL,
    "ops/initializers.py check_recipe": INTERNAL,
    "runtime/graphs/capture.py capture": "why a handle is void, in the message of a later use: `escaped` above",
    "runtime/waiting.py drive": INTERNAL,
    "common/slot.py __getattr__": INTERNAL,
    "common/wrong_arguments.py no_attribute": "Python's own words for a name that is nothing's",
    "runtime/timeline.py assert_overlap": "a machine must be too busy to overlap: test_overlap.py",
}
"""Texts that no program here meets, by module, or by module and function, and why."""
