"""`python -m dagpu check-kernels FILE`: the CUDA texts of a script's launches checked on the host."""

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from dagpu.backends.host.cuda_text.compilers import Mode, find_cxx
from dagpu.backends.host.cuda_text.loaded_kernel import loaded_kernel
from dagpu.backends.host.cuda_text.text_checks import checking_kernels
from dagpu.backends.host.numpy_execution import has_text
from dagpu.backends.kernel_text.launch_params import usual_variant
from dagpu.common.errors import CompileError, DagpuError, DeviceError, KernelArgumentError
from dagpu.common.places import describe
from dagpu.entry.commands import as_main, exit_status, indented
from dagpu.kernels.decorator import DECLARED, Kernel
from dagpu.runtime.device_lookup import use_device


def check_kernels(script: str, arguments: Sequence[str], tolerance: float | None = None) -> int:
    """Run a script with each launch checked, compile the other kernels that it declares for the host, and print a line
    for each kernel. Return 0 if nothing was found, 1 if something was, 2 if the script or a C++ compiler is missing, or
    the script's own status."""
    if not Path(script).is_file():
        print(f"dagpu: there is no script {script}", file=sys.stderr)
        return 2
    if Path(script).suffix == ".cu":
        print(
            f"dagpu: {script} is CUDA, and check-kernels runs a Python script. Declare its kernels in a script beside "
            f'it that launches them, @kernel(cuda="{Path(script).name}", abi="pointers"), and pass the script.',
            file=sys.stderr,
        )
        return 2
    try:
        compiler = find_cxx()
    except DeviceError as error:
        print(f"dagpu: {error}", file=sys.stderr)
        return 2
    status, names = 0, {}
    with checking_kernels(tolerance) as checked, use_device("host"), as_main(script, arguments):
        try:
            names = runpy.run_path(script, run_name="__main__")  # keeps the kernels that it declares
        except SystemExit as end:
            status = exit_status(end.code)
        except (DagpuError, BaseExceptionGroup) as error:
            print(f"{script}: {type(error).__name__}\n{indented(_told(error))}")
            status = 1
    for name in sorted(checked.begun - checked.launches.keys()):
        print(f"{name}: no launch is right")
    for name, count in checked.launches.items():
        print(f"{name}: {count} launches are right, and differ by at most {checked.largest[name]:.2g}")
    refused = 0
    for kernel in [each for each in list(DECLARED) if isinstance(each, Kernel) and _is_of(each, script)]:
        if kernel.spec.name in checked.begun or not has_text(kernel.spec):
            continue
        try:
            loaded_kernel(kernel.spec, usual_variant(kernel.spec), Mode())
        except (CompileError, KernelArgumentError) as error:
            refused += 1
            print(f"{kernel.spec.name}: refused\n{indented(str(error))}")
        else:
            print(f"{kernel.spec.name}: compiles for the host with {compiler.version}, and was not launched")
    names.clear()
    return status or int(bool(refused))


def _told(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):  # several branches may fail alike
        error = error.exceptions[0]
    return str(error)


def _is_of(kernel: "Kernel[...]", script: str) -> bool:
    origin = kernel.spec.origin
    return origin is not None and Path(describe(origin).rpartition(":")[0]).resolve() == Path(script).resolve()
