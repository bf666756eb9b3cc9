"""The messages that no program here provokes, each with the reason."""

from typing import Final

COMPILER = "what a real compiler says: tests/test_compile_errors.py has its errors, and what comes of them"
NO_GPU = "only a real GPU, or a machine without one, fails like this: tests/gpu and tests/test_cuda_failures.py"
AT_FAULT = "no program makes a plan that is wrong: tests/test_verify.py breaks them; the cure is to report it"
INTERNAL = "no program gets there: it guards one part of dagpu against another"

LEFT_OUT: Final[dict[str, str]] = {
    "backends/cuda/backend.py": NO_GPU,
    "backends/cuda/builtin.py": INTERNAL,
    "backends/cuda/compiler.py": COMPILER,
    "backends/cuda/cubin.py": COMPILER,
    "backends/cuda/device.py": NO_GPU,
    "backends/cuda/diagnostics.py": COMPILER,
    "backends/cuda/driver.py": NO_GPU,
    "backends/cuda/frozen_plan.py freeze": "page-locked memory must run out: tests/test_cuda_graph_failures.py",
    "backends/cuda/graphs.py obstacle": "an op's capture refuses these before a backend is asked",
    "backends/cuda/memory.py": INTERNAL,
    "backends/cuda/nvrtc.py": COMPILER,
    "backends/cuda/packing.py check_limits": "limits like that of shared memory: tests/test_cuda_packing.py",
    "backends/cuda/pycuda_driver.py": NO_GPU,
    "backends/cuda/transfers.py": INTERNAL,
    "backends/cuda/walk.py": "a view of more axes than NumPy's arrays have",
    "backends/device_registry.py driver": INTERNAL,
    "backends/explore/exploration.py injected": "the failure that a test of the user's asks for",
    "backends/explore/machine.py": AT_FAULT,
    "backends/host/execute.py _copy_out": "NumPy itself must run out of memory: tests/test_host_failures.py",
    "backends/host/philox.py": INTERNAL,
    "backends/host/recipes.py write": AT_FAULT,
    "backends/host/streams.py ready": "the interpreter must end: tests/test_interrupted_processes.py",
    "lowering/tables.py": AT_FAULT,
    "lowering/verify.py": AT_FAULT,
    "lowering/walk.py _apply": INTERNAL,
    "ops/recipes.py _check_real": INTERNAL,
    "ops/recipes.py _floor": INTERNAL,
    "ops/recipes.py check": INTERNAL,
    "runtime/capture.py capture": "why a handle is void, in the message of a later use: `escaped` above",
    "runtime/completion.py drive": INTERNAL,
    "slot.py __getattr__": INTERNAL,
    "wrong_arguments.py no_attribute": "Python's own words for a name that is nothing's",
    "runtime/timeline.py assert_overlap": "a machine must be too busy to overlap: tests/test_overlap.py",
}
"""Texts that no program here meets, by module, or by module and function, and why."""
