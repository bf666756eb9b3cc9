"""The declaration of a kernel, and its compilation ahead of a first launch."""

import inspect
import linecache
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, cast, final

import numpy as np

from dagpu.common.critical import Section
from dagpu.common.errors import KernelArgumentError, NoDeviceError, NotReadyError, PartitionError, ShapeError
from dagpu.common.frozen import Slot
from dagpu.common.layout import FLOATING, Shape, as_shape, check_tiling, record_type
from dagpu.common.places import Origin, describe
from dagpu.common.wrong_arguments import add_call_place, as_whole_number, format_value, suspended_result
from dagpu.handles.device_handles import INSTALL_CUDA
from dagpu.handles.symbolic import SymbolicNumber
from dagpu.kernels.annotations import (
    RECORD,
    Annotation,
    PySignature,
    declaration_error,
    declared_at,
    takes_by_position,
)
from dagpu.kernels.call_arguments import refuse_call
from dagpu.kernels.cuda_parameters import CudaParam
from dagpu.kernels.cuda_signature import (
    CudaSignature,
    PyParam,
    check_bound,
    check_constant,
    check_scalar,
    check_signature,
    parse_cuda_signature,
)
from dagpu.kernels.cuda_types import CType
from dagpu.kernels.module_variables import ConstantVariable, ModuleUse, read_constants, read_module_use
from dagpu.ops.base import DeviceOp
from dagpu.ops.kernel_spec import HostBody, KernelSpec, Param, RecordCheck

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
    function: Callable[..., object],
    signature: PySignature,
    source: str,
    abi: Literal["views", "pointers"],
    *,
    entry: str = "",
    folder: Path | None = None,
    options: Sequence[str] = (),
) -> tuple[tuple[Param, ...], CudaSignature]:
    """Return the parameters that Python and CUDA agree on, with the signature in CUDA.

    CUDA decides an element type that is generic in Python. `entry` is the name in CUDA, if it is another than that of
    the function. A parameter with the name of a `__constant__` variable is none in CUDA, unless the kernel there has
    one of that name, too.

    Raises:
        KernelArgumentError: the signatures differ, the CUDA declaration cannot be read, or a default does not fit.
    """
    name, place = function.__name__, declared_at(function)
    pairs = list(zip(signature.names, signature.annotations, strict=True))
    python = [PyParam(n, a.form, _name_of(a.dtype), a.scalar, a.optional, a.listed) for n, a in pairs]

    def parsed(constants: Mapping[str, ConstantVariable]) -> tuple[CudaSignature, list[PyParam]]:
        passed = [each for each in python if each.name not in constants]
        found = parse_cuda_signature(source, entry or name, abi=abi, folder=folder, options=options, python=passed)
        return found, passed

    try:
        constants = read_constants(source, signature.names, name, folder, options)
        cuda, passed = parsed(constants)
        if hidden := {c.name for c in cuda.params} & set(constants):  # a parameter hides the variable of its name
            constants = {each: of for each, of in constants.items() if each not in hidden}
            cuda, passed = parsed(constants)
        check_bound(cuda, name, place)
    except KernelArgumentError as error:
        raise KernelArgumentError(f"{error} The kernel is declared at {place}.") from None
    check_signature(cuda, passed, kernel=name, where=place)
    params: list[Param] = []
    waiting = iter(cuda.params)
    for (param_name, annotation), each in zip(pairs, python, strict=True):
        variable = constants.get(param_name)
        if variable is not None:
            check_constant(each, variable.param, variable.text, kernel=name, where=place)
        declared = next(waiting) if variable is None else variable.param
        param = declared_param(param_name, annotation, _type_of(annotation, declared), name, declared)
        if variable is not None:  # it is copied, so its memory may begin anywhere
            param = replace(param, lanes=1, align=1, constant=variable.elements * param.lanes)
        params.append(param)
    check_defaults(function, signature, params)
    return tuple(params), cuda


def _name_of(dtype: "np.dtype[Any] | None") -> str | None:
    """Return the name of an element type for the comparison of signatures."""
    return None if dtype is None else "void" if dtype == RECORD else dtype.name


def _type_of(annotation: Annotation, declared: CudaParam) -> "np.dtype[Any] | None":
    """Return the type of the elements, or of the value, that both declarations have; None for any."""
    record = declared.record
    if record is None:
        return np.dtype(declared.ctype)
    if annotation.dtype is not None and annotation.dtype != RECORD:
        return annotation.dtype
    return numpy_record(record) if record.kind in ("vector", "struct") else None


def numpy_record(record: CType) -> "np.dtype[Any]":
    """Return the layout of a structure as a NumPy type."""
    names, formats, offsets = [], [], []
    for each in record.fields:
        if each.is_pointer:
            inner: np.dtype[Any] = np.dtype(np.uint64)
        elif each.type.fields:
            inner = numpy_record(each.type)
        else:
            inner = np.dtype(each.type.dtype)
        names.append(each.name)
        formats.append(np.dtype((inner, each.extents)) if each.extents else inner)
        offsets.append(each.offset)
    layout: Any = {"names": names, "formats": formats, "offsets": offsets, "itemsize": record.size}
    made: np.dtype[Any] = np.dtype(layout)
    return record_type(made) or made


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
    record = None if declared is None else declared.record
    if annotation.form.is_tensor:
        lanes, align = 1, 1
        if record is not None and record.size and dtype is not None:
            lanes = len(record.fields) if dtype.names is None and dtype.kind != "c" else 1
            align = record.align
        rank = None if declared is None else declared.rank
        return Param(
            name, annotation.form, dtype, rank, None, False, annotation.optional, lanes, align, annotation.listed
        )
    assert dtype is not None, "a number has a type"
    if record is not None and declared is not None and dtype.kind != "c":
        return Param(name, annotation.form, None, None, StructureCheck(declared, name, dtype, kernel), False)
    check = ScalarCheck(name, dtype, kernel, 0 if declared is None else declared.line, record and record.align)
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
class Unordered:
    """The `kind` of a `ScalarCheck` of complex numbers. No number is of it, since no range bounds them."""


@final
class ScalarCheck:
    """The function `check_scalar` for one parameter, with a fast path.

    For nearly all numbers `type(v) is kind and low <= v <= high` is true. Such a `v` is passed unchanged.
    """

    __slots__ = ("_kernel", "_param", "align", "dtype", "high", "kind", "low")

    def __init__(self, name: str, dtype: "np.dtype[Any]", kernel: str, line: int = 0, align: int | None = None) -> None:
        """Make the check of a parameter with this name and this type in CUDA. `line` is that of its declaration in the
        CUDA source; 0 if the user has written none. `align` is its alignment, where that is not its size."""
        self._param = CudaParam(name, "scalar", dtype.name, False, None, line)
        self._kernel = kernel
        self.dtype = dtype
        """The type of the parameter in CUDA."""
        self.align = align or dtype.itemsize
        """The alignment of the parameter in CUDA, in bytes."""
        self.kind: type[int | float]
        self.low: int | float
        self.high: int | float
        if dtype.kind in "iu":
            self.kind, self.low, self.high = int, int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
        elif dtype in FLOATING:
            # 65504 is the largest float16, and in the range of bfloat16, which np.finfo does not support.
            self.high = 65504.0 if dtype.itemsize == 2 else float(np.finfo(dtype).max)
            self.kind, self.low = float, -self.high
        elif dtype.kind == "c":
            self.kind, self.low, self.high = cast("type[float]", Unordered), 0, 0
        else:
            self.kind, self.low, self.high = bool, False, True

    def __call__(self, value: object) -> complex:
        if type(value) is self.kind and self.low <= value <= self.high:
            return value
        if type(value) is SymbolicNumber:
            self(value.number)  # check the number of this call, but pass on the stand-in for all calls
            return cast("int | float", value)
        return check_scalar(value, self._param, kernel=self._kernel)


@final
class StructureCheck(RecordCheck):
    """Checks the value of one parameter that is a structure. It takes a NumPy record of the structure's layout, and for
    its fields in order a tuple."""

    __slots__ = ("_kernel", "_name", "_param", "align", "dtype")

    def __init__(self, param: CudaParam, name: str, dtype: "np.dtype[Any]", kernel: str) -> None:
        assert param.record is not None
        self._param = param
        self._name = name
        self._kernel = kernel
        self.dtype = dtype
        self.align = param.record.align

    def __call__(self, value: object) -> bytes:
        """Return the bytes of a record. See `RecordCheck`."""
        if type(value) is bytes and len(value) == self.dtype.itemsize:
            return value
        if isinstance(value, np.void) and fields_of(value.dtype) == fields_of(self.dtype):
            made = np.zeros((), self.dtype)
            _copy_fields(value, made)
            return made.tobytes()
        if type(value) is tuple:
            try:
                made = np.zeros((), self.dtype)  # NumPy leaves the bytes between fields as they are
                _copy_fields(np.array(value, self.dtype)[()], made)
                return made.tobytes()
            except (TypeError, ValueError, OverflowError):
                pass
        got = f"a record of {value.dtype}" if isinstance(value, np.void) else f"{type(value).__name__} "
        got += "" if isinstance(value, np.void) else format_value(value)
        assert self._param.record is not None
        raise KernelArgumentError(
            f"kernel {self._kernel!r}: argument {self._name!r} is {got}; its CUDA parameter "
            f"'{self._param.record.name} {self._param.name}' (CUDA source line {self._param.line}) takes a record with "
            f"the fields {_listed(self.dtype)}. Cure: pass np.void((...), dtype) of a dtype with these fields."
        )


def field_type(dtype: "np.dtype[Any]", name: str) -> "np.dtype[Any]":
    """Return the type of a field of a record."""
    fields: Any = dtype.fields
    found: np.dtype[Any] = fields[name][0]
    return found


def fields_of(dtype: "np.dtype[Any]") -> tuple[Any, ...]:
    """Return the names, types and shapes of the fields of a record, without their places."""
    found: list[Any] = []
    for name in dtype.names or ():
        field = field_type(dtype, name)
        inner = field.base
        found.append((name, fields_of(inner) if inner.names is not None else inner, field.shape))
    return tuple(found)


def _copy_fields(source: Any, target: Any) -> None:
    """Copy a record into one whose fields have other places. The bytes between the fields stay as they are."""
    for name in target.dtype.names:
        if target.dtype.fields[name][0].base.names is not None:
            flat, other = np.atleast_1d(source[name]).reshape(-1), target[name].reshape(-1)
            for i in range(len(other)):
                _copy_fields(flat[i], other[i : i + 1].reshape(()))
        else:
            target[name] = source[name]


def _listed(dtype: "np.dtype[Any]") -> str:
    shown = []
    for name in dtype.names or ():
        field = field_type(dtype, name)
        inner = f"({_listed(field.base)})" if field.base.names is not None else field.base.name
        shown.append(f"{name}: {inner}{list(field.shape) if field.shape else ''}")
    return ", ".join(shown)


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


def check_module(
    source: str, source_name: str, options: Sequence[str], kernel: str, place: str, constants: Collection[str] = ()
) -> ModuleUse:
    """Return what a kernel shares with other launches, by its source and the headers of that. `constants` are the
    variables that its declaration sets.

    Raises:
        KernelArgumentError: the kernel uses a variable that nothing sets, or one that another kernel of the source uses
            too; or it does not use one that its declaration sets.
    """
    use = read_module_use(source, kernel, Path(source_name).parent, options)
    if unset := [variable for variable in use.unset if variable.name not in constants]:
        name, _, space = unset[0][:3]
        what = f"it uses the {space} variable {name!r} ({unset[0].place}), which nothing sets, so it is zero"
        cure = "Initialise it in the source, or pass its contents as an input"
        if space == "__constant__":
            cure += f", or set it by a parameter of its name in Python, {name}: In[...], which CUDA need not have"
        raise declaration_error(kernel, place, what, cure)
    if idle := [name for name in constants if name not in use.constants and not use.unread]:
        what = f"its parameter {idle[0]!r} sets the __constant__ variable of that name, which the kernel does not use"
        raise declaration_error(kernel, place, what, f"Use it, or leave out {idle[0]!r}")
    if use.others:
        name, _, space = use.changed[0][:3]
        others = ", ".join(map(repr, use.others))
        what = (
            f"it shares the {space} variable {name!r} ({use.changed[0].place}) with the kernel {others}, but each "
            "kernel is compiled by itself, and has variables of its own"
        )
        raise declaration_error(kernel, place, what, "Pass it to both as an argument, or give each one of its own")
    return use


# ---- lists of tensors
def lengths_of(spec: KernelSpec, given: Sequence[Any], origin: Origin) -> tuple[int, ...]:
    """Return the lengths of the lists among the arguments of a call, in order.

    Raises:
        KernelArgumentError: an argument is no list, or an empty one.
    """
    found: list[int] = []
    for param, argument in zip(spec.params, given, strict=True):
        if not param.listed:
            continue
        if not isinstance(argument, list | tuple) or not argument:
            what = f"got {format_value(argument)}, but a list of one tensor or more is wanted"
            refuse_call(spec, origin, what, "Pass a list of them: [a, b]", param)
        found.append(len(argument))
    return tuple(found)


def with_lists(spec: KernelSpec, lengths: Sequence[int]) -> KernelSpec:
    """Return the specification of launches with lists of these lengths: each tensor has a parameter of its own."""
    params: list[Param] = []
    lists: list[tuple[int, int]] = []
    waiting = iter(lengths)
    for param in spec.params:
        if not param.listed:
            params.append(param)
            continue
        count = next(waiting)
        lists.append((len(params), count))
        params += [replace(param, name=f"{param.name}[{number}]", listed=False) for number in range(count)]
    host = HostBody(spec.host.function, spec.host.whole, spec.host.generated)
    return replace(spec, params=tuple(params), lists=tuple(lists), host=host)


def as_flat(spec: KernelSpec, given: Sequence[Any]) -> list[Any]:
    """Return the arguments of a call with the items of lists in the place of the lists."""
    found: list[Any] = []
    for param, argument in zip(spec.params, given, strict=True):
        found += argument if param.listed else [argument]
    return found


# ---- other parts of a declaration ---------------------------------------------------------
MAX_THREADS = 1024
"""The maximum number of threads in a block, on all architectures.

Source: CUDA C++ Programming Guide, table of compute capabilities.
"""
MAX_CLUSTER = 8
"""The maximum number of blocks in a cluster that every GPU with clusters allows (the same guide)."""
_MAX_GRID = 2**31 - 1
"""The maximum number of blocks along the first axis of a grid (the same table)."""


def check_extents(
    given: Sequence[object], what: Literal["grid", "block", "cluster"], kernel: str, place: str, called: str = ""
) -> tuple[int, ...]:
    """Check and return the extents of a grid, block or cluster. `called` is the place of the call if it is not the
    declaration.

    Raises:
        KernelArgumentError: the extents are not 1 to 3 whole numbers of 1 or more, a block has too many threads, or a
            cluster too many blocks.
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
    if what == "cluster" and math.prod(found) > MAX_CLUSTER:
        blocks = f"{call} has {math.prod(found)} blocks"
        raise declaration_error(
            kernel, place, blocks, f"A cluster has at most {MAX_CLUSTER}, all its extents multiplied"
        )
    return found


def check_shared(nbytes: object, what: str, kernel: str, place: str) -> int:
    """Check and return bytes of dynamic shared memory.

    Raises:
        KernelArgumentError: it is no whole number of 0 or more.
    """
    count = as_whole_number(nbytes)
    if count is None or count < 0:
        raise declaration_error(kernel, place, what, "Give a number of bytes, 0 or more")
    return count


def check_whole_grid(spec: KernelSpec, place: str) -> None:
    """Raise a `KernelArgumentError` if a feed might run some tiles of a kernel whose blocks need each other."""
    if spec.sees is not None and (spec.cooperative or spec.cluster is not None):
        what = "sees= lets a feed run some of its tiles, but its blocks need each other"
        raise declaration_error(spec.name, place, what, "Leave sees= out: then a feed runs the whole grid")


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


@final
class OutputCut(NamedTuple):
    """The new tensor of one output, and its partition."""

    shape: Shape
    tile: Shape
    partial: bool
    dtype: "np.dtype[Any] | None"


def checked_outputs(
    spec: KernelSpec, shapes: object, tiles: object, partial: object, origin: Origin
) -> list[OutputCut]:
    """Return the new tensors that a kernel writes, of the arguments of `kernel.new`.

    Raises:
        KernelArgumentError: the kernel has no outputs, or they are not its first parameters; a list has another length;
            or a shape has another rank than CUDA declares.
        PartitionError: a tile has another rank than its shape, or does not divide it.
        ShapeError: a shape is not a tuple of extents.
    """
    outputs = [param for param in spec.params if param.form.is_written]
    if not outputs or spec.params[: len(outputs)] != tuple(outputs) or any(param.listed for param in outputs):
        listed = ", ".join([repr(param.name) for param in outputs]) or "none"
        what = f"new() at {describe(origin)} is for outputs that come first; its outputs: {listed}"
        cure = "Pass a partition for each, empty(shape).partition(tile), and take the results with .unzip()"
        raise declaration_error(spec.name, describe(spec.origin), what, cure)
    each: list[list[object]] = []
    for name, given in (("shapes", shapes), ("tiles", tiles)):
        several = isinstance(given, list | tuple) and bool(given) and isinstance(given[0], list | tuple)
        found = list(cast("Sequence[object]", given)) if several else [given] * len(outputs)
        if len(found) != len(outputs):
            what = f"new() at {describe(origin)} has {len(found)} {name}, but the kernel has {len(outputs)} outputs"
            raise declaration_error(spec.name, describe(spec.origin), what, "Give one for each, or one for all")
        each.append(found)
    return [
        OutputCut(*_checked_output(spec, param, shape, tile, partial, origin), bool(partial), param.dtype)
        for param, shape, tile in zip(outputs, *each, strict=True)
    ]


def _checked_output(
    spec: KernelSpec, param: Param, shape: object, tile: object, partial: object, origin: Origin
) -> tuple[Shape, Shape]:
    """Return the shape and the tile of one new tensor. See `checked_outputs`."""
    try:
        extents = as_shape(shape)
    except (ShapeError, NotReadyError) as error:
        raise add_call_place("new", origin, error) from None
    rank = param.rank
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
CHECKER: Final = Slot[Callable[[DeviceOp[Any, Any, Any], float | None], None]]("dagpu.runtime.kernel_checks")
"""Runs the op of a launch with its text checked, for `kernel.check()`, with the tolerance."""


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
