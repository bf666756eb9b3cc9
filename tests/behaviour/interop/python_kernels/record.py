"""Records what the installed compilers make of the kernels here.

`python -m tests.behaviour.interop.python_kernels.record triton numba cutile` needs no GPU. The results are in
`recorded/`, named after the versions. Tests use them where the libraries are not installed.
"""

import base64
import json
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np

from dagpu.backends.cuda.compile.compiler import Compiler
from dagpu.common.layout import Shape
from dagpu.testing import contiguous_layout

RECORDED: Final = Path(__file__).with_name("recorded")


def record_triton() -> None:
    """Write `triton-<version>.json`: the first IR of each kernel, and one compiled kernel."""
    import triton

    from dagpu.interop.triton_kernels import TritonCompiler
    from tests.behaviour.interop.python_kernels import triton_programs

    compiler = TritonCompiler(triton)
    kernels: dict[str, Any] = {}
    for jit, written in triton_programs.WRITTEN.items():
        source = compiler.source(jit, types_of(jit), {"BLOCK": 16}, [])
        names = [param.name for param in jit.params]
        kernels[jit.__name__] = {"names": names, "written": sorted(written), "ttir": compiler.ttir(source, {})}
    source = compiler.source(triton_programs.axpy, types_of(triton_programs.axpy), {"BLOCK": 16}, ["y_ptr", "x_ptr"])
    made = compiler.compile(source, 90, {"num_warps": 4})
    found = {"cubin": encoded(made.cubin), "name": made.name, "num_warps": made.num_warps, "shared": made.shared}
    write("triton", triton.__version__, {"kernels": kernels, "axpy": found})


def record_numba() -> None:
    """Write `numba-<version>.json`: the machine code of one kernel, for arrays in C order."""
    import numba_cuda

    from dagpu import In, Out, f32, numba_kernel
    from tests.behaviour.interop.python_kernels import numba_programs

    @numba_kernel(numba_programs.axpy)
    def axpy(y: Out[f32], a: f32, x: In[f32], n: int) -> None: ...

    write("numba", numba_cuda.__version__, {"axpy": machine_code(axpy, ((12,), (12,)))})


def record_cutile() -> None:
    """Write `cutile-<version>.json`: the machine code of one kernel, for arrays in C order."""
    from cuda import tile

    from dagpu import In, Out, cutile_kernel, f32
    from tests.behaviour.interop.python_kernels import cutile_programs

    @cutile_kernel(cutile_programs.axpy, constants={"T": 4})
    def axpy(y: Out[f32], a: float, x: In[f32]) -> None: ...

    write("cutile", tile.__version__, {"axpy": machine_code(axpy, ((12,), (12,)))})


def machine_code(kernel: Any, shapes: tuple[Shape, ...]) -> dict[str, Any]:
    """Return the machine code of a kernel for arrays of float32 in C order."""
    python = kernel.spec.python
    variant = python.variant([contiguous_layout(shape, np.dtype(np.float32)) for shape in shapes], (4,))
    made = Compiler().compile_python(kernel.spec, variant, "sm_90")
    return {"cubin": encoded(made.cubin), "name": made.symbol}


def types_of(jit: Any) -> dict[str, str]:
    """Return the types of the parameters of a kernel of `triton_programs`."""
    types = {"a": "fp32", "n": "i32", "i": "*i64"}
    return {param.name: types.get(param.name, "*fp32") for param in jit.params if param.name != "BLOCK"}


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def write(library: str, version: str, found: dict[str, Any]) -> None:
    text = json.dumps({"version": version, **found}, indent=1).replace(str(RECORDED.parents[4]) + "/", "")
    (RECORDED / f"{library}-{version}.json").write_text(text + "\n")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        globals()[f"record_{name}"]()
