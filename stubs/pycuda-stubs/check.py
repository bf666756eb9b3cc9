"""Hold the stubs against the PyCUDA that is installed: `python stubs/pycuda-stubs/check.py`.

mypy's stubtest imports every module of PyCUDA and compares what is there with what the stubs say; `driver_types` adds
the types of the compiled functions. Neither calls anything, so no GPU is needed; but `pycuda.driver` is linked against
libcuda, and `pycuda.autoinit` makes a context when it is imported. Where there is no driver, a stand-in is compiled: it
has every function that PyCUDA's extension module asks for, one device, and CUDA_ERROR_NO_DEVICE for all else.

Needs PyCUDA and mypy, and where there is no driver `nm` and a C compiler ($CC, or cc). Exits with 0 where all agrees, 1
where it does not, and 2 where something is missing.
"""

import ctypes
import importlib
import importlib.util
import inspect
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final
from unittest import mock

from boost_signatures import is_boost_function, signature_of
from driver_types import Stub, disagreements

HERE: Final = Path(__file__).resolve().parent
ALLOWLIST: Final = HERE / "stubtest-allowlist.txt"

BODIES: Final = {
    "cuInit": "(unsigned flags) { return 0; }",
    "cuGetErrorString": '(int code, const char **text) { *text = "the stand-in can do nothing"; return 0; }',
    "cuDeviceGetCount": "(int *count) { *count = 1; return 0; }",
    "cuDeviceGet": "(int *device, int ordinal) { *device = ordinal; return 0; }",
    "cuDeviceComputeCapability": "(int *major, int *minor, int device) { *major = 9; *minor = 0; return 0; }",
    "cuCtxCreate_v2": "(void **context, unsigned flags, int device) { *context = &here; return 0; }",
    "cuCtxCreate_v4": "(void **context, void *params, unsigned flags, int device) { *context = &here; return 0; }",
    "cuCtxDetach": "(void *context) { return 0; }",
    "cuCtxDestroy_v2": "(void *context) { return 0; }",
    "cuCtxGetDevice": "(int *device) { *device = 0; return 0; }",
    "cuCtxPushCurrent_v2": "(void *context) { return 0; }",
    "cuCtxPopCurrent_v2": "(void **context) { if (context) *context = &here; return 0; }",
    "cuDevicePrimaryCtxRetain": "(void **context, int device) { *context = &here; return 0; }",
    "cuDevicePrimaryCtxRelease": "(int device) { return 0; }",
    "cuDevicePrimaryCtxRelease_v2": "(int device) { return 0; }",
}
"""What the stand-in does more than fail: enough to initialise, and to make a context and pop it."""


class Missing(Exception):
    """Something that the check needs is not installed."""


def main() -> int:
    try:
        extension = extension_module()
        with tempfile.TemporaryDirectory() as folder:
            driver = load_driver(extension, Path(folder))
            return compare(driver)
    except Missing as error:
        print(f"The stubs were not checked: {error}", file=sys.stderr)
        return 2


def extension_module() -> Path:
    """PyCUDA's compiled module, found without importing it."""
    package = importlib.util.find_spec("pycuda")
    # The stubs' own folder, beside this script, is found as a package without a file.
    if package is None or package.origin is None or not package.submodule_search_locations:
        raise Missing(f"PyCUDA is not installed for {sys.executable}. Install it: pip install pycuda")
    found = [path for folder in package.submodule_search_locations for path in Path(folder).glob("_driver.*")]
    if not found:
        raise Missing(f"{package.submodule_search_locations[0]} has no compiled _driver: PyCUDA was not built")
    if importlib.util.find_spec("mypy") is None:
        raise Missing(f"mypy is not installed for {sys.executable}. Install it: pip install mypy")
    return found[0]


def load_driver(extension: Path, folder: Path) -> str:
    """Load libcuda, or a stand-in for it, so that the extension module finds it by its name; say which."""
    if driver_works():
        ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
        return "the installed driver"
    ctypes.CDLL(str(stand_in(driver_functions(extension), folder)), mode=ctypes.RTLD_GLOBAL)
    return "a stand-in for the driver"


def driver_works() -> bool:
    """Is there a driver, and a device? Asked in a process of its own: what is loaded here stays loaded."""
    probe = "import ctypes, sys; sys.exit(ctypes.CDLL('libcuda.so.1').cuInit(0) != 0)"
    return subprocess.run([sys.executable, "-c", probe], capture_output=True, check=False).returncode == 0


def driver_functions(extension: Path) -> list[str]:
    """The functions of libcuda that a compiled module asks for."""
    lines = _run(["nm", "-D", "--undefined-only", str(extension)]).splitlines()
    return [name for name in (line.split()[-1] for line in lines) if re.fullmatch(r"cu[A-Z]\w*", name)]


def stand_in_source(functions: list[str]) -> str:
    """The stand-in in C. Nothing is declared: the linker looks at names alone."""
    no_device = "(void) { return 100; }"
    return "static int here;\n" + "".join(f"int {name}{BODIES.get(name, no_device)}\n" for name in functions)


def stand_in(functions: list[str], folder: Path) -> Path:
    """Compile it as a library whose own name is that of the driver's: so the loader takes it for that."""
    source, library = folder / "stand_in.c", folder / "libcuda.so.1"
    source.write_text(stand_in_source(functions), encoding="utf-8")
    compiler = os.environ.get("CC", "cc")
    _run([compiler, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(library), str(source)])
    return library


def _run(command: list[str]) -> str:
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except FileNotFoundError:
        raise Missing(f"there is no NVIDIA driver, and no {command[0]} to make a stand-in with") from None
    except subprocess.CalledProcessError as error:
        raise Missing(f"{' '.join(command)} failed: {error.stderr}") from None


def compare(driver: str) -> int:
    """Compare in this process, which sees the library that is loaded. The worst of the exit codes."""
    extension = importlib.import_module("pycuda._driver")
    print(f"PyCUDA {importlib.import_module('pycuda').VERSION_TEXT}, Python {platform.python_version()}, {driver}")
    sys.stdout.flush()
    return max(run_stubtest(extension), compare_types(extension))


def run_stubtest(extension: ModuleType) -> int:
    """Names, and the parameters of functions, of the whole package."""
    from mypy import stubtest

    import_curandom(extension)
    os.environ["MYPYPATH"] = str(HERE)
    arguments = ["pycuda", "--allowlist", str(ALLOWLIST)]
    if extension.have_gl_ext():
        arguments.append("--ignore-unused-allowlist")  # pycuda.gl needs no excuse then
    with mock.patch("inspect.signature", signature):
        return stubtest.test_stubs(stubtest.parse_options(arguments))


def compare_types(extension: ModuleType) -> int:
    """Types, of the extension module alone: nothing else in PyCUDA says its own."""
    compared, lines = disagreements(extension, Stub.read(HERE / "pycuda" / "_driver.pyi"))
    print(*lines, sep="\n", end="\n" if lines else "")
    print(f"Types: {len(lines)} disagreements with the docstrings of {compared} functions")
    return 1 if lines else 0


def signature(function: object, **options: Any) -> inspect.Signature:
    """As `inspect.signature`, but of the extension module's functions as well: stubtest would pass over them."""
    if is_boost_function(function):
        return signature_of(function)
    found = _of_python(function, **options)
    if getattr(function, "__qualname__", "").startswith("_add_functionality."):
        # Methods that PyCUDA adds in Python. Their first parameter has other names than `self`.
        first, *others = found.parameters.values()
        return found.replace(parameters=[first.replace(name="self"), *others])
    return found


_of_python: Final[Callable[..., inspect.Signature]] = inspect.signature


def import_curandom(extension: ModuleType) -> None:
    """Import `pycuda.curandom` even if PyCUDA was built without CURAND: it is Python, but looks for what that adds."""
    boost_enum = extension.array_format.__base__
    sets = type("direction_vector_set", (boost_enum,), {"names": {}, "values": {}})
    for name in ("VECTOR_32", "SCRAMBLED_VECTOR_32", "VECTOR_64", "SCRAMBLED_VECTOR_64"):
        setattr(sets, name, sets())
    curand = {
        "get_curand_version": lambda: (10, 0, 0),
        "direction_vector_set": sets,
        "_get_direction_vectors": None,
        "_get_scramble_constants32": None,
        "_get_scramble_constants64": None,
    }
    absent = {name: value for name, value in curand.items() if not hasattr(extension, name)}
    vars(extension).update(absent)
    importlib.import_module("pycuda.curandom")
    for name in absent:
        delattr(extension, name)


if __name__ == "__main__":
    sys.exit(main())
