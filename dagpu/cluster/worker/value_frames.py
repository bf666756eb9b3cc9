"""How Dask sends the value of a part: the bytes of tensors and arrays as frames, without a pickle."""

import pickle
from typing import Any

import cloudpickle
import numpy as np
from distributed.protocol.serialize import dask_deserialize, dask_serialize

from dagpu.cluster.worker.part_values import Block, PartValue


def write_value(value: PartValue) -> tuple[dict[str, Any], list[Any]]:
    """Return a value as a header of plain data and frames."""
    entries: list[tuple[Any, ...]] = []
    frames: list[Any] = []
    for version, block in value.blocks.items():
        entries.append(("block", version, block.nbytes))
        frames.append(_frame(block.content()) if block.nbytes else b"")
    for version, cell in value.cells.items():
        if type(cell) is np.ndarray and cell.dtype.isbuiltin == 1 and not cell.dtype.hasobject:
            entries.append(("array", version, cell.dtype.name, cell.shape))
            frames.append(_frame(np.ascontiguousarray(cell)) if cell.nbytes else b"")
        else:
            entries.append(("code", version))
            frames.append(cloudpickle.dumps(cell))
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
        else:
            cells[named] = pickle.loads(frame)
    return PartValue(blocks, cells)


def _frame(array: Any) -> memoryview:
    """Return the bytes of a contiguous array."""
    return memoryview(array.reshape(-1).view(np.uint8))


dask_serialize.register(PartValue)(write_value)
dask_deserialize.register(PartValue)(read_value)
