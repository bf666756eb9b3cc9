"""`Decoder`: reads blobs on a worker, and refuses all that is no plan data."""

import hashlib
import io
import pickle
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, final

import numpy as np

from dagpu.cluster.parts.part_blobs import CLASSES, FORMAT, Code, WriteCheckpoint
from dagpu.common.dtypes import element_type
from dagpu.common.errors import ClusterError, ClusterSecurityError
from dagpu.common.origin import Origin
from dagpu.handles.module_state import module_state
from dagpu.kernels.cuda_source.cuda_scalars import CudaParam
from dagpu.kernels.declaration import ScalarCheck
from dagpu.lowering.program import HostCall, Instruction, Items, Program
from dagpu.lowering.schedule.list_schedule import ListSchedule
from dagpu.ops.kernel_spec import HostBody, KernelSpec


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
            case ("scalar", str(name)):
                return ScalarCheck(CudaParam("", "scalar", name, False, None, 0), "")
            case ("dtype", str(name)):
                return _element(name)
            case ("array", str(name), tuple(shape), bytes(content)):
                return np.frombuffer(bytearray(content), _element(name)).reshape(shape)
            case ("number", str(name), tuple(), bytes(content)):
                return np.frombuffer(content, _element(name))[0]
            case _:
                wrong = f"a part of an op has an unknown reference: {pid!r}. Use one version of dagpu on all machines."
                raise ClusterSecurityError(wrong)


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
