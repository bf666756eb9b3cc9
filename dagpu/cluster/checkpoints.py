"""`checkpoint`: writes a tensor to a file, and goes on with what is read from there."""

from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dagpu.cluster.parts.part_blobs import WriteCheckpoint
from dagpu.cluster.worker.part_runs import StoredArray
from dagpu.common.errors import ClusterError
from dagpu.common.origin import Origin, describe, here
from dagpu.common.wrong_arguments import check_path, wrong_argument
from dagpu.handles import SharedTensor, Tensor
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import value
from dagpu.ops.creation import from_host

_D = TypeVar("_D", bound=np.generic)


def checkpoint(t: "Tensor[_D] | DeviceOp[Tensor[_D], Any, Any]", store: str | PathLike[str]) -> DeviceOp[Tensor[_D]]:
    """Return an op that writes a tensor to the file `store`, in NumPy's format, and gives a tensor with its contents.

    On a cluster this cuts the lineage: if the result is lost with its worker, it is read from the file, and nothing
    before it is computed again. All workers and this process must see the file under that path. The file is whole or
    not there, and may be removed once nothing that was made of the tensor is needed any more. On a device of this
    process the op does the same.

    Args:
        t: the tensor, which moves into the op, or an op that makes it.
        store: the path of the file. It is replaced if it is there.

    Raises:
        ClusterError: this process does not see the file that was written.
    """
    origin = here()
    check_path(store, "checkpoint", origin)
    given: Any = t  # whatever the user gave
    if not isinstance(given, Tensor | SharedTensor | DeviceOp):
        cure = "Write checkpoint(t, path), with a tensor or an op that makes one"
        raise wrong_argument("checkpoint", origin, "t", given, "a tensor or an op", cure)
    path = str(Path(fspath(store)).absolute())
    source: Any = given if isinstance(given, DeviceOp) else value(given)
    written: DeviceOp[str] = source.to_host().host_map(WriteCheckpoint(path))
    return written.then(partial(_read, origin, path))


def _read(origin: Origin, path: str, element: str) -> DeviceOp[Any]:
    """Return an op that makes a tensor of the file, which is read where it is needed.

    Args:
        origin: the place of the checkpoint.
        path: the path of the file.
        element: the name of the element type, which NumPy's format does not keep for bf16.
    """
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
        return from_host(StoredArray(path, found.offset, element, found.shape).open())
    except OSError as error:
        raise ClusterError(
            f"checkpoint() at {describe(origin)}: {path} was written on a worker, and this process cannot read it "
            f"({error}). Give a path on a file system that all machines share."
        ) from None
