"""Parts as bytes for other machines: the format, what writes it and what reads it.

A blob is a pickle of plan data. It is read by an unpickler that knows dagpu's classes for programs, and refuses all
other names. Arrays, numbers and element types of NumPy are written as bytes and names, since what NumPy's own pickles
name differs with their contents and with NumPy's version.

What is code is not in it: it names kernels and the functions of `host_map` by the hash of their contents, which travel
beside it. A kernel is data with its CUDA source text, and the function of a `host_map` and the host body of a kernel
are pickled by cloudpickle, unless that is refused.
"""

import hashlib
import io
import pickle
import threading
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from enum import Enum
from types import CodeType
from typing import Any, Final, cast, final
from weakref import WeakValueDictionary

import numpy as np

from dagpu.common.errors import ClusterError, ClusterSecurityError
from dagpu.common.frozen import plain
from dagpu.common.layout import Layout, element_type
from dagpu.common.places import Origin, describe, place_of
from dagpu.handles.handle_state import module_state
from dagpu.kernels.declaration import ScalarCheck
from dagpu.ops.initializers import Arange, Constant, Eye, Linspace, Normal, Uniform
from dagpu.ops.kernel_spec import Form, HostBody, Indexed, KernelSpec, Param, Sight
from dagpu.plans.list_schedule import ListSchedule
from dagpu.plans.program import (
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

FORMAT: Final = 5
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
        """Write the array in C order, as `StoredArray` reads it, and return the name of its element type."""
        import os
        from uuid import uuid4

        scratch = f"{self.path}.{uuid4().hex[:8]}.part"
        try:
            with open(scratch, "wb") as file:  # noqa: PTH123  # reason: a path with a scheme is no Path
                np.save(file, np.asarray(array, order="C"))
                file.flush()
                os.fsync(file.fileno())
            os.replace(scratch, self.path)  # noqa: PTH105  # reason: the same
        except BaseException:
            if os.path.exists(scratch):  # noqa: PTH110  # reason: the same
                os.unlink(scratch)  # noqa: PTH108  # reason: the same
            raise
        return str(array.dtype.name)


CLASSES: Final = {
    (each.__module__, each.__qualname__): each
    for each in (
        Arange, Buffer, Cell, Code, Constant, CopyDtoD, CopyDtoH, CopyHtoD, Eye, Fill, Form, HostCall, Indexed, Items,
        Launch, Layout, Linspace, Normal, Param, Role, Sight, Tiles, Uniform, View, WriteCheckpoint,
    )
}  # fmt: skip
"""The classes that a blob may contain."""


@final
class KeptCode:
    """The bytes of a function, a constant or a kernel, as long as a blob names it. `thing` is what they were made of:
    while it is alive, no other object has its identity."""

    __slots__ = ("__weakref__", "content", "digest", "thing")

    def __init__(self, thing: object, content: bytes, digest: str) -> None:
        self.thing = thing
        self.content = content
        self.digest = digest


@final
class Codes:
    """The code that a blob names. Blobs that name the same code have one object."""

    __slots__ = ("__weakref__", "_kept", "content")

    def __init__(self, kept: Sequence[KeptCode]) -> None:
        self._kept = kept
        self.content = {each.digest: each.content for each in kept}
        """The bytes of each, by their hash."""


@final
@plain
class Blob:
    """A part's program as bytes."""

    content: bytes
    digest: str
    """The hash of `content`. Equal parts have equal ones, and one plan on each worker."""
    codes: Codes
    function: str
    """The hash of the function of a `host_map` that is all of the part; empty for any other part."""


def refused_code(what: str) -> ClusterSecurityError:
    """Return the error for Python code on a cluster that takes none."""
    return ClusterSecurityError(
        f"{what} is Python code, which this cluster does not take, since it was opened with code=False. Run the op on "
        "a cluster with code=True, or on a device of this process."
    )


# ---- part encoder
#
# `Encoder`: writes parts as blobs, which keep the code that they name.

_PLAIN: Final = frozenset((type(None), bool, int, float, complex, str, Cell, Code))
"""Types of constants in the argument of a `HostCall` that are no code."""


@final
class Encoder:
    """Writes blobs for the workers of one cluster, and knows the code that they name as long as they are there.

    Args:
        on_host: true if the workers' devices are hosts, which run the host bodies of kernels.
        code: false to refuse what has to be sent as Python code.
    """

    def __init__(self, *, on_host: bool, code: bool) -> None:
        self._on_host = on_host
        self.allowed = code
        """False if no Python code is sent."""
        self._by_thing: WeakValueDictionary[int, KeptCode] = WeakValueDictionary()
        """The code of kernels and functions by their identity."""
        self._by_digest: WeakValueDictionary[str, KeptCode] = WeakValueDictionary()
        self._codes: WeakValueDictionary[tuple[str, ...], Codes] = WeakValueDictionary()
        """What blobs name, by its hashes."""

    def encode(self, program: Program) -> Blob:
        """Return a program as bytes.

        Raises:
            ClusterSecurityError: it has code, which this cluster does not take.
            ClusterError: its code cannot be sent.
        """
        file, used = io.BytesIO(), dict[str, KeptCode]()
        pickler = _Pickler(file, self, used)
        instructions = [self._coded(each, used) for each in program.instructions]
        pickler.dump((FORMAT, program.devices, program.buffers, instructions))
        content = file.getvalue()
        return Blob(content, hashlib.sha256(content).hexdigest(), self._codes_of(used), _function_of(instructions))

    def _codes_of(self, used: Mapping[str, KeptCode]) -> Codes:
        digests = tuple(sorted(used))
        found = self._codes.get(digests)
        return found or self._codes.setdefault(digests, Codes([used[digest] for digest in digests]))

    def _coded(self, instruction: Instruction, used: dict[str, KeptCode]) -> Instruction:
        """Return an instruction in which code is named by its hash."""
        if type(instruction) is not HostCall or type(instruction.function) is WriteCheckpoint:
            return instruction
        where = f"the function of the host_map at {describe(instruction.origin)}"
        function: Any = self._code(instruction.function, where, used)
        return replace(instruction, function=function, argument=self._template(instruction.argument, where, used))

    def _template(self, argument: Any, where: str, used: dict[str, KeptCode]) -> Any:
        """Return the argument of a `HostCall` in which constants that are no plain data are named by their hash."""
        if type(argument) is Items:
            return Items(tuple([self._template(item, where, used) for item in argument.items]))
        if type(argument) in _PLAIN or (isinstance(argument, np.generic) and element_type(argument.dtype) is not None):
            return argument
        return self._code(argument, f"the argument of {where}", used)

    def _code(self, thing: Any, what: str, used: dict[str, KeptCode]) -> Code:
        """Return the name of a function or a constant."""
        known = self._by_thing.get(id(thing)) or self._keep(thing, self._pickled(thing, what))
        used[known.digest] = known
        return Code(known.digest)

    def kernel(self, spec: KernelSpec, used: dict[str, KeptCode]) -> str:
        """Return the hash of a kernel."""
        known = self._by_thing.get(id(spec)) or self._keep(spec, self._kernel_bytes(spec))
        used[known.digest] = known
        return known.digest

    def _keep(self, thing: object, content: bytes) -> KeptCode:
        digest = hashlib.sha256(content).hexdigest()
        known = self._by_digest.get(digest)
        if known is None:
            known = self._by_digest[digest] = self._by_thing[id(thing)] = KeptCode(thing, content, digest)
        return known

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
        dropped = {"host", "library", "python", "state"}
        data: dict[str, Any] = {
            each.name: getattr(spec, each.name) for each in fields(spec) if each.init and each.name not in dropped
        }
        file = io.BytesIO()
        title = None if spec.state is None else spec.state.title
        _Pickler(file, self, {}).dump((data, spec.host.whole, title, code))
        return file.getvalue()

    def _pickled(self, thing: Any, what: str) -> bytes:
        """Return the pickle of code."""
        if not self.allowed:
            raise refused_code(what)
        import cloudpickle

        try:
            return cast(bytes, cloudpickle.dumps(thing))
        except Exception as error:
            raise ClusterError(
                f"{what} cannot be sent to a cluster: {type(error).__name__}: {error}. A function travels with the "
                "values that it refers to; refer to plain data, and open files and connections inside of it."
            ) from error


def _function_of(instructions: Sequence[Instruction]) -> str:
    """Return the hash of the function that is all of a part; an empty text for any other part."""
    only = instructions[0] if len(instructions) == 1 else None
    function: Any = only.function if type(only) is HostCall else None
    return str(function.digest) if type(function) is Code else ""


@final
class _Pickler(pickle.Pickler):
    """Writes plan data. Kernels, element types, members of enumerations, checks of scalars and places in the user's
    files are written by name, arrays and numbers of NumPy by their bytes."""

    def __init__(self, file: io.BytesIO, encoder: Encoder, used: dict[str, KeptCode]) -> None:
        super().__init__(file, 5)
        self._encoder = encoder
        self._used = used

    def persistent_id(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is KernelSpec:
            return "kernel", self._encoder.kernel(obj, self._used)
        if isinstance(obj, Enum):  # pickle itself names `getattr` before Python 3.11.4
            return "member", kind.__module__, kind.__qualname__, obj.name
        if kind is tuple and len(obj) == 2 and type(obj[0]) is CodeType:
            return ("place", *(place_of(obj) or ("", 0)))
        if kind is ScalarCheck:
            return "scalar", obj.dtype.name
        if isinstance(obj, np.dtype):
            return None if element_type(obj) is None else ("dtype", obj.name)
        if kind is np.ndarray or isinstance(obj, np.generic):
            name = "array" if kind is np.ndarray else "number"
            return None if element_type(obj.dtype) is None else (name, obj.dtype.name, obj.shape, obj.tobytes())
        return None


# ---- part decoder
#
# `Decoder`: reads blobs on a worker, and refuses all that is no plan data.


@final
class _Unpickler(pickle.Unpickler):
    """Reads plan data, and refuses everything else."""

    def __init__(self, content: bytes, decoder: "Decoder", codes: Mapping[str, bytes]) -> None:
        super().__init__(io.BytesIO(content))
        self._decoder = decoder
        self._codes = codes

    def find_class(self, module: str, name: str) -> Any:
        found = CLASSES.get((module, name))
        if found is not None:
            return found
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
            case ("member", str(module), str(kind), str(name)) if name in _members_of(module, kind):
                return _members_of(module, kind)[name]
            case ("scalar", str(name)):
                return ScalarCheck("", _element(name), "")
            case ("dtype", str(name)):
                return _element(name)
            case ("array", str(name), tuple(shape), bytes(content)):
                return np.frombuffer(bytearray(content), _element(name)).reshape(shape)
            case ("number", str(name), tuple(), bytes(content)):
                return np.frombuffer(content, _element(name))[0]
            case _:
                wrong = f"a part of an op has an unknown reference: {pid!r}. Use one version of dagpu on all machines."
                raise ClusterSecurityError(wrong)


def _members_of(module: str, name: str) -> Mapping[str, Any]:
    """Return the members of an enumeration that a blob may contain; none of another class."""
    found: Mapping[str, Any] = getattr(CLASSES.get((module, name)), "__members__", {})
    return found


def _element(name: str) -> "np.dtype[Any]":
    dtype = np.dtype(name)
    return element_type(dtype) or dtype


def _origin_at(file: str, line: int) -> Origin:
    """Return an origin that `describe` prints as this place."""
    return (_NOTHING.replace(co_filename=file, co_firstlineno=line), 0) if file else None


KERNELS: Final = 1024
"""The number of kernels that a worker keeps besides those of its plans."""
_NOTHING: Final = (lambda: None).__code__
"""The code of a function of one line, whose first instruction is on that line."""


@final
class Decoder:
    """Reads blobs, on a worker. It keeps the kernels that it has read last: equal ones are one object, which is
    compiled once."""

    def __init__(self) -> None:
        self._kernels: dict[str, KernelSpec] = {}
        self._lock = threading.Lock()

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
        data, whole, title, code = _Unpickler(_content(digest, codes), self, codes).load()
        body, library = (None, None) if code is None else pickle.loads(code)
        state = None if title is None else module_state(title, data["cuda"], data["name"], data["options"])
        spec = KernelSpec(**data, host=HostBody(body, whole), library=library, state=state)
        with self._lock:
            found = self._kernels.setdefault(digest, spec)
            while len(self._kernels) > KERNELS:
                del self._kernels[next(iter(self._kernels))]
        return found


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
