"""The value of a part's key: the versions that the part has made, where they are. It is never written."""

import pickle
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias, final

import numpy as np

from dagpu.backends.host.arrays import ALIGNMENT, Account, HostMemory
from dagpu.backends.protocol import Bindings
from dagpu.cluster.parts.part import Version
from dagpu.common.dtypes import element_type
from dagpu.common.layout import contiguous_layout
from dagpu.lowering.program import HOST, Buffer, Cell, CopyDtoH, CopyHtoD, Instruction, Program, Role, View
from dagpu.lowering.schedule.policies import SingleStream
from dagpu.lowering.schedule.scheduler import schedule
from dagpu.runtime.device_lookup import backend

Bytes: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"
_U8: Final = np.dtype(np.uint8)
_PLAIN: Final = (bool, float, str, type(None))
"""Types of host values that travel as they are, with smaller integers."""
_LARGE: Final = 1 << 63


@final
class Block:
    """Device memory that holds a version, or the bytes of one that has come from another worker."""

    __slots__ = ("device", "memory", "nbytes")

    def __init__(self, device: str, memory: Any, nbytes: int) -> None:
        self.device = device
        """The name of the device on this worker; empty for bytes in the worker's own memory."""
        self.memory = memory
        """The memory object of the device's backend, or an array of bytes."""
        self.nbytes = nbytes

    def content(self) -> Bytes:
        """Return the bytes: the memory itself on the host, a copy of device memory."""
        if not self.device:
            found: Bytes = self.memory
            return found
        if isinstance(self.memory, HostMemory):
            return self.memory.block
        return _download(self.device, self.memory, self.nbytes)

    def on(self, device: str) -> Any:
        """Return memory of a device that holds the version, which must not be written."""
        if self.device == device:
            return self.memory
        return upload(device, self.content())


def upload(device: str, content: Bytes) -> Any:
    """Return memory of a device with these bytes. On the host it is the array itself if its address suits."""
    if device.startswith("host"):
        if content.ctypes.data % ALIGNMENT == 0 or not content.nbytes:
            return HostMemory.over(content)
        memory = HostMemory(_ACCOUNT, content.nbytes)
        memory.block[...] = content
        return memory
    return _run_copy(device, content.nbytes, content, into_device=True)


def _download(device: str, memory: Any, nbytes: int) -> Bytes:
    found: Bytes = _run_copy(device, nbytes, memory, into_device=False)
    return found


_ACCOUNT: Final = Account()


def _run_copy(device: str, nbytes: int, content: Any, *, into_device: bool) -> Any:
    """Copy bytes from the host to a device or back, by a plan of one copy: all backends do it alike."""
    view = View(0 if not into_device else 1, contiguous_layout((nbytes,), _U8))
    cell, block = Buffer(0, HOST, Role.INPUT), Buffer(nbytes, 0, Role.OUTPUT)
    copy: Instruction = CopyHtoD(view, Cell(0), (0,), (1,), 0, None)
    if not into_device:
        cell, block = Buffer(nbytes, 0, Role.INPUT), Buffer(0, HOST, Role.OUTPUT)
        copy = CopyDtoH(Cell(1), view, (0,), (1,), 0, None)
    plan = schedule(Program((device,), (cell, block), (copy,), (SingleStream(),), (0,)))
    prepared = backend(device.partition(":")[0]).prepare(plan)
    if prepared.before_first is not None:
        prepared.before_first()
    bindings = Bindings([content, None])
    run = prepared.submit(bindings)
    run.wait()
    for failure in run.failures():
        raise failure.error
    return bindings.memory[1]


@final
class PartValue:
    """Versions that a part has made: blocks of device memory, and the values of cells."""

    __slots__ = ("__weakref__", "blocks", "cells")

    def __init__(self, blocks: Mapping[Version, Block], cells: Mapping[Version, Any]) -> None:
        self.blocks = dict(blocks)
        self.cells = dict(cells)

    def subset(self, versions: Iterable[Version]) -> "PartValue":
        """Return some of the versions, without a copy."""
        wanted = list(versions)
        return PartValue(
            {v: self.blocks[v] for v in wanted if v in self.blocks},
            {v: self.cells[v] for v in wanted if v in self.cells},
        )

    def __sizeof__(self) -> int:
        """Return the bytes that the value holds, for Dask."""
        arrays = [x.nbytes for x in self.cells.values() if isinstance(x, np.ndarray)]
        return 200 + sum([block.nbytes for block in self.blocks.values()]) + sum(arrays)

    def __repr__(self) -> str:
        return f"<PartValue of {len(self.blocks)} tensors and {len(self.cells)} host values>"


@final
class Pickled:
    """A host value as a pickle. It is loaded where it is used, so that reading it from the network runs no code."""

    __slots__ = ("content",)

    def __init__(self, content: bytes) -> None:
        self.content = content


def loaded(cell: Any) -> Any:
    """Return a host value, which may have come from another process."""
    return pickle.loads(cell.content) if type(cell) is Pickled else cell


# ---- how Dask sends values: the bytes of tensors and arrays as frames, without a pickle


def write_value(value: PartValue) -> tuple[dict[str, Any], list[Any]]:
    """Return a value as a header of plain data and frames."""
    entries: list[tuple[Any, ...]] = []
    frames: list[Any] = []
    for version, block in value.blocks.items():
        entries.append(("block", version, block.nbytes))
        frames.append(_frame(block.content()) if block.nbytes else b"")
    for version, cell in value.cells.items():
        if type(cell) is np.ndarray and element_type(cell.dtype) is not None:
            entries.append(("array", version, cell.dtype.name, cell.shape))
            frames.append(_frame(np.ascontiguousarray(cell)) if cell.nbytes else b"")
        elif type(cell) in _PLAIN or (type(cell) is int and abs(cell) < _LARGE):
            entries.append(("plain", version, cell))
            frames.append(b"")
        else:
            import cloudpickle

            entries.append(("pickle", version))
            frames.append(cell.content if type(cell) is Pickled else cloudpickle.dumps(cell))
    return {"entries": entries}, frames


def read_value(header: dict[str, Any], frames: list[Any]) -> PartValue:
    """Return the value of a header and frames. Its memory is that of the frames."""
    blocks: dict[Any, Block] = {}
    cells: dict[Any, Any] = {}
    for (kind, version, *about), frame in zip(header["entries"], frames, strict=True):
        named = tuple(version)
        if kind == "block":
            content = np.frombuffer(frame, np.uint8)
            content.flags.writeable = False
            blocks[named] = Block("", content, about[0])
        elif kind == "array":
            name, shape = about
            cells[named] = np.frombuffer(bytearray(frame), np.dtype(name)).reshape(tuple(shape))
        elif kind == "plain":
            (cells[named],) = about
        else:
            cells[named] = Pickled(bytes(frame))
    return PartValue(blocks, cells)


def _frame(array: Any) -> memoryview:
    """Return the bytes of a contiguous array."""
    return memoryview(array.reshape(-1).view(np.uint8))


def register_frames() -> None:
    """Tell Dask how to send values."""
    from distributed.protocol.serialize import dask_deserialize, dask_serialize

    dask_serialize.register(PartValue)(write_value)
    dask_deserialize.register(PartValue)(read_value)


if "distributed" in sys.modules:  # a worker that gets a value imports this module to read it
    register_frames()
