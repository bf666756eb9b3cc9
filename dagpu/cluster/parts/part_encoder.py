"""`Encoder`: writes parts as blobs, which keep the code that they name."""

import hashlib
import io
import pickle
from collections.abc import Mapping
from dataclasses import fields, replace
from types import CodeType
from typing import Any, Final, cast, final
from weakref import WeakValueDictionary

import numpy as np

from dagpu.cluster.parts.part_blobs import FORMAT, Blob, Code, Codes, KeptCode, WriteCheckpoint, refused_code
from dagpu.common.dtypes import element_type
from dagpu.common.errors import ClusterError
from dagpu.common.origin import describe, place_of
from dagpu.kernels.declaration import ScalarCheck
from dagpu.lowering.program import Cell, HostCall, Instruction, Items, Program
from dagpu.ops.kernel_spec import KernelSpec

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
        return Blob(content, hashlib.sha256(content).hexdigest(), self._codes_of(used))

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


@final
class _Pickler(pickle.Pickler):
    """Writes plan data. Kernels, element types, checks of scalars and places in the user's files are
    written by name, arrays and numbers of NumPy by their bytes."""

    def __init__(self, file: io.BytesIO, encoder: Encoder, used: dict[str, KeptCode]) -> None:
        super().__init__(file, 5)
        self._encoder = encoder
        self._used = used

    def persistent_id(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is KernelSpec:
            return "kernel", self._encoder.kernel(obj, self._used)
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
