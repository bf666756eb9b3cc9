"""Parts as bytes, for other machines.

A blob is a pickle of plan data. It is read by an unpickler that knows dagpu's classes for programs, and numbers and
element types of NumPy, and refuses all other names. What is code is not in it: it names kernels and the functions of
`host_map` by the hash of their contents, which travel beside it. A kernel is data with its CUDA source text, and the
function of a `host_map` and the host body of a kernel are pickled by cloudpickle, unless that is refused.
"""

import hashlib
import io
import pickle
from collections.abc import Mapping
from dataclasses import fields, replace
from types import CodeType
from typing import Any, Final, cast, final

import numpy as np

from dagpu.common.dtypes import element_type
from dagpu.common.errors import ClusterError, ClusterSecurityError
from dagpu.common.frozen import plain
from dagpu.common.layout import Layout
from dagpu.common.origin import Origin, describe, place_of
from dagpu.lowering.program import (
    Buffer,
    Cell,
    CopyDtoD,
    CopyDtoH,
    CopyHtoD,
    Fill,
    HostCall,
    Instruction,
    Items,
    Launch,
    Program,
    Role,
    Tiles,
    View,
)
from dagpu.lowering.schedule.list_schedule import ListSchedule
from dagpu.ops.initializers import Arange, Constant, Eye, Linspace, Normal, Uniform
from dagpu.ops.kernel_spec import HostBody, Indexed, KernelSpec, Param, Sight

FORMAT: Final = 1
"""The number of the format. It changes with the classes that a blob may contain."""


@final
@plain
class Code:
    """A function or a constant in a `HostCall` of a blob, by the hash of its pickle."""

    digest: str


@final
@plain
class WriteCheckpoint:
    """The function of a checkpoint: it writes an array to a file, which is there whole or not at all."""

    path: str

    def __call__(self, array: "np.ndarray[Any, Any]") -> str:
        """Write the array, and return the path."""
        import os
        from uuid import uuid4

        scratch = f"{self.path}.{uuid4().hex[:8]}.part"
        try:
            with open(scratch, "wb") as file:  # noqa: PTH123  # reason: a path with a scheme is no Path
                np.save(file, array)
                file.flush()
                os.fsync(file.fileno())
            os.replace(scratch, self.path)  # noqa: PTH105  # reason: the same
        except BaseException:
            if os.path.exists(scratch):  # noqa: PTH110  # reason: the same
                os.unlink(scratch)  # noqa: PTH108  # reason: the same
            raise
        return self.path


_CLASSES: Final = {
    (each.__module__, each.__qualname__): each
    for each in (
        Arange, Buffer, Cell, Code, Constant, CopyDtoD, CopyDtoH, CopyHtoD, Eye, Fill, HostCall, Indexed, Items, Launch,
        Layout, Linspace, Normal, Param, Role, Sight, Tiles, Uniform, View, WriteCheckpoint,
    )
}  # fmt: skip
"""The classes that a blob may contain."""
_PLAIN: Final = frozenset((type(None), bool, int, float, complex, str, Cell, Code))
"""Types of constants in the argument of a `HostCall` that are no code."""


@final
@plain
class Blob:
    """A part's program as bytes."""

    content: bytes
    digest: str
    """The hash of `content`. Equal parts have equal ones, and one plan on each worker."""
    codes: tuple[str, ...]
    """The hashes of the code that it names."""


@final
class Encoder:
    """Writes blobs for the workers of one cluster, and keeps the code that they name.

    Args:
        on_host: true if the workers' devices are hosts, which run the host bodies of kernels.
        code: false to refuse what has to be sent as Python code.
    """

    def __init__(self, *, on_host: bool, code: bool) -> None:
        self._on_host = on_host
        self._allowed = code
        self._digests: dict[int, tuple[object, str]] = {}
        """The hashes of kernels and functions by their identity, with the objects, which this keeps alive."""
        self.codes: dict[str, bytes] = {}
        """What the blobs name, by its hash."""

    def encode(self, program: Program) -> Blob:
        """Return a program as bytes.

        Raises:
            ClusterSecurityError: it has code, which this cluster does not take.
            ClusterError: its code cannot be sent.
        """
        file, used = io.BytesIO(), dict[str, None]()
        pickler = _Pickler(file, self, used)
        instructions = [self._coded(each, used) for each in program.instructions]
        pickler.dump((FORMAT, program.devices, program.buffers, instructions))
        content = file.getvalue()
        return Blob(content, hashlib.sha256(content).hexdigest(), tuple(used))

    def _coded(self, instruction: Instruction, used: dict[str, None]) -> Instruction:
        """Return an instruction in which code is named by its hash."""
        if type(instruction) is not HostCall or type(instruction.function) is WriteCheckpoint:
            return instruction
        where = f"the function of the host_map at {describe(instruction.origin)}"
        function: Any = self._code(instruction.function, where, used)
        return replace(instruction, function=function, argument=self._template(instruction.argument, where, used))

    def _template(self, argument: Any, where: str, used: dict[str, None]) -> Any:
        """Return the argument of a `HostCall` in which constants that are no plain data are named by their hash."""
        if type(argument) is Items:
            return Items(tuple([self._template(item, where, used) for item in argument.items]))
        if type(argument) in _PLAIN or isinstance(argument, np.generic):
            return argument
        return self._code(argument, f"the argument of {where}", used)

    def _code(self, thing: Any, what: str, used: dict[str, None]) -> Code:
        """Return the name of a function or a constant."""
        known = self._digests.get(id(thing))
        digest = self._keep(thing, self._pickled(thing, what)) if known is None else known[1]
        used[digest] = None
        return Code(digest)

    def kernel(self, spec: KernelSpec, used: dict[str, None]) -> str:
        """Return the hash of a kernel."""
        known = self._digests.get(id(spec))
        digest = self._keep(spec, self._kernel_bytes(spec)) if known is None else known[1]
        used[digest] = None
        return digest

    def _keep(self, thing: object, content: bytes) -> str:
        digest = hashlib.sha256(content).hexdigest()
        self._digests[id(thing)] = thing, digest
        self.codes[digest] = content
        return digest

    def _kernel_bytes(self, spec: KernelSpec) -> bytes:
        """Return a kernel as bytes: its fields, and the pickle of its Python code if it has to be sent."""
        if spec.python is not None and not self._on_host:
            raise ClusterError(
                f"kernel {spec.name}, declared at {describe(spec.origin)}, is compiled by {spec.python.library} in "
                "this process, and is not sent to a cluster. Write it in CUDA C++, or run it on a device of this "
                "process."
            )
        body, library = (spec.host.function, None) if self._on_host else (None, spec.library)
        code = None
        if body is not None or library is not None:
            whose = "host body" if self._on_host else "library's functions"
            what = f"the {whose} of kernel {spec.name}, declared at {describe(spec.origin)},"
            code = self._pickled((body, library), what)
        dropped = {"host", "library", "python"}
        data = {each.name: getattr(spec, each.name) for each in fields(spec) if each.init and each.name not in dropped}
        data["params"] = tuple([replace(param, check=None) for param in spec.params])
        file = io.BytesIO()
        _Pickler(file, self, {}).dump((data, spec.host.whole, code))
        return file.getvalue()

    def _pickled(self, thing: Any, what: str) -> bytes:
        """Return the pickle of code."""
        if not self._allowed:
            raise ClusterSecurityError(
                f"{what} is Python code, which this cluster does not take, since it was opened with code=False. Run "
                "the op on a cluster with code=True, or on a device of this process."
            )
        import cloudpickle

        try:
            return cast(bytes, cloudpickle.dumps(thing))
        except Exception as error:
            raise ClusterError(
                f"{what} cannot be sent to a cluster: {type(error).__name__}: {error}. A function travels with the "
                "values that it refers to; refer to plain data, and open files and connections inside of it."
            ) from error


@final
class _Pickler(pickle.Pickler):
    """Writes plan data. Kernels, element types and places in the user's files are written by name."""

    def __init__(self, file: io.BytesIO, encoder: Encoder, used: dict[str, None]) -> None:
        super().__init__(file, 5)
        self._encoder = encoder
        self._used = used

    def persistent_id(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is KernelSpec:
            return "kernel", self._encoder.kernel(obj, self._used)
        if kind is tuple and len(obj) == 2 and type(obj[0]) is CodeType:
            return ("place", *(place_of(obj) or ("", 0)))
        if isinstance(obj, np.dtype) and element_type(obj) is not None:
            return "dtype", obj.name
        return None


@final
class _Unpickler(pickle.Unpickler):
    """Reads plan data, and refuses everything else."""

    def __init__(self, content: bytes, decoder: "Decoder", codes: Mapping[str, bytes]) -> None:
        super().__init__(io.BytesIO(content))
        self._decoder = decoder
        self._codes = codes

    def find_class(self, module: str, name: str) -> Any:
        found = _CLASSES.get((module, name))
        if found is not None:
            return found
        if (module, name) in (("numpy", "dtype"), ("numpy._core.multiarray", "scalar")):
            return super().find_class(module, name)
        raise ClusterSecurityError(
            f"a part of an op names {module}.{name}, which is no plan data of dagpu. It was not made by this version "
            "of dagpu: use one version on all machines, and take parts from your own clients alone."
        )

    def persistent_load(self, pid: Any) -> Any:
        match pid:
            case ("kernel", str(digest)):
                return self._decoder.kernel(digest, self._codes)
            case ("place", str(file), int(line)):
                return _origin_at(file, line)
            case ("dtype", str(name)):
                dtype = np.dtype(name)
                return element_type(dtype) or dtype
            case _:
                wrong = f"a part of an op has an unknown reference: {pid!r}. Use one version of dagpu on all machines."
                raise ClusterSecurityError(wrong)


def _origin_at(file: str, line: int) -> Origin:
    """Return an origin that `describe` prints as this place."""
    return (_NOTHING.replace(co_filename=file, co_firstlineno=line), 0) if file else None


_NOTHING: Final = (lambda: None).__code__
"""The code of a function of one line, whose first instruction is on that line."""


@final
class Decoder:
    """Reads blobs, on a worker. It keeps the kernels that it has read: equal ones are one object, which is compiled
    once."""

    def __init__(self) -> None:
        self._kernels: dict[str, KernelSpec] = {}

    def decode(self, blob: bytes, codes: Mapping[str, bytes]) -> Program:
        """Return the program of a blob. `codes` has the code that it names.

        Raises:
            ClusterSecurityError: it contains what is no plan data.
            ClusterError: it has another format.
        """
        content: Any = _Unpickler(blob, self, codes).load()
        found, devices, buffers, instructions = content
        if found != FORMAT:
            raise ClusterError(
                f"a part of an op has format {found}, and this worker reads format {FORMAT}. Use one version of dagpu."
            )
        steps = [_loaded(each, codes) for each in instructions]
        return Program(devices, buffers, tuple(steps), (ListSchedule(),), (0,) * len(steps))

    def kernel(self, digest: str, codes: Mapping[str, bytes]) -> KernelSpec:
        """Return the kernel with this hash."""
        known = self._kernels.get(digest)
        if known is not None:
            return known
        data, whole, code = _Unpickler(_content(digest, codes), self, codes).load()
        body, library = (None, None) if code is None else pickle.loads(code)
        spec = KernelSpec(**data, host=HostBody(body, whole), library=library)
        return self._kernels.setdefault(digest, spec)


def _content(digest: str, codes: Mapping[str, bytes]) -> bytes:
    """Return code with this hash.

    Raises:
        ClusterSecurityError: it has another hash.
    """
    content = codes[digest]
    if hashlib.sha256(content).hexdigest() != digest:
        raise ClusterSecurityError("code that came with a part of an op is not what the part names. Run the op again.")
    return content


def _loaded(instruction: Instruction, codes: Mapping[str, bytes]) -> Instruction:
    """Return an instruction with the code that it names."""
    if type(instruction) is not HostCall or type(instruction.function) is WriteCheckpoint:
        return instruction
    function: Any = instruction.function
    loaded = _code(function, codes)
    return replace(instruction, function=loaded, argument=_argument(instruction.argument, codes))


def _argument(template: Any, codes: Mapping[str, bytes]) -> Any:
    if type(template) is Items:
        return Items(tuple([_argument(item, codes) for item in template.items]))
    return _code(template, codes) if type(template) is Code else template


def _code(named: Code, codes: Mapping[str, bytes]) -> Any:
    return pickle.loads(_content(named.digest, codes))
