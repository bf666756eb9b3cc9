"""`python -m dagpu compile FILE...`: compile every kernel that the files declare, without a GPU."""

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module, util
from pathlib import Path
from types import ModuleType

from dagpu.backends.cuda import declared_kernels, find_compiler
from dagpu.backends.cuda.compile.offline import Declared, compile_for
from dagpu.common.errors import CompileError, DeviceError, KernelArgumentError
from dagpu.common.origin import describe
from dagpu.handles.device_handles import INSTALL_NVRTC
from dagpu.kernels.decorator import Kernel


def compile_files(files: Sequence[str], arch: str, *, nvrtc_only: bool = False) -> int:
    """Import the files, compile their kernels, and print a line for each, with the compiler that compiled it. Return
    the exit status.

    It is 0 if all compile, 1 if one is refused, and 2 if a file cannot be imported or there is no compiler. With
    `nvrtc_only` no other compiler than NVRTC is used.
    """
    if find_compiler(nvrtc_only=nvrtc_only) is None:
        which = "NVRTC was not found" if nvrtc_only else "no CUDA compiler was found"
        print(f"dagpu: {which}. Install NVRTC: {INSTALL_NVRTC}", file=sys.stderr)
        return 2
    refused = count = 0
    by: dict[str, list[str]] = {}
    for file in files:
        if not Path(file).is_file():
            print(f"dagpu: there is no file {file}", file=sys.stderr)
            return 2
        try:
            module = _imported(Path(file).resolve())
            kernels = declared_kernels(module)
        except Exception as error:  # the user's module may raise anything
            print(f"dagpu: {file} cannot be imported: {type(error).__name__}: {error}", file=sys.stderr)
            return 2
        for kernel in kernels:
            count += 1
            name, place = _told(kernel, module)
            try:
                spec = kernel.spec if isinstance(kernel, Kernel) else kernel.flat_kernel
                compiler = compile_for(spec, arch, nvrtc_only=nvrtc_only).compiler
            except (CompileError, DeviceError) as error:
                refused += 1
                print(f"{place}: {name}: refused\n{_indented(str(error))}")
            except KernelArgumentError as error:  # the name of the architecture
                print(f"dagpu: {error}", file=sys.stderr)
                return 2
            else:
                by.setdefault(compiler, []).append(name)
                print(f"{place}: {name}: compiles for {arch} with {compiler}")
    print(f"{count - refused} of {count} kernels compile for {arch}{_by_compiler(by)}")
    return 1 if refused else 0


def _by_compiler(by: Mapping[str, Sequence[str]]) -> str:
    """Return the words that say which compiler compiled which kernels: those of NVRTC by their number."""
    if len(by) < 2:
        return "".join([f" with {compiler}" for compiler in by])
    parts = []
    for compiler, names in by.items():
        which = "" if compiler.startswith("NVRTC") else f" ({', '.join(names)})"
        parts.append(f"{len(names)} with {compiler}{which}")
    return f": {', '.join(parts)}"


def _told(kernel: Declared, module: ModuleType) -> tuple[str, str]:
    """Return the name and the place of a kernel. That of a `lambda` is the name that it has in its module."""
    if isinstance(kernel, Kernel):
        return kernel.spec.name, describe(kernel.spec.origin)
    named = next((name for name, value in vars(module).items() if value is kernel), kernel.traced.name)
    return named if kernel.traced.is_lambda else kernel.traced.name, describe(kernel.origin)


def _indented(text: str) -> str:
    return "\n".join([f"  {line}" for line in text.splitlines()])


def _imported(path: Path) -> ModuleType:
    """Import a file: by its full name if it is in a package, else as a module of its own. It is no main program."""
    root, names = path.parent, [] if path.stem == "__init__" else [path.stem]
    while (root / "__init__.py").is_file():
        names.insert(0, root.name)
        root = root.parent
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    if len(names) > 1 or path.stem == "__init__":
        return import_module(".".join(names))
    name = f"dagpu_compiled_{path.stem}"
    found = util.spec_from_file_location(name, path)
    assert found is not None
    assert found.loader is not None
    module = sys.modules[name] = util.module_from_spec(found)
    found.loader.exec_module(module)
    return module
