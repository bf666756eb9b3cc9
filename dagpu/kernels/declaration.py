"""The declaration of a kernel, and its compilation ahead of a first launch."""

import inspect
import linecache
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal, cast, final

import numpy as np

from dagpu.common.critical import Section
from dagpu.common.errors import KernelArgumentError, NoDeviceError, NotReadyError, PartitionError, ShapeError
from dagpu.common.frozen import Slot
from dagpu.common.layout import FLOATING, Shape, as_shape, check_tiling
from dagpu.common.places import Origin, describe
from dagpu.common.wrong_arguments import add_call_place, as_whole_number, format_value, suspended_result
from dagpu.handles.device_handles import INSTALL_CUDA
from dagpu.handles.symbolic import SymbolicNumber
from dagpu.kernels.annotations import Annotation, PySignature, declaration_error, declared_at, takes_by_position
from dagpu.kernels.cuda_signature import CudaParam, PyParam, check_scalar, check_signature, parse_cuda_signature
from dagpu.kernels.module_variables import ModuleUse, read_module_use
from dagpu.ops.kernel_spec import KernelSpec, Param

_PATH = re.compile(r"[^\s(){};]+\.\w{1,4}")
"""The name of a file, and no text of a source."""


# ---- the source ---------------------------------------------------------------------------
def read_source(cuda: str | Path, function: Callable[..., object]) -> tuple[str, str]:
    """Return the text of the CUDA source, and its name for messages: its path, or `file.py:12` for a text.

    A `Path`, or one line of text that ends with `.cu`, is the path of a file. A relative path starts at the folder of
    the declaring module.

    Raises:
        KernelArgumentError: the file does not exist, or cannot be read.
    """
    name, place, home = function.__name__, declared_at(function), function.__code__.co_filename
    if isinstance(cuda, str) and ("\n" in cuda or not cuda.endswith(".cu")):
        if _PATH.fullmatch(cuda):
            what = f"cuda={cuda!r} is the text of a source, and it has the form of a path"
            raise declaration_error(name, place, what, f"A path ends with .cu; name any other file by Path({cuda!r})")
        return cuda.removeprefix("\ufeff"), f"{home}:{_line_of(cuda, function)}"
    if not isinstance(cuda, str | Path):
        what = f"cuda= is of type {type(cuda).__name__}"
        raise declaration_error(name, place, what, "Give CUDA C++ source text, or the path of a .cu file")
    path = Path(home).parent / cuda  # an absolute `cuda` stays as it is
    try:
        return path.read_text(encoding="utf-8-sig"), str(path)  # a byte order mark is no part of the text
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        what = f"the CUDA source {str(path)!r} cannot be read ({why})"
        raise declaration_error(name, place, what, "A relative path starts at the declaring module's folder") from error


def _line_of(text: str, function: Callable[..., object]) -> int:
    """Return the line of the declaring file on which a literal begins; if it is not found, the line of the decorator.

    The first occurrence below the decorator counts, else the last one above it (a constant of the module).
    """
    declared = function.__code__.co_firstlineno
    lines: Sequence[str] = linecache.getlines(function.__code__.co_filename, function.__globals__)
    file, begin = "".join(lines), sum(map(len, lines[: declared - 1]))
    at = file.find(text, begin) if text else -1
    if at < 0:
        at = file.rfind(text) if text else -1
    return declared if at < 0 else file.count("\n", 0, at) + 1


# ---- the parameters -------------------------------------------------------------------------
def params_of(
    function: Callable[..., object], signature: PySignature, source: str, abi: Literal["views", "pointers"]
) -> tuple[Param, ...]:
    """Return the parameters that Python and CUDA agree on. CUDA decides an element type that is generic in Python.

    Raises:
        KernelArgumentError: the signatures differ, the CUDA declaration cannot be read, or a default does not fit.
    """
    name, place = function.__name__, declared_at(function)
    pairs = list(zip(signature.names, signature.annotations, strict=True))
    python = [PyParam(n, a.form, a.dtype.name if a.dtype is not None else None, a.scalar) for n, a in pairs]
    try:
        cuda = parse_cuda_signature(source, name, abi=abi)
    except KernelArgumentError as error:
        raise KernelArgumentError(f"{error} The kernel is declared at {place}.") from None
    check_signature(cuda, python, kernel=name, where=place)
    params = [
        declared_param(param_name, annotation, np.dtype(declared.ctype), name, declared)
        for (param_name, annotation), declared in zip(pairs, cuda.params, strict=True)
    ]
    check_defaults(function, signature, params)
    return tuple(params)


def declared_param(
    name: str, annotation: Annotation, dtype: "np.dtype[Any] | None", kernel: str, declared: CudaParam | None = None
) -> Param:
    """Return the parameter that an annotation declares.

    Args:
        name: its name in Python.
        annotation: the annotation.
        dtype: its type in CUDA; None for a tensor of any elements.
        kernel: the name of the kernel, for messages.
        declared: its declaration in CUDA; None if the user has written none.
    """
    if annotation.form.is_tensor:
        return Param(name, annotation.form, dtype, None if declared is None else declared.rank, None, False)
    assert dtype is not None, "a number has a type"
    check = ScalarCheck(name, dtype, kernel, 0 if declared is None else declared.line)
    return Param(name, annotation.form, None, None, check, annotation.lazy)


def check_defaults(function: Callable[..., object], signature: PySignature, params: Sequence[Param]) -> None:
    """Raise a `KernelArgumentError` if a default does not fit the C type of its parameter."""
    for param in params:
        if param.check is None or param.name not in signature.defaults:
            continue
        try:
            param.check(signature.defaults[param.name])
        except KernelArgumentError as error:
            raise KernelArgumentError(f"{error} It is the default, declared at {declared_at(function)}.") from None


@final
class ScalarCheck:
    """The function `check_scalar` for one parameter, with a fast path.

    For nearly all numbers `type(v) is kind and low <= v <= high` is true. Such a `v` is passed unchanged.
    """

    __slots__ = ("_kernel", "_param", "dtype", "high", "kind", "low")

    def __init__(self, name: str, dtype: "np.dtype[Any]", kernel: str, line: int = 0) -> None:
        """Make the check of a parameter with this name and this type in CUDA. `line` is that of its declaration in the
        CUDA source; 0 if the user has written none."""
        self._param = CudaParam(name, "scalar", dtype.name, False, None, line)
        self._kernel = kernel
        self.dtype = dtype
        """The type of the parameter in CUDA."""
        self.kind: type[int | float]
        self.low: int | float
        self.high: int | float
        if dtype.kind in "iu":
            self.kind, self.low, self.high = int, int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
        elif dtype in FLOATING:
            # 65504 is the largest float16, and in the range of bfloat16, which np.finfo does not support.
            self.high = 65504.0 if dtype.itemsize == 2 else float(np.finfo(dtype).max)
            self.kind, self.low = float, -self.high
        else:
            self.kind, self.low, self.high = bool, False, True

    def __call__(self, value: object) -> int | float | bool:
        if type(value) is self.kind and self.low <= value <= self.high:
            return value
        if type(value) is SymbolicNumber:
            self(value.number)  # check the number of this call, but pass on the stand-in for all calls
            return cast("int | float", value)
        return check_scalar(value, self._param, kernel=self._kernel)


_WAITS = re.compile(r"\b(?:wait_for_inputs|cudaGridDependencySynchronize)\s*\(|griddepcontrol\.wait")


def early_inputs(
    names: object, params: Sequence[Param], source: str, kernel: str, place: str
) -> tuple[int, ...] | None:
    """Check the names of the inputs that a kernel reads early, and return their indices in `params`. None stays None.

    Raises:
        KernelArgumentError: one of them is not the name of an input, or the source does not wait for the others.
    """
    if names is None:
        return None
    inputs = {param.name: index for index, param in enumerate(params) if param.form.is_input}
    given: Sequence[object] = names if isinstance(names, Sequence) and not isinstance(names, str | bytes) else [names]
    found = [inputs[name] for name in given if isinstance(name, str) and name in inputs]
    if len(found) < len(given) or given is not names:
        known = ", ".join(map(repr, inputs)) or "none"
        what = f"early_reads={format_value(names)}; its inputs are {known}"
        raise declaration_error(kernel, place, what, "Give a sequence of names of inputs")
    if not _WAITS.search(source):
        what = f"early_reads={format_value(names)}, but its CUDA source never calls wait_for_inputs()"
        cure = "Call wait_for_inputs() before the kernel reads other arguments or writes, or leave early_reads out"
        raise declaration_error(kernel, place, what, cure)
    return tuple(found)


def check_module(source: str, source_name: str, options: Sequence[str], kernel: str, place: str) -> ModuleUse:
    """Return what a kernel shares with other launches, by its source and the headers of that.

    Raises:
        KernelArgumentError: the kernel uses a variable that nothing sets, or one that another kernel of the source uses
            too.
    """
    use = read_module_use(source, kernel, Path(source_name).parent, options)
    if use.unset:
        name, _, space = use.unset[0][:3]
        what = f"it uses the {space} variable {name!r} ({use.unset[0].place}), which nothing sets, so it is zero"
        cure = "Initialise it in the source, or pass its contents as an input"
        raise declaration_error(kernel, place, what, cure)
    if use.others:
        name, _, space = use.changed[0][:3]
        others = ", ".join(map(repr, use.others))
        what = (
            f"it shares the {space} variable {name!r} ({use.changed[0].place}) with the kernel {others}, but each "
            "kernel is compiled by itself, and has variables of its own"
        )
        raise declaration_error(kernel, place, what, "Pass it to both as an argument, or give each one of its own")
    return use


# ---- other parts of a declaration ---------------------------------------------------------
MAX_THREADS = 1024
"""The maximum number of threads in a block, on all architectures.

Source: CUDA C++ Programming Guide, table of compute capabilities.
"""
_MAX_GRID = 2**31 - 1
"""The maximum number of blocks along the first axis of a grid (the same table)."""


def check_extents(
    given: Sequence[object], what: Literal["grid", "block"], kernel: str, place: str, called: str = ""
) -> tuple[int, ...]:
    """Check and return the extents of a grid or block. `called` is the place of the call if it is not the declaration.

    Raises:
        KernelArgumentError: the extents are not 1 to 3 whole numbers of 1 or more, or a block has too many threads.
    """
    found = tuple(n for n in map(as_whole_number, given) if n is not None and 1 <= n <= _MAX_GRID)
    call = f"{what}({', '.join(map(format_value, given))}){called and f' at {called}'}"
    if called and len(given) == 1 and isinstance(given[0], tuple | list) and all(map(as_whole_number, given[0])):
        numbers = ", ".join(map(format_value, given[0]))
        raise declaration_error(kernel, place, call, f"Pass the numbers themselves: {what}({numbers})")
    if len(found) != len(given) or not 1 <= len(found) <= 3:
        raise declaration_error(kernel, place, call, "Give 1 to 3 whole numbers, each 1 or more")
    if what == "block" and math.prod(found) > MAX_THREADS:
        threads = f"{call} has {math.prod(found)} threads"
        raise declaration_error(
            kernel, place, threads, f"A block has at most {MAX_THREADS}, all its extents multiplied"
        )
    return found


def check_settings(name: str, place: str, abi: Any, options: Any, **flags: Any) -> None:
    """Raise a `KernelArgumentError` for a wrong `abi`, `options` or flag of `@kernel`."""
    if not isinstance(abi, str) or abi not in ("views", "pointers"):
        raise declaration_error(name, place, f"abi={format_value(abi)}", "Give 'views' or 'pointers'")
    listed = isinstance(options, Sequence) and not isinstance(options, str | bytes)
    if not listed or not all(isinstance(option, str) for option in options):
        what = f"options={format_value(options)}"
        raise declaration_error(name, place, what, 'Give a sequence of texts: ("-lineinfo",)')
    for flag, given in flags.items():
        if not isinstance(given, bool | np.bool_) and not (given is None and flag == "checked"):
            raise declaration_error(name, place, f"{flag}={format_value(given)}", f"Say {flag}=True, or leave it out")


def check_body(spec: KernelSpec, names: Sequence[str], body: Callable[..., None]) -> None:
    """Raise a `KernelArgumentError` unless the function can be the host body of the kernel, whose parameters have these
    names."""
    name, place = spec.name, describe(spec.origin)
    if not callable(body):
        what = f"its host body is of type {type(body).__name__}"
        raise declaration_error(name, place, what, "Decorate a function with @kernel.host or @kernel.host(whole=True)")
    if (gives := suspended_result(body)) is not None:
        what = f"a call of its host body {format_value(body)} gives {gives} and runs nothing"
        raise declaration_error(name, place, what, "Write a plain function: def, with no await and no yield")
    code = getattr(body, "__code__", None)
    where = "" if code is None else f" at {describe((code, 0))}"
    if (before := spec.host.function) is not None:
        code = getattr(before, "__code__", None)
        first = "an unknown place" if code is None else describe((code, 0))
        what = f"a second host body is set{where}; the first is at {first}"
        raise declaration_error(name, place, what, "Keep one of them")
    try:
        parameters = list(inspect.signature(body).parameters.values())
    except (TypeError, ValueError) as error:
        what = f"the parameters of its host body {body!r} cannot be read"
        raise declaration_error(name, place, what, "Wrap it in a Python function") from error
    if not takes_by_position(parameters, names):
        got = ", ".join(str(p.replace(annotation=p.empty)) for p in parameters)
        what = f"its host body{where} takes ({got}), but it is called with ({', '.join(names)}) by position"
        cure = "Give the body the kernel's parameters in their order; one it does not use may begin with _"
        raise declaration_error(name, place, what, cure)


def checked_output(
    spec: KernelSpec, shape: object, tile: object, partial: object, origin: Origin
) -> tuple[Shape, Shape]:
    """Return the shape and the tile of the new tensor that a kernel writes, of the arguments of `kernel.new`.

    Raises:
        KernelArgumentError: the kernel has several outputs, its first parameter is not one, or the shape has another
            rank than CUDA declares.
        PartitionError: the tile has another rank than the shape, or does not divide it.
        ShapeError: `shape` is not a tuple of extents.
    """
    outputs = [param.name for param in spec.params if param.form.is_written]
    if len(outputs) != 1 or not spec.params[0].form.is_written:
        listed = ", ".join(map(repr, outputs)) or "none"
        what = f"new() at {describe(origin)} is for one output, which comes first; its outputs: {listed}"
        cure = "Pass a partition for each, empty(shape).partition(tile), and take the results with .unzip()"
        raise declaration_error(spec.name, describe(spec.origin), what, cure)
    try:
        extents = as_shape(shape)
    except (ShapeError, NotReadyError) as error:
        raise add_call_place("new", origin, error) from None
    rank = spec.params[0].rank
    if rank is not None and len(extents) != rank:
        what = f"new() at {describe(origin)} has the shape {extents}, so a rank of {len(extents)}"
        cure = "Give that many extents, or declare that rank in CUDA"
        what = f"{what}, but the CUDA declaration has rank {rank}"
        raise declaration_error(spec.name, describe(spec.origin), what, cure)
    try:
        tiles, _ = check_tiling(extents, tile, partial)
    except PartitionError as error:
        raise PartitionError(f"new() at {describe(origin)}: {error}") from None
    return extents, tiles


# ---- compiling
#
# Compiles kernels ahead of their first launch, by the compiler of a backend that sets it.

COMPILER: Final = Slot[Callable[[KernelSpec], None] | None]("dagpu.backends.cuda.backend")
"""Compiles a kernel ahead of its first launch, for `kernel.compile()`; None until a backend that compiles is loaded."""
COMPILER.set(None)
ARCH_COMPILER: Final = Slot[Callable[[KernelSpec, str], object]]("dagpu.runtime.device_lookup")
"""Compiles a kernel for an architecture by its name, for `kernel.compile(arch=)`."""


def compile_ahead(spec: KernelSpec, arch: str | None, origin: Origin) -> None:
    """Compile a kernel for an architecture, or for the GPU that is here. See `Kernel.compile`."""
    if arch is None and COMPILER.value is None:
        raise NoDeviceError(
            f"kernel {spec.name!r}, declared at {describe(spec.origin)}: it cannot be compiled at {describe(origin)}, "
            "because no CUDA backend is loaded here. Leave compile() out on the host, which compiles nothing; for "
            f"CUDA, on a machine with a GPU: {INSTALL_CUDA}."
        )
    with Section("compile() was called"):
        if arch is not None:
            ARCH_COMPILER.value(spec, arch)
        elif COMPILER.value is not None:
            COMPILER.value(spec)
