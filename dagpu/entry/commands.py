"""The commands of `python -m dagpu`: `info`, `check`, `compile`, `explain` and `trace`; `kernel_checks` has
`check-kernels`."""

import configparser
import os
import platform
import re
import runpy
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module, util
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

import dagpu
from dagpu import (
    Device,
    DeviceOp,
    In,
    NoDeviceError,
    Out,
    StreamInterpreter,
    Tile,
    arange,
    f32,
    kernel,
    use_device,
    use_interpreter,
    zip_ops,
)
from dagpu.backends.cuda import declared_kernels, find_compiler
from dagpu.backends.cuda.compile.compiler import Declared, compile_for
from dagpu.backends.host.cuda_text.compilers import find_cxx
from dagpu.common.compiled import WHY_NOT
from dagpu.common.env_vars import VARIABLES
from dagpu.common.errors import CompileError, DeviceError, KernelArgumentError
from dagpu.common.places import describe
from dagpu.handles.device_handles import INSTALL_NVRTC
from dagpu.kernels.decorator import Kernel
from dagpu.ops.drawing import name_of_call
from dagpu.plans.plan import Plan
from dagpu.plans.report import explain as in_words
from dagpu.plans.text import table
from dagpu.runtime.device_lookup import backend

_PACKAGES: Final = ("numpy", "trio", "pycuda", "cuda-bindings", "mypy")
_DRIVER: Final = Path("/proc/driver/nvidia/version")


@kernel(
    cuda="""__global__ void self_test(Tile<float, 1> y, float a, View<const float, 1> x) {
    for (auto i : y) y[i] = a * x[i] + i;
}"""
)
def self_test(y: Out[f32], a: float, x: In[f32]) -> None:
    """Compute y = a * x + index. The result is exact for the inputs of the self-test."""


@self_test.host
def _(y: Tile[f32], a: float, x: NDArray[f32]) -> None:
    (part,) = y.at
    y[...] = np.float32(a) * x[y.at] + np.arange(part.start, part.stop, dtype=np.float32)


@final
@dataclass(frozen=True, slots=True)
class SelfTestResult:
    """The result of the self-test of one device."""

    device: str
    works: bool
    what: str


def info() -> int:
    """Print the whole report. Return 0 if every device works and all environment variables are valid, else 1."""
    print("\n".join(_versions()))
    print()
    wrong = _wrong_variables()
    if wrong:
        print("\n".join(wrong))
        return 1
    findings = [examine(each) for each in dagpu.devices()]
    print("\n".join(table(("device", "memory free", "total", "self-test"), [_row(found) for found in findings])))
    print(f"\n{_texts()}")
    missing = _missing()
    if missing:
        print(f"\nNo CUDA device: {missing}")
    try:
        default = dagpu.current_device().name
    except NoDeviceError as error:
        print(f"\nNo default device: {error}")
        return 1
    print(f"\nThe default device is {default}; DAGPU_DEVICE or use_device(...) sets another.")
    return 0 if all(found.works for found in findings) else 1


def examine(device: Device) -> SelfTestResult:
    """Compile and run a kernel, copy in both directions, overlap two branches, and compare the results with NumPy."""
    ramp = np.arange(1024, dtype=np.float32)
    try:
        with use_device(device):
            branches = [
                self_test(dagpu.empty((1024,)).partition((256,)), a, arange(1024)).first().unpartition().to_host()
                for a in (2.0, -1.0)
            ]
            two, minus = zip_ops(*branches).sync()
    except Exception as error:  # a broken driver may raise any error, which is reported
        first: BaseException = error
        while isinstance(first, BaseExceptionGroup):  # both branches fail alike
            first = first.exceptions[0]
        return SelfTestResult(device.name, False, f"{type(first).__name__}: {first}")
    right = np.array_equal(two, 3 * ramp) and np.array_equal(minus, 0 * ramp)
    return SelfTestResult(device.name, right, "passed" if right else "wrong results: do not trust this device")


def _texts() -> str:
    """Say which compiler runs CUDA texts on the host."""
    try:
        return f"CUDA texts run on the host, compiled by {find_cxx().version}."
    except DeviceError as error:
        return f"No CUDA texts on the host: {error}"


def _row(found: SelfTestResult) -> tuple[str, ...]:
    try:
        free, total = (f"{size / 2**30:.1f} GiB" for size in dagpu.device(found.device).memory_info())
    except dagpu.DagpuError:
        free = total = "unknown"
    return found.device, free, total, found.what


def _versions() -> list[str]:
    lines = [f"dagpu {dagpu.__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"]
    for package in _PACKAGES:
        try:
            lines.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            lines.append(f"{package} is not installed")
    lines.append("calls are read by " + (f"Python: {WHY_NOT}" if WHY_NOT else "the compiled reader"))
    lines.append(f"NVIDIA driver {_driver_version() or 'is not loaded'}; {os.cpu_count()} cores")
    return lines


def _wrong_variables() -> list[str]:
    """Return a line for each environment variable with an invalid value."""
    lines = []
    for variable in VARIABLES:
        try:
            variable.get()
        except ValueError as error:
            lines.append(str(error))
    return lines


def _driver_version() -> str | None:
    """Return the version of NVIDIA's kernel module, read without any library; None if it is not loaded."""
    try:
        found = re.search(r"\d+\.\d+(?:\.\d+)?", _DRIVER.read_text(encoding="ascii", errors="replace"))
    except OSError:
        return None
    return None if found is None else found[0]


def _missing() -> str | None:
    """Return the reason why no CUDA device is available, with the cure; None if one is."""
    try:
        backend("cuda").device(0)
    except NoDeviceError as error:
        return str(error)
    return None


# ---- check
#
# `python -m dagpu check`: mypy with dagpu's plugin, for users who have not configured mypy.
#
# mypy runs in a process of its own. It accepts plugins only from a configuration file, so a temporary one is written if
# the user has none.

PLUGIN: Final = "dagpu.mypy_plugin"
OLDEST: Final = (2, 4)
"""The oldest mypy that calls plugins at the end of a module, which the flow rules need."""

_OPTIONS: Final = f"""\
[mypy]
plugins = {PLUGIN}
# A function without annotations is checked as well, and a missing stub of another library is not reported.
check_untyped_defs = true
ignore_missing_imports = true
"""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_ERROR = re.compile(r": error: .*  \[([\w-]+)\]$")
_SUMMARY = re.compile(r"^(?:Found \d+ errors?|Success:)")


def check(paths: Sequence[str], flags: Sequence[str] = (), *, use_configuration: bool = True) -> int:
    """Check files and folders; print mypy's report and a summary line. Return mypy's exit status.

    The status is also 2, with the cure on stderr, if mypy is missing or too old, or if the configuration that it would
    use does not switch the plugin on.
    """
    problem = _mypy_problem()
    configured = any(flag.startswith("--config-file") for flag in flags)
    found = _configuration(Path.cwd()) if use_configuration and not configured else None
    if not problem and found is not None and not _names_plugin(found[1]):
        problem = _plugin_problem(found[0])
    if problem:
        print(f"dagpu check: {problem}", file=sys.stderr)
        return 2
    if configured or found is not None:
        return _run([*flags, "--", *paths])
    with tempfile.TemporaryDirectory(prefix="dagpu-check-") as folder:
        file = Path(folder) / "mypy.ini"
        file.write_text(_OPTIONS, encoding="utf-8")
        return _run([f"--config-file={file}", *flags, "--", *paths])


def _run(arguments: Sequence[str]) -> int:
    """Run mypy and print its output. Its summary goes last, extended by the number of errors with each code."""
    command = [sys.executable, "-m", "mypy", *arguments]
    colours = {"MYPY_FORCE_COLOR": "1"} if sys.stdout.isatty() and "NO_COLOR" not in os.environ else {}
    codes: Counter[str] = Counter()
    summary = ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8", env=os.environ | colours) as mypy:
        assert mypy.stdout is not None
        for line in mypy.stdout:
            plain = _COLOURS.sub("", line.rstrip("\n"))
            codes.update(_ERROR.findall(plain))
            if _SUMMARY.match(plain):
                summary = plain
            else:
                print(line, end="")
    if summary:
        print(_summed_up(summary, codes))
    return mypy.returncode


def _summed_up(summary: str, codes: Mapping[str, int]) -> str:
    """Extend mypy's summary by the number of errors with each code, dagpu's own codes first.

    `Found 3 errors in 1 file (checked 1 source file): 2 dagpu-use-after-move, 1 arg-type`
    """
    order = sorted(codes, key=lambda code: (not code.startswith("dagpu-"), -codes[code], code))
    tally = ", ".join(f"{codes[code]} {code}" for code in order)
    return f"{summary}: {tally}" if tally else summary


# ---- problems that prevent a run -----------------------------------------------------------------
def _mypy_problem() -> str:
    """Return the reason why mypy cannot be used, with the cure; empty if it can be used."""
    oldest = ".".join(map(str, OLDEST))
    cure = f"Install it for this Python: {sys.executable} -m pip install 'mypy>={oldest}'"
    try:
        installed = version("mypy")
    except PackageNotFoundError:
        return f"mypy is not installed. {cure}"
    if tuple(map(int, re.findall(r"\d+", installed)[:2])) < OLDEST:
        return f"mypy {installed} is too old, {oldest} is wanted. {cure}"
    return ""


def _plugin_problem(file: Path) -> str:
    table, value = ("[tool.mypy]", f'["{PLUGIN}"]') if file.suffix == ".toml" else ("[mypy]", PLUGIN)
    return (
        f"{file} configures mypy, but does not switch the plugin on. Add to its {table}: plugins = {value} "
        "(or leave the file aside with --no-config)"
    )


def _configuration(folder: Path) -> tuple[Path, object] | None:
    """Return the configuration file that mypy finds from a folder, and the plugins in it; None if it finds none.

    mypy searches the folder and its parents, up to the root of the repository. In each it tries the files of
    `_candidates` in order. The last two of them count only if they have a section for mypy.
    """
    for place in (folder, *folder.parents):
        for file, plugins in _candidates(place):
            return file, plugins
        if (place / ".git").exists() or (place / ".hg").exists():
            break
    return None


def _candidates(place: Path) -> Iterator[tuple[Path, object]]:
    for name in ("mypy.ini", ".mypy.ini", "pyproject.toml", "setup.cfg"):
        file = place / name
        if not file.is_file():
            continue
        if file.suffix == ".toml":
            options = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {}).get("mypy")
            if options is not None:
                yield file, options.get("plugins", "")
            continue
        parser = configparser.RawConfigParser(strict=False)
        parser.read(file, encoding="utf-8")
        if parser.has_section("mypy") or name != "setup.cfg":
            yield file, parser.get("mypy", "plugins", fallback="")


def _names_plugin(plugins: object) -> bool:
    """Return True if dagpu's plugin is among the plugins of a configuration, a list or a comma-separated string."""
    named = plugins if isinstance(plugins, list) else re.split(r"[\s,]+", str(plugins))
    return any(str(name).partition(":")[0].strip() == PLUGIN for name in named)


# ---- compile files
#
# `python -m dagpu compile FILE...`: compile every kernel that the files declare, without a GPU.


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
        for declared in kernels:
            count += 1
            name, place = _told(declared, module)
            try:
                spec = declared.spec if isinstance(declared, Kernel) else declared.flat_kernel
                compiler = compile_for(spec, arch, nvrtc_only=nvrtc_only).compiler
            except (CompileError, DeviceError) as error:
                refused += 1
                print(f"{place}: {name}: refused\n{indented(str(error))}")
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


def indented(text: str) -> str:
    """Return a text with each line indented."""
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


# ---- scripts
#
# `python -m dagpu explain SCRIPT` and `trace SCRIPT`: run an unchanged script and report on its pipelines.


def explain(script: str, arguments: Sequence[str]) -> int:
    """Run a script, and print each of its plans before the plan runs. Return the script's exit status.

    The first plan with instructions comes with the sentences that say how to read all of them.
    """
    legend = True

    def print_plan(op: DeviceOp[Any, Any, Any], plan: Plan) -> None:
        nonlocal legend
        print(f"--- {name_of_call(op)} at {describe(op.origin)}\n{in_words(plan, legend=legend)}\n", flush=True)
        legend = legend and not plan.steps

    with use_interpreter(StreamInterpreter(on_plan=print_plan)):
        return run(script, arguments)


def trace(script: str, arguments: Sequence[str], out: str) -> int:
    """Run a script, write its timeline, and print planned and measured overlap. Return the script's exit status."""
    with dagpu.trace(out) as measured:
        status = run(script, arguments)
    print(f"\n{measured}\n\n{out}: open it in ui.perfetto.dev")
    return status


def run(script: str, arguments: Sequence[str]) -> int:
    """Run a script as `python script` would. Return its exit status."""
    if not Path(script).is_file():
        print(f"dagpu: there is no script {script}", file=sys.stderr)
        return 2
    with as_main(script, arguments):
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as end:
            return exit_status(end.code)
    return 0


def exit_status(code: object) -> int:
    """Convert the argument of `sys.exit` to an exit status, as Python does: print an object that is not a number."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code
    print(code, file=sys.stderr)
    return 1


@contextmanager
def as_main(script: str, arguments: Sequence[str]) -> Iterator[None]:
    """Set `sys.argv` and `sys.path` as for a script that is run as the main program; restore both at the end."""
    argv, path = sys.argv, list(sys.path)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path
